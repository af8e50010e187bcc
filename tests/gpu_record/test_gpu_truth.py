"""Predictions and attribution against what was measured, wherever a measurement is committed."""

from __future__ import annotations

from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import attribution_truth, summarize, verification
from benchmarks.gpu.attribution_truth import Told, compare, same_module, sample_pairs
from benchmarks.gpu.pairs import layer_pairs
from benchmarks.gpu.record import TRACES, Record, calibration, read_record, read_records
from benchmarks.gpu.stages.repeatability import REPEAT_FRAC
from benchmarks.gpu.suggested import (
    LEAST_CHANGES,
    LEAST_MODELS,
    Suggested,
    judged,
    suggested,
    verdict,
)
from tests.gpu_record.made_record import made_stages, rate_tflops, write_record
from tracelens.errors import InputError
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement, read_measurements, write_measurements
from tracelens.results import Estimate

RECORDS = read_records(summarize.RESULTS)
NONE = "no GPU is measured yet: benchmarks/gpu/results holds no result"


def measured(stage: str) -> list[Any]:
    """The records that hold ``stage``, as parameters; one that is skipped where none does."""
    found = [pytest.param(record, id=record.gpu) for record in RECORDS if stage in record.results]
    skip = pytest.mark.skip(reason=f"{NONE} of the stage {stage}")
    return found or [pytest.param(None, id="none", marks=skip)]


# --- the record itself --------------------------------------------------------------------------------


@pytest.mark.parametrize("record", measured("gemm_sweep"))
def test_the_shipped_calibration_is_that_of_the_results(record: Record, tmp_path: Path) -> None:
    shipped = read_measurements(summarize.CALIBRATION / f"{record.gpu}.json.gz")
    write_measurements(calibration(record), tmp_path / "again.json.gz")
    assert shipped == read_measurements(tmp_path / "again.json.gz")
    assert len(shipped.gemms) >= 6000
    assert sum(bool(one.kernels) for one in shipped.gemms) >= 0.99 * len(shipped.gemms)


def test_no_calibration_ships_without_results_behind_it() -> None:
    folder = summarize.CALIBRATION
    shipped = (
        {path.name.removesuffix(".json.gz") for path in folder.glob("*.json.gz")}
        if folder.is_dir()
        else set()
    )
    assert shipped <= {record.gpu for record in RECORDS if not record.dry_run}


@pytest.mark.parametrize("record", measured("repeatability"))
def test_two_runs_of_the_sweep_agree(record: Record) -> None:
    data = record.data("repeatability")
    assert data is not None
    assert data["agreement"]["shapes"] == 200
    assert data["agreement"]["median_frac"] <= REPEAT_FRAC


# --- predictions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", measured("layer_pairs"))
def test_savings_of_layers_are_predicted(record: Record) -> None:
    found = verdict(verification.verify(record).suggested)
    if found is None:
        pytest.skip("there is nothing to predict with: the GEMM sweep is not yet measured")
    assert found.holds, found


def as_predicted(every: float = 1.0) -> list[dict[str, Any]]:
    """Pairs that saved ``every`` of what is predicted without any measurement."""
    gpu = find_gpu(None, override="h200")
    rows = [
        {
            "name": pair.name,
            "model": pair.model,
            "rule": pair.rule,
            **{
                side: {"shape": asdict(shape), "us_per_token": 1.0}
                for side, shape in (("before", pair.before), ("after", pair.after))
            },
        }
        for pair in layer_pairs()
    ]
    kept = judged(rows)
    for row, one in zip(kept, suggested(kept, gpu=gpu, measured=None), strict=True):
        row["after"]["us_per_token"] = 1.0 - every * one.predicted_frac
    return [dict(row) for row in kept]


def test_enough_changes_of_enough_models_are_judged() -> None:
    """And all of them by what users are told: none is left out for want of a prediction."""
    gpu = find_gpu(None, override="h200")
    found = verdict(suggested(as_predicted(), gpu=gpu, measured=None))
    assert found is not None
    assert found.changes == len(as_predicted())
    assert found.changes >= LEAST_CHANGES
    assert found.models >= LEAST_MODELS
    assert found.holds
    assert found.in_range_frac == 1
    assert found.median_error_frac == pytest.approx(0)


