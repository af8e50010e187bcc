"""A layer of experts counted by hand: rows dealt out, grouped GEMMs, bytes, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.said import Listener
from tracelens.errors import InputError
from tracelens.gemm.predict.experts import ExpertLayer, exponent_of, predict_experts
from tracelens.gemm.predict.experts_cost import ExpertWork, backward, forward
from tracelens.gemm.predict.experts_load import Load, expert_load
from tracelens.gemm.predict.experts_rates import ExpertRates, ExpertShares, expert_rates, rates_of
from tracelens.hardware import find_gpu

H100 = find_gpu(None, override="h100-sxm")
SHARES = ExpertShares(
    of_peak=0.5, of_bandwidth=0.8, load_elements=20.0, partial_wave_frac=0.25, ends_k=200.0, cached_mb=10.0,
    overlap=2.0, fixed_us=3.0, choice_us=0.5, expert_us=0.25, moved_frac=0.4, activated_frac=0.3, low=0.8,
    high=1.2, source="made up", foreign_frac=0.25,
)  # fmt: skip
#: 100 SMs of 10 TFLOP/s and 1 TB/s, of which the shares above are reached.
RATES = ExpertRates(100, 1000.0, 1000.0, 1.0, SHARES, derived=False)
#: 341 rows for three of four experts, of 200 tokens with two choices each: 59 went elsewhere.
LOAD = Load(np.array([[300.0, 0.0, 40.0, 1.0]]))
TOKENS, TOP_K, HIDDEN, INTER, UPS = 200, 2, 2048, 1000, 2


def work() -> ExpertWork:
    return ExpertWork.of([LOAD], tokens=[TOKENS], top_k=[TOP_K], hidden=[HIDDEN], inter=[INTER], ups=[UPS])


def in_waves(tiles: float) -> float:
    """Whole waves, and the last one from a quarter of a full one on."""
    full, rest = divmod(tiles / 100, 1)
    return full + (0.25 + 0.75 * rest if rest else 0)


def per_k(m: int, n: int) -> float:
    """us of a tile for one element of K: 2 m n operations at 5 TFLOP/s; small tiles load more of each."""
    return 2 * m * n * (1 + 20 * max(0.0, 1 / m + 1 / n - 1 / 128 - 1 / 256)) / 5e6


def read_us(moved: float) -> float:
    """800 GB/s; of what the cache of 10 MB holds a third of the time."""
    return (1 - 2 / 3 * min(1.0, 10e6 / moved) ** 2) * moved / 800e3


def of_rows(n: int, k: int) -> float:
    found = [
        in_waves(sum(math.ceil(rows / tm) for rows in (300, 40, 1)) * math.ceil(n / tn))
        * per_k(tm, tn) * (k + 200)
        for tm in (16, 32, 64, 128, 256) for tn in (64, 128, 256)
    ]  # fmt: skip
    return math.hypot(min(found), read_us(3 * n * k + 341 * k + 2 * 341 * n))


def of_weights(n: int, k: int) -> float:
    found = [
        max(1.0, 3 * math.ceil(n / tn) * math.ceil(k / tm) / 100) * per_k(tm, tn) * (341 / 3 + 200)
        for tm in (16, 32, 64, 128, 256) for tn in (64, 128, 256)
    ]  # fmt: skip
    return math.hypot(min(found), read_us(341 * (n + k) + 2 * 4 * n * k))


#: Rows are gathered (read in 16 bits, written in 8), activated (both products read, one written), summed up.
_ROWS = 341 + 0.25 * 59
_MOVED_US = (_ROWS * 2048 * 3 + 0.3 * _ROWS * 1000 * (2 * 2 + 1) + 2 * 2048 * (_ROWS + 200)) / 400e3


def test_the_forward_by_hand() -> None:
    gemms, others = forward(work(), RATES)
    assert {name: float(one.us[0]) for name, one in gemms.items()} == pytest.approx(
        {"up": of_rows(2000, 2048), "down": of_rows(2048, 1000)}
    )
    assert {name: float(one[0]) for name, one in others.items()} == pytest.approx(
        {"rows moved": _MOVED_US, "routing": 3 + 0.5 * 400 / 1000 + 0.25 * 4}
    )


def test_the_backward_by_hand() -> None:
    gemms, others = backward(work(), RATES)
    assert {name: float(one.us[0]) for name, one in gemms.items()} == pytest.approx(
        {
            "down dgrad": of_rows(1000, 2048),
            "down wgrad": of_weights(2048, 1000),
            "up dgrad": of_rows(2048, 2000),
            "up wgrad": of_weights(2000, 2048),
        }
    )
    assert {name: float(one[0]) for name, one in others.items()} == {
        "rows moved": pytest.approx(2 * _MOVED_US)
    }


def test_without_a_cache_all_is_read_from_memory() -> None:
    rates = replace(RATES, shares=replace(SHARES, cached_mb=0.0, of_peak=1e6, overlap=1.0))
    (up, down) = forward(work(), rates)[0].values()
    assert float(up.us[0]) == pytest.approx((3 * 2000 * 2048 + 341 * 2048 + 682 * 2000) / 800e3, rel=1e-4)
    assert float(down.us[0]) == pytest.approx((3 * 2048 * 1000 + 341 * 1000 + 682 * 2048) / 800e3, rel=1e-4)


@pytest.mark.parametrize(
    ("derived", "direction", "wider"),
    [(False, "forward", 1.0), (True, "forward", 1.25), (False, "backward", 1.25), (True, "backward", 1.5625)],
)
def test_what_was_not_measured_has_a_wider_range(derived: bool, direction: str, wider: float) -> None:
    found = replace(RATES, derived=derived)
    assert found.range_of(direction) == pytest.approx((0.8 / wider, 1.2 * wider))
    assert ("taken over" in found.source) == derived


@pytest.mark.parametrize(
    ("gpu", "dtype", "size", "peak"),
    [
        ("h100-sxm", "bf16", 2.0, 989.4),
        ("h100-sxm", "fp16", 2.0, 989.4),
        ("h100-sxm", "fp8", 1.0, 1978.9),
        ("h100-sxm", "fp8-block", 1.0, 1978.9),
        ("h100-sxm", "nvfp4", 0.5625, 2 * 1978.9),  # no fp4 of its own: twice fp8
    ],
)
def test_bytes_and_peak_of_a_type(gpu: str, dtype: str, size: float, peak: float) -> None:
    found = rates_of(find_gpu(None, override=gpu), dtype, SHARES)
    assert isinstance(found, ExpertRates) and not found.derived
    assert found.element_bytes == size and found.peak_tflops == pytest.approx(peak, rel=2e-3)
    assert (found.sms, found.bandwidth_gbps) == (132, 3350.0)


@pytest.mark.parametrize("lacking", ["sms", "bandwidth_gbps"])
def test_rates_of_a_gpu_that_the_datasheet_says_too_little_of(lacking: str) -> None:
    found = rates_of(replace(H100, **{lacking: None}), "bf16", SHARES)  # type: ignore[arg-type]
    assert isinstance(found, str) and "bf16 peak" in found
    assert isinstance(rates_of(find_gpu(None, override="v100-sxm"), "nvfp4", SHARES), str)


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "ep", "rows"),
    [
        (5, 3, 4, 2, (4.0, 4.0)),  # 15 rows: 4, 4, 4 and 3; the first rank has the first and the third
        (3, 3, 4, 2, (3.0, 2.0)),
        (4, 2, 8, 4, (1.0, 1.0)),
        (3, 2, 8, 1, (1.0,) * 6 + (0.0,) * 2),
    ],
)
def test_even_rows_of_the_first_rank(
    tokens: int, top_k: int, experts: int, ep: int, rows: tuple[float, ...]
) -> None:
    found = expert_load(tokens, top_k=top_k, experts=experts, ep=ep, exponent=None)
    assert found.per_expert == rows and found.rows.shape == (1, len(rows))


@pytest.mark.parametrize(("experts", "draws"), [(8, 128), (16, 128), (64, 32), (256, 8), (512, 8)])
def test_draws_until_two_thousand_experts_were_drawn(experts: int, draws: int) -> None:
    assert expert_load(64, top_k=1, experts=experts, ep=1, exponent=1.2).rows.shape == (draws, experts)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.2])
def test_popularity_is_drawn_from_a_power_law(exponent: float) -> None:
    """Between 1 and 0.8 of the tokens, by the inverse of the distribution x^-exponent."""
    u, high = np.random.default_rng(0).random((128, 8)), 0.8e6
    one = 1 - exponent
    popular = high**u if one == 0 else (u * (high**one - 1) + 1) ** (1 / one)
    wanted = 1e6 * popular / popular.sum(axis=1, keepdims=True)
    found = expert_load(10**6, top_k=1, experts=8, ep=1, exponent=exponent).rows
    assert np.abs(found - wanted).max() < 8 and (found.sum(axis=1) == 1e6).all()


def test_fewer_rows_than_experts_are_drawn_between_other_ends() -> None:
    """As many rows as experts are few, too: popularity from 0.01 to 2."""
    u = np.random.default_rng(0).random((8, 4096))
    popular = (u * (2**-0.2 - 0.01**-0.2) + 0.01**-0.2) ** -5
    wanted = np.round(4096 * popular / popular.sum(axis=1, keepdims=True))
    found = expert_load(64, top_k=64, experts=4096, ep=1, exponent=1.2).rows
    assert (found == wanted).mean() > 0.9


def test_no_expert_gets_a_token_twice_and_the_rest_goes_to_the_emptiest() -> None:
    """Two of two experts: each has every token, however popular one of them is."""
    found = expert_load(1000, top_k=2, experts=2, ep=1, exponent=3.0)
    assert found.per_expert == (1000.0, 1000.0)
    three = expert_load(1000, top_k=2, experts=3, ep=1, exponent=0.1)
    assert three.rows.max() == 1000 and (three.rows.sum(axis=1) == 2000).all()


@pytest.mark.parametrize(("most", "rows"), [(50.9, (50.0, 40.0, 1.0, 0.0)), (40.0, (40.0, 40.0, 1.0, 0.0))])
def test_an_expert_drops_the_rows_above_its_capacity(most: float, rows: tuple[float, ...]) -> None:
    assert LOAD.dropped_above(most).per_expert == rows
    assert LOAD.rounded(1) is LOAD and LOAD.rounded(16).per_expert == (304.0, 48.0, 16.0, 0.0)


# --- what is refused ----------------------------------------------------------------------------------------

LAYER = ExpertLayer(hidden=1024, inter=512, experts=8, top_k=2)


@pytest.mark.parametrize(
    ("asked", "wrong"),
    [
        ({"tokens": 1}, {"tokens": 0}),
        ({"tokens": 2**31}, {"tokens": 2**31 + 1}),
        ({}, {"tokens": True}),
        ({}, {"tokens": 2.0}),
        ({"row_multiple": 1}, {"row_multiple": 0}),
        ({"row_multiple": 65536}, {"row_multiple": 65537}),
        ({}, {"row_multiple": True}),
        ({"capacity": 1e-3}, {"capacity": 0.0}),
        ({"capacity": 1e6}, {"capacity": 1.1e6}),
        ({"load": "power-law:10"}, {"load": "power-law:10.1"}),
        ({"load": "power_law:0.1"}, {"load": "power-law:0"}),
        ({"dtype": "nvfp4"}, {"dtype": "fp4"}),
    ],
)
def test_the_first_question_that_is_refused(asked: dict[str, Any], wrong: dict[str, Any]) -> None:
    for how in (asked, wrong):
        question = {"tokens": 64} | how
        if how is asked:
            predict_experts(LAYER, gpu=H100, **question)
        else:
            with pytest.raises(InputError):
                predict_experts(LAYER, gpu=H100, **question)


def test_exponents(said: Listener) -> None:
    assert exponent_of("power-law:0.5") == 0.5 and exponent_of("balanced") is None
    for load in ("power-law:-1", "power-law:", "power:1.2", "balanced:1"):
        with pytest.raises(InputError) as error:
            exponent_of(load)
        said(error.value)


# --- one prediction -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gated", "direction", "products"),
    [(True, "forward", 3), (False, "forward", 2), (True, "backward", 6), (False, "backward", 4)],
)
def test_no_layer_is_faster_than_its_operations_at_the_peak(
    gated: bool, direction: Any, products: int
) -> None:
    """The low end: the shares' own, or all operations at the datasheet's peak where that is later."""
    layer = ExpertLayer(8192, 8192, 2, 1, tp=2, gated=gated)
    found = predict_experts(layer, 65536, gpu=H100, direction=direction)
    rates = expert_rates(H100, "bf16")
    assert isinstance(rates, ExpertRates) and found.time_us.mid is not None
    least = 2 * products * 65536 * 8192 * (8192 / 2) / (rates.peak_tflops * 1e6)
    own = found.time_us.mid * rates.range_of(direction)[0]
    assert found.time_us.low == pytest.approx(min(max(least, own), found.time_us.mid))
    assert found.time_us.mid == pytest.approx(sum(found.parts_us.values()))


@pytest.mark.parametrize(("exchanged", "own"), [(True, 1024), (False, 4096)])
def test_a_gpu_chooses_for_its_own_tokens_or_for_all(exchanged: bool, own: int) -> None:
    layer = replace(LAYER, ep=4, exchanged=exchanged)
    found = predict_experts(layer, 4096, gpu=H100)
    rates = expert_rates(H100, "bf16")
    assert isinstance(rates, ExpertRates)
    share = rates.shares
    assert found.parts_us["routing"] == pytest.approx(
        share.fixed_us + share.choice_us * own * 2 / 1e3 + share.expert_us * 2
    )
    assert found.rows == 4096 * 2 / 4 and found.active_experts == 2


def test_capacity_is_a_factor_of_the_mean() -> None:
    """512 rows of each expert in the mean; 0.5 keeps 256 of them, and padding to 100 makes them 300."""
    found = predict_experts(LAYER, 2048, gpu=H100, capacity=0.5, row_multiple=100)
    assert found.rows_per_expert == (256.0,) * 8
    assert (found.rows, found.padded_rows, found.dropped_frac) == (2048.0, 2400.0, 0.5)
