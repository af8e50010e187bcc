"""Linear layers, batched products and attention: the ops whose kernels are GEMMs."""

from __future__ import annotations

from tests.synthetic import gpu
from tests.synthetic.autograd import apply
from tests.synthetic.math_ops import scale
from tests.synthetic.recorder import Recorder
from tests.synthetic.values import BOOL, F32, Literal, Value, tensor
from tests.synthetic.views import (
    Grads,
    cast,
    expand_noop,
    only,
    plain_clone,
    plain_t,
    plain_transpose,
    reshape,
    t,
    transpose,
    view,
)


def _mm(rec: Recorder, a: Value, b: Value, *, role: str, layout: str) -> Value:
    """aten::mm inside a backward node."""
    (m, k), n = a.shape, b.shape[1]
    with rec.op("aten::mm", (a, b)):
        _launch(rec, m, n, k, role=role, layout=layout)
    return tensor((m, n), a.dtype)


def _launch(rec: Recorder, m: int, n: int, k: int, *, role: str, layout: str) -> None:
    # Row lengths in memory of a, b and out: TN reads W[n,k], NN reads W[k,n] as stored, NT reads the
    # gradient [k,m] and the activation [k,n].
    rows = {"TN": (k, k, n), "NN": (k, n, n), "NT": (m, n, n)}[layout]
    rec.launch(
        gpu.gemm(m, n, k, layout=layout, rows=rows),
        role=role,
        shape=(m, n, k),
        batch=1,
        flops=2.0 * m * n * k,
    )


def linear(rec: Recorder, x: Value, weight: Value, bias: Value | None) -> Value:
    """nn.Linear on [batch, sequence, features]: addmm on the flattened rows with a bias, matmul without."""
    (b, s, k), n = x.shape, weight.shape[0]
    with rec.op("aten::linear", (x, weight, bias), sequence=rec.sequence):
        if bias is not None:
            flat = view(rec, x, (b * s, k))
            out = _addmm(rec, flat, t(rec, weight), bias)
            return view(rec, out, (b, s, n))
        wt = t(rec, weight)
        with rec.op("aten::matmul", (x, wt), sequence=rec.sequence):
            flat = reshape(rec, x, (b * s, k))
            sequence = rec.sequence
            with rec.op("aten::mm", (flat, wt), sequence=sequence):
                _launch(rec, b * s, n, k, role="forward", layout="TN")

                def backward(grads: Grads) -> Grads:
                    grad = only(grads)
                    weight_grad = _mm(rec, plain_t(rec, grad), flat, role="wgrad", layout="NT")
                    plain_t(rec, weight_grad)
                    plain_t(rec, wt)
                    return [_mm(rec, grad, tensor((n, k)), role="dgrad", layout="NN"), tensor((k, n))]

                out = apply(rec, "MmBackward0", sequence, [flat, wt], [tensor((b * s, n))], backward)[0]
            return view(rec, out, (b, s, n), unsafe=True)


def _addmm(rec: Recorder, x: Value, wt: Value, bias: Value) -> Value:
    (m, k), n = x.shape, wt.shape[1]
    sequence = rec.sequence
    with rec.op("aten::addmm", (bias, x, wt, 1, 1), sequence=sequence):
        _launch(rec, m, n, k, role="forward", layout="TN")  # the bias is the GEMM's epilogue

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            plain_t(rec, wt)
            data = _mm(rec, grad, tensor((n, k)), role="dgrad", layout="NN")
            weight_grad = _mm(rec, plain_t(rec, grad), x, role="wgrad", layout="NT")
            plain_t(rec, weight_grad)
            return [tensor((m, n)), data, tensor((k, n))]  # the engine sums the first down to the bias

        return apply(rec, "AddmmBackward0", sequence, [bias, x, wt], [tensor((m, n))], backward)[0]


