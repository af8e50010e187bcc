"""The split of one call's time: parts that add up, causes that do not apply, cuts that are said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.said import Listener
from tracelens.gemm.lost import CLOCK_MARGIN, FACTORS, PARTS, CallFacts, LossSplit, split_time

#: 8192 x 5120 x 1280 in bf16 on an H100: 108.6 us at 989 TFLOP/s, 30 us of memory traffic.
PLAIN = CallFacts(
    time_us=150.0, math_us=108.6, memory_us=30.0, fixed_us=3.0, alignment=1.0, wave=0.9, tile=0.95
)
share = st.none() | st.floats(0.01, 1.0)
time = st.floats(0.5, 1e5)
facts = st.builds(
    CallFacts,
    time_us=time,
    math_us=st.none() | time,
    memory_us=st.none() | time,
    fixed_us=st.just(3.0),
    helper_us=st.floats(0.0, 0.4),
    alignment=share,
    wave=share,
    tile=share,
    ceiling_us=st.none() | time,
)


def total(split: LossSplit) -> float:
    return sum(getattr(split, part) or 0.0 for part in PARTS)


@given(facts)
def test_the_parts_add_up_and_none_is_negative(one: CallFacts) -> None:
    split = split_time(one)
    if split.useful is None:
        assert all(getattr(split, part) is None for part in PARTS)
        assert split.why["useful"]
        return
    assert total(split) == pytest.approx(one.time_us, rel=1e-12)
    assert all((getattr(split, part) or 0.0) >= 0.0 for part in PARTS)


@pytest.mark.parametrize(("beside", "part"), [("overlap", "overlap"), ("clock", "clock"), ("stall", "other")])
def test_what_lies_beside_the_call_is_a_part_of_its_own_and_changes_no_other(beside: str, part: str) -> None:
    alone = split_time(replace(PLAIN, overlap_us=0.0))
    more: dict[str, Any] = {"overlap_us": 0.0, f"{beside}_us": 10.0}
    whole = split_time(replace(PLAIN, time_us=PLAIN.time_us + 10.0, **more))
    assert total(whole) == pytest.approx(total(alone) + 10.0)
    for name in PARTS:
        added = 10.0 if name == part else 0.0
        assert getattr(whole, name) == pytest.approx(getattr(alone, name) + added), name


@given(facts)
def test_what_is_none_has_its_reason(one: CallFacts) -> None:
    split = split_time(one)
    for part in (*FACTORS, "memory"):
        assert (
            getattr(split, part) is not None
            or split.useful is None
            or part in split.why
            or (part == "memory" and one.memory_us is None)
        )


@given(facts)
def test_losses_leave_the_floor(one: CallFacts) -> None:
    """The losses take no more than the kernel took beyond arithmetic, memory and the best measured."""
    split = split_time(one)
    if split.useful is None or "useful" in split.why:
        return
    lost = sum(getattr(split, name) or 0.0 for name in FACTORS)
    floor = split.useful + (split.memory or 0.0)
    if one.ceiling_us is not None and floor < one.ceiling_us < one.working_us:
        floor = one.ceiling_us
    assert lost <= max(0.0, one.working_us - floor) + 1e-9 * one.time_us
    known = (split.ceiling or 0.0) + (split.helpers or 0.0)
    assert split.other is not None and known <= split.other + 1e-9 * one.time_us


def test_each_loss_is_a_share_of_what_the_one_before_leaves() -> None:
    split = split_time(replace(PLAIN, alignment=0.9))
    assert split.alignment == pytest.approx(147.0 * 0.1)
    assert split.wave == pytest.approx(147.0 * 0.9 * 0.1)
    assert split.tile == pytest.approx(147.0 * 0.9 * 0.9 * 0.05)
    assert split.memory == 0.0 and split.why == {}


def test_kernels_beside_the_product_are_no_tiles() -> None:
    """A split-K reduction runs after the tiles: idle SMs of the product are a share of the product's time."""
    split = split_time(replace(PLAIN, helper_us=10.0))
    assert split.wave == pytest.approx(137.0 * 0.1)
    assert split.helpers == 10.0


def test_why_memory_is_not_known_is_said_where_it_is_not() -> None:
    told = {"memory": "no bandwidth", "useful": "no peak"}
    blind = split_time(replace(PLAIN, memory_us=None, why=told))
    assert blind.memory is None and blind.why == {"memory": "no bandwidth"}
    assert split_time(replace(PLAIN, why=told)).why == {}


def test_an_unknown_factor_stays_in_other_with_its_reason() -> None:
    split = split_time(replace(PLAIN, wave=None, why={"wave": "no tile"}))
    whole = split_time(PLAIN)
    assert split.wave is None and split.why["wave"] == "no tile"
    assert split.other is not None and whole.other is not None and split.other > whole.other


