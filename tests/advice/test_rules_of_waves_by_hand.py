"""Rules about SMs, waves and tokens: thresholds, sums and lines, each counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_answers import only, outcome_of, says_why, trial_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import H100, NVJET, attention, cutlass, facts, gemm, model
from tests.said import Listener
from tracelens.results import Beside, GemmRow, Known, Lost, PaddedBatch
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules import StepFacts
from tracelens.rules import wave_cliffs as cliffs
from tracelens.rules.engine.trials import Trial
from tracelens.rules.gemms_beside_collectives import GemmsBesideCollectives, _carved, _second_wave
from tracelens.rules.pad_vocabulary import PadVocabulary
from tracelens.rules.padded_tokens import PaddedTokens

# TL118: GEMMs beside collectives


def slowed(
    number: int = 1, *, excess: float | None = 5.0, ctas: int | None = 12, alone: float | None = 1000.0,
    name: str = "reduce_scatter", tiles: int | None = 1200, split_k: int | None = 1, waves: int | None = 10,
    calls: float = 10.0, **more: Any,
) -> GemmRow:  # fmt: skip
    """A persistent GEMM of 10 calls of 1 ms, some of them beside a collective in 2 ms."""
    found = Beside(10.0, 0.0, {name: 10.0}, ctas, 5, 2000.0, alone, excess, excess)
    row = gemm(number, 8192, 8192, 8192, time_us=1500.0, calls=calls)
    given: dict[str, Any] = {
        "tiles": tiles,
        "split_k": split_k,
        "waves": waves,
        "scheduler": "persistent",
        "cluster": "1x1",
    }
    return replace(row, beside=found, **(given | more))


def beside(*rows: GemmRow, step_ms: float = 500.0, **more: Any) -> StepFacts:
    return facts(*rows, step_ms=step_ms, communication=[message("reduce_scatter")], **more)


RULE = GemmsBesideCollectives()


def test_a_hundredth_of_the_step_is_worth_a_word(said: Listener) -> None:
    """5 ms of 500 ms are 1 %; of 500.1 ms they are less."""
    assert only(RULE, beside(slowed(ctas=None))).elsewhere_ms == 5.0
    says_why(outcome_of(RULE.look, beside(slowed(), step_ms=500.1)), "passed", said)
    says_why(outcome_of(RULE.look, beside(slowed(excess=2.0), slowed(2, excess=2.5))), "passed", said)
    even = outcome_of(RULE.look, beside(slowed(excess=0.0)))
    assert outcome_of(RULE.look, beside(slowed(excess=-1.0))).why == even.why
    said(even.why)


def test_time_of_which_nothing_is_told_counts_from_a_hundredth_on(said: Listener) -> None:
    unknown = slowed(excess=None, time_ms_per_step=5.0)
    told = outcome_of(RULE.look, beside(unknown))
    assert told.state == "could_not_run"
    assert outcome_of(RULE.look, beside(unknown, step_ms=501.0)).state == "passed"
    said(told.why)
    half = replace(unknown, time_ms_per_step=2.5)
    # what is known is enough for a finding whatever is not
    assert only(RULE, beside(unknown, slowed(2))).gemms[0].id == "g2"
    said(outcome_of(RULE.look, beside(half, replace(half, id="g2"))).why)


@pytest.mark.parametrize(
    ("given", "second"),
    [
        ({"tiles": 120}, False), ({"tiles": 121}, True), ({"tiles": 60, "split_k": 2}, False),
        ({"tiles": 61, "split_k": 2}, True), ({"tiles": 1200, "ctas": 0}, False), ({"ctas": None}, False),
        ({"tiles": None}, False), ({"split_k": None}, False), ({"scheduler": "static"}, False),
        ({"tiles": 132, "ctas": 1}, True),
    ],
)  # fmt: skip
def test_a_second_wave_is_more_ctas_than_sms_left(given: dict[str, Any], second: bool) -> None:
    """An H100's 132 SMs, 12 of them held."""
    row = slowed(**given)
    assert row.beside is not None
    assert _second_wave(row, row.beside, beside()) is second
    assert not _second_wave(row, row.beside, beside(gpu=replace(H100, sms=None)))


