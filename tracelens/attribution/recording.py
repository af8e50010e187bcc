"""What a recording lacks: what the analysis loses by it, and the flag or the line that would give it.

Each check looks at one thing and says nothing where nothing is lost. Remedies that unattributed time has too
are taken from ``REASONS``, so an advice is worded once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import numpy as np
import numpy.typing as npt

from tracelens.attribution.attribute import is_compiled
from tracelens.attribution.collectives import moves_data
from tracelens.attribution.result import REASONS, Attribution
from tracelens.gemm import ATTENTION_OPS, GEMM_OPS
from tracelens.results import Lack
from tracelens.trace import Links, Trace, look_up
from tracelens.trace.metadata import device_properties, rank_and_world
from tracelens.trace.spans import covered
from tracelens.words import COMPONENTS, Level

BoolArray = npt.NDArray[np.bool_]

_HIGH, _MEDIUM = 0.20, 0.05  # share of the file's GPU time from which a lack is that severe
_NEGLIGIBLE = 0.005  # of the file's GPU time: what is smaller is named in coverage only
_SEVERITIES: tuple[Level, ...] = get_args(Level)
_CURRENT = "record with a current PyTorch"
_SLOW = 2.0  # a step so many times as long as the median one is no usual step
_IDLE = 0.30  # of the GPU's time: from here on the recorder's own work on the host can be seen in it
_SKEWED = 0.01  # of the kernels: fewer that begin before their launch are CUPTI's rounding
_DROPPED = 0.01  # of the launches
_ALLOCATING = 0.02  # of the steps' host time inside cudaMalloc and cudaFree
_SYNCHRONIZING = 5  # device-wide waits a step
_ALLOCATIONS = frozenset({"cudaMalloc", "cudaFree", "cudaMallocAsync", "hipMalloc", "hipFree"})
_SYNCHRONIZATIONS = frozenset({"cudaDeviceSynchronize", "hipDeviceSynchronize"})
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
    if not len(r.trace.ops):
        yield Lack(
            "gpu-only",
            "No operators" if r.has_host else "No CPU events",
            "nothing ties a kernel to its operator, shape, module, phase or step: kernel names alone speak",
            REASONS["no operators"][1],
            "high",
            1.0,
        )


def _shapes(r: _Recording) -> Iterator[Lack]:
    share = r.share(r.products)
    if len(r.trace.ops) and not r.recorded[0]:
        yield Lack(
            "no-shapes",
            "No shapes of operator inputs",
            "no GEMM has an M, N, K, FLOPs or an alignment, and no model dimension is known",
            "record with record_shapes=True",
            "high",
            share,
        )


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
    for reason, code, title, mask in (
        ("compiled", "compiled", "torch.compile hides module names", unnamed & compiled),
        ("no names", "no-module-names", "No module names", unnamed & ~compiled),
    ):
        share, lost = r.share(mask), r.share(mask & nowhere)
        if share >= _MEDIUM or lost >= _NEGLIGIBLE:
            effect = _without_names(lost, share)
            severity: Level = _by_share(lost) if lost >= _MEDIUM else "low"
            yield Lack(code, title, effect, REASONS[reason][1], severity, share)


def _without_names(lost: float, share: float) -> str:
    """Say what share has no module, as the figure beside it, and what part of it has no component."""
    if f"{share:.1%}" == f"{lost:.1%}":
        return f"{share:.1%} of the file's GPU time has no component"
    told = "operators, shapes and order tell"
    said = f"{share:.1%} of the file's GPU time has no module"
    if lost < _NEGLIGIBLE:
        return f"{said}: {told} {'its component' if not lost else 'the component of nearly all of it'}"
    return f"{said}; {lost:.1%} has no component either, {told} that of the rest"


def _nowhere(r: _Recording) -> BoolArray:
    """Per kernel: without a component."""
    out: BoolArray = r.attribution.component == COMPONENTS.index("unattributed")
    return out


def _by_order(lost: float, share: float) -> str:
    """Say what share has no step or module, the figure beside it, and what part of it has no component."""
    if f"{share:.1%}" == f"{lost:.1%}":
        return f"{share:.1%} of the file's GPU time has no component"
    said = f"{share:.1%} of the file's GPU time belongs to no step or module"
    if lost < _NEGLIGIBLE:
        told = "the component of nearly all of it" if lost else "its component"
        return f"{said}: order alone tells {told}"
    return f"{said}; {lost:.1%} has no component either, order alone tells that of the rest"


def _captured(r: _Recording) -> BoolArray:
    """Per kernel: launched by a CUDA graph?"""
    return look_up(r.trace.replays, r.links.kernel_launch, False)


def _graphs(r: _Recording) -> Iterator[Lack]:
    share, lost = r.share(_captured(r)), r.share(_captured(r) & _nowhere(r))
    if share >= _NEGLIGIBLE:
        yield Lack(
            "cuda-graph",
            "Kernels inside a CUDA graph",
            f"all of its kernels hang from one launch; {_by_order(lost, share)}",
            REASONS["graph"][1],
            _by_share(lost),
            share,
        )


def _launches(r: _Recording) -> Iterator[Lack]:
    before = r.links.kernel_node < 0
    share, lost = r.share(before), r.share(before & _nowhere(r))
    if r.has_host and share >= _NEGLIGIBLE:
        yield Lack(
            "no-launch",
            "Kernels launched before the recording began",
            _by_order(lost, share),
            REASONS["no launch"][1],
            _by_share(lost),
            share,
        )


def _other_reasons(r: _Recording) -> Iterator[Lack]:
    """What else leaves time unattributed."""
    told = {REASONS[name] for name in ("no launch", "graph", "compiled", "no names", "no operators")}
    for why, remedy, mask in r.attribution.reasons():
        share = r.share(mask)
        if (why, remedy) not in told and share >= _NEGLIGIBLE:
            code = next(name for name, texts in REASONS.items() if texts == (why, remedy)).replace(" ", "-")
            effect = f"{share:.1%} of the file's GPU time has no component"
            yield Lack(code, why[:1].upper() + why[1:], effect, remedy, _by_share(share), share)


def _steps(r: _Recording) -> Iterator[Lack]:
    steps = r.links.steps
    if not steps.marked:
        yield Lack(
            "no-steps",
            "No step is marked",
            "the whole trace counts as one step, with what came before and after the loop in it",
            "call prof.step() at the end of each iteration",
            "medium",
            None,
        )
    elif len(r.steps) == 1:
        yield Lack(
            "one-step",
            "Only one step",
            "how much step times differ is not known",
            "record several: schedule(wait=1, warmup=1, active=3)",
            "low",
            None,
        )


def _warm_up(r: _Recording) -> Iterator[Lack]:
    """Compilation, allocation, or a step that is not like the others."""
    steps, texts = r.links.steps, r.trace.symbols
    length = (steps.end_ns - steps.start_ns)[r.steps].astype(float)
    seen = []
    compiling = texts.where(lambda text: text.endswith("(dynamo_timed)"))
    if compiling[r.trace.ranges.name].any() or compiling[r.trace.ops.name].any():
        seen.append("torch.compile compiles")
    if steps.marked and len(length) > 2 and length.max() > _SLOW * np.median(length) > 0:
        slowest = int(np.argmax(length))
        times = length[slowest] / np.median(length)
        said = f"step {steps.index[r.steps[slowest]]} takes {times:.1f} times as long as the median step"
        if slowest == 0:
            seen.append(said)
        else:
            yield Lack(
                "odd-step",
                "A step is not like the others",
                f"{said}, and it is not the first: no warm-up",
                "record more steps: schedule(wait=5, warmup=2, active=10), and look at what runs in it",
                "medium",
                None,
            )
    allocating = r.launched_by(lambda text: text in _ALLOCATIONS) & _in_steps(r)
    held = int(r.trace.launches.dur_ns[allocating].sum())
    if steps.marked and held > _ALLOCATING * length.sum():
        count = int(allocating.sum())
        seen.append(f"cudaMalloc and cudaFree take {held / length.sum():.0%} of the steps ({count:,} calls)")
    if seen:
        yield Lack(
            "warm-up",
            "The trace holds a warm-up",
            "; ".join(seen) + ": the steps are not those of the long run",
            "begin later: schedule(wait=5, warmup=2, active=3)",
            "medium",
            None,
        )


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
        yield Lack(
            "synchronizations",
            "The CPU waits for the GPU within the steps",
            f"{waiting.sum() / steps:.0f} device-wide synchronizations a step: the CPU cannot run ahead, "
            "and the GPU idles meanwhile",
            "leave torch.cuda.synchronize() out of the recorded steps",
            "low",
            None,
        )


def _device(r: _Recording) -> Iterator[Lack]:
    if not any(entry.get("name") for entry in device_properties(r.trace.metadata)):
        yield Lack(
            "no-device",
            "The GPU is not named",
            "without its SMs and peaks there is no MFU, no share of peak and no wave count",
            "name it: tracelens analyze --gpu h100-sxm",
            "medium",
            None,
        )


def _partial(r: _Recording) -> Iterator[Lack]:
    if r.trace.partial:
        cut = r.trace.truncated
        yield Lack(
            "cut-off" if cut else "damaged",
            "The file is cut off" if cut else "The file is damaged",
            "every figure is of the part that could be read",
            "let export_chrome_trace return before the process ends, and copy the whole file"
            if cut
            else "export or copy the file again",
            "high" if cut else "medium",
            None,
        )


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
        yield Lack(
            "profiler-overhead",
            "The profiler slows the CPU",
            f"the GPU is idle {idle:.0%} of its time, partly because of the profiler's own work: step and "
            "idle times are longer than without it",
            f"for step times record without {' and '.join(flags)}",
            "medium",
            None,
        )


def _rank(r: _Recording) -> Iterator[Lack]:
    if r.communication.any() and rank_and_world(r.trace.metadata)[0] is None:
        yield Lack(
            "no-rank",
            "The rank is not named",
            "ranks of a job cannot be told apart",
            "start the profiler after torch.distributed.init_process_group",
            "low",
            r.share(r.communication),
        )


def _old_pytorch(r: _Recording) -> Iterator[Lack]:
    """What later versions write without being asked."""
    seen, touched = [], np.zeros(len(r.trace.kernels), np.bool_)
    ops = r.trace.ops
    if "Kernel" in r.trace.categories or "Operator" in r.trace.categories:
        seen.append("the format is that of 2021")
    has_dims, has_strides = r.recorded
    if has_dims and not has_strides and r.products.any():
        seen.append("operators have no strides, so layouts and leading dimensions are not known")
        touched |= r.products
    backward = r.trace.symbols.where(lambda text: text.startswith("autograd::engine::"))[ops.name]
    if backward.any() and not (ops.sequence >= 0).any():
        seen.append("no sequence numbers tie the backward to the forward")
    moving = r.communication & (r.links.kernel_node >= 0)
    if moving.any() and not any(
        r.trace.details.collective(code)
        for code in np.unique(np.append(ops.collective, r.trace.kernels.collective)).tolist()
    ):
        seen.append("collectives have no message size, type or process group")
        touched |= moving
    if seen:
        share = r.share(touched)
        yield Lack(
            "old-pytorch",
            "Recorded with an older PyTorch",
            "; ".join(seen),
            _CURRENT,
            "medium" if share >= _HIGH else "low",
            share if share else None,
        )


def _dropped(r: _Recording) -> Iterator[Lack]:
    """Launches whose kernel is not in the file; while a CUDA graph is captured nothing runs."""
    launches = r.trace.launches
    kernel = r.launched_by(lambda text: "LaunchKernel" in text or "LaunchCooperativeKernel" in text)
    graphs = r.launched_by(lambda text: "GraphLaunch" in text or "BeginCapture" in text)
    missing = kernel & ~np.isin(launches.correlation, r.trace.kernels.correlation)
    if missing.sum() > _DROPPED * kernel.sum() and not graphs.any():
        yield Lack(
            "dropped-events",
            "GPU events are missing",
            f"{missing.sum():,} of {kernel.sum():,} kernel launches have no kernel in the file: GPU times "
            "are too short",
            "call torch.cuda.synchronize() before the last prof.step(), and record fewer steps",
            "high" if missing.sum() > _HIGH * kernel.sum() else "medium",
            None,
        )


def _skew(r: _Recording) -> Iterator[Lack]:
    """Kernels that begin before their launch; those of NCCL are known for it (pytorch/kineto#1380)."""
    linked = (r.links.kernel_launch >= 0) & ~r.communication
    launched = r.trace.launches.ts_ns[r.links.kernel_launch[linked]]
    early = launched - r.trace.kernels.ts_ns[linked]
    if (early > 0).sum() > _SKEWED * max(1, linked.sum()):
        yield Lack(
            "clock-skew",
            "The clocks of CPU and GPU disagree",
            f"{(early > 0).sum():,} kernels begin before their launch, one by {early.max() / 1e3:,.0f} µs: "
            "step borders are off by as much",
            f"{_CURRENT} (pytorch/kineto#917 puts both on one clock)",
            "medium",
            None,
        )


_CHECKS: tuple[Callable[[_Recording], Iterator[Lack]], ...] = (
    _gpu_only, _partial, _shapes, _names, _graphs, _launches, _other_reasons, _steps, _warm_up,
    _synchronizations, _device, _overhead, _rank, _old_pytorch, _dropped, _skew,
)  # fmt: skip
