"""The five numbers of page and terminal: step time, MFU, GPU busy, GEMM and attention share, savings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tracelens import numbers as f
from tracelens.render.facts import cut_words, per_step
from tracelens.render.step_times import SAME
from tracelens.results import Estimate, Report
from tracelens.results.waits import mean_ms

_LEAST = "≥ "  # before a figure of what was recognised, where more can be there


@dataclass(frozen=True, slots=True)
class Number:
    """One of the five numbers; ``frac`` is set where a meter of 0..1 makes sense."""

    key: str
    value: str
    label: str
    note: str
    frac: float | None = None
    quiet: bool = False  # not to be shown as a gain
    short: str = ""  # a label for narrow terminals


def five_numbers(report: Report) -> list[Number]:
    """Return step time, MFU, GPU busy, GEMM + attention share, and what the findings save."""
    gemm = report.summary.gemm_frac
    share = at_least(gemm) if report.summary.gemm_frac_is_bound else f.pct(gemm)
    note = f"of {f.ms(report.summary.gpu_ms_per_step)} GPU time{per_step(report)}"
    stake = _stake(report)
    return [
        _step_time(report),
        _mfu(report),
        _busy(report),
        Number("gemm", share, "GEMM + attention", note, gemm, short="GEMM+attn"),
        replace(stake, short=stake.short or "findings"),
    ]


def _step_time(report: Report) -> Number:
    step = report.summary.step_ms
    if step.n > 1:
        note = f"median of {step.n}, {f.ms_range(step.low, step.high)}"
        if _apart(report):
            note += f"; mean {f.ms(mean_ms(report.summary))}"
    else:
        note = "one step" if report.summary.steps_marked else "no step is marked"
        note = cut_words(report) or note
    return Number("step", f.ms(step.median), "step time" if report.summary.steps_marked else "recorded", note)


def at_least(share: float) -> str:
    """A share that is a lower bound; one that rounds to nothing bounds nothing, and none is above all.

    >>> at_least(0.374), at_least(0.0001), at_least(1.0)
    ('≥ 37.4%', 'unknown', '100%')
    """
    text = f.pct(share)
    if share >= 1:
        return text
    return f.UNKNOWN if text.startswith("<") or not share else _LEAST + text


def _mfu(report: Report) -> Number:
    mfu, achieved, dtype = report.summary.mfu_frac, report.summary.achieved_tflops, report.summary.mfu_dtype
    peak, types = report.summary.mfu_peak_tflops, report.summary.mfu_types
    if peak is None and dtype:  # a report saved before types were mixed
        peak = report.gpu.peak_tflops.get(dtype)
    if mfu is not None:
        note = f"of {f.sig(peak)} TFLOP/s, dense {_types(types) or dtype}" if peak else "of the dense peak"
        if achieved is not None and peak:
            note = f"{f.sig(achieved)} {note}"
        if _apart(report):
            note += ", of the mean step"
        if report.summary.mfu_why and len(types) > 1:
            note += f"; {report.summary.mfu_why}"
        elif report.summary.mfu_why:
            rate = f"{f.sig(achieved)} TFLOP/s; " if achieved is not None else ""
            note = f"{rate}{report.summary.mfu_why}"
        said = at_least(mfu) if report.summary.mfu_is_bound else f.pct(mfu)
        return Number("mfu", said, "MFU", note, mfu)
    why = report.summary.mfu_why or "not judged"
    if achieved is not None:
        why = f"{_LEAST if report.summary.mfu_is_bound else ''}{f.sig(achieved)} TFLOP/s; {why}"
    return Number("mfu", f.UNKNOWN, "MFU", why)


def _types(types: Mapping[str, float]) -> str:
    """``bf16 and fp8 (34% of the FLOPs)``; "" of a single one."""
    first, *others = types or [""]
    told = [f"{one} ({types[one]:.0%} of the FLOPs)" for one in others]
    return f.listed([first, *told]) if told else ""


def _busy(report: Report) -> Number:
    summary = report.summary
    note = f"{f.ms(summary.idle_ms)} idle"
    if summary.exposed_communication_ms > 0:
        least = _LEAST if summary.communication_is_bound else ""
        note += f", {least}{f.ms(summary.exposed_communication_ms)} exposed comm"
    note = f"mean{per_step(report)}: {note}" if _apart(report) else note + per_step(report)
    return Number("busy", f.pct(summary.gpu_busy_frac), "GPU busy", note, summary.gpu_busy_frac)


def _apart(report: Report) -> bool:
    """Do the mean and the median of the steps differ? One long step moves the mean and not the median."""
    mean = mean_ms(report.summary)
    return abs(mean - report.summary.step_ms.median) > SAME * mean


def _stake(report: Report) -> Number:
    label = "findings save"
    waste: Estimate | None = report.summary.shape_waste_ms
    waits = [one.saving_ms.high for one in report.findings if one.saving_of == "wait"]
    known = [most for most in waits if most is not None]
    if known and (waste is None or waste.high is None or max(known) > waste.high):
        shapes = f"; kernels ≤ {f.ms(waste.high)} more" if waste is not None and waste.high else ""
        return Number("stake", f"≤ {f.ms(max(known))}", label, f"of waiting{per_step(report)}{shapes}")
    if waste is None or (waste.mid is None and waste.high is None):
        states = [check.state for check in report.checks]
        judged, open_ = states.count("passed") + states.count("found"), states.count("could_not_run")
        if judged and judged >= open_:
            return Number("stake", "none", label, f"{f.plural(judged, 'check')} passed")
        note = (
            f"{open_} of {f.plural(len(states), 'check')} could not run" if judged else "no check could run"
        )
        return Number("stake", "not judged", label, note)
    of, more = per_step(report), _open(report)
    if report.summary.saving_of == "gpu_work":
        # Shorter kernels leave longer gaps: not a gain to put in red.
        how = "a bound" if waste.mid is None else f"≈ {f.ms(waste.mid)} predicted"
        spared = any(one.counts == "kernels" for one in report.findings)
        gains = "launches spared not counted" if spared else "0 while it waits for the CPU"
        value = f"{'≤' if spared else '0 to'} {f.ms(waste.high)}"
        label = "GPU work saved" if spared else label
        note = f"{of.strip() if spared else f'GPU work{of}'}: {how}; {gains}{more}"
        return Number("stake", value, label, note, quiet=True, short="GPU work" if spared else "")
    if waste.mid is not None:
        spread = f.ms_range(waste.low, waste.high)
        note = f"{spread}{of}, predicted" if spread != f.UNKNOWN else f"predicted{of}"
        return Number("stake", f"≈ {f.ms(waste.mid)}", label, note + more)
    value = f.ms_range(waste.low, waste.high) if waste.low else f"≤ {f.ms(waste.high)}"
    quiet = report.summary.limited_by == "exposed"
    return Number("stake", value, label, f"a bound{of}, not a prediction", quiet=quiet)


def _open(report: Report) -> str:
    """What findings without a prediction have at stake beside those with one; "" for nothing."""
    most = report.summary.shape_open_ms
    return f"; not predicted: {f.ms(most)} more at most" if most else ""