def test_a_carve_out_is_paid_by_every_call(said: Listener) -> None:
    """1200 tiles: 10 waves of 132 SMs, 10 of 120; 1201 tiles are 11; 2 x 660 tiles are 11 too."""

    def net(**given: Any) -> tuple[float, float, float] | str:
        row = slowed(**given)
        assert row.beside is not None
        saving, how, why = _carved([(row, row.beside, row.beside.excess_ms_per_step or 0.0)], beside())
        if saving is None:
            assert how == ""
            return why
        assert why == "" and saving.basis == "model"
        assert saving.low is not None and saving.mid is not None and saving.high is not None
        return saving.low, saving.mid, saving.high

    assert net() == pytest.approx((0.0, 5.0, 5.0))
    assert net(tiles=1201) == pytest.approx((0.0, 4.0, 5.0))  # 10 calls of 1 ms, 1/10 longer
    assert net(tiles=660, split_k=2) == pytest.approx((0.0, 4.0, 5.0))
    assert net(tiles=1201, alone=2000.0) == pytest.approx((0.0, 3.0, 5.0))
    assert net(tiles=1200, ctas=72) == pytest.approx((-5.0, -5.0, 5.0))  # 60 SMs: 20 waves, 10 ms more
    assert net(tiles=1201, split_k=None) == pytest.approx((0.0, 4.0, 5.0))
    assert net(tiles=1320, ctas=None) == pytest.approx((0.0, 5.0, 5.0))  # all of the SMs
    assert net(tiles=1321, ctas=None) == pytest.approx((0.0, 4.0, 5.0))
    assert net(tiles=1201, calls=5.0) == pytest.approx((0.0, 4.5, 5.0))
    assert net(tiles=10, waves=1, ctas=131) == pytest.approx((-85.0, -85.0, 5.0))  # 1 SM, 10 waves
    for given in ({"waves": None}, {"alone": None}, {"ctas": 132}, {"calls": 0.0}):
        said(net(**given))
    both = [slowed(), slowed(2, tiles=1201, excess=3.0)]
    saving, how, _ = _carved(
        [(row, row.beside, row.beside.excess_ms or 0.0) for row in both if row.beside], beside()
    )
    assert saving is not None and (saving.low, saving.mid, saving.high) == pytest.approx((0.0, 7.0, 8.0))
    said(how)


def test_rows_with_a_second_wave_are_told_apart_from_the_others(said: Listener) -> None:
    rows = [slowed(1, excess=6.0), slowed(2, excess=9.0, tiles=100), slowed(3, excess=7.0, ctas=20)]
    (carve, fewer), why = RULE.look(beside(*rows))
    assert why == ""
    assert [row.id for row in carve.gemms] == ["g3", "g1"] and [row.id for row in fewer.gemms] == ["g2"]
    assert carve.change == {"sm_carveout": [0, 20]} and carve.elsewhere_ms == 13.0
    assert carve.fix == ["+ torch._C._set_sm_carveout_experimental(20)"]
    assert (carve.why, carve.confidence, carve.effort) == ("second wave", "medium", "config")
    assert (fewer.why, fewer.confidence) == ("", "low")
    assert fewer.change == {} and fewer.saving is None and fewer.how == ""
    assert (fewer.parameter_delta, fewer.least, fewer.elsewhere_ms) == (0, 0.01, 9.0)
    # 1200 tiles on 112 SMs are 11 waves: 7 - 1; on 120 they stay 10: 6
    assert carve.saving is not None and carve.saving.mid == pytest.approx(12.0)
    assert fewer.evidence["beside"] == [
        {
            "gemm": "g2", "alone_us": 1000.0, "beside_us": 2000.0, "excess_ms": 9.0, "ctas": 12,
            "collectives": {"reduce_scatter": 10.0},
        }
    ]  # fmt: skip
    said(carve.name, carve.title, fewer.name, fewer.caveats[1])


