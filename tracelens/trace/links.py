"""From each GPU event back to the code that caused it.

kernel -> launch (runtime or driver call with the same correlation id) -> innermost operator on the
launching thread -> the ranges and nn.Module frames around it -> the step; and from a backward
operator to the forward operator with the same sequence number. Everything is array work; nothing
is dropped: a kernel without a launch stays, with -1 where there is nothing to point at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.trace.autograd import backward_to_forward, numbered_ops
from tracelens.trace.nesting import NONE, Forest, build_forest, look_up, match
from tracelens.trace.processes import launches_of_kernels, numbered_by_external_id
from tracelens.trace.steps import Steps, find_steps
from tracelens.trace.tables import BoolArray, CodeArray, IntArray, Ops, Table, Trace

#: The Python frames that name a part of the work; all others would only slow the nesting down. They would
#: also mislead it: a named range begins inside the short frame of its own ``__enter__``.
_TELLING_FRAME = re.compile(r"^nn\.Module: |torch/optim/|clip_grad|rotary|rope\b|apply_rot", re.IGNORECASE)


@dataclass(frozen=True)
class Links:
    """Nodes are host spans: operators, then ranges, telling frames and launches, each in table order."""

    forest: Forest
    ops_at: slice
    ranges_at: slice
    frames_at: slice
    launches_at: slice
    frame_row: IntArray  # row of Trace.frames for each node of frames_at
    name: npt.NDArray[np.int32]  # symbol code per node
    ts_ns: IntArray  # per node
    thread: npt.NDArray[np.int32]  # per node
    kernel_launch: CodeArray  # per kernel: row of Trace.launches, -1 = launch not in the file
    kernel_node: CodeArray  # per kernel: its place in the forest; -1 = unknown
    kernel_op: CodeArray  # per kernel: row of Trace.ops, -1 = no operator around the launch
    kernel_step: CodeArray  # per kernel: position in Steps, -1 = outside every step
    by_external_id: int  # kernels linked through External id for want of a launch
    steps: Steps
    numbered: Ops  # operators with the numbers of autograd as they hold (``numbered_ops``)
    backward_to_forward: CodeArray  # per op: the forward op a backward op belongs to, else -1

    @property
    def is_op(self) -> BoolArray:
        """Per node: is it an operator?"""
        return self.mask(self.ops_at)

    def mask(self, part: slice) -> BoolArray:
        """Per node: does it belong to that table?"""
        out = np.zeros(len(self.forest.parent), np.bool_)
        out[part] = True
        return out


def link(trace: Trace) -> Links:
    """Build every link of a trace; about as fast as reading it."""
    host = np.flatnonzero(
        ~trace.symbols.where(lambda name: name == "gpu_user_annotation")[trace.ranges.category]
    )
    frame_row = np.flatnonzero(trace.symbols.where(_TELLING_FRAME.search)[trace.frames.name])
    parts: tuple[tuple[Table, Any], ...] = (
        (trace.ops, slice(None)),
        (trace.ranges, slice(None)),
        (trace.frames, frame_row),
        (trace.launches, slice(None)),
    )
    name, thread, ts_ns, dur_ns = (
        np.concatenate([getattr(table, column)[rows] for table, rows in parts])
        for column in ("name", "thread", "ts_ns", "dur_ns")
    )
    bounds = np.cumsum([0, len(trace.ops), len(trace.ranges), len(frame_row), len(trace.launches)])
    ops_at, ranges_at, frames_at, launches_at = (slice(int(a), int(b)) for a, b in pairwise(bounds))
    # The GPU's shadows of host ranges lie on threads of their own and enclose nothing here.
    on_gpu = np.ones(len(trace.ranges), np.bool_)
    on_gpu[host] = False
    thread[ranges_at][on_gpu] = -1 - np.arange(int(on_gpu.sum()), dtype=np.int32)
    thread[frames_at] = _frame_threads(trace)[frame_row]

    forest = build_forest(thread, ts_ns, dur_ns)
    kernel_launch = launches_of_kernels(trace)
    kernel_node = np.where(kernel_launch >= 0, kernel_launch + launches_at.start, NONE).astype(np.int32)
    by_external = _by_external_id(trace, kernel_launch)
    kernel_node = np.where(kernel_node < 0, by_external, kernel_node)
    is_op = np.zeros(len(name), np.bool_)
    is_op[ops_at] = True
    kernel_op = look_up(forest.nearest(is_op), kernel_node)
    steps = find_steps(trace, host, trace.launches.ts_ns[kernel_launch[kernel_launch >= 0]])
    numbered = numbered_ops(trace, forest)
    return Links(
        forest=forest,
        ops_at=ops_at,
        ranges_at=ranges_at,
        frames_at=frames_at,
        launches_at=launches_at,
        frame_row=frame_row,
        name=name,
        ts_ns=ts_ns,
        thread=thread,
        kernel_launch=kernel_launch,
        kernel_node=kernel_node,
        kernel_op=kernel_op,
        kernel_step=_kernel_steps(kernel_node, ts_ns, steps),
        by_external_id=int((by_external[kernel_launch < 0] >= 0).sum()),
        steps=steps,
        numbered=numbered,
        backward_to_forward=backward_to_forward(trace, numbered),
    )


def _by_external_id(trace: Trace, kernel_launch: CodeArray) -> CodeArray:
    """Kernels without a launch event, through the operator's External id.

    Some exporters write the correlation id there; where the two are equal throughout it means nothing.
    """
    kernels = trace.kernels
    known = kernels.external_id >= 0
    repeats = (kernels.external_id[known] == kernels.correlation[known]).all()
    if repeats or numbered_by_external_id(trace):
        return np.full(len(kernels), NONE)
    orphans = (kernel_launch < 0) & known & (kernels.external_id > 0)
    return match(trace.ops.external_id, np.where(orphans, kernels.external_id, -1))


def _frame_threads(trace: Trace) -> npt.NDArray[np.int32]:
    """The thread of every Python frame.

    Older versions of PyTorch put the frames of all threads on (0, 0). They belong to the thread
    whose operators begin inside them; with several such threads there is no telling which.
    """
    threads = trace.frames.thread.copy()
    host_threads = np.unique(np.concatenate([trace.ops.thread, trace.launches.thread]))
    for thread in np.unique(threads):
        if thread in host_threads:
            continue
        mine = threads == thread
        candidates = [int(t) for t in host_threads if t not in threads]
        if not candidates:
            continue
        modules = mine & trace.symbols.where(lambda name: name.startswith("nn.Module: "))[trace.frames.name]
        if not modules.any():
            continue
        inside = [_share_inside(trace, int(t), modules) for t in candidates]
        best = int(np.argmax(inside))
        others = [share for at, share in enumerate(inside) if at != best]
        if inside[best] > 0 and max(others, default=0) < inside[best] / 2:
            threads[mine] = candidates[best]
    return threads


def _share_inside(trace: Trace, thread: int, modules: BoolArray) -> float:
    """How many of the module frames have an operator of this thread begin within them (0..1)."""
    starts = np.sort(trace.ops.ts_ns[trace.ops.thread == thread])
    begin = trace.frames.ts_ns[modules]
    end = begin + trace.frames.dur_ns[modules]
    return (
        float((np.searchsorted(starts, end) > np.searchsorted(starts, begin)).mean()) if len(starts) else 0.0
    )


def _kernel_steps(kernel_node: CodeArray, node_ts: IntArray, steps: Steps) -> CodeArray:
    """A kernel belongs to the step that launched it, whenever it ran.

    Without a launch in the file it was launched before the recording began: it belongs to no step
    of the recording, unless the whole trace is the one step.
    """
    if not steps.marked:
        return np.zeros(len(kernel_node), np.int32)
    linked = kernel_node >= 0
    when = node_ts[kernel_node[linked]]
    at = np.searchsorted(steps.start_ns, when, side="right") - 1
    inside = (at >= 0) & (when < steps.end_ns[np.maximum(at, 0)])
    out = np.full(len(kernel_node), NONE)
    out[linked] = np.where(inside, at, -1)
    return out
