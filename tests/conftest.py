"""What every test can rely on."""

from __future__ import annotations

import os
import signal
import sys

import pytest

# A shell's background job begins with Ctrl-C ignored, and so would everything that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Without byte code every process that a test starts compiles the whole package again, for a second.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(autouse=True)
def shipped_calibrations_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's own measurements (`tracelens bench`) move a prediction here."""
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path_factory.getbasetemp() / "no-calibrations"))
