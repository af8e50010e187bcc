"""Rules about layers, heads, ranks and experts: sizes, diffs and shares, each counted by hand."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_rows import H100, attention, facts, flash2, gemm, model
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


def test_the_longest_stage_against_the_mean() -> None:
    """30 layers on 4 stages: 8 and 7.5, of 10 ms, and 3/4 more to fill the pipeline of 4 micro-batches."""
    found = _uneven(stage())
    assert found is not None
    assert found.title == "4 pipeline stages do not divide 30 layers: even them out"
    assert found.change == {"layers": [30, 32]} and found.fix == ["- layers = 30", "+ layers = 32"]
    assert found.saw.endswith("the longest stage has 8 and the mean is 7.5: 8/7.5 - 1 = 6.7% more.")
    assert found.how.startswith("8 - 7.5 = 0.5 layers of 10.0 ms each.")
    assert found.bounds[0].ms == pytest.approx(5.0 * 1.75) and found.elsewhere_ms == 0.0
    assert found.evidence == {
        "layers": 30, "stages": 4, "layers_here": 8, "imbalance_frac": pytest.approx(8 / 7.5 - 1)
    }  # fmt: skip
    assert found.simulate is None and (found.confidence, found.effort) == ("medium", "retrain")


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
    ("whole", "stages", "says"),
    [
        (30, 4, "30 becomes 28 or 32. 3 or 5 stages divide the 30 there are."),
        (3, 4, "3 becomes 4. 3 stages divide the 3 there are."),
        (31, 4, "31 becomes 28 or 32."),
        (9, 4, "9 becomes 8 or 12. 3 stages divide the 9 there are."),
        (25, 4, "25 becomes 24 or 28. 5 stages divide the 25 there are."),
        (36, 8, "36 becomes 32 or 40. 6 or 9 stages divide the 36 there are."),
        (14, 4, "14 becomes 12 or 16. 2 or 7 stages divide the 14 there are."),
        (10, 3, "10 becomes 9 or 12. 2 or 5 stages divide the 10 there are."),
        (8, 3, "8 becomes 6 or 9. 2 or 4 stages divide the 8 there are."),
        (22, 4, "22 becomes 20 or 24. 2 stages divide the 22 there are."),  # 11 are more than twice as many
    ],
)
def test_other_numbers_of_layers_and_of_stages(whole: int, stages: int, says: str) -> None:
    assert _other_ways(whole, stages) == f"Another number of layers is another model: {says}"


def test_layers_of_a_heavy_end_go_to_the_others() -> None:
    """8 layers and logits of 3: the longest has 11; with 3 of them on 3 others 9 here are 8 - 3 + 3 = 9."""
    found = _heavy_end(stage(whole=32, last_ms=30.0))
    assert found is not None
    # moved 1: max(9, 10); moved 2: max(9, 9); moved 3: max(9, 8): the first of the least is 2
    assert found.title == "Give the last pipeline stage 6 layers and not 8: it has more to do"
    assert found.change == {"last_stage_layers": [8, 6]}
    assert found.fix == ["- last stage: 8 layers", "+ last stage: 6 layers"]
    assert found.how.startswith(
        "The longest stage takes 11.0 layers now and 9.00 with 6 layers here and 2 more on the other 3:"
        " 2.00 layers of 10.0 ms each."
    )
    assert found.saw.endswith("That is the work of 3.00 more layers than the others have.")
    assert found.bounds[0].ms == pytest.approx(20.0 * 1.75)
    assert found.evidence == {"stages": 4, "layers_here": 8, "extra_layers": 3.0, "moved": 2}
    assert (found.parameter_delta, found.flops_delta, found.confidence) == (0, 0.0, "medium")
    assert found.why == "the first or last stage"
    assert "--account-for-loss-in-pipeline-split" in found.caveats[1]


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


def test_a_head_dimension_of_80_in_a_kernel_for_96() -> None:
    """1 ms; the work falls to 80/128 at best, and half of the operations is the floor."""
    group = heads_of(80, 96, unfused=1)
    step = facts(*group.fused, *group.unfused, gpu=BARE, dims=dims_of(80))
    found = _candidate(step, group)
    assert [bound.ms for bound in found.bounds] == pytest.approx([1 - 80 / 128, 2.0 - 2 / 1000])
    assert found.change == {"head_dim": [80, 128], "heads": [32, 20]}
    assert (found.parameter_delta, found.flops_delta) == (0, 0.0)
    assert found.how.endswith("to 80/128 and the GEMMs to 80/96, so at most 1 - 0.625 = 37.5% of the time.")
    assert found.evidence == {
        "head_dim": 80, "compiled_head_dim": 96, "padding_frac": pytest.approx(1 / 6),
        "options": [{"head_dim": 128, "heads": 20}, {"head_dim": 64, "heads": 40}],
    }  # fmt: skip
    assert found.saw == (
        "head_dim is 80; 1 fused attention row took 1.00 ms per step and 1 score or value GEMM took 2.00 ms"
        " per step. The kernel that ran is compiled for 96: 80 of 96 columns are useful, 16.7% are zeros."
    )
    assert len(found.caveats) == 2 and found.effort == "retrain"


def test_a_head_dimension_off_the_grid_has_no_limit_but_the_floor() -> None:
    group = heads_of(60, None)
    found = _candidate(facts(*group.fused, gpu=BARE, dims=dims_of(60)), group)
    flops_ms = 4.0 * 32 * 2048 * 2048 * 60 / 989e9
    assert found.bounds[0].ms == pytest.approx(1 - flops_ms / 2) and found.how == ""
    assert found.saw.endswith("The kernels' names do not say which head size they are compiled for.")
    scores = HeadsRun(80, 32, [], heads_of(80, 96, unfused=2).unfused)
    unfused = _candidate(facts(*scores.unfused, dims=dims_of(80)), scores)
    assert unfused.how == "" and unfused.saw == (
        "head_dim is 80; 2 score or value GEMMs took 4.00 ms per step."
    )


@pytest.mark.parametrize(
    ("dims", "heads", "change", "delta", "caveats"),
    [
        (dims_of(80, kv_heads=32), 32, {"head_dim": [80, 128], "heads": [32, 20]}, 0, 2),
        (dims_of(80, kv_heads=8), 32, {"head_dim": [80, 128], "heads": [32, 20]}, None, 3),
        (dims_of(64), 32, {}, None, 3),
        (dims_of(80, heads=16), 32, {}, None, 3),
        (model(head_dim=80), None, {"head_dim": [80, 128]}, None, 3),
    ],
)
def test_the_change_of_heads_is_the_models_where_it_is_its_attention(
    dims: Any, heads: int | None, change: dict[str, list[int]], delta: int | None, caveats: int
) -> None:
    group = heads_of(80, 96, heads=heads)
    found = _candidate(facts(*group.fused, dims=dims), group)
    assert (found.change, found.parameter_delta, len(found.caveats)) == (change, delta, caveats)
    assert (found.flops_delta is None) is (delta is None)
    if heads is None:
        assert found.title == "Use head_dim 128 or 64 instead of 80"
        assert found.fix == ["- head_dim = 80", "+ head_dim = 128"]


def test_head_dimensions_that_fit_say_how_that_is_known() -> None:
    assert _fits(heads_of(128, 128)).endswith("fills the attention kernel that ran, compiled for 128.")
    assert _fits(heads_of(64, 96)) == "head_dim 64 is a size that attention kernels are compiled for."
    assert _fits(heads_of(96, None)) == "head_dim 96: no padding is known for it."


# TL107: tensor-parallel ranks


def what_if(mid: float | None, **given: Any) -> Any:
    return SimpleNamespace(saving_ms=Estimate(mid, mid, mid, "model"), **given)


def slices(**given: Any) -> Slices:
    told: dict[str, Any] = {
        "rows": [gemm(1, 989, 1000, 1000, component="mlp.up")], "thin": [], "off_grid": [], "copies": "",
        "vocab": None, "exposed_ms": 2.5,
    }  # fmt: skip
    return Slices(4, **(told | given))


def test_other_numbers_of_ranks_in_words() -> None:
    found = {3: what_if(2.0), 2: what_if(-0.5), 1: what_if(None), 8: what_if(0.0)}
    assert ranks_rule._in_words(found) == "3 saves 2.00 ms, 2 adds 500 µs and 8 saves 0 ms"
    assert ranks_rule._in_words({}) == ""


@pytest.mark.parametrize(
    ("parameters", "stages", "ranks", "text"),
    [
        (8_000_000_000, None, 2, "1/2 of the layers and not 1/4; whether that fits"),
        (8_000_000_000, None, 2, "they take 64 GB and not 32 GB, and activations grow as well."),
        (8_000_000_000, 2, 1, "all of the layers and not 1/4;"),
        (None, 2, 2, ""),
    ],
)  # fmt: skip
def test_memory_of_fewer_ranks(parameters: int | None, stages: int | None, ranks: int, text: str) -> None:
    """16 bytes of 8 billion weights are 128 GB: a half, a quarter, and half of that on each of 2 stages."""
    now = SimpleNamespace(parameters=parameters, pp=stages or 1)
    step: Any = SimpleNamespace(step=SimpleNamespace(now=now))
    said = ranks_rule._memory(step, 4, ranks)
    assert text in said
    if stages == 2 and parameters:
        assert "take 64 GB and not 16 GB" in said
    if parameters is None:
        assert said == (
            "Each GPU then holds 1/2 of the layers and not 1/4; whether that fits is not in the trace."
        )
    assert ranks_rule._memory(facts(gemm(1, 64, 64, 64)), 4, 2).endswith("is not in the trace.")


@pytest.mark.parametrize(
    ("given", "confidence"),
    [({}, "low"), ({"thin": [gemm(1, 64, 64, 64)]}, "medium"), ({"off_grid": ["ffn 1365"]}, "medium")],
)
def test_fewer_ranks(given: dict[str, Any], confidence: str) -> None:
    step = facts(gemm(1, 989, 1000, 1000), gpu=BARE, step_ms=100.0)
    found = ranks_rule._fewer_ranks(step, slices(**given), 2, {2: what_if(3.0), 1: what_if(-1.0)})
    assert found.title == "Split layers over 2 ranks instead of 4" and found.confidence == confidence
    assert found.change == {"tensor_parallel": [4, 2]} and found.simulate == {"tensor_parallel": 2}
    assert found.fix == ["- tensor_parallel = 4", "+ tensor_parallel = 2"]
    assert found.caveats[1] == "Other numbers of ranks, at the same GPUs and tokens: 1 adds 1.00 ms."
    assert found.bounds[0].ms == pytest.approx(2.0 - 2 / 1000) and found.elsewhere_ms == 2.5
    assert found.evidence["others"] == {"2": 3.0, "1": -1.0} and found.parameter_delta == 0
    assert found.evidence["tensor_parallel"] == 4 and found.evidence["exposed_ms"] == 2.5
    alone = ranks_rule._fewer_ranks(step, slices(), 1, {1: what_if(3.0)})
    assert alone.title == "Split layers over 1 rank instead of 4" and len(alone.caveats) == 1


def test_logits_of_a_quarter_of_the_vocabulary() -> None:
    """32064 over 4 ranks are 8016, in whole 64s 8064; three quarters of 2 ms can go."""
    logits = gemm(7, 1024, 32064, 4096, component="logits")
    step = facts(gemm(1, 64, 64, 64), logits, step_ms=100.0)
    found = ranks_rule._split_vocabulary(step, slices(), 32064, {2: what_if(1.0)})
    assert found.title == "Split the vocabulary of 32064 over the 4 tensor-parallel ranks"
    assert found.fix == ["- 32064 logits on each of 4 ranks", "+ 8064 logits on each of 4 ranks"]
    assert [(bound.row.id, bound.ms) for bound in found.bounds] == [("g7", 1.5)]
    assert found.bounds[0].how == (
        "logits (g7): every rank computes all of it, 2.00 ms × (1 - 1/4) = 1.50 ms."
    )
    assert found.evidence == {"vocab": 32064, "tensor_parallel": 4, "part": 8064}
    assert found.simulate == {"vocab": 8064} and found.change == {"vocab_parallel": [1, 4]}
    assert found.caveats[-1].endswith("at the same GPUs and tokens: 2 saves 1.00 ms.")
    assert len(ranks_rule._split_vocabulary(step, slices(), 32064, {}).caveats) == 2
    assert ranks_rule._split_vocabulary(step, slices(), 32768, {}).evidence["part"] == 8192
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
    experts: int | None, ranks: int | None, then: int | None, share: float
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
        assert found.how == (
            "8 experts on the fullest rank and 7.5 on average: 1 - 7.5/8 = 6.2%."
        ) and found.bounds[0].how.endswith("(g1): 6.2% of its time.")
        assert found.title == "8 expert-parallel ranks do not divide 60 experts: use 64 or other ranks"


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ({"how": "loop", "local": 2}, "Run the 2 experts in one grouped GEMM, not in 2"),
        ({"how": "loop", "local": 1}, None), ({"how": "loop", "local": None}, None),
        ({"how": "batched", "local": 64}, None),
    ],
)  # fmt: skip
def test_experts_in_turn(given: dict[str, Any], title: str | None) -> None:
    rows = (expert(calls=3.0), expert(2, calls=4.5))
    found = rule_experts._grouped(facts(*rows, step_ms=100.0), mixture(*rows, **given))
    assert (None if found is None else found.title) == title
    if found is not None:
        assert "That is 8 GEMMs per step." in found.saw  # 7.5 in the mean
        assert (found.why, found.counts, found.parameter_delta, found.flops_delta) == (
            "one by one", "kernels", 0, 0.0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("saved", "given", "found"),
    [
        (0.1, {}, True), (0.09, {}, False), (0.1, {"how": "loop", "local": 1}, True),
        (0.1, {"how": "loop", "local": 2}, False), (0.1, {"how": "loop", "local": None}, True),
        (None, {}, False),
    ],
)  # fmt: skip
def test_twice_the_rows_have_to_save_a_tenth(
    saved: float | None, given: dict[str, Any], found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bound(_step: Any, row: GemmRow) -> Any:
        return None if saved is None else Bound(row, saved * row.time_ms_per_step)

    monkeypatch.setattr(rule_experts, "doubled", bound)
    rows = (expert(), expert(2))
    one = rule_experts._fuller(facts(*rows, step_ms=100.0), mixture(*rows, capacity=63.6, **given))
    assert (one is not None) is found
    if one is not None:
        assert one.title == "Give each expert 128 rows instead of 64" and one.change == {
            "capacity": [64, 128]
        }
        assert one.fix == ["- 64 rows for each expert", "+ 128 rows for each expert"]
        assert one.caveats[0] == "Twice the micro-batch does it, with the memory that takes."
        assert (one.parameter_delta, one.effort, one.confidence) == (0, "config", "medium")


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({}, 512), ({"how": "loop"}, None), ({"rows_per_token": None}, None), ({"capacity": None}, None),
        ({"how": "grouped"}, 512), ({"how": "grouped", "local": 8}, None), ({"local": 8}, 512),
        ({"rows_per_token": 8.8}, None), ({"rows_per_token": 8.9}, 575), ({"rows_per_token": 16.0}, 320),
    ],
)  # fmt: skip
def test_rows_without_a_token_are_those_beyond_the_routers_choices(
    given: dict[str, Any], held: int | None
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
        assert found.title == "Leave out rows without a token: 20.0% of the experts' 640 rows"
        assert found.fix[0].startswith("- capacity_factor = 1.25 ")


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
    rows: int, tile: int, then: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a tile of each of 8 experts: 63.5 of 127 + 63.5 and so on; less than a tenth beyond 571 rows."""
    groups = Groups("m", 8)
    row = replace(expert(), m=8 * rows, groups=groups, tile_m=tile)
    deep = replace(expert(2), role="wgrad", groups=Groups("k", 8), tile_m=tile)
    mix = mixture(row, deep, how="grouped", capacity=float(rows), rows_per_token=None)
    monkeypatch.setattr(tiles, "need_mixture", lambda _: mix)
    found, said = tiles.ExpertTiles().look(facts(row, deep, gpu=BARE, step_ms=100.0))
    empty = 63.5 / (rows + 63.5)
    if then is None:
        assert found == [] and f"Their tiles have 128 rows: on average {100 * empty:.1f}%" in said
        return
    assert said == ""
    (one,) = found
    assert one.title == f"Round each expert's rows ({rows} on average) to whole tiles of 128"
    assert one.change == {"rows_of_an_expert": [rows, then]}
    assert one.evidence["empty_frac"] == pytest.approx(empty) and one.evidence["tile_m"] == 128
    assert [bound.ms for bound in one.bounds] == [pytest.approx(empty)] and one.parameter_delta == 0
    assert one.fix == ["+ each expert's rows up or down to a multiple of 128, by the router's scores"]


