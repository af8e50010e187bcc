"""Multi-head latent attention (DeepSeek): low-rank q and kv, rotary positions on a part of each head."""

# nn.Module.__call__ and parts of torch.Tensor have no types.
# mypy: disable-error-code="no-any-return, no-untyped-call"
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.blocks import RMSNorm, attend, rotate
from tests.zoo.dims import Build
from tests.zoo.parts import part


class LatentAttention(nn.Module):
    """``head_dim`` = 2/3 plain + 1/3 rotary for q and k; the heads of v have the plain size."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.build, self.layer = build.dims, build, layer
        self.turned = dims.head_dim // 3
        self.plain = dims.head_dim - self.turned
        self.q_rank, self.kv_rank = dims.hidden // 2, dims.hidden // 4
        self.q_a_proj = nn.Linear(dims.hidden, self.q_rank, bias=False)
        self.q_a_layernorm = RMSNorm(self.q_rank, layer)
        self.q_b_proj = nn.Linear(self.q_rank, dims.heads * dims.head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(dims.hidden, self.kv_rank + self.turned, bias=False)
        self.kv_a_layernorm = RMSNorm(self.kv_rank, layer)
        self.kv_b_proj = nn.Linear(self.kv_rank, dims.heads * 2 * self.plain, bias=False)
        self.o_proj = nn.Linear(dims.heads * self.plain, dims.hidden, bias=False)

    def _queries(self, x: Tensor) -> Tensor:
        with part("attention.qkv", self.layer):
            low = self.q_a_proj(x)
        low = self.q_a_layernorm(low)
        with part("attention.qkv", self.layer):
            q = self.q_b_proj(low)
        return q.view(*x.shape[:2], -1, self.plain + self.turned).transpose(1, 2)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        layer = self.layer
        with part("attention.other", layer):
            q_plain, q_turned = self._queries(x).split([self.plain, self.turned], dim=-1)
            with part("attention.qkv", layer):
                low = self.kv_a_proj_with_mqa(x)
            low, k_turned = low.split([self.kv_rank, self.turned], dim=-1)
            low = self.kv_a_layernorm(low)
            with part("attention.qkv", layer):
                kv = self.kv_b_proj(low)
            kv = kv.view(*x.shape[:2], -1, 2 * self.plain).transpose(1, 2)
            k_plain, v = kv.chunk(2, dim=-1)
            k_turned = k_turned[:, None]
        q_turned, k_turned = rotate(q_turned, tables, layer), rotate(k_turned, tables, layer)
        with part("attention.other", layer, strict=False):
            q = torch.cat((q_plain, q_turned), dim=-1)
            k = torch.cat((k_plain, k_turned.expand(-1, q.shape[1], -1, -1)), dim=-1)
        y = self._attend(q, k, v)
        with part("attention.output", layer):
            return self.o_proj(y)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """FlashAttention wants one head size: v is padded to that of q and the rest cut off again."""
        layer, kind = self.layer, self.build.attention
        if kind != "flash":
            return attend(q, k, v, layer, causal=True, kind=kind)
        with part("attention.other", layer):
            v = F.pad(v, (0, self.turned))
        y = attend(q, k, v, layer, causal=True, kind=kind)
        with part("attention.other", layer):
            y = y.view(*y.shape[:2], -1, q.shape[-1])[..., : self.plain]
            return y.reshape(*y.shape[:2], -1)
