"""Plays the calls of an Inductor program to the recorder: operators, launches, kernels, truth.

Spelling follows traces of compiled training on an RTX 3060 and on H100s: Triton
kernels have an operator of their name with their arguments, extern kernels the operator of the ``out=``
variant, both without sequence numbers inside ``## Call CompiledFxGraph``.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from typing import Any

import torch

from tests.synthetic import gpu
from tests.synthetic.gpu import Work
from tests.synthetic.recorder import Recorder
from tests.synthetic.spec import Event, Where
from tests.synthetic.values import DTYPE_CODE, Argument, Value, arguments
from tests.zoo import kernels
from tests.zoo.compiled_inductor import DTYPES, Call, Tensor
from tests.zoo.compiled_truth import CompiledTruth, Label, Product, label, product_of
from tests.zoo.kernels import Inputs


class CompiledRecorder(Recorder):
    """A recorder that knows cuLaunchKernel, and writes the full list of components."""

    components: tuple[str, ...] = ()

    def _call(self, api: str, spend: int) -> Event:
        if api != "cuLaunchKernel":
            return super()._call(api, spend)
        event = super()._call("cuLaunchKernelEx", spend)
        event.name = api
        event.args["cbid"] = 307
        return event

    def _record_truth(self, event: Event, where: Where, role: str | None,
                      sizes: tuple[int | None, int | None, int | None, int | None],
                      flops: float, launched: bool, strict: bool) -> None:  # fmt: skip
        m, n, k, batch = sizes
        self.truth.append(CompiledTruth(
            event.args["correlation"], event.name, event.ts, event.dur, int(event.tid), self.step,
            where.component, where.phase, where.layer, where.module, role, m, n, k, batch, flops,
            launched, strict, self.components or (where.component,),
        ))  # fmt: skip


def play(rec: CompiledRecorder, calls: list[Call], *, backward: bool) -> None:
    """Record every call of a program, on the current thread."""
    for call in calls:
        found = label(call, backward=backward)
        rec.components = found.components
        with rec.at(component=found.component, layer=found.layer, phase=found.phase):
            if call.triton:
                _triton(rec, call, found)
            else:
                _operator(rec, call, found)
        rec.components = ()
        rec.spend(6000)


def value(tensor: Tensor) -> Value:
    return Value(tensor.shape, tensor.strides, tensor.dtype)


def argument(given: Any) -> Argument:
    """An argument of a call as the recorder writes them."""
    if isinstance(given, Tensor):
        return value(given)
    if isinstance(given, list | tuple):
        if given and all(isinstance(item, Tensor) for item in given):
            return [value(item) for item in given]
        return tuple(item for item in given if isinstance(item, int))
    if given is None or isinstance(given, bool | int | float):
        return given
    if isinstance(given, torch.dtype):
        return DTYPE_CODE.get(DTYPES[given])
    return None


# -- Triton ----------------------------------------------------------------------------------------


def _triton(rec: CompiledRecorder, call: Call, found: Label) -> None:
    work = _template_work(call) if "_tem_" in call.name else _triton_work(call)
    code = ("c" + hashlib.sha256(call.name.encode()).hexdigest())[:52]
    extra = {
        "num_warps": work.block[0] // 32, "stream": 0, "kernel_backend": "triton",
        "kernel_name": call.name, "kernel_kwargs": _blocks(call, work), "num_stages": 1,
        "kernel_file": f"/tmp/torchinductor/{code[1:3]}/{code}.py", "kernel_hash": code,
    }  # fmt: skip
    with rec.op(call.name, tuple(argument(given) for given in call.arguments), extra=extra):
        _launch(rec, work, product_of(call), found)


def _launch(rec: CompiledRecorder, work: Work, product: Product | None, found: Label) -> None:
    if product is None:
        rec.launch(work, strict=found.strict)
        return
    rec.launch(work, role=found.role, shape=(product.m, product.n, product.k), batch=product.batch,
               flops=product.flops, strict=found.strict)  # fmt: skip


def _triton_work(call: Call) -> Work:
    """Reads what it reads, at most once per element of its iteration space, and writes what it writes."""
    space = math.prod(call.sizes.values())
    moved = 0
    for tensor in call.tensors:
        size = tensor.bytes // max(tensor.elements, 1)
        moved += min(tensor.elements, space) * size
    lanes = math.prod(size for name, size in call.sizes.items() if not name.startswith("r"))
    kind, threads = call.name.split("_")[1], 128
    if kind == "poi":
        block = 1024 if lanes >= 1 << 18 else 512 if lanes >= 1 << 15 else 128
        threads = 256 if block == 512 else 128
    else:
        block = 1 if kind == "per" and call.sizes.get("r0_numel", 1) >= 256 else 16
        threads = 256 if kind == "red" else 64
    blocks = max(1, math.ceil(lanes / block))
    return Work(call.name, gpu.streaming_ns(moved), "kernel", "cuLaunchKernel", (blocks, 1, 1),
                (threads, 1, 1), 32 if kind == "poi" else 48, 0 if kind == "poi" else 128, 75)  # fmt: skip


def _template_work(call: Call) -> Work:
    product = product_of(call)
    assert product is not None
    plain = gpu.gemm(product.m, product.n, product.k)
    tiles = math.ceil(product.m / 128) * math.ceil(product.n / 128)
    return replace(plain, name=call.name, api="cuLaunchKernel", grid=(tiles, 1, 1), block=(256, 1, 1),
                   registers=192, shared=98304, duration_ns=round(plain.duration_ns * 1.1))  # fmt: skip


def _blocks(call: Call, work: Work) -> str:
    if "_tem_" in call.name:
        return "BLOCK_M=128,BLOCK_N=128,BLOCK_K=64"
    lanes = math.prod(size for name, size in call.sizes.items() if not name.startswith("r"))
    block = 1 << max(0, math.ceil(lanes / work.grid[0]) - 1).bit_length()
    return f"XBLOCK={block}" + (",R0_BLOCK=2048" if "_red_" in call.name else "")


# -- operators -------------------------------------------------------------------------------------


def _operator(rec: CompiledRecorder, call: Call, found: Label) -> None:
    given = tuple(argument(item) for item in call.arguments)
    inputs = _inputs(given)
    with rec.op(call.name, given):
        if product_of(call) is not None:
            works = kernels.product(inputs, 0 if call.name in ("aten::mm", "aten::bmm") else 1)
            _launch(rec, works[0], product_of(call), found)
            for work in works[1:]:
                rec.launch(work, strict=found.strict)
        elif "dot_product" in call.name:
            _attention(rec, call, inputs)
        elif "convolution" in call.name:
            _convolution(rec, call, inputs, found)
        elif call.name in _INNER:
            inner, shapes = (
                _INNER[call.name],
                (value(call.writes[0]), value((*call.tensors, *call.writes)[0])),
            )
            with rec.op(inner, (*shapes, None)):
                name = "aten::copy_" if inner == "aten::copy_" else "aten::fill_"
                for work in kernels.works_of(name, _inputs(shapes)):
                    rec.launch(work, strict=found.strict)
        else:
            works = kernels.works_of(call.name, inputs) if call.name in kernels.LEAVES else [_plain(call)]
            for work in works:
                rec.launch(work, strict=found.strict)


#: Operators whose kernel is launched by one inside.
_INNER = {"aten::to": "aten::copy_", "aten::randint": "aten::random_"}


def _inputs(given: tuple[Argument, ...]) -> Inputs:
    """Arguments as the profiler would have written them down."""
    concrete, types, strides, sizes = arguments(given).values()
    return Inputs(sizes, strides, types, concrete)


def _attention(rec: CompiledRecorder, call: Call, inputs: Inputs) -> None:
    """Fused attention or its backward: the operator inside takes [b, s, heads, d].

    FLOPs are those of the full score matrix, as FlopCounterMode of PyTorch counts them.
    """
    backward = call.name.endswith("backward")
    q, k, v = inputs.sizes[1:4] if backward else inputs.sizes[:3]
    works = kernels.attention(call.name, q)
    flops = 2.0 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3]) * (2.5 if backward else 1)
    heaviest = max(works, key=lambda work: work.duration_ns)
    inner = "aten::_flash_attention" if "flash" in call.name else "aten::_efficient_attention"
    turned = tuple(_turned(tensor) for tensor in call.tensors[: 4 if backward else 3])
    with rec.op(inner + ("_backward" if backward else "_forward"), turned):
        for work in works:
            rec.launch(work, flops=flops if work is heaviest else 0.0)


def _turned(tensor: Tensor) -> Value:
    """[b, heads, s, d] seen as [b, s, heads, d]."""
    order = (0, 2, 1, 3)
    return Value(tuple(tensor.shape[i] for i in order), tuple(tensor.strides[i] for i in order), tensor.dtype)


def _convolution(rec: CompiledRecorder, call: Call, inputs: Inputs, found: Label) -> None:
    backward = call.name.endswith("backward")
    works = kernels.works_of(call.name, inputs)
    flops = kernels.convolution_flops(inputs, backward=backward)
    heaviest = max(works, key=lambda work: work.duration_ns)
    for work in works:
        main = work is heaviest
        role = ("wgrad" if backward else "forward") if main else None
        rec.launch(work, role=role, flops=flops if main else 0.0, strict=found.strict)


def _plain(call: Call) -> Work:
    """A kernel of ATen's own whose name is not known here."""
    moved = sum(tensor.bytes for tensor in call.tensors)
    operator = call.name.split(":")[-1].strip("_")
    name = f"void at::native::{operator}_kernel<c10::BFloat16>(at::TensorIteratorBase&)"
    return Work(name, gpu.streaming_ns(moved), grid=(max(1, min(moved // 4096, 2048)), 1, 1), registers=32)
