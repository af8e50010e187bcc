"""Microseconds to integer nanoseconds, against exact decimal arithmetic."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tracelens.trace.times import EXACT_BELOW_US, LIMIT_NS, InexactTimes, UnreadableTime, exact_ns, float_ns

#: Every time a trace can hold: relative to the profiler's base, or since the epoch.
NANOSECONDS = st.one_of(
    st.integers(0, 10**6),
    st.integers(0, int(EXACT_BELOW_US) * 1000 - 1),
    st.integers(-(10**15), 10**15),
    st.integers(1_500_000_000_000_000_000, 2_000_000_000_000_000_000),
)


def micros(ns: int) -> str:
    """As Kineto writes it: three decimals."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03}"


def reference(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


@settings(max_examples=300)
@given(st.lists(NANOSECONDS.filter(lambda ns: abs(ns) < EXACT_BELOW_US * 1000), min_size=1, max_size=20))
def test_doubles_keep_the_nanosecond_over_three_months(ns: list[int]) -> None:
    assert float_ns([float(micros(value)) for value in ns]).tolist() == ns


def test_doubles_keep_the_nanosecond_at_every_power_of_two() -> None:
    """Where doubles are coarsest, one by one."""
    for power in range(10, 43):
        top = 2**power * 1000
        values = [*range(top - 1000, top), *range(top, min(top + 1000, int(EXACT_BELOW_US) * 1000))]
        assert float_ns([float(micros(ns)) for ns in values]).tolist() == values
    top = int(EXACT_BELOW_US) * 1000
    assert float_ns([float(micros(ns)) for ns in range(top - 5000, top)]).tolist() == [
        *range(top - 5000, top)
    ]


@settings(max_examples=300)
@given(st.lists(NANOSECONDS, min_size=1, max_size=20))
def test_text_keeps_the_nanosecond_always(ns: list[int]) -> None:
    assert exact_ns([Raw(micros(value).encode()) for value in ns]).tolist() == ns


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(
            NANOSECONDS.map(micros),
            st.integers(-(10**9), 2 * 10**15).map(str),
            st.decimals(-(10**9), 2 * 10**15, places=1).map(str),
            st.decimals(-(10**9), 2 * 10**15, places=6).map(str),
            st.floats(-1e15, 1e15).map(repr),
            st.floats(-1e15, 1e15).map(lambda value: f'"{value!r}"'),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_text_of_any_precision_is_rounded_to_the_nanosecond(texts: list[str]) -> None:
    expected = [reference(text.strip('"')) for text in texts]
    assert exact_ns([Raw(text.encode()) for text in texts]).tolist() == expected


def test_whole_microseconds_since_the_epoch_are_exact_as_doubles() -> None:
    us = [1_700_000_000_000_000 + step for step in (0, 1, 999_999, 123_456_789)]
    assert float_ns([float(value) for value in us], integers=True).tolist() == [value * 1000 for value in us]


def test_fractions_since_the_epoch_are_refused_as_doubles() -> None:
    for values, integers in (([1.7e15, 1.7e15 + 0.25], True), ([1.7e15], False)):
        with pytest.raises(InexactTimes):
            float_ns(values, integers=integers)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e300, LIMIT_NS / 1000])
def test_doubles_that_are_no_time_are_told(value: float) -> None:
    for values in ([value], [1.0, value, 2.0], [1.7e15, value]):
        with pytest.raises(UnreadableTime):
            float_ns(values)


@pytest.mark.parametrize(
    "text",
    ["", "null", "true", "[1]", '"x"', "NaN", "Infinity", "1e999", "-1e999", "1e999999999999", "9" * 30,
     "9" * 16 + ".000", "4611686018427387.904", "\xff"],
)  # fmt: skip
def test_text_that_is_no_time_is_told(text: str) -> None:
    for values in ([text], ["1.000", text], ["1", text, "2.5"]):
        with pytest.raises(UnreadableTime):
            exact_ns([Raw(value.encode("latin-1")) for value in values])


def test_the_fast_way_and_the_patient_way_agree() -> None:
    plain = ["1.250", "1700000000000000.001", "-0.005", "0.000"]
    fast = exact_ns([Raw(text.encode()) for text in plain])
    slow = exact_ns([Raw(text.encode()) for text in [*plain, "1e0"]])[:-1]
    assert fast.tolist() == slow.tolist() == [1250, 1_700_000_000_000_000_001, -5, 0]


def test_nothing_gives_nothing() -> None:
    for column in (float_ns([]), exact_ns([])):
        assert column.dtype == np.int64
        assert len(column) == 0
