"""Decoders with LayerNorm and a plain MLP: GPT-2, NeoX (parallel blocks), Falcon (one key head)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from tests.zoo.blocks import (
    Dropout,
    LayerNorm,
    RotaryEmbedding,
    add,
    attend,
    cross_entropy,
    enter_parallel,
    heads_of,
    leave_parallel,
    rotate,
    run_block,
)
from tests.zoo.dims import Build
from tests.zoo.parts import part


class MLP(nn.Module):
    """Up, GELU, down, dropout."""

    def __init__(self, build: Build, layer: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        dims, self.build, self.layer = build.dims, build, layer
        ffn = dims.ffn // dims.tensor_parallel
        self.c_fc = nn.Linear(dims.hidden, ffn, bias=bias)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(ffn, dims.hidden, bias=bias)
        self.dropout = Dropout(dropout) if dropout else None

    def forward(self, x: Tensor) -> Tensor:
        x = enter_parallel(x, self.build)
        with part("mlp.up", self.layer):
            x = self.c_fc(x)
        with part("mlp.activation", self.layer):
            x = self.gelu(x)
        with part("mlp.down", self.layer):
            x = self.c_proj(x)
        x = leave_parallel(x, self.build)
        if self.dropout is not None:
            with part("dropout", self.layer):
                x = self.dropout(x)
        return x


class CausalSelfAttention(nn.Module):
    """Attention with one projection to q, k and v."""

    def __init__(self, build: Build, layer: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        dims, self.build, self.layer = build.dims, build, layer
        self.width = dims.hidden // dims.tensor_parallel
        self.c_attn = nn.Linear(dims.hidden, 3 * self.width)
        self.c_proj = nn.Linear(self.width, dims.hidden)
        self.resid_dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        size, layer = self.build.dims.head_dim, self.layer
        x = enter_parallel(x, self.build)
        with part("attention.qkv", layer):
            qkv = self.c_attn(x)
        with part("attention.other", layer):
            q, k, v = (heads_of(t, size) for t in qkv.split(self.width, dim=2))
        y = attend(q, k, v, layer, causal=True, kind=self.build.attention)
        with part("attention.output", layer):
            y = self.c_proj(y)
        y = leave_parallel(y, self.build)
        with part("dropout", layer):
            return self.resid_dropout(y)


class SquareAttention(nn.Module):
    """Attention with four h x h projections."""

    def __init__(self, build: Build, layer: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.build, self.layer, hidden = build, layer, build.dims.hidden
        self.q_proj = nn.Linear(hidden, hidden)
        self.k_proj = nn.Linear(hidden, hidden)
        self.v_proj = nn.Linear(hidden, hidden)
        self.out_proj = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        size, layer = self.build.dims.head_dim, self.layer
        with part("attention.qkv", layer):
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        with part("attention.other", layer):
            q, k, v = heads_of(q, size), heads_of(k, size), heads_of(v, size)
        y = attend(q, k, v, layer, causal=True, kind=self.build.attention)
        with part("attention.output", layer):
            return self.out_proj(y)


class Block(nn.Module):
    """Pre-norm block."""

    def __init__(self, build: Build, layer: int, *, square: bool) -> None:
        super().__init__()
        self.layer = layer
        attention = SquareAttention if square else CausalSelfAttention
        self.ln_1 = LayerNorm(build.dims.hidden, layer)
        self.attn = attention(build, layer, dropout=0.1)
        self.ln_2 = LayerNorm(build.dims.hidden, layer)
        self.mlp = MLP(build, layer, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        with part("other", self.layer):
            x = add(x, self.attn(self.ln_1(x)), self.layer)
            return add(x, self.mlp(self.ln_2(x)), self.layer)


class GPT(nn.Module):
    """GPT-2 with learned positions and a tied head."""

    def __init__(self, build: Build, *, square: bool = False) -> None:
        super().__init__()
        dims, self.build = build.dims, build
        layers = [Block(build, i, square=square) for i in range(dims.layers)]
        self.transformer = nn.ModuleDict(
            OrderedDict(
                wte=nn.Embedding(dims.words, dims.hidden),
                wpe=nn.Embedding(dims.sequence, dims.hidden),
                drop=Dropout(),
                h=nn.ModuleList(layers),
                ln_f=LayerNorm(dims.hidden),
            )
        )
        self.lm_head = nn.Linear(dims.hidden, dims.words, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # type: ignore[assignment]

    def forward(self, index: Tensor, target: Tensor) -> Tensor:
        stem = self.transformer
        with part("embedding"):
            places = torch.arange(index.shape[1], device=index.device)
            x = stem["wte"](index) + stem["wpe"](places)
        with part("dropout"):
            x = stem["drop"](x)
        for block in self.build_blocks():
            x = run_block(block, self.build, x)
        x = stem["ln_f"](x)
        with part("logits"):
            logits = self.lm_head(x)
        return cross_entropy(logits, target, wide=False)

    def build_blocks(self) -> list[nn.Module]:
        blocks = self.transformer["h"]
        assert isinstance(blocks, nn.ModuleList)
        return list(blocks)


class NeoXAttention(nn.Module):
    """Fused qkv, laid out head by head, with rotary positions on part of each head."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.build, self.layer = build.dims, build, layer
        width = (dims.heads + 2 * dims.key_heads) * dims.head_dim
        self.query_key_value = nn.Linear(dims.hidden, width, bias=dims.kv_heads is None)
        self.dense = nn.Linear(dims.heads * dims.head_dim, dims.hidden, bias=dims.kv_heads is None)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        dims, layer = self.build.dims, self.layer
        with part("attention.qkv", layer):
            qkv = self.query_key_value(x)
        with part("attention.other", layer):
            wide = heads_of(qkv, dims.head_dim)
            q, k, v = wide.split([dims.heads, dims.key_heads, dims.key_heads], dim=1)
        turned = tables[0].shape[-1]
        with part("attention.rope", layer):
            q, k = (
                torch.cat((rotate(t[..., :turned], tables, layer), t[..., turned:]), dim=-1) for t in (q, k)
            )
        y = attend(q, k, v, layer, causal=True, kind=self.build.attention)
        with part("attention.output", layer):
            return self.dense(y)


