"""What one attention call has to do, and what a kernel does in blocks: pure counting.

Query row r sees the keys from r + s_k - s_q - window to r + s_k - s_q (+ window where not causal): the
bottom-right alignment of flash_attn from 2.1 on. With s_q = s_k it is torch's ``is_causal`` too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeadBlocks:
    """How a kernel cuts one head: ``tiles`` run in parallel, each loops over its ``blocks``."""

    tiles: int  # thread blocks of one head
    total: int  # blocks of all tiles together
    longest: int  # blocks of the tile with most

    @property
    def equal(self) -> bool:
        """All tiles are as long as the longest."""
        return self.total == self.tiles * self.longest


def visible_pairs(seq_q: int, seq_k: int, *, causal: bool, window: int | None) -> int:
    """Pairs of a query and a key that it sees, in one head: the scores that mean something.

    >>> visible_pairs(4, 4, causal=False, window=None), visible_pairs(4, 4, causal=True, window=None)
    (16, 10)
    >>> visible_pairs(4, 6, causal=True, window=1)  # each sees itself and the one before
    8
    """
    shift = seq_k - seq_q
    ahead = _ahead(causal, window)
    last = seq_q * seq_k if ahead is None else _clipped_sum(seq_q, shift + ahead + 1, seq_k)
    first = 0 if window is None else _clipped_sum(seq_q, shift - window, seq_k)
    return last - first


def blocks(
    seq_q: int, seq_k: int, *, causal: bool, window: int | None, block_q: int, block_k: int, backward: bool
) -> HeadBlocks:
    """Blocks that a kernel visits in one head. It skips those that are masked whole, and only those.

    Forward, a tile is ``block_q`` queries and loops over keys; backward, a tile is ``block_k`` keys and
    loops over queries (FlashAttention-2, arXiv 2307.08691, section 3.2).

    >>> blocks(512, 512, causal=True, window=None, block_q=128, block_k=128, backward=False)
    HeadBlocks(tiles=4, total=10, longest=4)
    >>> blocks(512, 512, causal=False, window=None, block_q=128, block_k=64, backward=True)
    HeadBlocks(tiles=8, total=32, longest=4)
    """
    ahead = _ahead(causal, window)
    if backward:
        return _spans(seq_k, seq_q, block_k, block_q, shift=seq_q - seq_k, back=ahead, ahead=window)
    return _spans(seq_q, seq_k, block_q, block_k, shift=seq_k - seq_q, back=window, ahead=ahead)


def _ahead(causal: bool, window: int | None) -> int | None:
    """How many later keys a query sees; None = all."""
    return 0 if causal else window


def _spans(
    own: int, other: int, own_block: int, other_block: int, *, shift: int, back: int | None, ahead: int | None
) -> HeadBlocks:
    tiles = -(-own // own_block)
    if back is None and ahead is None:
        each = -(-other // other_block)
        return HeadBlocks(tiles, tiles * each, each)
    total = longest = 0
    for start in range(0, own, own_block):
        end = min(start + own_block, own)
        low = 0 if back is None else max(0, start + shift - back)
        high = other if ahead is None else min(other, end + shift + ahead)
        count = -(-high // other_block) - low // other_block if high > low else 0
        total += count
        longest = max(longest, count)
    return HeadBlocks(tiles, total, longest)


def _clipped_sum(count: int, offset: int, cap: int) -> int:
    """Sum over r = 0..count-1 of r + offset, cut to 0..cap."""
    rising_from = min(max(-offset, 0), count)
    capped_from = min(max(cap - offset, rising_from), count)
    rising = capped_from - rising_from
    first = rising_from + offset
    return rising * first + rising * (rising - 1) // 2 + (count - capped_from) * cap
