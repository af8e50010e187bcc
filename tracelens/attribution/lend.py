"""Kernels whose own operator is unknown repeat kernels that are known: they are lent what those are.

A kernel launched before the recording began, or replayed by a CUDA graph, has no operator of its own. A
whole step of the same stream, or a second trace of the same job, holds the same kernels in the same order
with their operators. Twins are found by order and name (``align``) and lend component, phase, layer and
module; where a kernel has several possible twins it gets only what all of them share.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from tracelens.attribution.align import find_alignment
from tracelens.attribution.loan import Loan
from tracelens.gemm import parse_kernel_name
from tracelens.trace import Links, Trace
from tracelens.trace.metadata import device_name
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

if TYPE_CHECKING:
    from tracelens.attribution.attribute import Attribution

T = TypeVar("T", bound=Hashable)
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_UNATTRIBUTED = COMPONENTS.index("unattributed")
_OTHER = PHASES.index("other")
_STRUCTURE = EVIDENCE.index("structure")
_KERNEL_NAME = EVIDENCE.index("kernel_name")
#: Kernels on either side of a gap that are aligned with it: they hold a short gap in its place.
_CONTEXT = 96
#: A stream lends to streams with other numbers too (a graph replays on its own); so many are tried.
_STREAMS = 8
_PRODUCTS = 4  # GEMM and attention kernels from which on they decide whether a stretch repeats another
_LONGEST = 200_000  # kernels of the known steps that are searched for twins


def lend(
    trace: Trace,
    links: Links,
    attribution: Attribution,
    *,
    reference: tuple[Trace, Links, Attribution] | None = None,
) -> Attribution:
    """Fill kernels of unknown operator from their twins in the same trace, then from the reference.

    Filled kernels have evidence ``structure`` and ``like`` (the twin's row); those filled from the
    reference stand in ``loan``. Steps stay as they are: a kernel outside every step is not moved into one.
    """
    twins = _twins_within(trace, links)
    attribution = _filled(attribution, attribution, twins, orphans(trace, links))
    like = np.where(twins.agreed(attribution), twins.row, -1).astype(np.int32)
    attribution = replace(attribution, like=like)
    if reference is None:
        return attribution
    return _from_reference(trace, links, attribution, reference)


def lent_kernels(attribution: Attribution) -> BoolArray:
    """Per kernel: does its component come from a kernel it repeats?"""
    taken = attribution.like >= 0
    if attribution.loan is not None:
        taken |= attribution.loan.filled
    out: BoolArray = taken & (attribution.evidence == _STRUCTURE)
    return out


@dataclass(frozen=True, slots=True)
class _Twins:
    """Per kernel its twin, and for some of them other kernels that could be it."""

    row: IntArray  # per kernel: row of the twin; -1
    others: tuple[IntArray, IntArray]  # (kernel, row of another possible twin) pairs

    def shared(self, column: npt.NDArray[np.int32]) -> BoolArray:
        """Per kernel: do all its possible twins have the same value in this column of theirs?"""
        out: BoolArray = self.row >= 0
        kernel, other = self.others
        out[kernel[column[other] != column[self.row[kernel]]]] = False
        return out

    def agreed(self, lender: Attribution) -> BoolArray:
        """Per kernel: is its work known, whichever of the possible twins it repeats?"""
        return self.shared(lender.component) & self.shared(lender.phase)


def _filled(attribution: Attribution, lender: Attribution, twins: _Twins, open_: BoolArray) -> Attribution:
    """The attribution with what the twins of the open kernels are; modules and lists are those of both."""
    modules, module_code = _merged(attribution.modules, lender.modules)
    lists, list_code = _merged(attribution.components, lender.components)
    takers = np.flatnonzero(open_ & twins.agreed(lender))
    known = lender.component[twins.row[takers]] != _UNATTRIBUTED
    unknown, takers = takers[~known], takers[known]
    givers = twins.row[takers]
    # a name that tells by itself tells the same of both: no stronger evidence came from the order
    by_name = (lender.evidence[givers] == _KERNEL_NAME) & (
        attribution.component[takers] == lender.component[givers]
    )
    columns = {
        name: getattr(attribution, name).copy()
        for name in ("phase", "component", "evidence", "fused", "layer", "module", "reason")
    }
    columns["component"][takers] = lender.component[givers]
    columns["fused"][takers] = list_code[lender.fused[givers]]
    columns["evidence"][takers[~by_name]] = _STRUCTURE
    columns["reason"][takers] = -1
    if lender is attribution:
        # not their launch is what is missing: with it they would lack what the twin lacks
        unknown = unknown[attribution.component[unknown] == _UNATTRIBUTED]
        columns["reason"][unknown] = attribution.reason[twins.row[unknown]]
    phased = takers[lender.phase[givers] != _OTHER]
    columns["phase"][phased] = lender.phase[twins.row[phased]]
    same_layer, same_module = twins.shared(lender.layer), twins.shared(lender.module)
    placed = takers[same_layer[takers]]
    columns["layer"][placed] = lender.layer[twins.row[placed]]
    named = takers[same_module[takers]]
    columns["module"][named] = module_code[lender.module[twins.row[named]]]
    return replace(attribution, modules=modules, components=lists, **columns)


def _merged(ours: list[T], theirs: list[T]) -> tuple[list[T], npt.NDArray[np.int32]]:
    """Both lists as one, and per code of theirs the code in it; one place more for -1."""
    if ours is theirs:
        return ours, np.append(np.arange(len(ours)), -1).astype(np.int32)
    out: list[T] = [*ours]
    code: dict[T, int] = {text: at for at, text in reversed([*enumerate(out)])}
    for text in theirs:
        if text not in code:
            code[text] = len(out)
            out.append(text)
    return out, np.array([*(code[text] for text in theirs), -1], np.int32)


def orphans(trace: Trace, links: Links) -> BoolArray:
    """Kernels whose own operator cannot be known: without a launch, or replayed by a graph."""
    replayed = trace.symbols.where(lambda text: "GraphLaunch" in text)[trace.launches.name]
    launch = links.kernel_launch
    out: BoolArray = links.kernel_node < 0
    out[launch >= 0] |= replayed[launch[launch >= 0]]
    return out


# -- the same trace -------------------------------------------------------------------------------


def _twins_within(trace: Trace, links: Links) -> _Twins:
    """Twins of orphans among the kernels of whole, launched steps."""
    row = np.full(len(trace.kernels), -1, np.int64)
    orphan = orphans(trace, links)
    streams = _streams(trace)
    if not orphan.any() or orphan.all():
        return _Twins(row, (row[:0], row[:0]))
    keys = _keys(trace)
    known = {name: _known_steps(rows, links.kernel_step, orphan, keys) for name, rows in streams.items()}
    others: list[tuple[IntArray, IntArray]] = []
    for name, rows in streams.items():
        by_size = sorted(known, key=lambda stream: -len(known[stream]))
        lenders = [name, *(stream for stream in by_size if stream != name)][:_STREAMS]
        for gap in _gaps(orphan[rows]):
            part = rows[gap]
            for lender in lenders:
                if _match(part, known[lender], keys, keys, orphan[part], row, others):
                    break
            if not _convincing(trace, part[orphan[part]], row):
                row[part] = -1
    return _Twins(row, others=_joined(others, row))


def _match(
    part: IntArray,
    lender: IntArray,
    keys: IntArray,
    lender_keys: IntArray,
    open_: BoolArray,
    row: IntArray,
    others: list[tuple[IntArray, IntArray]],
) -> bool:
    """Write the twins of a stretch of kernels; True when most of the open ones have one."""
    common = np.isin(keys[part], lender_keys[lender])
    part, open_ = part[common], open_[common]
    lender = lender[np.isin(lender_keys[lender], keys[part])]
    found = find_alignment(keys[part], lender_keys[lender], around=True)
    twin = np.where(open_ & (found.position >= 0) & (row[part] < 0), found.position, -1)
    taken = np.flatnonzero(twin >= 0)
    row[part[taken]] = lender[twin[taken]]
    element, place = found.others
    mine = twin[element] >= 0
    others.append((part[element[mine]], lender[place[mine]]))
    return bool((row[part[open_]] >= 0).mean() > 0.5) if open_.any() else True


def _convincing(trace: Trace, rows: IntArray, twin: IntArray) -> bool:
    """Do these kernels repeat the others, or do a few common kernels only look like it?

    Another model of the same library shares its elementwise kernels; its GEMMs and attention differ.
    """
    named = trace.symbols.where(lambda text: parse_kernel_name(text) is not None)
    products = rows[named[trace.kernels.name[rows]]]
    rows = products if len(products) >= _PRODUCTS else rows
    time = trace.kernels.dur_ns[rows]
    return bool(time[twin[rows] >= 0].sum() > 0.5 * time.sum())


def _known_steps(rows: IntArray, step: npt.NDArray[np.int32], orphan: BoolArray, keys: IntArray) -> IntArray:
    """Rows of a stream's whole, launched steps, each kind of step once; without any, all launched rows."""
    launched = ~orphan[rows]
    of = np.where(launched & (step[rows] >= 0), step[rows], -1)
    seen = np.maximum.accumulate(np.where(of >= 0, np.arange(len(rows)), -1))
    of = np.where(seen >= 0, of[np.maximum(seen, 0)], -1)  # an orphan among a step's kernels is part of it
    starts = np.flatnonzero(np.append(True, of[1:] != of[:-1])) if len(rows) else np.empty(0, np.int64)
    kinds: dict[bytes, IntArray] = {}
    size = 0
    for block in np.split(np.arange(len(rows)), starts[1:]):
        if len(block) and of[block[0]] >= 0 and launched[block].all() and size < _LONGEST:
            kind = keys[rows[block]].tobytes()
            if kind not in kinds:
                kinds[kind] = rows[block]
                size += len(block)
    return np.concatenate([*kinds.values()]) if kinds else rows[launched]


def _gaps(orphan: BoolArray) -> Iterator[slice]:
    """Stretches around the orphans of a stream, with context on either side."""
    at = np.flatnonzero(orphan)
    if not len(at):
        return
    cuts = np.flatnonzero(np.diff(at) > 2 * _CONTEXT)
    firsts, lasts = at[np.append(0, cuts + 1)], at[np.append(cuts, len(at) - 1)]
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        yield slice(max(0, first - _CONTEXT), last + 1 + _CONTEXT)


# -- a reference ----------------------------------------------------------------------------------


def _from_reference(
    trace: Trace, links: Links, attribution: Attribution, reference: tuple[Trace, Links, Attribution]
) -> Attribution:
    """Fill what is still unattributed from the reference, and say which of its kernels every one repeats."""
    theirs, their_links, lender = reference
    twins = _twins_in_reference(trace, links, theirs, their_links)
    operator_unknown = orphans(trace, links) & (attribution.like < 0)
    unattributed = attribution.component == _UNATTRIBUTED
    agreed = twins.agreed(lender) & ~_contradicts(attribution, lender, twins)
    open_ = (operator_unknown | unattributed) & agreed
    lent = _filled(attribution, lender, twins, open_)
    filled = open_ & (lent.component != _UNATTRIBUTED)
    loan = Loan(
        trace=theirs,
        links=their_links,
        attribution=lender,
        like=np.where(agreed, twins.row, -1).astype(np.int32),
        filled=filled,
        matched=twins.row >= 0,
    )
    return replace(lent, loan=loan, transformer=lent.transformer or bool(lender.transformer and filled.any()))


def _contradicts(attribution: Attribution, lender: Attribution, twins: _Twins) -> BoolArray:
    """Kernels whose own launch says another phase than their twin: they are no twins."""
    twin = np.where(twins.row >= 0, lender.phase[twins.row], _OTHER) if len(lender.phase) else _OTHER
    out: BoolArray = (attribution.phase != twin) & (attribution.phase != _OTHER) & (twin != _OTHER)
    return out


def _twins_in_reference(trace: Trace, links: Links, theirs: Trace, their_links: Links) -> _Twins:
    """Twins of all kernels among the launched kernels of the reference."""
    row = np.full(len(trace.kernels), -1, np.int64)
    keys, lender_keys = _keys_of_both(trace, theirs)
    orphan = orphans(theirs, their_links)
    lenders = [
        _known_steps(rows, their_links.kernel_step, orphan, lender_keys) for rows in _streams(theirs).values()
    ]
    lenders = sorted((rows for rows in lenders if len(rows)), key=lambda rows: -len(rows))[:_STREAMS]
    others: list[tuple[IntArray, IntArray]] = []
    for rows in _streams(trace).values():
        for lender in lenders:
            everything = np.ones(len(rows), np.bool_)
            if _match(rows, lender, keys, lender_keys, everything, row, others):
                break
    if not _convincing(trace, np.arange(len(row)), row):
        row[:] = -1
    return _Twins(row, others=_joined(others, row))


# -- sequences and keys ---------------------------------------------------------------------------


def _streams(trace: Trace) -> dict[tuple[int, int], IntArray]:
    """Rows of each (device, stream) in the order they ran."""
    kernels = trace.kernels
    order = np.lexsort((kernels.ts_ns, kernels.stream, kernels.device))
    device, stream = kernels.device[order], kernels.stream[order]
    starts = np.flatnonzero((device[1:] != device[:-1]) | (stream[1:] != stream[:-1])) + 1
    parts = np.split(order, starts)
    return {(int(device[at]), int(stream[at])): part for at, part in zip([0, *starts], parts, strict=True)}


def _keys(trace: Trace) -> IntArray:
    """Per kernel a number for (name, launch configuration)."""
    kernels = trace.kernels
    return kernels.name.astype(np.int64) * (int(kernels.launch.max(initial=0)) + 1) + kernels.launch


def _keys_of_both(trace: Trace, other: Trace) -> tuple[IntArray, IntArray]:
    """Per kernel of each trace a number for (name, grid, block), for the name alone where grids mean nothing.

    Grids depend on the GPU (cuBLAS and Triton choose tiles by it), and old recordings have none.
    """
    gpus = {device_name(trace.metadata), device_name(other.metadata)}
    by_grid = len(gpus) == 1 and _has_grids(trace) and _has_grids(other)
    code: dict[tuple[str, str], int] = {}
    first, second = (_coded(side, code, by_grid=by_grid) for side in (trace, other))
    return first, second


def _coded(trace: Trace, code: dict[tuple[str, str], int], *, by_grid: bool) -> IntArray:
    kernels = trace.kernels
    _, pairs, inverse = np.unique(_keys(trace), return_index=True, return_inverse=True)
    numbers = []
    for row in pairs.tolist():
        config = trace.details.config(int(kernels.launch[row]))
        grid = f"{config.grid} {config.block}" if by_grid else ""
        numbers.append(code.setdefault((trace.symbols[int(kernels.name[row])], grid), len(code)))
    return np.array(numbers, np.int64)[inverse] if numbers else np.empty(0, np.int64)


def _has_grids(trace: Trace) -> bool:
    is_kernel = trace.symbols.where(lambda text: text == "kernel")[trace.kernels.category]
    return all(
        trace.details.config(int(code)).grid is not None
        for code in np.unique(trace.kernels.launch[is_kernel])
    )


def _joined(pairs: list[tuple[IntArray, IntArray]], twin: IntArray) -> tuple[IntArray, IntArray]:
    """All pairs of (kernel, other possible twin) whose kernel has a twin."""
    empty = np.empty(0, np.int64)
    kernel = np.concatenate([empty, *(kernel for kernel, _ in pairs)])
    other = np.concatenate([empty, *(row for _, row in pairs)])
    return kernel[twin[kernel] >= 0], other[twin[kernel] >= 0]
