"""From units to labels: the whole inference, in the order in which one thing rests on another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from tracelens.attribution.replayed import replayed_directions
from tracelens.attribution.structure.adapters import label_adapters
from tracelens.attribution.structure.again import label_repeats
from tracelens.attribution.structure.ahead import label_ahead, label_widening
from tracelens.attribution.structure.around import label_around
from tracelens.attribution.structure.attention_on_maps import (
    label_attention_on_maps,
    label_laid_out,
    label_views,
)
from tracelens.attribution.structure.backward import label_products
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.between import label_between
from tracelens.attribution.structure.conditions import (
    label_brought,
    label_conditions,
    label_dropped_samples,
    label_times,
)
from tracelens.attribution.structure.connections import label_connections, label_skips
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.forward import label_forward
from tracelens.attribution.structure.gradients import label_gradients
from tracelens.attribution.structure.graphs import captured, goes_back, graph_launch, pieces
from tracelens.attribution.structure.late import label_late
from tracelens.attribution.structure.layers import number_layers
from tracelens.attribution.structure.layouts import forward_order, label_by_layout, until_cut
from tracelens.attribution.structure.local import (
    clipping,
    label_between_layers,
    label_fed,
    label_heads,
    label_local,
    label_projection_heads,
    label_sampled,
    label_token_mlps,
    mark_dropouts,
    turns,
    without_mixers,
)
from tracelens.attribution.structure.maps import (
    label_maps,
    linear_convolutions,
    linear_rows,
    open_convolutions,
)
from tracelens.attribution.structure.maps_back import label_maps_back
from tracelens.attribution.structure.opaque import open_opaque
from tracelens.attribution.structure.ordered import label_by_order
from tracelens.attribution.structure.passes import Weight, passes
from tracelens.attribution.structure.runs import Core, Label, Run, split_runs, whole_of
from tracelens.attribution.structure.streams import streams
from tracelens.attribution.structure.towers import further_models, stretches
from tracelens.attribution.structure.units import Units, find_units, tensors_of
from tracelens.attribution.structure.walk import hidden_size
from tracelens.attribution.structure.weights import LaunchedProduct, lend_weights
from tracelens.gemm import KernelNames
from tracelens.trace import Links, Trace, look_up

NodeArray = npt.NDArray[np.int32]
_OF_CORE = ("scores", "softmax", "values", "core", "other")
#: No layer is made of these alone: what brings the last layers' results together is none.
_BESIDE = ("norm", "residual", "dropout", *(f"attention.{part}" for part in _OF_CORE))


@dataclass(frozen=True)
class Inference:
    """What the structure says: one label for each unit it could name."""

    units: Units
    labels: list[Label]  # distinct
    label: NodeArray  # per unit: index into labels; -1
    hidden: int | None
    attention: bool  # was an attention core found in a forward?
    further: dict[int, bool]  # layers with which another model begins, surely or perhaps

    def of_kernel(self) -> NodeArray:
        """Per kernel: the label of its own unit; -1."""
        return look_up(self.label, self.units.of_kernel)

    @property
    def alone(self) -> npt.NDArray[np.bool_]:
        """Per kernel: is it a unit of its own, of no operator?"""
        return look_up(self.units.node, self.units.of_kernel) < 0

    def of_node(self, node: NodeArray) -> NodeArray:
        """Per host node given: the label of the unit it belongs to, or of all units in it; -1."""
        first, last = look_up(self.units.of_node, node), look_up(self.units.last_of_node, node)
        changes = np.cumsum(np.diff(self.label, prepend=self.label[:1]) != 0)
        same = look_up(changes, first) == look_up(changes, last)
        return np.where(same, look_up(self.label, first), -1).astype(np.int32)

    def left_open(self, node: NodeArray) -> npt.NDArray[np.bool_]:
        """Per host node given: is it one unit, which found no label?"""
        unit = look_up(self.units.of_node, node)
        one: npt.NDArray[np.bool_] = (unit >= 0) & (unit == look_up(self.units.last_of_node, node))
        return one & (look_up(self.label, unit) < 0)


def infer(
    trace: Trace, links: Links, names: KernelNames, rule: NodeArray, origin: NodeArray, phases: list[str]
) -> Inference:
    """Find the transformer of a trace.

    ``names`` says what kernels are (``gemm.kernel_names``), ``rule`` is per host node (``names.OP_RULES``),
    ``origin`` per kernel the forward node behind it, ``phases`` the phase of every host node.
    Without an attention core there is no transformer, and nothing is labelled.
    """
    units = find_units(trace, links, names, rule, origin)
    label = np.full(len(units), -1, np.int32)
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
    distinct = list(known.values())
    rests = [without_mixers(run) for run in distinct if run.phase in ("forward", "recompute")]
    ahead = [rest.run for rest in rests]
    read = [*ahead, *(run for run in distinct if run.phase == "graph")]
    for run in read:
        linear_convolutions(run)
        mark_dropouts(run)
        run.cores = find_cores(run)
        linear_rows(run)
    for run in distinct:
        if run.phase == "backward":
            run.cores = find_backward_cores(run, ahead)
    hidden = hidden_size(run for run in ahead if run.phase == "forward")
    for run in read:
        unshaped = hidden is None and run.phase == "forward" and not any(map(run.shape, run.products()))
        if run.cores and (unshaped or (run.phase == "graph" and not goes_back(run))):
            _without_shapes(trace, links, names, units, run)
        elif unshaped and any(other.cores for other in ahead):
            label_heads(
                run, _layouts(trace, names, units, run)[1]
            )  # of a chunk of the tokens, behind the backward of the chunk before
            if run.labels:
                label_between(run, 0, None)
        elif run.phase == "forward" and any(other.cores for other in read if other.phase == "graph"):
            label_sampled(run)
    if hidden is not None:
        open_opaque(distinct, hidden)
        apart = [stream for run in ahead for stream in streams(run)]
        parts = [
            part for stream in apart for part in stretches(stream.run, hidden_size([stream.run]) or hidden)
        ]
        for part in parts:
            label_forward(part.run, part.hidden)
            number_layers(part.run)
            label_ahead(part.run)
        models = [part.run for part in parts]
        vocab = _vocabulary(models)
        for part in parts:
            label_between(part.run, part.hidden, vocab)
            part.give_back()
        for stream in apart:  # the layers of another model do not follow those before
            stream.whole.joints |= {stream.give_back()} - {0}
        for rest in rests:
            label_fed(rest.run)
            label_token_mlps(rest.run)
            rest.give_back()
        for run, forward in _with_forward(twins):
            if not run.labels:
                label_products(run, forward, _layouts(trace, names, units, run)[0])
                label_gradients(run, forward, {part.hidden for part in parts}, vocab)
    nameless = captured(twins) if hidden is not None else [*_with_forward(twins), *captured(twins)]
    for run, forward in nameless:
        if forward.labels and not run.labels:
            ahead_of = forward_order(forward, len(forward))
            cut = run is twins[-1] and not len(trace.ops)
            read_back, ahead_of = until_cut(run, ahead_of) if cut else (whole_of(run), ahead_of)
            label_by_layout(read_back.run, 0, ahead_of, *_layouts(trace, names, units, read_back.run))
            read_back.give_back()
    for run in ahead:
        label_local(run, attends=any(other.cores for other in ahead))
        label_connections(run, hidden)
        label_skips(run, hidden)
        label_times(run)
        label_conditions(run)
        label_dropped_samples(run, hidden)
        label_brought(run, hidden)
        label_widening(run)
        label_between_layers(run)
        label_projection_heads(run)
        label_attention_on_maps(run)
        label_laid_out(run)
        label_views(run)
        label_maps(run, hidden)
        open_convolutions(run)
    for rest in rests:
        rest.give_back()
        label_adapters(rest.whole)
    for run, forward in _with_forward(twins):
        label_late(run, forward)
        label_maps_back(run, forward, {width for width in (hidden_size([forward]), hidden) if width})
    label_repeats(units, distinct)
    for run in distinct:
        for core in run.cores:  # product, softmax, product is attention in any model
            for at, component in core.parts.items():
                run.labels.setdefault(at, Label(component, evidence="local"))
    labels: dict[Label, int] = {}
    for row in clipping(units, phase):
        label[row] = labels.setdefault(Label("grad_clip"), len(labels))
    for run, forward in [*_with_forward(twins), *captured(twins)]:
        run.counts_layers &= forward.counts_layers
    layers = numbered(twins)
    for run, twin in zip(runs, twins, strict=True):
        for at, named in twin.labels.items():
            found = named if twin.counts_layers and named.layer in layers else replace(named, layer=None)
            label[run.units[at]] = labels.setdefault(found, len(labels))
    for row in turns(units, phase):
        if label[row] < 0:
            label[row] = labels.setdefault(Label("loss"), len(labels))
    counted = [run for run in read if run.counts_layers and run.phase != "recompute"]
    further = {layer: sure for run in counted for layer, sure in further_models(run).items()}
    return Inference(units, list(labels), label, hidden, any(run.cores for run in ahead), further)


def _without_operators(trace: Trace, links: Links, names: KernelNames, units: Units) -> list[str]:
    """Per unit its phase, as the names of the kernels tell it."""
    unknown = np.zeros(len(trace.kernels), np.bool_)
    ahead, back, _ = replayed_directions(trace, links, names, unknown, unknown)
    ahead, back = (look_up(one, units.kernel, False) for one in (ahead, back))
    return [
        "forward" if one else "backward" if other else "other" for one, other in zip(ahead, back, strict=True)
    ]


def numbered(runs: list[Run]) -> set[int | None]:
    """The layers that hold more than what could stand behind the last one."""
    return {label.layer for run in runs for label in run.labels.values() if label.component not in _BESIDE}


def _without_gradients(units: Units, phase: list[str], step: NodeArray, graph: NodeArray) -> Iterator[Run]:
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


def _without_shapes(trace: Trace, links: Links, names: KernelNames, units: Units, run: Run) -> None:
    """A CUDA graph, or a recording without shapes: by the parameters of its caller, or by order alone."""
    caller = int(look_up(links.kernel_op, units.kernel[run.units[:1]])[0])
    given = trace.details.inputs(int(trace.ops.inputs[caller])).dims if caller >= 0 else None
    hidden = None
    if run.phase == "graph":
        launched = {at: _launched(trace, names, int(units.kernel[run.units[at]])) for at in run.products()}
        hidden = lend_weights(run, tensors_of(given or []), launched)
    if hidden is not None:
        label_forward(run, hidden)
    else:
        kernels = _layouts(trace, names, units, run)[1]
        label_by_order(run, kernels)
        if run.phase == "forward":
            label_around(run)
        label_heads(run, kernels)
    label_between(run, hidden or 0, None)
    behind = [core.first for core in run.cores if core.backward]
    heads = [at for at, label in run.labels.items() if label.component == "logits"]
    if run.phase == "graph" and behind and heads and heads[0] < behind[0]:
        start = heads[-1] + 1
        label_by_layout(run, start, forward_order(run, start), *_layouts(trace, names, units, run))


def _layouts(
    trace: Trace, names: KernelNames, units: Units, run: Run
) -> tuple[dict[int, str | None], dict[int, object], dict[int, int]]:
    """Per position of a product the layout that its kernel's name states, a key of that kernel, and its time
    in nanoseconds."""
    layouts: dict[int, str | None] = {}
    keys: dict[int, object] = {}
    busy: dict[int, int] = {}
    products = run.products()
    mine = [run.units[at] for at in products]
    stated: dict[int, int] = {}  # per unit its kernel that multiplies: a sum behind it can take longer
    for kernel in np.flatnonzero(np.isin(units.of_kernel, mine)).tolist():
        name = names[int(trace.kernels.name[kernel])]
        if name is not None and name.layout:
            stated.setdefault(int(units.of_kernel[kernel]), kernel)
    for at, unit in zip(products, mine, strict=True):
        kernel = stated.get(unit, int(units.kernel[unit]))
        code = int(trace.kernels.name[kernel]) if kernel >= 0 else -1
        name = names[code] if code >= 0 else None
        layouts[at] = name.layout[:2] if name is not None and name.layout else None
        keys[at] = (code, int(trace.kernels.launch[kernel]) if kernel >= 0 else -1)
        busy[at] = int(trace.kernels.dur_ns[kernel]) if kernel >= 0 else 0
    return layouts, keys, busy


def _launched(trace: Trace, names: KernelNames, kernel: int) -> LaunchedProduct:
    name = names[int(trace.kernels.name[kernel])]
    grid = trace.details.config(int(trace.kernels.launch[kernel])).grid or []
    sizes = [size for size in grid[:2] if isinstance(size, int)]
    blocks = prod(sizes) if len(sizes) == 2 else None
    if name is None or name.scheduler in ("persistent", "stream_k"):
        return LaunchedProduct(None, None, None)
    return LaunchedProduct(name.tile_m, name.tile_n, blocks)


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


def _with_forward(runs: list[Run]) -> list[tuple[Run, Run]]:
    """Each backward run with the forward it belongs to: the last before it, else the first there is."""
    out = []
    forwards = [run for run in runs if run.phase == "forward" and run.cores]
    forwards = [run for run in forwards if run.trained] or forwards
    known = {id(run) for run in forwards}
    last: Run | None = None
    for run in runs:
        if id(run) in known:
            last = run
        elif run.phase == "backward" and forwards:
            out.append((run, last or forwards[0]))
    return out


def _carry(step: NodeArray) -> NodeArray:
    """Units without kernels of their own (-2) stand in the step of the unit before them."""
    known = np.flatnonzero(step > -2)
    if not len(known):
        return step
    at = np.searchsorted(known, np.arange(len(step)), side="right") - 1
    return step[known[np.maximum(at, 0)]].astype(np.int32)


def _vocabulary(runs: list[Run]) -> int | None:
    sizes = [
        shape.n
        for run in runs
        for at, label in run.labels.items()
        if label.component == "logits" and (shape := run.shape(at)) is not None
    ]
    return max(sizes, default=None)
