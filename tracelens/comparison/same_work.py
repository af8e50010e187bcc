"""How much GEMMs with the same work differ between two reports: the noise, what is beyond it, which rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median

from tracelens.comparison.step_change import PRACTICAL
from tracelens.results.comparison import GemmChange, GemmSide, Noise
from tracelens.results.folders import FilePair, PairTime, RankPart, Side, StandsOut

#: A row of less than this share of the GPU time says little of the GPU's pace.
_WEIGHTY = 0.002
_FEWEST = 3  # rows that a spread can be read off
#: Kernels differ by more than GEMMs do; what is closer than this to the GEMMs' own spread is not named.
_MARGIN = 0.01
#: Nor is a difference of less than this share of the GPU time of a step.
SMALL = 0.001


def noise(changes: Iterable[GemmChange], gpu_ms: float) -> Noise | None:
    """The spread of GEMMs that did the same work with the same kernels, or None where too few did."""
    same = [
        (one.before, frac)
        for one in changes
        if one.kind == "gemm" and one.before is not None and (frac := own_frac(one)) is not None
    ]
    same = [(side, frac) for side, frac in same if side_ms(side) >= _WEIGHTY * gpu_ms]
    if len(same) < _FEWEST or not gpu_ms:  # where nothing took time, nothing has noise
        return None
    fracs = [frac for _, frac in same]
    middle = median(fracs)
    spread = spread_around(middle, fracs)
    share = sum(side_ms(side) for side, _ in same) / gpu_ms
    return Noise(len(same), share, middle, middle - spread, middle + spread)


def spread_around(middle: float, values: Iterable[float]) -> float:
    """Three scaled median absolute deviations, which one value far off widens little.

    1.4826 makes it the standard deviation of a normal distribution (Rousseeuw and Croux, JASA 88, 1993).
    """
    return 3 * 1.4826 * median(abs(one - middle) for one in values)


def side_ms(side: GemmSide | None) -> float:
    """Of a side that is not there: none. Times are known here; ``without_times`` comes last."""
    return side.time_ms_per_step or 0.0 if side is not None else 0.0


def diffs_ms(changes: Iterable[GemmChange]) -> list[float]:
    """Those that are known."""
    return [one.diff_ms for one in changes if one.diff_ms is not None]


def own_ms(one: GemmChange) -> tuple[float, float] | None:
    """Per step, before and after: what the same work took the same kernels, without what other streams took.

    None where it is not the same work, or where of one side alone it is not known what those took; where of
    neither, both times are whole.
    """
    if not same_work(one) or one.before is None or one.after is None:
        return None
    old, new = one.before.taken_ms_per_step, one.after.taken_ms_per_step
    if old is None and new is None:
        return side_ms(one.before), side_ms(one.after)
    return None if old is None or new is None else (side_ms(one.before) - old, side_ms(one.after) - new)


def own_frac(one: GemmChange) -> float | None:
    """How much longer a call takes after, by ``own_ms``."""
    own = own_ms(one)
    if own is None or one.before is None or one.after is None:
        return None
    calls = (one.before.calls_per_step, one.after.calls_per_step)
    return own[1] / calls[1] / (own[0] / calls[0]) - 1 if own[0] > 0 and calls[0] and calls[1] else 0.0


def beyond(
    diff_ms: float, diff_frac: float | None, *, noise: Noise | None, gpu_ms: float, other_work: bool
) -> bool | None:
    """Is a difference more than noise? None where nothing says what the noise is.

    With other work to do any difference is real, but one too small to matter is not named. What all GEMMs
    changed by is noise of the run as long as it has no practical size.
    """
    if abs(diff_ms) < SMALL * gpu_ms:
        return False
    if other_work or diff_frac is None:
        return True
    if noise is None:
        return None
    middle = noise.mid_frac if abs(noise.mid_frac) <= PRACTICAL else 0.0
    return abs(diff_frac - middle) > _spread(noise)


def drifted(noise: Noise) -> bool:
    """Did all GEMMs of the same work change by more than one kernel differs from another anyway?"""
    return abs(noise.mid_frac) > _MARGIN


def as_all(diff_frac: float | None, noise: Noise | None) -> bool:
    """Is a difference explained by what all GEMMs changed by? One of work that is partly GEMMs is less."""
    if diff_frac is None or noise is None or diff_frac * noise.mid_frac <= 0:
        return False
    return abs(diff_frac) <= abs(noise.mid_frac) + _spread(noise)


def _spread(noise: Noise) -> float:
    return noise.high_frac - noise.mid_frac + _MARGIN


def same_work(one: GemmChange) -> bool:
    """Is it the same work with the same kernels, wherever it is counted?"""
    return one.state in ("same_shape", "moved") and not one.differs


def other_work(one: GemmChange) -> bool:
    """Is it not the same work on both sides, whatever the kernel and whatever it is counted as?"""
    return one.state not in ("same_shape", "shape_unknown", "moved") or any(
        aspect != "kernel" for aspect in one.differs
    )


def judged(changes: list[GemmChange], found: Noise | None, gpu_ms: float) -> list[GemmChange]:
    """Say of each row whether its difference is more than noise."""
    rows = []
    for one in changes:
        told = None
        if one.diff_ms is not None:
            told = beyond(one.diff_ms, one.diff_frac, noise=found, gpu_ms=gpu_ms, other_work=other_work(one))
        alike = bool(told) and same_work(one) and as_all(one.diff_frac, found)
        rows.append(replace(one, beyond_noise=told, alike=alike))
    return rows


_PARTS: dict[RankPart, Callable[[PairTime], float]] = {
    "idle": lambda time: time.idle_ms,
    "computing": lambda time: time.computing_ms,
    "exposed_communication": lambda time: time.exposed_ms,
}


def stand_out(pairs: Sequence[FilePair]) -> list[StandsOut]:
    """Ranks that take more of a part of the step than the others do: fewer than half of them, beyond a gap.

    The widest gap in the upper half parts them from the others. It counts where it is more than 2 % of the
    step, and its upper side lies beyond the others' spread.
    """
    sides: tuple[tuple[Side, list[PairTime]], ...] = (
        ("before", [pair.before for pair in pairs]),
        ("after", [pair.after for pair in pairs]),
    )
    found = []
    for side, times in sides:
        least = PRACTICAL * median(time.step_ms for time in times)
        for part, read in _PARTS.items():
            known = sorted(
                ((read(time), pair.name) for time, pair in zip(times, pairs, strict=True)), reverse=True
            )
            many = above([ms for ms, _ in known], least)
            for ms, name in known[:many]:
                found.append(StandsOut(name, side, part, ms, known[-1][0], known[many][0]))
    return found


def above(values: Sequence[float], least: float) -> int:
    """How many of the values, the largest first, stand out of the others."""
    splits = range(1, (len(values) + 1) // 2)
    if not splits:
        return 0
    at = max(splits, key=lambda split: values[split - 1] - values[split])
    others = values[at:]
    middle = median(others)
    beyond = values[at - 1] - middle > spread_around(middle, others)
    return at if beyond and values[at - 1] - others[0] > least else 0
