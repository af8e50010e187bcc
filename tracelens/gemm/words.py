"""What is said of a GEMM's losses, of what its alignment costs and of the sizes near it."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.results.gemm import Axis

# --- why the time of a call is split as it is ---------------------------------------------------------

NOT_KNOWN = "not known"
NO_TIME = "no time was measured"
#: What a call takes without the losses that are told apart.
BEST_MATMUL = "the best matmul measured"
MOVING_OPERANDS = "moving its operands"
FLOP_AT_PEAK = "its FLOP at the datasheet peak"
_us = "{:.2f} µs".format


def from_cache(time_us: float, memory_us: float) -> str:
    """A call that is faster than memory."""
    return (
        f"its {_us(time_us)} are under the {_us(memory_us)} that its operands need from memory: part of them "
        "came from the cache"
    )


def too_small(floor_us: float, fixed_us: float) -> str:
    """A call whose work is less than what every kernel takes."""
    fixed = f"in a kernel that takes {_us(fixed_us)} however little it computes"
    return f"too small: {_us(floor_us)} of work {fixed}"


def memory_bound(memory_us: float, slowed_us: float) -> str:
    """A call that waits for memory whatever its tiles do."""
    arithmetic = f"the arithmetic {_us(slowed_us)} with every known loss"
    return f"memory-bound: its operands need {_us(memory_us)}, {arithmetic}"


def cut(loss_us: float, claimed_us: float, whose: str, least_us: float, working_us: float) -> str:
    """A loss that is more than the call leaves room for; ``whose`` the least time is."""
    return (
        f"cut from {_us(loss_us)}: the losses together come to {_us(claimed_us)}, but {whose} needs "
        f"{_us(least_us)} of the {_us(working_us)}"
    )


def faster_than_peak(time_us: float, math_us: float, *, by_clock: bool) -> str:
    """A call that took less than its FLOP need, by as little as clocks explain or by more."""
    why = "the clocks were above the datasheet's" if by_clock else "sparsity, or a wrong shape"
    need = f"its FLOP need {_us(math_us)} at the datasheet peak"
    return f"faster than its ceiling: {_us(time_us)}, but {need}; {why}"


# --- what a step of the alignment's ladder rests on ---------------------------------------------------

REFERENCE = "the reference of the ladder"
TWO_BYTE_TYPES_ONLY = "measured for 2-byte types only; no faster than those"
nothing_published = "nothing published for {} on {}".format
in_multiples_of_16 = "the libraries take {} only in multiples of 16 bytes".format
measured_pairs = "measured on this GPU: median of {} pairs of like with like".format


# --- why no size near is better -----------------------------------------------------------------------

nothing_to_compare = "Nothing to compare: {}".format


def hangs_on_the_present(dimension: Axis) -> str:
    """The present size has a bound only."""
    return f"What another {dimension.upper()} saves hangs on the present time"


def none_better(
    dimension: Axis, low: int, high: int, step: int, misaligned: Sequence[tuple[Axis, int]]
) -> str:
    """Sizes that were tried; ``misaligned``: other dimensions, with sizes, that misalign an operand."""
    others = " and ".join(f"{name.upper()} = {size}" for name, size in misaligned)
    return (
        f"No multiple of {step} from {low} to {high} is better for {dimension.upper()} by more than these"
        f" predictions err{f'; what misaligns an operand is {others}' if others else ''}"
    )
