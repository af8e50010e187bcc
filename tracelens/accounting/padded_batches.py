"""Tokens of padding that operators show: batches filled up to one length, by their sizes before and after."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import prod

import numpy as np

from tracelens.gemm.padding import grown
from tracelens.gemm.tensors import Dims, dims_at, item_at
from tracelens.results import PaddedBatch
from tracelens.trace import Trace
from tracelens.trace.tables import Inputs

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
