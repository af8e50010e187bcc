"""What a rule needs, and how to get what a trace lacks: flags alone do not bring back a missing operator."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.gemm import shows_sizes
from tracelens.numbers import pct
from tracelens.results import Coverage, GemmRow, Known, OtherRow
from tracelens.rules.engine.candidate import absent, could_not_run
from tracelens.rules.engine.facts import StepFacts

_RECORD = "record with record_shapes=True"
_NO_OPERATOR = (
    "no operator is known for these kernels (a CUDA graph replays them, they were launched before the"
    " recording, or only the GPU was recorded), so record the CPU too, with record_shapes=True, and one step"
    " without CUDA graphs"
)


def need_kernels(facts: StepFacts) -> None:
    """Raises ``Answer`` where no rule about kernels can run."""
    if not facts.gemms:
        raise absent("No GEMM and no attention kernel was recognised in the step.")
    need_step_ms(facts)


def need_nvidia(facts: StepFacts) -> None:
    """Raises ``Answer`` on the GPUs of another vendor."""
    if facts.gpu.vendor == "amd":
        raise could_not_run(
            "The rule rests on measurements of NVIDIA GPUs and libraries; of AMD's it knows none."
        )


def need_step_ms(facts: StepFacts) -> float:
    """The step time; raises ``Answer`` where there is none to give a share of."""
    if facts.measured_step_ms is None:
        raise could_not_run("No step time is known, so no share of a step can be given.")
    return facts.measured_step_ms


def need_model(facts: StepFacts) -> None:
    """Raises ``Answer`` where a rule about a transformer's dimensions or parts has none to look at."""
    if facts.model.found == "none":
        raise absent("No part of a transformer was recognised in the trace.", attention=True)
    if facts.model.found != "whole":
        raise could_not_run(
            "Parts of a transformer were recognised, but not the whole of one: record with with_stack=True."
        )


def need_dimensions(facts: StepFacts) -> None:
    """Raises ``Answer`` where a rule about a dimension of the model has nothing to look at."""
    if not any(row.n is not None for row in facts.gemms):
        raise could_not_run(f"No GEMM of the step has a shape: {for_shapes(facts.gemms)}.")
    need_model(facts)


def need_others(facts: StepFacts) -> None:
    """Raises ``Answer`` where kernels other than GEMMs were not summed up."""
    if facts.others is None:
        raise could_not_run("The kernels between the GEMMs were not summed up: analyze the trace itself.")


def need_operators(rows: Sequence[OtherRow], noun: str) -> None:
    """Raises ``Answer`` where most time of ``rows`` is in kernels whose operator is not known."""
    blind = sum(row.time_ms_per_step for row in rows if row.op is None)
    if blind > sum(row.time_ms_per_step for row in rows) / 2:
        raise could_not_run(f"The {noun} cannot be judged: {_NO_OPERATOR}.")


def need_shapes(rows: Sequence[GemmRow], noun: str) -> None:
    """Raises ``Answer`` where there are ``rows`` and none of them has a shape."""
    if rows and all(row.n is None for row in rows):
        raise could_not_run(f"No {noun} has a shape: {for_shapes(rows)}.")


def not_known(what: str, known: Known) -> str:
    """A sentence for a dimension without a value, with the trace's reason."""
    return f"The {what} is not known: {known.source}."


def for_shapes(rows: Sequence[GemmRow]) -> str:
    """What gives the shapes of ``rows``, as the end of a sentence after a colon.

    ``record_shapes`` records the inputs of operators. Where no kernel has one, as in a CUDA graph, it adds
    nothing.
    """
    ops = [row.op for row in rows if row.op is not None]
    if ops and not any(map(shows_sizes, ops)):
        return f"the inputs of the operators around them ({ops[0]}) do not show the sizes of a GEMM"
    return _RECORD if ops or not rows else _NO_OPERATOR


def unseen(covered: Coverage, *, what: str = "it", frac: float | None = None) -> str:
    """Why what was not seen can be there all the same, as a sentence; ``frac``: what can be attention."""
    if frac is not None:
        return f"{pct(frac)} of the GPU time has no operator that says what it is, and can hold {what}."
    return f"{pct(covered.unseen_frac)} of the GPU time {_lacks(covered)} and can hold {what}."


def judged_part(covered: Coverage) -> str:
    """That a check which found nothing judged a part, as a sentence behind its own."""
    return (
        f"Only what was recognised is judged: {pct(covered.unseen_frac)} of the GPU time {_lacks(covered)}."
    )


def _lacks(covered: Coverage) -> str:
    return "could not be told apart" if covered.opaque_frac else "is unattributed"
