"""Components and coverage: shares of all GPU event time, never renormalized."""

from __future__ import annotations

import numpy as np

from tracelens.accounting.calls import Calls
from tracelens.attribution import Attribution, lent_kernels
from tracelens.gemm import flops
from tracelens.results import ComponentRow, Coverage, GemmRow, ReferenceInfo, Unattributed
from tracelens.trace import Links, Trace
from tracelens.words import COMPONENTS, EVIDENCE, PHASES


def call_flops(calls: Calls) -> list[float | None]:
    """FLOPs of each call; None where its shape is not known."""
    return [None if shape is None or (work := flops(shape)) is None else float(work) for shape in calls.shape]


def component_rows(trace: Trace, attribution: Attribution, calls: Calls, *, steps: int) -> list[ComponentRow]:
    """One row per (component, phase), in word-list order; the exact ns add up to all GPU time.

    Per step counts what belongs to one of the ``steps`` analysed: a file also holds work between them.
    """
    dur = trace.kernels.dur_ns
    total = int(dur.sum())
    cell = attribution.component.astype(np.int64) * len(PHASES) + attribution.phase
    size = len(COMPONENTS) * len(PHASES)
    time, count = np.zeros(size, np.int64), np.bincount(cell, minlength=size)
    np.add.at(time, cell, dur)
    inside = attribution.step >= 0
    step_time = np.zeros(size, np.int64)
    np.add.at(step_time, cell[inside], dur[inside])
    step_count = np.bincount(cell[inside], minlength=size)
    work: dict[int, float] = {}
    work_ns: dict[int, int] = {}
    for at, done in enumerate(call_flops(calls)):
        if done is not None:
            main = int(cell[calls.main[at]])
            work[main] = work.get(main, 0.0) + done
            work_ns[main] = work_ns.get(main, 0) + int(calls.dur_ns[at])
    return [
        ComponentRow(
            component=COMPONENTS[at // len(PHASES)],
            phase=PHASES[at % len(PHASES)],
            time_ms=int(time[at]) / 1e6,
            time_ns=int(time[at]),
            frac=int(time[at]) / total if total else 0.0,
            kernels=int(count[at]),
            flops=work.get(at),
            tflops=work[at] / work_ns[at] / 1e3 if work_ns.get(at) else None,
            time_ms_per_step=int(step_time[at]) / 1e6 / steps,
            kernels_per_step=int(step_count[at]) / steps,
        )
        for at in np.flatnonzero(count).tolist()
    ]


def coverage(trace: Trace, links: Links, attribution: Attribution, gemms: list[GemmRow]) -> Coverage:
    """What is known of the GPU time, with what evidence, and why the rest is not."""
    dur = trace.kernels.dur_ns
    total = max(1, int(dur.sum()))
    known = attribution.component != COMPONENTS.index("unattributed")
    named = (attribution.module >= 0) & known
    no_launch = links.kernel_node < 0
    lent = lent_kernels(attribution)
    by_evidence = {
        word: int(dur[attribution.evidence == code].sum()) / total
        for code, word in enumerate(EVIDENCE)
        if (attribution.evidence == code).any()
    }
    products = [row for row in gemms if row.kind == "gemm"]
    product_ms = sum(row.time_ms for row in products)
    return Coverage(
        component_frac=int(dur[known].sum()) / total,
        module_frac=int(dur[named].sum()) / total,
        shape_frac=_shape_share(gemms, "exact"),
        shape_bounded_frac=_shape_share(gemms, "bounded"),
        shape_unknown_frac=_shape_share(gemms, "unknown"),
        tile_frac=_share(sum(row.time_ms for row in products if row.tile_m is not None), product_ms),
        by_evidence=by_evidence,
        unattributed=sorted(
            (
                Unattributed(reason, remedy, int(dur[mask].sum()) / 1e6, int(mask.sum()))
                for reason, remedy, mask in attribution.reasons()
            ),
            key=lambda row: -row.time_ms,
        ),
        no_launch_frac=int(dur[no_launch].sum()) / total,
        no_launch_kernels=int(no_launch.sum()),
        lent_frac=int(dur[lent].sum()) / total,
        lent_kernels=int(lent.sum()),
    )


def reference_info(trace: Trace, attribution: Attribution, calls: Calls) -> ReferenceInfo | None:
    """How much a reference matched and lent; None without one."""
    loan = attribution.loan
    if loan is None:
        return None
    dur = trace.kernels.dur_ns
    total = max(1, int(dur.sum()))
    lent = loan.filled & lent_kernels(attribution)
    shaped = calls.lent & (loan.like[calls.main] >= 0) & (attribution.like[calls.main] < 0)
    return ReferenceInfo(
        path=loan.trace.source.name,
        sha256=loan.trace.source.sha256,
        matched_frac=int(dur[loan.matched].sum()) / total,
        matched_kernels=int(loan.matched.sum()),
        lent_frac=int(dur[lent].sum()) / total,
        lent_kernels=int(lent.sum()),
        lent_calls=int(shaped.sum()),
    )


def _shape_share(gemms: list[GemmRow], known: str) -> float:
    """Share of the rows' time whose sizes are known exactly, within bounds, or not."""
    return _share(
        sum(row.time_ms for row in gemms if row.shape_known == known), sum(row.time_ms for row in gemms)
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
