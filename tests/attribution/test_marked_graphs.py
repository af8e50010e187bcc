"""Kernels inside CUDA graphs that are marked with their module (``mark_kernels``, from PyTorch 2.12 on).

The steps are those of tests/zoo, replayed by one launch, without names; what marks them is merged into the
file by the program that PyTorch 2.12 to 2.14 has for it, as 2.15 does while it exports.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.trace.tools import document, kernel, read
from tracelens.attribution import attribute
from tracelens.trace import link
from tracelens.words import PHASES

GRAPH: dict[str, Any] = {"layout": "graph", "keep_eager": False, "names": "none"}


def marked(zoo: Any, key: str) -> str:
    """The trace with what ``mark_kernels`` says; only 2.14 and later tell the backward by itself."""
    joiner = pytest.importorskip("torch.cuda._annotate_cuda_graph_trace", reason="2.12 to 2.14 have it")
    trace = json.loads(zoo.text())
    events = [e for e in trace["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    said = {}
    for event, truth in zip(
        sorted(events, key=lambda e: e["ts"]), sorted(zoo.truth, key=lambda row: row.start_ns), strict=True
    ):
        if truth.module and "graph node id" in event["args"]:
            backward = {"autograd_phase": "backward"} if key == "name" and truth.phase == "backward" else {}
            said[event["args"]["graph node id"]] = [{key: truth.module, **backward}]
    assert joiner.annotate_trace(trace, said) > 100
    return json.dumps(trace)


@pytest.mark.parametrize(("family", "before", "after"), [("gpt2", 0.993, 0.996), ("llama", 0.87, 0.98)])
@pytest.mark.parametrize("key", ["module_fqn", "name", "str"])
def test_what_marks_a_kernel_says_its_part(
    family: str, before: float, after: float, key: str, tmp_path: Path
) -> None:
    """``module_fqn``: torchtitan's graph_trainer. Without marks GPT-2 has 99 % right, Llama 85."""
    pytest.importorskip("torch")
    from tests.attribution.test_against_zoo import score_of
    from tests.zoo import ZooOptions, record

    zoo = record(family, ZooOptions(**GRAPH))
    assert score_of(tmp_path, zoo).share < before
    found = score_of(tmp_path, SimpleNamespace(text=lambda: marked(zoo, key), truth=zoo.truth, dims=zoo.dims))
    assert found.share > after
    for true, said, evidence in found.wrong:  # a wider word, never another block
        assert said == f"{true.partition('.')[0]}.other", evidence


def test_the_backward_is_told_and_modules_and_layers_are_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.zoo import ZooOptions, record

    zoo = record("llama", ZooOptions(**GRAPH))
    trace = read(tmp_path, marked(zoo, "name"))
    found = attribute(trace, link(trace))
    wrong: Counter[tuple[str, str]] = Counter()
    rows = np.argsort(trace.kernels.ts_ns, kind="stable").tolist()
    for row, truth in zip(rows, sorted(zoo.truth, key=lambda one: one.start_ns), strict=True):
        if truth.module and truth.step is not None:
            wrong[truth.phase, PHASES[found.phase[row]]] += truth.phase != PHASES[found.phase[row]]
            assert truth.component == "communication" or found.modules[found.module[row]] == truth.module
            assert truth.layer is None or found.layer[row] == truth.layer
    assert not +wrong


@pytest.mark.parametrize(
    ("args", "label", "backward"),
    [
        ({"module_fqn": "layers.0.wq", "name": "q", "graph node id": 7}, "layers.0.wq", False),
        ({"name": "mlp", "str": "x", "autograd_phase": "backward", "graph node id": 7}, "mlp", True),
        ({"str": "mlp", "graph node id": 1 << 33}, "mlp", False),
        ({"str": ["mlp"], "name": 3, "graph node id": 7}, "", False),
        ({"module_fqn": "layers.0.wq", "graph node id": 0}, "", False),  # launched, not replayed
        ({"autograd_phase": "backward", "graph node id": 7}, "", False),
    ],
)
def test_what_marks_a_kernel_is_read(
    args: dict[str, Any], label: str, backward: bool, tmp_path: Path
) -> None:
    marked_one, other = kernel(), kernel(ts=99)
    marked_one["args"] |= args
    trace = read(tmp_path, document([marked_one, other]))
    assert [trace.symbols[int(code)] for code in trace.kernels.label] == [label, ""]
    assert trace.kernels.marked_backward.tolist() == [backward, False]
