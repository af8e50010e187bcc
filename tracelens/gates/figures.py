"""The figures of a report as one flat mapping, for loggers of experiments (W&B, MLflow, TensorBoard)."""

from __future__ import annotations

from tracelens.gates.of_report import REPORT_METRICS
from tracelens.results import Report

#: Form of a figure -> the suffix that says its unit, and what one such unit is in the report's own.
_UNITS = {"share": ("_frac", 1.0), "time": ("_ms", 1.0), "count": ("", 1.0), "rate": ("_tflops", 1.0),
          "bytes": ("_mb", 1e6)}  # fmt: skip


def figures(report: Report, *, prefix: str = "") -> dict[str, float]:
    """All known figures of gates: "step_ms", "mfu_frac", "component/logits_ms", "saving/TL101_ms".

    What is not known is not there. A prediction also has "..._low" and "..._high" before its unit, a bound
    these alone.
    """
    found: dict[str, float] = {}
    for metric in REPORT_METRICS.values():
        for choice in metric.choices or ("",):
            name = f"{prefix}{metric.name}/{choice}" if choice else f"{prefix}{metric.name}"
            for form, one in metric.read(report, choice).ranges.items():
                unit, size = _UNITS[form]
                if one.mid is not None:
                    found[f"{name}{unit}"] = one.mid / size
                if not one.measured:
                    found[f"{name}_low{unit}"] = one.low / size
                    if not one.least:  # nothing bounds it from above
                        found[f"{name}_high{unit}"] = one.high / size
    return found
