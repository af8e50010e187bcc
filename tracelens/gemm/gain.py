"""What one shape saves over another: the difference of two predictions, with a range of its own.

The range of one prediction is mostly the rate a GPU holds, and that is the same for both shapes: it cancels
in their ratio. What does not cancel is how well the formula follows the change itself, and, between
alignments, what the ladder leaves open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tracelens.gemm.ladder import alignment_ladder
from tracelens.gemm.predict import Prediction
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results import Estimate
from tracelens.results.gemm import Axis

#: (how far apart two shapes are, as ln of their largest ratio of one size; error of the ratio of their times
#: by the model; calibrated). The error is the 90th percentile of |ln predicted - ln measured ratio| over
#: pairs of one sweep, A100, fp16 (mm/ksweep_high and ksweep_low, raw sweeps of arXiv 2401.14489,
#: EleutherAI/cookbook), of the sweep that is worse; calibrated: on one half (by hash), pairs of the other.
#: Only N varies there; M and K are taken to be followed as well.
#: Model: high 0.038, 0.082, 0.106, 0.100, 0.128; low 0.092, 0.089, 0.098, 0.098, 0.112. Calibrated: high
#: 0.034, 0.037, 0.041, 0.071, 0.165; low 0.046, 0.046, 0.052, 0.064, 0.066.
RATIO_ERROR = (
    (0.05, 0.09, 0.05), (0.10, 0.09, 0.05), (0.50, 0.12, 0.055), (0.70, 0.12, 0.075), (math.inf, 0.13, 0.17),
)  # fmt: skip
#: What is predicted to change the time per FLOP by much is a wave that begins or ends, which libraries soften
#: in their own ways: this share of the change (ln, up to 0.5) is error too.
_ERROR_OF_CHANGE = 0.1
_LARGEST_CHANGE = 0.5
#: Types in which neighbours were judged (``benchmarks/predictions.py``).
_JUDGED = ("bf16", "fp16")
#: The model's range upwards on the GPU that these errors are from; wider there, wider here.
_HIGH_OF_A100 = 1.25


@dataclass(frozen=True, slots=True)
class Gain:
    """Another shape beside the present one. Negative savings are costs; ``mid`` is None where only bounds are
    known."""

    saving_us: Estimate
    time_ratio: Estimate  # other time / present time
    work_ratio: float  # other FLOPs / present FLOPs

    @property
    def per_flop_ratio(self) -> Estimate:
        """Other time per FLOP / present time per FLOP."""
        return self.time_ratio.over(self.work_ratio)


def gain(now: Prediction, then: Prediction, *, gpu: Gpu, measured: Measurements | None = None) -> Gain | None:
    """What ``then`` saves over ``now``, both predicted for ``gpu`` with ``measured``.

    None where ``then`` is not known, or ``now`` has not even a lower bound. The saving is
    never larger than the two predictions' ranges allow.

    >>> from tracelens.gemm.predict import predict_gemm
    >>> from tracelens.hardware import find_gpu
    >>> a100 = find_gpu(None, override="a100-sxm-40gb")
    >>> now, then = (predict_gemm(2304, n, 4096, gpu=a100) for n in (1600, 1536))
    >>> found = gain(now, then, gpu=a100)
    >>> f"{found.work_ratio:.2f} of the work in {found.time_ratio.low:.2f} to {found.time_ratio.high:.2f}"
    '0.96 of the work in 0.62 to 0.79'
    """
    if then.time_us.mid is None or then.time_us.low is None or then.time_us.high is None:
        return None
    ratio = _ratio(now, then, gpu, measured) if now.time_us.mid is not None else _bounded(now, then)
    if ratio is None or now.time_us.low is None:
        return None
    return Gain(_saving(now.time_us, then.time_us, ratio), ratio, _work(now, then))


def told_apart(now: Prediction, then: Prediction, dimension: Axis) -> bool:
    """Is ``then`` said to take less time per FLOP, though the error of the ratio may reach across 1?

    Along M and N, equally aligned, from the predicted difference on at which neighbours measured 10 % apart
    are named with few false alarms (``Shares.told_apart_m``, ``told_apart_n``), in 16 bits, where that was
    judged. A calibrated ratio has an error of its own; unknown times are not told apart.
    """
    one = then.chosen
    if one is None or not now.time_us.mid or not then.time_us.mid or then.time_us.basis != "model":
        return False
    if dimension == "k" or now.alignment_frac != then.alignment_frac or then.dtype not in _JUDGED:
        return False
    least = one.rates.told_apart_m if dimension == "m" else one.rates.told_apart_n
    return math.log(then.time_us.mid / now.time_us.mid / _work(now, then)) <= -least


def _ratio(now: Prediction, then: Prediction, gpu: Gpu, measured: Measurements | None) -> Estimate | None:
    """The ratio of two known times: 90 % of such ratios fall inside, where that could be checked."""
    one, other = now.time_us, then.time_us
    if not (one.low and one.mid and one.high and other.low and other.mid and other.high):
        return None
    at = 2 if other.basis == "calibrated" else 1  # column of ``RATIO_ERROR``
    mid = other.mid / one.mid
    error = _error(now, then, at) + _ERROR_OF_CHANGE * min(_change(now, then, mid), _LARGEST_CHANGE)
    if at == 2:
        up = max(error, math.hypot(math.log(other.high / other.mid), math.log(one.mid / one.low)))
        down = max(error, math.hypot(math.log(other.mid / other.low), math.log(one.high / one.mid)))
    else:
        down = up = error * _wider(then)
        if (_aligned(now), now.alignment_frac) != (_aligned(then), then.alignment_frac):
            one_down, one_up = _ladder_range(now, gpu, measured)
            other_down, other_up = _ladder_range(then, gpu, measured)
            # A slower present and a faster other make the ratio smaller, and the other way round.
            down, up = down + one_up + other_down, up + one_down + other_up
    # Never more than the two ranges allow; less is what the pairs have shown.
    return Estimate(max(mid * math.exp(-down), other.low / one.high), mid, mid * math.exp(up), other.basis)


def _bounded(now: Prediction, then: Prediction) -> Estimate | None:
    """The ratio where the present time is only bounded: by what the bounds share with the other time.

    The rate's range is in the present bounds and in the other time alike, so it is taken out once.
    """
    rates = then.chosen.rates if then.chosen is not None else None
    one, other = now.time_us, then.time_us
    if rates is None or not (one.low and other.low and other.mid and other.high):
        return None
    if other.basis == "calibrated":
        least, most = other.low, other.high
    else:
        error = _error(now, then, 1) * _wider(then)
        low_frac, high_frac = rates.range_of(then.m, then.n, then.k, other.mid)
        least = max(other.mid * high_frac * math.exp(-error), other.low)
        most = max(other.mid * low_frac, other.low) * math.exp(error)
    return Estimate(least / one.high if one.high else 0.0, None, most / one.low, other.basis)


def _saving(now: Estimate, then: Estimate, ratio: Estimate) -> Estimate:
    least, most = now.low or 0.0, now.high
    low = high = None
    if ratio.high is not None and (ratio.high < 1 or most is not None):
        low = (1 - ratio.high) * (least if ratio.high < 1 or most is None else most)
    if ratio.low is not None and most is not None:
        high = (1 - ratio.low) * (most if ratio.low < 1 else least)
        high = min(high, most - (then.low or 0.0))
    mid = now.mid - then.mid if now.mid is not None and then.mid is not None else None
    return Estimate(low, mid, high, ratio.basis)


def _change(now: Prediction, then: Prediction, ratio: float) -> float:
    """By how much (ln) the time per FLOP changes beside what the alignment does to it."""
    change = math.log(ratio / _work(now, then))
    if now.alignment_frac and then.alignment_frac:
        other = change + math.log(then.alignment_frac / now.alignment_frac)
        change = min(change, other, key=abs)
    return abs(change)


def _work(now: Prediction, then: Prediction) -> float:
    return math.prod((then.m, then.n, then.k, then.batch)) / math.prod((now.m, now.n, now.k, now.batch))


def ratio_error(apart: float, *, calibrated: bool = False) -> float:
    """Error (ln) of the ratio of two times whose shapes are ``apart``: ln of their largest ratio of one size.

    >>> ratio_error(0.01), ratio_error(math.log(1.5)), ratio_error(math.log(4), calibrated=True)
    (0.09, 0.12, 0.17)
    """
    return next(row[2 if calibrated else 1] for row in RATIO_ERROR if apart <= row[0])


def _error(now: Prediction, then: Prediction, column: int) -> float:
    table = ratio_error(_apart(now, then), calibrated=column == 2)
    one = then.chosen
    if column == 2 or one is None:
        return table
    return table * one.rates.ratio_error_frac


def _apart(now: Prediction, then: Prediction) -> float:
    pairs = ((now.m, then.m), (now.n, then.n), (now.k, then.k), (now.batch, then.batch))
    return max(abs(math.log(other / one)) for one, other in pairs)


def _aligned(one: Prediction) -> int:
    return min((value for value in one.alignment.values() if value is not None), default=0)


def _wider(one: Prediction) -> float:
    """How much less is known of this GPU than of those that were measured."""
    if one.chosen is None:
        return 1.0
    return max(1.0, math.log(one.chosen.rates.high) / math.log(_HIGH_OF_A100))


def _ladder_range(one: Prediction, gpu: Gpu, measured: Measurements | None) -> tuple[float, float]:
    """How much shorter and longer (ln) the alignment's step leaves a time open."""
    step = alignment_ladder(gpu=gpu, dtype=one.dtype, measured=measured).step_of(one.alignment)
    if one.alignment_frac is None or step.mid is None:
        return 0.0, 0.0  # CUDA cores, which have no ladder
    shorter = math.log(step.high / one.alignment_frac) if step.high else 0.0
    longer = math.log(one.alignment_frac / step.low) if step.low else 0.0
    return max(shorter, 0.0), max(longer, 0.0)
