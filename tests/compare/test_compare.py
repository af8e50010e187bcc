"""Before and after: what changed is named, noise is not, and what cannot be told is said."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import tracelens
from benchmarks.compare_power import answers
from tests.advice.advice_rows import gemm
from tests.cli import running
from tests.compare.parsed import Parsed, only_ours
from tests.kept import analyzed
from tests.render import sample_report
from tests.render.sample_report import with_steps
from tests.said import Listener
from tracelens.analysis import Analysis
from tracelens.api import compare as compare_reports
from tracelens.comparison.gemms import match_gemms
from tracelens.comparison.step_change import mixed_otherwise, spread, step_change
from tracelens.comparison.steps import rank_test, shift, smallest_p
from tracelens.errors import UsageError
from tracelens.render.compare import outcome_lines, shape, shape_change
from tracelens.render.compare_html import render_compare_html
from tracelens.render.compare_markdown import render_markdown
from tracelens.render.compare_words import against, foretold
from tracelens.results import Check, Estimate, Known, Report
from tracelens.results.advice import CheckState
from tracelens.results.comparison import Comparison
from tracelens.results.json import compare_json
from tracelens.results.schema import json_schema

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "traces"
SAMPLES = [ROOT / "sample_traces" / f"generated_gpt2_vocab{v}.json.gz" for v in (50257, 50304)]


@cache
def report(path: Path) -> Report:
    return analyzed(path).report


def shared(name: str) -> Report:
    found = sorted(SHARED.glob(f"{name}_*.json.gz"))
    if not found:
        pytest.skip(f"no {name} beside this checkout")
    return report(found[0])


def with_component(one: Report, name: str, factor: float) -> Report:
    """The report with another time of one component, as many kernels, and the sums that follow."""
    rows = [
        replace(row, time_ns=int(row.time_ns * factor), time_ms_per_step=row.time_ms_per_step * factor)
        if row.component == name
        else row
        for row in one.components
    ]
    grown = sum(row.time_ns for row in rows) / sum(row.time_ns for row in one.components)
    summary = replace(one.summary, gpu_ms_per_step=one.summary.gpu_ms_per_step * grown)
    return replace(one, components=rows, summary=summary)


def slower_gemms(one: Report, factor: float, only: str = "") -> Report:
    rows = [
        replace(row, time_ms_per_step=row.time_ms_per_step * factor, time_ms=row.time_ms * factor)
        if only in row.component
        else row
        for row in one.gemms
    ]
    return replace(one, gemms=rows)


def caused(result: Comparison) -> dict[str, float]:
    """The causes by their code; they add up to the step's difference."""
    assert result.step is not None
    found: dict[str, float] = {one.code: one.diff_ms for one in result.causes}
    assert sum(found.values()) == pytest.approx(result.step.diff_ms, abs=1e-9)
    return found


# the test over steps


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]),
        ([1.0, 1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 9.0]),
        ([5.0], [5.0, 5.0]),
    ],
)
def test_the_exact_test_counts_every_way_to_share_out_the_steps(a: list[float], b: list[float]) -> None:
    """Against the definition, by going through them all."""
    everything = [*a, *b]

    def rank(value: float) -> float:
        return sum(other < value for other in everything) + sum(other == value for other in everything) / 2

    middle = len(a) * sum(map(rank, everything)) / len(everything)
    seen = abs(sum(map(rank, a)) - middle)
    sums = [sum(map(rank, some)) for some in itertools.combinations(everything, len(a))]
    extreme = sum(abs(one - middle) >= seen - 1e-9 for one in sums)
    assert rank_test((a, b)) == pytest.approx(extreme / math.comb(len(everything), len(a)))


