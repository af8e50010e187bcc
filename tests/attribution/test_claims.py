"""What looks like another part than it is: a right name, or none, and never a wrong one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.attribution.rows import Row, assert_right, attributed, mm, open_rows, verdict, written
from tests.trace.tools import op
from tracelens.words import COMPONENTS, EVIDENCE

ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4>"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<32>>"
WIDTH, TOKENS = 96, 4 * 3136
STREAM = [4, 56, 56, WIDTH]


def _row(right: str, name: str, *dims: list[int]) -> Row:
    return Row(right, f"aten::{name}", ELEMENTWISE, dims, us=10)


def _attention(*behind: Row, before: tuple[Row, ...] = ()) -> list[Row]:
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH, ([256, 49, 3, 32],) * 3)
    return [
        *[_row("norm", "native_layer_norm", STREAM), *before],
        *[mm("attention.qkv", TOKENS, 3 * WIDTH, WIDTH), core, mm("attention.output", TOKENS, WIDTH, WIDTH)],
        *[*behind, _row("residual", "add", STREAM, STREAM)],
    ]


MLP = [
    _row("norm", "native_layer_norm", STREAM),
    mm("mlp.up", TOKENS, 4 * WIDTH, WIDTH),
    _row("mlp.activation", "gelu", [4, 56, 56, 4 * WIDTH]),
    mm("mlp.down", TOKENS, WIDTH, 4 * WIDTH),
    _row("residual", "add", STREAM, STREAM),
]
#: Modules in torchvision's models/maxvit.py, around the rows of a layer: first, last.
LAYER = (
    ("PartitionAttentionLayer", 0, 8),
    ("Sequential", 0, 3),
    ("LayerNorm", 0, 0),
    ("RelativePositionalMultiHeadAttention", 1, 3),
    ("Linear", 1, 1),
    ("Linear", 3, 3),
    ("Sequential", 5, 8),
    ("LayerNorm", 5, 5),
    ("Linear", 6, 6),
    ("GELU", 7, 7),
    ("Linear", 8, 8),
)


def _modules(layers: int) -> Iterator[dict[str, Any]]:
    """Frames around the rows of so many layers of ten rows each; the layer's own addition ends it."""
    for layer in range(layers):
        for number, (name, first, last) in enumerate(LAYER):
            start = 1000 * layer + 100 * first + number / 2
            stop = 1000 * layer + 100 * (last + (number == 0)) + 40 - number / 2
            text = f"nn.Module: {name}_{layer * len(LAYER) + number}"
            yield op(text, ts=start + 1, dur=stop - start) | {"cat": "python_function"}


@pytest.mark.parametrize("shapes", [True, False])
def test_a_layer_called_after_its_attention_has_an_mlp_too(tmp_path: Path, shapes: bool) -> None:
    rows = 3 * [*_attention(), *MLP]
    trace, _, found = attributed(tmp_path, [*written(rows, shapes=shapes), *_modules(3)])
    assert verdict(rows, trace, found) == (1.0, {}), open_rows(rows, trace, found)
    core = found.component == COMPONENTS.index("attention.core")
    qkv = found.component == COMPONENTS.index("attention.qkv")
    assert {EVIDENCE[code] for code in found.evidence[core | qkv]} <= {"op", "module_stack"}


def test_windows_put_side_by_side_are_no_sum(tmp_path: Path) -> None:
    """torchvision models/swin_transformer.py, shifted_window_attention: reverse windows, unpad features."""
    windows, maps = [4, 8, 7, 8, 7, WIDTH], STREAM
    back = (
        _row("attention.other", "copy_", windows, windows),
        _row("attention.other", "copy_", maps, maps),
    )
    rows = 3 * [*_attention(*back), *MLP]
    assert_right(tmp_path, rows)


def test_what_says_where_to_read_is_no_sum(tmp_path: Path) -> None:
    """torch/_refs: ``roll`` on a device without a kernel for it, of places that are counted and read."""
    places = [
        _row("attention.other", "arange"),
        _row("attention.other", "add"),
        _row("attention.other", "fmod"),
        _row("attention.other", "index_select"),
    ]
    rows = 3 * [*_attention(*places), *MLP]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    assert verdict(rows, trace, found)[1] == {}
    adds = [row for row in range(len(rows)) if rows[row].right == "residual"]
    components = found.component[trace.kernels.ts_ns.argsort(kind="stable")]
    assert {COMPONENTS[code] for code in components[adds]} == {"residual"}


