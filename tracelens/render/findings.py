"""The section of findings: those worth 1 % of the step told in full, the others folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tracelens import numbers as f
from tracelens.render import facts
from tracelens.render.section import Content, Page, Section
from tracelens.render.verified_words import measured
from tracelens.results import Basis, Estimate, Finding, GemmRow, Report
from tracelens.results.advice import SavingCounts
from tracelens.results.waits import busy_frac
from tracelens.step.words.simulation import gpu_work_note

_PREDICTED: Mapping[Basis, str] = {
    "model": "A prediction without measurements of this GPU.",
    "calibrated": "A prediction with measurements of this GPU.",
}
#: Of the step: a finding below it is folded.
WORTH = 0.01


def share(finding: Finding) -> float | None:
    """What a finding saves of the step at most, by its prediction or else its bound; None where unknown."""
    frac = finding.saving_frac
    known = frac.mid if frac.mid is not None else frac.high
    return None if known is None else abs(known)


def is_worth(finding: Finding) -> bool:
    """Is a finding worth more than a line? One whose saving is not known is."""
    known = share(finding)
    return known is None or known >= WORTH


def caveats(finding: Finding) -> list[str]:
    """What to know before a change: what was measured of it, what the rule says, how the saving is known."""
    verified = finding.verified
    if verified is not None and verified.replaces and verified.state == "measured":
        return [measured(verified), *finding.caveats]
    # reports of before hold such a sentence themselves
    uncounted = [_UNCOUNTED[finding.counts]] if finding.counts in _UNCOUNTED else []
    return list(dict.fromkeys([*finding.caveats, *uncounted, *_of_prediction(finding.saving_ms)]))


def waiting(report: Report) -> str:
    """That a step which waits need not get shorter; "" where all findings save time of the step."""
    if all(one.saving_of != "gpu_work" for one in report.findings):
        return ""
    return f"{f.capital(gpu_work_note(busy_frac(report.summary)))}."


_UNCOUNTED: Mapping[SavingCounts, str] = {
    "kernels": "Where the step waits for the CPU, the launches that it spares save more."
}


def _of_prediction(saving: Estimate) -> list[str]:
    if saving.mid is None:
        return []
    below = ["The low end of the range is below zero: measure before you decide."]
    said = [_PREDICTED[saving.basis]] if saving.basis in _PREDICTED else []
    return [*said, *(below if saving.low is not None and saving.low < 0 else [])]


def _content(page: Page) -> Content | None:
    report, limit, by_id = page.report, page.limit, page.by_id
    if not report.findings:
        return None
    below = f"below {WORTH:.0%} of the {'step' if report.summary.steps_marked else 'trace'}"
    listed = report.findings[: limit.whole + limit.lines]
    whole = list(enumerate(listed[: limit.whole], 1))
    worth = [(n, one) for n, one in whole if is_worth(one)]
    small = [(n, one) for n, one in whole if not is_worth(one)]
    return {
        "open": bool(worth),
        "note": _note(len(worth), f"{len(small)} {below}", facts.overlap_words(report)),
        "below": below,
        "caveats_of": caveats,
        "names_of": lambda finding: row_names(finding, by_id),
        "worth": worth,
        "small": small,
        "whole": len(whole),
        "more": listed[limit.whole :],
        "unlisted": len(report.findings) - len(listed),
    }


def row_names(finding: Finding, rows: Mapping[str, GemmRow]) -> dict[str, str]:
    """A finding's rows of the GEMM table by component and role, and by id where several share these."""
    found = [rows[gemm] for gemm in finding.gemms if gemm in rows]
    named = {row.id: row.component + (f" {facts.role(row)}" if row.role else "") for row in found}
    times = Counter(named.values())
    return {gemm: name if times[name] == 1 else f"{name} {gemm}" for gemm, name in named.items()}


def _note(worth: int, small: str, overlap: str) -> str:
    if not worth:
        return small
    return "; ".join(filter(None, ["largest first" if worth > 1 else "", overlap]))


SECTION = Section("findings", "Findings", _content, leads=("shapes",))
