"""The backward of a compiled step without shapes, on the few units that each rule rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.attribution.structure.backward import label_products
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.layouts import Ahead, label_by_layout
from tracelens.attribution.structure.readings import read_gap
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.attribution.structure.unshaped import label_unshaped
from tracelens.gemm import GemmShape
from tracelens.gemm.inductor import parse_fused

DGRAD, WGRAD = Kind("gemm", "mm"), Kind("gemm", "addmm")
BMM = Kind("bmm", "bmm")
CORE = Kind("core", "_flash_attention_backward", backward=True)
QUERIES, OUTPUT, UP, DOWN = "attention.qkv", "attention.output", "mlp.up", "mlp.down"


def _fused(name: str) -> Kind:
    fused = parse_fused(f"triton_{name}_0")
    assert fused is not None
    return Kind("fused", f"triton_{name}_0", tags=fused.tags)


SOFTMAX = _fused("per_fused__softmax_backward_data_view")
COPY = _fused("poi_fused_clone_transpose_view")
NORM = _fused("red_fused_native_layer_norm_backward_view")


def _backward(*kinds: Kind) -> Run:
    return Run("backward", [*range(len(kinds))], [*kinds])


def _label(run: Run, *products: list[str]) -> dict[int, str]:
    """Components by place, of a backward to these products of a forward, cut at its cores."""
    run.cores = find_backward_cores(run, [])
    layouts: dict[int, str | None] = {at: "NN" for at, kind in enumerate(run.kinds) if kind is DGRAD}
    layouts |= {at: "NT" for at, kind in enumerate(run.kinds) if kind is WGRAD}
    keys: dict[int, object] = {
        at: number for number, at in enumerate(at for at, kind in enumerate(run.kinds) if kind is WGRAD)
    }
    ahead = [[Label(component, 0) for component in labels] for labels in products]
    label_by_layout(run, 0, Ahead(ahead, False), layouts, keys)
    return {at: label.component for at, label in run.labels.items()}


def test_an_unfused_core_is_found_around_the_gradient_of_its_softmax() -> None:
    found = _label(_backward(DGRAD, BMM, BMM, SOFTMAX, BMM, BMM, COPY, DGRAD), [QUERIES], [OUTPUT])
    assert [found[at] for at in (0, 1, 2, 3, 4, 5, 7)] == [
        OUTPUT,
        *["attention.values"] * 2,
        "attention.softmax",
        *["attention.scores"] * 2,
        QUERIES,
    ]


def test_what_lays_out_inside_an_unfused_core_and_between_queries_and_keys_is_of_attention() -> None:
    kinds = (DGRAD, BMM, BMM, COPY, SOFTMAX, COPY, BMM, BMM, COPY, DGRAD, COPY, DGRAD)
    found = _label(_backward(*kinds), [QUERIES] * 2, [OUTPUT])
    assert [found.get(at) for at in (3, 5, 8, 10)] == ["attention.other"] * 2 + [QUERIES] * 2


TURN = _fused("poi_fused_add_cat_cos_mul_neg_sin_slice_slice_backward")
HALVES, STREAMS = _fused("poi_fused_add_cat_slice_slice_backward"), _fused("poi_fused_add_mul_view")


def test_heads_turn_back_behind_an_mlp_beside_their_attention() -> None:
    """GPT-NeoX's: between the gradients of the MLP and of the queries stands work on these."""
    bent = _fused("poi_fused_gelu_gelu_backward_view")
    kinds = (DGRAD, DGRAD, CORE, bent, DGRAD, TURN, HALVES, STREAMS, DGRAD)
    run = _backward(*kinds)
    run.labels = {0: Label(DOWN, 0, role="dgrad"), 1: Label(OUTPUT, 0, role="dgrad")}
    run.labels |= {4: Label(UP, 0, role="dgrad"), 8: Label(QUERIES, 0, role="dgrad")}
    run.cores = find_backward_cores(run, [])
    label_by_layout(run, 0, Ahead([[], []], False), {}, {})
    found = [run.labels[at].component if at in run.labels else None for at in (3, 5, 6, 7)]
    assert found == ["mlp.activation", "attention.rope", "attention.other", None]


