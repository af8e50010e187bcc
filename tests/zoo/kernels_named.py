"""Kernels that have a name of their own: norms, losses, indexing, convolution, attention, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from tests.synthetic import gpu
from tests.synthetic.gpu import Work
from tests.synthetic.kernel_names import BF16
from tests.zoo.inputs import SIZES, Inputs

_NS = "at::native::(anonymous namespace)::"


def vectorized(functor: str, arrays: int) -> tuple[str, int]:
    pointers = f"std::array<char*, {arrays}ul>"
    call = f"(int, {functor}, {pointers})"
    return f"void at::native::vectorized_elementwise_kernel<4, {functor}, {pointers} >{call}", arrays


def _streaming(name: str, moved: float, *, blocks: int = 1, threads: int = 256) -> Work:
    return Work(name, gpu.streaming_ns(moved), grid=(max(1, blocks), 1, 1), block=(threads, 1, 1))


def _norm(inputs: Inputs) -> list[Work]:
    rows = inputs.elements(0) // inputs.sizes[0][-1]
    return [gpu.named("layer_norm", 2 * inputs.bytes(0), blocks=rows, threads=128)]


def _norm_backward(inputs: Inputs) -> list[Work]:
    rows, width = inputs.elements(0) // inputs.sizes[0][-1], inputs.sizes[0][-1]
    return [
        gpu.named("layer_norm_input", 3 * inputs.bytes(0), blocks=rows, threads=128),
        gpu.named("layer_norm_weight", 2 * inputs.bytes(0), blocks=width // 32),
    ]


def _softmax(key: str, arrays: int) -> Callable[[Inputs], list[Work]]:
    def works(inputs: Inputs) -> list[Work]:
        rows = inputs.elements(0) // inputs.sizes[0][-1]
        moved, kind = arrays * inputs.bytes(0), inputs.types[0]
        return [gpu.named(key, moved, dtype=kind, blocks=rows, threads=1024)]

    return works


def _nll(inputs: Inputs) -> list[Work]:
    return [gpu.named("nll_loss", 10 * inputs.sizes[0][0], dtype=inputs.types[0], threads=1024)]


def _nll_backward(inputs: Inputs) -> list[Work]:
    fill = gpu.pointwise("fill", inputs.elements(1), SIZES[inputs.types[1]])
    return [fill, gpu.named("nll_loss_backward", 10 * inputs.sizes[1][0], dtype=inputs.types[1])]


def _dropout(inputs: Inputs) -> list[Work]:
    name = f"void {_NS}fused_dropout_kernel_vec<{BF16}, float, unsigned int, 1, 8, bool>"
    name += f"(at::cuda::detail::TensorInfo<{BF16} const, unsigned int>, unsigned int, float)"
    return [_streaming(name, 2.5 * inputs.bytes(0), blocks=inputs.elements(0) // 4096)]


def _dropout_backward(inputs: Inputs) -> list[Work]:
    functor = f"at::native::masked_scale_kernel<bool, {BF16}, float>(at::Tensor&, at::Tensor const&)"
    functor += f"::{{lambda({BF16}, bool)#1}}"
    return [_streaming(vectorized(functor, 3)[0], 2.5 * inputs.bytes(0), blocks=inputs.elements(0) // 1024)]


def _cat(inputs: Inputs) -> list[Work]:
    elements = inputs.total()
    return [gpu.named("cat", 4 * elements, dims=3, blocks=max(1, elements // 65536), threads=512)]


def _gather_rows(inputs: Inputs) -> list[Work]:
    rows = inputs.elements(2)
    return [gpu.named("gather", 4 * rows * prod(inputs.sizes[0][1:]), blocks=rows)]


def _embedding_backward(inputs: Inputs) -> list[Work]:
    grad, count = inputs.elements(0), inputs.elements(1)
    rows, width = int(inputs.concrete[2]), inputs.sizes[0][-1]
    fill = gpu.pointwise("fill", rows * width)
    if count <= 3072:  # embedding_dense_backward_cuda, without padding
        name = f"void {_NS}embedding_backward_feature_kernel<{BF16}, float, long>"
        name += f"(long const*, {BF16} const*, {BF16}*, int, long, int)"
        return [fill, _streaming(name, 8 * grad, blocks=width // 32, threads=1024)]
    return [
        fill,
        gpu.named("sort_histogram", 8 * count, blocks=count // 4096),
        gpu.named("sort_onesweep", 32 * count, blocks=count // 4096),
        gpu.named("embedding_weight", 6 * grad, blocks=count // 8),
        gpu.named("embedding_scatter", 6 * grad, blocks=count // 8),
    ]


def _index(inputs: Inputs) -> list[Work]:
    """x[rows]: the sizes of the rows are not recorded, so the time is that of half of x."""
    body = f"{_NS}gpu_index_kernel<at::native::index_kernel_impl<at::native::OpaqueType<2> > >"
    name = f"void at::native::index_elementwise_kernel<128, 4, {body}>(long, {body})"
    return [_streaming(name, inputs.bytes(0), blocks=max(1, inputs.elements(0) // 512), threads=128)]


def _index_put(inputs: Inputs) -> list[Work]:
    """Accumulating index_put sorts the indices and adds rows."""
    values = next((i for i in reversed(inputs.tensors) if i), 0)
    rows = inputs.sizes[values][0]
    name = f"void {_NS}indexing_backward_kernel<{BF16}, 4>"
    name += f"(long const*, long const*, {BF16} const*, {BF16}*, long, long, long, long, bool)"
    return [
        gpu.copy(inputs.elements(0)),
        gpu.named("sort_onesweep", 32 * rows, blocks=max(1, rows // 4096)),
        _streaming(name, 3 * inputs.bytes(values), blocks=max(1, rows // 4)),
    ]


def _index_add(inputs: Inputs) -> list[Work]:
    name = f"void {_NS}indexFuncLargeIndex<{BF16}, long, unsigned int, 2, 2, -2, true, ReduceAdd>"
    name += "(at::cuda::detail::TensorInfo, at::cuda::detail::TensorInfo, int, int, unsigned int)"
    return [gpu.copy(inputs.elements(0)), _streaming(name, 3 * inputs.bytes(3), blocks=2048)]


def _gather(inputs: Inputs) -> list[Work]:
    name = "void at::native::_scatter_gather_elementwise_kernel<128, 8, cuda_scatter_gather_base_kernel>(int)"
    return [_streaming(name, 20 * inputs.elements(2 if len(inputs.sizes[2]) else 0))]


def _topk(inputs: Inputs) -> list[Work]:
    rows = inputs.sizes[0][0]
    names = (
        "void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>",
        "void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long, at::native::GTOp<float, true> >",
    )
    return [_streaming(f"{n}(unsigned int)", inputs.bytes(0), blocks=rows, threads=32) for n in names]


def _sort(inputs: Inputs) -> list[Work]:
    count = inputs.elements(0)
    keys = ("sort_histogram", "sort_onesweep", "sort_onesweep")
    return [gpu.named(key, 32 * count, blocks=max(1, count // 4096)) for key in keys]


def _convolution(inputs: Inputs) -> list[Work]:
    """A patch embedding: cuDNN turns the image to NHWC, multiplies, and PyTorch adds the bias."""
    flops, out = _convolution_flops(inputs.sizes[0], inputs.sizes[1])
    turn = "void cudnn::engines_precompiled::nchwToNhwcKernel"
    turn += "<__nv_bfloat16, __nv_bfloat16, float, false, true>"
    name = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_stage4_"
    name += "warpsize2x2x1_g1_tensor16x8x16_execute_kernel__5x_cudnn"
    return [
        _streaming(f"{turn}(int)", 2 * inputs.bytes(0), blocks=1024),
        Work(name, max(2000, round(flops / (0.4 * gpu.CEILING) * 1e9)), grid=(132, 1, 1)),
        gpu.pointwise("add", out),
    ]


def _convolution_flops(image: list[int], weight: list[int]) -> tuple[float, int]:
    """FLOPs and results of a convolution whose stride is its size."""
    places = image[0] * (image[2] // weight[2]) * (image[3] // weight[3])
    return 2.0 * places * prod(weight), places * weight[0]


def convolution_flops(inputs: Inputs, *, backward: bool) -> float:
    image, weight = (inputs.sizes[1], inputs.sizes[2]) if backward else (inputs.sizes[0], inputs.sizes[1])
    return _convolution_flops(image, weight)[0]


def _convolution_backward(inputs: Inputs) -> list[Work]:
    flops = convolution_flops(inputs, backward=True)
    name = "sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_"
    name += "stage4_warpsize2x2x1_g1_tensor16x8x16_execute_split_k_kernel_cudnn_train"
    wgrad = Work(name, max(2000, round(flops / (0.3 * gpu.CEILING) * 1e9)), grid=(132, 1, 1))
    return [wgrad, gpu.reduction(inputs.elements(0), inputs.sizes[2][0])]


def attention(name: str, q: list[int]) -> list[Work]:
    """Kernels of fused attention of q [batch, heads, s, d]."""
    batch, heads, sequence, head_dim = q
    size = {"batch": batch, "heads": heads, "sequence": sequence, "head_dim": head_dim}
    backward = name.endswith("backward")
    if "flash" in name:
        kinds = ("dot", "backward", "convert") if backward else ("forward",)
        return [gpu.flash(kind, **size) for kind in kinds]
    works = [gpu.flash(kind, **size) for kind in (["dot", "backward"] if backward else ["forward"])]
    tile = 64 if head_dim <= 64 else 128
    traits = f"cutlass::bfloat16_t, cutlass::arch::Sm80, true, 64, {tile}, {tile}, true, true"
    fmha = f"fmha_cutlassF_bf16_aligned_64x{tile}_rf_sm80"
    fmha += f"(PyTorchMemEffAttention::AttentionKernel<{traits}>::Params)"
    if backward:
        traits = f"cutlass::arch::Sm80, cutlass::bfloat16_t, true, false, true, {tile}, 64, {tile}"
        fmha = f"fmha_cutlassB_bf16_aligned_{tile}x64_k{tile}_sm80"
        fmha += f"(PyTorchMemEffAttention::AttentionBackwardKernel<{traits}>::Params)"
        works[0] = replace(gpu.reduction(prod(q), batch * heads * sequence), duration_ns=works[0].duration_ns)
    works[-1] = replace(works[-1], name=fmha, duration_ns=round(1.3 * works[-1].duration_ns))
    return works


#: Functor, tensor lists and bytes per element of foreach and fused optimizer operators.
MULTI_TENSOR = {
    "aten::_foreach_add_": ("BinaryOpScalarFunctor<{t}, 1, 1, 0>, std::plus<float>, float", 1, 4),
    "aten::_foreach_mul_": ("BinaryOpScalarFunctor<{t}, 1, 1, 0>, std::multiplies<float>, float", 1, 4),
    "aten::_foreach_lerp_": ("TernaryOpScalarFunctor<{t}, 2, 2, 0>, {s}LerpFunctor<float>, float", 2, 6),
    "aten::_foreach_addcmul_": ("PointwiseOpScalarFunctor<{t}, 3, 3, 0>, std::multiplies<float>", 3, 8),
    "aten::_foreach_sqrt": ("UnaryOpFunctor<{t}, 2, 1, 1>, {s}Sqrt<float>", 2, 4),
    "aten::_foreach_div_": ("BinaryOpScalarListFunctor<{t}, 1, 1, 0>, std::divides<float>, float", 1, 4),
    "aten::_foreach_addcdiv_": ("PointwiseOpScalarListFunctor<{t}, 3, 3, 0>, std::divides<float>", 3, 8),
    "aten::_foreach_norm": ("LpNormFunctor<{t}, (at::native::NormType)1, {t}, 1, 1, 0>", 1, 2),
    "aten::_fused_adamw_": ("FusedAdamMathFunctor<{t}, 4, ({s}ADAM_MODE)1, false>", 4, 14),
}  # fmt: skip


def multi_tensor(name: str, sizes: Sequence[Sequence[int]]) -> list[Work]:
    """Launches of one operator over a list: at most 32 Mi elements each, as chunk metadata is limited."""
    functor, depth, moved = MULTI_TENSOR[name]
    dtype = BF16 if any(sizes) else "float"  # the step counts are the only list of scalars
    spelled = _NS + functor.format(t=dtype, s=_NS)
    works, left = [], sum(prod(size) for size in sizes)
    while left > 0:
        part = min(left, 1 << 25)
        works.append(gpu.multi_tensor(spelled, part, moved * part, depth))
        left -= part
    if name == "aten::_foreach_norm":
        works.append(gpu.named("norm_cleanup", 1000, blocks=len(sizes), threads=512))
    return works


NAMED: dict[str, Callable[[Inputs], list[Work]]] = {
    "aten::native_layer_norm": _norm,
    "aten::native_layer_norm_backward": _norm_backward,
    "aten::_softmax": _softmax("softmax", 2),
    "aten::_softmax_backward_data": _softmax("softmax_backward", 3),
    "aten::_log_softmax": _softmax("log_softmax", 3),
    "aten::_log_softmax_backward_data": _softmax("log_softmax_backward", 4),
    "aten::nll_loss_forward": _nll,
    "aten::nll_loss_backward": _nll_backward,
    "aten::native_dropout": _dropout,
    "aten::native_dropout_backward": _dropout_backward,
    "aten::cat": _cat,
    "aten::index_select": _gather_rows,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index": _index,
    "aten::index_put": _index_put,
    "aten::index_add": _index_add,
    "aten::gather": _gather,
    "aten::scatter": _gather,
    "aten::topk": _topk,
    "aten::sort": _sort,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
