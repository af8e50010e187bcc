"""From the last hidden states to the loss: at once, by chunks of tokens, or fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.zoo.blocks import cross_entropy
from tests.zoo.parts import call, part

CHUNKS = 4


def plain(x: Tensor, head: nn.Linear, target: Tensor) -> Tensor:
    with part("logits"):
        logits = head(x)
    return cross_entropy(logits, target)


def _chunk(x: Tensor, head: nn.Linear, target: Tensor) -> Tensor:
    with part("logits"):
        logits = head(x)
    with part("loss"):
        return F.cross_entropy(logits.float(), target, reduction="sum")


def _pieces(x: Tensor) -> tuple[Tensor, ...]:
    """Tokens by chunks; their gradients are put together again by a copy that no word fits well."""
    with part("loss", strict=False):
        return x.reshape(-1, x.shape[-1]).chunk(CHUNKS)


def chunked(x: Tensor, head: nn.Linear, target: Tensor) -> Tensor:
    """Logits and loss of a quarter of the tokens at a time, so that one chunk's logits are alive."""
    total: Tensor | None = None
    labels = target.reshape(-1)
    for piece, label in zip(_pieces(x), labels.chunk(CHUNKS), strict=True):
        loss = _chunk(piece, head, label)
        with part("loss"):
            total = loss if total is None else total + loss
    assert total is not None
    with part("loss"):
        return total / labels.numel()


def recomputed(x: Tensor, head: nn.Linear, target: Tensor) -> Tensor:
    """Chunks whose logits are computed again in the backward."""
    labels = target.reshape(-1)
    losses = [
        checkpoint(_chunk, piece, head, label, use_reentrant=False, preserve_rng_state=False)
        for piece, label in zip(_pieces(x), labels.chunk(CHUNKS), strict=True)
    ]
    with part("loss"):
        return torch.stack(losses).sum() / labels.numel()


class LigerFusedLinearCrossEntropyFunction(torch.autograd.Function):
    """Logits, loss and all gradients chunk by chunk in the forward; the backward only scales them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        with part("loss", strict=False):
            grad_x, grad_weight = torch.zeros_like(x), torch.zeros_like(weight)
            losses = torch.zeros(len(x), dtype=torch.float32, device=x.device)
        size = len(x) // CHUNKS
        for start in range(0, len(x), size):
            rows = slice(start, start + size)
            with part("logits"):
                logits = x[rows] @ weight.t()
            with part("loss"), call("liger_cross_entropy_kernel", logits, logits):
                gradient = torch.empty_like(logits)  # in place of the logits
            with part("logits", role="dgrad"):
                product = gradient @ weight
            with part("logits", strict=False):
                grad_x[rows] = product
            with part("logits", role="wgrad"):
                product = torch.mm(gradient.t(), x[rows])
            with part("logits", strict=False):
                grad_weight += product
        ctx.save_for_backward(grad_x, grad_weight)
        with part("loss"):
            return losses.sum() / len(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_x, grad_weight = ctx.saved_tensors
        for gradient in (grad_x, grad_weight):
            with part("loss", strict=False), call("element_mul_kernel", gradient, gradient):
                pass
        return grad_x, grad_weight, None


def liger(x: Tensor, head: nn.Linear, target: Tensor) -> Tensor:
    """Fused linear cross-entropy."""
    rows = x.reshape(-1, x.shape[-1])
    with part("loss"):
        loss: Tensor = LigerFusedLinearCrossEntropyFunction.apply(rows, head.weight, target.reshape(-1))  # type: ignore[no-untyped-call]
    return loss


LOSSES: dict[str, Callable[[Tensor, nn.Linear, Tensor], Tensor]] = {
    "plain": plain,
    "chunked": chunked,
    "recomputed": recomputed,
    "liger": liger,
}
