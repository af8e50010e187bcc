"""TL102: a leading dimension off the 16-byte grid, or a kernel with narrow loads or on CUDA cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelens.numbers import listed, plural
from tracelens.results import GemmRow
from tracelens.results.advice import Effort
from tracelens.rules.engine.dimensions import TARGET, Target, flops_growth, target
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import enough, for_shapes, sum_of
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide, took
from tracelens.rules.engine.stakes import time_at_stake
from tracelens.rules.misaligned_views import view_of
from tracelens.rules.pad_vocabulary import vocabulary_rows
from tracelens.step.alignment import Misfit, boundary_bytes, fp32_on_cuda_cores, misfit_of
from tracelens.step.work import is_gated
from tracelens.words import Level

#: The products with the head dimension as a side are TL103's.
_HEADWISE = frozenset({"attention.scores", "attention.values"})
_EFFORT: dict[str, Effort] = {"ffn": "retrain", "hidden": "retrain"}
#: What a wider MLP means for the model.
WIDER_MLP = (
    "An existing checkpoint can be padded with zero weights and zero biases without changing its output when"
    " the activation maps 0 to 0."
)


@dataclass(frozen=True, slots=True)
class Case:
    """GEMMs that one change would align; ``goal`` None = the cause is not a dimension we know."""

    goal: Target | None
    misfits: list[Misfit]
    sizes: set[int]
    more: list[Target] = field(default_factory=list)  # other bare dimensions of the same GEMMs

    @property
    def goals(self) -> list[Target]:
        """Every dimension to change."""
        return [*([self.goal] if self.goal is not None else []), *self.more]

    @property
    def parameter(self) -> str | None:
        """The model parameter to change."""
        return self.goal.parameter if self.goal is not None else None

    @property
    def rows(self) -> list[GemmRow]:
        """Its GEMMs."""
        return [misfit.row for misfit in self.misfits]


@dataclass(frozen=True, slots=True)
class AlignDimensions:
    """Every leading dimension a multiple of 16 bytes, every kernel loading 16 bytes."""

    id: str = "TL102"
    slug: str = "align-dimensions"
    title: str = "GEMM dimensions on the 16-byte grid"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge every GEMM that TL101 does not name."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        counted = {row.id for row in vocabulary_rows(facts)}
        gemms = [row for row in facts.gemms if row.kind == "gemm" and row.id not in counted]
        if not gemms:
            return absent("No GEMM was recognised besides those with the vocabulary.")
        full = sum(1 for row in gemms if fp32_on_cuda_cores(row))
        if full == len(gemms):
            return Outcome(
                "not_applicable",
                f"{plural(full, 'GEMM row')}, all in fp32 on CUDA cores: alignment is not what limits them.",
            )
        misfits = [misfit for row in gemms if (misfit := misfit_of(row)) is not None and not _is_view(misfit)]
        shaped = sum(1 for row in gemms if row.n is not None and row.k is not None)
        if not shaped and not misfits:
            return Outcome(
                "could_not_run",
                f"None of the {plural(len(gemms), 'GEMM row')} has a shape: {for_shapes(gemms)}.",
            )
        cases = cases_of(facts, misfits)
        elsewhere = {case.parameter: rule for case in cases if (rule := owner(facts, case)) is not None}
        proposals = [_proposal(facts, case) for case in cases if case.parameter not in elsewhere]
        judged = [row for row in gemms if None not in (row.n, row.k) and not fp32_on_cuda_cores(row)]
        if not misfits and not enough(judged, gemms):
            return _too_few(gemms, judged)
        passed = (
            f"{shaped} of {plural(len(gemms), 'GEMM row')} have shapes; no{' other' if elsewhere else ''}"
            " leading dimension keeps a kernel from 16-byte loads, and no kernel name shows a fallback."
        )
        for parameter, rule in elsewhere.items():
            passed += f" {parameter} is off the grid: {rule} judges it."
        if full:
            passed += f" {plural(full, 'row')} in fp32 on CUDA cores: not judged."
        return decide(self, facts=facts, proposals=proposals, passed=passed)


def _too_few(gemms: Sequence[GemmRow], judged: Sequence[GemmRow]) -> Outcome:
    """Most of the time is not judged: on CUDA cores there is nothing to judge, without shapes it is open."""
    cores = [row for row in gemms if fp32_on_cuda_cores(row)]
    blind = [row for row in gemms if row not in cores and row not in judged]
    said = [f"{plural(len(cores), 'row')} in fp32 on CUDA cores, where alignment is not what limits them"]
    said = said if cores else []
    said += [f"{plural(len(blind), 'row')} without a shape: {for_shapes(blind)}"] if blind else []
    return Outcome(
        "could_not_run" if sum_of(blind) > sum_of(cores) else "not_applicable",
        f"{len(judged)} of {plural(len(gemms), 'GEMM row')} can be judged"
        f"{', and those are on the grid' if judged else ''}; {listed(said)}.",
    )


def _is_view(misfit: Misfit) -> bool:
    """Every size is on the grid: a view of a wider tensor, which is TL114's."""
    return not misfit.dims and view_of(misfit.row) is not None


