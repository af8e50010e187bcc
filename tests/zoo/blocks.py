"""Pieces that models of the zoo share, each spelled in the operators that CUDA would run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.zoo import parts
from tests.zoo.dims import Build
from tests.zoo.parts import call, part

aten: Any = torch.ops.aten


def embedding(weight: Tensor, index: Tensor) -> Tensor:
    return F.embedding(index, weight)


class Dropout(nn.Module):
    """nn.Dropout as CUDA runs it: one fused kernel (elsewhere it is bernoulli, div and mul)."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        with call("aten::dropout", x):
            return torch.native_dropout(x, self.p, True)[0]


class RMSNorm(nn.Module):
    """RMSNorm in elementary operators, as Hugging Face writes it."""

    def __init__(self, size: int, layer: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with part("norm", self.layer):
            wide = x.to(torch.float32)
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * wide.to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm that says what it is."""

    def __init__(self, size: int, layer: int | None = None) -> None:
        super().__init__(size)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with part("norm", self.layer):
            return super().forward(x)


class RotaryEmbedding(nn.Module):
    """Tables of cosines and sines of each position, made anew in every step as Hugging Face does."""

    inverse: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("inverse", torch.ones(head_dim // 2, dtype=torch.float32))

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with part("attention.rope", strict=False):
            places = torch.arange(x.shape[1], device=x.device)
            wide = self.inverse[None, :, None].float().expand(1, -1, 1)
            angles = (wide @ places[None, None, :].float()).transpose(1, 2)
            angles = torch.cat((angles, angles), dim=-1)
            return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor], layer: int) -> Tensor:
    """Rotary positions of x [b, heads, s, d]."""
    with part("attention.rope", layer):
        cos, sin = (table.unsqueeze(1) for table in tables)
        return (x * cos) + (rotate_half(x) * sin)


def repeat_heads(x: Tensor, times: int, layer: int) -> Tensor:
    """[b, kv, s, d] -> [b, kv * times, s, d], copied as Hugging Face's repeat_kv does."""
    if times == 1:
        return x
    b, heads, s, d = x.shape
    with part("attention.other", layer):
        return x[:, :, None].expand(b, heads, times, s, d).reshape(b, heads * times, s, d)


def causal_mask(x: Tensor) -> Tensor:
    """What is added to the scores: a buffer of the model, so that no kernel makes it."""
    return torch.empty((x.shape[1], x.shape[1]), dtype=x.dtype, device=x.device)


def math_attention(
    q: Tensor, k: Tensor, v: Tensor, layer: int, *, causal: bool, bias: Tensor | None = None
) -> Tensor:
    """Scores, softmax in float32 and values, each a product or kernel of its own."""
    with part("attention.scores", layer):
        scores = torch.matmul(q, k.transpose(2, 3))
    with part("attention.softmax", layer):
        scores = scores * q.shape[-1] ** -0.5
        if causal:
            mask = torch.empty(scores.shape[-2:], dtype=scores.dtype, device=scores.device)
            scores = scores + mask
        if bias is not None:
            scores = scores + bias
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
    with part("attention.values", layer):
        return torch.matmul(weights, v)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, layer: int, *, causal: bool, kind: str) -> Tensor:
    """What F.scaled_dot_product_attention dispatches to on a GPU; there it would be one call."""
    with part("attention.core", layer), call("aten::scaled_dot_product_attention", q, k, v):
        if kind == "flash":
            return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)[0]


def attend(q: Tensor, k: Tensor, v: Tensor, layer: int, *, causal: bool, kind: str) -> Tensor:
    """Attention of q [b, heads, s, d] to k and v [b, kv, t, d], and the way back to [b, s, heads * d]."""
    times = q.shape[1] // k.shape[1]
    if kind != "flash":
        k, v = repeat_heads(k, times, layer), repeat_heads(v, times, layer)
    if kind == "math":
        y = math_attention(q, k, v, layer, causal=causal)
    else:
        y = fused_attention(q, k, v, layer, causal=causal, kind=kind)
    with part("attention.other", layer):
        return y.transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def heads_of(x: Tensor, head_dim: int) -> Tensor:
    """[b, s, heads * d] -> [b, heads, s, d]."""
    return x.view(x.shape[0], x.shape[1], -1, head_dim).transpose(1, 2)


def enter_parallel(x: Tensor, build: Build) -> Tensor:
    """Before column-parallel Linears: gradients of all ranks are summed in the backward."""
    ranks = build.dims.tensor_parallel
    return x if ranks == 1 else parts.CopyToRegion.apply(x, ranks)  # type: ignore[no-untyped-call,no-any-return]


def leave_parallel(x: Tensor, build: Build) -> Tensor:
    """Behind a row-parallel Linear: the partial sums of all ranks are added."""
    ranks = build.dims.tensor_parallel
    return x if ranks == 1 else parts.ReduceFromRegion.apply(x, ranks)  # type: ignore[no-untyped-call,no-any-return]


def run_block(block: Callable[..., Tensor], build: Build, *inputs: Any) -> Tensor:
    """Call a block, or checkpoint it."""
    if build.checkpoint == "none":
        return block(*inputs)
    reentrant = build.checkpoint == "reentrant"
    out: Tensor = checkpoint(block, *inputs, use_reentrant=reentrant, preserve_rng_state=False)
    return out


def add(x: Tensor, y: Tensor, layer: int | None) -> Tensor:
    """The residual sum."""
    with part("residual", layer):
        return x + y


def cross_entropy(logits: Tensor, target: Tensor, *, wide: bool = True) -> Tensor:
    """The usual loss; ``wide`` makes float32 of the logits first."""
    with part("loss"):
        flat = logits.view(-1, logits.shape[-1])
        return F.cross_entropy(flat.float() if wide else flat, target.reshape(-1))
