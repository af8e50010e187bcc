"""Steps on the GPU's clock, and what ran, idled or waited in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.accounting.whole_steps import NOTHING, not_whole
from tracelens.accounting.words import figures as words
from tracelens.attribution import Attribution
from tracelens.attribution.communication import exposed_within
from tracelens.errors import UsageError
from tracelens.numbers import integers
from tracelens.results import LeftOut, NotWhole, Step, StepTime, UnprofiledSteps
from tracelens.trace import BoolArray, IntArray, Links, Trace, look_up
from tracelens.trace.metadata import UnprofiledTimes
from tracelens.trace.nesting import covered

_QUEUED_NS = 1_000_000  # behind its launch, an event of an idle GPU begins within microseconds


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps that count, one window each, and what happened in them. Times in ns."""

    positions: list[int]  # in Links.steps
    index: list[int]  # the N of ProfilerStep#N
    start_ns: IntArray
    end_ns: IntArray
    busy_ns: IntArray  # some GPU event runs
    exposed_ns: IntArray  # communication runs and no compute kernel (attribution.communication)
    source: str
    marked: bool  # each is a ProfilerStep range, a training step that is, and whole
    lacks: list[NotWhole | None]  # of each; other than None only where no step is whole
    left_out: list[LeftOut]  # of the steps asked for, those that are in no figure

    @property
    def count(self) -> int:
        return len(self.positions)

    @property
    def cut(self) -> bool:
        """Is none of them whole?"""
        return bool(self.lacks) and None not in self.lacks

    def time(self) -> StepTime:
        return _spread((self.end_ns - self.start_ns) / 1e6)

    def rows(self) -> list[Step]:
        return [
            Step(index, int(start), (end - start) / 1e6, busy / max(1, end - start), lacks)
            for index, start, end, busy, lacks in zip(
                self.index,
                self.start_ns.tolist(),
                self.end_ns.tolist(),
                self.busy_ns.tolist(),
                self.lacks,
                strict=True,
            )
        ]


