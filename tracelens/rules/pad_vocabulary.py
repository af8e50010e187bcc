"""TL101: a vocabulary that is no multiple of 64 keeps the logits GEMMs off the fast kernels."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.numbers import listed, ms, plural, round_up
from tracelens.results import GemmRow
from tracelens.rules.engine.dimensions import TARGET, Target, flops_growth
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes, no_model
from tracelens.rules.engine.proposals import Proposal, cannot_judge, decide, took
from tracelens.rules.engine.stakes import Stake, time_at_stake
from tracelens.step.alignment import (
    GRID_BYTES,
    boundary_bytes,
    fp32_on_cuda_cores,
    load_bytes,
    loads_16_bytes,
    narrow_kernel,
)
from tracelens.words import Level

#: TFLOP/s on an A100 of the GEMM with v near 51200 as one dimension, by the bytes on which its rows begin
#: (arXiv 2401.14489, raw data of EleutherAI/cookbook; odd v = 2 bytes, x2 = 4, ... x64 = 128).
_A100_TFLOPS = {2: 74, 4: 138, 8: 140, 16: 226, 32: 245, 128: 256}


@dataclass(frozen=True, slots=True)
class PadVocabulary:
    """Vocabulary a multiple of 64, the paper's rule."""

    id: str = "TL101"
    slug: str = "pad-vocabulary"
    title: str = "Vocabulary padded to a multiple of 64"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge the GEMMs that have the vocabulary as a dimension."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        vocab = vocabulary(facts)
        if vocab is None:
            return _without_vocabulary(facts)
        rows = vocabulary_rows(facts)
        if not rows:
            return absent(f"No GEMM of the step has the vocabulary ({vocab}) as a dimension.")
        if vocab % TARGET == 0:
            return Outcome("passed", f"The vocabulary, {vocab}, is a multiple of {TARGET}.")
        ran = columns(facts) or vocab
        if ran % TARGET == 0:
            return Outcome(
                "passed",
                f"The vocabulary, {vocab}, runs padded to {ran} by torch.compile, a multiple of {TARGET}.",
            )
        judged = [row for row in rows if not fp32_on_cuda_cores(row)]
        if not judged:
            return Outcome(
                "not_applicable",
                f"The vocabulary, {vocab}, is no multiple of {TARGET}, but its GEMMs run in fp32 on CUDA"
                " cores, where alignment is not what limits them.",
            )
        return decide(self, facts=facts, proposals=[_proposal(facts, vocab, judged)], passed="")


def vocabulary(facts: StepFacts) -> int | None:
    """The vocabulary as the model has it, before torch.compile padded it."""
    ran = columns(facts)
    for row in facts.gemms:
        asked = row.padded_from.get("n")
        if asked and row.n == ran and _is_logits(row) and row.role == "forward":
            return asked
    return ran


def columns(facts: StepFacts) -> int | None:
    """The vocabulary as the GEMMs have it: the model's, or N of the largest forward logits GEMM."""
    if facts.model.vocab.value is not None:
        return facts.model.vocab.value if facts.model.vocab.value > 0 else None
    if facts.model.classes.value is not None:
        return None  # a classifier's head has classes to choose from
    logits = [row for row in facts.gemms if _is_logits(row) and row.role == "forward" and row.n is not None]
    return max(logits, key=lambda row: row.time_ms_per_step).n if logits else None


def vocabulary_rows(facts: StepFacts) -> list[GemmRow]:
    """GEMMs with the vocabulary as M, N or K: the logits' forward, dgrad and wgrad."""
    vocab = columns(facts)
    if vocab is None:
        return []
    return [
        row
        for row in facts.gemms
        if row.kind == "gemm"
        and vocab in (row.m, row.n, row.k)
        and (_is_logits(row) or "v" in (row.m_expr, row.n_expr, row.k_expr))
    ]


def _is_logits(row: GemmRow) -> bool:
    return row.kind == "gemm" and row.component == "logits"


def _without_vocabulary(facts: StepFacts) -> Outcome:
    classes = facts.model.classes.value
    if classes is not None:
        return Outcome(
            "not_applicable", f"The head chooses from {classes} classes: the model has no vocabulary."
        )
    logits = [row for row in facts.gemms if _is_logits(row)]
    shaped = [row for row in facts.gemms if row.n is not None]
    if logits and all(row.n is None for row in logits):
        return Outcome(
            "could_not_run",
            f"None of the {plural(len(logits), 'logits GEMM')} has a shape: {for_shapes(logits)}.",
        )
    if not shaped and any(row.kind == "gemm" for row in facts.gemms):
        return Outcome("could_not_run", f"No GEMM of the step has a shape: {for_shapes(facts.gemms)}.")
    without = no_model(facts)
    if without is not None:
        return without
    lost = [row for row in facts.gemms if row.kind == "gemm" and row.component == "unattributed"]
    if lost:
        time = ms(sum(row.time_ms_per_step for row in lost))
        return Outcome(
            "could_not_run",
            f"The vocabulary is not known, and the logits can be among the {plural(len(lost), 'GEMM row')}"
            f" without a component ({time} {facts.per_step}): record with with_stack=True.",
        )
    return absent("No logits GEMM was recognised, and the vocabulary is not known.")


def _stake(facts: StepFacts, row: GemmRow, vocab: int) -> Stake:
    """All time above the floor is at stake where loads are narrow, a part where they are full.

    With 16-byte loads the kernel is the fast one already, and what is left to gain is what the paper
    measured between multiples of 8 and of 64.
    """
    boundary = boundary_bytes(vocab, row.dtype)
    narrow = boundary is None or boundary < GRID_BYTES
    if narrow_kernel(row) is not None or (narrow and not loads_16_bytes(row)):
        return time_at_stake(row, gpu=facts.gpu, same_kernels=True)
    now = _A100_TFLOPS[16 if narrow or boundary == 16 else 32]
    best = _A100_TFLOPS[128]
    return time_at_stake(
        row,
        gpu=facts.gpu,
        cap_frac=1 - now / best,
        cap_why=f"(1 - {now}/{best}: an A100 ran this GEMM at {now} TFLOP/s with such a vocabulary"
        f" and at {best} with a multiple of 64, arXiv 2401.14489)",
    )


