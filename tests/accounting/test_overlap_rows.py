"""Overlap planted in generated traces, and found in real ones: the part, its sum, and advice without it."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from tests.kept import analyzed
from tests.planted import found, gpu_events, lengthen, reported
from tests.planted import planted as planted_at_once
from tests.synthetic import ModelSpec, Options, build
from tests.trace.tools import need_shared
from tracelens.comparison.compare import compare_reports
from tracelens.gemm.lost import PARTS
from tracelens.render.derivation import derive
from tracelens.results import GemmRow, Report
from tracelens.step.stalls import call_us_of

STEPS = 6


@cache
def plain_text() -> str:
    """Two layers whose GEMMs are large enough for tiles and waves to count; calls vary as in real traces."""
    model = ModelSpec(hidden=768, heads=12, layers=2, vocab=4096, sequence=1024, micro_batch=4)
    return build(model, Options(steps=STEPS, jitter=0.01, ranges=True)).text()


@cache
def planted(*, times: float, every: int = 2, collective: bool = True) -> tuple[Report, float]:
    """A generated run in which a reduce-scatter runs beside the GEMMs of every second (``every``-th) step.

    It makes those calls ``times`` as long, and all that comes later on the GPU is later by as much;
    without the ``collective`` that is what a lower clock does. Returns the report and the ms that were added.
    """
    trace = json.loads(plain_text())
    gemms = [
        one for one in gpu_events(trace) if one["cat"] == "kernel" and re.search("gemm|nvjet", one["name"])
    ]
    alike: dict[tuple[str, str], list[Any]] = {}
    for one in gemms:
        alike.setdefault((one["name"], str(one["args"]["grid"])), []).append(one)
    slow = {
        id(one)
        for calls in alike.values()
        for at, one in enumerate(calls)
        if every and (at * STEPS // len(calls)) % every == every - 1
    }
    added = sum(one["dur"] for one in gemms if id(one) in slow) * (times - 1)
    lengthen(trace, lambda one: times if id(one) in slow else 1.0, lambda one: collective and id(one) in slow)
    return reported(trace), added / 1e3


def _adds_up(report: Report) -> bool:
    for row in report.gemms:
        if row.lost_ms.useful is not None:
            total = sum(getattr(row.lost_ms, part) or 0.0 for part in PARTS)
            assert total == pytest.approx(row.time_ms_per_step, rel=1e-9, abs=1e-12)
    time = report.gemm_time
    assert time is not None
    assert sum(getattr(time, part) for part in PARTS) + time.not_judged == pytest.approx(time.total)
    return True


@pytest.mark.parametrize("times", [1.3, 2.4])
def test_planted_overlap_is_found_again(times: float) -> None:
    report, added_ms = planted(times=times)
    rows = [row for row in report.gemms if row.beside is not None]
    assert rows and all(row.beside and row.beside.excess_ms is not None for row in rows)
    found = sum(row.beside.excess_ms or 0.0 for row in rows if row.beside)
    assert found == pytest.approx(added_ms, rel=0.05)
    assert _adds_up(report)
    assert report.gemm_time is not None and report.gemm_time.overlap > 0
    assert all(row.beside.ctas == 24 and set(row.beside.collectives) == {"reduce_scatter"}
               for row in rows if row.beside)  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])  # padding, tiles, uneven ranks
def test_overlap_clock_and_expert_loss_at_once(seed: int) -> None:
    """``python -m benchmarks.planted`` does it over 24 seeds, with more layers."""
    report, truth = planted_at_once(seed, layers=2)
    assert found(report).parts() == pytest.approx(truth.parts(), rel=0.05)
    assert _adds_up(report)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_the_three_none_is_invented(seed: int) -> None:
    report, _ = planted_at_once(seed, clean=True, layers=2)
    assert report.gemm_time is not None and report.clock is not None
    assert report.gemm_time.overlap <= 0.001 * report.gemm_time.total
    assert report.gemm_time.clock == 0.0 and not any(step.slow for step in report.clock.steps)
    assert not {"TL118", "TL121", "TL123", "TL126"} & {one.rule for one in report.findings}


def test_advice_and_losses_of_shape_are_those_without_it() -> None:
    plain, slowed = (planted(times=2.0, every=every)[0] for every in (0, 2))

    def of(report: Report) -> dict[Any, GemmRow]:
        keys = {
            (row.component, row.phase, row.role, row.m, row.n, row.k, row.kernel): row for row in report.gemms
        }
        assert len(keys) == len(report.gemms)
        return keys

    quiet, busy = of(plain), of(slowed)
    assert quiet.keys() == busy.keys()
    compared = 0
    for key, row in quiet.items():
        if row.shape_known == "exact" and row.kind == "gemm":
            assert call_us_of(busy[key]) == pytest.approx(call_us_of(row), rel=0.05)
            for part in ("alignment", "wave", "tile"):
                was, is_now = getattr(row.lost_ms, part), getattr(busy[key].lost_ms, part)
                assert (is_now is None) == (was is None)
                assert was is None or is_now == pytest.approx(was, rel=0.05, abs=0.02 * row.time_ms_per_step)
                compared += bool(was)
    assert compared >= 5


@pytest.mark.parametrize(("times", "every"), [(1.0, 2), (1.0, 0)])
def test_none_is_invented(times: float, every: int) -> None:
    """A collective beside GEMMs that it does not slow, and none at all."""
    report, _ = planted(times=times, every=every)
    assert report.gemm_time is not None and _adds_up(report)
    assert report.gemm_time.overlap <= 0.005 * report.gemm_time.total
    assert any(row.beside for row in report.gemms) == bool(every)


@pytest.mark.parametrize("times", [1.06, 1.25])
def test_a_planted_clock_is_found_again(times: float) -> None:
    report, added_ms = planted(times=times, collective=False)
    assert report.clock is not None and report.gemm_time is not None and _adds_up(report)
    assert [one.slow for one in report.clock.steps] == [False, True] * (STEPS // 2)
    assert report.clock.lost_ms_per_step * len(report.steps) == pytest.approx(added_ms, rel=0.05)
    assert report.gemm_time.overlap == 0.0
    assert report.gemm_time.clock <= report.clock.lost_ms_per_step * (1 + 1e-9)  # without rows not judged
    (finding,) = (one for one in report.findings if one.rule == "TL121")
    assert finding.saving_ms.mid is None
    least, most = report.clock.least_ms_per_step, report.clock.most_ms_per_step
    assert least is not None and least < report.clock.lost_ms_per_step < (finding.saving_ms.high or 0)
    assert finding.saving_ms.high == pytest.approx(most)
    row = max(report.gemms, key=lambda row: row.lost_ms.clock or 0.0)
    terms = {term.name: term.value for term in derive(row, report.gpu)}
    assert terms["clock"] and terms["sum"] == pytest.approx(row.time_ms * 1e3 / row.calls)


@pytest.mark.parametrize(("times", "collective"), [(2.0, True), (1.25, False)])
def test_between_traces_a_clock_is_told_from_a_collective(times: float, collective: bool) -> None:
    before, _ = planted(times=2.0, every=0)
    after, added_ms = planted(times=times, collective=collective)
    causes: dict[str, float] = {one.code: one.diff_ms for one in compare_reports(before, after).causes}
    right, wrong = ("gemms_beside", "gemms_alike") if collective else ("gemms_alike", "gemms_beside")
    assert causes[right] == pytest.approx(added_ms / STEPS, rel=0.05)
    assert abs(causes.get(wrong, 0.0)) <= 0.01 * added_ms / STEPS


def test_a_collective_beside_whole_steps_is_no_clock() -> None:
    report, _ = planted(times=1.3)
    assert report.gemm_time is not None and report.gemm_time.clock == 0.0 < report.gemm_time.overlap
    assert not any(one.rule == "TL121" for one in report.findings)


def test_a_row_that_always_runs_beside_is_not_judged() -> None:
    report, _ = planted(times=1.5, every=1)
    rows = [row for row in report.gemms if row.beside is not None and row.lost_ms.useful is not None]
    assert rows and _adds_up(report)
    for row in rows:
        assert row.beside is not None and row.beside.excess_ms is None and row.overlap_ms_per_step == 0.0
        assert row.lost_ms.overlap is None and row.lost_ms.why["overlap"]
        assert all(getattr(row.lost_ms, part) is None for part in ("alignment", "wave", "tile"))


@pytest.mark.parametrize("name", ["d1_", "d1b_"])
def test_a_shape_beside_a_reduce_scatter_and_alone(name: str) -> None:
    """768 x 768 x 768 of Muon: 18.5 µs alone, 45 µs beside 24 CTAs of NCCL, read off the file by hand."""
    report = analyzed(need_shared(name)).report
    row = max(
        (
            row
            for row in report.gemms
            if (row.m, row.n, row.k) == (768, 768, 768) and row.component == "optimizer"
        ),
        key=lambda row: row.time_ms,
    )
    found = row.beside
    assert found is not None and found.alone_us is not None and found.excess_ms is not None
    assert found.alone_us == pytest.approx(18.4, abs=0.2) and found.disturbed_us > 2 * found.alone_us
    assert found.ctas == 24
    # what is taken off leaves calls as long as those alone
    left_us = (row.time_ms - found.excess_ms) * 1e3 / row.calls
    assert left_us == pytest.approx(found.alone_us, rel=0.05)
    assert _adds_up(report)
    terms = {term.name: term.value for term in derive(row, report.gpu)}
    assert found.excess_ms_per_step == row.overlap_ms_per_step == pytest.approx(row.lost_ms.overlap)
    share = row.time_ms * 1e3 / row.calls / row.time_ms_per_step
    assert terms["overlap"] == pytest.approx(row.overlap_ms_per_step * share)
    assert terms["sum"] == pytest.approx(row.time_ms * 1e3 / row.calls)


def test_ranks_of_a_job_where_a_shape_never_runs_alone() -> None:
    report = analyzed(need_shared("rank3_trace")).report
    rows = [row for row in report.gemms if row.beside is not None]
    assert _adds_up(report) and rows
    always = [(row, row.beside) for row in rows if row.beside and row.beside.disturbed_calls == row.calls]
    assert any((row.m, row.n, row.k) == (768, 3072, 768) for row, _ in always)
    assert all(found.excess_ms is None for _, found in always if found.alone_us is None)
