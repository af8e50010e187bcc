"""TL104: the width of a gated MLP, found where a neighbour is surely faster and nowhere else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_rows import SIMT, cutlass, facts, gemm, model
from tests.advice.advice_steps import A100, H100, Shape, dims_of, facts_of, model_of, rows_of
from tests.said import Listener
from tracelens.config import config_from_flags
from tracelens.gemm.predict import predict_gemm
from tracelens.hardware import Gpu
from tracelens.results import Finding, GemmRow
from tracelens.rules import StepFacts, advise
from tracelens.rules.engine.facts import Outcome
from tracelens.rules.swiglu_width import SwigluWidth
from tracelens.step.planned_step import Planner
from tracelens.step.whatif import what_if

RULE = SwigluWidth()
LLAMA = model(hidden=4096, heads=32, ffn=10922, vocab=32000, layers=32, sequence=2048, micro_batch=2)
SWIGLU = Shape(4096, 32, 10922, v=32000, gated=True, b=2)
GPUS = pytest.mark.parametrize("gpu", [A100, H100], ids=["a100", "h100"])
#: TFLOP/s of fp16 products 4 × (4096 × 4096 × width) on an H100 (stas00/ml-engineering, swiglu-maf-bench.py).
MEASURED = {10848: 395.62, 10880: 395.52, 10912: 395.16, 10922: 272.73, 10944: 398.38, 11008: 395.01}


def swiglu(**more: Any) -> list[GemmRow]:
    common: dict[str, Any] = {"calls": 32, "time_us": 1400.0, "kernel": cutlass(2), **more}
    up = ("b*s", "f", "h")
    return [
        gemm(1, 4096, 10922, 4096, component="mlp.up", names=up, **common),
        gemm(2, 4096, 10922, 4096, component="mlp.gate", names=up, **common),
        gemm(3, 4096, 4096, 10922, component="mlp.down", names=("b*s", "h", "f"), **common),
    ]


def check(*rows: GemmRow, **more: Any) -> Outcome:
    return RULE.check(facts(*rows, **more))


def one(outcome: Outcome) -> Finding:
    (finding,) = outcome.findings
    return finding


def as_measured(width: int) -> StepFacts:
    """A step whose aligned products run at 395 TFLOP/s, and those of the MLP as measured."""
    x = replace(SWIGLU, f=width)
    rows = []
    for row in rows_of(x):
        if row.kind == "gemm":
            speed = MEASURED[width] if row.component.startswith("mlp") else 395.0
            time = (row.flops or 0.0) / speed / 1e9 * row.calls_per_step
            row = replace(row, time_ms=time, time_ms_per_step=time)
        rows.append(row)
    step = model_of(x, rows=rows)
    return StepFacts(rows, dims_of(x), H100.info(), step.step_ms, 0.99, step)


#: Widths whose measured rates differ by less are taken for equals.
TOLD_APART = 0.01
#: What the model may part equals by on the H100: its median error there (docs/accuracy.md).
MODEL_ERROR = 0.025


def unlike_the_measured(predicted: Mapping[int, float], *, equal: float = TOLD_APART) -> list[str]:
    """Pairs of measured widths that ``predicted`` (work per time) orders otherwise, or parts by ``equal``."""
    wrong = []
    for one, other in combinations(MEASURED, 2):
        truth, said = MEASURED[one] / MEASURED[other], predicted[one] / predicted[other]
        if max(truth, 1 / truth) > 1 + TOLD_APART:
            agrees = (truth > 1) == (said > 1) and max(said, 1 / said) > 1 + TOLD_APART
        else:
            agrees = max(said, 1 / said) <= 1 + equal
        if not agrees:
            wrong.append(f"{one} over {other}: measured {truth:.4f}, predicted {said:.4f}")
    return wrong


def test_the_measured_widths_fall_into_one_slow_and_five_equals() -> None:
    """What there is to reproduce: five of the fifteen pairs are told apart, and they all have 10922."""
    apart = [
        (one, other)
        for one, other in combinations(MEASURED, 2)
        if abs(MEASURED[one] - MEASURED[other]) > TOLD_APART * min(MEASURED[one], MEASURED[other])
    ]
    assert len(apart) == 5 and all(10922 in pair for pair in apart)
    noticed = dict(MEASURED)
    noticed[10944] = 300.0  # a prediction that parts equals, or joins what differs, is told
    assert len(unlike_the_measured(noticed)) == 4
    assert len(unlike_the_measured(dict.fromkeys(MEASURED, 395.0))) == 5


def test_products_of_the_measured_widths_have_their_order() -> None:
    """The very products that were measured: four of 4096 × 4096, the width reduced."""
    rates = {}
    for width in MEASURED:
        time = predict_gemm(4096, 4096, width, batch=4, gpu=H100, dtype="fp16").time_us.mid
        assert time is not None
        rates[width] = width / time
    assert unlike_the_measured(rates) == []


def predicted_rates(start: int, widths: Iterable[int] = tuple(MEASURED)) -> dict[int, float]:
    """Work per time of the MLP's products with each width, of the step measured with ``start``."""
    facts = as_measured(start)
    assert facts.step is not None
    present = {row.id: row.time_ms_per_step for row in facts.gemms if row.component.startswith("mlp")}
    rates = {}
    for width in widths:
        then = {row.gemm: row.then_ms.mid or 0.0 for row in what_if(facts.step, {"ffn": width}).rows}
        rates[width] = width / sum(then.get(row, time) for row, time in present.items())
    return rates