def test_the_gradient_of_queries_that_are_normed_and_turned_is_of_no_bias() -> None:
    both = _fused("per_fused__to_copy_add_cat_cos_div_expand_mul_neg_pow_sin_slice_slice_backward_sum_view")
    assert _label(_backward(DGRAD, CORE, both, DGRAD), [QUERIES], [OUTPUT])[2] == "norm"


def test_the_gradient_of_the_values_can_go_on_before_that_of_the_scores() -> None:
    kinds = (DGRAD, BMM, COPY, WGRAD, DGRAD, BMM, SOFTMAX, BMM, BMM, DGRAD, DGRAD)
    found = _label(_backward(*kinds), [QUERIES] * 3, [OUTPUT])
    assert [found[at] for at in (0, 4, 9, 10)] == [OUTPUT, QUERIES, QUERIES, QUERIES]
    assert found[1] == found[5] == "attention.values"


def test_batches_of_experts_behind_a_normalization_are_of_no_core() -> None:
    (core,) = find_backward_cores(_backward(BMM, NORM, DGRAD, BMM, SOFTMAX, BMM, BMM), [])
    assert core.first == 3


def test_the_softmax_of_a_router_is_no_core() -> None:
    assert find_backward_cores(_backward(BMM, BMM, SOFTMAX, DGRAD, DGRAD), []) == []


def test_cores_with_no_product_between_are_one_attention() -> None:
    run = Run("forward", [*range(4)], [DGRAD, Kind("core", "flash"), Kind("core", "flash"), DGRAD])
    run.kinds.append(COPY)
    (core,) = find_cores(run)
    assert (core.first, core.last) == (1, 2)


def test_grouped_products_are_experts_and_state_no_layout() -> None:
    grouped, bent = Kind("gemm", "_grouped_mm"), _fused("poi_fused_cat_mul_silu_silu_backward_split")
    found = _label(
        _backward(DGRAD, grouped, bent, grouped, DGRAD, CORE, DGRAD), [QUERIES], [OUTPUT, "moe.router"]
    )
    assert [found[at] for at in (0, 1, 2, 3, 4, 6)] == [
        "moe.router",
        *["moe.experts"] * 3,
        OUTPUT,
        QUERIES,
    ]


SUM, SUM_ALIKE = _fused("red_fused_sum_view"), _fused("per_fused_native_layer_norm_backward_sum_view")
SCALE = _fused("red_fused__to_copy_mul_sum_view")


@pytest.mark.parametrize(("between", "found"), [([SUM], OUTPUT), ([SCALE], "norm"), ([COPY, SUM], None)])
def test_a_sum_right_behind_the_gradient_of_a_weight_is_of_its_bias(
    between: list[Kind], found: str | None
) -> None:
    run = _backward(CORE, DGRAD, CORE, DGRAD, WGRAD, *between)
    run.cores = find_backward_cores(run, [])
    run.labels[4] = Label(OUTPUT, 0, role="wgrad")
    label_by_layout(run, 0, Ahead([[], [], []], False), {}, {})
    last = run.labels.get(len(run) - 1)
    assert (last.component if last else None) == found


def test_a_sum_named_after_the_normalization_whose_result_it_reads_is_of_none() -> None:
    found = _label(_backward(DGRAD, NORM, SUM_ALIKE, DGRAD, CORE, DGRAD), [QUERIES], [OUTPUT, UP])
    assert found[1] == "norm"
    assert 2 not in found


def test_the_second_stage_behind_an_activation_is_of_the_bias_before_it() -> None:
    stages = _fused("red_fused_gelu_gelu_backward_sum_view"), _fused("per_fused_gelu_gelu_backward_sum_view")
    found = _label(_backward(DGRAD, *stages, DGRAD, DGRAD, CORE, DGRAD), [QUERIES], [OUTPUT, UP, DOWN])
    assert (found[1], found[2]) == ("mlp.activation", UP)


