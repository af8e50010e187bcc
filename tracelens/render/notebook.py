"""What objects show of themselves in a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable

from markupsafe import Markup, escape
from rich.console import Console
from rich.terminal_theme import TerminalTheme

from tracelens.render.compare_figures import Found
from tracelens.render.compare_html import render_compare_html
from tracelens.render.html import render_html
from tracelens.render.suggestions import render_suggestions
from tracelens.results import Report
from tracelens.results.suggestions import Suggestions

_COLUMNS = 100
#: Paper of its own: the colours of the text are made for it, whatever the notebook's are.
_PRE = (
    "<pre style=\"background:#fff;color:#16191d;padding:12px 16px;line-height:1.4;font-family:Menlo,'DejaVu"
    " Sans Mono',Consolas,monospace;overflow-x:auto;border:1px solid #e0e4e9;border-radius:8px\">{code}</pre>"
)
#: Darker than a terminal's, for white paper. What is dim is mixed from the first two: the first is no paper.
_INK = TerminalTheme(
    (166, 166, 166),
    (22, 25, 29),
    [(22, 25, 29), (163, 33, 26), (29, 107, 60), (138, 80, 0), (35, 99, 159), (130, 87, 176), (20, 105, 110),
     (89, 99, 110)],
)  # fmt: skip


def report_html(report: Report) -> str:
    """The page of a report in a frame."""
    return _frame(render_html(report), "tracelens report")


def comparison_html(found: Found) -> str:
    """The page of a comparison in a frame."""
    return _frame(render_compare_html(found), "tracelens comparison")


def suggestions_html(found: Suggestions) -> str:
    """What the terminal shows of them."""
    return _terminal(lambda console: render_suggestions(found, console=console))


def _frame(page: str, title: str) -> str:
    """A page keeps its own style and policy in a frame, and the notebook its own."""
    style = "width:100%;height:900px;border:0"
    return str(
        Markup('<iframe srcdoc="{}" style="{}" title="{}"></iframe>').format(escape(str(page)), style, title)
    )


def _terminal(show: Callable[[Console], None]) -> str:
    """Terminal output as a block of preformatted text; the console escapes it."""
    console = Console(file=io.StringIO(), record=True, width=_COLUMNS, force_terminal=True, highlight=False)
    show(console)
    return console.export_html(theme=_INK, inline_styles=True, code_format=_PRE)
