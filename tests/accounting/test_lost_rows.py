"""The losses of real and generated traces: their sums, and derivations that can be redone by hand."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.kept import analyzed
from tests.render import sample_report
from tests.said import Listener
from tracelens.accounting.lost import call_facts, gemm_time, split_row, worst_alignment
from tracelens.analysis import Analysis, analyze
from tracelens.errors import UsageError
from tracelens.gemm.lost import PARTS
from tracelens.hardware.measurements import GemmMeasurement, Measurements, write_measurements
from tracelens.render.derivation import added, derive
from tracelens.render.losses import derivation, lost_ms, main_cause, time_line
from tracelens.results import GemmRow, Report
from tracelens.results.json import from_json, to_json

ROOT = Path(__file__).resolve().parents[2]
SHARED = sorted((ROOT.parent / "shared" / "traces").rglob("*.json.gz"))
TRACES = [*sorted((ROOT / "sample_traces").glob("*.json.gz")), *SHARED]
every_trace = pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:24])


@cache
def _analysis(path: Path) -> Analysis:
    return analyzed(path)


def _report(path: Path) -> Report:
    return _analysis(path).report


@every_trace
def test_the_parts_of_every_row_add_up_to_its_time(path: Path) -> None:
    for row in _report(path).gemms:
        lost = row.lost_ms
        if lost.useful is None:
            assert lost.why["useful"]
            assert all(getattr(lost, part) is None for part in PARTS)
            continue
        total = sum(getattr(lost, part) or 0.0 for part in PARTS)
        assert total == pytest.approx(row.time_ms_per_step, rel=1e-9, abs=1e-12)
        for part in ("alignment", "wave", "tile", "memory"):
            assert getattr(lost, part) is not None or lost.why[part]


@every_trace
def test_the_parts_of_a_step_add_up_to_its_gemm_time(path: Path) -> None:
    report = _report(path)
    time = report.gemm_time
    assert time is not None
    gemms = [row for row in report.gemms if row.kind == "gemm"]
    assert time.total == pytest.approx(sum(row.time_ms_per_step for row in gemms))
    parts = sum(getattr(time, part) for part in PARTS)
    assert parts + time.not_judged == pytest.approx(time.total, rel=1e-9, abs=1e-12)
    assert bool(time.not_judged) == bool(time.not_judged_why)
    known = time.ceiling + time.helpers + time.small
    assert known <= time.other * (1 + 1e-9) + 1e-12


@every_trace
def test_useful_is_the_share_of_peak_that_the_table_shows(path: Path) -> None:
    for row in _report(path).gemms:
        if row.lost_ms.useful is not None and row.time_ms_per_step and "useful" not in row.lost_ms.why:
            assert row.lost_ms.useful / row.time_ms_per_step == pytest.approx(row.peak_frac, rel=1e-9)


@every_trace
def test_no_wave_or_tile_is_refuted_by_the_speed_of_its_kernel(path: Path) -> None:
    """SMs that idle or pad leave the rest of them to do the work: never at more than the datasheet's peak."""
    for row in _report(path).gemms:
        facts = call_facts(row, _report(path).gpu)
        if row.bound == "compute" and facts.math_us and facts.working_us and row.lost_ms.useful is not None:
            busy = facts.working_us * (facts.wave or 1.0) * (facts.tile or 1.0)
            assert facts.math_us <= busy * 1.02, row.kernel


@every_trace
def test_a_saved_report_derives_the_same(path: Path) -> None:
    report = _report(path)
    again = from_json(to_json(report))
    assert again.gemm_time == report.gemm_time == gemm_time(again.gemms)
    for row, same in list(zip(report.gemms, again.gemms, strict=True))[:10]:
        assert derive(row, report.gpu) == derive(same, again.gpu)


def _value(formula: str) -> float:
    """What a reader with a calculator finds."""
    text = formula.replace("·", "*").replace("^", "**").replace("⌈", "ceil(").replace("⌉", ")")
    assert re.fullmatch(r"(?:[\d.,+\-*/() ]|ceil|max|min)+", text), formula
    return float(eval(text, {"__builtins__": {}}, {"ceil": math.ceil, "max": max, "min": min}))


