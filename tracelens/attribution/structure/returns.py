"""Between two cores of a backward without shapes: what its own units say.

The gradient comes out of a core by the products of queries, keys and values, goes through an MLP around its
activation, and reaches the next core by the output projection; between these stand normalizations. So it can
be read where a compiler moved products of the forward, or mixed an encoder's with a decoder's.
"""

from __future__ import annotations

from itertools import accumulate, pairwise

from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Kind
from tracelens.gemm.inductor_ops import NONLINEAR_BACKWARD

OPEN = Label("unattributed")


def read_gaps(run: Run, places: list[list[int]], way: list[list[Label]]) -> None:
    """Name the gradients of activations where one reading is left; ``way`` is the forward's, reversed.

    ``places`` are by gap: before the first core, between two, behind the last.
    """
    outputs = [sum(label.component == "attention.output" for label in path) for path in way]
    # two models that the forward runs in turn, and the backward one behind the other
    models = 2 if {2} <= {*outputs} <= {0, 2} and len(way) != len(places) else 1
    mlps: dict[int, set[tuple[str, ...]]] = {}
    for path in way:
        inside = tuple(label.component for label in path if label.component.startswith("mlp."))[::models]
        mlps.setdefault(len(inside), set()).add(inside)
    known = {size: next(iter(found)) for size, found in mlps.items() if len(found) == 1}
    queries = [sum(label.component == "attention.qkv" for label in path) for path in way]
    most = max(queries, default=0) // models
    for number, here in enumerate(places):
        if not here:
            continue
        ends = number < len(places) - 1
        found = _read(run, _stretches(run, here), known, most if number else 0, ends=ends)
        labelled = zip(here, found or (), strict=False)
        run.labels |= {at: Label(component, role="dgrad") for at, component in labelled if component}


def _stretches(run: Run, places: list[int]) -> list[list[int]]:
    """The products, cut where something is normalized between two."""
    out = [[places[0]]]
    for before, at in pairwise(places):
        if any(map(normalizes, run.kinds[before + 1 : at])):
            out.append([])
        out[-1].append(at)
    return out


def _read(
    run: Run, stretches: list[list[int]], mlps: dict[int, tuple[str, ...]], most: int, *, ends: bool
) -> list[str] | None:
    """The components, "" for what stays open; None where there is another reading.

    ``most`` products make queries, none where a head stands there; ``ends``: a core follows.
    """
    bent = [any(map(may_unbend, run.kinds[places[0] : places[-1]])) for places in stretches]
    if not ends:
        first = stretches[0]
        return ["attention.qkv"] * len(first) if not bent[0] and len(first) == most else None
    if len(stretches[-1]) > 1 or bent[-1] or sum(bent) > 1:
        return None
    middle = bent.index(True) if any(bent) else len(stretches) - 1
    ahead = [*accumulate(map(len, stretches[:middle]), initial=0)]
    # between the queries of one model and the MLP of another something can lead from one to the other
    if most not in ahead or (ahead[-1] > most and not any(bent)):
        return None
    out = ["attention.qkv"] * most + [""] * (ahead[-1] - most)
    for places in stretches[middle:-1]:
        mlp = mlps.get(len(places), ())
        acts = [at for at in range(places[0], places[-1]) if may_unbend(run.kinds[at])]
        if not acts or len(places) != len(mlp) or not places[0] < acts[0] <= acts[-1] < places[1]:
            return None
        out += mlp
    return [*out, "attention.output"] if any(bent) or most else None


def may_unbend(kind: Kind) -> bool:
    """Also the gradient of what bends, and is as often a gate: between two products of one MLP it is none."""
    return unbends(kind) or (kind.what == "fused" and bool(NONLINEAR_BACKWARD & kind.ops))


def normalizes(kind: Kind) -> bool:
    return kind.what == "norm" or bool(kind.tags & {"norm", "norm_backward"})


def unbends(kind: Kind) -> bool:
    """Has it an activation's gradient? Beside a dropout's also ReLU's, whose name a masked softmax bears."""
    relu = kind.tags == {"dropout_backward"} and "threshold_backward" in kind.ops
    return relu or kind.what == "activation" or "activation_backward" in kind.tags
