"""The two things to compare, from whatever a user has: traces, saved reports, analyses."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tracelens.analysis import Analysis, analyze
from tracelens.compare.compare import compare_reports
from tracelens.compare.result import Comparison
from tracelens.errors import InputError, UsageError
from tracelens.results import Report

_HEAD = 4096  # bytes in which a saved report names its schema, also one that is cut off
_MARK = b'"schema_version"'


class _Keys(msgspec.Struct):
    schema_version: str | None = None
    traceEvents: msgspec.Raw | None = None


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
        if isinstance(given, str | Path) and str(given) != "-" and Path(given).is_dir():
            raise UsageError(
                f"{given} is a folder: compare it with another folder (compare_folders in Python)"
            )
    return compare_reports(load_report(before), load_report(after), across=across)


def load_report(given: Analysis | Report | str | Path) -> Report:
    """The report of a trace, a saved report or an analysis. Raises InputError, which names the file."""
    if isinstance(given, Report):
        return given
    if isinstance(given, Analysis):
        return given.report
    try:
        return Analysis.load(given).report if is_report(given) else analyze(given).report
    except InputError as error:
        name = Path(given).name
        raise InputError(str(error) if name in str(error) else f"{name}: {error}") from None


def is_report(path: str | Path) -> bool:
    """Is it a saved report, whole or damaged? What cannot be opened is left to the trace reader to refuse."""
    if str(path) == "-":
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            if head[:2] == b"\x1f\x8b" or not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
                return False
            if _MARK in head and b'"traceEvents"' not in head:
                return True
            data = head + file.read()
    except OSError:
        return False
    if _MARK not in data:
        return False
    try:
        keys = msgspec.json.decode(data, type=_Keys)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return keys.schema_version is not None and keys.traceEvents is None
