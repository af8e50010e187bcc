"""Figures of single products counted by hand, or as the cited source has them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tracelens.gemm import AttentionShape, GemmShape, bytes_moved, flops, model_flops, shape_of
from tracelens.gemm.dtypes import bytes_per_element, dtype_of_cpp, dtype_of_scalar_type
from tracelens.gemm.gain import RATIO_ERROR, gain, ratio_error
from tracelens.gemm.ladder import STEPS_BYTES, alignment_ladder
from tracelens.gemm.predict import Prediction, predict_gemm
from tracelens.gemm.predict.attention_backend import likely_backend
from tracelens.gemm.predict.experts_rates import expert_rates
from tracelens.gemm.predict.neighbours import neighbours
from tracelens.gemm.study import _curve_step, _tried
from tracelens.hardware import find_gpu
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.results import Estimate

A100 = find_gpu(None, override="a100-sxm-80gb")

# --- bytes and operations ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "moved", "operations", "needed"),
    [
        # q and out 2*96*8, k and v 2*80*2, of 64 and 48 elements; backward also each gradient
        (AttentionShape(2, 8, 2, 96, 80, 64, 48, "bf16", False, False),
         2 * (2 * 96 * 8 + 2 * 80 * 2) * (64 + 48), 2 * 2 * 8 * 96 * 80 * (64 + 48), None),
        (AttentionShape(2, 8, 2, 96, 80, 64, 48, "bf16", False, True),
         4 * (2 * 96 * 8 + 2 * 80 * 2) * (64 + 48), 2 * 2 * 8 * 96 * 80 * (3 * 64 + 2 * 48),
         4 * 2 * 8 * 96 * 80 * (64 + 48)),
        (GemmShape(10, 20, 30, 4, "fp8", "bf16", None), 4 * (10 * 30 + 30 * 20) + 2 * 4 * 10 * 20,
         2 * 4 * 10 * 20 * 30, None),
        # an operand of step 0 is one matrix
        (GemmShape(10, 20, 30, 4, "bf16", "fp32", None, batch_stride_a=0), 2 * (300 + 4 * 600) + 4 * 4 * 200,
         2 * 4 * 6000, None),
        (GemmShape(10, 20, 30, 4, "bf16", "bf16", None, batch_stride_b=0), 2 * (4 * 300 + 600 + 4 * 200),
         2 * 4 * 6000, None),
    ],
)  # fmt: skip
def test_bytes_and_operations(
    shape: GemmShape | AttentionShape, moved: int, operations: int, needed: int | None
) -> None:
    assert (bytes_moved(shape), flops(shape)) == (moved, operations)
    assert model_flops(shape) == (needed or operations)


@pytest.mark.parametrize(
    ("a", "b", "layout", "lda", "ldb"),
    [
        ([64, 1], [16, 1], "NN", 64, 16),
        ([64, 1], [1, 64], "TN", 64, 64),
        ([1, 8], [16, 1], "NT", 8, 16),
        ([1, 8], [1, 64], "TT", 8, 64),
        ([100, 1], [1, 72], "TN", 100, 72),  # part of a wider matrix
        ([1, 7], [16, 1], None, None, 16),  # columns that overlap
        ([63, 1], [16, 1], None, None, 16),
        ([128, 2], [1, 64], None, None, 64),
    ],
)
def test_layout_and_leading_dimension_follow_from_strides(
    a: list[int], b: list[int], layout: str | None, lda: int | None, ldb: int
) -> None:
    found = shape_of("aten::mm", [[8, 64], [64, 16]], ["c10::BFloat16"] * 2, [a, b], None)
    assert isinstance(found, GemmShape)
    assert (found.layout, found.lda, found.ldb) == (layout, lda, ldb)


@pytest.mark.parametrize(
    ("dims", "strides", "layout", "lda"),
    [
        ([1, 64], [7, 1], "NN", 64),  # one row: its step says nothing
        ([1, 64], [1, 1], "NN", 64),
        ([8, 1], [1, 7], "NN", 1),  # one column
        ([8, 1], [1, 8], "NN", 1),
        ([1, 64], [3, 5], "NT", 5),
    ],
)
def test_a_size_of_one_has_no_step(dims: list[int], strides: list[int], layout: str, lda: int) -> None:
    other = [dims[1], 16]
    found = shape_of("aten::mm", [dims, other], ["float"] * 2, [strides, [16, 1]], None)
    assert isinstance(found, GemmShape) and (found.layout, found.lda) == (layout, lda)


#: c10/core/ScalarType.h counts from Byte; the element sizes are those of the formats.
@pytest.mark.parametrize(
    ("number", "cpp", "name", "size"),
    [
        (0, "unsigned char", "uint8", 1), (1, "signed char", "int8", 1), (3, "int", "int32", 4),
        (5, "c10::Half", "fp16", 2), (6, "float", "fp32", 4), (7, "double", "fp64", 8),
        (15, "c10::BFloat16", "bf16", 2), (23, "c10::Float8_e5m2", "fp8", 1),
        (24, "c10::Float8_e4m3fn", "fp8", 1), (25, "c10::Float8_e5m2fnuz", "fp8", 1),
        (26, "c10::Float8_e4m3fnuz", "fp8", 1), (2, "short int", None, None),
        (8, "c10::ComplexHalf", None, None), (None, "c10::Float4_e2m1fn_x2", "fp4", 0.5),
        (None, "long int", "int64", 8), (None, "long", "int64", 8),
    ],
)  # fmt: skip
def test_element_types(number: int | None, cpp: str, name: str | None, size: float | None) -> None:
    assert dtype_of_cpp(cpp) == name and bytes_per_element(name) == size
    if number is not None:
        assert dtype_of_scalar_type(str(number)) == name


@pytest.mark.parametrize(("dtype", "size"), [("tf32", 4), ("fp8-block", 1), ("nvfp4", 0.5), ("bf17", None)])
def test_element_sizes_of_types_that_no_tensor_has(dtype: str, size: float | None) -> None:
    assert bytes_per_element(dtype) == size


# --- what one shape saves over another --------------------------------------------------------------------


def timed(
    n: int, low: float | None, mid: float | None, high: float | None, basis: str = "calibrated"
) -> Prediction:
    found = predict_gemm(4096, n, 4096, gpu=A100)
    return replace(found, time_us=Estimate(low, mid, high, basis))  # type: ignore[arg-type]


def test_a_calibrated_ratio_is_as_wide_as_both_times_or_as_measured_pairs() -> None:
    """Half of the work in half of the time: 7.5 % by the pairs; what the ranges leave adds in squares."""
    found = gain(timed(4096, 90, 100, 120), timed(2048, 40, 50, 65), gpu=A100)
    assert found is not None and found.work_ratio == 0.5 and found.per_flop_ratio.mid == 1.0
    up, down = math.hypot(math.log(1.3), math.log(100 / 90)), math.hypot(math.log(50 / 40), math.log(1.2))
    low, high = 0.5 * math.exp(-down), 0.5 * math.exp(up)
    assert (found.time_ratio.low, found.time_ratio.mid, found.time_ratio.high) == pytest.approx(
        (low, 0.5, high)
    )
    saving = found.saving_us
    assert (saving.low, saving.mid, saving.high) == pytest.approx(((1 - high) * 90, 50, (1 - low) * 120))
    exact = gain(timed(4096, 100, 100, 100), timed(2048, 50, 50, 50), gpu=A100)
    assert exact is not None and exact.time_ratio.high == pytest.approx(0.5 * math.exp(0.075))
    assert exact.time_ratio.low == 0.5  # never below what the two ranges allow


def test_a_change_of_the_rate_is_uncertain_by_a_tenth_of_itself() -> None:
    """The same work but for 3 %, in half the time: 5 % by pairs, and a tenth of ln(1/2), counted to 0.5."""
    found = gain(timed(4224, 100, 100, 100), timed(4096, 10, 50, 200), gpu=A100)
    assert found is not None and found.time_ratio.mid == 0.5
    assert found.time_ratio.high == pytest.approx(0.5 * 4)
    sure = gain(timed(4224, 100, 100, 100), timed(4096, 50, 50, 50), gpu=A100)
    assert sure is not None and sure.time_ratio.high == pytest.approx(0.5 * math.exp(0.05 + 0.1 * 0.5))
    slight = gain(timed(4224, 100, 100, 100), timed(4096, 80, 80, 80), gpu=A100)
    change = math.log(0.8 * 4224 / 4096)  # of the time for each operation
    assert slight is not None
    assert slight.time_ratio.high == pytest.approx(0.8 * math.exp(0.05 + 0.1 * abs(change)))


@pytest.mark.parametrize(
    ("now", "then", "saving"),
    [
        ((None, None, None), (40, 50, 60), None),
        ((90, 100, 110), (None, None, None), None),
        # only bounded: at least (1 - 60/90) of 90; at most (1 - 40/200) of 200, and no more than 200 - 40
        ((90, None, 200), (40, 50, 60), (30.0, None, 160.0)),
        ((90, None, None), (40, 50, 60), (30.0, None, None)),
        ((30, None, 200), (40, 50, 60), (-200.0, None, 160.0)),  # 60/30 of 200 would be the worst
    ],
)
def test_savings_over_a_time_that_is_only_bounded(
    now: tuple[float | None, ...], then: tuple[float | None, ...], saving: tuple[float | None, ...] | None
) -> None:
    found = gain(timed(4096, *now), timed(2048, *then), gpu=A100)  # type: ignore[arg-type]
    if saving is None:
        assert found is None
        return
    assert found is not None
    assert [found.saving_us.low, found.saving_us.mid, found.saving_us.high] == [
        one if one is None else pytest.approx(one) for one in saving
    ]


def test_errors_of_ratios_are_the_measured_ones_rounded_up() -> None:
    """The worse of both sweeps in each bin of distance, as the table's source lists them."""
    model = [max(pair) for pair in zip((38, 82, 106, 100, 128), (92, 89, 98, 98, 112), strict=True)]
    own = [max(pair) for pair in zip((34, 37, 41, 71, 165), (46, 46, 52, 64, 66), strict=True)]
    for row, by_model, calibrated in zip(RATIO_ERROR, model, own, strict=True):
        apart = min(row[0], 2.0)
        assert by_model - 3 <= 1000 * ratio_error(apart) <= by_model + 21
        assert calibrated <= 1000 * ratio_error(apart, calibrated=True) <= calibrated + 12
    assert [row[0] for row in RATIO_ERROR] == [0.05, 0.1, 0.5, 0.7, math.inf]


