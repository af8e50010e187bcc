"""Rows of tables made of a few kernels whose figures are counted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.advice.advice_messages import message
from tests.advice.advice_rows import H100, gemm
from tests.said import Listener
from tests.trace.tools import document, kernel, launch, op, read
from tracelens.accounting.communication import communication_rows
from tracelens.accounting.host_waits import host_waits
from tracelens.accounting.lost import Ladders, call_facts, gemm_time, with_lost
from tracelens.accounting.overlap import Surroundings, beside_of, clock_of, why_not_alone
from tracelens.accounting.shares import component_rows, coverage, reference_info
from tracelens.accounting.slow_calls import slow_calls_of
from tracelens.attribution.collectives import Call
from tracelens.attribution.communication import Purpose
from tracelens.gemm import GemmShape, LadderStep, parse_kernel_name
from tracelens.gemm.clock import StepPaces
from tracelens.gemm.overlap import Paces
from tracelens.hardware import find_gpu
from tracelens.hardware.collectives import one_node_us
from tracelens.results import Beside, CommunicationRow, GemmRow, Lost
from tracelens.trace import link
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

MB = 1 << 20
OPTIMIZER, FORWARD = PHASES.index("optimizer"), PHASES.index("forward")


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


# communication


def rows_of(
    *events: tuple[Call, int, int, int], streams: tuple[int, ...] | None = None, computing: int = 500
) -> list[CommunicationRow]:
    """(call, step, ns, exposed ns) of each event, and a kernel of ``computing`` ns on stream 1; two steps."""
    kinds = list(dict.fromkeys(call for call, *_ in events))
    size = len(events)
    trace: Any = SimpleNamespace(
        kernels=SimpleNamespace(
            dur_ns=ints(*(ns for _, _, ns, _ in events), computing),
            device=np.zeros(size + 1, np.int64),
            stream=ints(*(streams or (2,) * size), 1),
        )
    )
    attribution: Any = SimpleNamespace(
        phase=np.full(size + 1, FORWARD), step=ints(*(step for _, step, _, _ in events), 0)
    )
    communication: Any = SimpleNamespace(
        kernel=np.arange(size), call=ints(*(kinds.index(call) for call, *_ in events)), calls=kinds,
        purpose=np.zeros(size, np.int64),
        purposes=[Purpose("data-parallel gradients", "op", "a hook")],
        exposed_ns=ints(*(exposed for *_, exposed in events)),
    )  # fmt: skip

    class Sized(SimpleNamespace):
        def __len__(self) -> int:
            return size

    sized: Any = Sized(**vars(communication))
    return communication_rows(trace, attribution, sized, steps=2)


def call(
    size: int | None, *, collective: Any = "all_gather", ranks: int | None = 8, uneven: float | None = None
) -> Call:
    return Call(collective, "bf16", None, size, "mesh_dp", ranks, None, uneven)


def test_a_row_of_communication_sums_its_calls() -> None:
    """Three calls of 8 MB in 40, 20 and 20 us, of which the last is in no step."""
    one = call(8 * MB)
    (row,) = rows_of((one, 0, 40_000, 30_000), (one, 1, 20_000, 0), (one, -1, 20_000, 20_000))
    assert (row.calls, row.calls_per_step, row.bytes_per_call) == (3, 1.0, 8 * MB)
    assert (row.time_ms, row.exposed_ms, row.hidden_ms) == pytest.approx((0.08, 0.05, 0.03))
    steps = (row.time_ms_per_step, row.exposed_ms_per_step, row.hidden_ms_per_step)
    assert steps == pytest.approx((0.03, 0.015, 0.015))
    # 24 MB in 80 us; each link of an all-gather among 8 carries 7/8 of that, the fastest call 8 MB in 20 us
    assert row.algorithm_gbps == pytest.approx(24 * MB / 80_000)
    assert row.bus_gbps == pytest.approx(24 * MB / 80_000 * 7 / 8)
    assert row.best_bus_gbps == pytest.approx(8 * MB / 20_000 * 7 / 8)
    assert (row.in_line_ms_per_step, row.unaligned_ms_per_step, row.unaligned_bytes) == (0.0, 0.0, None)
    assert (row.phase, row.collective, row.group_size) == ("forward", "all_gather", 8)


def test_rates_are_known_where_sizes_and_ranks_are() -> None:
    (unsized,) = rows_of((call(None), 0, 10_000, 0))
    assert (unsized.bytes_per_call, unsized.algorithm_gbps, unsized.bus_gbps, unsized.best_bus_gbps) == (
        None,
    ) * 4
    (alone,) = rows_of((call(MB, ranks=None), 0, 10_000, 0))
    assert alone.algorithm_gbps == MB / 10_000 and alone.bus_gbps is None
    (other,) = rows_of((call(MB, collective="other"), 0, 10_000, 0))
    assert other.algorithm_gbps is None and other.bus_gbps is None
    (mixed,) = rows_of((call(MB, uneven=0.2), 0, 10, 0), (call(MB, uneven=0.4), 1, 10, 0),
                       (call(MB, uneven=0.9), -1, 10, 0), (call(MB), 0, 10, 0))  # fmt: skip
    assert mixed.uneven_frac == pytest.approx(0.3)


def test_messages_within_a_factor_of_sixteen_share_a_row_and_the_longest_comes_first() -> None:
    found = rows_of(
        (call(MB // 2), 0, 10_000, 0), (call(8 * MB - 1), 0, 20_000, 0), (call(8 * MB), 0, 70_000, 0)
    )
    assert [(row.calls, row.time_ms) for row in found] == [(1, 0.07), (2, 0.03)]


@pytest.mark.parametrize(
    ("collective", "size", "ranks", "share"),
    [
        ("all_gather", 8 * (MB + 8), 8, MB + 8),  # begins on 8 bytes
        ("reduce_scatter", 8 * (MB + 4), 8, MB + 4),
        ("all_gather", 8 * (MB + 16), 8, None),
        ("all_reduce", 8 * (MB + 8), 8, None),
        ("all_gather", 8 * (MB + 8) + 1, 8, None),  # no whole shares
        ("all_gather", MB - 8, 8, None),  # small
        ("all_gather", MB, 2**16 + 0, None),
        ("all_gather", 2**20, 2**17, 8),
        ("all_gather", 8 * (MB + 8), None, None),
        ("all_gather", None, 8, None),
    ],
)
def test_shares_that_begin_on_less_than_sixteen_bytes_are_named(
    collective: str, size: int | None, ranks: int | None, share: int | None
) -> None:
    one = call(size, collective=collective, ranks=ranks)
    (row,) = rows_of((one, 0, 30_000, 20_000), (one, -1, 90_000, 80_000))
    assert row.unaligned_bytes == share
    assert row.unaligned_ms_per_step == (0.01 if share else 0.0)


def test_in_line_is_what_is_exposed_on_the_stream_that_computes_most() -> None:
    one = call(MB)
    (row,) = rows_of((one, 0, 30_000, 20_000), (one, 0, 30_000, 10_000), streams=(1, 2))
    assert row.in_line_ms_per_step == 0.01
    (idle,) = rows_of((one, 0, 30_000, 20_000), streams=(1,), computing=0)
    assert idle.in_line_ms_per_step == 0.0


@pytest.mark.parametrize(
    ("times", "best", "slow", "waiting"),
    [
        (2.0, 1.0, False, None),
        (2.01, 1.0, True, True),
        (4.0, 1 / 1.49, True, True),
        (4.0, 1 / 1.51, True, False),
    ],
)
def test_calls_of_more_than_twice_the_published_time_are_slow(
    times: float, best: float, slow: bool, waiting: bool | None
) -> None:
    """Their fastest shows whether links are slow (1.5 times the published time) or ranks late."""
    size = 128 * MB
    usual = one_node_us("h100-sxm", "all_gather", 8, size)
    assert usual is not None
    bus = size * 7 / 8 / usual / 1e3
    row = message(
        "all_gather", group_size=8, bytes_per_call=float(size), calls=10, time_ms=10 * usual * times / 1e3,
        time=3.0, bus_gbps=bus / times, best_bus_gbps=bus * best,
    )  # fmt: skip
    found = slow_calls_of(replace(row, time_ms=10 * usual * times / 1e3), "h100-sxm")
    assert (found is not None) is slow
    if found is not None:
        assert (found.us, found.usual_us, found.usual_gbps) == pytest.approx((usual * times, usual, bus))
        assert (found.waiting_ms is not None) is waiting
        if waiting:
            assert found.waiting_ms == pytest.approx(3.0 * max(0.0, 1 - 1.15 / times / best))
    for lacking in ("bytes_per_call", "group_size", "bus_gbps", "best_bus_gbps"):
        assert slow_calls_of(replace(row, **{lacking: None}), "h100-sxm") is None  # type: ignore[arg-type]
    assert slow_calls_of(row, "rtx-4090") is None


# components and coverage


def parts(*events: tuple[str, str, int, int], calls: Any = None) -> tuple[Any, Any, Any]:
    """(component, phase, step, ns) of each kernel."""
    names, phases, steps, times = zip(*events, strict=True)
    trace: Any = SimpleNamespace(kernels=SimpleNamespace(dur_ns=ints(*times)))
    attribution: Any = SimpleNamespace(
        component=ints(*(COMPONENTS.index(name) for name in names)),
        phase=ints(*(PHASES.index(name) for name in phases)), step=ints(*steps),
    )  # fmt: skip
    given: Any = calls or SimpleNamespace(shape=[], work=[], rated=[], main=ints(), dur_ns=ints())
    return trace, attribution, given


def test_components_count_all_time_and_shares_of_the_steps() -> None:
    calls = SimpleNamespace(
        shape=[GemmShape(10, 10, 10, 1, "bf16", "bf16", "TN"), None,
               GemmShape(10, 10, 20, 1, "bf16", "bf16", "TN")],
        work=["exact", "unknown", "exact"], rated=[True, True, False], main=ints(0, 2, 3),
        dur_ns=ints(4000, 9, 500),
    )  # fmt: skip
    found = component_rows(
        *parts(
            ("mlp.up", "forward", 0, 4000), ("norm", "forward", 1, 1000), ("norm", "forward", -1, 3000),
            ("mlp.up", "forward", 1, 1000), ("norm", "backward", -1, 500), calls=calls,
        ),
        steps=2,
    )  # fmt: skip
    assert {(one.component, one.phase): (one.time_ns, one.kernels) for one in found} == {
        ("norm", "forward"): (4000, 2), ("norm", "backward"): (500, 1), ("mlp.up", "forward"): (5000, 2),
    }  # fmt: skip
    up, norm = (next(one for one in found if one.component == name) for name in ("mlp.up", "norm"))
    assert (up.time_ms, up.frac, up.time_ms_per_step, up.kernels_per_step) == (0.005, 5 / 6, 0.0025, 1.0)
    assert (norm.phase, norm.frac, norm.kernels_per_step) == ("forward", 1 / 6, 0.5)
    # 2 x 1000 + 2 x 2000 operations; only the first at a rate that the GPU can have, in 4 us
    assert up.flops == 6000.0 and up.tflops == pytest.approx(2000 / 4000 / 1e3) and norm.flops is None
    fast = SimpleNamespace(**{**vars(calls), "work": ["above_peak", "unknown", "exact"]})
    faster = component_rows(
        *parts(
            ("mlp.up", "forward", 0, 4000), ("norm", "forward", 1, 1), ("norm", "forward", 1, 1),
            ("mlp.up", "forward", 1, 1), calls=fast,
        ),
        steps=2,
    )  # fmt: skip
    assert next(one.flops for one in faster if one.component == "mlp.up") == 4000.0
    (lone,) = component_rows(*parts(("norm", "forward", -1, 500)), steps=1)
    assert (lone.frac, lone.time_ms_per_step, lone.time_ms) == (0.0, 0.0, 0.0005)


@pytest.mark.parametrize(
    ("op_name", "told"),
    [("Torch-Compiled Region", "compiled kernel"), ("triton_poi_fused_clone_mul_10", "compiled kernel"),
     ("fbgemm::permute_2D_sparse_data", "other operator"), ("torchvision::nms", "other operator")],
)  # fmt: skip
def test_an_operator_outside_aten_is_not_called_the_users_own(
    op_name: str, told: str, tmp_path: Path
) -> None:
    events = [op(op_name, ts=0, dur=8), launch(0, ts=1), kernel("k", ts=100, dur=1, correlation=0)]
    trace = read(tmp_path, document(events))
    attribution: Any = SimpleNamespace(
        counted=np.ones(1, np.bool_), component=ints(COMPONENTS.index("other")), module=ints(-1),
        like=ints(-1), loan=None, evidence=ints(EVIDENCE.index("none")), reasons=list,
    )  # fmt: skip
    calls: Any = SimpleNamespace(row_of_kernel=ints(-1))
    assert [one.what for one in coverage(trace, link(trace), attribution, calls, []).outside] == [told]


def test_what_is_in_no_part_of_the_step_is_told_by_its_operators(tmp_path: Path) -> None:
    """A convolution, a batched product, another library's operator and none; of 1000 ns a layer takes 500."""
    names = ("aten::cudnn_convolution_backward", "aten::bmm", "mine::secret", "aten::relu_", "aten::norm")
    ops = [op(name, ts=10 * at, dur=8) for at, name in enumerate(names)]
    launches = [launch(at, ts=10 * at + 1) for at in range(len(names))]
    times = (0.2, 0.1, 0.15, 0.009, 0.5)
    kernels = [kernel(f"k{at}", ts=100 + at, dur=ns, correlation=at) for at, ns in enumerate(times)]
    lone = kernel("lone", ts=200, dur=0.041, correlation=99)
    trace = read(tmp_path, document([*ops, *launches, *kernels, lone]))
    links = link(trace)
    of = ["other", "other", "unattributed", "other", "norm", "unattributed"]
    nothing = np.full(6, -1)
    attribution: Any = SimpleNamespace(
        counted=np.ones(6, np.bool_), component=ints(*(COMPONENTS.index(name) for name in of)),
        module=ints(3, -1, 0, -1, 0, -1), like=nothing, loan=None,
        evidence=np.full(6, EVIDENCE.index("none")),
        reasons=lambda: [("no names", np.array([False, False, True, False, False, True]))],
    )  # fmt: skip
    calls: Any = SimpleNamespace(row_of_kernel=ints(-1, 0, -1, -1, -1, -1))
    rows = [replace(gemm(1, 8, 8, 8), time_ms_per_step=3.0, tile_m=128, shape_known="exact"),
            replace(gemm(2, 8, 8, 8), time_ms_per_step=1.0, tile_m=None, shape_known="bounded"),
            replace(gemm(3, 8, 8, 8), time_ms_per_step=4.0, shape_known="unknown", kind="attention"),
    ]  # fmt: skip
    found = coverage(trace, links, attribution, calls, rows)
    assert (found.component_frac, found.other_frac) == pytest.approx((0.5, 0.309))
    assert found.unattributed_frac == pytest.approx(0.191) and found.module_frac == pytest.approx(0.7)
    assert found.opaque_frac == pytest.approx(0.1)  # the batched product can be attention
    assert found.attention_open_frac == pytest.approx(0.1 + 0.15 + 0.041)
    assert {(one.component, one.what): round(one.frac, 6) for one in found.outside} == {
        ("other", "convolution"): 0.2, ("other", "GEMM"): 0.1,
        ("unattributed", "other operator"): 0.15, ("unattributed", "no operator"): 0.041,
    }  # fmt: skip
    assert [one.what for one in found.outside] == ["convolution", "GEMM", "other operator", "no operator"]
    assert (found.shape_frac, found.shape_bounded_frac, found.shape_unknown_frac) == (3 / 8, 1 / 8, 4 / 8)
    assert found.tile_frac == 0.75
    assert found.no_launch_frac == pytest.approx(0.041) and found.no_launch_kernels == 1
    (why,) = found.unattributed
    assert why.time_ms == pytest.approx(0.000191) and why.kernels == 2
    assert found.by_evidence == pytest.approx({"none": 1.0}) and (found.lent_frac, found.lent_kernels) == (
        0.0,
        0,
    )


