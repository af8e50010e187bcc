"""The hyper-parameters that set a step's shapes, and what changing them does to one another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from tracelens.config import words
from tracelens.errors import UsageError
from tracelens.numbers import listed
from tracelens.results import ModelDims

#: Types of products that can be simulated. tf32: fp32 data on tensor cores.
DTYPES = ("bf16", "fp16", "fp32", "tf32", "fp8", "fp8-block", "nvfp4")
#: With another one, loads are others.
_SHARES_EXPERTS = frozenset({"experts", "top_k", "capacity", "expert_parallel"})
#: Fewer rows of an expert than this share of the present ones are a factor, meant as one.
_FACTOR_BELOW = 0.01
#: No parameter of a model is larger, and products of a few stay exact.
_LARGEST = 2**31


@dataclass(frozen=True, slots=True)
class Latent:
    """Latent attention (MLA, arXiv 2405.04434): queries, keys and values are made from short vectors.

    A head's query and key are ``plain`` elements and ``turned`` ones with rotary positions, its value
    ``value``; all heads share one turned part of the key.
    """

    keys: int  # width of the vector that keys and values are made from
    queries: int | None  # the same of queries; None where they are made from the hidden state
    plain: int
    turned: int
    value: int

    def weights(self, hidden: int, heads: int) -> int:
        """Of the attention of one layer."""
        head = self.plain + self.turned
        query = self.queries * (hidden + heads * head) if self.queries else hidden * heads * head
        made = hidden * (self.keys + self.turned) + self.keys * heads * (self.plain + self.value)
        return query + made + heads * self.value * hidden


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyper-parameters of the whole model (not of one rank's slice). None = not known."""

    hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    ffn: int | None = None
    vocab: int | None = None  # 0: images have none
    layers: int | None = None
    sequence: int | None = None
    micro_batch: int | None = None
    tensor_parallel: int | None = None
    experts: int | None = None
    tokens: int | None = None  # of one micro-batch, where sequence or micro-batch are not known
    gated: bool | None = None  # the MLP has a gate (SwiGLU): three matrices and not two
    tied: bool | None = None  # logits share the embedding's weight
    pipeline_parallel: int | None = None  # stages, each with layers / stages layers
    virtual_stages: int | None = None  # parts of its layers that a stage takes turns with (interleaved 1F1B)
    expert_parallel: int | None = None  # ranks that share the experts, each with experts / ranks of them
    top_k: int | None = None  # experts that each token goes to
    capacity: int | None = None  # rows of one expert's product: the mean where loads differ
    row_multiple: int | None = None  # rows of each expert are padded to a multiple of it
    imbalance: int | None = None  # percent of rows that the fullest expert-parallel rank has above the mean
    dtype: str | None = None  # of the products that take most of the time; one of DTYPES
    micro_batches: int | None = None  # of one step on this rank
    #: each tensor-parallel rank holds a part of the vocabulary: ``vocab`` is it
    vocab_split: bool | None = None
    kv_repeated: bool | None = None  # each key/value head is copied for its heads before attention
    shared_ffn: int | None = None  # beside the experts: width of the MLP that every token goes through
    dense_layers: int | None = None  # layers whose MLP has no experts, and its width
    dense_ffn: int | None = None
    latent: Latent | None = None  # attention of this kind: ``head_dim`` is that of queries and keys
    context_parallel: int | None = None  # ranks that share each sequence, and all weights
    expert_tensor: int | None = None  # ranks that share each expert; None: those of a layer, unless ``ep`` do
    decoder_layers: int | None = None  # of a decoder whose cross-attention reads what ``layers`` give out
    decoder_sequence: int | None = None  # its own length; ``sequence`` is that of the encoder
    beside: int | None = None  # weights of no GEMM that is counted: learned positions, convolutions

    def get(self, name: str) -> int | None:
        """The value of the integer parameter ``name``."""
        value: int | None = getattr(self, name)
        return value

    def value(self, name: str) -> int | str | None:
        """The value of any parameter."""
        return self.dtype if name == "dtype" else self.get(name)

    @property
    def tp(self) -> int:
        """Tensor-parallel ranks: one where no split of a layer is known."""
        return self.tensor_parallel or 1

    @property
    def pp(self) -> int:
        """Pipeline stages: one where none are known."""
        return self.pipeline_parallel or 1

    @property
    def vocab_parts(self) -> int:
        """Ranks that each hold a part of the vocabulary: ``vocab`` times so many is the whole."""
        return self.tp if self.vocab_split else 1

    @property
    def ep(self) -> int:
        """Expert-parallel ranks: one where none are known."""
        return self.expert_parallel or 1

    @property
    def cp(self) -> int:
        """Context-parallel ranks: one where none are known."""
        return self.context_parallel or 1

    @property
    def etp(self) -> int:
        """Ranks that share each expert: tensor-parallel ones, or one where experts are dealt out whole."""
        return self.expert_tensor or (self.tp if self.ep == 1 else 1)

    @property
    def stage_layers(self) -> int | None:
        """Layers of the longest pipeline stage, which sets the pace."""
        return math.ceil(self.layers / self.pp) if self.layers else None

    @property
    def all_layers(self) -> int:
        """Layers of all stacks; one where none are known."""
        return (self.layers or 1) + (self.decoder_layers or 0)

    @property
    def local_experts(self) -> int | None:
        """Experts on one rank; None where they are not known or the ranks do not divide them."""
        ranks = self.ep
        return self.experts // ranks if self.experts and self.experts % ranks == 0 else None

    @property
    def model_ranks(self) -> int:
        """GPUs that share one copy of the layers. Expert-parallel ranks are data-parallel ones as well."""
        return self.tp * self.pp

    @property
    def batch_ranks(self) -> int:
        """GPUs that compute one micro-batch."""
        return self.model_ranks * self.cp

    @property
    def token_count(self) -> int | None:
        """Tokens of a micro-batch: micro_batch * sequence, or ``tokens`` where those are not known."""
        if self.micro_batch and self.sequence:
            return self.micro_batch * self.sequence
        return self.tokens

    @property
    def parameters(self) -> int | None:
        """Weights in the matrices of the model, without biases and norms; None where a size is not known.

        Per layer h*(a + 2*kv)*d + a*d*h for attention (or ``Latent.weights``) and h*f times two (three with a
        gate) times the experts for the MLP, with a router and what every token goes through beside them;
        v*h for the embedding, twice unless tied. An unknown ``tied`` counts once. A decoder's layer has its
        attention twice.
        """
        h, a, d, f, v, count = self.hidden, self.heads, self.head_dim, self.ffn, self.vocab, self.layers
        if not (h and a and d and f and count):
            return None
        kv = self.kv_heads or a
        experts, matrices, dense = self.experts or 1, 3 if self.gated else 2, self.dense_layers or 0
        mlp = h * matrices * (f * experts + (self.shared_ffn or 0)) + (h * experts if experts > 1 else 0)
        attention = self.latent.weights(h, a) if self.latent else h * (a + 2 * kv) * d + a * d * h
        layers = count * attention + (self.decoder_layers or 0) * (2 * attention + mlp)
        layers += (count - dense) * mlp + dense * h * matrices * (self.dense_ffn or 0)
        outside = (v or 0) * self.vocab_parts * h * (2 if self.tied is False else 1)
        return layers + outside + (self.beside or 0)

    @property
    def expert_parameters(self) -> int:
        """Of ``parameters`` those of experts; 0 in a dense model."""
        layers = (self.layers or 0) - (self.dense_layers or 0)
        experts = self.experts if (self.experts or 1) > 1 else 0
        return layers * (self.hidden or 0) * (3 if self.gated else 2) * (self.ffn or 0) * (experts or 0)

    @property
    def held_parameters(self) -> float:
        """Of ``parameters`` those that a rank computes with: its slice of the layers, and its experts."""
        whole, experts = self.parameters or 0, self.expert_parameters
        return (whole - experts) / self.tp + experts / self.ep / self.etp

    @property
    def rank_parameters(self) -> float | None:
        """Of ``parameters`` those of one rank: its part of its stage's layers and of its experts."""
        whole, h, f, stage, layers = self.parameters, self.hidden, self.ffn, self.stage_layers, self.layers
        if whole is None or not (h and f and stage and layers):
            return None
        t = self.tp
        outside = (self.vocab or 0) * h * (2 if self.tied is False else 1)  # of this rank
        experts = h * f * (3 if self.gated else 2) * (self.experts or 1) if (self.experts or 1) > 1 else 0
        rest = (whole - outside * (t if self.vocab_split else 1)) / layers - experts
        return stage * (rest / t + experts / self.ep / self.etp) + outside


