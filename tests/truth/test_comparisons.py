"""Nothing false in any output of a comparison: samples, real before and after, ranks of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.truth import comparisons
from tests.truth.comparisons import ComparedOutputs, compared, faults, with_step
from tests.truth.outputs import SAMPLES, TRACES
from tracelens.results.comparison import Comparison

_JOB = TRACES / "job_h100_nanogpt_8ranks"
_TWO = TRACES / "job_v100_megatron_tp2"


def _pair(*names: str) -> tuple[Path, ...]:
    found = [next(iter(sorted(TRACES.glob(f"{name}*"))), Path("absent")) for name in names]
    return tuple(found)


PAIRS: dict[str, tuple[Path, ...]] = {
    "samples": (SAMPLES[0], SAMPLES[1]),
    "a sample with itself": (SAMPLES[0], SAMPLES[0]),
    "before and after": _pair("d1_", "d1b_"),
    "shapes lost": _pair("d1_", "d10_"),
    "unmarked": _pair("d13_", "d13_"),
    "two ranks": (_JOB / "rank0_trace.json.gz", _JOB / "rank5_trace.json.gz"),
    "two ranks without shapes": (_TWO / "rank0.json.gz", _TWO / "rank1.json.gz"),
    "a small job with itself": (_TWO, _TWO),
    "a job with itself": (_JOB, _JOB),
}


@pytest.mark.parametrize("name", PAIRS)
def test_no_output_of_a_comparison_says_anything_false(name: str) -> None:
    before, after = PAIRS[name]
    if not before.exists() or not after.exists():
        pytest.skip("real traces are not in the repository")
    out = compared(before, after)
    assert out.json["verdict"] == out.result.verdict
    assert faults(out) == []


@cache
def sample() -> ComparedOutputs:
    return compared(*SAMPLES[:2])


def unmarked() -> ComparedOutputs:
    """Figures that are written per step, of sides that mark none."""
    one = sample()
    assert isinstance(one.result, Comparison)
    marked = ComparedOutputs(replace(one.result, before=replace(one.result.before, steps_marked=False)))
    marked.__dict__["terminal"] = one.terminal
    return marked


def above_one() -> ComparedOutputs:
    one = sample().result
    assert isinstance(one, Comparison)
    return ComparedOutputs(replace(one, after=replace(one.after, gemm_frac=1.2)))


FALSE: dict[str, tuple[Callable[[ComparedOutputs], Iterator[str]], Callable[[], ComparedOutputs]]] = {
    "causes that leave some out": (comparisons.causes_add_up, lambda: with_step(sample(), diff_ms=99.0)),
    "the wrong direction": (
        comparisons.verdict_says_what_was_measured,
        lambda: with_step(sample(), state="slower", diff_ms=-1.0),
    ),
    "no change that is one": (
        comparisons.verdict_says_what_was_measured,
        lambda: with_step(sample(), state="no_change", shift_high_ms=99.0),
    ),
    "per step without steps": (comparisons.bounds_are_bounds, unmarked),
    "a share above one": (
        comparisons.shares_are_possible,
        above_one,
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_is_false_of_a_comparison_is_found(name: str) -> None:
    check, made = FALSE[name]
    assert list(check(sample())) == []
    assert list(check(made())) != []
