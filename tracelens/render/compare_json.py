"""A comparison as JSON: ``tracelens compare --json``."""

from __future__ import annotations

import msgspec

from tracelens.compare.folder_result import FolderComparison
from tracelens.compare.result import Comparison
from tracelens.render.json import without_surrogates


def compare_json(result: Comparison | FolderComparison) -> bytes:
    """Encode a comparison; the same comparison gives the same bytes."""
    try:
        data = msgspec.json.encode(result, order="deterministic")
    except UnicodeEncodeError:
        # A lone surrogate, from a trace's "\\ud800", has no UTF-8 form.
        data = msgspec.json.encode(without_surrogates(msgspec.to_builtins(result)), order="deterministic")
    return msgspec.json.format(data, indent=2) + b"\n"
