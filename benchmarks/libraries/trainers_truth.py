"""What each piece of the models of ``trainers.py`` is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. An adapter of
peft stands where the layer stands that it adapts, and is for what that is for. What is computed in no module
is of the training script (PARSeq and BEATs are called by methods, not as modules). UniFormer's first stages
aggregate by convolutions where others attend: "other", or attention by where they stand.
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK, _ROUTES, _SENDS, _STOCHASTIC
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.repos_truth import _ROTATES, _SCALE
from benchmarks.libraries.truth import _CONVOLUTIONS, _NORMS, _in_attention

_PRODUCT = "linear|addmm|conv[12]d"
#: A module that attends, and what holds a product in it.
_ATTENDS = r"\w*((?<!TwoStage)AttentionLayer|Attention)\[\w+\]/\w+"
_FEED_FORWARDS = (
    (r"LlamaMLP\[mlp\]", "up_proj", "gate_proj", "down_proj", "transformers: modeling_llama.py"),
    (r"T5DenseGatedActDense\[\w+\]", "wi_1", "wi_0", "wo", "transformers: modeling_t5.py"),
    (r"T5DenseActDense\[\w+\]", "wi", "", "wo", "transformers: modeling_t5.py"),
    (r"ViTMLP\[mlp\]", "fc1", "", "fc2", "transformers: modeling_vit.py"),
    (r"GPT2MLP\[mlp\]", "c_fc", "", "c_proj", "transformers: modeling_gpt2.py"),
    (r"OPTDecoderLayer\[\w+\]", "fc1", "", "fc2", "transformers: modeling_opt.py"),
    (r"MLP\[mlp\]", "c_fc2", "c_fc1", "c_proj", "lit_llama/model.py"),
    (r"GPT\[\]/Block\[\d\]", "c_fc", None, "mlp_c_proj", "ngpt: model.py, chunks"),
    (r"MLP\[mlp\]", "c_fc", "", "c_proj", "nanoMoE: model.py"),
    (r"Mlp\[(mlp|ffn)\]", "fc1", "", "fc2", "timm; uniformer.py, 1 x 1; mmdit.py"),
    (r"PointWiseFeedForward\[\d\]", "conv1", "", "conv2", "SASRec.pytorch: model.py, 1 x 1"),
    (r"PositionwiseFeedForward\[feed_forward\]", "w_1", "", "w_2", "bert_modules/utils/feed_forward.py"),
    (r"EncoderLayer\[\d\]", "conv1", "", "conv2", "iTransformer: Transformer_EncDec.py, 1 x 1"),
    (r"Sequential\[MLP[12]\]", "0", "", "2", "cross_models/attn.py; cross_decoder.py"),
    (r"Block\[\d\]/Sequential\[mlp\]", "0", "", "2", "iris: transformer.py; taming: mingpt.py"),
    (r"FeedForward\[feed_forward\]", "w3", "w1", "w2", "minRF: dit.py"),
    (r"DecoderLayer\[\d\]", "linear1", "", "linear2", "parseq/modules.py"),
    (r"PositionwiseFeedForward\[ffn\]", "linear1", "", "linear2", "hyunwoongko: position_wise_feed_forward"),
    (r"Sequential\[ffn\]", "linear1", None, "linear2", "rtdl_revisiting_models.py: ReGLU, chunks"),
    (
        r"(GatedCrossAttentionBlock\[\w+\]/Sequential\[ff\]|PerceiverResampler\[\w+\]/Sequential\[1\])",
        "1",
        "",
        "3",
        "open_flamingo/src/helpers.py",
    ),
    (r"ResidualAttentionBlock\[\d\]/Sequential\[mlp\]", "c_fc", "", "c_proj", "open_clip/transformer.py"),
    (r"TransformerSentenceEncoderLayer\[\d\]", "fc1", "", "fc2", "beats/backbone.py"),
)
_ROWS = (
    # conditions, embeddings and heads that hold an MLP
    Row(r"(ResidualBlock\[input_patch_embedding\]|Sequential\[(lang|img|state)_adaptor\])" + _IN, _ANY,
        "embedding other mlp.* residual", "chronos_bolt.py; rdt_runner.py: first layers"),
    Row(r"ResidualBlock\[output_patch_embedding\]" + _IN, _ANY, "logits other mlp.* residual",
        "chronos_bolt.py"),
    Row(r"FinalLayer\[final_layer\]/Mlp\[ffn_final\]" + _IN, _ANY, "logits other mlp.*", "rdt/blocks.py"),
    Row(r"(TimestepEmbedder|LabelEmbedder|VectorEmbedder|PatchEmbed|BERTEmbedding|TransformerEmbedding"
        r"|DataEmbedding_inverted|DSW_embedding|PromptEmbedding|Embedder|TokenEmbedding|LinearEmbeddings"
        r"|CategoricalEmbeddings|_CLSEmbedding|ViTEmbeddings|OPTLearnedPositionalEmbedding|Patch)\[\w+\]"
        + _IN, _ANY, "embedding other", "their names"),
    Row(r"Sequential\[adaLN_modulation\]/\w+\[\d\]", _ANY, _CONDITION, "minRF; Latte; sd3-ref"),
    # attention, in all of them
    Row(r"LlamaRotaryEmbedding\[\w+\]", _ANY, "attention.rope", "modeling_llama.py"),
    Row(r"MultiheadAttention\[\w+\]/Linear\[grep_linear\]", _ANY, "attention.*", "beats: a gate"),
    Row(r"\w*Attention\[\w+\]/Embedding\[relative_attention_bias\]", _ANY, "attention.other embedding "
        "attention.softmax", "modeling_t5.py; beats/backbone.py"),
    Row(rf"{_ATTENDS}\[(c_attn|query|key|value|q|k|v|kv|qkv|w_?[qkv]|[qkv]_proj|W_[qkv]|to_(q|kv)"
        r"|(query|key|value)_projection)\]", _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(c_attn|query|key|value|q|k|v|[qkv]_proj)\]", _ANY, "attention.qkv attention.other",
        "peft: what is added and rescaled"),
    Row(rf"{_ATTENDS}\[(c_proj|proj|o|o_proj|out_proj|wo|w_concat|W_out|out_projection|to_out)\]", _PRODUCT,
        "attention.output", "their names"),
    Row(rf"{_ATTENDS}\[(o|o_proj)\]", _ANY, "attention.output attention.other", "peft"),
    Row(r"GPT\[\]/Block\[\d\]/Linear\[(query|key|value)\]", _PRODUCT, "attention.qkv", "ngpt: model.py"),
    Row(r"GPT\[\]/Block\[\d\]/Linear\[att_c_proj\]", _PRODUCT, "attention.output", "ngpt: model.py"),
    Row(r"SublayerConnection\[input_sublayer\]/Linear\[\d\]", _PRODUCT, "attention.qkv", "multi_head.py"),
    Row(r"SublayerConnection\[input_sublayer\]/Linear\[output_linear\]", _PRODUCT, "attention.output",
        "multi_head.py"),
    Row(r"SublayerConnection\[input_sublayer\]", "contiguous|view|transpose", "attention.*",
        "multi_head.py: heads, laid out"),
    Row(r"JointBlock\[\d\]/Linear\[qkv\]", _PRODUCT, "attention.qkv", "mmdit.py: pre_attention"),
    Row(r"JointBlock\[\d\]/Linear\[proj\]", _PRODUCT, "attention.output", "mmdit.py: post_attention"),
    Row(r"JointBlock\[\d\]", "mul|add|chunk|unsqueeze", f"{_AROUND} embedding", "mmdit.py: modulate, gates"),
    Row(r"JointBlock\[\d\]", r"(?!add=).*", "attention.* other", "mmdit.py: both streams side by side"),
    Row(r"CBlock\[\d\]", "add=", "residual other", "uniformer.py: of maps"),
    Row(r"CMlp\[mlp\]" + _IN, _ANY, "mlp.* other", "uniformer.py: convolutions, as of other networks"),
    Row(r"CBlock\[\d\]/Conv2d\[(conv1|attn|conv2)\]", _PRODUCT, "other attention.*", "uniformer.py"),
    Row(r"\w+\[\w+\]/Conv2d\[pos_embed\]", _PRODUCT, "embedding other attention.other", "uniformer.py"),
    Row(r"(T5Stack|LlamaModel|GPT2Model|OPTModel|OPTDecoder)\[\w+\]", r"(?!add=).*", f"{_MASK} embedding",
        "transformers: masks, places"),
    # mixtures of experts, states
    Row(r"Router\[router\]/Linear\[w_g\]", _ANY, "moe.router", "nanoMoE: model.py"),
    Row(r"Router\[router\]", _ANY, _ROUTES, "nanoMoE: model.py"),
    Row(r"MLPExperts\[experts\]" + _IN, _ANY, "moe.experts", "nanoMoE: model.py"),
    Row(r"MOELayer\[mlp\]", _ANY, _SENDS, "nanoMoE: model.py"),
    Row(r"Mamba2\[mixer\]/Linear\[(in|out)_proj\]", _ANY, "ssm.projection", "mamba2.py"),
    Row(r"Mamba2\[mixer\]/Conv1d\[conv1d\]", _ANY, "ssm.conv", "mamba2.py"),
    Row(r"Mamba2\[mixer\]/RMSNorm\[norm\]", _ANY, "norm ssm.scan", "mamba2.py: gated"),
    Row(r"Mamba2\[mixer\]", _ANY, "ssm.scan ssm.conv", "mamba2.py"),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT),
    Row(r"LlamaMLP\[mlp\]/Linear\[up_proj\]|ViTMLP\[mlp\]/Linear\[fc1\]", _ANY, "mlp.up mlp.other", "peft"),
    Row(r"LlamaMLP\[mlp\]/Linear\[gate_proj\]", _ANY, "mlp.gate mlp.other", "peft"),
    Row(r"(LlamaMLP\[mlp\]/Linear\[down_proj\]|ViTMLP\[mlp\]/Linear\[fc2\])", _ANY, "mlp.down mlp.other",
        "peft"),
    Row(r"T5DenseGatedActDense\[\w+\]/Linear\[wo\]", _ANY, "mlp.down mlp.other mlp.activation",
        "peft: IA3 rescales what goes in"),
    Row(r"(LlamaMLP|T5Dense\w+|ViTMLP|GPT2MLP|MLP|Mlp|PointWiseFeedForward|PositionwiseFeedForward"
        r"|FeedForward|Sequential)\[(mlp|ffn|ff|MLP[12]|DenseReluDense|feed_forward|\d)\]"
        r"(/\w*(GELU|SiLU|ReLU|GELUTanh|Activation|_ReGLU)\[\w+\])?", _ANY, _ACT, "all"),
    Row(r"OPTDecoderLayer\[\w+\]/ReLU\[\w+\]|GPT\[\]/Block\[\d\]/SiLU\[silu\]", _ANY, _ACT, "opt; ngpt"),
    Row(r"(TransformerSentenceEncoder|Decoder|Encoder)Layer\[\d\]", "gelu|relu|float|type_as", _ACT,
        "beats, in single precision; parseq; iTransformer"),
    Row(r"EncoderLayer\[\d\]", r"transpose|permute|contiguous", "mlp.* other", "Transformer_EncDec.py"),
    # what nGPT computes in its block
    Row(r"GPT\[\]/Block\[\d\]", "norm|div|sub|abs", "norm residual attention.other",
        "ngpt: justnorm, and the step from one point of the sphere to another"),
    Row(r"GPT\[\]/Block\[\d\]", "mul", f"{_ROTATES} norm residual {_ACT}", "ngpt: rotations, scales, gates"),
    Row(r"GPT\[\]/Block\[\d\]", "chunk", _ACT, "ngpt: halves"),
    Row(r"GPT\[\]/Block\[\d\]", r"(?!add=).*", "attention.*", "ngpt: rotations; heads, laid out"),
    # what is no part of a transformer, and what is around attention and MLP
    Row(r"DPTHead\[\w+\]" + _IN, _ANY, "other logits residual", "depth_anything_v2/dpt.py: convolutions"),
    Row(r"InstanceNorm\[\w+\]", _ANY, "norm other", "chronos_bolt.py"),
    Row(r"Unroll\[unroll\]", _ANY, "embedding other", "hiera_utils.py: tokens, in the order of their units"),
    Row(r"OPTDecoderLayer\[\w+\]", "add", "residual", "modeling_opt.py: of two dimensions"),
    Row(r"DecoderLayer\[\d\]", "reshape|view", "other attention.other mlp.other logits", "cross_decoder.py"),
    Row(r"SegMerging\[\w+\]" + _IN, _ANY, "embedding other", "cross_encoder.py, as merged patches"),
    Row(r"TwoStageAttentionLayer\[\w+\]", r"(?!add=).*", "attention.other other mlp.other embedding",
        "attn.py: laid out"),
    Row(r"HieraBlock\[\d\](/Linear\[proj\])?", r"(?!add=).*", "other embedding residual attention.other",
        "hiera.py: the shortcut where maps shrink"),
    Row(r"LayerScale\[\w+\]", _ANY, _SCALE, "dinov2_layers"),
    Row(r"DropPath\[\w+\]", _ANY, _STOCHASTIC, "stochastic depth"),
    Row(r"(TransformerBlock|GatedCrossAttentionBlock)\[\w+\]", r"(?!add=).*", f"{_AROUND} embedding",
        "shift, scale and gate; tanh of gates"),
    Row(r"TransformerSentenceEncoderLayer\[\d\]", "mul", _SCALE, "beats/backbone.py: deep_norm_alpha"),
    # heads
    Row(r"(Linear\[(lm_head|head|out)\]|Decoder\[decoder\]/Linear\[linear\])", _PRODUCT, "logits",
        "their names"),
    Row(r"ModulesToSaveWrapper\[classifier\](/Linear\[default\])?", _ANY, "logits other", "peft"),
    Row(r"Linear\[(projector|linear_pred|predictor|projection)\]|Sequential\[output\]/\w+\[\w+\]", _ANY,
        "logits other", "iTransformer; Crossformer; BEATs; hiera; rtdl"),
    Row(r"Head\[head_\w+\]/Sequential\[head_module\]/Linear\[2\]", _PRODUCT, "logits other", "iris"),
    Row(r"Head\[head_\w+\]" + _IN, _ANY, "logits other mlp.*", "iris: slicer.py, world_model.py"),
    Row(r"FinalLayer\[\w+\]/Linear\[linear\]", _PRODUCT, "logits other", "minRF; Latte; sd3-ref"),
    Row(r"FinalLayer\[\w+\]", _ANY, "norm other logits", "shift and scale"),
    # embeddings
    Row(r"Sequential\[(init_conv_seq|pos_conv)\]/Conv[12]d\[0\]" + _IN, r"_weight_norm\w*",
        "norm embedding other", "as elsewhere: it normalizes"),
    Row(r"Sequential\[(init_conv_seq|pos_conv)\]" + _IN, _ANY, "embedding other", "minRF; beats/backbone.py"),
    Row(r"(Linear\[(x_embedder|context_embedder|post_extract_proj)\]|Conv2d\[(patch_embedding|conv1)\])",
        _ANY, "embedding other", "the first layers"),
    # what is left of whole models
    Row(r"SASRec\[\]", "mul_|add_=", "embedding", "SASRec.pytorch: model.py, log2feats"),
    Row(r"SASRec\[\]", "mul|sum", "logits loss", "SASRec.pytorch: model.py"),
    Row(r"SASRec\[\]", r"(?!add=).*", f"{_MASK} embedding memory residual", "SASRec.pytorch: masks, rows"),
    Row(r"GPT\[\]", "mul", "logits loss", "ngpt: sz; nanoMoE: weights of losses"),
    Row(r"GPT\[\]", "add_?", "embedding loss", "places; nanoMoE: losses of routers"),
    Row(r"GPT\[\]", _ANY, "embedding loss logits other", "places"),
    Row(r"LLaMA\[\]", _ANY, f"{_ROTATES} other", "lit_llama/model.py: rotations, the mask"),
    Row(r"(BERT\[bert\]|Transformer\[\])", _ANY, f"{_MASK} embedding", "masks"),
    Row(r"TransformerEncoder\[encoder\]", "add=", "embedding residual other", "beats: places"),
    Row(r"TransformerEncoder\[encoder\]", _ANY, "embedding other residual", "beats/backbone.py"),
    Row(r"FTTransformerBackbone\[\w+\]", "add", "residual", "rtdl: of the last layer, two dimensions"),
    Row(r"FTTransformerBackbone\[\w+\]", "__getitem__", "logits other residual attention.other", "rtdl"),
    Row(r"Decoder\[decoder\]", _ANY, "logits other residual", "cross_decoder.py: sums of scales"),
    Row(r"Perceiver\w+\[\w+\]", "repeat|expand", "embedding other", "open_flamingo/src/helpers.py"),
    Row(r"RDTRunner\[\]", _ANY, "embedding other loss", "rdt_runner.py: noise"),
    Row(r"(Crossformer|DiT_Llama|Latte|MMDiT|RDT|DepthAnythingV2|Hiera|Encoder|WorldModel)\[\w*\]", "add_?",
        "embedding other", "places, times"),
    Row(r"(Crossformer|Model|DiT_Llama|Latte|MMDiT|RDT|DinoVisionTransformer|DepthAnythingV2|UniFormer|Hiera"
        r"|VisionTransformer|Encoder|WorldModel|FTTransformer|Flamingo|FlamingoOPT\w*)\[\w*\]", r"(?!add=).*",
        "embedding other logits norm attention.other", "tokens, places, the result"),
    Row(r"(Crossformer|Model|DiT_Llama|Latte|MMDiT|RDT|DinoVisionTransformer|Encoder|WorldModel|Flamingo)"
        r"\[\w*\]", "add=", "embedding other logits", "places; what was taken off is added"),
    Row(r"ChronosBoltModelForForecasting\[\]", _ANY, "loss embedding other norm logits", "chronos_bolt.py"),
    Row(r"(PeftModel\w*|T5ForConditionalGeneration|\w*ForCausalLM|GPT2LMHeadModel)\[\w*\]",
        "float|to|contiguous", "loss logits", "transformers: what is given to the loss"),
    Row(r"(PeftModel\w*|T5ForConditionalGeneration|LlamaForCausalLM|GPT2LMHeadModel|OPTForCausalLM)\[\w*\]",
        _ANY, "embedding loss logits other", "transformers: what is given to the loss; peft: prompts"),
)  # fmt: skip
_ATTENTION = re.compile(r"^(?!T5Layer)\w*((?<!TwoStage)AttentionLayer|Attention)$")
_PLAIN = re.compile(r"\w*(Layer|RMS|Rms|Group|Batch)Norm(\dd)?")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes and weighted:
        return "embedding"  # places of PARSeq
    if not place.classes or function in ("cross_entropy", "mse_loss"):
        return "loss embedding logits" if function in ("cat", "expand", "mean", "sigmoid") else "loss"
    if found := settled(place, function, ()):
        return found
    own = place.classes[-1]
    if "Linear" in place.classes[:-1]:  # an adapter in it
        return _adapted(place, function, weighted=weighted)
    if function in _NORMS or _PLAIN.fullmatch(own):
        plain = own.startswith(("Batch", "Group"))
        return "norm ssm.scan" if "Mamba2" in place.classes else "norm other" if plain else "norm"
    return _by_rows(place, function, weighted=weighted, equal=equal)


def _adapted(place: Place, function: str, *, weighted: bool) -> str:
    """DoRA normalizes the weight, too."""
    at = place.classes.index("Linear") + 1
    found = _by_rows(
        Place(place.classes[:at], place.names[:at], place.seen), function, weighted=weighted, equal=False
    )
    return (
        f"{found} norm"
        if any(x.startswith("Dora") for x in place.classes) and function != "linear"
        else found
    )


def _by_rows(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    if found := row_of(_ROWS, place, function, equal=equal):
        return found
    if function == "embedding":
        return "embedding"
    if place.within(_ATTENTION) >= 0:
        return _in_attention(function, seen=place.seen, weighted=weighted)
    if function in _CONVOLUTIONS:
        return "other embedding"
    return "residual" if equal else ""