def test_what_a_reference_lent_is_counted_in_the_steps(tmp_path: Path) -> None:
    """Of kernels of 100, 200, 300 and 400 ns the last is in no step; the first keeps its own component."""
    trace: Any = SimpleNamespace(kernels=SimpleNamespace(dur_ns=ints(100, 200, 300, 400)))
    loan = SimpleNamespace(
        trace=SimpleNamespace(source=SimpleNamespace(name="r.json", sha256="00")), like=ints(0, 1, -1, 3),
        filled=np.array([True, True, False, True]), matched=np.array([True, True, False, True]),
    )  # fmt: skip
    structure, other = EVIDENCE.index("structure"), EVIDENCE.index("annotation")
    attribution: Any = SimpleNamespace(
        loan=loan, counted=np.array([True, True, True, False]), like=ints(-1, -1, 2, -1),
        evidence=ints(other, structure, structure, structure),
    )  # fmt: skip
    calls: Any = SimpleNamespace(lent=np.array([True, False, True, True]), main=ints(0, 1, 2, 3))
    without: Any = SimpleNamespace(loan=None)
    found = reference_info(trace, attribution, calls)
    assert found is not None
    assert (found.matched_frac, found.matched_kernels) == (0.5, 2)
    assert found.lent_frac == pytest.approx(1 / 3) and (found.lent_kernels, found.lent_calls) == (1, 1)
    assert reference_info(trace, without, calls) is None


