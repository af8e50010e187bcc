"""The kernels that one ATen operator launches on an H100, from its recorded inputs.

Times come from the simple model of tests/synthetic/gpu.py: simulated, never measured. Names are
spelled as in traces of H100 runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil, prod

from tests.synthetic import gpu
from tests.synthetic.gpu import Work
from tests.synthetic.kernel_names import elementwise_name
from tests.synthetic.values import BF16
from tests.zoo.inputs import SIZES, Inputs
from tests.zoo.kernels_named import NAMED, attention, convolution_flops, vectorized

__all__ = [
    "LEAVES", "PRODUCTS", "SIZES", "Inputs", "attention", "convolution_flops", "copy", "elementwise",
    "product", "reduction", "works_of",
]  # fmt: skip

_NS = "at::native::(anonymous namespace)::"
_SPLIT_K_BELOW = 66 * 128 * 128  # elements of the result: fewer tiles than half of the SMs


# -- products ----------------------------------------------------------------------------------------


def product(inputs: Inputs, first: int) -> list[Work]:
    """mm, addmm and bmm; ``first`` is the position of the left operand."""
    a, b = inputs.sizes[first], inputs.sizes[first + 1]
    m, k, n = a[-2], a[-1], b[-1]
    batch = a[0] if len(a) == 3 else 1
    if inputs.types[first] != BF16:
        return [_float_product(m, n, k, batch)]
    a_turned = _turned(inputs.strides[first], a)
    b_turned = _turned(inputs.strides[first + 1], b)
    layout = ("T" if b_turned else "N") + ("T" if a_turned else "N")
    layout = layout if layout != "TT" else "NT"
    rows = (m if a_turned else k, k if b_turned else n, n)
    work = gpu.gemm(m, n, k, batch=batch, layout=layout, rows=rows)
    if m * n * batch > _SPLIT_K_BELOW or k < 4096 or "nvjet" not in work.name:
        return [work]
    head, tail = work.name.rsplit("_", 1)
    split = replace(work, name=f"{head}_splitK_{tail}", duration_ns=max(2000, work.duration_ns // 2))
    types = "float, __nv_bfloat16, float, __nv_bfloat16"
    name = f"void cublasLt::splitKreduce_kernel<32, 16, int, {types}, true, false, false>"
    name += "(cublasLt::cublasSplitKParams<float>, float const*, __nv_bfloat16 const*, __nv_bfloat16*)"
    moved = m * n * batch * (4 * 4 + 2)
    return [split, Work(name, gpu.streaming_ns(moved), grid=(ceil(m * n / 2048), 1, 1), block=(32, 16, 1))]


def _turned(strides: list[int], sizes: list[int]) -> bool:
    """Whether a matrix is stored by columns."""
    return strides[-1] != 1 and sizes[-1] != 1


def _float_product(m: int, n: int, k: int, batch: int) -> Work:
    """float32 without tensor cores, 60 TFLOP/s."""
    moved = 4 * batch * (m * k + k * n + m * n)
    duration = max(gpu.streaming_ns(moved), round(2 * batch * m * n * k / 60e12 * 1e9))
    if k == 1:
        name = "void gemmk1_kernel<int, float, 256, 5, false, false, false, false, " + ", ".join(
            f"cublasGemvTensorStridedBatched<float{const}>" for const in (" const", " const", "")
        )
        name += ", float>(cublasGemmk1Params<float>)"
        return Work(name, duration, grid=(ceil(m * n / 1024), 1, batch))
    name = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
    return Work(f"{name}_execute_kernel__5x_cublas", duration, grid=(ceil(m / 128), ceil(n / 128), batch))


# -- elementwise ---------------------------------------------------------------------------------------


def _functor(name: str, dtype: str) -> str:
    launcher = f"at::native::{name}(at::TensorIteratorBase&)"
    return f"{launcher}::{{lambda()#2}}::operator()() const::{{lambda({dtype})#1}}"


#: Functors by operator, where tests/synthetic has none. $ is the element type.
_FUNCTORS = {
    "aten::abs": "at::native::AbsFunctor<$>",
    "aten::clamp": f"{_NS}launch_clamp_scalar(at::TensorIteratorBase&)::{{lambda($)#1}}",
    "aten::div": "at::native::BinaryFunctor<$, $, $, at::native::binary_internal::DivFunctor<float> >",
    "aten::floor_divide": f"{_NS}div_floor_kernel_cuda(at::TensorIteratorBase&)::{{lambda($, $)#1}}",
    "aten::lt": f"{_NS}CompareFunctor<$>",
    "aten::sub": "at::native::CUDAFunctor_add<$>",
    "aten::where": f"{_NS}where_kernel_impl(at::TensorIterator&)::{{lambda(bool, $, $)#1}}",
}  # fmt: skip
_KEYS = {
    "aten::add": "add", "aten::add_": "add", "aten::mul": "mul", "aten::gelu": "gelu",
    "aten::gelu_backward": "gelu_backward", "aten::silu": "silu", "aten::silu_backward": "silu_backward",
    "aten::neg": "neg", "aten::pow": "pow", "aten::rsqrt": "rsqrt", "aten::fill_": "fill",
}  # fmt: skip
_OTHERS = (
    "cos", "sin", "exp", "log", "tanh", "sigmoid", "reciprocal", "sigmoid_backward", "tanh_backward", "sqrt",
    "relu", "erf",
)  # fmt: skip
ELEMENTWISE = {*_FUNCTORS, *_KEYS, *(f"aten::{name}" for name in _OTHERS), "aten::threshold_backward"}


def elementwise(name: str, inputs: Inputs) -> Work:
    """One kernel that reads every input once; inputs that are spread over a dimension take the slower one."""
    shape = inputs.broadcast()
    elements = prod(shape)
    kinds = [inputs.types[i] for i in inputs.tensors] or [t for t in inputs.types if t in SIZES] or ["float"]
    dtype = kinds[0]
    key = _KEYS.get(name)
    if key in ("add", "mul") and len(inputs.tensors) < 2:
        key = {"add": "add_scalar", "mul": "scale"}[key]
    moved = sum(inputs.bytes(i) for i in inputs.tensors) + elements * SIZES[dtype]
    if name == "aten::fill_":
        moved = elements * SIZES[dtype]
    full, arrays = (
        elementwise_name(key, dtype) if key else vectorized(_spell(name, dtype), len(inputs.tensors) + 1)
    )
    if any(inputs.elements(i) != elements for i in inputs.tensors):
        functor = _FUNCTORS.get(name) or _plain_functor(name, key)
        full = _strided(functor.replace("$", dtype), arrays)
    return Work(full, gpu.streaming_ns(moved), grid=(max(1, ceil(elements / 1024)), 1, 1), registers=34)


def _plain_functor(name: str, key: str | None) -> str:
    known = {
        "add": "at::native::CUDAFunctor_add<$>",
        "mul": "at::native::BinaryFunctor<$, $, $, at::native::binary_internal::MulFunctor<float> >",
    }
    return known.get(key or "") or _spell(name, "$")


def _spell(name: str, dtype: str) -> str:
    if name in _FUNCTORS:
        return _FUNCTORS[name].replace("$", dtype)
    return _functor(f"{name.removeprefix('aten::')}_kernel_cuda", dtype)


def _strided(functor: str, arrays: int) -> str:
    inner = f"at::native::gpu_kernel_impl_nocast<{functor} >(at::TensorIteratorBase&, {functor} const&)"
    inner += "::{lambda(int)#1}"
    return f"void at::native::elementwise_kernel<128, {arrays}, {inner}>(int, {inner})"


def copy(inputs: Inputs, *, from_host: bool = False) -> Work:
    """aten::copy_: a cast, a strided copy, or a plain copy of memory."""
    elements, to, of = inputs.elements(0), inputs.types[0], inputs.types[1]
    if from_host:
        return gpu.memcpy(inputs.bytes(0))
    if to == of and inputs.strides[0] == inputs.strides[1]:
        size = inputs.bytes(0)
        duration = max(1200, round(2 * size / gpu.BANDWIDTH * 1e9))
        name = "Memcpy DtoD (Device -> Device)"
        return Work(name, duration, "gpu_memcpy", "cudaMemcpyAsync", bytes=size)
    return gpu.copy(elements, SIZES[of], SIZES[to])


def reduction(inputs: Inputs) -> Work:
    """aten::sum, aten::mean, aten::linalg_vector_norm over the dimensions of a "[0, 1]" among the inputs."""
    shape = inputs.sizes[0]
    listed = next((c for c in inputs.concrete[1:] if c.startswith("[")), "[]")
    dims = json.loads(listed) or range(len(shape))
    outputs = prod(size for i, size in enumerate(shape) if i not in {d % len(shape) for d in dims})
    return gpu.reduction(inputs.elements(0), outputs, SIZES[inputs.types[0]])


PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0}  # position of the left operand
_REDUCTIONS = ("aten::sum", "aten::mean", "aten::linalg_vector_norm")
#: Operators that launch kernels; what the meta device shows below them is no CUDA operator.
LEAVES = {*ELEMENTWISE, *NAMED, *PRODUCTS, *_REDUCTIONS, "aten::copy_"}


def works_of(name: str, inputs: Inputs) -> list[Work]:
    """The kernels of one operator of ``LEAVES``, in launch order."""
    if name in PRODUCTS:
        return product(inputs, PRODUCTS[name])
    if name in NAMED:
        return NAMED[name](inputs)
    if name in _REDUCTIONS:
        return [reduction(inputs)]
    return [copy(inputs) if name == "aten::copy_" else elementwise(name, inputs)]
