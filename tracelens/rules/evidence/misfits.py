"""GEMMs off the 16-byte grid, by the dimension that keeps them there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelens.numbers import listed, mnk, part_of, plural
from tracelens.results import GemmRow
from tracelens.rules.engine.candidate import Answer, absent, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import enough, gemms_of, time_of, took
from tracelens.rules.evidence.dimensions import Target, of_mlp, target
from tracelens.rules.evidence.views import view_of
from tracelens.rules.evidence.vocabulary import vocabulary_rows
from tracelens.step.alignment import Misfit, boundary_bytes, fp32_on_cuda_cores, misfit_of
from tracelens.step.work import is_gated
from tracelens.words import Level, spoken

#: What a wider MLP means for the model.
WIDER_MLP = (
    "An existing checkpoint can be padded with zero weights and zero biases without changing its output when"
    " the activation maps 0 to 0."
)
#: The GEMMs with the head dimension as a side are TL103's.
_NAMELESS = frozenset({"other", "unattributed"})
_HEADWISE = frozenset({"attention.scores", "attention.values"})


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

    @property
    def kernels(self) -> list[str]:
        """What kernel names show of a fallback."""
        return sorted({misfit.kernel for misfit in self.misfits if misfit.kernel is not None})

    @property
    def shown(self) -> list[GemmRow]:
        """Its GEMMs whose kernel names show a fallback."""
        return [misfit.row for misfit in self.misfits if misfit.kernel is not None]

    @property
    def unshown(self) -> bool:
        """Are they known by their part of the model alone?"""
        return bool(self.misfits) and all(row.n is None for row in self.rows)

    @property
    def where(self) -> str:
        """Its components, in a sentence."""
        return listed(sorted({component_of(row) for row in self.rows}))

    @property
    def gemm(self) -> str:
        """Its GEMM by shape and component: the longest forward one, of which the others are gradients."""
        row = max(self.rows, key=lambda one: (one.role == "forward", one.time_ms_per_step))
        part = "" if row.component in _NAMELESS else f" of {row.component.removesuffix('.other')}"
        sizes = {
            tuple(sorted(size for size in (one.m, one.n, one.k) if size is not None)) for one in self.rows
        }
        more = f" and {plural(len(sizes) - 1, 'more shape')}" if len(sizes) > 1 else ""
        return f"the {mnk(row.m, row.n, row.k) or ''} GEMM{part}{more}"

    @property
    def on_cuda_cores(self) -> bool:
        """Is the fallback of every GEMM one to CUDA cores?"""
        return self.goal is None and all("SIMT" in (misfit.kernel or "") for misfit in self.misfits)

    @property
    def confidence(self) -> Level:
        """High where kernel names show it in at least half of the time, medium where dimensions say it."""
        by_name = 2 * time_of(self.shown) >= time_of(self.rows)
        # The kernel is certain; that this dimension is the cause is not where no dimension is off the grid.
        return "high" if by_name and self.goal is not None else "medium"

    def saw(self, facts: StepFacts) -> str:
        """What a trace shows of it."""
        rows = self.rows
        time = f"{took(rows, facts)}, in {self.where}."
        if self.goal is not None and self.unshown:
            return (
                f"{self.parameter} = {self.goal.now} is off the 16-byte grid. {time} No shape is recorded;"
                f" the kernel's name shows the fallback ({listed(self.kernels)})."
            )
        if self.goal is None:
            shapes = (
                "every recorded dimension is on the 16-byte grid" if rows[0].n else "no shape is recorded"
            )
            return f"{time} The kernel's name shows the fallback ({listed(self.kernels)}) although {shapes}."
        dtype = rows[0].dtype
        bytes_ = {size: boundary_bytes(size, dtype) for size in sorted(self.sizes)}
        sizes = listed([f"{size} elements" + (f" ({on}-byte boundaries)" if on is not None else "")
                        for size, on in bytes_.items()])  # fmt: skip
        meaning = f"{self.parameter} = {self.goal.now} makes" if self.parameter else "There are"
        part = "Kernel names" if len(self.shown) == len(rows) else f"The kernel names of {len(self.shown)}"
        by_name = (
            f"{part} show the fallback: {listed(self.kernels)}."
            if self.kernels
            else "The kernel names do not say how they load; the dimensions do."
        )
        return f"{meaning} rows of {sizes} in {dtype or 'an unknown type'}. {time} {by_name}"


@dataclass(frozen=True, slots=True)
class OffGrid:
    """The GEMMs without those of the vocabulary, and which of them are off the grid."""

    gemms: list[GemmRow]
    misfits: list[Misfit]
    on_cuda_cores: int  # in fp32: alignment is not what limits them

    def text(self, *, other: bool) -> str:
        """That nothing was found; ``other``: nothing else."""
        shaped = sum(1 for row in self.gemms if row.n is not None and row.k is not None)
        have = part_of(shaped, len(self.gemms), "GEMM row", "has", "have")
        return (
            f"{have} a shape; no{' other' if other else ''} leading dimension keeps a kernel from 16-byte"
            " loads, and no kernel name shows a fallback."
        )


def need_misfits(facts: StepFacts) -> OffGrid:
    """Every GEMM that TL101 does not name; raises ``Answer`` where too few of them can be judged."""
    counted = {row.id for row in vocabulary_rows(facts)}
    gemms = [row for row in gemms_of(facts) if row.id not in counted]
    if not gemms:
        raise absent("No GEMM was recognised besides those with the vocabulary.")
    cores = [row for row in gemms if fp32_on_cuda_cores(row)]
    if len(cores) == len(gemms):
        raise not_applicable(
            f"{plural(len(cores), 'GEMM row')}, all in fp32 on CUDA cores: alignment is not what limits them."
        )
    found = [misfit for row in gemms if (misfit := misfit_of(row)) is not None]
    # Every size on the grid and a view all the same: TL114's.
    misfits = [one for one in found if one.dims or view_of(one.row) is None]
    if not misfits and not any(row.n is not None and row.k is not None for row in gemms):
        raise could_not_run(f"No GEMM row has a shape: {for_shapes(gemms)}.")
    judged = [row for row in gemms if None not in (row.n, row.k) and row not in cores]
    if not misfits and not enough(judged, gemms):
        raise _too_few(gemms, judged, cores)
    return OffGrid(gemms, misfits, len(cores))


def _too_few(gemms: Sequence[GemmRow], judged: Sequence[GemmRow], cores: Sequence[GemmRow]) -> Answer:
    """Most of the time is not judged: on CUDA cores there is nothing to judge, without shapes it is open."""
    blind = [row for row in gemms if row not in cores and row not in judged]
    said = []
    if cores:
        said.append(
            f"{plural(len(cores), 'row')} in fp32 on CUDA cores, where alignment is not what limits them"
        )
    if blind:
        said.append(f"{plural(len(blind), 'row')} without a shape: {for_shapes(blind)}")
    answer = could_not_run if time_of(blind) > time_of(cores) else not_applicable
    return answer(
        f"{part_of(len(judged), len(gemms), 'GEMM row', 'can', 'can')} be judged"
        f"{', and those are on the grid' if judged else ''}; {listed(said)}."
    )


def component_of(row: GemmRow) -> str:
    """Its component, in a sentence."""
    part, _, kind = row.component.rpartition(".")
    if kind == "other" and part:
        return f"some {part.replace('mlp', 'MLP')} GEMMs"
    return f"{kind} GEMMs" if row.component in ("other", "unattributed") else spoken(row.component)


def owner(facts: StepFacts, case: Case) -> str | None:
    """The rule that judges the case's parameter; None where the next multiple of 64 is all there is."""
    if case.parameter == "ffn":
        return "TL104" if gated(facts) and not case.unshown else None
    return {"sequence": "TL110", "head_dim": "TL103"}.get(case.parameter or "")


