"""What is not known is neither said nor counted as zero."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_facts import step_of
from tests.advice.advice_rows import facts, gemm
from tests.said import Listener
from tracelens.config.model_config import ModelConfig
from tracelens.results import Amount
from tracelens.rules.engine.amounts import ChangedSizes, operations
from tracelens.rules.engine.candidate import Answer
from tracelens.rules.engine.rows import of_step
from tracelens.rules.evidence.views import View, fix_of, saving_of
from tracelens.rules.misaligned_views import _seen

ROW = gemm(1, 1024, 1024, 1024)


def test_no_share_of_a_step_whose_time_is_not_known(said: Listener) -> None:
    """3.2 ms of an unknown step are not 320% of it."""
    said(of_step(3.2, facts(ROW, step_ms=100.0)))
    with pytest.raises(Answer) as error:
        of_step(3.2, facts(ROW, step_ms=None))
    said(error.value)


def test_operations_of_gemms_without_a_size_do_not_stay_the_same() -> None:
    sized, blind = replace(ROW, flops=1e12), replace(ROW, id="g2", flops=None)
    none, same = ChangedSizes(ModelConfig(), None, ()), Amount(0, 0.0, "")

    def frac(rows: list[object], of_rows: float) -> float | None:
        step = facts(sized, blind)
        return operations(step, {"flag": [0, 1]}, none, same, of_rows=of_rows, rows=rows).frac  # type: ignore[arg-type]

    assert frac([sized], 0.25) == 0.25
    assert frac([blind], 0.25) is None
    assert frac([blind], 0.0) == 0.0


def test_an_output_view_is_measured_in_the_outputs_type() -> None:
    """1003 fp32 elements from row to row are 4012 bytes, though the operands are bf16."""
    row = replace(ROW, dtype="bf16", out_dtype="fp32")
    view = View(row, "c", 1000, 1003)
    assert "1003 elements = 4012 bytes" in _seen(view, "") and "1000 in fp32" in _seen(view, "")
    assert fix_of(view)[1].startswith("+ buffer = torch.empty(rows, 1004)")
    assert "1003 elements = 2006 bytes" in _seen(replace(view, operand="a"), "")


def test_a_copy_of_unknown_size_is_not_free(said: Listener) -> None:
    """The low end takes off a copy of the operand; where its bytes are not known nothing is predicted."""
    step = step_of([ROW])
    typed, untyped = (View(replace(ROW, dtype=dtype), "", None, None) for dtype in ("bf16", None))
    assert saving_of(step, typed)[0] is not None
    saving, why = saving_of(step, untyped)
    assert saving is None
    said(why)