# what ran beside


def around(**given: Any) -> Surroundings:
    size = 4
    columns: dict[str, Any] = {
        "communication_ns": ints(0, 500, 400, 0), "others_ns": ints(0, 100, 0, 10),
        "clock": StepPaces(ints(), np.zeros(0), np.zeros(0, np.bool_), np.zeros(size), (0.0, 0.0)),
        "paces": Paces(np.full(size, 1000.0), np.full(size, 1000.0), np.array([0.0, 300.0, 500.0, 0.0])),
        "by_collective": {("all_gather", 24): ints(0, 100, 0, 0), ("all_gather", 8): ints(0, 100, 50, 0),
                          ("reduce_scatter", 16): ints(0, 0, 200, 0), ("all_reduce", 2): ints(0, 0, 0, 0)},
    }  # fmt: skip
    return Surroundings(**(columns | given))


ALL, DUR = ints(0, 1, 2, 3), ints(1000, 1300, 1500, 1000)
INSIDE = np.array([True, True, False, True])


def test_what_ran_beside_a_row_and_what_that_cost() -> None:
    found = beside_of(around(), ALL, INSIDE, DUR, steps=2)
    assert found is not None
    assert (found.communication_ms, found.others_ms) == pytest.approx((0.0009, 0.00011))
    assert found.collectives == pytest.approx({"all_gather": 0.00025, "reduce_scatter": 0.0002})
    assert list(found.collectives) == ["all_gather", "reduce_scatter"] and found.ctas == 16
    assert (found.disturbed_calls, found.disturbed_us, found.alone_us) == (
        2,
        1.4,
        1.0,
    )  # of 1000 ns 10 are nothing
    assert (found.excess_ms, found.excess_ms_per_step) == pytest.approx((0.0008, 0.00015))
    assert beside_of(around(), ints(0, 3), np.ones(2, np.bool_), ints(1000, 1000), steps=2) is None
    quick = Paces(np.full(4, np.nan), np.ones(4), np.array([0.0, -400.0, 100.0, 0.0]))
    less = beside_of(around(paces=quick), ALL, INSIDE, DUR, steps=2)
    assert less is not None and (less.alone_us, less.excess_ms, less.excess_ms_per_step) == (None, 0.0, 0.0)
    hidden = Paces(quick.alone, quick.usual, np.array([0.0, np.nan, 100.0, 0.0]))
    unknown = beside_of(around(paces=hidden, by_collective={}), ALL, INSIDE, DUR, steps=2)
    assert unknown is not None
    assert (unknown.excess_ms, unknown.excess_ms_per_step, unknown.ctas, unknown.collectives) == (
        None,
        None,
        None,
        {},
    )
    nothing = beside_of(
        around(by_collective={("all_gather", 24): ints(0, 0, 0, 0)}), ALL, INSIDE, DUR, steps=2
    )
    assert nothing is not None and nothing.ctas is None


