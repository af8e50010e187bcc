"""What a recording lacks: said where something is lost, with the flag that gives it, and not otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kept import analyzed
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tests.trace.tools import document, kernel, launch, need_shared, op, read, shared_traces
from tracelens.analysis import analyze_trace
from tracelens.attribution import attribute
from tracelens.attribution.recording import find_lacks
from tracelens.attribution.words import REASONS
from tracelens.results import Lack
from tracelens.trace import Trace, link, read_trace

MODEL = ModelSpec(hidden=768, heads=12, layers=2, vocab=50257, sequence=512, micro_batch=4)
GPU = {"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}]}
Events = list[dict[str, Any]]


def lacks_of(trace: Trace) -> list[Lack]:
    links = link(trace)
    return find_lacks(trace, links, attribute(trace, links))


def codes(trace: Trace) -> list[str]:
    return [lack.code for lack in lacks_of(trace)]


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    """A recording that lacks nothing, as a document to spoil."""
    whole: dict[str, Any] = json.loads(build(MODEL, Options(steps=3, all_reduce=True)).text())
    return whole


def spoiled(
    folder: Path, good: dict[str, Any], change: Callable[[Events], Events] = lambda events: events, **top: Any
) -> Trace:
    """The good recording with other events and other top-level keys (None: without that key)."""
    events = change([dict(event) | {"args": dict(event.get("args", {}))} for event in good["traceEvents"]])
    head = {
        key: value for key, value in {**good, **top}.items() if value is not None and key != "traceEvents"
    }
    return read(folder, json.dumps(head | {"traceEvents": events}))


def without_argument(*names: str) -> Callable[[Events], Events]:
    def change(events: Events) -> Events:
        for event in events:
            event["args"] = {key: value for key, value in event["args"].items() if key not in names}
        return events

    return change


def without(test: Callable[[dict[str, Any]], bool]) -> Callable[[Events], Events]:
    return lambda events: [event for event in events if not test(event)]


def served(events: Events) -> Events:
    """As an older vLLM, which marks no batch."""
    kept = without(lambda event: event["name"].startswith(("ProfilerStep", "Optimizer.step")))(events)
    return [*kept, op("vllm::unified_attention", ts=events[0]["ts"], dur=1)]


def before_the_recording(events: Events) -> Events:
    """Every third launch is not in the file, and no External id stands in for it."""
    host = ("cuda_runtime", "cuda_driver")
    kept = without(lambda event: event.get("cat") in host and event["ts"] % 3 < 1)(events)
    return without_argument("External id")(kept)


def test_of_a_recording_that_lacks_nothing_nothing_is_said(tmp_path: Path, good: dict[str, Any]) -> None:
    assert lacks_of(spoiled(tmp_path, good)) == []


@pytest.mark.parametrize(
    ("change", "code", "flag"),
    [
        (without_argument("Input Dims", "Input type", "Input Strides", "Concrete Inputs"), "no-shapes",
         "record_shapes=True"),
        (without(lambda e: e.get("cat") == "python_function"), "no-module-names", "with_stack=True"),
        (without(lambda e: e["name"].startswith(("ProfilerStep", "Optimizer.step"))), "no-steps",
         "prof.step()"),
        (served, "no-batches", "start_profile"),
        (without_argument("Input Strides"), "old-pytorch", "current PyTorch"),
        (without_argument("Collective name"), "old-pytorch", "current PyTorch"),
        (without_argument("Sequence number", "Fwd thread id"), "old-pytorch", "current PyTorch"),
        (without(lambda e: e.get("cat") == "kernel" and e["ts"] % 3 < 1), "dropped-events",
         "torch.cuda.synchronize()"),
        (before_the_recording, "no-launch",
         "schedule(wait=1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_each_lack_is_found_and_names_what_gives_it(
    tmp_path: Path, good: dict[str, Any], change: Callable[[Events], Events], code: str, flag: str
) -> None:
    found = {lack.code: lack for lack in lacks_of(spoiled(tmp_path, good, change))}
    assert code in found
    assert flag in found[code].remedy
    assert found[code].effect


@pytest.mark.parametrize("launches", [(), ("cuda_runtime", "cuda_driver")])
def test_gpu_events_alone_lack_the_host_and_are_not_told_ten_times(
    tmp_path: Path, good: dict[str, Any], launches: tuple[str, ...]
) -> None:
    keep = ("kernel", "gpu_memcpy", "gpu_memset", *launches)
    found = lacks_of(spoiled(tmp_path, good, without(lambda e: e.get("cat") not in keep)))
    assert found[0].code == "gpu-only"
    assert "ProfilerActivity.CPU, ProfilerActivity.CUDA" in found[0].remedy
    assert {lack.code for lack in found} <= {"gpu-only", "no-steps"}


def test_the_head_of_the_file_can_lack_things_too(tmp_path: Path, good: dict[str, Any]) -> None:
    assert codes(spoiled(tmp_path, good, deviceProperties=None)) == ["no-device"]
    assert codes(spoiled(tmp_path, good, distributedInfo=None)) == ["no-rank"]


def test_no_profiler_names_the_rank_of_two_processes(tmp_path: Path, good: dict[str, Any]) -> None:
    def put_together(events: Events) -> Events:
        launch = next(e for e in events if e.get("cat") == "cuda_runtime")
        return [*events, launch | {"pid": 10**6, "args": launch["args"] | {"correlation": 10**8}}]

    assert "no-rank" not in codes(spoiled(tmp_path, good, put_together, distributedInfo=None))


def test_a_cut_off_file_is_told_and_how_to_get_a_whole_one(tmp_path: Path, good: dict[str, Any]) -> None:
    text = json.dumps(good)
    lack = lacks_of(read(tmp_path, text[: len(text) // 2]))[0]
    assert (lack.code, lack.severity) == ("cut-off", "high")


def test_a_slow_step_is_a_warm_up(tmp_path: Path, good: dict[str, Any], said: Listener) -> None:
    def stretch(events: Events) -> Events:
        first = min((e for e in events if e["name"].startswith("ProfilerStep")), key=lambda e: e["ts"])
        first["ts"] -= 20 * first["dur"]
        first["dur"] *= 21
        return events

    (lack,) = lacks_of(spoiled(tmp_path, good, stretch))
    assert lack.code == "warm-up"
    said(lack.effect)

    def prompt(events: Events) -> Events:
        stretched = stretch(events)
        return [*stretched, op("vllm::unified_attention", ts=stretched[0]["ts"], dur=1)]

    assert lacks_of(spoiled(tmp_path, good, prompt)) == []  # a server's first batch is one of prompts


def test_a_cpu_that_runs_ahead_has_ranges_of_any_length(tmp_path: Path, good: dict[str, Any]) -> None:
    """It launches five graphs of 1,816 ms in 2.9, 1.0, 0.8, 0.7 and 0.7 ms: no step is the longer for it."""

    def busy(events: Events) -> Events:
        steps = [e for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
        first = min(steps, key=lambda e: e["ts"])
        first["ts"] -= 20 * first["dur"]
        first["dur"] *= 21
        for event in events:
            event["dur"] = event.get("dur", 0) * (1000 if event.get("cat") == "kernel" else 1)
        return events

    assert "warm-up" not in codes(spoiled(tmp_path, good, busy))


def test_a_slow_last_step_is_no_warm_up(tmp_path: Path, good: dict[str, Any]) -> None:
    def stretch(events: Events) -> Events:
        steps = [e for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
        max(steps, key=lambda e: e["ts"])["dur"] *= 21
        return events

    (lack,) = lacks_of(spoiled(tmp_path, good, stretch))
    assert lack.code == "odd-step"


def test_compilation_and_allocation_within_the_steps_are_a_warm_up(
    tmp_path: Path, good: dict[str, Any], said: Listener
) -> None:
    def warm(events: Events) -> Events:
        step = next(e for e in events if e["name"].startswith("ProfilerStep"))
        host = {"ph": "X", "pid": step["pid"], "tid": 9, "ts": step["ts"] + 1, "args": {}}
        return [
            *events,
            host | {"cat": "user_annotation", "name": "entire_frame_compile (dynamo_timed)", "dur": 5},
            host | {"cat": "cuda_runtime", "name": "cudaMalloc", "dur": step["dur"] / 2},
        ]

    (lack,) = lacks_of(spoiled(tmp_path, good, warm))
    assert lack.code == "warm-up"
    said(lack.effect)


def test_memory_that_is_freed_within_the_steps_is_no_warm_up(tmp_path: Path, good: dict[str, Any]) -> None:
    def churn(events: Events) -> Events:
        step = next(e for e in events if e["name"].startswith("ProfilerStep"))
        host = {"ph": "X", "cat": "cuda_runtime", "pid": step["pid"], "tid": 9, "args": {}}
        third = step["dur"] / 4
        free = host | {"name": "cudaFree", "ts": step["ts"] + 1, "dur": third}
        return [*events, free, host | {"name": "cudaMalloc", "ts": step["ts"] + 2 + third, "dur": third}]

    (lack,) = lacks_of(spoiled(tmp_path, good, churn))
    assert lack.code == "memory-anew"
    assert "(2 calls)" in lack.effect and "begin later" not in lack.remedy


def test_kernels_before_their_launch_are_a_skew_of_the_clocks(
    tmp_path: Path, good: dict[str, Any], said: Listener
) -> None:
    def early(events: Events) -> Events:
        launches = {
            e["args"]["correlation"]: e for e in events if "correlation" in e["args"] and "cuda" in e["cat"]
        }
        for event in events:
            if event.get("cat") == "kernel" and event["args"]["correlation"] % 2:
                event["ts"] = launches[event["args"]["correlation"]]["ts"] - 30
        return events

    lack = next(lack for lack in lacks_of(spoiled(tmp_path, good, early)) if lack.code == "clock-skew")
    said(lack.effect)


def test_frames_matter_only_where_the_gpu_waits(tmp_path: Path) -> None:
    frames = [op(f"nn.Module: A_{i}", ts=i) | {"cat": "python_function"} for i in range(9)]
    steps = [op(f"ProfilerStep#{i}", ts=200 * i, dur=200) | {"cat": "user_annotation"} for i in range(2)]
    busy = [kernel("k", ts=1, dur=300)]
    idle = [kernel("k", ts=1, dur=30), kernel("k", ts=280, dur=20)]

    def found(kernels: Events) -> list[str]:
        return codes(read(tmp_path, document([op("f", ts=0), *frames, *steps, *kernels], **GPU)))

    assert "profiler-overhead" not in found(busy)
    assert "profiler-overhead" in found(idle)


def test_captured_launches_run_nothing_and_are_not_missing() -> None:
    """The A100's recording holds the capture of its graph: 372 launches without a kernel."""
    found = {lack.code: lack for lack in lacks_of(read_trace(need_shared("d5_")))}
    assert "dropped-events" not in found
    assert found["cuda-graph"].share == pytest.approx(0.993, abs=0.001)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("d1_", {"no-launch", "compiled"}),
        ("d3_", {"profiler-overhead", "unknown-module", "one-step"}),
        ("d4_", {"old-pytorch", "profiler-overhead"}),
        ("d7_", {"backward", "no-module-names", "no-shapes", "old-pytorch", "one-step"}),
        ("d9_", {"compiled", "no-shapes", "old-pytorch", "profiler-overhead", "no-module-names"}),
    ],
)
def test_real_recordings_lack(name: str, expected: set[str]) -> None:
    assert set(codes(read_trace(need_shared(name)))) == expected


