"""The places in the host code that GPU work comes from, and the component of each.

A site is an operator that launches kernels, or the forward operator that a backward one belongs to.
All features are arrays over sites; a decision is made once per distinct combination.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracelens.attribution.components import Decision, Situation, decide, is_of_product
from tracelens.attribution.ends import ENDS
from tracelens.attribution.names import OP_RULES, RULE_CODE, op_rule
from tracelens.attribution.paths import Element, Paths
from tracelens.attribution.site_sizes import (
    batched_products,
    convolved_by_channel,
    of_mixture,
    on_vocabulary,
    product_sizes,
    residual_sums,
)
from tracelens.attribution.written import as_written
from tracelens.trace import BoolArray, CodeArray, IntArray, Links, Trace, distinct_rows

_LATEST = np.iinfo(np.int64).max
_GATED = 3  # products of a gated MLP


@dataclass(frozen=True)
class Sites:
    """Per host node: which decision holds (-1: none was reached)."""

    decision: CodeArray
    decisions: list[Decision]
    transformer: bool


def operator_rules(trace: Trace, links: Links, again: BoolArray, backward: BoolArray) -> CodeArray:
    """Per host node the code of the rule (``names.OP_RULES``) of its operator's own name; -1.

    ``backward``: per node, is it of that? A node of it inside which a forward runs ``again`` says nothing of
    that.
    """
    rule_of_symbol = np.array(
        [RULE_CODE.get(op_rule(text) or "", -1) for text in trace.symbols] or [-1], np.int32
    )
    rule = np.where(links.is_op, rule_of_symbol[links.name], -1).astype(np.int32)
    rule = as_written(trace, links, rule, backward & ~again)
    # what dequantizes a weight and multiplies with it (MatMul4Bit of bitsandbytes) is a linear layer
    above = links.forest.above(links.forest.nearest(rule >= 0))[rule == RULE_CODE["linear"]]
    rule[above[(above >= 0) & (rule[above] == RULE_CODE["quantize"])]] = RULE_CODE["linear"]
    around = links.forest.parent[again]
    while len(around := np.unique(around[around >= 0])):
        around = around[~again[around]]
        rule[around] = -1
        around = links.forest.parent[around]
    return rule


def decide_sites(
    trace: Trace,
    links: Links,
    paths: Paths,
    rule: CodeArray,
    wanted: BoolArray,
    *,
    attention: bool,
    behind: BoolArray,
    end: CodeArray,
) -> Sites:
    """Decide the component of every wanted operator node.

    ``rule`` is per node (``operator_rules``); ``attention``: does the order of the operators hold a core?
    ``behind``: per node, does it run between the model and the backward? ``end``: a place in ``ends.ENDS``.
    """
    telling = (rule >= 0) & (rule != RULE_CODE["attention_block"])
    outermost = links.forest.outermost(telling)
    innermost = links.forest.nearest(telling)
    fused = (rule == RULE_CODE["core"]) | (rule == RULE_CODE["attention_block"])
    # a block called attention must do some of it: convolutions have "channel attention"
    attends = np.isin(rule, [RULE_CODE[name] for name in ("core", "softmax", "bmm")])
    transformer = attention or bool(fused.any() or (paths.attention[attends] >= 0).any())
    transformer = transformer or _makes_queries_keys_and_values(paths, rule, outermost)

    after_core = _after_core(links, paths, rule)
    around = _around_sums(trace, links, paths, rule, innermost, wanted & links.is_op)
    after_core = np.where(after_core < 0, around, after_core)
    linears_after = _linears_after(trace, links, paths, rule, outermost, after_core)
    by_channel = convolved_by_channel(trace, links, rule)
    position, count, before_activation, after_activation = _in_mlp(
        links, paths, np.where(by_channel == 1, -1, rule), outermost
    )
    residual = residual_sums(trace, links, rule)
    _beside_products(links, paths, rule, residual)
    experts = _experts(paths, rule)
    batched = bool((rule == RULE_CODE["bmm"]).any())
    convolves, on_maps = _convolves(paths, rule), _blocks_on_maps(paths, rule)
    nodes = np.flatnonzero(wanted & links.is_op).astype(np.int32)
    vocabulary = on_vocabulary(trace, links, rule, nodes)
    outer_rule = np.where(outermost[nodes] >= 0, rule[outermost[nodes]], -1)
    inner_rule = np.where(innermost[nodes] >= 0, rule[innermost[nodes]], -1)
    features = {
        "path": paths.of_node[nodes],
        "outer": outer_rule,
        "inner": inner_rule,
        "after_core": after_core[nodes],
        "linears_after": np.minimum(linears_after[nodes], 2),
        "position": position[nodes],
        "count": count[nodes],
        "before_activation": before_activation[nodes].astype(np.int32),
        "after_activation": after_activation[nodes],
        "residual": residual[nodes],
        "vocabulary": vocabulary,
        "behind": behind[nodes].astype(np.int32),
        "end": end[nodes],
        "mixture": of_mixture(trace, links, rule)[nodes],
        "gated": np.isin(paths.mlp[nodes], paths.mlp[(count == _GATED) & (paths.mlp >= 0)]).astype(np.int32),
        "plain": _plain_mlp(paths, rule, outermost)[nodes].astype(np.int32),
    }
    decision = np.full(len(links.forest.parent), -1, np.int32)
    decisions: list[Decision] = []
    if len(nodes):
        columns = np.stack([*features.values()], axis=1)
        distinct, which = distinct_rows(columns)
        codes = np.full(len(distinct), -1, np.int32)
        for at, row in enumerate(distinct.tolist()):
            site = dict(zip(features, row, strict=True))
            made = decide(
                replace(_situation(site, paths, transformer, experts, convolves, on_maps), batched=batched)
            )
            if made is not None:
                codes[at] = len(decisions)
                decisions.append(made)
        decision[nodes] = codes[which]
    return Sites(decision, decisions, transformer)


def _makes_queries_keys_and_values(paths: Paths, rule: CodeArray, outermost: CodeArray) -> bool:
    """Has a block called attention three linear layers? What approximates a softmax runs none."""
    linear = (rule == RULE_CODE["linear"]) & (outermost == np.arange(len(rule))) & (paths.attention >= 0)
    return bool((np.bincount(paths.attention[linear]) >= 3).any())


def _experts(paths: Paths, rule: CodeArray) -> bool:
    """Are experts named, and a choice of them too: a router, what moves tokens, or all in one operator? In a
    mixture that is called so they are, too."""
    mixture = np.array(
        [bool({"experts", "shared", "moe"} & {*path.roles()}) for path in paths.paths] + [False]
    )
    found = [{*path.roles()} for path in paths.paths]
    chooses = any({"router", "gate"} & roles or {"moe", "experts"} <= roles for roles in found)
    moves = np.isin(rule, [RULE_CODE[name] for name in ("topk", "dispatch", "experts")])
    return bool(mixture.any() and (chooses or mixture[paths.of_node[moves]].any()))


def _convolves(paths: Paths, rule: CodeArray) -> frozenset[int]:
    """The paths of modules that hold convolutions, by themselves or in one of their own (ConvNormAct)."""
    found = {-1}
    for at in np.unique(paths.of_node[rule == RULE_CODE["convolution"]]).tolist():
        holder = paths.outer[at]
        found |= {holder, paths.outer[holder]}
        while (row := paths.outer[holder]) >= 0 and paths.paths[row].elements[-1].text == "Sequential":
            holder = row  # a row of modules is of the one around that
            found.add(paths.outer[holder])
    return frozenset(found - {-1})


def _blocks_on_maps(paths: Paths, rule: CodeArray) -> frozenset[tuple[Element, ...]]:
    """Layers that convolve and hold neither attention nor an MLP, as a U-Net's residual blocks."""

    def blocks(*rules: str) -> set[tuple[Element, ...]]:
        within = np.unique(paths.of_node[np.isin(rule, [RULE_CODE[name] for name in rules])]).tolist()
        found = (paths.paths[path].elements for path in within if path >= 0)
        return {elements[: _blocks_end(elements)] for elements in found}

    held = (path.elements for path in paths.paths if {"attention", "mlp"} & {*path.roles()})
    others = {elements[:end] for elements in held for end in range(len(elements))}
    return frozenset(blocks("convolution") - blocks("core", "softmax", "bmm") - others - {()})


