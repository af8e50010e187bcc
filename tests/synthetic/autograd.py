"""A tape that runs backward in the order PyTorch's engine does.

The engine takes the ready node with the highest sequence number, gradients of leaves first; a
node's gradient is summed where two consumers meet, inside the evaluate_function of the second.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.synthetic import gpu
from tests.synthetic.recorder import Recorder
from tests.synthetic.spec import Where
from tests.synthetic.values import ITEM_SIZE, Value, tensor

Backward = Callable[["list[Value | None]"], "list[Value | None]"]


@dataclass(eq=False, slots=True)
class Leaf:
    """A parameter's AccumulateGrad."""

    name: str
    parameter: Value
    where: Where
    has_grad: bool = False
    on_ready: Callable[[], None] | None = None  # gradient hook, for data-parallel buckets
    sequence: int = 1 << 62
    edges: list[tuple[Node | Leaf | None, int, Value]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Node:
    """One autograd node; edges are (producer, its output slot, the input value) per forward input."""

    name: str
    sequence: int
    edges: list[tuple[Node | Leaf | None, int, Value]]
    backward: Backward
    where: Where
    outputs: int = 1


def parameter(rec: Recorder, name: str, shape: tuple[int, ...]) -> Value:
    """A trained tensor, contiguous."""
    base = tensor(shape)
    return Value(base.shape, base.strides, base.dtype, Leaf(name, base, rec.where))


def apply(rec: Recorder, name: str, sequence: int, inputs: list[Value], outputs: list[Value],
          backward: Backward) -> list[Value]:  # fmt: skip
    """Put a node on the tape for ``outputs`` if any input needs a gradient; call inside the op's event."""
    edges = [(v.node, v.slot, v) for v in inputs]
    if not any(edge[0] for edge in edges):
        return outputs
    assert sequence == rec.sequence, "the op recorded another number than its node takes"
    node = Node(name, sequence, edges, backward, rec.where, len(outputs))
    rec.innermost_event().flow = ("s", sequence, "fwdbwd")
    rec.sequence += 1
    return [Value(o.shape, o.strides, o.dtype, node, slot) for slot, o in enumerate(outputs)]


def run_backward(rec: Recorder, loss: Value) -> None:
    """loss.backward(): evaluate every reachable node on the autograd thread."""
    assert isinstance(loss.node, Node)
    waiting: dict[Node | Leaf, int] = {loss.node: 0}
    stack: list[Node | Leaf] = [loss.node]
    while stack:
        for producer, _, _ in stack.pop().edges:
            if producer is None:
                continue
            if producer not in waiting:
                waiting[producer] = 0
                stack.append(producer)
            waiting[producer] += 1
    buffers: dict[Node | Leaf, dict[int, Value]] = {loss.node: {0: tensor((), loss.dtype)}}
    ready: list[tuple[int, int, Node | Leaf]] = [(-loss.node.sequence, 0, loss.node)]
    pushed = 0
    while ready:
        node = heapq.heappop(ready)[2]
        grads = buffers.pop(node, {})
        with rec.at(phase="backward"):
            if isinstance(node, Leaf):
                _accumulate_leaf(rec, node, grads[0])
                continue
            for producer in _evaluate(rec, node, grads, buffers):
                waiting[producer] -= 1
                if not waiting[producer]:
                    pushed += 1
                    heapq.heappush(ready, (-producer.sequence, pushed, producer))


def _evaluate(rec: Recorder, node: Node, grads: dict[int, Value],
              buffers: dict[Node | Leaf, dict[int, Value]]) -> list[Node | Leaf]:  # fmt: skip
    incoming = [grads.get(slot) for slot in range(node.outputs)]
    where = node.where
    touched: list[Node | Leaf] = []
    outer = f"autograd::engine::evaluate_function: {node.name}"
    with (
        rec.at(component=where.component, layer=where.layer, module=where.module),
        rec.op(outer, (), sequence=node.sequence, forward_thread=1),
    ):
        with rec.op(node.name, tuple(incoming), sequence=node.sequence, forward_thread=1) as inner:
            inner.flow = ("f", node.sequence, "fwdbwd")
            results = node.backward(incoming)
        for (producer, slot, source), grad in zip(node.edges, results, strict=True):
            if producer is None:
                continue
            touched.append(producer)
            if grad is None:
                continue
            _add_to_buffer(rec, buffers.setdefault(producer, {}), producer, slot, _fit(rec, grad, source))
    return touched


def _fit(rec: Recorder, grad: Value, source: Value) -> Value:
    """Sum a gradient down to the shape that was broadcast in the forward."""
    if grad.shape == source.shape:
        return grad
    lead = len(grad.shape) - len(source.shape)
    padded = (1,) * lead + source.shape
    dims = tuple(i for i, (g, s) in enumerate(zip(grad.shape, padded, strict=True)) if g != s)
    kept = tensor(padded, grad.dtype)
    with rec.op("aten::sum", (grad, dims, True, None)):
        rec.launch(gpu.reduction(grad.elements, source.elements, ITEM_SIZE[grad.dtype]))
    if lead:
        rec.leaf("aten::view", kept, source.shape)
    return tensor(source.shape, grad.dtype)


def _add_to_buffer(
    rec: Recorder, buffer: dict[int, Value], producer: Node | Leaf, slot: int, grad: Value
) -> None:
    """Keep the gradient, or add it to the one that came first.

    The sum belongs to the branch that forked in the forward, so its truth is the producer's place,
    although it runs inside the evaluate_function of a consumer: not strict.
    """
    if slot not in buffer:
        buffer[slot] = grad
        return
    place = producer.where
    name = "aten::add" if isinstance(producer, Leaf) else "aten::add_"  # a leaf's first gradient is a view
    with (
        rec.at(component=place.component, layer=place.layer, module=place.module),
        rec.op(name, (buffer[slot], grad, 1)),
    ):
        rec.launch(gpu.pointwise("add", grad.elements, ITEM_SIZE[grad.dtype]), strict=False)


def _accumulate_leaf(rec: Recorder, leaf: Leaf, grad: Value) -> None:
    name = "torch::autograd::AccumulateGrad"
    with (
        rec.at(component=leaf.where.component, layer=leaf.where.layer, module=leaf.where.module),
        rec.op(f"autograd::engine::evaluate_function: {name}", ()),
    ):
        with rec.op(name, (grad,)):
            if leaf.has_grad:
                with rec.op("aten::add_", (leaf.parameter, grad, 1)):
                    rec.launch(gpu.pointwise("add", grad.elements), strict=False)
            else:
                with rec.op("aten::detach", (grad,)):
                    rec.leaf("detach", grad)
        leaf.has_grad = True
        if leaf.on_ready is not None:
            leaf.on_ready()
