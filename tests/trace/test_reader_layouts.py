"""The same events in every layout and dialect that exporters write, one small text each."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.said import Listener
from tests.trace.tools import contents, document, kernel, launch, names, op, read, small_trace
from tracelens.trace import read_trace
from tracelens.trace.door import LONGEST_NAME
from tracelens.trace.metadata import cuda_version, device_name, device_properties, rank_and_world

TRACE = small_trace()
EVENTS = TRACE.events


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    trace = read(tmp_path_factory.mktemp("layouts"), TRACE.text())
    assert trace.warnings == []
    assert not trace.partial
    return contents(trace)


def one_key_a_line(events: list[Any]) -> str:
    return json.dumps({"traceEvents": events}, indent=1).replace('": ', '":\n')


def leading_commas(events: list[Any]) -> str:
    return '{"traceEvents": [\n' + "\n, ".join(map(json.dumps, events)) + "\n]}"


LAYOUTS: dict[str, Callable[[list[Any]], str]] = {
    "one line": lambda events: json.dumps({"traceEvents": events}),
    "no blanks": lambda events: json.dumps({"traceEvents": events}, separators=(",", ":")),
    "one event a line": lambda events: '{"traceEvents": [\n' + ",\n".join(map(json.dumps, events)) + "\n]}",
    "commas first": leading_commas,
    "commas alone": lambda events: '{"traceEvents":[' + "\n,\n".join(map(json.dumps, events)) + "]}",
    "pretty": lambda events: json.dumps({"traceEvents": events}, indent=1),
    "tabs": lambda events: json.dumps({"traceEvents": events}, indent="\t"),
    "windows lines": lambda events: json.dumps({"traceEvents": events}, indent=2).replace("\n", "\r\n"),
    "one key a line": one_key_a_line,
    "wide gaps": lambda events: (
        '{"traceEvents"  :  [' + ("," + " " * 700).join(map(json.dumps, events)) + "]}"
    ),
    "sorted keys": lambda events: json.dumps({"traceEvents": events}, sort_keys=True),
    "bare list": lambda events: json.dumps(events),
    "bare list, pretty": lambda events: "\n  " + json.dumps(events, indent=1) + "\n",
    "byte order mark": lambda events: "\ufeff" + json.dumps({"traceEvents": events}),
    "byte order mark, bare list": lambda events: "\ufeff" + json.dumps(events),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tables(tmp_path: Path, layout: str, expected: dict[str, Any]) -> None:
    trace = read(tmp_path, LAYOUTS[layout](EVENTS))
    assert trace.events == len(EVENTS)
    assert trace.warnings == []
    assert contents(trace) == expected


@pytest.mark.parametrize(
    ("layout", "processes"), [*((layout, 1) for layout in LAYOUTS), ("one line", 2), ("commas first", 2)]
)
def test_every_layout_can_be_cut_into_chunks(
    tmp_path: Path, layout: str, processes: int, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.trace.source.BLOCK", 20_000)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", 20_000)
    trace = read(tmp_path, LAYOUTS[layout](EVENTS), processes=processes)
    assert trace.warnings == []
    assert contents(trace) == expected


def test_metadata_stands_before_or_behind_the_events(tmp_path: Path) -> None:
    top = {
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}],
        "distributedInfo": {"rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0"}, {"pg_name": "1"}]},
        "cuda_runtime_version": 12060,
    }
    texts = {
        "before": json.dumps({**top, "traceEvents": EVENTS}),
        "behind": json.dumps({"traceEvents": EVENTS, **top}),
        "around": json.dumps({"a": 1, "traceEvents": EVENTS, **top}, indent=1),
    }
    for where, text in texts.items():
        trace = read(tmp_path, text)
        assert trace.events == len(EVENTS), where
        assert {key: trace.metadata[key] for key in top} == top, where
        assert rank_and_world(trace.metadata) == (3, 8)
        assert cuda_version(trace.metadata) == "12.6"
        assert trace.warnings == []


def test_a_capture_of_one_gpu_says_so_itself() -> None:
    """PyTorch writes distributedInfo only where there are process groups."""
    assert rank_and_world({"tracelens": {"parallel": {"rank": 0, "world_size": 1}}}) == (None, 1)
    for own in ({"parallel": {"world_size": 8}}, {"parallel": None}, None, {}):
        assert rank_and_world({"tracelens": own}) == (None, None)


def test_metadata_behind_the_events_may_look_like_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [{"name": f"group {i}", "ph": "X", "ranks": [{"args": 1}, {"args": 2}]} for i in range(200)]
    text = json.dumps({"traceEvents": [kernel()] * 30, "groups": groups, "last": True})
    for size in (64, 500, 5000):
        monkeypatch.setattr("tracelens.trace.source.BLOCK", size)
        monkeypatch.setattr("tracelens.trace.reader.BLOCK", size)
        for processes in (1, 2):
            trace = read(tmp_path, text, processes=processes)
            assert (len(trace.kernels), trace.events, trace.warnings) == (30, 30, [])
            assert trace.metadata == {"groups": groups, "last": True}


@pytest.mark.parametrize(
    ("value", "expected_name"),
    [
        ([{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}], "NVIDIA H100 80GB HBM3"),
        ("[{'id': 0, 'name': 'Tesla V100', 'numSms': 80}]", "Tesla V100"),
        ('[{"id": 0, "name": "A100"}]', "A100"),
        ({"name": "alone"}, "alone"),
        ("[{'id': 0, 'name': ", None),
        ("__import__('os').system('true')", None),
        ([], None),
        (None, None),
        (7, None),
        ([None, 3, {"name": 5}, {"name": ""}], None),
    ],
)
def test_device_properties_as_list_text_or_nothing(value: object, expected_name: str | None) -> None:
    assert device_name({"deviceProperties": value}) == expected_name
    hip = {"deviceProperties": value, "hip_runtime_version": 60443483}
    assert device_name(hip) == (expected_name or "AMD GPU")  # ROCm lists devices without their names


def test_old_traces_call_the_devices_compute_properties() -> None:
    assert device_properties({"computeProperties": [{"name": "Tesla P100"}]}) == [{"name": "Tesla P100"}]
    assert device_properties({}) == []


def test_an_environment_dump_never_enters_the_metadata(tmp_path: Path) -> None:
    secret = {"HF_TOKEN": "hf_secret"}
    top = {
        "env": secret,
        "Environment": secret,
        "host": {"os_environ": secret, "name": "h"},
        "ranks": [{"deep": {"er": [{"env_vars": secret, "rank": 0}]}}],
    }
    trace = read(tmp_path, document([kernel()], **top))
    assert "hf_secret" not in repr(trace.metadata)
    assert trace.metadata["host"] == {"name": "h"}
    assert trace.metadata["ranks"] == [{"deep": {"er": [{"rank": 0}]}}]


def test_metadata_that_is_not_strict_json_is_still_read(tmp_path: Path) -> None:
    text = b'{"a": NaN, "host": "\xff\xfe", "rank": "two\nlines", "traceEvents": [], "b": Infinity}'
    trace = read(tmp_path, text)
    assert trace.metadata["a"] is trace.metadata["b"] is None  # no number that a page could show
    assert trace.metadata["rank"] == "two lines"
    assert trace.warnings == []
    assert trace.door.dropped == {"number": 2, "character": 1}


def test_unreadable_metadata_is_a_warning_and_costs_no_event(tmp_path: Path, said: Listener) -> None:
    trace = read(tmp_path, '{"a": [1, 2, "traceEvents": [' + json.dumps(kernel()) + '], "b": }')
    assert len(trace.kernels) == 1
    assert trace.metadata == {}
    said(trace.warnings)


# --- times -----------------------------------------------------------------------------------------


def times(tmp_path: Path, *pairs: tuple[str, str]) -> list[tuple[int, int]]:
    """(start, duration) in ns of kernels whose ts and dur are written as given."""
    rows = [json.dumps(kernel(ts="TS", dur="DUR")) for _ in pairs]
    rows = [row.replace('"TS"', ts).replace('"DUR"', dur) for row, (ts, dur) in zip(rows, pairs, strict=True)]
    trace = read(tmp_path, '{"traceEvents": [' + ",\n".join(rows) + "]}")
    assert trace.warnings == []
    return list(zip(trace.kernels.ts_ns.tolist(), trace.kernels.dur_ns.tolist(), strict=True))


@pytest.mark.parametrize(
    ("ts", "dur", "start_ns", "duration_ns"),
    [
        ("1700000000000000", "5", 1_700_000_000_000_000_000, 5_000),
        ("1700000000000000", "5.25", 1_700_000_000_000_000_000, 5_250),
        ("1700000000000000.001", "5.007", 1_700_000_000_000_000_001, 5_007),
        ("1700000000000000.100", "5", 1_700_000_000_000_000_100, 5_000),  # a double would say .0
        ("1700000000123456.789", "0.001", 1_700_000_000_123_456_789, 1),
        ("1700000000000000.0", "5.0", 1_700_000_000_000_000_000, 5_000),
        ("1700000000000000.5", "12", 1_700_000_000_000_000_500, 12_000),
        ("1.7e15", "1e1", 1_700_000_000_000_000_000, 10_000),
        ("1824871066082.664", "13.952", 1_824_871_066_082_664, 13_952),
        ("7889237999999.999", "13.952", 7_889_237_999_999_999, 13_952),  # at the end of Kineto's three months
        ('"1700000000000000.125"', '"3.5"', 1_700_000_000_000_000_125, 3_500),
        ("-12.5", "0", -12_500, 0),
        ("0", "-3", 0, 0),
        ("12", "null", 12_000, 0),
        ("12", "inf", 12_000, 0),
        ("12", "-nan", 12_000, 0),
    ],
)
def test_times_keep_every_nanosecond(
    tmp_path: Path, ts: str, dur: str, start_ns: int, duration_ns: int
) -> None:
    assert times(tmp_path, (ts, dur)) == [(start_ns, duration_ns)]
    other = ("1700000000000007", "2")
    assert times(tmp_path, other, (ts, dur), other)[1] == (start_ns, duration_ns)


def test_integer_and_fractional_times_mix_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracelens.trace.source.BLOCK", 6000)
    monkeypatch.setattr("tracelens.trace.reader.BLOCK", 6000)
    base = 1_700_000_000_000_000
    pairs = [(str(base + i), "3") for i in range(100)] + [
        (f"{base + i}.{i * 37 % 1000:03}", "3") for i in range(1000)
    ]
    assert [start for start, _ in times(tmp_path, *pairs)] == [
        *((base + i) * 1000 for i in range(100)),
        *((base + i) * 1000 + i * 37 % 1000 for i in range(1000)),
    ]


@pytest.mark.parametrize(
    "ts", ["null", "NaN", '"soon"', "[1]", "1e999", "1e999999999", "1e300", "{}", "true"]
)
@pytest.mark.parametrize("base", ["10", "1700000000000000.125"])
def test_an_event_without_a_readable_time_is_left_out_and_said_so(
    tmp_path: Path, ts: str, base: str, said: Listener
) -> None:
    good = json.dumps(kernel("good")).replace('"ts": 10', f'"ts": {base}')
    bad = json.dumps(kernel("bad")).replace('"ts": 10', f'"ts": {ts}')
    trace = read(tmp_path, f'{{"traceEvents": [{good}, {bad}, {good}]}}')
    assert names(trace, trace.kernels) == ["good", "good"]
    assert trace.partial
    said(trace.warnings[0])


@pytest.mark.parametrize("dur", ["NaN", '"soon"', "[]", "true"])
def test_an_event_without_a_readable_duration_is_left_out_too(tmp_path: Path, dur: str) -> None:
    bad = json.dumps(kernel("bad", dur="DUR")).replace('"DUR"', dur)
    trace = read(tmp_path, f'{{"traceEvents": [{json.dumps(kernel("good"))}, {bad}]}}')
    assert names(trace, trace.kernels) == ["good"] and trace.partial


def test_a_missing_time_is_left_out_too(tmp_path: Path) -> None:
    bad = kernel("bad")
    del bad["ts"]
    trace = read(tmp_path, document([kernel("good"), bad]))
    assert names(trace, trace.kernels) == ["good"]
    assert trace.partial


# --- events of every age and kind ------------------------------------------------------------------


def test_launches_come_from_the_runtime_and_the_driver(tmp_path: Path) -> None:
    driver = launch(2, cat="cuda_driver", name="cuLaunchKernelEx")
    trace = read(tmp_path, document([launch(1), driver, kernel(correlation=2)]))
    assert names(trace, trace.launches) == ["cudaLaunchKernel", "cuLaunchKernelEx"]
    assert trace.launches.correlation.tolist() == [1, 2]


def test_the_2021_format_fills_the_same_tables(tmp_path: Path) -> None:
    events = [
        op() | {"cat": "Operator", "args": {"external id": 12, "Input dims": [[2, 3], [3, 4]]}},
        launch(5) | {"cat": "Runtime", "args": {"correlation": 5, "external id": 12}},
        kernel(correlation=5) | {"cat": "Kernel"},
        kernel(correlation=6) | {"cat": "Memcpy"},
        kernel(correlation=7) | {"cat": "Memset", "args": {"correlation": 7, "external id": 12}},
    ]
    trace = read(tmp_path, document(events))
    categories = [trace.symbols[int(code)] for code in trace.kernels.category]
    assert categories == ["kernel", "gpu_memcpy", "gpu_memset"]
    assert trace.ops.external_id.tolist() == [12]
    assert trace.launches.external_id.tolist() == [12]
    assert trace.kernels.external_id.tolist() == [-1, -1, 12]
    assert trace.details.inputs(int(trace.ops.inputs[0])).dims == [[2, 3], [3, 4]]


def test_shapes_types_and_launch_configurations_are_kept(tmp_path: Path) -> None:
    shapes: dict[str, Any] = {
        "Input Dims": [[2048, 2560], [2560, 2560], [2048, 2560]],  # the third is out=
        "Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"],
        "Input Strides": [[2560, 1], [1, 2560], [2560, 1]],
        "Concrete Inputs": ["", "", ""],
    }
    config: dict[str, Any] = {
        "grid": [132, 1, 1],
        "block": [384, 1, 1],
        "shared memory": 231424,
        "registers per thread": 168,
    }
    events = [op(**shapes), kernel(**config), kernel(grid="[4, 2, 1]", block=None)]
    trace = read(tmp_path, document(events))
    inputs = trace.details.inputs(int(trace.ops.inputs[0]))
    assert [inputs.dims, inputs.types, inputs.strides, inputs.concrete] == list(shapes.values())
    whole, odd = (trace.details.config(int(code)) for code in trace.kernels.launch)
    assert [whole.grid, whole.block, whole.shared_memory, whole.registers] == list(config.values())
    assert (odd.grid, odd.block, odd.shared_memory) == ([4, 2, 1], None, None)


def test_pid_and_tid_may_be_text_empty_fractional_or_absent(tmp_path: Path) -> None:
    spans = {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1}
    places: list[dict[str, Any]] = [
        {"pid": "Spans", "tid": "PyTorch Profiler"},
        {"pid": "", "tid": ""},
        {"pid": 1.5, "tid": -1},
        {},
        {"pid": None, "tid": [1]},
    ]
    trace = read(tmp_path, document([spans | place for place in places]))
    assert len(trace.ops) == 5
    assert trace.threads[:2] == [("Spans", "PyTorch Profiler"), ("", "")]
    assert not trace.partial


def test_a_kernel_without_stream_argument_stands_on_its_track(tmp_path: Path) -> None:
    bare = {"ph": "X", "cat": "kernel", "name": "k", "pid": 2, "tid": "13", "ts": 1, "dur": 1}
    trace = read(tmp_path, document([bare, kernel(device=1, stream=20)]))
    assert trace.kernels.stream.tolist() == [13, 20]
    assert trace.kernels.device.tolist() == [2, 1]
    assert trace.kernels.correlation.tolist() == [-1, 1]


def test_a_trace_of_gpu_events_alone_is_whole(tmp_path: Path) -> None:
    events = [kernel(f"k{i}", ts=i, correlation=i) for i in range(5)]
    trace = read(tmp_path, document(events))
    assert (len(trace.kernels), len(trace.ops), len(trace.launches)) == (5, 0, 0)
    assert not trace.partial


def test_overhead_flows_instants_and_counters_are_counted_and_disturb_nothing(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0, "ts": 1, "dur": 2},
        {"ph": "f", "id": 5, "pid": 0, "tid": 7, "ts": 3, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "f", "id": 6, "pid": 9, "tid": 1, "ts": 3, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        {"ph": "s", "id": "0x7", "pid": 9, "tid": 1, "ts": 4, "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "i", "s": "t", "name": "[memory]", "cat": "cpu_instant_event", "pid": 9, "tid": 1, "ts": 4},
        {"ph": "C", "name": "counter", "pid": 0, "ts": 5, "args": {"value": 3}},
        {"ph": "B", "cat": "kernel", "name": "begin", "pid": 0, "tid": 7, "ts": 1},
        {"ph": "E", "cat": "kernel", "name": "end", "pid": 0, "tid": 7, "ts": 2},
        {"name": "process_name", "ph": "M", "pid": 9, "tid": 0, "args": {"name": "python"}},
        {"name": "thread_name", "ph": "M", "pid": 9, "tid": 1, "ts": 0, "args": {"name": "thread 1"}},
        {"name": "thread_name", "ph": "M", "pid": 9, "tid": 2, "ts": 0, "args": {"name": 5}},
        {"name": "thread_name", "ph": "M", "pid": 9, "tid": 3, "ts": 0},
        kernel(),
    ]
    trace = read(tmp_path, document(events))
    assert trace.events == len(events)
    assert trace.categories["ac2g"] == 1
    assert trace.flows.start.tolist() == [False, True]
    assert trace.flows.id.tolist()[0] == 6
    assert trace.thread_names == {(9, 1): "thread 1"}
    assert len(trace.kernels) == 1
    assert not trace.partial


def test_duplicate_keys_mean_the_last_as_in_every_json_reader(tmp_path: Path) -> None:
    text = json.dumps(kernel("last", ts=7)).replace('{"ph"', '{"name": "first", "ts": 1, "ph"', 1)
    trace = read(tmp_path, f"[{text}]")
    assert names(trace, trace.kernels) == ["last"]
    assert trace.kernels.ts_ns.tolist() == [7000]


def test_huge_and_odd_numbers_become_ids_that_fit(tmp_path: Path) -> None:
    values: list[Any] = [
        2**63 - 1,
        2**64 - 1,
        10**30,
        -5,
        "17",
        "x",
        3.0,
        3.5,
        True,
        None,
        [1],
        {"a": 1},
        1e300,
    ]
    trace = read(tmp_path, document([kernel(correlation=value) for value in values]))
    got = trace.kernels.correlation.tolist()
    assert len(got) == len(values)
    assert got[:2] == [2**63 - 1, -1]
    assert got[3:7] == [-5, 17, -1, 3]
    assert got[8:12] == [-1, -1, -1, -1]
    assert not trace.partial


def test_an_integer_too_long_for_python_costs_one_event(tmp_path: Path) -> None:
    text = document([kernel("a"), kernel("b", correlation=123456789), kernel("c")])
    trace = read(tmp_path, text.replace("123456789", "9" * 10_000))
    assert {"a", "c"} <= set(names(trace, trace.kernels))
    assert trace.partial == (len(trace.kernels) == 2)


@pytest.mark.parametrize(
    "value",
    [None, 5, "text", [], [[1]], {"External id": None}, {"correlation": {}}, {"Input Dims": {"a": "}"}}],
)
def test_arguments_of_any_type_do_not_cost_the_event(tmp_path: Path, value: object) -> None:
    events = [e | {"args": value} for e in (kernel("k"), op("o"), launch())]
    trace = read(tmp_path, document([*events, kernel("next")]))
    assert names(trace, trace.kernels) == ["k", "next"]
    assert names(trace, trace.ops) == ["o"]
    assert len(trace.launches) == 1
    assert not trace.partial


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        (b"plain", "plain"),
        (b"caf\xc3\xa9 \xf0\x9f\x98\x80", "café 😀"),
        (rb"\u00e9\n\t\"\\", 'é  "\\'),
        (rb"lone \ud800 surrogate", "lone ? surrogate"),
        (b"bad \xff\xfe utf-8", "bad ?? utf-8"),
        (b"control \x01\x1f\n character", "control \ufffd\ufffd  character"),
        (b'an "unescaped" quote', 'an "unescaped" quote'),
        (b"}, {", "}, {"),
        (rb"},{\"ph\": \"X\", \"cat\": \"kernel\"}", '},{"ph": "X", "cat": "kernel"}'),
        (b"]}", "]}"),
        (rb"\u0000", "\ufffd"),
        (b"x" * 100_000, "x" * (LONGEST_NAME - 1) + "…"),
        (b"", ""),
    ],
)
def test_hostile_names_keep_their_event_and_their_neighbours(
    tmp_path: Path, written: bytes, read_as: str
) -> None:
    text = document([kernel("before"), kernel("NAME", dur=7), kernel("after")])
    trace = read(tmp_path, text.encode().replace(b"NAME", written))
    assert names(trace, trace.kernels) == ["before", read_as, "after"]
    assert trace.kernels.dur_ns.tolist() == [5000, 7000, 5000]
    assert all(name == name.encode().decode() for name in trace.symbols)
    assert trace.warnings == []


@pytest.mark.parametrize("word", ["NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "-inf", "null"])
def test_words_that_are_no_json_numbers_cost_nothing(tmp_path: Path, word: str) -> None:
    odd = kernel(
        "odd", **{"est. achieved occupancy %": "WORD", "correlation": "WORD", "graph node id": "WORD"}
    )
    text = document(
        [kernel("before"), odd, op("aten::mul", **{"Concrete Inputs": ["", "WORD"]}), kernel("after")]
    )
    trace = read(tmp_path, text.replace('"WORD"', word))
    assert names(trace, trace.kernels) == ["before", "odd", "after"]
    assert names(trace, trace.ops) == ["aten::mul"]
    assert trace.kernels.correlation.tolist() == [1, -1, 1]
    assert trace.warnings == []


def test_json_of_any_other_shape_inside_the_list_is_left_out(tmp_path: Path) -> None:
    trace = read(tmp_path, document([kernel("a"), 1, None, "text", [kernel("inner")], [], kernel("b")]))
    assert names(trace, trace.kernels) == ["a", "b"]
    assert [damage.reason for damage in trace.damage] == ["no_event"] * 5


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "[]", " \n[ ] \n", '{"a": 1, "traceEvents": [\n]}'])
def test_an_empty_event_list_is_a_trace_without_events(tmp_path: Path, text: str) -> None:
    trace = read(tmp_path, text)
    assert (trace.events, len(trace.kernels), trace.partial, trace.warnings) == (0, 0, False, [])


def test_source_says_what_was_read(tmp_path: Path) -> None:
    text = document([kernel()]).encode()
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(text))
    trace = read_trace(tmp_path / "t.json.gz")
    assert trace.source.name == "t.json.gz"
    assert trace.source.json_bytes == len(text)
    assert trace.source.bytes == (tmp_path / "t.json.gz").stat().st_size
    assert len(trace.source.sha256) == 64


def test_calls_of_hip_tell_the_maker_where_nothing_names_the_device(tmp_path: Path) -> None:
    named = {"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}]}
    events = [kernel(), launch(name="hipExtModuleLaunchKernel")]
    assert read(tmp_path, document(events)).device_name == "AMD GPU"
    assert read(tmp_path, document(events, **named)).device_name == "NVIDIA H100 80GB HBM3"
    assert read(tmp_path, document([kernel(), launch()])).device_name is None
