"""Forwards that run from graphs, from libraries of their own and from quantized kernels, row by row.

Names and order are those of public recordings: pytorch/ao tutorials/quantize_vit, vLLM's piecewise graphs,
FasterTransformer under alibaba/rtp-llm, deepseek-ai/profile-data.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.attribution.rows import Row, assert_right, attributed, mm, open_rows, verdict, written
from tests.trace.tools import kernel, launch, op
from tracelens.accounting.model import model_dims
from tracelens.attribution import find_calls
from tracelens.words import COMPONENTS

LAYERS = 3


def pieces(rows: list[Row]) -> list[dict[str, Any]]:
    """Rows without an operator that follow each other are one graph; the others are launched one by one."""
    events: list[dict[str, Any]] = []
    gpu, host, number = 50, 10, 0
    for graph, together in groupby(rows, lambda row: not row.op):
        for at, row in enumerate(together):
            if not graph or at == 0:
                number, host = number + 1, host + 100
                name = {"name": "cudaGraphLaunch"} if graph else {}
                events.append(launch(number, ts=host + 2) | name)
                dims = {"Input Dims": [*row.dims]} if row.dims else {}
                events += [op(row.op, ts=host, dur=10, **dims)] if row.op else []
            gpu = max(gpu, host + 5)
            events.append(kernel(row.kernel, ts=gpu, dur=row.us, correlation=number))
            gpu += row.us + 1
    return events


SERVED = [  # one layer of vLLM with compiled pieces; attention stands between two graphs
    Row("attention.output", "", "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64>"),
    Row("communication", "", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>()"),
    Row("norm", "", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"),
    Row("mlp.up", "", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64"),
    Row("mlp.activation", "", "triton_poi_fused_mul_silu_1"),
    Row("mlp.down", "", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x128x64"),
    Row("communication", "", "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>()"),
    Row("norm", "", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2"),
]
QUERIES = Row("attention.qkv", "", "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_128x64_tn>")
CORE = Row(
    "attention.core", "_vllm_fa3_C::fwd", "void cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::X>>"
)
PLAN = Row(
    "attention.core attention.other",
    "_vllm_fa3_C::get_scheduler_metadata",
    "flash::prepare_varlen_num_blocks_kernel(int)",
)
LOOKUP = Row("embedding", "", "triton_poi_fused_add_all_reduce_embedding_ge_lt_masked_fill_mul_sub_0")
SCORES = Row("logits unattributed", "aten::mm", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x256x64")


def one_pass() -> list[Row]:
    first = [PLAN, LOOKUP, SERVED[-1], QUERIES]
    return [*first, CORE, *[*SERVED, QUERIES, CORE] * (LAYERS - 1), *SERVED, SCORES]


@pytest.mark.parametrize("sizes", [(), ([46, 2880], [2880, 201088])])  # of what no graph replays: the head
def test_graphs_between_attentions_are_pieces_of_one_forward(
    tmp_path: Path, sizes: tuple[list[int], ...]
) -> None:
    rows = [*one_pass()[:-1], replace(SCORES, dims=sizes)]
    trace, _, found = attributed(tmp_path, pieces(rows))
    right, wrong = verdict(rows, trace, found)
    assert (right, wrong) == (1.0, {}), open_rows(rows, trace, found)


def test_passes_through_other_kernels_are_no_more_layers(tmp_path: Path) -> None:
    """A batch of another size runs other kernels of the same model: it is a second pass of it."""
    eager = [
        Row(row.right, row.op or "aten::mm", row.kernel.replace("64x128x64", "128x128x64"))
        if "gemm" in row.kernel
        else Row(row.right, row.op or row.kernel, row.kernel)
        for row in one_pass()
        if row.right != "communication"
    ]
    rows = [*eager, *one_pass(), *one_pass()]
    trace, links, found = attributed(tmp_path, pieces(rows))
    assert verdict(rows, trace, found)[1] == {}
    assert model_dims(found, find_calls(trace, links, found)).layers.value == LAYERS


QUANTIZED = [
    Row("attention.qkv", "", "scaled_matmul_kernel_with_block_pointers_0d1d2d3d4de5de"),
    # named after nothing but the operator that takes what it lays out: Inductor made it for that
    Row("attention.core", "", "triton_poi_fused__scaled_dot_product_flash_attention_2_0d1d2d3d4de"),
    Row(
        "attention.core",
        "",
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>",
    ),
    Row("attention.other attention.output", "", "triton_poi_fused__to_copy_clamp_div_round_5_0d1d2d3de"),
    Row("attention.output", "", "triton_tem_fused_addmm_7"),
    Row("norm", "", "triton_per_fused__to_copy_add_clamp_div_native_layer_norm_round_9_0d1d2d"),
    Row("mlp.up", "", "scaled_2_bias_matmul_kernel_with_block_pointers_0d1d2d3d4de5de"),
    Row("mlp.activation", "", "triton_poi_fused__to_copy_add_clamp_div_gelu_round_7_0d1d2d3d4d5de"),
    Row("mlp.down", "", "triton_tem_fused_mul_11"),
    Row("norm", "", "triton_per_fused__to_copy_add_clamp_div_native_layer_norm_round_8_0d1d2d"),
]
PATCHES = [
    Row("embedding", "", "triton_tem_fused_convolution_0_0d1d2d"),
    Row("norm", "", "triton_red_fused__to_copy_add_cat_clamp_div_native_layer_norm_round_1_0d1d2d"),
]


CLASSES = [  # what the head takes is quantized: added is a zero point
    Row("logits", "", "triton_poi_fused__to_copy_add_clamp_mul_reciprocal_view_16"),
    Row("logits", "", "triton_tem_fused__to_copy_add_clamp_mul_reciprocal_view_17"),
]


BENT = [  # torchao's int8 products with Inductor's template, which quantizes and bends what it gives
    row if "matmul_kernel" not in row.kernel or row.right != "mlp.up" else
    Row("mlp.up", "", "triton_tem_fused__int_mm__to_copy_add_clamp_div_gelu_round_7_0d1d2d3d4d5d6d")
    for row in QUANTIZED
    if row.right != "mlp.activation"
]  # fmt: skip


@pytest.mark.parametrize(("beside", "layer"), [(0, QUANTIZED), (1, QUANTIZED), (2, QUANTIZED), (0, BENT)])
def test_a_graph_of_quantized_products_is_read_in_order(
    tmp_path: Path, beside: int, layer: list[Row]
) -> None:
    """Whatever else the operator launches that replays the graph: one copy of its inputs, or several."""
    rows = [*PATCHES, *layer * LAYERS, *CLASSES]
    events = written(rows, graph=True)
    events.append(op("Torch-Compiled Region: 0/0", ts=-500, dur=505))
    for at in range(beside):
        events.append(op("aten::_foreach_copy_", ts=-400 + 100 * at, dur=10))
        events.append(launch(90 + at, ts=-398 + 100 * at))
        events.append(kernel("multi_tensor_apply_kernel", ts=-390 + 100 * at, dur=5, correlation=90 + at))
    trace, _, found = attributed(tmp_path, events)
    rows = [Row("unattributed", "", "", us=5)] * beside + rows
    right, wrong = verdict(rows, trace, found)
    assert (right, wrong) == (1.0, {}), open_rows(rows, trace, found)


FASTER = [  # one layer of FasterTransformer's decoder with a gated MLP, as rtp-llm runs it
    Row("attention.qkv", "", "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_32x6_nn"),
    Row("attention.other", "", "void fastertransformer::add_fusedQKV_bias_transpose_kernel<__half, false>()"),
    Row("attention.core", "", "void fastertransformer::masked_multihead_attention_kernel<unsigned short>()"),
    Row("attention.output", "", "ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x5_nn"),
    Row("norm", "", "void fastertransformer::generalRmsNorm<__half2, true, false>()"),
    Row("mlp.gate", "", "ampere_fp16_s16816gemm_fp16_128x256_ldg8_f2f_stages_64x3_nn"),
    Row("mlp.up", "", "ampere_fp16_s16816gemm_fp16_128x256_ldg8_f2f_stages_64x3_nn"),
    Row(
        "mlp.activation",
        "",
        "void fastertransformer::generic_activation<fastertransformer::SiluActivation>()",
    ),
    Row("mlp.down", "", "ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_32x3_nn"),
    Row("residual", "", "void fastertransformer::addBiasResidual<__half, 1, __half>()"),
    Row("norm", "", "void fastertransformer::generalRmsNorm<__half2, false, false>()"),
]


def test_a_library_without_operators_is_known_by_its_kernels(tmp_path: Path) -> None:
    lookup = Row("embedding", "", "void fastertransformer::embedding_lookup_kernel<__half, false>()")
    rows = [lookup, FASTER[-1], *FASTER * LAYERS]
    trace, links, found = attributed(tmp_path, written(rows))
    assert verdict(rows, trace, found) == (1.0, {}), open_rows(rows, trace, found)
    assert model_dims(found, find_calls(trace, links, found)).layers.value == LAYERS


DEEPSEEK = [  # an attention that only its kernels' names tell: its operators are functions of its own
    Row("attention.other", "LinearFP8", "void dpsk::GemmKernel()", inside="5F2B.attn(F)"),
    Row("attention.other", "RopeLoraFlashAttnVarlenFunc", "void dpsk::GemmKernel()", inside="5F2B.attn(F)"),
    Row(
        "attention.core",
        "RopeLoraFlashAttnVarlenFunc",
        "void flash::compute_attn_ws<Flash_fwd_kernel_traits<192>>",
        inside="5F2B.attn(F)",
    ),
    Row("attention.other", "RopeLoraFlashAttnVarlenFuncBackward", "void dpsk::GemmKernel()"),
]


def test_attention_that_kernels_alone_name_makes_a_transformer(tmp_path: Path) -> None:
    trace, _, found = attributed(tmp_path, written(DEEPSEEK, shapes=False))
    assert found.transformer
    assert verdict(DEEPSEEK, trace, found) == (1.0, {}), open_rows(DEEPSEEK, trace, found)


TOKENS, HIDDEN, EXPERTS = 888, 2880, 128
MIXTURE = [  # one layer of gpt-oss in vLLM (model_executor/models/gpt_oss.py): one operator for all experts
    Row("norm", "_C::rms_norm", "void vllm::rms_norm_kernel()", ([TOKENS, HIDDEN],) * 2),
    mm("attention.qkv", TOKENS, 640, HIDDEN),
    Row(
        "attention.other",
        "_C::static_scaled_fp8_quant",
        "void vllm::scaled_fp8_quant_kernel()",
        ([TOKENS, 512],) * 2,
    ),
    Row(
        "attention.core",
        "vllm::unified_attention_with_output",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKv",
        ([TOKENS, 8, 64], [TOKENS, 1, 64], [TOKENS, 1, 64], [TOKENS, 8, 64]),
    ),
    mm("attention.output", TOKENS, HIDDEN, 512),
    Row("norm", "_C::fused_add_rms_norm", "void vllm::fused_add_rms_norm_kernel()", ([TOKENS, HIDDEN],) * 2),
    mm("moe.router", TOKENS, EXPERTS, HIDDEN, inside="MLPBlock"),
    Row("moe.dispatch", "aten::copy_", "direct_copy_kernel", ([TOKENS, HIDDEN],) * 2, inside="MLPBlock"),
    Row(
        "moe.experts",
        "vllm::moe_forward",
        "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16",
        ([TOKENS, HIDDEN], [TOKENS, EXPERTS]),
        inside="MLPBlock",
    ),
]


def test_a_mixture_of_one_operator_ends_its_layer(tmp_path: Path) -> None:
    lookup = Row("embedding", "aten::embedding", "vectorized_gather_kernel", ([25136, HIDDEN], [TOKENS]))
    rows = [lookup, *MIXTURE * LAYERS]
    trace, _, found = attributed(tmp_path, [e for e in written(rows) if e.get("cat") != "user_annotation"])
    assert verdict(rows, trace, found) == (1.0, {}), open_rows(rows, trace, found)
    order = trace.kernels.ts_ns.argsort(kind="stable")
    of_product = [row.op == "aten::mm" for row in rows]
    assert found.layer[order][of_product].tolist() == [layer for layer in range(LAYERS) for _ in range(3)]
    assert "mlp.other" not in {COMPONENTS[code] for code in found.component}


SYNCLESS = [  # torchao's experts in MXFP8 (prototype/moe_training/ep/syncless), one function for both GEMMs
    mm("moe.router", 8192, 8, 7168),
    Row("moe.router", "aten::topk", "sbtopk::gatherTopK<float>", ([8192, 8],)),
    Row("moe.dispatch", "aten::sort", "DeviceRadixSortOnesweepKernel", ([8192],)),
    Row(
        "moe.experts",
        "MXFP8GroupedExpertsFunc",
        "kernel_cutlass_gmm",
        ([16384, 7168], [16384, 224], [4], [4, 4096, 7168]),
    ),
    Row("moe.experts", "torchao::to_mxfp8_dim0", "to_mxfp8_dim0_kernel", ([16384, 2048],)),
    Row("moe.experts", "aten::_scaled_grouped_mm", "GemmUniversalGroup", ([16384, 2048], [4, 2048, 7168])),
    Row("moe.dispatch", "aten::_index_put_impl_", "index_elementwise_kernel", ([8192, 7168], [8192, 7168])),
    Row("moe.dispatch", "aten::sum", "reduce_kernel", ([8192, 1, 7168],)),
]


def test_rows_weights_of_groups_and_their_sizes_are_experts_whoever_multiplies_them(tmp_path: Path) -> None:
    assert_right(tmp_path, SYNCLESS)


def test_templates_over_batches_around_a_softmax_are_attention(tmp_path: Path) -> None:
    """SAM's mask decoder, compiled (pytorch/ao examples/sam2_amg_server): attention at half the width."""
    stream, heads, scores = [4096, 256], [64, 8, 8, 16], [64, 8, 8, 64]
    clone = "triton_poi_fused_clone_mul_11"
    core = Row(
        "attention.core", "aten::_scaled_dot_product_flash_attention", "flash_fwd", ([1, 8, 4096, 32],) * 3
    )
    narrow = [
        mm("attention.qkv", 512, 128, 256),
        mm("attention.qkv", 4096, 128, 256),
        Row("attention.other", clone, clone, ([4096, 128], [384], [64, 8, 16, 64])),
        Row(
            "attention.scores",
            "triton_tem_fused_bmm_12",
            "triton_tem_fused_bmm_12",
            (heads, [64, 8, 16, 64], [512, 8, 64]),
        ),
        Row("attention.softmax", "triton_red_fused__safe_softmax_13", "triton_red_fused", (scores,)),
        Row(
            "attention.values",
            "triton_tem_fused_bmm_15",
            "triton_tem_fused_bmm_15",
            (scores, [64, 8, 64, 16], [512, 8, 16]),
        ),
        mm("attention.output", 512, 256, 128),
    ]
    norm = Row("norm", "aten::native_layer_norm", "layer_norm", (stream, [], [256], [256]))
    rows = [mm("attention.qkv", 4096, 768, 256), core, mm("attention.output", 4096, 256, 256), norm, *narrow]
    assert_right(tmp_path, rows)


