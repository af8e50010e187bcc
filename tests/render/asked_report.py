"""A report with every section that can be asked for, and the same with names that try to leave their place."""

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
    one = replace(verified_report.verified(name=HOSTILE), how=names[3], device=names[1])
    calls = [replace(call, gemm=name, shape_now=name, shape_then=name, why=name) for call, name in zip(
        one.calls, names, strict=False)]  # fmt: skip
    made = verified_report.report(replace(one, calls=calls, not_covered=[*names]), notes=tuple(names))
    assert made.verification is not None
    run = replace(made.verification, gpu=HOSTILE, device=HOSTILE, versions={HOSTILE: HOSTILE})
    report = sample_report.hostile()
    first, second, *rest = report.findings
    refused = replace(one, state="not_measured", why=HOSTILE)
    reasons = [PickReason(HOSTILE, HOSTILE, name, name, 2.0, 1.0, 1.0, name) for name in names]
    pick = replace(sample_search.PICK, title=HOSTILE, change={n: [1, 2] for n in names}, effort=names[0],
                   needs=names[1], reasons=reasons, diff=[*names])  # fmt: skip
    search = replace(
        sample_search.FOUND, verdict=HOSTILE, picks=[pick], unsure=pick, searched=[*names],
        not_searched={name: name for name in names},
        front=[replace(point, change={HOSTILE: [1, 2]}) for point in sample_search.FOUND.front],
    )  # fmt: skip
    return replace(report, shape_search=search, verification=run,
                   findings=[replace(first, verified=one if not calls else replace(one, calls=calls)),
                             replace(second, verified=refused), *rest])  # fmt: skip