def test_the_test_as_in_the_tables_and_for_many_steps_close_to_the_exact_one() -> None:
    # Mann and Whitney 1947, table for n = 5, m = 5: P(U <= 2) = 0.016, one-sided
    assert rank_test(([1, 2, 3, 4, 7], [5, 6, 8, 9, 10])) == pytest.approx(2 * 4 / math.comb(10, 5))
    a, b = [float(x) for x in range(30)], [x + 3.5 for x in range(30)]
    many = rank_test(([*a, 100.0], [*b, 101.0]))  # one more on each side: the normal distribution
    assert many == pytest.approx(rank_test((a, b)), rel=0.25)
    assert rank_test(([1.0] * 40, [1.0] * 40)) == 1.0
    assert smallest_p((4, 4)) == pytest.approx(2 / 70)


def test_the_interval_holds_the_shift_it_was_made_with() -> None:
    base = [float(x % 7) for x in range(40)]
    for a, b in ((base[:12], base[12:24]), (base, base)):
        found = shift((a, [x + 2.0 for x in b]))
        assert found.low <= 2.0 <= found.high and found.level >= 0.95


def test_the_test_by_kind_counts_every_way_to_share_out_each_kind() -> None:
    """Against the definition, by going through them all; ties included."""
    kinds = [([1.0, 2.0, 2.0], [2.0, 3.0, 5.0]), ([11.0, 14.0], [12.0, 12.0, 15.0])]

    def uneven(some: Sequence[float], rest: Sequence[float]) -> float:
        return sum((b > a) - (b < a) for a in some for b in rest)

    def shared_out(kind: tuple[list[float], list[float]]) -> list[float]:
        every = [*kind[0], *kind[1]]
        ways = itertools.combinations(range(len(every)), len(kind[0]))
        return [
            uneven([every[at] for at in way], [every[at] for at in range(len(every)) if at not in way])
            for way in ways
        ]

    seen = abs(sum(uneven(*kind) for kind in kinds))
    sums = [one + other for one in shared_out(kinds[0]) for other in shared_out(kinds[1])]
    assert rank_test(*kinds) == pytest.approx(sum(abs(one) >= seen for one in sums) / len(sums))


def test_steps_that_are_short_and_long_by_turns_are_compared_with_their_own_kind() -> None:
    noise = [0.0, 0.3, -0.2, 0.1, -0.1, 0.25, 0.05, -0.3]
    before = [60 + 3 * (at % 2) + more for at, more in enumerate(noise)]
    after = [61 + 3 * (at % 2 == 0) + more for at, more in enumerate(reversed(noise))]
    step = step_change(before, after, medians=(spread(before), spread(after)), identical=False)
    assert step.by_kind and step.state == "slower" and step.shift_low_ms > 0
    for one, ms in zip(step.kinds, (60.0, 63.0), strict=True):  # the recording after begins with a long one
        assert one.before.median == pytest.approx(ms, abs=0.2)
        assert one.after.median == pytest.approx(ms + 1, abs=0.2)
    mixed = [before[0], *before[2::2], *before[1::2]]  # the same times without a pattern
    plain = step_change(mixed, after, medians=(spread(mixed), spread(after)), identical=False)
    assert plain.kinds == [] and plain.state == "inconclusive"
    runs = step_change(before, after, medians=(spread(before), spread(after)), identical=False, what="runs")
    assert runs.kinds == []  # runs follow on nothing
    assert "of runs" in runs.test and "of runs" not in plain.test and plain.test != step.test


def test_a_recording_of_more_short_steps_is_not_a_faster_one() -> None:
    """5 steps against 4: the medians of all would be of a short step and of a mean of both kinds."""
    before, after = [58.6, 61.8, 58.5, 61.9, 58.7], [59.5, 62.5, 59.6, 62.4]
    step = step_change(before, after, medians=(spread(before), spread(after)), identical=False)
    assert step.by_kind and step.state == "slower"
    assert step.diff_ms == pytest.approx((59.55 - 58.6 + 62.45 - 61.85) / 2)
    assert step.shift_low_ms <= step.diff_ms <= step.shift_high_ms
    assert mixed_otherwise(step)
    even = step_change(before[:4], after, medians=(spread(before[:4]), spread(after)), identical=False)
    assert even.kinds and not mixed_otherwise(even)


