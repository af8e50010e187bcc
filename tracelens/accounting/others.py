"""What runs between the products: kernels of no GEMM or attention call, by what they do.

Copies, casts and pads are told by the operator's tensors where the trace has them (types and strides of
``aten::copy_``, or of a Triton kernel that only moves data), else by the kernel's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.attribution import Attribution, Calls
from tracelens.gemm.dtypes import dtype_of_cpp
from tracelens.gemm.inductor import parse_fused
from tracelens.gemm.inductor_ops import CAST, LAYOUT, MATMUL, PAD
from tracelens.gemm.tensors import Dims, dims_at, item_at, strides_at
from tracelens.results import OtherKernel, OtherRow
from tracelens.trace import IntArray, Links, Trace, look_up
from tracelens.trace.tables import Inputs
from tracelens.words import COMPONENTS, PHASES

#: Operators that only move or convert data: the outermost of them names the cause.
_MOVERS = re.compile(
    r"aten::(?:copy_|clone|contiguous|reshape|_reshape_copy|flatten|to|_to_copy|type_as|float|half|bfloat16"
    r"|cat|concat|stack|repeat|repeat_interleave|expand_copy|pad|constant_pad_nd|fill_|zero_)(?:\.\w+)?"
)
_PADS = re.compile(r"aten::(?:constant_pad_nd|pad)(?:\.\w+)?")
#: Products that leave their name on a kernel that copies an operand or the result: no bias to add.
_PLAIN_PRODUCTS = frozenset({"mm", "bmm"})
_LARGEST = 2**62  # a number per row stays below it
_LEAST = 1e-4  # of the GPU time: a name with less is not listed
_DEPTH = 6  # movers inside each other: pad > constant_pad_nd > copy_, reshape > clone > copy_
#: ATen's kernels (aten/src/ATen/native/cuda/Copy.cu, Shape.cu, Reduce.cuh, Loops.cuh).
_COPY = re.compile(r"direct_copy_kernel|(?:b?float16|float8\w*)_copy_kernel|CatArrayBatchedCopy|Memcpy DtoD")
_CAST_BY_NAME = re.compile(r"(?:b?float16|float8\w*)_copy_kernel|LoadWithCast")
#: The loops that follow strides; contiguous ones are "vectorized" or "unrolled".
_STRIDED = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<")
_FILL = re.compile(r"FillFunctor|^Memset")
_REDUCTION = re.compile(r"reduce_kernel|DeviceReduce|softmax|SoftMax|layer_norm|_norm_kernel|LpNorm|lpnorm")
_ELEMENTWISE = re.compile(r"elementwise_kernel|multi_tensor_apply_kernel|distribution_")
_NUMBER = re.compile(r"(?<=[A-Za-z])_\d+(?=\.|$)|(?<=\.)\d+\.|\.\d+$")


@dataclass(frozen=True, slots=True)
class _Moved:
    """What a kernel is, and for one that moves data which tensor it wrote."""

    kind: str
    dims: Dims | None = None
    dtype_from: str | None = None
    dtype_to: str | None = None


def other_rows(
    trace: Trace, links: Links, attribution: Attribution, calls: Calls, *, steps: int
) -> list[OtherRow]:
    """Kernels of the steps that belong to no GEMM or attention call, longest first."""
    at = np.flatnonzero((calls.kernel_call < 0) & (attribution.step >= 0))
    if not len(at):
        return []
    kernels = trace.kernels
    own = links.kernel_op[at].astype(np.int64)
    mover, around = _movers(trace, links, own)
    op_name, around_name = (look_up(trace.ops.name, row).astype(np.int64) for row in (mover, around))
    own_name = look_up(trace.ops.name, own).astype(np.int64)
    inputs = look_up(trace.ops.inputs, own).astype(np.int64)
    seen, which = _distinct([kernels.name[at], kernels.category[at], own_name, op_name, inputs])
    found = [_moved(trace, *row) for row in seen]
    what = {one: code for code, one in enumerate(dict.fromkeys(found))}
    moved = np.array([what[one] for one in found], np.int64)[which]
    place = attribution.component[at].astype(np.int64) * len(PHASES) + attribution.phase[at]
    modules, module = _without_numbers(attribution, at)
    keys, group = _distinct([place, moved, op_name, around_name, module])
    dur = kernels.dur_ns[at]
    time, count = np.zeros(len(keys), np.int64), np.bincount(group, minlength=len(keys))
    np.add.at(time, group, dur)
    layers = _layers(attribution.layer[at], group, len(keys))
    longest = np.zeros(len(keys), np.int64)
    by_dur = np.argsort(dur, kind="stable")
    longest[group[by_dur]] = at[by_dur]  # the last one written is the longest
    rows = list(what)
    texts = trace.symbols
    return [
        OtherRow(
            id=f"o{number}",
            component=COMPONENTS[keys[code][0] // len(PHASES)],
            phase=PHASES[keys[code][0] % len(PHASES)],
            kind=rows[keys[code][1]].kind,
            op=texts[keys[code][2]] or None,
            within=texts[keys[code][3]] or None,
            module=modules[keys[code][4]],
            kernel=texts[int(kernels.name[longest[code]])],
            calls=int(count[code]),
            calls_per_step=int(count[code]) / steps,
            time_ms_per_step=int(time[code]) / 1e6 / steps,
            layers=int(layers[code]),
            dims=rows[keys[code][1]].dims,
            dtype_from=rows[keys[code][1]].dtype_from,
            dtype_to=rows[keys[code][1]].dtype_to,
        )
        for number, code in enumerate(np.argsort(-time, kind="stable").tolist(), 1)
    ]


def other_kernels(trace: Trace, attribution: Attribution, calls: Calls, *, steps: int) -> list[OtherKernel]:
    """The same kernels by component, phase and name, longest first."""
    counted = attribution.step >= 0
    at = np.flatnonzero((calls.kernel_call < 0) & counted)
    if not len(at):
        return []
    columns = (attribution.component[at], attribution.phase[at], trace.kernels.name[at])
    keys, group = _distinct([column.astype(np.int64) for column in columns])
    time, count = np.zeros(len(keys), np.int64), np.bincount(group, minlength=len(keys))
    np.add.at(time, group, trace.kernels.dur_ns[at])
    runs = np.unique(np.stack([group, attribution.step[at]]), axis=1)[0]
    having = np.bincount(runs, minlength=len(keys))  # steps with any of them
    least = _LEAST * int(trace.kernels.dur_ns[counted].sum())
    return [
        OtherKernel(
            COMPONENTS[keys[code][0]], PHASES[keys[code][1]], trace.symbols[keys[code][2]],
            int(count[code]) / steps, int(time[code]) / 1e6 / steps, int(count[code]) / int(having[code]),
        )
        for code in np.argsort(-time, kind="stable").tolist() if time[code] >= least
    ]  # fmt: skip


def _distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[list[tuple[int, ...]], IntArray]:
    """The distinct rows of these columns, and for every row which it is: one sort over one number per row."""
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if size * (high - low + 1) >= _LARGEST:
            values, code = np.unique(code, return_inverse=True)  # closes the gaps
            size = len(values)
        code = code * (high - low + 1) + (column - low)
        size *= high - low + 1
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    taken = [column[first].tolist() for column in columns]
    return list(zip(*taken, strict=True)), code


def _movers(trace: Trace, links: Links, own: IntArray) -> tuple[IntArray, IntArray]:
    """Per kernel its operator, or the outermost around it that only moves data; and the one around that."""
    above = links.forest.above(links.forest.nearest(links.is_op)).astype(np.int64)
    moves = trace.symbols.where(_MOVERS.fullmatch)
    mover = own.copy()
    is_mover = look_up(moves, look_up(trace.ops.name, own), False)
    for _ in range(_DEPTH):
        outer = np.where(is_mover, look_up(above, mover), -1)
        climb = look_up(moves, look_up(trace.ops.name, outer), False)
        mover = np.where(climb, outer, mover)
        is_mover &= climb
    return mover, look_up(above, mover).astype(np.int64)


def _without_numbers(attribution: Attribution, at: IntArray) -> tuple[list[str | None], IntArray]:
    """Module paths without their layers' numbers, and per kernel which."""
    texts: dict[str | None, int] = {None: 0}
    codes = [texts.setdefault(_NUMBER.sub("", text), len(texts)) for text in attribution.modules]
    return list(texts), np.array([*codes, 0], np.int64)[attribution.module[at]]


