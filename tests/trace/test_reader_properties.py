"""Random traces: what any JSON reader counts is what the tables hold, and nothing else is ever raised."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trace.tools import GPU_CATEGORIES, contents, names
from tracelens.attribution import attribute
from tracelens.errors import InputError
from tracelens.trace import Trace, link, read_trace
from tracelens.trace.columns import TABLE_OF_CATEGORY

HOSTILE = st.sampled_from(
    ["}, {", '"}, {"ph": "X"', "]}", "[", "nan", "\\", '"', "\0", "\ud800", "\udcff", "é", "😀", "",
     "\n},\n{", "traceEvents", '"traceEvents": [', "ProfilerStep#1", "ProfilerStep#99999999999999999999",
     "nn.Module: Block_0", "autograd::engine::evaluate_function: AddmmBackward0", "aten::mm",
     "transformer.h.0.attn"]
)  # fmt: skip
TEXT = st.one_of(HOSTILE, st.text(max_size=8))
NUMBER = st.one_of(
    st.integers(-10, 100),
    st.integers(),
    st.sampled_from([2**53, 2**63, 2**64, -(2**63), 10**25]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(0, 1e6),
)
ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=6,
)
ARGUMENT = st.sampled_from(
    ["External id", "external id", "Sequence number", "Fwd thread id", "Input Dims", "Input type",
     "Input Strides", "Concrete Inputs", "correlation", "device", "stream", "grid", "block", "shared memory",
     "graph node id", "Python id", "Python module id", "name", "else"]
)  # fmt: skip
CATEGORY = st.sampled_from(
    [*TABLE_OF_CATEGORY, "kernels", "flows", "ac2g", "overhead", "", "Trace", "cuda_event"]
)
TIME = st.one_of(
    st.integers(0, 10**6),
    st.floats(0, 1e6),
    st.integers(1_700_000_000_000_000, 1_700_000_000_100_000),
    st.floats(-1e15, 1e15),
)


def events(*, sane: bool) -> st.SearchStrategy[dict[str, Any]]:
    """Events with readable times; the rest of any kind, or (``sane``) of the types Kineto writes."""
    small = st.integers(0, 12)
    return st.fixed_dictionaries(
        {"ts": TIME if not sane else st.integers(0, 300)},
        optional={
            "ph": st.sampled_from("XXXXXXsfiM") if sane else st.sampled_from([*"XXXXXXsfiMBEC", "", None, 5]),
            "cat": CATEGORY if sane else st.one_of(CATEGORY, CATEGORY, ANY_JSON),
            "name": TEXT if sane else st.one_of(TEXT, ANY_JSON),
            "pid": small if sane else ANY_JSON,
            "tid": small if sane else ANY_JSON,
            "dur": st.integers(0, 100) if sane else st.one_of(TIME, ANY_JSON),
            "id": small if sane else ANY_JSON,
            "args": st.dictionaries(ARGUMENT, small if sane else ANY_JSON, max_size=6) if sane else st.one_of(
                st.dictionaries(ARGUMENT, ANY_JSON, max_size=6), ANY_JSON
            ),
        },
    )  # fmt: skip


@contextmanager
def block(size: int) -> Iterator[None]:
    with patch("tracelens.trace.source.BLOCK", size), patch("tracelens.trace.reader.BLOCK", size):
        yield


def read_bytes(data: bytes) -> Trace:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(data)
        return read_trace(path)


@settings(max_examples=int(os.environ.get("EXAMPLES", "150")))
@given(
    st.lists(st.one_of(events(sane=False), events(sane=True)), max_size=12),
    st.sampled_from([None, 1]),
    st.sampled_from([1, 60, 300, 100_000]),
    st.booleans(),
)
def test_any_valid_json_gives_the_events_that_json_counts(
    listed: list[dict[str, Any]], indent: int | None, size: int, escaped: bool
) -> None:
    text = json.dumps({"traceEvents": listed, "behind": listed}, indent=indent, ensure_ascii=escaped)
    with block(size):
        trace = read_bytes(text.encode("utf-8", "surrogatepass"))
    again = json.loads(text)["traceEvents"]
    timed = [e for e in again if e.get("dur") is None or is_time(e["dur"])]
    assert len(timed) <= trace.events <= len(again)
    gpu = [e for e in timed if e.get("ph") == "X" and in_categories(e.get("cat"))]
    assert len(trace.kernels) == len(gpu)
    expected = [e["name"] if isinstance(e.get("name"), str) else "" for e in gpu]
    readable = [name.isprintable() for name in expected]
    found = names(trace, trace.kernels)
    assert [n for n, ok in zip(found, readable, strict=True) if ok] == [
        n for n, ok in zip(expected, readable, strict=True) if ok
    ]
    lost = [e for e in again if e not in timed and e.get("ph") == "X" and in_categories(e.get("cat"))]
    assert trace.partial or not lost
    assert not trace.partial or len(timed) < len(again)
    assert (trace.kernels.dur_ns >= 0).all()


def is_time(value: object) -> bool:
    """Is it a number, or a text that is one, that is taken for one (LIMIT_NS)?"""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        return abs(float(value)) < 2**62 / 1000
    except (ValueError, OverflowError):
        return False


def in_categories(value: object) -> bool:
    return isinstance(value, str) and value in GPU_CATEGORIES


@settings(max_examples=int(os.environ.get("EXAMPLES", "150")))
@given(st.lists(events(sane=True), max_size=40), st.lists(events(sane=False), max_size=6))
def test_whatever_was_read_can_be_linked_and_attributed(
    sane: list[dict[str, Any]], odd: list[dict[str, Any]]
) -> None:
    trace = read_bytes(json.dumps([*sane, *odd]).encode())
    links = link(trace)
    result = attribute(trace, links)
    size = len(trace.kernels)
    for column in (result.step, result.phase, result.component, result.evidence, result.layer, result.reason):
        assert len(column) == size
    assert ((links.kernel_launch >= -1) & (links.kernel_launch < len(trace.launches))).all()
    assert ((links.kernel_op >= -1) & (links.kernel_op < len(trace.ops))).all()
    assert len(links.backward_to_forward) == len(trace.ops)


@settings(max_examples=int(os.environ.get("EXAMPLES", "150")))
@given(
    st.lists(events(sane=False), max_size=6),
    st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=12), st.integers(0, 12)), max_size=3),
    st.floats(0, 1),
    st.sampled_from([1, 60, 100_000]),
)
def test_damage_of_any_kind_is_a_trace_or_a_refusal(
    listed: list[dict[str, Any]], edits: list[tuple[float, bytes, int]], cut: float, size: int
) -> None:
    data = json.dumps({"a": listed[:1], "traceEvents": listed}, indent=1).encode()
    for where, put, over in edits:
        at = int(where * len(data))
        data = data[:at] + put + data[at + over :]
    try:
        with block(size):
            trace = read_bytes(data[: int(len(data) * (0.5 + cut))])
    except InputError as refusal:
        assert "\n" not in str(refusal)
    else:
        contents(trace)
        json.dumps(trace.source.name)


@settings(max_examples=60)
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"[", b'{"traceEvents":[', b"\x1f\x8b\x08\0\0\0\0\0\0\3", b"\xef\xbb\xbf{"]),
)
def test_any_bytes_are_a_trace_or_a_refusal(data: bytes, start: bytes) -> None:
    try:
        trace = read_bytes(start + data)
    except InputError as refusal:
        assert str(refusal).startswith("trace.json")
    else:
        assert len(trace.kernels) <= trace.events
