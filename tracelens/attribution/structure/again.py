"""What runs again is what it was: a recomputed piece is a stretch of the forward, and has its labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import Units


def label_repeats(units: Units, runs: Iterable[Run]) -> None:
    """Name the units of recomputed runs as those of the forward's stretches that are equal unit by unit.

    Equal layers are one stretch several times: what all of them say holds, without a layer's number. A run
    that is no such stretch keeps what its own order says.
    """
    runs = list(runs)
    forwards = [(run, *_codes(units, run)) for run in runs if run.phase == "forward" and run.labels]
    for run in runs:
        if run.phase != "recompute":
            continue
        places, codes = _codes(units, run)
        found = [
            [forward.labels.get(at) for at in there[start : start + len(codes)].tolist()]
            for forward, there, all_codes in forwards
            for start in _starts(all_codes, codes)
        ]
        for at, labels in zip(places.tolist(), zip(*found, strict=True), strict=bool(found)):
            alike = {label and replace(label, layer=None) for label in labels}
            if len(alike) == 1 and (label := alike.pop()) is not None:
                run.labels[at] = label


def _codes(units: Units, run: Run) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Positions of the units that launch something, and the kind of each."""
    rows = np.array(run.units)
    places = np.flatnonzero(units.kernel[rows] >= 0)
    return places, units.kind[rows[places]]


def _starts(whole: npt.NDArray[np.int32], part: npt.NDArray[np.int32]) -> list[int]:
    """Where ``part`` begins in ``whole``."""
    if not len(part) or len(part) > len(whole):
        return []
    starts = np.flatnonzero(whole[: len(whole) - len(part) + 1] == part[0])
    return [at for at in starts.tolist() if np.array_equal(whole[at : at + len(part)], part)]
