"""TL102: a leading dimension off the 16-byte grid, or a kernel with narrow loads or on CUDA cores."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.numbers import listed, plural
from tracelens.results.advice import Effort
from tracelens.rules.engine.bounds import bound_of_row
from tracelens.rules.engine.candidate import Candidate, Shared
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.dimensions import TARGET, Target, flops_growth
from tracelens.rules.evidence.misfits import WIDER_MLP, Case, cases_of, mlp_parameters, need_misfits, owner
from tracelens.rules.evidence.vocabulary import vocabulary_shared

_EFFORT: Mapping[str | None, Effort] = {"ffn": "retrain", "hidden": "retrain"}
_SIMULATED: Mapping[str | None, str] = {"vocab_size": "vocab", "ffn": "ffn", "hidden": "hidden"}


class AlignDimensions(Rule):
    """Every leading dimension a multiple of 16 bytes, every kernel loading 16 bytes."""

    id = "TL102"
    slug = "align-dimensions"
    title = "GEMM dimensions on the 16-byte grid"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge every GEMM that TL101 does not name."""
        seen = need_misfits(facts)
        cases = cases_of(facts, seen.misfits)
        elsewhere = {case.parameter: rule for case in cases if (rule := owner(facts, case)) is not None}
        candidates = [_candidate(facts, case) for case in cases if case.parameter not in elsewhere]
        said = [seen.text(other=bool(elsewhere))]
        said += [f"{parameter} is off the grid: {rule} judges it." for parameter, rule in elsewhere.items()]
        if seen.on_cuda_cores:
            said.append(f"{plural(seen.on_cuda_cores, 'row')} in fp32 on CUDA cores: not judged.")
        return candidates, "" if candidates else " ".join(said)


def _candidate(facts: StepFacts, case: Case) -> Candidate:
    rows, goal = case.rows, case.goal
    named = {
        one.parameter or (f"dimension_{one.now}" if case.more else "dimension"): one for one in case.goals
    }
    own = frozenset(case.sizes - {one.now for one in case.more})
    return Candidate(
        title=_title(case),
        saw=case.saw(facts),
        why="on CUDA cores" if case.on_cuda_cores else "",
        change={name: [one.now, one.then] for name, one in named.items()},
        fix=_fix(case, named),
        caveats=_caveats(facts, case),
        confidence=case.confidence,
        effort=_EFFORT.get(case.parameter, "code"),
        bounds=[bound_of_row(row, gpu=facts.gpu) for row in rows],
        simulate=_simulate(facts, goal) if goal is not None else None,
        evidence={
            "sizes": sorted(case.sizes),
            "kernels": case.kernels,
            "shown_by_kernel_name": [row.id for row in case.shown],
        },
        parameter_delta=mlp_parameters(facts, goal) if goal is not None else None,
        flops_delta=flops_growth(rows, goal=goal, sizes=own, more=case.more) if goal is not None else None,
        shared=_shared(facts, goal),
    )


def _simulate(facts: StepFacts, goal: Target) -> dict[str, int] | None:
    """The change of the whole model: ranks that split the layers hold a part of ffn each."""
    if goal.parameter not in _SIMULATED:
        return None
    ranks = facts.model.tensor_parallel.value if goal.parameter == "ffn" else None
    return {_SIMULATED[goal.parameter]: goal.then * (ranks or 1)}


def _shared(facts: StepFacts, goal: Target | None) -> Shared:
    """Do ranks share the dimension? Not hidden, and no size of the data."""
    if goal is None or goal.of_data or goal.parameter == "hidden":
        return "no"
    if goal.parameter == "vocab_size":
        return vocabulary_shared(facts)
    return "perhaps" if goal.parameter is None else "yes"


def _title(case: Case) -> str:
    if case.goal is None:
        return f"Align the operands of {case.where} to 16 bytes: the kernel is {listed(case.kernels)}"
    if case.parameter is None:
        return f"Pad {listed([f'{one.now} to {one.then}' for one in case.goals])} in {case.gemm}"
    return f"Change {case.parameter} from {case.goal.now} to {case.goal.then}"


def _fix(case: Case, named: dict[str, Target]) -> list[str]:
    if case.goal is not None and case.parameter is None:
        # No line of a configuration: a diff with a name made up here would look like one.
        which = f"# {case.where}: which setting makes these sizes is not in the trace; pad its tensors"
        return [which, *(line for one in case.goals for line in (f"- size {one.now}", f"+ size {one.then}"))]
    return [
        *(f"- {name} = {one.now}" for name, one in named.items()),
        *(f"+ {name} = {one.then}" for name, one in named.items()),
    ]


def _caveats(facts: StepFacts, case: Case) -> list[str]:
    said = _own_caveats(facts, case.goal)
    if case.more:
        every = "both" if len(case.more) == 1 else f"all {len(case.goals)}"
        said.append(f"It takes {every}: each alone keeps them off the grid.")
    both = [row for row in case.misfits if any(size not in case.sizes for _, size in row.dims)]
    if both:
        others = listed([str(size) for size in sorted({s for row in both for _, s in row.dims} - case.sizes)])
        where = plural(len(both), "GEMM shape")
        said.append(f"{others} is off the grid as well in {where} of these: both have to change.")
    return said


def _own_caveats(facts: StepFacts, goal: Target | None) -> list[str]:
    if goal is None:
        return [
            (
                "Which operand is off is not in the trace: a slice of a wider tensor, or an odd row stride,"
                " does this. Look for views that feed these GEMMs and make them contiguous or start on a"
                f" multiple of {TARGET} elements."
            )
        ]
    if goal.parameter == "ffn":
        near = f"Any multiple of {TARGET} near it is on the grid as well: --what-if ffn=... simulates each."
        return [WIDER_MLP, near]
    if goal.parameter == "hidden":
        heads, ranks = facts.model.heads.value, facts.model.tensor_parallel.value or 1
        split = f" Its {heads * ranks} heads have to divide it." if heads is not None else ""
        return [f"{facts.new_model}. Every layer changes.{split}"]
    if goal.of_data:
        return [
            (
                "No weight has this size, it is one of the data (a sequence, a window): pad the tensors to it"
                " and mask what was added, or pack several sequences into one."
            )
        ]
    return ["Which setting makes this dimension is not known; pad the weight with zero rows or columns."]
