"""Elementwise ops, norms, embedding and loss: forward event trees and their backward nodes."""

from __future__ import annotations

from tests.synthetic import gpu
from tests.synthetic.autograd import apply
from tests.synthetic.recorder import Recorder
from tests.synthetic.values import (
    BF16,
    DTYPE_CODE,
    F32,
    ITEM_SIZE,
    NUMBER,
    Argument,
    Literal,
    Shape,
    Value,
    like,
    tensor,
)
from tests.synthetic.views import Grads, cast, only, zeros


def _pointwise(rec: Recorder, kind: str, x: Value) -> None:
    rec.launch(gpu.pointwise(kind, x.elements, ITEM_SIZE[x.dtype]))


def _broadcast(a: Value, b: Value) -> Value:
    pad = (1,) * (len(a.shape) - len(b.shape)) + b.shape
    other = (1,) * (len(b.shape) - len(a.shape)) + a.shape
    shape = tuple(max(p, q) for p, q in zip(pad, other, strict=True))
    return (
        like(shape, a if a.shape == shape else b) if shape in (a.shape, b.shape) else tensor(shape, a.dtype)
    )


def add(rec: Recorder, a: Value, b: Value) -> Value:
    """a + b; the gradient passes through to both."""
    sequence, out = rec.sequence, _broadcast(a, b)
    with rec.op("aten::add", (a, b, 1), sequence=sequence):
        _pointwise(rec, "add", out)
        return apply(rec, "AddBackward0", sequence, [a, b], [out], lambda g: [g[0], g[0]])[0]


def mul(rec: Recorder, a: Value, b: Value) -> Value:
    """a * b."""
    sequence, out = rec.sequence, _broadcast(a, b)
    with rec.op("aten::mul", (a, b), sequence=sequence):
        _pointwise(rec, "mul", out)

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            results: Grads = []
            for mine, other in ((a, b), (b, a)):
                if mine.node is None:
                    results.append(None)
                    continue
                with rec.op("aten::mul", (grad, other)):
                    _pointwise(rec, "mul", out)
                results.append(tensor(out.shape, out.dtype))
            return results

        return apply(rec, "MulBackward0", sequence, [a, b], [out], backward)[0]


def unary(
    rec: Recorder, name: str, kind: str, node: str, x: Value, *, extra: tuple[Literal, ...] = ()
) -> Value:
    """gelu, silu, neg: one kernel forward, one backward."""
    sequence, out = rec.sequence, like(x.shape, x)
    backward_name = "aten::neg" if kind == "neg" else f"{name}_backward"
    with rec.op(name, (x, *extra), sequence=sequence):
        _pointwise(rec, kind, x)

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            inputs: tuple[Argument, ...] = (grad,) if kind == "neg" else (grad, x, *extra)
            with rec.op(backward_name, inputs):
                _pointwise(rec, "neg" if kind == "neg" else f"{kind}_backward", x)
            return [tensor(x.shape, x.dtype)]

        return apply(rec, node, sequence, [x], [out], backward)[0]


def gelu(rec: Recorder, x: Value) -> Value:
    return unary(rec, "aten::gelu", "gelu", "GeluBackward0", x, extra=(Literal("", ""),))


def silu(rec: Recorder, x: Value) -> Value:
    return unary(rec, "aten::silu", "silu", "SiluBackward0", x)


def neg(rec: Recorder, x: Value) -> Value:
    return unary(rec, "aten::neg", "neg", "NegBackward0", x)


def scale(rec: Recorder, x: Value) -> Value:
    """x * python_number."""
    sequence, out = rec.sequence, like(x.shape, x)
    with rec.op("aten::mul", (x, NUMBER), sequence=sequence):
        _pointwise(rec, "scale", x)

        def backward(grads: Grads) -> Grads:
            with rec.op("aten::mul", (only(grads), NUMBER)):
                _pointwise(rec, "scale", x)
            return [tensor(x.shape, x.dtype)]

        return apply(rec, "MulBackward0", sequence, [x], [out], backward)[0]


