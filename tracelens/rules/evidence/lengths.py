"""What a sequence length costs attention and the GEMMs with a row for each token."""

from __future__ import annotations

from tracelens.numbers import ms, plural, round_up
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound, bound_of_row, name
from tracelens.rules.engine.candidate import could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_dimensions, not_known
from tracelens.rules.engine.rows import is_packed, of_step, took
from tracelens.rules.evidence.misfits import Case

#: Queries and keys of one block of fused attention, at the most common sizes (``attention_kernels``).
BLOCK = 128
#: Padded to a multiple of these (8 elements of bf16 are 16 bytes), by at most an eighth.
_PADS, _LONGER = (8, 16, 64, BLOCK), 0.125
#: Cut to a multiple of these, by at most this share: positions that are left out teach nothing.
_CUTS, _SHORTER = (64, BLOCK), 0.03


def need_length(facts: StepFacts, case: Case | None) -> int:
    """The sequence length; raises ``Answer`` where a step has none that can be chosen."""
    if case is None and is_packed(facts):
        raise not_applicable("Sequences are packed: their lengths are in no trace.")
    need_dimensions(facts)
    if facts.model.sequence.value is None or facts.model.sequence.value < 1:
        raise could_not_run(not_known("sequence length", facts.model.sequence))
    return facts.model.sequence.value


def near(length: int) -> list[int]:
    """Lengths a little longer or shorter, on the grids of loads and blocks."""
    longer = {round_up(length, step) for step in _PADS}
    shorter = {length // step * step for step in _CUTS}
    return sorted(
        {one for one in longer if length < one <= length * (1 + _LONGER)}
        | {one for one in shorter if length * (1 - _SHORTER) <= one < length}
    )


def bounds_of(facts: StepFacts, length: int, case: Case | None) -> list[Bound]:
    """What the length can cost: narrow loads, part-filled blocks, and tiles beyond the last token."""
    narrow = [bound_of_row(row, gpu=facts.gpu) for row in (case.rows if case is not None else ())]
    blocks, tokens = round_up(length, BLOCK), (facts.model.micro_batch.value or 1) * length
    outside = 1 - (length / blocks) ** 2
    why = f"(1 - ({length}/{blocks})^2: the scores of its blocks that no position has)"
    filled = [
        bound_of_row(row, gpu=facts.gpu, useful_frac=0.5, cap_frac=outside, cap_why=why)
        for row in _fused(facts, length)
    ]
    edges = [
        Bound(row, lost, f"{name(row)} loses {ms(lost)} {facts.per_step} to part-filled tiles.")
        for row in facts.gemms
        if row.kind == "gemm" and row.role != "wgrad" and row.m == tokens and (lost := row.lost_ms.tile)
    ]
    found = {bound.row.id: bound for bound in (*edges, *filled, *narrow)}  # the last of a row counts
    order = dict.fromkeys(bound.row.id for bound in (*narrow, *filled, *edges))
    return [found[row] for row in order if found[row].ms > 0]


def _fused(facts: StepFacts, length: int) -> list[GemmRow]:
    """Fused attention over this length."""
    calls = ((row, row.attention) for row in facts.gemms if row.kind == "attention")
    return [row for row, call in calls if call is not None and call.seq_q == call.seq_k == length]


def saw_of(facts: StepFacts, length: int, bound_ms: float) -> str:
    """What a trace shows of it."""
    fused = _fused(facts, length)
    blocks = round_up(length, BLOCK) // BLOCK
    hold = f"{plural(blocks, 'block')} of {BLOCK} {'holds' if blocks == 1 else 'hold'}"
    text = f"The sequence is {length}: {hold} {blocks * BLOCK} positions."
    if fused:
        text += f" {took(fused, facts, 'fused attention row')}."
    return f"{text} Part-filled blocks and tiles cost {ms(bound_ms)} at most ({of_step(bound_ms, facts)})."
