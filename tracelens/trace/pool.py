"""Decoding on all cores: chunks go to helper processes and come back as columns.

A helper is a fresh ``python -m tracelens.trace.pool``, not a fork: forking a process with threads
(a notebook, a profiler's own reader thread) can hang it. A helper that cannot start or that dies
costs speed, never a result: its chunk is decoded here.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from tracelens.trace.columns import Chunk, ChunkDecoder, Coder

_LENGTH = struct.Struct("<Q")
_AHEAD = 3  # chunks a helper holds at a time
_CODED = ("names", "details", "threads")
_COLUMN_CODES = {
    "name": "names",
    "category": "names",
    "thread": "threads",
    "inputs": "details",
    "launch": "details",
}


class Pool:
    """Decodes chunks, in helpers while they have room and in this process otherwise."""

    def __init__(self, decoder: ChunkDecoder, helpers: int):
        self._decoder = decoder
        self._helpers = [helper for helper in (Helper.start() for _ in range(helpers)) if helper]

    def submit(self, text: bytes) -> Callable[[], Chunk | None]:
        """Begin to decode; call the result, in order, for the chunk (None: not decodable)."""
        helper = min(self._helpers, key=lambda helper: helper.outstanding, default=None)
        if helper is None or helper.outstanding >= _AHEAD:
            chunk = self._decoder.decode(text)
            return lambda: chunk
        answer = helper.send(text)
        return lambda: self._collect(helper, answer, text)

    def _collect(self, helper: Helper, answer: Future[bytes | None], text: bytes) -> Chunk | None:
        payload = answer.result()
        if payload is None:  # the helper died: its chunks are decoded here
            if helper in self._helpers:
                self._helpers.remove(helper)
                helper.stop()
            return self._decoder.decode(text)
        chunk, new = pickle.loads(payload)
        helper.learn(new, self._decoder)
        return helper.translate(chunk) if chunk is not None else None

    def close(self) -> None:
        for helper in self._helpers:
            helper.stop()


class Helper:
    """One helper process, the two threads that talk to it, and what its codes mean here.

    Chunks are sent ahead of the answers, so the helper never waits for this process's lock.
    """

    def __init__(self, process: subprocess.Popen[bytes]):
        assert process.stdin and process.stdout
        self._process = process
        self._codes = {kind: np.empty(0, np.int32) for kind in _CODED}
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: deque[Future[bytes | None]] = deque()
        self._dead = False
        self._lock = threading.Lock()  # between the last answer read and the next question asked
        self._talkers = [
            (threading.Thread(target=talk, args=(pipe,), daemon=True), pipe)
            for talk, pipe in ((self._write, process.stdin), (self._read, process.stdout))
        ]
        for thread, _ in self._talkers:
            thread.start()

    @classmethod
    def start(cls) -> Helper | None:
        if not sys.executable:
            return None
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tracelens.trace.pool"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            )
        except OSError:
            return None
        return cls(process)

    @property
    def outstanding(self) -> int:
        return len(self._answers)

    def send(self, text: bytes) -> Future[bytes | None]:
        """Queue one chunk; the future gives the helper's answer, or None if it died."""
        answer: Future[bytes | None] = Future()
        with self._lock:
            if self._dead:
                answer.set_result(None)
                return answer
            self._answers.append(answer)
        self._requests.put(text)
        return answer

    def _write(self, pipe: IO[bytes]) -> None:
        try:
            while (text := self._requests.get()) is not None:
                _send(pipe, text)
        except (OSError, ValueError):
            self._process.kill()  # the reading thread sees the end and fails what waits

    def _read(self, pipe: IO[bytes]) -> None:
        try:
            while (payload := _receive(pipe)) is not None:
                self._answers.popleft().set_result(payload)
        except (OSError, ValueError):
            self._process.kill()
        self._fail()

    def _fail(self) -> None:
        with self._lock:
            self._dead = True
            while self._answers:
                self._answers.popleft().set_result(None)

    def learn(self, new: dict[str, list[Any]], decoder: ChunkDecoder) -> None:
        """Give the helper's new strings their codes here."""
        for kind, values in new.items():
            coder: Coder = getattr(decoder, kind)
            self._codes[kind] = np.concatenate([self._codes[kind], coder.codes(values, len(values))])

    def translate(self, chunk: Chunk) -> Chunk:
        for columns in chunk.tables.values():
            for name in columns.keys() & _COLUMN_CODES.keys():
                columns[name] = self._codes[_COLUMN_CODES[name]][columns[name]]
        return chunk

    def stop(self) -> None:
        self._requests.put(None)
        self._process.kill()
        self._process.wait()
        for thread, pipe in self._talkers:
            thread.join()
            with suppress(OSError):  # what lay unsent for a dead helper
                pipe.close()


def _send(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(_LENGTH.pack(len(payload)))
    pipe.write(payload)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    payload = pipe.read(size)
    return payload if len(payload) == size else None


def _serve() -> None:
    """The helper's side: chunks in, columns and newly met strings out, until the pipe closes."""
    gc.disable()
    chunks: queue.Queue[bytes | None] = queue.Queue(maxsize=_AHEAD)

    def read() -> None:
        while (text := _receive(sys.stdin.buffer)) is not None:
            chunks.put(text)
        chunks.put(None)

    threading.Thread(target=read, daemon=True).start()
    decoder = ChunkDecoder()
    known = dict.fromkeys(_CODED, 0)
    while (text := chunks.get()) is not None:
        chunk = decoder.decode(text)
        new = {}
        for kind in _CODED:
            coder = getattr(decoder, kind)
            if len(coder) > known[kind]:
                new[kind] = list(coder)[known[kind] :]
                known[kind] = len(coder)
        _send(sys.stdout.buffer, pickle.dumps((chunk, new), protocol=5))


if __name__ == "__main__":
    _serve()
