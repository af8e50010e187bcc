"""Where a study looks, and what unfused attention moves: arithmetic on sizes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.said import Listener
from tracelens.errors import UsageError
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.attention_call import AttentionProblem
from tracelens.gemm.predict.attention_unfused import unfused_prediction
from tracelens.gemm.study import _aligned_step, _gained, _leading, _misaligned, _period, _window, study_gemm
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import Measurements

H100 = find_gpu(None, override="h100-sxm")


@pytest.mark.parametrize(
    ("size", "period", "low", "high"),
    [
        (10000, None, 7500, 12500),  # a quarter
        (10000, 1000.0, 8000, 12000),  # two periods
        (10000, 150.2, 10000 - 301, 10301),
        (10000, 100.2, 9744, 10256),  # at least 256
        (10000, 5000.0, 7500, 12500),
        (300, None, 44, 556),
        (100, None, 1, 200),  # not below 1
        (200, None, 1, 400),
        (10, None, 1, 74),  # 64 to each side of the smallest
        (2**40, None, 2**40 - 2**38, 2**40),
    ],
)
def test_the_sizes_that_are_looked_at(size: int, period: float | None, low: int, high: int) -> None:
    assert _window(size, period) == (low, high)


@pytest.mark.parametrize(
    ("size", "dtype", "step"),
    [
        (4096, "bf16", 64), (4096, "fp32", 32), (4096, "fp8", 128), (4096, "nvfp4", 256), (4096, "bf17", 128),
        (256, "bf16", 64), (255, "bf16", 32), (128, "bf16", 32), (127, "bf16", 16), (32, "bf16", 8),
        (1, "bf16", 8), (1, "fp8", 8), (511, "fp8", 64),
    ],
)  # fmt: skip
def test_steps_of_128_bytes_and_less_for_small_sizes(size: int, dtype: str, step: int) -> None:
    assert _aligned_step(size, dtype) == step


@pytest.mark.parametrize(
    ("mid", "high", "gained"),
    [
        (0.9, 0.95, 0.1), (0.9, 1.0, 0.0), (0.9, None, 0.0), (None, 0.9, 0.1), (None, 1.0, 0.0),
        (0.98, 0.999, 0.02), (0.991, 0.999, 0.0), (None, 0.991, 0.0),
    ],
)  # fmt: skip
def test_a_gain_that_is_sure_and_worth_a_change(mid: float | None, high: float | None, gained: float) -> None:
    assert _gained(mid, high) == pytest.approx(gained)


@pytest.mark.parametrize(
    ("layout", "a", "b"), [("TN", "k", "k"), ("NN", "k", "n"), ("NT", "m", "n"), ("TT", "m", "k")]
)
def test_leading_dimensions(layout: str, a: str, b: str) -> None:
    """cuBLAS computes out^T = b^T a^T: its first letter is b's, N where columns lie next to each other."""
    assert _leading(layout) == {"a": a, "b": b, "c": "n"}


@pytest.mark.parametrize(
    ("sizes", "layout", "dtype", "found"),
    [
        ((4096, 4096, 4096), "TN", "bf16", ()),
        ((4096, 4096 + 32, 4096), "TN", "bf16", ("n",)),  # 64 bytes
        ((4096, 4096, 4096 + 32), "TN", "bf16", ("k",)),
        ((4096 + 1, 4096, 4096), "TN", "bf16", ()),  # M leads nothing
        ((4096 + 1, 4096, 4096), "NT", "bf16", ("m",)),
        ((4096 + 1, 4096 + 1, 4096), "NT", "bf16", ("m", "n")),
        ((4096 + 2, 4096 + 1, 4096), "NT", "bf16", ("n",)),
        ((4096, 4096 + 1, 4096), "TN", "fp32", ()),
        ((4096, 4096 + 1, 4096 + 1), "TN", "fp64", ()),
    ],
)
def test_dimensions_that_misalign(
    sizes: tuple[int, int, int], layout: str, dtype: str, found: tuple[str, ...]
) -> None:
    one = predict_gemm(*sizes, gpu=H100, layout=layout, dtype=dtype)
    assert _misaligned(one, _leading(layout)) == found


@pytest.mark.parametrize("batch", [1, 3])
def test_a_period_of_the_waves(batch: int) -> None:
    """Along N: one more row of tiles for each ceil(M / tile) * batch * split tiles that a wave takes."""
    found = predict_gemm(1000, 8192, 4096, gpu=H100, batch=batch)
    one = found.chosen
    assert one is not None
    slots = one.tile.slots(one.rates.sms)
    along_m = math.ceil(1000 / one.tile.m) * batch * one.split
    along_n = math.ceil(8192 / one.tile.n) * batch * one.split
    assert _period(found, "n") == pytest.approx(max(slots / along_m, 1) * one.tile.n)
    assert _period(found, "m") == pytest.approx(max(slots / along_n, 1) * one.tile.m)
    assert slots / along_m > 1 and _period(found, "k") is None


