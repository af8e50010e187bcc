"""Runs of a job over time at a terminal."""

from __future__ import annotations

from rich.console import Console

from tracelens import numbers as f
from tracelens.comparison.spelling import arrow_ms
from tracelens.job.history import LEAST_RUNS, History, Moved
from tracelens.render.console import Out
from tracelens.words import GENERATED

_RUNS, _TRENDS = 20, 6
_SHOWN = {
    "step": "step", "computing": "comp.", "communication": "comm.", "waiting": "wait", "input": "input",
    "idle": "idle", "late": "late",
}  # fmt: skip


def verdict(found: History) -> str:
    """What the last run's step did against the earlier ones."""
    last = found.runs[-1]
    if found.earlier < LEAST_RUNS:
        runs = f"{found.earlier} earlier run{'' if found.earlier == 1 else 's'}"
        return f"{last.run}: {runs} of this job; {LEAST_RUNS} show how much runs differ."
    step = next((one for one in found.moved if one.figure == "step"), None)
    if step is None:
        return f"{last.run}: its step is as in {found.earlier} earlier runs, {f.ms(last.figures['step'])}."
    return f"{last.run}: {_said(step)}."


def _said(one: Moved) -> str:
    word = "slower" if one.ms > one.usual_ms else "faster"
    share = f" ({f.pct(abs(one.ms / one.usual_ms - 1))})" if one.usual_ms else ""
    return (
        f"{one.figure} {word} by {f.ms(abs(one.ms - one.usual_ms))}{share}: {f.ms(one.ms)}, "
        f"median of {one.runs} earlier runs {f.ms(one.usual_ms)}, noise {f.ms(one.noise_ms)}"
    )


def render_history(found: History, *, console: Console) -> None:
    """Print the last runs, and what moved in the last one."""
    out = Out(console)
    out.line(verdict(found), "bold")
    out.line(f"  {found.runs[-1].job}", "dim")
    for one in found.moved:
        if one.figure != "step":
            out.line(f"  {_said(one)}")
    for trend in found.trends[:_TRENDS]:
        word = "rises" if trend.ms_per_run > 0 else "falls"
        out.line(
            f"  {trend.figure} {word} over {trend.runs} runs by {f.ms(abs(trend.ms_per_run))} a run: "
            f"{arrow_ms(trend.first_ms, trend.last_ms)}"
        )
    out.line()
    shown = found.runs[-_RUNS:]
    rows = []
    for run in shown:
        other = "" if run.job == found.runs[-1].job else " (another job)"
        other = f" ({GENERATED})" if other and GENERATED in run.job else other
        cells = [f.sig(run.figures[name]) if name in run.figures else f.DASH for name in _SHOWN]
        rows.append([out.text(f"  {run.run}{other}"), *map(out.text, cells)])
    out.rows([("", "l"), *((name, "r") for name in _SHOWN.values())], rows)
    more = len(found.runs) - len(shown)
    before = f"after {more} older runs; " if more else ""
    out.line(
        f"  {before}ms per step, median rank; comm. includes wait; late: wait for the latest rank", "dim"
    )
