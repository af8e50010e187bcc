"""Where the difference of the step's time comes from, in ms that add up to it.

A step is idle time, exposed communication, and time in which some compute kernel runs. The last is the GPU
time of compute kernels times the share of it that lengthens the step: 1 on one stream, less where kernels run
beside one another. A difference of GPU time counts with the mean of both sides' shares, and what the share
itself changed by is ``overlap``: a1*w1 - a0*w0 = (a1 - a0)*(w0 + w1)/2 + (w1 - w0)*(a0 + a1)/2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from statistics import fmean

from tracelens.comparison.same_work import as_all, diffs_ms, drifted, own_frac, own_ms, same_work
from tracelens.results import Report
from tracelens.results.comparison import Cause, CauseCode, GemmChange, Noise, StepChange

#: Of the time of GEMMs with the same work: where so much changed in one direction, they changed alike.
_ALIKE = 0.9


def find_causes(
    before: Report, after: Report, gemms: Sequence[GemmChange], *, noise: Noise | None, step: StepChange
) -> list[Cause]:
    """The causes of ``step.diff_ms``, the largest first; they add up to it. None for the same trace twice."""
    if step.state == "identical":
        return []
    old, new = before.summary, after.summary
    sides = [_compute_ms(one) for one in (before, after)]
    shares = [wall / gpu if gpu else 1.0 for wall, gpu in sides]
    weight = fmean(shares)
    same = [one for one in gemms if one.kind == "gemm" and same_work(one)]
    moved = noise is not None and drifted(noise) and _one_way(same, noise)
    alike = fsum(_alike_ms(one, noise) for one in same) if noise and moved else 0.0
    beside = fsum(
        one.diff_ms - (own[1] - own[0]) for one in same if one.diff_ms is not None and (own := own_ms(one))
    )
    single = fsum(diffs_ms(same)) - alike - beside
    shapes = fsum(diffs_ms(one for one in gemms if not same_work(one)))
    gpu_diff = sides[1][1] - sides[0][1]
    parts: dict[CauseCode, float] = {
        "idle": new.idle_ms - old.idle_ms,
        "exposed_communication": new.exposed_communication_ms - old.exposed_communication_ms,
        "gemms_alike": weight * alike,
        "gemms_single": weight * single,
        "gemms_beside": weight * beside,
        "gemm_shapes": weight * shapes,
        "other_kernels": weight * (gpu_diff - alike - single - beside - shapes),
        "overlap": (shares[1] - shares[0]) * fmean(gpu for _, gpu in sides),
    }
    return added_up(parts, "mean_to_median", step.diff_ms, noise)


def added_up(
    parts: Mapping[CauseCode, float], rest: CauseCode, total_ms: float, noise: Noise | None
) -> list[Cause]:
    """The parts that are not zero and what is left of the total, the largest first."""
    factor = None if noise is None else noise.mid_frac
    every = {**parts, rest: total_ms - fsum(parts.values())}
    causes = [Cause(code, ms, factor if code == "gemms_alike" else None) for code, ms in every.items() if ms]
    return sorted(causes, key=lambda one: -abs(one.diff_ms))


def alike_ms(causes: Iterable[Cause]) -> float:
    """What all GEMMs alike took more: clock, power, library or another GPU."""
    return fsum(one.diff_ms for one in causes if one.code == "gemms_alike")


def _one_way(same: Sequence[GemmChange], noise: Noise) -> bool:
    """Did the GEMMs of the same work all change in one direction, by their time?"""
    times = [(own[0], own[1] - own[0]) for one in same if (own := own_ms(one))]
    return fsum(ms for ms, diff in times if diff * noise.mid_frac > 0) >= _ALIKE * fsum(ms for ms, _ in times)


def _alike_ms(one: GemmChange, noise: Noise) -> float:
    """The part of a GEMM's difference that it shares with the others."""
    own = own_ms(one)
    if own is None or (own[1] - own[0]) * noise.mid_frac <= 0:
        return 0.0
    return own[1] - own[0] if as_all(own_frac(one), noise) else noise.mid_frac * own[0]


def _compute_ms(report: Report) -> tuple[float, float]:
    """Per step: time in which some compute kernel runs, and the GPU time of all of them."""
    summary = report.summary
    mean = fmean(step.duration_ms for step in report.steps) if report.steps else summary.step_ms.median
    talk = fsum(row.time_ms_per_step for row in report.components if row.component == "communication")
    wall = mean - summary.idle_ms - summary.exposed_communication_ms
    return wall, summary.gpu_ms_per_step - talk
