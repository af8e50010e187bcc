"""``tracelens doctor``: the verdict, its exit code, and the argument that mends what is missing."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.cli.running import run
from tests.trace.tools import document, kernel, op, small_trace
from tracelens import words
from tracelens.cli.job import is_job
from tracelens.render.facts import GENERATED, rule_lines
from tracelens.render.html import render_html
from tracelens.results.json import diagnosis_json


def written(folder: Path, events: list[Any] | None = None, **options: Any) -> Path:
    trace = small_trace(**({"steps": 3, "prelaunched": 0} | options))
    text = document(events) if events is not None else trace.text()
    path = folder / "trace.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("options", "verdict", "code", "remedy"),
    [
        ({}, "good", "", ""),
        ({"shapes": False}, "poor", "shapes", "record_shapes=True"),
        ({"prelaunched": 40}, "good", "launches", "warmup=1"),
        ({"steps": 1}, "good", "steps", "active=3"),
        ({"events": [op()]}, "unusable", "gpu-events", "ProfilerActivity.CUDA"),
        ({"events": [kernel()]}, "poor", "launches", "ProfilerActivity.CPU"),
    ],
    ids=["good", "no shapes", "launched before", "one step", "no GPU", "GPU alone"],
)
def test_what_is_missing_is_named_with_the_argument_that_gives_it(
    tmp_path: Path, options: dict[str, Any], verdict: str, code: str, remedy: str
) -> None:
    path = written(tmp_path, **options)
    found = tracelens.doctor(path)
    assert found.verdict == verdict
    missing = {check.code: check.remedy for check in found.checks if check.state != "good"}
    good = {check.code for check in found.checks if check.state == "good"}
    assert ("shapes" in good) == (code not in ("shapes", "gpu-events") and "events" not in options)
    assert remedy in missing.get(code, "")
    done = run("doctor", path, cwd=tmp_path, COLUMNS="80")
    assert done.returncode == {"good": 0, "poor": 1, "unusable": 3}[verdict]
    assert remedy in done.stdout
    assert len(done.stdout.splitlines()) <= 20
    assert all(check.remedy for check in found.checks if check.state != "good")


def test_a_broken_rule_of_pytorchs_makes_it_poor(tmp_path: Path) -> None:
    document = json.loads(written(tmp_path).read_text())
    document["traceEvents"].append(op("record_param_comms", ts=document["traceEvents"][-1].get("ts", 1)))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    found = tracelens.doctor(path)
    assert [rule.code for rule in found.rules if rule.broken] == ["nccl-metadata"]
    assert run("doctor", path).returncode == 1
    report = tracelens.analyze(path, shape_search=False).report
    assert report.trace_rules == [rule for rule in found.rules if rule.checked]
    page = html.unescape(render_html(report))
    assert len(rule_lines(found.rules)) == 2 and all(line in page for line in rule_lines(found.rules))


def test_json_on_standard_output_is_all_there_is(tmp_path: Path) -> None:
    path = written(tmp_path, shapes=False)
    done = run("doctor", path, "--json", "-")
    assert done.returncode == 1
    assert done.stdout.encode() == diagnosis_json(tracelens.doctor(path))
    assert run("doctor", path, "--json", tmp_path / "d.json", "-q").stdout == ""
    assert json.loads((tmp_path / "d.json").read_text())["verdict"] == "poor"


def test_an_address_of_a_trace_is_read_and_one_of_a_folder_is_a_job(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    there = fsspec.filesystem("memory")
    there.pipe("/run/rank0.json", written(tmp_path).read_bytes())
    assert run("doctor", "memory://run/rank0.json").stdout.startswith("Good enough to analyze: rank0.json")
    assert not is_job(["memory://run/rank0.json"])
    assert is_job(["memory://run"]) and is_job(["memory://run/rank*.json"])
    there.rm("/run", recursive=True)


def test_what_is_no_trace_is_one_line_and_3(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    done = run("doctor", tmp_path / "trace.json")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)


def test_a_file_that_ends_before_its_kernels_is_to_be_copied_again(tmp_path: Path) -> None:
    events = [op(ts=at) for at in range(20)]
    text = document(events)
    (tmp_path / "trace.json").write_text(text[: text.rindex("aten::mm")])
    said = run("doctor", tmp_path / "trace.json").stdout
    assert "copy the file again" in " ".join(said.split()) and "activities" not in said


def test_a_generated_trace_is_called_one_alone_and_in_a_job(tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"
    (tmp_path / "rank0.json.gz").write_bytes(sample.read_bytes())
    assert any(one.code == "generated" for one in tracelens.doctor(sample).checks)
    told = run("analyze", tmp_path, "--no-html", "--json", tmp_path / "job.json").stdout
    assert GENERATED in told and json.loads((tmp_path / "job.json").read_text())["generated"] is True
    told = run("suggest", sample, "--json", tmp_path / "suggested.json").stdout
    assert words.GENERATED in " ".join(told.split()) and "measured" not in told
    assert json.loads((tmp_path / "suggested.json").read_text())["generated"] is True
