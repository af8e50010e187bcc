"""Kinds of recording that others publish, written row by row from the public source of what they ran."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.attribution.rows import Row, assert_right, attributed, mm, open_rows, said_of, verdict, written
from tests.said import Listener
from tests.trace.tools import op
from tracelens.accounting.model import model_dims
from tracelens.attribution import find_calls
from tracelens.attribution.communication import find_communication
from tracelens.words import COMPONENTS, PHASES

GEMM = "GemmKernel"  # a library's own call: it says neither part nor shape
#: deepseek-ai/DualPipe and the names of deepseek-ai/profile-data (DeepEP issue 348): ranges, and no operator
DUALPIPE = [
    Row("norm", "", "RMSNormKernel", inside="attn(F)"),
    Row("attention.qkv", "", GEMM, inside="attn(F)"),
    Row("attention.core", "", "void flash_fwd_kernel<Flash_fwd_kernel_traits<192>>", inside="attn(F)"),
    Row("attention.output", "", GEMM, inside="attn(F)"),
    Row("communication", "", "void dpsk::ep::internode::notify_dispatch<false, 4>()", inside="dispatch(F)"),
    Row("communication", "", "void dpsk::ep::internode::dispatch_ll<false>()", inside="dispatch(F)"),
    Row("moe.experts", "", GEMM, inside="mlp(F)"),
    Row("moe.experts", "", "swiglu_kernel", inside="mlp(F)"),
    Row("communication", "", "void dpsk::ep::internode::combine_ll<4>()", inside="combine(F)"),
    Row("communication", "", "void deep_ep::internode::dispatch<false, 4>()", inside="combine(B)"),
    Row("moe.experts", "", GEMM, inside="mlp(B)"),
    Row("moe.experts", "", GEMM, inside="mlp(W)"),
    Row("attention.core", "", "void flash_bwd_dq_dk_dv_loop_kernel<192>", inside="attn(B)"),
    Row("attention.other", "", GEMM, inside="attn(B)"),
]


def test_ranges_say_what_launches_without_an_operator_are(tmp_path: Path) -> None:
    trace, _, found = attributed(tmp_path, written(DUALPIPE))
    assert verdict(DUALPIPE, trace, found) == (1.0, {}), open_rows(DUALPIPE, trace, found)
    order = trace.kernels.ts_ns.argsort(kind="stable")
    phases = [PHASES[code] for code in found.phase[order]]
    assert phases == ["forward"] * 9 + ["backward"] * 5


def test_products_of_functions_of_one_s_own_are_told_by_the_core_of_their_range(tmp_path: Path) -> None:
    """deepseek-ai/profile-data, train.json: fp8 products are autograd functions, the router is inside."""
    product = "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(int)"
    linear, attends = "LinearWithGradAccumulationFP8", "RopeLoraFlashAttnVarlenFunc"
    core, back = (f"void flash_{way}_kernel<Flash_{way}_kernel_traits<192>>" for way in ("fwd", "bwd"))
    norm = Row("norm", "DropoutAddLayerNormFn", "void ln_fwd_kernel<float>(int)", inside="attn(F)")
    rows = [
        *[norm, Row("attention.qkv", linear, product, inside="attn(F)"), norm],
        Row("attention.qkv", attends, product, inside="attn(F)"),
        Row("attention.core", attends, core, inside="attn(F)"),
        *[Row("attention.output", linear, product, inside="attn(F)"), norm],
        Row("attention.other", "MatmulToFP32", "sm90_xmma_gemm_bf16f32_bf16f32_f32_tn_n", inside="attn(F)"),
        Row("attention.other", f"{attends}Backward", product, inside="attn(B)"),  # computed again
        Row("attention.core", f"{attends}Backward", back, inside="attn(B)"),
        Row("attention.qkv", f"{attends}Backward", product, inside="attn(B)"),
    ]
    trace, _, found = attributed(tmp_path, written(rows))
    assert verdict(rows, trace, found) == (1.0, {}), open_rows(rows, trace, found)


def test_kernels_of_deepep_serve_experts_whatever_is_around_them(tmp_path: Path) -> None:
    rows = [
        Row("communication", "", "void deep_ep::intranode::notify_dispatch<8>()"),
        Row("communication", "", "void internode_ll::combine<true, 3, 10, 7168>()"),
        Row("communication", "", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
    ]
    trace, links, found = attributed(tmp_path, written(rows))
    sent = find_communication(trace, links, found)
    served = [(sent.purposes[at].purpose, sent.purposes[at].evidence) for at in sent.purpose.tolist()]
    assert served == [("expert all-to-all", "kernel_name")] * 2 + [("unknown", "none")]


def test_what_fills_the_cache_inside_a_fused_attention_is_no_core(tmp_path: Path) -> None:
    # B200 recording of vLLM 0.11: the write to the cache is an operator of its own inside the attention's
    cache = op("_C_cache_ops::reshape_and_cache_flash", ts=11, dur=8)
    rows = [Row("attention.other", "vllm::unified_attention_with_output", "void write_kernel<1>()")]
    events = [*written(rows), cache]
    trace, _, found = attributed(tmp_path, events)
    assert verdict(rows, trace, found) == (1.0, {})


@pytest.mark.parametrize(
    ("text", "phase"),
    [
        ("mlp(B)", "backward"),
        ("attn(W)", "backward"),
        ("bwd_inner", "backward"),  # deepspeedai/DeepSpeed deepspeed/runtime/engine.py, timers
        ("## backward ##", "backward"),
        ("loss.backward", "backward"),
        ("mlp(F)", "forward"),
        ("## forward ##", "forward"),
        ("forward_backward", "other"),  # one range around both
        ("backward_hook", "other"),
    ],
)
def test_ranges_that_name_a_phase(tmp_path: Path, text: str, phase: str) -> None:
    rows = [
        Row("", "", "k", inside="mlp(B)"),
        Row("", "", "k", inside=text),
        Row("", "", "k", inside="mlp(F)"),
    ]
    trace, _, found = attributed(tmp_path, written(rows))
    assert PHASES[found.phase[trace.kernels.ts_ns.argsort(kind="stable")[1]]] == phase


#: KellerJordan/modded-nanogpt train_gpt.py and triton_kernels.py, 2026: one kernel is an MLP's first product
#: and its activation, called with descriptors; the loss is a kernel of its own, the optimizer none of torch's
TOKENS, HIDDEN, FFN, VOCAB = 16384, 768, 3072, 50304
NANOGPT = [
    Row(
        "embedding",
        "aten::embedding",
        "void at::native::vectorized_gather_kernel<16>",
        ([VOCAB, HIDDEN], [TOKENS]),
    ),
    *(
        row
        for _ in range(3)
        for row in (
            Row(
                "norm",
                "triton_red_fused__fused_rms_norm_add_mul_0",
                "triton_red_fused__fused_rms_norm_add_mul_0",
                ([1, TOKENS, HIDDEN],),
            ),
            mm("attention.qkv", TOKENS, 3 * HIDDEN, HIDDEN),
            Row(
                "attention.core",
                "flash_attn_3::fwd",
                "void cutlass::device_kernel<flash::FlashAttnFwdSm90<>>",
                ([TOKENS, 6, 128],) * 3,
            ),
            mm("attention.output", TOKENS, HIDDEN, HIDDEN),
            Row(
                "norm",
                "triton_per_fused__fused_rms_norm_add_1",
                "triton_per_fused__fused_rms_norm_add_1",
                ([1, TOKENS, HIDDEN],),
            ),
            Row("mlp.up", "linear_relu_square_kernel_0", "linear_relu_square_kernel", ([],) * 6, us=60),
            mm("mlp.down", TOKENS, HIDDEN, FFN, us=60),
        )
    ),
    mm("logits", TOKENS, VOCAB, HIDDEN, us=200),
    Row(
        "loss",
        "fused_softcapped_entropy_fwd_kernel_1",
        "fused_softcapped_entropy_fwd_kernel",
        ([TOKENS, VOCAB],),
    ),
]


def test_a_product_fused_with_its_activation_is_known_by_the_product_behind_it(tmp_path: Path) -> None:
    trace, links, found = attributed(tmp_path, written(NANOGPT))
    right, wrong = verdict(NANOGPT, trace, found)
    assert (right, wrong) == (1.0, {}), open_rows(NANOGPT, trace, found)
    model = model_dims(found, find_calls(trace, links, found))
    assert (model.layers.value, model.hidden.value, model.ffn.value) == (3, HIDDEN, FFN)


@pytest.mark.parametrize("layers", [(0, 2), (0, 1, 2)])
def test_heads_that_attend_as_one_longer_sequence_are_those_of_the_stream(
    tmp_path: Path, layers: tuple[int, ...]
) -> None:
    """KellerJordan/modded-nanogpt since 2026: in some layers two heads are one of twice the tokens."""
    rows = [*NANOGPT]
    cores = [at for at, row in enumerate(rows) if row.right == "attention.core"]
    for at in (cores[layer] for layer in layers):
        rows[at] = replace(rows[at], dims=([2 * TOKENS, 3, 128],) * 3)
    trace, links, found = attributed(tmp_path, written(rows))
    assert verdict(rows, trace, found) == (1.0, {}), open_rows(rows, trace, found)
    assert model_dims(found, find_calls(trace, links, found)).layers.value == 3


def test_between_kernels_that_only_an_optimizer_runs_all_is_the_optimizer(tmp_path: Path) -> None:
    products = ([5, 768, 768],) * 3
    newton_schulz = [
        Row("optimizer", "ba_plus_cAA_kernel_1", "ba_plus_cAA_kernel", inside="loop"),
        replace(mm("optimizer", 1, 1, 1), op="aten::baddbmm", dims=products, inside="loop"),
        Row("optimizer", "XXT_kernel_0", "XXT_kernel", inside="loop"),
    ]
    update = [
        Row("unattributed", "aten::mul", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
        Row("optimizer", "XXT_kernel_0", "XXT_kernel", inside="loop"),
        Row("optimizer", "aten::lerp_", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
        *newton_schulz * 3,
        Row("optimizer", "ba_plus_cAA_kernel_1", "ba_plus_cAA_kernel", inside="loop"),
        Row("unattributed", "aten::mul", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
    ]
    rows = [Row("", "", "k", inside="mlp(B)"), *update, Row("", "", "k", inside="mlp(F)")]
    said = said_of(tmp_path, rows)
    assert said[1:-1] == [row.right for row in update]


def test_a_compiled_update_is_the_optimizers_and_so_is_what_stands_between_two(tmp_path: Path) -> None:
    """Adam as modded-nanogpt writes and compiles it, beside its Muon."""
    adam = "triton_poi_fused__to_copy_add_copy__div_gt_mul_sqrt_0"
    update = [
        Row("unattributed", "aten::add_", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
        Row("optimizer", adam, adam, inside="loop"),
        Row("optimizer", "aten::lerp_", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
        Row("optimizer", adam, adam, inside="loop"),
    ]
    rows = [Row("", "", "k", inside="mlp(B)"), *update, Row("", adam, adam, inside="mlp(F)")]
    said = said_of(tmp_path, rows)
    assert said[1:-1] == [row.right for row in update]
    assert said[-1] != "optimizer"


FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>"


def _elementwise(right: str, op: str) -> Row:
    return Row(right, op, "void at::native::vectorized_elementwise_kernel<4>", us=3)


def _products(*right: str) -> list[Row]:
    return [mm(part, 64, 64, 64) for part in right]


def _attention(*queries: str) -> list[Row]:
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH)
    return [
        _elementwise("norm", "aten::native_layer_norm"),
        *_products(*["attention.qkv"] * len(queries)),
        core,
        *_products("attention.output"),
        _elementwise("residual", "aten::add"),
    ]


def _mlp(kind: str = "plain") -> list[Row]:
    act, add = _elementwise("mlp.activation", "aten::silu"), _elementwise("residual", "aten::add")
    norm = _elementwise("norm", "aten::native_layer_norm")
    if kind == "plain":
        return [norm, *_products("mlp.up"), act, *_products("mlp.down"), add]
    if kind == "gated":
        gated = _elementwise("mlp.activation", "aten::mul")
        return [norm, *_products("mlp.gate"), act, *_products("mlp.up"), gated, *_products("mlp.down"), add]
    expert = Row("moe.experts", "aten::_grouped_mm", "void cutlass::device_kernel<GroupProblemShape>", us=50)
    return [
        norm,
        *_products("moe.router"),
        _elementwise("moe.router moe.dispatch", "aten::topk"),
        _elementwise("moe.dispatch", "aten::sort"),
        expert,
        _elementwise("moe.experts", "aten::silu"),
        expert,
        _elementwise("moe.dispatch", "aten::index_add_"),
        add,
    ]


HEAD = [
    _elementwise("norm", "aten::native_layer_norm"),
    *_products("logits"),
    _elementwise("loss", "aten::nll_loss_forward"),
]
WORDS = [_elementwise("embedding", "aten::embedding")]
PROJECTOR = [
    *_products("embedding"),
    _elementwise("embedding other", "aten::gelu"),
    *_products("embedding"),
]
WITHOUT_SHAPES = {
    # a vision tower, two products onto the words' width, and a language model: llava, qwen2_vl
    "two models": (3 * (_attention("q", "k", "v") + _mlp()))
    + [_elementwise("", "aten::slice"), *PROJECTOR, *WORDS]
    + 4 * (_attention("qkv") + _mlp("gated"))
    + HEAD,
    # switch_transformers, t5: attention to itself, then to the encoder, then an MLP
    "encoder and decoder": WORDS
    + 3 * (_attention("q", "k", "v") + _mlp())
    + WORDS
    + 3 * (_attention("q", "k", "v") + _attention("q", "k", "v") + _mlp())
    + HEAD,
    # clip: the last of one tower is followed by the words of the other
    "two towers": 3 * (_attention("q", "k", "v") + _mlp())
    + WORDS
    + 3 * (_attention("q", "k", "v") + _mlp())
    + HEAD,
    # siglip: one query attends to all of the picture, and its product makes keys and values at once
    "pooled": 3 * (_attention("q", "k", "v") + _mlp())
    + _attention("q", "kv")
    + _mlp()
    + WORDS
    + 3 * (_attention("q", "k", "v") + _mlp())
    + HEAD,
    # particle_transformer, bitnet: a normalization between the activation and the product behind it
    "norms in the MLP": WORDS
    + 4 * (_attention("qkv") + _mlp()[:3] + [_elementwise("norm", "aten::native_layer_norm")] + _mlp()[3:])
    + HEAD,
    # deepseek_v3: dense layers first, then experts
    "experts": WORDS
    + 2 * (_attention("q", "k", "v") + _mlp("gated"))
    + 4 * (_attention("q", "k", "v") + _mlp("experts"))
    + HEAD,
}


@pytest.mark.parametrize("name", WITHOUT_SHAPES)
def test_order_alone_tells_layers_of_several_kinds(tmp_path: Path, name: str) -> None:
    rows = WITHOUT_SHAPES[name]
    assert_right(tmp_path, rows, 0.9, shapes=False)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("two towers", 3),
        ("pooled", None),
        ("two models", None),
        ("encoder and decoder", 6),
        ("layers ahead", None),
    ],
)
def test_layers_are_those_of_one_model(tmp_path: Path, name: str, layers: int | None, said: Listener) -> None:
    # hybrids: MLPs of layers without attention stand ahead of it
    ahead = {"layers ahead": WORDS + 2 * _mlp() + 4 * (_attention("q", "k", "v") + _mlp()) + HEAD}
    trace, links, found = attributed(tmp_path, written((WITHOUT_SHAPES | ahead)[name], shapes=False))
    counted = model_dims(found, find_calls(trace, links, found)).layers
    assert counted.value == layers
    said(counted.source)


def _model(layers: int, number: int = -1) -> list[Row]:
    """A forward with shapes; ``number``: autograd's first, -1 for one without gradients."""
    tokens, hidden, ffn, vocab = 2048, 512, 1536, 32000
    wide = ([4, 512, hidden],)
    norm = replace(_elementwise("norm", "aten::native_layer_norm"), dims=wide)
    add = replace(_elementwise("residual", "aten::add"), dims=wide * 2)
    act = replace(_elementwise("mlp.activation", "aten::gelu"), dims=([4, 512, ffn],))
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH, ([4, 512, 8, 64],) * 3)
    rows = [replace(_elementwise("embedding", "aten::embedding"), dims=([vocab, hidden], [4, 512]))]
    for _ in range(layers):
        queries = [mm("attention.qkv", tokens, hidden, hidden)] * 3
        rows += [norm, *queries, core, mm("attention.output", tokens, hidden, hidden), add, norm]
        rows += [mm("mlp.up", tokens, ffn, hidden), act, mm("mlp.down", tokens, hidden, ffn), add]
    rows += [norm, mm("logits", tokens, vocab, hidden)]
    rows += [replace(_elementwise("loss", "aten::_log_softmax"), dims=([tokens, vocab],))]
    return [replace(row, number=number + at) if number > 0 else row for at, row in enumerate(rows)]


