"""Every stage on a driver that checks its calls: what a first run asks of a real GPU, without the GPU."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import device, summarize
from benchmarks.gpu.record import read_record
from benchmarks.gpu.runner import Run, run_stage
from benchmarks.gpu.stages import STAGES
from benchmarks.gpu.store import ROOT, Folder, read_result
from tests.measure.driver import Driver, install
from tracelens.measure import operands
from tracelens.measure.attention import SDP

#: PyTorch's own, of a driver that is none among them.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def once() -> Iterator[pytest.MonkeyPatch]:
    patch = pytest.MonkeyPatch()
    yield patch
    patch.undo()


@pytest.fixture(scope="module")
def driven(
    once: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Driver, list[str]]:
    """All stages at toy size on what says that it is an H200."""
    out = tmp_path_factory.mktemp("driven")
    once.setattr(operands, "_ROUND_BYTES", 1 << 12)
    for name in ("cudnn", "efficient"):
        once.setitem(SDP, name, SDP["flash"])  # a CPU has one fused kernel
    once.setattr(Run, "setting", toy_setting(Run.setting))
    once.setattr(os, "replace", within_one_folder(os.replace))
    torch.set_num_threads(1)
    said: list[str] = []
    with install(once) as driver:
        driver.processes = (os.getpid(),)
        found = device.at_hand()
        run = Run(
            device=found,
            folder=Folder(out / "results" / found.gpu, dry_run=True),
            traces=out / "sample_traces",
            command="test",
            say=said.append,
        )
        for stage in STAGES:
            run_stage(stage, run)
    once.undo()
    return out, driver, said


def toy_setting(setting: Any) -> Any:
    return lambda run, scratch: replace(setting(run, scratch), dry_run=True)


def within_one_folder(replace: Any) -> Any:
    """A machine whose scratch lies on another file system than its results."""

    def only(one: Any, other: Any) -> None:
        if Path(one).parent != Path(other).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(one, other)

    return only


def test_every_stage_is_done(driven: tuple[Path, Driver, list[str]]) -> None:
    out, _, said = driven
    refused = [line for line in said if "refused" in line or "failed" in line]
    assert refused == []
    for stage in STAGES:
        result = read_result(out / "results" / "h200" / f"{stage.name}.json")
        assert result["failed"] == {}
        assert result["device"]["name"] == "NVIDIA H200"
        assert result["software"]["driver"] is not None
        for when in ("before", "after"):
            reading = result["clocks"][when]
            assert (reading["sm_mhz"], reading["reasons"]) == (1755, ["power cap"])
        assert result["sessions"][0]["others"]["processes"] == 0


def test_kernels_are_named_and_captures_hold_no_doubt(driven: tuple[Path, Driver, list[str]]) -> None:
    record = read_record(driven[0] / "results" / "h200", traces=driven[0] / "sample_traces")
    assert record.gemms and all(one.kernels for one in record.gemms)
    assert record.attention and all(one.kernels for one in record.attention)
    for row in record.layers:
        assert row["before"]["gemm_kernels"] and row["before"]["profiler_ms"] > 0
    for name, row in record.captures.items():
        assert row["doubts"] == [], name
        assert row["kernels"] > 0 and row["step_ms"]["clock"] == "cuda_events"
    compared = (record.data("first_step") or {})["compared"]
    assert compared["before_ms"] > 0 and set(compared["gpu_saving_ms"]) >= {"gemm"}


def test_the_page_is_made_of_it(driven: tuple[Path, Driver, list[str]], tmp_path: Path) -> None:
    where = ["--results", str(driven[0] / "results"), "--out", str(tmp_path)]
    assert summarize.main(where) == 0
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "### One GPT-2 step" in page and "### Capture overhead" in page


def test_nothing_of_the_gpu_is_set_and_each_query_is_of_this_gpu(
    driven: tuple[Path, Driver, list[str]],
) -> None:
    """The driver raises at anything else."""
    asked = {one for one in driven[1].calls if one.startswith("nvidia-smi")}
    assert {one.split(",")[0] for one in asked} == {
        "nvidia-smi clocks.sm", "nvidia-smi pid", "nvidia-smi driver_version",
    }  # fmt: skip
    assert driven[1].calls.count("capture") >= 2  # CUDA graphs of whole steps
    assert {"compile default", "compile reduce-overhead"} <= set(driven[1].calls)


def test_every_call_of_torch_cuda_was_made(driven: tuple[Path, Driver, list[str]]) -> None:
    """Of the stages and of what they measure with: none waits for a real GPU to be run the first time."""
    folders = [ROOT / "benchmarks" / "gpu", ROOT / "tracelens" / "measure", ROOT / "tracelens" / "capture"]
    files = [path for folder in folders for path in folder.rglob("*.py") if path.name != "hub.py"]  # no stage
    sources = [path.read_text(encoding="utf-8") for path in files]
    named = {name for text in sources for name in re.findall(r"\btorch\.cuda\.(\w+)(?=\()", text)}
    assert named - driven[1].asked == {"CUDAGraph"}  # that it is captured and replayed: the calls above


def test_a_replay_is_one_launch_of_many_kernels(driven: tuple[Path, Driver, list[str]]) -> None:
    """As CUPTI lists a CUDA graph; the compiler's own graphs, too."""
    for name in ("gpt2_vocab50257_head80_cudagraph", "gpt2_vocab50304_head128_reduceoverhead"):
        path = driven[0] / "sample_traces" / f"h200_{name}.json.gz"
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        launches = [one for one in events if one["name"] == "cudaGraphLaunch"]
        kernels = Counter(one["args"]["correlation"] for one in events if one.get("cat") == "kernel")
        assert len(launches) == 2  # one a step
        assert all(kernels[one["args"]["correlation"]] > 20 for one in launches)
