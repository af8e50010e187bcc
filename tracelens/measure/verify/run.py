"""One run of ``tracelens verify``: suggestion by suggestion, written down after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.measure.devices import open_device
from tracelens.measure.facts import DeviceFacts, device_facts, read_clocks
from tracelens.measure.journal import Case
from tracelens.measure.layer_shapes import LayerShape
from tracelens.measure.pairs import PairTimes
from tracelens.measure.timing import Device
from tracelens.measure.verify import words
from tracelens.measure.verify.conclude import conclude, not_measured
from tracelens.measure.verify.file import document, write
from tracelens.measure.verify.meter import CallTime, Meter, open_meter
from tracelens.measure.verify.plan import PlannedTrial, WholePair, make_trial
from tracelens.measure.verify.source import Source, nothing_asked
from tracelens.measure.verify.standin import StandIn, stand_in
from tracelens.results import Verification, Verified
from tracelens.results.verified import Reason, Why

#: A layer against itself that differs by more than this: something else uses the GPU, or its clock moves.
NOISY_FRAC = 0.02
#: Boards of one name whose memories differ by more are two, with other bandwidths. ECC takes a sixteenth.
_OTHER_BOARD = 0.1
#: Hears of each suggestion before it is measured: which, how many are done, of how many.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """What a run came to. ``verified`` has an entry for each suggestion of the source, in its order.

    None: it was not asked for.
    """

    source: Source
    verified: tuple[Verified | None, ...]
    verification: Verification
    stopped: str | None  # why it ended early: "interrupted", or what the GPU refused

    def document(self) -> dict[str, Any]:
        """The file's JSON with what was measured in it."""
        return document(self.source, self.verified, self.verification)

    def write(self, path: str | Path) -> Path | None:
        """Write the file. One that was read from the same place is kept beside it; returns where.

        Raises UsageError where it cannot be written.
        """
        return write(self.document(), Path(path), source=self.source)


def verify(
    source: Source,
    *,
    device: Device | None = None,
    model: bool = False,
    anyway: bool = False,
    only: Sequence[str] = (),
    progress: Progress | None = None,
    kept: Callable[[Done], None] | None = None,
    meter: Meter | None = None,
) -> Done:
    """Measure every suggestion of ``source`` on ``device`` (the current CUDA device when not told).

    ``model`` measures a small training step of both shapes, too. ``only`` names rules ("TL101"). A GPU
    other than the report's is refused unless ``anyway``; savings then stay as predicted, with what was
    measured beside. ``kept`` hears of the state after each suggestion, so that nothing is lost. An
    interrupt ends the run and keeps what was measured. ``meter`` is what measures (``open_meter``), else the
    bench's with its journal.

    Raises:
        InputError: there is nothing to measure.
        UsageError: there is no GPU, or another one than the report's.
    """
    if not source.asked:
        raise nothing_asked(source)
    asked = [one for one in source.asked if not only or one.rule in only]
    if not asked:
        raise UsageError(f"{source.name} has no finding of {', '.join(only)}")
    device = device if device is not None else open_device()
    facts = device_facts(device)
    other = other_gpu(source, facts, device)
    if other and not anyway:
        raise UsageError(f"{other}: measure on that GPU, or add --anyway to measure on this one")
    built = stand_in(source)
    trials = {
        at: make_trial(one, source, built, model=model) for at, one in enumerate(source.asked) if one in asked
    }
    options = [*(f"--rule {rule}" for rule in only), *["--model"] * model, *["--anyway"] * anyway]
    command = " ".join(["tracelens verify", *options])
    about = _About(facts, device, other, command, {"before": read_clocks(device)})
    with open_meter(device) if meter is None else nullcontext(meter) as how:
        run = _Run(source, built, how, about, trials)
        run.all(progress, kept)
    about.clocks["after"] = read_clocks(device)
    return run.done()


@dataclass(frozen=True, slots=True)
class _About:
    """Where and how it is measured."""

    facts: DeviceFacts
    device: Device
    other: str  # how the GPU differs from the report's; "" where it is the same
    command: str
    clocks: dict[str, Any]

    @property
    def replaces(self) -> bool:
        """Does what is measured take the place of what was predicted?"""
        return not self.other and self.device.kind == "cuda"