@pytest.mark.parametrize(
    ("span", "refused"),
    [((512, 512), False), ((513, 600), True), ((400, 511), True), ((1, 600), False), ((0, 600), True),
     ((500, 2**40 + 1), True)],
)  # fmt: skip
def test_a_span_holds_the_present_size(span: tuple[int, int], refused: bool, said: Listener) -> None:
    def ask() -> Any:
        return study_gemm(256, 512, 256, gpu=H100, span=span, columns=4)

    if refused:
        with pytest.raises(UsageError) as error:
            ask()
        said(error.value)
    else:
        assert (ask().around[0].low, ask().around[0].high) == span


@pytest.mark.parametrize("vary", ["m", "k"])
def test_another_dimension_than_the_misaligned_one_says_which_it_is(vary: Any, said: Listener) -> None:
    (found,) = study_gemm(4096, 50257, 4096, gpu=H100, vary=(vary,), columns=4).around
    others = study_gemm(4096, 50304, 4096, gpu=H100, vary=(vary,), columns=4).around[0]
    assert found.none_why is not None
    assert others.none_why is not None and "misaligns" not in others.none_why
    said(found.none_why)


# --- unfused attention --------------------------------------------------------------------------------------

COPY = Measurements("h100-sxm", {}, {}, {}, "2026-01-01", "", "", bandwidth_gbps=2800.0)
#: q k^T and p v; backward p^T g, g v^T, then s k and s^T q: M, N, K and cuBLAS's letters of a head of 80,
#: with 512 queries and 768 keys.
_FORWARD = [(512, 768, 80, "TN"), (512, 80, 768, "NN")]
_BACKWARD = [(768, 80, 512, "NT"), (512, 768, 80, "TN"), (512, 80, 768, "NN"), (768, 80, 512, "NT")]


@pytest.mark.parametrize(
    ("how", "measured", "kernels", "passes"),
    [
        ({}, None, 1, 2),
        ({"causal": True}, None, 2, 4),
        ({"window": 100}, None, 2, 4),
        ({"direction": "backward"}, None, 1, 3),
        ({"direction": "backward", "causal": True}, None, 1, 3),
        ({"causal": True}, COPY, 2, 4),
        ({}, replace(COPY, bandwidth_gbps=9999.0), 1, 2),
        ({"dtype": "fp32"}, None, 1, 2),
    ],
)
def test_unfused_attention_by_hand(
    how: dict[str, Any], measured: Measurements | None, kernels: int, passes: int, said: Listener
) -> None:
    sizes: dict[str, Any] = {
        "batch": 3, "heads": 8, "kv_heads": 8, "seq_q": 512, "seq_k": 768, "head_dim": 80, "causal": False,
        "direction": "forward",
    }  # fmt: skip
    call = AttentionProblem(**(sizes | how))
    found = unfused_prediction(call, why="made up", gpu=H100, measured=measured)
    products = [
        predict_gemm(m, n, k, gpu=H100, batch=24, dtype=call.dtype, layout=layout, measured=measured).time_us
        for m, n, k, layout in (_BACKWARD if call.backward else _FORWARD)
    ]
    gbps = {None: 0.9 * 3350, 2800.0: 2800.0, 9999.0: 3350.0}[measured.bandwidth_gbps if measured else None]
    size = 4 if call.dtype == "fp32" else 2
    softmax = kernels * 2 + passes * 24 * 512 * 768 * size / (gbps * 1e3)
    (line,) = [one for one in found.terms if one[0] == "softmax"]
    assert line[2] == pytest.approx(softmax) and f" {passes} times" in line[4]
    said(line[4])
    low, mid, high = (sum(getattr(one, end) or 0.0 for one in products) for end in ("low", "mid", "high"))
    wanted = (low + softmax / 1.3, mid + softmax, high + softmax * 1.3)
    assert (found.time_us.low, found.time_us.mid, found.time_us.high) == pytest.approx(wanted)
    assert found.time_us.basis == "model"
    pairs = 24 * 512 * 768 * 80
    assert found.computed_flops == pairs * (8 if call.backward else 4)
    if how in ({}, {"direction": "backward"}):
        assert found.useful_flops == found.computed_flops  # nothing is masked
    names = [one[0] for one in found.terms if ":" not in one[0]]
    assert names == (
        ["grad v", "grad p", "grad q", "grad k", "softmax", "predicted"]
        if call.backward
        else ["scores", "values", "softmax", "predicted"]
    )


def test_without_a_bandwidth_unfused_attention_has_no_time() -> None:
    call = AttentionProblem(batch=1, heads=8, kv_heads=8, seq_q=512, seq_k=512, head_dim=64, causal=False,
                            direction="forward")  # fmt: skip
    found = unfused_prediction(call, why="", gpu=replace(H100, bandwidth_gbps=None), measured=None)
    assert found.time_us.mid is None and found.unknown and not found.terms
