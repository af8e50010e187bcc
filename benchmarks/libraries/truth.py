"""What each piece of a model of the six libraries is for: by their own names of classes and attributes.

As in ``benchmarks.hub.truth`` a truth is the words that are right, the usual one first; an empty one is not
judged: that is what the names leave open (heads that pool by attention). The table follows the public source,
named in each row.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from benchmarks.hub.truth import Place


class Row(NamedTuple):
    """A class around a product or around any work, the attribute that holds the product, and the truth."""

    within: str
    name: str
    truth: str
    source: str


_GATED = "mlp.up mlp.gate"
#: Products by the attribute that holds their module, inside a module of the class; the first that fits. In a
#: container without a call of its own (``to_out[0]``) the attribute is a number.
_PRODUCTS = (
    Row(r"LuminaLayerNormContinuous", "linear_2", "logits other", "diffusers/models/normalization.py"),
    Row(r"\w*Norm\w*", r"linear(_1)?", "other norm embedding", "normalization.py: shift, scale and gate"),
    Row(r"FeedForward", r"net\.1", "mlp.up", "vit_pytorch/vit.py: norm, linear, GELU, linear"),
    Row(r"FeedForward", r"((net|ff)\.)?[2-4]", "mlp.down", "vit_pytorch; diffusers; x_transformers"),
    Row(r"FeedForward", r"w3", "mlp.up", "torchtune/modules/feed_forward.py"),
    Row(r"FeedForward", r"w2", "mlp.down", "torchtune/modules/feed_forward.py"),
    Row(r"GELU", "proj", "mlp.up", "diffusers/models/activations.py"),
    Row(r"(GE|Swi)?GLU", "proj", _GATED, "activations.py; x_transformers.py: halves"),
    Row(r"LuminaFeedForward", "linear_1", "mlp.gate", "diffusers: linear_2(silu(linear_1(x)) * linear_3(x))"),
    Row(r"LuminaFeedForward", "linear_3", "mlp.up", "diffusers/models/attention.py"),
    Row(r"LuminaFeedForward", "linear_2", "mlp.down", "diffusers/models/attention.py"),
    Row(r"GptNeoxMLP", "fc", "mlp.up", "litgpt/model.py"),
    Row(r"(LLaMA|Gemma)MLP", "fc_1", "mlp.gate", "litgpt/model.py: act(fc_1(x)) * fc_2(x)"),
    Row(r"(LLaMA|Gemma)MLP", "fc_2", "mlp.up", "litgpt/model.py"),
    Row(r"\w*MLP", "proj", "mlp.down", "litgpt/model.py"),
    Row(r"Mlp", "fc1", "mlp.up", "timm/layers/mlp.py"),
    Row(r"Mlp", "fc2", "mlp.down", "timm/layers/mlp.py"),
    Row(r"ResidualAttentionBlock", r"mlp\.c_fc", "mlp.up", "open_clip/transformer.py"),
    Row(r"ResidualAttentionBlock", r"mlp\.c_proj", "mlp.down", "open_clip/transformer.py"),
    Row(r"FluxSingleTransformerBlock", "proj_mlp", "mlp.up", "diffusers: transformer_flux.py"),
    Row(r"FluxSingleTransformerBlock", "proj_out", "attention.output mlp.down", "both as one"),
    Row(r"\w*Attention", r"(to_)?(q|k|v|kv|qkv)|add_[qkv]_proj|[qkv]_proj", "attention.qkv", "all of them"),
    Row(r"\w*Attention", r"(to_|output_)?(out|proj)|to_out\.0|0|to_add_out", "attention.output", "all"),
    Row(r"ResnetBlock2D", "time_emb_proj", "other embedding", "diffusers/models/resnet.py"),
    Row(r"HunyuanDiTBlock", "skip_linear", "other", "hunyuan_transformer_2d.py"),
    Row(r"Sequential", r"to_patch_embedding\.\d", "embedding other", "vit_pytorch"),
    Row(r"Sequential", r"(\w+_)?mlp_head\.\d", "logits other", "vit_pytorch"),
    Row(r"Sequential", r"(cross_attention|global|timestep)_proj\.\d", "embedding other", "stable_audio"),
    Row(r"Llama3VisionProjectionHead", "output", "embedding other", "torchtune: llama3_2_vision/_encoder.py"),
    Row(r"TransformerDecoder", r"output|", "logits", "torchtune; nameless where tied"),
    Row(r"\w*", r"lm_head|to_logits", "logits", "litgpt/model.py; x_transformers.py"),
    Row(r"ViT|SimpleViT|ViViT", r"(mlp|linear)_head", "logits other", "vit_pytorch"),
    Row(r"\w*(2D|3D|DiT)?Model", r"proj_out_1", "other logits embedding norm", "of the time"),
    Row(r"\w*(2D|3D|DiT)?Model", r"proj_out(_2)?", "logits other", "diffusers/models/transformers"),
    Row(r"\w*(2D|3D|DiT)?Model", r"proj_in|(x|context)_embedder", "embedding other", "diffusers"),
    Row(r"TextTransformer", "text_projection", "logits other embedding", "open_clip/transformer.py"),
    Row(r"LLaMAMoE", "gate", "moe.router", "litgpt/model.py"),
)  # fmt: skip
#: All that runs in a module of the class, but for its products above; the innermost that fits.
_ALL_OF = (
    Row(r"Dropout", "", "dropout", "torch.nn"),
    Row(r"\w*Rotary\w*", "", "attention.rope", "diffusers, torchtune, x_transformers"),
    Row(r"FluxPosEmbed", "", "attention.rope embedding", "by its name, and by what it makes"),
    Row(r"(Alibi|Relative)Position(al)?Bias", "", "attention.other embedding attention.softmax", ""),
    Row(
        r"Timesteps|Timestep\w*|\w*(Embeddings?|PatchEmbed|TextProjection|FourierProjection|ImageEmbedder)",
        "",
        "embedding other",
        "diffusers/models/embeddings.py and all others",
    ),
    Row(r"\w*Loss", "", "loss logits", "open_clip/loss.py"),
    Row(
        r"ResnetBlock2D|(Down|Up)sample2D|MBConvResidual|SqueezeExcitation|Bottleneck|ModifiedResNet"
        r"|LocalPatchInteraction",
        "",
        "other residual",
        "convolutions and what is around: resnet.py, max_vit.py, modified_resnet.py, xcit.py",
    ),
    Row(r"GLUMBConv", "", "mlp.* other", "diffusers: sana_transformer.py, a gated MLP of convolutions"),
    Row(r"TanhGate|LayerScale|Scale", "", "residual attention.other mlp.other other", "of a block's result"),
)  # fmt: skip
#: Of attention, of a head, of an embedding: open_clip, timm, diffusers.
_POOL = re.compile(r"AttentionPool|AttentionalPooler")
#: Normalizations that a condition shifts and scales.
_MODULATED = re.compile(r"Norm(Zero|Single|Continuous|Shift)|AdaLayerNorm|ModulatedNorm")
_NORM = re.compile(r"Norm(\dd|Zero(Single)?|Single|Continuous|Shift)?$")
_ATTENTION = re.compile(r"Attention$")
_MLP = re.compile(r"^(FeedForward|LuminaFeedForward|\w*MLP|Mlp)$")
_LAYER = re.compile(r"(Block(2D)?|Layer|Transformer|Residual|Parallel|Transformer2DModel)$")
_BLOCK = re.compile(r"(Block|Layer)$")
_ACTIVATION = re.compile(r"GELU|SiLU|ReLU|Sigmoid")
_LINEAR = ("linear", "addmm", "matmul", "mm", "__matmul__")
_BATCHED = ("bmm", "baddbmm", "matmul", "einsum", "__matmul__")
_NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_FUSED = "attention.core attention.scores attention.softmax attention.values"
#: What an adapter is for that replaces the module of the name: torchtune's llama3 with LoRA.
_ADAPTED = {
    "q_proj": "attention.qkv",
    "v_proj": "attention.qkv",
    "output_proj": "attention.output",
    "w1": "mlp.gate",
    "w2": "mlp.down",
    "w3": "mlp.up",
}


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call of ``function``: ``weighted`` if it takes a parameter of the model, ``equal`` if it
    adds two tensors of one shape."""
    if function in ("cross_entropy", "mse_loss") or not place.classes:
        return "loss"  # what the training script does with the model's result is of it, too
    if function == "scaled_dot_product_attention":
        return _FUSED
    if function == "dropout":
        return "dropout"
    if place.within(_POOL) >= 0:
        return ""
    at = place.within(re.compile(r"^LoRALinear$"))
    if at >= 0:
        return _adapted(_ADAPTED[place.names[at]], function)
    if place.within(re.compile(r"^LLaMAMoE$")) >= 0:
        return _in_mixture(place, function, weighted=weighted)
    if function in _LINEAR and weighted and place.classes[-1].endswith("Linear"):
        return _product(place)
    if function in _NORMS:
        return "norm other" if place.classes[-1].startswith(("Batch", "Group")) else "norm"
    if function in _CONVOLUTIONS:
        return _convolution(place)
    return _besides(place, function, weighted=weighted, equal=equal)


