"""Every GPU event with its step, phase, component, layer and module, and the evidence for it."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracelens.attribution.columns import COMPONENT, EVIDENCE_CODE, PHASE, ROLE, Columns
from tracelens.attribution.components import CORE, Decision
from tracelens.attribution.directions import settle_phases
from tracelens.attribution.ends import behind_modules, ends
from tracelens.attribution.kernels import kernel_component, listed
from tracelens.attribution.launches import decide_launches, of_queries_and_outputs
from tracelens.attribution.lend import lend
from tracelens.attribution.names import OP_RULES, RULE_CODE
from tracelens.attribution.origins import find_origins, op_nodes
from tracelens.attribution.paths import Paths, find_paths
from tracelens.attribution.phases import Phases
from tracelens.attribution.replayed_ends import replayed_ends
from tracelens.attribution.replayed_parts import replayed_parts
from tracelens.attribution.result import Attribution
from tracelens.attribution.sites import Sites, decide_sites, operator_rules
from tracelens.attribution.structure import Inference, infer
from tracelens.attribution.updates import settle_optimizer
from tracelens.attribution.words import REASONS
from tracelens.gemm import KernelNames, kernel_names
from tracelens.trace import BoolArray, CodeArray, Links, Trace, launched_by_several, look_up
from tracelens.words import COMPONENTS, PHASES

#: [named, inferred]: names say which block it is, its place in the block says which part
_FINER = np.zeros((len(COMPONENTS), len(COMPONENTS)), np.bool_)
for _family in ("attention.", "mlp."):
    for _part in COMPONENTS:
        if _part.startswith(_family):
            _FINER[COMPONENT[f"{_family}other"], COMPONENT[_part]] = True
for _part in ("norm", "mlp.up", "mlp.gate", "mlp.activation", "mlp.down"):  # by a function; of an MLP there
    _FINER[COMPONENT["attention.other"], COMPONENT[_part]] = True
_FINER[COMPONENT["embedding"], COMPONENT["norm"]] = True  # written out, or of weights
for _part in ("up", "gate", "activation", "down", "other"):  # experts that are modules of no word for it
    _FINER[COMPONENT[f"mlp.{_part}"], COMPONENT["moe.experts"]] = True
for _part in ("rope", "scores", "softmax"):  # a sum in a layer, outside its modules
    _FINER[COMPONENT["residual"], COMPONENT[f"attention.{_part}"]] = True
_FINER[COMPONENT["ssm.scan"], COMPONENT["ssm.projection"]] = True  # a batched GEMM of weights, as Zamba's

#: A range can hold what stands around its block too: the normalization before it.
_AROUND = np.isin(np.arange(len(COMPONENTS)), [COMPONENT["attention.other"], COMPONENT["mlp.other"]])

#: [known, stated by a kernel's name]: a part of what is known
_PART_OF = _FINER.copy()
for _part in ("moe.router", "moe.dispatch"):
    _PART_OF[COMPONENT["moe.experts"], COMPONENT[_part]] = True

_SENT = ("Memcpy HtoD", "Memcpy DtoH")
_IS_TABLES_GRADIENT = re.compile("embedding(_dense|_sparse)?_backward")
#: The autograd function of torch/distributed/tensor/_redistribute.py, and its backward.
_REDISTRIBUTES = re.compile(r"Redistribute(Backward)?")
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
    rule = operator_rules(trace, links, phases.recompute, phases.backward)
    names = kernel_names(trace)
    of_node = phases.of(np.arange(len(links.forest.parent), dtype=np.int32))
    inferred = infer(trace, links, names, rule, origin, [PHASES[code] for code in of_node.tolist()])
    core = bool(np.isin(trace.kernels.name, _named(trace, "attention.core")).any())
    behind = behind_modules(trace, links, phases, rule)
    end = ends(trace, links, paths, phases, rule, behind)
    attention = inferred.attention or core
    sites = decide_sites(trace, links, paths, rule, wanted, attention=attention, behind=behind, end=end)
    own = _assemble(trace, links, names, _Seen(paths, phases, sites, rule, inferred, origin, op_node))
    return lend(trace, links, own, reference=reference)


class _Seen(NamedTuple):
    """What each way of looking at the step says, before one of them is believed."""

    paths: Paths
    phases: Phases
    sites: Sites
    rule: CodeArray  # per node
    inferred: Inference
    origin: CodeArray  # per kernel: node of the forward operator it belongs to, -1 unknown
    op_node: CodeArray  # per kernel: node of its own operator, -1 unknown


def _assemble(trace: Trace, links: Links, names: KernelNames, seen: _Seen) -> Attribution:
    paths, phases, sites, rule, inferred, origin, op_node = seen
    columns = _said(links, seen)
    # that what is around a graph is no part of a model says nothing of each of the graph's parts
    replayed = look_up(trace.replays, links.kernel_launch, False)
    columns.set(replayed & columns.are("other"), "unattributed", "none")
    columns.phase[trace.kernels.marked_backward] = PHASE["backward"]
    # what a range says of a launch without an operator
    launched, said = decide_launches(
        trace, links, names, paths, phases.backward, transformer=sites.transformer
    )
    columns.put(said, launched)
    layer = np.full(len(trace.kernels), -1, np.int32)
    candidates = _structure(inferred, origin, columns, layer, _trained(trace, links, origin))
    _by_kernel_name(trace, columns)
    _silent_products(links, names, trace, seen, columns)
    _behind_attention(trace, links, seen, columns)
    picture = _pictures(links, rule, origin) | _pictures(links, rule, op_node)
    columns.set(picture & columns.are("unattributed") & (candidates == 0), "other", "op")
    _memory(trace, columns)
    settle_optimizer(trace, links, columns, look_up(phases.with_gradient, links.kernel_node, False))
    part = inferred.of_kernel() >= 0
    if trace.kernels.marked_backward.any():  # then what is marked and not so is of the forward
        part |= paths.of_label >= 0
    settle_phases(trace, links, names, phases, columns, part)
    _replayed(trace, links, names, columns, candidates > 0)

    path = np.where(
        paths.of_label >= 0,
        paths.of_label,
        look_up(paths.of_node, np.where(origin >= 0, origin, links.kernel_node)),
    )
    sends = columns.are("communication")
    path[sends] = -1  # a bucket of gradients belongs to no one module
    layers = np.array([p.layer if p.layer is not None else -1 for p in paths.paths] + [-1], np.int32)
    # its own name is better than the order; names that number no layer leave it to that
    named = (layers >= 0).any() & (path >= 0) & (columns.evidence < EVIDENCE_CODE["structure"])
    named |= (layers[path] >= 0) & ((layer >= 0) | (paths.of_label >= 0))
    open_ = columns.are("unattributed")
    return Attribution(
        step=links.kernel_step,
        phase=columns.phase,
        component=columns.component,
        evidence=columns.evidence,
        components=columns.lists,
        fused=columns.fused,
        candidates=np.where(open_, candidates, 0),
        layer=np.where(sends, -1, np.where(named, layers[path], layer)),
        module=path,
        modules=[p.module for p in paths.paths],
        forward_op=np.where(origin >= 0, origin - links.ops_at.start, -1).astype(np.int32),
        reason=_reasons(trace, links, seen, open_, candidates > 0),
        transformer=sites.transformer or bool(columns.are("attention.core", "attention.scores").any()),
        role=columns.role,
        names=names,
        like=np.full(len(path), -1, np.int32),
        named=(layers[path] >= 0) & named,
        further=inferred.further,
    )


def _silent_products(links: Links, names: KernelNames, trace: Trace, seen: _Seen, columns: Columns) -> None:
    """Products in attention that functions of one's own launch, whose names say nothing."""
    says = look_up(seen.rule, links.kernel_node)
    weak = np.isin(columns.evidence, [EVIDENCE_CODE[one] for one in ("annotation", "module_stack")])
    gemm = np.array([name is not None and name.kind == "gemm" for name in names] or [False])
    products = gemm[trace.kernels.name] & columns.are("attention.other") & weak & (links.kernel_op >= 0)
    products &= np.isin(says, [-1, RULE_CODE["attention_block"]])
    if products.any():
        queries, outputs = of_queries_and_outputs(links, seen.paths, products, columns)
        columns.set(queries, "attention.qkv", "local")
        columns.set(outputs, "attention.output", "local")


