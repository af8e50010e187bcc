"""The section of the GEMM table, with the derivation of its longest rows."""

from __future__ import annotations

from tracelens.accounting.loads import by_load
from tracelens.render import losses
from tracelens.render.section import Content, Page, Section

#: Rows that are seen at first, and at most as many more with a finding.
SEEN = 12
#: Rows whose figures are derived; ``--gemm`` derives any.
DERIVED = 4


def _content(page: Page) -> Content | None:
    report, rows = page.report, page.rows
    if not rows:
        return None
    own = {row.id: row for row in report.gemms}
    judged = [row for row in rows if row.lost_ms.useful is not None and row is own[row.id]]
    judged = judged[:DERIVED]
    found = [row.id for row in rows[SEEN:] if row.findings][:SEEN]
    derivations, meanings = losses.shared([losses.derivation(row, report) for row in judged])
    return {
        "note": "out[M, N] = a[M, K] · b[K, N], by time",
        "seen": {*(row.id for row in rows[:SEEN]), *found},
        "top": max(row.frac for row in rows) or 1.0,
        "classes": len(by_load(report.gemms)),
        "rest_frac": sum(row.frac for row in report.gemms) - sum(row.frac for row in rows),
        "derivations": derivations,
        "meanings": meanings,
        "derived": {row.id for row in judged},
        "not_split": losses.not_split(report),
        "judged": sum(row.lost_ms.useful is not None for row in report.gemms),
    }


SECTION = Section("gemms", "GEMMs and fused attention", _content, folds=False, wide=True)
