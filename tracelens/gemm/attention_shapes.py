"""From one fused-attention operator to its shape.

The argument positions are those of the operators' schemas: torch 2.13 native_functions.yaml for aten,
and for the flash-attn libraries what their operators wrote into public traces (flash_attn_3) and their
Python signatures (flash_attn 2.7). torch's ``_scaled_dot_product_*`` take [batch, heads, length, dim];
``_flash_attention_*``, ``_efficient_attention_*`` and the flash-attn libraries take
[batch, length, heads, dim], or [tokens, heads, dim] with cumulative lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracelens.gemm.dtypes import dtype_of_cpp
from tracelens.gemm.tensors import dims_at, item_at, number_at, strides_at, truth_at
from tracelens.results.row_sizes import AttentionDims, AttentionMask


def _sum(first: int, last: int) -> int:
    """Of all whole numbers from ``first`` to ``last``; 0 where there are none."""
    return (first + last) * (last - first + 1) // 2 if last >= first else 0


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One fused attention call. None = not known.

    Packed sequences (``varlen``) put unequal lengths behind one another; their lengths live on the GPU
    and are in no trace, so ``batch``, ``query_len`` and ``key_len`` are None and ``query_tokens`` /
    ``key_tokens`` hold the totals; of keys in the pages of a cache, that is not known either.
    """

    batch: int | None
    heads: int
    kv_heads: int
    query_len: int | None
    key_len: int | None
    head_dim: int
    value_dim: int
    dtype: str | None
    causal: bool | None
    backward: bool
    varlen: bool = False
    window: tuple[int, int] | None = None  # sliding: earlier and later keys that a query sees; not if packed
    mask: AttentionMask | None = None  # a tensor that is added to the scores
    query_tokens: int | None = None
    key_tokens: int | None = None

    @property
    def dims(self) -> AttentionDims:
        """The sizes alone, as a report has them."""
        return AttentionDims(
            self.batch, self.heads, self.kv_heads, self.query_len, self.key_len, self.head_dim,
            self.value_dim if self.value_dim != self.head_dim else None, self.query_tokens,
            self.key_tokens if self.key_tokens != self.query_tokens else None,
            self.window[0] if self.window is not None else None, self.mask,
        )  # fmt: skip

    def describe(self) -> str:
        """One short line for a table.

        >>> AttentionShape(8, 12, 12, 1024, 1024, 64, 64, "bf16", True, False).describe()
        'b=8 h=12 s=1024 d=64'
        >>> AttentionShape(None, 6, 2, None, None, 128, 128, "bf16", True, False, varlen=True,
        ...     query_tokens=32768, key_tokens=32768).describe()
        'packed tokens=32768 h=6 kv=2 d=128'
        """
        if self.varlen:
            tokens = f"{self.query_tokens}"
            if self.key_tokens not in (None, self.query_tokens):
                tokens += f"/{self.key_tokens}"
            parts = [f"packed tokens={tokens}", f"h={self.heads}"]
        elif self.query_len == self.key_len:
            parts = [f"b={self.batch}", f"h={self.heads}", f"s={self.query_len}"]
        else:
            parts = [f"b={self.batch}", f"h={self.heads}", f"sq={self.query_len}", f"sk={self.key_len}"]
        if self.varlen or self.kv_heads != self.heads:
            parts.insert(2, f"kv={self.kv_heads}")
        parts.append(f"d={self.head_dim}")
        if self.value_dim != self.head_dim:
            parts.append(f"dv={self.value_dim}")
        if self.window is not None:
            parts.append(f"window={self.window[0]}")
        if self.mask is not None:
            parts.append(self.mask)
        return " ".join(parts)

    @property
    def pairs(self) -> int | None:
        """Scores of one head: queries times keys, or those inside the window; None where lengths are packed.

        Without a window a causal mask is not counted, as torch counts; a window that ends at the query is.
        Lengths that differ are aligned at their ends, as flash_attn does.
        """
        if self.query_len is None or self.key_len is None:
            return None
        if self.window is None:
            return self.query_len * self.key_len
        earlier, later = self.window
        last = self.key_len - 1
        first = max(self.key_len - self.query_len, -later)  # earlier queries see no key
        ends = _sum(first + later, last) + max(0, min(later, last - first + 1)) * last
        begins = _sum(max(0, first - earlier), last - earlier)
        return ends - begins + last - first + 1


