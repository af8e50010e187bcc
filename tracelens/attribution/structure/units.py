"""The step as a row of units of work: one operator (or lone kernel) each, in the order it was launched.

A unit is the largest operator that is one thing: a linear layer, a fused attention, a softmax, a
loss. What it is, what it was called with and which tensors it touches is found once per distinct
call; a trace of a million kernels has a few hundred of those.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tracelens.attribution.kernels import kernel_component
from tracelens.attribution.names import OP_RULES, RULE_CODE
from tracelens.attribution.structure.told import COPIES, SUMS, TOLD, told_by_kernels
from tracelens.gemm import AttentionShape, GemmShape, KernelName, KernelNames, shape_of
from tracelens.gemm.inductor import Fused, parse_fused
from tracelens.trace import BoolArray, CodeArray, IntArray, Links, Trace, distinct_rows, look_up

Dims = tuple[int, ...]

_PRODUCTS = ("linear", "bmm")
#: Rules whose outermost operator is one unit (``aten::cross_entropy_loss`` with all that it calls).
_WHOLE = (
    "norm", "softmax", "dropout", "embedding", "loss", "activation", "nonlinearity", "communication",
    "optimizer", "grad_clip", "convolution", "recurrence", "topk",
    "dispatch",  # on a GPU one_hot is a fill and a scatter, index_put sorts
)  # fmt: skip
#: Operators that copy what they are given and then work in place: one unit too.
_COPIES_FIRST = frozenset({"aten::masked_fill", "aten::index_fill"})
_TAGGED = {"rope": "rope", "routes": "router"}  # rules of operators that fuse what Inductor's names list
_NUMBER = re.compile(r"_\d+$")  # of a user's Triton kernel in a compiled graph
VIEWS = frozenset({"view", "_unsafe_view", "permute", "transpose", "expand"})
CLIPS = frozenset({"clamp", "clamp_", "clip"})
CUTS = frozenset({"slice", "split", "chunk", "narrow", "unbind", "select", "split_with_sizes"})
_COPIES = frozenset({"copy_", "clone", "contiguous", "_to_copy", "to", "reshape", "_reshape_copy"})


@dataclass(frozen=True, slots=True)
class Kind:
    """What a unit is; equal calls share one."""

    #: gemm, bmm, core, fused, copy or elementwise; else the rule of ``names.OP_RULES`` or kernel that it is.
    what: str
    name: str  # ATen base name of the operator, or the kernel's own name
    gemm: GemmShape | None = None
    core: AttentionShape | None = None
    backward: bool = False
    tensors: tuple[Dims, ...] = ()  # the shapes it was called with, scalars left out
    tags: frozenset[str] = field(default_factory=frozenset)
    depth: int = 1  # of a product without an operator, blocks in z: batches or splits of the sum

    @property
    def width(self) -> int | None:
        """Last dimension of its largest tensor."""
        return max(self.tensors, key=prod)[-1] if self.tensors else None

    @property
    def ops(self) -> frozenset[str]:
        """The operators that the name of a compiled kernel lists; none of another."""
        fused = parse_fused(self.name)
        return frozenset(fused.ops) if fused is not None else frozenset()


@dataclass(frozen=True)
class Units:
    """Columns over units, in launch order."""

    kinds: list[Kind]
    kind: CodeArray
    node: CodeArray  # host node; -1: a kernel without an operator
    launch: CodeArray  # row of Trace.launches of its first kernel; -1
    kernel: CodeArray  # its longest, a product first; -1: none of its own (a view that has a backward)
    of_kernel: CodeArray  # per kernel: its unit
    of_node: CodeArray  # per host node: the unit it belongs to, or the first that it encloses; -1
    last_of_node: CodeArray  # the same, the last that it encloses

    def __len__(self) -> int:
        return len(self.kind)


def find_units(trace: Trace, links: Links, names: KernelNames, rule: CodeArray, origin: CodeArray) -> Units:
    """Group the kernels of a trace; ``rule`` is per node, ``origin`` the forward node behind each kernel.

    Forward operators that only a backward kernel refers to (views) are units too: their place in the
    forward says what their gradient is part of.
    """
    copies = links.is_op & trace.symbols.where(_COPIES_FIRST.__contains__)[links.name]
    home = _homes(links, rule, copies)
    size = len(trace.kernels)
    lone = -1 - np.arange(size, dtype=np.int64)  # keys of kernels without an operator
    # what hangs from a graph launch is not the work of the operator that launched the graph
    kernel_op = np.where(look_up(trace.replays, links.kernel_launch, False), -1, links.kernel_op)
    at = look_up(home, kernel_op).astype(np.int64)
    key = np.where(at >= 0, at, lone)
    behind = np.unique(look_up(home, origin[origin >= 0]))
    behind = behind[behind >= 0]
    views = np.setdiff1d(behind[_enclosed(links, at, np.arange(len(at)))[0][behind] < 0], at)

    # what lays out the operands of a product can take longer than it, and has not its shape
    multiplies = np.isin(look_up(rule, kernel_op), [RULE_CODE[name] for name in (*_PRODUCTS, "core")])
    order = np.lexsort((trace.kernels.ts_ns, -trace.kernels.dur_ns, ~multiplies))
    keys, first = np.unique(key[order], return_index=True)
    longest = order[first]
    position = np.searchsorted(keys, key)
    opening, launched = (np.full(len(keys), np.iinfo(np.int64).max) for _ in range(2))
    np.minimum.at(opening, position, trace.kernels.ts_ns)
    np.minimum.at(launched, position, look_up(links.ts_ns, links.kernel_node, np.iinfo(np.int64).min))

    node = np.concatenate([np.where(keys >= 0, keys, -1), views]).astype(np.int32)
    kernel = np.concatenate([longest, np.full(len(views), -1)]).astype(np.int32)
    gpu_ns = np.concatenate([opening, np.zeros(len(views), np.int64)])
    host_ns = np.concatenate([launched, look_up(links.ts_ns, views)])
    rank = np.lexsort((gpu_ns, host_ns))
    inverse = np.empty(len(rank), np.int32)
    inverse[rank] = np.arange(len(rank), dtype=np.int32)
    node, kernel = node[rank], kernel[rank]
    unit_at = np.full(len(links.forest.parent), -1, np.int32)
    has_node = np.flatnonzero(node >= 0)
    unit_at[node[has_node]] = has_node
    first_in, last_in = _enclosed(links, node, np.arange(len(node)))
    own = look_up(unit_at, home)
    encloses = first_in >= 0
    kinds, kind = _kinds(trace, links, names, rule, node, kernel)
    return Units(
        kinds=kinds,
        kind=kind,
        node=node,
        launch=look_up(links.kernel_launch, kernel).astype(np.int32),
        kernel=kernel,
        of_kernel=inverse[position],
        of_node=np.where(encloses, first_in, own).astype(np.int32),
        last_of_node=np.where(encloses, last_in, own).astype(np.int32),
    )


def _homes(links: Links, rule: CodeArray, copies: BoolArray) -> CodeArray:
    """Per host node the operator that is its unit; an operator that is part of nothing is its own."""
    forest = links.forest
    whole = np.isin(rule, [RULE_CODE[name] for name in _WHOLE]) | copies
    product = np.isin(rule, [RULE_CODE[name] for name in _PRODUCTS])
    core = rule == RULE_CODE["core"]
    outer_core = forest.outermost(core)
    # attention that runs as products and a softmax is those, and not one unit
    unfused = np.unique(outer_core[product & (outer_core >= 0)])
    is_unfused = np.zeros(len(rule), np.bool_)
    is_unfused[unfused] = True
    outer_core = np.where(look_up(is_unfused, outer_core, False), -1, outer_core)
    own = forest.nearest(links.is_op)
    home = np.where(own >= 0, own, -1)
    # a linear layer can hold its own communication (sequence parallel)
    sends = forest.outermost(rule == RULE_CODE["communication"])
    for found in (forest.outermost(whole), forest.outermost(product), outer_core, sends):
        home = np.where(found >= 0, found, home)
    # a softmax inside an unfused attention is its own, and so is a product inside a loss
    return home.astype(np.int32)


def _enclosed(links: Links, node: IntArray | CodeArray, unit: IntArray) -> tuple[CodeArray, CodeArray]:
    """Per host node the first and the last unit that lies inside it, itself not counted; -1: none."""
    forest = links.forest
    size = len(forest.parent)
    low = np.full(size, np.iinfo(np.int32).max, np.int32)
    high = np.full(size, -1, np.int32)
    known = node >= 0
    own_low, own_high = low.copy(), high.copy()
    np.minimum.at(own_low, node[known], unit[known].astype(np.int32))
    np.maximum.at(own_high, node[known], unit[known].astype(np.int32))
    for nodes in reversed(forest.levels):
        inner = nodes[forest.parent[nodes] >= 0]
        above = forest.parent[inner]
        np.minimum.at(low, above, np.minimum(low[inner], own_low[inner]))
        np.maximum.at(high, above, np.maximum(high[inner], own_high[inner]))
    return np.where(high >= 0, low, -1).astype(np.int32), high


def _kinds(
    trace: Trace, links: Links, names: KernelNames, rule: CodeArray, node: CodeArray, kernel: CodeArray
) -> tuple[list[Kind], CodeArray]:
    """One Kind per distinct (operator, inputs, innermost operator, inputs, what its kernel tells, kernel)."""
    ops = trace.ops
    inner = look_up(links.kernel_op, kernel)  # rows of Trace.ops, which are nodes
    leaf = np.where(inner >= 0, _leaf(trace, links, rule)[np.maximum(inner, 0)] if len(rule) else -1, -1)
    columns = np.stack(
        [
            look_up(ops.name, node),
            look_up(ops.inputs, node),
            look_up(ops.name, leaf),
            look_up(ops.inputs, leaf),
            np.where(node >= 0, -1, look_up(trace.kernels.name, kernel)),
            look_up(rule, node),
            kernel < 0,
            _depths(trace, names, np.where(node >= 0, -1, kernel)),
            told_by_kernels(trace, kernel),
        ],
        axis=1,
    )
    if not len(columns):
        return [], np.empty(0, np.int32)
    distinct, which = distinct_rows(columns)
    kinds = [
        _with(
            _kind(trace, op, *more, rule=rule, idle=bool(idle))
            if op >= 0
            else _kernel_kind(trace.symbols[kernel], names[kernel] if kernel >= 0 else None, depth),
            TOLD[told],
        )
        for op, *more, kernel, rule, idle, depth, told in distinct.tolist()
    ]
    return kinds, which.astype(np.int32)


def _depths(trace: Trace, names: KernelNames, kernel: CodeArray) -> IntArray:
    """Per kernel given the blocks in z of a GEMM's grid; 1 where it is another kernel, or none (-1)."""
    multiplies = np.array([name is not None and name.kind == "gemm" for name in names] or [False])
    asked = look_up(multiplies, look_up(trace.kernels.name, kernel), False)
    depth = np.ones(len(kernel), np.int64)
    launch = trace.kernels.launch[kernel[asked]]
    codes, which = np.unique(launch, return_inverse=True)
    grids = [trace.details.config(code).grid for code in codes.tolist()]
    depth[asked] = np.array([grid[2] if grid and len(grid) == 3 else 1 for grid in grids], np.int64)[which]
    return depth


