"""The model's modules: found without touching a forward, named as their owner would, and called with what."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from tracelens.capture.compiled import Compiled

#: What wrappers add to a name: DDP, torch.compile, FSDP1, activation checkpointing.
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPING = (
    "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule",
    "CheckpointWrapper", "OffloadWrapper", "DeepSpeedEngine",
)  # fmt: skip


class Registry:
    """Remembers every module that gets a parameter or a child, from the import of torch on.

    Registration hooks see construction only. A global forward hook would see more, but Dynamo guards on it:
    it recompiles what is compiled and warns at every call.
    """

    def __init__(self) -> None:
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._handles: list[Any] = []

    def install(self) -> None:
        for register in (
            torch_module.register_module_parameter_registration_hook,
            torch_module.register_module_module_registration_hook,
        ):
            self._handles.append(register(self._saw))

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _saw(self, module: Any, name: str, value: Any) -> None:
        if not torch.compiler.is_compiling():
            self._seen.add(module)

    def roots(self) -> list[nn.Module]:
        """The modules in no other module, in the order of their construction where that is known.

        Copies and unpickled modules pass by the hooks; the garbage collector knows them.
        """
        found = {id(module): module for module in tuple(self._seen)}
        for thing in gc.get_objects():
            # not isinstance: it asks __class__, and lazy objects answer by loading themselves
            if issubclass(type(thing), nn.Module):
                found.setdefault(id(thing), thing)
        inner = {
            id(child)
            for module in found.values()
            for child in (module.__dict__.get("_modules") or {}).values()
            if child is not None
        }
        return [
            module
            for key, module in found.items()
            if key not in inner and "_modules" in module.__dict__ and "_parameters" in module.__dict__
        ]


class Spot:
    """A module and the name of its range."""

    __slots__ = ("how", "module", "name")

    def __init__(self, module: nn.Module, name: str, how: str):
        self.module, self.name = module, name
        self.how = how  # "hook", or "call": wrap the compiled call


class Model:
    """One root: its name before all dotted names, and its modules."""

    def __init__(self, root: nn.Module, prefix: str, trained: bool):
        self.root, self.prefix, self.trained = root, prefix, trained

    def named(self) -> Iterator[tuple[str, nn.Module]]:
        """(name, module) of every module once, parents first; the root has its class's name."""
        for path, module in self.root.named_modules():
            dotted = clean(path)
            if dotted:
                yield (f"{self.prefix}.{dotted}" if self.prefix else dotted), module
            else:
                yield self.prefix or root_name(module), module

    def spots(self, compiled: Compiled) -> list[Spot]:
        """Where ranges go. Nothing inside a compiled region: hooks there are guarded on and recompile."""
        names: dict[int, str] = {}
        for name, module in self.named():
            names.setdefault(id(module), name)
        found: list[Spot] = []
        seen: set[int] = set()

        def visit(module: nn.Module) -> None:
            if id(module) in seen:
                return
            seen.add(id(module))
            name = names[id(module)]
            if isinstance(module, torch.jit.ScriptModule):
                return
            verdict = compiled.verdict(module)
            if verdict == "call":
                found.append(Spot(module, name, "call"))
                return
            if _has_forward(module):
                found.append(Spot(module, name, "hook"))
            if verdict == "eager":
                for child in module.children():
                    visit(child)

        visit(self.root)
        return found


def find_models(roots: Iterable[nn.Module], trained: set[int]) -> list[Model]:
    """The roots that hold parameters, and losses. ``trained``: ids of the optimizers' parameters.

    The only trained root gives its modules their plain names; others are told apart by their class.
    """
    candidates = [
        (root, any(id(p) in trained for p in root.parameters()))
        for root in roots
        if _holds_parameters(root) or isinstance(root, nn.modules.loss._Loss)
    ]
    # a graph that the compiler made of a model is no model
    candidates = [
        (root, mine) for root, mine in candidates if mine or not isinstance(root, torch.fx.GraphModule)
    ]
    kept = [root for root, _ in candidates]
    is_trained = [mine for _, mine in candidates]
    with_parameters = [root for root in kept if _holds_parameters(root)]
    plain = with_parameters[0] if len(with_parameters) == 1 else None
    if sum(is_trained) == 1:
        plain = kept[is_trained.index(True)]
    taken: dict[str, int] = {}
    models = []
    for root, mine in zip(kept, is_trained, strict=True):
        prefix = ""
        if root is not plain:
            prefix = root_name(root)
            taken[prefix] = taken.get(prefix, 0) + 1
            if taken[prefix] > 1:
                prefix = f"{prefix}_{taken[prefix]}"
        models.append(Model(root, prefix, mine))
    return models


def unwrap(module: nn.Module) -> nn.Module:
    """The model within DDP, torch.compile and other wrappers."""
    while is_wrapper(module):
        inner = next((m for key in WRAPPERS if (m := module._modules.get(key)) is not None), None)
        if inner is None:
            break
        module = inner
    return module


def clean(path: str) -> str:
    """A dotted name without what wrappers add.

    >>> clean("module.layers.0._orig_mod.mlp"), clean("_orig_mod")
    ('layers.0.mlp', '')
    """
    parts = path.split(".")
    if parts and parts[0] == "module":
        parts = parts[1:]
    return ".".join(part for part in parts if part not in WRAPPERS[1:])


def root_name(root: nn.Module) -> str:
    """What a root is called: by its class, and what ``torch.compile`` made by that of the model within."""
    name = class_name(root)
    return class_name(unwrap(root)) if name == "OptimizedModule" else name


def class_name(module: nn.Module) -> str:
    """The class as its author calls it: ``fully_shard`` gives a module a class of its own, FSDP<Class>."""
    kind = type(module)
    if is_fully_sharded(module):
        kind = kind.__mro__[getattr(kind, "_orig_cls_mro_index", 2)]
    return kind.__name__


def is_fully_sharded(module: nn.Module) -> bool:
    """``torch.distributed.fsdp.fully_shard`` was called on it."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def is_wrapper(module: nn.Module) -> bool:
    return class_name(module) in _WRAPPING


def _has_forward(module: nn.Module) -> bool:
    return "forward" in module.__dict__ or getattr(type(module), "forward", None) is not nn.Module.forward


def _holds_parameters(module: nn.Module) -> bool:
    return next(iter(module.parameters()), None) is not None


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
