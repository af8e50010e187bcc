"""What M, N and K of a row are made of, by hand: which rows have a formula, and sizes after a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_rows import attention, gemm, model
from tracelens.config.model_config import ModelConfig
from tracelens.results import GemmRow
from tracelens.results.gemm import Axis
from tracelens.results.row_sizes import AttentionDims, Groups
from tracelens.step.work import AttentionCall, Product, is_gated, repeats_keys, tokens_of, vocab_of, work_of

T = 2 * 1024
NOW = ModelConfig(
    hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000, layers=4, sequence=1024,
    micro_batch=2, tensor_parallel=1, gated=True,
)  # fmt: skip
#: 8 experts, each with 300 of the rows in the mean, on this rank.
MIXED = replace(NOW, ffn=1408, experts=8, capacity=300, row_multiple=1, expert_parallel=1, top_k=1)


def products(row: GemmRow, now: ModelConfig = NOW, *beside: GemmRow) -> tuple[Product, ...]:
    return tuple(one for one in work_of([row, *beside], now).products if one.row.id == row.id)


def sizes(row: GemmRow, then: dict[str, Any], now: ModelConfig = NOW) -> tuple[int, ...] | str | None:
    """After the change; a word where the row has no formula."""
    found = products(row, now)
    return found[0].sizes(replace(now, **then)) if found else "fixed"


def linear(component: str, m: int, n: int, k: int, role: str | None = "forward", **more: Any) -> GemmRow:
    return gemm(1, m, n, k, component=component, role=role, **more)


@pytest.mark.parametrize(
    ("row", "then", "wanted"),
    [
        # q, k and v in one: (32 + 2 * 8) * 128 wide
        (linear("attention.qkv", T, 6144, 4096), {"kv_heads": 16}, (T, 8192, 4096, 1)),
        (linear("attention.qkv", T, 4096, 4096), {"heads": 64}, (T, 8192, 4096, 1)),
        (linear("attention.qkv", T, 1024, 4096), {"kv_heads": 4}, (T, 512, 4096, 1)),
        (linear("attention.qkv", T, 2048, 4096), {"kv_heads": 4}, (T, 1024, 4096, 1)),  # k and v
        (linear("attention.qkv", T, 12288, 4096), {}, "fixed"),  # as many key heads as heads are not there
        (linear("attention.output", T, 4096, 4096), {"head_dim": 64}, (T, 4096, 2048, 1)),
        (linear("mlp.up", T, 28672, 4096), {"ffn": 1000}, (T, 2000, 4096, 1)),  # with the gate
        (linear("mlp.gate", T, 14336, 4096), {"ffn": 1000}, (T, 1000, 4096, 1)),
        (linear("mlp.down", T, 4096, 14336), {"ffn": 1000}, (T, 4096, 1000, 1)),
        (linear("mlp.down", T, 4096, 28672), {}, "fixed"),
        (linear("logits", T, 32000, 4096), {"vocab": 9, "hidden": 8}, (T, 9, 8, 1)),
        # dx = dy W and dW = dy^T x
        (linear("mlp.up", T, 4096, 14336, "dgrad"), {"ffn": 1000}, (T, 4096, 1000, 1)),
        (linear("mlp.up", 14336, 4096, T, "wgrad"), {"ffn": 1000}, (1000, 4096, T, 1)),
        (linear("mlp.up", 4096, 14336, T, "wgrad"), {"ffn": 1000}, (4096, 1000, T, 1)),  # transposed
        (linear("mlp.up", 14336, T, 4096), {"ffn": 1000}, (1000, T, 4096, 1)),
        (linear("mlp.up", T, 4096, 14336), {}, "fixed"),  # a forward product it is not
        # tokens
        (linear("mlp.up", T, 14336, 4096), {"micro_batch": 3}, (3 * 1024, 14336, 4096, 1)),
        (linear("mlp.up", T, 14336, 4096), {"sequence": 512}, (1024, 14336, 4096, 1)),
        (linear("logits", 2 * 1023, 32000, 4096), {"sequence": 512}, (2 * 511, 32000, 4096, 1)),
        (linear("mlp.up", 2 * 1023, 14336, 4096), {"sequence": 512}, None),  # rows of their own
        (linear("mlp.up", 2 * 1023, 14336, 4096), {"micro_batch": 4}, (4 * 1023, 14336, 4096, 1)),
        (linear("mlp.up", 14336, 4096, 100, "wgrad"), {"micro_batch": 4}, (14336, 4096, 200, 1)),
        (linear("mlp.up", 2 * 1023, 14336, 4096, None), {}, "fixed"),  # without a role none has its own
        (linear("mlp.up", 4096, 14336, 4096), {}, "fixed"),  # as many rows as the model is wide: which?
        # sizes that are not known after the change
        (linear("mlp.up", T, 14336, 4096), {"ffn": None}, None),
        (linear("mlp.up", T, 14336, 4096), {"tensor_parallel": 3}, None),
        (linear("mlp.up", T, 14336, 4096), {"tensor_parallel": 4}, (T, 3584, 4096, 1)),
        (linear("logits", T, 32000, 4096), {"tensor_parallel": 4}, (T, 32000, 4096, 1)),
        # no linear layer
        (linear("norm", T, 14336, 4096), {}, "fixed"),
        (linear("mlp.up", T, 14336, 4096, batch=2), {}, "fixed"),
        (replace(linear("mlp.up", T, 14336, 4096), batch=None), {"ffn": 7}, (T, 7, 4096, 1)),
    ],
)
def test_sizes_of_linear_layers(
    row: GemmRow, then: dict[str, Any], wanted: tuple[int, ...] | str | None
) -> None:
    assert sizes(row, then) == wanted
    assert not any(one.each_expert for one in products(row))


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (linear("attention.qkv", T, 1536, 4096), (T, 6144, 4096, 1)),
        (linear("attention.qkv", T, 1024, 4096), (T, 4096, 4096, 1)),
        (linear("attention.qkv", T, 256, 4096), (T, 1024, 4096, 1)),
        (linear("attention.qkv", T, 512, 4096), (T, 2048, 4096, 1)),
        (linear("attention.output", T, 4096, 1024), (T, 4096, 4096, 1)),
        (linear("mlp.up", T, 3584, 4096), (T, 14336, 4096, 1)),
        (linear("mlp.up", T, 7168, 4096), (T, 28672, 4096, 1)),
        (linear("mlp.down", T, 4096, 3584), (T, 4096, 14336, 1)),
        (linear("logits", T, 32000, 4096), (T, 32000, 4096, 1)),
        (linear("moe.router", T, 64, 4096), (T, 64, 4096, 1)),
        (linear("attention.scores", 1024, 1024, 128, batch=16), (1024, 1024, 128, 64)),
    ],
)
def test_four_ranks_share_heads_and_widths_and_nothing_else(row: GemmRow, wanted: tuple[int, ...]) -> None:
    now = replace(NOW, tensor_parallel=4, experts=64)
    assert sizes(row, {}, now) == (row.m, row.n, row.k, row.batch)
    assert sizes(row, {"tensor_parallel": 1}, now) == wanted


def test_a_router_has_a_column_for_each_expert() -> None:
    now = replace(NOW, experts=64)
    assert sizes(linear("moe.router", T, 64, 4096), {"experts": 128}, now) == (T, 128, 4096, 1)
    unknown = replace(NOW, kv_heads=None, tensor_parallel=4)
    row = linear("attention.qkv", T, 3072, 4096)
    assert sizes(row, {"tensor_parallel": 1}, unknown) == (T, 12288, 4096, 1)


def test_where_key_heads_are_not_known_a_product_can_be_of_all_three() -> None:
    now = replace(NOW, kv_heads=None)
    row = linear("attention.qkv", T, 12288, 4096)
    assert sizes(row, {"heads": 16}, now) == (T, 6144, 4096, 1)


@pytest.mark.parametrize(
    ("seen", "padded_from", "vocab", "wanted"),
    [
        (32008, {}, 32001, 32008),  # to 16 bytes, as any misaligned product
        (32008, {}, 32009, 32016),
        (32064, {"n": 32001}, 32065, 32128),  # to 64, as the library did
        (32064, {}, 32065, "fixed"),  # 64 more than it needs, and nothing says why
        (32128, {"n": 32001}, 32065, "fixed"),  # the next 64 are nearer
    ],
)
def test_a_padded_vocabulary(seen: int, padded_from: dict[str, int], vocab: int, wanted: int | str) -> None:
    row = linear("logits", T, seen, 4096, padded_from=padded_from)
    found = sizes(row, {"vocab": vocab}, replace(NOW, vocab=32001))
    assert found == (wanted if isinstance(wanted, str) else (T, wanted, 4096, 1))


def test_readings_that_differ_after_a_change_have_no_answer() -> None:
    """Hidden and ffn of one value: which of both the row's K is shows no role."""
    now = replace(NOW, hidden=2048, ffn=2048, heads=16)
    row = linear("mlp.up", T, 2048, 2048, None)
    assert sizes(row, {}, now) == (T, 2048, 2048, 1)
    assert sizes(row, {"ffn": 4096}, now) is None
    assert sizes(row, {"ffn": 4096, "hidden": 4096, "micro_batch": 4}, now) == (4096, 4096, 4096, 1)


