"""One attention call as numbers, checked: what every part of the attention predictor passes along."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.errors import InputError
from tracelens.gemm.dtypes import bytes_per_element
from tracelens.gemm.predict.attention_work import visible_pairs

_DTYPES = ("bf16", "fp16", "fp32", "fp8")
#: Longer sequences than anyone trains on; keeps counting fast.
_LONGEST = 1 << 24
_MOST = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProblem:
    """One attention call: its sizes, its mask, its element type and its direction.

    ``direction`` is "forward" or "backward". ``causal`` aligns the mask at the bottom right where lengths
    differ. ``window``: how many earlier keys (later ones too without ``causal``) a query sees, None = all.
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
        """Operations on scores that are not masked: two products forward, five backward."""
        pairs = visible_pairs(self.seq_q, self.seq_k, causal=self.causal, window=self.window)
        return self.batch * self.heads * pairs * self.head_dim * (10 if self.backward else 4)

    @property
    def bytes_moved(self) -> float:
        """Each tensor once: q, k, v and out; backward those, grad_out and the three gradients."""
        q = self.rows * self.head_dim
        kv = self.batch * self.kv_heads * self.seq_k * self.head_dim
        return self.element_bytes * (4 * q + 4 * kv if self.backward else 2 * q + 2 * kv)