def step_times(
    trace: Trace, links: Links, attribution: Attribution, *, wanted: tuple[int, int] | None = None
) -> StepTimes:
    """Cut the time line into steps where the GPU can begin each one.

    The host runs ahead of the GPU, so the host's ProfilerStep says when work was queued, not when it
    ran. Step i begins when the host begins it or when the GPU is done with everything queued before,
    whichever is later; the last step, and one behind which numbers are missing, ends with its host range or
    its last kernel, whichever is later.
    Queued before the first step is what belongs to none and runs on a stream before any step's work does:
    a stream runs in the order of its launches; what of it is not in the file is seen by what waits for it.

    ``wanted`` keeps the steps whose ProfilerStep number is in [first, last]; what is no whole step
    (``not_whole``) is left out, unless nothing else is there.

    Raises:
        UsageError: none of the steps is wanted, or none of the wanted ones has GPU work.
    """
    cut = _marked(trace, links, attribution) if links.steps.marked else _whole_trace(trace, links)
    positions = _counted(links, cut.lacks, wanted)
    start, stop = cut.start_ns[positions], cut.stop_ns[positions]
    kernels = trace.kernels
    return StepTimes(
        positions,
        [links.steps.index[at] for at in positions],
        start,
        stop,
        covered(kernels.ts_ns, kernels.ts_ns + kernels.dur_ns, start, stop),
        exposed_within(trace, attribution, start, stop),
        cut.source,
        links.steps.marked and None in [cut.lacks[at] for at in positions],
        [cut.lacks[at] for at in positions],
        _left_out(links, cut.lacks, positions, wanted),
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    """The time line in steps, and why each that is not whole is none."""

    start_ns: IntArray
    stop_ns: IntArray
    source: str
    lacks: list[NotWhole | None]


def _whole_trace(trace: Trace, links: Links) -> _Cut:
    end = trace.kernels.ts_ns + trace.kernels.dur_ns
    stop = np.maximum(links.steps.end_ns, end.max(initial=0))
    return _Cut(links.steps.start_ns, stop, words.WHOLE_TRACE, [None])


def _marked(trace: Trace, links: Links, attribution: Attribution) -> _Cut:
    """Steps by ProfilerStep ranges, where the GPU begins each."""
    steps, kernels = links.steps, trace.kernels
    end = kernels.ts_ns + kernels.dur_ns
    outside = attribution.step < 0
    # what is in no step and began before a step was queued earlier
    queued = np.searchsorted(steps.start_ns, kernels.ts_ns, side="right") - 1
    owner = np.where(outside, queued, attribution.step)
    before = outside & _before_own(trace, outside)
    owner[before] = -1
    launched = look_up(links.ts_ns, links.kernel_node)
    own = ~(outside & (links.kernel_node >= 0) & (launched >= steps.end_ns[-1]))  # not of a step behind all
    done = np.full(len(steps.index) + 1, np.iinfo(np.int64).min)
    np.maximum.at(done, owner[own] + 1, end[own])  # done[i + 1]: end of step i's work; done[0]: before
    done[0] = max(int(done[0]), _not_recorded(trace, links))
    done = np.maximum.accumulate(done)
    start = np.maximum(steps.start_ns, done[:-1])
    last = steps.end_ns.copy()  # where the next number is not there, what was done until it was in no step
    np.maximum.at(last, attribution.step[~outside], end[~outside])
    next_ = np.where(np.diff(steps.index) == 1, start[1:], np.minimum(last[:-1], start[1:]))
    stop = np.maximum(np.append(next_, max(int(steps.end_ns[-1]), int(done[-1]))), start)
    unlinked = links.kernel_node < 0
    owned = np.isin(np.arange(len(steps.index)), owner[outside & unlinked])
    early = np.flatnonzero(before & unlinked)
    lacks = not_whole(trace, links, owned=owned, early=early[np.argsort(kernels.ts_ns[early])])
    return _Cut(start, stop, words.marked_steps(steps.by), lacks)


def _left_out(
    links: Links, lacks: list[NotWhole | None], positions: list[int], wanted: tuple[int, int] | None
) -> list[LeftOut]:
    """The steps asked for that are in no figure."""
    steps = links.steps
    return [
        LeftOut(
            steps.index[at], reason, int(steps.start_ns[at]), int(steps.end_ns[at] - steps.start_ns[at]) / 1e6
        )
        for at in _asked(links, wanted)
        if at not in positions and (reason := lacks[at]) is not None
    ]


def _asked(links: Links, wanted: tuple[int, int] | None) -> list[int]:
    """Positions of the steps whose number is in ``wanted``."""
    index = links.steps.index
    return [at for at in range(len(index)) if wanted is None or wanted[0] <= index[at] <= wanted[1]]


def _counted(links: Links, reasons: list[NotWhole | None], wanted: tuple[int, int] | None) -> list[int]:
    """Positions of the steps that count: the whole ones asked for; where none is, the cut ones."""
    steps = links.steps
    asked = _asked(links, wanted)
    if wanted is not None and not asked:
        there = f"{steps.index[0]} to {steps.index[-1]}" if steps.marked else "none is marked"
        raise UsageError(f"no step between {wanted[0]} and {wanted[1]} in this trace: steps {there}")
    whole = [at for at in asked if reasons[at] is None]
    cut = [at for at in asked if reasons[at] not in NOTHING]
    worked = [index for index, reason in zip(steps.index, reasons, strict=True) if reason not in NOTHING]
    if wanted is not None and not cut and worked:
        empty = integers([steps.index[at] for at in asked])
        raise UsageError(
            f"step {empty} has no GPU work in this trace; those with GPU work: {integers(worked)}"
        )
    return whole or cut or asked


def _before_own(trace: Trace, outside: BoolArray) -> BoolArray:
    """Which kernels begin before the first one of a step on their stream (on any, where theirs has none)."""
    kernels = trace.kernels
    if outside.all():
        return np.zeros(len(outside), bool)
    _, stream = np.unique(np.stack([kernels.device, kernels.stream]), axis=1, return_inverse=True)
    stream = stream.reshape(-1)
    own, never = ~outside, np.iinfo(np.int64).max
    first = np.full(int(stream.max()) + 1, never)
    np.minimum.at(first, stream[own], kernels.ts_ns[own])
    first[first == never] = first.min()
    return np.asarray(kernels.ts_ns < first[stream])


def _not_recorded(trace: Trace, links: Links) -> int:
    """When the GPU is done with what was queued before the recording began and is not in the file.

    The first event of a stream begins long after its launch (a copy: after its call, which can block until
    then), and nothing that was recorded runs meanwhile. The first call of all also starts CUDA.
    """
    kernels, launches, until = trace.kernels, trace.launches, np.iinfo(np.int64).min
    order = np.argsort(kernels.ts_ns, kind="stable")
    _, firsts = np.unique(np.stack([kernels.device, kernels.stream])[:, order], axis=1, return_index=True)
    firsts = order[firsts][links.kernel_launch[order[firsts]] >= 0]
    for event, row in zip(firsts.tolist(), links.kernel_launch[firsts].tolist(), strict=True):
        called, begins = launches.ts_ns[row], kernels.ts_ns[event]
        since = called if "Memcpy" in trace.symbols[launches.name[row]] else called + launches.dur_ns[row]
        runs = (kernels.ts_ns < begins) & (kernels.ts_ns + kernels.dur_ns > since)
        early = launches.ts_ns.min() < called < links.steps.end_ns[0]
        if early and begins - since > _QUEUED_NS and not runs.any():
            until = max(until, int(begins))
    return int(until)


def _spread(ms: npt.NDArray[np.float64]) -> StepTime:
    return StepTime(float(np.median(ms)), float(ms.min()), float(ms.max()), len(ms))


def unprofiled_steps(
    found: UnprofiledTimes, times: StepTimes, *, mfu_frac: float | None = None
) -> UnprofiledSteps:
    """The steps timed without the profiler beside the profiled ones; ``mfu_frac`` is of the latter.

    Both are times from the end of one step's GPU work to the end of the next one's (see ``step_times``;
    the capture records a CUDA event at each step's end), so they compare.
    """
    before, after = (
        _spread(np.array(ms, np.float64)) if ms else None for ms in (found.before_ms, found.after_ms)
    )
    everything = (*found.before_ms, *found.after_ms)
    if not everything:
        return UnprofiledSteps(why=found.why)
    median = float(np.median(everything))
    why = found.why
    if not times.marked:
        why = words.joined(why, words.NO_TRAINING_STEP)
    profiled_ms = (times.end_ns - times.start_ns) / 1e6
    compared = times.marked and float(np.median(profiled_ms)) > 0
    return UnprofiledSteps(
        before_ms=before,
        after_ms=after,
        median_ms=median,
        clock=found.clock,
        profiler_frac=1 - median / float(np.median(profiled_ms)) if compared else None,
        drift_frac=after.median / before.median - 1 if before and after else None,
        mfu_frac=mfu_frac * float(profiled_ms.mean()) / median if compared and mfu_frac is not None else None,
        why=why,
        times_ms=list(everything),
    )


#: Counter -> the field of ``StepPace``; its unit is the same.
_FIELDS = {"SM Clock (MHz)": "sm_mhz", "Power (W)": "power_w"}


def sampled(trace: Trace, times: StepTimes) -> dict[int, Mapping[str, float]]:
    """Position of a step -> field of ``StepPace`` -> median of the working device's samples within it.

    A field without a sample is left out.
    """
    found: dict[int, Mapping[str, float]] = {}
    counters = trace.counters
    if not len(counters) or not len(trace.kernels):
        return found
    devices, many = np.unique(trace.kernels.device, return_counts=True)
    mine = (counters.device == devices[many.argmax()]) & np.isfinite(counters.value) & (counters.value > 0)
    at_code = {code: field for code in np.unique(counters.name).tolist()
               if (field := _FIELDS.get(trace.symbols[code]))}  # fmt: skip
    for position, start, end in zip(
        times.positions, times.start_ns.tolist(), times.end_ns.tolist(), strict=True
    ):
        inside = mine & (counters.ts_ns >= start) & (counters.ts_ns < end)
        values = {field: counters.value[inside & (counters.name == code)] for code, field in at_code.items()}
        found[position] = {field: float(np.median(of)) for field, of in values.items() if len(of)}
    return found