def test_a_clock_needs_two_steps_and_its_range_is_that_of_all_that_is_lost() -> None:
    paces = StepPaces(ints(0, 1, 2), np.array([1.0, np.nan, 1.2]), np.array([False, False, True]),
                      np.array([0.0, 0.0, 100.0, 300.0]), (200.0, 500.0))  # fmt: skip
    rows = [replace(gemm(1, 8, 8, 8), clock_ms_per_step=ms) for ms in (1.0, 3.0)]
    found = clock_of(around(clock=paces), {0: 5, 2: 7}, rows, {})
    assert found is not None
    assert [(one.step, one.pace, one.slow) for one in found.steps] == [(5, 1.0, False), (7, 1.2, True)]
    figures = (found.lost_ms_per_step, found.least_ms_per_step, found.most_ms_per_step)
    assert figures == (4.0, 2.0, 5.0)
    one = replace(paces, pace=np.array([1.0, np.nan, np.nan]))
    assert clock_of(around(clock=one), {}, rows, {}) is None
    still = clock_of(around(clock=replace(paces, lost_ns=np.zeros(4))), {}, rows, {})
    assert still is not None and (still.least_ms_per_step, still.most_ms_per_step) == (0.0, 0.0)


def beside(excess: float | None, communication: float, others: float) -> Beside:
    return Beside(communication, others, {}, None, 3, 1.0, None, excess, excess)


