"""Communication kernels: what each serves, and how much of it no compute hides.

A purpose is stated where the trace gives evidence for it: a named range, the name of the process group or of
the kernel, the operator around the launch, or a message of exactly the size of a weight or an activation.
Otherwise it is ``unknown``, with what is missing.

Exposed is the part of a communication event during which no compute kernel runs on its device. Copies and
fills compute nothing: they hide nothing. exposed + hidden = duration, to the nanosecond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracelens.attribution import words
from tracelens.attribution.collectives import Call, find_calls
from tracelens.attribution.kernel_patterns import EXPERT_EXCHANGES
from tracelens.attribution.names import element_role, split_counter
from tracelens.attribution.result import Attribution
from tracelens.gemm import GEMM_OPS, GemmShape, shape_of
from tracelens.trace import BoolArray, IntArray, Links, Trace, distinct_rows, look_up
from tracelens.trace.autograd import EVALUATE
from tracelens.trace.nesting import covered
from tracelens.words import COMPONENTS, PHASES, Evidence
from tracelens.words import Collective as CollectiveName
from tracelens.words import Purpose as Served

_COMMUNICATION = COMPONENTS.index("communication")
_ACCUMULATE = "torch::autograd::AccumulateGrad"
#: Ranges that FSDP opens around its own work; ``FullyShardedDataParallel.forward`` holds the module's too.
_FSDP = re.compile(r"^(FSDP::|FullyShardedDataParallel\.(?!forward$))")
#: Autograd functions of Megatron-LM whose communication is between tensor-parallel ranks
#: (core/tensor_parallel: mappings.py, layers.py, cross_entropy.py).
_TENSOR_PARALLEL = re.compile(
    r"_(CopyTo|ReduceFrom|ScatterTo|GatherFrom|ReduceScatterTo)\w*ParallelRegion(Backward)?"
    r"|LinearWithGradAccumulationAndAsyncCommunication(Backward)?|_VocabParallelCrossEntropy(Backward)?"
)
_SCALARS = 16  # elements: a loss, a norm, a flag, a few metrics
_TENSOR = 1024  # elements: what is smaller has the size of a tensor of the model by chance
_WORD = re.compile(r"[a-z]+")
_EXCHANGE = re.compile(rf"\bdeep_ep::|{EXPERT_EXCHANGES}")


@dataclass(frozen=True, slots=True)
class Purpose:
    """What communication serves (``words.PURPOSES``), the evidence word, and what was seen or is missing."""

    purpose: Served
    evidence: Evidence
    why: str


@dataclass(frozen=True)
class Communication:
    """Columns over the GPU events of the component ``communication``, in the order of ``Trace.kernels``."""

    kernel: IntArray  # row of Trace.kernels
    call: IntArray  # index into calls
    calls: list[Call]
    purpose: IntArray  # index into purposes
    purposes: list[Purpose]
    exposed_ns: IntArray

    def __len__(self) -> int:
        return len(self.kernel)


@dataclass(frozen=True, slots=True)
class _Place:
    """All that a purpose may rest on."""

    call: Call
    launched: bool  # the launch is in the file
    phase: str
    fsdp: bool  # inside a range of FSDP's own
    tensor: bool  # inside an autograd function of tensor parallelism
    hook: bool  # inside AccumulateGrad: a hook that runs when a gradient is ready
    backward_of: str  # the autograd node around the launch; empty
    ddp: bool  # inside DistributedDataParallel.forward
    experts: Literal["module_stack", "structure"] | None  # what says that it is in a mixture of experts
    exchange: bool  # a kernel that carries tokens to their experts and back, by its name
    module: bool  # some nn.Module around it
    modules_known: bool  # the trace names modules
    size: words.SizeClass  # the message is exactly as large


def find_communication(trace: Trace, links: Links, attribution: Attribution) -> Communication:
    """Every communication event with its call, its purpose, and its exposed and hidden time."""
    rows = np.flatnonzero(attribution.component == _COMMUNICATION)
    calls, call = find_calls(trace, links, rows)
    purposes, purpose = _purposes(trace, links, attribution, rows, calls, call)
    exposed = _exposed(trace, attribution, rows)
    return Communication(
        kernel=rows, call=call, calls=calls, purpose=purpose, purposes=purposes, exposed_ns=exposed
    )


# --- exposed and hidden ------------------------------------------------------------------------------


def _computes(trace: Trace, attribution: Attribution) -> BoolArray:
    """Per GPU event: is it a kernel that is no communication?"""
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]
    computes: BoolArray = is_kernel & (attribution.component != _COMMUNICATION)
    return computes


def _exposed(trace: Trace, attribution: Attribution, rows: IntArray) -> IntArray:
    """Per communication event the time in which no compute kernel runs on its device, in ns."""
    kernels = trace.kernels
    begin, end = kernels.ts_ns, kernels.ts_ns + kernels.dur_ns
    computes = _computes(trace, attribution)
    exposed = kernels.dur_ns[rows].copy()
    for device in np.unique(kernels.device[rows]):
        here = kernels.device[rows] == device
        other = computes & (kernels.device == device)
        exposed[here] -= covered(begin[other], end[other], begin[rows[here]], end[rows[here]])
    return exposed


def exposed_within(trace: Trace, attribution: Attribution, start_ns: IntArray, end_ns: IntArray) -> IntArray:
    """Per window the time in which communication runs and no compute kernel, each moment once, in ns."""
    begin, end = trace.kernels.ts_ns, trace.kernels.ts_ns + trace.kernels.dur_ns
    computes = _computes(trace, attribution)
    either = computes | (attribution.component == _COMMUNICATION)
    both, alone = (covered(begin[mask], end[mask], start_ns, end_ns) for mask in (either, computes))
    return both - alone


# --- purpose -----------------------------------------------------------------------------------------


def _purposes(
    trace: Trace, links: Links, attribution: Attribution, rows: IntArray, calls: list[Call], call: IntArray
) -> tuple[list[Purpose], IntArray]:
    """A purpose for each distinct place that communication is launched from."""
    texts, forest, node = trace.symbols, links.forest, links.kernel_node[rows]
    frames, ranges = links.mask(links.frames_at), links.mask(links.ranges_at)

    def inside(mask: BoolArray) -> IntArray:
        """The nearest host span of a kind around each launch, -1 where there is none."""
        return look_up(forest.nearest(mask), node).astype(np.int64)

    # a backward exchange is part of what its forward is
    forward = attribution.forward_op[rows]
    origin = np.where(forward >= 0, forward + links.ops_at.start, node)
    experts = links.forest.nearest((frames | ranges) & texts.where(_of_experts)[links.name])
    neighbour = _among_experts(trace, attribution, rows)
    evaluate = inside(links.is_op & texts.where(lambda t: t.startswith(EVALUATE))[links.name])
    features = np.stack(
        [
            call,
            node >= 0,
            attribution.phase[rows],
            inside(ranges & texts.where(_FSDP.match)[links.name]) >= 0,
            look_up(links.name, evaluate),
            inside(ranges & texts.where(lambda t: t == "DistributedDataParallel.forward")[links.name]) >= 0,
            look_up(experts, origin) >= 0,
            neighbour,
            inside(links.is_op & texts.where(_TENSOR_PARALLEL.fullmatch)[links.name]) >= 0,
            inside(frames & texts.where(lambda t: t.startswith("nn.Module: "))[links.name]) >= 0,
            texts.where(_EXCHANGE.search)[trace.kernels.name[rows]],
        ],
        axis=1,
    )
    distinct, which = distinct_rows(features)
    modules_known = bool(texts.where(lambda t: t.startswith("nn.Module: "))[trace.frames.name].any())
    activations, weights = _tensor_sizes(trace, links)
    purposes = []
    for at, launched, phase, fsdp, evaluated, ddp, named, between, tensor, module, own in distinct.tolist():
        name = texts[evaluated].removeprefix(EVALUATE)
        place = _Place(
            call=calls[at],
            launched=bool(launched),
            phase=PHASES[phase],
            fsdp=bool(fsdp),
            tensor=bool(tensor),
            hook=name == _ACCUMULATE,
            backward_of=name,
            ddp=bool(ddp),
            experts="module_stack" if named else "structure" if between else None,
            exchange=bool(own),
            module=bool(module),
            modules_known=modules_known,
            size=_size_class(calls[at].elements, activations, weights),
        )
        purposes.append(decide_purpose(place))
    return purposes, which


def _among_experts(trace: Trace, attribution: Attribution, rows: IntArray) -> BoolArray:
    """Per communication event: does work of experts run before and behind it, on its device?"""
    expert = np.isin(
        attribution.component, [COMPONENTS.index("moe.dispatch"), COMPONENTS.index("moe.experts")]
    )
    out = np.zeros(len(rows), np.bool_)
    computes = _computes(trace, attribution)
    for device in np.unique(trace.kernels.device[rows]):
        here = trace.kernels.device[rows] == device
        other = np.flatnonzero(computes & (trace.kernels.device == device))
        if len(other):
            other = other[np.argsort(trace.kernels.ts_ns[other], kind="stable")]
            at = np.searchsorted(trace.kernels.ts_ns[other], trace.kernels.ts_ns[rows[here]])
            last = len(other) - 1
            out[here] = expert[other[np.maximum(at - 1, 0)]] & expert[other[np.minimum(at, last)]]
    return out


def _of_experts(text: str) -> bool:
    parts = split_counter(text.removeprefix("nn.Module: "))[0].split(".")
    return any(element_role(part) in ("experts", "shared", "moe", "router") for part in parts if part)


def _tensor_sizes(trace: Trace, links: Links) -> tuple[set[int], set[int]]:
    """Elements of the activations and of the weights of every linear layer's forward GEMM."""
    backward = trace.ops.forward_thread > 0
    evaluates = links.is_op & trace.symbols.where(lambda t: t.startswith(EVALUATE))[links.name]
    backward |= links.forest.nearest(evaluates)[links.ops_at] >= 0
    wanted = trace.symbols.where(lambda t: t.partition(".")[0] in GEMM_OPS)[trace.ops.name] & ~backward
    kinds = np.unique(np.stack([trace.ops.name[wanted], trace.ops.inputs[wanted]], axis=1), axis=0)
    activations: set[int] = set()
    weights: set[int] = set()
    for name, code in kinds.tolist():
        inputs = trace.details.inputs(code)
        shape = shape_of(
            trace.symbols[name], inputs.dims or [], inputs.types, inputs.strides, inputs.concrete
        )
        if isinstance(shape, GemmShape) and shape.batch == 1 and shape.groups is None:
            activations |= {shape.m * shape.n, shape.m * shape.k}
            weights.add(shape.k * shape.n)
    return activations, weights


