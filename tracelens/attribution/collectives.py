"""What each communication kernel does: the collective, its type, its size and the ranks that take part.

The arguments stand on the kernel itself (since pytorch/kineto#821) or on the ``record_param_comms`` around
its launch, before PyTorch 2.3 as that operator's inputs, or are those of the functional collective that calls
it (DTensor's). Without any of them, the names of the range, the operator and the kernel still say which
collective.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tracelens.attribution.kernels import kernel_component
from tracelens.gemm import bytes_per_element
from tracelens.trace import IntArray, Links, Trace, distinct_rows, look_up
from tracelens.trace.collectives import MOST_RANKS, OP, Collective
from tracelens.trace.metadata import process_groups
from tracelens.trace.tables import Inputs
from tracelens.words import Collective as CollectiveName

#: First match wins: ``_reduce_scatter_base`` is no reduce, ``all_gather`` no gather.
_PATTERNS: dict[CollectiveName, str] = {
    "all_reduce": r"all_?reduce|cross_device_reduce|quickreduce",
    "reduce_scatter": r"reduce_?scatter",
    "all_gather": r"all_?gather",
    "all_to_all": r"all_?to_?all|(deep_ep|int(er|ra)node(_ll)?)::(?!\w*notify).*(dispatch|combine)",
    "broadcast": r"broadcast",
    "barrier": r"barrier",
    "gather": r"gather",
    "scatter": r"scatter",
    "reduce": r"(?<![a-z])reduce(?![a-z])|ncclDevKernel_Reduce_|ncclKernel_Reduce_",
    "send/recv": r"send|recv",
}
_COLLECTIVES = tuple((name, re.compile(text, re.IGNORECASE)) for name, text in _PATTERNS.items())
#: Whose ranges and operators are named after the collective: vLLM's are called around ncclDevKernel_Generic.
_SAY = ("nccl:", "c10d::", "_c10d_functional::", "gloo:", "vllm::", "sgl_kernel::", "trtllm::", "symm_mem::")
#: NCCL runs an all-to-all as sends and receives: the kernel's name says less than the operator's.
_KERNEL = re.compile(r"nccl|nvshmem|deep_ep::|\brccl", re.IGNORECASE)

#: torch's ScalarType names (c10/core/ScalarType.h), as record_param_comms writes them.
_DTYPES = {
    "Float": "fp32", "Double": "fp64", "Half": "fp16", "BFloat16": "bf16", "Int": "int32", "Long": "int64",
    "Byte": "uint8", "Bool": "uint8", "Char": "int8", "Float8_e4m3fn": "fp8", "Float8_e5m2": "fp8",
    "Float8_e4m3fnuz": "fp8", "Float8_e5m2fnuz": "fp8",
}  # fmt: skip

#: How NCCL's kernels name their type (NVIDIA/nccl src/device/generate.py), ``AllReduce_Sum_f16_RING_LL``.
_OF_KERNEL = re.compile(r"nccl\w*?_(bf16|f16|f32|f64)(?=_)")
_KERNEL_DTYPES = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", "f64": "fp64"}
#: Collectives whose input on a rank is no smaller than their output there.
_FROM_INPUT = frozenset({"all_reduce", "reduce_scatter", "broadcast", "reduce"})


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
    return bool(_KERNEL.search(name)) or kernel_component(name) == "communication"


def find_calls(trace: Trace, links: Links, rows: IntArray) -> tuple[list[Call], IntArray]:
    """The distinct calls behind some kernels, and for each of these kernels which one it is."""
    texts = trace.symbols
    node = links.kernel_node[rows]
    recorded = look_up(links.forest.nearest(links.is_op & texts.where(lambda t: t == OP)[links.name]), node)
    telling = texts.where(lambda t: t.startswith(_SAY))
    named = look_up(links.forest.nearest(telling[links.name]), node)
    of_op = look_up(trace.ops.collective, np.where(recorded >= 0, recorded - links.ops_at.start, -1))
    own = trace.kernels.collective[rows]
    empty = [code for code in np.unique(own).tolist() if trace.details.collective(code) is None]
    detail = np.where(np.isin(own, empty), of_op, own)
    silent = [code for code in np.unique(detail).tolist() if _stated(trace, code) is None]
    calling = links.is_op & texts.where(lambda t: t.startswith(("c10d::", "_c10d_functional::")))[links.name]
    op = np.where(recorded >= 0, recorded, look_up(links.forest.nearest(calling), node))
    op = np.where((op >= 0) & np.isin(detail, silent), op - links.ops_at.start, -1)
    inputs = look_up(trace.ops.inputs, op)
    records = recorded >= 0
    features = np.stack(
        [detail, look_up(links.name, named), trace.kernels.name[rows], inputs, records], axis=1
    )
    distinct, which = distinct_rows(features)
    groups = process_groups(trace.metadata)
    return [_call(trace, groups, _Told(*row)) for row in distinct.tolist()], which


class _Told(NamedTuple):
    """What tells of a call, as codes of the trace's tables (-1: nothing), and whether an operator of its own
    recorded it."""

    detail: int
    named: int
    kernel: int
    inputs: int
    recorded: int


def _call(trace: Trace, groups: dict[str, Any], told: _Told) -> Call:
    stated = _stated(trace, told.detail)
    if stated is None and told.inputs >= 0:
        stated = _from_inputs(trace.details.inputs(told.inputs), records=bool(told.recorded))
    name = trace.symbols[told.kernel]
    moves = moves_data(name)
    by_name = [stated.name if stated else None, trace.symbols[told.named], name if moves else None]
    collective = _first(by_name) or ("other" if moves else "packing")
    if not moves:
        return Call("packing", None, None, None, *_group(stated, groups))
    typed = _OF_KERNEL.search(name)
    dtype = _DTYPES.get(stated.dtype or "") if stated else None
    dtype = dtype or (_KERNEL_DTYPES[typed[1]] if typed else None)
    sizes = [size for size in (stated.in_elements, stated.out_elements) if size] if stated else []
    if stated and stated.out_elements is None and collective not in _FROM_INPUT:
        sizes = []
    elements = max(sizes, default=None)
    each = bytes_per_element(dtype)
    size = round(elements * each) if elements is not None and each is not None else None
    uneven = _uneven(stated) if stated and collective == "all_to_all" else None
    return Call(collective, dtype, elements, size, *_group(stated, groups), uneven)


def _stated(trace: Trace, detail: int) -> Collective | None:
    return trace.details.collective(detail) if detail >= 0 else None


def _from_inputs(inputs: Inputs, *, records: bool) -> Collective | None:
    """What ``record_param_comms`` was called with, before it stated fields of its own (``records``), or the
    operator of a collective.

    Of the former the tensors come first and the group's size last (RECORD_PARAM_COMMS_DATA of PyTorch 2.0 to
    2.2, torch/csrc/distributed/c10d/ParamCommsUtils.hpp); the latter has tensors, or lists of them, that are
    received and sent (torch/csrc/distributed/c10d/Ops.cpp).
    """
    found = [size for size in map(_elements, inputs.dims or []) if size]
    if not found:
        return None
    elements = max(found)
    last = inputs.concrete[-1] if inputs.concrete else ""
    counts = records and last.isdecimal() and len(last) <= len(str(MOST_RANKS))  # else a timeout, or a rank
    ranks = int(last) if counts else None
    return Collective(None, None, elements, elements if len(found) > 1 else None, None, None, ranks, None)


def _elements(given: Any) -> int:
    """Of a tensor, or of all in a list; 0 where it is none."""
    if not isinstance(given, list) or not given:
        return 0
    sizes = given if isinstance(given[0], list) else [given]
    whole = all(isinstance(size, list) and all(isinstance(one, int) for one in size) for size in sizes)
    return sum(math.prod(size) for size in sizes) if whole else 0


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
