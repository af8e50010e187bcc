"""The two model families as module trees: who calls which op, under which frame and name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.synthetic import gpu
from tests.synthetic import math_ops as ops
from tests.synthetic.autograd import Leaf, parameter
from tests.synthetic.matmul import flash_attention, linear, math_attention
from tests.synthetic.recorder import Recorder
from tests.synthetic.spec import ModelSpec
from tests.synthetic.values import F32, I64, Value, tensor
from tests.synthetic.views import cast, cat, contiguous_copy, half, repeat_heads, split, transpose, view

_SOURCES = {  # where the forward of a class lies, for its Python frame
    "Linear": "torch/nn/modules/linear.py(130): forward",
    "Embedding": "torch/nn/modules/sparse.py(188): forward",
    "LayerNorm": "torch/nn/modules/normalization.py(227): forward",
    "GELU": "torch/nn/modules/activation.py(823): forward",
    "SiLU": "torch/nn/modules/activation.py(473): forward",
}


class Model:
    """Parameters and the forward pass of a ModelSpec."""

    def __init__(self, rec: Recorder, spec: ModelSpec, *, attention: str) -> None:
        self.rec, self.spec, self.attention = rec, spec, attention
        self.leaves: list[Leaf] = []
        self._parameters: dict[str, Value] = {}

    def parameter(self, name: str, *shape: int) -> Value:
        """The parameter of that name, made on first use inside the place that owns it."""
        if name not in self._parameters:
            value = parameter(self.rec, name, shape)
            assert isinstance(value.node, Leaf)
            self._parameters[name] = value
            self.leaves.append(value.node)
        return self._parameters[name]

    @contextmanager
    def module(
        self, kind: str, name: str, component: str = "other", layer: int | None = None
    ) -> Iterator[None]:
        """Call of an nn.Module: its frames, its named range if asked for, and the truth inside."""
        rec = self.rec
        layer = rec.where.layer if layer is None else layer
        source = _SOURCES.get(kind, f"model.py({sum(map(ord, kind))}): forward")
        with (
            rec.at(component=component, module=name or None, layer=layer),
            rec.frame("", module=(kind, name)),
            rec.frame("torch/nn/modules/module.py(1782): _call_impl"),
            rec.frame(source),
        ):
            if rec.options.ranges and name:
                with rec.annotation(name):
                    yield
            else:
                yield

    def linear(self, name: str, component: str, x: Value, out: int, *, bias: bool, shared: str = "") -> Value:
        with self.module("Linear", name, component):
            weight = self.parameter(shared or f"{name}.weight", out, x.shape[-1])
            offset = self.parameter(f"{name}.bias", out) if bias else None
            with self.rec.frame("<built-in function linear>"):
                return linear(self.rec, x, weight, offset)

    def norm(self, name: str, x: Value) -> Value:
        size = x.shape[-1]
        if self.spec.family == "llama":
            with self.module("LlamaRMSNorm", name, "norm"):
                return ops.rms_norm(self.rec, x, self.parameter(f"{name}.weight", size))
        with self.module("LayerNorm", name, "norm"):
            weight, bias = self.parameter(f"{name}.weight", size), self.parameter(f"{name}.bias", size)
            return ops.layer_norm(self.rec, x, weight, bias)

    def embedding(self, name: str, rows: int, index: Value) -> Value:
        with self.module("Embedding", name, "embedding"):
            return ops.embedding(self.rec, self.parameter(f"{name}.weight", rows, self.spec.hidden), index)

    def heads(self, x: Value, count: int) -> Value:
        """[b, s, count * d] -> [b, count, s, d]."""
        b, s, _ = x.shape
        wide = _strided_view(self.rec, x, (b, s, count, self.spec.head_dim))
        return transpose(self.rec, wide, 1, 2)

    def attend(self, q: Value, k: Value, v: Value) -> Value:
        """Attention and the way back to [b, s, hidden]."""
        rec, (b, h, s, d) = self.rec, q.shape
        core = flash_attention if self.attention == "flash" else math_attention
        y = transpose(rec, core(rec, q, k, v), 1, 2)
        if not y.dense:
            y = contiguous_copy(rec, y)
        return view(rec, y, (b, s, h * d))

    def loss(self, logits: Value, target: Value) -> Value:
        spec, rec = self.spec, self.rec
        with rec.at(component="loss", module=rec.where.module):
            flat = view(rec, logits, (spec.tokens, spec.vocab), asked=(-1, spec.vocab))
            if spec.family == "llama":
                flat = cast(rec, flat, F32)
            rec.leaf("aten::view", target, (-1,), sequence=rec.sequence)
            return ops.cross_entropy(rec, flat, tensor((spec.tokens,), I64))

    def forward(self, index: Value, target: Value) -> Value:
        with self.rec.at(phase="forward"):
            if self.spec.family == "gpt2":
                return self._gpt2(index, target)
            return self._llama(index, target)

    # -- GPT-2 -------------------------------------------------------------------------------------

    def _gpt2(self, index: Value, target: Value) -> Value:
        rec, spec = self.rec, self.spec
        with self.module("GPT", ""):
            with rec.at(component="embedding"):
                size, empty = (spec.sequence,), tensor((0,), I64)
                with rec.op("aten::arange", (0, spec.sequence, 4, None, None, False)):
                    rec.leaf("aten::empty", (0,), 4, None, None, False, None)
                    with rec.op("aten::arange", (0, spec.sequence, 1, empty)):
                        rec.leaf("aten::resize_", empty, size, None)
                        rec.launch(
                            gpu.named("arange", 8 * spec.sequence, blocks=spec.sequence // 64, threads=64)
                        )
            tokens = self.embedding("transformer.wte", spec.vocab, index)
            places = self.embedding("transformer.wpe", spec.sequence, tensor((spec.sequence,), I64))
            with rec.at(component="embedding", module="transformer"):
                x = ops.add(rec, tokens, places)
            for i in range(spec.layers):
                x = self._gpt2_block(i, x)
            x = self.norm("transformer.ln_f", x)
            shared = "transformer.wte.weight" if spec.tied else ""
            logits = self.linear("lm_head", "logits", x, spec.vocab, bias=False, shared=shared)
            return self.loss(logits, target)

    def _gpt2_block(self, i: int, x: Value) -> Value:
        rec, spec, base = self.rec, self.spec, f"transformer.h.{i}"
        with self.module("Block", base, layer=i):
            normed = self.norm(f"{base}.ln_1", x)
            with self.module("CausalSelfAttention", f"{base}.attn", "attention.other"):
                qkv = self.linear(
                    f"{base}.attn.c_attn", "attention.qkv", normed, 3 * spec.hidden, bias=spec.bias
                )
                q, k, v = (self.heads(part, spec.heads) for part in split(rec, qkv, spec.hidden, 2))
                y = self.attend(q, k, v)
                y = self.linear(f"{base}.attn.c_proj", "attention.output", y, spec.hidden, bias=spec.bias)
            with rec.at(component="residual", module=base):
                x = ops.add(rec, x, y)
            normed = self.norm(f"{base}.ln_2", x)
            with self.module("MLP", f"{base}.mlp", "mlp.other"):
                up = self.linear(f"{base}.mlp.c_fc", "mlp.up", normed, spec.ffn_size, bias=spec.bias)
                with self.module("GELU", f"{base}.mlp.gelu", "mlp.activation"):
                    up = ops.gelu(rec, up)
                y = self.linear(f"{base}.mlp.c_proj", "mlp.down", up, spec.hidden, bias=spec.bias)
            with rec.at(component="residual", module=base):
                return ops.add(rec, x, y)

    # -- Llama -------------------------------------------------------------------------------------

    def _llama(self, index: Value, target: Value) -> Value:
        spec = self.spec
        with self.module("LlamaForCausalLM", ""):
            with self.module("LlamaModel", "model"):
                x = self.embedding("model.embed_tokens", spec.vocab, index)
                for i in range(spec.layers):
                    x = self._llama_layer(i, x)
                x = self.norm("model.norm", x)
            shared = "model.embed_tokens.weight" if spec.tied else ""
            logits = self.linear("lm_head", "logits", x, spec.vocab, bias=False, shared=shared)
            return self.loss(logits, target)

    def _llama_layer(self, i: int, x: Value) -> Value:
        rec, spec, base = self.rec, self.spec, f"model.layers.{i}"
        width = spec.key_heads * spec.head_dim
        with self.module("LlamaDecoderLayer", base, layer=i):
            normed = self.norm(f"{base}.input_layernorm", x)
            here = f"{base}.self_attn"
            with self.module("LlamaAttention", here, "attention.other"):
                q = self.linear(f"{here}.q_proj", "attention.qkv", normed, spec.hidden, bias=False)
                q = self.heads(q, spec.heads)
                k = self.heads(
                    self.linear(f"{here}.k_proj", "attention.qkv", normed, width, bias=False), spec.key_heads
                )
                v = self.heads(
                    self.linear(f"{here}.v_proj", "attention.qkv", normed, width, bias=False), spec.key_heads
                )
                q, k = self._rotate(q), self._rotate(k)
                if spec.key_heads != spec.heads:
                    k = repeat_heads(rec, k, spec.heads // spec.key_heads)
                    v = repeat_heads(rec, v, spec.heads // spec.key_heads)
                y = self.attend(q, k, v)
                y = self.linear(f"{here}.o_proj", "attention.output", y, spec.hidden, bias=False)
            with rec.at(component="residual", module=base):
                x = ops.add(rec, x, y)
            normed = self.norm(f"{base}.post_attention_layernorm", x)
            with self.module("LlamaMLP", f"{base}.mlp", "mlp.other"):
                gate = self.linear(f"{base}.mlp.gate_proj", "mlp.gate", normed, spec.ffn_size, bias=False)
                with self.module("SiLU", f"{base}.mlp.act_fn", "mlp.activation"):
                    gate = ops.silu(rec, gate)
                up = self.linear(f"{base}.mlp.up_proj", "mlp.up", normed, spec.ffn_size, bias=False)
                with rec.at(component="mlp.activation"):
                    gated = ops.mul(rec, gate, up)
                y = self.linear(f"{base}.mlp.down_proj", "mlp.down", gated, spec.hidden, bias=False)
            with rec.at(component="residual", module=base):
                return ops.add(rec, x, y)

    def _rotate(self, x: Value) -> Value:
        """apply_rotary_pos_emb: x * cos + rotate_half(x) * sin."""
        rec = self.rec
        table = tensor((1, 1, self.spec.sequence, self.spec.head_dim))
        with rec.at(component="attention.rope"):
            straight = ops.mul(rec, x, table)
            first, second = half(rec, x, 3, second=False), half(rec, x, 3, second=True)
            turned = ops.mul(rec, cat(rec, [ops.neg(rec, second), first], 3), table)
            return ops.add(rec, straight, turned)


def _strided_view(rec: Recorder, x: Value, shape: tuple[int, int, int, int]) -> Value:
    """view() that splits the last dimension, of a tensor whose rows may lie apart."""
    out = view(rec, x, shape)
    b_stride, s_stride, _ = x.strides
    return Value(out.shape, (b_stride, s_stride, shape[3], 1), out.dtype, out.node, out.slot)
