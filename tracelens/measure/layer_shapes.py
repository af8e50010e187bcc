"""Transformer layers and small models as numbers, and the products that each of them does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tracelens.hardware.measurements import MeasuredBackend
from tracelens.words import Role


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One transformer layer of one tensor-parallel rank, with its job's micro-batch and sequence.

    ``vocab`` > 0 makes it a logits layer: final norm, output projection and cross-entropy, nothing else.
    """

    hidden: int
    heads: int
    ffn: int
    kv_heads: int = 0  # 0: as many as heads
    head_dim: int = 0  # 0: hidden / heads
    gated: bool = False  # SwiGLU: gate and up, RMSNorm, no biases
    causal: bool = True
    sequence: int = 2048
    micro_batch: int = 4
    tensor_parallel: int = 1
    vocab: int = 0
    dtype: str = "bf16"
    attention: MeasuredBackend | Literal["math"] = "flash"  # math: scores, softmax, values apart
    fused_qkv: bool = True  # one product for query, key and value
    fused_gate: bool = True  # one product for gate and up, where there is a gate
    recompute: bool = False  # the backward runs the forward again (activation checkpointing)

    def __post_init__(self) -> None:
        if not self.head_dim:
            if self.hidden % self.heads:
                raise ValueError(f"{self.heads} heads do not divide a hidden size of {self.hidden}")
            object.__setattr__(self, "head_dim", self.hidden // self.heads)
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        for name in ("heads", "kv_heads", "ffn", "vocab"):
            if getattr(self, name) % self.tensor_parallel:
                raise ValueError(f"{name}={getattr(self, name)} is not divisible by t={self.tensor_parallel}")

    def changed(self, **changes: int | bool | str) -> LayerShape:
        """The same layer with other numbers; fewer or more heads share the same hidden size.

        >>> LayerShape(hidden=2560, heads=32, ffn=10240).changed(heads=20).head_dim
        128
        """
        if "heads" in changes or "hidden" in changes:
            changes.setdefault("head_dim", 0)
            if self.kv_heads == self.heads:
                changes.setdefault("kv_heads", 0)
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def tokens(self) -> int:
        return self.micro_batch * self.sequence

    @property
    def parameters(self) -> int:
        """Of this rank's matrices; norms and biases are left out."""
        return sum(linear.out * linear.inner for linear in self.linears())

    def linears(self) -> tuple[Linear, ...]:
        """The layer's matrices as this rank holds them.

        >>> LayerShape(hidden=2560, heads=32, ffn=10240).linears()[0]
        Linear(component='attention.qkv', out=7680, inner=2560)
        """
        t = self.tensor_parallel
        if self.vocab:
            return (Linear("logits", self.vocab // t, self.hidden),)
        query, keys = self.heads // t * self.head_dim, self.kv_heads // t * self.head_dim
        inputs = (query + 2 * keys,) if self.fused_qkv else (query, keys, keys)
        width = self.ffn // t
        wide = [Linear("mlp.up", width, self.hidden)]
        if self.gated:
            together = Linear("mlp.up", 2 * width, self.hidden)
            wide = [together] if self.fused_gate else [Linear("mlp.gate", width, self.hidden), *wide]
        return (
            *(Linear("attention.qkv", out, self.hidden) for out in inputs),
            Linear("attention.output", self.hidden, query),
            *wide,
            Linear("mlp.down", self.hidden, width),
        )

    def gemms(self) -> Iterator[LayerGemm]:
        """Every product of forward and backward; of attention only where it is done by products.

        What activation checkpointing runs a second time is not repeated.
        """
        for linear in self.linears():
            yield from linear_gemms(linear, tokens=self.tokens)
        if self.attention == "math" and not self.vocab:
            batch = self.micro_batch * self.heads // self.tensor_parallel
            yield from attention_gemms(batch=batch, sequence=self.sequence, head_dim=self.head_dim)

    def toy(self) -> LayerShape:
        """As the layer in everything but size: gated, grouped, causal, sharded, of its type."""
        t = self.tensor_parallel
        heads = (2 if self.head_dim > 80 else 4) * t
        return replace(
            self,
            hidden=32 * t,
            heads=heads,
            head_dim=32 * t // heads,
            kv_heads=t if self.kv_heads < self.heads else heads,
            ffn=(48 + self.ffn % 16) * t,
            sequence=16,
            micro_batch=1 + self.micro_batch % 2,
            vocab=(64 + self.vocab % 8) * t if self.vocab else 0,
        )


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix of ``out`` rows and ``inner`` columns, as torch.nn.Linear stores it."""

    component: str
    out: int
    inner: int


@dataclass(frozen=True, slots=True)
class LayerGemm:
    component: str
    role: Role
    m: int
    n: int
    k: int
    batch: int
    layout: str


def linear_gemms(linear: Linear, *, tokens: int) -> tuple[LayerGemm, ...]:
    """Forward, gradient of the input and gradient of the weight of ``y = x W^T``.

    >>> up = linear_gemms(Linear("mlp.up", 3072, 768), tokens=8192)
    >>> [(one.role, one.m, one.n, one.k, one.layout) for one in up]
    [('forward', 8192, 3072, 768, 'TN'), ('dgrad', 8192, 768, 3072, 'NN'), ('wgrad', 3072, 768, 8192, 'NT')]
    """
    name, out, inner = linear.component, linear.out, linear.inner
    return (
        LayerGemm(name, "forward", tokens, out, inner, 1, "TN"),
        LayerGemm(name, "dgrad", tokens, inner, out, 1, "NN"),
        LayerGemm(name, "wgrad", out, inner, tokens, 1, "NT"),
    )


def attention_gemms(*, batch: int, sequence: int, head_dim: int) -> tuple[LayerGemm, ...]:
    """Scores Q K^T and values P V with their gradients, one product per head.

    Two of the six repeat the shapes of two others: dP = dO V^T is a score, dQ = dS K a value product.
    """
    s, d = sequence, head_dim
    return (
        LayerGemm("attention.scores", "forward", s, s, d, batch, "TN"),
        LayerGemm("attention.scores", "dgrad", s, d, s, batch, "NN"),
        LayerGemm("attention.scores", "dgrad", s, d, s, batch, "NT"),
        LayerGemm("attention.values", "forward", s, d, s, batch, "NN"),
        LayerGemm("attention.values", "dgrad", s, s, d, batch, "TN"),
        LayerGemm("attention.values", "dgrad", s, d, s, batch, "NT"),
    )


@dataclass(frozen=True, slots=True)
class StepShape:
    """A small model that is trained for one step: embedding, layers, logits, loss, AdamW."""

    layer: LayerShape
    layers: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Of all matrices; embedding and logits share theirs."""
        return self.layers * self.layer.parameters + self.vocabulary * self.layer.hidden

    def as_json(self) -> dict[str, Any]:
        """Plain JSON: the layer's numbers, the depth, the vocabulary."""
        return {**asdict(self.layer), "layers": self.layers, "vocabulary": self.vocabulary}

    def toy(self) -> StepShape:
        """One layer of toy size."""
        return StepShape(self.layer.toy(), 1, 64 + self.vocabulary % 8)
