"""The backward without shapes where a compiler moved products, or a model has stages: on few units."""

from __future__ import annotations

import pytest

from tests.attribution.test_unshaped_backward import _fused
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.gaps import Interval
from tracelens.attribution.structure.layouts import Ahead, forward_order, label_by_layout
from tracelens.attribution.structure.ordered import label_by_order
from tracelens.attribution.structure.readings import read_two
from tracelens.attribution.structure.returns import OPEN as OPENED
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind

DGRAD, WGRAD, BMM = Kind("gemm", "mm"), Kind("gemm", "addmm"), Kind("bmm", "bmm")
CORE = Kind("core", "_flash_attention_backward", backward=True)
QUERIES, OUTPUT, UP, DOWN, OPEN = "attention.qkv", "attention.output", "mlp.up", "mlp.down", "unattributed"


NORM = _fused("per_fused_native_layer_norm_native_layer_norm_backward")
BENT = _fused("poi_fused_gelu_gelu_backward")
SUM = _fused("red_fused_mul_native_layer_norm_backward_sum_view")
MLP = [DGRAD, BENT, DGRAD]


def _backward(*kinds: Kind) -> Run:
    run = Run("backward", [*range(len(kinds))], [*kinds])
    run.cores = find_backward_cores(run, [])
    return run


def _label(run: Run, ahead: list[list[Label]], keys: dict[int, object] | None = None) -> dict[int, str]:
    layouts: dict[int, str | None] = {at: "NN" for at, kind in enumerate(run.kinds) if kind is DGRAD}
    layouts |= {at: "NT" for at, kind in enumerate(run.kinds) if kind is WGRAD}
    label_by_layout(run, 0, Ahead(ahead, False), layouts, keys or {})
    return {at: label.component for at, label in run.labels.items()}


def _forward(*products: list[str]) -> list[list[Label]]:
    return [[Label(component) for component in labels] for labels in products]


def _named(run: Run, found: dict[int, str]) -> list[str | None]:
    return [found.get(at) for at, kind in enumerate(run.kinds) if kind is DGRAD]


@pytest.mark.parametrize("bent", [BENT, _fused("poi_fused_native_dropout_backward_threshold_backward_view")])
def test_between_two_cores_the_units_say_it_where_the_forward_has_others_there(bent: Kind) -> None:
    """Keys and values of the cross-attention stand elsewhere in the forward, and so does its MLP."""
    crossed = [*[DGRAD] * 3, NORM, DGRAD]
    layer = [*[DGRAD] * 3, NORM, DGRAD, bent, DGRAD, NORM, DGRAD]
    run = _backward(*MLP, NORM, DGRAD, CORE, *crossed, CORE, *layer, CORE, DGRAD)
    ahead = _forward([QUERIES] * 3, [OUTPUT, OPEN, OPEN], [OUTPUT, UP, DOWN, QUERIES], [OUTPUT, UP, DOWN])
    found = _named(run, _label(run, ahead))
    assert found[:7] == [DOWN, UP, OUTPUT, *[QUERIES] * 3, OUTPUT]
    assert found[7:13] == [*[QUERIES] * 3, DOWN, UP, OUTPUT]


LINEAR, ACT = Kind("gemm", "addmm"), _fused("poi_fused_mul_sigmoid_view")
RESIDUAL = _fused("per_fused_add_native_layer_norm_view")
IN_TURN = [LINEAR, RESIDUAL, LINEAR, RESIDUAL, LINEAR, LINEAR, ACT, ACT, LINEAR, RESIDUAL, LINEAR, RESIDUAL]
NAMES = [OUTPUT, OUTPUT, UP, UP, DOWN, DOWN, *[QUERIES] * 6]


@pytest.mark.parametrize(("queries", "found"), [(6, (*NAMES,)), (5, None)])
def test_two_models_that_run_in_turn_are_read_part_by_part(
    queries: int, found: tuple[str, ...] | None
) -> None:
    kinds = [*IN_TURN, *[LINEAR] * queries]
    run = Run("forward", [*range(len(kinds))], kinds)
    assert read_two(run, run.products()) == found


def test_two_models_of_which_one_has_no_norm_are_not_read() -> None:
    kinds = [*IN_TURN[:3], *IN_TURN[4:], *[LINEAR] * 6]
    run = Run("forward", [*range(len(kinds))], kinds)
    assert read_two(run, run.products()) is None


