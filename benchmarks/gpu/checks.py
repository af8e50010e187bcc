"""What makes a run unusable. Each check gives reasons in words; a run with any of them is refused.

What could not be read (no NVML, another namespace) refuses nothing: the result says that it is not known.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.device import FAULTS
from benchmarks.gpu.stage import Row, Stage

#: Under a queue of dense products an H100 or H200 holds some 70 to 85 % of its highest clock at its power
#: cap; a GPU far below is throttled or was set to a lower clock.
LOWEST_CLOCK_FRAC = 0.6
#: Two readings under the same load, before and after; more is a device that was not in one state.
CLOCK_DRIFT_FRAC = 0.15
#: Our own context and the driver's reserve take well under this.
FOREIGN_MEMORY_MB = 4000


def clocks(readings: Sequence[Mapping[str, Any] | None]) -> list[str]:
    """``readings`` in the order they were taken; None where the process ended before one was."""
    found = []
    loaded = [one for one in readings if one and one.get("sm_mhz") and one.get("under_load")]
    for reading in readings:
        for fault in sorted(FAULTS & set((reading or {}).get("reasons") or ())):
            found.append(f"throttled clocks: {fault}")
    for reading in loaded:
        most = reading.get("sm_mhz_max")
        if most and reading["sm_mhz"] < LOWEST_CLOCK_FRAC * most:
            found.append(f"throttled clocks: {reading['sm_mhz']:.0f} of {most:.0f} MHz under load")
    if len(loaded) > 1:
        slowest = min(loaded, key=lambda one: float(one["sm_mhz"]))
        low, high = slowest["sm_mhz"], max(one["sm_mhz"] for one in loaded)
        # a warm GPU at its power cap is slower than a cold one, and that is how it trains
        capped = "power cap" in (slowest.get("reasons") or ())
        if high - low > CLOCK_DRIFT_FRAC * high and not capped:
            found.append(f"clocks moved from {low:.0f} to {high:.0f} MHz under the same load")
    return list(dict.fromkeys(found))


def alone(readings: Sequence[Mapping[str, Any] | None]) -> list[str]:
    found = []
    for reading in filter(None, readings):
        count, foreign = reading.get("processes"), reading.get("foreign_memory_mb")
        if count:
            found.append(f"another process on the GPU ({count})")
        elif foreign is not None and foreign > FOREIGN_MEMORY_MB:
            found.append(f"{foreign / 1e3:.1f} GB of GPU memory are held by others")
    return list(dict.fromkeys(found))


def spread(rows: Mapping[str, Row], most: float | None) -> dict[str, Any]:
    """Over the rows that state one: median, 90th percentile, worst, and the items above the limit."""
    values = {
        key: float(row["spread_frac"]) for key, row in rows.items() if row.get("spread_frac") is not None
    }
    if not values:
        return {"median_frac": None, "why": "no row states a spread"}
    ordered = sorted(values.values())
    limit = 0.05 if most is None else most
    above = [key for key, value in values.items() if value > limit]
    return {
        "median_frac": round(statistics.median(ordered), 5),
        "p90_frac": round(ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))], 5),
        "worst_frac": round(ordered[-1], 5),
        "rows": len(ordered),
        "above_limit": len(above),
        "above_limit_items": above[:50],
    }


def rows(stage: Stage, *, items: int, failed: Mapping[str, str], facts: Mapping[str, Any]) -> list[str]:
    """Spread and failures, by the stage's own limits."""
    found = []
    median = facts.get("median_frac")
    if stage.max_spread_frac is not None and median is not None and median > stage.max_spread_frac:
        found.append(f"spread {median:.1%} of the median item, over {stage.max_spread_frac:.0%}")
    if items and len(failed) > stage.max_failed_frac * items:
        key, why = next(iter(failed.items()))
        found.append(f"{len(failed)} of {items} items failed: {key}: {why}")
    return found


def size(stage: Stage, total_bytes: int) -> list[str]:
    if total_bytes > stage.cap_mb * 1e6:
        return [f"{total_bytes / 1e6:.1f} MB written, over the {stage.cap_mb:g} MB of this stage"]
    return []
