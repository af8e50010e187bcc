"""What the tool predicts that a change of shape saves, beside what whole layers were measured to save.

The prediction is that of ``tracelens suggest``: every kernel of the layer by its formula, forward and
backward, per token, with the range that is stated to users.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tracelens.advice.config.model import Layout
from tracelens.advice.hyper import Hyper
from tracelens.advice.planned_step import Part, PlannedStep, Planner, compare
from tracelens.errors import InputError
from tracelens.hardware.gpu import Gpu
from tracelens.hardware.measurements import Measurements

#: Changes of a model's shape. A layer against itself, another type and another number of ranks are none.
SHAPE_RULES = ("heads", "ffn", "hidden", "vocabulary", "tokens", "kv_heads", "tensor_parallel_ffn")
#: What is asked of the predictions: so many changes of so many models, the median error within a share of the
#: saving and a share of the step, so many inside the stated range, and none that is slower though a saving of
#: more than a hundredth was predicted.
LEAST_CHANGES, LEAST_MODELS = 60, 12
OF_SAVING_FRAC, OF_STEP_FRAC = 0.10, 0.005
INSIDE_FRAC = 0.90
ADVISED_FRAC = 0.01


@dataclass(frozen=True, slots=True)
class Suggested:
    """One change of a layer. Savings are shares of the time per token."""

    name: str
    model: str
    rule: str
    predicted_frac: float
    low_frac: float
    high_frac: float
    measured_frac: float

    @property
    def error_frac(self) -> float:
        return abs(self.predicted_frac - self.measured_frac)

    @property
    def allowed_frac(self) -> float:
        """What the error may be: a share of the saving, and one of the step."""
        return OF_SAVING_FRAC * abs(self.measured_frac) + OF_STEP_FRAC

    @property
    def in_range(self) -> bool:
        return self.low_frac <= self.measured_frac <= self.high_frac

    @property
    def misled(self) -> bool:
        """Would it have been advised, and made the layer slower?"""
        return self.predicted_frac > ADVISED_FRAC and self.measured_frac < 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """All of them together. ``over_frac``: median of error less what is allowed; at most 0 is wanted."""

    changes: int
    models: int
    median_error_frac: float
    over_frac: float
    in_range_frac: float
    misled: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Is everything met that is asked of the predictions?"""
        enough = self.changes >= LEAST_CHANGES and self.models >= LEAST_MODELS
        return enough and self.over_frac <= 0 and self.in_range_frac >= INSIDE_FRAC and not self.misled


def judged(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The measured pairs that a suggestion could be: attention in one kernel, as the tool plans it."""
    return [
        row for row in rows
        if row["rule"] in SHAPE_RULES
        and (row["before"]["shape"]["attention"] == "flash" or row["before"]["shape"]["vocab"])
    ]  # fmt: skip


def suggested(
    rows: Sequence[Mapping[str, Any]], *, gpu: Gpu, measured: Measurements | None
) -> list[Suggested]:
    """Predict each pair; one whose products the tool cannot predict is left out."""
    found = []
    for row in rows:
        sides = [row[side] for side in ("before", "after")]
        try:
            now, then = (planned(side["shape"], gpu=gpu, measured=measured) for side in sides)
        except InputError:
            continue
        saving = compare(now, then).saving_frac
        if saving.low is None or saving.mid is None or saving.high is None:
            continue
        after, before = (side["us_per_token"] for side in reversed(sides))
        found.append(
            Suggested(
                row["name"],
                row["model"],
                row["rule"],
                saving.mid,
                saving.low,
                saving.high,
                1 - after / before,
            )
        )
    return found


def planned(shape: Mapping[str, Any], *, gpu: Gpu, measured: Measurements | None) -> PlannedStep:
    """The step of one layer, or of the logits, as the tool plans it."""
    hyper = Hyper(
        hidden=shape["hidden"], heads=shape["heads"], kv_heads=shape["kv_heads"], head_dim=shape["head_dim"],
        ffn=shape["ffn"], vocab=shape["vocab"] or 64 * shape["tensor_parallel"], layers=1,
        sequence=shape["sequence"], micro_batch=shape["micro_batch"],
        tensor_parallel=shape["tensor_parallel"], gated=shape["gated"],
    )  # fmt: skip
    layout = Layout(
        fused_qkv=shape["fused_qkv"],
        fused_gate=shape["fused_gate"],
        causal=shape["causal"],
        rope=shape["gated"],
    )
    planner = Planner(layout, gpu=gpu, dtype=shape["dtype"], measured=measured)
    if shape["vocab"]:
        return PlannedStep(hyper, planner.vocab(hyper))
    inside: tuple[Part, ...] = tuple(one for one in planner.hidden(hyper) if one.component != "embedding")
    return PlannedStep(hyper, (*planner.attention(hyper), *planner.mlp(hyper), *inside))


def verdict(found: Sequence[Suggested]) -> Verdict | None:
    if not found:
        return None
    return Verdict(
        changes=len(found),
        models=len({one.model for one in found}),
        median_error_frac=statistics.median(one.error_frac for one in found),
        over_frac=statistics.median(one.error_frac - one.allowed_frac for one in found),
        in_range_frac=sum(one.in_range for one in found) / len(found),
        misled=tuple(one.name for one in found if one.misled),
    )
