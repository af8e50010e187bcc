"""Measured beside predicted: on the page, in the terminal, and in the table after a run."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.render.verified_report import measured, report, verified
from tests.said import Listener
from tracelens.numbers import saving
from tracelens.render.html import render_html
from tracelens.render.terminal import render_terminal
from tracelens.render.verified import amount, claim, render_verification
from tracelens.results import Estimate, Report
from tracelens.results.json import from_json, to_json

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m‮"


def terminal(found: Report, width: int) -> str:
    file = io.StringIO()
    render_terminal(found, console=Console(file=file, width=width))
    return file.getvalue()


def test_the_page_says_measured_beside_predicted() -> None:
    page = render_html(report(verified()))
    assert "Measured 8.20 ms (8.10–8.30 ms), predicted 8.40 ms (7.80–8.90 ms)" in page
    assert "within its range, 0.98 of it" in page
    assert "Not measured: layers with experts" in page
    assert "1 of 2 suggestions measured" in page and "NVIDIA H200, 2026-11-21, torch 2.11.0" in page
    assert "basis <b>measured</b>" in page


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_terminal_says_so_too(width: int) -> None:
    text = terminal(report(verified()), width)
    flat = " ".join(text.split())
    assert "Measured 8.20 ms (8.10–8.30 ms)" in flat
    assert "Not measured: layers with experts" in flat
    assert max(cell_len(line) for line in text.splitlines()) <= min(width, 120)


def test_what_is_slower_is_called_slower(said: Listener) -> None:
    one = verified(-2.0)
    assert saving(measured(-1, -0.5, 0.5), measured(-0.1, -0.05, 0.05), "measured")[1].startswith("5.0%")
    said(claim(one))
    assert "slower by 2.00 ms" in terminal(report(one), 100)
    assert "slower by 2.00 ms/step" in render_html(report(one))


@pytest.mark.parametrize(
    "estimate",
    [
        Estimate(None, None, None, "model"),
        Estimate(0.0, None, 3.0, "heuristic"),
        measured(-1.0, 0.5, 2.0),
    ],
)
def test_a_saving_without_a_middle_or_with_two_signs(estimate: Estimate, said: Listener) -> None:
    said(amount(estimate))


def test_strings_are_safe_wherever_they_come_from() -> None:
    found = report(verified(name=HOSTILE), notes=(HOSTILE,))
    page = render_html(found)
    assert "<img" not in page
    for text in (terminal(found, 100), table(found)):
        assert not re.search(r"[\x00-\x09\x0b-\x1f‮]", text)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_table_after_a_run_fits(width: int) -> None:
    text = table(report(verified()), width)
    assert max(cell_len(line) for line in text.splitlines()) <= min(width, 120)
    assert "GEMMs and attention alone" in text


def table(found: Report, width: int = 100) -> str:
    file = io.StringIO()
    assert found.verification is not None
    named = [(one.title, one.verified) for one in found.findings if one.verified is not None]
    render_verification(named, found.verification, console=Console(file=file, width=width))
    return file.getvalue()


def test_a_report_keeps_it() -> None:
    found = report(verified())
    assert from_json(to_json(found)) == found
    assert from_json(to_json(found, compact=True)).findings[0].verified is not None
