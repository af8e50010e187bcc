"""A comparison as Markdown, for a pull request or a job's summary. Names from traces stay text."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens import numbers as f
from tracelens.comparison.spelling import signed_ms
from tracelens.gates import Judged
from tracelens.render import compare as words
from tracelens.render import facts
from tracelens.render.compare_causes import cause_rows, cause_source
from tracelens.render.compare_figures import Found, signed
from tracelens.render.gates import gates_markdown
from tracelens.render.markdown_text import escape, table
from tracelens.results.comparison import Comparison

_ROWS = 20


def render_markdown(result: Comparison, *, gates: Sequence[Judged] = ()) -> str:
    """The comparison in the terminal's order: verdict, gates, what changed, movers, GEMMs, caveats."""
    generated = result.before.generated or result.after.generated
    lines = [f"*{escape(facts.GENERATED)}*", ""] if generated else []
    lines += [f"**{escape(result.verdict)}**", "", *causes_markdown(result)]
    lines += [*(f"- {escape(said)}" for said in result.reasons), ""] if result.reasons else []
    lines += [escape(words.identity(result)), "", *gates_markdown(gates), "### What changed", ""]
    lines += [f"- {escape(line.replace('->', '→'))}" for line in words.changes_lines(result)]
    if result.findings:
        lines += ["", "### Findings of the report before", ""]
        lines += [f"- {escape(line)}" for line in words.outcome_lines(result)]
    if not result.not_compared:
        lines += ["", "### Largest movers", "", *_movers(result)]
        lines += ["", escape(words.parts_line(result))]
    lines += _gemms(result)
    if result.caveats:
        lines += ["", "### Caveats", "", *(f"- {escape(line)}" for line in result.caveats)]
    return "\n".join(lines) + "\n"


def causes_markdown(result: Found) -> list[str]:
    """Where the step's difference comes from, as a table; nothing without causes."""
    cells = [[row.time, row.said] for row in cause_rows(result)]
    source = cause_source(result)
    head = f"where it comes from ({source})" if source else "where it comes from"
    return [*table(["difference", head], cells), ""] if cells else []


def _movers(result: Comparison) -> list[str]:
    rows = words.movers(result)
    if not rows:
        return [f"None: {words.nothing_moved(result)}."]
    return table(
        ["component and phase", "before, ms", "after, ms", "difference", "", "because"],
        [
            [
                words.row_name(result, row),
                f.sig(row.before_ms),
                f.sig(row.after_ms),
                signed(row.diff_ms),
                words.share(row),
                row.why,
            ]
            for row in rows[:_ROWS]
        ],
    )


def _gemms(result: Comparison) -> list[str]:
    rows = words.moved_gemms(result)
    if not rows:
        return []
    heads = ["GEMM", "change", "before, ms", "after, ms", "difference", "share of peak"]
    cells = []
    for one in rows[:_ROWS]:
        times = [side.time_ms_per_step if side else None for side in (one.before, one.after)]
        shown = [f.DASH if ms is None else f.sig(ms) for ms in times]
        diff = f.DASH if one.diff_ms is None else signed_ms(one.diff_ms)
        cells.append([words.gemm_name(one), words.shape_change(one), *shown, diff, words.peak_change(one)])
    more = [f"\nand {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return ["", "### GEMMs", "", *table(heads, cells), *more]
