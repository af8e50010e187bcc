"""Result files and progress files: written so that a kill at any moment leaves a whole file or none.

``results/<gpu>/<stage>.json`` counts as current while the stage's method has the same version.
``<stage>.refused.json`` is a run that failed its checks, kept for a person to look at; it never counts.
``<stage>.progress.jsonl`` grows by one line per measured item and goes away when the result is written.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.stage import Row, Stage

SCHEMA = "tracelens.gpu-result/2"
PROGRESS = "tracelens.gpu-progress/2"
ROOT = Path(__file__).resolve().parents[2]
#: An item that ended the process this often, or failed this often, is given up.
MOST_KILLS, MOST_FAILURES = 3, 2
_KEYS = {"stage", "gpu", "dry_run", "state", "date", "command", "method", "device", "software", "data"}


def write_json(path: Path, value: Any) -> None:
    """Whole or not there, on disk when it returns. Not-a-number has no place in a result."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


class Damaged(Exception):
    """A file that is no result; the message says why."""


def read_result(path: Path) -> dict[str, Any]:
    """A result file, done or refused. Raises ``Damaged``; ``FileNotFoundError`` where there is none."""
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise Damaged(f"{path.name} cannot be read: {error}"[:200]) from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise Damaged(f"{path.name} is no {SCHEMA}")
    missing = sorted(_KEYS - raw.keys())
    if missing:
        raise Damaged(f"{path.name} lacks {', '.join(missing)}")
    if not isinstance(raw["data"], dict) or raw["state"] not in ("done", "refused"):
        raise Damaged(f"{path.name} is damaged: its data or its state")
    return raw


@dataclass(frozen=True, slots=True)
class State:
    """What there is of a stage on one GPU."""

    state: str  # missing | partial | refused | stale | current | damaged
    why: str = ""  # in words, for the plan
    done: frozenset[str] = frozenset()  # keys of the items that need no measuring any more
    result: Mapping[str, Any] | None = None

    @property
    def current(self) -> bool:
        return self.state == "current"


@dataclass(frozen=True, slots=True)
class Folder:
    """``results/<gpu>``."""

    path: Path
    dry_run: bool = False
    known: Path | None = None  # the same GPU's folder in the repository, when results go elsewhere

    def result(self, stage: Stage) -> Path:
        return self.path / f"{stage.name}.json"

    def refused(self, stage: Stage) -> Path:
        return self.path / f"{stage.name}.refused.json"

    def progress(self, stage: Stage) -> Progress:
        """What is measured of ``stage`` so far, here or by an earlier run; to be read."""
        path = self.path / f"{stage.name}.progress.jsonl"
        if self.known is not None and not path.exists():
            path = self.known / path.name
        return Progress(path, stage.name, stage.method)

    def begin(self, stage: Stage) -> Progress:
        """The same, to be gone on with: what an earlier run left is copied, never written to."""
        path = self.path / f"{stage.name}.progress.jsonl"
        if (earlier := self.progress(stage).path) != path and earlier.is_file():
            write_bytes(path, earlier.read_bytes())
        return Progress(path, stage.name, stage.method)

    def look(self, stage: Stage) -> State:
        """Current, or what is missing and why. A file that cannot be believed counts as missing."""
        if self.known is not None and (found := Folder(self.known, self.dry_run).look(stage)).current:
            return found
        progress = self.progress(stage)
        done = frozenset(progress.rows) | progress.given_up.keys() | progress.skipped.keys()
        try:
            result = read_result(self.result(stage))
        except FileNotFoundError:
            return self._without(stage, done)
        except Damaged as error:
            return State("damaged", str(error), done)
        if result["stage"] != stage.name or bool(result["dry_run"]) != self.dry_run:
            return State("damaged", f"{stage.name}.json is of another stage, or of a dry run", done)
        if result["state"] != "done":
            return State("refused", "; ".join(map(str, result.get("refused") or ["no reason kept"])), done)
        if result["method"] != stage.method:
            why = f"measured by method {result['method']}, and it is {stage.method} now"
            return State("stale", why, done, result)
        return State("current", f"measured {result['date']}", done, result)

    def _without(self, stage: Stage, done: frozenset[str]) -> State:
        if done:
            return State("partial", f"{len(done)} items are measured", done)
        try:
            refused = read_result(self.refused(stage)).get("refused")
        except FileNotFoundError:
            return State("missing", "not yet measured")
        except Damaged as error:
            return State("damaged", str(error))
        return State("refused", "; ".join(map(str, refused or ["no reason kept"])))