def test_what_one_trace_does_not_show_is_no_other_shape() -> None:
    """d10 is d1's script without shapes and with one short step more."""
    result = compare_reports(shared("d10"), shared("d1"))
    step = result.step
    assert step is not None and step.shift_low_ms <= step.diff_ms <= step.shift_high_ms
    sides = [(one.before, one.after) for one in result.gemms if one.state == "shape_changed"]
    assert all(old and new and old.m and new.m for old, new in sides)
    assert any(one.state == "shape_unknown" for one in result.gemms)
    assert not [one for one in result.changes if one.kind == "communication"]  # means over another mix


def test_gemms_that_all_changed_by_less_than_kernels_differ_are_no_drift() -> None:
    base = shared("d1")
    for factor, drifts in ((1.05, True), (1.006, False)):
        after = with_steps(slower_gemms(base, factor), [61.0, 62.0, 63.0, 64.0])
        assert ("gemms_alike" in caused(compare_reports(base, after))) is drifts


def test_how_often_the_answer_is_wrong() -> None:
    """Over 200 seeds of 6 independent steps with 1 % of noise: the exact test's own level is 4.1 %."""
    how: dict[str, Any] = {"count": 6, "noise": 0.01, "neighbour": 0.0, "runs": 0.0}
    unchanged = answers(0.0, 200, **how)
    assert unchanged["faster"] + unchanged["slower"] <= 0.041 * 200 + 2 * (0.041 * 0.959 * 200) ** 0.5
    for change in (0.05, 0.9):
        assert answers(change, 200, **how) == {"slower": 200}


# what must hold on real traces


def test_the_gradient_hook_is_named_and_the_gpus_pace_is_not_taken_for_a_change() -> None:
    result = compare_reports(shared("d1"), shared("d1b"))
    assert result.step is not None and result.step.state == "inconclusive"  # 4 steps of two lengths each
    assert result.step.p is not None and result.step.p > 0.05
    assert not result.step.by_kind  # of 2 and 2 of each kind no test can say anything
    medians = [ms for one in result.step.kinds for ms in (one.before.median, one.after.median)]
    assert medians == pytest.approx([59.54, 59.29, 62.47, 61.59], abs=0.01)
    assert [change.kind for change in result.changes] == ["communication"]
    assert "reduce_scatter" in result.changes[0].said and " backward" in result.changes[0].said
    assert {row.component for row in result.components if row.beyond_noise} == {"communication"}
    assert not [one for one in result.gemms if one.state != "same_shape" or one.beyond_noise]
    assert result.noise is not None and -0.03 < result.noise.mid_frac < 0
    assert caused(result)["exposed_communication"] == pytest.approx(3.02 - 3.24, abs=0.01)


def test_ranks_of_one_job_differ_in_no_component_that_does_the_same() -> None:
    """One of the windows holds part of an earlier step: it counts in no step."""
    folder = SHARED / "job_h100_nanogpt_8ranks"
    if not folder.is_dir():
        pytest.skip("no job beside this checkout")
    result = compare_reports(*(report(folder / f"rank{rank}_trace.json.gz") for rank in (0, 1)))
    named = {row.component for row in result.components if row.beyond_noise}
    assert named <= {"communication", "optimizer"}  # each rank has parameters of its own to update
    assert "different ranks: 0 and 1" in result.caveats


@pytest.mark.parametrize("name", ["d1", "d2", "d3", "d5", "d6", "d7", "d8"])
def test_a_trace_against_itself_shows_no_change(name: str) -> None:
    one = shared(name)
    result = compare_reports(one, one)
    assert result.step is not None and result.step.state == "identical" and not result.causes
    assert not result.changes and not [row for row in result.components if row.beyond_noise]
    hidden = [row for row in result.gemms if row.state == "shape_unknown"]  # nor is it known to be the same
    assert all(row.before is not None and row.before.m is None for row in hidden)
    same = [row for row in result.gemms if row not in hidden]
    assert all(row.state == "same_shape" for row in same)
    assert all(not row.changed and row.diff_ms == 0 for row in result.gemms)