def layer_norm(rec: Recorder, x: Value, weight: Value, bias: Value) -> Value:
    """nn.LayerNorm over the last dimension."""
    sequence, (*rows, hidden) = rec.sequence, x.shape
    count = x.elements // hidden
    stat = tensor((*rows, 1), F32)
    shape = (hidden,)
    with (
        rec.op("aten::layer_norm", (x, shape, weight, bias, 1e-5, True), sequence=sequence),
        rec.op("aten::native_layer_norm", (x, shape, weight, bias, 1e-5), sequence=sequence),
    ):
        rec.leaf("aten::empty", x.shape, 15, 0, None, None, 0)
        rec.leaf("aten::empty", (count,), 6, 0, None, None, None)
        rec.leaf("aten::empty", (count,), 6, 0, None, None, None)
        rec.launch(gpu.named("layer_norm", 4 * x.elements, blocks=count, threads=128))
        rec.leaf("aten::view", tensor((count,), F32), (*rows, 1))
        rec.leaf("aten::view", tensor((count,), F32), (*rows, 1))

        def backward(grads: Grads) -> Grads:
            inputs = (only(grads), x, shape, stat, stat, weight, bias, Literal("[True, True, True]"))
            with rec.op("aten::native_layer_norm_backward", inputs):
                rec.leaf("aten::empty", x.shape, 15, 0, None, None, 0)
                rec.launch(gpu.named("layer_norm_input", 6 * x.elements, blocks=count, threads=128))
                rec.leaf("aten::empty", shape, 15, 0, None, None, 0)
                rec.leaf("aten::empty", shape, 15, 0, None, None, 0)
                rec.launch(gpu.named("layer_norm_weight", 4 * x.elements, blocks=hidden // 32, factor=1.6))
            return [tensor(x.shape), tensor(shape), tensor(shape)]

        return apply(
            rec, "NativeLayerNormBackward0", sequence, [x, weight, bias], [tensor(x.shape)], backward
        )[0]


def rms_norm(rec: Recorder, x: Value, weight: Value) -> Value:
    """The eager RMSNorm of Llama in Hugging Face: float32, pow, mean, add, rsqrt, two multiplications."""
    wide = cast(rec, x, F32)
    row: Shape = (*x.shape[:-1], 1)
    squared = _step(rec, "aten::pow", "pow", "PowBackward0", wide, wide.shape, (Literal("2"),))
    mean = _step(rec, "aten::mean", "mean", "MeanBackward1", squared, row, ((-1,), True, None))
    shifted = _step(rec, "aten::add", "add_scalar", "AddBackward0", mean, row, (NUMBER, 1))
    inverse = _step(rec, "aten::rsqrt", "rsqrt", "RsqrtBackward0", shifted, row, ())
    return mul(rec, weight, cast(rec, mul(rec, wide, inverse), BF16))


def _step(rec: Recorder, name: str, kind: str, node: str, x: Value, shape: Shape,
          extra: tuple[Argument, ...]) -> Value:  # fmt: skip
    """One elementwise or reducing op of the RMSNorm in float32."""
    sequence, out = rec.sequence, tensor(shape, F32)
    with rec.op(name, (x, *extra), sequence=sequence):
        if kind == "mean":
            rec.launch(gpu.reduction(x.elements, out.elements, 4))
        else:
            _pointwise(rec, kind, out)

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            if kind == "mean":
                wide = Value(x.shape, (*grad.strides[:-1], 0), F32)
                rec.leaf("aten::expand", grad, x.shape, False)
                with rec.op("aten::div", (wide, Literal(str(x.shape[-1])))):
                    _pointwise(rec, "scale", x)
            elif kind == "pow":
                with rec.op("aten::pow", (x, Literal("1."))):
                    _pointwise(rec, "pow", x)
                with rec.op("aten::mul", (x, Literal("2."))):
                    _pointwise(rec, "scale", x)
                with rec.op("aten::mul", (grad, x)):
                    _pointwise(rec, "mul", x)
            elif kind == "rsqrt":
                with rec.op("aten::pow", (out, Literal("3"))):
                    _pointwise(rec, "pow", out)
                with rec.op("aten::mul", (out, Literal("-0.5"))):
                    _pointwise(rec, "scale", out)
                with rec.op("aten::mul", (grad, out)):
                    _pointwise(rec, "mul", out)
            return [tensor(x.shape, F32)]

        return apply(rec, node, sequence, [x], [out], backward)[0]


def embedding(rec: Recorder, weight: Value, index: Value) -> Value:
    """nn.Embedding; the backward sorts the indices and sums rows."""
    sequence, hidden, count = rec.sequence, weight.shape[1], index.elements
    flat, out = tensor((count,), index.dtype), tensor((*index.shape, hidden))
    with rec.op("aten::embedding", (weight, index, -1, False, False), sequence=sequence):
        if len(index.shape) > 1:
            with rec.op("aten::reshape", (index, (-1,))):
                rec.leaf("aten::view", index, (-1,))
        with rec.op("aten::index_select", (weight, 0, flat)):
            rec.leaf("aten::empty", (0,), 15, 0, None, None, None)
            rec.leaf("aten::resize_", tensor((0,)), (count, hidden), None)
            rec.launch(gpu.named("gather", 4 * out.elements, blocks=count))
        if len(index.shape) > 1:
            rec.leaf("aten::view", tensor((count, hidden)), out.shape)

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            with (
                rec.op("aten::embedding_backward", (grad, index, weight.shape[0], -1, False, False)),
                rec.op("aten::embedding_dense_backward", (grad, index, weight.shape[0], -1, False)),
            ):
                zeros(rec, tensor(weight.shape))
                rec.leaf("aten::view", grad, (count, hidden))
                rec.launch(gpu.named("sort_histogram", 8 * count, blocks=count // 4096))
                rec.launch(gpu.named("sort_onesweep", 32 * count, blocks=count // 4096))
                rec.launch(gpu.named("embedding_weight", 6 * out.elements, blocks=count // 8))
                rec.launch(gpu.named("embedding_scatter", 6 * out.elements, blocks=count // 8))
            return [tensor(weight.shape)]

        return apply(rec, "EmbeddingBackward0", sequence, [weight], [out], backward)[0]


def cross_entropy(rec: Recorder, logits: Value, target: Value) -> Value:
    """F.cross_entropy of [tokens, vocabulary]."""
    sequence, (count, _), code = rec.sequence, logits.shape, DTYPE_CODE[logits.dtype]
    size, kind = ITEM_SIZE[logits.dtype], logits.dtype
    extras = (None, 1, -100)
    with rec.op("aten::cross_entropy_loss", (logits, target, *extras, 0.0), sequence=sequence):
        with rec.op("aten::log_softmax", (logits, 1, code), sequence=sequence):
            rec.leaf("aten::to", logits, code, 0, None, None, False, False, None, sequence=sequence)
            with rec.op("aten::_log_softmax", (logits, 1, False), sequence=sequence):
                moved = size * logits.elements
                rec.launch(gpu.named("log_softmax", 3 * moved, dtype=kind, blocks=count, threads=1024))

                def softmax(grads: Grads) -> Grads:
                    with rec.op("aten::_log_softmax_backward_data", (only(grads), logits, 1, code)):
                        work = gpu.named(
                            "log_softmax_backward", 4 * moved, dtype=kind, blocks=count, threads=1024
                        )
                        rec.launch(work)
                    return [tensor(logits.shape, kind)]

                out = tensor(logits.shape, kind)
                probs = apply(rec, "LogSoftmaxBackward0", sequence, [logits], [out], softmax)[0]
        sequence, inputs = rec.sequence, (probs, target, *extras)
        with (
            rec.op("aten::nll_loss_nd", inputs, sequence=sequence),
            rec.op("aten::nll_loss", inputs, sequence=sequence),
            rec.op("aten::nll_loss_forward", inputs, sequence=sequence),
        ):
            rec.launch(gpu.named("nll_loss", 10 * count, dtype=kind, threads=1024))

            def loss(grads: Grads) -> Grads:
                with rec.op("aten::nll_loss_backward", (only(grads), probs, target, *extras, None)):
                    full = tensor(probs.shape, kind)
                    with rec.op("aten::zero_", (full,)), rec.op("aten::fill_", (full, 0)):
                        _pointwise(rec, "fill", full)
                    rec.launch(gpu.named("nll_loss_backward", 10 * count, dtype=kind, threads=1024))
                return [full]

            return apply(rec, "NllLossBackward0", sequence, [probs], [tensor((), kind)], loss)[0]
