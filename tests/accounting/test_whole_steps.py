"""What is no whole step is in no figure, and is named; a whole step is never taken for a cut one."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from rich.console import Console

from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import analyze
from tracelens.errors import UsageError
from tracelens.render.facts import left_out
from tracelens.render.html import render_html
from tracelens.render.markdown import render_report_markdown
from tracelens.render.terminal import render_terminal
from tracelens.render.verdict import with_verdict
from tracelens.results import Report, Step
from tracelens.results.json import from_json, to_json

Event = dict[str, Any]
MODEL = ModelSpec(hidden=256, heads=4, layers=2, vocab=1024, sequence=128, micro_batch=2)
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"
JOB = SHARED / "job_h100_nanogpt_8ranks"
HOST = {"cpu_op", "cuda_runtime", "cuda_driver", "user_annotation", "python_function", "ac2g", "fwdbwd"}
GPU = {"kernel", "gpu_memcpy", "gpu_memset"}


@cache
def _clean(accumulate: int = 1) -> str:
    return build(MODEL, Options(steps=4, first_step=3, accumulate=accumulate)).text()


def _events(text: str | None = None) -> list[Event]:
    found: list[Event] = json.loads(text or _clean())["traceEvents"]
    return found


def _real(path: Path) -> list[Event]:
    if not path.exists():
        pytest.skip("no such trace beside this checkout")
    return _events(gzip.decompress(path.read_bytes()).decode())


def _report(tmp_path: Path, events: list[Event], steps: tuple[int, int] | None = None) -> Report:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return analyze(path, gpu="h100-sxm", steps=steps, shape_search=False).report


def _ranges(events: list[Event]) -> dict[int, Event]:
    """The ProfilerStep ranges on the CPU, by their number."""
    steps = [e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
    return {int(step["name"].partition("#")[2]): step for step in steps}


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event.get("dur", 0))


def _begun_later(events: list[Event], at: float, number: int) -> list[Event]:
    """The trace begins at ``at``, within this step: without the CPU events and finished kernels before."""
    kept, step = [], _ranges(events)[number]
    for event in events:
        if event is step:
            event = event | {"ts": at + 1, "dur": _end(event) - at - 1}
        gone = event.get("cat") in HOST and event["ts"] < at
        if not gone and not (event.get("cat") in GPU and _end(event) <= at):
            kept.append(event)
    return kept


def _correlations(events: list[Event], wanted: Callable[[Event], bool]) -> set[Any]:
    launches = (e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and wanted(e))
    return {e["args"]["correlation"] for e in launches}


def _ended_earlier(events: list[Event], at: float, number: int) -> list[Event]:
    """The trace ends at ``at``, within this step; what was launched before still runs to its end."""
    gone = _correlations(events, lambda e: e["ts"] >= at)
    kept, step = [], _ranges(events)[number]
    for event in events:
        if event is step:
            event = event | {"dur": at - event["ts"]}
        late = event.get("cat") in HOST and event["ts"] >= at
        if not late and not (event.get("cat") in GPU and event["args"]["correlation"] in gone):
            kept.append(event)
    return kept


def _left_out(report: Report) -> list[tuple[int, str]]:
    return [(one.index, one.reason) for one in report.left_out]


def _busy_ms(step: Step) -> float:
    return step.duration_ms * step.gpu_busy_frac


def _within(step: Event, share: float) -> float:
    return float(step["ts"] + share * step["dur"])


def _empty(number: int, ts: float) -> Event:
    name = f"ProfilerStep#{number}"
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 18}


def test_nothing_of_a_clean_trace_is_left_out(tmp_path: Path) -> None:
    report = _report(tmp_path, _events())
    assert (report.left_out, [step.index for step in report.steps]) == ([], [3, 4, 5, 6])


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_an_empty_step_changes_no_figure(tmp_path: Path, where: str) -> None:
    events = _events()
    whole = _report(tmp_path, events)
    steps = _ranges(events)
    number, ts = {
        "before": (2, steps[3]["ts"] - 20),
        "between": (99, _end(steps[4]) + 1),
        "after": (7, _end(steps[6]) + 20),
    }[where]
    report = _report(tmp_path, [*events, _empty(number, ts)])
    assert _left_out(report) == [(number, "no_gpu_work")]
    assert report.summary.step_ms.n == 4
    # a step ends where the next range begins, so one between two takes the gap from the first
    assert report.summary.step_ms.median == pytest.approx(whole.summary.step_ms.median, abs=0.07)
    assert report.summary.gpu_ms_per_step == pytest.approx(whole.summary.gpu_ms_per_step)
    assert [row.calls_per_step for row in report.gemms] == [row.calls_per_step for row in whole.gemms]
    assert {lack.code for lack in report.recording} == {lack.code for lack in whole.recording}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("drained", [False, True])
def test_a_first_step_without_its_beginning_is_left_out(tmp_path: Path, share: float, drained: bool) -> None:
    events = _events()
    cut = _begun_later(events, _within(_ranges(events)[3], share), 3)
    if drained:  # the GPU had nothing left to do: no kernel without a launch tells of the beginning
        launched = _correlations(cut, lambda _: True)
        cut = [e for e in cut if e.get("cat") not in GPU or e["args"]["correlation"] in launched]
    report = _report(tmp_path, cut)
    assert _left_out(report) == [(3, "cut_at_start")]
    assert [step.index for step in report.steps] == [4, 5, 6]
    whole = _report(tmp_path, events, (4, 6))
    assert report.summary.gpu_ms_per_step == pytest.approx(whole.summary.gpu_ms_per_step)
    assert report.summary.step_ms.median == pytest.approx(whole.summary.step_ms.median, rel=0.01)


@pytest.mark.parametrize("share", [0.6, 0.8])
def test_of_two_steps_the_missing_kernels_that_still_run_tell(tmp_path: Path, share: float) -> None:
    long = ModelSpec(layers=1, vocab=1024)  # the GPU needs longer than the CPU: it works on what was queued
    events = _events(build(long, Options(steps=2, first_step=3)).text())
    cut = _begun_later(events, _within(_ranges(events)[3], share), 3)
    assert _left_out(_report(tmp_path, cut)) == [(3, "cut_at_start")]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_last_step_without_its_end_is_left_out(tmp_path: Path, share: float) -> None:
    events = _events()
    report = _report(tmp_path, _ended_earlier(events, _within(_ranges(events)[6], share), 6))
    assert _left_out(report) == [(6, "cut_at_end")]
    whole = _report(tmp_path, events, (3, 5))
    assert report.summary.gpu_ms_per_step == pytest.approx(whole.summary.gpu_ms_per_step)


def test_launches_whose_kernels_are_not_in_the_file_cut_the_steps_at_the_end(tmp_path: Path) -> None:
    events = _events()
    launched = _correlations(events, lambda e: e["ts"] >= _within(_ranges(events)[5], 0.5))
    cut = [e for e in events if e.get("cat") not in GPU or e["args"]["correlation"] not in launched]
    report = _report(tmp_path, cut)
    assert _left_out(report) == [(5, "cut_at_end"), (6, "cut_at_end")]
    assert [step.index for step in report.steps] == [3, 4]


@pytest.mark.parametrize("share", [0.75, 0.85, 0.95])
def test_a_step_of_a_file_that_ends_early_is_whole_where_it_is_as_in_the_whole_file(
    tmp_path: Path, share: float
) -> None:
    path = tmp_path / "t.json"
    path.write_text(_clean()[: int(share * len(_clean()))])
    report = analyze(path, gpu="h100-sxm", shape_search=False).report
    true = {step.index: step for step in _report(tmp_path, _events()).steps}
    for step in report.steps:
        assert (step.lacks is None) == (_busy_ms(step) == pytest.approx(_busy_ms(true[step.index])))
    assert all(one.reason in ("cut_at_end", "not_in_file") for one in report.left_out)
    assert len(report.steps) + len(report.left_out) == len(true)


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_of_a_file_that_ends_early_no_step_is_whole_whose_launches_are_lost_with_the_kernels(
    tmp_path: Path, share: float
) -> None:
    """CUPTI's buffers are in no order of time: launches and kernels of every step stand behind the cut."""
    events = _events()
    gpu = [one for one in events if "correlation" in one.get("args", {})]
    rest = [one for one in events if "correlation" not in one.get("args", {})]
    gpu.sort(key=lambda one: (one["args"]["correlation"] * 7919 % 1009, one["args"]["correlation"]))
    kept = json.dumps({"traceEvents": [*rest, *gpu[: int(share * len(gpu))]]})
    path = tmp_path / "t.json"
    path.write_text(kept[: kept.rindex("]")])
    report = analyze(path, gpu="h100-sxm", shape_search=False).report
    assert report.trace.partial
    assert {step.lacks for step in report.steps} == {"cut_at_end"}
    assert report.summary.limited_by == ""


