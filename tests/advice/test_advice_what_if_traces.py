"""Simulated changes on whole traces: nothing breaks, nothing moves without a change, and the pair agrees."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from tests.kept import analyzed
from tests.said import Listener
from tracelens.analysis import analyze
from tracelens.config.model_config import NAMES
from tracelens.errors import InputError, UsageError
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements, write_measurements
from tracelens.results import Report
from tracelens.step.saved_step import step_of
from tracelens.step.whatif import scenario, what_if
from tracelens.step.words import simulation as words

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SHARED = Path(__file__).parents[3] / "shared" / "traces"
#: The large one holds no transformer and takes long to read.
TRACES = sorted(path for path in SHARED.glob("*.json.gz") if "54MB" not in path.name)


@pytest.mark.parametrize(
    "path", TRACES or [SAMPLES / "generated_gpt2_vocab50257.json.gz"], ids=lambda p: p.name[:12]
)
def test_no_change_breaks_on_a_real_trace(path: Path) -> None:
    try:
        report = analyzed(path).report
    except InputError:
        pytest.skip("not a trace that can be analyzed")
    step = step_of(report)
    assert step_of(report, tied=True).now == replace(step.now, tied=True)  # as the user says
    for name in NAMES:
        now = step.now.get(name)
        for value in (now or 64, 2 * (now or 64), (now or 64) + 64, (now or 64) + 7, 1):
            try:
                one = what_if(step, {name: value})
            except UsageError as error:
                assert "\n" not in str(error)
                continue
            saving = one.saving_ms
            if value == now:
                assert (one.rows, one.rest, saving.low, saving.mid, saving.high) == ([], [], 0.0, 0.0, 0.0)
            if saving.mid is None:
                assert one.notes  # the reason
                continue
            assert saving.low is not None and saving.high is not None
            assert math.isfinite(saving.mid) and saving.low <= saving.mid <= saving.high <= (
                step.step_ms or 0.0
            )


@pytest.mark.skipif(
    not (SHARED / "job_h100_nanogpt_8ranks").is_dir(), reason="the public traces are not there"
)
@pytest.mark.parametrize(
    ("first", "tokens", "furthest"), [(True, 16384, 0.15), (False, 32768, 0.17)], ids=["halved", "doubled"]
)
def test_two_real_traces_of_one_model_predict_each_others_products(
    first: bool, tokens: int, furthest: float
) -> None:
    """An H100 in October 2025 with 32768 tokens and another in December with 16384: bf16 and fp8 products.

    Attention is left out: its windows changed between the two.
    """
    pair = [
        analyzed(path).report
        for path in (
            SHARED / "d1_h100_nanogpt_compile_8gpu_rank0_2025-10.json.gz",
            SHARED / "job_h100_nanogpt_8ranks" / "rank0_trace.json.gz",
        )
    ]
    source, other = pair if first else pair[::-1]
    measured = {(row.component, row.role, row.m, row.n, row.k): row for row in other.gemms}
    calls = {row.id: row.calls_per_step for row in source.gemms}
    errors, inside = [], 0
    for row in what_if(step_of(source), {"tokens": tokens}).rows:
        if "×" not in row.shape_then:
            continue
        m, n, k = (int(size) for size in row.shape_then.split("×"))
        found = measured.get((row.component, row.role, m, n, k))
        if found is None:
            continue
        call_ms = found.time_ms_per_step / found.calls_per_step
        low, mid, high = (
            (end or 0.0) / calls[row.gemm] for end in (row.then_ms.low, row.then_ms.mid, row.then_ms.high)
        )
        errors.append(abs(mid / call_ms - 1))
        inside += low <= call_ms <= high
    assert len(errors) >= 12
    # all but one: the gradient of a 768 x 768 weight, whose K is split
    assert median(errors) < 0.04 and sorted(errors)[-2] < 0.05 and max(errors) < furthest
    assert inside >= 0.9 * len(errors)


def recorded(name: str) -> Report:
    return analyzed(SAMPLES / f"h100-sxm_{name}.json.gz").report


#: Two recordings of one board that differ in these sizes, and how each becomes the other.
PAIRS = [
    ("gpt2_vocab50257_eager", "gpt2_vocab50304_eager", "vocab=50304", "vocab=50257"),
    ("gpt2_vocab50304_head64_eager", "gpt2_vocab50304_head128_eager", "heads=20", "heads=40"),
    ("gpt2_vocab50257_head80_eager", "gpt2_vocab50304_head64_eager", "vocab=50304,heads=40",
     "vocab=50257,heads=32"),
    *(
        pair
        for how in ("eager", "checkpoint", "compile")
        for pair in (
            (f"gpt2_vocab50257_head80_{how}", f"gpt2_vocab50304_head128_{how}", "vocab=50304,heads=20",
             "vocab=50257,heads=32"),
            (f"llama_gqa_ffn10922_{how}", f"llama_gqa_ffn11008_{how}", "ffn=11008", "ffn=10922"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "there", "back"), PAIRS, ids=lambda text: text)
def test_what_a_board_saved_lies_in_the_range_both_ways(
    before: str, after: str, there: str, back: str
) -> None:
    """Steps without the profiler, 17 on each side: the few within it differ by 2 % from one another."""
    reports = recorded(before), recorded(after)
    for (one, other), change in ((reports, there), (reports[::-1], back)):
        without = one.summary.unprofiled.median_ms, other.summary.unprofiled.median_ms
        assert without[0] is not None and without[1] is not None
        saving = scenario(step_of(one), change).saving_ms.known
        assert saving is not None
        assert saving.low <= without[0] - without[1] <= saving.high
        assert saving.high - saving.low < 0.45 * (one.summary.step_ms.median - min(saving.mid, 0))


def test_a_compiled_step_pads_what_leaves_the_grid() -> None:
    """As fast as on the grid but for the copies; a step that is not compiled gets the slow kernel."""
    report = recorded("llama_gqa_ffn11008_compile")
    step = step_of(report)
    assert step.anchors.compiled and not step_of(recorded("llama_gqa_ffn11008_eager")).anchors.compiled
    plain = replace(step, anchors=replace(step.anchors, compiled=False))
    padded, slow = (what_if(one, {"ffn": 10922}) for one in (step, plain))
    for a, b in zip(padded.rows, slow.rows, strict=True):
        assert a.then_ms.mid < 1.05 * a.time_ms and b.then_ms.mid > 1.5 * b.time_ms
    copies = [one for one in padded.rest if one.scales_with == words.PADDING]
    assert not [one for one in slow.rest if one.scales_with == words.PADDING]
    assert {one.time_ms for one in copies} == {0.0}
    # weights forward and for the inputs' gradients of up, gate and down; besides, at most, what down reads
    # and the gradients that up and gate read
    layers, per_ms = 4, 0.9 * 3350e6
    weights = layers * 6 * 2 * 2 * 4096 * 10922 / per_ms
    read = layers * 3 * 2 * 2 * (step.now.token_count or 0) * 10922 / per_ms
    assert sum(one.then_ms.low for one in copies) == 0.0
    assert sum(one.then_ms.mid for one in copies) == pytest.approx(weights)
    assert sum(one.then_ms.high for one in copies) == pytest.approx(1.2 * weights + read)


def test_attention_in_fp32_tells_nothing_of_the_kernels_of_16_bits() -> None:
    """The board's memory-efficient kernel in fp32 took 12 times as long as cuDNN's in bf16."""
    slow, fast = (recorded(f"gpt2_vocab50304_head128_{name}eager") for name in ("tf32_", ""))
    one = scenario(step_of(slow), "dtype=bf16")
    rows = {row.role: row for row in one.rows if row.component == "attention.core"}
    assert len(rows) == 2
    for row in fast.gemms:
        if row.component == "attention.core":
            changed = rows[row.phase]
            assert changed.then_ms.low <= row.time_ms_per_step <= changed.then_ms.high < 0.3 * changed.time_ms
    real = slow.summary.step_ms.median - fast.summary.step_ms.median
    saving = one.saving_ms.known
    assert saving is not None and saving.low <= real <= saving.high


def test_the_sample_pair_agrees() -> None:
    """Both samples are generated by one simulator, so this says that the parts fit, not that a GPU agrees."""
    before, after = (
        analyze(SAMPLES / f"generated_gpt2_vocab{size}.json.gz", what_ifs=["vocab=50304"]).report
        for size in (50257, 50304)
    )
    (one,) = before.what_if
    real = before.summary.step_ms.median - after.summary.step_ms.median
    assert one.saving_ms.low is not None and one.saving_ms.mid is not None and one.saving_ms.high is not None
    assert one.saving_ms.low <= real <= one.saving_ms.high
    assert one.saving_ms.mid == pytest.approx(real, rel=0.1)
    assert after.what_if[0].saving_ms.mid == 0.0 and after.what_if[0].change == {}


def test_a_scenario_that_makes_no_sense_is_a_usage_error_with_the_present_values(said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        analyze(SAMPLES / "generated_gpt2_vocab50257.json.gz", what_ifs=["hiden=1024"])
    said(error.value)


def test_measurements_of_the_gpu_are_used_where_there_are_any_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    """Made-up measurements: what matters is that they are found, used and named."""
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path))
    sample = SAMPLES / "generated_gpt2_vocab50257.json.gz"
    gpu = find_gpu(None, override="h100-sxm")
    sizes = (768, 1024, 1280, 2048, 3072, 4096, 5120, 8192)
    rows = tuple(
        GemmMeasurement(
            "made up", m, n, k, 1, "bf16", "bf16", layout, 1.1 * (found.time_us.mid or 1.0), None, ()
        )
        for layout in ("TN", "NN", "NT")
        for m in (2048, 8192)
        for n in sizes
        for k in sizes
        for found in (predict_gemm(m, n, k, gpu=gpu, layout=layout),)
    )
    device = {"sms": gpu.sms}
    measured = Measurements(
        "h100-sxm", device, {}, {}, "2031-02-03", "", "made up", rows, bandwidth_gbps=3000.0
    )
    write_measurements(measured, tmp_path / "h100-sxm.json.gz")
    report = analyze(sample, what_ifs=["ffn=4096", "vocab=50304"]).report
    assert {row.then_ms.basis for row in report.what_if[0].rows} == {"calibrated"}
    assert report.what_if[0].saving_ms.basis == "model"  # the activation's bytes are a part of it
    assert report.what_if[1].saving_ms.basis == report.findings[0].basis == "calibrated"
    said(report.notes)
    (tmp_path / "h100-sxm.json.gz").write_bytes(b"damaged")
    report = analyze(sample, what_ifs=["ffn=4096"]).report
    assert {row.then_ms.basis for row in report.what_if[0].rows} == {"model"}
    said(report.notes)


@pytest.mark.parametrize(
    ("name", "size", "value"),
    [
        ("llama_gqa_ffn10922", "ffn", 10928),
        ("gpt2_vocab50257_head80", "vocab", 50264),
        ("bert_vocab30522", "vocab", 30528),
    ],
)
def test_copies_that_pad_fall_away_with_a_size_on_the_grid(name: str, size: str, value: int) -> None:
    report = analyzed(SAMPLES / f"h100-sxm_{name}_compile.json.gz").report
    [measured] = [one.saving_ms.mid for one in report.findings if one.rule == "TL116"]
    assert measured is not None
    found = what_if(step_of(report), {size: value})
    copies = [one for one in found.rest if one.scales_with == words.PADDING]
    assert sum(one.time_ms - one.then_ms.mid for one in copies) == pytest.approx(measured, rel=0.1)
    assert sum(one.time_ms - one.then_ms.low for one in copies) > measured
    misaligned = what_if(step_of(report), {size: value + 2})
    assert not [one for one in misaligned.rest if one.scales_with == words.PADDING]
