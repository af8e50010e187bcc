"""What findings say of a made-up step, figure by figure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.advice import test_advice_expert_imbalance as imbalance
from tests.advice import test_advice_gemms_beside_collectives as beside
from tests.advice import test_advice_misaligned_views as views
from tests.advice import test_advice_small_collectives as small
from tests.advice import test_advice_tensor_cores as precisions
from tests.advice.advice_facts import H100, RTX3060, other, step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import cutlass, facts, gemm, model
from tests.said import Listener
from tracelens.gemm.gain import ratio_error
from tracelens.gemm.predict.gemm import predict_gemm
from tracelens.results import Clock, GemmRow, StepPace
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.pages import why
from tracelens.rules.evidence.dimensions import Target
from tracelens.rules.evidence.misfits import Case
from tracelens.rules.evidence.projections import FAMILIES, Group, fused_saving, groups_of, split_ms, why_none
from tracelens.rules.evidence.vocabulary import confidence
from tracelens.rules.evidence.widths import GatedMlp
from tracelens.rules.falling_clock import FallingClock
from tracelens.rules.pad_vocabulary import PadVocabulary
from tracelens.rules.unaligned_payload import UnalignedPayload
from tracelens.step.alignment import Misfit


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


def test_whose_other_kernels_gain_by_another_type() -> None:
    """All of a step in 16 bits makes its other kernels faster, too; a flag or one product does not."""
    (flag,) = precisions.check(precisions.fp32(1)).findings
    assert (flag.change["precision"], flag.counts) == (["fp32", "tf32"], "all")
    (half,) = precisions.check(precisions.fp32(1, time_us=19000.0), gpu=RTX3060, step_ms=40.0).findings
    assert (half.change["precision"], half.counts) == (["fp32", "bf16"], "gemms")
    mixed = precisions.check(
        precisions.fp32(1, component="logits"), gemm(2, 4096, 4096, 4096, time_us=9000.0)
    )
    assert [(one.change["precision"], one.counts) for one in mixed.findings] == [(["fp32", "bf16"], "all")]


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


def test_small_exchanges_against_buckets(said: Listener) -> None:
    """8 calls of less than 4 MiB and more; the bound is what they take beyond calls of 25 MiB."""
    for calls, size, state in ((8, 262_144, "found"), (7.9, 262_144, "passed"), (200, 4 << 20, "passed"),
                               (200, (4 << 20) - 1, "found")):  # fmt: skip
        assert small.check(small.sent(calls, size)).state == state, (calls, size)
    outcome = small.check(small.sent(200, 262_144), small.sent(10, 131_072, purpose="optimizer shards"))
    (found,) = outcome.findings
    exposed = small.took_ms(200, 262_144) + small.took_ms(10, 131_072)
    assert found.change == {"bucket_mb": [0.25, 25]}
    said(found.title, found.saw)
    planted = exposed - small.took_ms(2, 26_214_400) - small.took_ms(1, 1_310_720)
    assert found.saving_ms.high == pytest.approx(planted, rel=1e-6)
    hidden = small.check(small.sent(200, 262_144, exposed=0.5)).findings[0]
    assert hidden.saving_ms.high == 0.5
    said(hidden.how)


# GEMMs of one input

LAYER = [
    gemm(1, 2048, 4096, 4096, component="attention.qkv", calls=4.0, time_us=100.0),
    gemm(2, 2048, 1024, 4096, component="attention.qkv", calls=8.0, time_us=50.0),
    gemm(3, 2048, 4096, 4096, component="attention.output", calls=4.0),
]


def groups(*rows: GemmRow, **dims: int) -> list[Group]:
    return groups_of(facts(*rows, dims=model(**({"hidden": 4096} | dims))), FAMILIES[0])


def test_gemms_that_read_one_tensor_are_one_group() -> None:
    """Two layers' worth of a query and two narrow ones: 100 + 2 x 50 us for 6144 columns."""
    back = [gemm(4, 2048, 4096, 4096, component="attention.qkv", role="dgrad", calls=4.0, time_us=120.0),
            gemm(5, 2048, 4096, 1024, component="attention.qkv", role="dgrad", calls=8.0, time_us=60.0),
            gemm(6, 4096, 4096, 2048, component="attention.qkv", role="wgrad", calls=4.0)]  # fmt: skip
    first, gradients = groups(*LAYER, *back)
    assert (first.role, first.tokens, first.into, first.width, first.calls) == (
        "forward",
        2048,
        4096,
        6144,
        4.0,
    )
    assert (
        first.calls == 4.0 and first.time_us == pytest.approx(200.0) and first.sizes == (2048, 6144, 4096, 1)
    )
    assert first.apart == "1 × (2048 × 4096 × 4096) and 2 × (2048 × 1024 × 4096)" and first.off_grid == []
    assert gradients.role == "dgrad" and gradients.sizes == (
        2048,
        4096,
        6144,
        1,
    )  # of one wgrad nothing is known
    assert gradients.time_us == pytest.approx(240.0)
    for rows, dims in (
        (LAYER[:2], {}), (LAYER, {"hidden": 2048}), ([LAYER[0], LAYER[2]], {}),
        ([LAYER[0], replace(LAYER[1], calls_per_step=6.0), LAYER[2]], {}),
        ([LAYER[0], replace(LAYER[1], m=1024), LAYER[2]], {}),
        ([LAYER[0], replace(LAYER[1], dtype="fp16"), LAYER[2]], {}),
        ([*(replace(row, batch=2) for row in LAYER[:2]), LAYER[2]], {}),
        ([LAYER[0], replace(LAYER[1], n=None), LAYER[2]], {}),
        ([*LAYER, gemm(7, 2048, 16384, 4096, component="mlp.down", calls=2.0)], {}),  # cross-attention
    ):  # fmt: skip
        assert groups(*rows, **dims) == [], rows
    once = [replace(row, calls_per_step=row.calls_per_step / 4) for row in LAYER]
    assert groups(*once)[0].calls == 1.0
    assert groups(*LAYER, gemm(7, 2048, 16384, 4096, component="mlp.down", calls=4.0))
    odd = groups(LAYER[0], replace(LAYER[1], n=1028), LAYER[2])
    assert odd[0].off_grid == [1028]


