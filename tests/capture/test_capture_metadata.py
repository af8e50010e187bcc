"""What the trace says about its run, and the file it comes in."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tracelens
from tests.capture.recorded import load
from tests.said import Listener
from tracelens.capture.backward import NodeRange
from tracelens.capture.files import TraceFileError, finish, target_path
from tracelens.capture.metadata import describe, infer_dimensions
from tracelens.capture.modules import Batch, find_models
from tracelens.capture.options import AFTER, Options, from_environment, parse_ranks
from tracelens.capture.system import KEEP, StepTimer, precision, versions
from tracelens.errors import InputError
from tracelens.trace.metadata import unprofiled_times

pytestmark = pytest.mark.filterwarnings("default")


class Config:
    n_embd, n_head, n_layer, vocab_size, block_size = 24, 3, 2, 50, 16


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.wte = nn.Embedding(50, 24)
        self.lm_head = nn.Linear(24, 50, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.lm_head(self.wte(ids))  # type: ignore[no-any-return]


def test_module_tree_with_shapes_types_and_ties() -> None:
    model = Model().to(torch.bfloat16)
    model.lm_head.weight.requires_grad = False
    found = describe(find_models([model], {id(p) for p in model.parameters()}), Batch())
    json.dumps(found)  # JSON values only
    (ours,) = found["models"]
    assert (ours["class"], ours["trained"], ours["parameters"]) == ("Model", True, 1200)
    assert ours["modules"] == [
        {"name": "Model", "class": "Model"},
        {
            "name": "wte",
            "class": "Embedding",
            "parameters": {"weight": {"shape": [50, 24], "dtype": "bfloat16", "trained": False}},
        },
        {
            "name": "lm_head",
            "class": "Linear",
            "parameters": {"weight": {"shape": [50, 24], "dtype": "bfloat16", "trained": False}},
        },
    ]
    assert ours["tied"] == [["wte.weight", "lm_head.weight"]]


def test_dimensions_state_their_source() -> None:
    batch = [{"module": "Model", "argument": "0", "shape": [2, 16], "dtype": "int64"}]
    assert infer_dimensions(Model(), batch) == {
        "hidden": {"value": 24, "source": "config.n_embd"},
        "heads": {"value": 3, "source": "config.n_head"},
        "layers": {"value": 2, "source": "config.n_layer"},
        "vocab": {"value": 50, "source": "config.vocab_size"},
        "context": {"value": 16, "source": "config.block_size"},
        "micro_batch": {"value": 2, "source": "argument 0 of Model"},
        "sequence": {"value": 16, "source": "argument 0 of Model"},
        "head_dim": {"value": 8, "source": "hidden / heads"},
    }
    assert infer_dimensions(nn.Linear(3, 4), []) == {}  # nothing is guessed


def test_batch_shapes_are_those_of_the_first_call(tmp_path: Path) -> None:
    model = Model()
    with tracelens.capture(model, out=tmp_path, wait=1, warmup=0, active=1) as capture:
        for size in (2, 3, 4):
            model(torch.randint(0, 50, (size, 8)), mask=torch.ones(size, 8)).sum().backward()
            capture.step()
    assert load(tmp_path / "rank0.json.gz")["tracelens"]["batch"] == [
        {"module": "Model", "argument": "0", "shape": [3, 8], "dtype": "int64"},
        {"module": "Model", "argument": "mask", "shape": [3, 8], "dtype": "float32"},
    ]


def test_versions_and_flags() -> None:
    assert versions()["torch"] == torch.__version__
    assert precision()["float32_matmul"] == torch.get_float32_matmul_precision()


def test_a_part_that_fails_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracelens.capture import metadata

    def fail() -> None:
        raise OSError("no driver")

    monkeypatch.setattr(metadata, "versions", fail)
    found = describe([], Batch())
    assert found["versions"] == {"error": "OSError: no driver"}
    assert found["parallel"]["rank"] == 0


def test_analysis_reads_the_version_and_refuses_a_trace_without_a_gpu(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    with tracelens.capture(model, out=tmp_path, wait=0, warmup=0, active=1) as capture:
        for _ in range(2):
            model(torch.randn(2, 8)).sum().backward()
            capture.step()
    trace = tracelens.load(tmp_path / "rank0.json.gz")
    assert trace.metadata["tracelens"]["torch_version"] == torch.__version__
    with pytest.raises(InputError, match="GPU"):
        tracelens.analyze(tmp_path / "rank0.json.gz")


@pytest.mark.parametrize(("wait", "before"), [(0, 0), (4, 4)])
def test_analysis_reads_the_steps_timed_without_the_profiler(
    tmp_path: Path, wait: int, before: int, said: Listener
) -> None:
    model = nn.Linear(8, 8)
    with tracelens.capture(model, out=tmp_path, wait=wait, warmup=0, active=1) as capture:
        for _ in range(wait + 1 + 1 + AFTER):
            model(torch.randn(2, 8)).sum().backward()
            capture.step()
    found = unprofiled_times(tracelens.load(tmp_path / "rank0.json.gz").metadata)
    assert (len(found.before_ms), len(found.after_ms), found.clock) == (before, AFTER, "perf_counter")
    assert (found.why is None) is bool(before)
    said(found.why)


def raw(folder: Path, **more: Any) -> Path:
    path = folder / "raw.json"
    events = [{"ph": "X", "name": "traceName host_name", "i": i} for i in range(more.pop("events", 3))]
    text = json.dumps({"schemaVersion": 1, "host_name": 'a"b', "traceEvents": events, **more}, indent=1)
    path.write_text(text)
    return path


@pytest.mark.parametrize("events", [0, 3, 2000, 100_000])
def test_finish_keeps_every_event(tmp_path: Path, events: int) -> None:
    path = raw(tmp_path, events=events, traceName="/home/me/[secret]/raw.json")
    size, earlier = finish(path, tmp_path / "rank0.json.gz", {"schema_version": 1})
    assert size == (tmp_path / "rank0.json.gz").stat().st_size
    found = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))
    assert len(found["traceEvents"]) == events
    assert found["tracelens"] == {"schema_version": 1}
    assert found["traceName"] == "rank0.json.gz"
    assert "host_name" not in found
    assert [entry.name for entry in tmp_path.iterdir()] == ["rank0.json.gz"]
    assert earlier is None


def test_the_traces_of_earlier_runs_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "rank0.json.gz"
    kept = [finish(raw(tmp_path, events=events), target, {})[1] for events in (1, 2, 3)]
    assert kept == [None, tmp_path / "earlier-1" / target.name, tmp_path / "earlier-2" / target.name]
    assert [len(load(path)["traceEvents"]) for path in (target, *kept[1:]) if path] == [3, 1, 2]


@pytest.mark.parametrize("events", [1, 3, 2000, 100_000])
def test_more_ranges_stand_behind_the_profilers_events(tmp_path: Path, events: int) -> None:
    ranges = [NodeRange('a."b"', 7, 5_000_001_234 + at, 40) for at in range(5000)]
    path = raw(tmp_path, events=events, traceName="/home/me/raw.json")
    text = path.read_text()
    path.write_text(text.replace("{", '{ "baseTimeNanoseconds": 5000000000,', 1))
    finish(path, tmp_path / "rank0.json.gz", {}, ranges)
    found = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))
    assert len(found["traceEvents"]) == events + 5000
    first = found["traceEvents"][events]
    assert (first["name"], first["tid"], first["ts"], first["dur"]) == ('a."b"', 7, 1.234, 0.04)
    assert "backward_error" not in found["tracelens"]


def test_a_file_that_ends_in_another_way_is_kept_and_says_what_it_lacks(tmp_path: Path) -> None:
    finish(raw(tmp_path), tmp_path / "rank0.json.gz", {"schema_version": 1}, [NodeRange("a", 1, 2, 3)])
    found = json.loads(gzip.decompress((tmp_path / "rank0.json.gz").read_bytes()))
    assert len(found["traceEvents"]) == 3
    assert "unknown way" in found["tracelens"]["backward_error"]


def test_a_cut_off_file_is_no_trace(tmp_path: Path) -> None:
    path = raw(tmp_path)
    path.write_text(path.read_text()[:-9])
    with pytest.raises(TraceFileError, match="cut off"):
        finish(path, tmp_path / "rank0.json.gz", {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_this_run_is_never_replaced(tmp_path: Path) -> None:
    old = tmp_path / "rank3.json.gz"
    old.write_text("")
    assert target_path(tmp_path, 3, old.stat().st_mtime + 1) == old
    assert target_path(tmp_path, 3, old.stat().st_mtime - 1) != old


def test_options_travel_through_the_environment() -> None:
    options = Options(out="x", wait=3, ranks=(0, 2), root=7)
    assert from_environment({"TRACELENS_CAPTURE": options.dumps()}) == options
    assert from_environment({}) is None
    assert parse_ranks("0,4-6") == (0, 4, 5, 6)
    for wrong in ("", "x", "3-1", "0,,1", "-1"):
        with pytest.raises(ValueError, match="ranks"):
            parse_ranks(wrong)
    with pytest.raises(ValueError, match="active"):
        Options(out="x", active=0)


def test_the_clock_keeps_the_last_steps() -> None:
    clock = StepTimer()
    assert clock.read_ms() == []
    for _ in range(KEEP * 3):
        clock.mark()
    assert len(clock.read_ms()) == KEEP
    assert all(ms >= 0 for ms in clock.read_ms())
