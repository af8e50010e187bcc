"""A CUDA driver that is none: checks what is asked of it, and in which order.

Tensors that are put on ``cuda`` lie in the CPU's memory, so every kernel's work is real. What only a GPU has
(events, streams, properties, graphs, the profiler's kernels, ``nvidia-smi``) is answered here, and each call
is checked as the driver would: an event that was never recorded has no time, a time is read after a wait. A
call of ``torch.cuda`` that is not answered here fails, as on any PyTorch without CUDA. Between events pass as
many microseconds as operators were asked for, so that nothing measured depends on how busy the machine is.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo  # imports much that must see the real classes
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

from tests.measure.graphs import ASIDE, REPLAY, Graph, Misuse, Recorder

UUID = "8f2c0b7e-0000-1111-2222-333344445555"
#: As cuBLAS 13 names them on Hopper.
GEMM_NAMES = {
    "bf16": "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN",
    "fp16": "nvjet_sm90_hsh_128x256_64x4_2x1_v_bz_coopA_TNN",
    "fp8": "nvjet_sm90_qqtst_128x256_128x4_2x1_v_bz_TNT",
    "tf32": "cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4",
    "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma",
}
#: As the profiler writes the types of operands.
_DTYPES = {
    "c10::BFloat16": "bf16", "c10::Half": "fp16", "c10::Float8_e4m3fn": "fp8", "c10::Float8_e5m2": "fp8",
    "float": "fp32",
}  # fmt: skip
_SHAPES = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
_GEMMS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm")
_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu",)
_BACKWARD = ("aten::_scaled_dot_product_flash_attention_for_cpu_backward",)
_TF32 = "fake-tf32#"
_LARGE = 1 << 22  # elements: what only warms a real GPU up is not computed


@dataclass
class Driver(TorchFunctionMode):
    """The state of the one GPU, and every call in order."""

    calls: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)  # names of torch.cuda
    held: bool = False  # a spinning kernel keeps the stream from going on
    recorded: int = 0  # events so far
    done: int = 0  # those of them that the CPU has seen happen
    capturing: bool = False
    present: bool = True
    step_marked: bool = False  # what a compiler's graphs need before each step
    clock_mhz: int = 1755
    now_us: float = 0.0
    processes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__init__()

    # -- tensors ------------------------------------------------------------------------------------

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.now_us += 1000.0
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _here(kwargs["device"])
        args = tuple(_here(one) for one in args)
        if getattr(func, "__name__", "") in ("randn", "mm") and _size(args) > _LARGE:
            self.calls.append(f"large {func.__name__}")
            if func.__name__ == "mm":
                return kwargs["out"]
            return torch.empty(*args, **kwargs)
        if func in (torch.mm, torch.bmm) and len(args) == 3:  # a wider result, which a CPU has not
            if args[0].dtype not in (torch.bfloat16, torch.float16) or args[2] is not torch.float32:
                raise Misuse(f"no product of {args[0].dtype} with {args[2]} out")
            with torch.profiler.record_function(ASIDE):
                wide = [one.float() for one in args[:2]]
            return func(*wide, **kwargs)
        if func is torch._scaled_mm:
            _check_scaled(*args, **kwargs)
        if func in (torch.mm, torch.bmm) and torch.backends.cuda.matmul.fp32_precision == "tf32":
            with torch.profiler.record_function(_TF32):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def compile(self, model: Any, **how: Any) -> Any:
        """A compiler whose kernels are those of the operators it was given."""
        if how not in ({}, {"mode": "reduce-overhead"}):
            raise Misuse(f"a GPU compiles with its own compiler, not with {how}")
        self.calls.append(f"compile {how.get('mode', 'default')}")
        compiled = _COMPILE(model, backend="aot_eager")
        forward = compiled.forward

        def run(*args: Any, **more: Any) -> Any:
            if how and not self.step_marked:
                raise Misuse("a graph of the compiler runs in no marked step: its results are overwritten")
            self.step_marked, self.present = False, False  # the compiler asks for what is not answered here
            graph = torch.profiler.record_function(REPLAY) if how else nullcontext()
            try:
                with _pop_mode_temporarily(), graph:  # it would trace this driver, too
                    return forward(*args, **more)
            finally:
                self.present = True

        compiled.forward = run
        return compiled

    def mark_step(self) -> None:
        self.step_marked = True

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
        if not isinstance(graph, Graph) or graph.operators is not None:
            raise Misuse("a graph is captured into a new CUDAGraph")
        if self.calls[-2:] != ["wait_stream", "wait_stream"]:
            raise Misuse("a capture follows a warm-up on a side stream that was waited for")
        self.calls.append("capture")
        self.capturing = True
        try:
            with Recorder() as recorder:
                yield
        finally:
            self.capturing = False
        graph.operators = recorder.operators

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
    """The order of calls is that of CUDA."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.at_us: float | None = None
        self.number = 0

    def record(self, stream: Any = None) -> None:
        self.driver.now_us += 1.0
        self.at_us = self.driver.now_us
        self.driver.recorded += 1
        self.number = self.driver.recorded
        self.driver.calls.append("event")

    def query(self) -> bool:
        if not self.driver.held:
            self.driver.done = max(self.driver.done, self.number)
        return self.number <= self.driver.done

    def synchronize(self) -> None:
        if self.at_us is None:
            raise Misuse("waited for an event that was never recorded")
        self.driver.held = False
        self.driver.done = max(self.driver.done, self.number)  # a stream goes on in order
        self.driver.calls.append("wait")

    def elapsed_time(self, other: Event) -> float:
        if self.at_us is None or other.at_us is None:
            raise Misuse("time between events that were never recorded")
        if other.at_us < self.at_us:
            raise Misuse("the second event was recorded before the first")
        if max(self.number, other.number) > self.driver.done:
            raise RuntimeError("CUDA error: device not ready")
        return (other.at_us - self.at_us) / 1e3


