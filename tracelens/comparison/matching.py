"""Which file of one folder belongs to which of another: by rank, else by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tracelens.comparison import words
from tracelens.comparison.load import is_report
from tracelens.errors import InputError
from tracelens.results.folders import SIDES, MatchedBy, Side, Unpaired
from tracelens.trace.head import read_head
from tracelens.trace.metadata import rank_and_world

_ENDINGS = (".json", ".json.gz", ".json.zst")
_RANK = re.compile(r"(?i)(?<![a-z])rank[ _.-]?([0-9]{1,6})(?![0-9])")


class _TraceOf(msgspec.Struct):
    rank: int | None = None


class _ReportOf(msgspec.Struct):
    trace: _TraceOf


@dataclass(frozen=True, slots=True)
class File:
    """A trace or a saved report in a folder."""

    path: Path
    rank: int | None  # of its metadata, else of its name

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def stem(self) -> str:
        """The name by which two files are the same recording before and after."""
        name = self.path.name
        for suffix in (".zst", ".gz", ".json", ".report", ".trace", ".pt"):
            name = name.removesuffix(suffix)
        return name


@dataclass(frozen=True, slots=True)
class MatchedFolders:
    """The pairs of files, in order, and what is left over."""

    by: MatchedBy
    pairs: list[tuple[str, File, File]]  # with the name of the pair
    left: list[Unpaired]


def match_folders(before: Path, after: Path) -> MatchedFolders:
    """Pair the files of two folders.

    Raises InputError when a folder cannot be read or holds nothing to compare, or no file has a partner.
    """
    left: list[Unpaired] = []
    sides = []
    folders: tuple[tuple[Side, Path], ...] = (("before", before), ("after", after))
    for side, folder in folders:
        files, others = _files(side, folder)
        left += others
        if not files:
            raise InputError(_nothing(folder, others))
        sides.append(files)
    by_rank = all(_distinct(file.rank for file in files) for files in sides)
    keys = [{file.rank if by_rank else file.stem: file for file in files} for files in sides]
    if not by_rank:
        for side, files, found in zip(SIDES, sides, keys, strict=True):
            twice = {stem for stem, many in Counter(file.stem for file in files).items() if many > 1}
            left += [Unpaired(side, file.name, words.SAME_NAME) for file in files if file.stem in twice]
            for stem in twice:
                del found[stem]
    if not by_rank and len(keys[0]) == len(keys[1]) == 1 and keys[0].keys() != keys[1].keys():
        (old,), (new,) = keys[0].values(), keys[1].values()  # one file each: there is nothing to mistake
        return MatchedFolders("name", [(old.stem, old, new)], left)
    common = [key for key in keys[0] if key in keys[1]]
    for side, mine, other in zip(SIDES, keys, reversed(keys), strict=True):
        what = "rank" if by_rank else "name"
        left += [Unpaired(side, file.name, words.no_partner(what))
                 for key, file in mine.items() if key not in other]  # fmt: skip
    if not common:
        raise InputError(_strangers(sides, by_rank=by_rank))
    names = [(f"rank {key}" if by_rank else str(key), keys[0][key], keys[1][key]) for key in common]
    return MatchedFolders("rank" if by_rank else "name", names, left)


def _distinct(ranks: Iterable[int | None]) -> bool:
    seen = list(ranks)
    return None not in seen and len(set(seen)) == len(seen)


def _files(side: Side, folder: Path) -> tuple[list[File], list[Unpaired]]:
    try:
        names = sorted(
            path
            for path in folder.iterdir()
            if path.is_file() and not path.name.startswith(".") and path.name.lower().endswith(_ENDINGS)
        )
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror or error}") from None
    files, others = [], []
    for path in names:
        try:
            file = _file(path)
        except InputError as error:
            others.append(Unpaired(side, path.name, str(error)))
            continue
        if file is None:
            others.append(Unpaired(side, path.name, words.NEITHER))
        else:
            files.append(file)
    return sorted(files, key=lambda file: (file.rank is None, file.rank or 0, _natural(file.name))), others


def _natural(name: str) -> list[tuple[int, str]]:
    """run2 before run10."""
    return [
        (int(part), "") if part.isdigit() and part.isascii() else (0, part)
        for part in re.split(r"([0-9]+)", name)
    ]


def _file(path: Path) -> File | None:
    if is_report(path):
        try:
            rank = msgspec.json.decode(path.read_bytes(), type=_ReportOf).trace.rank
        except (msgspec.DecodeError, UnicodeDecodeError, OSError):
            return None
    else:
        head = read_head(path)
        if head is None:
            return None
        rank = rank_and_world(head)[0]
    if rank is None and (named := _RANK.search(path.name)):
        rank = int(named[1])
    return File(path, rank)


def _nothing(folder: Path, others: list[Unpaired]) -> str:
    inside = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if others:
        return words.nothing_usable(folder, others[0].file, others[0].why)
    return words.no_files(folder, inside[:3])


def _strangers(sides: list[list[File]], *, by_rank: bool) -> str:
    what = "rank" if by_rank else "name"
    shown = [", ".join(str(file.rank) if by_rank else file.name for file in files[:3]) for files in sides]
    return words.strangers(what, *shown)