def test_what_a_normalization_hands_on_is_no_embedding(tmp_path: Path) -> None:
    """Behind the first normalization a view only cuts the stream into windows; its gradient is copied."""
    table, ids = [32000, WIDTH], [4, 56, 56]
    opens = [
        replace(_row("embedding", "embedding"), dims=(table, ids)),
        *_attention(),
        *MLP,
        *_attention(),
        *MLP,
    ]
    windows = [4, 8, 7, 8, 7, WIDTH]
    backward = [replace(_row("attention.other norm", "copy_", windows, windows), number=-7)]
    forward = [replace(row, number=100 + at) for at, row in enumerate(opens)]
    view = op("aten::view", ts=10 + 100 + 50, dur=5, **{"Sequence number": 7, "Input Dims": [STREAM, []]})
    rows = [*forward, *backward]
    trace, _, found = attributed(tmp_path, [*written(rows), view])
    assert verdict(rows, trace, found)[1] == {}


def _convolves(right: str) -> Row:
    return Row(right, "aten::conv1d", "void cudnn::cnn::conv2d_grouped_direct_kernel<true>")


def test_a_convolution_beside_a_core_can_be_its_linear_layer(tmp_path: Path) -> None:
    """transformers models/squeezebert/modeling_squeezebert.py: its linear layers are convolutions; two ahead
    of a core stay open."""
    core = [
        Row("attention.scores", "aten::bmm", "bmm"),
        _row("attention.softmax", "_softmax"),
        Row("attention.values", "aten::bmm", "bmm"),
    ]
    post = [_row("residual", "add"), _row("norm", "native_layer_norm")]
    layer = [
        *[*[_convolves("attention.qkv")] * 3, *core, _convolves("attention.output"), *post],
        *[_convolves("mlp.up"), _row("mlp.activation", "gelu"), _convolves("mlp.down"), *post],
    ]
    stem = [_convolves("other embedding"), _row("norm", "native_layer_norm"), mm("embedding", 64, 64, 64)]
    rows = [*stem, *(3 * layer), mm("logits", 64, 64, 64), _convolves("other")]
    assert_right(tmp_path, rows, 0.9, shapes=False)
    rows = [*stem, *(3 * layer[1:6]), mm("logits", 64, 64, 64), _convolves("other")]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    assert verdict(rows, trace, found)[1] == {}
    order = trace.kernels.ts_ns.argsort(kind="stable")
    convolved = [at for at, row in enumerate(rows) if row.op == "aten::conv1d"]
    open_ = COMPONENTS.index("unattributed")
    said = found.component[order][convolved]
    assert {COMPONENTS[one] for one in said[[0, -1]]} == {"other"}  # a product stands between
    assert (said[1:-1] == open_).all()
    for at in convolved[1:-1]:
        assert rows[at].right in found.components[found.candidates[order[at]]]


def test_a_mixer_of_tokens_makes_no_bias_of_scores(tmp_path: Path) -> None:
    """transformers models/groupvit/modeling_groupvit.py, GroupViTMixerMLP: it mixes 64 tokens;
    8 samples of 384 channels are as many rows as the queries of all heads."""
    width, groups, hidden = 384, 64, 192
    stream = [8, groups, width]
    norm = _row("norm", "native_layer_norm", stream)
    add = _row("residual", "add", stream, stream)
    core = [
        Row("attention.scores", "aten::bmm", "bmm", ([48, groups, 64], [48, 64, groups])),
        _row("attention.softmax", "_softmax", [48, groups, groups]),
        Row("attention.values", "aten::bmm", "bmm", ([48, groups, groups], [48, groups, 64])),
    ]
    layer = [
        *[norm, mm("attention.qkv", 512, 3 * width, width), *core],
        *[mm("attention.output", 512, width, width), add, norm, mm("mlp.up", 512, 4 * width, width)],
        *[_row("mlp.activation", "gelu", [8, groups, 4 * width]), mm("mlp.down", 512, width, 4 * width), add],
    ]
    mixer = [
        norm,
        _row("mlp.up memory", "copy_", [8, width, groups], [8, width, groups]),
        mm("mlp.up", 8 * width, hidden, groups),
        _row("mlp.activation", "gelu", [8, width, hidden]),
        mm("mlp.down", 8 * width, groups, hidden),
    ]
    rows = [*(2 * layer), *mixer, *(2 * layer)]
    assert_right(tmp_path, rows, 0.0)


def test_one_more_product_before_a_core_makes_no_queries(tmp_path: Path) -> None:
    """timm models/swin_transformer.py, PatchMerging: without shapes, two products stand before one core."""
    merges = [_row("norm", "native_layer_norm"), mm("embedding", 64, 64, 64)]
    stage = 2 * [*_attention(), *MLP]
    rows = [*stage, *merges, *stage, *merges, *stage, *stage]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {}
    assert right >= 0.9, open_rows(rows, trace, found)


