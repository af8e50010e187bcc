"""How the time of a row moves with its type alone."""

from __future__ import annotations

import math

from tracelens.results import GemmRow
from tracelens.step.predicted import Scaled, anchored, bounded, held_us, moved, predict_row, type_error
from tracelens.step.stalls import call_us_of
from tracelens.step.traced_step import StepModel
from tracelens.step.words import simulation as words


def retyped(row: GemmRow, sizes: tuple[int, int, int, int], dtype: str, *, step: StepModel) -> Scaled | str:
    """The factor on the row's time in another type, or why there is none.

    A GPU that runs slower than predicted does so in both types: the measured time moves as the prediction
    moves. A row that is faster has a better kernel, which says nothing of the other type's. Where the
    present type is not predicted, the new one's time is taken at this trace's pace.
    """
    call_us = call_us_of(row)
    if call_us <= 0:
        return words.NO_TIME
    present = row.math_dtype or row.dtype or "bf16"
    out = row.out_dtype if dtype == "tf32" else None  # whose tensors stay as they are
    old = predict_row(sizes, row, gpu=step.gpu, measured=step.measured)
    new = predict_row(sizes, row, gpu=step.gpu, measured=step.measured, dtype=dtype, out_dtype=out)
    if isinstance(old, str) or isinstance(new, str):
        return old if isinstance(old, str) else str(new)
    if new.time_us.mid is None:
        return new.unknown or words.THEN_UNPREDICTED
    texts = present, dtype
    floor = held_us(old, new, row, step.gpu)
    # fp64 is predicted on the faster of the CUDA and the tensor cores.
    other_cores = present == "fp64" and row.tensor_core == "eligible_unused"
    if old.time_us.mid is None or other_cores:
        return anchored(new, row, step.anchors.of_type(dtype), texts, floor, math.inf)
    error, (faster, slower) = type_error(0.0, {present, dtype}, old, new)
    widths = error + faster, error + slower
    if call_us >= old.time_us.mid:
        return moved(old, new, call_us, widths, texts, floor)
    time, how = new.time_us, words.as_predicted(new.time_us.mid, call_us)
    return bounded(new.time_us.mid, call_us, widths, time.basis, texts, how, floor, "ratio")
