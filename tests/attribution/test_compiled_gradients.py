"""What a compiled step's kernels are, with shapes, on the few units that each rule rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.attribution.structure.ahead import label_ahead
from tracelens.attribution.structure.backward import label_products
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.between import label_between
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.forward import label_forward
from tracelens.attribution.structure.gradients import label_gradients
from tracelens.attribution.structure.maps import label_maps
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.streams import streams
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.gemm import AttentionShape, GemmShape
from tracelens.gemm.inductor import parse_fused

HIDDEN, TOKENS, INNER = 64, 256, 256
STREAM, ROWS = (4, 64, HIDDEN), (TOKENS, HIDDEN)
QUERIES, OUTPUT, UP, DOWN = "attention.qkv", "attention.output", "mlp.up", "mlp.down"


VOCABULARY = 5003


def _gemm(m: int, n: int, k: int) -> Kind:
    return Kind("gemm", "mm", gemm=GemmShape(m, n, k, 1, None, None, None))


def _fused(name: str, *tensors: Dims) -> Kind:
    fused = parse_fused(f"triton_{name}_0")
    assert fused is not None
    return Kind("fused", f"triton_{name}_0", tensors=tensors, tags=fused.tags)


def _core(tokens: int, length: int, keys: int | None = None) -> Kind:
    shape = AttentionShape(tokens // length, 4, 4, length, keys or length, 16, 16, "bf16", False, False)
    return Kind("core", "_flash_attention_forward", core=shape)


def _run(phase: str, *kinds: Kind) -> Run:
    return Run(phase, [*range(len(kinds))], [*kinds])


def _forward(*more: Kind) -> Run:
    """A layer, named; behind its output stand ``more``."""
    kinds = [_gemm(TOKENS, 192, HIDDEN), _core(TOKENS, 64), _gemm(TOKENS, HIDDEN, HIDDEN), *more]
    run = _run("forward", *kinds, _gemm(TOKENS, INNER, HIDDEN), _gemm(TOKENS, HIDDEN, INNER))
    run.cores = find_cores(run)
    names = {0: QUERIES, 1: "attention.core", 2: OUTPUT, 3 + len(more): UP, 4 + len(more): DOWN}
    run.labels = {at: Label(component, 0) for at, component in names.items()}
    return run


DGRADS = {
    QUERIES: _gemm(TOKENS, HIDDEN, 192),
    OUTPUT: _gemm(TOKENS, HIDDEN, HIDDEN),
    UP: _gemm(TOKENS, HIDDEN, INNER),
    DOWN: _gemm(TOKENS, INNER, HIDDEN),
}


def _between(first: str, last: str, *kinds: Kind, wgrad: str = "") -> list[str]:
    """What the kernels are between two stations of the gradient's path; ``wgrad`` stands before the last."""
    run = _run("backward", DGRADS[first], *kinds, DGRADS[last])
    run.labels = {0: Label(first, 0, role="dgrad"), len(run) - 1: Label(last, 0, role="dgrad")}
    for at, kind in enumerate(run.kinds):
        if wgrad and kind.name == "wgrad":
            run.labels[at] = Label(wgrad, 0, role="wgrad")
    label_gradients(run, _forward(), {HIDDEN}, None)
    return [run.labels[at].component if at in run.labels else "" for at in range(1, len(run) - 1)]


def test_the_gradient_of_a_product_without_a_name_is_of_none() -> None:
    forward = _forward(_gemm(TOKENS, HIDDEN, HIDDEN))
    core = Kind("core", "_flash_attention_backward", core=forward.kinds[1].core, backward=True)
    kinds = [DGRADS[DOWN], DGRADS[UP], DGRADS[OUTPUT], DGRADS[OUTPUT], core, DGRADS[QUERIES]]
    run = _run("backward", *kinds)
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    names = [DOWN, UP, "unattributed", OUTPUT, "attention.core", QUERIES]
    assert [run.labels[at].component for at in range(6)] == names


