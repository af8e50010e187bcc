"""Every reason has words, and those of a report that somebody edited are its code."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from tracelens.render.verified import whole_line
from tracelens.render.verified_words import WORDS, said
from tracelens.results import MeasuredWhole
from tracelens.results.verified import UNKNOWN, Reason, ReasonCode, Why

#: Something of each kind that words name.
VALUES: dict[str, Any] = {
    "name": "heads", "names": "causal, flash", "before": "16", "after": "8", "dtype": "fp64",
    "family": "flash3", "kv_heads": 3, "heads": 8, "vocab": 7, "ranks": 2, "ms": 1.5,
    "before_gib": 70.0, "after_gib": 90.0,
    "gpu_gib": 80.0, "factor": 0.5, "here_ms": 2.0, "trace_ms": 1.0, "saving_ms": -0.5, "frac": 0.03,
}  # fmt: skip


@pytest.mark.parametrize("code", get_args(ReasonCode))
def test_every_reason_has_words(code: ReasonCode) -> None:
    text = said(Reason(code, VALUES, cause="so it is"))
    assert text != code and "{" not in text
    assert set(WORDS) == set(get_args(ReasonCode))


def test_a_cause_has_words_too_and_text_stays_text() -> None:
    assert said(Reason("no_step", cause=Reason("no_layer"))).endswith(f": {said(Reason('no_layer'))}")
    assert said("out of memory") == "out of memory"
    assert said(Reason("no_size")) == "no_size"


@pytest.mark.parametrize("value", ["text", 7, float("inf"), float("nan")])
def test_values_of_another_kind_break_nothing(value: Any) -> None:
    for code in get_args(ReasonCode):
        assert said(Reason(code, dict.fromkeys(VALUES, value), Reason("no_mlp")))
    deep: Why = "the first"
    for _ in range(3000):
        deep = Reason("no_step", cause=deep)
    assert said(deep)


@pytest.mark.parametrize("why", ["of an earlier version", Reason("no_layer", {"a": 1.5}, Reason("no_mlp"))])
def test_reasons_of_both_forms_are_read(why: Why) -> None:
    whole = MeasuredWhole("layer", "", "", UNKNOWN, UNKNOWN, UNKNOWN, 1, 1, why=why)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=MeasuredWhole) == whole


def test_what_is_not_known_saves_nothing_and_is_not_slower() -> None:
    line = whole_line(MeasuredWhole("step", "", "", UNKNOWN, UNKNOWN, UNKNOWN, None, None))
    assert "saves" not in line and line.endswith("not known")
