"""Ops that move no or little data: views, copies, slices, concatenation."""

from __future__ import annotations

from tests.synthetic import gpu
from tests.synthetic.autograd import apply
from tests.synthetic.recorder import Recorder
from tests.synthetic.values import DTYPE_CODE, ITEM_SIZE, Literal, Shape, Value, contiguous, tensor

Grads = list[Value | None]
END = Literal("9223372036854775807")


def only(grads: Grads) -> Value:
    """The one incoming gradient, which every differentiable path of these models has."""
    assert grads[0] is not None
    return grads[0]


def view(rec: Recorder, x: Value, shape: Shape, *, asked: Shape | None = None, unsafe: bool = False,
         event_name: str | None = None) -> Value:  # fmt: skip
    """aten::view; ``asked`` is the size argument where it holds a -1."""
    name = event_name or ("aten::_unsafe_view" if unsafe else "aten::view")
    sequence = rec.sequence
    with rec.op(name, (x, asked or shape), sequence=sequence):
        rec.spend(200)
        out = Value(shape, contiguous(shape), x.dtype)
        node = "UnsafeViewBackward0" if unsafe else "ViewBackward0"
        return apply(rec, node, sequence, [x], [out], lambda g: [reshape_gradient(rec, only(g), x.shape)])[0]


def reshape_gradient(rec: Recorder, grad: Value, shape: Shape) -> Value:
    """aten::reshape inside a backward node: a view where the rows allow it, else a copy."""
    with rec.op("aten::reshape", (grad, shape)):
        if grad.dense:
            rec.leaf("aten::view", grad, shape)
        else:
            copied = plain_clone(rec, grad)
            rec.leaf("aten::_unsafe_view", copied, shape)
    return tensor(shape, grad.dtype)


def plain_clone(rec: Recorder, x: Value) -> Value:
    """aten::clone without a tape entry, as inside backward nodes."""
    with rec.op("aten::clone", (x, 0)):
        _copy_body(rec, x, tensor(x.shape, x.dtype))
    return tensor(x.shape, x.dtype)


def _copy_body(rec: Recorder, x: Value, out: Value) -> None:
    with rec.op("aten::empty_like", (x, DTYPE_CODE[x.dtype], 0, None, None, 0)):
        rec.leaf("aten::empty", x.shape, DTYPE_CODE[x.dtype], 0, None, None, 0)
    with rec.op("aten::copy_", (out, x, False)):
        rec.launch(gpu.copy(x.elements, ITEM_SIZE[x.dtype], ITEM_SIZE[x.dtype]))


def clone(rec: Recorder, x: Value) -> Value:
    """aten::clone to row-major order."""
    sequence = rec.sequence
    out = tensor(x.shape, x.dtype)
    with rec.op("aten::clone", (x, 0), sequence=sequence):
        _copy_body(rec, x, out)
        return apply(rec, "CloneBackward0", sequence, [x], [out], lambda g: [g[0]])[0]


def contiguous_copy(rec: Recorder, x: Value) -> Value:
    """tensor.contiguous()."""
    with rec.op("aten::contiguous", (x, 0), sequence=rec.sequence):
        return clone(rec, x)


def reshape(rec: Recorder, x: Value, shape: Shape) -> Value:
    """tensor.reshape(): a view, or a copy and an _unsafe_view."""
    with rec.op("aten::reshape", (x, shape), sequence=rec.sequence):
        if x.dense:
            return view(rec, x, shape)
        return view(rec, clone(rec, x), shape, unsafe=True)


def _swapped(x: Value, a: int, b: int) -> Value:
    shape, strides = list(x.shape), list(x.strides)
    shape[a], shape[b] = shape[b], shape[a]
    strides[a], strides[b] = strides[b], strides[a]
    return Value(tuple(shape), tuple(strides), x.dtype)


def plain_transpose(rec: Recorder, x: Value, a: int, b: int) -> Value:
    """aten::transpose without a tape entry."""
    out = _swapped(x, a, b)
    with rec.op("aten::transpose", (x, a, b)):
        rec.leaf("aten::as_strided", x, out.shape, out.strides, None)
    return out


