"""The trace file: compressed, with our metadata, without the machine's name; whole or not there."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from tracelens.capture.backward import NodeRange

_CHUNK = 1 << 20
#: What the profiler writes before and behind the events that tells of the machine.
_HOST = re.compile(rb'\s*"host_name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,')
_TRACE_NAME = re.compile(rb'("traceName"\s*:\s*)"(?:[^"\\]|\\.)*"')
#: The clock's zero, in nanoseconds of the Unix time.
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')
#: Where the events end, behind at least one.
_CLOSING = re.compile(rb'(?<=\})\s*\]\s*,\s*"traceName"')
_HEAD, _TAIL = 1 << 16, 1 << 12
_AT_ONCE = 4096  # ranges written at once


class TraceFileError(Exception):
    """The trace could not be written; the message says why."""


def raw_path(folder: Path) -> Path:
    """Where the profiler writes first: beside the target, so that the rename stays on one disk."""
    return folder / f".tracelens-{os.getpid()}-{secrets.token_hex(4)}.json"


def target_path(folder: Path, rank: int, started: float) -> Path:
    """``rank0.json.gz``, or a name with the process where this run has written one already."""
    path = folder / f"rank{rank}.json.gz"
    with contextlib.suppress(OSError):
        if path.stat().st_mtime >= started:
            return folder / f"rank{rank}-{os.getpid()}.json.gz"
    return path


def keep_earlier(target: Path) -> Path | None:
    """Move what lies at ``target`` to a folder ``earlier-N`` beside it; returns where it is now.

    In a folder of its own no later ``tracelens analyze FOLDER`` takes it for a rank of this run.
    """
    if not target.exists():
        return None
    places = (target.parent / f"earlier-{number}" / target.name for number in itertools.count(1))
    kept = next(place for place in places if not place.exists())
    kept.parent.mkdir(exist_ok=True)
    os.replace(target, kept)
    return kept


def finish(
    raw: Path, target: Path, metadata: dict[str, Any], more: Sequence[NodeRange] = ()
) -> tuple[int, Path | None]:
    """Turn the profiler's file into the trace, with ``more`` ranges behind its events.

    Returns its bytes, and where the trace is now that lay at ``target`` (``keep_earlier``). ``raw`` is gone
    afterwards.

    Raises TraceFileError when it is cut off or cannot be written; then no target appears.
    """
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        if not raw.exists():
            raise TraceFileError(f"the profiler wrote no file in {raw.parent}: is the disk full?")
        size = raw.stat().st_size
        with open(raw, "rb") as source:
            source.seek(max(0, size - 64))
            if not source.read().rstrip().endswith(b"}"):
                raise TraceFileError(f"the profiler's file is cut off after {size} bytes: is the disk full?")
            source.seek(max(0, size - _TAIL))
            if more and not _CLOSING.search(source.read()):
                metadata = {**metadata, "backward_error": "the profiler's file ends in an unknown way"}
            source.seek(0)
            with _compressed(temporary) as out:
                for piece in _pieces(source, size, target.name, metadata, more):
                    out.write(piece)
        earlier = keep_earlier(target)
        os.replace(temporary, target)
        return target.stat().st_size, earlier
    except OSError as error:
        raise TraceFileError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        remove(temporary)
        remove(raw)


def remove(path: Path) -> None:
    """Take a file of ours away, and what the profiler leaves of it when it fails."""
    for leftover in (path, path.with_name(path.name + ".tmp")):
        with contextlib.suppress(OSError):
            leftover.unlink(missing_ok=True)


def _pieces(
    source: IO[bytes], size: int, name: str, metadata: dict[str, Any], more: Sequence[NodeRange]
) -> Iterator[bytes]:
    """The file with ``tracelens`` as its first key, no host name, and its own name instead of a path."""
    head = source.read(min(_HEAD, size))
    start = head.index(b"{") + 1
    events = head.find(b'"traceEvents"')
    before = head[start : events if events >= 0 else len(head)]
    yield b'{\n  "tracelens": ' + json.dumps(metadata, separators=(",", ":"), default=str).encode() + b","
    base = _BASE.search(before)
    rest = _HOST.sub(b"", before) + (head[events:] if events >= 0 else b"")
    end = json.dumps(name).encode()
    while True:
        chunk = source.read(_CHUNK)
        if not chunk:
            break
        # the tail is held back: the file's path stands there
        rest += chunk
        if len(rest) > _TAIL:
            yield rest[:-_TAIL]
            rest = rest[-_TAIL:]
    closing = _CLOSING.search(rest)
    if more and closing is not None:
        yield rest[: closing.start()]
        rest = rest[closing.start() :]
        for at in range(0, len(more), _AT_ONCE):
            yield _events(more[at : at + _AT_ONCE], int(base[1]) if base else 0)
    named = max(rest.rfind(b'"traceName"'), 0)
    yield rest[:named] + _TRACE_NAME.sub(lambda found: found[1] + end, rest[named:])


def _events(ranges: Sequence[NodeRange], base_ns: int) -> bytes:
    """Ranges as the profiler writes its operators; it counts microseconds from a base of its own."""
    head = f',\n  {{"ph": "X", "cat": "cpu_op", "pid": {os.getpid()}'
    return "".join(
        f'{head}, "tid": {one.thread}, "ts": {_us(one.start_ns - base_ns)}, "dur": {_us(one.duration_ns)},'
        f' "name": {json.dumps(one.name)}, "args": {{"tracelens": "backward"}}}}'
        for one in ranges
    ).encode()


def _us(time_ns: int) -> str:
    """Microseconds to the nanosecond.

    >>> _us(4388726563773796), _us(40)
    ('4388726563773.796', '0.040')
    """
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


@contextlib.contextmanager
def _compressed(path: Path) -> Iterator[IO[bytes]]:
    """gzip, by isal where it is installed: the rank waits for this."""
    try:
        from isal import igzip
    except ImportError:
        with open(path, "wb") as raw, gzip.GzipFile("", "wb", 3, raw) as out:
            yield out  # type: ignore[misc]
        return
    with open(path, "wb") as raw, igzip.IGzipFile("", "wb", 2, raw) as out:
        yield out  # type: ignore[misc]
