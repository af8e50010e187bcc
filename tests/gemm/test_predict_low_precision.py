"""fp8, fp8-block and nvfp4: the cast is a term of its own; types are refused where nobody measured."""

from __future__ import annotations

import pytest

import tracelens
from tracelens.errors import UsageError
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.architecture import architecture
from tracelens.gemm.predict.derivation import evaluate
from tracelens.gemm.predict.rates import no_units
from tracelens.gemm.spelling import parse_dtype
from tracelens.hardware import find_gpu, list_gpus
from tracelens.hardware.default import default_gpu

H100 = find_gpu(None, override="h100-sxm")
MEASURED = [
    ("h100-sxm", "fp8"),
    ("h100-sxm", "fp8-block"),
    ("b200", "fp8"),
    ("b200", "nvfp4"),
    ("l40s", "fp8"),
]


def test_without_a_gpu_it_is_the_commands() -> None:
    assert tracelens.gemm(4096, 4096, 4096).gpu == default_gpu()[0].name
    assert tracelens.experts(8192, 4096, 14336, experts=8, top_k=2).gpu == default_gpu()[0].name


@pytest.mark.parametrize(("gpu", "dtype"), MEASURED)
def test_a_linear_is_its_cast_and_its_gemm(gpu: str, dtype: str) -> None:
    whole = tracelens.gemm(4096, 4096, 4096, gpu=gpu, dtype=dtype)
    alone = predict_gemm(4096, 4096, 4096, gpu=find_gpu(None, override=gpu), dtype=dtype)
    (cast,) = (value for name, _, value, _, _ in whole.terms if name == "cast")
    assert whole.time_us.mid is not None and alone.time_us.mid is not None
    assert whole.time_us.mid - alone.time_us.mid == pytest.approx(cast, rel=1e-4)
    assert not any(name == "cast" for name, *_ in alone.terms)
    assert evaluate(whole.terms[-1][1]) == pytest.approx(whole.time_us.mid, rel=1e-6)
    assert whole.out_dtype == "bf16"


def test_a_cast_grows_with_the_activations_and_not_with_the_weight() -> None:
    def cast(m: int, n: int, k: int) -> float:
        found = tracelens.gemm(m, n, k, gpu="h100", dtype="fp8")
        return next(value for name, _, value, _, _ in found.terms if name == "cast")

    assert cast(8192, 1024, 4096) == cast(8192, 8192, 4096)
    assert cast(16384, 1024, 4096) > 1.8 * cast(8192, 1024, 4096) - 10


def test_the_cast_is_the_middle_one_of_three() -> None:
    """H100, aiconfigurator, K = 64: 2048 rows add 4 us, 14 and 8 to a GEMM, 32768 rows 16, 233 and 11."""
    for rows in (64, 2048, 32768):
        found = tracelens.gemm(rows, 1024, 64, gpu="h100", dtype="fp8")
        each = sorted(value for name, _, value, _, _ in found.terms if name == "a cast")
        (cast,) = (value for name, _, value, _, _ in found.terms if name == "cast")
        assert len(each) == 3 and cast == each[1] < each[2]


@pytest.mark.parametrize(
    ("gpu", "m", "tile"),
    [("h100", 48, (64, 64)), ("h100", 129, (128, 128)), ("h200", 8192, (128, 128)), ("l40s", 8, (16, 64))],
)
def test_dispatchers_take_a_tile_by_the_rows_alone_and_slice_no_k(
    gpu: str, m: int, tile: tuple[int, int]
) -> None:
    for n in (4096, 7168):
        found = tracelens.gemm(m, n, 16384, gpu=gpu, dtype="fp8")
        assert (found.tile, found.split_k) == (tile, 1)


def test_a_row_above_a_multiple_of_the_tile_costs_more_than_a_full_one() -> None:
    """H100, aiconfigurator, 8192 x 8192: 257 rows take 77 and 80 us, 512 take 56 and 57, 47 and 68."""
    odd, full = (tracelens.gemm(m, 8192, 8192, gpu="h100", dtype="fp8") for m in (257, 512))
    assert odd.time_us.mid is not None and full.time_us.mid is not None
    assert 1.1 < odd.time_us.mid / full.time_us.mid < 1.5
    assert [name for name, *_ in odd.terms].count("last row") == 1
    assert evaluate(odd.terms[-1][1]) == pytest.approx(odd.time_us.mid, rel=1e-6)


