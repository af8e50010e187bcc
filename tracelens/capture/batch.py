"""The shapes a model is called with: of the first call in the window, of the outermost module called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tracelens.capture.modules import Spot

_MOST = 32  # tensors listed per model


class Batch:
    """Told of the calls of modules until each model had its first one, that of its outermost module."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []
        self.waiting: dict[
            str, int
        ] = {}  # the names of modules -> their model; empty when all had their call

    def watch(self, model: int, spots: Iterable[Spot]) -> None:
        self.waiting.update((spot.name, model) for spot in spots)

    def called(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """The module of that name is called. Never raises: the call goes on."""
        model = self.waiting.get(name)
        if model is None:
            return
        self.waiting = {other: its for other, its in self.waiting.items() if its != model}
        with contextlib.suppress(Exception):
            tensors = [
                entry for key, value in [*enumerate(args), *kwargs.items()] for entry in _tensors(key, value)
            ]
            self._found += [{"module": name, **entry} for entry in tensors[:_MOST]]

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
