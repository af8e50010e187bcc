"""The sentence at the top: what the step's time is limited by, and what there is to gain from shapes."""

from __future__ import annotations

from tracelens.results import Check, Coverage, Estimate, Finding, GpuInfo, ModelDims, UnprofiledSteps

_IDLE = 0.30
_EXPOSED = 0.15
_UNKNOWN = 0.50
_SAME = 0.03


def verdict(
    *,
    findings: list[Finding],
    checks: list[Check],
    at_stake: Estimate | None,
    step_ms: float,
    busy_frac: float,
    unprofiled: UnprofiledSteps,
    exposed_ms: float,
    model: ModelDims,
    coverage: Coverage,
    gpu: GpuInfo,
) -> tuple[str, str]:
    """(verdict, detail). When shapes are not the problem it says so first."""
    shapes = _shapes(findings, checks, at_stake, step_ms)
    if not model.transformer:
        return (
            "No transformer was found in this trace.",
            "GPU time is shown by phase and by what operators and kernels say of themselves."
            + (f" {shapes}" if findings else ""),
        )
    if gpu.vendor == "amd":
        return (
            "This is an AMD GPU: where the time went is shown, tensor-core and tile rules are not judged.",
            f"The GPU is busy {busy_frac:.0%} of the step.",
        )
    if coverage.component_frac < 1 - _UNKNOWN:
        main = coverage.unattributed[0] if coverage.unattributed else None
        why = f" Main reason: {main.reason}. To mend it: {main.remedy}." if main else ""
        return (
            f"{1 - coverage.component_frac:.0%} of the GPU time could not be attributed to a component.",
            f"{shapes}{why}",
        )
    if busy_frac < 1 - _IDLE:
        return _idle(shapes, unprofiled.median_ms, step_ms=step_ms, busy_frac=busy_frac)
    if exposed_ms > _EXPOSED * step_ms:
        return (
            f"Communication that hides behind nothing takes {exposed_ms / step_ms:.0%} of the step.",
            shapes,
        )
    return shapes, f"The GPU is busy {busy_frac:.0%} of the step, so its kernels are where the time is."


def _idle(shapes: str, unprofiled_ms: float | None, *, step_ms: float, busy_frac: float) -> tuple[str, str]:
    """A host that sets the pace only because it is profiled is no finding."""
    work_ms = busy_frac * step_ms
    idle = f"The GPU is idle {1 - busy_frac:.0%} of the"
    if unprofiled_ms is None:
        return f"{idle} step: the host sets the pace, not the shapes.", shapes
    without = (
        f"a step takes {unprofiled_ms:.4g} ms without it; the GPU works {work_ms:.4g} ms of a profiled one"
    )
    if work_ms < (1 - _IDLE) * unprofiled_ms:
        return (
            f"{idle} step: the host sets the pace, not the shapes.",
            f"Not only under the profiler: {without}. {shapes}",
        )
    if work_ms > (1 + _SAME) * unprofiled_ms:
        return f"{idle} profiled step, but the steps without the profiler are others: {without}.", shapes
    return f"{idle} profiled step, and the profiler is the reason: {without}.", shapes


def _shapes(findings: list[Finding], checks: list[Check], at_stake: Estimate | None, step_ms: float) -> str:
    if findings and at_stake is not None and at_stake.high is not None and step_ms > 0:
        count = len(findings)
        first = f"{_lower(findings[0].title)}{' first' if count > 1 else ''}"
        if at_stake.mid is not None:
            choices = "1 shape choice costs" if count == 1 else f"{count} shape choices together cost"
            return (
                f"{choices} about {at_stake.mid:.3g} ms of each {step_ms:.4g} ms step "
                f"({at_stake.mid / step_ms:.1%}, predicted): {first}."
            )
        choices = "1 shape choice has" if count == 1 else f"{count} shape choices have"
        return (
            f"{choices} {at_stake.high:.3g} ms of each {step_ms:.4g} ms step at stake "
            f"({at_stake.high / step_ms:.1%}): {first}."
        )
    states = [check.state for check in checks]
    passed = states.count("passed")
    open_ = states.count("could_not_run")
    if passed:
        rest = f", {open_} could not run" if open_ else ""
        return f"No shape finding: {passed} of {len(checks)} checks passed{rest}."
    return "No shape check could run on this trace."


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:].rstrip(".")
