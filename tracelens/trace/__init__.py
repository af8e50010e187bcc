"""The trace room: Kineto JSON in, columnar tables and links out."""

from tracelens.trace.added import AddedOp, innermost_ops, with_ops
from tracelens.trace.devices import one_device
from tracelens.trace.links import Links, link
from tracelens.trace.nesting import distinct_rows, look_up
from tracelens.trace.processes import launched_by_several
from tracelens.trace.reader import read_trace
from tracelens.trace.tables import BoolArray, CodeArray, IntArray, Trace

__all__ = [
    "AddedOp", "BoolArray", "CodeArray", "IntArray", "Links", "Trace", "distinct_rows",
    "innermost_ops", "launched_by_several", "link", "look_up", "one_device", "read_trace", "with_ops",
]  # fmt: skip