@pytest.mark.parametrize(
    ("calls", "outputs", "parts"),
    [
        (12, 4, [(1 / 3, 8192), (2 / 3, 2048)]),  # q, k and v of each layer
        (4, 4, [(1.0, 8192)]),  # q alone
        (8, 4, [(1.0, None)]),
        (12, 0, [(1.0, None)]),
        (0, 0, [(1.0, None)]),
    ],
)
def test_query_key_and_value_of_one_size(
    calls: int, outputs: int, parts: list[tuple[float, int | None]]
) -> None:
    now = replace(NOW, kv_heads=32)
    output = gemm(2, T, 4096, 4096, component="attention.output", calls=outputs)
    others = [
        gemm(3, T, 4096, 4096, component="attention.output", role="dgrad", calls=99),
        gemm(4, None, None, None, component="attention.output", calls=99),
        gemm(5, T, 4096, 4096, component="mlp.other", calls=99),
    ]
    row = linear("attention.qkv", T, 4096, 4096, calls=calls)
    found = products(row, now, output, *others)
    then = replace(now, heads=64, kv_heads=16)
    told = [one.sizes(then) for one in found]
    wanted = [None if n is None else (T, n, 4096, 1) for _, n in parts]
    assert ([one.weight for one in found], told) == ([weight for weight, _ in parts], wanted)
    grouped = work_of([row, output], NOW).products[0]
    assert grouped.weight == 1.0 and grouped.sizes(replace(NOW, heads=64)) == (T, 8192, 4096, 1)


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "then", "wanted"),
    [
        (1024, 1024, 128, 64, {"sequence": 512}, (512, 512, 128, 64)),
        (1024, 128, 1024, 64, {"sequence": 512}, (512, 128, 512, 64)),
        (128, 1024, 1024, 64, {"head_dim": 64}, (64, 1024, 1024, 64)),
        (1024, 1024, 128, 64, {"micro_batch": 3, "heads": 16}, (1024, 1024, 128, 48)),
        (1024, 1024, 128, 32, {}, "fixed"),
        (1024, 1024, 64, 64, {}, "fixed"),
    ],
)
def test_scores_of_attention(
    m: int, n: int, k: int, batch: int, then: dict[str, Any], wanted: tuple[int, ...] | str
) -> None:
    for component in ("attention.scores", "attention.values"):
        assert sizes(linear(component, m, n, k, batch=batch), then) == wanted


