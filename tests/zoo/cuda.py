"""Makes of a program recorded on the meta device the one that CUDA would have run.

Private ranges become what they stand for or go away; below an operator that is one kernel on CUDA
nothing stays of what the meta device does instead; and every such operator launches its kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from tests.synthetic import gpu
from tests.zoo.capture import Note, State
from tests.zoo.inputs import SIZES
from tests.zoo.kernels import LEAVES, PRODUCTS, copy, works_of
from tests.zoo.kernels_named import MULTI_TENSOR, attention, convolution_flops, multi_tensor
from tests.zoo.products import Product
from tests.zoo.program import EVALUATE, Launch, Op, dense, tensors

#: Operators without work of their own; their children may have some.
_FREE = {
    "aten::_reshape_alias", "aten::_to_copy", "aten::_unsafe_view", "aten::alias", "aten::argsort",
    "aten::as_strided", "aten::chunk", "aten::clone", "aten::constant_pad_nd", "aten::contiguous",
    "aten::conv2d", "aten::cross_entropy_loss", "aten::detach", "aten::dropout", "aten::embedding_backward",
    "aten::empty", "aten::empty_like", "aten::empty_permuted", "aten::empty_strided", "aten::expand",
    "aten::expand_as", "aten::flatten", "aten::full_like", "aten::item", "aten::layer_norm",
    "aten::lift_fresh", "aten::linear", "aten::log_softmax", "aten::matmul", "aten::narrow",
    "aten::new_empty", "aten::new_empty_strided", "aten::nll_loss", "aten::nll_loss_nd", "aten::ones_like",
    "aten::pad", "aten::permute", "aten::reshape", "aten::resize_", "aten::select", "aten::slice",
    "aten::softmax", "aten::split", "aten::split_with_sizes", "aten::squeeze", "aten::stack", "aten::t",
    "aten::to", "aten::transpose", "aten::unflatten", "aten::unsqueeze", "aten::view", "aten::view_as",
}  # fmt: skip
_FUSED_ATTENTION = ("aten::_scaled_dot_product_flash", "aten::_scaled_dot_product_efficient")


class Rewriter:
    """One pass over the trees; ``products`` are theirs, in the order in which they ran."""

    def __init__(self, products: list[Product]) -> None:
        self._products = products
        self._next = 0
        self._lists: list[tuple[int, ...]] = []  # what foreach operators work on

    def finish(self) -> None:
        """Every product of the log has been seen."""
        if self._next != len(self._products):
            raise ValueError(f"the profiler saw {self._next} of {len(self._products)} products")

    def rewrite(self, ops: list[Op], state: State) -> list[Op]:
        return [new for op in ops for new in self._rewrite(op, state)]

    def _rewrite(self, op: Op, state: State) -> Iterator[Op]:
        if op.note is not None:
            yield from self._private(op, op.note)
        elif op.name.startswith(EVALUATE):
            yield self._evaluate(op)
        elif op.category != "cpu_op":
            op.children = self.rewrite(op.children, state)
            yield op
        else:
            if not op.stopped:
                self._operator(op, state)
            yield op

    def _private(self, op: Op, note: Note) -> Iterator[Op]:
        if note.kind in ("part", "node"):
            if note.tensors:
                before, self._lists = self._lists, [sizes for sizes, _ in note.tensors]
                yield from self.rewrite(op.children, note.state)
                self._lists = before
                return
            yield from self.rewrite(op.children, note.state)
            return
        if note.kind == "collective":
            yield collective(note)
            return
        children = self.rewrite(op.children, note.state)
        if note.kind == "call" and "::" not in note.text:
            yield Op(note.text, "bare", launches=[Launch(_triton(note), note.state)])
        elif note.kind == "call":
            yield _call(note, children)
        else:
            category = "module" if note.kind == "module" else "frame"
            yield Op(note.text, category, children=children, note=note)

    def _evaluate(self, op: Op) -> Op:
        """An autograd node. What runs beside it are sums of gradients where the forward forked."""
        inner = next(child for child in op.children if child.note is not None)
        assert inner.note is not None
        beside = replace(inner.note.state, strict=False)
        if op.name.endswith("AccumulateGrad"):
            inner.note = replace(inner.note, state=beside)
        op.children = self.rewrite(op.children, beside)
        node = op.children[0]
        op.sequence, op.forward_thread = node.sequence, node.forward_thread
        return op

    def _operator(self, op: Op, state: State) -> None:
        name = op.name
        if name in PRODUCTS:
            self._product(op, state)
        elif name in MULTI_TENSOR:
            op.children = []
            op.launches = [Launch(work, state) for work in multi_tensor(name, self._lists)]
        elif name.startswith(_FUSED_ATTENTION):
            _attention(op, state)
        elif name in _REWRITTEN:
            _REWRITTEN[name](op, state)
        elif name in LEAVES:
            op.children = []
            op.launches = [Launch(work, state) for work in works_of(name, op.inputs)]
        elif name in _FREE or not name.startswith(("aten::", "prims::")):
            op.children = self.rewrite(op.children, state)
        else:
            raise NotImplementedError(f"{name}: does it launch a kernel?")

    def _product(self, op: Op, state: State) -> None:
        product = self._products[self._next]
        self._next += 1
        if product.name != op.name:
            raise ValueError(f"the log has {product.name} where the profiler saw {op.name}")
        op.children = []
        first, *rest = works_of(op.name, op.inputs)
        op.launches = [Launch(first, state, product, product.flops), *(Launch(w, state) for w in rest)]


def _call(note: Note, children: list[Op]) -> Op:
    """An operator that only CUDA has above ``children``."""
    op = Op(note.text, shapes=tensors(*note.tensors), children=children)
    numbered = next((child for child in children if child.sequence is not None), None)
    op.sequence = None if numbered is None else numbered.sequence
    return op


def _triton(note: Note) -> gpu.Work:
    """A Triton kernel: bf16 in and out, at the speed of memory."""
    elements = sum(prod(sizes) for sizes, _ in note.tensors)
    duration = gpu.streaming_ns(2 * elements)
    return gpu.Work(
        note.text, duration, "kernel", "cuLaunchKernelEx", (note.tensors[0][0][0], 1, 1), (1024, 1, 1)
    )


def _leaf(name: str, state: State, *works: gpu.Work, shapes: dict[str, Any] | None = None) -> Op:
    return Op(name, shapes=shapes or {}, launches=[Launch(work, state) for work in works])


# -- operators whose children differ on CUDA -----------------------------------------------------------


def _copy(op: Op, state: State) -> None:
    op.children = []
    works = [copy(op.inputs, from_host=state.component == "memory" and state.phase == "other")]
    if state.component in ("attention.scores", "attention.values"):
        state = replace(state, component="attention.other", strict=False)  # a change of layout, no product
    op.launches = [Launch(work, state) for work in works]


def _zeros(op: Op, state: State) -> None:
    """Memory, and a kernel that fills it. The size is a tensor's (zeros_like) or the first list."""
    inputs = op.inputs
    listed = next((json.loads(c) for c in inputs.concrete if c.startswith("[")), None)
    size = inputs.sizes[0] if listed is None else listed
    kind = inputs.types[0] if inputs.types[0] in SIZES else "c10::BFloat16"
    op.children = [_zero(size, kind, state)]


