"""Normalizations that are written out without the root of a mean square: by length, response or deviation."""

from __future__ import annotations

from itertools import takewhile
from math import prod

from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import VIEWS, Dims, Kind

STEPS = 8  # units on either side of the root
_DEVIATION = frozenset({"var", "broadcast_in_dim", "sqrt", "std"})
_TO_LENGTH = frozenset({"clamp", "clamp_min", "clamp_min_", "expand", "div", "mul", "copy_"})


def by_length(run: Run, root: int) -> set[int]:
    """What divides rows by their length (functional.normalize) and multiplies them with a weight; without one
    it is of something else, as of cosine attention."""
    kinds, places = run.kinds, range(root + 1, min(len(run), root + STEPS))
    if kinds[root].name != "linalg_vector_norm":
        return set()
    if not kinds[root].tensors:
        steps = [at for at in places if kinds[at].name not in VIEWS][:4]
        length, *names = [kinds[at].name for at in steps] or [""]
        if names != ["div", "mul", "mul"] or length not in _TO_LENGTH:
            return set()
        return {*range(root, steps[3] + 1)}
    whole = kinds[root].tensors[0]
    statistic = (*whole[:-1], 1)
    if kinds[root + 1 : root + 2] and kinds[root + 1].name == "div" and _is_stream(run, root, whole):
        return {root, root + 1}  # to the length of one, as all of nGPT's stream (arXiv 2410.01131)
    small = [*takewhile(lambda at: {*kinds[at].tensors} <= {statistic, ()}, places)]
    rows = [kinds[at].name for at in small if kinds[at].name not in VIEWS]
    scaled = rows[-2:] == ["reciprocal", "mul"]
    if scaled and any(weighs(kind, whole, {statistic}) for kind in kinds[small[-1] + 1 :][:1]):
        return {*range(root, small[-1] + 2)}  # by the root of a mean square, which length and width make
    end = next((at for at in places if weighs(kinds[at], whole, weights_of(whole))), root)
    if end == root and len(whole) == 3:  # by one number, as the stream alone is
        end = max((at for at in places if _is_scaled(run, at, root, whole)), default=root)
    prepares = [kind.tensors == (whole[-1:],) for kind in kinds[:end]]  # the weight
    if end == root or any(kinds[p].name not in _TO_LENGTH and not prepares[p] for p in range(root + 1, end)):
        return set()
    return {*range(root - (root > 0 and prepares[root - 1]), end + 1)}


def by_response(run: Run, root: int) -> set[int]:
    """Global response normalization (arXiv 2301.00808): channels of a map, or of a sequence, are divided by
    their length over all places, on average, and weighed, shifted and added to what they were."""
    whole = next(iter(run.kinds[root].tensors), ())
    if run.kinds[root].name != "linalg_vector_norm" or len(whole) not in (3, 4):
        return set()
    ones, width = (1,) * (len(whole) - 2), whole[-1:]
    rows = {(n, *ones, *width) for n in (1, whole[0])} | {(whole[0], *ones, 1), width}
    at = root + 1
    while at < min(len(run), root + STEPS) and {*run.kinds[at].tensors} <= rows | {whole}:
        if run.kinds[at].name not in ("mean", "add", "div", "mul"):
            break
        at += 1
    names = {kind.name for kind in run.kinds[root + 1 : at]}
    return {*range(root, at)} if {"mean", "div", "mul"} <= names else set()


def by_deviation(run: Run, root: int) -> set[int]:
    """w * (x - mean) / (deviation + epsilon) + b, as the annotated transformer has it: the deviation, ahead
    of the product with w or behind, is one unit or a root and its own; without shapes by the names alone."""
    kinds = run.kinds
    if kinds[root].name not in ("std", "sqrt"):
        return set()
    start = next((at for at in range(root - 1, max(root - STEPS, -1), -1) if kinds[at].name == "mean"), root)
    whole = next(iter(kinds[start].tensors), ())
    small = {whole, (*whole[:-1], 1), whole[:-1], whole[-1:], ()}
    stop = root + 1
    while stop < min(len(run), root + STEPS) and {*kinds[stop].tensors} <= small:
        stop += 1
        if kinds[stop - 1].name == "div":
            break
    names = [kind.name for kind in kinds[start:stop] if kind.what != "copy" and kind.name not in _DEVIATION]
    if start == root or names != ["mean", "sub", "mul", "add", "div"]:
        return set()
    shifted = [(kind.what, kind.tensors) for kind in kinds[stop : stop + 1]]
    return {*range(start, stop + (shifted == [("add", (whole, whole[-1:]) if whole else ())]))}


def weights_of(whole: Dims) -> set[Dims]:
    """For every channel, or for those of every head."""
    return {whole[-1:], (whole[1], 1, whole[-1])} if len(whole) == 4 else {whole[-1:]}


def _is_stream(run: Run, at: int, whole: Dims) -> bool:
    """Does the product before give these rows, or does the one behind take them?"""
    before = next((shape for p in range(at - 1, -1, -1) if (shape := run.shape(p)) is not None), None)
    behind = next((shape for p in range(at + 1, len(run)) if (shape := run.shape(p)) is not None), None)
    rows = (1, prod(whole[:-1]), whole[-1])
    gives = before is not None and (before.batch, before.m, before.n) == rows
    takes = behind is not None and (behind.batch, behind.m, behind.k) == rows
    return len(whole) == 3 and (gives or takes)


def _is_scaled(run: Run, at: int, root: int, whole: Dims) -> bool:
    """Multiplied with numbers only, right behind the division."""
    between = [kind for kind in run.kinds[root + 1 : at] if kind.name == "mul"]
    return all(
        kind.name == "mul" and kind.tensors in ((whole,), (whole, (1,))) for kind in (*between, run.kinds[at])
    )


def weighs(kind: Kind, whole: Dims, weights: set[Dims]) -> bool:
    """Is what is normalized multiplied with one of these?"""
    two = kind.tensors[:2]
    return kind.name in ("mul", "mul_") and whole in two and any(t in weights for t in two if t != whole)
