"""What a recording lacks: what the analysis loses by it, and the flag or the line that would give it.

Each check looks at one thing and says nothing where nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import numpy.typing as npt

from tracelens.attribution import words
from tracelens.attribution.attribute import is_compiled
from tracelens.attribution.collectives import find_calls, moves_data
from tracelens.attribution.result import Attribution
from tracelens.gemm import ATTENTION_OPS, GEMM_OPS
from tracelens.results import Lack
from tracelens.trace import BoolArray, Links, Trace, launched_by_several, look_up
from tracelens.trace.metadata import rank_and_world
from tracelens.trace.nesting import covered
from tracelens.trace.processes import processes_of_threads
from tracelens.words import COMPONENTS, Level

_HIGH, _MEDIUM = 0.20, 0.05  # share of the file's GPU time from which a lack is that severe
_NEGLIGIBLE = 0.005  # of the file's GPU time: what is smaller is named in coverage only
_SEVERITIES: tuple[Level, ...] = get_args(Level)
_SLOW = 2.0  # a step so many times as long as the median one is no usual step
_IDLE = 0.30  # of the GPU's time: from here on the recorder's own work on the host can be seen in it
_SKEWED = 0.01  # of the kernels: fewer that begin before their launch are CUPTI's rounding
_DROPPED = 0.01  # of the launches
_ALLOCATING = 0.02  # of the steps' host time inside cudaMalloc and cudaFree
_SYNCHRONIZING = 5  # device-wide waits a step
_SERVES = re.compile(r"(vllm|_C|_moe_C|_C_cache_ops|sgl_kernel|sglang)::")  # operators of engines that serve
_FREES = frozenset({"cudaFree", "hipFree"})  # in a step: memory ran out, or torch.cuda.empty_cache()
_ALLOCATIONS = _FREES | {"cudaMalloc", "cudaMallocAsync", "hipMalloc"}
_SYNCHRONIZATIONS = frozenset({"cudaDeviceSynchronize", "hipDeviceSynchronize"})
#: What a call of a collective lacks, as it is said.
_OF_CALL = {"bytes": "message size", "dtype": "type", "group": "process group"}
#: Parts that belong to no module of the model.
_NO_MODULE = ("communication", "memory", "optimizer", "grad_clip", "loss")


@dataclass(frozen=True)
class _Recording:
    """A trace with what several checks ask of it."""

    trace: Trace
    links: Links
    attribution: Attribution
    steps: list[int]  # positions of the analysed ones in Links.steps

    @cached_property
    def total_ns(self) -> int:
        return max(1, int(self.trace.kernels.dur_ns.sum()))

    def share(self, kernels: BoolArray) -> float:
        """Of the file's GPU time, that of some kernels: what is lacking is of the recording, steps or not."""
        return int(self.trace.kernels.dur_ns[kernels].sum()) / self.total_ns

    @cached_property
    def has_host(self) -> bool:
        return bool(len(self.trace.ops) or len(self.trace.launches))

    @cached_property
    def products(self) -> BoolArray:
        """Per kernel: launched by an operator that is a GEMM or an attention?"""
        wanted = self.trace.symbols.where(lambda t: t.partition(".")[0] in GEMM_OPS | ATTENTION_OPS)
        return look_up(wanted[self.trace.ops.name], self.links.kernel_op, False)

    @cached_property
    def communication(self) -> BoolArray:
        """Per kernel: does it move data between ranks?"""
        return self.trace.symbols.where(moves_data)[self.trace.kernels.name]

    @cached_property
    def recorded(self) -> tuple[bool, bool]:
        """Does any operator have shapes, and any strides?"""
        inputs = [self.trace.details.inputs(code) for code in np.unique(self.trace.ops.inputs).tolist()]
        return any(found.dims for found in inputs), any(found.strides for found in inputs)

    def launched_by(self, wanted: Callable[[str], bool]) -> BoolArray:
        """Per launch: does its name fit?"""
        return self.trace.symbols.where(wanted)[self.trace.launches.name]


def find_lacks(
    trace: Trace, links: Links, attribution: Attribution, *, steps: Sequence[int] | None = None
) -> list[Lack]:
    """Everything the recording lacks, what costs the analysis most first; empty where it lacks nothing.

    ``steps``: positions of the analysed ones, all by default.
    """
    counted = range(len(links.steps.index)) if steps is None else steps
    recording = _Recording(trace, links, attribution, list(counted))
    lacks = [lack for check in _CHECKS for lack in check(recording)]
    return sorted(lacks, key=lambda lack: (_SEVERITIES.index(lack.severity), -(lack.share or 0.0)))