@pytest.mark.parametrize(
    ("excess", "communication", "others", "parts"),
    [
        (None, 0.6, 0.4, ("overlap", "alignment", "wave", "tile")),  # a tenth of 10 ms
        (None, 0.6, 0.39, ("overlap",)),
        (0.0, 5.0, 0.0, ()),
    ],
)
def test_a_shape_is_judged_where_little_ran_beside_it(
    excess: float | None, communication: float, others: float, parts: tuple[str, ...], said: Listener
) -> None:
    row = replace(gemm(1, 8, 8, 8, calls=5), time_ms=10.0, beside=beside(excess, communication, others))
    assert tuple(why_not_alone(row)) == parts
    for why in why_not_alone(row).values():
        said(why)
    assert why_not_alone(gemm(1, 8, 8, 8)) == {}


# losses

SHAPE = GemmShape(4096, 4096, 4096, 1, "bf16", "bf16", "TN", lda=4096, ldb=4096)
LADDERS = Ladders(find_gpu("NVIDIA H100 80GB HBM3"))
PLAIN = gemm(1, 4096, 4096, 4096)


def why(row: GemmRow, *, shape: Any = SHAPE, kernel: Any = None, gpu: Any = H100) -> dict[str, str]:
    parsed = kernel or parse_kernel_name(row.kernel)
    return with_lost(row, shape=shape, kernel=parsed, gpu=gpu, ladders=LADDERS).lost_ms.why


