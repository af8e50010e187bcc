"""Where the step waits, on traces whose waits are known, and without holistic-trace-analysis."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from tests.kept import analyzed
from tracelens.analysis import Analysis, analyze
from tracelens.cli.analyze import analyze as command
from tracelens.errors import UsageError
from tracelens.hta.library import LibraryMissing, library
from tracelens.render.html import render_html
from tracelens.results import IdleCause, PathPart, Report, Waits
from tracelens.results.json import from_json, to_json
from tracelens.results.schema import json_schema

SAMPLE = next(
    (Path(__file__).resolve().parents[2] / "sample_traces").glob("generated_gpt2_vocab50257*.json.gz")
)
needs_hta = pytest.mark.skipif(
    importlib.util.find_spec("hta") is None, reason="the extra hta is not installed"
)
GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas"
)
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _event(name: str, category: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    place = {"pid": 0, "tid": more.pop("stream")} if "stream" in more else {"pid": 100, "tid": 100}
    args = dict(more)
    if place["pid"] == 0:
        args |= {"stream": place["tid"], "device": 0}
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": end - start, **place, "args": args}


def _write(folder: Path, kernels: Sequence[tuple[str, str, int, float | None, float, float]]) -> Path:
    """A trace of one step of a millisecond from (name, category, stream, launched at, begins, ends) in µs."""
    events = [
        _event("ProfilerStep#5", "user_annotation", 0, 1000),
        _event("aten::mm", "cpu_op", 1, 990),
    ]
    for at, (name, category, stream, launched, start, end) in enumerate(kernels, 1):
        events.append(_event(name, category, start, end, stream=stream, correlation=at))
        if launched is not None:
            call = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaLaunchKernel"
            events.append(_event(call, "cuda_runtime", launched, launched + 2, correlation=at))
    path = folder / "made.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Gaps on stream 7: 50 µs for want of a launch, 10 queued and short, 100 queued and long."""
    return _write(
        tmp_path,
        [
            (GEMM, "kernel", 7, 50, 100, 200),
            (GEMM, "kernel", 7, 220, 250, 300),
            (GEMM, "kernel", 7, 225, 310, 350),
            (ALL_REDUCE, "kernel", 20, 230, 260, 340),
            (GEMM, "kernel", 7, 240, 450, 500),
            ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 7, 260, 500, 520),
        ],
    )


@needs_hta
def test_idle_time_has_the_cause_that_was_made(made: Path) -> None:
    waits = analyze(made, waits=True, shape_search=False).report.waits
    assert {(row.stream, row.cause): row.ms_per_step for row in waits.idle} == pytest.approx(
        {(7, "host_wait"): 0.050, (7, "kernel_wait"): 0.010, (7, "other"): 0.100}
    )
    assert sum(row.frac for row in waits.idle) == pytest.approx(1)


@needs_hta
def test_the_gpus_time_is_split_without_rest(made: Path) -> None:
    """From 100 to 520: idle 200-250 and 350-450, communication alone 300-310, a copy 500-520."""
    waits = analyze(made, waits=True, shape_search=False).report.waits
    assert (waits.idle_ms, waits.compute_ms, waits.non_compute_ms) == pytest.approx((0.150, 0.240, 0.030))
    assert waits.overlap_frac == pytest.approx(70 / 80)


@needs_hta
def test_the_queue_is_what_was_launched_and_has_not_begun(made: Path) -> None:
    """On stream 7 the highest is at 260: launched at 225, 240 and 260, and none of them begun."""
    waits = analyze(made, waits=True, shape_search=False).report.waits
    assert {row.stream: (row.launches, row.highest) for row in waits.queue} == {7: (5, 3), 20: (1, 1)}
    assert waits.queued_frac == 1


@needs_hta
def test_a_kernel_whose_launch_is_not_in_the_file_is_not_dropped(tmp_path: Path) -> None:
    path = _write(tmp_path, [(GEMM, "kernel", 7, 50, 100, 200), (GEMM, "kernel", 7, None, 210, 300)])
    waits = analyze(path, waits=True, shape_search=False).report.waits
    assert (waits.compute_ms, waits.idle_ms) == pytest.approx((0.190, 0.010))
    assert waits.queued_frac == 0.5


@needs_hta
def test_kernels_that_overlap_on_a_stream_take_no_idle_time_away(tmp_path: Path) -> None:
    kernels = [
        (GEMM, "kernel", 7, 50, 100, 300),
        (GEMM, "kernel", 7, 60, 150, 200),
        (GEMM, "kernel", 7, 70, 320, 400),
    ]
    waits = analyze(_write(tmp_path, kernels), waits=True, shape_search=False).report.waits
    assert {row.cause: row.ms_per_step for row in waits.idle} == pytest.approx({"kernel_wait": 0.020})


@needs_hta
def test_a_kernel_is_what_the_report_says_it_is_whatever_its_name(tmp_path: Path) -> None:
    """HTA takes names with "dma" for no computing, and knows no communication but NCCL's."""
    kernels = [
        ("my_tdma_gemm_kernel", "kernel", 7, 50, 100, 200),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "kernel", 7, 60, 200, 300),
    ]
    analysis = analyze(_write(tmp_path, kernels), waits=True, shape_search=False)
    assert {row.component for row in analysis.report.components} >= {"communication"}
    waits = analysis.report.waits
    assert (waits.compute_ms, waits.non_compute_ms, waits.overlap_frac) == pytest.approx((0.1, 0.1, 0.0))


def anew() -> Analysis:
    """The sample analyzed, and nothing known of its waits."""
    return replace(analyzed(SAMPLE))


@cache
def sample() -> Report:
    return anew().with_waits().report


