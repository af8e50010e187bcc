"""TL123: rows of experts without a token: padding, and the rest of a tile that they end within."""

from __future__ import annotations

from dataclasses import replace

from tracelens.numbers import percent
from tracelens.results import GemmRow, GpuInfo
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import Candidate, could_not_run, not_applicable
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import time_of
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.mixtures import evidence, need_mixture, saw, unfilled
from tracelens.step.experts import Mixture

#: Rows without a token have to be this share of the rows or of the GEMMs' time to be worth a word.
_WORTH_FRAC = 0.1


class ExpertTiles(Rule):
    """Experts' rows in whole tiles of their grouped GEMM."""

    id = "TL123"
    slug = "expert-tiles"
    title = "Experts' rows in whole tiles"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge the rows that the router fills, then the tiles of groups of unequal size."""
        mixture = need_mixture(facts)
        if padded := _padded(facts, mixture):
            return [padded], ""
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
            f"{saw(facts, mixture)} Their tiles have {tile} rows: on average {percent(empty)} of the time"
            " of these GEMMs goes into rows that hold no token. Each expert's own rows are in no trace."
        )
        if empty < _WORTH_FRAC or rows < tile:
            return [], seen  # of experts with less than a tile, rounding would leave some without a row
        rounded = Candidate(
            title=f"Round each expert's rows ({rows} on average) to whole tiles of {tile}",
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
            bound_of="of the experts' grouped GEMMs the rows of tiles that hold no token, on average",
            evidence=evidence(mixture) | {"tile_m": tile, "empty_frac": empty},
            parameter_delta=0,
        )
        return [rounded], ""


def _padded(facts: StepFacts, mixture: Mixture) -> Candidate | None:
    """Rows beyond those of the router's choices: all tokens in each expert, a capacity factor, or padding."""
    rows, capacity, known = mixture.rows_per_token, mixture.capacity, facts.model.top_k.value
    chosen = known or (1 if mixture.every_token else None)
    exact = mixture.how == "batched" or mixture.local == mixture.experts  # all ranks', or all experts' rows
    exact &= mixture.how != "loop" or mixture.every_token
    if not chosen or not rows or not capacity or not exact:
        return None
    empty, held = 1 - chosen / rows, round(capacity * chosen / rows)
    if empty < _WORTH_FRAC:
        return None
    found = Candidate(
        name="rows for tokens alone",
        title=f"Leave out rows without a token: {percent(empty)} of the experts' {round(capacity)} rows",
        saw=(
            f"{saw(facts, mixture)} The router chooses {chosen} for a token, so {percent(empty)} of the"
            f" rows or more hold none."
        ),
        why="padding",
        change={"capacity": [round(capacity), held]},
        fix=[
            f"- capacity_factor = {rows / chosen:.3g}   # or rows padded to a multiple, by type",
            "+ out = torch.nn.functional.grouped_mm(rows, weights, offs=offsets)   # dropless: tokens alone",
        ],
        caveats=[
            "A smaller capacity factor drops tokens of the fullest experts; grouped GEMMs drop none.",
            "A grouped GEMM computes whole tiles of each expert's rows: half a tile more for each.",
        ],
        confidence="medium" if known else "low",
        effort="code",
        bounds=[_without(row, empty, facts.gpu) for row in mixture.rows],
        bound_of="of the experts' GEMMs the rows that no token of the router's choice fills",
        evidence=evidence(mixture) | {"top_k": known, "empty_frac": empty},
        parameter_delta=0,
        flops_delta=-empty,
    )
    return _of_every_token(found, facts, mixture) if mixture.every_token else found


def _of_every_token(found: Candidate, facts: StepFacts, mixture: Mixture) -> Candidate:
    """The same where nothing is padded: each expert computes all tokens, and a mask takes out most."""
    known, empty = facts.model.top_k.value, found.evidence["empty_frac"]
    choice = (
        f"The router chooses {known} for a token: " if known else "Where the router chooses 1 for a token, "
    )
    return replace(
        found,
        name="tokens in the experts that they chose",
        title=f"Compute each token in the experts that it chose, not in all {mixture.experts}",
        saw=f"{saw(facts, mixture)} {choice}{percent(empty)} of the rows are of experts it did not choose.",
        why="all tokens",
        change={"tokens_of_an_expert": ["all", "those that chose it"]},
        fix=[
            "- out = sum(weights[:, [e]] * expert(x) for e, expert in enumerate(experts))",
            "+ out = torch.nn.functional.grouped_mm(x[order], stacked, offs=offsets)   # sorted by expert",
        ],
        caveats=["A router that weighs all experts and chooses none needs every row.", *found.caveats[1:]],
        bounds=[_without(row, empty, facts.gpu, "tokens that did not choose it") for row in mixture.rows],
        bound_of="of the experts' GEMMs the rows of tokens that did not choose the expert",
    )


def _without(row: GemmRow, empty: float, gpu: GpuInfo, why: str = "rows without a token") -> Bound:
    """What can go of the row's time with a share of its rows: they are computed and moved, weights stay."""
    m, n, k = row.m or 0, row.n or 0, row.k or 0
    rows, weights = (k * (m + n), m * n) if row.role == "wgrad" else (m * (n + k), n * k)
    groups = row.groups.number if row.groups is not None else 1
    moved = 1 - empty * rows / max(rows + groups * weights, 1)
    flops, moves = (row.flops and (1 - empty) * row.flops, row.bytes and moved * row.bytes)
    held = replace(row, flops=flops, bytes=moves)
    return replace(bound_of_row(held, gpu=gpu, cap_frac=empty, cap_why=f"({why})"), row=row)
