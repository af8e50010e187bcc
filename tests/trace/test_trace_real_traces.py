"""Real recordings of every age, read and linked."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.trace.tools import contents, gpu_events, names, need_shared, shared_traces
from tracelens.trace import link, read_trace


@pytest.mark.parametrize("path", shared_traces() or [None], ids=lambda path: path.name if path else "absent")
def test_a_real_trace_loads_whole_and_links(path: Path | None) -> None:
    if path is None:
        pytest.skip("the real traces are not beside the repository")
    trace = read_trace(path)
    assert trace.warnings == []
    assert not trace.partial
    top = json.loads(gzip.decompress(path.read_bytes()))
    events = top if isinstance(top, list) else top["traceEvents"]
    expected = gpu_events(events)
    assert trace.events == len(events)
    assert names(trace, trace.kernels) == [event["name"] for event in expected]
    assert trace.kernels.dur_ns.tolist() == [round(event.get("dur", 0) * 1000) for event in expected]

    launched = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver", "Runtime") and "correlation" in e.get("args", {})
    }
    links = link(trace)
    unlinked = [
        c for c, at in zip(trace.kernels.correlation.tolist(), links.kernel_launch, strict=True) if at < 0
    ]
    assert all(correlation not in launched for correlation in unlinked)
    assert len(unlinked) == sum(event["args"].get("correlation") not in launched for event in expected)


def test_kernels_whose_external_id_repeats_the_correlation_are_linked_by_launch() -> None:
    trace = read_trace(need_shared("d4_"))
    assert (trace.kernels.external_id == trace.kernels.correlation).all()
    links = link(trace)
    assert links.by_external_id == 0
    assert (links.kernel_op >= 0).all()


def test_helpers_change_nothing_on_a_large_trace() -> None:
    path = need_shared("d9_")
    assert contents(read_trace(path, processes=1)) == contents(read_trace(path, processes=2))


def test_frames_on_process_zero_hold_the_operators_of_the_main_thread() -> None:
    """d6 is a VGG: its convolutions must lie in Conv2d modules."""
    trace = read_trace(need_shared("d6_"))
    links = link(trace)
    modules = (
        links.mask(links.frames_at) & trace.symbols.where(lambda t: t.startswith("nn.Module: "))[links.name]
    )
    nearest = links.forest.nearest(modules)
    convolutions = trace.symbols.where(lambda t: t == "aten::conv2d")[trace.ops.name]
    inside = nearest[links.ops_at][convolutions]
    assert convolutions.any()
    assert {trace.symbols[int(links.name[node])].split("_")[0] for node in inside} == {"nn.Module: Conv2d"}
