"""A comparison as Markdown, for a pull request or a job's summary. Names from traces stay text."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import numbers as f
from tracelens.comparison.spelling import signed_ms
from tracelens.gates import Judged
from tracelens.render import compare as words
from tracelens.render import facts
from tracelens.render.compare_causes import ALL_OF_IT, cause_rows, cause_source, cause_total
from tracelens.render.compare_figures import Found, signed
from tracelens.render.compare_folders import pair_cells, peak_cells
from tracelens.render.compare_view import ComparisonView, shortened, view
from tracelens.render.gates import gates_markdown
from tracelens.render.text import escape, table
from tracelens.results.comparison import GemmChange

_ROWS, _CHANGES, _PAIRS = 20, 40, 200


def render_markdown(found: Found, *, gates: Sequence[Judged] = ()) -> str:
    """The comparison in the terminal's order: verdict, gates, pairs, what changed, movers, GEMMs, caveats."""
    shown = view(found)
    generated = found.before.generated or found.after.generated
    lines = [f"*{escape(facts.GENERATED)}*", ""] if generated else []
    lines += [f"**{escape(found.verdict)}**", "", *_causes(found)]
    lines += [*(f"- {escape(said)}" for said in found.reasons), ""] if found.reasons else []
    lines += [escape(shown.identity), "", *gates_markdown(gates)]
    if shown.pairs:
        cells = [pair_cells(pair) for pair in shown.pairs[:_PAIRS]]
        lines += ["### Pair by pair", "", *table(["", *shown.pair_heads, ""], cells), ""]
        more = len(shown.pairs) - _PAIRS
        lines += [f"and {more} more", ""] if more > 0 else []
    lines += _listed("What changed", shortened(shown.changes, _CHANGES))
    lines += _listed(f"Findings of the {shown.reports} before", shown.outcomes)
    if shown.peaks:
        heads = ["", "share of peak before", "after"]
        lines += ["### Share of peak", "", *table(heads, [peak_cells(row) for row in shown.peaks]), ""]
    elif not found.not_compared:
        lines += ["### Largest movers", "", *_movers(found, shown), "", escape(shown.parts), ""]
    lines += _gemms(shown.gemms)
    lines += _listed("Not compared", shown.left)
    lines += _listed("Caveats", found.caveats)
    return "\n".join(lines).rstrip("\n") + "\n"


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return [f"### {title}", "", *(f"- {escape(line)}" for line in lines), ""] if lines else []


def _causes(found: Found) -> list[str]:
    """Where the step's difference comes from, as a table; nothing without causes."""
    cells = [[row.time, row.said] for row in cause_rows(found)]
    cells += [[cause_total(found), ALL_OF_IT]] * (len(cells) > 1)
    source = cause_source(found)
    head = f"where it comes from ({source})" if source else "where it comes from"
    return [*table(["difference", head], cells), ""] if cells else []


def _movers(found: Found, shown: ComparisonView) -> list[str]:
    rows = words.movers(found)
    if not rows:
        return [f"None: {shown.nothing_moved}."]
    cells = [
        [words.row_name(found, row), f.sig(row.before_ms), f.sig(row.after_ms), signed(row.diff_ms),
         words.share(row), row.why]
        for row in rows[:_ROWS]
    ]  # fmt: skip
    return table(["component and phase", "before, ms", "after, ms", "difference", "", "work"], cells)


def _gemms(rows: Sequence[GemmChange]) -> list[str]:
    if not rows:
        return []
    heads = ["GEMM", "change", "before, ms", "after, ms", "difference", "share of peak"]
    cells = []
    for one in rows[:_ROWS]:
        times = [side.time_ms_per_step if side else None for side in (one.before, one.after)]
        shown = [f.DASH if ms is None else f.sig(ms) for ms in times]
        diff = f.DASH if one.diff_ms is None else signed_ms(one.diff_ms)
        cells.append([words.gemm_name(one), words.shape_change(one), *shown, diff, words.peak_change(one)])
    more = [f"and {len(rows) - _ROWS} more", ""] if len(rows) > _ROWS else []
    return ["### GEMMs", "", *table(heads, cells), "", *more]
