"""What leaves a command: standard output, whose reader can go away at any time, and names as hashes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TextIO

import click

from tracelens.errors import UsageError

#: Of every command that writes names from a trace.
redact_option = click.option(
    "--redact",
    is_flag=True,
    help="Hashes instead of the names of kernels, modules, process groups and files, the same in every run.",
)


#: Of every command that measures.
resume_option = click.option(
    "--resume/--fresh",
    default=True,
    show_default=True,
    help="Take what was measured before by the same method, or measure anew.",
)


def mergeable(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """The file of --summary, by the name that `tracelens merge` reads; UsageError for another one."""
    from tracelens.job.find import SUMMARY

    if path is not None and not path.endswith(SUMMARY):
        raise UsageError(f"--summary {path}: tracelens merge reads {SUMMARY} files; name it {path}{SUMMARY}")
    return path


def open_closed() -> None:
    """A stream that was closed before we began (``>&-``) is there, and what is written to it is lost."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open to the end


@contextlib.contextmanager
def fetched(*paths: str) -> Iterator[list[str]]:
    """The same paths; of an address of a trace (``https://``, ``s3://``) a copy that goes away afterwards.

    Raises InputError where it cannot be fetched.
    """
    from tracelens.job.find import is_file_address, on_this_machine

    with contextlib.ExitStack() as stack:
        yield [str(stack.enter_context(on_this_machine(path))) if is_file_address(path) else path
               for path in paths]  # fmt: skip


def nobody_reads(stream: TextIO | None = None) -> None:
    """Send what is still to be written nowhere, so that Python does not complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


def warn(text: str) -> None:
    """Say one line on standard error; names in it are text, to a terminal and to GitHub's runner."""
    from tracelens.render.actions import disarm, on_actions
    from tracelens.render.text import clean

    line = f"tracelens: {clean(text)}"
    try:
        click.echo(disarm(line) if on_actions() else line, err=True)
    except OSError:  # a full stderr changes no exit code
        nobody_reads(sys.stderr)


def need_torch(command: str) -> None:
    """Raises UsageError where PyTorch is not installed."""
    if find_spec("torch") is None:
        raise UsageError(
            f"`tracelens {command}` needs an NVIDIA GPU and PyTorch with CUDA: `pip install torch`, or run it"
            " in the environment you train in"
        )


def end_measuring(stopped: str | None) -> None:
    """The exit code of a run that ended before its time: by Ctrl-C, or by what the GPU refused."""
    if stopped is not None:
        raise click.exceptions.Exit(130 if stopped == "interrupted" else 3)


def give_json(data: bytes, path: str) -> None:
    """Write JSON to a file, or print it where that is "-"."""
    from tracelens.files import write_bytes

    if path == "-":
        echo_json(data)
    else:
        write_bytes(path, data)


def echo_json(data: bytes) -> None:
    """Print JSON; on GitHub Actions nothing in it is a command to the runner."""
    from tracelens.render.actions import disarm_json, on_actions

    click.echo(disarm_json(data) if on_actions() else data, nl=not data.endswith(b"\n"))
