"""TL116: products that torch.compile pads by itself, and what its copies cost."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.numbers import count, listed, ms, plural
from tracelens.results import Estimate, GemmRow, OtherRow
from tracelens.rules.engine.claims import Claim, settle
from tracelens.rules.engine.dimensions import parameter_of
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import for_shapes
from tracelens.rules.engine.proposals import cannot_judge, took

#: Operators that turn a tensor, in the name of a kernel of torch.compile.
_TURNS = re.compile(r"_(?:t|transpose|permute)(?=_)")


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
        sizes = listed([one.sizes for one in _changes(padded)])
        said = f"Already at work: torch.compile padded {sizes} ({took(padded, 'GEMM shape', facts)})."
        if facts.others is None:
            return Outcome(
                "could_not_run",
                f"{said} What its copies cost was not summed up: analyze the trace itself.",
            )
        if not mine:
            return Outcome(
                "passed", f"{said} No kernel of its own does the padding: it costs next to nothing."
            )
        return settle(self, facts=facts, claims=[_claim(facts, padded, mine)], passed=said)


def _none(facts: StepFacts, pads: Sequence[OtherRow]) -> Outcome:
    gemms = [row for row in facts.gemms if row.kind == "gemm"]
    compiled = any((row.op or "").startswith("triton_") or row.kernel.startswith("triton_")
                   for row in facts.others or ())  # fmt: skip
    if gemms and all(row.m is None for row in gemms):
        return Outcome(
            "could_not_run",
            f"None of the {plural(len(gemms), 'GEMM row')} has a shape, and padding shows in nothing else:"
            f" {for_shapes(gemms)}.",
        )
    if not compiled:
        return absent("No kernel of torch.compile was recognised, which alone pads by itself.")
    loose = f" {ms(_sum(pads))} of padding kernels belong to none." if pads else ""
    return absent(f"No GEMM was recognised that torch.compile padded.{loose}")


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


@dataclass(frozen=True, slots=True)
class _Padded:
    """One size that ran padded; ``parameter`` None = no known one of the model sets it."""

    parameter: str | None
    asked: int
    ran: int

    @property
    def words(self) -> str:
        """``vocab_size from 50257 to 50264``."""
        return f"{self.parameter} from {self.asked} to {self.ran}" if self.parameter else self.sizes

    @property
    def sizes(self) -> str:
        """``50257 to 50264``."""
        return f"{self.asked} to {self.ran}"


def _changes(padded: Sequence[GemmRow]) -> list[_Padded]:
    """Each size once."""
    found: dict[tuple[int, int], str | None] = {}
    for row in padded:
        sizes = {"m": row.m, "n": row.n, "k": row.k}
        for letter, asked in row.padded_from.items():
            key = (asked, sizes[letter] or asked)
            found[key] = found.get(key) or parameter_of(row, letter)
    return [_Padded(parameter, *sizes) for sizes, parameter in sorted(found.items())]


def _claim(facts: StepFacts, padded: Sequence[GemmRow], pads: Sequence[OtherRow]) -> Claim:
    """The kernels that pad no longer run where the model's own tensors have the padded size.

    One that also converts its tensor is counted in the high end alone, for the conversion stays; one that
    also turns it is not in the low end, for a copy can be left of it.
    """
    all_ms = _sum(pads)
    same_type = [row for row in pads if row.dtype_from == row.dtype_to]
    plain = [row for row in same_type if not _TURNS.search(row.op or row.kernel)]
    changes = _changes(padded)
    sizes = listed([one.sizes for one in changes])
    calls = sum(row.calls_per_step for row in pads)
    many = (
        f"1 kernel {facts.per_step} copies" if calls == 1 else f"{count(calls)} kernels {facts.per_step} copy"
    )
    named = {one.parameter: one for one in changes if one.parameter is not None}
    return Claim(
        name="padding in the model",
        title=(
            f"Pad {listed([one.words for one in changes])} in the model: torch.compile's copies take"
            f" {ms(all_ms)} {facts.per_step}"
        ),
        components=sorted({row.component for row in padded}),
        bounds={row.id: row.time_ms_per_step for row in pads},
        gemms=[row.id for row in padded],
        saving=Estimate(_sum(plain), _sum(same_type), all_ms, "model"),
        confidence="medium",
        effort="config" if set(named) == {"vocab_size"} and len(changes) == 1 else "retrain",
        saw=(
            f"{took(padded, 'GEMM shape', facts)} padded by torch.compile ({sizes}): the fast kernels run"
            f" already. {many} operands into padded ones, in {ms(all_ms)}."
        ),
        why=(
            "Its pass pad_mm rounds a misaligned M, N or K of a product to 16 bytes by copying its operands"
            " into larger tensors, in every call. A weight that is stored at the padded size needs no copy,"
            " nor do the activations that come out of it."
        ),
        how=_how(_sum(plain), _sum(same_type), all_ms),
        fix=[
            line
            for one in changes
            for line in (
                f"- {one.parameter or 'size'} = {one.asked}",
                f"+ {one.parameter or 'size'} = {one.ran}",
            )
        ],
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
        change={name: [one.asked, one.ran] for name, one in named.items()},
        evidence={"padded_from": {row.id: dict(row.padded_from) for row in padded}},
        parameter_delta=None,
    )


def _how(plain_ms: float, same_type_ms: float, all_ms: float) -> str:
    text = f"The products stay as they ran, and the kernels that pad fall away: {ms(same_type_ms)}."
    if plain_ms < same_type_ms:
        text += (
            f" Of them {ms(same_type_ms - plain_ms)} also turn their tensor by their names, which can leave a"
            " copy: not in the low end."
        )
    if same_type_ms < all_ms:
        text += f" {ms(all_ms - same_type_ms)} more also convert a type: in the high end alone."
    return text


def _sum(rows: Sequence[OtherRow]) -> float:
    return sum(row.time_ms_per_step for row in rows)