UNKNOWN = replace(H100, name="unknown", peak_tflops={})


@pytest.mark.parametrize(
    ("row", "given", "part"),
    [
        (replace(PLAIN, kind="attention"), {}, "useful"),
        (replace(PLAIN, flops=None, work_known="above_peak", work_why="too fast"), {}, "useful"),
        (replace(PLAIN, flops=None, shape_note=None), {"shape": None}, "useful"),
        (replace(PLAIN, flops=None, shape_note="packed"), {"shape": None}, "useful"),
        (replace(PLAIN, math_dtype=None, dtype="fp32"), {}, "useful"),
        (replace(PLAIN, math_dtype=None, dtype=None), {}, "useful"),
        (PLAIN, {"gpu": replace(H100, vendor="amd", peak_tflops={})}, "useful"),
        (PLAIN, {"gpu": UNKNOWN}, "useful"),
        (PLAIN, {"gpu": replace(H100, peak_tflops={})}, "useful"),
        (replace(PLAIN, bytes=None), {}, "memory"),
        (replace(PLAIN, bytes=None, shape_note="packed"), {"shape": None}, "memory"),
        (PLAIN, {"gpu": replace(H100, bandwidth_gbps=None)}, "memory"),
        (replace(PLAIN, alignment_bytes={}), {}, "alignment"),
        (replace(PLAIN, alignment_bytes={"a": None}), {}, "alignment"),
        (replace(PLAIN, tile_eff_frac=None), {}, "tile"),
        (replace(PLAIN, tile_eff_frac=None), {"shape": replace(SHAPE, groups=4, grouped="m")}, "wave"),
        (replace(PLAIN, tile_eff_frac=1.0, wave_eff_frac=None), {"gpu": replace(H100, sms=None)}, "wave"),
        (replace(PLAIN, tile_eff_frac=1.0, wave_eff_frac=None, split_k=None), {}, "wave"),
        (replace(PLAIN, tile_eff_frac=1.0, wave_eff_frac=None, split_k=None),
         {"kernel": replace(parse_kernel_name(PLAIN.kernel), split_k=True)}, "wave"),  # type: ignore[type-var]
        (replace(PLAIN, tile_eff_frac=1.0, wave_eff_frac=None, split_k=1),
         {"kernel": replace(parse_kernel_name(PLAIN.kernel), cluster=None)}, "wave"),  # type: ignore[type-var]
        (replace(PLAIN, tile_eff_frac=1.0, wave_eff_frac=None, split_k=1),
         {"kernel": replace(parse_kernel_name(PLAIN.kernel), cluster="4x4")}, "wave"),  # type: ignore[type-var]
    ],
)  # fmt: skip
def test_why_a_part_of_a_loss_is_not_known(
    row: GemmRow, given: dict[str, Any], part: str, said: Listener
) -> None:
    said(why(row, **given)[part])


