"""From each GPU event back to its launch, operator, ranges and step; from backward to forward."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.synthetic import Event, ModelSpec, Options, Synthetic, build
from tests.trace.tools import document, kernel, launch, op, read
from tracelens.trace import Links, Trace, launched_by_several, link

SMALL = ModelSpec(hidden=128, heads=2, layers=2, vocab=512, sequence=64, micro_batch=2)
LLAMA = replace(SMALL, family="llama", kv_heads=1, tied=False)
CASES = {
    "gpt2": (SMALL, Options()),
    "gpt2, everything": (
        SMALL,
        Options(
            ranges=True, all_reduce=True, prelaunched=5, accumulate=2, attention="math", optimizer="foreach"
        ),
    ),
    "llama": (LLAMA, Options(steps=3, zero_to_none=False, accumulate=2, prelaunched=1)),
    "llama without frames": (LLAMA, Options(attention="math", module_frames=False, ranges=True)),
}

Linked = tuple[Synthetic, Trace, Links]


@pytest.fixture(scope="module", params=CASES)
def linked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Linked:
    synthetic = build(*CASES[request.param])
    trace = read(tmp_path_factory.mktemp("links"), synthetic.text())
    return synthetic, trace, link(trace)


def read_and_link(folder: Path, events: list[Any]) -> tuple[Trace, Links]:
    trace = read(folder, document(events))
    assert not trace.partial
    return trace, link(trace)


def range_(name: str, *, ts: int, dur: int, tid: int = 1, cat: str = "user_annotation") -> dict[str, Any]:
    return op(name, ts=ts, dur=dur, tid=tid) | {"cat": cat}


def frame(name: str, *, ts: int, dur: int, pid: int = 9, tid: int = 1) -> dict[str, Any]:
    return op(name, ts=ts, dur=dur, tid=tid) | {"cat": "python_function", "pid": pid}


# --- kernels, against the builder's own record ------------------------------------------------------


def test_every_kernel_is_there_and_every_launched_one_is_linked(linked: Linked) -> None:
    synthetic, trace, links = linked
    truth = {row.correlation: row for row in synthetic.truth}
    assert len(trace.kernels) == len(truth)
    launched = np.array([truth[c].launched for c in trace.kernels.correlation.tolist()])
    assert ((links.kernel_launch >= 0) == launched).all()
    assert ((links.kernel_node >= 0) == launched).all()
    assert int((~launched).sum()) == synthetic.options.prelaunched
    row = links.kernel_launch[launched]
    assert (trace.launches.correlation[row] == trace.kernels.correlation[launched]).all()
    assert (links.kernel_node[launched] == row + links.launches_at.start).all()
    assert links.by_external_id == 0


def test_the_operator_is_the_innermost_around_the_launch(linked: Linked) -> None:
    """The builder writes the External id of that operator into the launch; linking does not read it."""
    synthetic, trace, links = linked
    is_op = {e.args["External id"] for e in synthetic.records if e.cat == "cpu_op"}
    compared = 0
    for kernel_row, launch_row in enumerate(links.kernel_launch.tolist()):
        if launch_row < 0:
            assert links.kernel_op[kernel_row] == -1
            continue
        wanted = int(trace.launches.external_id[launch_row])
        if wanted in is_op:
            assert trace.ops.external_id[links.kernel_op[kernel_row]] == wanted
            compared += 1
    assert compared > 0.9 * len(trace.kernels)


def test_the_step_is_the_one_that_launched_the_kernel(linked: Linked) -> None:
    synthetic, trace, links = linked
    step = {row.correlation: row.step if row.launched else None for row in synthetic.truth}
    first, count = synthetic.options.first_step, synthetic.options.steps
    assert links.steps.index == list(range(first, first + count))
    assert links.steps.marked
    assert (links.steps.end_ns[:-1] <= links.steps.start_ns[1:]).all()
    found = [links.steps.index[at] if at >= 0 else None for at in links.kernel_step.tolist()]
    assert found == [step[c] for c in trace.kernels.correlation.tolist()]


def test_a_kernel_that_runs_after_its_step_has_ended_still_belongs_to_it(tmp_path: Path) -> None:
    """With a busy GPU the host is far ahead: the start of a kernel says nothing about its step."""
    synthetic = build(ModelSpec(hidden=1024, heads=8, layers=1, vocab=50304), Options(steps=3))
    trace = read(tmp_path, synthetic.text())
    links = link(trace)
    step = {row.correlation: row.step for row in synthetic.truth}
    found = [links.steps.index[at] for at in links.kernel_step.tolist()]
    assert found == [step[c] for c in trace.kernels.correlation.tolist()]
    late = trace.kernels.ts_ns > links.steps.end_ns[links.kernel_step]
    assert late.sum() > 10


def test_backward_operators_are_tied_to_the_forward_operator_their_arrow_starts_at(linked: Linked) -> None:
    synthetic, trace, links = linked
    row_of = {int(external): row for row, external in enumerate(trace.ops.external_id.tolist())}
    ops = [e for e in synthetic.records if e.cat == "cpu_op"]
    arrows: dict[int, dict[str, Event]] = {}
    for event in ops:
        if event.flow is not None and event.flow[2] == "fwdbwd":
            arrows.setdefault(event.flow[1], {})[event.flow[0]] = event
    assert len(arrows) > 40
    for ends in arrows.values():
        forward, backward = (row_of[ends[phase].args["External id"]] for phase in "sf")
        assert links.backward_to_forward[backward] == forward


def test_all_operators_of_a_backward_node_share_its_forward_and_no_others_have_one(linked: Linked) -> None:
    _, trace, links = linked
    tied = links.backward_to_forward >= 0
    assert ((trace.ops.forward_thread > 0) & (trace.ops.sequence >= 0))[tied].all()
    assert tied[(trace.ops.forward_thread > 0) & (trace.ops.sequence >= 0)].all()
    forward = links.backward_to_forward[tied]
    assert (trace.ops.sequence[forward] == trace.ops.sequence[tied]).all()
    assert (trace.ops.forward_thread[forward] <= 0).all()
    assert (trace.ops.ts_ns[forward] < trace.ops.ts_ns[tied]).all()


def test_nodes_enclose_their_children_on_their_thread(linked: Linked) -> None:
    _, _, links = linked
    child = np.flatnonzero(links.forest.parent >= 0)
    parent = links.forest.parent[child]
    assert (links.thread[child] == links.thread[parent]).all()
    assert (links.ts_ns[child] >= links.ts_ns[parent]).all()


def test_node_names_are_those_of_their_tables(linked: Linked) -> None:
    _, trace, links = linked
    assert (links.name[links.ops_at] == trace.ops.name).all()
    assert (links.name[links.ranges_at] == trace.ranges.name).all()
    assert (links.name[links.launches_at] == trace.launches.name).all()
    assert (links.name[links.frames_at] == trace.frames.name[links.frame_row]).all()
    sizes = Counter(part.stop - part.start for part in (links.ops_at, links.ranges_at))
    assert sum(sizes.elements()) == len(trace.ops) + len(trace.ranges)
    slices = (links.ops_at, links.ranges_at, links.frames_at, links.launches_at)
    assert all(a.stop == b.start for a, b in pairwise(slices))


# --- launches that are missing, shared, or named by another id ---------------------------------------


def test_a_kernel_without_correlation_or_launch_is_kept_unlinked(tmp_path: Path) -> None:
    bare = kernel("bare")
    del bare["args"]["correlation"]
    events = [op(), launch(5), kernel("linked", correlation=5), kernel("gone", correlation=99), bare]
    _, links = read_and_link(tmp_path, events)
    assert links.kernel_launch.tolist() == [0, -1, -1]
    assert links.kernel_node.tolist()[1:] == [-1, -1]
    assert links.kernel_op.tolist() == [0, -1, -1]


def test_missing_correlations_on_both_sides_do_not_meet(tmp_path: Path) -> None:
    bare, silent = kernel(), launch()
    del bare["args"]["correlation"], silent["args"]["correlation"]
    _, links = read_and_link(
        tmp_path, [op(), silent, bare, kernel(correlation=-1), launch(0), kernel(correlation=0)]
    )
    assert links.kernel_launch.tolist() == [-1, -1, 1]


def test_a_trace_of_gpu_events_alone_links_nothing_and_is_one_step(tmp_path: Path) -> None:
    _, links = read_and_link(tmp_path, [kernel(f"k{i}", ts=100 + i, dur=2, correlation=i) for i in range(4)])
    assert links.kernel_launch.tolist() == [-1] * 4
    assert links.kernel_step.tolist() == [0] * 4
    assert (links.steps.index, links.steps.marked) == ([0], False)
    assert (links.steps.start_ns.tolist(), links.steps.end_ns.tolist()) == ([100_000], [105_000])


def test_an_empty_trace_links(tmp_path: Path) -> None:
    _, links = read_and_link(tmp_path, [])
    assert len(links.kernel_launch) == len(links.forest.parent) == 0


def test_the_kernels_of_a_graph_all_hang_from_its_launch(tmp_path: Path) -> None:
    graph = launch(7, name="cudaGraphLaunch")
    _, links = read_and_link(
        tmp_path, [op("replay"), graph, *(kernel(f"k{i}", correlation=7) for i in range(5))]
    )
    assert links.kernel_launch.tolist() == [0] * 5
    assert links.kernel_op.tolist() == [0] * 5


def test_an_external_id_that_repeats_the_correlation_links_nothing(tmp_path: Path) -> None:
    """Some exporters write it so; operator 5 has nothing to do with correlation 5."""
    ops = [op(f"op {i}", ts=10 * i, **{"External id": i}) for i in range(10)]
    kernels = [kernel(f"k{i}", ts=200 + i, correlation=i, **{"External id": i}) for i in range(10)]
    launched = launch(3, ts=71)  # inside operator 7
    _, links = read_and_link(tmp_path, [*ops, launched, *kernels])
    assert links.kernel_op.tolist() == [-1, -1, -1, 7, -1, -1, -1, -1, -1, -1]
    assert links.by_external_id == 0


def test_without_a_launch_the_external_id_names_the_operator(tmp_path: Path) -> None:
    ops = [op(f"op {i}", ts=10 * i, **{"External id": 100 + i}) for i in range(5)]
    kernels = [
        kernel("orphan", correlation=1, **{"External id": 103}),
        kernel("launched", correlation=2, **{"External id": 103}),
        kernel("stranger", correlation=3, **{"External id": 777}),
        kernel("none", correlation=4, **{"External id": 0}),
    ]
    _, links = read_and_link(tmp_path, [*ops, launch(2, ts=41), *kernels])
    assert links.kernel_op.tolist() == [3, 4, -1, -1]
    assert links.kernel_launch.tolist() == [-1, 0, -1, -1]
    assert links.by_external_id == 1


def numbered(event: dict[str, Any], number: int) -> dict[str, Any]:
    """As Kineto's old tracer for AMD GPUs writes it: the correlation id is the External id."""
    return event | {"args": {"External id": number}}


