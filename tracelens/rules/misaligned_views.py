"""TL114: operands that are views: their rows or their start off 16 bytes, though the shape is on the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens.gemm import bytes_per_element
from tracelens.numbers import listed, plural, round_up, sig
from tracelens.results import Estimate, GemmRow
from tracelens.rules.engine.claims import Claim, settle, total
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import enough, for_shapes, sum_of
from tracelens.rules.engine.products import minus, moving_ms, predicted
from tracelens.rules.engine.proposals import cannot_judge, heuristic, took
from tracelens.rules.engine.stakes import name, time_at_stake
from tracelens.step.alignment import (
    GRID_BYTES,
    fp32_on_cuda_cores,
    grid_elements,
    load_bytes,
    narrow_kernel,
    off_grid,
)
from tracelens.step.predicted import NEAR_ERROR
from tracelens.step.stalls import call_us_of

_ON_WEIGHTS = frozenset({"optimizer", "grad_clip"})
#: An aligned product against this trace's other aligned ones: no surer than shapes a factor of two apart.
_ERROR = NEAR_ERROR


@dataclass(frozen=True, slots=True)
class View:
    """An operand off the grid; ``stride`` None = by its start, which no trace records."""

    row: GemmRow
    operand: str  # a | b | c; "" = untold which
    width: int | None  # elements in a row of it
    stride: int | None  # elements from one row to the next, or from one matrix of a batch to the next


@dataclass(frozen=True, slots=True)
class MisalignedViews:
    """Every view that a product reads starts and steps on 16 bytes."""

    id: str = "TL114"
    slug: str = "misaligned-views"
    title: str = "Views on the 16-byte grid"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge recorded strides, and kernels that fell back although every size is on the grid."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        gemms = [row for row in facts.gemms if row.kind == "gemm" and row.component not in _ON_WEIGHTS]
        if not gemms:
            return absent("No GEMM was recognised besides the optimizer's.")
        strided = [row for row in gemms if row.leading_source == "strides"]
        told = [row for row in gemms if row.m is not None and load_bytes(row) is not None]
        if not strided and not told:
            return Outcome(
                "could_not_run",
                f"None of the {plural(len(gemms), 'GEMM row')} has strides or a kernel whose name says how"
                f" it loads: {for_shapes(gemms)}, with a current PyTorch.",
            )
        views = [view for row in gemms if (view := view_of(row)) is not None]
        groups: dict[tuple[object, ...], list[View]] = {}
        for view in views:
            groups.setdefault((view.row.component, view.stride, view.width), []).append(view)
        claims = [_claim(facts, group) for group in groups.values()]
        judged = [row for row in gemms if row in strided or row in told]
        if not claims and not enough(judged, gemms):
            share = sum_of(judged) / sum_of(gemms)
            return Outcome(
                "could_not_run",
                f"Only {len(judged)} of {plural(len(gemms), 'GEMM row')}, {share:.0%} of their time, show"
                " strides or a kernel whose name says how it loads, and no view of those is off 16 bytes."
                " Strides are recorded by a current PyTorch with record_shapes=True.",
            )
        passed = (
            f"{len(judged)} of {plural(len(gemms), 'GEMM row')} can be judged, {len(strided)} by recorded"
            f" strides and {len(told)} by how their kernels load: no view of an aligned shape is off 16"
            " bytes."
        )
        return settle(self, facts=facts, claims=claims, passed="" if claims else passed)


def view_of(row: GemmRow) -> View | None:
    """The operand that keeps the row from 16-byte loads although every size is on the grid, or None."""
    if row.kind != "gemm" or row.m is None or row.tensor_core == "ineligible" or fp32_on_cuda_cores(row):
        return None
    if row.kernel_kind not in ("gemm", None) or row.kernel_tensor_core is False:
        return None
    loaded = load_bytes(row)
    if off_grid(row) or (loaded is not None and loaded >= GRID_BYTES):
        return None  # another rule's, or loaded in full all the same
    stepped = _off_by_stride(row)
    if stepped is not None:
        return stepped
    sizes_fit = all(_fits(size, row.dtype) for size in _contiguous(row).values())
    return View(row, "", None, None) if narrow_kernel(row) is not None and sizes_fit else None


def _contiguous(row: GemmRow) -> dict[str, int]:
    """The size along which each operand lies in memory by the layout; {} where that is not known."""
    layout = row.layout or row.kernel_layout
    if layout is None or row.m is None or row.n is None or row.k is None:
        return {}
    a = row.k if layout[1] == "N" else row.m
    b = row.n if layout[0] == "N" else row.k
    return {"a": a, "b": b, "c": row.n}


def _off_by_stride(row: GemmRow) -> View | None:
    if row.leading_source != "strides":
        return None
    for operand, width in _contiguous(row).items():
        dtype = row.out_dtype if operand == "c" else row.dtype
        bytes_, stride = row.alignment_bytes.get(operand), row.leading.get(operand)
        if bytes_ is not None and bytes_ < GRID_BYTES and _fits(width, dtype) and stride is not None:
            return View(row, operand, width, stride)
    return None


def _fits(size: int | None, dtype: str | None) -> bool:
    grid = grid_elements(dtype)
    return size is not None and grid is not None and size % grid == 0


# --- what it costs -----------------------------------------------------------------------------------


def _claim(facts: StepFacts, views: list[View]) -> Claim:
    rows = [view.row for view in views]
    first = views[0]
    stakes = [time_at_stake(row, gpu=facts.gpu, same_kernels=True) for row in rows]
    found = [_saving(facts, view) for view in views]
    known = [saving for saving, _ in found if saving is not None]
    predicted_all = len(known) == len(found)
    shown = sorted({text for row in rows if (text := narrow_kernel(row)) is not None})
    return Claim(
        name=f"aligning the operands of {first.row.component}",
        title=_title(first, shown),
        components=sorted({row.component for row in rows}),
        bounds={stake.row.id: stake.bound_ms for stake in stakes},
        gemms=[row.id for row in rows],
        saving=total(known) if predicted_all else heuristic(sum(stake.bound_ms for stake in stakes)),
        confidence="high" if first.stride is not None and shown else "medium",
        effort="code",
        saw=_saw(facts, views, shown),
        why=(
            "Kernels with 16-byte loads need every row of an operand to begin on 16 bytes. A slice keeps"
            " the row stride of the tensor it was cut from and begins where it was cut, so a slice of"
            " aligned width can be off the grid; cuBLAS then takes a kernel with narrower loads."
        ),
        how=" ".join(how for _, how in found) if predicted_all else " ".join(stake.how for stake in stakes),
        fix=_fix(first),
        caveats=_caveats(first),
        evidence={
            "leading": {row.id: dict(row.leading) for row in rows},
            "alignment_bytes": {row.id: dict(row.alignment_bytes) for row in rows},
            "kernels": shown,
        },
        flops_delta=0.0,
    )


def _saving(facts: StepFacts, view: View) -> tuple[Estimate | None, str]:
    """Measured time less that of the same sizes, aligned, as this trace's aligned products run.

    At worst the operand is copied first: its bytes, read and written, come off the low end.
    """
    row = view.row
    found = predicted(row, facts=facts)
    if isinstance(found, str):
        return None, found
    anchors = facts.step.anchors.by_dtype if facts.step is not None else {}
    factor, width = anchors.get(row.math_dtype or row.dtype or "", (1.0, 0.0))
    time = found.time_us
    mid = (time.mid or 0.0) * factor
    if factor == 1.0 and width == 0.0:
        low, high = time.low or 0.0, time.high or 0.0
    else:
        width = max(width, _ERROR)
        low, high = mid * math.exp(-width), mid * math.exp(width)
    now, calls = call_us_of(row), row.calls_per_step / 1e3
    saving = Estimate(calls * (now - high), calls * (now - mid), calls * (now - low), time.basis)
    size = bytes_per_element(row.dtype) or 0.0
    elements = max((row.m or 0) * (row.k or 0), (row.n or 0) * (row.k or 0)) * (row.batch or 1)
    copied = row.calls_per_step * moving_ms(2 * size * elements, facts=facts)
    ours = f" × {sig(factor)} (this trace's aligned products over their predictions)" if factor != 1.0 else ""
    how = (
        f"{name(row)}: {sig(now)} µs measured; aligned {sig(time.mid)} µs predicted{ours} = {sig(mid)} µs."
        " The low end takes off a copy of the larger operand."
    )
    return minus(saving, low_ms=copied), how


# --- words -------------------------------------------------------------------------------------------


def _title(view: View, shown: list[str]) -> str:
    component = view.row.component
    component = f"{component} GEMMs" if component in ("other", "unattributed") else component
    if view.stride is not None:
        return (
            f"Align the views that {component} reads: rows of {view.width} elements lie {view.stride} apart"
        )
    return f"Align the operands of {component} to 16 bytes: the kernel is {listed(shown)}"


def _saw(facts: StepFacts, views: list[View], shown: list[str]) -> str:
    first, rows = views[0], [view.row for view in views]
    text = f"{took(rows, 'GEMM shape', facts)}, in {first.row.component}."
    if first.stride is not None:
        dtype = first.row.dtype
        size = bytes_per_element(dtype) or 0.0
        step = int(first.stride * size)
        by = "output" if first.operand == "c" else f"operand {first.operand}"
        bytes_ = first.row.alignment_bytes.get(first.operand)
        text += (
            f" The recorded strides of its {by}: {first.stride} elements = {step} bytes from row to row,"
            f" for rows of {first.width} in {dtype}: they begin on {bytes_}-byte boundaries."
        )
    else:
        text += (
            f" The kernel's name shows the fallback ({listed(shown)}) although every recorded dimension is"
            " on the 16-byte grid."
        )
    if first.stride is not None and shown:
        text += f" Kernel names show the fallback: {listed(shown)}."
    return text


def _fix(view: View) -> list[str]:
    if view.stride is None:
        return ["- w = packed[:, 3:3 + width]", "+ w = packed[:, 8:8 + width]   # begin on a multiple of 8"]
    grid = grid_elements(view.row.dtype) or 8
    return [
        f"- buffer = torch.empty(rows, {view.stride})",
        f"+ buffer = torch.empty(rows, {round_up(view.stride, grid)})   # the views into it keep their width",
    ]


def _caveats(view: View) -> list[str]:
    said = [
        (
            "Calling .contiguous() on the view costs a copy in each call: make the tensor it is cut from"
            " wide enough, and begin each slice on a multiple of 16 bytes."
        )
    ]
    if view.stride is None:
        said.insert(
            0,
            "Which operand is off is not in the trace: a slice of a wider tensor that begins off 16 bytes"
            " does this. Look for views that feed these GEMMs and make them start on a multiple of 64"
            " elements.",
        )
    return said
