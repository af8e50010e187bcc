"""What each piece of the recipes of ``recipes.py`` is for, by their own names of classes and attributes.

Rows as in ``clones_truth.py``, written from the sources before any recording was attributed. What a model of
transformers holds is for what ``benchmarks.hub.truth`` says of it, what one of diffusers or open_clip holds
for what ``more_truth.py`` says. An adapter of peft stands where the layer stands that it adapts, and is for
what that is for. What a script computes outside of modules it computes of the model's result, but where
``recipes.py`` says that it is in front of the model, or an average of weights.
"""

# Tables of other lists are modules.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.hub import truth as hub
from benchmarks.hub.truth import Place
from benchmarks.libraries import more_truth
from benchmarks.libraries.clones_truth import _ACT, _ANY, _MASK, _STOCHASTIC
from benchmarks.libraries.more_truth import _IN, Row, row_of, settled

_SCRIPT = "loss"
#: What the script computes where it runs, the innermost last.
_PARTS = [_SCRIPT]


@contextmanager
def _part(truth: str) -> Iterator[None]:
    _PARTS.append(truth)
    try:
        yield
    finally:
        _PARTS.pop()


def before() -> AbstractContextManager[None]:
    """What a script computes in front of the model: noise, masks, what is given to it."""
    return _part("embedding other loss")


def averaging() -> AbstractContextManager[None]:
    """The moving average of weights."""
    return _part("optimizer other")


