"""torch.compile: no graph break, no recompilation and no warning more than without the capture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.capture.recorded import SCRIPTS, load, run

#: How it is compiled: the ranges that the trace holds. None: not looked at. Only "module" runs Inductor.
RANGES: dict[str, set[str] | None] = {
    "module": {"M"},
    "break": {"M"},
    "inplace": {"M"},
    "method": {"M"},
    "function": set(),
    "function-break": set(),
    "blocks": {"M", "h.0", "h.1", "h.2", "o"},
    "wrapped-blocks": {"M", "h.0", "h.1", "h.2", "o"},
    "optimizer": None,
}
# each in a process and a folder of its own; what takes time is to import PyTorch, once before they part (not
# Inductor, whose processes do not survive a fork)
ALL = """
import os, runpy, sys
import torch._dynamo, torch._functorch.aot_autograd
script, ways = sys.argv[1], sys.argv[2:]
for folder, flags in (("alone", []), ("ours", ["--capture"])):
    for how in ways:
        child = os.fork()
        if not child:
            os.makedirs(f"{folder}/{how}")
            os.chdir(f"{folder}/{how}")
            sys.argv = [script, how, *flags]
            runpy.run_path(script, run_name="__main__")
            break
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{how} failed")
    else:
        continue
    break
"""


def ranges_found(folder: Path, how: str, ranges: set[str] | None) -> None:
    trace = load(folder / "traces" / "rank0.json.gz")
    meta = trace["tracelens"]
    names = {module["name"] for model in meta["models"] for module in model["modules"]}
    found = {event["name"] for event in trace["traceEvents"] if event.get("name") in names}
    if ranges is not None:
        assert found == ranges, how
    if how.startswith("function"):
        assert meta["window"]["ranges"]["none_because"] == "compiled function f"
    if how in ("module", "inplace", "break"):
        assert meta["compile"]["modules"] == ["M"]
        assert "h.0.a" in names  # the module tree tells what the compiled region holds


def test_as_many_graphs_and_breaks_as_without(tmp_path: Path) -> None:
    (tmp_path / "all.py").write_text(ALL)
    done = run("-W", "error::UserWarning:__main__", "all.py", SCRIPTS / "compiled.py", *RANGES, cwd=tmp_path)
    if "no working C++ compiler" in done.stderr or "InvalidCxxCompiler" in done.stderr:
        pytest.skip("torch.compile needs a C++ compiler on the CPU")
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if "tracelens: " in line]
    assert all("3 of 3 steps" in line or "does not use CUDA" in line for line in ours)
    said = list(map(json.loads, done.stdout.splitlines()))
    alone, captured = said[: len(RANGES)], said[len(RANGES) :]
    # graphs, graph breaks, frames and the losses, bit for bit
    assert dict(zip(RANGES, captured, strict=True)) == dict(zip(RANGES, alone, strict=True))
    for how, ranges in RANGES.items():
        ranges_found(tmp_path / "ours" / how, how, ranges)