class NeoXMLP(nn.Module):
    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.layer = build.dims, layer
        self.dense_h_to_4h = nn.Linear(dims.hidden, dims.ffn, bias=dims.kv_heads is None)
        self.act = nn.GELU()
        self.dense_4h_to_h = nn.Linear(dims.ffn, dims.hidden, bias=dims.kv_heads is None)

    def forward(self, x: Tensor) -> Tensor:
        with part("mlp.up", self.layer):
            x = self.dense_h_to_4h(x)
        with part("mlp.activation", self.layer):
            x = self.act(x)
        with part("mlp.down", self.layer):
            return self.dense_4h_to_h(x)


class ParallelBlock(nn.Module):
    """Attention and MLP side by side; Falcon feeds both from one norm, NeoX from two."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.layer = build.dims, layer
        self.input_layernorm = LayerNorm(dims.hidden, layer)
        self.post_attention_layernorm = LayerNorm(dims.hidden, layer) if dims.kv_heads is None else None
        self.attention = NeoXAttention(build, layer)
        self.mlp = NeoXMLP(build, layer)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        with part("other", self.layer):
            first = self.input_layernorm(x)
            second = first if self.post_attention_layernorm is None else self.post_attention_layernorm(x)
            attended = self.attention(first, tables)
            fed = self.mlp(second)
            return add(add(fed, attended, self.layer), x, self.layer)


class ParallelDecoder(nn.Module):
    """GPT-NeoX; with ``kv_heads`` = 1 it is a Falcon."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        dims, self.build = build.dims, build
        turned = dims.head_dim // 4 if dims.kv_heads is None else dims.head_dim
        self.embed_in = nn.Embedding(dims.words, dims.hidden)
        self.rotary_emb = RotaryEmbedding(turned)
        self.layers = nn.ModuleList([ParallelBlock(build, i) for i in range(dims.layers)])
        self.final_layer_norm = LayerNorm(dims.hidden)
        self.embed_out = nn.Linear(dims.hidden, dims.words, bias=False)

    def forward(self, index: Tensor, target: Tensor) -> Tensor:
        with part("embedding"):
            x = self.embed_in(index)
        tables = self.rotary_emb(x)
        for layer in self.layers:
            x = run_block(layer, self.build, x, tables)
        x = self.final_layer_norm(x)
        with part("logits"):
            logits = self.embed_out(x)
        return cross_entropy(logits, target)
