"""Mixtures of experts: experts one after the other (Mixtral), and all in one grouped product."""

# nn.Module.__call__ and parts of torch.Tensor have no types.
# mypy: disable-error-code="no-any-return, no-untyped-call"
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.dims import Build
from tests.zoo.parts import part

TOP = 2


def choose(gate: nn.Linear, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Which ``TOP`` experts each token goes to, and how much of each."""
    with part("moe.router", layer):
        weights = F.softmax(gate(x), dim=1, dtype=torch.float32)
        weights, chosen = torch.topk(weights, TOP, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        return weights.to(x.dtype), chosen


class MixtralBlockSparseTop2MLP(nn.Module):
    def __init__(self, hidden: int, ffn: int, layer: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden, ffn, bias=False)
        self.w2 = nn.Linear(ffn, hidden, bias=False)
        self.w3 = nn.Linear(hidden, ffn, bias=False)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        with part("moe.experts", self.layer):
            y: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
            return y


class MixtralSparseMoeBlock(nn.Module):
    """A Python loop over the experts. Every expert gets the same number of tokens, as data is absent."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.layer = build.dims, layer
        self.count = dims.experts or 1
        self.gate = nn.Linear(dims.hidden, self.count, bias=False)
        self.experts = nn.ModuleList(
            [MixtralBlockSparseTop2MLP(dims.hidden, dims.ffn, layer) for _ in range(self.count)]
        )

    def forward(self, x: Tensor) -> Tensor:
        shape, layer = x.shape, self.layer
        x = x.view(-1, shape[-1])
        weights, chosen = choose(self.gate, x, layer)
        tokens = len(x) * TOP // self.count
        with part("moe.dispatch", layer):
            order = torch.argsort(chosen.view(-1))
            flat = weights.view(-1)
            out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            with part("moe.dispatch", layer):
                places = order[i * tokens : (i + 1) * tokens]
                rows = places // TOP
                mine = x[rows]
            y = expert(mine)
            with part("moe.dispatch", layer):
                out = out.index_add(0, rows, y * flat[places, None])
        return out.view(shape)


class Qwen2MoeSparseMoeBlock(nn.Module):
    """Experts as one batched product over stacked weights, beside an expert that sees every token."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.layer = build.dims, layer
        self.count = dims.experts or 1
        self.gate = nn.Linear(dims.hidden, self.count, bias=False)
        self.gate_up_proj = nn.Parameter(torch.empty(self.count, dims.hidden, 2 * dims.ffn))
        self.down_proj = nn.Parameter(torch.empty(self.count, dims.ffn, dims.hidden))
        self.shared_expert = MixtralBlockSparseTop2MLP(dims.hidden, dims.ffn, layer)

    def forward(self, x: Tensor) -> Tensor:
        shape, layer = x.shape, self.layer
        x = x.view(-1, shape[-1])
        weights, chosen = choose(self.gate, x, layer)
        with part("moe.dispatch", layer):
            order = torch.argsort(chosen.view(-1))
            rows = order // TOP
            mine = x[rows].view(self.count, -1, shape[-1])
        with part("moe.experts", layer):
            gate, up = torch.bmm(mine, self.gate_up_proj).chunk(2, dim=-1)
            y = torch.bmm(F.silu(gate) * up, self.down_proj).view(-1, shape[-1])
        with part("moe.dispatch", layer):
            y = y * weights.view(-1)[order, None]
            out = torch.zeros_like(x).index_add(0, rows, y)
        shared = self.shared_expert(x)
        with part("moe.experts", layer, strict=False):
            return (out + shared).view(shape)
