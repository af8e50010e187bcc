"""One run of ``tracelens verify``: suggestion by suggestion, written down after each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.measure.devices import open_device
from tracelens.measure.facts import DeviceFacts, device_facts, read_clocks
from tracelens.measure.layer_shapes import LayerShape
from tracelens.measure.pairs import PairTimes
from tracelens.measure.timing import Device
from tracelens.measure.verify.conclude import Pairs, conclude, not_measured
from tracelens.measure.verify.file import document, write
from tracelens.measure.verify.meter import BenchMeter, CallTime, Case, Meter
from tracelens.measure.verify.plan import Trial, WholePair, make_trial
from tracelens.measure.verify.source import Source, nothing_asked
from tracelens.measure.verify.standin import StandIn, stand_in
from tracelens.results import Verification, Verified

#: A layer against itself that differs by more than this: something else uses the GPU, or its clock moves.
NOISY_FRAC = 0.02
#: Boards of one name whose memories differ by more are two, with other bandwidths. ECC takes a sixteenth.
_OTHER_BOARD = 0.1
_LATER = "its turn has not come yet"
#: Hears of each suggestion before it is measured: which, how many are done, of how many.
Progress = Callable[[str, int, int], None]


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
    toy: bool = False,
    only: Sequence[str] = (),
    command: str = "tracelens verify",
    progress: Progress | None = None,
    kept: Callable[[Done], None] | None = None,
    meter: Meter | None = None,
) -> Done:
    """Measure every suggestion of ``source`` on ``device`` (the current CUDA device when not told).

    ``model`` measures a small training step of both shapes, too. ``only`` names rules ("TL101"). A GPU
    other than the report's is refused unless ``anyway``; savings then stay as predicted, with what was
    measured beside. ``kept`` hears of the state after each suggestion, so that nothing is lost. An
    interrupt ends the run and keeps what was measured. ``toy`` measures tiny shapes, for a try on a CPU.

    Raises:
        InputError: there is nothing to measure.
        UsageError: there is no GPU, or another one than the report's.
    """
    asked = [one for one in source.asked if not only or one.title.split()[0] in only]
    if not source.asked:
        raise nothing_asked(source)
    if not asked:
        raise UsageError(f"{source.name} has no finding of {', '.join(only)}")
    device = device if device is not None else open_device()
    facts = device_facts(device)
    other = other_gpu(source, facts, device)
    if other and not anyway and not toy:
        raise UsageError(f"{other}: measure on that GPU, or add --anyway to measure on this one")
    built = stand_in(source)
    run = _Run(
        source, built, meter or BenchMeter(device, toy=toy), replaces=not other and device.kind == "cuda"
    )
    trials = {
        at: make_trial(one, source, built, model=model) for at, one in enumerate(source.asked) if one in asked
    }
    clocks = {"before": read_clocks(device)}
    verified: dict[int, Verified] = {}
    stopped: str | None = None
    noise: float | None = None

    def state() -> Done:
        left = {at: not_measured(trial, trial.why or stopped or _LATER) for at, trial in trials.items()}
        dated = {at: _dated(one, facts) for at, one in (left | verified).items()}
        found = tuple(dated.get(at) for at in range(len(source.asked)))
        about = _verification(source, facts, device, other, command, clocks, noise, list(dated.values()))
        return Done(source, found, about, stopped)

    try:
        noise = run.begin()
        for done, at in enumerate(_by_saving(trials)):
            if progress is not None:
                progress(trials[at].asked.title, done, len(trials))
            verified[at] = run.one(trials[at])
            if run.stopped:
                stopped = run.stopped
                break
            if kept is not None:
                kept(state())
    except KeyboardInterrupt:
        stopped = "interrupted"
    except RuntimeError as error:  # a CUDA error that ends the context: nothing later could run
        stopped = (str(error).splitlines() or [type(error).__name__])[0]
    clocks["after"] = read_clocks(device)
    return state()


def _dated(one: Verified, facts: DeviceFacts) -> Verified:
    return replace(one, device=str(facts.device["name"]), date=datetime.now(UTC).date().isoformat())


@dataclass(slots=True)
class _Run:
    source: Source
    built: StandIn | str
    meter: Meter
    replaces: bool
    before_ms: float | None = None  # the present step: traced, or measured where there is no trace
    noise_frac: float | None = None
    stopped: str | None = None

    def begin(self) -> float | None:
        """A layer against itself: the difference that is seen where there is none.

        Where no step was traced, layers and logits as they are make up the one that savings are shares of.
        """
        self.before_ms = self.source.step_ms
        if isinstance(self.built, str):
            return None
        now = self.source.now
        layer = self._present(self.built.layer(now))
        if layer is None:
            return None
        if self.source.kind == "suggestions":
            logits = self._present(self.built.layer(now, vocab=now.vocab)) if now.vocab else None
            if logits is not None or not now.vocab:
                self.before_ms = (self.source.layers or 0) * layer.ms[0] + (
                    logits.ms[0] if logits is not None else 0.0
                )
        self.noise_frac = abs(layer.ms[0] / layer.ms[1] - 1)
        return self.noise_frac

    def _present(self, shape: LayerShape | str) -> PairTimes | None:
        found = self.meter.pair(shape, shape) if not isinstance(shape, str) else shape
        return None if isinstance(found, str) else found

    def one(self, trial: Trial) -> Verified:
        """Measure one suggestion: its calls, its layers, its step; what an interrupt leaves is kept."""
        times: dict[Case, CallTime | str] = {}
        pairs: dict[int, PairTimes | str] = {}
        if not trial.why:
            try:
                cases = [case for one in trial.calls for case in (one.now, one.then) if case is not None]
                times |= self.meter.calls(cases)
                for at, whole in enumerate(trial.wholes):
                    pairs[at] = self.meter.pair(whole.now, whole.then)
                if isinstance(trial.step, WholePair):
                    pairs[-1] = self.meter.pair(trial.step.now, trial.step.then)
            except KeyboardInterrupt:
                self.stopped = "interrupted"
            except RuntimeError as error:
                self.stopped = (str(error).splitlines() or [type(error).__name__])[0]
        return self._concluded(trial, times, pairs)

    def _concluded(self, trial: Trial, times: dict[Case, CallTime | str], pairs: Pairs) -> Verified:
        return conclude(
            trial,
            times,
            pairs,
            before_ms=self.before_ms,
            noise_frac=self.noise_frac or 0.0,
            replaces=self.replaces,
            stopped=self.stopped or "",
        )


def _by_saving(trials: Mapping[int, Trial]) -> list[int]:
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
        return f"{source.name} is of {source.gpu_title}, and this is a CPU"
    if source.gpu == "unknown":
        same = source.device is not None and source.device == here
        return "" if same else f"{source.name} is of {source.device or 'an unknown GPU'}, and this is {here}"
    if facts.gpu.name != source.gpu:
        return f"{source.name} is of {source.gpu_title}, and this is {here}"
    sms = facts.device.get("sms")
    if source.sms is not None and sms is not None and sms != source.sms:
        return (
            f"{source.name} is of {source.sms} multiprocessors of {source.gpu_title}, and this one has {sms}"
        )
    memory = facts.device.get("memory_bytes")
    here_gib = memory / 2**30 if memory else None
    if source.memory_gib and here_gib and abs(here_gib / source.memory_gib - 1) > _OTHER_BOARD:
        return (
            f"{source.name} is of a {source.gpu_title} with {source.memory_gib:.1f} GiB, and this one has"
            f" {here_gib:.1f}"
        )
    return ""


def _verification(
    source: Source,
    facts: DeviceFacts,
    device: Device,
    other: str,
    command: str,
    clocks: dict[str, Any],
    noise: float | None,
    found: Sequence[Verified],
) -> Verification:
    notes = []
    if device.kind != "cuda":
        notes.append("a CPU with toy sizes: a test of the program that says nothing of a GPU")
    elif other:
        notes.append(f"{other}: savings stay as predicted, and what was measured stands beside")
    if noise is not None and noise > NOISY_FRAC and device.kind == "cuda":
        notes.append(f"one layer against itself differs by {noise:.1%}: does something else use this GPU?")
    return Verification(
        gpu=facts.gpu.name if device.kind == "cuda" else "cpu",
        device=str(facts.device["name"]),
        same_gpu=not other,
        date=datetime.now(UTC).date().isoformat(),
        command=command,
        software=dict(facts.software),
        clocks=clocks,
        noise_frac=noise,
        measured=sum(one.state == "measured" for one in found),
        suggestions=len(found),
        notes=notes,
    )
