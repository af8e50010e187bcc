"""Layers under torch.compile whose kernels do less, or stand elsewhere, than those of most models."""

from __future__ import annotations

import pytest

from tests.attribution.test_compiled_gradients import (
    DGRADS,
    DOWN,
    HIDDEN,
    INNER,
    OUTPUT,
    QUERIES,
    ROWS,
    STREAM,
    TOKENS,
    UP,
    _between,
    _forward,
    _fused,
    _gemm,
    _run,
)
from tracelens.attribution.structure.between import label_between
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.forward import label_forward
from tracelens.attribution.structure.gradients import in_experts, label_gradients
from tracelens.attribution.structure.local import label_token_mlps
from tracelens.attribution.structure.positions import label_tables
from tracelens.attribution.structure.readings import read_gap
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.gemm import GemmShape

NARROW = 16
_ROWS, _STATISTIC = (4, 64, NARROW), (4, 64, 1)


def _read(*kinds: Kind) -> Run:
    run = _run("forward", *kinds)
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    label_between(run, HIDDEN, None)
    return run


def _named(run: Run, *places: int) -> list[str]:
    return [run.labels[at].component if at in run.labels else "" for at in places]


@pytest.mark.parametrize(
    ("sum_", "found"),
    [
        ("poi_fused_add_slice_view", (OUTPUT, UP, DOWN, "", QUERIES)),
        ("poi_fused_add_mul_view", (OUTPUT, "mlp.gate", UP, DOWN, QUERIES)),
        ("poi_fused_add_arange_index_le_view", None),
    ],
)
def test_what_takes_a_sum_as_it_is_is_of_no_mlp(sum_: str, found: tuple[str, ...] | None) -> None:
    """transformers models/x_clip: a layer of messages behind the sum; a gate is multiplied."""
    product, norm = Kind("gemm", "mm"), _fused("per_fused_add_native_layer_norm_view")
    bends = _fused("poi_fused_mul_sigmoid_view")
    kinds = [product, norm, product, bends, product, _fused(sum_), product, norm, product]
    run = _run("forward", *kinds)
    assert read_gap(run, [0, 2, 4, 6, 8]) == found


def test_the_second_pass_of_a_norm_of_the_stream_has_its_statistic_and_its_weight() -> None:
    """transformers models/aimv2: the root is taken where it is used."""
    ahead = _forward().kinds
    first = _fused("red_fused__to_copy_mean_pow_view", STREAM, (4, 64, 1))
    second = _fused("poi_fused__to_copy_clone_mul", (HIDDEN,), STREAM, (4, 64, 1), STREAM)
    run = _read(*ahead[:3], first, second, *ahead[3:])
    assert _named(run, 3, 4) == ["norm", "norm"]


@pytest.mark.parametrize("ops", ["add_mean_pow", "add_mean_mul_pow_sigmoid"])
def test_heads_are_normalized_by_the_mean_of_their_squares_alone(ops: str) -> None:
    """transformers models/muse_spark: without a weight, its root a power; with a gate, or without."""
    ahead = _forward().kinds
    norm = _fused(f"per_fused__to_copy_{ops}_view", (4, 64, 4, 1), (4, 4, 64, 16), ROWS, STREAM)
    assert _named(_read(*ahead[:2], norm, *ahead[2:]), 2, 3) == ["norm", OUTPUT]


def test_a_gate_of_what_is_normalized_head_by_head_is_no_output() -> None:
    ahead = _forward().kinds
    norm = _fused("per_fused_add_mean_mul_pow_sigmoid_view", (4, 64, 4, 1), (4, 4, 64, 16), ROWS, STREAM)
    run = _read(*ahead[:2], _gemm(TOKENS, HIDDEN, HIDDEN), norm, *ahead[2:])
    assert _named(run, 2, 4) == ["attention.other", OUTPUT]


def _batched(m: int, n: int, k: int) -> Kind:
    return Kind("bmm", "bmm", gemm=GemmShape(m, n, k, 16, None, None, None))


