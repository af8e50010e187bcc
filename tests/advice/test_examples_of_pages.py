"""The worked examples of docs/rules: their figures are what the traces that they are of give today."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kept import analyzed
from tests.trace.tools import need_shared
from tracelens.gemm.predict.attention import predict_attention
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.hardware import find_gpu
from tracelens.hardware.collectives import exchange_us
from tracelens.numbers import ms, pct, sig
from tracelens.results import Finding, Report
from tracelens.rules.engine.pages import page
from tracelens.step.saved_step import step_of as saved_step
from tracelens.step.whatif import scenario

SAMPLES = Path(__file__).parents[2] / "sample_traces"


def sample(name: str) -> Report:
    return analyzed(SAMPLES / f"h100-sxm_{name}.json.gz").report


def shared(name: str) -> Report:
    return analyzed(need_shared(name)).report


def finding(report: Report, rule: str) -> Finding:
    return next(one for one in report.findings if one.rule == rule)


def step_of(report: Report) -> str:
    found = report.summary.step_ms
    assert found is not None
    return sig(found.median)


def took(report: Report, rule: str) -> float:
    return sum(row.time_ms_per_step for row in report.gemms if row.id in finding(report, rule).gemms)


def pad_vocabulary() -> list[str]:
    report = shared("d3_")
    (row,) = (row for row in report.gemms if row.id in finding(report, "TL101").gemms)
    return [f"{row.m} × {row.n} × {row.k}", ms(row.time_ms_per_step), pct(row.frac)]


def tensor_cores() -> list[str]:
    report = shared("d6_")
    now = took(report, "TL111")
    return [ms(now), f"{step_of(report)} ms", ms(now - (finding(report, "TL111").saving_ms.mid or 0.0))]


def projections() -> list[str]:
    report = shared("d3_")
    (group,) = finding(report, "TL112").evidence["groups"]
    saved = finding(report, "TL112").saving_ms.mid or 0.0
    layers = 4
    return [ms(group["now_us"] / 3e3), ms(group["now_us"] / 1e3 - saved / layers)]


def casts() -> list[str]:
    report = sample("gpt2_vocab50257_eager")
    saving = finding(report, "TL113").saving_ms
    assert saving.high is not None and report.summary.step_ms is not None
    return [ms(saving.high), step_of(report), pct(saving.high / report.summary.step_ms.median)]


def attention() -> list[str]:
    report = shared("d4_")
    evidence = finding(report, "TL117").evidence
    low, mid, high = (sig(1e3 * one) for one in evidence["fused_ms"]["without a mask"])
    parts = [evidence["chain_ms"][one] for one in ("products", "softmax", "beside")]
    whole = sum(row.time_ms for row in report.components) / len(report.steps)
    return [
        ms(parts[2]),
        ms(sum(parts)),
        f"{mid} µs ({low} to {high})",
        f"{pct(sum(parts) / whole)} of the GPU",
    ]


def beside_collectives() -> list[str]:
    row = next(row for row in shared("d1_").gemms if (row.batch, row.m, row.n, row.k) == (8, 768, 768, 768))
    beside = row.beside
    assert beside is not None and beside.alone_us is not None and beside.disturbed_us is not None
    sms = 132
    return [
        f"{beside.alone_us:.1f} µs alone", f"{beside.disturbed_us:.1f} µs beside", f"{beside.ctas} CTAs",
        f"{row.tiles} tiles", f"{sms - (beside.ctas or 0)} of {sms} SMs",
    ]  # fmt: skip


def norms() -> list[str]:
    report, compiled = sample("llama_gqa_ffn11008_eager"), sample("llama_gqa_ffn11008_compile")
    fused = finding(report, "TL131").evidence["fused_ms"]
    now = fused + (finding(report, "TL131").saving_ms.high or 0.0)
    then = sum(row.time_ms_per_step for row in compiled.components if row.component == "norm")
    return [ms(now), f"of {step_of(report)}", ms(fused), ms(then)]


def backend() -> list[str]:
    a100, times = find_gpu(None, override="a100-sxm-80gb"), []
    for kernel, causal in (("efficient", False), ("flash", False), ("flash", True)):
        problem = AttentionProblem(
            batch=8, heads=16, kv_heads=16, seq_q=2048, seq_k=2048, head_dim=64, causal=causal,
            direction="forward",
        )  # fmt: skip
        times.append((predict_attention(problem, gpu=a100, backend=kernel).time_us.mid or 0.0) / 1e3)
    masked, unmasked, causal_ms = times
    return [f"{masked:.2f} ms", f"{unmasked:.2f} ms without", f"and {causal_ms:.2f} with"]


def buckets() -> list[str]:
    size, calls, bucket = 256e3, 200, 25 << 20
    many = math.ceil(calls * size / bucket)
    small, large = (exchange_us("a100-sxm-80gb", "all_reduce", 8, one, in_node=8) or 0.0
                    for one in (size, calls * size / many))  # fmt: skip
    return [f"{calls * small / 1e3:.1f} ms", f"{many * large / 1e3:.1f} ms"]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("gpt2_vocab50257_eager", "gpt2_vocab50304_eager", "vocab=50304"),
        ("gpt2_vocab50257_head80_eager", "gpt2_vocab50304_head128_eager", "heads=20,vocab=50304"),
        ("llama_gqa_ffn10922_eager", "llama_gqa_ffn11008_eager", "ffn=11008"),
    ],
)
def test_the_guide_says_what_changed_models_saved_and_what_was_predicted(
    before: str, after: str, change: str
) -> None:
    steps = [sample(name).summary.step_ms for name in (before, after)]
    saved = steps[0].median - steps[1].median if steps[0] and steps[1] else 0.0
    found = scenario(saved_step(sample(before)), change).saving_ms
    assert found.low is not None and found.high is not None
    guide = (SAMPLES.parent / "docs" / "what-if.md").read_text(encoding="utf-8")
    row = f"| {ms(saved)} | {sig(found.low)} to {sig(found.high)} ms |"
    assert row in guide, row
    assert found.low <= saved <= found.high or "llama" in before  # the clock fell, as the guide says


EXAMPLES: dict[str, Callable[[], list[str]]] = {
    "TL101": pad_vocabulary, "TL111": tensor_cores, "TL112": projections, "TL113": casts,
    "TL117": attention, "TL118": beside_collectives, "TL125": backend, "TL128": buckets, "TL131": norms,
}  # fmt: skip


@pytest.mark.parametrize("rule", EXAMPLES)
def test_an_example_says_what_its_trace_gives(rule: str) -> None:
    text = " ".join(page(rule).split("\n## Example\n", 1)[1].split("\n## ", 1)[0].split())
    figures = EXAMPLES[rule]()
    assert all(re.search(rf"(?<![\d.]){re.escape(one)}", text) for one in figures), figures