def _leaf(trace: Trace, links: Links, rule: CodeArray) -> CodeArray:
    """Per node the innermost product or attention operator around it; of a linear layer that runs as a
    product for each sample, as rows do that lie apart, the layer."""
    found = links.forest.nearest(np.isin(rule, [RULE_CODE["linear"], RULE_CODE["bmm"], RULE_CODE["core"]]))
    layer = links.forest.nearest(trace.symbols.where("aten::linear".__eq__)[links.name])
    return np.where((look_up(rule, found) == RULE_CODE["bmm"]) & (layer >= 0), layer, found)


def _with(kind: Kind, told: str) -> Kind:
    """The same with what its kernel tells, where no shapes and types do."""
    fits = kind.what == ("add" if told in SUMS else "copy" if told in COPIES else None)
    return replace(kind, tags=kind.tags | {told}) if fits and not kind.tensors else kind


def _kind(trace: Trace, op: int, inputs: int, leaf: int, leaf_inputs: int, *, rule: int, idle: bool) -> Kind:
    name = trace.symbols[op]
    given = trace.details.inputs(inputs)
    tensors = tuple(tensors_of(given.dims or []))
    base = name.rpartition("::")[2].partition(".")[0]
    backward = "backward" in name.lower() or name.endswith("bwd")
    what = OP_RULES[rule] if rule >= 0 else ""
    if what == "linear" and trace.symbols[leaf if leaf >= 0 else op] == "aten::einsum":
        what = ""  # nothing is summed over: it multiplies element by element
    if what in _PRODUCTS and idle and not tensors:
        what = ""  # without a kernel it is of no rows, as that of an expert without tokens
    if what in ("linear", "bmm", "core"):
        shape = None
        for code, where in ((leaf, leaf_inputs), (op, inputs)):
            if shape is None and code >= 0:
                inner = trace.details.inputs(where)
                shape = shape_of(
                    trace.symbols[code], inner.dims or [], inner.types, inner.strides, inner.concrete
                )
        if what == "core":
            backward = backward or "backward" in trace.symbols[leaf].lower()
            core = shape if isinstance(shape, AttentionShape) else None
            return Kind("core", base, core=core, backward=backward, tensors=tensors)
        gemm = shape if isinstance(shape, GemmShape) else _template(tensors)
        batched = what == "bmm" or (gemm is not None and gemm.batch > 1)
        return Kind("bmm" if batched else "gemm", base, gemm=gemm, tensors=tensors)
    fused = parse_fused(name)
    if fused is not None:
        counts = not tensors and {*(given.types or ())} - {"Scalar"} == {"long int"}
        kind = _inductor_kind(name, fused, tensors)
        return replace(kind, tags=kind.tags | {"counts"}) if counts else kind
    if not what and kernel_component(_NUMBER.sub("", name)) == "mlp.other":
        return Kind("fused", name, tensors=tensors, tags=frozenset({"opaque", "activation"}))
    if what in _TAGGED:
        return Kind("fused", base, tensors=tensors, tags=frozenset({_TAGGED[what]}))
    if not what and not name.startswith("aten::") and grouped(tensors):
        return Kind("experts", base, backward=backward, tensors=tensors)
    if not what and base in _COPIES:
        types = given.types or []
        same = len(types) >= 2 and types[0] == types[1] != ""
        return Kind("copy", base, tensors=tensors, tags=frozenset({"layout"} if same else ()))
    what = "activation" if what == "nonlinearity" else what or "elementwise"
    turns = base == "mul" and _turns_heads(tensors, given.types or [])
    return Kind(what, base, backward=backward, tensors=tensors, tags=frozenset({"rope"} if turns else ()))


