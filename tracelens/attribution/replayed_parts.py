"""Parts inside CUDA graphs that no operator names: by the kernels between two products, in their order.

A graph in eager kernels runs what PyTorch's operators launch: an RMSNorm is a mean and a root among pointwise
kernels, rotary embeddings have a negation, what autocast converts lies before its product. Claimed is
what lies between two kernels whose part is known, and only where all of it fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

import numpy as np

from tracelens.attribution.columns import COMPONENT
from tracelens.attribution.replayed import replays
from tracelens.gemm import KernelNames
from tracelens.trace import BoolArray, CodeArray, Links, Trace
from tracelens.words import COMPONENTS, EVIDENCE

#: What a kernel of ATen does, by its functor; the first that is found. Others are "".
_KINDS = (
    ("root", re.compile(r"rsqrt_kernel")),
    ("mean", re.compile(r"MeanOps")),
    ("power", re.compile(r"pow_tensor_scalar")),
    ("negation", re.compile(r"neg_kernel")),
    ("join", re.compile(r"CatArrayBatchedCopy")),
    ("copy", re.compile(r"copy_kernel_cuda|direct_copy_kernel|FloatToHalf|copy_device_to_device")),
    ("roll", re.compile(r"roll_cuda_kernel")),
    ("random", re.compile(r"distribution_elementwise_grid_stride_kernel.*uniform")),
    ("floor", re.compile(r"floor_kernel_cuda")),
    ("shift", re.compile(r"CUDAFunctorOnSelf_add")),
    ("product", re.compile(r"MulFunctor")),
    ("sum", re.compile(r"CUDAFunctor_add")),
    ("reduction", re.compile(r"reduce_kernel")),
    ("pointwise", re.compile(r"elementwise_kernel")),
)
_OPEN = COMPONENT["unattributed"]
_ATTENDS = [COMPONENT[name] for name in ("attention.other", "attention.rope")]
_LINEAR = {
    COMPONENT[name]
    for name in ("attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down", "logits")
}
#: What takes the normalized stream: its gradients are summed for the normalization.
_TAKES_NORMED = {COMPONENT[name] for name in ("attention.qkv", "mlp.up", "mlp.gate")}
_MLP = {COMPONENT[name] for name in ("mlp.up", "mlp.gate", "mlp.down")}
_NORM = {"mean", "power", "copy", "shift", "product", "root"}
_NORM_BACK = {"product", "reduction", "copy", "power", "sum", "pointwise"}
_MOVES, _WINDOWS = {"copy", "roll"}, COMPONENT["attention.other"]
_CHANCE = ["random", "shift", "floor"]
_TURN = {"product", "negation", "join", "sum"}
_AFTER_PRODUCT = {"copy", "reduction", "sum"}
_FILLS = re.compile(r"^Mem|FillFunctor")
#: Around the kernel of attention's gradient, cuDNN's and FlashAttention's.
_OF_CORE = re.compile(r"dot_do_o|convert_dq")
_CASTS = re.compile(r"float16_copy_kernel|FloatToHalf")
_STRUCTURE = EVIDENCE.index("structure")


def replayed_parts(
    trace: Trace, links: Links, names: KernelNames, said: tuple[CodeArray, CodeArray], backward: BoolArray
) -> CodeArray:
    """Per kernel the code of its component where it is open, or known by its block alone, and the order says
    it, else -1. ``said`` are the component and the evidence of each."""
    component, evidence = said
    out = np.full(len(component), -1, np.int32)
    found = replays(trace, links)
    if not found and not len(trace.ops) and not backward.any():  # a forward alone, without operators
        found = [np.argsort(trace.kernels.ts_ns, kind="stable")]
    if not found:
        return out
    kinds = [next((kind for kind, pattern in _KINDS if pattern.search(text)), "") for text in trace.symbols]
    gemm = [bool(name and name.kind == "gemm") for name in names]
    ends = [bool(name and name.kind in ("gemm", "gemm_helper")) for name in names]  # or adds its pieces
    fills = trace.symbols.where(_FILLS.search)[trace.kernels.name]
    casts = trace.symbols.where(_CASTS.search)[trace.kernels.name]
    copies = np.array([kind == "copy" for kind in kinds] or [False])[trace.kernels.name]
    vague = np.isin(component, _ATTENDS) | (copies & (component == COMPONENT["mlp.activation"]))
    vague = (component == _OPEN) | (vague & (evidence == _STRUCTURE))
    core = trace.symbols.where(_OF_CORE.search)[trace.kernels.name] & vague
    out[core] = COMPONENT["attention.core"]
    for replay in found:
        part = replay[~fills[replay]]
        name = trace.kernels.name[part]
        for run in _runs((vague & ~core)[part]):
            if run.start == 0 or run.stop == len(part):
                before = after = -1
            else:
                before, after = (int(component[part[at]]) for at in (run.start - 1, run.stop))
            what = [kinds[code] for code in name[run].tolist()]
            to_gemm = run.stop < len(part) and gemm[name[run.stop]]
            from_gemm = run.start > 0 and ends[name[run.start - 1]]
            if bool(backward[part[run]].all()):
                parts = _backward(what, before, after, from_gemm=from_gemm)
            elif not backward[part[run]].any():
                parts = _forward(what, before, after, to_gemm=to_gemm)
                if to_gemm and after in _LINEAR:  # what autocast converts for it
                    ahead = takewhile(lambda at: casts[at], part[run][::-1].tolist())
                    out[[*ahead]] = after
            else:
                continue
            for at, code in parts:
                out[part[run.start + at]] = code
    return out


def _runs(open_: BoolArray) -> Iterator[slice]:
    """Stretches of open kernels."""
    edges = np.flatnonzero(np.diff(np.r_[False, open_, False].astype(np.int8)))
    for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield slice(start, stop)


def _forward(what: list[str], before: int, after: int, *, to_gemm: bool) -> Iterator[tuple[int, int]]:
    inside = before >= 0 and all(COMPONENTS[one].startswith("attention.") for one in (before, after))
    if not inside:  # a norm of queries or keys, whose part is not told
        for root in (at for at, kind in enumerate(what) if kind == "root"):
            mean = next((at for at in range(root, -1, -1) if what[at] == "mean"), None)
            if mean is None:
                continue
            start = mean - (mean > 0 and what[mean - 1] in ("power", "product"))
            start -= start > 0 and what[start - 1] == "copy"
            stop = next((at for at in range(start, len(what)) if what[at] not in _NORM), len(what))
            if stop > root:
                yield from ((at, COMPONENT["norm"]) for at in range(start, stop))
    if set(what) == {"copy"} and (
        (to_gemm and after in _LINEAR and not inside) or after == COMPONENT["loss"]
    ):
        yield from ((at, after) for at in range(len(what)))  # what autocast converts for it
    if to_gemm and after == COMPONENT["attention.qkv"] and set(what) == {"copy", "roll"}:  # windows, shifted
        yield from ((at, _WINDOWS if kind == "roll" else after) for at, kind in enumerate(what))
    if before == COMPONENT["attention.output"]:  # windows, put back
        yield from ((at, _WINDOWS) for at in range(len([*takewhile(_MOVES.__contains__, what)])))
    yield from ((at, COMPONENT["dropout"]) for at in _dropped(what))
    yield from ((at, COMPONENT["attention.rope"]) for at in _turned(what))


def _backward(what: list[str], before: int, after: int, *, from_gemm: bool) -> Iterator[tuple[int, int]]:
    if what.count("power") == 1 and what.count("reduction") >= 2 and what.count("product") >= 4:
        last = max((at for at, kind in enumerate(what) if kind == "copy"), default=-1)
        first = what.index("product")
        if first < what.index("power") < last and set(what[: last + 1]) <= _NORM_BACK:
            yield from ((at, COMPONENT["norm"]) for at in range(last + 1))
            if what[last + 1 :] == ["sum"]:
                yield last + 1, COMPONENT["residual"]
        return
    if {before, after} <= _MLP and before != after and set(what) <= {"product", "pointwise"}:
        yield from ((at, COMPONENT["mlp.activation"]) for at in range(len(what)))
    yield from ((at, COMPONENT["attention.rope"]) for at in _turned(what))
    behind = [*takewhile(_AFTER_PRODUCT.__contains__, what)]
    if (
        from_gemm
        and before in _LINEAR
        and behind.count("sum") <= 1
        and (behind == what or before in _TAKES_NORMED)
    ):
        # the bias's gradient and what autocast converts back; a sum joins two gradients of one input
        yield from ((at, before) for at, kind in enumerate(behind) if kind != "sum")
        if before in _TAKES_NORMED and "sum" in behind:
            yield behind.index("sum"), COMPONENT["norm"]
    if before == COMPONENT["norm"] and what in (["sum"], ["sum", "copy"], ["copy"]) and after in _LINEAR:
        yield from ((at, COMPONENT["residual"]) for at in range(len(what)))


def _dropped(what: list[str]) -> range:
    """Where a whole path is dropped: floor(rand + keep), and what is scaled and multiplied by it (timm's
    ``drop_path``)."""
    first = next((at for at in range(len(what)) if what[at : at + 3] == _CHANCE), len(what))
    return range(first, next((at for at in range(first + 3, len(what)) if what[at] != "product"), len(what)))


def _turned(what: list[str]) -> range:
    """Where queries or keys are turned."""
    first = what.index("product") if "product" in what else len(what)
    stop = next((at for at in range(first, len(what)) if what[at] not in _TURN), len(what))
    return range(first, stop) if {"negation", "join"} <= {*what[first:stop]} else range(0)