@pytest.mark.parametrize(("wide", "found"), [(HIDDEN, QUERIES), (2 * HIDDEN, "")])
def test_queries_and_keys_of_a_second_product_of_scores_stand_before_it(wide: int, found: str) -> None:
    """LiLT (arXiv 2202.13669): the scores of two streams are summed."""
    softmax = _fused("per_fused__softmax_add_view", (16, 64, 64), (16, 64, 64))
    makes = _gemm(TOKENS, wide, HIDDEN)
    run = _run(
        "forward", _batched(64, 64, 4), makes, makes, _batched(64, 64, 16), softmax, _batched(64, 16, 64)
    )
    (core,) = find_cores(run)
    assert [core.parts.get(at, "") for at in (1, 2)] == 2 * [found]


@pytest.mark.parametrize("summed", [True, False])
def test_the_block_of_a_narrow_stream_among_products_of_queries_is_named(summed: bool) -> None:
    """LiLT's layout: what is added to a stream as wide and normalized makes no queries."""
    ahead, wide = _forward().kinds, (TOKENS, NARROW)
    norm = _fused(
        "per_fused_add_native_layer_norm_view", *[_ROWS] * (1 + summed), _STATISTIC, (NARROW,), wide
    )
    bent = _fused("poi_fused_gelu_view", (TOKENS, 2 * NARROW), (4, 64, 2 * NARROW))
    up, down = _gemm(TOKENS, 2 * NARROW, NARROW), _gemm(TOKENS, NARROW, 2 * NARROW)
    queries = _gemm(TOKENS, 160, HIDDEN)  # not as wide as the core asks: what else makes them is open
    stream = _fused("per_fused_add_native_layer_norm_view", STREAM, STREAM, (HIDDEN,), STREAM)
    makes = _gemm(TOKENS, NARROW, HIDDEN)
    run = _read(*ahead, stream, makes, up, bent, down, norm, queries, *ahead[1:])
    assert (_named(run, 7, 8, 9) == [UP, "mlp.activation", DOWN]) == summed


def test_partial_sums_beside_an_activation_are_of_a_bias_where_nothing_tells_of_which() -> None:
    """Behind an MLP on a width that no product of a name has, as one that mixes tokens."""
    first = _fused("red_fused_gelu_gelu_backward_sum_view", (TOKENS, INNER), (TOKENS, INNER), (1, 1, 48, 24))
    kinds = first, _fused("per_fused_gelu_gelu_backward_sum_view", (1, 1, 48, 24), (1, 1, 48))
    assert _between(DOWN, UP, *kinds) == ["mlp.activation", "unattributed"]


def test_partial_sums_of_a_norm_are_of_it_also_beside_an_embedding() -> None:
    """transformers models/vilt: the norm of embeddings, whose sums have the name of both."""
    name = "add_embedding_dense_backward_native_layer_norm_backward_slice"
    first = _fused(f"red_fused_{name}", STREAM, STREAM, (4, 64, 1), (HIDDEN, 8), (HIDDEN, 8))
    second = _fused(f"per_fused_{name}", (HIDDEN, 8), (HIDDEN,))
    assert _between(QUERIES, DOWN, first, second) == 2 * ["norm"]


def test_maps_beside_the_stream_are_of_it_with_their_channels_in_front() -> None:
    """transformers models/sam3_lite_text: batch normalization of text, a map of one row."""
    maps, name = (2, HIDDEN, 1, 128), "native_batch_norm_backward_native_layer_norm_backward_sum_transpose"
    kernel = _fused(
        f"red_fused_{name}", (2, 128, HIDDEN), maps, maps, (HIDDEN, 1, 1), (HIDDEN, 8), (HIDDEN, 8)
    )
    alone = _fused("poi_fused_add_convolution_backward_native_layer_norm_backward", maps, maps)
    for one, found in ((kernel, "norm"), (alone, "")):
        run = _run("backward", one, _gemm(TOKENS, INNER, HIDDEN))
        run.labels = {1: Label(DOWN, 0, role="dgrad")}
        label_gradients(run, _forward(), {HIDDEN}, None)
        assert _named(run, 0) == [found]