def test_a_step_whose_launches_have_lost_kernels_is_not_whole(tmp_path: Path, said: Listener) -> None:
    """CUPTI drops records where its buffers run full; the gaps that they leave are no idle time."""
    events = _events()
    kernels = [one for one in events if one.get("cat") == "kernel"]
    every_tenth = {id(one) for one in kernels[::10]}
    report = _report(tmp_path, [one for one in events if id(one) not in every_tenth])
    assert {step.lacks for step in report.steps} == {"events_lost"}
    assert report.summary.mfu_is_bound and report.summary.limited_by == ""
    told = with_verdict(report).summary
    said(told.verdict, told.verdict_to_try)

    start = _ranges(events)[5]["ts"]
    late = {id(one) for one in kernels if one["ts"] >= start}
    report = _report(tmp_path, [one for one in events if id(one) not in every_tenth & late])
    assert [step.index for step in report.steps] == [3, 4]
    assert _left_out(report) == [(5, "events_lost"), (6, "events_lost")]
    said(left_out(report))


def test_what_is_lost_between_steps_is_lost_to_none(tmp_path: Path) -> None:
    """ProfilerStep#4 is not marked, and the profiler has lost half of what ran in it."""
    events = _events()
    missing = next(one for one in events if one.get("name") == "ProfilerStep#4")
    begin, end = missing["ts"], missing["ts"] + missing["dur"]
    there = {
        one["args"]["correlation"]
        for one in events
        if one.get("cat") in ("cuda_runtime", "cuda_driver") and begin <= one["ts"] < end
    }
    lost = {number for number in there if number % 2}
    kept = [
        one
        for one in events
        if one.get("name") != "ProfilerStep#4"
        and not (one.get("cat") == "kernel" and one["args"]["correlation"] in lost)
    ]
    whole, report = _report(tmp_path, events), _report(tmp_path, kept)
    assert [step.index for step in report.steps] == [3, 5, 6]
    assert _left_out(report) == []
    longest = max(step.duration_ms for step in whole.steps)
    assert max(step.duration_ms for step in report.steps) == pytest.approx(longest, rel=0.01)


