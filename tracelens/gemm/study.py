"""One product looked at from all sides: its time, why, and which sizes near it are worth having."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelens.errors import UsageError
from tracelens.gemm import words
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.efficiency import BEST_ALIGNMENT_BYTES
from tracelens.gemm.gain import Gain, gain, told_apart
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.results.gemm import Axis
from tracelens.results.study import NeighbourKind

DIMENSIONS = ("m", "n", "k")
#: A neighbour that gives less than this share of the time is not worth a change, however sure.
_WORTH_FRAC = 0.01
#: Of neighbours whose gains differ by less than this share of the time, the nearest is named.
_AS_GOOD_FRAC = 0.01
#: At most this many sizes are tried to each side; where more fit, every second, fourth, ... of them.
_TRIED = 192
_LARGEST = 2**40  # as in ``predict``
#: Around a size: two periods of the waves to each side, at least 256, at most a quarter of the size.
_PERIODS, _LEAST_REACH, _MOST_FRAC = 2, 256, 4


@dataclass(frozen=True, slots=True)
class StudyPoint:
    """The product with another size along one dimension."""

    size: int
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class BetterSize:
    """A size worth having: better over the whole range of ``gain``, or told apart (``gain.told_apart``)."""

    size: int
    kind: (
        NeighbourKind  # faster: larger, less time; larger, smaller: less time per FLOP; known: see ``Around``
    )
    prediction: Prediction
    gain: Gain | None  # None where the present size has no bound to compare with


@dataclass(frozen=True, slots=True)
class Around:
    """The product's sizes along one dimension: predicted points, and those worth having.

    Where the present size has no known time and none is surely better, the neighbour is the aligned size
    above it, if that is ``known``.
    """

    dimension: Axis
    low: int
    high: int
    step: int  # between the points of the curve, but for the present size and the neighbours
    tried_step: int  # between the sizes that were tried as neighbours
    curve: tuple[StudyPoint, ...]  # by size; holds the present one and the neighbours
    neighbours: tuple[BetterSize, ...]
    none_why: str | None  # why no neighbour is surely better


@dataclass(frozen=True, slots=True)
class Study:
    """A product on one GPU: its prediction, what aligns its operands, and the sizes around it."""

    prediction: Prediction
    gpu: Gpu
    leading: Mapping[str, Axis]  # operand -> the dimension that is its leading dimension
    misaligned: tuple[Axis, ...]  # dimensions that keep the least aligned operand below 128 bytes
    around: tuple[Around, ...]
    measured: bool  # measurements of this GPU were at hand, though perhaps too few to calibrate with

    @property
    def peak_frac(self) -> float | None:
        """TFLOP/s at the mid estimate over the GPU's dense peak."""
        peak, tflops = self.gpu.peak(self.prediction.dtype), self.prediction.tflops
        return tflops / peak if peak and tflops is not None else None

    @property
    def operands_gb(self) -> float:
        """What a, b and out take together."""
        one = self.prediction
        read, written = (bytes_per_element(dtype) or 0.0 for dtype in (one.dtype, one.out_dtype))
        moved = read * one.k * (one.m + one.n) + written * one.m * one.n
        return one.batch * moved / 1e9


def study_gemm(
    m: int,
    n: int,
    k: int,
    *,
    gpu: Gpu,
    batch: int = 1,
    dtype: str = "bf16",
    out_dtype: str | None = None,
    layout: str = "TN",
    measured: Measurements | None = None,
    vary: Sequence[Axis] = ("n",),
    span: tuple[int, int] | None = None,
    columns: int = 64,
) -> Study:
    """Predict out[M,N] = a[M,K] @ b[K,N] and the sizes around it along each dimension of ``vary``.

    ``span`` gives the first and the last size to look at; without it, two periods of the waves to each side,
    at least 256 and at most a quarter of the size. ``columns`` is the number of points of a curve. Raises
    ``InputError`` as ``predict_gemm`` does, and ``UsageError`` for a span without the present size.

    >>> from tracelens.hardware import find_gpu
    >>> found = study_gemm(8192, 50257, 2560, gpu=find_gpu(None, override="h100-sxm"))
    >>> found.misaligned, [(one.kind, one.size) for one in found.around[0].neighbours]
    (('n',), [('faster', 50304), ('smaller', 50240)])
    """
    asked = _Varied({"m": m, "n": n, "k": k}, batch, dtype, out_dtype, layout, gpu, measured)
    present = asked.predict()
    leading = _leading(layout)
    misaligned = _misaligned(present, leading)
    around = tuple(_around(asked, present, one, span, columns, misaligned) for one in dict.fromkeys(vary))
    return Study(present, gpu, leading, misaligned, around, measured is not None)