def test_savings_that_are_not_there_are_seen() -> None:
    gpu = find_gpu(None, override="h200")
    none = verdict(suggested(as_predicted(0.0), gpu=gpu, measured=None))
    less = verdict(suggested(as_predicted(0.5), gpu=gpu, measured=None))
    worse = verdict(suggested(as_predicted(-0.2), gpu=gpu, measured=None))
    assert none is not None and less is not None and worse is not None
    assert none.median_error_frac > less.median_error_frac > 0
    assert not none.holds and not worse.holds
    assert none.misled == ()
    assert "gpt3-2.7b vocab=50257>50304" in worse.misled
    assert worse.in_range_frac < 0.9


def test_what_an_error_may_be_is_of_the_saving_and_of_the_step() -> None:
    one = Suggested("x", "m", "heads", 0.112, 0.05, 0.15, 0.10)
    assert one.error_frac == pytest.approx(0.012)
    assert one.allowed_frac == pytest.approx(0.015)
    assert one.in_range and not one.misled
    assert Suggested("x", "m", "heads", 0.02, 0.0, 0.1, -0.001).misled
    assert not Suggested("x", "m", "heads", 0.009, 0.0, 0.1, -0.001).misled


@pytest.mark.parametrize("record", measured("gemm_sweep"))
def test_products_nobody_chose_are_predicted(record: Record) -> None:
    checked = verification.verify(record)
    if checked.calibrated is None or checked.model is None:
        pytest.skip("this GPU has no figures in the table, so nothing is predicted for it")
    assert checked.calibrated.median_frac <= checked.model.median_frac
    assert checked.calibrated.in_range_frac >= 0.8


def test_an_exact_predictor_has_no_error_and_the_right_sign(tmp_path: Path) -> None:
    record = read_record(write_record(tmp_path, stages=made_stages(50)) / "h200")
    pairs = verification.explained(record.pairs("layer_pairs"))
    assert {row["rule"] for row in pairs} == set(verification.EXPLAINED)
    assert len(pairs) >= 40

    def exact(one: verification.Product | verification.Attention) -> Estimate:
        if isinstance(one, verification.Attention):
            return Estimate(0.0, 0.0, 0.0, "model")  # a made-up layer takes its products and a constant
        us = max(
            2.5, 2.0 * one.m * one.n * one.k * one.batch / rate_tflops(one.m, one.n, one.k, one.dtype) / 1e6
        )
        return Estimate(us * 0.9, us, us * 1.1, "model")

    def late(one: verification.Product | verification.Attention) -> Estimate:
        found = exact(one)
        assert found.mid is not None
        return Estimate(found.mid * 1.4, found.mid * 1.5, found.mid * 1.6, "model")

    found = verification.savings(pairs, exact)
    errors = verification.saving_errors(found)
    assert errors is not None and errors.count == len(pairs)
    assert errors.p90_frac < 1e-4 and errors.in_range_frac == 1
    assert verification.right_sign(found) == 1
    products = verification.product_errors(record.gemms, exact)
    assert products is not None and products.p90_frac < 1e-9 and products.in_range_frac == 1
    wrong = verification.product_errors(record.gemms, late)
    assert wrong is not None and wrong.median_frac == pytest.approx(0.5) and wrong.in_range_frac == 0


def test_what_both_shapes_do_alike_cancels() -> None:
    """A range of 10 % of a whole layer would hold every saving of a few percent."""
    pair = next(pair for pair in layer_pairs() if pair.name == "llama-7b ffn=10922>11008")
    sides = {
        side: {"shape": asdict(shape), "gemms": [astuple(gemm) for gemm in shape.gemms()], "ms": 10.0}
        for side, shape in (("before", pair.before), ("after", pair.after))
    }
    asked: list[verification.Product | verification.Attention] = []

    def predict(one: verification.Product | verification.Attention) -> Estimate:
        asked.append(one)
        return Estimate(900.0, 1000.0, 1100.0, "model")

    (found,) = verification.savings([{"name": pair.name, **sides}], predict)
    assert len(asked) == 12  # up and down in three roles, before and after: no projection, no attention
    assert all(
        isinstance(one, verification.Product) and {10922, 22016, 21844, 11008} & {one.m, one.n, one.k}
        for one in asked
    )
    assert (found.predicted_frac, found.in_range) == (0.0, True)


