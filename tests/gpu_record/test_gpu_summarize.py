"""From result files to the calibration and the page: what is shipped, what is refused, what a cell says."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import summarize
from benchmarks.gpu.cells import MISSING, Table
from benchmarks.gpu.findings import cliffs
from benchmarks.gpu.record import Record, calibration, read_record, read_records
from benchmarks.gpu.tables import tables
from tests.gpu_record.made_record import made_stages, write_record
from tests.said import Listener
from tracelens.errors import InputError
from tracelens.hardware.measurements import GemmMeasurement, read_measurements


@cache
def stages() -> dict[str, dict[str, Any]]:
    return made_stages()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_record(tmp_path_factory.mktemp("made") / "results", stages=stages())


def found(record: Record) -> dict[str, Table]:
    return {table.title: table for table in tables(record)}


# --- the page -----------------------------------------------------------------------------------------


@cache
def committed_page() -> str:
    return summarize.page(read_records(summarize.RESULTS))


def test_the_committed_page_is_the_one_these_files_give() -> None:
    """After a change: ``python -m benchmarks.gpu.summarize``."""
    assert summarize.README.read_text(encoding="utf-8") == committed_page()


def test_without_a_measurement_every_measured_cell_says_so(results: Path) -> None:
    """A cell that stays the same when everything is measured is a label or another's figure."""
    full, empty = found(read_record(results / "h200")), found(Record("h200", {}))
    assert full.keys() == empty.keys()
    for title in full:
        for filled, bare in zip(full[title].rows, empty[title].rows, strict=True):
            for after, before in zip(filled, bare, strict=True):
                assert before in (MISSING, after), (title, filled, bare)
    assert all(cell == MISSING for row in empty["Ledger"].rows for cell in row)


def test_a_page_lists_what_is_not_measured_and_shows_no_empty_table(results: Path) -> None:
    page = summarize.page([])
    assert MISSING not in page and "###" not in page
    titles = list(found(Record("h200", {})))
    assert all(f"- {title}\n" in page for title in titles)
    few = Record("h200", {"curves": read_record(results / "h200").results["curves"]})
    page = summarize.page([few])
    assert "### The worst cliffs\n" in page and "- The worst cliffs\n" not in page
    assert "### The paper's C: Alignment of n\n" in page
    assert "- Capture overhead\n" in page and "### Capture overhead" not in page


def test_the_page_names_no_machine_and_no_path() -> None:
    assert not any(place in committed_page() for place in ("/work", "/tmp", "/home", "/root"))


def test_every_table_has_the_cells_its_header_promises(results: Path) -> None:
    for record in (Record("h200", {}), read_record(results / "h200")):
        for table in tables(record):
            assert all(len(row) == len(table.header) for row in table.rows), table.title
            assert all(cell for row in table.rows for cell in row[1:]), table.title


def test_predictions_are_checked_anew_and_kept_beside_the_results(tmp_path: Path, said: Listener) -> None:
    where = write_record(tmp_path / "results", stages=made_stages(50))
    assert summarize.main(["--results", str(where), "--out", str(tmp_path / "out")]) == 0
    record = read_record(where / "h200")
    assert record.verified is not None and record.verified["gpu"] == "h200"
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert page == summarize.page(read_records(where))
    assert (where / "h200.ledger.csv").read_text().startswith("stage,date,kind,name,by,low,mid,high,measured")
    (where / "h200.verification.json").write_text("{}")
    with pytest.raises(InputError) as error:
        read_records(where)
    said(error.value)


