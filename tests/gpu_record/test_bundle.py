"""Results come home in at most eight files of 16 MiB, and only results get to their places."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu import collect
from benchmarks.gpu import unpack as unpacking
from benchmarks.gpu.bundle import EVERY_S, MOST_BYTES, MOST_FILES, Bundler, TooMuch, pack_files
from benchmarks.gpu.runner import run_stage
from benchmarks.gpu.store import read_result
from benchmarks.gpu.unpack import unpack
from tests.gpu_record.toy import Clock, run_on, stage


def bundled(tmp_path: Path, clock: Clock | None = None) -> Bundler:
    far = tmp_path / "far"
    return Bundler(tmp_path / "out", far / "results", far / "sample_traces", "h200", clock=clock or Clock())


def test_results_progress_and_traces_are_put_in_their_places(tmp_path: Path) -> None:
    far, home = tmp_path / "far", tmp_path / "home"
    run, _ = run_on(far)
    run_stage(stage("sums"), run)
    run.folder.progress(stage("open")).append("row", ["open-0", {"value": 0}])
    (far / "sample_traces").mkdir()
    (far / "sample_traces" / "h200_gpt2.json.gz").write_bytes(os.urandom(3000))
    (far / "sample_traces" / "generated_gpt2.json.gz").write_bytes(b"stays where it is")
    written = bundled(tmp_path).write()
    assert [path.name for path in written] == ["collected-0.tar"]
    lines = unpack(tmp_path / "out", results=home / "results", traces=home / "sample_traces")
    assert len(lines) == 3
    for name in (
        "results/h200/sums.json",
        "results/h200/open.progress.jsonl",
        "sample_traces/h200_gpt2.json.gz",
    ):
        assert (home / name).read_bytes() == (far / name).read_bytes()
    assert not (home / "sample_traces" / "generated_gpt2.json.gz").exists()
    back, _ = run_on(home)
    assert back.folder.look(stage("sums")).current
    assert back.folder.look(stage("open")).done == {"open-0"}


def test_progress_that_became_a_result_goes_away_at_home_too(tmp_path: Path) -> None:
    far, home = tmp_path / "far", tmp_path / "home"
    near, _ = run_on(home)
    near.folder.progress(stage("sums")).append("row", ["sums-0", {"value": 0}])
    run, _ = run_on(far)
    run_stage(stage("sums"), run)
    bundled(tmp_path).write()
    unpack(tmp_path / "out", results=home / "results", traces=home / "sample_traces")
    assert [path.name for path in (home / "results" / "h200").iterdir()] == ["sums.json"]


def test_nothing_of_a_dry_run_and_nothing_older_gets_in(tmp_path: Path) -> None:
    far, home = tmp_path / "far", tmp_path / "home"
    for name in ("older", "toyish", "broken"):
        run, _ = run_on(far)
        run_stage(stage(name), run)
    place = far / "results" / "h200"
    (home / "results" / "h200").mkdir(parents=True)
    newer = json.dumps(read_result(place / "older.json") | {"date": "2999-01-01T00:00:00+00:00"})
    (home / "results" / "h200" / "older.json").write_text(newer)
    (place / "toyish.json").write_text(json.dumps(read_result(place / "toyish.json") | {"dry_run": True}))
    (place / "broken.json").write_text("{")
    bundled(tmp_path).write()
    lines = unpack(tmp_path / "out", results=home / "results", traces=home / "sample_traces")
    assert all(line.endswith("left out") for line in lines)
    assert [path.name for path in (home / "results" / "h200").iterdir()] == ["older.json"]
    assert (home / "results" / "h200" / "older.json").read_text() == newer


def test_large_records_are_spread_over_files_that_travel() -> None:
    members = [(f"sample_traces/h200_{at}", os.urandom(3_900_000)) for at in range(20)]
    parts = pack_files(members)
    assert len(parts) <= MOST_FILES
    assert all(len(part) <= MOST_BYTES for part in parts)
    names = []
    for part in parts:
        with tarfile.open(fileobj=io.BytesIO(part)) as archive:
            names += archive.getnames()
    assert sorted(names) == sorted(name for name, _ in members)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(TooMuch, match=r"sample_traces/x has 16\.0 MiB"):
        pack_files([("sample_traces/x", bytes(MOST_BYTES))])
    with pytest.raises(TooMuch, match="were collected; 8 files of 16 MiB travel"):
        pack_files([(f"sample_traces/{at}", bytes(9 * 2**20)) for at in range(9)])


def test_a_copy_that_cannot_be_made_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "file").write_text("no folder")
    arguments = ["--dry-run-cpu", "--out", str(tmp_path), "--pack", str(tmp_path / "file")]
    assert collect.main(arguments, stages=(stage("sums"),)) == 0
    assert capsys.readouterr().err.startswith("not packed: ")
    assert read_result(tmp_path / "results" / "cpu" / "sums.json")["state"] == "done"


def test_a_copy_is_kept_while_the_run_goes_on(tmp_path: Path) -> None:
    clock = Clock()
    bundler = bundled(tmp_path, clock)
    run, _ = run_on(tmp_path / "far")
    run.folder.progress(stage("sums")).append("row", ["sums-0", {"value": 0}])
    bundler.now_and_then()
    assert not (tmp_path / "out").exists()
    clock.now += EVERY_S
    bundler.now_and_then()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["collected-0.tar"]


@pytest.mark.parametrize(
    "name", ["../evil", "results/h200/../../evil.json", "/etc/evil", "elsewhere/x", "sample_traces/.x"]
)
def test_an_archive_that_reaches_elsewhere_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "collected-0.tar", "w") as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    assert unpacking.main([str(tmp_path)]) == 3
    assert "which is no result" in capsys.readouterr().err


def test_a_link_and_a_file_that_is_no_archive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no collected-\*.tar"):
        unpack(tmp_path)
    (tmp_path / "collected-0.tar").write_bytes(b"not a tar" * 100)
    with pytest.raises(ValueError, match="cannot be read"):
        unpack(tmp_path)
    with tarfile.open(tmp_path / "collected-0.tar", "w") as archive:
        info = tarfile.TarInfo("sample_traces/x")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(ValueError, match="which is no result"):
        unpack(tmp_path)
