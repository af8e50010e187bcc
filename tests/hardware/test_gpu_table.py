"""gpus.toml itself: every cell is sourced, dense, in range and consistent with its neighbours."""

from __future__ import annotations

import re

import pytest

from tracelens.hardware.table import TableCell, TablePart, load_rows

ROWS = {row.key: row for row in load_rows()}
REQUIRED = {
    "v100-sxm", "v100-pcie", "t4", "a10", "a10g", "a100-sxm-40gb", "a100-pcie-40gb", "a100-sxm-80gb",
    "a100-pcie-80gb", "a6000", "rtx-3060", "rtx-3090", "rtx-4090", "rtx-5090", "l4", "l40s", "h100-sxm",
    "h100-pcie", "h100-nvl", "h200", "h800-sxm", "h20", "gh200-96gb", "gh200-144gb", "b200", "gb200", "b300",
    "gb300", "rtx-pro-6000-server", "a30", "a40", "a800-sxm-80gb", "a800-pcie-80gb", "a100-pg509", "a5000",
    "l20", "l40", "rtx-6000-ada", "rtx-3080", "rtx-3090-ti", "rtx-4070-ti", "rtx-4080", "rtx-5070-ti",
    "rtx-5080", "rtx-4090-laptop", "rtx-4070-laptop", "rtx-3080-laptop", "rtx-3060-laptop",
    "a4000",
}  # fmt: skip
DTYPES = {"fp64", "fp32", "fp16", "bf16", "tf32", "fp8", "int8"}
COLUMNS = ("sms", "boost_mhz", "memory_gb", "bandwidth_gbps", "l2_mb")
#: CUDA cores per SM: CUDA C++ Programming Guide, throughput of native arithmetic instructions, fp32 add.
CUDA_CORES = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128,
              (10, 3): 128, (12, 0): 128}  # fmt: skip


def test_the_parts_people_use_are_there() -> None:
    assert set(ROWS) >= REQUIRED
    assert len(ROWS) == len(load_rows()), "a key is used twice"


def cells(row: TablePart) -> dict[str, TableCell]:
    """Every figure of a row by its column or type; measured ceilings apart."""
    found = {name: getattr(row, name) for name in (*COLUMNS, "tensor_mhz", "fp16_accumulate_tflops")}
    return {name: cell for name, cell in found.items() if cell is not None} | dict(row.peak_tflops)


def types(row: TablePart) -> set[str]:
    """The types that the architecture has units for."""
    return DTYPES - {
        dtype
        for dtype, since in (("bf16", (8, 0)), ("tf32", (8, 0)), ("fp8", (8, 9)))
        if row.compute_capability < since
    }


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_every_cell_has_a_public_source_and_a_date(row: TablePart) -> None:
    for cell in (*cells(row).values(), *row.ceiling_tflops.values()):
        assert cell.value > 0
        assert cell.source and cell.url.startswith("http")
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", cell.date)
        assert cell.read in (True, False)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_every_figure_is_there_or_unknown_for_a_stated_reason(row: TablePart) -> None:
    expected = set(COLUMNS) | types(row)
    assert set(cells(row)) & expected | set(row.unknown) == expected
    assert not set(cells(row)) & set(row.unknown)
    assert all(len(reason) > 9 for reason in row.unknown.values())


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_peaks_are_what_the_sms_do_at_their_clock(row: TablePart) -> None:
    """fp16 = SMs x rate x clock, fp32 = SMs x 2 x CUDA cores x clock, where all factors are known."""
    boost, sms = row.boost_mhz, row.sms
    if boost is None or sms is None:
        assert {"boost_mhz", "sms"} & set(row.unknown)
        return
    clock = row.tensor_mhz or boost
    fp16 = row.peak_tflops.get("fp16")
    if fp16 is not None and "fp16" not in row.check:
        assert row.tensor_flop_per_clock is not None
        assert fp16.value == pytest.approx(
            sms.value * row.tensor_flop_per_clock * clock.value / 1e6, rel=0.02
        )
    fp32 = row.peak_tflops.get("fp32")
    if fp32 is not None and "fp32" not in row.check:
        cores = CUDA_CORES[row.compute_capability]
        assert fp32.value == pytest.approx(sms.value * 2 * cores * boost.value / 1e6, rel=0.01)