def test_other_gpus_are_refused_and_across_them_no_time_is_compared() -> None:
    a, b = shared("d2"), shared("d3")
    with pytest.raises(UsageError, match=r"different GPUs .*RTX 3060.*H100.*--across"):
        compare_reports(a, b)
    result = compare_reports(a, b, across=True)
    assert result.not_compared and result.step is None and result.noise is None and not result.components
    data = json.loads(compare_json(result))
    assert {
        side["time_ms_per_step"] for row in data["gemms"] for side in (row["before"], row["after"]) if side
    } == {None}
    assert {row["diff_ms"] for row in data["gemms"]} == {None}
    assert any(
        row.before and row.after and row.before.peak_frac and row.after.peak_frac for row in result.gemms
    )


# what must hold on the samples


def test_the_vocabulary_and_the_logits_gemms_are_named() -> None:
    before, after = (report(path) for path in SAMPLES)
    result = compare_reports(before, after)
    assert result.changes[0].said == "vocab 50257 -> 50304"
    reshaped = [one for one in result.gemms if one.state == "shape_changed"]
    assert {(one.component, one.role) for one in reshaped} == {
        ("logits", role) for role in ("forward", "dgrad", "wgrad")
    }
    assert {one.component for one in result.gemms if one.beyond_noise} == {"logits"}
    assert {row.component for row in result.components if row.beyond_noise} == {"logits"}
    finding, other = result.findings
    assert (finding.rule, finding.state) == ("TL101", "acted_on")
    assert (other.rule, other.state) == ("TL132", "still_there")
    assert finding.agrees in ("as predicted", "less than predicted", "more than predicted")
    assert finding.measured_ms == pytest.approx(-sum(one.diff_ms or 0 for one in reshaped))


def test_two_steps_on_each_side_are_too_few_and_it_says_so() -> None:
    before, after = (report(path) for path in SAMPLES)
    result = compare_reports(with_steps(before, [40.0, 41.0]), with_steps(after, [31.0, 32.0]))
    assert result.step is not None and result.step.state == "too_few_steps" and result.step.p is None
    assert "too few" in result.verdict


def test_the_samples_have_steps_enough_for_a_verdict() -> None:
    step = compare_reports(*map(report, SAMPLES)).step
    assert step is not None and step.state == "faster" and step.p == pytest.approx(2 / 70)
    times = [one.duration_ms for path in SAMPLES for one in report(path).steps]
    assert len(set(times)) == len(times) == 8, "of equal steps a test says nothing"


def test_samples_say_that_they_are_not_measured() -> None:
    before, after = (report(path) for path in SAMPLES)
    assert "before: generated, not measured" in compare_reports(before, after).caveats


# what decides


BASE = [100.0, 101.0, 99.0, 100.5, 100.2, 99.7]


def test_a_step_that_truly_changed_is_called_faster_or_slower() -> None:
    one = sample_report.full()
    for factor, state in ((0.93, "faster"), (1.07, "slower")):
        after = with_steps(one, [ms * factor for ms in BASE])
        after = replace(after, model=replace(after.model, vocab=Known(50304, "made up")))
        result = compare_reports(with_steps(one, BASE), after)
        assert result.step is not None and result.step.state == state
        assert result.step.p is not None and result.step.p < 0.05
        said = rf"{state.capitalize()}: step 100 → [\d.]+ ms, [−+]7\.0% \(p = 0\.002\d*\)\."
        assert re.fullmatch(said, result.verdict)


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (BASE, [ms + 0.1 for ms in BASE], "no_change"),  # 2 ms more or less is excluded
        ([90.0, 118.0, 95.0, 112.0], [99.0, 107.0, 94.0, 110.0], "inconclusive"),
        ([100.0, 101.0, 250.0], [190.0, 192.0, 191.0], "too_few_steps"),  # +89 %
        ([100.0, 101.0, 250.0, 251.0], [190.0, 191.0, 192.0, 193.0], "inconclusive"),
        ([100.0] * 4 + [200.0], [100.0] * 3 + [200.0] * 2, "inconclusive"),  # the same median
        ([1.0, 100.0, 100.0, 100.0, 101.0], [101.5, 102.0, 102.5, 103.0, 103.0], "slower"),
    ],
)
def test_no_change_is_claimed_only_where_one_of_practical_size_is_excluded(
    before: list[float], after: list[float], state: str
) -> None:
    one = sample_report.full()
    result = compare_reports(with_steps(one, before), with_steps(one, after))
    assert result.step is not None and result.step.state == state


