"""What docs/jobs.md gives to Slurm and to Kubernetes runs, and merges to the answer of all ranks at once."""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from string import Template

import pytest
import yaml
from click.testing import CliRunner

from tests.job.simulated import Simulation, data_parallel
from tracelens.cli import cli
from tracelens.job.run import analyze_job

PAGE = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text(encoding="utf-8")


def _slurm() -> tuple[str, str]:
    of_rank, merging = re.findall(r"--wrap \\?\s*'([^']*)'", PAGE)
    return of_rank, merging


def _kubernetes() -> tuple[str, str]:
    block = re.search(r"```yaml\n(# [^\n]*`(tracelens merge [^`]*)`\n.*?)```", PAGE, re.DOTALL)
    assert block is not None
    job = yaml.safe_load(block[1])
    assert job["spec"]["completionMode"] == "Indexed"  # only then is JOB_COMPLETION_INDEX set
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["sh", "-c"]
    return container["command"][2], block[2]


@pytest.mark.parametrize(
    ("lines", "index"),
    [(_slurm, "SLURM_ARRAY_TASK_ID"), (_kubernetes, "JOB_COMPLETION_INDEX")],
    ids=["Slurm", "Kubernetes"],
)
def test_one_task_per_rank_and_a_merge_give_the_jobs_answer(
    lines: Callable[[], tuple[str, str]], index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("traces", "out"):
        (tmp_path / folder).mkdir()
    Simulation(data_parallel(2, steps=2)).write(tmp_path / "traces")
    for path in (tmp_path / "traces").iterdir():
        path.with_suffix(".json.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    at_once = analyze_job([tmp_path / "traces"], workers=1)
    of_rank, merging = lines()
    for rank in range(2):
        line = Template(of_rank).substitute({index: str(rank)})
        line = line.replace("/t/", "traces/").replace("/out/", "out/")  # the volumes of the container
        _run(line)
    _run(f"{merging} --json job.json")
    assert (tmp_path / "job.html").stat().st_size > 10_000
    merged = analyze_job([tmp_path / "out"], workers=1)
    assert [one.parts for one in merged.ranks] == [one.parts for one in at_once.ranks]
    assert merged.matched_calls == at_once.matched_calls > 0


def _run(line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "tracelens"
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
