"""Several widths in one run: two towers, stages that grow, a small decoder behind a large encoder.

Each attention core says for itself how wide the residual stream around it is: its queries are made of it and
its output projection comes back to it. Neighbouring cores of one width are one stretch, which is read as a
model of its own; where the width changes the stretch ends with what still comes back to the old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tracelens.attribution.structure.runs import Excerpt, Run
from tracelens.attribution.structure.units import Kind
from tracelens.attribution.structure.walk import embeds, returned_width, taken_widths

_OPENS = ("embedding", "convolution")
_COLOURS = 4  # channels of a picture
_GATHERS = frozenset({"cat", "constant_pad_nd", "stack", "roll", "slice", "view"})


@dataclass
class Stretch(Excerpt):
    """A part of a run whose stream is ``hidden`` wide."""

    hidden: int

    def give_back(self) -> int:
        first = super().give_back()
        self._merge()
        return first

    def _merge(self) -> None:
        """What stands before the product that brings the stream to this width gathers what that takes."""
        labels, start = self.whole.labels, self.kept[0]
        first = min((at for at in labels if at >= start), default=0)
        if not start or labels[first].component != "embedding":
            return
        normed = first > 0 and self.whole.kinds[first - 1].what == "norm"  # of what was gathered
        for at in range(first - 1 - normed, -1, -1):
            kind = self.whole.kinds[at]
            if at in labels or not (kind.what == "copy" or kind.name in _GATHERS):
                return
            labels[at] = labels[first]


def stretches(run: Run, hidden: int) -> Iterator[Stretch]:
    """The parts of a forward or recomputed run, in order; ``hidden`` is the width where no core says one."""
    widths = _widths(run, hidden)
    if len(set(widths)) < 2:
        yield Stretch(run, range(len(run)), run, widths[0] if widths else hidden)
        return
    cuts = [0]
    found = [widths[0]]
    for (core, following), (width, other) in zip(pairwise(run.cores), pairwise(widths), strict=True):
        if width != other:
            cuts.append(_cut(run, core.last, following.first, width, other))
            found.append(other)
    for (start, stop), width in zip(pairwise([*cuts, len(run)]), found, strict=True):
        part = run.part(range(start, stop))
        part.follows = run.kinds[start - 1] if start else None
        yield Stretch(run, range(start, stop), part, width)


def _widths(run: Run, hidden: int) -> list[int]:
    """Per core the width of the stream around it."""
    taken = taken_widths(run)
    found = [_width(run, number, taken) for number in range(len(run.cores))]
    own = [width if width in made_of else None for width, made_of in found]
    # the first of a stage is made of the narrower stream before it, and gives what the next is made of
    for at, ((width, _), after) in enumerate(zip(found, own[1:], strict=False)):
        if own[at] is None and width == after:
            own[at] = width
    # one core that differs from both neighbours, which agree, is read wrongly: no model changes width for it,
    # but some have two streams in turn (TNT)
    apart = [at for at in range(1, len(own) - 1) if own[at] != own[at - 1] == own[at + 1]]
    for at in [at for at in apart if own[at] not in (*own[at - 2 : at - 1], *own[at + 2 : at + 3])]:
        own[at] = own[at - 1]
    known = next((width for width in own if width is not None), hidden)
    for at, width in enumerate(own):
        known = known if width is None else width
        own[at] = known
    return [width for width in own if width is not None]


def _width(run: Run, number: int, taken: set[int]) -> tuple[int | None, set[int]]:
    """What the output projection of a core comes back to, and what the products before it are made of."""
    core = run.cores[number]
    stop = run.cores[number + 1].first if number + 1 < len(run.cores) else len(run)
    start = run.cores[number - 1].last + 1 if number else 0
    alone = run.part(range(core.first, stop))
    before = {shape.k for at in run.products(start, core.first) if (shape := run.shape(at)) is not None}
    return returned_width(alone, taken), before


def _cut(run: Run, last: int, first: int, width: int, other: int) -> int:
    """Between two cores the first unit of the ``other`` width, behind all that returns to ``width``; a
    product that leads to it alone, of one width or of two halves, stands with it."""
    products = run.products(last + 1, first)
    returns = [at for at in products if (shape := run.shape(at)) is not None and shape.n == width]
    at = (returns[-1] if returns else last) + 1
    led: dict[int, int] = {}  # width -> the last product that gives it
    while at < first and run.kinds[at].what not in _OPENS:
        kind, shape = run.kinds[at], run.shape(at)
        wide = {t[-1] for t in kind.tensors if len(t) >= 2}
        if shape is not None and shape.n == other:
            return min(led.get(shape.k, at), led.get(2 * shape.k, at))
        if (shape is not None and other == shape.k) or other in wide:
            break
        led |= {shape.n: at} if shape is not None else {}
        at += 1
    return at


def further_models(run: Run) -> dict[int, bool]:
    """Layers with which another model of a forward begins: surely where a table of embeddings is read or a
    picture comes in between two layers, perhaps (another stage, an unusual layer) where a convolution without
    a shape stands there, or products that no layer has.

    A decoder that attends to what was encoded is of the same model. The first layer is one of them only where
    products that are in no layer stand before it.
    """
    multiply = {at for at, kind in enumerate(run.kinds) if kind.what in ("gemm", "bmm", "core")}
    labels = {at: label.layer for at, label in run.labels.items() if at in multiply}
    placed = sorted((at, layer) for at, layer in labels.items() if layer is not None)
    attends = Counter(label.layer for core in run.cores if (label := run.labels.get(core.first)) is not None)
    found = {layer: False for layer in run.joints if layer == 0}
    for (before, layer), (at, following) in pairwise(placed):
        if following <= layer:
            continue
        between = run.kinds[before + 1 : at]
        enters = any(embeds(kind) or _is_picture(kind) for kind in between)
        if enters or following in run.joints or any(_OPENS[1] == k.what and not k.tensors for k in between):
            found[following] = enters
    found |= {layer: False for layer in _behind_loose_products(run, placed) if layer not in found}
    numbered = [layer for _, layer in placed]
    ends = [*sorted(found)[1:], max(numbered, default=0) + 1]
    crosses = [
        layer
        for layer, stop in zip(sorted(found), ends, strict=False)
        if any(attends[one] > 1 for one in range(layer, stop))
    ]
    return {layer: sure for layer, sure in found.items() if layer not in crosses}


def _behind_loose_products(run: Run, placed: list[tuple[int, int]]) -> list[int]:
    """Layers behind products of no layer (a projection from one model to the next), where few layers are:
    what stands between all is theirs."""
    steps = [(range(before + 1, at), layer) for (before, one), (at, layer) in pairwise(placed) if layer > one]
    loose = [layer for between, layer in steps if any(_is_loose(run, at) for at in between)]
    return loose if 2 * len(loose) < len(steps) else []


def _is_loose(run: Run, at: int) -> bool:
    return run.kinds[at].what == "gemm" and (at not in run.labels or run.labels[at].layer is None)


def _is_picture(kind: Kind) -> bool:
    return kind.what == "convolution" and any(len(t) == 4 and t[1] < _COLOURS for t in kind.tensors[:1])
