"""GPU time by component and phase, per step, side by side."""

from __future__ import annotations

from tracelens.comparison import words
from tracelens.comparison.gemms import differ
from tracelens.comparison.one_place import PerStep, places
from tracelens.comparison.same_work import as_all, beyond, other_work
from tracelens.results import Report
from tracelens.results.comparison import ComponentChange, GemmChange, Noise


def compare_components(
    before: Report, after: Report, gemms: list[GemmChange], noise: Noise | None
) -> list[ComponentChange]:
    """Compare every component and phase, the largest difference first."""
    old, new, _ = places(before, after)
    gpu_ms = before.summary.gpu_ms_per_step
    changed = {(one.component, one.phase) for one in gemms if one.beyond_noise and other_work(one)}
    rows = []
    for key in {**old, **new}:
        a, b = old.get(key, PerStep()), new.get(key, PerStep())
        diff, frac = b.ms - a.ms, b.ms / a.ms - 1 if a.ms and b.ms else None
        why, new_work = words.SAME_KERNELS, False
        if key in changed:
            why, new_work = words.OTHER_GEMMS, True
        elif differ(a.kernels, b.kernels):
            why, new_work = _other_kernels(a.kernels, b.kernels), True
        told = beyond(diff, frac, noise=noise, gpu_ms=gpu_ms, other_work=new_work)
        if key[0] == "communication" and not new_work and told is not False:
            told, why = None, words.WAIT
        elif told is None:
            why = words.TOO_FEW_GEMMS
        alike = told is True and not new_work and as_all(frac, noise)
        if alike and noise is not None:
            why = words.as_all_gemms(noise.mid_frac)
        rows.append(ComponentChange(*key, a.ms, b.ms, diff, frac, a.kernels, b.kernels, told, why, alike))
    return sorted(rows, key=lambda row: -abs(row.diff_ms))


def _other_kernels(before: float, after: float) -> str:
    if not before or not after:
        return words.ONLY_AFTER if after else words.ONLY_BEFORE
    return words.kernels(after / before - 1)