DECODES = [  # one layer of OLMoE in vLLM, decoding in one graph; experts are TensorRT-LLM's
    Row("attention.qkv", "", "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_tn>"),
    Row("norm attention.*", "", "triton_poi_fused_add_mul_rms_norm_split_sub_view_3"),
    Row("attention.other", "", "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>()"),
    Row("attention.core", "", "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>()"),
    Row("attention.output", "", "internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16>()"),
    Row("norm", "", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"),
    Row("moe.router", "", "internal::gemvx::kernel<int, int, __nv_bfloat16, __nv_bfloat16>()"),
    Row("moe.router", "", "void vllm::moe::topkGating<8, 64, 4, 16, 32, int>()"),
    Row("moe.dispatch", "", "void tensorrt_llm::kernels::cutlass_kernels::expandInputRowsKernel()"),
    Row("moe.experts", "", "void fused_moe::run_global<fused_moe::Fused_Moe_Kernel_sm80>()", us=90),
    Row("moe.experts", "", "_ZN7cutlass6KernelINS_4gemm6kernel9MoeFCGemmINS1_11threadblock13MmaMultistage"),
    Row("moe.dispatch", "", "void tensorrt_llm::kernels::cutlass_kernels::finalizeMoeRoutingKernel()"),
    Row("norm", "", "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_1"),
]  # fmt: skip
SCALED = [  # experts in fp8: the range of what they take, that divided by it (fp8/common.cu)
    Row("moe.experts", "", "void vllm::segmented_max_reduction_strided<c10::BFloat16, c10::Float8_e4m3fn>()"),
    Row("moe.experts", "", "void vllm::scaled_fp8_quant_kernel_strided_dynamic<c10::BFloat16>()"),
]
FILL = Row("moe.dispatch", "", "vectorized_elementwise_kernel<4, at::native::FillFunctor<int>>")
IN_FP8 = [*DECODES[:8], FILL, *SCALED, FILL, Row("moe.experts", "", "fused_moe_kernel", us=90)]
IN_FP8 += [*SCALED, Row("moe.experts", "", "fused_moe_kernel"), DECODES[-1]]


@pytest.mark.parametrize("layer", [DECODES, IN_FP8], ids=["bf16", "fp8"])
def test_a_mixture_in_one_graph_and_the_words_drawn_behind_it(tmp_path: Path, layer: list[Row]) -> None:
    words, width = 50304, 2048
    drawn = [[1, words]]
    behind = [
        Row("unattributed", "aten::index", "index_elementwise_kernel", ([4, width],)),
        mm("logits", 1, words, width),
        Row("unattributed logits", "aten::_softmax", "cunn_SoftMaxForward", drawn),
        Row("unattributed logits", "aten::argmax", "reduce_kernel<ArgMaxOps>", drawn),
    ]
    lookup = Row("embedding norm", "", "triton_red_fused__to_copy_embedding_rms_norm_0")
    rows = [lookup, *layer * LAYERS, *behind]
    trace, links, found = attributed(tmp_path, pieces(rows))
    right, wrong = verdict(rows, trace, found)
    assert (right, wrong) == (1.0, {}), open_rows(rows, trace, found)
    dims = model_dims(found, find_calls(trace, links, found), sharded=False)
    assert (dims.layers.value, dims.vocab.value, dims.classes.value) == (LAYERS, None, None)


@pytest.mark.parametrize(
    "lookup", ["at::native::(anonymous namespace)::indexSelectSmallIndex", "embedding_kernel"]
)
@pytest.mark.parametrize(("lookups", "layers"), [(1, 4), (2, None), (0, None)])
def test_a_replay_that_looks_tokens_up_once_is_one_pass_of_its_layers(
    tmp_path: Path, lookups: int, layers: int | None, lookup: str
) -> None:
    """A decode step of SGLang's: one launch, and nothing else of the model in the file."""
    gemm = "nvjet_sm103_tst_64x16_64x16_4x1_v_bz_TNT"
    norm = Row("norm", "", "kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnorm")
    layer = [
        *[norm, Row("attention.qkv", "", gemm), Row("attention.core", "", "fmhaSm100fKernel_QkvBfloat16")],
        *[Row("attention.output", "", f"{gemm}_2"), norm, Row("mlp.up", "", f"{gemm}_3")],
        Row("mlp.activation", "", "void (anonymous namespace)::act_and_mul_kernel<__nv_bfloat16, silu>"),
        Row("mlp.down", "", f"{gemm}_4"),
    ]
    table = Row("embedding", "", f"void {lookup}<c10::BFloat16>")
    rows = [*lookups * [table], *4 * layer, norm, Row("logits", "", f"{gemm}_5")]
    trace, links, found = attributed(tmp_path, written(rows, graph=True))
    assert verdict(rows, trace, found)[1] == {}
    assert model_dims(found, find_calls(trace, links, found)).layers.value == layers


def test_quantized_inputs_are_of_the_product_that_takes_them(tmp_path: Path) -> None:
    """One dense and four sparse layers of DeepSeek-V3 as ModelTC/lightllm decodes it in a graph, in fp8."""
    cast = "void per_token_group_quant_8bit_kernel<__nv_bfloat16, __nv_fp8_e4m3>(void*)"
    tiles = "64u, 16u, 128u, 32u, 12u, 8u, 128u, 128u, 1u, true, 96u, (deep_gemm::GemmType)0"

    def product(right: str, n: int, k: int) -> list[Row]:
        name = f"void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, {n}u, {k}u, 1u, {tiles}>(float*)"
        scales = [Row(right, "", "_tma_align_input_scale_kernel")] if n % 3 else []
        return [Row(right, "", cast), *scales, Row(right, "", name)]

    norm, reduced = (
        Row("norm", "", "_rms_norm_fwd_fused"),
        "void sglang::cross_device_reduce_2stage<int, 8>()",
    )
    add = Row("residual", "", "void at::native::vectorized_elementwise_kernel<8, CUDAFunctor_add<int>>")
    ends = [Row("communication", "", reduced), add, norm]
    attends = [
        *[*product("attention.qkv", 1536, 7168), norm, *product("attention.qkv", 3072, 1536)],
        *[Row("attention.qkv", "", "_block_scaled_block_gemm"), norm],
        Row("attention.rope", "", "_rotary_kernel"),
        Row("attention.qkv attention.other", "", "nvjet_tst_64x48_64x15_2x1_v_bz_NNT"),
        PLAN,
        CORE,
        Row("attention.other attention.output", "", "nvjet_tst_64x16_64x16_2x1_v_bz_NNT"),
        *[*product("attention.output", 7168, 2048), *ends],
    ]
    dense = [*product("mlp.up", 4608, 7168), Row("mlp.activation", "", "_silu_and_mul_kernel_fast")]
    dense += [*product("mlp.down", 7168, 2304), *ends]
    sparse = [
        Row("moe.router", "", "nvjet_tst_64x16_64x16_2x4_v_bz_splitK_TNT"),
        Row("moe.router", "", "grouped_topk_kernel"),
        Row("moe.dispatch", "", "moe_align_block_size_kernel"),
        *[Row("moe.experts", "", cast), Row("moe.experts", "", "grouped_matmul_kernel", us=90)],
        Row("moe.experts", "", "_silu_and_mul_kernel_fast"),
        *[Row("moe.experts", "", cast), Row("moe.experts", "", "grouped_matmul_kernel", us=60)],
        Row("moe.dispatch", "", "_moe_sum_reduce_kernel"),
        *ends,
    ]
    scores = Row("logits", "", "nvjet_tst_48x128_64x9_1x2_h_bz_TNN", us=60)
    planned = [Row(row.right, "", row.kernel, us=row.us) for row in attends]
    rows = [
        Row("embedding", "", "embedding_kernel"),
        norm,
        *planned,
        *dense,
        *[*planned, *sparse] * 4,
        scores,
    ]
    trace, _, found = attributed(tmp_path, written(rows, graph=True))
    assert verdict(rows, trace, found) == (1.0, {}), open_rows(rows, trace, found)


def _tile(right: str, tile: str) -> Row:
    if not tile:
        return Row(right, "", "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16>")
    return Row(right, "", f"Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{tile}x64_MI16x16x1_SN_LDSB1")


MODULATED = Row("norm", "", "triton_red_fused_add_addmm_mul_native_layer_norm_split_unsqueeze_view_3")
TURNED = Row("attention.rope", "", "triton_poi_fused__to_copy_add_cat_mul_neg_stack_unbind_unsqueeze_view_4")
ATTENDED = Row("attention.core", "", "aiter::fmha_fwd_hd128_bf16_rtz")


def _joint_layer(few: str) -> list[Row]:
    """Behind a core: two streams with layers of their own (arXiv 2403.03206), conditions between them."""
    rows = [_tile("attention.output", "64x48"), MODULATED, _tile("attention.output", "96x96"), MODULATED]
    for at, tile in enumerate(("128x64", "128x128")):
        bent = Row("mlp.activation", "", f"triton_poi_fused_addmm_gelu_view_{at}")
        rows += [_tile("other", few), _tile("mlp.up", tile), bent, _tile("mlp.down", tile), MODULATED]
    return [*rows, *[_tile("attention.qkv", "96x96")] * 6, TURNED, ATTENDED]


def _single_layer(few: str, bent: str) -> list[Row]:
    """The MLP stands beside the attention, and its last product takes both."""
    mlp = [_tile("mlp.up", "128x256"), Row("mlp.activation", "", bent), _tile("mlp.down", "128x192")]
    return [_tile("other", few), *mlp, MODULATED, *[_tile("attention.qkv", "96x96")] * 3, TURNED, ATTENDED]


@pytest.mark.parametrize(("few", "bent", "known"), [
    ("128x16", "triton_poi_fused_addmm_cat_gelu_view_5", True),
    ("", "triton_poi_fused_addmm_cat_gelu_view_5", True),
    ("128x64", "triton_poi_fused_addmm_cat_gelu_view_5", False),
    ("128x16", "triton_poi_fused_addmm_gelu_view_5", False),
])  # fmt: skip
def test_in_graphs_conditions_have_few_rows_and_a_last_product_takes_attention_too(
    tmp_path: Path, few: str, bent: str, known: bool
) -> None:
    """FLUX under torch.compile, of both kinds of layers."""
    rows = [TURNED, ATTENDED, *_joint_layer(few) * 3, *_single_layer(few, bent) * 6]
    trace, _, found = attributed(tmp_path, pieces(rows))
    right, wrong = verdict(rows, trace, found)
    assert (right > 0.95) is known
    assert wrong == {}
