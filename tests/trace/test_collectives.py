"""The arguments of collectives: found beside the collective's name, wherever and however they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trace.tools import document, kernel, need_shared, op, read
from tracelens.trace import Trace, read_trace
from tracelens.trace.collectives import Collective

ARGUMENTS: dict[str, Any] = {
    "Collective name": "_allgather_base",
    "dtype": "BFloat16",
    "In msg nelems": 128,
    "Out msg nelems": 1024,
    "Process Group Name": "3",
    "Process Group Description": "mesh_tp",
    "Group size": 8,
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
}
MEANT = Collective("_allgather_base", "BFloat16", 128, 1024, "3", "mesh_tp", 8, tuple(range(8)))


def of_ops(trace: Trace) -> list[Collective | None]:
    return [trace.details.collective(code) for code in trace.ops.collective.tolist()]


def of_kernels(trace: Trace) -> list[Collective | None]:
    return [trace.details.collective(code) for code in trace.kernels.collective.tolist()]


def test_operator_and_kernel_carry_them_and_other_events_none(tmp_path: Path) -> None:
    events = [
        op("aten::mm", ts=1),
        op("record_param_comms", ts=20, **ARGUMENTS),
        kernel("ncclDevKernel_AllGather_RING_LL", **ARGUMENTS),
        kernel("ncclDevKernel_AllGather_RING_LL", ts=30),
        kernel("gemm", ts=40),
    ]
    trace = read(tmp_path, document(events))
    assert of_ops(trace) == [None, MEANT]
    assert of_kernels(trace) == [MEANT, None, None]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "beside",
    [
        {"Concrete Inputs": ["}", "{", "{}"]},
        {"Process Group Description": 'a"}{"b'},
        {"Input Dims": [[2] * 8] * 500},  # the object begins far from the name
    ],
)
def test_what_stands_beside_them_does_not_matter(tmp_path: Path, beside: dict[str, Any], first: bool) -> None:
    arguments = beside | ARGUMENTS | beside if first else {**ARGUMENTS, **beside}
    trace = read(tmp_path, document([op("record_param_comms", **arguments), op(ts=50)]))
    found = of_ops(trace)[0]
    assert found is not None
    assert (found.name, found.out_elements, found.group_size) == ("_allgather_base", 1024, 8)
    assert found.description == arguments["Process Group Description"]


def test_alike_arguments_are_kept_once(tmp_path: Path) -> None:
    events = [op("record_param_comms", ts=10 * at, **ARGUMENTS, **{"Ev Idx": at}) for at in range(50)]
    trace = read(tmp_path, document(events))
    assert len(set(trace.ops.collective.tolist())) == 1


def test_an_event_of_odd_types_keeps_its_collective(tmp_path: Path) -> None:
    odd = op("record_param_comms", **ARGUMENTS) | {"id": 1.5}  # read with patience
    trace = read(tmp_path, document([odd, op(ts=50)]))
    assert of_ops(trace)[0] == MEANT


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Process Group Ranks", "[0, 1, ..., 511]"),
        ("Process Group Ranks", "[]]"),
        ("In msg nelems", -1),
        ("In msg nelems", True),
        ("Group size", "many"),
        ("dtype", 5),
    ],
)
def test_a_value_that_says_nothing_is_unknown(tmp_path: Path, key: str, value: object) -> None:
    trace = read(tmp_path, document([op("record_param_comms", **(ARGUMENTS | {key: value}))]))
    found = of_ops(trace)[0]
    assert found is not None
    assert found.name == "_allgather_base"
    field = {"Process Group Ranks": "ranks", "In msg nelems": "in_elements", "Group size": "group_size"}
    assert getattr(found, field.get(key, key)) is None


@pytest.mark.parametrize(
    ("written", "meant"),
    [("[10, 30]", (10, 30)), ([10, 30], (10, 30)), ("[]", None), ("[1, 2, ..., 9]", None), ("[-1]", None)],
)
def test_sizes_for_each_rank(tmp_path: Path, written: object, meant: object) -> None:
    trace = read(tmp_path, document([op("record_param_comms", **(ARGUMENTS | {"In split size": written}))]))
    found = of_ops(trace)[0]
    assert found is not None and (found.in_parts, found.out_parts) == (meant, None)


def test_helpers_give_the_same(tmp_path: Path) -> None:
    events = [
        op("record_param_comms", ts=10 * at, **(ARGUMENTS | {"In msg nelems": at % 7})) for at in range(9000)
    ]
    text = json.dumps({"traceEvents": events})
    alone, helped = (read(tmp_path, text, processes=count) for count in (1, 3))
    assert of_ops(alone) == of_ops(helped)
    assert len(set(of_ops(alone))) == 7


def test_a_real_recording_has_them_on_operators_and_kernels() -> None:
    trace = read_trace(need_shared("d1_"))
    ops = [found for found in of_ops(trace) if found is not None]
    kernels = [found for found in of_kernels(trace) if found is not None]
    assert len(ops) == len(kernels) == 56
    assert {found.description for found in ops} == {"default_pg"}
    assert sorted(map(repr, ops)) == sorted(map(repr, kernels))


def test_a_recording_of_2022_has_none() -> None:
    assert set(of_ops(read_trace(need_shared("d9_")))) == {None}
