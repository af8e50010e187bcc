"""The table of docs/rules/index.md: each line's known answer from the source that it cites."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.advice.advice_experts import Mix, mixed_rows
from tests.advice.advice_facts import A100, step_of
from tests.advice.advice_rows import gemm, model
from tests.advice.advice_steps import Shape, facts_of
from tests.advice.test_advice_unfused_attention import core, pointwise, softmax
from tests.said import Listener
from tracelens.gemm import waves
from tracelens.gemm.clock import step_paces
from tracelens.hardware import find_gpu
from tracelens.results import Known
from tracelens.rules.evidence.low_precisions import block_fit
from tracelens.rules.expert_tiles import ExpertTiles
from tracelens.rules.unfused_attention import UnfusedAttention

ROOT = Path(__file__).parents[2]


def table() -> list[list[str]]:
    """Cells of each line."""
    text = (ROOT / "docs" / "rules" / "index.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_line_has_a_page_and_a_test_that_names_its_source() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py")))
    lines = table()
    assert len(lines) >= 15
    for known, source, judged in lines:
        names = re.findall(
            r"[\w.-]+#\d+|\d{4}\.\d{5}|\w+\.(?:rst|md|h|py)\b|get_align_\w+|auto_filter_\w+", source
        )
        assert names, source
        if judged.startswith("not judged"):
            continue
        assert any(name.split("/")[-1] in tests for name in names), (known, names)
        pages = re.findall(r"\((TL\d+\.md)\)", judged)
        assert pages and all((ROOT / "docs" / "rules" / page).exists() for page in pages)


@pytest.mark.parametrize(
    ("gpu", "ranks"),
    [
        ("b200", 1), ("b200", 8),  # mxfp8.rst: multiples of 32; nvfp4.md: of 128 after tensor parallelism
        ("h100-sxm", 8),  # fp8_blockwise_scaling.rst
    ],
)  # fmt: skip
def test_block_scales_ask_for_whole_blocks_of_a_rank(gpu: str, ranks: int, said: Listener) -> None:
    """An MLP of 11008 is 86 blocks of 128; its eighth, 1376, is 43 of 32 and 10.75 of 128."""
    row = gemm(1, 8192, 11008 // ranks, 4096, component="mlp.up", names=("b*s", "f/t", "h"))
    facts = facts_of(Shape(4096, 32, 11008), gpu=find_gpu(None, override=gpu))
    said(block_fit([row], facts))


@pytest.mark.parametrize(
    ("multiple", "found"), [(1, False), (16, False), (32, False), (128, True), (256, True)]
)
def test_rows_padded_for_a_type_are_seen(multiple: int, found: bool) -> None:
    """Megatron-LM, get_align_size_for_quantization: fp8 16, MXFP8 32, NVFP4 128, a fused MLP 256, bf16 none.

    Top 8 of 64 experts, 4096 tokens: each has 512 rows in the mean, and half of the multiple more.
    """
    x = Shape(2048, 16, 1408, v=32000, kv=8, d=128, layers=4, b=2, s=2048)
    mix = Mix(x, 64, [512 + multiple // 2] * 64, "grouped")
    step = facts_of(x, rows=mixed_rows(mix), dims=replace(mix.dims, top_k=Known(8, "aten::topk")))
    told = [one for one in ExpertTiles().check(step).findings if "top_k" in one.evidence]
    assert bool(told) is found
    if found:
        assert told[0].evidence["empty_frac"] == pytest.approx(multiple / 2 / (512 + multiple / 2))


def test_rounding_to_the_tile_is_what_token_rounding_saves() -> None:
    """SonicMoE, arXiv 2512.14080: rows rounded to the tile's M waste none; in the mean half a tile is."""
    x = Shape(4096, 32, 1024, v=32000, kv=8, d=128, layers=4, b=1, s=4096)
    mix = Mix(x, 128, [256] * 128, "grouped")
    step = facts_of(x, rows=mixed_rows(mix), dims=mix.dims)
    step = replace(step, gemms=[replace(row, tile_m=128) for row in step.gemms])
    (finding,) = ExpertTiles().check(step).findings
    assert finding.evidence["empty_frac"] == pytest.approx(63.5 / (256 + 63.5), rel=0.01)
    assert finding.change["rows_of_an_expert"] == [256, 256]


def test_pairs_of_sms_take_the_tiles_of_two_ctas() -> None:
    """pytorch/pytorch#196313: 256 x 256 is the tile of a pair, 128 x 256 that of each of its CTAs."""
    sms = find_gpu(None, override="b200").sms or 0
    pairs = (8192 // 256) * (9472 // 256)  # 32 x 37 tiles: 16 for each of 74 pairs
    assert (sms, pairs) == (148, 16 * 74)
    assert (
        waves(2 * pairs, sms=sms, cluster_size=2) == 16
        and waves(2 * pairs + 2, sms=sms, cluster_size=2) == 17
    )


def test_heads_above_256_become_the_memory_efficient_kernel() -> None:
    """huggingface/transformers#46960: grouped queries with heads of 512 run unfused; repeated keys do not."""
    scale = pointwise(2, "aten::mul", within="aten::_scaled_dot_product_attention_math")
    facts = step_of(
        core(d=512, time_us=2000.0), gpu=A100, step_ms=200.0, others=(softmax(time_us=2000.0), scale),
        dims=model(hidden=6144, heads=12, head_dim=512, layers=12, sequence=1024, micro_batch=8),
    )  # fmt: skip
    (finding,) = UnfusedAttention().check(facts).findings
    assert finding.evidence["kernels"] == ["efficient"] and (finding.saving_ms.low or 0) > 0
    assert any("enable_gqa" in caveat for caveat in finding.caveats)


def test_a_throttled_clock_is_a_loss_of_its_own() -> None:
    """deepseek-ai/DeepGEMM#120, arXiv 2512.08242: 1965 -> 1580 MHz, and the layer runs 15 % slower.

    Three quarters of the time computes and slows by the clocks' ratio, the rest waits for memory.
    """
    ratio = 1965 / 1580
    step, shape, _ = (one.ravel() for one in np.indices((6, 12, 4)))
    computes = shape >= 3
    plain = np.where(computes, 100_000, 100_000).astype(np.int64)
    dur = np.where((step >= 3) & computes, np.rint(plain * ratio), plain).astype(np.int64)
    slower = dur[step >= 3].sum() / plain[step >= 3].sum()
    assert 1 - 1 / slower == pytest.approx(0.155, abs=0.01)
    found = step_paces(dur, shape, step, np.ones(len(dur), np.bool_))
    assert found.lost_ns.sum() == pytest.approx((dur - plain).sum(), rel=0.01)
    assert found.range_ns[0] < (dur - plain).sum() < found.range_ns[1]
