"""The runs of a recording that the inference reads, equal ones once, and what all its stages ask of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from tracelens.attribution.replayed import replayed_directions
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.graphs import captured, graph_launch, pieces
from tracelens.attribution.structure.local import without_mixers
from tracelens.attribution.structure.passes import Weight, passes
from tracelens.attribution.structure.runs import Core, Excerpt, Run, split_runs
from tracelens.attribution.structure.units import Units, find_units, tensors_of
from tracelens.gemm import KernelNames
from tracelens.trace import CodeArray, Links, Trace, look_up


@dataclass(frozen=True)
class Recorded:
    """A trace, its units, and the runs that they make in order."""

    trace: Trace
    links: Links
    names: KernelNames
    units: Units
    phase: list[str]  # per unit
    runs: list[Run]
    twins: list[Run]  # per run the one that is read for it: of equal ones the first

    @cached_property
    def distinct(self) -> list[Run]:
        """The runs that are read."""
        return list({id(run): run for run in self.twins}.values())

    @cached_property
    def rests(self) -> list[Excerpt]:
        """What forwards leave beside layers that take the place of attention, recomputed ones too."""
        return [without_mixers(run) for run in self.distinct if run.phase in ("forward", "recompute")]

    @property
    def ahead(self) -> list[Run]:
        """The runs of ``rests``."""
        return [rest.run for rest in self.rests]

    @cached_property
    def read(self) -> list[Run]:
        """Forwards, and what runs in CUDA graphs."""
        return [*self.ahead, *(run for run in self.distinct if run.phase == "graph")]

    @property
    def with_forward(self) -> list[tuple[Run, Run]]:
        """Each backward run with the forward it belongs to: the last before it, else the first there is."""
        out = []
        forwards = [run for run in self.twins if run.phase == "forward" and run.cores]
        forwards = [run for run in forwards if run.trained] or forwards
        known = {id(run) for run in forwards}
        last: Run | None = None
        for run in self.twins:
            if id(run) in known:
                last = run
            elif run.phase == "backward" and forwards:
                out.append((run, last or forwards[0]))
        return out

    @property
    def captured(self) -> list[tuple[Run, Run]]:
        """Each graph that goes back with the one that goes ahead of it."""
        return captured(self.twins)

    def layouts(self, run: Run) -> tuple[dict[int, str | None], dict[int, object], dict[int, int]]:
        """Per position of a product the layout that its kernel's name states, a key of that kernel, and its
        time in nanoseconds."""
        layouts: dict[int, str | None] = {}
        keys: dict[int, object] = {}
        busy: dict[int, int] = {}
        products = run.products()
        mine = [run.units[at] for at in products]
        stated: dict[int, int] = {}  # per unit its kernel that multiplies: a sum behind it can take longer
        for kernel in np.flatnonzero(np.isin(self.units.of_kernel, mine)).tolist():
            name = self.names[int(self.trace.kernels.name[kernel])]
            if name is not None and name.layout:
                stated.setdefault(int(self.units.of_kernel[kernel]), kernel)
        for at, unit in zip(products, mine, strict=True):
            kernel = stated.get(unit, int(self.units.kernel[unit]))
            code = int(self.trace.kernels.name[kernel]) if kernel >= 0 else -1
            name = self.names[code] if code >= 0 else None
            layouts[at] = name.layout[:2] if name is not None and name.layout else None
            keys[at] = (code, int(self.trace.kernels.launch[kernel]) if kernel >= 0 else -1)
            busy[at] = int(self.trace.kernels.dur_ns[kernel]) if kernel >= 0 else 0
        return layouts, keys, busy


def recorded(
    trace: Trace, links: Links, names: KernelNames, rule: CodeArray, origin: CodeArray, phases: list[str]
) -> Recorded:
    """Find the units of a trace and the runs they make; see ``infer`` for what is given."""
    units = find_units(trace, links, names, rule, origin)
    graph = graph_launch(trace, units)
    unit_step = look_up(links.kernel_step, units.kernel, -2)
    graph[pieces(units, graph, unit_step)] = -1
    place = np.where(units.node >= 0, units.node, look_up(links.kernel_node, units.kernel))
    phase = [phases[node] if node >= 0 else "other" for node in place.tolist()]
    if not len(trace.ops):
        phase = _without_operators(trace, links, names, units)
    step = _carry(unit_step)
    whole = [*split_runs(units, phase, step, graph), *_without_gradients(units, phase, step, graph)]
    whole.sort(key=lambda run: run.units[0])
    runs = _in_passes(units, whole, [*_trained(trace, links, units, whole)])
    known: dict[object, Run] = {}
    keys = [(run.phase, run.counts_layers, units.kind[run.units].tobytes()) for run in runs]
    twins = [known.setdefault(key, run) for key, run in zip(keys, runs, strict=True)]  # equal ones once
    return Recorded(trace, links, names, units, phase, runs, twins)


def _without_operators(trace: Trace, links: Links, names: KernelNames, units: Units) -> list[str]:
    """Per unit its phase, as the names of the kernels tell it."""
    unknown = np.zeros(len(trace.kernels), np.bool_)
    ahead, back, _ = replayed_directions(trace, links, names, unknown, unknown)
    ahead, back = (look_up(one, units.kernel, False) for one in (ahead, back))
    return [
        "forward" if one else "backward" if other else "other" for one, other in zip(ahead, back, strict=True)
    ]


def _without_gradients(units: Units, phase: list[str], step: CodeArray, graph: CodeArray) -> Iterator[Run]:
    """Forwards beside those that are trained on, which autograd does not number: a reference, a teacher, what
    codes pictures or sound."""
    turned = ["forward" if one == "other" else "trained" for one in phase]
    for run in split_runs(units, turned, step, graph):
        cores = find_cores(run) if run.phase == "forward" else []
        # a backward whose forward is not in the file has no number either
        whole = any(map(_is_sure, cores)) or any(kind.what == "convolution" for kind in run.kinds)
        if run.phase == "forward" and whole and not any(kind.backward for kind in run.kinds):
            run.trained = False
            yield run


def _is_sure(core: Core) -> bool:
    """A fused operator, or a softmax between two products: an optimizer has rows of products, too (Muon)."""
    return core.first == core.last or "attention.softmax" in core.parts.values()


def _in_passes(units: Units, runs: list[Run], trained: list[Counter[Weight]]) -> list[Run]:
    """The runs, cut where the model begins again; equal runs are looked at once."""
    out: list[Run] = []
    known: dict[object, list[int] | None] = {}
    for run, weights in zip(runs, trained, strict=True):
        key = units.kind[run.units].tobytes(), frozenset(weights.items())
        if key not in known:
            cores = find_cores(run) if run.phase in ("forward", "graph") else []
            known[key] = [] if all(core.backward for core in cores) else passes(run, cores, weights)
        found = known[key]
        edges = [0, *(found or []), len(run)]
        parts = [run] if len(edges) == 2 else [run.part(range(begin, end)) for begin, end in pairwise(edges)]
        for part in parts:
            part.counts_layers = found is not None
        out += parts
    return out


def _trained(trace: Trace, links: Links, units: Units, runs: list[Run]) -> Iterator[Counter[Weight]]:
    """Per run the weights, by shape, that get a gradient before the next forward begins."""
    ops = trace.ops
    gives = trace.symbols.where(lambda text: text == "torch::autograd::AccumulateGrad")
    rows = np.flatnonzero(gives[ops.name])
    rows = rows[np.argsort(ops.ts_ns[rows], kind="stable")]
    codes = np.unique(ops.inputs[rows]).tolist()
    shapes = {code: tensors_of(trace.details.inputs(code).dims or []) for code in codes}
    first = np.array([run.units[0] for run in runs if run.phase == "forward"], np.int64)
    begins = look_up(links.ts_ns, units.node[first], 0).tolist()
    edges = iter(np.searchsorted(ops.ts_ns[rows], [*begins, np.iinfo(np.int64).max]).tolist())
    start = next(edges)
    for run in runs:
        found: Counter[Weight] = Counter()
        if run.phase == "forward":
            stop = next(edges)
            for code in ops.inputs[rows[start:stop]].tolist():
                found.update((shape[0], shape[1]) for shape in shapes[code] if len(shape) == 2)
            start = stop
        yield found


def _carry(step: CodeArray) -> CodeArray:
    """Units without kernels of their own (-2) stand in the step of the unit before them."""
    known = np.flatnonzero(step > -2)
    if not len(known):
        return step
    at = np.searchsorted(known, np.arange(len(step)), side="right") - 1
    return step[known[np.maximum(at, 0)]].astype(np.int32)
