"""A comparison of two folders in words: its pairs, what changed in them, and what became of findings."""

from __future__ import annotations

from tracelens import numbers as f
from tracelens.comparison.spelling import arrow_ms, arrow_pct, p_value, signed_pct
from tracelens.render.compare import OUTCOMES, UNCHANGED
from tracelens.render.compare_folder_words import STATE_WORDS
from tracelens.results.folders import NOT_COMPARED, FilePair, FolderComparison, SharedPeak


def identity(result: FolderComparison) -> str:
    """The two folders and what they ran on, in one line."""
    a, b = result.before, result.after
    gpu = a.gpu_title if a.gpu_title == b.gpu_title else f"{a.gpu_title} → {b.gpu_title}"
    many = len(result.pairs)
    pairs = f"{many} pair{'' if many == 1 else 's'} of files by {result.matched_by}"
    parts = (f"{a.path[:60]} → {b.path[:60]}", pairs, gpu[:80], a.dtype if a.dtype == b.dtype else None)
    return " · ".join(part for part in parts if part)


def pair_heads(result: FolderComparison) -> list[str]:
    """What the cells of a pair are, after its name and before the last."""
    if result.not_compared:
        return ["MFU", "GPU busy", "in GEMM + attention"]
    return ["before, ms", "after, ms", "difference", "p", "computing"]


def pair_cells(pair: FilePair) -> list[str]:
    """Name, step before and after, difference, p, computing time, what the pair's own steps say.

    Where times are not compared: name, MFU, GPU busy, share of GEMM time, that they are not.
    """
    if pair.state == NOT_COMPARED:
        a, b = pair.before, pair.after
        return [
            pair.name,
            arrow_pct(a.mfu_frac, b.mfu_frac, least=(a.mfu_is_bound, b.mfu_is_bound)),
            arrow_pct(a.gpu_busy_frac, b.gpu_busy_frac),
            arrow_pct(a.gemm_frac, b.gemm_frac, least=(a.gemm_frac_is_bound, b.gemm_frac_is_bound)),
            STATE_WORDS[NOT_COMPARED],
        ]
    return [
        pair.name,
        f.sig(pair.before.step_ms),
        f.sig(pair.after.step_ms),
        signed_pct(pair.diff_frac),
        f.DASH if pair.p is None else p_value(pair.p),
        arrow_ms(pair.before.computing_ms, pair.after.computing_ms),
        STATE_WORDS.get(pair.state, pair.state),
    ]


def peak_cells(row: SharedPeak) -> list[str]:
    """GEMM, share of the datasheet peak before and after."""
    name = f"{row.component} {row.role or row.phase}"
    return [name, f.pct(row.before_frac), f.pct(row.after_frac)]


def change_lines(result: FolderComparison) -> list[str]:
    """What changed, a line each, with the number of pairs where it is not all of them."""
    many = len(result.pairs)
    lines = [
        one.change.said + ("" if one.pairs == many else f" ({one.pairs} of {many} pairs)")
        for one in result.changes
    ]
    return lines or [UNCHANGED]


def finding_lines(result: FolderComparison) -> list[str]:
    """What became of the findings of the reports before."""
    many = len(result.pairs)
    return [
        f"{one.rule} {one.title}: {OUTCOMES.get(one.state, one.state)}"
        + ("" if one.pairs == many else f" ({one.pairs} of {many} pairs)")
        for one in result.findings
    ]


def nothing_moved(result: FolderComparison) -> str:
    """Why no component is named."""
    if any(row.beyond_noise is not None for row in result.components):
        return "in more than half of the pairs nothing changed by more than noise"
    return "cannot be separated from noise"
