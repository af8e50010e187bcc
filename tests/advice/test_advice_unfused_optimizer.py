"""TL129: Adam in separate operations against the tensors that a fused one moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_facts import other, step_of
from tests.advice.advice_rows import gemm
from tests.said import Listener
from tracelens.results import OtherRow
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.unfused_optimizer import UnfusedOptimizer

#: µs of a public trace of a T4, read off the file by hand; each kernel moves 2, 3 or 4 tensors at one pace.
FOREACH = {"addcdiv_": 249, "addcmul_": 186, "lerp_": 177, "sqrt": 133, "div_": 131, "mul_": 127, "add_": 127}


def adam(prefix: str = "aten::_foreach_", **more: float) -> list[OtherRow]:
    times = FOREACH | more
    return [
        other(
            at,
            "elementwise",
            component="optimizer",
            phase="optimizer",
            op=prefix + name,
            time_us=us,
            calls=1.0,
        )
        for at, (name, us) in enumerate(times.items())
    ]


def check(rows: list[OtherRow], step_ms: float = 23.3) -> Outcome:
    return UnfusedOptimizer().check(step_of([gemm(1, 64, 64, 64)], step_ms=step_ms, others=rows))


@pytest.mark.parametrize("prefix", ["aten::_foreach_", "aten::"])
def test_what_seven_tensors_of_eighteen_do_not_need_is_the_bound(prefix: str) -> None:
    (finding,) = check(adam(prefix)).findings
    total = sum(FOREACH.values()) / 1e3
    assert finding.saving_ms.mid is None
    assert finding.saving_ms.high == pytest.approx(total * (1 - 7 / 18), rel=0.02)  # by the bytes
    assert "fused=True" in finding.fix[1]


def test_a_fused_optimizer_and_a_small_one_pass() -> None:
    fused = other(1, "elementwise", component="optimizer", phase="optimizer", op="aten::_fused_adamw_")
    assert check([fused]).state == "passed"
    assert check(adam(), step_ms=2300.0).state == "passed"
    assert check([other(1, "elementwise", component="optimizer", op="aten::mul_")]).state == "passed"  # SGD
    assert check([other(1, "elementwise")]).state == "not_applicable"


@pytest.mark.parametrize("gone", [("lerp_", "div_", "mul_"), ("lerp_", "div_")])  # Adagrad, RMSprop
def test_other_optimizers_of_the_same_last_operation_are_not_adam(
    gone: tuple[str, ...], said: Listener
) -> None:
    left = [row for row in adam() if (row.op or "").removeprefix("aten::_foreach_") not in gone]
    outcome = check(left)
    assert outcome.state == "passed" and not outcome.findings
    said(outcome.why)


def test_kernels_without_operators_are_not_judged() -> None:
    """As in a CUDA graph, unless their name says that they are fused."""
    blind = [replace(row, op=None) for row in adam()]
    assert check(blind).state == "could_not_run"
    fused = [replace(row, kernel="multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>") for row in blind]
    assert check(fused).state == "passed"
