"""TL123: rows of experts that end within a tile, the rest of which is computed and thrown away."""

from __future__ import annotations

from tracelens.numbers import percent
from tracelens.rules.engine.candidate import Candidate, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import time_of
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.mixtures import evidence, need_mixture, saw, unfilled

#: Rows without a token have to be this share of the grouped GEMMs' time to be worth a word.
_WORTH_FRAC = 0.1


class ExpertTiles(Rule):
    """Experts' rows in whole tiles of their grouped GEMM."""

    id = "TL123"
    slug = "expert-tiles"
    title = "Experts' rows in whole tiles"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the grouped GEMMs whose groups are of unequal size."""
        mixture = need_mixture(facts)
        if mixture.how != "grouped":
            raise not_applicable(
                "No grouped GEMM of experts: where each has GEMMs of its own TL109 judges them."
            )
        bounds = [bound for row in mixture.rows if (bound := unfilled(facts, row)) is not None]
        if not bounds:
            raise could_not_run("The names of the experts' grouped kernels tell no tile.")
        tile, rows = max(bound.row.tile_m or 0 for bound in bounds), round(mixture.capacity or 0)
        empty = sum(bound.ms for bound in bounds) / max(time_of([bound.row for bound in bounds]), 1e-9)
        seen = (
            f"{saw(facts, mixture)} Their tiles have {tile} rows: in the mean {percent(empty)} of the time"
            " of these GEMMs goes into rows that hold no token. Each expert's own rows are in no trace."
        )
        if empty < _WORTH_FRAC or rows < tile:
            return [], seen  # of experts with less than a tile, rounding would leave some without a row
        rounded = Candidate(
            title=f"Round each expert's rows ({rows} in the mean) to whole tiles of {tile}",
            saw=seen,
            change={"rows_of_an_expert": [rows, round(rows / tile) * tile]},
            fix=[f"+ each expert's rows up or down to a multiple of {tile}, by the router's scores"],
            caveats=[
                # SonicMoE, arXiv 2512.14080, section on token rounding.
                "Some tokens get other experts than the router chose: compare the loss.",
                "Padding rows with zeros instead saves nothing, for the tile computes them either way.",
            ],
            confidence="low",
            effort="code",
            bounds=bounds,
            bound_of="of the experts' grouped GEMMs the rows of tiles that hold no token, in the mean",
            evidence=evidence(mixture) | {"tile_m": tile, "empty_frac": empty},
            parameter_delta=0,
        )
        return [rounded], ""
