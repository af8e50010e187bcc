"""What a field means, kept with its type: the JSON schema and the reference read it. Why a value lacks."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Annotated, Any, Literal


def says(text: str, least: int | None = None, pattern: str | None = None) -> Any:
    """What a field means, for the schema: ``time_ms: Annotated[float, says("whole file")]``.

    A number below ``least``, or text unlike ``pattern``, is none: a saved report that holds one is refused.
    Plain text where msgspec is not installed: ``tracelens bench`` runs with PyTorch alone, without a schema.
    """
    try:
        from msgspec import Meta
    except ImportError:
        return text
    if pattern is not None:
        return Meta(description=text, pattern=pattern)
    return Meta(description=text, ge=least)


def same_length(**columns: Sized) -> None:
    """Raise ValueError where columns of one table are not equally long: in a saved report that was edited."""
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError(f"{', '.join(columns)} are not equally long")


RefusalCode = Literal[
    "stages_wait",  # what pipeline stages send, and how long they wait for each other
    "exchange",  # what ranks send each other
    "not_predicted",  # too much of what a change touches has no prediction
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a figure is not given: programs go by ``code``, people read ``text``."""

    code: RefusalCode
    text: Annotated[str, says("a sentence without capital and full stop")]
    cause: Annotated[str, says("of ``text`` the cause alone, without its figures")]