def _product(rec: Recorder, a: Value, b: Value, component: str) -> Value:
    """aten::bmm of [batch, m, k] and [batch, k, n], with its two backward products."""
    (count, m, k), n = a.shape, b.shape[2]

    def launch(m: int, n: int, k: int, rows: tuple[int, ...], layout: str) -> None:
        work = gpu.gemm(m, n, k, batch=count, layout=layout, rows=rows)
        rec.launch(work, shape=(m, n, k), batch=count, flops=2.0 * count * m * n * k, component=component)

    sequence = rec.sequence
    with rec.op("aten::bmm", (a, b), sequence=sequence):
        rows = (k, b.shape[1] if b.strides[2] != 1 else n, n)
        launch(m, n, k, rows, "TN" if b.strides[2] != 1 else "NN")

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            at, bt = plain_transpose(rec, a, 1, 2), None
            with rec.op("aten::bmm", (at, grad)):
                launch(k, n, m, (k, n, n), "NT")
            bt = plain_transpose(rec, b, 1, 2)
            with rec.op("aten::bmm", (grad, bt)):
                launch(m, k, n, (n, k, k), "NN")
            return [tensor(a.shape), tensor(b.shape)]

        return apply(rec, "BmmBackward0", sequence, [a, b], [tensor((count, m, n))], backward)[0]


def _matmul4(rec: Recorder, a: Value, b: Value, component: str) -> Value:
    """torch.matmul of two [batch, heads, ., .] tensors."""
    (batch, heads, m, k), n = a.shape, b.shape[3]
    with rec.op("aten::matmul", (a, b), sequence=rec.sequence):
        left = reshape(rec, expand_noop(rec, a), (batch * heads, m, k))
        wide = expand_noop(rec, b)
        if b.dense or (b.strides[2], b.shape[2]) != (1, b.strides[3]):
            right = reshape(rec, wide, (batch * heads, k, n))
        else:  # the transpose of a dense key: aten::reshape finds an alias without a copy
            with rec.op("aten::reshape", (wide, (batch * heads, k, n)), sequence=rec.sequence):
                right = _alias(rec, wide, (batch * heads, k, n))
        out = _product(rec, left, right, component)
        return view(rec, out, (batch, heads, m, n), unsafe=True)


def _alias(rec: Recorder, x: Value, shape: tuple[int, int, int]) -> Value:
    sequence = rec.sequence
    out = Value(shape, (shape[1] * shape[2], 1, shape[1]), x.dtype)
    with rec.op("aten::_reshape_alias", (x, shape, out.strides), sequence=sequence):

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            with rec.op("aten::reshape", (grad, x.shape)):
                rec.leaf("aten::view", grad, x.shape)
            return [tensor(x.shape)]

        return apply(rec, "ReshapeAliasBackward0", sequence, [x], [out], backward)[0]


def math_attention(rec: Recorder, q: Value, k: Value, v: Value) -> Value:
    """Scores, scale, mask, softmax in float32, values: attention written out in eager ops."""
    with rec.at(component="attention.scores"):
        scores = _matmul4(rec, q, transpose(rec, k, 2, 3), "attention.scores")
    with rec.at(component="attention.softmax"):
        masked = _masked_fill(rec, scale(rec, scores))
        with rec.op("aten::softmax", (masked, -1, 6), sequence=rec.sequence):
            wide = cast(rec, masked, F32)
            sequence = rec.sequence
            with rec.op("aten::_softmax", (wide, -1, False), sequence=sequence):
                out = tensor(wide.shape, F32)
                rec.launch(_softmax_work("softmax", wide))

                def backward(grads: Grads) -> Grads:
                    with rec.op("aten::_softmax_backward_data", (only(grads), out, -1, 6)):
                        rec.launch(_softmax_work("softmax_backward", wide))
                    return [tensor(wide.shape, F32)]

                weights = apply(rec, "SoftmaxBackward0", sequence, [wide], [out], backward)[0]
        weights = cast(rec, weights, v.dtype)
    with rec.at(component="attention.values"):
        return _matmul4(rec, weights, v, "attention.values")


