"""Models spread over processes: every GEMM has its module, and the training is the same bit for bit."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.recorded import HERE, SCRIPTS, capture, gemm_owners, load, run

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this PyTorch has no gloo",
)
SCRIPT = SCRIPTS / "parallel.py"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
#: The arguments of a training, and of the same one without checkpointing.
TRAININGS = {
    "fsdp2 --accumulate 2 --mixed": None,
    "ddp-unused --accumulate 3": None,
    "fsdp2 --checkpoint wrapper": "fsdp2",
    "fsdp2 --checkpoint reentrant": "fsdp2",
    "fsdp2": None,
}
Owners = Counter[tuple[str, str, str]]


class Truth:
    """Of every training and rank: its GEMMs of two steps, and what it prints. One process for all."""

    def __init__(self, folder: Path):
        done = run(HERE / "ranks.py", folder / "truth", "2", SCRIPT, *TRAININGS, cwd=folder)
        assert done.returncode == 0, done.stderr
        self._folder = folder
        printed = losses(done.stdout)
        self.losses = {words: printed[2 * at : 2 * at + 2] for at, words in enumerate(TRAININGS)}

    def owners(self, words: str, rank: int) -> Owners:
        path = self._folder / f"truth-{list(TRAININGS).index(words)}-{rank}.json"
        steps = json.loads(path.read_text())
        return Counter(map(tuple, steps[5] + steps[6]))


def losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("losses")]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    return Truth(tmp_path_factory.mktemp("truth"))


def recorded(folder: Path, words: str, truth: Truth) -> list[dict[str, Any]]:
    """The traces of both ranks; the losses are those of the uncaptured run."""
    done = capture(*TORCHRUN, SCRIPT, *words.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert sorted(losses(done.stdout)) == sorted(truth.losses[words])
    assert sorted(path.name for path in (folder / "traces").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    return [load(folder / "traces" / f"rank{rank}.json.gz") for rank in range(2)]


@pytest.mark.parametrize("words", [words for words, plain in TRAININGS.items() if plain is None][:2])
def test_every_gemm_has_its_module(tmp_path: Path, truth: Truth, words: str) -> None:
    for rank, trace in enumerate(recorded(tmp_path, words, truth)):
        assert gemm_owners(trace) == truth.owners(words, rank)
        meta = trace["tracelens"]
        assert meta["window"]["backward_passes"] == [int(words.split()[2])] * 2
        assert (meta["parallel"]["rank"], meta["parallel"]["world_size"]) == (rank, 2)
        if words.startswith("fsdp2"):
            assert meta["parallel"]["wrappers"] == ["fully_shard"]
            assert meta["parallel"]["degrees"] == {"shard": 2}
            modules = {module["name"]: module for module in meta["models"][0]["modules"]}
            assert (modules["Stack"]["class"], modules["blocks.1"]["class"]) == ("Stack", "Block")
            assert modules["head"]["parameters"]["weight"]["shape"] == [4, 16]  # of all shards
        else:
            assert meta["parallel"]["degrees"] == {"data": 2}
            assert any(owner.endswith(".other") for _, owner, _ in gemm_owners(trace))


@pytest.mark.parametrize("words", [words for words, plain in TRAININGS.items() if plain is not None])
def test_sharded_and_checkpointed(tmp_path: Path, truth: Truth, words: str) -> None:
    for rank, trace in enumerate(recorded(tmp_path, words, truth)):
        once = truth.owners(str(TRAININGS[words]), rank)
        again: Owners = Counter(
            {
                (op, owner, "backward"): count
                for (op, owner, where), count in once.items()
                if where == "forward" and owner.startswith("blocks.")
            }
        )
        owners = gemm_owners(trace)
        assert once < owners <= once + again
        # a recomputation may end when it has all that was saved, before the last product of a block
        assert {owner.split(".")[-1] for _, owner, _ in once + again - owners} <= {"down"}
        meta = trace["tracelens"]
        assert {"blocks.0.up", "blocks.1.up"} <= set(meta["window"]["recomputed"])
        checkpoints = meta["models"][0]["checkpointing"]
        assert checkpoints == (["blocks.0", "blocks.1"] if "wrapper" in words else [])


def test_a_collective_whose_thread_is_late_has_ended_when_the_recording_ends(tmp_path: Path) -> None:
    """Its thread would write into what the profiler has freed."""
    done = capture(*TORCHRUN, SCRIPTS / "late.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = load(tmp_path / "traces" / "rank0.json.gz")["traceEvents"]
    reduced = [event for event in events if event.get("name") == "gloo:all_reduce"]
    assert len(reduced) == 2
    assert all(event["dur"] >= 10_000 and event["args"].get("finished", True) for event in reduced)
