"""Sizes of a captured graph by the weights that it is called with and the operators of its capture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.advice.advice_rows import model
from tests.said import Listener
from tests.trace.tools import document, op, read
from tracelens.accounting.captured import with_captured
from tracelens.results import Known, ModelDims

LAYER = [[192, 64], [64, 64], [256, 64], [64, 256], [64]]


def dims(
    tmp_path: Path, *given: list[Any], shapes: bool = False, name: str = "CompiledFunction"
) -> ModelDims:
    unknown = {field: Known(None, "") for field in ModelDims.__dataclass_fields__ if field != "found"}
    events = [op(name, ts=10 * at, dur=5, **{"Input Dims": one}) for at, one in enumerate(given)]
    blank: Any = ModelDims("whole", **{**{name: getattr(model(), name) for name in unknown}, **unknown})
    return with_captured(
        blank, read(tmp_path, document([*events, op("aten::relu", ts=500, dur=1)])), shapes=shapes
    )


@pytest.mark.parametrize(
    ("given", "hidden", "ffn"),
    [
        ([*LAYER, *LAYER, [1000, 64]], 64, 256),
        ([*LAYER, *LAYER, *LAYER, [1, 64], [1, 64]], 64, 256),  # vectors are no matrices
        (LAYER, None, None),  # once each: nothing repeats
        ([[64, 32], [64, 32]], None, None),  # either of the two
        ([*LAYER, *LAYER, [96, 48], [96, 48]], None, None),  # weights of another model share no size
        ([[192, 64], [192, 64], [64, 64], [64, 64]], 64, None),
        ([*LAYER, *LAYER, [128, 64], [64, 128], [128, 64], [64, 128]], 64, None),  # two widths
    ],
)
def test_what_the_weights_of_every_layer_share_is_the_hidden_size(
    tmp_path: Path, given: list[Any], hidden: int | None, ffn: int | None
) -> None:
    found = dims(tmp_path, given)
    assert (found.hidden.value, found.ffn.value) == (hidden, ffn)


def test_the_call_with_most_weights_counts_and_says_how_many(tmp_path: Path, said: Listener) -> None:
    found = dims(tmp_path, [[32, 16], [32, 16]], [*LAYER, *LAYER])
    assert found.hidden.value == 64
    assert found.ffn.value == 256
    assert dims(tmp_path, [*LAYER, *LAYER], shapes=True).hidden.value is None
    assert dims(tmp_path, [*LAYER, *LAYER], name="mine::graph").hidden.value is None
    said(found.hidden.source, found.ffn.source)
    inside = dims(tmp_path, [*LAYER, *LAYER], name="## Call CompiledFxGraph abc ##")
    assert inside.hidden.value == 64
