"""A file in which two GPUs ran: each is analyzed as it would be alone, and no figure is of both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run_bytes as run
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import Analysis, analyze
from tracelens.diagnosis import diagnose
from tracelens.errors import UsageError
from tracelens.words import COMPONENTS

Events = list[dict[str, Any]]
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
MODEL = ModelSpec(hidden=256, heads=4, layers=3, vocab=1003, sequence=128, micro_batch=2)
FIRST, SECOND = (
    json.loads(build(MODEL, Options(module_frames=False, slow_gemms=slower)).text()) for slower in (1.0, 0.5)
)


def _moved(event: dict[str, Any]) -> dict[str, Any]:
    """The same event of a second model, on threads and a GPU of its own; they run at once."""
    args = dict(event.get("args", {}))
    moved = event | {"args": args, "ts": event["ts"] + 3.3}
    if event.get("cat") in ON_GPU:
        moved["pid"] = args["device"] = 1
    elif isinstance(event.get("tid"), int):
        moved["tid"] += 1000
    for key in ("correlation", "External id"):
        if key in args:
            args[key] += 10**7
    if args.get("Fwd thread id"):
        args["Fwd thread id"] += 7
    return moved | ({"id": event["id"] + 10**7} if "id" in event else {})


def _written(folder: Path, name: str, events: Events) -> Path:
    (folder / name).write_text(json.dumps(FIRST | {"traceEvents": events}))
    return folder / name


@pytest.fixture(params=["operators", "kernels alone"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    """GPU 0 by itself, GPU 1 by itself, and both in one file."""
    keep = ON_GPU if request.param == "kernels alone" else None
    first, second = (
        [e for e in made["traceEvents"] if e["ph"] != "M" and (keep is None or e.get("cat") in keep)]
        for made in (FIRST, SECOND)
    )
    moved = [_moved(e) for e in second]
    added = [e for e in moved if not e["name"].startswith("ProfilerStep")]
    parts = {"first.json": first, "second.json": moved, "both.json": [*first, *added]}
    return [_written(tmp_path, name, events) for name, events in parts.items()]


def _labels(analysis: Analysis) -> list[tuple[object, ...]]:
    trace, found = analysis.trace, analysis.attribution
    assert trace is not None and found is not None
    columns = (trace.kernels.ts_ns, found.component, found.phase, found.layer)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def test_each_gpu_is_labelled_and_summed_as_it_would_be_alone(files: list[Path]) -> None:
    first, second, both = files
    for number, alone in enumerate((first, second)):
        one, of_both = analyze(alone), analyze(both, device=number)
        assert _labels(of_both) == _labels(one)
        assert of_both.report.components == one.report.components
        wanted = ("gpu_ms_per_step", "mfu_frac", "achieved_tflops", "gemm_frac", "gpu_busy_frac", "idle_ms")
        said, true = ({name: getattr(a.report.summary, name) for name in wanted} for a in (of_both, one))
        known = {name: value for name, value in true.items() if value is not None}
        assert {name: said[name] for name in known} == pytest.approx(known, rel=0.01, abs=0.005)  # 3.3 us
    kinds = {COMPONENTS[label[1]] for label in _labels(analyze(both)) if isinstance(label[1], int)}
    assert "mlp.gate" not in kinds  # of two models side by side one would be the other's gate


def test_which_gpu_the_report_is_of_is_said(files: list[Path], tmp_path: Path) -> None:
    both = files[2]
    report = analyze(both).report
    (lack,) = (lack for lack in report.recording if lack.code == "several-gpus")
    assert lack.severity == "high" and lack.share is not None and 0.3 < lack.share < 0.5
    assert "--device 1" in lack.remedy
    assert report.model.layers.value is None  # the other GPU can have others of the same model
    assert not any(lack.code == "dropped-events" for lack in report.recording)
    assert "several-gpus" in {check.code for check in diagnose(both).checks}
    done = run("analyze", both, "--device", "0", "--no-html", "--json", "r.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert run("analyze", "r.json", "--device", "0", cwd=tmp_path).returncode == 2


def test_a_gpu_that_ran_nothing_is_refused(files: list[Path]) -> None:
    with pytest.raises(UsageError, match="GPU 2"):
        analyze(files[2], device=2)
    assert not any(lack.code == "several-gpus" for lack in analyze(files[0], device=0).report.recording)


def test_processes_that_number_their_launches_alike_lose_none(tmp_path: Path) -> None:
    """Each process counts from one: files put together have every number twice."""
    moved = [_moved(e) for e in FIRST["traceEvents"] if e["ph"] != "M"]
    for event in moved:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] -= 10**7
    both = _written(tmp_path, "alike.json", [*FIRST["traceEvents"], *moved])
    assert [step.lacks for step in analyze(both).report.steps] == [
        step.lacks for step in analyze(_written(tmp_path, "alone.json", FIRST["traceEvents"])).report.steps
    ]


def test_each_process_has_its_own_launches_and_operators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of two ranks put together: each counts its launches, operators and steps for itself."""
    first = [e for e in FIRST["traceEvents"] if e["ph"] != "M"]
    moved = [_moved(e) for e in first]
    monkeypatch.setitem(FIRST, "distributedInfo", {"rank": 0, "world_size": 2})
    kernels = [e for e in moved if e.get("cat") in ON_GPU]
    for event in moved:
        args = event["args"]
        if event.get("cat") not in ON_GPU:
            event["pid"] = 77
        if args.get("correlation", 0) % 16:  # some ids both have, most one alone
            args["correlation"] -= 10**7 - 1
        if event.get("cat") == "cpu_op":
            event["name"] = "aten::of_another_process"
    assert {e["args"]["correlation"] for e in kernels} & {
        e["args"].get("correlation") for e in first if "args" in e
    }
    alone = analyze(_written(tmp_path, "alone.json", first)).report
    both = analyze(_written(tmp_path, "both.json", [*first, *moved]), device=0).report
    assert (both.summary, both.steps, both.components) == (alone.summary, alone.steps, alone.components)
    heads = [(report.trace.rank, report.trace.world_size) for report in (alone, both)]
    assert heads == [(0, 2), (None, 2)]  # the head is that of one of the two


