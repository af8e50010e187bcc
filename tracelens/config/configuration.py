"""What a configuration says of a model: sizes, how its layers are built, and where each value stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from tracelens.config import words
from tracelens.config.model_config import Latent, ModelConfig
from tracelens.errors import InputError, UsageError
from tracelens.numbers import round_up
from tracelens.results.suggestions import Checkpoint, Stack, Strategy

#: Beyond any model: a search around such sizes would not end. Numbers above LARGEST are none at all.
LARGEST = 2**31
_MOST = {
    "hidden": 2**20, "heads": 2**14, "kv_heads": 2**14, "head_dim": 2**14, "ffn": 2**23, "vocab": 2**25,
    "layers": 2**14, "experts": 2**14, "sequence": 2**24, "micro_batch": 2**16, "tensor_parallel": 2**12,
    "expert_parallel": 2**12, "pipeline_parallel": 2**12, "virtual_stages": 2**12, "context_parallel": 2**12,
    "expert_tensor": 2**12,
    "shared_ffn": 2**23, "dense_layers": 2**14, "dense_ffn": 2**23,
    "decoder_layers": 2**14, "decoder_sequence": 2**24,
}  # fmt: skip
#: Tokens of a micro-batch where no configuration says how many: enough rows to fill a GPU.
USUAL_TOKENS = 8192
#: Positions a model can address are not the length it trains with; this is taken where they are more.
USUAL_SEQUENCE = 4096


#: Megatron-LM's --make-vocab-size-divisible-by, times the ranks that share the vocabulary.
PADDED_TO = 128

#: Where a size comes from: the input or the user says it, it follows from others, or nothing says it.
Origin = Literal["written", "follows", "assumed"]
#: What a configuration was written for.
ConfigFormat = Literal["huggingface", "megatron", "megatron-yaml", "megatron-json", "nanogpt", "flags"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the layers are built, as far as the step's kernels depend on it."""

    fused_qkv: bool = True  # one product for query, key and value
    fused_gate: bool = False  # gate and up in one product; only where the MLP is gated
    causal: bool = True
    rope: bool = False
    rms: bool = False  # RMSNorm without rotary embeddings, which come with it
    experts_per_token: int | None = None
    window: int | None = None  # sliding: earlier keys that a query sees, in this share of the layers
    windowed_frac: float = 0.0
    patches: bool = False  # tokens are patches of images: there is no vocabulary
    bias: bool = False  # a learned bias for every score (T5): no flash kernel takes one
    cross: int | None = None  # tokens of another stack that a second attention in each layer reads


@dataclass(frozen=True, slots=True)
class PaddedVocab:
    """A tokenizer's size, and of what the framework makes it a multiple, times the tensor-parallel ranks."""

    asked: int
    by: int


@dataclass(frozen=True, slots=True)
class Run:
    """How a step is run, where a configuration says it: Megatron's arguments do."""

    global_batch: int | None = None  # sequences of one optimizer step, on all GPUs
    checkpoint: Checkpoint = "none"
    strategy: Strategy | None = None
    sequence_parallel: bool | None = None
    stack: Stack | None = None
    overlap: bool | None = None  # of tensor-parallel exchanges with GEMMs, where the stack can


@dataclass(frozen=True, slots=True)
class Configuration:
    """One configuration read. Sizes are of the whole model."""

    model: ModelConfig
    layout: Layout
    format: ConfigFormat
    family: str  # in words: "Llama (config.json)"
    sources: Mapping[str, str]  # our name of a size -> where it was read, or why it is what it is
    keys: Mapping[str, str] = field(default_factory=dict)  # our name -> the key that sets it in the input
    fixed: Mapping[str, str] = field(default_factory=dict)  # sizes that no key sets -> why
    notes: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()  # sizes that nothing in the input says
    written: frozenset[str] = frozenset()  # sizes that the input itself, or the user, sets
    padded: PaddedVocab | None = None  # where the framework pads the tokenizer's to model.vocab
    run: Run = Run()
    # of sizes that a decoder has a key for, too
    decoder_keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says beside a file, and what wins: sizes by our names, a gate, tied logits."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    gated: bool | None = None
    tied: bool | None = None


