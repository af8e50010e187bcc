"""Sizes that keep a GEMM out of precisions whose elements share a scale by blocks, as a rank computes it.

A tensor is scaled along its rows for one product and along its columns for the next, so both of its sizes
have to be whole blocks: MXFP8 in 32s (TransformerEngine, ``mxfp8.rst``); fp8 in blocks, and NVFP4 after
tensor parallelism, in 128s (``fp8_blockwise_scaling.rst``; pytorch/torchtitan ``nvfp4.md``). The rows of a
trace have the sizes of one rank. Of the tokens a rank of sequence parallelism casts its part alone, before
they are gathered (modelscope/ms-swift#9723).
"""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import listed, plural, round_up
from tracelens.results import GemmRow
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.evidence.dimensions import parameter_of

_IN_FULL = 3


def block_fit(rows: Sequence[GemmRow], facts: StepFacts) -> str:
    """Which precisions with block scales take these GEMMs, and what the sizes that keep others out become."""
    said = []
    capability = facts.step.gpu.compute_capability if facts.step is not None else None
    blackwell = (capability or (0, 0)) >= (10, 0)
    blocks = ((32, "MXFP8"), (128, "NVFP4")) if blackwell else ((128, "fp8 in blocks"),)
    for block, whose in blocks:
        off = {row.id: sizes for row in rows if (sizes := misfits(row, block, facts))}
        if not off:
            said.append(f"{whose} takes all of them")
            continue
        sizes = dict(sorted({size: name for one in off.values() for size, name in one.items()}.items()))
        changes = [
            f"{name or 'a size'} {size} to {round_up(size, block)}"
            for size, name in list(sizes.items())[:_IN_FULL]
        ]
        more = f" and {len(sizes) - _IN_FULL} more" if len(sizes) > _IN_FULL else ""
        have = "has" if len(off) == 1 else "have"
        said.append(
            f"{whose} needs multiples of {block}, and {len(off)} {have} others: {listed(changes)}{more}"
        )
    return f"By size, as each rank has it, of {plural(len(rows), 'shape')}: {'; '.join(said)}."


def misfits(row: GemmRow, block: int, facts: StepFacts) -> dict[int, str | None]:
    """Sizes of a row that are no whole blocks, with the parameter behind each."""
    tokens = "k" if row.role == "wgrad" else "m"
    ranks = _sequence_ranks(facts)
    found: dict[int, str | None] = {}
    for letter in "mnk":
        size = getattr(row, letter)
        if size is None or (letter == tokens and not facts.trains):
            continue
        part = size // ranks if letter == tokens and size % ranks == 0 else size
        if part % block:
            found[part] = "tokens" if letter == tokens else parameter_of(row, letter)
    return found


def _sequence_ranks(facts: StepFacts) -> int:
    """Ranks that split the tokens of a layer, by the all-gathers of tensor parallelism; 1 where none do."""
    sizes = {
        row.group_size
        for row in facts.communication
        if row.purpose == "tensor parallel" and row.collective == "all_gather"
    }
    return next(iter(sizes)) or 1 if len(sizes) == 1 else 1
