"""TransformerEngine's layers as their source has them: autograd functions that hide what they launch.

``transformer_engine/pytorch/module/`` linear.py, layernorm_linear.py, layernorm_mlp.py and
``attention/`` of NVIDIA/TransformerEngine. The library needs CUDA to be installed; these call PyTorch's
operators in the same order, and ``recorded.py`` leaves of them what the library would launch.
"""

# nn.Module.__call__ and autograd.Function.apply have no types.
# mypy: disable-error-code="no-any-return, no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.zoo.parts import part

aten: Any = torch.ops.aten
Gradients = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a model is made of."""

    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 4
    ffn: int = 3584
    layers: int = 3
    vocab: int = 32000
    sequence: int = 1024
    micro_batch: int = 4
    gated: bool = True  # SwiGLU, RMSNorm and rotary positions; else GELU, LayerNorm and biases
    whole: bool = True  # an MLP is one function; else two with the activation between, as Megatron has it
    fp8: bool = False  # operands are cast before each product


LLAMA = Model()
GPT = Model(gated=False, kv_heads=16, ffn=4096, vocab=50304)


def cast(x: Tensor, truth: str, fp8: bool) -> Tensor:
    """A kernel that quantizes, under the name of an operator that nothing else here calls."""
    if not fp8:
        return x
    with part(truth):
        return torch.neg(x)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())


def gradients(g: Tensor, x: Tensor, weight: Tensor, biased: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Of what a product took, of its weight and of its bias."""
    return g @ weight, g.t() @ x, g.sum(0) if biased else None


