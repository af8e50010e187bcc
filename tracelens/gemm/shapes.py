"""From one profiler operator to the shape of the GEMM it computes.

M, N, K always mean torch's row-major view out[M,N] = a[M,K] @ b[K,N]. Input Dims come as Kineto writes
them: one list per argument, [] for a scalar or an absent tensor, a list of lists for a TensorList.
Whatever does not fit an operator's schema gives None; nothing is guessed and nothing raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from tracelens.gemm.attention_shapes import ATTENTION_OPS, AttentionShape, attention_shape
from tracelens.gemm.dtypes import dtype_of_cpp, dtype_of_scalar_type
from tracelens.gemm.tensors import Dims, dims_at, item_at, strides_at
from tracelens.gemm.user_kernels import symmetric_product, user_kernel
from tracelens.results.gemm import Axis


@dataclass(frozen=True, slots=True)
class GemmShape:
    """out[M,N] = a[M,K] @ b[K,N], ``batch`` times; None = not known.

    A grouped product has ``groups`` products of unequal size whose ``grouped`` dimension ("m", "n" or
    "k") is the total over the groups, so that 2*M*N*K still counts the work.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str | None  # of the operands; fp8 x fp8 of both encodings is "fp8"
    out_dtype: str | None
    layout: str | None  # cuBLAS opA, opB: TN (y = x W^T), NN, NT, TT; None when strides are unknown
    lda: int | None = None  # leading dimension (the stride that is not 1) of a, in elements
    ldb: int | None = None
    ldc: int | None = None
    groups: int | None = None
    grouped: Axis | None = None  #
    symmetric: bool = False  # out = a a^T (M = N): one triangle is computed, the other is its mirror image
    batch_stride_a: int | None = None  # from one matrix of the batch to the next, in elements; 0 = the same
    batch_stride_b: int | None = None


#: What one operator computes.
Shape = GemmShape | AttentionShape


_Reader = Callable[["_Op"], GemmShape | None]


@dataclass(frozen=True, slots=True)
class _Op:
    name: str  # without overload
    dims: Sequence[Any]
    types: Sequence[Any]
    strides: Sequence[Any]
    concrete: Sequence[Any]

    def tensor(self, index: int, rank: int) -> Dims | None:
        dims = dims_at(self.dims, index)
        return dims if dims is not None and len(dims) == rank else None

    def dtype(self, index: int) -> str | None:
        return dtype_of_cpp(item_at(self.types, index))


