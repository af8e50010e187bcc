"""Plays the part of the profiler: clocks, nesting, launches, streams, and the truth about every kernel.

Two host threads exist, as in any eager training run: the main thread and autograd's device thread.
An op costs a little host time, a launch more; the GPU runs each stream in launch order and never
before the launch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tests.synthetic.gpu import Work
from tests.synthetic.spec import Event, Options, Truth, Where
from tests.synthetic.values import Argument, arguments

PID = 4242
MAIN = 4242
AUTOGRAD = 4311
COMPUTE_STREAM = 7
NCCL_STREAM = 23
START_NS = 1_824_871_066_082_664  # relative to baseTimeNanoseconds, as large as in real files

_CBID = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cuLaunchKernelEx": 652, "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51, "cudaStreamIsCapturing": 317, "cudaDeviceSynchronize": 165, "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
}  # fmt: skip
#: Calls whose event starts an ac2g arrow; other calls get a dangling end instead (Kineto's own oddity).
_ARROW_STARTS = {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cudaMemcpyAsync",
                 "cudaMemsetAsync", "cudaDeviceSynchronize"}  # fmt: skip


@dataclass(slots=True)
class _Span:
    first: int
    last: int


@dataclass
class Recorder:
    """Collects events while the simulated program runs. All times in ns."""

    options: Options
    where: Where = field(default_factory=Where)
    tid: int = MAIN
    step: int | None = None
    pace: float = 1.0  # of the step's kernels: their times times this
    clock: dict[int, int] = field(default_factory=lambda: {MAIN: START_NS, AUTOGRAD: START_NS})
    stream_free: dict[int, int] = field(default_factory=dict)
    ops: dict[int, list[Event]] = field(default_factory=lambda: {AUTOGRAD: [], MAIN: []})
    python: list[Event] = field(default_factory=list)
    activity: list[Event] = field(default_factory=list)  # runtime and GPU events, in launch order
    truth: list[Truth] = field(default_factory=list)
    sequence: int = 146  # next autograd sequence number; a real run has warmed up before

    def __post_init__(self) -> None:
        self._random = random.Random(self.options.seed)
        self._open: dict[int, list[Event]] = {MAIN: [], AUTOGRAD: []}
        self._frames: list[int] = []
        self._external = 0
        self._correlation = 40_000
        self._next_frame = 0
        self._instances: dict[str, dict[str, int]] = {}
        self._gpu_spans: dict[tuple[int, int], _Span] = {}  # (external id of the annotation, stream)
        self._annotations: dict[int, Event] = {}

    # -- host side ---------------------------------------------------------------------------------

    def spend(self, ns: int) -> None:
        """Let host time pass on the current thread, with a few percent of variation."""
        ns = max(80, round(ns * self._random.uniform(0.9, 1.15)))
        self.clock[self.tid] += round(ns * self.options.slow_cpu)

    @contextmanager
    def op(
        self,
        name: str,
        inputs: tuple[Argument, ...] | None = (),
        *,
        sequence: int | None = None,
        forward_thread: int = 0,
        category: str = "cpu_op",
        extra: dict[str, Any] | None = None,
    ) -> Iterator[Event]:
        """Record a cpu_op (or annotation) around the body; ``inputs`` None leaves the shapes out."""
        self._external += 1
        args: dict[str, Any] = {"External id": self._external}
        evaluate = name.startswith("autograd::engine::evaluate_function")
        if sequence is not None and not evaluate:
            args |= {"Sequence number": sequence, "Fwd thread id": forward_thread}
        args["Record function id"] = 0
        if sequence is not None and evaluate:
            args |= {"Sequence number": sequence, "Fwd thread id": forward_thread}
        if inputs is not None and self.options.shapes and not evaluate and category == "cpu_op":
            args |= arguments(inputs)
        args |= extra or {}
        event = Event("X", category, name, PID, self.tid, self.clock[self.tid], 0, args)
        self.ops[self.tid].append(event)
        self._open[self.tid].append(event)
        if category == "user_annotation":
            self._annotations[self._external] = event
        self.spend(420)
        try:
            yield event
        finally:
            self.spend(180)
            self._open[self.tid].pop()
            event.dur = self.clock[self.tid] - event.ts

    def leaf(self, name: str, *inputs: Argument, sequence: int | None = None) -> None:
        """An op without children or kernels, such as a view."""
        with self.op(name, inputs, sequence=sequence):
            self.spend(250)

    @contextmanager
    def annotation(self, name: str) -> Iterator[None]:
        """A record_function range."""
        with self.op(name, None, category="user_annotation"):
            yield

    @contextmanager
    def frame(self, name: str, *, module: tuple[str, str] | None = None) -> Iterator[None]:
        """A Python frame; ``module`` is (class, FQN) for the frame of an nn.Module call."""
        if not self.options.module_frames or self.tid != MAIN:
            yield
            return
        self._next_frame += 1
        frame = self._next_frame
        args: dict[str, Any] = {
            "Python parent id": self._frames[-1] if self._frames else None,
            "Python id": frame,
        }
        if module is not None:
            known = self._instances.setdefault(module[0], {})
            number = known.setdefault(module[1], len(known))
            name = f"nn.Module: {module[0]}_{number}"
            args["Python module id"] = number
        event = Event("X", "python_function", name, PID, self.tid, self.clock[self.tid], 0, args)
        self.python.append(event)
        self._frames.append(frame)
        self.spend(160)
        try:
            yield
        finally:
            self.spend(120)
            self._frames.pop()
            event.dur = self.clock[self.tid] - event.ts

    @contextmanager
    def at(self, **changes: Any) -> Iterator[None]:
        """Say which part of the step the body is."""
        before, self.where = self.where, replace(self.where, **changes)
        try:
            yield
        finally:
            self.where = before

    @contextmanager
    def on_autograd_thread(self) -> Iterator[None]:
        """Hand over to autograd's device thread and wait for it."""
        self.clock[AUTOGRAD] = self.clock[MAIN] + 21_000
        self.tid = AUTOGRAD
        try:
            yield
        finally:
            self.tid = MAIN
            self.clock[MAIN] = self.clock[AUTOGRAD] + 14_000

    def innermost_event(self) -> Event:
        """The op that is running on the current thread."""
        return self._open[self.tid][-1]

    # -- runtime calls and the GPU -----------------------------------------------------------------

    def _call(self, api: str, spend: int) -> Event:
        self._correlation += self._random.randint(1, 9)  # other, untraced calls take numbers too
        args: dict[str, Any] = {}
        if self._open[self.tid]:
            args["External id"] = self._innermost("cpu_op")
        args |= {"cbid": _CBID[api], "correlation": self._correlation}
        category = "cuda_driver" if api.startswith("cu") and not api.startswith("cuda") else "cuda_runtime"
        event = Event("X", category, api, PID, self.tid, self.clock[self.tid], 0, args)
        event.flow = ("s" if api in _ARROW_STARTS else "f", self._correlation, "ac2g")
        self.spend(spend)
        event.dur = self.clock[self.tid] - event.ts
        return event

    def call(self, api: str, spend: int = 700) -> None:
        """A runtime call that starts nothing on the GPU."""
        self.activity.append(self._call(api, spend))

    def _innermost(self, category: str) -> int:
        """External id of the innermost open op, or of any open event where no op is."""
        opened = self._open[self.tid]
        for event in reversed(opened):
            if event.cat == category:
                return int(event.args["External id"])
        return int(opened[-1].args["External id"])

    def launch(
        self,
        work: Work,
        *,
        role: str | None = None,
        shape: tuple[int, int, int] | None = None,
        batch: int | None = None,
        flops: float = 0.0,
        component: str | None = None,
        strict: bool = True,
        stream: int = COMPUTE_STREAM,
        after: int = 0,
        extra: dict[str, Any] | None = None,
    ) -> None:
        """Launch ``work`` from the current thread; it starts on a free stream, at ``after`` or later."""
        factor = self.pace * (self.options.slow_gemms if shape is not None else 1.0)
        if self.options.jitter:
            factor *= 1.0 + self._random.uniform(-self.options.jitter, self.options.jitter)
        if factor != 1.0:
            work = replace(work, duration_ns=round(factor * work.duration_ns))
        call = self._call(work.api, 4300)
        start = max(self.stream_free.get(stream, 0) + 640, call.ts + round(call.dur * 0.7) + 1900, after)
        args: dict[str, Any] = {k: v for k, v in call.args.items() if k == "External id"}
        event = self._gpu_event(work, start, stream, int(call.args["correlation"]), args, extra or {})
        self.activity += [event, call]
        annotation = next((e for e in reversed(self._open[self.tid]) if e.cat == "user_annotation"), None)
        if annotation is not None:
            key = (int(annotation.args["External id"]), stream)
            span = self._gpu_spans.setdefault(key, _Span(start, start))
            span.last = start + work.duration_ns
        where = self.where if component is None else replace(self.where, component=component)
        m, n, k = shape or (None, None, None)
        self._record_truth(event, where, role, (m, n, k, batch), flops, True, strict)

    def prelaunched(self, works: list[Work], where: Where) -> None:
        """Kernels that were already queued when the recording began: no launch, no External id."""
        for work in works:
            self._correlation += self._random.randint(1, 9)
            start = max(self.stream_free.get(COMPUTE_STREAM, 0) + 640, START_NS + 3000)
            event = self._gpu_event(work, start, COMPUTE_STREAM, self._correlation, {}, {})
            self.activity.append(event)
            self._record_truth(event, where, None, (None, None, None, None), 0.0, False, False)

    def _record_truth(self, event: Event, where: Where, role: str | None,
                      sizes: tuple[int | None, int | None, int | None, int | None],
                      flops: float, launched: bool, strict: bool) -> None:  # fmt: skip
        m, n, k, batch = sizes
        self.truth.append(Truth(
            event.args["correlation"], event.name, event.ts, event.dur, int(event.tid), self.step,
            where.component, where.phase, where.layer, where.module,
            role, m, n, k, batch, flops, launched, strict,
        ))  # fmt: skip

    def _gpu_event(self, work: Work, start: int, stream: int, correlation: int, args: dict[str, Any],
                   extra: dict[str, Any]) -> Event:  # fmt: skip
        self.stream_free[stream] = start + work.duration_ns
        where: dict[str, Any] = {"device": 0, "context": 1, "stream": stream, "correlation": correlation}
        if work.category == "kernel":
            blocks = work.grid[0] * work.grid[1] * work.grid[2]
            warps = -(-work.block[0] * work.block[1] * work.block[2] // 32)
            args |= {"queued": 0} | where | {
                "registers per thread": work.registers, "shared memory": work.shared,
                "blocks per SM": round(blocks / 132, 6), "warps per SM": round(blocks * warps / 132, 6),
                "grid": list(work.grid), "block": list(work.block),
                "est. achieved occupancy %": work.occupancy,
            }  # fmt: skip
        else:
            rate = work.bytes / work.duration_ns
            args |= where | {"bytes": work.bytes, "memory bandwidth (GB/s)": rate}
        event = Event("X", work.category, work.name, 0, stream, start, work.duration_ns, args | extra)
        event.flow = ("f", correlation, "ac2g")
        return event

    def synchronize(self) -> None:
        """Wait for every stream, as loss.item() or the end of the recording does."""
        event = self._call("cudaDeviceSynchronize", 1200)
        end = max([self.clock[self.tid], *(t + 4000 for t in self.stream_free.values())])
        self.clock[self.tid] = end
        event.dur = end - event.ts
        self.activity.append(event)

    def gpu_annotations(self) -> list[Event]:
        """gpu_user_annotation events: from 1 ns before their first kernel to 1 ns after their last."""
        spans = []
        for (external, stream), span in self._gpu_spans.items():
            name = self._annotations[external].name
            spans.append(Event("X", "gpu_user_annotation", name, 0, stream, span.first - 1,
                               span.last - span.first + 2, {"External id": external}))  # fmt: skip
        return spans
