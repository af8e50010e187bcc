"""Standard output, whose reader can go away at any time."""

from __future__ import annotations

import os
import sys


def nobody_reads() -> None:
    """Send what is still to be written nowhere, so that Python does not complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(text: str) -> None:
    """Say one line on standard error; names in it are text, to a terminal and to GitHub's runner."""
    import click

    from tracelens.render.actions import disarm, on_actions
    from tracelens.render.text import clean

    line = f"tracelens: {clean(text)}"
    click.echo(disarm(line) if on_actions() else line, err=True)


def echo_json(data: bytes) -> None:
    """Print JSON; on GitHub Actions nothing in it is a command to the runner."""
    import click

    from tracelens.render.actions import disarm_json, on_actions

    click.echo(disarm_json(data) if on_actions() else data, nl=not data.endswith(b"\n"))
