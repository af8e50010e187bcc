"""TL116: padding by torch.compile, and what its copies cost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_facts import other, step_of
from tests.advice.advice_rows import gemm
from tests.said import Listener
from tracelens.results import GemmRow, OtherRow
from tracelens.rules.compiled_padding import CompiledPadding
from tracelens.rules.engine.facts import Outcome

RULE = CompiledPadding()


def logits(**more: Any) -> GemmRow:
    given: dict[str, Any] = {
        "component": "logits",
        "padded_from": {"n": 50257},
        "time_us": 900.0,
        "names": ("b*s", "v", "h"),
    }
    return gemm(1, 8192, 50264, 768, **(given | more))


def pad(number: int = 1, **more: Any) -> OtherRow:
    given: dict[str, Any] = {
        "component": "logits", "op": "triton_poi_fused_constant_pad_nd_3", "dims": (768, 50264),
        "calls": 2.0, "dtype_from": "bf16", "dtype_to": "bf16",
    }  # fmt: skip
    return other(number, "pad", **(given | more))


def check(*rows: GemmRow, others: tuple[OtherRow, ...] | None = (), **more: Any) -> Outcome:
    return RULE.check(step_of(rows, **({"others": others, "step_ms": 10.0} | more)))


def test_the_copies_of_padding_are_a_finding_where_they_cost(said: Listener) -> None:
    (finding,) = check(logits(), others=(pad(),)).findings
    assert finding.saving_ms.mid == pytest.approx(0.1) and finding.basis == "model"
    assert finding.fix == ["- vocab_size = 50257", "+ vocab_size = 50264"]
    assert finding.change == {"vocab_size": [50257, 50264]} and finding.effort == "config"
    assert finding.gemms == ["g1"]
    said(finding.title, finding.saw)


def test_only_a_vocabulary_has_logits_to_mask() -> None:
    """An MLP's added units must not all be zeros, as a vocabulary's rows can: they would never learn."""
    wide = gemm(1, 8192, 10928, 4096, component="mlp.up", padded_from={"n": 10922}, names=("b*s", "f", "h"))
    (ffn,) = check(wide, others=(pad(component="mlp.up", dims=(4096, 10928)),)).findings
    (vocab,) = check(logits(), others=(pad(),)).findings
    assert ffn.change == {"ffn": [10922, 10928]}
    assert [any("logits" in one for one in finding.caveats) for finding in (ffn, vocab)] == [False, True]
    assert not any("zeros" in one for one in ffn.caveats)


def test_a_size_that_no_parameter_sets_is_named_by_itself(said: Listener) -> None:
    (finding,) = check(logits(names=(None, None, None)), others=(pad(),)).findings
    assert finding.change == {}
    said(finding.title)


def test_padding_at_work_passes_and_says_so(said: Listener) -> None:
    for outcome in (check(logits()), check(logits(), others=(pad(time_us=1.0),))):
        says_why(outcome, "passed", said)


def test_padding_of_something_else_is_not_its_cost() -> None:
    conv = pad(dims=(8, 3, 226, 226), component="embedding")
    assert check(logits(), others=(conv,)).state == "passed"


def test_where_nothing_is_padded_it_does_not_apply() -> None:
    eager = check(gemm(1, 512, 512, 512))
    assert eager.state == "not_applicable" and eager.absent
    compiled = check(gemm(1, 512, 512, 512), others=(other(1, "elementwise", op="triton_poi_fused_add_0"),))
    assert compiled.state == "not_applicable" and compiled.absent
    assert check().state == "not_applicable"


def test_what_cannot_be_judged(said: Listener) -> None:
    for outcome in (check(gemm(1, None, None, None)), check(logits(), others=None)):
        says_why(outcome, "could_not_run", said)
