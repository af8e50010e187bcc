"""What a row of the GEMM table would take as another GEMM."""

from __future__ import annotations

from tracelens.gemm.predict import Prediction
from tracelens.results import Estimate, GemmRow
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import sizes_of
from tracelens.step.predicted import predict_row
from tracelens.step.stalls import call_us_of


def predicted(
    row: GemmRow, *, facts: StepFacts, sizes: tuple[int, int, int, int] | None = None
) -> Prediction | str:
    """The row's GEMM, with other ``sizes`` where they are given, or why there is no prediction."""
    shape = sizes or sizes_of(row)
    if facts.step is None:
        return "the step cannot be simulated"
    if shape is None:
        return "its sizes are not known"
    found = predict_row(shape, row, gpu=facts.step.gpu, measured=facts.step.measured)
    if isinstance(found, str):
        return found
    return found if found.time_us.mid is not None else found.unknown or "its time is not predicted"


def saved(row: GemmRow, then_us: Estimate) -> Estimate:
    """Measured time per step, ms, less that of calls of ``then_us``."""
    return row.calls_per_step / 1e3 * (call_us_of(row) - then_us)


def minus(saving: Estimate, *, mid_ms: float = 0.0, low_ms: float = 0.0) -> Estimate:
    """A saving less what the change adds: ``mid_ms`` for certain, ``low_ms`` more at worst."""
    return saving - Estimate(mid_ms, mid_ms, mid_ms + low_ms, saving.basis)


def moving_ms(number_of_bytes: float, *, facts: StepFacts) -> float:
    """How long so many bytes take across memory at the datasheet's bandwidth; 0 where that is not known."""
    bandwidth = facts.gpu.bandwidth_gbps
    return number_of_bytes / (bandwidth * 1e6) if bandwidth else 0.0
