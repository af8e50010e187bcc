"""Wrong inputs of every command: one line, the right exit code, and what to do next."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.running import run

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "sample_traces" / "generated_gpt2_vocab50257.json.gz"

#: Command line -> exit code, what is wrong, and words of the next step.
WRONG: dict[str, tuple[int, *tuple[str, ...]]] = {
    "analyze trase.json.gz": (3, "did you mean trace.json.gz?"),
    "analyze nowhere.json": (3, "no such file", "check the path"),
    "analyze link.json.gz": (3, "link to a file that is not there"),
    "analyze empty": (3, "tracelens capture -- train.py"),
    "analyze notes.txt": (3, "torch.profiler traces are .json, .json.gz or .pftrace; record one with"),
    "analyze other.json": (3, "export_chrome_trace writes one"),
    "analyze cpu.json": (3, "no GPU event", "'tracelens suggest' predicts"),
    "analyze trace.json.gz --gpu h100x": (2, "h100x", "h100-sxm"),
    "analyze trace.json.gz --steps 9-12": (2, "--steps 12:15"),
    "analyze trace.json.gz --steps 90:95": (2, "no step between 90 and 95", "steps 3 to 6"),
    "analyze trace.json.gz --price cheap": (2, "2.50 EUR"),
    "analyze trace.json.gz --what-if vocab=many": (2, "vocab=50257"),
    "analyze trace.json.gz --fail-on mfuu>5%": (2, "--list-metrics"),
    "analyze trace.json.gz --fail-on mfu": (2, "--fail-on"),
    "analyze trace.json.gz --kernels rows.xls": (2, ".parquet or .csv"),
    "analyze trace.json.gz -o nowhere/page.html": (2, "nowhere", "make it first"),
    "analyze trace.json.gz -o /proc/page.html": (2, "name a file elsewhere"),
    "analyze trace.json.gz -o trace.json.gz": (2, "give another name"),
    "analyze a.summary b.summary --pages notes.txt": (2, "give a folder"),
    "analyze trace.json.gz --keep empty": (2, "give a folder or more traces"),
    "analyze trace.json.gz --reference nowhere.json": (3, "--reference: no such file", "check the path"),
    "analyze nosuch://bucket/rank0.json.gz": (3, "download it"),
    "compare trace.json.gz": (2, "--help"),
    "compare trace.json.gz empty": (2, "two files or two folders"),
    "compare trace.json.gz nowhere.json": (3, "check the path"),
    "compare trace.json.gz nosuch://bucket/rank0.json.gz": (3, "download it"),
    "doctor empty": (3, "give one trace file"),
    "doctor nosuch://bucket/a.txt": (3, "download it first"),
    "open nowhere.json": (3, "check the path"),
    "open page.html": (3, "open it in a browser"),
    "suggest nowhere.json": (3, "check the path"),
    "suggest --hidden 64": (2, "--heads and --layers"),
    "verify nowhere.json": (3, "check the path"),
    "merge nowhere": (3, "check the path"),
    "merge empty": (3, "no trace or summary in empty"),
    "explain TL999": (2, "TL999", "TL101"),
    "explain vocab": (2, "did you mean TL101 (pad-vocabulary)?"),
    "gemm 12x": (2, "8192x50257x2560"),
    "capture": (2, "--help"),
    "capture -- nowhere.py": (2, "check the path"),
    "capture --ranks some -- train.py": (2, "0-3"),
    "capture --wait 0 -- train.py": (2, "x>=1"),
    "analyse trace.json.gz": (2, "Did you mean 'analyze'?"),
    "analyze trace.json.gz --outptu x": (2, "Did you mean"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "empty").mkdir()
    shutil.copy(TRACE, folder / "trace.json.gz")
    (folder / "notes.txt").write_text("notes")
    (folder / "page.html").write_text("\n<!doctype html>")
    (folder / "link.json.gz").symlink_to("gone.json.gz")
    (folder / "other.json").write_text("{}")
    (folder / "cpu.json").write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1}]}')
    return folder


@pytest.mark.parametrize("line", WRONG)
def test_the_error_is_short_and_says_what_to_do(line: str, desk: Path) -> None:
    code, *words = WRONG[line]
    done = run(*shlex.split(line), cwd=desk)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert all(one in " ".join(done.stderr.split()) for one in words), done.stderr
    assert len(done.stderr.strip().splitlines()) in (1, 4), "one line, or click's usage"
    assert "Traceback" not in done.stderr
