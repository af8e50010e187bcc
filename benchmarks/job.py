"""Whole jobs: what is found in jobs with a planted cause, and what many ranks cost.

    python -m benchmarks.job planted           20 planted causes, 20 clean jobs
    python -m benchmarks.job merge [FOLDER]    1,000 summaries, generated or of a job: seconds, memory
    python -m benchmarks.job ranks             64 ranks: seconds and memory of all processes, slope per rank
    python -m benchmarks.job pool FOLDER       a job against the CPU time of its ranks one by one
    python -m benchmarks.job idle FOLDER       pool, merge and ranks, one after the other: on an idle machine
    python -m benchmarks.job one_node          fits what collectives take within one node
    python -m benchmarks.job beside FOLDER     against holistic-trace-analysis on the same ranks

Each writes its part of ``results/job.json``. Ratios of one run are worth more than seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.generate import generate
from benchmarks.load import machine

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "job.json"
NCCL = HERE.parent / "tracelens" / "hardware" / "nccl.toml"


def planted(options: argparse.Namespace) -> dict[str, Any]:
    """How many of the planted causes are named with their rank, and how many clean jobs accuse somebody."""
    from tests.job.plants import PLANTS, accuses_nobody, clean_jobs
    from tests.job.simulated import Simulation
    from tracelens.job.run import analyze_job

    found: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        for plant in PLANTS:
            job, at = plant.job(options.seed)
            Simulation(job).write(_emptied(folder))
            found[plant.name] = plant.named(analyze_job([folder], workers=1), job, at)
            print(f"{plant.name:<50}{'named' if found[plant.name] else 'MISSED'}")
        clean: dict[str, bool] = {}
        for name, job in clean_jobs():
            Simulation(job).write(_emptied(folder))
            clean[name] = accuses_nobody(analyze_job([folder], workers=1))
            print(f"{name:<50}{'nobody accused' if clean[name] else 'INVENTED'}")
    return {
        "seed": options.seed,
        "named": sum(found.values()),
        "planted": len(found),
        "invented": len(clean) - sum(clean.values()),
        "clean": len(clean),
        "missed": [name for name, right in found.items() if not right],
    }


def _emptied(folder: Path) -> Path:
    for file in folder.iterdir():
        file.unlink()
    return folder


def merge(options: argparse.Namespace) -> dict[str, Any]:
    """Summaries of one job, repeated as further ranks of a larger one, merged with page and JSON."""
    from tracelens.analysis import analyze
    from tracelens.job.summary import encode, summarize

    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        made = [summarize(analyze(path, shape_search=False)) for path in _traces(options, folder)]
        size = 0
        for rank in range(options.ranks):
            one = made[rank % len(made)]
            whole = f"0-{options.ranks - 1}"
            kinds = [
                msgspec.structs.replace(kind, ranks=whole, group_size=options.ranks)
                if kind.group_size == one.world_size
                else kind
                for kind in one.kinds
            ]
            further = msgspec.structs.replace(
                one, rank=rank, world_size=options.ranks, sha256=f"{rank:x}", file=f"rank{rank}", kinds=kinds
            )
            size += (folder / f"{rank}.summary").write_bytes(encode([further]))
        outputs = ["--json", str(folder / "job.json"), "-o", str(folder / "job.html"), "-q"]
        cost = _cost([sys.executable, "-m", "tracelens", "merge", str(folder), *outputs])
        page = (folder / "job.html").stat().st_size
    return {"ranks": options.ranks, "summary_kb": size / options.ranks / 1e3, "page_kb": page / 1e3, **cost}


def ranks(options: argparse.Namespace) -> dict[str, Any]:
    """A quarter of the ranks, half, and all of them: seconds, CPU seconds and memory of all processes."""
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        first = folder / "rank0.json"
        size = generate(first, int(options.mb * 1e6))["bytes"]
        text = first.read_bytes()
        for rank in range(1, options.ranks):  # the same work as another rank of the job
            own = text.replace(b'"rank": 0, "world_size"', b'"rank": %d, "world_size"' % rank, 1)
            (folder / f"rank{rank}.json").write_bytes(own)
        files = [str(folder / f"rank{rank}.json") for rank in range(options.ranks)]
        for many in (options.ranks // 4, options.ranks // 2, options.ranks):
            command = [sys.executable, "-m", "tracelens", "analyze", *files[:many], "--no-html", "-q"]
            rows.append({"ranks": many, **_cost([*command, "--json", str(folder / "job.out")])})
            print(rows[-1], flush=True)
    slope = (rows[-1]["cpu_seconds"] - rows[0]["cpu_seconds"]) / (rows[-1]["ranks"] - rows[0]["ranks"])
    straight = rows[0]["cpu_seconds"] + slope * (rows[1]["ranks"] - rows[0]["ranks"])
    return {
        "mb": size / 1e6,
        "runs": rows,
        "cpu_seconds_per_rank": slope,
        "middle_over_straight_line": rows[1]["cpu_seconds"] / straight,
    }


def pool(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a job over what its ranks' CPU time, each summarized alone, takes on all cores."""
    if options.traces is None:
        raise SystemExit("give the folder of a job's traces")
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        summary, out = str(Path(temporary) / "rank.summary"), str(Path(temporary) / "job.out")
        start = [sys.executable, "-m", "tracelens", "analyze"]
        each = [
            _cost([*start, str(path), "--no-html", "-q", "--summary", summary])["cpu_seconds"]
            for path in _traces(options, Path(temporary))
        ]
        job = _cost([*start, str(options.traces), "--no-html", "-q", "--json", out])
    least = sum(each) / cores
    return {"cores": cores, "ranks_cpu_seconds": each, **job, "over_cpu_by_cores": job["seconds"] / least}


_HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
"""


def beside(options: argparse.Namespace) -> dict[str, Any]:
    """The same ranks by turns: this, and holistic-trace-analysis with the parts of the time and its overlap.

    Its list of stragglers is left out: it fails on the job of eight ranks (traceinsight 0.6.1).
    """
    if options.traces is None:
        raise SystemExit("give the folder of a job's traces")
    ours = [sys.executable, "-m", "tracelens", "analyze", str(options.traces), "--no-html", "-q"]
    theirs = [options.hta_python or sys.executable, "-c", _HTA, str(options.traces)]
    found: dict[str, list[dict[str, Any]]] = {"tracelens": [], "hta": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for _ in range(3):
            found["tracelens"].append(_cost([*ours, "--json", str(Path(folder) / "job.out")]))
            found["hta"].append(_cost(theirs))
    figures = {
        reader: {name: median(one[name] for one in costs) for name in costs[0]}
        for reader, costs in found.items()
    }
    ratios = {name: figures["hta"][name] / figures["tracelens"][name] for name in figures["hta"]}
    return {"medians_of_3": figures, "hta_over_tracelens": ratios}


def one_node(options: argparse.Namespace) -> dict[str, Any]:
    """Fit ``tracelens/hardware/nccl.toml`` on every second message size; the others judge it."""
    import numpy as np
    import pandas as pd

    from benchmarks.silicon import FOLDER, GPUS
    from tracelens.hardware.collectives import bus_factor, one_node_us

    rows = pd.read_parquet(FOLDER / "nccl.parquet").replace({"op_name": {"alltoall": "all_to_all"}})
    rows = rows[(rows["nccl_dtype"] == "half") & rows["source"].str.startswith("nccl")]
    rows = rows[rows["device"] == [GPUS[gpu][0] for gpu in rows["gpu"]]].assign(size=2 * rows["message_size"])
    rows = rows.sort_values("size")
    lines = [_NCCL_HEAD]
    judged = []
    for (folder, collective), table in rows.groupby(["gpu", "op_name"]):
        gpu, collective = GPUS[str(folder)][1], str(collective)
        lines.append(f'\n["{gpu}".{collective}]')
        for ranks in sorted(set(table["num_gpus"].tolist())):
            each = table[table["num_gpus"] == ranks]
            us, size = each["latency"].to_numpy() * 1e3, each["size"].to_numpy()
            start, root, per_kb = _fit(size[::2] * bus_factor(collective, ranks) / 1e3, us[::2])
            lines.append(f"{ranks} = [{start:.2f}, {root:.4f}, {1 / per_kb:.1f}]")
            judged += [
                (gpu, collective, ranks, int(many), float(took))
                for many, took in zip(size[1::2], us[1::2], strict=True)
            ]
    NCCL.write_text("\n".join(lines) + "\n")
    found = [(one_node_us(gpu, collective, ranks, size), us) for gpu, collective, ranks, size, us in judged]
    errors = [abs(said / us - 1) for said, us in found if said is not None]
    return {"sizes_left_out": len(errors), "median_error": float(np.median(errors)),
            "p90_error": float(np.percentile(errors, 90))}  # fmt: skip


_NCCL_HEAD = """# us of a collective within one node: a + b sqrt(x) + x / c, x = kB that a rank's link carries
# (by the bus factor of nccl-tests). By number of GPUs: [a, b, c in GB/s].
# Fitted by python -m benchmarks.job one_node to measured times of NVIDIA's aiconfigurator
# (Apache-2.0, commit 095f58a51, fp16, NCCL 2.27.3 and 2.29.2)."""


