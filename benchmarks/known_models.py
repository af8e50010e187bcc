"""What ``tracelens suggest`` says of well-known models, against what is published.

``python -m benchmarks.known_models`` prints every contradiction, what was picked for each model, and how long
a run takes. The sizes (tests/advice/known_models.csv) are those of each model's public config.json.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from tracelens.config.configuration import Configuration, Given
from tracelens.config.huggingface import read_huggingface
from tracelens.errors import TracelensError
from tracelens.results.suggestions import Suggestions
from tracelens.suggestions import suggest

MODELS = Path(__file__).parents[1] / "tests" / "advice" / "known_models.csv"
GPUS = (
    "a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm", "h200", "b200", "l40s", "rtx-4090", "rtx-pro-6000-server",
)  # fmt: skip
#: Where what odd sizes cost was measured (the paper's sweeps on A100; public traces and sweeps on H100).
ALIGNMENT_KNOWN = ("a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm", "h200")
_GIVEN = ("name", "model_type", "experts", "top_k", "tie_word_embeddings")


@lru_cache(maxsize=1)
def configurations() -> dict[str, dict[str, Any]]:
    """Name -> what its config.json says."""
    found: dict[str, dict[str, Any]] = {}
    with MODELS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            table: dict[str, Any] = {
                key: int(value) for key, value in row.items() if value and key not in _GIVEN
            }
            table |= {
                "model_type": row["model_type"],
                "tie_word_embeddings": row["tie_word_embeddings"] == "1",
            }
            if row["experts"]:
                table |= {"num_experts": int(row["experts"]), "num_experts_per_tok": int(row["top_k"])}
            if row["model_type"] in ("falcon", "mpt"):
                table |= {"d_model": table["hidden_size"], "n_heads": table["num_attention_heads"]}
            found[row["name"]] = table
    return found


def configuration(name: str) -> Configuration:
    """As read from its config.json."""
    return read_huggingface(configurations()[name], Given(), name="config.json")


def contradictions(found: Suggestions) -> Iterator[str]:
    """What a published measurement, or a constraint that all of them keep, speaks against."""
    sizes = {"vocab": 0} | {name: one.value or 0 for name, one in found.sizes.items()}
    for pick in found.picks:
        then = sizes | {name: pair[1] or 0 for name, pair in pick.change.items()}
        low, mid, high = (
            pick.saving_frac.low or 0.0,
            pick.saving_frac.mid or 0.0,
            pick.saving_frac.high or 0.0,
        )
        if not 0 < low <= mid <= high < 1:
            yield f"{pick.title}: saves {low:.1%} to {high:.1%}"
        if then["vocab"] < sizes["vocab"] or ("vocab" in pick.change and sizes["vocab"] % 64 == 0):
            yield f"{pick.title}: {sizes['vocab']} is on every grid that was measured"
        grouped = sizes["kv_heads"] != sizes["heads"]
        if then["kv_heads"] != (sizes["kv_heads"] if grouped else then["heads"]):
            yield f"{pick.title}: KV heads {sizes['kv_heads']} to {then['kv_heads']}"
        if then["heads"] % math.gcd(sizes["heads"], 4):
            yield f"{pick.title}: {then['heads']} heads divide by fewer ranks than {sizes['heads']}"
        if found.gpu in ("h100-sxm", "h200") and sizes["head_dim"] == 256 and then["head_dim"] == 128:
            # FlashAttention-3, forward, equal hidden: 256 takes 0.87 to 0.92 of 128 (aiconfigurator's tables)
            yield f"{pick.title}: heads of 256 were measured faster"
        if then["head_dim"] < min(64, sizes["head_dim"]):  # C1 of arXiv 2401.14489, Figure 1
            yield f"{pick.title}: heads of {then['head_dim']} were measured slower"
    if (
        sizes["vocab"] % 8
        and found.gpu in ALIGNMENT_KNOWN
        and not any("vocab" in pick.change for pick in found.picks)
    ):
        yield f"vocab {sizes['vocab']} is not padded: 50257 to 50304 gained 4 to 25 % where it was measured"
    if found.would_fit is not None and "already good" in found.verdict:
        yield "called good, and does not fit"
    if (found.would_fit is None) != ((found.memory_gb or 0) <= (found.room_gb or math.inf)):
        yield f"{found.memory_gb:.0f} GB on {found.room_gb} GB, and what would fit is {found.would_fit}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="only this one")
    given = parser.parse_args(arguments)
    seconds: list[float] = []
    wrong = refused = 0
    for name in configurations():
        if given.model not in (None, name):
            continue
        for gpu in GPUS:
            start = time.process_time()
            try:
                found = suggest(configuration(name), gpu=gpu)
            except TracelensError as error:
                print(f"{name} {gpu}: refused: {error}")
                refused += 1
                continue
            seconds.append(time.process_time() - start)
            said = "; ".join(pick.title for pick in found.picks[:1]) or found.verdict[:60]
            print(f"{name} {gpu} {seconds[-1]:.2f} s: {said}")
            for line in contradictions(found):
                wrong += 1
                print(f"  CONTRADICTED {line}")
    print(
        f"{len(seconds)} answers, {refused} refused, {wrong} contradictions; CPU seconds: median"
        f" {statistics.median(seconds):.2f}, longest {max(seconds):.2f}, all {sum(seconds):.0f}"
    )


if __name__ == "__main__":
    main()