def _computed(row: GemmRow, report: Report) -> dict[str, tuple[float, float, float]]:
    """name -> (redone, printed, one in the last printed digit) of every line with a formula."""
    found = {}
    for name, shown, _ in derivation(row, report).lines:
        formula, equals, result = shown.partition(" = ")
        if not equals or name in ("shape", "kernel", "of the row"):
            continue
        printed = result.split()[0]
        step = 10.0 ** -len(printed.partition(".")[2])
        key = name if name not in found else f"{name} again"
        found[key] = (_value(formula), float(printed), step)
    return found


@every_trace
def test_a_reader_can_redo_every_line_by_hand(path: Path) -> None:
    report = _report(path)
    for row in report.gemms[:40]:
        if row.lost_ms.useful is None:
            continue
        lines = _computed(row, report)
        for name, (redone, printed, step) in lines.items():
            # the inputs are printed to a hundredth of a microsecond and to six digits
            assert redone == pytest.approx(printed, rel=1e-5, abs=2.5 * step), (row.id, name)
        if "sum" in lines:
            assert lines["sum"][1] == pytest.approx(lines["time T"][1], abs=0.011)
            split = split_row(row, report.gpu)
            parts = [getattr(split, part) for part in added(row, split)]
            summed = next(shown for name, shown, _ in derivation(row, report).lines if name == "sum")
            assert summed.split(" = ")[0] == " + ".join(f"{part:.2f}" for part in parts)


@pytest.mark.skipif(not SHARED, reason="no shared/traces beside this checkout")
def test_a_persistent_kernels_grid_is_not_its_tile_count() -> None:
    """nvjet on an H100 launches at most 132 CTAs for 2736 tiles; its waves are counted in tiles."""
    report = _report(next(path for path in SHARED if path.name.startswith("d1_")))
    row = next(row for row in report.gemms if row.scheduler == "persistent" and row.tiles == 2736)
    assert row.waves == 21
    assert row.wave_eff_frac == pytest.approx(2736 / (21 * 132))


@pytest.mark.skipif(not SHARED, reason="no shared/traces beside this checkout")
def test_two_ctas_on_an_sm_do_not_halve_it() -> None:
    """fp32 on an H100: 128 tiles, two fit on each of 132 SMs; it ran at 78 % of peak, so no half was idle."""
    report = _report(next(path for path in SHARED if path.name.startswith("d6_")))
    row = next(row for row in report.gemms if row.ctas_per_sm == 2 and row.tiles == 128 and row.m == 512)
    assert row.peak_frac is not None and row.peak_frac > 0.7
    assert row.wave_eff_frac == pytest.approx(128 / 132)


@pytest.mark.skipif(not SHARED, reason="no shared/traces beside this checkout")
def test_the_bert_vocabulary_loses_to_alignment_and_padding() -> None:
    """30522 is no multiple of 8, 141 tokens fill 55 % of two rows of tiles."""
    report = _report(next(path for path in SHARED if path.name.startswith("d3_")))
    row = next(row for row in report.gemms if row.component == "logits")
    lost, time = row.lost_ms, row.time_ms_per_step
    assert row.alignment_bytes["c"] == 4
    assert row.alignment_frac is not None and row.alignment_frac < 0.8
    assert row.tile_eff_frac == pytest.approx(141 * 30522 / (240 * 128 * 256))
    assert lost.alignment is not None and lost.alignment > 0.2 * time
    assert lost.tile is not None and lost.tile > 0.09 * time  # 45 % of what its alignment leaves


def test_an_alignment_that_is_only_bounded_is_marked_as_such() -> None:
    report = sample_report.full()
    rows = [row for row in report.gemms if worst_alignment(row) == 2]
    assert rows
    for row in rows:
        assert row.alignment_frac == 0.72 and row.lost_ms.at_least == ["alignment"]
    assert any(main_cause(row).startswith("alignment ≥ ") for row in rows)
    assert report.gemm_time is not None and report.gemm_time.at_least == ["alignment"]
    assert "alignment ≥ " in time_line(report.gemm_time, per=" per step")


