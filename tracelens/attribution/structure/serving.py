"""Units that do nothing but serve a product: casts and layouts of what it takes, biases, sums of parts."""

from __future__ import annotations

from itertools import takewhile
from math import prod

from tracelens.attribution.kernels import kernel_component
from tracelens.attribution.structure.bias_sums import casts_rows
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import FEW_BITS, VIEWS, Dims, Kind
from tracelens.gemm import GemmShape
from tracelens.gemm.inductor import parse_fused

_SERVED = 6  # units to the product that is served, less than this
_NEAR = 100  # units to the next product, at most
_BIAS = 3  # units from the first step of a bias to the product that takes it, at most
_RANGES = frozenset({"abs", "amax", "amin", "aminmax", "max"})
SERVING = frozenset({"cast", "layout", "pad", "bias"})


def weights_of(run: Run) -> set[tuple[int, ...]]:
    """Sizes of the weights of the named products, each also as it lies transposed."""
    shapes = [shape for at in run.labels if (shape := run.shape(at)) is not None]
    return {pair for shape in shapes for pair in ((shape.n, shape.k), (shape.k, shape.n))}


def helps(run: Run, at: int) -> Label | None:
    """Split-K reductions and the like belong to the product right before them, an attention's to that."""
    if run.kinds[at].what != "helper" or at == 0:
        return None
    of_core = kernel_component(run.kinds[at].name) is not None
    return run.labels.get(at - 1) if not of_core or run.kinds[at - 1].what == "core" else None


def serves_next(run: Run, at: int, weights: set[tuple[int, ...]]) -> Label | None:
    """Casts and layouts of a weight, or of the very input, for one of the next two products."""
    kind = run.kinds[at]
    if _only_casts(kind):
        cast_for = next((p for p in range(at + 1, len(run)) if not _only_casts(run.kinds[p])), at)
        return run.labels.get(cast_for) if run.kinds[cast_for].what == "gemm" else None
    if kind.what == "quantize":
        taker = next((p for p in range(at + 1, min(at + 3, len(run))) if _takes(run, p)), None)
        label = run.labels.get(taker) if taker is not None else None
        of_core = label is not None and run.kinds[taker or 0].what == "core"
        return Label("attention.other", label.layer) if label is not None and of_core else label
    if pads(kind):
        ahead = range(at + 1, min(at + _SERVED, len(run)))
        return next((run.labels.get(p) for p in ahead if run.kinds[p].what in ("gemm", "bmm", "core")), None)
    if kind.tensors and all(len(tensor) == 1 for tensor in kind.tensors):
        return _makes_bias(run, at)
    wide = {tensor for tensor in kind.tensors if len(tensor) >= 2}
    serves = kind.what == "copy" or (kind.what == "fused" and kind.tags and not kind.tags - SERVING)
    if not serves or not wide:
        return None
    behind = [p for p in range(at + 1, min(at + _SERVED, len(run))) if run.kinds[p].what in ("gemm", "core")]
    for place in behind[:2]:
        label, shape = run.labels.get(place), run.shape(place)
        if label is None or shape is None:
            return None
        weight = {(shape.n, shape.k), (shape.k, shape.n)}
        if wide & weight and (wide <= weights or kind.what == "fused"):
            return Label(label.component, label.layer, label.components)
        if kind.what == "fused" and kind.tensors[-1] in operands(shape):
            return Label(label.component, label.layer, label.components)
    return None


def for_few_bits(kind: Kind) -> bool:
    """A compiled kernel that only scales, casts and turns what a product in few bits takes: Inductor lays
    that out for the product, whose name stands among those of the kernel."""
    fused = parse_fused(kind.name) if kind.what == "fused" else None
    return fused is not None and FEW_BITS in fused.ops and not fused.unknown and not kind.tags - SERVING


def pads(kind: Kind) -> bool:
    """Without shapes: by its name it only makes an operand of a product larger, or turns it over."""
    return (
        not kind.ops.isdisjoint({"mm", "t"})
        and not kind.tensors
        and "bias" in kind.tags
        and not kind.tags - SERVING
    )