@pytest.mark.parametrize("first", [True, False])
def test_weights_of_norms_are_summed_beside_these(first: bool) -> None:
    norm = _fused("red_fused__to_copy_add_div_expand_mul_pow_sum_view")
    sums = [SCALE, _fused("per_fused__to_copy_mul_sum_view")]
    kinds = [*sums, norm] if first else [norm, *sums]
    found = _label(_backward(DGRAD, *kinds, DGRAD, CORE, DGRAD), [QUERIES], [OUTPUT, UP])
    assert [found.get(at) for at in (1, 2, 3)] == ["norm"] * 3


def test_a_table_filled_with_zeros_is_of_the_embedding() -> None:
    fill = _fused("poi_fused_embedding_dense_backward_native_layer_norm_native_layer_norm_backward")
    assert _label(_backward(DGRAD, CORE, DGRAD, fill), [QUERIES], [OUTPUT])[3] == "embedding"


def test_behind_the_last_layer_comes_its_normalization_whatever_is_filled_and_summed_between() -> None:
    norm = _fused("red_fused__to_copy_add_div_embedding_dense_backward_expand_mul_pow_sum_view")
    fill = _fused("poi_fused__to_copy_add_div_embedding_dense_backward_expand_mul_pow_view")
    put_off = _fused("per_fused__to_copy_mul_sum_view")
    found = _label(_backward(DGRAD, CORE, DGRAD, put_off, fill, norm), [QUERIES], [OUTPUT])
    assert (found[4], found[5]) == ("embedding", "norm")


@pytest.mark.parametrize("opens", [[WGRAD], [Kind("convolution", "convolution_backward")], []])
def test_behind_a_product_of_no_name_nothing_is_of_attention(opens: list[Kind]) -> None:
    """Nor behind a convolution, which can be of blocks of another kind (MobileNetV5), and neither is that."""
    scale = _fused("poi_fused_add_mul_view")
    between = [*opens, scale]
    run = _backward(DGRAD, CORE, *between, DGRAD)
    run.cores = find_backward_cores(run, [])
    run.labels = {0: Label(OUTPUT, 0, role="dgrad"), 1: Label("attention.core", 0)}
    run.labels[len(run) - 1] = Label(QUERIES, 0, role="dgrad")
    label_unshaped(run, 0)
    assert (len(run) - 2 in run.labels) is not bool(opens)
    assert not opens or 2 not in run.labels


CENTRED = "native_layer_norm_native_layer_norm_backward"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (f"red_fused_add_mul_{CENTRED}_sum_view", "norm"),  # with the gradient of a layer's scale
        (f"red_fused_add_{CENTRED}_sum_view", None),  # of the bias beside it, as likely
    ],
)
def test_a_sum_of_a_norm_and_of_a_scale_is_of_the_norm(name: str, found: str | None) -> None:
    labels = _label(_backward(DGRAD, NORM, _fused(name), DGRAD, CORE, DGRAD), [QUERIES], [OUTPUT, UP])
    assert labels.get(2) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("red_fused_native_layer_norm_backward_view", "norm"),
        ("red_fused__to_copy_add_div_embedding_dense_backward_expand_mul_pow_sum_view", "norm"),
        ("red_fused_native_layer_norm_backward_sum_view", None),
    ],
)
def test_weights_of_the_first_norm_are_summed_behind_all(name: str, found: str | None) -> None:
    """Behind sums that are of something else."""
    beside = _fused("red_fused_add_mul_select_backward_sum_transpose_view")
    labels = _label(_backward(DGRAD, CORE, DGRAD, beside, _fused(name)), [QUERIES], [OUTPUT])
    assert labels.get(4) == found


def test_before_the_gradient_of_patches_the_first_norm_is_laid_out_for_it() -> None:
    laid_out = _fused("poi_fused_add_convolution_backward_native_layer_norm_backward_slice_transpose_view")
    patches = Kind("convolution", "convolution_backward")
    found = _label(_backward(DGRAD, CORE, DGRAD, laid_out, patches), [QUERIES], [OUTPUT])
    assert (found.get(3), found.get(4)) == ("norm", "embedding")


