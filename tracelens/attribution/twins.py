"""Which kernels repeat which, in the same trace or in a second one: by order and name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.attribution.align import find_alignment
from tracelens.attribution.result import Attribution
from tracelens.gemm import KernelNames
from tracelens.trace import BoolArray, IntArray, Links, Trace
from tracelens.words import COMPONENTS

#: Kernels on either side of a gap that are aligned with it: they hold a short gap in its place.
_CONTEXT = 96
_GAPS = 64  # with more of them a stream is aligned as a whole
#: A stream lends to streams with other numbers too (a graph replays on its own); so many are tried.
_STREAMS = 8
#: Of the kernels that both traces name, how many must be launched alike: 0.72 and more where the sizes are
#: the same, 0.49 and less with another width or batch (simulated models; 0.91 and more between real runs).
_ALIKE = 0.6
_PRODUCTS = 4  # GEMM and attention kernels from which on they decide whether a stretch repeats another
_UNATTRIBUTED = COMPONENTS.index("unattributed")
_LONGEST = 200_000  # kernels of the known steps that are searched for twins


@dataclass(frozen=True, slots=True)
class Twins:
    """Per kernel its twin, and for some of them other kernels that could be it."""

    row: IntArray  # per kernel: row of the twin; -1
    others: tuple[IntArray, IntArray]  # (kernel, row of another possible twin) pairs

    def shared(self, column: npt.NDArray[np.int32]) -> BoolArray:
        """Per kernel: do all its possible twins have the same value in this column of theirs?"""
        out: BoolArray = self.row >= 0
        kernel, other = self.others
        out[kernel[column[other] != column[self.row[kernel]]]] = False
        return out

    def told(self, lender: Attribution) -> Twins:
        """The same twins without those that nothing is known of, where another place tells: the end of the
        recording cuts a layer off, and what is left of it speaks against nothing."""
        known = lender.component != _UNATTRIBUTED
        kernel, other = self.others
        told = known[other]
        kernel, other = kernel[told], other[told]
        row = self.row.copy()
        silent = ~known[row[kernel]]
        row[kernel[silent]] = other[silent]
        return Twins(row, (kernel, other))

    def agreed(self, lender: Attribution) -> BoolArray:
        """Per kernel: is its work known, whichever of the possible twins it repeats?"""
        return self.shared(lender.component) & self.shared(lender.phase)


def orphans(trace: Trace, links: Links) -> BoolArray:
    """Kernels whose own operator cannot be known: without a launch, or replayed by a graph."""
    replayed, launch = trace.replays, links.kernel_launch
    out: BoolArray = links.kernel_node < 0
    out[launch >= 0] |= replayed[launch[launch >= 0]]
    return out


# -- the same trace -------------------------------------------------------------------------------


def twins_within(trace: Trace, links: Links, names: KernelNames, orphan: BoolArray, also: BoolArray) -> Twins:
    """Twins of the orphans, and of the kernels in ``also``, among those of whole steps without orphans."""
    row = np.full(len(trace.kernels), -1, np.int64)
    streams = _streams(trace)
    if not orphan.any() or orphan.all():
        return Twins(row, (row[:0], row[:0]))
    keys = _keys(trace)
    product = _is_product(trace, names)
    kinds = np.unique(trace.kernels.launch[orphan & product]).tolist()
    bare = any(trace.details.config(kind).grid is None for kind in kinds)
    if bare:
        keys = trace.kernels.name.astype(np.int64)  # ROCm writes a kernel's grid beside its launch
    known = {name: _known_steps(rows, links.kernel_step, orphan, keys) for name, rows in streams.items()}
    wanted = also.copy()
    wanted[np.concatenate([*known.values()])] = False
    wanted |= orphan
    others: list[tuple[IntArray, IntArray]] = []
    for name, rows in streams.items():
        by_size = sorted(known, key=lambda stream: -len(known[stream]))
        lenders = [name, *(stream for stream in by_size if stream != name)][:_STREAMS]
        for gap in _gaps(wanted[rows]):
            part = rows[gap]
            for lender in lenders:
                if _match(part, known[lender], keys, keys, wanted[part], row, others):
                    break
            if not _convincing(trace, product, part[wanted[part]], row):
                row[part] = -1
            found = part[(row[part] >= 0) & product[part]]
            mine, theirs = (trace.kernels.dur_ns[side].sum() for side in (found, row[found]))
            if bare and not theirs / 2 < mine < 2 * theirs:  # of other sizes
                row[part] = -1
    return Twins(row, others=_joined(others, row))


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
    asked = part[open_]
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
    return bool((row[asked] >= 0).mean() > 0.5)


def _is_product(trace: Trace, names: KernelNames) -> BoolArray:
    """Per kernel: is it a GEMM or attention by its name?"""
    out: BoolArray = np.array([name is not None for name in names] or [False])[trace.kernels.name]
    return out


def _convincing(trace: Trace, product: BoolArray, rows: IntArray, twin: IntArray) -> bool:
    """Do these kernels repeat the others, or do a few common kernels only look like it?

    Another model of the same library shares its elementwise kernels; its GEMMs and attention differ.
    """
    products = rows[product[rows]]
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


def _gaps(wanted: BoolArray) -> list[slice]:
    """Stretches around the wanted kernels of a stream, with context on either side."""
    at = np.flatnonzero(wanted)
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) > 2 * _CONTEXT)
    if len(cuts) >= _GAPS:
        return [slice(0, len(wanted))]
    firsts, lasts = at[np.append(0, cuts + 1)], at[np.append(cuts, len(at) - 1)]
    return [
        slice(max(0, first - _CONTEXT), last + 1 + _CONTEXT)
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    ]


# -- a reference ----------------------------------------------------------------------------------


def twins_in_reference(trace: Trace, names: KernelNames, theirs: Trace, their_links: Links) -> Twins:
    """Twins of all kernels among the launched kernels of the reference."""
    row = np.full(len(trace.kernels), -1, np.int64)
    gpus = {side.device_name for side in (trace, theirs)} - {None}
    same_gpu = len(gpus) < 2  # cuBLAS and Triton choose grids by the GPU
    product = _is_product(trace, names)
    if not _same_sizes(trace, theirs, counted=~product | same_gpu):
        return Twins(row, (row[:0], row[:0]))
    keys, lender_keys = _keys_of_both(trace, theirs, by_grid=same_gpu)
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
    if not _convincing(trace, product, np.arange(len(row)), row):
        row[:] = -1
    return Twins(row, others=_joined(others, row))


def _same_sizes(trace: Trace, theirs: Trace, *, counted: BoolArray) -> bool:
    """Are kernels that both traces name launched alike? Another width or batch changes most grids.

    A persistent kernel's grid is the GPU's, whatever the sizes: without this test, the GEMMs of a model
    of twice the width would pass for the same. Between two GPUs the grids of products mean nothing: only
    the ``counted`` kernels are asked.
    """
    keys, lender_keys = _keys_of_both(trace, theirs, by_grid=True)
    shared = {theirs.symbols[int(code)] for code in np.unique(theirs.kernels.name)}
    counted = counted & trace.symbols.where(shared.__contains__)[trace.kernels.name]
    return bool(counted.any() and np.isin(keys[counted], lender_keys).mean() > _ALIKE)


# -- sequences and keys ---------------------------------------------------------------------------


def _streams(trace: Trace) -> dict[tuple[int, int], IntArray]:
    """Rows of each (device, stream) in the order they ran."""
    kernels = trace.kernels
    if not len(kernels):
        return {}
    order = np.lexsort((kernels.ts_ns, kernels.stream, kernels.device))
    device, stream = kernels.device[order], kernels.stream[order]
    starts = np.flatnonzero((device[1:] != device[:-1]) | (stream[1:] != stream[:-1])) + 1
    parts = np.split(order, starts)
    return {(int(device[at]), int(stream[at])): part for at, part in zip([0, *starts], parts, strict=True)}


def _keys(trace: Trace) -> IntArray:
    """Per kernel a number for (name, launch configuration)."""
    kernels = trace.kernels
    return kernels.name.astype(np.int64) * (int(kernels.launch.max(initial=0)) + 1) + kernels.launch


def _keys_of_both(trace: Trace, other: Trace, *, by_grid: bool) -> tuple[IntArray, IntArray]:
    """Per kernel of each trace a number for its name, or for (name, grid, block)."""
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


def _joined(pairs: list[tuple[IntArray, IntArray]], twin: IntArray) -> tuple[IntArray, IntArray]:
    """All pairs of (kernel, other possible twin) whose kernel has a twin."""
    empty = np.empty(0, np.int64)
    kernel = np.concatenate([empty, *(kernel for kernel, _ in pairs)])
    other = np.concatenate([empty, *(row for _, row in pairs)])
    return kernel[twin[kernel] >= 0], other[twin[kernel] >= 0]
