"""Alignment of kernel sequences: what is matched corresponds, and what cannot be told apart says so."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.attribution.align import Alignment, find_alignment

IntArray = npt.NDArray[np.int64]

#: A layer's kernels in the forward and in the backward, with repeats inside the layer as real ones have.
FORWARD = [1, 10, 11, 2, 12, 1, 3, 10, 13, 2, 14, 2]
BACKWARD = [20, 21, 22, 21, 4, 23, 20, 24, 25, 5, 25, 26, 22, 4, 27]
EMBEDDING, LOSS, OPTIMIZER = [100, 101, 102, 2], [110, 111, 112, 113, 114], [120, 121, *[122, 123] * 6, 124]


def step(layers: int = 6, *, optimizer: bool = True) -> IntArray:
    """The keys of one training step."""
    keys = [*EMBEDDING, *FORWARD * layers, *LOSS, *BACKWARD * layers, *(OPTIMIZER if optimizer else [])]
    return np.array(keys, np.int64)


def align(pattern: npt.ArrayLike, reference: npt.ArrayLike) -> IntArray:
    return find_alignment(pattern, reference, around=False).position


def doubted(found: Alignment) -> set[int]:
    return set(found.others[0].tolist())


def assert_sound(found: IntArray, pattern: IntArray, reference: IntArray) -> None:
    """Keys at matched positions are equal, and positions increase."""
    matched = np.flatnonzero(found >= 0)
    assert (np.diff(found[matched]) > 0).all()
    assert (pattern[matched] == reference[found[matched]]).all()
    assert (found < len(reference)).all()


# -- properties -----------------------------------------------------------------------------------

few_keys = st.lists(st.integers(0, 6), max_size=120)


@given(few_keys, few_keys)
@settings(max_examples=200)
def test_matches_are_equal_keys_in_order(pattern: list[int], reference: list[int]) -> None:
    first, second = np.array(pattern, np.int64), np.array(reference, np.int64)
    assert_sound(align(first, second), first, second)


@given(st.lists(st.integers(0, 3), min_size=30, max_size=60), st.integers(2, 6), st.data())
@settings(max_examples=100)
def test_repetition_does_not_break_the_order(layer: list[int], layers: int, data: st.DataObject) -> None:
    reference = np.array(layer * layers, np.int64)
    first = data.draw(st.integers(0, len(reference) - 1))
    pattern = np.delete(reference[first:], data.draw(st.integers(0, len(reference) - first - 1)))
    assert_sound(align(pattern, reference), pattern, reference)


@given(st.integers(100, 400), st.data())
@settings(max_examples=60)
def test_a_slice_of_distinct_keys_is_found_exactly(size: int, data: st.DataObject) -> None:
    reference = np.random.default_rng(size).permutation(size).astype(np.int64)
    first = data.draw(st.integers(0, size - 24))
    last = data.draw(st.integers(first + 24, size))
    assert align(reference[first:last], reference).tolist() == [*range(first, last)]


@given(st.integers(0, 10_000), st.floats(0, 0.02), st.floats(0, 0.02))
@settings(max_examples=60)
def test_lost_and_stray_keys_cost_only_themselves(seed: int, lost: float, stray: float) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.permutation(600).astype(np.int64)
    keep = rng.random(600) >= lost
    strays = np.flatnonzero(rng.random(int(keep.sum())) < stray)
    pattern = np.insert(reference[keep], strays, 10_000 + np.arange(len(strays)))
    truth = np.insert(np.flatnonzero(keep), strays, -1)
    found = align(pattern, reference)
    assert (found[found >= 0] == truth[found >= 0]).all()
    assert (found >= 0).sum() > 0.95 * (truth >= 0).sum()


@given(st.data())
@settings(max_examples=100)
def test_a_piece_of_a_step_is_in_its_place_or_in_doubt(data: st.DataObject) -> None:
    reference = step()
    first = data.draw(st.integers(0, len(reference) - 12))
    last = data.draw(st.integers(first + 12, len(reference)))
    found = find_alignment(reference[first:last], reference, around=False)
    wrong = {
        at for at, place in enumerate(found.position.tolist()) if place >= 0 and place != first + at
    } - doubted(found)
    assert wrong == set()


# -- examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 2, 40, 76, 77, 100, 130])
def test_the_tail_of_a_step_is_held_by_the_steps_end(first: int) -> None:
    reference = step()
    found = find_alignment(reference[first:], reference, around=False)
    assert found.position.tolist() == [*range(first, len(reference))]
    assert doubted(found) == set()


def test_a_stray_equal_key_is_no_match() -> None:
    assert align([1, 2, 3], step()).tolist() == [-1, -1, -1]
    assert set(align([*range(500, 540), 110, *range(540, 580)], step()).tolist()) == {-1}
    assert align([], step()).tolist() == align([1], []).tolist()[:0] == []


def test_a_row_of_equal_keys_is_no_evidence() -> None:
    assert set(align([7] * 100, [7] * 50).tolist()) == {-1}


def test_extra_kernels_in_every_layer_are_left_out() -> None:
    """A fill per layer that the reference has not, a cast that it has and the pattern has not."""
    reference = step()
    stray = np.flatnonzero(reference == 12)
    pattern = np.delete(np.insert(reference, stray, 900), np.flatnonzero(reference == 24)[0] + len(stray))
    found = align(pattern, reference)
    assert_sound(found, pattern, reference)
    assert set(found[pattern == 900].tolist()) == {-1}
    assert (found >= 0).sum() == (pattern != 900).sum()


def test_which_of_two_equal_neighbours_is_extra_is_not_guessed() -> None:
    reference = np.arange(60)
    pattern = np.insert(reference, 30, 30)  # ... 29, 30, 30, 31 ...
    found = align(pattern, reference)
    assert found[30] == -1 or found[31] == -1
    assert found[29] == 29 and found[32] == 31


@pytest.mark.parametrize(("ours", "theirs"), [(5, 6), (6, 5), (4, 9), (9, 6)])
def test_with_layers_more_or_less_no_layer_is_certain(ours: int, theirs: int) -> None:
    pattern, reference = step(ours), step(theirs)
    found = find_alignment(pattern, reference, around=False)
    assert_sound(found.position, pattern, reference)
    kernels = len(EMBEDDING) + np.arange(len(FORWARD) * ours)
    in_layers = {*kernels[found.position[kernels] >= 0].tolist()}
    assert len(in_layers) >= len(FORWARD) * (min(ours, theirs) - 1)
    assert in_layers - doubted(found) == set()
    loss = len(EMBEDDING) + len(FORWARD) * ours + 2
    assert reference[found.position[loss]] == pattern[loss]


def test_only_a_piece_of_layers_fits_in_several_places() -> None:
    reference = step()
    piece = reference[20:50]  # inside the layers
    found = find_alignment(piece, reference, around=False)
    assert (found.position >= 0).all()
    assert doubted(found) == set(range(len(piece)))


def test_steps_repeat() -> None:
    """The end of one step, two whole ones and the beginning of a fourth, against one step."""
    one = step()
    many = np.concatenate([one[-70:], one, one, one[:90]])
    found = find_alignment(many, one, around=True)
    assert found.position.tolist() == [
        *range(len(one) - 70, len(one)),
        *range(len(one)),
        *range(len(one)),
        *range(90),
    ]
    assert doubted(found) == set()


def test_steps_of_two_kinds_alternate() -> None:
    """Every second step goes without the optimizer."""
    short, long = step(optimizer=False), step()
    reference = np.concatenate([short, long])
    pattern = np.concatenate([long, short, long])[40:]
    found = find_alignment(pattern, reference, around=True)
    assert (found.position >= 0).all()
    assert (reference[found.position] == pattern).all()
    assert (np.diff(found.position) == 1).mean() > 0.99


def test_a_missing_part_is_jumped_over() -> None:
    """A step whose backward is not in the file."""
    reference = step()
    first = len(EMBEDDING) + len(FORWARD) * 6 + len(LOSS)
    last = first + len(BACKWARD) * 6
    pattern = np.delete(reference, slice(first, last))
    found = align(pattern, reference)
    assert found.tolist() == [*range(first), *range(last, len(reference))]


def test_long_sequences_with_noise_are_followed_to_the_end() -> None:
    rng = np.random.default_rng(5)
    one = step(24)
    truth = np.arange(60 * len(one))
    keep = rng.random(len(truth)) > 0.005
    found = find_alignment(np.tile(one, 60)[keep], one, around=True)
    matched = found.position >= 0
    assert matched.mean() > 0.99
    right = found.position == truth[keep] % len(one)
    assert right[matched].mean() > 0.99
    wrong = set(np.flatnonzero(matched & ~right).tolist()) - doubted(found)
    assert len(wrong) <= 0.0005 * len(found.position)
