"""A run without its layers that take the place of attention (``grammars.MIXERS``), wherever they stand."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.attribution.structure.grammar import matches
from tracelens.attribution.structure.grammars import MIXERS
from tracelens.attribution.structure.runs import Label, Run


@dataclass(frozen=True, slots=True)
class WithoutMixers:
    """What is left of ``whole`` without such layers: ``kept`` says where each unit stood."""

    whole: Run
    kept: list[int]
    run: Run

    def give_back(self) -> None:
        """The labels and the attention cores of the rest to the whole."""
        if self.run is self.whole:
            return
        self.whole.labels |= {self.kept[at]: label for at, label in self.run.labels.items()}
        self.whole.cores = [core.at(self.kept) for core in self.run.cores]


def without_mixers(run: Run) -> WithoutMixers:
    """Name such layers of a forward or recomputed run; returns the run without them."""
    for found in matches(run, *MIXERS):
        run.labels |= {at: Label(name, evidence="local") for at, name in found.components.items()}
    if not run.labels:
        return WithoutMixers(run, [], run)
    kept = [at for at in range(len(run)) if at not in run.labels]
    left = Run(run.phase, [run.units[at] for at in kept], [run.kinds[at] for at in kept])
    left.counts_layers = run.counts_layers
    return WithoutMixers(run, kept, left)
