"""Decoders with RMSNorm and a gated MLP: Llama and what grew out of it."""

# nn.Module.__call__ and parts of torch.Tensor have no types.
# mypy: disable-error-code="no-any-return, no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.zoo.blocks import (
    RMSNorm,
    RotaryEmbedding,
    add,
    attend,
    enter_parallel,
    heads_of,
    leave_parallel,
    repeat_heads,
    rotate,
    run_block,
)
from tests.zoo.dims import Build
from tests.zoo.losses import LOSSES
from tests.zoo.mixtures import MixtralSparseMoeBlock, Qwen2MoeSparseMoeBlock
from tests.zoo.mla import LatentAttention
from tests.zoo.parts import part


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a decoder differs from Llama."""

    attention: str = "separate"  # separate | fused | latent
    mlp: str = "separate"  # separate | fused | loop | grouped
    qk_norm: bool = False
    gated: bool = False  # the attention's output is multiplied by a sigmoid gate
    repeat: bool = False  # key and value heads are copied before the attention
    lora: int = 0  # rank of adapters on q and v; the base is frozen
    loss: str = "plain"  # a key of losses.LOSSES


class LoraLinear(nn.Module):
    """A frozen Linear and a trained product of two thin ones."""

    def __init__(self, width: int, out: int, rank: int) -> None:
        super().__init__()
        self.base_layer = nn.Linear(width, out, bias=False)
        self.lora_A = nn.Linear(width, rank, bias=False)
        self.lora_B = nn.Linear(rank, out, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base_layer(x) + self.lora_B(self.lora_A(x)) * 2.0
        return y


class LlamaAttention(nn.Module):
    """q, k and v by Linears of their own or by one; fewer key heads than query heads."""

    def __init__(self, build: Build, layer: int, variant: Variant) -> None:
        super().__init__()
        dims, self.build, self.layer, self.variant = build.dims, build, layer, variant
        ranks, size = dims.tensor_parallel, dims.head_dim
        self.wide, self.thin = dims.heads * size // ranks, dims.key_heads * size // ranks
        if variant.attention == "fused":
            self.qkv_proj = nn.Linear(dims.hidden, self.wide + 2 * self.thin, bias=False)
        elif variant.lora:
            self.q_proj: nn.Module = LoraLinear(dims.hidden, self.wide, variant.lora)
            self.k_proj: nn.Module = nn.Linear(dims.hidden, self.thin, bias=False)
            self.v_proj: nn.Module = LoraLinear(dims.hidden, self.thin, variant.lora)
        else:
            self.q_proj = nn.Linear(dims.hidden, self.wide, bias=False)
            self.k_proj = nn.Linear(dims.hidden, self.thin, bias=False)
            self.v_proj = nn.Linear(dims.hidden, self.thin, bias=False)
        if variant.qk_norm:
            self.q_norm = RMSNorm(size, layer)
            self.k_norm = RMSNorm(size, layer)
        if variant.gated:
            self.gate_proj = nn.Linear(dims.hidden, self.wide, bias=False)
        self.o_proj = nn.Linear(self.wide, dims.hidden, bias=False)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.variant.attention == "fused":
            with part("attention.qkv", self.layer):
                qkv = self.qkv_proj(x)
            q, k, v = qkv.split([self.wide, self.thin, self.thin], dim=-1)
            return q, k, v
        with part("attention.qkv", self.layer):
            return self.q_proj(x), self.k_proj(x), self.v_proj(x)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        size, layer, variant = self.build.dims.head_dim, self.layer, self.variant
        x = enter_parallel(x, self.build)
        with part("attention.other", layer):
            q, k, v = (heads_of(t, size) for t in self._project(x))
        if variant.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, tables, layer), rotate(k, tables, layer)
        if variant.repeat:
            times = q.shape[1] // k.shape[1]
            k, v = repeat_heads(k, times, layer), repeat_heads(v, times, layer)
        y = attend(q, k, v, layer, causal=True, kind=self.build.attention)
        if variant.gated:
            with part("attention.other", layer):
                y = y * torch.sigmoid(self.gate_proj(x))
        with part("attention.output", layer):
            y = self.o_proj(y)
        return leave_parallel(y, self.build)


class LlamaMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        self.build, self.layer, hidden = build, layer, build.dims.hidden
        ffn = build.dims.ffn // build.dims.tensor_parallel
        self.gate_proj = nn.Linear(hidden, ffn, bias=False)
        self.up_proj = nn.Linear(hidden, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, hidden, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        x = enter_parallel(x, self.build)
        with part("mlp.gate", self.layer):
            gate = self.gate_proj(x)
        with part("mlp.activation", self.layer):
            gate = self.act_fn(gate)
        with part("mlp.up", self.layer):
            up = self.up_proj(x)
        with part("mlp.activation", self.layer):
            gate = gate * up
        with part("mlp.down", self.layer):
            y = self.down_proj(gate)
        return leave_parallel(y, self.build)


class FusedMLP(nn.Module):
    """Gate and up by one Linear: a GEMM that is both, called mlp.up."""

    def __init__(self, build: Build, layer: int) -> None:
        super().__init__()
        dims, self.layer = build.dims, layer
        self.gate_up_proj = nn.Linear(dims.hidden, 2 * dims.ffn, bias=False)
        self.down_proj = nn.Linear(dims.ffn, dims.hidden, bias=False)
        self.activation_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        with part("mlp.up", self.layer, strict=False):
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        with part("mlp.activation", self.layer):
            x = up * self.activation_fn(gate)
        with part("mlp.down", self.layer):
            return self.down_proj(x)


MLPS = {
    "separate": LlamaMLP,
    "fused": FusedMLP,
    "loop": MixtralSparseMoeBlock,
    "grouped": Qwen2MoeSparseMoeBlock,
}


class LlamaDecoderLayer(nn.Module):
    def __init__(self, build: Build, layer: int, variant: Variant) -> None:
        super().__init__()
        self.layer = layer
        self.self_attn: nn.Module = (
            LatentAttention(build, layer)
            if variant.attention == "latent"
            else LlamaAttention(build, layer, variant)
        )
        mlp = MLPS[variant.mlp](build, layer)
        self.name = "block_sparse_moe" if variant.mlp == "loop" else "mlp"  # as Mixtral calls it
        self.add_module(self.name, mlp)
        self.input_layernorm = RMSNorm(build.dims.hidden, layer)
        self.post_attention_layernorm = RMSNorm(build.dims.hidden, layer)

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
        with part("other", self.layer):
            mlp = getattr(self, self.name)
            x = add(x, self.self_attn(self.input_layernorm(x), tables), self.layer)
            return add(x, mlp(self.post_attention_layernorm(x)), self.layer)


class LlamaModel(nn.Module):
    def __init__(self, build: Build, variant: Variant) -> None:
        super().__init__()
        dims, self.build = build.dims, build
        turned = dims.head_dim // 3 if variant.attention == "latent" else dims.head_dim
        self.embed_tokens = nn.Embedding(dims.words, dims.hidden)
        self.layers = nn.ModuleList([LlamaDecoderLayer(build, i, variant) for i in range(dims.layers)])
        self.norm = RMSNorm(dims.hidden)
        self.rotary_emb = RotaryEmbedding(turned)

    def forward(self, index: Tensor) -> Tensor:
        with part("embedding"):
            x = self.embed_tokens(index)
        if not x.requires_grad:  # a frozen embedding: what PEFT's enable_input_require_grads does
            x.requires_grad_(True)
        tables = self.rotary_emb(x)
        for layer in self.layers:
            x = run_block(layer, self.build, x, tables)
        normed: Tensor = self.norm(x)
        return normed


class LlamaForCausalLM(nn.Module):
    def __init__(self, build: Build, variant: Variant) -> None:
        super().__init__()
        self.model = LlamaModel(build, variant)
        self.lm_head = nn.Linear(build.dims.hidden, build.dims.words, bias=False)
        self.loss = LOSSES[variant.loss]
        if variant.lora:
            for name, parameter in self.named_parameters():
                parameter.requires_grad_("lora_" in name)

    def forward(self, index: Tensor, target: Tensor) -> Tensor:
        return self.loss(self.model(index), self.lm_head, target)