# --- published alignment ----------------------------------------------------------------------------------

#: The raw sweeps of arXiv 2401.14489, as the docstring of ``ladder_published`` sums them up: 10th percentile,
#: median, 90th percentile; from the costlier sweep to the cheaper where there are several.
_Step = tuple[float | None, float | None, float | None]
_SWEPT: dict[str, dict[int, _Step]] = {
    "v100-sxm": {64: (0.99, 1.0, 1.0), 32: (0.99, 1.0, 1.0), 16: (0.99, 1.0, 1.0), 8: (0.69, 0.73, 0.90),
                 4: (0.69, 0.73, 0.90), 2: (None, None, 0.90)},
    "a100-sxm-80gb": {64: (0.99, 1.0, 1.0), 32: (0.873, 1.0, 1.0), 16: (0.939, 0.983, 1.0),
                      8: (0.613, 0.665, 0.69), 4: (0.615, 0.665, 0.69), 2: (0.276, 0.283, 0.297)},
    # between A100's cost of both operands and none
    "a6000": {64: (0.99, 1.0, 1.0), 32: (0.873, 1.0, 1.0), 16: (0.886, 0.983, 1.0), 8: (0.542, None, 1.0),
              4: (0.541, None, 1.0), 2: (0.276, None, 1.0)},
    "b200": {64: (0.99, 1.0, 1.0), 32: (0.873, 0.986, 1.0), 16: (0.88, 0.95, 1.0), 8: (None, None, 0.72),
             4: (None, None, 0.72), 2: (None, None, 0.72)},
}  # fmt: skip


