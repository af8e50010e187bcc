"""Communication: which collective, for what, and how much of it hides behind compute."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kept import analyzed
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tests.trace.tools import document, kernel, launch, need_shared, op, read, shared_traces
from tracelens.analysis import Analysis, analyze_trace
from tracelens.attribution import attribute
from tracelens.attribution.collectives import Call, collective_named
from tracelens.attribution.communication import Communication, _Place, decide_purpose, find_communication
from tracelens.hardware.collectives import bus_factor
from tracelens.results import CommunicationRow
from tracelens.trace import Trace, link
from tracelens.words import COLLECTIVES, COMPONENTS, EVIDENCE, PURPOSES, Collective

MODEL = ModelSpec(hidden=768, heads=12, layers=2, vocab=50257, sequence=512, micro_batch=4)
JOB = [path for path in shared_traces() if path.parent.name.startswith("job_h100")]
DISTRIBUTED = [path for path in shared_traces() if path.name.startswith(("d1_", "d1b_", "d9_"))] + JOB

CALL = Call("all_reduce", "bf16", 1 << 20, 1 << 21, "default_pg", 8, None)
PLACE = _Place(
    call=CALL, launched=True, phase="forward", fsdp=False, tensor=False, hook=False, backward_of="",
    ddp=False, experts=None, exchange=False, module=False, modules_known=True, size="neither",
)  # fmt: skip


def communication_of(trace: Trace) -> Communication:
    links = link(trace)
    return find_communication(trace, links, attribute(trace, links))


@cache
def analysis_of(path: Path) -> Analysis:
    return analyzed(path)


def exposed_by_hand(trace: Trace, component: Any) -> list[int]:
    """Nanosecond by nanosecond in sorted order: the same with plain loops, one event at a time."""
    kernels = trace.kernels
    communicates = [COMPONENTS[code] == "communication" for code in component.tolist()]
    is_kernel = [trace.symbols[code] == "kernel" for code in kernels.category.tolist()]
    spans = list(
        zip(
            kernels.ts_ns.tolist(),
            (kernels.ts_ns + kernels.dur_ns).tolist(),
            kernels.device.tolist(),
            strict=True,
        )
    )
    computing = sorted(
        span for span, mine, real in zip(spans, communicates, is_kernel, strict=True) if real and not mine
    )
    out = []
    for (begin, end, device), mine in zip(spans, communicates, strict=True):
        if not mine:
            continue
        at, free = begin, 0
        for start, stop, where in computing:
            if where != device or stop <= at:
                continue
            if start >= end:
                break
            free += max(0, start - at)
            at = max(at, stop)
        out.append(free + max(0, end - at))
    return out


@pytest.mark.parametrize("path", DISTRIBUTED[:4] + DISTRIBUTED[-1:], ids=lambda path: path.name[:5])
def test_exposed_time_is_that_of_a_walk_over_the_events(path: Path) -> None:
    analysis = analysis_of(path)
    assert analysis.trace and analysis.links and analysis.attribution
    found = find_communication(analysis.trace, analysis.links, analysis.attribution)
    keep = slice(0, 150)  # the walk is slow
    by_hand = exposed_by_hand(analysis.trace, analysis.attribution.component)
    assert found.exposed_ns[keep].tolist() == by_hand[keep]


@pytest.mark.parametrize("path", DISTRIBUTED, ids=lambda path: path.name[:5])
def test_nothing_is_dropped_and_exposed_and_hidden_are_the_whole(path: Path) -> None:
    analysis = analysis_of(path)
    rows = analysis.report.communication
    component = [row for row in analysis.report.components if row.component == "communication"]
    assert sum(row.calls for row in rows) == sum(row.kernels for row in component)
    assert round(sum(row.time_ms for row in rows) * 1e6) == sum(row.time_ns for row in component)
    for row in rows:
        assert row.exposed_ms + row.hidden_ms == pytest.approx(row.time_ms, abs=1e-9)
        assert 0 <= row.exposed_ms <= row.time_ms
        assert row.collective in COLLECTIVES
        assert row.purpose in PURPOSES
        assert row.evidence in EVIDENCE
        assert (row.purpose == "unknown") == (row.evidence == "none")
        assert row.why


@pytest.mark.parametrize("path", JOB, ids=lambda path: path.name[:5])
def test_a_sharded_optimizer_and_gradient_hooks_are_told_apart(path: Path) -> None:
    analysis = analysis_of(path)
    rows = analysis.report.communication
    calls = Counter[tuple[str, str]]()
    for row in rows:
        if row.purpose != "unknown":
            calls[row.collective, row.purpose] += row.calls
    assert calls == {
        ("reduce_scatter", "data-parallel gradients"): 12,  # launched by AccumulateGrad's hooks
        ("reduce_scatter", "optimizer shards"): 16,
        ("all_gather", "optimizer shards"): 28,
    }
    unknown = [row for row in rows if row.purpose == "unknown"]
    assert len({row.why for row in unknown}) == 1
    assert analysis.links and analysis.attribution
    communicates = analysis.attribution.component == COMPONENTS.index("communication")
    assert sum(row.calls for row in unknown) == (communicates & (analysis.links.kernel_node < 0)).sum()
    assert {row.group for row in rows if row.purpose != "unknown"} == {"default_pg"}
    assert {row.group_size for row in rows if row.purpose != "unknown"} == {8}


def test_before_the_change_the_optimizer_reduced_the_gradients() -> None:
    before, after = (analysis_of(need_shared(name)).report.communication for name in ("d1_", "d1b_"))

    def gradients(rows: list[CommunicationRow]) -> int:
        return sum(row.calls for row in rows if row.purpose == "data-parallel gradients")

    assert (gradients(before), gradients(after)) == (0, 12)


def test_bandwidth_is_that_of_the_bytes_of_the_call() -> None:
    rows = analysis_of(need_shared("d1_")).report.communication
    row = next(row for row in rows if row.collective == "all_gather" and row.dtype == "fp32")
    assert row.bytes_per_call == 37748736 * 4  # the whole array, in the output
    assert row.algorithm_gbps is not None
    assert row.bus_gbps is not None
    assert row.algorithm_gbps == pytest.approx(row.bytes_per_call * row.calls / row.time_ms / 1e6)
    assert row.bus_gbps == pytest.approx(row.algorithm_gbps * 7 / 8)
    assert 100 < row.bus_gbps < 450  # what NVLink of an H100 carries: 450 GB/s each way


def test_without_arguments_the_collective_is_known_and_its_purpose_is_not() -> None:
    (row,) = analysis_of(need_shared("d9_")).report.communication
    assert (row.collective, row.purpose, row.calls) == ("all_reduce", "unknown", 2020)
    assert row.bytes_per_call is row.bus_gbps is None
    assert row.why


def test_gradient_buckets_of_a_simulated_job(tmp_path: Path) -> None:
    synthetic = build(MODEL, Options(steps=2, all_reduce=True))
    trace = read(tmp_path, synthetic.text())
    report = analyze_trace(trace, shape_search=False).report
    assert {(row.collective, row.purpose, row.evidence) for row in report.communication} == {
        ("all_reduce", "data-parallel gradients", "op")
    }
    truth = [row for row in synthetic.truth if row.component == "communication"]
    assert sum(row.calls for row in report.communication) == len(truth)
    assert report.communication[0].bus_gbps == pytest.approx(360, rel=0.01)  # as simulated


def test_the_summary_counts_what_the_rows_count(tmp_path: Path) -> None:
    """Calls that do not overlap each other, all launched in a step: both ways give the same."""
    trace = read(tmp_path, build(MODEL, Options(steps=2, all_reduce=True)).text())
    report = analyze_trace(trace, shape_search=False).report
    rows = sum(row.exposed_ms_per_step for row in report.communication)
    assert report.summary.exposed_communication_ms == pytest.approx(rows)
    assert 0 < rows < sum(row.time_ms_per_step for row in report.communication)


def test_copies_hide_nothing_and_another_device_hides_nothing(tmp_path: Path) -> None:
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    copy = kernel("Memcpy DtoD", ts=10, dur=100) | {"cat": "gpu_memcpy"}
    events = [
        kernel(nccl, ts=10, dur=100, stream=9),
        copy,
        kernel("gemm", ts=20, dur=10),
        kernel("gemm", ts=25, dur=10, stream=8),
        kernel("gemm", ts=10, dur=100, device=1),
    ]
    found = communication_of(read(tmp_path, document(events)))
    assert found.exposed_ns.tolist() == [85_000]


def test_a_kernel_without_its_launch_keeps_its_collective(tmp_path: Path, said: Listener) -> None:
    trace = read(tmp_path, document([kernel("ncclDevKernel_SendRecv(x)"), kernel("gemm", ts=50)]))
    found = communication_of(trace)
    assert found.calls[0].collective == "send/recv"
    said(found.purposes[0].why)


def test_the_range_says_more_than_the_kernel(tmp_path: Path) -> None:
    """NCCL runs an all-to-all as sends and receives."""
    events = [
        op("nccl:all_to_all", ts=1, dur=20) | {"cat": "user_annotation"},
        launch(ts=5),
        kernel("ncclDevKernel_SendRecv(x)", ts=40),
    ]
    assert communication_of(read(tmp_path, document(events))).calls[0].collective == "all_to_all"


def test_an_engines_operator_says_more_than_a_generic_kernel(tmp_path: Path) -> None:
    """vLLM calls NCCL past torch, RCCL names all kernels alike: 161 calls of a public Llama-70B recording."""
    name = "ncclDevKernel_Generic_2(ncclDevKernelArgsStorage<4096ul>)"
    trace = read(tmp_path, document([op("vllm::all_reduce", ts=0, dur=9), launch(), kernel(name)]))
    assert [call.collective for call in communication_of(trace).calls] == ["all_reduce"]


@pytest.mark.parametrize(
    ("name", "collective"),
    [
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("allreduce", "all_reduce"),
        ("nccl:all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("nccl:recv 0<-1", "send/recv"),
        ("nccl:reduce", "reduce"),
        ("void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)", "all_to_all"),
        ("nccl:coalesced", None),
        ("ncclDevKernel_Generic(x)", None),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>()", "all_reduce"),
        ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>()", "all_to_all"),
        ("void dpsk::ep::internode::cached_notify<false>()", None),
    ],
)
def test_names_of_collectives(name: str, collective: str | None) -> None:
    assert collective_named(name) == collective


@pytest.mark.parametrize(
    ("kernel_name", "collective"),
    [
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>()", "all_reduce"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>()", "all_reduce"),
        ("void dpsk::ep::internode::dispatch<false, 8, false, 8>()", "all_to_all"),
        ("void dpsk::ep::internode::notify_dispatch<false, 8>()", "other"),
    ],
)
def test_what_sends_without_nccl_lays_out_no_data_for_a_collective(
    tmp_path: Path, kernel_name: str, collective: str
) -> None:
    trace = read(tmp_path, document([launch(1, ts=5), kernel(kernel_name, ts=9, dur=7, correlation=1)]))
    found = communication_of(trace)
    assert [found.calls[at].collective for at in found.call] == [collective]


def place(*, collective: Collective = "all_reduce", elements: int | None = 1 << 20, **given: Any) -> _Place:
    group = given.pop("group", "default_pg")
    call = replace(CALL, collective=collective, elements=elements, group=group)
    return replace(PLACE, call=call, **given)


@pytest.mark.parametrize(
    ("seen", "purpose", "evidence"),
    [
        (place(collective="all_gather", fsdp=True), "FSDP parameter gather", "annotation"),
        (place(collective="reduce_scatter", fsdp=True), "FSDP gradient scatter", "annotation"),
        (place(fsdp=True, phase="backward", hook=True), "data-parallel gradients", "annotation"),
        (place(phase="backward", hook=True), "data-parallel gradients", "op"),
        (place(phase="backward", size="weight"), "data-parallel gradients", "structure"),
        (place(size="activation"), "tensor parallel", "structure"),
        (place(tensor=True, size="both"), "tensor parallel", "op"),
        (place(group="mesh_tp"), "tensor parallel", "annotation"),
        (place(group="TENSOR_MODEL_PARALLEL_GROUP", phase="backward"), "tensor parallel", "annotation"),
        (place(collective="all_to_all", experts="module_stack"), "expert all-to-all", "module_stack"),
        (place(collective="all_to_all", group="mesh_ep"), "expert all-to-all", "annotation"),
        (place(collective="send/recv", group="pp", module=True), "pipeline", "annotation"),
        (place(collective="send/recv"), "pipeline", "structure"),
        (place(collective="all_gather", phase="optimizer"), "optimizer shards", "annotation"),
        (place(elements=1, phase="optimizer"), "loss or metric", "structure"),
        (place(elements=1, phase="other"), "loss or metric", "structure"),
        # what could be two things is neither
        (place(size="both"), "unknown", "none"),
        (place(collective="all_to_all"), "unknown", "none"),  # embeddings, sequences or experts
        (place(collective="send/recv", module=True), "unknown", "none"),  # ring attention, perhaps
        (place(collective="send/recv", modules_known=False), "unknown", "none"),
        (place(phase="optimizer"), "unknown", "none"),
        (place(ddp=True), "unknown", "none"),
        (place(launched=False, hook=True), "unknown", "none"),
        (place(collective="all_gather", fsdp=True, phase="backward"), "FSDP parameter gather", "annotation"),
        (place(group="EXPERT_DATA_PARALLEL_GROUP", collective="all_to_all"), "unknown", "none"),
    ],
)  # fmt: skip
def test_purposes_follow_from_what_is_seen(seen: _Place, purpose: str, evidence: str) -> None:
    decided = decide_purpose(seen)
    assert (decided.purpose, decided.evidence) == (purpose, evidence)
    assert decided.why


def test_messages_are_matched_with_the_models_tensors(tmp_path: Path, said: Listener) -> None:
    """An all-reduce in the forward, as large as the output of the GEMM before it."""

    def events(elements: int) -> list[dict[str, Any]]:
        group = {"Collective name": "allreduce", "In msg nelems": elements, "dtype": "BFloat16"}
        sizes = {"Input Dims": [[512, 1024], [1024, 4096]], "Sequence number": 5}
        return [
            op("aten::mm", ts=1, dur=8, **sizes, **{"Input type": ["c10::BFloat16"] * 2}),
            op("record_param_comms", ts=20, dur=20, **group),
            launch(ts=25),
            op("autograd::engine::evaluate_function: MmBackward0", ts=60),
            kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", ts=70, **group),
        ]

    def purpose(elements: int) -> str:
        (found,) = communication_of(read(tmp_path, document(events(elements)))).purposes
        said(found.why)
        return found.purpose

    # no gradient is asked for around the collective: its phase is "other", where activations prove nothing
    assert purpose(512 * 4096) == "unknown"
    assert purpose(1024 * 4096) == "data-parallel gradients"
    assert purpose(512 * 4096 + 1) == "unknown"


def test_bus_bandwidth_follows_nccl_tests() -> None:
    assert bus_factor("all_reduce", 2) == 1.0
    assert bus_factor("all_to_all", 4) == 0.75
    assert bus_factor("all_gather", None) is None
    assert bus_factor("packing", 8) is None


def test_no_communication_no_rows(tmp_path: Path) -> None:
    trace = read(tmp_path, build(MODEL, Options(steps=1)).text())
    assert analyze_trace(trace, shape_search=False).report.communication == []
    assert len(communication_of(trace)) == 0
    assert np.array_equal(communication_of(trace).exposed_ns, [])


@pytest.mark.parametrize(
    ("dims", "concrete", "elements", "ranks"),
    [
        ([[[4, 2048, 64]], [], []], ["", "337", "8"], 4 * 2048 * 64, 8),  # PyTorch 2.1
        ([[[8], [4, 2]], [], []], ["", "337", "[]"], 16, None),
        ([[4, 2], []], ["", "8"], 8, 8),
        ([[], []], ["337", "1"], None, None),  # of a wait
    ],
)
def test_before_fields_of_their_own_the_operators_inputs_tell_the_message(
    dims: list[Any], concrete: list[str], elements: int | None, ranks: int | None, tmp_path: Path
) -> None:
    sums = "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    events = [
        op("record_param_comms", ts=1, dur=50, **{"Input Dims": dims, "Concrete Inputs": concrete}),
        launch(1, ts=10),
        kernel(sums, ts=60, dur=20, correlation=1),
    ]
    found = communication_of(read(tmp_path, document(events)))
    (call,) = found.calls
    assert (call.dtype, call.elements, call.group_size) == ("fp16", elements, ranks)
    assert call.bytes == (2 * elements if elements else None)


@pytest.mark.parametrize(
    ("name", "dims", "elements"),
    [
        ("c10d::reduce_scatter_tensor_coalesced_", [[[4, 64]], [[8, 64]], [], [], []], 512),
        ("c10d::allgather_into_tensor_coalesced_", [[[8, 64]], [[4, 64]], []], 512),
        ("c10d::_allgather_base_", [[8, 64], [4, 64], [], [], []], 512),
        (
            "_c10d_functional::all_gather_into_tensor",
            [[4, 64], [], []],
            None,
        ),  # its result is as many times that
    ],
)
def test_the_operator_of_a_collective_tells_the_message(
    name: str, dims: list[Any], elements: int | None, tmp_path: Path
) -> None:
    """DTensor's collectives in PyTorch 2.3 and 2.4 write no ``record_param_comms``."""
    kind = "ReduceScatter_Sum_f32" if "reduce" in name else "AllGather"
    sends = f"ncclDevKernel_{kind}_RING_LL(ncclDevComm*, unsigned long, ncclWork*)"
    events = [
        op(name, ts=1, dur=50, **{"Input Dims": dims, "Concrete Inputs": ["", "", "600000"]}),
        launch(1, ts=10),
        kernel(sends, ts=60, dur=20, correlation=1),
    ]
    (call,) = communication_of(read(tmp_path, document(events))).calls
    assert (call.elements, call.group_size) == (elements, None)
