"""tracelens: from a trace of a real training step to the shape change that makes it faster.

import tracelens
analysis = tracelens.analyze("trace.json.gz")
analysis.report.summary.verdict
analysis.gemms, analysis.components, analysis.kernels, analysis.ops   # pandas DataFrames
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "Analysis",
    "InputError",
    "TracelensError",
    "UsageError",
    "__version__",
    "analyze",
    "capture",
    "compare",
    "load",
    "suggest",
]

if TYPE_CHECKING:
    from tracelens.analysis import Analysis, analyze
    from tracelens.capture.manual import capture
    from tracelens.compare.load import compare
    from tracelens.errors import InputError, TracelensError, UsageError
    from tracelens.suggestions import suggest
    from tracelens.trace import read_trace as load

_HOMES = {
    "Analysis": ("tracelens.analysis", "Analysis"),
    "analyze": ("tracelens.analysis", "analyze"),
    "capture": ("tracelens", "capture"),  # the room itself, which can be called
    "compare": ("tracelens", "compare"),
    "load": ("tracelens.trace", "read_trace"),
    "suggest": ("tracelens.suggestions", "suggest"),
    "InputError": ("tracelens.errors", "InputError"),
    "TracelensError": ("tracelens.errors", "TracelensError"),
    "UsageError": ("tracelens.errors", "UsageError"),
}


def __getattr__(name: str) -> Any:
    """Import on first use: the reader's helper processes start without the rest of the package."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tracelens' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    if module == __name__:
        return import_module(f"{module}.{attribute}")
    return getattr(import_module(module), attribute)
