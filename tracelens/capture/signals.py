"""SIGTERM in the window: launchers send it to the other ranks when one fails. Write, then end as told."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Protocol


class Closes(Protocol):
    def close(self, reason: str | None = None) -> None: ...


_watching: dict[int, Any] = {}


def watch(session: Closes) -> None:
    """Only where nobody else handles the signal, and only in the main thread, where Python allows it."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def handle(number: int, frame: Any) -> None:
        unwatch()
        session.close("SIGTERM")
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)
    _watching[signal.SIGTERM] = handle


def unwatch() -> None:
    """Idempotent. A handler that came after ours stays."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number, handler in tuple(_watching.items()):
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_DFL)
        del _watching[number]
