"""What each piece of a vision model is for, by names that timm and torchvision give, and which function runs.

As in ``benchmarks.hub.truth`` a truth is the words that are right; an empty one is not judged. The table
follows the libraries' own source: class of a module, attribute under which its parent holds it. What mixes
positions without attention (pooling, convolutions, modulation, gates, states) is ``other``, and so are its
linear layers.
"""

from __future__ import annotations

import re

from benchmarks.hub.truth import Place

_NORM = re.compile(
    r"Norm(Act)?(Fp32)?(\dd)?(Fp32)?$|^(Group|Batch|Layer|Rms)Norm|Norm1NoBias|NoBias$|^Affine$"
)
_NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm")
_DROPOUT = re.compile(r"Dropout|DropPath|StochasticDepth")
_ACTIVATION = re.compile(r"GELU|SiLU|ReLU|Swish|Mish|Tanh$|Sigmoid$|Hardswish|QuickGELU")
#: Called attention, and no layer's attention over positions or channels: blocks around one, gates of
#: channels.
_NO_ATTENTION = (
    r"PartitionAttention|LocalWindowAttention|AttentionBlock|^SpatialAttn|^ChannelAttn|AttentionPool"
    r"|ConvAttention$|AttnBlock|^SplitAttn$|^SelectiveKernelAttn$"
)
_ATTENTION = re.compile(
    rf"^(?!.*({_NO_ATTENTION}))(.*Attention|.*Attn|LiteMLA$|SH[MS]A$|XCA$|GPSA$|Attention2d)"
)
#: An attention block whose own convolutions and products are all there is: LowFormer's, CPUBone's.
_CONV_ATTENTION = re.compile(r"ConvAttention$")
# softmax and products, by another name
_EITHER = re.compile(r"LambdaLayer|HSMSSD|AttentionPool|SpatialAttention$")
_OTHER = re.compile(
    r"FocalModulation|Pooling|SepConv|GatedConvBlock|RepMixer|SqueezeExcite|SEModule|Eca|ConvPosEnc|PosConv|RepCPE|"
    r"ConvRelPosEnc|ConvEncoder|LocalRepresentation|LSTM|Sequencer|Dct|FeatureBlock|Dwconv|MobileOne|StarBlock"
)
#: Biases of scores by the distance of two positions, made by a small MLP.
_BIAS = re.compile(r"RelPos(Mlp|Bias)|PosEmbedRel")
_MLP = re.compile(r"Mlp$|^MLP|FFN$|SwiGLU$|GluMlp|ConvMlp|Mlp(?!Head|Classifier)")
#: CPUBone's, a row of modules without a name (timm's models/cpubone.py, CPUBoneBlock.total).
_MLP_IN_A_ROW = ("total", "0", "1", "main")
#: Between a tower and a language model, as in ``benchmarks.hub.truth``.
_PROJECTOR = re.compile(r"Aligner|Projector")
_MLP_NAMES = re.compile(r"mlp(_layer|_tokens|_channels)?\d?|ffn\d?|feed_forward")
_EMBEDDING = re.compile(
    r"PatchEmbed|Stem|ConvEmbedding|^Embedding$|Embed|Downsampl|PatchMerging|PatchEmbedding"
)
_BLOCK = re.compile(
    r"Block|Layer|Bottleneck|Encoder|Transformer$|Residual|Things|Pit|MBConv|MetaBlock|Outlooker"
)
_HEAD = re.compile(r"(\w*head\w*|fc|classifier|heads)$")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose2d")
_PRODUCTS = ("linear", "addmm", "matmul", "bmm", "baddbmm", "einsum", "__matmul__", "mm")
_QUERIES = re.compile(r"(to_)?(q|k|v|kv|qkv|query|key|value|qkv_proj|[qkv]_proj|in_proj|kqv)")
_OUTPUTS = re.compile(r"proj|out|o|to_out|out_proj|merge")
_UP = re.compile(r"fc1(_x)?|lin1|ln1|w1|up|conv1")
_GATE = re.compile(r"fc1_g|w3|gate")
_DOWN = re.compile(r"fc2|lin2|ln2|w2|down|conv2")


