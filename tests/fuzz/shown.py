"""Every rendering of a report, and what none of them holds."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jsonschema
from rich.console import Console

from tracelens.api import ShownAnalysis
from tracelens.render.html import render_html
from tracelens.render.markdown import render_report_markdown
from tracelens.render.redact import redact
from tracelens.render.terminal import render_terminal
from tracelens.render.terminal_verbose import render_derivations
from tracelens.results import Report
from tracelens.results.json import from_json, to_json
from tracelens.results.schema import json_schema

Rendering = Callable[[Report], str]
#: What a reader never sees: Python's words for nothing and for no number.
_LEAKED = re.compile(r"(?<![\w.:/-])(None(?! [a-z]{2,}\b(?<! ms)(?<! us))|nan|inf|NaN|Infinity)(?![\w:/-])")
_SCRIPT = re.compile(r"<script.*?</script>", re.DOTALL)


class Broken(AssertionError):
    """An output that must not be."""


def no_leak(text: str, where: str) -> None:
    """Raise where Python's own words are in a text for readers, or what cannot be written to a file."""
    text.encode()
    if found := _LEAKED.search(text):
        raise Broken(f"{where}: {text[max(0, found.start() - 80) : found.end() + 40]!r}")


def sound_json(data: bytes, schema: str | None = None) -> None:
    """Raise where a number is none that JSON has, or the schema is not followed."""
    if b"NaN" in data or b"Infinity" in data:
        json.loads(data, parse_constant=_refuse)
    if schema is not None:
        for error in _validator(schema).iter_errors(json.loads(data)):
            raise Broken(f"schema: {error.json_path}: {error.message[:200]}")


def _refuse(name: str) -> Any:
    raise Broken(f"{name} in JSON")


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema(name))


def printed(show: Callable[[Console], object]) -> str:
    """What a function prints at a terminal of 100 columns."""
    written = io.StringIO()
    show(Console(file=written, width=100))
    return written.getvalue()


def page(report: Report) -> str:
    """The page, ended; without its script, whose words are JavaScript's."""
    text = render_html(report)
    text.encode()
    if "</html>" not in text:
        raise Broken("the page does not end")
    return _SCRIPT.sub("", text)


def as_json(report: Report) -> str:
    """The saved report, which follows its schema."""
    sound_json(to_json(report), "report")
    return ""


def as_text(report: Report) -> str:
    """What the terminal shows."""
    return printed(lambda console: render_terminal(report, console=console))


def derivations(report: Report) -> str:
    """How the figures of the first GEMMs come about."""
    ids = [row.id for row in report.gemms[:2]]
    return printed(lambda console: render_derivations(report, ids, console=console))


def notebook(report: Report) -> str:
    """What a notebook shows."""
    return _SCRIPT.sub("", ShownAnalysis(report)._repr_html_())


def redacted(report: Report) -> str:
    """The report with hashes for names, saved and read again."""
    from_json(to_json(redact(report)))
    return ""


#: Of which each case has one or two, drawn by its bytes, and a thorough one all.
RENDERINGS: tuple[Rendering, ...] = (
    page, as_json, as_text, derivations, render_report_markdown, notebook, redacted,
)  # fmt: skip