def _behind_attention(trace: Trace, links: Links, seen: _Seen, columns: Columns) -> None:
    """In a range of attention, what chooses experts behind the norm that follows its core: pipelines cut
    layers where experts communicate (DualPipe; fine_grained_callables.py of Megatron-LM)."""
    inside = look_up(seen.paths.attention, links.kernel_node)
    open_ = columns.are("attention.other") & (columns.evidence == EVIDENCE_CODE["annotation"])
    chooses = open_ & (look_up(seen.rule, seen.op_node) == RULE_CODE["topk"])
    begun = trace.kernels.ts_ns
    for block in np.unique(inside[chooses & (inside >= 0)]).tolist():
        here = inside == block
        core = begun[here & columns.are("attention.core")].max(initial=0)
        norm = begun[here & columns.are("norm") & (begun > core)].min(initial=begun.max())
        last = begun[here & chooses & (begun > norm)].max(initial=0)
        if core and last:
            columns.set(here & open_ & (begun > norm), "unattributed", "none")  # what is sent, too
            columns.set(here & open_ & (begun > norm) & (begun <= last), "moe.router", "local")


def _said(links: Links, seen: _Seen) -> Columns:
    """What operators and modules say, of the forward operator that a kernel belongs to before its own."""
    sites, inferred, origin, op_node = seen.sites, seen.inferred, seen.origin, seen.op_node
    size = len(origin)
    roles = np.array([ROLE.get(x.role or "", -1) for x in inferred.labels], np.int32)
    columns = Columns(
        phase=seen.phases.of(np.where(op_node >= 0, op_node, links.kernel_node).astype(np.int32)),
        role=look_up(roles, inferred.of_kernel()),
        component=np.full(size, COMPONENT["unattributed"], np.int32),
        evidence=np.full(size, EVIDENCE_CODE["none"], np.int32),
        fused=np.zeros(size, np.int32),
        lists=[()],
    )
    which = look_up(sites.decision, origin)
    columns.put(sites.decisions, which)
    tied = (origin != op_node) & (origin >= 0) & (which >= 0)
    # a tie is no stronger than what is known of the operator it leads to
    columns.evidence[tied] = np.maximum(columns.evidence[tied], EVIDENCE_CODE["sequence"])
    # what the backward operator's own name says, where its forward operator says nothing; as large as logits
    # are the gradients of what made them, too
    sized = np.array([one == Decision("loss", "structure") for one in sites.decisions] + [False])
    back = look_up(sites.decision, op_node)
    told = (which < 0) & ((origin < 0) | (origin == op_node) | ~sized[back])
    columns.put(sites.decisions, np.where(told, back, -1))
    return columns


