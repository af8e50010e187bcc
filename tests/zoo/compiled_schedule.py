"""Changes to the order and kind of an Inductor program's calls that its other settings would make."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from tests.zoo.compiled_graphs import ROLE
from tests.zoo.compiled_inductor import Call, Tensor

_TEMPLATES = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}


def defer_weight_gradients(calls: list[Call], *, held: int = 8) -> list[Call]:
    """Move weight-gradient GEMMs, and what only they feed, behind those of later layers.

    As traces of compiled training on eight GPUs show: the chain of data gradients runs ahead, then the
    weight gradients of several layers follow in a row. ``held`` of them are kept back at most. Memory that
    this program would have reused in between is taken to be allocated in another way.
    """
    order: list[Call] = []
    waiting: list[Call] = []
    for call in calls:
        owed = {tensor.storage for late in waiting for tensor in late.writes}
        is_gradient = call.main is not None and call.main.meta.get(ROLE) == "wgrad"
        if is_gradient or any(tensor.storage in owed for tensor in call.tensors):
            waiting.append(call)
        else:
            order.append(call)
        if sum(late.main is not None for late in waiting) >= held:
            order += waiting
            waiting = []
    return order + waiting


def with_templates(calls: list[Call], *, every: int) -> list[Call]:
    """Every so-manieth mm or addmm as a Triton template, as max-autotune picks them; kernels renumbered.

    Names follow get_fused_kernel_name of torch._inductor.utils.
    """
    found = 0
    out = []
    for call in calls:
        if call.main is not None and call.main.target in _TEMPLATES:
            found += 1
            if found % every == 0:
                call = _as_template(call)
        out.append(call)
    return _renumbered(out)


def _as_template(call: Call) -> Call:
    packets = [getattr(node.meta.get("original_aten"), "_overloadpacket", None) for node in call.nodes]
    names = sorted({packet.__name__ for packet in packets if packet is not None})
    tensors = tuple(argument for argument in call.arguments if isinstance(argument, Tensor))
    return replace(call, name=f"triton_tem_fused_{'_'.join(names)}_0", arguments=tensors)


def _renumbered(calls: list[Call]) -> list[Call]:
    """Kernel numbers in order of appearance, equal code under one number."""
    numbers: dict[object, int] = {}
    out = []
    for call in calls:
        if not call.triton:
            out.append(call)
            continue
        shapes = [
            (tensor.shape, tensor.strides, tensor.dtype)
            for tensor in call.arguments
            if isinstance(tensor, Tensor)
        ]
        key = (call.name, tuple(shapes)) if "_tem_" in call.name else call.name
        number = numbers.setdefault(key, len(numbers))
        out.append(replace(call, name=re.sub(r"\d+$", str(number), call.name)))
    return out