def _size_class(elements: int | None, activations: set[int], weights: set[int]) -> words.SizeClass:
    if elements is None or not weights:
        return "unknown"
    if elements < _TENSOR:
        return "neither"
    if elements in activations:
        return "both" if elements in weights else "activation"
    return "weight" if elements in weights else "neither"


def decide_purpose(place: _Place) -> Purpose:
    """The first rule that has something to go by."""
    if place.exchange:
        return Purpose("expert all-to-all", "kernel_name", words.DEEP_EP)
    if place.call.collective == "packing":
        return _packing(place)
    if place.fsdp:
        return _in_fsdp(place)
    return (
        _by_group(place)
        or (None if place.launched else Purpose("unknown", "none", words.NO_LAUNCH))
        or _by_operator(place)
        or _by_size(place)
        or _unknown(place)
    )


def _packing(place: _Place) -> Purpose:
    if place.fsdp:
        gathers = place.phase in ("forward", "recompute")
        return (
            Purpose("FSDP parameter gather", "annotation", words.FSDP_FORWARD)
            if gathers
            else Purpose("unknown", "none", words.FSDP_OPEN)
        )
    return Purpose("unknown", "none", words.LAYS_OUT)


def _in_fsdp(place: _Place) -> Purpose:
    known: dict[CollectiveName, Served] = {
        "all_gather": "FSDP parameter gather",
        "reduce_scatter": "FSDP gradient scatter",
        "all_reduce": "data-parallel gradients",  # hybrid sharding: across the replicas
    }
    purpose = known.get(place.call.collective)
    if purpose is None or (place.call.collective == "all_reduce" and place.phase != "backward"):
        return Purpose("unknown", "none", words.FSDP_OTHER)
    return Purpose(purpose, "annotation", words.FSDP_RANGE)


