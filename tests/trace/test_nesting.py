"""The forest of spans, against a stack that walks them one by one."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.trace import nesting
from tracelens.trace.nesting import Forest, build_forest, distinct_rows

Span = tuple[int, int, int]  # thread, start, duration


def forest_of(spans: list[Span]) -> Forest:
    thread, start, duration = (np.array([span[i] for span in spans], np.int64) for i in range(3))
    return build_forest(thread.astype(np.int32), start, duration)


def by_stack(spans: list[Span]) -> list[int]:
    """The parent of every span: the innermost still open when it begins; ends are clamped to it."""
    parents = [-1] * len(spans)
    order = sorted(range(len(spans)), key=lambda i: (spans[i][0], spans[i][1], -spans[i][2], i))
    open_: list[tuple[int, int]] = []
    thread = None
    for index in order:
        place, start, duration = spans[index]
        if place != thread:
            open_, thread = [], place
        while open_ and open_[-1][1] <= start:
            open_.pop()
        end = start + max(0, duration)
        if open_:
            parents[index] = open_[-1][0]
            end = min(end, open_[-1][1])
        open_.append((index, end))
    return parents


SPANS = st.lists(
    st.tuples(st.integers(-1, 3), st.integers(0, 30), st.one_of(st.just(0), st.integers(0, 30))), max_size=60
)


@settings(max_examples=400)
@given(SPANS)
def test_random_spans_nest_as_a_stack_nests_them(spans: list[Span]) -> None:
    assert forest_of(spans).parent.tolist() == by_stack(spans)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.just(0), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=200))
def test_spans_that_overlap_without_nesting_are_clamped(spans: list[Span]) -> None:
    assert forest_of(spans).parent.tolist() == by_stack(spans)


def random_tree(seed: int, size: int) -> list[Span]:
    """Properly nested spans on several threads, as a profiler writes them, shuffled."""
    source = random.Random(seed)
    spans: list[Span] = []

    def grow(thread: int, start: int, end: int, depth: int) -> None:
        at = start
        while at < end and len(spans) < size:
            begin = at + source.randrange(0, 3)
            stop = min(end, begin + source.randrange(0, max(1, end - begin) + 1))
            if begin > end:
                return
            spans.append((thread, begin, stop - begin))
            if depth < 12 and stop > begin:
                grow(thread, begin, stop, depth + 1)
            at = max(stop, at + 1)

    for thread in range(4):
        grow(thread, 10 * thread, 10 * thread + 2000, 0)
    source.shuffle(spans)
    return spans


@pytest.mark.parametrize("seed", range(6))
def test_trees_like_a_profilers(seed: int) -> None:
    spans = random_tree(seed, 3000)
    assert len(spans) > 300
    assert forest_of(spans).parent.tolist() == by_stack(spans)


def test_epoch_times_on_threads_far_apart() -> None:
    base = 1_700_000_000_000_000_000
    spans = [
        (0, base, 100),
        (0, base + 10, 20),
        (1, 5, 50),
        (1, 6, 3),
        (2, base + 5, 10**12),
        (2, base + 7, 1),
    ]
    assert forest_of(spans).parent.tolist() == [-1, 0, -1, 2, -1, 4]


def test_of_equal_spans_the_first_in_the_file_is_the_outer() -> None:
    assert forest_of([(0, 5, 10)] * 4).parent.tolist() == [-1, 0, 1, 2]
    assert forest_of([(0, 5, 3), (0, 5, 10), (0, 5, 10)]).parent.tolist() == [2, -1, 1]


def test_spans_that_touch_do_not_nest() -> None:
    assert forest_of([(0, 0, 10), (0, 10, 5), (0, 10, 0), (0, 15, 0)]).parent.tolist() == [-1, -1, 1, -1]


def test_a_span_without_duration_lies_in_what_is_open_but_holds_nothing() -> None:
    assert forest_of([(0, 0, 10), (0, 4, 0), (0, 4, 0), (0, 4, 2)]).parent.tolist() == [-1, 3, 3, 0]


def test_a_negative_duration_counts_as_none() -> None:
    assert forest_of([(0, 0, 10), (0, 4, -100), (0, 5, 2)]).parent.tolist() == [-1, 0, 0]


def test_a_child_that_outlives_its_parent_takes_nothing_from_the_next() -> None:
    """A Python frame that was closed late: the operator after its caller is not inside it."""
    assert forest_of([(0, 0, 10), (0, 5, 100), (0, 12, 3), (0, 6, 2)]).parent.tolist() == [-1, 0, -1, 1]


@pytest.mark.parametrize("length", [5, 19, 20, 21, 22, 300])
def test_a_staircase_of_overlaps_of_any_length(length: int) -> None:
    """Every span hides the next: the worst case of the array method, which then walks."""
    spans = [(0, 2 * step, 3) for step in range(length)] + [(0, 2 * step, 1) for step in range(length)]
    assert forest_of(spans).parent.tolist() == by_stack(spans)


def test_threads_do_not_mix() -> None:
    assert forest_of([(1, 0, 100), (2, 10, 5), (1, 10, 5), (-3, 0, 1000)]).parent.tolist() == [-1, -1, 0, -1]


def test_no_spans_at_all() -> None:
    empty = forest_of([])
    assert len(empty.parent) == 0
    assert empty.levels == []
    assert len(empty.nearest(np.zeros(0, np.bool_))) == 0


def test_a_deep_stack_is_one_chain() -> None:
    """Deeper than Python's own recursion limit, and then some."""
    depth = 3000
    forest = forest_of([(0, i, 2 * depth - 2 * i) for i in range(depth)])
    assert forest.parent.tolist() == list(range(-1, depth - 1))
    assert forest.depth().tolist() == list(range(depth))
    outer = np.zeros(depth, np.bool_)
    outer[[0, 1500]] = True
    assert forest.nearest(outer)[-1] == 1500
    assert forest.outermost(outer)[-1] == 0


