"""Traces cut at random places: is every event before the cut read, and the loss said?

``python -m benchmarks.cuts [TRACE...] [--places 100]``; without traces, those beside the repository. Each is
cut plain and packed. Exit code 1 if a cut lost more than the event that it went through.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from tracelens.errors import InputError
from tracelens.trace import read_trace
from tracelens.trace.framing import find_events

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"


def event_ends(data: bytes) -> list[int]:
    """The offset behind each event of a sound trace, read by the JSON decoder of Python alone."""
    start = find_events(bytearray(data), 0, len(data))
    if start is None:
        raise ValueError("no events")
    # one letter per byte, so that places in the text are places in the file
    text, decoder = data.decode("latin-1"), json.JSONDecoder(strict=False)
    ends: list[int] = []
    at = start + 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return ends
        _, at = decoder.raw_decode(text, at)
        ends.append(at)


def cut(
    data: bytes, ends: Sequence[int], place: int, path: Path, *, packed: bytes | None = None
) -> str | None:
    """What is wrong with the reading of a trace cut at ``place`` (of ``packed``, where that is given)."""
    path.write_bytes(data[:place] if packed is None else packed[:place])
    whole = place if packed is None else len(zlib.decompressobj(31).decompress(packed[:place]))
    want = bisect_right(ends, whole)
    try:
        trace = read_trace(path)
    except InputError as error:
        return None if want == 0 else f"{want} events before the cut, and none read: {error}"
    if trace.events != want:
        return f"{want} events before the cut, {trace.events} read"
    rest = data[ends[-1] :] if ends else b""
    said = trace.partial and trace.warnings
    return None if said or whole >= len(data) - len(rest.lstrip(b" \r\n\t]")) else "the loss is not said"


def places(data: bytes, packed: bytes, count: int, seed: int) -> Iterator[tuple[int, bytes | None]]:
    """Places to cut at, plain and packed in turn."""
    rnd = random.Random(seed)
    for _ in range(count):
        yield rnd.randrange(1, len(data)), None
        yield rnd.randrange(20, len(packed)), packed


def main(arguments: Sequence[str] | None = None) -> int:
    """Cut each trace and print what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuts", description=__doc__)
    parser.add_argument("traces", type=Path, nargs="*")
    parser.add_argument("--places", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for path in options.traces or sorted(SHARED.rglob("*.json.gz")):
            packed = path.read_bytes()
            data = gzip.decompress(packed)
            try:
                ends = event_ends(data)
            except (ValueError, IndexError) as error:
                print(f"{path.name}: not sound itself, left out: {error}")
                continue
            tried = faults = 0
            for place, of in places(data, packed, options.places, options.seed):
                name = Path(folder) / ("cut.json" if of is None else "cut.json.gz")
                fault = cut(data, ends, place, name, packed=of)
                tried += 1
                if fault:
                    faults += 1
                    print(f"{path.name}, {'plain' if of is None else 'packed'} at {place:,}: {fault}")
            print(f"{path.name}: {len(ends):,} events, {tried} cuts, {faults} wrong", flush=True)
            wrong += faults
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
