"""The two things to compare, from whatever a user has: traces, saved reports, analyses."""

from __future__ import annotations

import os
from pathlib import Path

from tracelens.analysis import Analysis, analyze
from tracelens.comparison.compare import compare_reports
from tracelens.errors import InputError, UsageError
from tracelens.kinds import kind_of
from tracelens.results import Report
from tracelens.results.comparison import Comparison


def compare(
    before: Analysis | Report | str | Path, after: Analysis | Report | str | Path, *, across: bool = False
) -> Comparison:
    """Compare two traces, saved reports (``--json``), analyses or reports, mixed as wanted.

    ``across`` allows other GPUs, dtypes or world sizes: then shares of peak are compared, and no times.

    Raises:
        InputError: one of them cannot be read.
        UsageError: their times cannot be compared and ``across`` is not given.
    """
    if str(before) == str(after) == "-":
        raise UsageError("BEFORE and AFTER cannot both come from standard input")
    for given in (before, after):
        if isinstance(given, str | Path) and str(given) != "-" and os.path.isdir(given):
            raise UsageError(
                f"{given} is a folder: compare it with another folder (tracelens.compare_folders in Python)"
            )
    return compare_reports(load_report(before), load_report(after), across=across)


def load_report(given: Analysis | Report | str | Path) -> Report:
    """The report of a trace, a saved report or an analysis. Raises InputError, which names the file."""
    if isinstance(given, Report):
        return given
    return given.report if isinstance(given, Analysis) else load_analysis(given).report


def load_analysis(given: str | Path) -> Analysis:
    """A trace analyzed, or a saved report without its events. Raises InputError, which names the file."""
    try:
        return Analysis.load(given) if is_report(given) else analyze(given, shape_search=False)
    except InputError as error:
        name = Path(given).name
        raise InputError(str(error) if name in str(error) else f"{name}: {error}") from None


def is_report(path: str | Path) -> bool:
    """Is it a saved report, whole or damaged? What cannot be opened is left to the trace reader to refuse."""
    return kind_of(path) == "report"