def test_the_activation_of_a_bottleneck_is_of_no_mlp(tmp_path: Path) -> None:
    """transformers models/rt_detr/modeling_rt_detr_resnet.py: a row of convolutions, then a ReLU."""
    maps = [4, 64, 56, 56]
    block = [_row("other", "conv2d", maps, [64, 64, 3, 3]), _row("other", "relu", maps)]
    modules = (("BottleNeckLayer", 0, 1), ("Sequential", 0, 0), ("ConvLayer", 0, 0), ("Conv2d", 0, 0))
    frames = [
        op(f"nn.Module: {name}_0", ts=100 * first + number / 2 + 1, dur=100 * (last - first) + 40 - number)
        for number, (name, first, last) in enumerate((*modules, ("ReLU", 1, 1)))
    ]
    rows = [*block, *_attention(), *MLP]
    events = [*written(rows), *(frame | {"cat": "python_function"} for frame in frames)]
    trace, _, found = attributed(tmp_path, events)
    assert verdict(rows, trace, found)[1] == {}
    first = trace.kernels.ts_ns.argsort(kind="stable")[:2]
    assert [COMPONENTS[code] for code in found.component[first]] == ["other", "other"]


def _behind_attention(*modules: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Frames of modules, each with its first and last row behind those of attention."""
    start = 100 * len(_attention())
    return [
        op(f"nn.Module: {name}_{n}", ts=start + 100 * first + n, dur=100 * (last - first) + 60 - 2 * n)
        | {"cat": "python_function"}
        for n, (name, first, last) in enumerate(modules)
    ]


def test_a_bias_added_in_a_module_of_one_product_is_of_that(tmp_path: Path) -> None:
    """transformers models/groupvit/modeling_groupvit.py, GroupViTMLP: linear layers on a transposed input."""
    up, gelu, down = MLP[1:4]
    wide = [*STREAM[:2], 4 * WIDTH]
    block = [MLP[0], up, _row("mlp.up", "add", wide, [4 * WIDTH]), gelu, down, *MLP[4:]]
    rows = [*_attention(), *block]
    frames = _behind_attention(("Mlp", 1, 4), ("Linear", 1, 2), ("GELU", 3, 3), ("Linear", 4, 4))
    trace, _, found = attributed(tmp_path, [*written(rows, shapes=False), *frames])
    added = trace.kernels.ts_ns.argsort(kind="stable")[len(_attention()) + 2]
    assert COMPONENTS[found.component[added]] == "mlp.up"


def test_a_convolution_of_each_channel_is_no_layer_of_an_mlp_on_maps(tmp_path: Path) -> None:
    """timm models/fastvit.py, ConvMlp: of 7 x 7 places by channel, then two of one place."""
    maps, wide = [4, 64, 56, 56], [4, 256, 56, 56]
    mlp = [
        _row("mlp.other", "conv2d", maps, [64, 1, 7, 7]),
        _row("mlp.up", "conv2d", maps, [256, 64, 1, 1]),
        _row("mlp.activation", "gelu", wide),
        _row("mlp.down", "conv2d", wide, [64, 256, 1, 1]),
    ]
    rows = [*_attention(), *mlp]
    frames = _behind_attention(("Mlp", 0, 3), *(("Conv2d", n, n) for n in (0, 1, 3)), ("GELU", 2, 2))
    trace, _, found = attributed(tmp_path, [*written(rows), *frames])
    last = trace.kernels.ts_ns.argsort(kind="stable")[-4:]
    assert [COMPONENTS[code] for code in found.component[last]] == [row.right for row in mlp]


def test_an_mlp_in_a_module_called_attention_is_an_mlp(tmp_path: Path) -> None:
    """coca_pytorch.py, CrossAttention: a feed forward that takes what the queries are made of, beside it."""
    attention, mlp = _attention(), MLP[1:4]
    layer = [*attention[:-1], *mlp, attention[-1], attention[-1]]
    rows = 3 * layer
    frames = []
    for start in range(0, len(rows), len(layer)):
        products = [at for at, row in enumerate(layer) if row.op == "aten::mm"]
        modules = [("CrossAttention", 0, len(layer) - 2), *(("Linear", at, at) for at in products)]
        frames += [
            op(
                f"nn.Module: {name}_{start + n}",
                ts=100 * (start + first) + n,
                dur=100 * (last - first) + 60 - 2 * n,
            )
            | {"cat": "python_function"}
            for n, (name, first, last) in enumerate(modules)
        ]
    trace, _, found = attributed(tmp_path, [*written(rows), *frames])
    order = trace.kernels.ts_ns.argsort(kind="stable")
    parts = [COMPONENTS[found.component[at]] for at in order]
    assert {*parts[len(attention) - 1 :: len(layer)], *parts[len(attention) + 1 :: len(layer)]} == {
        "mlp.up",
        "mlp.down",
    }
