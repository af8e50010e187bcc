"""What stands between the products of a backward without shapes: by what it does and what is beside it.

Sums over the tokens are gradients of biases and of weights of normalizations. Inductor makes them in two
stages, and gives the second one, where it is the same code for several, the name of the first.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, takewhile

from tracelens.attribution.structure.gradients import in_experts, station
from tracelens.attribution.structure.readings import EXPERTS
from tracelens.attribution.structure.returns import may_unbend, unbends
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.sums import BIASES
from tracelens.attribution.structure.units import Kind
from tracelens.gemm.inductor import parse_fused
from tracelens.gemm.inductor_ops import LAYOUT, NORM_BACKWARD

_CORE = "attention.core"
_OWN = "attention.qkv"
_AROUND_CORES = frozenset({("attention.output", _CORE), (_CORE, _CORE), (_CORE, _OWN)})
_NORM = frozenset({"norm", "norm_backward"})
_OF_HALVES = frozenset({"cat", "slice_backward"})  # of heads: gradients put together again
_UP = frozenset({"mlp.up", "mlp.gate"})
_CENTRED = "native_layer_norm_backward"  # models with mean-square norms have no biases but of queries
_CONVOLVED = frozenset({_CENTRED, "convolution_backward"})
_NAMELESS = ("kernel", "elementwise", "add")
_OPENS = ("gemm", "convolution")
_FILLS = "Memset (Device)"
_NEAR = 8  # units: how far a second stage stands behind its first, at most
_STEP_OF_NORM = frozenset({"_to_copy", "mul", "sum"})  # of the weight of a mean-square norm, in more bits
_LOSS = frozenset({"loss", "loss_backward"})
_ONLY_SCALES = _STEP_OF_NORM | {"add"}


def label_unshaped(run: Run, start: int, *, norms_heads: bool = False) -> None:
    """Name what stands between the named products from position ``start`` on; fills ``run.labels``.

    Where a model ``norms_heads``, pointwise kernels without operators are that norm's gradient, as likely.
    """
    _biases(run, start)
    _biases_ahead(run, start)
    _between(run, start, norms_heads=norms_heads)
    _weights_of_norms(run, start)
    for at in range(start, len(run)):
        if _reduces_norm(run.kinds[at]):
            run.labels.setdefault(at, Label("norm"))
    _partial_sums(run, start)
    for at in range(start, len(run)):  # the table's gradient; with a softmax's that of a bias by distance
        tags = run.kinds[at].tags
        works = {"softmax_backward"} if _fills(run.kinds[at]) else {"softmax_backward", *_NORM}
        if "embedding_backward" in tags and not tags & works:
            run.labels.setdefault(at, Label("embedding"))


def _partial_sums(run: Run, start: int) -> None:
    """Sums that Inductor leaves to ATen, right behind a reduction by rows that has summed by columns as well,
    block by block (torch 2.10, config.triton.mix_order_reduction), are the rest of that."""
    for at in range(start + 1, len(run)):
        places = (p for p in range(at - 1, start - 1, -1) if run.kinds[p].name != "sum")
        rows = next(places, at)
        if run.kinds[at].name != "sum" or not run.kinds[rows].name.startswith(("triton_red", "triton_per")):
            continue
        normed = Label("norm") if run.kinds[rows].tags & _NORM else None
        if (label := run.labels.get(rows, normed)) is not None:
            run.labels.setdefault(at, Label(label.component, label.layer))


def _named_after(kind: Kind) -> bool:
    """Pointwise work on a normalization's gradient, which itself has the forward's statistics, and sums."""
    return not kind.tags >= _NORM and kind.name.startswith("triton_poi")


def _reduces_norm(kind: Kind) -> bool:
    """A normalization's gradient by rows, or its weights' by columns: sums of others are named so, but not
    the last, whose result goes to a table."""
    reduces = kind.name.startswith(("triton_red", "triton_per"))
    last = "embedding_backward" in kind.tags and not kind.tags & {"softmax_backward"}
    own = _CENTRED in _ops(kind) and "sum" not in _ops(kind)
    return reduces and (own or bool(last and kind.tags & _NORM))


def _fills(kind: Kind) -> bool:
    """A table's gradient with zeros, whatever the names of what is added to it."""
    return "embedding_backward" in kind.tags and kind.name.startswith("triton_poi")


def _biases(run: Run, start: int) -> None:
    """A sum over the tokens right behind the gradient of a weight is the gradient of that product's bias, as
    autograd makes them."""
    stages = {run.kinds[at].name for at in range(start, len(run)) if _is_second_stage(run, at)}
    late = {at: first for at in range(start, len(run)) if (first := _first_stage(run, at)) is not None}
    stages |= {run.kinds[at].name for at in late}
    for at in range(start + 1, len(run)):
        before = run.labels.get(at - 1)
        kind = run.kinds[at]
        # nothing is summed ahead of the head's
        behind = before is not None and (before.role == "wgrad" or before.component == "logits")
        if before is not None and behind and kind.name not in stages and _sums(kind) and not _scales(run, at):
            run.labels[at] = Label(before.component, before.layer)
            if _is_second_stage(run, at + 1):
                run.labels[at + 1] = run.labels[at]
    run.labels |= {at: run.labels[first] for at, first in late.items() if first in run.labels} | run.labels