@dataclass(frozen=True, slots=True)
class _Varied:
    """The question, and the same with another size."""

    sizes: Mapping[str, int]
    batch: int
    dtype: str
    out_dtype: str | None
    layout: str
    gpu: Gpu
    measured: Measurements | None

    def predict(self, **other: int) -> Prediction:
        sizes = {**self.sizes, **other}
        return predict_gemm(
            sizes["m"], sizes["n"], sizes["k"], gpu=self.gpu, batch=self.batch, dtype=self.dtype,
            out_dtype=self.out_dtype, layout=self.layout, measured=self.measured, cast=True,
        )  # fmt: skip

    def gain(self, now: Prediction, then: Prediction) -> Gain | None:
        return gain(now, then, gpu=self.gpu, measured=self.measured)


def _around(
    asked: _Varied,
    present: Prediction,
    dimension: Axis,
    span: tuple[int, int] | None,
    columns: int,
    misaligned: tuple[Axis, ...],
) -> Around:
    if dimension not in DIMENSIONS:
        raise UsageError(f"unknown dimension {dimension!r}: vary m, n or k")
    size = asked.sizes[dimension]
    grid = _aligned_step(size, asked.dtype)
    # A size whose time is unknown has the waves of the aligned size above it.
    above = -(-size // grid) * grid
    known = present if present.chosen is not None else asked.predict(**{dimension: above})
    low, high = span or _window(size, _period(known, dimension))
    if not 1 <= low <= size <= high <= _LARGEST:
        word = dimension.upper()
        raise UsageError(f"the span {low}:{high} must hold {word} = {size}, and sizes from 1 to 2^40")
    tried, tried_step = _tried(low, high, size, grid)
    if present.time_us.low is None or (present.chosen is None and not _any_known(asked, dimension, tried)):
        nothing = words.nothing_to_compare(present.unknown)
        return Around(dimension, low, high, 0, tried_step, (), (), nothing)
    neighbours = _worth_having(asked, present, dimension, tried)
    why = _none_why(present, dimension, (low, high, tried_step), misaligned) if not neighbours else None
    if why is not None and present.chosen is None and known.chosen is not None and above <= high:
        neighbours = (BetterSize(above, "known", known, asked.gain(present, known)),)
    step = _curve_step(low, high, columns - 1 - len(neighbours))
    sizes = {size, *(one.size for one in neighbours), *range(-(-low // step) * step, high + 1, step)}
    curve = tuple(StudyPoint(one, asked.predict(**{dimension: one})) for one in sorted(sizes))
    return Around(dimension, low, high, step, tried_step, curve, neighbours, why)


def _any_known(asked: _Varied, dimension: Axis, tried: Sequence[int]) -> bool:
    return any(asked.predict(**{dimension: one}).time_us.mid is not None for one in tried[:8])


def _worth_having(
    asked: _Varied, present: Prediction, dimension: Axis, tried: Sequence[int]
) -> tuple[BetterSize, ...]:
    """At most one of each kind: of the best, the nearest. A larger size that is faster comes first."""
    size = asked.sizes[dimension]
    found: dict[NeighbourKind, list[tuple[float, BetterSize]]] = {"faster": [], "larger": [], "smaller": []}
    for other in tried:
        then = asked.predict(**{dimension: other})
        one = asked.gain(present, then)
        if one is None:
            continue
        told = told_apart(present, then, dimension)
        per_flop = _gained(one.per_flop_ratio.mid, 0.0 if told else one.per_flop_ratio.high)
        faster = _gained(one.time_ratio.mid, one.time_ratio.high)
        if other > size and faster > 0:
            found["faster"].append((faster, BetterSize(other, "faster", then, one)))
        if per_flop > 0:
            kind: NeighbourKind = "larger" if other > size else "smaller"
            found[kind].append((per_flop, BetterSize(other, kind, then, one)))
    chosen: dict[int, BetterSize] = {}
    for options in found.values():
        best = max((value for value, _ in options), default=0.0)
        good = [one for value, one in options if value >= best - _AS_GOOD_FRAC]
        if good:
            nearest = min(good, key=lambda one: abs(one.size - size))
            chosen.setdefault(nearest.size, nearest)
    return tuple(chosen.values())


def _gained(mid: float | None, high: float | None) -> float:
    """The share gained by a ratio that is called below 1 (0 otherwise): at mid, or at the bound."""
    if high is None or high >= 1:
        return 0.0
    value = 1 - (mid if mid is not None else high)
    return value if value >= _WORTH_FRAC else 0.0


def _none_why(
    present: Prediction, dimension: Axis, tried: tuple[int, int, int], misaligned: tuple[Axis, ...]
) -> str:
    if present.time_us.mid is None:
        return words.hangs_on_the_present(dimension)
    others = () if dimension in misaligned else misaligned
    return words.none_better(dimension, *tried, [(one, _size(present, one)) for one in others])


def _window(size: int, period: float | None) -> tuple[int, int]:
    """The sizes to look at where nobody said: see ``_PERIODS``."""
    wide = size // _MOST_FRAC
    reach = min(math.ceil(_PERIODS * period), wide) if period is not None else wide
    reach = max(reach, min(_LEAST_REACH, max(size, 64)))
    return max(1, size - reach), min(size + reach, _LARGEST)


def _period(present: Prediction, dimension: Axis) -> float | None:
    """By how much a dimension grows until its tiles fill one more wave; None along K, which has none."""
    one = present.chosen
    if one is None or dimension == "k":
        return None
    along, across, size = (
        (one.tile.m, one.tile.n, one.n) if dimension == "m" else (one.tile.n, one.tile.m, one.m)
    )
    others = -(-size // across) * one.batch * one.split
    return max(one.tile.slots(one.rates.sms) / others, 1.0) * along


def _aligned_step(size: int, dtype: str) -> int:
    """Elements of 128 bytes; less for small sizes, which would skip over all that is near."""
    step = int(BEST_ALIGNMENT_BYTES / (bytes_per_element(dtype) or 1))
    while step > max(size // 4, 8):
        step //= 2
    return step


def _tried(low: int, high: int, size: int, grid: int) -> tuple[tuple[int, ...], int]:
    """Sizes on the grid, the two next to the present one among them; and the step between the others."""
    step = grid
    while (high - low) // step > 2 * _TRIED:
        step *= 2
    next_ones = ((size - 1) // grid * grid, (size // grid + 1) * grid)
    found = {*range(-(-low // step) * step, high + 1, step), *next_ones}
    return tuple(sorted(one for one in found if low <= one <= high and one != size)), step


def _curve_step(low: int, high: int, columns: int) -> int:
    """The smallest power of two that puts the span into so many columns."""
    step = 1
    while (high - low) // step + 1 > max(columns, 1):
        step *= 2
    return step


def _leading(layout: str) -> Mapping[str, Axis]:
    """Which dimension is the leading one of each operand: see ``ladder.operand_alignment``."""
    return {
        "a": "k" if layout[1:] == "N" else "m",
        "b": "n" if layout[:1] == "N" else "k",
        "c": "n",
    }


def _misaligned(present: Prediction, leading: Mapping[str, Axis]) -> tuple[Axis, ...]:
    least = min((value for value in present.alignment.values() if value is not None), default=0)
    if least >= BEST_ALIGNMENT_BYTES or present.dtype in ("fp32", "fp64"):
        return ()
    culprits = {leading[operand] for operand, value in present.alignment.items() if value == least}
    return tuple(one for one in DIMENSIONS if one in culprits)


def _size(present: Prediction, dimension: Axis) -> int:
    return {"m": present.m, "n": present.n, "k": present.k}[dimension]
