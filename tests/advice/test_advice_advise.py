"""All rules together: order, one check each, nothing counted twice, and the words used."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import tracelens
from tests.advice.advice_rows import (
    H100,
    UNKNOWN_GPU,
    attention,
    bert_small_logits,
    cutlass,
    facts,
    flash2,
    gemm,
    model,
)
from tests.advice.test_advice_claims import strings
from tests.kept import analyzed
from tests.render import sample_report
from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.results import Estimate, GemmRow
from tracelens.rules import RULES, StepFacts, advise, explain
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.rule import Rule

SAMPLES = Path(__file__).parents[2] / "sample_traces"
BANNED = re.compile(r"\bup to\b|\bmay\b|\bconsider|\bsub-optimal", re.IGNORECASE)
HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "\x1b[31mred\x1b[0m",
    "cutlass_" + "9" * 5000,
    "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align99999999999999999999",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg99_f2f_tn",
    "flash_fwd_kernel<Flash_fwd_kernel_traits<0, 0, 0, 0>",
    "\ud800",
    "",
]


def everything() -> StepFacts:
    """A step in which the rules of shapes find something, two of them in the same row."""
    dims = model(hidden=2562, heads=32, kv_heads=8, head_dim=80, ffn=10922, vocab=50257, layers=32,
                 sequence=2047, micro_batch=1, tensor_parallel=2)  # fmt: skip
    up = gemm(2, 2047, 10922, 2562, kernel=cutlass(2), calls=32, names=("b*s", "f", "h"))
    down = gemm(
        3, 2047, 2562, 10922, component="mlp.down", kernel="unnamed", calls=32, names=("b*s", "h", "f")
    )
    logits = gemm(1, 2047, 50257, 2562, component="logits", kernel=cutlass(1), time_us=4000.0)
    odd = gemm(4, 2047, 7, 2562, component="moe.router", kernel=cutlass(2), calls=32)
    view = gemm(5, 2048, 4096, 4096, component="attention.qkv", kernel=cutlass(4), calls=32)
    scores = gemm(
        6, 2047, 2047, 80, batch=32, component="attention.scores", kernel=cutlass(1), names=("s", "s", "d")
    )
    flash = attention(7, 80, kernel=flash2(96))
    return facts(logits, up, down, odd, view, scores, flash, step_ms=600.0, dims=dims, gpu_busy_frac=0.42)


def test_every_rule_gives_exactly_one_check_in_order() -> None:
    for step in (everything(), facts(), facts(gemm(1, 64, 64, 64)), facts(bert_small_logits(), step_ms=None)):
        checks = advise(step).checks
        assert [check.rule for check in checks] == [rule.id for rule in RULES]
        assert all(check.state in ("found", "passed", "not_applicable", "could_not_run") for check in checks)
        assert all(check.why for check in checks)


def test_findings_come_by_time_at_stake() -> None:
    advice = advise(everything())
    highs = [finding.saving_ms.high or 0.0 for finding in advice.findings]
    assert highs == sorted(highs, reverse=True)
    assert {finding.rule for finding in advice.findings} >= {"TL101", "TL102", "TL103", "TL110", "TL114"}


def test_a_gemm_that_two_findings_name_counts_once() -> None:
    advice = advise(everything())
    named = [row for finding in advice.findings for row in finding.gemms]
    assert len(named) > len(set(named))
    per_row: dict[str, float] = {}
    for finding in advice.findings:
        for entry in finding.evidence["rows"]:
            per_row[entry["gemm"]] = max(per_row.get(entry["gemm"], 0.0), entry["bound_ms"])
    assert advice.at_stake_ms is not None
    assert advice.at_stake_ms.high == pytest.approx(sum(per_row.values()))
    assert sum(per_row.values()) < sum(finding.saving_ms.high or 0.0 for finding in advice.findings)


def test_no_saving_is_invented() -> None:
    advice = advise(everything())
    assert advice.at_stake_ms is not None
    for estimate in [
        advice.at_stake_ms,
        *(f.saving_ms for f in advice.findings),
        *(f.saving_frac for f in advice.findings),
    ]:
        assert (estimate.low, estimate.mid, estimate.basis) == (0.0, None, "heuristic")
    for finding in advice.findings:
        assert finding.basis == "heuristic"
        assert finding.saving_of == "gpu_work"
        assert (finding.saving_frac.high or 0.0) <= 1.0


def test_nothing_is_at_stake_in_a_clean_step() -> None:
    advice = advise(facts(gemm(1, 2048, 2560, 2560), attention(2, 64)))
    assert advice.findings == [] and advice.at_stake_ms is None


def test_the_rows_bound_never_exceeds_the_step() -> None:
    advice = advise(facts(bert_small_logits(time_us=5000.0), step_ms=1.0))
    assert advice.at_stake_ms is not None and advice.at_stake_ms.high == 1.0
    assert advice.findings[0].saving_frac.high == 1.0


def test_the_words_are_plain() -> None:
    steps = [
        everything(),
        replace(everything(), gpu=UNKNOWN_GPU),
        facts(bert_small_logits(), step_ms=1e6),
        facts(),
    ]
    steps.append(facts(gemm(1, None, None, None), gpu=replace(H100, vendor="amd")))
    for step in steps:
        for text in strings(asdict(advise(step))):
            assert not BANNED.search(text), text


def test_findings_are_whole_sentences_and_titles_are_imperative() -> None:
    for finding in advise(everything()).findings:
        assert finding.title.split()[0] in {"Pad", "Change", "Align", "Use", "Cut"}
        assert re.search(r"\d", finding.title)
        for text in (finding.saw, finding.why, finding.how, *finding.caveats):
            assert (
                text[0].isupper()
                or text[0].isdigit()
                or text.startswith(("head_dim", "ffn", "hidden", "sequence"))
            ), text
            assert text.endswith("."), text
            assert "  " not in text and "None" not in text, text


def test_findings_are_plain_values() -> None:
    for finding in advise(everything()).findings:
        assert json.loads(json.dumps(asdict(finding)))["rule"] == finding.rule
        assert all(len(pair) == 2 for pair in finding.change.values())


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_kernel_names_stay_out_of_sentences(name: str) -> None:
    def dressed(row: GemmRow) -> GemmRow:
        return replace(row, kernel=name, shape_note=name if row.kind == "gemm" else row.shape_note)

    step = everything()
    advice = advise(replace(step, gemms=[dressed(row) for row in step.gemms]))
    assert len(advice.checks) == len(RULES)
    for text in strings([asdict(finding) for finding in advice.findings]):
        assert len(text) < 3000
        assert not name or name not in text


def test_odd_numbers_do_not_break() -> None:
    broken = gemm(1, 0, 30522, 512, component="logits", time_us=float("nan"))
    odd = facts(broken, gemm(2, 0, 0, 0), attention(3, 0), dims=model(heads=0, head_dim=0, hidden=0))
    assert [check.rule for check in advise(odd).checks] == [rule.id for rule in RULES]


def test_every_rule_has_a_page_with_its_sections() -> None:
    for rule in RULES:
        page = explain(rule.id)
        assert page == explain(rule.slug) == explain(rule.id.lower())
        assert page.startswith(f"# {rule.id} {rule.slug}\n")
        sections = re.findall(r"^## (.+)$", page, flags=re.MULTILINE)
        assert sections == ["What it does", "Why it costs", "Example", "What to do", "How it is estimated"]
        assert not BANNED.search(page)


def test_findings_point_at_their_page() -> None:
    for finding in advise(everything()).findings:
        assert finding.doc == f"docs/rules/{finding.rule}.md"


def test_an_unknown_rule_names_the_known_ones() -> None:
    for wrong in ("TL999", "../../pyproject", "", "zz", "ad", "x" * 500):
        with pytest.raises(UsageError, match=r"TL101 \(pad-vocabulary\)") as error:
            explain(wrong)
        assert all(f"{rule.id} ({rule.slug})" in str(error.value) for rule in RULES)
        names = sum(len(f"{rule.id} ({rule.slug}), ") for rule in RULES)
        assert len(str(error.value)) < names + 80, "what was asked for is cut"


def test_no_source_line_uses_a_banned_word() -> None:
    for room in ("rules", "step", "config"):
        for path in (Path(tracelens.__file__).parent / room).rglob("*.py"):
            assert not BANNED.search(path.read_text(encoding="utf-8")), path


class MadeUp(Rule):
    """A rule that finds rows with what each has at stake, and the saving (None: only a bound)."""

    id = "TL111"
    slug = "made-up"
    title = "made up"

    def __init__(self, *made: tuple[dict[str, float], Estimate | None]) -> None:
        self.made = made

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """One candidate for each."""
        return [
            Candidate(
                title="Do it", saw="", change={}, fix=[], caveats=[], confidence="high", effort="code",
                components=["mlp.up"], kernels=rows, saving=saving,
            )
            for rows, saving in self.made
        ], ""  # fmt: skip


def test_what_is_only_bounded_is_in_no_prediction() -> None:
    """SAM's eager trace: 451 ms predicted, 394 to 459, and bounds of 92, 91 and 15 in other rows."""
    rule = MadeUp(
        ({"g1": 600.0}, Estimate(394.0, 451.0, 459.0, "model")),
        ({"g4": 92.0}, None),
        ({"o1": 91.0}, None),
        ({"g10": 15.0}, None),
    )
    advice = advise(facts(gemm(1, 64, 64, 64), step_ms=1394.0), rules=[rule])
    assert advice.at_stake_ms == Estimate(394.0, 451.0, 459.0, "model")
    assert advice.open_ms == pytest.approx(92.0 + 91.0 + 15.0)