def _blocks_end(elements: tuple[Element, ...]) -> int:
    """How far the path of the innermost layer around goes; 0 in none."""
    return next((at for at in range(len(elements), 0, -1) if elements[at - 1].role == "layer"), 0)


def _situation(
    site: dict[str, int],
    paths: Paths,
    transformer: bool,
    experts: bool,
    convolves: frozenset[int],
    on_maps: frozenset[tuple[Element, ...]],
) -> Situation:
    path, outer, inner = site["path"], site["outer"], site["inner"]
    elements = paths.paths[path].elements if path >= 0 else ()
    after_core, after_activation, residual = (
        None if site[name] < 0 else bool(site[name])
        for name in ("after_core", "after_activation", "residual")
    )
    return Situation(
        path=paths.paths[path] if path >= 0 else None,
        outer=OP_RULES[outer] if outer >= 0 else None,
        inner=OP_RULES[inner] if inner >= 0 else None,
        after_core=after_core,
        linears_after=site["linears_after"],
        holds_experts=path >= 0 and path in paths.with_experts,
        beside_experts=path in paths.beside_experts,
        transformer=transformer,
        order_in_mlp=(site["position"], site["count"]) if site["position"] >= 0 else None,
        after_activation=after_activation,
        before_activation=bool(site["before_activation"]),
        residual=residual,
        vocabulary=("none", "weight", "logits")[site["vocabulary"]],
        experts=experts,
        behind=bool(site["behind"]),
        end=ENDS[site["end"]],
        mixture=("none", "weights", "choice", "rows")[site["mixture"]],
        gated=bool(site["gated"]),
        plain=bool(site["plain"]),
        on_maps=elements[: _blocks_end(elements)] in on_maps,
        beside_convolution=not convolves.isdisjoint({path, paths.outer[path]}),
    )


