"""Reports with more findings and GEMM rows than a page can hold; made-up numbers, every shape its own."""

from __future__ import annotations

from dataclasses import replace

from tests.render import sample_report
from tracelens.results import Estimate, Finding, GemmRow, Report

KERNEL = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_" + "x" * 260  # as long as the names of generated kernels


def large(gemms: int = 18, findings: int = 3) -> Report:
    """`full` with so many rows, each of its own shape, and so many findings, largest first."""
    report = sample_report.full()
    rows = report.gemms
    if gemms > len(rows):
        rows = [_row(rows[at % len(rows)], at, gemms) for at in range(gemms)]
    found = report.findings
    if findings > len(found):
        found = [_finding(found[at % len(found)], at, rows) for at in range(findings)]
    return replace(report, gemms=rows, findings=found)


def _row(row: GemmRow, at: int, of: int) -> GemmRow:
    share = 2 * (of - at) / of / (of + 1)  # they fall evenly, and sum to one
    return replace(row, id=f"g{at + 1}", kernel=KERNEL, frac=share, findings=[],
                   m=None if row.m is None else row.m + at)  # fmt: skip


def _finding(finding: Finding, at: int, rows: list[GemmRow]) -> Finding:
    saving = 8.0 / (at + 1)
    return replace(
        finding,
        rule=f"TL{101 + at % 16}",
        title=f"{finding.title} (number {at + 1})",
        saving_ms=Estimate(0.9 * saving, saving, 1.1 * saving, "model"),
        saving_frac=Estimate(saving / 148, saving / 132, saving / 121, "model"),
        gemms=[rows[-1 - at % len(rows)].id, rows[at % len(rows)].id],
    )
