"""What must not be found: parts of a transformer, experts, recomputation and layers where there are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.attribution.test_structure_real_traces import without_names
from tests.trace.tools import need_shared, read
from tests.zoo import ZooOptions, record
from tracelens.analysis import analyze_trace
from tracelens.attribution import Attribution, attribute
from tracelens.render.facts import model_line
from tracelens.results import Report
from tracelens.trace import link, read_trace
from tracelens.words import COMPONENTS, PHASES

PARTS = ("attention.", "mlp.", "moe.", "logits", "residual")


def seen(result: Attribution) -> set[str]:
    return {COMPONENTS[code] for code in np.unique(result.component)}


def phases(result: Attribution) -> set[str]:
    return {PHASES[code] for code in np.unique(result.phase)}


def recorded(folder: Path, name: str, **options: Any) -> tuple[Attribution, Report]:
    trace = read(folder, record(name, ZooOptions(**options)).text())
    return attribute(trace, link(trace)), analyze_trace(trace, shape_search=False).report


def nothing_is_invented(result: Attribution, report: Report) -> None:
    assert not report.model.transformer
    assert {name for name in seen(result) if name.startswith(PARTS)} == set()
    assert "recompute" not in phases(result)
    assert (result.layer < 0).all()
    for name in ("layers", "heads", "vocab", "experts", "classes"):
        assert getattr(report.model, name).value is None


@pytest.mark.parametrize("names", ["none", "frames", "ranges"])
@pytest.mark.parametrize("name", ["resnet", "lstm", "dlrm", "mlp", "hooked"])
def test_no_transformer(tmp_path: Path, name: str, names: Literal["none", "frames", "ranges"]) -> None:
    nothing_is_invented(*recorded(tmp_path, name, names=names))


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", ["d6_", "d9_"])
def test_no_transformer_in_a_real_trace(name: str, hidden: bool) -> None:
    trace = read_trace(need_shared(name))
    trace = without_names(trace) if hidden else trace
    nothing_is_invented(attribute(trace, link(trace)), analyze_trace(trace, shape_search=False).report)


def test_a_mask_decoder_has_no_experts_no_loss_and_the_layers_of_one_pass() -> None:
    """d14: a decoder of three layers runs twice, behind an encoder in a CUDA graph, of unknown shapes."""
    trace = read_trace(need_shared("d14_"))
    result = attribute(trace, link(trace))
    assert not {name for name in seen(result) if name.startswith("moe.")} | (
        seen(result) & {"loss", "logits"}
    )
    assert phases(result) == {"forward"}
    assert set(np.unique(result.layer).tolist()) <= {-1, 0, 1, 2}
    report = analyze_trace(trace).report
    for name in ("hidden", "heads", "head_dim", "layers", "sequence", "micro_batch", "experts"):
        assert getattr(report.model, name).value is None
    assert report.shape_search is None or report.shape_search.front == []


@pytest.mark.parametrize("names", ["none", "frames"])
def test_a_second_batch_is_not_more_layers(tmp_path: Path, names: Literal["none", "frames"]) -> None:
    result, report = recorded(tmp_path, "gpt2_twice", names=names)
    assert report.model.layers.value == 3
    assert set(np.unique(result.layer).tolist()) == {-1, 0, 1, 2}
    core = result.component == COMPONENTS.index("attention.core")
    forward = core & (result.phase == PHASES.index("forward"))
    assert [int((forward & (result.layer == layer)).sum()) for layer in range(3)] == [4, 4, 4]  # in two steps


@pytest.mark.parametrize("name", ["stack", "stack_twice"])
def test_a_bare_stack_has_the_layers_that_its_gradients_prove(tmp_path: Path, name: str) -> None:
    """No embedding, no head, no loss operator: each weight gets one gradient, however often it is used."""
    result, report = recorded(tmp_path, name, names="none", steps=1)
    assert report.model.layers.value == 3
    core = (result.component == COMPONENTS.index("attention.core")) & (result.layer >= 0)
    forward = core & (result.phase == PHASES.index("forward"))
    assert set(np.unique(result.layer[forward]).tolist()) == {0, 1, 2}
    again = 2 if name == "stack_twice" else 1
    assert [int((forward & (result.layer == layer)).sum()) for layer in range(3)] == [again] * 3


@pytest.mark.parametrize("name", ["stack", "stack_twice"])
def test_layers_of_a_bare_stack_without_gradients_are_unknown(tmp_path: Path, name: str) -> None:
    file = record(name, ZooOptions(names="none", steps=1)).text().replace("AccumulateGrad", "Unrecorded")
    report = analyze_trace(read(tmp_path, file), shape_search=False).report
    assert report.model.hidden.value == 768
    assert report.model.layers.value is None


@pytest.mark.parametrize("names", ["none", "frames"])
def test_a_choice_without_experts_routes_nothing(tmp_path: Path, names: Literal["none", "frames"]) -> None:
    result, report = recorded(tmp_path, "gpt2_chosen", names=names)
    assert {name for name in seen(result) if name.startswith("moe.")} == set()
    assert report.model.experts.value is None
    assert report.model.layers.value == 3


@pytest.mark.parametrize("name", ["moe", "moe_grouped"])
def test_a_mixture_keeps_all_its_parts(tmp_path: Path, name: str) -> None:
    result, report = recorded(tmp_path, name, names="none", steps=1)
    assert {"moe.router", "moe.experts", "moe.dispatch"} <= seen(result)
    assert report.model.experts.value == 8


def test_a_classifier_has_classes_and_no_vocabulary(tmp_path: Path) -> None:
    _, report = recorded(tmp_path, "vit", names="none", steps=1)
    assert report.model.vocab.value is None
    assert report.model.classes.value == 1000
    assert "1000 classes" in model_line(report)
    (check,) = [check for check in report.checks if check.rule == "TL101"]
    assert (check.state, [one.rule for one in report.findings if one.rule == "TL101"]) == (
        "not_applicable",
        [],
    )


@pytest.mark.parametrize("attention", ["flash", "math"])
def test_attention_over_time_and_space_is_no_one_sequence(
    tmp_path: Path, attention: Literal["flash", "math"]
) -> None:
    _, report = recorded(tmp_path, "axes", names="none", steps=1, attention=attention)
    model = report.model
    assert (model.hidden.value, model.heads.value, model.head_dim.value) == (768, 12, 64)
    assert (model.sequence.value, model.micro_batch.value) == (None, None)
    assert "16 x 196" in model.sequence.source and "392 x 8" in model.sequence.source


def test_a_rank_of_two_holds_half_the_heads(tmp_path: Path) -> None:
    _, report = recorded(tmp_path, "gpt2", names="none", steps=1, tensor_parallel=2)
    model = report.model
    assert (model.heads.value, model.heads.per_rank, model.ffn.per_rank) == (6, True, True)
    assert not model.hidden.per_rank
    assert "12 heads (6 per rank)" in model_line(report)