TRAINED = _model(3, 10)
_LAST = 10 + len(TRAINED) - 1
GRADIENT = replace(_elementwise("loss", "aten::_log_softmax_backward_data"), number=-_LAST)


@pytest.mark.parametrize(
    "rows",
    [
        [*TRAINED, *_model(3), GRADIENT],  # huggingface/trl trl/trainer/dpo_trainer.py
        [*_model(2), *TRAINED, GRADIENT],  # a smaller teacher or reference before
        [*_model(3), *_model(3)],  # two batches of inference
    ],
    ids=["policy and reference", "another model ahead", "twice"],
)
def test_a_model_that_runs_twice_has_its_layers_once(tmp_path: Path, rows: list[Row]) -> None:
    trace, links, found = attributed(tmp_path, written(rows))
    assert verdict(rows, trace, found) == (1.0, {}), open_rows(rows, trace, found)
    model = model_dims(found, find_calls(trace, links, found))
    assert (model.layers.value, model.heads.value, model.micro_batch.value) == (3, 8, 4)
    phases = [PHASES[code] for code in found.phase[trace.kernels.ts_ns.argsort(kind="stable")]]
    inside = zip(rows, phases, strict=True)
    assert {phase for row, phase in inside if row.right not in ("embedding", "loss")} == {"forward"}


