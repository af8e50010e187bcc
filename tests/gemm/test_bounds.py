"""Ranges of M and N from tile and grid: they hold wherever the true sizes are recorded."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gemm.test_kernel_names import parsed
from tracelens.gemm import (
    GemmShape,
    ShapeBounds,
    bound_attention,
    bound_shape,
    parse_kernel_name,
    shape_of,
)

EVIDENCE = Path(__file__).resolve().parents[3] / "shared" / "facts" / "trace_gemm_evidence.txt"
CUTLASS = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8"

Grid = tuple[int, int, int]


def bounds(name: str, grid: Grid, *, plain: bool = False) -> ShapeBounds:
    found = bound_shape(parsed(name), grid, plain=plain)
    assert found is not None, (name, grid)
    return found


@pytest.mark.parametrize(
    ("name", "grid", "m", "n"),
    [
        # M = 1024, N = 1536 on an RTX 3060, K in two slices
        ("ampere_sgemm_128x64_tn", (12, 16, 2), (961, 1024), (1409, 1536)),
        # M = 640, N = 300 on an A100: the rows of the tile are its second number
        ("ampere_sgemm_32x128_nn", (10, 5, 1), (513, 640), (289, 320)),
        # M = 512, N = 1000 on an H100: another order, and no swizzle
        (
            (
                "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4"
                "_alignc4_execute_kernel__5x_cublas"
            ),
            (8, 16, 1),
            (449, 512),
            (961, 1024),
        ),
        # M = 141, N = 30522: 15 rows of the grid leave no other factor than 8
        (
            "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2",
            (16, 15, 1),
            (129, 256),
            (28673, 30720),
        ),
    ],
)
def test_ranges_are_one_tile_wide_where_the_grid_counts_tiles(
    name: str, grid: Grid, m: tuple[int, int], n: tuple[int, int]
) -> None:
    found = bounds(name, grid)
    assert (found.m, found.n) == (m, n)


def test_a_swizzled_grid_holds_every_tiling_it_can_mean() -> None:
    """M = 788, N = 768 launches 13 * 8 CTAs in x; 26 * 4, 52 * 2 and 104 * 1 would look the same."""
    found = bounds(CUTLASS, (104, 1, 1))
    assert found.boxes == (
        ((769, 832), (641, 1024)),
        ((1601, 1664), (257, 512)),
        ((3265, 3328), (129, 256)),
        ((6593, 6656), (1, 128)),
    )
    assert (found.m, found.n) == ((769, 6656), (1, 1024))
    assert found.holds(788, 768)
    assert not found.holds(788, 100), "13 rows of tiles go with six or more columns"


def test_a_grid_that_no_swizzle_makes_bounds_nothing() -> None:
    assert bound_shape(parsed(CUTLASS), (3, 5, 1)) is None, "five rows of the grid need x in eights"


@given(
    m=st.integers(1, 40000),
    n=st.integers(1, 40000),
    tile=st.sampled_from([(256, 128), (128, 256), (128, 64), (64, 64), (32, 32)]),
)
def test_the_swizzle_is_undone_whatever_the_sizes(m: int, n: int, tile: tuple[int, int]) -> None:
    """CUTLASS's own formula of the grid, GemmIdentityThreadblockSwizzle<8>, forwards."""
    rows, columns = -(-m // tile[1]), -(-n // tile[0])
    factor = 8 if columns >= 6 else 4 if columns >= 3 else 2 if columns >= 2 else 1
    grid = (rows * factor, -(-columns // factor), 1)
    name = f"cutlass_80_tensorop_s1688gemm_{tile[0]}x{tile[1]}_16x4_nn_align1"
    assert bounds(name, grid).holds(m, n)


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", (2, 66, 1)),  # persistent: the grid counts SMs
        ("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", (140, 1, 1)),  # Blackwell: not settled
        (
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute",
            (132, 1, 1),
        ),
        (
            "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16",
            (8, 16, 1),
        ),  # tensor cores: not checked
        ("volta_fp16_s884gemm_fp16_256x128_ldg8_f2f_nn", (8, 16, 1)),  # not checked
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_splitK_f2f_stages_64x4_tn", (8, 16, 2)),
        ("triton_tem_fused_mm_5", (64, 1, 1)),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT16x16x256_MI16x16x1_SN_", (73728, 1, 1)),
        ("ampere_sgemm_128x64_tn", (12, 65535, 1)),  # what does not fit a grid is done in a loop
        ("ampere_sgemm_128x64_tn", (12, 0, 1)),
    ],
)
def test_no_bounds_where_the_grid_is_not_understood(name: str, grid: Grid) -> None:
    assert bound_shape(parsed(name), grid) is None


def test_no_grid_no_bounds() -> None:
    assert bound_shape(parsed("ampere_sgemm_128x64_tn"), None) is None
    assert bound_shape(parsed("void cublasLt::splitKreduce_kernel<32>(int)"), (4, 4, 1)) is None


def test_batch_is_known_only_where_grid_z_has_one_meaning() -> None:
    name = "ampere_sgemm_64x64_nn"
    assert bounds(name, (8, 16, 1)).batch == 1
    assert bounds(name, (8, 16, 2)).batch is None, "two products, or two slices of K"
    assert bounds(name, (8, 16, 2), plain=True).batch == 1


@pytest.mark.skipif(not EVIDENCE.exists(), reason="the shared evidence is not here")
def test_true_sizes_lie_in_the_bounds_in_the_evidence_of_public_traces() -> None:
    bounded: dict[str, int] = {}
    for line in EVIDENCE.read_text(encoding="utf-8").splitlines():
        row = re.match(r"\d+ [\d.]+ (\(.*\))$", line)
        if row is None:
            continue
        name, op, dims, grid = ast.literal_eval(row[1])[:4]
        kernel = parse_kernel_name(name)
        shape = shape_of(op, ast.literal_eval(dims), None, None, None) if op and dims else None
        if kernel is None or not isinstance(shape, GemmShape):
            continue
        found = bound_shape(kernel, tuple(ast.literal_eval(grid)))
        if found is not None:
            assert found.holds(shape.m, shape.n), line
            assert found.batch in (None, shape.batch), line
            bounded[kernel.family] = bounded.get(kernel.family, 0) + 1
    assert bounded == {"cutlass2": 18}


def test_attention_is_bounded_by_its_blocks_of_queries() -> None:
    flash = parsed(
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false>>"
    )
    found = bound_attention(flash, (2, 4, 12))  # [4, 197, 12, 64] on an H100
    assert found is not None
    assert (found.batch, found.heads, found.query_len, found.head_dim) == (4, 12, (129, 256), 64)
    split = parsed("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64, 64, 256, 4, false>>")
    assert bound_attention(split, (2, 4, 12)) is None, "its grid counts splits of the keys"
    assert bound_attention(parsed("ampere_sgemm_128x64_tn"), (2, 4, 12)) is None
