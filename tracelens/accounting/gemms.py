"""The GEMM table: calls of the same component, shape and kernel as one row, judged against the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tracelens.accounting.calls import Calls, Shape, call_role
from tracelens.accounting.lost import Ladders, with_lost
from tracelens.accounting.rates import above, most_tflops, work_known, work_why
from tracelens.accounting.row_shapes import Padding, bounded_fields, shape_fields
from tracelens.attribution import Attribution
from tracelens.gemm import (
    AttentionShape,
    GemmShape,
    KernelName,
    alignment_bytes,
    bound,
    bytes_moved,
    flops,
    intensity,
    leading_dimensions,
    math_dtype,
    resident_ctas,
    row_fields,
    split_k_factor,
    tensor_core_state,
    tile_eff,
    tiles,
    wave_eff,
    waves,
)
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.numbers import integers
from tracelens.results import GemmRow, GpuInfo, Lost, ModelDims, WorkKnown
from tracelens.trace import Trace
from tracelens.trace.metadata import device_properties
from tracelens.words import COMPONENTS, PHASES

#: A call of so many times the median of its row did not take that for its shape: the same kernel multiplies
#: the same sizes. Clocks and kernels that share the GPU stretch a call by less: 2.8 times at most in 52
#: public traces, but for two calls of 13 and 194 times that stalled.
STALLED = 3.0
#: Fewer calls do not tell which of them is the odd one.
_ENOUGH = 3


@dataclass(frozen=True, slots=True)
class _Group:
    """Calls that share a row."""

    calls: list[int]
    shape: Shape | None
    role: str | None
    padded: dict[str, int]  # sizes the model asked for where the product ran padded


def with_work(
    trace: Trace, attribution: Attribution, calls: Calls, gpu: Gpu, *, measured: Measurements | None = None
) -> Calls:
    """The calls, each with how far its counted work can be true; calls of a row are judged by their mean."""
    info = gpu.info(measured=measured)
    work: list[WorkKnown] = ["unknown"] * len(calls)
    rated = [True] * len(calls)
    for group in _groups(trace, attribution, calls):
        _, tflops, dtype = _rate(group, calls)
        most = most_tflops(info, dtype)
        known = work_known(group.shape, tflops, most)
        for at in group.calls:
            work[at], rated[at] = known, not above(tflops, most)
    return replace(calls, work=work, rated=rated)


def _rate(group: _Group, calls: Calls) -> tuple[int | None, float | None, str | None]:
    """Counted FLOPs of a call, TFLOP/s by them, and the type of the tensor cores."""
    work = flops(group.shape) if group.shape else None
    time_ns = int(calls.dur_ns[group.calls].sum())
    tflops = work * len(group.calls) / time_ns / 1e3 if work is not None and time_ns else None
    kernel = calls.names[int(calls.name[group.calls[0]])]
    return work, tflops, math_dtype(group.shape, kernel=kernel) if group.shape else None


def gemm_rows(
    trace: Trace,
    attribution: Attribution,
    calls: Calls,
    dims: ModelDims,
    gpu: Gpu,
    *,
    steps: int,
    measured: Measurements | None = None,
) -> list[GemmRow]:
    """One row per (component, role, phase, shape, kernel), longest in the steps first.

    Time per step, calls per step and share are of the ``steps`` analysed steps. Rates are of all calls in
    the file: the more calls, the surer the rate.
    """
    total_ns = int(trace.kernels.dur_ns[attribution.step >= 0].sum())
    ladders, info = Ladders(gpu, measured), gpu.info(measured=measured)
    rows = []
    for number, group in enumerate(_groups(trace, attribution, calls), 1):
        row = _row(f"g{number}", group, trace, attribution, calls, dims, gpu, steps, total_ns, info)
        kernel = calls.names[int(trace.kernels.name[calls.main[group.calls[0]]])]
        rows.append(with_lost(row, shape=group.shape, kernel=kernel, gpu=info, ladders=ladders))
    return rows


def row_of_kernel(trace: Trace, attribution: Attribution, calls: Calls) -> np.ndarray[Any, Any]:
    """Per GPU event: the place in ``gemm_rows`` of the row that counts it; -1 = in none."""
    of_call = np.full(len(calls) + 1, -1, np.int64)  # the last place is for kernels of no call
    for number, group in enumerate(_groups(trace, attribution, calls)):
        of_call[group.calls] = number
    return of_call[calls.kernel_call]


def _groups(trace: Trace, attribution: Attribution, calls: Calls) -> list[_Group]:
    """The calls of each row, the row of most time first."""
    groups: dict[tuple[Any, ...], _Group] = {}
    padding = Padding(trace)
    for at in range(len(calls)):
        main = int(calls.main[at])
        phase = PHASES[attribution.phase[main]]
        role = call_role(attribution, calls, at)
        padded = padding.of(int(calls.op[at]), calls.shape[at])
        key = (
            int(attribution.component[main]),
            int(attribution.candidates[main]),
            phase,
            role,
            calls.shape[at],
            int(trace.kernels.name[main]),
            int(trace.kernels.launch[main]),
            calls.op_name[at],
            tuple(padded.items()),
        )
        groups.setdefault(key, _Group([], calls.shape[at], role, padded)).calls.append(at)
    in_step = np.where(attribution.step[calls.main] >= 0, calls.dur_ns, 0)

    def longest(group: _Group) -> tuple[int, int]:
        return -int(in_step[group.calls].sum()), -int(calls.dur_ns[group.calls].sum())

    return sorted(groups.values(), key=longest)


def _row(
    name: str,
    group: _Group,
    trace: Trace,
    attribution: Attribution,
    calls: Calls,
    dims: ModelDims,
    gpu: Gpu,
    steps: int,
    total_ns: int,
    info: GpuInfo,
) -> GemmRow:
    members = np.array(group.calls)
    mains = calls.main[members]
    main, op = int(mains[0]), calls.op_name[group.calls[0]]
    kernel_text = trace.symbols[int(trace.kernels.name[main])]
    kernel = calls.names[int(trace.kernels.name[main])]
    in_step = attribution.step[mains] >= 0
    time_ns = int(calls.dur_ns[members].sum())
    step_ns = int(calls.dur_ns[members][in_step].sum())
    spread = _spread(calls.dur_ns[members], in_step, steps, alike=_alike(group.shape))
    work, tflops, judged = _rate(group, calls)
    most = most_tflops(info, judged)
    known = work_known(group.shape, tflops, most)
    why = work_why(group.shape, known, tflops, info, judged)
    if above(tflops, most):
        tflops = None
    counted = group.shape if known != "above_peak" else None
    peak, ceiling = gpu.peak(judged), gpu.ceiling(judged)
    component = COMPONENTS[attribution.component[main]]
    sizes = (
        shape_fields(group.shape, dims, group.role, group.padded)
        if group.shape is not None
        else bounded_fields(kernel, _grid(trace, main), op)
    )
    if known == "above_peak":
        sizes |= {"shape_known": "bounded"}
    return GemmRow(
        id=name,
        kind="attention"
        if isinstance(group.shape, AttentionShape) or (kernel and kernel.kind.startswith("attention"))
        else "gemm",
        component=component,
        components=list(attribution.components[int(attribution.fused[main])]) or [component],
        candidates=list(attribution.components[int(attribution.candidates[main])]),
        role=group.role,
        phase=PHASES[attribution.phase[main]],
        layers=_layers(attribution.layer[mains].tolist()),
        calls=len(members),
        lent_calls=int(calls.lent[members].sum()),
        calls_per_step=float(in_step.sum()) / steps,
        time_ms=time_ns / 1e6,
        time_ms_per_step=step_ns / 1e6 / steps,
        helper_ms=(time_ns - int(trace.kernels.dur_ns[mains].sum())) / 1e6,
        frac=step_ns / total_ns if total_ns else 0.0,
        op=op,
        kernel=kernel_text,
        math_dtype=judged,
        flops=work if counted else None,
        tflops=tflops,
        peak_frac=tflops / peak if tflops is not None and peak else None,
        ceiling_frac=tflops / ceiling if tflops is not None and ceiling else None,
        bytes=bytes_moved(counted) if counted else None,
        intensity=intensity(counted) if counted else None,
        bound=bound(counted, gpu=gpu, kernel=kernel) if counted else None,
        lost_ms=Lost(),
        findings=[],
        work_known=known,
        work_why=why,
        **sizes,
        **spread,
        **row_fields(kernel),
        **_tile_fields(trace, main, group.shape, kernel, gpu),
    )


def _alike(shape: Shape | None) -> bool:
    """Do calls of one shape compute as much as each other? Not those of groups or of packed sequences."""
    if isinstance(shape, AttentionShape):
        return not shape.varlen
    return shape is not None and not shape.grouped


def _spread(
    dur_ns: np.ndarray[Any, Any], in_step: np.ndarray[Any, Any], steps: int, *, alike: bool
) -> dict[str, Any]:
    """What the calls of a row take apart, and by how much stalled ones exceed their median."""
    median = float(np.median(dur_ns))
    stalled = (
        dur_ns > STALLED * median if alike and len(dur_ns) >= _ENOUGH else np.zeros(len(dur_ns), np.bool_)
    )
    excess = np.where(stalled, dur_ns - median, 0.0)
    return {
        "median_us": median / 1e3,
        "slowest_us": float(dur_ns.max()) / 1e3,
        "stalls": int(stalled.sum()),
        "stall_ms": float(excess.sum()) / 1e6,
        "stall_ms_per_step": float(excess[in_step].sum()) / 1e6 / steps,
    }


def _layers(layers: list[int]) -> str | None:
    return integers([layer for layer in layers if layer >= 0], dash="-") or None


def _tile_fields(
    trace: Trace, main: int, shape: Shape | None, kernel: KernelName | None, gpu: Gpu
) -> dict[str, Any]:
    """Tiles and waves, where the kernel's name gives the tile and the operator the shape."""
    fields: dict[str, Any] = {
        **dict.fromkeys(("tiles", "waves", "tile_eff_frac", "wave_eff_frac", "split_k", "tensor_core")),
        "alignment_bytes": {},
        "ctas_per_sm": _resident(trace, main),
    }
    if not isinstance(shape, GemmShape):
        return fields
    fields["leading"], fields["leading_source"] = leading_dimensions(shape, kernel=kernel)
    fields["alignment_bytes"] = alignment_bytes(shape, kernel=kernel)
    fields["tensor_core"] = tensor_core_state(shape, kernel=kernel, gpu=gpu)
    if kernel is None or kernel.kind != "gemm":
        return fields
    split_k = split_k_factor(kernel, grid=_grid(trace, main), batch=shape.batch)
    fields["split_k"] = split_k
    if kernel.tile is None or shape.grouped:
        return fields
    count = tiles(shape.m, shape.n, batch=shape.batch, tile=kernel.tile)
    fields |= {"tiles": count, "tile_eff_frac": tile_eff(shape.m, shape.n, tile=kernel.tile)}
    if gpu.sms:
        cluster = kernel.cluster_size
        fields["wave_eff_frac"] = wave_eff(
            count, sms=gpu.sms, cluster_size=cluster, kernel=kernel, split_k=split_k
        )
        if split_k is not None and kernel.scheduler != "stream_k":
            fields["waves"] = waves(count * split_k, sms=gpu.sms, cluster_size=cluster)
    return fields


def _resident(trace: Trace, kernel: int) -> int | None:
    """CTAs of this kernel that fit on one SM; None where the trace does not hold what decides it."""
    launch = trace.details.config(int(trace.kernels.launch[kernel]))
    devices = device_properties(trace.metadata)
    if not devices or launch.block is None or launch.registers is None or launch.shared_memory is None:
        return None
    threads = prod(size for size in launch.block if isinstance(size, int))
    return resident_ctas(
        threads=threads,
        registers_per_thread=launch.registers,
        shared_memory_bytes=launch.shared_memory,
        properties=devices[0],
    )


def _grid(trace: Trace, kernel: int) -> tuple[int, int, int] | None:
    grid = trace.details.config(int(trace.kernels.launch[kernel])).grid
    if grid is None or len(grid) != 3 or not all(isinstance(size, int) for size in grid):
        return None
    return grid[0], grid[1], grid[2]
