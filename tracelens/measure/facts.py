"""What the device at hand is, how it is clocked, and the two ceilings that are no product."""

from __future__ import annotations

import statistics
import subprocess
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tracelens.capture.system import versions
from tracelens.hardware import Gpu, find_gpu
from tracelens.measure import words
from tracelens.measure.cases import CannotMeasure, GemmCase, MeasureOptions
from tracelens.measure.devices import guarded
from tracelens.measure.gemms import prepare_gemm
from tracelens.measure.kernels import record_kernels
from tracelens.measure.operands import Pools
from tracelens.measure.timing import Call, Device, time_calls

_COPIED_BYTES = 1 << 30
_NVIDIA_SMI_SECONDS = 10
_GAP_CALLS = 32
_QUERY = "clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,power.draw"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The device and the software that decides which kernels run; None = not told."""

    gpu: Gpu  # "unknown" for a GPU that the table lacks, and for the CPU
    device: dict[str, Any]  # name, kind, sms, compute_capability, memory_bytes, l2_bytes
    software: dict[str, Any]  # torch, cuda, driver, cublas, cudnn


def device_facts(device: Device) -> DeviceFacts:
    """What ``device`` is. A number of SMs unlike the table's (a slice) stands in ``gpu.notes``."""
    found = versions()
    software = {name: found[name] for name in ("torch", "cuda", "driver", "cublas", "cudnn")}
    if device.kind != "cuda":
        about: dict[str, Any] = {"name": "CPU", "kind": device.kind}
        return DeviceFacts(find_gpu(None), about, software)
    properties = torch.cuda.get_device_properties(device.torch_device)
    gpu = find_gpu(
        properties.name,
        properties={
            "numSms": properties.multi_processor_count,
            "totalGlobalMem": properties.total_memory,
            "computeMajor": properties.major,
            "computeMinor": properties.minor,
        },
    )
    about = {
        "name": properties.name,
        "kind": device.kind,
        "sms": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
    }
    return DeviceFacts(gpu, about, software)


def read_clocks(device: Device) -> dict[str, Any]:
    """SM and memory clock in MHz, temperature and power as ``nvidia-smi`` reads them now.

    Nothing is set. Where they cannot be read the values are None and ``why`` says the reason.
    """
    names = ("sm_mhz", "sm_mhz_max", "memory_mhz", "temperature_c", "power_w")
    if device.kind != "cuda":
        return dict.fromkeys(names) | {"why": words.CPU_MEASURED}
    # Visible devices are renumbered by CUDA_VISIBLE_DEVICES: the UUID is not.
    uuid = getattr(torch.cuda.get_device_properties(device.torch_device), "uuid", None)
    if uuid is None:
        return dict.fromkeys(names) | {"why": words.GPU_NOT_TOLD}
    name = str(uuid) if str(uuid).startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    command = ["nvidia-smi", "-i", name, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return dict.fromkeys(names) | {"why": words.nvidia_smi_failed(error)}
    return dict(zip(names, parse_clocks(said.stdout), strict=True))


def parse_clocks(line: str) -> list[float | None]:
    """The numbers of one csv line of nvidia-smi; what it cannot tell ("[N/A]") is None.

    >>> parse_clocks("1980, 1980, 3201, 41, [N/A]")
    [1980.0, 1980.0, 3201.0, 41.0, None]
    """
    cells = [cell.strip() for cell in line.strip().splitlines()[0].split(",")] if line.strip() else []
    values: list[float | None] = []
    for cell in cells[:5]:
        try:
            values.append(float(cell))
        except ValueError:
            values.append(None)
    return values + [None] * (5 - len(values))


def measure_bandwidth(*, device: Device, options: MeasureOptions | None = None) -> float:
    """GB/s (10^9) of a large copy on the device, bytes read plus bytes written."""
    size = _COPIED_BYTES
    if device.kind == "cuda":
        free, _ = torch.cuda.mem_get_info(device.torch_device)
        size = min(size, free // 8)
    else:
        size = 1 << 20

    def made() -> tuple[torch.Tensor, torch.Tensor]:
        source = torch.empty(size // 4, dtype=torch.float32, device=device.torch_device).normal_()
        return source, torch.empty_like(source)

    source, target = guarded(made, what="the copy")
    timing = time_calls(
        lambda index: target.copy_(source), device=device, options=options or MeasureOptions()
    )
    if not torch.equal(source, target):
        raise CannotMeasure("the copy is not what was copied")
    copied: int = source.numel() * source.element_size()
    return 2 * copied / timing.time_us / 1e3


def measure_launch_floor(*, device: Device, options: MeasureOptions | None = None) -> float:
    """Microseconds of the quickest tiny bf16 product on a full stream: no product takes less."""
    pools = Pools(device)
    times = []
    for m, n, k in ((64, 64, 64), (128, 128, 64), (16, 64, 64)):
        prepare = partial(prepare_gemm, GemmCase("floor", m, n, k), device=device, pools=pools, sets=64)
        prepared = guarded(prepare, what="a tiny GEMM")
        times.append(time_calls(prepared.call, device=device, options=options or MeasureOptions()).time_us)
    return min(times)


def measure_call_gap(*, device: Device, options: MeasureOptions | None = None) -> float | None:
    """Microseconds between two kernels of a full stream, which are in every measured time.

    The time of a call between CUDA events less the time of its kernels as the profiler (and so a trace)
    has them, median over some products of tens of microseconds; None on the CPU.
    """
    options = options or MeasureOptions()
    pools = Pools(device)
    gaps = []
    for m, n, k in ((2048, 2048, 512), (2048, 2048, 1024), (4096, 2048, 1024), (2048, 4096, 2048)):
        case = GemmCase("gap", m, n, k)
        prepared = prepare_gemm(case, device=device, pools=pools, sets=_GAP_CALLS)

        def calls(call: Call = prepared.call) -> None:
            for index in range(_GAP_CALLS):
                call(index)

        (launched,) = record_kernels([lambda calls=calls: calls], device=device)  # type: ignore[misc]
        if launched.time_us is None or len(launched.names) < _GAP_CALLS:
            return None
        timing = time_calls(prepared.call, device=device, options=options)
        gaps.append(timing.time_us - launched.time_us / _GAP_CALLS)
    return statistics.median(gaps)
