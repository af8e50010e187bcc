"""Tiles of a library that has a kernel for every multiple of 8: cuBLAS's nvjet on Hopper and Blackwell.

Names of public traces show 128 x 160, 208, 224, 320, 144, 176, 272 x 128, 192 x 152 and so on: one side is
64, 128, 192 or 256, the other any multiple of 8. On Blackwell two SMs may multiply as one (``2cta`` in such
names; PTX's tcgen05.mma with cta_group::2): each has 128 of 256 rows, or columns, and the GPU fills by
pairs. Rates of tiles, and how the library ranks them, are smooth functions of size, as too few rows run on
any one of them to fit each by itself.
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
#: Clusters, N first, of two CTAs whose fixed sides lie one behind the other along M, and along N.
_PAIR_M, _PAIR_N = "1x2", "2x1"
#: Coefficients at the end that all kinds of tile share.
_SHARED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The tiles of a library, and of each the features that its rate and its rank follow from."""

    tiles: tuple[Tile, ...]
    features: NDArray[np.float64]  # (tiles, coefficients), of the rank: the library tells M from N
    of_rate: NDArray[np.float64]  # of the rate: a tile multiplies as fast either way round
    longest: Mapping[int, int]  # of each fixed side the longest other side
    pairs: Mapping[int, int]  # the same of pairs of SMs

    @classmethod
    def of(cls, longest: Mapping[int, int], pairs: Mapping[int, int]) -> Family:
        """From each fixed side and the longest other side of a CTA's tile: CTAs alone, and pairs of SMs.

        >>> alone = {64: 256, 128: 320, 192: 208, 256: 160}
        >>> family = Family.of(alone, {})
        >>> len(family.tiles), family.features.shape, family.of_rate.shape
        (164, (164, 26), (164, 14))
        >>> family = Family.of(alone, {128: 256})
        >>> family.features.shape, family.tiles[-1].m, family.tiles[-1].n, family.tiles[-1].cluster
        ((213, 32), 256, 128, '2x1')
        """
        tiles, features = [], []
        kinds = len(longest) + len(pairs)
        for sides, first, clusters in ((longest, 0, (None, None)), (pairs, len(longest), (_PAIR_M, _PAIR_N))):
            for m, n in _sizes(sides):
                along_m = m in sides and n <= sides[m]
                side, other = (m, n) if along_m else (n, m)
                tiles.append(Tile(m, n, _TILE_K, clusters[not along_m]))
                features.append(_features(first + sorted(sides).index(side), along_m, other, kinds))
        table = np.asarray(features)
        powers = table[:, :-_SHARED].reshape(len(tiles), kinds, 2, 3).sum(axis=2)
        of_rate = np.concatenate([powers.reshape(len(tiles), -1), table[:, -_SHARED:]], axis=1)
        return cls(tuple(tiles), table, of_rate, longest, pairs)

    def with_pairs(self, coefficients: tuple[float, ...]) -> tuple[float, ...]:
        """Those of the same library without pairs of SMs, and 0 for what only those have."""
        body, tail = coefficients[:-_SHARED], coefficients[-_SHARED:]
        more = len(body) // len(self.longest) * len(self.pairs)
        return (*body, *(0.0,) * more, *tail)

    def rates(self, coefficients: tuple[float, ...]) -> tuple[float, ...]:
        """The rate of each tile beside the formula's: exp(features x coefficients)."""
        return _exp(self.of_rate, coefficients)

    def biases(self, coefficients: tuple[float, ...]) -> tuple[float, ...]:
        """What the library ranks the time of each tile by."""
        return _exp(self.features, coefficients)


def _exp(features: NDArray[np.float64], coefficients: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(float(f"{factor:.4g}") for factor in np.exp(features @ np.asarray(coefficients)))


def _sizes(longest: Mapping[int, int]) -> list[tuple[int, int]]:
    sizes = {(side, other) for side, most in longest.items() for other in range(_STEP, most + 1, _STEP)}
    sizes |= {(other, side) for side, other in sizes}
    return sorted((m, n) for m, n in sizes if m * n >= LEAST)


def _features(kind: int, along_m: bool, other: int, kinds: int) -> list[float]:
    """Per kind and its direction 1, x, x^2 of the other side; and is that a multiple of 32, of 64."""
    x = (other - _MIDDLE) / _UNIT
    powers = np.zeros((2 * kinds, 3))
    powers[2 * kind + (not along_m)] = 1.0, x, x * x
    return [*powers.ravel(), float(other % 32 == 0), float(other % 64 == 0)]
