"""What measures: the engine of ``tracelens.measure``, each shape once however many suggestions share it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tracelens.measure import Device, measure_attention, measure_call_gap, measure_gemms
from tracelens.measure.cases import TRY, AttentionCase, CannotMeasure, CaseOutcome, GemmCase, MeasureOptions
from tracelens.measure.journal import key_of
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.pairs import TURN, TURNS, PairTimes, measure_layers, measure_steps

Case = GemmCase | AttentionCase
Shape = LayerShape | StepShape
_CALLS = MeasureOptions(seconds_per_case=0.08, profile_every=24)


@dataclass(frozen=True, slots=True)
class CallTime:
    """One call alone: its kernels' time as a trace would show it."""

    time_us: float
    spread_frac: float
    kernels: tuple[str, ...] = ()


class Meter(Protocol):
    """Where shapes are measured."""

    def calls(self, cases: Sequence[Case]) -> dict[Case, CallTime | str]:
        """The time of each call, or why there is none."""

    def pair(self, now: Shape, then: Shape) -> PairTimes | str:
        """Both shapes in turns, or why not."""


@dataclass(slots=True)
class BenchMeter:
    """Measures on a device. ``toy`` shrinks every shape: a try of the program on a CPU."""

    device: Device
    toy: bool = False
    _calls: dict[Case, CallTime | str] = field(default_factory=dict)
    _pairs: dict[tuple[Shape, Shape], PairTimes | str] = field(default_factory=dict)
    _gap_us: float | None = None

    def calls(self, cases: Sequence[Case]) -> dict[Case, CallTime | str]:
        """The time of each call, without the gap to the next one that a trace does not count either."""
        left = [case for case in dict.fromkeys(cases) if case not in self._calls]
        if left and self._gap_us is None:
            self._gap_us = self._gap()
        self._measure([case for case in left if isinstance(case, GemmCase)], measure_gemms)
        self._measure([case for case in left if isinstance(case, AttentionCase)], measure_attention)
        return {case: self._calls[case] for case in cases}

    def pair(self, now: Shape, then: Shape) -> PairTimes | str:
        """Both shapes in turns; a pair that another suggestion had is not measured again."""
        key = (now, then)
        if key not in self._pairs:
            self._pairs[key] = self._in_turns(now, then)
        return self._pairs[key]

    def _gap(self) -> float:
        with suppress(CannotMeasure):
            return measure_call_gap(device=self.device) or 0.0
        return 0.0

    def _measure(self, cases: Sequence[Any], run: Any) -> None:
        """Every case gets an answer: what the profiler or a refusal left out says why."""
        asked = {case: _toy_case(case) if self.toy else case for case in cases}
        refused: dict[str, str] = {}

        def heard(outcome: CaseOutcome) -> None:
            if outcome.note is not None:
                refused[str(outcome.case)] = outcome.note

        options = TRY if self.toy else _CALLS
        wanted = list(dict.fromkeys(asked.values()))
        found = {key_of(row): row for row in run(wanted, device=self.device, options=options, progress=heard)}
        for case, measured in asked.items():
            row = found.get(key_of(measured))
            if row is None:
                self._calls[case] = refused.get(str(measured), "it was not measured")
                continue
            time_us = max(row.time_us - (self._gap_us or 0.0), 0.5 * row.time_us)
            self._calls[case] = CallTime(time_us, row.spread_frac or 0.0, row.kernels)

    def _in_turns(self, now: Shape, then: Shape) -> PairTimes | str:
        if self.toy:
            now, then = now.toy(), then.toy()
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
