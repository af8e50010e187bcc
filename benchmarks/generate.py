"""Write a large trace of known content: python -m benchmarks.generate --mb 500 --out trace.json

A few simulated training steps (tests/synthetic) are repeated with shifted times and ids until the
file has the asked size, in the layout of torch >= 2.11 and in Kineto's file order: ops of the
autograd thread, ops of the main thread, Python frames, GPU activity, GPU annotations. Memory stays
at a few steps' text whatever the size. Beside the file lies FILE.truth.json: how many events of
which category, how many nanoseconds of kernels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tests.synthetic import Event, ModelSpec, Options, build
from tests.synthetic.layout import GENERATED_BY, closing, event_text, header, opening

#: Steps that take turns, so that names and shapes vary without growing in number.
VARIANTS = (
    (ModelSpec(layers=2, hidden=1024, heads=16), Options(steps=1, module_frames=False, all_reduce=True)),
    (
        ModelSpec(
            family="llama", layers=2, hidden=2048, heads=32, kv_heads=8, ffn=5632, vocab=32000, tied=False
        ),
        Options(steps=1, module_frames=False, clip=False),
    ),
    (
        ModelSpec(layers=2, hidden=1536, heads=16, vocab=50304),
        Options(steps=1, module_frames=False, attention="math", optimizer="foreach"),
    ),
)
SECTIONS = ("autograd", "main", "python", "device", "annotations")
GAP_NS = 250_000  # between two steps
#: Kinds of number that move on from step to step.
KINDS = ("time", "external", "correlation", "sequence", "index", "arrow", "frame", "step")
_NUMBERS = re.compile(
    r'"ts": (?P<us>\d+)\.(?P<ns>\d{3})'
    r'|"External id": (?P<external>\d+)'
    r'|"correlation": (?P<correlation>\d+)'
    r'|"Sequence number": (?P<sequence>\d+)'
    r'|"Ev Idx": (?P<index>\d+)'
    r'|"id": (?P<arrow>\d+)'
    r'|"Python (?:parent )?id": (?P<frame>\d+)'
    r"|ProfilerStep#(?P<step>\d+)"
)


@dataclass(slots=True)
class Section:
    """Text of one part of a step with holes, and the numbers that fill them in step 0."""

    template: str
    base: np.ndarray[Any, np.dtype[np.int64]]
    kinds: np.ndarray[Any, np.dtype[np.int64]]

    def text(self, offsets: np.ndarray[Any, np.dtype[np.int64]]) -> str:
        """The section with every number moved by the offset of its kind."""
        values = self.base + offsets[self.kinds]
        times = self.kinds == 0
        # A time fills two holes, microseconds and the three digits behind the point.
        widths = np.where(times, 2, 1)
        places = np.cumsum(widths) - widths
        filled = np.empty(int(widths.sum()), np.int64)
        filled[places] = np.where(times, values // 1000, values)
        filled[places[times] + 1] = values[times] % 1000
        return self.template % tuple(filled.tolist())


@dataclass(slots=True)
class Step:
    """One simulated step, ready to be repeated."""

    sections: dict[str, Section]
    advance: np.ndarray[Any, np.dtype[np.int64]]  # how far each kind of number moves on
    categories: Counter[str]
    names: set[str]
    kernel_ns: int
    gpu_ns: int
    size: int


def compile_step(model: ModelSpec, options: Options) -> Step:
    """Simulate a step and turn it into templates."""
    trace = build(model, options)
    events = [e for e in trace.records if e.ph == "X" and e.cat != "Trace"]
    parts: dict[str, list[Event]] = {name: [] for name in SECTIONS}
    main = next(e.tid for e in events if e.name.startswith("ProfilerStep#"))
    for event in events:
        parts[_section(event, main)].append(event)
    spans: dict[int, list[int]] = {}
    sections = {name: _compile(rows, spans) for name, rows in parts.items()}
    advance = np.zeros(len(KINDS), np.int64)
    for kind, (low, high) in spans.items():
        advance[kind] = high - low + 1
    first = min(e.ts for e in events)
    advance[0] = max(e.ts + e.dur for e in events) - first + GAP_NS
    categories = Counter(e.cat for e in events)
    categories.update(e.flow[2] for e in events if e.flow is not None)
    gpu = [e for e in events if e.cat in ("kernel", "gpu_memcpy", "gpu_memset")]
    return Step(
        sections, advance, categories, {e.name for e in events},
        sum(e.dur for e in gpu if e.cat == "kernel"), sum(e.dur for e in gpu),
        sum(len(s.text(np.zeros(len(KINDS), np.int64))) for s in sections.values()),
    )  # fmt: skip


def _section(event: Event, main: int | str) -> str:
    if event.cat == "python_function":
        return "python"
    if event.cat == "gpu_user_annotation":
        return "annotations"
    if event.cat in ("cpu_op", "user_annotation"):
        return "main" if event.tid == main else "autograd"
    return "device"


def _compile(events: list[Event], spans: dict[int, list[int]]) -> Section:
    base: list[int] = []
    kinds: list[int] = []

    def hole(match: re.Match[str]) -> str:
        found = match.groupdict()
        if found["us"] is not None:
            base.append(int(found["us"]) * 1000 + int(found["ns"]))
            kinds.append(0)
            return '"ts": %d.%03d'
        kind = next(k for k in KINDS[1:] if found[k] is not None)
        number = KINDS.index(kind)
        base.append(int(found[kind]))
        kinds.append(number)
        low_high = spans.setdefault(number, [base[-1], base[-1]])
        low_high[0], low_high[1] = min(low_high[0], base[-1]), max(low_high[1], base[-1])
        return match.group(0).removesuffix(found[kind]) + "%d"

    text = "".join(_arrow_apart(event) for event in events)
    template = _NUMBERS.sub(hole, text.replace("%", "%%"))
    return Section(template, np.array(base, np.int64), np.array(kinds, np.int64))


def _arrow_apart(event: Event) -> str:
    """Text of an event; an ac2g arrow's id is a correlation and has to move on with it."""
    text = event_text(event)
    if event.flow is not None and event.flow[2] == "ac2g":
        return text.replace(f'"id": {event.flow[1]},', f'"id": \x00"correlation": {event.flow[1]},')
    return text


