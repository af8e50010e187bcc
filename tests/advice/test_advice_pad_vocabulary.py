"""TL101: what is found, what passes, and what the bound is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_answers import says_why
from tests.advice.advice_rows import (
    H100,
    NVJET,
    SIMT,
    UNKNOWN_GPU,
    bert_small_logits,
    cutlass,
    facts,
    gemm,
    model,
)
from tests.said import Listener
from tracelens.results import Finding, GemmRow
from tracelens.rules.evidence.vocabulary import vocabulary_shared
from tracelens.rules.pad_vocabulary import PadVocabulary

RULE = PadVocabulary()


def one(*rows: GemmRow, **more: Any) -> Finding:
    (finding,) = RULE.check(facts(*rows, **more)).findings
    return finding


def training(vocab: int, kernel: str) -> list[GemmRow]:
    common: dict[str, Any] = {"component": "logits", "kernel": kernel, "time_us": 4000.0}
    return [
        gemm(1, 8192, vocab, 2560, names=("b*s", "v", "h"), **common),
        gemm(2, 8192, 2560, vocab, role="dgrad", layout="NN", names=("b*s", "h", "v"), **common),
        gemm(3, vocab, 2560, 8192, role="wgrad", layout="NT", names=("v", "h", "b*s"), **common),
    ]


def test_bert_small_is_found_with_its_kernel_as_proof(said: Listener) -> None:
    finding = one(bert_small_logits(), step_ms=3.9078, dims=model(vocab=30522, hidden=512))
    assert finding.change == {"vocab_size": [30522, 30528]}
    assert finding.fix == ["- vocab_size = 30522", "+ vocab_size = 30528"]
    assert finding.parameter_delta == 6 * 512
    assert finding.flops_delta == pytest.approx(6 / 30522)
    assert (finding.confidence, finding.severity, finding.effort) == ("medium", "low", "config")
    said(finding.title, finding.saw)


def test_the_bound_is_the_time_above_the_roofline(said: Listener) -> None:
    finding = one(bert_small_logits(), step_ms=3.9078, dims=model(vocab=30522, hidden=512))
    moved = 2 * (141 * 512 + 512 * 30522 + 141 * 30522)
    floor_us = max(2 * 141 * 30522 * 512 / 989e12, moved / 3350e9) * 1e6
    assert finding.saving_ms.high == pytest.approx((41.3 - floor_us) / 1e3)
    assert (finding.saving_ms.low, finding.saving_ms.mid, finding.saving_ms.basis) == (0.0, None, "heuristic")
    assert finding.saving_frac.high == pytest.approx((41.3 - floor_us) / 1e3 / 3.9078)
    said(finding.how)


def test_all_three_products_of_training_count(said: Listener) -> None:
    finding = one(*training(50257, cutlass(1)), step_ms=100.0, dims=model(vocab=50257, hidden=2560))
    assert finding.gemms == ["g1", "g2", "g3"]
    assert finding.severity == "high"
    assert finding.parameter_delta == 47 * 2560
    told = one(*training(50257, cutlass(1)), step_ms=100.0, dims=model(vocab=50257))
    assert told.parameter_delta == 47 * 2560  # the width that the forward GEMM reads
    assert finding.effects is not None and finding.effects.parameters.delta == 120320
    said(finding.caveats, finding.effects.parameters.how)


def test_inference_only_masks_the_sampling(said: Listener) -> None:
    said(one(bert_small_logits()).caveats)


def test_a_vocabulary_on_the_grid_leaves_little_at_stake(said: Listener) -> None:
    finding = one(*training(50280, NVJET), step_ms=100.0, dims=model(vocab=50280, hidden=2560))
    assert finding.saving_ms.high is not None and finding.saving_ms.high <= 12.0 * (1 - 226 / 256) + 1e-9
    assert finding.confidence == "low"
    assert finding.severity != "high"
    said(finding.saw)


def test_a_multiple_of_16_leaves_less() -> None:
    less = one(*training(50272, NVJET), step_ms=10.0).saving_ms.high
    more = one(*training(50280, NVJET), step_ms=10.0).saving_ms.high
    assert less is not None and more is not None and less < more


def test_an_odd_vocabulary_on_a_full_width_kernel_is_no_alarm() -> None:
    finding = one(*training(50257, NVJET), step_ms=100.0)
    assert finding.confidence == "low"
    assert finding.saving_frac.high is not None and finding.saving_frac.high < 0.015


def test_a_kernel_of_unknown_name_gives_medium_confidence() -> None:
    assert one(*training(50257, "some_kernel"), step_ms=100.0).confidence == "medium"


def test_the_vocabulary_is_read_off_the_logits_when_the_model_has_none() -> None:
    assert one(bert_small_logits(), dims=model(hidden=512)).change["vocab_size"] == [30522, 30528]


def test_without_gpu_figures_all_but_the_start_of_a_kernel_counts_and_is_said_so(said: Listener) -> None:
    finding = one(bert_small_logits(), gpu=UNKNOWN_GPU)
    assert finding.saving_ms.high == pytest.approx(0.0413 - 0.003)
    said(finding.how)


def test_logits_of_a_cuda_graph_have_the_vocabulary_that_it_captured(said: Listener) -> None:
    """Their kernels have no shapes: which GEMM is the logits', and what the model's sizes are, tells."""
    row = gemm(1, None, None, None, dtype=None, kernel=cutlass(1), component="logits", time_us=9000.0)
    finding = one(row, dims=model(vocab=50257, hidden=2560))
    assert finding.change == {"vocab_size": [50257, 50304]} and finding.gemms == ["g1"]
    said(finding.saw)


def test_a_multiple_of_64_passes(said: Listener) -> None:
    says_why(RULE.check(facts(*training(50304, NVJET), dims=model(vocab=50304))), "passed", said)


def test_next_to_nothing_at_stake_passes_and_says_the_figure(said: Listener) -> None:
    outcome = RULE.check(facts(bert_small_logits(), step_ms=1000.0, dims=model(vocab=30522)))
    assert outcome.state == "passed" and not outcome.findings
    said(outcome.why)


def test_fp32_on_cuda_cores_is_not_its_matter() -> None:
    row = bert_small_logits(kernel=SIMT, dtype="fp32", tensor_core="eligible_unused")
    outcome = RULE.check(facts(row))
    assert outcome.state == "not_applicable"


def test_without_logits_it_does_not_apply(said: Listener) -> None:
    assert RULE.check(facts()).state == "not_applicable"
    assert RULE.check(facts(gemm(1, 64, 64, 64))).state == "not_applicable"
    says_why(RULE.check(facts(gemm(1, 64, 64, 64), dims=model(vocab=30522))), "not_applicable", said)
    assert RULE.check(facts(gemm(1, 64, 64, 64), dims=model(False))).state == "not_applicable"


def test_without_shapes_or_step_it_could_not_run(said: Listener) -> None:
    blind = gemm(1, None, None, None, component="logits", kernel=cutlass(2))
    said(RULE.check(facts(blind)).why)
    assert RULE.check(facts(blind)).state == "could_not_run"
    assert RULE.check(facts(gemm(1, None, None, None))).state == "could_not_run"
    assert RULE.check(facts(bert_small_logits(), step_ms=None)).state == "could_not_run"
    assert RULE.check(facts(bert_small_logits(), step_ms=0.0)).state == "could_not_run"


def test_logits_that_were_not_recognized_are_not_called_absent(said: Listener) -> None:
    says_why(
        RULE.check(facts(gemm(1, 64, 64, 64, component="unattributed"), dims=model(True))),
        "could_not_run",
        said,
    )


def test_other_vendors_are_not_judged_by_nvidia_figures(said: Listener) -> None:
    says_why(
        RULE.check(facts(bert_small_logits(), gpu=replace(H100, name="mi300x", vendor="amd"))),
        "could_not_run",
        said,
    )


def test_what_torch_compile_padded_is_not_the_vocabulary(said: Listener) -> None:
    """pad_mm ran 50257 as 50264: the model is padded from what it has, and alignment is what ran."""
    rows = [replace(row, padded_from={letter: 50257})
            for row, letter in zip(training(50264, NVJET), "nkm", strict=True)]  # fmt: skip
    dims = model(vocab=50264, hidden=2560)
    finding = one(*rows, step_ms=100.0, dims=dims)
    assert finding.change == {"vocab_size": [50257, 50304]} and finding.parameter_delta == 47 * 2560
    assert finding.gemms == ["g1", "g2", "g3"]
    assert finding.flops_delta == pytest.approx(40 / 50264)
    assert finding.evidence["row_begins_on_bytes"] == 16
    asked = one(*rows, step_ms=100.0, dims=model(vocab=50257, hidden=2560))  # the model's, as it asked
    assert (asked.title, asked.saw, asked.gemms) == (finding.title, finding.saw, finding.gemms)
    wide = [replace(row, padded_from={"n": 50257}) for row in training(50304, NVJET)[:1]]
    passed = RULE.check(facts(*wide, step_ms=100.0, dims=model(vocab=50304, hidden=2560)))
    assert passed.state == "passed"
    said(finding.title, finding.saw, passed.why)


def test_what_was_seen_of_the_rows_is_said(said: Listener) -> None:
    fallback = one(bert_small_logits(), dims=model(vocab=30522, hidden=512))
    seen = {name: fallback.evidence[name] for name in ("vocabulary", "row_begins_on_bytes")}
    assert seen == {"vocabulary": 30522, "row_begins_on_bytes": 4}
    assert fallback.evidence["kernel_loads_bytes"] == {"g1": 4}
    assert fallback.evidence["next_multiple_of_128"] == 30592
    untyped = one(bert_small_logits(dtype=None), dims=model(vocab=30522, hidden=512))
    assert untyped.evidence["row_begins_on_bytes"] is None
    unnamed = one(*training(50257, "some_kernel"), step_ms=100.0)
    assert unnamed.evidence["kernel_loads_bytes"]["g1"] is None
    said(fallback.saw, untyped.saw, unnamed.saw)


@pytest.mark.parametrize(
    ("vocab", "kernel", "frac"),
    [
        (50257, NVJET, 1 - 226 / 256),  # an odd vocabulary whose kernels load 16 bytes: padded storage
        (50280, NVJET, 1 - 226 / 256),  # 16 bytes
        (50272, NVJET, 1 - 245 / 256),  # 64 bytes
        (50280, "some_kernel", 1 - 226 / 256),
        (50256, NVJET, 1 - 245 / 256),  # 32 bytes
    ],
)
def test_with_full_loads_no_more_is_at_stake_than_an_a100_lost(
    vocab: int, kernel: str, frac: float, said: Listener
) -> None:
    finding = one(*training(vocab, kernel), step_ms=100.0, dims=model(vocab=vocab, hidden=2560))
    assert finding.saving_ms.high == pytest.approx(12.0 * frac)
    said(finding.how)


def test_confidence_is_of_what_is_at_stake() -> None:
    """Half of it by name is high; half of it by size is medium; less is low."""

    def confidence(*kernels: str, vocab: int = 50257) -> str:
        rows = [
            gemm(at, 8192, vocab, 2560, component="logits", kernel=kernel, time_us=4000.0)
            for at, kernel in enumerate(kernels, 1)
        ]
        (candidate,), _ = RULE.look(facts(*rows, step_ms=100.0, dims=model(vocab=vocab, hidden=2560)))
        return candidate.confidence

    assert confidence(cutlass(1), cutlass(1)) == "high"
    assert confidence(cutlass(1), "some_kernel") == "high"
    assert confidence(cutlass(1), "some_kernel", "some_kernel") == "medium"
    assert confidence("some_kernel", "some_kernel") == "medium"
    assert confidence(NVJET, NVJET) == "low"
    assert confidence("some_kernel", vocab=50280) == "low"  # rows on 16 bytes
    assert confidence("some_kernel", vocab=50276) == "medium"  # on 8
    assert confidence("some_kernel", NVJET) == "medium"


def test_the_reason_is_that_of_rows_on_the_grid_or_off_it() -> None:
    off = one(*training(50257, cutlass(1)), step_ms=100.0).why
    on = one(*training(50280, NVJET), step_ms=100.0).why
    assert on != off
    assert one(*training(50276, cutlass(4)), step_ms=100.0).why == off  # 8 bytes
    assert one(bert_small_logits(dtype=None), dims=model(vocab=30522)).why == off


def test_a_rank_s_slice_of_the_vocabulary_has_to_come_out_even(said: Listener) -> None:
    for ranks in (8, 1):
        dims = model(vocab=50257, hidden=2560, tensor_parallel=ranks)
        said("\n".join(one(*training(50257, cutlass(1)), step_ms=100.0, dims=dims).caveats))


@pytest.mark.parametrize("whole", [51200, None])
def test_a_rank_s_slice_is_said_to_be_one(whole: int | None, said: Listener) -> None:
    for part in (6400, 6402):
        dims = model(vocab=part, tensor_parallel=8)
        dims = replace(dims, vocab=replace(dims.vocab, per_rank=True, whole=whole and 8 * part))
        outcome = RULE.check(facts(*training(part, cutlass(1)), step_ms=100.0, dims=dims))
        said(outcome.why, [[one.title, one.saw, *one.fix] for one in outcome.findings])


@pytest.mark.parametrize(("split", "shared"), [(True, "yes"), (False, "no"), (None, "perhaps")])
def test_a_vocabulary_that_every_rank_has_whole_needs_no_multiple(split: bool | None, shared: str) -> None:
    step: Any = SimpleNamespace(now=SimpleNamespace(vocab_split=split))
    assert vocabulary_shared(replace(facts(bert_small_logits()), step=step)) == shared


def test_the_next_multiple_of_128_is_counted_from_the_padded_size(said: Listener) -> None:
    found = one(*training(50200, NVJET), step_ms=10.0, dims=model(vocab=50200))
    assert found.change["vocab_size"] == [50200, 50240] and found.evidence["next_multiple_of_128"] == 50304
    said(found.caveats)