def _adapted(truth: str, function: str) -> str:
    block = truth.partition(".")[0]
    return truth if function == "linear" else f"{truth} {block}.other"


def _product(place: Place) -> str:
    """What a linear layer is for."""
    names = (place.names[-1], ".".join(place.names[-2:]))
    around = _around(place)
    if names[0] == "w1" and "FeedForward" in around:  # a gate where there is a w3: not in torchtune's CLIP
        return "mlp.up" if place.within(re.compile("^(VisionTransformer|Llama3Vision)")) >= 0 else "mlp.gate"
    if around and around[0] == "Sequential" and "FeedForward" in around and place.names[-2:-1] == ("0",):
        return "mlp.up"  # x_transformers.py, FeedForward: its first linear layer and the activation in one
    held = around[:1] != ("Sequential",)
    for row in _PRODUCTS:
        if any(re.fullmatch(row.within, kind) for kind in around) and any(
            re.fullmatch(row.name, name) for name in (names if held else names[1:])
        ):
            return row.truth
    return _within(place) or ""


def _around(place: Place) -> tuple[str, ...]:
    """Classes of the module around the product, and of what holds it in a row."""
    outer = place.classes[-2::-1]
    rows = next((at for at, kind in enumerate(outer) if kind != "Sequential"), len(outer) - 1)
    return outer[: rows + 1]


