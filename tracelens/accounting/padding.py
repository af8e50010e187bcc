"""What products and batches ran padded from: proven by operators before, or by the product turned back."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np
import numpy.typing as npt

from tracelens.attribution import Attribution, Calls
from tracelens.gemm import GemmShape, Neighbour, Shape, may_pad, padded_from
from tracelens.gemm.padding import grown
from tracelens.gemm.tensors import Dims, dims_at, item_at
from tracelens.results import PaddedBatch
from tracelens.trace import Trace
from tracelens.trace.tables import Inputs

#: Operators looked at before a product; an eager ``aten::constant_pad_nd`` alone has some eight below it.
_BEFORE = 16


def with_padding(trace: Trace, attribution: Attribution, calls: Calls) -> Calls:
    """The calls with the sizes that the model asked for, where they ran with larger ones.

    A gradient whose operands are padded already has nothing that pads before it: it has the size that all
    forward products of its component have, where those are proven.
    """
    proofs = _Proofs(trace)
    if not proofs:
        return calls
    padded = [proofs.of(int(op), shape) for op, shape in zip(calls.op, calls.shape, strict=True)]
    component = attribution.component[calls.main]
    asked: dict[tuple[int, int], set[int]] = defaultdict(set)
    for at, shape in enumerate(calls.shape):
        if isinstance(shape, GemmShape) and calls.role[at] == "forward":
            for letter, size in _sizes(shape).items():
                asked[component[at], size].add(padded[at].get(letter, size))
    for at, shape in enumerate(calls.shape):
        if isinstance(shape, GemmShape) and calls.role[at] != "forward" and not padded[at]:
            sizes = _sizes(shape)
            padded[at] = _as_forward(sizes, {s: asked.get((component[at], s), {s}) for s in sizes.values()})
    return replace(calls, padded=padded)


def _as_forward(sizes: dict[str, int], asked: dict[int, set[int]]) -> dict[str, int]:
    """The one dimension that the forward was asked for smaller."""
    found = {
        letter: min(asked[size])
        for letter, size in sizes.items()
        if len(asked[size]) == 1 and asked[size] != {size}
    }
    return found if len(found) == 1 else {}


def _sizes(shape: GemmShape) -> dict[str, int]:
    return {"m": shape.m, "n": shape.n, "k": shape.k}


class _Proofs:
    """The operators that pad, and the products behind them on the same thread."""

    def __init__(self, trace: Trace):
        self._trace = trace
        ops = trace.ops
        pads = trace.symbols.where(may_pad)[ops.name] if len(ops) else np.zeros(0, np.bool_)
        if pads.any():
            order = np.lexsort((ops.ts_ns, ops.thread))
            self._rows = order
            self._place: npt.NDArray[np.int64] = np.empty(len(order), np.int64)
            self._place[order] = np.arange(len(order))
            self._pads = np.flatnonzero(pads[order])  # places of padding operators
        else:
            self._pads = np.empty(0, np.int64)

    def __bool__(self) -> bool:
        return len(self._pads) > 0

    def of(self, op: int, shape: Shape | None) -> dict[str, int]:
        """The sizes the model asked for, see ``padded_from``; ``op`` is a row of Trace.ops, -1 = none."""
        if op < 0 or not isinstance(shape, GemmShape) or shape.grouped:
            return {}
        place = int(self._place[op])
        first, last = np.searchsorted(self._pads, (place - _BEFORE, place))
        ops, details = self._trace.ops, self._trace.details
        found = []
        for row in self._rows[self._pads[first:last]].tolist():
            if ops.thread[row] != ops.thread[op]:
                continue
            inputs = details.inputs(int(ops.inputs[row]))
            name = self._trace.symbols[int(ops.name[row])]
            found.append(Neighbour(name, inputs.dims or [], inputs.concrete or []))
        return padded_from(shape, found) if found else {}


_SEQUENCES = re.compile(r"^aten::pad_sequence$")
#: ``torch.nested`` with ``layout=torch.jagged``, and FBGEMM: (values, [offsets], lengths).
_JAGGED = re.compile(r"^(?:aten::_|fbgemm::)jagged_to_padded_dense(?:_forward)?$")
_LONGER = re.compile(r"^aten::constant_pad_nd$")
#: Numbers of tokens, as Kineto writes their type; one or two sizes of another type are no batch of them.
_IDS = frozenset({"long int", "int"})
_Batch = tuple[Dims, int]  # sizes of a padded batch in tokens, and tokens that are none of padding


def padded_batches(trace: Trace) -> list[PaddedBatch]:
    """Batches that an operator pads, by their number of rows, with the tokens in them in the mean.

    A batch is padded to its longest sequence (``pad_sequence``, jagged tensors) and then to a multiple
    (``constant_pad_nd``). What a tokenizer pads before there is a tensor is in no trace.
    """
    held: dict[Dims, list[int]] = {}  # sizes -> tokens of each batch
    for pattern, read in ((_SEQUENCES, _sequences), (_JAGGED, _jagged)):
        for size, tokens in _read(trace, pattern, read):
            held.setdefault(size, []).append(tokens)
    known = {size: round(sum(tokens) / len(tokens)) for size, tokens in held.items()}
    for size, tokens in _read(trace, _LONGER, lambda one: _longer(one, known)):
        held.setdefault(size, []).append(tokens)
    by_rows: dict[int, list[int]] = {}
    for size, found in held.items():
        by_rows.setdefault(prod(size), []).extend(found)
    return [PaddedBatch(rows, sum(found) / len(found)) for rows, found in sorted(by_rows.items())]


def _read(
    trace: Trace, pattern: re.Pattern[str], read: Callable[[Inputs], _Batch | None]
) -> Iterator[_Batch]:
    """What ``read`` makes of each call's inputs."""
    codes = trace.ops.inputs[trace.symbols.where(pattern.search)[trace.ops.name]]
    for code, calls in zip(*(one.tolist() for one in np.unique(codes, return_counts=True)), strict=True):
        found = read(trace.details.inputs(code))
        if found is not None and 0 < found[1] <= prod(found[0]):
            yield from [found] * calls


