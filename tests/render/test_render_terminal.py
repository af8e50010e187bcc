"""The terminal report fits, is safe, and is plain text when piped."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.render import sample_report
from tests.render.golden import check
from tests.said import Listener
from tracelens.render import facts
from tracelens.render.console import Out
from tracelens.render.five_numbers import five_numbers
from tracelens.render.terminal import render_terminal
from tracelens.render.verdict import titled, with_verdict
from tracelens.results import Estimate, Report, Waits

VARIANTS = sorted(sample_report.VARIANTS)


def _render(report: Report, width: int = 80, *, verbose: bool = False, **how: Any) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, **how)
    render_terminal(report, console=console, outputs=[("report.html", 108_656)], verbose=verbose)
    return file.getvalue()


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_every_variant_fits_and_no_number_is_cut(name: str, width: int, verbose: bool) -> None:
    text = _render(sample_report.VARIANTS[name](), width, verbose=verbose)
    assert max(cell_len(line) for line in text.splitlines()) <= min(width, 120)
    assert name == "hostile" or not re.search(r"\d…", text), "a number lost its end"


@pytest.mark.parametrize("name", sorted({*VARIANTS} - {"hostile"}))
def test_40_columns_keep_every_number_and_title_whole(name: str) -> None:
    report = sample_report.VARIANTS[name]()
    text = _render(report, 40)
    assert max(cell_len(line) for line in text.splitlines()) <= 40
    words = " ".join(text.split())
    for number in five_numbers(with_verdict(report)):
        assert f"{number.value} {number.label}" in words
    for one in report.findings[:1]:
        assert one.action in words


def test_a_table_that_would_cut_its_numbers_is_a_list() -> None:
    row = ["logits backward", "8.19", "2.71", "−5.49 ms", "−67.0%", "GEMMs changed"]
    heads = [("", "l"), ("before", "r"), ("after", "r"), ("diff", "r"), ("", "r"), ("because", "fold")]
    for width in (20, 40, 59, 80):
        file = io.StringIO()
        out = Out(Console(file=file, width=width))
        table = out.table(heads)
        table.add_row(*map(out.text, row))
        out.print(table)
        words = file.getvalue().split()
        assert max(cell_len(line) for line in file.getvalue().splitlines()) <= width
        assert all(word in words for cell in row for word in cell.split()), width


@pytest.mark.parametrize("name", VARIANTS)
def test_a_summary_has_24_lines_and_what_was_asked_for(name: str) -> None:
    report = replace(sample_report.VARIANTS[name](), what_if=[], waits=Waits(), cost=None)
    assert len(_render(report).splitlines()) <= 24


@pytest.mark.parametrize("name", VARIANTS)
def test_piped_output_has_no_escape_sequences(name: str) -> None:
    text = _render(sample_report.VARIANTS[name]())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)


def test_no_color_is_respected_and_the_bar_still_tells_groups_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = _render(sample_report.full(), verbose=True, force_terminal=True, color_system="truecolor")
    assert not re.search(r"\x1b\[[0-9;]*(?:3|4|9)[0-9][;m]", text)
    assert "▓" in text and "╱" in text


def test_a_colour_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = _render(sample_report.full(), verbose=True, force_terminal=True, color_system="truecolor")
    assert "\x1b[38;2;42;127;79m" in text  # the MLP's green


def test_hostile_names_are_text_on_a_colour_terminal() -> None:
    text = _render(sample_report.hostile(), force_terminal=True, color_system="truecolor")
    assert "[red]x[/red]" in text
    assert "\x1b]" not in text and "\x1b[31mred" not in text


def test_markup_that_does_not_close_is_harmless() -> None:
    report = sample_report.full()
    report = replace(report, summary=replace(report.summary, verdict="[/bold] [link=x"))
    assert "[/bold] [link=x" in _render(report)


def test_an_ascii_terminal_is_served() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    render_terminal(sample_report.hostile(), console=Console(file=file, width=80))
    file.flush()
    written = file.buffer
    assert isinstance(written, io.BytesIO)
    assert b"tracelens compare BEFORE" in written.getvalue()


def test_unattributed_is_on_the_bar_and_has_its_reason() -> None:
    report = sample_report.full()
    text = _render(report, verbose=True)
    bar = next(line for line in text.splitlines() if line.startswith("███"))
    assert bar.endswith("╱")
    assert "Unattributed 2.0%, mostly:" in text
    assert "record with record_shapes=True" in text


@pytest.mark.parametrize("name", VARIANTS)
def test_golden_80_columns(name: str) -> None:
    check(f"terminal_{name}.txt", _render(sample_report.VARIANTS[name]()))


def test_golden_120_columns() -> None:
    check("terminal_wide.txt", _render(sample_report.full(), 120, verbose=True))


def test_a_file_with_more_than_its_steps_says_what_is_not_counted() -> None:
    report = sample_report.full()
    whole = [replace(row, time_ns=int(row.time_ms_per_step * 5e6)) for row in report.components]
    assert "outside these steps" not in _render(replace(report, components=whole), verbose=True)
    more = [*whole, replace(whole[0], time_ns=sum(row.time_ns for row in whole), time_ms_per_step=0.0)]
    assert "Not counted: 50.0%" in _render(replace(report, components=more), verbose=True)


def test_money_and_gpu_hours_are_told_where_a_price_was_given() -> None:
    report = sample_report.full()
    assert report.cost is not None and "GPU-hours" in _render(report)
    assert "GPU-hours" not in _render(replace(report, cost=replace(report.cost, price=None)))


def test_findings_that_the_verdict_names_have_a_line_however_large_the_bounds_before_them() -> None:
    report = sample_report.full()
    one = report.findings[0]
    bound, predicted = Estimate(None, None, 9.0, "heuristic"), Estimate(1.0, 2.0, 3.0, "model")
    bounds = [replace(one, rule=f"TL90{at}", saving_ms=bound) for at in range(4)]
    named = [replace(one, rule=f"TL80{at}", saving_ms=predicted) for at in range(2)]
    text = _render(replace(report, findings=[*bounds[:2], named[0], *bounds[2:], named[1]]))
    assert re.findall(r"\bTL[89]0\d(?=  )", text) == ["TL900", "TL800", "TL801"]


def test_a_long_title_of_a_new_model_keeps_what_to_do() -> None:
    """Cut at the first colon it said "New model" and no more."""
    report, action = sample_report.VARIANTS["full"](), "Use 16 heads of 128 instead of 20"
    finding = replace(
        report.findings[0], effort="retrain", effects=None, title=f"{action}: {'it fills tiles ' * 20}"
    )
    lines = _render(replace(report, findings=[finding]))
    assert f"New model: u{action[1:]}" in re.sub(r"\s+", " ", lines)


@pytest.mark.parametrize("name", ["h100-sxm", "unknown"])
def test_the_gpu_is_told_however_long_its_name(name: str) -> None:
    one, long = sample_report.full(), "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    unmarked = replace(one.summary, steps_marked=False)
    trace = replace(one.trace, rank=0, world_size=1, device=long)
    text = _render(replace(one, summary=unmarked, trace=trace, gpu=replace(one.gpu, name=name, title=long)))
    assert long in " ".join(text.split())


def test_a_width_that_old_weights_are_padded_to_is_no_new_model(said: Listener) -> None:
    report = sample_report.VARIANTS["full"]()
    effects = report.findings[0].effects
    assert effects is not None and effects.checkpoint == "pads"
    wider = replace(report.findings[0], effort="retrain", title="Change ffn from 10922 to 10944")
    other = replace(wider, effects=replace(effects, checkpoint="scratch"))
    told = [
        re.sub(r"\s+", " ", _render(replace(report, findings=[one]), verbose=True)) for one in (wider, other)
    ]
    assert ["ew model" in text for text in told] == [False, True]
    said([titled(one) for one in (wider, other)])


def test_dimensions_of_a_lesser_part_are_not_told_as_the_models(said: Listener) -> None:
    """Beside a compiled diffusion transformer of unknown sizes, its text encoder was the headline."""
    report = sample_report.VARIANTS["full"]()
    whole = facts.model_line(report)
    covered = replace(report.coverage, component_frac=0.3)
    part, *rest = facts.model_line(replace(report, coverage=covered))
    assert rest == whole
    said(part)


def test_another_gpu_than_the_trace_names_is_said_with_the_one_that_ran() -> None:
    """Times are an H100's, peaks those that --gpu names."""
    one = sample_report.full()
    trace = replace(one.trace, device="NVIDIA H100 80GB HBM3")
    gpus = [
        replace(one.gpu, name="a100-sxm-80gb", matched_by="--gpu"),
        replace(one.gpu, name="h100-sxm", matched_by="--gpu"),
        replace(one.gpu, name="h100-sxm", matched_by="device name"),
    ]
    named = [" ".join(facts.run_line(replace(one, trace=trace, gpu=gpu))) for gpu in gpus]
    assert ["HBM3" in text for text in named] == [True, False, False]
