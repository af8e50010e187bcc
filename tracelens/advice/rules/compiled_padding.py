"""TL116: products that torch.compile pads by itself, and what its copies cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.advice.claims import Claim, settle
from tracelens.advice.facts import Outcome, StepFacts
from tracelens.advice.numbers import listed, plural
from tracelens.advice.proposals import cannot_judge, took
from tracelens.numbers import count, ms
from tracelens.results import Estimate, GemmRow, OtherRow


@dataclass(frozen=True, slots=True)
class CompiledPadding:
    """torch.compile's pad_mm at work, and its copies."""

    id: str = "TL116"
    slug: str = "compiled-padding"
    title: str = "Padding by torch.compile"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Say which products ran padded, and weigh the padding kernels against a padded model."""
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        padded = [row for row in facts.gemms if row.padded_from]
        pads = [row for row in facts.others or () if row.kind == "pad"]
        if not padded:
            return _none(facts, pads)
        mine = _of(padded, pads)
        sizes = listed(_changes(padded))
        said = f"Already at work: torch.compile padded {sizes} ({took(padded, 'GEMM shape')})."
        if facts.others is None:
            return Outcome("passed", f"{said} What its copies cost was not summed up.")
        if not mine:
            return Outcome(
                "passed", f"{said} No kernel of its own does the padding: it costs next to nothing."
            )
        return settle(self, facts=facts, claims=[_claim(padded, mine)], passed=said)


def _none(facts: StepFacts, pads: Sequence[OtherRow]) -> Outcome:
    gemms = [row for row in facts.gemms if row.kind == "gemm"]
    compiled = any((row.op or "").startswith("triton_") or row.kernel.startswith("triton_")
                   for row in facts.others or ())  # fmt: skip
    if gemms and all(row.m is None for row in gemms):
        return Outcome(
            "could_not_run",
            f"None of the {plural(len(gemms), 'GEMM row')} has a shape, and padding shows in nothing else:"
            " record with record_shapes=True.",
        )
    if not compiled:
        return Outcome(
            "not_applicable", "The step was not compiled by torch.compile: nothing pads by itself."
        )
    loose = (
        f" {ms(sum(row.time_ms_per_step for row in pads))} of padding kernels belong to none." if pads else ""
    )
    return Outcome("not_applicable", f"torch.compile padded no product of this step.{loose}")


def _of(padded: Sequence[GemmRow], pads: Sequence[OtherRow]) -> list[OtherRow]:
    """The padding kernels that wrote an operand of these products, or stand in their component."""
    operands = {
        sizes for row in padded if row.m is not None and row.n is not None and row.k is not None
        for sizes in ((row.m, row.k), (row.k, row.m), (row.k, row.n), (row.n, row.k))
    }  # fmt: skip
    components = {row.component for row in padded}
    return [
        row
        for row in pads
        if (row.dims is not None and (tuple(row.dims[-2:]) in operands or row.dims in operands))
        or (row.dims is None and row.component in components)
    ]


def _changes(padded: Sequence[GemmRow]) -> list[str]:
    """``50257 to 50264`` for each size, once."""
    sizes = {"m": "m", "n": "n", "k": "k"}
    pairs = {
        (asked, getattr(row, sizes[letter])) for row in padded for letter, asked in row.padded_from.items()
    }
    return [f"{asked} to {ran}" for asked, ran in sorted(pairs)]


def _claim(padded: Sequence[GemmRow], pads: Sequence[OtherRow]) -> Claim:
    """The kernels that pad no longer run where the model's own tensors have the padded size.

    One that also converts its tensor is counted in the high end alone: the conversion stays.
    """
    all_ms = sum(row.time_ms_per_step for row in pads)
    pure_ms = sum(row.time_ms_per_step for row in pads if row.dtype_from == row.dtype_to)
    changes = _changes(padded)
    many = count(sum(row.calls_per_step for row in pads))
    pairs = [text.split(" to ") for text in changes]
    return Claim(
        name="padding in the model",
        title=f"Pad {listed(changes)} in the model: torch.compile's copies take {ms(all_ms)} per step",
        components=sorted({row.component for row in padded}),
        bounds={row.id: row.time_ms_per_step for row in pads},
        gemms=[row.id for row in padded],
        saving=Estimate(pure_ms, pure_ms, all_ms, "model"),
        confidence="medium",
        effort="code",
        saw=(
            f"{took(padded, 'GEMM shape')} padded by torch.compile ({listed(changes)}): the fast kernels"
            f" run already. {many} kernels per step copy operands into padded ones, in {ms(all_ms)}."
        ),
        why=(
            "Its pass pad_mm rounds a misaligned M, N or K of a product to 16 bytes by copying its operands"
            " into larger tensors, in every call. A weight that is stored at the padded size needs no copy,"
            " nor do the activations that come out of it."
        ),
        how=(
            f"The products stay as they ran; the kernels that pad fall away: {ms(pure_ms)} of {ms(all_ms)}. The"
            " rest converts a type as well."
            if pure_ms < all_ms
            else f"The products stay as they ran; the kernels that pad fall away: {ms(all_ms)}."
        ),
        fix=[line for asked, ran in pairs for line in (f"- {asked}", f"+ {ran}")],
        caveats=[
            (
                "A checkpoint changes shape: pad its weights with zeros, and mask added logits in the loss"
                " and in sampling."
            ),
            (
                "The next multiple of 64 divides evenly into tiles as well: --what-if simulates it where"
                " the size is a parameter of the model."
            ),
        ],
        evidence={"padded_from": {row.id: dict(row.padded_from) for row in padded}},
    )
