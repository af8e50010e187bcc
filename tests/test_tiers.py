"""The list of slow tests: its rule, and that what it names is there."""

from __future__ import annotations

from pathlib import Path

from tests import tiers

HERE = Path(__file__).parent


def test_what_took_long_is_slow_but_for_a_cheap_first_case_and_the_cheapest_of_a_file() -> None:
    times = [
        ("a.py::quick", 0.1),
        ("a.py::long", 9.0),
        ("a.py::many[x]", 0.5),
        ("a.py::many[y]", 0.9),
        ("a.py::many[z]", 0.9),
        ("a.py::dear[x]", 4.0),
        ("a.py::dear[y]", 4.0),
        ("b.py::alone[x]", 2.0),
        ("b.py::alone[y]", 3.5),
    ]
    assert tiers.written(times).splitlines() == [
        "a.py::dear", "a.py::long", "a.py::many first stays", "b.py::alone first stays",
    ]  # fmt: skip


def test_the_first_case_stays_in_whatever_order_of_files() -> None:
    lines = tiers.LIST.read_text(encoding="utf-8").splitlines()
    kept = next(line for line in lines if line.endswith(" first stays")).removesuffix(" first stays")
    gone = next(line for line in lines if not line.endswith(" first stays"))
    assert tiers.slow([f"{gone}[x]", f"{kept}[x]", f"{kept}[y]", "other.py::test"]) == [
        True, False, True, False,
    ]  # fmt: skip


def test_every_slow_test_exists() -> None:
    for line in tiers.LIST.read_text(encoding="utf-8").splitlines():
        path, _, name = line.removesuffix(" first stays").partition("::")
        assert f"def {name}(" in (HERE.parent / path).read_text(encoding="utf-8"), line
