"""What measures: the engine of ``tracelens.measure``, each shape once for all suggestions and runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tracelens.errors import UsageError
from tracelens.hardware.measurements import user_file
from tracelens.measure import Device, measure_attention, measure_call_gap, measure_gemms
from tracelens.measure.cases import TRY, AttentionCase, CannotMeasure, CaseOutcome, GemmCase, MeasureOptions
from tracelens.measure.facts import device_facts
from tracelens.measure.journal import Case, Journal, Shape, beside, identity_of, key_of, pair_key
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.pairs import TURN, TURNS, PairTimes, measure_layers, measure_steps
from tracelens.results.verified import Reason, Why

#: A suggestion has few calls: an interrupt loses no more than one profiler run of them.
_CALLS = MeasureOptions(profile_every=24)


@dataclass(frozen=True, slots=True)
class CallTime:
    """One call alone: its kernels' time as a trace would show it."""

    time_us: float
    spread_frac: float | None  # None: too few repeats to tell
    kernels: tuple[str, ...] = ()
    date: str = ""  # "": today


class Meter(Protocol):
    """Where shapes are measured."""

    def calls(self, cases: Sequence[Case]) -> dict[Case, CallTime | Why]:
        """The time of each call, or why there is none."""

    def pair(self, now: Shape, then: Shape) -> PairTimes | str:
        """Both shapes in turns, or why not."""


@contextmanager
def open_meter(device: Device, *, toy: bool = False, fresh: bool = False) -> Iterator[BenchMeter]:
    """Measure with the journal that ``bench`` keeps of this GPU; in memory where none can be written."""
    facts = device_facts(device)
    kept = device.kind == "cuda" and not toy
    with Journal(beside(user_file(facts.gpu.name)) if kept else None, identity_of(facts)) as journal:
        try:
            journal.open(fresh=fresh)
        except UsageError:
            journal.path = None
            journal.open(fresh=fresh)
        yield BenchMeter(device, journal, toy)


@dataclass(slots=True)
class BenchMeter:
    """Measures on a device what its journal lacks. ``toy`` shrinks every shape: for a try on a CPU."""

    device: Device
    journal: Journal
    toy: bool = False
    _gap_us: float | None = None

    def calls(self, cases: Sequence[Case]) -> dict[Case, CallTime | Why]:
        """The time of each call, without the gap to the next one that a trace does not count either.

        They are compared with each other, so all come from one run: clocks differ between runs.
        """
        asked = {case: _toy_case(case) if self.toy else case for case in dict.fromkeys(cases)}
        left = [one for one in dict.fromkeys(asked.values()) if str(one) not in self.journal.refused]
        if len({self.journal.runs.get(key_of(one)) for one in left}) > 1:
            left = [one for one in left if self.journal.runs.get(key_of(one)) != self.journal.run]
        else:
            left = [one for one in left if key_of(one) not in self.journal.rows]
        if self._gap_us is None:
            self._gap_us = self._gap()
        self._measure([case for case in left if isinstance(case, GemmCase)], measure_gemms)
        self._measure([case for case in left if isinstance(case, AttentionCase)], measure_attention)
        return {case: self._answer(one, self._gap_us) for case, one in asked.items()}

    def pair(self, now: Shape, then: Shape) -> PairTimes | str:
        """Both shapes in turns; a pair that another suggestion or run had is not measured again.

        A shape against itself is: it says how steady the GPU is in this run.
        """
        if self.toy:
            now, then = now.toy(), then.toy()
        key, journal = pair_key(now, then), self.journal
        if key in journal.refused:
            return journal.refused[key]
        if key not in journal.pairs or (now == then and journal.runs[key] != journal.run):
            found = self._in_turns(now, then)
            if isinstance(found, str):
                journal.refused[key] = found
                return found
            journal.add_pair(key, found)
        return replace(journal.pairs[key], date=journal.dates.get(journal.runs[key], ""))

    def _gap(self) -> float:
        with suppress(CannotMeasure):
            return measure_call_gap(device=self.device) or 0.0
        return 0.0

    def _measure(self, cases: Sequence[Any], run: Any) -> None:
        def heard(outcome: CaseOutcome) -> None:
            if outcome.time_us is None:
                self.journal.refuse(outcome)

        options = TRY if self.toy else _CALLS
        for row in run(cases, device=self.device, options=options, progress=heard):
            self.journal.add(row)

    def _answer(self, case: Case, gap_us: float) -> CallTime | Why:
        """Every case gets one: what the profiler or a refusal left out says why."""
        key, journal = key_of(case), self.journal
        row = journal.rows.get(key)
        if row is None:
            return journal.refused.get(str(case)) or Reason("left_out")
        time_us = max(row.time_us - gap_us, 0.5 * row.time_us)
        date = journal.dates.get(journal.runs.get(key, ""), "")
        return CallTime(time_us, row.spread_frac, row.kernels, date)

    def _in_turns(self, now: Shape, then: Shape) -> PairTimes | str:
        how: dict[str, Any] = {"device": self.device, "record": False}
        how |= {"options": TRY, "turns": 2} if self.toy else {"options": TURN, "turns": TURNS}
        try:
            if isinstance(now, LayerShape) and isinstance(then, LayerShape):
                return measure_layers(now, then, **how)
            if isinstance(now, StepShape) and isinstance(then, StepShape):
                return measure_steps(now, then, **how)
        except CannotMeasure as reason:
            return str(reason)
        raise TypeError(f"{now} and {then} are no pair")


def _toy_case(case: Case) -> Case:
    """The same call with sizes for a CPU, which has one fused attention: ``flash``."""
    if isinstance(case, GemmCase):
        sizes = {name: 16 + getattr(case, name) % 16 for name in ("m", "n", "k")}
        return replace(case, **sizes, batch=min(case.batch, 2))
    heads = 2 if case.key_heads < case.heads else 1
    dim = 16 + case.head_dim % 16
    length = 16 + case.seq_q % 16
    return replace(
        case, batch=1, heads=heads, kv_heads=1, seq_q=length, seq_k=length, head_dim=dim, backend="flash"
    )