def _within(place: Place) -> str | None:
    for kind in reversed(place.classes):
        if _ATTENTION.search(kind) or _MLP.search(kind):
            return None
        found = next((row for row in _ALL_OF if re.fullmatch(row.within, kind)), None)
        if found is not None:
            return found.truth
    return None


def _convolution(place: Place) -> str:
    found = _within(place)
    if found is not None:
        return found
    if place.within(_ATTENTION) >= 0:
        return "attention.* other"  # talking heads of x_transformers are a convolution over heads
    return "other embedding logits" if len(place.classes) == 2 else "other embedding"


def _besides(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    own = place.classes[-1]
    attention, mlp = place.within(_ATTENTION), _in_mlp(place)
    within = _within(place)
    if _NORM.search(own):
        return "norm other" if _MODULATED.search(own) else "norm"
    if _MODULATED.search(place.classes[-2]) if len(place.classes) > 1 else False:
        return "other norm embedding"  # the activation before a modulation
    if own == "Embedding" and attention >= 0:
        return "attention.other embedding attention.softmax"
    if within is not None:
        return f"{within} attention.* mlp.*" if within.startswith("other residual") and equal else within
    if attention > mlp:
        # diffusers/models/attention_processor.py: a factor of the block's result, rescale_output_factor
        factor = " residual" if function == "div" and place.seen == "softmax" else ""
        return _in_attention(function, seen=place.seen, weighted=weighted) + factor
    if mlp >= 0:
        return "mlp.activation mlp.other"
    if equal and _LAYER.search(own):
        return "residual other" if own == "Transformer2DModel" else "residual"  # of maps: transformer_2d.py
    if own == "AutoregressiveWrapper":
        return "loss logits"  # x_transformers/autoregressive_wrapper.py
    makes = own == "TransformerWrapper" or (own in ("VisionTransformer", "TextTransformer") and weighted)
    if makes and function == "add":
        return "embedding"  # of positions
    if _BLOCK.search(own) and function in ("mul", "add"):
        return (
            "norm residual other attention.other mlp.other"  # shift, scale and gate around attention and MLP
        )
    if _ACTIVATION.search(own) and "FluxSingleTransformerBlock" in place.classes:
        return "mlp.activation mlp.other"
    return ""


def _in_mlp(place: Place) -> int:
    """Index of the MLP around; open_clip's and torch's is a Sequential called so."""
    named = [i for i, name in enumerate(place.names) if name == "mlp"]
    return max([place.within(_MLP), *named])


def _in_attention(function: str, *, seen: str, weighted: bool) -> str:
    if function == "mul" and weighted:
        return "attention.* norm"  # the scales of x_transformers' qk_norm
    if function == "softmax":
        return "attention.softmax"
    if function == "linear":  # torch.nn.MultiheadAttention
        return "attention.output" if seen == "softmax" else "attention.qkv"
    if function in _BATCHED:
        return ("attention.values" if seen == "softmax" else "attention.scores") + " attention.*"
    return "attention.* norm" if function == "normalize" else "attention.*"


def unlisted(place: Place, function: str, attends: re.Pattern[str], *, weighted: bool, equal: bool) -> str:
    """The truth of what no row names: tables, what a module that attends does beside its products, sums."""
    if function == "embedding":
        return "embedding"
    if place.within(attends) >= 0:
        return _in_attention(function, seen=place.seen, weighted=weighted)
    return "residual" if equal else ""


def _in_mixture(place: Place, function: str, *, weighted: bool) -> str:
    if place.names[-1] == "gate":
        return "moe.router"
    if function in ("topk", "softmax"):
        return "moe.router moe.dispatch"
    if function == "linear" and weighted:
        return "moe.experts"
    if place.within(_MLP) >= 0:
        return "moe.*"
    return "moe.dispatch moe.experts moe.router"
