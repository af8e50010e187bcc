"""Operands that are views: their rows or their start off 16 bytes, though every size is on the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tracelens.gemm import bytes_per_element
from tracelens.numbers import round_up, sig
from tracelens.results import Estimate, GemmRow, Span
from tracelens.rules.engine.bounds import name
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.predictions import minus, moving_ms, predicted, saved
from tracelens.rules.engine.rows import sizes_of
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

Operand = Literal["a", "b", "c"]


@dataclass(frozen=True, slots=True)
class View:
    """An operand off the grid; ``stride`` None = by its start, which no trace records."""

    row: GemmRow
    operand: Operand | Literal[""]  # "" = untold which
    width: int | None  # elements in a row of it
    stride: int | None  # elements from one row to the next
    of_batch: bool = False  # rows are on the grid, and the matrices of its batch begin off it

    @property
    def dtype(self) -> str | None:
        """Of the operand."""
        return self.row.out_dtype if self.operand == "c" else self.row.dtype


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


def _contiguous(row: GemmRow) -> dict[Operand, int]:
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
            return View(row, operand, width, stride, of_batch=_fits(stride, dtype))
    return None


def _fits(size: int | None, dtype: str | None) -> bool:
    grid = grid_elements(dtype)
    return size is not None and grid is not None and size % grid == 0


def saving_of(facts: StepFacts, view: View) -> tuple[Estimate | None, str]:
    """Measured time less that of the same sizes, aligned, as this trace's aligned GEMMs run.

    At worst the operand is copied first: its bytes, read and written, come off the low end.
    """
    row = view.row
    found, sizes = predicted(row, facts=facts), sizes_of(row)
    if isinstance(found, str) or sizes is None:
        return None, str(found)
    time, size = found.time_us.known, bytes_per_element(row.dtype)
    if time is None or size is None:
        return None, "the size of its elements is not known"
    anchor = facts.step.anchors.of_type(row.math_dtype or row.dtype or "") if facts.step is not None else None
    factor, width = anchor or (1.0, 0.0)
    predicted_us, mid = time.mid, time.mid * factor
    if (factor, width) != (1.0, 0.0):
        # Against this trace's other aligned GEMMs: no surer than shapes a factor of two apart.
        width = max(width, NEAR_ERROR)
        time = Span(mid * math.exp(-width), mid, mid * math.exp(width), time.basis)
    m, n, k, batch = sizes
    copied = row.calls_per_step * moving_ms(2 * size * max(m, n) * k * batch, facts=facts)
    ours = f" × {factor:.4g} (this trace's aligned GEMMs over their predictions) = {sig(mid)} µs"
    ours = ours if factor != 1.0 else ""
    how = (
        f"{name(row)}: {sig(call_us_of(row))} µs measured; aligned {sig(predicted_us)} µs"
        f" predicted{ours}. The low end takes off a copy of the larger operand."
    )
    return minus(saved(row, time), low_ms=copied), how


def fix_of(view: View) -> list[str]:
    """Lines that begin it, its rows or its matrices on the grid."""
    if view.stride is None:
        return ["- w = packed[:, 3:3 + width]", "+ w = packed[:, 8:8 + width]   # begin on a multiple of 8"]
    grid = grid_elements(view.dtype) or 8
    if view.of_batch:
        return [
            "- buffer = torch.empty(batch, stride)",
            f"+ buffer = torch.empty(batch, -(-stride // {grid}) * {grid})   # from one matrix to the next",
        ]
    then = round_up(view.stride, grid)
    return [
        f"- buffer = torch.empty(rows, {view.stride})",
        f"+ buffer = torch.empty(rows, {then})   # the views into it keep their width",
    ]
