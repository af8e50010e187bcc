"""The shapes a model is called with: of the first call in the window, of the outermost module called."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tracelens.capture.modules import Spot

_MOST = 32  # tensors listed per model


class Batch:
    """Hooks on every eager module of a model; the first call is the outermost, and takes all of them away."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []
        self._handles: dict[int, list[Any]] = {}

    def watch(self, model: int, spots: Iterable[Spot]) -> None:
        self._handles[model] = [
            spot.module.register_forward_pre_hook(self._called(model, spot.name), with_kwargs=True)
            for spot in spots
            if spot.how == "hook"
        ]

    def _called(self, model: int, name: str) -> Any:
        def before(module: Any, args: Any, kwargs: Any) -> None:
            if torch.compiler.is_compiling() or model not in self._handles:
                return
            for handle in self._handles.pop(model):
                handle.remove()
            tensors = [
                entry for key, value in [*enumerate(args), *kwargs.items()] for entry in _tensors(key, value)
            ]
            self._found += [{"module": name, **entry} for entry in tensors[:_MOST]]

        return before

    def remove(self) -> None:
        while self._handles:
            for handle in self._handles.popitem()[1]:
                handle.remove()

    def shapes(self) -> list[dict[str, Any]]:
        """One row per tensor argument: module, argument, shape, dtype."""
        return list(self._found)


def _tensors(key: Any, value: Any, depth: int = 0) -> Iterable[dict[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield {
            "argument": str(key),
            "shape": [int(size) for size in value.shape],
            "dtype": str(value.dtype).removeprefix("torch."),
        }
    elif depth < 4 and isinstance(value, (dict, list, tuple)):
        for inner, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(f"{key}.{inner}", item, depth + 1)
