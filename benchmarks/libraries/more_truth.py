"""What each piece of the models of ``more.py`` is for, where ``truth.py`` does not know their names.

Rows as there, but by the whole place: classes and the attributes that hold them, outermost first
(``Block[0]/Attention[attn]/Linear[to_q]``), and by the function that runs in it. What no row names is left to
the table of ``truth.py``, so that the same names mean the same in both lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.hub.truth import Place
from benchmarks.libraries import truth
from benchmarks.libraries.truth import _ADAPTED, _FUSED, _GATED, _NORMS, _adapted


class Row(NamedTuple):
    """The end of a place, the function (``add=`` adds two tensors of one shape), and the truth."""

    where: str
    function: str
    truth: str
    source: str


def spelled(place: Place) -> str:
    """Classes and attributes, outermost first."""
    return "/".join(f"{kind}[{name}]" for kind, name in zip(place.classes, place.names, strict=True))


def row_of(rows: Iterable[Row], place: Place, function: str, *, equal: bool, weighed: bool = False) -> str:
    """The truth of the first row that fits a call, "" where none does.

    ``weighed``: the module calls the function with and without a weight of its own, here with it: then rows
    for ``function w`` fit, too.
    """
    where = spelled(place)
    called = function + "=" * equal
    names = (f"{called} w", called) if weighed else (called,)
    for row in rows:
        if re.search(f"(^|/)({row.where})$", where) and any(re.fullmatch(row.function, x) for x in names):
            return row.truth
    return ""


def feed_forwards(
    networks: Sequence[tuple[str, str, str | None, str, str]], product: str, *, up: str = ""
) -> Iterator[Row]:
    """Rows of feed-forward networks: where layers are held, the way up, its gate, the way down, the source.

    A gate that is None is the other half of the way up. ``product``: functions that multiply; ``up``: those
    of the way up, where they are others.
    """
    for where, wide, gate, _, source in networks:
        if wide:
            truth = _GATED if gate is None else "mlp.up"
            yield Row(rf"({where})/\w+\[{wide}\]", up or product, truth, source)
    for where, _, gate, _, source in networks:
        if gate:
            yield Row(rf"({where})/\w+\[{gate}\]", product, "mlp.gate", source)
    for where, _, _, down, source in networks:
        if down:
            yield Row(rf"({where})/\w+\[{down}\]", product, "mlp.down", source)


def settled(place: Place, function: str, losses: Sequence[str]) -> str:
    """The truth of losses, fused attention and dropout, wherever they are called; "" of all else."""
    if function in losses:
        return "loss"
    if function == "scaled_dot_product_attention":
        return _FUSED
    return "dropout" if function == "dropout" or place.classes[-1].startswith("Dropout") else ""


#: What stands behind the place of a module to mean all within it.
_IN = r"(/.*)?"
#: Casts, the choice of rows and the tanh of gates: of the normalization, the shift, scale and gate around.
_AROUND = "norm residual other attention.other mlp.other"
_CONDITION = "other norm embedding"  # shift, scale and gate, as of the normalizations in truth.py
_GDN = "attention.* ssm.scan"  # "gated delta net" by its name, attention by where it stands
_ROWS = (
    Row(r"GPT\[\]", "mul", "embedding other", "litgpt/model.py: scale_embeddings"),
    Row(r"Llama3ScaledRoPE\[\w+\]", ".*", "attention.rope", "torchtune/models/llama3_1"),
    Row(r"TransformerDecoder\[\]", "float", "logits loss", "torchtune/modules/transformer.py"),
    Row(r"Gemma2FinalNorm\[\w+\]/TanhSoftCapping\[\w+\]", ".*", "norm other logits", "torchtune: gemma2"),
    # x_transformers/x_transformers.py
    Row(r"DynamicPositionBias\[\w+\](/\w+\[\d+\])*/Linear\[\d\]", "linear",
        "attention.other embedding mlp.* other", "an MLP of distances"),
    Row(r"DynamicPositionBias\[\w+\]" + _IN, ".*", "attention.other embedding attention.softmax",
        "as the other biases"),
    Row(r"PolarEmbedding\[\w+\]", ".*", "attention.rope embedding other", "arXiv 2509.10534"),
    Row(r"ShiftTokens\[\w+\]", ".*", "other attention.other mlp.other", "before either"),
    # open_clip, and the towers of timm in it
    Row(r"SwiGLU\[mlp\]/Linear\[fc1_g\]", ".*", "mlp.gate", "timm/layers/mlp.py"),
    Row(r"SwiGLU\[mlp\]/Linear\[fc1_x\]", ".*", "mlp.up", "timm/layers/mlp.py"),
    Row(r"SwiGLU\[mlp\]/Linear\[fc2\]", ".*", "mlp.down", "timm/layers/mlp.py"),
    Row(r"AttentionRope\[attn\]/Linear\[qkv\]", ".*", "attention.qkv", "timm/layers/attention.py"),
    Row(r"AttentionRope\[attn\]/Linear\[proj\]", ".*", "attention.output", "timm/layers/attention.py"),
    Row(r"AttentionRope\[attn\]", ".*", "attention.*", "timm/layers/attention.py"),
    Row(r"(Eva|VisionTransformer)\[trunk\]", "cat|add=?", "embedding other", "timm/models: positions, class"),
    Row(r"(Eva|VisionTransformer)\[trunk\]", "mean|__getitem__", "logits other embedding", "timm: the pool"),
    Row(r"(Eva|VisionTransformer)\[trunk\]/Linear\[head\]|TimmModel\[\w+\]/Sequential\[head\]/Linear\[proj\]",
        ".*", "logits other embedding", "open_clip/timm_model.py, as text_projection"),
    Row(r"(CLIP|TextTransformer)\[\w*\]", "matmul", "logits other embedding", "text_projection: model.py"),
    Row(r"CLIP\[\]", "add", "embedding", "open_clip/model.py: positional_embedding"),
    Row(r"ConvNormAct\[\d\]/BatchNormAct2d\[bn\]/GELU\[act\]", ".*", "other embedding", "timm: mobileclip"),
    # vit_pytorch
    Row(r"Attention\[\d\]/Linear\[to_gate\]", ".*", "attention.*", "looped_vit.py: of each head's result"),
    Row(r"Attention\[\d\]/Linear\[to_(qkv_and_mask|qk)\]", ".*", "attention.qkv", "sparse_gating, nd_pope"),
    Row(r"Attention\[\d\]/Specialized\[to_qkv\]/Linear\[\d\]", ".*", "attention.qkv", "specialized_cls"),
    Row(r"Attention\[\d\]/Specialized\[norm\]", "cat|split", "norm attention.*", "specialized_cls"),
    Row(r"FeedForward\[\d\]/Specialized\[norm\]", "cat|split", "norm mlp.other", "specialized_cls"),
    Row(r"Transformer\[\w+\]/Specialized\[norm\]", "cat|split", "norm", "specialized_cls"),
    Row(r"FeedForward\[\d\]/Sequential\[net\]/Linear\[0\]", ".*", "mlp.up", "specialized_cls"),
    Row(r"FeedForward\[\d\]/Sequential\[net\]/Conv2d\[1\]", ".*", "mlp.up other", "cvt.py"),
    Row(r"FeedForward\[\d\]/Sequential\[net\]/Conv2d\[4\]", ".*", "mlp.down other", "cvt.py"),
    Row(r"SimpleViT\[\]/Transformer\[transformer\]", "matmul|tanh|mul|add|einsum|sum|__getitem__|expand",
        "residual other", "simple_vit_with_hyper_connections.py: methods of HyperConnection"),
    Row(r"TransformerEncoderLayer\[\d\]/Linear\[linear1\]", ".*", "mlp.up", "cct.py, cct_3d.py"),
    Row(r"TransformerEncoderLayer\[\d\]/Linear\[linear2\]", ".*", "mlp.down", "cct.py, cct_3d.py"),
    Row(r"TransformerEncoderLayer\[\d\]", "gelu", "mlp.activation mlp.other", "cct.py, cct_3d.py"),
    Row(r"TransformerClassifier\[\w+\]/Linear\[fc\]", ".*", "logits other", "cct.py, cct_3d.py"),
    Row(r"TransformerClassifier\[\w+\]", "add_", "embedding other", "cct.py: positional_emb"),
    Row(r"Tokenizer\[tokenizer\]" + _IN, ".*", "embedding other", "cct.py, cct_3d.py"),
    Row(r"MV2Block\[\d\]" + _IN, ".*", "other residual", "mobile_vit.py, as MBConvResidual"),
    Row(r"MobileViTBlock\[\d\](/Sequential\[conv\d\]/\w+\[\d\])?", ".*", "other residual", "mobile_vit.py"),
    Row(r"MobileViT\[\]/Sequential\[conv1\]/\w+\[\d\]", ".*", "other embedding", "mobile_vit.py: the stem"),
    Row(r"Sequential\[to_logits\]/Linear\[2\]", ".*", "logits other", "mobile_vit.py, cvt.py"),
    Row(r"Sequential\[to_logits\]" + _IN, ".*", "other logits embedding", "mobile_vit.py, cvt.py: the pool"),
    Row(r"Pool\[\d\](/Linear\[cls_ff\])?", ".*", "other embedding", "pit.py: fewer, wider tokens"),
    Row(r"\w*ViT\w*\[\]/Linear\[(mlp|linear)_head\]", ".*", "logits other", "all"),
    Row(r"Sequential\[to_patch_embedding\]" + _IN, ".*", "embedding other", "all"),
    Row(r"GoldenGatePoPENd\[\w+\]", ".*", "attention.rope embedding", "vit_nd_pope.py"),
    Row(r"ViTND\[\]", "arange|meshgrid|stack", "embedding other attention.rope", "vit_nd_pope.py"),
    Row(r"(\w*ViT\w*|PiT)\[\]", "mean", "logits other", "all: the pool"),
    Row(r"(\w*ViT\w*|PiT)\[\]", "__getitem__", "embedding other logits", "all: tokens taken or left"),
    Row(r"(\w*ViT\w*|PiT)\[\]", ".*", "embedding other", "all: positions, class and register tokens"),
    # diffusers/models/transformers/transformer_helios.py
    Row(r"HeliosOutputNorm\[\w+\]", ".*", "norm other", "a normalization that the time shifts and scales"),
    Row(r"HeliosTransformerBlock\[\d\]", "float|type_as|chunk|add=", _AROUND, "each token has its own shift"),
    Row(r"HeliosTransformer3DModel\[\]", ".*", "embedding other attention.rope", "pieces of the history"),
    # diffusers/models/unets/unet_stable_cascade.py
    Row(r"Sequential\[channelwise\]/Linear\[0\]", ".*", "mlp.up mlp.other other", "of a ConvNeXt"),
    Row(r"Sequential\[channelwise\]/Linear\[4\]", ".*", "mlp.down mlp.other other", "of a ConvNeXt"),
    Row(r"Sequential\[channelwise\]/GELU\[1\]", ".*", "mlp.activation mlp.other other", "of a ConvNeXt"),
    Row(r"GlobalResponseNorm\[\d\]", ".*", "norm other mlp.other", "of a ConvNeXt"),
    Row(r"SDCascadeResBlock\[\d\](/Conv2d\[depthwise\])?", ".*", "other residual", "as ResnetBlock2D"),
    Row(r"SDCascadeTimestepBlock\[\d\]/Linear\[\w+\]", ".*", _CONDITION, "mapper, mapper_sca, mapper_crp"),
    Row(r"SDCascadeTimestepBlock\[\d\]", ".*", "other norm embedding residual", "x * (1 + a) + b"),
    Row(r"SDCascadeAttnBlock\[\d\]/Sequential\[kv_mapper\]/\w+\[\d\]", ".*", "other embedding attention.*",
        "the condition, before its keys and values"),
    Row(r"SDCascadeAttnBlock\[\d\]", "cat", "attention.* other", "its own keys beside the condition's"),
    Row(r"StableCascadeUNet\[\]/Sequential\[clf\]" + _IN, ".*", "logits other", "the last layers"),
    Row(r"StableCascadeUNet\[\]/Sequential\[embedding\]" + _IN, ".*", "embedding other", "the first layers"),
    Row(r"StableCascadeUNet\[\]/Linear\[clip_\w+_mapper\]", ".*", "embedding other", "of conditions"),
    Row(r"StableCascadeUNet\[\]", ".*", "embedding other", "times"),
    Row(r"UpDownBlock2d\[\d\]" + _IN, ".*", "other residual", "as Downsample2D"),
    # diffusers/models/transformers/transformer_flux2.py
    Row(r"Flux2FeedForward\[\w+\]/Linear\[linear_in\]", ".*", _GATED, "halves"),
    Row(r"Flux2FeedForward\[\w+\]/Linear\[linear_out\]", ".*", "mlp.down", "Flux2FeedForward"),
    Row(r"Flux2SwiGLU\[\w+\]" + _IN, ".*", "mlp.activation mlp.other", "Flux2SwiGLU"),
    Row(r"Flux2ParallelSelfAttention\[attn\]/Linear\[to_qkv_mlp_proj\]", ".*", f"attention.qkv {_GATED}",
        "both as one"),
    Row(r"Flux2ParallelSelfAttention\[attn\]/Linear\[to_out\]", ".*", "attention.output mlp.down",
        "both as one"),
    Row(r"Flux2ParallelSelfAttention\[attn\]", "cat", "attention.* mlp.other", "both results side by side"),
    Row(r"Flux2Modulation\[\w+\]" + _IN, ".*", _CONDITION, "Flux2Modulation"),
    Row(r"Flux2PosEmbed\[\w+\]", ".*", "attention.rope embedding", "as FluxPosEmbed"),
    # diffusers/models/transformers/transformer_qwenimage21.py
    Row(r"QwenImage21SwiGLUFeedForward\[\w+\]/Linear\[gate_layer\]", ".*", "mlp.gate", "silu(gate) * proj"),
    Row(r"QwenImage21SwiGLUFeedForward\[\w+\]/Linear\[proj\]", ".*", "mlp.up", "silu(gate) * proj"),
    Row(r"QwenImage21SwiGLUFeedForward\[\w+\]/Linear\[out\]", ".*", "mlp.down", "silu(gate) * proj"),
    Row(r"QwenImage21SwiGLUFeedForward\[\w+\]" + _IN, ".*", "mlp.activation mlp.other", "silu(gate) * proj"),
    Row(r"Sequential\[modulation\]/\w+\[\d\]", ".*", _CONDITION, "one for all blocks"),
    Row(r"QwenImage21TransformerBlock\[\d\]", "where|tanh|__getitem__", _AROUND, "_modulate, gates"),
    Row(r"QwenImage21Rope\[\w+\]", ".*", "attention.rope", "QwenImage21Rope"),
    Row(r"QwenImage21Transformer2DModel\[\](/Linear\[img_in\])?", ".*", "embedding other",
        "tokens of pictures put between those of words"),
    # diffusers/models/transformers/transformer_easyanimate.py
    Row(r"EasyAnimateTransformer3DModel\[\]/Sequential\[text_proj\]/Linear\[1\]", ".*", "embedding other",
        "of words"),
    # diffusers/models/transformers/transformer_sana_wm.py
    Row(r"BidirectionalGDNUCPESinglePathLiteLA\[attn\]/Linear\[(qkv|[qkv]_proj_cam)\]", ".*",
        "attention.qkv ssm.projection", "of a gated delta net"),
    Row(r"BidirectionalGDNUCPESinglePathLiteLA\[attn\]/Linear\[(proj|out_proj_cam)\]", ".*",
        "attention.output ssm.projection", "of a gated delta net"),
    Row(r"BidirectionalGDNUCPESinglePathLiteLA\[attn\]/Linear\[(beta|gate)_proj\]", ".*",
        "attention.* ssm.projection", "how much is written and forgotten"),
    Row(r"BidirectionalGDNUCPESinglePathLiteLA\[attn\]/Linear\[output_gate\]", ".*",
        "attention.* ssm.projection", "of the result"),
    Row(r"SanaWMTemporalShortConvolution\[\w+\]", ".*", "attention.* ssm.conv other", "of keys, over frames"),
    Row(r"BidirectionalGDNUCPESinglePathLiteLA\[attn\]" + _IN, ".*", _GDN, "the recurrence"),
    Row(r"_SoftmaxUCPESinglePathLiteLA\[attn\]/Linear\[(qkv|[qkv]_proj_cam)\]", ".*", "attention.qkv", "all"),
    Row(r"_SoftmaxUCPESinglePathLiteLA\[attn\]/Linear\[(proj|out_proj_cam)\]", ".*", "attention.output",
        "all"),
    Row(r"_SoftmaxUCPESinglePathLiteLA\[attn\]" + _IN, ".*", "attention.*", "transforms by rays, gates"),
    Row(r"MultiHeadCrossAttention\[\w+\]/Linear\[(q|kv)_linear\]", ".*", "attention.qkv", "all"),
    Row(r"GLUMBConvTemp\[mlp\]" + _IN, ".*", "mlp.* other", "as GLUMBConv"),
    Row(r"SanaVideoMSCamCtrlBlock\[\d\]/Linear\[plucker_proj\]", ".*", "other embedding", "of the camera"),
    Row(r"SanaVideoMSCamCtrlBlock\[\d\]", "add=", "residual embedding", "plucker_emb, in each block"),
    Row(r"Sequential\[t_block\]/\w+\[\d\]", ".*", _CONDITION, "of the time, for all blocks"),
    Row(r"T2IFinalLayer\[\w+\]/Linear\[linear\]", ".*", "logits other", "the last layer"),
    Row(r"T2IFinalLayer\[\w+\]", ".*", "norm other", "shift and scale"),
    Row(r"SanaWMCaptionEmbedder\[\w+\]" + _IN, ".*", "embedding other", "of words"),
    Row(r"SanaWMTransformer3DModel\[\]", ".*", "other embedding", "rays of cameras"),
    # diffusers/models/transformers/consisid_transformer_3d.py
    Row(r"LocalFacialExtractor\[\w+\]/Sequential\[\d\]/Linear\[1\]", ".*", "mlp.up", "ConsisIDFeedForward"),
    Row(r"LocalFacialExtractor\[\w+\]/Sequential\[\d\]/Linear\[3\]", ".*", "mlp.down", "ConsisIDFeedForward"),
    Row(r"LocalFacialExtractor\[\w+\]/Sequential\[\d\]/GELU\[2\]", ".*", "mlp.activation mlp.other",
        "ConsisIDFeedForward"),
    Row(r"LocalFacialExtractor\[\w+\]/Sequential\[\w*mapping\w*\]/\w+\[\d\]", ".*", "embedding other",
        "of faces"),
    Row(r"LocalFacialExtractor\[\w+\]", "add=", "residual", "around attention and MLP"),
    Row(r"LocalFacialExtractor\[\w+\]", "matmul", "other embedding logits", "proj_out"),
    Row(r"LocalFacialExtractor\[\w+\]", ".*", "embedding other", "queries beside what they ask"),
    Row(r"ConsisIDTransformer3DModel\[\]", "add=|mul", "residual other attention.other", "of faces"),
    # diffusers: transformer_cogview4.py, transformer_cogview3plus.py
    Row(r"CogView4Transformer2DModel\[\]", "silu", _CONDITION, "before every block's"),
    Row(r"CogView3PlusAdaLayerNormZeroTextImage\[\w+\]", ".*", "norm other", "normalization.py"),
    Row(r"CogView3PlusTransformer2DModel\[\]", "einsum", "other logits", "unpatchify"),
    # diffusers/models/transformers/transformer_cosmos.py
    Row(r"CosmosAdaLayerNorm(Zero)?\[\w+\]/Linear\[linear_2\]", ".*", _CONDITION, "of low rank, as linear_1"),
    Row(r"CosmosLearnablePositionalEmbed\[\w+\]", ".*", "embedding other", "of positions"),
    Row(r"CosmosTransformerBlock\[\d\]", "add=", "residual embedding", "extra_pos_emb, in each block"),
    Row(r"CosmosTransformer3DModel\[\]", ".*", "embedding other", "the padding mask, as a channel"),
    # diffusers/models/transformers/transformer_bria_fibo2.py
    Row(r"Sequential\[adaLN_modulation\]/\w+\[\d\]", ".*", _CONDITION, "blocks, FinalLayer"),
    Row(r"BriaFibo2TransformerBlock\[\d\]", "tanh|where|__eq__", _AROUND, "select_per_token, gates"),
    Row(r"FinalLayer\[\w+\]/Linear\[linear\]", ".*", "logits other", "FinalLayer"),
    Row(r"FinalLayer\[\w+\]", ".*", "norm other", "its scale"),
    Row(r"BriaFibo2Transformer2DModel\[\]", ".*", "attention.rope embedding other", "RopeEmbedder; tokens"),
    # diffusers/models/transformers/transformer_kandinsky6.py
    Row(r"Kandinsky6Attention\[\w+\]/Linear\[to_(query|key|value)\]", ".*", "attention.qkv", "all"),
    Row(r"Kandinsky6Attention\[\w+\]/Linear\[out_layer\]", ".*", "attention.output", "all"),
    Row(r"Kandinsky6Modulation\[\w+\]" + _IN, ".*", _CONDITION, "Kandinsky6Modulation"),
    Row(r"Kandinsky6RoPE[13]D\[\w+\]", ".*", "attention.rope", "Kandinsky6RoPE1D, Kandinsky6RoPE3D"),
    Row(r"Kandinsky6OutLayer(Audio)?\[\w+\]/Linear\[out_layer\]", ".*", "logits other", "the last layer"),
    Row(r"Kandinsky6OutLayer(Audio)?\[\w+\]", ".*", "norm other", "apply_scale_shift"),
    Row(r"Kandinsky6\w+Block\[\d\]", "float|to|type_as|chunk", _AROUND, "apply_scale_shift, apply_gate_sum"),
    Row(r"Kandinsky6Transformer3DModel\[\]", ".*", "embedding other", "time and words as one condition"),
)  # fmt: skip
_FIRST = ("cross_entropy", "mse_loss", "scaled_dot_product_attention", "dropout", *_NORMS)
#: Normalizations as they are anywhere.
_PLAIN = re.compile(r"(FP32)?LayerNorm|RMSNorm|BatchNorm\w*(?<!Act2d)")
_LORA = re.compile(r"^LoRALinear$")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other list."""
    if place.classes and function not in _FIRST and not _PLAIN.fullmatch(place.classes[-1]):
        at = place.within(_LORA)
        if at >= 0:
            return _adapted((_ADAPTED | {"k_proj": "attention.qkv"})[place.names[at]], function)
        if found := row_of(_ROWS, place, function, equal=equal):
            return found
    return truth.truth_of(place, function, weighted=weighted, equal=equal)
