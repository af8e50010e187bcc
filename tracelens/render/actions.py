"""GitHub Actions: annotations, and output that its runner never takes for a command.

The runner looks at every line a step prints. One that begins with ``::name``, behind blanks or not, is a
command, and so is ``##[name]`` anywhere in a line; what such a command can do includes switching all later
ones off. (actions/runner, src/Runner.Common/ActionCommand.cs: TryParseV2 and TryParse.)
"""

from __future__ import annotations

import os
import re
from typing import Any, TextIO

from tracelens.render.text import clean

#: Behind blanks (of .NET: more than ASCII has) and what sets a colour.
_COMMAND = re.compile(r"((?:^|[\r\n])(?:[^\S\r\n]|\x1b\[[0-9;]*m)*)::")
_OLD_COMMAND = re.compile(r"##(?=\[)")
LEVELS = ("error", "warning", "notice")
_LIMIT = 400


def on_actions() -> bool:
    """Is this a step of GitHub Actions?"""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def disarm(text: str) -> str:
    """Take from lines what would make one a command, and leave them readable.

    >>> disarm("a::b\\n ::stop-commands::x\\n##[group]y")
    'a::b\\n : :stop-commands::x\\n# #[group]y'
    """
    return _OLD_COMMAND.sub("# #", _COMMAND.sub(r"\1: :", text))


def disarm_json(data: bytes) -> bytes:
    """The same JSON, on whose lines the runner finds no command: a line of it never begins with a colon."""
    return data.replace(b"##[", b"#\\u0023[")


class Disarmed:
    """A text stream whose lines are disarmed on their way."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(disarm(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def annotation(level: str, title: str, message: str) -> str:
    """One line that GitHub shows as an annotation of the run; names in it stay text.

    Escaped as actions/toolkit does (packages/core/src/command.ts).

    >>> annotation("error", "gate a,b: c", "50% more\\n::stop-commands::x")
    '::error title=gate a%2Cb%3A c::50%25 more ::stop-commands::x'
    """
    if level not in LEVELS:
        raise ValueError(f"no level of annotations: {level}")
    title = _data(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_data(message)}"


def _data(text: str) -> str:
    text = _OLD_COMMAND.sub("# #", clean(text, limit=_LIMIT))
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
