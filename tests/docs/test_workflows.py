"""The workflow and the hook of docs/ci.md do what they say, command by command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.running import run
from tests.docs.blocks import ROOT, blocks
from tests.docs.readers import desk


@pytest.fixture(scope="module")
def written() -> list[Any]:
    return [yaml.safe_load(one.text) for one in blocks(ROOT / "docs" / "ci.md") if one.language == "yaml"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return desk(tmp_path_factory.mktemp("ci") / "desk")


def test_the_workflow_writes_its_reports_and_its_gates_decide(written: list[Any], folder: Path) -> None:
    (workflow,) = (one for one in written if "jobs" in one)
    (folder / "perf").mkdir()
    assert (
        run("analyze", "after.json.gz", "-q", "--no-html", "--json", "perf/main.json", cwd=folder).returncode
        == 0
    )
    summary = folder / "summary.md"
    lines = [
        shlex.split(step["run"].replace("$GITHUB_STEP_SUMMARY", str(summary)))
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if step.get("run", "").startswith("tracelens ")
    ]
    assert [words[1] for words in lines] == ["capture", "doctor", "analyze", "compare"]
    done = [
        run(*words[1:], cwd=folder, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
        for words in lines[1:]
    ]
    # waste; slower than main
    assert [one.returncode for one in done] == [0, 1, 1], [one.stderr for one in done]
    assert all("::error" in one.stdout for one in done[1:])
    assert {"report.html", "report.json", "compare.html"} <= {path.name for path in folder.iterdir()}
    assert summary.read_text(encoding="utf-8").count("Gates") == 2


def test_the_hook_suggests_a_shape_for_the_config(written: list[Any], folder: Path) -> None:
    (hook,) = (one["repos"][0]["hooks"][0] for one in written if "repos" in one)
    done = run(*shlex.split(hook["entry"])[1:], *hook["args"], "config.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout
