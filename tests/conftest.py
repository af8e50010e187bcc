"""What every test can rely on."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from random import Random

import hypothesis
import pytest

from tests import tiers
from tests.said import PASSED, said  # noqa: F401  # a fixture for every test

# No test depends on how fast the machine is.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

# A shell's background job begins with Ctrl-C ignored, and so would everything that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without byte code every process that a test starts compiles the whole package again, for a second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# jsonschema would build grammars of addresses for a format that no schema here asks for: a second and more.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

#: Whose tests share what takes minutes to set up: slow, whatever each takes by itself.
_SETS_UP_LONG = frozenset(
    {"test_driven.py", "test_dry_run.py", "test_verify_driver.py", "test_capture_compile.py"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FILE", help="append the CPU seconds of every test to FILE")
    parser.addoption("--shuffle", metavar="SEED", help="files in random order, and the tests of each")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Of several workers each imports its share of the test files first: none is compiled by all of them."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    folders = [path for path in map(Path, session.config.args) if path.is_dir()]
    files = sorted(file for folder in folders for file in folder.resolve().rglob("test_*.py"))
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # what is wrong with it is said when it is collected
            import_module(".".join(file.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item, is_slow in zip(items, tiers.slow(item.nodeid for item in items), strict=True):
        if is_slow or item.path.name in _SETS_UP_LONG:
            item.add_marker(pytest.mark.slow)
    # Others steal from the end of what a worker has yet to do: at its beginning such a file stays together.
    items.sort(key=lambda item: item.path.name not in _SETS_UP_LONG)
    if seed := config.getoption("--shuffle"):
        drawn = Random(seed)  # the same in every worker
        drawn.shuffle(items)
        places = {path: drawn.random() for path in dict.fromkeys(item.path for item in items)}
        items.sort(key=lambda item: places[item.path])


def pytest_collection_finish() -> None:
    """What lives until the end is not looked through for garbage again and again."""
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    before = tiers.cpu_seconds()
    done = yield
    if path := item.config.getoption("--times"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([item.nodeid, round(tiers.cpu_seconds() - before, 3)]) + "\n")
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Texts that a test no longer says are missed only where it has run to its end."""
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def shipped_calibrations_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's own measurements (`tracelens bench`) move a prediction here."""
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path_factory.getbasetemp() / "no-calibrations"))