def test_external_ids_of_launches_stand_for_correlations_that_nothing_has(tmp_path: Path) -> None:
    ops = [op(f"op {i}", ts=10 * i, **{"External id": 20 + i}) for i in range(3)]
    launches = [numbered(launch(ts=11), 20), numbered(launch(ts=21), 25)]
    kernels = [numbered(kernel(), number) for number in (20, 25, 21)]
    _, links = read_and_link(tmp_path, [*ops, *launches, *kernels])
    assert links.kernel_launch.tolist() == [0, 1, -1]
    assert links.kernel_op.tolist() == [1, 2, -1]  # 21 is the operator 1 by chance: no operator's number
    assert links.by_external_id == 0


def test_launches_that_share_an_external_id_have_that_of_their_operator(tmp_path: Path) -> None:
    ops = [op(f"op {i}", ts=10 * i, **{"External id": 20 + i}) for i in range(3)]
    launches = [numbered(launch(ts=11 + i), 21) for i in range(2)]
    _, links = read_and_link(tmp_path, [*ops, *launches, numbered(kernel(), 22)])
    assert links.kernel_launch.tolist() == [-1]
    assert links.kernel_op.tolist() == [2]


def test_ranges_of_the_2021_format_are_no_operators(tmp_path: Path) -> None:
    ranges = [
        op(name, ts=ts, dur=50) | {"cat": "Operator"}
        for name, ts in (("ProfilerStep#4", 0), ("Optimizer.step#SGD.step", 30), ("ProfilerStep#5", 100))
    ]
    work = op("aten::add_", ts=31, dur=5) | {"cat": "Operator"}
    started = launch(1, ts=32) | {"cat": "Runtime"}
    ran = kernel(ts=40, correlation=1) | {"cat": "Kernel"}
    trace, links = read_and_link(tmp_path, [*ranges, work, started, ran])
    assert (links.steps.index, links.steps.marked) == ([4, 5], True)
    assert (len(trace.ops), len(trace.ranges)) == (1, 3)
    assert links.kernel_step.tolist() == [0]


