"""A recording of a model judged against its truth, with names hidden and given."""

from __future__ import annotations

from pathlib import Path

from benchmarks.attribution_zoo import judge
from benchmarks.hub.recording import Recorded


def judged(folder: Path, recorded: Recorded, why: str, hidden: float, given: float) -> None:
    """At least so much is right with names hidden and given, and hardly anything wrong."""
    for names, least in (("none", hidden), ("frames", given)):
        score = judge(folder, recorded.trace(names))
        assert score.right >= least, (names, why, score.what)
        assert score.wrong <= 0.005, (names, why, score.what)
