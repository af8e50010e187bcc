"""One run of ``tracelens bench``: measure within a budget, keep everything, write the calibration file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tracelens.errors import InputError, UsageError
from tracelens.hardware.measurements import (
    AttentionMeasurement,
    GemmMeasurement,
    Measurements,
    read_measurements,
    user_file,
    write_measurements,
)
from tracelens.measure import words
from tracelens.measure.attention import measure_attention
from tracelens.measure.cases import AttentionCase, CannotMeasure, CaseOutcome, GemmCase, MeasureOptions
from tracelens.measure.facts import (
    DeviceFacts,
    device_facts,
    measure_bandwidth,
    measure_call_gap,
    measure_launch_floor,
    read_clocks,
)
from tracelens.measure.gemms import measure_gemms
from tracelens.measure.journal import METHOD_VERSION, Journal, Measurement, beside, identity_of, key_of
from tracelens.measure.timing import Device

#: Products and attention take turns, so that a run that is cut off has some of both.
_TURNS = 4
_T = TypeVar("_T", GemmCase, AttentionCase)
#: Hears of each case at once: how many are done, of how many, and which it was.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What to measure and where to put it."""

    gemms: Sequence[GemmCase]
    attention: Sequence[AttentionCase]
    minutes: float
    out: Path | None = None  # None: where predictions for this GPU look
    fresh: bool = False  # forget what earlier runs measured
    command: str = "tracelens bench"
    options: MeasureOptions = MeasureOptions()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class Result:
    """What a run came to."""

    measurements: Measurements
    path: Path
    facts: DeviceFacts
    seconds: float
    tried: int  # cases of this run
    resumed: int  # cases known from an earlier run
    left: int  # cases there was no time for
    stopped: str | None  # why it ended before its time: "interrupted", or what the GPU refused
    previous: Path | None  # where an earlier file that no longer holds was moved to


def target_file(settings: Settings, *, device: Device, facts: DeviceFacts) -> Path:
    """Where the measurements go; ``UsageError`` where that would calibrate a GPU that was not measured."""
    if device.kind != "cuda":
        if settings.out is None or settings.out.parent.resolve() == user_file("any").parent.resolve():
            raise UsageError("what a CPU measured calibrates no GPU: give --out FILE in another folder")
        return settings.out
    if settings.out is not None:
        return settings.out
    gpu, sms = facts.gpu, facts.device["sms"]
    if gpu.name == "unknown":
        raise UsageError(f"{facts.device['name']} is not in the table of GPUs: give --out FILE")
    table = gpu.cells.get("sms")
    if table is not None and table.value != sms:
        raise UsageError(
            f"this is a part of the GPU, {sms} of the {table.value:.0f} multiprocessors of {gpu.title}:"
            " give --out FILE"
        )
    return user_file(gpu.name)


def run(settings: Settings, *, device: Device, progress: Progress | None = None) -> Result:
    """Measure until everything is done, the time is up or the user interrupts, then write the file.

    What the journal or an earlier file has of the same device, software and method is not measured again;
    a file of another is moved aside. Raises ``UsageError`` where nothing could be measured or written.
    """
    begun = device.clock()
    facts = device_facts(device)
    path = target_file(settings, device=device, facts=facts)
    clocks = {f"{name}_before": value for name, value in read_clocks(device).items()}
    with Journal(beside(path), identity_of(facts)) as journal:
        journal.open(fresh=settings.fresh)
        outdated = _take_file(path, journal, fresh=settings.fresh)
        wanted: list[GemmCase | AttentionCase] = [*settings.gemms, *settings.attention]
        left = [one for one in wanted if not journal.knows(one)]
        resumed = len(wanted) - len(left)
        sweep = _Sweep(settings, device, journal, begun + settings.minutes * 60, len(left), progress)
        limits = _limits(device, settings.options)
        stopped = sweep.measure()
        if not journal.rows:
            why = stopped or next(iter(journal.refused.values()), "")
            raise UsageError(f"nothing was measured: {why or 'there was no time, give more --minutes'}")
        after = {f"{name}_after": value for name, value in read_clocks(device).items()}
        measured = Measurements(
            gpu=facts.gpu.name if device.kind == "cuda" else "cpu",
            device=facts.device,
            software=facts.software,
            clocks=_clocks(clocks | after),
            date=datetime.now(UTC).date().isoformat(),
            command=settings.command,
            method=words.METHOD if device.kind == "cuda" else words.CPU_METHOD,
            method_version=METHOD_VERSION,
            gemms=tuple(row for row in journal.rows.values() if isinstance(row, GemmMeasurement)),
            attention=tuple(row for row in journal.rows.values() if isinstance(row, AttentionMeasurement)),
            notes=_notes(journal, device),
            **limits,
        )
        previous = _moved_aside(path) if outdated else None
        write_measurements(measured, path)
        unmeasured = [one for one in left if not journal.knows(one)]
    return Result(
        measured, path, facts, device.clock() - begun, sweep.done, resumed, len(unmeasured), stopped, previous
    )