def test_memory_bound_calls_lose_nothing_to_tiles() -> None:
    split = split_time(replace(PLAIN, memory_us=130.0))
    assert split.memory == pytest.approx(130.0 - 108.6)
    assert [getattr(split, name) for name in FACTORS] == [None] * 3
    assert all(split.why[name].startswith("memory-bound") for name in FACTORS)


def test_between_the_floors_memory_and_tiles_share_the_loss() -> None:
    """Memory needs longer than the arithmetic, but not than the arithmetic on half-empty waves."""
    split = split_time(replace(PLAIN, time_us=300.0, memory_us=130.0, wave=0.5, tile=1.0))
    assert split.memory == pytest.approx(130.0 - 108.6)
    assert split.wave == pytest.approx(297.0 * 0.5)


def test_a_small_call_is_ruled_by_its_fixed_cost() -> None:
    split = split_time(replace(PLAIN, time_us=6.0, math_us=0.2, memory_us=0.5))
    assert split.useful == 0.2 and split.other == pytest.approx(5.8)
    assert all(split.why[name].startswith("too small") for name in (*FACTORS, "memory"))


def test_a_call_of_less_than_a_microsecond_is_split_and_has_no_time_for_tiles() -> None:
    short = replace(PLAIN, time_us=0.8, math_us=0.2, memory_us=0.1)
    assert split_time(short).useful == 0.2
    assert short.working_us == 0.0


def test_operands_from_the_cache_leave_memory_unknown() -> None:
    split = split_time(replace(PLAIN, time_us=120.0, memory_us=125.0))
    assert split.memory is None and "cache" in split.why["memory"]
    assert split.other == pytest.approx(120.0 - 108.6)


def test_a_call_faster_than_its_ceiling_is_flagged(said: Listener) -> None:
    slightly = split_time(replace(PLAIN, time_us=108.6 / (1 + CLOCK_MARGIN / 2)))
    assert slightly.useful == pytest.approx(108.6 / (1 + CLOCK_MARGIN / 2)) and slightly.other == 0.0
    assert "clocks" in slightly.why["useful"]
    far = split_time(replace(PLAIN, time_us=60.0))
    assert far.useful is None and far.other is None
    said(far.why["useful"])


def test_losses_that_exceed_the_time_are_cut_alike_and_say_so(said: Listener) -> None:
    """Half the SMs idle at 72 % of peak cannot be: the tile is wrong, or the clocks were higher."""
    split = split_time(replace(PLAIN, wave=0.5, tile=0.8))
    room = 147.0 - 108.6
    assert split.wave is not None and split.tile is not None
    assert split.wave + split.tile == pytest.approx(room)
    assert split.wave / split.tile == pytest.approx((147.0 * 0.5) / (147.0 * 0.5 * 0.2))
    assert split.cut == pytest.approx((room, 147.0 * 0.6))
    assert split.other == pytest.approx(3.0)
    said(split.why["wave"])


def test_no_loss_claims_the_time_that_the_best_matmul_takes(said: Listener) -> None:
    """A fifth of the SMs idle, yet 72 % of peak: with all of them busy the clocks fall."""
    split = split_time(replace(PLAIN, wave=0.8, tile=1.0, ceiling_us=135.0))
    assert split.wave == pytest.approx(147.0 - 135.0)
    assert split.ceiling == pytest.approx(135.0 - 108.6)
    said(split.why["wave"])
    faster = split_time(replace(PLAIN, wave=0.8, tile=1.0, ceiling_us=149.0))
    assert faster.wave == pytest.approx(147.0 * 0.2), "a ceiling that the call itself beats is none"


def test_the_best_matmul_measured_is_a_part_of_other() -> None:
    split = split_time(replace(PLAIN, ceiling_us=120.0))
    assert split.ceiling == pytest.approx(120.0 - 108.6)
    far = split_time(replace(PLAIN, ceiling_us=500.0))
    assert far.ceiling == far.other


def test_a_call_without_time_or_ceiling_is_not_judged() -> None:
    assert split_time(replace(PLAIN, time_us=0.0)).useful is None
    assert split_time(replace(PLAIN, math_us=None, why={"useful": "no peak"})).why == {"useful": "no peak"}


def test_the_time_in_which_tiles_are_computed_is_what_nothing_else_took() -> None:
    one = replace(PLAIN, fixed_us=4.0, helper_us=3.0, stall_us=10.0, overlap_us=5.0, clock_us=2.0)
    assert one.working_us == 126.0  # 150 - 4 - 3 - 10 - 5 - 2
    assert replace(one, overlap_us=None).working_us == 131.0


def test_a_call_of_which_the_overlap_is_not_known_says_so() -> None:
    unknown = split_time(replace(PLAIN, overlap_us=None, why={"overlap": "never alone"}))
    assert unknown.overlap is None and unknown.why["overlap"] == "never alone"
    assert split_time(replace(PLAIN, overlap_us=None)).why["overlap"] == "not known"
    assert "overlap" not in split_time(PLAIN).why


