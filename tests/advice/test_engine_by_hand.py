"""What the engine makes of a rule's candidates: bounds, thresholds and words, each counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tests.advice.advice_answers import outcome_of, says_why
from tests.advice.advice_rows import H100, gemm, model
from tests.said import Listener
from tracelens.results import ComponentRow, Coverage, Estimate, GemmRow, Known, Span
from tracelens.results.row_sizes import AttentionDims, Groups
from tracelens.rules.advise import advise
from tracelens.rules.engine.bounds import Bound, bound_of_row, name
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.conclude import conclude
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.engine.needs import (
    for_shapes,
    judged_part,
    need_kernels,
    need_model,
    need_nvidia,
    need_others,
    need_shapes,
    not_known,
    unseen,
)
from tracelens.rules.engine.predictions import minus, moving_ms, saved
from tracelens.rules.engine.rows import enough, forward, is_packed, of_step, sizes_of, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.simulated import pays, why_not
from tracelens.rules.engine.trials import Trial, in_words, likely, nearly_best, savings, surely, took_and_lost
from tracelens.step.stalls import call_us_of

ROW = gemm(1, 1000, 1000, 1000, time_us=100.0, calls=2.0)
PLAIN_GPU = replace(H100, gemm_floor_us=0.0)


def facts(*rows: GemmRow, **given: Any) -> StepFacts:
    told: dict[str, Any] = {"gemms": list(rows), "model": model(), "gpu": H100, "step_ms": 100.0}
    return StepFacts(**(told | given))


def saving(low: float, mid: float, high: float) -> Span:
    return Span(low, mid, high, "model")


# bounds


@pytest.mark.parametrize(
    ("given", "gpu", "ms"),
    [
        ({}, {}, 0.2 - 2 * 2 / 989),
        ({"useful_frac": 0.5}, {}, 0.2 - 2 * 6 / 3350),
        ({}, {"bandwidth_gbps": None}, 0.2 - 2 * 2 / 989),
        ({}, {"bandwidth_gbps": None, "peak_tflops": {}}, 0.2),
        ({}, {"gemm_floor_us": 2.1}, 0.2 - 0.0042),
        ({}, {"gemm_floor_us": 2.0}, 0.2 - 2 * 2 / 989),
        ({"fewer_kernels": True}, {"gemm_floor_us": 2.1}, 0.2 - 2 * 2 / 989),
        ({"cap_frac": 0.25, "cap_why": "for a reason"}, {}, 0.05),
        ({"cap_frac": 0.99}, {}, 0.2 - 2 * 2 / 989),
        ({}, {"peak_tflops": {"bf16": 1e-3}}, 0.0),
    ],
)
def test_a_bound_is_the_time_above_what_the_datasheet_allows(
    given: dict[str, Any], gpu: dict[str, Any], ms: float, said: Listener
) -> None:
    """2 x 1000^3 operations and 6 MB in 100 us, twice a step."""
    found = bound_of_row(ROW, gpu=replace(PLAIN_GPU, **gpu), **given)
    assert found.ms == pytest.approx(ms)
    said(found.how)


def test_what_is_no_time_bounds_nothing_and_rows_are_named(said: Listener) -> None:
    for ms in (-1.0, float("nan"), float("inf")):
        assert bound_of_row(replace(ROW, time_ms_per_step=ms), gpu=PLAIN_GPU).ms == 0.0
    for calls in (1.0, 2.5):
        said(bound_of_row(replace(ROW, calls_per_step=calls), gpu=PLAIN_GPU).how)
    assert name(replace(ROW, batch=4)) == "mlp.up forward 4 × (1000 × 1000 × 1000) bf16 (g1)"
    assert name(replace(ROW, role=None, phase="backward", n=None, dtype=None)) == "mlp.up backward (g1)"
    assert name(replace(ROW, role=None, phase="forward", n=None)) == "mlp.up bf16 (g1)"


# what a rule asks for


def test_what_lacks_is_said_with_its_remedy(said: Listener) -> None:
    none = outcome_of(need_kernels, facts())
    assert (none.state, none.absent, none.attention) == ("not_applicable", True, False)
    for need, given in (
        (need_kernels, {"step_ms": None}),
        (need_kernels, {"step_ms": 0.0}),
        (need_nvidia, {"gpu": replace(H100, vendor="amd")}),
    ):
        says_why(outcome_of(need, facts(ROW, **given)), "could_not_run", said)
    need_kernels(facts(ROW))
    absent = outcome_of(need_model, facts(ROW, model=model(False)))
    assert (absent.state, absent.absent, absent.attention) == ("not_applicable", True, True)
    parts = outcome_of(need_model, facts(ROW, model=replace(model(), found="parts")))
    unsummed = outcome_of(need_others, facts(ROW))
    hidden = replace(ROW, n=None, op="aten::mm")
    shapeless = outcome_of(need_shapes, [hidden, hidden], "GEMM")
    assert {one.state for one in (parts, unsummed, shapeless)} == {"could_not_run"}
    said(none.why, absent.why, parts.why, unsummed.why, shapeless.why)
    need_model(facts(ROW))
    need_others(facts(ROW, others=[]))
    need_shapes([hidden, ROW], "GEMM")
    need_shapes([], "GEMM")
    assert for_shapes([]) == for_shapes([hidden, replace(hidden, op=None)])
    said(for_shapes([]), for_shapes([replace(hidden, op=None)]))
    said(not_known("hidden size", Known(None, "no part")))


def covered(known: float, other: float, opaque: float, attention: float | None = None) -> Coverage:
    return Coverage(known, 0.0, 0.0, 0.0, {}, [], 0.0, 0, other_frac=other, opaque_frac=opaque,
                    attention_open_frac=attention)  # fmt: skip


def test_what_was_not_seen_can_be_there_all_the_same(said: Listener) -> None:
    said(unseen(covered(0.7, 0.2, 0.0)), unseen(covered(0.7, 0.2, 0.1), what="a router"))
    said(unseen(covered(0.7, 0.2, 0.0), frac=0.25), judged_part(covered(0.7, 0.2, 0.0)))


# rows


def test_rows_are_sized_counted_and_said(said: Listener) -> None:
    assert sizes_of(replace(ROW, batch=None)) == (1000, 1000, 1000, 1)
    assert sizes_of(replace(ROW, batch=3)) == (1000, 1000, 1000, 3)
    for given in ({"m": None}, {"n": None}, {"k": None}, {"groups": Groups("m", 4)}):
        assert sizes_of(replace(ROW, **given)) is None
    rows = [replace(ROW, time_ms_per_step=ms, frac=ms / 50) for ms in (1.0, 1.0, 2.0)]
    assert enough(rows[2:], rows) and not enough(rows[:1], rows)
    nothing = [replace(ROW, frac=0.0)]
    unshaped = [replace(ROW, n=None), ROW]
    said(took(rows, facts()), took(nothing, facts(marked=False)), took(unshaped, facts()))
    said(of_step(5.0, facts()), of_step(5.0, facts(marked=False)))
    other = [replace(ROW, role="dgrad"), replace(ROW, role=None), replace(ROW, component="logits"), ROW]
    assert forward(other, "mlp.up") == [other[1], other[3]]
    packed = replace(ROW, attention=AttentionDims(tokens=64))
    assert is_packed(facts(packed, ROW)) and not is_packed(
        facts(replace(ROW, attention=AttentionDims(batch=2)))
    )


def test_a_step_trains_where_something_goes_back_or_an_optimizer_runs(said: Listener) -> None:
    def part(phase: str) -> ComponentRow:
        return ComponentRow("norm", phase, 1.0, 1, 1.0, 1, None, None, 1.0, 1.0)

    assert facts(components=[part("backward")]).trains and facts(components=[part("optimizer")]).trains
    assert facts(replace(ROW, phase="backward", role=None)).trains
    assert facts(replace(ROW, phase="forward", role="wgrad")).trains
    runs = facts(ROW, components=[part("forward")])
    assert (runs.trains, runs.only_runs, facts(ROW).only_runs) == (False, True, False)
    assert not facts(ROW, components=[part("backward")]).only_runs
    said(runs.new_model, facts(components=[part("backward")]).new_model)


def test_predictions_become_savings_per_step() -> None:
    row = replace(ROW, calls_per_step=10.0)
    found = saved(row, saving(20.0, 30.0, 50.0))
    us = call_us_of(row)
    assert (found.low, found.mid, found.high) == pytest.approx(
        ((us - 50) / 100, (us - 30) / 100, (us - 20) / 100)
    )
    less = minus(saving(1.0, 2.0, 3.0), mid_ms=0.5, low_ms=0.25)
    assert (less.low, less.mid, less.high) == pytest.approx((0.25, 1.5, 2.5))
    assert moving_ms(3.35e9, facts=facts()) == pytest.approx(1.0)
    assert moving_ms(3.35e9, facts=facts(gpu=replace(H100, bandwidth_gbps=None))) == 0.0


# what pays


@pytest.mark.parametrize(
    ("low", "mid", "high", "paid"),
    [
        (1.0, 2.0, 3.0, True), (-1.9, 2.0, 3.0, True), (-2.0, 2.0, 3.0, False), (0.0, 0.0, 1.0, False),
        (None, 2.0, 3.0, False), (0.0, None, 3.0, False), (-3.0, -1.0, 1.0, False),
    ],
)  # fmt: skip
def test_a_change_pays_where_its_range_reaches_less_into_slower_than_it_saves(
    low: float | None, mid: float | None, high: float | None, paid: bool
) -> None:
    assert pays(Estimate(low, mid, high, "model")) is paid


def test_why_a_change_is_not_advised(said: Listener) -> None:
    said([why_not(saving(*ends), "x", "step") for ends in ((0, 0, 0), (-3, -2, 1), (-3, 2, 4))])


def trial(value: int, low: float, mid: float, high: float, **change: Any) -> Trial:
    found: Any = SimpleNamespace(saving_ms=saving(low, mid, high), change=change or {"ffn": [8, value]})
    return Trial(value, found, found.saving_ms.known)


def test_what_is_sure_likely_or_as_good_as_the_best() -> None:
    """Of a step of 100 ms a gain of 1 ms is one; ranges may reach a quarter of it into slower."""
    for low, mid, sure in ((0.1, 1.0, True), (0.0, 1.0, False), (0.1, 0.99, False)):
        assert surely(saving(low, mid, 5.0), 100.0) is sure
    for low, mid, bound, worth in ((-0.25, 1.0, 9.0, True), (-0.26, 1.0, 9.0, False), (0.5, 0.99, 9.0, False),
                                   (0.5, 5.0, 0.99, False), (-0.4, 4.0, 1.0, False),
                                   (-1.0, 4.0, 9.0, True), (-1.01, 4.0, 9.0, False)):  # fmt: skip
        assert likely(saving(low, mid, 9.0), 100.0, bound_ms=bound) is worth, (low, mid, bound)
    tried = [trial(1, 0, 5.0, 9), trial(2, 0, 4.0, 9), trial(3, 0, 3.99, 9), trial(4, 0, -1.0, 9)]
    assert [one.value for one in nearly_best(tried, 100.0, bound_ms=9.0)] == [1, 2]
    assert [one.value for one in nearly_best(tried, 100.0, bound_ms=4.5)] == [1, 2, 3]
    assert nearly_best([], 100.0, bound_ms=9.0) == []
    assert savings(tried[:1]) == {"1": [0, 5.0, 9]}


def test_trials_in_words(said: Listener) -> None:
    said(
        in_words("ffn", trial(64, -3.0, 2.0, 4.0), 100.0), in_words("ffn", trial(64, -3.0, -2.0, -1.0), 100.0)
    )
    said(in_words("micro_batch", trial(8, 0.0, 0.0, 1.0, micro_batch=[4, 8]), 100.0))
    said([took_and_lost(12.0, loss_ms, facts(), to="tiles") for loss_ms in (1.2, 0.0)])


# findings


class Made(Rule):
    """A rule whose candidates are given."""

    id, slug, title = "TL101", "pad-vocabulary", "made up"
    given: ClassVar[list[Candidate]] = []

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        return self.given, ""


def candidate(*bounds: tuple[str, float], **given: Any) -> Candidate:
    told: dict[str, Any] = {
        "title": "Do it", "saw": "Seen.", "change": {"flag": ["off", "on"]}, "fix": ["+ on"], "caveats": [],
        "confidence": "high", "effort": "code", "name": "the flag", "how": "By hand.",
        "bounds": [Bound(replace(ROW, id=row), ms, f"{row} by hand.") for row, ms in bounds],
    }  # fmt: skip
    return Candidate(**(told | given))


def concluded(*candidates: Candidate, passed: str = "", **given: Any) -> Outcome:
    return conclude(
        Made(), facts=facts(ROW, gpu_busy_frac=1.0, **given), candidates=candidates, passed=passed
    )


def test_a_finding_begins_at_a_thousandth_of_the_step(said: Listener) -> None:
    found = concluded(candidate(("g1", 0.1)), candidate(("g2", 0.0999)), candidate(("g3", 2.0)))
    assert [one.gemms for one in found.findings] == [["g1"], ["g3"]] and found.bounds_ms == {
        "g1": 0.1,
        "g3": 2.0,
    }
    none = concluded(candidate(("g2", 0.0999)), passed="All is well.")
    assert (none.state, none.findings) == ("passed", ())
    said(found.why, none.why, concluded(candidate(("g2", 0.01))).why)
    two = [candidate(("g2", 0.05)), candidate(("g3", 0.06))]
    said(concluded(*two, passed="All is well.").why, concluded(*two).why)
    assert concluded(step_ms=None).state == "could_not_run"


def test_a_saving_that_can_be_slower_has_to_be_a_hundredth_of_the_step(said: Listener) -> None:
    for low, mid, worth in ((-0.1, 0.99, False), (-0.1, 1.0, True), (0.0, 0.1, True), (0.0, 0.09, False)):
        found = concluded(candidate(("g1", 9.0), saving=saving(low, mid, 5.0)))
        assert (found.state == "found") is worth, (low, mid)
    small = concluded(candidate(("g1", 9.0), saving=saving(-0.1, 0.5, 5.0)))
    refused = concluded(candidate(("g1", 9.0), saving=saving(-2.0, 1.5, 5.0)), candidate(("g2", 1.0)))
    assert (small.state, [one.gemms for one in refused.findings]) == ("passed", [["g2"]])
    said(small.why, refused.why)


@pytest.mark.parametrize(
    ("cause", "low", "mid", "sure"),
    [
        ("high", 1.0, 2.0, "high"), ("high", 0.0, 2.0, "medium"), ("high", -1.0, 2.0, "low"),
        ("low", 1.0, 2.0, "low"), ("medium", 0.0, 2.0, "medium"), ("high", None, None, "medium"),
    ],
)  # fmt: skip
def test_a_finding_is_as_sure_as_its_cause_and_its_range(
    cause: Any, low: float | None, mid: float | None, sure: str
) -> None:
    given = None if low is None or mid is None else saving(low, mid, 3.0)
    (found,) = concluded(candidate(("g1", 9.0), confidence=cause, saving=given)).findings
    assert found.confidence == sure


def test_what_a_finding_states(said: Listener) -> None:
    one = candidate(
        ("g1", 1.0), ("g2", 3.0), saving=saving(1.0, 2.0, 9.0), kernels={"k1": 2.0}, elsewhere_ms=0.5
    )
    outcome = concluded(one)
    (found,) = outcome.findings
    assert found.saving_ms == Estimate(1.0, 2.0, 6.5, "model") and found.saving_frac.mid == 0.02
    assert found.gemms == ["g2", "g1"] and found.evidence["bound_ms"] == 6.5
    assert [row.get("gemm") or row["row"] for row in found.evidence["rows"]] == ["g2", "k1", "g1"]
    assert outcome.bounds_ms == {"g1": 1.0, "g2": 3.0, "k1": 2.0, "TL101 outside of rows": 0.5}
    waiting = conclude(Made(), facts=facts(ROW, gpu_busy_frac=0.5), candidates=[one], passed="").findings[0]
    assert waiting.saving_ms.low == 0.0
    whole = concluded(candidate(("g1", 70.0), ("g2", 80.0)))
    assert whole.findings[0].saving_ms == Estimate(0.0, None, 100.0, "heuristic")
    (several,) = concluded(candidate(*((f"g{at}", float(at)) for at in range(1, 6)))).findings
    assert several.gemms == ["g5", "g4", "g3", "g2", "g1"] and several.saving_ms.high == 15.0
    (bare,) = concluded(
        candidate(("g1", 1.0)), gpu=replace(H100, peak_tflops={}, bandwidth_gbps=None)
    ).findings
    said(found.how, waiting.how, whole.why, several.how, bare.how)
    assert concluded(candidate(("g1", 1.0)), candidate(("g1", 2.0))).bounds_ms == {"g1": 2.0}
    assert concluded(candidate(("g1", 1.0), components=["logits"])).findings[0].components == ["logits"]


@pytest.mark.parametrize(
    ("effort", "phase", "severity"),
    [("retrain", "forward", "low"), ("retrain", "backward", "high"), ("code", "forward", "high")],
)
def test_nobody_trains_again_for_a_model_that_only_runs(effort: Any, phase: str, severity: str) -> None:
    part = ComponentRow("norm", phase, 1.0, 1, 1.0, 1, None, None, 1.0, 1.0)
    (found,) = concluded(candidate(("g1", 50.0), effort=effort), components=[part]).findings
    assert found.severity == severity


# all findings together


def advised(*candidates: Candidate, step_ms: float = 100.0) -> tuple[Estimate | None, float]:
    class Given(Made):
        given: ClassVar[list[Candidate]] = list(candidates)

    found = advise(facts(ROW, gpu_busy_frac=1.0, step_ms=step_ms), rules=[Given()])
    return found.at_stake_ms, found.open_ms


def test_what_all_findings_save_counts_each_row_once() -> None:
    one = candidate(("g1", 4.0), ("g2", 4.0), saving=saving(1.0, 4.0, 6.0))
    two = candidate(("g2", 1.0), ("g3", 3.0), saving=saving(1.0, 2.0, 3.0))
    whole, rest = advised(one, two)
    # of g2 and g3 the second counts what g3 has: 3 of 4
    assert whole is not None and whole.mid == pytest.approx(4.0 + 0.75 * 2.0) and rest == 0.0
    bounded = candidate(("g3", 3.0), ("g4", 2.0), ("g1", 9.0))
    whole, rest = advised(one, bounded)
    assert whole is not None and whole.mid == pytest.approx(4.0) and rest == pytest.approx(5.0)
    only, none = advised(candidate(("g1", 4.0)), candidate(("g1", 5.0), ("g2", 1.0)))
    assert only == Estimate(0.0, None, 6.0, "heuristic") and none == 0.0
    most, _ = advised(candidate(("g1", 4.0)), step_ms=3.0)
    assert most == Estimate(0.0, None, 3.0, "heuristic")
    apart, beside = advised(one, candidate(elsewhere_ms=2.5))
    assert apart is not None and apart.mid == 4.0 and beside == 2.5
    assert advised() == (None, 0.0)


def test_stalls_and_company_of_its_rows_are_a_caveat_of_a_finding(said: Listener) -> None:
    class Given(Made):
        given: ClassVar[list[Candidate]] = [candidate(("g1", 4.0))]

    stalls = replace(ROW, calls=20, stalls=2, stall_ms=3.0, slowest_us=900.0, median_us=90.0)
    (found,) = advise(facts(stalls), rules=[Given()]).findings
    said(found.caveats)
    assert advise(facts(ROW), rules=[Given()]).findings[0].caveats == []


def test_a_check_of_a_step_that_was_partly_told_apart_says_so(said: Listener) -> None:
    class Passed(Made):
        given: ClassVar[list[Candidate]] = []

        def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
            return [], "All is well."

    def why(known: float) -> str:
        return advise(facts(ROW, coverage=covered(known, 0.0, 0.0)), rules=[Passed()]).checks[0].why

    assert why(0.96) == "All is well."
    said(why(0.94))
