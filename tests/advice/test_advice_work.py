"""Every product's M, N and K as functions of the hyper-parameters: seen sizes in, changed sizes out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_rows import attention, gemm
from tests.advice.advice_steps import Shape, dims_of, rows_of
from tests.said import Listener
from tracelens.config.changes import parse_changes
from tracelens.config.model_config import ModelConfig, changed, model_config_of
from tracelens.errors import UsageError
from tracelens.results import GemmRow
from tracelens.results.row_sizes import AttentionDims
from tracelens.step.work import Product, is_gated, tokens_of, work_of

GPT = Shape(2560, 32, 10240, v=50257)
LLAMA = Shape(4096, 32, 14336, v=128256, kv=8, gated=True)
SHAPES = {
    "gpt": GPT,
    "llama": LLAMA,
    "own head size": Shape(1024, 16, 3072, kv=8, d=128, gated=True),
    "tensor parallel": replace(LLAMA, t=4),
    "one kv head": replace(LLAMA, kv=1),
}


def config(x: Shape) -> ModelConfig:
    rows = rows_of(x)
    dims = dims_of(x)
    return model_config_of(dims, gated=is_gated(rows, dims.ffn.value), tokens=tokens_of(rows))


@pytest.mark.parametrize("name", SHAPES)
def test_every_row_of_a_plain_transformer_has_its_formula(name: str) -> None:
    x = SHAPES[name]
    work = work_of(rows_of(x), config(x))
    assert work.fixed == ()
    assert len(work.products) == (18 if x.gated else 15) and len(work.attention) == 2
    for product in work.products:
        row = product.row
        assert product.sizes(config(x)) == (row.m, row.n, row.k, row.batch)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": 4096 + 1024},
        {"heads": 16},
        {"heads": 64, "kv_heads": 16},
        {"head_dim": 64},
        {"kv_heads": 16},
        {"ffn": 16384},
        {"vocab": 32000},
        {"micro_batch": 8},
        {"sequence": 4096},
        {"heads": 16, "head_dim": 128},
        {"hidden": 5120, "heads": 40, "ffn": 13824, "vocab": 32000, "micro_batch": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["llama", "tensor parallel"])
def test_a_change_gives_the_rows_of_the_changed_model(name: str, change: dict[str, int]) -> None:
    """The formulas against rows built from scratch for the model after the change."""
    x = SHAPES[name]
    now = config(x)
    then = changed(now, change)
    assert then.hidden and then.heads and then.ffn and then.vocab and then.sequence and then.micro_batch
    built = replace(
        x, h=then.hidden, a=then.heads, f=then.ffn, v=then.vocab, kv=then.kv_heads, d=then.head_dim,
        s=then.sequence, b=then.micro_batch,
    )  # fmt: skip
    expected = [(row.m, row.n, row.k, row.batch) for row in rows_of(built) if row.kind == "gemm"]
    work = work_of(rows_of(x), now)
    assert [product.sizes(then) for product in work.products] == expected


def one(row: GemmRow, x: Shape = GPT, **more: int | None) -> Product:
    work = work_of([row], replace(config(x), **more))  # type: ignore[arg-type]
    assert len(work.products) == 1, work.fixed
    return work.products[0]


def test_a_product_with_other_sizes_has_no_formula() -> None:
    for row in (
        gemm(1, 8192, 10241, 2560),
        gemm(2, 8192, 16, 2560, component="attention.qkv"),  # an adapter of rank 16
        gemm(3, None, None, None),
        gemm(4, 8192, 2560, 2560, component="other"),
        gemm(5, 512, 10240, 2560, batch=8),
        attention(6, 128, heads=32),  # another head size than the model's
        attention(7, None),
        attention(8, 80, attention=AttentionDims(1, 32, 32, 2048, 2048, 80, 64)),
    ):
        work = work_of([row], config(GPT))
        assert [fixed for fixed, _ in work.fixed] == [row]
        assert all(why for _, why in work.fixed)


def test_logits_of_shifted_labels_have_a_row_less_for_each_sequence() -> None:
    product = one(gemm(1, 4 * 2047, 50257, 2560, component="logits"))
    longer, wider = changed(config(GPT), {"sequence": 4096}), changed(config(GPT), {"micro_batch": 8})
    assert product.sizes(longer) == (4 * 4095, 50257, 2560, 1)
    assert product.sizes(wider) == (8 * 2047, 50257, 2560, 1)


def test_sampled_positions_grow_with_the_micro_batch_and_are_unknown_for_another_length() -> None:
    product = one(gemm(1, 1200, 50257, 2560, component="logits"))
    now = config(GPT)
    assert product.sizes(changed(now, {"vocab": 50304})) == (1200, 50304, 2560, 1)
    assert product.sizes(changed(now, {"micro_batch": 8})) == (2400, 50257, 2560, 1)
    assert product.sizes(changed(now, {"sequence": 4096})) is None


def test_an_unknown_role_is_answered_only_where_its_readings_agree() -> None:
    """Tokens equal to the hidden size: 4096 x 4096 x 4096 is forward, dgrad or wgrad."""
    x = replace(LLAMA, b=2)
    product = one(gemm(1, 4096, 4096, 4096, component="attention.output", role=None), x)
    assert product.sizes(config(x)) == (4096, 4096, 4096, 1)
    assert product.sizes(changed(config(x), {"heads": 16})) == (4096, 4096, 4096, 1)  # a*d stays
    assert product.sizes(changed(config(x), {"micro_batch": 4})) is None


def test_separate_projections_of_one_size_are_told_by_their_number() -> None:
    """Three for each output projection: q is a third. One: q. Else a change of kv_heads has no answer."""

    def products(calls: int) -> tuple[Product, ...]:
        rows = [
            gemm(1, 8192, 2560, 2560, component="attention.qkv", calls=calls),
            gemm(2, 8192, 2560, 2560, component="attention.output", calls=32),
        ]
        return tuple(p for p in work_of(rows, config(GPT)).products if p.row.id == "g1")

    fewer = changed(config(GPT), {"kv_heads": 8})
    assert [(p.weight, p.sizes(fewer)) for p in products(96)] == [
        (1 / 3, (8192, 2560, 2560, 1)),
        (2 / 3, (8192, 640, 2560, 1)),
    ]
    assert [p.sizes(fewer) for p in products(32)] == [(8192, 2560, 2560, 1)]
    assert [p.sizes(fewer) for p in products(64)] == [None]
    assert [p.sizes(changed(config(GPT), {"heads": 20})) for p in products(64)] == [(8192, 2560, 2560, 1)]


def test_a_vocabulary_that_the_library_pads_stays_padded() -> None:
    """Inductor pads 50257 to 50264; the model's own size is what a change starts from."""
    product = one(gemm(1, 8192, 50264, 2560, component="logits", padded_from={"n": 50257}))
    assert product.sizes(changed(config(GPT), {"vocab": 50258})) == (8192, 50264, 2560, 1)
    assert product.sizes(changed(config(GPT), {"vocab": 50304})) == (8192, 50304, 2560, 1)


