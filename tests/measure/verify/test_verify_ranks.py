"""Under ranks and stages the shapes that are measured are those of the rank that was traced."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.zoo_ranks import rank_report

pytest.importorskip("torch")

from tests.measure.verify.rig import code, codes
from tracelens.measure.cases import GemmCase
from tracelens.measure.layer_shapes import LayerShape
from tracelens.measure.verify import Source, read_source
from tracelens.measure.verify.plan import PlannedTrial, make_trial
from tracelens.measure.verify.source import Asked
from tracelens.measure.verify.standin import StandIn, stand_in, trace_layer_ms
from tracelens.results import Estimate, Report
from tracelens.results.json import to_json
from tracelens.step.saved_step import step_of
from tracelens.step.whatif import scenario
from tracelens.step.words.simulation import VOCAB_UNTOLD

RANKS = 4
NOTHING = Estimate(None, None, None, "model")


def report(folder: Path, *, family: str = "llama", ranks: int = RANKS, vocab: int | None = None) -> Report:
    """Of a rank whose configuration states ``vocab``, where it states anything."""
    return rank_report(folder, family, ranks=ranks, vocab=vocab)


def saved(one: Report, folder: Path, **model: Any) -> Source:
    """The report as it is read back; ``model`` replaces dimensions, ``declared`` what is stated."""
    raw = json.loads(to_json(one))
    raw["declared"] |= model.pop("declared", {})
    for name, value in model.items():
        raw["model"][name] = {"value": value, "source": "x"}
    path = folder / "saved.json"
    path.write_text(json.dumps(raw))
    return read_source(path)


def planned(source: Source, **changes: int | str) -> PlannedTrial:
    asked = Asked(("what_if", 0), "a change", changes, "", NOTHING, NOTHING)
    return make_trial(asked, source, stand_in(source))


@pytest.mark.parametrize("split", [False, True])
def test_verify_starts_from_what_the_analysis_started_from(split: bool, tmp_path: Path) -> None:
    columns = report(tmp_path).model.vocab.value or 0
    one = report(tmp_path, vocab=RANKS * columns if split else columns)
    source = saved(one, tmp_path)
    assert source.now == step_of(one).now
    assert (source.now.tensor_parallel, source.now.vocab_split) == (RANKS, split)


@pytest.mark.parametrize("split", [False, True])
def test_the_logits_are_those_of_the_rank(split: bool, tmp_path: Path) -> None:
    columns = report(tmp_path).model.vocab.value or 0
    source = saved(report(tmp_path, vocab=RANKS * columns if split else columns), tmp_path)
    trial = planned(source, vocab=columns + 64)
    (logits,) = trial.wholes
    assert isinstance(logits.now, LayerShape) and isinstance(logits.then, LayerShape)
    assert next(logits.now.gemms()).n == columns
    assert next(logits.then.gemms()).n == columns + 64
    assert trial.apart == ""


@pytest.mark.parametrize("split", [False, True])
def test_a_scenario_of_the_whole_vocabulary_is_measured_as_a_ranks_part(split: bool, tmp_path: Path) -> None:
    columns = report(tmp_path).model.vocab.value or 0
    parts = RANKS if split else 1
    one = report(tmp_path, vocab=parts * columns)
    asked = scenario(step_of(one), f"vocab={parts * (columns + 64)}")
    assert asked.change == {"vocab": [parts * columns, parts * (columns + 64)]}
    source = saved(replace(one, what_if=[asked]), tmp_path)
    (changes,) = (each.changes for each in source.asked if each.place == ("what_if", 0))
    assert changes == {"vocab": columns + 64}


@pytest.mark.parametrize(("family", "ranks"), [("llama", RANKS), ("gpt2", 2)])
def test_every_call_as_it_is_has_the_shape_that_ran(family: str, ranks: int, tmp_path: Path) -> None:
    one = report(tmp_path, family=family, ranks=ranks)
    rows = {row.id: row for row in one.gemms}
    source = saved(one, tmp_path)
    for change in ({"micro_batch": 2 * (source.now.micro_batch or 0)}, {"ffn": 2 * (source.now.ffn or 0)}):
        calls = planned(source, **change).calls
        measured = [(one, one.now) for one in calls if isinstance(one.now, GemmCase)]
        assert measured
        for call, case in measured:
            row = rows[call.gemm or ""]
            assert (case.m, case.n, case.k, case.batch) == (row.m, row.n, row.k, row.batch or 1)


def test_a_layer_is_the_ranks_slice_of_it(tmp_path: Path) -> None:
    one = report(tmp_path)
    source = saved(one, tmp_path)
    built = stand_in(source)
    assert isinstance(built, StandIn)
    layer = built.layer(source.now)
    assert isinstance(layer, LayerShape)
    made = {(gemm.m, gemm.n, gemm.k) for gemm in layer.gemms()}
    parts = ("mlp.", "attention.qkv", "attention.output")
    inside = [row for row in one.gemms if row.kind == "gemm" and row.component.startswith(parts)]
    assert inside and {(row.m, row.n, row.k) for row in inside} <= made


def test_other_ranks_leave_the_vocabulary_unmeasured_where_nothing_tells_who_holds_it(tmp_path: Path) -> None:
    source = saved(report(tmp_path), tmp_path)
    source = replace(source, now=replace(source.now, vocab_split=None))
    trial = planned(source, tensor_parallel=2)
    assert trial.partial and code(trial.apart) == "ranks_exchange"
    logits = [one for one in trial.calls if one.component == "logits"]
    assert logits and all(one.why == VOCAB_UNTOLD for one in logits)
    assert [whole.what for whole in trial.wholes] == ["layer"]


def test_a_stage_of_a_pipeline_runs_its_own_layers(tmp_path: Path) -> None:
    """The whole model has layers that this rank never ran; stages of a stated depth need not be alike."""
    one = report(tmp_path, ranks=1)
    here = one.model.layers.value or 0
    whole = 2 * here + 1  # this rank has the shorter stage
    source = saved(one, tmp_path, pipeline_parallel=2, declared={"layers": whole})
    assert (source.layers, source.now.layers, source.now.stage_layers) == (here, whole, here + 1)
    built = stand_in(source)
    assert isinstance(built, StandIn) and built.passes == 1
    alone = saved(one, tmp_path)
    assert trace_layer_ms(source, 1) == pytest.approx(trace_layer_ms(alone, 1))
    (layer,) = planned(source, ffn=2 * (source.now.ffn or 0)).wholes
    assert (layer.calls_now, layer.calls_then) == (here, here)
    trial = planned(source, pipeline_parallel=1)
    assert trial.partial and code(trial.apart) == "ranks_exchange"


def test_products_of_unequal_groups_are_not_measured_as_equal_ones(tmp_path: Path) -> None:
    """A batched product of experts is one ``torch.bmm`` here too; one of groups is another kernel."""
    one = report(tmp_path, family="moe_grouped", ranks=1)
    path = tmp_path / "grouped.json"
    raw = json.loads(to_json(one))
    row = next(row for row in raw["gemms"] if row["component"] == "moe.experts" and row["batch"] == 8)
    row |= {"m": 8 * row["m"], "batch": 1, "groups": {"axis": "m", "number": 8}}
    path.write_text(json.dumps(raw))
    source = read_source(path)
    calls = planned(source, ffn=2 * (source.now.ffn or 0)).calls
    whys = {call.gemm: call.why for call in calls if call.component == "moe.experts"}
    assert code(whys.pop(row["id"])) == "unequal_groups"
    assert len(whys) > 4 and set(whys.values()) == {""}


def test_another_type_is_measured_for_the_products_that_take_it(tmp_path: Path) -> None:
    source = saved(report(tmp_path, ranks=1), tmp_path)
    trial = planned(source, dtype="fp8")
    assert trial.partial and "casts" in codes(trial.notes)
    cases = {one.component: one.then for one in trial.calls}
    assert "logits" not in cases and "mlp.down" in cases
    assert all(
        isinstance(one, GemmCase) and (one.dtype, one.layout) == ("fp8", "TN") for one in cases.values()
    )
