"""Time of attribution beside that of loading: python -m benchmarks.attribution --mb 540 --runs 5

Each run is a process of its own that loads a generated trace, links it and attributes its kernels; the
medians and the ratio attribution / loading of the same runs go to results/attribution.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.generate import main as generate

RESULTS = Path(__file__).parent / "results" / "attribution.json"


def once(path: str) -> dict[str, Any]:
    """Seconds of each part, and how much there was to do."""
    from tracelens.attribution import attribute
    from tracelens.trace import link, read_trace

    start = time.perf_counter()
    trace = read_trace(path)
    loaded = time.perf_counter()
    links = link(trace)
    linked = time.perf_counter()
    attribute(trace, links)
    done = time.perf_counter()
    return {
        "load_seconds": loaded - start,
        "link_seconds": linked - loaded,
        "attribute_seconds": done - linked,
        "events": trace.events,
        "kernels": len(trace.kernels),
    }


def measure(path: Path, runs: int) -> dict[str, Any]:
    """Medians over ``runs`` processes; the first, unmeasured, brings the file into the page cache."""
    rows = []
    for number in range(runs + 1):
        command = [sys.executable, "-m", "benchmarks.attribution", "--once", str(path)]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        if number:
            rows.append(json.loads(found.stdout))
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    ratios = [row["attribute_seconds"] / row["load_seconds"] for row in rows]
    return medians | {"attribution_over_loading": statistics.median(ratios), "ratios": ratios, "runs": runs}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, default=540.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--once", metavar="TRACE", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.once:
        print(json.dumps(once(given.once)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        generate(["--mb", str(given.mb), "--out", str(path)])
        found = measure(path, given.runs)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    RESULTS.write_text(json.dumps({"machine": machine, "json_mb": given.mb, **found}, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
