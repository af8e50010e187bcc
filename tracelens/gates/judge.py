"""Whether a gate passed: what is known decides, and what is not known never passes unseen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tracelens.gates.expression import Gate, parse_gate
from tracelens.gates.metrics import Metric, Range, say, say_range
from tracelens.gates.of_comparison import COMPARISON_METRICS, without_drift
from tracelens.gates.of_job import JOB_METRICS
from tracelens.gates.of_report import REPORT_METRICS
from tracelens.results import Report
from tracelens.results.comparison import Comparison
from tracelens.results.folders import FolderComparison
from tracelens.results.job import Job

#: ``open``: the range of the figure reaches beyond the limit, but it is not known to lie there.
STATES = ("passed", "failed", "open", "unknown")
_COMMANDS: dict[str, Mapping[str, Metric[Any]]] = {
    "tracelens merge, or analyze of several ranks,": JOB_METRICS,
    "tracelens compare": COMPARISON_METRICS,
    "tracelens analyze": REPORT_METRICS,
}
_PART = "part of the trace could not be read"


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a gate."""

    gate: str  # "shape_waste>5%"
    state: str  # STATES
    value: str  # the figure as it is written; "" where it is unknown
    why: str  # one phrase: why it failed, what is open, why it is unknown
    meaning: str  # of the figure


def judge_report(report: Report, gates: Iterable[str | Gate]) -> list[Judged]:
    """Judge gates on a report. Raises UsageError where one cannot be read."""
    note = _PART if report.trace.partial else ""
    return [_judge(report, _gate(one, REPORT_METRICS), note) for one in gates]


def judge_comparison(
    result: Comparison | FolderComparison, gates: Iterable[str | Gate], *, allow_clock_drift: bool = False
) -> list[Judged]:
    """Judge gates on a comparison; ``allow_clock_drift``: what all GEMMs alike changed by does not count.

    Raises UsageError where one cannot be read.
    """
    note = _PART if result.before.partial or result.after.partial else ""
    counted = without_drift(result) if allow_clock_drift else result
    found = []
    for gate in (_gate(one, COMPARISON_METRICS) for one in gates):
        left_out = (
            gate.metric.read(result, gate.choice).ranges != gate.metric.read(counted, gate.choice).ranges
        )
        said = "without what all GEMMs alike changed by (--allow-clock-drift)" if left_out else ""
        found.append(_judge(counted, gate, "; ".join(filter(None, (said, note)))))
    return found


def judge_job(job: Job, gates: Iterable[str | Gate]) -> list[Judged]:
    """Judge gates on a whole job. Raises UsageError where one cannot be read."""
    notes = [_PART] if any(row.partial for row in job.ranks) else []
    notes += [f"{len(job.missing)} ranks have no trace here"] if job.missing else []
    return [_judge(job, _gate(one, JOB_METRICS), "; ".join(notes)) for one in gates]


def parse_job_gate(text: str) -> Gate:
    return _gate(text, JOB_METRICS)


def parse_report_gate(text: str) -> Gate:
    return _gate(text, REPORT_METRICS)


def parse_comparison_gate(text: str) -> Gate:
    return _gate(text, COMPARISON_METRICS)


def _gate(one: str | Gate, metrics: Mapping[str, Metric[Any]]) -> Gate:
    if isinstance(one, Gate):
        return one
    elsewhere = {
        name: command for command, known in _COMMANDS.items() if known is not metrics for name in known
    }
    return parse_gate(one, metrics, elsewhere=elsewhere)


def _judge(given: Any, gate: Gate, note: str) -> Judged:
    reading = gate.metric.read(given, gate.choice)
    found = reading.ranges.get(gate.form)
    if found is None:
        why = reading.why or "not known in this unit"
        return Judged(gate.text, "unknown", "", why, gate.metric.meaning)
    state, why = _state(gate, found)
    value = say_range(found, gate.form, signed=gate.metric.signed)
    if state == "unknown":
        value = ""
    why = "; ".join(filter(None, (why, reading.note, note)))
    return Judged(gate.text, state, value, why, gate.metric.meaning)


def _state(gate: Gate, found: Range) -> tuple[str, str]:
    if gate.end:
        value = {"low": found.low, "mid": found.mid, "high": found.high}[gate.end]
        if value is None or math.isinf(value):
            ends_known = ".low" if found.least else ".low or .high"
            return "unknown", f"a bound has no {'high end' if value else 'middle'}: use {ends_known}"
        end = {"low": "low end", "mid": "middle", "high": "high end"}[gate.end]
        return ("failed" if gate.holds(value) else "passed"), f"judged by its {end}"
    ends = (gate.holds(found.low), gate.holds(found.high))
    failed = gate.holds(found.mid) if found.measured and found.mid is not None else all(ends)
    if failed:
        whole = "" if found.low == found.high or found.measured else "its whole range is beyond the limit"
        return "failed", whole
    if any(ends) and found.least:
        return "unknown", f"{say_range(found, gate.form)} was recognised, which does not decide it"
    if any(ends):
        limit = say(gate.limit, gate.form, signed=gate.metric.signed)
        return "open", f"its range reaches beyond {limit}, but it is not known to lie there"
    return "passed", ""
