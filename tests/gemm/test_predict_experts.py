"""Layers of experts: loads that add up, times that follow them, known answers of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.experts import layers, times, uneven_error, work_of
from benchmarks.silicon import FOLDER, GPUS
from tracelens.errors import InputError
from tracelens.gemm.predict.experts import ROW_ALIGNMENT, ExpertLayer, experts_changes, predict_experts
from tracelens.gemm.predict.experts_load import expert_load
from tracelens.gemm.predict.experts_rates import ExpertRates, expert_rates
from tracelens.hardware import Gpu, find_gpu, list_gpus

H100 = find_gpu(None, override="h100-sxm")
MIXTRAL = ExpertLayer(4096, 14336, experts=8, top_k=2)
DEEPSEEK = ExpertLayer(7168, 2048, experts=256, top_k=8)


@pytest.mark.parametrize("exponent", [None, 0.7, 1.0, 1.2])
@pytest.mark.parametrize(
    ("tokens", "top_k", "experts"), [(1, 8, 256), (37, 2, 8), (4096, 6, 64), (512, 1, 16)]
)
def test_every_draw_gives_away_all_rows_and_no_token_twice(
    tokens: int, top_k: int, experts: int, exponent: float | None
) -> None:
    rows = expert_load(tokens, top_k=top_k, experts=experts, ep=1, exponent=exponent).rows
    assert rows.shape[1] == experts and (rows.sum(axis=1) == tokens * top_k).all()
    assert rows.min() >= 0 and rows.max() <= tokens and (rows == rows.round()).all()


@pytest.mark.parametrize("exponent", [None, 1.2])
def test_the_busiest_gpu_has_at_least_its_share(exponent: float | None) -> None:
    for ep in (2, 8, 64):
        load = expert_load(1000, top_k=8, experts=64, ep=ep, exponent=exponent)
        assert load.rows.shape[1] == 64 // ep and (load.rows.sum(axis=1) >= 8000 / ep).all()


def test_rows_padded_to_128_waste_what_a_user_of_deepgemm_found() -> None:
    """deepseek-ai/DeepGEMM issue 98: one node of 8 GPUs, 8192 tokens, "almost to 20 % waste"."""
    layer = ExpertLayer(7168, 2048, experts=256, top_k=8, ep=8)
    for load in ("power-law:0.5", "power-law:1.01", "power-law:1.2"):
        found = predict_experts(layer, 8192, gpu=H100, dtype="fp8-block", load=load, row_multiple=128)
        assert 0.15 < 1 - found.rows / found.padded_rows < 0.22


@pytest.mark.parametrize(
    ("layer", "tokens", "load", "measured_us"),
    [  # geometries that the fit did not see, TensorRT-LLM 1.3.0rc20 in aiconfigurator's tables (095f58a51)
        (ExpertLayer(3072, 1024, 256, 8), 512, "balanced", 1636.0),
        (ExpertLayer(3072, 1024, 256, 8), 16384, "balanced", 4833.0),
        (ExpertLayer(3072, 1024, 256, 8), 16384, "power-law:1.2", 6386.0),
        (ExpertLayer(4096, 1536, 128, 8), 16, "balanced", 1562.0),
        (ExpertLayer(4096, 1536, 128, 8), 16, "power-law:1.2", 752.0),
        (ExpertLayer(4096, 1536, 128, 8), 8192, "balanced", 4109.0),
    ],
)
def test_measured_layers_are_in_range(layer: ExpertLayer, tokens: int, load: str, measured_us: float) -> None:
    found = predict_experts(layer, tokens, gpu=H100, load=load)
    low, mid, high = found.time_us.low, found.time_us.mid, found.time_us.high
    assert low is not None and mid is not None and high is not None
    assert low < measured_us < high and mid == pytest.approx(measured_us, rel=0.15)
    assert sum(found.parts_us.values()) == pytest.approx(mid)


def test_uneven_experts_cost_more_where_they_compute_and_less_where_they_read_weights() -> None:
    def ratio(tokens: int) -> float:
        uneven, even = (
            predict_experts(DEEPSEEK, tokens, gpu=H100, load=load).time_us.mid or 0.0
            for load in ("power-law:1.2", "balanced")
        )
        return uneven / even

    assert ratio(16384) > 1.05 and ratio(16) < 0.9


@pytest.mark.skipif(not (FOLDER / "moe.parquet").exists(), reason="the measured tables are not here")
@pytest.mark.parametrize(
    ("folder", "gpu", "pairs", "quarter"),
    [("h100_sxm", "h100-sxm", 1500, 0.15), ("a100_sxm", "a100-sxm-80gb", 350, 0.15)],
)
def test_uneven_experts_cost_as_much_more_as_measured(
    folder: str, gpu: str, pairs: int, quarter: float
) -> None:
    """Geometries that no fit saw, from 512 tokens on: 6.5 % off in the median, of 24 to 32 % more.

    On A100 exponent 1.2 against 1.01, of 14 % more: its tuned library ran with no even load.
    """
    table = layers(folder, "bf16")
    table = table[table["judging"]].reset_index(drop=True)
    rates = expert_rates(find_gpu(None, override=gpu), "bf16")
    assert isinstance(rates, ExpertRates)
    off = uneven_error(table.assign(mid=times(work_of(table), rates)))
    assert len(off) > pairs and off.median() <= 0.08 and off.quantile(0.75) <= quarter


def test_capacity_drops_rows_and_padding_adds_them() -> None:
    whole = predict_experts(DEEPSEEK, 8192, gpu=H100, load="power-law:1.2")
    cut = predict_experts(DEEPSEEK, 8192, gpu=H100, load="power-law:1.2", capacity=1.25)
    padded = predict_experts(DEEPSEEK, 8192, gpu=H100, load="power-law:1.2", row_multiple=256)
    assert whole.dropped_frac == 0 and 0 < cut.dropped_frac < 1 and cut.rows_per_expert[0] == 320
    assert padded.rows == whole.rows < padded.padded_rows
    times = [one.time_us.mid or 0.0 for one in (cut, whole, padded)]
    assert times == sorted(times)


def test_the_backward_is_longer_and_less_sure() -> None:
    forward = predict_experts(MIXTRAL, 8192, gpu=H100).time_us
    back = predict_experts(MIXTRAL, 8192, gpu=H100, direction="backward").time_us
    assert back.mid > 1.5 * forward.mid and back.high / back.low > forward.high / forward.low  # type: ignore[operator]


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda gpu: gpu.name)
def test_no_layer_beats_the_datasheet_on_any_gpu(gpu: Gpu) -> None:
    for dtype in ROW_ALIGNMENT:
        for layer, tokens in ((MIXTRAL, 65536), (DEEPSEEK, 16384), (DEEPSEEK, 1)):
            found = predict_experts(layer, tokens, gpu=gpu, dtype=dtype)
            low, mid, high = found.time_us.low, found.time_us.mid, found.time_us.high
            if low is None or mid is None or high is None:
                assert found.unknown and low is mid is high is None
                continue
            assert 0 < low <= mid <= high
            peak = gpu.peak({"fp8-block": "fp8"}.get(dtype, dtype))
            wide = 3 * layer.inter * layer.hidden
            assert peak is None or low >= min(2 * found.rows * wide / (peak * 1e6), mid) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("hidden", "inter", "tp", "dtype", "takes"),
    [
        (4096, 14336, 1, "bf16", True),
        (4097, 14336, 1, "bf16", False),
        (4096, 14340, 1, "bf16", False),
        (2048, 1408, 16, "bf16", True),  # 88 elements of a rank are 176 bytes
        (2048, 1408, 16, "fp8", False),  # and 88 bytes
        (2048, 1440, 10, "nvfp4", False),  # 144 elements are 72 bytes
        (2048, 1280, 10, "nvfp4", True),
    ],
)
def test_rows_off_16_bytes_are_not_predicted_as_if_they_were_on_it(
    hidden: int, inter: int, tp: int, dtype: str, takes: bool
) -> None:
    layer = ExpertLayer(hidden, inter, 8, 2, tp=tp)
    found = predict_experts(layer, 8192, gpu=find_gpu(None, override="b200"), dtype=dtype)
    assert (found.time_us.mid is not None) == takes == (found.unknown is None)


def test_what_is_not_known_has_no_time_and_a_reason() -> None:
    found = predict_experts(MIXTRAL, 8192, gpu=find_gpu(None, override="v100-sxm"))
    assert found.time_us.mid is None and found.unknown and found.rows == 16384
    assert all(
        one.time_ratio is None for one in experts_changes(found, gpu=find_gpu(None, override="v100-sxm"))
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"experts": 8, "top_k": 9}, {"experts": 8, "top_k": 2, "ep": 3}, {"experts": 8, "top_k": 2, "tp": 3},
        {"experts": 0, "top_k": 1}, {"experts": 8, "top_k": 2, "ep": True},
    ],
)  # fmt: skip
def test_layers_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ExpertLayer(4096, 14336, **wrong)


@pytest.mark.parametrize("load", ["", "uneven", "power-law", "power-law:x", "power-law:-1", "balanced:2"])
def test_loads_that_do_not_exist_are_refused(load: str) -> None:
    with pytest.raises(InputError, match="power-law"):
        predict_experts(MIXTRAL, 64, gpu=H100, load=load)


def test_changes_say_what_they_change() -> None:
    asked = predict_experts(
        ExpertLayer(7168, 2048, experts=256, top_k=8, ep=8), 32768, gpu=H100, load="power-law:1.2"
    )
    changes = {next(iter(one.change)): one for one in experts_changes(asked, gpu=H100)}
    assert changes["load"].change == {"load": ["power-law:1.2", "balanced"]}
    assert changes["load"].time_ratio < 0.8  # type: ignore[operator]
    assert changes["ep"].prediction.tokens / changes["ep"].prediction.layer.ep == 4096
    assert {"row_multiple", "capacity", "top_k"} <= set(changes)


@pytest.mark.skipif(not (FOLDER / "moe.parquet").exists(), reason="the measured tables are not here")
@pytest.mark.parametrize("name", ["l40s", "rtx_pro_6000_server"])
def test_triton_kernels_move_the_rows_of_other_gpus_experts_too(name: str) -> None:
    """Geometries that no fit saw: without those rows 64 GPUs are predicted in half the time."""
    gpu = find_gpu(None, override=GPUS[name][1])
    rates = expert_rates(gpu, "fp8-block")
    assert isinstance(rates, ExpertRates) and rates.shares.foreign_frac >= 1
    table = layers(name, "fp8-block")
    table = table[table["judging"] & (table["num_tokens"] >= 512)].reset_index(drop=True)
    table = table.assign(mid=times(work_of(table), rates))
    assert uneven_error(table).median() <= 0.05
    far = table[table["moe_ep_size"] >= 64]
    own = replace(rates, shares=replace(rates.shares, foreign_frac=0.0))
    assert len(far) > 50
    assert abs((far["mid"] / far["time_us"]).median() - 1) <= 0.15
    assert (times(work_of(far), own) / far["time_us"]).median() < 0.6


@pytest.mark.skipif(not (FOLDER / "moe.parquet").exists(), reason="the measured tables are not here")
@pytest.mark.parametrize(("dtype", "without"), [("bf16", 0.85), ("fp8-block", 0.6), ("nvfp4", 0.75)])
def test_blackwell_s_kernels_are_given_the_rows_of_other_gpus_experts_too(dtype: str, without: float) -> None:
    """As above; and no row of the geometry whose experts they choose by groups is judged or fitted."""
    rates = expert_rates(find_gpu(None, override="b200"), dtype)
    assert isinstance(rates, ExpertRates) and 0.3 < rates.shares.foreign_frac < 0.8
    table = layers("b200_sxm", dtype)
    sizes = zip(table["hidden_size"], table["inter_size"], table["num_experts"], strict=True)
    assert (DEEPSEEK.hidden, DEEPSEEK.inter, DEEPSEEK.experts) not in set(sizes)
    table = table[table["judging"] & (table["num_tokens"] >= 512)].reset_index(drop=True)
    table = table.assign(mid=times(work_of(table), rates))
    assert uneven_error(table).median() <= 0.065
    far = table[table["moe_ep_size"] >= 64]
    own = replace(rates, shares=replace(rates.shares, foreign_frac=0.0))
    assert len(far) > 300
    assert abs((far["mid"] / far["time_us"]).median() - 1) <= 0.1
    assert (times(work_of(far), own) / far["time_us"]).median() < without


def test_kernels_that_are_given_their_own_rows_move_no_others() -> None:
    for dtype in ("bf16", "fp8", "fp8-block"):
        rates = expert_rates(H100, dtype)
        assert isinstance(rates, ExpertRates) and rates.shares.foreign_frac == 0


@pytest.mark.parametrize(("tokens", "rows"), [(8192, 2048), (1000, 250), (4, 1)])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_tiles_and_waves_of_even_experts_by_hand(tokens: int, rows: int, direction: Any) -> None:
    """Eight experts of so many rows on 132 SMs: tile rows without a token, SMs idle in the last wave."""
    found = predict_experts(MIXTRAL, tokens, gpu=H100, direction=direction)
    assert found.gemms and found.active_experts == 8
    for gemm in found.gemms:
        m, n = gemm.tile
        if "wgrad" in gemm.name:  # its rows are weights
            assert gemm.padded_frac == 0.0
        else:
            assert gemm.tiles == 8 * -(-rows // m) * -(-gemm.n // n), gemm
            assert gemm.padded_frac == pytest.approx(1 - rows / (-(-rows // m) * m)), gemm
        assert gemm.waves == -(-gemm.tiles // 132)
        assert gemm.idle_frac == pytest.approx(1 - gemm.tiles / (gemm.waves * 132))
