"""Transformers as their users write them: plain PyTorch, the names of well-known code, few layers.

Nothing here knows tracelens. Each family is small enough to read and wide enough to run the kernels of
the real model: a layer of GPT-3 2.7B, Llama 8B, BERT-large, ViT-H/14 or a small Mixtral is the same at any
depth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of a model and of the micro-batch it is trained on."""

    hidden: int
    heads: int
    ffn: int
    vocab: int  # classes, for the vision model
    sequence: int
    batch: int
    kv_heads: int | None = None  # None: as many as heads
    experts: int = 8
    patch: int = 14
    image: int = 224

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


class Blocks(nn.ModuleList):
    """The layers, each under activation checkpointing where asked."""

    def run(self, x: Tensor, remember: bool, *more: Tensor) -> Tensor:
        for block in self:
            x = block(x, *more) if remember else checkpoint(block, x, *more, use_reentrant=False)
        return x


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, sequence, width = x.shape
    return x.view(batch, sequence, heads, width // heads).transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


# -- GPT-2 and GPT-3, after nanoGPT -------------------------------------------------------------------


class CausalSelfAttention(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.heads = d.heads
        self.c_attn = nn.Linear(d.hidden, 3 * d.hidden)
        self.c_proj = nn.Linear(d.hidden, d.hidden)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (_heads(part, self.heads) for part in self.c_attn(x).chunk(3, dim=-1))
        return self.c_proj(_merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class MLP(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.c_fc = nn.Linear(d.hidden, d.ffn)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(d.ffn, d.hidden)

    def forward(self, x: Tensor) -> Any:
        return self.c_proj(self.gelu(self.c_fc(x)))


class GptBlock(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.ln_1 = nn.LayerNorm(d.hidden)
        self.attn = CausalSelfAttention(d)
        self.ln_2 = nn.LayerNorm(d.hidden)
        self.mlp = MLP(d)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, d: Dims, layers: int, remember: bool = True):
        super().__init__()
        self.remember = remember
        self.wte = nn.Embedding(d.vocab, d.hidden)
        self.wpe = nn.Embedding(d.sequence, d.hidden)
        self.h = Blocks(GptBlock(d) for _ in range(layers))
        self.ln_f = nn.LayerNorm(d.hidden)
        self.lm_head = nn.Linear(d.hidden, d.vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, ids: Tensor) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        return self.lm_head(self.ln_f(self.h.run(x, self.remember)))


# -- Llama, after Hugging Face's names ----------------------------------------------------------------


class RMSNorm(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Any:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaAttention(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.heads, self.kv_heads = d.heads, d.kv_heads or d.heads
        self.q_proj = nn.Linear(d.hidden, d.hidden, bias=False)
        self.k_proj = nn.Linear(d.hidden, self.kv_heads * d.head_dim, bias=False)
        self.v_proj = nn.Linear(d.hidden, self.kv_heads * d.head_dim, bias=False)
        self.o_proj = nn.Linear(d.hidden, d.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        q = rotate(_heads(self.q_proj(x), self.heads), cos, sin)
        k = rotate(_heads(self.k_proj(x), self.kv_heads), cos, sin)
        v = _heads(self.v_proj(x), self.kv_heads)
        if self.kv_heads != self.heads:
            k, v = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (k, v))
        return self.o_proj(_merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class LlamaMLP(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.gate_proj = nn.Linear(d.hidden, d.ffn, bias=False)
        self.up_proj = nn.Linear(d.hidden, d.ffn, bias=False)
        self.down_proj = nn.Linear(d.ffn, d.hidden, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Expert(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.w1 = nn.Linear(d.hidden, d.ffn, bias=False)
        self.w2 = nn.Linear(d.ffn, d.hidden, bias=False)
        self.w3 = nn.Linear(d.hidden, d.ffn, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class SparseMoe(nn.Module):
    """Two experts per token, one after the other as Mixtral's first code ran them."""

    def __init__(self, d: Dims):
        super().__init__()
        self.gate = nn.Linear(d.hidden, d.experts, bias=False)
        self.experts = nn.ModuleList(Expert(d) for _ in range(d.experts))

    def forward(self, x: Tensor) -> Any:
        tokens = x.flatten(0, -2)
        weights, chosen = torch.topk(self.gate(tokens).float().softmax(-1), 2, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(tokens.dtype)
        out = torch.zeros_like(tokens)
        for at, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == at)
            out.index_add_(0, rows, expert(tokens[rows]).to(out.dtype) * weights[rows, place, None])
        return out.view_as(x)


class LlamaDecoderLayer(nn.Module):
    def __init__(self, d: Dims, moe: bool):
        super().__init__()
        self.input_layernorm = RMSNorm(d.hidden)
        self.self_attn = LlamaAttention(d)
        self.post_attention_layernorm = RMSNorm(d.hidden)
        if moe:
            self.block_sparse_moe = SparseMoe(d)
        else:
            self.mlp = LlamaMLP(d)
        self.moe = moe

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        feed = self.block_sparse_moe if self.moe else self.mlp
        return x + feed(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, d: Dims, layers: int, remember: bool = True, moe: bool = False):
        super().__init__()
        self.remember = remember
        self.embed_tokens = nn.Embedding(d.vocab, d.hidden)
        self.layers = Blocks(LlamaDecoderLayer(d, moe) for _ in range(layers))
        self.norm = RMSNorm(d.hidden)
        self.lm_head = nn.Linear(d.hidden, d.vocab, bias=False)
        places = torch.arange(d.sequence).float()
        angles = torch.outer(places, 1e4 ** -(torch.arange(0, d.head_dim, 2) / d.head_dim)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Any:
        x = self.embed_tokens(ids)
        assert isinstance(self.cos, Tensor) and isinstance(self.sin, Tensor)
        return self.lm_head(self.norm(self.layers.run(x, self.remember, self.cos, self.sin)))


# -- BERT, post-norm, with its masked-language-model head ---------------------------------------------


class BertSelfAttention(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.heads = d.heads
        self.query, self.key, self.value = (nn.Linear(d.hidden, d.hidden) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        q, k, v = (_heads(of(x), self.heads) for of in (self.query, self.key, self.value))
        return _merge(F.scaled_dot_product_attention(q, k, v))


class BertLayer(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.attention = BertSelfAttention(d)
        self.attention_output = nn.Linear(d.hidden, d.hidden)
        self.attention_norm = nn.LayerNorm(d.hidden)
        self.intermediate = nn.Linear(d.hidden, d.ffn)
        self.output = nn.Linear(d.ffn, d.hidden)
        self.output_norm = nn.LayerNorm(d.hidden)

    def forward(self, x: Tensor) -> Any:
        x = self.attention_norm(x + self.attention_output(self.attention(x)))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self, d: Dims, layers: int, remember: bool = True):
        super().__init__()
        self.remember = remember
        self.word_embeddings = nn.Embedding(d.vocab, d.hidden)
        self.position_embeddings = nn.Embedding(d.sequence, d.hidden)
        self.embeddings_norm = nn.LayerNorm(d.hidden)
        self.layer = Blocks(BertLayer(d) for _ in range(layers))
        self.transform = nn.Linear(d.hidden, d.hidden)
        self.transform_norm = nn.LayerNorm(d.hidden)
        self.decoder = nn.Linear(d.hidden, d.vocab)
        self.decoder.weight = self.word_embeddings.weight
        nn.init.normal_(self.word_embeddings.weight, std=0.02)

    def forward(self, ids: Tensor) -> Any:
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.embeddings_norm(self.word_embeddings(ids) + self.position_embeddings(places))
        x = self.layer.run(x, self.remember)
        return self.decoder(self.transform_norm(F.gelu(self.transform(x))))


# -- ViT, after timm's names --------------------------------------------------------------------------


class VitAttention(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.heads = d.heads
        self.qkv = nn.Linear(d.hidden, 3 * d.hidden)
        self.proj = nn.Linear(d.hidden, d.hidden)

    def forward(self, x: Tensor) -> Any:
        q, k, v = (_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        return self.proj(_merge(F.scaled_dot_product_attention(q, k, v)))


class VitMlp(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.fc1 = nn.Linear(d.hidden, d.ffn)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(d.ffn, d.hidden)

    def forward(self, x: Tensor) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class VitBlock(nn.Module):
    def __init__(self, d: Dims):
        super().__init__()
        self.norm1 = nn.LayerNorm(d.hidden)
        self.attn = VitAttention(d)
        self.norm2 = nn.LayerNorm(d.hidden)
        self.mlp = VitMlp(d)

    def forward(self, x: Tensor) -> Any:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self, d: Dims, layers: int, remember: bool = True):
        super().__init__()
        self.remember = remember
        patches = (d.image // d.patch) ** 2
        self.patch_embed = nn.Conv2d(3, d.hidden, d.patch, d.patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d.hidden))
        self.pos_embed = nn.Parameter(torch.randn(1, patches + 1, d.hidden) / math.sqrt(d.hidden))
        self.blocks = Blocks(VitBlock(d) for _ in range(layers))
        self.norm = nn.LayerNorm(d.hidden)
        self.head = nn.Linear(d.hidden, d.vocab)

    def forward(self, images: Tensor) -> Any:
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(len(x), -1, -1).to(x.dtype), x), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks.run(x, self.remember))[:, 0])


# -- fp8 products -------------------------------------------------------------------------------------


def _fp8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scaled by the tensor's own largest value; the second is what a product is multiplied with again."""
    most = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=1e-12) / most
    return (x.float() / scale).clamp(-most, most).to(dtype), scale


def _product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, fast: bool) -> Tensor:
    """a[M,K] @ b[N,K].T by ``torch._scaled_mm``, which wants a by rows and b by columns."""
    out = torch._scaled_mm(
        a.contiguous(),
        b.contiguous().t(),
        scale_a=a_scale,
        scale_b=b_scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    assert isinstance(out, Tensor)
    return out


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        x8, x_scale = _fp8(x, torch.float8_e4m3fn)
        w8, w_scale = _fp8(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, w8, w_scale)
        return _product(x8, w8, x_scale, w_scale, True)

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x8, x_scale, w8, w_scale = ctx.saved_tensors
        g8, g_scale = _fp8(gradient, torch.float8_e5m2)
        dx = _product(g8, w8.t(), g_scale, w_scale, False)
        dw = _product(g8.t(), x8.t(), g_scale, x_scale, False)
        return dx, dw.float()


class Fp8Linear(nn.Linear):
    """Forward e4m3 x e4m3, gradients e5m2 x e4m3, one scale per tensor."""

    def forward(self, x: Tensor) -> Any:
        out: Tensor = _Fp8Product.apply(x.flatten(0, -2), self.weight)  # type: ignore[no-untyped-call]
        out = out.view(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias.to(out.dtype)


def use_fp8(model: nn.Module) -> None:
    """Every linear layer inside the blocks; the head stays as it is."""
    for blocks in (module for module in model.modules() if isinstance(module, Blocks)):
        for linear in (inner for inner in blocks.modules() if type(inner) is nn.Linear):
            linear.__class__ = Fp8Linear
