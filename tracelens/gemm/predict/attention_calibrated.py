"""Attention measured on the GPU at hand: what corrects the model, and how far it can be trusted.

The model's shape is kept (blocks, waves, exponentials) and multiplied by measured over modelled time of
the measured calls most like the one asked for. How like they must be is found out by holding out: every
measurement is predicted from the others in the same way, and the range is what 9 of 10 of those missed by.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracelens.errors import InputError
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_kernels import backend_name, padded_head_dim
from tracelens.gemm.predict.words import attention as words
from tracelens.hardware.measurements import AttentionMeasurement, Measurements

_NEIGHBOURS = 4
_FEWEST = 3  # measurements that a correction needs
_COVERED = 0.9
_LEAST_RANGE = 0.02  # clocks and temperature alone move a time by this
#: Weight of differences, per octave: of the head dimension, which decides the kernel's inner loop; of the
#: lengths; of batch times heads, which only fills the SMs; of KV sharing.
_HEAD_DIM, _LENGTH, _HEADS, _SHARING = 4.0, 1.0, 0.7, 0.5
_MASK = 1.0  # another mask or window
_TOGETHER = 0.1  # measurements closer than this weigh alike
#: How a row was found, best first.
_SAME, _OTHER_MASK, _OTHER_HEAD_DIM = range(3)
_LEVELS = (words.SAME_KERNEL, words.OTHER_MASK, words.OTHER_HEAD_DIM)


@dataclass(frozen=True, slots=True)
class MeasuredNeighbour:
    """One measurement that a correction rests on."""

    shape: str
    ratio: float  # measured over modelled time
    weight: float


@dataclass(frozen=True, slots=True)
class Correction:
    """What to multiply the model with. ``range_frac``: 9 of 10 held-out measurements lay within it."""

    neighbours: tuple[MeasuredNeighbour, ...]
    range_frac: float
    held_out: int  # measurements it was found on
    how: str


@dataclass(frozen=True, slots=True)
class _Point:
    call: AttentionProblem
    padded: int
    ratio: float
    spread: float | None


@dataclass(frozen=True, slots=True)
class _HeldOut:
    range_frac: float
    distance: float  # from a held-out measurement to the nearest other, at the median
    count: int


class AttentionFit:
    """The attention measurements of one GPU beside what the model says of them."""

    def __init__(
        self, measured: Measurements, *, model_us: Callable[[AttentionProblem, str], float | None]
    ) -> None:
        self._points: dict[tuple[str, bool, str], list[_Point]] = {}
        self._ranges: dict[tuple[object, ...], _HeldOut] = {}
        for row in measured.attention:
            found = _point(row, model_us)
            if found is not None:
                self._points.setdefault(found[0], []).append(found[1])

    def correction(
        self, call: AttentionProblem, backend: str, *, model_range_frac: float
    ) -> Correction | None:
        """What the measurements say of a call; None where too few of its backend and direction are there.

        Farther from the measured shapes than these are from one another, the range grows in proportion,
        up to that of the model without measurements.
        """
        points = self._points.get(_key(call, backend), [])
        padded = padded_head_dim(backend, call.head_dim, backward=call.backward) or call.head_dim
        for level, how in enumerate(_LEVELS):
            near = [point for point in points if _counts(point, call, padded, level)]
            if len(near) >= _FEWEST:
                chosen = _nearest(call, near)
                held_out = self._range(_key(call, backend), call.causal, padded, level, points)
                if held_out.count == 0:
                    continue
                spreads = [point.spread for point, _ in chosen]
                range_frac = max([held_out.range_frac, *(one for one in spreads if one is not None)])
                if None in spreads or not any(point.call.causal == call.causal for point in near):
                    # nothing shows how far repeats lie apart, or what the mask costs
                    range_frac = max(range_frac, model_range_frac)
                distance = min(_distance(call, point.call) for point, _ in chosen)
                grown = range_frac * max(1.0, distance / held_out.distance)
                return Correction(
                    tuple(MeasuredNeighbour(_shape(p.call), p.ratio, weight) for p, weight in chosen),
                    max(range_frac, min(grown, model_range_frac)),
                    held_out.count,
                    how,
                )
        return None

    def _range(
        self, key: tuple[str, bool, str], causal: bool, padded: int, level: int, points: Sequence[_Point]
    ) -> _HeldOut:
        """The range at one level, by holding out what a prediction at that level would not have."""
        # At the last level every kernel of the backend is evidence of how kernels differ.
        about = (key, level, padded if level < _OTHER_HEAD_DIM else None, causal if level == _SAME else None)
        if about not in self._ranges:
            misses, distances = [], []
            for point in points:
                if level < _OTHER_HEAD_DIM and point.padded != padded:
                    continue
                if level == _SAME and point.call.causal != causal:
                    continue
                rest = [
                    other
                    for other in points
                    if _distance(other.call, point.call) > 0.0  # neither itself nor a repeat of it
                    and _counts(other, point.call, point.padded, level)
                    and not (level == _OTHER_MASK and other.call.causal == point.call.causal)
                    and not (level == _OTHER_HEAD_DIM and other.padded == point.padded)
                ]
                if len(rest) >= _FEWEST - (level == _SAME):
                    chosen = _nearest(point.call, rest)
                    misses.append(abs(math.log(point.ratio / weighted_ratio(chosen))))
                    distances.append(min(_distance(point.call, other.call) for other, _ in chosen))
            typical = max(statistics.median(distances), _TOGETHER) if distances else _TOGETHER
            self._ranges[about] = _HeldOut(_quantile(misses), typical, len(misses))
        return self._ranges[about]


def weighted_ratio(chosen: Sequence[tuple[_Point, float]]) -> float:
    """Mean of the ratios by weight."""
    return sum(p.ratio * weight for p, weight in chosen) / sum(weight for _, weight in chosen)


def _point(
    row: AttentionMeasurement, model_us: Callable[[AttentionProblem, str], float | None]
) -> tuple[tuple[str, bool, str], _Point] | None:
    try:
        backend = backend_name(row.backend)
        call = AttentionProblem(
            batch=row.batch,
            heads=row.heads,
            kv_heads=row.kv_heads,
            seq_q=row.seq_q,
            seq_k=row.seq_k,
            head_dim=row.head_dim,
            causal=row.causal,
            direction=row.direction,
            dtype=row.dtype,
        )
    except InputError:
        return None  # a row of a later version of the file: nothing here can use it
    modelled = model_us(call, backend)
    if modelled is None:
        return None
    padded = padded_head_dim(backend, call.head_dim, backward=call.backward) or call.head_dim
    spread = row.spread_frac
    point = _Point(call, padded, row.time_us / modelled, None if spread is None else spread / 2)
    return _key(call, backend), point


def _key(call: AttentionProblem, backend: str) -> tuple[str, bool, str]:
    """Measurements that can speak for one another: fp16 and bf16 run at one rate."""
    return backend, call.backward, "half" if call.dtype in ("fp16", "bf16") else call.dtype


def _counts(point: _Point, call: AttentionProblem, padded: int, level: int) -> bool:
    if level == _SAME:
        return point.padded == padded and point.call.causal == call.causal
    return level == _OTHER_HEAD_DIM or point.padded == padded


def _nearest(call: AttentionProblem, points: Sequence[_Point]) -> list[tuple[_Point, float]]:
    ranked = sorted(((_distance(call, point.call), index) for index, point in enumerate(points)))
    if ranked[0][0] == 0.0:
        return [(points[index], 1.0) for distance, index in ranked if distance == 0.0]
    chosen = ranked[:_NEIGHBOURS]
    return [(points[index], 1.0 / (distance**2 + _TOGETHER**2)) for distance, index in chosen]


def _distance(call: AttentionProblem, other: AttentionProblem) -> float:
    octaves = (
        _HEAD_DIM * math.log2(call.head_dim / other.head_dim),
        _LENGTH * math.log2(call.seq_q / other.seq_q),
        _LENGTH * math.log2(call.seq_k / other.seq_k),
        _HEADS * math.log2(call.batch * call.heads / (other.batch * other.heads)),
        _SHARING * math.log2(call.heads * other.kv_heads / (call.kv_heads * other.heads)),
        _MASK * (call.causal != other.causal),
        _MASK * (call.window != other.window),
    )
    return math.sqrt(sum(octave**2 for octave in octaves))


def _quantile(misses: Sequence[float]) -> float:
    """Of the held-out misses: the one that 9 of 10 stay under, with one to spare (split conformal).

    Fewer than nine cannot show a tenth: then half more than the largest.
    """
    if not misses:
        return math.inf
    ranked = sorted(misses)
    rank = math.ceil(_COVERED * (len(ranked) + 1))
    miss = ranked[rank - 1] if rank <= len(ranked) else 1.5 * ranked[-1]
    return max(_LEAST_RANGE, math.expm1(miss))


def _shape(call: AttentionProblem) -> str:
    lengths = f"s={call.seq_q}" if call.seq_q == call.seq_k else f"sq={call.seq_q} sk={call.seq_k}"
    sharing = f" kv={call.kv_heads}" if call.kv_heads != call.heads else ""
    mask = " causal" if call.causal else ""
    return f"b={call.batch} h={call.heads}{sharing} {lengths} d={call.head_dim}{mask}"