@needs_hta
def test_the_idle_gpu_is_that_of_the_summary() -> None:
    """The summary's also holds what lies before the first and after the last GPU event."""
    report = sample()
    waits, n = report.waits, len(report.steps)
    assert waits.idle_ms is not None and waits.compute_ms is not None and waits.non_compute_ms is not None
    span = (waits.idle_ms + waits.compute_ms + waits.non_compute_ms) * n
    edges = sum(step.duration_ms for step in report.steps) - span
    assert waits.idle_ms * n + edges == pytest.approx(report.summary.idle_ms * n, abs=1e-6)


@needs_hta
def test_steps_that_do_not_count_are_not_in_it() -> None:
    both, one = sample(), analyze(SAMPLE, waits=True, steps=(3, 3), shape_search=False).report
    assert sum(row.launches for row in both.waits.queue) == len(both.steps) * sum(
        row.launches for row in one.waits.queue
    )
    assert one.waits.path_step == 3


@needs_hta
def test_the_critical_path_adds_up_to_no_more_than_its_step() -> None:
    waits = sample().waits
    assert waits.path_of_ms is not None
    assert 0 < sum(part.time_ms for part in waits.path) <= waits.path_of_ms + 1e-6
    assert sum(part.frac for part in waits.path) == pytest.approx(1)


@needs_hta
def test_a_step_too_large_to_follow_has_no_path_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.hta.frames.PATH_EVENTS", 100)
    waits = anew().with_waits().report.waits
    assert not waits.path and "too many to follow" in waits.missing["path"]
    assert waits.idle_ms is not None


@needs_hta
def test_what_fails_there_costs_that_part_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("of its own")

    monkeypatch.setattr(library().analysis, "get_queue_length_summary", broken)
    waits = anew().with_waits().report.waits
    assert "failed" in waits.missing["queue"] and not waits.queue and waits.idle


@needs_hta
def test_it_leaves_the_users_logging_alone_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.root.manager.disable
    anew().with_waits()
    assert (root.handlers, root.level, logging.root.manager.disable) == before
    assert capfd.readouterr() == ("", "")


@needs_hta
def test_frames_have_their_documented_columns() -> None:
    frames = anew().waits
    assert list(frames.temporal.columns) == [
        "span_ms",
        "idle_ms",
        "compute_ms",
        "non_compute_ms",
        "overlap_frac",
    ]
    assert list(frames.idle.columns) == ["device", "stream", "cause", "time_ms", "frac"]
    assert list(frames.queue.columns) == ["device", "stream", "launches", "mean", "std", "median", "highest"]
    assert list(frames.path.columns) == ["bound_by", "time_ms", "frac"]


@needs_hta
def test_the_report_with_waits_follows_the_schema_and_comes_back() -> None:
    report = sample()
    data = to_json(report)
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(data))
    assert from_json(data).waits == report.waits


@needs_hta
def test_the_page_and_the_terminal_say_it(made: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(command, [str(made), "--waits", "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert "and is idle 150 µs (35.7%)" in " ".join(result.output.split())
    text = page.read_text(encoding="utf-8")
    for said in (
        "What idle streams wait for",
        "was not launched yet by the CPU",
        "Critical path",
    ):
        assert said in text


@needs_hta
def test_the_same_trace_gives_the_same_waits() -> None:
    assert analyze(SAMPLE, waits=True, shape_search=False).report.waits == sample().waits


# --- without it ----------------------------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name.partition(".")[0] == "hta":
            raise ModuleNotFoundError("No module named 'hta'", name="hta")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    yield


@pytest.mark.usefixtures("without")
def test_without_the_extra_the_page_and_the_terminal_say_how_to_get_it(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(command, [str(SAMPLE), "--waits", "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert 'pip install "tracelens-gpu[hta]"' in " ".join(result.output.split())
    assert "pip install &#34;tracelens-gpu[hta]&#34;" in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("without")
def test_without_the_extra_the_frames_are_one_clear_error() -> None:
    with pytest.raises(LibraryMissing, match="not installed"):
        _ = anew().waits


def test_who_did_not_ask_is_told_how_on_the_page_and_not_bothered_elsewhere(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = CliRunner().invoke(command, [str(SAMPLE), "-o", str(page)])
    assert "Waits" not in result.output
    shown = re.sub("<[^>]*>", "", page.read_text(encoding="utf-8"))
    assert "tracelens analyze TRACE --waits" in shown


def test_a_saved_report_has_no_events_to_follow(tmp_path: Path) -> None:
    anew().save(tmp_path / "report.json")
    with pytest.raises(UsageError, match="analyze the trace itself"):
        _ = Analysis.load(tmp_path / "report.json").waits


def test_the_library_is_imported_only_when_asked_for() -> None:
    code = (
        "import sys, tracelens\n"
        "analysis = tracelens.analyze(sys.argv[1])\n"
        "assert not {'hta', 'plotly', 'torch', 'tracelens.hta'} & set(sys.modules)\n"
        "if sys.argv[2] == 'True':\n"
        "    analysis.with_waits()\n"
        "    assert 'hta' in sys.modules and 'torch' not in sys.modules\n"
    )
    there = str(importlib.util.find_spec("hta") is not None)
    subprocess.run([sys.executable, "-c", code, str(SAMPLE), there], check=True, timeout=3600)


def test_a_page_of_hostile_waits_holds_no_markup() -> None:
    evil = "<script>alert(1)</script>"
    waits = Waits(
        tool=evil,
        idle=[IdleCause(0, 7, "other", 1.0, 1.0)],
        path=[PathPart(evil, 1.0, 1.0)],
        missing={"queue": evil},
        why=None,
    )
    page = render_html(replace(anew().report, waits=waits))
    assert evil not in page
