"""Pieces of fits and of paces, counted by hand; and what stands around a layer of experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.said import Listener
from tracelens.gemm import GemmShape, parse_kernel_name, shape_of
from tracelens.gemm.clock import step_paces
from tracelens.gemm.ladder import _partner, alignment_ladder
from tracelens.gemm.overlap import _excess, _from_shares, beside, paces
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.calibration import _bandwidth_bounds, _mask, _tile_rates, _tiles, _usable
from tracelens.gemm.predict.experts import ExpertLayer, experts_changes, predict_experts
from tracelens.gemm.predict.gemm import _Asked
from tracelens.gemm.predict.tiles import Tile
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements

A100, H100 = (find_gpu(None, override=name) for name in ("a100-sxm-80gb", "h100-sxm"))
BF16 = "c10::BFloat16"


def measured(m: int, n: int, k: int, us: float = 10.0, **more: Any) -> GemmMeasurement:
    found = GemmMeasurement("made up", m, n, k, 1, "bf16", "bf16", "TN", us, None, ())
    return replace(found, **more)


# --- operators ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "dims", "sizes", "groups"),
    [
        # rows of two, columns of two, an inner dimension of two; and two products of their own
        ("aten::_grouped_mm", [[10, 64], [3, 64, 32], [3]], (10, 32, 64, 1), (3, "m")),
        ("aten::_grouped_mm", [[3, 10, 64], [64, 32], [3]], (10, 32, 64, 1), (3, "n")),
        ("aten::_grouped_mm", [[10, 64], [64, 32], [5]], (10, 32, 64, 1), (5, "k")),
        ("aten::_grouped_mm", [[3, 10, 64], [3, 64, 32], []], (10, 32, 64, 3), (None, None)),
        ("aten::_grouped_mm", [[3, 10, 64], [4, 64, 32], []], None, None),
        ("aten::_grouped_mm", [[10, 60], [3, 64, 32], [3]], None, None),
        ("aten::matmul", [[2, 3, 10, 64], [64, 32]], (60, 32, 64, 1), (None, None)),
        ("aten::matmul", [[2, 3, 10, 64], [2, 3, 64, 32]], (10, 32, 64, 6), (None, None)),
        ("aten::matmul", [[2, 3, 10, 64], [3, 64, 32]], None, None),
        ("aten::matmul", [[64], [64, 32]], None, None),
        ("aten::linear", [[2, 10, 64], [32, 64]], (20, 32, 64, 1), (None, None)),
        ("aten::linear", [[2, 10, 60], [32, 64]], None, None),
        ("aten::bmm", [[6, 10, 64], [6, 64, 32]], (10, 32, 64, 6), (None, None)),
        ("aten::bmm", [[6, 10, 64], [5, 64, 32]], None, None),
        ("aten::baddbmm", [[6, 10, 32], [6, 10, 64], [6, 64, 32]], (10, 32, 64, 6), (None, None)),
    ],
)
def test_sizes_of_operators(op: str, dims: list[list[int]], sizes: Any, groups: Any) -> None:
    found = shape_of(op, dims, [BF16] * len(dims), None, None)
    if sizes is None:
        assert found is None
        return
    assert isinstance(found, GemmShape)
    assert (found.m, found.n, found.k, found.batch) == sizes and found.dtype == found.out_dtype == "bf16"
    assert (found.groups, found.grouped) == groups


@pytest.mark.parametrize(
    ("template", "stages", "found"),
    [("MmaMultistage", "4", 4), ("MmaMultistage", "", None), ("MmaPipelined", "", 2),
     ("MmaSingleStage", "", None), ("MmaPipelined", "3", 3)],
)  # fmt: skip
def test_stages_of_cutlass_2(template: str, stages: str, found: int | None) -> None:
    """mma_pipelined.h: two stages, whatever its arguments; mma_multistage.h states them."""
    more = f", {stages}" if stages else ""
    name = (
        "void cutlass::Kernel<cutlass::gemm::kernel::Gemm<cutlass::gemm::threadblock::"
        f"{template}<cutlass::gemm::GemmShape<128, 64, 32>, cutlass::arch::OpClassSimt{more}> > >(P)"
    )
    kernel = parse_kernel_name(name)
    assert kernel is not None and (kernel.tile_m, kernel.tile_n, kernel.tile_k) == (128, 64, 32)
    assert kernel.stages == found


# --- what runs beside ---------------------------------------------------------------------------------------


def test_time_beside_others_on_three_streams() -> None:
    """0 to 10, 5 to 20 and 8 to 12 (a collective): two of them share 5 to 12, with it 8 to 12."""
    begin, end = np.array([0, 5, 8]), np.array([10, 20, 12])
    told, others = beside(begin, end, np.array([1, 2, 3]), np.array([False, False, True]))
    assert (told.tolist(), others.tolist()) == ([2, 4, 0], [3, 3, 4])
    one = beside(begin, end, np.array([1, 1, 1]), np.array([False, False, False]))
    assert (one[0].tolist(), one[1].tolist()) == ([0, 0, 0], [0, 0, 0])


def test_a_line_through_shares_ends_at_the_time_alone() -> None:
    """At twice the time where all of it is beside others: a rate of 1/100 alone and 1/200 beside."""
    share = np.array([0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    dur = np.rint(1e6 / (1 - 0.5 * share)).astype(np.int64)
    alone, error = _from_shares(dur, np.rint(share * dur).astype(np.int64))
    assert alone == pytest.approx(1e6, rel=1e-4) and 0 <= error < 10
    assert math.isnan(_from_shares(dur[:7], (share * dur)[:7].astype(np.int64))[0])  # seven are too few
    assert math.isnan(_from_shares(dur, dur // 2 + 1)[0])  # all of them alike
    faster = np.rint(1e6 / (1 + 0.5 * share)).astype(np.int64)
    assert math.isnan(_from_shares(faster, np.rint(share * faster).astype(np.int64))[0])


@pytest.mark.parametrize(
    ("slow", "wanted"),
    [
        ([120, 130, 125], [20, 30, 25]),
        ([120, 130, 900], [20, 30, 30]),  # a stall: beyond three times the usual one
        ([100, 101, 100], [0, 0, 0]),  # less than one in a hundred
        ([102, 102, 102], [2, 2, 2]),
    ],
)
def test_what_disturbed_calls_took_more(slow: list[int], wanted: list[int]) -> None:
    assert _excess(np.array(slow), np.array([100] * 5)).tolist() == wanted


def test_noise_is_no_excess() -> None:
    """A median deviation of 10: 14.8 as a standard one, times the root of 1/4 + 1/5, three times 9.9."""
    quiet = np.array([80, 90, 100, 110, 120])
    assert _excess(np.array([129] * 4), quiet).tolist() == [0] * 4
    assert _excess(np.array([130] * 4), quiet).tolist() == [30] * 4


def test_calls_of_each_kind_have_a_pace_of_their_own() -> None:
    dur = np.array([10, 10, 10, 25, 40, 40, 40, 50, 7])
    other = np.array([0, 0, 0, 25, 0, 0, 0, 50, 7])
    found = paces(dur, other, np.array([0, 0, 0, 0, 1, 1, 1, 1, -1]))
    assert found.alone[:8].tolist() == [10] * 4 + [40] * 4 and math.isnan(found.alone[8])
    assert found.excess[:8].tolist() == [0, 0, 0, 15, 0, 0, 0, 10] and math.isnan(found.excess[8])
    assert found.usual[:8].tolist() == [10, 10, 10, 25, 40, 40, 40, 50]


@pytest.mark.parametrize(("own", "lost"), [(1.08, False), (1.12, True)])
def test_a_shape_that_slows_by_half_as_much_lost_to_the_clock(own: float, lost: bool) -> None:
    """Steps of twelve shapes; in the last all slow by a fifth but one, which does by less."""
    step, shape = (one.ravel() for one in np.indices((4, 12)))
    factor = np.where(step == 3, np.where(shape == 0, own, 1.2), 1.0)
    dur = np.rint(1e6 * factor).astype(np.int64)
    found = step_paces(dur, shape, step, np.ones(len(dur), np.bool_))
    assert found.slow.tolist() == [False, False, False, True] and found.pace[3] == pytest.approx(1.2)
    assert found.lost_ns[(step == 3) & (shape == 1)] == pytest.approx(1.2e6 * (1 - 1 / 1.2))
    assert bool(found.lost_ns[(step == 3) & (shape == 0)][0]) == lost


# --- measured alignment -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("aligned", "found"),
    [
        ({1024: 20.0, 1025: 99.0}, 20.0),  # 1001 rounded up to 128 bytes
        ({1010: 20.0}, 20.0 * 1001 / 1010),  # within 2 %, by the work
        ({1015: 30.0, 1010: 20.0}, 20.0 * 1001 / 1010),
        ({1022: 20.0}, None),
        ({1000: 20.0, 1001: 20.0}, None),
    ],
)
def test_the_aligned_partner_of_a_size(aligned: dict[int, float], found: float | None) -> None:
    assert _partner(1001, aligned, "bf16") == (None if found is None else pytest.approx(found))


def test_the_ladder_of_measured_pairs_ends_at_one(said: Listener) -> None:
    """Aligned products are pairs of themselves to none: the step of 128 bytes is the reference."""
    rows = [measured(1024, 1024 + 64 * at, 1024, 10.0) for at in range(20)]
    rows += [measured(1024, 1023 + 64 * at, 1024, 20.0 + at) for at in range(20)]
    own = Measurements("a100-sxm-80gb", {}, {}, {}, "2026-01-01", "", "", tuple(rows))
    ladder = alignment_ladder(gpu=A100, dtype="bf16", measured=own)
    assert ladder.step(128).basis == "model"
    said(ladder.step(128).source)
    two = ladder.step(2)
    assert two.basis == "calibrated" and two.mid == pytest.approx(10 / 29.5, rel=0.02)
    assert two.low == pytest.approx(10 / 37.1, rel=0.02) and two.high == pytest.approx(10 / 21.9, rel=0.02)
    assert ladder.step_of({"a": 128, "b": 128, "c": 2}) == two
    other = alignment_ladder(gpu=H100, dtype="bf16", measured=own).step(2)
    assert other.basis != "calibrated"


# --- a fit --------------------------------------------------------------------------------------------------

ONE, TWO = Tile(128, 128, 64), Tile(128, 256, 64)


def test_tiles_that_most_measurements_name() -> None:
    assert _tiles([(ONE,), (TWO,), (TWO,), ()], A100, "bf16") == (TWO, ONE)
    assert _tiles([(ONE,), ()], A100, "bf16") == (ONE,)  # half of them
    assert ONE not in _tiles([(replace(ONE, m=999),), (), ()], A100, "bf16")[:0]
    assert len(_tiles([(ONE,), (), ()], A100, "bf16")) > 1  # the architecture's


def test_only_the_tile_that_ran_counts() -> None:
    found = _mask([(ONE,), (TWO, ONE), (), (Tile(8, 8, 8),)], (ONE, TWO))
    assert found[:, :, 0].tolist() == [[0, math.inf], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("count", "error", "rate"),
    [(5, 0.1, math.exp(-0.1)), (4, 0.1, 1.0), (5, -0.2, math.exp(0.2)), (5, 2.0, 0.6), (5, -2.0, 1.6)],
)
def test_the_rate_of_a_tile_is_what_five_products_took(count: int, error: float, rate: float) -> None:
    mask = np.zeros((count + 1, 2, 1))
    mask[:count, 1] = np.inf
    found = _tile_rates(np.array([error] * count + [9.0]), mask)
    assert found == pytest.approx([rate, 1.0], rel=1e-6)


@pytest.mark.parametrize(
    ("more", "usable"),
    [({}, True), ({"n": 0}, False), ({"batch": 0}, False), ({"layout": "XX"}, False),
     ({"out_dtype": "bf17"}, False), ({"layout": "TT"}, True), ({"m": 1}, True)],
)  # fmt: skip
def test_measurements_that_a_fit_takes(more: dict[str, Any], usable: bool) -> None:
    assert _usable(replace(measured(64, 64, 64), **more)) == usable


def test_a_fitted_bandwidth_is_near_a_copys_or_below_the_datasheets() -> None:
    own = Measurements("a100-sxm-80gb", {}, {}, {}, "", "", "", bandwidth_gbps=1800.0)
    low, high = _bandwidth_bounds(own, A100)
    assert 0 < low < 1800 <= high
    without = replace(own, bandwidth_gbps=None)
    assert _bandwidth_bounds(without, A100) == (0.0, 2039.0)
    assert _bandwidth_bounds(without, replace(A100, bandwidth_gbps=None)) == (0.0, math.inf)


@pytest.mark.parametrize(("n", "in_cache"), [(512, True), (32768, False)])
@pytest.mark.parametrize(("multiply", "fastest"), [(500.0, 989.4), (1200.0, 1.06 * 1200.0)])
def test_no_product_is_faster_than_the_peak_or_what_was_measured_above_it(
    n: int, in_cache: bool, multiply: float, fastest: float
) -> None:
    """And than its operands across memory, where 50 MB of cache cannot hold them."""
    asked = _Asked(16, n, 4096, 1, "bf16", "bf16", "bf16", "TN", 2, 2, replace(H100, l2_mb=50.0), {"a": 128})
    chosen = predict_gemm(16, n, 4096, gpu=H100).chosen
    assert chosen is not None
    compute = 2 * 16 * n * 4096 / (fastest * 1e6)
    moved = 2 * (16 * 4096 + 4096 * n + 16 * n) / 3350e3
    found = asked.fastest_us(replace(chosen.rates, multiply_tflops=multiply))
    assert found == pytest.approx(compute if in_cache else moved, rel=2e-3) and compute < moved
    assert asked.floor_us == pytest.approx(moved)


# --- changes of a layer of experts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "how", "changes"),
    [
        ((8, 2, 2), {},
         [{"row_multiple": 16}, {"row_multiple": 128}, {"load": "power-law:1.2"}, {"ep": 4}, {"ep": 1},
          {"top_k": 1}, {"top_k": 3}]),
        ((8, 8, 1), {"row_multiple": 16},
         [{"row_multiple": 128}, {"load": "power-law:1.2"}, {"ep": 2}, {"top_k": 7}]),
        ((6, 1, 6), {"load": "power-law:1.2", "row_multiple": 128},
         [{"load": "balanced"}, {"capacity": 1.25}, {"ep": 3}, {"top_k": 2}]),
    ],
)  # fmt: skip
def test_what_is_tried_of_a_layer(
    layer: tuple[int, int, int], how: dict[str, Any], changes: list[dict[str, Any]]
) -> None:
    """Experts, experts of a token and GPUs: twice and half the GPUs, one expert of a token more and less."""
    experts, top_k, ep = layer
    one = predict_experts(ExpertLayer(1024, 512, experts, top_k, ep=ep), 1536 * ep, gpu=H100, **how)
    found = experts_changes(one, gpu=H100)
    assert [{name: pair[1] for name, pair in each.change.items()} for each in found] == changes
    for each in found:
        degree = each.change.get("ep", [ep, ep])
        assert degree[0] == ep and each.prediction.tokens == 1536 * degree[1]
        assert each.time_ratio is not None and one.time_us.mid and each.prediction.time_us.mid
        assert each.time_ratio == pytest.approx(each.prediction.time_us.mid / one.time_us.mid)
