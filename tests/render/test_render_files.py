"""Files appear whole or not at all; the kernel table keeps its numbers and disarms its names."""

from __future__ import annotations

import csv
import os
import stat
from pathlib import Path

import pandas as pd
import pytest

from tests.render import sample_report
from tracelens.errors import UsageError
from tracelens.files import atomic, write_text
from tracelens.render.kernels import write_kernels

NS = 1_763_686_112_345_678_901  # more digits than a float holds


def _frame() -> pd.DataFrame:
    names = ["=1+1", "+x", "-y", "@sum", "\tz", "plain", *sample_report.HOSTILE_NAMES]
    count = len(names)
    return pd.DataFrame(
        {
            "name": names,
            "category": pd.Categorical(["=kernel"] * count),
            "ts_ns": pd.array([NS + i for i in range(count)], dtype="int64"),
            "dur_ns": pd.array([None] + [-5] * (count - 1), dtype="Int64"),
            "flops": [-1.5] * count,
            "components": [["attention.qkv", "attention.rope"]] * count,
            "layer": [None] * count,
        }
    )


def test_parquet_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "k.parquet"
    write_kernels(_frame(), path)
    back = pd.read_parquet(path)
    assert list(back["ts_ns"]) == list(_frame()["ts_ns"])
    assert list(back["name"]) == list(_frame()["name"])
    assert os.listdir(tmp_path) == ["k.parquet"]


def test_csv_keeps_nanoseconds_and_disarms_formulas_only_in_text(tmp_path: Path) -> None:
    path = tmp_path / "k.csv"
    write_kernels(_frame(), path)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["ts_ns"]) for row in rows] == list(_frame()["ts_ns"])
    assert [row["name"] for row in rows[:6]] == ["'=1+1", "'+x", "'-y", "'@sum", "'\tz", "plain"]
    assert rows[-1]["name"] == "'=HYPERLINK(1)"
    assert rows[0]["category"] == "'=kernel"
    assert rows[1]["dur_ns"] == "-5" and rows[0]["dur_ns"] == "" and rows[1]["flops"] == "-1.5"
    assert rows[0]["components"] == "attention.qkv;attention.rope"
    assert rows[0]["layer"] == ""


def test_an_empty_table_has_its_header(tmp_path: Path) -> None:
    write_kernels(_frame().iloc[:0], tmp_path / "k.csv")
    assert (tmp_path / "k.csv").read_text().startswith("name,category,ts_ns")


@pytest.mark.parametrize("name", ["k.xlsx", "k", "k.csv.zip"])
def test_another_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"end it in \.parquet or \.csv"):
        write_kernels(_frame(), tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    write_text(path, "old")
    with pytest.raises(RuntimeError), atomic(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.html"]


def test_files_can_be_read_by_those_the_umask_allows(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_text(tmp_path / "a.html", "x")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.html").stat().st_mode) == 0o644


def test_links_are_followed_and_devices_written_to(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"
    write_text("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_place_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        write_text(tmp_path / "no" / "a.html", "x")
    with pytest.raises(UsageError, match="it is a folder"):
        write_text(tmp_path, "x")
