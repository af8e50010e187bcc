"""The transformer in the step itself: found from shapes, order and repetition where no name says it."""

from __future__ import annotations

from tracelens.attribution.structure.infer import Inference, infer
from tracelens.attribution.structure.runs import Label

__all__ = ["Inference", "Label", "infer"]
