"""Colours and lines of words that every standing picture shares; a test holds the colours to the page's."""

from __future__ import annotations

from tracelens.render import facts
from tracelens.render.groups import GROUPS
from tracelens.render.text import clean
from tracelens.results import Report

PHASES = {
    "forward": "#55687c",
    "backward": "#8fa2b6",
    "recompute": "#a8432f",
    "optimizer": "#8257b0",
    "other": "#bcc4cd",
}
CAUSES = {
    "total": "#99a2ac",
    "useful": "#2a7f4f",
    "overlap": "#2d8f9e",
    "clock": "#7a6a55",
    "alignment": "#dba92f",
    "wave": "#8257b0",
    "tile": "#bd4a26",
    "memory": "#3d6fb6",
    "other": "#99a2ac",
    "ceiling": "#bcc4cd",
    "helpers": "#bcc4cd",
    "small": "#bcc4cd",
}
LAYER = "#e6e9ee"
MARK, BAD, GOOD, ACCENT = "#5b8fd6", "#b3261e", "#1d6b3c", "#0b5cbd"
_COLOURS: dict[str, str | None] = {
    **{f"g-{group.key}": group.colour for group in GROUPS},
    **{f"p-{phase}": colour for phase, colour in PHASES.items()},
    **{f"f-{cause}": colour for cause, colour in CAUSES.items()},
    "l-layer": LAYER,
    "g-unattributed": None,
}


def colour_of(key: str) -> str | None:
    """The colour of a class of the page; None for what is not known, which is drawn with a dashed border."""
    return _COLOURS.get(key)


def notes(report: Report, said: str) -> list[str]:
    """What is drawn, and of what: a picture travels without the report."""
    of = [clean(report.trace.path, limit=50), report.gpu.title, facts.steps_text(report)]
    return [said, " · ".join(part for part in of if part)]


def warning(report: Report) -> str:
    """What has to stand on every picture of this report, or nothing."""
    return facts.GENERATED if report.trace.generated else ""
