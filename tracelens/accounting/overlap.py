"""What ran beside the calls of the GEMM table and at what pace, and what that cost them.

See ``tracelens.gemm.overlap`` and ``tracelens.gemm.clock``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from tracelens.accounting.words import figures as words
from tracelens.attribution import Attribution, Calls
from tracelens.attribution.collectives import collective_named
from tracelens.gemm import AttentionShape, GemmShape, Shape
from tracelens.gemm.clock import StepPaces, step_paces, with_groups
from tracelens.gemm.overlap import UNDISTURBED, Paces, beside, paces
from tracelens.results import Beside, Clock, GemmRow, StepPace
from tracelens.sums import summed
from tracelens.trace import IntArray, Trace, distinct_rows
from tracelens.trace.nesting import covered
from tracelens.words import COMPONENTS

_COMMUNICATION = COMPONENTS.index("communication")
#: Of a row's time: with so little beside other streams its shape can be judged though that cost is not known.
_LITTLE = 0.10


@dataclass(frozen=True)
class Surroundings:
    """Columns over calls, ns."""

    communication_ns: IntArray  # beside a collective
    others_ns: IntArray  # beside other work only
    clock: StepPaces
    paces: Paces  # at the pace of the fastest step
    by_collective: dict[tuple[str, int | None], IntArray]  # (collective, its CTAs) -> beside it

    @property
    def beside_ns(self) -> IntArray:
        return self.communication_ns + self.others_ns


def surroundings(trace: Trace, attribution: Attribution, calls: Calls) -> Surroundings:
    """What ran beside every call, and what calls of the same shape and kernel take beside nothing."""
    kernels = trace.kernels
    begin, end = kernels.ts_ns, kernels.ts_ns + kernels.dur_ns
    communicates = attribution.component == _COMMUNICATION
    columns = np.zeros((2, len(kernels)), np.int64)
    for device in np.unique(kernels.device):
        here = kernels.device == device
        columns[:, here] = beside(begin[here], end[here], kernels.stream[here], communicates[here])
    told, others = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.int64)
    part = calls.kernel_call >= 0
    np.add.at(told, calls.kernel_call[part], columns[0, part])
    np.add.at(others, calls.kernel_call[part], columns[1, part])
    alike, total = _alike(trace, calls), told + others
    quiet = total <= UNDISTURBED * calls.dur_ns
    step = attribution.step[calls.main].astype(np.int64)
    clock = step_paces(calls.dur_ns, alike, step, quiet)
    rows, like = _groups(trace, calls)
    clock = with_groups(clock, calls.dur_ns, rows=rows, like=like, step=step, judged=quiet)
    at_pace = calls.dur_ns - np.rint(clock.lost_ns).astype(np.int64)
    found = paces(at_pace, np.where(quiet, 0, total), alike)
    return Surroundings(told, others, clock, found, _by_collective(trace, calls, communicates, told))


def _alike(trace: Trace, calls: Calls) -> IntArray:
    """A number for each shape with its kernel and launch; -1 where that does not say how much is computed."""
    numbers: dict[tuple[object, ...], int] = {}
    name, launch = trace.kernels.name[calls.main].tolist(), trace.kernels.launch[calls.main].tolist()
    keys = zip(calls.shape, name, launch, calls.op_name, strict=True)
    return np.array(
        [numbers.setdefault(key, len(numbers)) if does_the_same(key[0]) else -1 for key in keys], np.int64
    )


def _groups(trace: Trace, calls: Calls) -> tuple[IntArray, IntArray]:
    """Of calls that multiply groups, the rows of all, and a number for kernel and other sizes; else 0, -1."""
    rows, like = np.zeros(len(calls), np.int64), np.full(len(calls), -1, np.int64)
    numbers: dict[tuple[object, ...], int] = {}
    names = trace.kernels.name[calls.main].tolist()
    for at, (shape, name) in enumerate(zip(calls.shape, names, strict=True)):
        if isinstance(shape, GemmShape) and shape.grouped:
            sizes = {"m": shape.m, "n": shape.n, "k": shape.k}
            rows[at] = sizes.pop(shape.grouped)
            like[at] = numbers.setdefault((name, shape.groups, *sizes.items()), len(numbers))
    return rows, like


def does_the_same(shape: Shape | None) -> bool:
    """Do calls of one shape compute as much as each other? Not those of groups or of packed sequences."""
    if isinstance(shape, AttentionShape):
        return not shape.varlen
    return shape is not None and not shape.grouped


def _by_collective(
    trace: Trace, calls: Calls, communicates: npt.NDArray[np.bool_], beside_ns: IntArray
) -> dict[tuple[str, int | None], IntArray]:
    """How long each call's main kernel ran beside each collective."""
    kernels, disturbed = trace.kernels, np.flatnonzero(beside_ns)
    rows = np.flatnonzero(communicates)
    found: dict[tuple[str, int | None], list[IntArray]] = {}
    if not len(disturbed) or not len(rows):
        return {}
    kinds, which = distinct_rows(np.stack([kernels.name[rows], kernels.launch[rows]], axis=1))
    for at, (name, launch) in enumerate(kinds.tolist()):
        grid = trace.details.config(launch).grid
        ctas = prod(grid) if grid and all(isinstance(size, int) for size in grid) else None
        key = (str(collective_named(trace.symbols[name]) or "communication"), ctas)
        found.setdefault(key, []).append(rows[which == at])
    main = calls.main[disturbed]
    begin, end = kernels.ts_ns, kernels.ts_ns + kernels.dur_ns
    out: dict[tuple[str, int | None], IntArray] = {}
    for key, parts in found.items():
        events, out[key] = np.concatenate(parts), np.zeros(len(calls), np.int64)
        for device in np.unique(kernels.device[main]):
            here, there = kernels.device[main] == device, events[kernels.device[events] == device]
            spans = covered(begin[there], end[there], begin[main[here]], end[main[here]])
            out[key][disturbed[here]] = spans
    return out


