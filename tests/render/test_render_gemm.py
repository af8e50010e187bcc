"""A product at the terminal: it fits, cliffs and gaps show, nothing is claimed that is not known."""

from __future__ import annotations

import io
import json
import random
import re
from typing import Any

import jsonschema
import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.render.golden import check
from tracelens.gemm.predict.derivation import evaluate
from tracelens.gemm.study import Study, study_gemm
from tracelens.hardware import find_gpu, list_gpus
from tracelens.render.columns import axis_line, column_chart, mark_line
from tracelens.render.gemm import chart_columns, render_gemm, render_gpus
from tracelens.render.gemm_json import gemm_json
from tracelens.results.schema import json_schema

VARIANTS: dict[str, dict[str, Any]] = {
    "vocabulary": dict(sizes=(8192, 50257, 2560), gpu="h100-sxm"),
    "wave": dict(sizes=(2304, 1600, 4096), gpu="a100-sxm-40gb", span=(512, 4096)),
    "decode": dict(sizes=(1, 8192, 8192), gpu="h100-sxm", vary=("m", "k")),
    "unknown_alignment": dict(sizes=(8192, 50257, 2560), gpu="rtx-4090"),
    "bounded": dict(sizes=(8192, 50257, 2560), gpu="b200"),
    "unknown_gpu": dict(sizes=(8192, 50257, 2560), gpu="b300", dtype="nvfp4"),
    "lacked": dict(sizes=(8192, 50257, 2560), gpu="t4"),
    "cast": dict(sizes=(2048, 2560, 2560), gpu="h100-sxm", dtype="fp8"),
    "wgrad": dict(sizes=(768, 768, 32768), gpu="h100-sxm", layout="NT", batch=2),
}


def study(name: str, *, columns: int = 64) -> Study:
    how = dict(VARIANTS[name])
    sizes, gpu = how.pop("sizes"), find_gpu(None, override=how.pop("gpu"))
    return study_gemm(*sizes, gpu=gpu, columns=columns, **how)


def shown(name: str, width: int = 80, *, explain: bool = False, **how: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **how)
    render_gemm(study(name, columns=chart_columns(console)), console=console, explain=explain)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", VARIANTS)
def test_golden(name: str) -> None:
    check(f"gemm_{name}.txt", shown(name, explain=name == "wave"))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 200])
def test_everything_fits_and_a_pipe_gets_plain_text(name: str, width: int) -> None:
    text = shown(name, width, explain=True)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text


def test_the_present_size_and_the_neighbours_stand_under_their_columns() -> None:
    lines = shown("wave", 100).splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip().startswith("512 "))
    marks, drawn = lines[at - 1], lines[at - 7 : at - 1]
    here, other = marks.index("^"), marks.index("2")
    heights = [sum(line[column : column + 1].strip() != "" for line in drawn) for column in (here, other)]
    assert other == here - 1 and heights[0] < heights[1]  # the cliff between 1536 and 1600
    assert "N = 1600" in lines[at]


def test_colour_follows_the_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = shown("wave", force_terminal=True, color_system="truecolor")
    assert "\x1b[1;33m" in coloured  # the present size
    monkeypatch.setenv("NO_COLOR", "1")
    plain = shown("wave", force_terminal=True, color_system="truecolor")
    assert not re.search(r"\x1b\[[0-9;]*(?:3|4|9)[0-9][;m]", plain)
    assert re.sub(r"\x1b\[[0-9;]*m", "", plain) == shown("wave")


