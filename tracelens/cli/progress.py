"""A bar for long work, on standard error and on a terminal only: logs stay short."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: Told what is done now: parts done, parts in all, the name of the next.
Progressed = Callable[[float, int, str], None]
_AFTER_S = 0.7  # work that is done by then shows nothing
_LARGE = 8 * 1024 * 1024  # bytes of a file that takes longer


@contextmanager
def progress(words: str, *, long: bool = False, first: str = "") -> Iterator[Progressed | None]:
    """Give something to tell of the progress to; None where nobody watches. The bar goes when the work ends.

    ``long``: shown from the beginning, ``first``: with that. No thread draws it, for the reader forks its
    helpers.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tracelens.render.text import clean

    console = Console(stderr=True)
    if console.is_dumb_terminal:  # it cannot take a line back
        yield None
        return
    began = time.monotonic()
    text, doing = (TextColumn(of, markup=False) for of in (words, "{task.fields[doing]}"))
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), doing)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False)
    task = bar.add_task("", total=None, doing="")
    started = False

    def told(done: float, total: int, name: str) -> None:
        nonlocal started
        bar.update(task, completed=done, total=total, doing=clean(name, limit=40))
        if not started and (long or time.monotonic() - began > _AFTER_S):
            started = True
            bar.start()
        if started:
            bar.refresh()

    try:
        if first:
            told(0, 1, first)
        yield told
    finally:
        if started:
            bar.stop()


def is_large(path: str) -> bool:
    """Will it take long to read? Standard input may."""
    try:
        return path == "-" or Path(path).stat().st_size > _LARGE
    except (OSError, ValueError):
        return False
