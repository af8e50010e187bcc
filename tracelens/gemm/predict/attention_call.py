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
