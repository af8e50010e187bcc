"""The kernels of a step that a configuration asks for: products, attention, and what only moves bytes.

The memory model is plain: every kernel reads its inputs from memory once and writes its outputs once. How
many kernels there are between the products depends on the framework, so each count of tensors is a pair:
fused (torch.compile or hand-written kernels) and plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens.config.configuration import Layout
from tracelens.config.model_config import Latent, ModelConfig
from tracelens.errors import InputError
from tracelens.gemm.predict.attention_work import visible_pairs
from tracelens.words import DIRECTIONS, Direction

if TYPE_CHECKING:
    from tracelens.results.experts import ExpertLayer


@dataclass(frozen=True, slots=True)
class RankLinear:
    """One linear layer on one rank: ``rows`` inputs of width ``into`` to width ``out``, ``batch`` times."""

    component: str
    rows: int
    into: int
    out: int
    batch: int
    calls: int  # of its kind in a micro-batch

    def shape(self, role: str) -> tuple[int, int, int, str]:
        """M, N, K and cuBLAS's layout: y = x W^T, dx = dy W, dW = dy^T x."""
        if role == "forward":
            return self.rows, self.out, self.into, "TN"
        if role == "dgrad":
            return self.rows, self.into, self.out, "NN"
        return self.out, self.into, self.rows, "NT"


