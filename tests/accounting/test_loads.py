"""Experts with the same weights are one row of a table, however many tokens each got."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_rows import gemm
from tests.render import sample_report
from tracelens.accounting.loads import by_load
from tracelens.render.findings import row_names
from tracelens.render.gemm_table import SECTION
from tracelens.render.html import _common, render_html
from tracelens.render.limits import PageLimits, rows
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


def test_a_joined_row_is_known_no_better_than_the_least_known_of_its_rows() -> None:
    first, second = (replace(row, work_known="exact") for row in ROWS[1:3])
    bound = replace(
        second,
        work_known="at_most",
        work_why="masked",
        lost_ms=Lost(useful=0.01, other=0.01, wave=None, at_least=["alignment"]),
        tensor_core="eligible_unused",
        kernel_family="cutlass",
    )
    joined = by_load([first, bound])[0]
    assert (joined.work_known, joined.work_why) == ("at_most", "masked")
    assert joined.lost_ms.at_least == ["alignment"] and joined.lost_ms.wave is None
    assert joined.tensor_core is None and joined.kernel_family == ""


def test_the_intensity_of_a_joined_row_is_that_of_all_its_calls() -> None:
    rows = [replace(ROWS[1], flops=6e9, bytes=1e6), replace(ROWS[2], flops=2e9, bytes=3e6)]
    joined = by_load(rows)[0]
    assert joined.flops == pytest.approx(4e9) and joined.intensity == pytest.approx(8e9 / 4e6)


def test_a_joined_row_is_found_and_sorted_by_its_sizes() -> None:
    experts = [
        replace(row, flops=2.0 * row.m * row.n * row.k) for row in ROWS[1:3] if row.m and row.n and row.k
    ]
    page = render_html(replace(sample_report.full(), gemms=experts, findings=[]))
    assert f'data-q="forward 70–100x512x1024" data-v="{85 * 512 * 1024}"' in page


def test_a_finding_in_a_row_that_another_stands_for_is_linked_with_that_one() -> None:
    first = sample_report.full().findings[0]
    of_joined = [replace(first, gemms=["g6"]), replace(first, gemms=["g3", "g4"])]
    report = replace(sample_report.full(), gemms=ROWS, findings=of_joined)
    page = Page(report, rows(report, PageLimits(rows=1)), PageLimits(rows=1))
    assert [row.id for row in page.rows] == ["g2", "g5"]  # a row with a finding is shown
    assert row_names(of_joined[1], page.by_id) == {"g2": "moe.experts fwd"}
    assert _common(page)["finding_of"](first.rule, "g5") == 1
