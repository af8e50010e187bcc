"""One capture from the first step to the written file, and its promise: training goes on whatever happens.

``wait`` steps run alone and the last of them are timed; ``warmup`` and ``active`` ones run under the
profiler; some more are timed; then the file is written and everything of ours is gone.
"""

from __future__ import annotations

import functools
import os
import shlex
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec

import torch

from tracelens.capture import signals
from tracelens.capture.backward import NodeRange
from tracelens.capture.events import Events
from tracelens.capture.files import TraceFileError, finish, raw_path, remove, target_path
from tracelens.capture.messages import say, tell, why
from tracelens.capture.metadata import describe
from tracelens.capture.modules import Model, Registry, find_models
from tracelens.capture.options import AFTER, Options
from tracelens.capture.parallel import rank_and_world
from tracelens.capture.recorder import Recorder
from tracelens.capture.runner import check_folder
from tracelens.capture.steps import BLIND, StepFinder
from tracelens.capture.system import KEEP, StepTimer, on_gpu

P = ParamSpec("P")

_MEGABYTE = 1_000_000
_NO_CUDA = (
    "this training does not use CUDA: its trace will hold CPU operators only, and 'tracelens analyze' needs "
    "GPU events; run it on a machine with an NVIDIA GPU"
)
_READS = "'tracelens analyze' reads"
_OTHER_PROFILER = (
    "the script runs a profiler of its own, and only one can record: this capture begins when that one has "
    f"stopped; {_READS} the script's own trace as well"
)


