"""What measured products say of one nearby, beyond the formula: its remaining error, and how sure that is.

Nearness is the sum of |log2| ratios over M, N, K and batch, among products of the same layout and alignment.
A neighbour weighs 1 / (distance + reach)^2, and having none weighs 1 / prior_distance^2: reach and prior
distance are those that predict each measurement best when it is left out. The same left-out errors give the
range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tracelens.gemm.predict.cost import Array
from tracelens.gemm.predict.derivation import Neighbour, correction
from tracelens.hardware.measurements import GemmMeasurement

_COUNT = 5
_REACHES = (0.005, 0.02, 0.06, 0.2)
_PRIOR_DISTANCES = (0.1, 0.3, 1.0, 3.0)
#: Share of the left-out errors that the range holds.
_COVERED = 0.90
#: No prediction is surer than this, the noise of timing itself.
_LEAST_ERROR = 0.005
#: Errors and distances count no further than these.
_CAPPED = 0.5
_FARTHEST = 4.0


@dataclass(frozen=True, slots=True)
class Nearest:
    """What the neighbours of one product say: its correction and range."""

    weighted: tuple[Neighbour, ...] = ()
    prior_weight: float = 1.0
    low_frac: float = 1.0
    high_frac: float = 1.0

    @property
    def factor(self) -> float:
        """What measured times are, beside the formula's."""
        return float(np.exp(correction(self.weighted, self.prior_weight)))


@dataclass(frozen=True, slots=True)
class _Spread:
    """The width of ranges: each holds 90 % of the left-out errors, divided by their own scale.

    The scale of one product is the mean left-out error of its neighbours, with the typical one among them,
    times its distance from the nearest over ``near`` where that is farther.
    """

    typical: float
    near: float
    low: float = 0.0
    high: float = 0.0

    def scale(self, errors: Array, distance: float) -> float:
        mean = (float(errors.sum()) + self.typical) / (len(errors) + 1)
        return mean * max(1.0, min(distance, _FARTHEST) / self.near)

    def fracs(self, errors: Array, distance: float) -> tuple[float, float]:
        scale = self.scale(errors, distance)
        return float(np.exp(self.low * scale)), float(np.exp(self.high * scale))


@dataclass(frozen=True, slots=True)
class _Class:
    """Measured products of one layout and alignment."""

    points: Array  # (N, 4): log2 of m, n, k, batch
    residuals: Array  # ln(measured / formula)
    errors: Array  # |ln(measured / predicted)| with the product itself left out
    shapes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """All measured products of one type, ready to be asked."""

    classes: dict[tuple[str, int], _Class] = field(repr=False)
    reach: float
    prior_distance: float
    spread: _Spread

    def of(self, sizes: tuple[int, int, int, int], layout: str, aligned: int) -> Nearest:
        """Neighbours of (m, n, k, batch); those of other layouts where this one was not measured."""
        found = self.classes.get((layout, aligned)) or self.classes.get(("", aligned))
        if found is None:
            return Nearest((), 1.0, *self.spread.fracs(np.zeros(0), _FARTHEST))
        distance = np.abs(found.points - np.log2(np.asarray(sizes, dtype=np.float64))).sum(axis=1)
        count = min(_COUNT, len(distance))
        at = np.argpartition(distance, count - 1)[:count]
        at = at[np.lexsort((at, distance[at]))]
        weighted = tuple(
            (_digits(1 / (distance[i] + self.reach) ** 2), _digits(found.residuals[i]), found.shapes[i])
            for i in at
        )
        limits = self.spread.fracs(found.errors[at], float(distance[at[0]]))
        return Nearest(weighted, _digits(1 / self.prior_distance**2), *limits)

    def has(self, layout: str, aligned: int) -> bool:
        return (layout, aligned) in self.classes or ("", aligned) in self.classes