def _modulated(tokens: int, *products: Row) -> list[Row]:
    """A normalization with scale and shift for each sample, products of its result, and their gated sum."""
    wide, sample = [2, tokens, 1024], [2, 1, 1024]
    norm = replace(_elementwise("norm", "aten::native_layer_norm"), dims=(wide,))
    affine = [replace(_elementwise("norm", f"aten::{name}"), dims=(wide, sample)) for name in ("mul", "add")]
    gate = replace(_elementwise("residual", "aten::mul"), dims=(sample, wide))
    add = replace(_elementwise("residual", "aten::add"), dims=(wide, wide))
    return [norm, *affine, *products, *([gate, add] if products else [])]


def _stream_mlp(tokens: int) -> list[Row]:
    rows = 2 * tokens
    act = replace(_elementwise("mlp.activation", "aten::gelu"), dims=([2, tokens, 4096],))
    return _modulated(tokens, mm("mlp.up", rows, 4096, 1024), act, mm("mlp.down", rows, 1024, 4096))


def _joint_layer(picture: int, words: int) -> list[Row]:
    """huggingface/diffusers models/attention.py JointTransformerBlock: one attention over two streams."""
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH, ([2, picture + words, 16, 64],) * 3)
    both = (picture, words)
    queries = [mm("attention.qkv", 2 * tokens, 1024, 1024) for tokens in both for _ in "qkv"]
    rows = [*_modulated(picture), *_modulated(words), *queries, core]
    rows += [mm("attention.output", 2 * tokens, 1024, 1024) for tokens in both]
    for tokens in both:
        gated = replace(_elementwise("residual", "aten::mul"), dims=([2, 1, 1024], [2, tokens, 1024]))
        rows += [gated, replace(_elementwise("residual", "aten::add"), dims=([2, tokens, 1024],) * 2)]
        rows += _stream_mlp(tokens)
    return rows


