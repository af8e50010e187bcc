"""What each piece of the models of ``originals.py`` is for, by their own names of classes and attributes.

Rows as in ``more_truth.py``: the end of a place, the function, the truth and the source. They were
written from the sources before any recording was attributed.
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.more_truth import Row, row_of
from benchmarks.libraries.truth import _BATCHED, _CONVOLUTIONS, _FUSED, _GATED, _LINEAR, _NORMS, _in_attention

_IN = r"(/.*)?"
_ANY = ".*"
_PRODUCT = r"linear|addmm|matmul|mm|__matmul__"
#: Products, by the class around and the attribute.
_ATTENDS = r"(\w*Attention|SABlock|LocalMHA)\[[^]]*\](/Sequential\[\w+\])?/\w+"
_ROWS = (
    Row(r"\w*Rotary\w*\[\w*\]|FixedPositionalEmbedding\[\w*\]", _ANY, "attention.rope embedding",
        "their names"),
    Row(r"(TextDecoder|PerceiverIO|MEGABYTE|Linformer\w*|PerformerLM|LMHead|LocalTransformer|\w*)\[\w*\]/\w+"
        r"\[(to_logits|logits|classification_head|head)\]" + _IN, _ANY, "logits other norm", "their names"),
    Row(r"Sequential\[(to_logits|classification_head)\]" + _IN, _ANY, "logits other norm", "their names"),
    # attention, in all of them
    Row(rf"{_ATTENDS}\[(to_q|to_k|to_v|to_kv|to_qkv|qkv|[qkv]_proj|query|key|value|w_[qkv]|emb_to_\w+)\]",
        _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(to_out|out_proj|proj|out|w_out)\]", _PRODUCT, "attention.output", "their names"),
    Row(r"ParallelTransformerBlock\[\w*\]/\w+\[fused_attn_ff_proj\]", _PRODUCT,
        f"attention.qkv {_GATED}", "palm_pytorch.py, coca_pytorch.py: both as one"),
    Row(r"ParallelTransformerBlock\[\w*\]/\w+\[attn_out\]", _PRODUCT, "attention.output", "palm_pytorch.py"),
    Row(r"(Parallel\w+|CrossAttention)\[\w*\]/Sequential\[ff(_out)?\]/Linear\[[12]\]", _PRODUCT, "mlp.down",
        "palm_pytorch.py: ff_out; coca_pytorch.py: ff of CrossAttention, [0] is the way up"),
    Row(r"CrossAttention\[\w*\]/Sequential\[ff\]/Linear\[0\]", _PRODUCT, _GATED, "coca_pytorch.py"),
    Row(r"(Parallel\w+|CrossAttention)\[\w*\]/Sequential\[ff(_out)?\]" + _IN, _ANY,
        "mlp.activation mlp.other",
        "coca_pytorch.py"),
    # MLPs
    Row(r"ResidualAttentionBlock\[\w*\]/Sequential\[mlp\]/Linear\[(0|c_fc)\]", _PRODUCT, "mlp.up",
        "whisper/model.py; clip/model.py"),
    Row(r"ResidualAttentionBlock\[\w*\]/Sequential\[mlp\]/Linear\[(2|c_proj)\]", _PRODUCT, "mlp.down",
        "both"),
    Row(r"Sequential\[mlp\]" + _IN, _ANY, "mlp.activation mlp.other", "both"),
    Row(r"(TransformerLayer|FeedForwardNetwork)\[\w*\]/Linear\[fc1\]", _PRODUCT, "mlp.up", "esm/modules.py"),
    Row(r"(TransformerLayer|FeedForwardNetwork)\[\w*\]/Linear\[fc2\]", _PRODUCT, "mlp.down",
        "esm/modules.py"),
    Row(r"MLPBlock\[\w*\]/Linear\[lin(ear)?1\]", _PRODUCT, "mlp.up",
        "segment_anything: common.py; monai: mlp.py"),
    Row(r"MLPBlock\[\w*\]/Linear\[lin(ear)?2\]", _PRODUCT, "mlp.down", "both"),
    Row(r"Transformer(En|De)coderLayer\[\w*\]/Linear\[linear1\]", _PRODUCT, "mlp.up", "torch.nn"),
    Row(r"Transformer(En|De)coderLayer\[\w*\]/Linear\[linear2\]", _PRODUCT, "mlp.down", "torch.nn"),
    Row(r"_FeedForwardModule\[\w*\]/Sequential\[\w*\]/Linear\[1\]", _PRODUCT, "mlp.up", "conformer.py"),
    Row(r"_FeedForwardModule\[\w*\]/Sequential\[\w*\]/Linear\[4\]", _PRODUCT, "mlp.down", "conformer.py"),
    Row(r"Sequential\[pos_ff\]/Linear\[1\]", _PRODUCT, "mlp.up", "torchaudio: emformer.py"),
    Row(r"Sequential\[pos_ff\]/Linear\[4\]", _PRODUCT, "mlp.down", "torchaudio: emformer.py"),
    Row(r"FeedForward\[feed_forward\]/Linear\[w1\]", _PRODUCT, "mlp.gate", "olmo_core/nn/feed_forward.py"),
    Row(r"FeedForward\[feed_forward\]/Linear\[w3\]", _PRODUCT, "mlp.up", "olmo_core/nn/feed_forward.py"),
    Row(r"FeedForward\[\w*\]/Linear\[w2\]", _PRODUCT, "mlp.down", "olmo_core; performer_pytorch; linformer"),
    Row(r"FeedForward\[\w*\]/Linear\[w1\]", _PRODUCT, "mlp.up", "performer_pytorch; linformer"),
    Row(r"(PerceiverIO|PreNorm)\[\w*\]/FeedForward\[fn\]/Sequential\[net\]/Linear\[0\]", _PRODUCT,
        "mlp.up mlp.gate", "perceiver_io.py: GEGLU; conformer.py: Swish"),
    Row(r"FeedForward\[fn\]/Sequential\[net\]/Linear\[[23]\]", _PRODUCT, "mlp.down", "both"),
    Row(r"(Transformer|LocalTransformer)\[\w*\]/Sequential\[[\w.]*\]/Linear\[[01]\]", _PRODUCT,
        "mlp.up mlp.gate", "megabyte.py, ft_transformer.py, local_attention/transformer.py: FeedForward()"),
    Row(r"(Transformer|LocalTransformer)\[\w*\]/Sequential\[[\w.]*\]/Linear\[[34]\]", _PRODUCT, "mlp.down",
        "all of them"),
    Row(r"(_FeedForwardModule|FeedForward(Network)?|MLPBlock)\[\w*\]" + _IN, _ANY, "mlp.activation mlp.other",
        "all of them"),
    Row(r"Sequential\[pos_ff\]" + _IN, _ANY, "mlp.activation mlp.other", "emformer.py"),
    Row(r"GEGLU\[\w*\]", _ANY, "mlp.activation mlp.other", "ft_transformer.py"),
    Row(r"Transformer\[\w*\]/Sequential\[[\w.]*\]/GELU\[\w*\]", _ANY, "mlp.activation mlp.other",
        "megabyte.py"),
    Row(r"TransformerLayer\[\w*\]", "gelu|mul|div|erf|add", "mlp.activation mlp.other residual",
        "esm/modules.py"),
    Row(r"Transformer(En|De)coderLayer\[\w*\]", "relu|gelu", "mlp.activation mlp.other", "torch.nn"),
    # heads and embeddings
    Row(r"LMHead\[lm_head\]/\w+\[w_out\]", _PRODUCT, "logits", "olmo_core/nn/lm_head.py"),
    Row(r"PerformerLM\[\w*\]/Linear\[to_out\]", _PRODUCT, "logits other", "performer_pytorch.py"),
    Row(r"RobertaLMHead\[lm_head\]" + _IN, _ANY, "logits other norm", "esm/modules.py"),
    Row(r"TextDecoder\[\w*\]", _PRODUCT, "logits", "whisper/model.py: x @ token_embedding.T"),
    Row(r"PaLM|Sequential", _PRODUCT, "logits", "palm_pytorch.py: tied"),
    Row(r"Sequential\[\]/Linear\[\w+\]", _PRODUCT, "logits", "of the last in a row"),
    Row(r"CoCa\[\w*\](/EmbedToLatents\[\w*\]/Linear\[\w*\])?", _ANY, "loss logits embedding other",
        "coca_pytorch.py"),
    Row(r"CLIP\[\w*\](/VisionTransformer\[visual\])?", _PRODUCT, "logits other embedding", "clip/model.py"),
    Row(r"ContactPredictionHead\[\w*\]" + _IN, _ANY, "logits other attention.*", "esm/modules.py"),
    Row(r"PatchMerging(V2)?\[\w*\]/Linear\[reduction\]", _PRODUCT, "embedding other", "swin_unetr.py"),
    Row(r"_?Patch\w*\[\w*\]" + _IN, _ANY, "embedding other", "all of them"),
    Row(r"MEGABYTE\[\w*\]/Sequential\[[\w.]*\]" + _IN, _ANY, "embedding other norm", "to and from patches"),
    Row(r"\w*(Embed\w*|Embedder|NumericalEmbedder)\[[\w.]*\]" + _IN, _ANY, "embedding other", "their names"),
    # state between and convolutions
    Row(r"(ConformerConvModule|_ConvolutionModule)\[\w*\]" + _IN, _ANY, "other norm residual", "conformer"),
    Row(r"(Unetr\w*|Unet\w*|UnetOutBlock)\[\w*\]" + _IN, _ANY, "other norm residual logits",
        "monai: unetr_block.py"),
    Row(r"\w*HyperConnections?\w*\[[\w.]*\](/RMSNorm\[\w*\])?", _ANY, "residual other norm",
        "hyper_connections"),
    Row(r"DynamicPositionBias\[\w*\]" + _IN, _ANY, "attention.other embedding mlp.* other",
        "local_attention"),
    Row(r"AudioEncoder\[\w*\](/Conv1d\[\w*\])?", "gelu|conv1d|permute", "embedding other",
        "whisper/model.py"),
)  # fmt: skip
_ATTENTION = re.compile(r"(\w*Attention|SABlock|LocalMHA|FastAttention|ParallelTransformerBlock)$")
_PLAIN = re.compile(
    r"(ESM1b?|ESM1)?LayerNorm(2d)?|RMSNorm|FusedRMSNorm|InstanceNorm\w*|BatchNorm\w*|GroupNorm"
)
_LAYER = re.compile(
    r"(Block|Layer|Transformer|Performer|Linformer|Residual\w*|PerceiverIO|ResidualStream|PaLM)$"
)
_OF_FEATURES = re.compile("^(FastAttention|LinformerSelfAttention)$")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if function in ("cross_entropy", "mse_loss") or not place.classes:
        return "loss"
    if function == "scaled_dot_product_attention":
        return _FUSED
    if function == "dropout":
        return "dropout"
    own = place.classes[-1]
    if function in _NORMS or function == "instance_norm" or _PLAIN.fullmatch(own):
        return (
            "norm other" if own.startswith(("Batch", "Group", "Instance")) or own.endswith("2d") else "norm"
        )
    if found := row_of(_ROWS, place, function, equal=False):
        return found
    if equal and own == "ParallelTransformerBlock":
        return "residual attention.* mlp.*"  # of both ways' results
    if place.within(_ATTENTION) >= 0:
        if function in _BATCHED and place.within(_OF_FEATURES) >= 0:
            return "attention.*"  # of features, or of a sequence made shorter
        if function in _LINEAR and weighted and own.endswith("Linear"):
            return "attention.*"
        return _in_attention(function, seen=place.seen, weighted=weighted)
    if function in _CONVOLUTIONS:
        return "other embedding"
    if equal and _LAYER.search(own):
        return "residual other"
    return ""
