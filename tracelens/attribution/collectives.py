"""What each communication kernel does: the collective, its type, its size and the ranks that take part.

The arguments stand on the kernel itself (since pytorch/kineto#821) or on the ``record_param_comms`` around
its launch. Without either, the names of the range, the operator and the kernel still say which collective.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.gemm import bytes_per_element
from tracelens.trace import Links, Trace, look_up
from tracelens.trace.collectives import OP, Collective
from tracelens.trace.metadata import process_groups
from tracelens.words import Collective as CollectiveName

IntArray = npt.NDArray[np.int64]

#: First match wins: ``_reduce_scatter_base`` is no reduce, ``all_gather`` no gather.
_PATTERNS: dict[CollectiveName, str] = {
    "all_reduce": r"all_?reduce",
    "reduce_scatter": r"reduce_?scatter",
    "all_gather": r"all_?gather",
    "all_to_all": r"all_?to_?all|deep_ep::.*(dispatch|combine)",
    "broadcast": r"broadcast",
    "barrier": r"barrier",
    "gather": r"gather",
    "scatter": r"scatter",
    "reduce": r"(?<![a-z])reduce(?![a-z])|ncclDevKernel_Reduce_|ncclKernel_Reduce_",
    "send/recv": r"send|recv",
}
_COLLECTIVES = tuple((name, re.compile(text, re.IGNORECASE)) for name, text in _PATTERNS.items())
#: NCCL runs an all-to-all as sends and receives: the kernel's name says less than the operator's.
_KERNEL = re.compile(r"nccl|nvshmem|deep_ep::|\brccl", re.IGNORECASE)

#: torch's ScalarType names (c10/core/ScalarType.h), as record_param_comms writes them.
_DTYPES = {
    "Float": "fp32", "Double": "fp64", "Half": "fp16", "BFloat16": "bf16", "Int": "int32", "Long": "int64",
    "Byte": "uint8", "Bool": "uint8", "Char": "int8", "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8",
    "Float8_e4m3fnuz": "fp8", "Float8_e5m2fnuz": "fp8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call; None where nothing says."""

    collective: CollectiveName
    dtype: str | None
    elements: int | None  # of the larger of input and output of this rank
    bytes: int | None  # the same in bytes: the size S of nccl-tests
    group: str | None  # "mesh_tp", "default_pg": the description, else the name
    group_size: int | None
    ranks: tuple[int, ...] | None
    uneven_frac: float | None = None  # of an all-to-all: the largest part of a rank over the mean, less one


@cache
def collective_named(name: str) -> CollectiveName | None:
    """The collective that a name of a call, an operator, a range or a kernel states.

    >>> collective_named("_allgather_base"), collective_named("ncclDevKernel_SendRecv(x)")
    ('all_gather', 'send/recv')
    """
    return next((collective for collective, pattern in _COLLECTIVES if pattern.search(name)), None)


def moves_data(name: str) -> bool:
    """Does a GPU kernel of that name move data between ranks?"""
    return bool(_KERNEL.search(name))


def find_calls(trace: Trace, links: Links, rows: IntArray) -> tuple[list[Call], IntArray]:
    """The distinct calls behind some kernels, and for each of these kernels which one it is."""
    texts = trace.symbols
    node = links.kernel_node[rows]
    recorded = look_up(links.forest.nearest(links.is_op & texts.where(lambda t: t == OP)[links.name]), node)
    telling = texts.where(lambda t: t.startswith(("nccl:", "c10d::", "_c10d_functional::", "gloo:")))
    named = look_up(links.forest.nearest(telling[links.name]), node)
    of_op = look_up(trace.ops.collective, np.where(recorded >= 0, recorded - links.ops_at.start, -1))
    own = trace.kernels.collective[rows]
    empty = [code for code in np.unique(own).tolist() if trace.details.collective(code) is None]
    detail = np.where(np.isin(own, empty), of_op, own)
    features = np.stack([detail, look_up(links.name, named), trace.kernels.name[rows]], axis=1)
    distinct, which = np.unique(features, axis=0, return_inverse=True)
    groups = process_groups(trace.metadata)
    return [_call(trace, groups, *row) for row in distinct.tolist()], which.reshape(-1)


def _call(trace: Trace, groups: dict[str, Any], detail: int, named: int, kernel: int) -> Call:
    stated = trace.details.collective(detail) if detail >= 0 else None
    name = trace.symbols[kernel]
    moves = moves_data(name)
    collective = _first([stated.name if stated else None, trace.symbols[named], name if moves else None]) or (
        "other" if moves else "packing"
    )
    if not moves:
        return Call("packing", None, None, None, *_group(stated, groups))
    dtype = _DTYPES.get(stated.dtype or "") if stated else None
    sizes = [size for size in (stated.in_elements, stated.out_elements) if size] if stated else []
    elements = max(sizes, default=None)
    each = bytes_per_element(dtype)
    size = round(elements * each) if elements is not None and each is not None else None
    uneven = _uneven(stated) if stated and collective == "all_to_all" else None
    return Call(collective, dtype, elements, size, *_group(stated, groups), uneven)


def _uneven(stated: Collective) -> float | None:
    """Tokens go to uneven ranks in one direction of the exchange; in the other each rank sends as many."""
    shares = [
        len(parts) * max(parts) / sum(parts) - 1
        for parts in (stated.in_parts, stated.out_parts)
        if parts is not None and len(parts) > 1 and sum(parts) > 0
    ]
    return max(shares, default=None)


def _first(names: Iterable[str | None]) -> CollectiveName | None:
    return next((found for name in names if name and (found := collective_named(name))), None)


def _group(
    stated: Collective | None, groups: dict[str, Any]
) -> tuple[str | None, int | None, tuple[int, ...] | None]:
    """Description, size and ranks of the group: from the call, else from the list in the file's head."""
    if stated is None:
        return None, None, None
    listed = groups.get(stated.group or "", {})
    ranks = stated.ranks or listed.get("ranks")
    size = stated.group_size or listed.get("size") or (len(ranks) if ranks else None)
    described = (one for one in (stated.description, listed.get("description")) if one != "undefined")
    return next(filter(None, described), None) or stated.group, size, ranks