@dataclass(slots=True)
class _Sweep:
    settings: Settings
    device: Device
    journal: Journal
    end: float  # on the device's clock
    total: int
    progress: Progress | None
    done: int = 0

    def measure(self) -> str | None:
        """Measure; why it ended early, where it did. What was measured by then is in the journal."""
        try:
            self._measure()
        except KeyboardInterrupt:
            return "interrupted"
        except RuntimeError as error:  # a CUDA error that ends the context: no later case could run
            return (str(error).splitlines() or [type(error).__name__])[0]
        return None

    def _measure(self) -> None:
        for turn in range(_TURNS):
            options = self.settings.options
            gemms = self._wanted(_part(self.settings.gemms, turn))
            for product in measure_gemms(gemms, device=self.device, options=options, progress=self._heard):
                self.journal.add(product)
            # A backward holds its forward's results: fewer at a time.
            fewer = replace(options, profile_every=max(1, options.profile_every // 4))
            attention = self._wanted(_part(self.settings.attention, turn))
            for call in measure_attention(attention, device=self.device, options=fewer, progress=self._heard):
                self.journal.add(call)

    def _wanted(self, cases: Sequence[_T]) -> Iterator[_T]:
        for case in cases:
            if self.device.clock() >= self.end:
                return
            if not self.journal.knows(case):
                yield case

    def _heard(self, outcome: CaseOutcome) -> None:
        self.done += 1
        if outcome.time_us is None:
            self.journal.refuse(outcome)
        if self.progress is not None:
            self.progress(self.done, self.total, str(outcome.case))


def _part(cases: Sequence[_T], turn: int) -> Sequence[_T]:
    """One of ``_TURNS`` runs of neighbours."""
    return cases[len(cases) * turn // _TURNS : len(cases) * (turn + 1) // _TURNS]


def _limits(device: Device, options: MeasureOptions) -> dict[str, Any]:
    def known(measure: Callable[..., float | None]) -> float | None:
        try:
            return measure(device=device, options=options)
        except CannotMeasure:
            return None

    return {
        "bandwidth_gbps": known(measure_bandwidth),
        "launch_floor_us": known(measure_launch_floor),
        "call_gap_us": known(measure_call_gap),
    }


def _clocks(read: dict[str, Any]) -> dict[str, Any]:
    """The clocks of the file format, and of the rest what is known."""
    read["sm_mhz_max"] = read.pop("sm_mhz_max_after", None) or read.pop("sm_mhz_max_before", None)
    read.pop("sm_mhz_max_before", None)
    always = ("sm_mhz_before", "sm_mhz_after", "sm_mhz_max")
    return {name: value for name, value in read.items() if value is not None or name in always}


def _notes(journal: Journal, device: Device) -> tuple[str, ...]:
    """Each reason for which cases were not measured, with their number and one of them."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for case, why in journal.refused.items():
        alike.setdefault(re.sub(r"\d[\d.,]*", "#", why), []).append((case, why))
    notes = [
        words.not_measured(len(refused), why=refused[0][1], case=refused[0][0])
        for refused in sorted(alike.values(), key=len, reverse=True)
    ]
    if device.kind == "cuda" and not any(row.kernels for row in journal.rows.values()):
        notes.append(words.NO_KERNEL_NAMES)
    return tuple(notes)


def _moved_aside(path: Path) -> Path:
    previous = beside(path, "previous.json" + (".gz" if path.suffix == ".gz" else ""))
    os.replace(path, previous)
    return previous


def _take_file(path: Path, journal: Journal, *, fresh: bool) -> bool:
    """Take the rows of the file that is there, where they still hold and the journal lacks them.

    Returns whether the file is to be moved aside: it holds nothing of this device, software and method.
    """
    if not path.is_file():
        return False
    try:
        before = read_measurements(path)
    except InputError:
        return True
    identity = {"device": before.device, "software": before.software, "method": before.method_version}
    if fresh or identity != journal.identity:
        return bool(before.gemms or before.attention)
    rows: list[Measurement] = [*before.gemms, *before.attention]
    for row in rows:
        journal.rows.setdefault(key_of(row), row)
    return False
