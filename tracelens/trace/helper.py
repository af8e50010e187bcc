"""A helper process of the reader: how it is started, what it does, how one talks to it.

On Linux a process of one thread is forked: that takes 5 ms. Elsewhere, or with threads about (a
notebook), where a fork can hang, a fresh interpreter is started: that takes 200 ms.
"""

from __future__ import annotations

import gc
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from tracelens.errors import InputError
from tracelens.trace.columns import ChunkDecoder

_LENGTH = struct.Struct("<Q")
AHEAD = 6  # pieces a helper holds at a time
CODED = ("names", "details", "threads")


class Process(Protocol):
    """What the pool needs of a process."""

    @property
    def stdin(self) -> IO[bytes]: ...  # questions
    @property
    def stdout(self) -> IO[bytes]: ...  # answers
    def kill(self) -> None: ...
    def wait(self) -> int: ...
    def poll(self) -> int | None: ...


def start() -> Process | None:
    """A helper process; None where none can be started."""
    if sys.platform == "linux" and threading.active_count() == 1:
        return _fork()
    return _spawn()


def _spawn() -> Process | None:
    if not sys.executable:
        return None
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        return subprocess.Popen(  # type: ignore[return-value]  # with PIPE neither stream is None
            [sys.executable, "-P", "-m", "tracelens.trace.helper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
    except OSError:
        return None


def _fork() -> Process | None:
    question_end, questions = os.pipe()
    answers, answer_end = os.pipe()
    try:
        with warnings.catch_warnings():
            # Python 3.12 counts the idle threads of NumPy's BLAS, which a helper never calls
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    except OSError:
        for end in (question_end, questions, answers, answer_end):
            os.close(end)
        return None
    if pid:
        os.close(question_end)
        os.close(answer_end)
        return _Forked(pid, os.fdopen(questions, "wb"), os.fdopen(answers, "rb"))
    try:  # from here on this is the helper: it never returns into the caller's code
        os.close(questions)
        os.close(answers)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the reader's affair
        serve(os.fdopen(question_end, "rb"), os.fdopen(answer_end, "wb"))
    finally:
        os._exit(0)


class _Forked:
    """A forked helper, with the few methods of ``subprocess.Popen`` that are needed."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]):
        self._pid = pid
        self._status: int | None = None
        self.stdin = stdin
        self.stdout = stdout

    def kill(self) -> None:
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        if self._status is None:
            with suppress(ChildProcessError):
                self._status = os.waitpid(self._pid, 0)[1]
        return self._status or 0

    def poll(self) -> int | None:
        if self._status is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                self._status = status if pid else None
        return self._status


def send(pipe: IO[bytes], payload: bytes) -> None:
    pipe.write(_LENGTH.pack(len(payload)))
    pipe.write(payload)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(head)
    payload = pipe.read(size)
    return payload if len(payload) == size else None


def serve(questions: IO[bytes], answers: IO[bytes]) -> None:
    """The helper's side: pieces in, columns and newly met strings out, until the pipe closes."""
    gc.disable()
    pieces: queue.Queue[bytes | None] = queue.Queue(maxsize=AHEAD)

    def read() -> None:
        while (message := receive(questions)) is not None:
            pieces.put(message)
        pieces.put(None)

    threading.Thread(target=read, daemon=True).start()
    decoder = ChunkDecoder()
    known = dict.fromkeys(CODED, 0)
    while (message := pieces.get()) is not None:
        try:
            chunk = decoder.decode(pickle.loads(message).load())
        except (OSError, InputError):  # the file is gone: the reader meets the same and says so
            chunk = None
        new = {}
        for kind in CODED:
            coder = getattr(decoder, kind)
            if len(coder) > known[kind]:
                new[kind] = list(coder)[known[kind] :]
                known[kind] = len(coder)
        send(answers, pickle.dumps((chunk, new), protocol=5))


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