def test_a_gemm_of_the_same_shape_that_became_slower_stands_out_of_the_noise() -> None:
    one = sample_report.full()
    before = with_steps(one, BASE)
    result = compare_reports(before, slower_gemms(with_steps(one, BASE[::-1]), 1.3, only="mlp.down"))
    moved = {row.component for row in result.gemms if row.beyond_noise}
    assert moved == {"mlp.down"}
    assert result.noise is not None and result.noise.high_frac < 0.1


def test_few_comparable_gemms_leave_the_noise_unknown_and_nothing_is_judged(said: Listener) -> None:
    one = sample_report.full()
    before = replace(with_steps(one, BASE), gemms=one.gemms[:2])
    after = replace(with_component(with_steps(one, BASE[::-1]), "norm", 2), gemms=one.gemms[:2])
    result = compare_reports(before, after)
    assert result.noise is None
    assert [row for row in result.components if row.component == "norm" and row.beyond_noise is None]
    said(result.caveats)


def test_communication_that_only_took_longer_is_not_called_a_change() -> None:
    one = sample_report.full()
    after = with_component(with_steps(one, BASE[::-1]), "communication", 3)
    result = compare_reports(with_steps(one, BASE), after)
    told = [row.beyond_noise for row in result.components if row.component == "communication"]
    assert told and True not in told


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, trace=replace(r.trace, world_size=16)),
        lambda r: replace(r, gpu=replace(r.gpu, sms=114)),
        lambda r: replace(r, gemms=[replace(g, math_dtype="fp8") for g in r.gemms]),
    ],
)  # fmt: skip
def test_what_makes_times_incomparable_is_refused(change: Callable[[Report], Report], said: Listener) -> None:
    one = sample_report.full()
    with pytest.raises(UsageError) as refused:
        compare_reports(one, change(one))
    assert compare_reports(one, change(one), across=True).step is None
    assert "\n" not in str(refused.value)
    said(str(refused.value))


def test_logits_in_another_dtype_are_the_same_gemms_with_another_dtype() -> None:
    """Most GEMM time is still bf16, so times compare."""
    one = with_steps(sample_report.full(), BASE)
    rows = [replace(g, math_dtype="fp8", kernel="q") if g.component == "logits" else g for g in one.gemms]
    result = compare_reports(one, replace(one, gemms=rows))
    changed = [row for row in result.gemms if row.changed]
    assert changed and {row.component for row in changed} == {"logits"}
    assert all(row.state == "same_shape" and "dtype bf16 -> fp8" in row.changed for row in changed)


def test_a_generated_trace_is_said_before_all_else() -> None:
    assert render_markdown(compare_reports(*map(report, SAMPLES))).startswith("*Generated trace, not a meas")


