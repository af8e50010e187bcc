"""Running captures in tests, and reading what came out without tracelens' own reader."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
ROOT = HERE.parents[1]
GEMMS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
#: Neither a pool of threads nor one of compilers, each of which would import PyTorch.
FEW_THREADS = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
#: Seconds after which a process hangs; however slow the machine, none takes so long.
HANGS = 3600
WINDOW = ("--wait", "4", "--warmup", "1", "--active", "2")


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python command with this checkout's tracelens, in a folder of its own."""
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(ROOT)]))
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **FEW_THREADS, **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


def capture(*command: str | Path, cwd: Path, options: tuple[str, ...] = WINDOW, **environment: str) -> Any:
    return run("-m", "tracelens", "capture", *options, "--", *command, cwd=cwd, **environment)


def load(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)  # type: ignore[no-any-return]


def spans(trace: dict[str, Any]) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Every complete event with what is around it on its thread, outermost first."""
    lanes = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            lanes[event["tid"]].append(event)
    found = []
    for events in lanes.values():
        events.sort(key=lambda event: (event["ts"], -event["dur"]))
        around: list[dict[str, Any]] = []
        for event in events:
            while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"]:
                around.pop()
            found.append((event, list(around)))
            around.append(event)
    return found


def module_names(trace: dict[str, Any]) -> set[str]:
    return {module["name"] for model in trace["tracelens"]["models"] for module in model["modules"]}


def gemm_owners(trace: dict[str, Any]) -> Counter[tuple[str, str, str]]:
    """(operator, innermost module range around it or "?", forward or backward), counted."""
    names = module_names(trace)
    owners: Counter[tuple[str, str, str]] = Counter()
    for event, around in spans(trace):
        if event["name"] not in GEMMS:
            continue
        ranges = [outer["name"] for outer in around if outer["name"] in names]
        backward = any("evaluate_function" in outer["name"] for outer in around)
        owners[(event["name"], ranges[-1] if ranges else "?", "backward" if backward else "forward")] += 1
    return owners


def steps(trace: dict[str, Any]) -> list[str]:
    return [
        event["name"] for event in trace["traceEvents"] if str(event.get("name")).startswith("ProfilerStep")
    ]


def truth(script: Path, *arguments: str, cwd: Path) -> tuple[list[Counter[tuple[str, str, str]]], str]:
    """Per step of an uncaptured run the owners of its GEMMs, by ``truth.py``; and what the run prints."""
    done = run(HERE / "truth.py", cwd / "truth.json", script, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [Counter(map(tuple, step)) for step in json.loads((cwd / "truth.json").read_text())], done.stdout