def _by_share(share: float) -> Level:
    return "high" if share >= _HIGH else "medium" if share >= _MEDIUM else "low"


def _gpu_only(r: _Recording) -> Iterator[Lack]:
    if not len(r.trace.ops) and not _captured(r).any():  # a step that is one graph has no operator
        yield Lack("gpu-only", *words.gpu_only(launches=r.has_host), "high", 1.0)


def _shapes(r: _Recording) -> Iterator[Lack]:
    if len(r.trace.ops) and not r.recorded[0]:
        yield Lack("no-shapes", *words.NO_SHAPES, "high", r.share(r.products))


def _names(r: _Recording) -> Iterator[Lack]:
    """Model work that no module or named range encloses, in compiled graphs and elsewhere."""
    component = r.attribution.component
    of_model = ~np.isin(component, [COMPONENTS.index(name) for name in _NO_MODULE])
    if not len(r.trace.ops):
        return
    unnamed = of_model & (r.attribution.module < 0) & (r.links.kernel_node >= 0) & ~_captured(r)
    forest, texts = r.links.forest, r.trace.symbols
    compiled = look_up(
        forest.nearest(texts.where(is_compiled)[r.links.name]) >= 0, r.links.kernel_node, False
    )
    nowhere = _nowhere(r)
    for code, mask in (("compiled", unnamed & compiled), ("no-module-names", unnamed & ~compiled)):
        share, lost = r.share(mask), r.share(mask & nowhere)
        if share >= _MEDIUM or lost >= _NEGLIGIBLE:
            told = words.no_modules(share, lost, little=lost < _NEGLIGIBLE, compiled=code == "compiled")
            yield Lack(code, *told, _by_share(lost), share)


def _nowhere(r: _Recording) -> BoolArray:
    """Per kernel: without a component."""
    out: BoolArray = r.attribution.component == COMPONENTS.index("unattributed")
    return out


def _captured(r: _Recording) -> BoolArray:
    """Per kernel: launched by a CUDA graph?"""
    return look_up(r.trace.replays, r.links.kernel_launch, False)


def _graphs(r: _Recording) -> Iterator[Lack]:
    share, lost = r.share(_captured(r)), r.share(_captured(r) & _nowhere(r))
    if share >= _NEGLIGIBLE:
        told = words.in_graph(share, lost, little=lost < _NEGLIGIBLE)
        yield Lack("cuda-graph", *told, _by_share(lost), share)


def _launches(r: _Recording) -> Iterator[Lack]:
    before = (r.links.kernel_node < 0) & ~launched_by_several(r.trace, r.links.kernel_launch)
    share, lost = r.share(before), r.share(before & _nowhere(r))
    if r.has_host and share >= _NEGLIGIBLE:
        told = words.launched_before(share, lost, little=lost < _NEGLIGIBLE)
        yield Lack("no-launch", *told, _by_share(lost), share)


def _other_reasons(r: _Recording) -> Iterator[Lack]:
    """What else leaves time unattributed."""
    told = ("no launch", "graph", "compiled", "no names", "no operators")
    for reason, mask in r.attribution.reasons():
        share = r.share(mask)
        if reason not in told and share >= _NEGLIGIBLE:
            said = words.no_component(reason, share)
            yield Lack(reason.replace(" ", "-"), *said, _by_share(share), share)


def _steps(r: _Recording) -> Iterator[Lack]:
    steps = r.links.steps
    if not steps.marked and _serves(r):
        yield Lack("no-batches", *words.NO_BATCHES, "medium", None)
    elif not steps.marked:
        yield Lack("no-steps", *words.NO_STEPS, "medium", None)
    elif len(r.steps) == 1:
        yield Lack("one-step", *(words.ONE_RANGE if steps.by else words.ONE_STEP), "low", None)


def _serves(r: _Recording) -> bool:
    """Did an engine run that serves? Its batches differ: a prompt's is no warm-up of those behind it."""
    return bool(r.trace.symbols.where(_SERVES.match)[r.trace.ops.name].any())


