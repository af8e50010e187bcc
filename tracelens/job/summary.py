"""What one rank brings to the answer for its job: a small file that merges with those of the other ranks."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy as np

from tracelens.analysis import Analysis
from tracelens.attribution.collectives import Call
from tracelens.attribution.communication import find_communication
from tracelens.errors import InputError, brief
from tracelens.job.columns import pack, rank_text, unpack
from tracelens.results import Finding, GpuInfo, ModelDims, Report, Summary, Waits
from tracelens.results.json import to_json
from tracelens.results.step import ComponentRow, Coverage
from tracelens.trace import IntArray, Links, Trace
from tracelens.trace.collectives import MOST_RANKS
from tracelens.trace.metadata import rank_and_world
from tracelens.trace.nesting import merged
from tracelens.trace.tables import MISSING
from tracelens.version import __version__
from tracelens.words import COMPONENTS, Purpose

#: Of the summary file. The major part changes when a reader of the old one would be wrong.
SUMMARY_VERSION = "3.0"
_RANK = re.compile(r"(?i)(?<![a-z])rank[ _.-]?([0-9]{1,6})(?![0-9])")
#: The step of what is in no whole step.
NO_STEP = -1
#: Ranges in which the training loop waits for its next batch (torch/utils/data/dataloader.py).
_INPUT = re.compile(r"^enumerate\(DataLoader\)")


#: What the messages of a group serve, and what its ranks are then to each other.
PARALLEL: dict[Purpose, str] = {
    "data-parallel gradients": "data parallel",
    "FSDP parameter gather": "FSDP",
    "tensor parallel": "tensor parallel",
    "expert all-to-all": "expert parallel",
}


#: What a summary can say, also one that somebody edited: what is beyond is refused with the whole file.
_Rank = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]
_Ranks = Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
_UNPACKED_BYTES, _UNPACKED_TIMES = 64_000_000, 100  # a real one unpacks to 2.2 times its size
_Time = Annotated[int, msgspec.Meta(gt=-(2**62), lt=2**62)]


class CallKind(msgspec.Struct, frozen=True, order=True):
    """Calls of a collective that differ in nothing but time. ``bytes`` as in ``Call.bytes``."""

    collective: str
    group: str  # the description of the process group, else its name; empty where the trace names none
    ranks: str | None  # of the group (``columns.rank_text``); None where the trace does not list them
    group_size: _Ranks | None
    bytes: Annotated[int, msgspec.Meta(ge=0, lt=2**56)] | None


class Columns(msgspec.Struct, frozen=True):
    """Packed columns of equal ``length`` (``tracelens.job.columns``)."""

    length: Annotated[int, msgspec.Meta(ge=0, lt=2**24)]
    data: dict[str, bytes]

    def column(self, name: str) -> IntArray:
        """One column. Raises InputError where it is damaged."""
        if name not in self.data:
            raise InputError(f"the summary lacks its column {name!r}")
        return unpack(self.data[name], self.length)


class RankStep(msgspec.Struct, frozen=True):
    """A whole step on this rank's clock."""

    index: _Time  # N of ProfilerStep#N
    start_ns: _Time
    end_ns: _Time


class RankGemm(msgspec.Struct, frozen=True):
    """GEMMs or attention of one place and shape; the fields are those of ``GemmRow``."""

    component: str
    role: str | None
    phase: str
    m: int | None
    n: int | None
    k: int | None
    batch: int | None
    dtype: str | None
    calls_per_step: float
    time_ms_per_step: float
    flops: float | None
    peak_frac: float | None


