"""What a CI meets: gates and exit codes, job summaries, annotations, and names that try to be commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.kept import analyzed
from tests.render import sample_report
from tests.said import Listener
from tests.synthetic import ModelSpec, Options, build
from tracelens.gates import REPORT_METRICS, Judged, Remark, judge_report, parse_gate
from tracelens.render.actions import annotation, disarm, disarm_json
from tracelens.render.gates import finding_annotations, gate_annotations
from tracelens.render.markdown import render_report_markdown
from tracelens.results.json import to_json

ROOT = Path(__file__).resolve().parents[2]
SAMPLE, AFTER = (ROOT / "sample_traces" / f"generated_gpt2_vocab{v}.json.gz" for v in (50257, 50304))
#: Lines that GitHub's runner takes for a command (actions/runner, ActionCommand.cs).
COMMAND = re.compile(r"(?m)^\s*::[\w-]+( [^:\n]*)?::|##\[[\w-]+[^\]\n]*\]")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample's report: a gate says of it what it says of the trace, without an analysis each time."""
    path = tmp_path_factory.mktemp("saved") / "saved.json"
    path.write_bytes(to_json(analyzed(SAMPLE).report))
    return path


# exit codes


def test_a_failed_gate_ends_with_1_after_everything_is_written(tmp_path: Path) -> None:
    outputs = ["--json", "r.json", "--markdown", "r.md", "--kernels", "k.csv", "--perfetto", "p.json"]
    done = run(
        "analyze", SAMPLE, *outputs, "--fail-on", "shape_waste>5%", "--fail-on", "mfu<1%", cwd=tmp_path
    )
    assert done.returncode == 1
    written = {"r.json", "r.md", "k.csv", "p.json", "generated_gpt2_vocab50257.report.html"}
    assert written == {path.name for path in tmp_path.iterdir()}
    assert "step time" in done.stdout and "GPU time by component" in done.stdout
    gates = done.stdout.partition("\nGates\n")[2]
    assert re.search(r"FAILED +shape_waste>5% +20\.\d%", gates) and re.search(r"passed +mfu<1%", gates)
    (line,) = done.stderr.splitlines()
    assert line.startswith("tracelens: 1 of 2 gates failed: shape_waste>5% (20.")