def test_a_carve_out_that_does_not_pay_leaves_all_to_the_collective() -> None:
    both = only(RULE, beside(slowed(ctas=72), slowed(2, excess=1.0, tiles=30)))
    assert [row.id for row in both.gemms] == ["g1", "g2"] and both.elsewhere_ms == 6.0


@pytest.mark.parametrize(
    ("ctas", "line"),
    [
        (None, "+ export NCCL_MAX_CTAS=1"), (1, "+ export NCCL_MAX_CTAS=1  # now 1"),
        (3, "+ export NCCL_MAX_CTAS=1  # now 3"), (4, "+ export NCCL_MAX_CTAS=2  # now 4"),
        (24, "+ export NCCL_MAX_CTAS=12  # now 24"),
    ],
)  # fmt: skip
def test_collectives_are_given_half_of_their_ctas(ctas: int | None, line: str, said: Listener) -> None:
    found = only(RULE, beside(slowed(ctas=ctas, tiles=1)))
    assert found.fix == [line]
    said(found.saw, found.title)


def test_without_a_time_alone_no_ratio_is_made_up(said: Listener) -> None:
    found = only(RULE, beside(slowed(tiles=1, alone=None)))
    said(found.title)


# TL105: wave cliffs

CLIFFS = cliffs.WaveCliffs()


def lossy(number: int = 1, wave: float | None = 1.0, *, time_us: float = 10_000.0, **more: Any) -> GemmRow:
    """A product of 4 x 256 tokens that loses ``wave`` ms of its 10 ms to its last wave."""
    row = gemm(number, 1024, 4096, 4096, time_us=time_us, role="dgrad", layout="NN")
    lost = Lost(wave=wave, useful=5.0)
    given: dict[str, Any] = {"tiles": 140, "waves": 2, "wave_eff_frac": 0.53, "lost_ms": lost}
    return replace(row, **(given | more))


def tokens(*rows: GemmRow, batch: int = 4, **more: Any) -> StepFacts:
    return facts(*rows, dims=model(micro_batch=batch, sequence=1024 // batch), **({"step_ms": 100.0} | more))


def trial(value: int, low: float, mid: float) -> Trial:
    return trial_of("micro_batch", (4, value), mid, low)


def test_last_waves_count_from_a_hundredth_of_the_step_on(said: Listener) -> None:
    """1 ms of 100; what cannot be simulated is then said, and below it the check passes."""
    says_why(outcome_of(CLIFFS.look, tokens(lossy())), "could_not_run", said)
    says_why(outcome_of(CLIFFS.look, tokens(lossy(wave=0.99))), "passed", said)
    says_why(outcome_of(CLIFFS.look, tokens(lossy(wave=0.4), lossy(2, wave=0.6))), "could_not_run", said)


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        # of 20 ms half can be judged: enough
        ([lossy(wave=0.5), lossy(2, None)], "passed"),
        ([lossy(wave=0.5), lossy(2, None, time_us=10_001.0, tiles=None)], "could_not_run"),
        ([lossy(wave=0.5), lossy(2, None, time_us=10_001.0)], "passed"),
        ([lossy(wave=1.0), lossy(2, None, time_us=90_000.0)], "could_not_run"),
        ([lossy(wave=0.0)], "passed"),
        ([lossy(1, None), lossy(2, None)], "passed"),
        ([lossy(1, None, tiles=None, lost_ms=Lost(why={"wave": "no tile in the name"}))], "could_not_run"),
        ([lossy(1, None, tiles=None, lost_ms=Lost(why={"useful": "no peak"}))], "could_not_run"),
    ],
)  # fmt: skip
def test_what_can_be_judged_of_last_waves(rows: list[GemmRow], state: str, said: Listener) -> None:
    says_why(outcome_of(CLIFFS.look, tokens(*rows)), state, said)


