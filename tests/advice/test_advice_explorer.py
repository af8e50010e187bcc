"""The curves of the shape explorer: what-ifs around the present value, with their cliffs, and their ends."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from tests.advice.advice_steps import A100, Shape, model_of
from tests.said import Listener
from tracelens.hardware import find_gpu
from tracelens.results import Curve, Estimate, Explorer, Finding, Suggested
from tracelens.step.explorer import explore
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if

GPT = Shape(2560, 32, 10240, v=50257)
LLAMA = Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2, t=2)
#: What one analysis asks at most: about a millisecond each.
MOST = 260


def curves(found: Explorer) -> dict[str, Curve]:
    assert found.why is None
    return {curve.parameter: curve for curve in found.curves}


def mid(curve: Curve, value: int) -> float:
    time = curve.mid_ms[curve.values.index(value)]
    assert time is not None
    return time


def finding(**change: tuple[int, int]) -> Finding:
    nothing = Estimate(None, None, None, "model")
    pairs: dict[str, list[int | float | str]] = {name: [*pair] for name, pair in change.items()}
    return Finding("TL999", "x", "x", [], "low", nothing, nothing, "model", "low", "config", "", "", "", {},
                   pairs, [], None, None, [], [], "")  # fmt: skip


@pytest.fixture(scope="module")
def gpt() -> StepModel:
    return model_of(GPT, rest_ms=20.0)


@pytest.fixture(scope="module")
def found(gpt: StepModel) -> dict[str, Curve]:
    return curves(explore(gpt, [finding(vocab_size=(50257, 50304))]))


def test_every_known_parameter_has_one_curve(found: dict[str, Curve]) -> None:
    assert list(found) == ["hidden", "heads", "kv_heads", "ffn", "vocab", "sequence", "micro_batch"]
    assert all(curve.why is None for curve in found.values())


def test_columns_are_of_one_length_in_order_and_hold_their_middle(found: dict[str, Curve]) -> None:
    for curve in found.values():
        columns = (curve.low_ms, curve.mid_ms, curve.high_ms)
        assert all(len(column) == len(curve.values) for column in columns)
        assert curve.alignment_bytes == [] or len(curve.alignment_bytes) == len(curve.values)
        assert curve.values == sorted(set(curve.values))
        for low, middle, high in zip(*columns, strict=True):
            assert (low is None) == (middle is None) == (high is None)
            assert low is None or middle is None or high is None or 0 <= low <= middle <= high


def test_the_present_value_is_the_measured_step(gpt: StepModel, found: dict[str, Curve]) -> None:
    for curve in found.values():
        at = curve.values.index(curve.now)
        assert curve.now == gpt.now.get(curve.parameter)
        assert curve.low_ms[at] == curve.mid_ms[at] == curve.high_ms[at] == gpt.step_ms


def test_a_point_is_what_the_what_if_says(gpt: StepModel, found: dict[str, Curve]) -> None:
    for name, value in (("ffn", found["ffn"].values[3]), ("heads", 20), ("vocab", 50304)):
        then = what_if(gpt, {name: value}).then_ms
        at = found[name].values.index(value)
        curve = found[name]
        assert (curve.low_ms[at], curve.mid_ms[at], curve.high_ms[at]) == (then.low, then.mid, then.high)


def test_more_tokens_are_timed_per_token(gpt: StepModel, found: dict[str, Curve]) -> None:
    for name, value in (("micro_batch", 8), ("sequence", 2112)):
        one = what_if(gpt, {name: value})
        assert found[name].per_token and one.then_ms.mid is not None
        now = gpt.now.get(name) or 0
        assert mid(found[name], value) == pytest.approx(one.then_ms.mid * now / value)
    assert not any(found[name].per_token for name in ("hidden", "heads", "ffn", "vocab"))


def test_the_cliff_of_alignment_stands_between_neighbours(found: dict[str, Curve]) -> None:
    """50257 columns begin on 2 bytes; those on 128 bytes left and right of it are faster, larger or not."""
    curve = found["vocab"]
    classes = dict(zip(curve.values, curve.alignment_bytes, strict=True))
    assert classes[50257] == 2 and classes[50304] == 128 and classes[50264] == 16
    on_grid = [mid(curve, value) for value, size in classes.items() if size >= 16]
    assert max(on_grid) < mid(curve, 50257)
    off = [mid(curve, value) for value, size in classes.items() if size == 2]
    assert len(off) > 5 and min(off) > max(on_grid)


def test_one_token_beyond_a_full_tile_costs_more_per_token(found: dict[str, Curve]) -> None:
    curve = found["sequence"]
    pairs = [(one, one + 1) for one in curve.values if one % 64 == 0 and one + 1 in curve.values]
    assert len(pairs) >= 10
    assert sum(mid(curve, more) > mid(curve, full) for full, more in pairs) > len(pairs) / 2


def test_waves_show_as_teeth_on_the_aligned_line() -> None:
    """One layer size, one GPU: the time of values on 128 bytes goes up by steps, not along a line.

    By published times a last wave costs less than a full one: the steps are lower than whole waves.
    """
    curve = curves(explore(model_of(Shape(4096, 32, 16384, b=1, layers=4), gpu=A100)))["ffn"]
    full = [v for v, size in zip(curve.values, curve.alignment_bytes, strict=True) if size == 128]
    grown = [mid(curve, b) - mid(curve, a) for a, b in itertools.pairwise(full)]
    assert len(full) == 25 and max(grown) > 2 * abs(sorted(grown)[len(grown) // 2])


def test_suggested_values_are_on_the_curve(found: dict[str, Curve]) -> None:
    assert found["vocab"].suggested == [Suggested(50304, "TL999")]
    assert not any(curve.suggested for name, curve in found.items() if name != "vocab")


def test_a_change_from_another_value_is_no_suggestion(gpt: StepModel) -> None:
    other = [
        finding(vocab_size=(32000, 32064)),
        finding(dimension=(50257, 50304)),
        finding(ffn=(10240, 10240)),
    ]
    marked = {name: curve.suggested for name, curve in curves(explore(gpt, other)).items() if curve.suggested}
    assert marked == {"ffn": [Suggested(10240, "TL999")]}


def test_sizes_stay_whole(found: dict[str, Curve]) -> None:
    assert all(2560 % heads == 0 and 2560 // heads >= 16 for heads in found["heads"].values)
    assert all(hidden % 32 == 0 for hidden in found["hidden"].values)
    assert found["heads"].follows == "head_dim = hidden / heads"


def test_ranks_that_share_a_layer_divide_it_and_a_suggestion_for_a_slice_is_of_the_whole() -> None:
    step = model_of(LLAMA)
    found = curves(explore(step, [finding(ffn=(7168, 7680))]))
    assert all(value % 2 == 0 for value in found["ffn"].values)
    assert found["ffn"].now == 14336 and found["ffn"].suggested == [Suggested(15360, "TL999")]
    at = found["ffn"].values.index(14336)
    assert found["ffn"].alignment_bytes[at] == 128
    assert all(32 % value == 0 for value in found["kv_heads"].values)


@pytest.mark.parametrize("shape", [GPT, LLAMA, Shape(768, 12, 3072, v=50257, layers=12, b=12, s=1024)])
def test_an_analysis_asks_a_bounded_number_of_what_ifs(shape: Shape) -> None:
    counts = [len(curve.values) for curve in explore(model_of(shape)).curves]
    assert sum(counts) <= MOST and max(counts) <= 50


def test_a_neighbourhood_stays_one() -> None:
    for curve in explore(model_of(Shape(8192, 64, 28672, layers=8))).curves:
        if curve.parameter in ("hidden", "ffn", "vocab", "sequence"):
            far = max(abs(math.log(value / curve.now)) for value in curve.values)
            assert far < 0.7, curve.parameter


def test_without_a_prediction_there_is_a_reason_and_no_curve(said: Listener) -> None:
    unknown = find_gpu("AMD Instinct MI300X")
    step = replace(model_of(GPT), gpu=unknown)
    found = {curve.parameter: curve for curve in explore(step).curves}
    assert found["ffn"].values == [] == found["ffn"].mid_ms
    said(found["ffn"].why)


def test_without_a_step_or_a_formula_there_is_one_reason(gpt: StepModel, said: Listener) -> None:
    empty = replace(gpt, work=replace(gpt.work, products=(), attention=()))
    for step in (replace(gpt, step_ms=None), empty):
        found = explore(step)
        assert found == Explorer(why=found.why) and found.why
        said(found.why)


def test_a_step_that_waits_for_the_host_has_no_curve_per_token(said: Listener) -> None:
    """Of a step that is 7 % busy, what twice the tokens cost is the host's time, which nobody knows."""
    busy = model_of(GPT, rest_ms=20.0)
    assert busy.step_ms is not None
    idle = replace(busy, step_ms=busy.step_ms / 0.07, busy_frac=0.07)
    one, other = curves(explore(idle)), curves(explore(busy))
    for name in ("micro_batch", "sequence"):
        assert one[name].values == []
        said(one[name].why)
        assert other[name].why is None and len(other[name].values) > 2
    assert one["ffn"].why is None and one["ffn"].values == other["ffn"].values
    now = one["micro_batch"].now
    for change in ({"micro_batch": 2 * now}, {"ffn": 10304}):
        said("\n".join(what_if(idle, change).notes))