def test_gates_that_pass_end_with_0(saved: Path, tmp_path: Path) -> None:
    done = run("analyze", saved, "--no-html", "--fail-on", "idle>5%", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = run("compare", SAMPLE, AFTER, "--fail-on", "component_change[logits]>1%", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "passed" in done.stdout


def test_a_figure_that_is_unknown_fails_unless_told_otherwise_and_is_never_silent(
    saved: Path, tmp_path: Path, said: Listener
) -> None:
    gate = ["--fail-on", "step_unprofiled>1ms"]
    done = run("analyze", saved, "--no-html", *gate, cwd=tmp_path)
    assert done.returncode == 1 and "not judged" in done.stdout
    said(done.stderr)
    done = run("analyze", saved, "--no-html", *gate, "--if-unknown", "warn", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "not judged" in done.stdout
    done = run("analyze", saved, "--no-html", "-q", *gate, "--if-unknown", "warn", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "") and "step_unprofiled>1ms not judged" in done.stderr


def test_two_steps_are_too_few_to_pass_a_regression_gate(tmp_path: Path, said: Listener) -> None:
    for size in (1003, 1024):
        spec = ModelSpec(hidden=256, heads=4, layers=1, vocab=size, sequence=128)
        (tmp_path / f"{size}.json").write_text(build(spec, Options(steps=2)).text())
    done = run("compare", "1003.json", "1024.json", "--fail-on", "regression>3%", cwd=tmp_path)
    assert done.returncode == 1
    said(done.stderr)


def test_an_open_gate_passes_and_says_so(saved: Path, tmp_path: Path, said: Listener) -> None:
    done = run("analyze", saved, "--no-html", "-q", "--fail-on", "shape_waste>21%", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    said(done.stderr)


@pytest.mark.parametrize(
    "command", [["analyze", "nowhere.json"], ["compare", "nowhere.json", "nowhere.json"]]
)
def test_a_wrong_gate_is_refused_before_anything_is_read(tmp_path: Path, command: list[str]) -> None:
    done = run(*command, "--fail-on", "shapes>5%", cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "no such figure" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["analyze", "compare"])
def test_the_figures_are_listed_without_a_trace(tmp_path: Path, command: str) -> None:
    done = run(command, "--list-metrics", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("shape_waste" in done.stdout) == (command == "analyze")
    assert ("regression" in done.stdout) == (command == "compare")
    assert ("straggler" in done.stdout) == (command == "analyze")  # of a folder of ranks
    assert "attention.core" in done.stdout


def test_the_readers_going_away_changes_no_exit_code(saved: Path, tmp_path: Path) -> None:
    for gate, code in (("mfu<90%", 1), ("mfu<1%", 0)):
        command = f'{sys.executable} -m tracelens analyze "{saved}" --no-html --fail-on "{gate}"'
        done = subprocess.run(
            ["bash", "-c", f"{command} | head -1; exit ${{PIPESTATUS[0]}}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert (
            done.stdout.count("\n") == 1 and "Traceback" not in done.stderr and "Exception" not in done.stderr
        )
        assert ("the gate failed" in done.stderr) == bool(code)


# Markdown


def test_the_summary_of_a_job_is_added_to_and_other_files_are_replaced(saved: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("what another command said\n")
    for markdown in ("summary.md", str(summary)):
        done = run(
            "analyze", saved, "--no-html", "-q", "--markdown", markdown, cwd=tmp_path,
            GITHUB_STEP_SUMMARY=str(summary),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    text = summary.read_text()
    assert text.startswith("what another command said\n") and text.count("### Findings") == 2
    (tmp_path / "other.md").write_text("old")
    run(
        "analyze",
        saved,
        "--no-html",
        "-q",
        "--markdown",
        "other.md",
        cwd=tmp_path,
        GITHUB_STEP_SUMMARY=str(summary),
    )
    assert (tmp_path / "other.md").read_text().startswith("*Generated trace")
    assert summary.read_text() == text


def test_nothing_is_written_to_the_summary_unasked(saved: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    run("analyze", saved, "--no-html", cwd=tmp_path, GITHUB_STEP_SUMMARY=str(summary), GITHUB_ACTIONS="true")
    assert not summary.exists()


def test_a_summary_that_is_not_set_here_is_said_before_the_work(tmp_path: Path) -> None:
    for command in (["analyze", "nowhere.json"], ["compare", "nowhere.json", "nowhere.json"]):
        done = run(*command, "--markdown", "", cwd=tmp_path)
        assert done.returncode == 2 and "is GITHUB_STEP_SUMMARY set here?" in done.stderr


def test_markdown_on_standard_output_is_the_only_thing_there(tmp_path: Path) -> None:
    done = run("analyze", SAMPLE, "--no-html", "--markdown", "-", "--fail-on", "shape_waste>5%", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("*Generated trace, not a measurement*")
    assert "| shape\\_waste\\>5% | FAILED | 20." in done.stdout
    assert "```diff\n- vocab_size = 50257\n+ vocab_size = 50304\n```" in done.stdout
    assert "wrote" not in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "-", "--markdown", "-"],
        ["--json", "-", "--annotations", "github"],
        ["--markdown", "-", "--annotations", "github"],
        ["--markdown", "-", "--gemm", "g1"],
    ],
)
def test_standard_output_holds_one_thing(tmp_path: Path, arguments: list[str]) -> None:
    done = run("analyze", SAMPLE, *arguments, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "" and "standard output" in done.stderr


@pytest.mark.parametrize("name", sorted(sample_report.VARIANTS))
def test_markdown_of_every_report_is_text(name: str) -> None:
    report = sample_report.VARIANTS[name]()
    text = render_report_markdown(report, gates=judge_report(report, ["shape_waste>5%", "mfu<50%"]))
    assert len(text) < 60_000  # GitHub takes a megabyte
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    outside = re.sub(r"(?ms)^(`{3,})diff\n.*?^\1$", "", text)
    assert not re.search(r"(?<!\\)[<\[]", outside), "markup of a name"
    assert not COMMAND.search(text)
    cells = [line for line in outside.splitlines() if line.startswith("|")]
    assert cells and {line.count(" | ") for line in cells} <= {1, 2, 3, 5, 6}


def test_a_diff_cannot_end_its_block() -> None:
    report = sample_report.full()
    evil = replace(report.findings[0], fix=["```", "- a = 1", "````", "::stop-commands::x"])
    text = render_report_markdown(replace(report, findings=[evil]))
    block = text.partition("`````diff\n")[2].partition("\n`````\n")[0]
    assert block.splitlines() == ["```", "- a = 1", "````", ": :stop-commands::x"]


# annotations and commands


def test_annotations_come_only_when_asked_for(saved: Path, tmp_path: Path) -> None:
    gates = [
        "--fail-on",
        "shape_waste>5%",
        "--fail-on",
        "step_unprofiled>1ms",
        "--fail-on",
        "shape_waste>21%",
    ]
    silent = run("analyze", saved, "--no-html", *gates, cwd=tmp_path, GITHUB_ACTIONS="true")
    assert not COMMAND.search(silent.stdout) and silent.returncode == 1
    done = run("analyze", saved, "--no-html", "-q", *gates, "--annotations", "github", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "::error", "::error", "::warning", "::notice", "::notice",
    ]  # fmt: skip
    assert lines[0].startswith("::error title=tracelens%3A shape_waste>5%25 FAILED::20.")
    assert lines[3].startswith("::notice title=tracelens%3A TL101::Pad vocab_size from 50257 to 50304: saves")
    warned = run(
        "analyze",
        saved,
        "--no-html",
        "-q",
        *gates,
        "--annotations",
        "github",
        "--if-unknown",
        "warn",
        cwd=tmp_path,
    )
    assert [line.split(" ")[0] for line in warned.stdout.splitlines()].count("::error") == 1


@pytest.mark.parametrize(
    "text",
    [
        "::stop-commands::token",
        "a\n::error::x",
        "a\r::error::x",
        "100%0A::error::x",
        "##[group]x",
        "a,b=c:d::e",
        "\u2028::error::x",
        "\x1b[31m::error::x",
    ],
)
def test_an_annotation_is_one_line_whatever_stands_in_it(text: str) -> None:
    line = annotation("warning", text, text)
    assert not re.search(r"[\r\n\u2028]", line)
    title, _, message = line.removeprefix("::warning title=").partition("::")
    assert not re.search(r"[:,]", title) and "##[" not in line
    assert not re.search(r"%(?!25|0D|0A|3A|2C)", title + message)
    assert line.startswith("::warning title=")


def test_hostile_findings_and_gates_are_single_annotations() -> None:
    report = sample_report.hostile()
    gates = [
        Judged(gate, state, None, [Remark("report", {"why": "a\rb\n::error::"})])
        for gate in [replace(parse_gate("findings>0", REPORT_METRICS), text="x\n::error::y")]
        for state in ("failed", "open", "unknown")
    ]
    lines = [*finding_annotations(report), *gate_annotations(gates, unknown_fails=True)]
    assert len(lines) == 1 + len(report.findings) + 3
    assert all(re.match(r"::(error|warning|notice) title=[^:,]*::", line) for line in lines)
    assert not re.search(r"[\r\n]", "".join(lines))


def test_lines_are_disarmed_and_names_of_cpp_are_not_touched() -> None:
    for command in (
        "::error::x",
        "  ::error::x",
        "\t::add-mask::x",
        "\x1b[1m ::error::x",
        "a ##[error]b",
        "\u3000::x::",
    ):
        assert not COMMAND.search(re.sub(r"\x1b\[1m", "", disarm(command))), command
    fine = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    assert disarm(fine) == fine
    data = json.dumps({"name": "##[stop-commands]x", "more": "###[a]"}).encode()
    assert b"##[" not in disarm_json(data) and json.loads(disarm_json(data)) == json.loads(data)


def test_a_hostile_trace_gives_the_runner_no_command(tmp_path: Path) -> None:
    """Names in the trace and of the file itself, through every format that goes to standard output."""
    made = build(
        ModelSpec(hidden=256, heads=4, layers=2, vocab=997, sequence=128, micro_batch=2), Options(steps=1)
    )
    evil = "::stop-commands::x ##[group]y"
    events = json.loads(made.text())
    for event in events["traceEvents"]:
        if event.get("cat") in ("kernel", "cpu_op", "python_function"):
            event["name"] = f"{evil} {event['name']}"
    (tmp_path / f"{evil}.json").write_text(json.dumps(events))
    for arguments in (
        [],
        ["--json", "-"],
        ["--markdown", "-"],
        ["--annotations", "github"],
        ["--gemm", "g1"],
    ):
        done = run(
            "analyze",
            f"{evil}.json",
            "--no-html",
            *arguments,
            cwd=tmp_path,
            GITHUB_ACTIONS="true",
            FORCE_COLOR="1",
        )
        assert done.returncode == 0 or "no such row" in done.stderr, done.stderr
        seen = [
            line
            for line in re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).splitlines()
            if COMMAND.search(line)
            and not line.startswith(("::notice title=tracelens", "::warning title=tracelens"))
        ]
        assert not seen, arguments
        if arguments == ["--json", "-"]:
            assert json.loads(done.stdout)["trace"]["path"] == f"{evil}.json"
    plain = run("analyze", f"{evil}.json", "--no-html", "-v", cwd=tmp_path)
    assert f"{evil}.json" in plain.stdout  # elsewhere names are shown as they are
    missing = run("analyze", f"no {evil}", cwd=tmp_path, GITHUB_ACTIONS="true")
    assert missing.returncode == 3 and not COMMAND.search(missing.stderr)
