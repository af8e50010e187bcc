"""fp8, fp8-block and nvfp4: the cast is a term of its own; types are refused where nobody measured."""

from __future__ import annotations

import pytest

import tracelens
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.architecture import architecture
from tracelens.gemm.predict.derivation import evaluate
from tracelens.gemm.spelling import parse_dtype
from tracelens.hardware import find_gpu, list_gpus

H100 = find_gpu(None, override="h100-sxm")
MEASURED = [
    ("h100-sxm", "fp8"),
    ("h100-sxm", "fp8-block"),
    ("b200", "fp8"),
    ("b200", "nvfp4"),
    ("l40s", "fp8"),
]


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
                assert len(own.tile_rates) == len(architecture(gpu.compute_capability).tiles)
                found += 1
    assert found >= 20
