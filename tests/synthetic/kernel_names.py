"""Names of ATen and FlashAttention kernels, spelled as in traces of H100 training runs.

In the templates ``@`` stands for ATen's anonymous namespace, ``$`` for the element type.
"""

from __future__ import annotations

BF16 = "c10::BFloat16"

_SORT = (
    "void at_cuda_detail::cub::DeviceRadixSort{0}Kernel<at_cuda_detail::cub::DeviceRadixSortPolicy"
    "<long, long, unsigned long long>::Policy900, false, long>"
    "(unsigned long long*, long const*, unsigned long long, int, int)"
)
_CAT_TYPE = "@OpaqueType<2u>, unsigned int"
_ARANGE = (
    "at::native::arange_cuda_out(c10::Scalar const&, c10::Scalar const&, c10::Scalar const&, at::Tensor&)"
    "::{lambda()#1}::operator()() const::{lambda()#4}::operator()() const::{lambda(long)#1}"
)

_KERNELS = {
    "layer_norm": "void @vectorized_layer_norm_kernel<$, float, false>"
    "(int, float, $ const*, $ const*, $ const*, float*, float*, $*)",
    "layer_norm_input": "void @layer_norm_grad_input_kernel_vectorized<$, float, false>"
    "($ const*, $ const*, float const*, float const*, $ const*, $*, int)",
    "layer_norm_weight": "void @GammaBetaBackwardCUDAKernelTemplate"
    "<$, float, 32u, 8u, 64u, true, true, false>"
    "(long, long, $ const*, $ const*, float const*, float const*, $*, $*)",
    "gather": "void at::native::vectorized_gather_kernel<16, long>"
    "(char*, char*, long*, int, long, long, long, long, bool)",
    "sort_histogram": _SORT.format("Histogram"),
    "sort_onesweep": _SORT.format("Onesweep"),
    "embedding_weight": "void @compute_grad_weight<$, long>"
    "(long const*, $ const*, long const*, long, long, long const*, @opmath_t<$>*, long)",
    "embedding_scatter": "void @sum_and_scatter<$, long>"
    "(long const*, $*, long, long const*, long const*, float const*, long const*, long, long, long)",
    "log_softmax": "void @cunn_SoftMaxForward<8, $, float, $, @LogSoftMaxForwardEpilogue>($*, $ const*, int)",
    "log_softmax_backward": "void @cunn_SoftMaxBackward<8, $, float, $, @LogSoftMaxBackwardEpilogue>"
    "($*, $ const*, $ const*, long)",
    "softmax": "void @cunn_SoftMaxForward<4, $, $, $, @SoftMaxForwardEpilogue>($*, $ const*, int)",
    "softmax_backward": "void @cunn_SoftMaxBackward<4, $, $, $, @SoftMaxBackwardEpilogue>"
    "($*, $ const*, $ const*, long)",
    "nll_loss": "void @nll_loss_forward_reduce_cuda_kernel_2d<$, float, long>"
    "($*, $*, $ const*, long const*, $ const*, bool, long, long, long, long)",
    "nll_loss_backward": "void @nll_loss_backward_reduce_cuda_kernel_2d<$, long>"
    "($*, $ const*, long const*, $ const*, $ const*, bool, int, int, long, long)",
    "cat": f"void @CatArrayBatchedCopy_contig<{_CAT_TYPE}, DIMS, 128, 1>(@OpaqueType<2u>*, "
    f"@CatArrInputTensorMetadata<{_CAT_TYPE}, 128, 1>, @TensorSizeStride<unsigned int, 4u>, int, "
    "unsigned int)",
    "arange": f"void (anonymous namespace)::elementwise_kernel_with_index<int, {_ARANGE}>"
    f"(int, {_ARANGE}, function_traits<{_ARANGE}>::result_type*)",
    "norm_cleanup": "void @lpnorm_cleanup<$, (at::native::NormType)1, $, float>"
    "(float const*, @TensorListAddresses, int)",
}

_ITER = "at::TensorIteratorBase&"


def _lambda(where: str, first: int, second: int, arguments: str) -> str:
    """A functor as nvcc names it: the lambda in the lambda in the lambda of a kernel launcher."""
    inner = f"{{lambda()#{second}}}::operator()() const::{{lambda({arguments})#1}}"
    return f"{where}::{{lambda()#{first}}}::operator()() const::{inner}"


