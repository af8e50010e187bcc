"""Components and coverage: shares of the GPU time of the analysed steps, never renormalized.

The file's total is kept beside them as the exact ledger: a file also holds work before and between steps.
"""

from __future__ import annotations

import re

import numpy as np

from tracelens.attribution import Attribution, Calls, lent_kernels
from tracelens.attribution.attribute import is_compiled
from tracelens.attribution.names import op_rule
from tracelens.attribution.words import REASONS
from tracelens.gemm import flops
from tracelens.gemm.inductor import parse_fused
from tracelens.results import ComponentRow, Coverage, GemmRow, Outside, ReferenceInfo, Unattributed
from tracelens.trace import BoolArray, Links, Trace, look_up
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

#: Operators that attention is made of where nothing fuses it.
_OF_ATTENTION = ("bmm", "softmax", "core", "attention_block")
#: PyTorch's operators without what says who computes them, in which direction, or where to: convolution is
#: ``aten::cudnn_convolution`` and ``aten::convolution_backward``.
_OPERATOR = re.compile(
    r"aten::_?(?:cudnn_|miopen_|mkldnn_|native_)?(\w+?)(?:_impl)?(?:_with_indices)?(?:_backward)?_?(?:\.\w+)?"
)
_TOLD = 0.01  # of GPU time


def call_flops(calls: Calls) -> list[float | None]:
    """FLOPs of each call; None where its shape is not known, or was not all computed."""
    found = [
        None if shape is None or (work := flops(shape)) is None else float(work) for shape in calls.shape
    ]
    if not calls.work:
        return found
    return [None if known == "above_peak" else work for work, known in zip(found, calls.work, strict=True)]