def test_of_rows_that_two_predictions_share_the_second_counts_the_rest() -> None:
    first = {"g1": 0.3, "g5": 0.01}, Estimate(0.2, 0.284, 0.296, "model")
    second = {"g5": 0.01, "o1": 0.03}, Estimate(0.0, 0.032, 0.036, "model")
    advice = advise(facts(gemm(1, 64, 64, 64), step_ms=1.2), rules=[MadeUp(first, second)])
    assert advice.at_stake_ms is not None and advice.open_ms == 0.0
    assert advice.at_stake_ms.mid == pytest.approx(0.284 + 0.032 * 0.03 / 0.04)


def test_together_they_save_at_most_no_less_than_one_of_them_at_most() -> None:
    """Both are of the same rows: the surer one counts, and the other can still save more."""
    sure = {"g1": 20.0}, Estimate(5.0, 10.0, 11.0, "model")
    wide = {"g1": 20.0}, Estimate(0.0, 9.0, 15.0, "model")
    advice = advise(facts(gemm(1, 64, 64, 64), step_ms=100.0), rules=[MadeUp(sure, wide)])
    assert advice.at_stake_ms == Estimate(5.0, 10.0, 15.0, "model")


def test_attention_is_absent_where_nothing_that_was_not_told_apart_can_be_attention() -> None:
    """An MLP classifier: addmm, relu and sums without a component, and no operator of attention."""
    covered = sample_report.full().coverage
    step = facts(gemm(1, 64, 64, 64, component="unattributed"), dims=model(False))
    for frac, state in ((0.0, "not_applicable"), (0.7, "could_not_run")):
        left = replace(covered, component_frac=0.2, other_frac=0.0, opaque_frac=0.0, attention_open_frac=frac)
        states = {check.rule: check.state for check in advise(replace(step, coverage=left)).checks}
        assert states["TL103"] == states["TL117"] == states["TL112"] == state


@pytest.mark.parametrize("wrong", ["vocab", "pad"])
def test_a_part_of_a_name_finds_its_rules(wrong: str, said: Listener) -> None:
    with pytest.raises(UsageError) as found:
        explain(wrong)
    said(found.value)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*_cudagraph.json.gz")), ids=lambda path: path.name)
def test_replays_queued_before_the_steps_are_rows_of_those_in_them(path: Path) -> None:
    """Beside them each such GEMM was a row without a time."""
    report = analyzed(path).report
    time = {row.id: row.time_ms_per_step for row in report.gemms}
    assert all(time.values())
    assert all(time[row] > 0 for finding in report.findings for row in finding.gemms)


def test_what_was_queued_before_the_steps_is_shown_to_no_rule() -> None:
    shown: list[str] = []

    class Listening(MadeUp):
        def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
            shown.extend(row.id for row in facts.gemms)
            return super().look(facts)

    rows = [gemm(at, 8192, 8192, 4096, time_us=time) for at, time in ((1, 2000.0), (2, 0.0))]
    advise(facts(*rows, step_ms=10.0), rules=[Listening()])
    assert shown == [rows[0].id]
