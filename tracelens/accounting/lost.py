"""The GEMM table's losses: what is known of each row's call, split, and summed over a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelens.accounting.overlap import why_not_alone
from tracelens.accounting.words import figures as words
from tracelens.gemm import (
    AlignmentLadder,
    AttentionShape,
    GemmShape,
    KernelName,
    LadderStep,
    Shape,
    alignment_ladder,
    usable_sms,
)
from tracelens.gemm.efficiency import BEST_ALIGNMENT_BYTES
from tracelens.gemm.lost import FACTORS, PARTS, CallFacts, LossSplit, split_time
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import GemmRow, GemmTime, GpuInfo, Lost
from tracelens.step.stalls import stalled

_REASONS = 3  # of what is not judged, in the totals


class Ladders:
    """The alignment ladders of one GPU, each made once."""

    def __init__(self, gpu: Gpu, measured: Measurements | None = None):
        self._gpu = gpu
        self._measured = measured
        self._made: dict[str, AlignmentLadder] = {}

    def step(self, dtype: str, operands: Mapping[str, int | None]) -> LadderStep:
        if dtype not in self._made:
            self._made[dtype] = alignment_ladder(gpu=self._gpu, dtype=dtype, measured=self._measured)
        return self._made[dtype].step_of(operands)


def with_lost(
    row: GemmRow, *, shape: Shape | None, kernel: KernelName | None, gpu: GpuInfo, ladders: Ladders
) -> GemmRow:
    """The row with its alignment step and ``lost_ms``."""
    why = _unknown(row, shape, kernel, gpu) | why_not_alone(row)
    alignment = worst_alignment(row)
    if alignment is not None and row.math_dtype is not None and row.kind == "gemm":
        step = ladders.step(row.math_dtype, row.alignment_bytes)
        frac, at_most = step.mid, False
        basis = (
            words.ALIGNED
            if alignment == BEST_ALIGNMENT_BYTES
            else words.alignment_rests_on(step.source, step.basis, step.low, step.high)
        )
        if frac is None and step.high is not None and step.high < 1.0:
            frac, at_most = step.high, True
        if frac is None:
            why["alignment"] = words.no_throughput(alignment, step.source)
        row = replace(row, alignment_frac=frac, alignment_basis=basis, alignment_at_most=at_most)
    row = replace(row, lost_ms=Lost(why=why))
    return replace(row, lost_ms=_per_step(split_row(row, gpu), row))


def call_facts(row: GemmRow, gpu: GpuInfo) -> CallFacts:
    """What the split of the row's mean call rests on, from the report alone."""
    peak = gpu.peak_tflops.get(row.math_dtype or "")
    best = gpu.measured_tflops.get(row.math_dtype or "") or gpu.ceiling_tflops.get(row.math_dtype or "")
    bandwidth = gpu.measured_bandwidth_gbps or gpu.bandwidth_gbps
    judged = row.kind == "gemm" and row.flops is not None
    work = row.flops if judged and row.flops is not None else 0.0
    ceiling = work / (best * 1e6) if best else None
    if ceiling is not None and row.bytes is not None and bandwidth:
        ceiling = max(ceiling, row.bytes / (bandwidth * 1e3))
    known = row.beside is None or row.beside.excess_ms is not None
    time_us = row.time_ms * 1e3 / row.calls if row.calls else 0.0
    # of the mean call in the file, as much as of the time per step
    share = time_us / row.time_ms_per_step if row.time_ms_per_step else 0.0
    apart = not any(why_not_alone(row).get(cause) for cause in FACTORS)
    return CallFacts(
        time_us=time_us,
        math_us=work / (peak * 1e6) if judged and peak else None,
        memory_us=row.bytes / (gpu.bandwidth_gbps * 1e3)
        if row.bytes is not None and gpu.bandwidth_gbps
        else None,
        fixed_us=gpu.gemm_floor_us,
        helper_us=row.helper_ms * 1e3 / row.calls if row.calls else 0.0,
        stall_us=row.stall_ms * 1e3 / row.calls if row.calls else 0.0,
        overlap_us=row.overlap_ms_per_step * share if known else None,
        clock_us=row.clock_ms_per_step * share,
        alignment=row.alignment_frac if apart else None,
        wave=row.wave_eff_frac if apart else None,
        tile=row.tile_eff_frac if apart else None,
        ceiling_us=ceiling,
        why=row.lost_ms.why,
    )


def split_row(row: GemmRow, gpu: GpuInfo) -> LossSplit:
    """Microseconds of the row's mean call."""
    split = split_time(call_facts(row, gpu))
    if split.alignment and row.alignment_at_most:
        said = words.at_least(row.alignment_basis, split.why.get("alignment"))
        split = replace(split, why={**split.why, "alignment": said}, at_least=("alignment",))
    if split.useful is not None and row.stall_ms:
        split = replace(split, why={**split.why, "other": stalled(row)})
    return split