def _proposal(facts: StepFacts, vocab: int, rows: list[GemmRow]) -> Proposal:
    ran = columns(facts) or vocab  # as the GEMMs have it: alignment and operations are those
    stakes = [_stake(facts, row, ran) for row in rows]
    padded = round_up(vocab, TARGET)
    goal = Target("vocab_size", ran, padded)
    hidden = _hidden(facts, ran, rows)
    extra = padded - vocab
    return Proposal(
        title=f"Pad vocab_size from {vocab} to {padded}",
        stakes=stakes,
        confidence=_confidence(stakes, ran),
        effort="config",
        effects={"needs": "a setting, and a mask before sampling"},
        saw=_saw(facts, vocab, ran, rows),
        why=_why(ran, rows),
        change={"vocab_size": [vocab, padded]},
        fix=[f"- vocab_size = {vocab}", f"+ vocab_size = {padded}"],
        caveats=_caveats(facts, padded, extra),
        evidence={
            "vocabulary": vocab,
            "row_begins_on_bytes": boundary_bytes(ran, rows[0].dtype),
            "kernel_loads_bytes": {row.id: load_bytes(row) for row in rows},
            "next_multiple_of_128": round_up(vocab, 128),
            **({"padded_by_torch_compile": ran} if ran != vocab else {}),
        },
        parameter_delta=extra * hidden if hidden is not None else None,
        flops_delta=flops_growth(rows, goal=goal, sizes=frozenset({ran})),
        simulate={"vocab": padded},
    )


def _hidden(facts: StepFacts, vocab: int, rows: list[GemmRow]) -> int | None:
    if facts.model.hidden.value is not None:
        return facts.model.hidden.value
    return next((row.k for row in rows if row.role == "forward" and row.n == vocab), None)


def _confidence(stakes: list[Stake], vocab: int) -> Level:
    """High where the kernels' names show narrow loads in most of what is at stake."""
    total = sum(stake.bound_ms for stake in stakes)
    shown = sum(stake.bound_ms for stake in stakes if narrow_kernel(stake.row) is not None)
    silent = sum(
        stake.bound_ms
        for stake in stakes
        if narrow_kernel(stake.row) is None
        and not loads_16_bytes(stake.row)
        and (boundary_bytes(vocab, stake.row.dtype) or 0) < GRID_BYTES
    )
    if total and 2 * shown >= total:
        return "high"
    return "medium" if total and 2 * (shown + silent) >= total else "low"


def _saw(facts: StepFacts, vocab: int, ran: int, rows: list[GemmRow]) -> str:
    dtype = rows[0].dtype
    boundary = boundary_bytes(ran, dtype)
    grid = f", so its rows begin on {boundary}-byte boundaries in {dtype}" if boundary is not None else ""
    by = f"; torch.compile pads it to {ran} in every call" if ran != vocab else ""
    text = f"The vocabulary is {vocab}, no multiple of {TARGET}{by}{grid}."
    text += f" {took(rows, 'GEMM shape', facts)} with it."
    shown = sorted({kernel for row in rows if (kernel := narrow_kernel(row)) is not None})
    if shown:
        return f"{text} Kernel names show the fallback: {listed(shown)}."
    if all(loads_16_bytes(row) for row in rows):
        return f"{text} By name their kernels load 16 bytes at a time all the same."
    return f"{text} The kernel names do not say how they load."


def _why(vocab: int, rows: list[GemmRow]) -> str:
    boundary, then = (boundary_bytes(size, rows[0].dtype) for size in (vocab, TARGET))
    line = (
        f"Rows of a multiple of {TARGET} begin on {then} bytes, a whole cache line. " if then == 128 else ""
    )
    paper = (
        f"{line}Measured on an A100 (arXiv 2401.14489): {_A100_TFLOPS[2]} TFLOP/s with an odd vocabulary,"
        f" {_A100_TFLOPS[16]} with a multiple of 8, {_A100_TFLOPS[128]} with a multiple of 64."
    )
    if boundary is not None and boundary >= GRID_BYTES:
        return (
            f"Rows of {vocab} elements begin on {boundary}-byte boundaries. That is enough for the fast"
            f" kernels, but a row still begins inside a 128-byte cache line. {paper}"
        )
    return (
        "Tensor-core kernels fetch their operands 16 bytes at a time, and Hopper's copy engine works no"
        f" other way. Rows of {vocab} elements do not begin on 16-byte boundaries, so cuBLAS takes an older"
        f" kernel with narrower loads. {paper}"
    )


def _caveats(facts: StepFacts, padded: int, extra: int) -> list[str]:
    caveats = [
        f"The {extra} added ids are never a target, so training learns to keep their logits low, as nanoGPT's"
        " does; mask them before sampling. To mask them in the loss too is a pass over the logits that this"
        " saving does not count."
        if facts.trains
        else f"Mask the {extra} added logits before sampling, so that they get no probability."
    ]
    wide = round_up(padded, 128)
    if wide == padded:
        caveats.append(f"{padded} is a multiple of 128 as well, so no further padding is needed.")
    else:
        caveats.append(
            f"{wide}, the next multiple of 128, costs {wide - padded} rows more and divides evenly into"
            " 128-wide tiles; some frameworks pad to it."
        )
    return caveats
