"""Operators that together do what one has a name for: linear layers by ``einsum``, softmax by ``exp``."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from tracelens.attribution.names import RULE_CODE
from tracelens.trace import BoolArray, CodeArray, Links, Trace

_ENDS = {"aten::div": "softmax", "aten::div_": "softmax", "aten::log": "loss"}


def as_written(trace: Trace, links: Links, rule: CodeArray, backward: BoolArray) -> CodeArray:
    """The rules (``names.OP_RULES``, per node) and those of what is written out; ``backward`` is per node."""
    rule = rule.copy()
    within = np.flatnonzero(rule == RULE_CODE["bmm"])
    # aten::matmul and aten::einsum of two batches run a bmm (and copy for it), and are no linear layers
    above = links.forest.above(links.forest.nearest(rule >= 0))[within]
    batched = (above >= 0) & (rule[above] == RULE_CODE["linear"])
    within, above = within[batched], above[batched]
    calls = [
        (int(a), int(b))
        for a, b in zip(_inputs(trace, links, above), _inputs(trace, links, within), strict=True)
    ]
    told = {call: _by_matrix(*(trace.details.inputs(code).dims or [] for code in call)) for call in {*calls}}
    one = np.array([told[call] for call in calls], np.bool_)
    rule[above] = RULE_CODE["bmm"]
    for nodes in (within, above):
        rule[nodes[one]] = RULE_CODE["linear"]
    products = np.flatnonzero(np.isin(rule, [RULE_CODE["linear"], RULE_CODE["bmm"]]))
    products = products[np.argsort(links.ts_ns[products], kind="stable")]
    for node, name in _weighed(trace, links):
        behind = products[np.searchsorted(links.ts_ns[products], links.ts_ns[node], side="right") :][:1]
        # a loss is behind all products of its forward; inside it, balance is found so as well (routers)
        if name != "loss" or backward[behind].all():
            rule[node] = RULE_CODE[name]
    return rule


def _inputs(trace: Trace, links: Links, nodes: CodeArray) -> CodeArray:
    """Per operator node the code of what it was called with (``Details.inputs``)."""
    codes: CodeArray = trace.ops.inputs[nodes - links.ops_at.start]
    return codes


def _by_matrix(around: list[Any], product: list[Any]) -> bool:
    """Is it one product, of rows with a matrix that an einsum was given? Batches of one sample are not."""
    taken = [one for one in around if isinstance(one, list)]
    operands = next((one for one in taken if one and all(isinstance(x, list) for x in one)), [])
    ones = {one[0] for one in product if isinstance(one, list) and len(one) == 3}
    return ones == {1} and any(len(one) == 2 for one in operands)


def _weighed(trace: Trace, links: Links) -> Iterator[tuple[int, str]]:
    """Each ``exp`` of whose rows the sums are taken next, and the rule of what is done with those: what they
    divide is a softmax, their logarithm is of a loss."""
    ops = np.unique(links.kernel_op[links.kernel_op >= 0])
    ops = ops[np.argsort(links.ts_ns[ops], kind="stable")]
    names, codes = trace.ops.name[ops - links.ops_at.start], _inputs(trace, links, ops)
    begins, adds = (trace.symbols.where(one.__eq__)[names] for one in ("aten::exp", "aten::sum"))
    for of, rule in _ENDS.items():
        ends = trace.symbols.where(of.__eq__)[names]
        for at in np.flatnonzero(begins[:-2] & adds[1:-1] & ends[2:]).tolist():
            given = (trace.details.inputs(code).dims or [] for code in codes[at : at + 3].tolist())
            if _sums_rows(*(dims[:2] for dims in given)):
                yield int(ops[at]), rule


def _sums_rows(exp: list[Any], total: list[Any], end: list[Any]) -> bool:
    """Where sizes say it: are both of one tensor, and does the end take one number for each of its rows?"""
    if not exp or not total or not end:
        return not (exp or total or end)
    whole, sums = exp[0], next((one for one in reversed(end) if isinstance(one, list) and one), [])
    rows = {prod(whole) // size for size in whole if size > 1}
    return len(whole) > 1 and whole == total[0] and prod(sums) in rows