def _fit(kb: Any, us: Any) -> tuple[float, float, float]:
    """Least squares of the relative error; no term is negative."""
    import numpy as np

    terms = np.stack([np.ones_like(kb), np.sqrt(kb), kb], 1) / us[:, None]
    best, fitted = float("inf"), np.zeros(3)
    for chosen in ([0, 1, 2], [0, 2], [1, 2], [2]):  # each with kB
        some = np.linalg.lstsq(terms[:, chosen], np.ones(len(us)), rcond=None)[0]
        left = float(((terms[:, chosen] @ some - 1) ** 2).sum())
        if (some >= 0).all() and left < best:
            best, fitted = left, np.zeros(3)
            fitted[chosen] = some
    return float(fitted[0]), float(fitted[1]), float(fitted[2])


def _traces(options: argparse.Namespace, folder: Path) -> list[Path]:
    if options.traces is not None:
        return sorted(path for path in options.traces.iterdir() if ".json" in path.name)
    from tests.job.plants import PLANTS
    from tests.job.simulated import Simulation

    (folder / "traces").mkdir()
    job, _ = PLANTS[2].job(options.seed)
    return Simulation(job).write(folder / "traces")


def _cost(command: list[str]) -> dict[str, Any]:
    """Seconds, CPU seconds and the highest memory of a command and all its processes, in MB (PSS)."""
    before = os.times()
    start = time.perf_counter()
    process = subprocess.Popen(command)
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(process, peak))
    watcher.start()
    code = process.wait()
    watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command)}: exit {code}")
    after = os.times()
    cpu = (after.children_user + after.children_system) - (before.children_user + before.children_system)
    return {"seconds": time.perf_counter() - start, "cpu_seconds": cpu, "peak_mb": peak[0]}


def _watch(process: subprocess.Popen[bytes], peak: list[float]) -> None:
    while process.poll() is None:
        peak[0] = max(peak[0], sum(map(_pss_mb, _tree(process.pid))))
        time.sleep(0.05)


def _tree(pid: int) -> list[int]:
    """A process and those below it (Linux)."""
    found = [pid]
    for parent in found:
        try:
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended
            continue
    return found


def _pss_mb(pid: int) -> float:
    """Its memory, of pages shared with others its share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


def main(arguments: list[str] | None = None) -> None:
    parts: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "planted": planted,
        "pool": pool,
        "merge": merge,
        "ranks": ranks,
        "one_node": one_node,
        "beside": beside,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*parts, "idle"])
    parser.add_argument("traces", type=Path, nargs="?", help="folder of one job's traces [default: made]")
    parser.add_argument("--ranks", type=int, help="[default: 1000 to merge, 64 to analyze]")
    parser.add_argument("--mb", type=float, default=50, help="of each generated rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hta-python", help="interpreter of an environment with traceinsight installed")
    parser.add_argument("--folder", type=Path, help="where temporary files go")
    options = parser.parse_args(arguments)
    for part in ("pool", "merge", "ranks") if options.part == "idle" else (options.part,):
        given = argparse.Namespace(**vars(options))
        given.traces = options.traces if part == "pool" or options.part != "idle" else None
        given.ranks = options.ranks or (64 if part == "ranks" else 1000)
        figures = parts[part](given)
        name = "merge_given" if part == "merge" and given.traces is not None else part
        print(json.dumps({name: figures}, indent=2), flush=True)
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(
            json.dumps(before | {name: figures, "machine": machine()}, indent=2, sort_keys=True) + "\n"
        )


if __name__ == "__main__":
    main()
