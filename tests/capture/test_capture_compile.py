"""torch.compile: no graph break, no recompilation and no warning more than without the capture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.capture.recorded import SCRIPTS, load, run


def counted(tmp_path: Path, how: str, *flags: str) -> dict[str, Any]:
    done = run("-W", "error::UserWarning:__main__", SCRIPTS / "compiled.py", how, *flags, cwd=tmp_path)
    if "no working C++ compiler" in done.stderr or "InvalidCxxCompiler" in done.stderr:
        pytest.skip("torch.compile needs a C++ compiler on the CPU")
    assert done.returncode == 0, done.stderr
    assert "tracelens" not in done.stderr.replace("tracelens: 3 of 3 steps", "")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("how", "ranges"),
    [
        ("module", {"M"}),
        ("break", {"M"}),
        ("inplace", {"M"}),
        ("method", {"M"}),
        ("function", set()),
        ("function-break", set()),
        ("blocks", {"M", "h.0", "h.1", "h.2", "o"}),
        ("wrapped-blocks", {"M", "h.0", "h.1", "h.2", "o"}),
        ("optimizer", None),
    ],
)
def test_as_many_graphs_and_breaks_as_without(tmp_path: Path, how: str, ranges: set[str] | None) -> None:
    alone, ours = counted(tmp_path, how), counted(tmp_path, how, "--capture")
    assert ours == alone  # graphs, graph breaks, frames and the losses, bit for bit
    trace = load(tmp_path / "traces" / "rank0.json.gz")
    meta = trace["tracelens"]
    names = {module["name"] for model in meta["models"] for module in model["modules"]}
    found = {event["name"] for event in trace["traceEvents"] if event.get("name") in names}
    if ranges is not None:
        assert found == ranges
    if how.startswith("function"):
        assert meta["window"]["ranges"]["none_because"] == "compiled function f"
    if how in ("module", "inplace", "break"):
        assert meta["compile"]["modules"] == ["M"]
        assert "h.0.a" in names  # the module tree tells what the compiled region holds