@pytest.mark.parametrize("start", MEASURED)
def test_a_traced_step_moves_between_the_measured_widths_as_measured(start: int) -> None:
    assert unlike_the_measured(predicted_rates(start), equal=MODEL_ERROR) == []


def test_the_best_widths_of_the_whole_search_are_those_predicted_best() -> None:
    """The benchmark tried every fourth width within 100 of 10922 and printed the five fastest."""
    rates = predicted_rates(10922, range(10820, 11021, 4))
    fastest = max(rates.values())
    printed = [width for width in MEASURED if width != 10922]
    assert all(rates[width] > (1 - MODEL_ERROR) * fastest for width in printed)
    assert all(rates[width] < min(rates[one] for one in printed) for width in rates if width % 16)
    assert sorted(rates, key=lambda width: -rates[width])[:5] == [11008, 10944, 10976, 10848, 10912]


@pytest.mark.parametrize("start", [width for width in MEASURED if width != 10922])
def test_the_way_to_the_misaligned_width_holds_the_measured_time(start: int) -> None:
    """The H100 of 2024 ran aligned products at half of today's rate: its pace is no misaligned kernel's."""
    facts = as_measured(start)
    assert facts.step is not None
    then = [
        row.then_ms for row in what_if(facts.step, {"ffn": 10922}).rows if row.component.startswith("mlp")
    ]
    truth = sum(row.time_ms_per_step for row in as_measured(10922).gemms if row.component.startswith("mlp"))
    low, mid, high = (sum(getattr(one, end) or 0.0 for one in then) for end in ("low", "mid", "high"))
    assert low < truth < high and truth < mid < 1.5 * truth


@GPUS
def test_a_planned_step_orders_the_measured_widths_as_measured(gpu: Gpu) -> None:
    """On the A100 nobody measured them; the causes, alignment and tiles, are the same."""
    sizes = {"hidden": 4096, "heads": 32, "layers": 32, "vocab": 32000}
    layout = config_from_flags(sizes, gated=True).layout
    planner = Planner(layout, gpu=gpu, dtype="fp16")
    rates = {}
    for width in MEASURED:
        parts = planner.mlp(config_from_flags(sizes | {"ffn": width}, gated=True).model)
        products = [part for part in parts if part.kind == "product"]
        rates[width] = sum(one.flops for one in products) / sum(one.time_ms.mid or 0.0 for one in products)
    assert unlike_the_measured(rates, equal=0.015 if gpu is H100 else TOLD_APART) == []


def test_the_width_that_the_finding_names_is_the_one_measured_fastest(said: Listener) -> None:
    """And the others on the grid, measured less than 1 % slower, are named as equals."""
    finding = one(RULE.check(as_measured(10922)))
    fastest = max(MEASURED, key=lambda width: MEASURED[width])
    assert finding.change == {"ffn": [10922, fastest]}
    tried = finding.evidence["tried"]
    assert {"10816", "10880", "10944", "11008"} <= set(tried)
    (ties,) = (text for text in finding.caveats if "11008" in text)
    assert "10880" in ties and "10922" not in ties
    said(finding.title, finding.caveats)


def test_the_predicted_gain_is_the_measured_one() -> None:
    step = as_measured(10922)
    finding = one(RULE.check(step))
    mlp = sum(row.time_ms_per_step for row in step.gemms if row.component.startswith("mlp"))
    then = as_measured(10944)
    truth = mlp - sum(row.time_ms_per_step for row in then.gemms if row.component.startswith("mlp"))
    low, mid, high = finding.saving_ms.low, finding.saving_ms.mid, finding.saving_ms.high
    assert low is not None and mid is not None and high is not None
    assert low < truth < high and mid == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("width", [10848, 10880, 10912, 10944, 11008])
def test_a_width_that_was_measured_fast_is_left_alone(width: int, said: Listener) -> None:
    says_why(RULE.check(as_measured(width)), "passed", said)


@pytest.mark.parametrize(
    "x",
    [
        Shape(4096, 32, 11008, v=32000, gated=True, b=1, s=4096),
        Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2, s=8192),
        Shape(5120, 40, 13824, v=32000, gated=True, b=1, s=4096, layers=40),
        Shape(8192, 64, 28672, v=128256, kv=8, gated=True, b=1, s=8192, t=8),
        Shape(8192, 64, 28672, v=128256, kv=8, gated=True, b=1, s=8192, layers=80),
        Shape(2048, 32, 5632, v=32000, kv=4, gated=True, b=4, s=2048, layers=22),
    ],
    ids=["llama 7B", "llama 3 8B", "llama 13B", "llama 70B, 8 ranks", "llama 70B", "tinyllama"],
)
@GPUS
def test_the_shapes_of_llama_pass(x: Shape, gpu: Gpu, said: Listener) -> None:
    says_why(RULE.check(facts_of(x, gpu=gpu)), "passed", said)


