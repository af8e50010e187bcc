"""A comparison at a terminal: verdict, pairs, what changed, the largest movers, caveats."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracelens import numbers as f
from tracelens.comparison.spelling import signed_ms
from tracelens.render import compare as words
from tracelens.render import facts
from tracelens.render.compare_causes import ALL_OF_IT, cause_rows, cause_source, cause_total
from tracelens.render.compare_figures import Found, signed
from tracelens.render.compare_folders import pair_cells, peak_cells
from tracelens.render.compare_view import ComparisonView, shortened, view
from tracelens.render.console import Out
from tracelens.results.comparison import GemmChange

PAIRS = 32  # rows at a terminal; the other formats have them all
PEAKS = 20
CHANGES, LEFT = 8, 10
MOVERS, GEMMS, FINDINGS = 5, 6, 5
_STATES = {"faster": "bold green", "slower": "bold red"}
_SHORTER = {"before, ms": "before", "after, ms": "after", "difference": "diff"}


def render_compare(found: Found, *, console: Console, outputs: Sequence[tuple[str, int]] = ()) -> None:
    """Print a comparison of two traces or of two folders; fits 80 columns, names are text only."""
    out, shown = Out(console), view(found)
    if found.before.generated or found.after.generated:
        out.line(f" {facts.GENERATED} ", "reverse bold")
    out.line(found.verdict, _STATES.get(found.step.state if found.step else "", "bold"))
    _causes(out, found)
    _bullets(out, found.reasons)
    out.line(shown.identity, "dim")
    out.line()
    if shown.pairs:
        _pairs(out, found, shown)
    _titled(out, "What changed", shortened(shown.changes, CHANGES) if shown.pairs else shown.changes)
    if shown.outcomes:
        _titled(out, f"Findings of the {shown.reports} before", shortened(shown.outcomes, FINDINGS))
    if shown.peaks:
        _peaks(out, shown)
    elif not found.not_compared:
        _movers(out, found, shown)
    if shown.gemms:
        _gemms(out, shown.gemms, peaks=bool(found.not_compared))
    if shown.left:
        _titled(out, "Not compared", shortened(shown.left, LEFT))
    if found.caveats:
        out.line("Caveats", "bold")
        _bullets(out, found.caveats, mark="!", style="dim")
    out.wrote(outputs)


def _causes(out: Out, found: Found) -> None:
    """Where the step's difference comes from; the lines add up to it."""
    rows, source = cause_rows(found), cause_source(found)
    table = out.table([("", "r"), ("", "fold")])
    for row in rows:
        table.add_row(out.text(f"  {row.time}"), out.text(row.said))
    if len(rows) > 1:
        table.add_row(out.text(f"  {cause_total(found)}"), out.text(ALL_OF_IT, "dim"))
    if rows:
        out.print(table)
        if source:
            out.line(f"  {source}", "dim")


def _titled(out: Out, title: str, lines: Sequence[str]) -> None:
    out.line(title, "bold")
    _bullets(out, lines)
    out.line()


def _bullets(out: Out, lines: Sequence[str], *, mark: str = "·", style: str = "") -> None:
    table = out.table([("", "l"), ("", "fold")], gap=1)
    for line in lines:
        table.add_row(out.text(mark, "yellow" if mark == "!" else "dim"), out.text(line, style, limit=600))
    if lines:
        out.print(table)


def _more(out: Out, count: int, what: str = "") -> None:
    if count > 0:
        out.line(f"  and {count} more{what}", "dim")


def _pairs(out: Out, found: Found, shown: ComparisonView) -> None:
    heads = [("", "l"), *((_SHORTER.get(head, head), "r") for head in shown.pair_heads), ("", "fold")]
    rows = []
    for pair in shown.pairs[:PAIRS]:
        name, *cells = pair_cells(pair)
        state = out.text(cells[-1], _STATES.get(pair.state, ""))
        rows.append([out.text(f"  {name}", limit=24), *map(out.text, cells[:-1]), state])
    out.rows(heads, rows)
    _more(out, len(shown.pairs) - PAIRS, " pairs")
    if not found.not_compared:
        out.line(
            "  median step, ms; computing: mean time per step in which more than communication runs", "dim"
        )
    out.line()


def _movers(out: Out, found: Found, shown: ComparisonView) -> None:
    rows = [row for row in words.movers(found) if not words.is_move(found, row)]
    of = f"  ms of GPU time {found.per_step}" + (", medians" if shown.of else "")
    out.line(out.text("Largest movers", "bold") + out.text(of, "dim"))
    heads = [("", "l"), ("before", "r"), ("after", "r"), ("diff", "r"), ("", "r"), ("work", "fold")]
    cells = [
        [
            out.text(f"  {row.component} {row.phase}", limit=32),
            out.text(f.sig(row.before_ms)),
            out.text(f.sig(row.after_ms)),
            out.text(signed(row.diff_ms), "bold"),
            out.text(words.share(row)),
            out.text(row.why, "dim"),
        ]
        for row in rows[:MOVERS]
    ]
    if rows:
        out.rows(heads, cells)
    else:
        out.line(f"  None: {shown.nothing_moved}.")
    for line in words.moved_lines(found):
        out.line(f"  {line}")
    untold = [] if shown.pairs else words.untold(found)
    if untold:
        names = ", ".join(f"{row.component} {row.phase} {signed_ms(row.diff_ms)}" for row in untold[:3])
        out.line(f"  not separated from noise: {names}", "dim")
    out.line(f"  {shown.parts}", "dim")
    out.line()


def _peaks(out: Out, shown: ComparisonView) -> None:
    note = "  of each GPU's own; medians over the pairs"
    out.line(out.text("Share of peak", "bold") + out.text(note, "dim"))
    every = [peak_cells(row) for row in shown.peaks[:PEAKS]]
    cells = [[out.text(f"  {name}"), *map(out.text, figures)] for name, *figures in every]
    out.rows([("", "l"), ("before", "r"), ("after", "r")], cells)
    _more(out, len(shown.peaks) - PEAKS)
    out.line()


def _gemms(out: Out, rows: Sequence[GemmChange], *, peaks: bool) -> None:
    """GEMMs of another shape or time; where times are not compared, their shares of peak alone."""
    heads = [("GEMM", "l"), ("change", "fold")]
    heads += [] if peaks else [("before", "r"), ("after", "r"), ("diff", "r")]
    lines = []
    for one in rows[:GEMMS]:
        cells = [out.text(f"  {words.gemm_name(one)}", limit=26), out.text(words.shape_change(one))]
        if not peaks:
            times = [side.time_ms_per_step if side else None for side in (one.before, one.after)]
            cells += [out.text(f.DASH if ms is None else f.sig(ms)) for ms in times]
            cells.append(out.text(signed_ms(one.diff_ms), "bold"))
        lines.append([*cells, out.text(words.peak_change(one))])
    out.rows([*heads, ("% peak", "r")], lines)
    _more(out, len(rows) - GEMMS)
    out.line()