def _warm_up(r: _Recording) -> Iterator[Lack]:
    """Compilation, allocation, or a step that is not like the others."""
    steps, texts = r.links.steps, r.trace.symbols
    step, length = r.links.kernel_step, (steps.end_ns - steps.start_ns)[r.steps].astype(float)
    own = np.bincount(step[step >= 0], r.trace.kernels.dur_ns[step >= 0], len(steps.index))[r.steps]
    takes = np.maximum(length, own)  # where the CPU runs ahead, the GPU's work is what a step takes
    compiling = texts.where(lambda text: text.endswith("(dynamo_timed)"))
    compiles = bool(compiling[r.trace.ranges.name].any() or compiling[r.trace.ops.name].any())
    long_step: tuple[int, float] | None = None
    if steps.marked and len(takes) > 2 and takes.max() > _SLOW * np.median(takes) > 0 and not _serves(r):
        slowest = int(np.argmax(takes))
        found = steps.index[r.steps[slowest]], float(takes[slowest] / np.median(takes))
        if slowest == 0:
            long_step = found
        else:
            yield Lack("odd-step", *words.odd_step(*found), "medium", None)
    allocating = r.launched_by(lambda text: text in _ALLOCATIONS) & _in_steps(r)
    held = int(r.trace.launches.dur_ns[allocating].sum())
    much = steps.marked and held > _ALLOCATING * length.sum()
    allocates = (held / float(length.sum()), int(allocating.sum())) if much else None
    if allocates and not (compiles or long_step) and (allocating & r.launched_by(_FREES.__contains__)).any():
        yield Lack("memory-anew", *words.memory_anew(*allocates), "medium", None)
    elif compiles or long_step or allocates:
        told = words.warm_up(compiles=compiles, long_step=long_step, allocates=allocates)
        yield Lack("warm-up", *told, "medium", None)


def _in_steps(r: _Recording) -> BoolArray:
    """Per launch: made within an analysed step?"""
    steps, when = r.links.steps, r.trace.launches.ts_ns
    at = np.searchsorted(steps.start_ns, when, side="right") - 1
    inside: BoolArray = np.isin(at, r.steps) & (when < steps.end_ns[np.maximum(at, 0)])
    return inside


def _synchronizations(r: _Recording) -> Iterator[Lack]:
    waiting = r.launched_by(lambda text: text in _SYNCHRONIZATIONS) & _in_steps(r)
    steps = len(r.steps)
    if r.links.steps.marked and waiting.sum() > _SYNCHRONIZING * steps:
        yield Lack("synchronizations", *words.synchronizations(waiting.sum() / steps), "low", None)


def _device(r: _Recording) -> Iterator[Lack]:
    if r.trace.device_name is None:
        yield Lack("no-device", *words.NO_DEVICE, "medium", None)


def _other_devices(r: _Recording) -> Iterator[Lack]:
    if r.trace.device is not None:
        left_out = sum(r.trace.beside.values())
        share = left_out / (left_out + r.total_ns)
        others = sorted(r.trace.beside, key=lambda one: (-r.trace.beside[one], one))
        told = words.other_devices(r.trace.device, others, share, little=share < _NEGLIGIBLE)
        yield Lack("several-gpus", *told, _by_share(share), share)


def _launching(r: _Recording) -> npt.NDArray[np.int64]:
    """Per launch its process."""
    return processes_of_threads(r.trace)[r.trace.launches.thread]


def _processes(r: _Recording) -> Iterator[Lack]:
    """Files put together of processes that share a GPU: what they run at once is no sequence."""
    process = _launching(r)
    ids = [r.trace.launches.correlation[process == one] for one in np.unique(process)]
    of_each = [np.isin(r.trace.kernels.correlation, one[one >= 0]).mean() for one in ids if len(one)]
    count = sum(share > _NEGLIGIBLE for share in of_each)
    if count > 1 and r.trace.device is None:  # of several GPUs each can have its own
        yield Lack("shared-gpu", *words.shared_gpu(count), "high", None)


def _partial(r: _Recording) -> Iterator[Lack]:
    if r.trace.truncated:
        yield Lack("cut-off", *words.CUT_OFF, "high", None)
    elif r.trace.partial:
        yield Lack("damaged", *words.DAMAGED, "medium", None)


