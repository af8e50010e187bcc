"""Results on their way home: a few tar files that hold everything collected, and nothing else.

A machine may give back only a handful of files of limited size, so results, progress and traces travel as
``collected-0.tar`` ... ``collected-7.tar``. ``benchmarks.gpu.unpack`` puts them in their places.
"""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from benchmarks.gpu.store import write_bytes

MOST_FILES = 8
MOST_BYTES = 16 * 2**20
EVERY_S = 60.0
_TAR_ENTRY, _TAR_END = 1024, 10240  # header and padding of a member, end of the archive


class TooMuch(Exception):
    """What was collected does not fit into the files that travel; the message names the largest."""


class Bundler:
    """Keeps ``folder`` up to date: a run that is killed has brought home all but its last minute."""

    def __init__(
        self,
        folder: Path,
        results: Path,
        traces: Path,
        gpu: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._folder, self._results, self._traces, self._gpu = folder, results, traces, gpu
        self._clock, self._last = clock, clock()

    def now_and_then(self) -> None:
        if self._clock() - self._last >= EVERY_S:
            self._last = self._clock()  # also where it fails: not at every item
            self.write()

    def write(self) -> list[Path]:
        """Every file of this GPU's record, packed anew. Raises TooMuch."""
        parts = pack_files(list(self._members()))
        written = []
        for at, part in enumerate(parts):
            path = self._folder / f"collected-{at}.tar"
            write_bytes(path, part)
            written.append(path)
        for at in range(len(parts), MOST_FILES):
            (self._folder / f"collected-{at}.tar").unlink(missing_ok=True)
        return written

    def _members(self) -> Iterator[tuple[str, bytes]]:
        own = self._results / self._gpu
        for path in sorted(own.glob("*.json*")) if own.is_dir() else []:
            yield f"results/{self._gpu}/{path.name}", path.read_bytes()
        for path in sorted(self._traces.glob(f"{self._gpu}_*")) if self._traces.is_dir() else []:
            yield f"sample_traces/{path.name}", path.read_bytes()


def pack_files(members: list[tuple[str, bytes]]) -> list[bytes]:
    """Tar archives of at most MOST_BYTES each: the largest member first, into the first with room."""
    bins: list[tuple[int, list[tuple[str, bytes]]]] = []
    for name, data in sorted(members, key=lambda member: -len(member[1])):
        need = len(data) + _TAR_ENTRY
        if need + _TAR_END > MOST_BYTES:
            raise TooMuch(f"{name} has {len(data) / 2**20:.1f} MiB; at most 16 MiB travel in one file")
        for at, (used, inside) in enumerate(bins):
            if used + need + _TAR_END <= MOST_BYTES:
                inside.append((name, data))
                bins[at] = (used + need, inside)
                break
        else:
            bins.append((need, [(name, data)]))
    if len(bins) > MOST_FILES:
        total = sum(len(data) for _, data in members)
        raise TooMuch(f"{total / 2**20:.0f} MiB were collected; {MOST_FILES} files of 16 MiB travel")
    return [_tar(sorted(inside)) for _, inside in bins]


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def read_members(path: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The plain files of an archive, each below results/ or sample_traces/; anything else is a ValueError."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                allowed = (len(name.parts), name.parts[:1]) in ((3, ("results",)), (2, ("sample_traces",)))
                if not member.isfile() or not allowed or ".." in name.parts or name.name.startswith("."):
                    raise ValueError(f"{path.name} holds {member.name!r}, which is no result")
                if member.size > MOST_BYTES:
                    raise ValueError(f"{path.name} holds {member.name!r} of {member.size} bytes")
                file = archive.extractfile(member)
                assert file is not None
                yield name, file.read()
    except tarfile.TarError as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from error
