"""The figures of one report that a gate can ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracelens.gates.metrics import (
    Code,
    Metric,
    Range,
    Reading,
    Remark,
    exact,
    predicted,
    recognised,
    remark,
    shares,
    unknown,
)
from tracelens.results import Check, Estimate, Report, SavingOf
from tracelens.rules.catalog import RULES
from tracelens.words import COMPONENTS

_NO_STEP: Code = "no_whole_step"


def _stepped(report: Report) -> bool:
    whole = any(step.lacks is None for step in report.steps)
    return whole and report.summary.steps_marked


def _per_step(
    time_ms: Callable[[Report], float], least: Callable[[Report], bool] = lambda _: False
) -> Callable[[Report, str], Reading]:
    """A mean time of a step, also as a share of the mean step; ``least``: it is a lower bound."""

    def read(report: Report, _: str) -> Reading:
        if not _stepped(report):
            return unknown(_NO_STEP)
        value = time_ms(report)
        step = sum(one.duration_ms for one in report.steps) / len(report.steps)
        bound = least(report)
        share = {"share": recognised(value / step, least=bound)} if step else {}
        return Reading({"time": recognised(value, least=bound)} | share)

    return read


def _step(report: Report, _: str) -> Reading:
    step = report.summary.step_ms
    if not _stepped(report):
        return unknown(_NO_STEP)
    return Reading({"time": Range(step.low, step.median, step.high, measured=True)})


def _step_spread(report: Report, _: str) -> Reading:
    step = report.summary.step_ms
    if not _stepped(report):
        return unknown(_NO_STEP)
    if step.n < 2 or not step.median:
        return unknown("one_step")
    return Reading(
        {"share": exact((step.high - step.low) / step.median), "time": exact(step.high - step.low)}
    )


def _unprofiled(report: Report, _: str) -> Reading:
    without = report.summary.unprofiled
    if without.median_ms is None:
        return unknown("report", why=without.why) if without.why else unknown("not_known")
    return Reading({"time": exact(without.median_ms)})


def _overhead(report: Report, _: str) -> Reading:
    without = report.summary.unprofiled
    if without.profiler_frac is None:
        return unknown("report", why=without.why) if without.why else unknown("overhead_hidden")
    return Reading({"share": exact(without.profiler_frac)})


def _gpu_busy(report: Report, _: str) -> Reading:
    return Reading({"share": exact(report.summary.gpu_busy_frac)}) if _stepped(report) else unknown(_NO_STEP)


def _mfu(report: Report, _: str) -> Reading:
    summary = report.summary
    if summary.mfu_frac is None:
        return _mfu_unknown(report)
    return Reading(
        {"share": recognised(summary.mfu_frac, least=summary.mfu_is_bound)}, notes=_left_out(report)
    )


def _mfu_unknown(report: Report) -> Reading:
    why = report.summary.mfu_why
    return unknown("report", why=why) if why else unknown("not_known")


def _left_out(report: Report) -> list[Remark]:
    """What the utilization leaves out, or counts too much of."""
    why = report.summary.mfu_why
    return [remark("report", why=why)] if why else []


def _achieved(report: Report, _: str) -> Reading:
    rate = report.summary.achieved_tflops
    if rate is None:
        return _mfu_unknown(report)
    return Reading({"rate": recognised(rate, least=report.summary.mfu_is_bound)}, notes=_left_out(report))


def _gemm(report: Report, _: str) -> Reading:
    return Reading({"share": recognised(report.summary.gemm_frac, least=report.summary.gemm_frac_is_bound)})


def _waste(report: Report, _: str) -> Reading:
    waste, step = report.summary.shape_waste_ms, report.summary.step_ms.median
    if not any(check.state in ("passed", "found") for check in report.checks):
        return unknown("no_rule_judged")
    notes = _not_run(report)
    if waste is None:
        return Reading({"time": exact(0.0), "share": exact(0.0)}, notes=notes)
    most = None if waste.high is None else waste.high + report.summary.shape_open_ms
    found = _of_step(predicted(replace(waste, high=most)), report.summary.saving_of)
    if found is None:
        return unknown("at_stake_unknown")
    if not _stepped(report):
        return unknown(_NO_STEP)
    return Reading(shares(found, step), notes=[*_about(found, report.summary.saving_of), *notes])


def _of_step(found: Range | None, of: SavingOf) -> Range | None:
    """What of a saving is the step's: of GPU work in a step that waits, from nothing to all of it."""
    return found if found is None or of == "step" else Range(min(0.0, found.low), None, found.high, False)