@dataclass(slots=True)
class _Run:
    source: Source
    built: StandIn | Reason
    meter: Meter
    about: _About
    trials: Mapping[int, PlannedTrial]
    verified: dict[int, Verified] = field(default_factory=dict)
    before_ms: float | None = None  # the present step: traced, or measured where there is no trace
    noise_frac: float | None = None
    stopped: str | None = None

    def all(self, progress: Progress | None, kept: Callable[[Done], None] | None) -> None:
        """Measure suggestion by suggestion, until the end or until something ends it."""
        try:
            self._begin()
            for done, at in enumerate(_by_saving(self.trials)):
                if progress is not None:
                    progress(done, len(self.trials), self.trials[at].asked.title)
                self.verified[at] = self._one(self.trials[at])
                if self.stopped:
                    break
                if kept is not None:
                    kept(self.done())
        except (KeyboardInterrupt, RuntimeError) as error:
            self.stopped = _why_stopped(error)

    def done(self) -> Done:
        """What was measured so far, and of the rest why not."""
        left = {
            at: not_measured(trial, trial.why or self.stopped or Reason("later"))
            for at, trial in self.trials.items()
        }
        where, today = str(self.about.facts.device["name"]), datetime.now(UTC).date().isoformat()
        dated = {
            at: replace(one, device=where, date=one.date or today)
            for at, one in (left | self.verified).items()
        }
        found = tuple(dated.get(at) for at in range(len(self.source.asked)))
        about = _verification(self.about, self.noise_frac, list(dated.values()))
        return Done(self.source, found, about, self.stopped)

    def _begin(self) -> None:
        """A layer against itself: the difference that is seen where there is none.

        Where no step was traced, layers and logits as they are make up the one that savings are shares of.
        """
        self.before_ms = self.source.step_ms
        if not isinstance(self.built, StandIn):
            return
        now = self.source.now
        layer = self._present(self.built.layer(now))
        if layer is None:
            return
        if self.source.kind == "suggestions":
            logits = self._present(self.built.layer(now, vocab=now.vocab)) if now.vocab else None
            if logits is not None or not now.vocab:
                self.before_ms = (self.source.layers or 0) * layer.ms[0] + (
                    logits.ms[0] if logits is not None else 0.0
                )
        self.noise_frac = abs(layer.ms[0] / layer.ms[1] - 1)

    def _present(self, shape: LayerShape | Why) -> PairTimes | None:
        found = self.meter.pair(shape, shape) if isinstance(shape, LayerShape) else None
        return found if isinstance(found, PairTimes) else None

    def _one(self, trial: PlannedTrial) -> Verified:
        """Measure one suggestion: its calls, its layers, its step; what an interrupt leaves is kept."""
        times: dict[Case, CallTime | Why] = {}
        pairs: dict[int, PairTimes | str] = {}
        if not trial.why:
            try:
                cases = [case for one in trial.calls for case in (one.now, one.then) if case is not None]
                times |= self.meter.calls(cases)
                for at, whole in enumerate(trial.wholes):
                    pairs[at] = self.meter.pair(whole.now, whole.then)
                if isinstance(trial.step, WholePair):
                    pairs[-1] = self.meter.pair(trial.step.now, trial.step.then)
            except (KeyboardInterrupt, RuntimeError) as error:
                self.stopped = _why_stopped(error)
        found = conclude(
            trial,
            times,
            pairs,
            before_ms=self.before_ms,
            noise_frac=self.noise_frac,
            replaces=self.about.replaces,
            stopped=self.stopped or "",
        )
        timed = [one for one in (*times.values(), *pairs.values()) if isinstance(one, CallTime | PairTimes)]
        dates = {one.date for one in timed} - {""}
        return replace(found, date=min(dates, default=""))


def _why_stopped(error: BaseException) -> str:
    """An interrupt, or a CUDA error that ends the context: nothing later could run."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _by_saving(trials: Mapping[int, PlannedTrial]) -> list[int]:
    """The largest predicted saving first: what an interrupt leaves out matters least."""

    def size(at: int) -> float:
        asked = trials[at].asked
        for one in (asked.predicted_ms.mid, asked.predicted_ms.high):
            if one is not None:
                return one
        return 0.0

    return sorted(trials, key=lambda at: (-size(at), at))


def other_gpu(source: Source, facts: DeviceFacts, device: Device) -> str:
    """How the GPU at hand differs from the report's, as a sentence; "" where it is the same."""
    here = str(facts.device["name"])
    if device.kind != "cuda":
        return words.other_device(source.name, source.gpu_title, words.CPU)
    if source.gpu == "unknown":
        same = source.device is not None and source.device == here
        return "" if same else words.other_device(source.name, source.device or words.UNKNOWN_GPU, here)
    if facts.gpu.name != source.gpu:
        return words.other_device(source.name, source.gpu_title, here)
    sms = facts.device.get("sms")
    if source.sms is not None and sms is not None and sms != source.sms:
        return words.other_sms(source.name, source.sms, source.gpu_title, sms)
    memory = facts.device.get("memory_bytes")
    here_gib = memory / 2**30 if memory else None
    if source.memory_gib and here_gib and abs(here_gib / source.memory_gib - 1) > _OTHER_BOARD:
        return words.other_memory(source.name, source.gpu_title, source.memory_gib, here_gib)
    return ""


def _verification(about: _About, noise: float | None, found: Sequence[Verified]) -> Verification:
    facts, device, other = about.facts, about.device, about.other
    notes: list[Why] = []
    if device.kind != "cuda":
        notes.append(Reason("toy_cpu"))
    elif other:
        notes.append(Reason("other_gpu", cause=other))
    if noise is not None and noise > NOISY_FRAC and device.kind == "cuda":
        notes.append(Reason("noisy", {"frac": noise}))
    return Verification(
        gpu=facts.gpu.name if device.kind == "cuda" else "cpu",
        device=str(facts.device["name"]),
        same_gpu=not other,
        date=datetime.now(UTC).date().isoformat(),
        command=about.command,
        software=dict(facts.software),
        clocks=about.clocks,
        noise_frac=noise,
        measured=sum(one.state == "measured" for one in found),
        suggestions=len(found),
        notes=notes,
    )