def _sequences(inputs: Inputs) -> _Batch | None:
    """Tensors of unequal lengths as one."""
    tensors = inputs.dims[0] if inputs.dims else None
    if not isinstance(tensors, list):
        return None
    sizes = [dims_at(tensors, at) for at in range(len(tensors))]
    lengths = [size[0] for size in sizes if size]
    if len(lengths) < 2 or len(lengths) != len(sizes):
        return None
    first = item_at(inputs.concrete or [], 1) == "True"  # batch_first
    batch = (len(lengths), max(lengths)) if first else (max(lengths), len(lengths))
    return batch, sum(lengths)


def _jagged(inputs: Inputs) -> _Batch | None:
    """Sequences behind one another, as a tensor of the longest one's length."""
    values, offsets = dims_at(inputs.dims or [], 0), item_at(inputs.dims or [], 1)
    longest = re.fullmatch(r"\[(\d{1,9})\]", str(item_at(inputs.concrete or [], 2))[:20])
    ends = dims_at(offsets, 0) if isinstance(offsets, list) and len(offsets) == 1 else None
    if not values or not ends or longest is None:
        return None
    return (ends[0] - 1, int(longest[1])), values[0]


def _longer(inputs: Inputs, known: dict[Dims, int]) -> _Batch | None:
    """A batch of numbers of tokens, or of their vectors, to a larger size."""
    size = dims_at(inputs.dims or [], 0)
    padded = grown(size, item_at(inputs.concrete or [], 1)) if size else None
    if not size or not padded or len(size) > 3:
        return None
    if len(size) == 3:
        if size[2] != padded[2]:
            return None
        size, padded = size[:2], padded[:2]
    elif item_at(inputs.types or [], 0) not in _IDS:
        return None
    return padded, known.get(size, prod(size))