@pytest.mark.parametrize(
    "gpu", ["v100-sxm", "a100-sxm-80gb", "a6000", "rtx-4090", "rtx-5090", "b200", "b300"]
)
def test_steps_of_alignment_are_those_of_the_published_sweeps(gpu: str) -> None:
    wanted = _SWEPT[{"rtx-4090": "a6000", "rtx-5090": "a6000", "b300": "b200"}.get(gpu, gpu)]
    ladder = alignment_ladder(gpu=find_gpu(None, override=gpu), dtype="fp16")
    assert tuple(STEPS_BYTES)[:7] == (128, *wanted)
    for size, values in wanted.items():
        step = ladder.step(size)
        for found, value in zip((step.low, step.mid, step.high), values, strict=True):
            assert found == (None if value is None else pytest.approx(value, abs=0.015)), size
        known = gpu == "a100-sxm-80gb" or (gpu == "v100-sxm" and size > 2)
        assert step.source and step.basis == ("model" if known else "heuristic")


def test_both_operands_misaligned_cost_more_on_an_a100() -> None:
    """vocab_v_sweep: K misaligns a and b: 4 bytes 0.541, 8 bytes 0.547, 16 bytes 0.886."""
    ladder = alignment_ladder(gpu=A100, dtype="fp16")
    for size, share in ((4, 0.541), (8, 0.547), (16, 0.886)):
        both, one = ladder.step_of({"a": size, "b": size, "c": 128}), ladder.step_of({"a": size, "b": 128})
        assert both.mid == pytest.approx(share, abs=0.005) and both.low is not None and both.high is not None
        assert both.low <= share <= both.high and one.mid is not None and one.mid > share + 0.05


