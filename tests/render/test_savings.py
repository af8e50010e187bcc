"""What findings save together is no less than any one of them saves at most."""

from __future__ import annotations

from dataclasses import replace

from tests.render import sample_report
from tracelens.render.facts import overlap_words
from tracelens.results import Estimate


def test_findings_without_a_prediction_count_in_what_all_save_at_most() -> None:
    report = sample_report.full()
    bounds = [Estimate(0.0, 4.0, 7.0, "model"), Estimate(0.0, None, 11.0, "heuristic")]
    findings = [
        replace(finding, saving_ms=saving, saving_of="gpu_work")
        for finding, saving in zip(report.findings, bounds, strict=False)
    ]
    summary = replace(report.summary, shape_waste_ms=bounds[0], shape_open_ms=9.0, saving_of="gpu_work")
    assert "0 to 16.0 ms" in overlap_words(replace(report, findings=findings, summary=summary))
