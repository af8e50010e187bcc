"""What each piece of a model of megatron-core or torchtitan is for: by the framework's own names.

As in ``benchmarks.hub.truth`` a truth is the words that are right, the usual one first; an empty one is not
judged. The table follows the public source, named in each row. All that an autograd function of a framework
runs is what the function is for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from benchmarks.hub.truth import Place


class Row(NamedTuple):
    """Classes and attribute names, matched whole, of a module, and what its products are."""

    within: str  # class of a module around it, "" for any
    names: str
    truth: str
    source: str


#: Products by the attribute that holds their module, inside a module of the class.
_PRODUCTS = (
    Row(
        "(Self|Cross)Attention",
        "linear_(qkv|q|kv)",
        "attention.qkv",
        "megatron/core/transformer/attention.py",
    ),
    Row(
        "MLASelfAttention",
        "linear_(q_proj|(q|kv)_(down|up)_proj)",
        "attention.qkv",
        "megatron/core/transformer/multi_latent_attention.py",
    ),
    Row(".*Attention", "linear_proj", "attention.output", "megatron/core/transformer/attention.py"),
    Row("MLP", "linear_fc1", "mlp.up mlp.gate", "megatron/core/transformer/mlp.py: halves of a gated one"),
    Row("MLP", "linear_fc2", "mlp.down", "megatron/core/transformer/mlp.py"),
    Row("", "output_layer", "logits", "megatron/core/models/gpt/gpt_model.py, bert/, T5/"),
    Row("", "binary_head", "logits other", "megatron/core/models/bert/bert_model.py"),
    Row(
        "", "eh_proj", "other embedding", "transformer/multi_token_prediction.py: of both; torchtitan mtp.py"
    ),
    Row(".*QKVLinear", "w(q|k|v|qkv)", "attention.qkv", "torchtitan/models/common/attention.py"),
    Row("Attention", "wq(_[ab])?|wkv_[ab]", "attention.qkv", "torchtitan/models/deepseek_v3/model.py"),
    Row(".*Attention", "wo", "attention.output", "torchtitan/models/common/attention.py"),
    Row("FeedForward", "w1", "mlp.gate", "torchtitan/models/common/feed_forward.py: silu(w1(x)) * w3(x)"),
    Row("FeedForward", "w3", "mlp.up", "torchtitan/models/common/feed_forward.py"),
    Row("FeedForward", "w2", "mlp.down", "torchtitan/models/common/feed_forward.py"),
    Row("", "lm_head", "logits", "torchtitan/models/common/decoder.py"),
    Row("SelfAttention", "qkv", "attention.qkv", "torchtitan/models/flux/model/layers.py"),
    Row("SelfAttention", "proj", "attention.output", "torchtitan/models/flux/model/layers.py"),
    Row("DoubleStreamBlock", "(img|txt)_mlp.0", "mlp.up", "torchtitan/models/flux/model/layers.py"),
    Row("DoubleStreamBlock", "(img|txt)_mlp.2", "mlp.down", "torchtitan/models/flux/model/layers.py"),
    Row("SingleStreamBlock", "linear1", "attention.qkv mlp.up", "flux/model/layers.py: both side by side"),
    Row("SingleStreamBlock", "linear2", "attention.output mlp.down", "flux/model/layers.py: both as one"),
    Row("FluxModel", "(img|txt)_in", "embedding other", "torchtitan/models/flux/model/model.py"),
    Row("LastLayer", "linear", "logits other", "torchtitan/models/flux/model/layers.py"),
)

#: All that runs in a module of the class and in none of its own that a row further up is about.
_ALL_OF = (
    Row(
        "Rotary\\w*|Yarn\\w*|(Complex|CosSin)RoPE|EmbedND",
        "",
        "attention.rope",
        "rotary_pos_embedding.py, rope.py",
    ),
    Row(
        "RelativePositionEmbedding",
        "",
        "attention.other embedding attention.softmax",
        "megatron/core/models/common/embeddings/relative_pos_embedding.py",
    ),
    Row(
        "\\w*(Layer|RMS|L2|QK)Norm",
        "",
        "norm",
        "torch.nn, megatron/core/transformer/torch_norm.py, torchtitan",
    ),
    Row("Dropout", "", "dropout", "torch.nn"),
    Row(
        "Modulation|MLPEmbedder",
        "",
        "other embedding mlp.*",
        "flux/model/layers.py: of the time, for all tokens",
    ),
    Row(
        "(VocabParallel|LanguageModel)?Embedding", "", "embedding", "megatron/core/tensor_parallel/layers.py"
    ),
    Row("TopKRouter|TokenChoiceTopKRouter", "", "moe.router moe.dispatch", "moe/router.py; common/moe.py"),
    Row("BertLMHead|Pooler", "", "logits other", "megatron/core/models/bert/"),
)

_FUNCTIONS = {
    "cross_entropy": "loss",
    "mse_loss": "loss",
    "_VocabParallelCrossEntropy": "loss",  # megatron/core/tensor_parallel/cross_entropy.py
    "scaled_dot_product_attention": "attention.core attention.scores attention.softmax attention.values",
    "_scaled_dot_product_flash_attention": "attention.core",  # in torch_attn::_varlen_attn
    "_scaled_dot_product_efficient_attention": "attention.core",
    "layer_norm": "norm",
    "rms_norm": "norm",
    "dropout": "dropout",
    "embedding": "embedding",
}
#: Autograd functions that are a product and what their backward runs beside: megatron/core/tensor_parallel/
#: layers.py, transformer/moe/moe_utils.py.
_LINEAR_FUNCTIONS = ("LinearWithGradAccumulationAndAsyncCommunication", "LinearWithFrozenWeight")
_LINEAR = ("linear", "addmm", "matmul", "mm", "__matmul__", "RouterGatingLinearFunction", *_LINEAR_FUNCTIONS)
_BATCHED = ("bmm", "baddbmm", "matmul", "einsum", "__matmul__")
_MOVES = (
    "argsort", "sort", "index_select", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_",
    "masked_select", "__getitem__", "cumsum", "where", "repeat_interleave", "expand", "split", "cat",
    "__floordiv__", "floor_divide", "zeros_like", "zeros",
)  # fmt: skip
_ATTENTION = re.compile(r"Attention$")
_MLP = re.compile(r"^(MLP|FeedForward)$")
_MIXTURE = re.compile(r"^(MoELayer|MoE|GptOssMoE)$")
_EXPERTS = re.compile(r"^(SequentialMLP|(GptOss)?GroupedExperts)$")
_SHARED = re.compile(r"^SharedExpertMLP$|^shared_experts$")
_LAYER = re.compile(r"(TransformerLayer|TransformerBlock|StreamBlock)$")
_ACTIVATION = re.compile(r"GELU|SiLU")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call of ``function``: ``weighted`` if it takes a parameter of the model, ``equal`` if it
    adds two tensors of one shape."""
    if function in _FUNCTIONS:
        return _FUNCTIONS[function]
    if not place.classes:
        return "loss"  # what the training script does with the model's result
    row = _row(place)
    mixture = place.within(_MIXTURE)
    shared = next((i for i, name in enumerate(place.names) if _SHARED.search(name)), -1)
    if row is not None:
        return row.truth
    if mixture >= 0:
        return _in_mixture(place, function, weighted=weighted, shared=max(shared, place.within(_SHARED)) >= 0)
    if function in _LINEAR and weighted:
        return next((row.truth for row in _PRODUCTS if _holds(row, place)), "")
    if place.within(_ATTENTION) >= 0:
        return _in_attention(place, function)
    if place.within(_MLP) >= 0 or _ACTIVATION.search(place.classes[-1]):
        return "mlp.activation mlp.other"
    if place.names[-1] in ("output_layer", "lm_head"):
        return "logits"  # copies of what goes in and comes out
    return _in_layer(place, function, equal=equal)


