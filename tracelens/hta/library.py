"""The only place that imports holistic-trace-analysis, and what keeps it quiet."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tracelens.errors import TracelensError
from tracelens.hta import words


class LibraryMissing(TracelensError):
    """The extra ``hta`` is not installed."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class HtaLibrary:
    """What is used of holistic-trace-analysis."""

    version: str
    trace: Any  # hta.common.trace.Trace
    analysis: Any  # hta.trace_analysis.TraceAnalysis
    kernel_type: Any  # hta.utils.utils.get_kernel_type


def library() -> HtaLibrary:
    """Import it.

    Raises:
        LibraryMissing: it or something that it needs is not installed.
    """
    try:
        with quiet():
            analysis = importlib.import_module("hta.trace_analysis")
            trace = importlib.import_module("hta.common.trace")
            utils = importlib.import_module("hta.utils.utils")
            version = importlib.import_module("hta").__version__
    except ModuleNotFoundError as error:
        itself = (error.name or "hta").partition(".")[0] == "hta"
        raise LibraryMissing(words.missing(None if itself else error.name)) from None
    return HtaLibrary(str(version), trace.Trace, analysis.TraceAnalysis, utils.get_kernel_type)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let nothing out: it prints, logs through the root logger, and warns of its own use of pandas."""
    root, disabled = logging.getLogger(), logging.root.manager.disable
    handlers, level = root.handlers[:], root.level
    root.addHandler(logging.NullHandler())  # else its logging.info() would install a handler for good
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)
