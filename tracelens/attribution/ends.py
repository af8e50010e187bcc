"""What modules of no telling name run in front of their network's layers and behind all, and what a training
script runs behind its model: the loss."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.attribution.names import RULE_CODE, element_role
from tracelens.attribution.paths import Path, Paths
from tracelens.attribution.phases import Phases
from tracelens.trace import BoolArray, CodeArray, IntArray, Links, Trace, look_up

#: What a node is of: nothing of these, an embedding, a head, a loss that is a module by itself; masks that a
#: model makes, and what shifts, scales or masks the stream in a layer, are no part of attention or MLP.
ENDS = ("", "embedding", "logits", "loss", "other")
_EMBEDDING, _LOGITS, _LOSS, _OTHER = range(1, len(ENDS))
_MODULE = "nn.Module: "
_PRODUCTS = [RULE_CODE[rule] for rule in ("linear", "bmm", "convolution")]
#: Nothing but copies, which are of what takes them, too.
_COPY = re.compile(r"aten::(copy_|_?to(_copy)?|contiguous|clone|_local_scalar_dense)")
#: What asks something of tokens and makes masks; of what gets gradients it is part of a stream.
_ASKS = re.compile(
    r"(aten|prims)::(eq|ne|lt|le|gt|ge|all|any|tri[lu]|where|masked_fill_?|(bitwise|logical)_\w+)"
)
_COMPARES = re.compile(r"aten::(baddbmm|bmm|addmm|mm)")
_TURNS = "TBackward0"  # of a linear layer's weights
_SEVERAL = 2  # layers of a network
_PAIR = 2  # attention of one kind in a layer
_FEW = 3  # modules of a kind in front; more are layers of another kind, as those of a graph network
#: What pictures' backbones hand to several heads.
_NECK = re.compile("(?i)(?<!bottle)neck$")
#: What a module within a stem or a head can be called after.
_PLAIN = frozenset({None, "activation", "norm", "dropout", "embedding", "logits", "mlp"})


def ends(
    trace: Trace, links: Links, paths: Paths, phases: Phases, rule: CodeArray, behind: BoolArray
) -> CodeArray:
    """Per node a place in ``ENDS``; ``rule``: per node the code of its operator's rule (``names.OP_RULES``),
    ``behind``: does it run between the modules and the backward?

    A network is a module that holds several layers that attend, and is called once in what is around it. In
    front is all that it runs before the first of them, by itself or in modules without attention; behind are
    such modules where no attention follows in the forward, and that were not in front.
    """
    out = np.zeros(len(links.name), np.int32)
    blocks = _attending(links, paths, phases, rule)
    above = look_up(paths.context, links.forest.parent)  # per module the one around it
    kind = _kinds(paths)
    holds, first, last, flat = _holders(links, above, blocks, kind)
    if holds.max(initial=0) < _SEVERAL:
        return out
    attends = holds > 0
    attends[blocks] = True
    home = links.forest.nearest(attends)
    networks = _networks(links, kind, above, holds)
    copies, asks, compares = (
        trace.symbols.where(lambda text, p=pattern: bool(p.fullmatch(text)))[links.name]
        for pattern in (_COPY, _ASKS, _COMPARES)
    )
    layer = (home == paths.context) & _last(paths, "layer") & ~copies & ~networks[home]
    layer &= (rule < 0) | (rule == RULE_CODE["add"])
    inside = links.is_op & ~phases.backward & (paths.context >= 0)
    out[inside & layer & ~asks] = _OTHER
    inside &= ((home < 0) | networks[home]) & (~copies | phases.with_gradient)
    inside &= (home != paths.context) | ~np.isin(home, flat) | asks
    nodes = np.flatnonzero(inside)
    home, top = home[nodes], paths.context[nodes]
    when, trained = links.ts_ns[nodes], phases.with_gradient[nodes]
    while (deeper := (top != home) & (above[top] != home)).any():
        top[deeper] = above[top[deeper]]
    edges = np.sort(np.concatenate([links.ts_ns[phases.backward], links.steps.start_ns[1:]]))  # of forwards
    before, after = _around(edges, links.ts_ns[blocks], when)
    own, alone = top == home, home < 0
    plain = own | _plain(paths, nodes, home)
    front = plain & np.where(alone, ~before & after, when < first[home])
    of_kind = _key(home, kind[top])
    apart = ~own & ~_like(of_kind, ~front & before & after)  # what runs between layers is of them
    front &= own | (apart & (_alike(of_kind, top, front) <= _FEW))
    head = plain & before & ~after & apart & ~_like(links.name[top], front & ~own)
    product = np.isin(rule, [RULE_CODE["linear"], RULE_CODE["convolution"]])
    # behind other layers, and of what has gradients, it can be a part of these: keys made ahead, scores
    linear = rule == RULE_CODE["linear"]  # a convolution's backward is one operator
    multiplies, fed = linear[nodes] & ~own, _of_data(trace, links, phases, linear)[nodes]
    front &= own | ~before | ~_like(top, multiplies) | _like(top, fed)
    head &= ~_like(top, fed)  # of data, behind layers: a table of what is asked for
    normed = rule[nodes] == RULE_CODE["norm"]
    head &= _like(top, product[nodes]) | ~_like(top, normed)  # a class of its own for the last normalization
    # several of a kind that others follow are stages, or make targets
    multiplied = head & multiplies
    final = _like(of_kind, multiplied & (when == _latest(home, when, multiplied)))
    head &= ~_like(top, multiplies) | final | (_alike(of_kind, top, head) < _SEVERAL)
    # what a network runs between its layers and its head; what it compares by itself can be of its loss
    ended = plain & ~alone & (when > last[home])
    of_layers = _like(of_kind, ~alone & ~ended & (when > first[home]))
    made = _latest(home, when, ended & ~of_layers & multiplies)
    compared = _latest(home, when, own & compares[nodes])
    out[nodes[ended & trained & (compared < when) & (when < made) & (after | own)]] = _OTHER
    out[nodes[front]] = _EMBEDDING
    masks = front & own & asks[nodes] & ~trained
    told = np.where(_like(home, trained), _OTHER, 0)  # where others have gradients
    out[nodes[masks]] = told[masks]
    out[nodes[head]] = np.where(alone & ~_like(top, product[nodes]), _LOSS, _LOGITS)[head]
    # what a head runs by itself ahead of its product shifts, scales or picks what that takes
    out[nodes[head & (paths.context[nodes] == top) & (when < _latest(top, when, head & multiplies))]] = _OTHER
    follows = _around(edges, links.ts_ns[(product | behind) & ~phases.backward], when)[1]
    out[nodes[own & before & ~after & (above[home] < 0) & trained & ~follows]] = _LOSS
    return out


def _latest(home: CodeArray, when: IntArray, some: BoolArray) -> IntArray:
    """When the last of some in the same home begins, 0 where there is none."""
    last = np.zeros(int(home.max(initial=0)) + 2, np.int64)  # the place behind all is of no home
    np.maximum.at(last, home[some], when[some])
    return last[home]


def _of_data(trace: Trace, links: Links, phases: Phases, product: BoolArray) -> BoolArray:
    """Per node: is it a product whose backward makes one, of its weights: what it takes has no gradient? Of
    frozen weights it is that of what they take, and none is turned back for them."""
    tied = np.full(len(product), -1)
    tied[links.ops_at] = links.backward_to_forward
    back = product & phases.backward & (links.forest.outermost(product) == np.arange(len(product)))
    forward = look_up(tied, links.forest.nearest(tied >= 0)[back])
    found: BoolArray = product & (np.bincount(forward[forward >= 0], minlength=len(product)) == 1)
    turned = tied[trace.symbols.where(lambda text: text == _TURNS)[links.name]]
    outer = links.forest.outermost(product)
    trained = look_up(outer, links.forest.nearest(product)[turned[turned >= 0]])
    return found & np.isin(outer, trained[trained >= 0]) if len(turned) else found


def _attending(links: Links, paths: Paths, phases: Phases, rule: CodeArray) -> IntArray:
    """Modules of a forward that attend or mix tokens otherwise, and attention that is in none: fused, or a
    softmax between two batched products."""
    core = rule == RULE_CODE["core"]
    core &= links.forest.outermost(core) == np.arange(len(core))
    steps = (rule == RULE_CODE["bmm"]) | (rule == RULE_CODE["softmax"])
    steps = np.flatnonzero(steps & (links.forest.outermost(steps) == np.arange(len(core))))
    steps = steps[np.lexsort((links.ts_ns[steps], paths.context[steps]))]
    batched = (rule[steps] == RULE_CODE["bmm"]) * (paths.context[steps] + 2)
    core[steps[1:-1][(batched[1:-1] == 0) & (batched[:-2] == batched[2:]) & (batched[2:] > 0)]] = True
    core &= paths.attention < 0
    core |= _last(paths, "ssm", "mixer") & (paths.context == np.arange(len(core)))
    core[paths.attention[paths.attention >= 0]] = True
    return np.flatnonzero(core & ~phases.backward)


def _last(paths: Paths, *roles: str) -> BoolArray:
    """Per node: is the module around it of one of these roles?"""
    fits = np.array([path.roles()[-1] in roles for path in paths.paths] + [False])
    return fits[paths.of_node]


def _kinds(paths: Paths) -> CodeArray:
    """Per node the kind of the module around it: by the classes, or attributes, on its path."""
    codes: dict[tuple[str, ...], int] = {}
    of_path = [codes.setdefault(tuple(x.text for x in path.elements), len(codes)) for path in paths.paths]
    return np.array([*of_path, -1], np.int32)[paths.of_node]


def _key(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> IntArray:
    """One number for both."""
    found: IntArray = one.astype(np.int64) * (int(other.max(initial=0)) + 2) + other
    return found


def _like(keys: npt.NDArray[Any], some: BoolArray) -> BoolArray:
    """Which have the key of some of these?"""
    return np.isin(keys, keys[some])


def _alike(keys: IntArray, which: CodeArray, some: BoolArray) -> IntArray:
    """How many different ones of some have the key of each."""
    _, codes = np.unique(keys, return_inverse=True)
    _, first = np.unique(_key(codes[some], which[some]), return_index=True)
    return np.bincount(codes[some][first], minlength=len(codes) + 1)[codes]


def _holders(
    links: Links, above: CodeArray, blocks: IntArray, kind: CodeArray
) -> tuple[CodeArray, IntArray, IntArray, CodeArray]:
    """Per module how many layers it holds, or is, and when the first and the last attention in it begin.

    And the modules of layers that are none, whose own work can be theirs: each holds more attention of one
    kind than a layer does (lucidrains/vit-pytorch).
    """
    holds, first = np.zeros(len(above), np.int32), np.full(len(above), np.iinfo(np.int64).max)
    last = np.zeros(len(above), np.int64)
    blocks = blocks[above[blocks] >= 0]
    np.minimum.at(first, above[blocks], links.ts_ns[blocks])
    np.maximum.at(last, above[blocks], links.ts_ns[blocks])
    every = np.ones(len(blocks), np.bool_)
    alike = _alike(_key(above[blocks], kind[blocks]), links.name[blocks], every)
    layers, count = np.unique(above[blocks], return_counts=True)
    flat = np.unique(above[blocks[alike > _PAIR]])
    count[~np.isin(layers, flat)] = 1
    ends = first[layers], last[layers]
    holds[layers] = count
    while (inside := above[layers] >= 0).any():
        layers, count, ends = above[layers[inside]], count[inside], (ends[0][inside], ends[1][inside])
        np.add.at(holds, layers, count)
        np.minimum.at(first, layers, ends[0])
        np.maximum.at(last, layers, ends[1])
    return holds, first, last, flat


def _networks(links: Links, kind: CodeArray, above: CodeArray, holds: CodeArray) -> BoolArray:
    """Which modules are one: others of their kind in the same module make them layers, or stages."""
    found: BoolArray = holds >= _SEVERAL
    inner = np.flatnonzero((holds > 0) & (above >= 0))
    many = _alike(_key(above[inner], kind[inner]), links.name[inner], np.ones(len(inner), np.bool_))
    found[inner[many > 1]] = False
    return found


def _around(edges: IntArray, times: IntArray, when: IntArray) -> tuple[BoolArray, BoolArray]:
    """Is one of these times before, and behind, in the same forward?"""
    times = np.sort(times)
    forward = np.concatenate([[-1], np.searchsorted(edges, times, "right"), [-1]])
    at, own = np.searchsorted(times, when), np.searchsorted(edges, when, "right")
    return forward[at] == own, forward[at + 1] == own


def _plain(paths: Paths, nodes: IntArray, home: CodeArray) -> BoolArray:
    """Is no module between them and their network called after what a stem or a head is not?"""
    of_home = look_up(paths.of_node, home)
    _, first, which = np.unique(_key(paths.of_node[nodes], of_home), return_index=True, return_inverse=True)

    def plain(path: Path, outer: int) -> bool:
        inside = path.elements[len(paths.paths[outer].elements) if outer >= 0 else 0 :]
        said = ({element.role, element_role(element.text), _NECK.search(element.text)} for element in inside)
        return all(map(_PLAIN.issuperset, said))

    pairs = zip(paths.of_node[nodes[first]].tolist(), of_home[first].tolist(), strict=True)
    return np.array([plain(paths.paths[path], outer) for path, outer in pairs], np.bool_)[which]


def behind_modules(trace: Trace, links: Links, phases: Phases, rule: CodeArray) -> BoolArray:
    """Per node: does it run outside the modules, behind all their and all other products of its forward?

    From the first such operator that a gradient passes to the last, which the backward begins with. Where no
    module is recorded nothing is known of that, and none is.
    """
    framed = links.mask(links.frames_at) & trace.symbols.where(lambda t: t.startswith(_MODULE))[links.name]
    in_module = links.forest.nearest(framed) >= 0
    backward = np.sort(links.ts_ns[phases.backward])
    out = np.zeros(len(in_module), np.bool_)
    for thread in np.unique(links.thread[framed]).tolist():
        here = np.flatnonzero((links.thread == thread) & links.is_op & ~phases.backward & ~phases.optimizer)
        here = here[np.argsort(links.ts_ns[here], kind="stable")]
        forward = np.searchsorted(backward, links.ts_ns[here])  # the same between two operators of a backward
        model = in_module[here] | np.isin(rule[here], _PRODUCTS)
        for begin, end in zip(*_stretches(forward), strict=True):
            modules = np.flatnonzero(in_module[here[begin:end]])
            if not len(modules) or forward[begin] == len(backward):
                continue
            start = begin + int(np.flatnonzero(model[begin:end])[-1]) + 1
            passed = np.flatnonzero(phases.with_gradient[here[start:end]])
            if len(passed):
                out[here[start + passed[0] : start + passed[-1] + 1]] = True
    return out


def _stretches(of: IntArray) -> tuple[list[int], list[int]]:
    """Where equal numbers in a row begin and end."""
    edges = np.flatnonzero(np.diff(of)) + 1
    return [0, *edges.tolist()] if len(of) else [], [*edges.tolist(), len(of)] if len(of) else []
