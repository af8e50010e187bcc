"""What a change does to a traced step, counted by hand: bytes, loads, experts, sizes and alignment."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_messages import message
from tests.advice.advice_rows import XMMA, attention, cutlass, gemm, model
from tests.advice.advice_steps import Shape, model_of, rows_of
from tests.said import Listener
from tracelens.config.model_config import ModelConfig, changed
from tracelens.hardware import find_gpu
from tracelens.results import Estimate, GemmRow, Rest, Span
from tracelens.results.row_sizes import AttentionDims
from tracelens.step.affected import concerns
from tracelens.step.alignment import boundary_bytes, misfit_of, off_grid
from tracelens.step.experts import mixture_of
from tracelens.step.measured_step import MeasuredStep
from tracelens.step.per_token import affected_ms, growth_frac, moved_then_ms, per_token
from tracelens.step.predicted import _floor, _medians, _off_block, _spread, bounded, dtype_then, predict_row
from tracelens.step.present import micro_batches_of
from tracelens.step.traffic import repeats, rest_of
from tracelens.step.uneven import rest_of_load, uneven_frac
from tracelens.step.whatif import what_if
from tracelens.step.work import Work, is_gated, repeats_keys, tokens_of, vocab_of

NOW = ModelConfig(
    hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=32000, layers=32, sequence=2048,
    micro_batch=2, gated=True, dtype="bf16", tensor_parallel=1, pipeline_parallel=1,
)  # fmt: skip

# --- kernels that only move bytes -------------------------------------------------------------------------

#: What the bytes of each component are made of, in the letters of a model.
_MADE_OF = {
    "embedding": "b s h", "norm": "b s h", "residual": "b s h", "dropout": "b s h",
    "attention.output": "b s h",
    "mlp.down": "b s h", "moe.router": "b s h", "attention.softmax": "b s s a", "mlp.up": "b s f",
    "mlp.gate": "b s f", "mlp.activation": "b s f", "mlp.other": "b s f", "logits": "b s v", "loss": "b s v",
}  # fmt: skip
_NAMES = {"b": "micro_batch", "s": "sequence", "h": "hidden", "f": "ffn", "v": "vocab"}
_OUTSIDE = {"embedding", "logits", "loss"}


def ratio(component: str, change: dict[str, int], now: ModelConfig = NOW, **fields: Any) -> float | None:
    """Time after over time before at the middle, of 3 ms beside 2 ms of products; None where it stays."""
    found = rest_of([(component, "forward", 5.0, 2.0)], now, replace(changed(now, change), **fields))
    if not found:
        return None
    (one,) = found
    assert (one.time_ms, one.component) == (3.0, component)
    assert one.then_ms.low == min(one.then_ms.mid, one.then_ms.low)
    return one.then_ms.mid / 3.0


@pytest.mark.parametrize("component", _MADE_OF)
def test_bytes_grow_with_the_sizes_that_they_are_made_of(component: str) -> None:
    letters = _MADE_OF[component].split()
    for letter, name in _NAMES.items():
        many = letters.count(letter)
        found = ratio(component, {name: 3 * (NOW.get(name) or 0)})
        assert found == (pytest.approx(3**many) if many else None), name
    layers = ratio(component, {"layers": 48})
    assert layers == (None if component in _OUTSIDE else pytest.approx(1.5))


@pytest.mark.parametrize(
    ("component", "change", "more", "wanted"),
    [
        # (a + 2 kv) d of 32 + 16 heads
        ("attention.qkv", {"kv_heads": 16}, {}, 64 / 48),
        ("attention.rope", {"kv_heads": 4}, {}, 40 / 48),
        ("attention.other", {"kv_heads": 16}, {}, 64 / 48),
        ("attention.rope", {"micro_batch": 3}, {}, 1.5),
        ("attention.softmax", {"sequence": 4096}, {}, 4.0),
        ("loss", {"dtype": "fp32"}, {}, 2.0),  # 4 bytes and not 2
        ("norm", {"dtype": "tf32"}, {}, 2.0),
        ("norm", {"dtype": "fp8"}, {}, None),  # between products all stays in 16 bits
        ("optimizer", {"dtype": "fp32"}, {}, None),
        ("mlp.activation", {"tensor_parallel": 2}, {}, 1.0),  # half of the width, twice the micro-batches
        ("norm", {"tensor_parallel": 2}, {}, 2.0),
        ("loss", {"tensor_parallel": 2}, {}, 2.0),
    ],
)
def test_bytes_of_heads_types_and_ranks(
    component: str, change: dict[str, Any], more: dict[str, Any], wanted: float | None
) -> None:
    found = ratio(component, change, **more)
    assert found == (None if wanted is None else pytest.approx(wanted))


def test_the_optimizer_moves_the_weights() -> None:
    layer = 4096 * (32 + 16) * 128 + 4096 * 4096 + 3 * 4096 * 14336
    weights = [count * layer + 32000 * 4096 for count in (32, 64)]
    assert ratio("optimizer", {"layers": 64}) == pytest.approx(weights[1] / weights[0])
    assert ratio("grad_clip", {"vocab": 64000}) == pytest.approx(1 + 32000 * 4096 / weights[0])


def test_copied_keys_are_as_many_as_heads() -> None:
    copied = replace(NOW, kv_repeated=True)
    assert ratio("attention.other", {"kv_heads": 16}, copied) is None
    assert ratio("attention.qkv", {"kv_heads": 16}, copied) == pytest.approx(64 / 48)


def test_kernels_that_may_be_bound_by_their_launch_have_a_range_from_the_time_as_it_is() -> None:
    (one,) = rest_of([("norm", "forward", 4.0, 1.0)], NOW, changed(NOW, {"hidden": 8192}))
    assert (one.then_ms.low, one.then_ms.mid, one.then_ms.high) == (3.0, 6.0, 6.0)
    (one,) = rest_of([("norm", "forward", 4.0, 1.0)], NOW, changed(NOW, {"hidden": 2048, "layers": 64}))
    assert (one.then_ms.low, one.then_ms.mid, one.then_ms.high) == (3.0, 3.0, 6.0)
    assert one.scales_with == "b*s*h*layers"
    (one,) = rest_of([("mlp.up", "forward", 4.0, 1.0)], NOW, changed(NOW, {"layers": 16}))
    assert (one.scales_with, one.then_ms.mid) == ("layers", 1.5)
    two = rest_of(
        [("norm", "forward", 1.0, 0.0), ("loss", "forward", 2.0, 0.0)], NOW, changed(NOW, {"micro_batch": 4})
    )
    assert [one.component for one in two] == ["loss", "norm"]
    assert not rest_of([("norm", "forward", 1.0, 1.0)], NOW, changed(NOW, {"micro_batch": 4}))


@pytest.mark.parametrize(
    ("component", "change", "more_often"),
    [
        ("norm", {"layers": 40}, 1.25), ("logits", {"layers": 40}, 1.0), ("optimizer", {"layers": 40}, 1.0),
        ("norm", {"tensor_parallel": 4}, 4.0), ("loss", {"tensor_parallel": 4}, 4.0),
        ("grad_clip", {"tensor_parallel": 4}, 1.0), ("norm", {"pipeline_parallel": 4}, 1.0),
        ("loss", {"pipeline_parallel": 4}, 4.0), ("norm", {"pipeline_parallel": 5}, 5 * 7 / 32),
    ],
)  # fmt: skip
def test_how_often_kernels_run(component: str, change: dict[str, int], more_often: float) -> None:
    """At the same GPUs and tokens: n ranks of a copy run n times the micro-batches, a stage its layers."""
    assert repeats(component, NOW, changed(NOW, change)) == pytest.approx(more_often)


# --- the fullest rank of experts --------------------------------------------------------------------------


def to_experts(uneven: float | None, size: float | None, calls: float = 1.0, exposed: float = 1.0) -> Any:
    return message(
        "all_to_all", purpose="expert all-to-all", uneven_frac=uneven, bytes_per_call=size,
        calls_per_step=calls, exposed=exposed,
    )  # fmt: skip


def test_the_fullest_rank_is_the_mean_of_calls_by_their_bytes() -> None:
    rows = [to_experts(0.5, 100.0, 2.0), to_experts(0.1, 600.0), to_experts(None, 5.0), to_experts(0.9, None)]
    assert uneven_frac(rows) == pytest.approx((200 * 0.5 + 600 * 0.1) / 800)
    assert uneven_frac([to_experts(None, 5.0)]) is None and uneven_frac([message(bytes_per_call=4.0)]) is None


@pytest.mark.parametrize(
    ("now", "then", "saved"),
    [
        # 10 ms of experts and 4 of waiting; the fullest takes 10 to 14, 12.5 where this rank has the mean
        (25, 0, (10 * 0.2, 12.5 * 0.2, 14 * 0.2)),
        (100, 0, (5.0, 7.0, 7.0)),
        (0, 25, (-3.5, -2.5, -2.5)),
        (25, 25, None),
        (None, 25, None),
    ],
)
def test_another_load_changes_the_fullest_ranks_rows(
    now: int | None, then: int | None, saved: tuple[float, ...] | None
) -> None:
    row = gemm(1, 512, 4096, 4096, component="moe.experts", time_us=10_000.0)
    work = Work((), (), ((row, "made up"), (gemm(2, 8, 8, 8, time_us=5e3), "none of theirs")))
    found = rest_of_load(
        [to_experts(0.2, 1.0, exposed=4.0)], work, replace(NOW, imbalance=now), replace(NOW, imbalance=then)
    )
    if saved is None:
        assert found == []
        return
    (one,) = found
    assert one.time_ms == 14.0
    got = 14.0 - one.then_ms.high, 14.0 - one.then_ms.mid, 14.0 - one.then_ms.low
    assert got == pytest.approx(saved)


def expert(m: int, calls: float = 8.0, n: int = 4096, **more: Any) -> GemmRow:
    return gemm(1, m, n, 1024, component="moe.experts", calls=calls, **more)


@pytest.mark.parametrize(
    ("sizes", "tokens", "multiple", "top_k"),
    [
        ([512], 2048, 1, 2),  # 8 experts of 512 rows: two for each token
        ([510], 2048, 1, 2),
        ([500], 2048, 1, None),
        ([448, 704], 2048, 64, None),
        ([496, 720], 2048, 16, None),
        ([504, 720], 2048, 1, None),
        ([256, 1024], 2048, 256, None),
    ],
)
def test_what_rows_of_experts_show(sizes: list[int], tokens: int, multiple: int, top_k: int | None) -> None:
    rows = [expert(size, 8.0 / len(sizes)) for size in sizes]
    router = gemm(9, tokens, 8, 4096, component="moe.router", calls=1.0)
    found = mixture_of([*rows, router], model(hidden=4096, ffn=1024, experts=8), tokens=tokens)
    assert found is not None and (found.how, found.local, found.experts) == ("loop", 8, 8)
    assert (found.least, found.most) == (min(sizes), max(sizes))
    assert found.capacity == pytest.approx(sum(sizes) / len(sizes))
    assert (found.row_multiple, found.top_k) == (multiple, top_k)


@pytest.mark.parametrize(
    ("up", "gated"),
    [
        ([(1024, 8.0)], False),
        ([(1024, 16.0)], True),
        ([(1024, 12.0)], True),
        ([(2048, 8.0)], True),
        ([], None),
    ],
)
def test_a_gate_of_experts(up: list[tuple[int, float]], gated: bool | None) -> None:
    rows = [expert(512), *(gemm(2, 512, n, 4096, component="moe.experts", calls=calls) for n, calls in up)]
    found = mixture_of(rows, model(hidden=4096, ffn=1024, experts=8), tokens=2048)
    assert found is not None and found.gated is gated


# --- what rows say of the model ---------------------------------------------------------------------------


def test_tokens_are_those_of_most_forward_time_in_layers() -> None:
    rows = [
        gemm(1, 4096, 8, 8, time_us=10.0), gemm(2, 2048, 8, 8, time_us=30.0),
        gemm(3, 999, 8, 8, component="logits", time_us=500.0),
        gemm(4, 777, 8, 8, role="dgrad", time_us=500.0),
        gemm(5, 555, 8, 8, component="attention.scores", time_us=500.0),
    ]  # fmt: skip
    assert tokens_of(rows) == 2048
    assert tokens_of(rows[2:]) is None
    unknown = gemm(6, 1024, 8, 8, role=None, time_us=5.0)
    assert tokens_of([unknown]) == 1024 and tokens_of([unknown, *rows]) == 2048


@pytest.mark.parametrize(
    ("role", "m", "n", "k", "gated"),
    [
        ("forward", 4096, 2 * 1024, 512, True), ("forward", 4096, 1024, 512, False),
        ("forward", 2 * 1024, 4096, 512, True),  # transposed
        ("forward", 2 * 1024, 1024, 512, False),  # its tokens are as many
        ("dgrad", 4096, 512, 2 * 1024, True), ("dgrad", 2 * 1024, 512, 1024, False),
        ("wgrad", 2 * 1024, 512, 4096, True), ("wgrad", 512, 2 * 1024, 4096, True),
        ("wgrad", 1024, 2 * 1024, 4096, False),
    ],
)  # fmt: skip
def test_a_gate_shows_as_twice_the_width_of_outputs(role: str, m: int, n: int, k: int, gated: bool) -> None:
    assert is_gated([gemm(1, m, n, k, role=role)], 1024) is gated
    assert is_gated([gemm(1, m, n, k, role=role, component="mlp.gate")], 1024) is True
    assert is_gated([gemm(1, m, n, k, role=role, component="logits")], 1024) is None
    assert is_gated([gemm(1, m, n, k, role=role)], None) is False


@pytest.mark.parametrize(
    ("seen", "heads", "kv_heads", "repeated"),
    [((32, 32), 32, 8, True), ((32, 8), 32, 8, False), ((32, 32), 32, 32, None), (None, 32, 8, None)],
)
def test_copies_of_keys_show_in_attentions_own_heads(
    seen: tuple[int, int] | None, heads: int, kv_heads: int, repeated: bool | None
) -> None:
    rows = [] if seen is None else [attention(1, 128, attention=AttentionDims(1, *seen, 64, 64, 128))]
    assert repeats_keys(rows, model(heads=heads, kv_heads=kv_heads)) is repeated
    scores = gemm(2, 64, 64, 128, component="attention.scores", batch=32)
    assert repeats_keys([*rows, scores], model(heads=heads, kv_heads=kv_heads)) is (
        None if kv_heads == heads else seen != (32, 8)
    )


def test_the_vocabulary_is_what_the_model_asked_for() -> None:
    padded = gemm(1, 64, 50264, 512, component="logits", padded_from={"n": 50257})
    assert vocab_of([padded], model(vocab=50264)) == 50257
    assert vocab_of([padded], model(vocab=50304)) == 50304
    assert vocab_of([replace(padded, role="dgrad")], model(vocab=50264)) == 50264


@pytest.mark.parametrize(
    ("output", "down", "layers", "count"),
    [(48.0, 24.0, 12, 4), (50.0, 24.0, 12, 2), (50.0, 25.0, 12, None), (6.0, 6.0, 12, None),
     (12.0, 1.0, 12, 1),
     (12.0, 12.0, None, None), (24.05, 1.0, 12, 2)],
)  # fmt: skip
def test_micro_batches_are_whole_runs_of_a_layers_last_products(
    output: float, down: float, layers: int | None, count: int | None
) -> None:
    rows = [
        gemm(1, 64, 64, 64, component="attention.output", calls=output),
        gemm(2, 64, 64, 64, component="mlp.down", calls=down),
        gemm(3, 64, 64, 64, component="mlp.down", calls=99.0, role="dgrad"),
    ]
    assert micro_batches_of(rows, layers) == count


# --- fused attention --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kv_heads": 4}, "b=2 h=32 kv=4 s=2048 d=128"),
        ({"kv_heads": 32}, "b=2 h=32 s=2048 d=128"),
        ({"micro_batch": 6}, "b=6 h=32 kv=8 s=2048 d=128"),
        ({"sequence": 1024}, "b=2 h=32 kv=8 s=1024 d=128"),
        ({"heads": 16, "head_dim": 256}, "b=2 h=16 kv=8 s=2048 d=256"),
    ],
)
def test_attention_after_a_change_as_the_table_writes_it(change: dict[str, int], text: str) -> None:
    step = model_of(Shape(4096, 32, 14336, v=32064, kv=8, gated=True, b=2))
    rows = [row for row in what_if(step, change).rows if row.component == "attention.core"]
    assert len(rows) == 2
    for row in rows:
        assert (row.shape_now, row.shape_then) == ("b=2 h=32 kv=8 s=2048 d=128", text)


# --- ranges of a product ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("then_us", "floor_us", "wanted"),
    [
        (50.0, 0.0, (50 / math.e**0.1, 50.0, 50 * math.e**0.2)),
        (50.0, 48.0, (48.0, 50.0, 50 * math.e**0.2)),
        (
            50.0,
            55.0,
            (55.0, 55.0, 50 * math.e**0.2),
        ),
        (50.0, 80.0, (80.0, 80.0, 80.0)),
        (50.0, 50.0, (50.0, 50.0, 50 * math.e**0.2)),
    ],
)
def test_no_product_is_faster_than_its_floor(
    then_us: float, floor_us: float, wanted: tuple[float, float, float], said: Listener
) -> None:
    found = bounded(then_us, 100.0, (0.1, 0.2), "model", ("now", "then"), "how", floor_us, "ratio")
    assert (found.low, found.mid, found.high) == pytest.approx(tuple(value / 100 for value in wanted))
    assert (found.shape_now, found.shape_then) == ("now", "then")
    said(found.how.removeprefix("how"))


# --- alignment --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "role", "sizes", "off"),
    [
        # c is [M, N]; a [M, K] and b [K, N] by rows (N) or columns (T), the first letter b's
        ("TN", "forward", (1001, 1002, 1004), {"n": 1002, "k": 1004}),
        ("NN", "dgrad", (1001, 1002, 1004), {"n": 1002, "k": 1004}),
        ("NT", "wgrad", (1001, 1002, 1004), {"n": 1002, "m": 1001}),
        ("TT", None, (1001, 1002, 1004), {"n": 1002, "m": 1001, "k": 1004}),
        ("TN", "forward", (1001, 1008, 1016), {}),
        ("TN", "forward", (1001, 1, 1016), {}),  # a single column has no step
    ],
)
def test_leading_dimensions_off_the_grid_by_layout(
    layout: str, role: str | None, sizes: tuple[int, int, int], off: dict[str, int]
) -> None:
    row = replace(gemm(1, *sizes, layout=None, role=role), layout=layout, kernel_layout=None)
    assert dict(off_grid(row)) == off
    if not off:
        assert misfit_of(replace(row, kernel_alignment=None, kernel_family="cutlass2")) is None
    on_grid = replace(row, alignment_bytes={"a": 16, "b": 128, "c": 16})
    assert off_grid(on_grid) == ()


@pytest.mark.parametrize(
    ("kernel", "dtype", "words"),
    [
        (cutlass(1), "bf16", "cutlass2 align1, 2-byte loads"),
        (cutlass(4), "bf16", "cutlass2 align4, 8-byte loads"),
        (cutlass(8), "bf16", None),
        (cutlass(2), "fp32", "cutlass2 align2, 8-byte loads"),
        (XMMA, "bf16", None),
    ],
)
def test_loads_below_16_bytes_by_the_kernels_name(kernel: str, dtype: str, words: str | None) -> None:
    found = misfit_of(gemm(1, 1024, 1024, 1024, kernel=kernel, dtype=dtype))
    assert (found.kernel if found is not None else None) == words


@pytest.mark.parametrize(
    ("elements", "dtype", "begins"),
    [(50257, "bf16", 2), (50256, "bf16", 32), (64, "bf16", 128), (128, "bf16", 128), (3, "fp32", 4),
     (33, "fp4", 16), (1, "fp4", None), (7, None, None)],
)  # fmt: skip
def test_rows_begin_on_powers_of_two(elements: int, dtype: str | None, begins: int | None) -> None:
    assert boundary_bytes(elements, dtype) == begins


# --- what a change touches, and what has no answer --------------------------------------------------------


@pytest.mark.parametrize(
    ("component", "sizes", "names", "touched"),
    [
        ("logits", (1, 2, 3), ["vocab"], True),
        ("mlp.up", (1, 2, 3), ["vocab"], False),
        ("mlp.up", (1, 2, 3), ["ffn"], True),
        ("moe.experts", (1, 2, 3), ["ffn"], True),
        ("moe.router", (1, 2, 3), ["ffn"], False),
        ("moe.router", (1, 2, 3), ["experts"], True),
        ("moe.router", (1, 2, 3), ["top_k"], False),
        ("attention.qkv", (1, 2, 3), ["head_dim"], True),
        ("mlp.up", (1, 2, 3), ["heads"], False),
        ("mlp.up", (1, 2, 3), ["hidden"], True),
        ("optimizer", (1, 2, 3), ["hidden"], False),
        ("moe.experts", (1, 2, 3), ["imbalance"], False),
        # of no known part: by its sizes, of which 4096 are the tokens and the hidden size
        ("other", (4096, 7, 8), ["hidden"], True),
        ("other", (4096, 7, 8), ["micro_batch"], True),
        ("other", (7, 8, 9), ["sequence"], False),
        ("unattributed", (9, 14336, 8), ["ffn"], True),
        ("unattributed", (None, None, None), ["hidden"], True),
        ("unattributed", (None, None, None), ["ffn"], False),
        ("mlp.up", (1, 2, 3), ["vocab", "ffn"], True),
    ],
)
def test_rows_without_a_formula_that_a_change_touches(
    component: str, sizes: tuple[int | None, ...], names: list[str], touched: bool
) -> None:
    row = replace(gemm(1, 8, 8, 8, component=component), m=sizes[0], n=sizes[1], k=sizes[2])
    assert concerns(row, names, NOW) is touched


@pytest.mark.parametrize(
    ("dtype", "sizes", "taken"),
    [
        ("fp8", (1001, 1024, 1024), True),
        ("fp8", (1024, 1040, 1040), True),
        ("fp8", (1024, 1032, 1024), False),
        ("fp8", (1024, 1024, 1032), False),
        ("fp8-block", (1024, 1024, 1152), True),
        ("fp8-block", (1024, 1024, 1088), False),
        ("fp8-block", (1088, 1024, 1024), False),
        ("nvfp4", (1024, 1024, 1024), True),
        ("nvfp4", (1024, 1088, 1024), False),
        ("bf16", (1001, 1, 3), True),
    ],
)
def test_types_of_low_precision_take_whole_blocks(
    dtype: str, sizes: tuple[int, int, int], taken: bool
) -> None:
    """torch._scaled_mm asks for K and N in steps of 16 elements, and leaves M free."""
    gpu = find_gpu(None, override="b200")
    found = predict_row((*sizes, 1), gemm(1, *sizes), gpu=gpu, measured=None, dtype=dtype)
    assert not isinstance(found, str)
    block = {"fp8": 16, "fp8-block": 128, "nvfp4": 128}.get(dtype)
    text = "" if taken else f"GEMMs in {dtype} need rows of a multiple of {block} elements"
    assert _off_block(found, dtype) == text


@pytest.mark.parametrize(
    ("now", "out", "then", "wanted"),
    [
        ("bf16", "fp32", "fp8", "fp32"),  # gradients are added up in fp32 whatever is multiplied
        ("bf16", "bf16", "fp8", "bf16"),
        ("fp32", "fp32", "bf16", "bf16"),
        ("bf16", "fp32", "bf16", "fp32"),
    ],
)
def test_the_output_follows_the_type_but_where_gradients_are_added_up(
    now: str, out: str, then: str, wanted: str
) -> None:
    row = replace(gemm(1, 1024, 1024, 1024, dtype=now), out_dtype=out)
    found = predict_row(
        (1024, 1024, 1024, 1), row, gpu=find_gpu(None, override="h100-sxm"), measured=None, dtype=then
    )
    assert not isinstance(found, str) and (found.dtype, found.out_dtype) == (then, wanted)


@pytest.mark.parametrize(
    ("component", "dtype", "wanted"),
    [
        ("mlp.up", "fp8", "fp8"),
        ("logits", "fp8", "bf16"),
        ("logits", "fp16", "fp16"),
        ("moe.router", "nvfp4", "bf16"),
        ("attention.output", "fp8-block", "fp8-block"),
        ("mlp.up", "bf16", "bf16"),
        ("mlp.up", "fp32", "fp32"),
    ],
)
def test_types_that_a_change_of_precision_takes(component: str, dtype: str, wanted: str) -> None:
    row = gemm(1, 64, 64, 64, component=component)
    assert dtype_then(row, NOW, replace(NOW, dtype=dtype)) == wanted
    assert dtype_then(replace(row, math_dtype="tf32"), NOW, replace(NOW, dtype=dtype)) == "tf32"


@pytest.mark.parametrize("l2_mb", [70.0, 50.0, 0.001, None])
def test_the_floor_is_operations_at_the_peak_or_operands_across_memory(l2_mb: float | None) -> None:
    """H100: 989 TFLOP/s and 3350 GB/s; operands that fit the cache, unknown is 50 MB, come at twice that."""
    gpu = replace(find_gpu(None, override="h100-sxm"), l2_mb=l2_mb)
    large, thin = (
        predict_row((m, 4096, 4096, 2), gemm(1, m, 4096, 4096), gpu=gpu, measured=None) for m in (8192, 16)
    )
    assert not isinstance(large, str) and not isinstance(thin, str)
    assert _floor(large, "bf16", gpu) == pytest.approx(2 * 2 * 8192 * 4096 * 4096 / 989e6)
    moved = 2 * 2 * (16 * 4096 + 4096 * 4096 + 16 * 4096)
    fits = moved <= (50.0 if l2_mb is None else l2_mb) * 1e6
    assert _floor(thin, "bf16", gpu) == pytest.approx((0.5 if fits else 1.0) * moved / 3350e3)
    alone = _floor(thin, "bf16", replace(gpu, bandwidth_gbps=None))
    assert alone == pytest.approx(2 * 2 * 16 * 4096**2 / 989e6)


def test_the_spread_holds_nine_of_ten() -> None:
    assert _spread([1.0, 1.0, 1.0, 2.0]) == pytest.approx(math.log(2))  # few: all
    many = [1.0] * 15 + [1.1, 1.2, 1.3, 1.4, 4.0]
    assert _spread(many) == pytest.approx(math.log(1.3))  # the eighteenth of twenty
    found = _medians({"a": [1.0], "b": [1.0, 3.0]})
    assert found.keys() == {"b"} and found["b"] == pytest.approx((2.0, math.log(2)))


@pytest.mark.parametrize(
    ("change", "growth"),
    [
        ({"micro_batch": [8, 6]}, -0.25), ({"tokens": [100, 150]}, 0.5), ({"sequence": [1000, 2000]}, 0.0),
        ({"sequence": [1000, 500], "micro_batch": [2, 6]}, 0.5), ({"hidden": [1, 2]}, 0.0),
        ({"micro_batch": [None, 6]}, 0.0),
    ],
)  # fmt: skip
def test_a_saving_per_token(change: dict[str, list[int | str | None]], growth: float) -> None:
    """10 ms of 100 move by 2 ms: with a half more tokens (2 + 0.5 * 10) / 1.5 are saved."""
    assert growth_frac(change) == pytest.approx(growth)
    step = model_of(Shape(1024, 16, 4096, v=32000, layers=2))
    found = replace(
        what_if(step, {"ffn": 4096}), change=change, saving_ms=Estimate(1.0, 2.0, 3.0, "model"),
        step_ms=100.0, rest=[Rest("norm", "forward", "b*s*h", 10.0, Span(8.0, 8.0, 9.0, "model"))], rows=[],
    )  # fmt: skip
    saving = per_token(found).saving_ms
    wanted = [(one + 10.0 * growth) / (1 + growth) for one in (1.0, 2.0, 3.0)]
    assert [saving.low, saving.mid, saving.high] == pytest.approx(wanted)
    assert moved_then_ms(per_token(found)) == pytest.approx(8.0)
    assert affected_ms(found) == 10.0


def test_twice_the_layers_repeat_every_row_in_them_however_short() -> None:
    shape = Shape(1024, 16, 4096, v=32000, layers=4, b=1, s=512)
    step = model_of(shape)
    inside = [row.time_ms_per_step for row in rows_of(shape) if row.component != "logits"]
    assert step.step_ms is not None and min(inside) < 0.1
    found = MeasuredStep(step).time_ms(replace(step.now, layers=8))
    assert found == pytest.approx(step.step_ms + sum(inside))


@pytest.mark.parametrize(("loop_us", "batched_us", "how"), [(10.0, 30.0, "batched"), (30.0, 10.0, "loop")])
def test_experts_run_as_most_of_their_time_does(loop_us: float, batched_us: float, how: str) -> None:
    rows = [
        expert(512, 1.0, time_us=loop_us),
        expert(512, 1.0, time_us=batched_us, batch=8),
        expert(2048, 1.0, time_us=900.0),  # every token goes through it: a shared one
    ]
    found = mixture_of(rows, model(hidden=4096, ffn=1024, experts=8), tokens=2048)
    assert found is not None and found.how == how