def test_predictions_and_attribution_are_shown_as_they_were_checked() -> None:
    errors = {"count": 800, "median_frac": 0.05, "p90_frac": 0.2, "in_range_frac": 0.9}
    told = {"kernels": 400, "matched_frac": 0.99, "phase_frac": 1.0, "module_frac": None}
    counts = {"predictions": 20, "hits": 17, "misses": 3, "bias_frac": -0.012, "median_error_frac": 0.02}
    line = {"kind": "saving", "stage": "savings", "by": "datasheet", **counts}
    verified = {
        "errors": {"gemm_model": errors, "gemm_calibrated": None},
        "ledger": [line],
        "attribution": {"vit_h14_eager": told},
    }
    shown = found(Record("h200", {}, verified=verified))
    rows = shown["Predictions of GEMMs left out"].rows
    assert rows[0][1:] == ("800", "5.0%", "20.0%", "90.0%")
    assert rows[1][1] == MISSING
    assert shown["Ledger"].rows == (("saving, `savings`", "datasheet", "20", "17", "3", "-1.2%", "2.0%"),)
    (row,) = (row for row in shown["Attribution"].rows if row[0] == "vit_h14_eager")
    assert row[2:] == ("400", "99.0%", "100%", "unknown")


# --- a dry run ----------------------------------------------------------------------------------------


def dry_run(folder: Path, *stages: str) -> list[str]:
    """What tells where the results of these stages at toy size on the CPU lie."""
    from benchmarks.gpu import worker

    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    where = ["--results", str(folder / "dry" / "results")]
    try:
        assert worker.main(["--dry-run-cpu", *where, *(f"--only={name}" for name in stages)]) == 0
    finally:
        torch.set_num_threads(threads)
    return where


