"""What a GPU shows that a recording without one does not: operators within operators, fills and copies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, assert_right, attributed, mm, open_rows, verdict, written
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    ELEMENTWISE,
    HEADS,
    LENGTH,
    MLP,
    NORM,
    OWN,
    TOKENS,
    WIDTH,
    _batched,
    _row,
)
from tests.trace.tools import op
from tracelens.attribution import attribute
from tracelens.trace import link, read_trace
from tracelens.words import COMPONENTS

SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.json.gz"))
#: what no GEMM of a transformer is
POINTWISE = ("norm", "residual", "dropout", "attention.rope", "mlp.activation", "loss")


def _within(rows: list[Row], name: str, inner: str) -> list[dict[str, object]]:
    """The events of the rows; operators ``name`` launch in another one."""
    at = [number for number, row in enumerate(rows) if row.op == name]
    return [*written(rows), *(op(inner, ts=11 + 100 * number, dur=8) for number in at)]


def test_a_choice_that_is_filled_and_scattered_routes(tmp_path: Path) -> None:
    """aten::one_hot of the largest of the scores (transformers models/switch_transformers)."""
    chosen = [
        mm("moe.router", TOKENS, 8, WIDTH),
        _row("moe.router", "softmax", [TOKENS, 8]),
        _row("moe.router moe.dispatch", "one_hot", [TOKENS]),
        _row("moe.dispatch", "index", [TOKENS, WIDTH], [96]),
        mm("moe.experts", 96, 4 * WIDTH, WIDTH),
        _row("moe.experts", "relu", [96, 4 * WIDTH]),
        mm("moe.experts", 96, WIDTH, 4 * WIDTH),
        _row("moe.dispatch", "index_add_", [TOKENS, WIDTH], [96], [96, WIDTH]),
    ]
    rows = [*ATTENTION, ADD, NORM, *chosen, ADD, *ATTENTION, ADD]
    trace, _, found = attributed(tmp_path, _within(rows, "aten::one_hot", "aten::fill_"))
    assert verdict(rows, trace, found) == (1.0, {})


def test_a_product_of_no_rows_is_none(tmp_path: Path) -> None:
    """Without shapes: an expert without tokens runs no kernel, and its weight has a gradient of zeros."""
    layer = [replace(row, number=1) for row in (*ATTENTION, ADD, *MLP, ADD)]
    zeros = [Row("moe.experts", "aten::zero_", "fill", number=-7 - at) for at in range(4)]
    idle = [
        op("aten::mm", ts=70 + 100 * (len(layer) * at + 8), dur=9, **{"Sequence number": 7 + at})
        for at in range(4)
    ]
    trace, _, found = attributed(tmp_path, [*written([*4 * layer, *zeros], shapes=False), *idle])
    assert open_rows([*4 * layer, *zeros], trace, found) == ["aten::zero_ fill: moe.experts"] * 4


def test_what_joins_a_table_and_an_encoder_is_no_mlp(tmp_path: Path) -> None:
    """The joint network of a transducer behind a Conformer, without shapes (transformers models/parakeet)."""
    table = [_row("embedding", "embedding", [512, WIDTH], [64]), _row("other", "_cudnn_rnn", [64, WIDTH])]
    joint = [mm("", 64, WIDTH, WIDTH), _row("", "add", [64, WIDTH]), _row("", "relu", [64, WIDTH])]
    layer = [*MLP, ADD, *ATTENTION, ADD, *MLP, ADD]
    rows = [*3 * layer, NORM, mm("", TOKENS, WIDTH, WIDTH), *table, *joint]
    rows = [replace(row, number=1) for row in (*rows, mm("", 64, 512, WIDTH))]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    order = trace.kernels.ts_ns.argsort(kind="stable").tolist()
    said = {COMPONENTS[found.component[at]] for row, at in zip(rows, order, strict=True) if not row.right}
    assert said == {"unattributed"}


def test_what_a_convolution_fills_is_part_of_it(tmp_path: Path) -> None:
    rows = [Row("other", "aten::cudnn_convolution", name) for name in ("Memset (Device)", "sm90_xmma")]
    events = [e | {"cat": "gpu_memset"} if e["name"] == "Memset (Device)" else e for e in written(rows)]
    trace, _, found = attributed(tmp_path, events)
    assert verdict(rows, trace, found) == (1.0, {})


def test_what_copies_and_then_fills_is_one(tmp_path: Path) -> None:
    """aten::masked_fill of the weights; its gradient is tied to it and not to what it calls."""
    mask, made = ([BATCH, HEADS, LENGTH, LENGTH], [BATCH, 1, 1, LENGTH]), BATCH * HEADS
    core = [
        _batched("attention.scores", made, LENGTH, LENGTH, 64),
        _row("attention.softmax", "copy_", mask[0], mask[0]),
        _row("attention.softmax", "masked_fill_", *mask),
        _row("attention.softmax", "softmax", mask[0]),
        _batched("attention.values", made, LENGTH, 64, LENGTH),
    ]
    rows = [replace(row, number=1) for row in (NORM, ATTENTION[1], *core, ATTENTION[3], ADD)]
    back = Row("attention.softmax", "aten::masked_fill", ELEMENTWISE, mask, number=-3)
    outer = op("aten::masked_fill", ts=309, dur=150, **{"Sequence number": 3, "Input Dims": mask})
    trace, _, found = attributed(tmp_path, [*written([*4 * rows, back], shapes=False), outer])
    order = trace.kernels.ts_ns.argsort(kind="stable")
    assert COMPONENTS[found.component[order[-1]]] == "attention.softmax"


def test_a_path_is_dropped_by_what_is_drawn_and_rounded_down(tmp_path: Path) -> None:
    """On a GPU aten::rand shows as the fill in it; without shapes."""
    names = ("uniform_", "add", "floor", "div", "mul")
    dropped = [_row("dropout", name, [BATCH, 1, 1]) for name in names]
    rows = 4 * [*ATTENTION, *dropped, ADD, *MLP, *dropped, ADD]
    rows = [replace(row, number=1) for row in rows]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    assert verdict(rows, trace, found)[1] == {}
    assert not any("dropout" in row for row in open_rows(rows, trace, found))


def test_between_two_convolutions_is_other_without_shapes_too(tmp_path: Path) -> None:
    names = ("conv1d", "transpose", "gelu", "conv1d", "mul", "add", "conv1d", "gelu")
    stem = [_row("other", name) for name in names]
    rows = [replace(row, number=1) for row in (*stem, *3 * [*ATTENTION, ADD, *MLP, ADD])]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    order = trace.kernels.ts_ns.argsort(kind="stable").tolist()
    between = [COMPONENTS[found.component[order[at]]] for at in (1, 2, 4, 5, 7)]
    assert {*between} <= {"other", "embedding"}


def test_layers_with_two_mlps_and_what_they_would_answer_between(tmp_path: Path) -> None:
    """Between two layers of a Conformer, without shapes (transformers models/granite_speech)."""
    answer = [
        NORM,
        mm("", TOKENS, 512, WIDTH),
        _row("", "softmax"),
        mm("", TOKENS, WIDTH, 512),
        _row("", "add"),
    ]
    layer = [*MLP, ADD, *ATTENTION, ADD, *MLP, ADD]
    rows = [replace(row, number=1) for row in (*2 * layer, *answer, *2 * layer)]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    assert verdict(rows, trace, found)[1] == {}
    open_ = Counter(text.rpartition(" ")[2] for text in open_rows(rows, trace, found))
    assert open_ == {"": 4}


def test_what_counts_batches_is_no_sum_before_a_position(tmp_path: Path) -> None:
    """Batch normalizations behind every product, without shapes (transformers models/levit)."""
    norm = [_row("norm", "add_"), _row("norm", "native_batch_norm")]
    attention = [ATTENTION[1], *norm, *ATTENTION[2:], *norm, ADD]
    rows = [replace(row, number=1) for row in 4 * [*attention, MLP[1], *norm, *MLP[2:], *norm, ADD]]
    assert_right(tmp_path, rows, 0.0, shapes=False)


def test_a_scale_that_is_made_positive_bends_no_mlp(tmp_path: Path) -> None:
    """Queries scaled by a softplus, without shapes (transformers models/timesfm)."""
    scaled = [OWN, _row("", "softplus"), _row("attention.other", "mul"), OWN, OWN]
    rows = [replace(row, number=1) for row in 4 * [NORM, *scaled, *ATTENTION[2:], ADD, *MLP, ADD]]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    assert {row.rpartition(" ")[2] for row in open_rows(rows, trace, found)} <= {""}


def test_where_nothing_else_bends_it_a_softplus_does(tmp_path: Path) -> None:
    """xIELU, written out, without shapes (arXiv 2411.13010; transformers models/apertus)."""
    bent = [_row("mlp.activation", name) for name in ("softplus", "softplus", "mul", "where")]
    rows = [replace(row, number=1) for row in 4 * [*ATTENTION, ADD, *MLP[:2], *bent, MLP[3], ADD]]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    assert verdict(rows, trace, found)[1] == {}
    assert len(open_rows(rows, trace, found)) <= 1


def test_numbers_become_the_stream_of_a_decoder_with_their_positions(tmp_path: Path) -> None:
    """transformers models/time_series_transformer: a linear layer takes the place of a table of words."""
    opens = [
        mm("embedding", TOKENS, WIDTH, 9),
        _row("embedding", "embedding", [512, WIDTH], [BATCH, LENGTH]),
        replace(ADD, right="embedding"),
    ]
    layer = [*ATTENTION, ADD, *MLP, ADD]
    crossed = [*ATTENTION, ADD, NORM, OWN, OWN, OWN, *ATTENTION[2:], ADD, *MLP, ADD]
    rows = [replace(row, number=1) for row in (*opens, *2 * layer, NORM, *opens, *2 * crossed)]
    assert_right(tmp_path, rows)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_no_gemm_of_a_recorded_step_is_a_norm_or_other_pointwise_work(path: Path) -> None:
    trace = read_trace(path)
    found = attribute(trace, link(trace))
    products = trace.symbols.where(lambda text: "nvjet" in text or "gemm" in text)
    said = Counter(COMPONENTS[code] for code in found.component[products[trace.kernels.name]])
    assert said and not {*said} & {*POINTWISE}, said
