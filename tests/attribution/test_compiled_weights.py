"""Gradients of weights and biases of a compiled step: where they stand, and where values' gradients do."""

from __future__ import annotations

import pytest

from tests.attribution.test_compiled_gradients import _core, _fused, _gemm, _run
from tests.attribution.test_compiled_towers import _unfused
from tracelens.attribution.structure.backward import label_products
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.gradients import label_gradients
from tracelens.attribution.structure.maps import label_maps
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind

QUERIES, OUTPUT, UP, DOWN = "attention.qkv", "attention.output", "mlp.up", "mlp.down"
HIDDEN, TOKENS, INNER = 64, 256, 320
SQUARE, WEIGHT = _gemm(TOKENS, HIDDEN, HIDDEN), _gemm(HIDDEN, HIDDEN, TOKENS)
STREAM, SUMS = (4, 64, HIDDEN), (1, HIDDEN, 16)
SUM = _fused("red_fused_native_dropout_backward_sum_view", (TOKENS, HIDDEN), SUMS)
SCORES = [_unfused(16, 64, 64, 16), Kind("softmax", "_softmax"), _unfused(16, 64, 16, 64)]
MLP = [_gemm(TOKENS, INNER, HIDDEN), _gemm(TOKENS, HIDDEN, INNER)]
MLP_BACK = [_gemm(TOKENS, INNER, HIDDEN), _gemm(TOKENS, HIDDEN, INNER)]
CORE_BACK = [
    _unfused(16, 64, 64, 16),
    _fused("per_fused__softmax_backward_data", (4, 4, 64, 64)),
    _unfused(16, 16, 64, 64),
    _unfused(16, 64, 16, 64),
]


