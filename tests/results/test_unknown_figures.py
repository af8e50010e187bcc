"""What is unknown is no zero in a printed figure."""

from __future__ import annotations

import json

import pytest

from tests.render import sample_report
from tracelens.errors import InputError
from tracelens.numbers import saving
from tracelens.results import Estimate
from tracelens.results.json import from_json, to_json


def test_a_saved_row_without_its_time_is_refused_and_no_zero() -> None:
    saved = json.loads(to_json(sample_report.what_if()))
    saved["what_if"][0]["rest"][0]["then_ms"]["mid"] = None
    with pytest.raises(InputError, match="then_ms"):
        from_json(json.dumps(saved).encode())


def test_a_slower_change_without_a_step_has_no_share() -> None:
    claim, how = saving(Estimate(-3.0, -2.0, -1.0, "measured"), Estimate.unknown(), "measured")
    assert claim.startswith("slower by 2.00 ms")
    assert "%" not in how
