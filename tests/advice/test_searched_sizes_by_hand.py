"""Which sizes of a traced step are searched, around which shapes, and what a search answers, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_steps import Shape, dims_of, model_of, rows_of
from tests.said import Listener
from tracelens.config.model_config import ModelConfig
from tracelens.hardware import find_gpu
from tracelens.results import Estimate, Known, Lack
from tracelens.step.measured_step import MeasuredStep
from tracelens.step.search import Found, search
from tracelens.step.search_space import SEARCHED, SearchLimits, Space
from tracelens.step.shape_search import changes, front_of, other_heads, picks_of
from tracelens.step.step import Change, PartChange
from tracelens.step.step_search import _closed, _others, _verdict, search_step
from tracelens.step.traced_step import StepModel
from tracelens.step.words import search as words

SMALL = Shape(1024, 16, 4096, v=50257, layers=2, b=2, s=512)
UNKNOWN = Known(None, "not seen")
ALL = frozenset(SEARCHED)


@pytest.fixture(scope="module")
def small() -> StepModel:
    return model_of(SMALL, rest_ms=1.0)


def closed(step: StepModel, free: frozenset[str] = ALL, **changed: Any) -> set[str]:
    names = [name for name, value in changed.items() if value is None and name != "experts"]
    unknown: Any = dict.fromkeys(set(names) & ALL, UNKNOWN)
    dims = replace(dims_of(SMALL), **unknown)
    now = replace(step.now, **changed)
    limits = SearchLimits(0.05, free, memory_gb=80.0)
    return {*_closed(MeasuredStep(replace(step, now=now)), dims, limits, [])}


@pytest.mark.parametrize(
    ("changed", "free", "names"),
    [
        ({}, ALL, set()),
        ({"vocab": None}, frozenset({"vocab"}), {"vocab"}),
        ({"layers": None}, ALL, {"layers", "hidden", "ffn", "kv_heads"}),  # they move the weights
        ({"layers": None}, frozenset({"heads", "head_dim", "vocab"}), set()),
        ({"ffn": None}, frozenset({"ffn"}), {"ffn"}),
        ({"heads": None, "kv_heads": None, "head_dim": None}, ALL,
         {"heads", "kv_heads", "head_dim", "hidden", "ffn", "layers"}),
        ({"head_dim": None}, ALL, {"heads", "head_dim", "hidden", "ffn", "layers", "kv_heads"}),
        ({"heads": None}, frozenset({"head_dim", "vocab"}), set()),
        ({"micro_batch": None, "tokens": 1024}, ALL, {"micro_batch"}),
        ({"sequence": None, "tokens": 1024}, ALL, {"sequence"}),
        ({"experts": 8}, frozenset({"micro_batch", "sequence", "vocab"}), {"micro_batch", "sequence"}),
        ({"experts": None}, frozenset({"micro_batch", "sequence", "vocab"}), set()),
    ],
)  # fmt: skip
def test_sizes_that_are_not_searched(
    small: StepModel, changed: dict[str, Any], free: frozenset[str], names: set[str]
) -> None:
    assert closed(small, free, **changed) == names


@pytest.mark.parametrize(
    ("kind", "names"), [("attention", {"heads", "head_dim", "kv_heads", "hidden"}), ("none", set())]
)
def test_sizes_whose_effect_is_not_predicted(kind: str, names: set[str]) -> None:
    rows = [replace(row, kernel_family="triton") if row.kind == kind else row for row in rows_of(SMALL)]
    found = closed(model_of(SMALL, rows=rows))
    assert found == names


def test_heads_of_their_own_size_do_not_hold_the_hidden_size() -> None:
    shape = replace(SMALL, d=128)
    rows = [
        replace(row, kernel_family="triton") if row.kind == "attention" else row for row in rows_of(shape)
    ]
    measured = MeasuredStep(model_of(shape, rows=rows))
    found = _closed(measured, dims_of(shape), SearchLimits(0.05, ALL - {"sequence"}, memory_gb=80.0), [])
    assert {*found} == {"heads", "head_dim", "kv_heads"}


def test_what_a_search_leaves_open_is_noted(small: StepModel) -> None:
    """Memory and weights that are not estimated, and packed sequences: a note each."""

    def notes(step: StepModel) -> int:
        return len(search_step(step, dims_of(SMALL), limits=SearchLimits(free=frozenset({"vocab"}))).notes)

    tied = replace(small, now=replace(small.now, tied=True))
    assert notes(tied) == 0
    assert notes(replace(tied, now=replace(tied.now, layers=None))) == 2
    packed = tuple(replace(call, seq_q=None) for call in small.work.attention)
    assert notes(replace(tied, work=replace(small.work, attention=packed))) == 1


def test_a_busy_step_without_a_sure_gain_is_no_waiting_one() -> None:
    """2 % of a small step is not sure: none is picked, for another reason than that it waits."""
    shape = replace(SMALL, v=50304)
    limits = SearchLimits(free=frozenset({"heads", "head_dim"}), any_heads=True)
    told = [
        search_step(replace(model_of(shape), busy_frac=busy), dims_of(shape), limits=limits)
        for busy in (0.99, 0.5, None)
    ]
    assert [one.state in ("none", "good") for one in told] == [True] * 3
    assert told[0].verdict == told[2].verdict != told[1].verdict


def test_other_shapes_differ_in_the_size_itself(small: StepModel) -> None:
    measured, limits = MeasuredStep(small), SearchLimits(free=ALL, memory_gb=80.0)
    for name in ALL - {"sequence"}:  # 512 is on the grid of sequences: there is no other
        one = next(_others(name, measured, limits))
        assert one.get(name) != small.now.get(name), name
    assert next(_others("sequence", measured, limits), None) is None
    assert measured.vocab_ranks(small.now) == 1
    assert next(_others("ffn", measured, limits)).ffn == 4096 + 64
    split = MeasuredStep(replace(small, now=replace(small.now, tensor_parallel=4)))
    assert next(_others("ffn", split, limits)).ffn == 4096 + 4 * 64
    fixed = {*_others("head_dim", measured, replace(limits, free=frozenset({"head_dim"})))}
    assert {(one.heads, one.head_dim) for one in fixed} == {(8, 128)}


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"step_ms": None}, "could_not_run"),
        ({"gpu": find_gpu("AMD Instinct MI300X")}, "could_not_run"),
        ({"gpu": find_gpu("NVIDIA Card 9000")}, "could_not_run"),
        ({"busy_frac": 0.5}, "none"),
        ({"busy_frac": 0.99}, "found"),
        ({"busy_frac": None}, "found"),
    ],
)
def test_what_a_search_answers(small: StepModel, changed: dict[str, Any], state: str) -> None:
    """A vocabulary of 50257 is worth padding, where it is known that its time is the step's."""
    limits = SearchLimits(free=frozenset({"vocab"}))
    found = search_step(replace(small, **changed), dims_of(SMALL), limits=limits)
    assert (found.state, bool(found.picks)) == (state, state == "found")
    assert found.searched == ([] if state == "could_not_run" else ["vocab"])
    assert bool(found.front) == (state == "found") == bool(found.heads)
    if state == "found":
        assert found.picks[0].change == {"vocab": [50257, 50304]} and found.tried == 1


