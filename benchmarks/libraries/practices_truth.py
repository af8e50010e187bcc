"""What each piece of the models of the twelfth list is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. What a model of
transformers or an adapter of peft holds, wherever it stands, is for what ``recipes_truth.py`` says of it,
where no row here names it. A module that calls one function for two things (gpt-oss for its experts and for
their weighted sum) has both words. Convolutions around attention, of pictures and of sound, are none of a
transformer's own parts: "other".
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries import recipes_truth
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK, _ROUTES
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.repos_truth import _ROTATES
from benchmarks.libraries.truth import _GATED, _NORMS, unlisted

_PRODUCT = "linear|addmm|mm|conv[123]d"
_HEAD = "logits other"
_BEFORE = "embedding other"
#: A module that attends, and what holds a product in it.
_ATTENDS = r"\w*(Attention|AttentionBlock|FusedQKV)\[\w+\](/Sequential\[\w+\])?/\w+"
_FEED_FORWARDS = (
    (r"FeedForward\[feed_forward\]", "linear1", "", "linear2", "train_llm.py"),
    (r"GemmaMLP\[mlp\]", "up_proj", "gate_proj", "down_proj", "gemma/model.py"),
    (r"SwiGLU\[swiglu\]", "w2", "w1", "w3", "TinyLlama: xformers' SwiGLU"),
    (r"MLPBlock\[mlp_block\]", "ffw_up", None, "ffw_down", "recurrentgemma: modules.py"),
    (r"GatedLinearUnit\[ff_sub_layer\]", "wg1_fused", None, "w2", "fms: feedforward.py"),
    (r"Mlp\[mlp\]|MLP\[mlp\]", "fc1", "", "fc2", "timm: MoH, AST; SimMIM; YOLOS; vjepa2"),
    (r"MLP\[mlp\]", "c_fc", "", "c_proj", "vq_behavior_transformer/gpt.py"),
    (r"MLP\[feedforward\]/Sequential\[model\]", "0", "", "[2-9]", "torchmultimodal: mlp.py"),
    (r"Deformable\w+Layer\[\d\]", "linear1", "", "linear2", "deformable_transformer.py"),
    (r"DoubleStreamBlock\[\d\]/Sequential\[\w+_mlp\]|DDiTBlock\[\d\]/Sequential\[mlp\]", "0", "", "2",
     "Open-Sora: layers.py; flow_matching: transformer.py"),
    (r"FeedForward\[fn\]/Sequential\[net\]", "0", None, "3", "transfusion.py: GEGLU"),
    (r"FeedForward\[\d\]/Sequential\[ff\](/GLU\[0\])?", "proj", None, "[2-9]", "x_transformers.py: GLU"),
    (r"PositionwiseFeedForward\[\w+\]", "w_1", "", "w_2", "cosyvoice: positionwise_feed_forward.py"),
    (r"(En|De)coderLayer\[\d\]", "conv1", "", "conv2", "Informer: of one place each"),
    (r"TSTEncoderLayer\[\d\]/Sequential\[ff\]", "0", "", "3", "patchTST.py"),
    (r"FeedForward\[\w+_ff\]", "w_1", "", "w_2", "pytorch_widedeep: _attention_layers.py"),
    (r"ProGenMLP\[mlp\]", "fc_in", "", "fc_out", "modeling_progen.py"),
    (r"TransformerEncoderLayer\[\d\]", "fc1", "", "fc2", "unimol_tools: transformers.py"),
)  # fmt: skip
#: The same of ones in models of transformers.
_LIBRARY_ROWS = (
    Row(r"\w+Attention\[\w+\]", "add_?=", "attention.*", "transformers: rotations"),
    Row(r"\w+(SelfOutput|Output)\[\w+\]", "add=", "residual", "modeling_bert.py; modeling_xlm_roberta.py"),
    Row(r"ModernBertAttention\[\w+\]/Linear\[Wo\]", _PRODUCT, "attention.output", "modeling_modernbert.py"),
    Row(r"Embedding\[tok_embeddings\]|\w+ScaledWordEmbedding\[\w+\]", _ANY, "embedding", "of words"),
    Row(r"BertLMPredictionHead\[\w+\]/Linear\[decoder\]", _PRODUCT, "logits", "modeling_bert.py"),
    Row(r"ModernBertMLP\[mlp\]/Linear\[Wi\]|Phi3MLP\[mlp\]/Linear\[gate_up_proj\]", _PRODUCT, _GATED,
        "halves"),
    Row(r"ModernBertMLP\[mlp\]/Linear\[Wo\]|Phi3MLP\[mlp\]/Linear\[down_proj\]", _PRODUCT, "mlp.down",
        "both"),
    Row(r"(ModernBert|Phi3)MLP\[mlp\](/\w+\[act(ivation_fn)?\])?", _ANY, _ACT, "both"),
    Row(r"ModernBertPredictionHead\[\w+\]" + _IN, r"(?!layer_norm).*", _HEAD, "modeling_modernbert.py"),
    Row(r"Olmoe\w+\[experts\](/\w+\[act_fn\])?", "mul|chunk|silu", "moe.experts moe.dispatch",
        "modeling_olmoe.py: SwiGLU, weights of experts"),
    Row(r"OlmoeForCausalLM\[\w*\]", _ANY, f"loss logits {_ROUTES} other",
        "modeling_olmoe.py: its routers' loss"),
    Row(r"LlavaMultiModalProjector\[\w+\]" + _IN + r"|PaliGemmaMultiModalProjector\[\w+\]" + _IN, _ANY,
        "embedding other mlp.*", "pictures as words"),
    Row(r"(Phi3Transformer|ModernBertModel|XLMRobertaModel|PaliGemmaModel|OlmoeModel)\[\w*\]", r"(?!add=).*",
        f"embedding {_MASK}", "transformers: masks, places, a scale"),
    Row(r"XLMRobertaEmbeddings\[\w+\]", _ANY, "embedding other", "modeling_xlm_roberta.py: places"),
    Row(r"PaliGemmaForConditionalGeneration\[\w*\]", _ANY, f"logits loss {_BEFORE}", "modeling_paligemma.py"),
)  # fmt: skip
_EMBEDS = (
    r"(\w*(Timestep|Label)Embedder|PatchEmbed(MR|3D|dings)?|PatchMerging|MLPEmbedder|RandomFourierEmbed"
    r"|DataEmbedding|CharacterEmbed|ContEmbeddings|SameSizeCatEmbeddings|EmbeddingBag|BERTTextEmbeddings"
    r"|(Legacy)?LinearNoSubsampling|EspnetRelPositionalEncoding|PositionEmbeddingSine)\[\w+\]"
)
#: Models, and halves of them: what they compute in front of layers, and of what comes out.
_WHOLE = (
    r"(Transformer|MinimalLLM|GemmaModel|GPT|LLaMAHeadless|OmniGen|DiT|FLAVAModel|FLAVATransformer\w*"
    r"|ImageTransformer"
    r"|FLAVAForPreTraining|TransformerEncoder|VisionTransformer\w*|SwinTransformerForSimMIM|Detector"
    r"|DeformableDETR"
    r"|DeformableTransformer\w*|MMDiTModel|ASTModel|Informer|(En|De)coder|PatchTST|PatchTSTEncoder|TSTEncoder"
    r"|SAINT|Sequential|ConformerEncoder|ProGenModel|UniMolModel|TransformerEncoderWithPair|Joiner"
    r"|Backbone)\[\w*\]"
)
#: Losses that are modules.
_LOSSES = (
    r"(SetCriterion|HungarianMatcher|LabelSmoothingLoss|KLDivLoss|FLAVAPretrainingLoss|MaskedPredictionLoss"
    r"|ITMLoss"
    r"|FLAVAGlobalContrastiveLoss|ColbertLoss|PolicyLoss|ValueLoss|CrossEntropyLoss)\[\w*\]"
)
_ROWS = (
    # losses, and heads within
    Row(r"MaskedPredictionHead\[\w+\]/Linear\[decoder\]", _PRODUCT, "logits",
        "torchmultimodal: of words, codes"),
    Row(r"(MaskedPredictionHead|TwoWayHead|Pooler)\[\w+\]" + _IN, r"(?!layer_norm).*", _HEAD,
        "torchmultimodal: losses/flava.py"),
    Row(_LOSSES, "normalize", "loss norm logits", "of length one"),
    Row(_LOSSES, _ANY, "loss logits", "their names"),
    Row(r"Actor\[\w+\]|CriticModel\[\w+\]", "cumsum|masked_fill_|sub|__eq__|roll|argmax|fliplr|long",
        f"loss {_MASK} embedding", "openrlhf: actor.py, model.py: places; the next"),
    Row(r"Actor\[\w+\]|CriticModel\[\w+\]", _ANY, "loss logits other", "openrlhf: log-probabilities; values"),
    Row(r"CriticModel\[\w+\]/Linear\[score\]", _ANY, _HEAD, "openrlhf: model.py"),
    Row(r"CondenserForPretraining\[\]", _ANY, f"{_BEFORE} attention.other loss", "modeling.py: [CLS], masks"),
    Row(r"EncoderOnlyEmbedderM3Model\[\]/Linear\[\w+\]", _ANY, _HEAD, "m3/modeling.py"),
    Row(r"EncoderOnlyEmbedderM3Model\[\]", "normalize", "norm loss logits other", "m3/modeling.py"),
    Row(r"EncoderOnlyEmbedderM3Model\[\]", _ANY, "loss logits other",
        "m3/modeling.py: words' weights as vectors, similarities"),
    Row(r"ColPali\[\w+\]/Linear\[\w+\]", _ANY, _HEAD, "modeling_colpali.py"),
    Row(r"ColPali\[\w+\]", _ANY, "logits loss norm other", "modeling_colpali.py: of length one"),
    Row(r"(SimMIM)\[\]", _ANY, "loss", "simmim.py"),
    Row(r"E2TTS\[\]", _ANY, f"loss {_BEFORE}", "e2_tts.py: noise and what is masked, in front; the loss"),
    # what stands in front of layers
    Row(_EMBEDS + _IN, r"(?!layer_norm).*", _BEFORE, "their names"),
    Row(r"Embedding\[\w+\]", "embedding|mul", "embedding", "tables"),
    Row(r"Linear\[(img_in|txt_in|cond_in|predictor_embed|action_encoder|state_encoder|W_P|wte|proj_in"
        r"|cond_proj_in|\w+_affine_layer|reference_points)\]|Sequential\[(to_time_cond|time_cond_mlp|bot_l)\]"
        r"/\w+\[\w+\]|DepthwiseConv\[\w+\]" + _IN, _ANY, _BEFORE, "first layers"),
    Row(r"DeformableDETR\[\]/Sequential\[\d\]/Conv2d\[0\]", _ANY, _BEFORE, "deformable_detr.py: input_proj"),
    Row(r"Linear\[image_to_mm_projection\]|Linear\[text_to_mm_projection\]", _ANY, "embedding other logits",
        "flava/model.py"),
    # experts
    Row(r"MLPBlock\[mlp\]/Linear\[gate\]", _ANY, "moe.router", "gpt_oss/torch/model.py"),
    Row(r"MLPBlock\[mlp\]", "topk|softmax", _ROUTES, "gpt_oss/torch/model.py"),
    Row(r"MLPBlock\[mlp\]", "add", "moe.experts residual moe.dispatch", "gpt_oss: biases; the residual"),
    Row(r"MLPBlock\[mlp\]", _ANY, "moe.experts moe.dispatch",
        "gpt_oss: experts' own weights for each token, SwiGLU, their weighted sum"),
    Row(r"MoHAttention\[\w+\]/Linear\[wg\w*\]", _ANY, "moe.router attention.*", "MoH: heads that are chosen"),
    Row(r"MoHAttention\[\w+\]", r"(?!scaled_dot).*", f"attention.* {_ROUTES} loss",
        "MoH: which heads, how much, the loss of it"),
    # a recurrence
    Row(r"RGLRU\[\w+\]/BlockDiagonalLinear\[\w+\]", _ANY, "ssm.projection ssm.scan other",
        "layers.py: gates"),
    Row(r"RGLRU\[\w+\]", _ANY, "ssm.scan other", "recurrentgemma: layers.py"),
    Row(r"RecurrentBlock\[\w+\]/Conv1D\[\w+\]", _ANY, "ssm.conv other", "recurrentgemma: layers.py"),
    Row(r"RecurrentBlock\[\w+\]/Linear\[\w+\]", _PRODUCT, "ssm.projection other",
        "recurrentgemma: modules.py"),
    Row(r"RecurrentBlock\[\w+\]", _ANY, "ssm.* other", "recurrentgemma: a gate"),
    Row(r"Griffin\[\]", "matmul", "logits", "griffin.py: the words' own table"),
    Row(r"Griffin\[\]", "__getitem__", "embedding", "griffin.py"),
    Row(r"Griffin\[\]", _ANY, "logits loss embedding", "griffin.py: a cap; a scale"),
    # heads that draft
    Row(r"MLPSpeculator\[\w+\](/(Linear|GELU)\[\w+\])?", _ANY, "logits other residual",
        "speculator.py: states of three heads, and these"),
    Row(r"ReDrafter\[\]/Sequential\[lm_head\]/Linear\[\d\]", _ANY, "logits", "train/model.py"),
    Row(r"Sequential\[lm_head\]/ResBlock\[\d\](/Linear\[\w+\])?", r"(?!add=).*", "logits other mlp.*",
        "modeling_drafter.py"),
    Row(r"Sequential\[lm_head\]/ResBlock\[\d\]", "add=", "residual logits other", "modeling_drafter.py"),
    Row(r"ReDrafter\[\](/(Linear|SiLU)\[\w*\])?", _ANY, "other logits embedding",
        "train/model.py: a recurrence"),
    # attention
    Row(r"\w*Rotary\w*\[\w+\]", _ANY, "attention.rope", "their names"),
    Row(r"EmbedND\[\w+\]", _ANY, "attention.rope embedding other", "Open-Sora: rotations"),
    Row(r"MSDeformAttn\[\w+\]/Linear\[value_proj\]", _ANY, "attention.qkv attention.other",
        "ms_deform_attn.py"),
    Row(r"MSDeformAttn\[\w+\]/Linear\[output_proj\]", _ANY, "attention.output", "ms_deform_attn.py"),
    Row(r"MSDeformAttn\[\w+\]", "softmax", "attention.softmax", "ms_deform_attn.py"),
    Row(r"MSDeformAttn\[\w+\]" + _IN, _ANY, "attention.*",
        "ms_deform_attn.py: where to look, and what is there"),
    Row(r"MultiHeadAttention\[\d\]/Conv1d\[conv_[qkvo]\]", _ANY, "attention.* other", "vits: attentions.py"),
    Row(r"\w*Attention\[\w+\]/Linear\[linear_pos\]|\w*Attention\[\w+\]/Sequential\[(to_gates"
        r"|to_learned_value_residual)\]/\w+\[\d\]|Attention\[\w+\]/Linear\[to_v_\w+\]", _ANY, "attention.*",
        "cosyvoice: of distances; transfusion.py: gates"),
    Row(rf"{_ATTENDS}\[(qkv|qkv_proj|qkv_fused|attn|proj_[qkv]|[qkv]_proj|kv_proj|query|key|value"
        r"|linear_[qkv]"
        r"|W_[QKV]|c_attn|in_proj|to_[qkv]|(query|key|value)_projection)\]"
        r"|\w*Attention\[\w+\]/Sequential\[to_(qk|v)\]/Linear\[\d\]"
        r"|(Double|Single)StreamBlock\[\d\]/Linear\[[qkv]_proj\]|DDiTBlock\[\d\]/Linear\[[qkv]w\]",
        _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(w_o|out|o_proj|proj|proj_final|dense|output|linear_out|out_projection|c_proj|out_proj"
        r"|to_out)\]|\w*Attention\[\w+\]/Sequential\[to_out\]/Linear\[\d\]"
        r"|DoubleStreamBlock\[\d\]/Linear\[proj\]|DDiTBlock\[\d\]/Linear\[attn_out\]",
        _PRODUCT, "attention.output", "their names"),
    Row(r"ScaledDotProductAttention\[\w+\]", "mul", "attention.*", "PatchTST: attention.py, a scale"),
    Row(r"AttentionBlock\[\w+\]", "add", "residual attention.*", "gpt_oss: of tokens in a row"),
    Row(r"SingleStreamBlock\[\d\]/Linear\[v_mlp\]", _PRODUCT, "attention.qkv mlp.up",
        "Open-Sora: both as one"),
    Row(r"SingleStreamBlock\[\d\]/Linear\[linear2\]", _PRODUCT, "attention.output mlp.down", "the same"),
    Row(r"SingleStreamBlock\[\d\]/GELU\[\w+\]", _ANY, _ACT, "Open-Sora: layers.py"),
    Row(r"Sequential\[mlp\]/Sequential\[dense_layer_\d\]/\w+\[\d\]", _ANY, "logits other mlp.*",
        "pytorch_widedeep: a head that is an MLP"),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT, up=f"{_PRODUCT}|einsum|add"),
    Row(r"FFN\[\d\]/Conv1d\[\w+\]", _ANY, "mlp.* other", "vits: attentions.py"),
    Row(r"(FeedForward\[\w+\]|GemmaMLP\[\w+\]|\w*MLP\[mlp\]|SwiGLU\[\w+\]|MLPBlock\[mlp_block\]"
        r"|Mlp\[mlp\]|FFN\[\d\]"
        r"|GatedLinearUnit\[\w+\]|MLP\[feedforward\]|PositionwiseFeedForward\[\w+\]"
        r"|DoubleStreamBlock\[\d\]/Sequential\[\w+_mlp\]|DDiTBlock\[\d\]/Sequential\[mlp\]"
        r"|TSTEncoderLayer\[\d\]/Sequential\[ff\])(/(Sequential|GLU)\[\w+\])*"
        r"(/\w*(GELU|GEGLU|SiLU|ReLU|GLU)\w*\[\w+\])?",
        _ANY, _ACT, "all"),
    Row(r"(Deformable\w+|En|De|TransformerEn)(coder)?Layer\[\d\]", "relu|gelu", _ACT,
        "deformable_transformer.py; Informer; unimol_tools"),
    # conditions, and what is around attention and MLP
    Row(r"Sequential\[adaLN_modulation\]/\w+\[\d\]|Linear\[(adaLN_modulation|to_film|to_ada_ln_zero"
        r"|to_gamma)\]"
        r"|Modulation\[\w+\]" + _IN, _ANY, _CONDITION, "MoH; OmniGen; Open-Sora; transfusion.py; e2_tts.py"),
    Row(r"DDitFinalLayer\[\w+\]/Linear\[linear\]", _PRODUCT, "logits", "flow_matching: of words"),
    Row(r"\w*FinalLayer\[\w+\]/Linear\[linear\]|LastLayer\[\w+\]/Linear\[linear\]", _PRODUCT, _HEAD,
        "MoH; OmniGen; Open-Sora; flow_matching: of words"),
    Row(r"(\w*FinalLayer|LastLayer)\[\w+\]", _ANY, "norm other logits", "shift and scale"),
    Row(r"(DiTBlock|AdaptiveWrapper)\[\w+\]", "add=", "residual", "MoH; transfusion.py"),
    Row(r"(DiTBlock|AdaptiveWrapper)\[\w+\]", _ANY, f"{_AROUND} {_CONDITION}", "shift, scale and gate"),
    Row(r"AdaLNZero\[\d\]", _ANY, _AROUND, "e2_tts.py: a gate"),
    Row(r"(DDiTBlock|DoubleStreamBlock|SingleStreamBlock)\[\d\]", "add=",
        "residual attention.rope attention.other", "rotations, too"),
    Row(r"(DDiTBlock|DoubleStreamBlock|SingleStreamBlock)\[\d\]", "mul|add|chunk",
        f"{_AROUND} attention.rope", "shift, scale, gate, rotations"),
    Row(r"(DDiTBlock|DoubleStreamBlock)\[\d\]", r"(?!dropout|scaled).*", f"{_ROTATES} attention.* other",
        "rotations; both streams; heads, laid out"),
    Row(r"SingleStreamBlock\[\d\]", r"(?!dropout|scaled).*", f"{_ROTATES} attention.* mlp.other other",
        "rotations; halves; heads, laid out"),
    Row(r"AttentionResidual\[\d\]", _ANY, "residual other attention.* norm",
        "transfusion.py: of layers before"),
    Row(r"HyperConnections\[\d+\](/\w+\[\w+\])?|Reduce\[\w+\]", _ANY, "residual other norm",
        "hyper_connections: streams"),
    Row(r"Transformer\[transformer\]/Linear\[\d+\]", _ANY, "other residual",
        "transfusion.py; e2_tts.py: skips"),
    Row(r"TextAudioCrossCondition\[\d\]" + _IN, _ANY, "other embedding residual", "e2_tts.py: both streams"),
    Row(r"Deformable\w+Layer\[\d\]", "add=", "residual embedding attention.other", "places of queries, too"),
    Row(r"SwinTransformerBlock\[\d\]", r"(?!add=).*", "attention.other other residual mlp.other",
        "SimMIM: windows, shifted"),
    Row(r"(SaintEncoder|\w*(En|De)coderLayer)\[\w+\]", r"(?!add=|dropout).*",
        "other residual attention.other mlp.other", "features as rows; Informer: laid out"),
    Row(r"ProGenMLP\[\w+\]/\w+\[act\]", _ANY, _ACT, "modeling_progen.py"),
    # distances of atoms
    Row(r"(GaussianLayer|NonLinearHead)\[\w+\]" + _IN, _ANY, f"attention.other {_BEFORE} mlp.*",
        "unimol.py: a bias of pairs"),
    Row(r"TransformerEncoderWithPair\[\w+\]", r"(?!add=|dropout).*", f"{_MASK} loss norm embedding",
        "unimol_tools: pairs and how long they are"),
    # convolutions around transformers
    Row(r"IntermediateLayerGetter\[\w+\]" + _IN, "batch_norm", "norm other", "torchvision: resnet.py"),
    Row(r"FrozenBatchNorm2d\[\w+\]", _ANY, "norm other", "backbone.py"),
    Row(r"IntermediateLayerGetter\[\w+\]" + _IN, _ANY, "other residual embedding", "torchvision: resnet.py"),
    Row(r"DalleVAEEncoder\[\w+\]" + _IN, _ANY, "other residual embedding loss",
        "flava/model.py: codes to be told"),
    Row(r"ConvLayer\[\d\]" + _IN, _ANY, "other", "Informer: half as many"),
    Row(r"TextEncoder\[\w+\](/Conv1d\[proj\])?", _ANY, "embedding other logits", "vits: models.py"),
    Row(r"TextEncoder\[\w+\]/Encoder\[\w+\]", r"(?!add=|dropout).*", "other attention.other mlp.other",
        "masks"),
    Row(r"(Generator|PosteriorEncoder|ResidualCouplingBlock|DurationPredictor)\[\w+\]" + _IN,
        r"(?!layer_norm|dropout).*", "other residual", "vits: models.py, modules.py"),
    Row(r"(SynthesizerTrn|MultiPeriodDiscriminator)\[\w+\](/Discriminator[PS]\[\d\](/\w+\[\w+\])?)?", _ANY,
        "other loss logits", "vits: models.py: which sound when; judges"),
    # heads
    Row(r"GPT\[gpt\]/Linear\[lm_head\]", _PRODUCT, _HEAD, "vq_behavior_transformer/gpt.py: what heads take"),
    Row(r"Linear\[(unembedding|lm_head|to_text_logits|llm_decoder)\]", _PRODUCT, "logits", "their names"),
    Row(r"Linear\[(predictor_proj|to_pred|projection|linear|head|image_projection|text_projection)\]",
        _PRODUCT, _HEAD, "their names"),
    Row(r"Sequential\[(decoder|mlp_head|top_l)\]/\w+\[\d\]|LinearHead\[\w+\]" + _IN + r"|PretrainHead\[\w+\]",
        r"(?!layer_norm|dropout).*", _HEAD, "last layers"),
    Row(r"MLP\[(class_embed|bbox_embed|bins|offsets|\d)\](/\w+\[\d\])?|DeformableDETR\[\]/Linear\[\d\]", _ANY,
        "logits other mlp.*", "heads that are MLPs"),
    Row(r"Linear\[\d\]", _PRODUCT, "embedding logits other", "transfusion.py: pictures as tokens, and back"),
    # what is left of whole models
    Row(r"DLRM_Net\[\](/EmbeddingBag\[\d+\])?", _ANY, "other embedding", "dlrm_s_pytorch.py"),
    Row(r"(Transformer|Encoder|GPT)\[\w*\]", "add=", "residual embedding other", "places"),
    Row(_WHOLE, "add=", "embedding other residual logits", "places"),
    Row(_WHOLE, r"(?!add=|dropout).*", f"embedding {_HEAD} attention.other",
        "tokens, places, masks, scales; the result"),
    Row(r"(ProGenForCausalLM)\[\]", _ANY, "logits loss", "modeling_progen.py"),
)  # fmt: skip
_ATTENTION = re.compile(r"(Attention|AttentionBlock|AttentionLayer|Attend)$")
_PLAIN = re.compile(r"\w*(Layer|RMS|Rms)Norm|LayerNormParameterized|Fp32LayerNorm|AdaptiveRMSNorm")
_MAPS = re.compile(r"\w*(Group|Batch|Instance)Norm(\dd)?")
#: What is of transformers.
_LIBRARY = re.compile(
    r"(Llama|Qwen3|Llava|CLIP|Olmoe|Bert|ModernBert|XLMRoberta|PaliGemma|Gemma|Siglip|Phi3)\w*"
    r"|Peft\w*|LoraModel"
)
#: What a script calls of logits, of noise, and of what is masked.
_OF_LOGITS = ("tanh", "mul", "div", "amax", "logsumexp", "flatten", "unflatten", "exp")
_OF_NOISE = ("rand", "randn_like", "arange", "masked_fill", "__invert__", "zeros", "ones_like")
_FUNCTIONS = (
    "cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div",
)  # fmt: skip


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return _of_script(function, weighted=weighted, equal=equal)
    if found := settled(place, function, _FUNCTIONS):
        return found
    own = place.classes[-1]
    start = next((at for at, kind in enumerate(place.classes) if _LIBRARY.fullmatch(kind)), -1)
    if start >= 0 and not (place.classes[0] == "GemmaModel" and place.names[0] == "model"):
        if found := row_of(_LIBRARY_ROWS, place, function, equal=equal):
            return found
        inner = Place(place.classes[start:], place.names[start:], place.seen)
        return recipes_truth.truth_of(inner, function, weighted=weighted, equal=equal)
    if function == "_weight_norm":
        return "norm"
    if _MAPS.fullmatch(own):
        return "norm other"
    if function in _NORMS or _PLAIN.fullmatch(own):
        return "norm"
    found = row_of(_ROWS, place, function, equal=equal)
    return found or unlisted(place, function, _ATTENTION, weighted=weighted, equal=equal)


def _of_script(function: str, *, weighted: bool, equal: bool) -> str:
    found = recipes_truth.truth_of(Place((), (), ""), function, weighted=weighted, equal=equal)
    if found == "loss" and function in _OF_LOGITS:
        return "loss logits"
    return "loss embedding other" if found == "loss" and function in _OF_NOISE else found
