"""Tiles of a library that has a kernel for every multiple of 8: cuBLAS's nvjet on Hopper and Blackwell.

Names of public traces show 128 x 160, 208, 224, 320, 144, 176, 272 x 128, 192 x 152 and so on: one side is
64, 128, 192 or 256, the other any multiple of 8. Their rates, and how the library ranks them, are smooth
functions of size, as too few rows run on any one of them to fit each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.gemm.predict.tiles import Tile

_STEP = 8
_TILE_K = 64
#: Smaller ones are listed one by one in the architecture's file.
LEAST = 64 * 128
#: Middle and unit of the other side, as coefficients see it.
_MIDDLE, _UNIT = 160.0, 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The tiles of a library, and of each the features that its rate and its rank follow from."""

    tiles: tuple[Tile, ...]
    features: NDArray[np.float64]  # (tiles, coefficients), of the rank: the library tells M from N
    of_rate: NDArray[np.float64]  # of the rate: a tile multiplies as fast either way round

    @classmethod
    def of(cls, longest: Mapping[int, int]) -> Family:
        """From each fixed side and the longest other side that its accumulators allow.

        >>> family = Family.of({64: 256, 128: 320, 192: 208, 256: 160})
        >>> len(family.tiles), family.features.shape, family.of_rate.shape
        (164, (164, 26), (164, 14))
        """
        sizes = {(side, other) for side, most in longest.items() for other in range(_STEP, most + 1, _STEP)}
        sizes |= {(other, side) for side, other in sizes}
        kept = sorted((m, n) for m, n in sizes if m * n >= LEAST)
        features = np.asarray([_features(m, n, longest) for m, n in kept])
        powers = features[:, :-2].reshape(len(kept), len(longest), 2, 3).sum(axis=2)
        of_rate = np.concatenate([powers.reshape(len(kept), -1), features[:, -2:]], axis=1)
        return cls(tuple(Tile(m, n, _TILE_K) for m, n in kept), features, of_rate)

    def rates(self, coefficients: tuple[float, ...]) -> tuple[float, ...]:
        """The rate of each tile beside the formula's: exp(features x coefficients)."""
        return _exp(self.of_rate, coefficients)

    def biases(self, coefficients: tuple[float, ...]) -> tuple[float, ...]:
        """What the library ranks the time of each tile by."""
        return _exp(self.features, coefficients)


def _exp(features: NDArray[np.float64], coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{factor:.4g}") for factor in np.exp(features @ np.asarray(coefficients)))


def _features(m: int, n: int, longest: Mapping[int, int]) -> list[float]:
    """Per fixed side and its direction 1, x, x^2 of the other; and is that a multiple of 32, of 64."""
    along_m = m in longest and n <= longest[m]
    side, other = (m, n) if along_m else (n, m)
    x = (other - _MIDDLE) / _UNIT
    powers = np.zeros((2 * len(longest), 3))
    powers[2 * sorted(longest).index(side) + (not along_m)] = 1.0, x, x * x
    return [*powers.ravel(), float(other % 32 == 0), float(other % 64 == 0)]
