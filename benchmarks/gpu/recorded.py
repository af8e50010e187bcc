"""Recordings of ``benchmarks.gpu.hub`` as traces of several kinds, each with its truth."""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHAPES = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs", "Ev Idx")
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True)
class Row:
    """What a kernel is for, as ``attribution_zoo.judge`` asks for it."""

    correlation: int
    component: str  # words that are right, first the true one; empty where nobody knows
    duration_ns: int
    module: str | None
    strict: bool


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording and its truth."""

    document: dict[str, Any]
    truth: dict[str, Any]

    def rows(self) -> list[Row]:
        """The truth of every launch that it knows."""
        states, kernels = self.truth["states"], self.truth["kernels"]
        found = []
        for event in self.document["traceEvents"]:
            key = str(event.get("args", {}).get("correlation"))
            if event.get("cat") in _ON_GPU and key in kernels:
                words, _, module, strict = states[kernels[key]]
                words = _amended(words, module or "", self.truth["model"])
                duration = round(float(event["dur"]) * 1000)
                found.append(Row(int(key), words, duration, module, strict))
        return found

    def trace(self, names: str, *, shapes: bool = True) -> bytes:
        """``names``: "none", or "frames" as ``with_stack`` or ``with_modules`` writes them."""
        events = self.document["traceEvents"]
        head = {key: value for key, value in self.document.items() if key != "traceEvents"}
        if not shapes:
            head.pop("record_shapes", None)
            events = [_without_shapes(event) for event in events]
        if names == "frames":
            events = [*events, *_frames(self.truth["modules"], events)]
        return json.dumps(head | {"traceEvents": events}).encode()


#: An MLP in a module called attention: BridgeTowerResidualAttention, models/bridgetower.
_RESIDUAL_ATTENTION = re.compile(r"\bresblocks\.\d+\.mlp\.(\w+)$")
_IN_ITS_MLP = {"c_fc": "mlp.up", "gelu": "mlp.activation", "c_proj": "mlp.down"}


#: Weighs two residual streams against each other: DFineGate, models/d_fine.
_STREAMS = re.compile(r"\bgateway(\.gate)?$")


def _amended(words: str, module: str, model: str) -> str:
    """The truth where ``benchmarks.hub.truth`` was at fault when the recordings were made."""
    if not module and model == "TimesFmModelForPrediction":
        return ""  # what is done with numbers before the model and behind it is no head for its name
    if _STREAMS.search(module):
        return "residual other"
    if words.startswith("attention.core"):  # its dropout, too, where no kernel fuses all
        return f"{words} dropout"
    own = _RESIDUAL_ATTENTION.search(module)
    return _IN_ITS_MLP.get(own[1], words) if own else words


def read_recorded(path: Path) -> Recorded:
    """One file of ``benchmarks.gpu.hub``."""
    document = json.loads(lzma.decompress(path.read_bytes()))
    return Recorded(document, document.pop("truth"))


def _without_shapes(event: dict[str, Any]) -> dict[str, Any]:
    if event.get("cat") != "cpu_op" or "args" not in event:
        return event
    return event | {"args": {key: value for key, value in event["args"].items() if key not in _SHAPES}}


def _frames(modules: Iterable[list[Any]], events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A frame "nn.Module: Class_3" per call; the number counts the modules of a class, as PyTorch does."""
    pid = next(event["pid"] for event in events if event.get("cat") == "cpu_op")
    numbers: dict[tuple[str, str | None], int] = {}
    count: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    open_: list[tuple[float, int]] = []  # ends and ids, outermost first
    for begin, duration, thread, kind, path in sorted(modules, key=lambda m: (m[0], -m[1])):
        if (kind, path) not in numbers:
            numbers[kind, path] = count[kind]
            count[kind] += 1
        while open_ and open_[-1][0] <= begin:
            open_.pop()
        args = {"Python id": len(found) + 1, "Python parent id": open_[-1][1] if open_ else None}
        args["Python module id"] = numbers[kind, path]
        name = f"nn.Module: {kind}_{numbers[kind, path]}"
        found.append({"ph": "X", "cat": "python_function", "name": name, "pid": pid, "tid": thread,
                      "ts": begin, "dur": duration, "args": args})  # fmt: skip
        open_.append((begin + duration, len(found)))
    return found