def _layers(layer: npt.NDArray[np.int32], group: IntArray, size: int) -> IntArray:
    """How many layers each group runs in."""
    known = layer >= 0
    pairs = np.unique(np.stack([group[known], layer[known].astype(np.int64)]), axis=1)
    return np.bincount(pairs[0], minlength=size)


# --- what a kernel is --------------------------------------------------------------------------------


def _moved(trace: Trace, kernel: int, category: int, own: int, mover: int, inputs: int) -> _Moved:
    name, op = trace.symbols[kernel], trace.symbols[own]
    if "memcpy" in trace.symbols[category].lower() and "DtoD" not in name:
        return _Moved("other")  # between host and device
    if _PADS.fullmatch(trace.symbols[mover]):
        return _Moved("pad")
    tensors = trace.details.inputs(inputs) if inputs >= 0 else None
    fused = parse_fused(name)
    if fused is not None:
        if fused.kind == "pointwise" and fused.ops and not fused.unknown:
            ops = set(fused.ops)
            if ops <= LAYOUT | CAST | MATMUL and (PAD & ops or _grows(tensors, ops)):
                return _padded(tensors)
            if ops <= LAYOUT | CAST | _PLAIN_PRODUCTS:
                return _between(tensors, name, source=0, target=-1)
        if not fused.ops and not fused.unknown:
            return _Moved("other")  # torch.compile's names can be without the list of what was fused
        return _Moved("reduction" if "reduction" in fused.kind else "elementwise")
    if _COPY.search(name) or op.partition(".")[0] == "aten::copy_":
        if op.partition(".")[0] in ("aten::cat", "aten::stack"):
            return _Moved("copy")
        return _between(tensors, name, source=1, target=0)
    for kind, pattern in (("fill", _FILL), ("reduction", _REDUCTION), ("elementwise", _ELEMENTWISE)):
        if pattern.search(name):
            return _Moved(kind)
    return _Moved("other")


