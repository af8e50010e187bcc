"""The search around an analysed step: figures of what_if, known answers, and nothing searched in the dark."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

import tracelens
from tests.advice.advice_steps import H100, Shape, dims_of, model_of, rows_of
from tests.effort import unit
from tests.kept import analyzed
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tracelens.analysis import Analysis
from tracelens.config import config_from_flags
from tracelens.config.model_config import ModelConfig
from tracelens.errors import UsageError
from tracelens.hardware import find_gpu
from tracelens.results import Known, Lack, ModelDims, ShapeSearch
from tracelens.results.row_sizes import AttentionDims
from tracelens.step.measured_step import MeasuredStep
from tracelens.step.search import Combination, search
from tracelens.step.search_space import BY_DEFAULT, SEARCHED, SearchLimits
from tracelens.step.step_search import search_step
from tracelens.step.traced_step import StepModel, step_model
from tracelens.step.whatif import what_if

GPT = Shape(2560, 32, 10240, v=50257)
LLAMA = Shape(4096, 32, 11008, v=32000, gated=True, b=2)
ODD = replace(LLAMA, f=10922)
UNKNOWN = Known(None, "its range was not recorded")


def _changes(now: ModelConfig, then: ModelConfig) -> dict[str, int]:
    return {name: then.get(name) or 0 for name in SEARCHED if then.get(name) != now.get(name)}


def _moving(step: StepModel) -> StepModel:
    """With kernels that move bytes in every part of the step."""
    names = ("embedding", "residual", "attention.rope", "attention.other", "mlp.activation", "loss",
             "optimizer", "grad_clip", "communication", "other")  # fmt: skip
    more = tuple((name, "forward", 1.0 + number, 0.0) for number, name in enumerate(names))
    extra = sum(one[2] for one in more)
    return replace(step, components=(*step.components, *more), step_ms=(step.step_ms or 0.0) + extra)


def _search(x: Shape, limits: SearchLimits | None = None, **step: object) -> ShapeSearch:
    return search_step(model_of(x, **step), dims_of(x), limits=limits)  # type: ignore[arg-type]


# Its figures are those of what_if.


@pytest.mark.parametrize("shape", [replace(LLAMA, kv=8), replace(GPT, t=4, v=50264)], ids=str)
def test_a_sum_of_parts_is_the_step_simulated_as_one(shape: Shape) -> None:
    step = _moving(model_of(shape, rest_ms=15.0))
    measured = MeasuredStep(step)
    assert measured.time_ms(step.now) == pytest.approx(step.step_ms)
    found = search(measured, step.now, SearchLimits(0.05, BY_DEFAULT | {"layers", "kv_heads"}))
    assert found.front
    fewer = Combination(replace(step.now, kv_heads=8), 0.0, 0.0)
    for point in (*found.front, fewer):
        then = what_if(step, _changes(step.now, point.model)).then_ms.mid
        assert measured.time_ms(point.model) == pytest.approx(then, rel=1e-9)
        assert point is fewer or point.time_frac == pytest.approx(
            (then or 0.0) / (step.step_ms or 1.0), rel=1e-9
        )


def test_another_micro_batch_is_judged_by_its_time_per_token() -> None:
    step = model_of(replace(LLAMA, b=1), rest_ms=5.0)
    measured = MeasuredStep(step)
    then = replace(step.now, micro_batch=4)
    change = measured.change(step.now, then)
    simulated = what_if(step, {"micro_batch": 4})
    assert change is not None and change.saving_frac.mid is not None
    per_token = (simulated.then_ms.mid or 0.0) / (step.step_ms or 1.0) / 4
    assert change.saving_frac.mid == pytest.approx(1 - per_token)
    assert sum(part.saving_ms for part in change.parts) == pytest.approx(change.saving_ms.mid, rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"heads": 20, "head_dim": 128, "kv_heads": 20},
        {"vocab": 50304},
        {"ffn": 10304, "vocab": 50304},
        {"hidden": 2688, "heads": 21, "head_dim": 128, "kv_heads": 21, "ffn": 9216},
        {"layers": 30},
        {"micro_batch": 8},
        {"sequence": 4096},
    ],
    ids=str,
)
def test_the_changed_step_is_as_long_as_it_was_predicted(change: dict[str, int]) -> None:
    """And every row of it has moved: from there, the next change is judged."""
    step = _moving(model_of(GPT, rest_ms=10.0))
    then = replace(step.now, **change)  # type: ignore[arg-type]
    moved = MeasuredStep(step).at(then)
    simulated = what_if(step, change)
    assert moved.now == then and moved.step_ms == pytest.approx(simulated.then_ms.mid)
    before, after = (sum(one[2] for one in model.components) for model in (step, moved))
    assert before - after == pytest.approx(simulated.saving_ms.mid)
    rows = {row.gemm: row.then_ms.mid for row in simulated.rows}
    for product in moved.work.products:
        if product.row.id in rows:
            assert product.row.time_ms_per_step == pytest.approx(rows[product.row.id])
    assert what_if(moved, {}).flops_frac == 0.0


def test_one_change_after_the_other_is_both_at_once() -> None:
    step = model_of(GPT, rest_ms=10.0)
    measured = MeasuredStep(step)
    heads = replace(step.now, heads=20, head_dim=128, kv_heads=20)
    both = replace(heads, vocab=50304)
    first, second = measured.change(step.now, heads), measured.change(heads, both)
    whole = measured.change(step.now, both)
    assert first is not None and second is not None and whole is not None
    left = (1 - (first.saving_frac.mid or 0)) * (1 - (second.saving_frac.mid or 0))
    assert left == pytest.approx(1 - (whole.saving_frac.mid or 0), rel=1e-6)


# Known answers.


def test_2_7b_takes_fewer_heads_and_pads_its_vocabulary() -> None:
    """arXiv 2401.14489, Figure 1: 20 and 40 heads are faster than 32; 64 are slower."""
    found = _search(GPT, rest_ms=10.0)
    best = found.picks[0]
    assert found.state == "found" and found.verdict.startswith(best.title)
    assert (best.change["heads"], best.change["vocab"]) == ([32, 20], [50257, 50304])
    assert best.parameters_frac == pytest.approx(0, abs=1e-3)
    mids = {row.heads: row.saving_frac.mid or 0.0 for row in found.heads}
    assert mids[20] > mids[40] > 0 > mids[64]
    slower = next(row.saving_frac for row in found.heads if row.heads == 64)
    assert (slower.high or 0.0) < 0
    assert {tuple(pick.change) for pick in found.picks} >= {("vocab",)}


def test_faster_than_the_papers_own_shape_within_its_parameters() -> None:
    """C2 of Figure 1 keeps h 2560 and takes 40 heads; it pads nothing."""
    started = time.process_time()
    step = model_of(GPT, rest_ms=10.0)
    measured = MeasuredStep(step)
    found = search(measured, step.now, SearchLimits(0.01, BY_DEFAULT - {"vocab"}))
    took = time.process_time() - started
    c2 = replace(step.now, heads=40, head_dim=64, kv_heads=40)
    best = found.picks[0].then
    change = measured.change(c2, best)
    assert change is not None and (change.saving_frac.mid or 0) > 0
    assert abs((best.parameters or 0) / (c2.parameters or 1) - 1) <= 0.01
    assert took < 60 * unit()  # seconds of one core, whatever else runs


def test_an_odd_swiglu_width_is_moved_to_the_grid() -> None:
    best = _search(ODD, slowed={"mlp.up": 1.4, "mlp.gate": 1.4, "mlp.down": 1.4}).picks[0]
    assert set(best.change) == {"ffn"}
    then = best.change["ffn"][1] or 1
    assert then % 64 == 0 and abs(then - 10922) < 0.02 * 10922
    assert best.diff == ["- ffn = 10922", f"+ ffn = {then}"]


@pytest.mark.parametrize("shape", [LLAMA, replace(LLAMA, f=14336, v=128256, kv=8)], ids=["2 7B", "3 8B"])
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_a_good_shape_is_left_alone(shape: Shape, factor: float, said: Listener) -> None:
    found = _search(shape, factor=factor, rest_ms=20.0)
    assert found.picks == [] and found.tried > 5
    assert found.state == "good"
    said(found.verdict)


@pytest.mark.parametrize(
    "shape", [GPT, ODD, Shape(1600, 25, 6400, v=50257), Shape(4544, 71, 18176, v=65024)], ids=str
)
def test_no_pick_is_slower_anywhere_in_its_range(shape: Shape) -> None:
    step = model_of(shape, rest_ms=10.0)
    found = search_step(step, dims_of(shape))
    measured = MeasuredStep(step)
    for pick in found.picks:
        changes = {name: pair[1] or 0 for name, pair in pick.change.items()}
        simulated = what_if(step, changes)  # as a whole, once more
        assert (simulated.saving_ms.low or 0.0) > 0
        assert simulated.saving_frac == pick.saving_frac
        assert pick.shape_gain_frac >= 0.01 and abs(pick.parameters_frac) <= 0.01
        then = replace(step.now, **changes)  # type: ignore[arg-type]
        assert then.heads and then.head_dim and then.heads * then.head_dim == then.hidden
        for other in found.picks:
            if set(other.change) < set(pick.change):
                smaller = replace(step.now, **{name: pair[1] for name, pair in other.change.items()})  # type: ignore[arg-type]
                more = measured.change(smaller, then)
                assert more is not None and (more.saving_frac.low or 0.0) > 0


def test_ranks_divide_every_pick_and_each_ranks_vocabulary_is_padded() -> None:
    shape = replace(GPT, t=4, v=50257)  # the columns that this rank's logits have
    found = _search(shape)
    assert found.picks
    for pick in found.picks:
        for name in ("heads", "kv_heads", "ffn"):
            assert (pick.change.get(name, [0, 0])[1] or 0) % 4 == 0
        assert pick.change.get("vocab", [0, 50304])[1] == 50304


def test_limits_are_kept() -> None:
    found = _search(GPT, SearchLimits(0.0, frozenset({"heads", "head_dim"})))
    assert {name for pick in found.picks for name in pick.change} <= {"heads", "head_dim", "kv_heads"}
    assert all(pick.parameters_frac == 0 for pick in found.picks)
    with pytest.raises(UsageError, match="--memory-gb"):
        _search(GPT, SearchLimits(free=BY_DEFAULT | {"micro_batch"}))


def test_the_traces_own_memory_bounds_the_micro_batch_also_from_a_saved_report(
    tmp_path: Path, said: Listener
) -> None:
    """Nobody has to say how much memory there is where the trace does; given, that is what counts."""
    path = tmp_path / "trace.json"
    path.write_text(build(ModelSpec(layers=2, micro_batch=4), Options(steps=2)).text())
    analysis = tracelens.analyze(path, shape_search=False)
    assert analysis.report.gpu.memory_gib == pytest.approx(85028634624 / 2**30)
    analysis.save(tmp_path / "report.json")
    for source in (path, tmp_path / "report.json"):
        found = tracelens.suggest(source, free=("micro_batch",))
        assert "micro_batch" in found.searched
        said(found.notes)
        larger = [pick.change["micro_batch"][1] or 0 for pick in found.picks if "micro_batch" in pick.change]
        tight = tracelens.suggest(source, free=("micro_batch",), memory_gb=1.0)
        assert not any("GiB" in text for text in tight.notes)
        assert max(larger, default=0) >= max(
            (pick.change["micro_batch"][1] or 0 for pick in tight.picks if "micro_batch" in pick.change),
            default=0,
        )
    with pytest.raises(UsageError, match="--memory-gb"):  # another GPU's memory is not the trace's
        tracelens.suggest(tmp_path / "report.json", gpu="a100-sxm-40gb", free=("micro_batch",))
    silent = replace(analysis.report, gpu=replace(analysis.report.gpu, memory_gib=None))
    with pytest.raises(UsageError, match="--memory-gb"):
        tracelens.suggest(silent, free=("micro_batch",))


# A trace and a configuration of the same model.


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(hidden=2560, heads=32, layers=2, sequence=2048, micro_batch=4),
        ModelSpec(family="llama", hidden=4096, heads=32, layers=2, sequence=2048, micro_batch=2, vocab=32000,
                  ffn=10922),
        ModelSpec(family="llama", hidden=4096, heads=32, layers=2, sequence=2048, micro_batch=2, vocab=32000,
                  ffn=11008),
    ],
    ids=["vocabulary", "width", "good"],
)  # fmt: skip
def test_trace_and_configuration_agree_in_direction(spec: ModelSpec, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(build(spec, Options(steps=2)).text())
    traced = tracelens.suggest(path)
    sizes = {"hidden": spec.hidden, "heads": spec.heads, "layers": spec.layers, "ffn": spec.ffn_size,
             "vocab": spec.vocab, "sequence": spec.sequence, "micro_batch": spec.micro_batch}  # fmt: skip
    config = config_from_flags(sizes, gated=spec.family == "llama", tied=spec.tied)
    planned = tracelens.suggest(config, gpu="h100-sxm")
    assert (traced.source, planned.source) == ("trace", "config")
    assert bool(traced.picks) == bool(planned.picks)
    if traced.picks:
        assert set(traced.picks[0].change) == set(planned.picks[0].change)
    heads = {row.heads: row.saving_frac for row in planned.heads}
    for row in traced.heads:
        other = heads[row.heads]
        surely = [(one.low or 0.0) > 0 or (one.high or 0.0) < 0 for one in (row.saving_frac, other)]
        if all(surely):
            assert ((row.saving_frac.mid or 0) > 0) == ((other.mid or 0) > 0)


# What cannot be searched says why.


def _blind(x: Shape, *names: str, **more: object) -> tuple[StepModel, ModelDims]:
    """The step of a trace that does not show ``names``."""
    rows = rows_of(x)
    dims = replace(dims_of(x), **dict.fromkeys(names, UNKNOWN))  # type: ignore[arg-type]
    total = sum(row.time_ms_per_step for row in rows)
    step = replace(step_model(rows, dims, [], gpu=H100, step_ms=total), busy_frac=0.99)
    return step, dims


def test_unknown_layers_leave_what_keeps_the_weights(said: Listener) -> None:
    step, dims = _blind(GPT, "layers")
    found = search_step(step, dims)
    assert "heads" in found.searched and "vocab" in found.searched
    for name in ("hidden", "ffn"):
        assert "--layers N" in found.not_searched[name]
    assert found.picks and found.picks[0].parameters is None
    said(found.notes)
    told = search_step(*_blind(GPT), limits=None)
    assert told.not_searched == {}


def test_unknown_heads_stay_and_with_them_hidden(said: Listener) -> None:
    lack = Lack("no-shapes", "No shapes", "", "record with record_shapes=True", "high", 1.0)
    found = search_step(*_blind(GPT, "heads", "kv_heads", "head_dim"), lacks=[lack])
    assert {"heads", "head_dim", "hidden"} <= set(found.not_searched)
    assert "vocab" in found.searched and found.heads == []
    assert [set(pick.change) for pick in found.picks] == [{"vocab"}]
    said(found.not_searched["heads"])


def test_nothing_known_is_nothing_searched(said: Listener) -> None:
    found = search_step(*_blind(GPT, "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab"))
    assert found.state == "could_not_run"
    said(found.verdict)


def test_attention_without_a_model_leaves_the_heads_alone() -> None:
    rows = [replace(row, kernel_family="triton") if row.kind == "attention" else row for row in rows_of(GPT)]
    step = model_of(GPT, rows=rows)
    found = search_step(step, dims_of(GPT))
    assert "triton" in found.not_searched["heads"] and "head_dim" in found.not_searched
    assert found.not_searched["hidden"]
    assert {name for pick in found.picks for name in pick.change} == {"vocab"}
    assert found.state == "found"


def test_packed_sequences_are_not_told_apart(said: Listener) -> None:
    rows = [
        replace(row, attention=AttentionDims(None, 32, 32, head_dim=80, tokens=8192), flops=None)
        if row.kind == "attention"
        else row
        for row in rows_of(GPT)
    ]
    dims = replace(dims_of(GPT), sequence=UNKNOWN, micro_batch=UNKNOWN)
    total = sum(row.time_ms_per_step for row in rows)
    step = replace(step_model(rows, dims, [], gpu=H100, step_ms=total), busy_frac=0.99)
    found = search_step(step, dims, limits=SearchLimits(free=BY_DEFAULT | {"sequence"}, memory_gb=80))
    assert set(found.not_searched) == {"sequence"}
    said(found.not_searched["sequence"], found.notes)
    assert {"vocab"} in [set(pick.change) for pick in found.picks]
    whole = {one.heads: one.saving_frac for one in search_step(model_of(GPT), dims_of(GPT)).heads}
    for one in found.heads:  # without lengths no head count is as sure
        packed, known = one.saving_frac, whole[one.heads]
        assert packed.high - packed.low > known.high - known.low  # type: ignore[operator]


def test_a_step_that_waits_for_the_host_gets_no_advice() -> None:
    found = _search(GPT, busy_frac=0.5)
    assert found.picks == [] and found.state == "none"
    assert found.unsure is None and found.front == [] and found.heads == []
    assert _search(GPT).front and found.tried > 0


@pytest.mark.parametrize(
    ("name", "says"), [("AMD Instinct MI300X", "NVIDIA"), ("NVIDIA Card 9000", "peaks of")]
)
def test_a_gpu_that_cannot_be_predicted(name: str, says: str) -> None:
    hardware = find_gpu(name)
    found = search_step(replace(model_of(GPT), gpu=hardware), dims_of(GPT))
    assert found.state == "could_not_run" and says in found.verdict


def test_no_step_time_is_no_search() -> None:
    found = search_step(replace(model_of(GPT), step_ms=None), dims_of(GPT))
    assert found.state == "could_not_run" and "step time" in found.verdict


# A saved report holds all that it takes.

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SHARED = Path(__file__).parents[3] / "shared" / "traces"
TRACES = [
    SAMPLES / "generated_gpt2_vocab50257.json.gz",
    *(path for name in ("d1_", "d2_", "d3_", "d4_") for path in SHARED.glob(f"{name}*.json.gz")),
]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:12])
def test_a_saved_report_gives_what_its_trace_gives(path: Path, tmp_path: Path) -> None:
    analysis = analyzed(path)
    saved = tmp_path / "anything.txt"  # told by content, not by name
    analysis.save(saved)
    fresh = tracelens.suggest(path)
    assert fresh.source == "trace"
    assert tracelens.suggest(analysis) == fresh
    for again in (
        tracelens.suggest(saved),
        tracelens.suggest(str(saved)),
        tracelens.suggest(Analysis.load(saved)),
    ):
        assert again.source == "report"
        assert replace(again, source="trace") == fresh
    searched = analysis.report.shape_search
    assert searched is not None
    assert (searched.picks, searched.front, searched.verdict) == (fresh.picks, fresh.front, fresh.verdict)