def test_an_activation_that_keeps_its_mask_is_one() -> None:
    linear, norm = Kind("gemm", "addmm"), Kind("norm", "native_layer_norm")
    relu = _fused("poi_fused_relu_threshold_backward_view")
    run = Run("forward", [*range(8)], [linear, norm, linear, relu, linear, norm, linear, linear])
    assert read_gap(run, [0, 2, 4, 6, 7]) == (OUTPUT, UP, DOWN, QUERIES, QUERIES)


LOSS = _fused("red_fused__log_softmax_backward_data_view")
LOSS_SUM = _fused("red_fused__log_softmax_backward_data_sum_view")


def test_a_backward_begins_with_the_head_whatever_follows() -> None:
    kinds = [LOSS, LOSS_SUM, DGRAD, WGRAD, SUM, NORM, *[DGRAD] * 3, CORE, DGRAD]
    found = _label(_backward(*kinds), [QUERIES], [OUTPUT, UP, DOWN, "logits"])
    assert [found[at] for at in range(5)] == ["loss", *["logits"] * 4]


@pytest.mark.parametrize(("scaled_for", "part"), [("_scaled_mm_", "logits"), ("", "loss")])
def test_what_a_head_in_eight_bits_takes_is_scaled_for_it(scaled_for: str, part: str) -> None:
    scaled = _fused(f"poi_fused_{scaled_for}_to_copy_clone_div_lift_fresh_permute")
    kinds = [LOSS, scaled, DGRAD, WGRAD, SUM, NORM, *[DGRAD] * 3, CORE, DGRAD]
    found = _label(_backward(*kinds), [QUERIES], [OUTPUT, UP, DOWN, "logits"])
    assert [found[at] for at in range(3)] == ["loss", part, "logits"]


def test_in_a_backward_that_begins_with_a_normalization_nothing_is_the_head() -> None:
    found = _label(_backward(NORM, DGRAD, WGRAD, CORE, DGRAD), [QUERIES], [OUTPUT, "logits"])
    assert 1 not in found


@pytest.mark.parametrize("router_first", [True, False])
def test_a_router_beside_an_expert_of_all_tokens_is_told_by_the_activation(router_first: bool) -> None:
    bent = _fused("poi_fused_mul_silu_silu_backward")
    shared = [DGRAD, bent, DGRAD]
    kinds = [DGRAD, *shared] if router_first else [*shared, DGRAD]
    found = _label(_backward(*kinds, CORE, DGRAD), [QUERIES], ["moe.experts", "moe.experts", "moe.router"])
    assert (found.get(0) == "moe.router") == router_first
    assert ("moe.router" in found.values()) == router_first


def test_a_mask_of_all_heads_does_not_say_how_many_there_are() -> None:
    shape = GemmShape(64, 64, 16, 8, None, None, None)
    scores, softmax = Kind("bmm", "bmm", gemm=shape), Kind("softmax", "_softmax")
    values = Kind("bmm", "bmm", gemm=GemmShape(64, 16, 64, 8, None, None, None))
    for mask, heads in (((2, 1, 64, 64), None), ((2, 4, 64, 64), 4), ((8, 1, 64, 64), 1)):
        run = Run("forward", [0, 1, 2], [scores, replace(softmax, tensors=((8, 64, 64), mask)), values])
        assert find_cores(run)[0].heads == heads


