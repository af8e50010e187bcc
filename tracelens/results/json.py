"""Results as JSON, and a report back again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from tracelens.errors import InputError, brief
from tracelens.results import SCHEMA_VERSION, Report
from tracelens.results.comparison import Comparison
from tracelens.results.diagnosis import Diagnosis
from tracelens.results.folders import FolderComparison
from tracelens.results.suggestions import Suggestions
from tracelens.version import __version__


class _ReportHead(msgspec.Struct):
    schema_version: str
    tool_version: str


def to_json(report: Report, *, indent: int | None = 2, compact: bool = False) -> bytes:
    """Encode a report; the same trace gives the same bytes, and a number that is not finite is null.

    Mappings keep their order: a saved report says "hidden, then heads" as the analysis did.

    ``compact`` leaves out fields at their default and rounds to six significant digits, as on the page.
    """
    return _encoded(_compacted(report) if compact else report, indent=indent)


def compare_json(result: Comparison | FolderComparison) -> bytes:
    """Encode a comparison; the same comparison gives the same bytes."""
    return _encoded(result, order="deterministic")


def suggestions_json(found: Suggestions) -> bytes:
    """Encode suggestions, with the version that made them in front."""
    return _encoded({"tool_version": __version__, **msgspec.to_builtins(found)})


def diagnosis_json(found: Diagnosis) -> bytes:
    """Encode a diagnosis of a recording."""
    return _encoded(found)


def _encoded(value: Any, *, indent: int | None = 2, order: Literal["deterministic"] | None = None) -> bytes:
    try:
        data = msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:
        # A lone surrogate, from a trace's "\\ud800", has no UTF-8 form.
        data = msgspec.json.encode(each_text(msgspec.to_builtins(value), _without_surrogates), order=order)
    return data if indent is None else msgspec.json.format(data, indent=indent) + b"\n"


def _compacted(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if dataclasses.is_dataclass(value):
        kept = {one.name: (one, getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {name: _compacted(item) for name, (one, item) in kept.items() if not _is_default(one, item)}
    if isinstance(value, dict):
        return {key: _compacted(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_compacted(item) for item in value]
    return value


def _is_default(one: dataclasses.Field[Any], value: Any) -> bool:
    if one.default_factory is not dataclasses.MISSING:
        return bool(value == one.default_factory())
    return one.default is not dataclasses.MISSING and bool(value == one.default)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The same with all its texts changed, keys as well."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {each_text(key, change): each_text(item, change) for key, item in value.items()}
    return [each_text(item, change) for item in value] if isinstance(value, list) else value


def _without_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def from_json(data: bytes) -> Report:
    """Decode what :func:`to_json` wrote.

    Fields this version does not know are ignored, so a later minor version can be read. Raises
    InputError when the data is not a report or has another major schema version.
    """
    try:
        head = msgspec.json.decode(data, type=_ReportHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"not a tracelens report ({brief(error, 300)}); write one with"
            " 'tracelens analyze TRACE --json FILE'"
        ) from error
    if head.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        raise InputError(
            f"report has schema {brief(head.schema_version)}, written by tracelens"
            f" {brief(head.tool_version)}; this tracelens reads schema {SCHEMA_VERSION}: analyze the trace"
            " again, or use that version"
        )
    try:
        return msgspec.json.decode(data, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"report does not follow schema {SCHEMA_VERSION}: {brief(error, 300)}") from error
