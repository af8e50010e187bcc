"""TL117 on whole traces: against the trace of the same model with fused attention, and by hand on a real one.

The generator's times come from a model of its own (``tests/synthetic/gpu.py``), not from the predictor.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kept import analyzed
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tests.trace.tools import read
from tests.zoo import ZooOptions, program_of, trace_of
from tracelens.analysis import analyze, analyze_trace
from tracelens.results import Check, Finding, Report

SHARED = Path(__file__).parents[3] / "shared" / "traces"
SPEC = ModelSpec(hidden=768, heads=12, vocab=50304, layers=4, sequence=1024, micro_batch=4)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return _report_of(Options(steps=2, attention="math"), tmp_path_factory.mktemp("math"))


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return _report_of(Options(steps=2, attention="flash"), tmp_path_factory.mktemp("flash"))


def _report_of(options: Options, folder: Path) -> Report:
    path = folder / "trace.json.gz"
    path.write_bytes(gzip.compress(build(SPEC, options).text().encode(), 1))
    return analyze(path, shape_search=False).report


def check_of(report: Report) -> Check:
    return next(check for check in report.checks if check.rule == "TL117")


def finding_of(report: Report) -> Finding:
    return next(finding for finding in report.findings if finding.rule == "TL117")


def attention_ms(report: Report, *, core: bool = True) -> float:
    """Time of attention beside its projections; ``core`` False: without fused kernels."""
    others = ("attention.qkv", "attention.output", *(() if core else ("attention.core",)))
    return sum(
        row.time_ms_per_step
        for row in report.components
        if row.component.startswith("attention.") and row.component not in others
    )


def test_what_the_finding_counts_is_gone_from_the_trace_with_fused_attention(
    before: Report, after: Report, said: Listener
) -> None:
    finding = finding_of(before)
    gone = attention_ms(before) - attention_ms(after, core=False)
    counted = dict(finding.evidence["chain_ms"])
    perhaps = counted.pop("perhaps")
    assert sum(counted.values()) - 1e-9 <= gone <= (sum(counted.values()) + perhaps) * 1.01
    assert check_of(after).state == "passed"
    said(check_of(after).why)


def test_the_middle_is_no_more_than_the_fused_trace_saves(before: Report, after: Report) -> None:
    saving = finding_of(before).saving_ms
    took = attention_ms(before) - attention_ms(after)
    assert saving.low is not None and saving.mid is not None
    assert 0 < saving.low < saving.mid <= took


def test_what_a_finding_names_is_what_the_tables_hold(before: Report) -> None:
    finding = finding_of(before)
    parts = finding.evidence["chain_ms"]
    rows = {row.id: row for row in before.gemms}
    assert sum(rows[name].time_ms_per_step for name in finding.gemms) == pytest.approx(parts["products"])
    softmax = sum(row.time_ms_per_step for row in before.components if row.component == "attention.softmax")
    assert parts["softmax"] == pytest.approx(softmax)


@pytest.mark.parametrize(
    ("family", "checkpoint", "predicted"),
    [("gpt2", "none", True), ("llama", "nonreentrant", True), ("bert", "none", True), ("t5", "none", False)],
)
def test_whole_steps_of_other_families(family: str, checkpoint: str, predicted: bool, tmp_path: Path) -> None:
    options = ZooOptions(steps=1, attention="math")
    options = replace(options, checkpoint="nonreentrant") if checkpoint == "nonreentrant" else options
    text = trace_of(family, options, program_of(family, options)).text()
    finding = finding_of(analyze_trace(read(tmp_path, text), shape_search=False).report)
    # T5's bias by distance is trained: its gradient is as large as the scores, and not predicted.
    assert (finding.saving_ms.mid is not None) == predicted
    assert finding.effects is not None


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not here")
def test_a_real_encoder_layer_kernel_by_kernel() -> None:
    path = SHARED / "d4_h100_encoder_eager_modules_tf32_extid_quirk.json.gz"
    if not path.is_file():
        pytest.skip("this trace is not here")
    names = ("transform_bias_rescale", "tensorop_s1688gemm", "softmax_warp_forward", "direct_copy_kernel",
             "reduce_kernel", "MulFunctor")  # fmt: skip
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    times = [
        event["dur"]
        for event in events
        if event.get("cat") == "kernel" and any(name in event["name"] for name in names)
    ]
    report = analyzed(path).report
    finding = finding_of(report)
    assert len(times) == 3 * 7
    assert sum(finding.evidence["chain_ms"].values()) == pytest.approx(sum(times) / 3 / 1e3)
    assert "27.2%" in finding.saw and " 7 " in finding.saw
    assert finding.saving_ms.low == 0.0, "the step waits for the host"
    assert any("need_weights=False" in line for line in finding.fix)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real traces are not here")
@pytest.mark.parametrize(
    ("name", "state"),
    [("d2_rtx3060_tinylm_compile_fp32", "passed"), ("d3_h100_bert_small_modules_infer", "passed"),
     ("d5_a100_vit_cudagraph_bf16", "passed"), ("d8_mi300_bert_small_modules_infer", "passed"),
     ("d6_h100_vgg13_train_modules_fwdbwd", "not_applicable")],
)  # fmt: skip
def test_real_traces_with_fused_attention_or_none(name: str, state: str) -> None:
    path = SHARED / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip("this trace is not here")
    assert check_of(analyzed(path).report).state == state