def test_two_streams_of_one_attention_are_one_layer(tmp_path: Path) -> None:
    rows = 4 * _joint_layer(1024, 333)
    trace, _, found = attributed(tmp_path, written([*WORDS, *rows]))
    right, wrong = verdict([*WORDS, *rows], trace, found)
    assert wrong == {}
    assert right >= 0.9, open_rows([*WORDS, *rows], trace, found)
    counted = {int(layer) for layer in found.layer if layer >= 0}
    assert counted == {0, 1, 2, 3}


def test_weights_that_a_linear_layer_makes_are_attention(tmp_path: Path) -> None:
    """timm models/volo.py OutlookAttention: 9 x 9 weights for each of 6 heads and 196 windows, no keys."""
    tokens, windows, width = 4 * 784, 4 * 196, 192
    wide = ([4, 28, 28, width],)
    norm = replace(_elementwise("norm", "aten::native_layer_norm"), dims=wide)
    add = replace(_elementwise("residual", "aten::add"), dims=wide * 2)
    act = replace(_elementwise("mlp.activation", "aten::gelu"), dims=([4, 28, 28, 3 * width],))
    softmax = _elementwise("attention.softmax", "aten::_softmax")
    weighs = Row("attention.values", "aten::bmm", "bmm", ([6 * windows, 9, 9], [6 * windows, 9, 32]))
    layer = [
        *[norm, mm("attention.qkv", tokens, width, width), mm("attention.scores", windows, 486, width)],
        *[replace(softmax, dims=([4, 6, 196, 9, 9],)), weighs, mm("attention.output", tokens, width, width)],
        *[add, norm, mm("mlp.up", tokens, 3 * width, width), act, mm("mlp.down", tokens, width, 3 * width)],
        add,
    ]
    rows = 4 * layer
    assert_right(tmp_path, rows)


