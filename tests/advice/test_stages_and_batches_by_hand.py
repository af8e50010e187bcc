"""Stages of a pipeline, batches with padding, and GEMMs off the grid, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_answers import answer
from tests.advice.advice_facts import step_of
from tests.advice.advice_rows import attention, cutlass, facts, gemm, model
from tests.said import Listener
from tracelens.results import GemmRow, PaddedBatch
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules.engine.predictions import predicted
from tracelens.rules.evidence.dimensions import Target
from tracelens.rules.evidence.misfits import Case, OffGrid, component_of, need_misfits, owner
from tracelens.rules.evidence.mixtures import doubled, packed
from tracelens.rules.evidence.stages import Stage, need_stage
from tracelens.rules.padded_tokens import PaddedTokens
from tracelens.step.alignment import Misfit
from tracelens.step.predicted import NEAR_ERROR

ROW = gemm(1, 2048, 10240, 2560, time_us=1000.0)


# stages


def stage(**given: Any) -> Stage:
    told: dict[str, Any] = {
        "stages": 4, "here": 8, "whole": 32, "layers_ms": 40.0, "first_ms": 0.0, "last_ms": 0.0,
        "rows": [replace(ROW, time_ms_per_step=30.0)], "micro_batches": 6,
    }  # fmt: skip
    return Stage(**(told | given))


def test_a_stage_of_layers_and_what_it_has_beside_them(said: Listener) -> None:
    plain = stage()
    assert (plain.layer_ms, plain.mean, plain.longest, plain.extra, plain.filling) == (5.0, 8.0, 8, 0.0, 1.5)
    assert (
        stage(whole=30).longest == 8
        and stage(whole=34).longest == 9
        and stage(whole=33, here=10).longest == 10
    )
    assert (stage(whole=None).mean, stage(whole=None).longest) == (None, None)
    last = stage(last_ms=12.0, first_ms=3.0)
    assert last.extra == 3.0
    # 8 + 3, then one layer less here and, for each three, one more on each of the three others
    assert last.paces == [11.0, 10.0, 9.0, 9.0, 10.0, 10.0, 10.0, 11.0]
    assert stage(micro_batches=None).filling == 4.0
    said(stage(micro_batches=None).filling_how, plain.filling_how, plain.saw, last.saw)
    short = stage(first_ms=0.5, last_ms=0.5).saw
    assert "take 500 µs = 0.100 layers" in short and "takes 500 µs = 0.100 layers" in short
    said(stage(whole=None, here=1).saw)
    (bound,), beside = plain.bounds(2.0)
    assert (bound.ms, beside) == pytest.approx((2 / 8 * 1.5 * 30.0, 2 / 8 * 1.5 * 10.0))
    assert bound.how.endswith("30.0 ms × 0.375 = 11.2 ms.") or bound.how.endswith(
        "30.0 ms × 0.375 = 11.3 ms."
    )


def test_what_a_rank_has_of_a_pipeline(said: Listener) -> None:
    step: Any = SimpleNamespace(components=[
        ("mlp.up", "forward", 6.0, 5.0), ("norm", "forward", 2.0, 0.0), ("logits", "forward", 3.0, 3.0),
        ("loss", "forward", 1.0, 0.0), ("embedding", "forward", 0.5, 0.0),
        ("optimizer", "optimizer", 9.0, 0.0),
        ("communication", "forward", 9.0, 0.0),
    ])  # fmt: skip
    dims = model(pipeline_parallel=4, layers=8)
    dims = replace(dims, pipeline_parallel=replace(dims.layers, value=4))
    rows = [ROW, gemm(2, 64, 64, 64, component="logits"), replace(ROW, id="g3", time_ms_per_step=0.0)]
    made = replace(facts(*rows, dims=dims), step=step, declared={"layers": 32})
    found = need_stage(made)
    assert (found.stages, found.here, found.whole, found.layers_ms) == (4, 8, 32, 8.0)
    assert (found.first_ms, found.last_ms, [row.id for row in found.rows]) == (0.5, 4.0, ["g1"])
    assert need_stage(replace(made, declared={"layers": 8})).whole == 8
    assert need_stage(replace(made, declared={"layers": 7})).whole is None
    assert need_stage(replace(made, declared={})).whole is None
    alone = replace(dims, pipeline_parallel=replace(dims.layers, value=1, source="one rank"))
    assert answer(need_stage, facts(ROW, dims=alone))[2] == "No pipeline: one rank."
    assert answer(need_stage, facts(ROW))[0] == "could_not_run"
    said(answer(need_stage, facts(ROW, dims=dims))[2])


# padding


def packed_rows(tokens: int, calls: float = 1.0, *, heads: int = 16, **more: Any) -> GemmRow:
    row = attention(9, 64, heads=heads, calls=calls)
    return replace(row, attention=AttentionDims(None, heads, heads, head_dim=64, tokens=tokens), **more)


def linear(
    number: int, rows: int, component: str, calls: float = 1.0, *, us: float = 1000.0, role: str = "forward"
) -> GemmRow:
    m, k = (1024, rows) if role == "wgrad" else (rows, 1024)
    return gemm(number, m, 1024, k, component=component, calls=calls, time_us=us, role=role)


def padded(*rows: GemmRow, **given: Any) -> Any:
    return PaddedTokens().check(facts(*rows, step_ms=100.0, dims=model(hidden=1024, heads=16), **given))


def test_padding_is_rows_without_a_token(said: Listener) -> None:
    """6000 tokens in 8000 rows: a quarter of each GEMM's 4 and 2 ms."""
    rows = [linear(1, 8000, "attention.output", us=4000.0),
            linear(2, 8000, "mlp.up", us=2000.0, role="wgrad"),
            linear(3, 500, "mlp.up", us=9000.0), linear(4, 8000, "logits", us=9000.0)]  # fmt: skip
    (found,) = padded(*rows, packed_rows(6000)).findings
    assert (found.change == {"rows": [8000, 6000]} and found.gemms[:2] == ["g1", "g2"]) or "g4" in found.gemms
    said(found.saw, found.title)
    backward = packed_rows(6000, phase="backward")
    assert padded(*rows, backward).state == "not_applicable"
    assert padded(*rows, packed_rows(6000, heads=8)).state == "not_applicable"
    assert (
        padded(*rows, packed_rows(8000)).state == "passed"
        and padded(*rows, packed_rows(8001)).state == "passed"
    )
    idle = linear(5, 9000, "attention.output", 0.0)
    assert padded(*rows, idle, packed_rows(6000)).findings[0].change == found.change
    elsewhere = [replace(row, n=512, k=512) for row in rows[:1]]
    assert padded(*elsewhere, packed_rows(6000)).state == "could_not_run"


