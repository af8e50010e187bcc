"""What each piece of the models of ``makers.py`` is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. Convolutions
around attention, and what makes points of a cloud, are none of a transformer's own parts: "other".
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK, _ROUTES, _SENDS
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.truth import _NORMS, unlisted

_PRODUCT = "linear|conv1d"
_HEAD = "logits other"
_BEFORE = "embedding other"
_STREAM = "residual attention.other mlp.other other"  # a block's result, masked or scaled
_LOSSES = (
    "cross_entropy", "mse_loss", "l1_loss", "nll_loss", "kl_div", "binary_cross_entropy_with_logits",
)  # fmt: skip
#: A module that attends, and the way to a product in it.
_ATTENDS = r"(\w*Attention(RPR|Chunk)?|AttentionLayer|Head)\[\w+\]/\w+"
_DEEPER = r"(/Linear\[linear_layer\]|/Conv1d\[conv\])?"
_SUM = r"\w*add\w*="
#: A feed-forward network: where its layers are held, its way up, its gate, its way down, its source.
_FEED_FORWARDS = (
    (r"Block\[\d\]/Sequential\[mlp\]", "0", "", "2", "min-decision-transformer: model.py"),
    (r"Encoder\[\d\]", "fc1", "", "fc2", "PyTorch-Scratch-Vision-Transformer-ViT: model.py"),
    (r"FeedForward\[feed_forward\]", "c_fc", "", "projection", "nanoGPTplus: feed_forward.py"),
    (r"SwiGLU\[mlp\]", "up_proj", "gate_proj", "down_proj", "nanoGPT-Modern: modern_gpt.py"),
    (r"PositionWiseFeedForward\[pwff\]", "W_in", "", "W_out", "session-aware-bert4rec: transformer.py"),
    (r"PositionwiseFeedForwardNet\[\w+\]", "linear1", "", "linear2", "pytorch-original-transformer"),
    (r"FeedForward\[ff\]", "linear_1", "", "linear_2", "SamLynnEvans: Sublayers.py"),
    (r"PositionWiseFeedForward\[pwff\]|Mlp\[(ffn|mlp)\]", "fc1", "", "fc2", "pytorchic-bert; timm"),
    (r"RetNet\[\]/Sequential\[\d\]", "0", "", "2", "RetNet: retnet.py"),
    (r"PositionwiseFeedForward\[pos_ffn\]|PointerwiseFeedforward\[\w+\]", "w_1", "", "w_2", "names"),
    (r"FFN\[\d\]/Conv\[w_1\]", "conv", "", "", "Transformer-TTS: module.py"),
    (r"FFN\[\d\]/Conv\[w_2\]", "", "", "conv", "Transformer-TTS: module.py"),
    (r"Transformer(En|De)coderLayer(RPR)?\[\d\]", "linear1", "", "linear2", "rpr.py; catr: transformer.py"),
    (r"PositionwiseFeedForward\[_feedForward\]", "_linear1", "", "_linear2", "maxjcohen: tst"),
    (r"Sequential\[mlp_block\]", "0", "", "2", "DiT-PyTorch: transformer_layer.py"),
    (r"(MLP\[ffn\]|FeedForward\[fn\])/Sequential\[net\]", "0", "", "2", "seeMoE.py; swin_transformer.py"),
    (r"PositionwiseFeedForward\[ff\]|FFN\[pointwise_ffn\]/Sequential\[layers\]", "0", "", "3", "GPT2; DiT"),
    (r"UNET_AttentionBlock\[\d\]", "linear_geglu_1", None, "linear_geglu_2", "sd/diffusion.py"),
    (r"PointWiseFFNN\[ffnn\]", "W1", "", "W2", "sasrec-pytorch: pointwise_ffnn.py"),
    (r"Qwen2MLP\[mlp\]", "up_proj", "gate_proj", "down_proj", "qwen2.5-MoE-from-scratch: model.py"),
)  # fmt: skip
_ROWS = (
    # sums of blocks
    Row(r"Sequential\[local_feedforward\]/Residual\[0\]", _SUM, "residual mlp.other", "protein-bert"),
    Row(
        r"(SublayerConnection|SublayerLogic|Residual|Block|TransformerBlock|TransformerLayer|SparseMoEBlock"
        r"|SelfAttnBlock|Qwen2DecoderLayer|TransformerEncoderLayerRPR|EncoderLayer|DecoderLayer|CLIPLayer)\[\w+\]"
        r"|(En|De)coder\[\d\]|RetNet\[\]",
        _SUM,
        "residual",
        "names",
    ),
    # attention
    Row(r"XPOS\[xpos\]|RotaryEmbedding\[rope\]", _ANY, "attention.rope", "names"),
    Row(r"Qwen2RotaryEmbedding\[\w+\]", _ANY, "attention.rope embedding", "its name"),
    Row(r"SimpleRetention\[\d\]", r"(__)?r?matmul(__)? w", "attention.qkv", "retention.py: W_Q"),
    Row(
        r"MultiScaleRetention\[\d\]",
        r"(__)?r?matmul(__)? w",
        "attention.output attention.other",
        "retention.py: W_G and W_O",
    ),
    Row(r"(Simple|MultiScale)Retention\[\d\]", _ANY, "attention.*", "retention.py: without a softmax"),
    Row(r"MultiHeadAttention\[\w+\]/Linear\[[012]\]", "linear", "attention.qkv", "FGiuliari: linears"),
    Row(r"MultiHeadAttention\[\w+\]/Linear\[3\]", "linear", "attention.output", "FGiuliari: linears"),
    Row(r"MultiHeadedAttention\[\w+\]/Linear\[[012]\]", "linear", "attention.qkv", "original: qkv_nets"),
    Row(
        r"MultiHeadedAttention\[attention\]/Linear\[W_T\]", "linear", "attention.qkv attention.other", "times"
    ),
    Row(r"SA_Layer\[\w+\]/Conv1d\[[qkv]_conv\]", _ANY, "attention.qkv attention.other other", "PCT"),
    Row(r"SA_Layer\[\w+\]/Conv1d\[trans_conv\]", _ANY, "attention.output attention.other other", "PCT"),
    Row(r"SA_Layer\[\w+\]", _SUM, "residual", "pct_module.py: x + x_r"),
    Row(r"SA_Layer\[\w+\](/(ReLU|Softmax)\[\w+\])?", "(?!softmax).*", "attention.* other", "pct_module.py"),
    Row(
        rf"{_ATTENDS}\[([qkv]_net|queries|keys|values|(key|query|value)_weights|causal_self_attention|[qkv]_proj"
        r"|W_[QKV]|[qkv]_linear|proj_[qkv]|query|key|value|w_[qkv]s|_W_[qkv]|qkv|qkv_proj|to_(qkv|q|kv)|in_proj"
        rf"|w[qkv])\]{_DEEPER}",
        _PRODUCT,
        "attention.qkv",
        "names",
    ),
    Row(
        rf"{_ATTENDS}\[(proj_net|out_projection|projection|o_proj|W_M|out_projection_net|out|fc|_W_o|proj|linear"
        rf"|to_out|out_proj|w|final_linear)\]{_DEEPER}",
        _PRODUCT,
        "attention.output",
        "names",
    ),
    Row(
        r"Attention\[attn_block\]/Sequential\[output_proj\]/Linear\[0\]", "linear", "attention.output", "DiT"
    ),
    Row(r"Block\[\d\]/Linear\[proj\]", "linear", "attention.output", "pytorchic-bert: models.py"),
    Row(r"(MultiHead)?Attention\[\w+\]", _SUM, "residual", "Speech-Transformer; Transformer-TTS"),
    Row(r"CyclicShift\[\w+\]", _ANY, "attention.*", "swin_transformer.py: within attention"),
    Row(r"CausalSelfAttention\[attn\]/RMSNorm\[[qk]_norm\]", _ANY, "norm attention.other", "modern_gpt.py"),
    # mixtures
    Row(
        r"NoisyTopkRouter\[router\]/Linear\[\w+\]|Qwen2TopkRouter\[gate\]/Linear\[gate\]",
        _ANY,
        "moe.router",
        "names",
    ),
    Row(r"(NoisyTopkRouter|Qwen2TopkRouter)\[\w+\]", _ANY, _ROUTES, "names"),
    Row(r"Expert\[\d\]" + _IN + r"|Qwen2Expert\[\d\]" + _IN, _ANY, "moe.experts", "names"),
    Row(r"Qwen2MLP\[shared_experts\]" + _IN, _ANY, "moe.experts mlp.*", "model.py: of all tokens"),
    Row(r"Qwen2MoE\[mlp\]", _SUM, "moe.* residual", "model.py: experts and shared"),
    Row(r"Qwen2MoE\[mlp\]", _ANY, f"{_SENDS} loss", "model.py: its loss of balance"),
    Row(r"(SparseMoE|Qwen2Experts)\[\w+\]", _ANY, _SENDS, "what goes to and from experts"),
    Row(
        r"Qwen2DecoderLayer\[\d\]|Qwen2Model\[model\]|Qwen2ForCausalLM\[\]",
        "(?!add=).*",
        "loss other moe.router embedding attention.other",
        "losses of balance, places",
    ),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT),
    Row(
        r"(PositionwiseFeedForward\[pos_ffn\]|FFN\[\d\]|Encoder\[\d\]|UNET_AttentionBlock\[\d\])",
        _SUM,
        "residual",
        "their sums",
    ),
    *(
        Row(rf"({where})(/(GELU|ReLU|Swish|GELU|Sigmoid)\[\w+\])*", "(?!.*=$).*", _ACT, source)
        for where, *_, source in _FEED_FORWARDS
        if not re.search("coderLayer|UNET|Encoder", where)
    ),
    Row(r"FFN\[\d\]", r"(?!.*=$).*", _ACT, "Transformer-TTS: module.py"),
    Row(r"Encoder\[\d\]/GELU\[activation\]|GELU\[gelu\]", _ANY, _ACT, "names"),
    Row(r"Transformer(En|De)coderLayer(RPR)?\[\d\]", "relu", _ACT, "torch.nn, rpr.py, catr"),
    Row(r"UNET_AttentionBlock\[\d\]", "gelu|mul", _ACT, "sd/diffusion.py: GEGLU"),
    Row(r"Layer\[\d\]/Sequential\[local_feedforward\](/\w+\[\w+\])*", _SUM, "residual mlp.other", "protein"),
    Row(
        r"Layer\[\d\]/Sequential\[(local|global)_feedforward\](/\w+\[\w+\])*|Layer\[\d\]/Sequential\[global_dense\]"
        + _IN,
        "(?!layer_norm).*",
        "mlp.* residual other",
        "protein_bert_pytorch.py: one layer with its activation",
    ),
    Row(
        r"Layer\[\d\]/Sequential\[(narrow_conv|wide_conv|extract_global_info)\]" + _IN,
        _ANY,
        "other",
        "protein_bert_pytorch.py: convolutions, and the notes for every residue",
    ),
    Row(r"Layer\[\d\]", _ANY, "residual other", "protein_bert_pytorch.py: sums of all that"),
    # blocks
    Row(r"(En|De)coderLayer\[\d\]", r"(__i)?mul(__|_)?", _STREAM, "Speech-Transformer: what is padded"),
    Row(
        r"TransformerDecoderLayer\[\d\]|TransformerEncoderLayer\[\d\]",
        _SUM,
        "residual attention.other embedding",
        "catr: places of queries, too",
    ),
    Row(
        r"TransformerDecoderLayer\[\d\]|TransformerEncoderLayer\[\d\]",
        "add",
        "attention.other embedding residual",
        "catr: places",
    ),
    Row(
        r"(TransformerLayer|Block)\[\d\]/Sequential\[(adaptive_norm_layer|scale_shift_scale)\]" + _IN,
        _ANY,
        _CONDITION,
        "DiT",
    ),
    Row(r"(TransformerLayer|Block)\[\d\]", "mul|add", _AROUND, "DiT: shift, scale and gate"),
    Row(r"SelfAttnBlock\[\d\]", r"(__)?r?mul(__)?", _STREAM, "sasrec-pytorch: what is padded"),
    Row(r"SelfAttnBlock\[\d\]", r"(?!add=).*", _MASK, "sasrec-pytorch: the mask"),
    Row(r"\w+\[\d\]/Dropout\[\w+\]", _ANY, "dropout", "torch.nn"),
    # the U-Net, a backbone, points
    Row(
        r"UNET_AttentionBlock\[\d\](/Conv2d\[\w+\])?",
        _ANY,
        "other attention.other mlp.other residual",
        "maps",
    ),
    Row(
        r"(UNET_ResidualBlock|Upsample|Conv2d)\[\d\]" + _IN + r"|UNET\[unet\]",
        _ANY,
        "other residual embedding",
        "sd/diffusion.py: maps",
    ),
    Row(r"UNET_OutputLayer\[final\]" + _IN, _ANY, f"{_HEAD}", "sd/diffusion.py"),
    Row(
        r"Joiner\[backbone\]" + _IN,
        "(?!batch_norm).*",
        "other residual embedding norm",
        "catr: a ResNet, places",
    ),
    Row(
        r"(Self_Attention\[pt_last\]|NPct\[\])(/(Conv1d|Sequential\[conv_fuse\]/\w+|Linear|BatchNorm1d)\[\w+\])?",
        "(?!batch_norm).*",
        f"{_HEAD} embedding attention.other",
        "pct_cls.py: around attention",
    ),
    Row(r"Linear\[norm\](/Linear\[linear_layer\])?", _ANY, _BEFORE, "Transformer-TTS: network.py, no norm"),
    Row(r"TokenEmbedding\[token_embedding\]", "matmul", "logits", "GPT2: embedding.py, transposed"),
    # what stands in front of layers
    Row(
        r"Linear\[embed_(rtg|state|action)\]|Linear\[(linear_in|to_global_emb|_embedding|lut)\]"
        r"|Conv2d\[(patchify|input_proj)\]",
        _ANY,
        _BEFORE,
        "first layers; Transformer-TTS calls one norm",
    ),
    Row(
        r"(EmbedLayer|(Patch|Input|Temporal|Positional|Time|Label|Token|Segment|CLIP)?Embeddings?(Layer)?"
        r"|PositionalEncod(er|ing)|Embedder|LinearEmbedding|DecoderEmbeddings|EncoderPrenet|Prenet|PatchOps"
        r"|PatchEmbedding|PatchShuffle|PatchMerging|MultiModalProjector)\[\w+\]" + _IN,
        "(?!batch_norm|layer_norm).*",
        _BEFORE,
        "names",
    ),
    Row(
        r"(DIT\[\]/Sequential\[t_proj\]|MAE_(En|De)coder\[\w+\]|ViT\[vision_encoder\])(/(Linear|SiLU)\[\d\])?",
        _ANY,
        f"{_BEFORE} logits loss",
        "of the time; places, what is masked",
    ),
    Row(
        r"(NormLinear\[norm_linear\]|DIT\[\])/Sequential\[\w+\]" + _IN,
        _ANY,
        _CONDITION,
        "DiT: of the last norm",
    ),
    Row(
        r"NormLinear\[norm_linear\]|DIT\[\]",
        "mul|add",
        f"{_AROUND} embedding",
        "DiT: of the last norm, places",
    ),
    # heads
    Row(
        r"Linear\[(predict_(rtg|state)|language_model_head|lm_head|clf|out|decoder|classifier|head|tgt_word_prj|Wout"
        r"|_linear|proj|proj_out|to_token_logits)\]|DecoderGenerator\[\w+\]/Linear\[linear\]"
        r"|NormLinear\[\w+\]/Linear\[linear\]|Classifier\[\w+\]/Linear\[fc2\]|MLP\[mlp\]/Linear\[2\]"
        r"|Sequential\[(mlp_head|to_annotation_logits|predict_action)\]/Linear\[\d\]",
        _PRODUCT,
        _HEAD,
        "names",
    ),
    Row(r"DecoderGenerator\[\w+\]/LogSoftmax\[\w+\]", _ANY, "loss logits", "pytorch-original-transformer"),
    Row(
        r"(Classifier\[\w+\]|MLP\[mlp\]|Sequential\[(mlp_head|to_annotation_logits|predict_action)\]"
        r"|Rearrange\[patch2img\])(/\w+\[\w+\])?",
        "(?!layer_norm).*",
        f"{_HEAD} loss mlp.*",
        "around the last",
    ),
    Row(
        r"BertModel4Pretrain\[\](/(Linear\[(fc|linear)\]|Tanh\[\w+\]))?", _ANY, f"{_HEAD} loss", "pretrain.py"
    ),
    Row(
        r"Linear\[(mel_linear|stop_linear)\]" + _DEEPER + r"|PostConvNet\[\w+\]" + _IN,
        "(?!batch_norm).*",
        _HEAD,
        "Transformer-TTS: network.py",
    ),
    # what is left of whole models
    Row(r"(Pad|Future)Masking\[\w+\]", _ANY, _MASK, "GPT2: masking.py"),
    Row(
        r"Model\[\]",
        _ANY,
        f"{_MASK} embedding logits residual",
        "Transformer-TTS: places, masks, the last sum",
    ),
    Row(
        r"(SASRec|ModernGPT|MoEDecoderLanguageModel)\[\w*\]",
        _ANY,
        f"{_MASK} embedding logits loss",
        "places, what is padded, the score",
    ),
    Row(
        r"\w*(Transformer|GPT|Diffusion|DiT|BERT4Rec|GPTLanguageModel|(En|De)coder|Caption|IndividualTF|EncoderDecoder"
        r"|ProteinBERT|StageModule)\[\w*\]",
        _ANY,
        f"{_MASK} embedding logits loss",
        "places, masks, the result",
    ),
)
_ATTENTION = re.compile(
    r"(Attention(RPR|Chunk)?|AttentionLayer|Head|Retention|^SA_Layer)$(?<!^Self_Attention)"
)
_PLAIN = re.compile(r"Norm|LayerNorm|(Qwen2)?RMSNorm|FrozenBatchNorm2d")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return "loss"
    if found := settled(place, function, _LOSSES):
        return found
    own = place.classes[-1]
    if re.fullmatch(r"(Frozen)?BatchNorm\dd|GroupNorm", own):
        return "norm other"
    if (function in _NORMS or _PLAIN.fullmatch(own)) and not place.names[-1].endswith(("q_norm", "k_norm")):
        return "norm"
    found = row_of(_ROWS, place, function, equal=equal, weighed=weighted)
    return found or unlisted(place, function, _ATTENTION, weighted=weighted, equal=equal)
