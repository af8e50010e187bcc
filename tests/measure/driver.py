"""A CUDA driver that is none: checks what is asked of it, and in which order.

Tensors that are put on ``cuda`` lie in the CPU's memory, so every kernel's work is real. What only a GPU has
(events, streams, properties, graphs, the profiler's kernels, ``nvidia-smi``) is answered here, and each call
is checked as the driver would: an event that was never recorded has no time, a time is read after a wait. A
call of ``torch.cuda`` that is not answered here fails, as on any PyTorch without CUDA.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # imports much that must see the real classes
from torch.overrides import TorchFunctionMode

UUID = "8f2c0b7e-0000-1111-2222-333344445555"
#: As cuBLAS 13 names them on Hopper.
GEMM_NAMES = {
    "bf16": "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN",
    "fp16": "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_TNN",
    "fp8": "nvjet_sm90_qqtst_128x256_128x4_2x1_v_bz_TNT",
    "tf32": "cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4",
    "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma",
}
_DTYPES = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "fp8", torch.float32: "fp32",
}  # fmt: skip
_GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm")
_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu",)
_BACKWARD = ("aten::_scaled_dot_product_flash_attention_for_cpu_backward",)
_RANGE = "fake-dtype#"
_LARGE = 1 << 22  # elements: what only warms a real GPU up is not computed


class Misuse(AssertionError):
    """What a driver would answer with an error, or worse, with a wrong number."""


@dataclass
class Driver(TorchFunctionMode):
    """The state of the one GPU, and every call in order."""

    calls: list[str] = field(default_factory=list)
    held: bool = False  # a spinning kernel keeps the stream from going on
    recorded: int = 0  # events so far
    done: int = 0  # those of them that the CPU has seen happen
    capturing: bool = False
    clock_mhz: int = 1755
    processes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__init__()

    # -- tensors ------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"])
        args = tuple(_here(one) for one in args)
        if getattr(func, "__name__", "") in ("randn", "mm") and _size(args) > _LARGE:
            self.calls.append(f"large {func.__name__}")
            if func.__name__ == "mm":
                return kwargs["out"]
            return torch.empty(*args, **kwargs)
        first = next((one for one in args if isinstance(one, torch.Tensor)), None)
        if func in (torch.mm, torch.bmm, torch._scaled_mm) and first is not None:
            tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32" and first.dtype is torch.float32
            with torch.profiler.record_function(f"{_RANGE}{'tf32' if tf32 else _DTYPES[first.dtype]}"):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    # -- torch.cuda ---------------------------------------------------------------------------------

    def event(self, enable_timing: bool = False, **more: Any) -> Event:
        if not enable_timing:
            raise Misuse("an event without timing cannot be timed")
        return Event(self)

    def sleep(self, cycles: int) -> None:
        if not isinstance(cycles, int) or not 0 < cycles < 2**40:
            raise Misuse(f"_sleep({cycles!r})")
        self.calls.append("hold")
        self.held = True

    def synchronize(self, device: Any = None) -> None:
        if self.capturing:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self.calls.append("synchronize")
        self.held, self.done = False, self.recorded

    def properties(self, device: Any = None) -> Any:
        return SimpleNamespace(
            name="NVIDIA H200", major=9, minor=0, total_memory=150_109_880_320, multi_processor_count=132,
            L2_cache_size=1 << 16, uuid=UUID, warp_size=32, clock_rate=1_980_000,
        )  # fmt: skip

    @contextmanager
    def graph(self, graph: Graph, **how: Any) -> Any:
        if not isinstance(graph, Graph):
            raise Misuse("a graph is captured into a CUDAGraph")
        self.calls.append("capture")
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False
        graph.captured = True

    def smi(self, command: Any, **how: Any) -> subprocess.CompletedProcess[str]:
        """``nvidia-smi``: reads only, of this GPU only."""
        words = list(command)
        if words[0] != "nvidia-smi" or not how.get("timeout"):
            raise Misuse(f"{words}: another command, or one without a time limit")
        if any(word.startswith(("-r", "-pm", "-pl", "-ac", "-lgc", "-c", "-mig")) for word in words):
            raise Misuse(f"{words} changes a setting of the GPU")
        if f"GPU-{UUID}" not in " ".join(words):
            raise Misuse(f"{words} asks of all GPUs")
        query = next(word.partition("=")[2] for word in words if word.startswith("--query"))
        self.calls.append(f"nvidia-smi {query}")
        cells = {"driver_version": "580.159.04", "pid": "\n".join(map(str, self.processes))}
        if query not in cells and "clocks" not in query:
            raise Misuse(f"no answer to {query}")
        reasons = ", 0x0000000000000004" if "reasons" in query else ""
        said = cells.get(query, f"{self.clock_mhz}, 1980, 3201, 41, 532.10{reasons}")
        return subprocess.CompletedProcess(words, 0, said + "\n", "")


class Event:
    """Times are those of the CPU that does the work; the order of calls is that of CUDA."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.at: float | None = None
        self.number = 0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()
        self.driver.recorded += 1
        self.number = self.driver.recorded
        self.driver.calls.append("event")

    def query(self) -> bool:
        if not self.driver.held:
            self.driver.done = max(self.driver.done, self.number)
        return self.number <= self.driver.done

    def synchronize(self) -> None:
        if self.at is None:
            raise Misuse("waited for an event that was never recorded")
        self.driver.held = False
        self.driver.done = max(self.driver.done, self.number)  # a stream goes on in order
        self.driver.calls.append("wait")

    def elapsed_time(self, other: Event) -> float:
        if self.at is None or other.at is None:
            raise Misuse("time between events that were never recorded")
        if other.at < self.at:
            raise Misuse("the second event was recorded before the first")
        if max(self.number, other.number) > self.driver.done:
            raise RuntimeError("CUDA error: device not ready")
        return (other.at - self.at) * 1e3


