"""What each piece of the models of ``senses.py`` is for, by their own names of classes and attributes.

Rows as in ``more_truth.py``: the end of a place, the function (``add=`` adds two tensors of one shape), the
truth and the source. They were written from the sources before any recording was attributed. Graph
convolutions, outer products and triangular updates (AlphaFold's, which mix pairs as attention does) are none
of a transformer's own parts: "other".
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, row_of, settled
from benchmarks.libraries.truth import _BATCHED, _CONVOLUTIONS, _GATED, _LINEAR, _NORMS, _in_attention

_ANY = ".*"
_PRODUCT = r"linear|conv[12]d|matmul"
_ACTS = "mlp.activation mlp.other"
_SCALES = "residual attention.other mlp.other other"
_CONVNEXT = "mlp.other other embedding"
_TRIANGLE = "other attention.*"
#: A module that attends, and what holds the product in it.
_ATTENDS = (
    r"\w*(Attention|MHAXL|AttentionPairBias|PerceiverAttention)\[\w*\](/(Sequential|ModuleList)\[\w+\])?/\w+"
)
_ROWS = (
    # attention, in all of them
    Row(rf"{_ATTENDS}\[(to_q|to_k|to_v|to_kv|to_qkv|qkv|q|k|v|kv|[qkv]_proj|proj_[qkv]|linear_[qkv]"
        r"|W_[QKV])\]",
        _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(to_out|out_proj|proj|proj_o|linear_o|lin_out)\]", _PRODUCT, "attention.output",
        "all"),
    Row(r"\w*Attention\[\w*\]/Sequential\[to_out\]/(Linear|Conv2d)\[0\]", _PRODUCT, "attention.output",
        "all"),
    Row(r"Attention\[attn\]/Linear\[0\]", _PRODUCT, "attention.output", "f5_tts/model/modules.py: to_out"),
    Row(r"LoRARollout\[lora_qkv\]/LoRA\[\d\]", "matmul|__matmul__", "attention.qkv", "aurora/model/lora.py"),
    Row(r"LoRARollout\[lora_proj\]/LoRA\[\d\]", "matmul|__matmul__", "attention.output", "aurora: lora.py"),
    Row(r"LoRARollout\[\w+\]/LoRA\[\d\]", _ANY, "attention.*", "aurora/model/lora.py"),
    Row(r"Attention\[attn\]/Conv2d\[sr\]", _ANY, "attention.* other embedding",
        "mix_transformer.py: fewer keys"),
    Row(r"_ScaledDotProductAttention\[\w+\]", "mul", "attention.*", "patchtst.py: the scale is a parameter"),
    Row(r"Sequential\[(edges_to_attn_bias|proj_z)\]/Linear\[\d\]", _ANY, "attention.*",
        "alphafold2.py; boltz: attentionv2.py, of pairs to biases"),
    Row(r"LoFTREncoderLayer\[\d\]/Linear\[[qkv]_proj\]", _ANY, "attention.qkv",
        "loftr_module/transformer.py"),
    Row(r"LoFTREncoderLayer\[\d\]/Linear\[merge\]", _ANY, "attention.output", "loftr_module/transformer.py"),
    Row(r"LoFTREncoderLayer\[\d\]", "cat", "mlp.other other residual", "before its MLP"),
    Row(r"(NonCached|CachedAs|PreShiftToken)\[fn\]", _ANY, "other attention.other mlp.other",
        "dalle_pytorch/transformer.py: shifted and padded tokens"),
    Row(r"ParallelTransformerBlock\[fn\]/Linear\[fused_attn_ff_proj\]", _ANY, f"attention.qkv {_GATED}",
        "flamingo_palm.py: both as one"),
    Row(r"ParallelTransformerBlock\[fn\]/Linear\[attn_out\]", _ANY, "attention.output", "flamingo_palm.py"),
    Row(r"ParallelTransformerBlock\[fn\]/Sequential\[ff_out\]/Linear\[1\]", _ANY, "mlp.down",
        "flamingo_palm"),
    Row(r"ParallelTransformerBlock\[fn\]/Sequential\[ff_out\]/SwiGLU\[0\]", _ANY, _ACTS, "flamingo_palm.py"),
    Row(r"ParallelTransformerBlock\[fn\]", "add=", "residual attention.* mlp.*", "of both ways' results"),
    Row(r"ParallelTransformerBlock\[fn\]", "split", "attention.* mlp.other", "of both"),
    # what is no part of a transformer, before MLPs that it holds
    Row(r"ConformerModule\[\w*\]" + _IN, "add=?|mul", "other norm residual", "stable_audio: transformer.py"),
    Row(r"ConformerModule\[\w*\]" + _IN, _ANY, "other norm", "stable_audio_tools/models/transformer.py"),
    Row(r"OuterMean\[\w*\]" + _IN, _ANY, "other", "alphafold2.py"),
    Row(r"TriangleMulti\w+\[\w*\]" + _IN, _ANY, _TRIANGLE, "alphafold2.py; boltz: triangular_mult.py"),
    Row(r"GCNConv\[\d\]" + _IN, _ANY, "other", "torch_geometric/nn/conv/gcn_conv.py"),
    Row(r"Polynormer\[\]/Linear\[\d\]", _ANY, "other residual", "polynormer.py: beside convolutions"),
    Row(r"Polynormer\[\]/Linear\[\w+\]", _ANY, "logits other", "polynormer.py: pred_local, pred_global"),
    Row(r"Polynormer\[\]", "log_softmax", "loss logits", "polynormer.py"),
    Row(r"Polynormer\[\]", _ANY, "other residual norm", "polynormer.py: gates of the convolutions"),
    Row(r"(HEncLayer|HDecLayer)\[\d\]" + _IN, _ANY, "other residual embedding", "demucs: hdemucs.py"),
    Row(r"HTDemucs\[\](/\w+\[(channel_\w+|freq_emb)\](/\w+\[\w+\])?)?", _ANY,
        "other embedding residual logits", "htdemucs.py: spectra, both branches"),
    Row(r"ResnetBlock\[\w+\]/Sequential\[mlp\]/\w+\[\d\]", _ANY, _CONDITION, "denoising: of the time"),
    Row(r"ResnetBlock\[\w+\]" + _IN, _ANY, "other residual", "denoising_diffusion_pytorch.py"),
    Row(r"(MBConv|ConvLayer|PatchMerging)\[\w+\](/(MBConv|PatchMerging|ConvBN)\[\w+\])*(/(Conv2d"
        r"|GELU)\[\w+\])?",
        _ANY, "other embedding residual", "kornia/models/tiny_vit.py"),
    Row(r"TinyViTBlock\[\d\]/ConvBN\[local_conv\](/\w+\[\w+\])?", _ANY, "other embedding", "tiny_vit.py"),
    Row(r"FpnNeck\[neck\](/Sequential\[\d\]/Conv2d\[conv\])?", _ANY, "other embedding", "image_encoder.py"),
    Row(r"PositionEmbeddingSine\[\w+\]", _ANY, "embedding other attention.rope", "position_encoding.py"),
    Row(r"ConvolutionBranch\[\w+\]/Linear\[pre_channel_proj\]", _ANY, f"{_GATED} other",
        "Branchformer.py: an MLP that a convolution gates"),
    Row(r"ConvolutionBranch\[\w+\]/Linear\[post_channel_proj\]", _ANY, "mlp.down other", "Branchformer.py"),
    Row(r"ConvolutionalSpatialGatingUnit\[csgu\]/Conv1d\[conv\](/Conv1d\[conv\])?", _ANY,
        "other mlp.other mlp.gate", "convolution.py"),
    Row(r"ConvolutionBranch\[\w+\]" + _IN, _ANY, f"{_ACTS} other", "Branchformer.py"),
    Row(r"BranchformerEncoderLayer\[\d\]/Linear\[merge_proj\]", _ANY, "other attention.output mlp.down",
        "Branchformer.py: of both branches' results"),
    Row(r"BranchformerEncoderLayer\[\d\]", "cat", "other residual attention.other mlp.other", "of both"),
    # MLPs
    Row(r"(GatedCrossAttentionBlock|PerceiverResampler)\[\w+\]/Sequential\[\w+\]/Linear\[1\]", _ANY, "mlp.up",
        "flamingo_pytorch.py: FeedForward()"),
    Row(r"(GatedCrossAttentionBlock|PerceiverResampler)\[\w+\]/Sequential\[\w+\]/Linear\[3\]", _ANY,
        "mlp.down", "flamingo_pytorch.py: FeedForward()"),
    Row(r"(GatedCrossAttentionBlock|PerceiverResampler)\[\w+\]/Sequential\[\w+\]/GELU\[2\]", _ANY, _ACTS,
        "flamingo_pytorch.py: FeedForward()"),
    Row(r"FeedForward\[ff\]/Sequential\[ff\]/Sequential\[0\]/Linear\[0\]", _ANY, "mlp.up",
        "f5_tts: modules.py"),
    Row(r"FeedForward\[ff\]/Sequential\[ff\]/Linear\[2\]", _ANY, "mlp.down", "f5_tts; stable_audio_tools"),
    Row(r"FeedForward\[ff\]/Sequential\[ff\]/GLU\[0\]/Linear\[proj\]", _ANY, _GATED, "stable_audio_tools"),
    Row(r"FeedForward\[\w+\]/Sequential\[net\]/Linear\[0\]", _ANY, _GATED, "lucidrains': a GEGLU follows"),
    Row(r"FeedForward\[\w+\]/Sequential\[net\]/Linear\[[34]\]", _ANY, "mlp.down", "lucidrains'"),
    Row(r"PositionalwiseFeedForward\[\w+\]/Sequential\[ffn\]/Linear\[0\]", _ANY, "mlp.up", "speechbrain"),
    Row(r"PositionalwiseFeedForward\[\w+\]/Sequential\[ffn\]/Linear\[3\]", _ANY, "mlp.down", "speechbrain"),
    Row(r"TSTEncoderLayer\[\d\]/Sequential\[ff\]/Linear\[0\]", _ANY, "mlp.up", "neuralforecast: patchtst.py"),
    Row(r"TSTEncoderLayer\[\d\]/Sequential\[ff\]/Linear\[3\]", _ANY, "mlp.down", "patchtst.py"),
    Row(r"TSTEncoderLayer\[\d\]/Sequential\[ff\]/GELU\[1\]", _ANY, _ACTS, "patchtst.py"),
    Row(r"LoFTREncoderLayer\[\d\]/Sequential\[mlp\]/Linear\[0\]", _ANY, "mlp.up", "loftr: transformer.py"),
    Row(r"LoFTREncoderLayer\[\d\]/Sequential\[mlp\]/Linear\[2\]", _ANY, "mlp.down", "loftr: transformer.py"),
    Row(r"LoFTREncoderLayer\[\d\]/Sequential\[mlp\]/ReLU\[1\]", _ANY, _ACTS, "loftr: transformer.py"),
    Row(r"(\w*TransformerEncoderLayer|MemoryAttentionLayer)\[\d\]/Linear\[linear1\]", _ANY, "mlp.up",
        "demucs: transformer.py; sam2: memory_attention.py"),
    Row(r"(\w*TransformerEncoderLayer|MemoryAttentionLayer)\[\d\]/Linear\[linear2\]", _ANY, "mlp.down",
        "both"),
    Row(r"(\w*TransformerEncoderLayer|MemoryAttentionLayer)\[\d\]", "gelu|relu", _ACTS, "both"),
    Row(r"Transition\[\w+\]/Linear\[fc1\]", _ANY, "mlp.gate", "boltz: fc3(silu(fc1(x)) * fc2(x))"),
    Row(r"Transition\[\w+\]/Linear\[fc2\]", _ANY, "mlp.up", "boltz/model/layers/transition.py"),
    Row(r"Transition\[\w+\]/Linear\[fc3\]", _ANY, "mlp.down", "boltz/model/layers/transition.py"),
    Row(r"SegformerDecoder\[decoder\]/MLP\[\d\]/Linear\[linear\]", _ANY, "other logits mlp.*",
        "smp: its name"),
    Row(r"SegformerDecoder\[decoder\](/\w+\[\w+\])*", _ANY, "other logits", "smp: segformer/decoder.py"),
    Row(r"SegmentationHead\[\w+\](/\w+\[\w+\])*", _ANY, "logits other", "smp: base/heads.py"),
    Row(r"(Mlp|MLP)\[mlp\]/Linear\[(fc1|0)\]", _ANY, "mlp.up", "smp; aurora; kornia; sam2: layers[0]"),
    Row(r"(Mlp|MLP)\[mlp\]/Linear\[(fc2|1)\]", _ANY, "mlp.down", "smp; aurora; kornia; sam2: layers[1]"),
    Row(r"Mlp\[mlp\]/DWConv\[dwconv\](/Conv2d\[dwconv\])?", _ANY, "mlp.other other",
        "mix_transformer.py"),
    Row(r"PerceiverResampler\[\w+\]/MLP\[1\]/Sequential\[net\]/Linear\[0\]", _ANY, "mlp.up", "aurora"),
    Row(r"PerceiverResampler\[\w+\]/MLP\[1\]/Sequential\[net\]/Linear\[2\]", _ANY, "mlp.down", "aurora"),
    Row(r"MLP\[surf_mlp\]/Sequential\[net\]/Linear\[0\]", _ANY, "mlp.up embedding other",
        "aurora: encoder.py"),
    Row(r"MLP\[surf_mlp\]/Sequential\[net\]/Linear\[2\]", _ANY, "mlp.down embedding other", "aurora"),
    Row(r"ActivationGating\[\w+\]", "linear", f"{_GATED} mlp.down", "moshi: gating.py, both as functions"),
    Row(r"(FeedForward|PositionalwiseFeedForward|Transition|Mlp|MLP|ActivationGating)\[\w+\]" + _IN, _ANY,
        _ACTS, "all"),
    # conditions, and what is around attention and MLP
    Row(r"AdaLayerNorm(_Final)?\[\w+\]/(Linear|SiLU)\[\w+\]", _ANY, _CONDITION, "f5_tts/model/modules.py"),
    Row(r"Sequential\[(ln_modulation|global_cond_embedder)\]/\w+\[\d\]", _ANY, _CONDITION, "all"),
    Row(r"(AdaLayerNorm(_Final)?|AdaptiveLayerNorm)\[\w+\]", _ANY, "norm other", "f5_tts; aurora: film.py"),
    Row(r"(DiTBlock|TransformerBlock)\[\d\]", r"(?!add=).*", _AROUND, "shift, scale and gate"),
    Row(r"LayerScale\[\w+\]", _ANY, _SCALES, "dalle_pytorch; demucs"),
    Row(r"GatedCrossAttentionBlock\[\d\]", r"mul|tanh", _SCALES, "flamingo_pytorch.py"),
    Row(r"DropPath\[\w+\]", _ANY, "dropout residual", "stochastic depth"),
    Row(r"PairformerLayer\[\d\]", r"mul|rand|ge|__ge__|div|__rmul__", "dropout residual",
        "boltz: pairformer.py, dropout.py"),
    Row(r"(Swin3DTransformerBlock|MultiScaleBlock|TinyViTBlock)\[\d\]", r"(?!add=).*",
        "attention.other other",
        "windows, and masks of them"),
    Row(r"MultiScaleBlock\[\d\]/(Linear\[proj\]|MaxPool2d\[pool\])", _ANY, "other embedding residual",
        "hieradet.py: the shortcut where maps shrink"),
    # embeddings
    Row(r"\w*Rotary\w*\[\w*\]", _ANY, "attention.rope embedding", "their names"),
    Row(r"(TextEmbedding\[\w+\]/)ConvNeXtV2Block\[\d\]/Linear\[pwconv1\]", _ANY, f"mlp.up {_CONVNEXT}", "f5"),
    Row(r"(TextEmbedding\[\w+\]/)ConvNeXtV2Block\[\d\]/Linear\[pwconv2\]", _ANY, f"mlp.down {_CONVNEXT}",
        "f5"),
    Row(r"ConvNeXtV2Block\[\d\]/GELU\[act\]", _ANY, f"mlp.activation {_CONVNEXT}", "f5_tts: modules.py"),
    Row(r"ConvNeXtV2Block\[\d\]/GRN\[grn\]", _ANY, f"norm {_CONVNEXT}", "f5: global response normalization"),
    Row(r"ConvNeXtV2Block\[\d\]", "add=", "residual other embedding", "f5_tts/model/modules.py"),
    Row(r"PatchDropout\[\w+\]", _ANY, "dropout embedding other", "x_clip.py"),
    Row(r"(\w*(Embedding|Embed)|FourierFeatures|FourierExpansion|TimestepEmbedding)\[\w*\]" + _IN, _ANY,
        "embedding other", "their names"),
    Row(r"(RelPosEncXL|PositionalEncoding)\[\w+\]", _ANY, "embedding other attention.other", "speechbrain"),
    Row(r"ModuleList\[custom_(src|tgt)_module\](/\w+\[\w+\])*", _ANY, "embedding other", "TransformerASR.py"),
    Row(r"(Sequential\[(to_(timestep|cond|global)_embed|to_tokens)\]/)\w+\[\d\]", _ANY, "embedding other",
        "all"),
    Row(r"(TimeSformer|Alphafold2|TSTiEncoder|ContinuousTransformer|Perceiver3DEncoder)\[\w*\]/Linear\["
        r"(to_patch_embedding|W_P|project_in|to_pairwise_repr|\w+_embed)\]", _ANY, "embedding other", "all"),
    Row(r"Sequential\[time_mlp\](/\w+\[\d\])?", _ANY, "embedding other norm", "aurora; f5_tts; denoising"),
    Row(r"(LMModel|Hiera|TextTransformer|VisionTransformer|Perceiver3DEncoder|TSTiEncoder"
        r"|TransformerASR)\[\w*\]",
        "add=", "embedding other", "sums of embeddings, positions"),
    Row(r"MemoryAttentionLayer\[\d\]", "add=", "residual embedding attention.other",
        "positions of keys, too"),
    Row(r"MemoryAttention\[\w+\]", "add=?|mul", "embedding other residual", "positions"),
    Row(r"StreamingTransformerLayer\[\d\]", "__getitem__|cat", "mlp.other other residual",
        "moshi: transformer.py, an MLP for each codebook"),
    Row(r"Patch(Merging|Splitting)3D\[\w+\](/Linear\[\w+\])?", _ANY, "embedding other", "aurora: swin3d.py"),
    Row(r"DiffusionTransformer\[\]/Conv1d\[preprocess_conv\]|Unet\[model\]/Conv2d\[init_conv\]", _ANY,
        "embedding other", "the first layers"),
    Row(r"Unet\[model\]/Sequential\[\w+\]/\w+\[\d\]|Unet\[model\]/Conv2d\[\d\]", _ANY, "other embedding",
        "time_mlp, Downsample(), Upsample()"),
    # heads and losses
    Row(r"Sequential\[(to_logits|to_distogram_logits|human|mouse)\]/\w+\[\d\]", _ANY, "logits other", "all"),
    Row(r"TimeSformer\[\]/Sequential\[to_out\]/Linear\[1\]|(DiT|ContinuousTransformer)\[\w*\]/Linear\["
        r"(proj_out|project_out)\]|Unet\[model\]/Conv2d\[final_conv\]|DiffusionTransformer\[\]/Conv1d\[\w+\]",
        _ANY, "logits other", "the last layers"),
    Row(r"(LMModel\[\]/Linear\[text_linear\])|Linear\[seq_lin\]", _ANY, "logits",
        "moshi; the recipes' seq_lin"),
    Row(r"LMModel\[\]/Linear\[\d\]", _ANY, "logits embedding other",
        "moshi/models/lm.py: linears, depformer_in"),
    Row(r"TinyViT\[\](/Linear\[head\])?|Flatten_Head\[head\](/\w+\[\w+\])*", _ANY, "logits other",
        "the last"),
    Row(r"LinearPatchReconstruction\[\w+\]|Perceiver3DDecoder\[decoder\](/Linear\[\w+\])?", _ANY,
        "logits other embedding", "aurora/model/decoder.py"),
    Row(r"Sequential\[to_cls_tokens\]/\w+\[\d\]|CLIP\[\]/Linear\[\w+\]", _ANY,
        "logits other embedding", "x_clip.py: latents"),
    Row(r"CLIP\[\]", _ANY, "loss logits", "x_clip.py: the contrastive loss"),
    Row(r"Enformer\[\]", r"clamp|log|sub|mul|mean|__rsub__", "loss other", "poisson_loss"),
    Row(r"DALLE\[\]", r"cat|add=?|where|arange|pad|zeros|ones", "embedding other", "dalle_pytorch.py"),
    Row(r"DALLE\[\]", _ANY, "logits loss other embedding", "masked logits; tokens taken and left"),
    Row(r"GaussianDiffusion\[\]", _ANY, "loss other", "the noise added, and what is asked of it"),
    # what is left of whole models
    Row(r"Unet\[model\]", r"(?!add=).*", "other residual", "skips, side by side"),
    Row(r"RevIN\[\w+\]", _ANY, "norm other", "neuralforecast: _modules.py"),
    Row(r"(PerceiverResampler|MemoryAttention)\[\w+\]", r"add|expand|mul|transpose|__getitem__",
        "embedding other residual",
        "positions, latents"),
    Row(r"DiffusionTransformer\[\]|(PatchTST\[\]/)PatchTST_backbone\[model\]", _ANY,
        "other embedding logits residual", "both ends"),
    Row(r"Alphafold2\[\]", _ANY, "embedding logits other", "alphafold2.py: pairs, both ends"),
    Row(r"(TimeSformer|Enformer|DiT|LMModel|FlamingoPaLM|TransformerASR|AuroraSmallPretrained|PatchTST|Hiera"
        r"|TextTransformer|VisionTransformer|Perceiver3DEncoder|TSTiEncoder|Sequential|ImageEncoder"
        r"|MixVisionTransformerEncoder|Segformer|Swin3DTransformerBackbone|CrossTransformerEncoder)\[\w*\]",
        r"(?!add=).*", "embedding other logits attention.other", "tokens, positions and masks"),
)  # fmt: skip
_ATTENTION = re.compile(
    r"(\w*Attention|RelPosMHAXL|AttentionPairBias|TriangleAttention\w*"
    r"|ParallelTransformerBlock)$(?<!MemoryAttention)"
)
_PLAIN = re.compile(r"(Layer|RMS|Group|MyGroup|Batch|Instance|MaybeLayer)Norm(\dd)?")
#: Of features instead of tokens, or of tokens by an associative rule: no scores of one token for another.
_LINEAR_IN_TOKENS = re.compile(r"^(LinearAttention|PolynormerAttention)$")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return "loss"
    if found := settled(place, function, ("cross_entropy", "mse_loss", "l1_loss")):
        return found
    own = place.classes[-1]
    on_maps = " other" if "Unet" in place.classes else ""  # no stream of tokens
    if function in _NORMS or _PLAIN.fullmatch(own):
        return "norm other" if own.startswith(("Batch", "Group")) else f"norm{on_maps}"
    if found := row_of(_ROWS, place, function, equal=equal):
        return found
    if place.within(_ATTENTION) >= 0:
        if function in _BATCHED and not weighted and place.within(_LINEAR_IN_TOKENS) >= 0:
            return "attention.*"
        held = own.endswith("Linear") and not place.names[-1].isdigit()
        if function in _LINEAR and weighted and held:
            return "attention.*"  # gates, biases of pairs, projections of positions
        return _in_attention(function, seen=place.seen, weighted=weighted)
    if function in _CONVOLUTIONS:
        return "other embedding"
    return f"residual{on_maps}" if equal else ""