def gemm_time(rows: Sequence[GemmRow]) -> GemmTime:
    """The sums of a step; what is not judged stays apart, with its reasons by time."""
    gemms = [row for row in rows if row.kind == "gemm"]
    total = sum(row.time_ms_per_step for row in gemms)
    missing: dict[str, float] = {}
    for row in gemms:
        if row.lost_ms.useful is None and row.time_ms_per_step:
            faster = row.lost_ms.unsplit == "faster"
            why = words.FASTER if faster else row.lost_ms.why.get("useful", words.NOT_KNOWN)
            missing[why] = missing.get(why, 0.0) + row.time_ms_per_step

    def sum_of(part: str) -> float:
        return float(sum(lost for row in gemms if (lost := getattr(row.lost_ms, part))))

    judged = {
        cause: sum(row.time_ms_per_step for row in gemms if getattr(row.lost_ms, cause) is not None) / total
        if total
        else 0.0
        for cause in (*FACTORS, "memory")
    }
    judged_rows = [row for row in gemms if row.lost_ms.useful is not None]
    small = [row for row in judged_rows if row.lost_ms.unsplit == "too_small"]
    larger = [row for row in judged_rows if row.lost_ms.unsplit != "too_small"]
    return GemmTime(
        total=total,
        **{part: sum_of(part) for part in (*PARTS, "ceiling", "helpers")},
        not_judged=sum(missing.values()),
        small=sum(_left(row.lost_ms) for row in small),
        untold={
            cause: sum(row.time_ms_per_step for row in larger if getattr(row.lost_ms, cause) is None)
            for cause in FACTORS
        },
        judged_frac=judged,
        not_judged_why=sorted(missing, key=lambda why: -missing[why])[:_REASONS],
        attention=sum(row.time_ms_per_step for row in rows if row.kind == "attention"),
        at_least=[cause for cause in FACTORS if any(cause in row.lost_ms.at_least for row in gemms)],
    )


def _left(lost: Lost) -> float:
    """What of ``other`` is neither a helper's nor the best matmul's."""
    return max(0.0, (lost.other or 0.0) - (lost.helpers or 0.0) - (lost.ceiling or 0.0))


def worst_alignment(row: GemmRow) -> int | None:
    """Bytes of the least aligned operand that is known."""
    known = [value for value in row.alignment_bytes.values() if value is not None]
    return min(known) if known else None


def _per_step(split: LossSplit, row: GemmRow) -> Lost:
    share = row.time_ms_per_step / (row.time_ms * 1e3 / row.calls) if row.time_ms else 0.0
    names = (*PARTS, "ceiling", "helpers")
    parts = {name: getattr(split, name) for name in names}
    scaled = {name: None if value is None else value * share for name, value in parts.items()}
    return Lost(**scaled, why=dict(split.why), unsplit=split.unsplit, at_least=[*split.at_least])


def _unknown(row: GemmRow, shape: Shape | None, kernel: KernelName | None, gpu: GpuInfo) -> dict[str, str]:
    """Why each part that cannot be judged cannot."""
    why = {}
    if isinstance(shape, AttentionShape) or row.kind == "attention":
        why["useful"] = words.ATTENTION_NOT_SPLIT
    elif row.work_known == "above_peak" and row.work_why is not None:
        why["useful"] = row.work_why
    elif shape is None:
        why["useful"] = words.NO_MNK if kernel and kernel.sizes else row.shape_note or words.NO_MNK
    elif row.math_dtype is None:
        why["useful"] = words.NO_TF32_SAID if row.dtype == "fp32" else words.NO_MATH_DTYPE
    elif row.math_dtype not in gpu.peak_tflops:
        why["useful"] = words.no_peak(gpu.vendor, gpu.name, gpu.title, row.math_dtype)
    if row.bytes is None:
        why["memory"] = why.get("useful") or words.NO_OPERAND_TYPE
    elif gpu.bandwidth_gbps is None:
        why["memory"] = words.NO_BANDWIDTH
    if not row.alignment_bytes or worst_alignment(row) is None:
        why["alignment"] = words.NO_ALIGNMENT
    if isinstance(shape, GemmShape):
        why |= _unknown_tiles(row, shape, kernel, gpu)
    return why


def _unknown_tiles(row: GemmRow, shape: GemmShape, kernel: KernelName | None, gpu: GpuInfo) -> dict[str, str]:
    if row.tile_eff_frac is None:
        why = words.UNEQUAL_GROUPS if shape.grouped else words.NO_TILE
        return {"tile": why, "wave": why}
    if row.wave_eff_frac is not None:
        return {}
    if not gpu.sms:
        return {"wave": words.NO_SMS}
    if row.split_k is None:
        return {"wave": words.slices_not_known(split=kernel is not None and bool(kernel.split_k))}
    size = kernel.cluster_size if kernel is not None else None
    if size is None:
        return {"wave": words.NO_CLUSTER}
    least, most = usable_sms(gpu.sms, cluster_size=size)
    return {"wave": words.clusters(size, least, most, gpu.sms)}