def test_work_grows_with_the_spans_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, not timed: the rows that the level loop looks at."""
    seen = 0
    original = nesting._roots

    def counting(starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> object:
        nonlocal seen
        seen += len(starts)
        return original(starts, ends)

    monkeypatch.setattr(nesting, "_roots", counting)
    rows = []
    for count in (1000, 4000):
        spans = [(0, 100 * i + j, 100 - 2 * j) for i in range(count) for j in range(5)]
        seen = 0
        forest_of(spans)
        rows.append(seen)
    assert rows[0] == 1000 * (5 + 4 + 3 + 2 + 1)
    assert rows[1] == 4 * rows[0]


@pytest.mark.parametrize("seed", range(4))
def test_nearest_outermost_above_and_depth_follow_the_parents(seed: int) -> None:
    spans = random_tree(seed, 800)
    forest = forest_of(spans)
    wanted = np.random.default_rng(seed).random(len(spans)) < 0.2
    nearest, outermost, depth = forest.nearest(wanted), forest.outermost(wanted), forest.depth()
    above = forest.above(nearest)
    for node in range(len(spans)):
        chain = [node]
        while forest.parent[chain[-1]] >= 0:
            chain.append(int(forest.parent[chain[-1]]))
        hits = [at for at in chain if wanted[at]]
        assert nearest[node] == (hits[0] if hits else -1)
        assert outermost[node] == (hits[-1] if hits else -1)
        assert depth[node] == len(chain) - 1
        inner = [at for at in chain[1:] if wanted[at]]
        assert above[node] == (inner[0] if inner else -1)


def test_every_node_stands_on_one_level() -> None:
    forest = forest_of(random_tree(9, 2000))
    assert sorted(np.concatenate(forest.levels).tolist()) == list(range(len(forest.parent)))


def test_times_of_several_ages_nest_by_their_order() -> None:
    age = 2**61
    thread = np.repeat(np.arange(6, dtype=np.int32), 3)
    starts = np.tile(np.array([-age, age, age + 10], np.int64), 6)
    lasts = np.tile(np.array([5, 100, 20], np.int64), 6)
    parent = build_forest(thread, starts, lasts).parent.reshape(6, 3)
    assert (parent[:, :2] == -1).all()
    assert parent[:, 2].tolist() == [3 * at + 1 for at in range(6)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.one_of(st.integers(-2, 3), st.integers(-(2**60), 2**60)) for _ in range(4)]),
        max_size=12,
    )
)
def test_distinct_rows_are_those_of_numpy(rows: list[tuple[int, ...]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 4)
    distinct, which = distinct_rows(table)
    expected, place = np.unique(table, axis=0, return_inverse=True)
    assert distinct.tolist() == expected.tolist()
    assert which.tolist() == place.reshape(-1).tolist()
