"""One load of one file by one reader, in a process of its own: python benchmarks/contestants.py NAME FILE

Prints one JSON line: seconds of the load (imports excluded), peak memory, events. Runs as a plain
script and imports nothing but the standard library before it knows which reader is asked for, so
that the readers may live in different environments.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

Result = dict[str, Any]


def peak_bytes() -> int:
    """Highest resident set size so far, plus that of the largest helper process: an upper bound.

    The own part is VmHWM: ru_maxrss would count the process that started this one (Linux keeps it
    across exec). Pages that a helper shares with this process count twice.
    """
    helpers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    try:
        with open("/proc/self/status") as status:
            own = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):  # not Linux
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (own + helpers) * 1024


def tracelens(path: str) -> Result:
    """tracelens: file to columnar tables; the time of linking beside it."""
    from tracelens.trace import read_trace

    before = peak_bytes()
    start = time.perf_counter()
    trace = read_trace(path)
    seconds = time.perf_counter() - start
    peak = peak_bytes()
    return {"seconds": seconds, "peak": peak, "before": before, "link_seconds": link_seconds(trace)}


def link_seconds(trace: Any) -> float | None:
    """Time of tying kernels to launches, ops, modules and steps; None while there is no such function."""
    try:
        from tracelens.trace import link
    except ImportError:
        return None
    start = time.perf_counter()
    link(trace)
    return time.perf_counter() - start


#: Set it to let HTA link as well.
HTA_LINKS = "TRACELENS_BENCH_HTA_LINKS"


class _Parsed(Exception):
    """HTA has parsed the file: the rest of its work is not what is compared."""


def hta(path: str) -> Result:
    """holistic-trace-analysis with its default parser.

    ``seconds`` is parse_trace_dataframe alone, the part that compares with reading a file into
    columns and the better figure for HTA; ``all_seconds`` is its parse_trace_file, which also links
    and takes minutes at 500 MB: only when the environment asks for it.
    """
    os.environ.setdefault("HTA_DISABLE_NS_ROUNDING", "1")
    import importlib
    import logging

    logging.disable(logging.CRITICAL)
    module: Any = importlib.import_module("hta.common.trace")  # lives in an environment of its own
    inner = module.parse_trace_dataframe
    parsing: list[float] = []

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        parsed = inner(*args, **kwargs)
        parsing.append(time.perf_counter() - start)
        if not os.environ.get(HTA_LINKS):
            raise _Parsed
        return parsed

    module.parse_trace_dataframe = timed
    before = peak_bytes()
    start = time.perf_counter()
    with contextlib.suppress(_Parsed):
        module.parse_trace_file(path)
    result = {"seconds": parsing[0], "peak": peak_bytes(), "before": before}
    if os.environ.get(HTA_LINKS):
        result["all_seconds"] = time.perf_counter() - start
    return result


def json_load(path: str) -> Result:
    """json.load and a plain loop that makes the same columns: what a script without a library does."""
    import gzip

    import numpy as np

    before = peak_bytes()
    start = time.perf_counter()
    opener: Callable[..., Any] = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    codes: dict[str, int] = {}
    text: dict[str, list[int]] = {key: [] for key in ("name", "cat", "pid", "tid")}
    times: dict[str, list[int]] = {key: [] for key in ("ts", "dur")}
    ids: dict[str, list[int]] = {
        key: [] for key in ("External id", "correlation", "Sequence number", "stream")
    }
    shapes: list[int] = []
    for event in events:
        if event["ph"] != "X":
            continue
        for key, column in text.items():
            column.append(codes.setdefault(str(event.get(key)), len(codes)))
        for key, column in times.items():
            column.append(round(event[key] * 1000))
        args = event.get("args", {})
        for key, column in ids.items():
            column.append(args.get(key, -1))
        shapes.append(codes.setdefault(str(args.get("Input Dims")), len(codes)))
    table = {
        key: np.array(column, np.int64) for key, column in (text | times | ids | {"shapes": shapes}).items()
    }
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak": peak_bytes(), "before": before, "rows": len(table["ts"])}


CONTESTANTS: dict[str, Callable[[str], Result]] = {"tracelens": tracelens, "hta": hta, "json": json_load}

if __name__ == "__main__":
    print(json.dumps(CONTESTANTS[sys.argv[1]](sys.argv[2])))
