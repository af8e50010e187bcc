"""What models of libraries that nobody here wrote showed (benchmarks/libraries), each on the fewest units."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.attribution.rows import Row, mm
from tests.attribution.test_beside_layers import _unshaped
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    CORE,
    HEADS,
    LENGTH,
    MLP,
    NORM,
    OUTPUT,
    OWN,
    QUERIES,
    STREAM,
    TOKENS,
    WIDTH,
    _found,
    _row,
)
from tests.attribution.test_structure import HIDDEN, _bmm, _gemm, _norm, _run, _unit
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.grammar import matches
from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.part_grammars import CONDITION
from tracelens.attribution.structure.readings import read_gap
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.attribution.structure.walk import hidden_size

_X, _W = (2, 64, HIDDEN), (HIDDEN,)
_PER_SAMPLE = [BATCH, 1, WIDTH]
_HALF, _TURNS = [BATCH, LENGTH, HEADS, 32], [1, LENGTH, 1, 32]


@pytest.mark.parametrize(("other", "first"), [(_X, 0), (_W, 2)])
def test_a_square_can_be_a_product_with_itself(other: Dims, first: int) -> None:
    """litgpt's RMSNorm: x * x, in more bits."""
    rows = _unit("rsqrt", (2, 64, 1)), _unit("mul", _X, (2, 64, 1)), _unit("mul", _X, _W)
    run = _run(_unit("copy_", _X, _X, what="copy"), _unit("mul", _X, other), _unit("mean", _X), *rows)
    assert written_norms(run) == {*range(first, len(run))}


def _by_length(*scales: Kind, of: Dims = _X) -> list[Kind]:
    return [_unit("linalg_vector_norm", of), _unit("clamp", (*of[:-1], 1)), _unit("div", of, of), *scales]


_HEAD = (2, 4, 64, 32)


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        (_by_length(_unit("mul", _X), _unit("mul", _X, _W)), True),  # x_transformers' RMSNorm
        (_by_length(_unit("mul", _X), _unit("mul", _X, (1,))), True),  # its ScaleNorm
        (_by_length(_unit("mul", _HEAD, (4, 1, 32)), of=_HEAD), True),  # of heads, with a weight for each
        (_by_length(_unit("mul", _HEAD), of=_HEAD), False),  # cosine attention
        (_by_length(), False),  # pictures against words
        (_unshaped("linalg_vector_norm clamp div mul mul linear"), True),
        (_unshaped("linalg_vector_norm clamp div linear"), False),
    ],
)
def test_rows_by_their_length_and_a_weight_are_normalized(kinds: list[Kind], found: bool) -> None:
    assert bool(written_norms(_run(*kinds))) == found


@pytest.mark.parametrize(
    ("behind", "count"),
    [
        ([_unit("add", _W), _unit("mul", _X, _W)], 2),  # one more than a weight
        ([_unit("add", (2, 1, HIDDEN)), _unit("mul", _X, (2, 1, HIDDEN))], 2),  # or than one for each sample
        ([_unit("mul", _X, _X)], 0),
    ],
)
def test_a_weight_behind_a_normalization_is_part_of_it(behind: list[Kind], count: int) -> None:
    assert len(written_norms(_run(_norm(), *behind, _gemm(128, HIDDEN, HIDDEN)))) == count


@pytest.mark.parametrize(
    ("names", "count"),
    [("mul linear", 1), ("add mul linear", 2), ("add mul add norm", 3), ("add mul norm", 0), ("mul add", 0)],
)
def test_without_shapes_a_weight_stands_before_a_linear_layer(names: str, count: int) -> None:
    assert len(written_norms(_run(*_unshaped(f"norm {names}")))) == count


@pytest.mark.parametrize(
    "steps", ["mean std sub mul add div add", "mean sub mul copy_ std copy_ add div add"]
)
def test_a_deviation_is_taken_before_or_behind_the_weight(steps: str) -> None:
    """The annotated transformer's norm, and that of SamLynnEvans/Transformer."""
    assert written_norms(_run(*_unshaped(f"{steps} linear"))) == {*range(len(steps.split()))}


