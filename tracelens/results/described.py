"""What a field means, kept with its type: the JSON schema and the reference read it there."""

from __future__ import annotations

from typing import Any


def says(text: str, least: int | None = None) -> Any:
    """What a field means, for the schema: ``time_ms: Annotated[float, says("whole file")]``.

    A number below ``least`` is none: a saved report that holds one is refused.
    Plain text where msgspec is not installed: ``tracelens bench`` runs with PyTorch alone, without a schema.
    """
    try:
        from msgspec import Meta
    except ImportError:
        return text
    return Meta(description=text, ge=least)
