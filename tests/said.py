"""The sentences that tests saw, kept whole beside them: ``TRACELENS_REGOLD=1 pytest FILE`` writes them again.

A test asserts values and codes; what was said of them it hands to the fixture ``said``, which compares every
text with ``said/<test file>.json``. Look at every change of such a file: it is what users will read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

Said = dict[str, list[str]]
PASSED = pytest.StashKey[bool]()  # of a test whose body has run to its end


def kept(path: Path) -> Said:
    """What one file keeps: per test the texts in the order in which it said them."""
    found: Said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def path_of(test_file: Path) -> Path:
    return test_file.parent / "said" / f"{test_file.stem}.json"


class Listener:
    """Takes the texts of one test and compares each with the one kept."""

    def __init__(self, wanted: list[str] | None) -> None:
        self.wanted = wanted  # None: nothing is compared, all is written again
        self.heard: list[str] = []

    def __call__(self, *texts: object) -> None:
        """Take texts, or lists of them; anything else as it prints."""
        for text in texts:
            if isinstance(text, list | tuple):
                self(*text)
                continue
            at, said = len(self.heard), str(text)
            self.heard.append(said)
            if self.wanted is not None:
                assert at < len(self.wanted), f"said, and not kept: {said!r} (TRACELENS_REGOLD=1 keeps it)"
                assert said == self.wanted[at], "another text is kept (TRACELENS_REGOLD=1 keeps the new one)"


@pytest.fixture
def said(request: pytest.FixtureRequest) -> Generator[Listener]:
    """Compare what is said with what is kept beside the test file."""
    path, test = path_of(request.path), request.node.name
    again = bool(os.environ.get("TRACELENS_REGOLD"))
    listener = Listener(None if again else kept(path).get(test, []))
    yield listener
    if again:
        _keep(path, request, listener.heard)
    elif request.node.stash.get(PASSED, False):
        left = (listener.wanted or [])[len(listener.heard) :]
        assert left == [], "kept, and no longer said (TRACELENS_REGOLD=1 drops it)"


def _keep(path: Path, request: pytest.FixtureRequest, heard: list[str]) -> None:
    """Write one test's texts; several workers may write one file, and tests that are gone leave it."""
    path.parent.mkdir(exist_ok=True)
    config, source = request.config, request.path.read_text(encoding="utf-8")
    whole = not (config.getoption("keyword") or config.getoption("markexpr"))
    whole = whole and not any("::" in arg for arg in config.args)
    fixtures = {
        item.name: getattr(item, "fixturenames", ())
        for item in request.session.items
        if item.path == request.path
    }
    names = {name for name, used in fixtures.items() if "said" in used}
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found: Said = json.loads(file.read() or "{}")
        found[request.node.name] = heard
        found = {
            name: texts
            for name, texts in found.items()
            if texts and (name in names or not whole) and f"def {name.partition('[')[0]}(" in source
        }
        file.seek(0)
        file.truncate()
        json.dump(found, file, ensure_ascii=False, indent=1, sort_keys=True)
        file.write("\n")