def _convolved(added: bool) -> list[Row]:
    """timm models/edgenext.py ConvBlock: a depthwise convolution, and an MLP of each position."""
    maps, tokens = [4, 160, 16, 16], 4 * 256
    dims = {"convolution": (maps, [160, 1, 7, 7]), "norm": ([4, 16, 16, 160],), "act": ([4, 16, 16, 640],)}
    return [
        replace(_elementwise("other", "aten::convolution"), dims=dims["convolution"]),
        replace(_elementwise("norm", "aten::native_layer_norm"), dims=dims["norm"]),
        mm("mlp.up" if added else "unattributed", tokens, 640, 160),
        replace(_elementwise("mlp.activation" if added else "other", "aten::gelu"), dims=dims["act"]),
        mm("mlp.down" if added else "unattributed", tokens, 160, 640),
        *([replace(_elementwise("residual", "aten::add"), dims=(maps, maps))] if added else []),
    ]


@pytest.mark.parametrize("added", [True, False], ids=["an MLP", "no sum, no MLP"])
def test_an_mlp_without_attention_beside_it_is_added_to_what_it_takes(tmp_path: Path, added: bool) -> None:
    rows = [*(3 * _convolved(added)), *_model(3)]
    trace, _, found = attributed(tmp_path, written(rows))
    assert verdict(rows, trace, found)[1] == {}
    named = {COMPONENTS[code] for code in found.component[trace.kernels.ts_ns.argsort(kind="stable")[:12]]}
    assert ({"mlp.up", "mlp.activation", "mlp.down"} <= named) == added


# vllm-project/vllm on B200: csrc/, vllm/model_executor/layers/fused_moe/; kernels of TensorRT-LLM
_ADD_NORM = Row(
    "norm", "_C::fused_add_rms_norm", "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>()", us=4
)
_SUM = Row("communication", "vllm::all_reduce", "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>()")
_FP4 = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > >()"
)


def _fp4(right: str) -> list[Row]:
    cast = Row(right, "_C::scaled_fp4_quant", "void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>()", us=4)
    return [cast, Row(right, "_C::cutlass_scaled_fp4_mm", _FP4, us=40)]


def _served(mlp: list[Row]) -> list[Row]:
    rotates = "void vllm::rotary_embedding_kernel<c10::BFloat16, true>()"
    writes = "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>()"
    fmha = "fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP16VarSeqQ128Kv128Persistent"
    attention = [
        Row("attention.rope", "_C::rotary_embedding", rotates, us=4),
        Row("attention.other", "_C_cache_ops::reshape_and_cache_flash", writes, us=4),
        Row("attention.core", "vllm::unified_attention_with_output", fmha),
    ]
    before = [_ADD_NORM, *_fp4("attention.qkv"), *attention, *_fp4("attention.output"), _SUM, _ADD_NORM]
    return [*before, *mlp, _SUM]


_DENSE = [
    *_fp4("mlp.up"),
    Row("mlp.activation", "_C::silu_and_mul_nvfp4_quant", "void vllm::silu_and_cvt_fp16_to_fp4<>()", us=5),
    Row("mlp.down", "_C::cutlass_scaled_fp4_mm", _FP4, us=40),
]
_MIXED = [
    *_products("moe.router"),
    *(
        Row(right, "vllm::moe_forward", kernel)
        for right, kernel in (
            ("moe.router", "void moe::dev::routing::routingRenormalize::routingIndicesClusterKernel<>()"),
            ("moe.experts", "bmm_E4m3_MxE4m3MxE2m1_Fp32_bA32_bB32_t128x32x256_swiGlu_dynBatch_sm100f"),
            ("moe.experts", "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_bA32_bB32_t128x32x256_dynBatch_sm100f"),
            ("moe.dispatch", "void moe::dev::finalize::finalizeKernelVecLoad<>()"),
        )
    ),
]


@pytest.mark.parametrize("how", ["operators", "graph", "kernels_alone"])
@pytest.mark.parametrize(("dense", "mixed"), [(4, 0), (0, 4), (2, 4)])
def test_a_served_model_without_shapes(tmp_path: Path, dense: int, mixed: int, how: str) -> None:
    """Its operators are recorded, or one launch replays a captured graph, or there are kernels alone."""
    rows = [*_served(_DENSE) * dense, *_served(_MIXED) * mixed, _ADD_NORM, *_products("logits")]
    events = written(rows, shapes=False, graph=how == "graph", kernels_alone=how == "kernels_alone")
    trace, _, found = attributed(tmp_path, events)
    right, wrong = verdict(rows, trace, found)
    assert right >= 0.97, open_rows(rows, trace, found)
    assert wrong == {}