def lost(kind: Any, ms: float, **given: Any) -> GemmRow:
    return replace(gemm(1, 8, 8, 8), kind=kind, time_ms_per_step=ms, lost_ms=Lost(**given))


def test_the_sums_of_a_step_keep_what_is_not_judged_apart(said: Listener) -> None:
    found = gemm_time([
        lost("gemm", 10.0, useful=4.0, alignment=1.0, wave=2.0, other=3.0, helpers=0.5, ceiling=1.5),
        lost("gemm", 4.0, useful=1.0, other=3.0, unsplit="too_small"),
        lost("gemm", 1.0, other=1.0, useful=0.0, helpers=0.5, ceiling=0.5, unsplit="too_small"),
        lost("gemm", 2.0, unsplit="faster"),
        lost("gemm", 1.0, why={"useful": "no type"}), lost("gemm", 1.5, why={"useful": "no shape"}),
        lost("gemm", 0.25), lost("gemm", 0.0, why={"useful": "never ran"}), lost("attention", 7.0),
    ])  # fmt: skip
    assert (found.total, found.useful, found.other, found.alignment, found.wave) == (
        19.75,
        5.0,
        7.0,
        1.0,
        2.0,
    )
    assert (found.not_judged, found.attention, found.small, found.helpers) == (4.75, 7.0, 3.0, 1.0)
    assert found.untold == {"alignment": 0.0, "wave": 0.0, "tile": 10.0}
    assert found.judged_frac["wave"] == 10 / 19.75 and found.judged_frac["tile"] == 0.0
    assert found.at_least == []
    said(found.not_judged_why)
    bound = gemm_time([lost("gemm", 1.0, useful=0.5, alignment=0.5, at_least=["alignment"])])
    assert bound.at_least == ["alignment"]
    assert gemm_time([]).judged_frac["wave"] == 0.0


class OneStep(Ladders):
    """Throughput at an alignment as it is given."""

    def __init__(self, mid: float | None, high: float | None) -> None:
        self.found = LadderStep(2, None if mid is None else 0.9 * mid, mid, high, "model", "made up")

    def step(self, dtype: str, operands: Mapping[str, int | None]) -> LadderStep:
        return self.found


@pytest.mark.parametrize(
    ("mid", "high", "frac", "at_most"),
    [(0.6, 0.7, 0.6, False), (None, 0.7, 0.7, True), (None, 1.0, None, False), (None, None, None, False)],
)
def test_a_throughput_that_is_only_bounded_loses_at_least_so_much(
    mid: float | None, high: float | None, frac: float | None, at_most: bool, said: Listener
) -> None:
    row = replace(PLAIN, alignment_bytes={"a": 2, "b": 16, "c": None})
    parsed = parse_kernel_name(row.kernel)
    found = with_lost(row, shape=SHAPE, kernel=parsed, gpu=H100, ladders=OneStep(mid, high))
    assert (found.alignment_frac, found.alignment_at_most) == (frac, at_most)
    said(found.alignment_basis, found.lost_ms.why.get("alignment"))
    best = replace(row, alignment_bytes={"a": 128, "b": 128})
    whole = with_lost(best, shape=SHAPE, kernel=parsed, gpu=H100, ladders=OneStep(1.0, 1.0))
    said(whole.alignment_basis)