def _turns_heads(tensors: tuple[Dims, ...], types: Sequence[str]) -> bool:
    """Is every head's row of complex numbers multiplied with the same one (llama/model.py of
    meta-llama/llama)?"""
    if [len(tensor) for tensor in tensors] != [4, 4] or not all("complex" in name for name in types[:2]):
        return False
    (whole, by), heads = tensors, slice(1, 3)
    alike = all(n == m or n == 1 for m, n in zip(whole, by, strict=True)) and whole[3] == by[3]
    return alike and any(m > 1 == n for m, n in zip(whole[heads], by[heads], strict=True))


def _inductor_kind(name: str, fused: Fused, tensors: tuple[Dims, ...] = ()) -> Kind:
    if fused.kind != "template":
        return Kind("fused", name, tensors=tensors, tags=fused.tags)
    if "gemm" in fused.tags:
        gemm = _template(tensors)
        what = "bmm" if gemm is not None and gemm.batch > 1 else "gemm"
        return Kind(what, name, gemm=gemm, tensors=tensors, tags=fused.tags)
    if "attention" in fused.tags:
        return Kind("core", name, backward="backward" in name, tensors=tensors, tags=fused.tags)
    convolves = any(op.startswith("convolution") for op in fused.ops)
    return Kind("convolution" if convolves else "fused", name, tensors=tensors, tags=fused.tags)


