"""The device at hand: its name and software, its clocks under load, and who else uses it.

NVML answers through the package ``pynvml`` where it is installed, else through ``nvidia-smi``; where neither
does, a reading is None and the reason stands beside it. Nothing here changes a setting of the device.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracelens.hardware import find_gpu

#: NVML's reasons for a clock below the one asked for, nvmlClocksEventReasons* in nvml.h. The power cap
#: (0x4) is how a large GPU runs any dense GEMM and is no fault; the ones in ``FAULTS`` are.
REASONS: Mapping[int, str] = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
FAULTS = frozenset(
    {"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake"}
)
_QUERY = ("clocks.sm", "clocks.max.sm", "clocks.mem", "temperature.gpu", "power.draw")


@dataclass(frozen=True, slots=True)
class Device:
    """What a run is made on."""

    kind: str  # "cuda" | "cpu" (dry run) | "none"
    gpu: str  # key in gpus.toml, with "-<n>sms" for a slice; "cpu"; a slug of the name where it is unknown
    properties: Mapping[str, Any]
    software: Mapping[str, Any]


def at_hand(*, dry_run: bool = False) -> Device:
    """The current CUDA device; the CPU for a dry run; kind "none" where neither is meant."""
    import torch

    software: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if dry_run:
        torch.set_num_threads(1)  # toy sizes: more of them only wait for each other
        properties: dict[str, Any] = {
            "name": "cpu",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
        return Device("cpu", "cpu", properties, software)
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return Device("none", "none", {}, software)
    from tracelens.capture.system import gpus, versions

    torch.cuda.init()
    (properties,) = gpus()
    software = versions()
    if software["driver"] is None:  # no /proc/driver/nvidia in a sandbox
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = _smi("--query-gpu=driver_version")
            software["driver"] = said.stdout.strip() or None if said.returncode == 0 else None
    return Device("cuda", gpu_key(properties["name"], properties.get("sms")), properties, software)


def gpu_key(name: str, sms: int | None) -> str:
    """The folder of a device's results: a slice never shares one with the whole device.

    >>> gpu_key("NVIDIA H200", 132), gpu_key("NVIDIA H200", 60), gpu_key("NVIDIA Z1 (new)", 8)
    ('h200', 'h200-60sms', 'nvidia-z1-new')
    """
    whole = find_gpu(name)
    if whole.name == "unknown":
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"
    return whole.name if sms in (None, whole.sms) or whole.sms is None else f"{whole.name}-{sms}sms"


def read_clocks(device: Device, *, under_load: bool = True) -> dict[str, Any]:
    """SM and memory MHz, temperature, power, and why the clock is not higher; ``None`` values with ``why``.

    An idle GPU clocks down, so the reading is taken while a queue of products runs.
    """
    nothing = dict.fromkeys(("sm_mhz", "sm_mhz_max", "memory_mhz", "temperature_c", "power_w", "reasons"))
    if device.kind != "cuda":
        return {**nothing, "why": "no NVIDIA GPU: nothing to read"}
    import torch

    errors = []
    for read, products in ((_by_nvml, 400), (_by_command, 1500)):  # the command takes about a second
        try:
            if under_load:
                _queue_work(products)
            found = read()
        except Exception as error:
            errors.append(f"{read.__name__.removeprefix('_by_')}: {type(error).__name__}: {error}"[:200])
        else:
            return {**nothing, **found, "under_load": under_load}
        finally:
            torch.cuda.synchronize()
    return {**nothing, "why": "; ".join(errors)}


def others(device: Device) -> dict[str, Any]:
    """Processes on this GPU beside ours, and memory that is not ours; ``None`` where it cannot be told."""
    if device.kind != "cuda":
        return {"processes": None, "foreign_memory_mb": None, "why": "no NVIDIA GPU: nothing to read"}
    import torch

    free, total = torch.cuda.mem_get_info()
    # the context of our own process and the driver's share are in it too
    foreign = (total - free - torch.cuda.memory_reserved()) / 1e6
    try:
        pids = _processes()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:200]
        return {"processes": None, "foreign_memory_mb": round(foreign), "why": why}
    # in a container the driver may count processes in another namespace: then the one it sees is ours
    mine = os.getpid() in pids or len(pids) <= 1
    return {"processes": max(0, len(pids) - 1) if mine else len(pids), "foreign_memory_mb": round(foreign)}


def _queue_work(products: int) -> None:
    """Products of 1.4 ms each on an H200, queued: we come back while they run."""
    import torch

    with torch.no_grad():
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        out = torch.empty_like(a)
        for _ in range(products):
            torch.mm(a, a, out=out)


def _handle() -> tuple[Any, Any]:
    """NVML and the handle of torch's current device, found by its UUID: the order of NVML is its own."""
    import pynvml  # type: ignore[import-untyped, import-not-found, unused-ignore]
    import torch

    pynvml.nvmlInit()
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    if uuid is not None:
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    return pynvml, pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())


def _by_nvml() -> dict[str, Any]:
    nvml, handle = _handle()
    # NVML calls them event reasons since driver 535, throttle reasons before
    read_reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    read_reasons = read_reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    clocks = []
    for _ in range(4):
        time.sleep(0.1)  # an idle GPU needs some milliseconds to follow the load
        clocks.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    return {
        "sm_mhz": max(clocks),
        "sm_mhz_max": nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_c": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "reasons": reasons(read_reasons(handle)),
    }


def _by_command() -> dict[str, Any]:
    # the field was renamed with driver 535; either name may be refused
    for field in ("clocks_event_reasons.active", "clocks_throttle_reasons.active"):
        done = _smi(f"--query-gpu={','.join((*_QUERY, field))}")
        if done.returncode == 0:
            cells = [cell.strip() for cell in done.stdout.splitlines()[0].split(",")]
            sm, most, memory, heat, power = (_number(cell) for cell in cells[:5])
            return {
                "sm_mhz": sm,
                "sm_mhz_max": most,
                "memory_mhz": memory,
                "temperature_c": heat,
                "power_w": power,
                "reasons": reasons(int(cells[5], 16)) if cells[5].startswith("0x") else None,
            }
    raise OSError((done.stderr or done.stdout).strip() or "nvidia-smi gave nothing")


def _processes() -> list[int]:
    try:
        nvml, handle = _handle()
        return [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except ImportError:
        done = _smi("--query-compute-apps=pid")
        if done.returncode:
            raise OSError(done.stderr.strip() or "nvidia-smi gave nothing") from None
        return [int(line) for line in done.stdout.split() if line.isdigit()]


def _smi(query: str) -> subprocess.CompletedProcess[str]:
    import torch

    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    which = [f"--id=GPU-{uuid}"] if uuid is not None else []
    command = ["nvidia-smi", *which, query, "--format=csv,noheader,nounits"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def reasons(mask: int) -> list[str]:
    """The names of NVML's bits.

    >>> reasons(0x4 | 0x20)
    ['power cap', 'software thermal slowdown']
    """
    known = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return [*known, f"unknown reason {rest:#x}"] if rest else known


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
