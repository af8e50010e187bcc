"""Bounds: how much of a GEMM's time a better shape could give back at the very most.

The bound is the measured time minus the least time the datasheet allows for the same product (the
roofline: operations over the dense peak, or bytes over bandwidth, whichever is longer). No predicted saving
goes beyond it, and where nothing is predicted it is all that a finding states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens.numbers import count, ms, percent, sig
from tracelens.results import GemmRow, GpuInfo


@dataclass(frozen=True, slots=True)
class Bound:
    """What of one row's time per step can go at most, with the arithmetic as a sentence ("" = none)."""

    row: GemmRow
    ms: float
    how: str = ""


def bound_of_row(
    row: GemmRow,
    *,
    gpu: GpuInfo,
    cap_frac: float | None = None,
    cap_why: str = "",
    useful_frac: float = 1.0,
    fewer_kernels: bool = False,
) -> Bound:
    """Bound of ``row`` in ms per step: ``max(0, time - floor)``, and at most ``cap_frac`` of its time.

    floor = calls_per_step * max(flops / dense peak, bytes / bandwidth). A term whose GPU figure or count is
    unknown is left out, which only raises the bound; without any term only the start of a kernel stays.
    ``cap_frac`` is for rules whose evidence speaks for a part of the time only; ``cap_why`` then says
    which. ``useful_frac`` is the share of the counted operations that certainly had to be done (causal
    attention is counted in full, see ``tracelens.gemm.flops``). Every kernel keeps what one takes at least,
    however little it computes, unless the change leaves ``fewer_kernels``.
    """
    time = max(row.time_ms_per_step, 0.0) if math.isfinite(row.time_ms_per_step) else 0.0
    floor, arithmetic = _floor(row, gpu=gpu, useful_frac=useful_frac, fewer_kernels=fewer_kernels)
    if floor is None:
        bound = time
        text = f"no peak, bandwidth or operation count is known for it, so all of it counts: bound {ms(time)}"
    else:
        bound = max(0.0, time - floor)
        text = f"floor = {arithmetic} = {ms(floor)}; bound = {ms(time)} - {ms(floor)} = {ms(bound)}"
    if cap_frac is not None and cap_frac * time < bound:
        bound = cap_frac * time
        text += f", limited to {percent(cap_frac)} of the time = {ms(bound)} {cap_why}".rstrip()
    return Bound(row=row, ms=bound, how=f"{name(row)}: {_calls(row)} in {ms(time)}; {text}.")


def name(row: GemmRow) -> str:
    """A row in a sentence: component, role and shape.

    Only words of our own vocabulary and numbers: kernel names come from the trace and stay out of
    sentences, where a hostile one could read as ours.
    """
    parts = [row.component, row.role or ("" if row.phase == "forward" else row.phase)]
    if row.m is not None and row.n is not None and row.k is not None:
        shape = f"{row.m} × {row.n} × {row.k}"
        parts.append(f"{row.batch} × ({shape})" if row.batch is not None and row.batch > 1 else shape)
    parts.append(row.dtype or "")
    return f"{' '.join(part for part in parts if part)} ({row.id})"


def _calls(row: GemmRow) -> str:
    return "1 call" if row.calls_per_step == 1 else f"{count(row.calls_per_step)} calls"


def _floor(
    row: GemmRow, *, gpu: GpuInfo, useful_frac: float, fewer_kernels: bool
) -> tuple[float | None, str]:
    """Least time per step in ms by the datasheet, and the arithmetic; None where nothing is known."""
    dtype = row.math_dtype
    peak = gpu.peak_tflops.get(dtype) if dtype is not None else None
    terms: list[tuple[float, str]] = []
    if row.flops is not None and peak:
        flops = row.flops * useful_frac
        half = "" if useful_frac == 1.0 else f"{sig(useful_frac)} × "
        text = f"{half}{sig(row.flops / 1e9)} GFLOP / {sig(peak)} TFLOP/s"
        terms.append((flops / peak / 1e9, text))
    if row.bytes is not None and gpu.bandwidth_gbps:
        text = f"{sig(row.bytes / 1e6)} MB / {sig(gpu.bandwidth_gbps)} GB/s"
        terms.append((row.bytes / gpu.bandwidth_gbps / 1e6, text))
    if not fewer_kernels and gpu.gemm_floor_us > 1e3 * max((value for value, _ in terms), default=0.0):
        # the work is nothing: what is left is the start and end of a kernel, which no shape shortens
        terms = [(gpu.gemm_floor_us / 1e3, f"{sig(gpu.gemm_floor_us)} µs that a kernel takes at least")]
    if not terms:
        return None, ""
    inner = f"max({', '.join(text for _, text in terms)})" if len(terms) > 1 else terms[0][1]
    return row.calls_per_step * max(value for value, _ in terms), f"{count(row.calls_per_step)} × {inner}"