#: The parameters that can be changed and are whole numbers; ``dtype`` is the one that is not.
NAMES = tuple(
    one.name
    for one in fields(ModelConfig)
    if one.name not in ("gated", "tied", "dtype", "micro_batches", "vocab_split", "kv_repeated",
                        "shared_ffn", "dense_layers", "dense_ffn", "latent", "virtual_stages",
                        "context_parallel", "expert_tensor", "decoder_layers", "decoder_sequence", "beside")
)  # fmt: skip


def model_config_of(
    dims: ModelDims,
    *,
    gated: bool | None = None,
    tokens: int | None = None,
    vocab: int | None = None,
    **more: int | str | bool | None,
) -> ModelConfig:
    """What the trace shows, scaled from this rank's slice to the whole model where ranks share it.

    ``vocab`` overrides the size of the logits product, for one that a library padded; ``more`` are fields
    of ``ModelConfig`` that the dimensions do not hold. Layers are this rank's times the pipeline's stages.
    """
    ranks, stages = dims.tensor_parallel.value, dims.pipeline_parallel.value
    t = ranks or 1

    def whole(value: int | None) -> int | None:
        return value * t if value is not None else None

    found = ModelConfig(
        hidden=dims.hidden.value,
        heads=whole(dims.heads.value),
        kv_heads=whole(dims.kv_heads.value),
        head_dim=dims.head_dim.value,
        ffn=whole(dims.ffn.value),
        vocab=vocab or dims.vocab.value,
        layers=dims.layers.value * (stages or 1) if dims.layers.value is not None else None,
        sequence=dims.sequence.value,
        micro_batch=dims.micro_batch.value,
        tensor_parallel=ranks,
        experts=dims.experts.value,
        tokens=tokens,
        gated=gated,
        pipeline_parallel=stages,
        expert_parallel=dims.expert_parallel.value,
    )
    return replace(found, **{name: value for name, value in more.items() if value is not None})  # type: ignore[arg-type]


