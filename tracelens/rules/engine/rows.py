"""Rows of a step: which ones, how long they take, and how that is said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracelens.numbers import ms, percent, plural
from tracelens.results import GemmRow, OtherRow
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_step_ms

#: A check that saw less than this share of the time of what it is about has not passed.
_ENOUGH = 0.5


def gemms_of(facts: StepFacts) -> list[GemmRow]:
    """The GEMMs, without fused attention."""
    return [row for row in facts.gemms if row.kind == "gemm"]


def forward(rows: Iterable[GemmRow], *components: str) -> list[GemmRow]:
    """GEMMs of these components that a forward runs."""
    return [row for row in rows if row.component in components and row.role in (None, "forward")]


def sizes_of(row: GemmRow) -> tuple[int, int, int, int] | None:
    """M, N, K and batch, where all are known and no group is of unequal size."""
    if row.m is None or row.n is None or row.k is None or row.groups is not None:
        return None
    return row.m, row.n, row.k, row.batch or 1


def packed_rows(facts: StepFacts) -> list[GemmRow]:
    """Attention over sequences packed behind one another, by its sizes or its operator."""
    return [
        row
        for row in facts.gemms
        if (row.attention is not None and row.attention.tokens is not None) or "varlen" in (row.op or "")
    ]


def is_packed(facts: StepFacts) -> bool:
    """Are sequences packed behind one another, so that a step has no micro-batch?"""
    return bool(packed_rows(facts))


def time_of(rows: Sequence[GemmRow] | Sequence[OtherRow]) -> float:
    """Time of rows per step, ms."""
    return sum(row.time_ms_per_step for row in rows)


def calls_of(rows: Sequence[GemmRow] | Sequence[OtherRow]) -> float:
    """Calls of rows per step."""
    return sum(row.calls_per_step for row in rows)


def less(whole: float, part: float) -> float:
    """What a sum has left without a part of it: nothing where they differ by rounding alone."""
    left = whole - part
    return left if left > 1e-9 * abs(whole) else 0.0


def enough(judged: Sequence[GemmRow], rows: Sequence[GemmRow]) -> bool:
    """Is most of the time of ``rows`` in those that can be judged?"""
    return time_of(judged) >= _ENOUGH * time_of(rows)


def counted(rows: Sequence[GemmRow]) -> str:
    """How many GEMMs: "3 GEMM shapes", or "3 GEMM rows" where not all have one."""
    blind = any(row.n is None for row in rows if row.kind == "gemm")
    return plural(len(rows), "GEMM row" if blind else "GEMM shape")


def took(rows: Sequence[GemmRow], facts: StepFacts, noun: str = "") -> str:
    """How long ``rows`` run: "3 GEMM shapes took 1.20 ms per step (4.1% of all GPU time)"."""
    share = sum(row.frac for row in rows)
    part = f" ({percent(share)} of all GPU time)" if share > 0 else ""
    many = plural(len(rows), noun) if noun else counted(rows)
    return f"{many} took {ms(time_of(rows))} {facts.per_step}{part}"


def of_step(time_ms: float, facts: StepFacts) -> str:
    """A share of the step: "3.1% of the step"; raises ``Answer`` where no step time is known."""
    return f"{percent(time_ms / need_step_ms(facts))} of the {facts.whole}"