def _about(found: Range, of: SavingOf) -> list[Remark]:
    """What to know about a saving; nothing of a prediction."""
    if of == "gpu_work":
        return [remark("gpu_work")]
    return [remark("bound")] if found.mid is None else []


def _not_run(report: Report) -> list[Remark]:
    many = sum(check.state == "could_not_run" for check in report.checks)
    return [remark("not_run", many=many)] if many else []


def _saving(report: Report, rule: str) -> Reading:
    """The largest saving of a rule's findings."""
    checks: dict[str, Check] = {check.rule: check for check in report.checks}
    check = checks.get(rule)
    if check is None:
        return unknown("not_checked", rule=rule)
    if check.state == "could_not_run":
        return unknown("could_not_run", rule=rule, why=check.why)
    own = [one for one in report.findings if one.rule == rule]
    if not own:
        zero = {"time": exact(0.0), "share": exact(0.0)}
        return Reading(zero, notes=[remark("report", why=check.why)] if check.why else [])
    best = max(own, key=lambda one: _high(one.saving_ms))
    # the share is the finding's own: per token where the change adds or drops tokens
    found = {"time": predicted(best.saving_ms), "share": predicted(best.saving_frac)}
    ranges = {form: _of_step(one, best.saving_of) for form, one in found.items()}
    known = {form: one for form, one in ranges.items() if one is not None}
    notes = next((_about(one, best.saving_of) for one in known.values()), [])
    why = None if len(known) == len(found) else remark("saving_unknown", rule=rule)
    return Reading(known, why=why, notes=notes)


def _high(saving: Estimate) -> float:
    return next((one for one in (saving.high, saving.mid, saving.low) if one is not None), 0.0)


def _findings(report: Report, _: str) -> Reading:
    if not any(check.state in ("passed", "found") for check in report.checks):
        return unknown("no_rule_judged")
    return Reading({"count": exact(len(report.findings))}, notes=_not_run(report))


def _findings_high(report: Report, _: str) -> Reading:
    every = _findings(report, _)
    many = sum(one.severity == "high" for one in report.findings)
    return Reading({"count": exact(many)}, notes=every.notes) if every.ranges else every


def _checks_not_run(report: Report, _: str) -> Reading:
    return Reading({"count": exact(sum(check.state == "could_not_run" for check in report.checks))})


def _component(report: Report, name: str) -> Reading:
    if not any(row.component == name for row in report.components):
        return unknown("component_unseen", component=name)
    rows = [row for row in report.components if row.component == name]
    least = name not in ("unattributed", "other") and not report.coverage.complete
    share = {"share": recognised(sum(row.frac for row in rows), least=least)}
    if not _stepped(report):
        return Reading(share, why=Remark(_NO_STEP))
    return Reading(share | {"time": recognised(sum(row.time_ms_per_step for row in rows), least=least)})


def _unattributed(report: Report, _: str) -> Reading:
    rows = [row.frac for row in report.components if row.component == "unattributed"]
    return Reading({"share": exact(sum(rows))})


def _unknown_shapes(report: Report, _: str) -> Reading:
    if not report.gemms:
        return unknown("no_gemm")
    return Reading({"share": exact(max(0.0, 1 - report.coverage.shape_frac))})


def _communication(report: Report, _: str) -> Reading:
    share = sum(row.frac for row in report.components if row.component == "communication")
    least = report.summary.communication_is_bound
    found = {"share": recognised(share, least=least)}
    if not _stepped(report):
        return Reading(found, why=Remark(_NO_STEP))
    time_ms = sum(row.time_ms_per_step for row in report.communication)
    return Reading(found | {"time": recognised(time_ms, least=least)})


