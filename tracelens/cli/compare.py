"""``tracelens compare``: before and after a change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracelens.errors import UsageError

if TYPE_CHECKING:
    from tracelens.compare.result import Comparison


@click.command()
@click.argument("before")
@click.argument("after")
@click.option("--across", is_flag=True, help="Other GPU, dtype or world size: compare shares of peak only.")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    help="The comparison as JSON ('-': standard output, instead of the summary).",
)
@click.option(
    "--markdown", metavar="FILE", help="As Markdown ('-': standard output, instead of the summary)."
)
@click.option("-q", "--quiet", is_flag=True, help="No summary in the terminal.")
def compare(
    before: str, after: str, across: bool, json_path: str | None, markdown: str | None, quiet: bool
) -> None:
    """Say whether the step's time changed from BEFORE to AFTER, what changed, and where the time went.

    Each is a torch.profiler trace or a report of 'tracelens analyze --json'.
    """
    from tracelens.compare.load import compare as compare_files

    if json_path == markdown == "-":
        raise UsageError("--json - and --markdown - both write to standard output: give one of them a file")
    result = compare_files(before, after, across=across)
    written = _write(result, json_path, markdown)
    if not quiet and "-" not in (json_path, markdown):
        from rich.console import Console

        from tracelens.render.compare import render_compare

        render_compare(result, console=Console(), outputs=written)


def _write(result: Comparison, json_path: str | None, markdown: str | None) -> list[tuple[str, int]]:
    from tracelens.render.compare_json import compare_json
    from tracelens.render.compare_markdown import render_markdown
    from tracelens.render.files import write_bytes

    written = []
    for path, made in ((json_path, compare_json), (markdown, lambda one: render_markdown(one).encode())):
        if path is None:
            continue
        data = made(result)
        if path == "-":
            click.echo(data, nl=False)
        else:
            write_bytes(path, data)
            written.append((path, Path(path).stat().st_size if Path(path).is_file() else 0))
    return written
