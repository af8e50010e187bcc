"""TL112: projections of one input in GEMMs of their own, where one GEMM would do."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import capital, count, listed, ms
from tracelens.results import total
from tracelens.rules.engine.bounds import bound_of_row
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes, need_model
from tracelens.rules.engine.predictions import minus
from tracelens.rules.engine.rows import gemms_of, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.projections import (
    FAMILIES,
    Group,
    SharedInput,
    fused_saving,
    groups_of,
    split_ms,
    why_none,
)

_FIX = {
    "q, k and v": [
        "- q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)",
        "+ q, k, v = self.qkv_proj(x).split([q_width, kv_width, kv_width], dim=-1)",
    ],
    "k and v": ["- k, v = self.k_proj(x), self.v_proj(x)", "+ k, v = self.kv_proj(x).chunk(2, dim=-1)"],
    "gate and up": [
        "- gate, up = self.gate_proj(x), self.up_proj(x)",
        "+ gate, up = self.gate_up_proj(x).chunk(2, dim=-1)",
    ],
}


class UnfusedProjections(Rule):
    """One GEMM for q, k and v, one for gate and up, where that is faster."""

    id = "TL112"
    slug = "unfused-projections"
    title = "One GEMM for projections of one input"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge attention's and the MLP's input projections."""
        need_model(facts)
        parts = {component for family in FAMILIES for component in family.components}
        mine = [row for row in gemms_of(facts) if row.component in parts]
        if not mine:
            raise absent("No projection to q, k, v, gate or up was recognised.")
        if all(row.m is None for row in mine):
            raise could_not_run(f"No projection has a shape: {for_shapes(mine)}.")
        candidates, said, untold = [], [], False
        for family in FAMILIES:
            groups = groups_of(facts, family)
            off_grid = groups[0].off_grid if groups else []
            if off_grid:
                said.append(
                    f"{capital(family.words)} are {listed([str(size) for size in off_grid])} wide, off the"
                    " 16-byte grid: their own width comes first (TL102)."
                )
            elif groups:
                candidates.append(_candidate(facts, family, groups))
            elif any(row.component in family.components for row in mine):
                why, judged = why_none(facts, family)
                said.append(why)
                untold |= not judged
        if untold and not candidates:
            raise could_not_run(" ".join(said))
        return candidates, " ".join(said)


def _candidate(facts: StepFacts, family: SharedInput, groups: Sequence[Group]) -> Candidate:
    found = [one for group in groups if (one := fused_saving(facts, group)) is not None]
    predicted, split = len(found) == len(groups), split_ms(facts, groups)
    added = f"The gradients' concatenation adds {ms(split)}." if split else ""
    rows = {part.row.id: part.row for group in groups for part in group.parts}
    forward = groups[0]
    many = sum(part.count for part in forward.parts)
    words = family.words if many > 2 or family.one != "qkv_proj" else "k and v"
    calls = "a single call" if forward.calls == 1 else f"each of {count(forward.calls)} calls"
    sums = "The sums of the parts' input gradients fall away as well; they are not counted."
    return Candidate(
        name=f"one GEMM for {words}",
        title=f"Compute {words} in one GEMM of {forward.width} columns instead of {many} GEMMs",
        components=sorted({row.component for row in rows.values()}),
        saw=(
            f"{capital(words)} are {many} GEMMs of one input in {calls}: {forward.apart}."
            f" {took(list(rows.values()), facts)}{', gradients included' if len(groups) > 1 else ''}."
        ),
        change={"projections": [many, 1]},
        fix=_FIX[words],
        caveats=[
            "Tensor parallelism splits each of them by itself: keep that order in the one weight.",
            *([sums] if any(group.role == "dgrad" for group in groups) else []),
        ],
        counts="kernels",
        confidence="medium" if predicted else "low",
        effort="code",
        bounds=[bound_of_row(row, gpu=facts.gpu, fewer_kernels=True) for row in rows.values()],
        saving=minus(total([one for one, _ in found]), mid_ms=split) if predicted else None,
        how=" ".join([*(how for _, how in found), added]).strip() if predicted else "",
        evidence={
            "fused_columns": forward.width,
            "groups": [
                {"role": group.role, "now_us": group.time_us, "fused": list(group.sizes[:3])}
                for group in groups
            ],
        },
        parameter_delta=0,
        flops_delta=0.0,
    )
