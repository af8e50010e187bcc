"""Files appear whole or not at all: written beside the target, then renamed over it."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from tracelens import words
from tracelens.errors import UsageError

_ALIKE = 0.85  # of two names: a typing error, not another name
#: An address on another machine, also as ``Path`` writes it: with one slash.
_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+)://?(?=[^/\\])")


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path that becomes ``path`` when the block ends well; otherwise nothing changes.

    A link is followed, so it keeps pointing where it did, and what is not a regular file
    (``/dev/stdout``, a pipe) is written to directly. Raises UsageError when the place cannot be written.
    """
    try:
        target = _target(path)
        if target.exists() and not target.is_file():
            yield target
            return
        # Not tempfile: its files are readable by their owner only, and a report is meant to be shared.
        # The suffix is kept because writers choose a format by it.
        temporary = target.with_name(f".{target.stem[:80]}.{secrets.token_hex(6)}{target.suffix}")
        try:
            yield temporary
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; name a file elsewhere") from error


def check_place(path: str | os.PathLike[str]) -> None:
    """Can a file be written there? Asked before minutes of work. Raises UsageError where it cannot."""
    with contextlib.suppress(_Unused), atomic(path) as temporary:
        if temporary.name.startswith("."):
            temporary.touch(exist_ok=False)
        raise _Unused


class _Unused(Exception):
    """Nothing is to be written yet."""


def cannot_read(path: str | os.PathLike[str], error: OSError | ValueError) -> str:
    """Say in one line why a file cannot be read, and what to do about it."""
    given = os.fspath(path)
    if _ADDRESS.match(given):
        return words.is_address(_ADDRESS.sub(r"\1://", given))
    if isinstance(error, ValueError):
        return words.no_file_name(given)
    if not isinstance(error, FileNotFoundError):
        return words.cannot_read(given, error.strerror or error)
    folder, name = os.path.split(given)
    close: list[str] = []
    with contextlib.suppress(OSError):
        there = os.listdir(folder or ".")
        if name in there:
            return words.link_to_nothing(given)
        close = difflib.get_close_matches(name, there, 1, _ALIKE)
    return words.no_such_file(given, os.path.join(folder, close[0]) if close else None)


def _target(path: str | os.PathLike[str]) -> Path:
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {target.parent}; make it first")
    return target


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a whole file, or none of it."""
    with atomic(path) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a whole UTF-8 file with Unix line ends, or none of it."""
    write_bytes(path, text.encode("utf-8"))


def append_text(path: str | os.PathLike[str], text: str) -> None:
    """Add to the end of a UTF-8 file, in one write; it is made where there is none."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder; name a file in it")
        with open(target, "ab") as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