@pytest.mark.parametrize(
    ("tokens", "state"), [((90, 110, 101), "same_shape"), ((180, 220, 200), "shape_changed")]
)
def test_experts_of_equal_weights_are_one_gemm_however_many_tokens_each_got(
    tokens: tuple[int, ...], state: str, said: Listener
) -> None:
    before, after = (
        replace(
            sample_report.full(),
            gemms=[
                gemm(at, m, 512, 1024, component="moe.experts", time_us=float(m), shape_known="exact")
                for at, m in enumerate(loads)
            ],
        )
        for loads in ((100, 70, 130), tokens)
    )
    (one,) = match_gemms(before, after)
    assert one.state == state and one.before is not None and one.after is not None
    assert one.before.ids == ["g0", "g1", "g2"] and (one.before.m, one.before.calls_per_step) == (None, 3.0)
    assert one.after.time_ms_per_step == pytest.approx(sum(tokens) / 1e3)
    said(shape(one.before), shape_change(one))


def test_every_gemm_is_in_the_comparison_once() -> None:
    for a, b in (
        (shared("d1"), shared("d1b")),
        (shared("d2"), shared("d6")),
        (report(SAMPLES[0]), report(SAMPLES[1])),
    ):
        changes = match_gemms(a, b)
        for one, side in ((a, "before"), (b, "after")):
            ids = [i for change in changes if (got := getattr(change, side)) for i in got.ids]
            assert sorted(ids) == sorted(row.id for row in one.gemms)


@pytest.mark.parametrize(
    ("vocab", "saving", "state", "agrees"),
    [
        (50304, Estimate(6.9, 7.8, 8.4, "model"), "acted_on", "as predicted"),
        (50304, Estimate(20.0, 30.0, 40.0, "model"), "acted_on", "less than predicted"),
        (50304, Estimate(1.0, 2.0, 3.0, "model"), "acted_on", "more than predicted"),
        (50304, Estimate(0.0, None, 9.0, "heuristic"), "acted_on", "within the bound"),
        (50304, Estimate(0.0, None, 7.0, "heuristic"), "acted_on", "more than the bound"),
        (51200, Estimate(6.9, 7.8, 8.4, "model"), "changed_otherwise", None),
        (50257, Estimate(6.9, 7.8, 8.4, "model"), "still_there", None),
        (None, Estimate(6.9, 7.8, 8.4, "model"), "cannot_tell", None),
    ],
)  # fmt: skip
def test_what_became_of_a_finding(
    vocab: int | None, saving: Estimate, state: str, agrees: str | None
) -> None:
    one = sample_report.full()
    finding = replace(next(f for f in one.findings if f.rule == "TL101"), saving_ms=saving)
    before = replace(with_steps(one, BASE), findings=[finding])
    # its GEMMs take 7.5 ms less after
    total = sum(row.time_ms_per_step for row in one.gemms if row.id in finding.gemms)
    gemms = [
        replace(row, time_ms_per_step=row.time_ms_per_step * (1 - 7.5 / total))
        if row.id in finding.gemms
        else row
        for row in one.gemms
    ]
    after = replace(
        with_steps(one, BASE[::-1]),
        gemms=gemms,
        model=replace(one.model, vocab=Known(vocab, "made up")),
        findings=[finding] if vocab == 50257 else [],
    )
    (outcome,) = compare_reports(before, after).findings
    assert (outcome.state, outcome.agrees) == (state, agrees)
    if state == "acted_on":
        assert outcome.measured_ms == pytest.approx(7.5)


@pytest.mark.parametrize(("checked", "state"), [("could_not_run", "cannot_tell"), ("passed", "gone")])
def test_a_finding_that_nothing_looked_for_again_is_not_gone(checked: CheckState, state: str) -> None:
    """On an AMD GPU no rule of alignment runs: the vocabulary that was off the grid still is."""
    one = sample_report.full()
    before = replace(one, findings=[found for found in one.findings if found.rule == "TL101"])
    after = replace(one, findings=[], checks=[Check("TL101", "pad-vocabulary", checked, "")])
    assert compare_reports(before, after).findings[0].state == state


