"""The two devices: a GPU timed by CUDA events, and the CPU, which is for tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tracelens.errors import UsageError
from tracelens.measure.cases import CannotMeasure
from tracelens.measure.timing import Call, Device

#: Rotating operands and the flush exceed the L2 by this factor: replacement is not strictly the oldest line.
L2_FACTOR = 3
#: Assumed where the driver does not tell: more than any L2 of the GPU table (B200: 126 MB).
_UNKNOWN_L2_BYTES = 128 << 20
_MAX_HOLD_US = 200_000.0
_ATTEMPTS = 5


def open_device(kind: str = "cuda") -> Device:
    """The current CUDA device, or the CPU for tests; ``UsageError`` where there is no GPU."""
    if kind == "cpu":
        return CpuDevice()
    if torch.version.cuda is None or not torch.cuda.is_available():
        why = (
            f"PyTorch {torch.__version__} is built without CUDA"
            if torch.version.cuda is None
            else "PyTorch finds no CUDA device here"
        )
        raise UsageError(f"there is no NVIDIA GPU to measure: {why}; run it where you train")
    return CudaDevice()


@dataclass(slots=True)
class CpuDevice:
    """Calls timed by the host's clock: exercises the code where there is no GPU, measures nothing of one."""

    kind: str = "cpu"
    l2_bytes: int = 1 << 16
    torch_device: Any = field(default_factory=lambda: torch.device("cpu"))

    def time_batch(self, call: Call, calls: int) -> float:
        start = time.perf_counter()
        for index in range(calls):
            call(index)
        return max((time.perf_counter() - start) * 1e6, 1e-3)

    def synchronize(self) -> None:
        pass

    def clock(self) -> float:
        return time.monotonic()


class CudaDevice:
    """Calls timed by CUDA events, with the GPU held back until all of them are queued.

    The stream first waits in a spinning kernel, then reads a buffer three times the L2, so that the cache
    holds other, clean data; then come the first event, the calls, and the second event. While the host
    queues the calls the GPU has not begun them: that the first event has not happened by then is checked,
    and the batch repeated with a longer wait if it has. No launch gap of the host is in the time; what
    is left between two kernels of a full stream is the GPU's own.
    """

    kind = "cuda"

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        properties = torch.cuda.get_device_properties(self.torch_device)
        self.l2_bytes: int = getattr(properties, "L2_cache_size", 0) or _UNKNOWN_L2_BYTES
        # clock_rate is in kHz; newer drivers no longer tell it. The hold is verified, so a guess will do.
        self._cycles_per_us = (getattr(properties, "clock_rate", 0) or 2_000_000) / 1e3
        self._flush = torch.zeros(L2_FACTOR * self.l2_bytes // 4, dtype=torch.float32, device="cuda")
        self._sink = torch.zeros((), dtype=torch.float32, device="cuda")
        self._hold_us_per_call = 20.0

    def time_batch(self, call: Call, calls: int) -> float:
        hold_us = 50.0 + self._hold_us_per_call * calls
        for _ in range(_ATTEMPTS):
            batch = self._time_once(call, calls, hold_us=min(hold_us, _MAX_HOLD_US))
            # A GPU that is busy for longer than the host takes to queue never waits for it either.
            if batch.held or batch.host_us < batch.elapsed_us / 2:
                self._hold_us_per_call = max(2.0, 1.5 * batch.host_us / calls)
                return batch.elapsed_us
            hold_us = 2 * max(hold_us, batch.host_us)
        raise CannotMeasure("the host queues these calls more slowly than the GPU runs them")

    def _time_once(self, call: Call, calls: int, *, hold_us: float) -> _Batch:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(hold_us * self._cycles_per_us))
        torch.sum(self._flush, dim=0, out=self._sink)
        start.record()
        begun = time.perf_counter()
        for index in range(calls):
            call(index)
        host_us = (time.perf_counter() - begun) * 1e6
        held = not start.query()
        end.record()
        end.synchronize()
        return _Batch(start.elapsed_time(end) * 1e3, host_us, held)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def clock(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Batch:
    elapsed_us: float
    host_us: float  # to queue the calls
    held: bool  # the GPU began only after all calls were queued


def guarded(act: Callable[[], Any], *, what: str) -> Any:
    """Run ``act``; what the GPU or PyTorch refuses becomes ``CannotMeasure`` with one line of reason."""
    try:
        return act()
    except torch.OutOfMemoryError as error:
        raise CannotMeasure(f"not enough memory for {what}") from error
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if context_lost(error):
            raise
        raise CannotMeasure(_first_line(error)) from error


def context_lost(error: Exception) -> bool:
    """Whether the CUDA context is gone (an illegal access, say), so that no later case can be measured.

    What cuBLAS declines, a product it has no kernel for among it, is worded as a "CUDA error" too.
    """
    text = str(error)
    return "CUDA error" in text and "CUBLAS_STATUS" not in text and "out of memory" not in text


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:200]
