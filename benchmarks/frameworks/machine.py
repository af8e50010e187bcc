"""What a machine without a GPU cannot answer, and what a recording answers in its place: one table.

Nothing here does work that a GPU would do in another way: devices, streams and generators have no operators,
a group of one rank sends nothing, and functions that torch.compile would take stay the Python that they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.zoo import parts

aten: Any = torch.ops.aten


class _Stream:
    """A stream of CUDA that orders nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., _Stream]:
        return lambda *_: self


def _same(function: Any = None, **_: object) -> Any:
    """torch.compile that compiles nothing, as a decorator with and without arguments."""
    return function if function is not None else _same


def _nothing(*_: object, **__: object) -> None:
    """A collective in a group of one rank."""


def _no_fork(*_: object, **__: object) -> AbstractContextManager[None]:
    """A generator of its own for dropout: it changes numbers and no work."""
    return nullcontext()


#: (module, attribute, what stands there while models are built and recorded)
ANSWERS: tuple[tuple[str, str, Any], ...] = (
    ("torch.cuda", "current_device", lambda: "meta"),
    ("torch.cuda", "Stream", _Stream),
    ("torch.cuda", "current_stream", lambda *_: _Stream()),
    ("torch.cuda", "stream", lambda *_: nullcontext()),
    ("torch.cuda.nvtx", "range_push", _nothing),
    ("torch.cuda.nvtx", "range_pop", _nothing),
    ("torch", "compile", _same),
    ("torch", "autocast", lambda *_, **__: nullcontext()),  # not known for "meta"; all is bf16 already
    ("torch.distributed", "all_reduce", _nothing),
    ("torch", "Tensor.cuda", lambda self, *_, **__: self),
    ("torch", "Tensor.cpu", lambda self, *_, **__: self),  # counts of tokens: they have no values
)


def _core() -> Callable[..., None]:
    """The constructor of megatron-core's unfused attention, which takes no widths of MLA as of 0.16.1."""
    kind = import_module("megatron.core.transformer.dot_product_attention").DotProductAttention
    made = kind.__init__

    def make(self: Any, *arguments: Any, k_channels: int = 0, v_channels: int = 0, **keywords: Any) -> None:
        made(self, *arguments, **keywords)

    return make


def varlen(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, _ends: Tensor, _most: int, _longest: int,
    *, return_aux: object = None, **_: object,
) -> Any:  # fmt: skip
    """torch.nn.attention.varlen.varlen_attn of samples of one length: its operator around a fused kernel."""
    samples = ends.numel() - 1
    q, k, v = (x.view(samples, -1, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    with parts.call("torch_attn::_varlen_attn", q, k, v):
        if q.shape[-1] == v.shape[-1]:
            out, log_sums, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        else:
            out, log_sums, *_ = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)
    out = out.transpose(1, 2).reshape(-1, out.shape[1], out.shape[-1])
    return (out, log_sums.transpose(0, 1).reshape(q.shape[1], -1)) if return_aux is not None else out


def scatter_add(out: Tensor, index: Tensor, source: Tensor) -> Tensor:
    """torchtitan/ops/scatter_add.py: an operator whose body a meta device does not run."""
    with parts.call("torchtitan::deterministic_scatter_add", out, index, source):
        return out.scatter_add(0, index, source)


#: The same of a framework, which is imported by then.
OF_FRAMEWORK: dict[str, tuple[tuple[str, str, Any], ...]] = {
    "megatron": (
        ("megatron.core.tensor_parallel.random", "CudaRNGStatesTracker.fork", _no_fork),
        # what 0.16.1 takes for granted without TransformerEngine
        ("megatron.core.transformer.multi_latent_attention", "HAVE_TE", False),
        ("megatron.core.transformer.moe.moe_utils", "te_general_gemm", None),
    ),
    "torchtitan": (
        ("torchtitan.models.common.attention", "varlen_attn", varlen),
        ("torchtitan.models.common.token_dispatcher", "deterministic_scatter_add", scatter_add),
    ),
}


@contextmanager
def without_gpu(framework: str) -> Iterator[None]:
    """Everything of the table, inside the block."""
    with ExitStack() as stack:
        for home, name, answer in ANSWERS:
            stack.enter_context(_patched(home, name, answer))
        if framework == "megatron":
            stack.enter_context(_one_rank())
            core = "megatron.core.transformer.dot_product_attention"
            stack.enter_context(_patched(core, "DotProductAttention.__init__", _core()))
        for home, name, answer in OF_FRAMEWORK[framework]:
            stack.enter_context(_patched(home, name, answer))
        yield


def _patched(home: str, name: str, answer: Any) -> Any:
    *classes, attribute = name.split(".")
    owner: Any = import_module(home)
    for inner in classes:
        owner = getattr(owner, inner)
    return mock.patch.object(owner, attribute, answer, create=True)


@contextmanager
def _one_rank() -> Iterator[None]:
    """megatron-core asks its process groups for their sizes."""
    distributed: Any = torch.distributed
    state = import_module("megatron.core.parallel_state")
    began = not distributed.is_initialized()
    if began:
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    state.initialize_model_parallel()
    try:
        yield
    finally:
        state.destroy_model_parallel()
        if began:
            distributed.destroy_process_group()
