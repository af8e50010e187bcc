"""What each piece of the models of the tenth list is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. What a model of
transformers or an adapter of peft holds is for what ``recipes_truth.py`` says of it, where no row here names
it: an adapter that makes or turns a whole weight (FourierFT, LoHa, HRA) stands where the layer stands, too. A
function that has a weight of its own is told apart where a module calls it for both (``einsum w``). PEER's
experts are rows of two tables of embeddings: what looks them up is for the experts. HSTU's layer is attention
by what it does to the sequence, its gate too; minGRU is a state that decays.
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries import recipes_truth
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK, _ROUTES, _SENDS, _STOCHASTIC
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.repos_truth import _ROTATES, _SCALE
from benchmarks.libraries.truth import _GATED, _NORMS, unlisted

_PRODUCT = "linear|addmm|mm|conv[123]d"
_HEAD = "logits other"
#: A module that attends, and what holds a product in it.
_ATTENDS = r"\w*Attention(ForTwoWayAttentionBlock)?\[\w+\]/\w+"
_FEED_FORWARDS = (
    (r"Mlp\[mlp\]", "fc1", "", "fc2", "timm: MDT; VideoMAEv2; EfficientSAM; ViLT; croco"),
    (r"GatedMlp\[mlp\]", "fc3", "fc1", "fc2", "fourm/models/fm_utils.py"),
    (r"SiglipMLP\[mlp\]", "fc1", "", "fc2", "modeling_siglip.py"),
    (r"GemmaMLP\[mlp\]", "up_proj", "gate_proj", "down_proj", "modeling_gemma.py"),
    (r"DDiTBlock\[\d\]/Sequential\[mlp\]", "0", "", "2", "models/dit.py"),
    (r"GatedMLP\[mlp\]", "fc", None, "proj", "raven_modeling_minimal.py: chunks"),
    (r"minLM\[\]/Sequential\[4\]", "0", "", "2", "minLM.py: FeedForward"),
    (r"FeedForward\[mlp_[xy]\]", "w1", None, "w2", "joint_model/layers.py: chunks"),
    (r"FeedForward\[feed_forward\]", "w3", "w1", "w2", "nextdit.py"),
    (r"MLP\[mlp\]", "c_fc2", "c_fc1", "c_proj", "lag_llama/model/module.py"),
    (r"PositionwiseFeedForward\[\w+\]", "w_1", "", "w_2", "wenet: positionwise_feed_forward.py"),
    (r"TwoWayAttentionBlock\[\d\]/MLPBlock\[mlp\](/Sequential\[0\])?", "0", "", "fc", "EfficientSAM: mlp.py"),
)
#: The same of ones in models of transformers.
_LIBRARY_ROWS = (
    # experts
    Row(r"ParamWrapper\[experts\](/.*)?/ParametrizedMixtralExperts\[base_layer\](/SiLUActivation\[act_fn\])?",
        "silu|mul|chunk", "moe.experts moe.dispatch", "modeling_mixtral.py: SwiGLU, weights of experts"),
    Row(r"PEER\[mlp\]/Embedding\[weight_(down|up)_embed\]", _ANY, "moe.experts moe.dispatch embedding",
        "PEER.py: an expert is a row of both"),
    Row(r"PEER\[mlp\]/Sequential\[to_queries\]/Linear\[0\]", _ANY, "moe.router", "PEER.py: queries"),
    Row(r"PEER\[mlp\]", "einsum w", "moe.router", "PEER.py: queries against product keys"),
    Row(r"PEER\[mlp\](/GELU\[activation\])?", "einsum|gelu", "moe.experts", "PEER.py: Algorithm 1"),
    Row(r"PEER\[mlp\]", "mul", "moe.experts moe.dispatch", "PEER.py: weights of experts"),
    Row(r"PEER\[mlp\](/Sequential\[to_queries\]/Rearrange\[1\]|/ReLU\[score_activation\])?", _ANY, _ROUTES,
        "PEER.py: the best of both halves"),
    Row(r"MoE\[mlp\]/Top2Gating\[gate\]", "einsum w", "moe.router", "mixture_of_experts.py"),
    Row(r"MoE\[mlp\]/Top2Gating\[gate\]", _ANY, f"{_ROUTES} loss", "mixture_of_experts.py: its loss, too"),
    Row(r"MoE\[mlp\]/Experts\[experts\](/GELU\[act\])?", _ANY, "moe.experts", "mixture_of_experts.py"),
    Row(r"MoE\[mlp\]", "mul", f"loss {_SENDS}", "mixture_of_experts.py: loss_coef"),
    Row(r"MoE\[mlp\]", _ANY, _SENDS, "mixture_of_experts.py: there and back, by products with masks"),
    # words, places, rotations
    Row(r"PromptEncoder\[\w+\]" + _IN, _ANY, "embedding other mlp.*", "peft: p_tuning/model.py"),
    Row(r"GPT2Model\[\w+\]", "add=?", "embedding", "modeling_gpt2.py: places"),
    Row(r"(Phi|Gemma|Mixtral)Attention\[\w+\]", "add_?=", "attention.*", "transformers: rotations"),
    Row(r"T5Layer(Self|Cross)Attention\[\d\]", "add=", "residual", "modeling_t5.py"),
    Row(r"T5Attention\[\w+\]", "add_?=?", "attention.*", "modeling_t5.py: a bias of distances"),
    Row(r"(Gemma|Mixtral|Phi|GPT2|T5)(Model|Stack)\[\w+\]", r"(?!add=).*", f"embedding {_MASK}",
        "transformers: masks, places, a scale"),
    Row(r"T5ForConditionalGeneration\[\w+\]", "masked_fill_?|__setitem__|new_zeros|clone|__getitem__|__eq__",
        "embedding other loss", "modeling_t5.py: labels to the right"),
    # SegFormer
    Row(r"SegformerOverlapPatchEmbeddings\[\w+\](/Conv2d\[proj\])?", r"(?!layer_norm).*", "embedding other",
        "modeling_segformer.py"),
    Row(r"SegformerSequenceReduction\[\w+\](/Conv2d\[\w+\])?", r"(?!layer_norm).*", "attention.* other",
        "modeling_segformer.py: fewer keys"),
    Row(r"SegformerDepthWiseConv\[\w+\](/Conv2d\[\w+\])?", _ANY, "mlp.* other", "modeling_segformer.py"),
    Row(r"SegformerDropPath\[\w+\]", _ANY, _STOCHASTIC, "modeling_segformer.py"),
    Row(r"SegformerDecodeHead\[\w+\]/SegformerMLP\[\d\](/Linear\[proj\])?", _ANY, "logits other mlp.*",
        "modeling_segformer.py: each map to one width"),
    Row(r"SegformerDecodeHead\[\w+\]", "interpolate", "logits other embedding", "maps as large as one"),
    Row(r"SegformerDecodeHead\[\w+\](/(Conv2d|ReLU)\[\w+\])?", _ANY, _HEAD,
        "modeling_segformer.py: maps, fused"),
    Row(r"SegformerForSemanticSegmentation\[\w+\]", _ANY, "logits other embedding loss",
        "maps as large as the picture"),
    Row(r"Segformer(Model|Stage|Layer)\[\w+\]", r"(?!add=).*", "other embedding", "maps from tokens"),
)  # fmt: skip
_EMBEDS = (
    r"(\w*(Timestep|Label)Embedder|PatchEmbed(DustR|Dust3R)?|TimeMoeInputEmbedding|EmbeddingLayer"
    r"|SiglipVisionEmbeddings|BertEmbeddings|PromptEncoder|PositionEmbeddingRandom|PositionGetter"
    r"|Image(Token)?EncoderEmbedding|Learnable\w+Preprocessor|(Depthwise)?Conv2dSubsampling4|PaliGemmaMultiModalProjector)\[[\w@]+\]"
)
#: Layers of one width that shift, scale and gate around attention and MLP.
_BLOCKS = r"(MDTBlock|DDiTBlock|AsymmetricJointBlock|NextDiT\[\]/TransformerBlock)\[\d\]"
_ROWS = (
    # what stands in front of layers
    Row(r"EmbeddingLayer\[\w+\]|Embedding\[\w+\]", "embedding|__getitem__", "embedding", "tables"),
    Row(_EMBEDS + _IN, r"(?!layer_norm).*", "embedding other", "their names"),
    Row(r"Linear\[(wte|encoder_to_decoder|t5_yproj|x_embedder|decoder_embed|decoder_proj_context)\]|Sequential\[cap_embedder\]"
        r"/Linear\[1\]", _PRODUCT, "embedding other", "first layers"),
    Row(r"RavenForCausalLM\[\]/Linear\[adapter\]", _PRODUCT, "embedding other residual",
        "raven_modeling_minimal.py: the state beside the words, in front of the core"),
    Row(r"RavenForCausalLM\[\]", "cat", "embedding other residual", "raven_modeling_minimal.py: the same"),
    Row(r"AttentionPool\[\w+\]" + _IN, _ANY, "embedding other attention.*", "mochi: of the words"),
    Row(r"minLM\[\]/CausalDepthWiseConv1d\[0\]" + _IN, _ANY, "ssm.conv other", "minLM.py"),
    # mixtures of experts
    Row(r"(MoEFeedForward\[ff\]|TimeMoeSparseExpertsLayer\[\w+\])/Linear\[gate\]", _PRODUCT, "moe.router",
        "gpt_with_kv_moe.py; modeling_time_moe.py"),
    Row(r"MoEFeedForward\[ff\]/Linear\[\d\]", _PRODUCT, "moe.experts", "gpt_with_kv_moe.py: fc1, fc2, fc3"),
    Row(r"MoEFeedForward\[ff\]", "silu", "moe.experts", "gpt_with_kv_moe.py"),
    Row(r"MoEFeedForward\[ff\]", "mul", "moe.experts moe.dispatch", "its gate; weights of experts"),
    Row(r"(MoEFeedForward\[ff\]|TimeMoeSparseExpertsLayer\[\w+\])", "softmax|topk", _ROUTES, "the same"),
    Row(r"MoEFeedForward\[ff\]", _ANY, _SENDS, "gpt_with_kv_moe.py: there and back"),
    Row(r"TimeMoeTemporalBlock\[\d\]" + _IN, _ANY, "moe.experts", "modeling_time_moe.py"),
    Row(r"TimeMoeTemporalBlock\[shared_expert\]/Linear\[gate_proj\]", _ANY, "moe.experts mlp.gate",
        "modeling_time_moe.py"),
    Row(r"TimeMoeTemporalBlock\[shared_expert\]/Linear\[up_proj\]", _ANY, "moe.experts mlp.up", "the same"),
    Row(r"TimeMoeTemporalBlock\[shared_expert\]/Linear\[down_proj\]", _ANY, "moe.experts mlp.down",
        "the same"),
    Row(r"TimeMoeTemporalBlock\[shared_expert\](/\w+\[act_fn\])?", _ANY, f"moe.experts {_ACT}", "the same"),
    Row(r"TimeMoeSparseExpertsLayer\[\w+\](/Linear\[shared_expert_gate\])?", "linear|sigmoid",
        "moe.experts mlp.* moe.router", "modeling_time_moe.py: a gate of the shared one"),
    Row(r"TimeMoeSparseExpertsLayer\[\w+\]", "mul", f"{_SENDS} mlp.other", "weights; the gate"),
    Row(r"TimeMoeSparseExpertsLayer\[\w+\]", "add", f"{_SENDS} residual", "beside the shared one"),
    Row(r"TimeMoeSparseExpertsLayer\[\w+\]", _ANY, _SENDS, "there and back"),
    Row(r"TimeMoeForPrediction\[\]", _ANY, f"loss logits {_ROUTES}", "losses of horizons and of routers"),
    # attention
    Row(r"\w*Rotary\w*\[\w+\]|RoPE2D\[\w+\](/.*)?", _ANY, "attention.rope", "their names"),
    Row(r"RelativePositionBias\[\w+\]|RelativeBucketedTimeAndPositionBasedBias\[\w+\]", _ANY,
        "attention.other embedding attention.softmax", "MDT; hstu.py: of distances"),
    Row(rf"{_ATTENDS}\[(W_(query|key|value)|[qkv]_proj|kv_proj|qkv|Wqkv|w[qkv](_y)?|qkv_[xy]|proj[qkv]"
        r"|linear_[qkv]|q|kv)\]|CrossDecoder\[\w+\]/\w+\[[kv]_proj\]|DDiTBlock\[\d\]/Linear\[attn_qkv\]",
        _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(out_proj|o_proj|c_proj|proj|proj_[xy]|wo|linear_out)\]|DDiTBlock\[\d\]/Linear"
        r"\[attn_out\]", _PRODUCT, "attention.output", "their names"),
    Row(rf"{_ATTENDS}\[linear_pos\]", _PRODUCT, "attention.*", "wenet: of distances"),
    Row(r"CrossDecoder\[\w+\]", _ANY, f"{_ROTATES} embedding", "yoco.py: keys for all layers"),
    Row(r"LatentAttentionBlock\[\d\]", "linear w", "attention.qkv mlp.up mlp.gate", "main.py: all as one"),
    Row(r"LatentAttentionBlock\[\d\]", "linear w after", "attention.output mlp.down", "main.py: both as one"),
    Row(r"LatentAttentionBlock\[\d\]", "gelu|mul", f"{_ACT} attention.other", "main.py: values, too; a bias"),
    Row(r"LatentAttentionBlock\[\d\]", "split|cat", "attention.other mlp.other", "main.py: both as one"),
    Row(r"LatentAttentionBlock\[\d\]", "add=", "residual", "main.py"),
    Row(r"LatentAttentionBlock\[\d\]", r"(?!layer_norm).*", _MASK, "main.py: a mask of distances"),
    Row(r"SequentialTransductionUnitJagged\[\d\]/Linear\[_o\]", _PRODUCT, "attention.output", "hstu.py"),
    Row(r"SequentialTransductionUnitJagged\[\d\]", "mm", "attention.qkv attention.other", "hstu.py: uvqk"),
    Row(r"SequentialTransductionUnitJagged\[\d\]", "einsum",
        "attention.scores attention.values attention.other", "hstu.py"),
    Row(r"SequentialTransductionUnitJagged\[\d\]", "add", "residual attention.*", "hstu.py: a bias, too"),
    Row(r"SequentialTransductionUnitJagged\[\d\]", r"(?!layer_norm).*", "attention.*",
        "hstu.py: SiLU of queries, keys, values and scores; the gate"),
    Row(r"minGRU\[\d\]/Linear\[(to_hidden_and_gate|to_out)\]", _PRODUCT, "ssm.projection other", "minGRU.py"),
    Row(r"minGRU\[\d\]", _ANY, "ssm.scan other", "minGRU.py: a recurrence, in parallel"),
    Row(r"AsymmetricAttention\[\w+\]", "pow|mean|rsqrt", "norm", "mod_rmsnorm.py"),
    Row(r"AsymmetricAttention\[\w+\]", "mul|add|float|to", "attention.* norm other",
        "mod_rmsnorm.py; rotations"),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT),
    Row(r"FeedForwardNetwork\[ffn\]/\w+\[(fc1|gate)\]", _PRODUCT, _GATED,
        "yoco: feedforward_network.py, SiLU of fc1"),
    Row(r"FeedForwardNetwork\[ffn\]/\w+\[fc2\]", _PRODUCT, "mlp.down", "yoco: feedforward_network.py"),
    Row(r"ConvolutionalGatingMLP\[\w+\]/Sequential\[channel_proj1\]/Linear\[0\]", _ANY, "mlp.up other",
        "wenet: branchformer/cgmlp.py"),
    Row(r"ConvolutionalGatingMLP\[\w+\]/Linear\[channel_proj2\]", _ANY, "mlp.down other", "the same"),
    Row(r"ConvolutionalGatingMLP\[\w+\]/(Sequential\[channel_proj1\]/GELU\[1\]"
        r"|ConvolutionalSpatialGatingUnit\[\w+\](/Conv1d\[conv\])?)", _ANY, f"{_ACT} other", "the same"),
    Row(r"PositionwiseFeedForward\[\w+\]", "mul|add", "mlp.other norm other", "wenet: adaptive_scale"),
    Row(r"((Gated)?Mlp|MLP|SiglipMLP|GemmaMLP|GatedMLP|FeedForward(Network)?|PositionwiseFeedForward)\[\w+\]"
        r"(/(GELU|SiLU)\[\w+\])?|DDiTBlock\[\d\]/Sequential\[mlp\]/GELU\[1\]|minLM\[\]/Sequential\[4\]/GELU\[1\]"
        r"|TwoWayAttentionBlock\[\d\]/MLPBlock\[mlp\](/Sequential\[0\]/GELU\[1\])?", _ANY, _ACT, "all"),
    # conditions, and what is around attention and MLP
    Row(r"Sequential\[adaLN_modulation\]/\w+\[\w+\]|Linear\[(adaLN_modulation|mod|mod_[xy])\]", _ANY,
        _CONDITION, "MDT; mdlm; mochi; Lumina"),
    Row(r"MDTBlock\[\d\](/Linear\[skip_linear\])?", "linear|cat", "other residual", "MDT: a skip"),
    Row(r"DDiTBlock\[\d\]", "add=", "residual attention.rope attention.other", "dit.py: rotations, too"),
    Row(r"DDiTBlock\[\d\]", "mul", f"{_AROUND} attention.rope", "dit.py: shift, scale, gate, rotations"),
    Row(r"DDiTBlock\[\d\]", "sub|unbind|stack|cat|__getitem__", _ROTATES, "dit.py: rotations"),
    Row(r"AsymmetricJointBlock\[\d\]", "pow|mean|rsqrt|float", "norm", "mochi: both norms"),
    Row(r"AsymmetricJointBlock\[\d\]", "to|type_as", "norm residual", "mochi: both norms"),
    Row(_BLOCKS, "silu|chunk|tanh", _CONDITION, "shift, scale and gate"),
    Row(_BLOCKS, "mul|add", _AROUND, "shift, scale and gate"),
    Row(_BLOCKS, r"(?!add=).*", "attention.* other", "dit.py: heads, laid out"),
    Row(r"DDitFinalLayer\[\w+\]/Linear\[linear\]", _PRODUCT, "logits", "models/dit.py: of words"),
    Row(r"\w*FinalLayer\[\w+\]/Linear\[linear\]", _PRODUCT, _HEAD, "MDT; mdlm; mochi; Lumina"),
    Row(r"\w*FinalLayer\[\w+\]", _ANY, "norm other logits", "shift and scale"),
    Row(r"DropPath\[\w+\]", _ANY, _STOCHASTIC, "stochastic depth"),
    Row(r"TwoWay(AttentionBlock|Transformer)\[\w+\]", "add=", "residual embedding attention.other",
        "EfficientSAM: places of queries and keys, too"),
    Row(r"ConvolutionModule\[\w+\]" + _IN, r"(?!batch_norm).*", "other",
        "wenet: squeezeformer/convolution.py"),
    Row(r"TimeReductionLayer1D\[\w+\]" + _IN + r"|SqueezeformerEncoder\[\w+\]/Linear\[time_recover_layer\]",
        _ANY, "other embedding", "wenet: fewer frames, and as many again"),
    Row(r"SqueezeformerEncoder\[\w+\]", "add=", "residual other", "wenet: as many frames again"),
    Row(r"EBranchformerEncoderLayer\[\d\]/Linear\[merge_proj\]", _PRODUCT, "other attention.output mlp.down",
        "e_branchformer/encoder_layer.py: of both branches' results"),
    Row(r"EBranchformerEncoderLayer\[\d\]/Conv1d\[depthwise_conv_fusion\]", _ANY, "other", "the same"),
    Row(r"EBranchformerEncoderLayer\[\d\]", "add=", "residual other", "the same: of both branches, too"),
    Row(r"EBranchformerEncoderLayer\[\d\]", "mul", _SCALE, "e_branchformer/encoder_layer.py: ff_scale"),
    Row(r"(EBranchformer|Squeezeformer)EncoderLayer\[\d\]", r"(?!add=).*", "other", "wenet: both branches"),
    # heads
    Row(r"Linear\[(out_head|output_projection|lm_head|outputs|to_logits|ctc_lo)\]", _PRODUCT, "logits",
        "their names"),
    Row(r"TimeMoeOutputLayer\[\d\]/Linear\[out_layer\]|PretrainVisionTransformerDecoder\[\w+\]/Linear\[head\]",
        _PRODUCT, _HEAD, "their names"),
    Row(r"PtArgProj\[\w+\]" + _IN, _ANY, "logits other loss", "gluonts: of a distribution"),
    Row(r"(Pooler|ITMHead|BertPredictionHeadTransform)\[\w+\]" + _IN, r"(?!layer_norm).*", _HEAD, "ViLT"),
    Row(r"MLMHead\[\w+\](/Linear\[decoder\])?", "linear|add", "logits", "ViLT: heads.py"),
    Row(r"MaskDecoder\[\w+\]/(MLPBlock\[\w+\]" + _IN + ")", _ANY, "logits other mlp.*",
        "EfficientSAM: hypernetworks, quality"),
    Row(r"MaskDecoder\[\w+\](/Sequential\[\d\]/(ConvTranspose2d|GELU)\[\d\])?", _ANY,
        "logits other embedding", "EfficientSAM: masks, larger"),
    Row(r"PixelwiseTaskWithDPT\[\w+\]" + _IN, "add=", "residual other logits", "dpt_block.py: of maps"),
    Row(r"PixelwiseTaskWithDPT\[\w+\]" + _IN, _ANY, "logits other embedding", "dpt_block.py; points"),
    Row(r"L2NormEmbeddingPostprocessor\[\w+\]", _ANY, "norm logits other loss", "hstu: of length one"),
    # what is left of whole models
    Row(r"FourM\[\]", "__getitem__|__eq__", "logits other loss embedding", "fm.py: tokens of each kind"),
    Row(r"FourM\[\]", "add|__radd__|div|__truediv__", "loss embedding other attention.other",
        "fm.py: the mean over kinds of tokens; masks"),
    Row(r"FourM\[\]", r"(?!add=|cross).*", "embedding other attention.other", "fm.py: what is chosen; masks"),
    Row(r"ImageEncoderViT\[\w+\](/Sequential\[neck\]/Conv2d\[\d\])?", _ANY, "embedding other",
        "EfficientSAM: places; the neck"),
    Row(r"PretrainVisionTransformerDecoder\[\w+\]", "__getitem__", "logits other embedding", "what is told"),
    Row(r"(RavenForCausalLM\[\]|GemmaForCausalLM\[\w+\])", "float|view|clone", "logits loss other",
        "what the loss takes"),
    Row(r"PaliGemmaForConditionalGeneration\[\]", _ANY, f"embedding {_MASK}", "pictures among words; masks"),
    Row(r"AsymmDiTJoint\[\]|SelfDecoder\[\w+\]", "cos|sin|einsum w|__getitem__|mul|to",
        "attention.rope attention.other embedding other", "rotations"),
    Row(r"MDTv2\[\]", _ANY, "embedding other residual logits", "MDT: places, what is masked; a picture"),
    Row(r"(GPTModel|YOCO|RavenForCausalLM|GemmaModel|SpeedyLangNet|minLM|DIT|LagLlamaModel|EfficientSam|HSTU"
        r"|HSTUJagged|PretrainVisionTransformer(Encoder)?|AsymmDiTJoint|NextDiT|AsymmetricCroCo3DStereo"
        r"|FourM|Siglip\w+(Model|Transformer|Encoder)|TimeMoeModel|TwoWayTransformer)\[\w*\]",
        r"(?!add=).*", f"embedding {_HEAD} attention.other", "tokens, places, masks, the result"),
    Row(r"(PretrainVisionTransformer(Encoder)?|AsymmDiTJoint|NextDiT|GPTModel|DIT|FourM)\[\w*\]", "add=",
        "embedding other", "places"),
    Row(r"(Squeezeformer|EBranchformer)Encoder\[\w+\]", _ANY, f"{_MASK} embedding", "wenet: masks"),
)  # fmt: skip
_ATTENTION = re.compile(r"Attention(ForTwoWayAttentionBlock)?$")
_PLAIN = re.compile(r"\w*(Layer|RMS|Rms)Norm")
_MAPS = re.compile(r"\w*(Group|Batch|Instance)Norm(\dd)?|LayerNorm2d")
#: What is of transformers or of peft as a whole.
_LIBRARY = re.compile(r"Peft\w*|(Llama|GPT2)\w+")
#: Adapters of peft that are called otherwise than the layer they stand for, and what holds them.
_ADAPTERS = {"FourierFTLinear": "Linear", "HRALinear": "Linear", "FourierFTModel": "PeftModel"}
#: Functions that a module calls with and without a weight of its own.
_WEIGHED = {"einsum", "linear"}
_LOSSES = ("cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits", "huber_loss")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        if function in ("flatten", "unflatten"):
            return "loss logits"
        if function == "normalize":
            return "loss norm logits"  # of items that HSTU's result is compared with: what the head takes
        return recipes_truth.truth_of(place, function, weighted=weighted, equal=equal)
    if found := settled(place, function, _LOSSES):
        return found
    library = _LIBRARY.fullmatch(place.classes[0]) is not None
    if library:
        place = Place(tuple(_ADAPTERS.get(x, x) for x in place.classes), place.names, place.seen)
    weighed = weighted and function in _WEIGHED
    if library:
        found = row_of(_LIBRARY_ROWS, place, function, equal=equal, weighed=weighed)
        return found or recipes_truth.truth_of(place, function, weighted=weighted, equal=equal)
    own = place.classes[-1]
    if _MAPS.fullmatch(own):
        return "norm other"
    if function in _NORMS or _PLAIN.fullmatch(own):
        return "norm"
    if own == "LatentAttentionBlock" and weighted and function == "linear" and place.seen == "softmax":
        function, weighed = "linear w after", False
    found = row_of(_ROWS, place, function, equal=equal, weighed=weighed)
    return found or unlisted(place, function, _ATTENTION, weighted=weighted, equal=equal)
