"""The GEMM table: calls of the same component, shape and kernel as one row, judged against the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from tracelens.accounting.lost import Ladders, with_lost
from tracelens.accounting.overlap import Surroundings, beside_of, does_the_same
from tracelens.accounting.rates import RowRate, rate_of, work_why
from tracelens.accounting.row_shapes import bounded_fields, shape_fields
from tracelens.attribution import Attribution, Calls
from tracelens.gemm import (
    AttentionShape,
    GemmShape,
    KernelName,
    Shape,
    bound,
    bytes_moved,
    efficiency,
    math_dtype,
    row_fields,
    split_k_factor,
    tiles,
    waves,
)
from tracelens.gemm.overlap import ENOUGH, STALLED
from tracelens.gemm.predict.rates import gpu_info
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.numbers import integers
from tracelens.results import GemmRow, GpuInfo, Lost, ModelDims, WorkKnown
from tracelens.trace import Trace
from tracelens.trace.metadata import device_properties
from tracelens.words import COMPONENTS, PHASES


@dataclass(frozen=True, slots=True)
class _Group:
    """Calls that share a row."""

    calls: list[int]
    shape: Shape | None
    role: str | None
    padded: dict[str, int]  # sizes the model asked for where the product ran padded


@dataclass(frozen=True, slots=True)
class _Table:
    """What every row is made of."""

    trace: Trace
    attribution: Attribution
    calls: Calls
    around: Surroundings
    dims: ModelDims
    gpu: Gpu
    info: GpuInfo
    steps: int  # analysed
    total_ns: int  # GPU time in them


def gemm_rows(
    trace: Trace,
    attribution: Attribution,
    calls: Calls,
    dims: ModelDims,
    gpu: Gpu,
    *,
    around: Surroundings,
    steps: int,
    measured: Measurements | None = None,
) -> tuple[list[GemmRow], Calls]:
    """One row per (component, role, phase, shape, kernel), longest in the steps first; and the calls, judged.

    Time per step, calls per step and share are of the ``steps`` analysed steps. Rates are of all calls in
    the file: the more calls, the surer the rate. Every call is judged by its row.
    """
    total_ns = int(trace.kernels.dur_ns[attribution.step >= 0].sum())
    table = _Table(trace, attribution, calls, around, dims, gpu, gpu_info(gpu, measured), steps, total_ns)
    ladders = Ladders(gpu, measured)
    rows: list[GemmRow] = []
    of_call = np.full(len(calls), -1, np.int64)
    work: list[WorkKnown] = ["unknown"] * len(calls)
    rated = [True] * len(calls)
    for number, group in enumerate(_groups(trace, attribution, calls)):
        kernel = calls.kernel[group.calls[0]]
        rate = _rate(table, group, kernel)
        row = _row(table, f"g{number + 1}", group, kernel, rate)
        rows.append(with_lost(row, shape=group.shape, kernel=kernel, gpu=table.info, ladders=ladders))
        of_call[group.calls] = number
        for at in group.calls:
            work[at], rated[at] = rate.known, rate.possible
    return rows, replace(calls, row=of_call, work=work, rated=rated)


def _groups(trace: Trace, attribution: Attribution, calls: Calls) -> list[_Group]:
    """The calls of each row, the row of most time first."""
    groups: dict[tuple[Any, ...], _Group] = {}
    for at in range(len(calls)):
        main = int(calls.main[at])
        phase = PHASES[attribution.phase[main]]
        padded = calls.padded[at] if calls.padded else {}
        key = (
            int(attribution.component[main]),
            int(attribution.candidates[main]),
            phase,
            calls.role[at],
            calls.shape[at],
            int(trace.kernels.name[main]),
            int(trace.kernels.launch[twin if (twin := int(attribution.like[main])) >= 0 else main]),
            calls.op_name[at],
            tuple(padded.items()),
        )
        groups.setdefault(key, _Group([], calls.shape[at], calls.role[at], padded)).calls.append(at)
    in_step = np.where(attribution.step[calls.main] >= 0, calls.dur_ns, 0)

    def longest(group: _Group) -> tuple[int, int]:
        return -int(in_step[group.calls].sum()), -int(calls.dur_ns[group.calls].sum())

    return sorted(groups.values(), key=longest)


def _rate(table: _Table, group: _Group, kernel: KernelName | None) -> RowRate:
    time_ns = int(table.calls.dur_ns[group.calls].sum())
    if group.shape:
        dtype = math_dtype(group.shape, kernel=kernel)
    else:  # of what runs on CUDA cores the name says the type; tensor cores' fp32 operands can be TF32
        dtype = kernel.math_dtype if kernel is not None and kernel.tensor_core is False else None
    return rate_of(group.shape, calls=len(group.calls), time_ns=time_ns, gpu=table.info, dtype=dtype)


def _row(table: _Table, name: str, group: _Group, kernel: KernelName | None, rate: RowRate) -> GemmRow:
    main = int(table.calls.main[group.calls[0]])
    op = table.calls.op_name[group.calls[0]]
    attends = isinstance(group.shape, AttentionShape) or (kernel and kernel.kind.startswith("attention"))
    sizes = (
        shape_fields(group.shape, table.dims, group.role, group.padded)
        if group.shape is not None
        else bounded_fields(kernel, _grid(table.trace, main), op)
    )
    if rate.known == "above_peak":
        sizes |= {"shape_known": "bounded"}
    return GemmRow(
        id=name,
        kind="attention" if attends else "gemm",
        role=group.role,
        op=op,
        kernel=table.trace.symbols[int(table.trace.kernels.name[main])],
        lost_ms=Lost(),
        findings=[],
        **_place_fields(table, group, main),
        **_time_fields(table, group),
        **_rate_fields(table, group, kernel, rate),
        **sizes,
        **row_fields(kernel),
        **_tile_fields(table.trace, main, group.shape, kernel, table.gpu),
    )


def _place_fields(table: _Table, group: _Group, main: int) -> dict[str, Any]:
    """Where in the model the calls stand."""
    found = table.attribution
    component = COMPONENTS[found.component[main]]
    layers = found.layer[table.calls.main[group.calls]].tolist()
    return {
        "component": component,
        "components": list(found.components[int(found.fused[main])]) or [component],
        "candidates": list(found.components[int(found.candidates[main])]),
        "phase": PHASES[found.phase[main]],
        "layers": integers([layer for layer in layers if layer >= 0], dash="-") or None,
    }


def _time_fields(table: _Table, group: _Group) -> dict[str, Any]:
    """How often the calls run, what they take, and what they take apart."""
    mains, dur_ns = table.calls.main[group.calls], table.calls.dur_ns[group.calls]
    in_step = table.attribution.step[mains] >= 0
    time_ns, step_ns = int(dur_ns.sum()), int(dur_ns[in_step].sum())
    found = beside_of(table.around, np.array(group.calls), in_step, dur_ns, steps=table.steps)
    return {
        "calls": len(mains),
        "lent_calls": int(table.calls.lent[group.calls].sum()),
        "calls_per_step": float(in_step.sum()) / table.steps,
        "time_ms": time_ns / 1e6,
        "time_ms_per_step": step_ns / 1e6 / table.steps,
        "helper_ms": (time_ns - int(table.trace.kernels.dur_ns[mains].sum())) / 1e6,
        "frac": step_ns / table.total_ns if table.total_ns else 0.0,
        "beside": found,
        "clock_ms_per_step": float(table.around.clock.lost_ns[group.calls].sum()) / 1e6 / table.steps,
        "overlap_ms_per_step": (found.excess_ms_per_step or 0.0) if found is not None else 0.0,
        **_spread(
            dur_ns,
            in_step,
            table.steps,
            usual_ns=table.around.paces.usual[group.calls] if does_the_same(group.shape) else None,
        ),
    }


def _rate_fields(table: _Table, group: _Group, kernel: KernelName | None, rate: RowRate) -> dict[str, Any]:
    """Work, rate and bound; a rate that the GPU cannot have is none."""
    shape = group.shape if rate.known != "above_peak" else None
    tflops = rate.tflops if rate.possible else None
    peak, ceiling = table.gpu.peak(rate.dtype), table.gpu.ceiling(rate.dtype)
    return {
        "math_dtype": rate.dtype,
        "flops": rate.flops if shape else None,
        "tflops": tflops,
        "peak_frac": tflops / peak if tflops is not None and peak else None,
        "ceiling_frac": tflops / ceiling if tflops is not None and ceiling else None,
        "bytes": bytes_moved(shape) if shape else None,
        "intensity": efficiency.intensity(shape) if shape else None,
        "bound": bound(shape, gpu=table.gpu, kernel=kernel, least_us=table.info.gemm_floor_us)
        if shape
        else None,
        "work_known": rate.known,
        "work_why": work_why(group.shape, rate, table.info),
    }


def _spread(
    dur_ns: np.ndarray[Any, Any],
    in_step: np.ndarray[Any, Any],
    steps: int,
    *,
    usual_ns: np.ndarray[Any, Any] | None,
) -> dict[str, Any]:
    """What the calls of a row take apart, and by how much stalled ones exceed their median.

    ``usual_ns`` is the median of each call's like in its condition, NaN where that is all of the row; None
    where the calls are not alike, so that none is known to have stalled.
    """
    median = float(np.median(dur_ns))
    stalled, excess = np.zeros(len(dur_ns), np.bool_), np.zeros(len(dur_ns))
    if usual_ns is not None:
        enough = median if len(dur_ns) >= ENOUGH else np.inf
        usual = np.where(np.isnan(usual_ns), enough, usual_ns)
        stalled = dur_ns > STALLED * usual
        excess = np.where(stalled, dur_ns - np.minimum(usual, dur_ns), 0.0)
    return {
        "median_us": median / 1e3,
        "slowest_us": float(dur_ns.max()) / 1e3,
        "stalls": int(stalled.sum()),
        "stall_ms": float(excess.sum()) / 1e6,
        "stall_ms_per_step": float(excess[in_step].sum()) / 1e6 / steps,
    }


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
    fields["leading"], fields["leading_source"] = efficiency.leading_dimensions(shape, kernel=kernel)
    fields["alignment_bytes"] = efficiency.alignment_bytes(shape, kernel=kernel)
    fields["tensor_core"] = efficiency.tensor_core_state(shape, kernel=kernel, gpu=gpu)
    if kernel is None or kernel.kind != "gemm":
        return fields
    split_k = split_k_factor(kernel, grid=_grid(trace, main), batch=shape.batch)
    fields["split_k"] = split_k
    if kernel.tile is None or shape.grouped:
        return fields
    count = tiles(shape.m, shape.n, batch=shape.batch, tile=kernel.tile)
    fields |= {"tiles": count, "tile_eff_frac": efficiency.tile_eff(shape.m, shape.n, tile=kernel.tile)}
    if gpu.sms:
        cluster = kernel.cluster_size
        fields["wave_eff_frac"] = efficiency.wave_eff(
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
    return efficiency.resident_ctas(
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