def test_rows_are_those_whose_output_has_the_tokens(said: Listener) -> None:
    deep = replace(lossy(), role="wgrad", m=4096, n=4096, k=1024)
    sideways = replace(lossy(2, 0.7), m=4096, n=1024)
    inner = replace(lossy(3), m=4096, n=4096, k=1024)
    wgrad = replace(lossy(4), role="wgrad")
    said(
        outcome_of(CLIFFS.look, tokens(deep, sideways, inner, wgrad)).why,
        outcome_of(CLIFFS.look, tokens(deep, inner, wgrad)).why,
    )


@pytest.mark.parametrize(
    "given", [{}, {"waves": 1}, {"waves": None}, {"wave_eff_frac": None}, {"tiles": None}]
)
def test_the_row_that_loses_most_is_described(given: dict[str, Any], said: Listener) -> None:
    said(outcome_of(CLIFFS.look, tokens(lossy(**given))).why)


@pytest.mark.parametrize(
    ("batch", "near"),
    [
        (1, [2]), (2, [1, 3]), (4, [3, 5]), (8, [6, 7, 9, 10]), (16, [12, 13, 14, 15, 17, 18, 19, 20]),
        (32, [28, 29, 30, 31, 33, 34, 35, 36]),
    ],
)  # fmt: skip
def test_neighbours_are_a_quarter_and_at_most_four_away(
    batch: int, near: list[int], monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    seen: list[Any] = []

    def none(_facts: StepFacts, name: str, values: list[int]) -> tuple[list[Trial], str]:
        seen.extend([name, *values])
        return [], "made up"

    monkeypatch.setattr(cliffs, "try_values", none)
    found = outcome_of(CLIFFS.look, tokens(lossy(), batch=batch))
    assert seen == ["micro_batch", *near]
    said(found.why)


@pytest.mark.parametrize(
    ("trials", "then"),
    [
        ([trial(2, 5.0, 6.0), trial(3, 4.0, 5.0), trial(5, 4.0, 5.0)], 3),  # as near: the smaller
        ([trial(2, 5.0, 6.0), trial(3, 3.99, 5.0)], 2),  # more than 1 ms less sure
        ([trial(2, 5.0, 6.0), trial(5, 4.5, 5.0)], 5),
        ([trial(6, 5.0, 6.0), trial(7, 5.5, 6.0)], 6),
        ([trial(3, -9.0, 6.0), trial(6, 1.0, 6.0)], 6),  # one that is as likely slower is none
    ],
)
def test_the_surest_and_of_those_the_nearest(
    trials: list[Trial], then: int, monkeypatch: pytest.MonkeyPatch, said: Listener
) -> None:
    monkeypatch.setattr(cliffs, "try_values", lambda *_: (trials, ""))
    found = only(CLIFFS, tokens(lossy(time_us=60_000.0)))
    assert found.change == {"micro_batch": [4, then]} and found.simulate == {"micro_batch": then}
    assert found.fix == ["- micro_batch = 4", f"+ micro_batch = {then}"]
    assert found.evidence["per_token"] is True and found.evidence["tried"]["2" if then < 4 else str(then)]
    assert f" {25 * abs(then - 4)}" in found.caveats[1] and len(found.caveats) == (4 if then > 4 else 3)
    said(found.title, found.caveats[:2])


def test_all_work_on_tokens_is_at_stake() -> None:
    """Attention with half of its operations, rows with the tokens or the length as a side, and no others."""
    gpu = replace(H100, gemm_floor_us=0.0, bandwidth_gbps=None)
    rows = [attention(1, 64, time_us=1000.0, calls=1.0), gemm(2, 1024, 989, 1000), gemm(3, 989, 256, 1000),
            gemm(4, 989, 989, 1000), gemm(5, None, None, None)]  # fmt: skip
    found = cliffs._bounds(tokens(*rows, gpu=gpu), 1024)
    assert [bound.row.id for bound in found] == ["g1", "g2", "g3"]
    flash_ms = 4.0 * 32 * 2048 * 2048 * 64 / 989e9
    assert [bound.ms for bound in found] == pytest.approx(
        [1.0 - flash_ms / 2, 2.0 - 2 * 1024 / 1e6, 2.0 - 2 * 256 / 1e6]
    )


def test_a_step_needs_a_micro_batch_and_a_length() -> None:
    row = lossy()
    dims = tokens(row).model
    for name, words in (("micro_batch", "micro-batch"), ("sequence", "sequence length")):
        none_of: dict[str, Any] = {name: Known(0, "made up")}
        none = outcome_of(CLIFFS.look, facts(row, dims=replace(dims, **none_of)))
        assert none.state == "could_not_run" and words in none.why
    assert cliffs._need_batch(tokens(row, batch=1)) == (1, 1024)
    assert cliffs._need_batch(tokens(row, batch=1024)) == (1024, 1)


# TL127: padded tokens

PADDED = PaddedTokens()


def linear(number: int, rows: int, *, calls: float = 1.0, ms: float = 2.0, **more: Any) -> GemmRow:
    given: dict[str, Any] = {
        "component": "attention.output",
        "time_us": 1e3 * ms / calls,
        "calls": calls,
    } | more
    return gemm(number, rows, 4096, 4096, **given)


def flash(number: int, held: int | None, *, calls: float = 1.0, heads: int = 32, **more: Any) -> GemmRow:
    sizes = AttentionDims(None, heads, heads, head_dim=128, tokens=held)
    return attention(number, 128, calls=calls, attention=sizes, **more)


def batch_of(*rows: GemmRow, hidden: int | None = 4096, **more: Any) -> StepFacts:
    dims = model(hidden=hidden, heads=32)
    return facts(*rows, dims=dims, **({"step_ms": 100.0} | more))


def test_rows_without_a_token_are_a_share_of_each_linear_layer(said: Listener) -> None:
    """1000 rows, 750 tokens; the gradient of a weight sums over the rows."""
    rows = [linear(1, 1000, frac=0.25), linear(2, 4096, ms=4.0, role="wgrad"), flash(3, 750)]
    rows[1] = replace(rows[1], k=1000)
    found = only(PADDED, batch_of(*rows))
    assert [(bound.row.id, bound.ms) for bound in found.bounds] == [("g1", 0.5), ("g2", 1.0)]
    assert found.change == {"rows": [1000, 750]}
    assert found.evidence == {"rows": 1000.0, "tokens": 750.0, "empty_frac": 0.25}
    assert (found.parameter_delta, found.least, found.confidence, found.effort) == (0, 0.01, "medium", "code")
    said(found.title, found.saw)


@pytest.mark.parametrize(
    ("rows", "tokens"),
    [
        ([linear(1, 1000), flash(2, 1000)], None),
        ([linear(1, 1000), flash(2, 1001), flash(3, 9)], None),
        ([linear(1, 1000), flash(2, 0, calls=0.0)], 0.0),
        ([linear(1, 1000), flash(2, 1000), flash(3, 500)], 750.0),
    ],
)
def test_as_many_tokens_as_rows_pass(rows: list[GemmRow], tokens: float | None, said: Listener) -> None:
    if tokens is not None:
        assert only(PADDED, batch_of(*rows)).evidence["tokens"] == tokens
        return
    says_why(outcome_of(PADDED.look, batch_of(*rows)), "passed", said)


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        (flash(2, 500), True), (flash(2, 500, phase="backward"), False), (flash(2, None), False),
        (flash(2, 500, heads=16), False), (replace(flash(2, 500), kind="gemm"), False),
        (replace(flash(2, 500), attention=None), False),
    ],
)  # fmt: skip
def test_only_packed_forwards_of_the_models_own_heads_tell_tokens(row: GemmRow, seen: bool) -> None:
    step = batch_of(linear(1, 1000), row)
    if seen:
        assert only(PADDED, step).evidence["tokens"] == 500.0
    else:
        assert outcome_of(PADDED.look, step).absent