# TL106: key-value heads


def shaped(number: int = 1, *, kv_lost: float = 1.0, **more: Any) -> GemmRow:
    row = gemm(number, 2048, 1024, 4096, component="attention.qkv", time_us=10_000.0)
    lost = replace(row.lost_ms, alignment=0.5 * kv_lost, tile=0.25 * kv_lost, wave=0.25 * kv_lost, useful=1.0)
    return replace(row, lost_ms=lost, tile_eff_frac=0.75, wave_eff_frac=0.5, **more)


def trial(value: int, low: float, mid: float) -> Trial:
    found: Any = SimpleNamespace(
        saving_ms=Estimate(low, mid, mid + 1.0, "model"), change={"kv_heads": [4, value]}
    )
    return Trial(value, found, found.saving_ms.known)


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


def test_shapes_have_to_lose_a_hundredth_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    state, one = judged_heads(monkeypatch, [trial(8, 0.5, 1.0), trial(2, 0.5, 2.0)])
    assert state == "found" and one.change == {"kv_heads": [4, 2]} and one.simulate == {"kv_heads": 2}
    assert one.fix == ["- kv_heads = 4", "+ kv_heads = 2"]
    assert one.title == "Use 2 key-value heads instead of 4"
    assert [bound.ms for bound in one.bounds] == [1.0] and len(one.caveats) == 3
    assert one.caveats[1] == "At inference the key-value cache is 0.5 times as large."
    assert one.saw == (
        "4 key-value heads for 32 heads. The GEMMs that make keys and values take 10.0 ms per step and lose"
        " 1.00 ms (1% of the step) to alignment, tiles and waves. Most in attention.qkv forward"
        " 2048 × 1024 × 4096 bf16 (g1): 75.0% of its tiles are output, and 50.0% of the SMs' time is used."
    )
    state, why = judged_heads(monkeypatch, [trial(2, 0.5, 2.0)], kv_lost=0.98)
    assert state == "passed" and "lose 980 µs" in why and "Most in" not in why
    assert why.endswith(
        " Fewer would be a smaller model: with kv_heads = 2 the step is predicted to take 2% less, for the"
        " work left out."
    )
    assert judged_heads(monkeypatch, [trial(2, 0.5, 2.0)], gain=0.99)[0] == "passed"
    state, why = judged_heads(monkeypatch, [trial(2, -0.1, 2.0)])
    assert state == "passed" and why.endswith("No other number surely fits better.")
    state, why = judged_heads(monkeypatch, [])
    assert state == "could_not_run" and why.endswith("Other numbers were not simulated: made up.")


