"""The sizes around a product: which are looked at, which are named, and why none is."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import pytest
from rich.console import Console

from tests.gemm.test_predict_calibration import H200, measurements, truth
from tests.said import Listener
from tracelens.errors import InputError, UsageError
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.study import Around, BetterSize, study_gemm
from tracelens.hardware import find_gpu
from tracelens.render.gemm import claim, render_gemm

A100 = find_gpu(None, override="a100-sxm-40gb")
H100 = find_gpu(None, override="h100-sxm")


def named(around: Around) -> dict[str, int]:
    return {one.kind: one.size for one in around.neighbours}


def test_a_misaligned_vocabulary_is_padded_to_the_next_multiple_of_128_bytes() -> None:
    for gpu in (A100, H100):
        found = study_gemm(8192, 50257, 2560, gpu=gpu)
        (around,) = found.around
        assert found.misaligned == ("n",) and around.none_why is None
        assert named(around)["faster"] == 50304
        saving = around.neighbours[0].gain
        assert saving is not None and saving.saving_us.low is not None and saving.saving_us.low > 0


@pytest.mark.parametrize(("layout", "misaligned"), [("TN", ("k",)), ("NN", ("k",)), ("NT", ())])
def test_the_dimension_that_misaligns_is_the_one_the_layout_says(
    layout: str, misaligned: tuple[str, ...]
) -> None:
    found = study_gemm(8192, 4096, 2561, gpu=H100, layout=layout, vary=("n", "k"))
    assert found.misaligned == misaligned
    along_n, along_k = found.around
    if misaligned:
        assert along_n.none_why is not None and "K = 2561" in along_n.none_why
        assert named(along_k)["faster"] == 2624
    else:
        assert along_n.none_why is not None and "K = 2561" not in along_n.none_why
        assert "faster" not in named(along_k)


def test_a_wave_that_is_hardly_begun_is_worth_leaving() -> None:
    (around,) = study_gemm(2304, 1600, 4096, gpu=A100).around
    # 18 x 12 tiles of 128x128 are two full waves of 108
    assert named(around)["smaller"] == 1536 and "faster" not in named(around)
    tflops = {point.size: point.prediction.tflops for point in around.curve}
    assert tflops[1536] is not None and tflops[1600] is not None and tflops[1600] < 0.8 * tflops[1536]


def test_a_size_that_is_good_already_has_no_neighbour_and_says_so() -> None:
    (around,) = study_gemm(8192, 8192, 8192, gpu=H100).around
    assert around.neighbours == ()
    assert around.none_why is not None and f"{around.low} to {around.high}" in around.none_why


def test_tokens_cost_nothing_where_memory_is_the_bound() -> None:
    (around,) = study_gemm(1, 8192, 8192, gpu=H100, vary=("m",)).around
    (one,) = around.neighbours
    assert one.kind == "larger" and one.size >= 32 and one.gain is not None
    assert one.gain.time_ratio.mid is not None and one.gain.time_ratio.mid < 1.05


def test_every_neighbour_is_better_than_its_own_error_or_told_apart() -> None:
    for gpu in (A100, H100, find_gpu(None, override="b200"), find_gpu(None, override="t4")):
        for m, n, k in ((2304, 1600, 4096), (8192, 10922, 4096), (512, 5003, 768), (96, 80, 4096)):
            study = study_gemm(m, n, k, gpu=gpu, dtype="fp16", vary=("m", "n", "k"))
            for around in study.around:
                check(around.neighbours, {"m": m, "n": n, "k": k}[around.dimension])


def test_operands_that_no_memory_holds_are_told() -> None:
    console = Console(file=io.StringIO(), width=100)
    for size in (10**5, 10**9):
        render_gemm(study_gemm(size, size, size, gpu=H100), console=console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("this GPU has 80.0 GB") == 1 and "take 6,000,000,000 GB" in text


def test_figures_of_another_type_are_called_so() -> None:
    said = {}
    for dtype in ("bf16", "fp16", "fp32", "fp64", "tf32"):
        chosen = predict_gemm(4096, 4096, 4096, gpu=H100, dtype=dtype).chosen
        said[dtype] = chosen is not None and f"taken over to {dtype}" in chosen.rates.source
    assert said == {"bf16": False, "fp16": False, "fp32": False, "fp64": True, "tf32": True}


def test_what_its_range_leaves_open_is_named_in_16_bits_alone_and_as_likely(said: Listener) -> None:
    (around,) = study_gemm(8192, 2560, 50304, gpu=H100, layout="NN").around
    assert [one.size for one in around.neighbours] == [2688, 2112]
    said([claim(one) for one in around.neighbours])
    assert all((one.gain.per_flop_ratio.high or 0) > 1 for one in around.neighbours if one.gain)
    (sure,) = study_gemm(2304, 1600, 4096, gpu=A100).around[0].neighbours[-1:]
    assert "likely" not in claim(sure)
    for dtype in ("tf32", "fp32", "fp8"):
        (around,) = study_gemm(8192, 8192, 8192, gpu=H100, dtype=dtype).around
        assert all((one.gain.per_flop_ratio.high or 2) < 1 for one in around.neighbours if one.gain)


def check(neighbours: tuple[BetterSize, ...], size: int) -> None:
    for one in neighbours:
        if one.kind == "known":
            continue
        assert one.gain is not None
        ratio = one.gain.time_ratio if one.kind == "faster" else one.gain.per_flop_ratio
        assert ratio.high is not None
        told_apart = one.kind != "faster" and ratio.mid is not None and ratio.mid < 0.995
        assert ratio.high < 1 or told_apart
        assert (one.size > size) == (one.kind != "smaller")


def test_the_curve_holds_the_present_size_the_neighbours_and_its_grid() -> None:
    for columns in (8, 20, 64):
        (around,) = study_gemm(8192, 50257, 2560, gpu=H100, columns=columns).around
        sizes = [point.size for point in around.curve]
        assert len(sizes) <= columns and sizes == sorted(set(sizes))
        assert {50257, *(one.size for one in around.neighbours)} <= set(sizes)
        assert around.low <= sizes[0] and sizes[-1] <= around.high
        on_grid = [size for size in sizes if size % around.step == 0]
        assert all(after - one == around.step for one, after in pairwise(on_grid))
        for point in around.curve:
            assert point.prediction == predict_gemm(8192, point.size, 2560, gpu=H100)


def test_a_span_decides_what_is_looked_at(said: Listener) -> None:
    (around,) = study_gemm(2304, 1600, 4096, gpu=A100, span=(1536, 1700)).around
    assert (around.low, around.high) == (1536, 1700)
    assert around.curve[0].size >= 1536 and around.curve[-1].size <= 1700
    for span in ((1601, 1700), (0, 1700), (1700, 1536), (1, 2**41)):
        with pytest.raises(UsageError) as error:
            study_gemm(2304, 1600, 4096, gpu=A100, span=span)
        said(error.value)


def test_where_nothing_is_known_nothing_is_named(said: Listener) -> None:
    study = study_gemm(4096, 4096, 4096, gpu=replace(H100, sms=None), vary=("m", "n", "k"))
    for around in study.around:
        assert around.neighbours == () and around.curve == ()
        assert around.none_why is not None
        said(around.none_why)


def test_where_the_present_time_is_not_known_the_aligned_one_is_shown() -> None:
    (around,) = study_gemm(8192, 50257, 2560, gpu=find_gpu(None, override="rtx-4090")).around
    assert named(around) == {"known": 50304} and around.none_why is not None
    # K stays misaligned: padding N makes nothing known
    (around,) = study_gemm(8192, 4096, 2561, gpu=find_gpu(None, override="rtx-4090")).around
    assert around.neighbours == ()


def test_measurements_are_used_for_every_point() -> None:
    study = study_gemm(4096, 4160, 4096, gpu=H200, measured=measurements(truth(300)))
    assert study.measured
    (around,) = study.around
    assert {point.prediction.time_us.basis for point in around.curve} == {"calibrated"}
    assert not study_gemm(64, 64, 64, gpu=H200).measured


@pytest.mark.parametrize("size", [1, 2, 5, 63, 2**40 - 1, 2**40])
def test_the_smallest_and_the_largest_sizes_have_surroundings(size: int) -> None:
    for around in study_gemm(size, size, size, gpu=H100, vary=("m", "n", "k")).around:
        assert 1 <= around.low <= size <= around.high <= 2**40
        assert len(around.curve) <= 64


def test_wrong_questions_are_refused(said: Listener) -> None:
    with pytest.raises(InputError):
        study_gemm(0, 1, 1, gpu=H100)
    with pytest.raises(UsageError) as error:
        study_gemm(1, 1, 1, gpu=H100, vary=("x",))  # type: ignore[arg-type]  # from a command line
    said(error.value)
