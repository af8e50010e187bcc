"""Operators added to a trace that the library which ran it did not record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import msgspec
import numpy as np

from tracelens.trace.nesting import build_forest, look_up
from tracelens.trace.processes import launches_of_kernels
from tracelens.trace.tables import MISSING, CodeArray, Inputs, Ops, Trace

_NOTHING = Inputs(None, None, None, None)


@dataclass(frozen=True, slots=True)
class AddedOp:
    """An operator around some launches of an operator that is there."""

    name: str
    inside: int  # row of Trace.ops
    launches: tuple[int, int]  # rows of Trace.launches: the first and the last
    sequence: int = MISSING  # of autograd
    inputs: Inputs = _NOTHING


def innermost_ops(trace: Trace) -> tuple[CodeArray, CodeArray]:
    """Per kernel the row of its launch and of the innermost operator around that; -1 where there is none."""
    ops, launches = trace.ops, trace.launches
    thread = np.concatenate([ops.thread, launches.thread])
    ts_ns = np.concatenate([ops.ts_ns, launches.ts_ns])
    dur_ns = np.concatenate([ops.dur_ns, launches.dur_ns])
    forest = build_forest(thread, ts_ns, dur_ns)
    launch = launches_of_kernels(trace)
    node = np.where(launch >= 0, launch + len(ops), -1)
    return launch, look_up(forest.nearest(np.arange(len(thread)) < len(ops)), node)


def with_ops(trace: Trace, added: Sequence[AddedOp]) -> Trace:
    """Return the trace with further operators, each from its first launch to the end of its last."""
    if not added:
        return trace
    ops, launches = trace.ops, trace.launches
    inside = np.array([one.inside for one in added])
    first, last = np.array([one.launches for one in added]).T
    names = [*dict.fromkeys(one.name for one in added)]
    inputs = [*dict.fromkeys(map(_text, added))]
    name_of = {text: at for at, text in enumerate(names, len(trace.symbols))}
    inputs_of = {text: at for at, text in enumerate(inputs, len(trace.details))}
    columns = {
        "name": [name_of[one.name] for one in added],
        "ts_ns": launches.ts_ns[first],
        "dur_ns": launches.ts_ns[last] + launches.dur_ns[last] - launches.ts_ns[first],
        "external_id": [MISSING] * len(added),
        "sequence": [one.sequence for one in added],
        "inputs": [inputs_of[_text(one)] for one in added],
    }
    merged = {}
    for column in (field.name for field in fields(Ops)):
        old = getattr(ops, column)
        merged[column] = np.append(old, columns.get(column, old[inside])).astype(old.dtype)
    return replace(
        trace, ops=Ops(**merged), symbols=trace.symbols.added(names), details=trace.details.added(inputs)
    )


def _text(op: AddedOp) -> bytes:
    """The inputs as the reader keeps them."""
    given = op.inputs
    parts = (given.dims, None, given.types, given.strides, given.concrete)
    return b"\0".join(b"" if part is None else msgspec.json.encode(part) for part in parts)
