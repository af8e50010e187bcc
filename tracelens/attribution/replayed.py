"""Phases inside CUDA graphs, whose kernels all hang from one launch: by their names and their order.

Where no operator was recorded the host says as little, and what runs from one update of the weights to the
next is read like a replay.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracelens.attribution.kernels import kernel_component
from tracelens.gemm import KernelNames
from tracelens.trace import BoolArray, CodeArray, Links, Trace, look_up

#: ``cunn_SoftMaxBackward``, ``GammaBetaBackward``, ``layer_norm_grad_input_kernel`` (PyTorch), ``_bprop_``,
#: ``compute_dot_do_o``, ``convert_dq`` (cuDNN and FlashAttention), ``_layer_norm_bwd`` (Triton). Inductor's
#: names list operators of both directions: a forward saves what ``native_layer_norm_backward`` reads.
_NOT_INDUCTOR = r"(?i)^(?!triton_(poi|red|per|tem|for)_).*"
_BACKWARD = re.compile(
    _NOT_INDUCTOR + r"(backward|bprop|(?<![a-z])bwd|dot_do_o|convert_dq|_grad_(input|weight))"
)
#: ``cunn_SoftMaxForward``, ``_fprop_``, ``rmsnorm_fwd``.
_FORWARD = re.compile(_NOT_INDUCTOR + r"(forward|fprop|(?<![a-z])fwd)")


#: What only fills, for the kernel behind it, and what works on lists of weights or of their gradients.
_FILLS = re.compile(r"FillFunctor|^Memset")
_ON_LISTS = re.compile(r"multi_tensor_apply")
_BEHIND = 2


def _updates(text: str) -> bool:
    return bool(_ON_LISTS.search(text)) or kernel_component(text) == "optimizer"


def replayed_directions(
    trace: Trace, links: Links, names: KernelNames, forward: BoolArray, backward: BoolArray
) -> tuple[BoolArray, BoolArray, BoolArray]:
    """Which kernels of graphs are of the forward, which of the backward, and which work on lists behind that.

    ``forward`` and ``backward`` are products whose direction is known. So are kernels that state it in their
    name; so is all between two of one direction, before the first of a forward, and behind the last of a
    backward until something works on lists of weights.
    """
    stated = [(name.direction if name else None) for name in names]
    back = trace.symbols.where(_BACKWARD.search) | np.array([one == "backward" for one in stated], bool)
    ahead = trace.symbols.where(_FORWARD.search) | np.array([one == "forward" for one in stated], bool)
    name = trace.kernels.name
    known = np.where(backward | back[name], -1, np.where(forward | ahead[name], 1, 0))
    fills = trace.symbols.where(_FILLS.search)[name]
    lists = trace.symbols.where(_updates)[name] & (known == 0)
    out = np.zeros(len(name), np.int32)
    for part in replays(trace, links):
        out[part] = _filled(known[part], fills[part], lists[part])
    return out == 1, out == -1, out == _BEHIND


def replays(trace: Trace, links: Links) -> list[npt.NDArray[np.intp]]:
    """The kernels of each replay of a graph, in the order of their begin; of each step that is trained, where
    the file has no operators."""
    rows = np.flatnonzero(look_up(trace.replays, links.kernel_launch, False))
    rows = rows[np.lexsort((trace.kernels.ts_ns[rows], links.kernel_launch[rows]))]
    found = np.split(rows, np.flatnonzero(np.diff(links.kernel_launch[rows])) + 1) if len(rows) else []
    return found if found or len(trace.ops) else _trained_steps(trace)


def _trained_steps(trace: Trace) -> list[npt.NDArray[np.intp]]:
    """All kernels, cut where a forward follows a backward, behind the last that works on weights between the
    two; none where nothing names a backward, or a forward follows one with no such between: it can be
    computed again, or be another part of a batch."""
    rows = np.argsort(trace.kernels.ts_ns, kind="stable")
    back, ahead, lists = (
        trace.symbols.where(says)[trace.kernels.name[rows]]
        for says in (_BACKWARD.search, _FORWARD.search, _updates)
    )
    stated = np.flatnonzero(back | ahead)
    turns = np.flatnonzero(back[stated[:-1]] & ahead[stated[1:]])
    cuts = [
        int(stated[turn]) + int(behind[-1]) + 1
        for turn in turns.tolist()
        if len(behind := np.flatnonzero(lists[stated[turn] : stated[turn + 1]]))
    ]
    return np.split(rows, cuts) if back.any() and (cuts or not len(turns)) else []


def _filled(known: CodeArray, fills: BoolArray, lists: BoolArray) -> CodeArray:
    """Directions along one replay, 0 where it is open, ``_BEHIND`` where lists follow a backward."""
    certain = np.flatnonzero(known | lists)
    if not len(certain):
        return known
    at = np.arange(len(known))
    edges = np.r_[1 if known[certain[0]] == 1 else 0, known[certain], 0]
    place = np.searchsorted(certain, at)  # of the next that is certain
    after, before = edges[place + 1], edges[place]
    behind, ahead = np.r_[False, lists[certain], False][place], np.r_[lists[certain], False][place]
    ends, begins = (before == -1) & ahead, (after == 1) & behind
    out = np.where((before == after) | (fills & (after != 0)) | begins, after, np.where(ends, -1, 0))
    last = np.maximum.accumulate(np.where(known != 0, at, -1))
    follow = np.where((last >= 0) & (known[last] == -1), _BEHIND, 0)
    return np.where(lists, follow, np.where(known != 0, known, out)).astype(np.int32)
