"""The backward of a compiled step without shapes: sums, casts and layouts beside its products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.attribution.test_unshaped_backward import (
    BMM,
    COPY,
    CORE,
    DGRAD,
    DOWN,
    LOSS,
    NORM,
    OUTPUT,
    QUERIES,
    SOFTMAX,
    SUM,
    UP,
    WGRAD,
    _backward,
    _fused,
    _label,
)
from tracelens.attribution.structure.layouts import forward_order
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.attribution.structure.unshaped import label_unshaped

ACTIVATION = "mlp.activation"
MLP = [OUTPUT, UP, DOWN]
BENT = _fused("poi_fused_gelu_gelu_backward_view")
GATED, GATED_SUM = _fused("poi_fused_mul_silu_silu_backward_view"), _fused("red_fused_mul_silu_sum_view")
BENT_SUM = _fused("red_fused_gelu_gelu_backward_sum_view")
SCALED, SCALED_TOO = (
    replace(_fused("red_fused_mul_sum_view"), name=f"triton_red_fused_mul_sum_view_{n}") for n in "12"
)
Path = dict[int, tuple[str, str | None]]


def _beside(run: Run, path: Path) -> dict[int, str]:
    """Components by place beside products that are known."""
    run.labels = {at: Label(part, 0, role=role) for at, (part, role) in path.items()}  # type: ignore[arg-type]
    label_unshaped(run, 0)
    return {at: label.component for at, label in run.labels.items()}


def test_of_two_sums_that_take_turns_the_second_stage_stands_alone_less_often() -> None:
    """It bears the name of the first, and is that of another sum before."""
    run = _backward(DGRAD, NORM, SCALED_TOO, DGRAD, CORE, *3 * [SCALED, SCALED_TOO], *3 * [DGRAD])
    found = _label(run, 3 * [QUERIES], [OUTPUT, DOWN])
    assert [found.get(at) for at in range(5, 11)] == [QUERIES] * 6


def test_a_kernel_that_sums_between_queries_sums_ahead_of_an_output_too() -> None:
    norm = _fused("red_fused_native_layer_norm_native_layer_norm_backward_view")
    run = _backward(DGRAD, norm, SCALED, DGRAD, CORE, SCALED, DGRAD)
    assert _label(run, [QUERIES], [OUTPUT, DOWN]).get(2) == OUTPUT


def test_second_stages_can_bear_the_name_of_a_norms() -> None:
    """More of them stand behind one sum between two cores than are norms there."""
    named = _fused("per_fused_mul_native_layer_norm_native_layer_norm_backward_sum_view")
    run = _backward(DGRAD, CORE, *3 * [WGRAD, SUM, named, DGRAD])
    path: Path = {0: (OUTPUT, "dgrad"), 1: ("attention.core", None)}
    path |= {at: (QUERIES, "wgrad" if run.kinds[at] is WGRAD else "dgrad") for at in (2, 5, 6, 9, 10, 13)}
    found = _beside(run, path)
    assert [found.get(at) for at in (4, 8, 12)] == [QUERIES] * 3


@pytest.mark.parametrize(
    ("kinds", "path", "wanted"),
    [
        pytest.param([DGRAD, BENT, DGRAD, NORM, BENT_SUM, NORM], {}, {4: UP}, id="put off"),
        pytest.param(
            [DGRAD, GATED, WGRAD, GATED_SUM, _fused("per_fused_mul_silu_sum_view"), NORM, DGRAD],
            {2: (UP, "wgrad"), 6: (UP, "dgrad")},
            {3: ACTIVATION, 4: UP},
            id="in two stages",
        ),
    ],
)
def test_sums_that_do_an_activation_over_are_of_the_bias_before_it(
    kinds: list[Kind], path: Path, wanted: dict[int, str]
) -> None:
    found = _beside(_backward(*kinds), {0: (DOWN, "dgrad"), 2: (UP, "dgrad")} | path)
    assert {at: found.get(at) for at in wanted} == wanted


CAST, ROWS = _fused("poi_fused__to_copy"), _fused("poi_fused__to_copy_view")


@pytest.mark.parametrize(
    ("ahead", "found"),
    [
        ([SUM, ROWS], OUTPUT),  # tokens, as rows
        ([SUM, ROWS, SUM], OUTPUT),
        ([SUM, CAST], None),  # as likely a weight's gradient
        ([SUM, COPY], OUTPUT),
        ([SUM, _fused("poi_fused_mm_t")], OUTPUT),
        ([_fused("poi_fused__to_copy_add_native_layer_norm_backward_view")], "norm"),
    ],
)
def test_what_a_product_takes_is_cast_laid_out_or_made_larger_for_it(
    ahead: list[Kind], found: str | None
) -> None:
    run = _backward(DGRAD, BENT, DGRAD, *ahead, DGRAD, CORE, DGRAD)
    place = 3 + next((at for at, kind in enumerate(ahead) if kind is not SUM))
    assert _label(run, [QUERIES], MLP).get(place) == found


def test_a_bias_is_summed_behind_the_cast_of_what_its_product_takes() -> None:
    found = _label(_backward(DGRAD, BENT, DGRAD, ROWS, SUM, DGRAD, CORE, DGRAD), [QUERIES], MLP)
    assert found.get(4) == OUTPUT


def test_an_activation_done_over_is_one() -> None:
    again = _fused("poi_fused__unsafe_view_mm_mul_silu_t_view")
    assert _label(_backward(DGRAD, BENT, again, DGRAD, DGRAD, CORE, DGRAD), [QUERIES], MLP)[2] == ACTIVATION


def test_both_gradients_of_a_table_are_added_behind_all() -> None:
    added = _fused("poi_fused__to_copy_add")
    path: Path = {0: ("logits", "dgrad"), 1: (QUERIES, "dgrad"), 2: ("logits", "wgrad")}
    assert _beside(_backward(DGRAD, DGRAD, WGRAD, added), path).get(3) == "embedding"


def test_a_gates_gradient_has_a_number_for_each_head() -> None:
    bent = _fused("per_fused__unsafe_view_mul_sigmoid_sigmoid_backward_sum_view")
    path: Path = {0: (OUTPUT, "dgrad"), 2: ("attention.other", "dgrad"), 3: ("attention.core", None)}
    assert _beside(_backward(DGRAD, bent, DGRAD, CORE), path).get(1) == "attention.other"


@pytest.mark.parametrize("added", [True, False])
def test_products_behind_a_core_and_sums_of_its_scores_are_of_what_was_added_to_these(added: bool) -> None:
    summed = _fused("per_fused_sum_view")
    run = _backward(DGRAD, BMM, BMM, SOFTMAX, summed, BMM, BMM, *[BMM] * added, DGRAD)
    found = _label(run, [QUERIES], [OUTPUT])
    assert [found.get(at) for at in (4, 7)] == (["attention.other"] * 2 if added else [None, QUERIES])


def test_sums_of_what_is_gathered_are_of_no_norm() -> None:
    """Of tokens' weights by expert."""
    gathered = _fused("red_fused__to_copy_index_index_put_mul_new_zeros_sum_view")
    assert 2 not in _label(_backward(DGRAD, NORM, gathered, DGRAD, CORE, DGRAD), [QUERIES], [OUTPUT, UP])


