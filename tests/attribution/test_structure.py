"""Principles of the structure, each on the few units that it rests on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from tracelens.attribution.structure.again import label_repeats
from tracelens.attribution.structure.between import label_between
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.forward import label_forward
from tracelens.attribution.structure.infer import Inference
from tracelens.attribution.structure.maps import linear_convolutions
from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.towers import stretches
from tracelens.attribution.structure.units import Dims, Kind
from tracelens.attribution.structure.walk import hidden_size
from tracelens.gemm import GemmShape

HIDDEN, TOKENS = 256, (2, 64)


def _run(*kinds: Kind) -> Run:
    return Run("forward", list(range(len(kinds))), list(kinds))


def _gemm(m: int, n: int, k: int) -> Kind:
    return Kind("gemm", "linear", gemm=GemmShape(m, n, k, 1, None, None, None), tensors=((m, k), (n, k)))


def _bmm(batch: int, m: int, n: int, k: int) -> Kind:
    shape = GemmShape(m, n, k, batch, None, None, None)
    return Kind("bmm", "bmm", gemm=shape, tensors=((batch, m, k), (batch, k, n)))


def _unit(name: str, *tensors: Dims, what: str = "elementwise") -> Kind:
    return Kind(what, name, tensors=tensors)


def _stream(name: str = "add", what: str = "add") -> Kind:
    return _unit(name, (*TOKENS, HIDDEN), (*TOKENS, HIDDEN), what=what)


def _norm() -> Kind:
    return _unit("layer_norm", (*TOKENS, HIDDEN), (HIDDEN,), what="norm")


def _attention() -> list[Kind]:
    core = [_bmm(8, 64, 64, 64), _unit("softmax", (2, 4, 64, 64), what="softmax"), _bmm(8, 64, 64, 64)]
    return [_norm(), _gemm(128, 3 * HIDDEN, HIDDEN), *core, _gemm(128, HIDDEN, HIDDEN), _stream(), _norm()]


@pytest.mark.parametrize(
    ("between", "found"),
    [
        ([_unit("mul", (8, 64, 64), (1, 64, 64))], True),  # a decay, or any other kernel function
        ([_unit("copy_", (8, 64, 64), what="copy")], False),  # two products in a row
        ([_unit("mul", (8, 64, 64)), _unit("mul", (2, 64, 128))], False),  # work on something else too
        ([_unit("mul", (8, 64, 64)), _gemm(128, 64, 64)], False),
    ],
)
def test_attention_without_a_softmax_is_two_products_with_work_on_the_scores_between(
    between: list[Kind], found: bool
) -> None:
    qkv = _gemm(128, 3 * HIDDEN, HIDDEN)
    run = _run(qkv, _bmm(8, 64, 64, 32), *between, _bmm(8, 64, 32, 64), _gemm(128, HIDDEN, HIDDEN))
    cores = find_cores(run)
    assert len(cores) == found
    assert not found or set(cores[0].parts.values()) == {"attention.scores", "attention.values"}


@pytest.mark.parametrize(
    ("weight", "behind", "what"),
    [
        ((256, 64, 1), _norm(), "gemm"),  # in four groups
        ((256, 256, 3), _norm(), "convolution"),
        ((256, 256, 1), _unit("batch_norm", (2, 256, 64), (256,), what="norm"), "convolution"),
        ((256, 256, 1), _unit("conv1d", (2, 256, 64), (256, 1, 9), what="convolution"), "convolution"),
    ],
)
def test_a_convolution_of_one_tap_is_a_linear_layer(weight: Dims, behind: Kind, what: str) -> None:
    run = _run(_unit("conv1d", (2, 256, 64), weight, what="convolution"), behind)
    linear_convolutions(run)
    assert run.kinds[0].what == what
    assert what != "gemm" or run.shape(0) == GemmShape(128, 256, 256, 1, None, None, None)


def _labelled(*kinds: Kind) -> list[str | None]:
    run = _run(*kinds)
    run.cores = find_cores(run)
    label_forward(run, HIDDEN)
    label_between(run, HIDDEN, None)
    return [run.labels[at].component if at in run.labels else None for at in range(len(run))]


@pytest.mark.parametrize(("width", "component"), [(HIDDEN, "embedding"), (4, None)])
def test_what_counts_positions_is_part_of_their_lookup(width: int, component: str | None) -> None:
    lookup = _unit("embedding", (512, width), TOKENS, what="embedding")
    labels = _labelled(_unit("arange"), _unit("cumsum", TOKENS), lookup, *_attention())
    assert labels[:2] == [component, component]


def test_what_is_cut_and_put_together_again_embeds_without_shapes() -> None:
    """Registers between the class and the patches (transformers models/dinov2_with_registers)."""
    patches = [_unit("conv2d", what="convolution"), _unit("cat"), _unit("add", what="add")]
    labels = _labelled(*patches, _unit("slice"), _unit("slice"), _unit("cat"), *_attention())
    assert labels[5] == "embedding"


def test_positions_of_many_tokens_are_found_at_once() -> None:
    """Numbers of a divisor of all tokens: no list of the divisors is made."""
    lookups = [
        _unit("embedding", (size, HIDDEN), (size * 8,), what="embedding") for size in (50358, 4096, 512)
    ]
    labels = _labelled(_unit("arange", (64 * 512,)), *lookups, *_attention())
    assert labels[0] == "embedding"


@pytest.mark.parametrize(("chosen", "component"), [("argmax", "moe.router"), ("tanh", None)])
def test_a_choice_inside_a_layer_routes_though_no_expert_ran(chosen: str, component: str | None) -> None:
    routed = [_gemm(128, 8, HIDDEN), _unit("softmax", (128, 8), what="softmax"), _unit(chosen, (128, 8))]
    labels = _labelled(*_attention(), *routed, _stream(), *_attention())
    at = len(_attention())
    assert labels[at] == component
    assert labels[at + len(routed)] != "moe.router"


def test_another_layout_of_what_an_attention_gives_is_of_the_attention() -> None:
    """Queries with the sequence in front (transformers models/mlcd/modeling_mlcd.py)."""
    turned = replace(
        _unit("copy_", (*TOKENS, HIDDEN), (*TOKENS, HIDDEN), what="copy"), tags=frozenset({"layout"})
    )
    attention = _attention()
    attention.insert(6, turned)
    labels = _labelled(*attention, _gemm(128, 1024, HIDDEN))
    assert labels[5:8] == ["attention.output", "attention.other", "residual"]


def test_a_second_projection_of_other_tokens_is_one_too() -> None:
    attention = _attention()
    attention.insert(5, _gemm(16, HIDDEN, HIDDEN))
    assert _labelled(*attention)[5:7] == ["attention.output", "attention.output"]


# of all scores, from heads to heads
_HEADS = _unit("conv2d", (2, 4, 64, 64), (4, 4, 1, 1), what="convolution")
_MAPS = _unit("conv2d", (2, 256, 16, 16), (256, 256, 3, 3), what="convolution")


@pytest.mark.parametrize(
    ("ahead", "behind", "found"),
    [
        ([], [], True),
        ([_gemm(2 * 64 * 64, 4, 4)], [_gemm(2 * 64 * 64, 4, 4)], True),  # talking heads
        ([_HEADS], [_HEADS], True),
        ([_MAPS], [], False),  # scores of one block and values of another
        ([_unit("mul", (8, 64, 64))] * 300, [], False),  # nor are they sought through all of a loop
        ([], [_MAPS], False),
        ([], [_gemm(128, 256, 256)], False),
        ([], [_gemm(128, 128, 256)], True),  # it makes the values
        ([_gemm(64 * 64, 512, 2), _gemm(64 * 64, 4, 512)], [], True),  # biases from how positions lie
    ],
)
def test_between_scores_and_values_stands_nothing_of_another_block(
    ahead: list[Kind], behind: list[Kind], found: bool
) -> None:
    softmax = _unit("softmax", (2, 4, 64, 64), what="softmax")
    run = _run(_bmm(8, 64, 64, 32), *ahead, softmax, *behind, _bmm(8, 64, 32, 64))
    assert len(find_cores(run)) == found


@pytest.mark.parametrize(("keys", "found"), [((2, 4, 64, 32), 1), ((2, 4, 64, 64), 0)])
def test_a_softmax_of_the_keys_alone_is_of_efficient_attention(keys: Dims, found: int) -> None:
    softmax = _unit("softmax", keys, what="softmax")
    run = _run(softmax, _bmm(8, 32, 16, 64), _unit("mul"), _bmm(8, 64, 16, 32), _gemm(128, 64, 64))
    cores = find_cores(run)
    assert [core.out_width for core in cores] == [64] * found


def test_values_may_come_before_the_weights() -> None:
    softmax = _unit("softmax", (2, 4, 64, 64), what="softmax")
    run = _run(_bmm(8, 64, 64, 16), softmax, _bmm(8, 32, 64, 64))  # 32 wide
    assert [core.out_width for core in find_cores(run)] == [4 * 32]


@pytest.mark.parametrize("first", [True, False])
def test_products_of_positions_make_scores_too(first: bool) -> None:
    scores, scale = _bmm(8, 64, 64, 32), _unit("mul", (8, 64, 64), (1,))
    positions = [_bmm(8, 64, 127, 32), _unit("mul", (8, 64, 127), (1,))]
    made = [*positions, scores] if first else [scores, *reversed(positions)]
    softmax = _unit("softmax", (2, 4, 64, 64), what="softmax")
    (core,) = find_cores(_run(*made, scale, softmax, _bmm(8, 64, 32, 64)))
    parts = ["attention.scores"] * 3 + ["attention.softmax"] * 2 + ["attention.values"]
    assert [core.parts[at] for at in range(6)] == parts
    assert core.first == (2 if first else 0)


def test_a_normalization_within_attention_is_one() -> None:
    softmax = _unit("softmax", (2, 4, 64, 64), what="softmax")
    norm = _unit("layer_norm", (2, 4, 64, 64), (64,), what="norm")
    (core,) = find_cores(_run(_bmm(8, 64, 64, 32), norm, softmax, norm, _bmm(8, 64, 32, 64)))
    assert (core.parts[1], core.parts[3]) == ("norm", "norm")


@pytest.mark.parametrize(("inside", "closes"), [("gelu", True), ("softmax", False)])
def test_an_mlp_ends_where_another_block_begins(inside: str, closes: bool) -> None:
    wide = _unit(inside, (128, 4 * HIDDEN), what="activation" if closes else inside)
    act = _unit("gelu", (128, 4 * HIDDEN), what="activation")
    mlp = [_gemm(128, 4 * HIDDEN, HIDDEN), wide, act, _gemm(128, HIDDEN, 4 * HIDDEN), _stream()]
    labels = _labelled(*_attention(), *mlp, *_attention())
    assert (labels[len(_attention())] == "mlp.up") == closes


@pytest.mark.parametrize(("made_of", "found"), [(HIDDEN, HIDDEN), (2 * HIDDEN, None)])
def test_the_streams_width_is_that_of_which_something_is_made(made_of: int, found: int | None) -> None:
    run = _run(_gemm(128, 3 * HIDDEN, made_of), *_attention()[2:5], _gemm(128, HIDDEN, HIDDEN))
    run.kinds[-1] = _gemm(128, HIDDEN, HIDDEN) if found else _gemm(8, 1000, HIDDEN)  # a head
    run.cores = find_cores(run)
    assert hidden_size([run]) == found


def test_queries_are_as_wide_as_what_the_core_takes_and_no_wider() -> None:
    attention = _attention()
    attention.insert(1, _gemm(128, HIDDEN // 4, HIDDEN))
    assert _labelled(*attention)[1:3] == [None, "attention.qkv"]
    attention[1] = _gemm(16, 3 * HIDDEN, HIDDEN)  # the same layer for other tokens
    assert _labelled(*attention)[1:3] == ["attention.qkv", "attention.qkv"]


@pytest.mark.parametrize(("wide", "component"), [(64, "attention.other"), (32, None)])
def test_what_is_made_of_each_head_by_itself_gates_the_scores(wide: int, component: str | None) -> None:
    gates = [_gemm(2 * 4 * 64, 8, wide), _unit("sigmoid", (2, 4, 64, 2), what="activation")]
    attention = _attention()
    labels = _labelled(*attention, attention[0], *gates, *attention[1:])
    assert labels[len(attention) + 1] == component
    assert labels[len(attention) + 2] == "attention.other"


@pytest.mark.parametrize(("tags", "component"), [(set(), "norm"), ({"layout"}, "attention.other")])
def test_a_copy_beside_a_normalization_is_part_of_it_where_it_casts(tags: set[str], component: str) -> None:
    heads = (2, 4, 64, 64)
    copy = Kind("copy", "copy_", tensors=(heads, heads), tags=frozenset(tags))
    attention = _attention()
    attention[2:2] = [copy, _unit("layer_norm", heads, (64,), what="norm")]
    assert _labelled(*attention)[2:4] == [component, "norm"]


@pytest.mark.parametrize(("widths", "found"), [((64, 256, 64, 256), 4), ((256, 64, 256, 256), 1)])
def test_two_streams_in_turn_are_no_slip_of_one(widths: tuple[int, ...], found: int) -> None:
    kinds = []
    for width in widths:
        core = [_bmm(8, 64, 64, width // 4), _unit("softmax", (2, 4, 64, 64), what="softmax")]
        core.append(_bmm(8, 64, width // 4, 64))
        kinds += [_gemm(128, 3 * width, width), *core, _gemm(128, width, width)]
    run = _run(*kinds)
    run.cores = find_cores(run)
    assert len([*stretches(run, 256)]) == found


def test_behind_an_activation_nothing_is_embedded() -> None:
    wide = _unit("gelu", (*TOKENS, 64), what="activation")
    assert _labelled(wide, _gemm(128, HIDDEN, 64), *_attention())[1] is None
    assert _labelled(_gemm(128, HIDDEN, 64), *_attention())[0] == "embedding"


@pytest.mark.parametrize(("inner", "heads", "component"), [(2, 4, "attention.other"), (32, 4, None)])
def test_what_makes_a_bias_of_distances_makes_no_queries(
    inner: int, heads: int, component: str | None
) -> None:
    bias = [_gemm(225, 512, inner), _unit("relu", (15, 15, 512), what="activation"), _gemm(225, heads, 512)]
    attention = _attention()
    labels = _labelled(*attention[:2], *bias, *attention[2:])
    assert labels[1] == "attention.qkv"
    assert labels[4] == component


@pytest.mark.parametrize(("behind", "width"), [((2 * 16, 256), 256), ((2 * 64, 64), 64)])
def test_the_product_behind_tells_scores_of_channels(behind: tuple[int, int], width: int) -> None:
    softmax = _unit("softmax", (2, 4, 64, 64), what="softmax")
    run = _run(_bmm(8, 64, 64, 16), softmax, _bmm(8, 64, 16, 64), _gemm(behind[0], 256, behind[1]))
    assert [core.out_width for core in find_cores(run)] == [width]


def test_maps_of_a_convolution_make_no_bias_of_scores() -> None:
    maps = (2, HIDDEN, 8, 8)
    sums = [
        _unit("conv2d", maps, (HIDDEN, 1, 3, 3), what="convolution"),
        _unit("add", maps, maps, what="add"),
    ]
    assert _labelled(*_attention(), *sums, *_attention())[len(_attention()) + 1] != "attention.other"
    assert _labelled(*_attention(), *sums[1:], *_attention())[len(_attention())] == "attention.other"


@pytest.mark.parametrize(("wide", "component"), [(2 * HIDDEN, "attention.qkv"), (3 * HIDDEN, None)])
def test_queries_stand_before_what_makes_keys_and_values_alone(wide: int, component: str | None) -> None:
    attention = _attention()
    pooled = _unit("adaptive_avg_pool2d", (2, HIDDEN, 8, 8), what="picture")
    attention[1:2] = [_gemm(128, HIDDEN, HIDDEN), pooled, _norm(), _gemm(128, wide, HIDDEN)]
    assert _labelled(*_attention(), *attention)[len(_attention()) + 1] == component


def _experts() -> list[Kind]:
    routed = [_gemm(128, 8, HIDDEN), _unit("topk", (128, 8))]
    return [*routed, _gemm(40, 512, HIDDEN), _gemm(40, HIDDEN, 512)]


def test_experts_end_with_what_comes_back() -> None:
    gate, other = _gemm(128, 1, HIDDEN), _gemm(128, 8, 4 * HIDDEN)
    labels = _labelled(*_attention(), *_experts(), gate, other, _stream(), *_attention())
    at = len(_attention())
    assert labels[at + 2 : at + 6] == ["moe.experts", "moe.experts", "moe.experts", None]


def test_shared_experts_are_added_before_the_stream() -> None:
    labels = _labelled(*_attention(), *_experts(), _stream(), _stream(), *_attention())
    at = len(_attention()) + len(_experts())
    assert labels[at : at + 2] == ["moe.dispatch", "residual"]


@pytest.mark.parametrize(("streams", "component"), [((4,), "residual"), ((3, 3), "attention.other")])
def test_streams_side_by_side_are_summed_like_one(streams: Dims, component: str) -> None:
    wide = (*TOKENS, *streams, HIDDEN)
    total = _unit("add", wide, wide, what="add")
    labels = _labelled(*_attention()[:-2], total, *_attention())
    assert labels[len(_attention()) - 2] == component


def test_a_cast_into_another_form_is_of_what_takes_it() -> None:
    wide, column = (*TOKENS, HIDDEN), (*TOKENS, 1)
    steps = [_unit("pow", wide), _unit("mean", wide), _unit("rsqrt", column), _unit("mul", wide, column)]
    steps += [_unit("mul", (HIDDEN,), wide)]
    same, flat = (_unit("copy_", shape, what="copy") for shape in (wide, (128, HIDDEN)))
    assert written_norms(_run(*steps, same)) == {0, 1, 2, 3, 4, 5}
    assert written_norms(_run(*steps, flat)) == {0, 1, 2, 3, 4}


def test_the_sum_of_an_adapter_ends_before_a_normalization_that_is_written_out() -> None:
    wide, heads, row = (128, 3 * HIDDEN), (2, 12, 64, 64), (2, 12, 64, 1)
    attention = _attention()
    sizes = {"copy_": heads, "pow": heads, "mean": heads, "add": row, "rsqrt": row, "mul": heads}
    kinds = {"copy_": "copy", "add": "add"}
    normed = [_unit(name, size, what=kinds.get(name, "elementwise")) for name, size in sizes.items()]
    adapter = [_gemm(128, 16, HIDDEN), _gemm(128, 3 * HIDDEN, 16), _unit("mul", wide)]
    attention[2:2] = [*adapter, _unit("add", wide, wide, what="add"), *normed]
    assert _labelled(*attention)[1:12] == ["attention.qkv"] * 5 + ["norm"] * 6


def test_products_like_an_adapter_behind_an_mlp_of_no_layer_stay_open() -> None:
    act = _unit("gelu", (16, 4 * HIDDEN), what="activation")
    mlp = [_gemm(16, 4 * HIDDEN, HIDDEN), act, _gemm(16, HIDDEN, 4 * HIDDEN)]
    labels = _labelled(*_attention(), *mlp, _gemm(16, 8, 4 * HIDDEN), _gemm(16, HIDDEN, 8))
    assert {labels[len(_attention())], *labels[-2:]} == {None}


@pytest.mark.parametrize(("swapped", "found"), [(1, 11), (3, 0)])
def test_what_runs_again_may_differ_in_a_unit(swapped: int, found: int) -> None:
    """In place in the forward and not where gradients are taken; more of it is another stretch."""
    size = 12
    codes = [*range(size), *range(size)]
    codes[size + 4 : size + 4 + swapped] = [99] * swapped
    kind = np.array(codes, np.int32)
    kinds = [_unit("mul")] * size
    units = SimpleNamespace(kernel=np.zeros(2 * size, np.int32), kind=kind, kinds=100 * kinds[:1])
    labels = {at: Label("norm" if at % 2 else "residual", 3) for at in range(size)}
    forward = Run("forward", [*range(size)], kinds, labels)
    again = Run("recompute", [*range(size, 2 * size)], kinds)
    label_repeats(units, [forward, again])  # type: ignore[arg-type]
    assert len(again.labels) == found
    assert again.labels.items() <= {at: replace(label, layer=None) for at, label in labels.items()}.items()


@pytest.mark.parametrize(("size", "found"), [(6, 6), (4, 0)])
def test_what_runs_again_can_stop_inside_its_last_unit(size: int, found: int) -> None:
    """torch.utils.checkpoint, early stop: of the last linear layer only the casts of its operands."""
    kind = np.array([*range(size), *range(size - 1), 99], np.int32)
    kinds = [_unit("mul")] * size
    units = SimpleNamespace(kernel=np.zeros(2 * size, np.int32), kind=kind, kinds=100 * kinds[:1])
    forward = Run("forward", [*range(size)], kinds, {at: Label("norm") for at in range(size)})
    again = Run("recompute", [*range(size, 2 * size)], kinds)
    label_repeats(units, [forward, again])  # type: ignore[arg-type]
    assert len(again.labels) == found


@pytest.mark.parametrize(("labels", "found"), [([0, 1, 0], -1), ([0, 0, 0], 0), ([0, -1, 0], -1)])
def test_a_node_is_what_all_of_its_units_are(labels: list[int], found: int) -> None:
    """A compiled backward that begins and ends with a normalization is none."""
    units = SimpleNamespace(of_node=np.array([0], np.int32), last_of_node=np.array([2], np.int32))
    names = [Label("norm"), Label("mlp.up")]
    inferred = Inference(cast(Any, units), names, np.array(labels, np.int32), 64, True, {})
    assert inferred.of_node(np.zeros(1, np.int32)).tolist() == [found]