def test_heads_as_wide_as_the_sequence_is_long_have_no_answer() -> None:
    now = replace(NOW, sequence=128)
    row = linear("attention.scores", 128, 128, 128, batch=64)
    assert sizes(row, {}, now) == (128, 128, 128, 64)
    assert sizes(row, {"sequence": 256}, now) is None
    split = replace(NOW, tensor_parallel=4)
    assert sizes(linear("attention.scores", 1024, 1024, 128, batch=16), {}, split) == (1024, 1024, 128, 16)


# --- experts ----------------------------------------------------------------------------------------------


def expert(m: int, n: int, k: int, role: str = "forward", **more: Any) -> GemmRow:
    return linear("moe.experts", m, n, k, role, **more)


def grouped(m: int, n: int, k: int, axis: Axis, number: int = 8, role: str = "forward") -> GemmRow:
    return replace(expert(m, n, k, role), groups=Groups(axis, number))


@pytest.mark.parametrize(
    ("row", "then", "wanted"),
    [
        (expert(150, 1408, 4096), {"capacity": 600}, (300, 1408, 4096, 1)),  # half of the mean, then too
        (expert(150, 4096, 1408), {"ffn": 700}, (150, 4096, 700, 1)),
        (expert(150, 2816, 4096), {"ffn": 700}, (150, 1400, 4096, 1)),
        (expert(1408, 4096, 150, "wgrad"), {"capacity": 600}, (1408, 4096, 300, 1)),
        (expert(150, 4096, 1408, "dgrad"), {"ffn": 700}, (150, 4096, 700, 1)),
        (expert(150, 999, 4096), {}, "fixed"),
        (expert(4096, 2816, 150, "wgrad"), {"capacity": 600}, (4096, 2816, 300, 1)),  # transposed
        (expert(150, 1408, 4096), {"capacity": 1}, (1, 1408, 4096, 1)),  # a row at least
        (expert(150, 1408, 4096), {"row_multiple": 64}, (192, 1408, 4096, 1)),
        (expert(T, 1408, 4096), {"capacity": 600}, (T, 1408, 4096, 1)),  # a shared one has all tokens
        (expert(T, 1408, 4096), {"micro_batch": 4}, (2 * T, 1408, 4096, 1)),
        (expert(300, 1408, 4096, batch=8), {"capacity": 600}, (600, 1408, 4096, 8)),
        (expert(300, 1408, 4096, batch=8), {"experts": 16}, (300, 1408, 4096, 16)),
        (expert(300, 1408, 4096, batch=8), {"expert_parallel": 2}, (300, 1408, 4096, 4)),
        (expert(300, 1408, 4096, batch=4), {}, "fixed"),  # of eight there are four
        (expert(300, 4096, 1408, "wgrad", batch=8), {"capacity": 600}, (600, 4096, 1408, 8)),  # a dgrad
        (expert(1408, 4096, 300, "dgrad", batch=8), {"capacity": 600}, (1408, 4096, 600, 8)),  # a wgrad
        (expert(150, 4096, 1408, "wgrad"), {}, "fixed"),  # one by one the role is known
        # groups: all rows together, 300 of each of 8; sizes are those of one
        (grouped(2400, 1408, 4096, "m"), {"capacity": 600}, (600, 1408, 4096, 8)),
        (grouped(2399, 1408, 4096, "m"), {"capacity": 600}, (600, 1408, 4096, 8)),
        (grouped(2401, 1408, 4096, "m"), {"capacity": 300}, (301, 1408, 4096, 8)),
        (grouped(1408, 4096, 2400, "k", role="wgrad"), {"capacity": 600}, (1408, 4096, 600, 8)),
        (grouped(2400, 1408, 4096, "m", 4), {}, "fixed"),
        (grouped(0, 1408, 4096, "m"), {}, "fixed"),
        (expert(0, 1408, 4096), {}, "fixed"),
    ],
)
def test_sizes_of_experts(row: GemmRow, then: dict[str, Any], wanted: tuple[int, ...] | str) -> None:
    assert sizes(row, then, MIXED) == wanted