@dataclass(frozen=True, slots=True)
class _Schema:
    query: int = 0  # position of q; k and v follow
    heads_first: bool = False  # [B, H, S, D] instead of [B, S, H, D]
    backward: bool = False
    causal: int | None = None  # position of is_causal in Concrete Inputs
    causal_kind: int | None = None  # position of custom_mask_type: 0 none, 1 and 2 causal
    window: int | None = None  # position of window_size_left; window_size_right follows
    mask: int | None = None  # position of attn_mask, attn_bias
    lengths: int | None = None  # position of cumulative lengths that pack [1, tokens, heads, dim]


_BHSD = {
    "aten::scaled_dot_product_attention": _Schema(causal=5, heads_first=True, mask=3),
    "aten::_scaled_dot_product_flash_attention": _Schema(causal=4, heads_first=True),
    "aten::_scaled_dot_product_flash_attention_backward": _Schema(1, True, True, 11),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Schema(causal=4, heads_first=True, mask=5),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Schema(1, True, True, 7, mask=8),
    "aten::_scaled_dot_product_efficient_attention": _Schema(causal=6, heads_first=True, mask=3),
    "aten::_scaled_dot_product_efficient_attention_backward": _Schema(1, True, True, 11, mask=4),
    "aten::_scaled_dot_product_cudnn_attention": _Schema(causal=6, heads_first=True, mask=3),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Schema(1, True, True, 14, mask=8),
    "aten::_scaled_dot_product_fused_attention_overrideable": _Schema(causal=5, heads_first=True, mask=3),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _Schema(1, True, True, 13, mask=4),
    "aten::_cudnn_attention_forward": _Schema(causal=10, heads_first=True, mask=3),
    "aten::_cudnn_attention_backward": _Schema(1, True, True, 14, mask=8),
}
_BSHD = {
    "aten::_flash_attention_forward": _Schema(causal=8, window=11),
    "aten::_flash_attention_forward_no_dropout_inplace": _Schema(1, causal=9, window=12),
    "aten::_flash_attention_backward": _Schema(1, backward=True, causal=11, window=15),
    "aten::_efficient_attention_forward": _Schema(causal_kind=9, lengths=4, mask=3),
    "aten::_efficient_attention_backward": _Schema(1, backward=True, causal_kind=14, lengths=6, mask=4),
    "flash_attn::_flash_attn_forward": _Schema(causal=5, window=6),
    "flash_attn::_flash_attn_backward": _Schema(1, backward=True, causal=11, window=12),
    "flash_attn::_flash_attn_varlen_forward": _Schema(causal=9, window=10),
    "flash_attn::_flash_attn_varlen_backward": _Schema(1, backward=True, causal=15, window=16),
    # Positions read off public traces of modded-nanogpt (October 2025).
    "flash_attn_3::_flash_attn_forward": _Schema(causal=24, window=25),
    "flash_attn_3::fwd": _Schema(causal=24, window=25),
    # Keys and values are pages of a cache (vllm-project/flash-attention csrc/, hopper/flash_api.cpp).
    "_vllm_fa2_C::varlen_fwd": _Schema(causal=15, window=16),
    "_vllm_fa3_C::fwd": _Schema(causal=24, window=25),
    # Of the same library, around any kernel (vllm/model_executor/layers/attention/attention.py).
    "vllm::unified_attention_with_output": _Schema(),
    "flash_attn_3::_flash_attn_backward": _Schema(1, backward=True, causal=13, window=14),
    "flash_attn_3::bwd": _Schema(1, backward=True, causal=16, window=17),
}
_SCHEMAS = _BHSD | _BSHD

#: Operators that compute attention in one kernel, by name without overload. Some call one another
#: (``_scaled_dot_product_flash_attention`` calls ``_flash_attention_forward``): the innermost counts.
#: The functions are TransformerEngine's, whose backward is called with a gradient alone.
_FUNCTIONS = frozenset({"FusedAttnFunc", "FusedAttnFuncBackward"})
ATTENTION_OPS = frozenset(_SCHEMAS) - {"aten::scaled_dot_product_attention"} | _FUNCTIONS


