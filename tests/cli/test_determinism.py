"""The same trace gives the same bytes, whatever the hash seed, time zone and locale of the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.trace.tools import small_trace

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    {"PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONUTF8": "0"},
    {"PYTHONHASHSEED": "4321", "TZ": "America/Los_Angeles", "LC_ALL": "C.UTF-8", "HOME": "/nowhere"},
)
OUTPUTS = {"--json": "r.json", "--markdown": "r.md", "--kernels": "k.csv", "--summary": "s.summary",
           "--perfetto": "p.json"}  # fmt: skip


def test_outputs_do_not_depend_on_seed_zone_and_locale(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(small_trace(all_reduce=True).text())
    written = []
    for number, place in enumerate(PLACES):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "tracelens", "analyze", trace, "--no-html", "-q",
             *(word for pair in OUTPUTS.items() for word in pair)],
            cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]} | place,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        written.append({name: (folder / name).read_bytes() for name in OUTPUTS.values()})
    assert written[0] == written[1]
