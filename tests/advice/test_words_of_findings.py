"""What findings say of a made-up step, figure by figure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice import test_advice_expert_imbalance as imbalance
from tests.advice import test_advice_gemms_beside_collectives as beside
from tests.advice import test_advice_misaligned_views as views
from tests.advice.advice_messages import message
from tests.advice.advice_rows import cutlass, facts, gemm, model
from tests.said import Listener
from tracelens.results import Clock, StepPace
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.pages import why
from tracelens.rules.evidence.vocabulary import confidence
from tracelens.rules.falling_clock import FallingClock
from tracelens.rules.pad_vocabulary import PadVocabulary
from tracelens.rules.unaligned_payload import UnalignedPayload


def test_gemms_beside_a_collective_of_13_of_132_sms(said: Listener) -> None:
    """10 calls of 1 ms alone, 5 of them beside it in 2 ms; 10 waves become 12 where 13 SMs are left out."""
    (carved,) = beside.check(beside.row_of()).findings
    assert carved.why == why("TL118", "second wave") != why("TL118")
    said(carved.title, carved.saw, carved.how, carved.caveats[1])
    row = beside.row_of(tiles=100)
    (fewer,) = beside.check(row).findings
    assert fewer.fix == ["+ export NCCL_MAX_CTAS=6  # now 13"] and fewer.change == {}
    assert fewer.why == why("TL118")
    assert row.beside is not None
    said(fewer.title)
    unknown = replace(row, beside=replace(row.beside, ctas=None))
    (silent,) = beside.check(unknown).findings
    assert silent.fix == ["+ export NCCL_MAX_CTAS=1"] and "CTAs" not in silent.saw
    two = replace(
        row, id="g2", component="mlp.down", beside=replace(row.beside, collectives={"all_gather": 1.0})
    )
    (both,) = beside.check(row, two).findings
    assert both.components == ["mlp.up", "mlp.down"] and both.saving_ms.high == pytest.approx(10.0)
    said(both.saw)


def test_an_uneven_load_of_eight_ranks(said: Listener) -> None:
    found = imbalance.check(imbalance.sent(None, group_size=4), imbalance.sent(0.3)).findings[0]
    said(found.saw)
    (bound,) = (one for one in found.evidence["rows"])
    assert bound["bound_ms"] == pytest.approx(0.3 / 1.3 * 6.0)
    for uneven, state in ((0.0999, "passed"), (0.1, "found")):
        assert imbalance.check(imbalance.sent(uneven)).state == state


def test_a_clock_that_falls_in_some_steps(said: Listener) -> None:
    paces = [
        StepPace(3, 1.0, False),
        StepPace(4, 1.1, True),
        StepPace(5, 1.02, False),
        StepPace(6, 1.25, True),
    ]
    clock = Clock(paces, lost_ms_per_step=4.0, least_ms_per_step=3.0, most_ms_per_step=6.0)
    rows = [replace(gemm(1, 64, 64, 64), clock_ms_per_step=3.0), gemm(2, 64, 64, 64, component="logits")]
    (found,) = FallingClock().check(facts(*rows, step_ms=100.0, clock=clock)).findings
    assert (found.saving_ms.mid, found.saving_ms.high, found.gemms, found.components) == (
        None,
        6.0,
        ["g1"],
        ["mlp.up"],
    )
    said(found.title, found.saw)
    one = replace(clock, steps=[*paces[:3]], most_ms_per_step=None)
    (single,) = FallingClock().check(facts(*rows, step_ms=100.0, clock=one)).findings
    assert single.saving_ms.high == 4.0
    said(single.saw)
    even = FallingClock().check(facts(*rows, clock=replace(clock, steps=[paces[0], paces[2]])))
    assert even.state == "passed"
    assert FallingClock().check(facts(*rows)).state == "not_applicable"
    said(even.why)
    little = replace(clock, most_ms_per_step=0.99)
    assert FallingClock().check(facts(*rows, step_ms=100.0, clock=little)).state == "passed"


def test_the_operand_that_is_off_is_named(said: Listener) -> None:
    (found,) = views.check(views.strided(1, lda=4618)).findings
    said(found.saw)
    out = replace(views.strided(1, lda=4096), alignment_bytes={"a": 16, "b": 16, "c": 4},
                  leading={"a": 4096, "b": 4096, "c": 4618})  # fmt: skip
    (written,) = views.check(out).findings
    said(written.saw)


def test_shares_that_begin_off_16_bytes(said: Listener) -> None:
    """Two kinds of messages, 3 and 1 ms exposed; a share of 1,000,008 bytes grows to 1,000,016."""
    rows = [
        message(
            "all_gather", bytes_per_call=8e6, group_size=8, unaligned_bytes=share, unaligned_ms_per_step=ms
        )
        for share, ms in ((999_992, 1.0), (1_000_008, 3.0))
    ]
    whole = message("reduce_scatter", bytes_per_call=8e6, group_size=8)
    step = facts(gemm(1, 64, 64, 64), step_ms=100.0, communication=[*rows, whole])
    (found,) = UnalignedPayload().check(step).findings
    assert found.change == {"share_bytes": [1_000_008, 1_000_016]}
    assert (found.saving_ms.mid, found.saving_ms.high) == (None, 4.0)
    said(found.title, found.saw)


def test_carving_out_sms_is_known_where_waves_are() -> None:
    """13 of 132 SMs held: 119 are left for the pieces of a persistent kernel."""
    row = beside.row_of()
    for given, known in (({}, True), ({"waves": None}, False), ({"calls": 0}, False)):
        (found,) = beside.check(replace(row, **given)).findings
        assert ("sm_carveout" in found.change and found.saving_ms.mid is not None) is known, given
    assert row.tiles is not None
    two = replace(row, split_k=2, tiles=row.tiles // 2)  # as many pieces
    (halves,) = beside.check(two).findings
    assert halves.saving_ms.mid == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("named", "sized", "other", "sure"),
    [(1.0, 0.0, 1.0, "high"), (0.9, 0.2, 1.0, "medium"), (0.0, 0.9, 1.0, "low"), (0.0, 0.0, 0.0, "low")],
)
def test_a_vocabulary_is_as_surely_at_fault_as_kernels_or_sizes_say(
    named: float, sized: float, other: float, sure: str
) -> None:
    """Of the time at stake half has to be of kernels whose names show narrow loads, or of odd sizes."""
    kernels = (cutlass(1), "silent", cutlass(8))
    rows = [gemm(at, 64, 50257, 64, component="logits", kernel=name) for at, name in enumerate(kernels)]
    bounds = [Bound(row, ms) for row, ms in zip(rows, (named, sized, other), strict=True)]
    assert confidence(bounds, 50257) == sure


@pytest.mark.parametrize(("vocab", "part"), [(50264, "on 16 bytes"), (50257, "")])
def test_why_a_vocabulary_costs_time_depends_on_its_rows(vocab: int, part: str) -> None:
    row = gemm(1, 4096, vocab, 4096, component="logits", kernel=cutlass(8 if part else 1), time_us=5000.0)
    (found,) = PadVocabulary().check(facts(row, step_ms=10.0, dims=model(vocab=vocab, hidden=4096))).findings
    assert found.why == why("TL101", part) and why("TL101", "on 16 bytes") != why("TL101")
