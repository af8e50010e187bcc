"""A report with every section that can be asked for, and the same with names that would leave their place."""

from __future__ import annotations

from dataclasses import replace

from tests.render import sample_report, sample_search, verified_report
from tests.render.sample_report import HOSTILE, HOSTILE_NAMES
from tracelens.results import PickReason, Report


def asked() -> Report:
    """What-if, a shape search, waits, and what was measured."""
    report = verified_report.report(verified_report.verified())
    return replace(
        report,
        shape_search=sample_search.FOUND,
        waits=sample_report.waits().waits,
        what_if=sample_report.what_if().what_if,
    )


def hostile() -> Report:
    """`sample_report.hostile`, and hostile names in the search and in what was measured."""
    names = HOSTILE_NAMES
    one = replace(verified_report.verified(name=HOSTILE), device=names[1], not_covered=[*names])
    calls = [replace(one.calls[at % 2], component=name, role=name, shape_now=name, shape_then=name)
             for at, name in enumerate(names)]  # fmt: skip
    made = verified_report.report(one, notes=tuple(names)).verification
    assert made is not None
    run = replace(made, gpu=HOSTILE, device=HOSTILE, date=names[4], software={"torch": HOSTILE})
    reasons = [PickReason(HOSTILE, HOSTILE, name, name, 2.0, 1.0, 1.0, name) for name in names]
    pick = replace(sample_search.PICK, title=HOSTILE, change={name: [1, 2] for name in names},
                   effort_why=names[1], reasons=reasons, diff=[*names])  # fmt: skip
    search = replace(
        sample_search.FOUND, verdict=HOSTILE, picks=[pick], unsure=pick, searched=[*names], notes=[*names],
        not_searched={name: name for name in names},
        front=[replace(point, change={HOSTILE: [1, 2]}) for point in sample_search.FOUND.front],
    )  # fmt: skip
    report = sample_report.hostile()
    first, second, *rest = report.findings
    first = replace(first, verified=replace(one, calls=calls))
    second = replace(second, verified=replace(one, state="not_measured", why=HOSTILE))
    return replace(report, shape_search=search, verification=run, findings=[first, second, *rest])