def test_behind_the_last_attention_two_models_end_with_an_mlp_each() -> None:
    core = Kind("core", "_flash_attention_forward")
    layer = [*[LINEAR] * 6, core, core, *IN_TURN]
    run = Run("forward", [*range(3 * len(layer))], layer * 3)
    run.cores = find_cores(run)
    label_by_order(run, {at: at % len(layer) for at in range(len(run))})
    products = run.products()
    assert [run.labels[at].component for at in products] == [*NAMES[6:], *NAMES, *NAMES, *NAMES[:6]]


PLAIN = [LINEAR, Kind("core", "_flash_attention_forward"), LINEAR, RESIDUAL, LINEAR, ACT, LINEAR, RESIDUAL]


def test_batched_products_behind_those_of_queries_are_of_their_attention_and_of_no_layer() -> None:
    """Relative positions of Segment Anything, multiplied with the queries ahead of a fused core."""
    layer = [PLAIN[0], BMM, BMM, *PLAIN[1:]]
    run = Run("forward", [*range(3 * len(layer))], layer * 3)
    run.cores = find_cores(run)
    label_by_order(run, {at: at % len(layer) for at in range(len(run))})
    last = [run.labels[at].component for at in run.products(2 * len(layer))]
    assert last == [QUERIES, *["attention.other"] * 2, OUTPUT, UP, DOWN]


@pytest.mark.parametrize(
    ("last", "found"), [([LINEAR, ACT, LINEAR], [OUTPUT, UP, DOWN]), ([LINEAR], [OUTPUT, "logits"])]
)
def test_a_last_layer_has_no_product_for_the_next_layers_message(last: list[Kind], found: list[str]) -> None:
    """Of X-CLIP's layers one begins with what no reading names, ahead of its queries."""
    kinds = [*3 * PLAIN, LINEAR, *PLAIN[:4], *last, RESIDUAL]
    run = Run("forward", [*range(len(kinds))], kinds)
    run.cores = find_cores(run)
    label_by_order(run, {at: run.kinds[at].name for at in range(len(run))})
    products = [at for at in run.products(run.cores[-1].last) if at in run.labels]
    assert [run.labels[at].component for at in products] == found


def test_two_models_that_ran_in_turn_can_go_back_one_behind_the_other() -> None:
    """A product leads from the one to the other."""
    bent = _fused("poi_fused_add_mul_sigmoid_sigmoid_backward_view")
    mlp = [DGRAD, WGRAD, bent, DGRAD, WGRAD, NORM, DGRAD, WGRAD, CORE]
    layer, joined = [*[DGRAD, WGRAD] * 3, NORM], [*[DGRAD, WGRAD] * 3, NORM, DGRAD, WGRAD, NORM]
    run = _backward(*mlp, *layer, *mlp, *joined, *mlp, *layer, *mlp, *[DGRAD, WGRAD] * 3)
    ahead = _forward([QUERIES] * 6, NAMES, NAMES[:6])
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    sizes = {DOWN: "d", UP: "u", OUTPUT: "o", QUERIES: "o", None: "x"}
    wanted = [DOWN, UP, OUTPUT, *[QUERIES] * 3]
    names = [*wanted, *wanted, None, *wanted, *wanted]
    keys: dict[int, object] = {
        at: (sizes[name], number > 12) for number, (at, name) in enumerate(zip(weights, names, strict=True))
    }
    found = _label(run, ahead, keys)
    assert _named(run, found) == names
    assert [found.get(at) for at in weights] == names
    assert found[2] == "mlp.activation"


@pytest.mark.parametrize(
    "gap",
    [
        [DGRAD, NORM, DGRAD, DGRAD, NORM, DGRAD],  # no activation between the two
        [DGRAD, NORM, *MLP, DGRAD],  # nothing is normalized before the output projection
        [DGRAD, NORM, *MLP, NORM, *MLP, NORM, DGRAD],  # two
        [DGRAD, DGRAD, NORM, *MLP, NORM, DGRAD],  # more queries than any forward has
    ],
)
def test_what_has_another_reading_stays_open(gap: list[Kind]) -> None:
    run = _backward(DGRAD, CORE, *gap, CORE, DGRAD)
    found = _named(run, _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN], [OUTPUT])))
    assert found[1:-1] == [None] * gap.count(DGRAD)


