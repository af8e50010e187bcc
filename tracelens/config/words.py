"""What is said of a configuration: where a size comes from, what was assumed, and what is not modelled."""

from __future__ import annotations

from collections.abc import Sequence

COMMAND_LINE = "given on the command line"
#: What a configuration has to say, and what flags have to.
NEEDED = {
    "hidden": "the hidden size",
    "heads": "how many attention heads there are",
    "layers": "how many layers there are",
    "ffn": "the width of the MLP",
    "vocab": "the vocabulary size",
}
NEEDED_FLAGS = {"hidden": "the hidden size", "heads": "how many heads", "layers": "how many layers"}
ONE_RANK = "1 unless given: --tensor-parallel N"
LATENT_FOLLOWS = "heads of latent attention are not searched"
TWO_THIRDS = "two thirds of mlp_ratio * hidden, on the next multiple of 8"
HEAD_DIM_FOLLOWS = "hidden / heads"
KV_HEADS_FOLLOW = "as many as heads"
SEQUENCE_ASSUMED = "assumed: give --sequence N"
NOT_YET = "not modelled yet"
NO_TIME_OF_THE_CORE = "whose time is not predicted, so a step's is not either"
CAPTURE_IT = "tracelens capture -- train.py, then tracelens analyze"
A_TRACE_TELLS = f"record a step instead: {CAPTURE_IT}"
OTHER_EXPERTS = (
    "write the sizes as Megatron-LM arguments (--num-experts, --moe-router-topk, --moe-ffn-hidden-size) and"
    " give that file; one layer alone: tracelens gemm TOKENSxHIDDENxINTER --experts E --top-k K"
)
AS_ENCODER = "as many as the encoder has"
TWO_STACKS = "encoder and decoder are not searched one without the other"
DECODER_AS_LONG = "assumed, as long as the encoder's: give --decoder-sequence N"
BIASED = (
    "relative positions are a bias for every score, which no flash kernel takes: attention is guessed, from"
    " FlexAttention to scores in memory"
)
NO_PATCHES_COUNTED = "the patches' embedding and the head are not counted: 2 % of the GEMMs or less"
TAKEN_FOR_GPT = "taken for a GPT: a causal mask, an MLP without a gate; say --gated for SwiGLU"
TAKEN_FOR_LLAMA = "taken for a Llama: a causal mask and rotary embeddings"
KNOWN_FILES = (
    "a Hugging Face config.json, Megatron-LM arguments (script, YAML, JSON) or a nanoGPT config (.py)"
)
TRACE_INSTEAD = "tracelens analyze TRACE --what-if heads=20 predicts what a change of it saves"

#: By a key of theirs.
OTHER_LIBRARIES = {
    "_diffusers_version": f"is of diffusers, whose models are no stack of layers; {A_TRACE_TELLS}",
    "peft_type": "is of an adapter: give the config.json of the model that it is for",
}

#: Layers that are not modelled.
ENCODER_DECODER = "an encoder and a decoder of a kind of their own"
STATE_SPACE = "state-space layers"
INDEXED = "attention to the keys that an indexer picks (index_topk)"
SHORTCUTS = "experts beside two attentions"
LATENT_BY_KEY = "latent attention (kv_lora_rank)"
DELTA = "gated delta networks"
RECURRENT = "recurrent layers"
CONVOLUTIONS = "layers of short convolutions"
LINEAR_ATTENTION = "linear attention"
SIZES_BY_LAYER = "embeddings and sizes of each layer by itself"
RELATIVE_POSITIONS = "attention with GEMMs for relative positions"
BLOCKS = "attention in blocks of its own kind"
STAGES = "stages of changing width"
TOWERS = "a tower of text beside one of images or sound, and none that writes"
OBJECTS = "an encoder of images, and a decoder of what is in them"
LATENT_VECTORS = "latent vectors that read the input by cross-attention"
SERIES = "numbers of a time series in place of a vocabulary"
CODEBOOKS = "codes of sound or images, several for each step"
POOLED = "a sequence that grows shorter from layer to layer"
APPROXIMATED = "attention that is approximated"
NARROW = "layers with projections around a narrow body"
TWO_STREAMS = "two streams of layers side by side"
EXPERTS_BY_OTHER_KEYS = "experts under keys of its own"
DIFFERENCES = "pairs of attentions, one taken from the other"
NO_VOCABULARY = "no vocab_size where a language model has it"
IMAGES = "images in place of a vocabulary"
SOUND = "frames of sound in place of tokens"
ONLY_CONVOLUTIONS = "convolutions in place of attention"
FOURIER = "Fourier transforms in place of attention"
FACTORED = "a factored embedding"
CROSS_ATTENTION = "cross-attention layers"
SHARED_WEIGHTS = "layers that share weights and a factored embedding"
ATTENTION_GATE = "a gate on what attention gives"
LAYERS_DIFFER = "layers that differ from one another"