def _trained(trace: Trace, links: Links, origin: CodeArray) -> BoolArray:
    """Per kernel: does it look up, or bring a gradient to, a table that gets gradients?"""
    gradient = trace.symbols.where(_IS_TABLES_GRADIENT.search)[look_up(trace.ops.name, links.kernel_op)]
    return np.isin(origin, origin[gradient & (links.kernel_op >= 0)])


def _replayed(trace: Trace, links: Links, names: KernelNames, columns: Columns, ambiguous: BoolArray) -> None:
    """What a graph replays between its products, and at its ends."""
    phase, said = columns.phase, (columns.component, columns.evidence)
    between = replayed_parts(trace, links, names, said, phase == PHASE["backward"])
    between[ambiguous] = -1
    columns.set(between >= 0, between, "local")
    if not (phase == PHASE["backward"]).any():
        phase[(between >= 0) & (phase == PHASE["other"])] = PHASE["forward"]
    ends = replayed_ends(trace, links, columns.component, phase == PHASE["backward"])
    columns.set(ends >= 0, ends, "local")
    phase[columns.are("optimizer", "grad_clip") & (phase == PHASE["other"])] = PHASE["optimizer"]


def _named(trace: Trace, component: str) -> list[int]:
    """Codes of the kernel names that state a component."""
    return [code for code, text in enumerate(trace.symbols) if kernel_component(text) == component]


def _structure(
    inferred: Inference, origin: CodeArray, columns: Columns, layer: CodeArray, trained: BoolArray
) -> CodeArray:
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
    of_label = np.array([COMPONENT[x.component] for x in found], np.int32)
    weak = evidence >= EVIDENCE_CODE["structure"]
    use = np.flatnonzero(known)
    open_ = use[weak[use] & (component[use] == COMPONENT["unattributed"])]
    several[open_] = np.array([columns.code(x.candidates) for x in found], np.int32)[which[open_]]
    finer = _FINER[component[use], of_label[which[use]]] & (evidence[use] != EVIDENCE_CODE["op"])
    in_range = (evidence[use] == EVIDENCE_CODE["annotation"]) & _AROUND[component[use]]
    finer |= in_range & (of_label[which[use]] == COMPONENT["norm"])
    # a lookup where queries and keys turn: of cosines and sines, which nothing trains, not of tokens
    turns = (of_label[which[use]] == COMPONENT["attention.rope"]) & (evidence[use] == EVIDENCE_CODE["op"])
    turns &= ~trained[use]
    finer |= turns & (component[use] == COMPONENT["embedding"])
    # what stands around a product says less than the table that it shares
    # nothing is on a stream yet in front of the layers
    begun = (component[use] == COMPONENT["embedding"]) & (of_label[which[use]] == COMPONENT["residual"])
    surer = begun | (
        evidence[use] < np.array([EVIDENCE_CODE[x.evidence] for x in found], np.int32)[which[use]]
    )
    use = use[((weak[use] & ~surer) | finer) & (of_label[which[use]] != COMPONENT["unattributed"])]
    columns.put(found, which, use)
    return several