@pytest.mark.parametrize(
    ("row", "now", "each"),
    [
        (expert(150, 1408, 4096), MIXED, True),
        (expert(T, 1408, 4096), MIXED, False),
        (expert(T, 1408, 4096), replace(MIXED, capacity=T), True),  # so many rows has every expert
        (expert(300, 1408, 4096, batch=8), MIXED, False),
        (grouped(2400, 1408, 4096, "m"), MIXED, False),
    ],
)
def test_products_that_run_once_for_every_expert(row: GemmRow, now: ModelConfig, each: bool) -> None:
    (found,) = products(row, now)
    assert found.each_expert is each


def test_without_the_rows_of_an_expert_nothing_follows() -> None:
    assert sizes(expert(150, 1408, 4096), {}, replace(MIXED, capacity=None)) == "fixed"
    doubtful = replace(MIXED, hidden=1408)
    assert sizes(expert(150, 1408, 1408), {"ffn": 700}, doubtful) is None  # in or out of the expert
    padded = replace(MIXED, row_multiple=None)
    assert sizes(expert(150, 1408, 4096), {"capacity": 100}, padded) == (50, 1408, 4096, 1)


# --- attention --------------------------------------------------------------------------------------------


def call(**told: Any) -> GemmRow:
    given = {"batch": 2, "heads": 32, "kv_heads": 8, "seq_q": 1024, "seq_k": 512, "head_dim": 128}
    return attention(1, 128, attention=AttentionDims(**(given | told)))


