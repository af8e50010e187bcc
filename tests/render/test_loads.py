"""Experts with the same weights are one row of a table, however many tokens each got."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_rows import gemm
from tests.render import sample_report
from tracelens.render.gemm_table import SECTION
from tracelens.render.limits import PageLimits, rows
from tracelens.render.loads import by_load
from tracelens.render.section import Page
from tracelens.results import GemmRow
from tracelens.results.gemm import Lost


def _experts(number: int, tokens: int, role: str, us: float, peak: float) -> GemmRow:
    sizes = (512, 1024, tokens) if role == "wgrad" else (tokens, 512, 1024)
    row = gemm(number, *sizes, component="moe.experts", role=role, time_us=us, layout="TN")
    return replace(row, peak_frac=peak, lost_ms=Lost(useful=us / 2e3, other=us / 2e3), findings=["TL109"])


ROWS = [
    gemm(1, 4096, 1024, 1024, time_us=50.0),
    _experts(2, 100, "forward", 30.0, 0.5),
    _experts(3, 70, "forward", 20.0, 0.4),
    _experts(4, 130, "forward", 10.0, 0.2),
    _experts(5, 100, "wgrad", 9.0, 0.5),
    _experts(6, 70, "wgrad", 8.0, 0.5),
    gemm(7, 128, 512, 1024, component="mlp.up", time_us=5.0),
    gemm(8, 64, 512, 1024, component="mlp.up", time_us=4.0),
]


def test_loads_of_experts_are_one_row_whose_time_is_their_sum() -> None:
    found = by_load(ROWS)
    assert [row.id for row in found] == ["g2", "g1", "g5", "g7", "g8"]
    forward, wgrad = found[0], found[2]
    assert forward.shape_note == "70–130 × 512 × 1024" and wgrad.shape_note == "512 × 1024 × 70–100"
    assert (forward.m, forward.n, forward.k) == (None, None, None)
    assert forward.time_ms_per_step == pytest.approx(0.060) and forward.calls_per_step == 3.0
    assert forward.peak_frac == pytest.approx((30 * 0.5 + 20 * 0.4 + 10 * 0.2) / 60)
    assert forward.lost_ms.useful == pytest.approx(0.030) and forward.findings == ["TL109"]
    assert found[1] is ROWS[0] and found[3] is ROWS[6]  # no others change


def test_the_table_of_a_page_has_all_time_in_its_rows() -> None:
    report = replace(sample_report.full(), gemms=ROWS, findings=[])
    page = Page(report, rows(report, PageLimits(rows=2)), PageLimits(rows=2))
    content = SECTION.content(page)
    assert content is not None and content["classes"] == 5
    whole = sum(row.frac for row in report.gemms)
    assert content["rest_frac"] + sum(row.frac for row in page.rows) == pytest.approx(whole)
    assert "g2" not in content["derived"]  # of one call there is none