def _by_kernel_name(trace: Trace, columns: Columns) -> None:
    """Names that can mean one thing: communication always, the rest where nothing stronger is known."""
    component, evidence, fused, lists = columns[2:]
    stated = [kernel_component(text) or listed(text) for text in trace.symbols]
    codes = np.array([COMPONENT[text] if text else -1 for text in stated] or [-1], np.int32)[
        trace.kernels.name
    ]
    weak = (component == COMPONENT["unattributed"]) & (codes >= 0)
    # of what a fused work is made of, a name can say which part this kernel is
    narrower = (codes >= 0) & (evidence == EVIDENCE_CODE["structure"]) & (component != codes)
    for row in np.flatnonzero(narrower).tolist():
        narrower[row] = COMPONENTS[codes[row]] in lists[fused[row]]
    # an operator that holds a whole mixture, or a block that is known and not its part
    narrower |= (codes >= 0) & _PART_OF[component, codes]
    comm = (codes == COMPONENT["communication"]) & (component != COMPONENT["communication"])
    for mask in (weak, comm, narrower):
        component[mask], evidence[mask] = codes[mask], EVIDENCE_CODE["kernel_name"]
        fused[mask] = 0
    core = weak & (codes == COMPONENT["attention.core"])
    fused[core] = columns.code(CORE)


def _pictures(links: Links, rule: CodeArray, node: CodeArray) -> BoolArray:
    """Convolutions, pooling and the like: none is part of a transformer but what embeds."""
    picture = np.isin(rule, [OP_RULES.index("convolution"), OP_RULES.index("picture")])
    inside: BoolArray = look_up(links.forest.nearest(picture), node) >= 0
    return inside


def _memory(trace: Trace, columns: Columns) -> None:
    """Copies and fills that belong to no component are memory traffic by their category."""
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]
    # a place behind the head says nothing of the batch or the result that is sent between host and GPU there,
    # nor does a module that is no part of a transformer
    behind = columns.are("logits", "loss") & (columns.evidence >= EVIDENCE_CODE["structure"])
    sent = trace.symbols.where(lambda text: text.startswith(_SENT))[trace.kernels.name]
    sent &= behind | columns.are("other")
    columns.set(~is_kernel & (columns.are("unattributed") | sent), "memory", "kernel_name")


def _reasons(trace: Trace, links: Links, seen: _Seen, open_: BoolArray, ambiguous: BoolArray) -> CodeArray:
    out = np.full(len(open_), -1, np.int32)
    origin, phases = seen.origin, seen.phases
    node = links.kernel_node
    compiled = links.forest.nearest(trace.symbols.where(is_compiled)[links.name]) >= 0
    redistributed = links.forest.nearest(trace.symbols.where(_REDISTRIBUTES.fullmatch)[links.name]) >= 0
    in_path = look_up(seen.paths.of_node, np.where(origin >= 0, origin, node)) >= 0
    conditions = (
        ("unknown module", open_ & in_path),
        ("no names", open_ & (node >= 0) & ~in_path),
        ("no operator", open_ & (node >= 0) & (links.kernel_op < 0) & ~in_path),
        ("backward", open_ & look_up(phases.backward, node, False) & (origin < 0)),
        ("compiled", open_ & look_up(compiled, node, False)),
        ("redistributed", open_ & look_up(redistributed, node, False)),
        ("no operators", open_ & ~in_path & (len(trace.ops) == 0)),
        ("graph", open_ & look_up(trace.replays, links.kernel_launch, False)),
        ("no launch", open_ & (node < 0)),
        ("several processes", open_ & launched_by_several(trace, links.kernel_launch)),
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
