"""Parts inside CUDA graphs that no operator names: by the kernels between two products, in their order.

A graph in eager kernels runs what PyTorch's operators launch: an RMSNorm is a mean and a root among pointwise
kernels, rotary embeddings have a negation, what autocast converts lies before its product. Claimed is
what lies between two kernels whose part is known, and only where all of it fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracelens.attribution.replayed import replays
from tracelens.gemm import KernelNames
from tracelens.trace import Links, Trace
from tracelens.words import COMPONENTS

IntArray = npt.NDArray[np.int32]

#: What a kernel of ATen does, by its functor; the first that is found. Others are "".
_KINDS = (
    ("root", re.compile(r"rsqrt_kernel")),
    ("mean", re.compile(r"MeanOps")),
    ("power", re.compile(r"pow_tensor_scalar")),
    ("negation", re.compile(r"neg_kernel")),
    ("join", re.compile(r"CatArrayBatchedCopy")),
    ("copy", re.compile(r"copy_kernel_cuda|direct_copy_kernel|FloatToHalf|copy_device_to_device")),
    ("shift", re.compile(r"CUDAFunctorOnSelf_add")),
    ("product", re.compile(r"MulFunctor")),
    ("sum", re.compile(r"CUDAFunctor_add")),
    ("reduction", re.compile(r"reduce_kernel")),
    ("pointwise", re.compile(r"elementwise_kernel")),
)
_CODE = {name: code for code, name in enumerate(COMPONENTS)}
_OPEN = _CODE["unattributed"]
_LINEAR = {
    _CODE[name] for name in ("attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down", "logits")
}
_MLP = {_CODE[name] for name in ("mlp.up", "mlp.gate", "mlp.down")}
_NORM = {"mean", "power", "copy", "shift", "product", "root"}
_NORM_BACK = {"product", "reduction", "copy", "power", "sum", "pointwise"}
_TURN = {"product", "negation", "join", "sum"}
_AFTER_PRODUCT = {"copy", "reduction", "sum"}
_FILLS = re.compile(r"^Mem|FillFunctor")


def replayed_parts(
    trace: Trace, links: Links, names: KernelNames, component: IntArray, backward: npt.NDArray[np.bool_]
) -> IntArray:
    """Per kernel the code of its component where it is open and the order says it, else -1."""
    out = np.full(len(component), -1, np.int32)
    found = replays(trace, links)
    if not found:
        return out
    kinds = [next((kind for kind, pattern in _KINDS if pattern.search(text)), "") for text in trace.symbols]
    gemm = [bool(name and name.kind == "gemm") for name in names]
    fills = trace.symbols.where(_FILLS.search)[trace.kernels.name]
    for replay in found:
        part = replay[~fills[replay]]
        name = trace.kernels.name[part]
        for run in _runs(component[part] == _OPEN):
            if run.start == 0 or run.stop == len(part):
                before = after = -1
            else:
                before, after = int(component[part[run.start - 1]]), int(component[part[run.stop]])
            what = [kinds[code] for code in name[run].tolist()]
            to_gemm = run.stop < len(part) and gemm[name[run.stop]]
            from_gemm = run.start > 0 and gemm[name[run.start - 1]]
            if bool(backward[part[run]].all()):
                said = _backward(what, before, after, from_gemm=from_gemm)
            elif not backward[part[run]].any():
                said = _forward(what, before, after, to_gemm=to_gemm)
            else:
                continue
            for at, code in said:
                out[part[run.start + at]] = code
    return out


def _runs(open_: npt.NDArray[np.bool_]) -> Iterator[slice]:
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
                yield from ((at, _CODE["norm"]) for at in range(start, stop))
    if set(what) == {"copy"} and ((to_gemm and after in _LINEAR) or after == _CODE["loss"]):
        yield from ((at, after) for at in range(len(what)))  # what autocast converts for it


def _backward(what: list[str], before: int, after: int, *, from_gemm: bool) -> Iterator[tuple[int, int]]:
    if what.count("power") == 1 and what.count("reduction") >= 2 and what.count("product") >= 4:
        last = max((at for at, kind in enumerate(what) if kind == "copy"), default=-1)
        first = what.index("product")
        if first < what.index("power") < last and set(what[: last + 1]) <= _NORM_BACK:
            yield from ((at, _CODE["norm"]) for at in range(last + 1))
            if what[last + 1 :] == ["sum"]:
                yield last + 1, _CODE["residual"]
        return
    if {before, after} <= _MLP and before != after and set(what) <= {"product", "pointwise"}:
        yield from ((at, _CODE["mlp.activation"]) for at in range(len(what)))
    if "negation" in what and "join" in what:
        first = what.index("product") if "product" in what else len(what)
        stop = next((at for at in range(first, len(what)) if what[at] not in _TURN), len(what))
        if "negation" in what[first:stop]:
            yield from ((at, _CODE["attention.rope"]) for at in range(first, stop))
    if from_gemm and before in _LINEAR and what.count("sum") <= 1 and set(what) <= _AFTER_PRODUCT:
        # the bias's gradient and what autocast converts back; a sum joins two gradients of one input
        yield from ((at, before) for at, kind in enumerate(what) if kind != "sum")
    if before == _CODE["norm"] and what in (["sum"], ["sum", "copy"]) and after in _LINEAR:
        yield from ((at, _CODE["residual"]) for at in range(len(what)))