def normalize(x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    with part("norm"):
        return torch.native_layer_norm(x, [x.shape[-1]], weight, bias, 1e-5)


def norm_gradients(g: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Any) -> Any:
    with part("norm"):
        mask = [True, True, bias is not None]
        return aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, scale, weight, bias, mask)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, inp: Tensor, bias: Tensor | None, truth: str, fp8: bool) -> Tensor:
        x, w = (cast(t, truth, fp8) for t in (inp.reshape(-1, inp.shape[-1]), weight))
        ctx.save_for_backward(x, w)
        ctx.given = truth, fp8, inp.shape, bias is not None
        with part(truth):
            return product(x, w, bias).view(*inp.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        x, w = ctx.saved_tensors
        truth, fp8, shape, biased = ctx.given
        g = cast(grads[0].reshape(-1, grads[0].shape[-1]), truth, fp8)
        with part(truth):
            dx, dw, db = gradients(g, x, w, biased)
        return dw, dx.view(shape), db, None, None


class _LayerNormLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, ln_weight: Tensor, ln_bias: Tensor | None, weight: Tensor, bias: Tensor | None,
        truth: str, fp8: bool,
    ) -> Tensor:  # fmt: skip
        x = inp.reshape(-1, inp.shape[-1])
        normed, mean, scale = normalize(x, ln_weight, ln_bias)
        w = cast(weight, truth, fp8)
        ctx.save_for_backward(x, normed, mean, scale, ln_weight, ln_bias, w)
        ctx.given = truth, fp8, inp.shape, bias is not None
        with part(truth):
            return product(normed, w, bias).view(*inp.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        x, normed, mean, scale, ln_weight, ln_bias, w = ctx.saved_tensors
        truth, fp8, shape, biased = ctx.given
        g = cast(grads[0].reshape(-1, grads[0].shape[-1]), truth, fp8)
        with part(truth):
            dx, dw, db = gradients(g, normed, w, biased)
        dx, *of_norm = norm_gradients(dx, x, mean, scale, ln_weight, ln_bias)
        return (dx.view(shape), *of_norm, dw, db, None, None)


class _LayerNormMLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, inp: Tensor, ln_weight: Tensor, ln_bias: Tensor | None, fc1_weight: Tensor,
        fc1_bias: Tensor | None, fc2_weight: Tensor, fc2_bias: Tensor | None, fp8: bool,
    ) -> Tensor:  # fmt: skip
        x = inp.reshape(-1, inp.shape[-1])
        normed, mean, scale = normalize(x, ln_weight, ln_bias)
        w1 = cast(fc1_weight, "mlp.up", fp8)
        with part("mlp.up"):
            wide = product(normed, w1, fc1_bias)
        with part("mlp.activation"):
            bent = F.glu(wide, -1) if fc1_bias is None else torch.sigmoid(wide)
        w2 = cast(fc2_weight, "mlp.down", fp8)
        ctx.save_for_backward(x, normed, mean, scale, ln_weight, ln_bias, w1, wide, bent, w2)
        ctx.given = fp8, inp.shape, fc1_bias is not None
        with part("mlp.down"):
            return product(bent, w2, fc2_bias).view(inp.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        x, normed, mean, scale, ln_weight, ln_bias, w1, wide, bent, w2 = ctx.saved_tensors
        fp8, shape, biased = ctx.given
        g = cast(grads[0].reshape(-1, shape[-1]), "mlp.down", fp8)
        with part("mlp.down"):
            d_bent, dw2, db2 = gradients(g, bent, w2, biased)
        with part("mlp.activation"):
            d_wide = aten.sigmoid_backward(d_bent, bent) if biased else aten.glu_backward(d_bent, wide, -1)
        d_wide = cast(d_wide, "mlp.up", fp8)
        with part("mlp.up"):
            dx, dw1, db1 = gradients(d_wide, normed, w1, biased)
        dx, *of_norm = norm_gradients(dx, x, mean, scale, ln_weight, ln_bias)
        return (dx.view(shape), *of_norm, dw1, db1, dw2, db2, None)


class FusedRoPEFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        with part("attention.rope"):
            return torch.neg(t)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        with part("attention.rope"):
            return torch.neg(grads[0])


class FusedAttnFunc(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, is_training: bool, max_seqlen_q: int, max_seqlen_kv: int, cu_seqlens_q: Tensor | None,
        cu_seqlens_kv: Tensor | None, q: Tensor, k: Tensor, v: Tensor,
    ) -> Tensor:  # fmt: skip
        heads = [t.permute(1, 2, 0, 3) for t in (q, k, v)]
        with part("attention.core"):
            out, *ctx.rest = aten._scaled_dot_product_flash_attention(*heads, 0.0, True)
        ctx.save_for_backward(*heads, out)
        return out.permute(2, 0, 1, 3)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Gradients:
        q, k, v, out = ctx.saved_tensors
        sums, begin_q, begin_k, most_q, most_k, seed, offset, _ = ctx.rest
        with part("attention.core"):
            of_heads = aten._scaled_dot_product_flash_attention_backward(
                grads[0].permute(1, 2, 0, 3), q, k, v, out, sums, begin_q, begin_k, most_q, most_k, 0.0, True,
                seed, offset,
            )  # fmt: skip
        return (*[None] * 5, *[g.permute(2, 0, 1, 3) for g in of_heads])


class LayerNormLinear(nn.Module):
    """``te.LayerNormLinear``; without ``normed`` ``te.Linear``."""

    def __init__(self, model: Model, width: int, out: int, truth: str, *, normed: bool = True) -> None:
        super().__init__()
        biased = not model.gated
        self.truth, self.fp8 = truth, model.fp8
        self.layer_norm_weight = nn.Parameter(torch.ones(width)) if normed else None
        self.layer_norm_bias = nn.Parameter(torch.ones(width)) if normed and biased else None
        self.weight = nn.Parameter(torch.ones(out, width))
        self.bias = nn.Parameter(torch.ones(out)) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        if self.layer_norm_weight is None:
            return _Linear.apply(self.weight, x, self.bias, self.truth, self.fp8)
        norm = self.layer_norm_weight, self.layer_norm_bias
        return _LayerNormLinear.apply(x, *norm, self.weight, self.bias, self.truth, self.fp8)


class LayerNormMLP(nn.Module):
    """``te.LayerNormMLP``."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        hidden, ffn, biased = model.hidden, model.ffn, not model.gated
        self.fp8 = model.fp8
        self.layer_norm_weight = nn.Parameter(torch.ones(hidden))
        self.layer_norm_bias = nn.Parameter(torch.ones(hidden)) if biased else None
        self.fc1_weight = nn.Parameter(torch.ones(ffn if biased else 2 * ffn, hidden))
        self.fc1_bias = nn.Parameter(torch.ones(ffn)) if biased else None
        self.fc2_weight = nn.Parameter(torch.ones(hidden, ffn))
        self.fc2_bias = nn.Parameter(torch.ones(hidden)) if biased else None

    def forward(self, x: Tensor) -> Tensor:
        first, second = (self.fc1_weight, self.fc1_bias), (self.fc2_weight, self.fc2_bias)
        return _LayerNormMLP.apply(x, self.layer_norm_weight, self.layer_norm_bias, *first, *second, self.fp8)


class MegatronMLP(nn.Module):
    """Two of the library's layers and the activation between (Megatron's core/transformer/mlp.py)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gated = model.gated
        self.linear_fc1 = LayerNormLinear(model, model.hidden, model.ffn * (1 + model.gated), "mlp.up")
        self.linear_fc2 = LayerNormLinear(model, model.ffn, model.hidden, "mlp.down", normed=False)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.linear_fc1(x)
        with part("mlp.activation"):
            if self.gated:
                gate, up = wide.chunk(2, -1)
                wide = F.silu(gate) * up
            else:
                wide = F.gelu(wide)
        return self.linear_fc2(wide)


