"""A change in the names of the usual frameworks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_steps import Shape, facts_of
from tests.said import Listener
from tracelens.config import read_config
from tracelens.results import ConfigDiff
from tracelens.rules.advise import advise
from tracelens.rules.engine.amounts import sizes_of
from tracelens.rules.engine.diffs import config_diffs

FACTS = facts_of(Shape(2560, 32, 10240, 50257, layers=2))


def of(change: dict[str, Any], shape: Shape | None = None) -> dict[str, ConfigDiff]:
    facts = FACTS if shape is None else facts_of(shape)
    return {one.framework: one for one in config_diffs(sizes_of(facts, change))}


def test_vocabulary_in_every_framework() -> None:
    found = of({"vocab_size": [50257, 50304]})
    assert found["Hugging Face config.json"].lines == ['-   "vocab_size": 50257,', '+   "vocab_size": 50304,']
    assert found["Megatron-LM arguments"].lines == ["+ --make-vocab-size-divisible-by 128"]
    assert found["nanoGPT"].lines == ["- vocab_size = 50257", "+ vocab_size = 50304"]


def test_a_vocabulary_that_megatron_cannot_pad_to_is_said(said: Listener) -> None:
    found = of({"vocab_size": [50257, 50999]})["Megatron-LM arguments"]
    assert found.lines == []
    said(found.note)


def test_head_dim_is_left_out_where_it_follows_from_heads(said: Listener) -> None:
    found = of({"heads": [32, 20], "head_dim": [80, 128]})
    hugging = found["Hugging Face config.json"]
    assert hugging.lines == ['-   "num_attention_heads": 32,', '+   "num_attention_heads": 20,']
    said(hugging.note)
    assert found["Megatron-LM arguments"].lines == [
        "- --num-attention-heads 32",
        "+ --num-attention-heads 20",
    ]
    assert found["nanoGPT"].lines == ["- n_head = 32", "+ n_head = 20"]


def test_heads_of_their_own_size_name_it(said: Listener) -> None:
    found = of({"head_dim": [64, 128]}, Shape(2560, 32, 10240, d=64, layers=2))
    assert found["Megatron-LM arguments"].lines == ["- --kv-channels 64", "+ --kv-channels 128"]
    assert '+   "head_dim": 128,' in found["Hugging Face config.json"].lines
    said(found["nanoGPT"].note)


def test_what_a_framework_has_no_setting_for_is_said(said: Listener) -> None:
    found = of({"ffn": [10240, 10304]})
    assert found["nanoGPT"].lines == []
    said(found["nanoGPT"].note)
    assert found["Megatron-LM arguments"].lines == ["- --ffn-hidden-size 10240", "+ --ffn-hidden-size 10304"]


def test_a_micro_batch_is_no_size_of_the_model() -> None:
    found = of({"micro_batch_size": [4, 8]})
    assert "Hugging Face config.json" not in found
    assert found["Hugging Face TrainingArguments"].lines[1] == "+    per_device_train_batch_size=8,"
    assert found["nanoGPT"].lines == ["- batch_size = 4", "+ batch_size = 8"]


def test_lines_are_of_the_whole_model_where_ranks_share_it() -> None:
    found = of({"ffn": [5120, 5184]}, Shape(2560, 32, 10240, layers=2, t=2))
    assert found["Megatron-LM arguments"].lines == ["- --ffn-hidden-size 10240", "+ --ffn-hidden-size 10368"]


def test_a_vocabulary_that_ranks_can_share_has_no_lines(said: Listener) -> None:
    found = of({"vocab_size": [50257, 50304]}, Shape(2560, 32, 10240, 50257, layers=2, t=2))
    assert list(found) == ["Every framework"]
    assert found["Every framework"].lines == []
    said(found["Every framework"].note)


@pytest.mark.parametrize(("split", "now", "then"), [(True, 100352, 100608), (False, 50176, 50304)])
def test_a_vocabulary_whose_ranks_are_known_has_the_lines_of_the_whole(
    split: bool, now: int, then: int, said: Listener
) -> None:
    facts = facts_of(Shape(2560, 32, 10240, 50176, layers=2, t=2))
    assert facts.step is not None
    facts = replace(facts, step=replace(facts.step, now=replace(facts.step.now, vocab_split=split)))
    found = {one.framework: one for one in config_diffs(sizes_of(facts, {"vocab_size": [50176, 50304]}))}
    assert found["nanoGPT"].lines == [f"- vocab_size = {now}", f"+ vocab_size = {then}"]
    said(found["nanoGPT"].note)
    assert "Every framework" not in found


@pytest.mark.parametrize("change", [{}, {"dtype": ["fp32", "bf16"]}, {"dimension": [12, 16]}])
def test_a_change_of_no_size_has_no_lines(change: dict[str, Any]) -> None:
    assert config_diffs(sizes_of(FACTS, change)) == []


def test_lines_taken_over_are_read_back_as_the_change(tmp_path: Any) -> None:
    """The keys are those that the configuration readers know."""
    sizes = {"hidden": 2560, "heads": 32, "layers": 2, "vocab": 50257, "ffn": 10240}
    found = of({"heads": [32, 20], "head_dim": [80, 128]})
    body = '{"model_type": "llama", "hidden_size": 2560, "num_hidden_layers": 2, "vocab_size": 50257,'
    body += ' "intermediate_size": 10240,' + found["Hugging Face config.json"].lines[1][1:].rstrip(",") + "}"
    path = tmp_path / "config.json"
    path.write_text(body)
    config = read_config(path).model
    assert (config.heads, config.head_dim) == (20, 128)
    assert {name: config.get(name) for name in sizes} == {**sizes, "heads": 20}
    nano = tmp_path / "train.py"
    nano.write_text("\n".join(["n_embd = 2560", "n_layer = 2", found["nanoGPT"].lines[1][2:]]) + "\n")
    assert read_config(nano).model.heads == 20


def test_every_finding_of_a_size_has_them() -> None:
    findings = advise(FACTS).findings
    assert findings and all(one.diffs for one in findings if one.change)
    for one in findings:
        for diff in one.diffs:
            assert all(line[0] in "+-" for line in diff.lines)
            assert diff.lines or diff.note