@pytest.mark.parametrize(
    ("row", "now", "wanted"),
    [
        (call(), NOW, (2, 2048, 1024, 512, False)),
        (replace(call(), phase="backward"), NOW, (2, 2048, 1024, 512, True)),
        (call(heads=8, kv_heads=2), replace(NOW, tensor_parallel=4), (2, 2048, 1024, 512, False)),
        (call(heads=2, kv_heads=1), replace(NOW, tensor_parallel=16), (2, 2048, 1024, 512, False)),
        (call(kv_heads=32), replace(NOW, kv_repeated=True), (2, 2048, 1024, 512, False)),
        (call(kv_heads=32), replace(NOW, kv_heads=None), (2, 2048, 1024, 512, False)),
        (call(), replace(NOW, tensor_parallel=None), (2, 2048, 1024, 512, False)),
        (call(tokens=777), NOW, (1, 777, None, None, False)),
        (call(tokens=777, batch=None, seq_q=None, seq_k=None), NOW, (1, 777, None, None, False)),
        (call(batch=None), NOW, None),
        (call(seq_q=None), NOW, None),
        (call(seq_k=None), NOW, None),
        (call(heads=None), NOW, None),
        (call(kv_heads=32), NOW, None),
        (call(heads=16), NOW, None),
        (call(head_dim=64), NOW, None),
        (call(value_dim=64), NOW, None),
        (call(), replace(NOW, heads=None), None),
        (replace(call(), attention=None), NOW, None),
    ],
)
def test_calls_of_attention(row: GemmRow, now: ModelConfig, wanted: tuple[Any, ...] | None) -> None:
    work = work_of([row], now)
    if wanted is None:
        assert work.attention == () and [one for one, why in work.fixed if why] == [row]
    else:
        assert work.attention == (AttentionCall(row, *wanted),) and work.fixed == ()


# --- what rows say of the model ---------------------------------------------------------------------------


def test_the_time_of_rows_tells_how_many_tokens_there_are() -> None:
    """By microseconds in all; a row of no time counts as one."""
    many = [gemm(at, 100, 8, 8, time_us=1.0) for at in range(3)]
    assert tokens_of([*many, gemm(9, 200, 8, 8, time_us=2.9)]) == 100
    assert tokens_of([*many, gemm(9, 200, 8, 8, time_us=5.0)]) == 200
    nothing = [
        gemm(1, 100, 8, 8, time_us=0.0),
        gemm(2, 100, 8, 8, time_us=0.0),
        gemm(3, 200, 8, 8, time_us=1.4),
    ]
    assert tokens_of(nothing) == 100
    assert tokens_of([replace(gemm(1, 100, 8, 8), phase="backward")]) is None
    assert tokens_of([replace(gemm(1, 100, 8, 8), phase="other")]) == 100
    assert tokens_of([replace(gemm(1, 100, 8, 8), kind="attention")]) is None
    assert tokens_of([gemm(1, None, None, None)]) is None


@pytest.mark.parametrize(
    ("rows", "repeated"),
    [
        ([call(kv_heads=32)], True),
        ([call()], False),
        ([call(), call(kv_heads=32)], False),  # not all of them
        ([linear("attention.scores", 1024, 1024, 128, batch=64)], True),
        ([linear("attention.values", 1024, 128, 1024, batch=64)], None),
        ([call(head_dim=None)], None),
    ],
)
def test_keys_that_are_copied_for_every_head(rows: list[GemmRow], repeated: bool | None) -> None:
    assert repeats_keys(rows, model(heads=32, kv_heads=8)) is repeated
    for heads, kv_heads in ((32, 32), (None, 8), (32, None), (8, 32)):
        assert repeats_keys(rows, model(heads=heads, kv_heads=kv_heads)) is None


def test_gates_and_vocabularies_that_rows_name() -> None:
    joined = replace(linear("mlp.up", T, 10, 10), components=["mlp.up", "mlp.gate"])
    assert is_gated([joined], 14336) is True
    assert is_gated([linear("mlp.down", T, 28672, 10)], 14336) is False  # no up projection
    assert is_gated([replace(linear("mlp.up", T, 28672, 10), kind="attention")], 14336) is None
    asked = linear("logits", T, 32064, 4096, padded_from={"n": 32001})
    assert vocab_of([asked], model(vocab=32064)) == 32001
    assert vocab_of([linear("mlp.up", T, 32064, 4096, padded_from={"n": 32001})], model(vocab=32064)) == 32064
