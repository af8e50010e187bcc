"""Sums over the tokens in a backward without shapes: gradients of biases, and of weights of normalizations.

Inductor makes them in two stages, and gives the second one, where it is the same code for several, the name
of the first; the first one's name can tell what it reads, and not what it is.
"""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from itertools import pairwise, takewhile

from tracelens.attribution.structure.readings import QUERIES
from tracelens.attribution.structure.returns import OPEN, may_unbend
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.sums import BIASES
from tracelens.attribution.structure.units import Kind
from tracelens.gemm.inductor_ops import ACTIVATION, ACTIVATION_BACKWARD, NONLINEAR_BACKWARD, NORM_BACKWARD

NORM = frozenset({"norm", "norm_backward"})
_BENDS = ACTIVATION | ACTIVATION_BACKWARD | NONLINEAR_BACKWARD
_UP = ("mlp.up", "mlp.gate")
_NORMS = 2  # between two cores, without those of heads
_NEAR = 8  # units: how far a second stage stands behind its first, at most


def biases(run: Run, start: int, plain: set[str]) -> None:
    """A sum over the tokens right behind the gradient of a weight is the gradient of that product's bias, as
    autograd makes them."""
    stages = {run.kinds[at].name for at in run.stages}
    late = {at: first for at in range(start, len(run)) if (first := _first_stage(run, at)) is not None}
    stages |= {run.kinds[at].name for at in late}
    for at in range(start + 1, len(run)):
        before = run.labels.get(at - 1)
        kind = run.kinds[at]
        # nothing is summed ahead of the head's
        behind = before is not None and (before.role == "wgrad" or before.component == "logits")
        own = sums_tokens(kind) and (kind.name in plain or not _scales(run, at))
        if before is not None and behind and kind.name not in stages and own:
            run.labels[at] = Label(before.component, before.layer)
            if at + 1 in run.stages:
                run.labels[at + 1] = run.labels[at]
    run.labels |= {at: run.labels[first] for at, first in late.items() if first in run.labels} | run.labels


def biases_of_queries(run: Run, start: int) -> set[str]:
    """Between a core and its queries' gradients, where heads are not normalized, only what makes queries,
    keys and values has sums over the tokens. Returns the names of these kernels, which are sums everywhere,
    whatever operators lent them their names."""
    found: list[int] = []
    for number, core in enumerate(cores := [core for core in run.cores if core.first >= start]):
        stop = cores[number + 1].first if number + 1 < len(cores) else len(run)
        path = [at for at in run.products(core.last + 1, stop) if run.labels.get(at, OPEN).role == "dgrad"]
        own = [*takewhile(lambda at: run.labels[at].component == QUERIES, path)]
        behind = [at for at in range(core.last + 1, own[-1] if own else 0) if at not in run.labels]
        sums = [at for at in behind if sums_tokens(run.kinds[at]) and "rope" not in run.kinds[at].tags]
        firsts = [at for at in sums if at not in run.stages]
        if 0 < len(firsts) <= len(own) and not any(run.kinds[at].tags & NORM for at in behind):
            layer = run.labels[own[0]].layer
            run.labels |= {at: Label(QUERIES, layer) for at in sums}
            found += firsts
    return {run.kinds[at].name for at in found}


def _first_stage(run: Run, at: int) -> int | None:
    """Of a second stage that does not stand right behind its first, that one: a large reduction of the same
    name shortly before, which has none."""
    kind = run.kinds[at]
    if not kind.name.startswith("triton_per") or not sums_tokens(kind) or at in run.stages:
        return None
    for place in range(at - 1, max(-1, at - _NEAR), -1):
        if run.kinds[place].name.startswith("triton_red") and run.kinds[place].ops == kind.ops:
            return None if place + 1 in run.stages else place
    return None


def biases_ahead(run: Run, start: int, plain: set[str]) -> None:
    """Sums over the tokens right before the gradients of a product, behind a core or a normalization: of that
    product's bias, where a compiler has it sum as soon as it can. ``plain`` kernels are no other sums."""
    label, following = None, dict[int, Label | None]()
    rows = run.products(start)
    for at in reversed(rows):
        found = run.labels.get(at)
        label = label if found is not None and found.role == "wgrad" else found
        following[at] = label if label is not None and label.role is not None else None
    for before, at in pairwise([start, *rows]):
        own = following[at]
        group = [*takewhile(lambda place: _is_bias(run, place, plain), range(at - 1, before, -1))]
        ahead = run.kinds[min(group) - 1] if group else None
        often = Counter(run.kinds[place].name for place in group)
        few = max(often.values(), default=0) <= BIASES  # more are put off, and of other products too
        ends = ahead is not None and (ahead.what == "core" or ahead.tags >= NORM or casts_rows(ahead))
        if own is not None and few and ends:
            run.labels |= {place: Label(own.component, own.layer) for place in group} | run.labels


def _is_bias(run: Run, at: int, plain: set[str]) -> bool:
    """A sum of no product, or its second stage."""
    first = at - 1 if at in run.stages else at
    own = (
        sums_tokens(run.kinds[first]) and not run.kinds[first].tags >= NORM and _first_stage(run, at) is None
    )
    scales = run.kinds[first].name not in plain and _scales(run, first)
    return at not in run.labels and own and not scales


