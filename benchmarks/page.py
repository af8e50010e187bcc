"""How long the page takes to write and to open, for a usual report and for the largest.

    python -m benchmarks.page --runs 7

Writing: `render_html` in this process, after one run that fills the caches of templates. Opening: headless
Chromium, from the start of the navigation to the end of the load event, and to the first paint, as the page's
own PerformanceNavigationTiming and paint timing say; the file lies on the local disk. Medians.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import machine
from tests.browser import devtools
from tests.render.large_report import large
from tracelens.render.html import render_html

RESULTS = Path(__file__).resolve().parent / "results" / "page.json"
CASES = {
    "usual: 18 GEMM rows, 3 findings": (18, 3),
    "500 findings": (18, 500),
    "5,000 distinct GEMMs": (5000, 3),
    "5,000 distinct GEMMs, 500 findings": (5000, 500),
}
#: Milliseconds since the navigation began.
TIMES = """(() => {
  const [load] = performance.getEntriesByType("navigation");
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  return {load: load.loadEventEnd, paint: paint ? paint.startTime : null};
})()"""


def written(gemms: int, findings: int, runs: int) -> tuple[str, list[float]]:
    """Write the page several times; return it and the seconds of each."""
    report = large(gemms, findings)
    page = render_html(report)
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        page = render_html(report)
        seconds.append(time.perf_counter() - begin)
    return page, seconds


def opened(browser: devtools.Browser, path: Path) -> dict[str, float]:
    """Open the page in a new tab; seconds to the end of the load event and to the first paint."""
    page = devtools.Page(browser)
    try:
        page.open(path)
        times = page.run(TIMES)
    finally:
        page.close()
    return {name: value / 1000 for name, value in times.items() if value is not None}


def measure(runs: int) -> dict[str, Any]:
    """All cases, interleaved in the browser."""
    executable = devtools.find()
    if executable is None:
        sys.exit(f"no browser: none of {', '.join(devtools.NAMES)} is on PATH")
    cases: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, devtools.launch(executable) as browser:
        paths = {}
        for at, (label, (gemms, findings)) in enumerate(CASES.items()):
            page, seconds = written(gemms, findings, runs)
            paths[label] = Path(folder) / f"page{at}.html"
            paths[label].write_text(page, encoding="utf-8")
            cases[label] = {"bytes": len(page.encode()), "render_s": round(median(seconds), 3)}
        opened(browser, paths[next(iter(paths))])  # the browser's own first start is no part of a page
        times: dict[str, list[dict[str, float]]] = {label: [] for label in paths}
        for _ in range(runs):
            for label, path in paths.items():
                times[label].append(opened(browser, path))
        for label, rows in times.items():
            for name in ("load", "paint"):
                found = [row[name] for row in rows if name in row]
                cases[label][f"{name}_s"] = round(median(found), 3) if found else None
            cases[label]["load_slowest_s"] = round(max(row["load"] for row in rows), 3)
        version = browser.call("Browser.getVersion")["product"]
    return {"machine": machine() | {"browser": version}, "runs": runs, "cases": cases}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="of each; the median counts")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    report = measure(options.runs)
    options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"{'case':<38}{'kB':>7}{'write s':>9}{'load s':>8}{'paint s':>9}")
    for label, row in report["cases"].items():
        paint = "-" if row["paint_s"] is None else f"{row['paint_s']:.2f}"
        print(f"{label:<38}{row['bytes'] / 1e3:>7.0f}{row['render_s']:>9.2f}{row['load_s']:>8.2f}{paint:>9}")


if __name__ == "__main__":
    main()
