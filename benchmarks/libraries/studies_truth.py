"""What each piece of the models of the eleventh list is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. What a model of
transformers or an adapter of peft holds is for what ``recipes_truth.py`` says of it, where no row here names
it. A module that calls one function for two products (SwitchHead for values and for its result) has both
words. TokenFormer's layers attend to tokens of parameters: a projection each, by what it is for. Convolutions
of graphs, points and pictures are none of a transformer's own parts: "other".
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place
from benchmarks.libraries import recipes_truth
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK, _ROUTES, _SENDS, _STOCHASTIC
from benchmarks.libraries.more_truth import _AROUND, _CONDITION, _IN, Row, feed_forwards, row_of, settled
from benchmarks.libraries.repos_truth import _ROTATES, _SCALE
from benchmarks.libraries.truth import _NORMS, unlisted

_PRODUCT = "linear|addmm|mm|conv[123]d"
_MATMUL = "matmul|__matmul__|bmm|einsum"
_HEAD = "logits other"
_BOTH = "attention.scores attention.values"
#: A module that attends, and what holds a product in it.
_ATTENDS = r"(\w*(Attention|AttentionLayer|LocalMHA)\[\w+\]/\w+)"
_FEED_FORWARDS = (
    (r"MLP\[mlp\]", "c_fc", "", "c_proj", "denseformer.py; shap-e: transformer.py"),
    (r"SwiGLU\[swiglu\]", "w2", "w1", "w3", "diffmodel.py: xformers' SwiGLU"),
    (r"Transformer\[\]/Sequential\[1\]", "1", "", "3", "mixture_of_attention: FeedForward"),
    (r"SwiGLU\[mlp\]", "fc1_x", "fc1_g", "fc2", "timm/layers/mlp.py: FiT"),
    (r"Mlp\[(mlp|ffn)\]", "fc1", "", "fc2", "timm: REPA; ALBEF: vit.py; CrossFormer; TransUNet; HAT"),
    (r"FeedForward\[ff\]", "w3", "w1", "w2", "Maskgit-pytorch: transformer.py"),
    (r"BertLayer\[\d\]/BertIntermediate\[\w+\]", "dense", "", "", "xbert.py"),
    (r"BertLayer\[\d\]/BertOutput\[\w+\]", "", "", "dense", "xbert.py"),
    (r"FeedForward\[(fn|1)\]/Sequential\[net\]", "0", "", "3", "robotic_transformer_pytorch.py"),
    (r"(Self|Cross)Block\[\w+\]/Sequential\[ffn\]", "0", "", "3", "lightglue.py"),
    (r"Block\[\d\]/Sequential\[mlp\]", "0", "", "2", "model_atari.py; trajectory: transformers.py"),
    (r"EncoderLayer\[\d\]", "conv1", "", "conv2", "TimeXer.py: of one place each"),
    (r"TransformerLayer\[\d\]/Sequential\[mlp\]", "0", None, "2", "toto: transformer.py, chunks"),
    (r"MultiheadAttentionBlock\[\w+\]", "linear1", "", "linear2", "tabicl: layers.py"),
    (r"GPSLayer\[\d\]", "ff_linear1", "", "ff_linear2", "gps_layer.py"),
    (r"FeedForward\[branch\]/Sequential\[net\]", "1", "", "4", "bs_roformer.py"),
    (r"TransformerEncoderLayer\[\d\]", "linear1", "", "linear2", "torch.nn: UCE"),
)
#: The same of ones in models of transformers.
_LIBRARY_ROWS = (
    Row(r"TrainableTokensLayer\[\w+\]" + _IN, _ANY, "embedding", "peft: trainable_tokens/layer.py"),
    Row(r"MoE\[mlp\]/MLP\[\d\]" + _IN, _ANY, "moe.experts", "moe.py: two layers and a softmax"),
    Row(r"MoE\[mlp\]", f"({_MATMUL}) w", "moe.router", "moe.py: w_gate, w_noise"),
    Row(r"MoE\[mlp\](/Softplus\[\w+\]|/Softmax\[\w+\])?", _ANY, f"{_SENDS} loss",
        "moe.py: gates and their loss, there and back"),
    Row(r"SwitchHeadRope\[self_attn\]/Linear\[[qk]\]", _PRODUCT, "attention.qkv", "switchhead.py"),
    Row(r"SwitchHeadRope\[self_attn\]/RotaryPosEncoding\[pe\]", _ANY, "attention.rope", "switchhead.py"),
    Row(r"SwitchHeadRope\[self_attn\]", "linear", "moe.router attention.other", "switchhead.py: get_sel"),
    Row(r"SwitchHeadRope\[self_attn\]", "_grouped_mm",
        "attention.qkv attention.output moe.experts attention.other", "switchhead.py: values; the result"),
    Row(r"SwitchHeadRope\[self_attn\]", _ANY, f"attention.* {_SENDS}", "switchhead.py: what is selected"),
    Row(r"MultiheadDiffAttn\[self_attn\]", "add_?=|__iadd__=", "attention.*",
        "multihead_diffattn.py: rotations"),
    Row(r"GPT2Model\[\w+\]", "add=?", "embedding", "modeling_gpt2.py: places"),
    Row(r"GPT2LMHeadModel\[\]", "pad|contiguous|__getitem__|to|float", "loss logits other",
        "what the loss is given"),
    Row(r"(Phi3|Qwen3|Mistral|Llama)Attention\[\w+\]", "add_?=", "attention.*", "transformers: rotations"),
    Row(r"Phi3MLP\[mlp\]", "mul|chunk|__getitem__", _ACT, "modeling_phi3.py"),
    Row(r"T5Layer(SelfAttention|FF)\[\d\]", "add=", "residual", "modeling_t5.py"),
    Row(r"T5Attention\[\w+\]", "add_?=?", "attention.*", "modeling_t5.py: a bias of distances"),
    Row(r"(Phi3|GPT2|T5|Bert)(Model|Stack|Encoder)\[\w*\]", r"(?!add=).*", f"embedding {_MASK}",
        "transformers: masks, places"),
)  # fmt: skip
_EMBEDS = (
    r"(\w*(Timestep|Label)Embedder|Patch(Embed|Embedder|Embedding|Merging|ing)|BertEmbeddings|EnEmbedding"
    r"|DataEmbedding_inverted|PositionalE\w+|EmbeddingLayer|BandSplit)\[\w+\]"
)
#: Layers of one width that shift, scale and gate around attention and MLP.
_BLOCKS = r"(FiTBlock|SiTBlock|TransformerEncoder\[\w+\]/Block)\[\d\]"
#: Models, and halves of them: what they compute in front of layers, and of what comes out.
_WHOLE = (
    r"(SparseMoELanguageModel|DenseFormer|TransEncoder|Transformer|FiT|SiT|CLIPImageGridPointDiffusionTransformer"
    r"|RT1|CrossFormer|VisionTransformer|HAT|PointTransformerCls|GPT|Model|TotoBackbone|TabICL|FastSpeech2"
    r"|BSRoformer|TransformerModel|AutoInt|ColEmbedding|RowInteraction|ICLearning|Encoder|Decoder|BertModel"
    r"|BertEncoder|SetTransformer|Embeddings|MaxViT)\[\w*\]"
)
_ROWS = (
    # what stands in front of layers
    Row(_EMBEDS + _IN, r"(?!layer_norm).*", "embedding other", "their names"),
    Row(r"Embedding\[\w+\]", "embedding", "embedding", "tables"),
    Row(r"MLP\[time_embed\]" + _IN + r"|Sequential\[(clip_embed|state_encoder|ret_emb|action_embeddings"
        r"|gene_embedding_layer|conv_stem)\]/\w+\[\d\]|TransformerModel\[\]/Sequential\[encoder\]/\w+\[\d\]"
        r"|Backbone\[backbone\]/Sequential\[fc1\]/\w+\[\d\]", r"(?!layer_norm).*", "embedding other",
        "first layers"),
    Row(r"Linear\[(input_proj|I\d+)\]|Conv2d\[(conv_first|patch_embeddings)\]"
        r"|(SkippableLinear|OneHotAndLinear)\[\w+\]", _ANY, "embedding other", "first layers"),
    Row(r"LearnableFourierPositionalEncoding\[\w+\]" + _IN, _ANY, f"{_ROTATES} embedding other",
        "lightglue.py: rotations that are learned"),
    Row(r"RevIN\[\w+\]", _ANY, "norm other embedding logits", "moment: revin.py"),
    # mixtures of experts, and of attention
    Row(r"NoisyTopkRouter\[\w+\]/Linear\[\w+\]", _PRODUCT, "moe.router", "makeMoE.py"),
    Row(r"NoisyTopkRouter\[\w+\]", _ANY, _ROUTES, "makeMoE.py"),
    Row(r"Expert\[\d\]" + _IN, _ANY, "moe.experts", "makeMoE.py"),
    Row(r"SparseMoE\[\w+\]", _ANY, _SENDS, "makeMoE.py: there and back"),
    Row(r"CoordinateDescentRouter\[\w+\]" + _IN, _ANY, f"{_ROUTES} attention.other",
        "colt5_attention: coordinate descent; what is routed"),
    Row(r"MixtureOfAutoregressiveAttention\[\d\]", _ANY, f"attention.* {_SENDS}",
        "mixture_of_attention.py: there and back, beside local attention"),
    # attention
    Row(r"(\w*Rotary\w*|SinusoidalEmbeddings)\[\w+\]", _ANY, "attention.rope", "their names"),
    Row(r"Head\[\d\]/Linear\[(query|key|value)\]", _PRODUCT, "attention.qkv", "makeMoE.py: a head each"),
    Row(r"Head\[\d\]|InteractingLayer\[\d\]|CrossBlock\[\w+\]|OCAB\[\w+\]", _MATMUL, _BOTH, "either"),
    Row(r"(Head|InteractingLayer)\[\d\]|CrossBlock\[\w+\]|(OCAB\[\w+\](/Softmax\[\w+\])?)", "softmax",
        "attention.softmax", "in no module for attention"),
    Row(r"Head\[\d\]", _ANY, "attention.*", "makeMoE.py"),
    Row(r"Pattention\[(query|key|value)\]", _MATMUL, "attention.qkv", "tokenformer.py"),
    Row(r"Pattention\[proj\]", _MATMUL, "attention.output", "tokenformer.py"),
    Row(r"Pattention\[mlp\]", _MATMUL, "mlp.up mlp.down", "tokenformer.py: keys, values of parameters"),
    Row(r"Pattention\[mlp\]", _ANY, f"{_ACT} norm", "tokenformer.py: what it has for a softmax"),
    Row(r"Pattention\[(query|key|value)\]", _ANY, "attention.qkv attention.other norm", "the same"),
    Row(r"Pattention\[proj\]", _ANY, "attention.output attention.other norm", "the same"),
    Row(rf"{_ATTENDS}\[(c_attn|attn|query|key|value|w[qkv]|to_q(kv)?|to_kv|qkv|c_qkv|wQKV|w_[qkv]s"
        r"|(query|key|value)_projection)\]|(SelfBlock|CrossBlock)\[\w+\]/Linear\[(Wqkv|to_qk|to_v)\]"
        r"|OCAB\[\w+\]/Linear\[qkv\]|InteractingLayer\[\d\]/Linear\[W_[QKV]\]"
        r"|TransformerBlock\[\w+\]/Linear\[w_[qkv]s\]", _PRODUCT, "attention.qkv", "their names"),
    Row(rf"{_ATTENDS}\[(c_proj|proj|wo|wO|to_out|fc|out|out_projection)\]|{_ATTENDS}\[to_out\]/Linear\[0\]"
        r"|SelfBlock\[\w+\]/Linear\[out_proj\]|CrossBlock\[\w+\]/Linear\[to_out\]|OCAB\[\w+\]/Linear\[proj\]"
        r"|BertAttention\[\w+\]/BertSelfOutput\[\w+\]/Linear\[dense\]", _PRODUCT, "attention.output",
        "their names"),
    Row(r"InteractingLayer\[\d\]/Linear\[W_Res\]", _ANY, "attention.* residual other",
        "torch_rechub: layers.py, a product around attention"),
    Row(r"InteractingLayer\[\d\]", "add=", "residual attention.*", "torch_rechub: layers.py"),
    Row(r"InteractingLayer\[\d\]", _ANY, "attention.*", "torch_rechub: layers.py"),
    Row(r"Attention\[\w+\]/Linear\[(to_gates|to_value_residual_mix)\]", _ANY, "attention.*",
        "bs_roformer.py: of results and of values"),
    Row(r"Attention\[fn\]/Embedding\[\w+\]|DynamicPosBias\[\w+\]" + _IN, r"(?!layer_norm).*",
        "attention.other embedding attention.softmax mlp.* other", "of distances"),
    Row(r"QASSMaxMLP\[\w+\](/Sequential\[\w+\]/\w+\[\d\])", _ANY, "attention.* mlp.*", "tabicl: ssmax.py"),
    Row(r"QASSMaxMLP\[\w+\]", _ANY, "attention.*", "tabicl: ssmax.py"),
    Row(r"TransformerBlock\[\w+\]/Linear\[fc1\]", _ANY, "attention.qkv attention.other other",
        "Hengshuang/transformer.py: in front of queries, keys and values"),
    Row(r"TransformerBlock\[\w+\]/Linear\[fc2\]", _ANY, "attention.output attention.other other",
        "Hengshuang/transformer.py"),
    Row(r"TransformerBlock\[\w+\]/Sequential\[fc_delta\]/\w+\[\d\]", _ANY,
        "attention.other attention.rope embedding mlp.* other", "Hengshuang/transformer.py: of places"),
    Row(r"TransformerBlock\[\w+\]/Sequential\[fc_gamma\]/\w+\[\d\]", _ANY, "attention.* mlp.*",
        "Hengshuang/transformer.py: scores, by an MLP"),
    Row(r"TransformerBlock\[\w+\]", "softmax", "attention.softmax", "Hengshuang/transformer.py"),
    Row(r"TransformerBlock\[\w+\]", "einsum", "attention.values", "Hengshuang/transformer.py"),
    Row(r"TransformerBlock\[\w+\]", "add=", "residual attention.*", "Hengshuang/transformer.py"),
    Row(r"TransformerBlock\[\w+\]", _ANY, "attention.* other", "Hengshuang/transformer.py: neighbours"),
    Row(r"(BertSelfOutput|BertOutput)\[\w+\]|MultiHeadAttention\[slf_attn\]|PositionwiseFeedForward\[\w+\]",
        "add=", "residual", "xbert.py; FastSpeech2: SubLayers.py"),
    # MLPs
    *feed_forwards(_FEED_FORWARDS, _PRODUCT),
    Row(r"(TransformerEncoder\[\w+\]/Block|AdaNorm)\[\w+\]/Sequential\[mlp\]/\w+\[\w+\]", _ANY,
        _CONDITION, "Maskgit-pytorch: shift, scale and gate"),
    Row(r"PositionwiseFeedForward\[\w+\]/Conv1d\[w_[12]\]", _ANY, "mlp.* other", "FastSpeech2: SubLayers.py"),
    Row(r"((Mlp|MLP|FeedForward|SwiGLU|PositionwiseFeedForward|LLaMAMLP)\[(mlp|ffn|ff|swiglu|pos_ffn)\]"
        r"|FeedForward\[\w+\]/Sequential\[net\]|Sequential\[(ffn|mlp)\]|Transformer\[\]/Sequential\[1\])"
        r"(/(SwiGLU|\w*(GELU|SiLU|ReLU)\w*)\[\w+\])?|BertIntermediate\[\w+\](/\w+\[\w+\])?", _ANY, _ACT,
        "all"),
    Row(r"(EncoderLayer|MultiheadAttentionBlock|TransformerEncoderLayer|GPSLayer)\[\w+\](/ReLU\[act_fn_ff\])?",
        "relu|gelu", _ACT, "TimeXer.py; tabicl; torch.nn; gps_layer.py"),
    # conditions, and what is around attention and MLP
    Row(r"Sequential\[(global_)?adaLN_modulation\]/\w+\[\w+\]|TextConditioner\[\w+\]/Sequential\[\w+\]/\w+\[\d\]"
        r"|FiLM\[\d+\]/Sequential\[net\]/\w+\[\d\]", _ANY, _CONDITION, "FiT; REPA; RT-1: FiLM"),
    Row(r"TextConditioner\[\w+\]|FiLM\[\d+\]", _ANY, f"{_AROUND} embedding", "RT-1: FiLM"),
    Row(r"(FeedForward|TransformerAttention)\[\d\]|MaxViT\[\w+\]", "cat|__getitem__",
        "other attention.other mlp.other embedding", "RT-1: laid out for FiLM"),
    Row(_BLOCKS, "add=", "residual", "FiT; REPA; Maskgit-pytorch"),
    Row(_BLOCKS, "mul|add|chunk", _AROUND, "shift, scale and gate"),
    Row(r"(FinalLayer|AdaNorm)\[\w+\]/Linear\[linear\]", _PRODUCT, _HEAD, "FiT; REPA"),
    Row(r"(FinalLayer|AdaNorm)\[\w+\]", _ANY, "norm other logits", "shift and scale"),
    Row(r"DropPath\[\w+\]", _ANY, _STOCHASTIC, "stochastic depth"),
    Row(r"DenseFormer\[\]", "tensordot|__setitem__|zeros|__getitem__|clone", "residual other",
        "denseformer.py: a weighted sum of all layers before"),
    Row(r"ParallelTokenformerLayer\[\d\]", "add=", "residual mlp.other", "tokenformer.py: a bias of nothing"),
    Row(r"SelfBlock\[\w+\]", "add=", "residual attention.rope attention.other",
        "lightglue.py: rotations, too"),
    Row(r"(Self|Cross)Block\[\w+\]", "cat", "mlp.other attention.other other",
        "lightglue.py: what MLPs take"),
    Row(r"(SelfBlock|CrossBlock|OCAB)\[\w+\](/Unfold\[\w+\])?", r"(?!add=).*", "attention.*",
        "lightglue.py: rotations, a scale; hat_arch.py: windows that overlap"),
    Row(r"\w*HyperConnections\[\d\]|Reduce\[(expand|reduce)_stream\]", _ANY, "residual other norm",
        "hyper_connections: streams"),
    Row(r"TransformerLayer\[\d\]", "contiguous", "attention.other residual", "toto: transformer.py"),
    Row(r"(FFTBlock|CrossFormerBlock|HAB)\[\d\]", r"(?!add=).*", "other residual attention.other mlp.other",
        "FastSpeech2: padding; groups; windows, shifted; a scale"),
    Row(r"EncoderLayer\[\d\]", r"(?!add).*", "residual other attention.other mlp.other", "TimeXer.py: both"),
    Row(r"EncoderLayer\[\d\]|GPSLayer\[\d\]", "add=?", "residual other", "TimeXer.py; gps_layer.py"),
    Row(r"GPSLayer\[\d\]", _ANY, "attention.other other", "gps_layer.py: graphs side by side"),
    Row(r"MaxViT\[\w+\]/Sequential\[\d\]/Rearrange\[\d\]", _ANY, "attention.other other residual mlp.other",
        "RT-1: windows"),
    Row(r"(InducedSelfAttentionBlock|MultiheadAttentionBlock)\[\w+\]", r"(?!add=).*", "attention.other other",
        "tabicl: layers.py"),
    Row(r"BertLayer\[\d\]", r"(?!add=).*", _SCALE, "xbert.py"),
    # convolutions around transformers
    Row(r"MaxViT\[\w+\]/Sequential\[\d\]/(Sequential|MBConvResidual)\[0\]" + _IN, _ANY, "other residual",
        "RT-1: MBConv"),
    Row(r"TokenLearner\[\w+\]" + _IN, _ANY, "other embedding attention.*", "RT-1: maps of attention"),
    Row(r"StdConv2d\[\w+\]", r"(?!conv2d).*", "norm other", "TransUNet: weights, standardized"),
    Row(r"ResNetV2\[\w+\]" + _IN, _ANY, "other embedding residual", "vit_seg_modeling_resnet_skip.py"),
    Row(r"ChannelAttention\[\d\]" + _IN, _ANY, "other attention.*", "hat_arch.py: of channels"),
    Row(r"CAB\[\w+\]" + _IN, _ANY, "other", "hat_arch.py: convolutions beside attention"),
    Row(r"RHAG\[\d\](/(Conv2d|PatchUnEmbed)\[\w+\])?", _ANY, "other residual", "hat_arch.py"),
    Row(r"PatchUnEmbed\[\w+\]", _ANY, "other embedding logits", "hat_arch.py: maps from tokens"),
    Row(r"Transition\w+\[\d\]" + _IN, _ANY, "other", "pointnet_util.py"),
    Row(r"GatedGCNLayer\[\w+\]" + _IN, _ANY, "other residual", "gatedgcn_layer.py"),
    Row(r"VarianceAdaptor\[\w+\]/Embedding\[\w+\]", _ANY, "embedding", "FastSpeech2: pitch, energy"),
    Row(r"VarianceAdaptor\[\w+\]", "add=", "embedding other residual", "FastSpeech2: modules.py"),
    Row(r"VarianceAdaptor\[\w+\]" + _IN, r"(?!layer_norm).*", "other embedding", "FastSpeech2: modules.py"),
    # heads
    Row(r"CrossFormer\[\]/Linear\[head\]|Linear\[post_mp\]", _ANY, _HEAD, "of classes"),
    Row(r"Linear\[(lm_head|final_linear|head)\]|EinLinear\[head\]|Sequential\[to_logits\]/Linear\[\d\]"
        r"|BertLMPredictionHead\[\w+\]/Linear\[decoder\]|Transformer\[\]/Linear\[head\]", _ANY, "logits",
        "their names"),
    Row(r"Linear\[(output_proj|linear|unembed|mel_linear|attn_linear|itm_head|(vision|text)_proj(_m)?)\]",
        _PRODUCT, _HEAD, "their names"),
    Row(r"(BertPredictionHeadTransform|LR|DecoderCup|SegmentationHead|PostNet|FlattenHead|PretrainHead)\[\w+\]"
        + _IN + r"|HAT\[\]/(Conv2d\[conv_(after_body|last)\]|(Sequential|Upsample)\[\w+\]/\w+\[\d\])"
        r"|(AdaptiveAvgPool1d)\[\w+\]", r"(?!layer_norm).*", _HEAD, "last layers"),
    Row(r"BertOnlyMLMHead\[\w+\](/BertLMPredictionHead\[\w+\])?", _ANY, "logits", "xbert.py"),
    Row(r"SiT\[\]/Sequential\[\d\]/\w+\[\d\]|Sequential\[binary_decoder\]" + _IN + r"|TransformerModel\[\]"
        r"/Sequential\[decoder\]" + _IN + r"|PointTransformerCls\[\]/Sequential\[fc2\]/\w+\[\d\]"
        r"|ICLearning\[\w+\]/Sequential\[decoder\]/\w+\[\d\]|MaskEstimator\[\w+\]" + _IN
        + r"|AutoInt\[\]/MLP\[mlp\]" + _IN,
        r"(?!layer_norm).*", "logits other mlp.*", "heads that are MLPs"),
    Row(r"MixtureOfStudentTsOutput\[\w+\]" + _IN, _ANY, "logits other loss", "toto: distribution.py"),
    Row(r"MatchAssignment\[\d\]/Linear\[\w+\]", _ANY, _HEAD, "lightglue.py"),
    Row(r"MatchAssignment\[\d\]", "einsum", _HEAD, "lightglue.py: similarities"),
    Row(r"MatchAssignment\[\d\]", _ANY, f"loss {_HEAD}", "lightglue.py: log-softmax of both sides"),
    Row(r"FastSpeech2Loss\[\]" + _IN + r"|CrossEntropyLoss\[\w*\]", _ANY, "loss", "FastSpeech2: loss.py"),
    # ALBEF
    Row(r"ALBEF\[\]", "mul|add=?|sub|rsub|__rsub__|__rmul__", "optimizer other loss",
        "model_pretrain.py: the momentum model; targets"),
    Row(r"ALBEF\[\]", "normalize", "loss norm logits", "model_pretrain.py"),
    Row(r"ALBEF\[\]", _ANY, "loss logits embedding other",
        "model_pretrain.py: similarities, queues, what is masked"),
    Row(r"BertForMaskedLM\[\w+\]", _ANY, "loss logits", "xbert.py: of words and of soft ones"),
    # what is left of whole models
    Row(r"Transformer\[transformer\]|BertEncoder\[\w+\]|\w*Model\[\]", "add=", "residual embedding",
        "RT-1; places"),
    Row(r"(Encoder|Decoder|Embeddings|PositionalEncoding|SiT|GPT|HAT|DenseFormer"
        r"|CLIPImageGridPointDiffusionTransformer)\[\w*\]", "add=", "embedding other residual", "places"),
    Row(r"(ColEmbedding|ICLearning)\[\w+\]", "add=", "embedding other", "tabicl: of what is told"),
    Row(r"TransformerModel\[\]", "normalize", "norm logits other", "UCE: of cells"),
    Row(r"FastSpeech2\[\]", "add=", "residual logits other", "fastspeech2.py: what PostNet adds"),
    Row(r"FiT\[\]", "cos|sin|cat|__getitem__", "attention.rope attention.other embedding other", "rotations"),
    Row(r"(Model|TotoBackbone)\[\]", r"(?!add=).*", f"norm embedding {_HEAD}",
        "series, of one mean and scale"),
    Row(r"(GPT|BSRoformer|AutoInt)\[\]", _ANY, f"embedding {_HEAD} loss",
        "weights of losses; spectra; a sigmoid"),
    Row(r"RowInteraction\[\w+\]|SetTransformer\[\w+\]", _ANY, "embedding other attention.other",
        "tabicl: tokens of rows"),
    Row(_WHOLE, r"(?!add=).*", f"embedding {_HEAD} attention.other",
        "tokens, places, masks, scales; the result"),
)  # fmt: skip
_ATTENTION = re.compile(r"(Attention|AttentionLayer|LocalMHA|Attend)$")
_PLAIN = re.compile(r"\w*(Layer|RMS|Rms)Norm(_NonParam)?")
_MAPS = re.compile(r"\w*(Group|Batch|Instance)Norm(\dd)?")
#: What is of transformers or of peft as a whole.
_LIBRARY = re.compile(r"Peft\w*|(Llama|GPT2)\w+|T5Stack")
#: Adapters of peft that are called otherwise than the layer they stand for.
_ADAPTERS = {"MissLinear": "Linear", "RoadLinear": "Linear"}
#: Functions that a module calls with and without a weight of its own.
_WEIGHED = {"matmul", "__matmul__"}
_LOSSES = ("cross_entropy", "mse_loss", "l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
#: What MOMENT computes of masks and series, whose call is not seen, and UCE of a cell beside genes.
_UNSEEN = ("nan_to_num", "repeat_interleave", "unfold", "__eq__", "long", "hstack", "bool")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        if function in _UNSEEN:
            return "embedding other attention.other loss"
        if function == "normalize":
            return "loss norm logits"
        return recipes_truth.truth_of(place, function, weighted=weighted, equal=equal)
    if found := settled(place, function, _LOSSES):
        return found
    own = place.classes[-1]
    library = _LIBRARY.fullmatch(place.classes[0]) is not None
    if library:
        place = Place(tuple(_ADAPTERS.get(x, x) for x in place.classes), place.names, place.seen)
    weighed = weighted and function in _WEIGHED
    if library:
        found = row_of(_LIBRARY_ROWS, place, function, equal=equal, weighed=weighed)
        return found or recipes_truth.truth_of(place, function, weighted=weighted, equal=equal)
    if _MAPS.fullmatch(own):
        return "norm other"
    if function in _NORMS or _PLAIN.fullmatch(own):
        return "norm"
    found = row_of(_ROWS, place, function, equal=equal, weighed=weighed)
    return found or unlisted(place, function, _ATTENTION, weighted=weighted, equal=equal)
