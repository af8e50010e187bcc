"""A damaged or cut-off trace gives a file that opens, with every event that is whole, and says so."""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.perfetto.annotated import annotate, events_of
from tests.said import Listener
from tests.trace.tools import document, kernel, op, small_trace


@cache
def text() -> str:
    """A file of about 1 MB, its GPU events among the others."""
    trace = small_trace(steps=4)
    ordered = sorted(trace.events, key=lambda event: event.get("ts", 0.0))
    return json.dumps({**trace.header, "traceEvents": ordered, "traceName": "t.json"}, indent=1)


@cache
def events() -> list[dict[str, Any]]:
    return events_of(json.loads(text()))


WHOLE, CHUNKS = 384 * 1024, 20_000
RUBBISH = ("\0" * 40, "}}]]" * 5, '"' * 7, "{[" * 9, "@", "x" * 3000, '},{"ph": "X"},{')


@pytest.fixture(params=[WHOLE, CHUNKS], ids=["whole", "chunks"])
def _chunked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in chunks as long as usual, and so short that many cuts are made."""
    for module in ("tracelens.trace.source", "tracelens.trace.reader"):
        monkeypatch.setattr(f"{module}.BLOCK", request.param)
    monkeypatch.setattr("tracelens.render.perfetto_copy._CHUNK", request.param)


def plain(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Decimals of a file that was read back, as the floats that json.loads gives."""
    return [json.loads(json.dumps(value, default=float)) for value in values]


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("part", [0.3, 0.61, 0.999])
def test_a_cut_off_file_gives_every_whole_event(tmp_path: Path, part: float, said: Listener) -> None:
    (tmp_path / "t.json").write_text(text()[: int(len(text()) * part)])
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    got = plain(written.original)
    assert got == events()[: len(got)]
    assert written.analysis.trace is not None
    assert len(got) == written.analysis.trace.events >= int(len(events()) * part) - 20
    assert f" {len(got):,} " in written.result.notes[0]
    said([e["args"]["labels"] for e in written.added if e["name"] == "process_labels"])


@pytest.mark.usefixtures("_chunked")
def test_cut_off_gzip(tmp_path: Path, said: Listener) -> None:
    packed = gzip.compress(text().encode())
    (tmp_path / "t.json.gz").write_bytes(packed[: len(packed) * 2 // 3])
    written = annotate(tmp_path / "t.json.gz", tmp_path / "out.json.gz")
    assert plain(written.original) == events()[: len(written.original)]
    said(re.sub(r"[\d,]+", "N", written.result.notes[0]))


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize(
    ("rubbish", "where", "_chunked"),
    [
        case
        for at, rubbish in enumerate(RUBBISH)
        for case in zip((rubbish, rubbish), (0.05, 0.62), (WHOLE, CHUNKS)[:: 1 - 2 * (at % 2)], strict=True)
    ],
    indirect=["_chunked"],
)
def test_damage_costs_the_events_it_touches_and_no_other(tmp_path: Path, rubbish: str, where: float) -> None:
    at = int(len(text()) * where)
    (tmp_path / "t.json").write_text(text()[:at] + rubbish + text()[at + len(rubbish) :])
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    got = {json.dumps(value) for value in plain(written.original)}
    want = {json.dumps(value) for value in events()}
    touched = len(rubbish) // 100 + 4
    assert len(want - got) <= touched
    assert len(got - want) <= touched
    assert written.result.rewritten < len(events())


@pytest.mark.usefixtures("_chunked")
def test_broken_metadata_behind_the_events_costs_no_event(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text()[:-5])
    assert plain(annotate(tmp_path / "t.json", tmp_path / "out.json").original) == events()


def test_what_json_does_not_know_becomes_null(tmp_path: Path, said: Listener) -> None:
    bad = document([op(), kernel(ts=20, blocks="B"), kernel(ts=40)], rate="R").replace('"B"', "nan")
    (tmp_path / "t.json").write_text(bad.replace('"R"', "Infinity"))
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    assert [e["args"].get("blocks", 0) for e in written.original] == [0, None, 0]
    assert b"Infinity" not in (tmp_path / "out.json").read_bytes()
    said(written.result.notes)
    assert written.document["schemaVersion"] == 1


def test_numbers_keep_their_digits_beside_damage(tmp_path: Path) -> None:
    text = document([kernel(ts="T"), kernel(ts=40, big=2**80), kernel(blocks="B")])
    (tmp_path / "t.json").write_text(text.replace('"T"', "1700000000000000.125").replace('"B"', "nan"))
    first, second, _ = annotate(tmp_path / "t.json", tmp_path / "out.json").original
    assert str(first["ts"]) == "1700000000000000.125"
    assert second["args"]["big"] == 2**80


def test_bytes_that_are_no_utf8_become_a_sign_for_it(tmp_path: Path) -> None:
    data = document([kernel("na?me"), kernel("other", ts=30)]).encode().replace(b"na?me", b"na\xffme")
    (tmp_path / "t.json").write_bytes(data)
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    assert [e["name"] for e in written.original] == ["na\ufffdme", "other"]


@pytest.mark.usefixtures("_chunked")
@pytest.mark.parametrize("layout", ["spaced", "nested", "tail first", "mark"])
def test_odd_but_sound_layouts_are_not_written_anew(tmp_path: Path, layout: str) -> None:
    many = [op(f"op {at}", ts=10 * at, nested=[{"a": 1}, {"b": [{}, {}]}]) for at in range(2000)]
    many += [kernel(ts=10 * at) for at in range(2000)]
    document_: dict[str, Any] = {"traceEvents": many, "deviceProperties": [{"id": at} for at in range(5000)]}
    if layout == "tail first":
        document_ = dict(reversed(document_.items()))
    separators = (" , ", " : ") if layout == "spaced" else (",", ":") if layout == "nested" else None
    data = json.dumps(document_, separators=separators).encode()
    (tmp_path / "t.json").write_bytes((b"\xef\xbb\xbf" if layout == "mark" else b"") + data)
    written = annotate(tmp_path / "t.json", tmp_path / "out.json")
    assert (written.result.rewritten, written.result.left_out) == (0, 0)
    assert written.document["deviceProperties"] == document_["deviceProperties"]
    assert written.original == many
    at = data.index(b"[", data.index(b'"traceEvents"')) + 1
    assert (tmp_path / "out.json").read_bytes().endswith(data[at:])
