"""Whether a gate passed: what is known decides, and what is not known never passes unseen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tracelens.gates.expression import Gate, parse_gate
from tracelens.gates.metrics import Metric, Range, Remark, remark
from tracelens.gates.of_comparison import COMPARISON_METRICS, without_drift
from tracelens.gates.of_job import JOB_METRICS
from tracelens.gates.of_report import REPORT_METRICS
from tracelens.results import Report
from tracelens.results.comparison import Comparison
from tracelens.results.folders import FolderComparison
from tracelens.results.job import Job

#: ``open``: the range of the figure reaches beyond the limit, but it is not known to lie there.
State = Literal["passed", "failed", "open", "unknown"]
STATES: tuple[State, ...] = get_args(State)
_WHOSE: dict[str, tuple[str, Mapping[str, Metric[Any]]]] = {
    "a whole job": ("tracelens analyze FOLDER, or merge", JOB_METRICS),
    "a comparison": ("tracelens compare", COMPARISON_METRICS),
    "one trace": ("tracelens analyze TRACE", REPORT_METRICS),
}
_PART = remark("partial")


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a gate."""

    gate: Gate
    state: State
    found: Range | None  # the figure; None where it is unknown
    remarks: Sequence[Remark]  # why it failed, what is open, why it is unknown


def judge_report(report: Report, gates: Iterable[str | Gate]) -> list[Judged]:
    """Judge gates on a report. Raises UsageError where one cannot be read."""
    notes = [_PART] if report.trace.partial else []
    return [_judge(report, as_gate(one, REPORT_METRICS), notes) for one in gates]


def judge_comparison(
    result: Comparison | FolderComparison, gates: Iterable[str | Gate], *, allow_clock_drift: bool = False
) -> list[Judged]:
    """Judge gates on a comparison; ``allow_clock_drift``: what all GEMMs alike changed by does not count.

    Raises UsageError where one cannot be read.
    """
    notes = [_PART] if result.before.partial or result.after.partial else []
    counted = without_drift(result) if allow_clock_drift else result
    found = []
    for gate in (as_gate(one, COMPARISON_METRICS) for one in gates):
        left_out = (
            gate.metric.read(result, gate.choice).ranges != gate.metric.read(counted, gate.choice).ranges
        )
        found.append(_judge(counted, gate, [*([remark("drift_left_out")] if left_out else []), *notes]))
    return found


def judge_job(job: Job, gates: Iterable[str | Gate]) -> list[Judged]:
    """Judge gates on a whole job. Raises UsageError where one cannot be read."""
    notes = [_PART] if any(row.partial for row in job.ranks) else []
    notes += [remark("ranks_missing", many=len(job.missing))] if job.missing else []
    return [_judge(job, as_gate(one, JOB_METRICS), notes) for one in gates]


def as_gate(one: str | Gate, metrics: Mapping[str, Metric[Any]]) -> Gate:
    """A gate on figures of ``metrics``. Raises UsageError where it cannot be read."""
    if isinstance(one, Gate):
        return one
    here = next(whose for whose, (_, known) in _WHOSE.items() if known is metrics)
    elsewhere = {
        name: f"a figure of {whose} ({command}), and this is {here}"
        for whose, (command, known) in _WHOSE.items()
        for name in known
    }
    return parse_gate(one, metrics, elsewhere=elsewhere)


def _judge(given: Any, gate: Gate, notes: Sequence[Remark]) -> Judged:
    reading = gate.metric.read(given, gate.choice)
    found = reading.ranges.get(gate.form)
    if found is None:
        return Judged(gate, "unknown", None, [reading.why or remark("not_in_this_unit")])
    state, why = _state(gate, found)
    remarks = [*([why] if why else []), *reading.notes, *notes]
    return Judged(gate, state, None if state == "unknown" else found, remarks)


def _state(gate: Gate, found: Range) -> tuple[State, Remark | None]:
    if gate.end:
        value = {"low": found.low, "mid": found.mid, "high": found.high}[gate.end]
        if value is None or math.isinf(value):
            return "unknown", remark("end_unknown", end="high" if value else "mid", least=found.least)
        return ("failed" if gate.holds(value) else "passed"), remark("judged_by", end=gate.end)
    ends = (gate.holds(found.low), gate.holds(found.high))
    failed = gate.holds(found.mid) if found.measured and found.mid is not None else all(ends)
    if failed:
        whole = found.low == found.high or found.measured
        return "failed", None if whole else remark("beyond")
    if any(ends) and found.least:
        return "unknown", remark("recognised_only", found=found)
    return ("open", remark("reaches_beyond")) if any(ends) else ("passed", None)