def test_key_value_heads_of_ranks_are_counted_in_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    state, one = judged_heads(monkeypatch, [trial(16, 0.5, 1.0)], ranks=2)
    assert state == "found" and one.change == {"kv_heads": [8, 16]} and len(one.caveats) == 2
    assert one.caveats[1] == "At inference the key-value cache is 2 times as large."
    assert one.saw.startswith("4 key-value heads for 32 heads on each of 2 ranks. ")
    assert "With fewer than" not in one.saw
    _, copied = judged_heads(monkeypatch, [trial(16, 0.5, 1.0)], ranks=2, kv_heads=1)
    assert copied.saw.startswith("1 key-value head for 32 heads on each of 2 ranks. ")
    assert " With fewer than 2 in the model, ranks hold copies;" in copied.saw
    _, alone = judged_heads(monkeypatch, [trial(2, 0.5, 1.0)], kv_heads=1, ranks=None)
    assert alone.saw.startswith("1 key-value head for 32 heads. The GEMMs")
    assert "With fewer than" not in alone.saw


# TL104: gated MLPs


@pytest.mark.parametrize(
    ("close", "says"),
    [
        ([trial(64, 1, 3.0)], None),
        ([trial(64, 1, 3.0), trial(96, 1, 2.5)],
         "With 96 the step is predicted to differ by at most 0.5% from that with 64"),
        ([trial(64, 1, 3.0), trial(96, 1, 2.0), trial(128, 1, 2.5)],
         "With 96 and 128 the step is predicted to differ by at most 1% from that with 64"),
    ],
)  # fmt: skip
def test_widths_that_the_model_does_not_tell_apart(close: list[Trial], says: str | None) -> None:
    found = widths._ties(close[0], close, 100.0)
    assert (found[0].startswith(says) if says else found == []) and len(found) == bool(says)


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
    trials: list[Trial], then: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [gemm(1, 2048, 1365, 1024, names=("b*s", "f", "h"))]
    monkeypatch.setattr(widths, "need_gated_mlp", lambda _: GatedMlp(1365, 1, rows))
    monkeypatch.setattr(widths, "case_of", lambda *_: None)
    monkeypatch.setattr(widths, "try_values", lambda *_: (trials, ""))
    (one,), _ = widths.SwigluWidth().look(facts(*rows, step_ms=100.0, dims=model(ffn=1365)))
    assert one.change == {"ffn": [1365, then]} and one.fix == ["- ffn = 1365", f"+ ffn = {then}"]
    assert one.title == f"Change ffn from 1365 to {then}" and one.confidence == "medium" and one.why == ""
    assert one.evidence["ffn_per_rank"] == [1365, then]
    assert one.flops_delta == pytest.approx(then / 1365 - 1)
    if then < 1365:
        assert f"gets {100 * (1 - then / 1365):.1f}% narrower" in one.caveats[0]


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
