"""What attribution says of a real trace when less of it is told: ``python -m benchmarks.withheld [TRACE...]``

Each trace is attributed whole, then without names (module frames and ranges), without shapes, without both,
and cut to its last and its first two thirds. What it then says must not contradict what it says of the whole:
printed are the shares of GPU time that got another component, and that got none any more. Without traces,
those of sample_traces and of shared/ beside the repository.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracelens.attribution import attribute
from tracelens.errors import InputError
from tracelens.trace import link, read_trace
from tracelens.words import COMPONENTS, EVIDENCE

_ROOT = Path(__file__).resolve().parents[1]
_SHAPES = {"Input Dims", "Input type", "Input Strides", "Concrete Inputs"}
_LARGEST = 12_000_000  # bytes of a file that is tried unasked
Events = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Shares of the GPU time: ``other`` than of the whole trace, ``lost``, and the largest of ``what``."""

    other: float
    lost: float
    what: dict[str, float]


def _hides(event: dict[str, Any]) -> bool:
    ranges = event.get("cat") in ("user_annotation", "gpu_user_annotation")
    named = ranges and not str(event.get("name")).startswith("ProfilerStep")
    return named or event.get("cat") == "python_function"


def _bare(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    bare = (
        {key: value for key, value in args.items() if key not in _SHAPES} if isinstance(args, dict) else args
    )
    return event | {"args": bare}


def less(events: Events) -> Iterator[tuple[str, Events]]:
    """The events with less in them, and what was withheld; nothing where it held none of that."""
    names = any(map(_hides, events))
    shapes = any("Input Dims" in (event.get("args") or {}) for event in events)
    if names:
        yield "names", [event for event in events if not _hides(event)]
    if shapes:
        yield "shapes", [*map(_bare, events)]
    if names and shapes:
        yield "both", [_bare(event) for event in events if not _hides(event)]
    begins = sorted(e["ts"] for e in events if e.get("ph") == "X" and e.get("cat") == "cpu_op")
    if begins:
        first, last = begins[len(begins) // 3], begins[2 * len(begins) // 3]
        yield "the first third", [e for e in events if e.get("ph") != "X" or e["ts"] >= first]
        yield "the last third", [e for e in events if e.get("ph") != "X" or e["ts"] <= last]


def load(path: Path) -> dict[str, Any]:
    """The JSON of a trace, packed or not."""
    data = path.read_bytes()
    found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    return {"traceEvents": found} if isinstance(found, list) else found


def contradicted(document: dict[str, Any], fewer: Events, folder: Path) -> Contradicted:
    """What is said of ``fewer`` events, against what is said of the whole."""
    whole = {key: found for key, found, _, _ in _attributed(document, folder)}
    other, lost, busy, what = 0, 0, 0, Counter[str]()
    for key, found, evidence, took in _attributed(document | {"traceEvents": fewer}, folder):
        busy += took
        before = whole.get(key, "unattributed")
        if "unattributed" in (before, found):
            lost += took * (before != found)
        elif not _agree(before, found):
            other += took
            what[f"{before} -> {found} [{evidence}]"] += took
    total = busy or 1
    return Contradicted(other / total, lost / total, {k: v / total for k, v in what.most_common(4)})


def _attributed(document: dict[str, Any], folder: Path) -> Iterator[tuple[tuple[int, str], str, str, int]]:
    path = folder / "trace.json"
    path.write_text(json.dumps(document))
    trace = read_trace(path)
    found = attribute(trace, link(trace))
    kernels = trace.kernels
    rows = zip(kernels.ts_ns, kernels.name, found.component, found.evidence, kernels.dur_ns, strict=True)
    for begin, name, component, evidence, took in rows:
        yield (int(begin), trace.symbols[int(name)]), COMPONENTS[component], EVIDENCE[evidence], int(took)


def _agree(before: str, found: str) -> bool:
    """Equal, or parts of one block of which one is not told further."""
    families, parts = zip(before.partition(".")[::2], found.partition(".")[::2], strict=True)
    return before == found or (len({*families}) == 1 and bool({"", "other"} & {*parts}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    asked: list[Path] = parser.parse_args().traces
    folders = (_ROOT / "sample_traces", _ROOT.parent / "shared" / "traces")
    found = (path for folder in folders for path in sorted(folder.rglob("*.json.gz")))
    for path in asked or (path for path in found if path.stat().st_size < _LARGEST):
        with tempfile.TemporaryDirectory() as folder:
            try:
                document = load(path)
                for withheld, fewer in less(document["traceEvents"]):
                    said = contradicted(document, fewer, Path(folder))
                    most = "; ".join(f"{share:.2%} {what}" for what, share in said.what.items())
                    print(f"{path.name[:52]:52} without {withheld:15} other {said.other:.2%}", end=" ")
                    print(f"lost {said.lost:.1%}  {most}", flush=True)
            except (InputError, KeyError) as error:
                print(f"{path.name[:52]:52} not read: {error}")


if __name__ == "__main__":
    main()
