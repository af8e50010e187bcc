"""The program that makes the stored constants: what it makes of a small table that known figures gave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import fit_gemm
from benchmarks.fit_gemm import STAMP, digest, fit, lengthened, ranged, written
from benchmarks.fit_rows import Rows
from benchmarks.predictions import as_one_source_would
from tracelens.gemm.predict.architecture import Shares, architecture
from tracelens.gemm.predict.family import LEAST
from tracelens.hardware import find_gpu

#: What times of the table are made of.
GIVEN: dict[str, Any] = {
    "of_peak": 0.8, "of_bandwidth": 0.75, "load_elements": 40.0, "partial_wave_frac": 0.7,
    "first_wave_frac": 0.7, "store_frac": 0.5, "fixed_us": 3.0, "split_us": 2.5, "sm_gbps": 60.0,
    "cluster_load_frac": 0.65, "cached_mb": 5.0, "l2_sm_gbps": 50.0, "sustained_loss_frac": 0.1,
    "sustained_us": 1000.0, "low": 0.9, "high": 1.1, "low_small": 0.8, "high_small": 1.2,
}  # fmt: skip
#: GPU, steps of the descent, and lines of what it wrote when it was last changed.
KEPT = [
    (
        "a100-sxm-80gb",
        24,
        {
            "of_peak": "0.8154", "of_bandwidth": "0.6733", "fixed_us": "2.098", "sm_gbps": "38.82",
            "tile_rates": "[1, 1, 0.931, 1, 0.941, 0.998, 1.11, 0.998, 1.11, 1, 0.999, 0.924, 0.974, 0.985]",
        },
    ),
    (
        "h100-sxm",
        6,
        {
            "of_peak": "0.8152", "of_bandwidth": "0.7672", "whole_n_frac": "1.048",
            "family_rates": "[-0.0609, 0.0617, -0.061, -0.0229, 0.0652, -0.0224, -0.0259, 0.0238, -0.0243,"
            " -0.0604, 0.05, -0.0331, -0.0432, -0.0459]",
        },
    ),
]  # fmt: skip


def _rows(name: str) -> Rows:
    gpu = find_gpu(None, override=name)
    tiles = architecture(gpu.compute_capability).tiles
    sizes = [(m, n, k) for m in (16, 1024, 1025, 2048) for n in (1024, 1536) for k in (1024, 8192)]
    table = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(time_us=1.0)
    known = Shares(**GIVEN, source="", tile_rates=(1.0,) * len(tiles))
    times = np.exp(Rows.of(table, gpu, "bf16").errors(known))
    return Rows.of(table.assign(time_us=times), gpu, "bf16")


def _begun(rows: Rows) -> Shares:
    """Given figures for a library with a family of tiles, all as fast and as liked as one another."""
    family = rows.known.family
    assert family is not None
    rates, bias = ((0.0,) * each.shape[1] for each in (family.of_rate, family.features))
    ones = (1.0,) * len(rows.known.tiles)
    return Shares(**GIVEN, source="", tile_rates=ones, family_rates=rates, family_bias=bias)


@pytest.mark.parametrize(("name", "steps", "kept"), KEPT, ids=[one[0] for one in KEPT])
def test_the_fit_makes_the_constants_that_were_kept(name: str, steps: int, kept: dict[str, str]) -> None:
    rows = _rows(name)
    found = fit(rows, steps=steps)
    lines = dict(line.split(" = ", 1) for line in written(found, name, "bf16").splitlines()[1:])
    assert {figure: lines[figure] for figure in kept} == kept
    assert fit(rows, steps=steps) == found
    assert np.median(np.abs(rows.errors(found))) < 0.12


def test_nobody_changed_a_fitted_figure_by_hand() -> None:
    """Each block says by a digest what the program wrote: one that differs was not made by it."""
    stamped = 0
    for capability in ((8, 0), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0)):
        for dtype, gpus in architecture(capability).shares.items():
            for name, shares in gpus.items():
                if (stamp := STAMP.search(shares.source)) is not None:
                    assert digest(shares, name, dtype) == stamp[2], (name, dtype)
                    stamped += 1
                assert "fit_gemm" not in shares.source or stamp is not None, (name, dtype)
    assert stamped > 20


def test_a_range_holds_about_95_of_100_in_each_class_of_shapes() -> None:
    gpu = replace(find_gpu(None, override="a100-sxm-80gb"), l2_mb=0.0)  # nothing is read from the cache
    given = Shares(**GIVEN, source="", tile_rates=(1.0,) * len(architecture((8, 0)).tiles))
    sizes = [
        (m, n, k) for m in (16, 32, 2048, 4096) for n in range(1024, 7424, 128) for k in (1024, 2048, 4096)
    ]
    table = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(time_us=1.0)
    exact = Rows.of(table, gpu, "bf16").errors(given)
    errors = np.where(table["m"] < 64, 0.2, 0.05) * np.random.default_rng(0).standard_normal(len(table))
    found = ranged(Rows.of(table.assign(time_us=np.exp(exact + errors)), gpu, "bf16"), given)
    large = (table["m"] >= 1024).to_numpy()
    for part, (low, high) in ((large, (found.low, found.high)), (~large, found.few)):
        inside = (np.log(low) <= errors[part]) & (errors[part] <= np.log(high))
        assert 0.94 <= inside.mean() <= 0.99
        assert np.log(high / low) < 5.5 * errors[part].std()
    assert not found.short


@pytest.mark.parametrize("long_k_frac", [0.0, 0.006])
def test_what_a_long_k_costs_is_found(long_k_frac: float) -> None:
    gpu = find_gpu(None, override="b200")
    given = replace(architecture((10, 0)).shares["bf16"]["b200"], long_k_frac=long_k_frac)
    sizes = [(m, n, k) for m in (2048, 4096) for n in (4096, 8192) for k in (2048, 4096, 8192, 10240, 16384)]
    table = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(time_us=1.0)
    table = table.assign(time_us=np.exp(Rows.of(table, gpu, "bf16").errors(given)))
    found = lengthened(Rows.of(table, gpu, "bf16"), replace(given, long_k_frac=0.009))
    assert found.long_k_frac == long_k_frac


def test_a_fit_goes_on_from_the_constants_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that all take 10 % longer than the stored constants say."""
    gpu = find_gpu(None, override="l40s")
    stored = architecture(gpu.compute_capability).shares["fp8"]["l40s"]
    sizes = [(m, n, k) for m in (64, 1024, 2048) for n in (1024, 1536, 4096) for k in (1024, 8192)]
    table = pd.DataFrame(sizes, columns=["m", "n", "k"]).assign(time_us=1.0)
    table = table.assign(time_us=1.1 * np.exp(Rows.of(table, gpu, "fp8").errors(stored)))
    monkeypatch.setattr(fit_gemm, "linears", lambda *_, **__: table)
    monkeypatch.setattr(fit_gemm, "_ENOUGH", 1)
    monkeypatch.setattr(fit_gemm, "_STEPS", 12)
    found = fit_gemm._further("l40s", gpu, "fp8", 100)
    assert found is not None
    assert np.abs(Rows.of(table, gpu, "fp8").errors(found)).mean() < 0.05
    was, stamp = STAMP.search(stored.source), STAMP.search(found.source)
    assert was is not None and stamp is not None and stamp[2] == digest(found, "l40s", "fp8")
    assert f"version {was[1]}" in found.source
    assert fit_gemm._compared_to_stored(stored, gpu, "fp8") == "as stored"
    assert f"version {was[1]}" in fit_gemm._compared_to_stored(found, gpu, "fp8")