@dataclass(slots=True)
class Draft:
    """Values on their way to a ``Configuration``, each with the place it came from."""

    name: str  # of the file, or "flags"
    values: dict[str, int] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, str] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    latent: Latent | None = None
    decoder_keys: dict[str, str] = field(default_factory=dict)
    beside: int | None = None

    def put(
        self, name: str, value: int, source: str, *, key: str | None = None, origin: Origin = "follows"
    ) -> None:
        """Set one size; InputError where it cannot be one."""
        if not 0 < value <= _MOST.get(name, LARGEST):
            raise InputError(f"{self.name}: {key or name} = {value} is not a size a model can have")
        self.values[name] = value
        self.sources[name] = source
        self.origins[name] = origin
        if key is not None:
            self.keys[name] = key

    def take(self, name: str, table: Mapping[str, object], keys: tuple[str, ...]) -> bool:
        """Set ``name`` from the first of ``keys`` that ``table`` has; False where it has none of them."""
        for key in keys:
            value = table.get(key)
            if value is not None:
                self.put(name, whole(value, key, self.name), f"{self.name}: {key}", key=key, origin="written")
                return True
        return False

    def need(self, name: str, what: str) -> None:
        """InputError naming what is missing and the keys it was looked for under."""
        if name not in self.values:
            flag = "--" + name.replace("_", "-")
            raise InputError(f"{self.name} does not say {what}; give {flag} N")


def padded_vocab(vocab: int, ranks: int) -> int:
    """What Megatron-LM makes of a tokenizer's size, unless told otherwise."""
    return round_up(vocab, PADDED_TO * ranks)


def whole(value: object, key: str, name: str) -> int:
    """``value`` as a whole number, or that of every layer; InputError names the key otherwise."""
    if isinstance(value, list) and value and all(one == value[0] for one in value):
        value = value[0]
    if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST:
        value = int(value)
    if isinstance(value, str):
        text = value.strip().replace("_", "")
        if text.isascii() and text.isdigit() and len(text) < 12:
            value = int(text)
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(value) if isinstance(value, str) else str(value)
        shown = shown.lower() if isinstance(value, bool) else shown
        raise InputError(f"{name}: {key} = {shown[:40]} is not a whole number")
    return value


def finish(
    draft: Draft,
    given: Given,
    *,
    layout: Layout,
    gated: bool | None,
    tied: bool | None,
    format: ConfigFormat,
    family: str,
    padded: PaddedVocab | None = None,
) -> Configuration:
    """Check the sizes against one another, fill in what follows from others, and freeze the draft.

    ``gated`` and ``tied`` are what the file says of them; what the user gave wins.
    """
    overrides = given.sizes
    gated = gated if given.gated is None else given.gated
    tied = tied if given.tied is None else given.tied
    resized = "hidden" in overrides or "heads" in overrides
    if resized and "head_dim" not in draft.keys and "head_dim" not in overrides:
        draft.values.pop("head_dim", None)
    if "heads" in overrides and "kv_heads" not in overrides and "kv_heads" not in draft.keys:
        draft.values.pop("kv_heads", None)
    for name, value in overrides.items():
        draft.put(name, value, words.COMMAND_LINE, key=draft.keys.get(name), origin="written")
    for name, what in words.NEEDED.items():
        if name != "vocab" or not layout.patches:
            draft.need(name, what)
    values = draft.values
    _head_sizes(draft)
    if gated is None:
        raise InputError(
            f"{draft.name} does not say whether the MLP has a gate (SwiGLU, GeGLU): add --gated or --no-gated"
        )
    _tokens(draft)
    t = values.setdefault("tensor_parallel", 1)
    draft.sources.setdefault("tensor_parallel", words.ONE_RANK)
    for name in ("heads", "ffn", "shared_ffn", "dense_ffn"):
        if values.get(name, 0) % t:
            raise UsageError(f"{name} = {values[name]} does not divide over {t} tensor-parallel ranks")
    if values["kv_heads"] % t and t % values["kv_heads"]:
        raise UsageError(f"kv_heads = {values['kv_heads']} does not divide over {t} tensor-parallel ranks")
    if layout.patches:
        values["vocab"] = 0
    if values["vocab"] % t:
        raise UsageError(
            f"vocab = {values['vocab']} does not divide over {t} tensor-parallel ranks: --vocab"
            f" {padded_vocab(values['vocab'], t)} is padded as Megatron-LM does"
        )
    _experts_share(values)
    _stages_share(values)
    _sequence_shares(values)
    _decoder_shares(values)
    config = replace(ModelConfig(gated=gated, tied=tied, latent=draft.latent, beside=draft.beside), **values)  # type: ignore[arg-type]
    assumed, written = (
        frozenset(name for name, one in draft.origins.items() if one == origin)
        for origin in ("assumed", "written")
    )
    return Configuration(config, layout, format, family, draft.sources, draft.keys, draft.fixed,
                       tuple(draft.notes), assumed, written, padded,
                       decoder_keys=draft.decoder_keys)  # fmt: skip