def shape_of(
    op: str,
    dims: Sequence[Any],
    types: Sequence[Any] | None,
    strides: Sequence[Any] | None,
    concrete: Sequence[Any] | None,
) -> Shape | None:
    """Shape of one profiler operator, or None when it is no GEMM or attention or its dims do not fit.

    ``op`` is the event's name ("aten::addmm", an overload suffix is allowed); the lists are its Input
    Dims, Input type, Input Strides and Concrete Inputs. Strides and concrete inputs are optional: without
    strides the layout stays None.

    >>> shape = shape_of("aten::addmm", [[2304], [25088, 768], [768, 2304], [], []],
    ...     ["c10::BFloat16"] * 3 + ["Scalar"] * 2, [[1], [768, 1], [1, 768], [], []], None)
    >>> (shape.m, shape.n, shape.k, shape.dtype, shape.layout)
    (25088, 2304, 768, 'bf16', 'TN')
    """
    if not isinstance(op, str) or not _is_list(dims):
        return None
    name = op.partition(".")[0]
    lists = [found if _is_list(found) else () for found in (types, strides, concrete)]
    lists[0] = [name if isinstance(name, str) else "" for name in lists[0] or ()]
    reader = _READERS.get("aten::mm" if is_opened(name) else name)
    if reader is None and user_kernel(name) is not None:
        reader = _user_kernel
    if reader is not None:
        return reader(_Op(name, dims, lists[0] or (), lists[1] or (), lists[2] or ()))
    if name in ATTENTION_OPS or name == "aten::scaled_dot_product_attention":
        return attention_shape(name, dims, lists[0] or (), lists[2] or (), lists[1] or ())
    return None


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _operands(op: _Op, a_index: int, b_index: int, *, batched: bool) -> GemmShape | None:
    rank = 3 if batched else 2
    a, b = op.tensor(a_index, rank), op.tensor(b_index, rank)
    if a is None or b is None or a[-1] != b[-2] or (batched and a[0] != b[0]):
        return None
    dtypes = {op.dtype(a_index), op.dtype(b_index)}
    types = {item_at(op.types, a_index), item_at(op.types, b_index)}
    if any(isinstance(name, str) and "complex" in name for name in types):
        return None  # one complex product is four real ones: 2*M*N*K would be wrong
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    # Two elements to a byte: Kineto's K counts bytes.
    k = a[-1] * 2 if dtype == "fp4" else a[-1]
    a_strides, b_strides = strides_at(op.strides, a_index, rank), strides_at(op.strides, b_index, rank)
    a_side, b_side = _side(a, a_strides), _side(b, b_strides)
    layout = None
    if a_side is not None and b_side is not None:
        # BLAS sees out^T = b^T a^T column by column: a row-major b is its untransposed first operand.
        layout = ("N" if b_side[0] == "row" else "T") + ("N" if a_side[0] == "row" else "T")
    return GemmShape(
        m=a[-2],
        n=b[-1],
        k=k,
        batch=a[0] if batched else 1,
        dtype=dtype,
        out_dtype=dtype,
        layout=layout,
        lda=a_side[1] if a_side else None,
        ldb=b_side[1] if b_side else None,
        batch_stride_a=_batch_stride(a, a_strides),
        batch_stride_b=_batch_stride(b, b_strides),
    )


def _batch_stride(dims: Dims, strides: Dims | None) -> int | None:
    """Elements from one matrix to the next; None without a batch of several."""
    return strides[0] if strides is not None and len(dims) == 3 and dims[0] > 1 else None


def _side(dims: Dims, strides: Dims | None) -> tuple[str, int] | None:
    """("row" or "column", leading dimension in elements) of a matrix; None when neither is unit-stride."""
    if strides is None:
        return None
    rows, columns = dims[-2], dims[-1]
    row_stride, column_stride = strides[-2], strides[-1]
    # A dimension of size 1 has a meaningless stride; torch then calls BLAS as if contiguous.
    if (column_stride == 1 or columns == 1) and (row_stride >= columns or rows == 1):
        return "row", max(row_stride if rows != 1 else columns, 1)
    if (row_stride == 1 or rows == 1) and (column_stride >= rows or columns == 1):
        return "column", max(column_stride if columns != 1 else rows, 1)
    return None


def _with_out(op: _Op, shape: GemmShape | None, inputs: int) -> GemmShape | None:
    """Adds what the ``out=`` operand, which stands after the ``inputs`` arguments, says."""
    if shape is None or len(op.dims) <= inputs:
        return shape
    index = len(op.dims) - 1
    rank = len(dims_at(op.dims, index) or ())
    out = op.tensor(index, rank) if rank in (2, 3) else None
    if out is None or out[-2:] != (shape.m, shape.n):
        return shape
    side = _side(out, strides_at(op.strides, index, rank))
    return replace(
        shape,
        out_dtype=op.dtype(index) or shape.out_dtype,
        ldc=side[1] if side is not None and side[0] == "row" else None,
    )


def _with_out_dtype(op: _Op, shape: GemmShape | None, index: int) -> GemmShape | None:
    """Adds an ``out_dtype`` argument, which stands in Concrete Inputs as a ScalarType number.

    "" means the argument was left out (the operands' type stays); no entry means nobody recorded it.
    """
    if shape is None:
        return None
    stated = item_at(op.concrete, index)
    return shape if stated == "" else replace(shape, out_dtype=dtype_of_scalar_type(stated))