@pytest.mark.parametrize(("columns", "found"), [(48, "norm"), (64, "moe.experts")])
def test_a_product_summed_over_the_rows_of_experts_is_of_a_norms_weight(columns: int, found: str) -> None:
    """transformers models/muse_spark: a norm behind the choice of experts."""
    rows = (2 * TOKENS, 48)
    kernel = _fused("red_fused__to_copy_mul_sum", rows, rows, (1, columns, 32))
    label = in_experts(kernel, "moe.experts", "moe.experts", 0)
    assert (label.component if label is not None else "moe.experts") == found


@pytest.mark.parametrize(("behind_norm", "found"), [(True, "embedding"), (False, QUERIES)])
def test_a_sum_behind_the_weight_of_no_name_before_all_layers_is_of_the_embedding(
    behind_norm: bool, found: str
) -> None:
    """transformers models/patchtst: values of a series are brought onto the stream by one column."""
    norm = _fused("red_fused_native_layer_norm_backward_view", STREAM, STREAM, (4, 64, 1), (HIDDEN,))
    weight, sum_ = _gemm(HIDDEN, 1, TOKENS), _fused("red_fused_sum", STREAM, (1, HIDDEN, 2))
    run = _run("backward", _gemm(TOKENS, HIDDEN, HIDDEN), *[norm] * behind_norm, weight, sum_)
    run.labels = {0: Label(QUERIES, 0, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert run.labels[len(run) - 1].component == found


def test_maps_of_another_model_between_the_products_of_an_mlp_are_not_of_it() -> None:
    """transformers models/sam_hq: its mask decoder's convolutions, where a compiler puts them."""
    ahead, maps = _forward().kinds, (2, 32, 64, 64)
    convolution = Kind("convolution", "convolution", tensors=(maps, (32, 32, 3, 3)))
    added = _fused("poi_fused_add_convolution", maps, (32,), maps, maps)
    bent = _fused("poi_fused_relu_view", (TOKENS, INNER))
    run = _read(*ahead[:4], convolution, added, bent, *ahead[4:])
    assert _named(run, 4, 5, 6) == ["", "", "mlp.activation"]


@pytest.mark.parametrize("convolves", [False, True])
def test_without_shapes_what_convolutions_gave_is_added_to_no_stream(convolves: bool) -> None:
    """transformers models/zoedepth: heads on maps behind the layers."""
    product, core = Kind("gemm", "mm"), Kind("core", "_flash_attention_forward")
    bent, add = _fused("poi_fused_gelu_view"), _fused("poi_fused_add_view")
    mlp = [product, bent, product, *[Kind("convolution", "convolution")] * convolves, add]
    run = _run("forward", *2 * [product, core, product, _fused("per_fused_add_native_layer_norm"), *mlp])
    run.cores = find_cores(run)
    names = {0: QUERIES, 1: "attention.core", 2: OUTPUT, 4: UP, 6: DOWN}
    step = len(run) // 2
    run.labels = {step * n + at: Label(part, n) for n in (0, 1) for at, part in names.items()}
    label_between(run, 0, None)
    assert _named(run, len(run) - 1) == ["" if convolves else "residual"]


def test_what_takes_the_same_as_a_sum_before_it_is_no_second_stage_of_that() -> None:
    """transformers models/muse_spark: the activation of experts, behind the gradient of a norm's weight."""
    rows = (2 * TOKENS, 48)
    sums = _fused("red_fused__to_copy_mul_sum", rows, rows, (1, 48, 32))
    bends = _fused("poi_fused_cat_mul_silu_silu_backward_split", rows, (2 * TOKENS, 96), (2 * TOKENS, 96))
    run = _run("backward", _gemm(2 * TOKENS, 48, HIDDEN), sums, bends, _gemm(2 * TOKENS, HIDDEN, 96))
    run.labels = {at: Label("moe.experts", 0, role="dgrad") for at in (0, 3)}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert _named(run, 1, 2) == ["norm", "moe.experts"]


@pytest.mark.parametrize(("ops", "found"), [("clone_gelu_gelu_backward_permute", ""), ("sum", "embedding")])
def test_what_bends_a_map_behind_its_convolution_is_no_second_stage_of_that(ops: str, found: str) -> None:
    """transformers models/tipsv2: the gradients of a neck on maps, ahead of those of the layers; its bias."""
    maps = (4, 48, 8, 8)
    convolution = Kind("convolution", "convolution_backward", tensors=((4, 24, 8, 8), maps, (24, 48, 1, 1)))
    behind = _fused(f"red_fused_{ops}_view", maps, (1, 48, 8))
    run = _run("backward", convolution, behind, _gemm(TOKENS, INNER, HIDDEN))
    run.labels = {2: Label(DOWN, 0, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert _named(run, 1) == [found]


def test_a_sum_right_behind_the_gradient_of_a_weight_is_of_its_bias() -> None:
    """Scaled layers and weights put off: the gradient of the queries' input stands before, too."""
    sums = _fused("red_fused_mul_sum_view", STREAM, (1, HIDDEN, 2))
    run = _run("backward", DGRADS[OUTPUT], DGRADS[QUERIES], _gemm(HIDDEN, HIDDEN, TOKENS), sums, DGRADS[DOWN])
    roles = {0: (OUTPUT, "dgrad"), 1: (QUERIES, "dgrad"), 2: (OUTPUT, "wgrad"), 4: (DOWN, "dgrad")}
    run.labels = {at: Label(name, 0, role=role) for at, (name, role) in roles.items()}  # type: ignore[arg-type]
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert run.labels[3].component == OUTPUT


def test_a_norms_kernel_sums_the_gradient_of_the_block_before_and_not_of_the_next() -> None:
    """BERT's order: the norm behind an MLP, whose gradient the bias of the way back waits for."""
    rows, partial = (TOKENS, HIDDEN), (1, HIDDEN, 2)
    of_norm = (STREAM, rows, STREAM, (4, 64, 1), (4, 64, 1), partial, (HIDDEN, 2), (HIDDEN, 2))
    norm = _fused("red_fused_add_native_layer_norm_native_layer_norm_backward_sum_view", *of_norm)
    kinds = (DGRADS[UP], norm, _fused("per_fused_sum_view", partial, (1, HIDDEN)))
    run = _run("backward", DGRADS[DOWN], *kinds, DGRADS[OUTPUT])
    names = {0: DOWN, 1: UP, 4: OUTPUT}
    run.labels = {at: Label(component, 0, role="dgrad") for at, component in names.items()}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert [run.labels[at].component for at in (2, 3)] == ["norm", DOWN]


_RELU = _fused("poi_fused_relu_threshold_backward_view", (4, 1, HIDDEN), (4, 1, HIDDEN))


@pytest.mark.parametrize(("many", "lasts", "known"), [
    (1, [8], True), (3, [8, 8, 4], True), (1, [2 * HIDDEN], False), (3, [8, 8], False),
])  # fmt: skip
def test_single_tokens_behind_the_last_attention_have_mlps_of_three_layers(
    many: int, lasts: list[int], known: bool
) -> None:
    """Of masks or boxes (DETR): as wide as the stream, with an activation's mask made beside it; several side
    by side run in turn, and each has all its layers."""
    square = [_gemm(4, HIDDEN, HIDDEN)] * many
    steps = [*square, *[_RELU] * many, *square, *[_RELU] * many]
    forward = _run("forward", *_forward().kinds, *steps, *[_gemm(4, made, HIDDEN) for made in lasts])
    forward.cores = find_cores(forward)
    forward.labels = _forward().labels
    label_token_mlps(forward)
    names = [label.component for at, label in sorted(forward.labels.items()) if at >= len(_forward())]
    parts = (UP, "mlp.activation", "mlp.other", "mlp.activation", DOWN)
    assert names == ([part for part in parts for _ in lasts] if known else [])


def test_mlps_of_single_tokens_that_run_one_by_one_are_found_each() -> None:
    square, last = _gemm(4, HIDDEN, HIDDEN), _gemm(4, 8, HIDDEN)
    forward = _run("forward", *_forward().kinds, *3 * [square, _RELU, square, _RELU, last])
    forward.cores, forward.labels = find_cores(forward), _forward().labels
    label_token_mlps(forward)
    names = [label.component for at, label in sorted(forward.labels.items()) if at >= len(_forward())]
    assert names == 3 * [UP, "mlp.activation", "mlp.other", "mlp.activation", DOWN]


@pytest.mark.parametrize("before", ["mlp.other", UP])  # of another that runs in turn
def test_inside_an_mlp_of_three_layers_are_activations_and_biases(before: str) -> None:
    one, rows = (4, 1, HIDDEN), (4, HIDDEN)
    acts = _fused("poi_fused_threshold_backward_view", one, one)
    sums = _fused("poi_fused_sum_threshold_backward_view", one, rows, (1, 1, HIDDEN))
    run = _run("backward", _gemm(4, HIDDEN, 8), acts, sums, _gemm(4, HIDDEN, HIDDEN), sums, acts)
    run.kinds.append(_gemm(4, HIDDEN, HIDDEN))
    run.units.append(6)
    run.labels = {at: Label(part, role="dgrad") for at, part in ((0, DOWN), (3, before), (6, UP))}
    label_gradients(run, _forward(), {HIDDEN}, None)
    found = [run.labels[at].component for at in (1, 2, 4, 5)]
    inner = before if before == "mlp.other" else "mlp.activation"
    assert found == ["mlp.activation", inner, UP, "mlp.activation"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("_scaled_dot_product_efficient_attention__unsafe_view_clone_permute_view", "attention.core"),
        ("_unsafe_view_clone_permute_view", "attention.other"),
    ],
)
def test_what_only_lays_out_what_the_attention_in_its_name_takes_is_of_that(name: str, found: str) -> None:
    layout = _fused(f"poi_fused_{name}", (TOKENS, 192), (3, 4, 4, 64, 16))
    run = _read(_gemm(TOKENS, 192, HIDDEN), layout, *_forward().kinds[1:])
    assert run.labels[1].component == found


@pytest.mark.parametrize(("also", "found"), [((7, 7), ["attention.rope"] * 2), ((64, 16), [""] * 2)])
def test_tables_that_nothing_but_rotations_take_are_of_these(also: Dims, found: list[str]) -> None:
    """Angles of rows and columns (models/dinov3_vit of transformers): what turns takes their cosines."""
    angles = _fused("poi_fused_arange_div_mul_stack", (64, 2, 1))
    table = _fused("poi_fused_arange_mul_repeat_view", (64, 2, 1), (4,), (64, 16))
    turn = _fused("poi_fused_add_cat_cos_mul_neg_sin_slice", (TOKENS, 192), (64, 16), (4, 4, 64, 16))
    other = _fused("poi_fused_where_view", also, also)
    run = _read(angles, table, other, _gemm(TOKENS, 192, HIDDEN), turn, *_forward().kinds[1:])
    label_tables(run)
    assert _named(run, 0, 1) == found


@pytest.mark.parametrize(("rows", "found"), [((4, 64, 192), QUERIES), ((4, 64, 96), "attention.other")])
def test_a_row_added_to_what_a_product_gave_is_its_bias(rows: tuple[int, ...], found: str) -> None:
    bias = _fused("poi_fused__unsafe_view_add", rows, rows[-1:])
    run = _read(_gemm(TOKENS, 192, HIDDEN), bias, *_forward().kinds[1:])
    assert run.labels[1].component == found


@pytest.mark.parametrize(("rows", "found"), [((1, INNER), UP), ((2, 2, INNER), "")])
def test_a_sum_to_a_single_row_is_of_a_bias_however_few_rows_it_has(rows: Dims, found: str) -> None:
    """Of a few single tokens beside a stream of many: pointwise, as no reduction is worth a kernel."""
    sums = _fused("poi_fused_select_sum_view", (2, 4, INNER), rows)
    run = _run("backward", sums, DGRADS[UP])
    run.labels = {1: Label(UP, 0, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert (run.labels[0].component if 0 in run.labels else "") == found


def test_the_mean_of_squares_of_a_product_with_its_bias_is_of_a_norm() -> None:
    assert "norm" in _fused("per_fused__to_copy_addmm_mean_pow_view").tags
