"""The parts of a report that look at the whole: identity, summary, and the links to findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tracelens.accounting.limits import limits, picture_of
from tracelens.accounting.steps import StepTimes, unprofiled_steps
from tracelens.accounting.words import figures as words
from tracelens.attribution import Attribution, Calls, Loan
from tracelens.gemm import AttentionShape, GemmShape, Shape, math_dtype, model_flops, shows_sizes
from tracelens.gemm.inductor import parse_fused
from tracelens.gemm.kernel_names import parse_kernel_name
from tracelens.hardware import Gpu
from tracelens.results import Coverage, GemmRow, Report, Summary, TraceInfo
from tracelens.results.waits import busy_frac, saving_of, step_bound
from tracelens.rules import Advice
from tracelens.trace import BoolArray, Trace
from tracelens.trace.metadata import cuda_version, rank_and_world, torch_version, unprofiled_times
from tracelens.words import PHASES

#: Of GEMM time without FLOPs: the utilization is that much too low at most. Of GPU time that a reference
#: matches: that little lends nothing worth having.
_NEGLIGIBLE = 0.02
_RECOMPUTE = PHASES.index("recompute")


def trace_info(trace: Trace, loan: Loan | None = None) -> TraceInfo:
    """What the file is and says of itself; a reference that is of no use is a warning."""
    rank, world = rank_and_world(trace.metadata)
    tables = [table for table in (trace.kernels, trace.ops, trace.launches) if len(table)]
    start = min(int(table.ts_ns.min()) for table in tables)
    end = max(int((table.ts_ns + table.dur_ns).max()) for table in tables)
    return TraceInfo(
        path=trace.source.name,
        sha256=trace.source.sha256,
        bytes=trace.source.bytes,
        events=trace.events,
        kernels=len(trace.kernels),
        rank=rank,
        world_size=world,
        torch_version=torch_version(trace.metadata),
        cuda_version=cuda_version(trace.metadata),
        device=trace.device_name,
        span_ms=(end - start) / 1e6,
        generated=bool(trace.metadata.get("generated")),
        partial=trace.partial,
        warnings=[*trace.warnings, *trace.door.warning(), *_useless(trace, loan)],
    )


def _useless(trace: Trace, loan: Loan | None) -> list[str]:
    """One line when the reference has next to nothing in common with the trace."""
    dur = trace.kernels.dur_ns
    if loan is None or int(dur[loan.matched].sum()) > _NEGLIGIBLE * int(dur.sum()):
        return []
    return [words.useless_reference(loan.trace.source.name)]


def summarize(
    trace: Trace,
    attribution: Attribution,
    calls: Calls,
    times: StepTimes,
    gpu: Gpu,
    gemms: list[GemmRow],
    covered: Coverage,
) -> Summary:
    """The five numbers and their kin; ``tracelens.render.verdict`` writes the verdict."""
    in_step = attribution.step >= 0
    length = float((times.end_ns - times.start_ns).sum())
    by_type, why = _work(trace, calls, attribution, covered)
    types = counted_types(by_type, gpu)
    work = sum(by_type.values()) if by_type else None
    dtype = next(iter(types), None)
    if times.cut and work is not None:
        why = words.joined(words.CUT, why)
    buffers = words.BUFFER_IN_FULL if _counts_buffers(calls, attribution) else None
    bound = work is not None and why is not None and buffers is None
    why = words.joined(buffers, why) or None
    peak = mixed_peak(types, gpu)
    achieved = work / length / 1e3 if work is not None and length else None
    if achieved is not None and peak is None:
        why = words.joined(words.no_mfu_peak(gpu.vendor, gpu.name, dtype), why)
    mfu = achieved / peak if achieved is not None and peak else None
    gpu_ms = float(trace.kernels.dur_ns[in_step].sum()) / 1e6 / times.count
    summary = Summary(
        step_ms=times.time(),
        gpu_ms_per_step=gpu_ms,
        gpu_busy_frac=float(times.busy_ns.sum()) / length if length else 0.0,
        idle_ms=(length - float(times.busy_ns.sum())) / 1e6 / times.count,
        exposed_communication_ms=float(times.exposed_ns.sum()) / 1e6 / times.count,
        gemm_frac=sum(row.time_ms_per_step for row in gemms) / gpu_ms if gpu_ms else 0.0,
        mfu_frac=mfu,
        mfu_dtype=dtype,
        mfu_why=why,
        mfu_types={one: share for one, share in types.items() if one is not None and peak is not None},
        mfu_peak_tflops=peak,
        achieved_tflops=achieved,
        shape_waste_ms=None,
        verdict="",
        verdict_detail="",
        step_source=times.source,
        steps_marked=times.marked,
        unprofiled=unprofiled_steps(unprofiled_times(trace.metadata), times, mfu_frac=mfu),
        gemm_frac_is_bound=not covered.complete or bool(_open_templates(trace)[in_step].any()),
        communication_is_bound=not covered.complete and rank_and_world(trace.metadata)[1] != 1,
        mfu_is_bound=bound,
    )
    return replace(summary, step_bound=step_bound(summary), saving_of=saving_of(busy_frac(summary)))


def _open_templates(trace: Trace) -> BoolArray:
    """Per kernel: a template of Inductor that can be a product, and whose name lists none?"""
    can_be = trace.symbols.where(
        lambda text: (
            text.startswith("triton_tem_")
            and (fused := parse_fused(text)) is not None
            and "gemm" in fused.tags
            and parse_kernel_name(text) is None
        )
    )
    found: BoolArray = can_be[trace.kernels.name]
    return found


def counted_types(by_type: Mapping[str | None, float], gpu: Gpu) -> dict[str | None, float]:
    """Shares of the FLOPs by the type whose peak they are measured against, the largest first.

    The main type's, and those of faster types beside it. Slower ones count as the main one, or as 16 bits
    beside fp8: what they lose is what the utilization is there to show. So do the few that nobody would name.
    """
    whole = sum(by_type.values()) or 1.0
    named = sorted(
        (one for one in by_type if by_type[one] > _NEGLIGIBLE * whole), key=lambda one: -by_type[one]
    )
    usual = [*named[:1], *(one for one in named if one in ("bf16", "fp16") and gpu.peak(one))]
    slowest = min(usual, key=lambda one: gpu.peak(one) or 0.0, default=None)
    least = gpu.peak(slowest) or math.inf
    found: dict[str | None, float] = {}
    for dtype, work in by_type.items():
        counted = dtype if dtype in named and (gpu.peak(dtype) or 0.0) >= least else slowest
        found[counted] = found.get(counted, 0.0) + work / whole
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def mixed_peak(types: Mapping[str | None, float], gpu: Gpu) -> float | None:
    """Dense TFLOP/s of FLOPs of several types, each at its own peak: 1 / sum(share / peak)."""
    peaks = [(share, gpu.peak(dtype)) for dtype, share in types.items()]
    slowness = sum(share / peak if peak else math.inf for share, peak in peaks)
    return 1 / slowness if peaks and math.isfinite(slowness) else None


def _work(
    trace: Trace, calls: Calls, attribution: Attribution, covered: Coverage
) -> tuple[dict[str | None, float], str | None]:
    """FLOPs of the model in the steps by the type that multiplies, and what they leave out.

    What is computed a second time, by checkpointing or inside a fused backward, is no work of the model
    (arXiv 2204.02311, appendix B). A sum that leaves something out is a lower bound: GEMM time without
    FLOPs, GPU time that was not told apart, the convolutions of another model.
    """
    by_type: dict[str | None, float] = {}
    missing: dict[str, int] = {}
    known_ns = 0
    graphs = bool(trace.replays.any())
    for at, shape in enumerate(calls.shape):
        if attribution.step[calls.main[at]] < 0:
            continue
        done = not calls.work or calls.work[at] != "above_peak"
        work = model_flops(shape) if shape is not None and done else None
        dur_ns = int(calls.dur_ns[at])
        if work is None:
            reason = _no_work(shape, calls.op_name[at], graphs) if done else words.TOO_FAST
            missing[reason] = missing.get(reason, 0) + dur_ns
            continue
        known_ns += dur_ns
        judged = math_dtype(shape, kernel=calls.kernel[at]) if shape is not None else None
        if int(attribution.phase[calls.main[at]]) != _RECOMPUTE:
            by_type[judged] = by_type.get(judged, 0.0) + work
    missing_ns = sum(missing.values())
    why: str | None = None
    if missing_ns > _NEGLIGIBLE * (missing_ns + known_ns):
        share = missing_ns / (missing_ns + known_ns)
        why = words.flops_unknown(share, max(missing, key=lambda one: missing[one]))
    elif not covered.complete:
        why = words.not_told_apart(covered.unseen_frac)
    elif not attribution.transformer:
        why = words.GEMMS_ONLY
    if not by_type:
        return {}, (missing_ns and why) or words.NO_GEMM
    return by_type, why


def _counts_buffers(calls: Calls, attribution: Attribution) -> bool:
    """Is much of the GEMM time in buffers of experts' rows? What is counted of them is no lower bound."""
    times = [0, 0]
    for at, shape in enumerate(calls.shape):
        if shape is not None and attribution.step[calls.main[at]] >= 0:
            times[isinstance(shape, GemmShape) and shape.grouped is not None] += int(calls.dur_ns[at])
    return times[1] > _NEGLIGIBLE * sum(times)


def _no_work(shape: Shape | None, operator: str | None, graphs: bool) -> str:
    """Why a call's FLOPs are not known; shapes come with operators, of which a CUDA graph has none."""
    if isinstance(shape, AttentionShape) and shape.varlen:
        return words.PACKED
    if shape is not None:
        return words.NO_SIZE
    if operator is not None:
        return words.NO_SHAPES if shows_sizes(operator) else words.NO_SIZES_AROUND
    return words.IN_GRAPH if graphs else words.NO_OPERATOR


def with_findings(report: Report, advice: Advice) -> Report:
    """Tie findings and GEMM rows to each other, and judge what limits the step."""
    of_row: dict[str, list[str]] = {}
    for finding in advice.findings:
        for row in finding.gemms:
            of_row.setdefault(row, []).append(finding.rule)
    summary = replace(report.summary, shape_waste_ms=advice.at_stake_ms, shape_open_ms=advice.open_ms)
    picture = picture_of(replace(report, summary=summary))
    return replace(
        report,
        gemms=[replace(row, findings=sorted(set(of_row.get(row.id, [])))) for row in report.gemms],
        summary=replace(summary, limited_by=limits(picture).first if picture.marked else ""),
    )
