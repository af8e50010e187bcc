"""What a change does besides saving time: every hyper-parameter's words, and figures that can be redone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_rows import facts as bare_facts
from tests.advice.advice_rows import gemm, model
from tests.advice.advice_steps import Shape, dims_of, facts_of, model_of, rows_of, spread
from tests.said import Listener
from tracelens.config.configuration import Layout
from tracelens.results import CommunicationRow, Effects
from tracelens.rules import StepFacts
from tracelens.rules.advise import advise
from tracelens.rules.engine.amounts import sizes_of
from tracelens.rules.engine.diffs import config_diffs
from tracelens.rules.engine.effects import STATES, effects_of
from tracelens.step.activations import activation_bytes

SHAPE = Shape(2560, 32, 10240, 50257, layers=4)


@pytest.fixture(scope="module")
def facts() -> StepFacts:
    return facts_of(SHAPE)


def of(facts: StepFacts, change: dict[str, Any], effort: str = "config", **more: Any) -> Effects:
    return effects_of(facts, change, effort=effort, **more)


def test_vocabulary_is_padded_and_every_figure_can_be_redone(facts: StepFacts, said: Listener) -> None:
    found = of(facts, {"vocab_size": [50257, 50304]})
    assert found.parameters.delta == 47 * 2560
    assert found.parameters.frac == pytest.approx(47 * 2560 / (4 * (4 + 8) * 2560**2 + 50257 * 2560))
    assert found.memory.states == 16 * 47 * 2560
    assert found.memory.activations == 2 * 8192 * 3 * 47
    assert found.memory.delta == 16 * 47 * 2560 + 2 * 8192 * 3 * 47
    tokens = SHAPE.b * SHAPE.s
    assert found.flops.delta == pytest.approx(3 * 2 * tokens * 47 * 2560, rel=1e-6)
    assert found.checkpoint == "pads"
    said(found.parameters.how, found.memory.how, found.checkpoint_how, found.tokenizer, found.undo)


def test_other_heads_of_the_same_width_add_nothing_and_are_another_model(
    facts: StepFacts, said: Listener
) -> None:
    found = of(facts, {"head_dim": [80, 128], "heads": [32, 20]}, "retrain")
    assert (found.parameters.delta, found.flops.delta, found.memory.states) == (0, 0, 0)
    assert found.checkpoint == "scratch"
    said(found.checkpoint_how, found.undo, found.tokenizer, found.needs)


def test_a_wider_mlp_pads_and_a_narrower_one_starts_again(facts: StepFacts, said: Listener) -> None:
    wider = of(facts, {"ffn": [10240, 10304]}, "retrain")
    assert wider.parameters.delta == 4 * 2 * 2560 * 64
    assert wider.memory.states == 16 * 4 * 2 * 2560 * 64
    narrower = of(facts, {"ffn": [10240, 10176]}, "retrain")
    assert (wider.checkpoint, narrower.checkpoint) == ("pads", "scratch")
    said(wider.needs, narrower.needs)


def test_key_value_heads_convert_in_both_directions_by_other_means(facts: StepFacts, said: Listener) -> None:
    fewer = of(facts, {"kv_heads": [32, 8]}, "retrain")
    assert fewer.parameters.delta == -4 * 2 * 24 * 80 * 2560
    more = of(facts_of(replace(SHAPE, kv=8)), {"kv_heads": [8, 32]}, "retrain")
    assert (fewer.checkpoint, more.checkpoint) == ("converts", "converts")
    said(fewer.checkpoint_how, more.checkpoint_how)


def test_settings_of_the_run_leave_the_weights_alone(facts: StepFacts, said: Listener) -> None:
    twice = of(facts, {"micro_batch": [4, 8]})
    assert twice.parameters.delta == 0 and twice.checkpoint == "loads"
    assert twice.flops.frac == pytest.approx(1.0)
    config = facts.step.now if facts.step else None
    assert config is not None and twice.memory.states == 0
    kept = activation_bytes(config, Layout())
    assert twice.memory.activations == pytest.approx(kept)
    said(of(facts, {"sequence": [2048, 4096]}).checkpoint_how)


def test_ranks_hold_other_slices_of_the_same_weights(facts: StepFacts, said: Listener) -> None:
    split = of(facts, {"tensor_parallel": [1, 2]})
    in_layers = 4 * (4 + 8) * 2560**2  # the logits stay whole on each rank unless a framework splits them
    assert (split.parameters.delta, split.checkpoint) == (0, "reshards")
    assert split.memory.states == -8 * in_layers
    assert split.flops.delta is None
    said(split.memory.how, split.flops.how)
    stages = of(facts, {"pipeline_parallel": [1, 2]})
    assert (stages.checkpoint, stages.memory.delta, stages.memory.states) == ("reshards", None, None)


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({"dtype": ["fp32", "bf16"]}, "loads"),
        ({"dtype": ["bf16", "fp8"]}, "loads"),
        ({"allow_tf32": ["False", "True"]}, "loads"),
        ({"fused_qkv": ["3 products", "1 product"]}, "converts"),
        ({"contiguous": ["copy", "view"]}, "loads"),
        ({}, "loads"),
    ],
)
def test_changes_of_no_size_say_so(
    facts: StepFacts, change: dict[str, Any], state: str, said: Listener
) -> None:
    found = of(facts, change, "code")
    assert found.checkpoint == state
    said(found.checkpoint_how, found.tokenizer, found.undo)
    assert (found.parameters.delta, found.flops.delta, found.memory.states) == (0, 0, 0)
    assert found.memory.delta is None  # what code allocates beside is never made up


def test_what_is_not_known_is_not_made_up(facts: StepFacts, said: Listener) -> None:
    nameless = of(facts, {"dimension": [12, 16]}, "code")
    new = of(facts, {"window": [1, 2]}, "retrain")
    for found in (nameless, new):
        assert found.checkpoint == "unknown"
        said(found.checkpoint_how)
        assert found.parameters.delta is None and found.memory.states is None
    assert new.flops.delta is None
    few = bare_facts(gemm(1, 64, 64, 64), dims=model(vocab=100))
    lacking = of(few, {"vocab_size": [100, 128]})
    assert lacking.parameters.delta is None
    assert lacking.checkpoint == "pads"
    said(lacking.parameters.how)


def test_the_whole_model_counts_where_ranks_share_it() -> None:
    shared = facts_of(replace(SHAPE, t=2))
    found = of(shared, {"ffn": [5120, 5184]}, "retrain")  # what one rank holds
    assert found.parameters.delta == 4 * 2 * 2560 * 128
    assert found.memory.states == 16 * found.parameters.delta / 2
    assert of(shared, {"ffn": [5120, 5184]}, "retrain", parameter_delta=1).parameters == found.parameters
    assert of(shared, {"ffn": [10240, 10368]}, "retrain").parameters == found.parameters


def test_a_gpu_holds_one_stage_of_the_layers(said: Listener) -> None:
    """Eight layers in two stages of four: the memory of a GPU is that of four layers alone."""
    staged = facts_of(SHAPE, dims=spread(dims_of(SHAPE), pipeline_parallel=2))
    alone = facts_of(SHAPE, dims=spread(dims_of(SHAPE), pipeline_parallel=1))
    change = {"ffn": [10240, 10304]}
    two, one = of(staged, change, "retrain"), of(alone, change, "retrain")
    assert two.parameters.delta == 2 * (one.parameters.delta or 0) == 8 * 2 * 2560 * 64
    assert two.memory.states == one.memory.states == 16 * 4 * 2 * 2560 * 64
    assert two.memory.activations == one.memory.activations
    said(two.memory.how, one.memory.how)


def test_a_gpu_holds_its_part_of_the_experts(facts: StepFacts) -> None:
    assert facts.step is not None
    now = replace(facts.step.now, experts=8, expert_parallel=4)
    found = of(replace(facts, step=replace(facts.step, now=now)), {"ffn": [10240, 10304]}, "retrain")
    assert found.parameters.delta == 8 * 4 * 2 * 2560 * 64
    assert found.memory.states == 16 * 2 * 4 * 2 * 2560 * 64


@pytest.mark.parametrize(("split", "parameters"), [(True, 94 * 2560), (False, 47 * 2560), (None, 47 * 2560)])
def test_the_words_of_a_vocabulary_are_of_the_whole_one(
    split: bool | None, parameters: int, said: Listener
) -> None:
    """The trace shows what one of two ranks computes; the checkpoint has what both hold."""
    facts = facts_of(replace(SHAPE, t=2))
    assert facts.step is not None
    facts = replace(facts, step=replace(facts.step, now=replace(facts.step.now, vocab_split=split)))
    found = of(facts, {"vocab_size": [50257, 50304]})
    assert found.parameters.delta == parameters
    assert found.memory.states == 16 * 47 * 2560  # one rank's rows, however the ranks share them
    assert found.memory.activations == 2 * 8192 * 3 * 47
    said(found.checkpoint_how, found.undo, found.parameters.how)


def test_states_that_ranks_share_are_said_to_be_less(facts: StepFacts, said: Listener) -> None:
    sharded = CommunicationRow(
        "all_gather", "fsdp", 8, "FSDP parameter gather", "op", "", "forward", "bf16", 1, 1.0, 1.0, 1.0, 1.0,
        0.0, 1.0, 1.0, 0.0, None, None,
    )  # fmt: skip
    found = of(replace(facts, communication=[sharded]), {"ffn": [10240, 10304]}, "retrain")
    said(found.memory.how)


def test_inference_keeps_neither_gradients_nor_activations() -> None:
    rows = rows_of(SHAPE, train=False)
    facts = replace(facts_of(SHAPE), gemms=rows, step=model_of(SHAPE, rows=rows))
    found = of(facts, {"ffn": [10240, 10304]}, "retrain")
    assert found.memory.states == 2 * (found.parameters.delta or 0)
    assert found.memory.activations == 0


def test_recomputed_activations_are_not_guessed(facts: StepFacts, said: Listener) -> None:
    rows = [*facts.gemms, replace(facts.gemms[0], id="g99", phase="recompute")]
    found = of(replace(facts, gemms=rows), {"micro_batch": [4, 8]})
    assert found.memory.activations is None and found.memory.delta is None
    said(found.memory.how)


def test_a_rule_overrides_what_it_knows_better(facts: StepFacts) -> None:
    found = of(facts, {}, "code", override={"undo": "Take the call out."})
    assert found.undo == "Take the call out." and found.checkpoint == "loads"


def test_a_simulation_that_stands_for_something_else_is_no_change_of_the_model(facts: StepFacts) -> None:
    split = of(facts, {"vocab_parallel": [1, 2]}, "code", simulate={"vocab": 25152}, parameter_delta=0)
    assert (split.parameters.delta, split.checkpoint, split.flops.delta) == (0, "reshards", None)
    assert config_diffs(sizes_of(facts, {"vocab_parallel": [1, 2]}, {"vocab": 25152})) == []
    stage = of(facts, {"last_stage_layers": [8, 6]})
    assert (stage.checkpoint, stage.memory.states) == ("reshards", None)


def test_every_finding_has_its_effects(facts: StepFacts) -> None:
    findings = advise(facts).findings
    assert findings
    for one in findings:
        assert one.effects is not None and one.effects.checkpoint in STATES
        texts = (one.effects.checkpoint_how, one.effects.tokenizer, one.effects.undo, one.effects.needs)
        assert all(text and "{" not in text for text in texts)
        if one.parameter_delta is not None:
            assert one.effects.parameters.delta == one.parameter_delta
