"""Which forward operator a node of the backward belongs to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trace.tools import kernel, launch, op, read
from tracelens.attribution import attribute
from tracelens.trace import link
from tracelens.words import COMPONENTS


def _op(name: str, ts: int, number: int, *, forward: int = 0) -> dict[str, Any]:
    return op(name, ts=ts, dur=20, **{"Sequence number": number, "Fwd thread id": forward})


def _kernel(correlation: int, ts: int) -> dict[str, Any]:
    return kernel("copy", ts=ts, correlation=correlation, grid=[8, 1, 1], block=[128, 1, 1])


@pytest.mark.parametrize(
    ("number", "component"),
    [
        (5, "norm"),
        (6, "norm"),  # a second node of the operator that took number 5
        (7, "dropout"),  # the next operator's own
        (12, "unattributed"),  # nothing that was recorded is near
    ],
)
def test_a_node_belongs_to_the_operator_that_took_its_number_or_the_one_before(
    tmp_path: Path, number: int, component: str
) -> None:
    engine = "autograd::engine::evaluate_function: "
    events = [
        _op("aten::native_layer_norm", 0, 5), launch(1, ts=5), _kernel(1, 50),
        _op("aten::native_dropout", 100, 7), launch(2, ts=105), _kernel(2, 150),
        _op(f"{engine}NativeDropoutBackward0", 200, 7, forward=1), launch(3, ts=205), _kernel(3, 250),
        _op(f"{engine}torch::autograd::CopySlices", 300, number, forward=1),
        launch(4, ts=305), _kernel(4, 350),
    ]  # fmt: skip
    trace = read(tmp_path, json.dumps({"traceEvents": events}))
    assert COMPONENTS[attribute(trace, link(trace)).component[3]] == component
