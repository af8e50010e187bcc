"""Events as Kineto gives them to Python, and what the capture notes of a thread, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.profiler import DeviceType

from tracelens.capture.ranges import ThreadNumbers

ENGINE = "autograd::engine::evaluate_function: "


class Event:
    """``thread`` as the profiler counts, ``system`` as the system does; ``forward``: what made the node."""

    def __init__(
        self,
        name: str,
        thread: int,
        system: int,
        *,
        start: int = 0,
        dur: int = 0,
        forward: int = 0,
        number: int = -1,
    ):
        self.fields: dict[str, Any] = {
            "name": name,
            "start_thread_id": thread,
            "device_resource_id": system,
            "start_ns": start,
            "duration_ns": dur,
            "fwd_thread_id": forward,
            "sequence_nr": number,
            "device_type": DeviceType.CPU,
        }

    def __getattr__(self, name: str) -> Callable[[], Any]:
        return lambda: self.fields[name]


def node(
    name: str, thread: int, system: int, *, start: int, dur: int, forward: int, number: int
) -> list[Event]:
    """The engine at a node: 100 ns for its hooks before it, 200 ns for the gradients behind it."""
    return [
        Event(
            ENGINE + name, thread, system, start=start, dur=100 + dur + 200, forward=forward, number=number
        ),
        Event(name, thread, system, start=start + 100, dur=dur, forward=forward, number=number),
    ]


def noted(native_id: int, *labels: tuple[int, str | None]) -> ThreadNumbers:
    """A thread that began these modules at these autograd numbers."""
    thread = ThreadNumbers()
    thread.native_id = native_id
    thread.numbers, thread.labels = [number for number, _ in labels], [name for _, name in labels]
    return thread
