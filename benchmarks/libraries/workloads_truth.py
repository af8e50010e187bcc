"""What each piece of the models of the ninth list is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. What a model of
transformers or an adapter of peft holds is for what ``recipes_truth.py`` says of it, where no row here names
it. Mixtral of mistral-inference and LLaMA of LLaMA-Adapter call attention and MLP by methods, not as modules:
what they compute stands in the block, and a product of elements there is a rotation, a gate or a weight of an
expert. JetMoE's attention has experts for its queries and for its result: either word is right.
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries import recipes_truth
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK, _ROUTES, _SENDS, _STOCHASTIC
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.recipes_truth import _OF_LOGITS
from benchmarks.libraries.repos_truth import _ROTATES, _SCALE
from benchmarks.libraries.truth import _NORMS, _in_attention

_PRODUCT = "linear|addmm|conv[123]d"
#: A module that attends, and what holds a product in it.
_ATTENDS = r"(\w*Attention(3D)?)\[\w+\]/\w+"
_FEED_FORWARDS = (
    (r"(Mlp|MLP)\[\w*mlp\]", "fc1", "", "fc2", "TimeSformer; Swin; Motionformer; ImageBind; hyvideo; timm"),
    (r"FeedForward\[mlp\]", "fc1", "", "fc2", "segm/model/blocks.py"),
    (r"SiglipMLP\[mlp\]", "fc1", "", "fc2", "open-pi-zero: siglip.py"),
    (r"FeedForwardNetwork\[[AB]\]", "fc1", "", "fc2", "torchscale: feedforward_network.py"),
    (r"VisionTransformer\[\]/Block\[\d+\]", "fc1", "", "fc2", "AdaptFormer: custom_modules.py"),
    (r"WhisperEncoderLayer\[\d\]", "fc1", "", "fc2", "modeling_whisper.py"),
    (r"WhisperDecoderLayer\[\d\]", "fc1", "", "fc2", "modeling_whisper.py"),
    (r"Dinov2MLP\[mlp\]", "fc1", "", "fc2", "modeling_dinov2.py"),
    (r"MLP\[mlp\]", "c_fc", "", "c_proj", "train_gpt2.py"),
    (r"Sequential\[mlp\]", "c_fc", "", "c_proj", "CLIP's, in UniFormerV2, X-CLIP and LLaMA-Adapter"),
    (r"PromptGeneratorLayer\[\d\]/Sequential\[mlp\]", "0", "", "3", "X-CLIP: prompt.py"),
    (r"MLP\[mlp\]", "up", "", "down", "SpeedrunningPLMs: model/utils.py"),
    (r"SwiGLU\[ffn\]", "w12", None, "w3", "xformers: swiglu_op.py"),
    (r"FFNComponent\[ffn\]", "dense_in", None, "dense_out", "cramming: components.py, GLU"),
    (r"FeedForward\[ff\]/Sequential\[layers\]", "0", "", "2", "gpt_with_kv_mla.py"),
    (r"\w*Transformer(En|De)coderLayer\[\d\]", "linear1", "", "linear2", "act; RT-DETR; torch.nn"),
    (r"StreamingTransformerLayer\[\d\]", "linear1", "", "linear2", "audiocraft/modules/transformer.py"),
    (r"(DeepseekV2MLP|GemmaMLP|LlamaMLP|MistralMLP|Qwen2MLP)\[mlp\]", "up_proj", "gate_proj", "down_proj",
     "modeling_deepseek.py; open-pi-zero: paligemma/modules.py; transformers"),
    (r"LLaMA_adapter\[\]/TransformerBlock\[\d\]", "w3", "w1", "w2", "llama.py: FeedForward"),
    (r"TransformerLayer\[cross_attn_ffn\]/Sequential\[mlp\]", "0", "", "2", "gmflow/transformer.py"),
)  # fmt: skip
_EMBEDS = (
    r"(\w*(Timestep|MLP)Embedder|PatchEmbed(ding|3D|Generic)?|TextProjection|EmbeddingComponent|ScaledSinosoidal"
    r"|(Vision|Text|Positional)Embedding|(RGBDT|Audio)Preprocessor|SpatioTemporalPosEmbeddingHelper|Im2Video"
    r"|PadIm2Video|PositionEmbeddingSine|SinusoidalPosEmb|SiglipVisionEmbeddings|ScaledEmbedding"
    r"|Dinov2\w*Embeddings|RobertaEmbeddings|Whisper\w*Embedding|EinOpsRearrange)\[\w+\]"
)
_LAST = "logits other"
_ROWS = (
    # what stands in front of layers
    Row(_EMBEDS + _IN, _ANY, "embedding other", "their names"),
    Row(r"ValueEmbedding\[\w+\]/Embedding\[\d\]", _ANY, "embedding attention.other", "of values"),
    Row(r"Sequential\[patch_to_embedding\]/(Linear|Rearrange)\[\d\]|Linear\[(input_embedder|proj_dec"
        r"|latent_out_proj|input_proj_robot_state|encoder_(action|joint)_proj|clip_proj|visual_proj"
        r"|proprio_encoder)\]|Conv[23]d\[(conv1|input_proj)\]", _PRODUCT, "embedding other", "first layers"),
    Row(r"ActionEncoder\[\w+\]" + _IN, _ANY, "embedding other mlp.*", "open-pi-zero: vla/modules.py"),
    Row(r"PaliGemmaMultiModalProjector\[\w+\]" + _IN, _ANY, "embedding other mlp.*", "siglip.py"),
    Row(r"(MLP\[query_pos_head\])" + _IN, _ANY, "embedding other attention.other mlp.*", "RT-DETR: places"),
    Row(r"RTDETRTransformer\[\w+\]/Sequential\[\d\]/\w+\[\w+\]", _ANY, "embedding other", "input_proj"),
    Row(r"Transformer\[transformer\]/Conv3d\[\d\]", _ANY, "embedding other attention.other",
        "uniformerv2_model.py: dpe"),
    Row(r"PatchMerging\[\w+\](/Linear\[reduction\])?", _ANY, "embedding other", "swin_transformer.py"),
    # heads that hold an MLP
    Row(r"Sequential\[head\]/\w+\[\d\]|MLP\[(enc_bbox_head|\d)\](/\w+\[\w+\])?|TransformerDecoder\[\w+\]/Linear"
        r"\[\d\]", _ANY, "logits other mlp.*", "a click model; RT-DETR"),
    # convolutions around transformers
    Row(r"(Joiner\[\d\]/)?Backbone\[\d\]" + _IN, _ANY, "other embedding residual", "act: backbone.py"),
    Row(r"(PResNet|CNNEncoder)\[\w+\]" + _IN, _ANY, "other embedding residual", "RT-DETR; gmflow"),
    Row(r"HybridEncoder\[\w+\]/(ConvNormLayer|CSPRepLayer|Sequential)\[\d\]" + _IN, _ANY,
        "other embedding residual", "hybrid_encoder.py: between the maps"),
    Row(r"Local_MHRA\[\w+\]/Sequential\[pos_embed\]/Conv3d\[\d\]", _ANY, "other attention.*",
        "uniformerv2_model.py: convolutions that relate neighbours"),
    # mixtures of experts
    Row(r"Linear\[weight_noise\]|Sequential\[gate_network\]/Linear\[\d\]"
        r"|TransformerBlock\[\d\]/Linear\[gate\]|MoE\[mlp\]/top_k_gating\[router\]/Linear\[layer\]", _PRODUCT,
        "moe.router", "llama-moe; mistral-inference; JetMoE"),
    Row(r"(MoE\[mlp\]/top_k_gating\[router\]|TopKBalancedNoisyGate\[gate\])"
        r"(/\w+\[\w+\])*", _ANY, f"{_ROUTES} loss", "the same; their losses"),
    Row(r"MoEGate\[gate\]", "linear", "moe.router", "modeling_deepseek.py"),
    Row(r"MoEGate\[gate\]", _ANY, f"{_ROUTES} loss", "modeling_deepseek.py"),
    Row(r"Transformer\[\]/TransformerBlock\[\d\]/FeedForward\[\d\]" + _IN, _ANY, "moe.experts",
        "mistral-inference: transformer_layers.py"),
    Row(r"DeepseekV2MoE\[mlp\]/DeepseekV2MLP\[\d+\]" + _IN, _ANY, "moe.experts", "modeling_deepseek.py"),
    Row(r"DeepseekV2MLP\[shared_experts\]/Linear\[gate_proj\]", _ANY, "moe.experts mlp.gate", "the same"),
    Row(r"DeepseekV2MLP\[shared_experts\]/Linear\[up_proj\]", _ANY, "moe.experts mlp.up", "the same"),
    Row(r"DeepseekV2MLP\[shared_experts\]/Linear\[down_proj\]", _ANY, "moe.experts mlp.down", "the same"),
    Row(r"DeepseekV2MLP\[shared_experts\](/\w+\[act_fn\])?", _ANY, f"moe.experts {_ACT}", "the same"),
    Row(r"DeepseekV2MoE\[mlp\]", "add=", f"{_SENDS} residual", "modeling_deepseek.py: y + shared"),
    Row(r"LinearGLUExperts\[experts\](/\w+\[act_fn\])?", _ANY, "moe.experts", "moe_experts.py"),
    Row(r"MoE\[mlp\]/ParallelExperts\[\w+\]", _ANY, "moe.experts moe.dispatch", "parallel_experts.py"),
    Row(r"MoE\[mlp\](/\w+\[activation\])?", "mul|chunk|silu", "moe.experts moe.dispatch", "JetMoE: moe.py"),
    Row(r"(DeepseekV2MoE\[mlp\]|UniversalCalculator\[\w+\]|LinearGLUMoELayer\[mlp\]"
        r"|MoE\[mlp\])", _ANY, _SENDS, "there and back"),
    Row(r"MultiExpertLayer\[experts\]", _ANY, "moe.experts", "soft_mixture_of_experts/multi_expert.py"),
    Row(r"SoftMoE\[moe\]", "einsum", f"{_ROUTES} moe.experts", "soft_moe.py: phi; to slots and back"),
    Row(r"SoftMoE\[moe\]", _ANY, _ROUTES, "soft_moe.py"),
    Row(r"SoftMoEEncoderLayer\[\d\]/Linear\[linear\]", _ANY, "mlp.up moe.experts",
        "transformer.py: the first half of a feed-forward network whose second half are experts"),
    Row(r"SoftMoEEncoderLayer\[\d\]", "relu", f"{_ACT} moe.experts", "transformer.py"),
    # JetMoE's attention
    Row(r"JetMoE\w*Attention\[\w+\]/ParallelExperts\[input_linear\]", _ANY,
        "attention.qkv attention.other moe.experts moe.dispatch", "JetMoE: moe.py, map"),
    Row(r"JetMoE\w*Attention\[\w+\]/ParallelExperts\[output_linear\]", _ANY,
        "attention.output attention.other moe.experts moe.dispatch", "JetMoE: moe.py, reduce"),
    Row(r"JetMoE\w*Attention\[\w+\]/top_k_gating\[router\](/Linear\[layer\])?", _ANY,
        f"{_ROUTES} attention.other loss", "JetMoE: gate.py"),
    Row(r"JetMoE\w*Attention\[\w+\]", "add=|neg|repeat|cat", _ROTATES, "modeling_jetmoe.py"),
    Row(r"JetMoE\w*Attention\[\w+\]", _ANY, f"{_ROTATES} {_SENDS}", "modeling_jetmoe.py: experts, too"),
    # attention
    Row(r"FeatureFlowAttention\[\w+\]/Linear\[\w+\]", _ANY, "attention.qkv other", "gmflow/transformer.py"),
    Row(r"(\w*(Rotary|RoPE)\w*)\[\w+\]", _ANY, "attention.rope", "their names"),
    Row(rf"{_ATTENDS}\[(c_attn|query|key|value|q|k|v|kv|qkv|w[qkv]|W[qkv]|[qkv]_proj|kv_proj|query_key_value"
        r"|W_(query|key|value|UK|UV|DKV)|proj_q|proj_kv|q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj"
        r"|value_proj)\]", _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(c_proj|proj|o_proj|out_proj|wo|Wo|output_proj)\]|AttentionComponent\[attn\]/Linear"
        r"\[dense\]|Extractor\[\d\]/\w+\[out_proj\]", _PRODUCT, "attention.output", "their names"),
    Row(r"MultiwayNetwork\[[qkv]_proj\]/Linear\[[AB]\]", _PRODUCT, "attention.qkv", "torchscale"),
    Row(r"MultiwayNetwork\[out_proj\]/Linear\[[AB]\]", _PRODUCT, "attention.output", "torchscale"),
    Row(r"Block\[\d\]/Linear\[temporal_fc\]", _PRODUCT, "attention.output attention.other other",
        "timesformer/models/vit.py: after attention over time"),
    Row(r"CrossFramelAttentionBlock\[\d\]/Linear\[message_fc\]", _PRODUCT, "other attention.*",
        "X-CLIP: cct.py, tokens of messages"),
    Row(r"(TransformerBlock|EncoderBlock)\[\w+\]/Linear\[(w[qkv]|qkv)\]", _PRODUCT, "attention.qkv",
        "mistral-inference; LLaMA-Adapter; NeoBERT"),
    Row(r"(TransformerBlock|EncoderBlock)\[\w+\]/Linear\[wo\]", _PRODUCT, "attention.output", "the same"),
    Row(r"JointModel\[\w+\]/Linear\[[qkv]_proj\]", _PRODUCT, "attention.qkv", "mixture.py"),
    Row(r"JointModel\[\w+\]/Linear\[o_proj\]", _PRODUCT, "attention.output", "mixture.py"),
    Row(r"(MMDoubleStreamBlock|IndividualTokenRefinerBlock)\[\d\]/Linear\[(img|txt|self)_attn_qkv\]",
        _PRODUCT, "attention.qkv", "hyvideo/modules/models.py; token_refiner.py"),
    Row(r"(MMDoubleStreamBlock|IndividualTokenRefinerBlock)\[\d\]/Linear\[(img|txt|self)_attn_proj\]",
        _PRODUCT, "attention.output", "the same"),
    Row(r"MMSingleStreamBlock\[\d\]/Linear\[linear1\]", _ANY, "attention.qkv mlp.up", "both as one"),
    Row(r"MMSingleStreamBlock\[\d\]/Linear\[linear2\]", _ANY, "attention.output mlp.down", "both as one"),
    Row(r"MSDeformableAttention\[\w+\]/Linear\[(sampling_offsets|attention_weights)\]", _ANY, "attention.*",
        "rtdetr_decoder.py"),
    Row(r"TransformerLayer\[\w+\]/Linear\[[qkv]_proj\]", _PRODUCT, "attention.qkv", "gmflow/transformer.py"),
    Row(r"TransformerLayer\[\w+\]/Linear\[merge\]", _PRODUCT, "attention.output", "gmflow/transformer.py"),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT),
    Row(r"Adapter\[adaptmlp\]" + _IN, _ANY, "mlp.*", "AdaptFormer: beside the MLP"),
    Row(r"((Mlp|MLP|FeedForward|SiglipMLP|GemmaMLP|DeepseekV2MLP|Dinov2MLP|FeedForwardNetwork|SwiGLU"
        r"|FFNComponent)\[\w+\])(/(GLU|Sequential)\[(nonlin|layers)\])?(/\w*(GELU|ReLU|SiLU|GELUTanh|Activation"
        r")\[\w+\])?|Sequential\[mlp\]/\w*GELU\[\w+\]|(Block|MMSingleStreamBlock)\[\d\]/GELU\[\w*act\]",
        _ANY, _ACT, "all"),
    Row(r"\w*Transformer(En|De)coderLayer\[\d\](/\w*(GELU|ReLU)\[\w+\])?|StreamingTransformerLayer\[\d\]",
        "relu|gelu|clamp", _ACT, "act; RT-DETR; audiocraft; torch.nn"),
    Row(r"WhisperEncoderLayer\[\d\]/\w+\[activation_fn\]|WhisperDecoderLayer\[\d\]/\w+\[activation_fn\]",
        _ANY, _ACT, "modeling_whisper.py"),
    # conditions, and what is around attention and MLP
    Row(r"(ModulateDiT\[\w+\]|Sequential\[adaLN_modulation\])/\w+\[\w+\]", _ANY, _CONDITION, "hyvideo"),
    Row(r"FinalLayer\[\w+\]/Linear\[linear\]", _PRODUCT, _LAST, "hyvideo: mlp_layers.py"),
    Row(r"FinalLayer\[\w+\]", _ANY, "norm other logits", "shift and scale"),
    Row(r"MM\w+StreamBlock\[\d\]", "add=", "residual attention.rope attention.other", "rotations, too"),
    Row(r"MM\w+StreamBlock\[\d\]", "mul|add", f"{_AROUND} attention.rope", "shift, scale, gate, rotations"),
    Row(r"MM\w+StreamBlock\[\d\]", _ANY, "attention.* mlp.other other", "both streams, rotations"),
    Row(r"IndividualTokenRefinerBlock\[\d\]", r"(?!add=).*", f"{_AROUND} attention.*", "token_refiner.py"),
    Row(r"(SingleTokenRefiner|IndividualTokenRefiner)\[\w+\]", _ANY, f"{_MASK} embedding", "masks, means"),
    Row(r"DropPath\[\w+\]|Whisper\w+DropPath\[\w+\]", _ANY, _STOCHASTIC, "stochastic depth"),
    Row(r"Dinov2LayerScale\[\w+\]", _ANY, _SCALE, "modeling_dinov2.py"),
    Row(r"SwinTransformerBlock3D\[\d\]|BasicLayer\[\d\]", r"(?!add=).*", f"{_MASK} residual embedding",
        "windows, shifted; their masks"),
    Row(r"(VisionTransformer\[\w*\]/|Transformer\[\w*\]/)(Block|ResidualAttentionBlock)\[\d\]",
        r"(?!add=).*", "other residual attention.other", "laid out for time and for space; what is local"),
    Row(r"(ResidualAttentionBlock|CrossFramelAttentionBlock)\[\d\]", r"(?!add=).*",
        "other residual attention.other", "X-CLIP: tokens of messages, masks"),
    Row(r"EncoderLayer\[\d\]", "mul", _SCALE, "torchscale: alpha"),
    Row(r"MultiwayNetwork\[\w+\]", _ANY, "other attention.other mlp.other residual norm", "torchscale"),
    Row(r"GPT\[\]/Block\[\d\]", "mul|__rmul__", _SCALE, "train_gpt2.py: attn_scale"),
    Row(r"PLM\[\].*/TransformerBlock\[\d\]", "mul|add|__getitem__", "residual embedding other",
        "SpeedrunningPLMs: of two dimensions; beside the embedding"),
    Row(r"UnetTransformer\[\w+\]", _ANY, "residual other", "SpeedrunningPLMs: skips"),
    Row(r"TransAct\[.*/TransformerEncoderLayer\[\d\]", "add=", "residual", "torch.nn"),
    Row(r"(TransformerEncoderLayer|TransformerDecoderLayer)\[\d\]", "add=",
        "residual embedding attention.other", "places of queries and keys, too"),
    # Extractor of UniFormerV2 and blocks without modules for attention
    Row(r"Extractor\[\d\]", "add=", "residual", "uniformerv2_model.py"),
    Row(r"EncoderBlock\[\d\]", r"(?!add=).*", _ROTATES, "NeoBERT: rotations; heads, laid out"),
    Row(r"Transformer\[\]/TransformerBlock\[\d\]", "softmax|topk|where|__eq__|zeros_like|add_?",
        "moe.router moe.dispatch moe.experts residual", "mistral-inference: moe.py, and around it"),
    Row(r"Transformer\[\]/TransformerBlock\[\d\]", "__setitem__|__getitem__", _SENDS, "moe.py"),
    Row(r"Transformer\[\]/TransformerBlock\[\d\]", r"view_as\w+|repeat_interleave|flatten|reshape|float",
        "attention.rope attention.other", "rope.py; keys and values for more queries"),
    Row(r"Transformer\[\]/TransformerBlock\[\d\]", r"(?!add=).*", f"{_ROTATES} {_SENDS} residual",
        "rotations, weights of experts; the stream has two dimensions"),
    Row(r"LLaMA_adapter\[\]/TransformerBlock\[\d\]", "silu", _ACT, "llama.py"),
    Row(r"LLaMA_adapter\[\]/TransformerBlock\[\d\]", "mul", f"{_ROTATES} {_ACT} attention.softmax",
        "llama.py: rotations, the gate of the adapter, SwiGLU"),
    Row(r"LLaMA_adapter\[\]/TransformerBlock\[\d\]", "add=", "residual attention.other", "the adapter, too"),
    Row(r"LLaMA_adapter\[\]/TransformerBlock\[\d\]|JointModel\[\w+\]|TransformerLayer\[\w+\]|Extractor\[\d\]"
        r"|TransformerBlock\[\w+\]", "softmax", "attention.softmax", "in no module for attention"),
    Row(r"LLaMA_adapter\[\]/TransformerBlock\[\d\]|JointModel\[\w+\]|TransformerLayer\[\w+\]"
        r"|TransformerBlock\[\w+\]", "matmul|einsum", "attention.scores attention.values attention.other",
        "in no module for attention"),
    Row(r"LLaMA_adapter\[\]/TransformerBlock\[\d\]", _ANY, "attention.*", "llama.py"),
    Row(r"JointModel\[\w+\]", "add=", "residual attention.rope attention.other", "joint_model.py"),
    Row(r"JointModel\[\w+\]", "mul_", "embedding other", "joint_model.py: normalizer"),
    Row(r"JointModel\[\w+\]", _ANY, "attention.* other", "joint_model.py: rotations, softcap, parts"),
    Row(r"TransformerLayer\[\w+\]", r"(?!add=|cat).*", "attention.* other", "gmflow: windows, shifted"),
    Row(r"TransformerLayer\[\w+\]", "cat", "mlp.other attention.other other", "gmflow: what MLPs take"),
    Row(r"FeatureFlowAttention\[\w+\]", _ANY, "attention.* other logits", "gmflow: the flow, propagated"),
    # models of transformers
    Row(r"WhisperEncoder\[\w+\](/Conv1d\[conv[12]\])?|WhisperDecoder\[\w+\]", r"(?!add=).*",
        "embedding other attention.other", "modeling_whisper.py: the first layers, places, masks"),
    Row(r"Whisper(En|De)coder\[\w+\]", "add=", "embedding", "modeling_whisper.py: places"),
    Row(r"Dinov2ForImageClassification\[\w+\]", "__getitem__|mean|cat", _LAST, "the pool"),
    # heads and losses
    Row(r"(SetCriterion|HungarianMatcher|ClipLoss)\[\w+\](/HungarianMatcher\[\w+\])?", _ANY, "loss logits",
        "their names"),
    Row(r"CrossEntropyLoss\[\w*\]", _ANY, "loss", "its name"),
    Row(r"Linear\[(lm_head|output|decoder|head|out|out_head|fc_cls)\]|LMModel\[\]/Linear\[\d\]", _PRODUCT,
        "logits", "their names"),
    Row(r"Linear\[(out_linear|action_head|is_pad_head|language_head|vision_head|action_decoder"
        r"|enc_score_head|classifier|proj_out|latent_proj)\]|Sequential\[(proj|enc_output|upsampler|pre_logits)\]/(?!LayerNorm)\w+"
        r"\[\w+\]|Sigmoid\[sigmoid\]", _ANY, _LAST,
        "their names"),
    Row(r"LMHead\[lm_head\](/\w+\[\w+\])*", r"(?!rms_norm).*", "logits other loss", "SpeedrunningPLMs"),
    Row(r"ImageBindModel\[\]/Sequential\[(vision|audio)\]/(Normalize|LearnableLogitScaling)\[\d\]", _ANY,
        "loss logits norm other", "imagebind_model.py"),
    Row(r"ImageBindModel\[\]/Sequential\[(vision|audio)\]/(?!LayerNorm)\w+\[\d\]", _ANY, _LAST, "the same"),
    Row(r"MaskTransformer\[\w+\]", "matmul", _LAST, "segm/model/decoder.py"),
    Row(r"MaskTransformer\[\w+\]", "norm|div", "norm logits other", "segm/model/decoder.py"),
    Row(r"VideoSpecificPrompt\[\w+\]", _ANY, "other residual logits embedding", "X-CLIP: alpha"),
    Row(r"MultiframeIntegrationTransformer\[\w+\]", "mean|type", _LAST, "X-CLIP: mit.py"),
    Row(r"MultiframeIntegrationTransformer\[\w+\]", "add=?", "residual embedding", "X-CLIP: mit.py"),
    Row(r"XCLIP\[\]", "norm|div", "loss logits other norm", "xclip.py"),
    Row(r"XCLIP\[\]", "matmul|einsum|mul|exp|mean", "logits other embedding loss", "xclip.py"),
    Row(r"XCLIP\[\]", "add=", "residual other logits embedding", "xclip.py: words, as the clip prompts them"),
    Row(r"(BEiT3ForRetrieval|ImageBindModel)\[\]", _ANY, "loss logits other norm", "of length one"),
    # what is left of whole models
    Row(r"Transformer\[\]", "float", "logits loss", "mistral-inference: outs.float()"),
    Row(r"GPT\[\]", "float|div|tanh|mul|view", "logits loss", "train_gpt2.py: softcap"),
    Row(r"\w+ForCausalLM\[\]", "float|to|contiguous|pad|__getitem__", "loss logits", "what the loss takes"),
    Row(r"JetMoEForCausalLM\[\]|JetMoEModel\[\w+\]|JetMoEBlock\[\d\]", "mul|add_?",
        f"loss {_ROUTES} residual", "modeling_jetmoe.py: losses of routers"),
    Row(r"ScriptableLMForPreTraining\[\]", _ANY, "logits other loss", "crammed_bert.py: words that are told"),
    Row(r"PiZero\[\]", "mul|pow|sub|mean|add=?|__rsub__|randn_like", "embedding other loss", "flow matching"),
    Row(r"PiZero\[\]", _ANY, "embedding other", "pizero.py: pictures among words"),
    Row(r"GMFlow\[\]", _ANY, "logits other loss attention.* embedding", "matching.py; flow, upsampled"),
    Row(r"(Segmenter|TransAct)\[\w*\]", "interpolate|max|__getitem__|cat", "logits other embedding",
        "maps as large as the picture; what is pooled"),
    Row(r"TransformerDecoder\[\w+\]|RTDETRTransformer\[\w+\]", _ANY, "logits other embedding attention.other",
        "RT-DETR: boxes, what is chosen; places"),
    Row(r"VisionTransformer\[\]/Transformer\[transformer\]", "mul|__rsub__|mean|add", _LAST, "balance"),
    Row(r"VisionTransformer\[\]/Transformer\[transformer\]", _ANY, "other embedding residual attention.other",
        "uniformerv2_model.py: what the global block is given"),
    Row(r"(SoftMoEViT|VisionTransformer)\[\w*\]", "mean|__getitem__", "logits other embedding", "the pool"),
    Row(r"LMModel\[\]", "stack", "logits loss", "audiocraft/models/lm.py"),
    Row(r"LLaMA_adapter\[\]", "__getitem__|reshape", "loss logits embedding other", "what the loss takes"),
    Row(r"(VisionTransformer|SoftMoEViT|CrossFrameCommunicationTransformer|XCLIP|MaskTransformer|Segmenter"
        r"|DETRVAE|SwinTransformer3D|TransAct|SiglipVision\w+|GPTModel|LMModel"
        r"|SiglipEncoder|SimpleTransformer)\[\w*\]", _ANY, "embedding other logits",
        "tokens, places, the result"),
    Row(r"(Transformer|(Deepseek|JetMoE)\w*Model|\w*Encoder|StreamingTransformer|FeatureTransformer|HYVideo\w+|GPT|PLM"
        r"|NeoBERTLMHead|LLaMA_adapter|ScriptableLM|BEiT3)\[\w*\]", _ANY,
        f"embedding {_MASK} attention.rope", "places, rotations, masks"),
)  # fmt: skip
#: What of these is found in models of transformers.
_OF_LIBRARIES = tuple(
    row for row in _ROWS if re.search("Whisper|Dinov2|LinearGLU|gate_network|DropPath", row.where)
)
_ATTENTION = re.compile(r"^(\w*(?<!FeatureFlow)Attention(3D)?|Extractor)$")
_PLAIN = re.compile(r"\w*(Layer|RMS|Rms)Norm")
_MAPS = re.compile(r"\w*(Group|Batch|Instance)Norm(\dd)?")
_LOSSES = ("cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy_with_logits")
#: What is of transformers or of peft as a whole.
_LIBRARY = re.compile(r"Peft\w*|(Llama|Roberta)For\w+")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return "loss logits other" if re.fullmatch(f"{_OF_LOGITS}|mean", function) else "loss"
    if found := settled(place, function, _LOSSES):
        return found
    library = _LIBRARY.fullmatch(place.classes[0]) is not None
    if library and "Linear" in place.classes[:-1]:
        return _adapted(place, function)
    return _by_rows(place, function, weighted=weighted, equal=equal, library=library)


def _adapted(place: Place, function: str) -> str:
    """An adapter in a layer is for what the layer is for; DoRA normalizes the weight, too."""
    at = place.classes.index("Linear") + 1
    layer = Place(place.classes[:at], place.names[:at], place.seen)
    found = _by_rows(layer, "linear", weighted=True, equal=False, library=True)
    if function == "linear":
        return found
    norm = " norm" if any(kind.startswith("Dora") for kind in place.classes) else ""
    return f"{found} {found.partition('.')[0]}.other{norm}"


def _by_rows(place: Place, function: str, *, weighted: bool, equal: bool, library: bool) -> str:
    own = place.classes[-1]
    if _MAPS.fullmatch(own):
        return "norm other"
    if function in _NORMS or _PLAIN.fullmatch(own):
        return "norm"
    if library and own == "Linear" and not (weighted and function == "linear"):
        return _adapted(Place((*place.classes, ""), (*place.names, ""), place.seen), function)
    if found := row_of(_OF_LIBRARIES if library else _ROWS, place, function, equal=equal):
        return found
    if library:
        return recipes_truth.truth_of(place, function, weighted=weighted, equal=equal)
    if function == "embedding":
        return "embedding"
    if place.within(_ATTENTION) >= 0:
        if own == "Extractor" and weighted:
            return "attention.qkv" if function == "matmul" else "attention.qkv attention.other"
        return _in_attention(function, seen=place.seen, weighted=weighted)
    return "residual" if equal else ""
