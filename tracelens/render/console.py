"""What every terminal report prints through: safe text, plain tables, colour only where there is some."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from rich.cells import cell_len
from rich.console import Console, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from tracelens.numbers import nbytes
from tracelens.render.actions import Disarmed, on_actions
from tracelens.render.text import clean

_USUAL = 80
WIDEST = 120  # lines longer than this are hard to read
ROOMY = 76  # columns; a narrower terminal goes without some of them
NARROW = 60  # columns; below it names wrap, too
_WORDS = 10  # columns in which words can wrap
_ASCII = str.maketrans({
    "·": "|", "–": "-", "−": "-", "×": "x", "≈": "~", "±": "+", "µ": "u", "…": ".", "→": ">",
    "▲": "!", "■": "*", "●": "o", "█": "#", "▓": "=", "▒": "+", "░": "-", "╱": "/",
    "≥": ">=", "≤": "<=", "⌈": "ceil(", "⌉": ")",
})  # fmt: skip


class _Console(Console):
    """A console whose reader can go away (``| head``) without an exit code that means something else."""

    def on_broken_pipe(self) -> NoReturn:  # rich's own ends the program with 1: a failed gate
        self.quiet = True
        raise BrokenPipeError


def stdout_console() -> Console:
    """The console of standard output. Colour, width and dumb terminals as rich finds them.

    On GitHub Actions no printed name becomes a workflow command.
    """
    file: IO[str] | Any = Disarmed(sys.stdout) if on_actions() else None
    console = _Console(file=file)
    return console if console.width > 0 else _Console(file=file, width=_USUAL)  # COLUMNS=0


@dataclass(frozen=True, slots=True)
class Out:
    """The console, and the one place where a string becomes text that is safe on it."""

    console: Console

    @property
    def width(self) -> int:
        return min(self.console.width, WIDEST)

    @property
    def colour(self) -> bool:
        return self.console.color_system is not None and not self.console.no_color

    @property
    def ascii_only(self) -> bool:
        return self.console.options.ascii_only

    def text(self, text: str, style: str = "", *, limit: int = 400) -> Text:
        text = clean(text, limit=limit)
        if self.ascii_only:
            text = text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
        return Text(text, style)

    def line(self, text: str | Text = "", style: str = "") -> None:
        self.print(self.text(text, style) if isinstance(text, str) else text)

    def holds(self, table: Table) -> bool:
        """Is it wide enough for all numbers of a table?"""
        return _least(table) <= self.width

    def print(self, what: RenderableType) -> None:
        """Print; a table that the width would cut becomes a list, for a cut number is a wrong one."""
        if isinstance(what, Table) and not self.holds(what):
            for cells in zip(*(column.cells for column in what.columns), strict=True):
                self.line(_listed([column.header for column in what.columns], cells))
            return
        self.console.print(what, width=self.width, highlight=False, markup=False, emoji=False)

    def wrote(self, outputs: Sequence[tuple[str, int]]) -> None:
        """Name the files that were written, (path, bytes) each."""
        for path, size in outputs:
            written = self.text(f" ({nbytes(size)})", "dim")
            self.line(self.text("wrote ", "dim") + self.text(path, "bold") + written)

    def rows(self, heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[Text]]) -> None:
        """Print a table with heads as of ``table``."""
        table = self.table(heads)
        for row in rows:
            table.add_row(*row)
        self.print(table)

    def table(self, heads: Sequence[tuple[str, str]], *, gap: int = 2, expand: bool = False) -> Table:
        """Make a plain table; each head is (title, "l" | "r" | "fold" | "cut").

        On a narrow console words wrap.
        """
        header = any(title for title, _ in heads)
        cut: OverflowMethod = "crop" if self.ascii_only else "ellipsis"
        table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, show_header=header, expand=expand)
        for title, kind in heads:
            folds = kind == "fold" or (kind == "l" and self.width < NARROW)
            table.add_column(
                self.text(title, "dim"),
                justify="right" if kind == "r" else "left",
                no_wrap=not folds,
                overflow="fold" if folds else cut,
                ratio=1 if kind in ("fold", "cut") else None,
            )
        return table


def _least(table: Table) -> int:
    """Columns that a table needs for its numbers whole and its words wrapped."""
    gap, least = table.padding[1], 0
    for column in table.columns:
        width = max(cell_len(str(cell)) for cell in (column.header, *column.cells))
        least += gap + (min(width, _WORDS) if column.ratio or not column.no_wrap else width)
    return least - gap


def _listed(heads: Sequence[RenderableType], cells: Sequence[RenderableType]) -> Text:
    """One row of a table as text: its first cell, and each other behind its head."""
    told = [
        Text.assemble(f"{head} " if at and str(head) else "", cell)
        for at, (head, cell) in enumerate(zip(heads, cells, strict=True))
        if isinstance(cell, Text) and str(cell).strip()
    ]
    return Text("  ").join(told)