def test_means_are_by_calls(said: Listener) -> None:
    """3 calls of 1000 rows and 1 of 600 are 900 in the mean; 3 of 700 tokens and 1 of 300 are 600."""
    rows = [linear(1, 1000, calls=3.0), linear(2, 600), flash(3, 700, calls=3.0), flash(4, 300)]
    found = only(PADDED, batch_of(*rows))
    assert found.evidence == pytest.approx({"rows": 900.0, "tokens": 600.0, "empty_frac": 1 / 3})
    assert [bound.ms for bound in found.bounds] == pytest.approx([2 / 3, 2 / 3])
    for ran, told in ((42.0, True), (42.1, False), (38.0, True), (37.9, False)):
        many = [linear(1, 1000, calls=30.0), linear(2, 600, calls=10.0), flash(3, 300, calls=ran)]
        if told:
            assert only(PADDED, batch_of(*many)).evidence["tokens"] == pytest.approx(300.0)
        else:
            says_why(outcome_of(PADDED.look, batch_of(*many)), "could_not_run", said)
    # of one number of rows it does not matter how often attention ran
    assert only(PADDED, batch_of(linear(1, 1000), flash(3, 300, calls=9.0))).evidence["tokens"] == 300.0


def test_batches_that_an_operator_pads_have_their_own_tokens(said: Listener) -> None:
    padded = [PaddedBatch(1000, 400.0), PaddedBatch(600, 600.0), PaddedBatch(64, 1.0)]
    found = only(PADDED, batch_of(linear(1, 1000), linear(2, 600, calls=3.0), linear(3, 128), padded=padded))
    assert found.evidence == pytest.approx({"rows": 700.0, "tokens": 550.0, "empty_frac": 1 - 550 / 700})
    assert [(bound.row.id, bound.ms) for bound in found.bounds] == [("g1", pytest.approx(1.2)), ("g2", 0.0)]
    assert found.change == {"rows": [700, 550]}
    said(found.saw)
    single = only(PADDED, batch_of(linear(1, 1000), padded=padded))
    said(single.saw, outcome_of(PADDED.look, batch_of(linear(1, 1000), padded=padded[1:])).why)


