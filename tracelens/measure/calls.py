"""Case by case, in groups whose kernels one profiler run records: the loop of GEMMs and of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from tracelens.measure.cases import AttentionCase, CannotMeasure, CaseOutcome, GemmCase, MeasureOptions
from tracelens.measure.devices import guarded
from tracelens.measure.kernels import CallKernels, record_kernels
from tracelens.measure.operands import Pools
from tracelens.measure.timing import Device, Timing

_Case = TypeVar("_Case", GemmCase, AttentionCase)
_Row = TypeVar("_Row")


def measure_each(
    cases: Iterable[_Case],
    time: Callable[..., Timing],
    prepare: Callable[..., Callable[[], None]],
    row: Callable[[_Case, Timing, CallKernels], _Row],
    *,
    device: Device,
    options: MeasureOptions | None,
    progress: Callable[[CaseOutcome], None] | None,
) -> Iterator[_Row]:
    """Time each case and record its kernels; yields after every ``options.profile_every`` cases.

    ``cases`` is read one by one, so it may end early when time is up. ``progress`` hears of each case at
    once, also of those that cannot be measured, with the reason. Kernel names come from one profiler run
    per group of cases, outside all timing; on the CPU there are none. ``time`` times a case, ``prepare`` lays
    out one set of its operands and returns the call, ``row`` is what is kept.
    """
    options = options or MeasureOptions()
    pools = Pools(device)
    group: list[tuple[_Case, Timing]] = []

    def rows() -> Iterator[_Row]:
        calls: list[Any] = [partial(prepare, case, device=device, pools=pools) for case, _ in group]
        named = record_kernels(calls, device=device)
        for (case, timing), launched in zip(group, named, strict=True):
            yield row(case, timing, launched)
        group.clear()

    for case in cases:
        act: Any = partial(time, case, device=device, pools=pools, options=options)
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
