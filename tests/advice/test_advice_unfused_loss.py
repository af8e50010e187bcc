"""TL132: a cross entropy kernel by kernel against one pass over the logits each way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import other, step_of
from tests.advice.advice_rows import gemm
from tests.kept import analyzed
from tests.said import Listener
from tracelens.results import Known, OtherRow
from tracelens.rules.engine.facts import Outcome, StepFacts
from tracelens.rules.unfused_loss import UnfusedLoss

SAMPLES = Path(__file__).parents[2] / "sample_traces"
#: µs of a step of an H100: 8192 tokens, a vocabulary of 50304.
LOSS = (("forward", "_log_softmax", 2160), ("forward", "nll_loss_forward", 20),
        ("backward", "_log_softmax_backward_data", 2270), ("backward", "zero_", 500))  # fmt: skip


def loss(rows: tuple[tuple[str, str, int], ...] = LOSS) -> list[OtherRow]:
    return [
        other(at, "reduction", component="loss", phase=phase, op=f"aten::{name}", time_us=us, calls=1.0)
        for at, (phase, name, us) in enumerate(rows)
    ]


def sized(facts: StepFacts) -> StepFacts:
    vocab, sequence, batch = (Known(size, "given") for size in (50304, 2048, 4))
    return replace(facts, model=replace(facts.model, vocab=vocab, sequence=sequence, micro_batch=batch))


def check(rows: list[OtherRow], *, step_ms: float = 57.0, known: bool = True) -> Outcome:
    facts = step_of([gemm(1, 64, 64, 64)], step_ms=step_ms, others=rows)
    return UnfusedLoss().check(sized(facts) if known else facts)


def test_what_one_pass_each_way_does_not_need_is_the_bound() -> None:
    cast = other(9, "cast", component="loss", op="aten::to", time_us=1330, calls=1.0)
    (finding,) = check([*loss(), cast]).findings
    assert finding.saving_ms.mid is None
    assert finding.saving_ms.high == pytest.approx(4.95 - 6 * 8192 * 50304 / 3.35e9, rel=1e-3)


def test_forward_alone_has_one_pass() -> None:
    (finding,) = check(loss(LOSS[:2])).findings
    assert finding.saving_ms.high == pytest.approx(2.18 - 2 * 8192 * 50304 / 3.35e9, rel=1e-3)


def test_without_sizes_all_of_it_is_the_bound(said: Listener) -> None:
    (finding,) = check(loss(), known=False).findings
    assert finding.saving_ms.high == pytest.approx(4.95)
    said(finding.how)


def test_what_is_fused_or_small_or_no_loss_passes() -> None:
    compiled = other(1, "reduction", component="loss", op="triton_red_fused__log_softmax_0", time_us=3000)
    assert check([compiled]).state == "passed"
    assert check(loss(), step_ms=600.0).state == "passed"
    assert check([other(1, "elementwise")]).state == "not_applicable"


@pytest.mark.parametrize("other_loss", ["_ctc_loss", "kl_div", "gather"])
def test_another_loss_over_logarithms_is_no_cross_entropy(other_loss: str, said: Listener) -> None:
    rows = (LOSS[0], ("forward", other_loss, 20), *LOSS[2:])
    says_why(check(loss(rows)), "passed", said)


def test_kernels_of_another_loss_beside_it_are_not_counted() -> None:
    """Distillation: a teacher's logits and the labels."""
    (alone,), (both,) = (
        check(loss((*LOSS, *more))).findings for more in ((), (("forward", "kl_div", 3000),))
    )
    assert both.saving_ms == alone.saving_ms


def test_the_change_is_that_of_its_logits() -> None:
    (words,), (classes,) = (check(loss(), known=known).findings for known in (True, False))
    assert "Liger" in str(words.fix) and "Liger" not in str(classes.fix)


def test_kernels_without_operators_are_not_judged(said: Listener) -> None:
    """As in a CUDA graph."""
    says_why(check([replace(row, op=None) for row in loss()]), "could_not_run", said)


def test_of_a_real_step_it_is_what_the_casts_leave() -> None:
    report = analyzed(SAMPLES / "h100-sxm_gpt2_vocab50304_head128_eager.json.gz").report
    took = sum(row.time_ms_per_step for row in report.components if row.component == "loss")
    (fused,) = (one.saving_ms.high for one in report.findings if one.rule == "TL132")
    (casts,) = (one.saving_ms.high for one in report.findings if "logits to fp32" in one.title)
    assert fused is not None and casts is not None
    # nanoGPT's compiled loss moves 10 bytes a logit on an H100: what a fused one is known to leave
    assert took - 10 * 8192 * 50304 / 3.0e9 < fused + casts < took
