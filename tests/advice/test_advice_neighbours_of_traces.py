"""TL104 and TL105 on whole traces, against the trace of the changed model.

The generator's times come from a model of its own (``tests/synthetic/gpu.py``), not from the predictor.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import analyze
from tracelens.results import Finding, Report

LLAMA = ModelSpec(family="llama", hidden=4096, heads=32, ffn=10922, vocab=32000, layers=2, sequence=1024,
                  micro_batch=2)  # fmt: skip
SMALL = ModelSpec(hidden=768, heads=12, vocab=50304, layers=4, sequence=1024, micro_batch=1)


def report_of(spec: ModelSpec, folder: Path) -> Report:
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(build(spec, Options(steps=2)).text().encode(), 1))
    return analyze(path, shape_search=False).report


def finding_of(report: Report, rule: str) -> Finding:
    return next(finding for finding in report.findings if finding.rule == rule)


def rows_ms(report: Report) -> float:
    return sum(row.time_ms_per_step for row in report.gemms)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_of(LLAMA, tmp_path_factory.mktemp("llama"))


def test_a_width_of_8h_thirds_saves_what_the_changed_trace_takes_less(llama: Report, tmp_path: Path) -> None:
    finding = finding_of(llama, "TL104")
    assert finding.change == {"ffn": [10922, 10944]}
    then = report_of(replace(LLAMA, ffn=10944), tmp_path)
    saved = (llama.summary.step_ms.median or 0.0) - (then.summary.step_ms.median or 0.0)
    low, high = finding.saving_ms.low, finding.saving_ms.high
    assert low is not None and high is not None and 0 < low < saved < high
    assert [one.rule for one in then.findings if "ffn" in one.change] == []


def test_one_rule_judges_one_parameter(llama: Report, said: Listener) -> None:
    changed = [name for finding in llama.findings for name in finding.change]
    assert len(changed) == len(set(changed))
    aligned = next(check for check in llama.checks if check.rule == "TL102")
    assert aligned.state == "passed" and "TL104" in aligned.why
    said(aligned.why)


def test_a_larger_micro_batch_saves_per_token_what_its_trace_takes_less(tmp_path: Path) -> None:
    now = report_of(SMALL, tmp_path)
    finding = finding_of(now, "TL105")
    assert finding.change == {"micro_batch": [1, 2]}
    then = report_of(replace(SMALL, micro_batch=2), tmp_path)
    saved = rows_ms(now) - rows_ms(then) / 2
    low, high = finding.saving_ms.low, finding.saving_ms.high
    assert low is not None and high is not None and low <= saved <= high
