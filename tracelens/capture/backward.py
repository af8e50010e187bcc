"""Ranges around the autograd nodes of each module, made after the window from what the profiler noted.

The profiler gives every node that runs its sequence number and the thread that made it. The engine's range
around it has them only from the event that follows it (``set_autograd_evaluate`` in PyTorch's
torch/csrc/profiler/collection.cpp): where a hook runs between, as FSDP2's that gathers, it has none.
``ThreadNumbers`` knows in which module's forward that was. The range lies within the engine's own, around the
node.

A backward range is an operator range, not a user range: inside autograd a user range that names a module
is a forward run again (activation checkpointing), and a reader can tell the two apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch.profiler import DeviceType

from tracelens.capture.ranges import ThreadNumbers

_ENGINE = "autograd::engine::evaluate_function: "
#: How the engine adds a gradient to one that another node made (torch/csrc/autograd/input_buffer.cpp).
_ACCUMULATES = ("aten::add", "aten::add_")


@dataclass(frozen=True, slots=True)
class NodeRange:
    """A range on the host; ``start_ns`` on the profiler's clock."""

    name: str
    thread: int
    start_ns: int
    duration_ns: int


class _Evaluation:
    """The engine at one node: what its hooks do, the node itself, and what becomes of its gradients."""

    __slots__ = ("engine", "node")

    def __init__(self, engine: Any):
        self.engine = engine
        self.node: Any = None


def backward_ranges(events: Iterable[Any], threads: Iterable[ThreadNumbers]) -> list[NodeRange]:
    """One range for each evaluated node that some module made.

    ``events`` as Kineto gives them to Python, in the order of their start.
    """
    numbers: dict[int, ThreadNumbers | None] = {}
    for thread in threads:
        # an id used twice, by a thread that has ended and a later one, tells nothing
        numbers[thread.native_id] = None if thread.native_id in numbers else thread
    native: dict[int, int] = {}  # the profiler counts threads itself: its number -> the system's
    evaluations: list[_Evaluation] = []
    latest: dict[int, _Evaluation] = {}  # by the engine's thread
    sums: dict[int, list[int]] = {}
    for event in events:
        at, name = event.start_thread_id(), event.name()
        if name.startswith(_ENGINE):
            latest[at] = _Evaluation(event)
            evaluations.append(latest[at])
            continue
        if event.fwd_thread_id() > 0 and event.sequence_nr() >= 0:
            if at in latest and latest[at].node is None and latest[at].engine.name() == _ENGINE + name:
                latest[at].node = event
            continue
        if at not in native and event.device_type() == DeviceType.CPU:
            native[at] = event.device_resource_id()
        if at in latest and name in _ACCUMULATES:
            sums.setdefault(at, []).append(event.start_ns())
    found = []
    for one in evaluations:
        if one.node is None:
            continue
        maker = numbers.get(native.get(one.node.fwd_thread_id(), -1))
        owner = maker.owner(one.node.sequence_nr()) if maker is not None else None
        if owner is not None:
            found.append(_range(owner, one, sums.get(one.node.start_thread_id(), [])))
    return found


def _range(name: str, one: _Evaluation, sums: list[int]) -> NodeRange:
    """From the node to where its gradients are added to those of other nodes, which is no module's work.

    Between the two the engine sums gradients over broadcast dimensions: of a norm's weight, for one. A
    nanosecond's distance on both sides leaves no doubt who encloses whom.
    """
    engine, node = one.engine, one.node
    begin = max(engine.start_ns(), node.start_ns() - 1)
    end = engine.start_ns() + engine.duration_ns()
    next_sum = bisect_left(sums, node.start_ns() + node.duration_ns())
    if next_sum < len(sums):
        end = min(end, sums[next_sum])
    return NodeRange(name, engine.device_resource_id(), begin, max(0, end - 1 - begin))