def test_queries_turn_before_keys_are_made(tmp_path: Path) -> None:
    """torchtune's rotation, of one half by the other; each is cast, and cast back."""
    heads = [BATCH, LENGTH, HEADS, 64]
    cast = _row("attention.rope", "copy_", heads, heads)
    turn = [_row("attention.rope", "mul", _HALF, _TURNS)] * 2
    halves = [*turn, _row("attention.rope", "sub", _HALF, _HALF)]
    halves += [*turn, _row("attention.rope", "add", _HALF, _HALF)]
    turned = [cast, *halves, _row("attention.rope", "cat", [_HALF, _HALF]), cast]
    layer = [NORM, OWN, *turned, OWN, *turned, OWN, CORE, OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, 2 * layer)


def test_a_sum_behind_an_output_projection_goes_to_the_next_queries(tmp_path: Path) -> None:
    """PixArt: attention to words behind that to the picture, without a normalization."""
    words = mm("attention.qkv", 48, WIDTH, WIDTH)
    kept = [BATCH, 12, HEADS, 64]
    heads = [BATCH, LENGTH, HEADS, 64]
    crosses = Row("attention.core", CORE.op, CORE.kernel, (heads, kept, kept))
    _found(tmp_path, 2 * [*ATTENTION, ADD, OWN, words, words, crosses, OUTPUT, ADD, *MLP, ADD])
    run = _run(*_unshaped("linear add linear linear linear"), Kind("core", "sdpa"))
    run.cores = find_cores(run)
    assert read_gap(run, [0, 2, 3, 4]) == ("attention.output", *["attention.qkv"] * 3)


def test_what_is_said_of_a_sample_is_of_no_layer(tmp_path: Path) -> None:
    """Adaptive normalization: a linear layer of a row for each sample makes shifts and scales."""
    made = [_row("other", "silu", [BATCH, WIDTH]), mm("other", BATCH, 6 * WIDTH, WIDTH)]
    shifted = [NORM, _row("other", "add", _PER_SAMPLE), _row("norm", "mul", STREAM, _PER_SAMPLE)]
    shifted += [_row("norm", "add", STREAM, _PER_SAMPLE)]
    _found(tmp_path, 2 * [*made, *shifted, *ATTENTION[1:], ADD, *MLP, ADD])


def test_what_is_attended_to_alone_is_embedded(tmp_path: Path) -> None:
    words, kept = mm("attention.qkv", 48, WIDTH, WIDTH), [BATCH, 12, HEADS, 64]
    crosses = Row("attention.core", CORE.op, CORE.kernel, ([BATCH, LENGTH, HEADS, 64], kept, kept))
    made = [mm("embedding", 48, WIDTH, 1024), _row("embedding", "gelu", [BATCH, 12, WIDTH])]
    layer = [*ATTENTION, ADD, NORM, OWN, words, words, crosses, OUTPUT, ADD, *MLP, ADD]
    _found(tmp_path, [*made, mm("embedding", 48, WIDTH, WIDTH), *layer, *layer])


def test_streams_side_by_side_in_attention_have_their_own_sums_and_mlps(tmp_path: Path) -> None:
    """CogView 4: both are normalized, put one behind the other, and cut apart again."""
    streams = [[BATCH, 96, WIDTH], [BATCH, 32, WIDTH]]
    norms, sums = ([_row(right, name, *[one] * (right == "residual"), one) for one in streams]
                   for right, name in (("norm", "native_layer_norm"), ("residual", "add")))  # fmt: skip
    mlps = [
        row
        for rows in (4 * 96, 4 * 32)
        for row in (
            mm("mlp.up", rows, 4 * WIDTH, WIDTH),
            _row("mlp.activation", "gelu", [rows, 4 * WIDTH]),
            mm("mlp.down", rows, WIDTH, 4 * WIDTH),
        )
    ]
    joined = _row("attention.other", "cat", streams)
    layer = [*norms, joined, *ATTENTION[1:], *sums, *norms, *mlps, *sums]
    _found(tmp_path, 3 * layer)


@pytest.mark.parametrize(("turned", "more", "found"), [*product((False, True), (1,), (1,)), (True, 0, 0)])
def test_linear_attention_by_the_sum_of_its_weights(turned: bool, more: int, found: int) -> None:
    """SANA, EfficientViT: a value more is the sum that the others are divided by."""
    wide, tokens = 32 + more, 64
    scores = _bmm(8, wide, 32, tokens) if turned else _bmm(8, 32, wide, tokens)
    values = _bmm(8, wide, tokens, 32) if turned else _bmm(8, tokens, wide, 32)
    run = _run(scores, _unit("copy_", what="copy"), values, _unit("div", (8, 32, tokens), (8, 1, tokens)))
    cores = find_cores(run)
    assert len(cores) == found
    assert [(core.key_dim, core.value_dim) for core in cores] == [(32, 33)] * found


