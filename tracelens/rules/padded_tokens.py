"""TL127: linear layers that compute tokens of padding, which packed attention or a padding operator tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracelens.numbers import percent
from tracelens.results import GemmRow
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import gemms_of, packed_rows, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.engine.trials import GAIN_FRAC

#: Linear layers that run over every token.
_LINEAR = frozenset({"attention.qkv", "attention.output", "mlp.up", "mlp.gate", "mlp.down", "logits"})
#: Calls of packed attention and of the linear layer behind it: further apart, they are not the same batches.
_SAME_FRAC = 0.05


class PaddedTokens(Rule):
    """Linear layers over tokens alone, without padding."""

    id = "TL127"
    slug = "padded-tokens"
    title = "Linear layers without tokens of padding"
    of_nvidia = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Compare the tokens of packed attention, or of padded batches, with the rows of linear layers."""
        heads = facts.model.heads.value
        packed = [
            row
            for row in facts.gemms
            if row.kind == "attention" and row.phase == "forward" and row.attention is not None
            and row.attention.tokens is not None and row.attention.heads == heads
        ]  # fmt: skip
        if not packed and not facts.padded:
            if any(row.attention is None for row in packed_rows(facts)):
                raise could_not_run("How many tokens the packed attention has is not recorded.")
            raise absent(
                "Neither packed attention nor an operator that pads a batch was recognised, which alone tell"
                " tokens from padding."
            )
        linear = [row for row in gemms_of(facts) if row.component in _LINEAR]
        calls = _forward_calls(linear, facts.model.hidden.value)
        if not calls:
            raise could_not_run(f"No linear layer shows how many rows it has: {for_shapes(linear)}.")
        held = _of_packed(packed, calls) if packed else {one.rows: one.tokens for one in facts.padded}
        calls = {rows: many for rows, many in calls.items() if rows in held}
        if not calls:
            raise absent("No linear layer has as many rows as a batch that an operator pads.")
        many = sum(calls.values())
        rows = sum(size * of for size, of in calls.items()) / many
        tokens = sum(held[size] * of for size, of in calls.items()) / many
        mean = " on average" if packed or len(calls) > 1 else ""
        where = "packed attention" if packed else "the batches that an operator pads to as many"
        said = f"Linear layers have {rows:,.0f} rows, and {where} {tokens:,.0f} tokens{mean}."
        if max(map(_tokens, packed), default=0) > max(calls) or tokens >= rows:
            raise passed(said)
        empty = {size: 1 - held[size] / size for size in calls}
        bounds = [
            Bound(row, empty[size] * row.time_ms_per_step) for row in linear if (size := _rows(row)) in empty
        ]
        return [_candidate(facts, bounds, rows, tokens, said)], ""


def _tokens(row: GemmRow) -> int:
    return (row.attention.tokens if row.attention is not None else None) or 0


def _rows(row: GemmRow) -> int | None:
    """Rows of the batch that a linear layer runs over: in the gradient of its weight they are summed up."""
    return row.k if row.role == "wgrad" else row.m


def _forward_calls(linear: Sequence[GemmRow], hidden: int | None) -> dict[int, float]:
    """Rows -> calls per step in the forward, of the linear layer behind attention or else the longest one.

    Those of another hidden size, as of a vision tower, are left out.
    """
    found: dict[str, dict[int, float]] = {}
    times: dict[str, float] = {}
    for row in linear:
        mine = hidden is None or hidden in (row.n, row.k)
        if row.role in (None, "forward") and row.m and mine and row.calls_per_step > 0:
            sizes = found.setdefault(row.component, {})
            sizes[row.m] = sizes.get(row.m, 0.0) + row.calls_per_step
            times[row.component] = times.get(row.component, 0.0) + row.time_ms_per_step
    times.pop("logits", None)
    return found.get("attention.output") or found.get(max(times, key=lambda one: times[one], default=""), {})


def _of_packed(packed: Sequence[GemmRow], calls: Mapping[int, float]) -> dict[int, float]:
    """Rows -> tokens: which batch a call of attention is of is not told, so all are as full as the mean."""
    ran, many = sum(row.calls_per_step for row in packed), sum(calls.values())
    if len(calls) > 1 and abs(ran - many) > _SAME_FRAC * many:
        raise could_not_run(
            f"Linear layers have {len(calls)} numbers of rows, and packed attention is not seen for each."
        )
    tokens = sum(_tokens(row) * row.calls_per_step for row in packed) / ran if ran else 0.0
    rows = sum(size * of for size, of in calls.items()) / many
    return {size: size * tokens / rows for size in calls}


def _candidate(facts: StepFacts, bounds: Sequence[Bound], rows: float, tokens: float, said: str) -> Candidate:
    empty = 1 - tokens / rows
    return Candidate(
        name="packed sequences",
        title=f"Pack sequences: {percent(empty)} of the rows of the linear layers are padding",
        saw=f"{said} {took([one.row for one in bounds], facts)} over all of them.",
        change={"rows": [round(rows), round(tokens)]},
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
        bounds=bounds,
        bound_of="of these GEMMs the rows that hold no token",
        evidence={"rows": rows, "tokens": tokens, "empty_frac": empty},
        parameter_delta=0,
        least=GAIN_FRAC,
    )
