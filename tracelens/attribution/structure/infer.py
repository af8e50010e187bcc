"""From units to labels: the whole inference, in the order in which one thing rests on another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from tracelens.attribution.structure import attention_on_maps, conditions, local, maps
from tracelens.attribution.structure.adapters import label_adapters
from tracelens.attribution.structure.again import label_repeats
from tracelens.attribution.structure.ahead import label_ahead, label_widening
from tracelens.attribution.structure.around import label_around
from tracelens.attribution.structure.backward import label_products
from tracelens.attribution.structure.backward_cores import find_backward_cores
from tracelens.attribution.structure.between import label_between
from tracelens.attribution.structure.connections import label_connections, label_skips
from tracelens.attribution.structure.cores import find_cores
from tracelens.attribution.structure.forward import label_forward
from tracelens.attribution.structure.gradients import label_gradients
from tracelens.attribution.structure.graphs import goes_back
from tracelens.attribution.structure.late import label_late, label_maps_back
from tracelens.attribution.structure.layers import number_layers
from tracelens.attribution.structure.layouts import forward_order, label_by_layout, until_cut
from tracelens.attribution.structure.opaque import open_opaque
from tracelens.attribution.structure.ordered import label_by_order
from tracelens.attribution.structure.positions import label_tables
from tracelens.attribution.structure.recorded import Recorded, recorded
from tracelens.attribution.structure.runs import Label, Run, whole_of
from tracelens.attribution.structure.streams import streams
from tracelens.attribution.structure.towers import further_models, stretches
from tracelens.attribution.structure.units import Units, tensors_of
from tracelens.attribution.structure.walk import hidden_size
from tracelens.attribution.structure.weights import LaunchedProduct, lend_weights
from tracelens.gemm import KernelNames
from tracelens.trace import CodeArray, Links, Trace, look_up

_OF_CORE = ("scores", "softmax", "values", "core", "other")
#: No layer is made of these alone: what brings the last layers' results together is none.
_BESIDE = ("norm", "residual", "dropout", *(f"attention.{part}" for part in _OF_CORE))


@dataclass(frozen=True)
class Inference:
    """What the structure says: one label for each unit it could name."""

    units: Units
    labels: list[Label]  # distinct
    label: CodeArray  # per unit: index into labels; -1
    hidden: int | None
    attention: bool  # was an attention core found in a forward?
    further: dict[int, bool]  # layers with which another model begins, surely or perhaps

    def of_kernel(self) -> CodeArray:
        """Per kernel: the label of its own unit; -1."""
        return look_up(self.label, self.units.of_kernel)

    @property
    def alone(self) -> npt.NDArray[np.bool_]:
        """Per kernel: is it a unit of its own, of no operator?"""
        return look_up(self.units.node, self.units.of_kernel) < 0

    def of_node(self, node: CodeArray) -> CodeArray:
        """Per host node given: the label of the unit it belongs to, or of all units in it; -1."""
        first, last = look_up(self.units.of_node, node), look_up(self.units.last_of_node, node)
        changes = np.cumsum(np.diff(self.label, prepend=self.label[:1]) != 0)
        same = look_up(changes, first) == look_up(changes, last)
        return np.where(same, look_up(self.label, first), -1).astype(np.int32)

    def left_open(self, node: CodeArray) -> npt.NDArray[np.bool_]:
        """Per host node given: is it one unit, which found no label?"""
        unit = look_up(self.units.of_node, node)
        one: npt.NDArray[np.bool_] = (unit >= 0) & (unit == look_up(self.units.last_of_node, node))
        return one & (look_up(self.label, unit) < 0)


def infer(
    trace: Trace, links: Links, names: KernelNames, rule: CodeArray, origin: CodeArray, phases: list[str]
) -> Inference:
    """Find the transformer of a trace.

    ``names`` says what kernels are (``gemm.kernel_names``), ``rule`` is per host node (``names.OP_RULES``),
    ``origin`` per kernel the forward node behind it, ``phases`` the phase of every host node.
    Without an attention core there is no transformer, and nothing is labelled.
    """
    found = recorded(trace, links, names, rule, origin, phases)
    _find_cores(found)
    hidden = hidden_size(run for run in found.ahead if run.phase == "forward")
    _without_hidden_size(found, hidden)
    if hidden is not None:
        _models(found, hidden)
    _by_layout(found, hidden)
    _beside_models(found, hidden)
    return _told(found, hidden)


def _find_cores(found: Recorded) -> None:
    """The attention cores of every run, and what else reads like a product."""
    for run in found.read:
        maps.linear_convolutions(run)
        local.mark_dropouts(run)
        run.cores = find_cores(run)
        maps.linear_rows(run)
    for run in found.distinct:
        if run.phase == "backward":
            run.cores = find_backward_cores(run, found.ahead)


def _without_hidden_size(found: Recorded, hidden: int | None) -> None:
    """Graphs, and runs of which no shape is known."""
    for run in found.read:
        # what graphs replay has no shapes, their head can have some
        products = run.products(0, run.cores[-1].first if run.cores else len(run))
        unshaped = hidden is None and run.phase == "forward" and not any(map(run.shape, products))
        if run.cores and (unshaped or (run.phase == "graph" and not goes_back(run))):
            _without_shapes(found, run)
        elif unshaped and any(other.cores for other in found.ahead):
            # of a chunk of the tokens, behind the backward of the chunk before
            local.label_heads(run, found.layouts(run)[1])
            if run.labels:
                label_between(run, 0, None)
        elif run.phase == "forward" and any(other.cores for other in found.read if other.phase == "graph"):
            local.label_sampled(run)


def _models(found: Recorded, hidden: int) -> None:
    """Every stream of every forward by its shapes, and the backwards by autograd's links."""
    open_opaque(found.distinct, hidden)
    apart = [stream for run in found.ahead for stream in streams(run)]
    parts = [part for stream in apart for part in stretches(stream.run, hidden_size([stream.run]) or hidden)]
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
    for rest in found.rests:
        local.label_fed(rest.run)
        local.label_token_mlps(rest.run)
        rest.give_back()
    for run, forward in found.with_forward:
        if not run.labels:
            label_products(run, forward, found.layouts(run)[0])
            label_gradients(run, forward, {part.hidden for part in parts}, vocab)