def _row(place: Place) -> Row | None:
    """The row about the module itself, or, of modules without a product of their own, about one around it."""
    for kind in reversed(place.classes):
        found = next((row for row in _ALL_OF if re.fullmatch(row.within, kind)), None)
        if found is not None:
            return found
    return None


def _holds(row: Row, place: Place) -> bool:
    """Is the product of the row's module, itself or by the number in it?"""
    names = [place.names[-1], ".".join(place.names[-2:])]
    around = place.classes[:-1]
    fits = any(re.fullmatch(row.names, name) for name in names)
    return fits and (not row.within or any(re.fullmatch(row.within, kind) for kind in around[-2:]))


def _in_mixture(place: Place, function: str, *, weighted: bool, shared: bool) -> str:
    if shared:
        gate = weighted and place.names[-1] == "shared_experts" and function == "linear"
        return "moe.experts mlp.*" + (" moe.router" if gate else "")
    experts = place.within(_EXPERTS) >= 0
    if function == "_grouped_mm" or (experts and function in _LINEAR and weighted):
        return "moe.experts"
    if function in _MOVES:
        return "moe.dispatch moe.experts moe.router"
    return "moe.*" if experts else "moe.* residual"  # it adds what the shared expert gives


def _in_attention(place: Place, function: str) -> str:
    if function == "softmax":
        return "attention.softmax"
    if function in _BATCHED and place.classes[-1].endswith("Attention"):
        return "attention.values" if place.seen == "softmax" else "attention.scores"
    return "attention.*"


def _in_layer(place: Place, function: str, *, equal: bool) -> str:
    own = place.classes[-1]
    if equal and own.endswith("StreamBlock"):
        return "residual attention.*"  # flux/model/layers.py: it rotates queries and keys itself
    if equal and _LAYER.search(own):
        return "residual"
    if own in ("MTPTransformerBlock", "MultiTokenPredictionLayer"):
        return "other embedding"  # of the next token's embedding and what came before
    if own == "TransformerLayer" and function in ("add", "__add__"):
        # megatron/core/fusions/fused_bias_dropout.py: the bias of the product before
        return "residual attention.* mlp.* moe.*"
    if own == "CLIPViTModel" or function == "conv2d":
        return "embedding other"  # megatron/core/models/vision/clip_vit_model.py
    return ""
