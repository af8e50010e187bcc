"""Every example in a docstring of the package gives what stands below it."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import tracelens

PACKAGE = Path(tracelens.__file__).parent
MODULES = [
    ".".join(("tracelens", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_hold(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted and not found.failed