def test_unfused_attention_follows_heads_length_and_batch() -> None:
    scores = gemm(1, 2048, 2048, 80, batch=128, component="attention.scores")
    product = one(scores)
    assert product.sizes(changed(config(GPT), {"heads": 20})) == (2048, 2048, 128, 80)
    assert product.sizes(changed(config(GPT), {"sequence": 1024})) == (1024, 1024, 80, 128)
    assert product.sizes(changed(config(GPT), {"micro_batch": 1})) == (2048, 2048, 80, 32)


def test_ranks_that_do_not_divide_a_size_give_no_size() -> None:
    now = config(SHAPES["tensor parallel"])
    up = next(row for row in rows_of(SHAPES["tensor parallel"]) if row.component == "mlp.up")
    assert one(up, SHAPES["tensor parallel"]).sizes(replace(now, ffn=14338)) is None


# --- hyper-parameters -------------------------------------------------------------------------------------


def test_heads_and_head_dimension_keep_the_hidden_size() -> None:
    now = config(GPT)
    for change in ({"heads": 20}, {"head_dim": 128}):
        then = changed(now, change)
        assert (then.heads, then.kv_heads, then.head_dim, then.hidden) == (20, 20, 128, 2560)
        assert then.parameters == now.parameters
    own = config(SHAPES["own head size"])
    assert changed(own, {"heads": 8}).head_dim == 128  # heads of their own size stay so


def test_key_value_heads_stay_where_they_are_grouped() -> None:
    then = changed(config(LLAMA), {"heads": 16})
    assert (then.heads, then.kv_heads, then.head_dim) == (16, 8, 256)


@pytest.mark.parametrize(
    "change",
    [
        {"heads": 7},
        {"kv_heads": 3},
        {"heads": 4},
        {"experts": 8},
        {"vocab": 0},
        {"vocab": -5},
        {"tokens": 5},
        {"tensor_parallel": 3},
    ],
    ids=str,
)
def test_changes_that_make_no_sense_say_why(change: dict[str, int], said: Listener) -> None:
    with pytest.raises(UsageError) as error:
        changed(config(LLAMA), change)
    assert "\n" not in str(error.value)
    said(str(error.value))


def test_changes_are_read_in_the_words_of_every_framework() -> None:
    assert parse_changes(["vocab=50_304, n_head=20", "num_key_value_heads=4"]) == {
        "vocab": 50304,
        "heads": 20,
        "kv_heads": 4,
    }


@pytest.mark.parametrize(
    "text", ["", ",", "vocab", "vocab=", "vocab=x", "vocab=1.5", "=5", "head=3", "vocab=1,v=2"]
)
def test_what_is_no_change_is_one_line_with_the_present_values(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_changes([text], now=config(GPT))
    message = str(error.value)
    assert "\n" not in message and len(message) < 400
    assert "twice" in message or "vocab=50257" in message


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(("f", "tokens"), [(4096, 8192), (4096, 4096), (2048, 4096), (512, 2048)])
def test_tokens_that_are_twice_the_mlp_are_no_gate(f: int, tokens: int, train: bool) -> None:
    """Plain BERT with 8192 tokens and ffn 4096 has 2 * ffn rows in every product of its MLP."""
    shape = Shape(1024, 16, f, b=4, s=tokens // 4)
    assert is_gated(rows_of(shape, train=train), f) is False
    assert is_gated(rows_of(replace(shape, gated=True), train=train), f) is True


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("role", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize(("hidden", "tokens"), [(1024, 8192), (1024, 2048), (8192, 2048)])
def test_a_gate_in_one_product_shows_in_its_outputs(
    role: str, hidden: int, tokens: int, turned: bool
) -> None:
    """Whatever else has twice the MLP's width: the tokens, the hidden size, or nothing."""
    f = 4096
    for wide in (f, 2 * f):
        m, n, k = {"forward": (tokens, wide, hidden), "dgrad": (tokens, hidden, wide),
                   "wgrad": (wide, hidden, tokens)}[role]  # fmt: skip
        if turned:
            if role == "forward" and wide == f and tokens == 2 * f:
                continue  # a transposed plain product reads like a gated one of other tokens
            m, n = n, m
        assert is_gated([gemm(1, m, n, k, component="mlp.up", role=role)], f) is (wide == 2 * f)
