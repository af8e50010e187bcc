"""TL122: gaps planted in a generated run, with and without something on the CPU that explains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.advice.advice_facts import step_of
from tests.said import Listener
from tests.trace.tools import read, small_trace
from tracelens.accounting.limits import picture_of
from tracelens.analysis import analyze_trace
from tracelens.numbers import ms
from tracelens.render.limit import cards
from tracelens.render.redact import redact
from tracelens.render.verdict import _WAITED, verdict, with_verdict
from tracelens.results import HostWait, Report
from tracelens.rules.host_waits import HostWaits

GAP_US = 20_000.0
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def with_gaps(folder: Path, *spans: tuple[str, str, float, float], ahead: float = 0.0) -> Report:
    """A run whose steps begin with a gap on CPU and GPU; ``spans``: category, name, and part of the gap.
    Copies are launched ``ahead`` of their begin."""
    trace = json.loads(small_trace(steps=3, prelaunched=0).text())
    events: list[dict[str, Any]] = trace["traceEvents"]
    events[:] = [one for one in events if "zero_grad" not in one["name"]]  # the gap would be in it
    steps = sorted(
        (
            one
            for one in events
            if one["name"].startswith("ProfilerStep#") and one["cat"] == "user_annotation"
        ),
        key=lambda one: one["ts"],
    )
    for step in steps:
        at = step["ts"] + 1.0
        for event in events:
            if "ts" not in event:
                continue
            if event["ts"] >= at:
                event["ts"] += GAP_US
            elif event["ts"] + event.get("dur", 0.0) > at and event.get("cat") != "kernel":
                event["dur"] += GAP_US
        where = {"ph": "X", "pid": step["pid"], "tid": step["tid"]}
        for category, name, begin, end in spans:
            args = {"stream": 7, "device": 0, "correlation": 900_000 + len(events)}
            span = {"ts": at + begin * GAP_US, "dur": (end - begin) * GAP_US, "args": args}
            events.append({**where, **span, "cat": category, "name": name})
            if category == "gpu_memcpy":
                span |= {"ts": at + (begin - ahead) * GAP_US, "dur": 2.0}
                events.append({**where, **span, "cat": "cuda_runtime", "name": "cudaMemcpyAsync"})
    return analyze_trace(read(folder, json.dumps(trace)), shape_search=False).report


@pytest.mark.parametrize(
    ("kind", "spans", "share"),
    [
        ("workers", [("user_annotation", LOADER, 0.1, 0.9)], 0.8),
        ("data", [("user_annotation", LOADER.replace("MultiProcessing", "SingleProcess"), 0.1, 0.9)], 0.8),
        (
            "compile",
            [
                ("user_annotation", "_compile.compile_inner (dynamo_timed)", 0.0, 0.9),
                ("user_annotation", "compile_fx_inner (dynamo_timed)", 0.2, 0.8),
            ],
            0.9,
        ),
        (
            "break",
            [
                ("cpu_op", "Torch-Compiled Region: 0/0", 0.0, 0.9),
                ("cpu_op", "## Call CompiledFxGraph fabc ##", 0.0, 0.1),
                ("cpu_op", "Torch-Compiled Region: 1/0", 0.6, 0.9),
            ],
            0.5,
        ),
        ("pageable", [("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0.2, 0.7)], 0.5),
        (
            "fetch",
            [
                ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 0.2, 0.7),
                ("user_annotation", LOADER, 0.7, 1.0),
            ],
            0.5,
        ),
    ],
)
def test_a_planted_wait_is_found_again(
    tmp_path: Path, kind: str, spans: list[tuple[str, str, float, float]], share: float
) -> None:
    report = with_gaps(tmp_path, *spans)
    (finding,) = (one for one in report.findings if one.rule == "TL122" and one.evidence["kind"] == kind)
    assert finding.saving_ms.mid is None
    assert finding.saving_ms.high == pytest.approx(share * GAP_US / 1e3, rel=0.05)
    assert finding.evidence["calls_per_step"] == (3.0 if kind == "pageable" else 1.0)  # two of its own


@pytest.mark.parametrize(("ahead", "share"), [(0.3, 0.6), (0.05, 0.45)])
def test_a_fetch_counts_until_a_kernel_runs_but_no_longer_than_the_cpu_waited(
    tmp_path: Path, ahead: float, share: float
) -> None:
    """From 0.4 to 0.8 of a gap, and launched that much ahead: what the CPU does behind it stays."""
    report = with_gaps(tmp_path, ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 0.4, 0.8), ahead=ahead)
    (finding,) = (one for one in report.findings if one.rule == "TL122" and one.evidence["kind"] == "fetch")
    assert finding.saving_ms.high == pytest.approx(share * GAP_US / 1e3, rel=0.05)


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [("user_annotation", "load_batch", 0.0, 1.0)],
        [("user_annotation", LOADER, 0.0, 0.001)],
        [("cpu_op", f"Torch-Compiled Region: {one}/0", one / 4, one / 4 + 0.2) for one in range(4)],
        [
            ("cpu_op", "Torch-Compiled Region: 0/0", 0.0, 0.9),
            ("user_annotation", "## Call CompiledFxGraph fabc ##", 0.0, 0.8),
            ("cpu_op", "Torch-Compiled Region: 1/0", 0.6, 0.7),
        ],
    ],
    ids=[
        "a gap alone",
        "of another name",
        "below 1 %",
        "layers compiled one by one",
        "a custom operator's own",
    ],
)
def test_none_is_invented(tmp_path: Path, spans: list[tuple[str, str, float, float]]) -> None:
    report = with_gaps(tmp_path, *spans)
    assert not any(one.rule == "TL122" for one in report.findings)


def test_what_computes_meanwhile_waits_for_nothing() -> None:
    wait = HostWait("workers", 0.0, 1.0)
    assert HostWaits().check(step_of([], host_waits=(wait,))).state == "passed"
    assert HostWaits().check(step_of([])).state == "not_applicable"
    assert HostWaits().check(step_of([], host_waits=(wait,), marked=False)).state == "not_applicable"


def test_a_wait_is_a_share_of_the_mean_step_which_one_long_step_makes_long(said: Listener) -> None:
    """Steps of 20, 20 and 50 ms, the last of which waits 30 ms: 10 of 30 ms on average, not 10 of 20."""
    wait = HostWait("workers", 10.0, 1.0)
    (finding,) = HostWaits().check(step_of([], step_ms=20.0, mean_ms=30.0, host_waits=(wait,))).findings
    assert finding.saving_ms.high == 10.0 and finding.saving_frac.high == pytest.approx(1 / 3)
    said(finding.saw)
    (alike,) = HostWaits().check(step_of([], step_ms=20.0, host_waits=(wait,))).findings
    assert alike.saving_frac.high == pytest.approx(0.5)


@pytest.mark.parametrize("kind", ["workers", "data", "compile", "break", "pageable", "fetch"])
@pytest.mark.parametrize("percent", [0.9, 1.1])
def test_the_verdict_names_a_wait_from_one_percent_of_the_step_on(
    tmp_path: Path, kind: str, percent: float
) -> None:
    step_ms = with_gaps(tmp_path).summary.step_ms.median
    end = 0.5 + percent / 100 * step_ms * 1e3 / GAP_US
    spans = {
        "workers": [("user_annotation", LOADER, 0.5, end)],
        "data": [("user_annotation", LOADER.replace("MultiProcessing", "SingleProcess"), 0.5, end)],
        "compile": [("user_annotation", "_compile.compile_inner (dynamo_timed)", 0.5, end)],
        "break": [
            ("cpu_op", "Torch-Compiled Region: 0/0", 0.3, 0.9),
            ("cpu_op", "## Call CompiledFxGraph fabc ##", 0.3, 0.5),
            ("cpu_op", "Torch-Compiled Region: 1/0", end, 0.8),
        ],
        "pageable": [("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0.5, end)],
        "fetch": [
            ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 0.5, end),
            ("gpu_memset", "Memset (Device)", end, end + 0.001),
        ],
    }
    report = with_gaps(tmp_path, *spans[kind])
    found = [one.evidence["wait_ms"] for one in report.findings if one.rule == "TL122"]
    assert len(found) == (percent > 1)
    said = " ".join(verdict(picture_of(report)))
    assert (_WAITED[kind] in said) == (percent > 1)
    for wait_ms in found:
        assert wait_ms == pytest.approx(percent / 100 * step_ms, rel=0.03) and ms(wait_ms) in said


@pytest.mark.parametrize(
    ("spans", "named"),
    [
        ([("user_annotation", "load_batch", 0.1, 0.9)], ("load_batch", 0.8)),
        (
            [("user_annotation", "outer", 0.0, 1.0), ("user_annotation", "inner", 0.1, 0.8)],
            ("inner", 0.7),
        ),
        (
            [("user_annotation", "metrics", 0.1, 0.9), ("cpu_op", "aten::nonzero", 0.2, 0.8)],
            ("metrics", 0.8),
        ),
        (
            [("cpu_op", "aten::nonzero", 0.2, 0.5), ("cpu_op", "aten::nonzero", 0.6, 1.0)],
            ("aten::nonzero", 0.7),
        ),
        (
            [("python_function", "my/code/train.py(31): augment", 0.0, 0.9)],
            ("train.py(31): augment", 0.9),
        ),
        ([("user_annotation", "ProfilerStep#99", 0.1, 0.9)], None),  # a step is no place in it
        ([("python_function", "torch/autograd/graph.py(8): _engine_run", 0.1, 0.9)], None),
        # what compile wrote
        ([("python_function", f"/tmp/a/ov/c{'ov46' * 12}.py(25): call", 0.1, 0.9)], None),
        ([("user_annotation", "load_batch", 0.1, 0.4)], None),  # less than half
        ([], None),  # steps and layers hold launches as they hold idle time
    ],
    ids=["range", "inner", "first", "operator", "function", "step", "backward", "compiled", "little", "none"],
)
def test_what_holds_most_of_the_idle_time_is_named(
    tmp_path: Path, spans: list[tuple[str, str, float, float]], named: tuple[str, float] | None
) -> None:
    found = with_gaps(tmp_path, *spans).summary
    assert found.idle_in == (named and named[0])
    assert found.idle_in_ms == (named and pytest.approx(named[1] * GAP_US / 1e3, rel=0.05))


def test_the_verdict_says_in_what_the_gpu_idles_and_hides_the_name(tmp_path: Path, said: Listener) -> None:
    report = with_verdict(with_gaps(tmp_path, ("user_annotation", "batch", 0.1, 0.9)))
    said(report.summary.verdict, report.summary.verdict_to_try, cards(report)[0].saw, cards(report)[0].todo)
    hidden = redact(report).summary
    assert "batch`" not in hidden.verdict + hidden.verdict_to_try
