"""The trace as Perfetto and chrome://tracing open it, with what tracelens knows beside the GPU's streams."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isal import igzip

from tracelens.errors import UsageError
from tracelens.files import atomic
from tracelens.render.perfetto_copy import Copy
from tracelens.render.perfetto_tracks import Tracks
from tracelens.trace.source import ByteSource

if TYPE_CHECKING:
    from tracelens.analysis import Analysis

_BUFFER = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Annotated:
    """What was written."""

    events: int  # of the trace itself
    added: int  # names of tracks and slices
    rewritten: int  # of events: beside damage, so their text is not the original's
    left_out: int  # damaged stretches of the trace that hold no whole event
    notes: tuple[str, ...]  # what is not in the file, and why


def check_perfetto(trace: str | Path, path: str | Path) -> None:
    """Can the trace be read twice and the file be written? Asked before the analysis, not after it.

    Raises UsageError: standard input or a pipe, another suffix than .json or .json.gz, the trace itself.
    """
    pipe = os.path.exists(trace) and not os.path.isfile(trace) and not os.path.isdir(trace)
    if str(trace) == "-" or pipe:
        raise UsageError(
            "--perfetto reads the trace a second time, which standard input and pipes do not allow: "
            "save it to a file and give that"
        )
    if not str(path).lower().endswith((".json", ".json.gz")):
        raise UsageError(f"cannot tell the format of {path}: end it in .json or .json.gz")
    if os.path.exists(path) and os.path.exists(trace) and os.path.samefile(path, trace):
        raise UsageError(f"--perfetto {path} would replace the trace itself: give it another name")


def write_perfetto(analysis: Analysis, path: str | Path, *, keep_metadata: bool = False) -> Annotated:
    """Write the trace's own events, and tracks of component, layer, phase and findings.

    ``path`` ends in .json or .json.gz. Of the metadata the file holds what is known to name no machine and no
    person, and of absolute paths in the events the last part; with ``keep_metadata`` it holds all of both.

    Raises:
        UsageError: a saved report, standard input, another suffix, or a place that cannot be written.
        InputError: the trace is gone by now.
    """
    trace = analysis.trace
    if trace is None or analysis.links is None or analysis.attribution is None or analysis.calls is None:
        raise UsageError("a saved report holds no events: analyze the trace itself")
    source = trace.source.path
    check_perfetto("-" if source is None else source, path)
    assert source is not None
    tracks = Tracks(analysis.report, trace, analysis.links, analysis.attribution, analysis.calls)
    copy = Copy(ByteSource(source), keep_metadata=keep_metadata)
    with atomic(path) as temporary, _writer(temporary, packed=str(path).lower().endswith(".gz")) as stream:
        for block in copy.blocks(tracks.events()):
            stream.write(block)
    return Annotated(
        events=copy.events,
        added=copy.added,
        rewritten=copy.rewritten,
        left_out=copy.left_out,
        notes=tuple(_notes(trace.partial, trace.warnings, copy, tracks)),
    )


def _notes(partial: bool, warnings: list[str], copy: Copy, tracks: Tracks) -> Iterator[str]:
    if partial:
        yield f"partial: it holds the {copy.events:,} events of the trace that are whole ({warnings[0]})"
    elif copy.rewritten:
        yield f"{copy.rewritten:,} events next to text that is not JSON were rewritten"
    if tracks.left_out:
        yield f"{tracks.left_out:,} GPU events overlap too many others of their stream: on no added track"


@contextmanager
def _writer(path: Path, *, packed: bool) -> Iterator[Any]:
    with open(path, "wb", buffering=_BUFFER) as file:
        if not packed:
            yield file
            return
        with igzip.IGzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream:
            yield stream