def _harmless(method: Callable[P, None]) -> Callable[P, None]:
    """What fails in here ends the capture, not the training. Ctrl-C stays the script's."""

    @functools.wraps(method)
    def safe(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            session: Any = args[0]
            session.give_up(f"{method.__name__.strip('_')}: {why(error)}")
            session.end_training(1)

    return safe


class Session:
    """States: waiting, recording (warm-up included), timing, over."""

    def __init__(self, options: Options, *, automatic: bool = True, roots: Iterable[Any] = ()):
        self.options = options
        self.state = "waiting"
        self.done = 0  # complete steps
        self.written: Path | None = None
        self._automatic = automatic
        self._roots = list(roots)
        self._registry = Registry()
        self._events = Events(self)
        self._finder = StepFinder(self._step_found)
        self._optimizers: dict[int, Any] = {}
        self._passes: list[int] = []
        self._skipped: list[int] = []
        self._before, self._after = StepTimer(), StepTimer()
        self._recorder: Recorder | None = None
        self._raw: Path | None = None
        self._backward: list[NodeRange] = []
        self._told_of_others = False
        self._postponed = False  # a profiler of the script's own runs
        self._facts: dict[str, Any] = {}
        self._lock = threading.RLock()

    # -- what happens in the training -------------------------------------------------------------

    def start(self) -> None:
        """Watch. With ``wait`` 0 the recording begins here."""
        self._start()

    @_harmless
    def _start(self) -> None:
        if self._automatic and not self._roots:
            self._registry.install()
        self._events.install()
        if not self._automatic:
            self._boundary()

    @_harmless
    def backward_begins(self) -> None:
        self._finder.backward_begins()

    @_harmless
    def backward_ends(self, counts: bool) -> None:
        self._finder.backward_ends(counts=counts)

    @_harmless
    def optimizer_stepped(self, optimizer: Any, skipped: bool) -> None:
        self._optimizers.setdefault(id(optimizer), optimizer)
        self._finder.optimizer_stepped(id(optimizer), skipped=skipped)

    def _step_found(self, passes: int, skipped: bool) -> None:
        if self._automatic:
            self._step_ends(passes, skipped)

    @_harmless
    def step(self) -> None:
        """A step ends here: the user, or a callback, says so."""
        self._step_ends(self._finder.take_passes(), False)

    # -- from step to step ------------------------------------------------------------------------

    def _step_ends(self, passes: int, skipped: bool) -> None:
        if self.state == "over":
            return
        self.done += 1
        if self.done == 1 and not on_gpu():
            tell(_NO_CUDA)
        if self.state == "recording":
            self._passes.append(passes)
            if skipped:
                self._skipped.append(self.done - 1)
        self._boundary()

    def _boundary(self) -> None:
        """Between two steps: the state changes here and nowhere else."""
        options = self.options
        if self.state == "waiting":
            self._heed_other_profilers()
            if self.done >= options.wait - KEEP:
                self._before.mark()
            if self.done >= options.wait:
                self._begin()
        elif self.state == "recording" and self._recorder is not None:
            if self.done >= self._last:
                self._end_recording(complete_step=True)
            else:
                self._recorder.step()
                self._passes = self._passes if self._recorder.recorded_steps else []
        elif self.state == "timing":
            if self.done > self._last:  # the first step after the window pays for the profiler's end
                self._after.mark()
            if self.done >= self._last + 1 + AFTER:
                self._write(None)
                self.end_training(0)

    def _heed_other_profilers(self) -> None:
        """There can be only one at a time, and the script's own comes first."""
        running = torch._C._autograd._profiler_enabled()
        if running and not self._told_of_others:
            self._told_of_others = True
            tell(_OTHER_PROFILER)
        self._postponed = running

    def _begin(self) -> None:
        if self._postponed:
            return
        self._last = self.done + self.options.warmup + self.options.active
        rank, _ = rank_and_world()
        if not self.options.wants(rank):
            # end with the ranks that record: left alone it would wait for them for ever
            if self.options.stop:
                self.state = "timing"
            else:
                self._over()
            return
        check_folder(Path(self.options.out))
        models = self._models()
        if not models:
            say("no module with parameters was found: the trace has no module names")
        self._recorder = Recorder(models, first_step=self.done, warmup=self.options.warmup)
        self.state = "recording"
        self._registry.remove()
        signals.watch(self.close)
        self._recorder.start(self._give_way)

    @_harmless
    def _give_way(self) -> None:
        if self.state == "recording":
            began = "the script started a profiler of its own"
            self._cut(began, f"{began}; {_READS} its trace as well")
            self.end_training(0)

    def _models(self) -> list[Model]:
        trained = {
            id(parameter)
            for optimizer in self._optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return find_models(self._roots or self._registry.roots(), trained)

    def _end_recording(self, *, complete_step: bool) -> None:
        with signals.held():
            self._stop_and_export(complete_step)

    def _stop_and_export(self, complete_step: bool) -> None:
        assert self._recorder is not None
        recorder = self._recorder
        recorder.stop(complete_step=complete_step)
        self._recorder = None
        self.state = "timing"
        self._backward = recorder.backward
        self._facts = describe(recorder.models, recorder.batch)
        self._facts["window"] = {
            "first_step": self._last - self.options.active,
            "steps": recorder.recorded_steps,
            "asked": self.options.active,
            "step_source": self._finder.source if self._automatic else "marked",
            "backward_passes": self._passes,
            "skipped_steps": self._skipped,
            "optimizers": [type(optimizer).__name__ for optimizer in self._optimizers.values()],
            **recorder.facts(),
        }
        raw = raw_path(Path(self.options.out))
        try:
            recorder.export(raw)
        finally:
            self._raw = raw

    # -- the end ----------------------------------------------------------------------------------

    def close(self, reason: str | None = None) -> None:
        """The training ends here, well (``reason`` None) or not: write what there is."""
        with self._lock, signals.held():
            self._close(reason)

    @_harmless
    def _close(self, reason: str | None) -> None:
        if self.state == "recording":
            self._cut(reason or "the training ended in the window", self._why_none(reason))
        elif self.state == "timing":
            self._write(None)  # the window was complete; fewer steps stand behind it
        elif self.state == "waiting":
            if self.done or self._finder.optimizer_steps:
                self._say_none(self._why_none(reason))
            self._over()

    def _cut(self, ended: str, why_none: str) -> None:
        """The window ends too early. A warm-up leaves no event, and a file without one is no trace."""
        assert self._recorder is not None
        if self._recorder.recording:
            self._end_recording(complete_step=False)
            self._write(ended)
            return
        self._say_none(why_none)
        with signals.held():
            self._abandon()

    def _say_none(self, why_none: object) -> None:
        say(f"no trace: {why_none}")
        if self.options.root not in (None, os.getpid()):
            with suppress(OSError):
                Path(self.options.told).touch()

    def _why_none(self, reason: str | None) -> str:
        """Of a training that ``reason`` ended, or that was too short."""
        options = self.options
        if self._postponed:
            return "a profiler of the script's own ran all the time"
        if reason is not None:
            return f"{reason} after {self.done} of the {options.last} steps that a trace needs"
        blind = self._automatic and self._finder.source == "backward"
        told = f", one per backward pass from the {BLIND}th on: no optimizer step was seen" if blind else ""
        fit = min(options.active, self.done - 2)  # steps that are left behind one of waiting and a warm-up
        shorter = f", or capture --wait 1 --warmup 1 --active {fit}" if fit > 0 else ""
        return (
            f"needs {options.last} steps ({options.wait} wait + {options.warmup} warm-up + {options.active} "
            f"recorded); the script ran {self.done}{told}: train longer{shorter}"
        )

    def _write(self, ended: str | None) -> None:
        """The file appears, or one line says why it does not."""
        with signals.held():
            self._write_or_say(ended)

    def _write_or_say(self, ended: str | None) -> None:
        raw, self._raw = self._raw, None
        if raw is None:
            self._over()
            return
        window = self._facts["window"]
        window["complete"] = ended is None and window["steps"] >= window["asked"]
        if ended:
            window["ended"] = ended
        self._facts["time"] = {
            "clock": (self._before if self._before.started else self._after).kind,
            "before_ms": self._before.read_ms() if not ended else _quietly(self._before.read_ms),
            "after_ms": self._after.read_ms() if not ended else _quietly(self._after.read_ms),
        }
        target = target_path(Path(self.options.out), rank_and_world()[0], self.options.started)
        try:
            size, earlier = finish(raw, target, self._facts, self._backward)
        except TraceFileError as error:
            self._say_none(error)
        else:
            self.written = target
            cut = f", cut short: {ended}" if ended else ""
            told = f"{size / 1e6:.1f} MB" if size >= _MEGABYTE else f"{size / 1e3:.1f} kB"
            say(f"{window['steps']} of {window['asked']} steps, {told}, in {target}{cut}")
            if earlier is not None:
                say(f"the trace of an earlier run is kept: {earlier}")
            if on_gpu():
                tell(f"next: {self._next_command(target)}")
        self._over()

    def _next_command(self, written: Path) -> str:
        """For all ranks where all of them record, else for this file."""
        _, world = rank_and_world()
        several = world > 1 and (self.options.ranks is None or len(self.options.ranks) > 1)
        path = os.path.relpath(written.parent if several else written)
        return f"tracelens analyze {shlex.quote(path)}"

    def end_training(self, code: int) -> None:
        """``--stop``: the script ends as by ``sys.exit``, once its trace is written or cannot be."""
        if self.options.stop:
            tell("--stop: the training ends here")
            raise SystemExit(code)

    def give_up(self, reason: str) -> None:
        """Say why, leave no hook behind, let the training go on."""
        if self.state != "over":
            say(f"the capture failed and the training goes on: {reason}")
        self._abandon()

    def _abandon(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.abandon()
        if self._raw is not None:
            remove(self._raw)
        self._over()

    def _over(self) -> None:
        self.state = "over"
        signals.unwatch()
        self._registry.remove()
        self._events.remove()
        self._backward.clear()
        self._optimizers.clear()
        self._roots.clear()

    def forget(self) -> None:
        """In a forked child: this recording is the parent's."""
        self._raw = None
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.uninstall()
        self._over()

    @property
    def optimizer_steps(self) -> int:
        return self._finder.optimizer_steps


def _quietly(read: Callable[[], Any]) -> Any:
    """After a crash the GPU may not answer any more."""
    try:
        return read()
    except Exception:
        return []
