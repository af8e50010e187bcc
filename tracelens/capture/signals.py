"""Signals between the window's begin and the written file: write first, then end as told.

Launchers send SIGTERM to the other ranks when one fails, and a second signal to ranks that Ctrl-C has reached
already: it must not come between a trace and its file.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_watching: dict[int, Any] = {}
_held: dict[int, Any] = {}  # what handles a signal when nothing is held any more
_came: list[int] = []
_depth = 0


def watch(close: Callable[[str], None]) -> None:
    """SIGTERM closes a session. Only where nobody else handles it, in the main thread, as Python allows."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def handle(number: int, frame: Any) -> None:
        close("SIGTERM")
        unwatch()
        signal.raise_signal(number)

    signal.signal(signal.SIGTERM, handle)
    _watching[signal.SIGTERM] = handle


def unwatch() -> None:
    """Idempotent. A handler that came after ours stays."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number, handler in tuple(_watching.items()):
        if _held.get(number) is handler:
            _held[number] = signal.SIG_DFL
        elif signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)
        del _watching[number]


@contextmanager
def held() -> Iterator[None]:
    """SIGINT and SIGTERM wait until the block is done, and then do what they would have done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _depth
    _depth += 1
    try:
        if _depth == 1:
            _hold()
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            _let_go()


def _hold() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not None:  # None: not set from Python, so it cannot be set back
            _held[number] = signal.signal(number, lambda number, frame: _came.append(number))


def _let_go() -> None:
    for number, handler in _held.items():
        signal.signal(number, handler)
    _held.clear()
    came = tuple(dict.fromkeys(_came))
    _came.clear()
    for number in came:
        signal.raise_signal(number)
