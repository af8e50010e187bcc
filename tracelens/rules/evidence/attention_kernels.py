"""Fused attention in torch's memory-efficient kernel, what keeps faster ones out, what they would take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracelens.errors import InputError
from tracelens.gemm.predict.attention_backend import likely_backend
from tracelens.results import Estimate, GemmRow
from tracelens.results.row_sizes import AttentionDims
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import time_of
from tracelens.rules.evidence.fused_attention import CAUSAL, NO_MASK, CoreCalls, fused_time


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows of one size and mask in the memory-efficient kernel. ``why``: what keeps a faster kernel out."""

    rows: tuple[GemmRow, ...]
    mask: str | None
    why: str  # "" = nothing that the trace shows

    @property
    def can_change(self) -> bool:
        """Is it a mask that all heads share, or nothing at all?"""
        return not self.why and self.mask in (None, "mask")


def efficient_rows(facts: StepFacts) -> list[GemmRow]:
    """Attention in the memory-efficient kernel that is not known to be in fp32."""
    rows = [row for row in facts.gemms if row.kind == "attention" and row.kernel_family == "mem_efficient"]
    return [row for row in rows if row.dtype != "fp32" and row.kernel_dtype != "fp32"]


def kept_of(facts: StepFacts, rows: Sequence[GemmRow]) -> list[Kept]:
    """The rows by size and mask."""
    groups: dict[AttentionDims | None, list[GemmRow]] = {}
    for row in rows:
        groups.setdefault(row.attention, []).append(row)
    return [Kept(tuple(group), _mask(group), _why(facts, group[0])) for group in groups.values()]


def saving_of(facts: StepFacts, kept: Kept) -> tuple[Estimate, tuple[str, ...]] | str:
    """Milliseconds per step that torch's first choice saves, and how; a sentence where it is not predicted.

    The range spans a causal mask and none. Where a tensor is the mask, what it masks is in no trace: then the
    low end is nothing.
    """
    core = _core(kept.rows)
    found = [fused_time(facts, [core], mask) for mask in (NO_MASK, CAUSAL)]
    for one in found:
        if isinstance(one, str):
            return one
        if one.unfit:
            return one.unfit
    full, causal = (one for one in found if not isinstance(one, str))
    now = time_of(list(kept.rows))
    fastest = min(full.time_ms.low, causal.time_ms.low)
    low = 0.0 if kept.mask else now - full.time_ms.high
    mid = now - full.time_ms.mid
    return Estimate(min(low, mid), mid, now - fastest, full.time_ms.basis), (*full.lines, *causal.lines)


def _mask(rows: Sequence[GemmRow]) -> str | None:
    noted = rows[0].attention
    return noted.mask if noted is not None else None


def _why(facts: StepFacts, row: GemmRow) -> str:
    """Why torch's dispatcher takes no faster kernel of these sizes, without a mask."""
    noted = row.attention
    if facts.step is None or noted is None or noted.head_dim is None:
        return "its sizes are not known"
    try:
        likely = likely_backend(
            head_dim=max(noted.head_dim, noted.value_dim or 0), dtype=row.dtype or "bf16", gpu=facts.step.gpu,
            lengths=(noted.seq_q, noted.seq_k), training=facts.trains,
        )  # fmt: skip
    except InputError as error:
        return str(error)
    return likely.why if likely.name in ("efficient", "math") else ""


def _core(rows: Sequence[GemmRow]) -> CoreCalls:
    """Calls of one size, forward and backward."""
    noted = rows[0].attention
    assert noted is not None and noted.heads is not None and noted.head_dim is not None
    core = CoreCalls(
        (noted.batch or 1) * noted.heads, noted.seq_q or noted.tokens or 1, noted.seq_k or noted.tokens or 1,
        noted.head_dim, noted.value_dim or noted.head_dim, rows[0].dtype or "bf16",
    )  # fmt: skip
    for row in rows:
        if row.phase == "backward":
            core = replace(core, backward_calls=core.backward_calls + row.calls_per_step)
        else:
            core = replace(core, calls=core.calls + row.calls_per_step)
    return core
