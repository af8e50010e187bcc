"""A comparison as JSON, and the published schema of it: ``tracelens compare --json``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from tracelens.compare.result import SCHEMA_VERSION, Comparison
from tracelens.render.files import write_text
from tracelens.render.json import without_surrogates

SCHEMA_ID = f"urn:tracelens:comparison:{SCHEMA_VERSION}"


def compare_json(result: Comparison) -> bytes:
    """Encode a comparison; the same comparison gives the same bytes."""
    try:
        data = msgspec.json.encode(result, order="deterministic")
    except UnicodeEncodeError:
        # A lone surrogate, from a trace's "\\ud800", has no UTF-8 form.
        data = msgspec.json.encode(without_surrogates(msgspec.to_builtins(result)), order="deterministic")
    return msgspec.json.format(data, indent=2) + b"\n"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a comparison, made from ``tracelens.compare.result``."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "tracelens comparison",
        "version": SCHEMA_VERSION,
        **msgspec.json.schema(Comparison),
    }


def schema_text() -> str:
    """Return the schema as the package publishes it."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


def published_schema() -> str:
    """Return the text of the schema file in the package."""
    return (resources.files("tracelens") / "schema" / "comparison.schema.json").read_text(encoding="utf-8")


if __name__ == "__main__":
    write_text(Path(__file__).parents[1] / "schema" / "comparison.schema.json", schema_text())
