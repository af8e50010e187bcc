"""What --verbose adds at a terminal: the step as a bar, GEMM rows and how they come about, coverage."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from tracelens import numbers as f
from tracelens.accounting.loads import by_load
from tracelens.errors import UsageError
from tracelens.render import facts, groups, losses
from tracelens.render.communication import slow_calls
from tracelens.render.console import ROOMY, WIDEST
from tracelens.render.console import Out as _Out
from tracelens.render.text import clean
from tracelens.results import CommunicationRow, GemmRow, Report
from tracelens.words import slash_step

TOP = 6  # GEMM rows; the page has the rest
_LEGENDS = ((3, 2), (3, 1), (2, 1), (1, 1))  # columns of the legend, and the gap between them
CALLS = 2  # kinds of communication that are named
_NAMED = 5  # rows that an error names
WIDE = 100  # room for the columns a narrow terminal goes without
#: Without colour, neighbours on the bar still differ.
_FILLS = "█▓▒░"
_HATCH = "╱"
_WORTH_SHOWING = 0.01  # of GPU time in communication
_SEEN = 0.001  # of GPU time in a phase


def _style(out: _Out, at: int, share: groups.Share) -> tuple[str, str]:
    """Choose how a group is drawn: by colour, or by pattern where there is none."""
    colour = groups.colour_of(share.key)
    if share.key == "unattributed":
        return _HATCH, colour
    return ("█", colour) if out.colour else (_FILLS[at % len(_FILLS)], "")


def step_bar(out: _Out, report: Report) -> None:
    shares = groups.group_shares(report)
    if not shares:
        return
    parts = [f"  {f.ms(report.summary.gpu_ms_per_step)}{facts.per_step(report)}"]
    parts += [f"{s.title} {f.pct(s.frac)}" for s in groups.phase_shares(report) if s.frac >= _SEEN]
    out.line(out.text("Where the GPU time goes", "bold") + out.text(" · ".join(parts), "dim"))
    styles = {share.key: _style(out, at, share) for at, share in enumerate(shares)}
    cells = []
    for cell in range(out.width):
        middle = (cell + 0.5) / out.width
        cells.append(next((s for s in reversed(shares) if s.start_frac <= middle), shares[0]))
    if shares[-1].key == "unattributed":
        cells[-1] = shares[-1]  # never hidden, however little
    bar = Text()
    for share in cells:
        bar += out.text(*styles[share.key])
    out.print(bar)
    columns, gap = next((fit for fit in _LEGENDS if _legend_width(shares, *fit) <= out.width), _LEGENDS[-1])
    table = out.table([("", "l"), ("", "l"), ("", "r"), ("", "r")] * columns, gap=gap)
    lines = -(-len(shares) // columns)
    for at in range(lines):
        row: list[Text] = []
        for share in shares[at::lines]:
            row += [
                out.text(
                    "■" if styles[share.key][0] == "█" and out.colour else styles[share.key][0],
                    styles[share.key][1],
                ),
                out.text(share.title),
                out.text(f.pct(share.frac), "bold"),
                out.text(f.ms(share.ms_per_step), "dim"),
            ]
        table.add_row(*row)
    out.print(table)
    for line in groups.outside_lines(report):
        out.line(line)
    out.line()


def _legend_width(shares: Sequence[groups.Share], columns: int, gap: int) -> int:
    """How wide the legend is in so many columns: a unit that is cut off is a wrong number."""
    lines = -(-len(shares) // columns)
    width = 0
    for at in range(0, len(shares), lines):
        part = shares[at : at + lines]
        width += 1 + max(len(one.title) for one in part) + max(len(f.pct(one.frac)) for one in part)
        width += max(len(f.ms(one.ms_per_step)) for one in part) + 4 * gap
    return width


#: Columns that a table goes without first.
_SPARED = ("ms lost to", "tiles/waves", "id")


def gemm_rows(out: _Out, report: Report) -> None:
    classes = by_load(report.gemms)
    rows = classes[:TOP]
    if not rows:
        out.line("No GEMM was recognised in this trace.")
        out.line()
        return
    peaks = any(row.peak_frac is not None for row in rows)
    wide = out.width >= WIDE
    roomy = out.width >= WIDEST
    heads = [("id", "l")] if roomy else []
    per = f"ms{slash_step(report.summary.steps_marked)}"
    heads += [("GEMM", "l"), ("M × N × K", "l"), (per, "r"), ("% GPU", "r")]
    heads += [("TFLOP/s", "r")] if wide or not peaks else []
    heads += [("% peak", "r")] if peaks else []
    heads += [("tiles/waves", "r")] if wide else []
    heads += [("ms lost to", "l")] if roomy else []
    heads += [("finding", "l")] if out.width >= ROOMY and any(row.findings for row in rows) else []
    cells = [_cells(row, per) for row in rows]
    limits = {
        "id": 5,
        "GEMM": 24 if wide else 22 if out.width >= ROOMY else 16,
        "M × N × K": 30 if wide else 23 if out.width >= ROOMY else 19,
    }
    for spared in range(len(_SPARED) + 1):  # what a long name leaves no room for
        kept = [head for head in heads if head[0] not in _SPARED[:spared]]
        table = out.table(kept)
        for cell in cells:
            table.add_row(*(out.text(cell[title], limit=limits.get(title, 18)) for title, _ in kept))
        if out.holds(table):
            break
    out.print(table)
    more = len(classes) - TOP
    rest = f"{more} more row{'s' if more > 1 else ''} in the report." if more > 0 else ""
    if report.gemm_time is not None and report.gemm_time.total:
        out.line(
            out.text(losses.time_line(report.gemm_time, per=facts.per_step(report)))
            + out.text(f" {rest}" if rest else "", "dim")
        )
    elif rest:
        out.line(rest, "dim")
    out.line()


def _cells(row: GemmRow, per: str) -> dict[str, str]:
    return {
        "id": row.id,
        "GEMM": _name(row),
        "M × N × K": facts.shape(row),
        per: f.sig(row.time_ms_per_step),
        "% GPU": f.pct(row.frac),
        "TFLOP/s": f.DASH if row.tflops is None else f"{facts.bounded(row)}{f.sig(row.tflops)}",
        "% peak": facts.of_peak(row),
        "tiles/waves": _tiles(row),
        "ms lost to": losses.main_cause(row) or f.DASH,
        "finding": _first_of(row.findings),
    }


def _first_of(findings: Sequence[str]) -> str:
    more = f" +{len(findings) - 1}" if len(findings) > 1 else ""
    return f"{findings[0]}{more}" if findings else ""


def render_derivations(report: Report, ids: Sequence[str], *, console: Console) -> None:
    """Print how the figures of the GEMM rows ``ids`` come about, as lines to redo by hand.

    Raises ``UsageError`` naming the largest rows when an id is none of the report's.
    """
    rows = {row.id: row for row in report.gemms}
    for wanted in ids:
        if wanted not in rows:
            known = [f"{row.id} ({_name(row)} {facts.shape(row)})" for row in report.gemms[:_NAMED]]
            largest = f"the largest are {', '.join(known)}" if known else "no GEMM was recognised"
            raise UsageError(clean(f"--gemm {wanted}: no such row; {largest}", limit=400))
    out = _Out(console)
    if report.trace.generated:
        out.line(f" {facts.GENERATED} ", "reverse bold")
    out.line(f"{report.trace.path}, {report.gpu.title}; times are of one call, the mean of the row", "dim")
    for wanted in dict.fromkeys(ids):
        found = losses.derivation(rows[wanted], report)
        out.line()
        out.line(found.title, "bold")
        table = out.table([("", "l"), ("", "fold")])
        for name, formula, why in found.lines:
            line = out.text(formula)
            if why:
                line.append_text(out.text(f"  {why}", "dim"))
            table.add_row(out.text(name, "bold" if name in ("sum", "useful") else ""), line)
        out.print(table)


def communication(out: _Out, report: Report) -> None:
    """Say how much there is, how much is exposed, and in what, where it takes enough time to matter."""
    if facts.communication_frac(report) < _WORTH_SHOWING:
        return
    kinds: dict[str, list[CommunicationRow]] = {}
    for row in report.communication:
        kinds.setdefault(row.kind, []).append(row)
    times = {name: sum(row.time_ms_per_step for row in rows) for name, rows in kinds.items()}
    named = sorted((name for name in times if times[name] > 0), key=lambda name: -times[name])[:CALLS]
    most = ", ".join(f"{clean(name, limit=60)} {f.ms(times[name])}" for name in named)
    line = f"{facts.communication_line(report)}. Most: {most}."
    out.line(out.text("Communication  ", "bold") + out.text(line, limit=400))
    for said in slow_calls(report):
        out.line(out.text(said, limit=800))
    out.line()


def _name(row: GemmRow) -> str:
    """Name a row by component and role, or by phase where there is no role or it is run again."""
    short = {"forward": " fwd", "backward": " bwd", "recompute": " rec"}
    return row.component + (
        f" {facts.role(row)}" if row.role and row.phase != "recompute" else short.get(row.phase, "")
    )


def _tiles(row: GemmRow) -> str:
    if row.slices is None:
        return f.DASH
    return f"{row.slices}/{row.waves}" if row.waves is not None else str(row.slices)


def coverage(out: _Out, report: Report) -> None:
    """What is not known, and what would show it."""
    for line in facts.coverage_lines(report):
        out.line(clean(line, limit=200), "" if report.coverage.unattributed else "dim")
    for lack in facts.lacks_worth_a_line(report):
        out.line(f"{clean(lack.title, limit=60)}: {clean(lack.remedy, limit=120)}", "dim")
    for line in facts.lent_lines(report):
        out.line(clean(line, limit=240), "dim")
