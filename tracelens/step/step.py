"""One step against another: what a search compares candidates by."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.config.model_config import ModelConfig
from tracelens.results import Estimate


@dataclass(frozen=True, slots=True)
class PartChange:
    """One part before and after. ``saving_ms`` below zero: slower."""

    component: str
    role: str
    kind: str
    shape_now: str
    shape_then: str
    time_ms: float
    then_ms: float
    saving_ms: float
    why: str


@dataclass(frozen=True, slots=True)
class Change:
    """Two steps compared, per token of the present one. Fractions are of the present step."""

    now: ModelConfig
    then: ModelConfig
    saving_frac: Estimate
    saving_ms: Estimate  # per micro-batch of the present size
    flops_frac: float  # growth of operations per token
    parts: tuple[PartChange, ...]  # those that change, largest saving first

    @property
    def shape_gain_frac(self) -> float:
        """The saving without what fewer operations give: a smaller model is faster and no better shaped."""
        mid = self.saving_frac.mid or 0.0
        return mid if self.flops_frac >= 0 else 1 - (1 - mid) / (1 + self.flops_frac)

    @property
    def sure_gain_frac(self) -> float:
        """The same at the low end of the range."""
        low = self.saving_frac.low or 0.0
        return low if self.flops_frac >= 0 else 1 - (1 - low) / (1 + self.flops_frac)
