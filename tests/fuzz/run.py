"""Cases by number: the same number is the same input. ``python -m tests.fuzz`` runs until it is stopped."""

from __future__ import annotations

import argparse
import gzip
import json
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import tracelens
from tests.fuzz import check, mutate
from tests.synthetic import ModelSpec, Options, build
from tracelens.results.json import to_json

CORPUS = Path(__file__).with_name("corpus")
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
HANGS_S = 10  # of CPU time, whatever else the machine does
_GPT2 = ModelSpec(hidden=256, heads=4, vocab=1003, layers=1, sequence=128, micro_batch=1)
_LLAMA = replace(_GPT2, family="llama", kv_heads=2, ffn=704)
_CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "num_hidden_layers": 32,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


class Hang(Exception):
    """A case that took longer than ``HANGS_S``."""


@cache
def documents(*, shared: bool) -> tuple[str, ...]:
    """Good traces, small, as JSON text."""
    found = []
    for model in (_GPT2, _LLAMA):
        how = Options(steps=1, attention="math" if model is _LLAMA else "flash", all_reduce=model is _LLAMA)
        found.append(build(model, how).text())
    if shared and SHARED.is_dir():
        found += [
            _piece(path) for path in sorted(SHARED.rglob("*.json.gz")) if path.stat().st_size < 3_000_000
        ]
    return tuple(found)


def _piece(path: Path) -> str:
    """Some hundred neighbouring events of a real trace."""
    whole = json.loads(gzip.decompress(path.read_bytes()), strict=False)
    whole = whole if isinstance(whole, dict) else {"traceEvents": whole}
    events = [one for one in whole["traceEvents"] if one.get("ph") != "M"]
    events.sort(key=lambda one: float(one.get("ts", 0)))
    at = next((i for i, one in enumerate(events) if str(one.get("cat")).lower() == "kernel"), 0)
    kept = events[max(0, at - 300) : at + 500]
    return json.dumps(whole | {"traceEvents": kept})


@cache
def reports(*, shared: bool) -> tuple[str, ...]:
    """Saved reports of the same traces."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for text in documents(shared=shared):
            path.write_text(text, encoding="utf-8")
            with suppress(tracelens.InputError):
                found.append(to_json(tracelens.analyze(path, what_ifs=()).report).decode())
    return tuple(found)


def make(number: int, *, shared: bool = False) -> tuple[str, bytes]:
    """Kind and bytes of a case."""
    rnd = random.Random(number)
    kind = rnd.choices(("trace", "report", "config"), (6, 3, 1))[0]
    if kind == "trace":
        return kind, mutate.trace(rnd, json.loads(rnd.choice(documents(shared=shared))))
    if kind == "report":
        whole = json.loads(rnd.choice(reports(shared=shared)))
        return kind, mutate.as_bytes(
            rnd, mutate.anywhere(rnd, whole, rnd.choice((1, 3, 10)), typed=rnd.random() < 0.8)
        )
    return kind, mutate.as_bytes(
        rnd, mutate.anywhere(rnd, dict(_CONFIG), rnd.choice((1, 2, 4)), typed=rnd.random() < 0.7)
    )


def run(kind: str, data: bytes, folder: Path, *, thorough: bool) -> str:
    """What a case ended in. Raises what must not happen."""
    path = folder / ("trace.json.gz" if data[:2] == b"\x1f\x8b" else f"{kind}.json")
    path.write_bytes(data)
    before = signal.signal(signal.SIGVTALRM, _hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
    try:
        if kind == "trace":
            return check.of_trace(path, thorough=thorough)
        return check.of_report(data) if kind == "report" else check.of_config(path)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _hangs(*_: Any) -> None:
    raise Hang(f"over {HANGS_S} s")


def place(error: BaseException) -> str:
    """Where it happened, so that a thousand cases of one fault are one."""
    ours = [one for one in traceback.extract_tb(error.__traceback__) if "tracelens/" in one.filename]
    last = ours[-1] if ours else None
    where = (
        f"{last.filename.partition('tracelens/')[2].rpartition('tracelens/')[2]}:{last.lineno}"
        if last
        else ""
    )
    said = str(error).partition(":")[0] if isinstance(error, check.Broken) else ""
    return f"{type(error).__name__} {where} {said}".strip()


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> int:
    """Run cases; print each new fault once, with the number that makes it, and keep its input."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=main.__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--cases", type=int, default=1 << 40)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--keep", type=Path, help="folder for the inputs of faults")
    options = parser.parse_args(arguments)
    ended: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as name, suppress(KeyboardInterrupt):  # the counts are said
        for number in range(options.first, options.first + options.cases):
            if time.monotonic() > end:
                break
            kind, data = make(number, shared=True)
            try:
                ended[f"{kind}: {run(kind, data, Path(name), thorough=number % 8 == 0)}"] += 1
            except Exception as error:
                what = place(error)
                faults[what] += 1
                if faults[what] == 1:
                    say(f"{number} {kind}: {what}: {str(error)[:300]}")
                    if options.keep:
                        options.keep.mkdir(parents=True, exist_ok=True)
                        (options.keep / f"{number}.{kind}").write_bytes(data)
    say(f"{ended.total() + faults.total():,} cases, {len(faults)} faults ({faults.total()} cases)")
    for what, count in [*ended.most_common(), *faults.most_common()]:
        say(f"{count:>8,}  {what}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
