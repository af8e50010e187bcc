"""A mixture of experts as its products show it: how many experts a rank has, how they run, their loads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.results import GemmRow, ModelDims
from tracelens.sums import summed

#: A mean number of rows per token this near to a whole one is that number of experts per token.
_WHOLE = 0.01


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of one rank. Shared experts, which see every token, are left out."""

    how: str  # loop: a product for each expert | batched: one of equal parts | grouped: one of unequal parts
    experts: int | None  # that the router chooses from
    local: int | None  # that this rank computes
    rows: tuple[GemmRow, ...]  # the products of experts, of every role
    capacity: float | None  # rows of one expert in one product: the mean
    least: int | None  # rows of the emptiest and of the fullest expert; None where groups hide them
    most: int | None
    rows_per_token: float | None  # experts per token times the capacity factor, as far as rows show it
    ranks: int | None  # that share the experts, where products show it
    gated: (
        bool | None
    )  # an expert has a gate: two products of its width before the one back, or one twice as wide

    @property
    def row_multiple(self) -> int | None:
        """What each expert's rows are padded to: 1 = nothing, else 16 to 256; None = not known.

        Equal parts of a batch can be a capacity as well, and sizes of groups are in no trace.
        """
        if self.how != "loop" or self.top_k is not None:
            return 1 if self.top_k is not None and self.how != "grouped" else None
        common = math.gcd(*(row.m for row in self.rows if _is_forward(row) and row.m))
        found = min(256, common & -common)
        return found if found >= 16 else 1

    @property
    def top_k(self) -> int | None:
        """Experts per token where the rows are a whole multiple of the tokens (no padding, none dropped)."""
        if self.rows_per_token is None:
            return None
        near = round(self.rows_per_token)
        return near if near >= 1 and abs(self.rows_per_token - near) <= _WHOLE * near else None

    @property
    def every_token(self) -> bool:
        """Does each expert of a loop compute all tokens? Equal parts of a batch can be a capacity as well."""
        return self.how == "loop" and self.experts is not None and self.top_k == self.local == self.experts


def mixture_of(rows: Sequence[GemmRow], dims: ModelDims, *, tokens: int | None) -> Mixture | None:
    """None where the step has no product of experts besides those of a shared one.

    Products that take all tokens are of experts where each layer has as many as its router chooses from.
    """
    of_experts = [row for row in rows if row.kind == "gemm" and row.component == "moe.experts"]
    if not of_experts:
        return None
    how, apart, experts = _how(of_experts, tokens), tokens, dims.experts.value
    every_token = how is None  # a shared expert's products, or those of experts that compute all tokens
    if how is None:
        how, apart = "loop", None
    mine = [row for row in of_experts if _runs(row, apart) == how]
    forward = [row for row in mine if _is_forward(row) and row.m is not None]
    down = [row for row in forward if row.n == dims.hidden.value] or forward
    if every_token and ((experts or 0) < 2 or _called(down, rows, dims) != experts):
        return None
    # of one row each, the parts of a batch can be rows with weights gathered for them, and no experts
    gathered = how == "batched" and all(row.m == 1 for row in down)
    local = None if gathered else _local(how, down, rows, dims)
    loads = [(row.m or 0, row.calls_per_step) for row in down if how != "grouped" and not gathered]
    calls = sum(weight for _, weight in loads)
    capacity = sum(size * weight for size, weight in loads) / calls if calls else None
    if how == "grouped" and (found := [(row.m, row.groups) for row in down]):
        sizes = [size / told.number for size, told in found if size and told and told.axis == "m"]
        capacity = sum(sizes) / len(sizes) if sizes else None
    ranks = experts // local if experts and local and experts % local == 0 and how != "loop" else None
    shown = capacity * local / tokens if capacity and local and tokens else None
    return Mixture(
        how=how,
        experts=experts,
        local=local,
        rows=tuple(mine),
        capacity=capacity,
        least=min((size for size, _ in loads), default=None),
        most=max((size for size, _ in loads), default=None),
        rows_per_token=shown,
        ranks=ranks,
        gated=_gated(forward, dims),
    )


def _gated(forward: Sequence[GemmRow], dims: ModelDims) -> bool | None:
    f, h = dims.ffn.value, dims.hidden.value
    if f is None or h is None or f == h:
        return None
    if any(row.n == 2 * f for row in forward):
        return True
    calls = {size: sum(row.calls_per_step for row in forward if row.n == size) for size in (f, h)}
    return calls[f] >= 1.5 * calls[h] if calls[f] and calls[h] else None


def _how(rows: Sequence[GemmRow], tokens: int | None) -> str | None:
    """How most of the experts' time runs; None where all products are those of a shared expert."""
    times = summed((_runs(row, tokens), row.time_ms_per_step) for row in rows)
    times.pop("shared", None)
    return max(times, key=lambda kind: times[kind]) if times else None


def _runs(row: GemmRow, tokens: int | None) -> str:
    if row.groups is not None:
        return "grouped"
    if (row.batch or 1) > 1:
        return "batched"
    size = row.k if row.role == "wgrad" else row.m
    return "shared" if tokens is not None and size == tokens else "loop"


def _is_forward(row: GemmRow) -> bool:
    return row.role in (None, "forward") and row.phase in ("forward", "other")


def _local(how: str, down: Sequence[GemmRow], rows: Sequence[GemmRow], dims: ModelDims) -> int | None:
    """Experts on this rank: the batch, the groups; in a loop its share, or calls for each of the router."""
    if how == "batched":
        return next((row.batch for row in down), None)
    if how == "grouped":
        found = next((row.groups for row in down), None)
        return found.number if found is not None else None
    ranks = dims.expert_parallel.value
    if ranks and dims.experts.value and dims.experts.value % ranks == 0:
        return dims.experts.value // ranks
    return _called(down, rows, dims)


def _called(down: Sequence[GemmRow], rows: Sequence[GemmRow], dims: ModelDims) -> int | None:
    """Experts in a loop by their calls for each of the router."""
    routed = sum(
        row.calls_per_step
        for row in rows
        if row.component == "moe.router" and row.kind == "gemm" and _is_forward(row)
        and row.n == dims.experts.value
    )  # fmt: skip
    calls = sum(row.calls_per_step for row in down if row.n == dims.hidden.value)
    if not routed or not calls:
        return None
    per_layer = calls / routed
    whole = round(per_layer)
    # An expert that no token chose runs no product: then the calls are no whole number of experts.
    return whole if whole >= 1 and abs(per_layer - whole) < 0.01 else None
