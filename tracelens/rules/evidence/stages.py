"""This rank's stage of a pipeline: its layers, and what it does outside of them."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.numbers import ms, plural, sig
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound, name
from tracelens.rules.engine.candidate import could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_model
from tracelens.rules.engine.rows import less, time_of
from tracelens.step.present import micro_batches_of

#: Work of a stage outside of layers.
_LAST = frozenset({"logits", "loss"})
_FIRST = frozenset({"embedding"})
_OUTSIDE = _LAST | _FIRST | {"communication", "optimizer", "grad_clip", "memory", "other", "unattributed"}


@dataclass(frozen=True, slots=True)
class Stage:
    """This rank's stage. Times are per step."""

    stages: int
    here: int  # layers on this rank
    whole: int | None  # layers of the model, where its configuration is in the trace
    layers_ms: float
    first_ms: float  # of the embedding
    last_ms: float  # of logits and loss
    rows: list[GemmRow]  # of its layers
    micro_batches: int | None

    @property
    def layer_ms(self) -> float:
        """Of one layer."""
        return self.layers_ms / self.here

    @property
    def mean(self) -> float | None:
        """Layers of a stage were all alike."""
        return self.whole / self.stages if self.whole else None

    @property
    def longest(self) -> int | None:
        """Layers of the longest stage, as they are dealt out evenly; this rank's where it has more."""
        return max(-(-self.whole // self.stages), self.here) if self.whole else None

    @property
    def extra(self) -> float:
        """Work outside of layers, in layers."""
        return (self.first_ms + self.last_ms) / self.layer_ms

    @property
    def paces(self) -> list[float]:
        """The longest stage in layers, with so many layers of this one on the others as evenly as they go."""
        others = (self.here + -(-moved // (self.stages - 1)) for moved in range(self.here))
        return [max(float(most), self.here - moved + self.extra) for moved, most in enumerate(others)]

    @property
    def filling(self) -> float:
        """How much longer than its micro-batches a pipeline is; the most where their number is not known."""
        return 1 + (self.stages - 1) / (self.micro_batches or 1)

    @property
    def filling_how(self) -> str:
        """The arithmetic of that."""
        more, source = self.stages - 1, "GPipe and 1F1B, arXiv 2104.04473"
        if self.micro_batches is None:
            return (
                f"Filling and draining the pipeline takes {more} micro-batches more than a step has"
                f" ({source}); how many that are is not known, so one is taken, the most that it can cost."
            )
        return (
            f"Filling and draining the pipeline takes {more} micro-batches beside the {self.micro_batches} of"
            f" a step ({source}): × (1 + {more}/{self.micro_batches})."
        )

    @property
    def saw(self) -> str:
        """What a trace shows of it."""
        of = f" of {self.whole}" if self.whole else ""
        text = (
            f"This rank runs {plural(self.here, 'layer')}{of}, one of {self.stages} pipeline stages:"
            f" {ms(self.layers_ms)} per step, {ms(self.layer_ms)} a layer."
        )
        if self.last_ms > 0:
            text += f" Logits and loss, which only the last stage has, take {ms(self.last_ms)}"
            text += f" = {sig(self.last_ms / self.layer_ms)} layers."
        if self.first_ms > 0:
            text += f" The embedding takes {ms(self.first_ms)} = {sig(self.first_ms / self.layer_ms)} layers."
        return text

    def bounds(self, layers: float) -> tuple[list[Bound], float]:
        """What goes with so many layers' time: each row's part, and ms per step beside the rows."""
        share = layers / self.here * self.filling
        how = "{}: {} × {} = {}."
        found = [
            Bound(row, share * time, how.format(name(row), ms(time), sig(share), ms(share * time)))
            for row in self.rows
            for time in (row.time_ms_per_step,)
        ]
        return found, share * less(self.layers_ms, time_of(self.rows))


def need_stage(facts: StepFacts) -> Stage:
    """Raises ``Answer`` where layers are in no pipeline, or what this rank has of it is not known."""
    need_model(facts)
    known, here = facts.model.pipeline_parallel, facts.model.layers
    if known.value == 1:
        raise not_applicable(f"No pipeline: {known.source}.")
    if known.value is None:
        raise could_not_run(
            f"Whether layers are spread over pipeline stages is not known ({known.source}): name the process"
            " groups (DeviceMesh with mesh_dim_names), or record with `tracelens capture`."
        )
    times = facts.step.components if facts.step is not None else ()
    layers = sum(time for component, _, time, _ in times if component not in _OUTSIDE)
    if layers <= 0 or not known.value or not here.value:
        raise could_not_run(
            f"Layers are spread over {known.value} pipeline stages, and how many this rank runs, or how long"
            f" they take, is not known: {here.source}."
        )
    whole = facts.declared.get("layers")
    return Stage(
        stages=known.value,
        here=here.value,
        whole=whole if whole is not None and whole >= here.value else None,
        layers_ms=layers,
        first_ms=sum(time for component, _, time, _ in times if component in _FIRST),
        last_ms=sum(time for component, _, time, _ in times if component in _LAST),
        rows=[row for row in facts.gemms if row.component not in _OUTSIDE and row.time_ms_per_step > 0],
        micro_batches=micro_batches_of(facts.gemms, facts.model.layers.value),
    )
