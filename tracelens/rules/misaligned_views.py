"""TL114: operands that are views: their rows or their start off 16 bytes, though the shape is on the grid."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.gemm import bytes_per_element
from tracelens.numbers import listed, part_of
from tracelens.results import total
from tracelens.rules.engine.bounds import bound_of_row
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import enough, gemms_of, time_of, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.misfits import component_of
from tracelens.rules.evidence.views import View, fix_of, saving_of, view_of
from tracelens.step.alignment import load_bytes, narrow_kernel

#: Narrow loads without a shape can come from the shape itself: TL102's.
_TOLD = "a shape and a kernel that says how it loads"
_WHERE = (
    "Which operand is off is not in the trace: a slice of a wider tensor that begins off 16 bytes does this."
    " Look for views that feed these GEMMs and make them start on a multiple of 64 elements."
)
_WIDE_ENOUGH = (
    "Calling .contiguous() on the view costs a copy in each call: make the tensor it is cut from wide enough,"
    " and begin each slice on a multiple of 16 bytes."
)


class MisalignedViews(Rule):
    """Every view that a GEMM reads starts and steps on 16 bytes."""

    id = "TL114"
    slug = "misaligned-views"
    title = "Views on the 16-byte grid"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge recorded strides, and kernels that fell back although every size is on the grid."""
        gemms = [row for row in gemms_of(facts) if row.component not in ("optimizer", "grad_clip")]
        if not gemms:
            raise absent("No GEMM was recognised besides the optimizer's.")
        strided = [row for row in gemms if row.leading_source == "strides"]
        told = [row for row in gemms if row.m is not None and load_bytes(row) is not None]
        if not strided and not told:
            raise could_not_run(
                f"No GEMM row has strides, or {_TOLD}: {for_shapes(gemms)}; a current PyTorch records"
                " strides."
            )
        groups: dict[tuple[object, ...], list[View]] = {}
        for view in filter(None, map(view_of, gemms)):
            groups.setdefault((view.row.component, view.stride, view.width, view.of_batch), []).append(view)
        judged = list({row.id: row for row in (*strided, *told)}.values())
        if not groups and not enough(judged, gemms):
            raise could_not_run(
                f"Only {part_of(len(judged), len(gemms), 'GEMM row', 'has', 'have')} strides, or {_TOLD},"
                f" with {time_of(judged) / time_of(gemms):.0%} of the time, and no view there is off 16"
                " bytes. Strides are recorded by a current PyTorch with record_shapes=True."
            )
        passed = (
            f"{part_of(len(judged), len(gemms), 'GEMM row', 'can', 'can')} be judged, {len(strided)} by"
            f" recorded strides and {len(told)} by how their kernels load: no aligned shape has a view off 16"
            " bytes."
        )
        return [_candidate(facts, group) for group in groups.values()], "" if groups else passed


def _candidate(facts: StepFacts, views: Sequence[View]) -> Candidate:
    first, rows = views[0], [view.row for view in views]
    found = [saving_of(facts, view) for view in views]
    known = [saving for saving, _ in found if saving is not None]
    shown = sorted({text for row in rows if (text := narrow_kernel(row)) is not None})
    component, strided = component_of(first.row), first.stride is not None
    what = f"the operands of {component} to 16 bytes: the kernel is {listed(shown)}"
    if first.of_batch:
        what = f"the batches that {component} reads: their matrices begin off 16 bytes"
    elif strided:
        what = f"the views that {component} reads: rows of {first.width} elements lie {first.stride} apart"
    return Candidate(
        name=f"aligning the operands of {first.row.component}",
        title=f"Align {what}",
        saw=f"{took(rows, facts)}, in {first.row.component}. {_seen(first, listed(shown))}",
        fix=fix_of(first),
        caveats=[_WIDE_ENOUGH] if strided else [_WHERE, _WIDE_ENOUGH],
        confidence="high" if strided and shown else "medium",
        effort="code",
        bounds=[bound_of_row(row, gpu=facts.gpu) for row in rows],
        saving=total(known) if len(known) == len(found) else None,
        how=" ".join(how for _, how in found) if len(known) == len(found) else "",
        evidence={
            "leading": {row.id: dict(row.leading) for row in rows},
            "alignment_bytes": {row.id: dict(row.alignment_bytes) for row in rows},
            "kernels": shown,
        },
        parameter_delta=0,
        flops_delta=0.0,
    )


def _seen(view: View, kernels: str) -> str:
    if view.stride is None:
        return (
            f"The kernel's name shows the fallback ({kernels}) although every recorded dimension is on the"
            " 16-byte grid."
        )
    step = f" = {view.stride * size:.0f} bytes" if (size := bytes_per_element(view.dtype)) else ""
    by = "output" if view.operand == "c" else f"operand {view.operand}"
    begin = f"begin on {view.row.alignment_bytes.get(view.operand)}-byte boundaries"
    rows = f"{view.stride} elements{step} from row to row, for rows of {view.width} in {view.dtype}"
    why = f"{rows}, and the matrices of its batch {begin}" if view.of_batch else f"{rows}: they {begin}"
    shown = f" Kernel names show the fallback: {kernels}." if kernels else ""
    return f"The recorded strides of its {by}: {why}.{shown}"
