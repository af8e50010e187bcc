"""``tracelens.gemm``, the documented way to ask for one time from Python."""

from __future__ import annotations

import pytest

import tracelens
from tests.said import Listener
from tracelens.gemm.predict import predict_gemm
from tracelens.gemm.predict.derivation import evaluate
from tracelens.hardware import find_gpu


def test_it_is_the_prediction_of_the_named_gpu() -> None:
    found = tracelens.gemm(2048, 8192, 1024, gpu="b200", dtype="fp16", layout="NN", batch=3)
    gpu = find_gpu(None, override="b200")
    assert found == predict_gemm(2048, 8192, 1024, gpu=gpu, dtype="fp16", layout="NN", batch=3)


def test_what_outsiders_read_is_there() -> None:
    found = tracelens.gemm(4096, 4096, 4096, gpu="h100-sxm")
    low, mid, high = found.time_us.low, found.time_us.mid, found.time_us.high
    assert low is not None and mid is not None and high is not None and 0 < low < mid < high
    assert found.tflops == pytest.approx(2 * 4096**3 / mid / 1e6)
    assert evaluate(found.terms[-1][1]) == pytest.approx(mid, rel=1e-6)
    assert found.unknown is None


@pytest.mark.parametrize(
    ("name", "part"), [("h100", "h100-sxm"), ("a100", "a100-sxm-80gb"), ("h200", "h200")]
)
def test_a_chips_name_alone_means_the_usual_part_and_says_so(name: str, part: str, said: Listener) -> None:
    assert tracelens.gemm(64, 64, 64, gpu=name).gpu == part
    notes = find_gpu(None, override=name).notes
    said(notes)


def test_what_is_not_known_has_no_middle_and_a_reason() -> None:
    found = tracelens.gemm(4096, 4096, 4096, gpu="t4")
    assert found.time_us.mid is None and found.tflops is None and found.terms == () and found.unknown


def test_mistakes_are_refused() -> None:
    with pytest.raises(tracelens.UsageError):
        tracelens.gemm(64, 64, 64, gpu="h1000")
    with pytest.raises(tracelens.InputError):
        tracelens.gemm(0, 64, 64, gpu="h100")
    with pytest.raises(tracelens.InputError):
        tracelens.gemm(64, 64, 64, gpu="h100", dtype="bf17")