def _order(*sizes: tuple[int, int]) -> tuple[Run, Run]:
    """A forward of queries of 64, keys of 32 and an output; a backward with weights' gradients at its end."""
    made = [("attention.qkv", 64), ("attention.qkv", 32), ("attention.output", 64)]
    gemms = [Kind("gemm", "mm", gemm=GemmShape(128, n, 64, 1, None, None, None)) for _, n in made]
    forward = Run("forward", [*range(4)], [*gemms[:2], Kind("core", "flash"), gemms[2]])
    forward.cores = find_cores(forward)
    forward.labels = {at: Label(made[min(at, 2)][0], 0) for at in (0, 1, 3)} | {2: Label("attention.core", 0)}
    path = [GemmShape(128, 64, n, 1, None, None, None) for n in (64, 32, 64)]
    steps = [Kind("gemm", "mm", gemm=one) for one in path]
    late = [Kind("gemm", "mm", gemm=GemmShape(n, k, 128, 1, None, None, None)) for n, k in sizes]
    kinds = [steps[0], CORE, *late[:-2], *steps[1:], *late[-2:]]
    backward = Run("backward", [*range(len(kinds))], kinds)
    backward.cores = find_backward_cores(backward, [forward])
    return forward, backward


def test_of_equal_gradients_put_off_alone_nothing_tells_the_order() -> None:
    forward, backward = _order((32, 64), (64, 64), (64, 64))
    label_products(backward, forward, {})
    last = [backward.labels[at] for at in (5, 6)]
    assert [(one.component, one.candidates) for one in last] == [("unattributed", (OUTPUT, QUERIES))] * 2


def test_a_kernel_that_only_draws_by_chance_is_dropout() -> None:
    assert parse_fused("triton_poi_fused_add_floor_rand_7").tags >= {"dropout", "random"}  # type: ignore[union-attr]


@pytest.mark.parametrize("behind", [True, False])
def test_gradients_of_weights_beside_those_of_what_they_multiply(behind: bool) -> None:
    """One more at the end, of a product that has no name, so that their number says nothing."""
    pair = [DGRAD, WGRAD] if behind else [WGRAD, DGRAD]
    layer = [*pair * 2, CORE, *pair]
    run = _backward(DGRAD, *layer, *layer, WGRAD)
    run.cores = find_backward_cores(run, [])
    of_layer = [DOWN, OUTPUT, QUERIES]
    products = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    keys: dict[int, object] = dict(zip(products, [*of_layer * 2, "other"], strict=True))
    layouts: dict[int, str | None] = {at: "NN" for at, kind in enumerate(run.kinds) if kind is DGRAD}
    layouts |= dict.fromkeys(products, "NT")
    ends = [[Label(OUTPUT, layer), Label(DOWN, layer)] for layer in (0, 1)]
    ahead = [[Label(QUERIES, 0)], [*ends[0], Label(QUERIES, 1)], [*ends[1], Label("logits")]]
    label_by_layout(run, 0, Ahead(ahead, False), layouts, keys)
    assert [run.labels[at].component for at in products[:-1]] == of_layer * 2


@pytest.mark.parametrize("shifted", [True, False])
def test_an_order_of_weights_that_most_neighbours_gainsay_is_none(shifted: bool) -> None:
    """As many gradients of weights as products; that of the first of these is put off, or none."""
    head = [DGRAD] if shifted else [DGRAD, WGRAD]
    layer = [DGRAD, WGRAD, DGRAD, WGRAD, CORE, DGRAD, WGRAD]
    run = _backward(*head, *layer, *layer, *layer, *[WGRAD] * shifted)
    run.cores = find_backward_cores(run, [])
    layouts: dict[int, str | None] = {at: "NN" for at, kind in enumerate(run.kinds) if kind is DGRAD}
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    layouts |= dict.fromkeys(weights, "NT")
    of_layer = [DOWN, OUTPUT, QUERIES]
    known = [*of_layer * 3, DOWN] if shifted else ["other", *of_layer * 3]
    ends = [[Label(OUTPUT, layer), Label(DOWN, layer)] for layer in (0, 1, 2)]
    ahead = [[Label(QUERIES, 0)], [*ends[0], Label(QUERIES, 1)], [*ends[1], Label(QUERIES, 2)]]
    ahead += [[*ends[2], Label("other")]]
    label_by_layout(run, 0, Ahead(ahead, False), layouts, dict(zip(weights, known, strict=True)))
    assert [run.labels[at].component for at in weights] == [
        *(["other"] if not shifted else []),
        *of_layer * 3,
        *(["other"] if shifted else []),
    ]


