"""Pieces of a trace that can be handed to another process: the text itself, or where to find it."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.trace.source import ByteSource


@dataclass(frozen=True, slots=True)
class Text:
    """A piece as it came: a JSON array of events."""

    text: bytes

    def load(self) -> bytes | bytearray:
        return self.text


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a plain file, by its place: whoever decodes it reads it."""

    path: str
    start: int  # of the comma (or bracket) before the first event
    stop: int  # behind the comma (or bracket) after the last

    def load(self) -> bytes | bytearray:
        """The events as a JSON array: the characters around them become its brackets."""
        with open(self.path, "rb", buffering=0) as stream:
            stream.seek(self.start)
            text = bytearray(self.stop - self.start)
            size = stream.readinto(text)
        del text[size:]
        return _bracketed(text)


@dataclass(frozen=True, slots=True)
class Packed:
    """A piece of a gzip file, by its place in the unpacked JSON.

    Unpacking is so much faster than decoding that every helper unpacks the whole file for itself:
    cheaper than sending it the text. Pieces are asked for in order, so one pass does.
    """

    path: str
    start: int
    stop: int

    def load(self) -> bytes | bytearray:
        text = _UNPACKED.get(self.path)
        if text is None or text.at > self.start:
            text = _UNPACKED[self.path] = _Unpacked(self.path)
        return _bracketed(text.read(self.start, self.stop))


Piece = Text | Slice | Packed


def _bracketed(text: bytearray) -> bytearray:
    if text:
        text[0], text[-1] = b"[]"
    return text


class _Unpacked:
    """The text of a gzip file, read forward."""

    def __init__(self, path: str):
        self.at = 0  # place of the first byte that can still be read
        self._blocks = iter(ByteSource(path))
        self._block = memoryview(b"")
        self._begin = 0  # place of the block

    def read(self, start: int, stop: int) -> bytearray:
        found = bytearray()
        while True:
            wanted = self._block[max(start - self._begin, 0) : max(stop - self._begin, 0)]
            found += wanted
            if self._begin + len(self._block) >= stop or (block := next(self._blocks, None)) is None:
                self.at = self._begin
                return found
            self._begin += len(self._block)
            self._block = memoryview(block)


_UNPACKED: dict[str, _Unpacked] = {}


def forget() -> None:
    """Let go of open files."""
    _UNPACKED.clear()
