"""What is read of a device, and what the kernels' names must be."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import device
from benchmarks.gpu.stages import captures
from benchmarks.gpu.stages.captures import wrong_kernels
from tests.gpu_record.toy import GPU
from tests.said import Listener

H200 = device.Device("cuda", "h200", {}, {})


def smi(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str]) -> None:
    left = iter(answers)

    def answer(query: str) -> subprocess.CompletedProcess[str]:
        code, text = next(left)
        return subprocess.CompletedProcess(["nvidia-smi"], code, text, text)

    def refuses() -> Any:
        raise ImportError("No module named 'pynvml'")

    torch = pytest.importorskip("torch")
    monkeypatch.setattr(device, "_smi", answer)
    monkeypatch.setattr(device, "_handle", refuses)
    monkeypatch.setattr(device, "_queue_work", lambda products: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140e9, 141e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0.4e9)


def test_clocks_are_read_through_the_command_where_nvml_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "1755, 1980, 3201, 41, 532.10, 0x0000000000000004\n"
    smi(monkeypatch, (2, 'Field "clocks_event_reasons.active" is not valid'), (0, line))
    found = device.read_clocks(H200)
    assert (found["sm_mhz"], found["sm_mhz_max"], found["power_w"]) == (1755, 1980, 532.1)
    assert found["reasons"] == ["power cap"]
    assert found["under_load"]


def nvml(**more: Any) -> types.ModuleType:
    """The calls of nvidia-ml-py that are used, of a GPU whose clock follows its load."""
    module = types.ModuleType("pynvml")
    clocks = iter([345, 1200, 1755, 1740])
    module.__dict__.update(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetClockInfo=lambda handle, kind: next(clocks) if kind == 1 else 3201,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetTemperature=lambda handle, kind: 40,
        nvmlDeviceGetPowerUsage=lambda handle: 650_000,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [types.SimpleNamespace(pid=os.getpid())],
        **more,
    )
    return module


@pytest.mark.parametrize("name", ["EventReasons", "ThrottleReasons"])
def test_an_idle_gpu_is_read_once_its_clock_has_followed_the_load(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    torch = pytest.importorskip("torch")
    module = nvml(**{f"nvmlDeviceGetCurrentClocks{name}": lambda handle: 0x4})
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda at: types.SimpleNamespace(uuid="1-2"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (140e9, 141e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(device, "_queue_work", lambda products: None)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    found = device.read_clocks(H200)
    assert (found["sm_mhz"], found["memory_mhz"], found["power_w"]) == (1755, 3201, 650.0)
    assert found["reasons"] == ["power cap"]
    assert device.others(H200)["processes"] == 0


def test_a_reading_that_fails_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, (9, "NVIDIA-SMI has failed"), (9, "NVIDIA-SMI has failed"))
    found = device.read_clocks(H200)
    assert found["sm_mhz"] is None
    assert "No module named 'pynvml'" in found["why"]
    assert "NVIDIA-SMI has failed" in found["why"]


def test_other_processes_are_those_that_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    smi(monkeypatch, (0, f"{os.getpid()}\n"), (0, f"{os.getpid()}\n4711\n"), (0, "4711\n"), (9, "no"))
    assert device.others(H200) == {"processes": 0, "foreign_memory_mb": 600}
    assert device.others(H200)["processes"] == 1
    assert device.others(H200)["processes"] == 0  # a container's driver counts in another namespace
    assert device.others(H200)["processes"] is None


def test_nothing_is_read_where_there_is_no_gpu(said: Listener) -> None:
    assert device.others(GPU)["processes"] is None
    said(device.read_clocks(GPU)["why"])


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [
        ("bf16", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"),
        ("fp16", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT"),
        ("fp8", "nvjet_qqtst_128x256_128x4_2x1_v_bz_TNT"),
        (
            "tf32",
            "sm80_xmma_gemm_tf32f32_tf32f32_f32_tn_n_tilesize64x64x64_stage3_warpsize2x2x1_tensor16x8x8_kernel",
        ),
        ("tf32", "nvjet_sss_128x128_32x4_2x1_v_bz_TNT"),
        ("tf32", "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align1>(P)"),
    ],
)
def test_the_kernels_of_a_step_are_of_its_data_type(dtype: str, kernel: str, said: Listener) -> None:
    assert wrong_kernels(dtype, {kernel: 10, "ampere_sgemm_128x64_tn": 3}) == []
    (why,) = wrong_kernels(dtype, {"ampere_sgemm_128x64_tn": 10, kernel: 3})
    said(why)


def test_a_step_without_gemm_kernels_is_refused(said: Listener) -> None:
    said(wrong_kernels("bf16", {}))


def test_every_capture_has_its_own_name_and_a_gpu_has_them_all() -> None:
    pytest.importorskip("torch")
    from benchmarks.gpu.stage import Setting

    setting = Setting("none", "h200", False, Path(), Path())
    items = [*captures.first_items(setting), *captures.more_items(setting)]
    assert len({item.key for item in items}) == len(items)
    ways = {(item.spec.family, item.spec.how) for item in items}
    assert ways >= {
        (family, how)
        for family in ("gpt", "llama", "bert", "vit")
        for how in ("eager", "compile", "checkpoint", "graph")
    }
    assert ways >= {("moe", "eager"), ("gpt", "reduce_overhead")}
    assert {item.spec.dtype for item in items} == {"bf16", "fp16", "fp8", "tf32"}
    pairs = {item.spec.name: item.spec.dims for item in items}
    before, after = pairs["gpt2_vocab50257_head80_eager"], pairs["gpt2_vocab50304_head128_eager"]
    assert (before.head_dim, before.vocab, after.head_dim, after.vocab) == (80, 50257, 128, 50304)
    assert pairs["gpt2_vocab50304_head64_eager"].head_dim == 64
    assert pairs["llama_gqa_ffn10922_eager"].ffn == 10922