def _first_stage(run: Run, at: int) -> int | None:
    """Of a second stage that does not stand right behind its first, that one: a large reduction of the same
    name shortly before, which has none."""
    kind = run.kinds[at]
    if not kind.name.startswith("triton_per") or not _sums(kind) or _is_second_stage(run, at):
        return None
    for place in range(at - 1, max(-1, at - _NEAR), -1):
        if run.kinds[place].name.startswith("triton_red") and _ops(run.kinds[place]) == _ops(kind):
            return None if _is_second_stage(run, place + 1) else place
    return None


def _biases_ahead(run: Run, start: int) -> None:
    """Sums over the tokens right before the gradients of a product, behind a core or a normalization: of that
    product's bias, where a compiler has it sum as soon as it can."""
    label, following = None, dict[int, Label | None]()
    rows = run.products(start)
    for at in reversed(rows):
        found = run.labels.get(at)
        label = label if found is not None and found.role == "wgrad" else found
        following[at] = label if label is not None and label.role is not None else None
    for before, at in pairwise([start, *rows]):
        own = following[at]
        group = [*takewhile(lambda place: _is_bias(run, place), range(at - 1, before, -1))]
        ahead = run.kinds[min(group) - 1] if group else None
        often = Counter(run.kinds[place].name for place in group)
        few = max(often.values(), default=0) <= BIASES  # more are put off, and of other products too
        if own is not None and ahead is not None and few and (ahead.what == "core" or ahead.tags >= _NORM):
            run.labels |= {place: Label(own.component, own.layer) for place in group} | run.labels


def _is_bias(run: Run, at: int) -> bool:
    """A sum of no product, or its second stage."""
    first = at - 1 if _is_second_stage(run, at) else at
    own = _sums(run.kinds[first]) and not run.kinds[first].tags >= _NORM
    return at not in run.labels and own and not _scales(run, first)


def _sums(kind: Kind) -> bool:
    return kind.what == "fused" and "sum" in kind.tags and not kind.name.startswith("triton_poi")


def _scales(run: Run, at: int) -> bool:
    """Is it a sum of products, as the gradients of scales are? What is named after a normalization multiplies
    there; but sums of several, which no second stage of its own follows, are those of a scale and a norm."""
    kind = run.kinds[at]
    if "mul" not in _ops(kind) or may_unbend(kind):
        return False
    several = kind.name.startswith("triton_red") and not _is_second_stage(run, at + 1)
    return several or not _ops(kind) & NORM_BACKWARD


def _ops(kind: Kind) -> frozenset[str]:
    fused = parse_fused(kind.name)
    return frozenset(fused.ops) if fused is not None else frozenset()


def _is_second_stage(run: Run, at: int) -> bool:
    """A small reduction right behind a large one that sums; what it is called after is no other work."""
    if not 0 < at < len(run) or not run.kinds[at].name.startswith("triton_per"):
        return False
    first, second = run.kinds[at - 1], run.kinds[at]
    sums = first.name.startswith("triton_red") and "sum" in first.tags
    return sums and bool(first.tags & _NORM or not second.tags & _NORM)


def _between(run: Run, start: int, *, norms_heads: bool) -> None:
    """The activation's gradient, what its own operators name, and what stands around a core."""
    cores = {at for core in run.cores for at in core.parts}
    path = [
        at
        for at in range(start, len(run))
        if (label := run.labels.get(at)) is not None
        and (label.role == "dgrad" or at in cores or label.component == EXPERTS)
    ]
    _at_the_ends(run, start, path)
    for begin, end in pairwise(path):
        for at in range(begin + 1, end):
            if at not in run.labels and run.kinds[at].what not in ("gemm", "bmm", "helper", "convolution"):
                found = _named(run, at, run.labels[begin], run.labels[end])
                opened = (p not in run.labels and run.kinds[p].what in _OPENS for p in range(begin + 1, at))
                vague = found is not None and found.component == "attention.other"
                nameless = norms_heads and run.kinds[at].what in _NAMELESS
                if found is not None and not (vague and (nameless or any(opened))):
                    run.labels[at] = found