def _zero(size: list[int], kind: str, state: State) -> Op:
    shapes = tensors(dense(size), kind=kind)
    fill = _leaf("aten::fill_", state, gpu.pointwise("fill", prod(size), SIZES[kind]), shapes=shapes)
    return Op("aten::zero_", shapes=shapes, children=[fill])


def _scatter_backward(op: Op, state: State) -> None:
    """slice_backward, select_backward: zeros, and the gradient copied to its place."""
    inputs = op.inputs
    size = next(json.loads(c) for c in inputs.concrete if c.startswith("["))
    kind = inputs.types[0]
    whole, piece = dense(size), (inputs.sizes[0], dense(size)[1][: len(inputs.sizes[0])])
    shapes = tensors(piece, (inputs.sizes[0], inputs.strides[0]), kind=kind)
    view = op.name.removesuffix("_backward")
    op.children = [
        Op("aten::zeros", children=[Op("aten::empty"), _zero(size, kind, state)]),
        Op(view, shapes=tensors(whole, kind=kind)),
        _leaf("aten::copy_", state, gpu.copy(inputs.elements(0), SIZES[kind], SIZES[kind]), shapes=shapes),
    ]


def _topk_backward(op: Op, state: State) -> None:
    size = next(json.loads(c) for c in op.inputs.concrete if c.startswith("["))
    kind, name = op.inputs.types[0], "aten::scatter_"
    scatter = works_of("aten::gather", op.inputs)
    op.children = [_zero(size, kind, state), _leaf(name, state, *scatter, shapes=op.shapes)]