def test_a_micro_batch_before_the_one_with_the_optimizer_is_whole(tmp_path: Path) -> None:
    """prof.step() after each micro-batch: the last step is the beginning of the first, and no cut one."""
    events = _events()
    steps = _ranges(events)
    optimizer = min(
        e["ts"] for e in events if e["name"].startswith("Optimizer.step") and e["ts"] > steps[4]["ts"]
    )
    two = [
        e
        for e in _ended_earlier(events, optimizer, 4)
        if e["name"] not in ("ProfilerStep#5", "ProfilerStep#6")
    ]
    report = _report(tmp_path, two)
    assert (report.left_out, report.summary.step_ms.n) == ([], 2)


def test_where_no_step_is_whole_the_cut_one_stays_and_says_so(tmp_path: Path) -> None:
    events = _events()
    cut = _ended_earlier(events, _within(_ranges(events)[6], 0.5), 6)
    report = _report(tmp_path, cut, (6, 6))
    assert [(step.index, step.lacks) for step in report.steps] == [(6, "cut_at_end")]
    assert report.left_out == []
    assert from_json(to_json(report)) == report


def test_of_a_step_that_is_cut_nothing_is_claimed_that_what_lacks_can_change(
    tmp_path: Path, said: Listener
) -> None:
    """Idle time, MFU and the number of layers: kernels that are not there take time and have layers."""
    events = _events()
    whole = _report(tmp_path, events, (6, 6))
    cut = _report(tmp_path, _ended_earlier(events, _within(_ranges(events)[6], 0.4), 6), (6, 6))
    assert whole.summary.steps_marked and whole.model.layers.value == 2
    assert not cut.summary.steps_marked and cut.summary.limited_by == ""
    assert cut.summary.mfu_is_bound and cut.model.layers.value is None
    told = with_verdict(cut).summary
    said(told.verdict, told.verdict_to_try, cut.summary.mfu_why, cut.model.layers.source)


