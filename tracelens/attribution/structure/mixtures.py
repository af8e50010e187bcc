"""A mixture of experts where no whole transformer says so: grouped GEMMs, and the choice before them.

A GEMM over groups of rows (``torch._grouped_mm``) multiplies the tokens of each expert with that expert's
weight, and has no other use in a model. What leads to it is a choice over a small product's results (router),
then sorts and moves of rows (dispatch); behind it rows go back to their places and are summed.
"""

from __future__ import annotations

from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.walk import MOST_EXPERTS

GROUPED = frozenset({"_grouped_mm", "_scaled_grouped_mm"})
_CHOOSES = frozenset({"topk"})
_EDGES = frozenset({"gemm", "bmm", "core", "norm", "loss", "embedding"})
_WEIGHS = frozenset({"gather", "sigmoid", "softmax", "div", "div_"})  # the scores of the chosen
_SCORES = _WEIGHS | {"mul", "mul_", "add", "sub"}
_PUTS_BACK = frozenset({"dispatch", "topk"})
_SUMS = frozenset({"sum", "mul", "mul_"})


def label_mixtures(run: Run) -> None:
    """Name the units of mixtures of experts that have no name yet; fills ``run.labels``."""
    named = {at for at, kind in enumerate(run.kinds) if kind.name in GROUPED or kind.what == "experts"}
    grouped = sorted(named - run.labels.keys())
    stop = 0
    while grouped:
        first = last = grouped.pop(0)
        # the GEMMs of one layer's experts: nothing between them but what stands between GEMMs of an MLP
        while grouped and not any(run.kinds[at].what in _EDGES for at in range(last + 1, grouped[0])):
            last = grouped.pop(0)
        _fill(run, first, last + 1, "moe.experts")
        _before(run, stop, first)
        stop = _behind(run, last)


def _fill(run: Run, start: int, stop: int, component: str) -> None:
    for at in range(start, stop):
        run.labels.setdefault(at, Label(component, evidence="local"))


def _before(run: Run, stop: int, first: int) -> None:
    """The router and the way of the tokens to their experts."""
    choice = next((at for at in range(first - 1, stop - 1, -1) if run.kinds[at].name in _CHOOSES), None)
    if choice is None:
        return
    product = next((at for at in range(choice - 1, stop - 1, -1) if run.kinds[at].what in _EDGES), None)
    if product is None or not _routes(run, product, choice):
        return
    weighed = choice
    while weighed + 1 < first and run.kinds[weighed + 1].name in _WEIGHS:
        weighed += 1
    _fill(run, product, weighed + 1, "moe.router")
    if not any(run.kinds[at].what in _EDGES for at in range(weighed + 1, first)):
        _fill(run, weighed + 1, first, "moe.dispatch")


def _routes(run: Run, product: int, choice: int) -> bool:
    """Is the choice among the columns of the product? Without shapes: only scores are made between them."""
    among, shape = {tensor[-1] for tensor in run.kinds[choice].tensors}, run.shape(product)
    if shape is not None:
        return shape.n in among and shape.n <= MOST_EXPERTS
    scores = all(
        k.what in ("copy", "add", "softmax") or k.name in _SCORES for k in run.kinds[product + 1 : choice]
    )
    return not among and run.kinds[product].what == "gemm" and scores


def _behind(run: Run, last: int) -> int:
    """The way back, to the last unit that puts rows in their places or sums them; returns where it ends."""
    end = last
    for at in range(last + 1, len(run)):
        kind = run.kinds[at]
        if kind.what in _EDGES:
            break
        if kind.what in _PUTS_BACK or (kind.name in _SUMS and end > last):
            end = at
    _fill(run, last + 1, end + 1, "moe.dispatch")
    return end + 1
