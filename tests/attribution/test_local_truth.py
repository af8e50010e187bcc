"""What the longest kernels of recordings that nobody prepared are, read by hand.

Read from the traces (names, shapes, order) and from the public source of the models
(shared/traces/README.md), before the code that these tests judge was written. A kernel is right or
unattributed, and not wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.trace.tools import shared_traces
from tracelens.attribution import Attribution, attribute
from tracelens.trace import Trace, link, read_trace
from tracelens.trace.tables import Details, Inputs
from tracelens.words import COMPONENTS, PHASES

WRONG = 0.005  # of all GPU time

IMAGE = "other"  # no part of a transformer: upsampling of masks, convolutions, boxes
PAIRS = "embedding attention.other other"  # ParticleTransformer's PairEmbed: convolutions that make a bias


@dataclass(frozen=True)
class Row:
    """One distinct kernel: parts of its names, and the components that are right for it."""

    right: str
    op: str
    dims: str = ""  # how the recorded shapes begin, without blanks
    kernel: str = ""
    phase: str = ""
    us: tuple[float, float] = (0, 1e9)  # one kernel name with two sizes of work: told apart by duration


MLP_GRADIENTS = "mlp.up mlp.down"  # of both weights: one shape and one kernel, told apart by order alone
D1 = (  # modded-nanogpt: fp8 logits, rotation and norms of queries and keys in one kernel
    Row(MLP_GRADIENTS, "aten::mm", "[[768,32768],[32768,3072]", phase="backward"),
    Row("loss logits", "triton_red_fused__log_softmax_div_mul_prepare_softmax_online_sigmoid"),
    Row("attention.core", "flash_attn_3::bwd"),
    Row("mlp.up", "aten::mm", "[[32768,768],[768,3072]", phase="forward"),
    Row("mlp.down", "aten::mm", "[[32768,768],[768,3072]", phase="backward"),
    Row("loss logits", "triton_red_fused__log_softmax__log_softmax_backward_data"),
    Row("loss logits", "triton_poi_fused__scaled_mm__to_copy_clone_div_lift_fresh_permute_0"),
    Row("mlp.down", "aten::mm", "[[32768,3072],[3072,768]", phase="forward"),
    Row("mlp.up", "aten::mm", "[[32768,3072],[3072,768]", phase="backward"),
    Row("logits", "aten::_scaled_mm"),
    Row("mlp.activation", "triton_poi_fused__unsafe_view_mul_nll_loss_forward_pow_relu_threshold_"),
    Row("attention.qkv", "aten::mm", "[[32768,768],[768,2304]"),
    Row("attention.qkv", "aten::mm", "[[2304,32768],[32768,768]"),
    Row("attention.qkv", "aten::mm", "[[32768,2304],[2304,768]"),
    Row("mlp.activation", "triton_poi_fused__unsafe_view_pow_relu_9"),
    Row(
        "attention.rope norm",
        "triton_red_fused__fused_rms_norm__fused_rms_norm_backward__unsafe_view_add_cat",
    ),
    Row("attention.rope norm", "triton_red_fused__fused_rms_norm__unsafe_view_add_cat_mul_neg"),
    Row("communication", "record_param_comms"),
    Row("attention.core", "flash_attn_3::fwd"),
    # launched before the recording too
    Row(MLP_GRADIENTS, "", kernel="192x192_64x3_2x1_v_bz_coopB_splitK_NTN"),
)
D1B = tuple(  # the same script after a change: its compiler named two kernels otherwise
    row
    for row in D1
    if not row.op.startswith(("triton_red_fused__fused_rms", "triton_poi_fused__unsafe_view_pow"))
)
RANKS = (  # the same model two months later, rank 3 of 8: both weights of the MLP are stored alike
    Row("communication", "record_param_comms"),
    Row(MLP_GRADIENTS, "aten::mm", "[[3072,16384],[16384,768]", phase="backward"),
    Row("attention.core", "flash_attn_3::"),
    Row("loss logits", "triton_red_fused__log_softmax_div_mul_prepare_softmax_online_sigmoid"),
    Row("mlp.up", "aten::mm", "[[16384,768],[768,3072]", phase="forward"),
    Row("mlp.down", "aten::mm", "[[16384,768],[768,3072]", phase="backward"),
    Row("loss logits", "triton_red_fused__log_softmax__log_softmax_backward_data"),
    Row("loss logits", "triton_poi_fused__scaled_mm__to_copy_clone_div_lift_fresh_permute_0"),
    Row("mlp.down", "aten::mm", "[[16384,3072],[3072,768]", phase="forward"),
    Row("mlp.up", "aten::mm", "[[16384,3072],[3072,768]", phase="backward"),
    Row("mlp.activation", "triton_poi_fused__unsafe_view_mul_nll_loss_forward_pow_relu_threshold_"),
    Row("logits", "aten::_scaled_mm"),
    Row("attention.qkv", "aten::mm", "[[16384,768],[768,2304]"),
    Row("attention.qkv", "aten::mm", "[[2304,16384],[16384,768]"),
    Row("attention.qkv", "aten::mm", "[[16384,2304],[2304,768]"),
    Row("mlp.activation", "triton_poi_fused__unsafe_view_pow_relu_view_9"),
)
D2 = (  # torch-profile trace_04: 4 layers of 512, vocabulary 8192, nn.Linear throughout
    Row("attention.core", "aten::_efficient_attention_"),
    Row("optimizer", "aten::_fused_adamw_"),
    Row("logits", "aten::mm", "[[1024,8192],[8192,512]"),
    Row("mlp.up", "aten::mm", "[[2048,1024],[1024,512]"),
    Row("mlp.up", "aten::addmm", "[[2048],[1024,512],[512,2048]"),
    Row("mlp.down", "aten::mm", "[[1024,512],[512,2048]", phase="backward"),
    Row("mlp.down", "aten::mm", "[[512,1024],[1024,2048]"),
    Row("mlp.down", "aten::mm", "[[1024,2048],[2048,512]", phase="forward"),
    Row("mlp.up", "aten::mm", "[[1024,2048],[2048,512]", phase="backward"),
    Row("logits", "aten::mm", "[[1024,512],[512,8192]"),
    Row("logits", "aten::mm", "[[8192,1024],[1024,512]"),
    Row("attention.qkv", "aten::mm", "[[1024,512],[512,1536]"),
    Row("attention.qkv", "aten::mm", "[[1536,1024],[1024,512]"),
    Row("attention.qkv", "aten::mm", "[[1024,1536],[1536,512]"),
    # launched before the recording too: of these kernels' launched twins
    Row("mlp.up attention.qkv logits", "", kernel="ampere_sgemm_64x64_nt"),
    Row("mlp.up mlp.down attention.qkv", "", kernel="ampere_sgemm_128x64_nn"),
    Row("attention.core", "", kernel="fmha_cutlassB"),
    Row("attention.output", "aten::mm", "[[1024,512],[512,512]"),
    Row("attention.output", "aten::mm", "[[512,1024],[1024,512]"),
    Row("mlp.activation", "triton_poi_fused_gelu_gelu_backward"),
    Row("loss", "aten::_log_softmax_backward_data"),
)
BERT = (  # BertForMaskedLM, 4 layers: its head is dense, gelu and norm before the decoder
    Row("attention.qkv attention.output logits other", "aten::addmm", "[[512],[141,512],[512,512]"),
    Row("logits", "aten::addmm", "[[30522],[141,512],[512,30522]"),
    Row("attention.core", "aten::_flash_attention_forward"),
    Row("mlp.down", "aten::addmm", "[[512],[141,2048],[2048,512]"),
    Row("norm", "aten::native_layer_norm"),
    Row("mlp.up", "aten::addmm", "[[2048],[141,512],[512,2048]"),
    Row("residual embedding", "aten::add", "[[1,141,512],[1,141,512]"),
    Row("mlp.activation", "aten::gelu", "[[1,141,2048]"),
    Row("attention.other other", "aten::all", "[[1,141]"),  # is the mask all ones?
    Row("embedding", "aten::index_select"),
    Row("attention.other other", "aten::eq", "[[1,141]"),
    Row("logits other", "aten::gelu", "[[1,141,512]"),
    Row("embedding", "aten::add_", "[[1,141,512],[1,141,512]"),
)
D4 = (  # nn.TransformerEncoderLayer's fast path, aten::_native_multi_head_attention
    Row("mlp.down", "aten::addmm", "[[512],[2048,2048],[2048,512]"),
    Row("mlp.up", "aten::addmm", "[[2048],[2048,512],[512,2048]"),
    Row("attention.qkv", "aten::mm", "[[2048,512],[512,1536]"),
    Row("norm", "aten::native_layer_norm"),
    Row("attention.output", "aten::addmm", "[[512],[2048,512],[512,512]"),
    Row("residual", "aten::add", "[[16,128,512],[16,128,512]"),
    Row("mlp.activation", "aten::clamp_min"),
    Row("attention.scores", "aten::bmm", "[[128,128,64],[128,64,128]"),
    Row("attention.qkv attention.other", "aten::_transform_bias_rescale_qkv"),
    Row("attention.values", "aten::bmm", "[[128,128,128],[128,128,64]"),
    Row("attention.other", "aten::sum", "[[16,8,128,128]"),  # the averaged weights
    Row("attention.softmax", "aten::_softmax"),
    Row("attention.other", "aten::copy_", "[[16,128,8,64]"),
    Row("attention.other", "aten::div_", "[[16,128,128]"),
)
D5 = (  # ViT-B/16 replayed from a graph; what each kernel is, from the order of the operators at its capture
    Row("mlp.up", "CompiledFunction", kernel="128x64_ldg8_relu_f2f_stages_64x4_tn"),
    Row("mlp.down", "CompiledFunction", kernel="128x128_ldg8_f2f_stages_64x3_tn"),
    Row("attention.core", "CompiledFunction", kernel="flash_fwd_kernel"),
    Row("attention.qkv", "CompiledFunction", kernel="128x64_ldg8_f2f_stages_64x4_tn"),
    Row("attention.output", "CompiledFunction", kernel="64x64_sliced1x2"),
    Row("norm residual", "CompiledFunction", kernel="triton__0d1d2d3d4d5d6d7d89de"),
    Row("embedding", "CompiledFunction", kernel="precomputed_convolve_sgemm"),
    Row("mlp.activation", "CompiledFunction", kernel="triton__0d1d2de"),
    Row("mlp.down", "CompiledFunction", kernel="splitKreduce_kernel"),
    Row("attention.other attention.qkv", "CompiledFunction", kernel="triton__0d1d2d3de"),  # their bias
    Row("norm embedding residual", "CompiledFunction", kernel="triton__0d1d2d3d4d5d6d7d8d9d1011de"),
    Row("embedding", "CompiledFunction", kernel="kern_precompute_indices"),
    Row("memory other", "aten::fill_"),
)
D6 = tuple(  # VGG13: none of it is a part of a transformer
    Row("other", name)
    for name in ("aten::convolution_backward", "aten::max_pool2d_with_indices", "aten::threshold_backward",
                 "aten::add_", "aten::cudnn_convolution", "aten::clamp_min_")
)  # fmt: skip
D9 = (  # DLRM
    Row("communication", "record_param_comms"),
    *(Row("other", name) for name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::mul", "aten::sum")),
    Row("optimizer", "aten::add_", phase="optimizer"),
    Row("other", "aten::add_", phase="backward"),
)
D10 = (  # the same model and script as d1, where shapes are recorded; the names of its kernels are equal
    Row("mlp.up mlp.down", "aten::mm", kernel="192x192_64x3_2x1_v_bz_coopB_splitK_NTN", phase="backward"),
    Row("loss", "triton_red_fused__log_softmax_div_mul_prepare_softmax_online"),
    Row("mlp.down", "aten::mm", kernel="256x128_64x4_1x2_h_bz_coopA_TNT", phase="forward", us=(150, 400)),
    Row(
        "attention.output",
        "aten::mm",
        kernel="256x128_64x4_1x2_h_bz_coopA_TNT",
        phase="forward",
        us=(30, 100),
    ),
    Row("attention.core", "flash_attn_3::"),
    Row("mlp.up", "aten::mm", kernel="192x192_64x3_2x1_v_bz_coopB_NNN", phase="forward"),
    Row("mlp.down", "aten::mm", kernel="192x192_64x3_2x1_v_bz_coopB_NNN", phase="backward"),
    Row("loss logits", "triton_red_fused__log_softmax__log_softmax_backward_data"),
    Row("loss logits", "triton_poi_fused__scaled_mm__to_copy_clone_div_lift_fresh_permute_0"),
    Row("mlp.up", "aten::mm", kernel="256x128_64x4_1x2_h_bz_coopA_TNT", phase="backward"),
    Row("mlp.activation", "triton_poi_fused__unsafe_view_mul_nll_loss_forward_pow_relu_threshold_"),
    Row("logits", "aten::_scaled_mm"),
    Row(
        "attention.qkv", "aten::mm", kernel="256x128_64x4_1x2_h_bz_coopA_NNT", phase="backward", us=(110, 400)
    ),
    Row("attention.output", "aten::mm", kernel="256x128_64x4_1x2_h_bz_coopA_NNT", us=(30, 90)),
    Row("attention.qkv", "aten::mm", kernel="192x192_64x4_2x1_v_bz_coopB_TNN", phase="forward"),
    Row("attention.qkv", "aten::mm", kernel="128x128_64x6_2x4_v_bz_NTT", phase="backward"),
    Row("communication", "record_param_comms"),
    Row("mlp.activation", "triton_poi_fused__unsafe_view_pow_relu_9"),
    Row("norm residual", "triton_per_fused__to_copy__unsafe_view_add_mean_mul_pow_rsqrt"),
    Row("attention.output", "aten::mm", kernel="192x128_64x5_4x2_h_bz_coopB_splitK_NTT", phase="backward"),
    # norms of queries and keys, their rotation: one kernel for both
    Row("attention.rope norm", "triton_red_fused__to_copy__unsafe_view_add_cat_mean_mul_neg_pow_rsqrt"),
)
D11 = (  # Megatron-LM, tensor parallel 8: 4096 x 1536 is queries, keys and values of 8 of the 64 heads
    Row("communication", "record_param_comms"),
    Row("mlp.down", "aten::mm", "[[8192,2048],[2048,4096]]"),
    Row("mlp.up", "aten::mm", "[[8192,4096],[4096,2048]]"),
    Row("attention.softmax", "ScaledUpperTriangMaskedSoftmax"),
    Row("attention.qkv", "aten::mm", "[[8192,4096],[4096,1536]]"),
    Row("attention.scores", "aten::baddbmm", "[[32,2048,2048]"),
    Row("norm", "FusedLayerNormAffineFunction"),
    Row("residual dropout", "triton_poi_fused_add_0"),
    Row("attention.values", "aten::bmm", "[[32,2048,2048],[32,2048,64]]"),
    Row("attention.output", "aten::mm", "[[8192,512],[512,4096]]"),
    Row("attention.qkv", "aten::add", "[[2048,4,1536],[1536]"),
    Row("mlp.activation", "triton_poi_fused_add_mul_tanh_0"),
    Row("logits", "aten::mm", "[[8192,4096],[4096,6400]]"),
    Row("attention.other", "aten::copy_", "[[2048,4,8,64]"),
    Row("embedding", "aten::index_select", "[[2048,4096]"),
    Row("loss", "aten::exp", "[[4,2048,6400]"),
)
D12 = (  # torchao's reference of an expert-parallel forward: router, sort, all-to-all, experts, and back
    Row("communication", "record_param_comms"),
    Row("moe.experts", "aten::_grouped_mm"),
    Row("moe.dispatch", "aten::_index_put_impl_"),
    Row("moe.dispatch", "aten::sum", "[[8192,1,7168]"),
    Row("moe.dispatch", "aten::mul", "[[8192,7168],[8192,1]]"),
    Row("moe.dispatch", "aten::copy_", "[[8192,7168]"),
    Row("moe.dispatch", "aten::sort"),
    Row("moe.dispatch", "aten::index", "[[8193,7168]"),
    Row("moe.dispatch", "aten::index", "[[8192,7168]"),
    Row("moe.dispatch", "aten::cat", "[[[8192,7168],[1,7168]]"),
    Row("moe.dispatch", "aten::fill_", "[[8192,7168]"),
    Row("moe.router", "aten::mm", "[[8192,7168],[7168,8]]"),
    Row("moe.experts", "aten::silu", "[[8196,2048]"),
    Row("moe.router", "aten::topk"),
    Row("moe.experts", "aten::mul", "[[8196,2048],[8196,2048]]"),
)
D13 = (
    Row("norm", "aten::native_layer_norm"),
    Row(PAIRS, "aten::add_", "[[512,64,1,8256]"),
    Row("attention.other", "aten::add", "[[4096,128,128],[4096,1,128]"),  # padding mask onto the pair bias
    Row(PAIRS + " norm", "aten::cudnn_batch_norm", "[[512,64,8256]"),
    # casts of autocast: the bias before baddbmm, the weights behind the softmax
    Row("attention.scores attention.values attention.other", "aten::copy_", "[[4096,128,128]"),
    Row("attention.softmax", "aten::_softmax", "[[4096,128,128]"),
    Row(PAIRS, "aten::gelu", "[[512,64,8256]"),
    Row(PAIRS, "aten::cudnn_convolution"),
    Row("attention.scores", "aten::baddbmm", "[[4096,128,128],[4096,128,16]"),
    Row("attention.other", "aten::mean", "[[512,8,128,128]"),  # the averaged weights that nobody asked for
    Row(PAIRS, "aten::_index_put_impl_", "[[512,8,128,128]"),
    Row("attention.values", "aten::bmm", "[[4096,128,128],[4096,128,16]]"),
    Row("mlp.up embedding", "aten::addmm", "[[512],[65536,128]"),  # the embedding's MLP is of that size too
    Row("residual", "aten::add_", "[[128,512,128],[128,512,128]"),
    Row("attention.other", "aten::copy_", "[[3,128,512,128]"),
    Row("mlp.activation embedding", "aten::gelu", "[[128,512,512]"),
    Row("attention.qkv", "aten::addmm", "[[384],[65536,128]"),
    Row("mlp.down embedding", "aten::addmm", "[[128],[65536,512]"),
    Row("attention.output", "aten::addmm", "[[128],[65536,128],[128,128]"),
)
D14 = (  # of the 14 additions of a batch of masks' tokens 10 add the position: keys + key_pe
    Row(IMAGE, "aten::upsample_bilinear2d"),
    Row("logits other", "aten::bmm", "[[512,4,32],[512,32,65536]]"),  # the masks: hyper_in @ upscaled
    Row("norm", "aten::native_layer_norm", "[[512,4096,256]"),
    Row("attention.qkv", "aten::addmm", "[[128],[2097152,256]"),
    Row("embedding other", "aten::add", "[[512,256,64,64],[256,64,64]"),
    Row("attention.core", "aten::_flash_attention_forward"),
    Row("norm other", "aten::mean", "[[512,64,128,128]"),  # LayerNorm2d of the mask upscaling
    Row(IMAGE, "aten::add_", "[[512,32,256,256]"),
    Row(IMAGE, "aten::cudnn_convolution_transpose"),
    Row("norm other", "aten::sub", "[[512,64,128,128]"),
    Row(IMAGE, "aten::index", "[[256,534,800]"),
    Row("attention.output", "aten::addmm", "[[256],[2097152,128]"),
    Row("attention.qkv", "aten::add_", "[[512,4096,128],[128]"),
    Row(IMAGE, "aten::copy_", "[[1740,800,534]"),
    Row(IMAGE, "aten::nonzero"),
    Row(IMAGE, "aten::gelu", "[[512,32,256,256]"),
    Row(IMAGE, "aten::sum", "[[1740,427201]"),
    Row("attention.core", "Torch-Compiled", kernel="fmha_cutlassF"),
    Row("attention.core", "Torch-Compiled", kernel="_fwd_kernel_aligned"),
)
V100 = (  # two layers; products of one name are told apart by their order alone
    Row("communication", "record_param_comms"),
    Row("embedding", "aten::embedding_dense_backward"),
    Row("attention.values attention.scores", "aten::bmm"),
    Row("attention.scores", "aten::baddbmm"),
    Row("norm", "FusedLayerNormAffineFunction"),
    Row("dropout", "aten::native_dropout"),
    Row("attention.softmax", "aten::_softmax", phase="forward"),
    Row("attention.softmax", "aten::_softmax_backward_data"),
    Row("mlp.activation", "aten::gelu"),
    Row("loss", "aten::index"),
    Row("attention.softmax attention.other", "aten::masked_fill_", us=(3.9, 9), phase="forward"),
    Row("logits", "aten::mm", kernel="sliced1x4_nn", phase="backward"),  # the one dgrad with another tile
)
#: Operators of one kind in the order they are launched: trace, operator, shapes, phase, what each of them is.
_LAYER = ["attention.qkv", "attention.output", "mlp.up", "mlp.down"]
ORDERS = (
    (
        "d3",
        "aten::addmm",
        "[[512],[141,512]",
        "forward",
        (["attention.qkv"] * 3 + ["attention.output"]) * 4 + ["logits other"],
    ),
    ("v100", "aten::mm", "", "forward", [*_LAYER, *_LAYER, "logits"]),
    ("v100", "aten::mm", "", "backward", ["logits"] * 2 + [name for name in _LAYER[::-1] for _ in "io"] * 2),
    ("v100", "aten::bmm", "", "forward", ["attention.values"] * 2),
    ("v100", "aten::bmm", "", "backward", (["attention.values"] * 2 + ["attention.scores"] * 2) * 2),
    # SAM's TwoWayTransformer, twice: keys + key_pe before each attention, keys + attn_out once per layer
    (
        "d14",
        "aten::add",
        "[[512,4096,256],[512,4096,256]",
        "forward",
        ["attention.other embedding"] * 2
        + ["residual"]
        + ["attention.other embedding"] * 2
        + ["residual", "attention.other embedding"],
    ),
)
#: file, its rows, and the least share of GPU time that has a component
TRACES = {
    "d1": ("/d1_", D1, 0.95),
    "d1b": ("/d1b_", D1B, 0.95),
    "ranks": ("job_h100_nanogpt_8ranks/rank3", RANKS, 0.95),
    "d2": ("/d2_", D2, 0.97),
    "d3": ("/d3_", BERT, 0.98),
    "d4": ("/d4_", D4, 0.98),
    "d5": ("/d5_", D5, 0.90),
    "d6": ("/d6_", D6, 0.0),
    "d8": ("/d8_", BERT, 0.97),
    "d9": ("/d9_", D9, 0.35),
    "d10": ("/d10_", D10, 0.90),
    "d11": ("/d11_", D11, 0.99),
    "d12": ("/d12_", D12, 0.99),
    "d13": ("/d13_", D13, 0.95),
    "d14": ("/d14_", D14, 0.92),
    "v100": ("job_v100_megatron_tp2/rank0.json.gz", V100, 0.92),
}


class _Silent(Details):
    """The details of a trace recorded without shapes."""

    def __init__(self, told: Details):
        self._told = told

    def inputs(self, code: int) -> Inputs:
        return Inputs(None, None, None, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._told, name)


@cache
def _read(
    name: str, shapes: bool = True
) -> tuple[Trace, Attribution, np.ndarray, list[tuple[str, str, str]]]:
    path = next((path for path in shared_traces() if TRACES[name][0] in str(path)), None)
    if path is None:
        pytest.skip(f"{TRACES[name][0]} is not beside the repository")
    trace = read_trace(path)
    links = link(trace)
    texts = []
    for kernel, op in enumerate(links.kernel_op.tolist()):
        dims = trace.details.inputs(int(trace.ops.inputs[op])).dims if op >= 0 else None
        texts.append(
            (
                trace.symbols[int(trace.ops.name[op])] if op >= 0 else "",
                str(dims or "").replace(" ", ""),
                trace.symbols[int(trace.kernels.name[kernel])],
            )
        )
    if not shapes:
        trace = replace(trace, details=_Silent(trace.details))
        links = link(trace)
    return trace, attribute(trace, links), trace.kernels.dur_ns, texts


def _wrong(component: int, right: str) -> bool:
    return COMPONENTS[component] not in (*right.split(), "unattributed")


#: Recorded with shapes, read without them: the least share of GPU time that still has a component.
WITHOUT_SHAPES = {
    "d1": 0.92, "d2": 0.97, "d3": 0.98, "d4": 0.93, "d11": 0.99, "d12": 0.99, "d13": 0.82, "d14": 0.8,
    "ranks": 0.92,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "shapes"), [*((name, True) for name in TRACES), *((name, False) for name in WITHOUT_SHAPES)]
)
def test_the_longest_kernels_are_right_or_unattributed(name: str, shapes: bool) -> None:
    _, found, ns, texts = _read(name, shapes)
    wrong: dict[str, float] = {}
    for row in TRACES[name][1]:
        seen = 0
        for at, (op, dims, kernel) in enumerate(texts):
            here = op.startswith(row.op) and dims.startswith(row.dims) and row.kernel in kernel
            if not here or "Mem" in kernel[:3] or not row.us[0] <= ns[at] / 1000 <= row.us[1]:
                continue
            if row.phase and PHASES[found.phase[at]] != row.phase:
                continue
            seen += 1
            if _wrong(found.component[at], row.right):
                component = COMPONENTS[found.component[at]]
                key = f"{row.op} {row.dims} {row.kernel}: {component}, not {row.right}"
                wrong[key] = wrong.get(key, 0.0) + float(ns[at] / ns.sum())
        assert seen, row
    assert sum(wrong.values()) <= WRONG, wrong


@pytest.mark.parametrize(
    ("name", "shapes", "share"),
    [
        *((name, True, share) for name, (*_, share) in TRACES.items()),
        *((name, False, share) for name, share in WITHOUT_SHAPES.items()),
    ],
)
def test_so_much_is_attributed(name: str, shapes: bool, share: float) -> None:
    _, found, ns, _ = _read(name, shapes)
    open_ = found.component == COMPONENTS.index("unattributed")
    assert 1 - ns[open_].sum() / ns.sum() >= share


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order[0]}-{order[1]}-{order[3]}")
def test_operators_of_one_name_are_right_or_unattributed_by_their_order(
    order: tuple[str, str, str, str, list[str]],
) -> None:
    name, op, dims, phase, right = order
    trace, found, ns, texts = _read(name)
    rows = [
        at
        for at in np.argsort(trace.kernels.ts_ns, kind="stable").tolist()
        if texts[at][0] == op and texts[at][1].startswith(dims) and PHASES[found.phase[at]] == phase
    ]
    rows = [at for at in rows if "splitKreduce" not in texts[at][2] and texts[at][2][:3] != "Mem"]
    assert len(rows) % len(right) == 0, len(rows)
    expected = right * (len(rows) // len(right))
    wrong = {at: what for at, what in zip(rows, expected, strict=True) if _wrong(found.component[at], what)}
    assert ns[list(wrong)].sum() <= WRONG * ns.sum(), {
        COMPONENTS[found.component[at]]: what for at, what in wrong.items()
    }
