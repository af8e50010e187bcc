"""Where the model begins again: a second batch in one run of units is a second pass, not more layers.

Layers repeat inside a model, so repetition alone proves nothing. A pass holds something that no layer has
(token or patch embedding, a convolution behind the layers, a loss), and the whole run is that pass, again and
again. A bare stack of layers has none of these: there the backward tells, which gives each weight one
gradient, however often the forward used it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from tracelens.attribution.structure.runs import Core, Run
from tracelens.attribution.structure.units import Kind

_ONCE = ("embedding", "loss", "fused_logits_loss", "convolution")  # once per pass, or in every layer
_LOOKS_UP = re.compile(r"indexSelect(Small|Large)Index|vectorized_gather_kernel")
_Mark = tuple[object, ...]
Weight = tuple[int, int]  # output and input features


def passes(run: Run, cores: list[Core], trained: Mapping[Weight, int]) -> list[int] | None:
    """Positions at which a pass of the model begins, those behind the first unit; none where there is one.

    ``cores`` are the attention cores of the run, ``trained`` how often the backward behind it gave a gradient
    to a weight of that shape. None where nothing tells passes from layers.
    """
    if len(cores) < 2:
        return []
    marked = [(at, mark) for at, kind in enumerate(run.kinds) if (mark := _mark(kind)) is not None]
    marks = [mark for _, mark in marked]
    if not any(mark[0] in _ONCE for mark in marks):
        looked_up = [at for at, kind in enumerate(run.kinds) if _LOOKS_UP.search(kind.name)]
        if len(looked_up) == 1 and looked_up[0] < cores[0].first:
            return []  # a graph's table of tokens, whose kernel is that of any lookup
        return _by_weights(run, marked, trained)
    firsts = {core.first for core in cores}
    opens = [at in firsts for at, _ in marked]
    readings = [marks]
    if not any(map(run.shape, run.products())):  # batches of other sizes run other kernels
        readings.append([mark[:1] for mark in marks])
    begins = next((found for one in readings if (found := _begins(one, opens))), [])
    ahead = Counter(mark for at, mark in marked if at < cores[0].first and mark[0] == "embedding")
    if not begins and run.phase == "graph" and max(ahead.values(), default=0) > 1:
        return None  # by one kernel twice: of two batches side by side in it, or of two tables
    return [marked[at][0] for at in begins if at]


def _begins(marks: list[_Mark], opens: list[bool]) -> list[int]:
    """Places of the marks at which a pass begins; none where they do not repeat."""
    counts = Counter(mark for mark in marks if mark[0] in _ONCE)
    for edge, count in sorted(counts.items(), key=lambda item: item[1]):
        if count < 2:
            continue
        found = _repeated(marks, opens, edge)
        if found:
            return found
    return []


def _by_weights(run: Run, marked: list[tuple[int, _Mark]], trained: Mapping[Weight, int]) -> list[int] | None:
    """Where the passes of a bare stack begin: as many as the uses of each of its weights."""
    used = Counter((shape.n, shape.k) for at in run.products() if (shape := run.shape(at)) is not None)
    times = {divmod(used[weight], trained[weight]) for weight in used if trained.get(weight)}
    if len(times) != 1:
        return None
    ((count, rest),) = times
    length = len(marked) // count if count else 0
    marks = [mark for _, mark in marked]
    if rest or not length or marks != marks[:length] * count:
        return None
    return [_opening(run, marked, at) for at in range(length, len(marks), length)]


def _opening(run: Run, marked: list[tuple[int, _Mark]], at: int) -> int:
    """Where the pass of the mark ``at`` begins: before it stands what stands before the first mark."""
    begin = marked[at][0]
    for back in range(1, marked[0][0] + 1):
        if run.kinds[begin - 1] != run.kinds[marked[0][0] - back]:
            break
        begin -= 1
    return begin


def _repeated(marks: list[_Mark], opens: list[bool], edge: _Mark) -> list[int]:
    """Places of the marks at which the stretch around each ``edge`` begins, if all are one stretch.

    What stands before the first or behind the last must be a model of its own (an encoder before a decoder
    that runs twice): an embedding or a head there belongs to the stretches, which then are layers.
    """
    places = [at for at, mark in enumerate(marks) if mark == edge]
    length = places[1] - places[0]
    once = marks[places[0] : places[1]]
    ends = range(places[0], places[-1], length)
    if [*ends, places[-1]] != places or any(marks[at : at + length] != once for at in ends):
        return []
    behind = min(len(marks) - places[-1], length)
    ahead = length - behind
    start, stop = places[0] - ahead, places[-1] + behind
    if start < 0 or marks[places[-1] : stop] + marks[start : places[0]] != once:
        return []
    rest = (sum(opens[:start]), start), (sum(opens[stop:]), len(marks) - stop)
    inside = sum(opens[start : start + length])
    if inside == 0 or any(size and (inside == 1 or cores < 2) for cores, size in rest):
        return []
    if inside == 1 and edge[0] == "convolution":
        return []  # as likely a convolution in every layer
    return [*range(start, stop, length), *([stop] if stop < len(marks) else [])]


def _mark(kind: Kind) -> _Mark | None:
    """What a unit is whatever the batch; None for what says nothing."""
    if kind.what == "gemm":
        return ("gemm", kind.gemm.n, kind.gemm.k) if kind.gemm else ("gemm", kind.name)
    if kind.what == "core":
        return ("core", kind.core.heads, kind.core.head_dim) if kind.core else ("core", kind.name)
    if kind.what in ("bmm", "loss", "fused_logits_loss"):
        return (kind.what,)
    if kind.what in ("embedding", "convolution"):  # by the weight: first of the one, behind the other's input
        weights = [tensor for tensor in kind.tensors if len(tensor) >= 2]
        return (kind.what, tuple(weights[:1] if kind.what == "embedding" else weights[-1:]) or kind.name)
    if kind.tags & {"embedding", "loss"}:
        return ("embedding" if "embedding" in kind.tags else "loss", kind.name)
    return None
