"""Watches optimizers, gradient scaler and autograd engine, and nothing inside them changes.

Outside the window a training step costs one Python call per optimizer step and per backward pass.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim import optimizer as torch_optimizer


class Listener(Protocol):
    """What is told. Its methods must not raise."""

    def backward_begins(self) -> None: ...

    def backward_ends(self, counts: bool) -> None: ...

    def optimizer_stepped(self, optimizer: Any, skipped: bool) -> None: ...


class Events:
    """Installs the watchers; ``remove`` takes them away again."""

    def __init__(self, listener: Listener):
        self._listener: Listener | None = listener
        self._undo: list[Callable[[], None]] = []
        self._stepped: Any = None  # the optimizer that stepped last: did the scaler skip?

    def install(self) -> None:
        handle = torch_optimizer.register_optimizer_step_post_hook(self._after_optimizer)
        self._undo.append(lambda: None if _optimizer_is_compiled() else handle.remove())
        for owner in (torch.autograd.graph, torch.autograd):
            self._replace(owner, "_engine_run_backward", self._engine)
        self._replace(torch.amp.GradScaler, "step", self._scaler)

    def remove(self) -> None:
        """Idempotent. What cannot be removed without a recompilation stays and does nothing."""
        self._listener = None
        while self._undo:
            self._undo.pop()()

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # traced into a compiled optimizer this is nothing: no graph break
        if torch.compiler.is_compiling():
            return
        self._stepped = optimizer
        if self._listener is not None:
            self._listener.optimizer_stepped(optimizer, False)

    def _engine(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            listener = self._listener
            if listener is None:
                return original(*args, **kwargs)
            listener.backward_begins()
            try:
                return original(*args, **kwargs)
            finally:
                listener.backward_ends(bool(kwargs.get("accumulate_grad")))

        return run_backward

    def _scaler(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """GradScaler.step does not call the optimizer when a gradient is not finite."""

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._stepped = None
            result = original(scaler, optimizer, *args, **kwargs)
            if self._listener is not None and self._stepped is None:
                self._listener.optimizer_stepped(optimizer, True)
            return result

        return step

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        mine = wrap(original)
        setattr(owner, name, mine)

        def restore() -> None:
            if getattr(owner, name, None) is mine:  # somebody wrapped ours: it stays, and does nothing
                setattr(owner, name, original)

        self._undo.append(restore)


def _optimizer_is_compiled() -> bool:
    """Has Dynamo compiled an optimizer step? Its guards hold the hooks, so removing one recompiles it."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    seen = getattr(getattr(frames, "input_codes", None), "seen", ())
    return any(
        code is not None and code.co_filename == torch_optimizer.__file__
        for code in (reference() for reference in tuple(seen))
    )
