"""The layers and small models that are timed before and after a change, as plain PyTorch.

A layer is what ``LayerShape`` says and nothing more: its projections, one attention call, two norms, no
dropout. Tensor parallelism is one rank's share of the matrices, without the communication.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tracelens.measure.attention import SDP
from tracelens.measure.gemms import tensor_cores
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.timing import Call

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}


class SelfAttention(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        t = shape.tensor_parallel
        self.heads, self.kv_heads, self.head_dim = shape.heads // t, shape.kv_heads // t, shape.head_dim
        self.causal, self.backend, self.rope = shape.causal, shape.attention, shape.gated
        sizes = [heads * self.head_dim for heads in (self.heads, self.kv_heads, self.kv_heads)]
        self.sizes = sizes
        widths = [sum(sizes)] if shape.fused_qkv else sizes
        self.qkv = nn.ModuleList(nn.Linear(shape.hidden, width, bias=not shape.gated) for width in widths)
        self.output = nn.Linear(self.heads * self.head_dim, shape.hidden, bias=not shape.gated)
        angle = _angles(shape.sequence, self.head_dim) if self.rope else torch.zeros(0)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, _ = x.shape
        made = [linear(x) for linear in self.qkv]
        parts = made if len(made) > 1 else made[0].split(self.sizes, dim=-1)
        q, k, v = (part.view(batch, sequence, -1, self.head_dim).transpose(1, 2) for part in parts)
        if self.rope:
            q, k = _rotated(q, self.cos, self.sin), _rotated(k, self.cos, self.sin)
        mixed = self._by_products(q, k, v) if self.backend == "math" else self._fused(q, k, v)
        projected: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, sequence, -1))
        return projected

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with _only(self.backend, q.device.type):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal, enable_gqa=self.heads != self.kv_heads
            )

    def _by_products(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Scores, mask, softmax and values as kernels of their own, as before fused attention."""
        if self.heads != self.kv_heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        if self.causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(ahead, float("-inf"))
        return scores.softmax(dim=-1) @ v


def _only(backend: str, device: str) -> AbstractContextManager[object]:
    """One backend, so that both shapes run the same; a CPU takes what it has."""
    from torch.nn.attention import sdpa_kernel

    return sdpa_kernel(SDP[backend]) if device == "cuda" else nullcontext()


def _angles(sequence: int, head_dim: int) -> Tensor:
    rates = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(sequence, dtype=torch.float64)[:, None] * rates
    return torch.cat((angle, angle), dim=-1)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Mlp(nn.Module):
    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        width, self.gated = shape.ffn // shape.tensor_parallel, shape.gated
        together = shape.fused_gate and self.gated
        widths = [2 * width] if together else [width] * (2 if self.gated else 1)
        self.up = nn.ModuleList(nn.Linear(shape.hidden, wide, bias=not self.gated) for wide in widths)
        self.down = nn.Linear(width, shape.hidden, bias=not self.gated)

    def forward(self, x: Tensor) -> Tensor:
        made = [linear(x) for linear in self.up]
        if self.gated:
            gate, up = made if len(made) > 1 else made[0].chunk(2, dim=-1)
            wide = F.silu(gate) * up
        else:
            wide = F.gelu(made[0])
        narrow: Tensor = self.down(wide)
        return narrow


class Layer(nn.Module):
    """norm, attention, residual, norm, MLP, residual."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(shape), _norm(shape)
        self.attention, self.mlp = SelfAttention(shape), Mlp(shape)
        self.recompute = shape.recompute

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute:
            again: Tensor = checkpoint(self._once, x, use_reentrant=False)
            return again
        return self._once(x)

    def _once(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        grown: Tensor = x + self.mlp(self.norm2(x))
        return grown


class Logits(nn.Module):
    """Final norm, logits and cross-entropy in fp32, as language models are trained."""

    def __init__(self, shape: LayerShape) -> None:
        super().__init__()
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocab // shape.tensor_parallel, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _norm(shape: LayerShape) -> nn.Module:
    return nn.RMSNorm(shape.hidden) if shape.gated else nn.LayerNorm(shape.hidden)


class SmallModel(nn.Module):
    """Embedding, layers, logits and loss; embedding and logits share their matrix."""

    def __init__(self, shape: StepShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.layer.hidden)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(shape.layer) for _ in range(shape.layers))
        self.logits = Logits(shape.layer.changed(vocab=shape.vocabulary))
        self.logits.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        loss: Tensor = self.logits(x, targets)
        return loss


# --- what is timed ------------------------------------------------------------------------------------


def layer_step(shape: LayerShape, *, device: str) -> Call:
    """Forward and backward of one layer, or of the logits layer, on random data.

    The input takes a gradient, as in the middle of a model; gradients of weights are written anew each
    time, as the first micro-batch of a step writes them.
    """
    torch.manual_seed(0)
    dtype = _DTYPES[shape.dtype]
    with torch.device(device):
        module = (Logits(shape) if shape.vocab else Layer(shape)).to(dtype=dtype)
        x = torch.randn(shape.micro_batch, shape.sequence, shape.hidden, dtype=dtype, requires_grad=True)
        grad = torch.randn_like(x)
        last = max(1, shape.vocab // shape.tensor_parallel)
        targets = torch.randint(0, last, (shape.micro_batch, shape.sequence))
    leaves = [x, *module.parameters()]

    def step(index: int) -> None:
        for leaf in leaves:
            leaf.grad = None
        with tensor_cores(shape.dtype):
            if shape.vocab:
                module(x, targets).backward()
            else:
                module(x).backward(grad)

    return step


def training_step(shape: StepShape, *, device: str) -> Call:
    """Forward, loss, backward and AdamW of a small model on random tokens."""
    torch.manual_seed(0)
    layer = shape.layer
    with torch.device(device):
        model = SmallModel(shape).to(dtype=_DTYPES[layer.dtype])
        size = (layer.micro_batch, layer.sequence)
        tokens, targets = (torch.randint(0, shape.vocabulary, size) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=device == "cuda")

    def step(index: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with tensor_cores(layer.dtype):
            loss: Tensor = model(tokens, targets)
            loss.backward()
        optimizer.step()
        return loss.detach()

    return step
