"""Times of fused attention, forward and backward, one backend at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tracelens.hardware.measurements import AttentionMeasurement
from tracelens.measure.calls import Kind, Prepared, measure_each
from tracelens.measure.cases import AttentionCase, CannotMeasure, CaseOutcome, MeasureOptions
from tracelens.measure.devices import context_lost
from tracelens.measure.kernels import CallKernels
from tracelens.measure.operands import TORCH_DTYPES, Pools, refuse_unless, relative_error
from tracelens.measure.timing import Device, Timing

#: The names of cases -> torch's.
SDP = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
#: Probabilities are rounded to the operands' type before they meet the values.
_TOLERANCE = {"bf16": 2e-2, "fp16": 5e-3, "fp32": 2e-3}
_SAMPLED_ROWS = 6


@dataclass(frozen=True, slots=True)
class _Set:
    """Query, key and value as [batch, sequence, heads, head_dim], the output, and its gradient."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor | None
    grad: torch.Tensor | None


def measure_attention(
    cases: Iterable[AttentionCase],
    *,
    device: Device,
    options: MeasureOptions | None = None,
    progress: Callable[[CaseOutcome], None] | None = None,
) -> Iterator[AttentionMeasurement]:
    """Time each case and record its kernels, as ``measure_gemms`` does for products.

    A time holds every kernel of the call: the small ones before and after the fused one too. What a
    backend does not support is told to ``progress`` with the reason.
    """
    return measure_each(cases, _KIND, device=device, options=options, progress=progress)


def prepare_attention(case: AttentionCase, *, device: Device, pools: Pools, sets: int) -> Prepared:
    """Lay out at most ``sets`` sets of operands, and run the forward of a backward."""
    _refuse(case)
    q_shape = (case.batch, case.seq_q, case.heads, case.head_dim)
    k_shape = (case.batch, case.keys, case.key_heads, case.head_dim)
    sizes = (math.prod(q_shape), math.prod(k_shape), math.prod(k_shape), math.prod(q_shape))
    pools.reserve(("in", case.dtype, sizes))
    count = pools.rotation(sum(sizes) * TORCH_DTYPES[case.dtype].itemsize, most=sets)
    backward = case.direction == "backward"

    def operands() -> _Set:
        q, k, v, grad = (pools.take("in", case.dtype, one) for one in (q_shape, k_shape, k_shape, q_shape))
        if not backward:
            return _Set(q, k, v, None, None)
        # A leaf of its own on the pool's memory.
        q, k, v = (one.detach().requires_grad_() for one in (q, k, v))
        return _Set(q, k, v, _attend(case, q, k, v), grad.transpose(1, 2))

    ready = [operands() for _ in range(count)]

    def call(index: int) -> None:
        one = ready[index % count]
        if one.out is None:
            with torch.no_grad():
                _attend(case, one.q, one.k, one.v)
        else:
            torch.autograd.grad(one.out, (one.q, one.k, one.v), one.grad, retain_graph=True)

    return Prepared(call, lambda: _error(case, ready[0]))


def _attend(case: AttentionCase, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        is_causal=case.causal,
        enable_gqa=case.key_heads != case.heads,
    )


def _refuse(case: AttentionCase) -> None:
    sizes = (case.batch, case.heads, case.key_heads, case.seq_q, case.keys, case.head_dim)
    refuse_unless(min(sizes) >= 1, "a size below 1")
    refuse_unless(case.dtype in _TOLERANCE, f"attention is not measured in {case.dtype}")
    refuse_unless(case.direction in ("forward", "backward"), f"unknown direction {case.direction}")
    refuse_unless(case.heads % case.key_heads == 0, "heads are no multiple of key-value heads")
    refuse_unless(
        not case.causal or case.seq_q == case.keys, "backends disagree on a causal mask over unequal lengths"
    )


def _error(case: AttentionCase, one: _Set) -> float:
    """The error of some query rows of the last head: of the output, or of the gradient of query.

    Gradients of key and value sum over all queries; of those only NaN is looked for.
    """
    rows = sorted({round(at * (case.seq_q - 1) / (_SAMPLED_ROWS - 1)) for at in range(_SAMPLED_ROWS)})
    kept = torch.tensor(rows, device=one.q.device)
    q = one.q.detach()[-1, kept, -1].double().requires_grad_()
    k, v = one.k.detach()[-1, :, -1].double(), one.v.detach()[-1, :, -1].double()
    scores = q @ k.T / math.sqrt(case.head_dim)
    if case.causal:
        hidden = torch.arange(case.keys, device=kept.device)[None, :] > kept[:, None]
        scores = scores.masked_fill(hidden, -math.inf)
    wanted = scores.softmax(-1) @ v
    if one.out is None or one.grad is None:
        with torch.no_grad():
            found = (_attend(case, one.q, one.k, one.v),)
        return _checked(found, found[0][-1, -1, kept], wanted.detach())
    (wanted_grad,) = torch.autograd.grad(wanted, q, one.grad[-1, -1, kept].double())
    grads = torch.autograd.grad(one.out, (one.q, one.k, one.v), one.grad, retain_graph=True)
    return _checked(grads, grads[0][-1, kept, -1], wanted_grad)


def _checked(all_found: tuple[torch.Tensor, ...], found: torch.Tensor, wanted: torch.Tensor) -> float:
    if any(bool(one.sum(dtype=torch.float32).isnan()) for one in all_found):
        return float("nan")
    return relative_error(found, wanted)


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Allow one backend only; the reasons torch warns of end up in the error."""
    refuse_unless(name in SDP, f"unknown backend {name}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(SDP[name]):
                yield
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError) or context_lost(error):
                raise
            raise CannotMeasure(_reason(name, [str(one.message) for one in said], error)) from error


def _reason(name: str, warned: list[str], error: RuntimeError) -> str:
    # torch warns about each backend that was not chosen; the one that was forbidden says "disabled".
    reasons = [text for text in warned if "disabled" not in text and "not used because" not in text]
    text = (reasons[0] if reasons else str(error)).splitlines()[0].split(" (Triggered internally")[0]
    return f"{name}: {text[:160]}"


def _row(case: AttentionCase, timing: Timing, launched: CallKernels) -> AttentionMeasurement:
    return AttentionMeasurement(
        case.sweep, case.batch, case.heads, case.key_heads, case.seq_q, case.keys, case.head_dim, case.dtype,
        case.causal, case.direction, case.backend, timing.time_us, timing.spread_frac, launched.names,
    )  # fmt: skip


_KIND = Kind("attention", prepare_attention, lambda case: backend(case.backend), _TOLERANCE, _row)
