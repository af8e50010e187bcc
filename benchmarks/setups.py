"""Training steps of `transformers` models as people set them up: with checkpoints, with low-rank adapters,
with attention written out, under autocast, or as a loop of two micro-batches with clipping and AdamW.

The recorder is that of ``benchmarks/hub``. Adapters are those of `peft`, where it is installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from itertools import compress
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.hub.models import ways
from benchmarks.hub.recording import AnyRewriter, HubCapture, Marks, Recorded, loss_of, recorded
from benchmarks.hub.truth import Place, truth_of
from benchmarks.mixed_precision import MixedMarks
from tests.kept import kept, of_package, sources
from tests.zoo.capture import Capture, State
from tests.zoo.cuda import Rewriter
from tests.zoo.kernels_named import MULTI_TENSOR
from tests.zoo.program import Op
from tests.zoo.training import Training

SETUPS = (
    "checkpointed", "reentrant", "adapters", "few-adapters", "checkpointed-adapters", "eager", "autocast",
    "trained",
)  # fmt: skip
_RECORDER = "benchmarks.hub.recording"
_ADAPTER = "lora_"
_BASE = "base_layer"  # of huggingface/peft src/peft/tuners/lora/layer.py


def record_setup(name: str, setup: str) -> Recorded:
    """A training step of the architecture ``name`` in one of ``SETUPS``, recorded once and kept.

    Raises what its library raises.
    """
    made = " ".join(map(of_package, ("torch", "transformers", "peft")))
    made += sources("tests/zoo", "tests/synthetic", "benchmarks/hub")
    return kept("hub-setup", (name, setup), made, lambda: _recorded(name, setup))


def _recorded(name: str, setup: str) -> Recorded:
    failed: Exception | None = None
    captures: list[Capture] = []
    with warnings.catch_warnings(), mock.patch("transformers.modeling_utils.checkpoint", _marked(captures)):
        warnings.simplefilter("ignore")
        for model, batch in ways(name):
            try:
                _set_up(model, setup)
                if setup == "autocast":
                    batch = {key: _long(value) for key, value in batch.items()}
                truth = _of_adapted if "adapters" in setup else truth_of
                marks = partial(_marks, captures, MixedMarks if setup == "autocast" else Marks)
                with ExitStack() as stack:
                    if setup == "trained":
                        stack.enter_context(mock.patch(f"{_RECORDER}._step", partial(_whole, model)))
                        stack.enter_context(mock.patch(f"{_RECORDER}.AnyRewriter", LoopRewriter))
                    return recorded(name, model, partial(loss_of, model, batch), truth, marks)
            except Exception as error:  # what a model asks of its library
                failed = failed or error
    raise failed or LookupError("no model is made for the configuration")


def _marks(captures: list[Capture], kind: type[Marks], capture: Capture, truth: Callable[..., str]) -> Marks:
    captures.append(capture)
    return kind(capture, truth)


def _marked(captures: list[Capture]) -> Callable[..., Any]:
    """PyTorch's checkpoint, what runs again marked as it was the first time: autograd puts modes off."""

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run(*inner: Any, **named: Any) -> Any:
            capture: Any = captures[-1]
            if not capture._backward:
                return function(*inner, **named)
            with capture.marks, torch.device("meta"):
                return function(*inner, **named)

        return checkpoint(run, *args, **kwargs)

    return call


class LoopRewriter(AnyRewriter):
    """Takes an optimizer's operators, which run over all tensors at once where a GPU is."""

    def _operator(self, op: Op, state: State) -> None:
        if op.name in MULTI_TENSOR:
            Rewriter._operator(self, op, state)
        else:
            super()._operator(op, state)


class Loop(Training):
    """Updates what got a gradient."""

    def _adamw(self) -> None:
        got = [p.grad is not None for p in self.parameters]
        self.moments = [list(compress(moment, got)) for moment in self.moments]
        self.counts, self.parameters = list(compress(self.counts, got)), list(compress(self.parameters, got))
        super()._adamw()


def _whole(model: nn.Module, loss: Callable[[], Tensor], capture: HubCapture) -> Callable[[], None]:
    """A step of a training loop: two micro-batches, gradients clipped, AdamW as torch.optim runs it."""
    assert capture.marks is not None
    marks: Marks = capture.marks

    class Losing(nn.Module):
        def forward(self) -> Tensor:
            with marks, torch.device("meta"):
                return loss()

    losing = Losing()
    losing.model = model
    return Loop(losing, {}, capture, optimizer="foreach", clip=True, accumulate=2).step


def _set_up(model: Any, setup: str) -> None:
    if setup == "eager":
        model.set_attn_implementation("eager")
        return
    if setup == "trained":
        return
    if setup == "autocast":
        model.to(torch.float32)
        return
    if not setup.endswith("adapters"):
        model.gradient_checkpointing_enable({"use_reentrant": setup == "reentrant"})
        return
    if setup.startswith("checkpointed"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    peft = import_module("peft")
    # without targets peft adapts what is usual for the architecture, often queries and values alone
    config = peft.LoraConfig(target_modules=None if setup.startswith("few") else "all-linear", r=16)
    with torch.device("meta"):
        peft.get_peft_model(model, config, low_cpu_mem_usage=True)  # in place
    for parameter in model.parameters():
        parameter.data = parameter.data.to(model.dtype)


def _long(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(torch.float32)
    return value


def _of_adapted(place: Place, function: str, *, weighted: bool, equal: bool) -> str:
    """The truth of an adapted layer is that of the layer, whatever its adapter does beside it."""
    inside = (at for at, name in enumerate(place.names) if name.startswith(_ADAPTER) or name == _BASE)
    at = next(inside, None)
    names, classes = place.names[:at], place.classes[:at]
    if at is None and (not classes or classes[-1] != "Linear" or function == "linear"):
        return truth_of(place, function, weighted=weighted, equal=equal)
    if function == "dropout":
        return "dropout"
    return truth_of(Place(classes, names, place.seen), "linear", weighted=True, equal=False)
