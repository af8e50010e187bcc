"""What no evidence decides stays open: forms that look like a layer's part, and are another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, verdict, written
from tests.attribution.test_beside_maps import MAP, _convolution, _one
from tests.attribution.test_parts import (
    ADD,
    ATTENTION,
    BATCH,
    HEADS,
    LENGTH,
    MLP,
    NORM,
    OUTPUT,
    OWN,
    QUERIES,
    STREAM,
    TOKENS,
    WIDTH,
    _batched,
    _row,
)
from tests.attribution.test_parts import CORE as SHAPED_CORE
from tests.attribution.test_unshaped_layers import (
    ADDED,
    BENDS,
    CORE,
    HEAD,
    LAYER,
    LOSS,
    TURNED,
    WORDS,
    _linear,
    _work,
)
from tests.attribution.test_unshaped_layers import ATTENTION as ATTENDS
from tests.attribution.test_unshaped_layers import NORM as NORMS

PLAIN = [*NORMS, _linear("mlp.up"), *_work("mlp.activation", "gelu"), _linear("mlp.down"), *ADDED]
FUSED = [*NORMS, _linear("attention.qkv"), CORE]
OPEN = _linear("")


def _product(right: str) -> Row:
    return Row(right, "aten::bmm", "sgemm_batched")


CHOSEN = [_linear("moe.router"), *_work("moe.router", "topk", "softmax"), *_work("moe.dispatch", "index")]
BATCHED = [_product("moe.experts"), *_work("moe.experts", "silu"), _product("moe.experts")]
GATHERED = _work("moe.experts moe.dispatch", "add", "clamp", "mul", "sigmoid", "mul", "index")
SUMMED = [*_work("moe.experts moe.dispatch residual", "add"), _product("moe.experts moe.dispatch")]
SLOTS = [_product("moe.router"), *_work("moe.router", "_softmax", "_softmax"), _product("moe.dispatch")]
SENT = [
    _product("moe.router"),
    *_work("moe.router", "_softmax", "topk"),
    _product("moe.dispatch moe.experts"),
]
BACK = [*_work("mlp.activation", "silu", "mul"), _linear("mlp.down")]
SCALED = _work("norm other", "linalg_vector_norm", "mean", "add", "div", "mul", "mul", "add")
TAPS = Row("mlp.up mlp.down other", "aten::conv1d", "conv_kernel")
TIME = _work("embedding other", "mul", "exp", "mul", "cos", "sin", "cat")
TURNED_BY = _work("mlp.up", "cos", "sin", "mul", "neg", "cat", "mul", "add")
RECURS = [*NORMS, OPEN, *_work("", "cumprod"), OPEN, *ADDED]
#: Without shapes.
BARE = {
    "experts in a batch (gpt-oss torch/model.py)": [
        *WORDS,
        *3 * [*ATTENDS, *NORMS, *CHOSEN, BATCHED[0], *GATHERED, BATCHED[0], *SUMMED, *ADDED],
        *HEAD,
    ],
    "a stream put beside that of an earlier layer (U-ViT)": [
        *WORDS,
        *4 * [*ATTENDS, *PLAIN, *_work("other", "cat"), OPEN],
        *HEAD,
    ],
    "a weighted sum of all layers' results as a product (DenseFormer)": [
        *WORDS,
        *4 * [*FUSED, _linear("attention.output"), *ADDED, *PLAIN, *_work("", "copy_"), OPEN],
        *HEAD,
    ],
    "an MLP beside the attention that comes back by its own product (PaLM)": [
        *WORDS,
        *4 * [*FUSED, _linear("attention.output"), *BACK, *ADDED, *ADDED],
        *HEAD,
    ],
    "the last attention has no MLP, and the head is right behind it (Perceiver IO)": [
        *WORDS,
        *4 * [*ATTENDS, *PLAIN],
        *ATTENDS[:-1],
        _linear("logits"),
        *LOSS,
    ],
    "slots that tokens are mixed into (arXiv 2308.00951)": [
        *WORDS,
        *3 * [*ATTENDS, *NORMS, _linear(""), *_work("", "relu"), *SLOTS, *BATCHED[:1], *ADDED],
        *HEAD,
    ],
    "a choice behind the softmax (GShard)": [*WORDS, *3 * [*ATTENDS, *NORMS, *SENT, *BATCHED], *HEAD],
    "a statistic of rows inside an MLP (ConvNeXt V2)": [
        *WORDS,
        *3 * [*ATTENDS, *PLAIN[: len(NORMS) + 2], *SCALED, *PLAIN[-2:]],
        *HEAD,
    ],
    "an MLP of convolutions (Informer)": [
        *WORDS,
        *3 * [*ATTENDS, *NORMS, TAPS, *_work("mlp.activation", "gelu"), TAPS, *ADDED],
        *HEAD,
    ],
    "a time that products take beside positions that turn": [
        *TIME,
        OPEN,
        *_work("", "silu"),
        OPEN,
        *WORDS,
        *3 * TURNED,
        *HEAD,
    ],
    "an MLP put beside what the core gives (Flux)": [
        *WORDS,
        *4 * [*FUSED, *BENDS, *_work("attention.other", "cat"), _linear("attention.output"), *ADDED],
        *HEAD,
    ],
    "an adapter that turns pairs of numbers (RoAd)": [
        *WORDS,
        *3 * [*ATTENDS, *NORMS, PLAIN[len(NORMS)], *TURNED_BY, *PLAIN[len(NORMS) + 1 :]],
        *HEAD,
    ],
    "another pass behind a loss": [
        *WORDS, *3 * LAYER, *HEAD, *WORDS, *_work("embedding", "mul"), *ATTENDS, *PLAIN, *HEAD,
    ],
    "a head behind no attention that is known (RetNet)": [
        *WORDS,
        *3 * RECURS,
        *HEAD,
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", BARE)
def test_nothing_is_wrong_without_shapes(tmp_path: Path, name: str) -> None:
    trace, _, found = attributed(tmp_path, written(BARE[name], shapes=False))
    assert verdict(BARE[name], trace, found)[1] == {}


def test_linear_layers_of_three_dimensions_are_no_scores(tmp_path: Path) -> None:
    """torch.einsum of a weight and tokens by samples is a batched product, without shapes as any."""
    core = [
        _product("attention.scores"),
        *_work("attention.softmax", "_softmax"),
        _product("attention.values"),
    ]
    own = [_product("attention.qkv")] * 3
    mlp = [_product("mlp.up"), *_work("mlp.activation", "sigmoid", "mul"), _product("mlp.down")]
    rows = [*WORDS, *3 * [*NORMS, *own, *core, _product("attention.output"), *ADDED, *NORMS, *mlp, *ADDED]]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    assert verdict(rows, trace, found)[1] == {}


LAYERS = 2 * [*ATTENTION, ADD, *MLP, ADD]
ENTRY = _row("embedding", "embedding", [5000, WIDTH], [BATCH, LENGTH])
RAW = [QUERIES, SHAPED_CORE, OUTPUT, ADD, *MLP[1:], ADD]
WIDE = mm("", TOKENS, WIDTH, WIDTH)
CLASSES = mm("logits", TOKENS, 91, WIDTH)
SIZE = _row("", "sigmoid", [BATCH, LENGTH, 4])
ANGLES = [_row("", name, [20]) for name in ("mul", "sin", "cos")]
TURNS = [_row("attention.rope", name, [BATCH, LENGTH, HEADS, 64]) for name in ("neg", "cat", "mul", "add")]
PICTURE = [BATCH, WIDTH, 32, 32]
CHANNELS = [
    _convolution(PICTURE, [WIDTH, WIDTH, 1, 1], "attention.qkv other"),
    _batched("attention.scores", BATCH, WIDTH, WIDTH, 1024),
    _row("attention.softmax", "_softmax", [BATCH, WIDTH, WIDTH]),
    _batched("attention.values", BATCH, WIDTH, 1024, WIDTH),
    _convolution(PICTURE, [WIDTH, WIDTH, 1, 1], "attention.output other"),
]
SHAPED = {
    "a sum between two products of no name (Griffin)": [
        *LAYERS, NORM, WIDE, _row("", "cumprod", STREAM), _row("", "add", STREAM, STREAM), WIDE, ADD, *LAYERS,
    ],
    "another head's boxes ahead of a loss (Deformable DETR)": [
        *LAYERS, NORM, CLASSES, SIZE, _row("", "log", [BATCH, LENGTH, 4]), CLASSES,
        _row("loss", "cross_entropy_loss", [TOKENS, 91], [TOKENS]),
    ],
    "a head ahead of the words that a decoder begins with": [
        *2 * RAW, mm("logits", TOKENS, 5000, WIDTH), ENTRY, *2 * RAW,
    ],
    "channels that attend to one another (Restormer)": CHANNELS,
    "a sum with the stream as a map behind the attention (Stable Cascade)": [
        _one("other"), *ATTENTION, _row("residual", "add", MAP, MAP), NORM, _one("other"), *LAYERS,
    ],
    "sines of angles in a row": [
        *ANGLES, *2 * [NORM, *3 * [OWN], *TURNS, SHAPED_CORE, OUTPUT, ADD, *MLP, ADD],
    ],
    "a norm of the last result that is written in a way of its own": [
        *LAYERS, _row("", "sub", STREAM, STREAM), _row("", "div", STREAM, STREAM), CLASSES,
        _row("loss", "cross_entropy_loss", [TOKENS, 91], [TOKENS]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPED)
def test_nothing_is_wrong_with_shapes(tmp_path: Path, name: str) -> None:
    trace, _, found = attributed(tmp_path, written(SHAPED[name]))
    assert verdict(SHAPED[name], trace, found)[1] == {}