def test_an_activation_outside_the_mlp_that_order_finds_says_that_it_is_another() -> None:
    gap = [DGRAD, BENT, DGRAD, BENT, DGRAD, DGRAD]
    run = _backward(DGRAD, CORE, *gap, CORE, DGRAD)
    found = _named(run, _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN, QUERIES], [OUTPUT])))
    assert found[1:-1] == [None] * 4


def test_a_product_without_a_name_has_its_gradient_where_it_stands() -> None:
    kinds = [Kind("gemm", "mm"), Kind("core", "flash"), *[Kind("gemm", "mm")] * 3]
    forward = Run("forward", [*range(5)], kinds)
    forward.cores = find_backward_cores(forward, [])
    forward.labels = {0: Label(QUERIES), 2: Label(OUTPUT), 4: Label("logits")}
    ahead = forward_order(forward, len(forward))
    run = _backward(DGRAD, DGRAD, DGRAD, CORE, DGRAD)
    assert _named(run, _label(run, ahead.products)) == ["logits", None, OUTPUT, QUERIES]


def _staged(*kernels: str) -> dict[int, str]:
    """Gradients of weights of a layer for each of the ``kernels``, which are of its two parts."""
    layer = [DGRAD, WGRAD, CORE, DGRAD, WGRAD]
    run = _backward(*layer * len(kernels))
    products = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    number = len(kernels)
    ahead = [[Label(QUERIES, 0)]]
    ahead += [[Label(OUTPUT, one), Label(QUERIES, one + 1)] for one in range(number - 1)]
    ahead.append([Label(OUTPUT, number - 1)])
    keys: dict[int, object] = dict(zip(products, [key for two in kernels for key in two], strict=True))
    found = _label(run, ahead, keys)
    return {at: found[at] for at in products if at in found}


@pytest.mark.parametrize(
    ("kernels", "known"),
    [
        (("ab", "ab", "ab", "ab"), True),
        (("ab", "ab", "cd", "cd"), True),  # two stages
        (("ab", "ab", "ax", "cd", "cd"), True),  # the first of a stage takes another width
        (("ab", "ab", "ab", "cd"), False),  # one layer is no stage
        (("ab", "ab", "ab", "xb"), False),  # nor does the first of all take another
        (("ab", "ba", "ab", "ba"), False),
    ],
)
def test_in_all_layers_of_a_stage_a_part_is_one_kernel(kernels: tuple[str, ...], known: bool) -> None:
    assert [*_staged(*kernels).values()] == [OUTPUT, QUERIES] * len(kernels) * known


def test_the_gradient_of_a_tied_table_comes_last_behind_that_of_a_product_without_a_name() -> None:
    layer = [DGRAD, WGRAD, CORE, DGRAD, WGRAD]
    run = _backward(DGRAD, *layer, *layer, DGRAD, WGRAD, WGRAD)
    products = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    ahead = [
        [OPENED, Label(QUERIES, 0)],
        [Label(OUTPUT, 0), Label(QUERIES, 1)],
        [Label(OUTPUT, 1), Label("logits")],
    ]
    found = _label(run, ahead, dict(zip(products, "ababxy", strict=True)))
    assert [found.get(at) for at in products] == [OUTPUT, QUERIES, OUTPUT, QUERIES, None, "logits"]


def test_biases_are_summed_behind_a_core_or_a_norm_ahead_of_their_product() -> None:
    both = [SUM, _fused("per_fused_mul_native_layer_norm_backward_sum_view")]  # in two stages, as DINOv2's
    run = _backward(*MLP, NORM, *both, DGRAD, CORE, *both, *both, DGRAD)
    found = _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN]))
    assert [found[at] for at in (4, 5, 8, 9, 10, 11)] == [OUTPUT] * 2 + [QUERIES] * 4


STATISTICS = _fused("red_fused_native_layer_norm_native_layer_norm_backward_sum_view")
NAMED_AFTER = _fused("poi_fused_add_clone_native_layer_norm_backward_slice_view")
LAST_STEP = _fused("poi_fused_add_native_layer_norm_backward_view")


@pytest.mark.parametrize("kernel", [STATISTICS, NAMED_AFTER])
def test_what_is_named_after_a_norm_and_may_be_of_it_or_of_what_it_reads_stays_open(kernel: Kind) -> None:
    run = _backward(*MLP, NORM, kernel, DGRAD, CORE, DGRAD)
    assert 4 not in _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN]))


def test_a_norms_last_step_adds_its_gradient_to_the_stream() -> None:
    run = _backward(*MLP, NORM, LAST_STEP, DGRAD, CORE, DGRAD)
    assert _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN]))[4] == "norm"


