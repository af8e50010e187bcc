"""The stages at toy size on the CPU: what they measure, what they keep, and what they refuse."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import sweeps
from benchmarks.gpu.pairs import layer_pairs
from benchmarks.gpu.stage import Setting, Stage
from benchmarks.gpu.stages import layer_pairs as pairs
from benchmarks.gpu.stages import repeatability, shapes
from benchmarks.gpu.stages.attention_sweep import ATTENTION_SWEEP
from benchmarks.gpu.stages.ceilings import CEILINGS
from benchmarks.gpu.stages.gemm_sweep import CURVES, GEMM_SWEEP, GEMM_UNSURE
from benchmarks.gpu.stages.layer_pairs import FULL_STEPS, LAYER_PAIRS, SAVINGS
from benchmarks.gpu.stages.repeatability import REPEATABILITY
from benchmarks.gpu.sweeps import product
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import AttentionMeasurement, GemmMeasurement, table_of
from tracelens.measure.cases import GemmCase
from tracelens.measure.kernels import CallKernels


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Toy sizes on several threads spend their time waiting for each other."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


STAGES = (
    CEILINGS, GEMM_UNSURE, GEMM_SWEEP, CURVES, ATTENTION_SWEEP, REPEATABILITY, SAVINGS, LAYER_PAIRS,
    FULL_STEPS,
)  # fmt: skip
NVJET = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"


def toy(tmp_path: Path) -> Setting:
    return Setting("cpu", "cpu", True, tmp_path / "traces", tmp_path / "scratch")


def planned(gpu: str = "h200") -> Setting:
    return Setting("none", gpu, False, Path("traces"), Path("scratch"))


def ran(stage: Stage, tmp_path: Path, most: int | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    setting = toy(tmp_path)
    rows = [stage.measure(setting, item) for item in stage.items(setting)[:most]]
    data = stage.summarize(setting, rows)
    assert json.loads(json.dumps(data, allow_nan=False))  # plain JSON
    assert stage.check(data) == []
    return rows, data


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_items_are_small_and_the_same_at_every_start(stage: Stage) -> None:
    items = stage.items(planned())
    assert [item.key for item in items] == [item.key for item in stage.items(planned())]
    assert len({item.key for item in items}) == len(items)
    assert max(item.seconds for item in items) < 20
    assert stage.setup_s + sum(item.seconds for item in items) < 9 * 60


def test_all_of_them_take_less_than_fourteen_minutes() -> None:
    assert sum(item.seconds for stage in STAGES for item in stage.items(planned())) < 14 * 60


def test_the_sweep_is_measured_in_two_parts_the_least_sure_first() -> None:
    """Where the predicted range is widest: that is what is known least."""
    unsure, rest = ({product(case) for case in stage_cases(one)} for one in (GEMM_UNSURE, GEMM_SWEEP))
    assert not unsure & rest
    assert unsure | rest == {product(case) for case in sweeps.gemm_sweep(132)}
    gpu = find_gpu(None, override="h200")

    def width(case: GemmCase) -> float:
        found = predict_gemm(case.m, case.n, case.k, gpu=gpu, batch=case.batch, dtype=case.dtype,
                             layout=case.layout).time_us  # fmt: skip
        return (found.high - found.low) / found.mid if found.high and found.low and found.mid else 9.0

    widths = [statistics.median(map(width, stage_cases(one)[::40])) for one in (GEMM_UNSURE, GEMM_SWEEP)]
    assert widths[0] > 2 * widths[1]


def test_a_slice_is_swept_by_its_own_multiprocessors() -> None:
    assert shapes.sms_of(planned("h200-60sms")) == 60
    assert shapes.sms_of(planned("h200")) == 132
    assert shapes.gpu_of(planned("h200-60sms")).name == "h200"
    whole, part = ({item.key for item in CURVES.items(planned(gpu))} for gpu in ("h200", "h200-60sms"))
    assert whole != part


@pytest.mark.parametrize("stage", [GEMM_SWEEP, CURVES], ids=lambda stage: stage.name)
def test_every_kind_of_product_is_measured(stage: Stage, tmp_path: Path) -> None:
    rows, data = ran(stage, tmp_path)
    found = shapes.measured_of(data, GemmMeasurement)
    asked = [case for item in stage.items(toy(tmp_path)) for case in item.spec]
    assert len(found) + len(data["unmeasured"]) == len(asked)
    assert len(found) >= 0.9 * len(asked)
    assert {one.sweep for one in found} == {case.sweep for case in stage_cases(stage)}
    assert all(row["spread_frac"] >= 0 for row in rows)
    assert sum(data["by_sweep"].values()) == data["shapes"] == len(found)


def stage_cases(stage: Stage) -> list[Any]:
    return [case for item in stage.items(planned()) for case in item.spec]


def test_attention_that_a_device_lacks_has_its_reason(tmp_path: Path) -> None:
    _, data = ran(ATTENTION_SWEEP, tmp_path)
    found = shapes.measured_of(data, AttentionMeasurement)
    assert {one.direction for one in found} == {"forward", "backward"}
    assert all(one.backend == "flash" for one in found)  # what a CPU has
    assert data["unmeasured"]
    assert all("cudnn" in case or "efficient" in case for case in data["unmeasured"])
    assert all(data["unmeasured"].values())


def test_ceilings_are_a_copy_a_floor_and_a_product_of_each_type(tmp_path: Path) -> None:
    _, data = ran(CEILINGS, tmp_path)
    assert data["bandwidth_gbps"] > 0
    assert data["launch_floor_us"] > 0
    types = {one.dtype for one in shapes.measured_of(data, GemmMeasurement)}
    assert types >= {"bf16", "fp32", "tf32"}


def test_the_second_run_is_of_the_same_products_in_another_order(tmp_path: Path) -> None:
    _, data = ran(REPEATABILITY, tmp_path)
    first, second = (shapes.measured_of(data[name], GemmMeasurement) for name in ("first", "second"))
    assert [(one.m, one.n, one.k) for one in first] == [(one.m, one.n, one.k) for one in reversed(second)]
    assert data["agreement"]["shapes"] > 0
    sample = [case for item in REPEATABILITY.items(planned()) for case in item.spec]
    assert len(sample) == 400


def test_agreement_is_of_the_same_product_in_both_runs() -> None:
    def made(n: int, time_us: float) -> GemmMeasurement:
        return GemmMeasurement("x", 64, n, 64, 1, "bf16", "bf16", "TN", time_us, None, ())

    found = repeatability.agreement(
        [made(1, 100.0), made(2, 100.0), made(3, 100.0)],
        [made(3, 110.0), made(2, 98.0), made(1, 101.0), made(9, 1)],
    )
    assert found == {"shapes": 3, "median_frac": 0.02, "p90_frac": 0.1, "worst_frac": 0.1}
    assert repeatability.agreement([], [])["median_frac"] is None


# --- what is refused ----------------------------------------------------------------------------------


def products(*kernels: tuple[str, ...], dtype: str = "bf16") -> dict[str, Any]:
    rows = [
        GemmMeasurement("x", 64 + at, 64, 64, 1, dtype, dtype, "TN", 10.0, 0.01, names)
        for at, names in enumerate(kernels)
    ]
    return {"kind": "cuda", "table": table_of(rows), "unmeasured": {}}


@pytest.mark.parametrize(
    "data",
    [
        products((), ()),
        products(("ampere_sgemm_128x64_tn",), (NVJET,)),
        products(("cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4",), dtype="fp32"),
        products((NVJET,), dtype="tf32"),
        products((NVJET,)) | {"unmeasured": {"8 × 8 × 8": "no memory"}},
        {"kind": "cuda", "table": table_of([]), "unmeasured": {"x": "y"}},
    ],
)
def test_a_sweep_is_refused_with_the_reason(data: Mapping[str, Any], said: Listener) -> None:
    said(shapes.check_products(data))


@pytest.mark.parametrize(
    "data",
    [
        products((NVJET,)),
        products(*[(NVJET,)] * 150, ()),  # one name that the profiler lost
        products(("some_kernel_nobody_knows",)),
        # no tf32 kernel for the shape
        products(("cutlass_80_simt_sgemm_128x64_8x5_tn_align1",), dtype="tf32"),
        products(("nvjet_qqtst_128x256_128x6_2x1_v_bz_TNT",), dtype="fp8"),
        products((NVJET, "void cublasLt::splitKreduce_kernel<32, 16, int, float>(float)")),
    ],
)
def test_a_name_that_is_silent_refuses_nothing(data: Mapping[str, Any]) -> None:
    assert shapes.check_products(data) == []


def test_two_runs_that_differ_are_refused(said: Listener) -> None:
    run = products((NVJET,))
    data = {"kind": "cuda", "first": run, "second": run, "agreement": {"shapes": 200, "median_frac": 0.031}}
    assert repeatability.check_repeat(data | {"agreement": {"shapes": 200, "median_frac": 0.029}}) == []
    said(repeatability.check_repeat(data))


def test_a_control_that_differs_from_itself_is_refused(said: Listener) -> None:
    side = {"kernels": 30}
    control = {"name": "x itself", "change": {}, "speedup": 1.03, "before": side, "after": side}
    assert pairs.check({"kind": "cuda", "pairs": [control | {"speedup": 1.01}]}) == []
    assert pairs.check({"kind": "cuda", "pairs": [control | {"change": {"heads": [32, 20]}}]}) == []
    said(pairs.check({"kind": "cuda", "pairs": [control]}))


# --- layers -------------------------------------------------------------------------------------------


def test_a_pair_keeps_both_sides_and_the_products_of_each(tmp_path: Path) -> None:
    rows, data = ran(LAYER_PAIRS, tmp_path)
    savings = {item.spec.rule for item in SAVINGS.items(planned())}
    assert {row["rule"] for row in rows} | savings == {pair.rule for pair in layer_pairs()}
    for row in rows:
        for side in ("before", "after"):
            assert row[side]["low_ms"] <= row[side]["ms"] <= row[side]["high_ms"]
            assert row[side]["gemms"] and row[side]["parameters"] > 0
        per_token = row["before"]["us_per_token"] / row["after"]["us_per_token"]
        assert row["speedup"] == pytest.approx(per_token, abs=1e-5)
        assert row["speedup_low"] <= row["speedup_high"]
    assert data["models"]


def test_the_products_of_a_step_are_named_and_the_rest_is_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = CallKernels(names=(NVJET, "vectorized_elementwise_kernel", NVJET), time_us=1234.5)
    monkeypatch.setattr("tracelens.measure.pairs.record_kernels", lambda prepare, *, device: [seen])
    (item, *_) = LAYER_PAIRS.items(toy(tmp_path))
    row = LAYER_PAIRS.measure(toy(tmp_path), item)
    for side in ("before", "after"):
        assert row[side]["gemm_kernels"] == {NVJET: 2}
        assert (row[side]["kernels"], row[side]["profiler_ms"]) == (3, 1.2345)


def test_a_step_that_cannot_be_queued_is_timed_as_it_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import tracelens.measure

    def refuse(*_: object, **__: object) -> None:
        raise tracelens.measure.CannotMeasure("the CPU queues these calls too slowly")

    monkeypatch.setattr("tracelens.measure.pairs.time_calls", refuse)
    monkeypatch.setattr("tracelens.measure.pairs.running_ms", lambda step: float(step(0) is None) + 2.0)
    (item, *_) = LAYER_PAIRS.items(toy(tmp_path))
    row = LAYER_PAIRS.measure(toy(tmp_path), item)
    assert row["queued"] is False
    assert row["before"]["ms"] == row["after"]["ms"] == 3.0


def test_both_shapes_take_turns_and_each_goes_first_as_often(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tracelens.measure import Timing

    order: list[object] = []

    def timed(step: object, **_: object) -> Timing:
        order.append(step)
        return Timing(1000.0 * len(order), 0.01, 5, 1)

    monkeypatch.setattr("tracelens.measure.pairs.time_calls", timed)
    monkeypatch.setattr("tracelens.measure.pairs.record_kernels", lambda prepare, *, device: [CallKernels()])
    row = LAYER_PAIRS.measure(toy(tmp_path), LAYER_PAIRS.items(toy(tmp_path))[0])
    before, after = order[:2]
    assert order == [before, after, after, before]
    assert row["turns_ms"] == [[1.0, 2.0], [4.0, 3.0]]


@pytest.mark.parametrize("rule", ["heads", "vocabulary", "kv_heads", "tensor_parallel"])
def test_the_layer_does_the_products_that_are_kept_with_it(rule: str, tmp_path: Path) -> None:
    """Counted by PyTorch itself; attention by products counts its own."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from tracelens.measure.layers import layer_step

    pair = next(pair for pair in layer_pairs() if pair.rule == rule)
    for shape in (pair.before.toy(), pair.after.toy()):
        shape = replace(shape, attention="math", dtype="fp32")
        step = layer_step(shape, device="cpu")
        with FlopCounterMode(display=False) as counter:
            step(0)
        assert counter.get_total_flops() == sum(2 * g.m * g.n * g.k * g.batch for g in shape.gemms())
    assert torch.get_num_threads() > 0