@pytest.mark.parametrize(
    ("rows", "counted"),
    [
        # the linear layer behind attention, though another runs longer
        ([linear(1, 1000), linear(2, 500, component="mlp.up", ms=9.0)], 1000),
        # else that of most time
        ([linear(1, 1000, component="mlp.down"), linear(2, 500, component="mlp.up", ms=9.0)], 500),
        ([linear(1, 1000, component="mlp.down"), linear(2, 500, component="mlp.up", ms=1.1),
          linear(3, 500, component="mlp.up", ms=1.1)], 500),
        ([linear(1, 1000, component="mlp.down"), linear(2, 500, component="logits", ms=9.0)], 1000),
        ([linear(1, 1000), linear(2, 500, calls=3.0, role="dgrad")], 1000),
        ([linear(1, 1000, role=None)], 1000),
        ([linear(1, 1000), replace(linear(2, 500), calls_per_step=0.0)], 1000),
        ([linear(1, 1000), replace(linear(2, 500), n=1152, k=1152)], 1000),
        ([replace(linear(1, 1000), n=64), replace(linear(2, 500), n=1152, k=1152)], 1000),
    ],
)  # fmt: skip
def test_whose_rows_are_counted(rows: list[GemmRow], counted: int) -> None:
    found = only(PADDED, batch_of(*rows, flash(9, 100)))
    assert found.evidence["rows"] == counted


