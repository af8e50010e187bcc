"""`tracelens verify` on a command line: bad inputs, no torch, no GPU, and on the CPU for a try."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from tests.cli import running
from tests.cli.running import one_line
from tests.kept import analyzed
from tests.said import Listener
from tracelens import Analysis
from tracelens.render.html import render_html
from tracelens.results.json import to_json

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_traces" / "generated_gpt2_vocab50257.json.gz"
#: What a GPU machine may lack.
BARE = ("msgspec", "isal", "pandas", "pyarrow", "jinja2")


def run(*arguments: str | Path, without: tuple[str, ...] = ()) -> CompletedProcess[str]:
    """``without``: modules that cannot be imported, in a Python of its own."""
    if without:
        return running.run_without(without, "verify", *arguments)
    return running.run("verify", *arguments)


@pytest.fixture(scope="session")
def report_bytes() -> bytes:
    return to_json(analyzed(SAMPLE).report)


@pytest.fixture
def report(report_bytes: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "report.json"
    path.write_bytes(report_bytes)
    return path


def test_without_torch_one_line_says_what_it_needs(report: Path, said: Listener) -> None:
    said(one_line(run(report, without=("torch",)), code=2))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here, which this would measure")
def test_without_a_gpu_one_line_says_so(report: Path, said: Listener) -> None:
    said(one_line(run(report), code=2).partition(": ")[2].partition(":")[0])
    assert [path.name for path in report.parent.iterdir()] == ["report.json"]


def test_what_is_no_report_is_one_line(tmp_path: Path, report: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_bytes(report.read_bytes()[:9000])
    assert "is no whole JSON" in one_line(run(cut), code=3)
    assert "no such file" in one_line(run(tmp_path / "none.json"), code=3)
    assert "is no whole JSON" in one_line(run(SAMPLE), code=3)


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(report: Path) -> None:
    line = one_line(run(report, "-o", report.parent / "nowhere" / "x.json", "--cpu-dry-run"), code=2)
    assert "cannot write" in line
    assert "it is a folder" in one_line(run(report, "-o", report.parent, "--cpu-dry-run"), code=2)


def test_a_try_where_the_reader_is_not_installed(report: Path, tmp_path: Path, said: Listener) -> None:
    before = report.read_bytes()
    done = run(report, "--cpu-dry-run", "--model", without=BARE)
    assert done.returncode == 0, done.stderr
    said(done.stdout.splitlines()[0])
    assert "TL101 Pad vocab_size" in done.stdout
    assert done.stdout.splitlines()[-1] == f"wrote {tmp_path / 'report.verified.json'}"
    assert report.read_bytes() == before
    found = Analysis.load(tmp_path / "report.verified.json").report
    assert found.verification is not None
    # the finding, and the shape search's pick of the same change
    assert (found.verification.gpu, found.verification.measured) == ("cpu", 2)
    finding = found.findings[0]
    assert finding.basis == "model"  # a CPU measures no GPU
    assert finding.verified is not None
    assert [whole.what for whole in finding.verified.wholes] == ["logits", "step"]
    assert not any(whole.why for whole in finding.verified.wholes)
    assert len(finding.verified.calls) == 3
    assert json.loads(before)["findings"][0]["saving_ms"]["mid"] == finding.saving_ms.mid


def test_the_page_shows_what_was_measured(report: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = run(report, "--cpu-dry-run", "--html", page, "--rule", "tl101")
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "1 of 1 suggestions" in text
    assert "logits and loss: " in text
    assert text == render_html(Analysis.load(tmp_path / "report.verified.json").report)
    assert "no finding of TL999" in one_line(run(report, "--cpu-dry-run", "--rule", "TL999"), code=2)
