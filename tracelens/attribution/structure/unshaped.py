"""What stands between the products of a backward without shapes: by what it does and what is beside it."""

from __future__ import annotations

from itertools import pairwise, takewhile

from tracelens.attribution.structure import bias_sums
from tracelens.attribution.structure.gradients import in_experts, station
from tracelens.attribution.structure.readings import EXPERTS, QUERIES
from tracelens.attribution.structure.returns import OPEN, may_unbend, unbends
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import FILLS, VIEWS, Kind
from tracelens.gemm.inductor_ops import CAST, LAYOUT, NORM_BACKWARD, ROUTER_HELPERS

_CORE = "attention.core"
_GATE = "attention.other"
_AROUND_CORES = frozenset(
    (*pairwise(["attention.output", _CORE, _CORE, QUERIES]), *pairwise(["attention.output", _GATE, _CORE]))
)
_NORM = frozenset({"norm", "norm_backward"})
_OF_HALVES = frozenset({"cat", "slice_backward"})  # of heads: gradients put together again
_UP = frozenset({"mlp.up", "mlp.gate"})
_CENTRED = "native_layer_norm_backward"  # models with mean-square norms have no biases but of queries
_CONVOLVED = frozenset({_CENTRED, "convolution_backward"})
_NAMELESS = ("kernel", "elementwise", "add")
_OPENS = ("gemm", "convolution")
_STEP_OF_NORM = frozenset({"_to_copy", "mul", "sum"})  # of the weight of a mean-square norm, in more bits
_LOSS = frozenset({"loss", "loss_backward"})
_TURNS = VIEWS | {"clone", "squeeze", "unsqueeze"}
_LAST_STEPS = LAYOUT - {"slice", "slice_backward", "select", "select_backward"} | CAST | {"add", "mul"}
_SUMS_TABLES = LAYOUT | CAST | {"add", "mm"}
_ONLY_SCALES = _STEP_OF_NORM | {"add"}


def label_unshaped(run: Run, start: int, *, norms_heads: bool = False) -> None:
    """Name what stands between the named products from position ``start`` on; fills ``run.labels``.

    Where a model ``norms_heads``, pointwise kernels without operators are that norm's gradient, as likely.
    """
    run.stages = bias_sums.second_stages(run, start)
    _behind_cores(run, start)
    plain = set() if norms_heads else bias_sums.biases_of_queries(run, start)
    bias_sums.biases(run, start, plain)
    bias_sums.biases_ahead(run, start, plain)
    _between(run, start, norms_heads=norms_heads)
    _weights_of_norms(run, start, plain)
    for at in range(start, len(run)):
        if _reduces_norm(run.kinds[at]):
            run.labels.setdefault(at, Label("norm"))
    bias_sums.biases_before_activations(run, start)
    _partial_sums(run, start)
    tied = any(label.component == "logits" and label.role == "wgrad" for label in run.labels.values())
    behind = next((at for at in reversed(run.products(start)) if run.labels.get(at, OPEN).role == "dgrad"), 0)
    for at in range(max(behind, start), len(run) if tied else 0):  # both gradients of one table
        kind = run.kinds[at]
        if kind.name.startswith("triton_poi") and {"add", "_to_copy"} <= kind.ops <= _SUMS_TABLES:
            run.labels.setdefault(at, Label("embedding"))
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
    """Pointwise work on a normalization's gradient, which itself has the forward's statistics, and sums; its
    last step does no more than scale, add to the stream and lay out."""
    steps = kind.ops <= NORM_BACKWARD | _LAST_STEPS and "add" in kind.ops
    return not kind.tags >= _NORM and kind.name.startswith("triton_poi") and not steps


def _reduces_norm(kind: Kind) -> bool:
    """A normalization's gradient by rows, or its weights' by columns: sums of others are named so, but not
    the last, whose result goes to a table."""
    reduces = kind.name.startswith(("triton_red", "triton_per"))
    last = "embedding_backward" in kind.tags and not kind.tags & {"softmax_backward"}
    own = _CENTRED in kind.ops and "sum" not in kind.ops
    return reduces and (own or bool(last and kind.tags & _NORM))


def _fills(kind: Kind) -> bool:
    """A table's gradient with zeros, whatever the names of what is added to it."""
    return "embedding_backward" in kind.tags and kind.name.startswith("triton_poi")


