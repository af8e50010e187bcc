"""A comparison as one offline HTML file, in the dress of the report's page: no script, no network."""

from __future__ import annotations

import base64
import hashlib

from jinja2 import Environment
from markupsafe import Markup

from tracelens import numbers as f
from tracelens.compare.folder_result import FolderComparison
from tracelens.compare.result import Comparison
from tracelens.compare.spelling import signed_ms, signed_pct
from tracelens.render import compare as words
from tracelens.render import compare_folders as folder_words
from tracelens.render import facts
from tracelens.render.templates import environment, part
from tracelens.render.text import clean

PAIRS = 1024
ROWS = 200  # GEMM rows shown; all are in --json
_JUDGED = {True: "more than noise", False: "noise, or too small to matter", None: "cannot be told"}


def render_compare_html(result: Comparison, *, generated_at: str | None = None) -> str:
    """Return the page; ``generated_at`` is shown in the footer when given."""
    css = part("report.css")
    return (
        _environment()
        .get_template("compare.html.j2")
        .render(
            c=result,
            gemms=result.gemms[:ROWS],
            changes=[line.replace("->", "→") for line in words.changes_lines(result)],
            findings=[words.outcome_line(one) for one in result.findings],
            identity=words.identity(result),
            parts=words.parts_line(result),
            generated=facts.GENERATED,
            generated_at=generated_at,
            css=Markup(css),
            csp=Markup(_policy(css)),
        )
    )


def render_folders_html(result: FolderComparison, *, generated_at: str | None = None) -> str:
    """Return the page of a comparison of two folders."""
    css = part("report.css")
    return (
        _environment()
        .get_template("compare_folders.html.j2")
        .render(
            c=result,
            pairs=[folder_words.pair_cells(pair) for pair in result.pairs[:PAIRS]],
            changes=[line.replace("->", "→") for line in folder_words.change_lines(result, ROWS)],
            findings=folder_words.finding_lines(result),
            left=folder_words.left_lines(result, ROWS),
            identity=folder_words.identity(result),
            parts=folder_words.parts_line(result),
            generated=facts.GENERATED,
            generated_at=generated_at,
            css=Markup(css),
            csp=Markup(_policy(css)),
        )
    )


def _environment() -> Environment:
    env = environment()
    env.filters.update(sig=f.sig, cut=lambda text, limit: clean(str(text), limit=limit))
    env.globals.update(
        signed_ms=signed_ms, signed_pct=signed_pct, dash=f.DASH, gemm_name=words.gemm_name,
        shape=words.shape, shape_change=words.shape_change, peak_change=words.peak_change,
        judged=lambda beyond: _JUDGED[beyond],
    )  # fmt: skip
    return env


def _policy(css: str) -> str:
    """Allow exactly our own style and nothing else: no script, no network, no frames."""
    style = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode("ascii")
    return f"default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'"
