"""Fits Megatron's ``tracelens/step/paces.py`` to NVIDIA's figures: python -m benchmarks.megatron_steps

``tests/advice/megatron_steps.csv`` has them with their sources: pre-training in bf16 and fp8 of NeMo 24.07 to
Megatron-Bridge 26.06, on H100, B200, GB200 and GB300. A row goes to the fit or to judging by the hash of what
ran; then each model in turn is left out. ``-v``: every row. ``--plain``: judged as plain PyTorch.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.steps import Judged, Row, fit, judge
from tracelens.config import config_from_flags
from tracelens.config.training import Training
from tracelens.results.suggestions import Stack
from tracelens.step.paces import Pace

ROWS = Path(__file__).parents[1] / "tests" / "advice" / "megatron_steps.csv"
_KINDS = {"Hopper": ("h100-sxm",), "Blackwell": ("b200", "gb200", "gb300")}
#: Hidden size, heads, key/value heads, layers, ffn, vocabulary, sequence; Llama's MLP has a gate.
_MODELS = {
    "gpt3-5b": (4096, 32, 32, 24, 16384, 51200, 2048),
    "gpt3-20b": (6144, 48, 48, 44, 24576, 51200, 2048),
    "gpt3-175b": (12288, 96, 96, 96, 49152, 51200, 2048),
    "nemotron-8b": (4096, 32, 32, 32, 16384, 256000, 4096),
    "nemotron-15b": (6144, 48, 8, 32, 24576, 256000, 4096),
    "nemotron-22b": (6144, 48, 48, 40, 24576, 256000, 4096),
    "nemotron-340b": (18432, 96, 8, 96, 73728, 256000, 4096),
    "llama2-7b": (4096, 32, 32, 32, 11008, 32000, 4096),
    "llama2-13b": (5120, 40, 40, 40, 13824, 32000, 4096),
    "llama2-70b": (8192, 64, 8, 80, 28672, 32000, 4096),
    "llama3-8b": (4096, 32, 8, 32, 14336, 128256, 8192),
    "llama3-70b": (8192, 64, 8, 80, 28672, 128256, 8192),
    "llama3-405b": (16384, 128, 8, 126, 53248, 128256, 8192),
}
_SIZES = ("hidden", "heads", "kv_heads", "layers", "ffn", "vocab", "sequence")
_DEGREES = ("tensor_parallel", "pipeline_parallel", "context_parallel", "virtual_stages")
_FITTED = ("products", "casts", "gradients", "tensor")


def left_out(row: dict[str, str]) -> bool:
    """Is this row only to judge? One in two is."""
    key = tuple(row[name] for name in ("source", "model", "gpu", "dtype", "gpus", "global_batch"))
    return int(hashlib.sha256(repr(key).encode()).hexdigest(), 16) % 2 == 0


def rows(stack: Stack = "megatron") -> list[tuple[Row, bool]]:
    """Every row, and whether it is left out of the fit."""
    found = []
    with ROWS.open(encoding="utf-8") as file:
        for one in csv.DictReader(file):
            sizes = dict(zip(_SIZES, _MODELS[one["model"]], strict=True))
            degrees = {name: int(one[name]) for name in _DEGREES if one[name] != "1"}
            llama = one["model"].startswith("llama")
            sizes |= degrees | {"micro_batch": int(one["micro_batch"])}
            config = config_from_flags(sizes, gated=llama, tied=False)
            if not one["model"].startswith("gpt"):
                config = replace(config, layout=replace(config.layout, rope=True))
            gpus, batch = int(one["gpus"]), int(one["global_batch"])
            count = batch * config.model.batch_ranks // gpus // int(one["micro_batch"])
            strategy = "fsdp" if one["strategy"] == "fsdp" else "zero1"
            training = Training(gpus, strategy, "none", count, stack=stack, overlap=True)  # type: ignore[arg-type]
            speed = float(one["tokens_per_s_per_gpu"])
            row = Row(one["model"], one["gpu"], config, training, speed, 1.0, one["dtype"])
            found.append((replace(row, mfu=_mfu(row)), left_out(one)))
    return found


def _mfu(row: Row) -> float:
    """As predictions count it, of the published speed."""
    step = row.step()
    return row.tokens_per_s * (step.mfu_frac.mid or 0.0) / (step.tokens_per_s_per_gpu.mid or 1.0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="every row, as the project has it")
    parser.add_argument("--plain", action="store_true", help="judged as steps of plain PyTorch")
    given = parser.parse_args(arguments)
    everything = rows("plain" if given.plain else "megatron")
    print("judged | n | median | 90 % | in range | order of MFU")
    for kind, gpus in _KINDS.items():
        some = [(row, out) for row, out in everything if row.gpu in gpus]
        halves = {name: [row for row, out in some if out == flag] for name, flag in
                  (("fitted to", False), ("left out", True))}  # fmt: skip
        for name, half in halves.items():
            print(f"{kind} {name} | {judge(half).line()}")
        if not given.plain:
            base = some[0][0].pace
            print(f"{kind}: {_values(fit(halves['fitted to'], _FITTED, base))}")
            print(f"{kind} each model left out in turn | {_in_turn([row for row, _ in some], base).line()}")
        for row, out in some if given.verbose else ():
            step = row.step()
            error = (step.tokens_per_s_per_gpu.mid or 0.0) / row.tokens_per_s - 1
            sizes, which = row.config.model, "left out" if out else ""
            print(f"  {row.gpu} {row.model} {row.dtype} gpus={row.training.gpus} tp={sizes.tp}"
                  f" pp={sizes.pp} cp={sizes.cp} {which} {error:+.1%}"
                  f" of {row.tokens_per_s:.0f} tokens/s")  # fmt: skip


def _in_turn(some: Sequence[Row], base: Pace) -> Judged:
    """Each model by constants that were fitted without it."""
    found = Judged([], [], [])
    for model in sorted({row.model for row in some}):
        pace = fit([row for row in some if row.model != model], _FITTED, base)
        found += judge([row for row in some if row.model == model], pace)
    return found


def _values(pace: Pace) -> str:
    return ", ".join(f"{name} {getattr(pace, name):.2f}" for name in _FITTED)


if __name__ == "__main__":
    main()
