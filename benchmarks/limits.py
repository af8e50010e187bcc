"""How time and memory of an analysis grow with what a trace can hold too much of.

``python -m benchmarks.limits [AXIS...] [--size 1] [--factor 4]``: each axis at a size and ``factor`` times
that, each in a process of its own, with its page and JSON. Growth is that of CPU time above an empty trace's:
linear is 1.0 or less, 2.0 is quadratic. Exit code 1 where an axis grows faster than by ``_LINEAR``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

#: log(ratio of times) / log(factor); n log n over a factor of 4 of large sizes is about 1.1.
_LINEAR = 1.25
_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
Event = dict[str, Any]


def _kernel(at: int, name: str = "k", *, stream: int = 7) -> Event:
    args = {"device": 0, "stream": stream, "correlation": at}
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": 10 * at,
        "dur": 9,
        "args": args,
    }


def _gemm(at: int, m: int) -> Iterator[Event]:
    where = {"ph": "X", "pid": 9, "tid": 1}
    dims = {"External id": at, "Input Dims": [[m, 512], [512, 1024]], "Input type": ["c10::BFloat16"] * 2}
    yield where | {"cat": "cpu_op", "name": "aten::mm", "ts": 10 * at, "dur": 8, "args": dims}
    args = {"correlation": at, "External id": at}
    yield where | {
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "ts": 10 * at + 1,
        "dur": 1,
        "args": args,
    }
    yield _kernel(at, _GEMM)


def _names(n: int) -> Iterator[Event]:
    return (_kernel(at, f"triton_poi_fused_{at}") for at in range(n))


def _kernels(n: int) -> Iterator[Event]:
    return (_kernel(at, f"k{at % 50}") for at in range(n))


def _streams(n: int) -> Iterator[Event]:
    return (_kernel(at, stream=at % n) for at in range(20 * n))


def _shapes(n: int) -> Iterator[Event]:
    return (event for at in range(n) for event in _gemm(at + 1, at + 1))


def _steps(n: int) -> Iterator[Event]:
    for at in range(n):
        step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{at}", "pid": 9, "tid": 1}
        yield step | {"ts": 50 * at, "dur": 50}
        for place in range(1, 5):
            yield from _gemm(5 * at + place, 256)


def _string(n: int) -> Iterator[Event]:
    yield _kernel(1, "x" * n)
    yield _kernel(2)


def _depth(n: int) -> Iterator[bytes]:
    yield json.dumps(_kernel(1)).encode()
    yield b'{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"args":{"a":%b1%b}}' % (b"[" * n, b"]" * n)


def _spaces(n: int) -> Iterator[bytes]:
    yield json.dumps(_kernel(1)).encode() + b" " * n


#: Axis -> what makes the events of a size, and the size that ``--size 1`` stands for.
AXES: dict[str, tuple[Callable[[int], Iterator[Any]], int]] = {
    "distinct names": (_names, 250_000),
    "kernels in one step": (_kernels, 750_000),
    "streams": (_streams, 5_000),  # 500 take no longer than the start of Python
    "GEMM shapes": (_shapes, 50_000),
    "steps": (_steps, 2_500),
    "letters of a name": (_string, 12_500_000),
    "depth": (_depth, 250_000),
    "packed spaces": (_spaces, 250_000_000),
}

_RUN = r"""
import re, sys, time, tracelens
from tracelens.render.html import render_html
from tracelens.results.json import to_json
begun = time.process_time()
try:
    report = tracelens.analyze(sys.argv[1]).report
    size = len(render_html(report)) + len(to_json(report))
except tracelens.InputError as error:
    size = len(str(error))
status = open("/proc/self/status").read()  # getrusage counts what the parent had before this was started
print(time.process_time() - begun, int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024, size / 1e6)
"""


def measure(path: Path) -> tuple[float, float, float]:
    """CPU seconds, peak MiB, and MB of output of an analysis in a process of its own."""
    done = subprocess.run([sys.executable, "-c", _RUN, str(path)], capture_output=True, text=True, check=True)
    seconds, memory, size = map(float, done.stdout.split())
    return seconds, memory, size


def write(path: Path, events: Iterator[Any]) -> int:
    """Write a trace of these events, packed; its bytes as JSON."""
    size = 0
    with gzip.open(path, "wb", 1) as file:
        for at, event in enumerate(events):
            text = (b"," if at else b'{"traceEvents":[') + (
                event if isinstance(event, bytes) else json.dumps(event).encode()
            )
            size += file.write(text)
        size += file.write(b"]}")
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure each axis and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("axes", nargs="*", choices=[[], *AXES], default=[])
    parser.add_argument("--size", type=float, default=1.0)
    parser.add_argument("--factor", type=int, default=4)
    options = parser.parse_args(arguments)
    steep = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json.gz"
        write(path, iter([_kernel(1)]))
        empty = measure(path)
        print("| axis | size | MB of JSON | CPU s | MiB | MB out | growth of time |")
        print("|---|---|---|---|---|---|---|", flush=True)
        for axis in options.axes or AXES:
            make, usual = AXES[axis]
            before = None
            for size in (int(usual * options.size), int(usual * options.size) * options.factor):
                read = write(path, make(size))
                seconds, memory, out = measure(path)
                spent, growth = max(seconds - empty[0], 0.01), ""
                if before is not None:
                    rate = math.log(spent / before) / math.log(options.factor)
                    growth = f"{rate:.2f}"
                    steep += rate > _LINEAR
                before = spent
                cells = (
                    axis,
                    f"{size:,}",
                    f"{read / 1e6:.0f}",
                    f"{seconds:.1f}",
                    f"{memory:.0f}",
                    f"{out:.1f}",
                )
                print("|", " | ".join((*cells, growth)), "|", flush=True)
    return 1 if steep else 0


if __name__ == "__main__":
    # a limit, so that a fault here does not take the machine with it
    resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
    sys.exit(main())