def serves_around(run: Run, at: int) -> Label | None:
    """A cast in a backward without shapes: between two gradients of one part of either, and of the next
    product where it takes what a normalization gives back, or tokens as rows, which no weight has. What is
    only laid out is what that takes, too."""
    kind = run.kinds[at]
    if pads(kind) or for_few_bits(kind):
        near = range(at + 1, min(at + _SERVED, len(run)))
        return next((run.labels.get(p) for p in near if run.kinds[p].what in ("gemm", "core")), None)
    lays_out = kind.what == "fused" and kind.tags == {"layout"} and not kind.tensors
    if not (_only_casts(kind) or lays_out):
        return None
    before, behind = (
        next((p for p in way if not _only_casts(run.kinds[p]) and run.kinds[p].name != "sum"), at)
        for way in (range(at - 1, -1, -1), range(at + 1, len(run)))
    )
    taker = next((p for p in range(at + 1, len(run)) if not _is_beside(run.kinds[p])), at)
    if (lays_out or casts_rows(kind)) and run.kinds[taker].what == "gemm" and taker in run.labels:
        return run.labels[taker]
    normed = bool(run.kinds[before].tags & {"norm", "norm_backward"})
    ahead = next((p for p in range(before, -1, -1) if run.kinds[p].what in ("gemm", "core")), at)
    labels = run.labels.get(ahead), run.labels.get(behind)
    if run.kinds[behind].what != "gemm" or labels[1] is None:
        return None
    same = labels[0] is not None and labels[0].component == labels[1].component
    return labels[1] if normed or same else None


def _is_beside(kind: Kind) -> bool:
    """Can it stand between a cast and the product that takes it: another cast, a sum, a cleared buffer?"""
    sums = kind.name == "sum" or (kind.what == "fused" and kind.tags == {"sum"})
    return _only_casts(kind) or sums or kind.name == "Memset (Device)"


def _only_casts(kind: Kind) -> bool:
    """Without shapes, a kernel of a compiled graph: of a weight, of a bias, or of what a product takes."""
    return "cast" in kind.tags and kind.tags <= {"cast", "layout"} and not kind.tensors


def _makes_bias(run: Run, at: int) -> Label | None:
    """Puts a bias together of its parts, or clears a part of one that was copied, for the next product."""
    kind, sizes = run.kinds[at], [size for (size,) in run.kinds[at].tensors]
    near = range(at + 1, min(at + _NEAR, len(run)))
    taker = next((p for p in near if run.kinds[p].what in ("gemm", "bmm", "core")), at)
    shape, wide = run.shape(taker), sum(sizes) if kind.name == "cat" else sizes[0]
    if shape is None:
        return None
    if kind.name == "cat":  # or what is cut again
        return run.labels.get(taker) if wide == shape.n or {shape.n} == {*sizes} else None
    clears = any(k.name in ("zero_", "fill_") for k in run.kinds[max(at - 1, 0) : taker])
    makes = clears and taker - at <= _BIAS and (kind.what == "copy" or kind.name in ("zero_", "fill_"))
    return run.labels.get(taker) if makes and wide in (shape.n, shape.n // 3) else None


def serves_few_bits(run: Run, at: int) -> list[int]:
    """Around a product in few bits: what scales its factors into them, and what adds its bias."""
    if run.kinds[at].name != FEW_BITS:
        return []
    shape = run.shape(at)
    return [*_scales_factors(run, at, shape), *_adds_bias(run, at, shape)]


def _scales_factors(run: Run, at: int, shape: GemmShape | None) -> list[int]:
    """Right before it, from where the range of either factor is found."""
    kinds, factors = run.kinds, operands(shape) if shape is not None else set()
    ends = ("norm", "activation", "gemm", "core")
    back: list[int] = []
    for before in range(at - 1, -1, -1):
        wide = {(prod(t[:-1]), t[-1]) for t in kinds[before].tensors if prod(t) > 1}
        theirs = before in run.labels and run.labels[before] != run.labels[at]
        if theirs or kinds[before].what in ends or not wide <= factors:
            break
        back.append(before)
    first = max((n for n, before in enumerate(back) if kinds[before].name in _RANGES), default=-1)
    return back[: first + 1]


def _adds_bias(run: Run, at: int, shape: GemmShape | None) -> list[int]:
    """Right behind it, the bias cast before or not; without shapes kernels tell what is spread."""
    kinds, behind = run.kinds, range(at + 1, len(run))
    bias = (shape.n,) if shape is not None else ()
    casts = [*takewhile(lambda p: kinds[p].name in VIEWS or _casts_bias(kinds[p], bias), behind)]
    place = at + len(casts) + 1
    added = kinds[place] if place < len(run) and kinds[place].what == "add" else None
    tensors = added.tensors[:2] if added is not None else ()
    adds = added is not None and not tensors and "spread" in added.tags
    if shape is not None:
        adds = bias in tensors and any(prod(t) == shape.m * shape.n for t in tensors)
    return [p for p in (*casts, place) if p not in run.labels] if adds else []


def _casts_bias(kind: Kind, bias: Dims) -> bool:
    return {*kind.tensors} == {bias} if bias else kind.what == "copy" and "narrow" in kind.tags


def _takes(run: Run, at: int) -> bool:
    return run.kinds[at].what in ("gemm", "experts", "core")


def operands(shape: GemmShape) -> set[Dims]:
    """The two things that a product reads, each also as it lies transposed."""
    return {(shape.m, shape.k), (shape.k, shape.m), (shape.k, shape.n), (shape.n, shape.k)}