@dataclass(slots=True)
class Progress:
    """Rows of the items measured so far, in an append-only file. Another method's file is started over."""

    path: Path
    stage: str
    method: int
    rows: dict[str, Row] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # item -> why this device cannot
    sessions: list[dict[str, Any]] = field(default_factory=list)  # one per start that measured something
    tries: dict[str, int] = field(default_factory=dict)  # item -> begun so often without a row
    reasons: dict[str, list[str]] = field(default_factory=dict)  # item -> why each try failed
    predictions: dict[str, Any] = field(default_factory=dict)  # item -> what was said before its first try
    size: int = 0  # of the whole lines; what follows was cut off by a kill

    def __post_init__(self) -> None:
        with suppress(TypeError, ValueError, KeyError, IndexError, AttributeError):  # somebody wrote into it
            for line in self._lines():
                self._take(line)

    @property
    def given_up(self) -> dict[str, str]:
        """Item -> why; not tried again by this version of the method."""
        killed = ["the process ended while it was measured"]
        return {
            key: self.reasons.get(key, killed)[-1]
            for key, tries in self.tries.items()
            if tries >= MOST_KILLS or len(self.reasons.get(key, ())) >= MOST_FAILURES
        }

    def append(self, kind: str, value: Any) -> None:
        """``predicted`` [KEY, WHAT], ``begin`` KEY, ``row`` [KEY, ROW], ``failed`` [KEY, WHY],
        ``skipped`` [KEY, WHY], ``session`` FACTS, ``session_end`` FACTS, ``drop`` [KEYS]. On disk when it
        returns."""
        line = json.dumps({kind: value}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.size
        with open(self.path, "r+b" if self.path.exists() else "w+b") as file:
            file.truncate(self.size)
            file.seek(self.size)
            if fresh:
                file.write(json.dumps(self._head).encode() + b"\n")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self.size = file.tell()
        self._take({kind: value})

    @property
    def _head(self) -> dict[str, Any]:
        return {"schema": PROGRESS, "stage": self.stage, "method": self.method}

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _lines(self) -> Iterator[Any]:
        try:
            data = self.path.read_bytes()
        except OSError:
            return
        for at, text in enumerate(data.splitlines(keepends=True)):
            try:
                line = json.loads(text) if text.endswith(b"\n") else None
            except (ValueError, RecursionError):
                line = None
            if at == 0:
                head = line if isinstance(line, dict) else {}
                if head != self._head:
                    return
            elif not isinstance(line, dict) or len(line) != 1:
                return  # cut off: what follows a torn line cannot be trusted
            else:
                yield line
            self.size += len(text)

    def _take(self, line: Mapping[str, Any]) -> None:
        ((kind, value),) = line.items()
        if kind == "begin":
            self.tries[value] = self.tries.get(value, 0) + 1
        elif kind == "predicted":
            self.predictions.setdefault(value[0], value[1])
        elif kind == "row":
            self.rows[value[0]] = value[1]
            self.tries.pop(value[0], None)
        elif kind == "failed":
            self.reasons.setdefault(value[0], []).append(value[1])
        elif kind == "skipped":
            self.skipped[value[0]] = value[1]
            self.tries.pop(value[0], None)
        elif kind == "drop":
            for key in value:
                self.rows.pop(key, None)
        elif kind == "session":
            self.sessions.append(dict(value))
        elif kind == "session_end" and self.sessions:
            self.sessions[-1].update(value)
