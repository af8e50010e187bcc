"""The kernels of a step that a configuration asks for: products, attention, and what only moves bytes.

The memory model is plain: every kernel reads its inputs from memory once and writes its outputs once. How
many kernels there are between the products depends on the framework, so each count of tensors is a pair:
fused (torch.compile or hand-written kernels) and plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracelens.config.configuration import Layout
from tracelens.config.model_config import ModelConfig
from tracelens.errors import InputError
from tracelens.words import Direction


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
    """Sizes on one tensor-parallel rank."""

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
        t = config.tensor_parallel or 1
        heads = _known(config, "heads")
        tokens = config.token_count
        if tokens is None:
            raise InputError("the tokens of a micro-batch are not known: give --sequence and --micro-batch")
        return cls(
            tokens=tokens,
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
    query, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    output = RankLinear("attention.output", s.tokens, query, s.hidden, 1, s.layers)
    if layout.fused_qkv:
        return (RankLinear("attention.qkv", s.tokens, s.hidden, query + 2 * keys, 1, s.layers), output)
    return (
        RankLinear("attention.qkv", s.tokens, s.hidden, query, 1, s.layers),
        RankLinear("attention.qkv", s.tokens, s.hidden, keys, 1, 2 * s.layers),
        output,
    )


def mlp_linears(config: ModelConfig, layout: Layout) -> tuple[RankLinear, ...]:
    """Up, gate and down; with experts, one product for each expert at an even load."""
    s = RankSizes.of(config)
    found: list[RankLinear] = []
    rows, batch, prefix = s.tokens, 1, "mlp"
    if config.experts and layout.experts_per_token:
        found.append(RankLinear("moe.router", s.tokens, s.hidden, config.experts, 1, s.layers))
        rows, batch = max(1, s.tokens * layout.experts_per_token // config.experts), config.experts
        prefix = "moe"
    up, down = ("mlp.up", "mlp.down") if prefix == "mlp" else ("moe.experts", "moe.experts")
    if config.gated and layout.fused_gate:
        found.append(RankLinear(up, rows, s.hidden, 2 * s.ffn, batch, s.layers))
    else:
        found.append(RankLinear(up, rows, s.hidden, s.ffn, batch, s.layers))
        if config.gated:
            gate = "mlp.gate" if prefix == "mlp" else "moe.experts"
            found.append(RankLinear(gate, rows, s.hidden, s.ffn, batch, s.layers))
    found.append(RankLinear(down, rows, s.ffn, s.hidden, batch, s.layers))
    return tuple(found)


def logits_linear(config: ModelConfig) -> RankLinear:
    """The product with the vocabulary, of every token."""
    s = RankSizes.of(config)
    return RankLinear("logits", s.tokens, s.hidden, s.vocab, 1, 1)


def attention_call(config: ModelConfig, layout: Layout) -> RankAttention:
    """The fused attention of every layer."""
    s = RankSizes.of(config)
    batch, sequence = config.micro_batch or 1, config.sequence or s.tokens
    return RankAttention(batch, s.heads, s.kv_heads, sequence, s.head_dim, layout.causal, s.layers)


def attention_traffic(config: ModelConfig, layout: Layout) -> Iterator[Traffic]:
    """Rotary embeddings: q and k read and written once, or in the five steps of plain PyTorch."""
    s = RankSizes.of(config)
    if layout.rope:
        unit = 2.0 * s.tokens * (s.heads + s.kv_heads) * s.head_dim * s.layers
        for phase in ("forward", "backward"):
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
    """The activation; with a gate it reads two inputs and is two kernels in plain PyTorch."""
    s = RankSizes.of(config)
    unit = 2.0 * s.tokens * s.ffn * s.layers * (layout.experts_per_token or 1)
    forward, backward = ((3, 5), (5, 9)) if config.gated else ((2, 2), (3, 3))
    yield Traffic("mlp.activation", "forward", "b*s*f", forward[0] * unit, forward[1] * unit)
    yield Traffic("mlp.activation", "backward", "b*s*f", backward[0] * unit, backward[1] * unit)
    if layout.experts_per_token:
        sent = 2.0 * s.tokens * s.hidden * s.layers * layout.experts_per_token
        for phase in ("forward", "backward"):
            yield Traffic("moe.dispatch", phase, "b*s*h*experts per token", 4 * sent, 8 * sent)


def vocab_traffic(config: ModelConfig) -> Iterator[Traffic]:
    """Cross-entropy over the vocabulary: read and written in 16 bits, or in fp32 copies."""
    s = RankSizes.of(config)
    logits = float(s.tokens) * s.vocab
    yield Traffic("loss", "forward", "b*s*v", 2 * logits, 14 * logits)
    yield Traffic("loss", "backward", "b*s*v", 4 * logits, 22 * logits)


def memory_bytes(config: ModelConfig, layout: Layout) -> float:
    """Estimate of a rank's memory: 16 bytes a weight, and the activations kept for the backward.

    Weights and gradients in 16 bits, master weights and Adam's two moments in fp32 (ZeRO, arXiv 1910.02054).
    """
    t = config.tensor_parallel or 1
    return 16.0 * (config.parameters or 0) / t + activation_bytes(config, layout)


def activation_bytes(config: ModelConfig, layout: Layout) -> float:
    """Activations of one micro-batch that a rank keeps for the backward of ``layers`` layers, in 16 bits.

    As in Korthikanti et al. (arXiv 2205.05198), with fused attention and no recompute.
    """
    s = RankSizes.of(config)
    per_expert = layout.experts_per_token or 1
    kv_heads = s.heads if config.kv_repeated else s.kv_heads
    width = (2 * s.heads + 2 * kv_heads) * s.head_dim + (3 if config.gated else 2) * s.ffn * per_expert
    return 2.0 * s.tokens * (s.layers * (4 * s.hidden + width) + 3 * s.vocab)


def memory_of_trace(config: ModelConfig) -> float | None:
    """Estimate of a rank's memory in bytes for a model read off a trace: weights as in ``memory_bytes``.

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
    t = config.tensor_parallel or 1
    rank = replace(config, vocab=config.vocab * t if config.vocab else None, layers=config.stage_layers)
    return activation_bytes(rank, Layout())
