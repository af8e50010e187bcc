"""TL111: products in a precision that keeps them off the tensor cores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import H100, RTX3060, V100, step_of
from tests.advice.advice_rows import NVJET, SIMT, UNKNOWN_GPU, gemm
from tests.kept import analyzed
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.tensor_cores import TensorCores

RULE = TensorCores()
SAMPLES = Path(__file__).parents[2] / "sample_traces"
SGEMM = "ampere_sgemm_128x64_tn"
TF32 = (
    "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off"
    "_kernel__5x_cublas"
)


def fp32(number: int, m: int = 4096, n: int = 4096, k: int = 4096, **more: Any) -> GemmRow:
    """On CUDA cores: 137 GFLOP at about 50 TFLOP/s."""
    given: dict[str, Any] = {
        "dtype": "fp32",
        "kernel": SGEMM,
        "tensor_core": "eligible_unused",
        "time_us": 2750.0,
    }
    return gemm(number, m, n, k, **(given | more))


def predicted_us(n: int, dtype: str) -> float:
    return predict_gemm(4096, n, 4096, gpu=H100, dtype=dtype).time_us.mid or 0.0


def check(*rows: GemmRow, **more: Any) -> Outcome:
    return RULE.check(step_of(rows, **({"step_ms": 20.0} | more)))


def test_a_whole_step_in_fp32_is_told_to_allow_tf32(said: Listener) -> None:
    outcome = check(fp32(1), fp32(2, n=8192, component="mlp.down", time_us=5500.0))
    (finding,) = outcome.findings
    assert finding.change == {"precision": ["fp32", "tf32"]} and finding.effort == "config"
    assert finding.fix[1] == '+ torch.set_float32_matmul_precision("high")'
    said(finding.title)
    expected = sum(
        time / 1e3 * (1 - predicted_us(n, "tf32") / predicted_us(n, "fp32"))
        for n, time in ((4096, 2750.0), (8192, 5500.0))
    )
    assert finding.saving_ms.mid == pytest.approx(expected, rel=1e-6)
    assert finding.saving_ms.low is not None and 0 < finding.saving_ms.low < expected
    said(finding.caveats[0], finding.caveats)


def test_where_tf32_is_no_faster_sixteen_bits_are_proposed(said: Listener) -> None:
    """GeForce: 12.7 TFLOP/s in fp32 and in TF32, 25.5 in bf16."""
    outcome = check(fp32(1, time_us=19000.0), gpu=RTX3060, step_ms=40.0)
    (finding,) = outcome.findings
    assert finding.change == {"precision": ["fp32", "bf16"]} and finding.effort == "code"
    said(finding.caveats)
    fast = check(fp32(1, time_us=12000.0), gpu=RTX3060, step_ms=40.0).findings[0]
    said(fast.caveats, finding.caveats[0])


def test_before_ampere_fp16_is_what_tensor_cores_take() -> None:
    outcome = check(fp32(1, tensor_core="ineligible", time_us=12000.0), gpu=V100, step_ms=40.0)
    (finding,) = outcome.findings
    assert finding.change == {"precision": ["fp32", "fp16"]}
    row = fp32(2, role="wgrad", phase="backward", tensor_core="ineligible", time_us=12000.0)
    outcome = check(fp32(1, tensor_core="ineligible", time_us=12000.0), row, gpu=V100, step_ms=60.0)
    assert "GradScaler" in outcome.findings[0].caveats[0]


def test_logits_in_fp32_in_a_step_of_16_bits(said: Listener) -> None:
    outcome = check(gemm(1, 4096, 4096, 4096, calls=10),
                    fp32(2, n=50304, component="logits", time_us=33000.0),
                    step_ms=60.0)  # fmt: skip
    (finding,) = outcome.findings
    assert finding.gemms == ["g2"] and finding.confidence == "high"
    said(finding.title, finding.caveats)


def test_tf32_in_a_step_of_16_bits_runs_at_half_the_rate(said: Listener) -> None:
    row = fp32(
        2, n=50304, component="logits", kernel=TF32, math_dtype="tf32", tensor_core="used", time_us=4200.0
    )
    (finding,) = check(gemm(1, 4096, 4096, 4096, calls=10), row, step_ms=60.0).findings
    assert (finding.saving_ms.mid or 0.0) < 4.2 / 2
    said(finding.saw)


def test_a_step_of_tf32_is_told_of_sixteen_bits(said: Listener) -> None:
    row = fp32(1, kernel=TF32, math_dtype="tf32", tensor_core="used", time_us=400.0, calls=10)
    (finding,) = check(row).findings
    assert finding.change == {"precision": ["tf32", "bf16"]} and finding.counts == "gemms"
    assert 0 < (finding.saving_ms.mid or 0.0) < 4.0 / 2
    said(finding.title, finding.saw, finding.why, finding.caveats)
    convolution = replace(row, op="aten::cudnn_convolution")
    of_optimizer = replace(row, component="optimizer")
    assert check(convolution).state == check(of_optimizer).state == "passed"


def test_the_same_model_measured_in_bf16_saves_what_was_predicted_of_tf32() -> None:
    """68.2 ms of GEMMs per step became 28.2, and the casts of autocast took up to 5.9."""
    tf32, bf16 = (
        analyzed(SAMPLES / f"h100-sxm_gpt2_vocab50304_head128_{name}.json.gz").report
        for name in ("tf32_eager", "eager")
    )
    (finding,) = [one for one in tf32.findings if one.rule == "TL111"]
    before, after = (
        sum(row.time_ms_per_step for row in one.gemms if row.kind == "gemm") for one in (tf32, bf16)
    )
    casts = sum(row.time_ms_per_step for row in bf16.other_kernels if "copy" in row.kernel)
    low, high = finding.saving_ms.low, finding.saving_ms.high
    assert low is not None and high is not None
    assert low < before - after - casts and before - after < high


def test_routers_are_left_in_fp32() -> None:
    outcome = check(gemm(1, 4096, 4096, 4096, calls=10), fp32(2, n=64, component="moe.router", time_us=300.0))
    assert outcome.state == "passed"


def test_fp64_is_its_own_finding() -> None:
    row = fp32(1, dtype="fp64", kernel="volta_dgemm_128x64_tn", time_us=4000.0, math_dtype="fp64")
    (finding,) = check(row).findings
    assert finding.change == {"precision": ["fp64", "fp32"]}
    assert "NumPy" in finding.why


def test_an_optimizer_in_fp32_is_said_to_need_care() -> None:
    (finding,) = check(fp32(1, component="optimizer", role=None)).findings
    assert any("optimizer's own GEMMs" in text for text in finding.caveats)


def test_without_a_prediction_it_is_a_bound_by_the_new_types_peak() -> None:
    (finding,) = check(fp32(1), predict=False).findings
    floor_ms = 2 * 4096**3 / 494.5e12 * 1e3
    assert finding.saving_ms.mid is None
    assert finding.saving_ms.high == pytest.approx(2.75 - floor_ms, rel=1e-3)


def test_a_row_that_cannot_be_predicted_does_not_hide_the_flag(said: Listener) -> None:
    """A row on 8-byte boundaries, whose TF32 time is not known, counts as unchanged while it is small."""
    odd = fp32(2, m=5600, n=14, k=80, time_us=200.0)
    alone, both = check(fp32(1)).findings[0], check(fp32(1), odd).findings[0]
    assert both.change == {"precision": ["fp32", "tf32"]}
    assert both.saving_ms.mid == pytest.approx(alone.saving_ms.mid)
    assert check(fp32(1), replace(odd, time_ms_per_step=9.0)).findings[0].change == {
        "precision": ["fp32", "bf16"]
    }
    said(both.how)


def test_where_another_matmul_runs_as_tf32_the_flag_is_on(said: Listener) -> None:
    """cuBLAS chose CUDA cores for some shapes of a step whose others run as TF32: no flag changes that."""
    odd = fp32(1)
    tf32 = fp32(2, kernel=TF32, math_dtype="tf32", tensor_core="used", time_us=300.0)
    says_why(check(odd, tf32), "passed", said)
    convolution = replace(tf32, op="aten::cudnn_convolution")  # has a flag of its own
    assert check(odd, convolution).findings[0].change == {"precision": ["fp32", "tf32"]}


@pytest.mark.parametrize(("gpu", "target"), [(H100, "tf32"), (RTX3060, "bf16"), (V100, "fp16")])
def test_without_shapes_the_names_tell_fp32_on_cuda_cores(gpu: Any, target: str, said: Listener) -> None:
    """How much they compute is not known, so all of their time but what a kernel takes at least is the bound:
    with the shapes of a real trace (RTX 3060) 63 % of it is predicted to go, more than by the peaks' ratio.
    """
    row = gemm(1, None, None, None, kernel=SGEMM, dtype=None, math_dtype="fp32", time_us=2000.0)
    (finding,) = check(row, gpu=gpu).findings
    assert finding.change == {"precision": ["fp32", target]}
    assert finding.saving_ms.mid is None and 1.98 < (finding.saving_ms.high or 0) <= 2.0
    said(finding.title, finding.saw)
    tensor = gemm(2, None, None, None, kernel=NVJET, dtype=None, math_dtype=None, time_us=9000.0)
    assert check(row, tensor, gpu=gpu).findings == ()  # most of the time is not in such kernels


def test_beside_shapes_that_are_known_the_others_are_named(said: Listener) -> None:
    named = gemm(2, None, None, None, kernel=SGEMM, dtype=None, math_dtype="fp32", time_us=1000.0)
    (finding,) = check(fp32(1), named).findings
    assert finding.gemms == ["g1"]
    said(finding.caveats[1])


def test_products_on_tensor_cores_pass_with_the_count(said: Listener) -> None:
    says_why(
        check(gemm(1, 4096, 4096, 4096), gemm(2, None, None, None, kernel=NVJET, time_us=5.0)), "passed", said
    )


def test_a_product_with_a_vector_has_nothing_for_tensor_cores() -> None:
    row = fp32(1, m=1, tensor_core="ineligible", kernel="void gemv2T_kernel_val<int>()", time_us=40.0)
    assert check(row).state == "passed"


def test_what_a_small_product_would_save_is_said_and_is_no_finding() -> None:
    outcome = check(gemm(1, 4096, 4096, 4096, calls=10), fp32(2, 64, 64, 64, component="other", time_us=9.0),
                    step_ms=100.0)  # fmt: skip
    assert outcome.state == "passed" and outcome.findings == ()


@pytest.mark.parametrize(
    ("rows", "share"),
    [((961, 1024), 0.826), ((1, 64), 0.993)],  # 1 - 0.35 * 12.7 / 25.5, and all but 2 us of 300
    ids=["fills the GPU", "a tile for 16 of 28 SMs"],
)
def test_without_shapes_the_time_bounds_the_work(rows: tuple[int, int], share: float) -> None:
    known = fp32(1, 1024, 2048, 512, time_us=300.0)
    bare = replace(
        known, m=None, n=None, k=None, dtype=None, flops=None, bytes=None, m_range=rows, n_range=(1921, 2048)
    )
    saving, predicted = (check(row, gpu=RTX3060, step_ms=1.0).findings[0].saving_ms for row in (bare, known))
    assert saving.mid is None and saving.high == pytest.approx(0.3 * share, abs=0.001)
    assert (saving.high or 0.0) > (predicted.high or 1.0)  # what shapes would have told


def test_what_cannot_be_judged() -> None:
    bare = gemm(1, None, None, None, kernel="volta_sgemm_128x32_nt", dtype=None)
    shapeless = check(bare)
    assert shapeless.state == "could_not_run" and "record_shapes=True" in shapeless.why
    unknown = step_of([fp32(1, kernel="unnamed", tensor_core=None)], predict=False)
    nameless = RULE.check(replace(unknown, gpu=UNKNOWN_GPU))
    assert nameless.state == "could_not_run" and "--gpu" in nameless.why
    assert check().state == "not_applicable"
    assert check(fp32(1), step_ms=None).state == "could_not_run"
    assert check(fp32(1, kernel=SIMT)).state == "found"


def test_an_optimizer_in_fp32_beside_16_bits_is_told_of_the_flag_alone() -> None:
    rows = [gemm(1, 4096, 4096, 4096, calls=10), fp32(2, component="optimizer", role=None)]
    (finding,) = check(*rows, step_ms=40.0).findings
    assert finding.change == {"precision": ["fp32", "tf32"]}
    tf32 = fp32(2, component="optimizer", kernel=TF32, math_dtype="tf32", tensor_core="used", time_us=800.0)
    assert check(rows[0], tf32, step_ms=40.0).state == "passed"


def test_without_a_gpu_fp32_on_cuda_cores_has_not_passed() -> None:
    """SAM on a board that is not in the table: 37 of 38 rows in sgemm, half of the GPU's time."""
    used = gemm(9, 64, 64, 64, kernel=NVJET, tensor_core="used", time_us=10.0)
    facts = replace(step_of([fp32(1), fp32(2), used], predict=False), gpu=UNKNOWN_GPU)
    assert RULE.check(facts).state == "could_not_run"
    assert RULE.check(replace(facts, gemms=[used])).state == "passed"
