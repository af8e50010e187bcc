"""One recording: profiler and ranges between two step boundaries."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as torch_profiler
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from tracelens.capture.backward import NodeRange, backward_ranges
from tracelens.capture.compiled import Compiled, counters
from tracelens.capture.messages import why
from tracelens.capture.modules import Batch, Model
from tracelens.capture.ranges import ModuleRanges


class _Profile(profile):
    """Waits for gloo: its thread ends the range of a collective after it has said that it is done, and where
    the profiler has stopped by then, it writes into freed memory and the training aborts (torch 2.13)."""

    def stop_trace(self) -> None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            time.sleep(0.05)  # after the last step's range; the thread needs microseconds of it
        super().stop_trace()


class Recorder:
    """Starts at a step boundary; ``step`` at each following one; ``stop``; ``export``."""

    def __init__(self, models: Iterable[Model], *, first_step: int, warmup: int):
        self.models = list(models)
        self.batch = Batch()
        self._compiled = Compiled()
        self._per_model = (
            [] if self._compiled.blind else [model.spots(self._compiled) for model in self.models]
        )
        self.ranges = ModuleRanges((spot for spots in self._per_model for spot in spots), self.batch)
        self._spot_count = sum(map(len, self._per_model))
        self._begin = first_step + warmup
        self._counters = counters()
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile: Any = _Profile(
            activities=activities,
            record_shapes=True,
            # asked for step 0 once, at construction
            schedule=lambda step: (
                ProfilerAction.RECORD if max(step, first_step) >= self._begin else ProfilerAction.WARMUP
            ),
        )
        self._profile.step_num = first_step  # ProfilerStep#N is the N-th step of the training, from 0
        self.recording = False
        self.recorded_steps = 0
        self.backward: list[NodeRange] = []
        self._backward_failed: str | None = None
        self._undo: list[Callable[[], None]] = []

    def start(self, give_way: Callable[[], None]) -> None:
        """``give_way`` is called when the script starts a profiler of its own: there can be only one."""
        self._profile.start()
        self._watch_others(give_way)
        self.recording = self._profile.step_num >= self._begin
        for at, spots in enumerate(self._per_model):
            self.batch.watch(at, spots)
        self.ranges.install()

    def step(self) -> None:
        self._profile.step()
        self.recorded_steps += self.recording
        self.recording = self._profile.step_num >= self._begin

    def stop(self, *, complete_step: bool) -> None:
        """The hooks go first, so that they are gone whatever the profiler does."""
        self.uninstall()
        self.recorded_steps += self.recording and complete_step
        self._profile.__exit__(None, None, None)
        try:
            results: Any = getattr(self._profile.profiler, "kineto_results", None)
            self.backward = backward_ranges(results.events(), self.ranges.threads)
        except Exception as error:  # the profiler's own names in the backward are worth a trace
            self._backward_failed = why(error)

    def _watch_others(self, give_way: Callable[[], None]) -> None:
        owner: Any = torch_profiler.profile
        original = owner._prepare_trace

        @functools.wraps(original)
        def prepare(other: Any, *args: Any, **kwargs: Any) -> Any:
            give_way()
            return original(other, *args, **kwargs)

        owner._prepare_trace = prepare

        def restore() -> None:
            if owner._prepare_trace is prepare:
                owner._prepare_trace = original

        self._undo.append(restore)

    def uninstall(self) -> None:
        while self._undo:
            self._undo.pop()()
        self.ranges.remove()

    def abandon(self) -> None:
        """Hooks off, profiler off, whatever state they are in."""
        for undo in (self.uninstall, lambda: self._profile.__exit__(None, None, None)):
            with contextlib.suppress(Exception):
                undo()

    def export(self, path: Path) -> None:
        self._profile.export_chrome_trace(str(path))

    def facts(self) -> dict[str, Any]:
        """How the ranges were made, and what compiled in the window."""
        after = counters()
        return {
            "ranges": {
                "modules": self._spot_count,
                "backward_nodes": len(self.backward),
                "forward": "user_annotation",
                "backward": "cpu_op",
                **({"backward_error": self._backward_failed} if self._backward_failed else {}),
                **(
                    {"none_because": f"compiled function {self._compiled.blind}"}
                    if self._compiled.blind
                    else {}
                ),
            },
            "recomputed": sorted(self.ranges.recomputed),
            "compiled_in_window": {key: after[key] - self._counters.get(key, 0) for key in after},
        }