def _after_core(links: Links, paths: Paths, rule: CodeArray) -> CodeArray:
    """Per node: 1 when it begins after the core of its attention block, 0 before, -1 where there is none.

    The block is the attention module, or the attention operator itself where no module is named.
    The core begins with the fused operator, or with the softmax where attention is not fused.
    """
    core_ops = links.forest.outermost(rule == RULE_CODE["core"])
    block = np.where(paths.attention >= 0, paths.attention, core_ops)
    # inside an unfused attention operator the softmax divides scores from values
    softmax, _ = _span(links, block, rule == RULE_CODE["softmax"])
    fused, _ = _span(links, block, core_ops == np.arange(len(rule)))
    begin = np.where(softmax < _LATEST, softmax, fused)[block]
    return np.where(begin < _LATEST, links.ts_ns > begin, -1).astype(np.int32)


def _around_sums(
    trace: Trace, links: Links, paths: Paths, rule: CodeArray, innermost: CodeArray, launches: BoolArray
) -> CodeArray:
    """Per linear layer of an attention block without a softmax: 1 behind all its products of activations, as
    in linear attention (arXiv 2006.16236), 0 in front of them; -1 elsewhere. Where none is known, as of scans
    (arXiv 2311.01927), they are what it launches between its first and its last module of one product."""
    out, block, layer = np.full(len(rule), -1, np.int32), paths.attention, _of_product(paths)
    linear = np.where(innermost >= 0, rule[innermost], -1) == RULE_CODE["linear"]
    sums = batched_products(trace, links, rule) & (block >= 0)
    first, last = _span(links, block, linear & layer)
    scans = launches & ~layer & (first[block] < links.ts_ns) & (links.ts_ns < last[block])
    first, last = _span(links, block, sums | (scans & ~np.isin(block, block[sums])))
    linear &= (first < last)[block]
    out[linear & (links.ts_ns < first[block])] = 0
    out[linear & (links.ts_ns > last[block])] = 1
    return out


def _span(links: Links, block: CodeArray, some: BoolArray) -> tuple[IntArray, IntArray]:
    """Per block when the first and the last of some of its nodes begin; behind all for what is in none."""
    nodes = np.flatnonzero(some & (block >= 0))
    first, last = np.full(len(block) + 1, _LATEST), np.full(len(block) + 1, -_LATEST)
    np.minimum.at(first, block[nodes], links.ts_ns[nodes])
    np.maximum.at(last, block[nodes], links.ts_ns[nodes])
    return first, last


def _of_product(paths: Paths) -> BoolArray:
    """Per node: is the module around it one of one product?"""
    return np.array([is_of_product(path) for path in paths.paths] + [False])[paths.of_node]


def _linears_after(
    trace: Trace, links: Links, paths: Paths, rule: CodeArray, outermost: CodeArray, after_core: CodeArray
) -> CodeArray:
    """Per node: how many linear layers its attention block has behind the core. Of weights of one size the
    rows of each stream have one (to_out and to_add_out of huggingface/diffusers): those are one layer."""
    own = np.arange(len(rule))
    linear = (rule == RULE_CODE["linear"]) & (outermost == own) & (after_core == 1) & (paths.attention >= 0)
    nodes = np.flatnonzero(linear)  # and a module that is called several times is one
    called = np.where(_of_product(paths), -1 - links.name[paths.context], own)[nodes]
    nodes = nodes[np.unique(np.stack([paths.attention[nodes], called]), axis=1, return_index=True)[1]]
    count = np.bincount(paths.attention[nodes], minlength=len(rule)).astype(np.int32)
    sizes: dict[int, list[tuple[int, ...]]] = {}
    for node in nodes[count[paths.attention[nodes]] > 1].tolist():
        sizes.setdefault(int(paths.attention[node]), []).append(product_sizes(trace, links, node))
    for block, found in sizes.items():
        if all(found) and len({one[1:] for one in found}) == 1 and len({*found}) == len(found):
            count[block] = 1
    return np.where(paths.attention >= 0, count[paths.attention], 0).astype(np.int32)