def test_a_sum_named_after_a_written_out_activation_is_of_the_bias_before_it() -> None:
    bent, summed = (
        _fused(f"{kind}_fused_add_mul_sigmoid_sigmoid_backward{rest}")
        for kind, rest in (("poi", ""), ("red", "_sum"))
    )
    run = _backward(DGRAD, bent, DGRAD, WGRAD, summed, NORM, DGRAD, CORE, DGRAD)
    run.labels[3] = Label(UP, role="wgrad")
    assert _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN]))[4] == UP


@pytest.mark.parametrize(
    ("name", "found"),
    [("_to_copy_add_mul_sum_view", "norm"), ("mul_sum_view", None), ("_to_copy_mul_sigmoid_sum_view", None)],
)
def test_a_weight_of_a_norm_is_summed_in_more_bits_wherever_it_stands(name: str, found: str | None) -> None:
    run = _backward(DGRAD, CORE, DGRAD, WGRAD, _fused(f"red_fused_{name}"), WGRAD)
    assert _label(run, _forward([QUERIES], [OUTPUT])).get(4) == found


@pytest.mark.parametrize(("way", "found"), [("per", "norm"), ("red", None)])
def test_a_sum_over_each_row_with_the_statistics_is_a_norm(way: str, found: str | None) -> None:
    kernel = _fused(f"{way}_fused_add_native_layer_norm_native_layer_norm_backward_sum_view")
    run = _backward(DGRAD, NORM, *MLP, kernel, DGRAD, CORE, DGRAD)
    assert _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN, "logits"])).get(5) == found


def test_behind_the_last_station_stand_a_norm_and_the_patches() -> None:
    alike = _fused("poi_fused_native_layer_norm_backward_slice")
    patches = Kind("convolution", "convolution_backward")
    run = _backward(DGRAD, CORE, DGRAD, WGRAD, NORM, alike, patches)
    found = _label(run, _forward([QUERIES], [OUTPUT]))
    assert (found[4], found.get(5), found[6]) == ("norm", None, "embedding")


def test_a_kernel_that_is_called_something_is_not_silent() -> None:
    said = [_fused("poi_fused_zeros"), Kind("fused", "triton_poi_0")]
    run = Run("forward", [0, 1], said)
    assert Interval(run, 64, None, [0, 1], None, None, None, None, False, set()).silent == [1]


MUL, NEG, CAT = (Kind("elementwise", name) for name in ("mul", "neg", "cat"))
ADD = Kind("add", "add")
ADAPTED = [LINEAR, LINEAR, LINEAR, MUL, ADD]
TURNED = [MUL, NEG, CAT, MUL, ADD]
OWN_CORE, NORMED = Kind("core", "_flash_attention_forward"), Kind("norm", "layer_norm")
GELU = Kind("activation", "gelu")


def _adapted(layer: list[Kind], *tail: Kind) -> list[str]:
    """What the units of the last layer, and what is behind it, are called."""
    run = Run("forward", [*range(3 * len(layer) + len(tail))], [*layer * 3, *tail])
    run.cores = find_cores(run)
    label_by_order(run, {at: at % len(layer) for at in range(len(run))})
    return [run.labels[at].component if at in run.labels else "" for at in range(2 * len(layer), len(run))]


def test_one_adapter_of_queries_keys_and_values_has_its_scaling_and_its_sum() -> None:
    """Falcon's and GPT-NeoX's, as peft adapts them; a rotation turns before it adds."""
    layer = [NORMED, *ADAPTED, *TURNED, OWN_CORE, LINEAR, ADD, NORMED, LINEAR, GELU, LINEAR, ADD]
    found = _adapted(layer)
    assert found[1:6] == [QUERIES] * 5
    assert found[6:11] == [""] * 5


def test_adapters_of_a_last_layer_and_of_what_transforms_before_the_head_are_named() -> None:
    layer = [*ADAPTED, OWN_CORE, *ADAPTED, ADD, NORMED, *ADAPTED, GELU, *ADAPTED, ADD, NORMED]
    loss = Kind("loss", "cross_entropy")
    found = _adapted(layer, *ADAPTED, GELU, NORMED, LINEAR, loss)
    last = [part for part in found if part]
    assert last[:21] == [*[QUERIES] * 5, "attention.core", *[OUTPUT] * 5, *[UP] * 5, *[DOWN] * 5]
    assert last[21:] == [*["other"] * 5, "logits"]
