"""What can be verified, and what one line says of everything else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.measure.verify.rig import code, read
from tests.said import Listener
from tracelens.errors import InputError
from tracelens.measure.verify import Source, read_source
from tracelens.measure.verify.source import nothing_asked
from tracelens.results.verified import Reason


def test_a_report_is_read_with_its_suggestions(source: Source, said: Listener) -> None:
    assert (source.kind, source.gpu, source.now.hidden, source.now.vocab) == (
        "report",
        "h100-sxm",
        1280,
        50257,
    )
    first, *scenarios = source.asked
    assert first.changes == {"vocab": 50304}
    assert first.predicted_ms.mid is not None
    assert [one.changes for one in scenarios][2:] == [{"ffn": 5000}, {"micro_batch": 16}]
    assert scenarios[0].changes == {"heads": 10, "kv_heads": 10, "head_dim": 128}
    said(first.title)


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
    "text",
    [
        b"",
        b'{"schema_version": "1.0", "gemms": [',
        b"\xff\xfe\x00",
        b"<!doctype html><html></html>",
        b"[1, 2]",
        b"{}",
        b'{"traceEvents": []}',
        b'{"schema_version": "9.0", "findings": [], "gemms": []}',
        b'{"schema_version": "1.0", "findings": [], "gemms": []}',
        b'{"schema_version": "1.0", "findings": 3, "gemms": "x"}',
        b'{"format_version": "7.1", "picks": []}',
        b'{"format_version": "1.0", "picks": []}',
        b"[" * 100_000,
    ],
)
def test_another_file_is_one_line_that_says_what_to_do(text: bytes, tmp_path: Path, said: Listener) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"x\.json") as error:
        read_source(path)
    assert "\n" not in str(error.value)
    said(re.sub(r" \(.*\):", ":", str(error.value)))  # what Python says differs with its version


def test_a_report_is_read_where_few_libraries_are_installed(report_bytes: bytes, tmp_path: Path) -> None:
    """As docs/verify.md promises: it runs in the environment that one trains in."""
    path = tmp_path / "report.json"
    path.write_bytes(report_bytes)
    absent = ("msgspec", "isal", "jinja2", "pandas", "pyarrow")
    program = (
        f"import sys; sys.modules |= dict.fromkeys({absent})\n"
        f"from tracelens.measure.verify import read_source; assert read_source({str(path)!r}).asked"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_missing_file_says_so(tmp_path: Path, said: Listener) -> None:
    with pytest.raises(InputError) as error:
        read_source(tmp_path / "none.json")
    said(str(error.value).replace(str(tmp_path), ""))


@pytest.mark.parametrize("cut", [0.25, 0.5, 0.9, 0.999])
def test_a_report_that_was_cut_off_is_no_report(
    report_bytes: bytes, tmp_path: Path, cut: float, said: Listener
) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(report_bytes[: int(cut * len(report_bytes))])
    with pytest.raises(InputError) as error:
        read_source(path)
    said(re.sub(r" \(.*\):", ":", str(error.value)))


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


def test_a_report_without_a_finding_says_how_to_ask(
    raw: dict[str, Any], tmp_path: Path, said: Listener
) -> None:
    raw["findings"], raw["what_if"] = [], []
    text = str(nothing_asked(read(raw, tmp_path)))
    said(text)


def test_fields_of_a_later_version_are_left_alone(raw: dict[str, Any], tmp_path: Path) -> None:
    raw["later"] = {"x": 1}
    raw["gemms"][0]["later"] = 2
    raw["findings"][0]["later"] = 3
    found = read(raw, tmp_path)
    assert found.rows
    assert found.raw["later"] == {"x": 1}