def _beside_products(links: Links, paths: Paths, rule: CodeArray, residual: CodeArray) -> None:
    """A stream is added behind the products of its block: what is ahead of the last in attention, and between
    two in an MLP, whose activation can be written out, adds something else. Without shapes what the block
    adds by itself behind the last is the stream where that is a module, which adds its own bias."""
    linear, layer, when = rule == RULE_CODE["linear"], _of_product(paths), links.ts_ns
    for block in (paths.attention, paths.mlp):
        first, last = _span(links, block, linear)
        residual[((block is paths.attention) | (first[block] < when)) & (when < last[block])] = 0
        of_module = np.isin(block, block[linear & layer & (block >= 0) & (when == last[block])])
        residual[of_module & (paths.context == block) & (when > last[block]) & (residual < 0)] = 1


def _in_mlp(
    links: Links, paths: Paths, rule: CodeArray, outermost: CodeArray
) -> tuple[CodeArray, CodeArray, BoolArray, CodeArray]:
    """Per node: its GEMM's position and the number of GEMMs in its MLP, and where the activation stands."""
    size = len(rule)
    position, count = np.full(size, -1, np.int32), np.zeros(size, np.int32)
    before, after = np.zeros(size, np.bool_), np.full(size, -1, np.int32)
    own = np.arange(size)
    inside = (outermost == own) & (paths.mlp >= 0)
    linear = inside & (rule == RULE_CODE["linear"])
    holder = links.forest.outermost(_of_product(paths) & (paths.context == own) & (paths.mlp >= 0))
    held = np.flatnonzero(linear & (holder >= 0))  # with its adapters' it is one layer
    linear[held] = False
    held = held[np.argsort(links.ts_ns[held], kind="stable")]
    linear[held[np.unique(holder[held], return_index=True)[1]]] = True
    # on maps an MLP is two convolutions; beside linear layers a convolution is no layer of it
    convolved = inside & (rule == RULE_CODE["convolution"])
    linear |= convolved & ~np.isin(paths.mlp, paths.mlp[linear])
    acts = (rule == RULE_CODE["activation"]) | (rule == RULE_CODE["nonlinearity"])
    activation = acts & (outermost == own) & (paths.mlp >= 0)
    nodes = np.flatnonzero(linear | activation)
    if not len(nodes):
        return position, count, before, after
    nodes = nodes[np.lexsort((links.ts_ns[nodes], paths.mlp[nodes]))]
    group = paths.mlp[nodes]
    is_linear = linear[nodes]
    starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    sizes = np.diff(np.append(starts, len(nodes)))
    running = np.cumsum(is_linear)
    first = np.repeat(running[starts] - is_linear[starts], sizes)
    total = np.repeat(np.add.reduceat(is_linear.astype(np.int32), starts), sizes)
    position[nodes[is_linear]] = (running - first - 1)[is_linear]
    # three products with one activation are a gated MLP; with two they are three layers in a row
    gated_or_plain = (total != _GATED) | (np.repeat(np.add.reduceat(~is_linear * 1, starts), sizes) == 1)
    count[nodes] = np.where(gated_or_plain, total, 0)
    follows = np.append(group[1:] == group[:-1], False) & np.append(~is_linear[1:], False)
    before[nodes] = is_linear & follows
    seen = np.cumsum(~is_linear)
    after[nodes] = (seen - np.repeat(seen[starts] - ~is_linear[starts], sizes)) > 0
    # what lies inside those operators shares their place, and what else a module of one product runs: a bias
    product = np.full(size + 1, -1, np.int32)
    product[holder[linear & (holder >= 0)]] = np.flatnonzero(linear & (holder >= 0))
    home = np.where((holder >= 0) & (position < 0) & (outermost == own), product[holder], outermost)
    inner = np.flatnonzero((home >= 0) & (home != own))
    inner = inner[position[home[inner]] >= 0]
    position[inner], count[inner], before[inner], after[inner] = (
        column[home[inner]] for column in (position, count, before, after)
    )
    return position, count, before, after


def _plain_mlp(paths: Paths, rule: CodeArray, outermost: CodeArray) -> BoolArray:
    """Per node: is it in an MLP of no more products than a gated one has, and without a choice of experts?
    Adapters and shared experts add, too."""
    own = (outermost == np.arange(len(rule))) & (paths.mlp >= 0)
    products, chosen = (
        np.bincount(paths.mlp[own & (rule == RULE_CODE[name])], minlength=len(rule) + 1)
        for name in ("linear", "topk")
    )
    plain: BoolArray = (products[paths.mlp] <= _GATED) & (chosen[paths.mlp] == 0)
    return plain & (paths.mlp >= 0)
