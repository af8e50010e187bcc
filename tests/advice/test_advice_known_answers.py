"""Shapes whose better neighbours are known: the advice has to find these and no others."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_steps import A100, H100, Shape, facts_of, model_of, rows_of
from tests.said import Listener
from tracelens.gemm.gain import RATIO_ERROR
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import Gpu
from tracelens.rules import advise
from tracelens.step.whatif import what_if

SWEEPS = Path(__file__).parents[3] / "shared" / "paper_data" / "a100_gemm_sweeps.csv"
GPT3 = Shape(2560, 32, 10240, v=50257)
GPUS = pytest.mark.parametrize("gpu", [A100, H100], ids=["a100", "h100"])


@GPUS
def test_gpt3_of_2_7_billion_prefers_20_or_40_heads_and_not_64(gpu: Gpu, said: Listener) -> None:
    """The paper's case: h 2560, a 32, head dimension 80."""
    step = model_of(GPT3, gpu=gpu)
    saving = {heads: what_if(step, {"heads": heads}).saving_ms for heads in (20, 40, 64)}
    mid = {heads: one.mid or 0.0 for heads, one in saving.items()}
    assert mid[20] > mid[40] > 0 > mid[64]
    assert (saving[64].high or 0.0) < 0  # slower for certain
    findings = {one.rule: one for one in advise(facts_of(GPT3, gpu=gpu)).findings}
    heads = findings["TL103"]
    assert heads.change["heads"] == [32, 20]
    said(heads.title)
    assert heads.saving_ms.mid == pytest.approx(mid[20]) and heads.basis == "model"
    assert heads.parameter_delta == 0


@GPUS
def test_a_vocabulary_of_50257_is_padded_to_50304(gpu: Gpu) -> None:
    advice = advise(facts_of(GPT3, gpu=gpu))
    vocab = advice.findings[0]
    assert (vocab.rule, vocab.change) == ("TL101", {"vocab_size": [50257, 50304]})
    assert (vocab.saving_ms.low or 0.0) > 0 and vocab.severity == "high"
    assert vocab.saving_ms.mid is not None


@GPUS
def test_findings_together_are_simulated_and_not_added(gpu: Gpu) -> None:
    advice = advise(facts_of(GPT3, gpu=gpu))
    assert len(advice.findings) == 2 and advice.at_stake_ms is not None
    joint = what_if(model_of(GPT3, gpu=gpu), {"vocab": 50304, "heads": 20, "head_dim": 128}).saving_ms
    assert advice.at_stake_ms.mid == pytest.approx(joint.mid)
    assert advice.at_stake_ms.basis == "model"


@GPUS
def test_swiglu_of_10922_goes_to_the_grid(gpu: Gpu) -> None:
    """Which measured figures this reproduces is stated in ``test_advice_swiglu_width``."""
    x = Shape(4096, 32, 10922, v=32000, gated=True, b=2)
    step = model_of(x, gpu=gpu)
    finding = next(one for one in advise(facts_of(x, gpu=gpu)).findings if one.rule == "TL104")
    assert finding.change == {"ffn": [10922, 10944]} and (finding.saving_ms.low or 0.0) > 0
    mlp = {row.id for row in rows_of(x, gpu=gpu) if row.component.startswith("mlp")}
    speed = {}
    for ffn in (10848, 10944, 11008):
        rows = [row for row in what_if(step, {"ffn": ffn}).rows if row.gemm in mlp]
        speed[ffn] = ffn / sum(row.then_ms.mid or 0.0 for row in rows)
    now = 10922 / sum(row.time_ms_per_step for row in rows_of(x, gpu=gpu) if row.id in mlp)
    assert all(one > 1.3 * now for one in speed.values())
    alike = 1.015 if gpu is H100 else 1.01
    assert max(speed.values()) < alike * min(speed.values())
    for off in (10924, 10926):  # multiples of 2 and 4: no better place than 10922
        assert abs(what_if(step, {"ffn": off}).saving_frac.mid or 0.0) < 0.01
    assert (what_if(step, {"ffn": 10923}).saving_ms.mid or 0.0) < 0


@pytest.mark.parametrize(
    "x",
    [
        Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2, s=8192),
        Shape(4096, 32, 11008, v=32000, gated=True, b=1, s=4096),
        Shape(8192, 64, 28672, v=128256, kv=8, gated=True, b=1, s=8192, t=8),
    ],
    ids=["llama 3 8B", "llama 7B", "llama 3 70B over 8 ranks"],
)
@GPUS
def test_a_good_shape_gets_no_finding(x: Shape, gpu: Gpu) -> None:
    advice = advise(facts_of(x, gpu=gpu))
    assert [one for one in advice.findings if (one.saving_frac.high or 0.0) > 0.01] == []
    assert advice.at_stake_ms is None


