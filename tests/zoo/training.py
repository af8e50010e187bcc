"""Training steps of a model on the meta device, spelled in the operators that CUDA would run."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from tests.zoo.capture import Capture
from tests.zoo.families import Batch

Optimizer = Literal["fused", "foreach"]


class Training:
    """A loop as users write it; torch.optim refuses meta tensors, so its operators are called here."""

    def __init__(
        self,
        model: nn.Module,
        batch: Batch,
        capture: Capture,
        *,
        optimizer: Optimizer,
        clip: bool,
        accumulate: int,
    ) -> None:
        self.model, self.batch, self.capture = model, batch, capture
        self.optimizer, self.clip, self.accumulate = optimizer, clip, accumulate
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.moments = [[torch.empty_like(p) for p in self.parameters] for _ in range(2)]
        self.counts = [torch.zeros((), dtype=torch.float32, device="meta") for _ in self.parameters]

    def step(self) -> None:
        note = self.capture
        with note.phase("optimizer", "optimizer"), note.frame("torch/optim/optimizer.py(1023): zero_grad"):
            self.model.zero_grad(set_to_none=True)
        for _ in range(self.accumulate):
            with note.phase("other", "memory"):
                batch = {name: tensor.to("meta") for name, tensor in self.batch.items()}
            with note.phase("forward"):
                loss: Tensor = self.model(**batch)
            if self.accumulate > 1:
                with note.phase("forward", "loss"):
                    loss = loss / self.accumulate
            with note.phase("backward", "loss"), note.frame("torch/_tensor.py(592): backward"):
                loss.backward()
        if self.clip:
            with (
                note.phase("optimizer", "grad_clip", lists=self.gradients),
                note.frame("torch/nn/utils/clip_grad.py(198): clip_grad_norm_"),
            ):
                self._clip()
        with (
            note.phase("optimizer", "optimizer", lists=self.gradients),
            note.frame("torch/optim/optimizer.py(508): wrapper"),
            record_function("Optimizer.step#AdamW.step"),
            torch.no_grad(),
        ):
            self._adamw()

    @property
    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    @torch.no_grad()
    def _clip(self) -> None:
        """torch.nn.utils.clip_grad_norm_(foreach=True)."""
        gradients = self.gradients
        norms = torch._foreach_norm(gradients, 2.0)
        total = torch.linalg.vector_norm(torch.stack(list(norms)), 2.0)
        factor = torch.clamp(1.0 / (total + 1e-6), max=1.0)
        torch._foreach_mul_(gradients, factor)

    def _adamw(self) -> None:
        """AdamW as torch.optim runs it with fused=True or foreach=True."""
        gradients, (first, second) = self.gradients, self.moments
        values = [p.detach() for p in self.parameters]
        with self.capture.phase("optimizer", "optimizer", lists=self.counts):
            torch._foreach_add_(self.counts, 1)
        if self.optimizer == "fused":
            torch._fused_adamw_(
                values, gradients, first, second, [], self.counts, lr=1e-3, beta1=0.9, beta2=0.95,
                weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
            return
        torch._foreach_mul_(values, 1 - 1e-4)
        torch._foreach_lerp_(first, gradients, 0.1)
        torch._foreach_mul_(second, 0.95)
        torch._foreach_addcmul_(second, gradients, gradients, 0.05)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, [0.5] * len(root))
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_(values, first, root, [-1e-3] * len(root))