@pytest.mark.parametrize(
    ("v", "free", "state", "tried"),
    [
        (50304, {"vocab"}, "none", 0),  # on both grids: no other
        (50304, set(), "could_not_run", 0),
    ],
)
def test_a_search_without_a_pick(v: int, free: set[str], state: str, tried: int) -> None:
    shape = replace(SMALL, v=v)
    found = search_step(model_of(shape), dims_of(shape), limits=SearchLimits(free=frozenset(free)))
    assert (found.state, found.tried, found.picks) == (state, tried, [])


def test_a_search_that_tried_nothing_names_the_size_that_holds_the_others(
    small: StepModel, said: Listener
) -> None:
    closed = {"hidden": (words.HEADS_FIXED, None), "heads": ("why", "remedy")}
    nothing: Any = SimpleNamespace(tried=0)
    state, verdict = _verdict(small, nothing, SearchLimits(), [], ["ffn"], closed)
    assert state == "could_not_run" and words.HEADS_FIXED not in verdict
    said(verdict, _verdict(small, nothing, SearchLimits(), [], [], {"hidden": closed["hidden"]})[1])


def test_what_hides_a_size_is_told_with_its_remedy(small: StepModel) -> None:
    lacks = [
        Lack("compiled", "x", "", "second", "high", 1.0),
        Lack("no-shapes", "x", "", "first", "high", 1.0),
    ]
    dims = replace(dims_of(SMALL), vocab=UNKNOWN)
    step = replace(small, now=replace(small.now, vocab=None))
    (why,) = _closed(MeasuredStep(step), dims, SearchLimits(free=frozenset({"vocab"})), lacks).values()
    assert why[1] == "first"
    other = [Lack("slow-cpu", "x", "", "third", "high", 1.0)]
    (plain,) = _closed(MeasuredStep(step), dims, SearchLimits(free=frozenset({"vocab"})), other).values()
    assert plain[1] == ""


# --- shapes around the present one ------------------------------------------------------------------------

NOW = ModelConfig(hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=4096, vocab=50257, layers=24,
                  sequence=1024, micro_batch=4, gated=False, tied=True, tensor_parallel=1)  # fmt: skip


