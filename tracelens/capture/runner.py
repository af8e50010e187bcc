"""From the words after ``--`` to the command that runs in our place, with the environment that captures it.

The command is run by exec: same process id, so that signals, exit code, terminal and working directory are
the script's own, and nothing of ours is on its stack. What makes it capture is inherited by every process it
starts: the options in one variable, and a folder with a ``sitecustomize`` first on PYTHONPATH. That reaches
``torchrun``, ``accelerate launch``, ``deepspeed``, ``python -m`` and ``multiprocessing`` workers alike, on
this machine: a launcher that starts ranks on others takes few variables there (DeepSpeed's runner: PYTHONPATH
and not ours), and needs the capture in front of the script. For DeepSpeed that is ``deepspeed --no_local_rank
--module tracelens capture -- train.py``. The
alternatives fall short: running the script here with runpy reaches no child; a ``.pth`` file stays behind in
the environment; patching launchers needs one patch per launcher.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from tracelens.capture.options import VARIABLE, Options
from tracelens.errors import UsageError

SITE = Path(__file__).resolve().parent / "site"


def resolve(command: Sequence[str]) -> list[str]:
    """The argument vector to run: a script or ``-m module`` by this Python, anything else as it is.

    Raises UsageError when there is nothing that could be run.
    """
    if not command:
        raise UsageError("nothing to run: tracelens capture -- train.py ARGS")
    first = command[0]
    if first == "-m" and len(command) == 1:
        raise UsageError("-m needs a module: tracelens capture -- -m package.train ARGS")
    if first in ("-m", "-c"):
        return [*_python(), *command]
    path = Path(first)
    if path.suffix in (".py", ".pyc", ".pyz") or (path.is_dir() and (path / "__main__.py").is_file()):
        if not path.exists():
            raise UsageError(f"there is no {first}: check the path, or give a module with -m")
        return [*_python(), *command]
    if found := shutil.which(first):
        return [found, *command[1:]]
    if path.is_file():
        return [*_python(), *command]
    raise UsageError(f"cannot run {first}: no such script or program; check the path")


def _python() -> list[str]:
    """This interpreter with its own flags; -I and -E would keep us out of our own child."""
    # as multiprocessing does it; the function has no public name
    flags = [flag for flag in subprocess._args_from_interpreter_flags() if flag not in ("-I", "-E")]  # type: ignore[attr-defined]
    if getattr(sys.stdout, "write_through", False):
        flags.append("-u")
    return [sys.executable, *flags]


def environment(options: Options, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` with what makes a process and its children capture."""
    path = base.get("PYTHONPATH")
    return {
        **base,
        VARIABLE: options.dumps(),
        "PYTHONPATH": f"{SITE}{os.pathsep}{path}" if path else str(SITE),
    }


def run(command: Sequence[str], options: Options) -> NoReturn:
    """Become the command. Raises UsageError when it cannot be run or the folder cannot be written."""
    argv = resolve(command)
    out = Path(options.out).absolute()
    check_folder(out)
    ready = replace(options, out=str(out), started=time.time(), root=os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        if os.name == "nt":  # exec there returns to the shell at once
            sys.exit(subprocess.call(argv, env=environment(ready, os.environ)))
        os.execve(argv[0], argv, environment(ready, os.environ))
    except OSError as error:
        raise UsageError(f"cannot run {argv[0]}: {error.strerror or error}") from error


def check_folder(out: Path) -> None:
    """Make the folder and try to write in it, before hours of training. Raises UsageError."""
    probe = out / f".tracelens-{os.getpid()}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write in {out}: {error.strerror or error}; choose --out") from error