def biases_before_activations(run: Run, start: int) -> None:
    """Sums over the tokens that do an MLP's activation's work over, to sum its gradient: of the bias of what
    goes in. Where that takes two stages the first is no more than that work."""
    acts = {at for at, label in run.labels.items() if at >= start and label.component == "mlp.activation"}
    bends = frozenset[str]().union(*(run.kinds[at].ops & _BENDS for at in acts))
    gates = any(label.component == "mlp.gate" for label in run.labels.values())
    sums = [at for at in range(start, len(run)) if _only_sums(run.kinds[at])]
    sums = [at for at in sums if not (run.kinds[at].ops & _BENDS).isdisjoint(bends)]
    named = Counter(kind.ops for kind in {run.kinds[at].name: run.kinds[at] for at in sums}.values())
    for at in sums:
        two = named[run.kinds[at].ops] > 1
        second = at in run.stages or run.kinds[at].name.startswith("triton_per")
        before = run.labels.get(at - 1 - (at in run.stages), OPEN)
        of = before if before.role is not None and before.component in _UP else Label("mlp.up", before.layer)
        component = of.component if second or not two else "mlp.activation"
        sure = of is before and at + 1 in run.stages  # not itself a second stage that comes late
        if sure or (component == of.component and (of is before or not gates)):
            run.labels.setdefault(at, Label(component, of.layer))


def casts_rows(kind: Kind) -> bool:
    """Does it only cast, and tokens to rows, as a product takes them? Of a weight there is no other view."""
    only = "cast" in kind.tags and kind.tags <= {"cast", "layout"} and not kind.tensors
    return only and not kind.ops.isdisjoint({"view", "_unsafe_view"})


def sums_tokens(kind: Kind) -> bool:
    """Is it a compiled reduction that sums?"""
    return kind.what == "fused" and "sum" in kind.tags and not kind.name.startswith("triton_poi")


def _scales(run: Run, at: int) -> bool:
    """Is it a sum of products, as the gradients of scales are? What is named after a normalization multiplies
    there; but sums of several, which no second stage of its own follows, are those of a scale and a norm."""
    kind = run.kinds[at]
    if "mul" not in kind.ops or may_unbend(kind):
        return False
    several = not any(_is_small(kind, behind) for behind in run.kinds[at + 1 : at + 2])
    several &= kind.name.startswith("triton_red")
    return several or not kind.ops & NORM_BACKWARD


def second_stages(run: Run, start: int) -> set[int]:
    """Small reductions right behind large ones that sum: persistent ones, whose other work nothing calls so,
    and kernels that first stand behind one of the same operators, and mostly behind sums."""
    pairs = {at: (run.kinds[at - 1], run.kinds[at]) for at in range(start + 1, len(run))}
    sums = {at: two for at, two in pairs.items() if _only_sums(two[1])}
    behind = {at: two for at, two in sums.items() if sums_tokens(two[0]) and two[0].name != two[1].name}
    often, summed = (Counter(kind.name for _, kind in of.values()) for of in (sums, behind))
    plain = Counter(kind.name for before, kind in behind.values() if _only_sums(before))
    firsts, seconds = set[str](), set[str]()
    for before, kind in sums.values():
        same = before.name not in {*seconds, kind.name} and before.ops == kind.ops
        # which of two takes turns with the other as its second stage is the one that stands alone less often
        more = plain[kind.name] * often[before.name] - plain[before.name] * often[kind.name]
        first = more < 0 or (kind.name in firsts and (more == 0 or 2 * plain[kind.name] <= often[kind.name]))
        (firsts if first or not (same and sums_tokens(before)) else seconds).add(kind.name)
    mostly = {name for name in seconds if 2 * summed[name] > often[name]}
    found = {at for at, (_, kind) in behind.items() if kind.name in mostly} | _many(run, pairs)
    return found | {at for at, two in pairs.items() if _is_small(*two)}


def _many(run: Run, pairs: dict[int, tuple[Kind, Kind]]) -> set[int]:
    """Persistent kernels that stand behind one plain sum more often between two cores than anything there is
    normalized: second stages that bear the name of another's, a normalization's."""
    cores = [core.first for core in run.cores]
    named = {
        at: (first.name, second.name)
        for at, (first, second) in pairs.items()
        if _only_sums(first) and second.name.startswith("triton_per") and second.tags >= {"sum", *NORM}
    }
    times = Counter((bisect(cores, at), *names) for at, names in named.items())
    often = {(first, second) for (_, first, second), many in times.items() if many > _NORMS}
    return {at for at, names in named.items() if names in often}


def _only_sums(kind: Kind) -> bool:
    return sums_tokens(kind) and not kind.tags & {"rope", *NORM}


def _is_small(first: Kind, second: Kind) -> bool:
    sums = first.name.startswith("triton_red") and "sum" in first.tags
    persistent = second.name.startswith("triton_per")
    return sums and persistent and bool(first.tags & NORM or not second.tags & NORM)