# --- torch's choice of an attention kernel ----------------------------------------------------------------


#: sdp_utils.cpp: cuDNN on 9.0, 10.0 and 10.3 up to 128 in steps of 8; flash up to 256, on GPUs of 99 KB no
#: backward in (192, 224]; memory-efficient in steps of ``minimum_gemm_alignment``; then math.
@pytest.mark.parametrize(
    ("gpu", "dtype", "head_dims", "name", "how"),
    [
        ("h100-sxm", "bf16", (8, 64, 128), "cudnn", {}),
        ("h100-sxm", "bf16", (1, 63, 129, 136, 256), "flash", {}),
        ("h100-sxm", "bf16", (264, 512), "efficient", {}),
        ("h100-sxm", "bf16", (257, 260), "math", {}),
        ("h100-sxm", "bf16", (64,), "flash", {"lengths": (None, 1)}),
        ("b300", "fp16", (128,), "cudnn", {}),
        ("b300", "fp16", (128,), "flash", {"torch_version": "2.9.1"}),
        ("b200", "fp16", (128,), "cudnn", {"torch_version": "2.9.1"}),
        ("b200", "fp16", (128,), "flash", {"torch_version": "2.5.0"}),
        ("h100-sxm", "fp16", (128,), "cudnn", {"torch_version": "2.5.0"}),
        ("h100-sxm", "fp16", (128,), "flash", {"torch_version": "2.5.1"}),
        ("h100-sxm", "fp16", (128,), "flash", {"torch_version": "2.8.0"}),
        ("h100-sxm", "fp16", (128,), "cudnn", {"torch_version": "2.9"}),
        ("h100-sxm", "fp16", (128,), "flash", {"torch_version": "2.10.0"}),
        ("h100-sxm", "fp16", (128,), "cudnn", {"torch_version": "2.11.0+cu130"}),
        ("a100-sxm-80gb", "bf16", (1, 128, 193, 224, 256), "flash", {}),
        ("a6000", "bf16", (192, 225, 256), "flash", {}),
        ("rtx-4090", "bf16", (200, 224), "efficient", {}),
        ("rtx-5090", "bf16", (193,), "math", {}),
        ("rtx-5090", "bf16", (200,), "flash", {"training": False}),
        ("a100-sxm-80gb", "bf16", (64,), "efficient", {"causal": True, "lengths": (64, 128)}),
        ("a100-sxm-80gb", "bf16", (64,), "flash", {"causal": False, "lengths": (64, 128)}),
        ("a100-sxm-80gb", "fp32", (4, 64), "efficient", {}),
        ("a100-sxm-80gb", "fp32", (6, 63), "math", {}),
        ("v100-sxm", "fp16", (8, 64), "efficient", {}),
        ("v100-sxm", "fp16", (4, 12), "math", {}),
        ("v100-sxm", "fp32", (1, 63), "efficient", {}),
        ("v100-sxm", "bf16", (64,), "math", {}),
    ],
)
def test_torchs_choice_by_the_rules_of_its_dispatcher(
    gpu: str, dtype: str, head_dims: tuple[int, ...], name: str, how: dict[str, object]
) -> None:
    for head_dim in head_dims:
        found = likely_backend(
            head_dim=head_dim,
            dtype=dtype,
            gpu=find_gpu(None, override=gpu),
            **how,  # type: ignore[arg-type]
        )
        assert found.name == name, head_dim


@pytest.mark.parametrize(
    ("gpu", "dtype", "head_dim", "why"),
    [
        ("a100-sxm-80gb", "bf16", 264, "flash takes head dimensions up to 256"),
        ("a6000", "bf16", 208, "flash does not take this"),
        ("a100-sxm-80gb", "fp32", 64, "flash does not take fp32"),
        ("v100-sxm", "fp16", 64, "flash does not take fp16"),
        ("h100-sxm", "bf16", 256, "cuDNN takes head dimensions up to 128"),
        ("a100-sxm-80gb", "bf16", 256, "flash is torch's first choice"),
        ("a100-sxm-80gb", "bf16", 257, "no fused kernel of torch takes bf16 with a head dimension of 257"),
    ],
)
def test_torchs_choice_says_why(gpu: str, dtype: str, head_dim: int, why: str) -> None:
    found = likely_backend(head_dim=head_dim, dtype=dtype, gpu=find_gpu(None, override=gpu))
    assert found.why.startswith(why)


