"""How to get what a trace lacks, said by what it lacks: flags alone do not bring back a missing operator."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import pct
from tracelens.results import Coverage, GemmRow
from tracelens.rules.engine.facts import Outcome, StepFacts, absent

_RECORD = "record with record_shapes=True"
_NO_OPERATOR = (
    "no operator is known for these kernels (a CUDA graph replays them, or they were launched before the"
    f" recording), so {_RECORD} and one step without CUDA graphs"
)


#: A check that saw less than this share of the time of what it is about has not passed.
_ENOUGH = 0.5


def enough(judged: Sequence[GemmRow], rows: Sequence[GemmRow]) -> bool:
    """Is most of the time of ``rows`` in those that can be judged?"""
    return sum_of(judged) >= _ENOUGH * sum_of(rows)


def sum_of(rows: Sequence[GemmRow]) -> float:
    """Time of rows, ms."""
    return sum(row.time_ms_per_step for row in rows)


def unseen(covered: Coverage, *, what: str = "it", frac: float | None = None) -> str:
    """Why what was not seen can be there all the same, as a sentence."""
    share = pct(covered.unseen_frac if frac is None else frac)
    return f"{share} of the GPU time {_lacks(covered)} and can hold {what}."


def judged_part(covered: Coverage) -> str:
    """That a check which found nothing judged a part, as a sentence behind its own."""
    return f"That is of what was recognised: {pct(covered.unseen_frac)} of the GPU time {_lacks(covered)}."


def _lacks(covered: Coverage) -> str:
    return "could not be told apart" if covered.opaque_frac else "is unattributed"


def no_model(facts: StepFacts) -> Outcome | None:
    """Why a rule about a transformer's dimensions or parts has none to look at, or None."""
    if facts.model.found == "whole":
        return None
    if facts.model.found == "none":
        return absent("No part of a transformer was recognised in the trace.", attention=True)
    return Outcome(
        "could_not_run",
        "Parts of a transformer were recognised, but not the whole of one: record with with_stack=True.",
    )


def for_shapes(rows: Sequence[GemmRow]) -> str:
    """What gives the shapes of ``rows``, as the end of a sentence after a colon.

    ``record_shapes`` records the inputs of operators. Where no kernel has one, as in a CUDA graph, it adds
    nothing.
    """
    return _RECORD if not rows or any(row.op is not None for row in rows) else _NO_OPERATOR