def test_pairs_of_multiprocessors_come_to_a_fit_without_them() -> None:
    """What the descent without pairs found is where that with them begins, and it ends no further off."""
    rows = _rows("b200")
    alone = rows.without_pairs()
    assert {one.cluster for one in alone.library(_begun(alone)).tiles if one.m * one.n >= LEAST} == {None}
    found = fit(rows, steps=6)
    family = rows.known.family
    assert family is not None and len(found.family_bias) == family.features.shape[1]
    start = _begun(alone)
    begun = replace(
        start,
        family_rates=family.with_pairs(start.family_rates),
        family_bias=family.with_pairs(start.family_bias),
    )
    clusters = [one.cluster for one in rows.library(begun).tiles if one.m * one.n >= LEAST]
    assert clusters.count("1x2") == clusters.count("2x1") + 1 > 10  # 128 x 128 has its fixed side along M
    assert np.median(np.abs(rows.errors(found))) < 0.12


def test_a_source_names_what_two_others_measured_as_the_prediction_does() -> None:
    """Eleven sizes, one step: a source that has it is right, one that lacks it leaves two without a truth."""
    sizes = [1024 + 128 * at for at in range(11)]
    table = pd.DataFrame({"m": sizes, "n": 1024, "k": 1024})
    flat = np.asarray(sizes, dtype=np.float64)
    stepped = np.where(flat >= 1664, 1.2 * flat, flat)
    table = table.assign(a=stepped, b=stepped, c=flat, time_us=stepped, low=0.0, mid=stepped, high=0.0)
    found = as_one_source_would(table, "m")
    assert found == {
        "n": 10,
        "by_a_source": 0.0,
        "least": 0.0,
        "most": 0.0,
        "predicted": pytest.approx(1 / 3),
        "another": 0.5,
        "source_off": pytest.approx(np.log(1.2) * (0.5 + 0.5 + 1.0) / 3 / 10),
        "predicted_off": pytest.approx(np.log(1.2) * (0.5 + 0.5 + 0.0) / 3 / 10),
    }
    found = as_one_source_would(table.assign(c=stepped), "m")
    assert (found["by_a_source"], found["predicted"], found["another"]) == (1.0, 1.0, 1.0)
    assert (found["source_off"], found["predicted_off"]) == pytest.approx((0.0, 0.0))
