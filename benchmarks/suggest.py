"""Time of ``tracelens suggest``: python -m benchmarks.suggest --runs 5

Each run is a process of its own on one core, from its start to the end of the search (imports included); the
medians go to results/suggest.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "suggest.json"
_2_7B = "--hidden 2560 --heads 32 --layers 32 --vocab 50257 --sequence 2048 --micro-batch 4"
_405B = "--hidden 16384 --heads 128 --kv-heads 8 --layers 126 --vocab 128256 --ffn 53248 --gated --untied"
_EVERYTHING = "--free layers,kv_heads,micro_batch,sequence"
#: What is asked -> its arguments.
CASES = {
    "GPT-3 2.7B": _2_7B,
    "GPT-3 2.7B, weights within 5 %": f"{_2_7B} --params 5%",
    "GPT-3 2.7B, everything free": f"{_2_7B} {_EVERYTHING} --memory-gb 80",
    "Llama 3 405B shape": f"{_405B} --sequence 4096 --micro-batch 1",
    "Llama 3 405B shape, everything free, 20 %": (
        f"{_405B} --sequence 4096 --micro-batch 4 {_EVERYTHING} --memory-gb 9000 --params 20%"
    ),
}


def once(arguments: str) -> tuple[float, int]:
    """Seconds of one process, and how many shapes it tried."""
    command = [
        sys.executable,
        "-m",
        "tracelens",
        "suggest",
        *arguments.split(),
        "--gpu",
        "h100-sxm",
        "--json",
        "-",
    ]
    only = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | only)
    return time.perf_counter() - start, int(json.loads(done.stdout)["tried"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, for the processes too
    rows: dict[str, dict[str, Any]] = {}
    for name, case in CASES.items():
        times, tried = zip(*(once(case) for _ in range(given.runs)), strict=True)
        rows[name] = {"seconds": round(statistics.median(times), 3), "slowest": round(max(times), 3)}
        rows[name] |= {"shapes_tried": tried[0]}
        print(f"{name}: {rows[name]}")
    machine = {"python": platform.python_version(), "system": platform.system(), "cores_used": 1}
    RESULTS.write_text(json.dumps({"machine": machine, "runs": given.runs, "cases": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