def test_a_convolution_over_heads_is_of_the_scores_without_shapes_too() -> None:
    kinds = [Kind("bmm", "bmm"), Kind("convolution", "conv2d"), Kind("softmax", "softmax")]
    (core,) = find_cores(_run(*kinds, kinds[1], kinds[0]))
    assert core.parts[1] == core.parts[3] == "attention.softmax"


def test_an_mlp_beside_attention_can_share_its_second_product_alone() -> None:
    """FLUX's single blocks: it takes both side by side, and none behind the last core takes that alone."""
    core = [_bmm(8, 64, 64, 64), _unit("softmax", (2, 4, 64, 64), what="softmax"), _bmm(8, 64, 64, 64)]
    joined = _unit("cat", _X, (2, 64, 1024))
    block = [_norm(), _gemm(128, 1024, HIDDEN), *[_gemm(128, HIDDEN, HIDDEN)] * 3, *core, joined]
    run = _run(*block, _gemm(128, HIDDEN, HIDDEN + 1024))
    run.cores = find_cores(run)
    assert hidden_size([run]) == HIDDEN


@pytest.mark.parametrize("pictures", [True, False])
def test_no_head_stands_before_convolutions(tmp_path: Path, pictures: bool) -> None:
    """A time is added to the maps behind the last attention of Stable Diffusion XL."""
    last = mm("" if pictures else "logits", TOKENS, 1000, WIDTH)
    maps = [_row("other", "conv2d", [4, 256, 8, 16], [4, 256, 3, 3])] * pictures
    loss = _row("loss", "cross_entropy_loss", [TOKENS, 1000])
    _found(tmp_path, [*2 * [*ATTENTION, ADD, *MLP, ADD], NORM, last, *maps, loss])


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("add silu linear split norm", 1),
        ("add silu linear copy_ pow", 1),
        ("linear silu linear norm", 0),  # a layer bent between two
        ("add silu linear add norm", 0),
    ],
)
def test_a_condition_without_shapes_is_taken_out(names: str, found: int) -> None:
    kinds = [Kind("activation", one.name) if one.name == "silu" else one for one in _unshaped(names)]
    assert len([*matches(_run(*kinds), CONDITION)]) == found


def test_a_way_up_beside_attention_is_of_the_mlp_that_ends_with_it(tmp_path: Path) -> None:
    """FLUX's single blocks, in four products."""
    bent = [
        mm("mlp.up", TOKENS, 4 * WIDTH, WIDTH),
        _row("mlp.activation", "gelu", [BATCH, LENGTH, 4 * WIDTH]),
    ]
    joined = _row("attention.other", "cat", [STREAM, [BATCH, LENGTH, 4 * WIDTH]])
    both = mm("attention.output", TOKENS, WIDTH, 5 * WIDTH)
    _found(tmp_path, 3 * [NORM, *bent, OWN, OWN, OWN, CORE, joined, both, ADD])


def test_attention_can_do_without_an_output_projection(tmp_path: Path) -> None:
    """T2T's first layers, whose MLP is no wider than the stream."""
    wide = [BATCH, LENGTH, 1, WIDTH]
    core = Row("attention.core", CORE.op, CORE.kernel, (wide,) * 3)
    bare = [NORM, mm("attention.qkv", TOKENS, 3 * WIDTH, WIDTH), core, _row("", "add", STREAM, STREAM)]
    bent = [mm("mlp.up", TOKENS, WIDTH, WIDTH), _row("mlp.activation", "gelu", STREAM)]
    layer = [*bare, NORM, *bent, mm("mlp.down", TOKENS, WIDTH, WIDTH), ADD]
    _found(tmp_path, [*layer, *2 * [*ATTENTION, ADD, *MLP, ADD]])


def test_a_last_layer_of_one_stream_is_no_layer_of_two(tmp_path: Path) -> None:
    """Stable Diffusion 3, without shapes."""
    up, bent, down = MLP[1:]
    one, sums = [NORM, up, bent, down], [ADD, ADD]
    layer = [NORM, QUERIES, CORE, OUTPUT, OUTPUT, *sums, *one, *one, *sums]
    _found(tmp_path, [*3 * layer, NORM, QUERIES, CORE, OUTPUT, ADD, *one, ADD], shapes=False)