def neighbours(rows: Sequence[GemmMeasurement], aligned: Sequence[int], residuals: Array) -> Neighbours:
    """From measurements, the alignment of each and ln(measured / formula) of each."""
    points = np.log2([[one.m, one.n, one.k, one.batch] for one in rows])
    groups: dict[tuple[str, int], list[int]] = {}
    for at, (one, alignment) in enumerate(zip(rows, aligned, strict=True)):
        groups.setdefault((one.layout, alignment), []).append(at)
        groups.setdefault(("", alignment), []).append(at)
    near = {key: _others(points[at]) for key, at in groups.items() if key[0]}
    distance = np.concatenate([found for found, _ in near.values()])
    value = np.concatenate([residuals[groups[key]][at] for key, (_, at) in near.items()])
    truth = np.concatenate([residuals[groups[key]] for key in near])
    left_out = {
        (reach, prior): truth - _corrections(distance, value, reach, prior)
        for reach in _REACHES
        for prior in _PRIOR_DISTANCES
    }
    reach, prior = min(left_out, key=lambda one: float(np.minimum(np.abs(left_out[one]), _CAPPED).mean()))
    error = np.empty(len(rows))
    error[np.concatenate([groups[key] for key in near])] = left_out[reach, prior]
    classes = {
        key: _Class(points[at], residuals[at], np.abs(error[at]), tuple(_shape(rows[i]) for i in at))
        for key, at in groups.items()
    }
    spread = _spread([(*near[key], error[groups[key]]) for key in near])
    return Neighbours(classes, reach, prior, spread)


def _others(points: Array) -> tuple[Array, NDArray[np.intp]]:
    """Distances and places of each point's nearest others, nearest first; infinite where there are none."""
    count = min(_COUNT, len(points) - 1)
    distance = np.full((len(points), _COUNT), np.inf)
    place = np.zeros((len(points), _COUNT), dtype=np.intp)
    if count < 1:
        return distance, place
    for first in range(0, len(points), 256):  # a few thousand points squared would fill the memory
        part = slice(first, first + 256)
        between = np.abs(points[part, None, :] - points[None, :, :]).sum(axis=2)
        rows = np.arange(len(between))
        between[rows, rows + first] = np.inf
        # The few nearest first, then those in order: sorting whole rows took most of a calibration's time.
        at = np.sort(np.argpartition(between, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(np.take_along_axis(between, at, axis=1), axis=1, kind="stable")
        at = np.take_along_axis(at, order, axis=1)
        distance[part, :count] = np.take_along_axis(between, at, axis=1)
        place[part, :count] = at
    return distance, place


def _corrections(distance: Array, value: Array, reach: float, prior: float) -> Array:
    weight = 1 / (distance + reach) ** 2
    return np.asarray((weight * value).sum(axis=1) / (weight.sum(axis=1) + 1 / prior**2), dtype=np.float64)


def _spread(parts: Sequence[tuple[Array, NDArray[np.intp], Array]]) -> _Spread:
    """From (distances, places, left-out errors) of each class."""
    every = np.concatenate([error for _, _, error in parts])
    nearest = np.concatenate([distance[:, 0] for distance, _, _ in parts])
    nearest = nearest[np.isfinite(nearest)]
    near = max(float(np.quantile(nearest, _COVERED)), 1e-3) if len(nearest) else 1.0
    plain = _Spread(max(float(np.median(np.abs(every))), _LEAST_ERROR), near)
    scores = []
    for distance, place, error in parts:
        for row in range(len(error)):
            around = np.abs(error[place[row][np.isfinite(distance[row])]])
            scores.append(error[row] / plain.scale(around, float(distance[row, 0])))
    covered = min(1.0, _COVERED * (1 + 1 / len(scores)))
    low, high = np.quantile(scores, [(1 - covered) / 2, (1 + covered) / 2])
    return _Spread(plain.typical, near, min(float(low), 0.0), max(float(high), 0.0))


def _shape(one: GemmMeasurement) -> str:
    return f"{one.m}x{one.n}x{one.k}" + (f" x{one.batch}" if one.batch > 1 else "")


def _digits(value: float) -> float:
    return float(f"{value:.7g}")
