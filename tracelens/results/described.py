"""What a field means, kept with its type: the JSON schema and the reference read it there."""

from __future__ import annotations

from msgspec import Meta


def says(text: str) -> Meta:
    """What a field means, for the schema: ``time_ms: Annotated[float, says("whole file")]``."""
    return Meta(description=text)