@pytest.mark.parametrize("many", [1, 2])
def test_gradients_of_routers_are_told_by_their_other_layout(many: int) -> None:
    """A router in float32: both of its gradients are TN, or one, where the other is fused; its experts of all
    tokens are read as an MLP."""
    odd = Kind("gemm", "mm")
    act = _fused("poi_fused_mul_silu_silu_backward")
    mlp = [*many * [odd], WGRAD, DGRAD, act, WGRAD, DGRAD, WGRAD, DGRAD]
    layer = [*mlp, WGRAD, DGRAD, CORE, WGRAD, DGRAD]
    run = _backward(WGRAD, DGRAD, NORM, *layer, NORM, *layer)
    run.cores = find_backward_cores(run, [])
    layouts: dict[int, str | None] = {at: "NN" for at, kind in enumerate(run.kinds) if kind is DGRAD}
    layouts |= {at: "NT" for at, kind in enumerate(run.kinds) if kind is WGRAD}
    layouts |= {at: "TN" for at, kind in enumerate(run.kinds) if kind is odd}
    experts = 3 * ["moe.experts"]
    ends = [[Label(part, x) for part in (OUTPUT, *experts, "moe.router")] for x in (0, 1)]
    ahead = [[Label(QUERIES, 0)], [*ends[0], Label(QUERIES, 1)], [*ends[1], Label("logits")]]
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    keys: dict[int, object] = dict(zip(weights, ["head", *2 * [*experts, OUTPUT, QUERIES]], strict=True))
    label_by_layout(run, 0, Ahead(ahead, False), layouts, keys)
    said = [run.labels[at].component for at in run.products()]
    pairs = [*many * ["moe.router"], *6 * ["moe.experts"], *2 * [OUTPUT], *2 * [QUERIES]]
    assert said == [*2 * ["logits"], *2 * pairs]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_the_gradient_of_a_tied_table_is_behind_its_own_models(place: int) -> None:
    """First, between a decoder's and an encoder's, or last: it takes as long as that of the logits."""
    layer = [DGRAD, WGRAD, DGRAD, WGRAD, CORE, DGRAD, WGRAD]
    run = _backward(DGRAD, *layer, *layer)
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    before = weights[place - 1] + 1 if place else 1
    run = _backward(*run.kinds[:before], WGRAD, *run.kinds[before:])
    run.cores = find_backward_cores(run, [])
    layouts: dict[int, str | None] = {at: "NN" for at, kind in enumerate(run.kinds) if kind is DGRAD}
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    layouts |= dict.fromkeys(weights, "NT")
    ends = [[Label(OUTPUT, layer), Label(DOWN, layer)] for layer in (0, 1)]
    ahead = [[Label(QUERIES, 0)], [*ends[0], Label(QUERIES, 1)], [*ends[1], Label("logits")]]
    busy = dict.fromkeys(run.products(), 10) | {0: 900, weights[place]: 900}
    known = 2 * [DOWN, OUTPUT, QUERIES]
    known.insert(place, DOWN)  # its kernel is that of another product, too
    keys: dict[int, object] = dict(zip(weights, known, strict=True))
    label_by_layout(run, 0, Ahead(ahead, False), layouts, keys, busy)
    found = [run.labels[at].component for at in weights]
    assert found == [*known[:place], "logits", *known[place + 1 :]]


@pytest.mark.parametrize("lost", [True, False])
def test_between_a_loss_and_its_head_no_norm_is_summed(lost: bool) -> None:
    """Logits that are scaled before the loss; without a loss it is the last norm's weight."""
    name = "per_fused__log_softmax__log_softmax_backward_data_nll_loss_backward"
    loss, sums = _fused(name), _fused("red_fused__to_copy__unsafe_view_mul_sum_view")
    run = _backward(*[loss] * lost, sums, DGRAD, CORE, DGRAD)
    found = _label(run, [QUERIES], ["logits"] if lost else [OUTPUT])
    assert (found.get(int(lost)) == "norm") is not lost