def test_a_launch_on_another_thread_is_not_in_the_operator(tmp_path: Path) -> None:
    _, links = read_and_link(tmp_path, [op(ts=0, dur=100, tid=1), launch(1, ts=50, tid=2), kernel()])
    assert links.kernel_launch.tolist() == [0]
    assert links.kernel_op.tolist() == [-1]


# --- steps -------------------------------------------------------------------------------------------


def test_work_outside_every_step_is_in_none(tmp_path: Path) -> None:
    steps = [range_("ProfilerStep#8", ts=200, dur=50), range_("ProfilerStep#7", ts=100, dur=100)]
    shadow = range_("ProfilerStep#9", ts=0, dur=1000, cat="gpu_user_annotation")
    times = [50, 100, 199, 200, 249, 250, 900]
    launches = [launch(i + 1, ts=ts, dur=0) for i, ts in enumerate(times)]
    kernels = [kernel(ts=2000, correlation=i + 1) for i in range(len(times))]
    _, links = read_and_link(tmp_path, [*steps, shadow, *launches, *kernels, kernel(ts=120, correlation=99)])
    assert links.steps.index == [7, 8]
    assert links.kernel_step.tolist() == [-1, 0, 0, 1, 1, -1, -1, -1]


def test_a_name_that_only_begins_like_a_step_is_none(tmp_path: Path) -> None:
    ranges = [
        range_(name, ts=0, dur=100)
        for name in ("ProfilerStep#", "ProfilerStep#x", "ProfilerStep#1 (warm up)")
    ]
    _, links = read_and_link(tmp_path, [*ranges, kernel()])
    assert not links.steps.marked


