"""The text beside the figures: every number in it comes from the measurements."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from benchmarks.paper.figure import MISSING, Figure
from benchmarks.paper.source import Published, Source
from tracelens.numbers import DASH

_COLUMNS = ("gpu", "panel", "series", "x", "tflops", "time_us", "kernel", "basis")
_RAW = "The paper's raw A100 sweeps are drawn where they were at hand; the tables here leave them out."


def table(figure: Figure) -> str:
    """The figure's points as CSV. Raw data of others are not copied; quoted figures are."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for panel in figure.panels:
        for one in panel.series:
            for point in one.points if one.kept else ():
                time_us = "" if point.time_us is None else f"{point.time_us:.4f}"
                kernels = " + ".join(point.kernels)
                writer.writerow(
                    (one.gpu, panel.title, one.name, f"{point.x:g}", f"{point.tflops:.3f}", time_us, kernels,
                     one.basis)
                )  # fmt: skip
    return text.getvalue()


def page(here: Source, paper: Published, figures: Sequence[Figure]) -> str:
    """README.md of one GPU."""
    drawn = [one for one in figures if one.measured]
    parts = [f"# The paper's figures on {here.title}", "", *_head(here, paper), ""]
    parts += ["| | family | points | |", "|---|---|---|---|"]
    for one in figures:
        link = f"[figure]({one.key}.svg), [table]({one.key}.csv)" if one in drawn else DASH
        parts.append(f"| {one.letter} | {one.title} | {one.measured or MISSING} | {link} |")
    if any(one.differs for one in drawn):
        parts += ["", "## Beside the paper"]
        for one in drawn:
            parts += [f"- **{one.letter}, {one.title}**"] if one.differs else []
            parts += [f"  - {line}" for line in one.differs]
    for one in figures:
        parts += ["", f"## {one.letter}: {one.title}", one.shape + "." if one.shape else ""]
        if one.measured:
            parts += ["", f"![{one.title}]({one.key}.svg)", ""]
            parts += [f"- {line}" for line in one.says]
            parts += ["", *one.table] if one.table and one.says else one.table
        else:
            parts += ["", f"{MISSING[0].upper()}{MISSING[1:]}."]
    return "\n".join(parts).rstrip() + "\n"


def _head(here: Source, paper: Published) -> list[str]:
    if here.dry_run:
        who = f"**A dry run on a CPU at toy size, {here.date}: nothing below was measured on a GPU.**"
    else:
        sms = f", {here.sms} SMs" if here.sms else ""
        software = here.software or "software unknown"
        by = f" by `{here.command}`" if here.command else ""
        who = (
            f"Measured {here.date}{by} on {here.title}{sms}, {here.dtype}; {software}. {here.method}".rstrip()
        )
    beside = "the figures quoted in benchmarks/gpu/paper.toml, with their sources"
    if paper.raw is not None:
        beside = f"the raw A100 sweeps behind arXiv 2401.14489 ({paper.raw.software}), and {beside}"
    script = (
        f"Beside it: {beside}. The authors' script (EleutherAI/cookbook, benchmarks/sizing/utils.py) times "
        "single calls with warm caches; its plain products are `torch.mm` of row-major operands, NN for "
        "cuBLAS, where a linear layer's forward is TN. Sentences and tables are computed from the points."
    )
    return [who, "", script, *(["", _RAW] if paper.raw is not None else [])]
