"""A comparison in words: what changed, what moved, and what became of the findings before."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.comparison.moves import with_moves
from tracelens.comparison.spelling import VARIATION, arrow_ms, place_name, signed_pct
from tracelens.render.compare_figures import Found, signed
from tracelens.render.compare_words import against, told_above
from tracelens.results.comparison import (
    Comparison,
    ComponentChange,
    FindingOutcome,
    GemmChange,
    GemmSide,
    GemmState,
)

UNCHANGED = "Model dimensions, GEMM shapes and collectives are the same, as far as both traces show them."
OUTCOMES = {
    "acted_on": "acted on",
    "changed_otherwise": "changed otherwise",
    "still_there": "still there",
    "gone": "gone",
    "cannot_tell": "cannot tell",
}


def identity(result: Comparison) -> str:
    """The two files and what they ran on, in one line."""
    a, b = result.before, result.after
    files = f"{a.path[:60]} → {b.path[:60]}"
    gpu = a.gpu_title if a.gpu_title == b.gpu_title else f"{a.gpu_title} → {b.gpu_title}"
    dtype = a.dtype if a.dtype == b.dtype else f"{a.dtype or f.UNKNOWN} → {b.dtype or f.UNKNOWN}"
    return " · ".join(part for part in (files, gpu, dtype) if part)


def changes_lines(result: Comparison) -> list[str]:
    """What changed, a line each; says so where nothing did."""

    def of(state: GemmState) -> list[GemmChange]:
        return [one for one in result.gemms if one.state == state]

    found = {
        "{} of another shape": of("shape_changed"),
        "{} whose shape is not known on both sides": [one for one in of("shape_unknown") if one.differs],
        "{} in another type": [one for one in of("same_shape") if "dtype" in one.differs],
        "{} only before": of("only_before"),
        "{} only after": of("only_after"),
        "GEMMs replaced by other GEMMs": of("regrouped"),
        "{} of the same shape, now in another component": of("moved"),
    }
    lines = [change.said for change in result.changes]
    for said, rows in found.items():
        if rows:
            lines.append(f"{said.format(f.plural(len(rows), 'GEMM'))}: {_places(rows)}")
    return lines or [UNCHANGED]


def movers(result: Found) -> list[ComponentChange]:
    """Components whose time changed by more than noise, and moves, the largest first."""
    return [row for row in component_rows(result) if row.beyond_noise or is_move(result, row)]


def component_rows(result: Found) -> list[ComponentChange]:
    """Every component and phase, a move in place of its rows."""
    return with_moves(result.components, result.moves)


def is_move(result: Found, row: ComponentChange) -> bool:
    """Is the row the net of several, whose work is counted elsewhere now?"""
    return any(row is move.net for move in result.moves)


def row_name(result: Found, row: ComponentChange) -> str:
    """Component and phase; a move says that it is one."""
    return f"{'moved: ' if is_move(result, row) else ''}{row.component} {row.phase}"


def moved_gemms(result: Comparison) -> list[GemmChange]:
    """GEMMs worth a line: another shape, or a time that changed by more than noise."""
    if result.not_compared:
        both = [one for one in result.gemms if one.before and one.after]
        return [one for one in both if one.before and one.before.peak_frac is not None]
    return [one for one in result.gemms if one.beyond_noise]


def untold(result: Found) -> list[ComponentChange]:
    """Components whose difference is large enough to matter, without a way to tell it from noise."""
    return [row for row in component_rows(result) if row.beyond_noise is None and not is_move(result, row)]


def outcome_lines(result: Comparison) -> list[str]:
    """The findings of before, a line each."""
    generated = result.before.generated or result.after.generated
    above = told_above(result.findings)
    return [
        outcome_line(one, generated=generated, marked=result.steps_marked, above=one in above)
        for one in result.findings
    ]


def outcome_line(
    one: FindingOutcome, *, generated: bool = False, marked: bool = True, above: bool = False
) -> str:
    """A finding of before, in a line: what became of it, and what was measured unless told ``above``."""
    parts = [f"{one.rule} {one.title}: {OUTCOMES.get(one.state, one.state)}{', see above' * above}"]
    if one.measured_ms is not None and not above:
        parts.append(against(one, generated=generated, marked=marked))
    if one.why:
        parts.append(one.why)
    return "; ".join(parts)


def gemm_name(one: GemmChange) -> str:
    """Component and role, or phase where no role is known."""
    return place_name(one.component, one.role, one.phase)


def shape(side: GemmSide | None) -> str:
    """The size on one side, or a dash."""
    if side is None:
        return f.DASH
    return f.mnk(side.m, side.n, side.k, side.batch) or side.shape_note or f.UNKNOWN


def shape_change(one: GemmChange) -> str:
    """What of the GEMM changed, or its size where nothing did."""
    if one.state == "only_before":
        return f"{shape(one.before)}, only before"
    if one.state == "only_after":
        return f"{shape(one.after)}, only after"
    if one.state == "moved":
        return f"{shape(one.before)}, {moved_to(one)}"
    said = [part.replace("->", "→") for part in one.changed]
    return ", ".join(said) or shape(one.before)


def moved_to(one: GemmChange) -> str:
    """Where a GEMM that moved is counted after."""
    return ", ".join([f"moved: now {place_name(*one.moved_to)}", *one.changed])


def moved_lines(result: Found) -> list[str]:
    """Each move in a line with its net."""
    lines = []
    for move in result.moves:
        net = move.net
        times = arrow_ms(net.before_ms, net.after_ms)
        lines.append(
            f"{row_name(result, net)}, {times} {result.per_step}: net {net_difference(net)}; {net.why}"
        )
    return lines


def net_difference(row: ComponentChange) -> str:
    """The difference of a move, nothing where it rounds to no percent."""
    return "±0" if _rounds_to_none(row) else signed(row.diff_ms)


def drawn_ms(result: Found, row: ComponentChange) -> float:
    """The difference that a row's bar is drawn of."""
    return 0.0 if is_move(result, row) and _rounds_to_none(row) else row.diff_ms


def _rounds_to_none(row: ComponentChange) -> bool:
    return row.diff_frac is not None and abs(row.diff_frac) < 0.0005


def share(row: ComponentChange) -> str:
    """The change in percent, or that there is none because a side has no such kernels."""
    if row.diff_frac is not None:
        return signed_pct(row.diff_frac)
    return "new" if row.after_ms else "gone"


def nothing_moved(result: Comparison) -> str:
    """Why no component is named."""
    return (
        f"nothing changed by more than noise ({VARIATION})"
        if result.noise
        else "cannot be separated from noise"
    )


def peak_change(one: GemmChange) -> str:
    """The share of peak before and after, a dash where it is unknown, a bound where the work is one."""
    return " → ".join(
        f.DASH
        if side is None or side.peak_frac is None
        else f"{'≤ ' * side.peak_is_bound}{f.pct(side.peak_frac)}"
        for side in (one.before, one.after)
    )


def _places(rows: list[GemmChange]) -> str:
    """Where GEMMs are, and where those that moved are now."""
    to = {id(one): f" → {place_name(*one.moved_to)}" if one.state == "moved" else "" for one in rows}
    names = list(dict.fromkeys(gemm_name(one) + to[id(one)] for one in rows))
    return ", ".join(names) if len(names) <= 5 else f"{', '.join(names[:4])} and {len(names) - 4} more"
