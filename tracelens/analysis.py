"""The whole pipeline: from the path of a trace to everything there is to say about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tracelens import words
from tracelens.accounting.captured import with_captured
from tracelens.accounting.communication import communication_rows
from tracelens.accounting.cost import parse_price, with_cost
from tracelens.accounting.degrees import declared, with_degrees
from tracelens.accounting.gemms import gemm_rows
from tracelens.accounting.host_waits import host_waits, idle_in
from tracelens.accounting.layers import layer_times
from tracelens.accounting.lost import gemm_time
from tracelens.accounting.messages import with_messages
from tracelens.accounting.model import model_dims, shows_shapes
from tracelens.accounting.operands import operands_of
from tracelens.accounting.others import other_kernels, other_rows
from tracelens.accounting.overlap import clock_of, surroundings
from tracelens.accounting.padding import padded_batches, with_padding
from tracelens.accounting.report import summarize, trace_info, with_findings
from tracelens.accounting.shares import component_rows, coverage, reference_info
from tracelens.accounting.steps import StepTimes, sampled, step_times
from tracelens.accounting.words.model import layers_of_a_part
from tracelens.attribution import Attribution, Calls, attribute, find_calls, open_functions
from tracelens.attribution.communication import Communication, find_communication
from tracelens.attribution.recording import find_lacks
from tracelens.errors import InputError, UsageError
from tracelens.files import cannot_read, write_bytes
from tracelens.gemm.predict.rates import gpu_info
from tracelens.hardware import Gpu, find_gpu
from tracelens.hardware.measurements import Measurements, find_measurements
from tracelens.results import SCHEMA_VERSION, ComponentRow, Explorer, Known, OtherRow, Report
from tracelens.results.json import from_json, to_json
from tracelens.results.step import Step
from tracelens.results.waits import busy_frac, mean_ms
from tracelens.rules import StepFacts, advise
from tracelens.step.explorer import explore
from tracelens.step.saved_step import step_of
from tracelens.step.step_search import search_step
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import scenario
from tracelens.step.words import search as searching
from tracelens.step.work import tokens_of
from tracelens.trace import Links, Trace, link, one_device, read_trace
from tracelens.trace.devices import each_once
from tracelens.trace.metadata import device_properties
from tracelens.trace.validity import check_rules
from tracelens.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.hta import WaitFrames


#: Told what is done now: parts done (and of one a share), parts in all, what is next.
Progress = Callable[[float, int, str], None]
_KNOWN = 0.05  # of the file read: from here on it is known how long the rest takes
_PARTS = ("reading", "attributing", "GEMMs", "rules", "where it waits")
_STRAY = 0.01  # of GPU time on other GPUs: a fill or two, and no layers


@dataclass(frozen=True)
class Analysis:
    """A report with the tables behind it. Loaded from a saved report, it has no per-kernel table."""

    report: Report
    trace: Trace | None = None
    links: Links | None = None
    attribution: Attribution | None = None
    calls: Calls | None = None

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """One row per GPU event; columns in ``tracelens.accounting.frames.kernels_frame``."""
        from tracelens.accounting.frames import kernels_frame

        if self.trace is None or self.links is None or self.attribution is None or self.calls is None:
            raise UsageError("a saved report holds no per-kernel table: analyze the trace itself")
        return kernels_frame(self.trace, self.links, self.attribution, self.calls)

    @cached_property
    def ops(self) -> pd.DataFrame:
        """Operators by name, with the GPU time each launched; columns in ``frames.ops_frame``."""
        from tracelens.accounting.frames import ops_frame

        if self.trace is None or self.links is None:
            raise UsageError("a saved report holds no operator table: analyze the trace itself")
        return ops_frame(self.trace, self.links)

    @cached_property
    def waits(self) -> WaitFrames:
        """Where the step waits, by holistic-trace-analysis; columns in ``tracelens.hta.WaitFrames``.

        Raises LibraryMissing without the extra ``hta``.
        """
        from tracelens.hta import wait_frames

        if self.trace is None or self.links is None or self.attribution is None:
            raise UsageError("a saved report holds no events to follow: analyze the trace itself")
        return wait_frames(self.trace, self.links, self.attribution, steps=self.report.steps)

    def with_waits(self) -> Self:
        """The same with ``report.waits``, which says why where holistic-trace-analysis is not installed."""
        from tracelens.hta import report_waits

        return replace(
            self,
            report=replace(self.report, waits=report_waits(lambda: self.waits, steps=len(self.report.steps))),
        )

    def with_what_if(self, *changes: str) -> Self:
        """The same with these scenarios ("vocab=50304,heads=20") in ``report.what_if``.

        Raises UsageError for a change that cannot be made.
        """
        step = step_of(self.report)
        found = [scenario(step, text) for text in changes]
        return replace(self, report=replace(self.report, what_if=[*self.report.what_if, *found]))

    def with_price(self, price: str) -> Self:
        """The same with steps and savings in money too; ``price`` of one GPU-hour, "2.50" or "2.50 EUR".

        Raises UsageError when that is no price.
        """
        return replace(self, report=with_cost(self.report, parse_price(price)))

    @cached_property
    def gemms(self) -> pd.DataFrame:
        """GEMM and attention rows; columns in ``tracelens.accounting.frames.gemms_frame``."""
        from tracelens.accounting.frames import gemms_frame

        return gemms_frame(self.report.gemms)

    @cached_property
    def components(self) -> pd.DataFrame:
        """Time by component and phase; the columns are the fields of ``tracelens.results.ComponentRow``."""
        from tracelens.accounting.frames import rows_frame

        return rows_frame(self.report.components, ComponentRow)

    @cached_property
    def findings(self) -> pd.DataFrame:
        """What to change, the largest saving first; columns in ``frames.findings_frame``."""
        from tracelens.accounting.frames import findings_frame

        return findings_frame(self.report.findings)

    @cached_property
    def layers(self) -> pd.DataFrame:
        """GPU time by layer, component and phase; columns in ``frames.layers_frame``."""
        from tracelens.accounting.frames import layers_frame

        return layers_frame(self.report.layers)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """The analysed steps; the columns are the fields of ``tracelens.results.step.Step``."""
        from tracelens.accounting.frames import rows_frame

        return rows_frame(self.report.steps, Step)

    def save(self, path: str | Path) -> None:
        """Write the report as JSON (the same as ``--json``)."""
        write_bytes(path, to_json(self.report))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a saved report. Raises InputError when it is none."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise InputError(cannot_read(path, error)) from None
        return cls(from_json(data))

    def __repr__(self) -> str:
        """One line: a notebook keeps it beside the page, and the tables behind a report are long."""
        return f"<Analysis of {self.report.trace.path!r}: {self.report.summary.verdict}>"


def analyze(
    path: str | Path,
    *,
    gpu: str | None = None,
    device: int | None = None,
    steps: tuple[int, int] | None = None,
    reference: str | Path | None = None,
    what_ifs: Sequence[str] = (),
    waits: bool = False,
    price: str | None = None,
    progress: Progress | None = None,
    shape_search: bool = True,
) -> Analysis:
    """Analyze one trace file (``.json``, ``.json.gz``, or ``-`` for standard input).

    ``gpu`` is a key of the GPU table ("h100-sxm") that overrides the device named in the trace; ``device`` is
    the number of the GPU that the report is of, where several ran (the one with most GPU time by default);
    ``steps`` keeps the steps whose ProfilerStep number lies in (first, last). ``reference`` is another
    trace of the same job (eager, or with shapes and modules): what is known of its kernels holds for
    the kernels here that repeat them. Each of ``what_ifs`` is a scenario, changes of hyper-parameters as
    "vocab=50304,heads=20", that the report then predicts. ``waits`` adds where the step waits, by
    holistic-trace-analysis (the extra ``hta``): some seconds. ``price`` of one GPU-hour, "2.50" or
    "2.50 EUR", adds money to the GPU-hours. ``progress(done, in_all, next)`` is
    called before each part. Without ``shape_search`` the report has neither a faster shape of the same size
    nor curves of the hyper-parameters, which take some tenths of a second.

    Raises:
        InputError: one of the files cannot be used, or holds no GPU event.
        UsageError: the GPU, the device or the steps do not exist, both files are standard input, the price is
            none, or a scenario names what the step does not have.
    """
    if price is not None:
        parse_price(price)  # before the trace is read
    if reference is not None and str(path) == str(reference) == "-":
        raise UsageError("the trace and its reference cannot both come from standard input")
    _tell(progress, 0)
    trace = read_trace(path, progress=None if progress is None else _reading(progress))
    analysis = analyze_trace(
        trace,
        gpu=gpu,
        device=device,
        steps=steps,
        reference=None if reference is None else _read_reference(reference),
        what_ifs=what_ifs,
        price=price,
        progress=progress,
        shape_search=shape_search,
    )
    if waits:
        _tell(progress, 4)
        analysis = analysis.with_waits()
    return analysis


def _tell(progress: Progress | None, part: int) -> None:
    if progress is not None:
        progress(part, len(_PARTS), _PARTS[part])


def _reading(progress: Progress) -> Callable[[float], None]:
    """What the reader tells, as a part of the whole: each further percent, with the time it will take."""
    began, said = time.monotonic(), 0.0

    def told(share: float) -> None:
        nonlocal said
        if share - said < 0.01:
            return
        said = share
        left_s = (time.monotonic() - began) * (1 - share) / share
        known = share >= _KNOWN  # the start of helpers is no measure
        progress(share, len(_PARTS), words.reading(share, left_s if known else None))

    return told


def _read_reference(path: str | Path) -> Trace:
    try:
        reference = read_trace(path)
    except InputError as error:
        raise InputError(f"--reference: {error}") from None
    if not len(reference.kernels):
        raise InputError(f"--reference: {_without_gpu(reference)}")
    return reference


def analyze_trace(
    trace: Trace,
    *,
    gpu: str | None = None,
    device: int | None = None,
    steps: tuple[int, int] | None = None,
    reference: Trace | None = None,
    what_ifs: Sequence[str] = (),
    price: str | None = None,
    progress: Progress | None = None,
    shape_search: bool = True,
) -> Analysis:
    """Analyze a trace that has been read."""
    if not len(trace.kernels):
        raise InputError(_without_gpu(trace))
    _tell(progress, 1)
    trace = one_device(trace, device)
    devices = device_properties(trace.metadata)
    hardware = find_gpu(trace.device_name, override=gpu, properties=devices[0] if devices else None)
    trace = open_functions(each_once(trace))
    links = link(trace)
    attribution = attribute(trace, links, reference=None if reference is None else _known(reference))
    times = step_times(trace, links, attribution, wanted=steps)
    attribution = attribution.within_steps(times.positions)
    _tell(progress, 2)
    calls, report = _measured_report(trace, links, attribution, times, hardware)
    _tell(progress, 3)
    step = step_of(report, gpu=hardware)
    others = other_rows(trace, links, attribution, calls, steps=times.count)
    facts = _facts(report, step, others)
    inside, inside_ms = idle_in(trace, links, times)
    advice = advise(replace(facts, host_waits=host_waits(trace, links, times), padded=padded_batches(trace)))
    report = replace(
        report,
        findings=advice.findings,
        checks=advice.checks,
        summary=replace(report.summary, idle_in=inside, idle_in_ms=inside_ms),
        what_if=[scenario(step, text) for text in what_ifs],
        explorer=explore(step, advice.findings) if shape_search else Explorer(),
        shape_search=search_step(step, report.model, lacks=report.recording) if shape_search else None,
    )
    told = with_cost(with_findings(report, advice), parse_price(price) if price is not None else None)
    return Analysis(told, trace, links, attribution, calls)


def _facts(report: Report, step: StepModel, others: list[OtherRow]) -> StepFacts:
    """What rules judge from, besides what only the trace tells."""
    return StepFacts(
        gemms=report.gemms,
        model=report.model,
        gpu=report.gpu,
        step_ms=report.summary.step_ms.median,
        gpu_busy_frac=busy_frac(report.summary),
        step=step,
        components=report.components,
        communication=report.communication,
        others=others,
        declared=report.declared,
        marked=report.summary.steps_marked,
        coverage=report.coverage,
        clock=report.clock,
        mean_ms=mean_ms(report.summary),
    )


def _measured_report(
    trace: Trace, links: Links, attribution: Attribution, times: StepTimes, gpu: Gpu
) -> tuple[Calls, Report]:
    """What was measured: calls and the report without what is advised, predicted and searched."""
    measured, notes = _measurements(gpu)
    calls = with_padding(trace, attribution, find_calls(trace, links, attribution))
    communication = find_communication(trace, links, attribution)
    collectives = communication_rows(trace, attribution, communication, steps=times.count)
    sharded = _tensor_parallel(communication)
    dims = model_dims(attribution, calls, sharded=sharded, operands=operands_of(trace))
    dims = with_messages(dims, trace, attribution, communication)
    elsewhere = sum(trace.beside.values()) > _STRAY * int(trace.kernels.dur_ns.sum())
    if (times.cut or elsewhere) and dims.layers.value is not None:
        dims = replace(dims, layers=Known(None, layers_of_a_part(dims.layers.value, cut=times.cut)))
    dims = with_captured(dims, trace, shapes=shows_shapes(attribution, calls))
    around = surroundings(trace, attribution, calls)
    gemms, calls = gemm_rows(
        trace, attribution, calls, dims, gpu, around=around, steps=times.count, measured=measured
    )
    covered = coverage(trace, links, attribution, calls, gemms)
    report = Report(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        trace=trace_info(trace, attribution.loan),
        gpu=gpu_info(gpu, measured),
        model=with_degrees(
            dims, trace.metadata, collectives, complete=covered.complete, tokens=tokens_of(gemms)
        ),
        steps=times.rows(),
        summary=summarize(trace, attribution, calls, times, gpu, gemms, covered),
        coverage=covered,
        components=component_rows(trace, attribution, calls, steps=times.count),
        gemms=gemms,
        findings=[],
        checks=[],
        notes=[*gpu.notes, *notes],
        communication=collectives,
        recording=find_lacks(trace, links, attribution, steps=times.positions),
        reference=reference_info(trace, attribution, calls),
        clock=clock_of(
            around, dict(zip(times.positions, times.index, strict=True)), gemms, sampled(trace, times)
        ),
        gemm_time=gemm_time(gemms),
        layers=layer_times(trace, attribution, times),
        declared=declared(trace.metadata),
        left_out=times.left_out,
        trace_rules=[rule for rule in check_rules(trace) if rule.checked],
        other_kernels=other_kernels(trace, attribution, calls, steps=times.count),
    )
    return calls, report


def _measurements(gpu: Gpu) -> tuple[Measurements | None, list[str]]:
    """What this GPU was measured at, where it was, and a note for the report."""
    if gpu.name == "unknown":
        return None, []
    try:
        found = find_measurements(gpu.name, sms=gpu.sms)
    except InputError as error:
        return None, [searching.measurements_unusable(error)]
    if found is None:
        return None, []
    return found, [f"{searching.with_measurements(gpu.title, found.date)}."]


def _known(reference: Trace) -> tuple[Trace, Links, Attribution]:
    """A reference with what is known of its own kernels."""
    reference = open_functions(each_once(one_device(reference)))
    links = link(reference)
    return reference, links, attribute(reference, links)


def _tensor_parallel(communication: Communication) -> bool:
    """Do ranks exchange activations of layers that they share?"""
    serves = {communication.purposes[code].purpose for code in set(communication.purpose.tolist())}
    return "tensor parallel" in serves


def _without_gpu(trace: Trace) -> str:
    if trace.is_of_another_program:
        return words.of_another_program(trace.source.name)
    fault = trace.warnings[0] if trace.partial else None
    return words.no_gpu_event(trace.source.name, trace.events, fault)
