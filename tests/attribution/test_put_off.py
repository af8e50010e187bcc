"""Gradients of weights that a compiler puts off, without shapes: what their kernels and their times say."""

from __future__ import annotations

import pytest

from tests.attribution.test_unshaped_backward import (
    CORE,
    DGRAD,
    DOWN,
    NORM,
    OUTPUT,
    QUERIES,
    UP,
    WGRAD,
    _backward,
    _fused,
)
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.layouts import Ahead, label_by_layout
from tracelens.attribution.structure.put_off import by_kernel
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.attribution.structure.unshaped import label_unshaped

LAYERS = 3
SQUARE = [OUTPUT, *3 * [QUERIES]]
#: an MLP's, an output's before its core, and three behind that; the wider gradient of a weight one layer late
GRADIENTS = [DOWN, UP, NORM, OUTPUT, CORE, *3 * [QUERIES], NORM]
BIAS = _fused("red_fused_sum_view")


def _step(weights: list[list[str]]) -> tuple[Run, dict[int, str]]:
    """A backward with gradients of ``weights`` behind so many units of a layer, and which those are."""
    kinds: list[Kind] = []
    of: dict[int, str] = {}
    for layer in range(LAYERS + 1):
        for number, unit in enumerate([*GRADIENTS, None]):
            for name in weights[number] if number < len(weights) else ():
                late = name.startswith("late ")
                if layer - late in range(LAYERS):
                    of[len(kinds)] = name.removeprefix("late ")
                    kinds.append(WGRAD)
            if unit is not None and layer < LAYERS:
                kinds.append(unit if isinstance(unit, Kind) else DGRAD)
    return _backward(*kinds), of


def _path(run: Run) -> list[int]:
    return [at for at, kind in enumerate(run.kinds) if kind is DGRAD]


def _labelled(run: Run, of: dict[int, str], keys: dict[str, int], busy: dict[str, int]) -> dict[int, str]:
    run.cores = find_backward_cores(run, [])
    gradients, path = [name for name in GRADIENTS if isinstance(name, str)], _path(run)
    layouts: dict[int, str | None] = {at: "NT" if at in of else "NN" for at in (*path, *of)}
    names = dict(zip(path, LAYERS * gradients, strict=True)) | of
    ahead: list[list[Label]] = [[]]
    for layer in range(LAYERS):
        ahead[-1] += [Label(QUERIES, layer)] * 3
        ahead.append([Label(OUTPUT, layer), Label(UP, layer), Label(DOWN, layer)])
    kernels: dict[int, object] = {at: (keys.get(name, 0), at in of) for at, name in names.items()}
    label_by_layout(
        run, 0, Ahead(ahead, False), layouts, kernels, {at: busy[name] for at, name in names.items()}
    )
    return {at: label.component for at, label in run.labels.items() if at in of}


TIMES = {DOWN: 40, UP: 40, OUTPUT: 10, QUERIES: 10}
LATE = [["late " + UP, DOWN], [], [], [], [], SQUARE]  # the output's behind its core


@pytest.mark.parametrize("keys", [{DOWN: 1, UP: 2}, {DOWN: 1}, {UP: 1}])
def test_weights_put_off_are_told_by_their_kernels_where_one_distribution_is_left(
    keys: dict[str, int],
) -> None:
    run, of = _step(LATE)
    assert _labelled(run, of, keys, TIMES) == of


def test_a_persistent_kernel_is_launched_alike_for_all_sizes_and_takes_as_long_as_each_has_to_do() -> None:
    run, of = _step(LATE)
    found = _labelled(run, of, {}, TIMES)
    assert found == of  # at the ends no other layer bears the order out, and one component is left
    assert _labelled(*_step(LATE), {}, dict.fromkeys(TIMES, 10)) == {}


def test_of_two_distributions_that_are_possible_what_both_say_is_said() -> None:
    """Up and down behind both of their other gradients, each with a kernel of its own, and as long."""
    run, of = _step([[], [], [DOWN, UP], [], [], SQUARE])
    gaps: list[tuple[int, list[int], list[Label]]] = []
    for layer, start in enumerate(range(0, LAYERS * 6, 6)):
        places = _path(run)[start : start + 6]
        labels = [Label(x, layer, role="dgrad") for x in GRADIENTS if isinstance(x, str)]
        run.labels |= dict(zip(places, labels, strict=True))
        gaps.append((places[0] - 1, places, labels))
    keys: dict[int, object] = {at: {DOWN: 1, UP: 2}.get(name, 0) for at, name in of.items()}
    parts = {at: label.component for at, label in run.labels.items()} | of
    found = by_kernel(run, [*of], gaps, keys, {at: TIMES[name] for at, name in parts.items()})
    assert {at: label.component for at, label in found.items()} == {
        at: name for at, name in of.items() if name in SQUARE
    }


def test_more_gradients_of_weights_than_products_are_not_told() -> None:
    run, of = _step(LATE)
    gaps = [(0, [1], [Label(DOWN, 0)])]
    assert by_kernel(run, [*of], gaps, dict.fromkeys(of, 1), {}) == {}


def test_sums_behind_a_core_are_of_the_queries_whatever_weight_follows() -> None:
    run = _backward(DGRAD, CORE, BIAS, WGRAD, DGRAD)
    labels = {0: (OUTPUT, "dgrad"), 1: ("attention.core", None), 3: (OUTPUT, "wgrad"), 4: (QUERIES, "dgrad")}
    run.labels = {at: Label(name, 0, role=role) for at, (name, role) in labels.items()}  # type: ignore[arg-type]
    label_unshaped(run, 0)
    assert run.labels[2].component == QUERIES


@pytest.mark.parametrize(
    ("second", "found"), [([_fused("per_fused_add_mul_native_layer_norm_backward_sum_view")], DOWN), ([], "")]
)
def test_a_scale_and_a_norm_summed_in_one_kernel_are_of_no_bias(second: list[Kind], found: str) -> None:
    """A layer's scale, as DINOv2 has it; a bias alone has a second stage of its own behind it."""
    sums = _fused("red_fused_add_mul_native_layer_norm_backward_sum_view")
    run = _backward(DGRAD, WGRAD, sums, *second, DGRAD)
    labels = {0: (QUERIES, "dgrad"), 1: (DOWN, "wgrad"), len(run) - 1: (UP, "dgrad")}
    run.labels = {at: Label(name, 0, role=role) for at, (name, role) in labels.items()}  # type: ignore[arg-type]
    label_unshaped(run, 0)
    assert (run.labels[2].component if 2 in run.labels else "") == found


@pytest.mark.parametrize("name", ["gelu_gelu_backward_sum_view", "sum_view"])
def test_a_second_stage_apart_from_its_first_is_of_the_same(name: str) -> None:
    first, second = _fused("red_fused_gelu_gelu_backward_sum_view"), _fused(f"per_fused_{name}")
    run = _backward(DGRAD, WGRAD, first, DGRAD, NORM, WGRAD, second, DGRAD)
    labels = {1: (UP, "wgrad"), 3: (UP, "dgrad"), 5: (OUTPUT, "wgrad"), 7: (OUTPUT, "dgrad")}
    run.labels = {at: Label(part, 0, role=role) for at, (part, role) in labels.items()}  # type: ignore[arg-type]
    label_unshaped(run, 0)
    assert run.labels[6].component == (OUTPUT if name == "sum_view" else UP)