def _communication_bytes(report: Report, _: str) -> Reading:
    if not _stepped(report):
        return unknown(_NO_STEP)
    missing = [row for row in report.communication if row.bytes_per_call is None]
    if missing:
        whole = sum(row.time_ms for row in report.communication)
        return unknown("messages_unknown", frac=sum(row.time_ms for row in missing) / (whole or 1))
    return Reading(
        {
            "bytes": recognised(
                sum(
                    size * row.calls_per_step for row in report.communication if (size := row.bytes_per_call)
                ),
                least=report.summary.communication_is_bound,
            )
        }
    )


def _warnings(report: Report, _: str) -> Reading:
    return Reading({"count": exact(len(report.trace.warnings))})


_BOTH = ("share", "time")

REPORT_METRICS: dict[str, Metric[Report]] = {
    metric.name: metric
    for metric in (
        Metric("step", ("time",), "Median step time, with the profiler running.", _step),
        Metric(
            "step_unprofiled",
            ("time",),
            "Median step time without the profiler, as `tracelens capture` timed it.",
            _unprofiled,
        ),
        Metric("step_spread", _BOTH, "Longest minus shortest step; % of the median.", _step_spread),
        Metric("profiler_overhead", ("share",), "The profiler's share of the profiled step.", _overhead),
        Metric(
            "gpu_time",
            ("time",),
            "Sum of GPU event times per step; streams that overlap count twice.",
            lambda report, _: (
                Reading({"time": exact(report.summary.gpu_ms_per_step)})
                if _stepped(report)
                else unknown(_NO_STEP)
            ),
        ),
        Metric("gpu_busy", ("share",), "Share of the step in which some GPU event runs.", _gpu_busy),
        Metric(
            "idle",
            _BOTH,
            "Time per step in which no GPU event runs; % of the step.",
            _per_step(lambda report: report.summary.idle_ms),
        ),
        Metric(
            "exposed_communication",
            _BOTH,
            "Time per step of communication beside no compute kernel; % of the step.",
            _per_step(
                lambda report: report.summary.exposed_communication_ms,
                lambda report: report.summary.communication_is_bound,
            ),
        ),
        Metric(
            "communication",
            _BOTH,
            "Time of communication kernels per step; % of the steps' GPU time.",
            _communication,
        ),
        Metric(
            "communication_bytes",
            ("bytes",),
            "Bytes per step that this rank hands to collectives.",
            _communication_bytes,
        ),
        Metric("gemm", ("share",), "GEMM and attention kernels, of the steps' GPU time.", _gemm),
        Metric("mfu", ("share",), "Model FLOPs utilization, of the dense datasheet peak.", _mfu),
        Metric("achieved", ("rate",), "GEMM and attention FLOPs of a step over its time.", _achieved),
        Metric(
            "shape_waste",
            _BOTH,
            "At stake in shapes, per step, with every finding's change made at once; "
            "% of the step. A prediction or a bound.",
            _waste,
        ),
        Metric(
            "saving",
            _BOTH,
            "The largest saving of this rule's findings per step; % of the step. "
            "A prediction or a bound; 0 where the rule passed.",
            _saving,
            choices=tuple(rule.id for rule in RULES),
            choice="RULE",
        ),
        Metric("findings", ("count",), "Findings.", _findings),
        Metric("findings_high", ("count",), "Findings of high severity.", _findings_high),
        Metric(
            "checks_not_run", ("count",), "Checks that could not run for lack of evidence.", _checks_not_run
        ),
        Metric(
            "component",
            _BOTH,
            "GPU time of this component per step, all phases; % of the steps' GPU time.",
            _component,
            choices=COMPONENTS,
            choice="COMPONENT",
        ),
        Metric(
            "unattributed", ("share",), "GPU time without a component, of the steps' GPU time.", _unattributed
        ),
        Metric(
            "unknown_shapes",
            ("share",),
            "GEMM and attention time whose sizes are not all known.",
            _unknown_shapes,
        ),
        Metric("warnings", ("count",), "Warnings of the reader: damaged places, a cut-off file.", _warnings),
    )
}