def test_a_dry_run_makes_a_page_that_says_so_and_ships_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = dry_run(tmp_path, "ceilings", "gemm_sweep", "attention_sweep")
    assert summarize.main([*where, "--out", str(tmp_path / "page")]) == 0
    assert "a dry run measures" in capsys.readouterr().out
    page = (tmp_path / "page" / "README.md").read_text(encoding="utf-8")
    assert "was measured on a GPU" in page
    assert not (tmp_path / "page" / "calibration").exists()

    before = summarize.README.read_text(encoding="utf-8")
    assert summarize.main(where) == 3
    assert "dry run" in capsys.readouterr().err
    assert summarize.README.read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dry_run": True}, "a dry run measures no GPU"),
        ({"state": "refused"}, "no GEMM sweep is measured"),
        ({"device": {"name": "NVIDIA H100 80GB HBM3"}}, "different devices"),
    ],
)
def test_a_calibration_is_refused_with_the_reason(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    few = {"gemm_sweep": stages()["gemm_sweep"], "ceilings": stages()["ceilings"]}
    write_record(tmp_path, stages=few)
    write_record(tmp_path, stages={"gemm_sweep": few["gemm_sweep"]}, **changes)
    with pytest.raises(InputError, match=says):
        calibration(read_record(tmp_path / "h200"))


def test_what_a_cpu_measured_is_no_calibration_even_without_the_flag(tmp_path: Path, said: Listener) -> None:
    write_record(tmp_path, stages={"gemm_sweep": stages()["gemm_sweep"] | {"kind": "cpu"}})
    with pytest.raises(InputError) as error:
        calibration(read_record(tmp_path / "h200"))
    said(error.value)


def test_without_the_sweep_nothing_is_shipped(tmp_path: Path, said: Listener) -> None:
    write_record(tmp_path, stages={"curves": stages()["curves"]})
    (line,) = summarize.ship(read_records(tmp_path), tmp_path / "shipped")
    assert not (tmp_path / "shipped").exists()
    said(line)


def test_a_damaged_result_is_named(tmp_path: Path, said: Listener) -> None:
    (write_record(tmp_path, stages={"curves": stages()["curves"]}) / "h200" / "curves.json").write_text("{")
    with pytest.raises(InputError) as error:
        read_records(tmp_path)
    said(str(error.value).partition(": ")[0])


# --- the calibration ----------------------------------------------------------------------------------


def test_the_calibration_holds_every_product_and_attention_call(results: Path, tmp_path: Path) -> None:
    (line,) = summarize.ship(read_records(results), tmp_path)
    shipped = read_measurements(tmp_path / "h200.json.gz")
    made = stages()
    tables_of = (made[name] for name in ("gemm_sweep", "curves", "ceilings"))
    assert len(shipped.gemms) == sum(len(one["table"]["rows"]) for one in tables_of)
    assert len(shipped.attention) == len(made["attention_sweep"]["table"]["rows"])
    assert str(len(shipped.gemms)) in line
    assert (shipped.gpu, shipped.device["sms"], shipped.software["torch"]) == ("h200", 132, "2.11.0")
    assert (shipped.bandwidth_gbps, shipped.launch_floor_us) == (4300.0, 2.5)
    assert shipped.clocks == {"sm_mhz_before": 1900, "sm_mhz_after": 1890, "sm_mhz_max": 1980}
    again = tmp_path / "again"
    summarize.ship(read_records(results), again)
    assert (again / "h200.json.gz").read_bytes() == (tmp_path / "h200.json.gz").read_bytes()


def test_other_software_and_shapes_left_out_are_noted(tmp_path: Path, said: Listener) -> None:
    left = stages()["curves"] | {"unmeasured": {"1 × 2 × 3": "no kernel"}}
    write_record(tmp_path, stages={"gemm_sweep": stages()["gemm_sweep"]})
    write_record(tmp_path, stages={"curves": left}, software={"torch": "2.12.0", "driver": "590"})
    notes = calibration(read_record(tmp_path / "h200")).notes
    said(notes)


# --- the tables ---------------------------------------------------------------------------------------


def test_ceilings_are_the_best_products_beside_datasheet_and_ceiling(results: Path) -> None:
    rows = {row[0]: row for row in found(read_record(results / "h200"))["Ceilings reached"].rows}
    # the rule of the made-up record: 200 + 8 * 64 TFLOP/s, twice that in fp8; 989 by the datasheet
    assert rows["bf16"][1] == "712" and rows["bf16"][3] == "72.0%" and rows["bf16"][4] == "89.6%"
    assert rows["fp8"][1] == "1,424"
    assert rows["copy, GB/s"][1:4] == ("4,300", "read + written", "89.6%")


def test_the_best_change_at_equal_parameters_is_beside_the_claim(results: Path) -> None:
    record = read_record(results / "h200")
    rows = found(record)["Speed-up at equal parameters"].rows
    assert rows[0][:2] == ("best of the paper", "+39.0%")
    best = max(
        (row for row in record.layers if abs(row["parameters_frac"] - 1) <= 0.01
         and row["change"] and row["rule"] not in ("tokens", "tensor_parallel", "dtype")),
        key=lambda row: row["speedup"],
    )  # fmt: skip
    assert rows[1][0] == "best here" and rows[1][2].startswith(best["name"])


def test_the_copied_shape_is_shown_with_and_without_fused_attention(results: Path) -> None:
    rows = found(read_record(results / "h200"))["The 2.7B shape"].rows
    names = [row[0] for row in rows]
    assert "32 → 20 heads, fused attention" in names
    assert "32 → 64 heads, attention by GEMMs" in names
    assert rows[0][3] == "+20.0%"


def test_a_run_is_compared_with_the_sweep_and_with_itself(results: Path) -> None:
    rows = found(read_record(results / "h200"))["Repeatability"].rows
    assert [row[1:3] for row in rows] == [("200", "2.0%"), ("200", "2.0%")]


def made(n: int, time_us: float, spread: float = 0.01) -> GemmMeasurement:
    return GemmMeasurement("x", 4096, n, 4096, 1, "bf16", "bf16", "TN", time_us, spread, ())


def test_cliffs_are_between_near_shapes_that_were_timed_well() -> None:
    gemms = [made(4096, 200.0), made(4097, 400.0), made(4500, 900.0), made(4501, 200.0, spread=0.2)]
    (cliff,) = cliffs(gemms)
    assert (cliff.fast.n, cliff.slow.n, cliff.dimension) == (4096, 4097, "n")
    assert cliff.lost_frac == pytest.approx(0.5, abs=0.001)
    assert list(cliffs([made(4096, 2.0), made(4097, 4.0)])) == []  # launch, not shape


def test_the_worst_cliffs_are_one_of_each_family(results: Path) -> None:
    rows = found(read_record(results / "h200"))["The worst cliffs"].rows
    lost = [float(row[5].rstrip("%")) for row in rows]
    assert lost == sorted(lost, reverse=True)
    assert len({(row[1], row[3]) for row in rows}) == len(rows)
