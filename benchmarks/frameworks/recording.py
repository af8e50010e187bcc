"""Records a training step of a model of megatron-core or torchtitan on the meta device.

The recorder is that of ``benchmarks.hub``; what frameworks do beside calling functions, autograd functions of
their own, is marked too: an autograd node belongs to the function that made it.

Recorded with megatron-core 0.16.1 and torchtitan 0.3.0, installed without what they depend on; imports ask
for triton, spmd_types, tyro and docstring_parser, those of flux for datasets, torchdata and pillow too.
"""

# PyTorch's functions that take anything return anything.
# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.frameworks.machine import without_gpu
from benchmarks.frameworks.models import Built, build
from benchmarks.frameworks.truth import truth_of
from benchmarks.hub.recording import Marks, Recorded, recorded
from tests.kept import kept, of_package, sources
from tests.zoo.capture import Capture, Note, State

_PACKAGES = {"megatron": "megatron-core", "torchtitan": "torchtitan"}


class FrameworkMarks(Marks):
    """Marks that know autograd functions, and how many tokens each expert gets."""

    def __init__(self, capture: Capture, truth: Callable[..., str], built: Built) -> None:
        super().__init__(capture, truth)
        self.built = built
        self.functions: list[str] = []  # truth of the autograd functions that run
        self._patch: Any = None

    def __enter__(self) -> FrameworkMarks:
        apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

        def marked(kind: type, *args: Any, **kwargs: Any) -> Any:
            return self._applied(partial(apply, kind, *args, **kwargs), kind.__name__, args)

        self._patch = mock.patch.object(torch.autograd.Function, "apply", classmethod(marked))
        self._patch.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patch.stop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "tolist" and self.built.tokens_of_expert:
            meta = args[0].device.type == "meta"
            return [self.built.tokens_of_expert] * len(args[0]) if meta else func(*args)
        if kwargs and str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = {**kwargs, "device": "meta"}
        return super().__torch_function__(func, types, args, kwargs)

    def _truth(self, name: str, args: Any, kwargs: Any) -> str:
        found = super()._truth(name, args, kwargs)
        return next((truth for truth in reversed(self.functions) if truth), found)

    def _applied(self, apply: Callable[[], Any], name: str, args: Any) -> Any:
        """Run ``apply`` of an autograd function as a part of what the function is for."""
        truth, state = self._truth(name, args, {}), self.capture.state
        self.functions.append(truth)
        try:
            with self.capture.inside(Note("part", State(truth, phase=state.phase, module=state.module))):
                return apply()
        finally:
            self.functions.pop()


def record_framework(name: str) -> Recorded:
    """A recording of ``megatron/NAME`` or ``torchtitan/NAME``, made once and kept."""
    package = _PACKAGES[name.partition("/")[0]]
    made = f"{of_package('torch')} {of_package(package)} "
    made += sources("tests/zoo", "tests/synthetic", "benchmarks/hub", "benchmarks/frameworks")
    return kept("frameworks", name, made, lambda: _recorded(name))


@contextmanager
def _selecting(share: float) -> Iterator[None]:
    """How many a mask selects a meta device does not know: a map of tokens to experts is true for the experts
    of each token."""

    def selected(x: Tensor, mask: Tensor) -> Tensor:
        return x.new_empty(round(torch.broadcast_shapes(x.shape, mask.shape).numel() * share))

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("masked_select", selected, "Meta", allow_override=True)
        yield


def _recorded(name: str) -> Recorded:
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(without_gpu(name.partition("/")[0]))
        built = build(name)
        stack.enter_context(_selecting(built.chosen))
        return recorded(name, built.model, built.loss, truth_of, partial(FrameworkMarks, built=built))
