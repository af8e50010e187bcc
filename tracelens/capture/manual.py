"""Capture from one's own loop, where the steps are marked by hand."""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

from tracelens.capture import children
from tracelens.capture.messages import say
from tracelens.capture.options import Options
from tracelens.capture.session import Session


class Capture:
    """``with capture(model) as steps: ... steps.step()`` after every training step."""

    def __init__(self, session: Session):
        self._session = session

    def __enter__(self) -> Capture:
        children.hand_over()
        self._session.start()
        return self

    def step(self) -> None:
        """A training step is complete."""
        self._session.step()

    @property
    def path(self) -> str | None:
        """The trace, once it is written."""
        return str(self._session.written) if self._session.written else None

    def close(self, reason: str | None = None) -> None:
        """Write what there is. Idempotent."""
        if self._session.state == "waiting" and not self._session.done and reason is None:
            say("no trace: no step was marked; call .step() after each training step")
        self._session.close(reason)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(f"the script ended with {kind.__name__}" if kind is not None else None)


def capture(
    *models: Any,
    out: str | os.PathLike[str] = "traces",
    wait: int = 5,
    warmup: int = 2,
    active: int = 3,
    ranks: tuple[int, ...] | None = None,
) -> Capture:
    """Record ``active`` steps of a loop in ``out``/rank<R>.json.gz, after ``wait`` + ``warmup`` ones.

    ``models`` are the modules to name; without any, all modules alive are found. ``ranks``: None for all.
    A failure of the capture is one line on standard error; the loop goes on.

    Raises:
        ValueError: wait or warmup is negative, or active is less than 1.
    """
    options = Options(
        out=os.fspath(out), wait=wait, warmup=warmup, active=active, ranks=ranks, started=time.time()
    )
    return Capture(Session(options, automatic=False, roots=models))


class TrainingCapture:
    """What the callbacks of trainers share; options as ``capture``'s."""

    def __init__(self, **options: Any):
        self._options = options
        self._capture: Capture | None = None

    @property
    def path(self) -> str | None:
        """The trace, once it is written."""
        return self._capture.path if self._capture else None

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        if self._capture is not None:
            self._capture.close()
