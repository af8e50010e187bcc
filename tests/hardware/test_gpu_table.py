"""gpus.toml itself: every cell is sourced, dense, in range and consistent with its neighbours."""

from __future__ import annotations

import re

import pytest

from tracelens.hardware.table import Row, load_rows

ROWS = {row.key: row for row in load_rows()}
REQUIRED = {
    "v100-sxm", "v100-pcie", "t4", "a10", "a10g", "a100-sxm-40gb", "a100-pcie-40gb", "a100-sxm-80gb",
    "a100-pcie-80gb", "a6000", "rtx-3060", "rtx-3090", "rtx-4090", "rtx-5090", "l4", "l40s", "h100-sxm",
    "h100-pcie", "h100-nvl", "h200", "h800-sxm", "h20", "gh200-96gb", "gh200-144gb", "b200", "gb200", "b300",
    "gb300",
}  # fmt: skip
DTYPES = {"fp16", "bf16", "tf32", "fp32", "fp8", "int8"}


def test_the_parts_people_use_are_there() -> None:
    assert set(ROWS) >= REQUIRED
    assert len(ROWS) == len(load_rows()), "a key is used twice"


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_every_cell_has_a_public_source_and_a_date(row: Row) -> None:
    cells = [row.sms, row.bandwidth_gbps, row.l2_mb, *row.peak_tflops.values(), *row.ceiling_tflops.values()]
    for cell in cells:
        if cell is not None:
            assert cell.value > 0
            assert cell.source and cell.url.startswith("http")
            assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", cell.date)
            assert cell.read in (True, False)


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.key)
def test_peaks_are_dense_and_ceilings_below_them(row: Row) -> None:
    assert set(row.peak_tflops) <= DTYPES
    peak = {dtype: cell.value for dtype, cell in row.peak_tflops.items()}
    # Tensor cores run bf16 at the fp16 rate and 8-bit types at no more than about twice (four times with
    # GeForce's halved fp32 accumulate for integers) that rate; a sparse figure in one column breaks this.
    if "bf16" in peak:
        assert peak["bf16"] == peak["fp16"]
    if "tf32" in peak:
        assert peak["tf32"] == pytest.approx(peak["fp16"] / 2, rel=0.02)
    if "fp8" in peak:
        assert peak["fp8"] == pytest.approx(peak["fp16"] * 2, rel=0.02)
    if "int8" in peak:
        assert 2 * 0.98 <= peak["int8"] / peak["fp16"] <= 4 * 1.02
    for dtype, cell in row.ceiling_tflops.items():
        assert 0.5 * peak[dtype] < cell.value < peak[dtype]


def test_bf16_needs_ampere_and_fp8_needs_ada() -> None:
    for row in ROWS.values():
        assert ("bf16" not in row.peak_tflops) or row.compute_capability >= (8, 0)
        assert ("fp8" not in row.peak_tflops) or row.compute_capability >= (8, 9)


def test_disputed_cells_stay_unknown() -> None:
    assert not ROWS["a10g"].peak_tflops and ROWS["a10g"].notes
    assert ROWS["b300"].sms is None and ROWS["gb300"].sms is None
    assert "fp32" not in ROWS["b200"].peak_tflops
    assert ROWS["h200"].l2_mb is None


def test_cells_from_documents_nobody_opened_stay_few() -> None:
    unread = {
        row.key
        for row in ROWS.values()
        for cell in (row.sms, row.bandwidth_gbps, *row.peak_tflops.values(), *row.ceiling_tflops.values())
        if cell is not None and not cell.read
    }
    assert unread == {"rtx-3090", "h100-nvl", "b200"}


def test_measured_ceilings() -> None:
    def ceiling(key: str, dtype: str) -> float:
        return ROWS[key].ceiling_tflops[dtype].value

    assert ceiling("a100-sxm-80gb", "bf16") == 271.2
    assert ceiling("h100-sxm", "bf16") == ceiling("h200", "bf16") == 794.5
    assert ceiling("b200", "bf16") == 1745.0
