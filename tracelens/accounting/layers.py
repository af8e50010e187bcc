"""Time by layer, component and phase, and the kernels of one layer in order."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tracelens.accounting.steps import StepTimes
from tracelens.accounting.words import figures as words
from tracelens.attribution import Attribution
from tracelens.results import LayerPass, LayerRow, Layers, LayerTimeline
from tracelens.trace import IntArray, Trace
from tracelens.trace.nesting import covered
from tracelens.words import COMPONENTS, PHASES, Phase

#: Events of one pass that are listed: more than any eager layer of a usual transformer has.
_MOST = 150
#: A pass is over when so many events in a row belong to other layers or to the other pass: parallel
#: streams interleave, and a step that accumulates gradients passes each layer several times.
_APART = 4
_PASSES: tuple[tuple[Literal["forward", "backward"], tuple[Phase, ...]], ...] = (
    ("forward", ("forward",)),
    ("backward", ("backward", "recompute")),
)


def layer_times(trace: Trace, attribution: Attribution, times: StepTimes) -> Layers:
    """GPU time per step by layer, component and phase, and one layer kernel by kernel."""
    inside = np.flatnonzero(attribution.step >= 0)
    layer = attribution.layer[inside].astype(np.int64)
    numbers = np.unique(layer[layer >= 0])
    column = np.where(layer >= 0, np.searchsorted(numbers, layer), len(numbers))
    cell = attribution.component[inside].astype(np.int64) * len(PHASES) + attribution.phase[inside]
    time = np.zeros((len(COMPONENTS) * len(PHASES), len(numbers) + 1), np.int64)
    np.add.at(time, (cell, column), trace.kernels.dur_ns[inside])
    per_step = time / 1e6 / max(1, times.count)
    rows = [
        LayerRow(COMPONENTS[at // len(PHASES)], PHASES[at % len(PHASES)], one[:-1], one[-1])
        for at in np.unique(cell).tolist()
        for one in [per_step[at].tolist()]
    ]
    if not len(numbers):
        return Layers([], rows, None, words.NO_LAYER)
    return Layers(numbers.tolist(), rows, _timeline(trace, attribution, times), None)


def _timeline(trace: Trace, attribution: Attribution, times: StepTimes) -> LayerTimeline | None:
    """The passes of a middle layer in the step of median length; None where that step has none."""
    at = int(np.argsort(times.end_ns - times.start_ns, kind="stable")[(times.count - 1) // 2])
    events = np.flatnonzero(attribution.step == times.positions[at])
    events = events[trace.kernels.device[events] == _busiest(trace, events)]
    events = events[np.argsort(trace.kernels.ts_ns[events], kind="stable")]
    chosen = _middle(attribution, events)
    if chosen is None:
        return None
    names: dict[int, int] = {}
    passes = []
    for phase, members in _PASSES:
        mine = _one_pass(trace, attribution, events, chosen, [PHASES.index(one) for one in members])
        if len(mine):
            passes.append(_pass(trace, attribution, events, mine, phase, int(times.start_ns[at]), names))
    return LayerTimeline(chosen, times.index[at], [trace.symbols[code] for code in names], passes)


def _busiest(trace: Trace, events: IntArray) -> int:
    """The device that most of these events' time is on."""
    devices, at = np.unique(trace.kernels.device[events], return_inverse=True)
    time = np.bincount(at, weights=trace.kernels.dur_ns[events], minlength=1)
    return int(devices[int(time.argmax())]) if len(devices) else -1


def _middle(attribution: Attribution, events: IntArray) -> int | None:
    """The middle one of the layers that pass both ways, or forward where nothing goes back."""
    layer, phase = attribution.layer[events], attribution.phase[events]
    known = layer >= 0
    forward = np.unique(layer[known & (phase == PHASES.index("forward"))])
    backward = np.unique(layer[known & (phase == PHASES.index("backward"))])
    both = np.intersect1d(forward, backward)
    found = both if len(both) else forward if len(forward) else np.unique(layer[known])
    return int(found[len(found) // 2]) if len(found) else None


def _one_pass(
    trace: Trace, attribution: Attribution, events: IntArray, layer: int, phases: list[int]
) -> IntArray:
    """The layer's events of one pass: the longest run of them that other layers do not break."""
    placed = events[attribution.layer[events] >= 0]
    wanted = (attribution.layer[placed] == layer) & np.isin(attribution.phase[placed], phases)
    at = np.flatnonzero(wanted)
    if not len(at):
        return at
    run = np.cumsum(np.append(0, np.diff(at) > _APART))
    time = np.bincount(run, weights=trace.kernels.dur_ns[placed[at]])
    found: IntArray = placed[at[run == int(time.argmax())]]
    return found


def _pass(
    trace: Trace,
    attribution: Attribution,
    events: IntArray,
    mine: IntArray,
    phase: Literal["forward", "backward"],
    step_ns: int,
    names: dict[int, int],
) -> LayerPass:
    kernels = trace.kernels
    ends = kernels.ts_ns + kernels.dur_ns
    begin, end = int(kernels.ts_ns[mine].min()), int(ends[mine].max())
    there = events[(kernels.ts_ns[events] >= begin) & (kernels.ts_ns[events] < end)]
    shown = there[:_MOST]
    if len(shown) < len(there):
        end = int(ends[shown].max())
    busy = covered(kernels.ts_ns[there], ends[there], np.array([begin]), np.array([end]))
    return LayerPass(
        phase=phase,
        begins_ms=(begin - step_ns) / 1e6,
        length_us=(end - begin) / 1e3,
        busy_frac=int(busy[0]) / max(1, end - begin),
        start_us=((kernels.ts_ns[shown] - begin) / 1e3).tolist(),
        duration_us=(kernels.dur_ns[shown] / 1e3).tolist(),
        component=[COMPONENTS[code] for code in attribution.component[shown].tolist()],
        name=[names.setdefault(code, len(names)) for code in kernels.name[shown].tolist()],
        stream=kernels.stream[shown].tolist(),
        layer=attribution.layer[shown].tolist(),
        left_out=len(there) - len(shown),
    )
