"""Every GPU event with its step, phase, component, layer and module, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracelens.attribution.components import CORE, Decision
from tracelens.attribution.lend import lend
from tracelens.attribution.loan import Loan
from tracelens.attribution.names import kernel_component
from tracelens.attribution.paths import Paths, find_paths
from tracelens.attribution.sites import Sites, decide_sites
from tracelens.trace import Links, Trace, look_up
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]

_EVALUATE = "autograd::engine::evaluate_function: "
_ACCUMULATE = _EVALUATE + "torch::autograd::AccumulateGrad"
_PHASE = {phase: code for code, phase in enumerate(PHASES)}
_COMPONENT = {component: code for code, component in enumerate(COMPONENTS)}
_EVIDENCE = {evidence: code for code, evidence in enumerate(EVIDENCE)}

#: Why a kernel has no component, and what to do about it.
REASONS = {
    "no launch": (
        "launched before the recording began: its launch is not in the file",
        "record with a warm-up step (schedule(wait=1, warmup=1, active=2)) and synchronize after each step",
    ),
    "graph": (
        "part of a CUDA graph: all its kernels hang from one launch",
        "record one step without CUDA graphs beside it",
    ),
    "compiled": (
        "inside a torch.compile graph: no module names reach the kernels",
        "record one eager step (torch.compiler.disable or TORCH_COMPILE_DISABLE=1)",
    ),
    "backward": (
        "a backward kernel that no forward operator is tied to",
        "record with shapes, and with the forward of the same step inside the window",
    ),
    "no names": (
        "no module or named range encloses the operator",
        "record with with_stack=True or with_modules=True, or label modules with record_function",
    ),
    "no operator": (
        "the launch stands in no operator: a library of its own called CUDA",
        "label the call with record_function",
    ),
    "unknown module": (
        "the modules and ranges around it do not say which part it is",
        "label it with record_function, named after its part (attention, mlp, rotary, ...)",
    ),
}
_REASON = {name: code for code, name in enumerate(REASONS)}


@dataclass(frozen=True)
class Attribution:
    """Columns over ``Trace.kernels`` (same order). Codes index the word lists of ``tracelens.words``."""

    step: IntArray  # position in Links.steps; -1 = in none
    phase: IntArray  # PHASES
    component: IntArray  # COMPONENTS
    evidence: IntArray  # EVIDENCE
    components: list[tuple[str, ...]]  # by `fused`: all the components of a fused kernel
    fused: IntArray  # index into components
    layer: IntArray  # -1 = unknown or none
    module: IntArray  # index into modules; -1
    modules: list[str]
    forward_op: IntArray  # row of Trace.ops: the forward operator behind it (its own, in the forward); -1
    reason: IntArray  # for unattributed kernels: index into REASONS; -1
    transformer: bool
    like: IntArray  # row of the kernel whose work this one repeats, where its own operator is unknown; -1
    loan: Loan | None = None  # what a reference trace lent

    def within_steps(self, positions: list[int]) -> Attribution:
        """The same with only these steps counted as steps; kernels of the others are in none."""
        return replace(self, step=np.where(np.isin(self.step, positions), self.step, -1).astype(np.int32))

    def reasons(self) -> list[tuple[str, str, BoolArray]]:
        """(reason, remedy, mask over kernels) for each reason that occurs."""
        return [
            (why, remedy, self.reason == code)
            for code, (why, remedy) in enumerate(REASONS.values())
            if (self.reason == code).any()
        ]


def attribute(
    trace: Trace, links: Links, *, reference: tuple[Trace, Links, Attribution] | None = None
) -> Attribution:
    """Attribute every GPU event of a trace. Nothing is dropped: what is not known is ``unattributed``.

    ``reference``, another trace of the same job, lends what is known of its kernels to their twins here.
    """
    paths = find_paths(trace, links)
    phases = _Phases(trace, links, paths)
    origin = _origins(trace, links, phases)
    wanted = np.zeros(len(links.forest.parent), np.bool_)
    wanted[origin[origin >= 0]] = True
    op_node = _op_nodes(links)
    wanted[op_node[op_node >= 0]] = True
    sites = decide_sites(trace, links, paths, wanted)
    own = _assemble(trace, links, paths, phases, sites, origin, op_node)
    return lend(trace, links, own, reference=reference)


def _op_nodes(links: Links) -> IntArray:
    return np.where(links.kernel_op >= 0, links.kernel_op + links.ops_at.start, -1).astype(np.int32)


class _Phases:
    """The phase of every host node."""

    def __init__(self, trace: Trace, links: Links, paths: Paths):
        texts = trace.symbols
        forest = links.forest
        evaluates = links.is_op & texts.where(lambda t: t.startswith(_EVALUATE))[links.name]
        self.evaluate = forest.nearest(evaluates)
        self.accumulates = links.is_op & texts.where(lambda t: t.startswith(_ACCUMULATE))[links.name]
        self.backward = self.evaluate >= 0
        backward_ops = np.zeros(len(links.name), np.bool_)
        backward_ops[links.ops_at] = trace.ops.forward_thread > 0
        self.backward |= forest.nearest(backward_ops) >= 0
        forward_ops = np.zeros(len(links.name), np.bool_)
        forward_ops[links.ops_at] = (trace.ops.sequence >= 0) & (trace.ops.forward_thread <= 0)
        forward_op = forest.nearest(forward_ops)
        self.with_gradient = forward_op >= 0
        self.recompute = self.backward & self._forward_again(links, paths, forward_op)
        in_optimizer = np.array(
            [bool({"optimizer", "grad_clip"} & {*path.roles()}) for path in paths.paths] + [False]
        )
        self.optimizer = in_optimizer[paths.of_node] & (paths.of_node >= 0)
        self.in_model = np.array(
            [any(not e.named or e.role for e in path.elements) for path in paths.paths] + [False]
        )[paths.of_node]
        self.any_backward = bool(self.backward.any())

    def _forward_again(self, links: Links, paths: Paths, forward_op: IntArray) -> BoolArray:
        """Forward code run inside the backward: a module or a forward operator within an evaluate node."""
        depth = links.forest.depth()
        again = np.zeros(len(depth), np.bool_)
        for inner in (paths.context, forward_op):
            both = (inner >= 0) & (self.evaluate >= 0)
            again[both] |= depth[inner[both]] > depth[self.evaluate[both]]
        return again

    def of(self, node: IntArray) -> IntArray:
        """Phase codes for nodes; -1 (no node) gives ``other``."""
        out = np.full(len(node), _PHASE["other"], np.int32)
        known = node >= 0
        at = node[known]
        codes = np.where(
            self.optimizer[at],
            _PHASE["optimizer"],
            np.where(
                self.recompute[at],
                _PHASE["recompute"],
                np.where(
                    self.backward[at],
                    _PHASE["backward"],
                    np.where(
                        self.with_gradient[at] | self.in_model[at] | (not self.any_backward),
                        _PHASE["forward"],
                        _PHASE["other"],
                    ),
                ),
            ),
        )
        out[known] = codes
        return out


def _origins(trace: Trace, links: Links, phases: _Phases) -> IntArray:
    """Per kernel the node that decides its component: its operator, or in the backward the forward operator.

    ``AccumulateGrad`` carries no sequence number; the engine runs it directly after the node whose
    gradient it adds (its priority is the highest), so it belongs to the evaluate node before it.
    """
    node = _op_nodes(links)
    out = node.copy()
    in_backward = look_up(phases.backward & ~phases.recompute, node, False)
    tied = np.zeros(len(links.forest.parent), np.bool_)
    tied[links.ops_at] = links.backward_to_forward >= 0
    evaluate = look_up(phases.evaluate, node)
    accumulating = in_backward & look_up(phases.accumulates, evaluate, False)
    before = look_up(_evaluate_before(links, phases), evaluate)
    backward = look_up(links.forest.nearest(tied), np.where(accumulating, before, node))
    # operators are the first nodes: a row of the table is the node itself
    forward = look_up(links.backward_to_forward, backward)
    out[in_backward] = forward[in_backward]
    return out


def _evaluate_before(links: Links, phases: _Phases) -> IntArray:
    """Per AccumulateGrad node the evaluate node of another kind that ran before it on its thread."""
    out = np.full(len(links.forest.parent), -1, np.int32)
    nodes = np.flatnonzero(phases.evaluate == np.arange(len(out)))
    nodes = nodes[np.lexsort((links.ts_ns[nodes], links.thread[nodes]))]
    last: tuple[int, int] | None = None
    for node in nodes.tolist():
        thread = int(links.thread[node])
        if phases.accumulates[node]:
            if last is not None and last[0] == thread:
                out[node] = last[1]
        else:
            last = (thread, node)
    return out


def _assemble(
    trace: Trace,
    links: Links,
    paths: Paths,
    phases: _Phases,
    sites: Sites,
    origin: IntArray,
    op_node: IntArray,
) -> Attribution:
    size = len(trace.kernels)
    component = np.full(size, _COMPONENT["unattributed"], np.int32)
    evidence = np.full(size, _EVIDENCE["none"], np.int32)
    fused = np.zeros(size, np.int32)
    lists: list[tuple[str, ...]] = [()]
    phase = phases.of(np.where(op_node >= 0, op_node, links.kernel_node).astype(np.int32))
    through_sequence = (origin != op_node) & (origin >= 0)

    which = look_up(sites.decision, origin)
    _apply(sites.decisions, which, component, evidence, fused, lists)
    evidence[through_sequence & (which >= 0)] = _EVIDENCE["sequence"]

    # what the backward operator's own name says, where no forward operator is tied to it
    own = np.where(which < 0, look_up(sites.decision, op_node), -1)
    _apply(sites.decisions, own, component, evidence, fused, lists)

    _by_kernel_name(trace, links, paths, component, evidence, fused, lists)
    _memory(trace, component, evidence)
    optimizing = phase == _PHASE["optimizer"]
    bare = optimizing & (component == _COMPONENT["unattributed"])
    component[bare], evidence[bare] = _COMPONENT["optimizer"], _EVIDENCE["module_stack"]
    stepping = (component == _COMPONENT["optimizer"]) | (component == _COMPONENT["grad_clip"])
    phase[stepping & (phase == _PHASE["other"])] = _PHASE["optimizer"]

    place = np.where(origin >= 0, origin, links.kernel_node)
    path = look_up(paths.of_node, place)
    path[component == _COMPONENT["communication"]] = -1  # a bucket of gradients belongs to no one module
    layers = np.array([p.layer if p.layer is not None else -1 for p in paths.paths] + [-1], np.int32)
    forward_op = np.where(origin >= 0, origin - links.ops_at.start, -1).astype(np.int32)
    return Attribution(
        step=links.kernel_step,
        phase=phase,
        component=component,
        evidence=evidence,
        components=lists,
        fused=fused,
        layer=layers[path],
        module=path,
        modules=[p.module for p in paths.paths],
        forward_op=forward_op,
        reason=_reasons(trace, links, paths, phases, component, origin),
        transformer=sites.transformer or bool((component == _COMPONENT["attention.core"]).any()),
        like=np.full(size, -1, np.int32),
    )


def _apply(
    decisions: list[Decision],
    which: IntArray,
    component: IntArray,
    evidence: IntArray,
    fused: IntArray,
    lists: list[tuple[str, ...]],
) -> None:
    if not decisions:
        return
    known = which >= 0
    component[known] = np.array([_COMPONENT[d.component] for d in decisions], np.int32)[which[known]]
    evidence[known] = np.array([_EVIDENCE[d.evidence] for d in decisions], np.int32)[which[known]]
    fused[known] = np.array([_list_code(lists, d.components) for d in decisions], np.int32)[which[known]]


def _list_code(lists: list[tuple[str, ...]], components: tuple[str, ...]) -> int:
    if components not in lists:
        lists.append(components)
    return lists.index(components)


def _by_kernel_name(
    trace: Trace,
    links: Links,
    paths: Paths,
    component: IntArray,
    evidence: IntArray,
    fused: IntArray,
    lists: list[tuple[str, ...]],
) -> None:
    """Names that can mean one thing: communication always, the rest where nothing stronger is known."""
    stated = [kernel_component(text) for text in trace.symbols]
    codes = np.array([_COMPONENT[text] if text else -1 for text in stated] or [-1], np.int32)[
        trace.kernels.name
    ]
    weak = (component == _COMPONENT["unattributed"]) & (codes >= 0)
    comm = (codes == _COMPONENT["communication"]) & (component != _COMPONENT["communication"])
    for mask in (weak, comm):
        component[mask], evidence[mask] = codes[mask], _EVIDENCE["kernel_name"]
        fused[mask] = 0
    core = weak & (codes == _COMPONENT["attention.core"])
    fused[core] = _list_code(lists, CORE)


def _memory(trace: Trace, component: IntArray, evidence: IntArray) -> None:
    """Copies and fills that belong to no component are memory traffic by their category."""
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]
    mask = ~is_kernel & ((component == _COMPONENT["unattributed"]) | (component == _COMPONENT["other"]))
    component[mask], evidence[mask] = _COMPONENT["memory"], _EVIDENCE["kernel_name"]


def _reasons(
    trace: Trace, links: Links, paths: Paths, phases: _Phases, component: IntArray, origin: IntArray
) -> IntArray:
    out = np.full(len(component), -1, np.int32)
    open_ = component == _COMPONENT["unattributed"]
    node = links.kernel_node
    compiled = links.forest.nearest(trace.symbols.where(_is_compiled)[links.name]) >= 0
    captured = trace.symbols.where(lambda text: "GraphLaunch" in text)[trace.launches.name]
    in_path = look_up(paths.of_node, np.where(origin >= 0, origin, node)) >= 0
    conditions = (
        ("unknown module", open_ & in_path),
        ("no names", open_ & (node >= 0) & ~in_path),
        ("no operator", open_ & (node >= 0) & (links.kernel_op < 0) & ~in_path),
        ("backward", open_ & look_up(phases.backward, node, False) & (origin < 0)),
        ("compiled", open_ & look_up(compiled, node, False)),
        ("graph", open_ & look_up(captured, links.kernel_launch, False)),
        ("no launch", open_ & (node < 0)),
    )
    for name, mask in conditions:  # later ones are more specific
        out[mask] = _REASON[name]
    return out


def _is_compiled(text: str) -> bool:
    return text.startswith(
        ("Torch-Compiled Region", "## Call CompiledFxGraph", "CompiledFunction", "CompiledFxGraph")
    )