def test_what_inputs_and_names_tell_of_collectives_is_not_lost(said: Listener) -> None:
    """Without its own fields a call of d11 has its size in its inputs and its type in the kernel's name."""
    for name in ("d9_", "d11_"):
        lacks = lacks_of(read_trace(need_shared(name)))
        said(next(lack.effect for lack in lacks if lack.code == "old-pytorch"))


@pytest.mark.parametrize("path", shared_traces(), ids=lambda path: path.name[:5])
def test_an_advice_is_worded_once(path: Path) -> None:
    report = analyzed(path).report
    remedies = [lack.remedy for lack in report.recording]
    assert len(set(remedies)) == len(remedies)
    assert [lack.code for lack in report.recording] == list(
        dict.fromkeys(lack.code for lack in report.recording)
    )
    severities = [("high", "medium", "low").index(lack.severity) for lack in report.recording]
    assert severities == sorted(severities)
    total = sum(row.time_ms for row in report.components)
    known = {remedy for _, remedy in REASONS.values()}
    for row in report.coverage.unattributed:
        assert row.remedy in known
        if row.time_ms > 0.005 * total:  # whatever leaves time unattributed is named among the lacks
            assert row.remedy in remedies


def test_the_report_carries_them(tmp_path: Path, good: dict[str, Any]) -> None:
    report = analyze_trace(spoiled(tmp_path, good, deviceProperties=None), shape_search=False).report
    assert [lack.code for lack in report.recording] == ["no-device"]