@pytest.mark.parametrize("shapes", [True, False])
def test_two_output_projections_in_a_row(tmp_path: Path, shapes: bool) -> None:
    """transformers timesformer: ``temporal_dense`` behind the projection of the attention over time."""
    tokens, hidden = 3136, 768
    norm = replace(_elementwise("norm", "aten::native_layer_norm"), dims=([392, 8, hidden],))
    add = replace(_elementwise("residual", "aten::add"), dims=([392, 8, hidden],) * 2)
    act = replace(_elementwise("mlp.activation", "aten::gelu"), dims=([392, 8, 4 * hidden],))
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH, ([392, 8, 12, 64],) * 3)
    output = mm("attention.output", tokens, hidden, hidden)
    rows = [norm, mm("attention.qkv", tokens, 3 * hidden, hidden), core, output, output, add]
    rows += [norm, mm("attention.qkv", tokens, 3 * hidden, hidden), core, output, add]
    rows += [norm, mm("mlp.up", tokens, 4 * hidden, hidden), act, mm("mlp.down", tokens, hidden, 4 * hidden)]
    rows = [*rows, add] * 3
    assert_right(tmp_path, rows, 0.97, shapes=shapes)


def _captured(right: str, layout: str, tile: int) -> Row:
    return Row(right, "", f"ampere_bf16_s16816gemm_bf16_{tile}x128_ldg8_f2f_stages_32x3_{layout}", us=50)


