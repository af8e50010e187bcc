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
from tracelens.render.job_map import heat_map
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
