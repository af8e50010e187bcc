"""What updates weights and is none of ``torch.optim``, without a range: known by what only that runs."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np

from tracelens.attribution.columns import EVIDENCE_CODE, PHASE, Columns
from tracelens.attribution.directions import untold_by_host
from tracelens.gemm.inductor import parse_fused
from tracelens.trace import BoolArray, Links, Trace, look_up

_SCALES, _ADDS = re.compile(r"aten::mul_?"), re.compile(r"aten::(add_?|sub_?|lerp_?|copy_)")
_MANY = 24  # kernels of an average in a row, at least
_SIZES = 3  # distinct ones among the weights, at least
_PER_TENSOR = 2  # kernels, at least


def settle_optimizer(trace: Trace, links: Links, columns: Columns, with_gradient: BoolArray) -> None:
    """What the optimizer runs beside its own kernels: all of its phase that nothing tells, what is launched
    between two of its kernels, and averages of weights. ``with_gradient``: what can be trained through."""
    optimizing = columns.phase == PHASE["optimizer"]
    columns.set(optimizing & columns.are("unattributed"), "optimizer", "module_stack")
    compiled = trace.symbols.where(_updates)[trace.kernels.name] & (columns.phase == PHASE["other"])
    columns.set(compiled & columns.are("unattributed"), "optimizer", "kernel_name")
    between = between_updates(trace, links, columns.are("optimizer"), columns.phase == PHASE["other"])
    between &= ~untold_by_host(trace, links) & columns.are("unattributed")
    columns.set(between, "optimizer", "local")
    trains = with_gradient | (columns.phase == PHASE["backward"])
    centers = columns.are("loss") & (columns.evidence < EVIDENCE_CODE["structure"])  # DINO
    can_be = ~trains & ~optimizing & ~centers
    columns.set(averaged_weights(trace, links, can_be), "optimizer", "local")


def _updates(name: str) -> bool:
    """Is it a kernel of Inductor that by its list updates weights?"""
    fused = parse_fused(name) if name.startswith("triton_") else None
    return fused is not None and "optimizer" in fused.tags


def between_updates(trace: Trace, links: Links, updates: BoolArray, outside: BoolArray) -> BoolArray:
    """Mask over kernels: launched between two ``updates`` of a stretch in which all kernels are ``outside``.

    ``updates`` are kernels that an optimizer alone runs, ``outside`` those of neither forward nor backward. A
    stretch ends with the step, and where a forward or backward kernel is launched on its thread.
    """
    out = np.zeros(len(trace.kernels), np.bool_)
    node = links.kernel_node
    rows = np.flatnonzero((node >= 0) & (links.kernel_launch >= 0))
    rows = rows[np.lexsort((look_up(links.ts_ns, node[rows]), look_up(links.thread, node[rows])))]
    thread, step = look_up(links.thread, node[rows]), links.kernel_step[rows]
    inside = ~outside[rows]
    change = inside | np.append(True, (thread[1:] != thread[:-1]) | (step[1:] != step[:-1]))[: len(rows)]
    stretch = np.cumsum(change | np.append(False, inside[:-1])[: len(rows)])
    at = np.flatnonzero(updates[rows] & outside[rows])
    low, high = (np.full(int(stretch.max(initial=0)) + 1, end) for end in (len(rows), -1))
    np.minimum.at(low, stretch[at], at)
    np.maximum.at(high, stretch[at], at)
    place = np.arange(len(rows))
    out[rows] = (place > low[stretch]) & (place < high[stretch])
    return out


def averaged_weights(trace: Trace, links: Links, can_be: BoolArray) -> BoolArray:
    """Mask over kernels, of those that can be: a moving average of the weights, as a teacher has one.

    One tensor after another is scaled and added to, with nothing else between: matrices and vectors of
    several sizes (dino/main_dino.py, ``param_k.data.mul_(m).add_((1 - m) * param_q.detach().data)``).
    """
    out = np.zeros(len(trace.kernels), np.bool_)
    op = links.kernel_op
    scales, adds = (
        trace.symbols.where(does.fullmatch)[look_up(trace.ops.name, op)] & (op >= 0)
        for does in (_SCALES, _ADDS)
    )
    rows = np.flatnonzero((op >= 0) & (links.kernel_launch >= 0))
    rows = rows[np.lexsort((trace.ops.ts_ns[op[rows]], trace.ops.thread[op[rows]]))]
    of = (scales | adds)[rows] & can_be[rows]
    edges = np.flatnonzero(np.diff(of, prepend=False, append=False)).reshape(-1, 2)
    for begin, end in edges[edges[:, 1] - edges[:, 0] >= _MANY].tolist():
        if not adds[rows[begin:end]].any():  # clipped gradients are scaled alone
            continue
        codes = trace.ops.inputs[op[rows[begin:end]]]
        sizes = {code: _size(trace.details.inputs(code).dims) for code in np.unique(codes).tolist()}
        given = [sizes[code] for code in codes.tolist()]
        turns = sum(one != other for one, other in pairwise(given))
        kinds = {len(size) for size in given}
        if {1, 2} <= kinds and len({*given}) >= _SIZES and _PER_TENSOR * turns <= len(given):
            out[rows[begin:end]] = True
    return out


def _size(dims: list[Any] | None) -> tuple[int, ...]:
    first = dims[0] if dims else None
    return tuple(first) if isinstance(first, list) else ()
