"""Traces written row by row: an operator, the kernel that it launches, and what that kernel is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.trace.tools import document, kernel, launch, op, read
from tracelens.attribution import Attribution, attribute
from tracelens.trace import Links, Trace, link
from tracelens.words import COMPONENTS


@dataclass(frozen=True)
class Row:
    """One launch. ``right``: the components that are right for it, the first the one to be found."""

    right: str
    op: str  # "": launched by no operator
    kernel: str
    dims: Sequence[object] = ()
    us: int = 20
    number: int = -1  # autograd's, of an operator that is trained on; of its backward negative, from -2 on
    inside: str = ""  # a range around it, one around all that follow each other
    grid: tuple[int, int, int] | None = None


def mm(right: str, m: int, n: int, k: int, **more: Any) -> Row:
    """x[m, k] W[k, n] of ``aten::mm``, whose kernel says neither size nor part."""
    return Row(right, "aten::mm", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", ([m, k], [k, n]), **more)


def written(
    rows: Iterable[Row], *, shapes: bool = True, graph: bool = False, kernels_alone: bool = False
) -> list[dict[str, Any]]:
    """The events of a step; ``graph``: one launch replays all; ``kernels_alone``: without operators."""
    events: list[dict[str, Any]] = []
    rows = list(rows)
    if graph:
        events.append(launch(1, ts=1) | {"name": "cudaGraphLaunch"})
    gpu = 50
    for at, row in enumerate(rows):
        ts = 10 + 100 * at
        gpu = max(gpu, ts + 5)
        if not graph:
            events.append(launch(at + 1, ts=ts + 2))
            args: dict[str, Any] = {"Input Dims": list(row.dims)} if shapes else {}
            if row.number != -1:
                args |= {"Sequence number": abs(row.number), "Fwd thread id": int(row.number < 0)}
            if row.op and not kernels_alone:
                events.append(op(row.op, ts=ts, dur=10, **args))
        correlation = 1 if graph else at + 1
        grid = {"grid": list(row.grid)} if row.grid else {}
        run = kernel(row.kernel, ts=gpu, dur=row.us, correlation=correlation, **grid)
        events.append(run | ({"cat": "gpu_memcpy"} if row.kernel.startswith("Memcpy") else {}))
        gpu += row.us + 1
    at = 0
    for inside, together in groupby(rows, lambda row: row.inside):
        count = len(list(together))
        if inside:
            around = {"ph": "X", "cat": "user_annotation", "name": inside, "pid": 9, "tid": 1}
            events.append(around | {"ts": 9 + 100 * at, "dur": 100 * count - 80, "args": {}})
        at += count
    return events


def attributed(folder: Path, events: list[dict[str, Any]]) -> tuple[Trace, Links, Attribution]:
    """The events as a trace, linked and attributed."""
    trace = read(folder, document(events))
    links = link(trace)
    return trace, links, attribute(trace, links)


def said_of(folder: Path, rows: Sequence[Row], **how: Any) -> list[str]:
    """The component found of each row; ``how`` as ``written`` takes it."""
    trace, _, found = attributed(folder, written(rows, **how))
    return _in_order(trace, found)


def _in_order(trace: Trace, found: Attribution) -> list[str]:
    return [COMPONENTS[found.component[at]] for at in trace.kernels.ts_ns.argsort(kind="stable")]


def verdict(rows: Sequence[Row], trace: Trace, found: Attribution) -> tuple[float, dict[str, list[str]]]:
    """Share of GPU time that is right, and what is wrong: right -> found; unattributed is not wrong."""
    components = _in_order(trace, found)
    right = sum(row.us for row, said in zip(rows, components, strict=True) if said in row.right.split())
    wrong: dict[str, list[str]] = {}
    for row, said in zip(rows, components, strict=True):
        if said not in (*row.right.split(), "unattributed"):
            wrong.setdefault(f"{row.op} {row.kernel[:40]}: {row.right}", []).append(said)
    return right / sum(row.us for row in rows), wrong


def assert_right(folder: Path, rows: Sequence[Row], least: float = 1.0, **how: Any) -> None:
    """At least this share of the GPU time is right, and nothing wrong; ``how`` as ``written`` takes it."""
    trace, _, found = attributed(folder, written(rows, **how))
    right, wrong = verdict(rows, trace, found)
    assert right >= least, open_rows(rows, trace, found)
    assert wrong == {}


def open_rows(rows: Sequence[Row], trace: Trace, found: Attribution) -> list[str]:
    """What found no component."""
    return [
        f"{row.op} {row.kernel[:50]}: {row.right}"
        for row, said in zip(rows, _in_order(trace, found), strict=True)
        if said == "unattributed"
    ]