@pytest.mark.parametrize("name", ["d1_", "d1b_", "d2_", "d5_", "d7_"])
def test_the_share_in_the_words_is_the_share_beside_them(name: str) -> None:
    """59.3 % in a sentence beside 59.4 % in a column are two figures for one thing."""
    lacks = [one for one in lacks_of(read_trace(need_shared(name))) if "of the file's GPU time" in one.effect]
    assert lacks
    for lack in lacks:
        assert lack.share is not None
        assert f"{lack.share:.1%} " in lack.effect
        assert lack.effect.count("%") == (2 if "either" in lack.effect else 1)


def test_what_dtensor_lays_out_is_told_from_a_part_without_a_name(tmp_path: Path) -> None:
    """torch.distributed.tensor: rows gathered along another dimension than the first are copied once more."""
    events = [
        {**op("Output", ts=0, dur=100), "cat": "user_annotation"},
        op("Redistribute", ts=1, dur=40),
        op("aten::cat", ts=2, dur=30),
        launch(1, ts=3),
        op("aten::cat", ts=50, dur=30),
        launch(2, ts=51),
        *(kernel("CatArrayBatchedCopy", ts=60 + at, dur=9, correlation=at) for at in (1, 2)),
    ]
    trace = read(tmp_path, document(events))
    said = {why: mask.tolist() for why, mask in attribute(trace, link(trace)).reasons()}
    assert said == {"redistributed": [True, False], "unknown module": [False, True]}


def test_launches_that_two_processes_count_alike_are_not_said_to_be_from_before(tmp_path: Path) -> None:
    """On one GPU, so that nothing tells whose a kernel is."""
    events = [kernel("k", ts=50 + at, dur=1, correlation=at) for at in (1, 2)]
    for process in (8, 9):
        for at in (1, 2):
            events += [one | {"pid": process} for one in (op(ts=10 * at), launch(at, ts=10 * at + 1))]
    trace = read(tmp_path, document(events))
    links = link(trace)
    found = attribute(trace, links)
    assert {why: mask.tolist() for why, mask in found.reasons()} == {"several processes": [True, True]}
    codes = {lack.code for lack in find_lacks(trace, links, found)}
    assert "several-processes" in codes and "no-launch" not in codes
