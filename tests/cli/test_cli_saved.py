"""``tracelens analyze REPORT.json``: a saved report, shown again without its trace."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli import running
from tests.kept import analyzed
from tracelens.analysis import Analysis
from tracelens.errors import UsageError

SAMPLE = Path(__file__).resolve().parents[2] / "sample_traces" / "generated_gpt2_vocab50257.json.gz"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "rank0.json"
    done = run(SAMPLE, "--json", path, "-o", path.with_name("direct.html"))
    assert done.returncode == 0, done.stderr
    path.with_name("direct.txt").write_text(done.stdout)
    return path


def run(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return running.run("analyze", *arguments, cwd=cwd)


def seen(page: Path) -> str:
    """What a reader sees of it: without its day, and the report for programs that it carries."""
    text = re.sub(r"20\d\d-\d\d-\d\d \d\d:\d\d", "", page.read_text(encoding="utf-8"))
    return re.sub(r'(?s)<script type="application/json".*?</script>', "", text)


def test_page_and_summary_are_those_of_the_trace(report: Path) -> None:
    done = run(report, cwd=report.parent)
    assert done.returncode == 0, done.stderr
    direct = report.with_name("direct.txt").read_text()
    assert done.stdout.partition("wrote")[0] == direct.partition("wrote")[0]
    assert seen(report.with_name("rank0.report.html")) == seen(report.with_name("direct.html"))


def test_gates_and_json_are_those_of_the_trace(report: Path, tmp_path: Path) -> None:
    done = run(report, "--no-html", "-q", "--json", tmp_path / "again.json", "--fail-on", "shape_waste>5%")
    assert done.returncode == 1 and "shape_waste>5%" in done.stderr
    again, first = (json.loads(path.read_bytes()) for path in (tmp_path / "again.json", report))
    assert again == first and list(again["gpu"]["peak_tflops"]) == list(first["gpu"]["peak_tflops"])


def test_what_if_and_price_need_no_trace(report: Path, tmp_path: Path) -> None:
    given = ("--what-if", "vocab=50304", "--price", "2 EUR", "--no-html", "-q", "--json")
    assert run(report, *given, tmp_path / "saved.json").returncode == 0
    assert run(SAMPLE, *given, tmp_path / "direct.json").returncode == 0
    saved, direct = (Analysis.load(tmp_path / f"{name}.json").report for name in ("saved", "direct"))
    assert saved.what_if == direct.what_if and len(saved.what_if) == 1
    assert saved.cost == direct.cost and saved.findings == direct.findings
    with pytest.raises(UsageError, match="price"):
        Analysis.load(report).with_price("much")
    with pytest.raises(UsageError):
        Analysis.load(report).with_what_if("nonsense=1")


def test_another_what_if_stands_beside_the_first() -> None:
    one = analyzed(SAMPLE, what_ifs=("vocab=50304",)).with_what_if("heads=10")
    assert [list(found.change) for found in one.report.what_if] == [
        ["vocab"],
        ["heads", "kv_heads", "head_dim"],
    ]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--kernels", "k.csv"), ("--perfetto", "p.json"), ("--gpu", "a100-sxm-80gb"), ("--steps", "3:3"),
     ("--reference", str(SAMPLE)), ("--waits", None)],
)  # fmt: skip
def test_what_needs_the_trace_is_refused(
    report: Path, tmp_path: Path, option: str, value: str | None
) -> None:
    done = run(report, option, *([value] if value else []), cwd=tmp_path)
    assert done.returncode == 2 and not list(tmp_path.iterdir())
    assert done.stderr == f"tracelens: {report} is a saved report: {option} needs the trace\n"


def test_a_damaged_report_is_said_to_be_one(report: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_bytes(report.read_bytes()[:5000])
    done = run(cut, cwd=tmp_path)
    assert done.returncode == 3 and "not a tracelens report" in done.stderr and "truncated" in done.stderr
