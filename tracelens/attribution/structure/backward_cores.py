"""Attention cores of a backward: fused, or around the gradient of their softmax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tracelens.attribution.structure.attention_grammars import KERNELS_BACK
from tracelens.attribution.structure.cores import fused_core, in_one
from tracelens.attribution.structure.grammar import matches
from tracelens.attribution.structure.products import OPEN, Size, size_of
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.gemm import GemmShape

_VALUES = 2  # gradients of what makes the values
_BEFORE = 12  # units from the gradient of values to that of the weights they are summed by, at most
_GRADIENTS = 2  # of queries and of keys
_LINEAR = 4  # gradients of what makes two of queries, keys and values, between those of the core
_UNFUSED = ("attention.scores", "attention.values")
_NORM = frozenset({"norm", "norm_backward"})


def find_backward_cores(run: Run, forward: list[Run]) -> list[Core]:
    """Attention cores of a backward run.

    An unfused one, S = Q K^T, O = softmax(S) V, is known by dP = dO V^T, which has the size of S and which
    nothing else in a backward has. dV, of the size of dQ, mostly comes right before it; where it is put off
    it cannot be told from dQ. Without shapes it is known by a softmax's gradient between such products.
    """
    if not any(map(run.shape, run.products())):
        of_kernels = (
            Core(it.start, it.stop - 1, it.components, backward=True) for it in matches(run, KERNELS_BACK)
        )
        return in_one(run, [*_backward_by_order(run)] or [*of_kernels])
    unfused = [(other, core) for other in forward for core in other.cores if core.first != core.last]
    scores = {size for other, core in unfused if (size := scores_of(other, core)) is not None}
    turned = {(batch, k, n, m) for batch, m, n, k in scores}  # dK as Q^T dS, transposed
    cores: list[Core] = []
    for at, kind in enumerate(run.kinds):
        shape = run.shape(at)
        if kind.what == "core":
            cores.append(fused_core(at, kind))
        elif kind.what == "bmm" and shape is not None and _size(shape) in scores:
            cores.append(_unfused_backward(run, at, turned))
    return in_one(run, cores)


def label_inside(run: Run, forward: Run, *, recomputes: bool) -> None:
    """Name the products of two activations that have no name yet by the part of attention that has as many
    gradients of their size and not all of them yet, also of what is added to the scores of a fused one."""
    parts = {at: part for core in forward.cores for at, part in core.parts.items()}
    plain, turned = dict[Size, Counter[str]](), dict[Size, Counter[str]]()
    for at, kind in enumerate(forward.kinds):
        size = size_of(forward, at) if kind.what == "bmm" else None
        if size is not None:
            (b, m, n, k), part = size, parts.get(at, forward.labels.get(at, OPEN).component)
            for of, made in ((plain, (b, m, k, n)), (plain, (b, k, n, m)), (turned, (b, n, k, m))):
                of.setdefault(made, Counter())[part] += 1
    found = {
        at: size for at, kind in enumerate(run.kinds) if kind.what == "bmm" and (size := size_of(run, at))
    }
    known = Counter((size, run.labels[at].component) for at, size in found.items() if at in run.labels)
    for at, size in found.items():
        if at in run.labels:
            continue
        made_of = next((of[size] for of in (plain, turned) if size in of), Counter[str]())
        left = {part for part, times in made_of.items() if times > known[size, part]}
        if len(left) == 1 and not recomputes:
            run.labels[at] = Label(min(left))
        elif left and all(part.startswith("attention.") for part in left):
            run.labels[at] = Label("unattributed", candidates=tuple(sorted(left)))


def gradient_of(run: Run, core: Core, scores: Collection[object]) -> tuple[int, int, int, int] | None:
    """The one of these sizes of scores that an unfused core of a backward has."""
    own = (run.shape(at) for at, part in core.parts.items() if part == "attention.values")
    return next((size for shape in own if shape and (size := _size(shape)) in scores), None)


def scores_of(run: Run, core: Core) -> tuple[int, int, int, int] | None:
    """The size of Q K^T of an unfused core: what is multiplied with the values; products with positions can
    stand before it."""
    shapes = {part: [run.shape(at) for at in core.parts if core.parts[at] == part] for part in _UNFUSED}
    wanted = {(shape.batch, shape.m, shape.k) for shape in shapes["attention.values"] if shape is not None}
    fits = [s for s in shapes["attention.scores"] if s is not None and (s.batch, s.m, s.n) in wanted]
    shape = fits[-1] if fits else run.shape(core.first)
    return _size(shape) if shape is not None else None


def _backward_by_order(run: Run) -> Iterator[Core]:
    """Without shapes: dV and dP, the gradient of the softmax, dQ and dK. Between dV and dP what made the
    values can have its gradients."""
    last = -1
    for at, kind in enumerate(run.kinds):
        if kind.what == "core":
            yield fused_core(at, kind)
        elif _goes_back(kind) and at > last:  # a sum for a bias of the scores is named after it, too
            before, behind = (
                _beside_softmax(run, way) for way in (range(at - 1, -1, -1), range(at + 1, len(run)))
            )
            if before and behind:
                softmax = (p for p in range(at, min(behind)) if _goes_back(run.kinds[p]))
                parts = dict.fromkeys(before, "attention.values") | dict.fromkeys(
                    softmax, "attention.softmax"
                )
                parts |= dict.fromkeys(behind, "attention.scores")
                last = max(parts)
                yield Core(min(parts), last, parts, backward=True)


def _goes_back(kind: Kind) -> bool:
    return kind.what == "softmax" or "softmax_backward" in kind.tags


def _beside_softmax(run: Run, way: range) -> list[int]:
    """The nearest two products of batches on a ``way``, none of them behind a normalization, another softmax
    or more linear layers than have gradients there."""
    found: list[int] = []
    linear = 0
    for at in way:
        kind = run.kinds[at]
        linear += kind.what == "gemm"
        # no bias named after it
        normed = kind.what == "norm" or (kind.tags & _NORM and "sum" not in kind.tags)
        if linear > _LINEAR or kind.what == "core" or normed or (found and _goes_back(kind)):
            break
        found += [at] if kind.what == "bmm" else []
    return found[:2]


def _unfused_backward(run: Run, at: int, turned: set[tuple[int, int, int, int]]) -> Core:
    """The core around one dP: what stands close before and behind it."""
    parts, own = {at: "attention.values"}, run.shape(at)
    before = _gradient_of_values(run, at)
    if before is not None:
        parts[before] = "attention.values"
    softmax, found, either = None, 0, list[int]()
    for place in range(at + 1, min(len(run), at + 24)):
        kind, shape = run.kinds[place], run.shape(place)
        if kind.what == "softmax" or kind.tags & {"softmax_backward"} or kind.name.startswith("_softmax"):
            parts[place] = "attention.softmax"
            softmax = place
        elif kind.name == "sigmoid_backward":
            parts[place] = "attention.scores"
            softmax = place
        elif kind.what == "bmm" and softmax is not None and shape is not None:
            found += not _of_rows(shape, own)
            if found > _GRADIENTS:
                break
            if _size(shape) in turned or before in parts:
                parts[place] = "attention.scores"  # dQ, dK
            elif own and (shape.batch, shape.m, shape.n) == (own.batch, own.m, own.k):
                either.append(place)
        elif kind.what == "bmm" and before is None and own and shape and _size(shape) == _of_values(own):
            parts[place] = "attention.values"
            before = place
        elif kind.what == "bmm" or (kind.what == "gemm" and found == _GRADIENTS):
            break
    if len(either) == 1 and "attention.scores" in parts.values():
        parts[either[0]] = "attention.scores"  # of the size of dV, which stands elsewhere: beside dK it is dQ
    apart = before is not None and any(kind.what == "gemm" for kind in run.kinds[before:at])
    return Core(at if apart else min(parts), max(parts), parts, backward=True)


def _gradient_of_values(run: Run, at: int) -> int | None:
    """Where dV stands before a dP: right before it, or before what makes the values has its gradients."""
    own, linear = run.shape(at), 0
    for place in range(at - 1, max(-1, at - _BEFORE), -1):
        kind, shape = run.kinds[place], run.shape(place)
        linear += kind.what == "gemm"
        if kind.what == "bmm" and own is not None and shape is not None:
            turned = _size(shape) == _of_values(own)
            near = not linear and own.batch == shape.batch and _size(own) != _size(shape)
            return place if turned or near else None
        if linear > _VALUES or kind.what in ("core", "bmm", "softmax"):
            return None
    return None


def _of_values(own: GemmShape) -> tuple[int, int, int, int]:
    """The size of dV = P^T dO beside that of dP = dO V^T."""
    return (own.batch, own.n, own.k, own.m)


def _of_rows(shape: GemmShape, scores: GemmShape | None) -> bool:
    """Of positions in each row or column of a picture, for all queries: in other batches than the scores."""
    if scores is None or shape.batch == scores.batch:
        return False
    return scores.batch * scores.m in (shape.batch * shape.m, shape.batch * shape.k)


def _size(shape: GemmShape) -> tuple[int, int, int, int]:
    return (shape.batch, shape.m, shape.n, shape.k)