class RankSummary(msgspec.Struct, frozen=True):
    """One rank of a job."""

    summary_version: str
    tool_version: str
    file: str
    sha256: str
    rank: _Rank | None
    world_size: _Ranks | None
    partial: bool
    warnings: list[str]
    gpu: GpuInfo
    device: int | None  # the GPU's number on its node, of most of its kernels
    model: ModelDims
    report: bytes  # the rank's own (``job.saved``)
    summary: Summary
    coverage: Coverage
    steps: list[RankStep]
    components: list[ComponentRow]
    gemms: list[RankGemm]
    findings: list[Finding]
    waits: Waits | None  # by holistic-trace-analysis, where asked for
    degrees: dict[str, int]  # ranks that share the work, by the way of sharing it (``PARALLEL``)
    kinds: list[CallKind]
    calls: Columns  # kind, step (N of ProfilerStep), start_ns, end_ns, launch_ns (-1: not recorded)
    computing: Columns  # begin_ns, end_ns: some kernel other than communication runs
    communicating: Columns  # begin_ns, end_ns: some event of the component communication runs
    busy: Columns  # begin_ns, end_ns: some GPU event runs
    input: Columns  # begin_ns, end_ns: the training loop waits for a batch
    generated: bool = False  # the trace is, and not measured
    base_ns: _Time = 0  # since 1970: where its clock begins; 0 where that is 1970, or nothing says


def summarize(analysis: Analysis) -> RankSummary:
    """The summary of an analyzed trace. Times stay on the trace's own clock, integer ns.

    Raises InputError for an analysis that was loaded from a report: it has no events.
    """
    report, trace, links = analysis.report, analysis.trace, analysis.links
    attribution = analysis.attribution
    if trace is None or links is None or attribution is None:
        raise InputError(f"{report.trace.path} is a saved report: a summary is made of the trace itself")
    communication = find_communication(trace, links, attribution)
    kernels = trace.kernels
    end = kernels.ts_ns + kernels.dur_ns
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[kernels.category]
    computes = is_kernel & (attribution.component != COMPONENTS.index("communication"))
    numbers = np.array([*links.steps.index, NO_STEP], np.int64)
    moving = [at for at, call in enumerate(communication.calls) if call.collective != "packing"]
    chosen = np.flatnonzero(np.isin(communication.call, moving))
    rows = communication.kernel[chosen]
    kinds, of_call = _kinds(communication.calls)
    found = RankSummary(
        generated=report.trace.generated,
        base_ns=_base(trace),
        summary_version=SUMMARY_VERSION,
        tool_version=__version__,
        file=report.trace.path,
        sha256=report.trace.sha256,
        rank=_rank(trace),
        world_size=report.trace.world_size,
        partial=trace.partial,
        warnings=list(report.trace.warnings),
        gpu=report.gpu,
        device=_device(trace),
        model=report.model,
        report=packed_report(report),
        summary=report.summary,
        coverage=report.coverage,
        steps=_steps(report),
        components=report.components,
        gemms=[
            RankGemm(*(getattr(row, name) for name in RankGemm.__struct_fields__)) for row in report.gemms
        ],
        findings=report.findings,
        waits=report.waits if report.waits.tool else None,
        degrees=_degrees(report),
        kinds=kinds,
        calls=_columns(
            kind=of_call[communication.call[chosen]],
            step=numbers[attribution.step[rows]],
            start_ns=kernels.ts_ns[rows],
            end_ns=end[rows],
            launch_ns=_launched(trace, links, rows),
        ),
        computing=_spans(kernels.ts_ns[computes], end[computes]),
        communicating=_spans(kernels.ts_ns[communication.kernel], end[communication.kernel]),
        busy=_spans(kernels.ts_ns, end),
        input=_input(trace),
    )
    return msgspec.json.decode(msgspec.json.encode(found), type=RankSummary)  # as it is read again


def packed_report(report: Report) -> bytes:
    """A report as a summary holds it; ``job.saved`` unpacks it."""
    return zlib.compress(to_json(report, indent=None), 6)


def encode(summaries: Iterable[RankSummary]) -> bytes:
    """A summary file: a line of JSON per rank, each trace once, in order of rank, deflated.

    The same ranks give the same bytes, in whatever order they come and however often.
    """
    lines = map(msgspec.json.encode, each_trace_once(summaries))
    return gzip.compress(b"\n".join(lines) + b"\n", 6, mtime=0)


def each_trace_once(summaries: Iterable[RankSummary]) -> list[RankSummary]:
    """In order of rank; of several summaries of one trace the first by its file's name."""
    kept: dict[str, RankSummary] = {}
    for one in summaries:
        other = kept.setdefault(one.sha256 or one.file, one)
        if other is not one:
            kept[one.sha256 or one.file] = min(
                one, other, key=lambda same: (same.file, msgspec.json.encode(same))
            )
    return sorted(kept.values(), key=lambda one: (one.rank is None, one.rank or 0, one.file, one.sha256))