def test_the_split_rests_on_the_mean_call() -> None:
    """10 calls in 4 ms, two of them a step: 400 us each, as much of 0.8 ms per step."""
    row = replace(
        PLAIN, calls=10, time_ms=4.0, time_ms_per_step=0.8, helper_ms=0.5, stall_ms=0.3,
        overlap_ms_per_step=0.04, clock_ms_per_step=0.02, flops=98.9e9, bytes=67e6, alignment_frac=0.9,
        wave_eff_frac=0.8, tile_eff_frac=0.7,
    )  # fmt: skip
    found = call_facts(row, H100)
    assert (found.time_us, found.helper_us, found.stall_us) == pytest.approx((400.0, 50.0, 30.0))
    assert (found.overlap_us, found.clock_us) == pytest.approx((20.0, 10.0))
    # 98.9 G at 989 T/s, 67 M at 3350 G/s
    assert (found.math_us, found.memory_us) == pytest.approx((100.0, 20.0))
    assert found.ceiling_us == pytest.approx(98.9e9 / 794.5e6)
    assert (found.alignment, found.wave, found.tile) == (0.9, 0.8, 0.7)
    moved = call_facts(replace(row, bytes=670e6), replace(H100, measured_bandwidth_gbps=2680.0))
    assert (moved.memory_us, moved.ceiling_us) == pytest.approx((200.0, 250.0))
    assert call_facts(row, replace(H100, measured_tflops={"bf16": 500.0})).ceiling_us == pytest.approx(197.8)
    never = call_facts(replace(row, calls=0, time_ms_per_step=0.0), H100)
    assert (never.time_us, never.helper_us, never.stall_us, never.overlap_us) == (0.0, 0.0, 0.0, 0.0)
    always = call_facts(replace(row, beside=beside(None, 3.0, 0.0)), H100)
    assert (always.overlap_us, always.alignment, always.wave, always.tile) == (None, None, None, None)
    little = call_facts(replace(row, beside=beside(None, 0.1, 0.0)), H100)
    assert (little.overlap_us, little.wave) == (None, 0.8)
    assert call_facts(replace(row, bytes=None), H100).memory_us is None
    assert call_facts(replace(row, kind="attention"), H100).math_us is None
    assert call_facts(row, replace(H100, peak_tflops={}, ceiling_tflops={}, bandwidth_gbps=None)) == replace(
        found, math_us=None, memory_us=None, ceiling_us=None
    )


# the CPU's part


def test_what_the_cpu_does_while_the_gpu_waits(tmp_path: Path) -> None:
    """A kernel runs in 4 of the 10 us of fetching a batch; a copy from pageable memory runs alone for 3."""
    events = [
        op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts=0, dur=10),
        op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts=1, dur=2),
        op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", ts=20, dur=5),
        launch(1, ts=0), kernel("k", ts=6, dur=8),
        kernel("Memcpy HtoD (Pageable -> Device)", ts=30, dur=3, correlation=2) | {"cat": "gpu_memcpy"},
        kernel("Memcpy DtoH (Device -> Pinned)", ts=40, dur=3, correlation=3) | {"cat": "gpu_memcpy"},
    ]  # fmt: skip
    trace = read(tmp_path, document(events))
    first = min(int(table.ts_ns.min()) for table in (trace.kernels, trace.ops))
    windows: Any = SimpleNamespace(
        start_ns=ints(first, first + 25_000), end_ns=ints(first + 25_000, first + 60_000)
    )
    found = host_waits(trace, link(trace), windows)
    assert {one.kind: one.ms_per_step for one in found} == pytest.approx(
        {"data": 0.003, "workers": 0.0025, "pageable": 0.0015}
    )
    assert {one.calls_per_step for one in found} == {0.5}  # one call within another counts once
