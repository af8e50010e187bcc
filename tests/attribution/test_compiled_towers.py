"""Compiled steps in which several sequences stand side by side: two models, windows, what one attends to."""

from __future__ import annotations

import pytest

from tests.attribution.test_compiled_gradients import _fused, _gemm
from tracelens.attribution.structure.ahead import label_ahead
from tracelens.attribution.structure.backward import label_products
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.between import label_between
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.forward import label_forward
from tracelens.attribution.structure.gradients import label_gradients
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.streams import streams
from tracelens.attribution.structure.units import Kind
from tracelens.gemm import AttentionShape, GemmShape

QUERIES, OUTPUT, UP, DOWN = "attention.qkv", "attention.output", "mlp.up", "mlp.down"
WIDE, NARROW = 128, 64  # two streams


def _core(length: int, width: int, keys: int | None = None, *, backward: bool = False) -> Kind:
    shape = AttentionShape(4, 4, 4, length, keys or length, width // 4, width // 4, "bf16", False, False)
    name = "_flash_attention_backward" if backward else "_flash_attention_forward"
    return Kind("core", name, core=shape, backward=backward)


def _run(phase: str, *kinds: Kind) -> Run:
    run = Run(phase, [*range(len(kinds))], [*kinds])
    run.cores = find_cores(run) if phase == "forward" else []
    return run


def _attention(length: int, width: int) -> list[Kind]:
    rows = 4 * length
    return [_gemm(rows, 3 * width, width), _core(length, width), _gemm(rows, width, width)]


def _mlp(rows: int, width: int) -> list[Kind]:
    return [
        _gemm(rows, 4 * width, width),
        _fused("poi_fused_gelu_view", (rows, 4 * width)),
        _gemm(rows, width, 4 * width),
    ]


def test_of_two_models_each_has_what_is_as_wide_as_it_is() -> None:
    """An MLP on part of a sequence's tokens, behind the attention of the other model."""
    text, video = [*_attention(64, NARROW), *_mlp(256, NARROW)], _attention(128, WIDE)
    run = _run("forward", *3 * [*video, *text[:2], *_mlp(480, WIDE), *text[2:]], *_mlp(512, WIDE))
    first, second = sorted((set(part.kept) for part in streams(run)), key=len)
    assert {5, 6, 7} <= first | second
    assert {0, 5, 6, 7} <= (first if 0 in first else second)
    assert {3, 8, 9, 10, 11} <= (first if 3 in first else second)
    assert not first & second


def test_windows_and_the_whole_picture_are_one_model() -> None:
    """Segment Anything's: attention in padded windows, MLPs on all tokens."""
    run = _run(
        "forward", *3 * [*_attention(80, WIDE), *_mlp(256, WIDE), *_attention(64, WIDE), *_mlp(256, WIDE)]
    )
    assert [len(part.kept) for part in streams(run)] == [len(run)]


def test_half_the_heads_of_twice_the_tokens_are_no_second_model() -> None:
    """Paired heads (KellerJordan/modded-nanogpt): the output takes as many numbers as they give."""
    paired = AttentionShape(4, 2, 2, 128, 128, WIDE // 4, WIDE // 4, "bf16", False, False)
    layer = [*_attention(64, WIDE), *_mlp(256, WIDE)]
    pairs = [layer[0], Kind("core", "_flash_attention_forward", core=paired), *layer[2:]]
    run = _run("forward", *3 * [*pairs, *layer])
    assert [len(part.kept) for part in streams(run)] == [len(run)]
    label_forward(run, WIDE)
    assert [run.labels[at].component for at in range(6, 12) if at in run.labels][:3] == [
        QUERIES,
        "attention.core",
        OUTPUT,
    ]


def _both_ways(samples: int) -> list[Kind]:
    """A layer of a mask decoder: few tokens and a picture attend to one another, in half the width."""
    few, many, half = 4 * samples, 4 * 64, WIDE // 2
    into = [_gemm(few, half, WIDE), *2 * [_gemm(many, half, WIDE)], _core(samples, half, keys=64)]
    back = [_gemm(many, half, WIDE), *2 * [_gemm(few, half, WIDE)], _core(64, half, keys=samples)]
    return [
        *_attention(samples, WIDE),
        *[*into, _gemm(few, WIDE, half), *_mlp(few, WIDE)],
        *[*back, _gemm(many, WIDE, half)],
    ]


def test_tokens_and_a_picture_that_attend_to_one_another_are_one_model() -> None:
    """What narrows a picture to the heads is no MLP of a second model (Segment Anything)."""
    run = _run("forward", *2 * _both_ways(8))
    assert [len(part.kept) for part in streams(run)] == [len(run)]


def test_what_another_attention_runs_ahead_of_is_told_by_its_rows() -> None:
    """A compiler runs the tokens' attention to themselves ahead of the picture's output projection, and makes
    the picture's next queries, and the tokens' next but one, beside keys and values."""
    few, many, half = 32, 256, WIDE // 2
    of_few, of_many, mlp = _gemm(few, half, WIDE), _gemm(many, half, WIDE), _mlp(few, WIDE)
    into, back = _core(8, half, keys=64), _core(64, half, keys=8)
    out, out_many = _gemm(few, WIDE, half), _gemm(many, WIDE, half)
    queries, own, own_out = _attention(8, WIDE)
    run = _run(
        "forward",
        *[queries, own, own_out, *2 * [of_many], of_few, into, out, *mlp, *2 * [of_few], of_many, back],
        *[queries, own, out_many, own_out, *3 * [of_many], of_few, into, out, *mlp, *3 * [of_few], back],
        *[out_many, *2 * [of_many], into, out],
    )
    label_forward(run, WIDE)
    label_ahead(run)
    found = [run.labels[at].component for at in run.products()]
    first = [QUERIES, OUTPUT, *3 * [QUERIES], OUTPUT, UP, DOWN, *3 * [QUERIES]]
    second = [QUERIES, OUTPUT, OUTPUT, *4 * [QUERIES], OUTPUT, UP, DOWN, *3 * [QUERIES]]
    assert found == [*first, *second, OUTPUT, *2 * [QUERIES], OUTPUT]


@pytest.mark.parametrize(("rows", "heads_of"), [(64, 4), (48, 0)])
def test_values_of_one_picture_can_be_made_behind_the_softmax(rows: int, heads_of: int) -> None:
    """All samples attend to it: as many values as heads have, not as all samples and heads have."""
    samples, heads, width = 6, 4, 16
    softmax = _fused("red_fused__safe_softmax", (samples * heads, 8, 64), (samples, heads, 8, 64))
    values = _gemm(rows, heads * width, WIDE)
    run = _run(
        "forward",
        *[_unfused(samples * heads, 8, 64, width), softmax, values],
        *[_unfused(samples * heads, 8, width, 64), _gemm(samples * 8, WIDE, heads * width)],
    )
    assert [core.heads for core in run.cores] == ([heads_of] if heads_of else [])
    assert [core.parts[2] for core in run.cores] == [QUERIES][: len(run.cores)]


def test_what_is_attended_to_later_is_no_output_of_the_attention_before() -> None:
    keys = _gemm(4 * 48, NARROW, NARROW)
    cross = [_core(64, NARROW, keys=48), _gemm(256, NARROW, NARROW)]
    layer = [*_attention(64, NARROW)[:2], keys, keys, _gemm(256, NARROW, NARROW)]
    run = _run("forward", *layer, _gemm(256, NARROW, NARROW), *cross)
    label_forward(run, NARROW)
    found = [run.labels[at].component if at in run.labels else "" for at in range(2, 5)]
    assert found == ["", "", OUTPUT]


def _unfused(batch: int, m: int, n: int, k: int) -> Kind:
    return Kind("bmm", "bmm", gemm=GemmShape(m, n, k, batch, None, None, None))


def test_products_with_positions_beside_the_scores_are_of_their_backward() -> None:
    """Relative positions of rows and columns (arXiv 2112.01526), 16 heads of 36 places, six a row."""
    rows = _unfused(6, 96, 6, 8)
    softmax = _fused("per_fused__softmax_add_view", (16, 36, 36), (6, 96, 6), (16, 36, 36))
    ahead = [_gemm(36, 384, NARROW), rows, rows, _unfused(16, 36, 36, 8), softmax, _unfused(16, 36, 8, 36)]
    forward = _run("forward", *ahead, _gemm(36, NARROW, 128))
    back = _fused("per_fused__softmax_backward_data_view", (16, 36, 36), (16, 36, 36))
    turned = [_unfused(6, 8, 6, 96), _unfused(6, 96, 8, 6)]
    gradients = (
        [_unfused(16, 36, 8, 36), _unfused(16, 36, 36, 8)],
        [_unfused(16, 8, 36, 36), _unfused(16, 36, 8, 36)],
    )
    run = _run("backward", *gradients[0], back, *turned, *gradients[1], *turned, _gemm(36, NARROW, 384))
    (core,) = find_backward_cores(run, [forward])
    scores = [at for at, part in core.parts.items() if part == "attention.scores"]
    assert (core.first, core.last, scores) == (0, 8, [3, 4, 5, 6, 7, 8])


def _two_sequences() -> Run:
    """A decoder's layer that attends to an encoder's result of twice as many tokens."""
    one = _gemm(256, NARROW, NARROW)
    keys = _gemm(512, NARROW, NARROW)
    forward = _run("forward", *_attention(64, NARROW), one, keys, keys, _core(64, NARROW, keys=128), one)
    names = [QUERIES, "attention.core", OUTPUT, QUERIES, QUERIES, QUERIES, "attention.core", OUTPUT]
    forward.labels = {at: Label(component, 0) for at, component in enumerate(names)}
    return forward


def _goes_back(forward: Run, *between: Kind) -> Run:
    """Its backward: the query's gradient is there before those of keys and values, the sum behind all."""
    one, keys = _gemm(256, NARROW, NARROW), _gemm(512, NARROW, NARROW)
    cross = _core(64, NARROW, keys=128, backward=True)
    own = _core(64, NARROW, backward=True)
    run = _run("backward", one, cross, one, *between, keys, keys, one, own, _gemm(256, NARROW, 192))
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    return run


def test_as_many_products_of_one_size_as_are_expected_are_those_in_their_order() -> None:
    run = _goes_back(_two_sequences())
    assert [run.labels[at].component for at in (0, 2, 3, 4, 5)] == [OUTPUT, QUERIES, QUERIES, QUERIES, OUTPUT]


def test_a_sum_over_the_tokens_is_of_the_product_on_as_many() -> None:
    forward = _two_sequences()
    norm = _fused("per_fused_native_layer_norm_backward_view", (4, 64, NARROW), (256, NARROW))
    sums = _fused("red_fused_sum_view", (4, 64, NARROW), (1, NARROW, 8))
    run = _goes_back(forward, norm, sums)
    label_gradients(run, forward, {NARROW}, None)
    assert run.labels[4].component == OUTPUT


def test_the_second_stage_of_a_sum_is_told_by_the_tokens_around_it() -> None:
    """Partial sums that are larger than the stream of another, shorter sequence."""
    mlp = [_gemm(1024, 256, NARROW), _gemm(1024, NARROW, 256)]
    forward = _run("forward", *_attention(4, NARROW), *_attention(4, NARROW), *_attention(256, NARROW), *mlp)
    names = 3 * [QUERIES, "attention.core", OUTPUT]
    forward.labels = {at: Label(component, at // 3) for at, component in enumerate([*names, UP, DOWN])}
    name = "red_fused_add_mul_sigmoid_sigmoid_backward_sum_view"
    first = _fused(name, (4, 256, 256), (1, 256, 8))
    second = _fused(name.replace("red", "per"), (1, 256, 8), (1, 256))
    kinds = [_gemm(1024, 256, NARROW), first, second, _gemm(1024, NARROW, 256)]
    run = _run("backward", *kinds)
    run.labels = {0: Label(DOWN, 2, role="dgrad"), 3: Label(UP, 2, role="dgrad")}
    label_gradients(run, forward, {NARROW}, None)
    assert run.labels[2].component == UP


@pytest.mark.parametrize("ahead", [True, False])
def test_the_gradient_of_values_stands_apart_from_that_of_their_weights(ahead: bool) -> None:
    """With the gradients of what makes them between, or behind: dQ and dK are of the core then, too."""
    softmax = _fused("per_fused__softmax_view", (16, 36, 36), (16, 36, 36))
    scores, values = _unfused(16, 36, 36, 8), _unfused(16, 36, 8, 36)
    forward = _run("forward", _gemm(36, 384, NARROW), scores, softmax, values, _gemm(36, NARROW, 128))
    back = _fused("per_fused__softmax_backward_data_view", (16, 36, 36), (16, 36, 36))
    linear = [_gemm(128, NARROW, 36), _gemm(36, NARROW, 128)]
    between = [values, *linear, scores] if ahead else [scores, values, *linear]
    run = _run("backward", _gemm(36, 128, NARROW), *between, back, values, _unfused(16, 8, 36, 36))
    (core,) = find_backward_cores(run, [forward])
    found = [core.parts.get(at, "") for at in range(1, 8)]
    pairs = ["attention.values", *(["", ""] if ahead else ["attention.values"])]
    pairs += ["attention.values"] if ahead else ["", ""]
    assert found == [*pairs, "attention.softmax", "attention.scores", "attention.scores"]


def test_attention_between_the_products_of_another_models_is_found() -> None:
    """BLIP, compiled with attention written out: scores, scores, softmax, values, softmax, values."""
    one, other = 64, 80
    scores = [_unfused(16, length, length, 16) for length in (one, other)]
    values = [_unfused(16, length, 16, length) for length in (one, other)]
    weighs = [_fused("per_fused__softmax_mul_view", (4, 4, length, length)) for length in (one, other)]
    run = _run("forward", *scores, weighs[0], values[0], weighs[1], values[1])
    assert [(core.first, core.last) for core in run.cores] == [(0, 3), (1, 5)]
    assert [sorted(core.parts) for core in run.cores] == [[0, 2, 3], [1, 4, 5]]
    beside = _unfused(16, one, 2 * one, 16)  # of positions: part of the scores
    run = _run("forward", scores[0], beside, weighs[0], values[0])
    assert [sorted(core.parts) for core in run.cores] == [[0, 1, 2, 3]]


def _unfused_layer(length: int) -> list[Kind]:
    """Four heads, whose kernels tell no more than their sizes."""
    rows, one = 4 * length, _gemm(4 * length, NARROW, NARROW)
    softmax = _fused("per_fused__softmax_view", (16, length, length), (16, length, length))
    scores, values = _unfused(16, length, length, 16), _unfused(16, length, 16, length)
    return [*3 * [one], scores, softmax, values, one, *_mlp(rows, NARROW)]


def _unfused_back(length: int, *ahead: Kind) -> list[Kind]:
    """The gradients of its activations, with others ahead of the output projection's."""
    rows, one = 4 * length, _gemm(4 * length, NARROW, NARROW)
    softmax = _fused("per_fused__softmax_backward_data_view", (16, length, length), (16, length, length))
    back, made = _unfused(16, length, length, 16), _unfused(16, length, 16, length)
    mlp = [_gemm(rows, 4 * NARROW, NARROW), _gemm(rows, NARROW, 4 * NARROW)]
    return [*mlp, *ahead, one, made, back, softmax, _unfused(16, 16, length, length), made, *3 * [one]]


def _read_back(lengths: list[int], *kinds: Kind) -> Run:
    forward = _run("forward", *(kind for length in lengths for kind in _unfused_layer(length)))
    parts = ["attention.scores", "attention.softmax", "attention.values"]
    names = [*3 * [QUERIES], *parts, OUTPUT, UP, "mlp.activation", DOWN]
    forward.labels = {at: Label(names[at % 10], at // 10) for at in range(len(forward))}
    run = _run("backward", *kinds)
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    return run


def test_cores_of_two_models_in_turn_are_told_by_the_sizes_of_their_scores() -> None:
    order = (64, 64, 128, 128)
    run = _read_back([64, 128, 64, 128], *(kind for length in order for kind in _unfused_back(length)))
    for start in range(0, len(run), 11):
        found = [run.labels[start + at].component for at in (0, 1, 2, 8, 9, 10)]
        assert found == [DOWN, UP, OUTPUT, *3 * [QUERIES]], start


def test_no_product_ahead_of_a_core_is_of_its_queries_where_another_core_has_no_gradient() -> None:
    """Another product of that size stands ahead of each: without cores to go by all that follow move."""
    back = _unfused_back(64, _gemm(256, NARROW, NARROW))
    run = _read_back([64, 64, 64], *back, *back[:2], *back)
    named = {at: label.component for at, label in run.labels.items()}
    assert QUERIES not in {named.get(start + at) for start in (0, 14) for at in (2, 3)}
    assert {named[start + at] for start in (0, 14) for at in (9, 10, 11)} == {QUERIES}


def test_products_of_a_bias_beside_fused_attention_have_gradients_too() -> None:
    """Segment Anything's relative positions of rows and of columns, with a copy of the queries between."""
    bias, layout = (
        _unfused(8, 128, 8, 16),
        _fused("poi_fused_clone_permute_view", (256, 192), (3, 4, 4, 64, 16)),
    )
    queries, out = _gemm(256, 3 * NARROW, NARROW), _gemm(256, NARROW, NARROW)
    run = _run("forward", queries, bias, layout, bias, _core(64, NARROW), out, *_mlp(256, NARROW))
    label_forward(run, NARROW)
    label_between(run, NARROW, None)
    assert [run.labels[at].component for at in (1, 2, 3)] == [
        "attention.scores",
        "attention.other",
        "attention.scores",
    ]
    gradients = [_unfused(8, 16, 8, 128), _unfused(8, 128, 16, 8), _unfused(8, 24, 16, 8)]
    back = _run("backward", out, _core(64, NARROW, backward=True), *gradients, _gemm(256, NARROW, 192))
    back.cores = find_backward_cores(back, [run])
    label_products(back, run, {})
    assert [at for at in (2, 3, 4) if at in back.labels] == [2, 3]
    assert {back.labels[at].component for at in (2, 3)} == {"attention.scores"}


def _cross_attention(one: int, other: int, *back: tuple[int, int, int]) -> list[str]:
    """What products are behind the gradient of the weights that ``one`` tokens give ``other`` ones."""
    softmax = _fused("per_fused__softmax_view", (16, one, other), (16, one, other))
    forward = _run("forward", _unfused(16, one, other, 16), softmax, _unfused(16, one, 16, other))
    forward.labels = {at: Label(part, 0) for at, part in forward.cores[0].parts.items()}
    ahead = [_unfused(16, one, other, 16), _fused("per_fused__softmax_backward_data_view", (16, one, other))]
    run = _run("backward", *ahead, *(_unfused(16, *sizes) for sizes in back))
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    return [run.labels[at].component for at in range(2, len(run))]


def test_gradients_of_queries_keys_and_values_are_told_by_their_sizes() -> None:
    of_queries, of_keys, of_values = (64, 16, 32), (16, 32, 64), (32, 16, 64)
    found = _cross_attention(64, 32, of_queries, of_values, of_keys)
    assert found == ["attention.scores", "attention.values", "attention.scores"]


def test_beside_the_gradient_of_keys_stands_that_of_queries_which_can_be_of_the_size_of_values() -> None:
    of_keys, either = (16, 64, 64), (64, 16, 64)
    assert _cross_attention(64, 64, of_keys, either) == 2 * ["attention.scores"]
    found = _cross_attention(64, 64, of_keys, either, either)  # the last is put off, as that of values can be
    assert found == ["attention.scores", "attention.scores", "attention.values"]


def test_what_is_left_of_a_size_is_of_what_has_not_all_its_gradients_yet() -> None:
    """Products with positions of another width beside the scores (LiLT), whose softmax has one gradient."""
    softmax = _fused("per_fused__softmax_add_view", (16, 64, 64), (16, 64, 64))
    products = [_unfused(16, 64, 64, 8), _unfused(16, 64, 64, 16), softmax, _unfused(16, 64, 16, 64)]
    forward = _run("forward", *products)
    forward.labels = {at: Label(part, 0) for at, part in forward.cores[0].parts.items()}
    back = _fused("per_fused__softmax_backward_data_view", (16, 64, 64), (16, 64, 64))
    ahead = [_unfused(16, 64, 16, 64), _unfused(16, 64, 64, 16), back]
    gradients = [(8, 64, 64), (64, 8, 64), (16, 64, 64), (64, 16, 64)]
    run = _run("backward", *ahead, *(_unfused(16, *sizes) for sizes in gradients))
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    assert [run.labels[at].component for at in range(3, 7)] == 4 * ["attention.scores"]


@pytest.mark.parametrize(("ahead", "found"), [(True, QUERIES), (False, OUTPUT)])
def test_of_two_products_of_one_size_that_is_of_queries_which_takes_what_heads_gave(
    ahead: bool, found: str
) -> None:
    """Two models' kernels are mixed, so that their order says nothing."""
    product, cores = _gemm(256, NARROW, NARROW), (_core(64, NARROW), _core(128, NARROW))
    forward = _run("forward", product, cores[0], product, cores[1])
    names = (QUERIES, "attention.core", OUTPUT, "attention.core")
    forward.labels = {at: Label(component, 0) for at, component in enumerate(names)}
    heads, flat = (4, 64, 4, 16), (256, NARROW)
    layout = _fused("poi_fused_clone_transpose_view", *((heads, flat) if ahead else (flat, heads)))
    kinds = [layout, product] if ahead else [product, layout]
    core = _core(64, NARROW, backward=True)
    run = _run("backward", *kinds, core) if ahead else _run("backward", core, *kinds)
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    assert run.labels[run.kinds.index(product)].component == found


def test_keys_made_ahead_have_their_gradients_behind_the_first_core_of_their_layer() -> None:
    """The second attention of a layer is to another sequence, whose keys and values are made before both."""
    one, keys = _gemm(256, NARROW, NARROW), _gemm(512, NARROW, NARROW)
    forward = _run("forward", keys, keys, *_attention(64, NARROW), one, _core(64, NARROW, keys=128), one)
    names = [QUERIES, QUERIES, QUERIES, "attention.core", OUTPUT, QUERIES, "attention.core", OUTPUT]
    forward.labels = {at: Label(component, 0) for at, component in enumerate(names)}
    cross, own = _core(64, NARROW, keys=128, backward=True), _core(64, NARROW, backward=True)
    run = _run("backward", one, cross, one, keys, keys, one, own, _gemm(256, NARROW, 192))
    run.cores = find_backward_cores(run, [forward])
    label_products(run, forward, {})
    assert [run.labels[at].component for at in (2, 3, 4, 5)] == [QUERIES, QUERIES, QUERIES, OUTPUT]
    assert {run.labels[at].layer for at in (3, 4)} == {0}