#: Functor and number of arrays of elementwise kernels.
_FUNCTORS = {
    "add": ("at::native::CUDAFunctor_add<$>", 3),
    "mul": ("at::native::BinaryFunctor<$, $, $, at::native::binary_internal::MulFunctor<float> >", 3),
    "scale": ("at::native::AUnaryFunctor<$, $, $, at::native::binary_internal::MulFunctor<float> >", 2),
    "fill": ("at::native::FillFunctor<$>", 1),
    "gelu": (_lambda(f"at::native::GeluCUDAKernelImpl({_ITER}, at::native::GeluType)", 2, 4, "$"), 2),
    "gelu_backward": (
        _lambda(f"at::native::GeluBackwardCUDAKernelImpl({_ITER}, at::native::GeluType)", 2, 4, "$, $"),
        3,
    ),
    "silu": (_lambda(f"@silu_kernel({_ITER})", 1, 4, "$"), 2),
    "silu_backward": (_lambda(f"@silu_backward_kernel({_ITER})", 1, 4, "$, $"), 3),
    "neg": (_lambda(f"at::native::neg_kernel_cuda({_ITER})", 2, 8, "$"), 2),
    "pow": (f"@pow_tensor_scalar_kernel_impl<$, $>({_ITER}, $)::{{lambda($)#1}}", 2),
    "rsqrt": (_lambda(f"at::native::rsqrt_kernel_cuda({_ITER})", 2, 2, "$"), 2),
    "add_scalar": ("at::native::CUDAFunctorOnSelf_add<$>", 2),
    "masked_fill": (
        _lambda("@masked_fill_kernel(at::TensorIterator&, c10::Scalar const&)", 1, 12, "$, bool"),
        3,
    ),
    "widen": (f"at::native::bfloat16_copy_kernel_cuda({_ITER})::{{lambda({BF16})#1}}", 2),
    "narrow": (f"at::native::bfloat16_copy_kernel_cuda({_ITER})::{{lambda(float)#1}}", 2),
}


def _fill(template: str, dtype: str) -> str:
    return template.replace("@", "at::native::(anonymous namespace)::").replace("$", dtype)


def kernel_name(key: str, dtype: str = BF16, *, dims: int = 3) -> str:
    """A kernel that has a name of its own."""
    return _fill(_KERNELS[key], dtype).replace("DIMS", str(dims))


def elementwise_name(key: str, dtype: str = BF16) -> tuple[str, int]:
    """Name of a vectorized elementwise kernel, and how many arrays it touches."""
    functor, arrays = _FUNCTORS[key]
    functor = _fill(functor, dtype)
    pointers = f"std::array<char*, {arrays}ul>"
    width = 8 if dtype == BF16 else 4
    call = f"(int, {functor}, {pointers})"
    return f"void at::native::vectorized_elementwise_kernel<{width}, {functor}, {pointers} >{call}", arrays


def strided_copy_name() -> str:
    """The copy that cannot be vectorized."""
    functor = (
        f"at::native::direct_copy_kernel_cuda({_ITER})::{{lambda()#3}}::operator()() const::{{lambda()#12}}"
    )
    inner = f"at::native::gpu_kernel_impl_nocast<{functor}::operator()() const::{{lambda({BF16})#1}}>"
    tail = f"{inner}({_ITER}, {functor} const&)::{{lambda(int)#1}}"
    return f"void at::native::elementwise_kernel<128, 4, {tail}>(int, {tail})"


def sum_name() -> str:
    functor = f"at::native::sum_functor<{BF16}, float, {BF16}>::operator()(at::TensorIterator&)"
    wrapper = f"at::native::func_wrapper_t<{BF16}, {functor}::{{lambda(float, float)#1}}>"
    op = f"at::native::ReduceOp<{BF16}, {wrapper}, unsigned int, {BF16}, 4, 4>"
    return f"void at::native::reduce_kernel<128, 4, {op} >({op})"


def flash_name(kind: str, size: int, *, exact: bool) -> str:
    """FlashAttention 2 as PyTorch builds it; ``exact``: the head dimension is the kernel's own."""
    columns, warps = (128, 4) if size <= 64 else (64, 8)
    space, dtype = "pytorch_flash::", "cutlass::bfloat16_t"
    traits = f"{space}Flash_kernel_traits<{size}, 128, {columns}, {warps}, {dtype}>"
    if kind == "forward":
        inner = f"{space}Flash_fwd_kernel_traits<{size}, 128, {columns}, 4, false, false, {dtype}, {traits} >"
        flags = f"false, true, false, false, {'true' if exact else 'false'}, true, false, false"
        return f"void {space}flash_fwd_kernel<{inner}, {flags}>({space}Flash_fwd_params)"
    inner = f"{space}Flash_bwd_kernel_traits<{size}, 128, 128, 8, 4, 4, 4, false, false, {dtype}, {traits} >"
    if kind == "dot":
        return f"void {space}flash_bwd_dot_do_o_kernel<true, {inner} >({space}Flash_bwd_params)"
    if kind == "convert":
        return f"void {space}flash_bwd_convert_dq_kernel<{inner} >({space}Flash_bwd_params, int)"
    flags = "false, true, false, false, false, true, false"
    name = f"{space}flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<{inner}, {flags}>"
    return f"void {name}({space}Flash_bwd_params)"