_PRODUCT = "linear|addmm|conv[12]d"
#: Of logits, or of similarities that contrastive losses call so.
_OF_LOGITS = (
    r"log_softmax|softmax|gather|logsumexp|__getitem__|float|to|type_as|contiguous|stack|argmax|topk|div_?"
    r"|__i?truediv__|masked_select|unbind|matmul|mm|einsum|chunk|view|reshape|cosine_similarity"
)
#: A model of vision, and what of it makes tokens.
_SEES = (
    r"(VisionTransformer|VisionTransformerMoCo|VisionTransformerPredictor|DistilledVisionTransformer|ViT"
    r"|TextTransformer)\[\w+\]"
)
_LOSSES = (
    r"(DINOLoss|iBOTLoss|SigLipLoss|DistillationLoss|SoftTargetCrossEntropy|MultipleNegativesRankingLoss"
    r"|SpladeLoss|Similarity|CosineSimilarity|LogSoftmax|Softmax|KLDivLoss|CosineEmbeddingLoss"
    r"|CrossEntropyLoss)\[\w*\](/CosineSimilarity\[\w+\])?"
)
_HEADS = "logits other mlp.*"
_ROWS = (
    # losses
    Row(_LOSSES, _OF_LOGITS, "loss logits", "their names"),
    Row(_LOSSES, _ANY, "loss", "their names"),
    Row(r"AdaLoraModel\[\w+\]", _ANY, "loss", "peft: adalora/model.py, orthogonal vectors"),
    Row(r"MoCo_ViT\[\]", "mul|add=?", "optimizer other loss", "moco/builder.py: the momentum encoder"),
    Row(r"MoCo_ViT\[\]", _OF_LOGITS, "loss logits", "moco/builder.py: contrastive_loss"),
    Row(r"MoCo_ViT\[\]", "normalize", "loss norm", "moco/builder.py: contrastive_loss"),
    Row(r"MoCo_ViT\[\]", _ANY, "loss", "moco/builder.py: contrastive_loss"),
    Row(r"(ColBERT|CustomTextCLIP)\[\w*\]", "normalize|mul", "loss logits other norm", "of length one"),
    Row(r"ColBERT\[\]/Linear\[linear\]", _PRODUCT, "logits other", "colbert.py: to 128"),
    Row(r"ColBERT\[\]", _OF_LOGITS + "|__setitem__|max|sum", "loss logits", "colbert.py: MaxSim"),
    Row(r"ColBERT\[\]", _ANY, "loss other logits", "colbert.py: masks, queries for each passage"),
    Row(r"CustomTextCLIP\[\w+\]", _ANY, "loss logits", "open_clip/model.py: the scale"),
    Row(r"Electra\[\]", "cross_entropy|binary_cross_entropy_with_logits", "loss", "electra_pytorch.py"),
    Row(r"Electra\[\]", _ANY, "embedding other loss logits", "electra_pytorch.py: masks; what is sampled"),
    # sums in attention: rotations, a bias of distances
    Row(r"(Llama|Mistral|Qwen[23]|GPTNeoX)Attention\[\w+\]|MPNetSelfAttention\[\w+\]"
        r"|LanguageModelGroupedQueryAttention\[\w+\]", "add_?=", "attention.*", "transformers; nanoVLM"),
    # heads and poolers
    Row(r"(DINO|iBOT)Head\[\w+\](/Linear\[last_layer2?\])?", r"_weight_norm\w*|normalize",
        "norm logits other", "dino: vision_transformer.py; ibot: head.py"),
    Row(r"(DINO|iBOT)Head\[\w+\]/Linear\[last_layer2?\]", "linear", "logits other", "the same"),
    Row(r"(DINO|iBOT)Head\[\w+\]" + _IN, _ANY, _HEADS, "dino: vision_transformer.py; ibot: head.py"),
    Row(r"(MoCo_ViT\[\]|VisionTransformerMoCo\[\w+\])/Sequential\[(head|predictor)\]/BatchNorm1d\[\d\]", _ANY,
        "norm other logits", "moco/builder.py"),
    Row(r"(MoCo_ViT\[\]|VisionTransformerMoCo\[\w+\])/Sequential\[(head|predictor)\]" + _IN, _ANY, _HEADS,
        "moco/builder.py"),
    Row(r"Sequential\[\d\]/ResBlock\[0\](/\w+\[\w+\])?", r"(?!add=).*", _HEADS, "medusa_model_legacy.py"),
    Row(r"Sequential\[\d\]/ResBlock\[0\]", "add=", "residual logits other", "medusa_model_legacy.py"),
    Row(r"Sequential\[\d\]/Linear\[1\]", _ANY, "logits", "medusa_model_legacy.py"),
    Row(r"Linear\[(lm_head|generator_lm_head|embed_out)\]|LanguageModel\[\w+\]/Linear\[head\]"
        r"|VisionLanguageModel\[\]/Linear\[head\]", _ANY, "logits", "transformers; nanoVLM"),
    Row(r"Linear\[(head|head_dist|classifier|score|predictor_proj|project_hid|project_q|vocab_\w+"
        r"|text_projection)\]", _PRODUCT, "logits other", "their names"),
    Row(r"Linear\[score\]", _ANY, "logits other", "transformers"),
    Row(r"DistilBertForMaskedLM\[\w+\]/GELUActivation\[activation\]", _ANY, "logits other",
        "modeling_distilbert.py"),
    Row(r"ModulesToSaveWrapper\[classifier\]" + _IN, _ANY, "logits other", "peft"),
    Row(r"RobertaLMHead\[lm_head\]" + _IN, r"(?!layer_norm).*", "logits other", "modeling_roberta.py"),
    Row(r"MLPLayer\[mlp\]" + _IN, _ANY, _HEADS, "simcse/models.py"),
    Row(r"SpladePooling\[\d\]", _ANY, "logits other loss", "SpladePooling.py: of the logits of MLM"),
    Row(r"(Pooling\[\d\]|Pooler\[pooler\])", _ANY, "other logits embedding loss", "of tokens to a sentence"),
    Row(r"HFBertEncoder\[\w+\]", "__getitem__", "other logits embedding loss", "hf_models.py: the first"),
    Row(r"AttentionPoolLatent\[attn_pool\]/Linear\[(q|kv)\]", _PRODUCT, "attention.qkv other logits", "timm"),
    Row(r"AttentionPoolLatent\[attn_pool\]/Linear\[proj\]", _PRODUCT, "attention.output other logits",
        "timm"),
    Row(r"AttentionPoolLatent\[attn_pool\]/Mlp\[mlp\]/Linear\[fc1\]", _PRODUCT, "mlp.up other logits",
        "timm"),
    Row(r"AttentionPoolLatent\[attn_pool\]/Mlp\[mlp\]/Linear\[fc2\]", _PRODUCT, "mlp.down other logits",
        "timm"),
    Row(r"AttentionPoolLatent\[attn_pool\]/Mlp\[mlp\]" + _IN, _ANY, f"{_ACT} other logits", "timm"),
    Row(r"AttentionPoolLatent\[attn_pool\]", "add=", "residual other logits attention.other", "timm"),
    Row(r"AttentionPoolLatent\[attn_pool\]", _ANY, "attention.* other logits embedding", "timm"),
    # a teacher of convolutions
    Row(r"RegNet\[\w+\]/ClassifierHead\[\w+\]" + _IN, _ANY, "logits other", "timm: regnet.py"),
    Row(r"RegNet\[\w+\]" + _IN, "add_?=", "other residual", "timm: regnet.py"),
    Row(r"RegNet\[\w+\]" + _IN, "batch_norm", "norm other", "timm: regnet.py"),
    Row(r"RegNet\[\w+\]" + _IN, _ANY, "other embedding", "timm: regnet.py"),
    # what is in front of layers
    Row(r"(Embedding|BartScaledWordEmbedding)\[(word_embeddings|embed_tokens|position_embeddings|embed_in"
        r"|token_type_embeddings|token_embedding)\]", "embedding|mul", "embedding", "of words and places"),
    Row(r"PatchEmbed\[\w+\]" + _IN, _ANY, "embedding other", "of patches"),
    Row(r"DropPath\[\w+\]", _ANY, _STOCHASTIC, "stochastic depth"),
    Row(_SEES, r"add_?=?", "embedding other", "places"),
    Row(_SEES, r"__getitem__|mean", "other logits embedding", "the result; dino: parts of places"),
    Row(_SEES, r"(?!softmax|matmul).*", "embedding other", "tokens, places, masks, what is chosen"),
    Row(r"MultiCropWrapper\[\w+\]", _ANY, "embedding other logits", "utils.py: crops of one size"),
    Row(r"Linear\[(predictor_embed|embeddings_project)\]|Model\[draft\]/Linear\[fc\]", _ANY,
        "embedding other", "ijepa; modeling_electra.py; cnets1.py"),
    Row(r"Model\[draft\]", "cat|to", "embedding other", "cnets1.py: features beside embeddings"),
    Row(r"Model\[draft\]", _ANY, f"{_MASK} embedding", "cnets1.py: masks, places"),
    Row(r"VisionLanguageModel\[\]", "reshape|view|float", "embedding loss logits other", "nanoVLM"),
    Row(r"VisionLanguageModel\[\]", _ANY, "embedding other", "nanoVLM: pictures among words"),
    Row(r"ModalityProjector\[MP\]" + _IN, _ANY, "embedding other mlp.*", "nanoVLM: modality_projector.py"),
    Row(r"LanguageModel\[\w+\]", _ANY, f"embedding {_MASK}", "nanoVLM: language_model.py, places"),
    Row(r"PrefixEncoder\[\w+\]" + _IN, _ANY, "embedding other attention.other mlp.*", "peft: an MLP"),
    Row(r"Wav2Vec2GumbelVectorQuantizer\[\w+\]" + _IN, _ANY, "other loss embedding logits",
        "modeling_wav2vec2.py: codes"),
    Row(r"Wav2Vec2ForPreTraining\[\]", _OF_LOGITS, "loss logits", "modeling_wav2vec2.py"),
    Row(r"Wav2Vec2ForPreTraining\[\]", _ANY, "loss logits other", "modeling_wav2vec2.py"),
    Row(r"Wav2Vec2Model\[\w+\]", _ANY, f"embedding {_MASK}", "modeling_wav2vec2.py: masks"),
    Row(r"MPNetEncoder\[\w+\]", r"(?!add=).*", "attention.other embedding other attention.softmax",
        "modeling_mpnet.py: a bias of distances"),
    Row(r"BartForConditionalGeneration\[\]", "add=?", "logits loss", "modeling_bart.py: a bias"),
    Row(r"Bart(En|De)coder\[\w+\]", "add=?|mul", f"embedding {_MASK}", "modeling_bart.py: places"),
    # whole models of transformers and peft
    Row(r"\w+For(CausalLM|SequenceClassification|ConditionalGeneration|MaskedLM|PreTraining)\[\w*\]",
        r"float|to|contiguous|view|reshape|pad|__getitem__", "loss logits other", "what the loss is given"),
    Row(r"PeftModel\w*\[\w*\]", _ANY, "embedding other attention.other loss", "peft: prefixes"),
    Row(r"\w+For(CausalLM|SequenceClassification|ConditionalGeneration|MaskedLM|PreTraining)\[\w*\]", _ANY,
        "loss logits embedding other", "what the loss is given"),
    Row(r"(Llama|Qwen[23]|GPTNeoX|Mistral|MPNet|DistilBert|Bert|Roberta|Electra|Bart|CLIPText|Llava|CLIPVision"
        r")(Model|Encoder|Decoder|Transformer|Embeddings)\[\w*\]|HFBertEncoder\[\w+\]|CLIPVisionTransformer"
        r"\[\w+\]", r"(?!add=).*", f"{_MASK} embedding", "transformers: masks, places, pictures"),
    # diffusers
    Row(r"Encoder\[encoder\]/(DownEncoder|UNetMid)Block2D\[\w+\]/ResnetBlock2D\[\d\]|ResnetBlock2D\[\d\]",
        r"(?!add=|group_norm).*", "other residual", "resnet.py"),
    Row(r"ResnetBlock2D\[\d\]/Linear\[time_emb_proj\]", _ANY, "other embedding", "resnet.py"),
    Row(r"ControlNetModel\[\w+\]", "mul", "other residual", "controlnet.py: conditioning_scale"),
    Row(r"ControlNetModel\[\w+\]", "add=", "embedding other residual", "controlnet.py: the condition"),
    Row(r"ControlNetConditioningEmbedding\[\w+\]" + _IN, _ANY, "embedding other", "controlnet.py"),
    Row(r"UNet2DConditionModel\[\w+\]", r"add_?=?", "residual other embedding", "what ControlNet gives"),
    Row(r"(UNet2DConditionModel|ControlNetModel|Encoder)\[\w+\]/SiLU\[conv_act\]", _ANY, "other logits",
        "diffusers"),
    Row(r"(UNet2DConditionModel|ControlNetModel|Encoder|Timesteps)\[\w+\]", _ANY, "embedding other",
        "diffusers: times"),
    Row(r"Transformer2DModel\[\d\]", "contiguous|reshape|permute", "other residual attention.other",
        "transformer_2d.py: maps from tokens"),
    Row(r"Wav2Vec2Encoder\[\w+\]", "add=", "embedding other residual", "modeling_wav2vec2.py: places"),
    Row(r"Up(Block|sample)2D\[\w+\]|CrossAttnUpBlock2D\[\d\]", r"(?!add=).*", "other residual",
        "diffusers: skips"),
)  # fmt: skip
_PLAIN = re.compile(r"\w*(Layer|RMS|Rms)Norm(Fp32)?")
_MAPS = re.compile(r"\w*(Group|Batch)Norm(\dd)?")
_ADAPTED = re.compile(r"^(SVD)?Linear$")
#: Of diffusers and of open_clip.
_OTHERS = re.compile(r"^(UNet2DConditionModel|ControlNetModel|Encoder|CustomTextCLIP)$")