def test_most_rows_are_checked_against_their_clocks() -> None:
    checked = {
        key
        for key, row in ROWS.items()
        if row.boost_mhz and row.sms and "fp16" in row.peak_tflops and "fp16" not in row.check
    }
    assert len(checked) >= 18
    assert {"v100-sxm", "t4", "a10", "a100-sxm-80gb", "rtx-3090", "rtx-4090", "l4", "l40s"} <= checked
    assert {"h100-sxm", "h100-pcie", "h200", "b200"} <= checked


def test_the_l40_has_half_the_peaks_of_the_l40s() -> None:
    """Their clocks differ by 1 %; NVIDIA prints 181.05 and 362.05 TFLOP/s of dense fp16."""
    for dtype in ("fp16", "bf16", "tf32", "fp8", "int8"):
        half = ROWS["l40s"].peak_tflops[dtype].value / 2
        assert ROWS["l40"].peak_tflops[dtype].value == pytest.approx(half, rel=0.02)


def test_rates_are_the_architectures() -> None:
    """FLOP per clock and SM in fp16 with fp32 accumulation; GeForce runs that at half its chip's rate."""
    rates = {
        (7, 0): 1024,
        (7, 5): 1024,
        (8, 0): 2048,
        (8, 6): 1024,
        (8, 9): 1024,
        (9, 0): 4096,
        (10, 0): 8192,
        (12, 0): 1024,
    }
    for row in ROWS.values():
        geforce = "GeForce" in row.title
        assert (row.fp16_accumulate_tflops is not None) == geforce
        if geforce:
            assert row.tensor_flop_per_clock == 512 and row.fp16_accumulate_tflops is not None
            assert row.fp16_accumulate_tflops.value == pytest.approx(
                2 * row.peak_tflops["fp16"].value, rel=0.01
            )
        elif row.tensor_flop_per_clock is not None:
            assert row.tensor_flop_per_clock == rates[row.compute_capability]


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_peaks_are_dense_and_ceilings_below_them(row: TablePart) -> None:
    assert set(row.peak_tflops) <= DTYPES | {"nvfp4"}
    peak = {dtype: cell.value for dtype, cell in row.peak_tflops.items()}
    # Tensor cores run bf16 at the fp16 rate and 8-bit types at no more than about twice (four times with
    # GeForce's halved fp32 accumulate for integers) that rate; a sparse figure in one column breaks this.
    if "bf16" in peak:
        assert peak["bf16"] == peak["fp16"]
    if "tf32" in peak:
        assert peak["tf32"] == pytest.approx(peak["fp16"] / 2, rel=0.02)
    if "fp8" in peak:
        assert peak["fp8"] == pytest.approx(peak["fp16"] * 2, rel=0.02)
    if "nvfp4" in peak:
        assert peak["nvfp4"] == peak["fp16"] * 4
    if "int8" in peak:
        assert 2 * 0.98 <= peak["int8"] / peak["fp16"] <= 4 * 1.02
    for dtype, cell in row.ceiling_tflops.items():
        assert 0.5 * peak[dtype] < cell.value < peak[dtype]


def test_bf16_needs_ampere_and_fp8_needs_ada() -> None:
    for row in ROWS.values():
        assert ("bf16" not in row.peak_tflops) or row.compute_capability >= (8, 0)
        assert ("fp8" not in row.peak_tflops) or row.compute_capability >= (8, 9)


def test_disputed_cells_stay_unknown() -> None:
    assert "fp32" not in ROWS["a10g"].peak_tflops and "fp8" not in ROWS["l20"].peak_tflops
    assert ROWS["gh200-144gb"].bandwidth_gbps is None
    assert "fp32" not in ROWS["b200"].peak_tflops
    assert ROWS["l40s"].l2_mb is None


def test_cells_from_documents_nobody_opened_stay_few() -> None:
    unread = {
        row.key
        for row in ROWS.values()
        for cell in (*cells(row).values(), *row.ceiling_tflops.values())
        if not cell.read
    }
    assert unread == {"v100-sxm", "rtx-3090", "h100-nvl", "b200"}


def test_measured_ceilings() -> None:
    def ceiling(key: str, dtype: str) -> float:
        return ROWS[key].ceiling_tflops[dtype].value

    assert ceiling("a100-sxm-80gb", "bf16") == 271.2
    assert ceiling("h100-sxm", "bf16") == ceiling("h200", "bf16") == 794.5
    assert ceiling("b200", "bf16") == 1745.0
