"""The backward of a compiled step without shapes where other work stands among its products: on few units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.attribution.test_put_off import TIMES
from tests.attribution.test_unshaped_backward import _fused
from tests.attribution.test_unshaped_returns import (
    BENT,
    CORE,
    DGRAD,
    DOWN,
    MLP,
    NORM,
    OUTPUT,
    QUERIES,
    UP,
    WGRAD,
    _backward,
    _forward,
    _label,
    _named,
)
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.layouts import Ahead, label_by_layout
from tracelens.attribution.structure.maps import linear_rows
from tracelens.attribution.structure.put_off import by_kernel
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.gemm import GemmShape

BMM = Kind("bmm", "bmm")
SOFTMAX = _fused("per_fused__softmax_backward_data_div_view")
OF_BIAS = _fused("per_fused__softmax_backward_data_index_put_new_zeros_sum_view")


def test_products_of_two_activations_behind_a_fused_core_are_of_its_attention_and_no_layer() -> None:
    """SAM's relative positions."""
    summed = _fused("per_fused_clone_permute_squeeze_sum_view")
    run = _backward(DGRAD, CORE, summed, BMM, BMM, DGRAD, NORM, DGRAD, CORE, DGRAD)
    layouts = {at: "NN" for at, kind in enumerate(run.kinds) if kind in (DGRAD, BMM)}
    label_by_layout(run, 0, Ahead(_forward([QUERIES], [OUTPUT, QUERIES], [OUTPUT]), False), layouts, {})
    found = {at: label.component for at, label in run.labels.items()}
    assert _named(run, found) == [OUTPUT, QUERIES, OUTPUT, QUERIES]
    assert [found.get(at) for at in (2, 3, 4)] == ["attention.other"] * 3


@pytest.mark.parametrize(("between", "known"), [([NORM], True), ([BENT, NORM], False)])
def test_gradients_of_keys_and_values_come_where_these_were_made(between: list[Kind], known: bool) -> None:
    crossed = [DGRAD, *between, DGRAD]
    run = _backward(DGRAD, CORE, *crossed, CORE, *[DGRAD] * 5, NORM, DGRAD, CORE, *[DGRAD] * 3)
    ahead = _forward([QUERIES] * 3, [OUTPUT, *[QUERIES] * 3], [OUTPUT, *[QUERIES] * 3], [OUTPUT])
    found = _named(run, _label(run, ahead))
    assert found[1:3] == ([QUERIES, OUTPUT] if known else [None, None])
    assert found[3:9] == ([*[QUERIES] * 5, OUTPUT] if known else [None] * 6)


def test_the_core_of_a_backward_is_found_around_gradients_of_what_made_its_values() -> None:
    named_after = _fused("red_fused_add_native_layer_norm_native_layer_norm_backward_sum_view")
    kinds = (NORM, DGRAD, BMM, named_after, DGRAD, WGRAD, BMM, SOFTMAX, OF_BIAS, BMM, DGRAD, WGRAD, BMM)
    (core,) = find_backward_cores(Run("backward", [*range(len(kinds))], [*kinds]), [])
    wanted = {2: "values", 6: "values", 7: "softmax", 8: "softmax", 9: "scores", 12: "scores"}
    assert core.parts == {at: f"attention.{part}" for at, part in wanted.items()}


def _reduces(number: int) -> Kind:
    kind = _fused("red_fused_mul_sum_view")
    return replace(kind, name=f"triton_red_fused_mul_sum_view_{number}")


def test_a_kernel_that_sums_between_queries_sums_everywhere_whatever_it_is_named_after() -> None:
    """Its second stage is a reduction that stands behind one of the same operators."""
    both = [_reduces(6), _reduces(7)]
    run = _backward(DGRAD, WGRAD, *both, BENT, DGRAD, WGRAD, NORM, DGRAD, CORE, *both, DGRAD, *both, DGRAD)
    run.labels[1] = Label(DOWN, role="wgrad")
    found = _label(run, _forward([QUERIES] * 2, [OUTPUT, UP, DOWN]))
    assert [found.get(at) for at in (10, 11, 13, 14)] == [QUERIES] * 4
    assert [found.get(at) for at in (2, 3)] == [DOWN] * 2