@dataclass(frozen=True, slots=True)
class RankAttention:
    """One fused attention call on one rank."""

    batch: int
    heads: int
    kv_heads: int
    sequence: int
    head_dim: int
    causal: bool
    calls: int
    window: int | None = None  # earlier keys that a query sees
    value_dim: int | None = None  # of values narrower than ``head_dim``
    keys: int | None = None  # that each query sees, where they are another number than the queries


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that kernels of one component move, fused and in plain PyTorch."""

    component: str
    phase: Direction
    scales_with: str
    fused_bytes: float
    plain_bytes: float


def _known(config: ModelConfig, name: str) -> int:
    value = config.get(name)
    if value is None:
        raise InputError(f"{name} is not known: a step cannot be made of this configuration")
    return value


@dataclass(frozen=True, slots=True)
class RankSizes:
    """Sizes on one rank."""

    tokens: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    layers: int

    @classmethod
    def of(cls, config: ModelConfig) -> RankSizes:
        """InputError where a size is not known."""
        t = config.tp
        heads = _known(config, "heads")
        tokens = config.token_count
        if tokens is None:
            raise InputError("the tokens of a micro-batch are not known: give --sequence and --micro-batch")
        return cls(
            tokens=tokens // config.cp,
            hidden=_known(config, "hidden"),
            heads=heads // t,
            kv_heads=max(1, (config.kv_heads or heads) // t),
            head_dim=_known(config, "head_dim"),
            ffn=_known(config, "ffn") // t,
            vocab=_known(config, "vocab") // t,
            layers=_known(config, "layers"),
        )


def attention_linears(config: ModelConfig, layout: Layout) -> tuple[RankLinear, ...]:
    """QKV (one product or three, as the family does) and the output projection."""
    s = RankSizes.of(config)
    if config.latent is not None:
        return tuple(_latent_linears(s, config.latent))
    query, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    output = RankLinear("attention.output", s.tokens, query, s.hidden, 1, s.layers)
    if layout.fused_qkv:
        return (RankLinear("attention.qkv", s.tokens, s.hidden, query + 2 * keys, 1, s.layers), output)
    return (
        RankLinear("attention.qkv", s.tokens, s.hidden, query, 1, s.layers),
        RankLinear("attention.qkv", s.tokens, s.hidden, keys, 1, 2 * s.layers),
        output,
    )


def _latent_linears(s: RankSizes, latent: Latent) -> Iterator[RankLinear]:
    """To the short vectors, which every rank makes whole, and from them to its heads."""
    if latent.queries:
        yield RankLinear("attention.qkv", s.tokens, s.hidden, latent.queries, 1, s.layers)
    yield RankLinear("attention.qkv", s.tokens, latent.queries or s.hidden, s.heads * s.head_dim, 1, s.layers)
    yield RankLinear("attention.qkv", s.tokens, s.hidden, latent.keys + latent.turned, 1, s.layers)
    made = s.heads * (latent.plain + latent.value)
    yield RankLinear("attention.qkv", s.tokens, latent.keys, made, 1, s.layers)
    yield RankLinear("attention.output", s.tokens, s.heads * latent.value, s.hidden, 1, s.layers)


def mlp_linears(config: ModelConfig, layout: Layout) -> tuple[RankLinear, ...]:
    """Up, gate and down of all that every token goes through, and the router; not the experts."""
    s = RankSizes.of(config)
    found: list[RankLinear] = []
    if config.experts and layout.experts_per_token:
        routed = s.layers - (config.dense_layers or 0)
        found.append(RankLinear("moe.router", s.tokens, s.hidden, config.experts, 1, routed))
    for width, layers in dense_mlps(config, layout):
        if config.gated and layout.fused_gate:
            found.append(RankLinear("mlp.up", s.tokens, s.hidden, 2 * width, 1, layers))
        else:
            found.append(RankLinear("mlp.up", s.tokens, s.hidden, width, 1, layers))
            if config.gated:
                found.append(RankLinear("mlp.gate", s.tokens, s.hidden, width, 1, layers))
        found.append(RankLinear("mlp.down", s.tokens, width, s.hidden, 1, layers))
    return tuple(found)


def dense_mlps(config: ModelConfig, layout: Layout) -> tuple[tuple[int, int], ...]:
    """(width on this rank, layers) of the MLPs that every token goes through."""
    s, t, dense = RankSizes.of(config), config.tp, config.dense_layers or 0
    if not (config.experts and layout.experts_per_token):
        return ((s.ffn, s.layers),)
    found = (((config.shared_ffn or 0) // t, s.layers - dense), ((config.dense_ffn or 0) // t, dense))
    return tuple((width, layers) for width, layers in found if width and layers)


def expert_layer(config: ModelConfig, layout: Layout) -> ExpertLayer | None:
    """The experts of one layer, dealt out to expert-parallel ranks; None for a dense model."""
    from tracelens.results.experts import ExpertLayer  # its JSON needs msgspec, which verify does not

    if not (config.experts and layout.experts_per_token):
        return None
    ep = config.ep
    return ExpertLayer(
        _known(config, "hidden"), _known(config, "ffn"), config.experts, layout.experts_per_token,
        ep=ep, tp=config.etp, gated=bool(config.gated), exchanged=ep > 1,
    )  # fmt: skip


def logits_linear(config: ModelConfig) -> tuple[RankLinear, ...]:
    """The product with the vocabulary, of every token; none where there is no vocabulary."""
    s = RankSizes.of(config)
    return (RankLinear("logits", s.tokens, s.hidden, s.vocab, 1, 1),) if s.vocab else ()


def attention_calls(config: ModelConfig, layout: Layout) -> tuple[RankAttention, ...]:
    """The fused attention of every layer: those that see all keys, and those with a sliding window.

    A context-parallel rank has an early and a late part of each sequence (Megatron-LM, ring attention): its
    queries see as many keys as those of the whole do on average, as far as no mask hides them.
    """
    s = RankSizes.of(config)
    batch, whole = config.micro_batch or 1, config.sequence or s.tokens
    short = layout.window is not None and layout.window < whole
    windowed = round(layout.windowed_frac * s.layers) if short else 0
    value = config.latent.value if config.latent else None
    found = []
    for layers, window in ((s.layers - windowed, None), (windowed, layout.window)):
        call = RankAttention(
            batch, s.heads, s.kv_heads, whole, s.head_dim, layout.causal, layers, window, value
        )  # fmt: skip
        if config.cp > 1:
            keys = visible_pairs(whole, whole, causal=layout.causal, window=window) // whole
            call = replace(call, sequence=whole // config.cp, causal=False, window=None, keys=keys)
        found += [call] if layers else []
    return tuple(found)


def attention_traffic(config: ModelConfig, layout: Layout) -> Iterator[Traffic]:
    """Rotary embeddings: q and k read and written once, or in the five steps of plain PyTorch.

    Latent attention turns a part of each head; q and k are put together from both parts, and the short
    vectors have norms of their own.
    """
    s, latent = RankSizes.of(config), config.latent
    if latent is not None:
        turned = 2.0 * s.tokens * (s.heads + 1) * latent.turned * s.layers
        joined = 2.0 * s.tokens * 2 * s.heads * s.head_dim * s.layers
        short = 2.0 * s.tokens * (latent.keys + (latent.queries or 0)) * s.layers
        for phase in DIRECTIONS:
            yield Traffic("attention.rope", phase, "b*s*a*d", 2 * turned + joined, 9 * turned + 2 * joined)
        yield Traffic("norm", "forward", "b*s*r", 2 * short, 12 * short)
        yield Traffic("norm", "backward", "b*s*r", 3 * short, 22 * short)
    elif layout.rope:
        unit = 2.0 * s.tokens * (s.heads + s.kv_heads) * s.head_dim * s.layers
        for phase in DIRECTIONS:
            yield Traffic("attention.rope", phase, "b*s*(a+kv)*d", 2 * unit, 9 * unit)


def hidden_traffic(config: ModelConfig, layout: Layout) -> Iterator[Traffic]:
    """Two norms and two residual additions a layer, and the embedding."""
    s = RankSizes.of(config)
    unit = 2.0 * s.tokens * s.hidden
    layer = 2 * unit * s.layers  # two of each in a layer
    # RMSNorm in plain PyTorch is six kernels in fp32; LayerNorm is one: the pair covers both.
    plain_norm = (12, 22) if layout.rope else (2, 5)
    yield Traffic("norm", "forward", "b*s*h", 2 * layer, plain_norm[0] * layer)
    yield Traffic("norm", "backward", "b*s*h", 3 * layer, plain_norm[1] * layer)
    yield Traffic("residual", "forward", "b*s*h", layer, 3 * layer)
    yield Traffic("residual", "backward", "b*s*h", layer, 3 * layer)
    yield Traffic("embedding", "forward", "b*s*h", 2 * unit, 3 * unit)
    yield Traffic("embedding", "backward", "b*s*h", 3 * unit, 6 * unit)


def mlp_traffic(config: ModelConfig, layout: Layout) -> Iterator[Traffic]:
    """The activation outside experts; with a gate it reads two inputs and is two kernels in plain PyTorch."""
    s = RankSizes.of(config)
    unit = 2.0 * s.tokens * sum(width * layers for width, layers in dense_mlps(config, layout))
    if not unit:
        return
    forward, backward = ((3, 5), (5, 9)) if config.gated else ((2, 2), (3, 3))
    yield Traffic("mlp.activation", "forward", "b*s*f", forward[0] * unit, forward[1] * unit)
    yield Traffic("mlp.activation", "backward", "b*s*f", backward[0] * unit, backward[1] * unit)


def vocab_traffic(config: ModelConfig) -> Iterator[Traffic]:
    """Cross-entropy over the vocabulary: read and written in 16 bits, or in fp32 copies."""
    s = RankSizes.of(config)
    logits = float(s.tokens) * s.vocab
    if not logits:
        return
    yield Traffic("loss", "forward", "b*s*v", 2 * logits, 14 * logits)
    yield Traffic("loss", "backward", "b*s*v", 4 * logits, 22 * logits)


def busiest_stage(config: ModelConfig) -> ModelConfig:
    """What the last pipeline stage has, which sets the pace: its layers, and the vocabulary once."""
    if config.pp == 1:
        return config
    layers = config.stage_layers
    dense = (config.dense_layers or 0) + (layers or 0) - (config.layers or 0)
    return replace(
        config, layers=layers, dense_layers=max(0, dense) or None, tied=True,
        pipeline_parallel=None, virtual_stages=None,
    )  # fmt: skip


def activation_bytes(
    config: ModelConfig, layout: Layout, *, sequence_parallel: bool = False, selective: bool = False
) -> float:
    """Activations of one micro-batch that a rank keeps for the backward of ``layers`` layers, in 16 bits.

    As in Korthikanti et al. (arXiv 2205.05198), with fused attention and no recompute; ``sequence_parallel``:
    each rank keeps its part of what is as wide as the stream. ``selective``: of a layer its input, what
    attention gives and the outputs of every second GEMM, as torchtitan keeps them.
    """
    s = RankSizes.of(config)
    kv_heads = s.heads if config.kv_repeated else s.kv_heads
    stream = 4 * s.hidden / (config.tp if sequence_parallel else 1)
    width = stream + (2 * s.heads + 2 * kv_heads) * s.head_dim
    if (latent := config.latent) is not None:  # short vectors before and behind their norms, q, k, v and out
        width = stream + 2 * (latent.keys + (latent.queries or 0)) + latent.turned
        width += 2 * s.heads * (s.head_dim + latent.value)
    mlp = sum(width * layers for width, layers in dense_mlps(config, layout))
    if config.experts and layout.experts_per_token:
        mlp += s.ffn * layout.experts_per_token * (s.layers - (config.dense_layers or 0))
    kept = s.layers * width + (3 if config.gated else 2) * mlp
    if selective:
        outputs = s.layers * ((s.heads + 2 * kv_heads) * s.head_dim + stream / 2)
        outputs += (2 if config.gated else 1) * mlp
        kept = s.layers * (stream / 4 + s.heads * s.head_dim) + outputs / 2
    return 2.0 * s.tokens * (kept + 3 * s.vocab)


def memory_of_trace(config: ModelConfig) -> float | None:
    """Estimate of a rank's memory in bytes for a model read off a trace: weights as in ``memory_of``.

    None where a size is not known, or experts share the tokens. What data-parallel ranks share (ZeRO, FSDP),
    and activations that are computed again, make it less.
    """
    if config.experts and config.experts > 1:
        return None
    weights = config.rank_parameters
    try:
        return 16.0 * weights + kept_of_trace(config) if weights is not None else None
    except InputError:
        return None


def kept_of_trace(config: ModelConfig) -> float:
    """``activation_bytes`` of a model read off a trace: one stage's layers, one rank's vocabulary.

    A rank of a 1F1B schedule keeps those of as many micro-batches as there are stages behind it, itself
    among them (Narayanan et al., arXiv 2104.04473): this is the last stage's.
    """
    t = config.tp
    rank = replace(config, vocab=config.vocab * t if config.vocab else None, layers=config.stage_layers)
    return activation_bytes(rank, Layout())
