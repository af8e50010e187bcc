"""The file that a run leaves: what was read, with what was measured in it."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.files import write_bytes
from tracelens.measure.verify.source import Source, object_at
from tracelens.results import Estimate, Verification, Verified
from tracelens.words import severity


def document(
    source: Source, verified: Sequence[Verified | None], verification: Verification
) -> dict[str, Any]:
    """The JSON of ``source`` with every suggestion's measurement; that of the source is left as it is.

    A finding whose measurement counts has it as its saving, and findings are in the order of theirs. What
    was not measured now (None: not asked for) keeps what an earlier run measured.
    """
    raw: dict[str, Any] = json.loads(json.dumps(source.raw))
    for asked, found in zip(source.asked, verified, strict=True):
        where = object_at(raw, asked.place)
        earlier = where.get("verified") or {}
        if found is None or (found.state != "measured" and earlier.get("state") == "measured"):
            continue
        where["verified"] = asdict(found)
        if asked.place[0] != "what_if":
            _put(where, found)
    if source.kind == "report":
        raw["findings"].sort(key=_size, reverse=True)
    raw["verification"] = asdict(verification)
    return raw


def _put(where: dict[str, Any], found: Verified) -> None:
    """The measured saving in place of the predicted one, which ``verified`` keeps; else the prediction."""
    counts = found.replaces and found.state == "measured"
    saving, frac = (
        (found.saving_ms, found.saving_frac) if counts else (found.predicted_ms, found.predicted_frac)
    )
    if where.get("saving"):
        where["saving"] = _in_proportion(where["saving"], where["saving_ms"], saving)
    where["saving_ms"], where["saving_frac"] = asdict(saving), asdict(frac)
    if "rule" not in where:  # a pick
        return
    where["basis"] = saving.basis
    if frac.size is not None:
        where["severity"] = severity(frac.size)
    if counts:
        where["confidence"] = "high" if _sure(saving) else "low"


def _in_proportion(costs: dict[str, Any], before: dict[str, Any], saving: Estimate) -> dict[str, Any] | None:
    """The saving in other units (GPU-hours, money), which go with its milliseconds; None if they cannot."""
    scaled: dict[str, Any] = {}
    for unit, one in costs.items():
        if one is None:
            scaled[unit] = None
            continue
        ends = [end for end in ("high", "mid", "low") if before.get(end) and one.get(end)]
        if not ends:
            return None
        factor = one[ends[0]] / before[ends[0]]
        values = {end: getattr(saving, end) for end in ("low", "mid", "high")}
        scaled[unit] = {end: None if value is None else value * factor for end, value in values.items()}
        scaled[unit]["basis"] = saving.basis
    return scaled


def _sure(saving: Estimate) -> bool:
    """Whether all of its range is on one side of zero."""
    return saving.low is not None and saving.high is not None and (saving.low > 0 or saving.high < 0)


def _size(finding: dict[str, Any]) -> float:
    """What findings are ordered by; one without any figure comes last."""
    saving = finding["saving_ms"]
    size = saving["mid"] if saving["mid"] is not None else saving["high"]
    return -math.inf if size is None else float(size)


def default_output(path: Path) -> Path:
    """Beside the file that was read, which stays as it is; a verified one is brought up to date."""
    stem = path.name.removesuffix(".json")
    return path if stem.endswith(".verified") else path.with_name(f"{stem}.verified.json")


def check_writable(path: Path) -> None:
    """UsageError where ``path`` cannot be written: better said before the minutes of measuring than after."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        Path(partial).unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None


def write(document: dict[str, Any], path: Path, *, source: Source) -> Path | None:
    """Write atomically. A file that holds what was read is first copied beside; returns where.

    Raises UsageError where it cannot be written.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form
        data = (json.dumps(document, indent=2) + "\n").encode()
    try:
        previous = _keep(path) if _holds(path, source.raw) else None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from None
    write_bytes(path, data)
    return previous


def _keep(path: Path) -> Path:
    """A copy under a name that nothing has yet."""
    stem = path.name.removesuffix(".json")
    names = (f"{stem}.previous{'' if count == 1 else f'-{count}'}.json" for count in range(1, 1000))
    kept = next(one for name in names if not (one := path.with_name(name)).exists())
    shutil.copyfile(path, kept)
    return kept


def _holds(path: Path, raw: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(path.read_bytes()) == raw)
    except (OSError, ValueError):
        return False
