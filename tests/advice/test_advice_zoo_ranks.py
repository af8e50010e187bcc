"""Whole steps of the zoo with ranks and experts: what the rules find, and no change that breaks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.said import Listener
from tests.trace.tools import read
from tests.zoo_ranks import rank_report, rank_text
from tracelens import analysis
from tracelens.analysis import analyze_trace
from tracelens.config.model_config import DTYPES, NAMES
from tracelens.errors import UsageError
from tracelens.results import Report
from tracelens.results.json import from_json, to_json
from tracelens.step.saved_step import step_of
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if
from tracelens.step.work import Work

RULES = ("TL107", "TL108", "TL109")


@pytest.mark.parametrize(
    ("family", "ranks", "states"),
    [
        ("llama", 4, ("found", "not_applicable", "not_applicable")),
        ("gpt2", 2, ("found", "not_applicable", "not_applicable")),
        ("moe", 1, ("not_applicable", "not_applicable", "found")),
        ("moe_grouped", 1, ("not_applicable", "not_applicable", "passed")),
    ],
)
def test_what_the_rules_find_in_whole_steps(
    family: str, ranks: int, states: tuple[str, ...], tmp_path: Path, said: Listener
) -> None:
    one = rank_report(tmp_path, family, ranks=ranks)
    checks = {check.rule: check.state for check in one.checks}
    assert tuple(checks[rule] for rule in RULES) == states
    titles = {finding.rule: finding.title for finding in one.findings}
    if ranks > 1:  # the zoo's logits are whole on every rank, as its messages show
        said(titles["TL107"])
    if family == "moe":
        said(titles["TL109"])


@pytest.mark.parametrize(("family", "ranks"), [("llama", 4), ("moe", 1), ("moe_grouped", 1)])
def test_no_change_of_ranks_experts_or_types_breaks(family: str, ranks: int, tmp_path: Path) -> None:
    step = step_of(rank_report(tmp_path, family, ranks=ranks))
    assert [row.component for row, _ in step.work.fixed if row.component == "moe.experts"] == []
    changes: list[dict[str, int | str]] = [{"dtype": dtype} for dtype in DTYPES]
    for name in NAMES:
        now = step.now.get(name) or 8
        changes += [{name: value} for value in (now, 2 * now, max(1, now // 2), now + 7, 1)]
    for change in changes:
        try:
            one = what_if(step, change)
        except UsageError as error:
            assert "\n" not in str(error)
            continue
        low, mid, high = one.saving_ms.low, one.saving_ms.mid, one.saving_ms.high
        if low is None or mid is None or high is None:
            assert one.notes  # the reason
            continue
        assert math.isfinite(mid) and low <= mid <= high <= (step.step_ms or 0.0), change
        assert all((row.then_ms.mid or 0.0) > 0 for row in one.rows), change
        if not one.change:
            assert (one.rows, one.rest, low, mid, high) == ([], [], 0.0, 0.0, 0.0)


def bare(step: StepModel) -> StepModel:
    """Without what no prediction reads: the findings named beside a row, the memory that tells two boards."""
    products = tuple(replace(one, row=replace(one.row, findings=[])) for one in step.work.products)
    calls = tuple(replace(one, row=replace(one.row, findings=[])) for one in step.work.attention)
    fixed = tuple((replace(row, findings=[]), why) for row, why in step.work.fixed)
    return replace(step, work=Work(products, calls, fixed), gpu=replace(step.gpu, memory_gb=None))


def test_a_saved_report_gives_the_same_step_where_a_configuration_states_the_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary in the captured configuration says whether ranks split it: a saved report keeps that."""
    made: list[StepModel] = []

    def kept(report: Report, **more: Any) -> StepModel:
        made.append(step_of(report, **more))
        return made[-1]

    monkeypatch.setattr(analysis, "step_of", kept)
    columns = rank_report(tmp_path, "llama", ranks=4).model.vocab.value or 0
    # the zoo's logits are whole on every rank: a configuration of four times the columns splits them
    for vocab, split in ((columns, False), (4 * columns, True)):
        data = json.loads(rank_text("llama", 4))
        stated = {"vocab": {"value": vocab, "source": "config.vocab_size"}}
        data["tracelens"] = {"models": [{"trained": True, "dimensions": stated}]}
        one = analyze_trace(read(tmp_path, json.dumps(data)), shape_search=False).report
        assert one.declared == {"vocab": vocab}
        back = from_json(to_json(one))
        assert bare(step_of(back)) == bare(made[-1])
        assert step_of(back).now.vocab_split is split
