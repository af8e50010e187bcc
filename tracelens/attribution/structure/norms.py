"""Normalizations: those of the residual stream, and the steps of one that is written out.

Written out, a normalization is a handful of units around the root of a mean square: the mean is taken off,
the square's mean taken, and x times the root is cast back and multiplied with a weight prepared beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain, takewhile
from math import prod

from tracelens.attribution.structure.norm_forms import STEPS, by_deviation, by_length, by_response, weighs
from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import CUTS, VIEWS, Dims, Kind
from tracelens.gemm.inductor import parse_fused
from tracelens.gemm.inductor_ops import LAYOUT

_ROOTS = frozenset({"rsqrt", "sqrt"})
_BEFORE = frozenset(
    {"pow", "square", "mean", "var", "var_mean", "std", "sub", "add", "mul", "sum"}
    | {"convert_element_type", "broadcast_in_dim"}  # of var, where it is composed of others
)
_CENTRES = frozenset({"sub", "var", "var_mean", "std"})
_WEIGHED_AHEAD = (
    "copy_",
    "add",
    "copy_",
    "mul",
    "copy_",
)  # in more bits, with a weight kept as its distance from 1
_SCALE_AND_SHIFT = 2  # rows
_SUMMED = 2  # products that a rotation is the sum of


def written_norms(run: Run) -> set[int]:
    """Positions of the units that are steps of a normalization which is written out."""
    out: set[int] = set()
    for root in range(len(run)):
        if normalizes_by(run, root) and (start := _start(run, root)) < root:
            stop = _stop(run, start, root)
            whole = _whole(run.kinds[start:stop])
            first = _weighed_ahead(run, start, stop, whole)
            if not whole and first < start:  # it has no other weight
                stop = min((p + 1 for p in range(root, stop) if run.kinds[p].what == "copy"), default=stop)
            out |= {*range(first, stop)}
            out |= _weighed(run, stop, whole, rows=True)
        out |= by_length(run, root) or by_response(run, root) or by_deviation(run, root)
        if run.kinds[root].what == "norm":
            whole = _whole(run.kinds[root : root + 1])
            own = _weighed(run, root + 1, whole) | _modulated(run, root + 1, whole)
            out |= own if whole else own | _cast_around(run, root, max(own, default=root))
    return out | _weighed_as_others(run) | (set() if out else _affine(run))


def _affine(run: Run) -> set[int]:
    """Without shapes: behind the products and sums of layers that nothing normalizes a scale and a shift in
    place of that, ahead of products (MobileBERT, arXiv 2004.02984)."""
    names = [_name(kind) if kind.what != "add" or kind.tensors else "add" for kind in run.kinds]
    found = [at for at in range(1, len(run) - 2) if names[at : at + 3] == ["mul", "add", "gemm"]]
    found = [at for at in found if names[at - 1] in ("add", "gemm")]
    first, last = (found[0], found[-1]) if found else (0, 0)
    inside = [core for core in run.cores if first < core.first < last and "norm" not in names[first:last]]
    return {p for at in found for p in (at, at + 1)} if 1 < len(inside) < len(found) else set()


def _whole(kinds: list[Kind]) -> Dims:
    """What a normalization works on."""
    return max((t for kind in kinds for t in kind.tensors), key=prod, default=())


def _weighed(run: Run, start: int, whole: Dims, *, rows: bool = False) -> set[int]:
    """Behind a normalization what prepares a weight for its result, and the product with that: a vector (not
    where ``rows`` is set), or one for each sample (adaptive normalization)."""
    if not whole:
        one_more = adds_number(run.kinds[start - 1])  # a number can be of what takes it
        return _weighed_before_product(run, start - (rows and one_more)) if one_more or not rows else set()
    samples = {(whole[0], whole[-1]), (whole[0], 1, whole[-1])} if len(whole) == 3 else set[Dims]()
    weights = samples if rows else samples | {whole[-1:]}
    at = start
    while at < len(run) and run.kinds[at].tensors and weights.issuperset(run.kinds[at].tensors):
        at += 1
    if at == len(run) or not weighs(run.kinds[at], whole, weights) or (rows and _turns(run, at)):
        return set()
    return {*range(start, at + 1)}


def _weighed_ahead(run: Run, start: int, stop: int, whole: Dims) -> int:
    """Where one begins whose weight is ahead of its statistics (transformers models/muse_spark): it has none
    behind them."""
    weights, at = {whole[-1:]}, start - 1
    if not whole:
        before = run.kinds[max(start - len(_WEIGHED_AHEAD), 0) : start]
        weighed = (*map(_name, before),) == _WEIGHED_AHEAD and adds_number(before[1])
        return start - len(before) if weighed else start
    if any(weighs(kind, whole, weights) for kind in run.kinds[start:stop]):
        return start
    at -= at >= 0 and run.kinds[at].what == "copy" and run.kinds[at].tensors[:1] == (whole,)
    if at < 0 or not weighs(run.kinds[at], whole, weights):
        return start
    own = takewhile(lambda p: {*run.kinds[p].tensors} == weights, range(at - 1, -1, -1))
    first = min(own, default=at)
    return first - (
        first > 0 and run.kinds[first - 1].what == "copy" and whole in run.kinds[first - 1].tensors
    )


def _modulated(run: Run, start: int, whole: Dims) -> set[int]:
    """Behind a normalization the scale and the shift of adaptive ones (arXiv 2212.09748), one vector for each
    sample or token, with what prepares and casts them: a shift for each token is one before a product only,
    as a sum before another normalization is a residual."""
    if len(whole) < 3:
        return set()
    samples, width = whole[0], whole[-1]
    ones = (samples, *(1 for _ in whole[1:-1]), width)
    small, end, scaled, shifted = {(width,), (samples, width), ones}, start, False, False
    for at in range(start, min(len(run), start + STEPS)):
        kind = run.kinds[at]
        operands = {*kind.tensors} - {()}
        one_more = kind.what == "add" and kind.tensors == (whole,)
        if kind.what != "copy" and not one_more and not operands <= small:
            full = kind.tensors[:2] == (whole, whole)
            scales, adds_up = kind.name in ("mul", "mul_"), kind.what == "add"
            if full and adds_up and (shifted or not (scaled and _goes_to_product(run, at + 1))):
                break
            by_row = whole in operands and set() < operands - {whole} <= small
            if not (scales or adds_up) or not (full or by_row):
                break
            end, scaled = end if full and scales else at + 1, scaled or scales
            shifted |= adds_up and not one_more
        elif not operands <= small | {whole}:
            break
    casts = start < end < len(run) and run.kinds[end].what == "copy" and {*run.kinds[end].tensors} == {whole}
    return {*range(start, end + (casts and "layout" not in run.kinds[end].tags))}


def _goes_to_product(run: Run, at: int) -> bool:
    behind = (kind for kind in run.kinds[at : at + STEPS] if kind.what != "copy" and kind.name not in VIEWS)
    return next((kind.what == "gemm" for kind in behind), False)


def _weighed_before_product(run: Run, start: int) -> set[int]:
    """Without shapes: a product with a weight, prepared by a sum or not, up to a linear layer; with a shift,
    up to the next normalization as well. One plus a scale and a shift (arXiv 2212.09748) can have casts
    around, and a residual is neither spread nor taken by a linear layer as it is."""
    kinds = run.kinds
    steps = [at for at in range(start, min(start + 2 * STEPS, len(run))) if kinds[at].what != "copy"]
    names = [_name(kinds[at]) for at in steps]
    first = stop = int(names[:1] == ["mul"])
    while names[stop : stop + 3] == ["add", "mul", "add"] and adds_number(kinds[steps[stop]]):
        if "spread" not in kinds[steps[stop + 2]].tags and names[stop + 3 : stop + 4] != ["gemm"]:
            break
        stop += 3
    if stop > first:
        end = steps[stop - 1] + 1
        return {*range(start, end + any("narrow" in kind.tags for kind in kinds[end : end + 1]))}
    names = [_name(kind) for kind in kinds[start : start + 4]]
    own = next((n for n, name in enumerate(names) if name in ("gemm", "norm", "cat")), 0)
    scaled = names[:own] in (["mul"], ["add", "mul"]) and names[own] == "gemm"
    return {*range(start, start + own)} if scaled or names[:own] == ["add", "mul", "add"] else set()


def _weighed_as_others(run: Run) -> set[int]:
    """Without shapes: behind the last normalization of a model what is behind others ahead of products."""
    kinds = run.kinds
    norms = [at for at, kind in enumerate(kinds) if kind.what == "norm" and not kind.tensors]
    weighed = ((at, _weighed_before_product(run, at + 1)) for at in norms)
    tails = {kinds[at]: kinds[at + 1 : at + 1 + len(own)] for at, own in weighed if own}
    behind = ((at + 1, tails.get(kinds[at], [])) for at in norms)
    return {*chain(*(range(at, at + len(own)) for at, own in behind if kinds[at : at + len(own)] == own))}


def _name(kind: Kind) -> str:
    return kind.what if kind.what in ("gemm", "norm") else kind.name


def normalizes_by(run: Run, root: int) -> bool:
    """Is it the root of a normalization? A square root that nothing is divided by is of something else."""
    if by_deviation(run, root):
        return True
    if not is_root(run, root) or run.kinds[root].name != "sqrt":
        return is_root(run, root)
    return _start(run, root) < root and root + 1 < len(run) and run.kinds[root + 1].name == "div"


def is_root(run: Run, at: int) -> bool:
    """Of a mean square; also written as its power of a half, below one (Gemma 3n's)."""
    kind = run.kinds[at]
    if _ROOTS & {kind.name, kind.what}:
        return True
    ahead = run.kinds[max(at - 2, 0) : at]
    before = [other.name for other in ahead]
    small = not kind.tensors or kind.tensors[0][-1:] == (1,)
    small &= all(len(t) != 1 for other in ahead for t in other.tensors)  # and of no one number for all tokens
    return kind.name == "pow" and small and before[-1:] in (["add"], ["mean"]) and "mean" in before


def _cast_around(run: Run, at: int, last: int) -> set[int]:
    """Without shapes: casts of what a normalization takes and, back to fewer bits, of what it gives; where
    more are cast to these, they are a linear layer's, with its weight (autocast)."""
    raised = {*takewhile(lambda p: raises(run.kinds[p]), range(at - 1, -1, -1))}
    back = ["narrow" in kind.tags for kind in run.kinds[last : last + 3]]
    if raised and back[:1] == [True]:
        return raised
    return raised | {last + 1} if raised and back[1:2] == [True] and not any(back[2:]) else set()


def raises(kind: Kind) -> bool:
    """Without shapes: a cast to more bits."""
    return kind.what == "copy" and not kind.tags & {"layout", "narrow"}


def _start(run: Run, root: int) -> int:
    """From the cast or the mean that it begins with; the root itself where no mean of squares precedes it."""
    kinds, start, averaged = run.kinds, root, False
    for at in range(root - 1, max(-1, root - STEPS), -1):
        kind = kinds[at]
        if at == root - 1 and _is_weight(kind):
            continue  # cast for the product with the root (modules/transformer.py of kyutai-labs/moshi)
        if kind.what == "copy":
            if not (averaged and _is_wide(kind)):
                return start
            # a mean of its own, ahead of the variance (arXiv 2111.09881)
            varies = any(other.name in ("var", "std") for other in kinds[at:root])
            return at - (varies and at > 0 and kinds[at - 1].name == "mean")
        if kind.name not in _BEFORE or (averaged and (kind.name in ("add", "mul", "sum") or adds(kind))):
            if _squares(run, at):
                start = _cast(run, at)
            break
        averaged |= kind.name in ("mean", "var", "var_mean", "std", "pow")
        start = at
    return start if averaged else root


def _is_weight(kind: Kind) -> bool:
    """Is it a cast of one vector, of a value for each channel, in three dimensions?"""
    return kind.what == "copy" and any(len(t) == 3 and prod(t) == t[-1] > 1 for t in kind.tensors)


def _squares(run: Run, at: int) -> bool:
    """Is it x * x, whose mean is taken right behind it?"""
    kind, behind = run.kinds[at : at + 2]
    return kind.name == "mul" and behind.name == "mean" and kind.tensors[:1] == kind.tensors[1:2]


def _cast(run: Run, at: int) -> int:
    """From the cast right before it on, if there is one of the same size."""
    before = run.kinds[at - 1] if at > 0 else None
    casts = before is not None and before.what == "copy" and before.tensors[:1] == run.kinds[at].tensors[:1]
    return at - 1 if casts else at


def _stop(run: Run, start: int, root: int) -> int:
    """Behind the multiplication with the weight, and the bias behind that: without a mean that is taken off
    there is none, and a sum without shapes is a residual."""
    kinds, stop, products = run.kinds, root + 1, 0
    if of_map := _stop_on_map(run, root):
        return of_map
    if _is_weight(kinds[root - 1]) and [kind.name for kind in kinds[root + 1 : root + 3]] == ["mul", "mul"]:
        return root + 3 + any(kind.what == "copy" for kind in kinds[root + 3 : root + 4])
    whole: Dims | None = None  # what is normalized, as it is handed on
    centred = any(kind.name in _CENTRES for kind in kinds[start:root])
    for at in range(root + 1, min(len(run), root + STEPS)):
        kind = kinds[at]
        wide = _is_wide(kind)
        scales = kind.name in ("mul", "mul_", "div") and (not wide or _scales(kind))
        if not (scales or kind.what == "copy" or (kind.what == "add" and not adds(kind))):
            break
        largest = max((t for t in kind.tensors if len(t) >= 2), key=prod, default=None)
        if whole is not None and kind.what == "copy" and largest not in (None, whole):
            break  # in another form: for what takes it
        behind_cast = [before.name for before in kinds[at - 2 : at]] == ["copy_", "mul"]
        narrow = kinds[at - 2].tensors or "narrow" in kinds[at - 2].tags or "narrow" not in kind.tags
        if kind.what == "copy" and behind_cast and narrow and _is_wide(kinds[at - 2]):
            break  # cast back before its weight: this cast is for what takes it
        bare, cast = not (kind.tensors or centred), kinds[at - 1].what == "copy"
        sums = kind.what == "add" and not adds_number(kind)
        if products > 1 and ((sums and (bare or cast)) or (kind.what == "copy" and cast)):
            break  # a residual, or a cast for what takes it
        whole = largest or whole
        if wide and scales:
            if products and any(t[-1] == 1 < prod(t) for t in kind.tensors[1:2] if t):
                break  # by one number for each row, again: of what takes it
            products += 1
            if products > 2 or (
                not kind.tensors and (_turns(run, at) or (kind.name == "div" and products > 1))
            ):
                break
        stop = at + 1
    return stop


def _turns(run: Run, at: int) -> bool:
    """Is it the first of the two products of a rotation, behind which the other half is negated?"""
    kinds = takewhile(lambda kind: kind.what != "add", run.kinds[at + 1 : at + STEPS])
    behind = [kind.name for kind in kinds if kind.name not in VIEWS | CUTS]
    return behind[:1] == ["neg"] and behind.count("mul") < _SUMMED


def _stop_on_map(run: Run, root: int) -> int | None:
    """The same over the channels of a map, [batch, channels, *space]: the division by one number for each
    place, and a weight and a bias for each channel; None where it is over something else."""
    statistic = next(iter(run.kinds[root].tensors), ())
    if len(statistic) != 4 or statistic[1] != 1 or 1 in statistic[2:]:
        return None
    stop, steps = root + 1, list[str]()
    for kind in run.kinds[root + 1 : root + STEPS]:
        whole, other = (*kind.tensors[:2], (), ())[:2]
        step = "add" if kind.what == "add" else kind.name
        weight = other == (1, *whole[1:2], 1, 1) and step in ("add", "mul") and step not in steps
        divides = other == statistic and kind.name in ("div", "mul")
        if whole[:1] + whole[2:] != statistic[:1] + statistic[2:] or not (
            weight or divides or kind.what == "copy"
        ):
            break
        steps += [step] if weight else []
        stop += 1
    return stop if stop > root + 1 else None


def is_step(kind: Kind) -> bool:
    """Can it be a step of a normalization? A sum of two tensors is none."""
    return (kind.name in _BEFORE | _ROOTS or kind.what in _ROOTS) and not adds(kind)


def _is_wide(kind: Kind) -> bool:
    return not kind.tensors or any(len(t) >= 2 for t in kind.tensors)


def _scales(kind: Kind) -> bool:
    """By a statistic of each row, or by a weight of lower rank: not by another tensor, as rotations are."""
    two = kind.tensors[:2]
    return len(two) < 2 or len(two[0]) != len(two[1]) or 1 in (two[0][-1], two[1][-1])


def adds(kind: Kind) -> bool:
    """Two tensors of one shape: a residual, and no bias and no epsilon."""
    two = kind.tensors[:2]
    return kind.what == "add" and len(two) == 2 and two[0] == two[1] and len(two[0]) >= 2


def standardized_weights(run: Run) -> Iterator[int]:
    """What makes a convolution's weight normal, right before it (arXiv 1903.10520)."""
    for at, kind in enumerate(run.kinds):
        weight = next((t for t in kind.tensors[1:2] if kind.what == "convolution" and len(t) > 3), ())
        sizes = {weight, weight[:1], (*weight[:1], *(1 for _ in weight[1:]))}
        ahead = range(at - 1, -1, -1) if weight else ()
        own = [*takewhile(lambda p: {*run.kinds[p].tensors} - {()} <= sizes, ahead)]  # noqa: B023
        if any(run.kinds[p].name in ("var", "var_mean", "std") for p in own):
            yield from own


def adds_number(kind: Kind) -> bool:
    """Without shapes: a sum with a number, and of no two tensors, as its kernel says (told.py)."""
    return kind.what == "add" and "number" in kind.tags


def is_affine_of_heads(run: Run, at: int) -> bool:
    """One of a weight and a bias of every head, right behind the norm that has none (transformers
    models/chameleon, ChameleonLayerNorm)."""
    for first in {at, at - 1} - {0, -1, len(run) - 1}:
        normed, scales, shifts = run.kinds[first - 1 : first + 2]
        one, row = [*scales.tensors, (), ()][:2]
        if normed.what != "norm" or scales.name != "mul" or shifts.what != "add":
            continue
        if not scales.tensors:  # a rotation adds two products
            return True
        if len(row) > 1:
            return scales.tensors == shifts.tensors and one[-len(row) :] == row != one
    return False


def is_affine(run: Run, at: int, width: int) -> bool:
    """One of a weight and a bias of that width, as of a normalization that takes no statistics, or of a scale
    and a shift for each sample (adaptive normalization, arXiv 2212.09748)."""
    kinds = run.kinds
    if kinds[at].what == "fused":  # pointwise, and nothing but sums and products
        rows = [t for t in kinds[at].tensors if t == (width,)]
        return len(rows) >= _SCALE_AND_SHIFT and _multiplies_and_adds(kinds[at].name)
    for first in (at, at - 1):
        if 0 <= first < len(kinds) - 1 and kinds[first].name == "mul" and kinds[first + 1].what == "add":
            pair = kinds[first].tensors[:2], kinds[first + 1].tensors[:2]
            if all(len(set(two)) == 2 and any(_is_row(t, width, two) for t in two) for two in pair):
                return True
    return False


@cache
def _multiplies_and_adds(name: str) -> bool:
    fused = parse_fused(name)
    return fused is not None and fused.kind == "pointwise" and {*fused.ops} - LAYOUT == {"add", "mul"}


def _is_row(tensor: Dims, width: int, both: Sequence[Dims]) -> bool:
    samples = {t[0] for t in both if t}
    return tensor == (width,) or (len(tensor) == 3 and tensor[1:] == (1, width) and samples == {tensor[0]})


def normalizes(run: Run, at: int, hidden: int) -> bool:
    """A normalization of the residual stream (and not of single heads or of a compressed part)."""
    kind = run.kinds[at]
    if kind.name == "linalg_vector_norm":
        return bool(by_length(run, at)) and (not kind.tensors or kind.tensors[0][-1] == hidden)
    if kind.what == "norm" or kind.tags & {"norm", "norm_backward"}:
        wide = [t for t in kind.tensors if len(t) >= 2]
        return not kind.tensors or (any(t[-1] == hidden for t in wide) and not _of_heads(run, kind, hidden))
    if normalizes_by(run, at):  # written out: pow, mean, add, rsqrt, mul
        for before in reversed(run.kinds[max(0, at - 6) : at]):
            if before.name in ("mean", "pow", "square") or before.what in ("mean", "pow"):
                wide = [t for t in before.tensors if len(t) >= 2]
                return not wide or (wide[0][-1] == hidden and not _of_heads(run, before, hidden))
    return False


def _of_heads(run: Run, kind: Kind, hidden: int) -> bool:
    """Works on queries or keys head by head (their width can be that of the stream)."""
    sizes = {core.key_dim for core in run.cores} - {hidden, None}
    return any(len(t) >= 3 and (t[-1] in sizes or (len(t) == 4 and t[-1] == 1)) for t in kind.tensors)
