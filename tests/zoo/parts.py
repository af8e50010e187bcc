"""How model code says which component it is working on, without knowing who listens.

Each hook is a module-level function that a recorder replaces for the time of a recording (see
``listening``). Left alone they do nothing, so that a model runs and compiles as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

Hook = Callable[..., AbstractContextManager[Any]]


def _nothing(*_: object) -> AbstractContextManager[Any]:
    return nullcontext()


#: open_part(component, layer, role, strict): what the code inside computes.
open_part: Hook = _nothing
#: open_call(name, tensors): the code inside is what CUDA would run under the operator ``name``.
open_call: Hook = _nothing
#: open_collective(name, tensor, ranks): stands for a collective over ``tensor``; nothing runs inside.
open_collective: Hook = _nothing


def part(
    component: str, layer: int | None = None, *, role: str | None = None, strict: bool = True
) -> AbstractContextManager[Any]:
    """The code inside works on ``component`` (a word of tracelens.words) of decoder layer ``layer``.

    Parts nest; the innermost counts. ``role`` is said only where the phase does not tell it (a
    gradient computed inside the forward); ``strict`` is False where another word is as defensible.
    """
    return open_part(component, layer, role, strict)


def call(name: str, *tensors: Tensor) -> AbstractContextManager[Any]:
    """The code inside runs under operator ``name`` on CUDA, e.g. ``aten::scaled_dot_product_attention``."""
    return open_call(name, tensors)


def all_reduce(tensor: Tensor, ranks: int) -> Tensor:
    """The sum of ``tensor`` over tensor-parallel ranks: the same tensor here, a kernel in the trace."""
    with part("communication"), open_collective("allreduce", tensor, ranks):
        pass
    return tensor


class ReduceFromRegion(torch.autograd.Function):
    """All-reduce forward, identity backward: behind a row-parallel Linear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        return all_reduce(x, ranks).view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class CopyToRegion(torch.autograd.Function):
    """Identity forward, all-reduce backward: before a column-parallel Linear."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grads[0], ctx.ranks), None


@contextmanager
def listening(*, part: Hook, call: Hook, collective: Hook) -> Iterator[None]:
    """Replace the three hooks inside the block."""
    global open_part, open_call, open_collective
    before = open_part, open_call, open_collective
    open_part, open_call, open_collective = part, call, collective
    try:
        yield
    finally:
        open_part, open_call, open_collective = before