def test_what_scales_a_gradient_into_eight_bits_is_of_the_product_that_takes_it() -> None:
    """As wide as the vocabulary, it passed for the loss (modded-nanogpt, ``nanogpt::mm_backward``)."""
    wide = (TOKENS, VOCABULARY)
    loss = _fused("red_fused__log_softmax_backward_data_nll_loss_backward", wide, (TOKENS, 1))
    scaled = _fused("poi_fused__scaled_mm__to_copy_clone_div_permute", wide, wide, wide)
    run = _run("backward", loss, scaled, _gemm(TOKENS, HIDDEN, VOCABULARY), DGRADS[DOWN])
    run.labels = {2: Label("logits", None, role="dgrad"), 3: Label(DOWN, 0, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, VOCABULARY)
    assert [run.labels[at].component for at in range(2)] == ["loss", "logits"]


SUMS = (1, HIDDEN, 16), (1, 1, HIDDEN, 16)
SECOND = "per_fused_sum_view"


def test_partial_sums_of_rows_beside_those_of_a_norm_are_of_a_bias() -> None:
    first = _fused("red_fused_add_mul_sum_view", STREAM, ROWS, *SUMS)
    second = [_fused(SECOND, one, one[:-1]) for one in SUMS]
    assert _between(UP, DOWN, first, *second) == ["norm", DOWN, "norm"]


def test_a_row_of_queries_or_keys_is_of_their_bias() -> None:
    """Keys of another sequence (BLIP-2), whose length no product around has."""
    kernel = _fused("red_fused_sum_transpose_view", (4, 4, 48, 16), (1, HIDDEN, 9))
    run = _run("backward", _core(TOKENS, 64), kernel, DGRADS[OUTPUT])
    run.cores = find_cores(run)
    run.labels = {0: Label("attention.core", 2), 2: Label(OUTPUT, 1, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert run.labels[1] == Label(QUERIES, 2)


@pytest.mark.parametrize("several", [False, True])
def test_partial_sums_that_keep_a_dimension_are_of_a_bias(several: bool) -> None:
    """Beside those of a norm's weights; of two models' that a compiler mixes nothing tells which."""
    first = _fused("red_fused_add_native_layer_norm_backward_sum_view", STREAM, ROWS, SUMS[0], SUMS[0][1:])
    second = _fused(SECOND, SUMS[0], SUMS[0][:-1])
    run = _run("backward", DGRADS[UP], first, second, DGRADS[OUTPUT])
    run.labels = {0: Label(UP, 0, role="dgrad"), 3: Label(OUTPUT, 0, role="dgrad")}
    label_gradients(run, _forward(*([_core(320, 80)] if several else [])), {HIDDEN}, None)
    assert run.labels[2].component == ("unattributed" if several else OUTPUT)


def test_of_two_biases_summed_in_one_kernel_nothing_tells_which() -> None:
    first = _fused("red_fused_add_mul_sum_view", STREAM, ROWS, *SUMS, *SUMS)
    second = _fused(SECOND, SUMS[0], SUMS[0][:-1])
    assert _between(UP, OUTPUT, first, second) == ["norm", "unattributed"]


def test_gradients_of_experts_that_are_put_into_one_are_of_what_made_them() -> None:
    """Eight products of one expert each, summed into the stack of their weights (JetMoE)."""
    weight = (HIDDEN, INNER)
    stacked = _fused("poi_fused_add_select_backward", (8, *weight), *[weight] * 8)
    pair = _fused("poi_fused_add_select_backward", (8, *weight), weight)
    for kind, found in ((stacked, DOWN), (pair, "")):
        run = _run("backward", _gemm(HIDDEN, INNER, TOKENS), kind, DGRADS[OUTPUT])
        run.labels = {0: Label(DOWN, 0, role="wgrad"), 2: Label(OUTPUT, 0, role="dgrad")}
        label_gradients(run, _forward(), {HIDDEN}, None)
        assert (run.labels[1].component if 1 in run.labels else "") == found


def test_a_product_summed_over_samples_and_rows_is_of_no_bias() -> None:
    heads, statistic = (4, 4, 64, 16), (4, 64, 1)
    kernel = _fused("red_fused__to_copy_mul_sum_view", ROWS, heads, statistic, SUMS[1])
    assert _between(OUTPUT, QUERIES, kernel) == ["norm"]
    assert _between(DOWN, QUERIES, _fused(SECOND, SUMS[1], SUMS[1][:-1])) == [""]


def test_queries_keys_and_values_summed_in_one_are_of_their_bias() -> None:
    """nn.MultiheadAttention's in_proj_bias, in a real trace of a compiled model."""
    heads, name = 3 * [(4, 4, 64, 16)], "red_fused__unsafe_view_add_clone_select_backward_sum_transpose"
    assert _between(OUTPUT, QUERIES, _fused(name, *heads, (1, 1, 192, 8))) == [QUERIES]


ANOTHER = _fused("red_fused_exp_mul_softplus_sum_view", (4, 8, 1, 64), (8,), (1, 1, 8, 16))


def test_a_second_stage_is_what_its_first_is_and_of_no_name_where_that_has_none() -> None:
    norm = _fused("red_fused_add_mul_sum_view", STREAM, ROWS, (128,), SUMS[1])
    assert _between(UP, OUTPUT, norm, ANOTHER, _fused(SECOND, (1, 1, 8, 16), (1, 1, 8))) == ["norm", "", ""]
    others = [_fused("poi_fused_view", (7, 7))] * 14
    assert _between(UP, OUTPUT, norm, *others, _fused(SECOND, SUMS[1], SUMS[1][:-1]))[-1] == "norm"
    bent = _fused("per_fused_relu_sum_threshold_backward_view", (1, 1, INNER, 16), (1, 1, INNER))
    assert _between(UP, OUTPUT, bent) == [""]


def test_the_gradient_of_one_of_two_is_one_of_two() -> None:
    forward = _forward()
    forward.labels[3] = Label("unattributed", 0, candidates=("mlp.gate", UP))
    core = Kind("core", "_flash_attention_backward", core=forward.kinds[1].core, backward=True)
    run = _run("backward", DGRADS[DOWN], DGRADS[UP], DGRADS[OUTPUT], core, DGRADS[QUERIES])
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    assert run.labels[1].candidates == ("mlp.gate", UP)


@pytest.mark.parametrize(("name", "found"), [("add_mul_view", None), ("add_tanh_view", "other")])
def test_a_product_added_to_the_stream_is_no_transform_before_the_head(name: str, found: str | None) -> None:
    loss = Kind("loss", "cross_entropy", tensors=((TOKENS, 999),))
    kinds = [
        _gemm(TOKENS, HIDDEN, HIDDEN),
        _fused(f"poi_fused_{name}", STREAM, STREAM),
        _gemm(TOKENS, 999, HIDDEN),
    ]
    run = _run(
        "forward", *_forward().kinds[:4], _fused("poi_fused_gelu_view", (TOKENS, INNER)), _forward().kinds[4]
    )
    run = _run("forward", *run.kinds, *kinds, loss)
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    assert run.labels[8].component == "logits"
    assert (run.labels[6].component if 6 in run.labels else None) == found


@pytest.mark.parametrize(
    ("wgrad", "rows", "found"),
    [(DOWN, TOKENS, DOWN), (OUTPUT, TOKENS, OUTPUT), (OUTPUT, 2 * TOKENS, QUERIES)],
)
def test_a_sum_behind_the_gradient_of_a_weight_is_of_that_product(wgrad: str, rows: int, found: str) -> None:
    """It is of as many rows: of another sequence's it is not."""
    kernel = _fused("red_fused_sum_view", STREAM, SUMS[0])
    norm = _fused("per_fused_native_layer_norm_native_layer_norm_backward", STREAM, STREAM, (4, 64, 1))
    queries = DGRADS | {QUERIES: _gemm(TOKENS, HIDDEN, HIDDEN)}
    run = _run("backward", queries[QUERIES], norm, _gemm(HIDDEN, INNER, rows), kernel, DGRADS[DOWN])
    names = {0: (QUERIES, "dgrad"), 2: (wgrad, "wgrad"), 4: (DOWN, "dgrad")}
    run.labels = {at: Label(name, 0, role=role) for at, (name, role) in names.items()}  # type: ignore[arg-type]
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert run.labels[3].component == found


def test_zeros_between_two_products_of_one_part_serve_neither() -> None:
    assert _between(OUTPUT, OUTPUT, _fused("poi_fused_index_put_new_zeros", (512, HIDDEN))) == [""]


@pytest.mark.parametrize(("beside", "found"), [((4, 64, 1), "norm"), ((4, 1, 1), "")])
def test_a_statistic_of_each_row_is_of_a_norm_and_a_number_for_each_sample_is_not(
    beside: Dims, found: str
) -> None:
    kernel = _fused("red_fused_div_mul_sum_view", STREAM, ROWS, beside, SUMS[1])
    assert _between(UP, OUTPUT, kernel) == [found]


def test_a_sum_of_what_an_activation_gave_is_of_the_bias() -> None:
    bent = _fused("red_fused_gelu_gelu_backward_sum_view", (4, 64, INNER), (1, INNER, 16))
    assert _between(QUERIES, UP, bent) == [UP]


def test_one_attention_that_pools_all_tokens_does_not_say_how_many_rows_a_stream_has() -> None:
    forward = _run("forward", *_forward().kinds, *_forward().kinds, _gemm(4, HIDDEN, HIDDEN))
    names = dict(enumerate([QUERIES, "attention.core", OUTPUT, UP, DOWN] * 2 + [OUTPUT]))
    forward.labels = {at: Label(component, at // 5) for at, component in names.items()}
    run = _run("backward", DGRADS[DOWN], _fused(SECOND, (1, INNER, 16), (1, INNER)), DGRADS[UP])
    run.labels = {0: Label(DOWN, 0, role="dgrad"), 2: Label(UP, 0, role="dgrad")}
    label_gradients(run, forward, {HIDDEN}, None)
    assert run.labels[1].component == UP


NO_STATISTICS = _fused("poi_fused_add_mul_view", STREAM, ROWS, (HIDDEN,), (HIDDEN,), STREAM)


def test_a_scale_and_a_shift_are_a_norm_and_so_is_what_scales_their_gradient() -> None:
    forward = _run("forward", *_forward().kinds[:3], NO_STATISTICS, *_forward().kinds[3:])
    forward.cores = find_cores(forward)
    label_forward(forward, HIDDEN)
    label_between(forward, HIDDEN, None)
    assert forward.labels[3].component == "norm"
    run = _run(
        "backward", DGRADS[UP], _fused("poi_fused_add_mul_view", STREAM, ROWS, (HIDDEN,)), DGRADS[OUTPUT]
    )
    run.labels = {0: Label(UP, 0, role="dgrad"), 2: Label(OUTPUT, 0, role="dgrad")}
    label_gradients(run, forward, {HIDDEN}, None)
    assert run.labels[1].component == "norm"


@pytest.mark.parametrize(("name", "found"), [("add_mul_view", None), ("add_mul_tanh_view", UP)])
def test_a_product_added_to_a_wider_stream_opens_no_mlp(name: str, found: str | None) -> None:
    wide = (4, 64, INNER)
    middle = _fused(f"poi_fused_{name}", wide, wide, wide)
    kinds = _forward().kinds
    run = _run(
        "forward", *kinds[:4], middle, kinds[4], _fused("per_fused_add_native_layer_norm", STREAM, STREAM)
    )
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    assert (run.labels[3].component if 3 in run.labels else None) == found


def test_stages_with_fewer_tokens_each_are_one_model() -> None:
    fused = _fused("poi_fused_add", STREAM)
    run = _run("forward", fused, *[_core(tokens, 16) for tokens in (256, 256, 64, 64, 32, 32, 16, 16)])
    run.cores = find_cores(run)
    assert [stream.run for stream in streams(run)] == [run]


@pytest.mark.parametrize("behind_core", [True, False])
def test_queries_and_keys_made_ahead_are_not_what_takes_heads(behind_core: bool) -> None:
    between = [Kind("bmm", "bmm")] if behind_core else [Kind("norm", "native_layer_norm")]
    keys, queries = _gemm(128, HIDDEN, HIDDEN), _gemm(TOKENS, HIDDEN, HIDDEN)
    run = _run("forward", queries, *between, keys, keys, _core(TOKENS, 64, 32))
    run.cores = find_cores(run)
    label_ahead(run)
    assert [at for at, label in sorted(run.labels.items()) if label.component == QUERIES] == (
        [0] if behind_core else [0, 2, 3]
    )


@pytest.mark.parametrize("own", [True, False])
def test_two_attentions_of_one_sequence_share_their_queries(own: bool) -> None:
    """diffusers transformer_qwenimage21.py: words attend to words, a picture to both; what
    brought the picture onto the stream makes no queries."""
    beside = [Kind("elementwise", "slice") if own else _gemm(24, HIDDEN, HIDDEN)]
    run = _run("forward", _gemm(TOKENS, HIDDEN, 16), _core(128, 32), *beside, _core(TOKENS, 64, 32))
    run.cores = find_cores(run)
    label_ahead(run)
    assert (0 in run.labels) is not own


@pytest.mark.parametrize("whole", [True, False])
def test_keys_of_windows_around_are_made_with_the_queries(whole: bool) -> None:
    """simple_hierarchical_transformer.py: a local core takes more keys than queries, one product made all;
    what HierarchicalMerge brought onto the stream before makes none."""
    own = _gemm(TOKENS, (3 if whole else 2) * HIDDEN, HIDDEN)
    run = _run("forward", _gemm(TOKENS, HIDDEN, 16), Kind("norm", "layer_norm"), own, _core(TOKENS, 64, 32))
    run.cores = find_cores(run)
    run.labels[2] = Label("attention.qkv")
    label_ahead(run)
    assert (0 in run.labels) is not whole


@pytest.mark.parametrize(("times", "found"), [(8, "norm"), (2, "loss")])
def test_numbers_of_batches_are_counted_behind_the_loss(times: int, found: str) -> None:
    """Batch normalizations under torch.compile: sums of numbers, and no losses that are added up."""
    loss, counts = _fused("per_fused__log_softmax_nll_loss_forward", (4, 1000)), _fused("poi_fused_add_80")
    kinds = [*_forward().kinds, _gemm(4, 1000, HIDDEN), loss, *[counts] * times]
    run = _run("forward", *kinds)
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    label_between(run, HIDDEN, 1000)
    assert {run.labels[at].component for at in range(len(run) - times, len(run))} == {found}


def test_numbers_of_batches_are_counted_behind_a_layer_too() -> None:
    assert (
        _behind_mlp(*[_fused("poi_fused_add_67")] * 8, _fused("per_fused_mean", STREAM))[:8] == ["norm"] * 8
    )


@pytest.mark.parametrize(
    ("kernel", "found"), [("red_fused__native_batch_norm_legit_functional", "norm"), ("red_fused_sum", "")]
)
def test_one_whole_number_is_counted_by_a_normalization_of_batches(kernel: str, found: str) -> None:
    count = _fused("poi_fused_add_80")
    counts = replace(count, tags=count.tags | {"counts"})
    assert _behind_mlp(counts, _fused(kernel, STREAM, (4, 64)), counts)[::2] == [found] * 2


def test_numbers_of_batches_are_counted_where_no_attention_is_too() -> None:
    run = _run("forward", *[_fused("poi_fused_add_0")] * 4, _gemm(TOKENS, HIDDEN, HIDDEN))
    label_maps(run, None)
    assert {at: label.component for at, label in run.labels.items()} == dict.fromkeys(range(4), "norm")


def _behind_mlp(*kinds: Kind) -> list[str]:
    run = _forward()
    tail = _run("forward", *run.kinds, *kinds)
    tail.cores, tail.labels = run.cores, dict(run.labels)
    label_between(tail, HIDDEN, None)
    return [tail.labels[at].component if at in tail.labels else "" for at in range(len(run), len(tail))]


def test_a_residual_is_pointwise_and_adds_to_no_place() -> None:
    assert _behind_mlp(_fused("poi_fused_add_view", STREAM, ROWS, STREAM)) == ["residual"]
    assert _behind_mlp(_fused("red_fused_add_mean_mul", ROWS, STREAM, (4, HIDDEN, 2))) == [""]
    unshaped = [
        "poi_fused_add_arange_clamp_mul_sub",
        "poi_fused_add_clamp",
        "poi_fused_add_clamp_mul_reciprocal",
    ]
    assert _behind_mlp(*map(_fused, unshaped)) == ["", "", "residual"]


def test_what_takes_nothing_embeds_nothing() -> None:
    for tensors, found in (((STREAM,), None), ((ROWS, STREAM), "embedding")):
        run = _run(
            "forward", _fused("poi_fused_embedding", (99, HIDDEN), STREAM), _fused("poi_fused_mul", *tensors)
        )
        run = _run("forward", *run.kinds, *_forward().kinds)
        run.cores = find_cores(run)
        label_forward(run, HIDDEN)
        label_between(run, HIDDEN, None)
        assert (run.labels[1].component if 1 in run.labels else None) == found


def test_heads_are_normalized_before_their_projection() -> None:
    named = _forward()
    norm = _fused("red_fused_add_mean_mul_pow_rsqrt_view", (4, 64, 1), (4, 4, 64, 16), (HIDDEN,), STREAM)
    run = _run("forward", *named.kinds[:2], norm, *named.kinds[2:])
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    label_between(run, HIDDEN, None)
    assert run.labels[2].component == "norm"


def test_the_second_pass_of_a_norm_of_heads_has_the_statistic_of_the_first() -> None:
    heads, statistic = (4, 4, 64, 16), (4, 4, 64, 1)
    first = _fused("per_fused__to_copy_add_cat_cos_mean_mul_neg_pow_rsqrt_sin_view", ROWS, heads, statistic)
    second = _fused("poi_fused__to_copy_mul", (16,), heads, statistic, heads)
    products = [_gemm(TOKENS, HIDDEN, HIDDEN) for _ in range(3)]
    named = _forward()
    run = _run("forward", *products, first, second, *named.kinds[1:])
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    label_between(run, HIDDEN, None)
    assert [run.labels[at].component for at in (3, 4)] == ["attention.rope", "norm"]


def test_a_sum_of_the_stream_by_a_statistic_is_of_a_norms_weight() -> None:
    """The gradient of a mean of the last stream is one number, and no tensor."""
    kernel = _fused("red_fused__to_copy_div_expand_mul_sum", (), ROWS, (4, 64, 1), (1, 1, HIDDEN, 16))
    assert _between(DOWN, UP, kernel)[0] == "norm"


def _behind_core(*kinds: Kind) -> Run:
    """The gradients between those of a core and of what makes its queries."""
    run = _run("backward", _core(TOKENS, 64), *kinds, DGRADS[QUERIES])
    run.cores = find_cores(run)
    run.labels = {0: Label("attention.core", 0), len(kinds) + 1: Label(QUERIES, 0, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, None)
    return run


def test_heads_side_by_side_that_are_turned_are_no_norm() -> None:
    name = "red_fused_add_mul_neg_permute_slice_slice_backward_sum_unsqueeze_view"
    turn = _fused(name, (4, 4, 64, 16), ROWS, STREAM, ROWS, STREAM, (64, 16), (64, 16))
    run = _behind_core(turn)
    assert run.labels[1].component == "attention.rope"


@pytest.mark.parametrize(
    ("name", "found"),
    [("_scaled_dot_product_flash_attention", "attention.core"), ("mul_transpose_view", "attention.other")],
)
def test_what_lays_out_a_cores_result_is_of_the_core(name: str, found: str) -> None:
    kinds = _forward().kinds
    laid = _run("forward", *kinds[:2], _fused(f"poi_fused_{name}", (4, 4, 64, 16), ROWS), *kinds[2:])
    laid.cores = find_cores(laid)
    label_forward(laid, HIDDEN)
    label_between(laid, HIDDEN, None)
    assert laid.labels[2].component == found


@pytest.mark.parametrize(("rows", "found"), [((TOKENS, 192), QUERIES), ((TOKENS, 32), "attention.other")])
def test_heads_put_side_by_side_are_as_the_product_behind_takes_them(rows: Dims, found: str) -> None:
    lays_out = _fused("poi_fused__unsafe_view_clone_transpose_view", (16, 64, 48), rows)
    run = _behind_core(lays_out, *[_fused("poi_fused_mul_view", (7, 7))] * 6)
    assert run.labels[1].component == found


def test_gradients_that_accumulate_are_of_the_table_as_large() -> None:
    table, other = (VOCABULARY, HIDDEN), (VOCABULARY + 1, HIDDEN)  # which nothing looks up in
    forward = _forward()
    forward.kinds.insert(0, Kind("embedding", "embedding", tensors=(table, (4, 64))))
    forward.labels = {at + 1: label for at, label in forward.labels.items()}
    sums = [Kind("add", "add_", tensors=(size, size)) for size in (table, other)]
    run = _run("backward", DGRADS[QUERIES], *sums)
    run.labels = {0: Label(QUERIES, 0, role="dgrad")}
    label_gradients(run, forward, {HIDDEN}, None)
    assert [run.labels[at].component if at in run.labels else "" for at in (1, 2)] == ["embedding", ""]


def test_groups_of_keys_are_summed_and_have_no_products_bias() -> None:
    """There are as many samples as a router has experts."""
    shared = _fused("per_fused_sum_view", (4, 4, 64, 16), (4, 2, 1, 64, 16))
    run = _run("backward", _gemm(TOKENS, HIDDEN, 4), _core(TOKENS, 64), shared, DGRADS[QUERIES])
    run.cores = find_cores(run)
    names = {0: "moe.router", 1: "attention.core", 3: QUERIES}
    run.labels = {at: Label(name, 0, role=None if at == 1 else "dgrad") for at, name in names.items()}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert run.labels[2].component == "attention.other"


def test_groups_of_keys_are_summed_and_are_no_norms_weight() -> None:
    sums = _fused("poi_fused_clone_squeeze_sum_transpose_view", (4, 4, 64, 16), (4, HIDDEN, 2, 16))
    weight = _fused("red_fused_clone_squeeze_sum_transpose_view", (4, 4, 64, 16), (1, 1, 1, 16, 8))
    run = _behind_core(sums, weight)
    assert [run.labels[at].component for at in (1, 2)] == ["attention.other", "norm"]


def test_a_sum_over_one_token_of_each_sample_is_of_the_embedding() -> None:
    first = _fused("per_fused_slice_sum", STREAM, (1, 1, HIDDEN))
    bias = _fused("red_fused_sum_view", ROWS, (1, HIDDEN, 16))
    run = _run("backward", DGRADS[QUERIES], bias, first)
    run.labels = {0: Label(QUERIES, 0, role="dgrad")}
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert run.labels[2].component == "embedding"


@pytest.mark.parametrize("turned", [True, False])
def test_weights_of_an_mlp_can_be_stored_as_the_heads_is_not(turned: bool) -> None:
    """GPT-2's are [in, out], its head's [out, in]; attention that is square tells neither."""
    forward = _run("forward", _gemm(TOKENS, HIDDEN, HIDDEN), _core(TOKENS, 64), _gemm(TOKENS, HIDDEN, HIDDEN))
    wide = 320  # not as many as there are tokens
    layer = [*forward.kinds, _gemm(TOKENS, wide, HIDDEN), _gemm(TOKENS, HIDDEN, wide)]
    forward = _run("forward", *layer * 2, _gemm(TOKENS, 999, HIDDEN))
    forward.cores = find_cores(forward)
    names = [QUERIES, "attention.core", OUTPUT, UP, DOWN]
    forward.labels = {at: Label(names[at % 5], at // 5) for at in range(10)} | {10: Label("logits")}
    core = Kind("core", "_flash_attention_backward", core=forward.kinds[1].core, backward=True)
    sizes = (HIDDEN, wide) if turned else (wide, HIDDEN)
    up, down = _gemm(*sizes, TOKENS), _gemm(*sizes[::-1], TOKENS)
    square, other = _gemm(HIDDEN, HIDDEN, TOKENS), DGRADS[OUTPUT]
    mlp = [_gemm(TOKENS, wide, HIDDEN), down, _gemm(TOKENS, HIDDEN, wide), up]
    back = [*mlp, other, square, core, other, square]
    head = [_gemm(TOKENS, HIDDEN, 999), _gemm(999, HIDDEN, TOKENS)]
    run = _run("backward", *head, *back * 2)
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    assert [run.labels[at].component for at in range(2, 6)] == [DOWN, DOWN, UP, UP]


def test_weights_that_are_put_off_to_the_end_have_their_biases_behind_them() -> None:
    sums = _fused("red_fused_sum_view", STREAM, (1, HIDDEN, 3))
    square = _gemm(HIDDEN, HIDDEN, TOKENS)
    run = _run("backward", DGRADS[OUTPUT], square, sums, square, sums)
    run.labels = {0: Label(QUERIES, 0, role="dgrad"), 1: Label(OUTPUT, 0, role="wgrad")}
    run.labels[3] = Label(QUERIES, 0, role="wgrad")
    label_gradients(run, _forward(), {HIDDEN}, None)
    assert [run.labels[at].component for at in (2, 4)] == [OUTPUT, QUERIES]


def test_the_gradient_of_a_norms_weight_is_cast() -> None:
    cast = _fused("poi_fused_native_layer_norm_backward", (16,), (16,))
    run = _behind_core(cast)
    assert run.labels[1].component == "norm"


@pytest.mark.parametrize(
    "name",
    ["clamp_min_div_expand_mul_neg_sum_view", "_softmax_backward_data_mul_sum_view", "div_mul_neg_sum_view"],
)
def test_cosines_shares_and_softmaxes_have_statistics_and_are_no_norm(name: str) -> None:
    heads, statistic = (16, 64, 16), (4, 4, 64, 1)
    kernel = _fused(f"per_fused_{name}", heads, ROWS, statistic, STREAM)
    run = _behind_core(kernel)
    assert run.labels[1].component == "attention.other"


def test_partial_sums_as_few_as_classes_are_of_no_head() -> None:
    head = _gemm(4, HIDDEN, 2)
    sums = _fused("red_fused_masked_fill_sum_threshold_backward_view", (1, 13, 13, 512), (1, 512, 2))
    zeros = _fused("poi_fused_clone_index_index_put_mul_new_zeros_sigmoid_sigmoid_backward_view", (169, 4))
    others = [_fused("poi_fused_view", (7, 7))] * 14
    run = _run("backward", zeros, head, DGRADS[DOWN], *others, DGRADS[UP], sums, DGRADS[OUTPUT])
    names = {1: "logits", 2: DOWN, 17: UP, 19: OUTPUT}
    run.labels = {at: Label(name, 0, role="dgrad") for at, name in names.items()}
    label_gradients(run, _forward(), {HIDDEN}, 2)
    assert {run.labels[at].component for at in (0, 18) if at in run.labels} & {"logits", "loss"} == set()


def test_a_norm_of_heads_without_a_weight_has_a_second_pass_too() -> None:
    heads, statistic = (4, 4, 64, 16), (4, 4, 64, 1)
    first = _fused("per_fused__to_copy_add_mean_mul_pow_rsqrt_view", ROWS, heads, statistic)
    products = [_gemm(TOKENS, HIDDEN, HIDDEN) for _ in range(3)]
    run = _run("forward", *products, first, _fused("poi_fused__to_copy_mul", heads, statistic, heads))
    run = _run("forward", *run.kinds, *_forward().kinds[1:])
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    label_between(run, HIDDEN, None)
    assert run.labels[4].component == "norm"


def test_queries_that_are_normed_over_all_heads_can_have_adapters() -> None:
    """OLMo 2's, as peft adapts them: the norm behind the sum is of the queries, and not of the stream."""
    mul, add = Kind("elementwise", "mul", tensors=(ROWS,)), Kind("add", "add", tensors=(ROWS, ROWS))
    norm = Kind("norm", "rms_norm", tensors=(ROWS, (HIDDEN,)))
    adapted = [_gemm(TOKENS, HIDDEN, HIDDEN), _gemm(TOKENS, 4, HIDDEN), _gemm(TOKENS, HIDDEN, 4), mul, add]
    run = _run("forward", *adapted, norm, *adapted, norm, *adapted, *_forward().kinds[1:])
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    assert {run.labels[at].component for at in (0, 1, 2, 6, 7, 8, 12, 13, 14) if at in run.labels} == {
        QUERIES
    }
    assert {0, 6, 12} <= run.labels.keys()
