"""A report survives the trip through JSON, follows the published schema, and errors are clear."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import jsonschema
import pytest

from tests.render import sample_report
from tracelens.errors import InputError
from tracelens.results.json import from_json, to_json
from tracelens.results.schema import json_schema

VARIANTS = sorted(sample_report.VARIANTS)


@pytest.mark.parametrize("name", VARIANTS)
def test_round_trip_and_schema(name: str) -> None:
    report = sample_report.VARIANTS[name]()
    data = to_json(report)
    assert data == to_json(report)
    assert from_json(data) == report
    jsonschema.Draft202012Validator(json_schema()).validate(json.loads(data))


def test_the_schema_refuses_what_is_not_a_report() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema_version": "1.0"}, json_schema())


def test_numbers_that_are_not_finite_become_null() -> None:
    report = sample_report.full()
    gemms = [replace(report.gemms[0], tflops=math.nan, intensity=math.inf), *report.gemms[1:]]
    row = json.loads(to_json(replace(report, gemms=gemms)))["gemms"][0]
    assert row["tflops"] is None and row["intensity"] is None
    assert b"NaN" not in to_json(replace(report, gemms=gemms))


def test_a_lone_surrogate_is_replaced() -> None:
    report = sample_report.full()
    data = to_json(replace(report, notes=["bad\ud800note"]))
    assert from_json(data).notes == ["bad\ufffdnote"]


def test_a_field_of_a_later_minor_version_is_ignored() -> None:
    data = json.loads(to_json(sample_report.full())) | {"schema_version": "1.7", "news": 1}
    assert from_json(json.dumps(data).encode()).schema_version == "1.7"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a tracelens report"),
        (b"\xff\xfe", "not a tracelens report"),
        (b"[1, 2]", "not a tracelens report"),
        (b'{"traceEvents": []}', "not a tracelens report"),
        (b'{"schema_version": "2.0", "tool_version": "9.1"}', "written by tracelens 9.1"),
        (b'{"schema_version": "1.0", "tool_version": "0.1"}', "does not follow schema 1.1"),
    ],
)
def test_what_is_not_a_report_gets_one_clear_line(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        from_json(data)
    assert "\n" not in str(caught.value)