def _template(tensors: tuple[Dims, ...]) -> GemmShape | None:
    """A Triton GEMM template was called with a, b and out: [M, K], [K, N], [M, N] among its tensors.

    In batches too, whose dimensions out has as one.
    """
    for a in tensors:
        for b in tensors:
            if a is b or len(a) != len(b) or len(a) < 2 or a[:-2] != b[:-2] or a[-1] != b[-2]:
                continue
            batch = prod(a[:-2])
            if (a[-2], b[-1]) in tensors or (batch, a[-2], b[-1]) in tensors:
                return GemmShape(a[-2], b[-1], a[-1], batch, None, None, None)
    return None


def grouped(tensors: tuple[Dims, ...]) -> bool:
    """Rows, weights of several groups and a size of each: a grouped GEMM, whoever wrote it."""
    matrices = [shape for shape in tensors if len(shape) == 2]
    rows = {shape[1] for shape in matrices}
    weights = [shape for shape in tensors if len(shape) == 3 and shape[0] > 1 and (shape[0],) in tensors]
    # a vector as long as a matrix is wide or high is the weight of a normalization, or a bias
    sizes = {size for shape in matrices for size in shape}
    return any(rows & {*shape[1:]} and shape[0] not in sizes | {*shape[1:]} for shape in weights)