class Truth:
    """The truth of each call of a model in turn.

    Work between the convolutions of a block is ``other`` as well as of the block, as the convolutions are.
    """

    def __init__(self) -> None:
        self._convolved: set[tuple[str, ...]] = set()  # attribute names of blocks in which a convolution ran

    def __call__(self, place: Place, function: str, *, weighted: bool, equal: bool) -> str:
        found = truth_of(place, function, weighted=weighted, equal=equal)
        block = max(place.within(_ATTENTION), _in_mlp(place)) + 1
        # a residual around the block too: ResidualDrop of efficientvit_m1
        if block and function in _CONVOLUTIONS:
            self._convolved |= {place.names[:size] for size in range(1, block + 1)}
        maps = place.names[:block] in self._convolved and found.startswith("mlp.")
        return f"{found} other" if block and maps and "other" not in found.split() else found


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call of ``function``: ``weighted`` if it takes a parameter of the model, ``equal`` if it
    adds two tensors of one shape."""
    if function == "cross_entropy":
        return "loss"
    if not place.classes:
        return ""
    own = place.classes[-1]
    if function == "scaled_dot_product_attention":
        return "attention.core attention.scores attention.softmax attention.values"
    if _DROPOUT.search(own) or function in ("dropout", "native_dropout"):
        return "dropout"
    if function in _NORMS:
        return "norm"
    if _NORM.search(own):
        return "norm other mlp.activation" + (" residual" if equal else "")  # an activation can be in it
    if own.startswith("LayerScale") or own == "Scale":
        return "residual attention.other mlp.other other"
    attention, mlp = place.within(_ATTENTION), _in_mlp(place)
    convolves = function in _CONVOLUTIONS
    # pooling, a convolution and a gate around a small transformer (timm's models/csatv2.py, SpatialAttention)
    if 0 <= place.within(_EITHER) >= max(attention, mlp):
        return "other attention.* norm" + (" residual" if equal else "")
    if place.within(_CONV_ATTENTION) >= 0 and attention < 0:
        return "other attention.* residual"
    if attention >= 0 and (place.within(_BIAS) >= attention or _of_its_own(place, attention, mlp)):
        return "attention.other mlp.* attention.softmax"
    if max(attention, mlp) < 0 or place.within(_EMBEDDING) > max(attention, mlp):
        around = _around(place, function, weighted=weighted, equal=equal)
        # a block of convolutions that brings the maps to the next stage (PatchMerging of timm's
        # models/efficientvim.py and models/efficientvit_msra.py)
        inside = around and "embedding" not in around.split() and place.within(_EMBEDDING) > 0
        around += " embedding" if inside else ""
        return f"{around} attention.*" if around and attention >= 0 else around
    if "Upsample" in own:
        return "other attention.* mlp.*"
    if place.within(_OTHER) > max(attention, mlp):
        return f"other residual {'attention' if attention > mlp else 'mlp'}.*"
    if attention >= mlp:
        found = _of_attention(place, attention, function, weighted=weighted, convolves=convolves)
        return f"{found} residual" if equal else found  # MViTv2 adds its queries, MobileNetV4 the whole block
    return _of_mlp(place, mlp, function, weighted=weighted, convolves=convolves, equal=equal)


def _of_its_own(place: Place, attention: int, mlp: int) -> bool:
    """An MLP inside attention makes biases of scores from distances."""
    return mlp > attention and place.within(_BLOCK) < attention


def _in_mlp(place: Place) -> int:
    by_name = next(
        (i for i in range(len(place.names) - 1, -1, -1) if _MLP_NAMES.fullmatch(place.names[i])), -1
    )
    rows = (i for i in range(len(place.names)) if place.names[i : i + 4] == _MLP_IN_A_ROW)
    of_model = place.within(_MLP) or -1  # MlpMixer is a whole model
    return max(of_model, by_name, next((i + 3 for i in rows), -1))


def _around(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """Outside attention and MLP: embeddings, heads, residuals, and mixers that are neither."""
    own, convolves = place.classes[-1], function in _CONVOLUTIONS
    other, embedding, block = place.within(_OTHER), place.within(_EMBEDDING), place.within(_BLOCK)
    if embedding > max(other, block, 0):
        return "embedding other norm"
    if other > 0:
        # from one width to the next (PiT's), or of positions by a convolution
        makes = re.search(r"^Pooling$|Pos|CPE", place.classes[other])
        return ("other residual" if equal else "other") + (" embedding" if makes else "")
    if place.within(_PROJECTOR) >= 0:
        return "embedding other logits mlp.* norm"
    at_top = any(_HEAD.fullmatch(name) for name in place.names[1:2])
    if block > 0 and not at_top:
        if equal and _BLOCK.search(own):
            return "residual other"
        return "other" if convolves or _ACTIVATION.search(own) or (function == "linear" and weighted) else ""
    if any(_HEAD.fullmatch(name) for name in place.names[1:3]):
        return "logits other" if function == "linear" and weighted else "logits other loss norm"
    return "embedding other" if convolves else ""


def _of_attention(place: Place, at: int, function: str, *, weighted: bool, convolves: bool) -> str:
    if function == "softmax":
        return "attention.softmax"
    if function in _PRODUCTS and weighted and len(place.names) > at + 1:
        held = place.names[at + 1]
        if _QUERIES.fullmatch(held):
            return "attention.qkv"
        if _OUTPUTS.fullmatch(held):
            return "attention.output"
    return "attention.* other" if convolves or "_pool" in function else "attention.*"


def _of_mlp(place: Place, at: int, function: str, *, weighted: bool, convolves: bool, equal: bool) -> str:
    also = " other embedding" if convolves else ""
    if (function in _PRODUCTS and weighted) or convolves:
        held = place.names[at + 1] if len(place.names) > at + 1 else ""
        for words, truth in ((_UP, "mlp.up"), (_GATE, "mlp.gate"), (_DOWN, "mlp.down")):
            if words.fullmatch(held) and "dw" not in place.names[-1]:
                return f"{truth} mlp.gate{also}" if place.classes[at] == "GluMlp" else truth + also
        return f"mlp.*{also}"
    return "mlp.activation mlp.other residual" if equal else "mlp.activation mlp.other"
