"""Forward, backward and what is computed again, where more is known than which operators ran."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.attribution.columns import PHASE, ROLE, Columns
from tracelens.attribution.phases import Phases
from tracelens.attribution.replayed import replayed_directions
from tracelens.attribution.twins import orphans
from tracelens.gemm import KernelNames, is_gemm_op
from tracelens.trace import BoolArray, CodeArray, Links, Trace, distinct_rows, look_up


def settle_phases(
    trace: Trace, links: Links, names: KernelNames, phases: Phases, columns: Columns, part: BoolArray
) -> None:
    """Set the phase and role of kernels of which nothing but their place in the step, their layout or the
    graph that replays them says it. ``part``: those with a place in a model."""
    phase, role = columns.phase, columns.role
    updates = columns.are("optimizer", "grad_clip")
    # a forward that is not trained on
    phase[(phase == PHASE["other"]) & part & ~updates] = PHASE["forward"]
    # a product of the forward that a compiled backward computes again
    again = (role == ROLE["forward"]) & (phase == PHASE["backward"])
    stretch = np.where(again, -2 - np.arange(len(phase)), look_up(phases.evaluate, links.kernel_node))
    again |= phase == PHASE["recompute"]
    phase[again] = PHASE["recompute"]
    if again.any():
        computes = ~columns.are("communication")  # a backward sends as its forward does
        unproven = again & ~_ran_before(trace, links, again, phase == PHASE["forward"], stretch, computes)
        phase[unproven], role[unproven] = PHASE["backward"], -1
    role[:] = _roles_by_layout(trace, links, names, role, phase)
    gradient = (role == ROLE["dgrad"]) | (role == ROLE["wgrad"])
    phase[gradient & untold_by_host(trace, links)] = PHASE["backward"]
    ahead, back, ends = replayed_directions(trace, links, names, role == ROLE["forward"], gradient)
    phase[ahead & (phase == PHASE["other"]) & ~updates] = PHASE["forward"]
    phase[back & ~updates] = PHASE["backward"]
    phase[ends] = PHASE["optimizer"]
    phase[_behind_backward(trace, links, phases) & (phase == PHASE["forward"])] = PHASE["backward"]


def _behind_backward(trace: Trace, links: Links, phases: Phases) -> BoolArray:
    """Per kernel: does it sum over ranks, between a backward and the next forward or the optimizer?

    A loop that sums its gradients itself does so with numbers of autograd, as a forward has them; of that
    those prove it that a backward is tied to.
    """
    sums = trace.symbols.where(lambda text: "AllReduce" in text or "ReduceScatter" in text)[
        trace.kernels.name
    ]
    tied = links.backward_to_forward
    forward = links.ops_at.start + np.unique(tied[tied >= 0])
    never = np.iinfo(np.int64).min

    def last(nodes: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """When the last of these began before the launch of each kernel."""
        times = np.append(never, np.sort(links.ts_ns[nodes]))
        return times[np.searchsorted(times, look_up(links.ts_ns, links.kernel_node, never)) - 1]

    backward = last(np.flatnonzero(phases.backward & links.is_op))
    out: BoolArray = backward > np.maximum(last(forward), last(np.flatnonzero(phases.optimizer)))
    return out & sums & (links.kernel_node >= 0)


def untold_by_host(trace: Trace, links: Links) -> BoolArray:
    """Inside a graph, and without operators, the host knows no phase."""
    untold: BoolArray = orphans(trace, links) | (len(trace.ops) == 0)
    return untold


def _roles_by_layout(
    trace: Trace, links: Links, names: KernelNames, role: CodeArray, phase: CodeArray
) -> CodeArray:
    """Of a backward product the role that its kernel's layout says: g W is NN, g^T x is NT.

    It decides only where no operator does: a library's own call, as a weight gradient that is added in place
    (gradient accumulation fusion).
    """
    layouts = {"NN": ROLE["dgrad"], "NT": ROLE["wgrad"]}
    layout = [name.layout[:2] if name and name.kind == "gemm" and name.layout else "" for name in names]
    stated = np.array([layouts.get(text, -1) for text in layout] or [-1], np.int32)[trace.kernels.name]
    product = trace.symbols.where(is_gemm_op)[look_up(trace.ops.name, links.kernel_op)]
    open_ = (role < 0) & (phase == PHASE["backward"]) & ~(product & (links.kernel_op >= 0))
    return np.where(open_, stated, role).astype(np.int32)


def _ran_before(
    trace: Trace, links: Links, again: BoolArray, forward: BoolArray, stretch: CodeArray, counts: BoolArray
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