def gated(facts: StepFacts) -> bool:
    """Is there one MLP with a gate, whose width is a matter of choice?"""
    return facts.model.experts.value is None and bool(is_gated(facts.gemms, facts.model.ffn.value))


def mlp_parameters(facts: StepFacts, goal: Target) -> int | None:
    """Added parameters of a wider MLP: layers * matrices * hidden * extra; others are not worked out."""
    model = facts.model
    hidden, layers = model.hidden.value, model.layers.value
    if goal.parameter != "ffn" or hidden is None or layers is None or model.experts.value is not None:
        return None
    gate = any(
        row.component == "mlp.gate" or "2*f" in (row.m_expr, row.n_expr, row.k_expr) for row in facts.gemms
    )
    return layers * (3 if gate else 2) * hidden * (goal.then - goal.now)


def case_of(facts: StepFacts, parameter: str) -> Case | None:
    """The GEMMs that ``parameter`` keeps off the grid, without those of the vocabulary."""
    counted = {row.id for row in vocabulary_rows(facts)}
    misfits = [misfit for row in facts.gemms if row.id not in counted and (misfit := misfit_of(row))]
    return next((case for case in cases_of(facts, misfits) if case.parameter == parameter), None)


def cases_of(facts: StepFacts, misfits: Sequence[Misfit]) -> list[Case]:
    """One case per offending model dimension; a GEMM with two of them is in two cases.

    Dimensions of the same GEMMs that no parameter explains are one case: it takes both to align them.
    """
    cases: dict[tuple[object, ...], Case] = {}
    for misfit in misfits:
        row = misfit.row
        goals = [(target(row, letter, size, facts=facts), size) for letter, size in misfit.dims]
        if row.n is None and (known := of_mlp(row, facts.model)) is not None:
            goals = [(known, known.now)]
        if row.component in _HEADWISE and goals:
            head_dim = facts.model.head_dim.value
            goals = [one for one in goals if one[0].parameter != "head_dim" and one[0].now != head_dim]
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
        same = next(
            (one for one in found if _bare(one) and _bare(case) and ids & {row.id for row in one.rows}), None
        )
        if same is None:
            found.append(case)
            continue
        same.more.extend(case.goals)
        same.sizes.update(case.sizes)
        known = {row.id for row in same.rows}
        same.misfits.extend(misfit for misfit in case.misfits if misfit.row.id not in known)
    return found


def _bare(case: Case) -> bool:
    """A dimension, and no parameter behind it."""
    return case.goal is not None and case.goal.parameter is None