def _by_group(place: _Place) -> Purpose | None:
    """The group's description, where somebody gave it one: DeviceMesh's ``mesh_tp``, Megatron's names."""
    parts = set(_WORD.findall((place.call.group or "").lower()))
    why = words.named_group(place.call.group)
    collective, computing = place.call.collective, place.phase in ("forward", "backward", "recompute")
    data = bool(parts & {"dp", "data", "replicate", "shard", "fsdp", "cp", "context"})
    expert = bool(parts & {"ep", "expert"})
    if parts & {"pp", "pipeline"} and collective == "send/recv":
        return Purpose("pipeline", "annotation", why)
    if expert and not data and collective == "all_to_all":
        return Purpose("expert all-to-all", "annotation", why)
    if parts & {"tp", "tensor"} and computing and not data and not expert and collective != "send/recv":
        return Purpose("tensor parallel", "annotation", why)
    if data and computing and collective == "all_reduce" and place.phase == "backward" and place.hook:
        return Purpose("data-parallel gradients", "annotation", why)
    return None


def _by_operator(place: _Place) -> Purpose | None:
    """What the operator around the launch says."""
    collective, elements = place.call.collective, place.call.elements
    if place.phase == "optimizer":
        if collective in ("reduce_scatter", "all_gather", "broadcast", "reduce"):
            return Purpose("optimizer shards", "annotation", words.in_optimizer(collective))
        if collective == "all_reduce" and elements is not None and elements <= _SCALARS:
            return Purpose("loss or metric", "structure", words.in_optimizer(elements))
        return None
    if place.hook and collective in ("all_reduce", "reduce_scatter"):
        return Purpose("data-parallel gradients", "op", words.GRADIENT_HOOK)
    if place.tensor and collective != "all_to_all":
        return Purpose("tensor parallel", "op", words.TENSOR_FUNCTION)
    if collective == "all_to_all" and place.experts:
        return Purpose("expert all-to-all", place.experts, words.IN_EXPERTS)
    if collective == "send/recv" and place.modules_known and not place.module:
        return Purpose("pipeline", "structure", words.BETWEEN_MODULES)
    return None


