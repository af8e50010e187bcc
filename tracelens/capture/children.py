"""In every process of the run: wait for torch to be imported, then watch. Light until then."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tracelens.capture.messages import say, why
from tracelens.capture.options import Options, from_environment

if TYPE_CHECKING:
    from tracelens.capture.session import Session

_session: Session | None = None
_options: Options | None = None
_handed_over = False


def boot() -> None:
    """Called by our sitecustomize."""
    global _options
    _options = from_environment(os.environ)
    if _options is None:
        return
    if _options.root == os.getpid():
        atexit.register(_nothing_written, _options)
    if "torch" in sys.modules:
        arm()
    else:
        sys.meta_path.insert(0, _AfterTorch())


class _AfterTorch:
    """Finds torch as it would be found, and arms the capture when its import is done."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            arm()

        loader.exec_module = exec_module
        return spec


def arm() -> None:
    """Start a session; a failure is one line."""
    global _session
    assert _options is not None
    try:
        from tracelens.capture.session import Session

        _session = Session(_options)
        _session.start()
        _at_exit(_finish)
        os.register_at_fork(after_in_child=_forked)
    except Exception as error:
        say(f"this process is not captured: {why(error)}")


def hand_over() -> None:
    """The script marks its steps itself: the automatic session steps back."""
    global _handed_over
    _handed_over = True
    if _session is not None and _session.state == "waiting":
        _session.forget()


def _at_exit(function: Any) -> None:
    """multiprocessing's children leave without running atexit, but run their own finalizers."""
    atexit.register(function)
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, function, exitpriority=1000)


def _finish() -> None:
    if _session is None or _session.state == "over":
        return
    error = getattr(sys, "last_type", None)  # the interpreter has shown it by now
    with suppress(KeyboardInterrupt):  # held until the file was there; the process ends anyhow
        _session.close(f"the script ended with {error.__name__}" if error is not None else None)


def _forked() -> None:
    """A child made by fork starts anew if nothing had begun, else it leaves the recording to its parent."""
    global _session
    if _session is None:
        return
    fresh = _session.state == "waiting" and not _session.done
    _session.forget()
    _session = None
    if fresh and _options is not None:
        arm()


def _nothing_written(options: Options) -> None:
    """The process that the user started: the last one to know that no trace came out."""
    from pathlib import Path

    told = Path(options.told)
    if told.exists():  # a child has said why it has none
        with suppress(OSError):
            told.unlink()
        return
    if any(_is_new(path, options.started) for path in Path(options.out).glob("rank*.json.gz")):
        return
    if _handed_over or (_session is not None and (_session.done or _session.optimizer_steps)):
        return  # it has said so
    if (error := getattr(sys, "last_type", None)) is not None:
        say(f"no trace was written: the command ended with {error.__name__}")
        return
    say(
        "no trace was written: no optimizer step was seen in any process of this command. If it trains in "
        "processes that do not inherit PYTHONPATH, put 'tracelens capture --' in front of the script itself; "
        "if it has no torch.optim.Optimizer, mark the steps with tracelens.capture(model)"
    )


def _is_new(path: Any, started: float) -> bool:
    try:
        return bool(path.stat().st_mtime >= started)
    except OSError:
        return False
