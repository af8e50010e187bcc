"""TL127: linear layers that compute tokens of padding, which packed attention leaves out."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import percent
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import gemms_of, took
from tracelens.rules.engine.rule import Rule

#: Linear layers that run over every token.
_LINEAR = frozenset({"attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down", "logits"})
#: A last sequence cut short is no padding to write of.
_WORTH_FRAC = 0.02


class PaddedTokens(Rule):
    """Linear layers over tokens alone, without padding."""

    id = "TL127"
    slug = "padded-tokens"
    title = "Linear layers without tokens of padding"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Compare the tokens of packed attention with the rows of the linear layers."""
        heads = facts.model.heads.value
        packed = [
            row
            for row in facts.gemms
            if row.kind == "attention" and row.phase == "forward" and row.attention is not None
            and row.attention.tokens is not None and row.attention.heads == heads
        ]  # fmt: skip
        if not packed:
            raise absent("No packed attention was recognised, which alone tells tokens from padding.")
        linear = [row for row in gemms_of(facts) if row.component in _LINEAR]
        rows = _most_rows(linear)
        if rows is None:
            raise could_not_run(f"No linear layer shows how many rows it has: {for_shapes(linear)}.")
        calls = sum(row.calls_per_step for row in packed)
        held = sum(_tokens(row) * row.calls_per_step for row in packed) / calls if calls else 0.0
        empty = 1 - held / rows
        said = f"Linear layers have {rows:,} rows, and packed attention {held:,.0f} tokens in the mean."
        if max(map(_tokens, packed)) > rows or empty < _WORTH_FRAC:
            raise passed(said)
        over = [row for row in linear if rows in (row.m, row.k)]
        return [_candidate(facts, over, rows, held, said)], ""


def _tokens(row: GemmRow) -> int:
    return (row.attention.tokens if row.attention is not None else None) or 0


def _most_rows(linear: Sequence[GemmRow]) -> int | None:
    """Rows of the forward that most of its time has."""
    times: dict[int, float] = {}
    for row in linear:
        if row.role in (None, "forward") and row.m is not None and row.component != "logits":
            times[row.m] = times.get(row.m, 0.0) + row.time_ms_per_step
    return max(times, key=lambda size: times[size], default=None)


def _candidate(facts: StepFacts, over: Sequence[GemmRow], rows: int, held: float, said: str) -> Candidate:
    empty = 1 - held / rows
    return Candidate(
        name="packed sequences",
        title=f"Pack sequences: {percent(empty)} of the rows of the linear layers are padding",
        saw=f"{said} {took(over, 'GEMM shape', facts)} over all of them.",
        change={"rows": [rows, round(held)]},
        fix=[
            "- batch = pad(sequences)                  # one row for each sequence",
            "+ batch = DataCollatorWithFlattening()    # Hugging Face: one row, with position_ids",
        ],
        caveats=[
            "Sequences of like length in a batch (group_by_length) leave most of it out, too.",
            "Kernels between the GEMMs run over the padding as well and are not counted.",
        ],
        confidence="medium",
        effort="code",
        bounds=[Bound(row, empty * row.time_ms_per_step) for row in over],
        bound_of="of these GEMMs the rows that hold no token",
        evidence={"rows": rows, "tokens": held, "empty_frac": empty},
        parameter_delta=0,
    )
