"""Ranges of the backward, made of what the profiler noted: whose they are, and where they begin and end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.capture.kineto import ENGINE, Event, node, noted
from tests.synthetic import ModelSpec, Options, build
from tracelens.capture.backward import NodeRange, backward_ranges

ADDMM = "AddmmBackward0"


def test_a_nodes_module_is_that_of_the_thread_which_made_it() -> None:
    """Threads number their nodes from 0 each: the same number twice, on the engine's own thread."""
    threads = [noted(100, (0, "a"), (5, "a.b"), (7, None)), noted(200, (0, "again"))]
    events = [
        *(Event("aten::addmm", 1, 100, number=5), Event("aten::addmm", 2, 200, number=5)),
        *node(ADDMM, 2, 200, start=1000, dur=50, forward=1, number=5),
        *node(ADDMM, 2, 200, start=2000, dur=50, forward=2, number=5),
        *node(ADDMM, 2, 200, start=3000, dur=50, forward=1, number=8),  # made outside all modules
        *node(ADDMM, 2, 200, start=4000, dur=50, forward=3, number=5),  # by a thread nothing is known of
    ]
    assert backward_ranges(events, threads) == [
        NodeRange("a.b", 200, 1099, 250),  # begins behind the hooks, ends within the engine's range
        NodeRange("again", 200, 2099, 250),
    ]


def test_a_hook_before_the_node_takes_the_number_from_the_engines_range() -> None:
    """FSDP2 gathers parameters there: only the node says whose it is."""
    engine, run = node(ADDMM, 1, 100, start=1000, dur=50, forward=1, number=5)
    engine.fields |= {"fwd_thread_id": 0, "sequence_nr": -1}
    gather = Event("c10d::_allgather_base_", 1, 100, start=1010, dur=80)
    events = [Event("aten::addmm", 1, 100, number=5), engine, gather, run]
    assert backward_ranges(events, [noted(100, (0, "head"))]) == [NodeRange("head", 100, 1099, 250)]


def test_a_thread_id_used_twice_tells_nothing() -> None:
    events = [Event("aten::addmm", 1, 100), *node(ADDMM, 1, 100, start=0, dur=9, forward=1, number=5)]
    assert len(backward_ranges(events, [noted(100, (0, "a"))])) == 1
    assert backward_ranges(events, [noted(100, (0, "a")), noted(100, (0, "b"))]) == []


def test_nodes_made_before_the_window_are_nobodys() -> None:
    events = [Event("aten::addmm", 1, 100), *node(ADDMM, 1, 100, start=0, dur=9, forward=1, number=3)]
    assert backward_ranges(events, [noted(100, (4, "a"))]) == []


def test_a_sum_of_gradients_from_two_nodes_is_in_no_module() -> None:
    events = [
        Event("aten::mul", 1, 100, number=5),
        *node("MulBackward0", 2, 200, start=1000, dur=50, forward=1, number=5),
        Event("aten::add", 2, 200, start=1120, dur=9),  # the node's own
        Event("aten::sum", 2, 200, start=1170, dur=9),  # over the dimensions that were broadcast
        Event("aten::add_", 2, 200, start=1200, dur=9),  # to what another node gave
        Event("aten::add", 3, 300, start=1180, dur=9),  # of another thread
    ]
    (found,) = backward_ranges(events, [noted(100, (0, "norm"))])
    assert (found.start_ns, found.start_ns + found.duration_ns) == (1099, 1199)


def test_a_backward_within_a_node_keeps_both() -> None:
    """Reentrant checkpoints."""
    outer = node("CheckpointFunctionBackward", 1, 100, start=1000, dur=900, forward=1, number=5)
    inner = node(ADDMM, 1, 100, start=1200, dur=50, forward=1, number=9)
    events = [Event("aten::addmm", 1, 100), *outer, *inner, Event("aten::add", 1, 100, start=1400, dur=9)]
    assert backward_ranges(events, [noted(100, (0, "block"), (9, "block.up"))]) == [
        NodeRange("block", 100, 1099, 1100),
        NodeRange("block.up", 100, 1299, 100),
    ]


def test_an_engine_range_without_its_node_has_no_range() -> None:
    events = [Event("aten::mm", 1, 100), Event(ENGINE + ADDMM, 1, 100, dur=50, forward=1, number=5)]
    assert backward_ranges(events, [noted(100, (0, "a"))]) == []


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_analysis_says_the_same_of_every_kernel_as_without_them(tmp_path: Path, family: Any) -> None:
    spec = ModelSpec(family=family, hidden=256, heads=4, layers=2, vocab=1000, sequence=128)
    simulated = build(spec, Options(ranges=True, module_frames=False))
    trace = json.loads(simulated.text())
    events = [event for event in trace["traceEvents"] if event.get("cat") == "cpu_op"]
    threads = {event["tid"]: at for at, event in enumerate(events, 1)}
    main = next(e["tid"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation")
    kineto = [
        Event(
            event["name"],
            threads[event["tid"]],
            event["tid"],
            start=round(event["ts"] * 1000),
            dur=round(event["dur"] * 1000),
            forward=threads[main] if event["args"].get("Fwd thread id") else 0,
            number=event["args"].get("Sequence number", -1),
        )
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"]))
    ]
    made = backward_ranges(kineto, [noted(main, *_labels(trace))])
    assert len(made) > 50
    plain, named = tmp_path / "plain.json", tmp_path / "named.json"
    plain.write_text(json.dumps(trace))
    trace["traceEvents"] += [
        {"ph": "X", "cat": "cpu_op", "pid": events[0]["pid"], "tid": one.thread, "ts": one.start_ns / 1000,
         "dur": one.duration_ns / 1000, "name": one.name, "args": {"tracelens": "backward"}}
        for one in made
    ]  # fmt: skip
    named.write_text(json.dumps(trace))
    without, with_them = tracelens.analyze(plain).kernels, tracelens.analyze(named).kernels
    for column in ("component", "phase", "role"):
        assert with_them[column].fillna("").tolist() == without[column].fillna("").tolist()


def _labels(trace: dict[str, Any]) -> list[tuple[int, str | None]]:
    """Per autograd number the innermost range around the forward operator that has it."""
    ranges = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and not event["name"].startswith("ProfilerStep")
    ]
    labels: dict[int, str | None] = {}
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        if "Sequence number" in arguments and not arguments.get("Fwd thread id"):
            around = [
                one["name"]
                for one in sorted(ranges, key=lambda one: float(one["dur"]))
                if one["ts"] <= event["ts"] and event["ts"] + event["dur"] <= one["ts"] + one["dur"]
            ]
            labels.setdefault(arguments["Sequence number"], around[0] if around else None)
    return sorted(labels.items())