def test_what_was_predicted_and_measured_is_said_once(said: Listener) -> None:
    result = compare_reports(*(report(path) for path in SAMPLES))
    first, line = foretold(result.findings, generated=True)[0], outcome_lines(result)[0]
    clause = against(result.findings[0], generated=True)
    assert clause[1:] in first and clause not in line
    said(line)


@pytest.mark.parametrize(
    ("heads", "head_dim", "state"),
    [(20, 128, "acted_on"), (32, 128, "changed_otherwise"), (32, 80, "gone"), (None, 128, "cannot_tell")],
)
def test_a_part_of_a_change_is_another_change(heads: int | None, head_dim: int, state: str) -> None:
    one = with_steps(sample_report.full(), BASE)
    finding = replace(one.findings[0], change={"head_dim": [80, 128], "heads": [32, 20]})
    model = replace(one.model, heads=Known(heads, "made up"), head_dim=Known(head_dim, "made up"))
    (outcome,) = compare_reports(
        replace(one, findings=[finding]), replace(one, findings=[], model=model)
    ).findings
    assert outcome.state == state


@pytest.mark.parametrize(
    ("kind", "check", "state"),
    [
        ("data", "found", "still_there"),
        ("pageable", "found", "gone"),
        (None, "not_applicable", "gone"),
        (None, "could_not_run", "cannot_tell"),
    ],
)
def test_findings_of_one_rule_that_change_no_parameter_are_told_apart(
    kind: str | None, check: CheckState, state: str
) -> None:
    one = sample_report.full()
    waits = replace(one.findings[0], rule="TL122", change={}, evidence={"kind": "data"})
    found = [] if kind is None else [replace(waits, evidence={"kind": kind})]
    checks = [Check("TL122", "host-waits", check, "made up")]
    before = replace(with_steps(one, BASE), findings=[waits])
    after = replace(with_steps(one, BASE[::-1]), findings=found, checks=checks)
    (outcome,) = compare_reports(before, after).findings
    assert outcome.state == state


# how it is given out


def hostile() -> Comparison:
    bad = sample_report.HOSTILE_NAMES
    one = sample_report.full()
    gemms = [
        replace(row, shape_note=bad[at % len(bad)], m=None, kernel=bad[2]) for at, row in enumerate(one.gemms)
    ]
    evil = replace(one, trace=replace(one.trace, path=bad[1] + bad[0], torch_version=bad[4]), gemms=gemms)
    after = replace(with_steps(one, BASE), trace=replace(one.trace, path=bad[0], sha256="0" * 64))
    return compare_reports(evil, after)


def test_json_follows_the_published_schema() -> None:
    before, after = (report(path) for path in SAMPLES)
    validator = jsonschema.Draft202012Validator(json_schema("comparison"))
    for result in (compare_reports(before, after), hostile()):
        assert list(validator.iter_errors(json.loads(compare_json(result)))) == []


def test_hostile_names_stay_text_in_markdown_and_terminal() -> None:
    import io

    from rich.console import Console

    from tracelens.render.compare_terminal import render_compare

    result = hostile()
    text = render_markdown(result)
    assert "\x1b" not in text and "\u202e" not in text and "\u2028" not in text
    assert not re.search(r"(?<!\\)<|(?<!\\)\[", text)
    stream = io.StringIO()
    render_compare(result, console=Console(file=stream, width=80, force_terminal=False))
    assert "\x1b" not in stream.getvalue() and "\u202e" not in stream.getvalue()
    assert "alert" in stream.getvalue()  # shown, as text
    page = render_compare_html(result)
    assert "alert" in only_ours(page).text  # shown, as text
    assert "&lt;/script&gt;&lt;img" in page


def test_the_page_is_small_needs_no_network_and_says_what_the_terminal_says() -> None:
    page = render_compare_html(compare_reports(*map(report, SAMPLES)))
    assert len(page) < 100_000 and "http" not in re.sub(r"http-equiv", "", page)
    assert "Generated trace, not a measurement" in page and "<li>vocab 50257 → 50304</li>" in page
    across = render_compare_html(compare_reports(shared("d2"), shared("d3"), across=True))
    told = Parsed(across).text
    assert not re.search(r"\d ms|\d µs", told) and "56.7% → 4.9%" in told


