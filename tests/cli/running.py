"""The command line run in this process: streams, folder and environment of its own, no second Python."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from tracelens.cli import main

#: What a terminal or a CI of the one who runs the tests would change.
_THEIRS = ("NO_COLOR", "FORCE_COLOR", "TERM", "LINES")


def run_bytes(
    *arguments: str | Path, cwd: Path | None = None, stdin: bytes | None = None, **environment: str
) -> CompletedProcess[bytes]:
    """What ``tracelens ARGUMENTS`` writes and returns, 100 columns wide."""
    command = ["tracelens", *map(str, arguments)]
    streams = [io.TextIOWrapper(io.BytesIO(data), encoding="utf-8") for data in (stdin or b"", b"", b"")]
    with contextlib.ExitStack() as stack:
        for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(mock.patch.object(sys, "argv", command))
        stack.enter_context(mock.patch.dict(os.environ, {"COLUMNS": "100"}))
        for name in [name for name in os.environ if name in _THEIRS or name.startswith("GITHUB_")]:
            del os.environ[name]
        os.environ.update(environment)
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        code = _exit_code()
        for stream in streams[1:]:
            stream.flush()
    out, err = (stream.buffer.getvalue() for stream in streams[1:])
    return CompletedProcess(command, code, out, err)


def run(
    *arguments: str | Path, cwd: Path | None = None, stdin: bytes | None = None, **environment: str
) -> CompletedProcess[str]:
    """The same as text."""
    done = run_bytes(*arguments, cwd=cwd, stdin=stdin, **environment)
    return CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


_ONE = "sys.argv[0] = 'tracelens'; main()"
_MANY = """
import io, json
said = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["tracelens", *arguments]
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code
    said.append([code, sys.stdout.getvalue(), sys.stderr.getvalue()])
json.dump(said, sys.__stdout__)
"""


def run_each_without(
    modules: Sequence[str], commands: Sequence[Sequence[str]], **environment: str
) -> list[CompletedProcess[str]]:
    """Commands one after another in a Python that cannot import ``modules``."""
    done = run_without(modules, json.dumps(commands), code=_MANY, **environment)
    assert done.returncode == 0, done.stderr
    pairs = zip(commands, json.loads(done.stdout), strict=True)
    return [CompletedProcess(arguments, *said) for arguments, said in pairs]


def run_without(
    modules: Sequence[str], *arguments: str | Path, code: str = _ONE, **environment: str
) -> CompletedProcess[str]:
    """The same in a Python of its own that cannot import ``modules``."""
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in modules)
    code = f"import sys; {blocked}from tracelens.cli import main; {code}"
    ours = {name: value for name, value in os.environ.items() if name not in _THEIRS}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**ours, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **environment},
        check=False,
    )


def one_line(done: CompletedProcess[str], *, code: int) -> str:
    """The only line of a command that failed."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("tracelens: ")
    return line


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