def around(names: set[str], *, now: ModelConfig = NOW, any_heads: bool = True, share: float = 0.2,
           **more: Any) -> list[ModelConfig]:  # fmt: skip
    limits = SearchLimits(share, frozenset(names), memory_gb=80.0, any_heads=any_heads)
    return [*Space(now, limits, **more).bases()]


@pytest.mark.parametrize(
    ("changed", "free", "found"),
    [
        # heads of their own size keep heads x head_dim
        ({"head_dim": 128}, {"heads", "head_dim"}, {(16, 128), (32, 64)}),
        ({"head_dim": 128}, {"hidden"}, {(16, 128)}),
        (
            {"head_dim": 96, "heads": 10, "kv_heads": 10},
            {"heads", "head_dim"},
            {(10, 96), (12, 80), (8, 120), (15, 64)},
        ),
        # wider heads are tried where the model has them, in steps of 8
        ({"hidden": 4096, "head_dim": 256}, {"heads", "head_dim"}, {(16, 256), (32, 128), (64, 64)}),
        ({"hidden": 640, "head_dim": 40}, {"heads", "head_dim"}, {(16, 40), (10, 64), (8, 80), (5, 128)}),
        ({"heads": None}, {"heads", "head_dim"}, {(None, 64)}),
        ({"head_dim": None}, {"heads", "head_dim"}, {(16, None)}),
        ({"hidden": None}, {"heads", "head_dim"}, {(16, 64)}),
        ({"tensor_parallel": 16}, {"heads", "head_dim"}, {(16, 64)}),  # sixteen ranks need sixteen heads
        ({"tensor_parallel": 8}, {"heads", "head_dim"}, {(16, 64), (8, 128)}),
        ({"tensor_parallel": None}, {"heads", "head_dim"}, {(16, 64), (8, 128)}),
    ],
)
def test_heads_that_are_tried(
    changed: dict[str, Any], free: set[str], found: set[tuple[int | None, int | None]]
) -> None:
    now = replace(NOW, **changed)
    assert {(one.heads, one.head_dim) for one in around(free, now=now)} == found


@pytest.mark.parametrize(
    ("kv", "t", "free", "found"),
    [
        (None, 1, {"kv_heads"}, {None}),
        (4, 2, {"kv_heads"}, {1, 2, 4, 8, 16}),
        (3, 1, {"kv_heads"}, {1, 2, 4, 8, 16}),  # three divide sixteen heads no more than now
        (4, 3, {"kv_heads"}, set()),
        (16, 1, {"heads", "head_dim"}, {16, 8}),  # as many as heads stay as many
        (8, 1, {"heads", "head_dim"}, {8}),
    ],
)
def test_key_heads_that_are_tried(kv: int | None, t: int, free: set[str], found: set[int | None]) -> None:
    now = replace(NOW, kv_heads=kv, tensor_parallel=t)
    assert {one.kv_heads for one in around(free, now=now)} == found


@pytest.mark.parametrize(
    ("name", "coarse", "values"),
    [
        ("layers", 1, [21, 22, 23, 24, 25, 26, 27]),
        ("layers", 2, [21, 22, 23, 24, 25, 26, 27]),
        ("layers", 4, [22, 24, 26]),
        ("layers", 8, [24]),
        ("hidden", 1, [896, 960, 1024, 1088, 1152]),
        ("hidden", 2, [896, 1024, 1152]),
        ("micro_batch", 1, [4, 6, 8, 10, 12, 14, 16]),
        ("sequence", 1, [1024]),
    ],
)
def test_values_of_one_size(name: str, coarse: int, values: list[int]) -> None:
    free = {name} | ({"heads"} if name == "hidden" else set())
    assert sorted({one.get(name) or 0 for one in around(free, coarse=coarse)}) == values


@pytest.mark.parametrize(
    ("batch", "sequence", "free", "found"),
    [
        (None, None, {"vocab"}, {(None, None)}),
        (1, 1024, {"micro_batch"}, {(1, 1024), (2, 1024), (3, 1024), (4, 1024)}),
        (3, 1024, {"micro_batch"}, {(n, 1024) for n in (3, 4, 6, 7, 9, 10, 12)}),
        (4, 100, {"sequence"}, {(4, 100), (4, 128)}),  # none of no token
        (4, 300, {"sequence"}, {(4, 256), (4, 300), (4, 384)}),
        (4, None, {"sequence"}, {(4, None)}),
    ],
)
def test_tokens_that_are_tried(
    batch: int | None, sequence: int | None, free: set[str], found: set[tuple[int | None, int | None]]
) -> None:
    now = replace(NOW, micro_batch=batch, sequence=sequence)
    assert {(one.micro_batch, one.sequence) for one in around(free, now=now)} == found


