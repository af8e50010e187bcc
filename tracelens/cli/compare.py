"""``tracelens compare``: before and after a change."""

from __future__ import annotations

from datetime import datetime
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
@click.option("-o", "--output", metavar="HTML", help="As one offline HTML page.")
@click.option("-q", "--quiet", is_flag=True, help="No summary in the terminal.")
def compare(
    before: str,
    after: str,
    across: bool,
    json_path: str | None,
    markdown: str | None,
    output: str | None,
    quiet: bool,
) -> None:
    """Say whether the step's time changed from BEFORE to AFTER, what changed, and where the time went.

    Each is a torch.profiler trace or a report of 'tracelens analyze --json'.
    """
    from tracelens.compare.load import compare as compare_files

    if json_path == markdown == "-":
        raise UsageError("--json - and --markdown - both write to standard output: give one of them a file")
    result = compare_files(before, after, across=across)
    written = _write(result, {"json": json_path, "markdown": markdown, "html": output})
    if not quiet and "-" not in (json_path, markdown):
        from rich.console import Console

        from tracelens.render.compare import render_compare

        render_compare(result, console=Console(), outputs=written)


def _write(result: Comparison, asked: dict[str, str | None]) -> list[tuple[str, int]]:
    """Write what was asked for; (name, bytes) of each file, in the order written."""
    from tracelens.render.files import write_bytes

    written = []
    for form, path in asked.items():
        if path is None:
            continue
        data = _made(result, form)
        if path == "-" and form != "html":
            click.echo(data, nl=False)
        else:
            write_bytes(path, data)
            written.append((path, Path(path).stat().st_size if Path(path).is_file() else 0))
    return written


def _made(result: Comparison, form: str) -> bytes:
    if form == "json":
        from tracelens.render.compare_json import compare_json

        return compare_json(result)
    if form == "markdown":
        from tracelens.render.compare_markdown import render_markdown

        return render_markdown(result).encode()
    from tracelens.render.compare_html import render_compare_html

    return render_compare_html(result, generated_at=datetime.now().strftime("%Y-%m-%d %H:%M")).encode()
