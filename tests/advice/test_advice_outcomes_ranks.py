"""No advice about ranks, stages or experts makes a step slower: each change is carried out on a new trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.zoo_ranks import rank_report

pytest.importorskip("torch")

from tests.synthetic import ModelSpec, Options, build
from tests.trace.tools import read
from tests.zoo import FAMILIES
from tracelens.analysis import analyze_trace
from tracelens.results import Finding, Report

LLAMA = FAMILIES["llama"].dims
_ONCE = ("optimizer", "grad_clip")
_NO_STAGE = ("communication", *_ONCE, "memory", "other", "unattributed")
_ENDS = ("embedding", "logits", "loss")


def found(report: Report, rule: str) -> Finding:
    return next(one for one in report.findings if one.rule == rule)


def time(report: Report, *components: str) -> float:
    return sum(one.time_ms_per_step for one in report.components if one.component in components)


def holds(finding: Finding, saved: float) -> bool:
    low, high = finding.saving_ms.low, finding.saving_ms.high
    return low is not None and high is not None and max(low, 0.0) <= saved <= high + 1e-3


def test_a_vocabulary_split_over_the_ranks_saves_what_was_predicted(tmp_path: Path) -> None:
    """Of logits and loss, which the finding is about: a split table makes the optimizer shorter as well."""
    now = rank_report(tmp_path, "llama", ranks=4)
    finding = found(now, "TL107")
    assert finding.change == {"vocab_parallel": [1, 4]}
    then = rank_report(tmp_path, "llama", ranks=4, dims=replace(LLAMA, vocab=finding.evidence["part"]))
    saved = time(now, "logits", "loss") - time(then, "logits", "loss")
    assert saved > 0 and holds(finding, saved)
    assert then.summary.gpu_ms_per_step < now.summary.gpu_ms_per_step - saved


def test_fewer_ranks_save_what_was_predicted_at_the_same_gpus_and_tokens(tmp_path: Path) -> None:
    """Half as many ranks to a copy are twice as many copies, each with half of the micro-batches."""
    dims = replace(LLAMA, hidden=1024, heads=16, head_dim=64, kv_heads=8, ffn=2816, vocab=4096)
    whole = 8 * 4096
    now = rank_report(tmp_path, "llama", ranks=8, dims=dims, vocab=whole)
    finding = found(now, "TL107")
    before, after = (int(one) for one in finding.change["tensor_parallel"])
    assert (before, after) == (8, 4)
    then = rank_report(tmp_path, "llama", ranks=after, dims=replace(dims, vocab=whole // after), vocab=whole)
    once = time(then, *_ONCE)
    gpu_ms = once + (then.summary.gpu_ms_per_step - once) * after / before
    saved = now.summary.gpu_ms_per_step - gpu_ms
    assert saved > 0 and holds(finding, saved)


def test_experts_in_one_product_are_no_slower_than_one_by_one(tmp_path: Path) -> None:
    """The same experts and rows in one batched product each."""
    now = rank_report(tmp_path, "moe")
    finding = found(now, "TL109")
    assert finding.change["expert_products"][1] == "grouped"
    grouped = rank_report(tmp_path, "moe_grouped")
    one_by_one = [row for row in now.gemms if row.component == "moe.experts"]
    together = [row for row in grouped.gemms if row.component == "moe.experts" and (row.batch or 1) > 1]
    work = [sum((row.flops or 0.0) * row.calls_per_step for row in rows) for rows in (one_by_one, together)]
    assert work[0] == pytest.approx(work[1])
    saved = sum(row.time_ms_per_step for row in one_by_one) - sum(row.time_ms_per_step for row in together)
    assert saved > 0 and holds(finding, saved)


STAGES = 4
LAST = ModelSpec(hidden=1024, heads=16, vocab=128000, layers=4, sequence=1024, micro_batch=4)


def stage(folder: Path, layers: int) -> Report:
    data: dict[str, Any] = json.loads(build(replace(LAST, layers=layers), Options(steps=1)).text())
    data["tracelens"] = {"parallel": {"degrees": {"pp": STAGES}}}
    return analyze_trace(read(folder, json.dumps(data)), shape_search=False).report


def pace(report: Report, *, ends: bool) -> float:
    """What a micro-batch takes in the stage; ``ends``: embedding, logits and loss are in it."""
    skipped = _NO_STAGE if ends else (*_NO_STAGE, *_ENDS)
    return sum(one.time_ms_per_step for one in report.components if one.component not in skipped)


def test_layers_moved_from_the_last_stage_shorten_the_longest_one(tmp_path: Path) -> None:
    """The other stages have layers alone; all wait for the longest, in a step of one micro-batch."""
    now = stage(tmp_path, LAST.layers)
    finding = found(now, "TL108")
    here, left = (int(one) for one in finding.change["last_stage_layers"])
    moved = here - left
    assert here == LAST.layers and moved > 0
    others = here + -(-moved // (STAGES - 1))
    longest = max(pace(stage(tmp_path, left), ends=True), pace(stage(tmp_path, others), ends=False))
    saved = (pace(now, ends=True) - longest) * STAGES  # filling and draining: stages - 1 more beside the one
    assert saved > 0 and holds(finding, saved)
