"""Which projections read one tensor, and what one GEMM saves in their place, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.advice.advice_facts import H100, other, step_of
from tests.advice.advice_rows import facts, gemm, model
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.results import GemmRow
from tracelens.rules.evidence.projections import (
    FAMILIES,
    Group,
    Part,
    fused_saving,
    groups_of,
    split_ms,
    why_none,
)

QKV, GATED = FAMILIES
HIDDEN = model(hidden=1024)
Q = gemm(1, 2048, 1024, 1024, component="attention.qkv", calls=16.0, time_us=10.0)
KV = gemm(2, 2048, 128, 1024, component="attention.qkv", calls=32.0, time_us=4.0)
OUT = gemm(3, 2048, 1024, 1024, component="attention.output", calls=16.0)
DGRAD_Q = gemm(4, 2048, 1024, 1024, component="attention.qkv", role="dgrad", layout="NN", calls=16.0)
DGRAD_KV = gemm(5, 2048, 1024, 128, component="attention.qkv", role="dgrad", layout="NN", calls=32.0)
WGRAD_Q = gemm(6, 1024, 1024, 2048, component="attention.qkv", role="wgrad", layout="NT", calls=16.0)
WGRAD_KV = gemm(7, 128, 1024, 2048, component="attention.qkv", role="wgrad", layout="NT", calls=32.0)


def found(*rows: GemmRow, family: Any = QKV, **given: Any) -> list[tuple[str, list[tuple[str, int, int]]]]:
    groups = groups_of(facts(*rows, **({"dims": HIDDEN} | given)), family)
    return [(one.role, [(part.row.id, part.width, part.count) for part in one.parts]) for one in groups]


FORWARD = [("forward", [("g1", 1024, 1), ("g2", 128, 2)])]


def test_a_group_is_as_wide_and_as_long_as_its_parts_together() -> None:
    (group,) = groups_of(facts(Q, KV, OUT, dims=HIDDEN), QKV)
    assert (group.width, group.tokens, group.into, group.calls) == (1024 + 2 * 128, 2048, 1024, 16.0)
    assert group.time_us == pytest.approx(10.0 + 2 * 4.0)
    assert group.apart == "1 × (2048 × 1024 × 1024) and 2 × (2048 × 128 × 1024)"
    assert [replace(group, role=role).sizes for role in ("forward", "dgrad", "wgrad")] == [
        (2048, 1280, 1024, 1), (2048, 1024, 1280, 1), (1280, 1024, 2048, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("width", "into", "dtype", "off"),
    [
        (128, 1024, "bf16", []), (132, 1024, "bf16", [132]), (132, 1024, "fp32", []),
        (128, 1025, "bf16", [128]),
        (130, 1024, "fp32", [130]), (136, 1024, "bf16", []), (136, 1024, "fp8", [136]), (129, 1024, None, []),
    ],
)  # fmt: skip
def test_widths_off_16_bytes(width: int, into: int, dtype: str | None, off: list[int]) -> None:
    row = replace(KV, dtype=dtype)
    assert Group("forward", (Part(row, width, 2),), 2048, into, 16.0).off_grid == off


def test_two_or_three_projections_for_each_call_of_the_output_read_one_tensor() -> None:
    assert found(Q, KV, OUT) == FORWARD
    assert found(Q, KV, OUT, dims=model()) == FORWARD  # no hidden size speaks against it
    assert found(Q, KV, OUT, dims=model(hidden=2048)) == []
    two = [("forward", [("g1", 1024, 1), ("g2", 128, 1)])]
    assert found(Q, replace(KV, calls_per_step=16.0), OUT) == two
    for calls, share in ((48.0, 3), (64.0, 4), (8.0, 0), (24.0, 0), (1e-9, 0)):
        alone = [("forward", [("g1", 1024, share)])] if share == 3 else []
        assert found(replace(Q, calls_per_step=calls), OUT) == alone, calls
    assert found(Q, OUT) == [] and found(KV, OUT) == [("forward", [("g2", 128, 2)])]
    assert found(Q, replace(KV, calls_per_step=32.00001), OUT) == FORWARD
    assert found(Q, replace(KV, calls_per_step=32.001), OUT) == []
    assert found(Q, KV) == [] and found(Q, KV, replace(OUT, calls_per_step=0.0)) == []
    assert found(Q, KV, replace(OUT, calls_per_step=0.5)) == []


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"batch": None}, True), ({"batch": 1}, True), ({"batch": 2}, False), ({"m": 1024}, False),
        ({"k": 512}, False), ({"dtype": "fp16"}, False), ({"n": None}, False), ({"m": None}, False),
        ({"role": None}, True), ({"component": "mlp.up"}, False),
    ],
)  # fmt: skip
def test_projections_of_one_input_have_its_sizes_and_type(given: dict[str, Any], fits: bool) -> None:
    assert found(Q, replace(KV, **given), OUT) == (FORWARD if fits else [])
    if given == {"batch": 2}:
        assert found(replace(Q, batch=2), replace(KV, batch=2), OUT) == []
    if given == {"batch": None}:
        assert found(replace(Q, batch=None), replace(KV, batch=None), OUT) == FORWARD


def test_gate_and_up_are_two_for_each_down() -> None:
    rows = [
        gemm(at, 512, 1408, 512, component=name, calls=4.0) for at, name in ((1, "mlp.gate"), (2, "mlp.up"))
    ]
    down = gemm(3, 512, 512, 1408, component="mlp.down", calls=4.0)
    assert found(*rows, down, family=GATED, dims=model(hidden=512)) == [
        ("forward", [("g1", 1408, 1), ("g2", 1408, 1)])
    ]
    assert found(rows[0], down, family=GATED) == []
    twice = replace(rows[1], calls_per_step=8.0)
    assert found(rows[0], twice, down, family=GATED) == []  # three


def test_gradients_go_with_their_parts_where_each_is_found() -> None:
    dgrad = ("dgrad", [("g4", 1024, 1), ("g5", 128, 2)])
    wgrad = ("wgrad", [("g6", 1024, 1), ("g7", 128, 2)])
    rows = (Q, KV, OUT, DGRAD_Q, DGRAD_KV, WGRAD_Q, WGRAD_KV)
    assert found(*rows) == [*FORWARD, dgrad, wgrad]
    turned = replace(WGRAD_KV, m=1024, n=128)
    assert found(*rows[:6], turned) == [*FORWARD, dgrad, wgrad]
    assert found(*rows[:4], *rows[5:]) == [*FORWARD, wgrad]
    assert found(*rows[:6]) == [*FORWARD, dgrad]
    for given in ({"calls_per_step": 0.0}, {"component": "mlp.up"}, {"k": 256}, {"m": 64}, {"n": 64}):
        assert found(*rows[:4], replace(DGRAD_KV, **given), WGRAD_Q, WGRAD_KV) == [*FORWARD, wgrad], given
    again = [replace(row, phase="recompute") for row in (Q, KV, OUT)]
    assert found(*again) == FORWARD
    assert found(*rows[:3], *again, *rows[3:]) == [*FORWARD, dgrad, wgrad, *FORWARD]
    assert found(*again, DGRAD_Q, DGRAD_KV) == FORWARD  # gradients are the forward's


def test_several_kernels_of_one_gradient_stand_for_their_mean() -> None:
    """12 calls of 5 us and 20 of 9 us: (60 + 180) / 32 = 7.5 us a call."""
    short = replace(DGRAD_KV, id="g8", calls_per_step=12.0, time_ms_per_step=0.06)
    long = replace(DGRAD_KV, id="g9", calls_per_step=20.0, time_ms_per_step=0.18)
    groups = groups_of(facts(Q, KV, OUT, DGRAD_Q, short, long, dims=HIDDEN), QKV)
    part = groups[1].parts[1]
    assert (part.row.id, part.row.calls_per_step, part.count) == ("g9", 32.0, 2)
    assert part.row.time_ms_per_step == pytest.approx(0.24)
    assert groups[1].time_us == pytest.approx(2000.0 + 2 * 7.5)


@pytest.mark.parametrize(
    ("downs", "phase", "judged"),
    [(16.0, "forward", True), (8.0, "forward", False), (1.0, "forward", False), (0.0, "forward", True),
     (15.9, "forward", False), (32.0, "forward", True), (8.0, "recompute", True)],
)  # fmt: skip
def test_more_attention_outputs_than_mlps_are_cross_attention(
    downs: float, phase: str, judged: bool, said: Listener
) -> None:
    down = gemm(9, 2048, 1024, 4096, component="mlp.down", calls=16.0)
    down = replace(down, calls_per_step=downs, phase=phase)
    assert found(Q, KV, OUT, down) == (FORWARD if judged else [])
    assert found(Q, KV, OUT, down, gemm(8, 64, 64, 64, component="moe.router")) == FORWARD
    why, told = why_none(facts(Q, KV, OUT, down, dims=HIDDEN), QKV)
    assert told is False
    said(why)


def test_why_there_is_nothing_to_put_together(said: Listener) -> None:
    one = replace(Q, n=1280)
    why, told = why_none(facts(one, OUT), QKV)
    assert told
    more, told = why_none(facts(Q, KV, OUT), QKV)
    assert not told
    said(why, more)
    for calls in (0.5, 1.0):
        few = [replace(row, calls_per_step=calls) for row in (one, OUT)]
        assert why_none(facts(*few), QKV)[1]
    none, told = why_none(facts(), QKV)
    assert not told
    said(none)
    down = gemm(3, 512, 512, 1408, component="mlp.down", calls=4.0)
    up = gemm(2, 512, 2816, 512, component="mlp.up", calls=4.0)
    said(why_none(facts(up, down, dims=model(ffn=1408)), GATED)[0])
    for ffn in (2816, 704, None):
        why, told = why_none(facts(up, down, dims=model(ffn=ffn)), GATED)
        assert told
        said(why)
    names: tuple[dict[str, Any], ...] = ({"component": "mlp.gate"}, {"components": ["mlp.up", "mlp.gate"]})
    for named in names:
        row = replace(up, **named)
        said(why_none(facts(row, down), GATED)[0])


def test_one_gemm_saves_the_ratio_of_predictions_with_the_error_of_ratios(said: Listener) -> None:
    """Parts of 10 and 2 x 4 us, 16 times: 0.288 ms; 1280 columns beside 1024 are 1.25 apart, 12 % error."""
    step = step_of([Q, KV, OUT], dims=HIDDEN)
    (group,) = groups_of(step, QKV)

    def us(n: int) -> float:
        return predict_gemm(2048, n, 1024, gpu=H100).time_us.mid or 0.0

    made = fused_saving(step, group)
    assert made is not None
    saving, how = made
    ratio = us(1280) / (us(1024) + 2 * us(128))
    assert saving.mid == pytest.approx(0.288 * (1 - ratio))
    assert saving.low == pytest.approx(0.288 * (1 - ratio * math.exp(0.12)))
    assert saving.high == pytest.approx(0.288 * (1 - ratio / math.exp(0.12)))
    assert f" = {ratio:.3f} of that" in how
    assert fused_saving(step_of([Q, KV, OUT], dims=HIDDEN, predict=False), group) is None
    said(how)
    blind = replace(group, parts=(group.parts[0], replace(group.parts[1], row=replace(KV, m=None))))
    assert fused_saving(step, blind) is None


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 2), ("fp32", 4), (None, 2)])
def test_gradients_are_put_side_by_side_once_read_and_written(dtype: str | None, width: int) -> None:
    parts = tuple(Part(replace(row, dtype=dtype), n, many) for row, n, many in ((Q, 1024, 1), (KV, 128, 2)))
    groups = [Group(role, parts, 2048, 1024, 16.0) for role in ("forward", "dgrad", "wgrad")]
    step = facts(Q)
    assert split_ms(step, groups) == pytest.approx(16 * 2 * width * 2048 * 1280 / 3350e6)
    assert split_ms(step, groups[:1]) == split_ms(step, []) == 0.0
    assert split_ms(facts(Q, others=[other(1, "copy", op=None)]), groups) == split_ms(step, groups)
    assert split_ms(facts(Q, others=[other(1, "copy", op="triton_poi_fused")]), groups) == 0.0
