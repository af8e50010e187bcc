"""A minute of strange inputs, the same ones each time, and those that once broke something.

``make fuzz`` goes on from there. A fault that it finds is mended, and its input kept in ``corpus``.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.fuzz import check, mutate
from tests.fuzz.run import CORPUS, make, place, run

CASES = 60
KEPT = sorted(CORPUS.iterdir()) if CORPUS.is_dir() else []


@pytest.mark.parametrize("block", range(4))
def test_strange_inputs_end_in_a_report_or_in_one_line(tmp_path: Path, block: int) -> None:
    ended = set()
    for number in range(block * CASES // 4, (block + 1) * CASES // 4):
        kind, data = make(number)
        try:
            ended.add(run(kind, data, tmp_path, thorough=number % 8 == 0))
        except Exception as error:
            pytest.fail(f"case {number} ({kind}): {place(error)}: {error}")
    assert "report" in ended  # not all refused at the door


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_once_broke(tmp_path: Path, path: Path) -> None:
    run(path.suffix[1:], gzip.decompress(path.read_bytes()), tmp_path, thorough=True)


def test_a_case_is_its_number() -> None:
    assert [make(number) for number in (3, 4)] == [make(number) for number in (3, 4)]
    assert len({make(number)[1] for number in range(8)}) == 8


def test_a_leak_is_seen() -> None:
    for text in ("takes None ms", ">nan<", "up to inf%", 'x="nan"', "None, or 3"):
        with pytest.raises(check.Broken):
            check._no_leak(text, "page")
    for text in ("None of 4 GEMMs", "c10::nan_to_num", "information", "None has fewer tiles"):
        check._no_leak(text, "page")


def test_texts_are_hostile() -> None:
    assert any(not text.isprintable() for text in mutate.TEXTS)