def test_sums_beside_normed_heads_may_be_of_these() -> None:
    run = _backward(*MLP, NORM, DGRAD, CORE, NORM, _reduces(6), DGRAD, DGRAD)
    assert 7 not in _label(run, _forward([QUERIES] * 2, [OUTPUT, UP, DOWN]))


def test_one_head_turned_back_is_as_its_product_takes_it() -> None:
    turned, joined = _fused("poi_fused__unsafe_view_clone_transpose_view"), _fused("poi_fused_cat_view")
    for kind, component in ((turned, QUERIES), (joined, "attention.other")):
        found = _label(_backward(DGRAD, CORE, kind, DGRAD), _forward([QUERIES], [OUTPUT]))
        assert found[2] == component


def test_between_gradients_of_two_convolutions_stands_work_on_their_maps() -> None:
    convolution = Kind("convolution", "convolution_backward", backward=True)
    resized = _fused("poi_fused__unsafe_index_put_mul_new_zeros")
    run = _backward(convolution, resized, convolution, resized, *MLP, NORM, DGRAD, CORE, DGRAD)
    found = _label(run, _forward([QUERIES], [OUTPUT, UP, DOWN]))
    assert (found.get(1), found.get(3)) == ("other", None)


def test_of_kernels_that_fit_several_parts_those_are_meant_whose_order_is_the_products() -> None:
    """Two of the queries' beside these, the third behind all layers and with the output's, each of one
    kernel."""
    bent = [DGRAD, WGRAD, DGRAD, WGRAD, NORM]
    layer = [*bent, DGRAD, CORE, DGRAD, WGRAD, WGRAD, DGRAD, DGRAD, NORM]
    run, gradients = _backward(*layer * 3, *[WGRAD] * 6), [DOWN, UP, OUTPUT, *[QUERIES] * 3]
    path = [at for at, kind in enumerate(run.kinds) if kind is DGRAD]
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    names = dict(zip(weights, [*[DOWN, UP, QUERIES, QUERIES] * 3, *[OUTPUT, QUERIES] * 3], strict=True))
    gaps: list[tuple[int, list[int], list[Label]]] = []
    for number in range(3):
        places = path[6 * number : 6 * number + 6]
        labels = [Label(name, number, role="dgrad") for name in gradients]
        run.labels |= dict(zip(places, labels, strict=True))
        gaps.append((places[0] - 1, places, labels))
    keys: dict[int, object] = {**names, **dict.fromkeys(weights[-1::-2][:3], "third")}
    keys |= dict.fromkeys(path[5::6], "of the third")
    busy = {at: TIMES[name] for at, name in (names | dict(zip(path, gradients * 3, strict=True))).items()}
    found = by_kernel(run, weights, gaps, keys, busy)
    assert {at: label.component for at, label in found.items()} == names


def test_where_all_are_put_off_alike_those_are_meant_whose_times_are_closest() -> None:
    """GPT-2 as an H100 ran it: each kernel's gradients in a row behind all layers."""
    gradients, times = [DOWN, UP, OUTPUT, QUERIES], {DOWN: 58, UP: 55, OUTPUT: 15, QUERIES: 42}
    run = _backward(*[*[DGRAD] * 3, CORE, DGRAD] * 3, *[WGRAD] * 12)
    path = [at for at, kind in enumerate(run.kinds) if kind is DGRAD]
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    gaps: list[tuple[int, list[int], list[Label]]] = []
    for number in range(3):
        places = path[4 * number : 4 * number + 4]
        labels = [Label(name, number, role="dgrad") for name in gradients]
        run.labels |= dict(zip(places, labels, strict=True))
        gaps.append((places[0] - 1, places, labels))
    kernels, taken = [*"ooo", *"qqq", *"mmmmmm"], {"o": 18, "q": 45, "m": 56}
    busy = {at: times[label.component] for at, label in run.labels.items() if at in path}
    busy |= {at: taken[kernel] for at, kernel in zip(weights, kernels, strict=True)}
    found = by_kernel(run, weights, gaps, dict(zip(weights, kernels, strict=True)), busy)
    named = [*[OUTPUT] * 3, *[QUERIES] * 3, *[DOWN, UP] * 3]
    assert {at: label.component for at, label in found.items()} == dict(zip(weights, named, strict=True))


