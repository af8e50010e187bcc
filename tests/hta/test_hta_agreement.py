"""Our tables give holistic-trace-analysis's own results, wherever its own loader gives it the right rows.

Its rounding is off here. Two of its faults are taken out before comparing, because ours must not repeat
them: operators with an argument "stream" (Triton's) count as GPU events there, and gaps below zero are
added up where kernels overlap on a stream.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracelens.analysis import Analysis, analyze
from tracelens.hta.frames import idle_frame, path_frame, queue_frame, temporal_frame
from tracelens.hta.library import library, quiet
from tracelens.hta.tables import Tables, tables
from tracelens.trace.nesting import covered

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hta") is None, reason="the extra hta is not installed"
)

ROOT = Path(__file__).resolve().parents[2]
SHARED = sorted((ROOT.parent / "shared" / "traces").glob("d*.json.gz"))
#: d9 alone would take its loader longer than all others together; d1b is much like d1.
FILES = [
    *(path for path in SHARED if not path.name.startswith(("d9", "d1b"))),
    *sorted((ROOT / "sample_traces").glob("*vocab50257*.json.gz")),
]
GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}


def _name(path: Path) -> str:
    return path.name.partition(".")[0]


@pytest.fixture(scope="module", params=FILES, ids=_name)  # a file is read once for all its tests
def file(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def path(file: Path) -> Iterator[Path]:
    with quiet():  # of each test: pytest takes back what a wider fixture does to warnings
        yield file


@cache
def _own(path: Path) -> Any:
    """What its own constructor makes of the file, with every step and exact times."""
    hta = library()
    from hta.configs.env_options import HTAEnvOptions

    options = HTAEnvOptions.instance()
    before = options.disable_ns_rounding()
    options.set_disable_ns_rounding(True)
    try:
        own = hta.analysis(
            trace_files={0: str(path)}, trace_dir=str(path.parent), include_last_profiler_step=True
        )
    finally:
        options.set_disable_ns_rounding(before)
    frame, texts = own.t.traces[0], own.t.symbol_table.get_sym_table()
    on_gpu = frame["cat"].map(lambda code: texts[code] in GPU)
    frame.loc[~on_gpu, "stream"] = -1
    return own


@cache
def _ours(path: Path) -> tuple[Analysis, Tables]:
    """Our rows, of the GPU events that its loader kept."""
    own, analysis = _own(path), analyze(path, shape_search=False)
    assert analysis.trace is not None and analysis.links is not None and analysis.attribution is not None
    frame, kernels = own.t.traces[0], analysis.trace.kernels
    kept = frame[frame["stream"].ne(-1)]
    whole = np.issubdtype(kept["ts"].dtype, np.integer)
    ts = (
        (kept["ts"].to_numpy(np.int64) + int(own.t.min_ts)) * 1000
        if whole
        else np.rint((kept["ts"].to_numpy() + own.t.min_ts) * 1000).astype(np.int64)
    )
    keys = set(zip(ts.tolist(), kept["stream"].tolist(), strict=True))
    counted = np.array(
        [key in keys for key in zip(kernels.ts_ns.tolist(), kernels.stream.tolist(), strict=True)]
    )
    assert counted.sum() == len(kept)
    built = tables(analysis.trace, analysis.links, analysis.attribution, library(), counted=counted)
    return analysis, built


def test_the_time_idle_computing_and_moving_data_is_its_own(path: Path) -> None:
    _, built = _ours(path)
    ours = temporal_frame(built.analysis(library())).iloc[0]
    theirs = _own(path).get_temporal_breakdown(visualize=False).iloc[0]
    for name, its in [
        ("span_ms", "kernel_time(us)"),
        ("idle_ms", "idle_time(us)"),
        ("compute_ms", "compute_time(us)"),
        ("non_compute_ms", "non_compute_time(us)"),
    ]:
        assert ours[name] == pytest.approx(theirs[its] / 1000, abs=1e-4), name
    overlap = _own(path).get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
    assert ours["overlap_frac"] == pytest.approx(overlap / 100, abs=1.1e-4, nan_ok=True)


def test_idle_time_has_its_causes(path: Path) -> None:
    _, built = _ours(path)
    ours = idle_frame(built.analysis(library()), built)
    theirs, _ = _own(path).get_idle_time_breakdown(ranks=[0], visualize=False)
    rows: list[Any] = list(ours.itertuples())
    ours_us = {(row.stream, row.cause): row.time_ms * 1000 for row in rows}
    theirs_us = {
        (int(row.stream), row.idle_category): row.idle_time
        for row in theirs.itertuples()
        if row.idle_time > 0
    }
    assert ours_us == pytest.approx(theirs_us, abs=0.1)


def test_idle_time_of_a_stream_is_exactly_what_no_event_of_it_covers(path: Path) -> None:
    """Where events of a stream overlap it gives less, or less than nothing; else the two are the same."""
    _, built = _ours(path)
    ours = idle_frame(built.analysis(library(), built.without_overlap()), built)
    gpu = built.frame[built.frame["stream"] > 0]
    for number in sorted(set(gpu["stream"].tolist())):
        rows = gpu[gpu["stream"] == number]
        begin, end = rows["ts"].to_numpy(), rows["end"].to_numpy()
        first, last = np.array([begin.min()]), np.array([end.max()])
        idle_ns = int(last[0] - first[0] - covered(begin, end, first, last)[0])
        device, stream = built.streams[number - 1]
        mine = ours[(ours["device"] == device) & (ours["stream"] == stream)]
        assert mine["time_ms"].sum() == pytest.approx(idle_ns / 1e6, abs=1e-9)
        assert mine["frac"].sum() == pytest.approx(1 if idle_ns else 0)


def test_queues_are_its_own(path: Path) -> None:
    _, built = _ours(path)
    ours = queue_frame(built.analysis(library()), built)
    found = _own(path).get_queue_length_summary([0])
    if found is None:  # one launch of a graph for all kernels
        assert ours.empty
        return
    theirs = found["queue_length"].droplevel("rank")
    assert ours["stream"].tolist() == theirs.index.tolist()
    assert (ours["launches"] * 2).tolist() == theirs["count"].tolist()
    for name, its in (("mean", "mean"), ("std", "std"), ("median", "50%"), ("highest", "max")):
        assert ours[name].to_numpy(float) == pytest.approx(theirs[its].to_numpy(float)), name


def test_the_critical_path_of_a_step_is_its_own(path: Path) -> None:
    """Its doubles of microseconds can make a child end after its parent; then it has none, and we do."""
    analysis, built = _ours(path)
    assert analysis.links is not None
    steps = analysis.links.steps
    if not steps.marked:
        pytest.skip("no step is marked, and it would take the whole file")
    window = (int(steps.start_ns[0]), int(steps.end_ns[0]))
    if _own(path).get_queue_length_summary([0]) is None:
        pytest.skip("the library makes no path where one launch of a graph starts all kernels")
    ours = path_frame(built.analysis(library(), built.in_ticks(*window)))
    assert ours["frac"].sum() == pytest.approx(1)
    try:
        theirs = path_frame(_own(path), annotation=f"ProfilerStep#{steps.index[0]}", unit_ns=1000)
    except AssertionError as why:
        if "Could not find runtime index" not in str(why):
            raise
        pytest.skip("its own loader finds no launch of a copy in this file")
    if len(theirs):
        assert dict(zip(ours["bound_by"], ours["time_ms"], strict=True)) == pytest.approx(
            dict(zip(theirs["bound_by"], theirs["time_ms"], strict=True)), abs=1e-5
        )


def test_most_real_steps_have_a_path_in_its_own_loader_too() -> None:
    """Else the test above compares nothing."""
    if not SHARED:
        pytest.skip("no shared/traces beside this checkout")
    with quiet():
        first = next(path for path in FILES if path.name.startswith("d1_"))
        assert len(path_frame(_own(first), annotation="ProfilerStep#10", unit_ns=1000))
