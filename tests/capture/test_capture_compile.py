"""torch.compile: no graph break, no recompilation and no warning more than without the capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.capture.recorded import SCRIPTS, load, run

#: How it is compiled: the ranges that the trace holds. None: not looked at.
RANGES: dict[str, set[str] | None] = {
    "break": {"M"},
    "inplace": {"M"},
    "method": {"M"},
    "function": set(),
    "function-break": set(),
    "blocks": {"M", "h.0", "h.1", "h.2", "o"},
    "wrapped-blocks": {"M", "h.0", "h.1", "h.2", "o"},
    "optimizer": None,
}
# each in a process and a folder of its own; what takes time is to import PyTorch, once before they part
ALL = """
import os, runpy, sys
import torch._dynamo, torch._functorch.aot_autograd
script, flags, ways = sys.argv[1], sys.argv[2].split(), sys.argv[3:]
for how in ways:
    child = os.fork()
    if not child:
        os.mkdir(how)
        os.chdir(how)
        sys.argv = [script, how, *flags]
        runpy.run_path(script, run_name="__main__")
        break
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{how} failed")
"""


def counted(folder: Path, ways: list[str], *flags: str) -> dict[str, dict[str, Any]]:
    """What Dynamo did, for each way to compile."""
    folder.mkdir()
    (folder / "all.py").write_text(ALL)
    script = SCRIPTS / "compiled.py"
    done = run("-W", "error::UserWarning:__main__", "all.py", script, " ".join(flags), *ways, cwd=folder)
    if "no working C++ compiler" in done.stderr or "InvalidCxxCompiler" in done.stderr:
        pytest.skip("torch.compile needs a C++ compiler on the CPU")
    assert done.returncode == 0, done.stderr
    assert "tracelens" not in done.stderr.replace("tracelens: 3 of 3 steps", "")
    return dict(zip(ways, map(json.loads, done.stdout.splitlines()), strict=True))


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


@pytest.mark.parametrize("ways", [{"module": {"M"}}, RANGES], ids=["inductor", "before-any-backend"])
def test_as_many_graphs_and_breaks_as_without(tmp_path: Path, ways: dict[str, set[str] | None]) -> None:
    alone = counted(tmp_path / "alone", list(ways))
    ours = counted(tmp_path / "ours", list(ways), "--capture")
    assert ours == alone  # graphs, graph breaks, frames and the losses, bit for bit
    for how, ranges in ways.items():
        ranges_found(tmp_path / "ours" / how, how, ranges)