def _product(op: _Op, *, batched: bool, first: int = 0, out: int = 2) -> GemmShape | None:
    """mm and bmm: (a, b), (a, b, out), and with the ``dtype`` overload (a, b, out_dtype, [out]); addmm and
    its kin: (c, a, b, beta, alpha, [out]), whose overload has out_dtype after b."""
    shape = _operands(op, first, first + 1, batched=batched)
    if len(op.dims) > out and dims_at(op.dims, out) is None and op.name != "aten::_addmm_activation":
        shape, out = _with_out_dtype(op, shape, first + 2), out + 1
    return _with_out(op, shape, out)


def _int_mm(op: _Op) -> GemmShape | None:
    shape = _operands(op, 0, 1, batched=False)
    return replace(shape, out_dtype="int32") if shape is not None else None


def _scaled_mm(op: _Op) -> GemmShape | None:
    """(a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, [out])."""
    return _with_out(op, _with_out_dtype(op, _operands(op, 0, 1, batched=False), 6), 8)


def _scaled_mm_v2(op: _Op) -> GemmShape | None:
    """(a, b, scales, recipes and swizzles of a and of b, bias, out_dtype, contraction_dim, fast, [out])."""
    return _with_out(op, _with_out_dtype(op, _operands(op, 0, 1, batched=False), 9), 12)


def _scaled_mm_into(op: _Op) -> GemmShape | None:
    """(out, a, b, scale_a, scale_b, ...): ``csrc/torch_bindings.cpp`` of vllm-project/vllm."""
    shape = _operands(op, 1, 2, batched=False)
    out = op.tensor(0, 2)
    if shape is None or out != (shape.m, shape.n):
        return None
    side = _side(out, strides_at(op.strides, 0, 2))
    ldc = side[1] if side is not None and side[0] == "row" else None
    return replace(shape, out_dtype=op.dtype(0), ldc=ldc)


def _linear(op: _Op) -> GemmShape | None:
    """input[..., K] @ weight[N, K]^T; the leading dimensions fold into M."""
    x, weight = dims_at(op.dims, 0), op.tensor(1, 2)
    if x is None or not x or weight is None or x[-1] != weight[1]:
        return None
    dtype = op.dtype(0) if op.dtype(0) == op.dtype(1) else None
    m, n, k = prod(x[:-1]), weight[0], weight[1]
    return GemmShape(m=m, n=n, k=k, batch=1, dtype=dtype, out_dtype=dtype, layout=None)


def _matmul(op: _Op) -> GemmShape | None:
    """Only what has one reading: no broadcasting of batch dimensions, no vector operands."""
    a, b = dims_at(op.dims, 0), dims_at(op.dims, 1)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    dtype = op.dtype(0) if op.dtype(0) == op.dtype(1) else None
    if len(b) == 2:
        m, batch = prod(a[:-1]), 1
    elif a[:-2] == b[:-2]:
        m, batch = a[-2], prod(a[:-2])
    else:
        return None
    return GemmShape(m=m, n=b[-1], k=a[-1], batch=batch, dtype=dtype, out_dtype=dtype, layout=None)


def _grouped(op: _Op) -> GemmShape | None:
    """_grouped_mm / _scaled_grouped_mm[_v2]: 2d x 3d, 3d x 2d, 2d x 2d or 3d x 3d, split by ``offs``."""
    a, b = dims_at(op.dims, 0), dims_at(op.dims, 1)
    offsets_index = _OFFSETS[op.name]
    if a is None or b is None or len(a) not in (2, 3) or len(b) not in (2, 3) or a[-1] != b[-2]:
        return None
    offsets = op.tensor(offsets_index, 1)
    groups = a[0] if len(a) == 3 else b[0] if len(b) == 3 else offsets[0] if offsets else None
    if len(a) == 3 and len(b) == 3 and a[0] != b[0]:
        return None
    dtype = op.dtype(0) if op.dtype(0) == op.dtype(1) else None
    out = dtype if op.name == "aten::_grouped_mm" else "bf16" if dtype == "fp8" else None
    kinds: dict[tuple[int, int], Axis | None] = {(2, 3): "m", (3, 2): "n", (2, 2): "k", (3, 3): None}
    grouped = kinds[len(a), len(b)]
    if grouped is None:
        return GemmShape(a[-2], b[-1], a[-1], a[0], dtype, out, None)
    return GemmShape(a[-2], b[-1], a[-1], 1, dtype, out, None, groups=groups, grouped=grouped)