def test_heads_change_attention_and_nothing_else() -> None:
    pair = next(pair for pair in layer_pairs() if pair.name == "gpt3-2.7b heads=32>20")
    before, after = (
        set(verification.parts({"shape": asdict(shape), "gemms": [astuple(gemm) for gemm in shape.gemms()]}))
        for shape in (pair.before, pair.after)
    )
    assert {type(one) for one in before ^ after} == {verification.Attention}
    assert len(before - after) == len(after - before) == 2


def test_what_is_not_predicted_is_left_out() -> None:
    one = GemmMeasurement("x", 64, 64, 64, 1, "bf16", "bf16", "TN", 10.0, 0.01, ())
    assert verification.product_errors([one], lambda _: Estimate(None, None, None, "model")) is None
    assert verification.right_sign([verification.Saving("x", 0.1, 0.001, True)]) is None


def test_a_record_without_a_sweep_is_not_verified() -> None:
    with pytest.raises(InputError):
        calibration(Record("h200", {}))
    assert verification.verify(Record("h200", {})) == verification.Checked()


# --- attribution --------------------------------------------------------------------------------------

TRUTHS = sample_pairs(TRACES)
NO_TRACE = pytest.mark.skip(reason="no captured trace with its truth is committed yet")


@pytest.mark.parametrize(
    "trace",
    [pytest.param(path, id=path.name) for path in TRUTHS]
    or [
        pytest.param(None, marks=pytest.mark.skip(reason="no captured trace with its truth is committed yet"))
    ],
)
def test_attribution_is_that_of_the_synchronised_step(trace: Path) -> None:
    told, truth, modules = attribution_truth.read_pair(trace)
    found = compare(told, truth, modules=modules)
    assert found.matched_frac >= 0.9
    assert found.phase_frac is not None and found.phase_frac >= 0.98
    if modules:
        assert found.module_frac is not None and found.module_frac >= 0.95


def told(name: str, module: str | None, phase: str = "forward", step: int = 0, us: float = 10.0) -> Told:
    return Told(name, step, phase, module, us)


def true(name: str, module: str, part: str = "forward") -> Any:
    pytest.importorskip("torch")
    from benchmarks.gpu.truth import Kernel

    return Kernel(name, "1x1x1", part, module, 10.0)


def test_kernels_are_paired_by_name_and_order() -> None:
    found = compare(
        [told("gemm", "GPT.h.0.mlp"), told("norm", "GPT.ln_f"), told("gemm", "GPT.h.1.mlp", us=30.0)],
        [true("gemm", "h.0.mlp"), true("gemm", "h.0.mlp"), true("norm", "ln_f")],
        modules=True,
    )
    assert found.kernels == 3 and found.matched_frac == 1 and found.phase_frac == 1
    assert found.module_frac == pytest.approx(20 / 50)


def test_a_step_with_another_number_of_kernels_is_not_compared() -> None:
    ours = [told("gemm", "h.0", step=0), told("gemm", "h.0", step=1), told("gemm", "h.0", step=1)]
    found = compare(ours, [true("gemm", "h.0")], modules=True)
    assert found.kernels == 1
    assert found.matched_frac == pytest.approx(1 / 3)


def test_what_the_truth_does_not_know_counts_neither_way() -> None:
    ours = [told("a", "x"), told("b", None, phase="optimizer"), told("c", None, phase="other")]
    truth = [true("a", "?", "?"), true("b", "", "optimizer"), true("c", "", "grad_clip")]
    found = compare(ours, truth, modules=True)
    assert found.phase_frac == 1  # of the optimizer's kernel alone
    assert found.module_frac == 1  # of the two outside every module
    assert compare(ours, truth, modules=False).module_frac is None


def test_the_loss_is_forward_and_recomputation_is_its_own() -> None:
    ours = [told("a", None, "forward"), told("b", "h.0", "backward")]
    found = compare(ours, [true("a", "", "loss"), true("b", "h.0", "recompute")], modules=True)
    assert found.phase_frac == 0.5
    assert same_module("GPT", "") and not same_module("GPT.h.0", "")