def owner(facts: StepFacts, case: Case) -> str | None:
    """The rule that judges the case's parameter; None where the next multiple of 64 is all there is."""
    if case.parameter == "ffn":
        return "TL104" if gated(facts) else None
    return {"sequence": "TL110", "head_dim": "TL103"}.get(case.parameter or "")


def gated(facts: StepFacts) -> bool:
    """Is there one MLP with a gate, whose width is a matter of choice?"""
    return facts.model.experts.value is None and bool(is_gated(facts.gemms, facts.model.ffn.value))


def case_of(facts: StepFacts, parameter: str) -> Case | None:
    """The GEMMs that ``parameter`` keeps off the grid, without those of the vocabulary."""
    counted = {row.id for row in vocabulary_rows(facts)}
    misfits = [misfit for row in facts.gemms if row.id not in counted and (misfit := misfit_of(row))]
    return next((case for case in cases_of(facts, misfits) if case.parameter == parameter), None)


def cases_of(facts: StepFacts, misfits: list[Misfit]) -> list[Case]:
    """One case per offending model dimension; a GEMM with two of them is in two cases.

    Dimensions of the same GEMMs that no parameter explains are one case: it takes both to align them.
    """
    cases: dict[tuple[object, ...], Case] = {}
    for misfit in misfits:
        row = misfit.row
        goals = [(target(row, letter, size, facts=facts), size) for letter, size in misfit.dims]
        if row.component in _HEADWISE and goals:
            goals = [(goal, size) for goal, size in goals if not _is_head(goal, facts)]
            if not goals:
                continue
        # A parameter's other sizes (3*h beside h) are one case; a bare size is a case per component.
        for goal, size in goals:
            key = (goal.parameter,) if goal.parameter else ("", row.component, size)
            case = cases.setdefault(key, Case(goal, [], set()))
            case.sizes.add(size)
            if all(known.row.id != row.id for known in case.misfits):
                case.misfits.append(misfit)
        if not goals:
            cases.setdefault((None, misfit.kernel), Case(None, [], set())).misfits.append(misfit)
    return _merged(list(cases.values()))


def _merged(cases: list[Case]) -> list[Case]:
    """Cases without a parameter that share a GEMM, as one."""
    found: list[Case] = []
    for case in cases:
        ids = {row.id for row in case.rows}
        twin = next(
            (one for one in found if _bare(one) and _bare(case) and ids & {row.id for row in one.rows}),
            None,
        )
        if twin is None:
            found.append(case)
            continue
        twin.more.extend(case.goals)
        twin.sizes.update(case.sizes)
        known = {row.id for row in twin.rows}
        twin.misfits.extend(misfit for misfit in case.misfits if misfit.row.id not in known)
    return found


def _bare(case: Case) -> bool:
    """A dimension, and no parameter behind it."""
    return case.goal is not None and case.goal.parameter is None


def _is_head(goal: Target, facts: StepFacts) -> bool:
    return goal.parameter == "head_dim" or goal.now == facts.model.head_dim.value