def _grows(inputs: Inputs | None, ops: set[str]) -> bool:
    """Does a kernel named after a product write a larger tensor than it reads? pad_mm's rewrite does."""
    tensors = _tensors(inputs)
    if len(tensors) != 2 or not MATMUL & ops:
        return False
    (before, *_), (after, *_) = tensors
    return prod(before) < prod(after) and len(before) == len(after)


def _padded(inputs: Inputs | None) -> _Moved:
    tensors = _tensors(inputs)
    if len(tensors) < 2:
        return _Moved("pad")
    return _Moved("pad", tensors[-1][0], tensors[0][1], tensors[-1][1])


def _between(inputs: Inputs | None, kernel: str, *, source: int, target: int) -> _Moved:
    """From one tensor to another: by their types and strides, else by the kernel's name."""
    tensors = _tensors(inputs)
    if len(tensors) < 2:
        by_name = (
            "cast" if _CAST_BY_NAME.search(kernel) else "transpose" if _STRIDED.search(kernel) else "copy"
        )
        return _Moved(by_name)
    (_, old, before), (dims, new, after) = tensors[source], tensors[target]
    if old is not None and new is not None and old != new:
        return _Moved("cast", dims, old, new)
    if before is not None and after is not None:
        turned = _is_turned(tensors[source][0], before, dims, after)
    else:
        turned = _STRIDED.search(kernel) is not None
    return _Moved("transpose" if turned else "copy", dims, old, new)


def _tensors(inputs: Inputs | None) -> list[tuple[Dims, str | None, Dims | None]]:
    """Size, type and strides of every tensor argument."""
    if inputs is None or inputs.dims is None:
        return []
    out = []
    for at in range(min(len(inputs.dims), 64)):
        dims = dims_at(inputs.dims, at)
        if dims is not None:
            strides = strides_at(inputs.strides or [], at, len(dims))
            out.append((dims, dtype_of_cpp(item_at(inputs.types or [], at)), strides))
    return out


def _is_turned(old: Dims, before: Dims, new: Dims, after: Dims) -> bool:
    """Do the dimensions lie in another order in memory? Those of one element, or repeated, lie nowhere.

    Tensors of one shape are compared dimension by dimension, others (a Triton kernel's) by their sizes.
    """
    sides = _real(old, before), _real(new, after)
    if old != new:
        first, second = ([size for _, _, size in side] for side in sides)
        return first != second
    both = {at for _, at, _ in sides[0]} & {at for _, at, _ in sides[1]}
    first, second = ([at for _, at, _ in side if at in both] for side in sides)
    return first != second


def _real(dims: Dims, strides: Dims) -> list[tuple[int, int, int]]:
    """(stride, dimension, size) of the dimensions that are stepped through, the outermost first."""
    both = enumerate(zip(dims, strides, strict=True))
    real = [(stride, at, size) for at, (size, stride) in both if size != 1 and stride != 0]
    return sorted(real, key=lambda one: -one[0])
