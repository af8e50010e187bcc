"""Compiled training steps of models that nobody here wrote: torch.compile's own graphs and kernels.

TorchDynamo traces an architecture of `transformers` into one graph. The table of ``truth.py`` says what each
call is for, by the modules around it; PyTorch carries that to the nodes of the joint graph, their gradients
and through Inductor's fusion. The rest is the compiled recorder of the zoo (``tests/zoo``).
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node

from benchmarks.hub.models import build, first_loss
from benchmarks.hub.truth import Place, truth_of
from tests.kept import kept, of_package, sources
from tests.synthetic.spec import Synthetic
from tests.zoo.compiled import CompiledOptions, play_programs, programs_of

#: What Python calls the functions that ``truth.py`` knows by their methods' names.
_METHODS = {"getitem": "__getitem__", "setitem": "__setitem__", "iadd": "add", "matmul": "matmul"}
_SUMS = frozenset({"add", "add_", "__add__", "__iadd__", "__radd__"})
_LAST = re.compile(r"\w+")
Truth = Callable[..., str]


class _Loss(nn.Module):
    """A model whose only result is its loss, as a training step needs no other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Any) -> Tensor:
        return first_loss(self.model(**batch))


@dataclass(frozen=True)
class CompiledHub:
    """Two steps of a compiled model: with the shapes of operators' inputs, and without."""

    steps: dict[bool, Synthetic]

    def trace(self, names: str = "none", *, shapes: bool = True) -> Synthetic:
        """The recording; ``names`` are "none", as no module's name reaches a compiled graph."""
        assert names == "none"
        return self.steps[shapes]


def record_compiled_hub(name: str) -> CompiledHub:
    """The compiled architecture ``name``, compiled once and kept. Raises what its library or torch.compile
    raises; ``torch._dynamo.exc.Unsupported`` where the model breaks into several graphs."""
    made = f"{of_package('torch')} {of_package('transformers')} "
    made += sources("tests/zoo", "tests/synthetic", "benchmarks/hub")
    return CompiledHub(kept("hub-compiled", name, made, lambda: _recorded(name)))


def _recorded(name: str) -> dict[bool, Synthetic]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, batch = build(name)
        with torch._dynamo.config.patch(ignore_logging_functions=_logs()):
            programs = programs_of(_Loss(model), batch, mark=marks(truth_of))
    return {shapes: play_programs(CompiledOptions(shapes=shapes), programs) for shapes in (True, False)}


def _logs() -> set[Any]:
    """What a library says while it is traced, which would break the graph; ``transformers`` adds to these."""
    names = ("debug", "info", "warning", "error", "warning_once")
    return {warnings.warn, *(getattr(logging.Logger, name, warnings.warn) for name in names)}


def marks(truth: Truth) -> Callable[[Graph, list[Any]], None]:
    """A function that says of every node of Dynamo's graph what it is for."""

    def mark(graph: Graph, arguments: list[Any]) -> None:
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        given = zip(placeholders, arguments, strict=False)
        weights = {node for node, argument in given if isinstance(argument, nn.Parameter)}
        weights |= {node for node in graph.nodes if node.op == "get_attr"}
        seen: dict[str, str] = {}  # how far an attention module has come
        for node in graph.nodes:
            if node.op in ("call_function", "call_method"):
                said = _said(node, truth, weights, seen)
                if said:
                    part = {"component": said, "layer": None, "role": None, "strict": True}
                    node.meta["custom"] = {**(node.meta.get("custom") or {}), **part}

    return mark


def _said(node: Node, truth: Truth, weights: set[Node], seen: dict[str, str]) -> str:
    paths, classes, names = _around(node)
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    name = _METHODS.get(name, name)
    if name == "dropout" and 0.0 in (*node.args[1:2], node.kwargs.get("p")):
        return ""  # it drops nothing, and leaves a copy at most
    inputs = node.all_input_nodes
    if name in ("view", "t", "transpose", "to", "getattr", "__getitem__") and inputs[:1]:
        weights |= {node} if inputs[0] in weights and name != "__getitem__" else set()
    sizes = [_size(one) for one in inputs]
    equal = name in _SUMS and len(sizes) >= 2 and sizes[0] == sizes[1] and len(sizes[0] or ()) >= 3
    attends = [at for at, kind in enumerate(classes) if "Atten" in kind or "Attn" in kind]
    block = paths[attends[-1]] if attends else None
    place = Place(classes, names, seen.get(block, "") if block else "")
    said = truth(place, name, weighted=any(one in weights for one in inputs), equal=bool(equal))
    if block is not None and name in ("softmax", "scaled_dot_product_attention"):
        seen |= dict.fromkeys(paths, "softmax")
    return said


def _around(node: Node) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Paths, classes and attribute names of the modules around a call, outermost first, without ``_Loss``."""
    whole = (node.meta.get("nn_module_stack") or {}).values()
    stack = [(path, kind) for path, kind in whole if kind is not _Loss]
    paths = tuple(str(path) for path, _ in stack)
    classes = tuple(getattr(kind, "__name__", str(kind)).rpartition(".")[2] for _, kind in stack)
    return paths, classes, tuple((_LAST.findall(path) or [""])[-1] for path in paths)


def _size(node: Node) -> tuple[int, ...] | None:
    value = node.meta.get("example_value")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None
