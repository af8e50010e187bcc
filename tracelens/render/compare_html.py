"""A comparison as one offline HTML file, in the dress of the report's page; no network, no script needed."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment
from markupsafe import Markup

from tracelens.comparison.spelling import VARIATION, arrow_ms, p_value, signed_pct
from tracelens.render import compare as words
from tracelens.render import compare_figures as figures
from tracelens.render import facts
from tracelens.render.compare_causes import cause_rows, cause_source, cause_total
from tracelens.render.compare_folder_words import STATE_WORDS
from tracelens.render.compare_folders import pair_cells, peak_cells
from tracelens.render.compare_view import view
from tracelens.render.compare_words import left_open
from tracelens.render.groups import group_of
from tracelens.render.templates import environment, part, percent, policy
from tracelens.results.folders import FolderComparison

PAIRS = 1024
ROWS = 200  # GEMM rows shown of those that count and of those that do not; all are in --json
_JUDGED = {True: "more than noise", False: "noise, or too small to matter", None: "not known"}
_GENERATED = "{}: generated, not measured"  # the caveat that the badge says


def render_compare_html(found: figures.Found, *, generated_at: str | None = None) -> str:
    """Return the page of a comparison of two traces or of two folders; ``generated_at`` is in the footer."""
    shown = view(found)
    pairs = shown.pairs[:PAIRS]
    rows = words.component_rows(found)
    css, js = part("report.css") + part("compare.css"), part("report.js")
    page: str = (
        _environment()
        .get_template("compare.html.j2")
        .render(
            c=found,
            v=shown,
            folders=isinstance(found, FolderComparison),
            title=_title(found),
            verdict=found.verdict,
            reasons=found.reasons,
            causes=cause_rows(found),
            total=cause_total(found),
            source=cause_source(found),
            moved=[row for row in rows if words.is_move(found, row) or row.beyond_noise is not False],
            still=[row for row in rows if not words.is_move(found, row) and row.beyond_noise is False],
            badge=_badge(found),
            numbers=figures.five_numbers(found),
            points=figures.step_points(found),
            bars=figures.step_bars(found),
            caveats=_caveats(found),
            pairs=pairs,
            cells=[pair_cells(pair) for pair in pairs] if found.not_compared else [],
            longest=max((max(pair.before.step_ms, pair.after.step_ms) for pair in pairs), default=0.0),
            peak_cells=peak_cells,
            most=ROWS,
            generated_at=generated_at,
            css=Markup(css),
            js=Markup(js),
            csp=Markup(policy(css, js)),
        )
    )
    return page


def _title(result: figures.Found) -> str:
    """The verdict, without its numbers where nothing changed."""
    changed = result.step is None or result.step.state in ("faster", "slower")
    return result.verdict if changed else result.verdict.partition(": ")[0]


def _badge(result: figures.Found) -> str:
    """Which side is generated; "" where both are measured."""
    sides = [name for name, one in (("before", result.before), ("after", result.after)) if one.generated]
    return f"{facts.GENERATED}: {' and '.join(sides)}" if sides else ""


def _caveats(result: figures.Found) -> list[str]:
    """The caveats, without what stands at the top of the page: the badge, and the interval of the step."""
    said = {_GENERATED.format("before"), _GENERATED.format("after")}
    if result.step is not None:
        said |= {left_open(result.step, "steps"), left_open(result.step, "runs")}
    return [line for line in result.caveats if line not in said]


@cache
def _environment() -> Environment:
    env = environment()
    env.globals.update(
        arrow_ms=arrow_ms, difference=figures.signed, signed_pct=signed_pct, p_value=p_value,
        variation=VARIATION, gemm_name=words.gemm_name, shape=words.shape, shape_change=words.shape_change,
        moved_to=words.moved_to, peak_change=words.peak_change, judged=lambda beyond: _JUDGED[beyond],
        share=words.share, is_move=words.is_move, net=words.net_difference, drawn_ms=words.drawn_ms,
        reached=lambda c, rows: [words.drawn_ms(c, row) for row in rows],
        states=STATE_WORDS, group_of=group_of, reach=figures.reach, folded=figures.folded,
        diff_bar=_diff_bar, two_bars=_two_bars,
    )  # fmt: skip
    return env


def _diff_bar(reach: figures.Reach, diff_ms: float, counts: bool | None = True) -> Markup:
    """Draw a difference to the left or right of zero; its number stands beside it, so it is silent.

    Only a difference that counts has the colour of a saving or of a loss.
    """
    start, width = reach.bar(diff_ms)
    kind = "" if not counts else "less" if diff_ms < 0 else "more"
    zero = percent(reach.zero)
    drawn = f'<rect class="{kind}" x="{percent(start)}" width="{percent(width)}" height="100%"/>'
    return Markup(
        f'<svg class="away" aria-hidden="true">{drawn if diff_ms else ""}'
        f'<line x1="{zero}" x2="{zero}" y1="0" y2="100%"/></svg>'
    )


def _two_bars(before_ms: float, after_ms: float, longest_ms: float) -> Markup:
    """Draw two times from zero, before above after; their numbers stand below."""
    old, new = (percent(ms / longest_ms if longest_ms else 0.0) for ms in (before_ms, after_ms))
    return Markup(
        f'<svg aria-hidden="true"><rect class="old" width="{old}" height="7"/>'
        f'<rect class="new" y="8" width="{new}" height="7"/></svg>'
    )
