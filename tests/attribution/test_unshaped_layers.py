"""Recorded without shapes: what the units beside a layer's GEMMs are, by order, repetition and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, verdict, written

_AT = "void at::native::"
_GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
_COPY = "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(%s)#1}>"
_ONE_MORE = f"{_AT}vectorized_elementwise_kernel<4, at::native::CUDAFunctorOnSelf_add<float>>"
_SPREAD = f"{_AT}elementwise_kernel<128, 2, at::native::CUDAFunctor_add<float>>"
NARROW = f"{_AT}elementwise_kernel<128, 4, gpu_kernel_impl<{_COPY % 'c10::BFloat16'}"


def _linear(right: str, *, kernel: str = _GEMM) -> Row:
    return Row(right, "aten::linear", kernel)


def _work(right: str, *names: str) -> list[Row]:
    """Units of these operators; a sum with a number is "add 1", with what is spread over it "spread",
    a cast to fewer bits "narrow"."""
    own = {"add 1": ("add", _ONE_MORE), "spread": ("add", _SPREAD), "narrow": ("copy_", NARROW)}
    plain = ((name, f"{_AT}vectorized_elementwise_kernel<4, at::native::{name}_kernel>") for name in names)
    found = [own.get(op, (op, kernel)) for op, kernel in plain]
    return [Row(right, f"aten::{op}", kernel) for op, kernel in found]


def _rms(*behind: str, right: str = "norm") -> list[Row]:
    """A mean-square norm that is written out, and what its weight is."""
    return _work(right, "copy_", "pow", "mean", "add 1", "rsqrt", "mul", "narrow", *behind)


NORM = _rms("mul")
ADDED = _work("residual", "add")
CORE = Row("attention.core", "aten::scaled_dot_product_attention", "flash_fwd_kernel")
QUERIES = 3 * [_linear("attention.qkv")]
ATTENTION = [*NORM, *QUERIES, CORE, _linear("attention.output"), *ADDED]
(CLIPPED,) = _work("mlp.other", "clamp")
BENDS = _work("mlp.activation", "silu")
GATED = [_linear("mlp.gate"), *BENDS, _linear("mlp.up"), *_work("mlp.activation", "mul"), _linear("mlp.down")]
PLAIN = [*NORM, *GATED, *ADDED]
LAYER = [*ATTENTION, *PLAIN]
WORDS = [Row("embedding", "aten::embedding", "vectorized_gather_kernel")]
LOSS = [Row("loss", "aten::cross_entropy_loss", "nll_loss_forward")]
HEAD = [*NORM, _linear("logits", kernel="cutlass_80_gemm"), *LOSS]
WAVES = _work("attention.rope", "mul", "cat", "cos", "mul", "sin", "mul")
TURNS = _work("attention.rope", "mul", "neg", "cat", "mul", "add")
TURNED = [*NORM, *QUERIES, *TURNS, CORE, _linear("attention.output"), *ADDED, *NORM, *GATED, *ADDED]

_OWN = [  # each product runs a kernel of its own
    *[_linear("attention.output", kernel="even"), *ADDED, *NORM, _linear("mlp.up", kernel="wide")],
    *[*_work("mlp.activation", "gelu"), _linear("mlp.down", kernel="deep"), *ADDED],
]

ROUTER = [_linear("moe.router"), *_work("moe.router", "sigmoid", "topk")]
GROUPED = "aten::_grouped_mm"
EXPERTS = [
    *_work("moe.dispatch", "sort", "index"),
    Row("moe.experts", GROUPED, "cutlass_grouped"),
    *_work("moe.experts", "silu", "mul"),
    Row("moe.experts", GROUPED, "cutlass_grouped"),
    *_work("moe.dispatch", "mul", "index_put_", "index", "sum"),
]
SHARED = [
    *_work("moe.dispatch unattributed", "narrow", "view"),
    *GATED,
    *_work("moe.dispatch", "add"),
    *ADDED,
]


def _weighed_ahead(right: str = "norm") -> list[Row]:
    """Its weight, kept as its distance from 1, ahead of the statistics (transformers models/muse_spark)."""
    return [*_work(right, "copy_", "add 1", "copy_", "mul", "narrow"), *_rms()]


def _affine(right: str = "norm") -> list[Row]:
    return [Row(right, "aten::layer_norm", "vectorized_layer_norm_kernel"), *_work(right, "add 1", "mul")]


BEFORE_SCAN = [*3 * [_linear("ssm.projection")], Row("ssm.conv", "aten::conv1d", "conv_depthwise")]
_SHIFTED = _work("norm", "add 1", "mul", "copy_", "spread", "narrow")
MODULATED = [Row("norm", "aten::layer_norm", "vectorized_layer_norm_kernel"), *_SHIFTED]
_BENT = [*_work("embedding", "gelu"), _linear("embedding")]
DECAYS = [_linear("ssm.projection"), *_work("ssm.scan", "add", "exp", "mul", "sigmoid")]
SCANS = [*BEFORE_SCAN, *DECAYS, *_work("ssm.scan", "cumsum", "exp", "mul"), _linear("ssm.projection")]
NORMED = [Row("norm", "aten::layer_norm", "vectorized_layer_norm_kernel"), *LAYER[len(NORM) :]]
RELU = _work("mlp.activation", "relu")
MASKS = [_linear("mlp.up"), *RELU, _linear("mlp.other"), *RELU, _linear("mlp.down")]
PLACED = [*2 * _work("embedding", "cumsum"), *_work("embedding", "div", "mul", "arange", "pow", "div")]
SINES = [*PLACED, *2 * _work("embedding", "sin", "cos", "cat"), *_work("embedding", "cat")]
WEIGHED = [_linear("moe.experts"), *_work("moe.dispatch", "sigmoid", "mul", "add"), *ADDED]
AFFINE = _work("norm", "mul", "add")
MIXED = [*NORM, *SCANS, *_work("residual unattributed", "add"), *NORM, *GATED]
PATCHES = Row("other embedding", "aten::conv2d", "cudnn_fprop")
UNNORMED = [
    *ATTENTION[len(NORM) :],
    *4 * [*AFFINE, _linear("mlp.up"), *RELU, _linear("mlp.down"), *ADDED],
    *AFFINE,
]
CONVOLVED = Row("other", "aten::conv2d", "cudnn_fprop")
CORE_OF_MAP = [CONVOLVED, CORE, *_work("attention.other", "copy_"), CONVOLVED, *_work("residual", "add")]
#: Several streams, mixed by a batched GEMM before the block's result is added to each (arXiv 2409.19606).
STREAMS = [Row("unattributed", "aten::bmm", "sgemm"), *_work("residual unattributed", "add")]
SCALED = _work("residual unattributed", "tanh", "mul")
STREAM_MIX = [*_rms(), _linear("unattributed"), *_work("unattributed", "softmax", "add 1", "div")]


def _alike(count: int) -> list[Row]:
    return count * [_linear("logits", kernel="cutlass_75_gemm")]


CASES = {
    "heads side by side": [*WORDS, *4 * LAYER, *NORM, *_alike(5), *_work("unattributed", "cat"), *LOSS],
    "rows picked for the head": [*WORDS, *4 * LAYER, *NORM, *_work("logits", "index"), *HEAD[len(NORM) :]],
    "a decoder behind its encoder": [*WORDS, *4 * LAYER, *NORM, *WORDS, *WAVES, *4 * TURNED, *HEAD],
    "the last norm is weighed as the others": [
        *4 * [*_affine(), *ATTENTION[len(NORM) :], *_affine(), *GATED, *ADDED],
        *_affine(),
        *WORDS,
        *4 * LAYER,
        *HEAD,
    ],
    "a weight ahead of the statistics": [
        *WORDS,
        *4 * [*ATTENTION, *_weighed_ahead(), *GATED, *_weighed_ahead(), *ADDED],
        *HEAD,
    ],
    "what the core gives is normed and gated": [
        *WORDS,
        *[*NORM, *QUERIES, CORE, *_rms(), _linear("attention.other")],
        *[*_work("attention.other", "sigmoid", "mul"), _linear("attention.output"), *_rms()],
        *_work("residual unattributed", "div", "exp", "mul", "sqrt"),
        *ADDED,
        *NORM,
        *GATED,
        *ADDED,
    ],
    "narrower experts": [
        *WORDS,
        *[*ATTENTION, *NORM, *ROUTER, _linear("moe.experts"), *EXPERTS, _linear("moe.experts"), *ADDED],
        *HEAD,
    ],
    "a shared expert behind a view": [*WORDS, *ATTENTION, *NORM, *ROUTER, *EXPERTS, *SHARED, *HEAD],
    "a shared expert ahead of the router, and its weight (transformers models/qwen2_moe)": [
        *[*WORDS, *3 * [*MIXED, *ROUTER, *EXPERTS, *WEIGHED], *LAYER, *HEAD],
    ],
    "a head of no loss behind the last norm": [
        *[*WORDS, *3 * [*MIXED, *ADDED], *LAYER, *NORM, _linear("logits")],
        *_work("unattributed", "mean"),
    ],
    "sines of rows and columns (arXiv 2005.12872)": [PATCHES, *SINES, *WORDS, *4 * LAYER, *HEAD],
    "a scan whose gates have a bias": [*WORDS, *LAYER, *NORM, *SCANS, *ADDED, *NORM, *GATED, *ADDED, *LAYER],
    "positions between those of a table": [
        Row("embedding", "aten::conv2d", "cudnn_fprop"),
        *WORDS,
        *_work("embedding", "mul", "sum", "narrow", "add"),
        *4 * LAYER,
    ],
    "patches that are merged": [
        *WORDS,
        *2 * LAYER,
        *_work("embedding", *4 * ("slice",), "cat"),
        *[Row("norm", "aten::layer_norm", "vectorized_layer_norm_kernel"), _linear("embedding")],
        *_work("unattributed", "copy_"),
        *2 * [Row("norm", "aten::layer_norm", "vectorized_layer_norm_kernel"), *LAYER[len(NORM) :]],
    ],
    "paths dropped beside an attention": [
        *WORDS,
        *4 * [*NORM, *QUERIES, *_work("dropout", "rand", "add 1", "floor", "div", "mul"), *LAYER[11:]],
    ],
    "windows that are padded, and a block of convolutions": [
        *[*WORDS, *LAYER],
        *3 * [*NORM, *_work("attention.other", "fill_", "copy_"), *LAYER[len(NORM) :]],
        *[*NORM, Row("other", "aten::conv1d", "conv_depthwise"), *_work("dropout", "dropout"), *ADDED],
        *LAYER,
    ],
    "tables of several codebooks": [*WORDS, *_work("embedding", "sum"), *4 * LAYER, *HEAD],
    "GEMMs that are clipped": [
        *WORDS,
        *4 * [*NORM, *_work("attention.other", "clamp"), *LAYER[len(NORM) : -1], CLIPPED, *ADDED],
    ],
    "a block's result is scaled by a tanh and added (Llama 3.2's cross attention)": [
        *WORDS,
        *4 * [*ATTENTION[:-1], *SCALED, *ADDED, *NORM, *GATED, *SCALED, *ADDED],
        *HEAD,
    ],
    "what is given is projected, and the head has several layers (LayoutLM, wav2vec 2.0)": [
        *[_linear("embedding"), *4 * LAYER, *NORM],
        *2 * [_linear("other"), *_work("other", "tanh")],
        *HEAD,
    ],
    "convolutions make queries, keys and values (MobileNetV4, arXiv 2404.10518)": [
        *3 * [*2 * [CONVOLVED, *_work("attention.other", "copy_")], *CORE_OF_MAP],
    ],
    "three convolutions in a row are no MLP (arXiv 1801.04381)": [
        *3 * [*2 * [CONVOLVED, *_work("other", "gelu")], CONVOLVED, *_work("other", "add")],
        *[CONVOLVED, *4 * LAYER],
    ],
    "biases of scores that are read between convolutions are of no map (EfficientViT, arXiv 2305.07027)": [
        *3 * [CONVOLVED, *_work("other", "gelu"), CONVOLVED, *_work("unattributed", "index")],
        *[CONVOLVED, *4 * LAYER],
    ],
    "queries that run the kernel of another width's MLP (CrossViT, arXiv 2103.14899)": [
        *[*WORDS, *3 * [*NORM, *QUERIES, CORE, *_OWN], *NORM, *QUERIES, CORE, _OWN[0], *ADDED, *NORM],
        *[*_work("other", "gelu"), _linear("other", kernel="narrow")],
        *[*NORM, _linear("attention.qkv", kernel="wide"), CORE, *_OWN, *HEAD],
    ],
    "two streams of one product, each weighed (CogVideoX, arXiv 2408.06072)": [
        *[*WORDS, *4 * [*ATTENTION[:-1], *2 * [*_work("residual", "mul"), *ADDED], *NORM, *GATED, *ADDED]],
        *HEAD,
    ],
    "a norm in more bits (OLMo, arXiv 2402.00838)": [
        *WORDS,
        *4 * [*_work("norm", "copy_"), NORMED[0], *_work("norm", "narrow"), *LAYER[len(NORM) :]],
        *HEAD,
    ],
    "a linear layer whose weight and input are cast (autocast)": [
        *[*WORDS, *3 * NORMED, *_work("unattributed other", "copy_"), NORMED[0]],
        *[*_work("unattributed logits", "narrow", "narrow"), _linear("logits"), *LOSS],
    ],
    "adaptive norms, and what makes their condition and tokens (DiT, arXiv 2212.09748)": [
        *[_linear("embedding"), *_BENT, _linear("embedding"), *_BENT],
        *4 * [*MODULATED, *ATTENTION[len(NORM) :], *MODULATED, *GATED, *ADDED],
    ],
    "a linear layer ahead of the norm that ends its block (ProteinBERT)": [
        *[*WORDS, _linear("unattributed"), *_work("unattributed", "gelu"), *_work("unattributed", "add")],
        *[NORMED[0], _linear("unattributed"), *_work("unattributed", "gelu", "sum"), *4 * LAYER, *HEAD],
    ],
    "one more than a weight behind a block, and the stream": [
        *[*WORDS, *4 * [*ATTENTION[:-1], *_rms("add 1", "mul"), *ADDED, *NORM, *GATED, *ADDED]],
        *HEAD,
    ],
    "scores that are capped": [
        *[*WORDS, *4 * LAYER, *NORM, _linear("logits"), *_work("logits", "div", "tanh", "mul")],
        *LOSS,
    ],
    "the stream and the first one are weighed (modded-nanogpt)": [
        *WORDS,
        *4 * [*LAYER, *_work("residual", "mul", "add", "mul", "mul", "add")],
        *HEAD,
    ],
    "an affine layer in place of a norm (MobileBERT, arXiv 2004.02984)": [
        *WORDS,
        *4 * [*ATTENTION, *_work("unattributed", "mul", "add"), *GATED, *ADDED],
        *HEAD,
    ],
    "affine layers in place of all norms, beside four MLPs": [
        *[*WORDS, _linear("embedding unattributed"), *AFFINE, *4 * UNNORMED],
        *[_linear("logits", kernel="cutlass_80_gemm"), *LOSS],
    ],
    "a scan beside attention to the same (Falcon-H1, arXiv 2507.22448)": [
        *WORDS,
        *4 * [*NORM, *SCANS, *_work("unattributed", "mul"), *ATTENTION[len(NORM) :], *ADDED, *PLAIN],
        *HEAD,
    ],
    "what detectors make of every token between layers and behind them (arXiv 2005.12872)": [
        *[*WORDS, *4 * [*NORMED, *MASKS[:2], _linear("mlp.down"), *_work("unattributed", "cat")]],
        *[*NORMED, *NORMED[:1], _linear("unattributed"), *MASKS, *_work("unattributed", "add", "sigmoid")],
    ],
    "places side by side, and a linear layer (Swin, arXiv 2103.14030)": [
        *[*WORDS, *3 * NORMED, Row("embedding", "aten::copy_", "Memcpy DtoD (Device -> Device)")],
        *[NORMED[0], _linear("embedding"), *4 * NORMED],
    ],
    "positions that are convolved, and cut to their length (wav2vec 2.0, arXiv 2006.11477)": [
        *[_linear("embedding"), Row("other embedding", "aten::conv1d", "cudnn_fprop")],
        *[*_work("other", "slice", "gelu"), *_work("embedding unattributed", "add"), *4 * LAYER],
    ],
    "a stage begins with a product that is pooled as its queries are (Hiera, arXiv 2306.00989)": [
        *[*WORDS, *3 * NORMED, *NORMED[:1], _linear("other"), *_work("other", "amax")],
        *[*NORMED[1:], *3 * NORMED],
    ],
    "masks of picked tokens (Segment Anything, arXiv 2304.02643)": [
        *[*WORDS, *4 * LAYER, *NORM],
        *3 * [*_work("unattributed", "select"), *MASKS],
        *[*_work("unattributed", "cat"), *MASKS, *_work("unattributed", "sigmoid")],
    ],
    "streams that are mixed": [
        *WORDS,
        *3 * [*STREAM_MIX, *NORM, *SCANS, *STREAMS, *STREAM_MIX, *NORM, *GATED, *STREAMS],
        *LAYER,
    ],
}  # fmt: skip


@pytest.mark.parametrize("rows", CASES.values(), ids=CASES.keys())
def test_what_stands_beside_is_told(tmp_path: Path, rows: Sequence[Row]) -> None:
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    right, wrong = verdict(rows, trace, found)
    assert (right, wrong) == (1.0, {})