def _overhead(r: _Recording) -> Iterator[Lack]:
    """Python frames and memory events cost host time, which shows where the GPU waits for the host."""
    kernels, ops = r.trace.kernels, max(1, len(r.trace.ops))
    flags = []
    if len(r.trace.frames) > ops:
        flags.append("with_stack=True")
    if r.trace.categories.get("cpu_instant_event", 0) > ops / 4:
        flags.append("profile_memory=True")
    if not flags or not len(kernels):
        return
    begin, end = kernels.ts_ns, kernels.ts_ns + kernels.dur_ns
    first, last = begin.min(keepdims=True), end.max(keepdims=True)
    idle = 1 - int(covered(begin, end, first, last)[0]) / max(1, int(last[0] - first[0]))
    if idle > _IDLE:
        yield Lack("profiler-overhead", *words.profiler_overhead(idle, flags), "medium", None)


def _rank(r: _Recording) -> Iterator[Lack]:
    one = r.trace.device is None and len(np.unique(_launching(r))) < 2  # of files put together none is known
    if r.communication.any() and one and rank_and_world(r.trace.metadata)[0] is None:
        yield Lack("no-rank", *words.NO_RANK, "low", r.share(r.communication))


def _old_pytorch(r: _Recording) -> Iterator[Lack]:
    """What later versions write without being asked."""
    seen: list[words.Older] = []
    lost: list[str] = []
    touched = np.zeros(len(r.trace.kernels), np.bool_)
    ops = r.trace.ops
    if "Kernel" in r.trace.categories or "Operator" in r.trace.categories:
        seen.append("format")
    has_dims, has_strides = r.recorded
    if has_dims and not has_strides and r.products.any():
        seen.append("strides")
        touched |= r.products
    backward = r.trace.symbols.where(lambda text: text.startswith("autograd::engine::"))[ops.name]
    if backward.any() and not (ops.sequence >= 0).any():
        seen.append("sequences")
    moving = r.communication & (r.links.kernel_node >= 0)
    if moving.any() and not any(
        r.trace.details.collective(code)
        for code in np.unique(np.append(ops.collective, r.trace.kernels.collective)).tolist()
    ):
        calls = find_calls(r.trace, r.links, np.flatnonzero(moving))[0]  # inputs and names tell some of it
        lost = [said for name, said in _OF_CALL.items() if all(getattr(one, name) is None for one in calls)]
    if lost:
        seen.append("collectives")
        touched |= moving
    if seen:
        share = r.share(touched)
        severity: Level = "medium" if share >= _HIGH else "low"
        yield Lack("old-pytorch", *words.older_pytorch(seen, lost), severity, share or None)


def _dropped(r: _Recording) -> Iterator[Lack]:
    """Launches whose kernel is not in the file; while a CUDA graph is captured nothing runs."""
    launches = r.trace.launches
    kernel = r.launched_by(lambda text: "LaunchKernel" in text or "LaunchCooperativeKernel" in text)
    graphs = r.launched_by(lambda text: "GraphLaunch" in text or "BeginCapture" in text)
    missing = kernel & ~np.isin(launches.correlation, r.trace.kernels.correlation)
    if missing.sum() > _DROPPED * kernel.sum() and not graphs.any():
        severity: Level = "high" if missing.sum() > _HIGH * kernel.sum() else "medium"
        told = words.dropped_events(int(missing.sum()), int(kernel.sum()))
        yield Lack("dropped-events", *told, severity, None)


def _skew(r: _Recording) -> Iterator[Lack]:
    """Kernels that begin before their launch; those of NCCL are known for it (pytorch/kineto#1380)."""
    linked = (r.links.kernel_launch >= 0) & ~r.communication
    launched = r.trace.launches.ts_ns[r.links.kernel_launch[linked]]
    early = launched - r.trace.kernels.ts_ns[linked]
    if (early > 0).sum() > _SKEWED * max(1, linked.sum()):
        told = words.clock_skew(int((early > 0).sum()), float(early.max()) / 1e3)
        yield Lack("clock-skew", *told, "medium", None)


_CHECKS: tuple[Callable[[_Recording], Iterator[Lack]], ...] = (
    _gpu_only, _other_devices, _processes, _partial, _shapes, _names, _graphs, _launches, _other_reasons,
    _steps, _warm_up, _synchronizations, _device, _overhead, _rank, _old_pytorch, _dropped, _skew,
)  # fmt: skip
