"""Draws the figures of arXiv 2401.14489 again from what was measured on the GPU at hand.

``python -m benchmarks.paper`` takes every GPU that has measurements (``tracelens bench``, or the calibration
that ``benchmarks.gpu.summarize`` ships) and writes ``benchmarks/paper/results/<gpu>/``: one SVG and one CSV
for each family, and README.md with what differs from the paper. A dry run needs ``--out``: it is no part of
the record.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.store import ROOT, write_bytes
from benchmarks.paper.families import figures
from benchmarks.paper.page import page, table
from benchmarks.paper.source import PAPER_DATA, Published, Source, find_sources, read_published
from benchmarks.paper.svg import svg
from tracelens.errors import InputError, TracelensError, UsageError

OUT = ROOT / "benchmarks" / "paper" / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        sources = find_sources(options.measurements, options.results)
        if not sources:
            raise InputError(
                "no GPU is measured yet: run `tracelens bench` or benchmarks.gpu.collect on one, or name a "
                "file with --measurements"
            )
        raw = options.paper_data
        if raw is None and PAPER_DATA.is_file():
            raw = PAPER_DATA
        paper = read_published(raw)
        for source in sources:
            print(draw(source, paper, _folder(options.out, source)))
    except TracelensError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def draw(source: Source, paper: Published, folder: Path) -> str:
    """Write the figures, tables and text of one GPU; a line on what was drawn and what is missing."""
    found = figures(source, paper)
    drawn = [one for one in found if one.measured]
    for one in found:
        for suffix, text in ((".svg", svg), (".csv", table)):
            path = folder / f"{one.key}{suffix}"
            if one in drawn:
                write_bytes(path, text(one).encode())
            else:  # of an earlier source in the same folder
                path.unlink(missing_ok=True)
    write_bytes(folder / "README.md", page(source, paper, found).encode())
    missing = [one.key for one in found if one not in drawn]
    marked = " (dry run)" if source.dry_run else ""
    left = f"; not yet measured: {', '.join(missing)}" if missing else ""
    return f"{source.title}{marked}: {len(drawn)} of {len(found)} figures in {folder.name}{left}"


def _folder(out: Path | None, source: Source) -> Path:
    if out is None and source.dry_run:
        raise UsageError("what a CPU measured is a dry run and no part of the record: give --out DIR")
    return (out or OUT) / source.key


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--measurements", type=Path, metavar="FILE", help="of `tracelens bench`, or a shipped calibration"
    )
    which.add_argument(
        "--results", type=Path, metavar="DIR", help="results/ of benchmarks.gpu.collect, also of a dry run"
    )
    add("--out", type=Path, metavar="DIR", help="write DIR/<gpu>/ instead of benchmarks/paper/results/<gpu>/")
    add(
        "--paper-data",
        type=Path,
        metavar="CSV",
        help="the paper's raw A100 sweeps, drawn beside; found by itself beside the checkout",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
