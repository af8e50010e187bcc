"""Golden files: ``TRACELENS_REGOLD=1 pytest tests/render`` rewrites them; then look at every change."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "golden"


def check(name: str, text: str) -> None:
    """Compare ``text`` with the golden file of that name, or rewrite the file when asked to."""
    path = FOLDER / name
    if os.environ.get("TRACELENS_REGOLD"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no golden file {path}; run with TRACELENS_REGOLD=1 and look at it"
    assert text == path.read_text(encoding="utf-8"), (
        f"{name} differs; if wanted, TRACELENS_REGOLD=1 and look at it"
    )
