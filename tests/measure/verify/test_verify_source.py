"""What can be verified, and what one line says of everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.measure.verify.rig import code
from tracelens.errors import InputError
from tracelens.measure.verify import Source, read_source
from tracelens.measure.verify.source import nothing_asked
from tracelens.results.verified import Reason


def test_a_report_is_read_with_its_suggestions(source: Source) -> None:
    assert (source.kind, source.gpu, source.now.hidden, source.now.vocab) == (
        "report",
        "h100-sxm",
        1280,
        50257,
    )
    first, *scenarios = source.asked
    assert first.title == "TL101 Pad vocab_size from 50257 to 50304"
    assert first.changes == {"vocab": 50304}
    assert first.predicted_ms.mid is not None
    assert [one.changes for one in scenarios][2:] == [{"ffn": 5000}, {"micro_batch": 16}]
    assert scenarios[0].changes == {"heads": 10, "kv_heads": 10, "head_dim": 128}


def test_what_the_shape_search_picked_is_asked_too(searched_bytes: bytes, tmp_path: Path) -> None:
    found = read(json.loads(searched_bytes), tmp_path)
    finding, pick = found.asked
    assert (finding.changes, pick.changes) == ({"vocab": 50304}, {"vocab": 50304})
    assert pick.predicted_ms.mid == pytest.approx(finding.predicted_ms.mid, rel=1e-6)


def test_a_change_that_was_not_simulated_is_taken_as_the_finding_names_it(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    del raw["findings"][0]["evidence"]["simulated"]
    assert read(raw, tmp_path).asked[0].changes == {"vocab": 50304}
    raw["findings"][0]["change"] = {"vocab_size": [12564, 12576]}  # the slice of a rank
    assert code(read(raw, tmp_path).asked[0].why) == "not_whole_model"
    raw["findings"][0]["change"] = {"compile": ["off", "on"]}
    assert read(raw, tmp_path).asked[0].why == Reason("no_size", {"name": "compile"})


def test_a_scenario_of_another_type_does_not_make_the_report_unreadable(
    raw: dict[str, Any], tmp_path: Path
) -> None:
    raw["what_if"][0]["change"] = {"dtype": ["bf16", "fp8"]}
    assert read(raw, tmp_path).asked[1].changes == {"dtype": "fp8"}


def test_what_was_measured_before_is_no_prediction(raw: dict[str, Any], tmp_path: Path) -> None:
    finding = raw["findings"][0]
    predicted = finding["saving_ms"]
    finding["verified"] = {"predicted_ms": predicted, "predicted_frac": finding["saving_frac"]}
    finding["saving_ms"] = {"low": 1.0, "mid": 1.0, "high": 1.0, "basis": "measured"}
    assert read(raw, tmp_path).asked[0].predicted_ms.mid == predicted["mid"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "is no whole JSON"),
        (b'{"schema_version": "1.0", "gemms": [', "is no whole JSON"),
        (b"\xff\xfe\x00", "is no whole JSON"),
        (b"<!doctype html><html></html>", "is a page, not the report's JSON"),
        (b"[1, 2]", "is no tracelens report"),
        (b"{}", "is no tracelens report"),
        (b'{"traceEvents": []}', "is a trace"),
        (b'{"schema_version": "9.0", "findings": [], "gemms": []}', "has schema 9.0"),
        (b'{"schema_version": "1.0", "findings": [], "gemms": []}', "is a damaged report"),
        (b'{"schema_version": "1.0", "findings": 3, "gemms": "x"}', "is a damaged report"),
        (b'{"format_version": "7.1", "picks": []}', "has format 7.1"),
        (b'{"format_version": "1.0", "picks": []}', "is a damaged report"),
        (b"[" * 100_000, "is no whole JSON"),
    ],
)
def test_another_file_is_one_line_that_says_what_to_do(text: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"x\.json") as error:
        read_source(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert "tracelens" in str(error.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_source(tmp_path / "none.json")


@pytest.mark.parametrize("cut", [0.25, 0.5, 0.9, 0.999])
def test_a_report_that_was_cut_off_is_no_report(report_bytes: bytes, tmp_path: Path, cut: float) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(report_bytes[: int(cut * len(report_bytes))])
    with pytest.raises(InputError, match="no whole JSON"):
        read_source(path)


@pytest.mark.parametrize(
    "part", ["gemms", "model", "gpu", "trace", "summary", "components", "communication", "declared"]
)
@pytest.mark.parametrize("value", [None, 3, "x", [1], [{}], {}])
def test_a_damaged_part_is_an_error_or_an_empty_one_and_no_traceback(
    raw: dict[str, Any], tmp_path: Path, part: str, value: object
) -> None:
    raw[part] = value
    try:
        found = read(raw, tmp_path)
    except InputError as error:
        assert "damaged" in str(error) or "no tracelens report" in str(error)
    else:
        spare = part in ("trace", "communication", "declared")
        assert spare or found.rows == [] or found.components == ()


def test_a_report_without_a_finding_says_how_to_ask(raw: dict[str, Any], tmp_path: Path) -> None:
    raw["findings"], raw["what_if"] = [], []
    text = str(nothing_asked(read(raw, tmp_path)))
    assert "no finding to verify" in text
    assert "--what-if" in text


def test_fields_of_a_later_version_are_left_alone(raw: dict[str, Any], tmp_path: Path) -> None:
    raw["later"] = {"x": 1}
    raw["gemms"][0]["later"] = 2
    raw["findings"][0]["later"] = 3
    found = read(raw, tmp_path)
    assert found.rows
    assert found.raw["later"] == {"x": 1}


def read(raw: dict[str, Any], folder: Path) -> Source:
    path = folder / "changed.json"
    path.write_text(json.dumps(raw))
    return read_source(path)