@GPUS
@pytest.mark.parametrize(
    ("hidden", "width", "then"), [(4096, 10922, 10944), (2048, 5461, 5504), (1024, 2730, 2752)]
)
def test_8h_thirds_grows_to_the_next_multiple_of_64(gpu: Gpu, hidden: int, width: int, then: int) -> None:
    x = Shape(hidden, 16, width, v=32000, gated=True, layers=24)
    finding = one(RULE.check(facts_of(x, gpu=gpu)))
    assert finding.change == {"ffn": [width, then]} and (finding.saving_ms.low or 0.0) > 0
    assert finding.parameter_delta == 24 * 3 * hidden * (then - width)
    assert finding.effort == "retrain" and finding.evidence["simulated"] == {"ffn": then}


def test_weights_stay_within_a_hundredth() -> None:
    for width in (682, 2730, 5461, 10922):
        hidden = round(width * 3 / 8 / 64) * 64
        step = facts_of(Shape(hidden, hidden // 64, width, v=32000, gated=True, layers=24))
        assert step.step is not None and step.step.now.parameters
        for value in one(RULE.check(step)).evidence["tried"]:
            then = replace(step.step.now, ffn=int(value)).parameters or 0
            assert abs(then / step.step.now.parameters - 1) <= 0.01
            assert int(value) % 8 == 0


def test_ranks_divide_the_width_they_are_given(said: Listener) -> None:
    x = Shape(4096, 32, 21844, v=32000, gated=True, t=4)
    finding = one(RULE.check(facts_of(x)))
    now, then = finding.change["ffn"]
    assert now == 21844 and int(then) % (4 * 64) == 0
    assert finding.evidence["ffn_per_rank"] == [5461, int(then) // 4]
    said(finding.caveats)


def test_a_width_just_off_the_grid_of_128_bytes_is_not_surely_better(said: Listener) -> None:
    says_why(RULE.check(facts_of(replace(SWIGLU, f=10952))), "passed", said)


def test_no_other_rule_names_the_same_width() -> None:
    findings = advise(facts_of(SWIGLU)).findings
    assert [finding.rule for finding in findings if "ffn" in finding.change] == ["TL104"]


def test_without_a_simulation_it_is_a_bound_like_any_dimension_off_the_grid() -> None:
    finding = one(check(*swiglu(), step_ms=500.0, dims=LLAMA))
    assert finding.change == {"ffn": [10922, 10944]}
    assert finding.saving_ms.mid is None and finding.basis == "heuristic"
    assert sorted(finding.gemms) == ["g1", "g2", "g3"]
    assert finding.parameter_delta == 32 * 3 * 4096 * 22
    assert finding.flops_delta == pytest.approx(22 / 10922)


def test_a_fused_gate_and_up_still_names_ffn(said: Listener) -> None:
    row = gemm(1, 4096, 21844, 4096, kernel=cutlass(4), names=("b*s", "2*f", "h"), calls=32)
    finding = one(check(row, dims=LLAMA))
    assert finding.change == {"ffn": [10922, 10944]}
    said(finding.saw)


def test_between_the_grids_it_cannot_run_without_a_simulation(said: Listener) -> None:
    rows = [gemm(1, 4096, 10952, 4096, component="mlp.gate", names=("b*s", "f", "h"))]
    dims = model(hidden=4096, heads=32, ffn=10952)
    says_why(check(*rows, dims=dims), "could_not_run", said)
    good = [gemm(1, 4096, 11008, 4096, component="mlp.gate", names=("b*s", "f", "h"))]
    assert check(*good, dims=model(hidden=4096, heads=32, ffn=11008)).state == "passed"


def test_an_mlp_without_a_gate_is_another_rules(said: Listener) -> None:
    rows = [row for row in swiglu() if row.component != "mlp.gate"]
    outcome = check(*rows, dims=LLAMA)
    assert outcome.state == "not_applicable" and "TL102" in outcome.why
    said(outcome.why)


def test_experts_have_widths_of_their_own() -> None:
    dims = model(hidden=4096, heads=32, ffn=10922, experts=8)
    assert check(*swiglu(), dims=dims).state == "not_applicable"
    assert "TL102" in {finding.rule for finding in advise(facts(*swiglu(), dims=dims)).findings}


def test_full_precision_on_cuda_cores_is_not_judged() -> None:
    rows = swiglu(kernel=SIMT, dtype="fp32", tensor_core="eligible_unused")
    assert check(*rows, dims=LLAMA).state == "not_applicable"


def test_it_does_not_apply_without_an_mlp_and_could_not_run_without_shapes(said: Listener) -> None:
    assert check(gemm(1, 64, 64, 64, component="logits")).state == "not_applicable"
    assert check(gemm(1, 64, 64, 64), dims=model(False)).state == "not_applicable"
    says_why(check(gemm(1, None, None, None)), "could_not_run", said)
    assert check(*swiglu(), step_ms=None).state == "could_not_run"
    assert RULE.check(facts()).state == "not_applicable"
