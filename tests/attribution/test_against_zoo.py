"""Attribution of many kinds of transformer, named and nameless, eager and compiled, against what is true.

The steps come from tests/zoo: real PyTorch models, their real operators, autograd order and Inductor kernels,
with a truth that rests on none of what tracelens reads. Rows whose truth is a matter of taste (the sum of two
gradients, a layout copy) are not counted; a fused kernel is right when the component named is one of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.kept import kept, sources
from tests.synthetic.spec import Truth
from tests.trace.tools import read
from tests.zoo import FAMILIES, ZooOptions, record
from tests.zoo.compiled import CompiledOptions, record_compiled
from tests.zoo.recording import recipe
from tracelens.accounting.model import model_dims
from tracelens.attribution import attribute, find_calls
from tracelens.trace import link
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

STRONGER = EVIDENCE[: EVIDENCE.index("structure")]
#: (truth, found): a wider word for the same work.
COARSER = {
    ("attention.rope", "attention.other"),
    ("attention.scores", "attention.other"),
    ("attention.values", "attention.other"),
}
NAMED = [(family, names) for family in FAMILIES for names in ("frames", "ranges")]
VARIANTS: dict[str, dict[str, Any]] = {
    "checkpoint reentrant": {"checkpoint": "reentrant"},
    "checkpoint nonreentrant": {"checkpoint": "nonreentrant"},
    "checkpoint without shapes": {"checkpoint": "nonreentrant", "shapes": False},
    "reentrant without shapes": {"checkpoint": "reentrant", "shapes": False},
    "unfused attention": {"attention": "math"},
    "memory-efficient attention": {"attention": "efficient"},
    "accumulated": {"accumulate": 2, "optimizer": "foreach"},
    "tensor parallel": {"tensor_parallel": 2},
    "without shapes": {"shapes": False},
    "graph beside an eager step": {"layout": "graph"},
    "begun mid-step": {"layout": "prelaunched"},
}
#: lora: torch.compile refuses it. llama_liger: the partitioner computes the whole forward again inside the
#: backward, and no forward is left to read. moe: as moe_grouped, but minutes to compile.
COMPILED = [family for family in FAMILIES if family not in ("lora", "llama_liger", "moe")]
COMPILED_VARIANTS: dict[str, dict[str, Any]] = {
    "gradients of weights put off": {"defer_wgrad": 4},
    "padded": {"pad_mm": True},
    "Triton products": {"template": 2},
    "checkpoint": {"checkpoint": "nonreentrant"},
    "graph beside a launched step": {"layout": "graph"},
    "begun mid-step": {"layout": "prelaunched"},
}


@dataclass(frozen=True)
class Score:
    """Nanoseconds of GPU time whose truth is certain."""

    right: int
    covered: int
    total: int
    wrong: dict[tuple[str, str, str], float]  # (truth, found, evidence) -> share; unattributed is not wrong
    dims: dict[str, tuple[int | None, int | None]]  # what differs: (true, found)

    @property
    def share(self) -> float:
        return self.right / self.total


def score_of(folder: Path, zoo: Any) -> Score:
    trace = read(folder, zoo.text())
    links = link(trace)
    result = attribute(trace, links)
    rows: dict[int, list[Truth]] = {}
    for truth in zoo.truth:  # by start time; the kernels of one graph launch share its correlation
        rows.setdefault(truth.correlation, []).append(truth)
    right = covered = total = 0
    wrong: Counter[tuple[str, str, str]] = Counter()
    for row in np.argsort(trace.kernels.ts_ns, kind="stable").tolist():
        truth = rows[int(trace.kernels.correlation[row])].pop(0)
        if not truth.strict:
            continue
        found = COMPONENTS[result.component[row]]
        parts = {truth.component, *getattr(truth, "components", ())}
        fits = found in parts or (truth.component, found) in COARSER
        total += truth.duration_ns
        right += truth.duration_ns * fits
        covered += truth.duration_ns * (found != "unattributed")
        if not fits and found != "unattributed":
            wrong[truth.component, found, EVIDENCE[result.evidence[row]]] += truth.duration_ns
    model = model_dims(result, find_calls(trace, links, result))
    dims = {
        name: (true, known)
        for name in ("hidden", "heads", "head_dim", "ffn", "vocab", "sequence", "micro_batch", "experts")
        if (true := getattr(zoo.dims, name)) != (known := getattr(model, name).value)
    }
    return Score(right, covered, total, {key: ns / total for key, ns in wrong.items()}, dims)


@cache
def eager(folder: Path, family: str, **options: Any) -> Score:
    zoo = record(family, ZooOptions(**options))
    return kept("eager", (family, options), made_of(), lambda: score_of(folder, zoo))


@cache
def compiled(folder: Path, family: str, **options: Any) -> Score:
    zoo = record_compiled(family, CompiledOptions(**options))
    return kept("score", (family, options), made_of(), lambda: score_of(folder, zoo))


@cache
def made_of() -> str:
    """What a score follows from: the recording, what reads it, and how it is judged here."""
    return f"{recipe()} {sources('tracelens', 'tests/attribution/test_against_zoo.py')}"


def lean(folder: Path) -> list[Score]:
    """Recordings that hold little: a step inside a CUDA graph with none beside it; compiled, no shapes."""
    graph: dict[str, Any] = {"layout": "graph", "keep_eager": False}
    return [
        *(eager(folder, family, names="none", **graph) for family in ("gpt2", "llama")),
        *(compiled(folder, family, **graph) for family in ("gpt2", "llama")),
        *(compiled(folder, family, shapes=False) for family in ("gpt2", "llama")),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("zoo")


def nothing_wrong_is_strong(score: Score) -> None:
    assert {key: share for key, share in score.wrong.items() if key[2] in STRONGER} == {}


@pytest.mark.parametrize(("family", "names"), NAMED)
def test_with_module_names(folder: Path, family: str, names: str) -> None:
    score = eager(folder, family, names=names)
    nothing_wrong_is_strong(score)
    assert score.share > 0.99, score.wrong


def test_with_module_names_altogether(folder: Path) -> None:
    scores = [eager(folder, family, names=names) for family, names in NAMED]
    assert sum(score.right for score in scores) > 0.995 * sum(score.total for score in scores)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_any_name(folder: Path, family: str) -> None:
    score = eager(folder, family, names="none")
    nothing_wrong_is_strong(score)
    assert score.share > 0.98, score.wrong


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_recordings_without_any_name(folder: Path, family: str, variant: str) -> None:
    score = eager(folder, family, names="none", **VARIANTS[variant])
    nothing_wrong_is_strong(score)
    assert score.share > 0.98, score.wrong


@pytest.mark.parametrize("family", COMPILED)
def test_compiled(folder: Path, family: str) -> None:
    score = compiled(folder, family)
    nothing_wrong_is_strong(score)
    assert score.share > (0.95 if family == "t5" else 0.99), score.wrong


@pytest.mark.parametrize("variant", COMPILED_VARIANTS)
def test_compiled_otherwise(folder: Path, variant: str) -> None:
    score = compiled(folder, "gpt2", **COMPILED_VARIANTS[variant])
    nothing_wrong_is_strong(score)
    assert score.share > 0.97, score.wrong


@pytest.mark.parametrize("checkpoint", ["reentrant", "nonreentrant"])
@pytest.mark.parametrize("family", ["t5", "moe_grouped"])
def test_checkpoints_without_shapes(folder: Path, family: str, checkpoint: str) -> None:
    """A cast behind the softmax is of it; rows that go back are dispatch before a shared expert, too."""
    score = eager(folder, family, names="none", shapes=False, checkpoint=checkpoint)
    assert score.share > 0.99, score.wrong


@pytest.mark.parametrize(("family", "least"), [("bert", 0.93), ("llama", 0.96)])
def test_compiled_steps_without_shapes(folder: Path, family: str, least: float) -> None:
    """A head with a product of its own before it; gradients whose sum takes longer than the product."""
    zoo = record_compiled(family)
    bare = re.sub(r'"Input Dims": \[.*\],?', "", zoo.text())
    assert bare != zoo.text()
    score = score_of(folder, SimpleNamespace(text=lambda: bare, truth=zoo.truth, dims=zoo.dims))
    assert score.share > least, score.wrong
    assert sum(score.wrong.values()) < 0.005, score.wrong


def test_without_names_altogether(folder: Path) -> None:
    """Every family eager and compiled, and every other kind of recording, by GPU time."""
    scores = [
        *(eager(folder, family, names="none") for family in FAMILIES),
        *(eager(folder, "llama", names="none", **options) for options in VARIANTS.values()),
        *(compiled(folder, family) for family in COMPILED),
        *(compiled(folder, "gpt2", **options) for options in COMPILED_VARIANTS.values()),
        *lean(folder),
    ]
    assert sum(score.right for score in scores) > 0.97 * sum(score.total for score in scores)
    # and each case counts the same, whatever its size
    assert np.mean([score.share for score in scores]) > 0.97


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "neox", "falcon", "moe_grouped", "vit"])
def test_the_dimensions_of_the_model_are_found(folder: Path, family: str) -> None:
    for score in (eager(folder, family, names="none"), compiled(folder, family)):
        assert {name: pair for name, pair in score.dims.items() if pair[0] is not None} == {}


@pytest.mark.parametrize("checkpoint", ["reentrant", "nonreentrant"])
def test_what_runs_forward_again_is_recompute(
    folder: Path, checkpoint: Literal["reentrant", "nonreentrant"]
) -> None:
    """Products of a checkpointed layer, run eagerly and inside a compiled backward."""
    zoos = (
        record("llama", ZooOptions(names="none", checkpoint=checkpoint, steps=1)),
        record_compiled("llama", CompiledOptions(checkpoint=checkpoint, steps=1)),
    )
    for zoo in zoos:
        trace = read(folder, zoo.text())
        result = attribute(trace, link(trace))
        truth = {row.correlation: row for row in zoo.truth}
        phases = Counter(
            (truth[number].phase, PHASES[phase])
            for number, phase in zip(trace.kernels.correlation.tolist(), result.phase.tolist(), strict=True)
            if truth[number].role == "forward" and truth[number].flops
        )
        assert set(phases) == {("forward", "forward"), ("recompute", "recompute")}


def test_a_training_step_wholly_inside_a_graph(folder: Path) -> None:
    """The forward by order, gradients by the layouts that kernels' names state; the rest stays open."""
    for score in lean(folder):
        nothing_wrong_is_strong(score)
        assert sum(score.wrong.values()) < 0.01
        assert score.share > 0.6


def test_gpu_events_alone_are_not_made_up(folder: Path) -> None:
    score = eager(folder, "llama", names="none", layout="gpu_only")
    nothing_wrong_is_strong(score)
    assert sum(score.wrong.values()) < 0.01
    assert score.covered < 0.5 * score.total