def _by_layout(found: Recorded, hidden: int | None) -> None:
    """What is left of backwards and graphs, by the layouts that the names of kernels state."""
    nameless = found.captured if hidden is not None else [*found.with_forward, *found.captured]
    for run, forward in nameless:
        if forward.labels and not run.labels:
            ahead_of = forward_order(forward, len(forward))
            cut = run is found.twins[-1] and not len(found.trace.ops)
            read_back, ahead_of = until_cut(run, ahead_of) if cut else (whole_of(run), ahead_of)
            label_by_layout(read_back.run, 0, ahead_of, *found.layouts(read_back.run))
            read_back.give_back()


def _beside_models(found: Recorded, hidden: int | None) -> None:
    """What is no layer of a transformer, or is left open in one: ahead of layers, between them, on maps."""
    for run in found.ahead:
        label_tables(run)
        local.label_local(run, attends=any(other.cores for other in found.ahead))
        local.label_last(run)
        label_connections(run, hidden)
        label_skips(run, hidden)
        conditions.label_times(run)
        conditions.label_conditions(run)
        conditions.label_dropped_samples(run, hidden)
        conditions.label_brought(run, hidden)
        label_widening(run)
        local.label_between_layers(run)
        local.label_projection_heads(run)
        attention_on_maps.label_attention_on_maps(run)
        attention_on_maps.label_laid_out(run)
        attention_on_maps.label_views(run)
        maps.label_maps(run, hidden)
        maps.open_convolutions(run)
    for rest in found.rests:
        rest.give_back()
        label_adapters(rest.whole)
    for run, forward in found.with_forward:
        label_late(run, forward)
        label_maps_back(run, forward, {width for width in (hidden_size([forward]), hidden) if width})
    label_repeats(found.units, found.distinct)
    for run in found.distinct:
        for core in run.cores:  # product, softmax, product is attention in any model
            for at, component in core.parts.items():
                run.labels.setdefault(at, Label(component, evidence="local"))