def test_without_a_forward_layer_of_known_rows_nothing_is_compared(said: Listener) -> None:
    for rows in (
        [linear(1, 1000, component="moe.experts")],
        [linear(1, 1000, role="dgrad")],
        [linear(1, 1000, component="logits")],
        [replace(linear(1, 1000), n=1152, k=1152)],
    ):
        says_why(outcome_of(PADDED.look, batch_of(*rows, flash(9, 100))), "could_not_run", said)
    wide = replace(linear(1, 1000), n=1152, k=1152)
    assert only(PADDED, batch_of(wide, flash(9, 100), hidden=None)).evidence["rows"] == 1000


# TL101: vocabulary

VOCAB = PadVocabulary()


def logits(number: int, kernel: str, ms: float, vocab: int = 50257, **more: Any) -> GemmRow:
    given: dict[str, Any] = {"component": "logits", "kernel": kernel, "time_us": 1e3 * ms} | more
    return gemm(number, 1024, vocab, 512, **given)


@pytest.mark.parametrize(
    ("rows", "level"),
    [
        ([logits(1, cutlass(1), 1.0), logits(2, "some", 1.0)], "high"),
        ([logits(1, cutlass(1), 1.0), logits(2, "some", 1.9)], "medium"),
        ([logits(1, "some", 1.0), logits(2, NVJET, 1.0)], "medium"),
        # all of 1 ms against 226/256 of 10 ms that loads of 16 bytes leave: 1.17
        ([logits(1, "some", 1.0), logits(2, NVJET, 10.0)], "low"),
        ([logits(1, "some", 1.3), logits(2, NVJET, 10.0)], "medium"),
    ],
)
def test_how_sure_a_fallback_is_by_time(rows: list[GemmRow], level: str) -> None:
    gpu = replace(H100, bandwidth_gbps=None, peak_tflops={}, gemm_floor_us=0.0)
    step = facts(*rows, gpu=gpu, dims=model(vocab=50257), step_ms=100.0)
    assert only(VOCAB, step).confidence == level


@pytest.mark.parametrize(
    ("vocab", "why", "begins"), [(50256, "on 16 bytes", 32), (50264, "on 16 bytes", 16), (50260, "", 8)]
)
def test_a_vocabulary_on_the_grid_has_a_reason_of_its_own(
    vocab: int, why: str, begins: int, said: Listener
) -> None:
    found = only(VOCAB, facts(logits(1, NVJET, 1.0, vocab), dims=model(vocab=vocab), step_ms=100.0))
    assert (found.why, found.evidence["row_begins_on_bytes"]) == (why, begins)
    assert found.change == {"vocab_size": [vocab, 50304]} and found.simulate == {"vocab": 50304}
    assert found.effects is not None and set(found.effects) == {"needs"}
    said(found.effects["needs"])
    assert found.evidence["next_multiple_of_128"] == 50304


def test_the_width_is_that_which_the_forward_reads() -> None:
    """The weight's gradient has the tokens as K, and another forward another output."""
    deep = logits(1, NVJET, 1.0, role="wgrad", layout="NT")
    back = replace(logits(2, NVJET, 1.0), role="dgrad", n=512, k=50257)
    ahead = logits(3, NVJET, 1.0)
    deep = replace(deep, m=50257, n=512, k=1024)
    same = replace(ahead, role="wgrad", k=1024)
    narrow = replace(ahead, m=50257, n=1024, k=768)  # has it as another side
    step = facts(same, narrow, back, deep, ahead, dims=model(vocab=50257), step_ms=100.0)
    assert only(VOCAB, step).parameter_delta == 47 * 512
    assert only(VOCAB, replace(step, gemms=[deep, back])).parameter_delta is None
