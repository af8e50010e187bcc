"""What stands beside a layer's own products and looks like one of them, each on the few units it rests on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.test_parts import ADD, ATTENTION, MLP, _found, _row
from tests.attribution.test_structure import (
    HIDDEN,
    TOKENS,
    _bmm,
    _gemm,
    _labelled,
    _norm,
    _run,
    _stream,
    _unit,
)
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.maps import linear_convolutions
from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.readings import read_gap
from tracelens.attribution.structure.towers import stretches
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.attribution.structure.walk import hidden_size

_ROWS = 128


def _attention(wide: int = HIDDEN, *behind: Kind) -> list[Kind]:
    """Of four heads, ``wide`` together; ``behind``: between the core and the output projection."""
    core = [_bmm(8, 64, 64, wide // 4), _unit("softmax", (2, 4, 64, 64), what="softmax")]
    core += [_bmm(8, 64, wide // 4, 64), *behind, _gemm(_ROWS, HIDDEN, wide)]
    return [_norm(), _gemm(_ROWS, 3 * wide, HIDDEN), *core, _stream(), _norm()]


def _mlp(inner: int) -> list[Kind]:
    gelu = _unit("gelu", (_ROWS, inner), what="activation")
    return [_gemm(_ROWS, inner, HIDDEN), gelu, _gemm(_ROWS, HIDDEN, inner), _stream()]


def test_an_mlp_narrower_than_the_stream_is_no_adapter() -> None:
    found = _labelled(*_attention(), *_mlp(HIDDEN // 2))
    assert found[-4:-1] == ["mlp.up", "mlp.activation", "mlp.down"]


@pytest.mark.parametrize(
    ("before", "parts"), [("copy_", ["mlp.gate", "mlp.up"]), ("mul", ["unattributed"] * 2)]
)
def test_a_cast_before_the_activation_leaves_the_gate_first(before: str, parts: list[str]) -> None:
    work = _unit(before, (_ROWS, 1024), (_ROWS, 1024), what="copy" if before == "copy_" else "elementwise")
    found = _labelled(*_attention(), _gemm(_ROWS, 1024, HIDDEN), *_mlp(1024)[:1], work, *_mlp(1024)[1:])
    assert found[8:10] == parts


def test_a_gate_as_wide_as_the_heads_is_no_mlp() -> None:
    wide = 2 * HIDDEN
    gate = [_gemm(_ROWS, wide, HIDDEN), _unit("sigmoid", (_ROWS, wide), what="activation")]
    found = _labelled(*_attention(wide, *gate, _unit("mul", (_ROWS, wide), (_ROWS, wide))), *_mlp(1024))
    assert found[5:9] == ["attention.other"] * 3 + ["attention.output"]


def test_a_number_for_each_head_makes_no_stream() -> None:
    gate = [_gemm(_ROWS, 4, HIDDEN), _unit("sigmoid", (_ROWS, 4), what="activation")]
    narrow = [_bmm(8, 64, 64, 32), _unit("softmax", (2, 4, 64, 64), what="softmax"), _bmm(8, 64, 32, 64)]
    small = [_gemm(_ROWS, 384, 128), *narrow, _gemm(_ROWS, 128, 128)]
    run = _run(*small, *_attention(HIDDEN, *gate), *_mlp(1024))
    run.cores = find_cores(run)
    assert [part.hidden for part in stretches(run, 128)] == [128, HIDDEN]


def test_what_is_bent_before_it_is_convolved_is_no_mlp() -> None:
    conv = _unit("conv1d", (2, HIDDEN, 64), (HIDDEN, 1, 5), what="convolution")
    glu, silu = (_unit(name, (*TOKENS, HIDDEN), what="activation") for name in ("glu", "silu"))
    module = [
        _gemm(_ROWS, 2 * HIDDEN, HIDDEN),
        glu,
        conv,
        silu,
        _gemm(_ROWS, HIDDEN, HIDDEN),
        _stream(),
        _norm(),
    ]
    found = _labelled(*_attention(), *module, *_mlp(1024), *_attention())
    start = len(_attention())
    assert [found[start], found[start + 4]] == [None, None]
    assert found[start + len(module)] == "mlp.up"


@pytest.mark.parametrize("beside", ["copy_", "mul"])
def test_what_is_copied_or_scaled_beside_an_open_product_is_no_residual(beside: str) -> None:
    work = _unit(
        beside, (*TOKENS, HIDDEN), (*TOKENS, HIDDEN), what="copy" if beside == "copy_" else "elementwise"
    )
    open_ = [_unit("tanh"), work, _gemm(_ROWS, 3 * HIDDEN, HIDDEN), work]
    open_ += [_gemm(_ROWS, HIDDEN, HIDDEN), _stream()]
    found = _labelled(*_attention(), *open_, *_attention())
    start = len(_attention())
    assert [found[start + 1], found[start + 3], found[start + 5]] == [None, None, "residual"]


@pytest.mark.parametrize(("scale", "component"), [((*TOKENS, 1), "mlp.other"), ((HIDDEN,), "residual")])
def test_a_mask_of_rows_is_no_scale_of_the_layer(scale: Dims, component: str) -> None:
    scaled = _unit("mul", (*TOKENS, HIDDEN), scale)
    assert _labelled(*_attention(), *_mlp(1024)[:3], scaled, _stream(), *_attention())[11] == component


def test_convolutions_up_and_back_are_an_mlp() -> None:
    """FastSpeech, arXiv 1905.09263; with a mask of the sequence and its padding before each."""
    wide = [(2, HIDDEN, 64), (2, 1024, 64)]
    masks = [_unit("mul", given, (2, 1, 64)) for given in wide]
    up = _unit("conv1d", (2, HIDDEN, 66), (1024, HIDDEN, 3), what="convolution")
    down = _unit("conv1d", (2, 1024, 66), (HIDDEN, 1024, 3), what="convolution")
    mlp = [
        masks[0],
        up,
        _unit("relu", wide[1], what="activation"),
        masks[1],
        down,
        masks[0],
        _stream(),
        _norm(),
    ]
    run = _run(*_attention(), *mlp, *_attention())
    linear_convolutions(run)
    start = len(_attention())
    found = _labelled(*run.kinds)[start : start + len(mlp)]
    assert found[1:] == ["mlp.up", "mlp.activation", "mlp.activation", "mlp.down", None, "residual", "norm"]


def test_a_table_behind_the_values_is_no_output_projection() -> None:
    """Relative positions of values (arXiv 1803.02155): a product of every head with a table."""
    table = [_gemm(4 * _ROWS, 64, 127), _unit("add_", (8, 64, 64), (8, 64, 64), what="add")]
    found = _labelled(*_attention(HIDDEN, *table))
    assert [found[5], found[7]] == ["attention.other", "attention.output"]


def test_a_choice_whose_softmax_comes_behind_it_routes() -> None:
    routed = [
        _gemm(_ROWS, 8, HIDDEN),
        _unit("topk", (_ROWS, 8)),
        _unit("softmax", (_ROWS, 2), what="softmax"),
    ]
    assert _labelled(*_attention(), *routed, _stream(), *_attention())[len(_attention())] == "moe.router"


def test_a_sum_of_what_all_experts_gave_is_no_number_to_choose_by() -> None:
    """kyegomez/SwitchTransformers: results of all experts side by side, weighed and summed up."""
    given = (2, 64, HIDDEN, 4)
    softmax = _unit("softmax", (_ROWS, 4), what="softmax")
    routed = [_gemm(_ROWS, 4, HIDDEN), softmax, _unit("topk", (_ROWS, 4)), _unit("sum", (_ROWS, 4))]
    experts = 4 * _mlp(1024)[:-1]
    weighed = [_unit(name, given) for name in ("cat", "mul", "sum")]
    layer = [*_attention(), *routed, *experts, *weighed, _stream()]
    sums = len(_attention()) + len(routed) - 1, len(layer) - 2
    found = _labelled(*layer, *_attention())
    assert [found[at] for at in sums] == ["moe.router", "moe.dispatch"]


@pytest.mark.parametrize(("name", "what"), [("mul", "elementwise"), ("add_", "add")])
def test_what_scales_each_word_is_of_the_head(name: str, what: str) -> None:
    head = [_norm(), _gemm(_ROWS, 5000, HIDDEN), _unit(name, (*TOKENS, 5000), (5000,), what=what)]
    loss = _unit("cross_entropy_loss", (_ROWS, 5000), (_ROWS,), what="loss")
    shaped = _labelled(*_attention(), *_mlp(1024), *head, loss)
    assert shaped[-3:] == ["logits", "logits", "loss"]


def test_a_sum_that_is_cut_ends_a_block() -> None:
    plain = [Kind(kind.what, kind.name) for kind in (*_attention(), *_mlp(1024))]
    more = [
        Kind("elementwise", "select"),
        Kind("gemm", "linear"),
        Kind("norm", "layer_norm"),
        Kind("gemm", "linear"),
    ]
    run = _run(*plain, *more)
    places = [at for at in range(5, len(run)) if run.kinds[at].what == "gemm"]
    assert read_gap(run, places) == ("attention.output", "mlp.up", "mlp.down", "", "attention.qkv")


def test_positions_that_are_resized_embed() -> None:
    patches = _unit("conv2d", (2, 3, 128, 128), (HIDDEN, 3, 16, 16), what="convolution")
    table = _unit("copy_", (1, HIDDEN, 32, 32), (1, HIDDEN, 32, 32), what="copy")
    summed = _unit("add", (1, HIDDEN, 8, 8), (1, HIDDEN, 8, 8), what="add")
    assert _labelled(patches, table, summed, *_attention())[:3] == ["embedding"] * 3


def test_patches_as_wide_as_the_stream_make_it() -> None:
    patches, table = _gemm(_ROWS, HIDDEN, HIDDEN), _gemm(_ROWS, HIDDEN, 49)
    found = _labelled(patches, _unit("clamp", (49, 2)), table, _stream(), *_attention(), *_mlp(1024))
    assert found[:4] == ["embedding"] * 4


@pytest.mark.parametrize(("words", "component"), [(1000, "logits"), (3000, None)])
def test_a_decoder_of_another_width_has_its_own_head(words: int, component: str | None) -> None:
    """Behind the layers of an encoder (a transducer, arXiv 1211.3711), with a table of its own words."""
    table = _unit("embedding", (words, 96), (2, 16), what="embedding")
    joint = [
        table,
        _gemm(_ROWS, 96, HIDDEN),
        _unit("relu", (_ROWS, 96), what="activation"),
        _gemm(999, 1006, 96),
    ]
    assert _labelled(*_attention(), *_mlp(1024), *joint)[-1] == component


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        ("pow mean add rsqrt mul copy_ mul add", 7),  # no mean is taken off: no bias, but a residual
        ("mean sub pow mean add rsqrt mul copy_ mul add", 10),
        ("pow mean add rsqrt mul mul copy_ copy_", 7),  # the last for what takes it in more bits
    ],
)
def test_what_stands_behind_a_root_mean_square(names: str, steps: int) -> None:
    what = {"add": "add", "copy_": "copy"}
    run = _run(*(Kind(what.get(name, "elementwise"), name) for name in names.split()))
    assert written_norms(run) == {*range(steps)}


def test_an_output_projection_in_groups_comes_back_to_the_stream() -> None:
    """transformers models/deepseek_v4/modeling_deepseek_v4.py: o_a_proj of a group, o_b_proj of all."""
    wide = 2 * HIDDEN
    layer = _attention(wide)
    layer[5:6] = [_bmm(2, _ROWS, 32, wide // 2), _unit("view"), _gemm(_ROWS, HIDDEN, 64)]
    run = _run(*layer, *_mlp(1024))
    run.cores = find_cores(run)
    assert hidden_size([run]) == HIDDEN
    assert _labelled(*run.kinds)[5:8] == ["attention.other", "attention.other", "attention.output"]


def _unshaped(names: str) -> list[Kind]:
    what = {"linear": "gemm", "norm": "norm", "gelu": "activation", "add": "add", "copy_": "copy"}
    return [Kind(what.get(name, "elementwise"), name) for name in names.split()]


@pytest.mark.parametrize(("before", "parts"), [("norm add", ["", ""]), ("norm", ["mlp.up", "mlp.down"])])
def test_a_block_that_takes_a_sum_is_of_another_kind(before: str, parts: list[str]) -> None:
    """Gemma 3n's inputs of each layer, behind an MLP that takes what is normalized."""
    run = _run(
        *_unshaped(f"linear add norm linear gelu linear {before} linear gelu linear norm add norm linear")
    )
    places = [at for at in range(len(run)) if run.kinds[at].what == "gemm"]
    assert read_gap(run, places) == ("attention.output", "mlp.up", "mlp.down", *parts, "attention.qkv")


