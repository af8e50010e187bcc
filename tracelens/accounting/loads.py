"""Rows of experts that differ in how many tokens each got, as one row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from operator import mul
from typing import Any

from tracelens.results import GemmRow
from tracelens.results.gemm import Lost, WorkKnown

#: By the role of a row the size that is the tokens of an expert.
TOKENS = {"forward": "m", "dgrad": "m", "wgrad": "k"}
_OF_ONE = (
    "m", "n", "k", "m_range", "n_range", "m_expr", "n_expr", "k_expr", "tile_m", "tile_n", "tile_k",
    "cluster", "split_k", "tiles", "waves", "wave_eff_frac", "layers",
)  # fmt: skip
_SUMS = ("calls", "calls_per_step", "time_ms", "time_ms_per_step", "frac")
_RATES = ("tflops", "peak_frac", "ceiling_frac")
_WORK: tuple[WorkKnown, ...] = ("exact", "at_most", "above_peak", "unknown")  # the least known last


def by_load(rows: Sequence[GemmRow]) -> list[GemmRow]:
    """The rows, those of experts' equal weights as one that has the id of the longest; longest first."""
    alike: dict[object, list[GemmRow]] = {}
    for row in rows:
        alike.setdefault(class_of(row), []).append(row)
    rows = [together(group) if len(group) > 1 else group[0] for group in alike.values()]
    return sorted(rows, key=lambda row: -row.time_ms_per_step)


def stand_for(rows: Sequence[GemmRow]) -> dict[str, str]:
    """Per row the id of the one that it is part of in ``by_load``."""
    first: dict[object, str] = {}
    return {row.id: first.setdefault(class_of(row), row.id) for row in rows}


def class_of(row: GemmRow) -> str | tuple[object, ...]:
    """What rows of one weight have in common, whatever they take; a row of anything else is its own."""
    tokens = TOKENS.get(row.role or "")
    if row.component != "moe.experts" or tokens is None or None in (row.m, row.n, row.k):
        return row.id
    return row.role, row.phase, row.batch, *(getattr(row, one) for one in "mnk" if one != tokens), row.dtype


def together(rows: list[GemmRow]) -> GemmRow:
    """Rows of one class as one: times and calls are sums, rates those of the whole, the work is as known as
    that of the least known; what each call has for itself is left out."""
    first, least = rows[0], max(rows, key=lambda row: _WORK.index(row.work_known))
    sizes = [sorted({getattr(row, size) for row in rows}) for size in "mnk"]
    spans = " × ".join(str(one[0]) if len(one) == 1 else f"{one[0]}–{one[-1]}" for one in sizes)
    kernels = {row.kernel for row in rows}
    changed: dict[str, Any] = dict.fromkeys(_OF_ONE)
    changed |= {name: _mean(rows, name) for name in _RATES}
    flops, moved = (_per_call(rows, name) for name in ("flops", "bytes"))
    changed |= {name: sum(getattr(row, name) for row in rows) for name in _SUMS}
    return replace(
        first,
        **changed,
        shape_note=spans + (f" (×{first.batch})" if (first.batch or 1) > 1 else ""),
        alignment_bytes={},
        layout=first.layout if len({row.layout for row in rows}) == 1 else None,
        kernel=first.kernel if len(kernels) == 1 else f"{len(kernels)} kernels",
        kernel_family=first.kernel_family if len({row.kernel_family for row in rows}) == 1 else "",
        tensor_core=first.tensor_core if len({row.tensor_core for row in rows}) == 1 else None,
        flops=flops,
        bytes=moved,
        intensity=flops / moved if flops and moved else None,
        work_known=least.work_known,
        work_why=least.work_why,
        lost_ms=_lost(rows),
        findings=[*dict.fromkeys(rule for row in rows for rule in row.findings)],
    )


def _mean(rows: list[GemmRow], name: str) -> float | None:
    """A rate of the whole: rates are work over time, so the time weighs."""
    rates = [getattr(row, name) for row in rows]
    times = [row.time_ms_per_step for row in rows]
    return None if None in rates or not sum(times) else sum(map(mul, rates, times)) / sum(times)


def _per_call(rows: list[GemmRow], name: str) -> float | None:
    """The mean of all calls."""
    each, calls = [getattr(row, name) for row in rows], [row.calls for row in rows]
    return None if None in each or not sum(calls) else sum(map(mul, each, calls)) / sum(calls)


def _lost(rows: list[GemmRow]) -> Lost:
    """The sums of the parts, a bound where one of them is; none where one of the rows is not judged."""
    for row in rows:
        if row.lost_ms.useful is None:
            return row.lost_ms
    parts = [part.name for part in fields(Lost) if part.name not in ("why", "unsplit", "at_least")]
    told = {name: [ms for row in rows if (ms := getattr(row.lost_ms, name)) is not None] for name in parts}
    sums: dict[str, Any] = {name: sum(known) if known else None for name, known in told.items()}
    bounds = dict.fromkeys(name for row in rows for name in row.lost_ms.at_least)
    return Lost(**sums, at_least=[*bounds])
