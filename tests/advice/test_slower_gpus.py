"""A GPU that runs slower throughout (clocks, a power cap): savings grow with measured times, and no more."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice import test_advice_attention_backend as backend
from tests.advice import test_advice_misaligned_views as views
from tests.advice import test_advice_tensor_cores as cores
from tests.advice import test_advice_unfused_attention as unfused
from tests.advice import test_times_after_changes_by_hand as changes
from tests.advice.advice_facts import A100, H100, step_of
from tests.advice.advice_rows import cutlass, gemm, model
from tests.kept import analyzed
from tracelens.analysis import analyze
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import Gpu
from tracelens.results import Finding, GemmRow, Report
from tracelens.rules.engine.facts import Outcome
from tracelens.step.predicted import Anchors
from tracelens.step.predicted_attention import scaled_attention

SAMPLES = Path(__file__).parents[2] / "sample_traces"
TF32 = SAMPLES / "h100-sxm_gpt2_vocab50304_head128_tf32_eager.json.gz"
SLOWER = 1.3


def slowed(path: Path, folder: Path) -> Path:
    """The trace with all that happens in it ``SLOWER`` times as late and as long."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    for event in document["traceEvents"]:
        event |= {key: SLOWER * event[key] for key in ("ts", "dur") if key in event}
    found = folder / "slowed.json.gz"
    found.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    return found


def gemms_ms(report: Report) -> float:
    return sum(row.time_ms_per_step for row in report.gemms if row.kind == "gemm")


def linears(slower: float, gpu: Gpu = H100, hidden: int = 4096) -> list[GemmRow]:
    """Three aligned layers that take ``slower`` times their prediction."""
    us = slower * (predict_gemm(4096, hidden, hidden, gpu=gpu).time_us.mid or 0.0)
    many = range(70, 73)
    return [gemm(at, 4096, hidden, hidden, time_us=us, component="attention.output") for at in many]


def longer(rows: list[GemmRow]) -> list[GemmRow]:
    return [replace(row, time_ms_per_step=SLOWER * row.time_ms_per_step) for row in rows]


def the(outcome: Outcome) -> Finding:
    (finding,) = outcome.findings
    return finding


def test_a_slowed_trace_saves_what_its_measured_pair_would(tmp_path: Path) -> None:
    """The pair of one H100 in TF32 and in bf16, with the casts of autocast, all of it 1.3 times as slow."""
    tf32, bf16 = (analyzed(path).report for path in (TF32, Path(str(TF32).replace("_tf32_", "_"))))
    report = analyze(slowed(TF32, tmp_path), shape_search=False).report
    (finding,) = [one for one in report.findings if one.rule == "TL111"]
    gone, casts = (
        gemms_ms(tf32) - gemms_ms(bf16),
        sum(row.time_ms_per_step for row in bf16.other_kernels if "copy" in row.kernel),
    )
    low, mid, high = finding.saving_ms.low, finding.saving_ms.mid, finding.saving_ms.high
    assert low is not None and mid is not None and high is not None
    assert gemms_ms(report) == pytest.approx(SLOWER * gemms_ms(tf32), rel=0.02)
    assert low < SLOWER * (gone - casts) and SLOWER * gone < high
    assert mid < SLOWER * gone * 1.05


def test_another_type_is_as_slow_as_the_present_one() -> None:
    rows = [cores.fp32(1), cores.fp32(2, n=8192, component="mlp.down", time_us=5500.0)]
    now, then = (the(cores.check(*some)).saving_ms for some in (rows, longer(rows)))
    for end in ("low", "mid", "high"):
        assert getattr(then, end) == pytest.approx(SLOWER * getattr(now, end))


def test_a_kernel_faster_than_predicted_makes_no_other_type_faster() -> None:
    us = cores.predicted_us(4096, "fp32")
    saved = [the(cores.check(cores.fp32(1, time_us=frac * us))).saving_ms.mid or 0.0 for frac in (1.0, 0.9)]
    assert saved[0] - saved[1] == pytest.approx(0.1 * us / 1e3)


def test_fp64_on_cuda_cores_is_not_what_fp64_is_predicted_on() -> None:
    """Its own pace, 1.5, would be that of other cores; without a GEMM to compare with it is as predicted."""
    row = cores.fp32(1, dtype="fp64", kernel="volta_dgemm_128x64_tn", time_us=4000.0, math_dtype="fp64")
    single = (4000 - cores.predicted_us(4096, "fp32")) / 1e3
    assert the(cores.check(row)).saving_ms.mid == pytest.approx(single)
    assert cores.check(replace(row, tensor_core="used")).state == "passed"


def test_a_fused_kernel_is_as_slow_as_the_traces_linear_layers() -> None:
    now, then = (
        the(
            unfused.check(unfused.softmax(time_us=300.0 * by), rows=[*rows, *linears(by, hidden=768)])
        ).saving_ms
        for by, rows in ((1.0, unfused.core()), (SLOWER, longer(unfused.core())))
    )
    for end in ("low", "mid", "high"):
        assert getattr(then, end) == pytest.approx(SLOWER * getattr(now, end))


def test_another_attention_kernel_is_as_slow_as_the_traces_linear_layers() -> None:
    dims = model(hidden=1024, heads=16, head_dim=64, sequence=2048, micro_batch=8)
    now, then = (
        the(
            backend.RULE.check(step_of([*rows, *linears(by, A100, 1024)], gpu=A100, dims=dims, step_ms=400.0))
        )
        for by, rows in ((1.0, backend.rows(None)), (SLOWER, longer(backend.rows(None))))
    )
    for end in ("low", "mid", "high"):
        assert getattr(then.saving_ms, end) == pytest.approx(SLOWER * getattr(now.saving_ms, end))


def test_aligned_operands_are_as_slow_as_the_layers_of_another_type() -> None:
    half = views.strided(1, lda=4618, dtype="fp16", kernel=cutlass(2, types="f16"))
    aligned = predict_gemm(4096, 4096, 4096, gpu=H100, dtype="fp16").time_us.mid or 0.0
    finding = the(views.check(half, *linears(SLOWER)))
    assert finding.saving_ms.mid == pytest.approx((700.0 - SLOWER * aligned) / 1e3)


def test_attention_in_16_bits_is_as_slow_as_the_traces_linear_layers() -> None:
    one = changes.call(dtype="fp32", kernel=backend.KERNEL.format("F").replace("bf16", "f32"))
    now = replace(changes.NOW, dtype="fp32")
    plain, slow = (
        scaled_attention(one, now, replace(now, dtype="bf16"), gpu=H100, measured=None, anchors=anchors)
        for anchors in (Anchors(), Anchors(pace=(SLOWER, 0.1)))
    )
    assert not isinstance(plain, str) and not isinstance(slow, str)
    assert slow.mid == pytest.approx(SLOWER * plain.mid)
