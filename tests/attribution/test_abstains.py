"""What no evidence decides stays open: forms that look like a layer's part, and are another's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.attribution.rows import Row, assert_right, attributed, mm, verdict, written
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
TIME = _work("embedding other", "arange", "mul", "exp", "mul", "cos", "sin", "cat")
TURNED_BY = _work("mlp.other", "cos", "sin", "mul", "mul", "neg", "cat", "mul", "mul", "add")
RECURS = [*NORMS, OPEN, *_work("", "cumprod"), OPEN, *ADDED]
TURNED_HEADS = _work("attention.rope", "neg", "cat", "mul", "add")
UNIT = _work("", "linalg_vector_norm", "clamp_min", "expand", "div")
BIAS = _work("attention.other", "eq", "mul", "bitwise_not", "mul", "add", "add")
ROWS = [
    Row("moe.experts", "aten::_grouped_mm", "cutlass_grouped"),
    *_work("moe.dispatch", "index_copy", "mul", "sum"),
]
PATCHES = [Row("embedding", "aten::conv2d", "conv_kernel"), *_work("embedding", "copy_")]
PLAIN_NORM = Row("norm", "aten::layer_norm", "vectorized_layer_norm_kernel")
SCORED = [_linear("moe.router"), *_work("moe.router", "sigmoid", "topk"), *_work("moe.dispatch", "index")]
MAP_MLP = Row("mlp.up mlp.down other", "aten::conv2d", "conv_kernel")
SENDS = _product("moe.dispatch")
EXPERT = [_linear("moe.experts"), *_work("moe.experts moe.dispatch", "gelu"), _linear("moe.experts")]
LINEAR_MAP = Row("attention.qkv attention.output", "aten::conv2d", "conv_kernel")
MAP_TAPS = Row("other", "aten::conv2d", "conv_kernel")
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
    "what a head would take is brought to one length and compared (MoCo v3)": [
        *[*WORDS, *4 * LAYER, OPEN, *_work("", "relu")],
        *[OPEN, *_work("", "linalg_vector_norm", "clamp_min", "div"), _linear("logits"), *LOSS],
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
        *[*TIME, _linear("embedding"), *_work("embedding", "silu"), _linear("embedding")],
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
    "results of several heads side by side, ahead of their loss (musicgen)": [
        *WORDS, *3 * LAYER, *NORMS, *2 * HEAD[len(NORMS) : -1], *_work("logits", "cat"), *LOSS,
    ],
    "what a product behind the loss gives (CoCa)": [
        *WORDS, *3 * LAYER, *HEAD, OPEN, *UNIT, _product("logits"), *_work("logits", "mul"), *LOSS,
    ],
    "a norm scaled and shifted by a product of a condition": [
        *WORDS,
        *3 * [*ATTENDS, *NORMS, OPEN, *_work("norm", "split", "add", "mul", "add"), *PLAIN[len(NORMS) :]],
        *HEAD,
    ],
    "what tells series apart, scaled for the scores, ahead of a rotation (Moirai)": [
        *WORDS,
        *3 * [*FUSED[:-1], *BIAS, *TURNED_HEADS, CORE, _linear("attention.output"), *ADDED, *PLAIN],
        *HEAD,
    ],
    "blocks of convolutions ahead of a core whose queries are not known (UNet)": [
        *WORDS, *3 * [*ATTENDS, *PLAIN],
        *FUSED[:-1], MAP_TAPS, *_work("other", "silu"), MAP_TAPS, CORE, *HEAD,
    ],
    "heads that turn behind experts of values (SwitchHead)": [
        *WORDS,
        *3 * [*NORMS, OPEN, OPEN, *2 * SCORED, *ROWS, *TURNED_HEADS, CORE, *ROWS, *ADDED, *PLAIN],
        *HEAD,
    ],
    "an MLP whose sum a loss of numbers takes": [
        *WORDS, *3 * LAYER, *NORMS, *2 * [OPEN, *_work("", "gelu")], OPEN, *_work("", "add"),
        Row("loss", "aten::mse_loss", "mse_kernel"),
    ],
    "a head of two layers and its bias (SpeedrunningPLMs)": [
        *WORDS, *3 * [*ATTENDS, *PLAIN],
        *NORMS, _linear("logits other"), *_work("other", "gelu"), _linear("logits"),
        *_work("logits", "add"), *LOSS,
    ],
    "a batched product between an output and the next (copying)": [
        *WORDS, *4 * [*FUSED, _linear("attention.output"), *ADDED, *PLAIN],
        *FUSED, _linear("attention.output"), _product(""),
        _linear("logits"), *_work("logits loss", "sigmoid"), *LOSS,
    ],
    "the half that is bent is cut ahead of it (Flux 2)": [
        *WORDS,
        *4 * [*FUSED, *_work("mlp.activation", "slice"), *BENDS, *_work("attention.other", "cat"),
              _linear("attention.output"), *ADDED],
        *HEAD,
    ],
    "heads that turn, worked out between patches of two sizes (Helios)": [
        *2 * [*PATCHES, *_work("attention.rope", "arange", "einsum", "cos", "sin", "cat")], *PATCHES,
        *3 * [*ATTENDS, *PLAIN], *HEAD,
    ],
    "channels that attend through convolutions of a map (denoising diffusion)": [
        *WORDS, *3 * [*ATTENDS, *PLAIN],
        LINEAR_MAP, *_work("attention.softmax", "_softmax", "_softmax"), *2 * [_product("attention.values")],
        LINEAR_MAP, *_work("other residual", "add"), *HEAD,
    ],
    "a convolution of tokens ahead of the layers (UniFormer)": [
        *PATCHES, *_work("embedding", "cat"), PLAIN_NORM,
        *_work("", "copy_"), *2 * [MAP_TAPS], *_work("", "add"), *3 * [*ATTENDS, *PLAIN], *HEAD,
    ],
    "products that send tokens to experts and back (ST-MoE)": [
        *WORDS,
        *3 * [*ATTENDS, *NORMS, *CHOSEN, SENDS, *2 * EXPERT, SENDS, *ADDED],
        *HEAD,
    ],
    "an MLP on a map (CvT)": [
        *PATCHES, *3 * [*ATTENDS, *NORMS, MAP_MLP, *_work("mlp.activation", "gelu"), MAP_MLP, *ADDED], *HEAD,
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
ONE_HEAD = [
    NORM,
    *3 * [mm("attention.qkv", TOKENS, 64, WIDTH)],
    _batched("attention.scores", BATCH, LENGTH, LENGTH, 64),
    _row("attention.softmax", "_softmax", [BATCH, LENGTH, LENGTH]),
    _batched("attention.values", BATCH, LENGTH, 64, LENGTH),
    mm("attention.output", TOKENS, WIDTH, 64),
    ADD,
]
POWER = _row("attention.rope attention.other", "pow", [LENGTH, 32])
WIDER, FEW = [BATCH, LENGTH, 2 * WIDTH], [BATCH, 1, WIDTH]
GLOBAL = [  # one token attends to all of another stream, whose block is its own
    mm("", TOKENS, 2 * WIDTH, 2 * WIDTH), _row("", "gelu", WIDER), _row("", "add", WIDER, WIDER),
    _row("norm", "native_layer_norm", WIDER), mm("attention.qkv", BATCH, 256, WIDTH),
    *2 * [mm("attention.qkv", TOKENS, 256, 2 * WIDTH)],
    replace(SHAPED_CORE, dims=([BATCH, 1, HEADS, 64], *2 * ([BATCH, LENGTH, HEADS, 64],))),
    mm("attention.output", BATCH, WIDTH, 256), _row("residual", "add", FEW, FEW),
    _row("norm", "native_layer_norm", FEW),
]  # fmt: skip
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
    "a temperature beside numbers of the samples (MoCo)": [
        *LAYERS, mm("logits", BATCH, BATCH, WIDTH), _row("loss", "linalg_vector_norm", [BATCH, WIDTH]),
        _row("loss", "arange"), _row("loss", "add", [BATCH]),
        _row("loss", "cross_entropy_loss", [BATCH, BATCH], [BATCH]),
    ],
    "a router in an attention, whose choice takes values (SwitchHead)": [
        *3 * [
            NORM, OWN, OWN, mm("", TOKENS, 16, WIDTH),
            _row("attention.other", "topk", [BATCH, LENGTH, HEADS, 4]),
            OWN, SHAPED_CORE, OUTPUT, ADD, *MLP, ADD,
        ],
    ],
    "tokens are chosen ahead of an attention of one head (seemore)": [
        *3 * [*ONE_HEAD, NORM, _row("", "eq", [BATCH, LENGTH, 2]), _row("", "any", [BATCH, LENGTH, 2])],
        *ONE_HEAD,
    ],
    "a block of a wider stream ahead of what attends to it (ProteinBERT)": 3 * GLOBAL,
    "a scale of places by a power (RetNet)": [
        *2 * [NORM, *3 * [OWN], *TURNS, POWER, SHAPED_CORE, OUTPUT, ADD, *MLP, ADD],
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


def test_what_two_heads_are_compared_by_is_of_the_loss(tmp_path: Path) -> None:
    """The codes that a quantizer chooses between, ahead of their projection (wav2vec 2.0)."""
    codes = [TOKENS, 91]
    chooses = [_row("loss", name, codes) for name in ("log", "softmax", "max", "sub")]
    heads = [CLASSES, *chooses, CLASSES]
    loss = _row("loss", "cross_entropy_loss", [TOKENS, 91], [TOKENS])
    assert_right(tmp_path, [ENTRY, *LAYERS, NORM, *heads, loss])


def test_patches_put_together_are_of_the_head(tmp_path: Path) -> None:
    head = [mm("logits", TOKENS, 48, WIDTH), _row("logits", "col2im", [BATCH, 48, LENGTH])]
    picture = [BATCH, 3, 32, 64]
    assert_right(tmp_path, [*LAYERS, NORM, *head, _row("loss", "mse_loss", picture, picture)])


def test_a_module_of_convolutions_whose_batches_are_counted_is_no_mlp(tmp_path: Path) -> None:
    """torchaudio models/conformer.py without shapes: a sum that counts batches is right behind it."""
    taps = Row("other", "aten::conv1d", "conv_kernel")
    module = [taps, *_work("other", "glu"), taps, *_work("norm", "add_", "batch_norm")]
    module += [*_work("other", "silu"), taps, *_work("residual unattributed", "add")]
    assert_right(tmp_path, [*WORDS, *3 * [*ATTENDS, *NORMS, *module, *PLAIN], *HEAD], shapes=False)


def test_a_softmax_written_out_between_products_says_that_they_are_scores(tmp_path: Path) -> None:
    """reformer_pytorch without shapes: scores of a bucket, twice, and those of near tokens."""
    bucket = [_product("attention.scores"), *_work("attention.scores attention.softmax", "sub", "exp", "sum")]
    near = [
        _product("attention.scores"),
        *_work("attention.softmax", "_softmax"),
        _product("attention.values"),
    ]
    attends = [
        *NORMS,
        *2 * [_linear("attention.qkv")],
        *4 * bucket,
        *near,
        _linear("attention.output"),
        *ADDED,
    ]
    assert_right(tmp_path, [*WORDS, *3 * [*attends, *PLAIN], *HEAD], shapes=False)
