"""The five numbers of two made-up steps, and what makes one of them a lower bound."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.advice.advice_rows import attention, gemm
from tests.kept import analyzed
from tests.said import Listener
from tests.trace.tools import need_shared
from tracelens.accounting.report import counted_types, mixed_peak, summarize
from tracelens.accounting.steps import StepTimes
from tracelens.accounting.words.figures import BUFFER_IN_FULL
from tracelens.gemm import AttentionShape, GemmShape
from tracelens.hardware import find_gpu
from tracelens.render.five_numbers import five_numbers
from tracelens.results import Coverage, Report, Summary
from tracelens.words import PHASES

H100 = find_gpu("NVIDIA H100 80GB HBM3")
SHAPE = GemmShape(1000, 1000, 1000, 1, "bf16", "bf16", "TN")
PACKED = AttentionShape(None, 4, 4, None, None, 64, 64, "bf16", True, False, varlen=True, query_tokens=64)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def summary(
    *calls: tuple[Any, str, int, int, str | None],
    work: tuple[str, ...] = (),
    gpu: Any = H100,
    transformer: bool = True,
    known: float = 1.0,
    world: int | None = None,
    replays: bool = False,
    beside: str = "k",
) -> Summary:
    """(shape, phase, step, ns, operator) of each call; steps of 100 and 150 us, of which 200 are busy.
    ``beside`` them one other kernel runs."""
    size = len(calls)
    metadata = {} if world is None else {"distributedInfo": {"rank": 0, "world_size": world}}
    trace: Any = SimpleNamespace(
        kernels=SimpleNamespace(
            dur_ns=ints(*(call[3] for call in calls), 120_000), name=ints(*size * [0], 1)
        ),
        metadata=metadata, replays=np.array([replays]),
        symbols=SimpleNamespace(where=lambda says: np.array([says("g"), says(beside)])),
    )  # fmt: skip
    attribution: Any = SimpleNamespace(
        step=ints(*(call[2] for call in calls), 1), transformer=transformer,
        phase=ints(*(PHASES.index(call[1]) for call in calls), 0),
    )  # fmt: skip
    made: Any = SimpleNamespace(
        shape=[call[0] for call in calls], main=np.arange(size), dur_ns=ints(*(call[3] for call in calls)),
        work=list(work), op_name=[call[4] for call in calls], kernel=[None] * size,
    )  # fmt: skip
    times = StepTimes([0, 1], [0, 1], ints(0, 100_000), ints(100_000, 250_000), ints(90_000, 110_000),
                      ints(5_000, 15_000), "ranges", True, [None, None], [])  # fmt: skip
    covered = Coverage(known, 0.0, 0.0, 0.0, {}, [], 0.0, 0)
    rows = [gemm(1, 8, 8, 8, time_us=20.0), attention(2, 64, time_us=5.0, calls=1.0)]
    return summarize(trace, attribution, made, times, gpu, rows, covered)


ONE = (SHAPE, "forward", 0, 50_000, "aten::mm")


def test_the_five_numbers_of_two_steps() -> None:
    found = summary(
        ONE, (SHAPE, "recompute", 1, 50_000, "aten::mm"), (SHAPE, "forward", -1, 9_000, "aten::mm")
    )
    assert found.gpu_ms_per_step == pytest.approx(0.11)  # 50 + 50 + 120 us in two steps
    assert (found.gpu_busy_frac, found.idle_ms) == pytest.approx((0.8, 0.025))
    assert found.exposed_communication_ms == pytest.approx(0.01)
    assert found.gemm_frac == pytest.approx(0.025 / 0.11)
    # 2 G operations in 250 us: what is computed again, or in no step, is no work of the model
    assert found.achieved_tflops == pytest.approx(8.0)
    assert found.mfu_frac == pytest.approx(8.0 / (H100.peak("bf16") or 0.0)) and found.mfu_dtype == "bf16"
    assert (found.mfu_why, found.mfu_is_bound) == (None, False)
    assert (found.step_ms.median, found.step_ms.low, found.step_ms.high) == pytest.approx((0.125, 0.1, 0.15))
    assert (found.gemm_frac_is_bound, found.communication_is_bound) == (False, False)


@pytest.mark.parametrize(
    ("call", "given", "why"),
    [
        ((None, "forward", 1, 1_020, "aten::mm"), {}, None),  # 2 % of GEMM time
        ((None, "forward", 1, 1_030, "aten::mm"), {},
         "FLOPs unknown for 2% of GEMM time: no shapes recorded (record_shapes=True)"),
        ((None, "forward", 1, 50_000, None), {},
         "FLOPs unknown for 50% of GEMM time: its kernels have no operator in the file"),
        ((None, "forward", 1, 50_000, None), {"replays": True},
         "FLOPs unknown for 50% of GEMM time: a CUDA graph hides its operators"),
        ((PACKED, "forward", 1, 150_000, "aten::x"), {},
         "FLOPs unknown for 75% of GEMM time: packed attention"),
        ((SHAPE, "forward", 1, 50_000, "aten::mm"), {"work": ("exact", "above_peak")},
         "FLOPs unknown for 50% of GEMM time: more counted than the GPU can do in their time"),
        ((SHAPE, "forward", -1, 1, "aten::mm"), {"known": 0.8}, "20% of GPU time could not be told apart"),
        ((SHAPE, "forward", -1, 1, "aten::mm"), {"transformer": False},
         "only GEMM and attention FLOPs are counted"),
    ],
)  # fmt: skip
def test_a_utilization_that_leaves_something_out_is_a_lower_bound_and_says_what(
    call: Any, given: dict[str, Any], why: str | None
) -> None:
    found = summary(ONE, call, **given)
    assert (found.mfu_why, found.mfu_is_bound) == (why, why is not None)
    assert found.achieved_tflops == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("works", "types", "peak"),
    [
        ({"bf16": 2, "fp8": 1}, {"bf16": 2 / 3, "fp8": 1 / 3}, 1 / (2 / 3 / 989 + 1 / 3 / 1979)),
        ({"fp8": 2, "bf16": 1}, {"fp8": 2 / 3, "bf16": 1 / 3}, 1 / (1 / 3 / 989 + 2 / 3 / 1979)),
        ({"bf16": 2, "fp32": 1}, {"bf16": 1.0}, 989),  # what fp32 loses is not its peak's doing
        ({"fp8": 3, "bf16": 2, "tf32": 1}, {"fp8": 0.5, "bf16": 0.5}, 1 / (0.5 / 989 + 0.5 / 1979)),
        ({"tf32": 2, "bf16": 1, "fp32": 1}, {"tf32": 0.75, "bf16": 0.25}, 1 / (0.75 / 494.5 + 0.25 / 989)),
        ({"bf16": 99, "fp8": 1}, {"bf16": 1.0}, 989),
        ({"bf16": 2, "int4": 1, None: 1}, {"bf16": 1.0}, 989),
    ],
)
def test_each_type_is_measured_against_its_own_peak(
    works: dict[str | None, int], types: dict[str, float], peak: float
) -> None:
    found = counted_types({dtype: float(work) for dtype, work in works.items()}, H100)
    assert [*found] == [*types] and found == pytest.approx(types)
    assert mixed_peak(found, H100) == pytest.approx(peak, rel=1e-3)


def test_a_type_without_a_peak_beside_the_main_one_hides_no_utilization() -> None:
    """Turing multiplies bf16 without tensor cores: autocast to it leaves the rest in fp32, or in fp16."""
    turing = find_gpu("Tesla T4")
    for main, peak in (("fp32", 8.1), ("fp16", 65.0)):
        found = counted_types({main: 2.0, "bf16": 1.0}, turing)
        assert found == {main: pytest.approx(1.0)}
        assert mixed_peak(found, turing) == pytest.approx(peak)


def test_what_no_peak_measures_has_no_shares() -> None:
    assert summary(ONE).mfu_types == {"bf16": 1.0}
    assert summary(ONE, gpu=find_gpu("A GPU of tomorrow")).mfu_types == {}


def test_a_step_of_two_types_names_both_peaks(said: Listener) -> None:
    """The public trace of a language model with logits in fp8: 34 % of its FLOPs."""
    report = analyzed(need_shared("d1_")).report
    found = report.summary
    assert found.mfu_frac == pytest.approx((found.achieved_tflops or 0.0) / (found.mfu_peak_tflops or 1.0))
    assert (found.mfu_peak_tflops or 0.0) == pytest.approx(1189, rel=0.01)
    said([one.note for one in five_numbers(report) if one.key == "mfu"])
    whole = replace(report, summary=replace(found, mfu_why=None))
    said([one.note for one in five_numbers(whole) if one.key == "mfu"])
    old = replace(report, summary=replace(found, mfu_why=None, mfu_types={}, mfu_peak_tflops=None))
    said([one.note for one in five_numbers(old) if one.key == "mfu"])


def test_rows_of_a_buffer_that_may_be_empty_make_no_lower_bound() -> None:
    """8 experts get 1000 rows between them at most: how many of them are filled no trace tells."""
    experts = GemmShape(1000, 1000, 1000, 1, "bf16", "bf16", "TN", groups=8, grouped="m")
    most = summary((experts, "forward", 1, 50_000, "aten::_grouped_mm"), work=("at_most",))
    assert (most.mfu_is_bound, most.mfu_why) == (False, BUFFER_IN_FULL)
    both = summary(
        (experts, "forward", 1, 50_000, "aten::_grouped_mm"), (PACKED, "forward", 1, 150_000, "aten::x")
    )
    assert not both.mfu_is_bound and BUFFER_IN_FULL in (both.mfu_why or "") != BUFFER_IN_FULL
    little = summary(ONE, (experts, "forward", 1, 1_000, "aten::_grouped_mm"))
    assert (little.mfu_is_bound, little.mfu_why) == (False, None)


def test_without_work_or_peak_there_is_no_utilization(said: Listener) -> None:
    none = summary((None, "forward", 0, 50_000, "aten::mm"))
    assert (none.mfu_frac, none.achieved_tflops, none.mfu_is_bound) == (None, None, False)
    said(none.mfu_why, summary().mfu_why)
    unknown = summary(ONE, gpu=find_gpu("A GPU of tomorrow"))
    assert unknown.mfu_frac is None and unknown.achieved_tflops == pytest.approx(8.0)
    said(unknown.mfu_why)
    odd = summary((GemmShape(1000, 1000, 1000, 1, "int4", "int4", "TN"), "forward", 0, 50_000, "aten::mm"))
    assert odd.mfu_frac is None
    said(odd.mfu_why)
    untold = summary((GemmShape(1000, 1000, 1000, 1, None, None, "TN"), "forward", 0, 50_000, "aten::mm"))
    assert (untold.mfu_frac, untold.mfu_dtype) == (None, None) and untold.achieved_tflops is not None
    said(untold.mfu_why)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("triton_tem_fused_mul_9", True),
        ("triton_tem_fused_convolution_0", False),
        ("triton_tem_fused_mm_3", False),
    ],
)
def test_a_template_whose_name_lists_no_product_makes_their_share_a_bound(name: str, bound: bool) -> None:
    assert summary(ONE, beside=name).gemm_frac_is_bound == bound


def test_what_was_not_told_apart_makes_shares_and_communication_bounds() -> None:
    partly = summary(ONE, known=0.8)
    assert (partly.gemm_frac_is_bound, partly.communication_is_bound) == (True, True)
    alone = summary(ONE, known=0.8, world=1)
    assert (alone.gemm_frac_is_bound, alone.communication_is_bound) == (True, False)


@cache
def sample() -> Report:
    return analyzed(Path(__file__).parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz").report


def test_a_rows_share_is_of_all_gpu_time_of_the_steps() -> None:
    report = sample()
    steps = len(report.steps)
    assert steps > 1
    for row in report.gemms:
        assert row.frac == pytest.approx(row.time_ms_per_step / report.summary.gpu_ms_per_step)
        assert row.calls_per_step == pytest.approx(row.calls / steps)
        assert row.time_ms == pytest.approx(row.time_ms_per_step * steps)
        assert row.median_us is not None and row.slowest_us is not None
        assert row.median_us <= row.slowest_us <= row.time_ms * 1e3
    times = [row.time_ms_per_step for row in report.gemms]
    assert times == sorted(times, reverse=True) and [row.id for row in report.gemms[:2]] == ["g1", "g2"]


def test_waves_are_those_of_whole_clusters_where_slices_are_known() -> None:
    """132 SMs hold 132 single CTAs or 66 pairs; what is split along K has so many more pieces."""
    judged = [row for row in sample().gemms if row.tiles is not None]
    assert judged
    for row in judged:
        assert row.m is not None and row.n is not None and row.tile_m and row.tile_n
        assert row.tiles == -(-row.m // row.tile_m) * -(-row.n // row.tile_n) * (row.batch or 1)
        known = row.split_k is not None and row.scheduler != "stream_k"
        assert (row.waves is not None) is known
        if known and row.cluster_size == 1:
            assert row.waves == -(-row.tiles * (row.split_k or 1) // 132)
