"""What small tensors hold, where a batch says so: the meta device has shapes and no values.

The sides of pictures and the lengths of clips decide how models cut what they are given. A tensor that
``known`` made carries its values, and so does all that is made of such tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_HELD = "_held_values"
#: Larger ones are masks over all tokens: nothing is cut by them.
_LARGEST = 1 << 16
_MADE = ("arange", "zeros", "ones", "full", "tensor", "as_tensor", "linspace", "eye")
_FILLED = {"zeros_like": 0, "new_zeros": 0, "ones_like": 1, "new_ones": 1}
_IN_PLACE = ("__setitem__", "copy_", "fill_", "masked_fill_", "index_fill_", "scatter_", "index_put_")


def known(value: Tensor) -> Tensor:
    """A tensor of the meta device that carries ``value``."""
    return _carry(value.to("meta"), value)


def held(tensor: object) -> Tensor | None:
    """The values that a tensor carries."""
    return getattr(tensor, _HELD, None) if isinstance(tensor, Tensor) else None


def _carry(tensor: Tensor, value: Tensor) -> Tensor:
    setattr(tensor, _HELD, value)
    return tensor


class _Unknown(Exception):
    pass


class Values:
    """Follows values through the functions that a model calls, once it was seen to use a known one."""

    def __init__(self) -> None:
        self.used = False

    def asked(self, name: str, args: Any) -> Any:
        """What a function that reads values answers, or None."""
        value = held(args[0]) if args else None
        if value is None:
            return None
        self.used = True
        with _unseen():
            if name in ("item", "__bool__", "__int__", "__index__", "__float__", "tolist"):
                return getattr(value, name)()
            if name == "equal" and held(args[1]) is not None:
                return torch.equal(value, getattr(args[1], _HELD))
            return None

    def run(self, func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """``func`` on the meta device, its results with their values where they can be told."""
        self.used = self.used or any(held(t) is not None for t in _tensors((args, kwargs)))
        if not self.used:
            return _called(func, _counted(name, args), kwargs)
        values = _valued(func, name, args, kwargs)
        try:
            if name == "__iter__":  # an iterator could not be given values
                result = args[0].unbind(0)
            elif values is not None and name == "nonzero":
                result = _like(values)
            else:
                result = _called(func, _counted(name, args), kwargs)
        except (NotImplementedError, RuntimeError):  # how many there are is for the values to say
            if values is None:
                raise
            result = _like(values)
        if name in _FILLED and result.numel() <= _LARGEST:
            with _unseen():
                values = torch.full(result.shape, _FILLED[name], dtype=result.dtype)
        if name in _IN_PLACE and values is None and hasattr(args[0], _HELD):
            delattr(args[0], _HELD)
        _give(result, values)
        return iter(result) if name == "__iter__" else result


@contextmanager
def _unseen() -> Iterator[None]:
    """What is computed on the side is no part of the recording."""
    torch._C._autograd._enable_record_function(False)
    try:
        with torch.no_grad():
            yield
    finally:
        torch._C._autograd._enable_record_function(True)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def _on_cpu(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        value = held(tree)
        if value is None or value.numel() > _LARGEST:
            raise _Unknown
        return value
    if isinstance(tree, (list, tuple)) and not isinstance(tree, torch.Size):
        return type(tree)(_on_cpu(item) for item in tree)
    if isinstance(tree, dict):
        return {key: _on_cpu(item) for key, item in tree.items()}
    return torch.device("cpu") if isinstance(tree, torch.device) or tree == "meta" else tree


def _valued(func: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """The same on values, or None where one is not known."""
    if name not in _MADE and next(_tensors((args, kwargs)), None) is None:
        return None
    try:
        with _unseen():
            if name == "__iter__":
                return _on_cpu(args[0]).unbind(0)
            return func(*_on_cpu(args), **_on_cpu(kwargs))
    except Exception:  # no values: then the result is known by its shape alone
        return None


def _counted(name: str, args: Any) -> Any:
    """Positions in place of masks: as many as a known mask holds, all of one that is not known.

    A mask that something with a gradient is written by holds as many as that has rows.
    """
    written = name == "__setitem__" and isinstance(args[2], Tensor) and args[2].requires_grad
    if name != "__getitem__" and not written:
        return args
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not any(_is_mask(i) for i in index):
        return args
    places: list[Any] = []
    for i in index:
        if _is_mask(i):
            value = held(i)
            rows = args[2].shape[0] if written and args[2].dim() else i.numel()
            many = rows if value is None else int(value.sum())
            places += [torch.empty(many, dtype=torch.int64, device="meta") for _ in range(i.dim())]
        else:
            places.append(i)
    return (args[0], tuple(places), *args[2:])


def _is_mask(index: object) -> bool:
    return isinstance(index, Tensor) and index.dtype == torch.bool and index.dim() > 0


def _called(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if "item() cannot be called" not in str(error):
            raise
        return func(*_numbers(args), **_numbers(kwargs))


def _numbers(tree: Any) -> Any:
    """Sizes that come as tensors, as numbers."""
    if isinstance(tree, Tensor) and not tree.dim():
        value = held(tree)
        return 1 if value is None else value.item()
    if isinstance(tree, (list, tuple)):
        return type(tree)(_numbers(item) for item in tree)
    if isinstance(tree, dict):
        return {key: _numbers(item) for key, item in tree.items()}
    return tree


def _like(values: Any) -> Any:
    if isinstance(values, Tensor):
        return torch.empty(values.shape, dtype=values.dtype, device="meta")
    if isinstance(values, (list, tuple)):
        return tuple(_like(item) for item in values)
    return values


def _give(result: Any, values: Any) -> None:
    if isinstance(result, Tensor) and isinstance(values, Tensor) and result.shape == values.shape:
        if values.numel() <= _LARGEST:
            _carry(result, values)
    elif isinstance(result, (list, tuple)) and isinstance(values, (list, tuple)):
        for one, value in zip(result, values, strict=False):
            _give(one, value)
