"""The table of GEMM kernel names, and of the names that look like GEMMs and are none.

Order matters: kernels that only mention a GEMM (fused pointwise and reduction kernels carry the names
of the operators around them) are refused first (``NOT_GEMM``), then attention is looked for, then
convolutions are refused (they run as implicit GEMMs, with a GEMM's words in their names), then the
families below, strict patterns before loose ones.

A strict pattern states its name to the end, so that a name cut off, or with more in it than is known here,
falls through to the loose one of its family, which says the family and nothing else. What the parts mean
is in ``gemm_readers``, for kernels named by their templates in ``cutlass_templates``.
"""

from __future__ import annotations

import re

from tracelens.gemm import cutlass_templates as templates
from tracelens.gemm import gemm_readers as read
from tracelens.gemm.gemm_readers import TYPE
from tracelens.gemm.kernel_fields import NameRule, nothing, rule

#: Never a GEMM, whatever operators the name lists: generated pointwise and reduction kernels, ATen's own
#: elementwise and reduction kernels, collectives, copies. Anchored: a GEMM may mention any of these words
#: in its template arguments or, as triton_tem_fused_addmm_native_layer_norm_3 does, in its epilogue.
NOT_GEMM = re.compile(
    r"^triton_(?:poi|per|red|for|split_scan|mix)_|^triton__\d|^(?:nccl|rccl|Memcpy|Memset)"
    r"|^(?:void )?(?:\(anonymous namespace\)::)?(?:at::native|fbgemm_gpu|at_cuda_detail::cub|cub|thrust)::"
)
#: Convolutions run as implicit GEMMs; they are not matrix products of the model and are not judged here.
CONVOLUTION = re.compile(
    r"implicit_gemm|convol|[fdw]grad(?!_gemm)|fprop|_conv\d?_|_conv_|conv_fwd|conv_bwd|cudnn|igemm_(?:fwd|bwd|wrw)"
    r"|[Ww]inograd|miopen"
)

#: A library's name that a C++ wrapper has as its template argument stands in <>; bare, it is all there is.
_OPEN, _CLOSE = r"(?:^|(?P<wrapped><))", r"(?(wrapped)>|$)"
#: The first of them: what follows is looked for behind it once, not behind each (names can be anything).
_CUTLASS = r"^(?>.*?cutlass)"
_ALIGN = r"align(?P<align>1|2|4|8|16|32|64|128)"
_NVJET_TYPES = r"(?P<types>[a-z]{3}|[a-z]{5})"
_NVJET_END = r"_(?:bz|bx|badd)(?P<rest>(?:_[A-Za-z0-9]+)*?)_(?P<layout>[NT]{2})"

