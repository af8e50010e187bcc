"""Evidence of rules on rows made up for it, counted by hand where a threshold or a sum decides."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.advice.advice_answers import answer
from tests.advice.advice_facts import H100 as H100_GPU
from tests.advice.advice_facts import step_of
from tests.advice.advice_messages import message
from tests.advice.advice_rows import H100, attention, cutlass, facts, gemm, model
from tests.said import Listener
from tracelens.gemm.predict.attention_backend import likely_backend
from tracelens.results import Known
from tracelens.results.row_sizes import AttentionDims, Groups
from tracelens.rules.evidence.attention_kernels import efficient_rows, kept_of
from tracelens.rules.evidence.dimensions import Target, flops_growth, target
from tracelens.rules.evidence.lengths import bounds_of, near, need_length, saw_of
from tracelens.rules.evidence.mixtures import evidence, packed, saw, unfilled
from tracelens.rules.evidence.slices import copied_ms, need_slices
from tracelens.rules.evidence.views import view_of
from tracelens.rules.evidence.vocabulary import columns, need_vocabulary, vocabulary, vocabulary_rows
from tracelens.step.experts import Mixture

ROW = gemm(1, 2048, 10240, 2560)


# dimensions


@pytest.mark.parametrize(
    ("expression", "letter", "size", "dims", "found"),
    [
        ("v", "n", 50257, {"vocab": 50257}, Target("vocab_size", 50257, 50304)),
        ("2*f", "n", 2 * 1365, {"ffn": 1365}, Target("ffn", 1365, 1408)),
        ("h", "k", 1601, {"hidden": 1601}, Target("hidden", 1601, 1664)),
        (
            "h",
            "k",
            1601,
            {"hidden": 1601, "heads": 25},
            Target("hidden", 1601, 1664),
        ),  # none near: 1600, 3200
        ("3*h", "n", 4803, {"hidden": 1601, "heads": 28}, Target("hidden", 1601, 1792)),  # 28 x 64
        ("b*s", "m", 2046, {"sequence": 1023}, Target("sequence", 1023, 1024)),
        ("kv*d", "n", 60, {"head_dim": 60}, Target("head_dim", 60, 64)),
        ("v", "n", 50257, {}, Target(None, 50257, 50264)),  # to 16 bytes of bf16
        ("v", "n", 50257, {"vocab": 1}, Target("vocab_size", 1, 64)),
        (None, "n", 1001, {}, Target(None, 1001, 1008)),
        (None, "m", 1001, {}, Target(None, 1001, 1008, of_data=True)),
    ],
)
def test_where_a_dimension_off_the_grid_is_moved(
    expression: str | None, letter: str, size: int, dims: dict[str, int], found: Target
) -> None:
    row = replace(ROW, **{f"{letter}_expr": expression})  # type: ignore[arg-type]
    assert target(row, letter, size, facts=facts(row, dims=model(**dims))) == found


@pytest.mark.parametrize(
    ("given", "letter", "of_data"),
    [
        ({}, "m", True), ({}, "k", False), ({"role": "wgrad"}, "k", True), ({"role": "wgrad"}, "m", False),
        ({"component": "attention.scores"}, "n", True), ({"component": "attention.values"}, "k", True),
        ({"batch": 2}, "n", True), ({"batch": 2, "component": "moe.experts"}, "n", False),
        ({"batch": 1}, "n", False),
    ],
)  # fmt: skip
def test_a_dimension_of_activations_is_no_weights(given: dict[str, Any], letter: str, of_data: bool) -> None:
    row = replace(ROW, **given)
    assert target(row, letter, 1001, facts=facts(row)).of_data is of_data


def test_operations_grow_with_each_side_that_changes() -> None:
    """100 and 300 operations: one side of the first grows by a half, two sides of the second."""
    goal = Target("ffn", 2, 3)
    one = replace(ROW, n_expr="f", flops=10.0, calls_per_step=10.0)
    two = replace(ROW, n_expr="f", k_expr="2*f", flops=100.0, calls_per_step=3.0)
    assert flops_growth([one, two], goal=goal, sizes=frozenset()) == pytest.approx((150 + 675) / 400 - 1)
    bare = Target(None, 2560, 3840)
    assert flops_growth([replace(one, n_expr=None)], goal=bare, sizes=frozenset({2560})) == pytest.approx(0.5)
    more = [Target(None, 2048, 4096)]
    assert flops_growth([one], goal=goal, sizes=frozenset(), more=more) == pytest.approx(2.0)
    assert flops_growth([replace(one, flops=None)], goal=goal, sizes=frozenset()) is None
    assert flops_growth([replace(one, flops=0.0)], goal=goal, sizes=frozenset()) is None


# the vocabulary


def logits(
    number: int, n: int | None, *, role: str | None = "forward", us: float = 100.0, **more: Any
) -> Any:
    return gemm(number, 2048, n, 512, component="logits", role=role, time_us=us, **more)


def test_the_vocabulary_is_the_models_or_that_of_the_longest_forward_logits() -> None:
    rows = [logits(1, 1000, us=10.0), logits(2, 2000, us=30.0), logits(3, 3000, role="dgrad", us=90.0),
            logits(4, None, us=99.0)]  # fmt: skip
    assert columns(facts(*rows)) == 2000
    assert columns(facts(*rows, dims=model(vocab=1000))) == 1000
    assert columns(facts(*rows[2:])) is None
    assert columns(facts(*rows, dims=replace(model(), vocab=Known(0, "")))) is None
    assert columns(facts(*rows, dims=replace(model(), classes=Known(10, "")))) is None
    padded = replace(rows[1], padded_from={"n": 1999})
    assert vocabulary(facts(rows[0], padded)) == 1999
    assert vocabulary(facts(rows[0], replace(padded, role="dgrad", time_ms_per_step=0.0))) == 1000
    assert vocabulary(facts(replace(rows[0], padded_from={"n": 999}), rows[1])) == 2000


def test_rows_with_the_vocabulary_as_a_side() -> None:
    rows = [logits(1, 2000), gemm(2, 2048, 512, 2000, component="logits", role="dgrad"),
            gemm(3, 2000, 512, 2048, component="mlp.up", names=("v", "h", "b*s")),
            gemm(4, 2000, 512, 2048, component="mlp.up"), gemm(5, 2048, 512, 512, component="logits"),
            replace(logits(6, 2000), kind="attention")]  # fmt: skip
    assert [row.id for row in vocabulary_rows(facts(*rows, dims=model(vocab=2000)))] == ["g1", "g2", "g3"]
    assert vocabulary_rows(facts(rows[3])) == []


def test_why_there_is_no_vocabulary(said: Listener) -> None:
    classes = facts(ROW, dims=replace(model(), classes=Known(10, "")))
    lost = facts(ROW, gemm(2, 8, 8, 8, component="unattributed", time_us=1000.0))
    for step, state, unseen in (
        (classes, "not_applicable", False), (facts(logits(1, None)), "could_not_run", False),
        (facts(replace(ROW, n=None)), "could_not_run", False), (lost, "could_not_run", False),
        (facts(ROW), "not_applicable", True),
    ):  # fmt: skip
        *found, why = answer(need_vocabulary, step)
        assert found == [state, unseen]
        said(why)
    assert need_vocabulary(facts(logits(1, 2000))) == 2000


# the length of a sequence


@pytest.mark.parametrize(
    ("length", "found"),
    [
        (1000, [1008, 1024]),  # cut to 960 it would lose 4 %
        (1025, [1024, 1032, 1040, 1088, 1152]),
        (1024, []),
        (100, [104, 112]),
        (63, [64]),
        (64, []),  # 128 is twice as long
        (65, [64, 72]),
        (197, [192, 200, 208]),  # 256 is longer by more than an eighth
        (7, []),
        (2112, [2048 + 128]),
    ],
)
def test_lengths_near_by_are_an_eighth_longer_or_a_thirtieth_shorter_at_most(
    length: int, found: list[int]
) -> None:
    assert near(length) == found


def test_a_length_is_needed_and_packed_sequences_have_none(said: Listener) -> None:
    several = replace(attention(2, 64), attention=AttentionDims(tokens=64))
    none, zero = (replace(model(), sequence=Known(value, "nothing shows it")) for value in (None, 0))
    for step, state in (
        (facts(ROW, several), "not_applicable"),
        (facts(ROW, dims=none), "could_not_run"),
        (facts(ROW, dims=zero), "could_not_run"),
    ):
        *found, why = answer(need_length, step, None)
        assert found == [state, False]
        said(why)
    assert need_length(facts(ROW, dims=model(sequence=1)), None) == 1


def test_part_filled_blocks_and_tiles_are_what_a_length_can_cost(said: Listener) -> None:
    """Of blocks of 128 a sequence of 192 fills three quarters: of 1 - (192/256)^2 no position has scores."""
    call = attention(1, 64, time_us=1000.0, calls=1.0)
    call = replace(call, attention=AttentionDims(1, 32, 32, 192, 192, 64), flops=1e9, bytes=1e6)
    edge = gemm(2, 384, 512, 512, time_us=500.0)
    edge = replace(edge, lost_ms=replace(edge.lost_ms, tile=0.125))
    step = facts(call, edge, replace(edge, id="g3", role="wgrad"), replace(edge, id="g4", m=192),
                 replace(call, id="g5", attention=AttentionDims(1, 32, 32, 192, 256, 64)),
                 dims=model(sequence=192, micro_batch=2))  # fmt: skip
    assert {bound.row.id: bound.ms for bound in bounds_of(step, 192, None)} == {
        "g1": pytest.approx(1 - 0.75**2), "g2": 0.125,
    }  # fmt: skip
    busy = replace(call, flops=1.2 * 989e9)  # of which half is done for certain: 0.6 ms at the peak
    assert bounds_of(facts(busy, dims=model(sequence=192)), 192, None)[0].ms == pytest.approx(0.4)
    said(saw_of(step, 192, 0.5), saw_of(facts(edge), 192, 0.5))
    assert bounds_of(facts(edge, dims=model(sequence=384)), 384, None)[0].row.id == "g2"


# slices of tensor-parallel ranks

SHARED = model(tensor_parallel=4, ffn=1366, kv_heads=1)


def sent(ms: float, purpose: str = "tensor parallel") -> Any:
    return message(purpose=purpose, exposed=ms)


def test_what_a_rank_of_four_holds(said: Listener) -> None:
    rows = [
        gemm(1, 64, 64, 64, component="mlp.up", tiles=131, time_us=1000.0),
        gemm(2, 64, 64, 64, component="attention.qkv", tiles=132, time_us=1000.0),
        gemm(3, 64, None, 64, component="mlp.up"), gemm(4, 64, 64, 64, component="logits", tiles=1),
        replace(attention(5, 64), tiles=1),
    ]  # fmt: skip
    step = facts(
        *rows, dims=SHARED, communication=[sent(2.0), sent(1.0), sent(9.0, "data-parallel gradients")]
    )
    found = need_slices(step)
    assert [row.id for row in found.rows] == ["g1", "g2", "g5"] and [row.id for row in found.thin] == ["g1"]
    assert (found.ranks, found.exposed_ms, found.off_grid, found.vocab) == (4, 3.0, ["ffn 1366"], None)
    said(found.saw(step), found.copies)
    even = facts(rows[1], dims=replace(SHARED, ffn=Known(1368, ""), kv_heads=Known(2, "")))
    fits = need_slices(even)
    assert (fits.off_grid, fits.copies, fits.thin) == ([], "", [])
    said(fits.saw(even))
    for declared in (2, 4, 8):
        told = need_slices(facts(*rows, dims=SHARED, declared={"kv_heads": declared})).copies
        assert bool(told) is (declared == 2)
        said(told)
    no_sms = facts(*rows, dims=SHARED, gpu=replace(H100, sms=None))
    unsized = need_slices(no_sms)
    assert unsized.thin == []
    said(unsized.saw(no_sms))


def test_without_slices_the_reason_is_given(said: Listener) -> None:
    for step, state, unseen in (
        (facts(ROW, dims=model(tensor_parallel=1)), "not_applicable", False),
        (facts(ROW), "not_applicable", True), (facts(ROW, communication=[sent(1.0)]), "could_not_run", False),
        (facts(replace(ROW, n=None), dims=SHARED), "could_not_run", False),
    ):  # fmt: skip
        *found, why = answer(need_slices, step)
        assert found == [state, unseen]
        said(why)


def test_kernels_that_every_rank_runs_alike_go_with_the_ranks() -> None:
    """Of 4 + 2 ms beside GEMMs two ranks of four run half as many copies; communication is none of them."""
    step: Any = SimpleNamespace(components=[
        ("norm", "forward", 5.0, 1.0), ("loss", "forward", 2.0, 0.0), ("communication", "forward", 9.0, 0.0),
        ("optimizer", "optimizer", 9.0, 0.0), ("grad_clip", "optimizer", 9.0, 0.0),
        ("mlp.up", "forward", 1.0, 3.0),
    ])  # fmt: skip
    made = replace(facts(ROW), step=step)
    assert copied_ms(made, 2, 4) == pytest.approx(3.0) and copied_ms(made, 1, 4) == pytest.approx(4.5)
    assert copied_ms(made, 2, 4, of=("loss",)) == pytest.approx(1.0)
    assert copied_ms(facts(ROW), 2, 4) == 0.0
    # All in GEMMs: 0.1 + 0.2 ms and their sum differ by rounding alone, which is no time.
    summed: Any = SimpleNamespace(components=[("mlp.up", "forward", 0.1 + 0.2, 0.3)])
    assert 0.1 + 0.2 > 0.3 and copied_ms(replace(made, step=summed), 2, 4) == 0.0


# views


def viewed(**given: Any) -> Any:
    fields: dict[str, Any] = {"leading_source": "strides", "leading": {"a": 2561, "b": 2560, "c": 10240}}
    fields["alignment_bytes"] = {"a": 2, "b": 128, "c": 128}
    row = gemm(1, 2048, 10240, 2560, kernel=cutlass(1), time_us=400.0, calls=8.0)
    return replace(row, **(fields | given))


def test_an_operand_whose_rows_begin_off_the_grid_is_named() -> None:
    found = view_of(viewed())
    assert found is not None and (found.operand, found.width, found.stride) == ("a", 2560, 2561)
    b = viewed(alignment_bytes={"a": 16, "b": 8, "c": 128}, leading={"a": 2560, "b": 2564, "c": 10240})
    found = view_of(b)
    assert found is not None and (found.operand, found.width, found.stride) == ("b", 2560, 2564)
    c = viewed(alignment_bytes={"a": 16, "b": 16, "c": 8}, leading={"a": 2560, "b": 2560, "c": 10244})
    found = view_of(c)
    assert found is not None and (found.operand, found.width, found.stride) == ("c", 10240, 10244)
    turned = view_of(viewed(layout="NT", leading={"a": 2049, "b": 10240, "c": 10240}))
    assert turned is not None and (turned.operand, turned.width) == ("a", 2048)
    for given in ({"kind": "attention"}, {"m": None}, {"tensor_core": "ineligible"}, {"kernel_kind": "gemv"},
                  {"kernel_tensor_core": False}):  # fmt: skip
        assert view_of(viewed(**given)) is None, given
    by_start = view_of(viewed(leading_source="layout"))
    assert by_start is not None and (by_start.operand, by_start.width, by_start.stride) == ("", None, None)


# attention kernels


def test_attention_in_the_memory_efficient_kernel_by_size_and_mask(said: Listener) -> None:
    rows = [replace(attention(at, 64), kernel_family=family, dtype=dtype, kernel_dtype=kernel)
            for at, family, dtype, kernel in (
                (1, "mem_efficient", "bf16", None), (2, "flash", "bf16", None),
                (3, "mem_efficient", "fp32", None),
                (4, "mem_efficient", "bf16", "fp32"), (5, "mem_efficient", "bf16", "bf16"))]  # fmt: skip
    step = step_of(rows)
    found = efficient_rows(step)
    assert [row.id for row in found] == ["g1", "g5"]
    assert [[row.id for row in one.rows] for one in kept_of(step, found)] == [["g1", "g5"]]
    (plain,) = kept_of(step, found)
    assert kept_of(step, found[:1])[0].mask is None
    assert (plain.mask, plain.why, plain.can_change) == (None, "", True)
    sized = AttentionDims(1, 32, 32, 2048, 2048, 64)
    for mask, can in (("mask", True), ("bias", False)):
        masked = [replace(found[0], attention=replace(sized, mask=mask))]  # type: ignore[arg-type]
        assert kept_of(step, masked)[0].can_change is can
    wide = [replace(found[0], attention=replace(sized, head_dim=288))]
    (kept,) = kept_of(step, wide)
    likely = likely_backend(head_dim=288, dtype="bf16", gpu=H100_GPU, lengths=(2048, 2048), training=True)
    assert kept.why == likely.why != "" and not kept.can_change
    values = [replace(found[0], attention=replace(sized, value_dim=288))]
    assert kept_of(step, values)[0].why == likely.why
    said(kept_of(step, [replace(found[0], attention=None)])[0].why)


# mixtures of experts


def mixture(**given: Any) -> Mixture:
    told: dict[str, Any] = {"how": "grouped", "experts": 8, "local": 4,
                            "rows": (replace(ROW, time_ms_per_step=2.0),),
                            "capacity": 100.0, "least": 80, "most": 150, "rows_per_token": 2.0, "ranks": 2,
                            "gated": None}  # fmt: skip
    return Mixture(**(told | given))


def test_a_mixture_in_words(said: Listener) -> None:
    for given in (
        {}, {"local": None}, {"experts": 4, "how": "loop"}, {"least": None}, {"most": None}, {"most": 80},
        {"rows_per_token": None}, {"rows_per_token": 2.5},
    ):  # fmt: skip
        said(saw(facts(ROW), mixture(**given)))
    assert evidence(mixture())["most_rows"] == 150


def test_the_last_tile_of_each_expert_is_half_empty_in_the_mean() -> None:
    """4 groups of tiles of 128 rows: 4 x 63.5 rows beside 1000."""
    row = replace(
        ROW, m=1000, tile_m=128, groups=Groups("m", 4), time_ms_per_step=10.0, flops=None, bytes=None
    )
    found = unfilled(facts(row), row)
    assert found is not None and found.ms == pytest.approx(10 * 254 / 1254)
    for given in ({"groups": None}, {"groups": Groups("k", 4)}, {"m": None}, {"tile_m": None}):
        assert unfilled(facts(row), replace(row, **given)) is None


def test_of_an_expert_that_nothing_predicts_all_that_kernels_need_can_go() -> None:
    """128 rows of 1024 x 1024 need 0.27 us at the peak; of fewer kernels not each has its start."""
    row = gemm(1, 128, 1024, 1024, component="moe.experts", time_us=20.0)
    floor = max(2 * 128 * 1024**2 / 989e9, (row.bytes or 0.0) / 3350e6)
    assert packed(facts(row), row, 8).ms == pytest.approx(0.02 - floor)
