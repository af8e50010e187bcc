"""What a fuller GPU loses to its power limit, counted by hand, and what was measured of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_rows import gemm
from tests.advice.advice_steps import H100, Shape, model_of
from tracelens.gemm.predict.rates import Rates, model_rates
from tracelens.hardware import find_gpu
from tracelens.step.affected import affected_by
from tracelens.step.power import clock_ms, slowed_frac
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if

GPT = Shape(1024, 8, 4096, layers=1)


def rates(dtype: str = "bf16") -> Rates:
    found = model_rates(H100, dtype)
    assert isinstance(found, Rates)
    return found


def one_gemm(time_ms: float, rest_ms: float) -> StepModel:
    """A step of one GEMM, whose operations take 20 ms at the rate of the K loop."""
    flops = 0.020 * rates().multiply_tflops * 1e12
    row = gemm(1, 8192, 4096, 1024, component="mlp.up", time_us=time_ms * 1e3)
    return model_of(GPT, rows=[replace(row, flops=flops, calls_per_step=1.0, calls=1)], rest_ms=rest_ms)


@pytest.mark.parametrize(
    ("before", "after", "times"),
    [(0.1, 0.33, 0.0), (0.2, 0.5, 0.25), (0.0, 1.0, 1.0), (0.3, 1.7, 1.0), (0.5, 0.5, 0.0)],
)
def test_from_a_third_on_the_clock_falls_to_the_loss_of_long_gemms(
    before: float, after: float, times: float
) -> None:
    loss = rates().sustained_loss_frac
    assert loss > 0.1
    assert slowed_frac(before, after, gpu=H100, dtype="bf16") == pytest.approx(times * loss)


def test_between_two_slowed_paces_it_is_their_ratio_and_it_rises_too() -> None:
    loss = rates().sustained_loss_frac
    slower = slowed_frac(1 / 2, 3 / 4, gpu=H100, dtype="bf16")
    assert slower == pytest.approx((1 + 0.625 * loss) / (1 + 0.25 * loss) - 1)
    assert slowed_frac(3 / 4, 1 / 2, gpu=H100, dtype="bf16") == pytest.approx(1 / (1 + slower) - 1)


def test_a_gpu_of_unknown_loss_keeps_its_clock() -> None:
    unknown = find_gpu("Quantum 9000")
    assert slowed_frac(0.0, 1.0, gpu=unknown, dtype="bf16") == 0.0


def test_all_that_multiplies_slows_with_the_clock() -> None:
    """Of 80 ms 60 go, 20 of which the operations need: from a quarter of the step to all of it."""
    step = one_gemm(70.0, 10.0)
    part = affected_by(step, replace(step.now, ffn=8192))
    assert clock_ms(step, part, 60.0, 1.0) == pytest.approx(
        sum(one.then_ms.mid for one in part.parts) * rates().sustained_loss_frac
    )
    half = clock_ms(step, part, 60.0, 0.5)  # half of the operations are left: half of the step
    assert half == pytest.approx(clock_ms(step, part, 60.0, 1.0) / 4)


def test_where_nothing_multiplies_otherwise_or_the_step_waits_the_clock_stays() -> None:
    step = one_gemm(70.0, 10.0)
    assert clock_ms(step, affected_by(step, step.now), 60.0, 1.0) == 0.0
    part = affected_by(step, replace(step.now, ffn=8192))
    assert clock_ms(step, part, 60.0, 1.0) > 0
    assert clock_ms(replace(step, busy_frac=0.5), part, 60.0, 1.0) == 0.0
    assert clock_ms(replace(step, step_ms=None), part, 60.0, 1.0) == 0.0
    assert clock_ms(step, part, 80.0, 1.0) == 0.0


def test_only_the_end_that_the_clock_moves_is_further_away() -> None:
    """Slow kernels that go take the full clock with them; not where enough beside them leaves it full."""
    full, calm = (
        what_if(
            model_of(Shape(2560, 20, 10922, layers=4), slowed={"mlp.up": 6.0, "mlp.down": 6.0}, rest_ms=ms),
            {"ffn": 11008},
        ).saving_ms.known
        for ms in (5.0, 500.0)
    )
    assert full is not None and calm is not None
    assert (full.mid, full.high) == pytest.approx((calm.mid, calm.high))
    assert full.mid - full.low > 1.2 * (calm.mid - calm.low)