# --- sizes that a study tries -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "size", "grid", "step"),
    [
        (64, 256, 100, 64, 64),
        (4096, 8192, 5000, 8, 16),
        (4096, 8192, 5000, 64, 64),
        (1024, 9216, 2048, 8, 32),
    ],
)
def test_sizes_are_tried_in_steps_of_a_power_of_two(
    low: int, high: int, size: int, grid: int, step: int
) -> None:
    """At most twice 192 multiples of the step in the range, and the present size's neighbours on the grid."""
    found, stepped = _tried(low, high, size, grid)
    near = {size // grid * grid, (size // grid + 1) * grid, (size - 1) // grid * grid}
    assert stepped == step
    wanted = {n for n in range(low, high + 1) if n % step == 0} | {n for n in near if low <= n <= high}
    assert {*found} == wanted - {size} and [*found] == sorted(found)


@pytest.mark.parametrize(
    ("span", "columns", "step"), [(99, 100, 1), (100, 100, 2), (1000, 100, 16), (7, 1, 8), (7, 0, 8)]
)
def test_a_curve_has_no_more_points_than_columns(span: int, columns: int, step: int) -> None:
    assert _curve_step(512, 512 + span, columns) == step
    assert span // step + 1 <= max(columns, 1) and (step == 1 or span // (step // 2) + 1 > max(columns, 1))


# --- experts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "dtype", "like"),
    [
        ("a100-sxm-40gb", "bf16", "a100-sxm-80gb"),
        ("a6000", "bf16", "a100-sxm-80gb"),  # 8.6: below it 8.0 was measured; 8.9 is newer
        ("rtx-4090", "fp8", "l40s"),
        ("gb300", "nvfp4", "b300"),
        ("a6000", "fp8", None),
        ("v100-sxm", "bf16", None),
        ("h100-sxm", "nvfp4", None),
    ],
)
def test_experts_of_a_gpu_that_nobody_measured_run_as_on_the_nearest_older_one(
    gpu: str, dtype: str, like: str | None
) -> None:
    found = expert_rates(find_gpu(None, override=gpu), dtype)
    if like is None:
        assert isinstance(found, str)
        return
    known = expert_rates(find_gpu(None, override=like), dtype)
    assert not isinstance(found, str) and not isinstance(known, str)
    assert found.shares == known.shares and found.derived and not known.derived


# --- measured neighbours ----------------------------------------------------------------------------------


def measured(n: int, layout: str = "NN") -> GemmMeasurement:
    return GemmMeasurement("made up", 1024, n, 1024, 1, "bf16", "bf16", layout, 10.0, None, ())


def test_a_product_with_nothing_measured_near_is_as_unsure_as_the_typical_one() -> None:
    """One class of equal errors: the typical error is the scale, and four octaves are as far as any."""
    rows = [measured(2**power) for power in range(6, 16)]
    residuals = np.array([0.1, -0.1] * 5)
    found = neighbours(rows, [128] * 10, residuals)
    nothing, far = found.of((1024, 64, 1024, 1), "TT", 64), found.of((1024, 2**30, 1024, 1), "NN", 128)
    assert nothing.weighted == () and nothing.factor == 1.0
    assert len(far.weighted) == 5  # docs/prediction.md: the five nearest
    near = found.of((1024, 64, 1024, 1), "NN", 128)
    assert nothing.low_frac < near.low_frac < 1.0 < near.high_frac < nothing.high_frac
    # Each is an octave from the next, so near is 1 and four octaves widen the logs fourfold.
    assert math.log(far.high_frac) == pytest.approx(4 * math.log(near.high_frac), rel=0.2)
    assert math.log(nothing.high_frac) == pytest.approx(math.log(far.high_frac), rel=0.2)
    assert math.log(nothing.low_frac) == pytest.approx(math.log(far.low_frac), rel=0.2)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_range_holds_its_own_prediction(sign: int) -> None:
    """Where all errors have one sign, the range ends at the prediction on the other side, not before it."""
    rows = [measured(2**power) for power in range(6, 16)]
    found = neighbours(rows, [128] * 10, sign * np.linspace(0.3, 0.5, 10)).of((1024, 64, 1024, 1), "NN", 128)
    assert found.low_frac <= 1.0 <= found.high_frac and found.low_frac < found.high_frac


def test_products_measured_close_to_each_other_say_little_of_one_far_off() -> None:
    """Sizes a thousandth of an octave apart: one octave off is a thousand times as far."""
    rows = [measured(2**20 + 700 * one) for one in range(10)]
    found = neighbours(rows, [128] * 10, np.array([0.02, -0.02] * 5))
    near, far = (found.of((1024, n, 1024, 1), "NN", 128) for n in (2**20, 2**21))
    assert math.log(far.high_frac) > 100 * math.log(near.high_frac)
