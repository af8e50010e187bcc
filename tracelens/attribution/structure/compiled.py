"""Compiled layers without shapes that are not alike (a captured model of two streams): by what is fused.

A kernel's name lists what it does, and that tells its neighbours: two products around an activation, the
second's result added to the stream, are an MLP; the first product behind a core, its result added and
normalized, is its output; all from the normalization behind an MLP to the next core make its queries. A form
must come again: what is around the layers comes once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.walk import activates, loses
from tracelens.gemm.inductor import parse_fused

_QUERIES = {1, 2, 3, 6}  # products of one core; of two streams that attend together six (arXiv 2403.03206)
#: The MLP's last product can take the core's result beside its own (arXiv 2302.05442).
_BESIDE = ("mlp.down", "attention.output")


def label_compiled(run: Run) -> None:
    """Name the products of layers and the activations between them; fills ``run.labels``."""
    ends = any(core.backward for core in run.cores) or any(loses(run, at) for at in range(len(run)))
    found = {} if ends else dict(_mlps(run))
    for before, core in pairwise(run.cores if found else ()):
        found |= {at: Label(part) for one in (before, core) for at, part in one.parts.items()}
        inside = run.products(before.last + 1, core.first)
        first = next((at for at in inside if at in found), core.first)
        ahead = [at for at in inside if at < first]
        if ahead and _normed(run, ahead[0]):  # and those of the other stream
            outputs = (at for at in ahead if _form(run, at + 1) == _form(run, ahead[0] + 1))
            found |= dict.fromkeys(outputs, Label("attention.output"))
        last = [at for at in inside if at in found and found[at].component == "mlp.down"][-1:]
        begins = _normed(run, last[0]) if last else 0
        queries = [at for at in inside if 0 < begins < at]
        if len(queries) not in _QUERIES:  # what makes a condition is of other rows, and runs another kernel
            usual = Counter(run.kinds[at] for at in queries).most_common(1)
            queries = [at for at in queries if run.kinds[at] == usual[0][0]]
        if len(queries) in _QUERIES and not any(map(activates, run.kinds[queries[0] : core.first])):
            found |= dict.fromkeys(queries, Label("attention.qkv"))
    for at, label in found.items():
        run.labels.setdefault(at, Label(label.component, components=label.components, evidence="local"))


def _mlps(run: Run) -> Iterator[tuple[int, Label]]:
    blocks = []
    for up, down in pairwise(run.products()):
        between = [at for at in range(up + 1, down) if run.kinds[at].what != "helper"]
        if len(between) == 1 and activates(run.kinds[between[0]]) and _normed(run, down):
            blocks.append((up, between[0], down))
    forms = Counter(_form(run, bends) for _, bends, _ in blocks)
    for up, bends, down in blocks:
        fused = parse_fused(run.kinds[bends].name)
        if fused is not None and forms[_form(run, bends)] > 1:
            if "mul" in fused.ops and run.kinds[up - 1] == run.kinds[up]:
                yield up - 1, Label("mlp.gate")
            yield from ((up, Label("mlp.up")), (bends, Label("mlp.activation")))
            yield down, Label("mlp.down", components=_BESIDE if "cat" in fused.ops else ())


def _normed(run: Run, product: int) -> int:
    """Where its result is normalized, added to the stream right before or there; 0: nowhere."""
    tags = [kind.tags for kind in run.kinds[product + 1 : product + 3]]
    added = bool(tags) and "add" in tags[0]
    return next((product + 1 + at for at, own in enumerate(tags) if added and {"add", "norm"} <= own), 0)


def _form(run: Run, at: int) -> str:
    """What Inductor calls a kernel, without its number."""
    return run.kinds[at].name.rstrip("0123456789")