def generate(path: Path, size: int, *, python_frames: bool = False) -> dict[str, Any]:
    """Write a trace of about ``size`` bytes of JSON to ``path`` (.json or .json.gz); return its truth."""
    variants = [
        (model, options if not python_frames else _with_frames(options)) for model, options in VARIANTS
    ]
    steps = [compile_step(*variant) for variant in variants]
    count = max(1, round(size / (sum(s.size for s in steps) / len(steps))))
    top = header(variants[0][1])
    shell = build(ModelSpec(layers=1, sequence=128), Options(steps=1, all_reduce=True)).records
    names = [e for e in shell if e.ph == "M" and e.pid != "Spans"]
    ending = [e for e in shell if e.cat == "Trace" or e.ph == "i" or (e.ph == "M" and e.pid == "Spans")]
    written = 0
    with _open(path) as out:

        def put(text: str) -> None:
            nonlocal written
            data = text.replace('\x00"correlation": ', "").encode()
            written += len(data)
            out.write(data)

        put(opening(top) + "".join(map(event_text, names)))
        duration = 0
        for section in SECTIONS:
            offsets = np.zeros(len(KINDS), np.int64)
            for i in range(count):
                step = steps[i % len(steps)]
                put(step.sections[section].text(offsets))
                offsets = offsets + step.advance
            duration = int(offsets[0])
        for event in ending:
            if event.cat == "Trace":
                event.dur = duration
            elif event.name == "Record Window End":
                event.ts = ending[0].ts + duration
        put("".join(map(event_text, ending)).removesuffix(",") + closing(path.name))
    truth = _truth(steps, count, [*names, *ending]) | {"bytes": written}
    path.with_name(path.name + ".truth.json").write_text(json.dumps(truth, indent=2) + "\n")
    return truth


def _with_frames(options: Options) -> Options:
    from dataclasses import replace

    return replace(options, module_frames=True)


def _truth(steps: list[Step], count: int, shell: list[Event]) -> dict[str, Any]:
    totals: Counter[str] = Counter()
    kernel_ns = gpu_ns = 0
    for number, step in enumerate(steps):
        times = len(range(number, count, len(steps)))
        for category, value in step.categories.items():
            totals[category] += value * times
        kernel_ns += step.kernel_ns * times
        gpu_ns += step.gpu_ns * times
    complete = sum(v for k, v in totals.items() if k not in ("ac2g", "fwdbwd"))
    totals.update("Trace" if e.cat == "Trace" else "none" for e in shell)
    used = steps[: min(count, len(steps))]
    return {
        "generated": True,
        "generated_by": f"benchmarks.generate, steps from {GENERATED_BY}",
        "steps": count,
        "events": sum(totals.values()),  # every object in traceEvents
        "complete_events": complete + 1,  # "ph": "X"; the one is the profiler's own span
        "by_category": dict(sorted(totals.items())),  # "none": names, markers
        "gpu_events": totals["kernel"] + totals["gpu_memcpy"] + totals["gpu_memset"],
        "kernels": totals["kernel"],
        "kernel_ns": kernel_ns,
        "gpu_ns": gpu_ns,
        "distinct_names": len(set().union(*(s.names for s in used))),
    }


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix == ".gz":
        with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as out:
            yield out  # type: ignore[misc]
    else:
        with path.open("wb") as out:
            yield out


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write a large simulated trace of known content.")
    parser.add_argument("--mb", type=float, required=True, help="size of the JSON in MB (before compression)")
    parser.add_argument("--out", type=Path, required=True, help=".json or .json.gz")
    parser.add_argument("--python", action="store_true", help="with nn.Module and other Python frames")
    options = parser.parse_args(arguments)
    truth = generate(options.out, int(options.mb * 1e6), python_frames=options.python)
    print(json.dumps({k: truth[k] for k in ("bytes", "events", "steps", "kernels", "kernel_ns")}))


if __name__ == "__main__":
    main()
