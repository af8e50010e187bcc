"""The published JSON Schemas, made from the classes of the results.

``python -m tracelens.results.schema`` writes them into the package.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from tracelens.files import write_text
from tracelens.results import (
    SCHEMA_VERSION,
    Report,
    comparison,
    diagnosis,
    experts,
    folders,
    job,
    study,
    suggestions,
)

#: Name of a format -> what it is made of, its version, its title. The file is ``schema/NAME.schema.json``.
FORMATS: dict[str, tuple[type[Any], str, str]] = {
    "report": (Report, SCHEMA_VERSION, "tracelens report"),
    "comparison": (comparison.Comparison, comparison.SCHEMA_VERSION, "tracelens comparison"),
    "folders": (folders.FolderComparison, folders.SCHEMA_VERSION, "tracelens comparison of folders"),
    "job": (job.Job, job.JOB_VERSION, "tracelens answer for a job"),
    "gemm": (study.GemmJson, study.SCHEMA_VERSION, "tracelens gemm"),
    "diagnosis": (diagnosis.Diagnosis, diagnosis.SCHEMA_VERSION, "tracelens doctor"),
    "experts": (experts.ExpertsJson, experts.SCHEMA_VERSION, "tracelens gemm of experts"),
    "suggestions": (suggestions.Suggestions, suggestions.FORMAT_VERSION, "tracelens suggest"),
}


def json_schema(name: str = "report") -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a format; what a class or a field means is its description."""
    kind, version, title = FORMATS[name]
    schema = msgspec.json.schema(kind)
    for one in _classes(kind):
        definition = schema["$defs"][one.__name__]
        definition.pop("description", None)
        if _documented(one):
            definition["description"] = inspect.cleandoc(one.__doc__ or "")
        _alike(definition)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tracelens:{name}:{version}",
        "title": title,
        "version": version,
        **schema,
    }


def _alike(schema: dict[str, Any]) -> None:
    """Take out what only some versions of msgspec write: 0.23 added empty defaults and names of keys."""
    if schema.get("default") in ([], {}):
        del schema["default"]
    schema.pop("propertyNames", None)
    for part in schema.values():
        if isinstance(part, dict):
            _alike(part)


def _documented(kind: type[Any]) -> bool:
    """Tell a docstring that somebody wrote from the signature that ``dataclass`` puts there."""
    return bool(kind.__doc__) and not str(kind.__doc__).startswith(f"{kind.__name__}(")


def _classes(kind: type[Any]) -> list[type[Any]]:
    """Return ``kind`` and every class its fields hold."""
    found: dict[type[Any], None] = {}
    waiting = [kind]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found[one] = None
            waiting += [part for hint in typing.get_type_hints(one).values() for part in _held(hint)]
    return list(found)


def _held(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)):
        yield hint
    for part in typing.get_args(hint):
        yield from _held(part)


def schema_text(name: str = "report") -> str:
    """Return a schema as the package publishes it."""
    return msgspec.json.format(msgspec.json.encode(json_schema(name)), indent=2).decode() + "\n"


def write_schemas(folder: str | Path | None = None) -> None:
    """Write every schema; without a folder, those in the package."""
    for name in FORMATS:
        path = Path(folder or Path(__file__).parents[1] / "schema") / f"{name}.schema.json"
        write_text(path, schema_text(name))


if __name__ == "__main__":
    write_schemas()