def known_values(now: ModelConfig | None) -> str:
    """The parameters there are, with their present values where a step is known."""
    if now is None:
        return f"known: {', '.join((*NAMES, 'dtype'))}"
    product = now.micro_batch and now.sequence  # the tokens are that of the two
    names = [name for name in (*NAMES, "dtype") if not (product and name == "tokens")]
    whole = replace(now, vocab=now.vocab * now.vocab_parts) if now.vocab else now
    values = [f"{name}={whole.value(name)}" for name in names if whole.value(name) is not None]
    return f"now {', '.join(values)}" if values else words.NO_PARAMETER


def changed(now: ModelConfig, changes: Mapping[str, int | str]) -> ModelConfig:
    """``now`` with ``changes``, and what follows from them.

    Where heads * head_dim = hidden now, it stays so: more heads at one hidden size are smaller heads.
    kv_heads stay equal to heads where they are, else they stay as they are. ffn, vocab and layers stay.
    Where ranks split the layers, heads, kv_heads and ffn have to divide among them; each rank holds a
    copy of a key/value head where there are fewer heads than ranks. Rows of an expert follow from the tokens,
    the experts, how many of them a token goes to, and the ranks that share them. A split vocabulary is
    given as a rank's part with the present ranks, and dealt out anew among others.
    Raises UsageError where a size does not come out whole or a parameter to change is not known now.
    """
    for name, value in changes.items():
        _check(name, value, now)
    if "tokens" in changes and now.micro_batch and now.sequence:
        raise UsageError("change micro_batch or sequence: tokens are their product")
    if "imbalance" in changes and (moved := _SHARES_EXPERTS & changes.keys()):
        raise UsageError(f"imbalance is that of the present experts and ranks: not with {min(moved)}")
    then = replace(now, **changes)  # type: ignore[arg-type]
    if {"heads", "head_dim", "hidden"} & changes.keys():
        then = replace(then, **_heads(now, then, changes))  # type: ignore[arg-type]
    if "kv_heads" not in changes and now.kv_heads is not None and now.kv_heads == now.heads:
        then = replace(then, kv_heads=then.heads)
    if now.vocab_split and then.vocab:  # what a rank has as the vocabulary is split now
        whole = then.vocab * now.tp
        then = replace(then, vocab=math.ceil(whole / then.tp))
    if "capacity" not in changes:
        then = replace(then, capacity=_capacity(now, then))
    if then.heads and then.kv_heads and then.heads % then.kv_heads:
        given = "kv_heads" in changes
        fits = [n for n in range(1, then.heads + 1) if then.heads % n == 0] if given else []
        near = sorted(sorted(fits, key=lambda n: abs(n - (then.kv_heads or n)))[:2])
        remedy = f"{listed(list(map(str, near)))} do" if given else "give kv_heads as well"
        raise UsageError(f"{then.kv_heads} key/value heads do not divide {then.heads} heads: {remedy}")
    _check_ranks(then, changes)
    return then