def test_fp8_pays_for_a_large_weight_and_not_for_a_narrow_one() -> None:
    """H100, aiconfigurator: 8192 x 8192 is 1.7 times as fast in fp8, 128 x 10240 takes 3.6 times as long."""

    def ratio(m: int, n: int, k: int) -> float:
        times = [tracelens.gemm(m, n, k, gpu="h100", dtype=dtype).time_us.mid for dtype in ("fp8", "bf16")]
        assert times[0] is not None and times[1] is not None
        return times[0] / times[1]

    assert ratio(16384, 8192, 8192) < 0.8
    assert ratio(16384, 128, 10240) > 2


@pytest.mark.parametrize("dtype", ["fp8-block", "nvfp4"])
def test_a_gpu_without_rows_is_refused_with_a_reason(dtype: str) -> None:
    for name in ("a100", "rtx-4090", "h100-pcie"):
        found = tracelens.gemm(4096, 4096, 4096, gpu=name, dtype=dtype)
        assert found.time_us.mid is None and found.terms == () and found.unknown


#: GPU -> types that its tensor cores lack, with what is to be used in their place.
LACKED = {
    "v100-sxm": dict.fromkeys(("int8", "bf16", "tf32", "fp8", "fp8-block", "nvfp4"), "fp16"),
    "t4": dict.fromkeys(("bf16", "tf32", "fp8", "fp8-block", "nvfp4"), "fp16"),
    "a100": {"fp8": "bf16", "fp8-block": "bf16", "nvfp4": "bf16"},
    "rtx-4090": {"nvfp4": "fp8"},
    "h100": {"nvfp4": "fp8"},
    "b200": {},
}


@pytest.mark.parametrize("name", LACKED)
def test_a_type_that_a_gpu_lacks_has_no_time_not_even_a_bound(name: str) -> None:
    gpu = find_gpu(None, override=name)
    for dtype in ("fp16", "bf16", "tf32", "fp8", "fp8-block", "nvfp4", "int8"):
        why = no_units(gpu, dtype)
        found = tracelens.gemm(4096, 4096, 4096, gpu=name, dtype=dtype)
        assert (why is not None) == (dtype in LACKED[name])
        if why is not None:
            assert why.split()[-1] == LACKED[name][dtype] and found.unknown == why
            assert found.time_us.mid is None and found.time_us.low is None


def test_experts_in_a_type_that_a_gpu_lacks_are_refused_for_it() -> None:
    layer = tracelens.experts(8192, 4096, 14336, experts=8, top_k=2, gpu="h100", dtype="nvfp4")
    assert layer.unknown == no_units(find_gpu(None, override="h100"), "nvfp4")


def test_a_bound_in_nvfp4_is_not_taken_from_the_peak_of_fp8() -> None:
    """A B300 multiplies 3 times as fast in nvfp4 as in fp8: only what memory takes is sure."""
    found = tracelens.gemm(4096, 8192, 8192, gpu="b300", dtype="nvfp4")
    moved = 0.5 * 8192 * (4096 + 8192) + 2 * 4096 * 8192
    assert found.time_us.mid is None and found.time_us.low == pytest.approx(moved / 8e6)


@pytest.mark.parametrize(("asked", "near"), [("mxfp8", "fp8-block"), ("mxfp4", "nvfp4"), ("fp4", "nvfp4")])
def test_a_type_without_predictions_is_refused_with_the_nearest(asked: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"^{asked} .* {near} "):
        parse_dtype(asked)


def test_words_that_people_use_are_read() -> None:
    assert [parse_dtype(word) for word in ("fp8_block", "FP8-block", "NVFP4")] == [
        "fp8-block", "fp8-block", "nvfp4",
    ]  # fmt: skip


def test_every_fitted_constant_names_the_program_that_made_it() -> None:
    found = 0
    for gpu in list_gpus():
        for dtype in ("bf16", "fp8", "fp8-block", "nvfp4"):
            own = architecture(gpu.compute_capability).shares.get(dtype, {}).get(gpu.name)
            if own is not None and "aiconfigurator" in own.source and gpu.name != "a100-sxm-40gb":
                assert "benchmarks/fit_gemm.py" in own.source
                known = architecture(gpu.compute_capability)
                tiles = known.dispatched[own.dispatched] if own.dispatched else known.tiles
                assert len(own.tile_rates) == len(tiles)
                found += 1
    assert found >= 20
