"""What can be told of a run without the whole model, by the grammars of single layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tracelens.attribution.structure.attention_grammars import (
    ADDITIVE,
    DEFORMABLE,
    DEFORMABLE_ALONE,
    SEPARABLE,
)
from tracelens.attribution.structure.grammar import PRODUCT, matches
from tracelens.attribution.structure.grammars import (
    CLIPPING,
    CONDITION,
    DROP_PATH,
    DROPOUT,
    HEAD,
    LONE_MLP,
    MIXERS,
    MIXTURES,
)
from tracelens.attribution.structure.norms import written_norms
from tracelens.attribution.structure.runs import Excerpt, Label, Run
from tracelens.attribution.structure.units import Units

_BESIDE_CORES = (DEFORMABLE, DEFORMABLE_ALONE, ADDITIVE, SEPARABLE)


def without_mixers(run: Run) -> Excerpt:
    """Name the layers of a forward or recomputed run that take the place of attention, and what makes their
    conditions, wherever they stand; returns the run without them."""
    for found in matches(run, *MIXERS, CONDITION):
        run.labels |= {at: Label(name, evidence="local") for at, name in found.components.items()}
    kept = [at for at in range(len(run)) if at not in run.labels]
    return Excerpt(run, kept, run.part(kept) if run.labels else run)


def mark_dropouts(run: Run) -> None:
    """Units of a dropout that is written out become dropout."""
    for found in matches(run, DROPOUT):
        for at in found.components:
            run.kinds[at] = replace(run.kinds[at], what="dropout")


def label_local(run: Run) -> None:
    """Name the units of mixtures of experts, deformable attention, lone MLPs and stochastic depth that
    have no name yet; fills ``run.labels``.

    Two linear layers are surely an MLP only where there is attention somewhere.
    """
    for found in matches(run, HEAD) if run.cores else ():  # of classes, from a few rows of another width
        run.labels.setdefault(found.start, Label("logits", evidence="local"))
    for found in matches(run, DROP_PATH):
        for at, part in found.components.items():
            run.labels.setdefault(at, Label(part, evidence="local"))
    for grammars in (MIXTURES, _BESIDE_CORES, (LONE_MLP,) if run.cores else ()):
        taken = run.labels.keys() | {at for core in run.cores for at in core.parts if PRODUCT(run.kinds[at])}
        layers = [*matches(run, *grammars, taken=taken)]
        normed = written_norms(run) if layers and grammars == (LONE_MLP,) else set()
        for found in layers:
            for at, component in found.components.items():
                part = "norm" if at in normed and component == "mlp.activation" else component
                run.labels.setdefault(at, Label(part, evidence="local"))


def label_heads(run: Run) -> None:
    """Name the products whose results losses take; fills ``run.labels``."""
    for found in matches(run, HEAD):
        run.labels.setdefault(found.start, Label("logits"))


def clipping(units: Units, phase: Sequence[str]) -> Iterator[int]:
    """Units of gradient clipping: outside forward and backward, from norms to scaling."""
    kinds = [units.kinds[kind] for kind in units.kind.tolist()]
    inside = {row for row, name in enumerate(phase) if name not in ("other", "optimizer")}
    for found in matches(Run("optimizer", [*range(len(kinds))], kinds), CLIPPING, taken=inside):
        yield from found.components
