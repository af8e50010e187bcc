"""A comparison of two folders at a terminal and as Markdown: verdict, pair by pair, movers, what is left."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracelens import numbers as f
from tracelens.comparison.folder_words import STATE_WORDS
from tracelens.comparison.spelling import arrow_ms, arrow_pct, p_value, signed_pct
from tracelens.gates import Judged
from tracelens.render import facts
from tracelens.render.compare import (
    FINDINGS,
    MOVERS,
    OUTCOMES,
    is_move,
    moved_lines,
    movers,
    row_name,
    share,
    show_causes,
)
from tracelens.render.compare_figures import shares_line, signed
from tracelens.render.compare_markdown import causes_markdown
from tracelens.render.console import Out
from tracelens.render.gates import gates_markdown
from tracelens.render.markdown_text import escape, table
from tracelens.results.folders import NOT_COMPARED, FolderComparison, Pair, SharedPeak

PAIRS = 32  # rows at a terminal; the other formats have them all
CHANGES = 8
LEFT = 10
PEAKS = 20
_MARKDOWN_PAIRS = 200
_STATES = {"faster": "bold green", "slower": "bold red"}


def render_folders(
    result: FolderComparison, *, console: Console, outputs: Sequence[tuple[str, int]] = ()
) -> None:
    """Print the comparison; fits 80 columns, and names of files and traces are text only."""
    out = Out(console)
    if result.before.generated or result.after.generated:
        out.line(f" {facts.GENERATED} ", "reverse bold")
    out.line(result.verdict, _STATES.get(result.step.state if result.step else "", "bold"))
    show_causes(out, result)
    _bullets(out, result.reasons)
    out.line(identity(result), "dim")
    out.line()
    _pairs(out, result)
    out.line("What changed", "bold")
    _bullets(out, [line.replace("->", "→") for line in change_lines(result, CHANGES)])
    out.line()
    _findings(out, result)
    _components(out, result)
    lines = left_lines(result, LEFT)
    if lines:
        out.line("Not compared", "bold")
        _bullets(out, lines)
        out.line()
    if result.caveats:
        out.line("Caveats", "bold")
        _bullets(out, result.caveats, mark="!", style="dim")
    for path, size in outputs:
        out.line(out.text("wrote ", "dim") + out.text(path, "bold") + out.text(f" ({f.nbytes(size)})", "dim"))


def identity(result: FolderComparison) -> str:
    """The two folders and what they ran on, in one line."""
    a, b = result.before, result.after
    gpu = a.gpu_title if a.gpu_title == b.gpu_title else f"{a.gpu_title} → {b.gpu_title}"
    many = len(result.pairs)
    pairs = f"{many} pair{'' if many == 1 else 's'} of files by {result.matched_by}"
    parts = (f"{a.path[:60]} → {b.path[:60]}", pairs, gpu[:80], a.dtype if a.dtype == b.dtype else None)
    return " · ".join(part for part in parts if part)


def pair_heads(result: FolderComparison) -> list[str]:
    """What the cells of a pair are, after its name and before the last."""
    if result.not_compared:
        return ["MFU", "GPU busy", "in GEMM + attention"]
    return ["before, ms", "after, ms", "difference", "p", "computing"]


def pair_cells(pair: Pair) -> list[str]:
    """Name, step before and after, difference, p, computing time, what the pair's own steps say.

    Where times are not compared: name, MFU, GPU busy, share of GEMM time, that they are not.
    """
    if pair.state == NOT_COMPARED:
        a, b = pair.before, pair.after
        return [
            pair.name,
            arrow_pct(a.mfu_frac, b.mfu_frac, least=(a.mfu_is_bound, b.mfu_is_bound)),
            arrow_pct(a.gpu_busy_frac, b.gpu_busy_frac),
            arrow_pct(a.gemm_frac, b.gemm_frac, least=(a.gemm_frac_is_bound, b.gemm_frac_is_bound)),
            STATE_WORDS[NOT_COMPARED],
        ]
    return [
        pair.name,
        f.sig(pair.before.step_ms),
        f.sig(pair.after.step_ms),
        signed_pct(pair.diff_frac),
        f.DASH if pair.p is None else p_value(pair.p),
        arrow_ms(pair.before.computing_ms, pair.after.computing_ms),
        STATE_WORDS.get(pair.state, pair.state),
    ]


def peak_cells(row: SharedPeak) -> list[str]:
    """GEMM, share of the datasheet peak before and after."""
    name = f"{row.component} {row.role or row.phase}"
    return [name, f.pct(row.before_frac), f.pct(row.after_frac)]


def change_lines(result: FolderComparison, most: int) -> list[str]:
    """What changed, a line each, with the number of pairs where it is not all of them."""
    many = len(result.pairs)
    lines = [
        one.change.said + ("" if one.pairs == many else f" ({one.pairs} of {many} pairs)")
        for one in result.changes
    ]
    if len(lines) > most:
        lines = [*lines[:most], f"and {len(lines) - most} more"]
    return lines or ["No visible change: same model dimensions, GEMM shapes and collectives."]


def finding_lines(result: FolderComparison) -> list[str]:
    """What became of the findings of the reports before."""
    many = len(result.pairs)
    return [
        f"{one.rule} {one.title}: {OUTCOMES.get(one.state, one.state)}"
        + ("" if one.pairs == many else f" ({one.pairs} of {many} pairs)")
        for one in result.findings
    ]


def left_lines(result: FolderComparison, most: int) -> list[str]:
    """The files that are not in the comparison, and why."""
    lines = [f"{one.side}: {one.file[:80]}: {one.why}" for one in result.left]
    return [*lines[:most], f"and {len(lines) - most} more"] if len(lines) > most else lines


def parts_line(result: FolderComparison) -> str:
    """Medians of idle time, exposed communication, GPU and GEMM time and shares, before and after."""
    parts = [f"{one.name} {arrow_ms(one.before_ms, one.after_ms)}" for one in result.parts]
    return (
        f"{', '.join(parts)} {result.per_step}; {shares_line(result)} (medians, not tested)" if parts else ""
    )


def _pairs(out: Out, result: FolderComparison) -> None:
    shorter = {"before, ms": "before", "after, ms": "after", "difference": "diff"}
    rows = out.table(
        [("", "l"), *((shorter.get(head, head), "r") for head in pair_heads(result)), ("", "fold")]
    )
    for pair in result.pairs[:PAIRS]:
        name, *cells = pair_cells(pair)
        style = _STATES.get(pair.state, "")
        rows.add_row(
            out.text(f"  {name}", limit=24),
            *(out.text(cell) for cell in cells[:-1]),
            out.text(cells[-1], style),
        )
    out.print(rows)
    if len(result.pairs) > PAIRS:
        out.line(f"  and {len(result.pairs) - PAIRS} more pairs", "dim")
    if not result.not_compared:
        out.line(
            "  median step, ms; computing: mean time per step in which more than communication runs", "dim"
        )
    out.line()


def _findings(out: Out, result: FolderComparison) -> None:
    lines = finding_lines(result)
    if not lines:
        return
    out.line("Findings of the reports before", "bold")
    _bullets(out, lines[:FINDINGS])
    if len(lines) > FINDINGS:
        out.line(f"  and {len(lines) - FINDINGS} more", "dim")
    out.line()


def _components(out: Out, result: FolderComparison) -> None:
    if result.not_compared:
        _peaks(out, result)
        return
    rows = [row for row in movers(result) if not is_move(result, row)]
    out.line(
        out.text("Largest movers", "bold") + out.text(f"  ms of GPU time {result.per_step}, medians", "dim")
    )
    if not rows:
        out.line(f"  None: {nothing_moved(result)}.")
    else:
        table_ = out.table(
            [("", "l"), ("before", "r"), ("after", "r"), ("diff", "r"), ("", "r"), ("because", "fold")]
        )
        for row in rows[:MOVERS]:
            table_.add_row(
                out.text(f"  {row.component} {row.phase}", limit=32),
                out.text(f.sig(row.before_ms)),
                out.text(f.sig(row.after_ms)),
                out.text(signed(row.diff_ms), "bold"),
                out.text(share(row)),
                out.text(row.why, "dim"),
            )
        out.print(table_)
    for line in moved_lines(result):
        out.line(f"  {line}")
    out.line(f"  {parts_line(result)}", "dim")
    out.line()


def _peaks(out: Out, result: FolderComparison) -> None:
    out.line(
        out.text("Share of peak", "bold") + out.text("  of each GPU's own; medians over the pairs", "dim")
    )
    rows = out.table([("", "l"), ("before", "r"), ("after", "r")])
    for row in result.peaks[:PEAKS]:
        name, *cells = peak_cells(row)
        rows.add_row(out.text(f"  {name}", limit=40), *(out.text(cell) for cell in cells))
    out.print(rows)
    if len(result.peaks) > PEAKS:
        out.line(f"  and {len(result.peaks) - PEAKS} more", "dim")
    out.line()


def nothing_moved(result: FolderComparison) -> str:
    """Why no component is named."""
    if any(row.beyond_noise is not None for row in result.components):
        return "in more than half of the pairs nothing changed by more than noise"
    return "cannot be separated from noise"


def _bullets(out: Out, lines: Sequence[str], *, mark: str = "·", style: str = "") -> None:
    rows = out.table([("", "l"), ("", "fold")], gap=1)
    for line in lines:
        rows.add_row(out.text(mark, "yellow" if mark == "!" else "dim"), out.text(line, style, limit=600))
    if lines:
        out.print(rows)


def folders_markdown(result: FolderComparison, *, gates: Sequence[Judged] = ()) -> str:
    """The comparison as Markdown, in the terminal's order."""
    generated = result.before.generated or result.after.generated
    lines = [f"*{escape(facts.GENERATED)}*", ""] if generated else []
    lines += [f"**{escape(result.verdict)}**", "", *causes_markdown(result)]
    lines += [*(f"- {escape(said)}" for said in result.reasons), ""] if result.reasons else []
    lines += [escape(identity(result)), "", *gates_markdown(gates), "### Pair by pair", ""]
    lines += table(
        ["", *pair_heads(result), ""], [pair_cells(pair) for pair in result.pairs[:_MARKDOWN_PAIRS]]
    )
    if len(result.pairs) > _MARKDOWN_PAIRS:
        lines += ["", f"and {len(result.pairs) - _MARKDOWN_PAIRS} more"]
    lines += ["", "### What changed", ""]
    lines += [f"- {escape(line.replace('->', '→'))}" for line in change_lines(result, 40)]
    if result.findings:
        lines += ["", "### Findings of the reports before", ""]
        lines += [f"- {escape(line)}" for line in finding_lines(result)]
    lines += _movers_markdown(result)
    for title, said in (("Not compared", left_lines(result, 200)), ("Caveats", result.caveats)):
        lines += ["", f"### {title}", "", *(f"- {escape(line)}" for line in said)] if said else []
    return "\n".join(lines) + "\n"


def _movers_markdown(result: FolderComparison) -> list[str]:
    if result.not_compared:
        heads = ["", "share of peak before", "after"]
        return ["", "### Share of peak", "", *table(heads, [peak_cells(row) for row in result.peaks])]
    rows = movers(result)
    lines = ["", "### Largest movers", ""]
    if rows:
        cells = [
            [row_name(result, row), f.sig(row.before_ms), f.sig(row.after_ms), signed(row.diff_ms),
             share(row), row.why]
            for row in rows[:20]
        ]  # fmt: skip
        lines += table(["component and phase", "before, ms", "after, ms", "difference", "", "because"], cells)
    else:
        lines += [f"None: {nothing_moved(result)}."]
    return [*lines, "", escape(parts_line(result))]
