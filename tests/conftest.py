"""What every test can rely on."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def shipped_calibrations_only(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody's own measurements (`tracelens bench`) move a prediction here."""
    monkeypatch.setenv("TRACELENS_CALIBRATION", str(tmp_path_factory.getbasetemp() / "no-calibrations"))
