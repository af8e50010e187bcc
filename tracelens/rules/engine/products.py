"""What a row of the GEMM table would take as another product: other sizes, or another precision."""

from __future__ import annotations

from dataclasses import replace

from tracelens.gemm import bytes_per_element
from tracelens.gemm.predict import Prediction
from tracelens.numbers import ms
from tracelens.results import Estimate, GemmRow
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.stakes import Stake, time_at_stake
from tracelens.step.predicted import predict_row
from tracelens.step.stalls import call_us_of


def sizes_of(row: GemmRow) -> tuple[int, int, int, int] | None:
    """M, N, K and batch, where all are known and no group is of unequal size."""
    if row.m is None or row.n is None or row.k is None or "groups" in (row.shape_note or ""):
        return None
    return row.m, row.n, row.k, row.batch or 1


def predicted(
    row: GemmRow,
    *,
    facts: StepFacts,
    sizes: tuple[int, int, int, int] | None = None,
    dtype: str | None = None,
    out_dtype: str | None = None,
) -> Prediction | str:
    """The row's product with other ``sizes`` or another ``dtype``, or why there is no prediction."""
    shape = sizes or sizes_of(row)
    if facts.step is None:
        return "the step cannot be simulated"
    if shape is None:
        return "its sizes are not known"
    found = predict_row(
        shape, row, gpu=facts.step.gpu, measured=facts.step.measured, dtype=dtype, out_dtype=out_dtype
    )
    if isinstance(found, str):
        return found
    return found if found.time_us.mid is not None else found.unknown or "its time is not predicted"


def saved(row: GemmRow, then: Prediction) -> Estimate:
    """Measured minus predicted time per step, ms."""
    calls, now_us, time = row.calls_per_step / 1e3, call_us_of(row), then.time_us
    low, mid, high = time.low or 0.0, time.mid or 0.0, time.high or 0.0
    return Estimate(calls * (now_us - high), calls * (now_us - mid), calls * (now_us - low), time.basis)


def at_stake_in(row: GemmRow, dtype: str, *, facts: StepFacts) -> Stake:
    """The row's time above the least that the datasheet allows in ``dtype``."""
    now, then = bytes_per_element(row.dtype), bytes_per_element(dtype)
    moved = row.bytes * then / now if row.bytes is not None and now and then else None
    return time_at_stake(replace(row, math_dtype=dtype, bytes=moved), gpu=facts.gpu)


def minus(saving: Estimate, *, mid_ms: float = 0.0, low_ms: float = 0.0) -> Estimate:
    """A saving less what the change adds: ``mid_ms`` for certain, ``low_ms`` more at worst."""
    low, mid, high = (value if value is not None else 0.0 for value in (saving.low, saving.mid, saving.high))
    return Estimate(low - mid_ms - low_ms, mid - mid_ms, high - mid_ms, saving.basis)


def moving_ms(number_of_bytes: float, *, facts: StepFacts) -> float:
    """How long so many bytes take across memory at the datasheet's bandwidth; 0 where that is not known."""
    bandwidth = facts.gpu.bandwidth_gbps
    return number_of_bytes / (bandwidth * 1e6) if bandwidth else 0.0


def sum_ms(rows: list[GemmRow]) -> str:
    """Time per step of rows, written."""
    return ms(sum(row.time_ms_per_step for row in rows))