def test_attention_by_products_is_attention(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tracelens.measure.layers import Layer

    for name in ("gpt3-2.7b", "llama-3-8b", "bert-large"):
        pair = next(pair for pair in layer_pairs() if pair.model == name and pair.rule != "dtype")
        shape = replace(replace(pair.before, vocab=0).toy(), dtype="fp32")
        torch.manual_seed(0)
        fused, plain = Layer(shape), Layer(replace(shape, attention="math"))
        plain.load_state_dict(fused.state_dict())
        x = torch.randn(2, shape.sequence, shape.hidden)
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-4, atol=1e-5)


def test_full_steps_train(tmp_path: Path) -> None:
    rows, _ = ran(FULL_STEPS, tmp_path)
    assert {row["name"] for row in rows} >= {"vocabulary", "heads", "swiglu", "hidden"}
    from tracelens.measure.layers import training_step

    for item in FULL_STEPS.items(toy(tmp_path))[:3]:
        step: Callable[[int], Any] = training_step(item.spec.after, device="cpu")
        losses = [float(step(index)) for index in range(8)]
        assert losses[-1] < losses[0], item.key


def test_what_is_planned_on_a_gpu_of_each_kind_has_readable_keys() -> None:
    keys: Sequence[str] = [item.key for item in LAYER_PAIRS.items(planned())]
    assert all(re.fullmatch(r"[\w.=> -]+", key) for key in keys), keys
