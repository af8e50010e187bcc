"""The tables a person reads of a record: each cell comes from a file, or says that it is not yet measured."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.cells import MISSING, Table, gain, number, shape
from benchmarks.gpu.findings import Cliff, cliffs
from benchmarks.gpu.pairs import ISO_PARAMETER_FRAC, equal_parameters, layer_pairs, step_pairs
from benchmarks.gpu.proof_tables import proof_tables
from benchmarks.gpu.record import Record
from tracelens.hardware.measurements import GemmMeasurement
from tracelens.numbers import DASH, pct

PAPER = Path(__file__).with_name("paper.toml")
_WORST, _BEST = 8, 5


def tables(record: Record) -> list[Table]:
    """Every table, in reading order; those of a record without results are full of ``MISSING``."""
    paper = tomllib.loads(PAPER.read_text(encoding="utf-8"))
    return [
        ceilings(record),
        iso_parameter(record, paper),
        copied_shape(record, paper),
        full_steps(record),
        reshaped(record),
        worst_cliffs(record),
        *proof_tables(record),
    ]


# --- ceilings -----------------------------------------------------------------------------------------


def ceilings(record: Record) -> Table:
    """The best GEMM of each type among all that were measured, and the two limits that are no GEMM."""
    gpu, rows = record.known, []
    for dtype in ("bf16", "fp16", "fp8", "tf32", "fp32"):
        best = max((one for one in record.gemms if one.dtype == dtype), key=_tflops, default=None)
        reached = None if best is None else best.tflops
        cells = [dtype, number(reached), MISSING if best is None else shape(best)]
        cells += [
            _of(reached, gpu.peak(dtype) if gpu else None),
            _of(reached, gpu.ceiling(dtype) if gpu else None),
        ]
        rows.append(tuple(cells))
    data = record.data("ceilings") or {}
    copied = data.get("bandwidth_gbps")
    datasheet = _of(copied, gpu.bandwidth_gbps if gpu else None)
    rows.append(
        ("copy, GB/s", number(copied), "read + written" if copied else MISSING, datasheet, _of(copied, None))
    )
    floor = data.get("launch_floor_us")
    rows.append(
        (
            "shortest GEMM, µs",
            number(floor),
            "queued" if floor else MISSING,
            _of(floor, None),
            _of(floor, None),
        )
    )
    return Table(
        "Ceilings reached",
        "The best of all GEMMs measured here, in TFLOP/s (2·M·N·K over the time).",
        ("type", "reached", "at", "of the datasheet's dense peak", "of the best anyone measured"),
        tuple(rows),
    )


def _tflops(one: GemmMeasurement) -> float:
    return one.tflops


def _of(reached: float | None, whole: float | None) -> str:
    """A share; unknown where the whole is, and not measured where the part is not."""
    if reached is None:
        return MISSING
    return "unknown" if whole is None else pct(reached / whole)


# --- findings -----------------------------------------------------------------------------------------


def worst_cliffs(record: Record) -> Table:
    """Neighbouring shapes with the largest differences; one per curve and dimension."""
    found = _one_each(sorted(cliffs(record.gemms), key=lambda one: -one.lost_frac))[:_WORST]
    rows = [
        (str(rank + 1), shape(one.fast), number(one.fast.tflops), shape(one.slow), number(one.slow.tflops),
         pct(one.lost_frac))
        for rank, one in enumerate(found)
    ]  # fmt: skip
    empty = ((str(rank + 1), *(MISSING,) * 5) for rank in range(len(rows), _WORST))
    return Table(
        "The worst cliffs",
        "Neighbouring shapes (one dimension differs by at most 2 %) that differ most in throughput, the "
        "worst of each family; TFLOP/s.",
        ("", "this shape", "reaches", "its neighbour", "reaches", "lost"),
        (*rows, *empty),
    )


def _one_each(found: Iterable[Cliff]) -> list[Cliff]:
    seen: dict[tuple[Any, ...], Cliff] = {}
    for one in found:
        slow = one.slow
        seen.setdefault((slow.sweep, one.dimension, slow.layout, slow.dtype), one)
    return list(seen.values())


def iso_parameter(record: Record, paper: Mapping[str, Any]) -> Table:
    """The best changes of shape that leave the number of parameters alone, beside the paper's claim."""
    equal = equal_parameters(record.layers)
    claim = paper["claim"]
    rows = [("best of the paper", gain(1 + claim["best_gain_frac"]), claim["source"])]
    for rank in range(_BEST):
        row = equal[rank] if rank < len(equal) else None
        name = "best here" if rank == 0 else f"{rank + 1}."
        between = MISSING if row is None else f"{row['name']} ({_range(row)})"
        rows.append((name, gain(None if row is None else row["speedup"]), between))
    return Table(
        "Speed-up at equal parameters",
        "Whole layers, forward and backward, throughput after against before; parameters within "
        f"{ISO_PARAMETER_FRAC:.0%}.",
        ("", "gain", "change (lowest and highest of the turns)"),
        tuple(rows),
    )