GEMM_RULES: tuple[NameRule, ...] = (
    rule("gemm_helper", "splitk_reduce", r"splitKreduce_kernel", nothing),
    rule(
        "gemm_helper",
        "cublas_epilogue",
        r"^(?>.*?epilogue::impl::globalKernel<).*cublasLtEpilogue_t",
        nothing,
    ),
    rule("gemm_helper", "cublas_dot", r"^(?>.*?reduce_1Block_kernel).*cublasGemv", nothing),
    rule("gemm_helper", "splitk_reduce", r"cutlass\w{0,40}::reduction::kernel::ReduceSplitK", nothing),
    # ROCm/hipBLASLt tensilelite/Tensile/KernelWriterConversion.py: the sum behind a global split-U GEMM
    rule("gemm_helper", "splitk_reduce", r"^C[a-z]+_[A-Z]\w*_PostGSU\d*(?:_|$)", nothing),
    rule("gemm", "cublas_dot", r"^(?>.*?(?<![A-Za-z_])dot_kernel).*cublasDotParams", read.simt),
    rule(
        "gemm",
        "nvjet",
        rf"^nvjet_(?:sm(?P<sm>\d+)_)?{_NVJET_TYPES}_(?P<a>\d+)x(?P<b>\d+)_(?P<k>\d+)x(?P<stages>\d+)"
        rf"_(?P<cluster>\d+x\d+)f?(?:_2cta)?_[hv]{_NVJET_END}[NT]$",
        read.nvjet,
    ),
    rule(
        "gemm",
        "nvjet",
        rf"^nvjet_sm(?P<sm>12\d)_{_NVJET_TYPES}_mma_(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)_(?P<stages>\d+)"
        rf"_\d+x\d+x\d+_tma[AB]+(?:_alignCD\d+)?{_NVJET_END}[NT]{{2}}$",
        read.nvjet,
    ),
    rule("gemm", "nvjet", r"^nvjet_", read.tensor),
    rule(
        "gemm",
        "sm{sm}_xmma",
        rf"\bsm(?P<sm>\d+)_xmma_gemm_(?P<types>{TYPE}[a-z0-9_]*?)_(?P<layout>[nt]{{2}})_[nt]"
        r"_tilesize(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)"
        r"(?P<rest>(?=(?:\w*?_stage(?P<stages>\d+)_)?)\w*_kernel(?:_\w+)?)(?![\w.])",
        read.xmma,
    ),
    rule("gemm", "sm{sm}_xmma", r"\bsm(?P<sm>\d+)_xmma_gemm_", nothing),
    rule(
        "gemm",
        "cutlass3",
        # sm100's tiles are those of one or of two SMs, which the schedule at the end says.
        rf"{_OPEN}cutlass3x_sm(?:90|12\d|1[01]\d[af]?(?=\w*_[12]sm(?:_|\b)))_(?P<core>(?:bs)?tensorop|simt)_[a-z]*(?:\d+x\d+x\d+)?gemm(?:_block_scaled)?"
        rf"_(?P<types>[a-z]+\d\w*?)_(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)_(?P<cluster>\d+x\d+)x1"
        rf"_(?P<stages>\d+)_(?P<layout>[nt]{{3}})_{_ALIGN}(?P<rest>(?:_\w+)?){_CLOSE}",
        read.cutlass3,
    ),
    rule("gemm", "cutlass3", r"cutlass3x_sm\d+_\w{0,99}gemm", nothing),
    rule(
        "gemm",
        "cutlass2",
        rf"{_OPEN}cutlass_\d+_(?P<core>(?:wmma_)?tensorop|simt)_(?:(?P<d_type>{TYPE})_)?"
        rf"(?P<op>[a-z])(?P<mma>\d*)gemm(?:_relu|_gelu)?(?:_(?P<a_type>{TYPE}))?_(?P<a>\d+)x(?P<b>\d+)"
        r"(?:_(?P<k>\d+)x(?P<stages>\d+))?(?:_sliced\d+x\d+)?_(?P<layout>[nt]{2})"
        rf"_{_ALIGN}{_CLOSE}",
        read.cutlass2,
    ),
    rule("gemm", "cutlass2", r"cutlass_\d+_(?:wmma_)?(?:tensorop|simt)_\w{0,99}gemm", nothing),
    rule("gemm", "deepgemm", r"deep_gemm::(?P<name>\w{0,99}gemm\w{0,99})<", templates.deep_gemm),
    rule(
        "gemm_helper",
        "grouped",
        r"prepare_grouped_gemm_data|set_grouped_gemm_args_kernel|grouped_gemm::cuda::utils::"
        r"|kernel_cutlass_prepare_kernel\w{0,99}_gmm",
        nothing,
    ),
    # Groups of unequal size: the tile is known, how many of them are not.
    rule("gemm", "grouped", rf"{_CUTLASS}(?>.*?GroupProblemShape).*CollectiveMma<", templates.cutlass3),
    rule("gemm", "grouped", rf"{_CUTLASS}.*(?:GroupProblemShape|GroupedBlockScaledGemm)", read.tensor),
    rule("gemm", "grouped", r"cutlass\w{0,40}::gemm::kernel::GemmGrouped<", templates.cutlass2),
    rule("gemm", "grouped", rf"{_CUTLASS}.*GemmGrouped", nothing),
    # The experts' way in with its activation: TensorRT-LLM and FlashInfer, fused_moe_kernel.cuh.
    rule("gemm", "grouped", r"\bfused_moe::run_global<fused_moe::Fused_Moe_Kernel_sm\d+<", read.tensor),
    rule("gemm", "cutlass3", rf"{_CUTLASS}(?>.*?GemmUniversal<).*CollectiveMma<", templates.cutlass3),
    # A class of one's own for CUTLASS's launcher, which has no other use for the name (DeepSeek's fp8).
    rule("gemm", "cutlass3", r"cutlass::device_kernel<(?:\w{1,99}::){0,9}GemmKernel>", read.tensor),
    # A family of its own: nothing says that its grids are those of the library's kernels.
    rule(
        "gemm",
        "cutlass2_template",
        r"^(?>.*?cutlass\w{0,40}::gemm::kernel::\w{1,99}<).*threadblock::Mma",
        templates.cutlass2,
    ),
    # GemmUniversal is a template of CUTLASS 2 and, with a problem shape or collectives in it, of CUTLASS 3.
    rule(
        "gemm",
        "cutlass3",
        rf"{_CUTLASS}(?:.*GemmUniversal<cute::tuple<|(?>.*?GemmUniversal).*Collective)",
        nothing,
    ),
    rule("gemm", "cute_dsl", r"^kernel_cutlass_kernel_\w*Gemm", nothing),
    rule(
        "gemm",
        "trtllm_gen",
        r"^(?:bmm|gemm)_\w+?_t(?P<a>\d+)x(?P<b>\d+)x(?P<k>\d+)(?:u\d+)?(?P<rest>_\w*_sm\d+[af]?)$",
        read.trtllm_gen,
    ),
    rule("gemm", "trtllm_gen", r"^(?:bmm|gemm)_\w+?_t\d+x\d+x\d+(?:u\d+)?_s\d+_et\d+x\d+_", read.tensor),
    rule(
        "gemm",
        "legacy",
        rf"^(?:kepler|maxwell|volta|turing|ampere|hopper)_(?:(?P<d_type>{TYPE})_)?(?P<op>[a-z]+)(?P<mma>\d*)gemm"
        rf"(?:_(?P<a_type>{TYPE}))?_(?P<a>\d+)x(?P<b>\d+)(?P<rest>(?:_[A-Za-z0-9]+)*?)_(?P<layout>[nt]{{2}})"
        r"(?:_v\d+)?$",
        read.legacy,
    ),
    rule("gemm", "legacy", r"^(?:kepler|maxwell|volta|turing|ampere|hopper)_\w*gemm(?=_)", nothing),
    rule("gemm", "gemmsn", r"gemmSN_(?P<layout>[NT]{2})_kernel", read.gemmsn),
    rule("gemm", "gemmk1", r"gemmk1_kernel", read.simt),
    rule("gemm", "gemv", r"(?<![A-Za-z_])gemv\w*kernel|internal::gemvx::kernel", read.simt),
    rule("gemm", "magma", r"magma_sgemmEx_kernel", read.sgemm),
    rule("gemm", "legacy", r"\bsgemm_largek_lds64", read.sgemm),
    rule(
        "gemm",
        "triton_template",
        # Inductor's templates, in a compiled graph and, by the template's own name, while it tunes them
        # (torch/_inductor/kernel/{mm,bmm,mm_plus_mm,mm_grouped}.py). Their tile is in no trace: it is
        # compiled into the source, and the launch's kernel_kwargs stay empty (triton.Config({}) in
        # torch/_inductor/runtime/triton_heuristics.py, template). A template whose fused name lists no
        # product is not told apart from a convolution: triton_tem_fused_mul_9.
        r"^triton_tem_fused(?=_)(?!\w*convolution)\w*_(?:addmm|baddbmm|bmm|mm)(?=_|$)"
        r"|^triton_(?:mm|bmm|mm_plus_mm|mm_persistent(?:_tma)?|scaled_mm_device_tma_\w+"
        r"|blackwell_ws_persistent_device_tma|(?:scaled_)?grouped_mm)(?:_\d+)?$",
        nothing,
    ),
    # Muon's X X^T and b A + c A A^T, see user_kernels.
    rule("gemm", "triton_symmetric", r"^(?:XXT|XTX|ba_plus_cAA)_kernel$", nothing),
    rule("gemm", "triton_moe", r"^fused_moe_kernel(?:_gptq_awq)?\b", nothing),
    rule(
        "gemm",
        "triton_grouped",
        r"^_?(?:kernel_)?(?:cg_)?group(?:ed)?_(?:gemm|matmul)\w*(?:kernel|forward|backward)",
        nothing,
    ),
    rule(
        "gemm",
        # By their authors' names: the Triton tutorials, triton_kernels, vLLM, DeepSeek-V3, modded-nanogpt,
        # torchao/kernel/intmm_triton.py.
        "triton_user",
        r"^_?(?:p_|scaled_(?:\d_)?(?:bias_)?)?matmul_(?:kernel|ogs)|^_?w8a8_(?:triton_)?block_(?:scaled|fp8)_(?:mm|matmul)"
        r"|^_?fp8_gemm\w*kernel|^_?block_scaled_block_gemm|^_?scaled_mm_kernel|^linear_relu_square_kernel$|^awq_gemm_kernel",
        nothing,
    ),
    # Weights of 4 or 8 bits, unpacked inside the product.
    rule("gemm", "marlin", r"\bmarlin\w*::(?:\w+::)*Marlin\w*|\bMarlin(?:_24)?<", read.tensor),
    rule(
        "gemm",
        "quantized",
        r"gemm_half_q_half\w{0,99}_kernel|gemm_forward_4bit_cuda|gemm_4bit_inference",
        nothing,
    ),
    rule("gemm", "ck", r"\bck::kernel_\w{0,99}gemm|\bck_tile::\w{0,99}Gemm\w{0,99}Kernel", nothing),
    rule(
        "gemm",
        "tensile",
        r"^(?:Custom_)?Cijk_(?P<a>Ailk|Alik)_(?P<b>Bljk|Bjlk)_(?P<type>[A-Z])",
        read.tensile,
    ),
)
