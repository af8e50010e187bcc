"""Every CUDA call of the room, against a driver that checks arguments and order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.measure.driver import Driver, Event
from tests.measure.fakes import HASTY
from tests.measure.graphs import Misuse
from tracelens.hardware.measurements import MeasuredBackend, user_file
from tracelens.measure.cases import AttentionCase, GemmCase
from tracelens.measure.devices import open_device
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.pairs import measure_layers, measure_steps
from tracelens.measure.run import Settings, run
from tracelens.measure.verify.meter import BenchMeter, CallTime, open_meter
from tracelens.words import Direction


def test_the_driver_refuses_what_cuda_refuses(driver: Driver) -> None:
    never, late, early = Event(driver), Event(driver), Event(driver)
    early.record()
    late.record()
    for wrong in (
        lambda: early.elapsed_time(never),
        lambda: late.elapsed_time(early),
        never.synchronize,
        lambda: torch.cuda.Event(),
        lambda: torch.cuda._sleep(1.5),
        lambda: torch.cuda.CUDAGraph().replay(),
    ):
        with pytest.raises(Misuse):
            wrong()
    with pytest.raises(RuntimeError, match="not ready"):
        early.elapsed_time(late)
    with pytest.raises(AttributeError):  # what is not answered here fails
        torch.cuda.ipc_collect()


def test_bench_measures_names_and_writes_everything(driver: Driver, tmp_path: Path) -> None:
    gemms = [
        GemmCase("x", 16, 32, 48, batch, dtype, layout)
        for batch, dtype, layout in (
            (1, "bf16", "TN"), (1, "bf16", "NN"), (2, "bf16", "NT"), (1, "fp16", "TN"), (1, "tf32", "TN"),
            (1, "fp32", "NN"), (1, "fp8", "TN"),
        )
    ]  # fmt: skip
    gemms.append(GemmCase("x", 16, 24, 32, out_dtype="fp32"))
    kinds: list[tuple[Direction, MeasuredBackend]]
    kinds = [("forward", "flash"), ("backward", "flash"), ("forward", "cudnn")]
    calls = [AttentionCase("x", 1, 4, 17, 16, 2, direction=way, backend=kind) for way, kind in kinds]
    device = open_device("cuda")
    settings = Settings(gemms, calls, minutes=5, out=tmp_path / "h200.json", options=HASTY)
    found = run(settings, device=device).measurements
    assert (found.gpu, found.device["sms"], found.software["cuda"]) == ("h200", 132, "13.0")
    assert found.clocks["sm_mhz_before"] == found.clocks["sm_mhz_after"] == 1755
    assert len(found.gemms) == len(gemms) and len(found.attention) == len(calls)
    assert all(len(one.kernels) == 1 and ("gemm" in one.kernels[0] or "nvjet" in one.kernels[0])
               for one in found.gemms)  # fmt: skip
    assert all("flash" in " ".join(one.kernels) for one in found.attention)
    assert found.bandwidth_gbps and found.launch_floor_us and found.call_gap_us is not None
    # every batch: held, L2 flushed, two events, and the second waited for before the time is read
    batches = "".join({"hold": "h", "event": "e", "wait": "w"}.get(one, "") for one in driver.calls)
    assert batches.replace("heew", "") == ""
    assert sum(one.startswith("nvidia-smi clocks") for one in driver.calls) == 2


def test_verify_takes_what_bench_measured_of_this_gpu(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.measure.run._limits", lambda device, options: {})
    monkeypatch.setattr("tracelens.measure.verify.meter._CALLS", HASTY)
    monkeypatch.setattr(BenchMeter, "_gap", lambda meter: 0.0)
    device, case, other = open_device("cuda"), GemmCase("x", 16, 32, 48), GemmCase("x", 16, 32, 64)
    done = run(Settings([case], [], minutes=5, options=HASTY), device=device)
    assert done.path == user_file("h200")
    with open_meter(device) as meter:
        before = driver.calls.count("hold")
        found = meter.calls([case])[case]
        assert isinstance(found, CallTime) and found.kernels == done.measurements.gemms[0].kernels
        assert driver.calls.count("hold") == before
        assert isinstance(meter.calls([other])[other], CallTime)
        assert driver.calls.count("hold") > before
    again = run(Settings([case, other], [], minutes=5, options=HASTY), device=device)
    assert (again.tried, again.resumed) == (0, 2)  # and bench what verify measured


@pytest.mark.parametrize("attention", ["flash", "cudnn", "math"])
def test_layers_and_steps_take_turns(driver: Driver, attention: MeasuredBackend) -> None:
    layer = LayerShape(64, 4, 128, kv_heads=2, sequence=16, micro_batch=1, gated=True, attention=attention)
    device = open_device("cuda")
    how: dict[str, Any] = {"device": device, "options": replace(HASTY, min_batches=1), "turns": 2}
    times = measure_layers(layer, layer.changed(ffn=96), **how)
    assert times.queued and len(times.before_ms) == len(times.after_ms) == 2
    assert all(one.names for one in times.kernels)
    steps = [StepShape(layer, 1, vocabulary) for vocabulary in (65, 64)]
    assert all(one.names for one in measure_steps(*steps, **how).kernels)
    assert "empty_cache" in driver.calls  # one pair leaves no memory to the next
