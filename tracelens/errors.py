"""The errors a user can meet, each with the exit code the command line gives it."""

from __future__ import annotations

#: The next step of whoever has no trace that can be read.
RECORD_ONE = "record one with 'tracelens capture -- train.py'"


class TracelensError(Exception):
    """A problem to be told in one clear line that says what to do; never a traceback.

    ``cause`` is the line without ``remedy``.
    """

    exit_code = 3

    def __init__(self, cause: object = "", remedy: str = "") -> None:
        super().__init__(f"{cause}; {remedy}" if remedy else cause)
        self.cause = str(cause)


class UsageError(TracelensError):
    """The call itself is wrong: an unknown GPU name, steps that do not exist."""

    exit_code = 2


class InputError(TracelensError):
    """The input cannot be used: not a trace, empty, or without a single GPU event."""

    exit_code = 3


class GateError(TracelensError):
    """A gate of ``--fail-on`` failed or could not be judged; everything that was asked for is written."""

    exit_code = 1


def brief(said: object, longest: int = 20) -> str:
    """Text out of a file, as a part of one line."""
    text = " ".join(str(said).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