def test_batches_of_two_lengths_are_as_full_as_the_mean(said: Listener) -> None:
    """2 of 8000 and 2 of 4000 rows, 6000 in the mean, of which 4500 are tokens."""
    rows = [linear(at, size, "attention.output", 2.0, us=2000.0) for at, size in ((1, 8000), (2, 4000))]
    (found,) = padded(*rows, packed_rows(4500, 4.0)).findings
    assert found.saving_ms.high == pytest.approx(0.25 * 8.0)
    assert padded(*rows, packed_rows(4500, 3.81)).state == "found"
    assert padded(*rows, packed_rows(4500, 3.79)).state == "could_not_run"  # a twentieth is not seen
    said(found.saw)
    one = padded(rows[0], packed_rows(6000, 1.0))
    assert one.state == "found"


def test_batches_that_operators_pad_tell_their_own_tokens(said: Listener) -> None:
    rows = [linear(1, 8000, "attention.output", us=4000.0), linear(2, 4000, "attention.output", us=2000.0)]
    batches = [PaddedBatch(8000, 4000.0)]
    (found,) = padded(*rows, padded=batches).findings
    assert found.saving_ms.high == pytest.approx(2.0)
    said(found.saw)
    both = padded(*rows, padded=[*batches, PaddedBatch(4000, 3000.0)]).findings[0]
    assert both.saving_ms.high == pytest.approx(0.5 * 4 + 0.25 * 2)
    assert padded(*rows, padded=[PaddedBatch(999, 9.0)]).state == "not_applicable"
    said(both.saw)


# off the grid