def test_at_its_ceiling_a_call_is_all_useful_and_nothing_is_cut() -> None:
    split = split_time(CallFacts(100.0, 100.0, 100.0, 3.0, alignment=1.0, wave=1.0, tile=1.0))
    assert (split.useful, split.memory, split.other, split.cut) == (100.0, 0.0, 0.0, None)
    assert [split.alignment, split.wave, split.tile] == [None] * 3  # memory needs all of it
    alone = split_time(CallFacts(100.0, 100.0, 30.0, 3.0, alignment=1.0, wave=1.0, tile=1.0))
    assert (alone.alignment, alone.wave, alone.tile, alone.cut) == (0.0, 0.0, 0.0, None)
    assert alone.why == {} and alone.unsplit is None


def test_where_memory_needs_as_long_as_the_arithmetic_with_its_losses_it_binds(said: Listener) -> None:
    facts = CallFacts(500.0, 100.0, 200.0, 3.0, alignment=0.5, wave=1.0, tile=1.0)
    split = split_time(facts)  # 100 / 0.5
    assert split.alignment is None
    assert split.memory == 100.0
    said(split.why["alignment"])
    less = split_time(replace(facts, memory_us=199.0))
    assert less.alignment == pytest.approx(497.0 * 0.5)


def test_work_as_long_as_the_fixed_cost_is_not_too_small(said: Listener) -> None:
    at = CallFacts(10.0, 3.0, 1.0, 3.0, alignment=1.0, wave=1.0, tile=1.0)
    assert split_time(at).unsplit is None and split_time(at).wave == 0.0
    below = split_time(replace(at, math_us=2.9))
    assert (below.unsplit, below.wave, below.memory) == ("too_small", None, None)
    said(below.why["wave"])
    unknown = split_time(replace(at, memory_us=None, math_us=2.9))
    assert unknown.unsplit == "too_small"


def test_a_tenth_above_the_peak_is_the_clock_and_more_is_not(said: Listener) -> None:
    at = split_time(CallFacts(100.0, 110.0, None, 3.0))
    assert (at.useful, at.other, at.helpers, at.unsplit) == (100.0, 0.0, 0.0, None)
    assert set(at.why) == {"useful", "memory", *FACTORS}
    above = split_time(CallFacts(100.0, 110.1, None, 3.0))
    assert above.useful is None and above.unsplit == "faster"
    said(above.why["useful"])


def test_a_factor_that_is_unknown_or_nothing_slows_no_arithmetic(said: Listener) -> None:
    """Memory of 120 us is longer than 100 us of arithmetic, whose losses nobody knows."""
    split = split_time(CallFacts(300.0, 100.0, 120.0, 3.0, alignment=None, wave=0.0, tile=None))
    said(split.why["tile"])


def test_the_floor_of_cut_losses_is_named_after_whose_time_it_is(said: Listener) -> None:
    """Losses of 73.5 us in 147: whatever the call needs at least, they leave."""
    half = replace(PLAIN, wave=0.5, tile=1.0)
    memory = split_time(replace(half, memory_us=120.0))
    assert memory.wave == pytest.approx(147.0 - 120.0)
    said(memory.why["wave"])
    best = split_time(replace(half, ceiling_us=146.9))
    assert best.wave == pytest.approx(0.1)
    said(best.why["wave"])
    beaten = split_time(replace(half, ceiling_us=147.0))  # the call itself is as fast
    assert beaten.wave == pytest.approx(147.0 - 108.6)
    below = split_time(replace(half, ceiling_us=108.6))
    assert below.wave == pytest.approx(147.0 - 108.6) and "its FLOP at" in below.why["wave"]
    equal = split_time(replace(half, memory_us=108.6))
    said(equal.why["wave"])


def test_losses_that_fill_the_room_to_the_last_are_not_cut() -> None:
    exact = CallFacts(103.0, 50.0, 30.0, 3.0, alignment=1.0, wave=0.5, tile=1.0)
    split = split_time(exact)  # 100 of work, of which half idles, and 50 of arithmetic
    assert (split.wave, split.cut, split.why) == (50.0, None, {})


def test_what_is_known_of_the_rest() -> None:
    """150 us: 108.6 of arithmetic, 11.4 of ceiling above it; helpers first, then what the best loses too."""
    one = replace(PLAIN, helper_us=35.0, wave=1.0, tile=1.0, ceiling_us=120.0)
    split = split_time(one)
    assert split.other == pytest.approx(41.4) and split.helpers == 35.0
    assert split.ceiling == pytest.approx(6.4)  # 120 - 108.6 is more than is left of the rest
    assert split_time(replace(one, ceiling_us=100.0)).ceiling == 0.0
    assert split_time(replace(one, ceiling_us=None)).ceiling is None
    most = split_time(replace(one, helper_us=60.0))
    assert most.helpers == pytest.approx(41.4) and most.ceiling == pytest.approx(0.0)