def _by_size(place: _Place) -> Purpose | None:
    """What a message of exactly the size of a tensor of the model says."""
    collective, elements, phase = place.call.collective, place.call.elements, place.phase
    outside = phase == "other" and not place.module
    if outside and elements is not None and elements <= _SCALARS and collective in ("all_reduce", "reduce"):
        return Purpose("loss or metric", "structure", words.outside_model(elements))
    exchanged = collective in ("all_reduce", "reduce_scatter", "all_gather")
    if place.size == "activation" and exchanged and phase in ("forward", "backward", "recompute"):
        return Purpose("tensor parallel", "structure", words.AN_ACTIVATION)
    if place.size == "weight" and collective in ("all_reduce", "reduce_scatter"):
        if phase == "backward" or outside:
            return Purpose("data-parallel gradients", "structure", words.A_GRADIENT)
    elif place.size == "weight" and collective == "all_gather" and phase in ("forward", "recompute"):
        return Purpose("FSDP parameter gather", "structure", words.A_WEIGHT)
    return None


def _unknown(place: _Place) -> Purpose:
    """What is missing."""
    by_collective: dict[CollectiveName, str] = {
        "barrier": words.A_BARRIER,
        "all_to_all": words.NO_EXPERTS,
        "send/recv": words.PIPELINE_OR_RING,
    }
    why = by_collective.get(place.call.collective) or (words.IN_DDP if place.ddp else None)
    if why is None:
        size = place.size if place.call.elements is not None else None
        why = words.size_does_not_tell(place.backward_of, place.phase, size)
    return Purpose("unknown", "none", why)
