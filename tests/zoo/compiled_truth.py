"""What a call of an Inductor program really computes, from the fx nodes it was made of."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.fx import Node

from tests.synthetic.spec import Truth
from tests.zoo.compiled_graphs import IS_FORWARD, PRODUCTS, ROLE, bare_name
from tests.zoo.compiled_inductor import Call, Tensor

#: Nodes that move no data.
_VIEWS = {
    "view", "permute", "t", "transpose", "getitem", "slice", "split", "split_with_sizes", "select", "alias",
    "unsqueeze", "squeeze", "expand", "reshape", "_unsafe_view", "detach", "unbind", "as_strided",
    "inductor_lookup_seed",
}  # fmt: skip
#: Nodes that read more than they write.
_REDUCTIONS = {
    "sum", "mean", "amax", "amin", "var_mean", "var", "argmax", "any", "prod", "prepare_softmax_online",
    "cumsum", "max", "min",
}  # fmt: skip
#: Parts of the names of nodes that write into a larger tensor.
_SCATTERS = ("index_put", "scatter", "index_add")


@dataclass(frozen=True, slots=True)
class CompiledTruth(Truth):
    """Truth of a kernel that may do the work of several components; ``component`` has most of it."""

    components: tuple[str, ...] = ()  # sorted; those of nodes that gradients' sums belong to stay out


@dataclass(frozen=True, slots=True)
class Label:
    """The part of a model a call works on.

    ``strict`` is False where no part of the model claims any of it, such as the sum of two gradients.
    """

    component: str
    layer: int | None
    components: tuple[str, ...]
    phase: str
    role: str | None
    strict: bool


@dataclass(frozen=True, slots=True)
class Product:
    """out[m,n] = a[m,k] @ b[k,n], ``batch`` times."""

    m: int
    n: int
    k: int
    batch: int

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


def product_of(call: Call) -> Product | None:
    """Sizes of the GEMM a call is, as issued: padded where Inductor padded."""
    if call.main is None or call.main.target not in PRODUCTS:
        return None
    a, b = [tensor for tensor in call.arguments if isinstance(tensor, Tensor)][-3:-1]
    batch = a.shape[0] if len(a.shape) == 3 else 1
    return Product(a.shape[-2], b.shape[-1], a.shape[-1], batch)


def label(call: Call, *, backward: bool) -> Label:
    """The component of most of the call's work, and of all of it."""
    nodes = _nodes_of(call)
    work: Counter[tuple[str, int | None]] = Counter()
    strict = False
    for node in nodes:
        part = _part(node)
        if part is not None:
            work[str(part["component"]), part["layer"]] += _work(node)
            strict |= bool(part.get("strict", True))
    components: Counter[str] = Counter()
    for (component, _), amount in work.items():
        components[component] += amount
    if not components:
        return Label(_unnamed(nodes), None, (), _phase(nodes, backward), None, False)
    main = max(components, key=lambda component: components[component])
    layer = max((key for key in work if key[0] == main), key=lambda key: work[key])[1]
    return Label(main, layer, tuple(sorted(components)), _phase(nodes, backward), _role(call, nodes), strict)


def _part(node: Node) -> dict[str, Any] | None:
    custom: dict[str, Any] = node.meta.get("custom") or {}
    return custom if "component" in custom else None


def _nodes_of(call: Call) -> list[Node]:
    """The nodes that do the call's work; Inductor lists also those whose result is only read.

    No views and no products; of a kernel that reads nothing only what needs no input; nothing that has
    more elements than the kernel goes through, which an earlier kernel computed. Where that leaves
    nothing, the call is the second stage of a reduction.
    """
    if call.main is not None:
        return [call.main]
    doing = [n for n in call.nodes if bare_name(n) not in _VIEWS and n.target not in PRODUCTS]
    if not call.reads:
        doing = [n for n in doing if not n.all_input_nodes] or doing
    most = math.prod(call.sizes.values()) if call.sizes else max(t.elements for t in call.tensors)
    least = min((tensor.elements for tensor in call.writes), default=1)
    fitting = [n for n in doing if least <= _work(n) <= most]
    if call.name.startswith(("triton_red_", "triton_per_")) and not any(map(_reduces, fitting)):
        fitting = []  # the second stage of a sum, whose first one reads what fits
    last = [n for n in doing if _reduces(n) and not _feeds_reduction(n, doing)]
    return fitting or last or doing or list(call.nodes)


def _reduces(node: Node) -> bool:
    return bare_name(node) in _REDUCTIONS


def _feeds_reduction(node: Node, nodes: list[Node]) -> bool:
    inside, queue = set(nodes), list(node.users)
    while queue:
        user = queue.pop()
        if user in inside:
            if _reduces(user):
                return True
            queue += user.users
    return False


def _work(node: Node) -> int:
    """Elements a node goes through: those it reads for a reduction, those it adds for a scatter."""
    name = bare_name(node)
    if any(word in name for word in _SCATTERS):
        return max(_elements(source) for source in node.all_input_nodes[1:])
    sizes = [_elements(node)]
    if _reduces(node):
        sizes += [_elements(source) for source in node.all_input_nodes]
    return max(sizes)


def _elements(node: Node) -> int:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return max([1, *(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))])


def _phase(nodes: list[Node], backward: bool) -> str:
    """Backward graphs hold forward nodes that are computed again."""
    if not backward:
        return "forward"
    computed = [node for node in nodes if node.all_input_nodes]  # constants belong to no phase
    again = bool(computed) and all(node.meta.get(IS_FORWARD, False) for node in computed)
    return "recompute" if again else "backward"


def _role(call: Call, nodes: list[Node]) -> str | None:
    if call.main is None or product_of(call) is None:
        return None
    role: str | None = nodes[0].meta.get(ROLE)
    return role


def _unnamed(nodes: list[Node]) -> str:
    random = any(bare_name(node) in ("inductor_seeds", "inductor_random") for node in nodes)
    return "dropout" if random else "other"
