"""What modules of no telling name run in front of the layers of their network, in them and behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.attribution.rows import Row, attributed, written
from tests.trace.tools import op
from tracelens.words import COMPONENTS

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>"
STREAM = [4, 128, 256]
#: A row, or a module and what runs in it.
Part = Row | tuple[str, list["Part"]]


def _row(right: str, name: str, *dims: object, number: int = 1) -> Row:
    return Row(right, name, FLASH if "flash" in name else ELEMENTWISE, dims, number=number)


def _product(right: str, module: str = "Linear") -> Part:
    return module, [_row(right, "aten::addmm")]


def _layer(at: int, *more: Part) -> Part:
    core = _row("attention.core", "aten::_flash_attention_forward")
    parts = [
        _product("attention.qkv", f"Linear_{10 * at}"),
        core,
        _product("attention.output", f"Linear_{10 * at + 1}"),
    ]
    return f"Layer_{at}", [(f"Attention_{at}", parts), *more]


def _laid(parts: list[Part], places: Iterator[int]) -> Iterator[tuple[Row | None, dict[str, Any]]]:
    """The rows, and the frames around them at their times in ``written``."""
    for part in parts:
        if isinstance(part, Row):
            at = next(places)
            yield replace(part, number=at + 1 if part.number > 0 else part.number), {"at": at}
            continue
        inside = list(_laid(part[1], places))
        yield from inside
        places_in = [found["at"] for row, found in inside if row is not None]
        yield None, {"at": places_in[0], "last": places_in[-1], "name": part[0]}


def _check(folder: Path, parts: list[Part], *more: dict[str, Any], shapes: bool = True) -> None:
    laid = list(_laid(parts, count()))
    rows = [row for row, _ in laid if row is not None]
    frames = [found for row, found in laid if row is None]
    events = [*written(rows, shapes=shapes), *more]
    for depth, found in enumerate(reversed(frames)):  # those around others come last
        margin = 8 - 7 * depth / len(frames)
        begin, dur = 10 + 100 * found["at"] - margin, 100 * (found["last"] - found["at"]) + 20 + 2 * margin
        name = f"nn.Module: {found['name']}" if "_" in found["name"] else f"nn.Module: {found['name']}_0"
        events.append(op(name, ts=begin, dur=dur) | {"cat": "python_function"})
    trace, _, found_ = attributed(folder, events)
    said = [COMPONENTS[found_.component[at]] for at in trace.kernels.ts_ns.argsort(kind="stable")]
    assert [*zip(said, (row.op for row in rows), strict=True)] == [(row.right, row.op) for row in rows]


def test_what_stands_in_front_of_layers_embeds_and_what_stands_behind_is_the_head(tmp_path: Path) -> None:
    front: list[Part] = [
        ("Sequential_0", [_product("embedding", "Linear_0")]),
        _row("embedding", "aten::mul"),
    ]
    masks = [
        _row("other", "aten::eq", number=-1),
        _row("embedding", "aten::arange", number=-1),
        _row("unattributed", "aten::copy_", number=-1),
    ]
    between = _row("unattributed", "aten::mul")
    head: Part = (
        "Sequential_9",
        [_product("logits", "Linear_90"), ("ReLU_9", [_row("logits", "aten::relu")])],
    )
    score: Part = ("Score_0", [_row("loss", "aten::pow")])
    network: Part = ("Network_0", [*front, *masks, _layer(1), between, _layer(2), head])
    _check(tmp_path, [network, score])


@pytest.mark.parametrize(("rows", "right"), [(64, "attention.output"), (512, "attention.other")])
def test_rows_of_two_streams_have_an_output_each(tmp_path: Path, rows: int, right: str) -> None:
    """FluxAttnProcessor of huggingface/diffusers: to_out of the picture's rows, to_add_out of the text's. Of
    the same rows one product is a gate or an adapter, as likely."""
    core: Part = _row("attention.softmax", "aten::_softmax")

    def layer(at: int) -> Part:
        outputs: list[Part] = [
            (f"Linear_{at + i}", [_row(right, "aten::mm", [m, 256], [256, 256])])
            for i, m in enumerate((512, rows))
        ]
        return f"Layer_{at}", [(f"Attention_{at}", [core, *outputs])]

    _check(tmp_path, [("Network_0", [layer(10), layer(20)])])


@pytest.mark.parametrize(("between", "right"), [(2, "attention.output"), (0, "attention.other")])
def test_a_scan_in_attention_stands_between_queries_and_output(
    tmp_path: Path, between: int, right: str
) -> None:
    """GateLoopedAttention of lucidrains/gateloop-transformer: no softmax and no batched product."""
    first = "attention.qkv" if between else "attention.other"
    scan: list[Part] = [_row("attention.other", "aten::mul")] * between
    attention: Part = (
        "Attention_9",
        [_product(first, "Linear_90"), *scan, _product(right, "Linear_91")],
    )
    _check(tmp_path, [("Network_0", [_layer(1), ("Layer_9", [attention])])])


@pytest.mark.parametrize(("module", "right"), [("Linear", "residual"), ("Own", "attention.other")])
def test_attention_adds_the_stream_behind_its_last_module(tmp_path: Path, module: str, right: str) -> None:
    """MultiHeadAttention of jadore801120/attention-is-all-you-need-pytorch; a product that is no module can
    have its bias added."""
    parts: list[Part] = [
        _product("attention.qkv", "Linear_90"),
        _row("attention.core", "aten::_flash_attention_forward"),
        _product("attention.output", f"{module}_91"),
        _row(right, "aten::add"),
        ("LayerNorm_9", [_row("norm", "aten::native_layer_norm")]),
    ]
    _check(tmp_path, [("Network_0", [_layer(1), ("Layer_9", [("Attention_9", parts)])])], shapes=False)


def test_a_product_with_its_adapters_is_one_layer_of_an_mlp(tmp_path: Path) -> None:
    """tuners/vera/layer.py of huggingface/peft: two more products in the module of each layer."""

    def adapted(right: str, at: int) -> Part:
        return f"Linear_{at}", [_product(right, f"Linear_{at + 1}"), *[_row(right, "aten::mm")] * 2]

    act: Part = ("SiLU_9", [_row("mlp.activation", "aten::silu")])
    products = [adapted("mlp.gate", 90), act, adapted("mlp.up", 93), adapted("mlp.down", 96)]
    _check(tmp_path, [("Network_0", [_layer(1, ("MLP_1", products)), _layer(2)])])


def test_attention_without_a_softmax_has_its_sums_between_queries_and_output(tmp_path: Path) -> None:
    """Linear attention, as lucidrains/performer-pytorch: (k^T v), then q with it."""
    sums = [_row("attention.other", "aten::bmm", [32, 64, 128], [32, 128, 64])] * 2
    attention: Part = (
        "Attention_0",
        [
            *(_product("attention.qkv", f"Linear_{at}") for at in range(3)),
            *sums,
            _product("attention.output"),
        ],
    )
    _check(tmp_path, [("Network_0", [("Layer_0", [attention]), _layer(1), _layer(2)])])


def test_a_block_that_convolves_and_does_not_attend_is_no_layer_of_a_transformer(tmp_path: Path) -> None:
    """ResBlock of CompVis/latent-diffusion: emb_layers takes what is said of time."""
    convolves: Part = ("Conv2d_1", [_row("other", "aten::conv2d")])
    copies = [
        replace(_row(right, "aten::copy_"), kernel=f"Memcpy {way}")
        for right, way in (("other", "DtoD (Device -> Device)"), ("memory", "HtoD (Pinned -> Device)"))
    ]
    block: Part = ("ResBlock_0", [convolves, ("Sequential_0", [_product("other", "Linear_60")]), *copies])
    _check(tmp_path, [("Network_0", [_layer(1), block, _layer(2)])])


def test_who_chose_an_expert_is_asked_to_send_tokens(tmp_path: Path) -> None:
    """AviSoori1x/seemore, SparseMoE: (indices == i).any(-1) for each expert."""
    router: Part = ("Router_0", [_product("moe.router", "Linear_60"), _row("moe.router", "aten::topk")])
    asks = [_row("moe.dispatch", f"aten::{name}", number=-1) for name in ("eq", "any")]
    _check(tmp_path, [("Network_0", [_layer(1, ("SparseMoE_0", [router, *asks])), _layer(2)])])


def test_what_shifts_and_masks_a_stream_in_a_layer_is_no_part_of_it(tmp_path: Path) -> None:
    layers: list[Part] = [_layer(at, _row("other", "aten::mul")) for at in (1, 2)]
    _check(tmp_path, [("Network_0", layers)])


def test_layers_of_another_kind_are_no_stem_and_a_stem_that_runs_again_no_head(tmp_path: Path) -> None:
    graph: list[Part] = [(f"Linear_{at}", [_row("unattributed", "aten::addmm")]) for at in range(60, 64)]
    stem = _product("embedding", "Patches_0")
    again = _product("unattributed", "Patches_0")
    _check(tmp_path, [("Network_0", [*graph, stem, _layer(1), _layer(2), again])])


def test_a_network_that_another_follows_has_no_head(tmp_path: Path) -> None:
    one: Part = ("Network_0", [_layer(1), _layer(2), _product("unattributed", "Linear_70")])
    other: Part = ("Other_0", [_row("embedding", "aten::mul"), _layer(3), _layer(4)])
    _check(tmp_path, [one, other])


@pytest.mark.parametrize(("products", "right"), [(0, "unattributed"), (1, "embedding"), (2, "unattributed")])
def test_behind_other_layers_only_products_of_data_embed(tmp_path: Path, products: int, right: str) -> None:
    one: Part = ("Network_0", [_layer(1), _layer(2)])
    other: Part = ("Other_0", [_product(right, "Linear_71"), _layer(3), _layer(4)])
    _check(tmp_path, [one, other, *products * [_row(right, "aten::mm", number=-7)]])


def test_three_layers_in_a_row_behind_all_layers_are_the_head_whatever_their_class(tmp_path: Path) -> None:
    """saahiluppal/catr: the head is a module of the class MLP."""
    rows = [_product("logits", f"Linear_{at}") for at in range(80, 83)]
    _check(tmp_path, [("Network_0", [_layer(1), _layer(2)]), ("MLP_0", rows)])


@pytest.mark.parametrize(("trained", "right"), [(6, "embedding"), (0, "unattributed")])
def test_a_product_of_frozen_weights_takes_no_data(tmp_path: Path, trained: int, right: str) -> None:
    """Only weights that are trained are turned back in the backward."""
    one: Part = ("Network_0", [_layer(1), _layer(2)])
    other: Part = ("Other_0", [_product(right, "Linear_71"), _layer(3), _layer(4)])
    tie = {"Sequence number": 50, "Fwd thread id": 0}
    turns = op("aten::t", ts=11 + 100 * trained, dur=1, **tie)
    back = op("TBackward0", ts=5000, dur=5, **tie | {"Fwd thread id": 1})
    _check(tmp_path, [one, other, _row(right, "aten::mm", number=-7)], turns, back)


@pytest.mark.parametrize(("products", "right"), [(1, "unattributed"), (2, "logits")])
def test_products_of_data_behind_the_layers_are_no_head(tmp_path: Path, products: int, right: str) -> None:
    network: Part = ("Network_0", [_layer(1), _layer(2), _product(right, "Linear_70")])
    _check(tmp_path, [network, *products * [_row(right, "aten::mm", number=-7)]])


def test_stages_behind_the_layers_and_what_pictures_hand_on_are_no_heads(tmp_path: Path) -> None:
    stages: list[Part] = [(f"Stage_{at}", [_product("unattributed", f"Linear_{70 + at}")]) for at in (1, 2)]
    neck: Part = ("PictureNeck_0", [_product("unattributed", "Linear_80")])
    heads = [_product("logits", f"Linear_{90 + at}") for at in (1, 2)]
    _check(tmp_path, [("Network_0", [_layer(1), _layer(2), *stages, neck, *heads])])


def test_a_sum_in_front_of_layers_is_on_no_stream(tmp_path: Path) -> None:
    add = _row("embedding", "aten::add", STREAM, STREAM)
    _check(tmp_path, [("Network_0", [add, _layer(1), _layer(2)])])


def test_a_model_behind_which_nothing_runs_makes_its_loss_itself(tmp_path: Path) -> None:
    outside = _row("unattributed", "aten::sub", number=-1)
    network: Part = ("Network_0", [_layer(1), _layer(2), _row("loss", "aten::div")])
    _check(tmp_path, [network, outside])


def test_what_stands_between_layers_too_is_of_them(tmp_path: Path) -> None:
    network: list[Part] = []
    for at in (1, 2):
        network += [_layer(at), (f"Sequential_{at}", [_product("unattributed", f"Linear_{30 + at}")])]
    _check(tmp_path, [("Network_0", network)])


def test_a_row_of_attention_without_layers_around_is_one_of_layers(tmp_path: Path) -> None:
    """vit.py of lucidrains/vit-pytorch: attention and MLPs stand side by side in the transformer, and what
    that runs by itself can be of a layer."""
    layers = map(_layer, range(3))
    attention = [part for layer in layers if isinstance(layer, tuple) for part in layer[1]]
    own = _row("unattributed", "aten::mul")
    pool = _row("other", "aten::mean")
    places: Part = ("Places_0", [_row("embedding", "aten::sum")])
    last: Part = ("Last_0", [_row("norm", "aten::native_layer_norm"), _row("unattributed", "aten::cat")])
    inside: Part = ("Transformer_0", [places, own, *attention, own, last])
    head = _product("logits", "Linear_90")
    cut = _row("unattributed", "aten::sub", number=-1)
    _check(tmp_path, [("ViT_0", [_row("embedding", "aten::cat"), inside, pool, head]), cut])


def test_what_a_network_runs_between_its_layers_and_its_head_is_no_layers(tmp_path: Path) -> None:
    """Of one whose result another takes as well: facebookresearch/moco-v3, x[:, 0] ahead of its head."""
    one: Part = (
        "One_0",
        [_layer(1), _layer(2), _row("other", "aten::mean"), _product("unattributed", "Linear_70")],
    )
    rows = [_layer(3), _layer(4), _row("other", "aten::mean"), _product("logits", "Linear_80")]
    _check(tmp_path, [one, ("Two_0", rows)])


def test_what_a_model_compares_behind_its_layers_can_be_of_its_loss(tmp_path: Path) -> None:
    compared = [_row("unattributed", "aten::div"), _row("unattributed", "aten::mm")]
    _check(tmp_path, [("Network_0", [_layer(1), _layer(2), *compared])])


def test_the_last_layer_of_a_diffusion_transformer_is_its_head(tmp_path: Path) -> None:
    """FinalLayer of facebookresearch/DiT: it shifts and scales ahead of its product."""
    last: Part = ("FinalLayer_0", [_row("other", "aten::mul"), _product("logits", "Linear_70")])
    _check(tmp_path, [("Network_0", [_layer(1), _layer(2), last])])


@pytest.mark.parametrize(("dims", "right"), [([1, 6, 256], "other"), (STREAM, "residual")])
def test_a_sum_of_unequal_tensors_in_a_layer_is_on_no_stream(
    tmp_path: Path, dims: list[int], right: str
) -> None:
    """scale_shift_table of PixArt: a table onto what is said of time."""
    layers: list[Part] = [_layer(at, _row(right, "aten::add", dims, STREAM)) for at in (1, 2)]
    _check(tmp_path, [("Network_0", layers)])


def test_a_row_of_modules_beside_one_that_convolves_convolves_not(tmp_path: Path) -> None:
    """lucidrains/enformer-pytorch: convolutions and MLPs are rows of modules, of one class."""
    acts: Part = ("ReLU_5", [_row("unattributed", "aten::relu")])
    mlp: Part = ("Sequential_5", [_product("unattributed", "Linear_50"), acts])
    convolves: Part = ("Sequential_4", [("Conv1d_4", [_row("other", "aten::conv1d")])])
    _check(tmp_path, [("Network_0", [_layer(1, convolves, mlp), _layer(2)])])


def test_what_a_loss_averages_is_no_weight_of_a_teacher(tmp_path: Path) -> None:
    """dino/main_dino.py: the center of the teacher's logits ahead of the average of its weights."""
    center: list[Part] = [
        _row("loss", f"aten::{name}", [1, 512], number=-1) for name in ("mul", "mul", "add")
    ]
    sizes: list[list[int]] = [[64, 64], [64], [256, 64], [256]] * 4
    weights = [
        _row("optimizer", f"aten::{name}", size, number=-1)
        for size in sizes
        for name in ("mul_", "mul", "add_")
    ]
    _check(tmp_path, [("Network_0", [_layer(1), _layer(2)]), ("Loss_0", center), *weights])