MLP_OF_NANOGPT = "nanoGPT's model.py fixes the MLP at 4 * n_embd"
GATED_BY_MEGATRON = "Megatron's default: int(8h/3 / 64) * 64"
EXPERTS_BY_MEGATRON = "Megatron's default: as wide as the MLP of layers without experts"
EXPERTS_CUT_BY_MEGATRON = "Megatron's default: as many as tensor-parallel ranks"
UNGATED_BY_MEGATRON = "Megatron's default: 4 * hidden"
GROUPS_BY_MEGATRON = "Megatron's default of --num-query-groups"
GROUPS_WITHOUT_EFFECT = "--num-query-groups without --group-query-attention has no effect in Megatron"

NO_PARAMETER = "no parameter of this step is known"
#: What shows the present value of a parameter that many traces do not show.
SHOWN_BY = {
    "tensor_parallel": "exchanged activations, or a process group named after it",
    "pipeline_parallel": "a process group named after it (pp, pipeline), or a trace without sends",
    "expert_parallel": "a process group named after it (ep, expert), or a batched GEMM of all experts",
    "experts": "the GEMM of a router with record_shapes=True",
    "top_k": "GEMMs of experts whose rows are a whole multiple of the tokens, or `tracelens capture`",
    "capacity": "GEMMs of experts with record_shapes=True",
    "row_multiple": "GEMMs of single experts, or of a batch of equal parts, with record_shapes=True",
    "imbalance": "split sizes of the experts' all-to-alls (all_to_all_single with record_shapes=True)",
    "dtype": "GEMMs with a known type",
}
batch_assumed = "assumed, about {} tokens: give --micro-batch N".format
sequence_assumed = "assumed, {} allows {}: give --sequence N".format
decoder_assumed = "assumed, the most that {} allows ({}): give --decoder-sequence N".format
beyond_positions = "a sequence of {} needs more learned positions: {} allows {} tokens".format
other_parts = "{} has other parts beside its language model: they are not counted".format
stem_not_counted = "the convolutions in front of the encoder are not counted: {:.1%} of its GEMMs".format
part_alone = "its {} alone, as a file of its own, is read".format
layers_of_kind = "layers of kind {}".format
mask_assumed = "a causal mask is assumed: {} does not say whether {!r} sees what follows a token".format
no_width_key = "{} has no key for the MLP's width".format
shared_experts = "{} experts of {} as one".format
dense_layers = "{}: layers without experts".format
window_untold = (
    "which layers have its sliding window of {} is not in the file (layer_types): attention is counted "
    "in full"
).format
of_checkpoint = "the checkpoint {} has it".format
family_default = "{}'s default".format
not_counted = "{} = {} is not taken into account".format


def divides(name: str, below: int, above: int | None) -> str:
    """The sizes near one that does not divide."""
    return f"{name} = {below} does" + (f", so does {above}" if above is not None else "")


def one_by_one(gemms: Sequence[str]) -> str:
    """The remedy where GEMMs can be judged, and no step can."""
    return f"GEMMs around it one by one: tracelens gemm {' and '.join(gemms)}; all of a step: {CAPTURE_IT}"


def under_no_key(sizes: Sequence[str]) -> str:
    """Sizes that a file does not say where any known family has them."""
    return f"no key for {', '.join(sizes)} that is known here"


def untold(sizes: Sequence[str]) -> str:
    """What a file of an unknown family leaves open."""
    return (
        f"{' and '.join([*sizes, 'whether its MLP has a gate'])} {'are' if sizes else 'is'} not in the file"
    )


def as_plain(sizes: Sequence[str]) -> str:
    """The flags that say it."""
    flags = [f"--{size} N" for size in sizes] + ["--gated or --no-gated"]
    return f"add {' and '.join(flags)} to read it as a plain transformer"


def plain(kind: str, *, causal: bool, rope: bool) -> str:
    """A family that is not known, as it is read."""
    mask = "" if causal else " without a mask"
    return f"{kind} read as a plain transformer{mask}, {'with' if rope else 'without'} rotary embeddings"


def quantized(how: Sequence[str]) -> str:
    """Weights that are stored in few bits: a step trains others."""
    return (
        f"quantization_config: the weights are stored quantized ({', '.join(how)}); the step is that of the"
        " model in 16 bits: training or serving quantized weights is not predicted"
    )


#: By key. FlashAttention has a soft cap since 2.6, FlexAttention by its score_mod.
SOFT_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping is not counted: FlashAttention 2.6 or FlexAttention "
    "is assumed, which apply it inside; scaled_dot_product_attention cannot",
    "final_logit_softcapping": "final_logit_softcapping is not counted: three more passes over the logits",
}


def nanogpt_default(key: str = "") -> str:
    """A size that a config of nanoGPT leaves out."""
    return "default of nanoGPT's train.py" + (f" ({key})" if key else "")


def padded(asked: int, by: int, ranks: int) -> str:
    """A vocabulary as Megatron pads it."""
    return f"{asked} padded to a multiple of {by}" + (f" * {ranks} ranks" if ranks > 1 else "")
