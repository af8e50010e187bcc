"""Versions, GPUs and precision flags, as PyTorch knows them, and the time of steps without the profiler."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

_GPU = {
    "name": "name",
    "sms": "multi_processor_count",
    "total_memory_bytes": "total_memory",
    "l2_cache_bytes": "L2_cache_size",
    "clock_khz": "clock_rate",
    "memory_clock_khz": "memory_clock_rate",
    "memory_bus_bits": "memory_bus_width",
    "shared_memory_per_sm_bytes": "shared_memory_per_multiprocessor",
    "registers_per_sm": "regs_per_multiprocessor",
    "threads_per_sm": "max_threads_per_multi_processor",
    "warp_size": "warp_size",
}
#: Package -> its module, of what decides which kernels run.
_LIBRARIES = {
    "transformers": "transformers",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "pytorch-lightning": "pytorch_lightning",
    "deepspeed": "deepspeed",
    "megatron-core": "megatron.core",
    "torchtitan": "torchtitan",
    "transformer-engine": "transformer_engine",
    "torchao": "torchao",
    "peft": "peft",
    "trl": "trl",
    "flash-attn": "flash_attn",
    "xformers": "xformers",
    "liger-kernel": "liger_kernel",
    "grouped-gemm": "grouped_gemm",
    "megablocks": "megablocks",
    "bitsandbytes": "bitsandbytes",
    "apex": "apex",
}


def versions() -> dict[str, Any]:
    """Of Python, PyTorch and the libraries that decide which kernels run; None where there is none."""
    found: dict[str, Any] = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _try(torch.backends.cudnn.version),
        "nccl": _try(lambda: ".".join(map(str, torch.cuda.nccl.version()))) if torch.version.cuda else None,
        "cublas": _cublas(),
        "triton": _package("triton"),
        "driver": _driver(),
    }
    # only what this process uses: a library that lies beside it says nothing
    found |= {name: _package(name) for name, module in _LIBRARIES.items() if module in sys.modules}
    return found


def on_gpu() -> bool:
    """Does this process use CUDA already? Asking initializes nothing: a later fork can still use CUDA."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_available())


def seeds() -> dict[str, int]:
    """Of PyTorch's generators; those of Python and NumPy cannot be read."""
    found = {"torch": torch.initial_seed()}
    return found | {"cuda": torch.cuda.initial_seed()} if on_gpu() else found


def gpus() -> list[dict[str, Any]]:
    """The properties of this process' current GPU; empty without one."""
    if not on_gpu():
        return []
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    found = {
        ours: value for ours, key in _GPU.items() if (value := getattr(properties, key, None)) is not None
    }
    return [{"index": index, "compute_capability": f"{properties.major}.{properties.minor}", **found}]


def precision() -> dict[str, Any]:
    """What decides the data type of a matmul."""
    cuda = torch.backends.cuda.matmul
    flags: dict[str, Callable[[], Any]] = {
        "float32_matmul": torch.get_float32_matmul_precision,
        "cuda_matmul_fp32": lambda: cuda.fp32_precision,
        "fp16_reduced_precision_reduction": lambda: cuda.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": lambda: cuda.allow_bf16_reduced_precision_reduction,
        "fp16_accumulation": lambda: cuda.allow_fp16_accumulation,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
        "flash_sdp": torch.backends.cuda.flash_sdp_enabled,
        "memory_efficient_sdp": torch.backends.cuda.mem_efficient_sdp_enabled,
        "cudnn_sdp": torch.backends.cuda.cudnn_sdp_enabled,
        "math_sdp": torch.backends.cuda.math_sdp_enabled,
    }
    found = {name: _try(read) for name, read in flags.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _try(read: Callable[[], Any]) -> Any:
    """A flag of another PyTorch version, or one it refuses to tell, is None."""
    try:
        return read()
    except Exception:
        return None


def _package(name: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def _cublas() -> str | None:
    """PyTorch does not tell; the wheel that brought the library does."""
    if torch.version.cuda is None:
        return None
    major = torch.version.cuda.split(".")[0]
    return _package(f"nvidia-cublas-cu{major}") or _package("nvidia-cublas")


def _driver() -> str | None:
    with suppress(OSError):
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"Kernel Module\D*([\d.]+)", text)
        return found[1] if found else None
    return None


#: Steps remembered: a long wait must not pile up events.
KEEP = 20


@dataclass
class StepTimer:
    """Marks the ends of steps: CUDA events on the current stream where CUDA is used, else the CPU's clock.

    An event is done when all work queued before it is: the time between two is the step's on the GPU,
    and marking waits for nothing.
    """

    _marks: deque[Any] = field(default_factory=lambda: deque(maxlen=KEEP + 1))
    kind: str = "perf_counter"

    @property
    def started(self) -> bool:
        return bool(self._marks)

    def mark(self) -> None:
        if on_gpu():
            if self.kind != "cuda_events":
                self._marks.clear()
                self.kind = "cuda_events"
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def read_ms(self) -> list[float]:
        """Milliseconds between neighbouring marks; waits for the last event."""
        if len(self._marks) < 2:
            return []
        marks = list(self._marks)
        pairs = pairwise(marks)
        if self.kind == "cuda_events":
            marks[-1].synchronize()
            return [round(first.elapsed_time(second), 4) for first, second in pairs]
        return [round((second - first) * 1e3, 4) for first, second in pairs]
