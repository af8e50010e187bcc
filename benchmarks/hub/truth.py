"""What each piece of a Hugging Face model is for: by how its library names modules, and which function runs.

A truth is the words that are right, separated by spaces: the usual one first, then as defensible ones.
``x.*`` is any part of x. An empty truth is not judged. The table follows the names that `transformers` gives
in its own source (class of the module, attribute under which its parent holds it), and no rule reads a trace
or a shape.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANY = "attention.*"
#: Mixers that are no attention over tokens: state spaces, recurrences, convolutions, Fourier transforms.
_OTHER_MIXER = re.compile(
    r"Mamba\w*$(?<!Layer)(?<!Model)(?<!LM)|BambaMixer|H1Mixer|SSM|StateSpace|Delta(Net|Attention)|RWKV|Rwkv|Recurrent(?!Gemma)|ShortConv"
    r"|Fourier|Hyena|xLSTM|ConvBertConv|LightningAttention|SlidingWindowConv|SeparableConv|ConvolutionModule"
    r"|ConformerConvolution|FeatureEncoder|FeatureExtractor|ConvLayer|PositionalConv|ResNetStage|ConvNext|Convolution\b|Conv\dD?Layer|GatedLinearAttention"
    # the blocks of an EfficientNet, by transformers' models/align/modeling_align.py: "the depthwise
    # convolution phase of each block", "the Squeeze and Excitement phase", and the two around them
    r"|AlignVision(Expansion|Depthwise|SqueezeExcite|FinalBlock)Layer"
    # "convolution, normalization, activation" and blocks of them between the maps of a detector:
    # models/rt_detr/modeling_rt_detr.py (RTDetrConvNormLayer, RTDetrRepVggBlock, RTDetrCSPRepLayer)
    r"|ConvNormLayer|RepVggBlock|CSPRepLayer|RepNCSPELAN"
    # rows of convolutions: models/vits/modeling_vits.py, models/pe_audio/modeling_pe_audio.py (and the
    # activation between), models/granite_speech/modeling_granite_speech.py
    r"|HifiGanResidualBlock|WaveNet$|DacResidualUnit|Snake1d|ConformerConvModule"
    # models/swiftformer/modeling_swiftformer.py, "3*3 depth-wise and point-wise convolutions"; models/sam3,
    # the pyramid of maps; models/sam3_lite_text, "depthwise-conv token mixer" and its block; models/gemma3n,
    # LightConv1d and its "convolution block"
    r"|SwiftFormer(ConvEncoder|LocalRepresentation)|FPNLayer|RepMixer|LightConv1d|SSCPConvBlock"
    # models/efficientloftr: a RepVGG, and convolutions behind the transformer
    r"|RepVGG(Block|Stage)?$|LoFTROutConvBlock|LoFTRFineFusionLayer"
    # maps behind a tower: models/depth_anything, zoedepth (of one tap, too), depth_pro; models/eomt,
    # transposed convolutions that scale up; models/vitmatte
    r"|PreActResidualLayer|FeatureFusionLayer|FeatureUpsample|AttractorLayer|(Eomt|Videomt)\w*ScaleLayer"
    r"|VitMatte(BasicConv|ConvStream|FusionBlock)"
    # codecs of sound: models/mimi, neucodec, xcodec2, pocket_tts; models/gemma4, in front
    r"|MimiResnetBlock|TokenizerResnetBlock|SnakeBeta|odec2?(ResidualUnit|ResNetBlock|UpSample1d|EncoderBlock)$"
    r"|SubSampleConvProjection"
)
#: Of those the ones with a state that decays: their linear layers, their convolution and their scan.
#: Griffin's gated linear recurrence is one: a short convolution, and a diagonal state that decays
#: (arXiv 2402.19427, 2.4); Kimi's delta attention is a gated DeltaNet with finer gates (arXiv 2510.26692),
#: and models/glm5_next calls "Kimi-style KDA" LinearAttention: attention is as defensible there.
_STATE_SPACE = re.compile(
    r"Mamba\w*$(?<!Layer)(?<!Model)(?<!LM)|BambaMixer|H1Mixer|Delta(Net|Attention)|MambaLayer$|RecurrentBlock$|Rglru$"
    r"|Glm5NextTextLinearAttention$"
)
#: Not a layer that is called after it and holds an MLP too: models/groupvit/modeling_groupvit.py,
#: GroupViTCrossAttentionLayer; models/pixtral/modeling_pixtral.py, PixtralAttentionLayer;
#: models/bridgetower/modeling_bridgetower.py, BridgeTowerResidualAttention; models/efficientloftr, whose
#: AggregatedAttention adds to a map; models/sam_hq, whose TwoWayAttentionBlock is a layer; timm's
#: _efficientnet_blocks.py, whose MobileAttention holds a norm, an attention, a scale and the sum.
_ATTENTION = re.compile(
    r"(?<!Delta)(?<!Glm5NextTextLinear)(?<!BridgeTowerResidual)(?<!Aggregated)(?<!TwoWay)(?<!Mobile)Attention(?!\w*Layer$)|Attn|SelfOutput|MLA$"
)
_EXPERTS = re.compile(r"Experts\b|Experts?(MLP)?$")
#: KimiLinearForgetGate is a decay of its delta attention: models/kimi_linear/modeling_kimi_linear.py.
_ROUTER = re.compile(r"Router|TopkGate|TopKGate|(?<!Deimv2)(?<!DFine)(?<!Forget)Gate$")
#: Weights two residual streams against each other: models/deimv2/modeling_deimv2.py, "second_residual";
#: models/d_fine/modeling_d_fine.py, the same.
#: Sums several residual streams, in front of the last norm: models/hy_v4_vl, HYV4VLHyperHead.
#: Two weights for each channel: models/muse_spark/modeling_muse_spark.py, alpha * residual + beta * hidden.
_STREAMS = re.compile(r"(Deimv2|DFine)Gate$|HyperHead$|ResidualGate$")
#: A recurrent cell beside attention, as in models/slanet/modeling_slanet.py, is of it or of nothing.
_RECURRENT = re.compile(r"(LSTM|GRU|RNN)(Cell)?$")
#: Scales by a half what it adds to the stream, inside: models/gemma3n, Gemma3nAudioConformerFeedForward.
_HALVES = re.compile(r"ConformerFeedForward$")
_MOE = re.compile(r"(Moe|MoE|MOE)$|SparseM|Moe(Block|Layer|SparseMoeBlock)|MoELayer|Mixture|BlockSparse")
_MLP = re.compile(r"MLP|Mlp|FeedForward|FFN|Ffn|Intermediate|Dense\w*ActDense|GatedMlp|\w+Output$")
#: Not a model called after what it gives (models/embedding_gemma2), nor Q K^T with the positions'
#: (models/gemma3n/modeling_gemma3n.py, Gemma3nAudioRelativePositionEmbedding). JinaEmbeddingsV3 is a model,
#: and so is what models/depth_pro holds in its PatchEncoder. ContextProjection takes the states of another
#: model: models/muse_glimmer_assistant.
_EMBEDDING = re.compile(
    r"(?<!Gemma3nAudioRelativePosition)Embedding(?!Gemma|sV3)|FeatureProjection|ContextProjection|PatchEmbed|Embeddings(?!V3)|(?<!DepthPro)PatchEncoder|PatchMerging|Downsampl"
)
_NORM = re.compile(r"Norm(Gated|\dd|FP32)?$")
_LAYER = re.compile(r"(Layer|Block|Stage)(\w*)$|EncoderLayer|DecoderLayer|BridgeTowerResidualAttention$")
#: ForClassification is a whole model, also inside another: models/nemotron3_5_transcribe.
_HEAD = re.compile(
    r"Head$|HeadTransform|Predictions?$|PredictionHeads|Classif(?!ication$)|Pooler|Projection$|Projector"
)
#: Attention over what is pooled: models/aimv2/modeling_aimv2.py, models/videoprism/modeling_videoprism.py.
_POOLS = re.compile(r"(Aimv2|VideoPrismMultihead)AttentionPoolingHead$")
#: Into the model and out of it: models/timesfm/modeling_timesfm.py.
_PATCHES = re.compile(r"TimesFm\w*ResidualBlock$")
#: "Very simple multi-layer perceptron (MLP, also called FFN), used to predict": models/rt_detr.
_IN_HEAD = re.compile(r"(MLP|Mlp)(PredictionHead)?$")
#: An MLP that makes the queries' positions, whatever its class is called: models/rt_detr/modeling_rt_detr.py.
_OF_POSITIONS = re.compile(r"(pos|ref_point)_head$")
#: Memories of frames, a convolution and a sum beside attention: models/fun_asr_nano/modeling_fun_asr_nano.py.
_MEMORY = re.compile(r"FSMN$")
#: Shifts and scales from what conditions a model: models/qwen2_5_omni/modeling_qwen2_5_omni.py.
_MODULATION = re.compile(r"Ada(ptive)?LayerNorm\w*$")
#: A linear layer for each position: models/moshi/modeling_moshi.py.
_PER_POSITION = re.compile(r"FlexibleLinear$")
#: Layers that add positions to queries and keys themselves: models/sam_hq, query + query_point_embedding;
#: models/sam3, hidden_states + query_pos.
_PLACES = re.compile(r"TwoWayAttentionBlock$|Sam3\w*Detr(En|De)coderLayer$")
_ACTIVATION = re.compile(r"GELU|SiLU|ReLU|Activation|Swish|Mish|Tanh$|Sigmoid$|^ACT")
_DROPOUT = re.compile(r"Dropout|DropPath|StochasticDepth")
#: Not attention that is called after it: models/vjepa2, models/sam3.
_ROTARY = re.compile(r"(Rotary|RoPE|Rope)(?!\w*Attention)")

#: Attributes under which linear layers are held.
_QUERIES = re.compile(
    r"(q|k|v|kv|qkv|query|key|value)(_?(proj|lin|linear|head|global))?|query_key_value|(c|q)_attn|in_proj|[Ww]qkv"
    r"|q_[ab]_proj|kv_[ab]_proj(_with_mqa)?|(to|w)_?[qkv]|linear_[qkv]|W_pack|projection_(query|key|value)|kv_b"
)
_OUTPUTS = re.compile(r"o|(o|c|out|post)_proj|dense|out(_lin)?|proj|wo|linear_out|attn_out|final_linear")
_UP = re.compile(
    r"up(_proj)?|c_fc|(fc|lin|linear|dense_|layer_)1|dense_h_to_4h|wi(_1)?|fc_in|w3|intermediate_dense|w_in|linear_v|proj_in"
)
_GATE = re.compile(r"gate(_proj)?|wi_0|w1|linear_w")
#: down_proj(relu(gate_proj(x))): models/timesfm/modeling_timesfm.py.
_NOT_GATED = re.compile(r"TimesFmMLP$")
_DOWN = re.compile(
    r"down(_proj)?|c_proj|(fc|lin|linear|dense_|layer_)2|dense_4h_to_h|wo|fc_out|(output|ffn)_(dense|output)|w2|w_out|proj_out"
)
_LOGITS = re.compile(
    r"(\w*lm_)?head|decoder|embed_out|output_projection|classifier|score|lm_scale|proj_out|cls|vocab\w*|logits\w*"
)

_LINEAR = (
    "linear", "addmm", "matmul", "bmm", "baddbmm", "einsum", "__matmul__", "__rmatmul__", "mm", "conv1d",
)  # fmt: skip
_GROUPED = ("_grouped_mm", "grouped_mm")
_MOVES = (
    "sort", "argsort", "index_select", "gather", "scatter", "scatter_add", "index_add", "index_add_", "where",
    "one_hot", "cumsum", "histc", "bincount", "__getitem__", "__setitem__", "nonzero", "scatter_",
    "masked_fill", "masked_fill_", "argwhere", "repeat_interleave", "expand", "floor_divide", "__floordiv__",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where a function runs: classes and attribute names of the modules around it, outermost first."""

    classes: tuple[str, ...]
    names: tuple[str, ...]
    seen: str = ""  # "", "scores" or "softmax": how far the nearest attention module has come

    def within(self, pattern: re.Pattern[str]) -> int:
        """Index of the innermost module whose class fits; -1."""
        return next((i for i in range(len(self.classes) - 1, -1, -1) if pattern.search(self.classes[i])), -1)


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call of ``function``: ``weighted`` if it takes a parameter of the model, ``equal`` if it
    adds two tensors of one shape."""
    if function == "cross_entropy":
        return "loss"
    if not place.classes:
        return ""
    own, name = place.classes[-1], next((n for n in reversed(place.names) if not n.isdigit()), "")
    if function in ("scaled_dot_product_attention",):
        return "attention.core attention.scores attention.softmax attention.values"
    if equal and _DROPOUT.search(own) and _NORM.search(own):
        return "residual"  # all that a module does that is called for its parts
    if _DROPOUT.search(own) or function in ("dropout", "native_dropout"):
        return "dropout"
    weighted |= function in _LINEAR and bool(_PER_POSITION.search(own))  # of a view of the parameter
    state_space = place.within(_STATE_SPACE)
    if function in ("layer_norm", "rms_norm", "group_norm", "batch_norm") or _NORM.search(own):
        return "norm other" if state_space < 0 else "norm ssm.scan"
    if _ROTARY.search(own):
        return "attention.rope"
    if place.within(_STREAMS) >= 0:
        return "residual other"
    if _RECURRENT.search(own):
        return "other attention.*"
    if place.within(_PATCHES) >= 0:
        return "embedding other logits mlp.* residual"
    attention, other = place.within(_ATTENTION), place.within(_OTHER_MIXER)
    if state_space > attention:
        gates = place.classes[state_space].endswith("Rglru")  # of the scan, and products all the same
        named = " attention.*" if place.classes[state_space].endswith("LinearAttention") else ""
        return _in_state_space(function, weighted=weighted) + (" ssm.scan" if gates else "") + named
    if other == 0 == len(place.classes) - 1:
        return ""  # the whole model's own: what it takes and gives
    if other == 0 and len(place.classes) == 2 and _LOGITS.fullmatch(name):
        return "logits other"  # of a whole model without attention
    if place.within(_MEMORY) > attention >= 0:
        return f"other {_ANY}" + (" residual" if equal else "")
    if place.within(_MODULATION) >= max(attention, place.within(_MLP), 0):
        return "norm other mlp.activation"
    if other >= max(attention, 0) or function in ("conv2d", "conv3d", "conv_transpose2d"):
        around = "attention.*" if attention >= 0 else "mlp.*" if place.within(_MLP) >= 0 else "norm"
        return f"other embedding {around}" + (" residual" if equal else "")
    embedding = place.within(_EMBEDDING)
    if embedding > max(attention, place.within(_MLP)) or function == "embedding":
        table = own == "Embedding"  # of tokens, or of the distance between two of them
        as_well = "attention.other attention.softmax" if table else "other attention.rope norm dropout"
        return f"embedding {as_well}"
    experts = max(place.within(_EXPERTS), place.within(_MOE), place.within(_ROUTER))
    if experts > attention and experts == place.within(_ROUTER):
        return "moe.router moe.dispatch"
    if experts > attention and experts >= 0:
        of_attention = f" {_ANY}" if attention >= 0 else ""  # queries and output of experts: models/jetmoe
        return _in_mixture(place, own, name, function, weighted=weighted) + of_attention
    if any(_OF_POSITIONS.search(held) for held in place.names):
        return "mlp.* embedding other logits"
    if any(held.startswith("box_rpb_embed") for held in place.names):  # what attention adds: models/sam3
        return "mlp.* attention.other"
    if "readout_projects" in place.names:  # of the token beside a map of features: models/dpt
        return "mlp.* other"
    head = place.within(_HEAD)
    if head == 0 and len(place.classes) > 1:
        head = -1  # a whole model named for its head
    if head > attention >= 0 and place.classes[head].endswith("Projection"):
        head = -1  # of queries, keys and values (models/zaya), or of any linear layer (models/inkling2)
    if head == attention >= 0 and _POOLS.search(place.classes[head]):
        head = -1
    if own == "QuantAct":  # of activations, in I-BERT: of the block that it stands in; in a layer, of its MLP
        block = _ANY if attention >= max(place.within(_MLP), 0) else "mlp.*"
        return f"residual {block}" if equal else block  # it also adds to the stream what it is given beside
    if attention >= 0 and attention > max(head, -1) and attention >= place.within(_MLP) - 1:
        found = _in_attention(place, own, name, function, attention, weighted=weighted, equal=equal)
        if found is not None:
            return found
    if any("Projector" in c for c in place.classes) or "Pool" in own:
        pools = " residual attention.*" if attention >= 0 or "Attention" in own else ""  # SigLIP's
        return f"embedding other logits mlp.* norm{pools}"
    if place.within(_IN_HEAD) >= head >= 0:
        return "logits other mlp.*"
    closes = name == "proj_out" and place.within(_MLP) >= 0  # an MLP: models/sam2, Sam2FeedForward
    closes |= name == "decoder" and (own != "Linear" or place.names[-1] != name)  # half a model
    if (_LOGITS.fullmatch(name) and not closes) or head > place.within(_LAYER):
        return "logits other"
    return _in_layer(place, own, name, function, weighted=weighted, equal=equal)


def _in_state_space(function: str, *, weighted: bool) -> str:
    if function.startswith("conv"):
        return "ssm.conv"
    return "ssm.projection" if function in _LINEAR and weighted else "ssm.scan ssm.conv"


def _in_mixture(place: Place, own: str, name: str, function: str, *, weighted: bool) -> str:
    if _ROUTER.search(own) or name in ("gate", "router", "classifier"):
        return "moe.router moe.dispatch"
    shared = any("shared" in n for n in place.names)
    if shared:
        return "moe.experts mlp.* moe.router" if name == "shared_expert_gate" else "moe.experts mlp.*"
    if function in _GROUPED or (function in _LINEAR and (weighted or place.within(_EXPERTS) >= 0)):
        return "moe.experts"
    if function in _MOVES:
        return "moe.dispatch moe.experts moe.router"
    return "moe.*"


def _in_attention(
    place: Place, own: str, name: str, function: str, at: int, *, weighted: bool, equal: bool
) -> str | None:
    inside = place.names[at:]
    if function == "multi_head_attention_forward":
        return f"{_ANY} dropout"  # all of it, in one function
    if function == "softmax":
        return "attention.softmax"
    if equal and ("SelfOutput" in own or len(inside) == 1):
        return "residual attention.*" if "SelfOutput" not in own else "residual"
    if function in _LINEAR and weighted:
        if _QUERIES.fullmatch(name):
            return "attention.qkv"
        if _OUTPUTS.fullmatch(name) and (place.seen == "softmax" or "SelfOutput" in place.classes[at]):
            return "attention.output"
        if function.startswith("conv"):
            return f"{_ANY} other"
        if len(inside) == 1:
            return "attention.output attention.*" if place.seen == "softmax" else "attention.qkv attention.*"
        return _ANY
    if function in ("matmul", "bmm", "baddbmm", "einsum", "__matmul__"):
        return "attention.values attention.*" if place.seen == "softmax" else "attention.scores attention.*"
    return _ANY


def _in_layer(place: Place, own: str, name: str, function: str, *, weighted: bool, equal: bool) -> str:
    mlp, layer = place.within(_MLP), place.within(_LAYER)
    if mlp < 0 and layer < 0:
        return ""
    if function in _LINEAR and weighted:
        if place.names[-1].isdigit():
            return "mlp.*"
        for words, truth in ((_GATE, "mlp.gate"), (_UP, "mlp.up"), (_DOWN, "mlp.down")):
            if words.fullmatch(name):
                gated = mlp < 0 or not _NOT_GATED.search(place.classes[mlp])
                return truth if gated or truth != "mlp.gate" else "mlp.up"
        if name in ("gate_up_proj", "Wi"):
            return "mlp.up mlp.gate"
        if name == "dense" and own != "dense":
            if any("Intermediate" in c for c in place.classes):
                return "mlp.up"
            if place.classes[mlp].endswith("Output") if mlp >= 0 else False:
                return "mlp.down"
        if name == "ffn":
            return "mlp.up"
        return "mlp.*" if mlp >= 0 else ""
    if equal and not _ACTIVATION.search(own) and (mlp < 0 or place.classes[mlp].endswith("Output")):
        places = " attention.other embedding" if _PLACES.search(own) else ""
        return "residual" + (" other" if own.endswith("AggregatedAttention") else places)
    halves = _HALVES.search(own) and function in ("mul", "__mul__", "__rmul__")
    if (equal or halves) and mlp == len(place.classes) - 1:  # a gate written out, or added to the stream
        return "mlp.activation mlp.other residual"
    if _ACTIVATION.search(own) or mlp >= 0:
        return "mlp.activation mlp.other" if mlp >= 0 or layer >= 0 else ""
    if function in ("gelu", "relu", "silu"):
        return "mlp.activation mlp.other"
    return ""
