"""What every matrix product of a step is, seen by its operands and not by its shapes.

A product with a weight as operand is that weight's forward or the gradient of its input; one without,
in the backward of such a part, is the weight's gradient. So sizes that happen to be equal mislead
nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.zoo.capture import Capture

_FIRST = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0}


@dataclass(frozen=True, slots=True)
class Product:
    """out[m,n] = a[m,k] @ b[k,n], ``batch`` times."""

    name: str
    component: str
    role: str | None
    m: int
    n: int
    k: int
    batch: int

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


class ProductLog(TorchDispatchMode):
    """Writes down every product that runs inside it."""

    def __init__(self, model: nn.Module, capture: Capture) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capture = capture
        self.products: list[Product] = []
        self._weights = {_storage(p) for p in model.parameters()}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in _FIRST:
            a, b = args[_FIRST[name] : _FIRST[name] + 2]
            batch = a.shape[0] if a.dim() == 3 else 1
            sizes = (a.shape[-2], b.shape[-1], a.shape[-1], batch)
            self.products.append(Product(name, self.capture.state.component, self._role(a, b), *sizes))
        return func(*args, **(kwargs or {}))

    def _role(self, a: Tensor, b: Tensor) -> str | None:
        state = self.capture.state
        if state.role:
            return state.role
        weight = _storage(a) in self._weights or _storage(b) in self._weights
        if state.phase in ("forward", "recompute"):
            return "forward" if weight else None
        if weight:
            return "dgrad"
        unweighted = ("attention.scores", "attention.values", "attention.rope")
        return None if state.component in unweighted else "wgrad"


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def products_of(model: nn.Module, capture: Capture, run: Callable[[], None]) -> list[Product]:
    """The products of ``run``, in the order in which they run."""
    log = ProductLog(model, capture)
    with log, torch.enable_grad():
        run()
    return log.products
