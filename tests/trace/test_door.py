"""The one door from JSON: what comes through every later room can hold, and what does not is counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.trace.tools import document, kernel, launch, op, read
from tracelens.render.html import render_html
from tracelens.results.json import from_json, to_json
from tracelens.trace.door import LARGEST, LONGEST_NAME, LONGEST_NS, Door


@pytest.mark.parametrize(
    ("given", "through", "dropped"),
    [
        ("plain", "plain", {}),
        ("café 😀", "café 😀", {}),
        ("a\tb\nc", "a b c", {}),
        ("\x1b[31m", "�[31m", {"character": 1}),
        ("\ud800 \u202e", "� �", {"character": 1}),
        ("x" * (LONGEST_NAME + 1), "x" * (LONGEST_NAME - 1) + "…", {"long text": 1}),
        (None, "", {}),
        (5, "", {"text": 1}),
    ],
)
def test_text(given: Any, through: str, dropped: dict[str, int]) -> None:
    door = Door()
    assert door.text(given) == through
    assert +door.dropped == dropped
    assert bool(door.warning()) == bool(dropped)


@pytest.mark.parametrize("given", [-1, LARGEST + 1, 2.5, True, "x", "-3", [], 10**400, math.nan])
def test_no_count(given: Any) -> None:
    door = Door()
    assert door.count(given) is None
    assert door.dropped["number"] == 1


def test_shapes_keep_their_places() -> None:
    door = Door()
    assert door.dims([[2, 3], [], [[4], [5, 6]], [-1, 2], [1.5], "x", None, 7]) == [
        [2, 3], [], [[4], [5, 6]], [], [], [], [], [],
    ]  # fmt: skip
    assert door.dropped["shape"] == 4
    assert door.dims({"a": 1}) is None
    assert door.grid([1, 2, 3]) == [1, 2, 3]
    assert door.grid([0, 1, 1]) is door.grid([1, 1]) is door.grid([1, 1, 2**40]) is None


def test_metadata_is_finite_and_shallow() -> None:
    deep: Any = "end"
    for _ in range(200):
        deep = [deep]
    door = Door()
    found = door.value({"a": math.inf, "b": [2**70, -(2**63)], "c\x07": {"d": deep}})
    assert found["a"] is None and found["b"] == [None, -(2**63)] and "c�" in found
    assert json.dumps(found, allow_nan=False).count("[") < 50


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    args: dict[str, Any] = {"Input Dims": [[2**60, 4], [4, 8]], "External id": 1}
    events = [
        op(ts=1, dur=9, **args),
        launch(1, ts=2),
        kernel("k\x00", ts=20, dur=LONGEST_NS / 1000 + 1, correlation=1, grid=[0, 1, 1]),
        kernel("l", ts=30, dur=5),
        kernel("m", ts=40, dur=-5),
    ]
    trace = read(tmp_path, document(events, odd=math.nan, distributedInfo={"rank": 2**70}))
    assert trace.kernels.dur_ns.tolist() == [0, 5000, 0]
    report = tracelens.analyze(tmp_path / "trace.json").report
    (said,) = [one for one in report.trace.warnings if "left out" in one]
    for part in ("over 13 days (1)", "durations below 0 (1)", "shapes that cannot be (1)", "control"):
        assert part in said
    assert report.trace.rank is None


#: What once ended an analysis, as it stands in the arguments of events or in the metadata.
CRASHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "collective's name is an object": ({"Collective name": {"Collective name": "\ud800"}}, {}),
    "collective's elements": (
        {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10**30, "Group size": 2**80}, {}
    ),
    "group's ranks": ({"Collective name": "allreduce", "Process Group Ranks": "[0, 1, -5, 1e9]"}, {}),
    "thread beyond C long": ({"Fwd thread id": 2**64 - 1, "Sequence number": 2**63}, {}),
    "device and stream": ({"device": 2**40, "stream": 2**63}, {}),
    "dims beyond a float": ({"Input Dims": [[10**200, 10**200], [10**200, 3]]}, {}),
    "world and rank": ({}, {"distributedInfo": {"rank": False, "world_size": 2**90, "backend": "nccl"}}),
    "device without size": ({}, {"deviceProperties": [{"name": "NVIDIA A100", "numSms": -1}]}),
    "versions": ({}, {"cuda_runtime_version": 10**30, "torch_version": "\x1b[2J"}),
}  # fmt: skip
TILES = ("ampere_sgemm_0x0_tn", "nvjet_tst_0x0_0x0_0x0_v_bz_TNN", "ampere_sgemm_128x0_tn",
         "nvjet_tst_" + "9" * 5000 + "x128_64x6_2x1_v_bz_TNN")  # fmt: skip


def whole(folder: Path, events: list[Any], metadata: dict[str, Any]) -> None:
    """Through the whole pipeline."""
    (folder / "trace.json").write_text(document(events, **metadata), encoding="utf-8")
    report = tracelens.analyze(folder / "trace.json").report
    assert from_json(to_json(report)) == report
    assert "</html>" in render_html(report)


@pytest.mark.parametrize("what", CRASHES)
def test_values_that_ended_an_analysis(tmp_path: Path, what: str) -> None:
    args, metadata = CRASHES[what]
    events = [
        op("record_param_comms", ts=1, dur=50, **args, **{"External id": 1}),
        op("aten::mm", ts=2, dur=40, **args, **{"External id": 2}),
        launch(1, ts=5),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ts=20, correlation=1, **args),
        kernel("ampere_sgemm_128x64_tn", ts=40, correlation=1, **args),
    ]
    whole(tmp_path, events, metadata)


@pytest.mark.parametrize("name", TILES, ids=lambda name: name[:30])
def test_tiles_that_cannot_be(tmp_path: Path, name: str) -> None:
    shapes = {"Input Dims": [[256, 64], [64, 512]], "Input type": ["float", "float"]}
    events = [
        op("aten::mm", ts=1, dur=50, **shapes, **{"External id": 1}),
        launch(1, ts=5),
        kernel(name, ts=20, correlation=1, grid=[4, 4, 1], block=[128, 1, 1]),
    ]
    whole(tmp_path, events, {"deviceProperties": [{"name": "NVIDIA A100-SXM4-40GB", "numSms": 108}]})
