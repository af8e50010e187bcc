"""The JSON of a trace: plain, gzip, zstd or protobuf, file or standard input, unpacked as it is read.

isal unpacks at more than 2 GB/s, ten times as fast as events are decoded, so it is done in line: a
thread for it would spend its time waiting for Python's lock.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from isal import isal_zlib
from isal.igzip_lib import IsalError

from tracelens.errors import RECORD_ONE, InputError
from tracelens.files import cannot_read
from tracelens.trace import pftrace, words
from tracelens.trace.tables import TraceSource

BLOCK = 384 * 1024
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 64 * 1024  # what is read with a fault in it is lost
_GZIP_WBITS = 31
_MAGIC_BYTES = 8
_SALVAGE_STEP = 1024
# isal's type stub declares its exception class as an instance
_FAULTS: tuple[type[Exception], ...] = (IsalError, zlib.error, EOFError, ValueError)  # type: ignore[assignment]
_USUAL_PACKING = 14  # Kineto JSON packs to a 12th to an 18th
_PICKLE = "a Python pickle, as memory snapshots are"
_OTHER_PACKERS = {
    b"PK\x03\x04": ("a zip archive", "unzip it"),
    b"\xfd7zXZ": ("xz-compressed", "unpack it with xz -d"),
    b"BZh": ("bzip2-compressed", "unpack it with bzip2 -d"),
}
_OTHER_FILES = {
    b"SQLite f": "an SQLite database, as nsys export writes",
    b"\x80\x02": _PICKLE,
    b"\x80\x03": _PICKLE,
    b"\x80\x04": _PICKLE,
    b"\x80\x05": _PICKLE,
}


class ByteSource:
    """Blocks of uncompressed JSON, in order. After the last one, the totals and any fault stand here."""

    def __init__(self, path: str | Path):
        self.path = path
        self.from_stdin = str(path) == "-"
        self.name = "<stdin>" if self.from_stdin else Path(path).name
        self.raw_bytes = 0
        self.fault: str | None = None  # why the bytes ended early, or what is left of them
        self.whole = True  # no byte of the data is lost
        self._hash = hashlib.sha256() if self.from_stdin else None  # a file can be read again

    def expected_bytes(self) -> int:
        """A guess at the size of the JSON before reading it; 0 where there is nothing to go by."""
        return self.size() * (_USUAL_PACKING if self.name.endswith((".gz", ".zst")) else 1)

    def size(self) -> int:
        """Bytes of the file as given; 0 where there is nothing to go by."""
        try:
            return Path(self.path).stat().st_size
        except (OSError, ValueError):
            return 0

    def is_plain_file(self) -> bool:
        """A file that can be read at any place, and holds JSON as it is."""
        packed = (_GZIP, _ZSTD, *_OTHER_PACKERS)
        return self._is_file() and not self._first().startswith(packed) and not self._is_protobuf()

    def packed_path(self) -> str:
        """The path of a gzip file that others can read too; empty where it is none, or holds no JSON."""
        is_packed = self._is_file() and self._first().startswith(_GZIP) and not self._is_protobuf()
        return str(self.path) if is_packed else ""

    def _is_file(self) -> bool:
        try:
            return not self.from_stdin and os.path.isfile(self.path)
        except ValueError:  # a NUL in the path: opening it says so
            return False

    def _first(self) -> bytes:
        with _open(Path(self.path)) as stream:
            return _read(stream, _MAGIC_BYTES)

    def _is_protobuf(self) -> bool:
        with _open(Path(self.path)) as stream:
            return pftrace.is_protobuf(next(ByteSource(self.path)._unpacked(stream), b""))

    def describe(self, json_bytes: int) -> TraceSource:
        """What was read, once it has been. A file's SHA-256 is taken when somebody asks for it."""
        digest = self._hash.hexdigest() if self._hash else None
        return TraceSource(
            self.name, self.raw_bytes, json_bytes, None if self.from_stdin else Path(self.path), digest
        )

    def __iter__(self) -> Iterator[bytes]:
        stream = sys.stdin.buffer if self.from_stdin else _open(Path(self.path))
        try:
            yield from pftrace.as_json(self._unpacked(stream), self.name, self._lose)
        finally:
            if not self.from_stdin:
                stream.close()

    def _lose(self, why: str) -> None:
        """Events are missing; a fault of the packing, found before, is the reason for it."""
        self.whole, self.fault = False, self.fault or why

    def _raw(self, stream: BinaryIO) -> Iterator[bytes]:
        while block := _read(stream, BLOCK):
            self.raw_bytes += len(block)
            if self._hash:
                self._hash.update(block)
            yield block

    def _unpacked(self, stream: BinaryIO) -> Iterator[bytes]:
        blocks = self._raw(stream)
        first = next(blocks, b"")
        while len(first) < _MAGIC_BYTES and (more := next(blocks, b"")):  # a pipe gives what it has
            first += more
        for magic, (what, remedy) in _OTHER_PACKERS.items():
            if first.startswith(magic):
                raise InputError(f"{self.name} is {what}: {remedy} first, or save the trace as .json.gz")
        for magic, what in _OTHER_FILES.items():
            if first.startswith(magic):
                raise InputError(f"{self.name} is {what}, and no trace of torch.profiler; {RECORD_ONE}")
        if first.startswith(_GZIP):
            yield from self._gunzip(first, blocks)
        elif first.startswith(_ZSTD):
            yield from self._unzstd(first, blocks)
        else:
            yield first
            yield from blocks

    def _gunzip(self, first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Unpack gzip members one after the other, as gunzip does; keep all there is before a fault."""
        unpacker = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        pending, given = first, 0
        while True:
            if unpacker.eof and pending:
                if not pending.startswith(_GZIP):
                    self.fault = words.AFTER_GZIP
                    break
                unpacker = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
            try:
                # a bounded output keeps memory flat however well the data packs
                out = unpacker.decompress(pending, BLOCK)
            except _FAULTS as error:
                self.whole = False
                self.fault = words.gzip_damaged(self.raw_bytes, error)
                yield from self._salvage(given)
                break
            given += len(out)
            if out:
                yield out
            pending = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
            if not pending and (unpacker.eof or not out):
                pending = next(blocks, b"")
                if not pending:
                    break
        if self.fault is None and not unpacker.eof:
            self.whole = False
            self.fault = words.GZIP_CUT_OFF
        for _ in blocks:  # the hash and the size are of the whole file
            pass

    def _unzstd(self, first: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Unpack zstd frames; keep all there is before a fault."""
        import pyarrow

        unpacked = pyarrow.CompressedInputStream(pyarrow.PythonFile(_Joined(first, blocks), "r"), "zstd")
        try:
            while out := unpacked.read(_ZSTD_BLOCK):
                yield out
        except OSError as error:
            self.whole = False
            self.fault = words.zstd_damaged(error)
        for _ in blocks:  # the hash and the size are of the whole file
            pass

    def _salvage(self, given: int) -> Iterator[bytes]:
        """The last bytes before a damaged spot, one by one: a call that fails gives nothing back."""
        if self.from_stdin or not os.path.isfile(self.path):  # a pipe cannot be read again
            return
        unpacker = zlib.decompressobj(_GZIP_WBITS)
        saved = bytearray()
        with Path(self.path).open("rb") as stream, suppress(zlib.error):
            while piece := stream.read(_SALVAGE_STEP):
                while piece:
                    out = unpacker.decompress(piece, given or 1)
                    if given:
                        given -= len(out)
                    else:
                        saved += out
                    piece = unpacker.unconsumed_tail
                    if unpacker.eof:
                        piece, unpacker = unpacker.unused_data, zlib.decompressobj(_GZIP_WBITS)
        yield bytes(saved)


class _Joined(io.RawIOBase):
    """Blocks as a file that is read forward."""

    def __init__(self, first: bytes, blocks: Iterator[bytes]):
        self._pending, self._blocks = first, blocks

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._pending:
            self._pending = next(self._blocks, b"")
        out, self._pending = self._pending[:size], self._pending[size:]
        return out


def _open(path: Path) -> BinaryIO:
    try:
        if os.path.isdir(path):
            raise InputError(f"{path} is a folder: give one trace file (.json, .json.gz or .json.zst)")
        return path.open("rb", buffering=0)
    except (OSError, ValueError) as error:
        raise InputError(cannot_read(path, error)) from None


def _read(stream: BinaryIO, size: int) -> bytes:
    try:
        return stream.read(size) or b""
    except OSError as error:
        raise InputError(f"reading stopped: {error.strerror or error}") from None