def tensors_of(dims: list[Any]) -> list[Dims]:
    """The tensors among Input Dims, lists of tensors opened."""
    out: list[Dims] = []
    for shape in dims:
        if isinstance(shape, list) and shape:
            if all(isinstance(size, int) and not isinstance(size, bool) for size in shape):
                out.append(tuple(shape))
            else:
                out.extend(tensors_of(shape))
    return out


FILLS = "Memset (Device)"  # what a later kernel adds to
FEW_BITS = "_scaled_mm"  # a product of eight bits
#: Of kernels without an operator, what their own names say beyond ``kernel_component``: what an operator is
#: there, and its name, where that is another.
_BY_NAME = {
    "cvt_fp16_to_fp4": ("quantize", ""),  # csrc/quantization/fp4 of vLLM
    "quantize": ("quantize", ""),
    "quant_kernel": ("quantize", ""),
    "per_token": ("quantize", ""),  # ..._group_quant_fp8: Triton's in vLLM and SGLang, sgl-kernel's in CUDA
    "input_scale": ("quantize", ""),  # _tma_align_input_scale_kernel of ModelTC/lightllm: for DeepGEMM
    "segmented_max_reduction": ("quantize", ""),  # its scale: csrc/quantization/w8a8/fp8/common.cu of vLLM
    "GeluCUDAKernel": ("activation", ""),
    "silu_kernel": ("activation", ""),
    "tanh_kernel": ("activation", "tanh"),
    "sigmoid_kernel": ("activation", "sigmoid"),
    "threshold_kernel": ("activation", ""),  # ReLU's gradient, and ReLU before it was a clamp
    "GeluBackward": ("activation", ""),
    "softmax_warp": ("softmax", ""),
    "SoftMaxForward": ("softmax", ""),
    "SoftMaxBackward": ("softmax", ""),
    "LogSoftMax": ("loss", ""),
    "masked_softmax": ("softmax", ""),
    "convert": ("elementwise", ""),  # cuDNN's convert_dq
    "conv": ("convolution", ""),
    "cudnn::cnn": ("convolution", ""),
    "cask_cudnn": ("convolution", ""),  # what it indexes with, ahead of ``volta_scudnn_128x64_relu_...``
    "scudnn": ("convolution", ""),
    "CUDAFunctor_add": ("add", ""),
    "CUDAFunctorOnSelf_add": ("add", ""),
    "addBiasResidual": ("add", ""),  # kernels/add_residual_kernels.cu of FasterTransformer
    "copy_kernel": ("copy", ""),
    "topk": ("topk", ""),
    "rsqrt_kernel": ("elementwise", "rsqrt"),
    "neg_kernel": ("elementwise", "neg"),
    "CatArrayBatchedCopy": ("elementwise", "cat"),
    "cos_kernel": ("elementwise", "cos"),
    "sin_kernel": ("elementwise", "sin"),
    "pow_tensor": ("elementwise", "pow"),
    "MeanOps": ("elementwise", "mean"),
    "MulFunctor": ("elementwise", "mul"),
    "AbsFunctor": ("elementwise", "abs"),
}


def _kernel_kind(name: str, parsed: KernelName | None, depth: int) -> Kind:
    """A kernel without an operator, from its own name."""
    if parsed is not None and not parsed.kind.endswith("_helper"):
        what = "core" if parsed.kind == "attention" else "gemm"
        name = FEW_BITS if what == "gemm" and (parsed.in_dtype or "").startswith("fp8") else name
        return Kind(what, name, backward=parsed.direction == "backward", depth=depth)
    if parsed is not None:
        return Kind("helper", name)
    fused = parse_fused(name)
    if fused is not None:
        return _inductor_kind(name, fused)
    component = kernel_component(name)
    if component in ("norm", "embedding", "loss", "optimizer", "communication", "dropout"):
        return Kind(component, name, backward="ackward" in name)
    if component == "attention.core":
        return Kind("core", name, backward="bwd" in name or "ackward" in name)
    if component is not None:
        tags = {
            "mlp.other": "opaque",
            "mlp.activation": "activation",
            "attention.rope": "rope",
            "moe.router": "router",
            "moe.experts": "experts",
        }
        return Kind("fused", name, tags=frozenset({tags[component]} if component in tags else ()))
    for part, (what, called) in _BY_NAME.items():
        if part in name:
            return Kind(what, called or what, backward="ackward" in name)
    return Kind("kernel", name)