def attention_shape(
    name: str, dims: Sequence[Any], types: Sequence[Any], concrete: Sequence[Any], strides: Sequence[Any] = ()
) -> AttentionShape | None:
    """Shape of one attention operator (``name`` without overload), or None when its dims do not fit."""
    if name == "FusedAttnFunc":
        return _fused_attn_func(dims, types, concrete)
    schema = _SCHEMAS.get(name)
    if schema is None:
        return None
    at = schema.query
    query, key, value = (dims_at(dims, at + offset) for offset in range(3))
    if query is None or key is None or value is None:
        return None
    paged = len(query) == 3 and len(key) == len(value) == 4  # [pages, tokens of one, heads, dim]
    if paged:
        key, value = key[1:], value[1:]
    if not len(query) == len(key) == len(value):
        return None
    if query[-1] != key[-1]:
        return None
    dtypes = {dtype_of_cpp(item_at(types, at + offset)) for offset in range(3)}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    causal = truth_at(concrete, schema.causal)
    if schema.causal_kind is not None:
        kind = number_at(concrete, schema.causal_kind)
        causal = None if kind is None else kind in (1, 2)
    rank = len(query)
    if rank == 3 and not schema.heads_first:
        heads, length = 1, 0
    elif rank == 4:
        heads, length = (1, 2) if schema.heads_first else (2, 1)
    else:
        return None
    if key[:-1] != value[:-1] or not _divides(query[heads], key[heads]):
        return None
    if rank == 4 and query[0] != key[0]:
        return None
    packed = rank == 3 or (schema.lengths is not None and dims_at(dims, schema.lengths) is not None)
    return AttentionShape(
        batch=None if packed else query[0],
        heads=query[heads],
        kv_heads=key[heads],
        query_len=None if packed else query[length],
        key_len=None if packed else key[length],
        head_dim=query[-1],
        value_dim=value[-1],
        dtype=dtype,
        causal=causal,
        backward=schema.backward,
        varlen=packed,
        window=None if packed else _window(concrete, schema.window, key[length], causal=bool(causal)),
        mask=_mask(dims, strides, schema.mask, query[heads]),
        query_tokens=query[length] if packed else None,
        key_tokens=key[length] if packed and not paged else None,
    )


def _fused_attn_func(
    dims: Sequence[Any], types: Sequence[Any], concrete: Sequence[Any]
) -> AttentionShape | None:
    """TransformerEngine's (pytorch/attention/dot_product_attention/backends.py).

    Its second and third argument, the greatest lengths of queries and keys, tell [S, B, H, D] from
    [B, S, H, D]; the mask's kind is a text, which is not recorded.
    """
    at = next((at for at in range(len(dims) - 2) if _rank(dims[at : at + 3]) == 4), None)
    lengths = number_at(concrete, 1), number_at(concrete, 2)
    if at is None or None in lengths:
        return None
    query, key, value = dims[at : at + 3]
    length = next((axis for axis in (0, 1) if (query[axis], key[axis]) == lengths), None)
    if length is None or query[-1] != key[-1] or query[1 - length] != key[1 - length]:
        return None
    if key[:-1] != value[:-1] or not _divides(query[2], key[2]):
        return None
    same = {dtype_of_cpp(item_at(types, at + offset)) for offset in range(3)}
    return AttentionShape(
        query[1 - length], query[2], key[2], query[length], key[length], query[-1], value[-1],
        same.pop() if len(same) == 1 else None, causal=None, backward=False,
    )  # fmt: skip


def _rank(tensors: Sequence[Any]) -> int | None:
    """That all of these have."""
    ranks = {len(t) for t in tensors if isinstance(t, list) and all(isinstance(size, int) for size in t)}
    return ranks.pop() if len(ranks) == 1 and all(isinstance(t, list) for t in tensors) else None


def _window(concrete: Sequence[Any], at: int | None, key_len: int, *, causal: bool) -> tuple[int, int] | None:
    """Earlier and later keys of a window narrower than the keys; -1 or nothing means no window."""
    if at is None:
        return None
    sides = [number_at(concrete, at), number_at(concrete, at + 1)]
    if not any(side is not None and 0 < side < key_len for side in sides):
        return None
    earlier, later = (key_len if side is None or side < 0 else min(side, key_len) for side in sides)
    return earlier, 0 if causal else later


def _mask(dims: Sequence[Any], strides: Sequence[Any], at: int | None, heads: int) -> AttentionMask | None:
    """Whether heads share the tensor that is added to the scores: its sizes are expanded to all heads."""
    found = dims_at(dims, at) if at is not None else None
    if found is None or at is None or len(found) < 2:
        return None
    if len(found) != 4 or found[1] == 1 or heads == 1:
        return "mask"
    steps = strides_at(strides, at, 4)
    if steps is None:
        return "mask?"
    return "bias" if steps[1] else "mask"


def _divides(heads: int, kv_heads: int) -> bool:
    return kv_heads > 0 and heads % kv_heads == 0
