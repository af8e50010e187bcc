"""The wheel holds everything a user needs who has nothing but it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_ships_templates_schema_rules_gpu_table_and_types(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith("tracelens_gpu-")
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"tracelens/templates/{path.name}" for path in (ROOT / "templates").iterdir()}
    expected |= {f"tracelens/docs/rules/{path.name}" for path in (ROOT / "docs" / "rules").iterdir()}
    expected |= {"tracelens/py.typed", "tracelens/hardware/gpus.toml", "tracelens/hardware/nccl.toml"}
    expected |= {"tracelens/schema/report.schema.json"}
    expected |= {"tracelens/schema/gemm.schema.json", "tracelens/schema/comparison.schema.json"}
    assert expected <= names
    assert len(expected) > 8
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "sample_traces/"))]