def _user_kernel(op: _Op) -> GemmShape | None:
    """A user's Triton kernel (a, out, ...) whose out is a a^T or a^T a, see ``user_kernels``."""
    product = symmetric_product(user_kernel(op.name) or "", op.dims)
    if product is None:
        return None
    rank = len(dims_at(op.dims, 0) or ())
    a_side = _side(op.dims[0], strides_at(op.strides, 0, rank))
    out_side = _side(op.dims[1], strides_at(op.strides, 1, rank))
    layout = None
    if a_side is not None:
        # of a and a^T, one is row-major and the other is not: TN for a a^T of a row-major a
        layout = "TN" if (a_side[0] == "row") != product.transposed else "NT"
    return GemmShape(
        m=product.size,
        n=product.size,
        k=product.k,
        batch=product.batch,
        dtype=op.dtype(0),
        out_dtype=op.dtype(1),
        layout=layout,
        lda=a_side[1] if a_side else None,
        ldb=a_side[1] if a_side else None,
        ldc=out_side[1] if out_side is not None and out_side[0] == "row" else None,
        symmetric=True,
    )


#: Position of ``offs``, where each group ends.
_OFFSETS = {"aten::_grouped_mm": 2, "aten::_scaled_grouped_mm": 4, "aten::_scaled_grouped_mm_v2": 8}

_addmm, _baddbmm = (partial(_product, batched=batched, first=1, out=5) for batched in (False, True))
_READERS: dict[str, _Reader] = {
    "aten::mm": partial(_product, batched=False),
    "aten::bmm": partial(_product, batched=True),
    "aten::addmm": _addmm,
    "aten::addmm_": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::baddbmm": _baddbmm,
    "aten::baddbmm_": _baddbmm,
    "aten::addbmm": _baddbmm,
    "aten::addbmm_": _baddbmm,
    "aten::_int_mm": _int_mm,
    "aten::_scaled_mm": _scaled_mm,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::_scaled_mm_v2": _scaled_mm_v2,
    "aten::_scaled_grouped_mm_v2": _grouped,
    "_C::cutlass_scaled_mm": _scaled_mm_into,
    "_C::cutlass_scaled_mm_azp": _scaled_mm_into,
    "aten::linear": _linear,
    "aten::matmul": _matmul,
}

#: Operators that call others of these to do the work: they count only when nothing below them counts.
WRAPPERS = frozenset(
    {
        "aten::linear",
        "aten::matmul",
        "aten::einsum",
        "aten::linear_backward",
        "aten::matmul_backward",
        "aten::scaled_dot_product_attention",
        "aten::_scaled_dot_product_attention_math",
        "aten::_native_multi_head_attention",
    }
)
#: Operators of PyTorch and vLLM that compute a matrix product, by name without overload.
GEMM_OPS = frozenset(_READERS) - WRAPPERS


def is_gemm_op(name: str) -> bool:
    """Does this operator (an overload suffix is allowed) compute a matrix product itself?

    >>> is_gemm_op("aten::mm.out"), is_gemm_op("XXT_kernel_0"), is_gemm_op("aten::linear")
    (True, True, False)
    """
    base = name.partition(".")[0]
    return base in GEMM_OPS or user_kernel(base) is not None or is_opened(base)


def is_opened(name: str) -> bool:
    """Is it a product inside a function of a library (``attribution.functions``), called with its operands?

    >>> is_opened("_LinearBackward/dgrad"), is_opened("_Linear")
    (True, False)
    """
    return name.partition("/")[2] in ("product", "dgrad", "wgrad")
