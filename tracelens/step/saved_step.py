"""The analysed step out of a report: all that a simulation needs is in it."""

from __future__ import annotations

from dataclasses import replace

from tracelens.config.words import COMMAND_LINE
from tracelens.errors import InputError
from tracelens.gemm.inductor import parse_fused
from tracelens.hardware import Gpu, find_gpu
from tracelens.hardware.measurements import Measurements, find_measurements
from tracelens.results import Known, Report
from tracelens.results.waits import busy_frac
from tracelens.step.traced_step import StepModel, step_model


def step_of(
    report: Report, *, gpu: str | Gpu | None = None, layers: int | None = None, tied: bool | None = None
) -> StepModel:
    """The step that ``report`` describes, as the analysis that wrote it had it.

    ``gpu`` (or its key in the GPU table) is what to judge against in place of the report's own; ``layers``
    and ``tied`` are what the user knows and the trace does not show. UsageError for a GPU that is not in the
    table.
    """
    hardware = find_gpu(report.trace.device, override=gpu) if isinstance(gpu, str) else gpu or _gpu(report)
    dims = report.model
    if layers is not None:
        dims = replace(dims, layers=Known(layers, COMMAND_LINE))
    step = step_model(
        report.gemms,
        dims,
        report.components,
        gpu=hardware,
        step_ms=report.summary.step_ms.median,
        measured=_measured(hardware),
        communication=report.communication,
        declared=report.declared,
    )
    now = step.now if tied is None else replace(step.now, tied=tied)
    summary = report.summary
    return replace(
        step,
        now=now,
        busy_frac=busy_frac(summary),
        unprofiled_ms=summary.unprofiled.median_ms,
        anchors=replace(step.anchors, compiled=_compiled(report)),
    )


def _compiled(report: Report) -> bool:
    """Are most kernels of layers beside GEMMs and attention made by torch.compile, by time?"""
    times = {True: 0.0, False: 0.0}
    for one in report.other_kernels:
        if one.component == "norm" or one.component.startswith(("attention.", "mlp.")):
            times[parse_fused(one.kernel) is not None] += one.time_ms_per_step
    return times[True] > times[False]


def _gpu(report: Report) -> Gpu:
    """The GPU as the report has it: a slice or another variant has fewer figures than the table."""
    info = report.gpu
    row = find_gpu(report.trace.device, override=info.name if info.name != "unknown" else None)
    return replace(
        row,
        sms=info.sms,
        sms_source=info.sms_source,
        bandwidth_gbps=info.bandwidth_gbps,
        l2_mb=info.l2_mb,
        matched_by=info.matched_by,
        peak_tflops=dict(info.peak_tflops),
        ceiling_tflops=dict(info.ceiling_tflops),
        memory_gb=info.memory_gib if info.memory_gib is not None else row.memory_gb,
        traced_memory_gib=info.memory_gib,
    )


def _measured(gpu: Gpu) -> Measurements | None:
    if gpu.name == "unknown":
        return None
    try:
        return find_measurements(gpu.name, sms=gpu.sms)
    except InputError:
        return None
