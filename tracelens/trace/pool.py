"""Decoding on all cores: pieces of a trace go to helper processes and come back as columns.

A helper that cannot start or that dies costs speed, never a result: its pieces are decoded here.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, Any

import numpy as np

from tracelens.trace.columns import Chunk, ChunkDecoder, Coder
from tracelens.trace.helper import AHEAD, CODED, Process, receive, send, start
from tracelens.trace.pieces import Piece, forget

_COLUMN_CODES = {
    "name": "names",
    "category": "names",
    "label": "names",
    "thread": "threads",
    "inputs": "details",
    "launch": "details",
    "collective": "details",
}


class Pool:
    """Decodes chunks, in helpers while they have room and in this process otherwise."""

    def __init__(self, decoder: ChunkDecoder, helpers: int):
        self._decoder = decoder
        # all processes before the threads that talk to them: a fork needs a process of one thread
        processes = [process for process in (start() for _ in range(helpers)) if process]
        self._helpers = [Helper(process) for process in processes]

    def submit(self, piece: Piece, text: bytes | memoryview | None = None) -> Callable[[], Chunk | None]:
        """Begin to decode; call the result, in order, for the chunk (None: not decodable).

        ``text`` is what the piece loads, where it is at hand. What is decoded here waits for its turn, so
        that strings get their codes in the order of the file.
        """
        helper = min(self._helpers, key=lambda helper: helper.outstanding, default=None)
        if helper is None or helper.outstanding >= AHEAD:
            kept = None if text is None else bytes(text)
            return lambda: self._decoder.decode(piece.load() if kept is None else kept)
        answer = helper.send(piece)
        return lambda: self._collect(helper, answer, piece)

    def _collect(self, helper: Helper, answer: Future[bytes | None], piece: Piece) -> Chunk | None:
        payload = answer.result()
        if payload is None:  # the helper died: its chunks are decoded here
            if helper in self._helpers:
                self._helpers.remove(helper)
                helper.stop()
            return self._decoder.decode(piece.load())
        chunk, new = pickle.loads(payload)
        helper.learn(new, self._decoder)
        return helper.translate(chunk) if chunk is not None else None

    def close(self) -> None:
        for helper in self._helpers:
            helper.stop()
        forget()


class Helper:
    """One helper process, the two threads that talk to it, and what its codes mean here.

    Pieces are sent ahead of the answers, so the helper never waits for this process's lock.
    """

    def __init__(self, process: Process):
        self._process = process
        self._codes = {kind: np.empty(0, np.int32) for kind in CODED}
        self._requests: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._answers: deque[Future[bytes | None]] = deque()
        self._dead = False
        self._lock = threading.Lock()  # between the last answer read and the next question asked
        self._talkers = [
            (threading.Thread(target=talk, args=(pipe,), daemon=True), pipe)
            for talk, pipe in ((self._write, process.stdin), (self._read, process.stdout))
        ]
        for thread, _ in self._talkers:
            thread.start()

    @property
    def outstanding(self) -> int:
        return len(self._answers)

    def send(self, piece: Piece) -> Future[bytes | None]:
        """Queue one piece; the future gives the helper's answer, or None if it died."""
        answer: Future[bytes | None] = Future()
        with self._lock:
            if self._dead:
                answer.set_result(None)
                return answer
            self._answers.append(answer)
        self._requests.put(piece)
        return answer

    def _write(self, pipe: IO[bytes]) -> None:
        try:
            while (piece := self._requests.get()) is not None:
                send(pipe, pickle.dumps(piece, protocol=5))
        except (OSError, ValueError):
            self._process.kill()  # the reading thread sees the end and fails what waits

    def _read(self, pipe: IO[bytes]) -> None:
        try:
            while (payload := receive(pipe)) is not None:
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
