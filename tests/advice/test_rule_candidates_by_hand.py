"""Rules' candidates made of evidence that is given as values: diffs, counts, notes and reasons."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_facts import other, step_of
from tests.advice.advice_rows import H100, NVJET, facts, gemm, model
from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.results import Span
from tracelens.rules import explain
from tracelens.rules import tensor_parallel as ranks_rule
from tracelens.rules import unfused_attention as fused
from tracelens.rules import unfused_projections as projections
from tracelens.rules.attention_backend import AttentionBackend
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Answer
from tracelens.rules.evidence.attention_chain import TRAINED_BIAS
from tracelens.rules.evidence.fused_attention import TENSOR
from tracelens.rules.evidence.low_precisions import TypeGain
from tracelens.rules.evidence.projections import FAMILIES, groups_of
from tracelens.rules.evidence.slices import Slices
from tracelens.rules.evidence.vocabulary import confidence
from tracelens.rules.evidence.widths import GatedMlp
from tracelens.rules.host_waits import _SAID
from tracelens.rules.layout_copies import _CAUSES, _candidate
from tracelens.rules.low_precision import LowPrecision, _back
from tracelens.rules.pad_vocabulary import PadVocabulary
from tracelens.rules.swiglu_width import _candidate as width_of
from tracelens.rules.wave_cliffs import _caveats

LAYER = [
    gemm(1, 2048, 4096, 4096, component="attention.qkv", calls=4.0, time_us=100.0),
    gemm(2, 2048, 1024, 4096, component="attention.qkv", calls=8.0, time_us=50.0),
    gemm(3, 2048, 4096, 4096, component="attention.output", calls=4.0),
]


@pytest.mark.parametrize(("ranks", "asked"), [(2, [1]), (4, [2, 1]), (6, [3, 2, 1]), (8, [4, 2, 1])])
def test_fewer_ranks_that_are_tried_divide_the_present_ones(
    ranks: int, asked: list[int], monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    seen: list[int] = []

    def simulate(_step: Any, change: dict[str, int]) -> str:
        seen.append(change["tensor_parallel"])
        return "made up"

    rows = [gemm(1, 64, 64, 64)]
    monkeypatch.setattr(ranks_rule, "simulate", simulate)
    monkeypatch.setattr(ranks_rule, "need_slices", lambda _: Slices(ranks, rows, [], [], "", None, 0.0))
    with pytest.raises(Answer) as found:
        ranks_rule.TensorParallel().look(step_of(rows))
    assert seen == asked and found.value.outcome.state == "could_not_run"
    said(found.value.outcome.why)


def test_the_width_of_a_rank_is_its_part() -> None:
    rows = [gemm(1, 2048, 1365, 1024)]
    found = width_of(facts(*rows), GatedMlp(1365, 2, rows), 2816, None)
    assert found.evidence == {"ffn_per_rank": [1365, 1408]} and found.change == {"ffn": [2730, 2816]}
    assert found.flops_delta == pytest.approx(1408 / 1365 - 1)


def test_projections_of_one_input_are_counted(said: Listener) -> None:
    """A query and two narrow ones in each of four layers; the narrow ones alone are keys and values."""
    step = facts(*LAYER, dims=model(hidden=4096), step_ms=100.0)
    groups = groups_of(step, FAMILIES[0])
    found = projections._candidate(step, FAMILIES[0], groups)
    assert found.change == {"projections": [3, 1]}
    assert (found.confidence, found.saving, found.how, len(found.caveats)) == ("low", None, "", 1)
    assert (found.parameter_delta, found.flops_delta, found.counts) == (0, 0.0, "kernels")
    assert len(found.fix) == 2
    said(found.title, found.saw)
    single = projections._candidate(step, FAMILIES[0], [_once(groups[0])])
    said(single.saw)
    narrow = projections._candidate(step, FAMILIES[0], [_parts(groups[0], 1)])
    assert narrow.change == {"projections": [2, 1]}
    assert narrow.fix[0].startswith("- k, v = ")
    said(narrow.title)
    back = projections._candidate(step, FAMILIES[0], [groups[0], _role(groups[0], "dgrad")])
    assert len(back.caveats) == 2
    said(back.saw)
    known = step_of(LAYER, dims=model(hidden=4096))
    assert projections._candidate(known, FAMILIES[0], groups).confidence == "medium"


def _once(group: Any) -> Any:
    return _changed(group, calls=1.0)


def _parts(group: Any, first: int) -> Any:
    return _changed(group, parts=group.parts[first:])


def _role(group: Any, role: str) -> Any:
    return _changed(group, role=role)


def _changed(group: Any, **given: Any) -> Any:
    names = ("role", "parts", "calls", "width", "apart", "time_us", "sizes", "off_grid", "into", "tokens")
    return SimpleNamespace(**({name: getattr(group, name) for name in names} | given))


@pytest.mark.parametrize(
    "given",
    [
        {}, {"dtype": "fp32"}, {"dtype": "bf16"}, {"dtype": "fp32", "call": "math"}, {"value_dim": 64},
        {"kind": "copy"}, {"kind": "elementwise"}, {"mask": True},
        {"mask": True, "saving": Span(0.0, 1.0, 2.0, "model")}, {"unusual": ["dropout"]},
        {"unusual": [TRAINED_BIAS]},
    ],
)  # fmt: skip
def test_notes_of_a_fused_kernel(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    core = SimpleNamespace(dtype=given.get("dtype"), value_dim=given.get("value_dim", 128), head_dim=128)
    kinds = [SimpleNamespace(kind=given["kind"])] if "kind" in given else []
    chain = SimpleNamespace(call=given.get("call", "code"), between=kinds, beside=[], maybe=[])
    found: Any = SimpleNamespace(
        chain=chain, cores=[core], unusual=given.get("unusual", []), saving=given.get("saving")
    )
    monkeypatch.setattr(fused, "masks_of", lambda _: (TENSOR,) if given.get("mask") else ())
    monkeypatch.setattr(fused, "masked_of", lambda _, cores: cores)
    said(fused._caveats(found))


def test_twenty_copies_are_named(said: Listener) -> None:
    rows = [other(at, "copy", time_us=float(at)) for at in range(1, 26)]
    found = _candidate(facts(gemm(1, 64, 64, 64), step_ms=100.0), _CAUSES[-1], rows)
    assert len(found.evidence["copies"]) == 20 and len(found.kernels) == 25
    assert found.parameter_delta == 0
    said(found.title)
    one = _candidate(facts(step_ms=100.0), _CAUSES[-1], [other(1, "copy", calls=1.0)])
    said(one.title)


def test_how_sure_a_padded_vocabulary_is_at_half() -> None:
    def bound(kernel: str, ms: float) -> Bound:
        return Bound(gemm(1, 1024, 50257, 512, component="logits", kernel=kernel), ms)

    assert confidence([bound("some", 1.0), bound(NVJET, 1.0)], 50257) == "medium"
    assert confidence([bound("some", 1.0), bound(NVJET, 1.01)], 50257) == "low"
    assert confidence([], 50257) == "low"
    row = gemm(1, 1024, 50257, 512, component="logits")
    (plain,), _ = PadVocabulary().look(facts(row, dims=model(vocab=50257), step_ms=100.0))
    assert "padded_by_torch_compile" not in plain.evidence
    ran = gemm(1, 1024, 50264, 512, component="logits", padded_from={"n": 50257})
    (padded,), _ = PadVocabulary().look(facts(ran, dims=model(vocab=50264), step_ms=100.0))
    assert padded.evidence["padded_by_torch_compile"] == 50264


def test_layers_that_are_faster_in_bf16(said: Listener) -> None:
    row = gemm(1, 64, 64, 64, dtype="fp8")
    gain = TypeGain("mlp.up", "bf16", (Bound(row, 0.5),), Span(0.1, 0.2, 0.3, "model"))
    found = _back(facts(row, others=[], step_ms=100.0), [gain])
    assert (found.parameter_delta, found.flops_delta) == (0, 0.0)
    assert found.change == {"precision": ["fp8", "bf16"]} and found.components == ["mlp.up"]
    said(found.title)
    blind = gemm(1, None, None, None, component="mlp.up")
    with pytest.raises(Answer) as error:
        LowPrecision().look(facts(blind))
    said(error.value)
    with pytest.raises(Answer) as error:
        LowPrecision().look(facts(blind, gemm(2, 64, 64, 64, component="mlp.up"), gpu=H100))
    said(error.value)
    with pytest.raises(Answer) as error:
        LowPrecision().look(facts(gemm(1, None, None, None, component="logits")))
    said(error.value)


def test_words_of_small_things(said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        explain("x" * 50)
    said(str(error.value).partition(" TL")[0])
    assert "max_memory_allocated" in _caveats(4, 5)[1] and "max_memory" not in _caveats(4, 3)[1]
    assert len(_caveats(4, 5)) == 4 and len(_caveats(4, 3)) == 3
    assert [len(fix) for _, _, fix in _SAID.values()] == [2] * 6
    with pytest.raises(Answer) as found:
        AttentionBackend().look(facts(gemm(1, 64, 64, 64)))
    assert found.value.outcome.absent and found.value.outcome.attention
