"""What was measured of a suggestion, in words: the same on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from tracelens import numbers as f
from tracelens.render.console import Out
from tracelens.render.verified_words import how, said
from tracelens.results import Estimate, MeasuredCall, MeasuredWhole, Report, Verification, Verified

#: Calls that are shown; the JSON has all of them.
CALLS = 8
_WHAT = {"layer": "one layer", "logits": "logits and loss", "step": "small training step"}
_WIDE = 100


def amount(saving: Estimate) -> str:
    """A saving, with its range where there is one; slower is said as such."""
    if saving.mid is None:
        return f"at most {f.ms(saving.high)}" if saving.high is not None else "not known"
    text = f.ms(saving.mid) if saving.mid >= 0 else f"{f.ms(-saving.mid)} slower"
    if saving.low is None or saving.high is None:
        return text
    if saving.low >= 0:
        return f"{text} ({f.ms_range(saving.low, saving.high)})"
    if saving.high <= 0:
        return f"{text} ({f.ms_range(-saving.high, -saving.low)})"
    return f"{text} ({f.ms(-saving.low)} slower to {f.ms(saving.high)} faster)"


def share(saving: Estimate) -> str:
    """The same as shares of the step."""
    if saving.mid is None:
        return f.pct(saving.high) if saving.high is not None else "–"
    return f.pct(saving.mid) if saving.mid >= 0 else f"−{f.pct(-saving.mid)}"


def claim(one: Verified) -> str:
    """One line: what was measured beside what was predicted, or why nothing was."""
    if one.state != "measured":
        return f"Not measured: {said(one.why)}"
    measured = f"Measured {amount(one.saving_ms)}, predicted {amount(one.predicted_ms)}"
    return f"{measured}; {judged(one)}" if judged(one) else measured


def lines(report: Report) -> list[str]:
    """What was measured of the report's findings and picks, and where; nothing where nothing was."""
    if report.verification is None:
        return []
    found = [(finding.rule, finding.verified) for finding in report.findings if finding.verified is not None]
    claims = [f"{rule}: {claim(one)}" for rule, one in found]
    picks = report.shape_search.picks if report.shape_search is not None else []
    claims += [f"{pick.title}: {claim(pick.verified)}" for pick in picks if pick.verified is not None]
    return [*claims, *map(said, report.verification.notes), about(report.verification)]


def judged(one: Verified) -> str:
    """Where the measurement lies against the prediction."""
    if one.in_range is None:
        return ""
    where = "within its range" if one.in_range else "outside its range"
    return where if one.ratio is None or one.ratio <= 0 else f"{where}, {one.ratio:.2f} of it"


def whole_line(one: MeasuredWhole) -> str:
    """A layer, the logits or a step before and after."""
    name = _WHAT.get(one.what, one.what)
    if one.why:
        return f"{name}: not measured: {said(one.why)}"
    trace = f"; {f.ms(one.trace_ms)} in the trace" if one.trace_ms is not None else ""
    note = f"; {said(one.note)}" if one.note else ""
    faster = one.saving_ms.mid is not None and one.saving_ms.mid >= 0
    gain = f"{'saves ' if faster else ''}{amount(one.saving_ms)}"
    return (
        f"{name}: {f.ms(one.now_ms.mid)} → {f.ms(one.then_ms.mid)}, forward and backward"
        f"{' and optimizer' if one.what == 'step' else ''}: {gain}{trace}{note}"
    )


def call_cells(one: MeasuredCall) -> tuple[str, ...]:
    """Component, shapes, and the times of one call."""
    name = f"{one.component} {one.role}" if one.role else one.component
    times = (one.trace_us, one.now_us.mid, one.then_us.mid)
    trace, now, then = ("–" if time is None else f"{f.sig(time)} µs" for time in times)
    return name, one.shape_now, one.shape_then, trace, now, said(one.why) or then


def about(one: Verification) -> str:
    """Where and when it was measured."""
    noise = (
        f"; a layer against itself differs by {f.pct(one.noise_frac)}" if one.noise_frac is not None else ""
    )
    torch = one.software.get("torch")
    where = f"{one.measured} of {one.suggestions} suggestions measured on {one.device}, {one.date}"
    return f"{where}{f', torch {torch}' if torch else ''}{noise}"


def render_verification(
    found: Sequence[tuple[str, Verified]], run: Verification, *, console: Console
) -> None:
    """Print every suggestion with what was measured beside what was predicted."""
    out = Out(console)
    for note in run.notes:
        out.line(said(note), "bold yellow")
    out.line(about(run), "bold")
    out.line()
    wide = out.width >= _WIDE
    heads = [("suggestion", "fold"), ("predicted", "r"), ("measured", "r"), ("share", "r"), ("", "fold")]
    table = out.table(heads)
    for title, one in found:
        measured = one.state == "measured"
        slower = measured and one.saving_ms.mid is not None and one.saving_ms.mid < 0
        style = "bold red" if slower else "bold green" if measured else "dim"
        table.add_row(
            out.text(title, limit=160),
            out.text(amount(one.predicted_ms) if wide else _short(one.predicted_ms)),
            out.text(
                (amount(one.saving_ms) if wide else _short(one.saving_ms)) if measured else "not measured",
                style,
            ),
            out.text(share(one.saving_frac) if measured else ""),
            out.text(judged(one) if measured else said(one.why), limit=240),
        )
    out.print(table)
    for title, one in found:
        if one.state == "measured":
            _detail(out, title, one)


def _short(saving: Estimate) -> str:
    if saving.mid is None:
        return f"≤ {f.ms(saving.high)}" if saving.high is not None else "–"
    return f.ms(saving.mid) if saving.mid >= 0 else f"−{f.ms(-saving.mid)}"


def _detail(out: Out, title: str, one: Verified) -> None:
    out.line()
    out.line(title, "bold")
    out.line(how(one))
    for whole in one.wholes:
        out.line(f"  {whole_line(whole)}")
    if one.calls:
        sizes, times = [("now", "fold"), ("then", "fold")], [("trace", "r"), ("now", "r"), ("then", "r")]
        table = out.table([("call", "l"), *sizes, *times])
        for call in one.calls[:CALLS]:
            table.add_row(*(out.text(cell, limit=60) for cell in call_cells(call)))
        out.print(table)
        if len(one.calls) > CALLS:
            out.line(f"and {len(one.calls) - CALLS} more calls in the file", "dim")
        out.line(f"GEMMs and attention alone: {amount(one.products_ms)}", "dim")
    for note in one.not_covered:
        out.line(said(note), "dim")
