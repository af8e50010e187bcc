"""Collectives that are far slower than published: links or waiting, as far as one trace or a job tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.job.simulated import Simulation, data_parallel
from tests.kept import analyzed
from tests.said import Listener
from tests.truth.outputs import TRACES
from tracelens.job.run import analyze_job
from tracelens.render.communication import slow_calls, slow_sends
from tracelens.render.job_words import caveats
from tracelens.results import Report
from tracelens.results.job import Job


def d11() -> Report:
    found = sorted(TRACES.glob("d11_*"))
    if not found:
        pytest.skip("real traces are not in the repository")
    return analyzed(found[0]).report


def test_a_fast_call_among_slow_ones_tells_waiting_from_links(said: Listener) -> None:
    report = d11()
    (text,) = slow_calls(report)
    # 227 ms * (1 - 1.15 * 41.8 / 201.8)
    said(text)
    slow = [replace(row, best_bus_gbps=row.bus_gbps) for row in report.communication]
    (text,) = slow_calls(replace(report, communication=slow))
    said(text)


@pytest.mark.parametrize(
    "other", [{"group_size": 16}, {"bytes_per_call": 1e3}, {"time_ms": 60.0}, {"exposed_ms_per_step": 5.0}]
)
def test_nothing_is_said_without_a_published_time_or_where_it_is_small(other: dict[str, float]) -> None:
    report = d11()
    rows = [replace(row, **other) for row in report.communication]  # type: ignore[arg-type]
    assert slow_calls(replace(report, communication=rows)) == []


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder: Path = tmp_path_factory.mktemp("job")
    Simulation(data_parallel(2, steps=2)).write(folder)
    return analyze_job([folder], workers=1)


def test_a_job_that_sends_slowly_says_against_what(job: Job, said: Listener) -> None:
    row = job.collectives[0]
    assert row.one_node_us is not None and row.send_us is not None
    slow = msgspec.structs.replace(row, send_us=3 * row.one_node_us)
    (text,) = slow_sends(msgspec.structs.replace(job, collectives=[slow]))
    said(text)
    many = msgspec.structs.replace(slow, groups=125, calls_per_step=125 * row.calls_per_step)
    assert slow_sends(msgspec.structs.replace(job, collectives=[many])) == [text]  # of one rank, not of all
    usual = msgspec.structs.replace(row, send_us=1.2 * row.one_node_us)
    assert slow_sends(msgspec.structs.replace(job, collectives=[usual])) == []


def test_what_looks_like_sending_can_be_waiting_for_a_rank_without_a_trace(job: Job, said: Listener) -> None:
    row = job.collectives[0]
    slow = msgspec.structs.replace(row, send_us=3 * (row.one_node_us or 0.0))
    partly = msgspec.structs.replace(job, collectives=[slow], missing=[1])
    (told,) = slow_sends(partly)
    said(told, caveats(partly))