def beside_of(
    around: Surroundings, at: IntArray, in_step: npt.NDArray[np.bool_], dur_ns: IntArray, *, steps: int
) -> Beside | None:
    """What ran beside the calls ``at`` of one row; None where nothing did."""
    total = around.beside_ns[at]
    slow = total > UNDISTURBED * dur_ns
    if not slow.any():
        return None
    times = {key: int(spans[at].sum()) for key, spans in around.by_collective.items()}
    names = summed((name, time) for (name, _), time in times.items() if time)
    longest = max(times, key=lambda key: times[key], default=None)
    alone = float(around.paces.alone[at[0]])
    excess = around.paces.excess[at]
    known = not np.isnan(excess).any()
    whole = max(0.0, float(excess.sum()))
    return Beside(
        communication_ms=int(around.communication_ns[at].sum()) / 1e6,
        others_ms=int(around.others_ns[at].sum()) / 1e6,
        collectives={name: names[name] / 1e6 for name in sorted(names, key=lambda one: -names[one])},
        ctas=longest[1] if longest is not None and times[longest] else None,
        disturbed_calls=int(slow.sum()),
        disturbed_us=float(np.median(dur_ns[slow])) / 1e3,
        alone_us=None if np.isnan(alone) else alone / 1e3,
        excess_ms=whole / 1e6 if known else None,
        excess_ms_per_step=max(0.0, float(excess[in_step].sum())) / 1e6 / steps if known else None,
    )


def clock_of(
    around: Surroundings,
    steps: Mapping[int, int],
    rows: Sequence[GemmRow],
    samples: Mapping[int, Mapping[str, float]],
) -> Clock | None:
    """The pace of each step, under its number, and its ``samples``; None where no two steps compare."""
    found = around.clock
    known = np.isfinite(found.pace)
    if known.sum() < 2:
        return None
    lost = sum(row.clock_ms_per_step for row in rows)
    whole, (least, most) = float(found.lost_ns.sum()), found.range_ns
    return Clock(
        steps=[
            StepPace(steps.get(step, step), pace, slow, **samples.get(step, {}))
            for step, pace, slow in zip(
                found.steps[known].tolist(),
                found.pace[known].tolist(),
                found.slow[known].tolist(),
                strict=True,
            )
        ],
        lost_ms_per_step=lost,
        least_ms_per_step=lost * least / whole if whole else 0.0,
        most_ms_per_step=lost * most / whole if whole else 0.0,
    )


def why_not_alone(row: GemmRow) -> dict[str, str]:
    """Why what ran beside the row's calls is not told from their shape, by part of the split."""
    found = row.beside
    if found is None or found.excess_ms is not None:
        return {}
    share = (found.communication_ms + found.others_ms) / row.time_ms if row.time_ms else 0.0
    why = words.ran_beside(found.disturbed_calls, row.calls, grouped=row.groups is not None)
    parts = ("overlap", "alignment", "wave", "tile") if share >= _LITTLE else ("overlap",)
    return dict.fromkeys(parts, why)
