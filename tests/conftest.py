"""What every test can rely on."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Generator

import hypothesis
import pytest

from tests import tiers

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

#: Whose tests share what takes minutes to set up: slow, whatever each takes by itself.
_SETS_UP_LONG = frozenset(
    {"test_driven.py", "test_dry_run.py", "test_verify_driver.py", "test_capture_compile.py"}
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FILE", help="append the CPU seconds of every test to FILE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item, is_slow in zip(items, tiers.slow(item.nodeid for item in items), strict=True):
        if is_slow or item.path.name in _SETS_UP_LONG:
            item.add_marker(pytest.mark.slow)
    # Others steal from the end of what a worker has yet to do: at its beginning such a file stays together.
    items.sort(key=lambda item: item.path.name not in _SETS_UP_LONG)


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


@pytest.fixture(autouse=True)
def shipped_calibrations_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's own measurements (`tracelens bench`) move a prediction here."""
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path_factory.getbasetemp() / "no-calibrations"))