def test_steps_asked_for_that_have_no_gpu_work_are_refused_by_name(tmp_path: Path, said: Listener) -> None:
    events = _events()
    events.append(_empty(7, _end(_ranges(events)[6]) + 20))
    with pytest.raises(UsageError) as error:
        _report(tmp_path, events, (7, 7))
    said(error.value)
    assert _left_out(_report(tmp_path, events, (6, 7))) == [(7, "no_gpu_work")]
    assert _left_out(_report(tmp_path, events, (3, 4))) == []


def test_kernels_without_any_launch_in_the_file_are_work_all_the_same(tmp_path: Path) -> None:
    events = [e for e in _events() if e.get("cat") not in HOST or e["name"].startswith("ProfilerStep")]
    assert _report(tmp_path, events).left_out == []


def test_the_empty_last_step_of_a_real_trace_is_in_no_mean(tmp_path: Path) -> None:
    report = _report(tmp_path, _real(next(iter(SHARED.glob("d10_*")), SHARED / "none")))
    assert _left_out(report) == [(15, "no_gpu_work")]
    assert report.summary.step_ms.n == 5
    assert report.summary.gpu_ms_per_step == pytest.approx(60.8, abs=0.05)
    assert fmean(step.duration_ms for step in report.steps) == pytest.approx(59.9, abs=0.05)
    assert report.summary.step_ms.median == pytest.approx(58.6, abs=0.05)


@pytest.mark.parametrize("rank", [0, 4])
def test_the_first_step_of_a_real_job_is_whole_although_the_step_before_still_runs(
    rank: int, tmp_path: Path
) -> None:
    """354 and 990 kernels without a launch run in its range; it launches as many as the step after next."""
    report = _report(tmp_path, _real(JOB / f"rank{rank}_trace.json.gz"))
    assert (report.left_out, report.summary.step_ms.n) == ([], 4)


@pytest.mark.parametrize("share", [0.3, 0.7])
def test_a_real_job_cut_at_both_ends_loses_both_steps(share: float, tmp_path: Path) -> None:
    """Its steps are of two kinds in turn, the first and the third alike, the second and the fourth."""
    events = _real(JOB / "rank4_trace.json.gz")
    steps = _ranges(events)
    cut = _begun_later(events, _within(steps[10], share), 10)
    report = _report(tmp_path, _ended_earlier(cut, _within(steps[13], share), 13))
    assert _left_out(report) == [(10, "cut_at_start"), (13, "cut_at_end")]
    assert [step.index for step in report.steps] == [11, 12]


@pytest.mark.parametrize("marked", [True, False])
def test_nothing_is_said_to_be_per_step_where_no_step_is_marked(tmp_path: Path, marked: bool) -> None:
    # with findings of several rules
    spec = ModelSpec(hidden=250, heads=5, layers=1, vocab=1021, sequence=128)
    text = build(spec, Options(steps=1, attention="math")).text()
    events = [e for e in _events(text) if marked or not e["name"].startswith("ProfilerStep")]
    report = _report(tmp_path, events)
    assert report.summary.steps_marked is marked and len(report.findings) > 1
    written = io.StringIO()
    render_terminal(report, console=Console(file=written, width=200), verbose=True)
    for said in (render_html(report), render_report_markdown(report), written.getvalue()):
        visible = re.sub(r"<(style|script)\b.*?</\1>", "", said, flags=re.DOTALL)
        assert bool(re.search(r"per step|/ ?step\b", visible)) is marked
    sentences = [(one.title, one.saw, one.how) for one in report.findings]
    assert ("per step" in str([*sentences, *(check.why for check in report.checks)])) is marked
