"""tracelens: from a trace of a real training step to the shape change that makes it faster.

    import tracelens

    analysis = tracelens.analyze("trace.json.gz")
    analysis.report.summary.verdict
    analysis.findings, analysis.gemms, analysis.components, analysis.kernels  # pandas DataFrames

What there is besides; ``help(tracelens.NAME)`` says more:

    compare            did a change make the step faster, and where did the time go
    compare_folders    the same of two jobs, or of several runs
    suggest            a faster shape of the same size, from a trace or a model's configuration
    gemm, experts      the predicted time of one GEMM, of one layer of experts
    doctor             is a trace good enough, and what does it lack
    capture            record steps of your own training loop
    load               a trace as tables, without an analysis
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracelens.version import __version__

__all__ = [
    "Analysis", "InputError", "TracelensError", "UsageError", "__version__", "analyze", "capture", "compare",
    "compare_folders", "doctor", "experts", "gemm", "load", "suggest",
]  # fmt: skip

if TYPE_CHECKING:
    from tracelens.api import ShownAnalysis as Analysis
    from tracelens.api import analyze, compare, compare_folders, suggest
    from tracelens.capture.manual import capture
    from tracelens.diagnosis import diagnose as doctor
    from tracelens.errors import InputError, TracelensError, UsageError
    from tracelens.gemm.predict import gemm_time as gemm
    from tracelens.gemm.predict.experts import experts_time as experts
    from tracelens.trace import read_trace as load

_HOMES = {
    "Analysis": ("tracelens.api", "ShownAnalysis"),
    "analyze": ("tracelens.api", "analyze"),
    "capture": ("tracelens", "capture"),  # the room itself, which can be called
    "compare": ("tracelens.api", "compare"),
    "compare_folders": ("tracelens.api", "compare_folders"),
    "doctor": ("tracelens.diagnosis", "diagnose"),
    "experts": ("tracelens.gemm.predict.experts", "experts_time"),
    "gemm": ("tracelens", "gemm"),  # likewise
    "load": ("tracelens.trace", "read_trace"),
    "suggest": ("tracelens.api", "suggest"),
    "InputError": ("tracelens.errors", "InputError"),
    "TracelensError": ("tracelens.errors", "TracelensError"),
    "UsageError": ("tracelens.errors", "UsageError"),
}


def __dir__() -> list[str]:
    """What completion offers: also what is imported on first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import on first use: the reader's helper processes start without the rest of the package."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tracelens' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    if module == __name__:
        return import_module(f"{module}.{attribute}")
    return getattr(import_module(module), attribute)