def test_one_gemm_saves_by_the_ratio_of_predictions(said: Listener) -> None:
    """800 us of three GEMMs, times one wide one's predicted time over theirs, within the error of ratios."""
    step = step_of(LAYER, dims=model(hidden=4096))

    def us(n: int) -> float:
        return predict_gemm(2048, n, 4096, gpu=H100).time_us.mid or 0.0

    (group,) = groups_of(step, FAMILIES[0])
    found = fused_saving(step, group)
    assert found is not None
    saving, how = found
    then = 0.8 * us(6144) / (us(4096) + 2 * us(1024))
    error = math.exp(ratio_error(math.log(6144 / 4096)))
    assert (saving.low, saving.mid, saving.high) == pytest.approx(
        (0.8 - then * error, 0.8 - then, 0.8 - then / error)
    )
    assert fused_saving(facts(*LAYER), group) is None
    said(how)
    back = replace(group, role="dgrad")
    copied = 4 * 2 * 2 * 2048 * 6144 / 3350e6  # 2048 x 6144 of two bytes, read and written four times a step
    assert split_ms(step, [group, back]) == pytest.approx(copied) and split_ms(step, [group]) == 0.0
    untyped = replace(group.parts[0], row=replace(group.parts[0].row, dtype=None))
    assert split_ms(step, [replace(back, parts=(untyped,))]) == pytest.approx(copied * 4096 / 6144)
    compiled = replace(step, others=[other(1, "elementwise", op="triton_poi_fused_0")])
    assert split_ms(compiled, [back]) == 0.0


def test_why_nothing_is_put_together(said: Listener) -> None:
    def why(*rows: GemmRow) -> tuple[str, bool]:
        return why_none(facts(*rows, dims=model(hidden=4096, ffn=8192)), FAMILIES[0])

    one = replace(LAYER[0], time_ms_per_step=1.0)
    text, told = why(one, LAYER[2])
    assert told
    said(text)
    text, told = why(*LAYER, gemm(7, 2048, 16384, 4096, component="mlp.down", calls=2.0))
    assert not told
    said(text)
    text, told = why(*LAYER)
    assert not told
    said(text)


# the width of a gated MLP


def test_widths_near_by_are_on_the_grid_and_keep_the_weights() -> None:
    mlp = GatedMlp(1365, 2, [])  # 2730 of the whole model; a hundredth is 27
    near = mlp.near(facts(*LAYER))
    assert near and near == sorted(near)
    assert all(one % 16 == 0 and abs(one / 2730 - 1) <= 0.01 for one in near)


def test_weights_of_a_wider_gated_mlp_are_three_matrices_a_layer_on_each_rank() -> None:
    mlp, goal = GatedMlp(1365, 2, []), Target("ffn", 1365, 1408)
    up = gemm(1, 2048, 2730, 1024, component="mlp.up", names=("b*s", "2*f", "h"), calls=2.0)
    dims = model(hidden=1024, heads=16, head_dim=64, ffn=1365, layers=2, vocab=1000, kv_heads=16)
    assert mlp.parameters(facts(up, dims=dims), goal) == 2 * 2 * 3 * 1024 * 43
    assert mlp.parameters(facts(up), goal) is None
    simulated = step_of([up], dims=dims)
    assert simulated.step is not None and simulated.step.now.parameters is not None
    assert mlp.parameters(simulated, goal) is None  # counted there


def test_the_gemm_of_a_case_is_its_longest_forward_one(said: Listener) -> None:
    rows = [gemm(1, 8, 16, 32, component="mlp.up", time_us=1.0),
            gemm(2, 8, 32, 16, component="mlp.down", time_us=3.0),
            gemm(3, 8, 64, 16, component="mlp.up", role="dgrad", time_us=9.0)]  # fmt: skip

    def case(*chosen: GemmRow) -> str:
        return Case(None, [Misfit(row, (), None) for row in chosen], set()).gemm

    for chosen in (rows, rows[:2], rows[2:]):  # the first two are the same sizes turned
        said(case(*chosen))
    for component in ("attention.other", "other"):
        said(case(replace(rows[0], component=component)))


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
