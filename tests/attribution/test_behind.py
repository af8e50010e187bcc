"""What a training script runs between its model and the backward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.attribution.test_phases import _span, _work
from tests.trace.tools import read
from tracelens.attribution import attribute
from tracelens.trace import link
from tracelens.words import COMPONENTS

EVALUATE = "autograd::engine::evaluate_function: "


def _components(folder: Path, events: list[dict[str, Any]]) -> list[str]:
    trace = read(folder, json.dumps({"traceEvents": events}))
    return [COMPONENTS[code] for code in attribute(trace, link(trace)).component.tolist()]


def _module(ts: int, *, number: int) -> list[dict[str, Any]]:
    frame = _span("nn.Module: Denoiser_0", ts, 20, "python_function")
    return [frame, *_work(number, ts + 5, number=number, op="aten::cos")]


def _gradient(of: int, ts: int, *, forward: int) -> list[dict[str, Any]]:
    return [_span(f"{EVALUATE}PowBackward0", ts, 10, number=forward), *_work(of, ts + 2)]


def test_elementwise_work_behind_the_modules_that_gradients_pass_is_the_loss(tmp_path: Path) -> None:
    noise = _work(9, 5, op="aten::normal_")
    model = _module(100, number=1)
    target = _work(2, 130, op="aten::neg")  # takes no gradient
    loss = [*_work(3, 140, number=3, op="aten::sub"), *_work(4, 150, op="aten::abs")]
    loss += _work(5, 160, number=5, op="aten::mean")
    backward = [*_gradient(6, 200, forward=5), *_gradient(7, 220, forward=3)]
    found = _components(tmp_path, [*noise, *model, *target, *loss, *backward])
    assert found == ["unattributed", "other", "unattributed", *5 * ["loss"]]


def test_between_two_models_nothing_is_known_to_be_the_loss(tmp_path: Path) -> None:
    one, two = _module(100, number=1), _module(150, number=4)
    between = _work(3, 130, number=3, op="aten::sub")
    behind = _work(5, 180, number=5, op="aten::mean")
    backward = [*_gradient(6, 200, forward=5), *_gradient(7, 220, forward=3)]
    found = _components(tmp_path, [*one, *between, *two, *behind, *backward])
    assert found == ["other", "unattributed", "other", "loss", "loss", "unattributed"]