# --- ranges and frames ---------------------------------------------------------------------------------


def enclosing(trace: Trace, links: Links, kernel_row: int) -> list[str]:
    """The names around a kernel's launch, innermost first."""
    node, out = int(links.kernel_node[kernel_row]), []
    while (node := int(links.forest.parent[node])) >= 0:
        out.append(trace.symbols[int(links.name[node])])
    return out


def test_a_range_that_begins_inside_its_own_enter_frame_still_holds_the_work(tmp_path: Path) -> None:
    """``record_function.__enter__`` is a Python frame that ends long before the range it began."""
    events = [
        frame("nn.Module: Block_0", ts=0, dur=200),
        frame("torch/autograd/profiler.py(750): __enter__", ts=10, dur=5),
        range_("attention", ts=12, dur=100),
        op(ts=50, dur=10),
        launch(1, ts=52),
        frame("torch/autograd/profiler.py(760): __exit__", ts=108, dur=6),
        kernel(),
    ]
    trace, links = read_and_link(tmp_path, events)
    assert enclosing(trace, links, 0) == ["aten::mm", "attention", "nn.Module: Block_0"]


def test_the_shadow_of_a_range_on_the_gpu_encloses_no_host_work(tmp_path: Path) -> None:
    shadow = range_("attention", ts=0, dur=500, cat="gpu_user_annotation")
    trace, links = read_and_link(tmp_path, [shadow, op(ts=50, dur=10), launch(1, ts=52), kernel()])
    assert enclosing(trace, links, 0) == ["aten::mm"]


