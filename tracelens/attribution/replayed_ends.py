"""Where a captured step begins and ends, by its kernels: what embeds, the gradient of that, and the update.

Embeddings stand before the first normalization and their gradients behind the last; what works on lists of
tensors behind those clips gradients or updates weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracelens.attribution.columns import COMPONENT
from tracelens.attribution.replayed import replays
from tracelens.trace import BoolArray, CodeArray, Links, Trace

#: What a kernel is for, by its name; the first that is found. Others are "".
_KINDS = (
    ("norms", re.compile(r"multi_tensor_apply.*LpNormFunctor")),
    ("scales", re.compile(r"multi_tensor_apply.*BinaryOpScalar(Tensor)?Functor.*multiplies")),
    # ``_foreach_addcdiv_``: the step that Adam, Adagrad, RMSprop and Adadelta end with
    ("steps", re.compile(r"multi_tensor_apply.*PointwiseOpScalar(List)?Functor.*divides")),
    ("updates", re.compile(r"multi_tensor_apply")),
    (
        "table",
        re.compile(r"compute_grad_weight|embedding_backward|sum_and_scatter|krn_partial|num_of_partial"),
    ),
    ("sorts", re.compile(r"cub::.*(sort|scan|unique)|^Memset|FillFunctor|kernel_with_index.*arange")),
    ("looks up", re.compile(r"gather_kernel|[iI]ndexSelect|indexing_backward")),
    (
        "convolves",
        re.compile(
            r"(?i)fprop|wgrad|ImplicitGemmConv|nchwToNhwc|nhwcToNchw|scudnn|cask_cudnn|cudnn.*conv(?!ert)"
        ),
    ),
    ("sums", re.compile(r"CUDAFunctor_add")),
    ("moves", re.compile(r"copy_kernel|CatArrayBatchedCopy|ReduceSplitK|reduce_kernel")),
)
_OPEN = (COMPONENT["unattributed"], COMPONENT["memory"])
_ON_WEIGHTS = ("scales", "updates", "steps")
_MAKES = {"looks up", "convolves"}
_AROUND = {"sums", "moves", "sorts", "table"} | _MAKES


def replayed_ends(trace: Trace, links: Links, component: CodeArray, backward: BoolArray) -> CodeArray:
    """Per kernel of a replayed graph the code of its component where it is open and the ends of the graph say
    it, else -1. ``backward`` are the kernels of that phase."""
    out = np.full(len(component), -1, np.int32)
    found = replays(trace, links)
    if not found:
        return out
    names = [next((kind for kind, pattern in _KINDS if pattern.search(text)), "") for text in trace.symbols]
    for replay in found:
        what = [names[code] for code in trace.kernels.name[replay].tolist()]
        open_ = np.isin(component[replay], _OPEN)
        known = np.flatnonzero(~open_)
        if not len(known):
            continue
        back = np.flatnonzero(backward[replay])
        opens = (
            component[replay[known[0]]] == COMPONENT["norm"] and not backward[replay[: known[0] + 1]].any()
        )
        parts = [*_opening(what, int(known[0]))] if opens else []
        if len(back):
            of_model = known[backward[replay][known] & (component[replay][known] != COMPONENT["embedding"])]
            last = int(of_model[-1]) if len(of_model) else int(back[0])
            parts += _closing(what, last + 1, int(back[-1]) + 1)
            parts += _update(what, component[replay], int(back[-1]) + 1)
        for at, name in parts:
            if open_[at]:
                out[replay[at]] = COMPONENT[name]
    return out


def _opening(what: list[str], stop: int) -> Iterator[tuple[int, str]]:
    """From the first that looks up or convolves to what is normalized."""
    first = next((at for at in range(stop) if what[at] in _MAKES), stop)
    if first < stop and {*what[first:stop]} <= _AROUND:
        yield from ((at, "embedding") for at in range(first, stop))


def _closing(what: list[str], start: int, stop: int) -> Iterator[tuple[int, str]]:
    """Behind the last part of the layers: the gradients of tables and of convolutions on pictures."""
    inside = {*what[start:stop]}
    if inside & {"table", "convolves"} and inside <= _AROUND:
        yield from ((at, "embedding") for at in range(start, stop))


def _update(what: list[str], component: CodeArray, start: int) -> Iterator[tuple[int, str]]:
    """Behind the backward: clipping from the norms of gradients to their scaling, then the optimizer."""
    norms = [at for at in range(start, len(what)) if what[at] == "norms"]
    stop = start
    if norms:  # a weight's decay scales too, behind the count of steps
        first = next((at for at in range(norms[-1], len(what)) if what[at] in _ON_WEIGHTS), len(what))
        stop = next((at for at in range(first, len(what)) if what[at] != "scales"), len(what))
        yield from ((at, "grad_clip") for at in range(norms[0] if stop > first else stop, stop))
    steps = [at for at in range(stop, len(what)) if what[at] in _ON_WEIGHTS]
    if any(component[at] == COMPONENT["optimizer"] or what[at] == "steps" for at in steps):
        yield from ((at, "optimizer") for at in range(steps[0], steps[-1] + 1))