def test_widths_reach_half_of_the_present_one_to_each_side() -> None:
    """Of two layers, 20 % of 77 million weights would be more: 3748 of 4096."""
    now = replace(NOW, layers=2)
    widths = Space(now, SearchLimits(0.2, frozenset({"ffn"}))).ffns(now)
    assert widths == [*range(2048, 6145, 64)]
    ranks = replace(now, tensor_parallel=None)
    assert Space(ranks, SearchLimits(0.2, frozenset({"ffn"}))).ffns(ranks) == widths
    assert Space(replace(now, layers=None), SearchLimits(0.2, frozenset({"ffn"}))).ffns(now) == [4096]
    assert Space(replace(now, ffn=None), SearchLimits(0.2, frozenset({"ffn"}))).ffns(now) == [None]
    assert Space(now, SearchLimits(0.2, frozenset({"vocab"}))).ffns(now) == [4096]


# --- what it came to --------------------------------------------------------------------------------------


class Flat:
    """A step whose every change saves one percent of 100 ms."""

    def vocab_ranks(self, now: ModelConfig, /) -> int:
        """One."""
        return 1

    def time_ms(self, then: ModelConfig, /) -> float:
        """One percent less for any other vocabulary."""
        return 100.0 if then.vocab == NOW.vocab else 99.0

    def change(self, now: ModelConfig, then: ModelConfig, /) -> Change:
        """With a part of each size."""
        parts = tuple(
            PartChange(f"part {n}", "forward", "row", "a", "b", 10.0, 10.0 - ms, ms, "")
            for n, ms in enumerate((1.0, -0.5, 0.3, 0.019, 0.2, 0.02, -0.1))
        )
        share = Estimate(0.005, 0.01, 0.02, "model")
        return Change(now, then, share, Estimate(0.5, 1.0, 2.0, "model"), 0.0, parts)

    def memory(self, then: ModelConfig, /) -> float | None:
        """Not known."""
        return None


def test_one_percent_is_worth_it_and_less_is_not() -> None:
    found = search(Flat(), NOW, SearchLimits(free=frozenset({"vocab"})))
    assert [one.then.vocab for one in found.picks] == [50304]
    (pick,), unsure = picks_of(Flat(), found, lambda _: [])
    assert unsure is None and pick.memory_frac is None and pick.shape_gain_frac == 0.01
    # the four kernels that move most, where they move a fiftieth of the saving; gains first
    assert [one.saving_ms for one in pick.reasons] == [1.0, 0.3, 0.2, -0.5]


def test_reasons_move_a_fiftieth_of_the_saving() -> None:
    small = tuple(
        PartChange("x", "forward", "row", "a", "b", 1.0, 1.0, ms, "") for ms in (0.02, 0.019, -0.02)
    )
    change = replace(Flat().change(NOW, NOW), parts=small)
    (pick,), _ = picks_of(Flat(), Found((change,), (), 1), lambda _: [])
    assert [one.saving_ms for one in pick.reasons] == [0.02, -0.02]


def test_points_of_the_front_are_told_by_what_differs() -> None:
    found = search(Flat(), NOW, SearchLimits(free=frozenset({"vocab"})))
    (point,) = front_of(NOW, found)
    assert point.change == {"vocab": [50257, 50304]} and point.time_frac == 0.99
    weights = 12 * 1024**2 * 24 + 50257 * 1024
    assert point.parameters_frac == pytest.approx(47 * 1024 / weights)
    assert changes(NOW, replace(NOW, ffn=None, tied=False)) == {"ffn": [4096, None]}


@pytest.mark.parametrize(
    ("changed", "any_heads", "found"),
    [
        ({}, False, [(8, 128), (4, 256)]),
        ({"kv_heads": 4}, False, [(8, 128), (4, 256)]),
        ({"kv_heads": 8}, False, [(8, 128)]),
        ({"kv_heads": None}, False, [(8, 128), (4, 256)]),
        ({"hidden": 1280, "heads": 20}, True, [(32, 40), (16, 80), (10, 128), (8, 160), (5, 256)]),
        ({"hidden": 1280, "heads": 20}, False, [(32, 40), (16, 80), (8, 160)]),
        ({"hidden": None}, False, []),
        ({"heads": None}, False, []),
        ({"head_dim": 128}, False, []),
        ({"tensor_parallel": 8}, False, [(8, 128)]),
    ],
)
def test_other_heads_at_this_width(
    changed: dict[str, Any], any_heads: bool, found: list[tuple[int, int]]
) -> None:
    now = replace(NOW, **changed)
    if "hidden" in changed and now.kv_heads == 16:
        now = replace(now, kv_heads=now.heads)
    rows = other_heads(Flat(), now, SearchLimits(any_heads=any_heads))
    assert [(one.heads, one.head_dim) for one in rows] == found
