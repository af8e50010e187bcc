"""Phases where a name alone would mislead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.trace.tools import event, kernel, launch, read
from tracelens.attribution import attribute
from tracelens.trace import link
from tracelens.words import COMPONENTS, PHASES


def _span(name: str, ts: int, dur: int, category: str = "cpu_op", *, number: int = -1) -> dict[str, Any]:
    args = {} if number < 0 else {"Sequence number": number, "Fwd thread id": int("evaluate" in name)}
    return event(category, name, ts=ts, dur=dur, args=args)


def _kernel(correlation: int, ts: int, name: str = "fill") -> dict[str, Any]:
    return kernel(name, ts=ts, correlation=correlation, grid=[8, 1, 1], block=[128, 1, 1])


def _phases(folder: Path, events: list[dict[str, Any]]) -> list[str]:
    trace = read(folder, json.dumps({"traceEvents": events}))
    return [PHASES[code] for code in attribute(trace, link(trace)).phase.tolist()]


def _work(
    correlation: int, ts: int, *, number: int = -1, op: str = "aten::fill_", name: str = "fill"
) -> list[dict[str, Any]]:
    return [
        _span(op, ts, 4, number=number),
        launch(correlation, ts=ts + 1),
        _kernel(correlation, ts + 50, name),
    ]


def test_a_library_that_labels_its_backward_runs_no_forward_again(tmp_path: Path) -> None:
    evaluate = "autograd::engine::evaluate_function: ExchangeBackward"
    events = [
        _span("## exchange ##", 0, 20, "user_annotation"),
        *_work(1, 5, number=1),
        _span(evaluate, 100, 30, number=1),
        _span("## exchange backward ##", 101, 20, "user_annotation"),
        *_work(2, 105),
    ]
    assert _phases(tmp_path, events) == ["forward", "backward"]


def test_a_backward_that_sends_as_its_forward_does_runs_no_forward_again(tmp_path: Path) -> None:
    """pytorch/torchrec All2All_Pooled_Wait.backward calls all_to_all_single, which has a number too."""
    send = {"op": "c10d::alltoall_base_", "name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"}
    evaluate = "autograd::engine::evaluate_function: All2All_Pooled_WaitBackward"
    sent = [*_work(1, 5, number=1, **send), _span(evaluate, 100, 30, number=1)]
    assert _phases(tmp_path, [*sent, *_work(2, 105, number=2, **send)]) == ["forward", "backward"]
    again = [*_work(2, 105, number=2, **send), *_work(3, 115, number=3)]
    computed = [*_work(4, 15, number=2), *sent, *again]
    assert _phases(tmp_path, computed) == ["forward", "forward", "recompute", "recompute"]


def test_gradients_that_a_loop_sums_itself_are_of_the_backward(tmp_path: Path) -> None:
    """for p in parameters: dist.all_reduce(p.grad), with the number that the next forward gets, too."""
    sums = {"op": "c10d::allreduce_", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"}
    evaluate = "autograd::engine::evaluate_function: MBackward"
    step = [
        *_work(1, 5, number=1),
        *_work(2, 25, number=2, **sums),  # of a tensor-parallel forward
        *_work(3, 35, number=2),
        *(_span(evaluate, 120 - n, 1, number=n) for n in (1, 2)),
        *_work(4, 205, number=3, **sums),
    ]
    later = [*_work(5, 305, number=3), *_work(6, 325, number=4, **sums)]
    later += [_span(evaluate, 420, 1, number=3)]
    assert _phases(tmp_path, [*step, *later]) == ["forward"] * 3 + ["backward", "forward", "forward"]


def test_launches_without_operators_are_no_forward(tmp_path: Path) -> None:
    alone = [launch(1, ts=6), _kernel(1, 55), launch(2, ts=16), _kernel(2, 65)]
    assert _phases(tmp_path, alone) == ["other", "other"]
    assert _phases(tmp_path, [*_work(3, 5), *alone[:2]]) == ["forward", "forward"]


def test_nodes_of_autograd_are_the_backward_where_nothing_numbers_them(tmp_path: Path) -> None:
    events = [*_work(1, 5), _span("CudnnConvolutionBackward", 100, 30), *_work(2, 105), *_work(3, 150)]
    assert _phases(tmp_path, events) == ["other", "backward", "other"]


def test_zero_grad_is_the_optimizers_though_its_operators_have_numbers(tmp_path: Path) -> None:
    events = [
        *_work(1, 5, number=1),
        _span("Optimizer.zero_grad#SGD.zero_grad", 100, 30, "user_annotation"),
        *_work(2, 105, number=2),
    ]
    assert _phases(tmp_path, events) == ["forward", "optimizer"]


def test_what_has_no_gradient_amid_a_forward_is_part_of_it(tmp_path: Path) -> None:
    evaluate = "autograd::engine::evaluate_function: MulBackward0"
    events = [
        *_work(1, 5),  # before the model: nothing says what of
        *_work(2, 20, number=1),
        *_work(3, 40),
        *_work(4, 60, number=2),
        _span(evaluate, 100, 30, number=2),
        *_work(5, 105),
        *_work(6, 200),  # between a backward and the next forward
        *_work(7, 220, number=3),
    ]
    assert _phases(tmp_path, events) == [
        "other",
        "forward",
        "forward",
        "forward",
        "backward",
        "other",
        "forward",
    ]


def test_what_runs_among_a_forward_that_runs_again_is_of_it(tmp_path: Path) -> None:
    """Positions have no gradient; the node that asked for them is of a norm, and they are none."""
    evaluate = "autograd::engine::evaluate_function: RMSNormFunctionBackward"
    events = [
        *_work(1, 1, number=1, op="aten::mul"),
        *_work(2, 6, op="aten::arange", name="arange"),
        *_work(3, 11, number=2, op="aten::mul"),
        *_work(8, 16, number=3, op="RMSNormFunction", name="scale"),
        _span(evaluate, 100, 60, number=3),
        _span("RMSNormFunctionBackward", 101, 58),
        *_work(4, 105, number=4, op="aten::mul"),
        *_work(5, 115, op="aten::arange", name="arange"),
        *_work(6, 125, number=5, op="aten::mul"),
        *_work(7, 140, op="aten::add", name="masked"),
    ]
    trace = read(tmp_path, json.dumps({"traceEvents": events}))
    found = attribute(trace, link(trace))
    parts = zip(found.phase.tolist(), found.component.tolist(), strict=True)
    again, own = ("recompute", "unattributed"), ("backward", "norm")
    assert [(PHASES[phase], COMPONENTS[part]) for phase, part in parts][4:] == [again] * 3 + [own]
