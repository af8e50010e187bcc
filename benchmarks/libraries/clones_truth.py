"""What each piece of the models of ``clones.py`` is for, by their own names of classes and attributes.

Rows as in ``more_truth.py``: the end of a place, the function (``add=`` adds two tensors of one shape), the
truth and the source. They were written from the sources before any recording was attributed. Autoformer's
correlation of series is attention by where it stands; Hyena's long convolutions, outer products, triangular
updates and moving averages are none of a transformer's own parts: "other".
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.truth import _CONVOLUTIONS, _NORMS, _in_attention

_ANY = ".*"
_PRODUCT = "linear|conv[12]d"
_ACT = "mlp.activation mlp.other"
_SUM = r"add_?=?"
_ROUTES = "moe.router moe.dispatch"
_SENDS = "moe.dispatch moe.experts moe.router"
_BIAS = "attention.other embedding mlp.* other"
_MASK = "attention.other other"
_TRIANGLE = "other attention.*"
_STOCHASTIC = "dropout residual"
#: A module that attends, and what holds the product in it.
_ATTENDS = r"(\w*Attention|AttentionBlock|AutoCorrelationLayer|MLA|DoubleStreamBlock)\[\w*\]/\w+"
_FEED_FORWARDS = (
    (r"MLP\[mlp\]", "c_fc", "", "c_proj", "nanoGPT: model.py; nanochat: gpt.py"),
    (r"(Mlp|MLP|FFN)\[\w+\]", "fc1", "", "fc2", "all that have an Mlp or FFN"),
    (r"Transformer(En|De)coderLayer\[\d\]", "linear1", "", "linear2", "detr: transformer.py; torch.nn"),
    (r"(MSA|Pair)Transition\[\w+\]", "linear_1", "", "linear_2", "openfold: evoformer.py"),
    (r"PositionwiseFeedForward\[\w+\]", "w_1", "", "w_2", "transformer/SubLayers.py"),
    (r"MPTMLP\[ffn\]", "up_proj", "", "down_proj", "llmfoundry/models/layers/ffn.py"),
    (r"Sequential\[(img|txt)_mlp\]", "0", "", "2", "flux/modules/layers.py"),
    (r"ResBlock\[\d\]/Sequential\[mlp\]", "0", "", "2", "mar: models/diffloss.py"),
    (r"(En|De)coderLayer\[\d\]", "conv1", "", "conv2", "Autoformer_EncDec.py: 1 x 1"),
    (r"FeedForward\[ff\](/\w+\[\w+\])*", "proj", None, "2", "ldm/modules/attention.py: GEGLU"),
)  # fmt: skip
_ROWS = (
    # attention, in all of them
    Row(r"RoPE2D\[\w+\]", _ANY, "attention.rope", "croco: pos_embed.py"),
    Row(r"(RotaryEmbedding|EmbedND)\[\w+\]", _ANY, "attention.rope embedding", "lingua; flux: their names"),
    Row(r"Sequential\[(\w+_level\d|latent|refinement)\]/TransformerBlock\[\d\]", "add=", "residual other",
        "restormer: of maps"),
    Row(r"TransformerBlock\[\d\]/Attention\[attn\]/Conv2d\[\w+\]", _ANY, "attention.* other",
        "restormer_arch.py"),
    Row(rf"{_ATTENDS}\[(c_attn|c_[qkv]|qkv|to_[qkv]|w[qkv]|Wqkv|(query|key|value)_projection|linear_[qkv]|wkv_a"
        r"|proj[qkv]|w_[qkv]s)\]", _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(c_proj|proj|proj_out|out_proj|out_projection|project_out|linear_o|wo|fc)\]", _PRODUCT,
        "attention.output", "their names"),
    Row(r"Sequential\[to_out\]/Linear\[0\]", _PRODUCT, "attention.output", "ldm/modules/attention.py"),
    Row(r"\w*Attention\w*\[\w+\]/Linear\[(ve_gate|linear_[gz]|linear)\]", _ANY, "attention.*",
        "nanochat: a gate of values; openfold: gates, biases of pairs"),
    Row(r"Sequential\[cpb_mlp\]/\w+\[\d\]", _ANY, _BIAS, "swin_transformer_v2.py: an MLP of distances"),
    Row(r"FeedForward\[ffn\]" + _IN, _ANY, "mlp.* other", "restormer_arch.py: convolutions"),
    Row(r"TransformerBlock\[\d\]/Attention\[attn\]", "matmul", "attention.*", "restormer: of channels"),
    Row(r"MultiScaleAttention\[attn\]/Conv3d\[pool_[qkv]\]", _ANY, "attention.* other",
        "slowfast/models/attention.py"),
    Row(r"(MLA\[attn\]|AutoCorrelation\[\w+\])", r"(?!softmax).*", "attention.*",
        "inference/model.py: the product with wkv_b, and scores and values; AutoCorrelation.py"),
    Row(r"AttentionBlock\[\d\]", "add=", "residual other", "guided_diffusion/unet.py: of maps"),
    Row(r"MultiHeadAttention\[\w+\]", "add_=", "residual", "transformer/SubLayers.py"),
    Row(r"SingleStreamBlock\[\d\]/Linear\[linear1\]", _ANY, "attention.qkv mlp.up", "flux: both as one"),
    Row(r"SingleStreamBlock\[\d\]/Linear\[linear2\]", _ANY, "attention.output mlp.down", "flux: both as one"),
    Row(r"SingleStreamBlock\[\d\]/GELU\[mlp_act\]", _ANY, _ACT, "flux/modules/layers.py"),
    Row(r"(Double|Single)StreamBlock\[\d\]", "add=", "residual attention.rope attention.other",
        "flux: math.py, rotations added, too"),
    Row(r"(Double|Single)StreamBlock\[\d\]", "mul|add", f"{_AROUND} attention.rope",
        "flux: shift, scale, gate, rotations"),
    Row(r"(Double|Single)StreamBlock\[\d\]", _ANY, "attention.* mlp.other other", "flux: both streams"),
    # mixtures of experts, states
    Row(r"Gate\[gate\]", "linear", "moe.router", "inference/model.py"),
    Row(r"Gate\[gate\]", _ANY, _ROUTES, "inference/model.py"),
    Row(r"Expert\[\d\](/\w+\[\w+\])?", _ANY, "moe.experts", "inference/model.py"),
    Row(r"MLP\[shared_experts\]/\w+\[w1\]", _ANY, "moe.experts mlp.gate", "inference/model.py"),
    Row(r"MLP\[shared_experts\]/\w+\[w3\]", _ANY, "moe.experts mlp.up", "inference/model.py"),
    Row(r"MLP\[shared_experts\]/\w+\[w2\]", _ANY, "moe.experts mlp.down", "inference/model.py"),
    Row(r"MLP\[shared_experts\]", _ANY, f"moe.experts {_ACT}", "inference/model.py"),
    Row(r"MoE\[ffn\]", "add", f"{_SENDS} residual", "inference/model.py: y + z"),
    Row(r"MoE\[ffn\]", _ANY, _SENDS, "inference/model.py"),
    Row(r"MambaBlock\[mixer\]/Linear\[(in|out)_proj\]", _ANY, "ssm.projection", "MambaSimple.py"),
    Row(r"MambaBlock\[mixer\]/Linear\[(x|dt)_proj\]", _ANY, "ssm.projection ssm.scan", "MambaSimple.py"),
    Row(r"MambaBlock\[mixer\]/Conv1d\[conv1d\]", _ANY, "ssm.conv", "MambaSimple.py"),
    Row(r"MambaBlock\[mixer\]", _ANY, "ssm.scan ssm.conv", "MambaSimple.py"),
    Row(r"HyenaOperator\[mixer\]" + _IN, _ANY, "other", "standalone_hyena.py"),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT),
    Row(r"(FeedForward\[feed_forward\]|MLP\[ffn\])/\w+\[w1\]", _ANY, "mlp.gate", "lingua; DeepSeek-V3"),
    Row(r"(FeedForward\[feed_forward\]|MLP\[ffn\])/\w+\[w3\]", _ANY, "mlp.up", "lingua; DeepSeek-V3"),
    Row(r"(FeedForward\[feed_forward\]|MLP\[ffn\])/\w+\[w2\]", _ANY, "mlp.down", "lingua; DeepSeek-V3"),
    Row(r"FeedForward\[ffn\]/Conv2d\[dwconv\]", _ANY, "mlp.other other", "restormer_arch.py"),
    Row(r"MLP\[bbox_embed\](/Linear\[\d\])?", _ANY, "logits other mlp.*", "detr.py: a head"),
    Row(r"PositionwiseFeedForward\[\w+\]", "add_=", "residual", "transformer/SubLayers.py"),
    Row(r"(Mlp|MLP|FFN|FeedForward|PositionwiseFeedForward|(MSA|Pair)Transition|MPTMLP|GEGLU)\[\w+\]"
        r"(/(GELU|ReLU|GEGLU|Sequential)\[\w+\])*", _ANY, _ACT, "all"),
    Row(r"(Sequential\[(img|txt)_mlp\]|ResBlock\[\d\]/Sequential\[mlp\])/\w+\[\d\]", _ANY, _ACT, "flux; mar"),
    Row(r"Transformer(En|De)coderLayer\[\d\]", "relu", _ACT, "detr: transformer.py; torch.nn"),
    Row(r"(En|De)coderLayer\[\d\]", r"gelu|transpose|permute", f"{_ACT} other", "Autoformer_EncDec.py"),
    # what is no part of a transformer
    Row(r"TriangleMultiplication\w+\[\w+\]" + _IN, _ANY, _TRIANGLE, "triangular_multiplicative_update.py"),
    Row(r"OuterProductMean\[\w+\]" + _IN, _ANY, "other", "openfold: outer_product_mean.py"),
    Row(r"series_decomp\[\w+\]" + _IN, _ANY, "other residual", "Autoformer_EncDec.py: moving averages"),
    Row(r"DecoderLayer\[\d\]/Conv1d\[projection\]", _ANY, "other logits", "Autoformer: of the trend"),
    Row(r"Decoder\[decoder\]|DecoderLayer\[0\]", _SUM, "residual other", "Autoformer_EncDec.py: trends, too"),
    Row(r"Sequential\[emb_layers\]/\w+\[\d\]", _ANY, _CONDITION, "unet.py; openaimodel.py: of the time"),
    Row(r"TimestepEmbedSequential\[\w+\]/ResBlock\[\d\]", "mul|add|type", "other norm", "unet.py"),
    Row(r"TimestepEmbedSequential\[\w+\]/(ResBlock|Downsample|Upsample)\[\d\]" + _IN, _ANY, "other residual",
        "unet.py; openaimodel.py"),
    Row(r"SpatialTransformer\[\d\]/Conv2d\[proj_in\]", _ANY, "embedding other", "ldm/modules/attention.py"),
    Row(r"SpatialTransformer\[\d\]/Conv2d\[proj_out\]", _ANY, "logits other", "ldm/modules/attention.py"),
    Row(r"SpatialTransformer\[\d\]", _ANY, "residual other", "ldm/modules/attention.py: of maps"),
    Row(r"UNetModel\[\]/Sequential\[time_embed\]/\w+\[\d\]", _ANY, "embedding other", "of the time"),
    Row(r"UNetModel\[\]/Sequential\[out\]/\w+\[\d\]", _ANY, "logits other", "unet.py: the last layers"),
    Row(r"UNetModel\[\]", "add|cat|type", "other residual embedding", "unet.py: skips, side by side; labels"),
    Row(r"UNetModel\[\]", _ANY, "embedding other", "unet.py: timestep_embedding"),
    Row(r"Bottleneck\[\d\](/\w+\[\w+\])*|IntermediateLayerGetter\[body\]/\w+\[\w+\]", _ANY,
        "other embedding residual", "torchvision: a ResNet"),
    Row(r"(Joiner|Backbone)\[\w+\]", _ANY, "other embedding attention.other", "backbone.py: masks of maps"),
    Row(r"DETR\[\]/Conv2d\[input_proj\]", _ANY, "embedding other", "detr.py"),
    Row(r"RSTB\[\d\]/Conv2d\[conv\]|SwinIR\[\]/Conv2d\[conv_after_body\]", _ANY, "other", "SwinIR"),
    Row(r"(SwinIR\[\]/)(Conv2d\[conv_last\]|(Sequential|Upsample)\[\w+\]/\w+\[\d\])", _ANY, "logits other",
        "network_swinir.py: of the picture"),
    Row(r"SwinIR\[\]", _ANY, "other residual embedding", "network_swinir.py: the mean, and around all"),
    Row(r"(Down|Up)sample\[\w+\]/Sequential\[body\]/\w+\[\d\]|Conv2d\[reduce_chan_level\d\]", _ANY,
        "other embedding", "restormer_arch.py"),
    Row(r"Restormer\[\]/Conv2d\[output\]", _ANY, "logits other", "restormer_arch.py"),
    Row(r"Restormer\[\]", _ANY, "other residual", "restormer_arch.py: skips, side by side"),
    Row(r"UViT\[\]/Block\[\d\](/Linear\[skip_linear\])?", "linear|cat", "other residual", "uvit.py: a skip"),
    # conditions, and what is around attention and MLP
    Row(r"(Sequential\[(adaLN_modulation|ada_lin)\]/\w+\[\d\]|Modulation\[\w+\](/Linear\[lin\])?)", _ANY,
        _CONDITION, "all"),
    Row(r"(DiTBlock|AdaLNSelfAttn|ResBlock)\[\d\]", r"(?!add=).*", _AROUND, "shift, scale and gate"),
    Row(r"(FinalLayer|LastLayer|AdaLNBeforeHead)\[\w+\]", _ANY, "norm other logits", "shift and scale"),
    Row(r"DropPath\[\w+\]|StochasticDepth\[\w+\]", _ANY, _STOCHASTIC, "stochastic depth"),
    Row(r"SwinTransformerBlock\[\d\]", r"(?!add=).*", _MASK, "windows, shifted"),
    Row(r"MultiScaleBlock\[\d\](/(Linear\[proj\]|MaxPool3d\[pool_skip\]))", _ANY, "other embedding residual",
        "slowfast: the shortcut where maps shrink"),
    Row(r"MultiScaleBlock\[\d\]", r"(?!add=).*", "other residual attention.other", "slowfast: the shortcut"),
    Row(r"DETR\[\].*/Transformer(En|De)coderLayer\[\d\]", "add=", "residual embedding attention.other",
        "detr: positions of queries and keys, too"),
    Row(r"(Block|PairStack|EvoformerBlock|MPTBlock)\[\w+\]", "to|transpose|__getitem__",
        "residual norm other", "safari; llmfoundry; openfold"),
    # heads
    Row(r"Linear\[(lm_head|head|trg_word_prj)\]|ColumnParallelLinear\[head\]|LMTransformer\[\]/Linear\[\d\]"
        r"|Decoder\[decoder\]/Linear\[projection\]|SwinTransformerV2\[\]/Linear\[head\]", _PRODUCT, "logits",
        "their names"),
    Row(r"SharedEmbedding\[wte\]", "linear", "logits", "llmfoundry: tied"),
    Row(r"MLPEmbedder\[\w+\]" + _IN, _ANY, "embedding other", "flux: of time, guidance and a vector"),
    Row(r"Linear\[(decoder_pred|predictor_proj|prediction_head|class_embed|out_layer)\]|UViT\[\]/Conv2d\["
        r"final_layer\]|(FinalLayer|LastLayer)\[\w+\]/Linear\[linear\]", _ANY, "logits other", "last layers"),
    Row(r"(TransformerBasicHead|ExprDecoder|MVCDecoder)\[\w+\]" + _IN, _ANY, "logits other", "heads"),
    Row(r"EvoformerStack\[\](/Linear\[linear\])?", _ANY, "logits other embedding", "openfold: single"),
    # embeddings
    Row(r"Linear\[smear_gate\]", _ANY, "embedding other residual", "nanochat: gpt.py"),
    Row(r"GPT\[\]/Embedding\[\d\]", _ANY, "embedding attention.other", "nanochat: gpt.py, of values"),
    Row(r"(\w*Embed(der|ding|3D|dings)?(_wo_pos)?|ParallelEmbedding|PatchUnEmbed|PositionEmbeddingSine"
        r"|PositionalEncoding|GeneEncoder|ContinuousValueEncoder)\[\w*\]" + _IN, _ANY, "embedding other",
        "their names"),
    Row(r"(VAR\[\]/Linear\[word_embed\]|Flux\[\]/Linear\[(img|txt)_in\]|Linear\[(z_proj|decoder_embed"
        r"|predictor_embed|input_proj|cond_embed)\])", _ANY, "embedding other", "the first layers"),
    Row(r"PatchMerging\[\w+\](/Linear\[reduction\])?", _ANY, "embedding other", "swin_transformer_v2.py"),
    # what is left of whole models
    Row(r"(SetCriterion\[\](/HungarianMatcher\[\])?|MaskedMSE\[\]|DiffLoss\[\w+\])", _ANY, "loss",
        "detr; croco; mar"),
    Row(r"SimpleMLPAdaLN\[net\]", _ANY, "embedding other", "mar: diffloss.py, the time and the condition"),
    Row(r"GPT\[\]", "float|div|tanh", "logits loss", "nanochat: gpt.py, softcap"),
    Row(r"GPT\[\]", "mul|sub|add=", "residual embedding logits loss other", "nanochat: smear, x0, backout"),
    Row(r"GPT\[\]", _ANY, "embedding other residual logits", "nanoGPT: positions; nanochat: smear"),
    Row(r"MaskedAutoencoderViT\[\]", "sub|pow|mean|mul|sum|div|einsum|reshape", "loss", "models_mae.py"),
    Row(r"(MaskedAutoencoderViT|MAR|CroCoNet|MViT|VisionTransformer|VisionTransformerPredictor)\[\w*\]", _ANY,
        "embedding other loss", "tokens that are seen, and places of the others; what is to be told"),
    Row(r"TransformerModel\[\]", "add=", "embedding other", "scgpt/model/model.py"),
    Row(r"TransformerModel\[\]", _ANY, "loss logits other", "scgpt/model/model.py: ECS"),
    Row(r"LMTransformer\[\]", _ANY, "loss logits", "lingua: cross_entropy"),
    Row(r"LMBackbone\[backbone\]", _ANY, "residual norm other", "safari: simple_lm.py"),
    Row(r"Model\[\]", _ANY, "other embedding logits norm residual", "Time-Series-Library: both ends"),
    Row(r"Transformer\[\]", "mul_", "logits loss", "transformer/Models.py: scale_prj; scaled, by either"),
    Row(r"(Transformer|TransformerEncoder|TransformerDecoder|MPTModel)\[\w*\]", _ANY,
        f"{_MASK} embedding logits", "masks, biases of distances"),
    Row(r"(DETR|DiT|UViT|VAR|Flux|MPTForCausalLM|SwinTransformerV2)\[\](/AdaptiveAvgPool1d\[avgpool\])?",
        _ANY, "embedding other logits attention.other", "tokens, positions, the result"),
)  # fmt: skip
_ATTENTION = re.compile(
    r"(\w*Attention|AttentionBlock|MSARowAttentionWithPairBias|AutoCorrelation(Layer)?|MLA)$"
)
_PLAIN = re.compile(
    r"(WithBias_|my_)?Layer[Nn]orm|(LP)?LayerNorm|RMSNorm|QKNorm|GroupNorm(32)?|FrozenBatchNorm2d"
)


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return "loss norm" if function == "layer_norm" else "loss"  # of V-JEPA's targets
    if found := settled(place, function, ("cross_entropy", "mse_loss", "l1_loss")):
        return found
    own = place.classes[-1]
    if function in _NORMS or _PLAIN.fullmatch(own):
        return "norm other" if own.startswith(("Group", "Frozen")) else "norm"
    if found := row_of(_ROWS, place, function, equal=equal):
        return found
    if place.within(_ATTENTION) >= 0:
        return _in_attention(function, seen=place.seen, weighted=weighted)
    if function in _CONVOLUTIONS:
        return "other embedding"
    return "residual" if equal else ""