def _proposal(facts: StepFacts, case: Case) -> Proposal:
    rows, goal = case.rows, case.goal
    growth = None
    if goal is not None:
        own = frozenset(case.sizes - {one.now for one in case.more})
        growth = flops_growth(rows, goal=goal, sizes=own, more=case.more)
    return Proposal(
        title=_title(case),
        stakes=[time_at_stake(row, gpu=facts.gpu, same_kernels=True) for row in rows],
        confidence=confidence_of(case),
        effort=_EFFORT.get(goal.parameter or "", "code") if goal is not None else "code",
        saw=saw_of(facts, case),
        why=why_of(case),
        change={_name(case, one): [one.now, one.then] for one in case.goals},
        fix=_fix(case),
        caveats=_caveats(facts, case),
        evidence={
            "sizes": sorted(case.sizes),
            "kernels": sorted({misfit.kernel for misfit in case.misfits if misfit.kernel is not None}),
            "shown_by_kernel_name": [misfit.row.id for misfit in case.misfits if misfit.kernel is not None],
        },
        parameter_delta=mlp_parameters(facts, goal) if goal is not None else None,
        flops_delta=growth,
        simulate=_simulated(facts, goal) if goal is not None else None,
    )


def _simulated(facts: StepFacts, goal: Target) -> dict[str, int] | None:
    """The change of the whole model: ranks that split the layers hold a part of ffn each."""
    ranks = facts.model.tensor_parallel.value or 1
    names = {"vocab_size": "vocab", "ffn": "ffn", "hidden": "hidden"}
    name = names.get(goal.parameter or "")
    return {name: goal.then * ranks if name == "ffn" else goal.then} if name is not None else None


def _title(case: Case) -> str:
    goal = case.goal
    components = listed(sorted({_component(row) for row in case.rows}))
    if goal is None:
        kernel = case.misfits[0].kernel or "narrow loads"
        return f"Align the operands of {components} to 16 bytes: the kernel is {kernel}"
    if goal.parameter is None:
        now, then = (listed([str(size) for size in sizes]) for sizes in zip(*_moves(case), strict=True))
        return f"Pad the dimension{'s' if case.more else ''} {now} of {components} to {then}"
    return f"Change {goal.parameter} from {goal.now} to {goal.then}"


def _moves(case: Case) -> list[tuple[int, int]]:
    return [(one.now, one.then) for one in case.goals]


def _name(case: Case, one: Target) -> str:
    """A dimension without a parameter goes by its size where there are several."""
    return one.parameter or (f"dimension_{one.now}" if case.more else "dimension")


def _component(row: GemmRow) -> str:
    return f"{row.component} GEMMs" if row.component in ("other", "unattributed") else row.component


def confidence_of(case: Case) -> Level:
    """High where the kernels' names show it in at least half of the time, medium where dimensions say it."""
    time = sum(row.time_ms_per_step for row in case.rows)
    shown = sum(misfit.row.time_ms_per_step for misfit in case.misfits if misfit.kernel is not None)
    if 2 * shown < time:
        return "medium"
    # The kernel is certain; that this dimension is the cause is not where no dimension is off the grid.
    return "high" if case.goal is not None else "medium"


def saw_of(facts: StepFacts, case: Case) -> str:
    """What a trace shows of it."""
    rows = case.rows
    where = listed(sorted({_component(row) for row in rows}))
    kernels = sorted({misfit.kernel for misfit in case.misfits if misfit.kernel is not None})
    shown = sum(1 for misfit in case.misfits if misfit.kernel is not None)
    time = f"{took(rows, 'GEMM shape', facts)}, in {where}."
    if case.goal is None:
        shapes = "every recorded dimension is on the 16-byte grid" if rows[0].n else "no shape is recorded"
        return f"{time} The kernel's name shows the fallback ({listed(kernels)}) although {shapes}."
    dtype = rows[0].dtype
    sizes = listed(
        [
            f"{size} elements" + (f" ({boundary}-byte boundaries)" if boundary is not None else "")
            for size in sorted(case.sizes)
            for boundary in (boundary_bytes(size, dtype),)
        ]
    )
    meaning = f"{case.goal.parameter} = {case.goal.now} makes" if case.goal.parameter else "There are"
    part = "Kernel names show" if shown == len(rows) else f"The kernel names of {shown} show"
    by_name = (
        f"{part} the fallback: {listed(kernels)}."
        if kernels
        else "The kernel names do not say how they load; the dimensions do."
    )
    return f"{meaning} rows of {sizes} in {dtype or 'an unknown type'}. {time} {by_name}"


