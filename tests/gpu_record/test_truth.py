"""The truth of a trace: where a kernel is placed, where it is not, and what a capture must hold."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import truth
from benchmarks.gpu.models import Dims
from benchmarks.gpu.stages.captures import look_into
from benchmarks.gpu.training import Case, Training
from tests.said import Listener
from tests.trace import tools


def window(name: str, begin: float, end: float) -> dict[str, Any]:
    return tools.event("user_annotation", f"truth/{name}", ts=begin, dur=end - begin, args={})


def kernel(name: str, launch: float, begin: float, end: float, number: int) -> list[dict[str, Any]]:
    run = tools.kernel(name, ts=begin, dur=end - begin, correlation=number, grid=[132, 1, 1])
    return [tools.launch(number, ts=launch, dur=5), run]


STEP = [
    window("forward/", 0, 1000),
    window("forward/h.0", 100, 800),
    window("forward/h.0.mlp", 200, 500),
    window("backward/", 1000, 2000),
]


def placed(*kernels: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    events = [*STEP, *(event for pair in kernels for event in pair)]
    return {one.name: (one.part, one.module) for one in truth.place(events, on_gpu=True)}


def test_a_kernel_belongs_to_the_innermost_window_of_its_launch() -> None:
    assert placed(
        kernel("inner", 210, 300, 400, 1),
        kernel("between", 520, 600, 700, 2),
        kernel("outside", 820, 900, 950, 3),
        kernel("after", 1010, 1500, 1600, 4),
    ) == {
        "inner": ("forward", "h.0.mlp"),
        "between": ("forward", "h.0"),
        "outside": ("forward", ""),
        "after": ("backward", ""),
    }


def test_a_kernel_that_runs_outside_of_its_launchs_window_is_unknown() -> None:
    found = placed(
        kernel("late", 480, 700, 780, 1),  # the module's wait did not hold it
        kernel("skew", 480, 490, 515, 2),  # two clocks, some microseconds apart
        kernel("nowhere", 2500, 2600, 2700, 3),
    )
    assert found["late"] == ("?", "?")
    assert found["skew"] == ("forward", "h.0.mlp")
    assert found["nowhere"] == ("?", "?")


def test_a_kernel_without_its_launch_is_unknown() -> None:
    assert placed(kernel("lost", 210, 300, 400, 1)[1:]) == {"lost": ("?", "?")}


def test_kernels_are_in_the_order_of_their_launches() -> None:
    events = [*STEP, *kernel("second", 230, 310, 320, 1), *kernel("first", 210, 400, 410, 2)]
    assert [one.name for one in truth.place(events, on_gpu=True)] == ["first", "second"]
    assert truth.place(events, on_gpu=True)[0].grid == "132x1x1"


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    kernels = [
        truth.Kernel('void f<int, "x">(a, b)', "1x1x1", "forward", "h.0", 1.25),
        truth.Kernel("plain", "", "optimizer", "", 2.0),
    ]
    truth.write(tmp_path / "t.csv.gz", kernels, {"trace": "a.json.gz", "of": "a: b"})
    assert truth.read(tmp_path / "t.csv.gz") == ({"trace": "a.json.gz", "of": "a: b"}, kernels)


def test_windows_leave_no_hook_and_change_no_gradient(tmp_path: Path) -> None:
    import torch

    dims = Dims(hidden=32, heads=2, ffn=48, vocab=65, sequence=8, batch=2)
    case = Case("x", "gpt", dims, (1,), precision="tf32")
    alone, watched = (Training(case, layers=1, device="cpu") for _ in range(2))
    for _ in range(4):
        alone()
    truth.observe(watched, modules=True, scratch=tmp_path)  # three steps
    watched()
    for one, other in zip(alone.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in watched.model.modules())


def test_what_a_module_does_after_its_inner_ones_is_its_own_in_the_backward(tmp_path: Path) -> None:
    dims = Dims(hidden=32, heads=2, ffn=48, vocab=65, sequence=8, batch=2)
    training = Training(Case("x", "llama", dims, (1,), precision="bf16"), layers=1, device="cpu")
    found = [one for one in truth.observe(training, modules=True, scratch=tmp_path) if one.part == "backward"]
    of = {one.name: one.module for one in found}
    assert of["aten::neg"] == "layers.0.self_attn"  # the rotation, behind four projections
    assert of["aten::_log_softmax_backward_data"] == ""
    assert of["aten::add"] == "?"  # the engine's sum of two gradients


def _captured(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    trace: dict[str, Any] = {
        "tracelens": {
            "window": {"complete": True, "steps": 3},
            "time": {"clock": "cuda_events", "before_ms": [1.0], "after_ms": [1.0]},
        },
        "traceEvents": [window("x/", 0, 1), *kernel("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", 0, 1, 2, 1)],
    }
    change(trace)
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    return path


@pytest.mark.parametrize(
    ("change", "doubts"),
    [
        (lambda trace: None, 0),
        (lambda trace: trace["tracelens"]["window"].update(complete=False), 1),
        (lambda trace: trace["traceEvents"].clear(), 1),
    ],
)
def test_a_capture_that_lacks_something_is_kept_with_its_doubts(
    tmp_path: Path, change: Any, doubts: int
) -> None:
    facts = look_into(_captured(tmp_path / "t.json.gz", change))
    assert len(facts["doubts"]) == doubts
    assert facts["steps"] == 3


def test_a_trace_that_no_capture_wrote_is_refused(tmp_path: Path, said: Listener) -> None:
    with pytest.raises(RuntimeError) as error:
        look_into(_captured(tmp_path / "t.json.gz", lambda trace: trace.pop("tracelens")))
    said(error.value)
