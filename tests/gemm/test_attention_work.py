"""Counting of masked scores and of the blocks a kernel visits, against counting one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracelens.gemm.predict.attention_call import blocks, visible_pairs

LENGTH = st.integers(1, 30)
WINDOW = st.none() | st.integers(0, 40)


def sees(query: int, key: int, shift: int, causal: bool, window: int | None) -> bool:
    here = query + shift
    if causal and key > here:
        return False
    return window is None or (here - window <= key and (causal or key <= here + window))


@given(LENGTH, LENGTH, st.booleans(), WINDOW)
def test_visible_pairs(seq_q: int, seq_k: int, causal: bool, window: int | None) -> None:
    counted = sum(
        sees(query, key, seq_k - seq_q, causal, window) for query in range(seq_q) for key in range(seq_k)
    )
    assert visible_pairs(seq_q, seq_k, causal=causal, window=window) == counted


@given(LENGTH, LENGTH, st.booleans(), WINDOW, st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_blocks_are_those_with_a_score_that_is_seen(
    seq_q: int, seq_k: int, causal: bool, window: int | None, block_q: int, block_k: int, backward: bool
) -> None:
    cut = blocks(
        seq_q, seq_k, causal=causal, window=window, block_q=block_q, block_k=block_k, backward=backward
    )
    loops = [
        sum(
            any(
                sees(query, key, seq_k - seq_q, causal, window)
                for query in range(top, min(top + block_q, seq_q))
                for key in range(left, min(left + block_k, seq_k))
            )
            for (top, left) in ([(i, own) for i in range(0, seq_q, block_q)] if backward else
                                [(own, j) for j in range(0, seq_k, block_k)])
        )
        for own in (range(0, seq_k, block_k) if backward else range(0, seq_q, block_q))
    ]  # fmt: skip
    assert (cut.tiles, cut.total, cut.longest) == (len(loops), sum(loops), max(loops))
