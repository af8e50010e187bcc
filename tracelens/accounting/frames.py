"""The tables as pandas DataFrames with documented columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

import numpy as np
import pandas as pd

from tracelens.accounting.shares import call_flops
from tracelens.attribution import Attribution, Calls
from tracelens.gemm import GemmShape
from tracelens.gemm.lost import PARTS
from tracelens.results import ComponentRow, Finding, GemmRow
from tracelens.results.report import Layers
from tracelens.results.step import Step
from tracelens.trace import Links, Trace
from tracelens.words import COMPONENTS, EVIDENCE, PHASES


def kernels_frame(trace: Trace, links: Links, attribution: Attribution, calls: Calls) -> pd.DataFrame:
    """One row per GPU event, in the order they began.

    Columns: correlation, name, category, stream, ts_ns, dur_ns, step (N of ProfilerStep#N), phase,
    component, components (all a fused kernel covers, joined by "+"), component_evidence, layer, module,
    op, sequence (of the operator), role, m, n, k, batch, dtype, layout (of the call the kernel belongs
    to, or repeats), flops (on the main kernel of each call only, so that they add up), candidates (of what
    is unattributed: the components it can be, joined by "+"). <NA> or None = not known.
    """
    kernels, symbols = trace.kernels, trace.symbols
    order = np.argsort(kernels.ts_ns, kind="stable")
    op = links.kernel_op[order]
    call = calls.kernel_call[order]
    shapes = _call_columns(calls)
    step_index = np.array([*links.steps.index, -1])
    modules = np.array([*attribution.modules, None], dtype=object)
    fused = np.array(["+".join(parts) for parts in attribution.components], dtype=object)
    component = np.array(COMPONENTS, dtype=object)[attribution.component[order]]
    columns: dict[str, Any] = {
        "correlation": _nullable(kernels.correlation[order]),
        "name": symbols.array[kernels.name[order]],
        "category": symbols.array[kernels.category[order]],
        "stream": kernels.stream[order],
        "ts_ns": kernels.ts_ns[order],
        "dur_ns": kernels.dur_ns[order],
        "step": _nullable(
            step_index[attribution.step[order]] if links.steps.marked else np.zeros(len(order), np.int64)
        ),
        "phase": np.array(PHASES, dtype=object)[attribution.phase[order]],
        "component": component,
        "components": np.where(attribution.fused[order] > 0, fused[attribution.fused[order]], component),
        "component_evidence": np.array(EVIDENCE, dtype=object)[attribution.evidence[order]],
        "layer": _nullable(attribution.layer[order]),
        "module": modules[attribution.module[order]],
        "op": _with_none(symbols.array[trace.ops.name])[op],
        "sequence": _nullable(np.append(trace.ops.sequence, -1)[op]),
    }
    for name, values in shapes.items():
        columns[name] = values[call]
    columns["flops"] = np.where(calls.is_main[order], columns["flops"], np.nan)
    for name in ("m", "n", "k", "batch"):
        columns[name] = _nullable(columns[name])
    columns["candidates"] = fused[attribution.candidates[order]]
    return pd.DataFrame(columns)


def _call_columns(calls: Calls) -> dict[str, np.ndarray[Any, Any]]:
    """Columns over calls with one more place at the end, for kernels of no call (index -1)."""
    size = len(calls) + 1
    numbers = {name: np.full(size, -1, np.int64) for name in ("m", "n", "k", "batch")}
    texts = {name: np.full(size, None, dtype=object) for name in ("dtype", "layout")}
    work = np.full(size, np.nan)
    for at, (shape, done) in enumerate(zip(calls.shape, call_flops(calls), strict=True)):
        if shape is None:
            continue
        texts["dtype"][at] = shape.dtype
        if isinstance(shape, GemmShape):
            texts["layout"][at] = shape.layout
            for name in ("m", "n", "k"):
                numbers[name][at] = getattr(shape, name)
        numbers["batch"][at] = -1 if shape.batch is None else shape.batch
        work[at] = np.nan if done is None else done
    return {
        "role": _with_none(np.array(calls.role, dtype=object)),
        **numbers,
        "dtype": texts["dtype"],
        "layout": texts["layout"],
        "flops": work,
    }


def _with_none(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """One more place at the end, None: what an index of -1 finds."""
    out = np.full(len(values) + 1, None, dtype=object)
    out[:-1] = values
    return out


def _nullable(values: Any) -> Any:
    """Integers with -1 as missing."""
    values = np.asarray(values, dtype=np.int64)
    return pd.arrays.IntegerArray(values, values < 0)


def ops_frame(trace: Trace, links: Links) -> pd.DataFrame:
    """Operators by name: calls, host time, and the GPU time launched directly by each.

    Columns: op, calls, host_ns (inclusive), gpu_ns, kernels.
    """
    ops = trace.ops
    size = len(trace.symbols)
    calls = np.bincount(ops.name, minlength=size)
    host, gpu = np.zeros(size, np.int64), np.zeros(size, np.int64)
    np.add.at(host, ops.name, ops.dur_ns)
    linked = links.kernel_op >= 0
    names = ops.name[links.kernel_op[linked]]
    np.add.at(gpu, names, trace.kernels.dur_ns[linked])
    launched = np.bincount(names, minlength=size)
    rows = np.flatnonzero(calls)
    frame = pd.DataFrame(
        {
            "op": trace.symbols.array[rows] if size else [],
            "calls": calls[rows],
            "host_ns": host[rows],
            "gpu_ns": gpu[rows],
            "kernels": launched[rows],
        }
    )
    return frame.sort_values(["gpu_ns", "host_ns"], ascending=False, ignore_index=True)


def gemms_frame(rows: Sequence[GemmRow]) -> pd.DataFrame:
    """GEMM and attention rows: one column per field of ``tracelens.results.GemmRow``, losses in columns.

    In place of ``lost_ms`` (all ms per step, NaN = not told): useful_ms, lost_overlap_ms, lost_clock_ms,
    lost_alignment_ms, lost_wave_ms, lost_tile_ms, lost_memory_ms, lost_other_ms, which add up to
    time_ms_per_step; lost_ceiling_ms and lost_helpers_ms, parts of lost_other_ms; and lost_why, a dict of
    reasons. See ``tracelens.gemm.lost``.
    Integers that can be missing (m, n, k, tiles, ...) are Int64, <NA> = not known.
    """
    frame = rows_frame(rows, GemmRow)
    at = list(frame.columns).index("lost_ms")
    losses = [row.lost_ms for row in rows]
    for part in (*PARTS, "ceiling", "helpers"):
        name = "useful_ms" if part == "useful" else f"lost_{part}_ms"
        frame.insert(at, name, pd.Series([getattr(lost, part) for lost in losses], dtype=float))
        at += 1
    frame.insert(at, "lost_why", [dict(lost.why) for lost in losses])
    return frame.drop(columns="lost_ms")


def findings_frame(rows: Sequence[Finding]) -> pd.DataFrame:
    """One row per finding, the largest first.

    Columns: rule, title, severity, confidence, effort, basis, saving_low_ms, saving_mid_ms, saving_high_ms
    (per step; NaN = a bound or not known), saving_mid_frac (of the step), components and gemms (joined by
    "+"), change ("vocab_size 50257 -> 50304"), fix (the diff).
    """
    same = ("rule", "title", "severity", "confidence", "effort", "basis")
    ends = ("low", "mid", "high")
    made: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in same}
    for end in ends:
        made[f"saving_{end}_ms"] = pd.Series([getattr(row.saving_ms, end) for row in rows], dtype=float)
    made["saving_mid_frac"] = pd.Series([row.saving_frac.mid for row in rows], dtype=float)
    made |= {name: ["+".join(getattr(row, name)) for row in rows] for name in ("components", "gemms")}
    made["change"] = [", ".join(f"{name} {a} -> {b}" for name, (a, b) in row.change.items()) for row in rows]
    made["fix"] = ["\n".join(row.fix) for row in rows]
    return pd.DataFrame(made)


def layers_frame(layers: Layers) -> pd.DataFrame:
    """GPU time per step of each layer, component and phase; all GPU time of the steps is in one row.

    Columns: layer (<NA> = in no layer, or in one that is not known), component, phase, time_ms (per step).
    """
    rows = [
        (layer, row.component, row.phase, time)
        for row in layers.rows
        for layer, time in [*zip(layers.layers, row.time_ms, strict=True), (pd.NA, row.rest_ms)]
    ]
    frame = pd.DataFrame(rows, columns=["layer", "component", "phase", "time_ms"])
    return frame.astype({"layer": "Int64", "time_ms": float})


def rows_frame(
    rows: Sequence[GemmRow] | Sequence[ComponentRow] | Sequence[Step], kind: type[Any]
) -> pd.DataFrame:
    """Result rows as a DataFrame, one column per field of ``tracelens.results``.

    Integers that can be missing stay integers, <NA> where they are not known.
    """
    names = list(kind.__dataclass_fields__)
    frame = pd.DataFrame([{name: getattr(row, name) for name in names} for row in rows], columns=names)
    for name, said in get_type_hints(kind).items():
        if said == int | None:  # pandas would make them floats
            frame[name] = pd.array([getattr(row, name) for row in rows], dtype="Int64")
    return frame