def test_frames_on_process_zero_belong_to_the_thread_whose_work_they_hold(tmp_path: Path) -> None:
    """PyTorch before 2.1 wrote the frames of every thread to (0, 0)."""
    work = [op(ts=100 * i + 20, dur=10) for i in range(5)]
    idle = [op("elsewhere", ts=10_000 + i, dur=1, tid=2) for i in range(5)]
    frames = [frame(f"nn.Module: Linear_{i}", ts=100 * i, dur=90, pid=0, tid=0) for i in range(5)]
    trace, links = read_and_link(tmp_path, [*frames, *work, *idle, launch(1, ts=222), kernel()])
    assert enclosing(trace, links, 0) == ["aten::mm", "nn.Module: Linear_2"]


def test_frames_that_fit_two_threads_equally_are_given_to_neither(tmp_path: Path) -> None:
    frames = [frame(f"nn.Module: Linear_{i}", ts=100 * i, dur=90, pid=0, tid=0) for i in range(5)]
    work = [op(ts=100 * i + 20, dur=10, tid=tid) for i in range(5) for tid in (1, 2)]
    trace, links = read_and_link(tmp_path, [*frames, *work, launch(1, ts=222), kernel()])
    assert enclosing(trace, links, 0) == ["aten::mm"]


# --- backward and forward --------------------------------------------------------------------------------


def forward_op(sequence: int, *, tid: int, ts: int, name: str = "aten::mm") -> dict[str, Any]:
    return op(name, ts=ts, dur=5, tid=tid, **{"Sequence number": sequence, "Fwd thread id": 0})


def backward_op(sequence: int, logical: int, *, ts: int, tid: int = 30) -> dict[str, Any]:
    args = {"Sequence number": sequence, "Fwd thread id": logical}
    return op("autograd::engine::evaluate_function: MmBackward0", ts=ts, dur=5, tid=tid, **args)


def arrow(phase: str, number: int, at: dict[str, Any]) -> dict[str, Any]:
    place = {"ph": phase, "id": number, "pid": 9, "tid": at["tid"], "ts": at["ts"], "bp": "e"}
    return place | {"cat": "fwdbwd", "name": "fwdbwd"}


