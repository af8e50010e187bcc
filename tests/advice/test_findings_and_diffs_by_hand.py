"""The engine's figures: amounts, lines to paste, effects, trials and findings, counted by hand."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_facts import H100, other, step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import UNKNOWN_GPU, facts, gemm, model
from tests.advice.advice_steps import Shape, facts_of
from tests.said import Listener
from tracelens.config.model_config import ModelConfig
from tracelens.gemm.predict import predict_gemm
from tracelens.results import Amount, Estimate, Finding, Span
from tracelens.rules.engine.amounts import ChangedSizes, memory, operations, parameters, size_name, sizes_of
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import Answer, Candidate, absent, could_not_run, not_applicable, passed
from tracelens.rules.engine.conclude import conclude
from tracelens.rules.engine.diffs import config_diffs
from tracelens.rules.engine.effects import effects_of
from tracelens.rules.engine.simulated import derivation, simulate, together, why_not
from tracelens.rules.engine.trials import in_words, nearly_best, need_likely, try_values
from tracelens.rules.evidence.low_precisions import (
    TypeGain,
    casts_to_fp8,
    gains,
    less_of_nvfp4,
    losses,
    types_of,
)
from tracelens.rules.evidence.precision import Precision, need_precisions, on_tensor_cores
from tracelens.step.predicted import FAR_ERROR
from tracelens.step.whatif import what_if

ROW = gemm(1, 1000, 1000, 1000, time_us=100.0, calls=2.0)
NOW = ModelConfig(hidden=1024, heads=16, kv_heads=16, head_dim=64, ffn=4096, vocab=50257, layers=2,
    sequence=512,
                  micro_batch=4)  # fmt: skip


def span(low: float, mid: float, high: float) -> Span:
    return Span(low, mid, high, "model")


def changed(*names: str, now: ModelConfig = NOW, **then: Any) -> ChangedSizes:
    return ChangedSizes(now, replace(now, **then), names or tuple(then))


def known(amount: Amount) -> tuple[float | None, float | None]:
    return amount.delta, amount.frac


# weights, operations, bytes


def test_weights_count_matrices_of_the_whole_model(said: Listener) -> None:
    """47 more rows of 1024 in one matrix, beside what the table of parameters holds."""
    more = parameters(changed(vocab=50304), counted=None)
    before = NOW.parameters
    assert before is not None and more.delta == 47 * 1024 and more.frac == pytest.approx(47 * 1024 / before)
    said(more.how)
    for tied in (True, False):
        said(parameters(changed(vocab=50304, now=replace(NOW, tied=tied)), counted=None).how)
    for ranks, split in ((2, None), (1, None), (2, True), (2, False)):
        now = replace(NOW, tied=True, tensor_parallel=ranks, vocab_split=split)
        said(parameters(changed(vocab=50304, now=now), counted=None).how)
    said(parameters(changed(ffn=4160), counted=None).how)
    no_way = parameters(ChangedSizes(NOW, None, ("hidden",), "no way"), counted=None)
    own = parameters(ChangedSizes(NOW, None, ("hidden",)), counted=7)
    assert own.delta == 7 and own.frac == pytest.approx(7 / before)
    bare = ModelConfig(hidden=64)
    bare_own = parameters(ChangedSizes(bare, None, ("ffn",)), counted=7)
    lacks = parameters(ChangedSizes(bare, None, ("ffn",)), counted=None)
    assert (known(no_way), known(bare_own), known(lacks)) == ((None, None), (7, None), (None, None))
    same = parameters(changed(sequence=1024), counted=None)
    assert parameters(changed(sequence=1024), counted=5).delta == 0  # the sizes tell
    as_many = parameters(changed(heads=32, head_dim=32, kv_heads=32), counted=None)
    nothing = parameters(ChangedSizes(NOW, None, ()), counted=None)
    assert known(same) == known(as_many) == known(nothing) == (0, 0.0)
    said(no_way.how, bare_own.how, lacks.how, same.how, as_many.how)
    both = parameters(changed(sequence=1024, ffn=4160), counted=None)
    assert both.delta == 2 * 2 * 1024 * 64


def test_operations_of_the_step(said: Listener) -> None:
    rows = [replace(ROW, flops=1e12, calls_per_step=3.0), replace(ROW, id="g2", flops=None)]
    step = facts(*rows)
    none = ChangedSizes(NOW, None, ())
    same = Amount(0, 0.0, "")

    def found(change: Any = None, sizes: ChangedSizes = none, weights: Amount = same, **given: Any) -> Amount:
        told: dict[str, Any] = {"of_rows": None, "rows": rows} | given
        return operations(given.pop("step", step), change or {"flag": [0, 1]}, sizes, weights,
                          of_rows=told["of_rows"], rows=told["rows"])  # fmt: skip

    unknown = Amount(None, None, "who knows")
    more, less, as_many = (found(of_rows=frac) for frac in (0.25, -0.25, 0.0))
    assert known(found()) == known(as_many) == (0.0, 0.0) and found(weights=unknown) == unknown
    assert (known(more), known(less)) == ((0.75e12, 0.25), (-0.75e12, -0.25))
    said(found().how, more.how, less.how, as_many.how)
    assert found(of_rows=0.25, step=facts()).frac is None
    open_ = [
        found(sizes=changed(ffn=4160)),
        found(sizes=ChangedSizes(NOW, None, ("ffn",), "no way")),
        *(found({name: [1, 2]}) for name in ("tensor_parallel", "pipeline", "Stage")),
    ]
    assert {known(one) for one in open_} == {(None, None)}
    said([one.how for one in open_])
    whole = facts_of(Shape(1024, 16, 4096, 50257, layers=2, b=4, s=512))
    twice = operations(whole, {"micro_batch": [4, 8]}, sizes_of(whole, {"micro_batch": [4, 8]}), same,
                       of_rows=None, rows=[])  # fmt: skip
    assert twice.frac == pytest.approx(1.0)
    wider = sizes_of(whole, {"ffn": [4096, 8192]})
    said(twice.how, operations(whole, {}, wider, same, of_rows=None, rows=[]).how)


@pytest.mark.parametrize(("trains", "each"), [(True, 16), (False, 2)])
def test_bytes_of_one_gpu(trains: bool, each: int, said: Listener) -> None:
    """Two layers of two matrices 1024 x 64 more: 262,144 weights, of two ranks 131,072 each."""
    rows = [replace(ROW, phase="backward" if trains else "forward")]
    step = facts(*rows)

    def states(now: ModelConfig, weights: Amount | None = None, **then: Any) -> float | None:
        sizes = changed(now=now, **then)
        found = memory(step, {}, sizes, weights or parameters(sizes, counted=None))
        said(found.how)
        return found.states

    assert states(NOW, ffn=4160) == each * 262144
    assert states(replace(NOW, tensor_parallel=2), ffn=4160) == each * 131072
    assert states(NOW, sequence=1024) == 0.0
    bare = ModelConfig(hidden=64)
    own = Amount(100, None, "by hand")
    assert states(bare, own, ffn=8) == each * 100
    shared: tuple[dict[str, Any], ...] = (
        {"tensor_parallel": 2},
        {"expert_parallel": 2},
        {"pipeline_parallel": 2},
    )
    for ranks in shared:
        assert states(replace(bare, **ranks), own, ffn=8) is None
        assert states(replace(bare, **ranks), Amount(0, None, ""), ffn=8) == 0.0
    alone: tuple[dict[str, Any], ...] = ({"tensor_parallel": 1}, {"expert_parallel": 1})
    for one in alone:
        assert states(replace(bare, **one), own, ffn=8) == each * 100
    assert states(bare, Amount(None, None, ""), ffn=8) is None
    for split in (None, True):
        assert states(replace(NOW, vocab_split=split), tensor_parallel=2) == each * -12582912


def test_states_that_ranks_share_are_less_on_each(said: Listener) -> None:
    sizes = changed(ffn=4160)
    purposes = ("FSDP parameter gather", "FSDP gradient scatter", "optimizer shards")
    for purpose in purposes:
        shared = [message(purpose=purpose, group_size=8), message(purpose=purpose, group_size=4)]
        said(memory(facts(ROW, communication=shared), {}, sizes, parameters(sizes, counted=None)).how)
    for away in (
        message(purpose="tensor parallel", group_size=8),
        message(purpose=purposes[0], group_size=None),
    ):
        said(memory(facts(ROW, communication=[away]), {}, sizes, parameters(sizes, counted=None)).how)


def test_activations_are_kept_for_the_backward_alone(said: Listener) -> None:
    """Twice the micro-batch keeps twice as much: as much again, in the width of most of the time."""
    back = replace(ROW, phase="backward")

    def kept(*rows: Any, now: ModelConfig = NOW, **then: Any) -> float | None:
        found = memory(facts(*rows), {}, changed(now=now, **then), Amount(0, 0.0, ""))
        said(found.how)
        return found.activations

    assert kept(ROW, micro_batch=8) == 0.0 and kept(back, micro_batch=4, layers=2) == 0.0
    twice = kept(back, micro_batch=8)
    assert twice is not None and twice > 0
    assert kept(back, micro_batch=2) == pytest.approx(-twice / 2)
    assert kept(replace(back, dtype="fp32"), micro_batch=8) == 2 * twice
    assert kept(replace(back, dtype="fp64"), micro_batch=8) == 4 * twice
    for dtype in ("fp8", "bf16", None):
        assert kept(replace(back, dtype=dtype), micro_batch=8) == twice
    assert kept(back, replace(ROW, phase="recompute"), micro_batch=8) is None
    assert kept(back, now=replace(NOW, experts=8), micro_batch=8) is None
    assert kept(back, now=ModelConfig(hidden=64), micro_batch=8) is None
    staged = kept(back, now=replace(NOW, pipeline_parallel=2), micro_batch=8)
    assert staged is not None and 0 < staged < twice
    none = memory(facts(back), {}, ChangedSizes(NOW, None, ("ffn",), "no way"), Amount(1, 0.0, ""))
    assert none.activations is None and none.delta is None
    said(none.how)
    whole = memory(facts(back), {}, changed(ffn=4160), parameters(changed(ffn=4160), counted=None))
    assert whole.states is not None and whole.activations is not None
    assert whole.delta == whole.states + whole.activations and whole.activations > 0


def test_a_change_of_no_size_leaves_states_as_they_are(said: Listener) -> None:
    none = ChangedSizes(NOW, None, ())

    def found(change: Any, delta: int | None = 0) -> Any:
        return memory(facts(ROW), change, none, Amount(delta, None, "not known for this"))

    assert found({"flag": [0, 1]}).states == 0.0 and found({"flag": [0, 1]}).delta is None
    assert (found({"stages": [1, 2]}).states, found({"flag": [0, 1]}, None).states) == (None, None)
    assert found({"flag": [0, 1]}, None).how == "not known for this"
    said(found({"flag": [0, 1]}).how, found({"stages": [1, 2]}).how)
    for pair in (("dtype", "b"), ("x", "BF16"), ("x", "fp8"), ("x", "fp16"), ("x", "fp32")):
        change = {pair[0]: ["bf16", pair[1]]}
        assert found(change).states == 0.0
        said(found(change).how)


# lines to paste


def lines(now: ModelConfig, **then: Any) -> dict[str, tuple[list[str], str]]:
    return {one.framework: (one.lines, one.note) for one in config_diffs(changed(now=now, **then))}


@pytest.mark.parametrize(
    ("vocab", "then", "ranks", "by"),
    [(50257, 50304, 1, 128), (50257, 50432, 1, 256), (50305, 50368, 1, 64), (50241, 50272, 1, 32),
     (50250, 50256, 1, 16), (50241, 50248, 1, 8), (50241, 50249, 1, None), (50257, 50432, 2, 128),
     (50257, 50688, 4, 128), (50257, 51200, 4, 256), (50000, 50016, 1, 32), (50001, 50008, 1, 8)],
)  # fmt: skip
def test_what_megatron_pads_a_vocabulary_to(
    vocab: int, then: int, ranks: int, by: int | None, said: Listener
) -> None:
    now = replace(NOW, vocab=vocab, tensor_parallel=ranks, vocab_split=False)
    found, note = lines(now, vocab=then)["Megatron-LM arguments"]
    assert found == ([] if by is None else [f"+ --make-vocab-size-divisible-by {by}"])
    said(note)


def test_a_vocabulary_of_parts_is_their_sum(said: Listener) -> None:
    split = replace(NOW, vocab=25152, vocab_split=True, tensor_parallel=2)
    found, note = lines(split, vocab=25216)["nanoGPT"]
    assert found == ["- vocab_size = 50304", "+ vocab_size = 50432"]
    said(note)
    for ranks in (None, 1):
        alone, note = lines(replace(split, tensor_parallel=ranks), vocab=25216)["nanoGPT"]
        assert alone == ["- vocab_size = 25152", "+ vocab_size = 25216"]
        said(note)
    both = lines(replace(split, vocab_split=None), vocab=25216, ffn=4160)
    assert next(iter(both)) == "Every framework" and both["nanoGPT"][0] == []
    assert both["Megatron-LM arguments"][0] == ["- --ffn-hidden-size 4096", "+ --ffn-hidden-size 4160"]
    assert list(lines(replace(split, vocab_split=None), vocab=25216)) == ["Every framework"]
    for ranks in (None, 1):
        assert "Every framework" not in lines(
            replace(split, vocab_split=None, tensor_parallel=ranks), vocab=25216
        )
    wider = lines(split, ffn=4160)
    assert "Every framework" not in wider and lines(NOW) == {}
    said(both["Every framework"][1], wider["Megatron-LM arguments"][1])


def test_settings_that_follow_from_others_are_left_out(said: Listener) -> None:
    hugging = "Hugging Face config.json"
    found, note = lines(NOW, heads=8, kv_heads=8, head_dim=128)[hugging]
    assert found == ['-   "num_attention_heads": 16,', '+   "num_attention_heads": 8,']
    grouped = lines(replace(NOW, kv_heads=4), kv_heads=8)
    assert grouped[hugging][0] == ['-   "num_key_value_heads": 4,', '+   "num_key_value_heads": 8,']
    said(note, grouped["Megatron-LM arguments"][1], grouped["nanoGPT"][1])
    own = lines(replace(NOW, head_dim=32), head_dim=64)
    assert '+   "head_dim": 64,' in own[hugging][0]  # 16 x 32 is not the hidden size
    assert '+   "head_dim": 128,' in lines(NOW, head_dim=128)[hugging][0]
    bare = lines(replace(NOW, heads=None), head_dim=128)
    assert '+   "head_dim": 128,' in bare[hugging][0]
    gate = lines(replace(NOW, gated=True), ffn=4160)[hugging]
    assert gate == (['-   "intermediate_size": 4096,', '+   "intermediate_size": 4160,'], "")
    said(lines(NOW, ffn=4160)[hugging][1])
    longer = lines(NOW, sequence=1024)
    assert longer["Hugging Face"][0] == []
    said(longer["Hugging Face"][1])
    assert longer["nanoGPT"][0] == ["- block_size = 512", "+ block_size = 1024"]
    experts = lines(replace(NOW, experts=8), experts=16)
    said(experts["Hugging Face"][1])
    assert experts["Megatron-LM arguments"][0] == ["- --num-experts 8", "+ --num-experts 16"]
    ranks = lines(replace(NOW, tensor_parallel=2), tensor_parallel=4)
    assert ranks["nanoGPT"][0] == []
    said(ranks["nanoGPT"][1], lines(NOW, vocab=50304)["nanoGPT"][1], lines(NOW, hidden=2048)["nanoGPT"][1])


# sizes of the whole model


@pytest.mark.parametrize(
    ("change", "then"),
    [
        ({"ffn": [4096, 4160]}, 4160), ({"ffn": [2048, 2080]}, 4160), ({"ffn": [1024, 1040]}, None),
        ({"ffn": ["a", "b"]}, None), ({"ffn": [4096, "b"]}, None), ({"experts": [8, 16]}, None),
        ({"flag": [0, 1], "ffn": [4096, 4160]}, 4160),
    ],
)  # fmt: skip
def test_a_change_of_one_rank_is_scaled_to_the_model(change: Any, then: int | None, said: Listener) -> None:
    step = facts(ROW)
    now: Any = SimpleNamespace(now=replace(NOW, tensor_parallel=2))
    found = sizes_of(replace(step, step=now), change)
    assert (found.then.ffn if found.then else None) == then and (found.why == "") is (then is not None)
    said(found.why)


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
    ("change", "state"),
    [
        ({"vocab_size": [50257, 50304]}, "pads"), ({"vocab_size": [50304, 50257]}, "pads"),
        ({"ffn": [4096, 4160]}, "pads"), ({"ffn": [4160, 4096]}, "scratch"),
        ({"kv_heads": [16, 8]}, "converts"), ({"kv_heads": [8, 16]}, "converts"),
        ({"sequence": [512, 1024]}, "loads"), ({"sequence": [1024, 512]}, "loads"),
        ({"hidden": [1, 2]}, "scratch"), ({"top_k": [2, 4]}, "converts"),
        ({"capacity_factor": [1, 2]}, "loads"), ({"dimension_12": [12, 16]}, "unknown"),
        ({"flag": [0, 1]}, "loads"), ({"flag": [0, 1], "ffn": [4160, 4096]}, "scratch"),
        ({"fused_qkv": [False, True]}, "converts"), ({"x": ["a", "fp8"]}, "loads"),
        ({"ffn": [4096, "more"]}, "pads"), ({"ffn": [4096, 4096]}, "pads"),
    ],
)  # fmt: skip
def test_what_becomes_of_a_checkpoint(change: Any, state: str, said: Listener) -> None:
    found = effects_of(facts(ROW), change, effort="config")
    assert found.checkpoint == state
    said(found.checkpoint_how)


def test_words_of_a_vocabulary_on_ranks(said: Listener) -> None:
    untold = effects_of(facts(ROW, dims=model(tensor_parallel=2, vocab=25152)), {"vocab_size": [25152,
        25216]},
                        effort="config")  # fmt: skip
    less = effects_of(facts(ROW, dims=model(tensor_parallel=2, vocab=25216)), {"vocab_size": [25216, 25152]},
                      effort="config")  # fmt: skip
    alone = effects_of(facts(ROW, dims=model(tensor_parallel=1, vocab=25152)), {"vocab_size": [25152, 25216]},
                       effort="config")  # fmt: skip
    said(untold.checkpoint_how, less.checkpoint_how, alone.checkpoint_how, alone.tokenizer)


def test_who_needs_what(said: Listener) -> None:
    back = replace(ROW, phase="backward")
    for row in (back, ROW):
        said(effects_of(facts(row), {"flag": [0, 1]}, effort="config").needs)
    said(effects_of(facts(ROW), {}, effort="code").needs)
    assert effects_of(facts(ROW), {"flag": [0, 1]}, effort="retrain").checkpoint == "unknown"
    none = effects_of(facts(ROW), {"dimension": [12, 16]}, effort="retrain")
    assert none.parameters.delta is None
    counted = effects_of(facts(ROW), {"dimension": [12, 16]}, effort="retrain", parameter_delta=9)
    assert counted.parameters.delta == 9
    both = effects_of(facts(ROW), {"flag": [0, 1], "more": [2, 3]}, effort="config")
    said(none.parameters.how, both.undo)


# trials and simulations


def test_what_is_slower_is_not_advised_whichever_sizes_change(said: Listener) -> None:
    one: Any = SimpleNamespace(change={"heads": [16, 8], "kv_heads": [16, 8], "head_dim": [64, 128]})
    more: Any = SimpleNamespace(change={"micro_batch": [4, 8]})
    said(why_not(span(-1, -1, -1), one, "step"), why_not(span(-1, -1, -1), more, "step"))


def trial(value: int, low: float, mid: float, high: float, **change: Any) -> Any:
    made = SimpleNamespace(saving_ms=span(low, mid, high), change=change or {"ffn": [8, value]})
    return SimpleNamespace(value=value, found=made, saving_ms=made.saving_ms)


def test_values_that_are_simulated_and_why_others_are_not(said: Listener) -> None:
    step = facts_of(Shape(1024, 16, 4096, 50257, layers=2, b=4, s=512))
    found, why = try_values(step, "ffn", [4160, 4224])
    assert [one.value for one in found] == [4160, 4224] and why == ""
    none, why = try_values(facts(ROW), "ffn", [1, 2])
    assert none == [] and why and isinstance(simulate(step, None), str)
    said(why, simulate(step, None), simulate(step, {}))
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
    with pytest.raises(Answer) as error:
        need_likely([trial(1, 0.0, 0.4, 1.0), trial(2, 0.0, 0.5, 2.0)], "ffn", "width", facts(ROW,
            step_ms=100.0),
                    bound_ms=9.0, saw="Seen.")  # fmt: skip
    assert error.value.outcome.state == "passed"
    close = nearly_best([trial(1, 0, 3.0, 9), trial(2, 0, 2.0, 9), trial(3, 0, 1.99, 9)], 100.0, bound_ms=9.0)
    assert [one.value for one in close] == [1, 2]
    said(error.value, in_words("ffn", trial(8, 0.0, 0.0, 1.0), 100.0))


def row_of(component: str, role: str | None, now: float, then: float) -> Any:
    return SimpleNamespace(component=component, role=role, gemm="g1", how=f"{role}", time_ms=now,
                           then_ms=SimpleNamespace(mid=then))  # fmt: skip


def derived(
    bound: float = 9.0, rows: int = 1, rest: float | None = 0.0, high: float | None = 3.0, **change: Any
) -> str:
    found: Any = SimpleNamespace(
        saving_ms=Estimate(1.0, 2.0, high, "model"), change=change or {"ffn": [1, 2]},
        rows=[row_of("mlp.up", "forward", 4.0, 3.0), row_of("mlp.down", None, 2.0, 1.5),
              row_of("mlp.down", "dgrad", 2.0, 2.5)][:rows],
        rest=[SimpleNamespace(time_ms=5.0,
            then_ms=SimpleNamespace(mid=5.0 - rest))] if rest is not None else [],
    )  # fmt: skip
    return "\n".join(derivation(found, bound, rows_in_full=1))


def test_the_arithmetic_of_a_simulated_change(said: Listener) -> None:
    said(derived(rest=None), derived(rows=1), derived(rows=2), derived(rows=3))
    said([derived(rest=rest) for rest in (1.0, -1.0, 0.0, -9e-7, 2e-6)])
    said(derived(3.0), derived(high=None), derived(2.5))
    # 9 ms now, half again as many tokens: (9 - 2) x 1.5 then
    said(derived(micro_batch=[4, 6]))


# findings


def concluded(*candidates: Candidate, **given: Any) -> Any:
    rule: Any = SimpleNamespace(id="TL101", slug="pad-vocabulary",
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


def test_a_saving_is_no_more_than_the_step_and_from_nothing_where_it_waits(said: Listener) -> None:
    (far,) = concluded(candidate(150.0, saving=span(10.0, 120.0, 150.0))).findings
    assert (far.saving_ms.high, far.evidence["bound_ms"]) == (100.0, 100.0) and far.saving_frac.high == 1.0
    (near,) = concluded(candidate(9.0, saving=span(1.0, 2.0, 9.0))).findings
    (idle,) = concluded(candidate(9.0, saving=span(1.0, 2.0, 3.0)), gpu_busy_frac=0.5).findings
    assert (idle.saving_ms.low, idle.saving_of) == (0.0, "gpu_work")
    (slower,) = concluded(candidate(9.0, saving=span(-1.0, 2.0, 3.0)), gpu_busy_frac=0.5).findings
    assert slower.saving_ms.low == -1.0
    (whole,) = concluded(candidate(9.0, saving=span(0.0, 2.0, 3.0))).findings
    said([one.how for one in (far, near, idle, slower, whole)])


def test_a_bound_is_written_out_for_three_rows(said: Listener) -> None:
    (one,) = concluded(candidate(1.0, 2.0, 3.0, 4.0, 5.0)).findings
    assert one.gemms == ["g5", "g4", "g3", "g2", "g1"]
    said(one.how)
    (three,) = concluded(candidate(1.0, 2.0, 3.0)).findings
    (beside,) = concluded(candidate(1.0, elsewhere_ms=2.0)).findings
    (blind,) = concluded(candidate(1.0), gpu=UNKNOWN_GPU).findings
    (narrow,) = concluded(candidate(1.0), gpu=replace(UNKNOWN_GPU, bandwidth_gbps=1.0)).findings
    said([found.how for found in (three, beside, blind, narrow)])
    assert (one.saving_ms.low, one.saving_ms.mid, one.saving_ms.high) == (0.0, None, 15.0)


def test_what_is_left_out_beside_findings(said: Listener) -> None:
    two = concluded(candidate(2.0), candidate(0.05), candidate(0.01, least=0.01),
                    candidate(9.0, saving=span(-5.0, -1.0, 0.0)), candidate(3.0, saving=span(1.0, 2.0,
                        3.0)))  # fmt: skip
    assert [one.saving_ms.mid for one in two.findings] == [None, 2.0]
    said(two.why)
    assert two.bounds_ms == {"g1": 3.0} and two.changes == (None, None)
    beside = concluded(candidate(2.0, elsewhere_ms=1.0))
    assert beside.bounds_ms == {"g1": 2.0, "TL101 outside of rows": 1.0}
    waits = concluded(candidate(0.09), of_waits=True, mean_ms=80.0)
    assert waits.state == "found" and waits.findings[0].saving_of == "wait"
    assert concluded(candidate(0.09), mean_ms=80.0).state == "passed"
    low = concluded(candidate(0.09), of_waits=True, mean_ms=0.0)
    assert low.state == "passed"
    said(low.why)


def test_a_simulated_change_has_its_own_weights_and_notes(said: Listener) -> None:
    """Half of an MLP of 4096 in each of two layers; with half of the hidden size the MLP stays as it is."""
    step = facts_of(Shape(1024, 16, 4096, 50257, layers=2, b=4, s=512))
    rows = [row for row in step.gemms if row.component.startswith("mlp")]

    def found(change: dict[str, int]) -> Finding:
        one = replace(candidate(simulate=change), bounds=[Bound(row, row.time_ms_per_step) for row in rows])
        rule: Any = SimpleNamespace(id="TL101", slug="pad-vocabulary", of_waits=False)
        return conclude(rule, facts=step, candidates=[one], passed="").findings[0]

    half = found({"ffn": 2048})
    assert (half.parameter_delta, half.evidence["simulated"]) == (-2 * 2 * 1024 * 2048, {"ffn": 2048})
    assert half.caveats == [] and half.saving_ms == what_if(step.step, {"ffn": 2048}).saving_ms  # type: ignore[arg-type]
    said(found({"hidden": 512, "heads": 8}).caveats)


def test_ranks_need_their_multiple(said: Listener) -> None:
    (one,) = concluded(candidate(2.0, shared="yes"), dims=model(tensor_parallel=2)).findings
    (perhaps,) = concluded(candidate(2.0, shared="perhaps"), dims=model(tensor_parallel=2)).findings
    for shared, ranks in (("yes", 1), ("no", 2)):
        (none,) = concluded(candidate(2.0, shared=shared), dims=model(tensor_parallel=ranks)).findings
        assert len(none.caveats) == len(one.caveats) - 1
    (open_,) = concluded(candidate(2.0, simulate={"ffn": 9})).findings
    (plain,) = concluded(candidate(2.0)).findings
    assert plain.parameter_delta is None
    for found in (one, perhaps, open_, plain):
        said("\n".join(found.caveats))
    (own,) = concluded(candidate(2.0, parameter_delta=0, gemms=[replace(ROW, id="g7")])).findings
    assert own.parameter_delta == 0 and own.gemms == ["g7"]


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
def test_sixteen_bits_cost_their_casts(role: str | None, weight: int, rest: int, said: Listener) -> None:
    """6 bytes an element at 3350 GB/s: the weight's for certain, all operands' at worst, three times."""
    row = fp32(role=role, calls=3.0)
    step = step_of([row])
    case = Precision([row], "fp32", ("tf32", "bf16"), False)
    found = case.savings(step)
    half = found["bf16"]
    now, then = (
        predict_gemm(2048, 1024, 512, gpu=H100, dtype=dtype).time_us.known for dtype in ("fp32", "bf16")
    )
    assert half is not None and now is not None and then is not None
    sure, worst = (3 * 6 * elements / 3350e6 for elements in (weight, rest))
    then_us = 2000 * then.mid / now.mid  # forty times as slow as predicted, in either type
    faster = FAR_ERROR + 0.5 * math.log(max(then.mid / then.low, now.high / now.mid))
    slower = FAR_ERROR + 0.5 * math.log(max(then.high / then.mid, now.mid / now.low))
    assert half.mid == pytest.approx(3 * (2000 - then_us) / 1e3 - sure)
    assert half.low == pytest.approx(3 * (2000 - then_us * math.exp(slower)) / 1e3 - sure - worst)
    assert half.high == pytest.approx(3 * (2000 - then_us * math.exp(-faster)) / 1e3 - sure)
    said(case.arithmetic(step, "bf16"), case.arithmetic(step, "tf32"))
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


def test_the_arithmetic_of_three_rows(said: Listener) -> None:
    rows = [fp32(at, time_us=100.0 * at) for at in range(1, 6)]
    blind = replace(fp32(9, time_us=50.0), m=None)
    step = step_of([*rows, blind])
    all_ = Precision([*rows, blind], "fp32", ("tf32",), False).arithmetic(step, "tf32")
    assert re.findall(r"\((g\d)\)", all_) == ["g5", "g4", "g3"]
    said(all_)
    for few in (rows[:3], rows[:4]):
        said(Precision(few, "fp32", ("tf32",), False).arithmetic(step, "tf32"))


@pytest.mark.parametrize(
    ("tensor_core", "by_name"),
    [(None, None), (None, False), ("eligible_unused", None), ("used", None), (None, True)],
)
def test_kernels_that_do_not_say(tensor_core: Any, by_name: Any, said: Listener) -> None:
    row = replace(ROW, tensor_core=tensor_core, kernel_tensor_core=by_name)
    said(on_tensor_cores(facts(row), [row]))


def test_most_of_the_time_has_to_be_told(said: Listener) -> None:
    """Half of the time without a word is still judged, more is not."""
    silent = fp32(1, tensor_core=None, kernel_tensor_core=None, kernel="x")
    told = fp32(2)
    assert need_precisions(facts(silent, told), [silent, told])[0].rows == [told]
    long = replace(silent, time_ms_per_step=2.01)
    for gpu, silent in ((facts().gpu, long), (UNKNOWN_GPU, long), (facts().gpu, replace(long, m=None))):
        with pytest.raises(Answer) as error:
            need_precisions(facts(silent, told, gpu=gpu), [silent, told])
        assert error.value.outcome.state == "could_not_run"
        said(error.value)
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
    ("layers", "stages"), [(20, 1), (40, 1), (2, 1), (1, 1), (0, 1), (20, 2), (20, None)]
)
def test_the_last_layers_stay_in_bf16(layers: int, stages: int | None, said: Listener) -> None:
    dims = model(layers=layers)
    dims = replace(dims, pipeline_parallel=replace(dims.layers, value=stages))
    back = replace(LINEAR, phase="backward")
    said(less_of_nvfp4(facts(back, dims=dims), 10.0))
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
