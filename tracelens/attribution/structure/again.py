"""What runs again is what it was: a recomputed piece is a stretch of the forward, and has its labels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import Units
from tracelens.trace import CodeArray
from tracelens.words import COMPONENTS

_MOSTLY = 0.9  # of a piece is as it was: in place or not can depend on whether gradients are taken
_FEW = 4  # units prove nothing
_MOST_PAIRS = 5_000_000  # units compared at once


def label_repeats(units: Units, runs: Iterable[Run]) -> None:
    """Name the units of recomputed runs as those of the forward's stretches that are equal unit by unit.

    Equal layers are one stretch several times: what all of them say holds, without a layer's number. A run
    that is no such stretch keeps what its own order says.
    """
    runs = list(runs)
    forwards = [(run, *_codes(units, run)) for run in runs if run.phase == "forward" and run.labels]
    for run in runs:
        if run.phase != "recompute" or not len(run):
            continue
        places, codes = _codes(units, run)
        alike = [_alike(whole, codes) for _, _, whole in forwards]
        most = max((count for counts in alike for count in counts.values()), default=0)
        said: dict[int, set[Label | None]] = {}
        for (forward, there, whole), counts in zip(forwards, alike, strict=True):
            for start in (start for start, count in counts.items() if count == most):
                for at in _equal(units, whole[start : start + len(codes)], codes):
                    label = forward.labels.get(int(there[start + at]))
                    said.setdefault(at, set()).add(label and replace(label, layer=None))
        for at, labels in said.items():
            if len(labels) == 1 and (label := labels.pop()) is not None:
                run.labels[int(places[at])] = label
        _name_views(run, {*range(len(run))}.difference(places.tolist()))


def _name_views(run: Run, views: set[int]) -> None:
    """Views, which a forward without gradients has none of, are of the part around them, or of the block:
    their gradients are copies."""
    for start, stop in pairwise(sorted(run.labels)):
        before, behind = run.labels[start].component, run.labels[stop].component
        block = f"{before.partition('.')[0]}."
        part = before if before == behind else f"{block}other"
        if behind.startswith(block) and part in COMPONENTS:
            run.labels.update({at: Label(part) for at in range(start + 1, stop) if at in views})


def _codes(units: Units, run: Run) -> tuple[npt.NDArray[np.int64], CodeArray]:
    """Positions of the units that launch something, and the kind of each."""
    rows = np.array(run.units)
    places = np.flatnonzero(units.kernel[rows] >= 0)
    return places, units.kind[rows[places]]


def _equal(units: Units, was: CodeArray, now: CodeArray) -> list[int]:
    """Places of the units that are as they were; the last can be a part of that."""
    places: list[int] = np.flatnonzero(was == now).tolist()
    last = len(now) - 1
    whole, part = (units.kinds[int(codes[last])] for codes in (was, now))
    return places if last in places or whole.name != part.name else [*places, last]


def _alike(whole: CodeArray, part: CodeArray) -> dict[int, int]:
    """Where in ``whole`` a stretch mostly equal to ``part`` begins -> how many of its units are equal."""
    if not 0 < len(part) <= len(whole):
        return {}
    starts = np.arange(len(whole) - len(part) + 1)
    if len(starts) * len(part) > _MOST_PAIRS:
        starts = starts[whole[: len(starts)] == part[0]]
        starts = starts[: _MOST_PAIRS // len(part)]
    windows = np.lib.stride_tricks.sliding_window_view(whole, len(part))[starts]
    equal = np.count_nonzero(windows == part, axis=1)
    # a checkpoint stops as soon as it has what the backward asks for: inside its last unit
    stopped = (windows[:, :-1] == part[:-1]).all(axis=1) & (len(part) > _FEW)
    good = (equal >= _MOSTLY * len(part)) | stopped
    return dict(zip(starts[good].tolist(), equal[good].tolist(), strict=True))