def _range(row: Mapping[str, Any]) -> str:
    return f"{gain(row['speedup_low'])} to {gain(row['speedup_high'])}"


def copied_shape(record: Record, paper: Mapping[str, Any]) -> Table:
    """The shape of GPT-3 2.7B (h = 2560, a = 32) that others copied, with other numbers of heads."""
    measured = {row["name"]: row for row in record.layers}
    claim = paper["claim"]
    rows = [("paper, its best", DASH, DASH, gain(1 + claim["gpt3_2_7b_gain_frac"]))]
    for pair in layer_pairs():
        if (pair.model, pair.rule) != ("gpt3-2.7b", "heads"):
            continue
        row = measured.get(pair.name)
        before, after = (None if row is None else row[side]["ms"] for side in ("before", "after"))
        saved = MISSING if row is None else f"{gain(row['speedup'])} ({_range(row)})"
        name = f"{pair.before.heads} → {pair.after.heads} heads, {_ATTENTION[pair.before.attention]}"
        rows.append((name, number(before, " ms"), number(after, " ms"), saved))
    return Table(
        "The 2.7B shape",
        "One layer, h = 2560, forward and backward, 4 × 2048 tokens; equal parameters.",
        ("change", "before", "after", "gain (lowest and highest of the turns)"),
        tuple(rows),
    )


_ATTENTION = {"flash": "fused attention", "math": "attention by GEMMs"}


def reshaped(record: Record) -> Table:
    """All pairs by kind of change."""
    measured: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in record.layers:
        measured[row["rule"]].append(row)
    rows = []
    for rule in dict.fromkeys(pair.rule for pair in layer_pairs()):
        found = sorted(measured[rule], key=lambda row: row["speedup"])
        ends = (found[-1], found[0]) if found else (None, None)
        cells = [MISSING if one is None else f"{gain(one['speedup'])} ({one['name']})" for one in ends]
        rows.append((rule, str(len(found)) if found else MISSING, *cells))
    return Table(
        "Layers before and after",
        "Throughput per token of whole layers, forward and backward; `control` is a layer against itself and "
        "shows the noise.",
        ("change of", "pairs", "best", "worst"),
        tuple(rows),
    )


def full_steps(record: Record) -> Table:
    measured = {row["name"]: row for row in record.pairs("full_steps")}
    rows = []
    for pair in step_pairs():
        row = measured.get(pair.name)
        change = ", ".join(f"{key} {old} → {new}" for key, (old, new) in pair.change.items()) or "none"
        before, after = (None if row is None else row[side]["ms"] for side in ("before", "after"))
        saved = MISSING if row is None else f"{gain(row['speedup'])} ({_range(row)})"
        rows.append((pair.name, change, number(before, " ms"), number(after, " ms"), saved))
    return Table(
        "Whole training steps",
        "Four layers with embedding, logits, loss and AdamW; throughput per token after against before.",
        ("fix", "change", "before", "after", "gain (lowest and highest of the turns)"),
        tuple(rows),
    )