def why_of(case: Case) -> str:
    """Why it costs time."""
    if case.goal is None and all("SIMT" in (misfit.kernel or "") for misfit in case.misfits):
        return (
            "CUDA cores multiply at a fraction of the tensor cores' rate, and this GPU's tensor cores take"
            " this type."
        )
    return (
        "Tensor-core kernels fetch their operands 16 bytes at a time, and Hopper's copy engine works no"
        " other way. A leading dimension that is no multiple of 16 bytes makes cuBLAS take an older kernel"
        " with 8-, 4- or 2-byte loads. Measured on an A100 (arXiv 2401.14489): 138 TFLOP/s with multiples"
        " of 2 or 4 elements, 208 with multiples of 8, 213 with multiples of 16 to 64."
    )


def _fix(case: Case) -> list[str]:
    if case.goal is not None and case.goal.parameter is None:
        # No line of a configuration: a diff with a name made up here would look like one.
        where = listed(sorted({_component(row) for row in case.rows}))
        return [
            f"# {where}: which setting makes these sizes is not in the trace; pad its tensors",
            *(line for one in case.goals for line in (f"- size {one.now}", f"+ size {one.then}")),
        ]
    named = [(_name(case, one), one) for one in case.goals]
    return [
        *(f"- {name} = {one.now}" for name, one in named),
        *(f"+ {name} = {one.then}" for name, one in named),
    ]


def mlp_parameters(facts: StepFacts, goal: Target) -> int | None:
    """Added parameters of a wider MLP: layers * matrices * hidden * extra; others are not worked out."""
    model = facts.model
    hidden, layers = model.hidden.value, model.layers.value
    if goal.parameter != "ffn" or hidden is None or layers is None or model.experts.value is not None:
        return None
    gated = any(
        row.component == "mlp.gate" or "2*f" in (row.m_expr, row.n_expr, row.k_expr) for row in facts.gemms
    )
    return layers * (3 if gated else 2) * hidden * (goal.then - goal.now)


def _caveats(facts: StepFacts, case: Case) -> list[str]:
    both = [row for row in case.misfits if any(size not in case.sizes for _, size in row.dims)]
    others = listed([str(size) for size in sorted({s for row in both for _, s in row.dims} - case.sizes)])
    where = plural(len(both), "GEMM shape")
    shared = f"{others} is off the grid as well in {where} of these: both have to change."
    every = "both" if len(case.more) == 1 else f"all {len(case.goals)}"
    together = f"It takes {every}: each alone keeps them off the grid."
    return [
        *_own_caveats(facts, case.goal),
        *([together] if case.more else []),
        *([shared] if both else []),
    ]


def _own_caveats(facts: StepFacts, goal: Target | None) -> list[str]:
    if goal is None:
        views = (
            "Which operand is off is not in the trace: a slice of a wider tensor, or an odd row stride, does"
            " this. Look for views that feed these GEMMs and make them contiguous or start on a multiple of"
            f" {TARGET} elements."
        )
        return [views]
    if goal.parameter == "ffn":
        return [
            f"{facts.new_model}. {WIDER_MLP}",
            f"Any multiple of {TARGET} near it is on the grid as well: --what-if ffn=... simulates each.",
        ]
    if goal.parameter == "hidden":
        heads = facts.model.heads.value
        split = f" {heads} heads have to divide it." if heads is not None else ""
        return [f"{facts.new_model}, in every layer.{split}"]
    if goal.of_data:
        said = (
            "No weight has this size, it is one of the data (a sequence, a window): pad the tensors to it and"
            " mask what was added, or pack several sequences into one."
        )
        return [said]
    return ["Which setting makes this dimension is not known; pad the weight with zero rows or columns."]
