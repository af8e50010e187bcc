"""Names from a trace are text in the annotated file, whatever they hold."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.perfetto.annotated import annotate
from tests.trace.tools import document, kernel, launch, op
from tracelens.trace.door import LONGEST_NAME

NAMES = [
    'quote " and \\ backslash',
    "</script><script>alert(1)</script><!--",
    "\x1b[31mred\x1b]0;title\x07",
    "control \x00 \x01 \x1f \x7f \x9b",
    "\u202egpj.exe \u2028 \ufeff \U0001f600",
    "\\u0022,\\n escaped twice",
    '"},{"ph":"X","name":"forged"},{"a":"',
    "{{7*7}} ${x} %s %n",
    "x" * 20_000,
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_hostile_name_stays_the_same_text(tmp_path: Path, name: str) -> None:
    events = [
        {**op(name, ts=0, dur=100), "cat": "user_annotation"},
        op(name, ts=1, dur=50),
        launch(ts=5),
        kernel(name, ts=20),
    ]
    (tmp_path / "t.json").write_text(document(events, deviceProperties=[{"name": name}], **{name: name}))
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    assert written.original == events
    assert written.document[name] == name
    (component,) = written.slices("component")
    said = component["args"]["op"]  # what was added has no control character and no endless line
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e]", said) and len(said) <= LONGEST_NAME
    assert all(one == other or other == "\ufffd" for one, other in zip(name, said[:-1], strict=False))
    assert len(written.events) == len(events) + written.result.added


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_added_events_are_plain_ascii(tmp_path: Path, name: str) -> None:
    events = [op(name, ts=1, dur=50), launch(ts=5), kernel(ts=20)]
    (tmp_path / "t.json").write_text(document(events))
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    data = (tmp_path / "out.json").read_bytes()
    added = data[: data.index(b'\n{"ph": "X"')]
    assert added.count(b"\n") == written.result.added - 1  # one event a line, none broken by a name
    assert all(byte == 10 or 32 <= byte < 127 for byte in added)


def test_a_lone_surrogate_is_left_as_it_stands(tmp_path: Path) -> None:
    text = document([kernel("lone \ud800 half"), kernel("other", ts=30)])
    assert "\\ud800" in text
    (tmp_path / "t.json").write_text(text)
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    assert written.original == json.loads(text)["traceEvents"]
    assert written.result.rewritten == 0
