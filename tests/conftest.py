"""What every test can rely on."""

from __future__ import annotations

import signal

import pytest

# A shell's background job begins with Ctrl-C ignored, and so would everything that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def shipped_calibrations_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's own measurements (`tracelens bench`) move a prediction here."""
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path_factory.getbasetemp() / "no-calibrations"))