def _replayed(layers: int) -> tuple[list[Row], list[Row]]:
    """A forward and its backward as torch.compile's CUDA graphs replay them: kernels alone, two launches."""
    tiles = {"attention.qkv": 32, "attention.output": 64, "mlp.up": 128, "mlp.down": 256, "logits": 512}
    goes = {part: [_captured(part, "tn", tile)] for part, tile in tiles.items()}
    comes = {part: [_captured(part, "nn", tile), _captured(part, "nt", tile)] for part, tile in tiles.items()}
    norm = [Row("norm", "", "triton_per_fused_add_native_layer_norm_4", us=5)]
    core = [Row("attention.core", "", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>")]
    gelu = [Row("mlp.activation", "", "triton_poi_fused_gelu_5", us=5)]
    layer = norm + goes["attention.qkv"] + core + goes["attention.output"]
    layer += norm + goes["mlp.up"] + gelu + goes["mlp.down"]
    undone = [Row("mlp.activation", "", "triton_poi_fused_gelu_gelu_backward_3", us=5)]
    turned = [Row("attention.other", "", "triton_poi_fused_clone_7", us=5)]
    normed = [Row("norm", "", "triton_red_fused_native_layer_norm_backward_8", us=5)]
    back = [replace(row, kernel=row.kernel.replace("fwd", "bwd")) for row in core]
    again = comes["mlp.down"] + undone + comes["mlp.up"] + normed + comes["attention.output"]
    again += back + turned + comes["attention.qkv"] + normed
    words = [Row("embedding", "", "triton_poi_fused_add_embedding_0", us=5)]
    return words + layer * layers + norm + goes["logits"], comes["logits"] + again * layers


def test_a_captured_backward_is_read_by_its_captured_forward(tmp_path: Path) -> None:
    """luatil/torch-profile trace_05: torch.compile(mode="reduce-overhead"), the loss outside the graphs."""
    forward, backward = _replayed(4)
    events = written(forward, graph=True)
    later = written(backward, graph=True)
    for event in later:
        event["ts"] += 100_000
        event["args"] = event["args"] | {"correlation": 2}
    trace, _, found = attributed(tmp_path, [*events, *later])
    rows = [*forward, *backward]
    right, wrong = verdict(rows, trace, found)
    assert right > 0.99, open_rows(rows, trace, found)
    assert wrong == {}
    order = trace.kernels.ts_ns.argsort(kind="stable")
    layers = [int(found.layer[at]) for row, at in zip(rows, order, strict=True) if row.right == "mlp.down"]
    assert layers == [0, 1, 2, 3, 3, 3, 2, 2, 1, 1, 0, 0]


def test_a_compiled_model_begins_again_with_its_patches(tmp_path: Path) -> None:
    """pytorch/ao tutorials/static_quantize_prune_vit: Inductor's own convolution, five batches, no shapes."""
    patches = [Row("embedding", "", "triton_tem_fused_convolution_0", us=30)]
    forward = _replayed(3)[0][1:-1]  # neither words nor a head
    rows = (patches + forward) * 3
    trace, _, found = attributed(tmp_path, written(rows, kernels_alone=True))
    assert verdict(rows, trace, found)[1] == {}
    order = trace.kernels.ts_ns.argsort(kind="stable")
    said = [COMPONENTS[found.component[at]] for at in order]
    assert [one for row, one in zip(rows, said, strict=True) if row in patches] == ["embedding"] * 3
    layers = [int(found.layer[at]) for row, at in zip(rows, order, strict=True) if row.right == "mlp.down"]
    assert layers == [0, 1, 2] * 3


def _adapted(right: str, n: int, k: int, four_bits: str = "", rank: int = 16) -> list[Row]:
    """huggingface/peft src/peft/tuners/lora/layer.py: result + lora_B(lora_A(dropout(x))) * scaling."""
    weight = Row(right, four_bits, "void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*)", us=15)
    drops = replace(_elementwise(f"{right} dropout", "aten::native_dropout"), dims=([4, 512, k],))
    scales = replace(_elementwise(right, "aten::mul"), dims=([4, 512, n], []))
    adds = replace(_elementwise(right, "aten::add"), dims=([4, 512, n],) * 2)
    return [
        *[weight] * bool(four_bits),
        mm(right, 2048, n, k, us=50),
        drops,
        mm(right, 2048, rank, k),
        mm(right, 2048, n, rank),
        scales,
        adds,
    ]


def _rotation(hidden: int) -> list[Row]:
    """huggingface/transformers models/llama/modeling_llama.py: q * cos + rotate_half(q) * sin."""
    heads = ([4, hidden // 64, 512, 64],)
    names = ("aten::mul", "aten::neg", "aten::cat", "aten::mul", "aten::add")
    return [replace(_elementwise("attention.rope", name), dims=heads * 2) for name in names]


def _adapted_layer(hidden: int, ffn: int, keys: int, four_bits: str, *, fused: bool = False) -> list[Row]:
    adapted = partial(_adapted, four_bits=four_bits)
    stream = ([4, 512, hidden],)
    norm = replace(_elementwise("norm", "aten::rms_norm"), dims=stream)
    add = replace(_elementwise("residual", "aten::add"), dims=stream * 2)
    act = replace(_elementwise("mlp.activation", "aten::silu"), dims=([4, 512, ffn],))
    gated = replace(_elementwise("mlp.activation", "aten::mul"), dims=([4, 512, ffn],) * 2)
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH, ([4, 512, hidden // 64, 64],) * 3)
    made = [hidden + 2 * keys] if fused else [hidden, keys, keys]  # Phi-3's and Llama's
    queries = [row for width in made for row in adapted("attention.qkv", width, hidden)]
    queries += _rotation(hidden) * fused
    mlp = [*adapted("mlp.gate", ffn, hidden), act, *adapted("mlp.up", ffn, hidden), gated]
    output = adapted("attention.output", hidden, hidden)
    return [norm, *queries, core, *output, add, norm, *mlp, *adapted("mlp.down", hidden, ffn), add]


@pytest.mark.parametrize(
    ("four_bits", "fused"),
    [("", False), ("", True), ("MatMul4Bit", False), ("bitsandbytes::dequantize_4bit", False)],
)
@pytest.mark.parametrize("shapes", [True, False])
def test_adapters_beside_every_product_are_of_what_they_adapt(
    tmp_path: Path, shapes: bool, four_bits: str, fused: bool
) -> None:
    """LoRA, and QLoRA by bitsandbytes (autograd/_functions.py, csrc/kernels.cu; operators since 0.46)."""
    hidden, ffn, vocab = 2048, 5632, 32000
    head = [
        replace(_elementwise("norm", "aten::rms_norm"), dims=([4, 512, hidden],)),
        mm("logits", 2048, vocab, hidden),
    ]
    loss = replace(_elementwise("loss", "aten::_log_softmax"), dims=([2048, vocab],))
    keys = hidden if fused else 512
    rows = [*WORDS, *_adapted_layer(hidden, ffn, keys, four_bits, fused=fused) * 3, *head, loss]
    trace, links, found = attributed(tmp_path, written(rows, shapes=shapes))
    right, wrong = verdict(rows, trace, found)
    assert right >= 0.98, open_rows(rows, trace, found)
    model = model_dims(found, find_calls(trace, links, found))
    assert model.layers.value == 3
    assert wrong == {}
    if shapes:
        assert (model.hidden.value, model.ffn.value, model.vocab.value) == (hidden, ffn, vocab)


def test_sums_between_the_scores_and_the_output_are_no_residual(tmp_path: Path) -> None:
    """Where deformable attention looks (arXiv 2010.04159): points plus offsets, then its output layer."""
    points = ([4, 300, 8, 4, 2],)
    rows = [
        mm("attention.qkv", 1200, 256, 256, inside="cross_attn"),
        Row(
            "attention.softmax",
            "aten::_softmax",
            "softmax_warp_forward",
            ([4, 300, 8, 16], [], []),
            inside="cross_attn",
        ),
        replace(_elementwise("attention.other", "aten::add"), dims=points * 2, inside="cross_attn"),
        mm("attention.output", 1200, 256, 256, inside="cross_attn"),
        replace(_elementwise("residual", "aten::add"), dims=([4, 300, 256],) * 2, inside="cross_attn"),
    ]
    assert_right(tmp_path, rows)


def test_a_range_around_a_block_holds_the_normalization_before_it(tmp_path: Path) -> None:
    """RMSNorm written out, as in meta-llama/llama llama/model.py, inside the range of its attention."""
    wide, hidden = [4, 512, 512], 512
    steps = {"aten::pow": (wide, []), "aten::mean": (wide, [], [], []), "aten::add": ([4, 512, 1], [], [])}
    steps |= {"aten::rsqrt": ([4, 512, 1],), "aten::mul": (wide, [4, 512, 1])}
    norm = [replace(_elementwise("norm", name), dims=dims) for name, dims in steps.items()]
    norm.append(replace(_elementwise("norm", "aten::mul"), dims=(wide, [hidden])))
    rows: list[Row] = []
    for row in _model(3):
        rows += norm if row.right == "norm" else [row]
    parts = ("norm", "attention.qkv", "attention.core", "attention.output")
    ends = [at for at, row in enumerate(rows) if row.right == "attention.output"]
    for end in ends:
        for at in range(end - len(norm) - 4, end + 1):  # queries, keys, values and the core
            assert rows[at].right in parts
            rows[at] = replace(rows[at], inside="Attention")
    trace, _, found = attributed(tmp_path, written(rows))
    right, wrong = verdict(rows, trace, found)
    assert wrong == {}
    assert right > 0.99, open_rows(rows, trace, found)


def test_a_choice_among_places_is_no_router(tmp_path: Path) -> None:
    """DETR with two stages (arXiv 2010.04159, 4.2): the places of best score become queries, by an MLP."""
    tokens, hidden, classes = 2048, 512, 80
    of_places = ([4, 512, hidden], [4, 300, hidden])
    selects = [
        mm("", tokens, classes, hidden),
        replace(_elementwise("", "aten::amax"), dims=([4, 512, classes], [])),
        replace(_elementwise("", "aten::topk"), dims=([4, 512], [], [], [], [])),
        replace(_elementwise("", "aten::gather"), dims=of_places),
        mm("", 1200, 256, hidden),
        replace(_elementwise("", "aten::relu"), dims=([4, 300, 256],)),
        mm("", 1200, hidden, 256),
    ]
    rows = [*_model(3)[:-3], *selects, *_model(3)[1:-3]]
    found = attributed(tmp_path, written(rows))[2]
    assert not [code for code in found.component if COMPONENTS[code].startswith("moe.")]


def _narrow(layers: int) -> list[Row]:
    """Attention of a mask decoder: 8 heads of 16 on a stream of 256, for more tokens than the encoder has."""
    tokens, hidden = 32768, 256
    norm = replace(_elementwise("norm", "aten::native_layer_norm"), dims=([8, 4096, hidden],))
    add = replace(_elementwise("residual", "aten::add"), dims=([8, 4096, hidden],) * 2)
    act = replace(_elementwise("mlp.activation", "aten::relu"), dims=([8, 4096, 4 * hidden],))
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH, ([8, 4096, 8, 16],) * 3)
    queries = [mm("attention.qkv", tokens, 128, hidden)] * 3
    mlp = [mm("mlp.up", tokens, 4 * hidden, hidden), act, mm("mlp.down", tokens, hidden, 4 * hidden)]
    return [norm, *queries, core, mm("attention.output", tokens, hidden, 128), add, norm, *mlp, add] * layers


def test_dimensions_are_those_of_one_model_of_two(tmp_path: Path) -> None:
    """Segment Anything: the decoder's heads beside the encoder's hidden size are no model's."""
    rows = [*_model(3)[:-2], *_narrow(2)]  # the encoder without its head
    rows = [replace(row, us=100) if str(row.dims).startswith("([2048") else row for row in rows]
    trace, links, found = attributed(tmp_path, written(rows))
    model = model_dims(found, find_calls(trace, links, found))
    assert (model.hidden.value, model.heads.value, model.head_dim.value) == (512, 8, 64)
    assert (model.layers.value, model.ffn.value) == (3, 1536)
    assert (model.sequence.value, model.micro_batch.value) == (512, 4)


@pytest.mark.parametrize("written_out", [False, True])
def test_an_encoder_that_is_not_trained_ends_in_its_vocabulary_without_shapes(
    tmp_path: Path, written_out: bool
) -> None:
    """BertLMPredictionHead, and the normalization of DeBERTa, of transformers: x / sqrt(variance)."""
    names = ["mean", "sub", "pow", "mean", "sub", "add", "sqrt", "div", "mul", "add"] if written_out else []
    norm = [_elementwise("norm", f"aten::{name}") for name in names or ["native_layer_norm"]]
    core = Row("attention.core", "aten::_flash_attention_forward", FLASH)
    attention = [*_products("attention.qkv"), core, *_products("attention.output")]
    mlp = [*_products("mlp.up"), _elementwise("mlp.activation", "aten::gelu"), *_products("mlp.down")]
    layer = [*attention, _elementwise("residual", "aten::add"), *norm]
    layer += [*mlp, _elementwise("residual", "aten::add"), *norm]
    head = [*_products("other"), _elementwise("other", "aten::gelu"), *norm, *_products("logits")]
    rows = [*WORDS, *norm, *layer * 3, *head]
    assert_right(tmp_path, rows, 0.98, shapes=False)


@pytest.mark.parametrize(
    ("choice", "found"), [("aten::topk", "moe.router"), ("aten::sort", "attention.other")]
)
def test_a_range_of_attention_can_hold_the_router_behind_its_norm(
    tmp_path: Path, choice: str, found: str
) -> None:
    """As in DeepSeek-V3's training: the layer is cut where its experts communicate."""
    small, norm = "vectorized_elementwise_kernel<4, sigmoid_kernel_cuda>", "vectorized_layer_norm_kernel"
    inside = [
        Row("norm", "aten::native_layer_norm", norm),
        Row("attention.core", "aten::_flash_attention_forward", "flash_fwd_kernel"),
        Row("norm", "aten::native_layer_norm", norm),
        Row("", "aten::sigmoid", small),
        Row("", choice, "gatherTopK"),
        Row("", "", "per_token_cast_to_fp8"),
    ]
    said = said_of(tmp_path, [replace(row, inside="attn(F)") for row in inside], shapes=False)
    assert said[3:5] == [found] * 2
    assert (said[5] == "unattributed") == (choice == "aten::topk")
