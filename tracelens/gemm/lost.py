"""Where the time of one GEMM call went: useful work, four causes of loss, and what is left over.

The measured time T of a call (microseconds, all its kernels) is split so that the parts add up to T exactly:

    T = useful + overlap + clock + alignment + wave + tile + memory + other

- useful = FLOP / P, with P the dense datasheet peak of the type it is multiplied in. useful / T is the share
  of peak that the GEMM table shows.
- overlap: what calls took because of kernels on other streams, a collective above all: the time of the
  disturbed calls beyond the median of the undisturbed ones (``tracelens.gemm.overlap``). It is taken off
  first, and everything below is judged on what is left.
- clock: what calls took in steps in which all shapes run slower than in the fastest step
  (``tracelens.gemm.clock``), taken off as overlap is.
- memory = max(0, X - useful), with X = bytes / bandwidth, each operand crossing memory once: how much longer
  moving the operands takes than the arithmetic on them, at the datasheet's bandwidth.
- W = T - H - L - overlap - clock is the time in which tiles are computed. H: kernels beside the product
  itself (split-K reductions). L: what a GEMM kernel takes however little it computes (launch, filling of the
  pipeline, epilogue), of this GPU where that is known.
- alignment = W * (1 - A), with A the throughput at the alignment of the worst operand over that at 128 bytes
  (``tracelens.gemm.ladder``): a GEMM that was aligned would take A of the time.
- wave = W * A * (1 - V), with V = ``wave_eff``: the share of SM time in which an SM has no tile, because the
  last wave does not fill the GPU.
- tile = W * A * V * (1 - S), with S = ``tile_eff``: the share of the work that is done on the tiles' area
  outside the output.
- other = T minus all of these. It holds H and L, what stalled calls took beyond the median of their row (it
  is in no W: the shape did not cost it), what keeps every matmul below the datasheet peak (power and
  clocks, epilogue, the way operands come through the caches), and every cause that could not be judged. It
  is never distributed over the rest. Two parts of it are known: H (``helpers``), and what the best matmul
  measured on this GPU needs beyond the floor, too (``ceiling``).

A, V and S are shares of the time in which the kernel computes (an idle SM is idle for as long as the others
compute, at whatever speed they do), not of the time at peak: they do not depend on the peak. The order is
alignment, wave, tile, because each is a share of what the one before it leaves.

Where a cause is not told from others it is None, with the reason:

- the floor max(useful, X) is under L: too small, the fixed cost rules, and idle SMs cost nothing;
- X is no less than the arithmetic with its losses, useful / (A * V * S): memory-bound, and idle SMs or
  padding wait for memory anyway;
- T is under X: part of the operands came from the cache, so what memory cost is not known, nor what binds;
- every call ran beside other streams: what it takes alone is not known;
- a factor is unknown (no tile in the kernel's name, split-K into an unknown number of slices...): its loss
  stays in ``other``.

Alignment, wave and tile together leave at least the time Y of the best matmul measured on such a GPU, or
max(useful, X) where none was measured or this call was faster than it: alignment + wave + tile <= W - Y.
Full waves of aligned operands run no faster than that: busier SMs draw more power and clock lower. Where
the three come to more (a factor too low, clocks above the datasheet's) they are cut by one factor, and say
so. A call that took less than its FLOP need at the peak is not split at all beyond a tenth of a
difference: it was sparse, or its shape is wrong. Within a tenth (boards clock above the datasheet) all of
it is useful.

Sources: tile and wave quantization as in NVIDIA's "Matrix Multiplication Background User's Guide" and arXiv
2401.14489; roofline as in Williams, Waterman, Patterson, CACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tracelens.gemm import words
from tracelens.results.gemm import Unsplit

#: Losses of the kernel's own time, in the order in which they are taken.
FACTORS = ("alignment", "wave", "tile")
#: The parts that add up to the time.
PARTS = ("useful", "overlap", "clock", *FACTORS, "memory", "other")
#: Boards run above the boost clock that the datasheet's peak is computed with, consumer boards by 5 to 10 %.
CLOCK_MARGIN = 0.10


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What the split of one call rests on; None = not known, with the reason in ``why``."""

    time_us: float  # T
    math_us: float | None  # FLOP / datasheet peak
    memory_us: float | None  # X: bytes / datasheet bandwidth
    fixed_us: float  # L
    helper_us: float = 0.0  # H
    stall_us: float = 0.0  # what stalled calls took beyond the median of their row, over all its calls
    overlap_us: float | None = 0.0  # what ran beside its calls cost them, over all; None = not known
    clock_us: float = 0.0  # what slower steps took, over all its calls
    alignment: float | None = None  # A
    wave: float | None = None  # V
    tile: float | None = None  # S
    ceiling_us: float | None = None  # floor of the best measured: max(FLOP / best matmul, X)
    why: Mapping[str, str] = field(default_factory=dict)  # "useful", "memory", "alignment", "wave", "tile"

    @property
    def working_us(self) -> float:
        """W, the time in which tiles are computed."""
        beside = self.stall_us + (self.overlap_us or 0.0) + self.clock_us
        return max(0.0, self.time_us - self.helper_us - beside - self.fixed_us)


@dataclass(frozen=True, slots=True)
class LossSplit:
    """Microseconds of one call. The ``PARTS`` that are not None add up to its time.

    ``useful`` None: the call is not judged, and nothing else is known either. ``ceiling`` and ``helpers``
    are parts of ``other``. ``why`` holds a reason for each part that is None or was cut.
    """

    useful: float | None = None
    overlap: float | None = None
    clock: float | None = None
    alignment: float | None = None
    wave: float | None = None
    tile: float | None = None
    memory: float | None = None
    other: float | None = None
    ceiling: float | None = None
    helpers: float | None = None
    cut: tuple[float, float] | None = None  # alignment, wave and tile were cut to the first, from the second
    why: Mapping[str, str] = field(default_factory=dict)
    unsplit: Unsplit | None = None
    at_least: tuple[str, ...] = ()  # parts that are lower bounds, the rest of them in ``other``