def _experts_share(values: Mapping[str, int]) -> None:
    """UsageError where as many GPUs cannot share the experts."""
    ranks, experts = values.get("expert_parallel", 1), values.get("experts")
    t, cut = values["tensor_parallel"], values.get("expert_tensor", 1)
    if cut not in (1, t):
        why = f"experts split over {cut} ranks and layers over {t} are not predicted"
        raise UsageError(f"{why}: split experts over 1 or {t}")
    if ranks == 1:
        return
    if experts is None:
        raise UsageError(f"{ranks} expert-parallel ranks: this model has no experts to share")
    if experts % ranks:
        raise UsageError(f"experts = {experts} does not divide over {ranks} expert-parallel ranks")


def _sequence_shares(values: Mapping[str, int]) -> None:
    """UsageError where context-parallel ranks do not divide a sequence, an early and a late part each."""
    sequence, ranks = values["sequence"], values.get("context_parallel", 1)
    if ranks > 1 and sequence % (2 * ranks):
        why = f"sequence = {sequence} does not divide over {ranks} context-parallel ranks, two parts each"
        raise UsageError(why)


def _decoder_shares(values: Mapping[str, int]) -> None:
    """UsageError for a length of no decoder, and for GPUs that cannot share an encoder and a decoder."""
    if "decoder_layers" not in values:
        if "decoder_sequence" in values:
            raise UsageError("--decoder-sequence: this model has no decoder beside its layers: --sequence N")
        return
    for name in ("pipeline_parallel", "context_parallel"):
        if values.get(name, 1) > 1:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag}: an encoder and a decoder are predicted on GPUs that hold both whole,"
                             " or share each layer: --tensor-parallel N")  # fmt: skip


def _stages_share(values: Mapping[str, int]) -> None:
    """UsageError where there are not as many layers as stages and turns."""
    stages, turns = values.get("pipeline_parallel", 1), values.get("virtual_stages", 1)
    if stages == 1 and turns > 1:
        raise UsageError(f"{turns} virtual stages: there is one pipeline stage; add --pipeline-parallel N")
    if stages * turns > values["layers"]:
        each = f" with {turns} turns each" if turns > 1 else ""
        raise UsageError(f"{values['layers']} layers are too few for {stages} pipeline stages{each}")


def _head_sizes(draft: Draft) -> None:
    """head_dim and kv_heads where the input does not give them."""
    values = draft.values
    heads, hidden = values["heads"], values["hidden"]
    if "head_dim" not in values:
        if hidden % heads:
            raise InputError(
                f"{draft.name}: {heads} heads do not divide hidden = {hidden}, and no head_dim is given"
            )
        draft.put("head_dim", hidden // heads, words.HEAD_DIM_FOLLOWS)
    if "kv_heads" not in values:
        draft.put("kv_heads", heads, words.KV_HEADS_FOLLOW)
    if heads % values["kv_heads"]:
        raise InputError(f"{draft.name}: {values['kv_heads']} key/value heads do not divide {heads} heads")


def _tokens(draft: Draft) -> None:
    """Sequence and micro-batch; what the input does not say is assumed, and says so."""
    values = draft.values
    if "sequence" not in values:
        draft.put("sequence", 2048, words.SEQUENCE_ASSUMED, origin="assumed")
    if "micro_batch" not in values:
        batch = max(1, USUAL_TOKENS // values["sequence"])
        draft.put("micro_batch", batch, words.batch_assumed(USUAL_TOKENS), origin="assumed")
