"""One attention call as numbers, checked: what every part of the attention predictor passes along."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.errors import InputError
from tracelens.gemm.dtypes import bytes_per_element


# What one attention call has to do, and what a kernel does in blocks: pure counting.
# Query row r sees the keys from r + s_k - s_q - window to r + s_k - s_q (+ window where not causal): the
# bottom-right alignment of flash_attn from 2.1 on. With s_q = s_k it is torch's ``is_causal`` too.
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


_DTYPES = ("bf16", "fp16", "fp32", "fp8")
#: Longer sequences than anyone trains on; keeps counting fast.
_LONGEST = 1 << 24
_MOST = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProblem:
    """One attention call: its sizes, its mask, its element type and its direction.

    ``direction`` is "forward" or "backward". ``causal`` aligns the mask at the bottom right where lengths
    differ. ``window``: how many earlier keys (later ones too without ``causal``) a query sees, None = all.
    ``value_dim``: of values narrower than ``head_dim``, as latent attention has them.
    Raises ``InputError`` that names what is wrong.
    """

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    causal: bool
    direction: str
    dtype: str = "bf16"
    window: int | None = None
    value_dim: int | None = None

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("batch", "heads", "kv_heads", "head_dim")}
        lengths = {"seq_q": self.seq_q, "seq_k": self.seq_k}
        for name, value in (sizes | lengths).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"attention {name} must be a whole number from 1 on, not {value!r}")
            if value > (_LONGEST if name in lengths else _MOST):
                raise InputError(f"attention {name} of {value} is beyond what can be predicted")
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} attention heads do not divide into {self.kv_heads} KV heads")
        if self.direction not in ("forward", "backward"):
            raise InputError(f'attention direction is "forward" or "backward", not {self.direction!r}')
        if self.dtype not in _DTYPES:
            raise InputError(f"attention dtype {self.dtype!r} is none of {', '.join(_DTYPES)}")
        window = self.window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 0):
            raise InputError(f"attention window must be None or a whole number from 0 on, not {window!r}")
        if window is not None and window >= max(self.seq_q, self.seq_k):
            object.__setattr__(self, "window", None)  # it leaves nothing out
        value = self.value_dim
        if value is not None and not (
            isinstance(value, int) and not isinstance(value, bool) and 0 < value <= self.head_dim
        ):
            raise InputError(
                f"attention value_dim must be a whole number from 1 to {self.head_dim}, not {value!r}"
            )
        if value == self.head_dim:
            object.__setattr__(self, "value_dim", None)

    @property
    def backward(self) -> bool:
        """Is it the gradient's call?"""
        return self.direction == "backward"

    @property
    def rows(self) -> int:
        """Queries of all heads: what the output has rows."""
        return self.batch * self.heads * self.seq_q

    @property
    def element_bytes(self) -> float:
        return bytes_per_element(self.dtype) or 2.0

    @property
    def useful_flops(self) -> int:
        """Operations on scores that are not masked: two products forward, five backward.

        One of the two, and two of the five, are as wide as the values.
        """
        pairs = visible_pairs(self.seq_q, self.seq_k, causal=self.causal, window=self.window)
        value = self.value_dim or self.head_dim
        width = 6 * self.head_dim + 4 * value if self.backward else 2 * self.head_dim + 2 * value
        return self.batch * self.heads * pairs * width

    @property
    def bytes_moved(self) -> float:
        """Each tensor once: q, k, v and out; backward those, grad_out and the three gradients."""
        width = self.head_dim + (self.value_dim or self.head_dim)  # q and out, k and v
        moved = width * (self.rows + self.batch * self.kv_heads * self.seq_k)
        return self.element_bytes * (2 * moved if self.backward else moved)
