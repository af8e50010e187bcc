"""What must hold of any input: a report that adds up and every rendering of it, or one clear error."""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from rich.console import Console

import tracelens
from tracelens.api import ShownAnalysis
from tracelens.errors import TracelensError
from tracelens.render.html import render_html
from tracelens.render.markdown import render_report_markdown
from tracelens.render.perfetto import write_perfetto
from tracelens.render.suggestions import render_suggestions
from tracelens.render.terminal import render_derivations, render_terminal
from tracelens.results import Report
from tracelens.results.json import from_json, to_json
from tracelens.results.schema import json_schema
from tracelens.suggestions import suggest

#: What a reader never sees: Python's words for nothing and for no number.
_LEAKED = re.compile(r"(?<![\w.:/-])(None(?! [a-z]{2,}\b(?<! ms)(?<! us))|nan|inf|NaN|Infinity)(?![\w:/-])")
_SCRIPT = re.compile(r"<script.*?</script>", re.DOTALL)
_VALIDATOR = jsonschema.Draft202012Validator(json_schema())


@dataclass(frozen=True)
class Broken(AssertionError):
    """An output that must not be."""

    why: str

    def __str__(self) -> str:
        return self.why


def of_trace(path: Path, *, thorough: bool) -> str:
    """Analyze a file and render it every way; ``report``, or the kind of error it ended in."""
    try:
        found = tracelens.analyze(path)
    except TracelensError as error:
        return _said(error)
    total = int(found.kernels["dur_ns"].sum())
    parts = sum(row.time_ns for row in found.report.components)
    if parts != total:
        raise Broken(f"components are {parts} ns, kernels {total} ns")
    if len(found.gemms) != len(found.report.gemms) or len(found.ops) < 0:
        raise Broken("a table lacks rows")
    _report(found.report, thorough=thorough)
    if thorough:
        with suppress(TracelensError):
            write_perfetto(found, path.with_name("perfetto.json.gz"))
    return "report"


def of_report(data: bytes) -> str:
    """A saved report, edited: shown like any other, or refused in one line."""
    try:
        report = from_json(data)
    except TracelensError as error:
        return _said(error)
    _report(report, thorough=False, edited=True)
    return "report"


def of_config(path: Path) -> str:
    """A configuration: suggestions for it, or one line."""
    try:
        found = suggest(path, gpu="h100-sxm")
    except TracelensError as error:
        return _said(error)
    written = io.StringIO()
    render_suggestions(found, console=Console(file=written, width=100))
    _no_leak(written.getvalue(), "suggestions")
    return "suggestions"


def _said(error: TracelensError) -> str:
    text = str(error)
    if not text or "\n" in text or len(text) > 2000:
        raise Broken(f"an error of {len(text.splitlines())} lines, {len(text)} letters")
    return type(error).__name__


def _report(report: Report, *, thorough: bool, edited: bool = False) -> None:
    data = to_json(report)
    if b"NaN" in data or b"Infinity" in data:
        json.loads(data, parse_constant=_refuse)
    again = from_json(data)
    if not edited and again != report:
        raise Broken("a saved report reads back as another one")
    if thorough:
        for error in _VALIDATOR.iter_errors(json.loads(data)):
            raise Broken(f"schema: {error.json_path}: {error.message[:200]}")
    page = render_html(report)
    if "</html>" not in page:
        raise Broken("the page does not end")
    written = io.StringIO()
    console = Console(file=written, width=100)
    render_terminal(report, console=console)
    render_derivations(report, [row.id for row in report.gemms[:5]], console=console)
    markdown = render_report_markdown(report)
    if thorough:
        ShownAnalysis(report)._repr_html_()
    if not edited:  # names of an edited report can be anything
        _no_leak(_SCRIPT.sub("", page), "page")
        _no_leak(written.getvalue(), "terminal")
        _no_leak(markdown, "markdown")
    page.encode(), markdown.encode(), written.getvalue().encode()


def _no_leak(text: str, where: str) -> None:
    if found := _LEAKED.search(text):
        raise Broken(f"{where}: {text[max(0, found.start() - 80) : found.end() + 40]!r}")


def _refuse(name: str) -> Any:
    raise Broken(f"{name} in JSON")
