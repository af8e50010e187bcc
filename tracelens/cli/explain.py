"""``tracelens explain``: the page of a rule."""

from __future__ import annotations

import click


@click.command()
@click.argument("rule")
def explain(rule: str) -> None:
    """Print what RULE (TL101) does, why it costs time, what to do and how it is estimated."""
    from tracelens.advice import explain as page

    click.echo(page(rule))