def _embedding(op: Op, state: State) -> None:
    """A gather of rows."""
    inputs = op.inputs
    weight, index = (inputs.sizes[0], inputs.strides[0]), inputs.sizes[1]
    count = prod(index)
    shapes = tensors(weight, ([], []), dense([count]))
    shapes["Input type"], shapes["Concrete Inputs"] = [inputs.types[0], "Scalar", "long int"], ["", "0", ""]
    work = gpu.named("gather", 4 * count * weight[0][1], blocks=count)
    flat = tensors((index, inputs.strides[1]), kind="long int")
    before = Op("aten::reshape", shapes=flat, children=[Op("aten::view", shapes=flat)])
    after = Op("aten::view", shapes=tensors(dense([count, weight[0][1]])))
    gather = _leaf("aten::index_select", state, work, shapes=shapes)
    op.children = [before, gather, after] if len(index) > 1 else [gather]


def _arange(op: Op, state: State) -> None:
    if any(child.name == op.name for child in op.children):
        for child in op.children:
            _arange(child, state)
        return
    op.children = []
    if op.name == "aten::arange":
        op.launches = [Launch(gpu.named("arange", 8192, threads=64), state)]


def _convolution(op: Op, state: State) -> None:
    """cuDNN multiplies, PyTorch adds the bias."""
    turn, fprop, bias = works_of(op.name, op.inputs)
    flops = convolution_flops(op.inputs, backward=False)
    first = Op("aten::cudnn_convolution", shapes=_first(op, 2))
    first.launches = [Launch(turn, state), Launch(fprop, replace(state, role="forward"), flops=flops)]
    add = _leaf("aten::add_", state, bias)
    op.children = [Op("aten::_convolution", shapes=op.shapes, children=[first, add])]


def _first(op: Op, count: int) -> dict[str, Any]:
    return {key: value[:count] for key, value in op.shapes.items()}


def _convolution_backward(op: Op, state: State) -> None:
    op.children = []
    wgrad, bias = works_of(op.name, op.inputs)
    flops = convolution_flops(op.inputs, backward=True)
    op.launches = [Launch(wgrad, replace(state, role="wgrad"), flops=flops), Launch(bias, state)]


def _attention(op: Op, state: State) -> None:
    """The operator above the kernel takes [b, s, heads, d]: transposes, then the kernels.

    FLOPs are those of the full score matrix, as torch's FlopCounterMode counts them: two products
    forward, two and a half times that backward.
    """
    inputs, backward = op.inputs, op.name.endswith("_backward")
    at = 1 if backward else 0
    q, k, v = (inputs.sizes[i] for i in range(at, at + 3))
    works = attention(op.name, q)
    flops = 2.0 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3]) * (2.5 if backward else 1)
    heaviest = max(works, key=lambda work: work.duration_ns)
    inner = Op("aten::_flash_attention" if "flash" in op.name else "aten::_efficient_attention")
    inner.name += "_backward" if backward else "_forward"
    turned = range(4 if backward else 3)
    inner.shapes = {key: list(value) for key, value in op.shapes.items()}
    for i in turned:
        for key in ("Input Dims", "Input Strides"):
            b, heads, s, d = inner.shapes[key][i]
            inner.shapes[key][i] = [b, s, heads, d]
    inner.launches = [Launch(w, state, flops=flops if w is heaviest else 0.0) for w in works]
    views = [Op("aten::transpose", shapes=tensors((inputs.sizes[i], inputs.strides[i]))) for i in turned]
    op.children = [*views, inner, *([] if backward else [Op("aten::transpose")])]


def collective(note: Note) -> Op:
    """An all-reduce of c10d over NCCL, as ProcessGroupNCCL records it."""
    elements, ranks = prod(note.tensors[0][0]), note.ranks
    group = {
        "Collective name": note.text, "In msg nelems": elements, "Out msg nelems": elements,
        "Group size": ranks, "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
        "Process Group Name": "1", "Process Group Description": "mesh_tp",
        "Process Group Ranks": str(list(range(ranks))),
    }  # fmt: skip
    shapes = tensors(note.tensors[0])
    span = Op("nccl:all_reduce", "user_annotation")
    span.launches = [Launch(gpu.all_reduce(elements, ranks), note.state, collective=group)]
    params = Op("record_param_comms", shapes=shapes, children=[span], extra=group)
    return Op("c10d::allreduce_", shapes=shapes, children=[params])


_REWRITTEN = {
    "aten::copy_": _copy,
    "aten::zeros": _zeros,
    "aten::new_zeros": _zeros,
    "aten::zeros_like": _zeros,
    "aten::slice_backward": _scatter_backward,
    "aten::select_backward": _scatter_backward,
    "aten::value_selecting_reduction_backward": _topk_backward,
    "aten::embedding": _embedding,
    "aten::arange": _arange,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