def test_the_main_cause_of_a_row_is_a_part_of_what_it_loses_in_the_same_unit() -> None:
    named = 0
    for row in sample_report.full().gemms:
        said = main_cause(row)
        if not said:
            continue
        name, value = said.split()[0], float(said.split()[-1].replace(",", ""))
        assert value == pytest.approx(getattr(row.lost_ms, name) or 0.0, rel=0.01)
        lost = lost_ms(row)
        assert lost is not None and value <= 1.01 * lost
        named += 1
    assert named >= 5


def test_padding_the_vocabulary_takes_the_alignment_loss_away() -> None:
    odd = _report(next(path for path in TRACES if "50257" in path.name)).gemm_time
    padded = _report(next(path for path in TRACES if "50304" in path.name)).gemm_time
    assert odd is not None and padded is not None
    assert padded.alignment == 0.0 and odd.alignment > 0.1 * odd.total
    assert padded.useful == pytest.approx(odd.useful, rel=0.001)


def _measurements(**given: object) -> Measurements:
    """Made-up figures in the format of ``tracelens bench``, to see that they are used and named."""
    one = GemmMeasurement("test", 8192, 8192, 8192, 1, "bf16", "bf16", "TN", 1500.0, None, ())
    base: dict[str, Any] = {
        "gpu": "h100-sxm", "device": {"sms": 132}, "software": {}, "clocks": {}, "date": "2026-01-02",
        "command": "", "method": "made up", "gemms": (one,), "bandwidth_gbps": 3000.0, "launch_floor_us": 2.0,
    }  # fmt: skip
    return Measurements(**(base | given))


def test_measurements_of_this_gpu_are_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path))
    write_measurements(_measurements(), tmp_path / "h100-sxm.json.gz")
    report = analyze(TRACES[0], shape_search=False).report
    row = next(row for row in report.gemms if row.kind == "gemm")
    best = 2 * 8192**3 / 1500.0 / 1e6
    assert report.gpu.measured_tflops == {"bf16": pytest.approx(best)}
    lines = {name: (shown, why) for name, shown, why in derivation(row, report).lines}
    assert lines["best matmul"][0].startswith(f"{best:g}"[:5])
    said(lines["best matmul"][1])
    assert " - 2.00 = " in lines["working time W"][0]  # the floor measured here, not the table's
    assert lines["peak"][0] == "989 TFLOP/s"  # useful stays at the datasheet
    other = split_row(row, report.gpu).ceiling
    assert other is not None and row.flops is not None
    assert other == pytest.approx(row.flops / best / 1e6 - row.flops / 989 / 1e6)
    assert float(lines["best time Y"][0].split()[-2]) == pytest.approx(row.flops / best / 1e6, abs=0.01)


def test_damaged_measurements_are_a_note_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path))
    (tmp_path / "h100-sxm.json.gz").write_bytes(b"nonsense")
    report = analyze(TRACES[0], shape_search=False).report
    assert report.gpu.measured_tflops == {}
    said(report.notes)


def test_the_frame_has_the_parts_as_columns() -> None:
    frame = _analysis(TRACES[0]).gemms
    parts = ["useful_ms", *(f"lost_{part}_ms" for part in PARTS if part != "useful")]
    judged = frame[frame["useful_ms"].notna()]
    assert len(judged) and "lost_ms" not in frame
    assert judged[parts].sum(axis=1).to_numpy() == pytest.approx(judged["time_ms_per_step"].to_numpy())


def test_a_row_is_derived_by_its_id(said: Listener) -> None:
    analysis = tracelens.Analysis(_analysis(TRACES[0]).report)
    assert analysis.derive("g1") == derive(analysis.report.gemms[0], analysis.report.gpu)
    with pytest.raises(UsageError) as error:
        analysis.derive("g0")
    said(error.value)