def component_rows(trace: Trace, attribution: Attribution, calls: Calls, *, steps: int) -> list[ComponentRow]:
    """One row per (component, phase), in word-list order; the exact ns add up to all GPU time.

    Shares and what is per step count what belongs to one of the ``steps`` analysed.
    """
    dur = trace.kernels.dur_ns
    cell = attribution.component.astype(np.int64) * len(PHASES) + attribution.phase
    size = len(COMPONENTS) * len(PHASES)
    time, count = np.zeros(size, np.int64), np.bincount(cell, minlength=size)
    np.add.at(time, cell, dur)
    inside = attribution.step >= 0
    step_time = np.zeros(size, np.int64)
    np.add.at(step_time, cell[inside], dur[inside])
    total = int(step_time.sum())
    step_count = np.bincount(cell[inside], minlength=size)
    work: dict[int, float] = {}
    rated: dict[int, float] = {}
    rated_ns: dict[int, int] = {}
    for at, done in enumerate(call_flops(calls)):
        if done is None:
            continue
        main = int(cell[calls.main[at]])
        work[main] = work.get(main, 0.0) + done
        if not calls.rated or calls.rated[at]:
            rated[main] = rated.get(main, 0.0) + done
            rated_ns[main] = rated_ns.get(main, 0) + int(calls.dur_ns[at])
    return [
        ComponentRow(
            component=COMPONENTS[at // len(PHASES)],
            phase=PHASES[at % len(PHASES)],
            time_ms=int(time[at]) / 1e6,
            time_ns=int(time[at]),
            frac=int(step_time[at]) / total if total else 0.0,
            kernels=int(count[at]),
            flops=work.get(at),
            tflops=rated[at] / rated_ns[at] / 1e3 if rated_ns.get(at) else None,
            time_ms_per_step=int(step_time[at]) / 1e6 / steps,
            kernels_per_step=int(step_count[at]) / steps,
        )
        for at in np.flatnonzero(count).tolist()
    ]


def coverage(
    trace: Trace, links: Links, attribution: Attribution, calls: Calls, gemms: list[GemmRow]
) -> Coverage:
    """What is known of the steps' GPU time, with what evidence, and why the rest is not."""
    counted, whole = attribution.counted, trace.kernels.dur_ns
    dur = np.where(counted, whole, 0)
    total = max(1, int(dur.sum()))
    known = attribution.component != COMPONENTS.index("unattributed")
    other = attribution.component == COMPONENTS.index("other")
    said = _said(trace, links)
    named = (attribution.module >= 0) & known
    no_launch = links.kernel_node < 0
    lent = lent_kernels(attribution) & counted
    by_evidence = {
        word: int(dur[attribution.evidence == code].sum()) / total
        for code, word in enumerate(EVIDENCE)
        if (counted & (attribution.evidence == code)).any()
    }
    products = [row for row in gemms if row.kind == "gemm"]
    product_ms = sum(row.time_ms_per_step for row in products)
    return Coverage(
        component_frac=int(dur[known & ~other].sum()) / total,
        module_frac=int(dur[named].sum()) / total,
        shape_frac=_shape_share(gemms, "exact"),
        shape_bounded_frac=_shape_share(gemms, "bounded"),
        shape_unknown_frac=_shape_share(gemms, "unknown"),
        tile_frac=_share(sum(row.time_ms_per_step for row in products if row.tile_m is not None), product_ms),
        by_evidence=by_evidence,
        unattributed=sorted(
            (
                Unattributed(*REASONS[reason], int(dur[mask].sum()) / 1e6, int((mask & counted).sum()))
                for reason, mask in attribution.reasons()
                if (mask & counted).any()
            ),
            key=lambda row: -row.time_ms,
        ),
        no_launch_frac=_share(float(whole[no_launch].sum()), float(whole.sum())),
        no_launch_kernels=int(no_launch.sum()),
        lent_frac=int(dur[lent].sum()) / total,
        lent_kernels=int(lent.sum()),
        other_frac=int(dur[other].sum()) / total,
        opaque_frac=int(dur[other & ~said].sum()) / total,
        attention_open_frac=int(dur[(other | ~known) & ~said].sum()) / total,
        outside=[
            Outside(component, what, time / total)
            for component, mask in (("other", other), ("unattributed", ~known))
            for what, time in _kinds(trace, links, calls, gemms, mask & counted)
            if time >= _TOLD * total
        ],
    )


def _kinds(
    trace: Trace, links: Links, calls: Calls, gemms: list[GemmRow], mask: BoolArray
) -> list[tuple[str, int]]:
    """What these kernels do, in ns, longest first: GEMMs, attention, or by PyTorch's operators."""
    at = np.flatnonzero(mask)
    row, op = calls.row_of_kernel[at], look_up(trace.ops.name, links.kernel_op[at], -1)
    codes, which = np.unique(np.where(row >= 0, -2 - row, op), return_inverse=True)
    sums = np.zeros(len(codes), np.int64)
    np.add.at(sums, which, trace.kernels.dur_ns[at])
    times: dict[str, int] = {}
    for code, time in zip(codes.tolist(), sums.tolist(), strict=True):
        what = _kind(trace.symbols[code] if code >= 0 else "", gemms[-2 - code] if code < -1 else None)
        times[what] = times.get(what, 0) + time
    return sorted(times.items(), key=lambda one: -one[1])


def _kind(op: str, row: GemmRow | None) -> str:
    """What a kernel does, in words that hold no name of the user's own."""
    if row is not None:
        return "GEMM" if row.kind == "gemm" else "attention"
    if found := _OPERATOR.fullmatch(op):
        return found[1]
    if is_compiled(op) or parse_fused(op) is not None:
        return "compiled kernel"
    return "other operator" if op else "no operator"


def _said(trace: Trace, links: Links) -> BoolArray:
    """Kernels of an operator of PyTorch that does no attention: no batched product, no softmax."""
    plain = trace.symbols.where(lambda text: text.startswith("aten::") and op_rule(text) not in _OF_ATTENTION)
    out: BoolArray = look_up(plain[trace.ops.name], links.kernel_op, False)
    return out


def reference_info(trace: Trace, attribution: Attribution, calls: Calls) -> ReferenceInfo | None:
    """How much a reference matched and lent; None without one."""
    loan = attribution.loan
    if loan is None:
        return None
    dur = np.where(attribution.counted, trace.kernels.dur_ns, 0)
    total = max(1, int(dur.sum()))
    lent = loan.filled & lent_kernels(attribution)
    shaped = calls.lent & (loan.like[calls.main] >= 0) & (attribution.like[calls.main] < 0)
    return ReferenceInfo(
        path=loan.trace.source.name,
        sha256=loan.trace.source.sha256,
        matched_frac=int(dur[loan.matched].sum()) / total,
        matched_kernels=int((loan.matched & attribution.counted).sum()),
        lent_frac=int(dur[lent].sum()) / total,
        lent_kernels=int((lent & attribution.counted).sum()),
        lent_calls=int((shaped & attribution.counted[calls.main]).sum()),
    )


def _shape_share(gemms: list[GemmRow], known: str) -> float:
    """Share of the rows' time whose sizes are known exactly, within bounds, or not."""
    return _share(
        sum(row.time_ms_per_step for row in gemms if row.shape_known == known),
        sum(row.time_ms_per_step for row in gemms),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