def transpose(rec: Recorder, x: Value, a: int, b: int) -> Value:
    sequence, out = rec.sequence, _swapped(x, a, b)
    with rec.op("aten::transpose", (x, a, b), sequence=sequence):
        rec.leaf("aten::as_strided", x, out.shape, out.strides, None)
        return apply(rec, "TransposeBackward0", sequence, [x], [out],
                     lambda g: [plain_transpose(rec, only(g), a, b)])[0]  # fmt: skip


def plain_t(rec: Recorder, x: Value) -> Value:
    """aten::t without a tape entry."""
    with rec.op("aten::t", (x,)):
        return plain_transpose(rec, x, 0, 1)


def t(rec: Recorder, x: Value) -> Value:
    """aten::t of a weight; its backward transposes the weight gradient back."""
    sequence = rec.sequence
    with rec.op("aten::t", (x,), sequence=sequence):
        out = plain_transpose(rec, x, 0, 1)
        return apply(rec, "TBackward0", sequence, [x], [out], lambda g: [plain_t(rec, only(g))])[0]


def _narrowed(x: Value, dim: int, size: int) -> Value:
    return Value((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.strides, x.dtype)


def split(rec: Recorder, x: Value, size: int, dim: int) -> list[Value]:
    """tensor.split(); the backward is one aten::cat, a copy."""
    sequence, parts = rec.sequence, x.shape[dim] // size
    with rec.op("aten::split", (x, size, dim), sequence=sequence):
        outs = []
        for i in range(parts):
            out = _narrowed(x, dim, size)
            with (
                rec.op("aten::narrow", (x, dim, i * size, size)),
                rec.op("aten::slice", (x, dim, i * size, (i + 1) * size, 1)),
            ):
                rec.leaf("aten::as_strided", x, out.shape, out.strides, i * size)
            outs.append(out)

        def backward(grads: Grads) -> Grads:
            return [plain_cat(rec, [g for g in grads if g is not None], dim)]

        return apply(rec, "SplitBackward0", sequence, [x], outs, backward)


def plain_cat(rec: Recorder, parts: list[Value], dim: int) -> Value:
    shape = list(parts[0].shape)
    shape[dim] = sum(p.shape[dim] for p in parts)
    out = tensor(tuple(shape), parts[0].dtype)
    with rec.op("aten::cat", (parts, dim)):
        rec.launch(_cat_work(out))
    return out


def _cat_work(out: Value) -> gpu.Work:
    blocks = min(2112, out.elements // 4096)
    return gpu.named("cat", 4 * out.elements, blocks=blocks, dims=len(out.shape))


def cat(rec: Recorder, parts: list[Value], dim: int) -> Value:
    sequence = rec.sequence
    shape = list(parts[0].shape)
    shape[dim] = sum(p.shape[dim] for p in parts)
    out = tensor(tuple(shape), parts[0].dtype)
    with rec.op("aten::cat", (parts, -1), sequence=sequence):
        rec.launch(_cat_work(out))

        def backward(grads: Grads) -> Grads:
            grad, pieces, start = only(grads), [], 0
            for part in parts:
                size = part.shape[dim]
                with rec.op("aten::narrow", (grad, dim, start, size)):
                    rec.leaf("aten::slice", grad, dim, start, start + size, 1)
                pieces.append(_narrowed(grad, dim, size))
                start += size
            return list(pieces)

        return apply(rec, "CatBackward0", sequence, parts, [out], backward)[0]


def half(rec: Recorder, x: Value, dim: int, *, second: bool) -> Value:
    """x[..., :n/2] or x[..., n/2:]; the backward fills zeros and copies the gradient into its half."""
    sequence, size = rec.sequence, x.shape[dim] // 2
    bounds = (size, END) if second else (0, size)
    with rec.op("aten::slice", (x, dim, *bounds, 1), sequence=sequence):
        out = _narrowed(x, dim, size)
        rec.leaf("aten::as_strided", x, out.shape, out.strides, size if second else 0)

        def backward(grads: Grads) -> Grads:
            full, grad = tensor(x.shape, x.dtype), only(grads)
            with rec.op("aten::slice_backward", (grad, x.shape, dim, *bounds, 1)):
                zeros(rec, full)
                rec.leaf("aten::slice", full, dim, *bounds, 1)
                with rec.op("aten::copy_", (_narrowed(full, dim, size), grad, False)):
                    rec.launch(gpu.copy(grad.elements))
            return [full]

        return apply(rec, "SliceBackward0", sequence, [x], [out], backward)[0]


def zeros(rec: Recorder, like: Value) -> None:
    """torch.zeros: an allocation and a fill."""
    code = DTYPE_CODE[like.dtype]
    with rec.op("aten::zeros", (like.shape, code, 0, None, None)):
        rec.leaf("aten::empty", like.shape, code, 0, None, None, None)
        with rec.op("aten::zero_", (like,)), rec.op("aten::fill_", (like, 0)):
            rec.launch(gpu.pointwise("fill", like.elements, ITEM_SIZE[like.dtype]))


def repeat_heads(rec: Recorder, x: Value, times: int) -> Value:
    """Grouped-query attention: k[:, :, None].expand(...).reshape(...), a copy."""
    b, heads, s, d = x.shape
    sequence = rec.sequence
    with rec.op("aten::unsqueeze", (x, 2), sequence=sequence):
        stride = s * x.strides[2]
        wide = Value((b, heads, 1, s, d), (*x.strides[:2], stride, *x.strides[2:]), x.dtype)

        def squeeze(grads: Grads) -> Grads:
            rec.leaf("aten::squeeze", only(grads), 2)
            return [tensor(x.shape, x.dtype)]

        wide = apply(rec, "UnsqueezeBackward0", sequence, [x], [wide], squeeze)[0]
    sequence, shape = rec.sequence, (b, heads, times, s, d)
    with rec.op("aten::expand", (wide, shape, False), sequence=sequence):

        def total(grads: Grads) -> Grads:
            grad = only(grads)
            with rec.op("aten::sum", (grad, (2,), True, None)):
                rec.launch(gpu.reduction(grad.elements, x.elements))
            return [tensor((b, heads, 1, s, d), x.dtype)]

        wide = apply(
            rec,
            "ExpandBackward0",
            sequence,
            [wide],
            [Value(shape, (*wide.strides[:2], 0, *wide.strides[3:]), x.dtype)],
            total,
        )[0]
    return reshape(rec, wide, (b, heads * times, s, d))


def expand_noop(rec: Recorder, x: Value) -> Value:
    """The expand that matmul does before every batched product."""
    sequence = rec.sequence
    with rec.op("aten::expand", (x, x.shape, False), sequence=sequence):
        out = Value(x.shape, x.strides, x.dtype)
        return apply(rec, "ExpandBackward0", sequence, [x], [out], lambda g: [g[0]])[0]


def plain_cast(rec: Recorder, x: Value, dtype: str) -> Value:
    out = Value(x.shape, contiguous(x.shape), dtype)
    with rec.op("aten::to", (x, DTYPE_CODE[dtype], 0, None, None, False, False, None)):
        _cast_body(rec, x, out, None)
    return out


def _cast_body(rec: Recorder, x: Value, out: Value, sequence: int | None) -> Value:
    code = DTYPE_CODE[out.dtype]
    with rec.op("aten::_to_copy", (x, code, None, None, None, False, None), sequence=sequence):
        rec.leaf("aten::empty_strided", out.shape, out.strides, code, 0, None, False)
        with rec.op("aten::copy_", (out, x, False)):
            rec.launch(gpu.copy(x.elements, ITEM_SIZE[x.dtype], ITEM_SIZE[out.dtype]))
        if sequence is None:
            return out
        return apply(rec, "ToCopyBackward0", sequence, [x], [out],
                     lambda g: [plain_cast(rec, only(g), x.dtype)])[0]  # fmt: skip


def cast(rec: Recorder, x: Value, dtype: str) -> Value:
    """x.to(dtype)."""
    sequence, out = rec.sequence, Value(x.shape, contiguous(x.shape), dtype)
    with rec.op("aten::to", (x, DTYPE_CODE[dtype], False, False, None), sequence=sequence):
        return _cast_body(rec, x, out, sequence)