def _told(found: Recorded, hidden: int | None) -> Inference:
    """The labels of all runs, each that of the run which was read for it."""
    units = found.units
    label = np.full(len(units), -1, np.int32)
    labels: dict[Label, int] = {}
    for row in local.clipping(units, found.phase):
        label[row] = labels.setdefault(Label("grad_clip"), len(labels))
    for run, forward in [*found.with_forward, *found.captured]:
        run.counts_layers &= forward.counts_layers
    layers = numbered(found.twins)
    for run, twin in zip(found.runs, found.twins, strict=True):
        for at, named in twin.labels.items():
            said = named if twin.counts_layers and named.layer in layers else replace(named, layer=None)
            label[run.units[at]] = labels.setdefault(said, len(labels))
    for row in local.turns(units, found.phase):
        if label[row] < 0:
            label[row] = labels.setdefault(Label("loss"), len(labels))
    counted = [run for run in found.read if run.counts_layers and run.phase != "recompute"]
    further = {layer: sure for run in counted for layer, sure in further_models(run).items()}
    return Inference(units, list(labels), label, hidden, any(run.cores for run in found.ahead), further)


def numbered(runs: list[Run]) -> set[int | None]:
    """The layers that hold more than what could stand behind the last one."""
    return {label.layer for run in runs for label in run.labels.values() if label.component not in _BESIDE}


def _without_shapes(found: Recorded, run: Run) -> None:
    """A CUDA graph, or a recording without shapes: by the parameters of its caller, or by order alone."""
    trace, units = found.trace, found.units
    caller = int(look_up(found.links.kernel_op, units.kernel[run.units[:1]])[0])
    given = trace.details.inputs(int(trace.ops.inputs[caller])).dims if caller >= 0 else None
    hidden = None
    if run.phase == "graph":
        launched = {
            at: _launched(trace, found.names, int(units.kernel[run.units[at]])) for at in run.products()
        }
        hidden = lend_weights(run, tensors_of(given or []), launched)
    if hidden is not None:
        label_forward(run, hidden)
    else:
        kernels = found.layouts(run)[1]
        label_by_order(run, kernels)
        if run.phase == "forward":
            label_around(run)
        local.label_heads(run, kernels)
        local.label_ahead_of_head(run)
    label_between(run, hidden or 0, None)
    if hidden is None:  # what is behind an MLP of tokens is on no stream
        local.label_token_mlps(run)
    behind = [core.first for core in run.cores if core.backward]
    heads = [at for at, label in run.labels.items() if label.component == "logits"]
    if run.phase == "graph" and behind and heads and heads[0] < behind[0]:
        start = heads[-1] + 1
        label_by_layout(run, start, forward_order(run, start), *found.layouts(run))


def _launched(trace: Trace, names: KernelNames, kernel: int) -> LaunchedProduct:
    name = names[int(trace.kernels.name[kernel])]
    grid = trace.details.config(int(trace.kernels.launch[kernel])).grid or []
    sizes = [size for size in grid[:2] if isinstance(size, int)]
    blocks = prod(sizes) if len(sizes) == 2 else None
    if name is None or name.scheduler in ("persistent", "stream_k"):
        return LaunchedProduct(None, None, None)
    return LaunchedProduct(name.tile_m, name.tile_n, blocks)


def _vocabulary(runs: list[Run]) -> int | None:
    sizes = [
        shape.n
        for run in runs
        for at, label in run.labels.items()
        if label.component == "logits" and (shape := run.shape(at)) is not None
    ]
    return max(sizes, default=None)