class Graph:
    """Replays one GEMM: what was captured is not known here."""

    captured = False

    def replay(self) -> None:
        if not self.captured:
            raise Misuse("a graph that was never captured is replayed")
        torch.mm(torch.ones(8, 8), torch.ones(8, 8))


class Stream:
    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, Stream)


class Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls, device=_here(device))  # type: ignore[call-arg]


class Autocast(torch.autocast):
    def __init__(self, device_type: str, *args: Any, **how: Any) -> None:
        super().__init__(_here(device_type), *args, **how)


def _here(value: Any) -> Any:
    """The CPU for a CUDA device."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.split(":")[0] == "cuda" else value


def _size(args: tuple[Any, ...]) -> int:
    first = args[0] if args else 0
    if isinstance(first, torch.Tensor):
        return int(first.numel())
    sizes = [one for one in args if isinstance(one, int)]
    return int(torch.Size(sizes).numel()) if sizes else 0


def install(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver, in place until the test ends. The caller enters it: ``with install(monkeypatch):``."""
    driver = Driver()
    cuda: dict[str, Any] = {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None,
        "current_device": lambda: 0, "device_count": lambda: 1, "get_device_properties": driver.properties,
        "get_device_capability": lambda device=None: (9, 0), "memory_reserved": lambda device=None: 1 << 20,
        "mem_get_info": lambda device=None: (64 << 20, 80 << 20), "synchronize": driver.synchronize,
        "empty_cache": lambda: driver.calls.append("empty_cache"), "Event": driver.event,
        "_sleep": driver.sleep, "Stream": Stream, "current_stream": lambda device=None: Stream(),
        "stream": lambda stream: nullcontext(), "CUDAGraph": Graph, "graph": driver.graph,
    }  # fmt: skip
    for name, answer in cuda.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch, "autocast", Autocast)
    profile = torch.profiler.profile
    export = profile.export_chrome_trace
    begin = profile.__init__

    def without_cuda(self: Any, *, activities: Any = None, **more: Any) -> None:
        if activities is None or torch.profiler.ProfilerActivity.CUDA not in activities:
            raise Misuse("a profiler that does not record the GPU")
        begin(self, activities=[torch.profiler.ProfilerActivity.CPU], **more)

    def with_kernels(self: Any, path: str) -> None:
        export(self, path)
        trace = json.loads(Path(path).read_text(encoding="utf-8"), strict=False)
        trace["deviceProperties"] = [
            {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 150_109_880_320,
             "computeMajor": 9, "computeMinor": 0}
        ]  # fmt: skip
        trace["traceEvents"] += kernels_of(trace["traceEvents"])
        Path(path).write_text(json.dumps(trace), encoding="utf-8")

    monkeypatch.setattr(profile, "__init__", without_cuda)
    monkeypatch.setattr(profile, "export_chrome_trace", with_kernels)
    monkeypatch.setattr(subprocess, "run", _only_smi(subprocess.run, driver))
    return driver


def _only_smi(run: Callable[..., Any], driver: Driver) -> Callable[..., Any]:
    def either(command: Any, *args: Any, **how: Any) -> Any:
        return driver.smi(command, **how) if command[0] == "nvidia-smi" else run(command, *args, **how)

    return either


def kernels_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A launch and a kernel within each operator that computes, as Kineto lists them."""
    whole = [event for event in events if event.get("ph") == "X"]
    operators = sorted(
        (event for event in whole if event.get("cat") == "cpu_op" and event["name"].startswith("aten::")),
        key=lambda event: (event["tid"], event["ts"], -event["dur"]),
    )
    ranges = [event for event in whole if event["name"].startswith(_RANGE)]
    found: list[dict[str, Any]] = []
    ends: dict[Any, float] = {}  # by thread: until when an operator with a kernel runs
    for at, (operator, after) in enumerate(zip(operators, [*operators[1:], None], strict=True)):
        begin, tid = float(operator["ts"]), operator["tid"]
        end = begin + float(operator["dur"])
        if begin < ends.get(tid, 0.0):
            continue
        leaf = after is None or after["tid"] != tid or float(after["ts"]) >= end
        name = _kernel_name(operator, ranges, leaf=leaf)
        if name is None:
            continue
        ends[tid] = end
        args = {"correlation": at + 1, "External id": operator.get("args", {}).get("External id", at)}
        common = {"ph": "X", "pid": operator["pid"], "tid": tid, "ts": begin, "dur": (end - begin) / 4}
        found.append({**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": args})
        on_gpu = {"grid": [132, 1, 1], "block": [384, 1, 1], "stream": 7, "device": 0, **args}
        kernel = {"pid": 0, "tid": 7, "ts": begin + (end - begin) / 4, "dur": (end - begin) / 2}
        found.append({**common, **kernel, "cat": "kernel", "name": name, "args": on_gpu})
    return found


def _kernel_name(operator: dict[str, Any], ranges: list[dict[str, Any]], *, leaf: bool) -> str | None:
    name = str(operator["name"])
    if name in _GEMMS:
        around = [one for one in ranges if one["ts"] <= operator["ts"] <= one["ts"] + one["dur"]]
        return GEMM_NAMES[around[-1]["name"].removeprefix(_RANGE) if around else "bf16"]
    if name in _ATTENTION:
        return "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false>>"
    if name in _BACKWARD:
        return "pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128>>"
    views = ("empty", "as_strided", "view", "_unsafe", "resolve", "detach", "alias", "to", "t", "transpose")
    if not leaf or name.removeprefix("aten::").startswith(views):
        return None
    return f"void at::native::vectorized_elementwise_kernel<4, at::native::{name.removeprefix('aten::')}>"
