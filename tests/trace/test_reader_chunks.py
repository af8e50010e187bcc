"""Where the text is cut into chunks, and who decodes them, changes nothing in the tables."""

from __future__ import annotations

import gc
import gzip
import random
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.trace.tools import contents, document, kernel, launch, names, op, read, small_trace
from tracelens.errors import InputError
from tracelens.trace import pool, read_trace
from tracelens.trace.columns import ChunkDecoder
from tracelens.trace.helper import start
from tracelens.trace.pieces import Piece, Text

TEXT = small_trace(steps=2, all_reduce=True, accumulate=2).text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return contents(read(tmp_path_factory.mktemp("whole"), TEXT))


def set_block(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("tracelens.trace.source.BLOCK", size)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", size)
    monkeypatch.setattr("tracelens.trace.reader._SLICE", size)
    monkeypatch.setattr("tracelens.trace.reader._WINDOW", max(40, size // 3))


@pytest.mark.parametrize("size", [64, 99, 257, 641, 1000, 2000, 4096, 65_536, 10_000_000])
def test_cuts_anywhere_give_the_tables_of_a_whole_read(
    tmp_path: Path, size: int, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_block(monkeypatch, size)
    trace = read(tmp_path, TEXT)
    assert trace.warnings == []
    assert contents(trace) == whole
    packed = read(tmp_path, gzip.compress(TEXT.encode(), 1))
    assert contents(packed) == whole


def test_every_block_size_of_a_range_on_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = [op(f"op {i}", ts=10 * i, tricky="}, {") for i in range(5)] + [
        launch(),
        kernel("k", list=[{}, {}]),
    ]
    text = document(events, metadata=[{"a": 1}, {"b": "},{"}])
    expected = contents(read(tmp_path, text))
    for size in [*range(1, 40), *range(40, 700, 23)]:
        set_block(monkeypatch, size)
        trace = read(tmp_path, text)
        assert trace.warnings == [], size
        assert contents(trace) == expected, size
        assert trace.metadata["metadata"] == [{"a": 1}, {"b": "},{"}]


def test_rows_stand_in_the_order_of_the_file_within_their_table(tmp_path: Path) -> None:
    """Kernels, copies and fills share a table, and so do runtime and driver calls."""
    source = random.Random(1)
    gpu = ("kernel", "gpu_memcpy", "gpu_memset")
    calls = ("cuda_runtime", "cuda_driver")
    events = [kernel(f"{i}") | {"cat": source.choice(gpu)} for i in range(300)]
    events += [launch(name=f"{i}", cat=source.choice(calls)) for i in range(300)]
    source.shuffle(events)
    trace = read(tmp_path, document(events))
    assert names(trace, trace.kernels) == [e["name"] for e in events if e["cat"] in gpu]
    assert names(trace, trace.launches) == [e["name"] for e in events if e["cat"] in calls]


def test_a_category_called_like_a_table_is_none_of_it(tmp_path: Path) -> None:
    odd = [
        kernel("odd") | {"cat": table}
        for table in ("kernels", "ops", "launches", "ranges", "frames", "flows", "syncs")
    ]
    trace = read(tmp_path, document([*odd, kernel("k"), op("o"), *odd]))
    assert names(trace, trace.kernels) == ["k"]
    assert names(trace, trace.ops) == ["o"]
    assert len(trace.launches) + len(trace.ranges) + len(trace.frames) + len(trace.flows) == 0
    assert (trace.categories["kernels"], trace.categories["kernel"], trace.events) == (2, 1, 16)


# --- helper processes ------------------------------------------------------------------------------


@pytest.fixture(params=["forked", "spawned"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers of both kinds; a second thread is what forbids a fork."""
    threads = 1 if request.param == "forked" else 2
    monkeypatch.setattr("tracelens.trace.helper.threading.active_count", lambda: threads)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("processes", [2, 3])
def test_helpers_give_the_tables_of_one_process(
    tmp_path: Path, processes: int, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_block(monkeypatch, 20_000)
    trace = read(tmp_path, TEXT, processes=processes)
    assert trace.warnings == []
    assert contents(trace) == whole


@pytest.mark.parametrize("ahead", [0, 1, 6])
def test_strings_are_coded_in_the_order_of_the_file_whoever_decodes_first(
    tmp_path: Path, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decoded here while helpers are busy, which is a matter of luck, gets no codes before theirs."""
    set_block(monkeypatch, 5000)
    alone = read(tmp_path, TEXT, processes=1)
    monkeypatch.setattr(pool, "AHEAD", ahead)
    helped = read(tmp_path, TEXT, processes=3)
    assert (list(helped.symbols), helped.threads) == (list(alone.symbols), alone.threads)
    assert helped.ops.inputs.tolist() == alone.ops.inputs.tolist()


def test_damage_is_told_at_the_same_place_with_helpers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_block(monkeypatch, 5000)
    damaged = TEXT[:100_000] + "@" * 300 + TEXT[100_300:300_000]
    alone, helped = (read(tmp_path, damaged, processes=processes) for processes in (1, 3))
    assert contents(alone) == contents(helped)
    assert alone.damage == helped.damage
    assert alone.warnings == helped.warnings
    assert alone.partial


def test_exact_times_with_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_block(monkeypatch, 2000)
    base = 1_700_000_000_000_000
    rows = ",".join(document([kernel(dur=3)])[:-1].split("[", 1)[1].rstrip("]") for _ in range(400))
    for index in range(400):
        rows = rows.replace('"ts": 10,', f'"ts": {base + index}.{index:03},', 1)
    trace = read(tmp_path, '{"traceEvents": [' + rows + "]}", processes=2)
    assert trace.kernels.ts_ns.tolist() == [(base + index) * 1000 + index for index in range(400)]


class Watched(pool.Helper):
    """A helper that dies when it has answered ``answers`` times."""

    answers = 1

    def send(self, piece: Piece) -> Future[bytes | None]:
        type(self).answers -= 1
        if type(self).answers == 0:
            self._process.kill()
            self._process.wait()
        return super().send(piece)


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("answers", [1, 2, 5, 12])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_helper_that_dies_costs_nothing(
    tmp_path: Path, answers: int, packed: bool, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_block(monkeypatch, 10_000)
    monkeypatch.setattr(Watched, "answers", answers)
    monkeypatch.setattr(pool, "Helper", Watched)
    trace = read(tmp_path, gzip.compress(TEXT.encode(), 1) if packed else TEXT, processes=2)
    assert Watched.answers <= 0
    assert trace.warnings == []
    assert contents(trace) == whole


def test_a_helper_that_cannot_start_costs_nothing(
    tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_block(monkeypatch, 50_000)
    for executable in ("", "/nowhere/python", "/bin/false"):
        monkeypatch.setattr(sys, "executable", executable)
        assert contents(read(tmp_path, TEXT, processes=3)) == whole


def test_a_question_to_a_dead_helper_is_answered_at_once() -> None:
    """Whether its death was noticed before or after the question was put."""
    process = start()
    assert process is not None
    helper = pool.Helper(process)
    assert helper.send(Text(b"[]")).result(timeout=3600) is not None
    helper._process.kill()
    helper._process.wait()
    assert [helper.send(Text(b"[]")).result(timeout=3600) for _ in range(200)] == [None] * 200
    assert helper.outstanding == 0
    helper.stop()


def test_no_helper_outlives_its_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[pool.Helper] = []

    class Listed(pool.Helper):
        def __init__(self, process: Any):
            super().__init__(process)
            started.append(self)

    monkeypatch.setattr(pool, "Helper", Listed)
    set_block(monkeypatch, 5000)
    read(tmp_path, TEXT, processes=3)
    with pytest.raises(InputError):
        read(tmp_path, "no trace", processes=2)
    assert len(started) == 3
    assert all(helper._process.poll() is not None for helper in started)


def test_one_decoder_gives_the_same_codes_to_the_same_strings() -> None:
    decoder = ChunkDecoder()
    text = document([op("a"), op("b")]).split(": ", 2)[2].removesuffix("}").encode()
    first, second = decoder.decode(text), decoder.decode(text)
    assert first is not None
    assert second is not None
    assert first.tables["ops"]["name"].tolist() == second.tables["ops"]["name"].tolist() == [0, 1]


def test_reading_leaves_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(document([kernel()]))
    assert gc.isenabled()
    read_trace(tmp_path / "t.json")
    assert gc.isenabled()
    gc.disable()
    try:
        read_trace(tmp_path / "t.json")
        assert not gc.isenabled()
    finally:
        gc.enable()
