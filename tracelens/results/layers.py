"""Where the time of a step goes by layer, and one layer kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tracelens.results import words
from tracelens.results.described import same_length, says


@dataclass(frozen=True, slots=True)
class LayerRow:
    """GPU time of one component and phase, per step; the layers and the rest are all of it."""

    component: str
    phase: str
    time_ms: Annotated[list[float], says("by layer, in the order of Layers.layers")]
    rest_ms: Annotated[float, says("in no layer, or in one that is not known")]


@dataclass(frozen=True, slots=True)
class LayerPass:
    """One pass of a layer: its GPU events, and all others that begin in its time. Columns, by beginning."""

    phase: Annotated[Literal["forward", "backward"], says("backward: with what it recomputes")]
    begins_ms: Annotated[float, says("after the step's beginning")]
    length_us: float
    busy_frac: Annotated[float, says("of the length, some GPU event runs")]
    start_us: Annotated[list[float], says("after the pass's beginning")]
    duration_us: list[float]
    component: list[str]
    name: Annotated[list[int], says("index into LayerTimeline.names")]
    stream: list[int]
    layer: Annotated[list[int], says("-1: none, or not known")]
    left_out: Annotated[int, says("events after those listed")] = 0

    def __post_init__(self) -> None:
        same_length(
            start_us=self.start_us,
            duration_us=self.duration_us,
            component=self.component,
            name=self.name,
            stream=self.stream,
            layer=self.layer,
        )


@dataclass(frozen=True, slots=True)
class LayerTimeline:
    """A middle layer of the step of median length."""

    layer: int
    step: Annotated[int, says("the N of ProfilerStep#N")]
    names: Annotated[list[str], says("of kernels")]
    passes: list[LayerPass]

    def __post_init__(self) -> None:
        if any(not 0 <= at < len(self.names) for one in self.passes for at in one.name):
            raise ValueError("name is no index into names")


@dataclass(frozen=True, slots=True)
class Layers:
    """GPU time per step by layer, component and phase. Every GPU event of the steps is in one cell."""

    layers: list[int] = field(default_factory=list)
    rows: list[LayerRow] = field(default_factory=list)
    timeline: LayerTimeline | None = None
    why: Annotated[str | None, says("why no layer is known")] = words.NOT_HELD

    def __post_init__(self) -> None:
        for row in self.rows:
            same_length(layers=self.layers, time_ms=row.time_ms)
