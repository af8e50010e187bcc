"""What the sizes of an operator's inputs tell of its site: vocabulary, residual sum, mixture, channels."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tracelens.attribution.names import RULE_CODE
from tracelens.gemm import GemmShape, shape_of
from tracelens.trace import BoolArray, CodeArray, Links, Trace

#: What a mixture does with the rows of each choice, without its experts' products.
_ON_ROUTED = frozenset({"aten::copy_", "aten::mul", "aten::sum"})
#: Of what is chosen: which tokens an expert gets.
_ASKS = re.compile(r"(aten|prims)::(eq|ne|any)")


def on_vocabulary(trace: Trace, links: Links, rule: CodeArray, nodes: CodeArray) -> CodeArray:
    """Per site: 1 for a GEMM with a weight of the shape of the token table, 2 for other work on logits.

    A sum of logits can be of the loss, and the gradient of the head's bias. The token table is the largest
    table that ``aten::embedding`` reads: (vocabulary, hidden); its backward is given rows of tokens.
    """
    ops = trace.ops
    forward = ~trace.symbols.where(lambda name: "backward" in name.lower())[ops.name]
    looks_up = forward & (rule[links.ops_at] == RULE_CODE["embedding"])
    tables = [
        dims[0]
        for code in np.unique(ops.inputs[looks_up])
        if (dims := trace.details.inputs(int(code)).dims) and _is_shape(dims[0], 2)
    ]
    out = np.zeros(len(nodes), np.int32)
    if not tables:
        return out
    vocab, hidden = max(tables, key=lambda shape: shape[0])
    if vocab < 2 * hidden:
        return out  # a table of positions, not of tokens
    codes = ops.inputs[nodes - links.ops_at.start]
    verdict = {
        int(code): _on_vocabulary(trace.details.inputs(int(code)).dims, vocab, hidden)
        for code in np.unique(codes)
    }
    out[:] = [verdict[int(code)] for code in codes]
    sums = [code for code, name in enumerate(trace.symbols) if name == "aten::sum"]
    out[np.isin(ops.name[nodes - links.ops_at.start], sums)] = 0
    return out


def _on_vocabulary(dims: list[Any] | None, vocab: int, hidden: int) -> int:
    shapes = [shape for shape in dims or [] if isinstance(shape, list) and shape]
    if any(shape in ([vocab, hidden], [hidden, vocab]) for shape in shapes):
        return 1
    return 2 if shapes and shapes[0][-1] == vocab and len(shapes[0]) >= 2 else 0


def _is_shape(value: object, rank: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == rank
        and all(isinstance(size, int) and size > 0 for size in value)
    )


def residual_sums(trace: Trace, links: Links, rule: CodeArray) -> CodeArray:
    """1 for additions of two activations of the same shape, three-dimensional or more; -1 without shapes."""
    return _told(trace, links, rule == RULE_CODE["add"], _adds_activations)


def _told(trace: Trace, links: Links, asked: BoolArray, tell: Callable[[list[Any] | None], int]) -> CodeArray:
    """Per node what ``tell`` says of the shapes of its inputs; 0 for those that are not asked for."""
    out = np.zeros(len(asked), np.int32)
    nodes = np.flatnonzero(asked)
    codes = trace.ops.inputs[nodes - links.ops_at.start]
    told = {int(code): tell(trace.details.inputs(int(code)).dims) for code in np.unique(codes)}
    out[nodes] = [told[int(code)] for code in codes]
    return out


def _adds_activations(dims: list[Any] | None) -> int:
    if not dims or len(dims) < 2:
        return -1 if dims is None else 0
    a, b = dims[0], dims[1]
    return isinstance(a, list) and a == b and len(a) >= 2 and _is_shape(a, len(a))


def product_sizes(trace: Trace, links: Links, node: int) -> tuple[int, ...]:
    """Rows, and the width of the weight to and from, of the product that an operator is; () unknown."""
    row = node - links.ops_at.start
    given = trace.details.inputs(int(trace.ops.inputs[row]))
    name = trace.symbols[int(trace.ops.name[row])]
    shape = shape_of(name, given.dims or [], given.types, given.strides, given.concrete)
    return (shape.m, shape.n, shape.k) if isinstance(shape, GemmShape) else ()


def of_mixture(trace: Trace, links: Links, rule: CodeArray) -> CodeArray:
    """Per node: 1 for an index that takes the matrices that a batched product multiplies with, one for each
    token; 2 for a linear layer as wide as what ``topk`` chooses from; 3 for what copies the rows that such a
    layer takes for each choice, weighs or sums their results, [rows, choices, width], or asks who chose an
    expert; else 0."""
    seen: dict[str, set[tuple[int, ...]]] = {"bmm": set(), "topk": set(), "softmax": set(), "linear": set()}

    def note(name: str, sizes: list[Any]) -> int:
        seen[name] |= {tuple(size) for size in sizes if _is_shape(size, 2) or _is_shape(size, 3)}
        return 0

    def named(name: str) -> BoolArray:
        return np.asarray(rule == RULE_CODE[name])

    _told(trace, links, named("bmm"), lambda dims: note("bmm", (dims or [])[1:2]))
    _told(trace, links, named("topk"), lambda dims: note("topk", (dims or [])[:1]))
    _told(trace, links, named("softmax"), lambda dims: note("softmax", (dims or [])[:1]))
    matrices = {sizes[1:] for sizes in seen["bmm"]} | {sizes[:0:-1] for sizes in seen["bmm"]}
    choices = {sizes[-1] for sizes in seen["topk"] if sizes}

    def weights(dims: list[Any] | None) -> int:
        source = dims[0] if dims else None
        return int(source is not None and _is_shape(source, 3) and tuple(source[1:]) in matrices)

    def choice(dims: list[Any] | None) -> int:
        right = next((one for one in reversed(dims or []) if _is_shape(one, 2)), [0])
        if right[-1] not in choices:
            return 0
        note("linear", [one for one in dims or [] if _is_shape(one, 2)][:1])
        return 2

    def routed(dims: list[Any] | None) -> int:
        of = next((tuple(one) for one in dims or [] if _is_shape(one, 3)), ())
        rows = (*of[:1], *of[2:]) in seen["linear"]
        return 3 * int(rows and (of[1] > 1 or of[:2] in seen["softmax"]))  # [batch, 1, width] is a token each

    found = _told(trace, links, named("dispatch"), weights) + _told(trace, links, named("linear"), choice)
    moves = trace.symbols.where(lambda text: text in _ON_ROUTED)[links.name] & links.is_op
    asks = trace.symbols.where(lambda text: bool(_ASKS.fullmatch(text)))[links.name] & links.is_op
    return found + _told(trace, links, moves, routed) + 3 * asks


def batched_products(trace: Trace, links: Links, rule: CodeArray) -> BoolArray:
    """Per node: is it several products in one, of no one weight?"""
    bmm = rule == RULE_CODE["bmm"]
    return _told(trace, links, bmm, lambda dims: int(_is_shape(x := (dims or [0])[0], 3) and x[0] > 1)) > 0


def convolved_by_channel(trace: Trace, links: Links, rule: CodeArray) -> CodeArray:
    """Per node: 1 for a convolution of each channel by itself, which mixes places."""
    return _told(trace, links, rule == RULE_CODE["convolution"], _is_by_channel)


def _is_by_channel(dims: list[Any] | None) -> int:
    """1 for a convolution of each channel by itself over several places: it mixes those."""
    weight = dims[1] if dims and len(dims) > 1 else None
    return int(isinstance(weight, list) and len(weight) > 2 and weight[1] == 1 and max(weight[2:]) > 1)