class MultiheadAttention(nn.Module):
    """``te.MultiheadAttention`` of [S, B, hidden]."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.size = model.hidden // model.heads
        width = self.size * (model.heads + 2 * model.kv_heads)
        self.layernorm_qkv = LayerNormLinear(model, model.hidden, width, "attention.qkv")
        self.proj = LayerNormLinear(model, model.hidden, model.hidden, "attention.output", normed=False)

    def forward(self, x: Tensor) -> Tensor:
        heads, thin, length = self.model.heads, self.model.kv_heads, x.shape[0]
        mixed = self.layernorm_qkv(x).view(*x.shape[:2], heads + 2 * thin, self.size)
        q, k, v = mixed.split([heads, thin, thin], 2)
        if self.model.gated:
            q, k = FusedRoPEFunc.apply(q), FusedRoPEFunc.apply(k)
        out = FusedAttnFunc.apply(True, length, length, None, None, q, k, v)
        with part("attention.other"):
            out = out.reshape(x.shape)
        return self.proj(out)


class TransformerLayer(nn.Module):
    """``te.TransformerLayer``."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.self_attention = MultiheadAttention(model)
        self.mlp = LayerNormMLP(model) if model.whole else MegatronMLP(model)

    def forward(self, x: Tensor) -> Tensor:
        y = self.self_attention(x)
        with part("residual"):
            x = x + y
        y = self.mlp(x)
        with part("residual"):
            return x + y


class GPTModel(nn.Module):
    """A decoder of such layers; a batch is [B, S], everything behind the table [S, B, hidden]."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab, model.hidden)
        self.positions = None if model.gated else nn.Embedding(model.sequence, model.hidden)
        self.layers = nn.ModuleList(TransformerLayer(model) for _ in range(model.layers))
        self.final_norm = nn.LayerNorm(model.hidden)
        self.output_layer = nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        with part("embedding"):
            x = self.embedding(ids)
            if self.positions is not None:
                x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
            x = x.transpose(0, 1).contiguous()
        for layer in self.layers:
            x = layer(x)
        with part("norm"):
            x = self.final_norm(x)
        with part("logits"):
            scores = self.output_layer(x)
        with part("loss"):
            return F.cross_entropy(scores.float().view(-1, scores.shape[-1]), ids.t().reshape(-1))