def _at_the_ends(run: Run, start: int, path: list[int]) -> None:
    """Normalizations before the first station, and right behind the last: those with the statistics that the
    forward saved, as more than these bear the name of a normalization's gradient. Behind all, what makes the
    gradient of patches."""
    if not path:
        return
    left = (at for at in range(path[-1] + 1, len(run)) if at not in run.labels)
    rest = [at for at in left if run.kinds[at].what != "gemm" and not _fills(run.kinds[at])]
    sums = {at for at in rest if _STEP_OF_NORM <= _ops(run.kinds[at]) <= _ONLY_SCALES | LAYOUT}  # put off
    behind = takewhile(lambda at: _has_statistics(run.kinds[at]), (at for at in rest if at not in sums))
    before = (at for at in range(start, path[0]) if run.kinds[at].tags >= _NORM)
    named = (at for at in (*before, *behind) if not _fills(run.kinds[at]))
    run.labels |= dict.fromkeys(named, Label("norm")) | run.labels
    convolved = [at for at in range(start, len(run)) if run.kinds[at].what == "convolution"]
    if len(convolved) == 1 and convolved[0] in rest:
        run.labels[convolved[0]] = Label("embedding")
        laid_out = (at for at in rest if at < convolved[0] and _ops(run.kinds[at]) >= _CONVOLVED)
        run.labels |= dict.fromkeys(laid_out, Label("norm")) | run.labels


def _has_statistics(kind: Kind) -> bool:
    """A normalization's gradient: with the forward's statistics, or by rows and without a mean, whose models
    have no biases there."""
    by_row = not kind.name.startswith("triton_poi") and _CENTRED not in _ops(kind)
    return kind.tags >= _NORM or bool(by_row and kind.tags & _NORM)


def _named(run: Run, at: int, first: Label, last: Label) -> Label | None:
    """What a unit is between two stations of the gradient's path."""
    kind = run.kinds[at]
    ends = (station(first), station(last))
    around = ends in _AROUND_CORES or (ends == (_OWN, _OWN) and not kind.tags & _NORM)
    if _is_second_stage(run, at):
        bends = "activation_backward" in run.kinds[at - 1].tags and last.component == "mlp.up"
        return Label(last.component, last.layer) if bends else None
    # by rows; or with a product more, the gradient of a scale that stands before the normalization
    own = kind.tags >= _NORM and (kind.name.startswith("triton_per") or "mul" in _ops(kind))
    if "sum" in kind.tags and _CENTRED in _ops(kind) and not own:
        return None  # a normalization has its own sums: it is that of a bias, named after what it reads
    if kind.tags >= {"sum", "norm_backward"} and around and "rope" not in kind.tags:
        return None  # as likely the gradient of a bias there; of queries that are normed and turned it is not
    if _fills(kind):
        return None
    if found := in_experts(kind, first.component, last.component, last.layer):
        return found
    if kind.what == "norm" or (kind.tags & _NORM and not _named_after(kind)):
        return Label("norm", last.layer)
    inside = first.component == "mlp.down" and last.component in _UP
    if unbends(kind) or (inside and may_unbend(kind)):
        # beside an attention the way back through the MLP can stop between the two
        up = last.component in _UP and unbends(kind) and "sum" not in kind.tags
        return Label("mlp.activation", last.layer) if up or first.component == "mlp.down" else None
    by_point = kind.name.startswith("triton_poi")
    turns = "rope" in kind.tags and (station(first) == _CORE or (by_point and last.component == _OWN))
    if turns:
        return Label("attention.rope", last.layer)
    around |= by_point and last.component == _OWN and _ops(kind) >= _OF_HALVES
    sums = "sum" in kind.tags or _reduces_product(run, at)  # as of a bias
    return Label("attention.other", last.layer) if around and (by_point or not sums) else None


def _reduces_product(run: Run, at: int) -> bool:
    """Is it a kernel of ATen that reduces, right behind a product?"""
    before = next((kind for kind in run.kinds[at - 1 :: -1] if kind.name != _FILLS), None)
    return "reduce_kernel" in run.kinds[at].name and before is not None and before.what in ("gemm", "helper")


def _weights_of_norms(run: Run, start: int) -> None:
    """Sums of products in more bits: right beside a normalization whose steps are written out, or of nothing
    else, wherever they are put off to; behind a loss none ahead of the first product, which is the head's."""
    first = next(iter(run.products(start)), len(run))
    start = first if any(run.kinds[at].tags & _LOSS for at in range(start, first)) else start
    sums = [at for at in range(start, len(run)) if at not in run.labels and _sums(run.kinds[at])]
    firsts = [at for at in sums if _ops(run.kinds[at]) >= _STEP_OF_NORM and not _is_second_stage(run, at)]
    for way in (firsts, firsts[::-1]):
        for at in way:
            behind = at + 1 + _is_second_stage(run, at + 1)
            beside = (run.labels.get(at - 1), run.labels.get(behind))
            norm = next((label for label in beside if label is not None and label.component == "norm"), None)
            if at not in run.labels and norm is not None:
                run.labels.update({place: Label("norm", norm.layer) for place in range(at, behind)})
    for at in (at for at in firsts if at not in run.labels and _ops(run.kinds[at]) - LAYOUT <= _ONLY_SCALES):
        run.labels.update(dict.fromkeys(range(at, at + 1 + _is_second_stage(run, at + 1)), Label("norm")))
