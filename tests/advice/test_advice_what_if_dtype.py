"""Another type of the products: which of them change, by how much, and what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.advice.advice_answers import saved
from tests.advice.advice_steps import A100, H100, Shape, model_of, rows_of
from tests.said import Listener
from tracelens.config.changes import parse_changes
from tracelens.errors import UsageError
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if

LLAMA = Shape(4096, 32, 14336, v=128256, kv=8, gated=True, b=2)


@pytest.fixture(scope="module")
def step() -> StepModel:
    return model_of(LLAMA, rest_ms=20.0)


def test_fp8_is_for_the_linear_layers(step: StepModel) -> None:
    one = what_if(step, {"dtype": "fp8"})
    assert one.change == {"dtype": ["bf16", "fp8"]}
    changed = {row.component for row in one.rows}
    assert changed == {"attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down"}
    assert all(row.shape_then.endswith(" fp8") for row in one.rows)
    (casts,) = one.rest  # what is between the products stays in 16 bits
    low, mid, high = saved(one)
    linear = sum(row.time_ms for row in one.rows)
    products = linear - sum(row.then_ms.mid or 0.0 for row in one.rows)
    assert 0.3 * linear < products < 0.55 * linear  # twice the rate, at best
    assert mid == pytest.approx(products - (casts.then_ms.mid or 0.0))
    assert low < mid < high


def test_casts_to_fp8_move_bytes_of_every_operand(step: StepModel) -> None:
    """Forward, gradient of the input and of the weight of each linear layer: three operand pairs."""
    (casts,) = what_if(step, {"dtype": "fp8"}).rest
    tokens, h, f, layers = 4096, 4096, 14336, 32
    pairs = [(h, 6144), (h, h), (h, f), (h, f), (f, h)]
    elements = 2 * layers * sum(tokens * a + a * b + tokens * b for a, b in pairs)
    second = 0.9 * 3350e9
    assert casts.time_ms == 0.0 and casts.then_ms.low == 0.0
    assert casts.then_ms.mid == pytest.approx(3 * elements / second * 1e3)
    assert casts.then_ms.high == pytest.approx(5 * elements / second * 1e3)


def test_half_precision_types_are_alike(step: StepModel) -> None:
    one = what_if(step, {"dtype": "fp16"})
    low, mid, high = saved(one)
    assert (mid, one.rest) == (0.0, [])
    assert low < 0 < high < 0.1 * (one.step_ms or 0.0)


def test_fp32_doubles_the_bytes_and_has_no_flash_attention(step: StepModel) -> None:
    for name in ("fp32", "tf32"):
        one = what_if(step, {"dtype": name})
        (norm,) = one.rest
        assert norm.then_ms.mid == pytest.approx(2 * norm.time_ms) and norm.then_ms.low == norm.time_ms
        assert all((row.then_ms.mid or 0.0) > row.time_ms for row in one.rows)
        attention = sum(call.row.time_ms_per_step for call in step.work.attention)
        assert one.unpredicted_ms == pytest.approx(attention)


def test_only_products_of_the_main_type_change() -> None:
    rows = [
        replace(row, dtype="fp32", math_dtype="tf32", out_dtype="fp32") if row.component == "logits" else row
        for row in rows_of(LLAMA)
    ]
    one = what_if(model_of(LLAMA, rows=rows), {"dtype": "fp16"})
    assert "logits" not in {row.component for row in one.rows}


def test_a_gpu_without_the_type_says_so(said: Listener) -> None:
    for gpu, dtype in ((A100, "fp8"), (H100, "nvfp4")):
        with pytest.raises(UsageError) as error:
            what_if(model_of(LLAMA, gpu=gpu), {"dtype": dtype})
        said(error.value)
    assert what_if(model_of(LLAMA, gpu=H100), {"dtype": "bf16"}).change == {}


def test_sizes_that_fp8_does_not_take_have_no_prediction(said: Listener) -> None:
    """cuBLAS multiplies fp8 with every leading dimension on 16 bytes only."""
    odd = replace(LLAMA, f=14328)  # 16 bytes of bf16, 8 of fp8
    one = what_if(model_of(odd), {"dtype": "fp8"})
    assert one.saving_ms.mid is None
    said(one.notes[0])


def test_types_are_read_in_the_words_of_every_framework(said: Listener) -> None:
    assert parse_changes(["dtype=bfloat16"]) == {"dtype": "bf16"}
    assert parse_changes(["precision=torch.float16,ffn=64"]) == {"dtype": "fp16", "ffn": 64}
    with pytest.raises(UsageError) as error:
        parse_changes(["dtype=int4"])
    said(error.value)


def test_what_moves_bytes_takes_longer_under_autocast_than_in_fp32() -> None:
    """Tensors stay in fp32 there, and casts are added: from half the time to a quarter more."""
    rows = [replace(row, dtype="fp32", math_dtype="tf32", out_dtype="fp32") for row in rows_of(LLAMA)]
    step = model_of(LLAMA, rows=[row for row in rows if row.kind == "gemm"], rest_ms=20.0)
    (norm,) = what_if(step, {"dtype": "bf16"}).rest
    assert (norm.then_ms.low, norm.then_ms.mid, norm.then_ms.high) == pytest.approx((10.0, 10.0, 25.2))
    (wider,) = what_if(model_of(LLAMA, rest_ms=20.0), {"dtype": "fp32"}).rest
    assert wider.then_ms.high == pytest.approx(40.0)


def test_attention_that_leaves_fp32_on_an_unknown_gpu_has_no_prediction() -> None:
    rows = [replace(row, dtype="fp32", kernel_family="mem_efficient") for row in rows_of(LLAMA)]
    rows = [replace(row, math_dtype="tf32") if row.kind == "gemm" else row for row in rows]
    step = model_of(LLAMA, rows=rows)
    attention = sum(call.row.time_ms_per_step for call in step.work.attention)
    assert attention > 0 and what_if(step, {"dtype": "bf16"}).unpredicted_ms == 0.0
    unknown = replace(step, gpu=replace(H100, compute_capability=None))
    assert what_if(unknown, {"dtype": "bf16"}).unpredicted_ms >= attention
