"""What is missing, how long it takes and what it will write: one line per stage, in order of value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.gpu.stage import Setting, Stage
from benchmarks.gpu.store import Folder, State


@dataclass(frozen=True, slots=True)
class Line:
    stage: Stage
    state: State
    items: int
    seconds: float  # of what is missing, set-up included; 0 when nothing is


def make_plan(stages: Iterable[Stage], folder: Folder, setting: Setting) -> list[Line]:
    lines = []
    for stage in stages:
        state = folder.look(stage)
        items = stage.items(setting)
        todo = [] if state.current else [item for item in items if item.key not in state.done]
        seconds = stage.setup_s + sum(item.seconds for item in todo) if todo else 0.0
        lines.append(Line(stage, state, len(items), seconds))
    return lines


def pack(lines: Sequence[Line], seconds: float) -> list[Line]:
    """The lines to begin with ``seconds`` at hand: in order of value, each that fits whole; the first that
    does not gets what is left at the end, for it goes on at the next start. A stage whose result was
    refused comes after all others: its data are there, and a person may yet accept them.
    """
    chosen, cut = [], None
    for line in sorted(lines, key=lambda line: line.state.state == "refused"):
        if line.state.current:
            continue
        if line.seconds <= seconds:  # nothing is left where a kill fell between the last item and the result
            chosen.append(line)
            seconds -= line.seconds
        elif cut is None:
            cut = line
    return [*chosen, cut] if cut is not None and seconds > cut.stage.setup_s else chosen


def as_text(lines: Sequence[Line], gpu: str) -> str:
    """The table of ``--plan``."""
    width = max((len(line.stage.name) for line in lines), default=5)
    rows = [f"{gpu}: {'stage':<{width}}  {'state':<8} {'items':>6} {'minutes':>8} {'MB':>5}  writes"]
    indent = " " * (len(gpu) + 2)
    for line in lines:
        stage = line.stage
        rows.append(
            f"{indent}{stage.name:<{width}}  {line.state.state:<8} {line.items:>6} {line.seconds / 60:>8.1f}"
            f" {stage.cap_mb:>5g}  {stage.writes}"
        )
        if line.state.state not in ("missing", "current"):
            rows.append(f"{indent}{'':<{width}}  ({line.state.why})")
    missing = sum(line.seconds for line in lines)
    count = sum(line.state.current for line in lines)
    rows.append(
        f"{count} of {len(lines)} stages are current; the rest takes about {missing / 60:.1f} minutes"
    )
    return "\n".join(rows)
