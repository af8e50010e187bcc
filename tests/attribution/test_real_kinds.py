"""Kinds of recording that others publish, written row by row from the public source of what they ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, mm, open_rows, verdict, written
from tracelens.accounting.model import model_dims
from tracelens.attribution import find_calls
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


def test_between_kernels_that_only_an_optimizer_runs_all_is_the_optimizer(tmp_path: Path) -> None:
    update = [
        Row("unattributed", "aten::mul", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
        Row("optimizer", "XXT_kernel_0", "XXT_kernel", inside="loop"),
        Row("optimizer", "aten::lerp_", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
        Row("optimizer", "ba_plus_cAA_kernel_1", "ba_plus_cAA_kernel", inside="loop"),
        Row("unattributed", "aten::mul", "void at::native::vectorized_elementwise_kernel<4>", inside="loop"),
    ]
    rows = [Row("", "", "k", inside="mlp(B)"), *update, Row("", "", "k", inside="mlp(F)")]
    trace, _, found = attributed(tmp_path, written(rows))
    said = [COMPONENTS[code] for code in found.component[trace.kernels.ts_ns.argsort(kind="stable")]]
    assert said[1:-1] == [row.right for row in update]


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
    # deepseek_v3: dense layers first, then experts
    "experts": WORDS
    + 2 * (_attention("q", "k", "v") + _mlp("gated"))
    + 4 * (_attention("q", "k", "v") + _mlp("experts"))
    + HEAD,
}


@pytest.mark.parametrize("name", WITHOUT_SHAPES)
def test_order_alone_tells_layers_of_several_kinds(tmp_path: Path, name: str) -> None:
    rows = WITHOUT_SHAPES[name]
    trace, _, found = attributed(tmp_path, written(rows, shapes=False))
    right, wrong = verdict(rows, trace, found)
    assert right >= 0.9, open_rows(rows, trace, found)
    assert wrong == {}