def decode(data: bytes, name: str) -> list[RankSummary]:
    """The ranks of a summary file. Raises InputError where it is none, or of another major version."""
    try:
        text = _unpacked(data, name) if data[:2] == b"\x1f\x8b" else data
        return [_decoded(line, name) for line in text.splitlines() if line.strip()]
    except (OSError, EOFError, zlib.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is no summary of ranks: {brief(error, 300)}") from None


def _unpacked(data: bytes, name: str) -> bytes:
    most = _UNPACKED_BYTES + _UNPACKED_TIMES * len(data)
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise InputError(f"{name} is no summary of ranks: it unpacks to more than {most / 1e6:,.0f} MB")
    return text


def _decoded(line: bytes, name: str) -> RankSummary:
    head = msgspec.json.decode(line, type=_SummaryHead)
    if head.summary_version.partition(".")[0] != SUMMARY_VERSION.partition(".")[0]:
        raise InputError(
            f"{name} has summary version {brief(head.summary_version)}; this tracelens reads "
            f"{SUMMARY_VERSION}: summarize the trace again"
        )
    found = msgspec.json.decode(line, type=RankSummary)
    if len({step.index for step in found.steps}) < len(found.steps):
        raise InputError(f"{name} is no summary of ranks: it has one step twice")
    return found


class _SummaryHead(msgspec.Struct):
    summary_version: str


def _kinds(calls: Sequence[Call]) -> tuple[list[CallKind], IntArray]:
    """The distinct kinds of call, and for each call which one it is."""
    each = [
        CallKind(
            one.collective,
            one.group or "",
            rank_text(one.ranks) if one.ranks else None,
            one.group_size,
            one.bytes,
        )
        for one in calls
    ]
    kinds = list(dict.fromkeys(each))
    return kinds, np.array([kinds.index(one) for one in each], np.int64)


def _degrees(report: Report) -> dict[str, int]:
    """Size of the group that most of the time of each purpose goes through, where the trace states it."""
    found: dict[str, int] = {}
    for row in sorted(report.communication, key=lambda row: row.time_ms):
        if row.purpose in PARALLEL and row.group_size:
            found[PARALLEL[row.purpose]] = row.group_size
    return dict(sorted(found.items()))


def _columns(**columns: IntArray) -> Columns:
    (length,) = {len(column) for column in columns.values()}
    return Columns(length, {name: pack(column) for name, column in columns.items()})


def _spans(begin: IntArray, end: IntArray) -> Columns:
    begin, end = merged(begin, end)
    return _columns(begin_ns=begin, end_ns=end)


def _input(trace: Trace) -> Columns:
    """Ranges of the data loader on the CPU, also where they were recorded as operators."""
    waits = trace.symbols.where(_INPUT.match)
    spans = [(table.ts_ns[at], table.dur_ns[at]) for table in (trace.ranges, trace.ops)
             for at in [np.flatnonzero(waits[table.name])]]  # fmt: skip
    begin = np.concatenate([one for one, _ in spans])
    return _spans(begin, begin + np.concatenate([dur for _, dur in spans]))


def _launched(trace: Trace, links: Links, rows: IntArray) -> IntArray:
    launch = links.kernel_launch[rows]
    known = np.append(trace.launches.ts_ns, MISSING)
    return known[launch]


def _steps(report: Report) -> list[RankStep]:
    return [
        RankStep(step.index, step.start_ns, step.start_ns + round(step.duration_ms * 1e6))
        for step in report.steps
    ]


def _base(trace: Trace) -> int:
    base = trace.metadata.get("baseTimeNanoseconds")
    return base if type(base) is int and 0 <= base < 2**62 else 0  # true is no time


def _device(trace: Trace) -> int | None:
    devices, many = np.unique(trace.kernels.device[trace.kernels.device >= 0], return_counts=True)
    return int(devices[many.argmax()]) if len(devices) else None


def _rank(trace: Trace) -> int | None:
    """By the trace's metadata, else by its name."""
    rank = rank_and_world(trace.metadata)[0]
    named = _RANK.search(trace.source.name)
    return int(named[1]) if rank is None and named else rank
