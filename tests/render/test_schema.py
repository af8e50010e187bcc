"""The published schemas are those of the classes, and say what each field means."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

import tracelens
from tests.said import Listener
from tracelens.results.schema import FORMATS, json_schema, write_schemas


@pytest.mark.parametrize("name", FORMATS)
def test_the_published_schema_is_current(name: str, tmp_path: Path) -> None:
    write_schemas(tmp_path)
    written = (tmp_path / f"{name}.schema.json").read_text(encoding="utf-8")
    published = Path(tracelens.__file__).parent / "schema" / f"{name}.schema.json"
    assert published.read_text(encoding="utf-8") == written, "run: python -m tracelens.results.schema"
    schema = json.loads(written)
    jsonschema.Draft202012Validator.check_schema(schema)
    # every list of values or words is explained somewhere: a field whose name is not enough
    assert (
        sum("description" in one for part in schema["$defs"].values() for one in part["properties"].values())
        > 5
    )


def test_descriptions_come_from_the_classes(said: Listener) -> None:
    parts = json_schema()["$defs"]
    assert "description" not in parts["Check"]["properties"]["slug"]
    assert (
        parts["Finding"]["properties"]["saving_ms"]["$ref"] == "#/$defs/Estimate"
    )  # a note beside it is no harm
    said(parts["Lost"]["properties"]["useful"]["description"], parts["Lost"]["description"])
