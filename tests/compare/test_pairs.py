"""Pairs of generated traces that differ in one known thing: the answer is of exactly that class."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.compare.parsed import Parsed
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import Analysis, analyze
from tracelens.api import compare as compare_reports
from tracelens.api import compare_folders
from tracelens.cli.compare import compare
from tracelens.gates import judge_comparison
from tracelens.render.compare_html import render_compare_html
from tracelens.results import Report
from tracelens.results.comparison import Comparison

#: The CPU of it is a little faster than the GPU: a slower one is waited for.
MODEL = ModelSpec(layers=2, hidden=512, heads=8, vocab=50304, sequence=512, micro_batch=4)
STEPS = 7
CASES: dict[str, tuple[ModelSpec, dict[str, Any]]] = {
    "nothing": (MODEL, {}),
    "GEMMs x1.1": (MODEL, {"slow_gemms": 1.1}),
    "GEMMs x0.9": (MODEL, {"slow_gemms": 0.9}),
    "CPU x3": (MODEL, {"slow_cpu": 3.0}),
    "CPU x25": (MODEL, {"slow_cpu": 25.0}),
    "one shape": (replace(MODEL, vocab=50257), {}),
}


def recorded(folder: Path, model: ModelSpec, seed: int, **options: Any) -> Report:
    """Steps with a pace of their own, kernels with noise of their own."""
    how = Options(
        steps=STEPS, pace=0.004, jitter=0.03, module_frames=False, ranges=True, seed=seed, **options
    )
    path = folder / f"{seed}.json"
    path.write_text(build(model, how).text())
    return analyze(path, shape_search=False).report


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Comparison]:
    folder = tmp_path_factory.mktemp("pairs")
    before = recorded(folder, MODEL, 1)
    return {
        name: compare_reports(before, recorded(folder, model, 2, **options))
        for name, (model, options) in CASES.items()
    }


@pytest.mark.parametrize(
    ("name", "state", "cause"),
    [
        ("nothing", "no_change", None),
        ("GEMMs x1.1", "slower", "gemms_alike"),
        ("GEMMs x0.9", "faster", "gemms_alike"),
        ("CPU x3", "slower", "idle"),
        ("CPU x25", "slower", "idle"),
        ("one shape", "slower", "gemm_shapes"),
    ],
)
def test_the_answer_is_of_the_class_of_what_was_done(
    pairs: dict[str, Comparison], name: str, state: str, cause: str | None
) -> None:
    found = pairs[name]
    step = found.step
    assert step is not None and step.state == state
    parts = {one.code: one.diff_ms for one in found.causes}
    assert sum(parts.values()) == pytest.approx(step.diff_ms, abs=1e-9)
    if cause is None:
        assert max(map(abs, parts.values())) < 0.02 * step.before.median
        return
    assert found.causes[0].code == cause
    rest = sum(abs(ms) for code, ms in parts.items() if code != cause)
    assert rest < 0.2 * abs(step.diff_ms)


def test_the_common_factor_of_all_gemms_is_found(pairs: dict[str, Comparison]) -> None:
    (alike,) = (one for one in pairs["GEMMs x1.1"].causes if one.code == "gemms_alike")
    assert alike.frac == pytest.approx(0.1, abs=0.01)
    assert not [one for one in pairs["GEMMs x1.1"].gemms if one.beyond_noise and not one.alike]
    assert [row for row in pairs["GEMMs x1.1"].components if row.alike]
    for name in ("nothing", "CPU x3", "CPU x25", "one shape"):
        assert not [one for one in pairs[name].gemms if one.alike], name


@pytest.mark.parametrize(
    ("name", "counted", "allowed"),
    [
        ("nothing", "passed", "passed"),
        ("GEMMs x1.1", "failed", "passed"),
        ("GEMMs x0.9", "passed", "passed"),
        ("CPU x3", "failed", "failed"),
        ("CPU x25", "failed", "failed"),
        ("one shape", "failed", "failed"),
    ],
)
def test_the_gate_counts_a_slower_gpu_unless_drift_is_allowed(
    pairs: dict[str, Comparison], name: str, counted: str, allowed: str
) -> None:
    (plain,) = judge_comparison(pairs[name], ["regression>2.5%"])
    (without,) = judge_comparison(pairs[name], ["regression>2.5%"], allow_clock_drift=True)
    assert (plain.state, without.state) == (counted, allowed)


def test_the_page_shows_the_causes_and_their_sum(pairs: dict[str, Comparison]) -> None:
    text = Parsed(render_compare_html(pairs["GEMMs x1.1"])).text
    table = text.partition("Where the difference comes from")[2]
    shown = [float(one.replace("−", "-")) for one in re.findall(r"([+−]?\d+\.\d{3}) ms", table)]
    total = pairs["GEMMs x1.1"].step
    assert total is not None
    at = shown.index(round(total.diff_ms, 3))
    assert sum(shown[:at]) == pytest.approx(shown[at], abs=0.003)


def test_a_rank_that_waits_for_its_cpu_is_named_and_the_job_is_slower_by_its_idle_time(
    tmp_path: Path,
) -> None:
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        for rank in range(5):
            slow = 3.0 if name == "after" and rank == 3 else 1.0
            seed = 10 * rank + (name == "after")
            report = recorded(tmp_path, MODEL, seed, slow_cpu=slow)
            Analysis(report).save(tmp_path / name / f"rank{rank}.json")
    found = compare_folders(tmp_path / "before", tmp_path / "after")
    assert found.step is not None and found.step.state == "slower"
    assert [(one.pair, one.side, one.part) for one in found.stands_out] == [("rank 3", "after", "idle")]
    assert found.causes_of == "rank 3" and found.causes[0].code == "idle"
    assert sum(one.diff_ms for one in found.causes) == pytest.approx(found.step.diff_ms, abs=1e-9)


def test_allowing_drift_without_a_gate_is_wrong_use() -> None:
    done = CliRunner().invoke(compare, ["a.json", "b.json", "--allow-clock-drift"])
    assert done.exit_code != 0 and "--fail-on" in str(done.exception)
