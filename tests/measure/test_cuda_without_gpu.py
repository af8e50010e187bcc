"""The few lines that talk to CUDA, run against stand-ins for what only a GPU has."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from tests.measure.fakes import FakeDevice
from tracelens.measure import kernels
from tracelens.measure.cases import CannotMeasure
from tracelens.measure.devices import CudaDevice
from tracelens.measure.kernels import CallKernels, record_kernels


class Stream:
    """What was queued, in order; events happen ``us`` after the one before."""

    def __init__(self, *, begun: bool) -> None:
        self.queued: list[str] = []
        self.begun = begun  # whether the GPU runs ahead of the host

    def event(self, enable_timing: bool = False) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def record(self) -> None:
        self.stream.queued.append("event")

    def query(self) -> bool:
        return self.stream.begun

    def synchronize(self) -> None:
        self.stream.queued.append("wait")

    def elapsed_time(self, other: Event) -> float:
        return 0.25  # ms


def cuda_device(monkeypatch: pytest.MonkeyPatch, stream: Stream) -> CudaDevice:
    device = object.__new__(CudaDevice)
    device._flush, device._sink = torch.ones(8), torch.zeros(())
    device._cycles_per_us, device._hold_us_per_call = 1980.0, 20.0
    monkeypatch.setattr(torch.cuda, "Event", stream.event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: stream.queued.append(f"hold {cycles}"))
    real = torch.sum

    def read(*args: Any, **options: Any) -> torch.Tensor:
        stream.queued.append("flush")
        summed: torch.Tensor = real(*args, **options)
        return summed

    monkeypatch.setattr(torch, "sum", read)
    return device


def test_a_batch_is_held_flushed_and_only_then_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(begun=False)
    device = cuda_device(monkeypatch, stream)
    took = device.time_batch(lambda index: stream.queued.append(f"call {index}"), 3)
    assert took == 250.0
    assert stream.queued == [
        f"hold {(110 * 1980)}", "flush", "event", "call 0", "call 1", "call 2", "event", "wait",
    ]  # fmt: skip
    assert float(device._sink) == 8.0  # the whole buffer was read


def test_a_gpu_that_has_begun_is_held_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(begun=True)
    device = cuda_device(monkeypatch, stream)

    def slow(index: int) -> None:
        sum(range(20_000))  # the host takes longer than the 250 µs that the GPU is said to

    with pytest.raises(CannotMeasure):
        device.time_batch(slow, 20)
    holds = [int(one.split()[1]) for one in stream.queued if one.startswith("hold")]
    assert len(holds) > 2 and holds == sorted(holds) and holds[0] < holds[-1]


def test_every_call_has_its_range_and_warming_up_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    ranges: list[str] = []

    def look(events: Sequence[Mapping[str, Any]], *, calls: int) -> list[CallKernels]:
        ranges.extend(one["name"] for one in events if one.get("cat") == "user_annotation")
        return [CallKernels()] * calls

    def ready(name: str) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            if name == "b":
                raise CannotMeasure("no room any more")
            return lambda: seen.append(name)

        return prepare

    monkeypatch.setattr(kernels, "match_kernels", look)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a PyTorch without CUDA says that it cannot profile it
        found = record_kernels([ready("a"), ready("b"), ready("c")], device=FakeDevice([1.0], kind="cuda"))
    assert found == [CallKernels()] * 3
    assert seen == ["a", "a", "c", "c"]
    assert ranges == ["tracelens_bench#0", "tracelens_bench#2"]


def test_a_profiler_that_fails_costs_the_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.profiler

    def refuse(**options: object) -> None:
        raise RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")

    monkeypatch.setattr(torch.profiler, "profile", refuse)
    assert record_kernels([lambda: lambda: None], device=FakeDevice([1.0], kind="cuda")) == [CallKernels()]
