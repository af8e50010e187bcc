"""The section of method and coverage: what is known of the trace, how, and the step times it rests on."""

from __future__ import annotations

from tracelens.render import costs, facts, step_times, waits
from tracelens.render.section import Content, Page, Section
from tracelens.results import Known, ModelDims
from tracelens.words import EVIDENCE

STEPS = 200  # steps listed
_EVIDENCE_WORDS = {
    "annotation": "a named module range in the trace",
    "module_stack": "nn.Module frames",
    "sequence": "backward tied to its forward operator",
    "op": "the operator's own name",
    "structure": "order and shape matched to a transformer",
    "local": "its neighbours and shapes, whatever the rest of the model",
    "kernel_name": "the kernel's name only",
    "none": "unattributed",
}


def _content(page: Page) -> Content:
    report = page.report
    evidence = report.coverage.by_evidence
    known = [name for name in EVIDENCE if evidence.get(name)]
    return {
        "note": " ".join(facts.coverage_lines(report)),
        "evidence": [(n, evidence[n]) for n in [*known, *(n for n in evidence if n not in EVIDENCE)]],
        "evidence_words": _EVIDENCE_WORDS,
        "coverage_lines": facts.coverage_lines(report),
        "lent_lines": facts.lent_lines(report),
        "rule_lines": facts.rule_lines(report.trace_rules),
        "step_rows": step_times.rows(report),
        "step_lines": step_times.lines(report),
        "waits_how": waits.HOW if not report.waits.asked else "",
        "steps_text": facts.steps_text(report),
        "dtypes": {row.math_dtype for row in report.gemms},
        "dims": _dims(report.model),
        "no_dims": facts.no_dims(report),
        "job_lines": costs.job_lines(report),
        "steps": report.steps[:STEPS] if len(report.steps) > 1 else [],
        "longest_step": max((step.duration_ms for step in report.steps), default=0.0) or 1.0,
    }


def _dims(model: ModelDims) -> list[tuple[str, Known]]:
    """Dimensions by name; those that one reason leaves unknown together."""
    rows: dict[str, tuple[list[str], Known]] = {}
    for name, dim in facts.dims(model):
        rows.setdefault(dim.source if dim.value is None else name, ([], dim))[0].append(name)
    return [(", ".join(names), dim) for names, dim in rows.values()]


SECTION = Section("method", "Method and coverage", _content)
