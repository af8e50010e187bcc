"""What to capture, and how a process tells its children. Standard library only: read at every start."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

#: Holds the options as JSON; its presence is what makes a process capture.
VARIABLE = "TRACELENS_CAPTURE"

#: Timed steps after the window; the first one, which the profiler's end disturbs, is not counted.
AFTER = 5


@dataclass(frozen=True, slots=True)
class Options:
    """When to record (in training steps) and where to.

    The step that begins after ``wait`` complete ones is the first to run under the profiler;
    ``warmup`` steps are thrown away, ``active`` ones are kept.
    """

    out: str
    wait: int = 5  # with the defaults a script of 12 steps has its window, and 2 timed steps behind it
    warmup: int = 2
    active: int = 3
    ranks: tuple[int, ...] | None = None  # None: all
    stop: bool = False  # end the training once the trace is written
    started: float = 0.0  # of the whole run, Unix time: an older file of the same name is another run's
    root: int | None = None  # the process the user started

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {least}")

    @property
    def last(self) -> int:
        """How many steps are complete when the window closes."""
        return self.wait + self.warmup + self.active

    def wants(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks

    @property
    def told(self) -> str:
        """A file that a child makes when it says why it has no trace; its parent then says nothing else."""
        return os.path.join(self.out, f".told-{self.root}-{self.started:.0f}")

    def dumps(self) -> str:
        return json.dumps(asdict(self))


def from_environment(environment: Mapping[str, str]) -> Options | None:
    """The options a parent left, or None. Raises ValueError or TypeError when they cannot be read."""
    text = environment.get(VARIABLE)
    if not text:
        return None
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"{VARIABLE} holds no options")
    if values.get("ranks") is not None:
        values["ranks"] = tuple(int(rank) for rank in values["ranks"])
    return Options(**values)


def parse_ranks(text: str) -> tuple[int, ...] | None:
    """``all`` gives None; ``0,2,4-7`` the numbers, in order.

    >>> parse_ranks("0,4-6"), parse_ranks("all")
    ((0, 4, 5, 6), None)
    """
    if text.strip().lower() == "all":
        return None
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise ValueError(f"ranks {text!r}: give 'all' or numbers such as 0 or 0,2 or 0-3")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))