def _forward(layers: int) -> Run:
    """Layers whose weights of queries, keys, values and output all have one size."""
    layer = [*3 * [SQUARE], *SCORES, SQUARE, *MLP]
    run = _run("forward", *layers * layer)
    run.cores = find_cores(run)
    names = [*3 * [QUERIES], "attention.scores", "attention.softmax", "attention.values", OUTPUT, UP, DOWN]
    run.labels = {at: Label(names[at % len(layer)], at // len(layer)) for at in range(len(run))}
    return run


def _labeled(forward: Run, *kinds: Kind) -> list[Label | None]:
    run = _run("backward", *kinds)
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    label_gradients(run, forward, {HIDDEN}, None)
    return [run.labels.get(at) for at in range(len(run))]


def test_what_makes_the_values_has_its_gradients_behind_theirs_and_before_the_core() -> None:
    values = [_unfused(16, 64, 16, 64), SUM, WEIGHT, SQUARE]
    layer = [*MLP_BACK, WEIGHT, SQUARE, *values, *CORE_BACK, WEIGHT, WEIGHT, SQUARE, SQUARE]
    found = _labeled(_forward(2), *2 * layer)
    for number, at in ((1, 4), (0, 4 + len(layer))):
        labels = found[at + 1 : at + 4]
        assert [(label.component, label.layer) for label in labels if label] == 3 * [(QUERIES, number)]


def test_weights_gradients_in_a_row_stand_beside_as_many_of_activations() -> None:
    """One product more of their size, of no name, and their order alone says nothing."""
    forward = _forward(2)
    forward = _run("forward", SQUARE, *forward.kinds)
    forward.cores = find_cores(forward)
    forward.labels = {at + 1: label for at, label in _forward(2).labels.items()}
    up, down = _gemm(INNER, HIDDEN, TOKENS), _gemm(HIDDEN, INNER, TOKENS)
    mlp = [down, MLP_BACK[0], up, MLP_BACK[1]]
    layer = [*mlp, WEIGHT, SQUARE, _unfused(16, 64, 16, 64), *CORE_BACK, *3 * [WEIGHT], *3 * [SQUARE]]
    found = _labeled(forward, *2 * layer)
    weights = [at for at, kind in enumerate(2 * layer) if kind is WEIGHT]
    assert [label.component for at in weights if (label := found[at])] == 2 * [OUTPUT, *3 * [QUERIES]]


@pytest.mark.parametrize("steady", [True, False])
def test_weights_that_are_put_off_are_named_where_their_surroundings_agree(steady: bool) -> None:
    """Each behind the next layer's queries; or there the output's alone, and the queries' later."""
    layer = [*MLP_BACK, SQUARE, _unfused(16, 64, 16, 64), *CORE_BACK, *3 * [SQUARE]]
    late = 4 if steady else 1
    kinds = [*layer, *late * [WEIGHT], *layer, *late * [WEIGHT], *layer]
    kinds += [*late * [WEIGHT]] if steady else [WEIGHT, *layer, *(16 - 3) * [WEIGHT]]
    layers = kinds.count(MLP_BACK[1])
    found = _labeled(_forward(layers), *kinds)
    places = [at for at, kind in enumerate(kinds) if kind is WEIGHT]
    named = {label.component for at in places if (label := found[at])}
    assert named == ({QUERIES, OUTPUT} if steady else {"unattributed"})


def test_weights_of_gates_and_of_what_they_weigh_take_turns_where_others_are_not_put_off() -> None:
    """All layers' stand behind the last gradient of an activation, and those of the projections nowhere."""
    layer = [*3 * [SQUARE], *SCORES, SQUARE, MLP[0], *MLP]
    forward = _run("forward", *2 * layer)
    forward.cores = find_cores(forward)
    parts = ["attention.scores", "attention.softmax", "attention.values", OUTPUT, "mlp.gate", UP, DOWN]
    names = [*3 * [QUERIES], *parts]
    forward.labels = {at: Label(names[at % len(layer)], at // len(layer)) for at in range(len(forward))}
    back = [MLP_BACK[0], *2 * [MLP_BACK[1]], SQUARE, _unfused(16, 64, 16, 64), *CORE_BACK, *3 * [SQUARE]]
    found = _labeled(forward, *2 * back, *4 * [_gemm(INNER, HIDDEN, TOKENS)])
    assert [(label.component, label.layer) for label in found[-4:] if label] == [
        (part, layer) for layer in (1, 0) for part in (UP, "mlp.gate")
    ]


@pytest.mark.parametrize(("rows", "found"), [(512, [OUTPUT, *3 * [QUERIES]]), (TOKENS, 4 * ["unattributed"])])
def test_weights_of_another_sequence_stand_elsewhere(rows: int, found: list[str]) -> None:
    """Behind all gradients of activations stand the first layer's; what it attends to has its own before."""
    other = _gemm(rows, 2 * HIDDEN, HIDDEN)
    forward = _run("forward", other, *_forward(1).kinds)
    forward.cores = find_cores(forward)
    forward.labels = {at + 1: label for at, label in _forward(1).labels.items()} | {0: Label(QUERIES, 0)}
    back = [*MLP_BACK, SQUARE, _unfused(16, 64, 16, 64), *CORE_BACK, *3 * [SQUARE]]
    weights = _gemm(2 * HIDDEN, HIDDEN, rows), _gemm(INNER, HIDDEN, TOKENS), _gemm(HIDDEN, INNER, TOKENS)
    labels = _labeled(forward, *weights, *back, *4 * [WEIGHT])
    assert [label.component for label in labels[-4:] if label] == found


NORM = _fused("red_fused_add_native_layer_norm_backward_view", STREAM, STREAM, (4, 64, 1))


def _sums(run: Run, forward: Run, at: int) -> str | None:
    label_gradients(run, forward, {HIDDEN}, None)
    return run.labels[at].component if at in run.labels else None


@pytest.mark.parametrize(("before", "found"), [([NORM], "embedding"), ([], QUERIES)])
def test_a_sum_behind_the_first_norm_is_of_what_was_embedded(before: list[Kind], found: str) -> None:
    run = _run("backward", SQUARE, *before, _fused("red_fused_sum_view", STREAM, SUMS))
    run.labels = {0: Label(QUERIES, 0, role="dgrad")}
    assert _sums(run, _forward(1), len(run) - 1) == found


def test_as_many_rows_as_another_model_has_tokens_are_no_partial_sums() -> None:
    few = 128
    forward = _forward(1)
    forward = _run("forward", *forward.kinds, _gemm(few, HIDDEN, HIDDEN), _gemm(few, HIDDEN, INNER))
    forward.labels = _forward(1).labels | {9: Label(OUTPUT, 1), 10: Label(DOWN, 1)}
    norm = _fused("per_fused_native_layer_norm_backward", STREAM, STREAM, (4, 64, 1), (2, 64, HIDDEN))
    sums = _fused("red_fused_sum", (2, 64, HIDDEN), (1, HIDDEN, 4))
    run = _run("backward", MLP_BACK[1], norm, sums, SQUARE)
    run.labels = {0: Label(UP, 0, role="dgrad"), 3: Label(OUTPUT, 0, role="dgrad")}
    assert _sums(run, forward, 2) == OUTPUT


def test_a_scale_of_heads_that_is_bent_is_of_no_norm() -> None:
    """transformers models/timesfm2_5/modeling_timesfm2_5.py: a softplus of a number for each of a head's."""
    bent = _fused("red_fused__to_copy_mul_softplus_softplus_backward_sum", (16,), (1, 1, 1, 16, 8), (16,))
    run = _run("backward", _core(TOKENS, 64), bent, SQUARE)
    run.cores = find_cores(run)
    run.labels = {0: Label("attention.core", 0), 2: Label(QUERIES, 0, role="dgrad")}
    assert _sums(run, _forward(1), 1) == "attention.other"


def test_a_softmax_between_two_convolutions_is_of_no_map() -> None:
    """transformers models/mobilevitv2/modeling_mobilevitv2.py: separable attention."""
    map_, weight = (4, 96, 4, 32), (96, 96, 1, 1)
    conv = Kind("convolution", "convolution", tensors=(map_, weight))
    fused = [_fused(f"per_fused_{name}_convolution_mul", map_, map_) for name in ("_softmax", "add")]
    run = _run("forward", conv, *fused, conv, fused[1], conv)
    label_maps(run, HIDDEN)
    assert [at for at, label in run.labels.items() if label.component == "other"] == [4]


@pytest.mark.parametrize(("words", "found"), [(1002, "logits"), (999, "")])
def test_a_vocabulary_that_the_forward_pads_and_the_gradient_of_its_weight_does_not(
    words: int, found: str
) -> None:
    """torch/_inductor/fx_passes/pad_mm.py: BERT's 30522 words in a real step, 30528 in its forward."""
    forward = _forward(1)
    forward = _run("forward", *forward.kinds, _gemm(TOKENS, 1008, HIDDEN))
    forward.cores = find_cores(forward)
    names = [*3 * [QUERIES], "attention.scores", "attention.softmax", "attention.values", OUTPUT, UP, DOWN]
    forward.labels = {at: Label(name, 0) for at, name in enumerate(names)} | {9: Label("logits")}
    head = [_gemm(TOKENS, HIDDEN, 1008), *MLP_BACK, WEIGHT, SQUARE]
    labels = _labeled(forward, *head, _gemm(words, HIDDEN, TOKENS))
    assert (labels[-1].component if labels[-1] else "") == found


def test_many_biases_in_a_row_are_of_what_alone_is_as_wide() -> None:
    bias = _fused("red_fused_gelu_gelu_backward_sum_view", (4, 64, INNER), (1, INNER))
    of_stream = _fused("red_fused_sum", (TOKENS, HIDDEN), (1, HIDDEN, 2))
    labels = _labeled(_forward(2), *2 * MLP_BACK, *10 * [bias], *10 * [of_stream])
    assert {label.component for label in labels[4:14] if label} == {UP}
    assert {label.component for label in labels[14:] if label} <= {"unattributed"}