def test_a_cast_or_a_layout_behind_a_norm_of_queries_stays_open(tmp_path: Path) -> None:
    norm = ("copy_", "pow", "mean", "add", "rsqrt", "mul", "copy_", "mul")
    rows = [*(_row("norm", name) for name in norm), _row("", "copy_")]
    _found(tmp_path, 3 * [*ATTENTION[:2], *rows, *ATTENTION[2:], ADD, *MLP, ADD], shapes=False)


@pytest.mark.parametrize(("wide", "found"), [(3 * HIDDEN + 2 * 1024, True), (3 * HIDDEN, False)])
def test_the_way_into_an_mlp_can_be_of_the_product_that_makes_the_queries(wide: int, found: bool) -> None:
    """PaLM-pytorch, palm_pytorch.py: ParallelTransformerBlock."""
    norm, _, *core, out, add, behind = _attention()
    bent = [_unit("silu", (_ROWS, 1024), what="activation"), _unit("mul", (_ROWS, 1024), (_ROWS, 1024))]
    layer = [norm, _gemm(_ROWS, wide, HIDDEN), *core, out, *bent, _gemm(_ROWS, HIDDEN, 1024), add, add]
    labels = _labelled(*layer, *layer, behind)
    parts = ["mlp.activation", "mlp.activation", "mlp.down"]
    assert (labels[6:9] == parts) is found
    assert labels[5] == "attention.output"


def test_a_product_without_a_shape_among_others_is_no_output() -> None:
    """An einsum with a weight: hyper_connections, as tab_transformer_pytorch has them."""
    layer = [*_attention()[:6], _unit("einsum", (*TOKENS, 4, HIDDEN), (HIDDEN, 5), what="gemm"), *_mlp(1024)]
    assert _labelled(*layer, *layer)[5:7] == ["attention.output", None]


def test_a_weight_is_prepared_between_a_length_and_what_it_weighs() -> None:
    stream, row = (*TOKENS, HIDDEN), (*TOKENS, 1)
    steps = [("linalg_vector_norm", stream), ("clamp", row), ("div", stream, stream), ("mul", stream)]
    norm = [_unit(name, *tensors) for name, *tensors in steps]  # type: ignore[arg-type]
    weighs = [_unit("add", (HIDDEN,)), _unit("mul", stream, (HIDDEN,))]  # gamma + 1
    assert written_norms(_run(*norm, *weighs)) == {*range(6)}
