"""TL101: a vocabulary that is no multiple of 64 keeps the logits GEMMs off the fast kernels."""

from __future__ import annotations

from tracelens.numbers import listed, round_up
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import Candidate, absent, not_applicable, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.dimensions import TARGET, Target, flops_growth
from tracelens.rules.evidence.vocabulary import (
    columns,
    confidence,
    in_words,
    need_vocabulary,
    vocabulary_rows,
    vocabulary_shared,
)
from tracelens.step.alignment import (
    GRID_BYTES,
    boundary_bytes,
    fp32_on_cuda_cores,
    load_bytes,
    loads_16_bytes,
    narrow_kernel,
)

#: TFLOP/s on an A100 of the GEMM with v near 51200 as one dimension, by the bytes on which its rows begin
#: (arXiv 2401.14489, raw data of EleutherAI/cookbook; v a multiple of 8 = 16 bytes, of 16 = 32, of 64 = 128).
_A100_TFLOPS = {16: 226, 32: 245, 128: 256}


class PadVocabulary(Rule):
    """Vocabulary a multiple of 64, the paper's rule."""

    id = "TL101"
    slug = "pad-vocabulary"
    title = "Vocabulary padded to a multiple of 64"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the GEMMs that have the vocabulary as a dimension."""
        vocab, rows = need_vocabulary(facts), vocabulary_rows(facts)
        if not rows:
            raise absent(f"No GEMM of the step has the vocabulary ({vocab}) as a dimension.")
        said = f"The vocabulary, {in_words(facts, vocab)},"
        if vocab % TARGET == 0:
            raise passed(f"{said} is a multiple of {TARGET}.")
        ran = columns(facts) or vocab
        if ran % TARGET == 0:
            raise passed(f"{said} runs padded to {ran} by torch.compile, a multiple of {TARGET}.")
        judged = [row for row in rows if not fp32_on_cuda_cores(row)]
        if not judged:
            raise not_applicable(
                f"{said} is not a multiple of {TARGET}, but its GEMMs run in fp32 on CUDA"
                " cores, where alignment is not what limits them."
            )
        return [_candidate(facts, vocab, ran, judged)], ""


def _bound(facts: StepFacts, row: GemmRow, ran: int) -> Bound:
    """All time above the floor where loads are narrow, a part where they are full.

    With 16-byte loads the kernel is the fast one already, and what is left to gain is what the paper
    measured between multiples of 8 and of 64.
    """
    boundary = boundary_bytes(ran, row.dtype)
    narrow = boundary is None or boundary < GRID_BYTES
    if narrow_kernel(row) is not None or (narrow and not loads_16_bytes(row)):
        return bound_of_row(row, gpu=facts.gpu)
    now, best = _A100_TFLOPS[16 if narrow or boundary == 16 else 32], _A100_TFLOPS[128]
    why = (
        f"(1 - {now}/{best}: an A100 ran this GEMM at {now} TFLOP/s with such a vocabulary and at {best} with"
        " a multiple of 64, arXiv 2401.14489)"
    )
    return bound_of_row(row, gpu=facts.gpu, cap_frac=1 - now / best, cap_why=why)


def _candidate(facts: StepFacts, vocab: int, ran: int, rows: list[GemmRow]) -> Candidate:
    padded, per_rank = round_up(vocab, TARGET), facts.model.vocab.per_rank
    each = "   # per rank" if per_rank else ""
    into = (row.k for row in rows if row.role == "forward" and row.n == ran)
    hidden = facts.model.hidden.value or next(into, None)
    bounds = [_bound(facts, row, ran) for row in rows]
    boundary = boundary_bytes(ran, rows[0].dtype)
    return Candidate(
        title=f"Pad vocab_size from {vocab} to {padded}{' per rank' if per_rank else ''}",
        saw=_saw(facts, vocab, ran, rows),
        why="on 16 bytes" if boundary is not None and boundary >= GRID_BYTES else "",
        change={"vocab_size": [vocab, padded]},
        fix=[f"{sign} vocab_size = {size}{each}" for sign, size in (("-", vocab), ("+", padded))],
        caveats=_caveats(facts, padded, padded - vocab),
        confidence=confidence(bounds, ran),
        effort="config",
        effects={"needs": "a setting, and a mask before sampling"},
        bounds=bounds,
        simulate={"vocab": padded},
        evidence={
            "vocabulary": vocab,
            "row_begins_on_bytes": boundary,
            "kernel_loads_bytes": {row.id: load_bytes(row) for row in rows},
            "next_multiple_of_128": round_up(vocab, 128),
            **({"padded_by_torch_compile": ran} if ran != vocab else {}),
        },
        parameter_delta=(padded - vocab) * hidden if hidden is not None else None,
        shared=vocabulary_shared(facts),
        flops_delta=flops_growth(rows, goal=Target("vocab_size", ran, padded), sizes=frozenset({ran})),
    )


def _saw(facts: StepFacts, vocab: int, ran: int, rows: list[GemmRow]) -> str:
    dtype, boundary = rows[0].dtype, boundary_bytes(ran, rows[0].dtype)
    grid = f"; rows begin on {boundary}-byte boundaries in {dtype}" if boundary is not None else ""
    by = f"; torch.compile pads it to {ran} in every call" if ran != vocab else ""
    text = f"The vocabulary is {in_words(facts, vocab)}, not a multiple of {TARGET}{by}{grid}."
    text += f" {took(rows, facts)} with it."
    shown = sorted({kernel for row in rows if (kernel := narrow_kernel(row)) is not None})
    if shown:
        return f"{text} Kernel names show the fallback: {listed(shown)}."
    if all(loads_16_bytes(row) for row in rows):
        return f"{text} By name their kernels load 16 bytes at a time all the same."
    return f"{text} The kernel names do not say how they load."


def _caveats(facts: StepFacts, padded: int, extra: int) -> list[str]:
    mask = (
        f"The {extra} added ids are never a target, so training learns to keep their logits low, as nanoGPT's"
        " does; mask them before sampling. To mask them in the loss too is a pass over the logits that this"
        " saving does not count."
        if facts.trains
        else f"Mask the {extra} added logits before sampling, so that they get no probability."
    )
    wide = round_up(padded, 128)
    further = (
        f"{padded} is a multiple of 128 as well, so no further padding is needed."
        if wide == padded
        else f"{wide}, the next multiple of 128, costs {wide - padded} rows more and divides evenly into"
        " 128-wide tiles; some frameworks pad to it."
    )
    return [mask, further]