@dataclass
class Stream:
    driver: Driver

    def wait_stream(self, other: Any) -> None:
        assert isinstance(other, Stream)
        self.driver.calls.append("wait_stream")


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


def _check_scaled(
    a: torch.Tensor, b: torch.Tensor, *, scale_a: torch.Tensor, scale_b: torch.Tensor, out_dtype: torch.dtype,
    use_fast_accum: bool, out: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """What cuBLASLt asks of an fp8 product on Hopper (aten/src/ATen/native/cuda/ScaledBlas.cpp)."""
    both = {a.dtype, b.dtype}
    if both - {torch.float8_e4m3fn, torch.float8_e5m2} or both == {torch.float8_e5m2}:
        raise Misuse(f"no fp8 product of {a.dtype} and {b.dtype}")
    if not a.is_contiguous() or not b.t().is_contiguous() or a.shape[1] != b.shape[0]:
        raise Misuse("an fp8 product takes its first operand by rows and its second by columns")
    if b.shape[0] % 16 or b.shape[1] % 16:
        raise Misuse(f"an fp8 product of K={b.shape[0]}, N={b.shape[1]}: both are multiples of 16")
    for scale in (scale_a, scale_b):
        if scale.dtype is not torch.float32 or scale.numel() != 1:
            raise Misuse("a scale is one float32")
    if out is not None and (out.dtype is not out_dtype or out.shape != (a.shape[0], b.shape[1])):
        raise Misuse("the result has another type or shape")


_COMPILE: Any = torch.compile


def install(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver, in place until the test ends. The caller enters it: ``with install(monkeypatch):``."""
    driver = Driver()
    cuda: dict[str, Any] = {
        "is_available": lambda: driver.present, "is_initialized": lambda: True, "init": lambda: None,
        "current_device": lambda: 0, "device_count": lambda: 1, "get_device_properties": driver.properties,
        "get_device_capability": lambda device=None: (9, 0), "memory_reserved": lambda device=None: 1 << 20,
        "mem_get_info": lambda device=None: (64 << 20, 80 << 20), "synchronize": driver.synchronize,
        "empty_cache": lambda: driver.calls.append("empty_cache"), "Event": driver.event,
        "_sleep": driver.sleep, "Stream": lambda device=None: Stream(driver),
        "current_stream": lambda device=None: Stream(driver),
        "stream": lambda stream: nullcontext(), "CUDAGraph": Graph, "graph": driver.graph,
        "initial_seed": lambda: 1234,
    }  # fmt: skip
    for name, answer in cuda.items():
        monkeypatch.setattr(torch.cuda, name, answer if name == "CUDAGraph" else _noted(driver, name, answer))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch, "autocast", Autocast)
    monkeypatch.setattr(torch, "compile", driver.compile)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", driver.mark_step)
    profile = torch.profiler.profile
    export = profile.export_chrome_trace
    begin = profile.__init__

    def without_cuda(self: Any, *, activities: Any = None, **more: Any) -> None:
        if activities is None or torch.profiler.ProfilerActivity.CUDA not in activities:
            raise Misuse("a profiler that does not record the GPU")
        self.asked_for_shapes = more.pop("record_shapes", False)
        begin(self, activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, **more)

    def with_kernels(self: Any, path: str) -> None:
        export(self, path)
        trace = json.loads(Path(path).read_text(encoding="utf-8"), strict=False)
        trace["deviceProperties"] = [
            {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 150_109_880_320,
             "computeMajor": 9, "computeMinor": 0}
        ]  # fmt: skip
        trace["traceEvents"] = with_gpu(trace["traceEvents"], shapes=self.asked_for_shapes)
        Path(path).write_text(json.dumps(trace), encoding="utf-8")

    monkeypatch.setattr(profile, "__init__", without_cuda)
    monkeypatch.setattr(profile, "export_chrome_trace", with_kernels)
    monkeypatch.setattr(subprocess, "run", _only_smi(subprocess.run, driver))
    return driver


def _noted(driver: Driver, name: str, answer: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **more: Any) -> Any:
        driver.asked.add(name)
        return answer(*args, **more)

    return noted


def _only_smi(run: Callable[..., Any], driver: Driver) -> Callable[..., Any]:
    def either(command: Any, *args: Any, **how: Any) -> Any:
        return driver.smi(command, **how) if command[0] == "nvidia-smi" else run(command, *args, **how)

    return either


def with_gpu(events: list[dict[str, Any]], *, shapes: bool) -> list[dict[str, Any]]:
    """The events as Kineto lists them on a GPU: launches and kernels of the operators that compute.

    A graph's replay is one launch; the operators within it are unknown to the profiler.
    """
    spans = {
        name: [(one["tid"], one["ts"], one["ts"] + one["dur"]) for one in events if one.get("name") == name]
        for name in (REPLAY, ASIDE, _TF32)
    }

    def within(event: dict[str, Any], name: str) -> int | None:
        return next(
            (
                at
                for at, (tid, begin, end) in enumerate(spans[name])
                if tid == event.get("tid") and begin <= event.get("ts", -1.0) < end
            ),
            None,
        )

    whole = [event for event in events if event.get("ph") == "X" and within(event, ASIDE) is None]
    operators = [event for event in whole if event["name"].startswith("aten::")]
    found: list[dict[str, Any]] = []
    launched: dict[int, dict[str, Any]] = {}  # by replay
    for at, operator, name in _computing(operators, lambda one: within(one, _TF32) is not None):
        begin, took = float(operator["ts"]), float(operator["dur"])
        args = {"correlation": at, "External id": operator.get("args", {}).get("External id", at)}
        launch = {
            **operator,
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "args": args,
            "dur": took / 4,
        }
        replay = within(operator, REPLAY)
        if replay is not None:
            launch |= {"name": "cudaGraphLaunch", "ts": spans[REPLAY][replay][1], "args": {"correlation": at}}
            launch = launched.setdefault(replay, launch)
        if replay is None or launch["args"]["correlation"] == at:
            found.append(launch)
        on_gpu = {"grid": [132, 1, 1], "block": [384, 1, 1], "stream": 7, "device": 0, **launch["args"]}
        if replay is not None:
            on_gpu |= {"graph id": 1, "graph node id": at}
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "args": on_gpu}
        found.append({**kernel, "ts": begin + took / 4, "dur": took / 2})
    kept = [
        event
        for event in events
        if event.get("name") not in spans and within(event, REPLAY) is None and within(event, ASIDE) is None
    ]
    for event in kept:
        if not shapes:
            for key in _SHAPES:
                event.get("args", {}).pop(key, None)
    return kept + found


def _computing(
    operators: list[dict[str, Any]], tf32: Callable[[dict[str, Any]], bool]
) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Number, operator and kernel of each operator that would launch one."""
    operators = sorted(operators, key=lambda event: (event["tid"], event["ts"], -event["dur"]))
    ends: dict[Any, float] = {}  # by thread: until when an operator with a kernel runs
    for at, (operator, after) in enumerate(zip(operators, [*operators[1:], None], strict=True), start=1):
        begin, tid = float(operator["ts"]), operator["tid"]
        end = begin + float(operator["dur"])
        if begin < ends.get(tid, 0.0):
            continue
        leaf = after is None or after["tid"] != tid or float(after["ts"]) >= end
        name = _kernel_name(operator, leaf=leaf, tf32=tf32(operator))
        if name is not None:
            ends[tid] = end
            yield at, operator, name


def _kernel_name(operator: dict[str, Any], *, leaf: bool, tf32: bool) -> str | None:
    name = str(operator["name"])
    if name in _GEMMS:
        types = operator.get("args", {}).get("Input type", ())
        dtype = next((_DTYPES[one] for one in types if one in _DTYPES), "bf16")
        if dtype == "fp32" and (tf32 or torch.get_float32_matmul_precision() == "high"):
            dtype = "tf32"
        return GEMM_NAMES[dtype]
    if name in _ATTENTION:
        return "pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false>>"
    if name in _BACKWARD:
        return "pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128>>"
    views = ("empty", "as_strided", "view", "_unsafe", "resolve", "detach", "alias", "to", "t", "transpose")
    if not leaf or name.removeprefix("aten::").startswith(views):
        return None
    return f"void at::native::vectorized_elementwise_kernel<4, at::native::{name.removeprefix('aten::')}>"
