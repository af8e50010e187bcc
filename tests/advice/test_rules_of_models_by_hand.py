"""Rules about layers, heads, ranks and experts: sizes, diffs and shares, each counted by hand."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_answers import trial_of
from tests.advice.advice_rows import H100, attention, facts, flash2, gemm, model
from tests.said import Listener
from tracelens.results import Estimate, Finding, GemmRow, Known, Span
from tracelens.results.row_sizes import Groups
from tracelens.rules import expert_tiles as tiles
from tracelens.rules import experts as rule_experts
from tracelens.rules import kv_heads as kv
from tracelens.rules import swiglu_width as widths
from tracelens.rules import tensor_parallel as ranks_rule
from tracelens.rules.advise import _apart, _at_stake, _open_ms
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Answer
from tracelens.rules.engine.trials import Trial
from tracelens.rules.evidence.heads import HeadsRun
from tracelens.rules.evidence.slices import Slices
from tracelens.rules.evidence.stages import Stage
from tracelens.rules.evidence.widths import GatedMlp
from tracelens.rules.head_dimension import _candidate, _fits
from tracelens.rules.pipeline_layers import _heavy_end, _other_ways, _uneven
from tracelens.step.experts import Mixture

#: Kernels of no start and memory of no limit: the floor is operations over the peak.
BARE = replace(H100, gemm_floor_us=0.0, bandwidth_gbps=None)


# TL108: pipeline stages


def stage(stages: int = 4, here: int = 8, whole: int | None = 30, **given: Any) -> Stage:
    """Layers of 10 ms, all of it in one row."""
    told: dict[str, Any] = {
        "layers_ms": 10.0 * here, "first_ms": 0.0, "last_ms": 0.0, "micro_batches": 4,
        "rows": [gemm(1, 64, 64, 64, time_us=10_000.0 * here)],
    }  # fmt: skip
    return Stage(stages, here, whole, **(told | given))


def test_the_longest_stage_against_the_mean(said: Listener) -> None:
    """30 layers on 4 stages: 8 and 7.5, of 10 ms, and 3/4 more to fill the pipeline of 4 micro-batches."""
    found = _uneven(stage())
    assert found is not None
    assert found.change == {"layers": [30, 32]} and found.fix == ["- layers = 30", "+ layers = 32"]
    assert found.bounds[0].ms == pytest.approx(5.0 * 1.75) and found.elsewhere_ms == 0.0
    assert found.evidence == {
        "layers": 30, "stages": 4, "layers_here": 8, "imbalance_frac": pytest.approx(8 / 7.5 - 1)
    }  # fmt: skip
    assert found.simulate is None and (found.confidence, found.effort) == ("medium", "retrain")
    said(found.title, found.saw, found.how)


@pytest.mark.parametrize(
    ("given", "then"),
    [
        ({"whole": 32}, None), ({"whole": None}, None), ({"whole": 33}, 36), ({"whole": 29}, 32),
        ({"whole": 32, "here": 9}, 32), ({"stages": 8, "whole": 50, "here": 6}, 56),
    ],
)  # fmt: skip
def test_layers_that_divide_are_no_finding_unless_this_rank_has_more(
    given: dict[str, Any], then: int | None
) -> None:
    found = _uneven(stage(**given))
    assert (None if found is None else found.change["layers"][1]) == then


@pytest.mark.parametrize(
    ("whole", "stages"),
    [
        (30, 4), (3, 4), (31, 4), (9, 4), (25, 4), (36, 8), (14, 4), (10, 3), (8, 3),
        (22, 4),  # 11 are more than twice as many
    ],
)  # fmt: skip
def test_other_numbers_of_layers_and_of_stages(whole: int, stages: int, said: Listener) -> None:
    said(_other_ways(whole, stages))


def test_layers_of_a_heavy_end_go_to_the_others(said: Listener) -> None:
    """8 layers and logits of 3: the longest has 11; with 3 of them on 3 others 9 here are 8 - 3 + 3 = 9."""
    found = _heavy_end(stage(whole=32, last_ms=30.0))
    assert found is not None
    # moved 1: max(9, 10); moved 2: max(9, 9); moved 3: max(9, 8): the first of the least is 2
    assert found.change == {"last_stage_layers": [8, 6]}
    assert found.fix == ["- last stage: 8 layers", "+ last stage: 6 layers"]
    assert found.bounds[0].ms == pytest.approx(20.0 * 1.75)
    assert found.evidence == {"stages": 4, "layers_here": 8, "extra_layers": 3.0, "moved": 2}
    assert (found.parameter_delta, found.flops_delta, found.confidence) == (0, 0.0, "medium")
    said(found.why)
    assert "--account-for-loss-in-pipeline-split" in found.caveats[1]
    said(found.title, found.how, found.saw)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"first_ms": 30.0}, ("first", 6)), ({"first_ms": 10.0, "last_ms": 20.0}, ("last", 6)),
        ({"first_ms": 15.0, "last_ms": 15.0}, ("last", 6)), ({"last_ms": 10.0}, None), ({}, None),
        ({"last_ms": 15.0}, ("last", 7)), ({"last_ms": 30.0, "whole": 33}, None),
        ({"last_ms": 30.0, "whole": None}, ("last", 6)), ({"last_ms": 30.0, "stages": 1, "whole": 8}, None),
        ({"last_ms": 40.0, "stages": 2, "whole": 16}, ("last", 6)),
        ({"last_ms": 30.0, "here": 7}, None),
    ],
)  # fmt: skip
def test_which_end_is_heavy(given: dict[str, Any], left: tuple[str, int] | None) -> None:
    found = _heavy_end(stage(**({"whole": 32} | given)))
    if left is None:
        assert found is None
        return
    assert found is not None and found.change == {f"{left[0]}_stage_layers": [8, left[1]]}
    assert found.confidence == ("medium" if given.get("whole", 32) else "low")
    assert ("embedding" in found.caveats[1]) is (left[0] == "first")


# TL103: head dimensions


def heads_of(head_dim: int, compiled: int | None, *, heads: int | None = 32, unfused: int = 0) -> HeadsRun:
    fused = [attention(1, head_dim, kernel=flash2(compiled) if compiled else "attn", time_us=1000.0, calls=1)]
    rest = [gemm(2 + at, 989, 1000, 1000, component="attention.scores") for at in range(unfused)]
    return HeadsRun(head_dim, heads, fused, rest)


def dims_of(head_dim: int, heads: int = 32, **more: int) -> Any:
    return model(**({"hidden": heads * head_dim, "heads": heads, "head_dim": head_dim} | more))


@pytest.mark.parametrize(
    ("group", "why", "confidence"),
    [
        (heads_of(80, 96), "", "high"), (heads_of(80, None), "", "low"), (heads_of(60, None),
         "no multiple of 8", "medium"), (heads_of(63, 64), "no multiple of 8", "high"),
        (heads_of(56, None), "below 64", "medium"), (heads_of(56, 64), "below 64", "high"),
        (heads_of(32, 32), "below 64", "medium"), (heads_of(72, None), "", "low"),
    ],
)  # fmt: skip
def test_why_a_head_dimension_costs_and_how_sure_that_is(group: HeadsRun, why: str, confidence: str) -> None:
    found = _candidate(facts(*group.fused, dims=dims_of(group.head_dim)), group)
    assert (found.why, found.confidence) == (why, confidence)


def test_a_head_dimension_of_80_in_a_kernel_for_96(said: Listener) -> None:
    """1 ms; the work falls to 80/128 at best, and half of the operations is the floor."""
    group = heads_of(80, 96, unfused=1)
    step = facts(*group.fused, *group.unfused, gpu=BARE, dims=dims_of(80))
    found = _candidate(step, group)
    assert [bound.ms for bound in found.bounds] == pytest.approx([1 - 80 / 128, 2.0 - 2 / 1000])
    assert found.change == {"head_dim": [80, 128], "heads": [32, 20]}
    assert (found.parameter_delta, found.flops_delta) == (0, 0.0)
    assert found.evidence == {
        "head_dim": 80, "compiled_head_dim": 96, "padding_frac": pytest.approx(1 / 6),
        "options": [{"head_dim": 128, "heads": 20}, {"head_dim": 64, "heads": 40}],
    }  # fmt: skip
    assert len(found.caveats) == 3 and found.effort == "retrain"
    said(found.how, found.saw)


def test_a_head_dimension_off_the_grid_has_no_limit_but_the_floor(said: Listener) -> None:
    group = heads_of(60, None)
    found = _candidate(facts(*group.fused, gpu=BARE, dims=dims_of(60)), group)
    flops_ms = 4.0 * 32 * 2048 * 2048 * 60 / 989e9
    assert found.bounds[0].ms == pytest.approx(1 - flops_ms / 2) and found.how == ""
    said(found.saw)
    scores = HeadsRun(80, 32, [], heads_of(80, 96, unfused=2).unfused)
    unfused = _candidate(facts(*scores.unfused, dims=dims_of(80)), scores)
    assert unfused.how == ""
    said(unfused.saw, unfused.caveats[-1])


@pytest.mark.parametrize(
    ("dims", "heads", "change", "delta", "caveats"),
    [
        (dims_of(80, kv_heads=32), 32, {"head_dim": [80, 128], "heads": [32, 20]}, 0, 2),
        (dims_of(80, kv_heads=8), 32, {"head_dim": [80, 128], "heads": [32, 20]}, None, 3),
        (dims_of(64), 32, {}, None, 2),
        (dims_of(80, heads=16), 32, {}, None, 2),
        (model(head_dim=80), None, {"head_dim": [80, 128]}, None, 2),
    ],
)
def test_the_change_of_heads_is_the_models_where_it_is_its_attention(
    dims: Any,
    heads: int | None,
    change: dict[str, list[int]],
    delta: int | None,
    caveats: int,
    said: Listener,
) -> None:
    group = heads_of(80, 96, heads=heads)
    found = _candidate(facts(*group.fused, dims=dims), group)
    assert (found.change, found.parameter_delta, len(found.caveats)) == (change, delta, caveats)
    assert (found.flops_delta is None) is (delta is None)
    if heads is None:
        assert found.fix == ["- head_dim = 80", "+ head_dim = 128"]
        said(found.title)


def test_head_dimensions_that_fit_say_how_that_is_known(said: Listener) -> None:
    said(_fits(heads_of(128, 128)), _fits(heads_of(64, 96)), _fits(heads_of(96, None)))


# TL107: tensor-parallel ranks


def what_if(mid: float | None, **given: Any) -> Any:
    return SimpleNamespace(saving_ms=Estimate(mid, mid, mid, "model"), **given)


def slices(**given: Any) -> Slices:
    told: dict[str, Any] = {
        "rows": [gemm(1, 989, 1000, 1000, component="mlp.up")], "thin": [], "off_grid": [], "copies": "",
        "vocab": None, "exposed_ms": 2.5,
    }  # fmt: skip
    return Slices(4, **(told | given))


def test_other_numbers_of_ranks_in_words(said: Listener) -> None:
    found = {3: what_if(2.0), 2: what_if(-0.5), 1: what_if(None), 8: what_if(0.0)}
    assert ranks_rule._in_words({}) == ""
    said(ranks_rule._in_words(found))


@pytest.mark.parametrize(
    ("parameters", "stages", "ranks"), [(8_000_000_000, None, 2), (8_000_000_000, 2, 1), (None, 2, 2)]
)
def test_memory_of_fewer_ranks(
    parameters: int | None, stages: int | None, ranks: int, said: Listener
) -> None:
    """16 bytes of 8 billion weights are 128 GB: a half, a quarter, and half of that on each of 2 stages."""
    now = SimpleNamespace(parameters=parameters, pp=stages or 1)
    step: Any = SimpleNamespace(step=SimpleNamespace(now=now))
    said(ranks_rule._memory(step, 4, ranks), ranks_rule._memory(facts(gemm(1, 64, 64, 64)), 4, 2))


@pytest.mark.parametrize(
    ("given", "confidence"),
    [({}, "low"), ({"thin": [gemm(1, 64, 64, 64)]}, "medium"), ({"off_grid": ["ffn 1365"]}, "medium")],
)
def test_fewer_ranks(given: dict[str, Any], confidence: str, said: Listener) -> None:
    step = facts(gemm(1, 989, 1000, 1000), gpu=BARE, step_ms=100.0)
    found = ranks_rule._fewer_ranks(step, slices(**given), 2, {2: what_if(3.0), 1: what_if(-1.0)})
    assert found.confidence == confidence
    assert found.change == {"tensor_parallel": [4, 2]} and found.simulate == {"tensor_parallel": 2}
    assert found.fix == ["- tensor_parallel = 4", "+ tensor_parallel = 2"]
    assert found.bounds[0].ms == pytest.approx(2.0 - 2 / 1000) and found.elsewhere_ms == 2.5
    assert found.evidence["others"] == {"2": 3.0, "1": -1.0} and found.parameter_delta == 0
    assert found.evidence["tensor_parallel"] == 4 and found.evidence["exposed_ms"] == 2.5
    said(found.title, found.caveats[1])
    alone = ranks_rule._fewer_ranks(step, slices(), 1, {1: what_if(3.0)})
    assert len(alone.caveats) == 1
    said(alone.title)


def test_logits_of_a_quarter_of_the_vocabulary(said: Listener) -> None:
    """32064 over 4 ranks are 8016, in whole 64s 8064; three quarters of 2 ms can go."""
    logits = gemm(7, 1024, 32064, 4096, component="logits")
    step = facts(gemm(1, 64, 64, 64), logits, step_ms=100.0)
    found = ranks_rule._split_vocabulary(step, slices(), 32064, {2: what_if(1.0)})
    assert [(bound.row.id, bound.ms) for bound in found.bounds] == [("g7", 1.5)]
    assert found.evidence == {"vocab": 32064, "tensor_parallel": 4, "part": 8064}
    assert found.simulate == {"vocab": 8064} and found.change == {"vocab_parallel": [1, 4]}
    assert len(ranks_rule._split_vocabulary(step, slices(), 32064, {}).caveats) == 2
    assert ranks_rule._split_vocabulary(step, slices(), 32768, {}).evidence["part"] == 8192
    said(found.title, found.bounds[0].how, found.caveats[-1], found.fix)
    times = [("loss", "forward", 8.0, 0.0), ("logits", "forward", 6.0, 2.0), ("mlp.up", "forward", 9.0, 0.0)]
    simulated: Any = SimpleNamespace(components=times, now=None)
    timed = replace(step, step=simulated, gpu=replace(H100, sms=None))
    # 8 and 6 - 2 ms of kernels beside GEMMs of loss and logits
    more = ranks_rule._split_vocabulary(timed, slices(), 32064, {})
    assert more.elsewhere_ms == pytest.approx(0.75 * 12.0)


# TL109 and TL123: experts


def mixture(*rows: GemmRow, **given: Any) -> Mixture:
    told: dict[str, Any] = {
        "how": "batched", "experts": 64, "local": 64, "rows": rows or (expert(),), "capacity": 640.0,
        "least": 640, "most": 640, "rows_per_token": 10.0, "ranks": 1, "gated": True,
    }  # fmt: skip
    return Mixture(**(told | given))


def expert(number: int = 1, **given: Any) -> GemmRow:
    told: dict[str, Any] = {"component": "moe.experts", "time_us": 1000.0}
    return gemm(number, 640, 1024, 2048, **(told | given))


@pytest.mark.parametrize(
    ("experts", "ranks", "then", "share"),
    [
        (60, 8, 64, 1 - 7.5 / 8), (64, 8, None, 0), (60, 1, None, 0), (60, None, None, 0),
        (None, 8, None, 0), (5, 2, 6, 1 - 2.5 / 3), (3, 2, 4, 0.25),
    ],
)  # fmt: skip
def test_experts_that_ranks_do_not_divide(
    experts: int | None, ranks: int | None, then: int | None, share: float, said: Listener
) -> None:
    step = facts(expert(), step_ms=100.0)
    step = replace(step, model=replace(step.model, expert_parallel=Known(ranks, "made up")))
    found = rule_experts._divided(step, mixture(experts=experts))
    if then is None:
        assert found is None
        return
    assert found is not None and ranks and experts
    assert found.change == {"experts": [experts, then]}
    assert found.fix == [f"- experts = {experts}", f"+ experts = {then}"]
    assert found.bounds[0].ms == pytest.approx(share)
    assert found.evidence["imbalance_frac"] == pytest.approx((then / ranks) / (experts / ranks) - 1)
    if experts == 60:
        said(found.how, found.bounds[0].how, found.title)


@pytest.mark.parametrize(
    ("given", "grouped"),
    [
        ({"how": "loop", "local": 2}, True), ({"how": "loop", "local": 1}, False),
        ({"how": "loop", "local": None}, False), ({"how": "batched", "local": 64}, False),
    ],
)  # fmt: skip
def test_experts_in_turn(given: dict[str, Any], grouped: bool, said: Listener) -> None:
    rows = (expert(calls=3.0), expert(2, calls=4.5))
    found = rule_experts._grouped(facts(*rows, step_ms=100.0), mixture(*rows, **given))
    assert (found is not None) is grouped
    if found is not None:
        assert (found.why, found.counts, found.parameter_delta, found.flops_delta) == (
            "one by one", "kernels", 0, 0.0,
        )  # fmt: skip
        said(found.title, found.saw)  # 7.5 GEMMs in the mean


@pytest.mark.parametrize(
    ("saved", "given", "found"),
    [
        (0.1, {}, True), (0.09, {}, False), (0.1, {"how": "loop", "local": 1}, True),
        (0.1, {"how": "loop", "local": 2}, False), (0.1, {"how": "loop", "local": None}, True),
        (None, {}, False),
    ],
)  # fmt: skip
def test_twice_the_rows_have_to_save_a_tenth(
    saved: float | None, given: dict[str, Any], found: bool, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    def bound(_step: Any, row: GemmRow) -> Any:
        return None if saved is None else Bound(row, saved * row.time_ms_per_step)

    monkeypatch.setattr(rule_experts, "doubled", bound)
    rows = (expert(), expert(2))
    one = rule_experts._fuller(facts(*rows, step_ms=100.0), mixture(*rows, capacity=63.6, **given))
    assert (one is not None) is found
    if one is not None:
        assert one.change == {"capacity": [64, 128]}
        assert one.fix == ["- 64 rows for each expert", "+ 128 rows for each expert"]
        assert (one.parameter_delta, one.effort, one.confidence) == (0, "config", "medium")
        said(one.title, one.caveats[0])


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({}, 512), ({"how": "loop"}, None), ({"rows_per_token": None}, None), ({"capacity": None}, None),
        ({"how": "grouped"}, 512), ({"how": "grouped", "local": 8}, None), ({"local": 8}, 512),
        ({"rows_per_token": 8.8}, None), ({"rows_per_token": 8.9}, 575), ({"rows_per_token": 16.0}, 320),
    ],
)  # fmt: skip
def test_rows_without_a_token_are_those_beyond_the_routers_choices(
    given: dict[str, Any], held: int | None, said: Listener
) -> None:
    """8 experts for a token: of 10 rows for each a fifth, of 640 rows 128."""
    step = facts(expert(), gpu=BARE, step_ms=100.0)
    found = tiles._padded(step, mixture(**given))
    assert found is None, "top_k is not known"
    step = replace(step, model=replace(step.model, top_k=Known(8, "made up")))
    found = tiles._padded(step, mixture(**given))
    if held is None:
        assert found is None
        return
    assert found is not None
    rows = given.get("rows_per_token", 10.0)
    assert found.change == {"capacity": [640, held]}
    assert found.fix[0].startswith(f"- capacity_factor = {rows / 8:.3g} ")
    assert found.evidence["empty_frac"] == pytest.approx(1 - 8 / rows) and found.evidence["top_k"] == 8
    assert found.flops_delta == pytest.approx(8 / rows - 1) and found.parameter_delta == 0
    assert found.bounds[0].ms == pytest.approx(1 - 8 / rows) and found.why == "padding"
    if rows == 10.0:
        assert found.fix[0].startswith("- capacity_factor = 1.25 ")
        said(found.title)


@pytest.mark.parametrize(
    ("row", "moved"),
    [
        (expert(), 1 - 0.25 * 640 * 3072 / (640 * 3072 + 1024 * 2048)),
        (expert(groups=Groups("m", 8)), 1 - 0.25 * 640 * 3072 / (640 * 3072 + 8 * 1024 * 2048)),
        (expert(role="wgrad"), 1 - 0.25 * 2048 * 1664 / (2048 * 1664 + 640 * 1024)),
    ],
)
def test_without_rows_their_work_and_bytes_go_and_the_weights_stay(row: GemmRow, moved: float) -> None:
    """A quarter of the rows; 100 ns are far below the floor of either."""
    gpu = replace(BARE, bandwidth_gbps=3350.0, peak_tflops={})
    row = replace(row, bytes=8e6)
    floor_ms = moved * 8e6 / 3350e6
    slow = replace(row, time_ms_per_step=1.2 * floor_ms)
    found = tiles._without(slow, 0.25, gpu)
    assert found.row is slow and found.ms == pytest.approx(0.2 * floor_ms)
    computed = tiles._without(replace(slow, flops=4e9), 0.25, replace(BARE, peak_tflops={"bf16": 1000.0}))
    assert computed.ms == pytest.approx(max(0.0, min(0.25 * 1.2 * floor_ms, 1.2 * floor_ms - 0.003)))
    # 4 TFLOP at 1,000 TFLOP/s: three quarters of 4 ms are the floor of 3.5 ms
    long = replace(slow, flops=4e12, time_ms_per_step=3.5)
    assert tiles._without(long, 0.25, replace(BARE, peak_tflops={"bf16": 1000.0})).ms == pytest.approx(0.5)
    assert tiles._without(replace(slow, time_ms_per_step=9.0), 0.25, gpu).ms == pytest.approx(2.25)


@pytest.mark.parametrize(
    ("rows", "tile", "then"),
    [(300, 128, 256), (330, 128, 384), (128, 128, 128), (127, 128, None), (600, 128, None)],
)
def test_rows_of_an_expert_are_rounded_to_whole_tiles(
    rows: int, tile: int, then: int | None, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    """Half a tile of each of 8 experts: 63.5 of 127 + 63.5 and so on; less than a tenth beyond 571 rows."""
    groups = Groups("m", 8)
    row = replace(expert(), m=8 * rows, groups=groups, tile_m=tile)
    deep = replace(expert(2), role="wgrad", groups=Groups("k", 8), tile_m=tile)
    mix = mixture(row, deep, how="grouped", capacity=float(rows), rows_per_token=None)
    monkeypatch.setattr(tiles, "need_mixture", lambda _: mix)
    found, text = tiles.ExpertTiles().look(facts(row, deep, gpu=BARE, step_ms=100.0))
    empty = 63.5 / (rows + 63.5)
    if then is None:
        assert found == []
        said(text)
        return
    assert text == ""
    (one,) = found
    assert one.change == {"rows_of_an_expert": [rows, then]}
    assert one.evidence["empty_frac"] == pytest.approx(empty) and one.evidence["tile_m"] == 128
    assert [bound.ms for bound in one.bounds] == [pytest.approx(empty)] and one.parameter_delta == 0
    said(one.title, one.fix)


# TL106: key-value heads


def shaped(number: int = 1, *, kv_lost: float = 1.0, **more: Any) -> GemmRow:
    row = gemm(number, 2048, 1024, 4096, component="attention.qkv", time_us=10_000.0)
    lost = replace(row.lost_ms, alignment=0.5 * kv_lost, tile=0.25 * kv_lost, wave=0.25 * kv_lost, useful=1.0)
    return replace(row, lost_ms=lost, tile_eff_frac=0.75, wave_eff_frac=0.5, **more)


def trial(value: int, low: float, mid: float) -> Trial:
    return trial_of("kv_heads", (4, value), mid, low)


def heads_step(row: GemmRow, ranks: int | None = 1, kv_heads: int = 4) -> Any:
    return facts(row, step_ms=100.0, dims=model(heads=32, kv_heads=kv_heads, tensor_parallel=ranks))


def judged_heads(
    monkeypatch: pytest.MonkeyPatch, trials: list[Trial], gain: float = 1.0, **given: Any
) -> tuple[str, Any]:
    row = shaped(**{name: value for name, value in given.items() if name not in ("ranks", "kv_heads")})
    monkeypatch.setattr(kv, "need_kv_rows", lambda _: [row])
    monkeypatch.setattr(kv, "try_values", lambda *_: (trials, "made up"))
    monkeypatch.setattr(kv, "shape_gain_ms", lambda *_: gain)
    step = heads_step(row, given.get("ranks", 1), given.get("kv_heads", 4))
    try:
        (one,), _ = kv.KvHeads().look(step)
    except Answer as answer:
        return answer.outcome.state, answer.outcome.why
    return "found", one


def test_shapes_have_to_lose_a_hundredth_of_the_step(monkeypatch: pytest.MonkeyPatch, said: Listener) -> None:
    state, one = judged_heads(monkeypatch, [trial(8, 0.5, 1.0), trial(2, 0.5, 2.0)])
    assert state == "found" and one.change == {"kv_heads": [4, 2]} and one.simulate == {"kv_heads": 2}
    assert one.fix == ["- kv_heads = 4", "+ kv_heads = 2"]
    assert [bound.ms for bound in one.bounds] == [1.0] and len(one.caveats) == 3
    said(one.title, one.caveats[1], one.saw)
    state, why = judged_heads(monkeypatch, [trial(2, 0.5, 2.0)], kv_lost=0.98)
    assert state == "passed"
    assert judged_heads(monkeypatch, [trial(2, 0.5, 2.0)], gain=0.99)[0] == "passed"
    said(why)
    state, why = judged_heads(monkeypatch, [trial(2, -0.1, 2.0)])
    assert state == "passed"
    said(why)
    state, why = judged_heads(monkeypatch, [])
    assert state == "could_not_run"
    said(why)


def test_key_value_heads_of_ranks_are_counted_in_the_model(
    monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    state, one = judged_heads(monkeypatch, [trial(16, 0.5, 1.0)], ranks=2)
    assert state == "found" and one.change == {"kv_heads": [8, 16]} and len(one.caveats) == 2
    said(one.caveats[1], one.saw)
    _, copied = judged_heads(monkeypatch, [trial(16, 0.5, 1.0)], ranks=2, kv_heads=1)
    said(copied.saw)
    _, alone = judged_heads(monkeypatch, [trial(2, 0.5, 1.0)], kv_heads=1, ranks=None)
    said(alone.saw)


# TL104: gated MLPs


@pytest.mark.parametrize(
    ("close", "ties"),
    [
        ([trial(64, 1, 3.0)], False), ([trial(64, 1, 3.0), trial(96, 1, 2.5)], True),
        ([trial(64, 1, 3.0), trial(96, 1, 2.0), trial(128, 1, 2.5)], True),
    ],
)  # fmt: skip
def test_widths_that_the_model_does_not_tell_apart(close: list[Trial], ties: bool, said: Listener) -> None:
    found = widths._ties(close[0], close, 100.0)
    assert len(found) == ties
    said(found)


@pytest.mark.parametrize(
    ("trials", "then"),
    [
        ([trial(1344, 1, 3.0), trial(1408, 1, 2.5)], 1408),  # growing first
        ([trial(1344, 1, 3.0), trial(1408, 1, 1.9)], 1344),  # not within 1 ms of the best
        ([trial(1408, 1, 3.0), trial(1536, 1, 3.5)], 1408),  # then the nearest
        ([trial(1344, 1, 3.0), trial(1280, 1, 3.5)], 1344),
    ],
)
def test_a_width_near_by_that_is_surely_faster(
    trials: list[Trial], then: int, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    rows = [gemm(1, 2048, 1365, 1024, names=("b*s", "f", "h"))]
    monkeypatch.setattr(widths, "need_gated_mlp", lambda _: GatedMlp(1365, 1, rows))
    monkeypatch.setattr(widths, "case_of", lambda *_: None)
    monkeypatch.setattr(widths, "try_values", lambda *_: (trials, ""))
    (one,), _ = widths.SwigluWidth().look(facts(*rows, step_ms=100.0, dims=model(ffn=1365)))
    assert one.change == {"ffn": [1365, then]} and one.fix == ["- ffn = 1365", f"+ ffn = {then}"]
    assert one.confidence == "medium" and one.why == ""
    assert one.evidence["ffn_per_rank"] == [1365, then]
    assert one.flops_delta == pytest.approx(then / 1365 - 1)
    said(one.title)
    if then < 1365:
        said(one.caveats[0])


# all rules together


def finding(*rows: tuple[str, float | None], mid: float | None = None, high: float = 9.0) -> Finding:
    made: Any = SimpleNamespace(
        saving_ms=Estimate(0.0, mid, high, "model"), gemms=[name for name, _ in rows],
        evidence={"rows": [{"gemm": name, "bound_ms": bound} for name, bound in rows]},
    )  # fmt: skip
    return made  # type: ignore[no-any-return]


def test_of_two_savings_of_one_row_the_second_counts_its_other_rows() -> None:
    def mids(*parts: tuple[float, dict[str, float | None]]) -> list[float | None]:
        taken, covered = _apart([(Span(0.0, mid, mid, "model"), rows) for mid, rows in parts])
        assert covered <= {name for _, rows in parts for name in rows}
        return [one.mid for one in taken]

    assert mids((4.0, {"a": 1.0}), (2.0, {"b": 1.0})) == [4.0, 2.0]
    assert mids((4.0, {"a": 1.0}), (2.0, {"a": 1.0, "b": 3.0})) == [4.0, pytest.approx(1.5)]
    assert mids((4.0, {"a": 1.0}), (2.0, {"a": 4.0})) == [4.0]
    assert mids((4.0, {"a": None}), (2.0, {"a": None, "b": 3.0})) == [4.0]  # how much is shared is not known
    assert mids((4.0, {"a": 1.0}), (2.0, {"a": 0.5, "b": None})) == [4.0]
    assert mids((4.0, {"a": 1.0}), (2.0, {"a": 0.5, "b": None, "c": 0.5})) == [4.0, pytest.approx(1.0)]
    assert mids((4.0, {"a": 1.0}), (2.0, {"a": 0.0, "b": 0.0})) == [4.0]
    # what the second covers is not the third's
    assert mids((4.0, {"a": 1.0}), (2.0, {"b": 1.0}), (1.0, {"b": 1.0, "c": 1.0})) == [4.0, 2.0, 0.5]


def test_findings_without_a_prediction_leave_open_what_no_other_counts() -> None:
    found = [(finding(("a", 3.0), mid=2.0), None), (finding(("a", 3.0), ("b", 1.0)), None),
             (finding(high=2.5), None), (finding(("c", 1.0)), None)]  # fmt: skip
    bounds = {"a": 3.0, "b": 1.0, "c": 0.5}
    assert _open_ms(found, bounds, {"a"}) == 2.5 + 1.0 + 0.5
    assert _open_ms(found, bounds, set()) == 2.5 + 3.0 + 1.0 + 0.5
    assert _open_ms(found, {}, set()) == 2.5
    assert _open_ms(found[:1], bounds, set()) == 0.0


@pytest.mark.parametrize(
    ("joint", "mid", "open_"),
    [
        (Estimate(1.0, 5.0, 6.0, "model"), 5.0 + 2.0, 1.0),  # and the row of its own
        (Estimate(-9.0, 5.0, 6.0, "model"), None, 0.0),  # as likely slower
        (None, None, 0.0),
    ],
)
def test_changes_of_the_model_are_simulated_together(
    joint: Estimate | None, mid: float | None, open_: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def together(_step: Any, changes: list[Any]) -> Any:
        asked.extend(changes)
        return None if joint is None else SimpleNamespace(saving_ms=joint)

    monkeypatch.setattr(import_module("tracelens.rules.advise"), "together", together)
    found: list[Any] = [
        (finding(("a", 3.0), mid=3.0), {"ffn": 64}), (finding(("b", 3.0), mid=2.0), None),
        (finding(("c", 1.0)), None),
    ]  # fmt: skip
    saving, rest = _at_stake(facts(), found, {"a": 3.0, "b": 3.0, "c": 1.0}, 20.0)
    assert asked == [{"ffn": 64}] and (saving.mid, rest) == (mid, open_)
    if mid is None:
        assert saving == Estimate(0.0, None, 20.0, "heuristic")
    else:
        capped, left = _at_stake(facts(), found, {"a": 3.0, "b": 3.0, "c": 1.0}, 7.5)
        assert capped.high == 7.5 and left == pytest.approx(0.5)
