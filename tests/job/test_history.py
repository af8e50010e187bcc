"""Runs of a job over time: what moved in the last one is named, and noise is not."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, permutations
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.job.plants import small
from tests.job.simulated import Simulation
from tests.said import Listener
from tracelens.cli import cli
from tracelens.errors import InputError, UsageError
from tracelens.job.history import figures, half_interval, history, probability, record
from tracelens.job.run import analyze_job
from tracelens.numbers import DASH
from tracelens.render.history import render_history
from tracelens.render.job import render_job
from tracelens.render.job_cells import rank_cells
from tracelens.results import Known
from tracelens.results.job import Job

START = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("traces")
    Simulation(small()).write(folder)
    return analyze_job([folder], workers=1)


def scaled(job: Job, *, idle_ms: float = 0.0, step: float = 1.0) -> Job:
    """The job with more idle time on every rank, or all of its step longer."""
    rows = [
        msgspec.structs.replace(
            row, parts=msgspec.structs.replace(row.parts, idle_ms=row.parts.idle_ms + idle_ms)
        )
        for row in job.ranks
    ]
    return msgspec.structs.replace(job, ranks=rows, step_ms=job.step_ms * step + idle_ms)


def stored(store: Path, jobs: list[Job]) -> None:
    for day, one in enumerate(jobs):
        record(one, store, run=f"day{day}", when=START + timedelta(days=day))


def test_a_regression_is_named_with_its_part_and_noise_is_not(job: Job, tmp_path: Path) -> None:
    noise = [scaled(job, step=factor) for factor in (1.0, 1.03, 0.98, 1.01)]
    stored(tmp_path / "calm", [*noise, scaled(job, step=1.04)])
    calm = history(tmp_path / "calm")
    assert ([one.run for one in calm.runs], calm.earlier) == ([f"day{day}" for day in range(5)], 4)
    assert calm.moved == []
    more = 0.1 * job.step_ms
    stored(tmp_path / "slow", [*noise, scaled(job, idle_ms=more)])
    (first, second) = history(tmp_path / "slow").moved
    assert {first.figure, second.figure} == {"step", "idle"}
    idle = first if first.figure == "idle" else second
    assert idle.ms - idle.usual_ms == pytest.approx(more)
    assert idle.noise_ms == pytest.approx(0.0, abs=1e-9) and idle.runs == 4


def test_a_slow_drift_is_named_with_its_slope_and_noise_is_not(job: Job, tmp_path: Path) -> None:
    each = 0.01 * job.step_ms
    stored(tmp_path, [scaled(job, idle_ms=at * each, step=1 + 0.001 * (at % 2)) for at in range(7)])
    step, idle = sorted(history(tmp_path).trends, key=lambda one: one.figure, reverse=True)
    assert (step.figure, idle.figure, idle.runs) == ("step", "idle", 7)
    assert idle.ms_per_run == pytest.approx(each) == pytest.approx(step.ms_per_run, rel=0.2)
    shown = CliRunner().invoke(cli, ["history", str(tmp_path)])
    assert "idle rises over 7 runs" in shown.output
    stored(
        tmp_path / "calm", [scaled(job, step=factor) for factor in (1.0, 1.03, 0.98, 1.01, 1.04, 0.99, 1.02)]
    )
    assert history(tmp_path / "calm").trends == []


def test_few_runs_that_lie_close_by_chance_make_no_noise_a_move(job: Job, tmp_path: Path) -> None:
    stored(tmp_path / "step", [scaled(job, step=factor) for factor in (1.0, 1.05, 1.001, 1.03)])
    assert history(tmp_path / "step").moved == []
    shares = (0.0, 0.05, 0.001, 0.03)  # of a step that stays as long
    stored(tmp_path / "idle", [scaled(job, idle_ms=job.step_ms * one, step=1 - one) for one in shares])
    assert history(tmp_path / "idle").moved == []


@pytest.mark.parametrize(("runs", "sure"), [(3, 0.95), (3, 0.99), (4, 0.95), (9, 0.95), (10, 0.99)])
def test_the_next_of_runs_that_vary_normally_lies_beyond_as_often_as_is_said(runs: int, sure: float) -> None:
    drawn = np.random.default_rng(runs).normal(size=(20_000, runs + 1))
    off = np.abs(drawn[:, -1] - drawn[:, :-1].mean(axis=1))
    beyond = off > half_interval(1.0, runs, sure) * drawn[:, :-1].std(axis=1, ddof=1)
    assert beyond.mean() == pytest.approx(1 - sure, rel=0.15)


def test_the_order_of_runs_is_judged_by_every_order_that_there_is() -> None:
    """Against the definition: of all orders, those at least as steep."""
    values = (1, 2, 4, 3, 5, 6)

    def score(some: tuple[int, ...]) -> int:
        return sum((b > a) - (b < a) for a, b in combinations(some, 2))

    every = [abs(score(order)) for order in permutations(values)]
    assert probability(6, score(values)) == sum(one >= score(values) for one in every) / len(every)


def test_other_jobs_and_too_few_runs_say_nothing(job: Job, tmp_path: Path) -> None:
    fewer = msgspec.structs.replace(job, ranks=job.ranks[:3])
    stored(tmp_path, [fewer, fewer, fewer, job, job, scaled(job, idle_ms=job.step_ms)])
    found = history(tmp_path)
    assert (len(found.runs), found.earlier, found.moved) == (6, 2, [])


def test_another_model_on_the_same_gpus_is_another_job(job: Job, tmp_path: Path) -> None:
    assert job.model is not None
    known = msgspec.structs.replace(
        job, model=replace(job.model, hidden=Known(1280, ""), layers=Known(12, ""))
    )
    wider = msgspec.structs.replace(
        job, model=replace(job.model, hidden=Known(2560, ""), layers=Known(12, ""))
    )
    words = msgspec.structs.replace(known, model=replace(known.model or job.model, vocab=Known(50304, "")))
    stored(tmp_path, [known, words, known, wider])
    assert history(tmp_path).earlier == 0
    stored(tmp_path / "same", [known, wider, known, words])  # a change of the shape is the job's
    assert history(tmp_path / "same").earlier == 2


@pytest.mark.parametrize("other", [{"generated": True}, {"steps_marked": False}])
def test_what_is_no_measured_step_is_called_so_and_not_compared_with_one(
    job: Job, tmp_path: Path, other: dict[str, bool], said: Listener
) -> None:
    measured = msgspec.structs.replace(job, generated=False)
    stored(tmp_path, [measured] * 3 + [msgspec.structs.replace(measured, **other)])
    assert history(tmp_path).earlier == 0
    said(shown(tmp_path, width=80))


def shown(store: Path, *, width: int) -> str:
    out = io.StringIO()
    render_history(history(store), console=Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [40, 60])
def test_no_figure_and_no_name_is_cut_where_the_terminal_is_narrow(
    job: Job, tmp_path: Path, width: int
) -> None:
    name = "nightly-" + "x" * 60
    record(scaled(job, step=1234.567), tmp_path, run=name, when=START)
    out = io.StringIO()
    render_job(job, console=Console(file=out, width=width))
    for text in (shown(tmp_path, width=width), out.getvalue()):
        assert "…" not in text and max(map(len, text.splitlines())) <= width
    assert shown(tmp_path, width=width).count("x") > 60
    for row in job.ranks:
        for cell in rank_cells(job, row):
            assert re.search(rf"(?<![\d.]){re.escape(cell)}(?![\d.])", out.getvalue())


def test_what_one_rank_waits_is_no_zero(tmp_path: Path) -> None:
    files = Simulation(small()).write(tmp_path)
    alone, job = analyze_job(files[:1], workers=1), analyze_job(files, workers=1)
    assert not alone.waits_told and not {"waiting", "late"} & {*figures(alone)}
    assert figures(job)["communication"] > figures(job)["waiting"] > 0
    assert figures(alone)["communication"] == alone.ranks[0].parts.sending_ms > 0


def test_a_file_in_place_of_the_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text("{}")
    asked = ["history", str(tmp_path / "rank0.json"), str(tmp_path / "nowhere.json")]
    refused = CliRunner().invoke(cli, asked, standalone_mode=False)
    assert isinstance(refused.exception, UsageError)


def test_a_run_is_kept_once_and_under_a_name_for_a_file(job: Job, tmp_path: Path, said: Listener) -> None:
    record(job, tmp_path, run="a", when=START)
    for name in ("a", "../b", "", "x/y"):
        with pytest.raises(UsageError):
            record(job, tmp_path, run=name, when=START)
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
    assert figures(job)["step"] == job.step_ms
    with pytest.raises(InputError) as error:
        history(tmp_path / "empty")
    said(str(error.value).replace(str(tmp_path), ""))


def test_the_command_adds_and_shows(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    Simulation(small()).write(tmp_path / "traces")
    store, traces = str(tmp_path / "runs"), str(tmp_path / "traces" / "rank*.json")
    first = CliRunner().invoke(cli, ["history", store, traces, "--run", "monday"])
    assert first.exit_code == 0 and "monday: 0 earlier runs" in first.output
    again = CliRunner().invoke(cli, ["history", store, "--json", "-"])
    assert [one["run"] for one in msgspec.json.decode(again.stdout)["runs"]] == ["monday"]
    (tmp_path / "runs" / "other.parquet").write_bytes(b"no parquet")
    broken = CliRunner().invoke(cli, ["history", store], standalone_mode=False)
    assert isinstance(broken.exception, InputError) and "no run" in str(broken.exception)


@pytest.mark.parametrize("ms", [None, float("nan"), float("inf")])
def test_a_run_without_its_figures_is_refused_and_a_part_it_lacks_is_unknown(
    job: Job, tmp_path: Path, ms: float | None
) -> None:
    table = pq.read_table(record(job, tmp_path, run="a", when=START))
    names, times = table["figure"].to_pylist(), table["ms"].to_pylist()

    def kept(figures: dict[str, float | None]) -> None:
        rows = table.slice(0, len(figures)).drop_columns(["figure", "ms"])
        rows = rows.append_column("figure", [list(figures)]).append_column("ms", [list(figures.values())])
        pq.write_table(rows, tmp_path / "a.parquet")

    figures = dict(zip(names, times, strict=True))
    kept({name: value for name, value in figures.items() if name != "waiting"})
    shown = CliRunner().invoke(cli, ["history", str(tmp_path)])
    assert shown.exit_code == 0 and shown.stdout.count(DASH) == 1
    for wrong in (
        {**figures, "idle": ms},
        {name: value for name, value in figures.items() if name != "step"},
    ):
        kept(wrong)
        with pytest.raises(InputError):
            history(tmp_path)
