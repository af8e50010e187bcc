"""Gates: conditions on named figures of a report or a comparison under which a build fails.

``judge_report(report, ["shape_waste>5%"])`` and ``judge_comparison(comparison, ["regression>3%"])`` say of
each gate whether it passed. Knows nothing of how that is shown.
"""

from tracelens.gates.expression import Gate, parse_gate
from tracelens.gates.judge import Judged, judge_comparison, judge_job, judge_report
from tracelens.gates.metrics import Metric, Range, Remark
from tracelens.gates.of_comparison import COMPARISON_METRICS
from tracelens.gates.of_job import JOB_METRICS
from tracelens.gates.of_report import REPORT_METRICS

__all__ = [
    "COMPARISON_METRICS", "JOB_METRICS", "REPORT_METRICS", "Gate", "Judged", "Metric", "Range", "Remark",
    "judge_comparison", "judge_job", "judge_report", "parse_gate",
]  # fmt: skip
