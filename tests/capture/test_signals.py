"""Signals between the window's begin and the written file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.capture.recorded import load, run
from tracelens.capture import signals


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_is_held_comes_once_at_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), signals.held():
        with signals.held():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_a_session_that_ends_while_signals_are_held_leaves_no_handler() -> None:
    closed: list[str] = []
    signals.watch(closed.append)
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    with signals.held():
        signals.unwatch()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert closed == []


def test_signals_while_the_file_is_written_wait_for_it(tmp_path: Path) -> None:
    """The process ends as the first signal says, with the file there and no traceback of ours."""
    (tmp_path / "script.py").write_text(
        "import os, signal, torch, tracelens\n"
        "from tracelens.capture import session\n"
        "finish = session.finish\n"
        "def slow(*args):\n"
        "    for number in (signal.SIGINT, signal.SIGTERM): os.kill(os.getpid(), number)\n"
        "    return finish(*args)\n"
        "session.finish = slow\n"
        "model = torch.nn.Linear(8, 8)\n"
        "with tracelens.capture(model, wait=1, warmup=0, active=1) as steps:\n"
        "    for _ in range(3):\n"
        "        model(torch.randn(2, 8)).sum().backward()\n"
        "        steps.step()\n"
    )
    done = run("script.py", cwd=tmp_path)
    assert done.returncode in (-signal.SIGINT, -signal.SIGTERM)
    assert load(tmp_path / "traces" / "rank0.json.gz")["tracelens"]["window"]["complete"] is True
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["rank0.json.gz"]