@pytest.mark.parametrize("name", VARIANTS)
def test_an_ascii_terminal_is_served(name: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    render_gemm(study(name, columns=60), console=Console(file=file, width=80), explain=True)
    file.flush()
    assert isinstance(file.buffer, io.BytesIO)
    text = file.buffer.getvalue().decode("ascii")
    assert "out[" in text and ("#" in text or name in ("unknown_gpu", "lacked"))


@pytest.mark.parametrize("name", ["unknown_alignment", "bounded", "unknown_gpu"])
def test_an_unknown_time_has_bounds_and_a_reason_and_no_claim(name: str) -> None:
    text = shown(name)
    assert "time unknown: " in text and "is not known" in text
    assert "of peak" not in text and "% less" not in text


def test_why_this_gpu_is_said_where_none_was_named() -> None:
    console = Console(file=io.StringIO(), width=200)
    render_gemm(study("wave"), console=console, gpu_why="is assumed")
    assert isinstance(console.file, io.StringIO)
    assert "a100-sxm-40gb is assumed; --gpu list" in console.file.getvalue()


def test_the_list_of_gpus_has_every_key_and_says_which_are_measured() -> None:
    console = Console(file=io.StringIO(), width=80)
    render_gpus(list_gpus(), measured={"h200"}, console=console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()[1:]
    assert [line.split()[0] for line in lines] == [gpu.name for gpu in list_gpus()]
    assert [line.split()[0] for line in lines if line.rstrip().endswith("measured")] == ["h200"]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_json_follows_the_published_schema_and_says_the_same(name: str) -> None:
    one = study(name)
    data = json.loads(gemm_json(one))
    jsonschema.Draft202012Validator(json_schema("gemm")).validate(data)
    assert data["time_us"]["mid"] == one.prediction.time_us.mid
    assert data["unknown"] == one.prediction.unknown
    assert [term["value"] for term in data["terms"]] == [term[2] for term in one.prediction.terms]
    for term in data["terms"]:
        assert evaluate(term["formula"]) == pytest.approx(term["value"], rel=1e-6)
    for around, made in zip(data["around"], one.around, strict=True):
        assert [each["size"] for each in around["neighbours"]] == [each.size for each in made.neighbours]
        assert [each["size"] for each in around["curve"]] == [each.size for each in made.curve]


def test_every_field_is_required() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema_version": "1.0"}, json_schema("gemm"))


def test_columns_are_as_high_as_their_values() -> None:
    draw = random.Random(3)
    for _ in range(50):
        values = [draw.uniform(1, 100) for _ in range(draw.randint(2, 40))]
        chart = column_chart(values, width=80, height=5)
        assert len({len(line) for line in chart.lines}) == 1 and len(chart.lines) == 5
        fills = [
            sum(" ▁▂▃▄▅▆▇█".index(line[at * chart.width]) for line in chart.lines)
            for at in range(len(values))
        ]
        for value, fill in zip(values, fills, strict=True):
            exact = 40 * (value - chart.bottom) / (chart.top - chart.bottom)
            assert abs(fill - exact) <= 0.5 or fill == 1


def test_the_axis_begins_at_zero_unless_all_values_are_alike() -> None:
    assert column_chart([10, 100], width=10).bottom == 0
    near = column_chart([90, 100], width=10)
    assert 0 < near.bottom <= 80  # a tenth looks like no more than half
    assert column_chart([100, 100], width=10).bottom == 0


def test_values_that_are_not_known_are_gaps_with_a_question_mark() -> None:
    chart = column_chart([1.0, None, float("inf"), 2.0], width=4, height=3)
    assert [line[1:3] for line in chart.lines] == ["  ", "  ", "??"]
    assert column_chart([None, None], width=4, height=1).lines == ("????",)
    assert column_chart([], width=4, height=2).lines == ("", "")


def test_ascii_columns_have_ascii_marks() -> None:
    assert all(line.isascii() for line in column_chart([1, 2, 3], width=9, ascii_only=True).lines)


def test_labels_that_would_run_into_each_other_are_left_out() -> None:
    assert axis_line("1200", "2000", middle=(2, "N = 1600"), width=30).split() == ["1200", "2000"]
    assert axis_line("1", "2", middle=None, width=1) == "1 2"
    assert mark_line({}, width=3) == ""
