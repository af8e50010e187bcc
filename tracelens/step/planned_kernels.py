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
from tracelens.gemm.predict.attention_call import visible_pairs
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
    bias: bool = False  # one for every score


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


def stacks(config: ModelConfig, layout: Layout) -> tuple[tuple[ModelConfig, Layout], ...]:
    """Each stack of layers as a model of its own, the one with the logits last.

    A decoder reads what its encoder gives out: ``Layout.cross`` is how many tokens of it.
    """
    if not config.decoder_layers:
        return ((config, layout),)
    alone = replace(config, decoder_layers=None, decoder_sequence=None)
    decoder = replace(alone, layers=config.decoder_layers, sequence=config.decoder_sequence)
    return (
        (replace(alone, vocab=0), replace(layout, causal=False)),
        (decoder, replace(layout, cross=config.sequence)),
    )


def attention_linears(config: ModelConfig, layout: Layout) -> tuple[RankLinear, ...]:
    """QKV (one product or three, as the family does) and the output projection, of a stack."""
    s = RankSizes.of(config)
    if config.latent is not None:
        return tuple(_latent_linears(s, config.latent))
    query, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    output = RankLinear("attention.output", s.tokens, query, s.hidden, 1, s.layers)
    made = (
        (RankLinear("attention.qkv", s.tokens, s.hidden, query + 2 * keys, 1, s.layers),)
        if layout.fused_qkv
        else (
            RankLinear("attention.qkv", s.tokens, s.hidden, query, 1, s.layers),
            RankLinear("attention.qkv", s.tokens, s.hidden, keys, 1, 2 * s.layers),
        )
    )
    return (*made, output, *cross_linears(config, layout))


def cross_linears(config: ModelConfig, layout: Layout) -> tuple[RankLinear, ...]:
    """Of a second attention: queries of the stack's tokens, keys and values of the encoder's."""
    if layout.cross is None:
        return ()
    s, read = RankSizes.of(config), (config.micro_batch or 1) * layout.cross
    query, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    both = (2 * keys, s.layers) if layout.fused_qkv else (keys, 2 * s.layers)  # in one GEMM or two
    return (
        RankLinear("attention.qkv", s.tokens, s.hidden, query, 1, s.layers),
        RankLinear("attention.qkv", read, s.hidden, both[0], 1, both[1]),
        RankLinear("attention.output", s.tokens, query, s.hidden, 1, s.layers),
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
    """The attention of every layer: that which sees all keys, that with a window, and cross-attention.

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
            batch, s.heads, s.kv_heads, whole, s.head_dim, layout.causal, layers, window, value,
            bias=layout.bias,
        )  # fmt: skip
        if config.cp > 1:
            keys = visible_pairs(whole, whole, causal=layout.causal, window=window) // whole
            call = replace(call, sequence=whole // config.cp, causal=False, window=None, keys=keys)
        found += [call] if layers else []
    if layout.cross is not None:
        found.append(replace(found[0], causal=False, window=None, calls=s.layers, keys=layout.cross))
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
    if layout.bias:
        yield from _bias_traffic(attention_calls(config, layout))


def _bias_traffic(calls: tuple[RankAttention, ...]) -> Iterator[Traffic]:
    """A bias is read by each kernel, for all scores, and its gradient written where it is learned.

    transformers puts mask and bias together anew in each layer and batch (integrations/sdpa_attention.py);
    the gradient of that is read, written where nothing is masked, and summed over the batch. That of
    cross-attention is zeros.
    """
    read = sum(bias_bytes(call) * call.calls for call in calls)
    learned = sum(bias_bytes(call) * call.calls for call in calls if call.keys is None)
    yield Traffic("attention.other", "forward", "b*a*s*s", read, 3 * read)
    yield Traffic("attention.other", "backward", "b*a*s*s", read + learned, read + 4 * learned)


def bias_bytes(call: RankAttention) -> float:
    """Of the bias of one call, in 16 bits; 0 without one."""
    return 2.0 * call.bias * call.batch * call.heads * call.sequence * (call.keys or call.sequence)


def hidden_traffic(config: ModelConfig, layout: Layout) -> Iterator[Traffic]:
    """Two norms and two residual additions a layer, three with cross-attention, and the embedding."""
    s = RankSizes.of(config)
    unit = 2.0 * s.tokens * s.hidden
    layer = (2 if layout.cross is None else 3) * unit * s.layers
    # RMSNorm in plain PyTorch is six kernels in fp32; LayerNorm is one: the pair covers both.
    plain_norm = (12, 22) if layout.rope or layout.rms else (2, 5)
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