def _behind_cores(run: Run, start: int) -> None:
    """Behind a core, up to the last product of activations ahead of the queries' own: of what was added to
    its scores, as what is summed between its parts then is."""
    path = [at for at in run.products(start) if run.labels.get(at, OPEN).role == "dgrad"]
    for core in (core for core in run.cores if core.first >= start):
        stop = next((at for at in path if at > core.last), core.last)
        added = [at for at in range(core.last + 1, stop) if run.kinds[at].what == "bmm"]
        bends = max((at for at, part in core.parts.items() if part == "attention.softmax"), default=core.last)
        scores = next((at for at in sorted(core.parts) if at > bends), bends)
        for places in (range(core.last + 1, added[-1] + 1), range(bends + 1, scores)) if added else ():
            if not any(run.kinds[at].tags & _NORM or run.kinds[at].what == "core" for at in places):
                run.labels |= dict.fromkeys(places, Label("attention.other")) | run.labels


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
    blocks = [
        at for at in range(start, len(run)) if run.kinds[at].what in ("gemm", "bmm", "core", "convolution")
    ]
    for begin, end in pairwise(blocks):  # of a convolution's map alone
        if run.kinds[begin].what == run.kinds[end].what == "convolution":
            inside = (at for at in range(begin + 1, end) if not run.kinds[at].tags & {*_NORM, *_LOSS})
            run.labels |= dict.fromkeys(inside, Label("other", evidence="local")) | run.labels
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
    sums = {at for at in rest if _STEP_OF_NORM <= run.kinds[at].ops <= _ONLY_SCALES | LAYOUT}  # put off
    behind = takewhile(lambda at: _has_statistics(run.kinds[at]), (at for at in rest if at not in sums))
    before = (at for at in range(start, path[0]) if run.kinds[at].tags >= _NORM)
    named = (at for at in (*before, *behind) if not _fills(run.kinds[at]))
    run.labels |= dict.fromkeys(named, Label("norm")) | run.labels
    convolved = [at for at in range(start, len(run)) if run.kinds[at].what == "convolution"]
    if len(convolved) == 1 and convolved[0] in rest:
        run.labels[convolved[0]] = Label("embedding")
        laid_out = (at for at in rest if at < convolved[0] and run.kinds[at].ops >= _CONVOLVED)
        run.labels |= dict.fromkeys(laid_out, Label("norm")) | run.labels


def _has_statistics(kind: Kind) -> bool:
    """A normalization's gradient: with the forward's statistics, or by rows and without a mean, whose models
    have no biases there."""
    by_row = not kind.name.startswith("triton_poi") and _CENTRED not in kind.ops
    return kind.tags >= _NORM or bool(by_row and kind.tags & _NORM)


def _named(run: Run, at: int, first: Label, last: Label) -> Label | None:
    """What a unit is between two stations of the gradient's path."""
    kind = run.kinds[at]
    ends = (station(first), station(last))
    around = ends in _AROUND_CORES or (ends == (QUERIES, QUERIES) and not kind.tags & _NORM)
    if at in run.stages:
        bends = "activation_backward" in run.kinds[at - 1].tags and last.component == "mlp.up"
        return Label(last.component, last.layer) if bends else None
    # by rows; or with a product more, the gradient of a scale that stands before the normalization
    own = kind.tags >= _NORM and (kind.name.startswith("triton_per") or "mul" in kind.ops)
    if "sum" in kind.tags and _CENTRED in kind.ops and not own:
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
    if by_point and {first.component, last.component} <= _UP | {"mlp.down"} and "activation" in kind.tags:
        return Label("mlp.activation", last.layer)  # done over, for what takes its result
    turns = "rope" in kind.tags and (station(first) == _CORE or (by_point and last.component == QUERIES))
    if turns:
        return Label("attention.rope", last.layer)
    turned = kind.ops <= _TURNS and not kind.ops.isdisjoint({"transpose", "permute"})
    if by_point and last.component == QUERIES and around and turned:
        return Label(QUERIES, last.layer)  # heads side by side again, as that product takes them
    around |= by_point and last.component == QUERIES and kind.ops >= _OF_HALVES
    # as of a bias; a gate on the heads' results has a number for each
    sums = ("sum" in kind.tags and not may_unbend(kind)) or _reduces_product(run, at)
    return Label("attention.other", last.layer) if around and (by_point or not sums) else None


def _reduces_product(run: Run, at: int) -> bool:
    """Is it a kernel of ATen that reduces, right behind a product?"""
    before = next((kind for kind in run.kinds[at - 1 :: -1] if kind.name != FILLS), None)
    return "reduce_kernel" in run.kinds[at].name and before is not None and before.what in ("gemm", "helper")


def _weights_of_norms(run: Run, start: int, plain: set[str]) -> None:
    """Sums of products in more bits: right beside a normalization whose steps are written out, or of nothing
    else, wherever they are put off to; behind a loss none ahead of the first product, which is the head's."""
    first = next(iter(run.products(start)), len(run))
    start = first if any(run.kinds[at].tags & _LOSS for at in range(start, first)) else start
    left = (at for at in range(start, len(run)) if at not in run.labels and run.kinds[at].name not in plain)
    sums = [at for at in left if bias_sums.sums_tokens(run.kinds[at])]
    firsts = [at for at in sums if run.kinds[at].ops >= _STEP_OF_NORM and at not in run.stages]
    firsts = [at for at in firsts if run.kinds[at].ops.isdisjoint(ROUTER_HELPERS | {"index"})]
    for way in (firsts, firsts[::-1]):
        for at in way:
            behind = at + 1 + (at + 1 in run.stages)
            beside = (run.labels.get(at - 1), run.labels.get(behind))
            norm = next((label for label in beside if label is not None and label.component == "norm"), None)
            if at not in run.labels and norm is not None:
                run.labels.update({place: Label("norm", norm.layer) for place in range(at, behind)})
    for at in (at for at in firsts if at not in run.labels and run.kinds[at].ops - LAYOUT <= _ONLY_SCALES):
        run.labels.update(dict.fromkeys(range(at, at + 1 + (at + 1 in run.stages)), Label("norm")))
