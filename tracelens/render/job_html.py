"""The answer for a job as one offline HTML file: a bar per rank, collectives, a map of rank and step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

import jinja2
import numpy as np
from markupsafe import Markup

from tracelens import numbers as f
from tracelens.analysis import Analysis
from tracelens.comparison.step_change import PRACTICAL
from tracelens.files import write_text
from tracelens.render import job_cells as cells
from tracelens.render import job_words as words
from tracelens.render.html import render_html
from tracelens.render.templates import environment, part, policy
from tracelens.results.job import Job, JobRank

#: All ranks get a bar up to here; of larger jobs the latest, a table of percentiles, and the map.
BARS, WORST, BLOCKS = 64, 10, 12
_WIDTH = 1000.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One rank's step on the common scale; ``x`` and ``width`` of ``_WIDTH``."""

    rank: JobRank
    pieces: list[tuple[str, float, float, str]]  # part, x, width, what it says
    late: bool
    page: str | None  # its own page beside this one


def render_job_html(job: Job, *, generated_at: str | None = None, pages: dict[str, str] | None = None) -> str:
    """Return the page. ``pages`` names each rank's own page by the rank's name, relative to this one."""
    css = part("report.css") + part("job.css")
    large = len(job.ranks) > BARS
    shown = cells.worst_first(job, WORST if large else BARS)
    page: str = (
        _environment()
        .get_template("job.html.j2")
        .render(
            job=job,
            verdict=words.verdict(job),
            details=words.details(job),
            caveats=words.caveats(job),
            identity=words.identity(job),
            model=words.model_line(job),
            check=words.check(job),
            evidence=words.evidence(job),
            command=words.CHECK,
            collective_note=cells.COLLECTIVE_NOTE,
            parts=cells.bar_parts(job),
            bars=_bars(job, shown, pages or {}),
            large=large,
            percentiles=_percentiles(job) if large else [],
            map=heat_map(job) if large else None,
            heads=cells.COLLECTIVE_HEADS,
            collectives=[cells.collective_cells(row) for row in job.collectives[:24]],
            blocks=cells.block_rows(job)[:BLOCKS] if large else [],
            block_heads=cells.BLOCK_HEADS,
            practical=PRACTICAL,
            findings=cells.finding_lines(job),
            components=cells.component_rows(job),
            gemms=job.gemms[:24],
            generated_at=generated_at,
            css=Markup(css),
            csp=Markup(policy(css)),
        )
    )
    return page


def write_rank_page(analysis: Analysis, path: Path) -> None:
    """One rank's own page, as ``tracelens analyze`` writes it."""
    write_text(path, render_html(analysis.report))


def _bars(job: Job, shown: list[JobRank], pages: dict[str, str]) -> list[Bar]:
    longest = max(row.parts.step_ms for row in job.ranks) or 1.0
    late = {one.name for one in job.stragglers}
    bars = []
    for row in shown:
        at, pieces = 0.0, []
        for name, said in cells.bar_parts(job):
            ms = cells.bar_ms(row, name)
            width = max(0.0, ms) / longest * _WIDTH
            if width >= 0.5:
                pieces.append((name.removesuffix("_ms"), at, width, f"{said}: {f.ms(ms)}"))
            at += width
        page = pages.get(row.name)
        bars.append(Bar(row, pieces, row.name in late, None if page is None else quote(page)))
    return bars


def _percentiles(job: Job) -> list[tuple[str, list[str]]]:
    """Of each part over the ranks: least, median, 95th percentile, most."""
    rows = []
    for name, said in (*cells.part_names(job), ("step_ms", "step")):
        values = np.array([getattr(row.parts, name) for row in job.ranks])
        rows.append((said, [f.ms(float(np.percentile(values, at))) for at in (0, 50, 95, 100)]))
    return rows


@cache
def _environment() -> jinja2.Environment:
    env = environment()
    env.globals.update(ms=f.ms, pct=f.pct, mnk=f.mnk, sig=f.sig)
    return env


_STEPS, _ROWS = 40, 256
_LEAST_SCALE = 0.05  # the darkest shade is that much above the median, or the largest there is
_LEVELS = 8
_MAP_WIDTH, _HEIGHT, _BAND = 720, 640, 10


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rank by step, and how to read it."""

    svg: Markup
    each: int  # ranks of a row
    most: float  # above the median, as a share of it, of the darkest shade
    ranks: list[str]  # the first and the last
    steps: list[int]
    nodes: int  # whose ranks the band at the left parts; 0: not known


def heat_map(job: Job) -> HeatMap:
    """Rank by step: the time of each step without waiting for others, as one path per shade.

    With hundreds of ranks a row is that of several neighbours, the longest of them.
    """
    steps = job.steps[:_STEPS]
    own = np.array([np.subtract(row.steps_ms, row.waits_ms)[: len(steps)] for row in job.ranks])
    middle = np.median(own, axis=0)
    over = np.maximum(0, own - middle) / np.maximum(middle, 1e-9)
    each = 1 << max(0, (len(over) - 1) // _ROWS).bit_length()
    worst = np.stack([over[at : at + each].max(axis=0) for at in range(0, len(over), each)])
    most = max(_LEAST_SCALE, float(worst.max()))
    level = np.minimum((worst / most * _LEVELS).astype(int), _LEVELS - 1)
    width, height = _MAP_WIDTH // len(steps), max(2, min(8, _HEIGHT // len(worst)))
    paths = []
    for shade in range(_LEVELS):
        rows, columns = np.nonzero(level == shade)
        cells = "".join(
            f"M{_BAND + column * width} {row * height}h{width - 1}v{height}h-{width - 1}z"
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
        )
        if cells:
            paths.append(f'<path class="l{shade}" d="{cells}"/>')
    band, nodes = _band(job, height / each)
    high, wide = height * len(worst), _BAND + width * len(steps)
    label = (
        f"Time of each step without waiting, by rank (down) and step (across), {len(over)} by {len(steps)}"
    )
    svg = (
        f'<svg class="map" role="img" aria-label="{label}" viewBox="0 0 {wide} {high}" width="{wide}" '
        f'height="{high}">{band}{"".join(paths)}</svg>'
    )
    names = [job.ranks[0].name, job.ranks[-1].name]
    return HeatMap(Markup(svg), each, most, names, steps, nodes)


def _band(job: Job, height: float) -> tuple[str, int]:
    """Every second node as a mark beside its ranks, and the number of nodes."""
    nodes = [block.ranks for block in job.blocks if block.kind == "node"]
    row = {one.name: at for at, one in enumerate(job.ranks)}
    spans = sorted((row[ranks[0]], len(ranks)) for ranks in nodes)
    marks = "".join(f"M0 {first * height:g}h{_BAND - 3}v{many * height:g}H0z" for first, many in spans[1::2])
    return (f'<path class="node" d="{marks}"/>' if marks else ""), len(nodes)
