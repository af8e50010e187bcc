"""What findings say of a made-up step, figure by figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice import test_advice_expert_imbalance as imbalance
from tests.advice import test_advice_gemms_beside_collectives as beside
from tests.advice import test_advice_misaligned_views as views
from tests.advice import test_advice_tensor_cores as precisions
from tests.advice.advice_facts import RTX3060
from tests.advice.advice_rows import facts, gemm
from tracelens.results import Clock, StepPace
from tracelens.rules.falling_clock import FallingClock


def test_gemms_beside_a_collective_of_13_of_132_sms() -> None:
    """10 calls of 1 ms alone, 5 of them beside it in 2 ms; 10 waves become 12 where 13 SMs are left out."""
    (carved,) = beside.check(beside.row_of()).findings
    assert carved.title == (
        "Leave 13 SMs to NCCL: persistent GEMMs beside reduce_scatter take 2.0 times as long"
    )
    assert carved.saw.endswith("1,000 µs alone and 2,000 µs beside the collective, which has 13 CTAs.")
    assert carved.saw.startswith(
        "1 GEMM row with calls beside reduce_scatter and calls beside nothing: the former take 5.00 ms "
        "longer per step (5% of the step). Most: mlp.up forward "
    )
    assert "5.00 ms - 10.0 calls × 1,000 µs × (12 / 10 waves - 1) = 3.00 ms." in carved.how
    assert carved.caveats[1] == "Part of it is bandwidth, which no number of SMs gives back."
    row = beside.row_of(tiles=100)
    (fewer,) = beside.check(row).findings
    assert fewer.title.startswith("Give collectives fewer SMs: GEMMs beside reduce_scatter take 2.0 times")
    assert fewer.fix == ["+ export NCCL_MAX_CTAS=6  # now 13"] and fewer.change == {}
    assert row.beside is not None
    unknown = replace(row, beside=replace(row.beside, ctas=None))
    (silent,) = beside.check(unknown).findings
    assert silent.fix == ["+ export NCCL_MAX_CTAS=1"] and "CTAs" not in silent.saw
    two = replace(
        row, id="g2", component="mlp.down", beside=replace(row.beside, collectives={"all_gather": 1.0})
    )
    (both,) = beside.check(row, two).findings
    assert (
        both.saw.startswith("2 GEMM rows with calls beside reduce_scatter and all_gather")
        and "10.0 ms" in both.saw
    )
    assert both.components == ["mlp.up", "mlp.down"] and both.saving_ms.high == pytest.approx(10.0)


def test_an_uneven_load_of_eight_ranks() -> None:
    found = imbalance.check(imbalance.sent(None, group_size=4), imbalance.sent(0.3)).findings[0]
    assert found.saw == (
        "The all-to-alls of the experts send the fullest of 8 ranks 30.0% more than the mean, by the sizes "
        "that this rank's calls have for each. Experts' GEMMs take 6.00 ms per step here, and exposed "
        "all-to-alls, which hold the wait for that rank, 4.00 ms."
    )
    (bound,) = (one for one in found.evidence["rows"])
    assert bound["bound_ms"] == pytest.approx(0.3 / 1.3 * 6.0)
    for uneven, state in ((0.0999, "passed"), (0.1, "found")):
        assert imbalance.check(imbalance.sent(uneven)).state == state


def test_a_clock_that_falls_in_some_steps() -> None:
    paces = [
        StepPace(3, 1.0, False),
        StepPace(4, 1.1, True),
        StepPace(5, 1.02, False),
        StepPace(6, 1.25, True),
    ]
    clock = Clock(paces, lost_ms_per_step=4.0, least_ms_per_step=3.0, most_ms_per_step=6.0)
    rows = [replace(gemm(1, 64, 64, 64), clock_ms_per_step=3.0), gemm(2, 64, 64, 64, component="logits")]
    (found,) = FallingClock().check(facts(*rows, step_ms=100.0, clock=clock)).findings
    assert found.title == "Hold the GPU's clock: the same GEMMs take 25.0% longer in step 6 than in step 3"
    assert found.saw == (
        "GEMMs of all shapes alike take longer in steps 4, 6 (of 4) than in step 3, by 25.0% at most: 4.00 "
        "ms per step (4% of the step; 3.00–6.00 ms: healthy steps differ by 2.4%, too)."
    )
    assert (found.saving_ms.mid, found.saving_ms.high, found.gemms, found.components) == (
        None,
        6.0,
        ["g1"],
        ["mlp.up"],
    )
    one = replace(clock, steps=[*paces[:3]], most_ms_per_step=None)
    (single,) = FallingClock().check(facts(*rows, step_ms=100.0, clock=one)).findings
    assert "take longer in step 4 (of 3)" in single.saw and single.saving_ms.high == 4.0
    even = FallingClock().check(facts(*rows, clock=replace(clock, steps=[paces[0], paces[2]])))
    assert (even.state, even.why) == ("passed", "All shapes take the same time in each of 2 steps.")
    assert FallingClock().check(facts(*rows)).state == "not_applicable"
    little = replace(clock, most_ms_per_step=0.99)
    assert FallingClock().check(facts(*rows, step_ms=100.0, clock=little)).state == "passed"


def test_the_operand_that_is_off_is_named() -> None:
    (found,) = views.check(views.strided(1, lda=4618)).findings
    assert "The recorded strides of its operand a: 4618 elements = 9236 bytes from row to row" in found.saw
    out = replace(views.strided(1, lda=4096), alignment_bytes={"a": 16, "b": 16, "c": 4},
                  leading={"a": 4096, "b": 4096, "c": 4618})  # fmt: skip
    (written,) = views.check(out).findings
    assert "The recorded strides of its output: 4618 elements = 9236 bytes" in written.saw


def test_whose_other_kernels_gain_by_another_type() -> None:
    """All of a step in 16 bits makes its other kernels faster, too; a flag or one product does not."""
    (flag,) = precisions.check(precisions.fp32(1)).findings
    assert (flag.change["precision"], flag.counts) == (["fp32", "tf32"], "all")
    (half,) = precisions.check(precisions.fp32(1, time_us=19000.0), gpu=RTX3060, step_ms=40.0).findings
    assert (half.change["precision"], half.counts) == (["fp32", "bf16"], "gemms")
    mixed = precisions.check(
        precisions.fp32(1, component="logits"), gemm(2, 4096, 4096, 4096, time_us=9000.0)
    )
    assert [(one.change["precision"], one.counts) for one in mixed.findings] == [(["fp32", "bf16"], "all")]