def truth_of(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of a call, as ``benchmarks.libraries.truth.truth_of`` says it of the other lists."""
    if not place.classes:
        return _of_script(function)
    if found := settled(place, function, ("cross_entropy",)):
        return found
    own = place.classes[-1]
    at = next((i for i, kind in enumerate(place.classes[:-1]) if _ADAPTED.search(kind)), -1)
    if (
        at < 0
        and _ADAPTED.search(own)
        and "weight_norm" not in function
        and not (weighted and function == "linear")
    ):
        at = len(place.classes) - 1
    if at >= 0:
        return _adapted(Place(place.classes[: at + 1], place.names[: at + 1], place.seen), function)
    return _by_rows(place, function, weighted=weighted, equal=equal)


def _of_script(function: str) -> str:
    if _PARTS[-1] != _SCRIPT:
        return _PARTS[-1]
    if function == "layer_norm":
        return "loss norm"  # of the targets of I-JEPA
    if function == "cat":
        return "loss embedding other"
    return "loss logits" if re.fullmatch(_OF_LOGITS, function) else "loss"


def _adapted(place: Place, function: str) -> str:
    """What an adapter's layer is for, and what is added and rescaled around its products."""
    found = _by_rows(place, "linear", weighted=True, equal=False)
    if function == "linear" or "." not in found:
        return found
    block = found.partition(".")[0]
    return f"{found} {block}.other"


def _by_rows(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    if found := row_of(_ROWS, place, function, equal=equal):
        return found
    own = place.classes[-1]
    if _PLAIN.fullmatch(own):
        return "norm"
    if _MAPS.fullmatch(own):
        return "norm other"
    table = more_truth if _OTHERS.search(place.classes[0]) else hub
    return table.truth_of(place, function, weighted=weighted, equal=equal)
