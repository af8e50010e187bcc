"""TL116: GEMMs that torch.compile pads by itself, and what its copies cost."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracelens.numbers import count, listed, ms
from tracelens.results import Estimate, GemmRow, OtherRow
from tracelens.rules.engine.candidate import Answer, Candidate, absent, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import calls_of, gemms_of, time_of, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.dimensions import parameter_of

#: Operators that turn a tensor, in the name of a kernel of torch.compile.
_TURNS = re.compile(r"_(?:t|transpose|permute)(?=_)")


class CompiledPadding(Rule):
    """torch.compile's pad_mm at work, and its copies."""

    id = "TL116"
    slug = "compiled-padding"
    title = "Padding by torch.compile"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Say which GEMMs ran padded, and weigh the padding kernels against a padded model."""
        padded = [row for row in facts.gemms if row.padded_from]
        pads = [row for row in facts.others or () if row.kind == "pad"]
        if not padded:
            raise _none(facts, pads)
        sizes = _sizes(padded)
        written = listed([f"{asked} to {ran}" for asked, ran in sizes])
        said = f"Already at work: torch.compile padded {written} ({took(padded, facts)})."
        if facts.others is None:
            raise could_not_run(f"{said} What its copies cost was not summed up: analyze the trace itself.")
        mine = _of(padded, pads)
        if not mine:
            raise passed(f"{said} No kernel of its own does the padding: it costs next to nothing.")
        return [_candidate(facts, padded, mine)], said


def _none(facts: StepFacts, pads: Sequence[OtherRow]) -> Answer:
    gemms = gemms_of(facts)
    if gemms and all(row.m is None for row in gemms):
        return could_not_run(
            f"No GEMM row has a shape, and padding shows in nothing else: {for_shapes(gemms)}."
        )
    names = ((row.op or "", row.kernel) for row in facts.others or ())
    if not any(name.startswith("triton_") for pair in names for name in pair):
        return absent("No kernel of torch.compile was recognised, which alone pads by itself.")
    loose = f" {ms(time_of(pads))} of padding kernels belong to none." if pads else ""
    return absent(f"No GEMM was recognised that torch.compile padded.{loose}")


def _of(padded: Sequence[GemmRow], pads: Sequence[OtherRow]) -> list[OtherRow]:
    """The padding kernels that wrote an operand of these GEMMs, or stand in their component."""
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


def _sizes(padded: Sequence[GemmRow]) -> dict[tuple[int, int], str | None]:
    """Size asked for and size that ran, each once -> the model's parameter that sets it."""
    found: dict[tuple[int, int], str | None] = {}
    for row in padded:
        sizes = {"m": row.m, "n": row.n, "k": row.k}
        for letter, asked in row.padded_from.items():
            key = (asked, sizes[letter] or asked)
            found[key] = found.get(key) or parameter_of(row, letter)
    return dict(sorted(found.items()))


def _candidate(facts: StepFacts, padded: Sequence[GemmRow], pads: Sequence[OtherRow]) -> Candidate:
    """The kernels that pad no longer run where the model's own tensors have the padded size.

    One that also converts its tensor is counted in the high end alone, for the conversion stays; one that
    also turns it is not in the low end, for a copy can be left of it.
    """
    same_type = [row for row in pads if row.dtype_from == row.dtype_to]
    plain = [row for row in same_type if not _TURNS.search(row.op or row.kernel)]
    low, mid, high = time_of(plain), time_of(same_type), time_of(pads)
    sizes, calls = _sizes(padded), calls_of(pads)
    words = [
        f"{name} from {asked} to {ran}" if name else f"{asked} to {ran}"
        for (asked, ran), name in sizes.items()
    ]
    kernels = (
        f"1 kernel {facts.per_step} copies" if calls == 1 else f"{count(calls)} kernels {facts.per_step} copy"
    )
    named = {name: [*pair] for pair, name in sizes.items() if name is not None}
    return Candidate(
        name="padding in the model",
        title=f"Pad {listed(words)} in the model: torch.compile's copies take {ms(high)} {facts.per_step}",
        components=sorted({row.component for row in padded}),
        saw=(
            f"{took(padded, facts)} padded by torch.compile"
            f" ({listed([f'{asked} to {ran}' for asked, ran in sizes])}): the fast kernels run already."
            f" {kernels} operands into padded ones, in {ms(high)}."
        ),
        change={name: list(pair) for name, pair in named.items()},
        fix=[
            line
            for (asked, ran), name in sizes.items()
            for line in (f"- {name or 'size'} = {asked}", f"+ {name or 'size'} = {ran}")
        ],
        caveats=[
            *(["Mask the added logits before sampling."] if "vocab_size" in named else []),
            (
                "The next multiple of 64 divides evenly into tiles as well: --what-if simulates it where the"
                " size is a parameter of the model."
            ),
        ],
        confidence="medium",
        effort="config" if set(named) == {"vocab_size"} and len(sizes) == 1 else "retrain",
        gemms=padded,
        kernels={row.id: row.time_ms_per_step for row in pads},
        saving=Estimate(low, mid, high, "model"),
        how=_how(low, mid, high),
        evidence={"padded_from": {row.id: dict(row.padded_from) for row in padded}},
    )


def _how(plain_ms: float, same_type_ms: float, all_ms: float) -> str:
    text = f"The GEMMs stay as they ran, and the kernels that pad fall away: {ms(same_type_ms)}."
    if plain_ms < same_type_ms:
        text += (
            f" Of them {ms(same_type_ms - plain_ms)} also turn their tensor by their names, which can leave a"
            " copy: not in the low end."
        )
    if same_type_ms < all_ms:
        text += f" {ms(all_ms - same_type_ms)} more also convert a type: in the high end alone."
    return text
