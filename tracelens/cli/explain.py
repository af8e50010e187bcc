"""``tracelens explain``: the page of a rule."""

from __future__ import annotations

import sys

import click

from tracelens.cli.help import complete_rule


@click.command(short_help="What a rule (TL101) is about, and what to do.")
@click.argument("rule", shell_complete=complete_rule)
def explain(rule: str) -> None:
    """Print what RULE (TL101) does, why it costs time, what to do and how it is estimated."""
    from tracelens.rules import explain as page

    text = page(rule)
    if sys.stdout.isatty():  # a file gets the page as it is
        from tracelens.render.console import stdout_console
        from tracelens.render.pages import wrapped

        text = wrapped(text, stdout_console().width)
    click.echo(text)