def _check(name: str, value: int | str, now: ModelConfig) -> None:
    """UsageError where the parameter cannot have the value, or has none now."""
    if name == "dtype":
        if value not in DTYPES:
            raise UsageError(f"dtype = {value} cannot be simulated: {', '.join(DTYPES)} can")
    elif not isinstance(value, int) or not (0 if name == "imbalance" else 1) <= value < _LARGEST:
        raise UsageError(f"{name} = {value} is not a size a model can have")
    if now.value(name) is None:
        shown = f"; it is shown by {words.SHOWN_BY[name]}" if name in words.SHOWN_BY else ""
        why = f"{name} cannot be changed: its present value is not known"
        raise UsageError(why, f"{known_values(now)}{shown}")
    if name == "capacity" and int(value) < _FACTOR_BELOW * (now.capacity or 0):
        raise UsageError(
            f"capacity is rows of an expert, now {now.capacity}: capacity_factor={value} is a factor of them"
        )


def _check_ranks(then: ModelConfig, changes: Mapping[str, int | str]) -> None:
    """UsageError where ranks do not divide what they share."""
    t = then.tp
    for name in ("heads", "kv_heads", "ffn"):
        size = then.get(name) or t
        if size % t and not (name == "kv_heads" and t % size == 0):
            raise UsageError(f"{name} = {size} does not divide over {t} tensor-parallel ranks")
    if {"experts", "expert_parallel"} & changes.keys() and then.experts and then.local_experts is None:
        raise UsageError(
            f"experts = {then.experts} does not divide over {then.expert_parallel} expert-parallel ranks"
        )
    if {"experts", "top_k"} & changes.keys() and then.experts and (then.top_k or 0) > then.experts:
        raise UsageError(f"top_k = {then.top_k} is more than the {then.experts} experts there are")
    if {"layers", "pipeline_parallel"} & changes.keys() and then.layers:
        stages = then.pp
        if stages > then.layers:
            raise UsageError(f"{then.layers} layers cannot fill {stages} pipeline stages")


def _capacity(now: ModelConfig, then: ModelConfig) -> int | None:
    """Rows of one expert: tokens * top_k / experts of a rank, times the ranks that send to it."""
    if now.capacity is None:
        return None
    rows = float(now.capacity)
    for name, power in (("token_count", 1), ("top_k", 1), ("experts", -1), ("expert_parallel", 1)):
        before, after = now.get(name), then.get(name)
        if before and after and before != after:
            rows *= (after / before) ** power
    return max(1, math.ceil(rows - 1e-9))


def _heads(now: ModelConfig, then: ModelConfig, changes: Mapping[str, int | str]) -> dict[str, int]:
    """heads and head_dim after a change of them or of hidden."""
    if now.heads is None or now.head_dim is None or now.latent or now.heads * now.head_dim != now.hidden:
        return {}  # heads of their own size: nothing ties the three together
    hidden = then.hidden or 0
    if "heads" in changes and "head_dim" in changes:
        return {}
    by = "head_dim" if "head_dim" in changes else "heads"
    size = then.get(by) or 1
    if hidden % size:
        other = "head_dim" if by == "heads" else "heads"
        raise UsageError(
            f"{by} = {size} does not divide hidden = {hidden}: {_near(hidden, size, by)}, or give {other} too"
        )
    return {"heads" if by == "head_dim" else "head_dim": hidden // size}


def _near(hidden: int, size: int, name: str) -> str:
    """The divisors of ``hidden`` on both sides of ``size``, as a hint."""
    below = next((n for n in range(min(size, hidden), 0, -1) if hidden % n == 0), 1)
    above = next((n for n in range(size, min(hidden, 8 * size) + 1) if hidden % n == 0), None)
    return words.divides(name, below, above)