def off(number: int, n: int = 10241, **given: Any) -> GemmRow:
    return gemm(number, 2048, n, 2560, kernel=cutlass(1), **given)


def test_what_is_judged_of_gemms_off_the_grid(said: Listener) -> None:
    found = need_misfits(facts(off(1), ROW))
    assert isinstance(found, OffGrid) and [one.row.id for one in found.misfits] == ["g1"]
    assert (len(found.gemms), found.on_cuda_cores) == (2, 0)
    said(need_misfits(facts(ROW)).text(other=False), need_misfits(facts(ROW)).text(other=True))
    only = facts(gemm(1, 2048, 50257, 512, component="logits"), dims=model(vocab=50257))
    _, absent, why = answer(need_misfits, only)
    assert absent
    said(why)
    blind = gemm(2, None, None, None, time_us=3000.0, op="aten::mm")
    said(answer(need_misfits, facts(blind))[2])
    few = answer(need_misfits, facts(ROW, blind))
    assert few[0] == "could_not_run"
    said(few[2])
    enough = facts(ROW, replace(blind, time_ms_per_step=1.0))
    assert need_misfits(enough).misfits == []


def test_who_judges_a_parameter_and_how_its_gemms_are_called() -> None:
    names = {"mlp.other": "some MLP GEMMs", "other": "other GEMMs", "unattributed": "unattributed GEMMs"}
    assert {name: component_of(replace(ROW, component=name)) for name in names} == names
    plain = facts(ROW, dims=model(ffn=10240))

    def judged_by(parameter: str | None) -> str | None:
        return owner(plain, Case(Target(parameter, 7, 8), [], set()))

    assert [judged_by(one) for one in ("sequence", "head_dim", "hidden", "ffn", None)] == [
        "TL110",
        "TL103",
        None,
        None,
        None,
    ]
    gate = facts(ROW, gemm(2, 2048, 10240, 2560, component="mlp.gate"), dims=model(ffn=10240))
    assert owner(gate, Case(Target("ffn", 7, 8), [], set())) == "TL104"


def test_what_the_rows_of_a_case_show(said: Listener) -> None:
    goal = Target("ffn", 10241, 10304)
    rows = [Misfit(off(1), (("n", 10241),), "align1"), Misfit(off(2), (("n", 10241),), None)]
    seen = Case(goal, rows, {10241}).saw(facts(off(1)))
    said(seen)
    named = Case(goal, rows[:1], {10241}).saw(facts(off(1)))
    said(named)
    silent = Case(replace(goal, parameter=None), rows[1:], {10241}).saw(facts(off(1)))
    said(silent)
    without = Case(None, [Misfit(off(1, n=10240), (), "SIMT")], set()).saw(facts(off(1)))
    said(without)
    blind = Case(None, [Misfit(gemm(1, None, None, None), (), "SIMT")], set()).saw(facts(off(1)))
    said(blind)


# experts


def test_what_more_rows_or_one_call_save_of_an_expert_is_the_ratio_of_predictions(said: Listener) -> None:
    row = gemm(1, 64, 1024, 1024, component="moe.experts", time_us=50.0, calls=8.0)
    step = step_of([row], dims=model(hidden=1024))
    assert step.step is not None

    def us(m: int, k: int = 1024, batch: int = 1) -> float:
        found = predicted(row, facts=step, sizes=(m, 1024, k, batch))
        assert not isinstance(found, str) and found.time_us.mid is not None
        return found.time_us.mid

    free = doubled(step, row)
    assert free is not None and free.ms == pytest.approx(0.4 * (1 - us(128) / (2 * us(64))))
    deep = doubled(step, replace(row, role="wgrad"))
    assert deep is not None and deep.ms == pytest.approx(0.4 * (1 - us(64, 2048) / (2 * us(64))))
    one = packed(step, row, 8)
    assert one.ms == pytest.approx(0.4 * (1 - us(64, batch=8) / (8 * us(64)) * (1 - NEAR_ERROR)))
    for given in ({"time_ms_per_step": 0.0}, {"m": None}):
        assert doubled(step, replace(row, **given)) is None
    assert doubled(step_of([row], predict=False), row) is None
    blind = packed(step_of([row], predict=False), row, 8)
    assert blind.ms > one.ms
    said(blind.how)
