"""A minute of strange inputs, the same ones each time, and those that once broke something.

``make fuzz`` goes on from there. A fault that it finds is mended, and its input kept in ``corpus``.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.fuzz import mutate, shown
from tests.fuzz.cases import KINDS, make
from tests.fuzz.run import CORPUS, place, run

#: Of each kind so many in `make test`, and so many times more in `make test-all`; the same ones each time.
CASES = {"trace": 12, "report": 10, "words": 16, "config": 8, "job": 4, "pair": 2, "ask": 3, "folder": 2,
         "runs": 2, "summaries": 2}  # fmt: skip
TIMES = 5
KEPT = sorted(CORPUS.iterdir()) if CORPUS.is_dir() else []


def ended(kind: str, numbers: range, folder: Path) -> set[str]:
    """What these cases ended in; one that must not be fails the test."""
    if kind == "ask":
        pytest.importorskip("mcp", reason="the extra mcp is not installed")
    found = set()
    for number in numbers:
        data = make(number, kind=kind)[1]
        try:
            found.add(run(kind, data, folder, thorough=number % 4 == 0))
        except Exception as error:
            pytest.fail(f"case {number} ({kind}): {place(error)}: {error}")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_strange_inputs_end_in_an_output_or_in_one_line(tmp_path: Path, kind: str) -> None:
    ended(kind, range(CASES[kind]), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_more_strange_inputs(tmp_path: Path, kind: str) -> None:
    found = ended(kind, range(CASES[kind], TIMES * CASES[kind]), tmp_path)
    assert kind in ("runs", "summaries") or not found <= {"InputError", "refused"}  # some pass the door


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_what_once_broke(tmp_path: Path, path: Path) -> None:
    run(path.suffix[1:], gzip.decompress(path.read_bytes()), tmp_path, thorough=True)


def test_a_case_is_its_number() -> None:
    assert [make(number) for number in (3, 4)] == [make(number) for number in (3, 4)]
    assert len({make(number)[1] for number in range(8)}) == 8
    assert {make(number)[0] for number in range(400)} == set(KINDS)


def test_a_leak_is_seen() -> None:
    for text in ("takes None ms", ">nan<", "up to inf%", 'x="nan"', "None, or 3"):
        with pytest.raises(shown.Broken):
            shown.no_leak(text, "page")
    for text in ("None of 4 GEMMs", "c10::nan_to_num", "information", "None has fewer tiles"):
        shown.no_leak(text, "page")


def test_texts_are_hostile() -> None:
    assert any(not text.isprintable() for text in mutate.TEXTS)
