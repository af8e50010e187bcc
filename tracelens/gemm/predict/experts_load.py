"""How many rows each expert gets: even, or as uneven as a power law makes it.

A drawn load follows the collector of NVIDIA's aiconfigurator (``_generate_power_law_distribution``, commit
095f58a51), whose measured times the constants of ``experts_cost`` are fitted to: every expert's popularity
is drawn from a power law, no expert gets a token twice, and the rank with most rows is the one that counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Draws are repeated until about so many experts were drawn, and at least and at most so often.
_DRAWN, _FEWEST, _MOST = 2048, 8, 128
#: A popularity lies between 1 and this share of the tokens; with fewer rows than experts between these two.
_MOST_POPULAR = 0.8
_FEW_ROWS = (0.01, 2.0)


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Rows per expert on the busiest rank of an expert-parallel group: shape (draws, experts of a rank)."""

    rows: Array

    @property
    def total(self) -> float:
        """Rows of the rank."""
        return float(self.rows.sum(axis=1).mean())

    @property
    def active(self) -> float:
        """Experts of the rank that get a row at all."""
        return float((self.rows > 0).sum(axis=1).mean())

    def blocks(self, rows: int) -> float:
        """Blocks of so many rows that hold them, each expert's rounded up.

        >>> Load(np.array([[200.0, 0.0, 56.0]])).blocks(128)
        3.0
        """
        return float(np.ceil(self.rows / rows).sum(axis=1).mean())

    def rounded(self, to: int) -> Load:
        """The same with every expert's rows padded to a multiple.

        >>> Load(np.array([[200.0, 0.0, 56.0]])).rounded(128).per_expert
        (256.0, 128.0, 0.0)
        """
        return self if to == 1 else Load(np.ceil(self.rows / to) * to)

    def dropped_above(self, most: float) -> Load:
        """The same with the rows that an expert gets beyond so many dropped."""
        return Load(np.minimum(self.rows, np.floor(most)))

    @property
    def per_expert(self) -> tuple[float, ...]:
        """Expected rows of the fullest expert, the second, ..."""
        return tuple(float(one) for one in np.sort(self.rows, axis=1)[:, ::-1].mean(axis=0))


@lru_cache(maxsize=1024)
def expert_load(tokens: int, *, top_k: int, experts: int, ep: int, exponent: float | None) -> Load:
    """Rows on the busiest of ``ep`` ranks when ``tokens`` of the whole group choose ``top_k`` of ``experts``.

    ``exponent`` is the power law's; None spreads the rows evenly. Draws are the same in every call.

    >>> expert_load(4096, top_k=8, experts=256, ep=8, exponent=None).per_expert[:2]
    (128.0, 128.0)
    >>> uneven = expert_load(4096, top_k=8, experts=256, ep=8, exponent=1.2)
    >>> uneven.total > 4096.0, uneven.per_expert[0] > 1000
    (True, True)
    """
    if exponent is None:
        return Load(_even(tokens * top_k, experts, ep))
    draws = int(np.clip(_DRAWN // experts, _FEWEST, _MOST))
    drawn = _drawn(tokens, top_k, experts, exponent, draws)
    groups = drawn.reshape(draws, experts // ep, ep)  # neighbours lie on different ranks
    busiest = groups.sum(axis=1).argmax(axis=1)
    return Load(groups[np.arange(draws), :, busiest])


def _even(rows: int, experts: int, ep: int) -> Array:
    every = np.arange(experts, dtype=np.float64).reshape(experts // ep, ep)
    counts = rows // experts + (every < rows % experts)
    return np.asarray(counts[:, :1].T, dtype=np.float64)


def _drawn(tokens: int, top_k: int, experts: int, exponent: float, draws: int) -> Array:
    """Whole rows per expert, shape (draws, experts), each draw of tokens * top_k rows."""
    rows = tokens * top_k
    low, high = (1.0, max(tokens * _MOST_POPULAR, 1.0)) if rows > experts else _FEW_ROWS
    uniform = np.random.default_rng(0).random((draws, experts))
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        popular = low * (high / low) ** uniform
    else:
        popular = ((high**power - low**power) * uniform + low**power) ** (1 / power)
    wanted = np.minimum(np.round(popular / popular.sum(axis=1, keepdims=True) * rows), tokens)
    filled = np.floor(_level(wanted, rows))
    rest = (rows - filled.sum(axis=1)).astype(np.int64)
    # What rounding left goes to the emptiest experts, what it took too much comes from the fullest.
    rank = filled.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    more = rank < rest[:, None]
    less = (experts - 1 - rank) < -rest[:, None]
    return np.asarray(filled + more - less, dtype=np.float64)


def _level(wanted: Array, rows: int) -> Array:
    """Raise the emptiest experts to one level, so that a draw that gave away too few rows gives all."""
    missing = wanted.sum(axis=1) < rows
    low = np.zeros((len(wanted), 1))
    high = wanted.max(axis=1, keepdims=True)
    for _ in range(48):
        middle = (low + high) / 2
        enough = np.maximum(wanted, middle).sum(axis=1, keepdims=True) >= rows
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(missing[:, None], np.maximum(wanted, low), wanted)