def _softmax_work(key: str, x: Value) -> gpu.Work:
    return gpu.named(key, 8 * x.elements, dtype=F32, blocks=x.elements // x.shape[-1])


def _masked_fill(rec: Recorder, x: Value) -> Value:
    sequence, mask = rec.sequence, tensor(x.shape[-2:], BOOL)

    def fill(source: Value, value: str) -> None:
        rec.leaf("aten::expand", source, source.shape, False)
        rec.leaf("aten::expand", mask, source.shape, False)
        copied = plain_clone(rec, source)
        with rec.op("aten::masked_fill_", (copied, mask, Literal(value))):
            rec.launch(gpu.pointwise("masked_fill", x.elements))

    with rec.op("aten::masked_fill", (x, mask, Literal("-inf")), sequence=sequence):
        fill(x, "-inf")

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            with rec.op("aten::masked_fill", (grad, mask, Literal("0"))):
                fill(grad, "0")
            return [tensor(x.shape)]

        return apply(rec, "MaskedFillBackward0", sequence, [x], [tensor(x.shape)], backward)[0]


def flash_attention(rec: Recorder, q: Value, k: Value, v: Value) -> Value:
    """F.scaled_dot_product_attention(is_causal=True) on the FlashAttention backend.

    FLOPs in the truth are those of the full score matrix, as torch's FlopCounterMode counts them:
    4 b h s^2 d forward, 2.5 times that backward.
    """
    batch, heads, sequence_length, head_dim = q.shape
    full = 4.0 * batch * heads * sequence_length**2 * head_dim
    size = {"batch": batch, "heads": heads, "sequence": sequence_length, "head_dim": head_dim}
    out = Value(q.shape, _token_major(q), q.dtype)
    lse = tensor((batch, heads, sequence_length), F32)
    sequence, inputs = rec.sequence, (q, k, v)
    tail = (None, 0.0, True)
    with (
        rec.at(component="attention.core"),
        rec.op("aten::scaled_dot_product_attention", (*inputs, *tail, None, False), sequence=sequence),
        rec.op(
            "aten::_scaled_dot_product_flash_attention", (*inputs, 0.0, True, False, None), sequence=sequence
        ),
    ):
        rows = [plain_transpose(rec, x, 1, 2) for x in inputs]
        flash_inputs = (*rows, None, None, sequence_length, sequence_length, 0.0, True, False)
        with rec.op("aten::_flash_attention_forward", (*flash_inputs, None, None, None, None, None)):
            rec.leaf("aten::empty_like", rows[0], None, None, None, None, None)
            rec.leaf("aten::empty", (batch, heads, sequence_length), 6, 0, 0, False, None)
            rec.launch(gpu.flash("forward", **size), flops=full)
        plain_transpose(rec, tensor((batch, sequence_length, heads, head_dim)), 1, 2)

        def backward(grads: Grads) -> Grads:
            grad = only(grads)
            lengths = (sequence_length, sequence_length)
            saved = (grad, q, k, v, out, lse, None, None, *lengths, 0.0, True, None, None)
            with rec.op("aten::_scaled_dot_product_flash_attention_backward", (*saved, None)):
                gradient_rows = [plain_transpose(rec, x, 1, 2) for x in (grad, q, k, v, out)]
                with rec.op("aten::_flash_attention_backward", (*gradient_rows, lse, *saved[6:], None)):
                    rec.launch(gpu.flash("dot", **size))
                    rec.launch(gpu.flash("backward", **size), flops=2.5 * full)
                    rec.launch(gpu.flash("convert", **size))
            return [Value(x.shape, _token_major(x), x.dtype) for x in inputs]

        return apply(rec, "ScaledDotProductFlashAttentionBackward0", sequence, list(inputs), [out], backward)[
            0
        ]


def _token_major(x: Value) -> tuple[int, ...]:
    """Strides of a [b, heads, s, d] tensor stored as [b, s, heads, d]."""
    _, heads, s, d = x.shape
    return (s * heads * d, d, heads * d, 1)