def test_the_function_takes_paths_analyses_and_reports(tmp_path: Path) -> None:
    analysis = analyzed(SAMPLES[0])
    analysis.save(tmp_path / "before.json")
    results = [
        tracelens.compare(one, SAMPLES[1])
        for one in (SAMPLES[0], analysis, analysis.report, tmp_path / "before.json")
    ]
    assert all(result == results[0] for result in results)


# the command


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return running.run("compare", *arguments, cwd=cwd, COLUMNS="80")


def test_a_trace_and_a_report_are_compared_and_files_written(tmp_path: Path) -> None:
    Analysis(report(SAMPLES[0])).save(tmp_path / "before.json")
    done = run(
        str(tmp_path / "before.json"),
        str(SAMPLES[1]),
        "--json",
        "c.json",
        "--markdown",
        "c.md",
        "-o",
        "c.html",
        cwd=tmp_path,
    )
    assert done.returncode == 0 and done.stderr == ""
    assert "vocab 50257 → 50304" in done.stdout and "wrote c.json" in done.stdout
    assert json.loads((tmp_path / "c.json").read_text())["changes"][0]["name"] == "vocab"
    assert "vocab 50257 → 50304" in (tmp_path / "c.md").read_text()


def test_a_report_of_an_older_version_is_read(tmp_path: Path) -> None:
    """Fields that came later are at their defaults."""
    Analysis(report(SAMPLES[0])).save(tmp_path / "new.json")
    data = json.loads((tmp_path / "new.json").read_text())
    for name in ("communication", "recording", "reference", "gemm_time", "notes"):
        del data[name]
    del data["summary"]["unprofiled"]
    (tmp_path / "old.json").write_text(json.dumps(data, sort_keys=True))
    result = tracelens.compare(tmp_path / "old.json", SAMPLES[1])
    assert result.changes[0].said == "vocab 50257 -> 50304"


def damaged(folder: Path) -> dict[str, bytes]:
    Analysis(report(SAMPLES[0])).save(folder / "whole.json")
    whole = (folder / "whole.json").read_bytes()
    return {
        "cut.json": whole[: len(whole) // 2],
        "schema0.json": whole.replace(b'"schema_version": "1.1"', b'"schema_version": "0.9"', 1),
        "lacking.json": b'{"schema_version": "1.0", "tool_version": "0.0.1", "trace": {}}',
        "empty.json": b"",
        "other.json": b'{"a": 1}',
        "bytes.json": os.urandom(64),
        "nogpu.json.gz": gzip.compress(b'{"traceEvents": []}'),
    }


@pytest.mark.parametrize(
    "name",
    ["cut.json", "schema0.json", "lacking.json", "empty.json", "other.json", "bytes.json", "nogpu.json.gz",
     "missing"],
)  # fmt: skip
def test_an_input_that_cannot_be_used_is_one_clear_line(name: str, tmp_path: Path) -> None:
    made = damaged(tmp_path)
    if name in made:
        (tmp_path / name).write_bytes(made[name])
    done = run(str(SAMPLES[0]), str(tmp_path / name))
    assert done.returncode == 3 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("tracelens: ") and name in line and line.isprintable()


def test_other_gpus_end_with_wrong_use() -> None:
    shared("d2"), shared("d3")
    files = [str(next(SHARED.glob(f"{name}_*"))) for name in ("d2", "d3")]
    done = run(*files)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert "different GPUs" in done.stderr and "--across" in done.stderr
    assert run(*files, "--across").returncode == 0


def test_both_inputs_or_both_outputs_cannot_be_standard_streams() -> None:
    assert run("-", "-").returncode == 2
    assert run(str(SAMPLES[0]), str(SAMPLES[1]), "--json", "-", "--markdown", "-").returncode == 2
