"""The pace of a GPU over the steps of a trace: do all kernels of known work slow down alike?

Calls of one shape and kernel compute the same in every step. Where calls of all shapes take longer by one
factor in a step, it is no shape: a GPU that clocks lower (power, temperature), or one that is shared.

- pace of a shape in a step: the median time of its calls there over that in the fast steps.
- pace of a step: the median of the paces of its shapes, by their time. A step of at least ``SHAPES`` shapes.
- fast steps: the fastest, and those within half of ``SLOWER`` of it. Another is slow where its pace is at
  least ``SLOWER`` above 1, and three quarters of its time is in shapes at least half as much above it.
- a pace is known within two standard errors over its shapes and what a healthy step and the mean of the fast
  ones differ by. It can be lower still by what the steps that are neither fast nor slow are above the fast
  ones: those are picked for being fast. Where that is more than three quarters of what the step is slower by,
  nothing is claimed. The range of what is lost follows.
- a call in a slow step lost time * (1 - 1 / pace) to the clock, where its shape slowed by half of that or
  more, on average over slow steps: what waits for memory does not slow with the SMs' clock. A shape that
  slow steps, or only they, have no call of to compare is taken to slow as most of the step does.

Where all steps run at one pace, nothing is known of the clock: it can be low in all of them. Within healthy
public traces (H100, RTX 3060; 9 runs of 3 to 5 steps) the paces of steps lie within 2.4 %.

Source: throttling from 1965 to 1580 MHz costs 15 % (deepseek-ai/DeepGEMM#120); clock and power as a part of
the loss, arXiv 2512.08242.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracelens.gemm.overlap import STALLED
from tracelens.trace import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]

#: Above the fastest step; the steps of healthy traces differ by less.
SLOWER = 0.03
#: What a step's pace is off by without any cause: half of the 2.4 %.
HEALTHY = 0.012
#: Fewer shapes do not tell the GPU's pace from their own: of three, one has nearly always half of the time.
SHAPES = 4
#: Of what a step is slower by: known less well, nothing is claimed of it.
_SURE = 0.75


@dataclass(frozen=True, slots=True)
class StepPaces:
    """The pace of each step, and what each call lost to a slower one."""

    steps: IntArray  # that have calls to judge, in order
    pace: FloatArray  # of each, 1 = as the fast ones; NaN = too few shapes
    slow: BoolArray
    lost_ns: FloatArray  # per call
    range_ns: tuple[float, float]  # of all that is lost, as surely as the paces are known


def step_paces(dur_ns: IntArray, alike: IntArray, step: IntArray, judged: BoolArray) -> StepPaces:
    """Paces of steps by the ``judged`` calls; ``alike`` numbers shape and kernel, < 0 in neither is none.

    >>> dur = np.tile([100, 200, 300, 300], 4) * np.repeat([100, 100, 120, 100], 4)
    >>> found = step_paces(dur, np.tile([0, 1, 2, 3], 4), np.repeat([3, 4, 5, 6], 4), np.ones(16, bool))
    >>> found.pace.round(3).tolist(), float(found.lost_ns.sum().round())
    ([1.0, 1.0, 1.2, 1.0], 18000.0)
    """
    rows = np.flatnonzero(judged & (alike >= 0) & (step >= 0))
    steps, at_step = np.unique(step[rows], return_inverse=True)
    shapes, at_shape = np.unique(alike[rows], return_inverse=True)
    at_step, at_shape = at_step.reshape(-1), at_shape.reshape(-1)
    medians = _medians(dur_ns[rows], at_shape * len(steps) + at_step, len(shapes) * len(steps))
    cells = medians.reshape(len(shapes), len(steps))
    weight = np.bincount(at_shape, weights=dur_ns[rows], minlength=len(shapes)).astype(np.float64)
    several = np.isfinite(cells).sum(axis=1) > 1  # a shape of one step compares with nothing
    whole = np.where(several, _medians(dur_ns[rows], at_shape, len(shapes)), np.nan)
    rough = _quantiles(cells / np.where(whole > 0, whole, np.nan)[:, None], weight, 0.5)
    rough[rough == 0] = np.nan  # kernels of damaged durations have no pace
    if not np.isfinite(rough).any():
        return StepPaces(steps, rough, np.zeros(len(steps), np.bool_), np.zeros(len(dur_ns)), (0.0, 0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        fast = rough < np.nanmin(rough) * (1 + SLOWER / 2)
        alone = _mean(cells[:, fast])
        ratio = cells / np.where(several & (alone > 0), alone, np.nan)[:, None]
        pace, quarter = _quantiles(ratio, weight, 0.5), _quantiles(ratio, weight, 0.25)
        healthy = max(HEALTHY, float(np.nanmax(np.abs(pace[fast] - 1))))
        above = _error(ratio, weight) + healthy * np.sqrt(1 + 1 / fast.sum())
        below = above + max(0.0, float(np.nanmean(pace[pace < 1 + SLOWER])) - 1)
        slow = (pace >= 1 + SLOWER) & (quarter - 1 >= (pace - 1) / 2) & (below <= (pace - 1) * _SURE)
        part = np.where(slow & np.isfinite(ratio), (ratio - 1) / (pace - 1), np.nan)
    untold = ~np.isfinite(part).any(axis=1)
    slowed = slow[None, :] & ((_mean(part) >= 1 / 2) | untold)[:, None]
    lost = [
        _lost(dur_ns, (shapes, alike), (steps, step), np.where(slowed, 1 - 1 / one, 0.0), cells)
        for one in (np.where(slow, pace + by, 1.0) for by in (-below, 0.0, above))
    ]
    return StepPaces(steps, pace, slow, lost[1], (float(lost[0].sum()), float(lost[2].sum())))


def with_groups(
    found: StepPaces, dur_ns: IntArray, *, rows: IntArray, like: IntArray, step: IntArray, judged: BoolArray
) -> StepPaces:
    """``found`` with what calls lost that multiply groups of other ``rows`` each time (GEMMs of experts).

    They tell no pace: their time follows the loads of the experts. Where calls alike but for their rows
    (``like``, < 0 is none) take longer for each row in slow steps by half of the pace or more, they lose
    time * (1 - 1 / pace) there as the others do.
    """
    at = np.minimum(np.searchsorted(found.steps, step), max(len(found.steps) - 1, 0))
    if not found.slow.any() or not found.lost_ns.any():
        return found
    known = found.steps[at] == step
    pace = np.where(known & found.slow[at], found.pace[at], 1.0)
    lost, each = found.lost_ns.copy(), dur_ns / np.maximum(rows, 1)
    for number in np.unique(like[like >= 0]):
        mine = known & (like == number)
        slow, fast = (mine & judged & one for one in (pace > 1, pace == 1))
        if slow.any() and fast.any():
            ratio = np.median(each[slow]) / np.median(each[fast])
            if ratio - 1 >= (pace[slow].mean() - 1) / 2:
                lost[mine] = dur_ns[mine] * (1 - 1 / pace[mine])
    more = lost.sum() / found.lost_ns.sum()
    low, high = found.range_ns
    return replace(found, lost_ns=lost, range_ns=(float(more * low), float(more * high)))


def _error(ratio: FloatArray, weight: FloatArray) -> FloatArray:
    """Two standard errors of each step's median, of as many shapes as weights of such a spread stand for.

    The deviation is that of a normal distribution with these quartiles: a few shapes that no clock slows do
    not widen it.
    """
    spread = (_quantiles(ratio, weight, 0.75) - _quantiles(ratio, weight, 0.25)) / 1.35
    share = np.where(np.isfinite(ratio), weight[:, None], 0.0)
    share = share / np.maximum(share.sum(axis=0), 1e-9)
    of_one = (share**2).sum(axis=0)  # 1 / as many shapes
    few = 1 + 2 * of_one / np.maximum(1 - of_one, 1e-9)  # Student's t over a normal distribution, nearly
    out: FloatArray = 2 * 1.25 * spread * few * np.sqrt(of_one)
    return out


def _mean(cells: FloatArray) -> FloatArray:
    """The mean over steps of each shape, of those known; 0 where none is."""
    count = np.isfinite(cells).sum(axis=1)
    out: FloatArray = np.nansum(cells, axis=1) / np.maximum(count, 1)
    return out


def _lost(
    dur_ns: IntArray,
    shapes: tuple[IntArray, IntArray],
    steps: tuple[IntArray, IntArray],
    share: FloatArray,
    median_ns: FloatArray,
) -> FloatArray:
    """Each call's share of its time, by shape and step: (names of the rows or columns, of each call)."""
    at, known = [], np.ones(len(dur_ns), np.bool_)
    for names, own in (shapes, steps):
        place = np.minimum(np.searchsorted(names, own), len(names) - 1)
        known &= names[place] == own
        at.append(place)
    cell = (at[0], at[1])
    stalled = dur_ns > STALLED * median_ns[cell]
    lost: FloatArray = np.where(known & ~stalled, dur_ns * share[cell], 0.0)
    return lost


def _medians(values: IntArray, cell: IntArray, count: int) -> FloatArray:
    """The median of each cell's values; NaN of an empty one."""
    order = np.lexsort((values, cell))
    size = np.bincount(cell, minlength=count)
    first = np.cumsum(size) - size
    out = np.full(count, np.nan)
    full = size > 0
    low, high = first[full] + (size[full] - 1) // 2, first[full] + size[full] // 2
    out[full] = (values[order][low] + values[order][high]) / 2
    return out


def _quantiles(ratio: FloatArray, weight: FloatArray, part: float) -> FloatArray:
    """The weighted quantile over shapes of each step."""
    return np.array([_quantile(ratio[:, at], weight, part) for at in range(ratio.shape[1])])


def _quantile(values: FloatArray, weight: FloatArray, part: float) -> float:
    """The weighted quantile of what is known; NaN of too few."""
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < SHAPES:
        return float("nan")
    known = known[np.argsort(values[known], kind="stable")]
    reach = np.cumsum(weight[known])
    return float(values[known][np.searchsorted(reach, part * reach[-1])])