def split_time(facts: CallFacts) -> LossSplit:
    """Split one call's time as the module's docstring defines it.

    An H100, 2304 x 768 x 32768 in 169.5 us: 117.2 us at 989 TFLOP/s; 108 tiles on 132 SMs.

    >>> split = split_time(CallFacts(time_us=169.5, math_us=117.2, memory_us=61.2, fixed_us=3.0,
    ...     alignment=1.0, wave=108 / 132, tile=1.0))
    >>> [round(getattr(split, part), 2) for part in PARTS]
    [117.2, 0.0, 0.0, 0.0, 30.27, 0.0, 0.0, 22.03]
    """
    overlap = facts.overlap_us
    time = facts.time_us - facts.stall_us - (overlap or 0.0) - facts.clock_us
    split = _split_alone(replace(facts, time_us=time, stall_us=0.0, overlap_us=0.0, clock_us=0.0))
    if split.other is None:
        return split
    other = split.other + facts.stall_us
    said = {"overlap": facts.why.get("overlap", words.NOT_KNOWN)} if overlap is None else {}
    why = {**split.why, **said}
    return replace(split, overlap=overlap, clock=facts.clock_us, other=other, why=why)


def _split_alone(facts: CallFacts) -> LossSplit:
    """The split of a call beside nothing, at the pace of the fastest step, that did not stall."""
    time, math, why = facts.time_us, facts.math_us, dict(facts.why)
    if math is None or time <= 0:
        return LossSplit(why={"useful": why.get("useful", words.NO_TIME)})
    if math > time:
        return _faster(time, math)
    useful = LossSplit(useful=math)
    moved = facts.memory_us
    if moved is not None and moved > time:
        reason = words.from_cache(time, moved)
        return _with_rest(replace(useful, why=dict.fromkeys(("memory", *FACTORS), reason)), facts, floor=math)
    floor = math if moved is None else max(math, moved)
    if floor < facts.fixed_us:
        reason = words.too_small(floor, facts.fixed_us)
        return _with_rest(
            replace(useful, unsplit="too_small", why=dict.fromkeys(("memory", *FACTORS), reason)),
            facts,
            floor=floor,
        )
    losses, cut, said = _losses(facts, math, floor)
    split = replace(
        replace(useful, **losses),  # type: ignore[arg-type]
        cut=cut,
        memory=None if moved is None else floor - math,
        why={**{name: text for name, text in why.items() if name == "memory" and moved is None}, **said},
    )
    return _with_rest(split, facts, floor=floor)


_Losses = tuple[dict[str, float | None], tuple[float, float] | None, dict[str, str]]


def _losses(facts: CallFacts, math: float, floor: float) -> _Losses:
    """Alignment, wave and tile, to and from what they were cut, and a reason for each that is None or cut."""
    factors = {name: getattr(facts, name) for name in FACTORS}
    slowed = math
    for factor in factors.values():
        slowed /= factor if factor else 1.0
    moved = facts.memory_us
    if moved is not None and moved >= slowed:
        return dict.fromkeys(FACTORS), None, dict.fromkeys(FACTORS, words.memory_bound(moved, slowed))
    left = facts.working_us
    losses: dict[str, float | None] = {}
    said: dict[str, str] = {}
    for name, factor in factors.items():
        if factor is None:
            losses[name] = None
            said[name] = facts.why.get(name, words.NOT_KNOWN)
            continue
        losses[name] = left * (1.0 - factor)
        left *= factor
    claimed = sum(loss for loss in losses.values() if loss)
    least, whose = _least(facts, floor)
    room = max(0.0, facts.working_us - least)
    if claimed <= room:
        return losses, None, said
    for name, loss in losses.items():
        if loss:
            losses[name] = loss * room / claimed
            said[name] = words.cut(loss, claimed, whose, least, facts.working_us)
    return losses, (room, claimed), said


def _least(facts: CallFacts, floor: float) -> tuple[float, str]:
    """Y: what the call takes without these losses, and whose time that is."""
    best = facts.ceiling_us
    if best is not None and floor < best < facts.working_us:
        return best, words.BEST_MATMUL
    if facts.memory_us is not None and facts.memory_us >= floor:
        return floor, words.MOVING_OPERANDS
    return floor, words.FLOP_AT_PEAK


def _with_rest(split: LossSplit, facts: CallFacts, *, floor: float) -> LossSplit:
    """Add ``other``, what is left, and what is known of it."""
    known = sum(took for part in PARTS if part != "other" and (took := getattr(split, part)))
    other = max(0.0, facts.time_us - known)
    helpers = min(facts.helper_us, other)
    ceiling = None
    if facts.ceiling_us is not None:
        ceiling = min(max(0.0, facts.ceiling_us - floor), other - helpers)
    return replace(split, other=other, helpers=helpers, ceiling=ceiling)


def _faster(time: float, math: float) -> LossSplit:
    by_clock = math <= time * (1.0 + CLOCK_MARGIN)
    reason = words.faster_than_peak(time, math, by_clock=by_clock)
    if not by_clock:
        return LossSplit(why={"useful": reason}, unsplit="faster")
    why = dict.fromkeys(("useful", "memory", *FACTORS), reason)
    return LossSplit(useful=time, other=0.0, helpers=0.0, why=why)
