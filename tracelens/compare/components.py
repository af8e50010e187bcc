"""GPU time by component and phase, per step, side by side."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.compare.gemms import beyond, differ
from tracelens.compare.result import ComponentChange, GemmChange, Noise
from tracelens.compare.spelling import signed_pct
from tracelens.results import Report

INEXACT = "the recording holds work outside of its steps, and the report does not say how much of it is here"
_WAIT = "holds the wait for the slowest rank, which one rank's trace does not show"


@dataclass(frozen=True, slots=True)
class _PerStep:
    ms: float = 0.0
    kernels: float = 0.0
    exact: bool = True


def compare_components(
    before: Report, after: Report, gemms: list[GemmChange], noise: Noise | None
) -> list[ComponentChange]:
    """Compare every component and phase, the largest difference first."""
    old, new = _per_step(before), _per_step(after)
    changed = {(one.component, one.phase) for one in gemms if one.beyond_noise and _other_work(one)}
    gpu_ms = before.summary.gpu_ms_per_step
    rows = []
    for key in {**old, **new}:
        a, b = old.get(key, _PerStep()), new.get(key, _PerStep())
        diff, frac = b.ms - a.ms, b.ms / a.ms - 1 if a.ms and b.ms else None
        why, other_work = "same number of kernels, same GEMM shapes", False
        if key in changed:
            why, other_work = "its GEMMs changed", True
        elif differ(a.kernels, b.kernels):
            why, other_work = _fewer_or_more(a.kernels, b.kernels), True
        told = beyond(diff, frac, noise=noise, gpu_ms=gpu_ms, other_work=other_work)
        if not (a.exact and b.exact):
            told, why = None, INEXACT
        elif key[0] == "communication" and not other_work and told:
            told, why = None, _WAIT
        rows.append(ComponentChange(*key, a.ms, b.ms, diff, frac, a.kernels, b.kernels, told, why))
    return sorted(rows, key=lambda row: -abs(row.diff_ms))


def inexact(rows: list[ComponentChange]) -> list[str]:
    """A caveat where times of components are not those of the steps alone."""
    phases = sorted({row.phase for row in rows if row.why == INEXACT})
    if not phases:
        return []
    return [f"components in {', '.join(phases)} are not judged: a recording holds work outside of its steps"]


def _other_work(one: GemmChange) -> bool:
    return one.state != "same_shape" or any(said != "kernel" for said in one.changed)


def _fewer_or_more(before: float, after: float) -> str:
    if not before or not after:
        return "only after" if after else "only before"
    return f"{'more' if after > before else 'fewer'} kernels per step ({signed_pct(after / before - 1)})"


def _per_step(report: Report) -> dict[tuple[str, str], _PerStep]:
    """Time and kernels per step.

    Component rows are of the whole file, which can hold work of steps that began before it. They are exact
    where the file holds nothing else, or where every GEMM of the phase is in it equally often. Communication
    has rows of its own, per step.
    """
    total_ms, per_step = sum(row.time_ns for row in report.components) / 1e6, report.summary.gpu_ms_per_step
    if not per_step:
        return {}
    whole = total_ms / per_step
    exact = not differ(whole, len(report.steps))
    found = {}
    for row in report.components:
        steps = whole if exact else _steps(report, row.phase)
        share = steps or whole
        found[row.component, row.phase] = _PerStep(
            row.time_ns / 1e6 / share, row.kernels / share, steps is not None
        )
    return found | ({} if exact else _communication(report))


def _steps(report: Report, phase: str) -> float | None:
    """How many steps' work of a phase the file holds, where all its GEMMs agree on it."""
    seen = [
        row.calls / row.calls_per_step if row.calls_per_step else 0.0
        for row in report.gemms
        if row.phase == phase
    ]
    least, most = min(seen, default=0.0), max(seen, default=0.0)
    return least if least and not differ(least, most) else None


def _communication(report: Report) -> dict[tuple[str, str], _PerStep]:
    found: dict[tuple[str, str], _PerStep] = {}
    for row in report.communication:
        key = ("communication", row.phase)
        so_far = found.get(key, _PerStep())
        found[key] = _PerStep(so_far.ms + row.time_ms_per_step, so_far.kernels + row.calls_per_step)
    return found
