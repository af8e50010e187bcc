"""What a fuller GPU loses to its power limit: the less of a step is slow kernels, the lower its clock.

Recordings of one H100 (``sample_traces``: two models, plain, checkpointed and compiled), GEMMs of the same
shapes: all at one pace while a step's GEMMs and attention would take less than a third of it at the rate of
their K loops; 2 to 8 % slower where they would take 0.46 to 0.52 of it, 8 to 10 % at 0.62 to 0.64. Drawn on
to a GPU that does nothing else, that line ends at the loss of a long GEMM by itself, which is fitted for each
GPU (``Rates.sustained_loss_frac``).
"""

from __future__ import annotations

from functools import lru_cache

from tracelens.gemm.predict.rates import FULL_CLOCK, Rates, model_rates
from tracelens.hardware import Gpu
from tracelens.results import GemmRow
from tracelens.step.affected import Affected
from tracelens.step.traced_step import StepModel


def clock_ms(step: StepModel, affected: Affected, saving_ms: float, grown: float) -> float:
    """How much longer all GEMMs and attention of a step take at the clock that a change leaves them.

    ``saving_ms`` is what the change saves at the present clock, with ``grown`` times the operations. Below
    zero where the clock rises; 0 where no GEMM changes, the step waits for the CPU, or its time or the GPU's
    loss is unknown.
    """
    if not affected.parts or not step.step_ms or step.saving_of == "gpu_work" or saving_ms >= step.step_ms:
        return 0.0
    work = step.work
    rows = [one.row for one in work.products] + [one.row for one in work.attention]
    rows += [row for row, _ in work.fixed]
    at_rate_ms = sum(_at_rate_ms(row, step.gpu) for row in {row.id: row for row in rows}.values())
    before, after = at_rate_ms / step.step_ms, at_rate_ms * grown / (step.step_ms - saving_ms)
    then_ms = sum(products_ms for *_, products_ms in step.components)
    then_ms += sum(part.then_ms.mid - part.time_ms for part in affected.parts)
    return then_ms * slowed_frac(before, after, gpu=step.gpu, dtype=step.now.dtype or "bf16")


def slowed_frac(before: float, after: float, *, gpu: Gpu, dtype: str) -> float:
    """How much longer GEMMs take where their share of a step at that rate goes from ``before`` to ``after``.

    >>> from tracelens.hardware import find_gpu
    >>> h100 = find_gpu(None, override="h100-sxm")
    >>> [round(slowed_frac(0.3, after, gpu=h100, dtype="bf16"), 3) for after in (0.33, 0.5, 0.64, 1.0)]
    [0.0, 0.045, 0.083, 0.18]
    """
    rates = _rates(gpu, dtype)
    loss = 0.0 if isinstance(rates, str) else rates.sustained_loss_frac
    now, then = (
        1.0 + loss * max(0.0, min(share, 1.0) - FULL_CLOCK) / (1.0 - FULL_CLOCK) for share in (before, after)
    )
    return then / now - 1.0


def _at_rate_ms(row: GemmRow, gpu: Gpu) -> float:
    """Time per step that the row's operations take at the rate of the K loop; 0 where that is not known."""
    rates = _rates(gpu, row.math_dtype or row.dtype or "bf16")
    if isinstance(rates, str):
        return 0.0
    return (row.flops or 0.0) * row.calls_per_step / rates.multiply_tflops / 1e9


@lru_cache(maxsize=64)
def _rates(gpu: Gpu, dtype: str) -> Rates | str:
    """Asked for every row of every change."""
    return model_rates(gpu, dtype)
