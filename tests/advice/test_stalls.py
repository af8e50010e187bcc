"""A call that stalled: it stays in its row's time, and no advice promises it back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.advice_facts import A100, step_of
from tests.advice.advice_rows import gemm
from tests.said import Listener
from tests.trace.tools import read, small_trace
from tracelens.accounting.lost import split_row
from tracelens.analysis import analyze_trace
from tracelens.gemm.lost import PARTS
from tracelens.render.derivation import derive
from tracelens.results import GemmRow, Report
from tracelens.results.gemm import Beside
from tracelens.rules import advise
from tracelens.step.stalls import call_us_of, stalled, to_judge, untold_alone


def row_of(*, stall_ms: float) -> GemmRow:
    """256 x 1024 x 256 in fp32 on CUDA cores: three calls of 30 µs, of which one took ``stall_ms`` longer."""
    row = gemm(1, 256, 1024, 256, dtype="fp32", kernel="ampere_sgemm_128x64_tn",
               tensor_core="eligible_unused", time_us=30.0, calls=3.0)  # fmt: skip
    time_ms = row.time_ms + stall_ms
    return replace(
        row, time_ms=time_ms, time_ms_per_step=time_ms, median_us=30.0, slowest_us=30.0 + 1e3 * stall_ms,
        stalls=int(stall_ms > 0), stall_ms=stall_ms, stall_ms_per_step=stall_ms,
    )  # fmt: skip


def test_a_stall_is_in_no_prediction() -> None:
    saving = {}
    for stall_ms in (0.0, 2.4):
        facts = step_of([row_of(stall_ms=stall_ms)], gpu=A100, step_ms=3.0)
        (finding,) = (one for one in advise(facts).findings if one.rule == "TL111")
        saving[stall_ms] = finding.saving_ms.mid
        assert any("1 of 3 calls" in text for text in finding.caveats) == bool(stall_ms)
    assert saving[2.4] == pytest.approx(saving[0.0])


def test_the_time_and_the_share_of_a_judged_row_leave_out_the_same_stall() -> None:
    row = replace(row_of(stall_ms=2.4), frac=0.83)  # 2.49 of 3 ms
    judged = to_judge(row)
    assert judged.frac / judged.time_ms_per_step == pytest.approx(row.frac / row.time_ms_per_step)
    assert judged.frac == pytest.approx(0.03)


def test_what_stalled_calls_took_is_said(said: Listener) -> None:
    row = row_of(stall_ms=2.4)  # 30 µs and 2.4 ms
    said(stalled(row), stalled(replace(row, slowest_us=1_234_600.0)))
    two = replace(row, stalls=2, stall_ms=48.0, slowest_us=99.0)
    # 24 ms more than 30 µs
    assert stalled(replace(row, stalls=0)) == ""
    said(stalled(two), stalled(replace(two, median_us=1_234_600.0)))


@pytest.mark.parametrize("unknown", ["median_us", "slowest_us"])
def test_times_of_stalled_calls_that_are_not_known_are_not_said(unknown: str, said: Listener) -> None:
    row = replace(row_of(stall_ms=2.4), **{unknown: None})  # type: ignore[arg-type]
    said(stalled(row))


@pytest.mark.parametrize(
    ("ms", "excess_ms", "told"),
    [(2.0, None, True), (0.2, None, True), (0.199, None, False), (2.0, 0.01, False), (2.0, 0.0, False)],
)
def test_calls_beside_communication_are_said_where_much_is_not_known(
    ms: float, excess_ms: float | None, told: bool
) -> None:
    row = replace(row_of(stall_ms=0.0), time_ms=2.0)
    company = Beside(ms, 0.0, {"all_reduce": ms}, None, 2, 45.0, None, excess_ms, excess_ms)
    assert untold_alone(replace(row, beside=company)) == told
    assert not untold_alone(row)


def test_a_call_is_judged_without_what_it_waited_and_shared() -> None:
    row = replace(row_of(stall_ms=2.4), overlap_ms_per_step=0.03)
    assert call_us_of(row) == pytest.approx(20.0)  # (3 x 30 µs + 2.4 ms - 2.4 ms - 30 µs) / 3
    assert call_us_of(replace(row, stall_ms_per_step=9.0)) == 0.0
    assert call_us_of(replace(row, calls_per_step=0.0)) == 0.0


def test_a_stall_is_no_loss_of_the_shape() -> None:
    gpu = A100.info()
    plain, longer = (split_row(row_of(stall_ms=one), gpu) for one in (0.0, 2.4))
    assert longer.other == pytest.approx((plain.other or 0.0) + 800.0)
    assert all(getattr(longer, part) == getattr(plain, part) for part in PARTS if part != "other")
    assert "other" in longer.why and "other" not in plain.why


def stalled_trace(folder: Path, *, times: float) -> Report:
    """A generated step in which one of several calls of a GEMM takes ``times`` as long."""
    events = json.loads(small_trace(steps=3, jitter=0.02).text())
    kernels = [event for event in events["traceEvents"] if event.get("cat") == "kernel"]
    name = max(
        (one["name"] for one in kernels if "gemm" in one["name"] or "nvjet" in one["name"]),
        key=lambda text: sum(one["dur"] for one in kernels if one["name"] == text),
    )
    slow = next(one for one in kernels if one["name"] == name)
    slow["dur"] = slow["dur"] * times
    return analyze_trace(read(folder, json.dumps(events)), shape_search=False).report


def test_the_row_keeps_the_sum_and_says_its_median(tmp_path: Path) -> None:
    plain, slowed = (
        {row.id: row for row in stalled_trace(tmp_path, times=times).gemms} for times in (1.0, 50.0)
    )
    assert not any(row.stalls for row in plain.values())
    (row,) = (row for row in slowed.values() if row.stalls)
    same = next(one for one in plain.values() if (one.kernel, one.m, one.n, one.k, one.component, one.role)
                == (row.kernel, row.m, row.n, row.k, row.component, row.role))  # fmt: skip
    assert row.stalls == 1 and row.median_us == pytest.approx(same.median_us, rel=0.05)
    assert row.time_ms - row.stall_ms == pytest.approx(same.time_ms, rel=0.05)
    assert row.time_ms > 2 * same.time_ms
    assert call_us_of(row) == pytest.approx(call_us_of(same), rel=0.05)


def test_every_line_of_a_stalled_row_adds_up() -> None:
    terms = derive(row_of(stall_ms=2.4), A100.info())
    values = {term.name: term.value for term in terms}
    split = [values[name] or 0.0 for name in PARTS if name in values]
    assert values["sum"] == pytest.approx(values["time T"]) == pytest.approx(sum(split))