@pytest.mark.parametrize("name", ["poi_fused_index_put_new_zeros_squeeze", "poi_fused__softmax__to_copy"])
def test_zeros_and_a_routers_shares_ahead_of_the_head_are_no_loss(name: str) -> None:
    run = _backward(LOSS, _fused(name), DGRAD, WGRAD, NORM, *[DGRAD] * 3, CORE, DGRAD)
    found = _label(run, [QUERIES], [*MLP, "logits"])
    assert (found.get(0), found.get(1)) == ("loss", None)


@pytest.mark.parametrize(("norm", "known"), [(True, True), (False, False)])
def test_queries_end_where_something_is_normalized(norm: bool, known: bool) -> None:
    """One more of them, as what chooses heads is, is of the mixture of the layer before."""
    experts = ["moe.experts"] * 2
    kinds = [DGRAD, CORE, DGRAD, NORM, DGRAD, DGRAD] if norm else [DGRAD, CORE, DGRAD, DGRAD, NORM, DGRAD]
    run = _backward(*kinds, DGRAD, CORE, DGRAD)
    found = _label(run, [QUERIES], [OUTPUT, *experts, QUERIES], [OUTPUT])
    assert (found.get(2) == QUERIES) is known


@pytest.mark.parametrize(("pooled", "norms"), [(True, False), (False, True)])
def test_a_norm_behind_a_convolution_is_none_of_heads(pooled: bool, norms: bool) -> None:
    """Keys and values can be of fewer places (SegFormer, arXiv 2105.15203)."""
    between = [Kind("convolution", "convolution")] if pooled else []
    kinds = [WGRAD, *between, Kind("norm", "native_layer_norm"), WGRAD, Kind("core", "flash")]
    run = Run("forward", [*range(len(kinds))], kinds)
    run.labels = {0: Label(QUERIES), len(kinds) - 3: Label("norm"), len(kinds) - 2: Label(QUERIES)}
    assert forward_order(run, len(run)).norms_heads is norms
