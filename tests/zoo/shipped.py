"""Recordings of compiled models, kept in the repository: to compile them takes minutes.

Each names the source that made it. One of other source is not used: the model is compiled again, and
with ``TRACELENS_RECORD=1`` kept.
"""

from __future__ import annotations

import hashlib
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.kept import of_package, sources
from tests.synthetic.spec import Event, ModelSpec, Options, Synthetic
from tests.zoo.compiled_truth import CompiledTruth

FOLDER = Path(__file__).parent / "recorded"


@dataclass(frozen=True, slots=True)
class Shipped:
    """A file of FOLDER: a Synthetic whose truth is of compiled kernels, and the source that made it."""

    made_of: str
    torch: str  # its version
    family: str
    compiled: str  # repr of the options
    model: ModelSpec
    options: Options
    header: dict[str, Any]
    records: list[Event]
    truth: list[CompiledTruth]

    @property
    def synthetic(self) -> Synthetic:
        return Synthetic(self.model, self.options, self.header, self.records, list(self.truth))


def made_of() -> str:
    """A digest of the source that recordings follow from."""
    return sources("tests/zoo", "tests/synthetic")


def path_of(family: str, options: object) -> Path:
    return FOLDER / f"{family}-{hashlib.sha256(repr(options).encode()).hexdigest()[:10]}.json.xz"


def shipped(family: str, options: object, make: Callable[[], Synthetic]) -> Synthetic:
    """The recording kept in the repository, or ``make()`` where there is none of today's source."""
    path = path_of(family, options)
    if path.exists() and (found := read(path)).made_of == made_of():
        return found.synthetic
    made = make()
    if os.environ.get("TRACELENS_RECORD"):
        write(path, family, options, made)
    return made


def read(path: Path) -> Shipped:
    return msgspec.json.decode(lzma.decompress(path.read_bytes()), type=Shipped)


def write(path: Path, family: str, options: object, made: Synthetic) -> None:
    """Keep ``made``. Raises ValueError where it would not read as the same file with the same truth."""
    truth = [row for row in made.truth if isinstance(row, CompiledTruth)]
    kept = Shipped(
        made_of(), of_package("torch"), family, repr(options), made.model, made.options, made.header,
        made.records, truth,
    )  # fmt: skip
    text = msgspec.json.encode(kept)
    again = msgspec.json.decode(text, type=Shipped).synthetic
    if again.text() != made.text() or again.truth != truth:
        raise ValueError(f"{path.name} does not read as what was recorded")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(text, preset=9))
