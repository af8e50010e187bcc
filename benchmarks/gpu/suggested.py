"""What is asked of predicted savings, and whether those of the ledger keep it.

The predictions are those of ``tracelens suggest``, written down before the layers were measured: every kernel
of the layer by its formula, forward and backward, per token, with the range that is stated to users.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.gpu.ledger import Entry

#: What is asked of the predictions: so many changes of so many models, the median error within a share of the
#: saving and a share of the step, so many inside the stated range, and none that is slower though a saving of
#: more than a hundredth was predicted.
LEAST_CHANGES, LEAST_MODELS = 60, 12
OF_SAVING_FRAC, OF_STEP_FRAC = 0.10, 0.005
INSIDE_FRAC = 0.90
ADVISED_FRAC = 0.01


@dataclass(frozen=True, slots=True)
class Verdict:
    """All of them together. ``over_frac``: median of error less what is allowed; at most 0 is wanted."""

    changes: int
    models: int
    median_error_frac: float
    over_frac: float
    in_range_frac: float
    misled: tuple[str, ...]  # advised, and slower

    @property
    def holds(self) -> bool:
        """Is everything met that is asked of the predictions?"""
        enough = self.changes >= LEAST_CHANGES and self.models >= LEAST_MODELS
        return enough and self.over_frac <= 0 and self.in_range_frac >= INSIDE_FRAC and not self.misled


def advised(entries: Iterable[Entry]) -> list[Entry]:
    """The predicted savings that a suggestion could be: attention in one kernel, as the tool plans it."""
    return [one for one in entries if one.kind == "saving" and one.advised]


def verdict(found: Sequence[Entry]) -> Verdict | None:
    """None where nothing was predicted and measured."""
    if not found:
        return None
    errors = [abs(one.measured - one.mid) for one in found]
    over = [
        error - OF_SAVING_FRAC * abs(one.measured) - OF_STEP_FRAC
        for error, one in zip(errors, found, strict=True)
    ]
    return Verdict(
        changes=len(found),
        models=len({one.name.split()[0] for one in found}),
        median_error_frac=statistics.median(errors),
        over_frac=statistics.median(over),
        in_range_frac=sum(one.hit for one in found) / len(found),
        misled=tuple(one.name for one in found if one.mid > ADVISED_FRAC and one.measured < 0),
    )