def tied(trace: Trace, links: Links) -> dict[int, tuple[int, int]]:
    """Start of each backward operator -> (thread, start) of its forward operator, in us."""
    out = {}
    for row in np.flatnonzero(trace.ops.forward_thread > 0).tolist():
        forward = int(links.backward_to_forward[row])
        place = (trace.threads[int(trace.ops.thread[forward])][1], int(trace.ops.ts_ns[forward]) // 1000)
        out[int(trace.ops.ts_ns[row]) // 1000] = place if forward >= 0 else (-1, -1)
    return out


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_two_forward_threads_with_the_same_numbers_are_told_apart_by_arrows(
    tmp_path: Path, order: tuple[int, int]
) -> None:
    """Sequence numbers count per thread, so two threads that run replicas use the same ones."""
    forwards = {tid: [forward_op(i, tid=tid, ts=10 * i + tid) for i in range(6)] for tid in order}
    logical = {1: 2, 2: 1}
    backwards = {
        tid: [backward_op(i, logical[tid], ts=1000 - 10 * i + tid) for i in range(6)] for tid in order
    }
    arrows = [
        arrow(phase, 10 * tid + i, ends[tid][i])
        for tid in order
        for i in range(6)
        for phase, ends in (("s", forwards), ("f", backwards))
    ]
    listed = [e for tid in order for e in (*forwards[tid], *backwards[tid])]
    trace, links = read_and_link(tmp_path, [*listed, *arrows, arrow("f", 999, backwards[1][0])])
    expected = {1000 - 10 * i + tid: (tid, 10 * i + tid) for tid in order for i in range(6)}
    assert tied(trace, links) == expected


def test_without_arrows_the_thread_that_shares_most_numbers_is_the_forward_thread(tmp_path: Path) -> None:
    """A data loader's thread has sequence numbers of its own, from the same start."""
    events = [forward_op(i, tid=2, ts=10 * i) for i in range(3)]
    events += [forward_op(i, tid=1, ts=10 * i + 1) for i in range(20)]
    events += [backward_op(i, 1, ts=1000 - 10 * i) for i in range(20)]
    trace, links = read_and_link(tmp_path, events)
    assert tied(trace, links) == {1000 - 10 * i: (1, 10 * i + 1) for i in range(20)}


def test_of_the_operators_with_one_number_the_last_to_begin_made_the_node(tmp_path: Path) -> None:
    """The number is read before it is used up: aten::linear carries it, and the aten::addmm inside it too."""
    outer = op("aten::linear", ts=10, dur=50, **{"Sequence number": 4, "Fwd thread id": 0})
    view = forward_op(4, tid=1, ts=12, name="aten::t")
    made = forward_op(4, tid=1, ts=20, name="aten::addmm")
    trace, links = read_and_link(tmp_path, [outer, view, made, backward_op(4, 1, ts=500)])
    assert tied(trace, links) == {500: (1, 20)}


def test_a_number_used_again_means_the_latest_forward_before(tmp_path: Path) -> None:
    events = [forward_op(4, tid=1, ts=10), backward_op(4, 1, ts=100), forward_op(4, tid=1, ts=200)]
    trace, links = read_and_link(tmp_path, [*events, backward_op(4, 1, ts=300), backward_op(9, 1, ts=310)])
    assert tied(trace, links) == {100: (1, 10), 300: (1, 200), 310: (-1, -1)}


def test_a_backward_whose_forward_is_not_in_the_file_is_tied_to_nothing(tmp_path: Path) -> None:
    events = [backward_op(4, 1, ts=100), forward_op(4, tid=1, ts=200), op(ts=300)]
    trace, links = read_and_link(tmp_path, events)
    assert tied(trace, links) == {100: (-1, -1)}
    assert links.backward_to_forward.tolist() == [-1, -1, -1]


def test_what_the_engine_runs_behind_a_node_is_of_its_forward_where_a_hook_took_the_number(
    tmp_path: Path,
) -> None:
    """With a hook before the node the engine's range has no number (FSDP2); what the hook runs has none."""
    engine = op("autograd::engine::evaluate_function: AddmmBackward0", ts=100, dur=90, tid=30)
    hook = op("aten::cat", ts=105, dur=5, tid=30)
    around = op("mlp.up", ts=112, dur=60, tid=30)  # as ``tracelens capture`` writes a module's range
    node = backward_op(4, 1, ts=115) | {"name": "AddmmBackward0", "dur": 20}
    sums = [op("aten::sum", ts=ts, tid=30) for ts in (140, 180)]
    later = op("aten::sum", ts=200, tid=30)
    forward = forward_op(4, tid=1, ts=10, name="aten::addmm")
    _, links = read_and_link(tmp_path, [forward, engine, hook, around, node, *sums, later])
    assert links.backward_to_forward.tolist() == [-1, -1, -1, -1, 0, 0, 0, -1]


@pytest.mark.parametrize(("certain", "linked"), [([9, 9], "first"), ([9, 8], None), ([], None)])
def test_an_id_of_two_processes_is_of_the_one_that_has_the_gpu(
    tmp_path: Path, certain: list[int], linked: str | None
) -> None:
    """``certain``: the processes of the launches with an id of their own."""
    events = [op("first", tid=1), launch(1, tid=1), op("second", tid=2) | {"pid": 8}]
    events += [launch(1, tid=2) | {"pid": 8}, kernel(correlation=1)]
    for number, process in enumerate(certain, 10):
        events += [launch(number, tid=process) | {"pid": process}, kernel(correlation=number, ts=20 + number)]
    trace = read(tmp_path, document(events))
    links = link(trace)
    row = int(links.kernel_op[0])
    assert (trace.symbols[int(trace.ops.name[row])] if row >= 0 else None) == linked
    open_ = launched_by_several(trace, links.kernel_launch)
    assert open_.tolist() == [linked is None, *[False] * len(certain)]


def test_a_number_that_only_another_process_has_is_not_its_launch(tmp_path: Path) -> None:
    """What began before the recording has no launch in it; a process on another GPU counts as far."""
    events = [op("other", tid=2) | {"pid": 8}, launch(1, tid=2) | {"pid": 8}, kernel(correlation=1)]
    events += [kernel(correlation=2, ts=40, device=1), launch(2, tid=2) | {"pid": 8}]
    for number in range(10, 30):
        events += [launch(number, tid=1), kernel(correlation=number, ts=20 + number)]
    trace = read(tmp_path, document(events))
    assert link(trace).kernel_launch[0] < 0
