"""The files of a job: in folders, by patterns, and on other machines."""

from __future__ import annotations

import glob
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from tracelens.errors import RECORD_ONE, InputError
from tracelens.files import cannot_read
from tracelens.job import words
from tracelens.kinds import kind_of
from tracelens.results.job import Left

TRACES = (".json", ".json.gz", ".json.zst")
SUMMARY = ".summary"
_MAGIC = set("*?[")
_WEB = ("http://", "https://")
_BLOCK = 4 << 20
_NAMED = 3  # paths, where none of them is a trace


@dataclass(frozen=True, slots=True)
class Files:
    """What is to be read: paths, and addresses of files on other machines."""

    traces: list[str]
    summaries: list[str]
    left: list[Left]


def find_files(paths: str | Path | Sequence[str | Path]) -> Files:
    """Traces and summaries among files, folders, patterns and addresses, and what is left out with why.

    Raises InputError where a path leads nowhere or nothing is found.
    """
    left: list[Left] = []
    traces: dict[str, None] = {}
    summaries: dict[str, None] = {}
    paths = [paths] if isinstance(paths, (str, Path)) else paths
    for given in paths:
        for place in _remote(str(given)) if is_remote(given) else _local(given):
            name = name_of(place)
            if name.lower().endswith(SUMMARY):
                summaries[place] = None
            elif not name.lower().endswith(TRACES):
                left.append(Left(name, words.OTHER_ENDING))
            elif is_remote(place) or (kind := kind_of(place)) == "trace":
                traces[place] = None
            else:
                left.append(Left(name, words.SAVED_REPORT if kind == "report" else words.NO_TRACE))
    if not traces and not summaries:
        said = ", ".join(str(path) for path in paths) if len(paths) <= _NAMED else f"these {len(paths)} files"
        why = f": {left[0].file}: {left[0].why}" if left else ""
        raise InputError(f"no trace or summary in {said}{why}; {RECORD_ONE}")
    return Files(list(traces), list(summaries), left)


def is_remote(path: str | Path) -> bool:
    """An address as ``s3://bucket/run`` or ``https://...``."""
    return isinstance(path, str) and "://" in path


def name_of(place: str) -> str:
    """The file's own name.

    >>> name_of("traces/rank0.json"), name_of("https://host/a/rank0.json.gz?token=1")
    ('rank0.json', 'rank0.json.gz')
    """
    path = unquote(urlsplit(place).path) if place.startswith(_WEB) else place
    return PurePosixPath(path).name if is_remote(place) else Path(path).name


def _local(given: str | Path) -> Iterator[str]:
    path = Path(given)
    try:
        if path.is_dir():
            names = sorted(one for one in path.iterdir() if one.is_file() and one.name[0] != ".")
            yield from map(str, names)
        elif path.exists():
            yield str(path)
        elif _MAGIC & set(str(given)):
            yield from sorted(glob.glob(str(given), recursive=True))
        else:
            raise FileNotFoundError(given)
    except OSError as error:
        raise InputError(cannot_read(given, error)) from None


def _remote(address: str) -> Iterator[str]:
    """The files of a folder or pattern there; a file itself."""
    if address.startswith(_WEB) or (
        name_of(address).lower().endswith((*TRACES, SUMMARY)) and not (_MAGIC & set(address))
    ):
        yield address
        return
    with _said(address):
        system, path = _fsspec().core.url_to_fs(address)
        found = system.glob(path) if _MAGIC & set(path) else system.ls(path, detail=False)
        places = sorted(system.unstrip_protocol(one) for one in found if system.isfile(one))
    yield from places


@contextmanager
def on_this_machine(place: str) -> Iterator[Path]:
    """The file itself, or a copy of it that goes away afterwards; it passes through memory in blocks.

    Raises InputError where it cannot be fetched.
    """
    if not is_remote(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="tracelens-") as folder:
        copy = Path(folder) / name_of(place)
        with _said(place), _fsspec().open(place, "rb") as source, copy.open("wb") as target:
            shutil.copyfileobj(source, target, _BLOCK)
        yield copy


def remote_key(address: str) -> str:
    """What changes when the file there does: its address, size and what the system knows besides."""
    with _said(address):
        system, path = _fsspec().core.url_to_fs(address)
        return f"{address} {system.ukey(path)}"


def _fsspec() -> Any:
    try:
        import fsspec
    except ImportError:
        raise InputError('files on other machines need pip install "tracelens-gpu[remote]"') from None
    return fsspec


@contextmanager
def _said(address: str) -> Iterator[None]:
    """What goes wrong there, in one line: each file system raises errors of its own."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        why = " ".join(str(error).split())
        if why in ("", address):
            missing = isinstance(error, FileNotFoundError)
            why = words.NO_ANSWER if missing else type(error).__name__
        remedy = "install that" if isinstance(error, ImportError) else "check the address"
        raise InputError(
            f"cannot read {address} ({why[:200]}): {remedy}, or download it and give the file"
        ) from None


def is_file_address(path: str) -> bool:
    """An address of one trace, not of a folder or a pattern."""
    return is_remote(path) and name_of(path).lower().endswith(TRACES) and not _MAGIC & set(path)
