"""TL124: linear layers that would gain in fp8 or less, and those of an fp8 model that lose by it."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import ms_range, plural
from tracelens.results import total
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.low_precisions import (
    TypeGain,
    block_fit,
    casts_to_fp8,
    gain_of,
    gains,
    linear_rows,
    losses,
    names,
    sure_saving,
    table,
    types_of,
)
from tracelens.step.predicted import CONVERTED, SIXTEEN_BITS

_OPPORTUNITY = "An opportunity, not a finding: accuracy has to be proven. Casts are taken off."
_NAMES = {"fp8": "fp8", "fp8-block": "fp8 in blocks", "nvfp4": "NVFP4"}


class LowPrecision(Rule):
    """Linear layers in the precision that is fastest for their size."""

    id = "TL124"
    slug = "low-precision"
    title = "Linear layers in their fastest precision"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Predict each component's GEMMs in the GPU's types of low precision, and those in fp8 in bf16."""
        wide, narrow = linear_rows(facts, SIXTEEN_BITS), linear_rows(facts, frozenset({"fp8"}))
        blind = [row for row in facts.gemms if row.component in CONVERTED and row.n is None]
        if blind and all(row.n is None for row in (*wide, *narrow)):
            raise could_not_run(f"No GEMM of a linear layer has a shape and a type: {for_shapes(blind)}.")
        if not wide and not narrow:
            raise absent("No GEMM of a transformer's linear layers in 16 or 8 bits was recognised.")
        if facts.step is None:
            raise could_not_run("The GPU is not known, and with it what it takes in fp8: name it with --gpu.")
        types = types_of(facts.step)
        if not types:
            raise not_applicable(
                f"No fp8 rate of the {facts.gpu.title} is known: fp8 needs Ada, Hopper or Blackwell."
            )
        back = [gain for gain in losses(facts, facts.step) if gain.sure]
        if narrow:
            said = f"{took(narrow, facts)} in fp8; none of them is surely faster in bf16."
            return ([_back(facts, back)] if back else []), said
        judged = {dtype: gains(facts, facts.step, dtype) for dtype in types}
        if not any(judged.values()):
            raise could_not_run(
                "What these GEMMs of linear layers take in another precision is not predicted."
            )
        return [], _said(facts, judged)


def _said(facts: StepFacts, judged: dict[str, list[TypeGain]]) -> str:
    """What each type would gain. No finding: nothing is wrong with the step, and the model changes."""
    rows = linear_rows(facts, SIXTEEN_BITS)
    parts = [f"{took(rows, facts)} of linear layers in 16 bits. {_OPPORTUNITY}"]
    parts += [gain_of(facts, _NAMES[dtype], found) for dtype, found in judged.items()]
    ranges = [saving for found in judged.values() if (saving := sure_saving(found)) is not None]
    if any(one.low < other.mid < one.high for one in ranges for other in ranges if one is not other):
        parts.append("Where these ranges overlap, which type is faster is not predicted.")
    return f"{' '.join(parts)} {block_fit(rows, facts)}"


def _back(facts: StepFacts, sure: Sequence[TypeGain]) -> Candidate:
    """Layers of an fp8 model that bf16 runs faster."""
    rows = [bound.row for gain in sure for bound in gain.bounds]
    return Candidate(
        name=f"bf16 for {names(sure)}",
        title=f"Leave {names(sure)} in bf16: too small for fp8",
        saw=f"{took(rows, facts)} in fp8, with the casts of their operands.",
        why="too small",
        change={"precision": ["fp8", "bf16"]},
        fix=["+ convert_to_float8_training(model, module_filter_fn=without_these)", f"+ # {names(sure)}"],
        caveats=["torchtitan's auto_filter_small_kn leaves out layers by size in the same way."],
        confidence="medium",
        effort="code",
        components=[gain.component for gain in sure],
        bounds=[bound for gain in sure for bound in gain.bounds],
        kernels={
            row.id: row.time_ms_per_step for row in casts_to_fp8(facts, {gain.component for gain in sure})
        },
        bound_of="the time of these GEMMs and casts above what they take in bf16",
        saving=total([gain.saving for gain in sure]),
        how=_how(sure),
        evidence={"types": {"bf16": table(sure)}},
        parameter_delta=0,
        flops_delta=0.0,
    )


def _how(found: Sequence[TypeGain]) -> str:
    ranges = [ms_range(gain.saving.low, gain.saving.high) for gain in found]
    parts = [
        f"{gain.component} ({plural(len(gain.bounds), 'shape')}): {text}"
        for gain, text in zip(found, ranges, strict=True)
    ]
    return (
        f"{'; '.join(parts)}: measured time times the ratio of predictions, with the casts to fp8 that the"
        " trace shows in these components."
    )
