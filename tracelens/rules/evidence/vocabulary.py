"""The vocabulary of a step, and the GEMMs that have it as a side."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import ms, plural
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Shared, absent, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes, need_model, need_shapes
from tracelens.rules.engine.rows import gemms_of, time_of
from tracelens.step.alignment import GRID_BYTES, boundary_bytes, loads_16_bytes, narrow_kernel
from tracelens.words import Level


def need_vocabulary(facts: StepFacts) -> int:
    """The vocabulary; raises ``Answer`` where it is not known."""
    vocab = vocabulary(facts)
    if vocab is not None:
        return vocab
    classes = facts.model.classes.value
    if classes is not None:
        raise not_applicable(f"The head chooses from {classes} classes: the model has no vocabulary.")
    need_shapes(logits(facts), "logits GEMM")
    if gemms_of(facts) and all(row.n is None for row in facts.gemms):
        raise could_not_run(f"No GEMM of the step has a shape: {for_shapes(facts.gemms)}.")
    need_model(facts)
    lost = [row for row in gemms_of(facts) if row.component == "unattributed"]
    if lost:
        raise could_not_run(
            f"The vocabulary is not known, and the logits can be among the {plural(len(lost), 'GEMM row')}"
            f" without a component ({ms(time_of(lost))} {facts.per_step}): record with with_stack=True."
        )
    raise absent("No logits GEMM was recognised, and the vocabulary is not known.")


def vocabulary_shared(facts: StepFacts) -> Shared:
    """Do tensor-parallel ranks compute logits of a part of the vocabulary each?"""
    split = facts.step.now.vocab_split if facts.step is not None else None
    return "perhaps" if split is None else "yes" if split else "no"


def vocabulary(facts: StepFacts) -> int | None:
    """The vocabulary as the model has it, before torch.compile padded it."""
    ran = columns(facts)
    for row in logits(facts):
        asked = row.padded_from.get("n")
        if asked and row.n == ran and row.role == "forward":
            return asked
    return ran


def columns(facts: StepFacts) -> int | None:
    """The vocabulary as the GEMMs have it: the model's, or N of the largest forward logits GEMM."""
    if facts.model.classes.value is not None:
        return None  # a classifier's head has classes to choose from
    asked = facts.model.vocab.value
    if asked is not None:
        padded = (
            row.n for row in logits(facts) if row.role == "forward" and row.padded_from.get("n") == asked
        )
        return next(padded, asked) if asked > 0 else None
    shaped = [row for row in logits(facts) if row.role == "forward" and row.n is not None]
    return max(shaped, key=lambda row: row.time_ms_per_step).n if shaped else None


def in_words(facts: StepFacts, vocab: int) -> str:
    """The vocabulary, and of how many ranks: "6400 per rank (51200 in all)"."""
    known = facts.model.vocab
    whole = f" ({known.whole} in all)" if known.whole is not None and vocab == known.value else ""
    return f"{vocab} per rank{whole}" if known.per_rank else str(vocab)


def vocabulary_rows(facts: StepFacts) -> list[GemmRow]:
    """GEMMs with the vocabulary as M, N or K: the logits' forward, dgrad and wgrad, also without a shape."""
    vocab = columns(facts)
    return [
        row
        for row in facts.gemms
        if vocab is not None
        and row.kind == "gemm"
        and (
            (vocab in (row.m, row.n, row.k) and "v" in (row.m_expr, row.n_expr, row.k_expr))
            or (row.component == "logits" and (row.n is None or vocab in (row.m, row.n, row.k)))
        )
    ]


def logits(facts: StepFacts) -> list[GemmRow]:
    """The GEMMs of the logits."""
    return [row for row in facts.gemms if row.kind == "gemm" and row.component == "logits"]


def confidence(bounds: Sequence[Bound], ran: int) -> Level:
    """High where the kernels' names show narrow loads in most of what is at stake."""
    total = sum(bound.ms for bound in bounds)
    by_name = sum(bound.ms for bound in bounds if narrow_kernel(bound.row) is not None)
    by_size = by_name + sum(
        bound.ms
        for bound in bounds
        if narrow_kernel(bound.row) is None and not loads_16_bytes(bound.row)
        and (boundary_bytes(ran, bound.row.dtype) or 0) < GRID_BYTES
    )  # fmt: skip
    return "high" if total and 2 * by_name >= total else "medium" if total and 2 * by_size >= total else "low"
