"""Products whose rows are off the 16-byte grid, against what others measured on an A100, H100s and an H200.

Where each figure comes from: ``tracelens.gemm.ladder_published``. The H100's and H200's also set its steps,
so these say that one model describes all of them, not that it foresaw them.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import pytest

from tracelens.gemm.ladder import alignment_ladder
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.hardware import Gpu, find_gpu

A100 = find_gpu(None, override="a100-sxm-40gb")
H100 = find_gpu(None, override="h100-sxm")
H200 = find_gpu(None, override="h200")


@dataclass(frozen=True)
class Case:
    """One product as measured. An odd base address (H200) stands here as an odd K: the same kernels run."""

    name: str
    gpu: Gpu
    sizes: tuple[int, int, int]
    batch: int
    layout: str
    measured_us: float

    def predicted(self) -> Prediction:
        m, n, k = self.sizes
        return predict_gemm(m, n, k, batch=self.batch, gpu=self.gpu, layout=self.layout)


CASES = [
    Case("d_ff search, a", H100, (4096, 4096, 10922), 4, "NN", 5375.0),
    Case("BERT-small logits, out", H100, (141, 30522, 512), 1, "TN", 41.3),
    Case("vision MLP up, out", H100, (768, 3420, 1280), 1, "TN", 57.4),
    Case("vision MLP down, a and b", H100, (768, 1280, 3420), 1, "TN", 57.4),
    Case("odd projection", H200, (72000, 3072, 3071), 1, "TN", 14200.0),
    Case("odd MLP", H200, (72000, 14336, 3071), 1, "TN", 64000.0),
    Case("OWLv2 scores, odd out", H100, (5185, 5185, 64), 16, "TN", 1083.5),
    Case("OWLv2 values, odd a", H100, (5185, 64, 5185), 16, "NN", 827.6),
    Case("TimeSformer scores, odd b and out", H100, (3137, 3137, 64), 96, "NN", 1901.6),
    Case("TimeSformer values, odd a", H100, (3137, 64, 3137), 96, "NN", 1699.0),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_measured_product_lies_in_its_range(case: Case) -> None:
    time = case.predicted().time_us
    assert time.low is not None and time.mid is not None and time.high is not None
    assert time.low <= case.measured_us <= time.high
    assert case.measured_us / 1.5 <= time.mid <= case.measured_us * 1.5


def test_the_middle_misses_neither_way_on_the_whole() -> None:
    """The step that stood here before missed all ten to the fast side, by 31 % in the middle."""
    misses = [(case.predicted().time_us.mid or 0.0) / case.measured_us - 1 for case in CASES]
    assert median(abs(miss) for miss in misses) <= 0.16
    assert any(miss > 0 for miss in misses) and any(miss < 0 for miss in misses)


@pytest.mark.parametrize(("length", "times"), [(706, 2.3), (705, 3.2)])
def test_small_batched_products_are_in_the_range_of_the_ratio(length: int, times: float) -> None:
    """64 x (L x L x L) on an H100: how many times as long as with L on the grid (an ESMFold2 patch)."""
    off = predict_gemm(length, length, length, batch=64, gpu=H100).time_us
    on = predict_gemm(704, 704, 704, batch=64, gpu=H100).time_us
    assert off.low is not None and off.high is not None and on.mid is not None
    assert off.low / on.mid <= times <= off.high / on.mid


#: TFLOP/s of linear layers (TN) on an A100: (M, N, K), by what the size is a multiple of.
_OUTPUT_OFF = {2: 172.8, 4: 173.0}  # 8192 x h x 51200, h near 14336; aligned 255.4
_BOTH_OFF = {2: 138.5, 4: 140.0}  # 8192 x 14336 x v, v near 51200; aligned 255.5


@pytest.mark.parametrize("step", [2, 4])
def test_rows_of_both_operands_off_the_grid_cost_more_than_the_outputs(step: int) -> None:
    aligned = predict_gemm(8192, 14336, 51200, gpu=A100, dtype="fp16").tflops
    output = predict_gemm(8192, 14336 - step, 51200, gpu=A100, dtype="fp16").tflops
    both = predict_gemm(8192, 14336, 51200 - step, gpu=A100, dtype="fp16").tflops
    assert aligned and output and both
    assert output / aligned == pytest.approx(_OUTPUT_OFF[step] / 255.4, rel=0.03)
    assert both / aligned == pytest.approx(_BOTH_OFF[step] / 255.5, rel=0.03)


def test_a_slower_library_of_2024_is_no_reason_to_call_misalignment_cheap() -> None:
    """272.7 of 395 TFLOP/s is 0.69: the one is predicted near its measured rate, the others at today's."""
    off = predict_gemm(4096, 4096, 10922, batch=4, gpu=H100, dtype="fp16", layout="NN").tflops
    on = predict_gemm(4096, 4096, 10944, batch=4, gpu=H100, dtype="fp16", layout="NN").tflops
    assert off == pytest.approx(272.7, rel=0.12)
    assert on is not None and on > 1.5 * 395


@pytest.mark.parametrize("gpu", [A100, H100], ids=["a100", "h100"])
def test_the_steps_of_both_operands_lie_below_those_of_one(gpu: Gpu) -> None:
    ladder = alignment_ladder(gpu=gpu, dtype="bf16")
    for (size, operands), both in ladder.also.items():
        if size == 2 or "ab" not in operands:  # the sm75 kernels of odd rows: by layout, not by how many
            continue
        one = ladder.step(size)
        ends = zip((both.low, both.mid, both.high), (one.low, one.mid, one.high), strict=True)
        assert all(less is not None and more is not None and less <= more for less, more in ends)


def test_an_operand_on_the_grid_leaves_the_step_of_one() -> None:
    ladder = alignment_ladder(gpu=A100, dtype="bf16")
    assert ladder.step_of({"a": 4, "b": 8, "c": 128}) == ladder.step_of({"a": 4, "b": 4, "c": 4})
    assert ladder.step_of({"a": 4, "b": 16, "c": 128}) == ladder.step(4)
    assert ladder.step_of({"a": 16, "b": 16, "c": 128}).mid == 0.886
    assert ladder.step_of({"a": 128, "b": 128, "c": 16}) == ladder.step(16)
    assert ladder.step_of({"a": 2, "b": 2, "c": 2}) == ladder.step(2)
    hopper = alignment_ladder(gpu=H100, dtype="bf16")
    odd = [
        hopper.step_of(dict(zip("abc", sizes, strict=True))).mid
        for sizes in ((2, 64, 64), (4, 2, 2), (64, 64, 2))
    ]
    assert odd == [0.155, 0.14, 0.111]
    assert ladder.step_of({"a": None, "b": None, "c": None}) == ladder.step(128)


@pytest.mark.parametrize("k", [4094, 4095])
def test_below_the_grid_hopper_runs_the_tiles_of_older_kernels(k: int) -> None:
    found = predict_gemm(8192, 8192, k, gpu=H100)
    assert found.tile in {(256, 128), (128, 256), (128, 128)} and found.cluster is None
    assert predict_gemm(8192, 8192, 4096, gpu=H100).tile_k == 64 != found.tile_k