def test_a_change_that_is_predicted_not_to_pay_is_no_finding_and_the_check_says_so(said: Listener) -> None:
    """The vocabulary's products already run like aligned ones although their names show narrow loads."""
    advice = advise(facts_of(GPT3, slowed={"logits": 0.11}))  # an odd vocabulary runs at 0.12
    says_why(next(one for one in advice.checks if one.rule == "TL101"), "passed", said)
    assert "TL101" not in {one.rule for one in advice.findings}


def test_a_saving_is_no_more_than_the_bound() -> None:
    for finding in advise(facts_of(GPT3)).findings:
        bound = finding.evidence["bound_ms"]
        assert (finding.saving_ms.high or 0.0) <= bound + 1e-9


def test_without_a_step_to_simulate_findings_are_bounds() -> None:
    advice = advise(replace(facts_of(GPT3), step=None))
    assert advice.findings and all(one.saving_ms.mid is None for one in advice.findings)
    assert advice.at_stake_ms is not None and advice.at_stake_ms.basis == "heuristic"


@pytest.mark.skipif(not SWEEPS.is_file(), reason="the paper's raw sweeps are not beside the checkout")
def test_the_error_of_ratios_is_what_the_papers_sweeps_show() -> None:
    """Nine in ten ratios between two aligned shapes of one A100 sweep lie within the stated error."""
    misses: list[list[float]] = [[] for _ in RATIO_ERROR]
    times: dict[str, list[tuple[int, float, float]]] = {}
    with SWEEPS.open() as file:
        for row in csv.DictReader(file):
            if row["sweep"] not in ("mm/ksweep_high", "mm/ksweep_low"):
                continue
            m, k, n = (int(row[name]) for name in ("m", "reduction", "n_out"))
            found = predict_gemm(m, n, k, gpu=A100, dtype="fp16", layout="NN")
            if n % 8 == 0 and k % 8 == 0 and found.time_us.mid:
                measured = 2.0 * m * n * k / float(row["tflops"]) / 1e6
                times.setdefault(row["sweep"], []).append((n, measured, found.time_us.mid))
    for sweep in times.values():
        for at, (size, measured, predicted) in enumerate(sweep):
            for other, its_measured, its_predicted in sweep[at + 1 :]:
                far = abs(math.log(other / size))
                group = next(i for i, (limit, *_) in enumerate(RATIO_ERROR) if far <= limit)
                miss = math.log(its_predicted / predicted) - math.log(its_measured / measured)
                misses[group].append(abs(miss))
    for found_misses, (_, stated, _) in zip(misses, RATIO_ERROR, strict=True):
        assert len(found_misses) >= 30
        assert sorted(found_misses)[int(0.9 * len(found_misses))] <= stated


def test_every_prediction_holds_against_the_step_built_anew() -> None:
    """Findings of many shapes against rows made from scratch for the changed model.

    Both sides are timed by one predictor, so this is about the arithmetic and not about a GPU.
    """
    judged = 0
    for h, a, f, v, gated, s in (
        (768, 12, 3072, 50257, False, 1024),
        (1600, 25, 6400, 50257, False, 1024),
        (2560, 32, 10240, 50257, False, 2048),
        (2048, 16, 5461, 32001, True, 2048),
        (3200, 32, 8640, 32000, True, 2047),
        (4096, 32, 10922, 30522, True, 512),
        (1280, 32, 3413, 151936, True, 1024),
    ):
        for gpu in (A100, H100):
            x = Shape(h, a, f, v=v, gated=gated, s=s, b=2, layers=8)
            facts = facts_of(x, gpu=gpu)
            simulated = [one for one in advise(facts).findings if "simulated" in one.evidence]
            for finding in simulated:
                change = finding.evidence["simulated"]
                after = replace(x, a=change.get("heads", a), f=change.get("ffn", f), v=change.get("vocab", v),
                                s=change.get("sequence", s))  # fmt: skip
                saved = sum(row.time_ms_per_step for row in facts.gemms) - sum(
                    row.time_ms_per_step for row in rows_of(after, gpu=gpu)
                )
                low, high = finding.saving_ms.low, finding.saving_ms.high
                assert low is not None and high is not None and low <= saved <= high, finding.title
                assert saved > 0
                judged += 1
    assert judged >= 15
