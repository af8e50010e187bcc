"""Stages and devices that exist in tests only, and a program that collects with them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.device import Device
from benchmarks.gpu.runner import Run
from benchmarks.gpu.stage import Item, Row, Setting, Stage
from benchmarks.gpu.store import Folder

GPU = Device("none-of-yours", "h200", {"name": "a device of the tests"}, {"torch": "0"})
COOL = {"sm_mhz": 1700.0, "sm_mhz_max": 1980.0, "under_load": True, "reasons": ["power cap"]}
ALONE = {"processes": 0, "foreign_memory_mb": 900}


class Clock:
    """Time passes when somebody says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def stage(
    name: str,
    count: int = 4,
    seconds: float = 1.0,
    measure: Callable[[Setting, Item], Row] | None = None,
    **more: Any,
) -> Stage:
    """``count`` items that take ``seconds`` each; the row is the item's number."""

    def items(setting: Setting) -> Sequence[Item]:
        return [Item(f"{name}-{at}", seconds, at) for at in range(count)]

    def row(setting: Setting, item: Item) -> Row:
        return {"value": item.spec, "spread_frac": 0.01}

    def summarize(setting: Setting, rows: Sequence[Row]) -> dict[str, Any]:
        return {"values": [one["value"] for one in rows]}

    return Stage(name, f"numbers of {name}", items, measure or row, summarize, **{"setup_s": 0.0, **more})


def run_on(
    folder: Path,
    clock: Clock | None = None,
    minutes: float | None = None,
    clocks: Sequence[Mapping[str, Any]] = (),
    company: Sequence[Mapping[str, Any]] = (),
) -> tuple[Run, list[str]]:
    """A start on a made-up GPU, and the lines it says. ``clocks`` and ``company`` are read one by one."""
    lines: list[str] = []
    clock = clock or Clock()
    hot, busy = iter(clocks), iter(company)
    run = Run(
        device=GPU,
        folder=Folder(folder / "results" / "h200"),
        traces=folder / "sample_traces",
        command="test",
        until=float("inf") if minutes is None else clock.now + 60 * minutes,
        clock=clock,
        say=lines.append,
        read_clocks=lambda device: dict(next(hot, COOL)),
        read_others=lambda device: dict(next(busy, ALONE)),
    )
    return run, lines


def slow(setting: Setting, item: Item) -> Row:
    time.sleep(0.03)
    return {"value": item.spec, "spread_frac": 0.0}


def hang(setting: Setting, item: Item) -> Row:
    """The second item of stage ``TOY_HANGS`` hears no signal; that of ``TOY_DIES`` ends the process."""
    stage_name = item.key.partition("-")[0]
    if item.spec == 1 and os.environ.get("TOY_HANGS") == stage_name:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if item.spec == 1 and os.environ.get("TOY_DIES") == stage_name:
        os.kill(os.getpid(), signal.SIGSEGV)
    return slow(setting, item)


if __name__ == "__main__":  # a worker with three toy stages: what a test kills, and what hangs
    from benchmarks.gpu import device, runner, worker

    runner.quiet_s = lambda item: 3.0  # an item of 30 ms; what comes before the first keeps its minutes
    # a toy needs no PyTorch, whose import takes longer than all of its items
    device.at_hand = lambda *, dry_run=False: Device("cpu", "cpu", {"name": "cpu"}, {"torch": "0"})
    toys = tuple(stage(name, 12, 0.03, hang) for name in ("first", "second", "third"))
    sys.exit(worker.main(stages=toys))