@pytest.mark.parametrize("apart", [0, 10**7])
def test_processes_that_share_a_gpu_are_told(
    tmp_path: Path, apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They number their launches alike, or not; a second GPU's process is none of this one's."""
    first = [e for e in FIRST["traceEvents"] if e["ph"] != "M"]
    other = [_moved(e) | ({} if e.get("cat") in ON_GPU else {"pid": 77}) for e in first]
    for event in other:
        if "correlation" in event["args"]:
            event["args"]["correlation"] += apart - 10**7
    told = {check.code for check in diagnose(_written(tmp_path, "two.json", [*first, *other])).checks}
    for event in other:
        if event.get("cat") in ON_GPU:
            event["pid"] = event["args"]["device"] = 0
    monkeypatch.setitem(FIRST, "distributedInfo", {"rank": 0, "world_size": 2})
    report = analyze(_written(tmp_path, "one.json", [*first, *other])).report
    lacks = {one.code for one in report.recording}
    assert "shared-gpu" in lacks and "shared-gpu" not in told
    assert (report.trace.rank, report.trace.world_size) == (None, 2)


def test_a_stray_kernel_on_another_gpu_is_not_nothing(tmp_path: Path) -> None:
    """A rank that once touched GPU 0; all its other figures stay."""
    one = next(e for e in FIRST["traceEvents"] if e.get("cat") == "kernel")
    stray = one | {"pid": 1, "dur": 0.1, "args": one["args"] | {"device": 1, "correlation": 10**8}}
    alone = analyze(_written(tmp_path, "alone.json", FIRST["traceEvents"])).report
    report = analyze(_written(tmp_path, "stray.json", [*FIRST["traceEvents"], stray])).report
    assert (report.summary, report.model, report.components) == (
        alone.summary, alone.model, alone.components,
    )  # fmt: skip
    (lack,) = (lack for lack in report.recording if lack.code == "several-gpus")
    assert lack.severity == "low" and "<0.1%" in lack.effect
    assert "--device" not in lack.remedy  # there is nothing to see on the other GPU
