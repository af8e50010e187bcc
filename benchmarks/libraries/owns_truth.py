"""What each piece of the models of ``owns.py`` is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. A softmax that
is written out is attention by where it stands. Convolutions around attention and what copies words are none
of a transformer's own parts: "other".
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, row_of, settled
from benchmarks.libraries.truth import _NORMS, unlisted

_PRODUCT = "linear|einsum"
_HEAD = "logits other"
_BEFORE = "embedding other"
_SCALED = "residual attention.other mlp.other other"  # a layer's result by a weight of its own
_LOSSES = (
    "cross_entropy", "mse_loss", "l1_loss", "nll_loss", "ctc_loss", "binary_cross_entropy_with_logits",
)  # fmt: skip
#: A module that attends.
_ATTENDS = r"(\w*Attention(NoWeight)?|AttentionHead)\[\w+\]/\w+"
#: A feed-forward network: where its layers are held, its way up, its gate, its way down, its source.
_FEED_FORWARDS = (
    (r"Sequential\[mlp\]", "0", "", "2", "Vit-Pytorch; miniDiT; Whisper-From-Scratch"),
    (r"Transformer(En|De)coderLayer\[\w+\]", "linear1", "", "linear2", "torch.nn"),
    (r"PositionwiseFeedForward\[\w+\]", "(linear|layer)1", "", "(linear|layer)2", "their names"),
    (r"PositionWiseFFN\[ffn\]", "fc1", "", "fc2", "bert-from-scratch: ffn.py"),
    (r"FFNLayer\[\d\]", "input_layer", "", "output_layer", "few-shot-transformer-tts: modules.py"),
    (r"SwiGLU\[\w+\]", "w3", "w1", "w2", "cs336: model.py; SwiGLU.py"),
    (r"Mlp\[mlp\]", "fc1", "", "fc2", "timm: mlp.py"),
    (r"SwiGLUFeedForward\[ffn\]", "up_proj", "gate_proj", "down_proj", "efficient-dl-systems: swiglu.py"),
    (r"PositionWiseFCNetwork\[\d\]", "fc1", "", "fc2", "chess-transformers: modules.py"),
    (r"FeedForward\[ff\]", "fc2", "fc1", "fc3", "llm-profiling-guide: qwen3.py"),
    (r"BertFFN\[ffn\]/Sequential\[layers\]", "0", "", "3", "BERT-from-scratch: model.py"),
    (
        r"EnhancedTransformerBlock\[\d\]/Sequential\[feed_forward\]",
        "0",
        "",
        "3",
        "stable_char_transformer.py",
    ),
    (r"FeedForwardReZeroBlock\[\w+\]", "linear1", "", "linear2", "rezero_feed_forward.py"),
)
_ROWS = (
    # attention
    Row(r"(RotaryPositionalEmbedding|RoPE)\[rope\]", _ANY, "attention.rope", "their names"),
    Row(r"GroupedQueryAttention\[att\]/RMSNorm\[[qk]_norm\]", _ANY, "norm attention.other", "qwen3.py"),
    Row(rf"{_ATTENDS}\[(query|key|value|[qkv]_proj|[Ww]_?[QKVqkv]|W_(query|key|value)|(qkv|q|kv)_transform|qkv"
        r"|c_attn|cast_queries|cast_keys_values|(query|key)_projection)\]", _PRODUCT, "attention.qkv",
        "their names"),
    Row(rf"{_ATTENDS}\[([Ww]_?[oO]|final_proj|out|output_transform|output_proj|out_proj|proj|c_proj|cast_output"
        r"|linear)\]", _PRODUCT, "attention.output", "their names"),
    Row(r"MultiHeadAttention\[\d\]", "add=", "residual", "chess-transformers: modules.py"),
    Row(r"MultiHeadAttention\[\d\]", "clone", "attention.other residual", "chess-transformers"),
    Row(r"(MultiHeadAttention|FeedForward)ReZeroBlock\[\w+\]", "(__i)?add(__|_)?=", "residual", "rezero"),
    Row(r"(MultiHeadAttention|FeedForward)ReZeroBlock\[\w+\]", "mul", _SCALED, "rezero_*.py: alpha"),
    Row(r"EnhancedTransformerBlock\[\d\]", "mul", _SCALED, "stable_char_transformer.py: gammas"),
    Row(r"Transformer(En|De)coderLayer\[\d\]", "masked_fill_", "residual other", "rezero_transformer_*.py"),
    # MLPs
    *(Row(rf"{where}/\w+\[{up}\]", _PRODUCT, "mlp.up", source) for where, up, _, _, source in _FEED_FORWARDS),
    *(Row(rf"{where}/\w+\[{gate}\]", _PRODUCT, "mlp.gate", source)
      for where, _, gate, _, source in _FEED_FORWARDS if gate),
    *(Row(rf"{where}/\w+\[{down}\]", _PRODUCT, "mlp.down", source)
      for where, _, _, down, source in _FEED_FORWARDS),
    Row(r"PositionWiseFCNetwork\[\d\]", "add=", "residual", "chess-transformers: modules.py"),
    Row(r"PositionWiseFCNetwork\[\d\]", "clone", "residual mlp.other", "chess-transformers: modules.py"),
    *(Row(rf"{where}(/(GELU|ReLU|SiLU|Gelu)\[\w+\])?", "(?!.*=$).*", _ACT, source)
      for where, *_, source in _FEED_FORWARDS if "coderLayer" not in where),
    Row(r"Transformer(En|De)coderLayer\[\w+\]", "relu", _ACT, "torch.nn"),
    Row(r"Gelu\[gelu\]", _ANY, _ACT, "gelu.py: written out, with a sum"),
    # shift and scale
    Row(r"ConditionalNorm2d\[\w+\]/Linear\[to_gamma_beta\]", _ANY, _CONDITION, "miniDiT: dit.py"),
    Row(r"ConditionalNorm2d\[\w+\]", _ANY, _AROUND, "miniDiT: dit.py"),
    # what stands in front of layers
    Row(r"ImprovedPositionalEncoding\[\w+\]/Sequential\[position_ff\]/\w+\[\d\]", _ANY, f"{_BEFORE} mlp.*",
        "stable_char_transformer.py: an MLP of places"),
    Row(r"ImprovedPositionalEncoding\[\w+\]", _ANY, f"{_BEFORE} residual", "stable_char_transformer.py"),
    Row(r"(PatchEmbed(ding)?|PositionalEmbeeding|SinusoidalPosEmb|PositionalEncoding(2D)?|Embedding(s|Module)?"
        r"|ScaledPositionalEncoding|LinearWithPosEmbedding|Input_layer|BertEmbeddings|TokenEmbedding"
        r"|SegmentEmbedding|PositionEmbedding|(Fixed)?PosEmbedding|DecoderPrenet|BoardEncoder)\[\w+\]", _ANY,
        _BEFORE, "their names"),
    Row(r"(PatchEmbed(ding)?|SinusoidalPosEmb|LinearWithPosEmbedding|DecoderPrenet|Sequential\[time_mlp\])"
        r"(\[\w+\])?" + _IN, r"(?!layer_norm).*", _BEFORE, "their names"),
    Row(r"Linear\[(fc_in|ie|input_embedding|(speaker|language)_layer|language_embed)\]|Unfold\[\]", _ANY,
        _BEFORE, "the first layers"),
    Row(r"AudioEncoder\[encoder\](/Conv1d\[\w+\])?", _ANY, _BEFORE, "Whisper-From-Scratch: sound"),
    Row(r"DETR\[\]/(Sequential\[backbone\]" + _IN + r"|Conv2d\[input_proj\])", _ANY, f"{_BEFORE} residual",
        "a ResNet"),
    Row(r"ConvPool\[pool\]" + _IN, r"(?!layer_norm).*", _BEFORE, "nest.py: between levels"),
    Row(r"NestLevel\[\d\]", _ANY, _BEFORE, "nest.py: places, blocks of a map"),
    Row(r"Encoder\[encoder\]|TextDecoder\[decoder\]|MoveDecoder\[\w+\]", _ANY, _BEFORE, "places, voices"),
    Row(r"Transformer(En|De)coder\[\w+\]", "add=", "residual", "few-shot-transformer-tts: modules.py"),
    Row(r"Transformer(En|De)coder\[\w+\]", _ANY, f"{_BEFORE} attention.other logits", "modules.py: masks"),
    Row(r"DropPath\[\w+\]", _ANY, "dropout residual", "timm"),
    # heads
    Row(r"CopyGenerator\[generator\]", "matmul", "logits", "gec-with-copying: tied"),
    Row(r"CopyGenerator\[generator\](/Linear\[\w+\])?", _ANY, f"{_HEAD} loss", "gec-with-copying: copies"),
    Row(r"Linear\[(output|lm_head|head|out_head|output_projection|linear_module|output_layer|decoder|fc|linear"
        r"|class_embed)\]|Sequential\[classifier\]/Linear\[0\]|BertMLM\[\]/Sequential\[head\]/Linear\[3\]",
        _PRODUCT, "logits", "their names"),
    Row(r"Sequential\[(head|classifier|bbox_embed)\]/\w+\[\d\]|(MLMHead|BertPooler|NSPHead|Postnet"
        r"|SelectAdaptivePool2d)\[\w+\]" + _IN, r"(?!layer_norm).*", f"{_HEAD} loss", "around the last"),
    Row(r"Linear\[(recons_head|mel_net|stop_net|fc_out|encoder_linear|switch_layer)\]|Fold\[\]", _ANY, _HEAD,
        "last layers"),
    # what is left of whole models
    Row(r"BertForPreTraining\[\]|BaselineTransformer\[\]", _ANY, "loss logits", "their losses"),
    Row(r"(BertMLM|Tacotron|Decoder)\[\w*\]", _ANY, f"{_HEAD} loss embedding", "after the last layer"),
    Row(r"(Transformer\w*|DiT|DETR|LitImputer|CopyEncoderDecoder|Nest|Qwen3Model|EnhancedCharTransformer"
        r"|TokenDecoder|VisionTransformer|BertModel|ChessTransformer)\[\w*\]", r"(?!add=).*",
        f"{_MASK} embedding logits norm", "tokens, masks, places, the result"),
)  # fmt: skip
_ATTENTION = re.compile(r"(Attention(NoWeight)?|AttentionHead)$")
_PLAIN = re.compile(r"LayerNorm|RMSNorm|BatchNorm")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return "loss"
    if found := settled(place, function, _LOSSES):
        return found
    own = place.classes[-1]
    if re.fullmatch(r"BatchNorm\dd", own):
        return "norm other"
    if (function in _NORMS or _PLAIN.fullmatch(own)) and not place.names[-1].endswith(("q_norm", "k_norm")):
        return "norm"
    found = row_of(_ROWS, place, function, equal=equal)
    return found or unlisted(place, function, _ATTENTION, weighted=weighted, equal=equal)
