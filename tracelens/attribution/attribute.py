"""Every GPU event with its step, phase, component, layer and module, and the evidence for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens.attribution.behind import behind_modules
from tracelens.attribution.components import CORE, Decision
from tracelens.attribution.kernels import kernel_component, listed
from tracelens.attribution.launches import decide_launches
from tracelens.attribution.lend import lend
from tracelens.attribution.names import OP_RULES
from tracelens.attribution.origins import find_origins, op_nodes
from tracelens.attribution.paths import Paths, find_paths
from tracelens.attribution.phases import Phases
from tracelens.attribution.replayed import replayed_directions
from tracelens.attribution.replayed_ends import replayed_ends
from tracelens.attribution.replayed_parts import replayed_parts
from tracelens.attribution.result import Attribution
from tracelens.attribution.sites import Sites, decide_sites, operator_rules
from tracelens.attribution.structure import Inference, infer
from tracelens.attribution.structure.runs import Label
from tracelens.attribution.twins import orphans
from tracelens.attribution.updates import averaged_weights, between_updates
from tracelens.attribution.words import REASONS
from tracelens.gemm import KernelNames, is_gemm_op, kernel_names
from tracelens.trace import Links, Trace, distinct_rows, look_up
from tracelens.words import COMPONENTS, EVIDENCE, PHASES, ROLES

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

_PHASE = {phase: code for code, phase in enumerate(PHASES)}
_COMPONENT = {component: code for code, component in enumerate(COMPONENTS)}
_ROLE: dict[str, int] = {role: code for code, role in enumerate(ROLES)}
_EVIDENCE: dict[str, int] = {evidence: code for code, evidence in enumerate(EVIDENCE)}

#: [named, inferred]: names say which block it is, its place in the block says which part
_FINER = np.zeros((len(COMPONENTS), len(COMPONENTS)), np.bool_)
for _family in ("attention.", "mlp."):
    for _part in COMPONENTS:
        if _part.startswith(_family):
            _FINER[_COMPONENT[f"{_family}other"], _COMPONENT[_part]] = True
for _part in ("norm", "mlp.up", "mlp.gate", "mlp.activation", "mlp.down"):  # by a function; of an MLP there
    _FINER[_COMPONENT["attention.other"], _COMPONENT[_part]] = True
_FINER[_COMPONENT["embedding"], _COMPONENT["norm"]] = True  # written out, or of weights
for _part in ("up", "gate", "activation", "down", "other"):  # experts that are modules of no word for it
    _FINER[_COMPONENT[f"mlp.{_part}"], _COMPONENT["moe.experts"]] = True
for _part in ("rope", "scores", "softmax"):  # a sum in a layer, outside its modules
    _FINER[_COMPONENT["residual"], _COMPONENT[f"attention.{_part}"]] = True
_FINER[_COMPONENT["ssm.scan"], _COMPONENT["ssm.projection"]] = True  # a batched GEMM of weights, as Zamba's

#: A range can hold what stands around its block too: the normalization before it.
_AROUND = np.isin(np.arange(len(COMPONENTS)), [_COMPONENT["attention.other"], _COMPONENT["mlp.other"]])

#: [known, stated by a kernel's name]: a part of what is known
_PART_OF = _FINER.copy()
for _part in ("moe.router", "moe.dispatch"):
    _PART_OF[_COMPONENT["moe.experts"], _COMPONENT[_part]] = True

_IS_TABLES_GRADIENT = re.compile("embedding(_dense|_sparse)?_backward")
_REASON = {name: code for code, name in enumerate(REASONS)}


def attribute(
    trace: Trace, links: Links, *, reference: tuple[Trace, Links, Attribution] | None = None
) -> Attribution:
    """Attribute every GPU event of a trace. Nothing is dropped: what is not known is ``unattributed``.

    ``reference``, another trace of the same job, lends what is known of its kernels to their twins here.
    """
    paths = find_paths(trace, links)
    phases = Phases(trace, links, paths)
    origin = find_origins(trace, links, phases)
    wanted = np.zeros(len(links.forest.parent), np.bool_)
    wanted[origin[origin >= 0]] = True
    op_node = op_nodes(links)
    wanted[op_node[op_node >= 0]] = True
    rule = operator_rules(trace, links, phases.recompute)
    names = kernel_names(trace)
    of_node = phases.of(np.arange(len(links.forest.parent), dtype=np.int32))
    inferred = infer(trace, links, names, rule, origin, [PHASES[code] for code in of_node.tolist()])
    core = bool(np.isin(trace.kernels.name, _named(trace, "attention.core")).any())
    behind = behind_modules(trace, links, phases, rule)
    attention = inferred.attention or core
    sites = decide_sites(trace, links, paths, rule, wanted, attention=attention, behind=behind)
    own = _assemble(trace, links, names, _Seen(paths, phases, sites, rule, inferred, origin, op_node))
    return lend(trace, links, own, reference=reference)


class _Seen(NamedTuple):
    """What each way of looking at the step says, before one of them is believed."""

    paths: Paths
    phases: Phases
    sites: Sites
    rule: IntArray  # per node
    inferred: Inference
    origin: IntArray  # per kernel: node of the forward operator it belongs to, -1 unknown
    op_node: IntArray  # per kernel: node of its own operator, -1 unknown


class _Columns(NamedTuple):
    """Over kernels, filled in one after the other; ``lists`` are those of the codes in ``fused``."""

    component: IntArray
    evidence: IntArray
    fused: IntArray
    lists: list[tuple[str, ...]]

    def put(self, found: Sequence[Decision | Label], which: IntArray, rows: IntArray | None = None) -> None:
        """What these rows were found to be, all that have one by default: per kernel an index; -1."""
        at = np.flatnonzero(which >= 0) if rows is None else rows
        for column, codes in (
            (self.component, [_COMPONENT[one.component] for one in found]),
            (self.evidence, [_EVIDENCE[one.evidence] for one in found]),
            (self.fused, [self.code(one.components) for one in found]),
        ):
            column[at] = np.array(codes, np.int32)[which[at]]

    def code(self, components: tuple[str, ...]) -> int:
        if components not in self.lists:
            self.lists.append(components)
        return self.lists.index(components)


def _assemble(trace: Trace, links: Links, names: KernelNames, seen: _Seen) -> Attribution:
    paths, phases, sites, rule, inferred, origin, op_node = seen
    size = len(trace.kernels)
    component = np.full(size, _COMPONENT["unattributed"], np.int32)
    evidence = np.full(size, _EVIDENCE["none"], np.int32)
    fused = np.zeros(size, np.int32)
    lists: list[tuple[str, ...]] = [()]
    columns = _Columns(component, evidence, fused, lists)
    phase = phases.of(np.where(op_node >= 0, op_node, links.kernel_node).astype(np.int32))
    phase[trace.kernels.marked_backward] = _PHASE["backward"]
    through_sequence = (origin != op_node) & (origin >= 0)

    which = look_up(sites.decision, origin)
    columns.put(sites.decisions, which)
    tied = through_sequence & (which >= 0)
    # a tie is no stronger than what is known of the operator it leads to
    evidence[tied] = np.maximum(evidence[tied], _EVIDENCE["sequence"])

    # what the backward operator's own name says, where no forward operator is tied to it
    own = np.where(which < 0, look_up(sites.decision, op_node), -1)
    columns.put(sites.decisions, own)

    # what a range says of a launch without an operator
    launched, said = decide_launches(
        trace, links, names, paths, phases.backward, transformer=sites.transformer
    )
    columns.put(said, launched)

    layer = np.full(size, -1, np.int32)
    role = look_up(
        np.array([_ROLE.get(x.role or "", -1) for x in inferred.labels], np.int32), inferred.of_kernel()
    )
    gradient = trace.symbols.where(_IS_TABLES_GRADIENT.search)[look_up(trace.ops.name, links.kernel_op)]
    trained = np.isin(origin, origin[gradient & (links.kernel_op >= 0)])
    candidates = _structure(inferred, origin, columns, layer, trained)
    _by_kernel_name(trace, columns)
    picture = _pictures(links, rule, origin) | _pictures(links, rule, op_node)
    open_ = picture & (component == _COMPONENT["unattributed"]) & (candidates == 0)
    component[open_], evidence[open_] = _COMPONENT["other"], _EVIDENCE["op"]
    _memory(trace, component, evidence, picture)
    optimizing = phase == _PHASE["optimizer"]
    bare = optimizing & (component == _COMPONENT["unattributed"])
    component[bare], evidence[bare] = _COMPONENT["optimizer"], _EVIDENCE["module_stack"]
    optimizes = component == _COMPONENT["optimizer"]
    bare = between_updates(trace, links, optimizes, outside=phase == _PHASE["other"])
    untold = orphans(trace, links) | (len(trace.ops) == 0)  # inside a graph the host knows no phase
    bare &= ~untold
    bare &= component == _COMPONENT["unattributed"]
    component[bare], evidence[bare] = _COMPONENT["optimizer"], _EVIDENCE["local"]
    trains = look_up(phases.with_gradient, links.kernel_node, False) | (phase == _PHASE["backward"])
    bare = averaged_weights(trace, links, ~trains & ~optimizing)
    component[bare], evidence[bare] = _COMPONENT["optimizer"], _EVIDENCE["local"]
    # a forward that is not trained on
    updates = np.isin(component, [_COMPONENT["optimizer"], _COMPONENT["grad_clip"]])
    part = inferred.of_kernel() >= 0
    if trace.kernels.marked_backward.any():  # then what is marked and not so is of the forward
        part |= paths.of_label >= 0
    phase[(phase == _PHASE["other"]) & part & ~updates] = _PHASE["forward"]
    # a product of the forward that a compiled backward computes again
    again = (role == _ROLE["forward"]) & (phase == _PHASE["backward"])
    stretch = np.where(again, -2 - np.arange(size), look_up(phases.evaluate, links.kernel_node))
    again |= phase == _PHASE["recompute"]
    phase[again] = _PHASE["recompute"]
    if again.any():
        computes = component != _COMPONENT["communication"]  # a backward sends as its forward does
        unproven = again & ~_ran_before(trace, links, again, phase == _PHASE["forward"], stretch, computes)
        phase[unproven], role[unproven] = _PHASE["backward"], -1
    role = _roles_by_layout(trace, links, names, role, phase)
    gradient = (role == _ROLE["dgrad"]) | (role == _ROLE["wgrad"])
    phase[gradient & untold] = _PHASE["backward"]
    ahead, back = replayed_directions(trace, links, names, role == _ROLE["forward"], gradient)
    phase[ahead & (phase == _PHASE["other"]) & ~updates] = _PHASE["forward"]
    phase[back & ~updates] = _PHASE["backward"]
    said_so_far = (component, evidence)
    between = replayed_parts(trace, links, names, said_so_far, phase == _PHASE["backward"])
    between[candidates > 0] = -1
    component[between >= 0], evidence[between >= 0] = between[between >= 0], _EVIDENCE["local"]
    if not (phase == _PHASE["backward"]).any():
        phase[(between >= 0) & (phase == _PHASE["other"])] = _PHASE["forward"]
    ends = replayed_ends(trace, links, component, phase == _PHASE["backward"])
    component[ends >= 0], evidence[ends >= 0] = ends[ends >= 0], _EVIDENCE["local"]
    stepping = (component == _COMPONENT["optimizer"]) | (component == _COMPONENT["grad_clip"])
    phase[stepping & (phase == _PHASE["other"])] = _PHASE["optimizer"]

    place = np.where(origin >= 0, origin, links.kernel_node)
    path = np.where(paths.of_label >= 0, paths.of_label, look_up(paths.of_node, place))
    path[component == _COMPONENT["communication"]] = -1  # a bucket of gradients belongs to no one module
    layers = np.array([p.layer if p.layer is not None else -1 for p in paths.paths] + [-1], np.int32)
    # its own name is better than the order; names that number no layer leave it to that
    named = (layers >= 0).any() & (path >= 0) & (evidence < _EVIDENCE["structure"])
    named |= (layers[path] >= 0) & ((layer >= 0) | (paths.of_label >= 0))
    forward_op = np.where(origin >= 0, origin - links.ops_at.start, -1).astype(np.int32)
    return Attribution(
        step=links.kernel_step,
        phase=phase,
        component=component,
        evidence=evidence,
        components=lists,
        fused=fused,
        candidates=np.where(component == _COMPONENT["unattributed"], candidates, 0),
        layer=np.where(component == _COMPONENT["communication"], -1, np.where(named, layers[path], layer)),
        module=path,
        modules=[p.module for p in paths.paths],
        forward_op=forward_op,
        reason=_reasons(trace, links, seen, component, candidates > 0),
        transformer=sites.transformer or bool((component == _COMPONENT["attention.core"]).any()),
        role=role,
        names=names,
        like=np.full(size, -1, np.int32),
        named=(layers[path] >= 0) & named,
        further=inferred.further,
    )


def _named(trace: Trace, component: str) -> list[int]:
    """Codes of the kernel names that state a component."""
    return [code for code, text in enumerate(trace.symbols) if kernel_component(text) == component]


def _roles_by_layout(
    trace: Trace, links: Links, names: KernelNames, role: IntArray, phase: IntArray
) -> IntArray:
    """Of a backward product the role that its kernel's layout says: g W is NN, g^T x is NT.

    It decides only where no operator does: a library's own call, as a weight gradient that is added in place
    (gradient accumulation fusion).
    """
    layouts = {"NN": _ROLE["dgrad"], "NT": _ROLE["wgrad"]}
    layout = [name.layout[:2] if name and name.kind == "gemm" and name.layout else "" for name in names]
    stated = np.array([layouts.get(text, -1) for text in layout] or [-1], np.int32)[trace.kernels.name]
    product = trace.symbols.where(is_gemm_op)[look_up(trace.ops.name, links.kernel_op)]
    open_ = (role < 0) & (phase == _PHASE["backward"]) & ~(product & (links.kernel_op >= 0))
    return np.where(open_, stated, role).astype(np.int32)


def _ran_before(
    trace: Trace, links: Links, again: BoolArray, forward: BoolArray, stretch: IntArray, counts: BoolArray
) -> BoolArray:
    """Per kernel that seems to run ``again``: did the ``forward`` run most of what ``counts`` of its
    ``stretch``, in this trace?

    That is: the same operator with the same inputs or, where those are not recorded, the same kernel with the
    same grid. Otherwise the backward only looks like a forward: a module or a range in a hook, the gradient
    of a gradient, a product of equal size.
    """
    op = links.kernel_op
    inputs = look_up(trace.ops.inputs, op)
    codes = np.unique(inputs[again & (op >= 0)])
    told = np.isin(inputs, [code for code in codes.tolist() if trace.details.inputs(code).dims]) & (op >= 0)
    name = np.where(told, look_up(trace.ops.name, op), trace.kernels.name)
    how = np.where(told, inputs, trace.kernels.launch)
    key = distinct_rows(np.stack([told, name, how], axis=1))[1]
    seen = np.isin(key, key[forward])
    at = np.unique(stretch[again], return_inverse=True)[1]
    time = (trace.kernels.dur_ns * counts)[again]
    known = np.bincount(at, weights=time * seen[again]) > np.bincount(at, weights=time) / 2
    out = np.zeros(len(key), np.bool_)
    out[again] = known[at]
    return out


def _structure(
    inferred: Inference, origin: IntArray, columns: _Columns, layer: IntArray, trained: BoolArray
) -> IntArray:
    """What no name says: from the place in the step. Layers are counted where no name gives them.

    ``trained``: per kernel, does it look up, or bring a gradient to, a table that gets gradients?

    Returns per kernel the list of components it may be, where the place leaves several.
    """
    component, evidence = columns.component, columns.evidence
    several = np.zeros(len(component), np.int32)
    own = inferred.of_kernel()
    behind = inferred.of_node(origin)
    # what is tied to a forward operator of no name gets none by its own place; what a graph replays is not
    # the work of the operator that launched it
    tied = ((behind >= 0) | inferred.left_open(origin)) & ~inferred.alone
    which = np.where(tied, behind, own)
    known = which >= 0
    if not known.any():
        return several
    found = inferred.labels
    layer[known] = np.array([-1 if x.layer is None else x.layer for x in found], np.int32)[which[known]]
    of_label = np.array([_COMPONENT[x.component] for x in found], np.int32)
    weak = evidence >= _EVIDENCE["structure"]
    use = np.flatnonzero(known)
    open_ = use[weak[use] & (component[use] == _COMPONENT["unattributed"])]
    several[open_] = np.array([columns.code(x.candidates) for x in found], np.int32)[which[open_]]
    finer = _FINER[component[use], of_label[which[use]]] & (evidence[use] != _EVIDENCE["op"])
    in_range = (evidence[use] == _EVIDENCE["annotation"]) & _AROUND[component[use]]
    finer |= in_range & (of_label[which[use]] == _COMPONENT["norm"])
    # a lookup where queries and keys turn: of cosines and sines, which nothing trains, not of tokens
    turns = (of_label[which[use]] == _COMPONENT["attention.rope"]) & (evidence[use] == _EVIDENCE["op"])
    turns &= ~trained[use]
    finer |= turns & (component[use] == _COMPONENT["embedding"])
    use = use[(weak[use] | finer) & (of_label[which[use]] != _COMPONENT["unattributed"])]
    columns.put(found, which, use)
    return several


def _by_kernel_name(trace: Trace, columns: _Columns) -> None:
    """Names that can mean one thing: communication always, the rest where nothing stronger is known."""
    component, evidence, fused, lists = columns
    stated = [kernel_component(text) or listed(text) for text in trace.symbols]
    codes = np.array([_COMPONENT[text] if text else -1 for text in stated] or [-1], np.int32)[
        trace.kernels.name
    ]
    weak = (component == _COMPONENT["unattributed"]) & (codes >= 0)
    # of what a fused work is made of, a name can say which part this kernel is
    narrower = (codes >= 0) & (evidence == _EVIDENCE["structure"]) & (component != codes)
    for row in np.flatnonzero(narrower).tolist():
        narrower[row] = COMPONENTS[codes[row]] in lists[fused[row]]
    # an operator that holds a whole mixture, or a block that is known and not its part
    narrower |= (codes >= 0) & _PART_OF[component, codes]
    comm = (codes == _COMPONENT["communication"]) & (component != _COMPONENT["communication"])
    for mask in (weak, comm, narrower):
        component[mask], evidence[mask] = codes[mask], _EVIDENCE["kernel_name"]
        fused[mask] = 0
    core = weak & (codes == _COMPONENT["attention.core"])
    fused[core] = columns.code(CORE)


def _pictures(links: Links, rule: IntArray, node: IntArray) -> BoolArray:
    """Convolutions, pooling and the like: none is part of a transformer but what embeds."""
    picture = np.isin(rule, [OP_RULES.index("convolution"), OP_RULES.index("picture")])
    inside: BoolArray = look_up(links.forest.nearest(picture), node) >= 0
    return inside


def _memory(trace: Trace, component: IntArray, evidence: IntArray, picture: BoolArray) -> None:
    """Copies and fills that belong to no component are memory traffic by their category; what a convolution
    fills is part of it."""
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]
    mask = ~is_kernel & ((component == _COMPONENT["unattributed"]) | (component == _COMPONENT["other"]))
    mask &= ~(picture & (component == _COMPONENT["other"]))
    component[mask], evidence[mask] = _COMPONENT["memory"], _EVIDENCE["kernel_name"]


def _reasons(trace: Trace, links: Links, seen: _Seen, component: IntArray, ambiguous: BoolArray) -> IntArray:
    out = np.full(len(component), -1, np.int32)
    origin, phases = seen.origin, seen.phases
    open_ = component == _COMPONENT["unattributed"]
    node = links.kernel_node
    compiled = links.forest.nearest(trace.symbols.where(is_compiled)[links.name]) >= 0
    in_path = look_up(seen.paths.of_node, np.where(origin >= 0, origin, node)) >= 0
    conditions = (
        ("unknown module", open_ & in_path),
        ("no names", open_ & (node >= 0) & ~in_path),
        ("no operator", open_ & (node >= 0) & (links.kernel_op < 0) & ~in_path),
        ("backward", open_ & look_up(phases.backward, node, False) & (origin < 0)),
        ("compiled", open_ & look_up(compiled, node, False)),
        ("no operators", open_ & ~in_path & (len(trace.ops) == 0)),
        ("graph", open_ & look_up(trace.replays, links.kernel_launch, False)),
        ("no launch", open_ & (node < 0)),
        ("ambiguous", open_ & ambiguous),
    )
    for name, mask in conditions:  # later ones are more specific
        out[mask] = _REASON[name]
    return out


def is_compiled(text: str) -> bool:
    """Does a host span of that name hold the work of a torch.compile graph?"""
    return text.startswith(
        ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction", "CompiledFxGraph")
    )
