"""The same work in files of other shapes: CUDA graphs, no host at all, a recording begun too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from tests.synthetic.recorder import MAIN, PID
from tests.synthetic.spec import Event, Synthetic, Truth

Layout = Literal["eager", "graph", "gpu_only", "prelaunched"]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver")


def _copied(records: list[Event]) -> Iterator[Event]:
    for event in records:
        yield replace(event, args=dict(event.args))


def _key(event: Event) -> tuple[int, int]:
    return event.ts, int(event.tid)


def _steps(records: list[Event]) -> list[Event]:
    return [e for e in records if e.cat == "user_annotation" and e.name.startswith("ProfilerStep#")]


def graph(synthetic: Synthetic, *, keep_eager: bool, prelaunched: float) -> Synthetic:
    """Every step after the first (``keep_eager``), or every step, is one cudaGraphLaunch.

    As in real files the kernels of a replay share the correlation of their launch, and tell their
    places by "graph node id". Steps follow each other as before; only the host is idle.
    """
    del prelaunched
    steps = _steps(synthetic.records)[1 if keep_eager else 0 :]
    names = {int(step.name.removeprefix("ProfilerStep#")): step for step in steps}
    of_step = {(row.start_ns, row.stream): row.step for row in synthetic.truth if row.step in names}
    launches = {number: _graph_launch(step, 900_000 + number) for number, step in names.items()}
    nodes = dict.fromkeys(names, 0)
    records: list[Event] = []
    for event in _copied(synthetic.records):
        if event.cat in HOST:
            inside = any(s.ts <= event.ts < s.ts + s.dur for s in steps)
            frame = event.cat == "python_function" and event.dur > steps[0].dur
            if inside and event not in steps and not frame:
                continue
        if event.cat == "gpu_user_annotation" and any(s.ts <= event.ts <= s.ts + s.dur for s in steps):
            continue
        number = of_step.get(_key(event)) if event.cat in GPU else None
        if number is not None:
            nodes[number] += 1
            event = _replayed(event, launches[number], nodes[number])
        records.append(event)
    at = next(i for i, e in enumerate(records) if e.cat in GPU)
    records[at:at] = launches.values()
    truth = [
        replace(row, correlation=900_000 + row.step) if row.step in names else row for row in synthetic.truth
    ]
    return replace(synthetic, records=_without_dangling(records), truth=truth)


def _graph_launch(step: Event, correlation: int) -> Event:
    args = {"External id": step.args["External id"], "cbid": 311, "correlation": correlation}
    launch = Event("X", "cuda_runtime", "cudaGraphLaunch", PID, MAIN, step.ts + 900, 60_000, args)
    launch.flow = ("s", correlation, "ac2g")
    return launch


def _replayed(event: Event, launch: Event, node: int) -> Event:
    event.args["External id"] = launch.args["External id"]
    correlation = event.args["correlation"] = launch.args["correlation"]
    event.args |= {"graph id": 2, "graph node id": 8_589_934_592 + node}
    event.flow = ("f", correlation, "ac2g")
    return event


def gpu_only(synthetic: Synthetic, *, keep_eager: bool, prelaunched: float) -> Synthetic:
    """Recorded with activities=[CUDA] by a tool that keeps the GPU's rows alone."""
    del keep_eager, prelaunched
    records = []
    for event in _copied(synthetic.records):
        if event.cat in HOST or event.cat == "gpu_user_annotation":
            continue
        if event.cat in GPU:
            event.args.pop("External id", None)
            event.flow = None
        records.append(event)
    truth = [replace(row, launched=False, step=None) for row in synthetic.truth]
    return replace(synthetic, records=records, truth=truth)


def prelaunched(synthetic: Synthetic, *, keep_eager: bool, prelaunched: float) -> Synthetic:
    """Recording began inside the first step: what the host did before that is not in the file."""
    del keep_eager
    first = _steps(synthetic.records)[0]
    number = int(first.name.removeprefix("ProfilerStep#"))
    launches = [e for e in synthetic.records if e.cat in ("cuda_runtime", "cuda_driver")]
    starts = {e.args["correlation"]: e.ts for e in launches}
    rows = sorted(starts[row.correlation] for row in synthetic.truth if row.step == number)
    begin = rows[int(prelaunched * len(rows))]
    late = {correlation for correlation, ts in starts.items() if ts < begin}
    records = []
    for event in _copied(synthetic.records):
        if event.cat in HOST and event.ts < begin:
            continue
        if event.cat in GPU and event.args["correlation"] in late:
            event.args.pop("External id", None)
            event.flow = None
        records.append(event)
    records = [e for e in records if e.cat != "gpu_user_annotation" or not _cut(e, begin)]
    truth = [_late(row, number, late) for row in synthetic.truth]
    return replace(synthetic, records=_without_dangling(records), truth=truth)


def _cut(annotation: Event, begin: int) -> bool:
    return annotation.ts < begin


def _late(row: Truth, number: int, late: set[int]) -> Truth:
    unlaunched = row.correlation in late
    step = None if row.step == number else row.step
    return replace(row, step=step, launched=not unlaunched, strict=row.strict and not unlaunched)


def _without_dangling(records: list[Event]) -> list[Event]:
    """Forward-backward arrows lose their other end with the host events."""
    ends: dict[int, set[str]] = {}
    for event in records:
        if event.flow is not None and event.flow[2] == "fwdbwd":
            ends.setdefault(event.flow[1], set()).add(event.flow[0])
    for event in records:
        if event.flow is not None and event.flow[2] == "fwdbwd" and len(ends[event.flow[1]]) < 2:
            event.flow = None
    return records


LAYOUTS: dict[str, Callable[..., Synthetic]] = {
    "graph": graph,
    "gpu_only": gpu_only,
    "prelaunched": prelaunched,
}
