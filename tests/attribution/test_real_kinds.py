"""Kinds of recording that others publish, written row by row from the public source of what they ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribution.rows import Row, attributed, open_rows, verdict, written
from tracelens.words import PHASES

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
