"""What a run found, in the few lines that a tired user reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from tracelens.hardware import Gpu
from tracelens.hardware.measurements import GemmMeasurement, Measurements
from tracelens.measure.cases import DTYPES
from tracelens.measure.run import Result
from tracelens.numbers import count, mnk, ms, pct, sig

#: Shapes this near each other do the same work: one side differs by at most 64 and by at most 5 %.
_NEAR, _NEAR_FRAC = 64, 0.05
#: Of the median. More than this between the 10th and the 90th percentile is no clean measurement.
_UNSTEADY_FRAC = 0.05


@dataclass(frozen=True, slots=True)
class Cliff:
    """A product that takes longer than a larger neighbour."""

    slow: GemmMeasurement
    fast: GemmMeasurement  # the same, but one side larger

    @property
    def factor(self) -> float:
        return self.slow.time_us / self.fast.time_us


def summarize(result: Result) -> list[str]:
    """The lines to print after a run; the first says what was measured, the last where it is."""
    measured = result.measurements
    kept = f", {count(result.resumed)} of them in an earlier run" if result.resumed else ""
    name = measured.device.get("name")
    if measured.gpu == "cpu":
        name = "CPU, a test of the program that says nothing of a GPU"
    products, calls = count(len(measured.gemms)), count(len(measured.attention))
    took = f"{result.seconds:.0f} s" if result.seconds < 60 else f"{result.seconds / 60:.1f} min"
    lines = [
        f"{name}: {products} GEMMs and {calls} attention calls measured ({took}{kept})",
        *(f"  {line}" for line in _facts(measured, result.facts.gpu)),
    ]
    if result.stopped is not None:
        lines.append(f"  stopped early: {result.stopped}")
    if result.left:
        lines.append(f"  {count(result.left)} shapes left: the same command goes on with them")
    if result.previous is not None:
        lines.append(f"  the file that was there before is now {result.previous.name}")
    lines.append(f"written to {result.path}")
    return lines


def _facts(measured: Measurements, gpu: Gpu) -> list[str]:
    lines = [_ceiling(best, gpu.peak(best.dtype)) for best in ceilings(measured.gemms)]
    if measured.bandwidth_gbps is not None:
        share = (
            f", {pct(measured.bandwidth_gbps / gpu.bandwidth_gbps)} of the datasheet's"
            f" {count(gpu.bandwidth_gbps)}"
            if gpu.bandwidth_gbps
            else ""
        )
        lines.append(f"memory {sig(measured.bandwidth_gbps)} GB/s copied{share}")
    if measured.launch_floor_us is not None:
        lines.append(f"the quickest GEMM takes {ms(measured.launch_floor_us / 1e3)}")
    if (cliff := worst_cliff(measured.gemms)) is not None:
        lines.append(
            f"the worst cliff: {_shape(cliff.slow)} takes {sig(cliff.factor, 2)} times as long as"
            f" the larger {_shape(cliff.fast)}"
        )
    unsteady = [row for row in measured.gemms if (row.spread_frac or 0) > _UNSTEADY_FRAC]
    if len(unsteady) > 0.05 * len(measured.gemms) and measured.gpu != "cpu":
        lines.append(
            f"{count(len(unsteady))} GEMMs varied by more than {_UNSTEADY_FRAC:.0%}:"
            " does something else use this GPU?"
        )
    return lines + list(measured.notes)


def ceilings(rows: Iterable[GemmMeasurement]) -> list[GemmMeasurement]:
    """The product with the highest throughput of each dtype."""
    best: dict[str, GemmMeasurement] = {}
    for row in rows:
        if row.dtype not in best or row.tflops > best[row.dtype].tflops:
            best[row.dtype] = row
    return [best[dtype] for dtype in DTYPES if dtype in best]


def worst_cliff(rows: Sequence[GemmMeasurement]) -> Cliff | None:
    """The product that would gain most from one side being a little larger, if any would.

    Time against time: the larger neighbour does all the work of the smaller one and is done sooner.
    """
    worst: Cliff | None = None
    for side in ("m", "n", "k"):
        lines: dict[Hashable, list[GemmMeasurement]] = defaultdict(list)
        for row in rows:
            others = tuple(getattr(row, name) for name in ("m", "n", "k") if name != side)
            lines[(*others, row.batch, row.dtype, row.out_dtype, row.layout)].append(row)
        for line in lines.values():
            line.sort(key=lambda row: int(getattr(row, side)))
            for index, slow in enumerate(line):
                for fast in line[index + 1 :]:
                    size, larger = getattr(slow, side), getattr(fast, side)
                    if larger - size > min(_NEAR, _NEAR_FRAC * size):
                        break
                    cliff = Cliff(slow, fast)
                    if cliff.factor > (worst.factor if worst is not None else 1.0):
                        worst = cliff
    return worst


def _ceiling(best: GemmMeasurement, peak: float | None) -> str:
    share = f", {pct(best.tflops / peak)} of the datasheet's {sig(peak)}" if peak else ""
    return f"{best.dtype} {sig(best.tflops)} TFLOP/s{share} ({_shape(best)})"


def _shape(row: GemmMeasurement) -> str:
    return f"{mnk(row.m, row.n, row.k, row.batch)} {row.dtype} {row.layout}"
