"""How fast tracelens reads a trace beside holistic-trace-analysis and json.load.

    python -m benchmarks.load --mb 500 --runs 3 --hta-python /path/to/python

Every load runs in a process of its own; the contestants take turns, so that a slow minute of the
machine hits all of them; figures are medians. Ratios of one run are worth more than seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.generate import generate

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "load.json"


@dataclass(frozen=True, slots=True)
class Contest:
    """One reader on one file."""

    label: str
    reader: str  # key of contestants.CONTESTANTS
    python: str
    path: Path


def run_once(contest: Contest) -> dict[str, Any] | None:
    """One load in a fresh process; None if the reader is missing or fails, with the reason on stderr."""
    command = [contest.python, str(HERE / "contestants.py"), contest.reader, str(contest.path)]
    environment = (
        os.environ | {"PYTHONPATH": str(HERE.parent)} if contest.reader == "tracelens" else dict(os.environ)
    )
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{contest.label}: failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(contests: list[Contest], runs: int) -> dict[str, dict[str, Any]]:
    """Interleaved runs; medians of seconds and peaks per label."""
    samples: dict[str, list[dict[str, Any]]] = {c.label: [] for c in contests}
    failed: set[str] = set()
    for contest in contests:
        with contest.path.open("rb") as file:  # the file lies in the page cache for everyone
            while file.read(1 << 24):
                pass
    for _ in range(runs):
        for contest in contests:
            if contest.label in failed:
                continue
            result = run_once(contest)
            if result is None:
                failed.add(contest.label)
            else:
                samples[contest.label].append(result)
    return {label: _summary(rows) for label, rows in samples.items() if rows}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    keys = [k for k in rows[0] if all(isinstance(row.get(k), int | float) for row in rows)]
    summary: dict[str, Any] = {key: median(row[key] for row in rows) for key in keys}
    return summary | {"runs": [round(row["seconds"], 4) for row in rows]}


def compare(path: Path, packed: Path | None, size: int, runs: int, hta_python: str | None) -> dict[str, Any]:
    """All readers on one file (``packed`` is the same file as .gz)."""
    mine = sys.executable
    contests = [Contest("tracelens", "tracelens", mine, path)]
    if packed is not None:
        contests.append(Contest("tracelens .gz", "tracelens", mine, packed))
    contests.append(Contest("json.load + loop", "json", mine, path))
    contests.append(Contest("HTA default", "hta", hta_python or mine, path))
    figures = measure(contests, runs)
    for row in figures.values():
        row["mb_per_s"] = size / row["seconds"] / 1e6
        row["peak_over_json"] = row["peak"] / size
    ours = figures.get("tracelens")
    ratios: dict[str, float] = {}
    if ours is not None:
        for label, key in (
            ("HTA default", "hta_over_tracelens"),
            ("json.load + loop", "json_over_tracelens"),
        ):
            if label in figures:
                ratios[key] = figures[label]["seconds"] / ours["seconds"]
        if "tracelens .gz" in figures:
            ratios["gz_over_plain"] = figures["tracelens .gz"]["seconds"] / ours["seconds"]
        if ours.get("link_seconds") is not None:
            ratios["linking_over_loading"] = ours["link_seconds"] / ours["seconds"]
    return {"json_bytes": size, "readers": figures, "ratios": ratios}


def linearity(sizes: list[float], folder: Path, runs: int) -> list[dict[str, float]]:
    """Seconds of tracelens per size; the last column is the time per MB over that of the first size."""
    rows: list[dict[str, float]] = []
    for mb in sizes:
        path = folder / f"linear_{mb:g}.json"
        size = int(generate(path, int(mb * 1e6))["bytes"])
        figures = measure([Contest("tracelens", "tracelens", sys.executable, path)], runs)
        path.unlink()
        if "tracelens" not in figures:
            break
        ours = figures["tracelens"]
        per_mb = ours["seconds"] / (size / 1e6)
        first = rows[0]["seconds"] / rows[0]["mb"] if rows else per_mb
        rows.append({"mb": size / 1e6, "seconds": ours["seconds"], "peak_over_json": ours["peak"] / size,
                     "per_mb_over_first": per_mb / first})  # fmt: skip
    return rows


def machine() -> dict[str, Any]:
    """What the figures depend on; no host name."""
    return {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine(),
            "system": platform.system()}  # fmt: skip


def show(title: str, block: dict[str, Any]) -> None:
    readers, ours = block["readers"], block["readers"].get("tracelens")
    print(f"\n{title}: {block['json_bytes'] / 1e6:.1f} MB of JSON")
    print(f"{'reader':<18}{'seconds':>9}{'MB/s':>8}{'x tracelens':>13}{'peak/JSON':>11}")
    for label, row in readers.items():
        factor = row["seconds"] / ours["seconds"] if ours else float("nan")
        print(
            f"{label:<18}{row['seconds']:>9.2f}{row['mb_per_s']:>8.0f}{factor:>13.2f}{row['peak_over_json']:>11.2f}"
        )
        if "all_seconds" in row:
            print(f"{'  with its links':<18}{row['all_seconds']:>9.2f}")
    for key, value in block["ratios"].items():
        print(f"{key}: {value:.2f}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=float, default=500, help="size of the generated trace")
    parser.add_argument("--runs", type=int, default=3, help="loads per reader; the median counts")
    parser.add_argument("--sizes", default="", help="MB, for the linearity table: 50,500,2000")
    parser.add_argument("--d9", type=Path, help="a real trace to compare on as well (.json or .json.gz)")
    parser.add_argument("--hta-python", help="interpreter of an environment with traceinsight installed")
    parser.add_argument("--no-gz", action="store_true", help="leave out the compressed file")
    parser.add_argument("--folder", type=Path, help="where the generated files go (a temporary folder)")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    report: dict[str, Any] = {"machine": machine(), "runs": options.runs}
    if options.folder:
        Path(options.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        path = folder / "generated.json"
        truth = generate(path, int(options.mb * 1e6))
        packed = None if options.no_gz else _pack(path)
        report["generated"] = compare(path, packed, truth["bytes"], options.runs, options.hta_python)
        report["generated"]["events"] = truth["events"]
        show("generated trace", report["generated"])
        path.unlink()
        if options.d9 is not None:
            report["real"] = _real(options.d9, folder, options.runs, options.hta_python)
            show("real trace", report["real"])
        if options.sizes:
            report["linearity"] = linearity(
                [float(s) for s in options.sizes.split(",")], folder, options.runs
            )
            print("\nlinearity of tracelens")
            for row in report["linearity"]:
                print("  ".join(f"{key} {value:.3g}" for key, value in row.items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n")


def _pack(path: Path) -> Path:
    """The same bytes as .json.gz."""
    import gzip
    import shutil

    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as plain, gzip.open(packed, "wb", 6) as out:
        shutil.copyfileobj(plain, out, 1 << 20)
    return packed


def _real(source: Path, folder: Path, runs: int, hta_python: str | None) -> dict[str, Any]:
    """A recorded trace, unpacked for the readers of plain JSON."""
    import gzip
    import shutil

    plain = folder / "real.json"
    packed = source if source.suffix == ".gz" else None
    with gzip.open(source) if packed else source.open("rb") as file, plain.open("wb") as out:
        shutil.copyfileobj(file, out, 1 << 20)
    return compare(plain, packed, plain.stat().st_size, runs, hta_python)


if __name__ == "__main__":
    main()
