"""T5: an encoder, and a decoder that attends to it. A bias by distance leaves only unfused attention."""

# nn.Module.__call__ and parts of torch.Tensor have no types.
# mypy: disable-error-code="no-any-return, no-untyped-call"
from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tests.zoo.blocks import RMSNorm, add, cross_entropy, heads_of, math_attention, run_block
from tests.zoo.dims import Build
from tests.zoo.parts import part


class T5Attention(nn.Module):
    """Attention to the own tokens or to those of the encoder; unfused, as a position bias is added."""

    def __init__(self, build: Build, layer: int, *, first: bool) -> None:
        super().__init__()
        dims, self.dims, self.layer = build.dims, build.dims, layer
        width = dims.heads * dims.head_dim
        self.q = nn.Linear(dims.hidden, width, bias=False)
        self.k = nn.Linear(dims.hidden, width, bias=False)
        self.v = nn.Linear(dims.hidden, width, bias=False)
        self.o = nn.Linear(width, dims.hidden, bias=False)
        self.relative_attention_bias = nn.Embedding(32, dims.heads) if first else None

    def bias(self, x: Tensor) -> Tensor:
        """Learned bias by distance, [1, heads, s, s]."""
        assert self.relative_attention_bias is not None
        with part("attention.other", self.layer, strict=False):
            places = torch.arange(x.shape[1], device=x.device)
            distance = (places[None, :] - places[:, None]).abs()
            large = 16 + (torch.log(distance.float() / 16) / math.log(8) * 16).long()
            bucket = torch.where(distance < 16, distance, large.clamp(max=31))
            return self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
        layer, size = self.layer, self.dims.head_dim
        with part("attention.qkv", layer):
            q, k, v = self.q(x), self.k(source), self.v(source)
        with part("attention.other", layer):
            q, k, v = heads_of(q, size), heads_of(k, size), heads_of(v, size)
        y = math_attention(q, k, v, layer, causal=causal, bias=bias)
        with part("attention.other", layer):
            y = y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1)
        with part("attention.output", layer):
            return self.o(y)


class T5FeedForward(nn.Module):
    """Gated GELU, as T5 v1.1."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.layer = build.dims, layer
        self.wi_0 = nn.Linear(dims.hidden, dims.ffn, bias=False)
        self.wi_1 = nn.Linear(dims.hidden, dims.ffn, bias=False)
        self.wo = nn.Linear(dims.ffn, dims.hidden, bias=False)
        self.act = nn.GELU(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        with part("mlp.gate", self.layer):
            gate = self.wi_0(x)
        with part("mlp.activation", self.layer):
            gate = self.act(gate)
        with part("mlp.up", self.layer):
            up = self.wi_1(x)
        with part("mlp.activation", self.layer):
            x = gate * up
        with part("mlp.down", self.layer):
            return self.wo(x)


class T5Block(nn.Module):
    """Self attention, in the decoder attention to the encoder, feed forward."""

    def __init__(self, build: Build, layer: int, *, decoder: bool) -> None:
        super().__init__()
        hidden, self.layer, self.decoder = build.dims.hidden, layer, decoder
        self.SelfAttention = T5Attention(build, layer, first=layer == 0)
        self.self_norm = RMSNorm(hidden, layer)
        if decoder:
            self.EncDecAttention = T5Attention(build, layer, first=False)
            self.cross_norm = RMSNorm(hidden, layer)
        self.DenseReluDense = T5FeedForward(build, layer)
        self.mlp_norm = RMSNorm(hidden, layer)

    def forward(self, x: Tensor, bias: Tensor, source: Tensor | None) -> Tensor:
        with part("other", self.layer):
            normed = self.self_norm(x)
            x = add(x, self.SelfAttention(normed, normed, bias, self.decoder), self.layer)
            if source is not None:
                x = add(x, self.EncDecAttention(self.cross_norm(x), source, None, False), self.layer)
            return add(x, self.DenseReluDense(self.mlp_norm(x)), self.layer)


class T5Stack(nn.Module):
    def __init__(self, build: Build, *, decoder: bool) -> None:
        super().__init__()
        dims, self.build = build.dims, build
        self.block = nn.ModuleList([T5Block(build, i, decoder=decoder) for i in range(dims.layers)])
        self.final_layer_norm = RMSNorm(dims.hidden)

    def forward(self, x: Tensor, source: Tensor | None) -> Tensor:
        first = self.block[0]
        assert isinstance(first, T5Block)
        bias = first.SelfAttention.bias(x)
        for block in self.block:
            x = run_block(block, self.build, x, bias, source)
        normed: Tensor = self.final_layer_norm(x)
        return normed


class T5ForConditionalGeneration(nn.Module):
    def __init__(self, build: Build) -> None:
        super().__init__()
        self.shared = nn.Embedding(build.dims.words, build.dims.hidden)
        self.encoder = T5Stack(build, decoder=False)
        self.decoder = T5Stack(build, decoder=True)
        self.lm_head = nn.Linear(build.dims.hidden, build.dims.words, bias=False)

    def forward(self, index: Tensor, decoder_index: Tensor, target: Tensor) -> Tensor:
        with part("embedding"):
            x = self.shared(index)
        source = self.encoder(x, None)
        with part("embedding"):
            y = self.shared(decoder_index)
        y = self.decoder(y, source)
        with part("logits"):
            logits = self.lm_head(y)
        return cross_entropy(logits, target)
