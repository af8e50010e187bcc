"""What each piece of the models of ``repos.py`` is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. Some call a
module's forward by its name (llama2.c, BERT-pytorch, lists of DINOv3): it is not around what runs in it. The
cell of xLSTM is a state with decay, in its parallel form: attention by its products. What convolves in the
conformer is none of a transformer's own parts: "other".
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.clones_truth import _ACT, _ANY, _BIAS, _MASK, _PRODUCT, _ROUTES, _SENDS, _STOCHASTIC
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.truth import _CONVOLUTIONS, _NORMS, _in_attention

_ROTATES = "attention.rope attention.other"
_SCALE = "residual attention.other mlp.other other"
#: A module that attends, and what holds a product in it.
_ATTENDS = r"\w*(Attention|CustomAttn)\[\w+\]/\w+"
_MODELS = (
    r"(Transformer|OLMo|GPT|LLaMA|MiniMindForCausalLM|MiniMindModel|GPTModel|Qwen3Model|Llama|GeneralGPTModel"
    r"|xLSTMLMModel|ESMC|DualARTransformer)\[(module|model|)\]"
)
_FEED_FORWARDS = (
    (r"SwiGLUTorch\[feed_forward\]", "w12", None, "w3", "open_lm/model.py: chunks"),
    (r"OLMoSequentialBlock\[\d\]", "ff_proj", None, "ff_out", "olmo/model.py: chunks"),
    (r"Block\[\d\]", "c_fc", "", "c_proj", "mingpt/model.py: mlpf"),
    (r"TransformerBlock\[\d\]", "w3", "w1", "w2", "llama2.c: model.py, forward by its name"),
    (r"MLP\[mlp\]", "c_fc", "c_fc2", "c_proj", "train_llama3.py"),
    (r"(FeedForward|MLP)\[mlp\]", "up_proj", "gate_proj", "down_proj", "minimind; picotron"),
    (r"FeedForward\[ff\]/Sequential\[layers\]", "0", "", "2", "llms_from_scratch/ch04.py"),
    (r"FeedForward\[ff\]", "fc2", "fc1", "fc3", "llms_from_scratch/qwen3.py"),
    (r"SwiGLU\[mlp\]", "gate_up_proj", None, "down_proj", "TinyRecursiveModels: layers.py, chunks"),
    (r"PositionwiseFeedForward\[feed_forward\]", "w_1", "", "w_2", "bert_pytorch: feed_forward.py"),
    (r"FeedForwardNetwork\[ffn\]", "proj_1", None, "proj_2", "corenet: general_gpt.py, chunks"),
    (r"(Mlp\[mlp\]|SelfAttentionBlock\[\d\])", "fc1", "", "fc2", "dinov2; dinov3, lists; VideoMAE; beit2"),
    (r"FeedForward\[feed_forward\]", "w3", "w1", "w2", "LlamaGen; fish-speech"),
    (r"SwiGLUFFN\[mlp\]", "w12", None, "w3", "LightningDiT: swiglu_ffn.py, chunks"),
    (r"WanAttentionBlock\[\d\]/Sequential\[ffn\]", "0", "", "2", "wan/modules/model.py"),
    (r"FeedForwardModule\[module\]/Sequential\[sequential\]/Linear\[1\]", "linear", "", "", "conformer"),
    (r"FeedForwardModule\[module\]/Sequential\[sequential\]/Linear\[4\]", "", "", "linear", "conformer"),
    (r"Transformer\[\d\]", "ff0", "", "ff1", "timesfm/torch/transformer.py"),
    (r"UnifiedTransformerBlock\[\d\]/Sequential\[ffn\]", "1", None, "3", "esm/layers/blocks.py: halves"),
    (r"TransformerDecoderLayer\[\d\]", "linear1", "", "linear2", "torch.nn"),
)
_ROWS = (
    # conditions and embeddings that hold an MLP
    Row(r"(CaptionEmbedder|TimestepEmbedder|LabelEmbedder|PatchEmbed|BERTEmbedding)\[\w+\]" + _IN, _ANY,
        "embedding other", "PixArt_blocks.py; lightningdit.py; gpt.py; embedding/bert.py"),
    Row(r"Sequential\[(adaLN_modulation|t_block|time_projection)\]/\w+\[\d\]", _ANY, _CONDITION, "times"),
    Row(r"Sequential\[(text|time)_embedding\]/\w+\[\d\]", _ANY, "embedding other", "wan/modules/model.py"),
    # attention, in all of them
    Row(r"(RotaryWithCast|RotaryEmbedding|RopePositionEmbedding|VisionRotaryEmbeddingFast|QueryKeyProjection"
        r"|RotaryPositionalEmbedding)\[\w+\]" + _IN, _ANY, "attention.rope", "their names"),
    Row(rf"{_ATTENDS}\[(c_attn|in_proj|w[qkv]|wqkv|[qkv]|[qkv]_proj|qkv|qkv_proj|W_(query|key|value)"
        r"|(q|kv)_linear)\]", _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(c_proj|out_proj|wo|o|o_proj|proj|out)\]", _PRODUCT, "attention.output",
        "their names"),
    Row(r"OLMoSequentialBlock\[\d\]/Linear\[att_proj\]", _PRODUCT, "attention.qkv", "olmo/model.py"),
    Row(r"OLMoSequentialBlock\[\d\]/Linear\[attn_out\]", _PRODUCT, "attention.output", "olmo/model.py"),
    Row(r"OLMoSequentialBlock\[\d\]", r"(?!add=).*", "attention.*", "olmo/model.py: heads, laid out"),
    Row(r"TransformerBlock\[\d\]/Linear\[w[qkv]\]", _PRODUCT, "attention.qkv", "llama2.c: model.py"),
    Row(r"TransformerBlock\[\d\]/Linear\[wo\]", _PRODUCT, "attention.output", "llama2.c: model.py"),
    Row(r"Transformer\[module\]/TransformerBlock\[\d\]", "silu", _ACT, "llama2.c: model.py"),
    Row(r"Transformer\[module\]/TransformerBlock\[\d\]", "mul", f"{_ROTATES} {_ACT}", "llama2.c: both"),
    Row(r"Transformer\[module\]/TransformerBlock\[\d\]", "add=", f"residual {_ROTATES}", "llama2.c: both"),
    Row(r"Transformer\[module\]/TransformerBlock\[\d\]", _ANY, "attention.*", "llama2.c: model.py"),
    Row(r"SublayerConnection\[input_sublayer\]/Linear\[\d\]", _PRODUCT, "attention.qkv", "multi_head.py"),
    Row(r"SublayerConnection\[input_sublayer\]/Linear\[output_linear\]", _PRODUCT, "attention.output",
        "multi_head.py"),
    Row(r"SublayerConnection\[input_sublayer\]", "contiguous|view|transpose", "attention.*",
        "multi_head.py: heads, laid out"),
    Row(r"SelfAttentionBlock\[\d\]/LinearKMaskedBias\[qkv\]", _PRODUCT, "attention.qkv", "dinov3"),
    Row(r"SelfAttentionBlock\[\d\]/LinearKMaskedBias\[qkv\]", _ANY, "attention.qkv attention.other", "bias"),
    Row(r"SelfAttentionBlock\[\d\]/Linear\[proj\]", _PRODUCT, "attention.output", "dinov3: attention.py"),
    Row(r"SelfAttentionBlock\[\d\]", "mul|neg|add=|chunk", _ROTATES, "dinov3: rope_apply"),
    Row(r"SelfAttentionBlock\[\d\]", "index_add", _STOCHASTIC, "dinov3: block.py"),
    Row(r"SelfAttentionBlock\[\d\]", "cat", f"{_ROTATES} norm residual mlp.other other", "dinov3: lists"),
    Row(r"SelfAttentionBlock\[\d\]", "__getitem__", f"{_ROTATES} {_STOCHASTIC} other", "dinov3: block.py"),
    Row(r"SelfAttentionBlock\[\d\]", _ANY, "attention.* other", "dinov3: attention.py"),
    Row(r"Linear\[(query|key|value)_proj\]/Linear\[linear\]", _PRODUCT, "attention.qkv", "conformer"),
    Row(r"Linear\[pos_proj\]/Linear\[linear\]", _PRODUCT, "attention.qkv attention.other", "conformer"),
    Row(r"Linear\[out_proj\]/Linear\[linear\]", _PRODUCT, "attention.output", "conformer: attention.py"),
    Row(r"RelPositionalEncoding\[\w+\]|MultiHeadedSelfAttentionModule\[\w+\]", _ANY, f"{_MASK} embedding",
        "conformer: places, for each sample"),
    Row(r"Sequential\[layernorm_qkv\]/Linear\[1\]", _PRODUCT, "attention.qkv", "esm/layers/attention.py"),
    Row(r"(RelativePositionBias|BinaryAttentionBias)\[\w+\]" + _IN, _ANY, f"{_BIAS} attention.softmax",
        "beit2: modeling_finetune.py; uni2ts: attn_bias.py"),
    Row(r"PerDimScale\[\w+\]", _ANY, "attention.*", "timesfm/torch/transformer.py"),
    # mixtures of experts, states
    Row(r"GatedLinearUnitFeedForward\[\d\]" + _IN, _ANY, "moe.experts", "uni2ts: ffn.py"),
    Row(r"MoEFeedForward\[ffn\]", "cdist|topk|softmax", _ROUTES, "uni2ts: ffn.py"),
    Row(r"MoEFeedForward\[ffn\]", _ANY, _SENDS, "uni2ts: ffn.py"),
    Row(r"mLSTMLayer\[xlstm\]/Linear\[proj_(up|down)\]", _ANY, "ssm.projection", "blocks/mlstm/layer.py"),
    Row(r"mLSTMLayer\[xlstm\]/LinearHeadwiseExpand\[\w+\]", _ANY, "ssm.projection ssm.scan attention.qkv",
        "blocks/mlstm/layer.py: q, k, v of blocks of four"),
    Row(r"mLSTMLayer\[xlstm\]/CausalConv1d\[conv1d\]" + _IN, _ANY, "ssm.conv", "components/conv.py"),
    Row(r"mLSTMLayer\[xlstm\]/SiLU\[\w+\]", _ANY, "ssm.scan ssm.conv ssm.projection", "layer.py"),
    Row(r"mLSTMCell\[mlstm_cell\]/Linear\[[if]gate\]", _ANY, "ssm.projection ssm.scan", "cell.py"),
    Row(r"mLSTMCell\[mlstm_cell\]" + _IN, _ANY, "ssm.scan attention.*", "cell.py; backends.py"),
    Row(r"mLSTMLayer\[xlstm\]", _ANY, "ssm.scan ssm.conv ssm.projection", "layer.py: skip and gate"),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT),
    Row(r"(SwiGLUTorch|FeedForward|MLP|SwiGLU|PositionwiseFeedForward|FeedForwardNetwork|Mlp|SwiGLUFFN)\[\w+\]"
        r"(/Sequential\[layers\])?(/(\w*GELU|SiLU\w*|Swish)\[\w+\])?", _ANY, _ACT, "all"),
    Row(r"(Block|OLMoSequentialBlock|SelfAttentionBlock|Transformer|Sequential\[ffn\])(\[\d\])?"
        r"/(NewGELU|GELU|SiLU|SwiGLU)\[\w+\]", _ANY, _ACT, "mingpt; olmo; dinov3; timesfm; wan; esm"),
    Row(r"FeedForwardModule\[module\]/Sequential\[sequential\]/Swish\[2\]", _ANY, _ACT, "conformer"),
    Row(r"TransformerDecoderLayer\[\d\]", "gelu", _ACT, "torch.nn"),
    # what is no part of a transformer, and what is around attention and MLP
    Row(r"ConformerConvModule\[module\]" + _IN, _ANY, "other", "conformer: convolution.py"),
    Row(r"PackedStdScaler\[scaler\]", _ANY, "other norm embedding", "uni2ts: packed_scaler.py"),
    Row(r"TinyRecursiveReasoningModel_ACTV1Block\[\d\]", r"(?!add=).*", "norm", "trm: layers.py, rms_norm"),
    Row(r"TinyRecursiveReasoningModel_ACTV1(ReasoningModule|_Inner)\[\w+\]", "add=",
        "residual embedding other", "trm.py: what is injected"),
    Row(r"TinyRecursiveReasoningModel_ACTV1(_Inner)?\[\w+\]", _ANY, "embedding other loss logits",
        "trm.py: states, and when to halt"),
    Row(r"(NestedTensorBlock|Block)\[\d\]", r"mul|__rmul__", _SCALE, "beit2: gamma"),
    Row(r"LayerScale\[\w+\]", _ANY, _SCALE, "dinov2; dinov3"),
    Row(r"NestedTensorBlock\[\d\]", r"(?!add=).*", f"{_STOCHASTIC} other", "dinov2: block.py"),
    Row(r"DropPath\[\w+\]", _ANY, _STOCHASTIC, "stochastic depth"),
    Row(r"(PixArtBlock|LightningDiTBlock|WanAttentionBlock)\[\d\]", r"(?!add=).*", f"{_AROUND} embedding",
        "shift, scale and gate"),
    Row(r"UnifiedTransformerBlock\[\d\]", "div", _SCALE, "esm/layers/blocks.py"),
    Row(r"ResidualConnectionModule\[\d\]", "mul", _SCALE, "conformer: modules.py"),
    # heads
    Row(r"(Linear\[(output|lm_head|out_head|fast_output)\]|OLMo\[\]/Linear\[ff_out\]|FinalProjection\[\w+\]"
        r"|(MaskedLanguageModel|NextSentencePrediction)\[\w+\]/Linear\[linear\]|CastedLinear\[lm_head\]"
        r"|Linear\[fc\]/Linear\[linear\])", _PRODUCT, "logits", "their names"),
    Row(r"DINOHead\[\w+\]/Linear\[last_layer\]|Sequential\[sequence_head\]/Linear\[3\]", _PRODUCT, "logits",
        "dino_head.py; esm: regression_head.py"),
    Row(_MODELS, "linear", "logits", "corenet; fish-speech: tied"),
    Row(r"LogSoftmax\[softmax\]|Conformer\[\]", _ANY, "loss logits", "bert_pytorch/model/language_model.py"),
    Row(r"(\w*FinalLayer\[\w+\]|Head\[head\])/Linear\[(linear|head)\]", _PRODUCT, "logits other", "the last"),
    Row(r"(\w*FinalLayer|Head)\[\w+\]", _ANY, "norm other logits", "shift and scale"),
    Row(r"DINOHead\[\w+\]" + _IN, r"_weight_norm\w*", "logits norm", "as elsewhere: it normalizes"),
    Row(r"(DINOHead\[\w+\]|Sequential\[sequence_head\])" + _IN, _ANY, "logits other mlp.*", "heads"),
    Row(r"(CastedLinear\[q_head\]|Linear\[head\]|ResidualBlock\[output_projection_\w+\]"
        r"|\w+\[param_proj\])" + _IN, _ANY, "logits other", "trm.py; VideoMAE; policy; timesfm; uni2ts"),
    # embeddings
    Row(r"(\w*Embed(ding|der)|SinusoidalPosEmb|Conv3d)\[\w*\]" + _IN, _ANY, "embedding other", "their names"),
    Row(r"(ResidualBlock\[tokenizer\]|(MultiInSizeLinear|FeatLinear)\[\w+\])" + _IN, _ANY,
        "embedding other mlp.* residual", "timesfm: dense.py; uni2ts: an MLP with a product beside"),
    Row(r"(Conv2dSubampling\[\w+\]|Sequential\[input_projection\]"
        r"|Linear\[(encoder_to_decoder|input_emb|cond_obs_emb)\])"
        + _IN, _ANY, "embedding other", "the first layers"),
    Row(r"TransformerForDiffusion\[\]/Sequential\[encoder\]/\w+\[\d\]", _ANY, "embedding other mlp.*",
        "transformer_for_diffusion.py: of the condition"),
    # what is left of whole models
    Row(r"(DINOLoss|ACTLossHead)\[\]", _ANY, "loss", "dinov2; dinov3; trm"),
    Row(r"DualARTransformer\[\]", _ANY, "embedding other", "fish-speech: llama.py, codes"),
    Row(_MODELS, "float|view|reshape|contiguous|to|__getitem__", "logits loss", "what is given to the loss"),
    Row(_MODELS, "triu|ones|__eq__|eq", _MASK, "masks"),
    Row(_MODELS, "add", "embedding", "positions: mingpt/model.py; ch04.py"),
    Row(r"NextSentencePrediction\[\w+\]", "__getitem__", "logits other", "language_model.py"),
    Row(r"ESMC\[\]", "stack", "other logits", "esm/models/esmc.py: of all layers"),
    Row(_MODELS, _ANY, "embedding other logits loss", "positions, several tables, codes"),
    Row(r"(DinoVisionTransformer|\w*VisionTransformer\w*|PixArt|LightningDiT|WanModel|MoiraiMoEModule"
        r"|TransformerForDiffusion|TimesFM\w+)\[\w*\]", _ANY, "embedding other logits", "tokens, the result"),
    Row(r"(BERT|TransformerEncoder|TransformerDecoder)\[\w+\]", _ANY, _MASK, "masks"),
)  # fmt: skip
_ATTENTION = re.compile(r"(Attention|CustomAttn)$")
_PLAIN = re.compile(r"\w*(Layer|RMS|Group|Batch)Norm(1d)?")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return "loss"
    if function == "embedding":
        return "embedding"
    if found := settled(place, function, ("cross_entropy", "mse_loss", "nll_loss")):
        return found
    own = place.classes[-1]
    if function in _NORMS or _PLAIN.fullmatch(own):
        return {"BatchNorm1d": "norm other", "MultiHeadLayerNorm": "norm ssm.scan"}.get(own, "norm")
    if found := row_of(_ROWS, place, function, equal=equal):
        return found
    if place.within(_ATTENTION) >= 0:
        return _in_attention(function, seen=place.seen, weighted=weighted)
    if function in _CONVOLUTIONS:
        return "other embedding"
    return "residual" if equal else ""
