"""What a stage is: a list of items, how to measure one, and what the rows of all of them amount to.

A stage keeps no files and no clock. The runner writes down what the tool predicts of an item, measures it,
keeps its row in a progress file as soon as it is there, stops in time, goes on from there at the next start,
and asks the stage for the result when every item has a row. So a stage of ten shapes and one of six thousand
are written alike:

    def items(setting): return [Item("4096x4096x4096", 0.05, (4096, 4096, 4096)), ...]
    def measure(setting, item): return {"time_us": 61.0, "spread_frac": 0.01}
    def summarize(setting, rows): return {"best_tflops": max(...)}

    GEMMS = Stage(name="gemms", writes="...", items=items, measure=measure, summarize=summarize, ...)

and one line in ``benchmarks.gpu.stages.STAGES`` puts it in its place in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: What one item gives: plain JSON. ``spread_frac``, where present, counts for the stage's spread.
Row = dict[str, Any]


class Skip(Exception):
    """This item cannot be measured on this device, and that is a fact of the device: the message says why.

    Kept in the result under ``skipped``; not a failure.
    """


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to measure: small enough that losing it costs little (seconds, not minutes)."""

    key: str  # the same at every start, different from the stage's other items
    seconds: float  # expected on an H200, set-up and warm-up of the item included
    spec: Any = None  # whatever ``measure`` needs


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a stage runs. ``items`` must do with it before any GPU is there: then ``kind`` is "none"."""

    kind: str  # "cuda", "cpu" (dry run), "none" (a plan without a device)
    gpu: str  # key in gpus.toml, "cpu" in a dry run
    dry_run: bool  # toy sizes, on the CPU
    traces: Path  # where sample traces and their truth go
    scratch: Path  # a folder of this run's own, gone afterwards
    results: Path | None = None  # of this GPU: what a prediction may be calibrated by
    known_traces: Path | None = None  # where traces of earlier runs lie, when new ones go elsewhere
    store: dict[str, Any] = field(default_factory=dict)  # the stage's own from item to item: models, buffers
    left_s: Callable[[], float] = lambda: float("inf")  # until the run must stop
    say: Callable[[str], None] = lambda line: None  # a line for the person who waits

    @property
    def device(self) -> str:
        """For torch."""
        return "cuda" if self.kind == "cuda" else "cpu"

    def trace(self, name: str) -> Path | None:
        """Where a trace of this run or of an earlier one lies."""
        folders = (self.traces, self.known_traces) if self.known_traces else (self.traces,)
        return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _nothing_wrong(data: Mapping[str, Any]) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Stage:
    """One line of the plan and one result file, ``results/<gpu>/<name>.json``."""

    name: str
    writes: str  # for the plan: what a person gets
    items: Callable[[Setting], Sequence[Item]]
    measure: Callable[[Setting, Item], Row]
    summarize: Callable[[Setting, Sequence[Row]], dict[str, Any]]  # rows in the items' order -> "data"
    #: What makes the data unusable, one clear sentence each: "bf16 was asked for, sm80_xmma_gemm_f32f32 ran".
    #: Clocks, other processes, spread, failures and the size cap are checked for every stage alike.
    check: Callable[[Mapping[str, Any]], list[str]] = _nothing_wrong
    #: Raised by hand when the same item, measured again, would mean something else (another clock, other
    #: operands): results of a lower number are stale. A refactoring or another list of items changes nothing.
    method: int = 1
    #: What the tool says of the item, written down before it is measured; plain JSON, see ``predicted``.
    predict: Callable[[Setting, Item], dict[str, Any] | None] | None = None
    setup_s: float = 5.0  # before the first item, at every start
    cap_mb: float = 4.0  # of the result file and the files the rows name under "files"
    max_spread_frac: float | None = 0.05  # of the median row; None: spread is no fault here
    max_failed_frac: float = 0.0  # of the items; those that failed are listed in the result
