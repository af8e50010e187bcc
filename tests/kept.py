"""What takes seconds to make is made once for all tests, workers and runs, and kept by its recipe."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from tracelens.analysis import Analysis, analyze
from tracelens.api import compare_folders
from tracelens.render.verdict import told
from tracelens.results.folders import FolderComparison

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".pytest_cache" / "kept"

T = TypeVar("T")


@cache
def sources(*places: str) -> str:
    """A digest of these files of this checkout and of all below these folders, but for kept recordings."""
    digest = hashlib.sha256()
    for place in places:
        for path in sorted([ROOT / place, *(ROOT / place).rglob("*")]):
            if path.is_file() and path.suffix not in (".pyc", ".xz"):
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@cache
def of_package(name: str) -> str:
    """The version of an installed package, empty where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def kept(what: str, recipe: object, made_of: str, make: Callable[[], T]) -> T:
    """``make()``, or what it gave before for the same ``what``, ``recipe`` and ``made_of``.

    ``made_of`` changes with the code that makes it: then the file is made anew. Workers wait for one
    another, so that nothing is made twice; where no file can be written it is made each time.
    """
    name = f"{what}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:20]}"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(FOLDER / f"{name}.lock"))
        except OSError:
            return make()
        path = FOLDER / f"{name}.pickle"
        with contextlib.suppress(Exception):  # absent, cut short, or of another version: it is made again
            found, value = pickle.loads(path.read_bytes())
            if found == made_of:
                return value  # type: ignore[no-any-return]
        value = make()
        half = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            half.write_bytes(pickle.dumps((made_of, value), protocol=pickle.HIGHEST_PROTOCOL))
            half.replace(path)
        return value


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _digest(path: Path, size: int, changed_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def analyzed(path: Path, **options: Any) -> Analysis:
    """``analyze(path)``, with shipped calibrations, of a trace that no test changes: one for all readers."""
    stat = path.stat()

    def make() -> Analysis:
        with mock.patch.dict(os.environ, {"TRACELENS_CALIBRATION": os.devnull}):
            return told(analyze(path, **options))

    recipe = (str(path), _digest(path, stat.st_size, stat.st_mtime_ns), sorted(options.items()))
    return kept("analysis", recipe, sources("tracelens"), make)


@cache
def compared(before: Path, after: Path) -> FolderComparison:
    """``compare_folders`` of folders that no test changes."""

    recipe = [
        [
            (path.name, _digest(path, path.stat().st_size, path.stat().st_mtime_ns))
            for path in sorted(side.iterdir())
        ]
        for side in (before, after)
    ]
    return kept("compared", recipe, sources("tracelens"), lambda: compare_folders(before, after))
