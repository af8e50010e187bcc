"""The engine's figures: amounts, lines to paste, effects, trials and findings, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_facts import H100, other, step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import UNKNOWN_GPU, facts, gemm, model
from tests.advice.advice_steps import Shape, facts_of
from tracelens.config.model_config import ModelConfig
from tracelens.gemm.predict import predict_gemm
from tracelens.results import Amount, Estimate, Span
from tracelens.rules.engine.amounts import memory, operations, parameters
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import (
    Answer,
    Candidate,
    absent,
    could_not_run,
    not_applicable,
    passed,
)
from tracelens.rules.engine.conclude import conclude
from tracelens.rules.engine.diffs import config_diffs
from tracelens.rules.engine.effects import effects_of
from tracelens.rules.engine.predictions import moving_ms, saved
from tracelens.rules.engine.simulated import derivation, pays, simulate, together, why_not
from tracelens.rules.engine.sizes import ChangedSizes, size_name, sizes_of
from tracelens.rules.engine.trials import in_words, likely, nearly_best, need_likely, surely, try_values
from tracelens.rules.evidence.low_precisions import (
    TypeGain,
    casts_to_fp8,
    gains,
    less_of_nvfp4,
    losses,
    types_of,
)
from tracelens.rules.evidence.precision import Precision, need_precisions, on_tensor_cores

ROW = gemm(1, 1000, 1000, 1000, time_us=100.0, calls=2.0)
NOW = ModelConfig(hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=4096, vocab=50257, layers=2,
    sequence=512,
                  micro_batch=4)  # fmt: skip


def span(low: float, mid: float, high: float) -> Span:
    return Span(low, mid, high, "model")


def changed(*names: str, now: ModelConfig = NOW, **then: Any) -> ChangedSizes:
    return ChangedSizes(now, replace(now, **then), names or tuple(then))


# weights, operations, bytes


def test_weights_count_matrices_of_the_whole_model() -> None:
    """47 more rows of 1024 in one matrix, beside what the table of parameters holds."""
    more = parameters(changed(vocab=50304), counted=None)
    before = NOW.parameters
    assert before is not None and more.delta == 47 * 1024 and more.frac == pytest.approx(47 * 1024 / before)
    assert more.how == (
        f"+48,128 weights in matrices, of {before:,} now; twice that where embedding and output matrix are"
        f" not tied"
    )
    for tied in (True, False):
        assert "twice" not in parameters(changed(vocab=50304, now=replace(NOW, tied=tied)), counted=None).how
    for ranks, split, said in ((2, None, True), (1, None, False), (2, True, False), (2, False, False)):
        now = replace(NOW, tied=True, tensor_parallel=ranks, vocab_split=split)
        assert (
            "; 2 times that where each rank" in parameters(changed(vocab=50304, now=now), counted=None).how
        ) is said
    assert "tied" not in parameters(changed(ffn=4160), counted=None).how
    assert parameters(ChangedSizes(NOW, None, ("hidden",), "no way"), counted=None).how == "not known: no way"
    own = parameters(ChangedSizes(NOW, None, ("hidden",)), counted=7)
    assert own.delta == 7 and own.frac == pytest.approx(7 / before)
    bare = ModelConfig(hidden=64)
    assert parameters(ChangedSizes(bare, None, ("ffn",)), counted=7) == Amount(
        7, None, "+7 weights in matrices"
    )
    lacks = parameters(ChangedSizes(bare, None, ("ffn",)), counted=None)
    assert lacks.how == "not known: the trace does not show heads, head_dim, ffn, layers"
    assert parameters(changed(sequence=1024), counted=None) == Amount(0, 0.0, "the same weights")
    assert parameters(changed(sequence=1024), counted=5).delta == 0  # the sizes tell
    assert parameters(changed(heads=32, head_dim=32, kv_heads=32), counted=None) == Amount(
        0, 0.0, "as many weights as now"
    )
    both = parameters(changed(sequence=1024, ffn=4160), counted=None)
    assert both.delta == 2 * 2 * 1024 * 64


def test_operations_of_the_step() -> None:
    rows = [replace(ROW, flops=1e12, calls_per_step=3.0), replace(ROW, id="g2", flops=None)]
    step = facts(*rows)
    none = ChangedSizes(NOW, None, ())
    same = Amount(0, 0.0, "")

    def found(change: Any = None, sizes: ChangedSizes = none, weights: Amount = same, **given: Any) -> Amount:
        told: dict[str, Any] = {"of_rows": None, "rows": rows} | given
        return operations(given.pop("step", step), change or {"flag": [0, 1]}, sizes, weights,
                          of_rows=told["of_rows"], rows=told["rows"])  # fmt: skip

    assert found() == Amount(0.0, 0.0, "the same operations")
    assert found(weights=Amount(None, None, "who knows")) == Amount(None, None, "who knows")
    assert found(of_rows=0.25) == Amount(
        0.75e12, 0.25, "25.0% more in GEMMs that do 100.0% of the work; 3.00 TFLOP a step now"
    )
    assert (
        found(of_rows=-0.25).how.startswith("25.0% less in")
        and found(of_rows=0.0).how == "as many operations as now"
    )
    assert found(of_rows=0.25, step=facts()).frac is None
    assert found(sizes=changed(ffn=4160)).how.startswith("not known: ")
    assert found(sizes=ChangedSizes(NOW, None, ("ffn",), "no way")).how == "not known: no way"
    for name in ("tensor_parallel", "pipeline", "Stage"):
        assert found({name: [1, 2]}).delta is None and "another share" in found({name: [1, 2]}).how
    whole = facts_of(Shape(1024, 16, 4096, 50257, layers=2, b=4, s=512))
    twice = operations(whole, {"micro_batch": [4, 8]}, sizes_of(whole, {"micro_batch": [4, 8]}), same,
                       of_rows=None, rows=[])  # fmt: skip
    assert twice.frac == pytest.approx(1.0) and twice.how.endswith(
        " TFLOP a step now; the step has other tokens"
    )
    wider = sizes_of(whole, {"ffn": [4096, 8192]})
    assert "other tokens" not in operations(whole, {}, wider, same, of_rows=None, rows=[]).how


@pytest.mark.parametrize(("trains", "each"), [(True, 16), (False, 2)])
def test_bytes_of_one_gpu(trains: bool, each: int) -> None:
    """Two layers of two matrices 1024 x 64 more: 262,144 weights, of two ranks 131,072 each."""
    rows = [replace(ROW, phase="backward" if trains else "forward")]
    step = facts(*rows)

    def states(now: ModelConfig, weights: Amount | None = None, **then: Any) -> tuple[float | None, str]:
        sizes = changed(now=now, **then)
        found = memory(step, {}, sizes, weights or parameters(sizes, counted=None))
        return found.states, found.how

    assert states(NOW, ffn=4160)[0] == each * 262144
    two = states(replace(NOW, tensor_parallel=2), ffn=4160)
    assert two[0] == each * 131072 and " B × 131,072 weights of one GPU (" in two[1]
    assert " weights of one GPU (" not in states(NOW, ffn=4160)[1]
    assert states(NOW, sequence=1024)[0] == 0.0 and ": as now" in states(NOW, sequence=1024)[1]
    bare = ModelConfig(hidden=64)
    own = Amount(100, None, "by hand")
    assert states(bare, own, ffn=8)[0] == each * 100
    shared: tuple[dict[str, Any], ...] = (
        {"tensor_parallel": 2},
        {"expert_parallel": 2},
        {"pipeline_parallel": 2},
    )
    for ranks in shared:
        assert states(replace(bare, **ranks), own, ffn=8)[0] is None
        assert states(replace(bare, **ranks), Amount(0, None, ""), ffn=8)[0] == 0.0
    alone: tuple[dict[str, Any], ...] = ({"tensor_parallel": 1}, {"expert_parallel": 1})
    for one in alone:
        assert states(replace(bare, **one), own, ffn=8)[0] == each * 100
    assert states(bare, Amount(None, None, ""), ffn=8)[0] is None
    more = states(NOW, tensor_parallel=2)[1]
    assert ", the vocabulary whole on every rank, = " in more
    assert "whole on every rank" not in states(replace(NOW, vocab_split=True), tensor_parallel=2)[1]
    assert "whole on every rank" not in two[1]


def test_states_that_ranks_share_are_less_on_each() -> None:
    sizes = changed(ffn=4160)
    purposes = ("FSDP parameter gather", "FSDP gradient scatter", "optimizer shards")
    for purpose in purposes:
        shared = [message(purpose=purpose, group_size=8), message(purpose=purpose, group_size=4)]
        how = memory(facts(ROW, communication=shared), {}, sizes, parameters(sizes, counted=None)).how
        assert ", less on each of the 8 ranks that share them" in how
    for away in (
        message(purpose="tensor parallel", group_size=8),
        message(purpose=purposes[0], group_size=None),
    ):
        how = memory(facts(ROW, communication=[away]), {}, sizes, parameters(sizes, counted=None)).how
        assert "share them" not in how


def test_activations_are_kept_for_the_backward_alone() -> None:
    """Twice the micro-batch keeps twice as much: as much again, in the width of most of the time."""
    back = replace(ROW, phase="backward")

    def kept(*rows: Any, now: ModelConfig = NOW, **then: Any) -> tuple[float | None, str]:
        found = memory(facts(*rows), {}, changed(now=now, **then), Amount(0, 0.0, ""))
        return found.activations, found.how

    assert kept(ROW, micro_batch=8)[0] == 0.0 and kept(back, micro_batch=4, layers=2)[0] == 0.0
    twice, how = kept(back, micro_batch=8)
    assert twice is not None and twice > 0 and "one micro-batch" not in how
    assert kept(back, micro_batch=2)[0] == pytest.approx(-twice / 2)
    assert kept(replace(back, dtype="fp32"), micro_batch=8)[0] == 2 * twice
    assert kept(replace(back, dtype="fp64"), micro_batch=8)[0] == 4 * twice
    for dtype in ("fp8", "bf16", None):
        assert kept(replace(back, dtype=dtype), micro_batch=8)[0] == twice
    assert kept(back, replace(ROW, phase="recompute"), micro_batch=8)[0] is None
    assert kept(back, now=replace(NOW, experts=8), micro_batch=8)[0] is None
    assert kept(back, now=ModelConfig(hidden=64), micro_batch=8)[0] is None
    assert kept(back, now=ModelConfig(hidden=64), micro_batch=8)[1].endswith(
        "; activations: not known (heads is not known)"
    )
    staged = kept(back, now=replace(NOW, pipeline_parallel=2), micro_batch=8)
    assert staged[1].endswith(" of one micro-batch; with 1F1B the first of 2 stages keeps 2 at once")
    none = memory(facts(back), {}, ChangedSizes(NOW, None, ("ffn",), "no way"), Amount(1, 0.0, ""))
    assert none.activations is None and none.delta is None and "(no way)" in none.how
    whole = memory(facts(back), {}, changed(ffn=4160), parameters(changed(ffn=4160), counted=None))
    assert whole.states is not None and whole.activations is not None
    assert whole.delta == whole.states + whole.activations and whole.activations > 0


def test_a_change_of_no_size_leaves_states_as_they_are() -> None:
    none = ChangedSizes(NOW, None, ())

    def found(change: Any, delta: int | None = 0) -> Any:
        return memory(facts(ROW), change, none, Amount(delta, None, "not known for this"))

    assert found({"flag": [0, 1]}).states == 0.0 and found({"flag": [0, 1]}).delta is None
    assert (found({"stages": [1, 2]}).states, found({"flag": [0, 1]}, None).states) == (None, None)
    assert found({"flag": [0, 1]}, None).how == "not known for this"
    for change in ({"dtype": ["a", "b"]}, {"x": ["fp32", "BF16"]}, {"x": ["a", "fp8"]}, {"x": ["a", "fp16"]}):
        assert found(change).states == 0.0 and found(change).how.startswith(
            "weights with their states take 16 B"
        )
    assert "mixed" not in found({"x": ["bf16", "fp32"]}).how


# lines to paste


def lines(now: ModelConfig, **then: Any) -> dict[str, tuple[list[str], str]]:
    return {one.framework: (one.lines, one.note) for one in config_diffs(changed(now=now, **then))}


@pytest.mark.parametrize(
    ("vocab", "then", "ranks", "by"),
    [(50257, 50304, 1, 128), (50257, 50432, 1, 256), (50305, 50368, 1, 64), (50241, 50272, 1, 32),
     (50250, 50256, 1, 16), (50241, 50248, 1, 8), (50241, 50249, 1, None), (50257, 50432, 2, 128),
     (50257, 50688, 4, 128), (50257, 51200, 4, 256), (50000, 50016, 1, 32), (50001, 50008, 1, 8)],
)  # fmt: skip
def test_what_megatron_pads_a_vocabulary_to(vocab: int, then: int, ranks: int, by: int | None) -> None:
    now = replace(NOW, vocab=vocab, tensor_parallel=ranks, vocab_split=False)
    found, note = lines(now, vocab=then)["Megatron-LM arguments"]
    assert found == ([] if by is None else [f"+ --make-vocab-size-divisible-by {by}"])
    assert ("128 is the default: delete the option where it sets less" in note) is (by == 128)
    assert ("no --make-vocab-size-divisible-by gives" in note) is (by is None)


def test_a_vocabulary_of_parts_is_their_sum() -> None:
    split = replace(NOW, vocab=25152, vocab_split=True, tensor_parallel=2)
    found, note = lines(split, vocab=25216)["nanoGPT"]
    assert found == ["- vocab_size = 50304", "+ vocab_size = 50432"]
    assert note.endswith("; 50304 is 2 ranks' parts together: a file can have less, which the framework pads")
    for ranks in (None, 1):
        alone, said = lines(replace(split, tensor_parallel=ranks), vocab=25216)["nanoGPT"]
        assert alone == ["- vocab_size = 25152", "+ vocab_size = 25216"] and "parts" not in said
    both = lines(replace(split, vocab_split=None), vocab=25216, ffn=4160)
    assert next(iter(both)) == "Every framework" and both["nanoGPT"][0] == []
    assert both["Megatron-LM arguments"][0] == ["- --ffn-hidden-size 4096", "+ --ffn-hidden-size 4160"]
    assert list(lines(replace(split, vocab_split=None), vocab=25216)) == ["Every framework"]
    for ranks in (None, 1):
        assert "Every framework" not in lines(
            replace(split, vocab_split=None, tensor_parallel=ranks), vocab=25216
        )
    wider = lines(split, ffn=4160)
    assert "parts" not in wider["Megatron-LM arguments"][1] and "Every framework" not in wider
    assert lines(NOW) == {}


def test_settings_that_follow_from_others_are_left_out() -> None:
    hugging = "Hugging Face config.json"
    found, note = lines(NOW, heads=8, kv_heads=8, head_dim=128)[hugging]
    assert found == ['-   "num_attention_heads": 16,', '+   "num_attention_heads": 8,']
    assert note == "in GPT-2 heads is n_head".replace("heads is", "num_attention_heads is") + (
        "; where the file has num_key_value_heads or head_dim, change it too"
    )
    grouped = lines(replace(NOW, kv_heads=4), kv_heads=8)
    assert grouped[hugging][0] == ['-   "num_key_value_heads": 4,', '+   "num_key_value_heads": 8,']
    assert grouped["Megatron-LM arguments"][1] == "with --group-query-attention"
    assert "as many key/value heads as heads" in grouped["nanoGPT"][1]
    own = lines(replace(NOW, head_dim=32), head_dim=64)
    assert '+   "head_dim": 64,' in own[hugging][0]  # 16 x 32 is not the hidden size
    assert '+   "head_dim": 128,' in lines(NOW, head_dim=128)[hugging][0]
    bare = lines(replace(NOW, heads=None), head_dim=128)
    assert '+   "head_dim": 128,' in bare[hugging][0]
    gate = lines(replace(NOW, gated=True), ffn=4160)[hugging]
    assert gate == (['-   "intermediate_size": 4096,', '+   "intermediate_size": 4160,'], "")
    assert lines(NOW, ffn=4160)[hugging][1] == "in GPT-2 intermediate_size is n_inner"
    longer = lines(NOW, sequence=1024)
    assert longer["Hugging Face"][0] == [] and "block_size, max_length" in longer["Hugging Face"][1]
    assert longer["nanoGPT"][0] == ["- block_size = 512", "+ block_size = 1024"]
    experts = lines(replace(NOW, experts=8), experts=16)
    assert "num_local_experts (Mixtral)" in experts["Hugging Face"][1]
    assert experts["Megatron-LM arguments"][0] == ["- --num-experts 8", "+ --num-experts 16"]
    ranks = lines(replace(NOW, tensor_parallel=2), tensor_parallel=4)
    assert ranks["nanoGPT"] == ([], "no setting for tensor_parallel: it has no tensor parallelism")
    assert "in GPTConfig" in lines(NOW, vocab=50304)["nanoGPT"][1]
    assert "in GPTConfig" not in lines(NOW, hidden=2048)["nanoGPT"][1]


# sizes of the whole model


@pytest.mark.parametrize(
    ("change", "then", "why"),
    [
        ({"ffn": [4096, 4160]}, 4160, ""), ({"ffn": [2048, 2080]}, 4160, ""), ({"ffn": [1024, 1040]}, None,
         "1024 is not the ffn of the whole model (4096)"),
        ({"ffn": ["a", "b"]}, None, "ffn is given in words"),
        ({"ffn": [4096, "b"]}, None, "ffn is given in words"),
        ({"experts": [8, 16]}, None, "the present experts of the whole model is not known"),
        ({"flag": [0, 1], "ffn": [4096, 4160]}, 4160, ""),
    ],
)  # fmt: skip
def test_a_change_of_one_rank_is_scaled_to_the_model(change: Any, then: int | None, why: str) -> None:
    step = facts(ROW)
    now: Any = SimpleNamespace(now=replace(NOW, tensor_parallel=2))
    found = sizes_of(replace(step, step=now), change)
    assert (found.then.ffn if found.then else None, found.why) == (then, why)


def test_names_of_sizes() -> None:
    assert [size_name(one) for one in ("vocab_size", "ffn", "tokens", "flag", "dtype")] == [
        "vocab", "ffn", "tokens", None, None,
    ]  # fmt: skip
    step: Any = SimpleNamespace(now=NOW)
    given = replace(facts(ROW), step=step)
    mine = sizes_of(given, {"vocab_size": [50257, 50304]}, {"vocab": 50432})
    assert mine.then is not None and mine.then.vocab == 50432
    other_one = sizes_of(given, {"vocab_size": [50257, 50304]}, {"ffn": 9})
    assert other_one.then is not None and (other_one.then.vocab, other_one.then.ffn) == (50304, 4096)


# effects


@pytest.mark.parametrize(
    ("change", "state", "said"),
    [
        ({"vocab_size": [50257, 50304]}, "pads", "append 47 rows"),
        ({"vocab_size": [50304, 50257]}, "pads", "the last 47 rows of the embedding"),
        ({"ffn": [4096, 4160]}, "pads", "can be padded"),
        ({"ffn": [4160, 4096]}, "scratch", "64 trained units"),
        ({"kv_heads": [16, 8]}, "converts", "with a loss"), ({"kv_heads": [8, 16]}, "converts", "exactly"),
        ({"sequence": [512, 1024]}, "loads", "512 rows needs 512 more"),
        ({"sequence": [1024, 512]}, "loads", "the first 512 rows"),
        ({"hidden": [1, 2]}, "scratch", "its shape"),
        ({"top_k": [2, 4]}, "converts", "trained for 2 experts"),
        ({"capacity_factor": [1, 2]}, "loads", "dropped"),
        ({"dimension_12": [12, 16]}, "unknown", "which weight"),
        ({"flag": [0, 1]}, "loads", "flag is not a size"),
        ({"flag": [0, 1], "ffn": [4160, 4096]}, "scratch", "trained units"),
        ({"fused_qkv": [False, True]}, "converts", "stack"), ({"x": ["a", "fp8"]}, "loads", "_extra_state"),
        ({"ffn": [4096, "more"]}, "pads", "can be padded"), ({"ffn": [4096, 4096]}, "pads", "can be padded"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_checkpoint(change: Any, state: str, said: str) -> None:
    found = effects_of(facts(ROW), change, effort="config")
    assert found.checkpoint == state and said in found.checkpoint_how


def test_words_of_a_vocabulary_on_ranks() -> None:
    untold = effects_of(facts(ROW, dims=model(tensor_parallel=2, vocab=25152)), {"vocab_size": [25152,
        25216]},
                        effort="config")  # fmt: skip
    assert "64 rows where each of the 2 ranks has the whole vocabulary, 2 times 64" in untold.checkpoint_how
    less = effects_of(facts(ROW, dims=model(tensor_parallel=2, vocab=25216)), {"vocab_size": [25216, 25152]},
                      effort="config")  # fmt: skip
    assert "the last 64 rows" in less.checkpoint_how
    alone = effects_of(facts(ROW, dims=model(tensor_parallel=1, vocab=25152)), {"vocab_size": [25152, 25216]},
                       effort="config")  # fmt: skip
    assert "append 64 rows" in alone.checkpoint_how and "ids below 25152. The 64 added" in alone.tokenizer


def test_who_needs_what() -> None:
    back = replace(ROW, phase="backward")
    for row, words in ((back, "no new training"), (ROW, "a setting; no code")):
        assert words in effects_of(facts(row), {"flag": [0, 1]}, effort="config").needs
    assert effects_of(facts(ROW), {}, effort="code").needs == "a change of the code; the weights stay"
    assert effects_of(facts(ROW), {"flag": [0, 1]}, effort="retrain").checkpoint == "unknown"
    none = effects_of(facts(ROW), {"dimension": [12, 16]}, effort="retrain")
    assert none.parameters.delta is None and none.parameters.how == "not known for this change"
    counted = effects_of(facts(ROW), {"dimension": [12, 16]}, effort="retrain", parameter_delta=9)
    assert counted.parameters.delta == 9
    both = effects_of(facts(ROW), {"flag": [0, 1], "more": [2, 3]}, effort="config")
    assert both.undo == "Set flag back to 0 and more back to 2."


# trials and simulations


@pytest.mark.parametrize(
    ("low", "mid", "high", "bound", "worth"),
    [
        (-0.5, 2.0, 3.0, 9.0, True), (-0.51, 2.0, 3.0, 9.0, False), (0.0, 2.0, 3.0, 9.0, True),
        (0.0, 0.0, 3.0, 9.0, False), (-0.5, 0.0, 3.0, 9.0, False), (-0.13, 0.5, 3.0, 9.0, False),
        (-3.9, 16.0, 20.0, 20.0, True), (-4.1, 16.0, 20.0, 20.0, False),
    ],
)  # fmt: skip
def test_what_is_worth_trying(low: Any, mid: Any, high: Any, bound: float, worth: bool) -> None:
    assert likely(span(low, mid, high), 100.0, bound_ms=bound) is worth


def test_nothing_known_is_nothing_sure() -> None:
    assert surely(span(0.5, 1.0, 3.0), 100.0)
    assert (
        not pays(Estimate(None, 2.0, 3.0, "model"))
        and not pays(Estimate(1.0, None, 3.0, "model"))
        and not pays(span(-2.0, 2.0, 3.0))
    )
    assert pays(span(-1.99, 2.0, 3.0)) and not pays(span(0.0, 0.0, 1.0))
    assert why_not(span(0.0, 0.0, 0.0), "x", "step").endswith("change nothing")
    assert why_not(span(0.0, 2.0, 0.0), "x", "trace").endswith(
        "save 2.00 ms of the trace, but the range, from 0 ms slower to 0 ms faster, leaves open which of"
        " the two"
    )
    one: Any = SimpleNamespace(change={"heads": [16, 8], "kv_heads": [16, 8], "head_dim": [64, 128]})
    assert why_not(span(-1, -1, -1), one, "step").startswith(
        "heads = 8, head_dim = 128 is predicted to make the step"
    )
    more: Any = SimpleNamespace(change={"micro_batch": [4, 8]})
    assert why_not(span(-1, -1, -1), more, "step").endswith("1.00 ms slower per token")


def trial(value: int, low: float, mid: float, high: float, **change: Any) -> Any:
    made = SimpleNamespace(saving_ms=span(low, mid, high), change=change or {"ffn": [8, value]})
    return SimpleNamespace(value=value, found=made, saving_ms=made.saving_ms)


def test_values_that_are_simulated_and_why_others_are_not() -> None:
    step = facts_of(Shape(1024, 16, 4096, 50257, layers=2, b=4, s=512))
    found, why = try_values(step, "ffn", [4160, 4224])
    assert [one.value for one in found] == [4160, 4224] and why == ""
    none, said = try_values(facts(ROW), "ffn", [1, 2])
    assert none == [] and said == "the step cannot be simulated"
    assert (
        simulate(step, None)
        == simulate(step, {})
        == ("the change is not one of a model parameter that can be simulated")
    )
    assert (
        together(step, [{"ffn": 4160}, None]) is None
        and together(step, [{"ffn": 4160}, {"ffn": 4224}]) is None
    )
    both = together(step, [{"ffn": 4160}, {"ffn": 4160}])
    assert both is not None and both.saving_ms == found[0].found.saving_ms
    assert together(facts(ROW), [{"ffn": 4160}]) is None
    good = need_likely([trial(1, 0.0, 0.5, 1.0), trial(2, 0.0, 1.5, 2.0)], "ffn", "width", facts(ROW,
        step_ms=100.0),
                       bound_ms=9.0, saw="Seen.")  # fmt: skip
    assert [one.value for one in good] == [2]
    with pytest.raises(
        Exception, match=r"No other width near it is advised: ffn = 2 is predicted to save 0[.]5%"
    ):
        need_likely([trial(1, 0.0, 0.4, 1.0), trial(2, 0.0, 0.5, 2.0)], "ffn", "width", facts(ROW,
            step_ms=100.0),
                    bound_ms=9.0, saw="Seen.")  # fmt: skip
    close = nearly_best([trial(1, 0, 3.0, 9), trial(2, 0, 2.0, 9), trial(3, 0, 1.99, 9)], 100.0, bound_ms=9.0)
    assert [one.value for one in close] == [1, 2]
    assert in_words("ffn", trial(8, 0.0, 0.0, 1.0), 100.0).endswith(
        "save 0% of the step, between 0% faster and 1% faster"
    )


def row_of(component: str, role: str | None, now: float, then: float) -> Any:
    return SimpleNamespace(component=component, role=role, gemm="g1", how=f"{role}", time_ms=now,
                           then_ms=SimpleNamespace(mid=then))  # fmt: skip


def derived(
    bound: float = 9.0, rows: int = 1, rest: float | None = 0.0, high: float | None = 3.0, **change: Any
) -> list[str]:
    found: Any = SimpleNamespace(
        saving_ms=Estimate(1.0, 2.0, high, "model"), change=change or {"ffn": [1, 2]},
        rows=[row_of("mlp.up", "forward", 4.0, 3.0), row_of("mlp.down", None, 2.0, 1.5),
              row_of("mlp.down", "dgrad", 2.0, 2.5)][:rows],
        rest=[SimpleNamespace(time_ms=5.0,
            then_ms=SimpleNamespace(mid=5.0 - rest))] if rest is not None else [],
    )  # fmt: skip
    return derivation(found, bound, rows_in_full=1)


def test_the_arithmetic_of_a_simulated_change() -> None:
    assert derived(rest=None) == [
        "Predicted, not measured: the step simulated with the change.",
        "mlp.up forward (g1): forward; 4.00 ms becomes 3.00 ms.",
        "Together 2.00 ms, range 1.00–3.00 ms.",
    ]
    assert "1 more row in the same way: 500 µs saved." in derived(rows=2)
    assert "2 more rows in the same way: no change." in derived(rows=3)
    assert not any("more row" in one for one in derived(rows=1))
    assert "Kernels that move bytes scale with them: 1.00 ms saved." in derived(rest=1.0)
    assert "Kernels that move bytes scale with them: 1.00 ms added." in derived(rest=-1.0)
    assert "Kernels that move bytes scale with them: no change." in derived(rest=0.0)
    assert "Kernels that move bytes scale with them: no change." in derived(rest=-9e-7)
    assert "Kernels that move bytes scale with them: 0.00200 µs saved." in derived(rest=2e-6)
    assert not any("No more than" in one for one in (*derived(), *derived(3.0), *derived(high=None)))
    assert derived(2.5)[-1] == "No more than 2.50 ms counts: the most that these rows can give back."
    # 9 ms now, half again as many tokens: (9 - 2) x 1.5 then
    tokens = derived(micro_batch=[4, 6])
    assert (
        "All that changes takes 9.00 ms now and 10.5 ms then, with 1.500 times the tokens: per token the"
        " difference"
        " is 9.00 ms - 10.5 ms / 1.500."
    ) in tokens
    assert not any("tokens" in one for one in derived())


# findings


def concluded(*candidates: Candidate, **given: Any) -> Any:
    rule: Any = SimpleNamespace(id="TL101", slug="pad-vocabulary", of_slices=given.pop("of_slices", False),
                                of_waits=given.pop("of_waits", False))  # fmt: skip
    told: dict[str, Any] = {"step_ms": 100.0, "gpu_busy_frac": 1.0}
    return conclude(rule, facts=facts(ROW, **(told | given)), candidates=candidates, passed="")


def candidate(*bounds: float, **given: Any) -> Candidate:
    told: dict[str, Any] = {
        "title": "Do it", "saw": "Seen.", "fix": [], "caveats": [], "confidence": "high", "effort": "code",
        "name": "the flag", "how": "By hand.", "change": {"flag": [0, 1]},
        "bounds": [Bound(replace(ROW, id=f"g{at}"), ms, f"g{at} by hand.") for at, ms in enumerate(bounds,
            1)],
    }  # fmt: skip
    return Candidate(**(told | given))


def test_a_saving_is_no_more_than_the_step_and_from_nothing_where_it_waits() -> None:
    (far,) = concluded(candidate(150.0, saving=span(10.0, 120.0, 150.0))).findings
    assert (far.saving_ms.high, far.evidence["bound_ms"]) == (100.0, 100.0) and far.saving_frac.high == 1.0
    assert "No more than 100 ms counts" in far.how
    (near,) = concluded(candidate(9.0, saving=span(1.0, 2.0, 9.0))).findings
    assert "No more than" not in near.how and near.how.endswith("Together 2.00 ms, range 1.00–9.00 ms.")
    (idle,) = concluded(candidate(9.0, saving=span(1.0, 2.0, 3.0)), gpu_busy_frac=0.5).findings
    assert (idle.saving_ms.low, idle.saving_of) == (0.0, "gpu_work")
    assert idle.how.endswith(": from nothing, as the step waits for the CPU.")
    (slower,) = concluded(candidate(9.0, saving=span(-1.0, 2.0, 3.0)), gpu_busy_frac=0.5).findings
    assert slower.saving_ms.low == -1.0 and "from nothing" not in slower.how
    (whole,) = concluded(candidate(9.0, saving=span(0.0, 2.0, 3.0))).findings
    assert "from nothing" not in whole.how


def test_a_bound_is_written_out_for_three_rows() -> None:
    (one,) = concluded(candidate(1.0, 2.0, 3.0, 4.0, 5.0)).findings
    assert one.gemms == ["g5", "g4", "g3", "g2", "g1"]
    text = one.how.splitlines()
    assert text[1:] == [
        "By hand.",
        "g5 by hand.",
        "g4 by hand.",
        "g3 by hand.",
        "2 more rows by the same formula: 3.00 ms.",
        "Together 15.0 ms of the 100 ms step = 15.0%.",
    ]
    assert "the datasheet of the H100 SXM" in text[0]
    (three,) = concluded(candidate(1.0, 2.0, 3.0)).findings
    assert "more row" not in three.how
    (beside,) = concluded(candidate(1.0, elsewhere_ms=2.0)).findings
    assert "Outside of these rows: 2.00 ms." in beside.how and "Outside" not in three.how
    (blind,) = concluded(candidate(1.0), gpu=UNKNOWN_GPU).findings
    assert "what kernels take at least" in blind.how
    (narrow,) = concluded(candidate(1.0), gpu=replace(UNKNOWN_GPU, bandwidth_gbps=1.0)).findings
    assert "the datasheet of" in narrow.how
    assert (one.saving_ms.low, one.saving_ms.mid, one.saving_ms.high) == (0.0, None, 15.0)


def test_what_is_left_out_beside_findings() -> None:
    two = concluded(candidate(2.0), candidate(0.05), candidate(0.01, least=0.01),
                    candidate(9.0, saving=span(-5.0, -1.0, 0.0)), candidate(3.0, saving=span(1.0, 2.0,
                        3.0)))  # fmt: skip
    assert two.why == (
        "2 findings: 3.00 ms of the 100 ms step at stake. Predicted to save 2.00 ms. 2 smaller ones below"
        " 1% of the step"
        " left out. Not advised: the flag is predicted to make the step 1.00 ms slower."
    )
    assert two.bounds_ms == {"g1": 3.0} and two.changes == (None, None)
    beside = concluded(candidate(2.0, elsewhere_ms=1.0))
    assert beside.bounds_ms == {"g1": 2.0, "TL101 outside of rows": 1.0}
    waits = concluded(candidate(0.09), of_waits=True, mean_ms=80.0)
    assert waits.state == "found" and waits.findings[0].saving_of == "wait"
    assert concluded(candidate(0.09), mean_ms=80.0).state == "passed"
    assert concluded(candidate(0.09), of_waits=True, mean_ms=0.0).state == "passed"


def test_ranks_need_their_multiple() -> None:
    (one,) = concluded(candidate(2.0), of_slices=True, dims=model(tensor_parallel=2)).findings
    assert any("2 tensor-parallel ranks" in text and "2 times such" in text for text in one.caveats)
    for given in ({"of_slices": True, "dims": model(tensor_parallel=1)}, {"dims": model(tensor_parallel=2)}):
        (none,) = concluded(candidate(2.0), **given).findings
        assert not any("ranks" in text for text in none.caveats)
    (open_,) = concluded(candidate(2.0, simulate={"ffn": 9})).findings
    assert "It is not predicted: the step cannot be simulated." in open_.caveats
    (plain,) = concluded(candidate(2.0)).findings
    assert not any("not predicted" in text for text in plain.caveats) and plain.parameter_delta is None
    (own,) = concluded(candidate(2.0, parameter_delta=0, gemms=[replace(ROW, id="g7")])).findings
    assert own.parameter_delta == 0 and own.gemms == ["g7"]


def test_units_are_exact() -> None:
    """989 TFLOP/s and 3350 GB/s: so much in a millisecond, to the last digit."""
    gpu = facts(ROW).gpu
    for given in ({"flops": 989e9, "bytes": None}, {"flops": None, "bytes": 3350e6}):
        row: Any = replace(ROW, time_ms_per_step=3.0, **given)  # type: ignore[arg-type]
        assert bound_of_row(row, gpu=gpu).ms == pytest.approx(1.0, rel=1e-12)
    short = replace(ROW, flops=None, bytes=None, calls_per_step=1.0, time_ms_per_step=1.0)
    assert bound_of_row(short, gpu=replace(gpu, gemm_floor_us=250.0)).ms == pytest.approx(0.75, rel=1e-12)
    assert moving_ms(3350e6, facts=facts(ROW)) == pytest.approx(1.0, rel=1e-12)
    half = saved(replace(ROW, calls_per_step=2.0, time_ms_per_step=3.0), span(250.0, 500.0, 1000.0))
    assert (half.low, half.mid, half.high) == pytest.approx((1.0, 2.0, 2.5), rel=1e-12)


@pytest.mark.parametrize(
    ("made", "state", "absent_", "attention"),
    [
        (passed("x"), "passed", False, False), (not_applicable("x"), "not_applicable", False, False),
        (could_not_run("x"), "could_not_run", False, False), (absent("x"), "not_applicable", True, False),
        (absent("x", attention=True), "not_applicable", True, True),
    ],
)  # fmt: skip
def test_answers_say_what_was_not_seen(made: Answer, state: str, absent_: bool, attention: bool) -> None:
    found = made.outcome
    assert (found.state, found.absent, found.attention) == (state, absent_, attention)
    assert (found.why, found.findings, found.bounds_ms) == ("x", (), {})


def test_a_quarter_of_the_operations_needs_a_quarter_of_the_time() -> None:
    """989 GFLOP at the peak take 1 ms a call: of two calls in 1 ms a quarter has to be done for certain."""
    row = replace(ROW, flops=989e9, bytes=None, time_ms_per_step=1.0)
    assert bound_of_row(row, gpu=facts(ROW).gpu, useful_frac=0.25).ms == pytest.approx(0.5)
    assert bound_of_row(row, gpu=facts(ROW).gpu).ms == 0.0


# precisions


def fp32(number: int = 1, **given: Any) -> Any:
    told: dict[str, Any] = {"dtype": "fp32", "kernel": "ampere_sgemm_128x64_tn",
        "tensor_core": "eligible_unused",
                            "time_us": 2000.0}  # fmt: skip
    return gemm(number, 2048, 1024, 512, **(told | given))


@pytest.mark.parametrize(
    ("role", "weight", "rest"),
    [
        ("forward", 1024 * 512, 2048 * 512),
        (None, 1024 * 512, 2048 * 512),
        ("dgrad", 0, 2048 * 512 + 1024 * 512),
    ],
)
def test_sixteen_bits_cost_their_casts(role: str | None, weight: int, rest: int) -> None:
    """6 bytes an element at 3350 GB/s: the weight's for certain, all operands' at worst, three times."""
    row = fp32(role=role, calls=3.0)
    step = step_of([row])
    case = Precision([row], "fp32", ("tf32", "bf16"), False)
    found = case.savings(step)
    half = found["bf16"]
    then = predict_gemm(2048, 1024, 512, gpu=H100, dtype="bf16").time_us
    assert half is not None and then.mid is not None and then.high is not None and then.low is not None
    sure, worst = (3 * 6 * elements / 3350e6 for elements in (weight, rest))
    assert half.mid == pytest.approx(3 * (2000 - then.mid) / 1e3 - sure)
    assert half.low == pytest.approx(3 * (2000 - then.high) / 1e3 - sure - worst)
    assert half.high == pytest.approx(3 * (2000 - then.low) / 1e3 - sure)
    how = case.arithmetic(step, "bf16")
    assert f"2,000 µs measured, {then.mid:.3g} µs predicted in bf16, 3 times per step." in how
    assert "costs 6 bytes an element" in how and "costs 6 bytes" not in case.arithmetic(step, "tf32")
    two = replace(row, batch=2)
    both = Precision([two], "fp32", ("bf16",), False).savings(step_of([two]))["bf16"]
    assert both is not None and both.low is not None and both.mid is not None
    free = replace(step_of([two]), gpu=replace(step.gpu, bandwidth_gbps=None))
    unpaid = Precision([two], "fp32", ("bf16",), False).savings(free)["bf16"]
    assert unpaid is not None and unpaid.low is not None and unpaid.mid is not None
    assert unpaid.mid - both.mid == pytest.approx(2 * sure)
    assert unpaid.low - both.low == pytest.approx(2 * (sure + worst))


@pytest.mark.parametrize(("open_us", "known"), [(200.0, True), (225.0, False), (100.0, True)])
def test_a_tenth_of_the_time_can_be_without_a_prediction(open_us: float, known: bool) -> None:
    rows = [fp32(1, time_us=1800.0), replace(fp32(2, time_us=open_us), m=None)]
    found = Precision(rows, "fp32", ("tf32",), False).savings(step_of(rows))["tf32"]
    assert (found is not None) is known


def test_the_arithmetic_of_three_rows() -> None:
    rows = [fp32(at, time_us=100.0 * at) for at in range(1, 6)]
    blind = replace(fp32(9, time_us=50.0), m=None)
    step = step_of([*rows, blind])
    said = Precision([*rows, blind], "fp32", ("tf32",), False).arithmetic(step, "tf32")
    assert [said.find(f"(g{at})") >= 0 for at in range(1, 6)] == [False, False, True, True, True]
    assert " 2 more rows in the same way. 1 row (50.0 µs) without a prediction as they are." in said
    assert said.index("(g5)") < said.index("(g4)") < said.index("(g3)")
    three = Precision(rows[:3], "fp32", ("tf32",), False).arithmetic(step, "tf32")
    assert "more row" not in three and "without" not in three
    four = Precision(rows[:4], "fp32", ("tf32",), False).arithmetic(step, "tf32")
    assert "1 more row in the same way." in four


@pytest.mark.parametrize(
    ("tensor_core", "by_name", "counts"),
    [(None, None, True), (None, False, False), ("eligible_unused", None, False), ("used", None, False),
     (None, True, False)],
)  # fmt: skip
def test_kernels_that_do_not_say(tensor_core: Any, by_name: Any, counts: bool) -> None:
    row = replace(ROW, tensor_core=tensor_core, kernel_tensor_core=by_name)
    assert ("the kernels of 1 (200 µs) do not say" in on_tensor_cores(facts(row), [row])) is counts


def test_most_of_the_time_has_to_be_told() -> None:
    """Half of the time without a word is still judged, more is not."""
    silent = fp32(1, tensor_core=None, kernel_tensor_core=None, kernel="x")
    told = fp32(2)
    assert need_precisions(facts(silent, told), [silent, told])[0].rows == [told]
    long = replace(silent, time_ms_per_step=2.01)
    for gpu, why in ((facts().gpu, "do not say what multiplied"), (UNKNOWN_GPU, "name it with --gpu")):
        with pytest.raises(Answer, match=why):
            need_precisions(facts(long, told, gpu=gpu), [long, told])
    with pytest.raises(Answer, match="their shapes and types are not recorded"):
        need_precisions(facts(replace(long, m=None), told), [replace(long, m=None), told])
    for dtype in ("bf16", "fp16", "fp8", "fp4", "int8"):
        assert need_precisions(facts(), [replace(long, dtype=dtype)]) == []


@pytest.mark.parametrize(("m", "family", "judged"), [(2, None, True), (1, None, False), (8, "gemv", False)])
def test_a_vector_has_nothing_for_tensor_cores(m: int, family: str | None, judged: bool) -> None:
    row = replace(fp32(), m=m, kernel_family=family)
    assert bool(need_precisions(facts(row), [row])) is judged


@pytest.mark.parametrize(("half_us", "mixed"), [(2001.0, True), (2000.0, False), (1999.0, False)])
def test_a_step_is_mixed_where_most_of_its_blocks_are_narrow(half_us: float, mixed: bool) -> None:
    rows = [fp32(1), gemm(2, 2048, 1024, 512, time_us=half_us, component="attention.qkv"),
            fp32(3, component="logits", time_us=9000.0)]  # fmt: skip
    found = need_precisions(facts(*rows), rows)
    assert found[0].mixed is mixed
    assert [[row.id for row in one.rows] for one in found] == ([["g1"], ["g3"]] if mixed else [["g1", "g3"]])
    fp16 = [rows[0], replace(rows[1], dtype="fp16", time_ms_per_step=9.0)]
    gpu = replace(facts().gpu, peak_tflops={"fp16": 1.0, "tf32": 1.0})
    assert need_precisions(facts(*fp16, gpu=gpu), fp16)[0].targets == ("fp16",)


# fp8 and back

LINEAR = gemm(1, 4096, 16384, 4096, component="mlp.up", time_us=2000.0, calls=4.0, names=("b*s", "f", "h"))
WHOLE = model(hidden=4096, heads=32, kv_heads=32, head_dim=128, ffn=16384, vocab=50304, layers=4,
    sequence=4096,
              micro_batch=1)  # fmt: skip


def test_a_component_gains_where_all_of_it_is_predicted() -> None:
    dims = WHOLE
    step = step_of([LINEAR], dims=dims)
    assert step.step is not None and types_of(step.step) == ["fp8", "fp8-block"]
    (gain,) = gains(step, step.step, "fp8")
    assert (gain.component, gain.dtype) == ("mlp.up", "fp8") and gain.saving.mid is not None
    assert sum(bound.ms for bound in gain.bounds) <= 8.0 and [bound.row.id for bound in gain.bounds] == ["g1"]
    assert gain.sure is ((gain.saving.low or 0.0) > 0)
    back = replace(step, gemms=[replace(LINEAR, phase="backward")])
    # weights that change are cast each time, at 0 to 5 bytes an element
    (trained,) = gains(back, step.step, "fp8")
    more = 4 * 4096 * 16384 / (0.9 * 3350e6)
    for end, each in (("high", 0.0), ("mid", 3.0), ("low", 5.0)):
        assert getattr(gain.saving, end) - getattr(trained.saving, end) == pytest.approx(each * more)
    assert gain.bounds[0].ms == trained.bounds[0].ms

    def gaining(**given: Any) -> list[str]:
        other_step = step_of([replace(LINEAR, **given)], dims=dims).step
        assert other_step is not None
        return [one.component for one in gains(step, other_step, "fp8")]

    assert gaining(calls_per_step=0.5) == ["mlp.up"]
    assert gaining(calls_per_step=0.0) == gaining(component="logits") == []
    assert gaining(dtype="fp32", math_dtype="fp32") == []
    inside = replace(LINEAR, dtype="fp8", math_dtype="fp8")
    fp8 = step_of([inside], dims=dims, others=[other(1, "cast", component="mlp.up", dtype_to="fp8", calls=4.0,
                                                       time_us=250.0)])  # fmt: skip
    bare = replace(fp8, others=[])
    assert fp8.step is not None
    (with_casts,), (without,) = losses(fp8, fp8.step), losses(bare, fp8.step)
    for end in ("low", "mid", "high"):
        assert getattr(with_casts.saving, end) - getattr(without.saving, end) == pytest.approx(1.0)


def test_casts_to_fp8_of_some_components() -> None:
    rows = [other(1, "cast", component="mlp.up", dtype_to="fp8"), other(2, "copy", component="mlp.up",
        dtype_to="fp8"),
            other(3, "cast", component="mlp.up", dtype_to="bf16"), other(4, "cast", component="norm",
                dtype_to="fp8")]  # fmt: skip
    assert [row.id for row in casts_to_fp8(facts(others=rows), {"mlp.up"})] == ["o1"]
    assert casts_to_fp8(facts(), {"mlp.up"}) == []


@pytest.mark.parametrize(
    ("layers", "stages", "text"),
    [(20, 1, "; 8.50 ms with layers 17 to 19 of 20 in bf16, which"),
        (40, 1, "; 8.50 ms with layers 34 to 39 of 40"),
     (2, 1, "; 5.00 ms with layer 1 of 2 in bf16"), (1, 1, "; less with the last 15%"), (0, 1, "; less with"),
     (20, 2, "; less with the last 15% of the layers"), (20, None, "; 8.50 ms with layers 17 to 19")],
)  # fmt: skip
def test_the_last_layers_stay_in_bf16(layers: int, stages: int | None, text: str) -> None:
    dims = model(layers=layers)
    dims = replace(dims, pipeline_parallel=replace(dims.layers, value=stages))
    back = replace(LINEAR, phase="backward")
    assert less_of_nvfp4(facts(back, dims=dims), 10.0).startswith(text)
    assert less_of_nvfp4(facts(LINEAR, dims=dims), 10.0) == ""


def test_a_part_of_a_row_gains_its_part() -> None:
    """Half of a row's products save half of what they all do; both halves are one bound."""
    step = step_of([LINEAR], dims=WHOLE)
    made = step.step
    assert made is not None
    (product,) = (one for one in made.work.products if one.row.id == "g1")

    def gained(*weights: float) -> Any:
        work = replace(made.work, products=tuple(replace(product, weight=one) for one in weights))
        (gain,) = gains(step, replace(made, work=work), "fp8")
        (bound,) = gain.bounds
        return pytest.approx((gain.saving.low, gain.saving.mid, gain.saving.high, bound.ms))

    (whole,) = gains(step, made, "fp8")
    saved_ms = (whole.saving.low, whole.saving.mid, whole.saving.high, whole.bounds[0].ms)
    assert gained(0.5) == tuple((one or 0.0) / 2 for one in saved_ms)
    for weights in ((0.5, 0.5), (0.25, 0.75)):
        assert gained(*weights) == saved_ms


@pytest.mark.parametrize(("low", "sure"), [(0.0, False), (-0.1, False), (0.1, True)])
def test_a_gain_is_sure_where_its_low_end_is_one(low: float, sure: bool) -> None:
    assert TypeGain("mlp.up", "fp8", (), span(low, 2.0, 3.0)).sure is sure
