"""Reports of earlier versions, as this one writes them."""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import lru_cache
from typing import Any, cast

from tracelens.results.row_sizes import AttentionDims, AttentionMask, Groups

#: Of ``shape_note``, all that schema 1.0 had of such sizes: "b=8 h=12 kv=4 s=1024 d=64", "sq=1 sk=4096" where
#: lengths differ, "packed tokens=32768", "dv=64", and behind them what a tensor added to the scores is.
_SIZE = re.compile(r"(?<![a-z])(b|h|kv|s|sq|sk|d|dv|tokens|window)=(\d{1,12})(?![\w.])")
_MASK = re.compile(r" (mask\??|bias)$")
#: Before ``alignment_basis`` where the fraction is a bound.
_AT_MOST = "at most: "
_GROUPS = re.compile(r"(\d+) groups, ([mnk]) is their total$")


def upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """A report's JSON with what schema 1.1 knows as values; one of that version as it is."""
    model, rows = raw.get("model"), raw.get("gemms")
    if isinstance(model, dict) and "found" not in model and "transformer" in model:
        raw = raw | {"model": model | {"found": "whole" if model["transformer"] else "none"}}
    if isinstance(rows, list):
        raw = raw | {"gemms": [_sized(row) if isinstance(row, dict) else row for row in rows]}
    return raw


def _sized(row: dict[str, Any]) -> dict[str, Any]:
    note, basis, lost = row.get("shape_note"), row.get("alignment_basis"), row.get("lost_ms")
    if "attention" not in row and isinstance(note, str):
        attention, groups = attention_noted(note), _groups_noted(note)
        row = row | {"attention": attention and asdict(attention), "groups": groups and asdict(groups)}
    if isinstance(basis, str) and basis.startswith(_AT_MOST):
        row = row | {"alignment_basis": basis.removeprefix(_AT_MOST), "alignment_at_most": True}
    if isinstance(lost, dict) and isinstance(why := lost.get("why"), dict):
        begins = {part: str(text).partition(" ")[0] for part, text in why.items()}
        short = "too_small" if begins.get("memory") == "too" else None
        unsplit = "faster" if begins.get("useful") == "faster" else short
        bounds = [part for part, text in why.items() if str(text).startswith("at least: ")]
        row = row | {"lost_ms": {"unsplit": unsplit, "at_least": bounds} | lost}
    return row


@lru_cache(maxsize=4096)
def attention_noted(note: str) -> AttentionDims | None:
    """The sizes in the note of an attention row; None where there are none.

    >>> attention_noted("b=8 h=12 s=1024 d=64").heads_of_all
    (12, 12, 64)
    >>> attention_noted("inputs not recorded")
    """
    found = {name: int(size) for name, size in _SIZE.findall(note)}
    if not found:
        return None
    heads, length, masked = found.get("h"), found.get("s"), _MASK.search(note)
    return AttentionDims(
        batch=found.get("b"),
        heads=heads,
        kv_heads=found.get("kv", heads),
        seq_q=found.get("sq", length),
        seq_k=found.get("sk", length),
        head_dim=found.get("d"),
        value_dim=found.get("dv"),
        tokens=found.get("tokens"),
        window=found.get("window"),
        mask=cast(AttentionMask, masked[1]) if masked else None,
    )


def _groups_noted(note: str) -> Groups | None:
    found = _GROUPS.match(note)
    return Groups(cast(Any, found[2]), int(found[1])) if found else None
