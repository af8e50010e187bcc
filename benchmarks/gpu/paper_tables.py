"""The paper's own sweeps beside the same sweeps here: where this GPU behaves otherwise."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu.cells import MISSING, Table, number
from benchmarks.gpu.findings import cliffs, power_of_two
from benchmarks.gpu.record import Record
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import DASH, pct


def paper_tables(record: Record, paper: Mapping[str, Any]) -> list[Table]:
    """One table per family of the paper that was measured again. ``paper`` is paper.toml."""
    return [build(record, paper) for build in _TABLES]


def _by_power(
    title: str,
    lead: str,
    key: str,
    chosen: Callable[[GemmMeasurement], bool],
    dimension: Callable[[GemmMeasurement], int],
) -> Callable[[Record, Mapping[str, Any]], Table]:
    """A table of mean TFLOP/s by the largest power of two in a dimension, with the paper's beside it."""

    def build(record: Record, paper: Mapping[str, Any]) -> Table:
        theirs = {int(name): value for name, value in paper[key].items() if name != "source"}
        groups: dict[int, list[float]] = defaultdict(list)
        for one in record.gemms:
            if one.dtype == "bf16" and chosen(one):
                power = min(power_of_two(dimension(one)), max(theirs))
                groups[power].append(one.tflops)
        best = max((statistics.fmean(values) for values in groups.values()), default=None)
        top = max(theirs.values())
        rows = []
        for power, value in sorted(theirs.items()):
            ours = statistics.fmean(groups[power]) if groups.get(power) else None
            relative = MISSING if ours is None or best is None else pct(ours / best)
            rows.append((str(power), number(value), pct(value / top), number(ours), relative))
        return Table(
            title,
            f"{lead} Beside it: {paper[key]['source']}.",
            ("largest power of two", "paper", "of its best", "here", "of the best here"),
            tuple(rows),
        )

    return build


def _flash(record: Record, paper: Mapping[str, Any]) -> Table:
    rows = []
    for name, value in paper["flash_attention"].items():
        if name == "source":
            continue
        found = [
            one
            for one in record.attention
            if one.head_dim == int(name)
            and one.sweep == "head_dim"
            and one.dtype == "bf16"
            and not one.causal
        ]
        cells = [name, number(value)]
        for backend in ("flash", "cudnn"):
            for direction, products in (("forward", 2), ("backward", 5)):
                times = [one for one in found if (one.backend, one.direction) == (backend, direction)]
                flops = [
                    2.0
                    * products
                    * one.batch
                    * one.heads
                    * one.seq_q
                    * one.seq_k
                    * one.head_dim
                    / one.time_us
                    / 1e6
                    for one in times
                ]
                cells.append(number(max(flops, default=None)))
        rows.append(tuple(cells))
    return Table(
        "Fused attention by head dimension",
        "TFLOP/s without a mask; 2 GEMMs forward, 5 backward. "
        f"Beside it: {paper['flash_attention']['source']}.",
        ("head dimension", "paper", "flash forward", "flash backward", "cuDNN forward", "cuDNN backward"),
        tuple(rows),
    )


def _swiglu(record: Record, paper: Mapping[str, Any]) -> Table:
    rows = []
    for name, value in sorted(paper["swiglu"].items()):
        if name == "source":
            continue
        found = {
            (one.layout, one.n): one
            for one in record.gemms
            if int(name) in (one.n, one.k) and 4096 in (one.n, one.k) and one.m == 4096 and one.layout == "TN"
            and one.dtype == "bf16" and one.batch == 1
        }  # fmt: skip
        up, down = found.get(("TN", int(name))), found.get(("TN", 4096))
        both = None
        if up is not None and down is not None:
            flops = 2.0 * (up.m * up.n * up.k + down.m * down.n * down.k)
            both = flops / (up.time_us + down.time_us) / 1e6
        rows.append((name, number(value), number(both)))
    return Table(
        "SwiGLU d_ff at h = 4096",
        f"TFLOP/s of the up and the down GEMM, forward, 4096 tokens. Beside it: {paper['swiglu']['source']}.",
        ("d_ff", "published", "here"),
        tuple(rows),
    )


def _wave(record: Record, paper: Mapping[str, Any]) -> Table:
    ours = {
        one.n: one.tflops for one in record.gemms if (one.m, one.k) == (2304, 4096) and one.layout == "NN"
    }
    rows = [
        (name, number(value), number(ours.get(int(name))))
        for name, value in paper["wave"].items()
        if name != "source"
    ]
    drop = max(
        (found for found in cliffs(record.gemms) if found.slow.sweep == "paper_b_wave"),
        key=lambda found: found.lost_frac,
        default=None,
    )
    where = MISSING if drop is None else f"{drop.fast.n} → {drop.slow.n}: {pct(drop.lost_frac)}"
    rows.append(("deepest drop here", DASH, where))
    return Table(
        "The wave sawtooth (2304 × n × 4096)",
        f"TFLOP/s over n. Beside it: {paper['wave']['source']}.",
        ("n", "paper", "here"),
        tuple(rows),
    )


def _alignment(one: GemmMeasurement) -> bool:
    return (one.m, one.k, one.layout) == (27648, 4096, "NN") and 256 <= one.n <= 510


def _vocabulary(one: GemmMeasurement) -> bool:
    return (one.m, one.k, one.layout) == (4096, 2560, "TN") and 50_240 <= one.n <= 51_264


def _scores(one: GemmMeasurement) -> bool:
    return (one.m, one.n, one.layout) == (1024, 1024, "TN") and one.batch > 1 and one.k <= 160


def _values(one: GemmMeasurement) -> bool:
    return (one.m, one.k, one.layout) == (1024, 1024, "NN") and one.batch > 1 and one.n <= 160


_TABLES: tuple[Callable[[Record, Mapping[str, Any]], Table], ...] = (
    _by_power(
        "Alignment of N", "Mean TFLOP/s of 27648 × n × 4096, NN, over n = 256 to 510.", "alignment",
        _alignment, lambda one: one.n,
    ),
    _by_power(
        "Vocabulary", "Mean TFLOP/s of the logits GEMM, 4096 × v × 2560.", "vocabulary",
        _vocabulary, lambda one: one.n,
    ),
    _by_power(
        "Scores as a batched GEMM", "Mean TFLOP/s of QKᵀ at 1024 tokens, by the head dimension.", "scores",
        _scores, lambda one: one.k,
    ),
    _by_power(
        "Values as a batched GEMM", "Mean TFLOP/s of attention over values, by the head dimension.",
        "values", _values, lambda one: one.n,
    ),
    _flash,
    _swiglu,
    _wave,
)  # fmt: skip
