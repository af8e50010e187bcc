"""Where the time of a step goes by layer, and one layer kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class LayerRow:
    """GPU time of one component and phase, per step; the layers and the rest are all of it."""

    component: str
    phase: str
    time_ms: list[float]  # by layer, in the order of Layers.layers
    rest_ms: float  # in no layer, or in one that is not known


@dataclass(frozen=True, slots=True)
class LayerPass:
    """One pass of a layer: its GPU events, and all others that begin in its time. Columns, by beginning."""

    phase: Literal["forward", "backward"]  # backward: with what it recomputes
    begins_ms: float  # after the step's beginning
    length_us: float
    busy_frac: float  # of the length, some GPU event runs
    start_us: list[float]  # after the pass's beginning
    duration_us: list[float]
    component: list[str]
    name: list[int]  # index into LayerTimeline.names
    stream: list[int]
    layer: list[int]  # -1: none, or not known
    left_out: int = 0  # events after those listed


@dataclass(frozen=True, slots=True)
class LayerTimeline:
    """A middle layer of the step of median length."""

    layer: int
    step: int  # the N of ProfilerStep#N
    names: list[str]  # of kernels
    passes: list[LayerPass]


@dataclass(frozen=True, slots=True)
class Layers:
    """GPU time per step by layer, component and phase. Every GPU event of the steps is in one cell."""

    layers: list[int] = field(default_factory=list)
    rows: list[LayerRow] = field(default_factory=list)
    timeline: LayerTimeline | None = None
    why: str | None = "this report does not hold it"  # why no layer is known
