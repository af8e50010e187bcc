"""Case by case, in groups whose kernels one profiler run records: the loop of GEMMs and of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tracelens.measure.cases import AttentionCase, CannotMeasure, CaseOutcome, GemmCase, MeasureOptions
from tracelens.measure.devices import guarded
from tracelens.measure.kernels import CallKernels, record_kernels
from tracelens.measure.operands import Pools
from tracelens.measure.timing import Call, Device, Timing, time_calls

_Case = TypeVar("_Case", GemmCase, AttentionCase)
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case with its operands in memory, and for a backward with its forward done."""

    call: Call
    check: Callable[[], float]  # the relative error of a slice of the result


@dataclass(frozen=True)
class Kind(Generic[_Case, _Row]):
    """What the two kinds of cases differ in."""

    name: str
    prepare: Callable[..., Prepared]  # of a case with ``device``, ``pools``, and at most ``sets`` of operands
    around: Callable[[_Case], AbstractContextManager[None]]  # what is set while a case runs
    tolerance: Mapping[str, float]  # largest relative error by type
    row: Callable[[_Case, Timing, CallKernels], _Row]  # what is kept

    def time(self, case: _Case, *, device: Device, pools: Pools, options: MeasureOptions) -> Timing:
        """The time of a case whose result is right. Raises CannotMeasure."""
        with self.around(case):
            prepared = self.prepare(case, device=device, pools=pools, sets=options.max_calls)
            timing = time_calls(prepared.call, device=device, options=options)
            if options.check:
                error = prepared.check()
                if not error <= self.tolerance[case.dtype]:  # NaN is no pass
                    raise CannotMeasure(f"{self.name} is wrong: relative error {error:.2g}")
        return timing

    def once(self, case: _Case, *, device: Device, pools: Pools) -> Callable[[], None]:
        """One set of operands of a case, and the call on it."""
        with self.around(case):
            ready = self.prepare(case, device=device, pools=pools, sets=1)

        def once() -> None:
            with self.around(case):
                ready.call(0)

        return once


def measure_each(
    cases: Iterable[_Case],
    kind: Kind[_Case, _Row],
    *,
    device: Device,
    options: MeasureOptions | None,
    progress: Callable[[CaseOutcome], None] | None,
) -> Iterator[_Row]:
    """Time each case and record its kernels; yields after every ``options.profile_every`` cases.

    ``cases`` is read one by one, so it may end early when time is up. ``progress`` hears of each case at
    once, also of those that cannot be measured, with the reason. Kernel names come from one profiler run
    per group of cases, outside all timing; on the CPU there are none.
    """
    options = options or MeasureOptions()
    pools = Pools(device)
    group: list[tuple[_Case, Timing]] = []

    def rows() -> Iterator[_Row]:
        calls: list[Any] = [partial(kind.once, case, device=device, pools=pools) for case, _ in group]
        named = record_kernels(calls, device=device)
        for (case, timing), launched in zip(group, named, strict=True):
            yield kind.row(case, timing, launched)
        group.clear()

    for case in cases:
        act: Any = partial(kind.time, case, device=device, pools=pools, options=options)
        try:
            timing: Timing = guarded(act, what=str(case))
        except CannotMeasure as reason:
            outcome = CaseOutcome(case, None, str(reason))
        else:
            group.append((case, timing))
            outcome = CaseOutcome(case, timing.time_us)
        if progress is not None:
            progress(outcome)
        if len(group) >= options.profile_every:
            yield from rows()
    yield from rows()