def test_weights_of_an_encoder_wait_for_those_of_the_decoder_that_it_waits_for() -> None:
    """Dia: the encoder's first stand among the decoder's last, ahead of a core that they have nothing of;
    of those of one kernel each comes a core late."""
    run = _backward(DGRAD, CORE, WGRAD, DGRAD, WGRAD, DGRAD, CORE, DGRAD, WGRAD, CORE, WGRAD, DGRAD, WGRAD)
    path, weights = [0, 3, 5, 7, 11], [2, 4, 8, 10, 12]
    parts = [(OUTPUT, 1), (QUERIES, 1), (OUTPUT, 0), (DOWN, 3), (QUERIES, 0)]
    labels = [Label(part, layer, role="dgrad") for part, layer in parts]
    run.labels |= dict(zip(path, labels, strict=True))
    run.cores = find_backward_cores(run, [])
    gaps = [(-1, [0], labels[:1]), (1, [3, 5], labels[1:3]), (6, [7], labels[3:4]), (9, [11], labels[4:])]
    keys: dict[int, object] = {2: "s", 4: "d", 7: "of d", 8: "s", 10: "s", 12: "s"}
    found = by_kernel(run, weights, gaps, keys, {at: 40 if at in (4, 7) else 10 for at in (*path, *weights)})
    assert found[4].component == DOWN


def test_a_gap_that_has_all_its_gradients_is_read_where_the_program_has_not() -> None:
    layer = [DGRAD, WGRAD, NORM, WGRAD, DGRAD, CORE]
    run = _backward(DGRAD, CORE, *layer, *layer, DGRAD)
    ahead = [[Label(QUERIES, 0)]]
    ahead += [[Label(OUTPUT, one), Label(QUERIES, one + 1)] for one in range(2)]
    ahead.append([Label(OUTPUT, 2)])
    weights = [at for at, kind in enumerate(run.kinds) if kind is WGRAD]
    found = _label(run, ahead, dict(zip(weights, "abab", strict=True)))
    assert [found.get(at) for at in weights] == [QUERIES, OUTPUT] * 2


def test_a_row_with_a_matrix_of_its_own_for_every_token_is_a_linear_layer() -> None:
    rows, scores = GemmShape(1, 64, 16, 32, None, None, None), GemmShape(1, 8, 16, 64, None, None, None)
    kinds = [Kind("bmm", "matmul", gemm=rows), Kind("core", "flash"), Kind("bmm", "matmul", gemm=scores)]
    run = Run("forward", [0, 1, 2], kinds)
    run.cores = [Core(1, 1, {1: "attention.core"}, tokens=32)]
    linear_rows(run)
    assert [kind.what for kind in run.kinds] == ["gemm", "core", "bmm"]
    assert run.shape(0) == GemmShape(32, 64, 16, 1, None, None, None)


def test_a_matrix_for_every_token_in_the_mlp_alone_is_of_experts_that_it_chose() -> None:
    """arXiv 2407.04153: experts of one unit; queries are made by one matrix for all."""
    whole, rows = GemmShape(32, 48, 16, 1, None, None, None), GemmShape(1, 64, 16, 32, None, None, None)
    kinds = [Kind("gemm", "mm", gemm=whole), Kind("core", "flash"), Kind("bmm", "matmul", gemm=rows)]
    run = Run("forward", [0, 1, 2], kinds)
    run.cores = [Core(1, 1, {1: "attention.core"}, tokens=32)]
    linear_rows(run)
    assert [kind.what for kind in run.kinds] == ["gemm", "core", "bmm"]
