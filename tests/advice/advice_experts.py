"""Rows of mixtures of experts, made up and timed by the predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.advice.advice_rows import gemm
from tests.advice.advice_steps import H100, Shape, dims_of, rows_of, spread
from tracelens.gemm.predict import predict_gemm
from tracelens.results import GemmRow, ModelDims
from tracelens.results.gemm import Axis
from tracelens.results.row_sizes import Groups

_LAYOUT = {"forward": "TN", "dgrad": "NN", "wgrad": "NT"}


@dataclass(frozen=True, slots=True)
class Mix:
    """``x.f`` is the width of one expert; ``loads`` are rows of each expert of this rank."""

    x: Shape
    experts: int
    loads: Sequence[int]
    how: str = "batched"  # loop | batched | grouped
    ranks: int | None = 1

    @property
    def dims(self) -> ModelDims:
        return spread(dims_of(self.x), experts=self.experts, expert_parallel=self.ranks)


def mixed_rows(mix: Mix) -> list[GemmRow]:
    """The step's rows: attention and logits of ``mix.x``, and experts with a gate instead of its MLP."""
    x = mix.x
    kept = [row for row in rows_of(x) if not row.component.startswith("mlp.")]
    rows = [replace(row, id=f"g{number}") for number, row in enumerate(kept, 1)]
    tokens = x.b * x.s
    rows.append(_row(len(rows) + 1, "moe.router", "forward", tokens, mix.experts, x.h, calls=x.layers))
    for into, out, times in ((x.h, x.f, 2), (x.f, x.h, 1)):
        for role in ("forward", "dgrad", "wgrad"):
            for m, n, k, batch, calls, axis in _products(mix, role, into, out):
                row = _row(
                    len(rows) + 1, "moe.experts", role, m, n, k, batch=batch, calls=calls * times * x.layers,
                    groups=len(mix.loads) if axis else 1,
                )  # fmt: skip
                rows.append(replace(row, groups=Groups(axis, len(mix.loads)) if axis else None))
    return rows


def _products(
    mix: Mix, role: str, into: int, out: int
) -> list[tuple[int, int, int, int, float, Axis | None]]:
    """(M, N, K, batch, calls in a layer, axis of groups) of one linear layer of the experts."""

    def sized(rows: int) -> tuple[int, int, int]:
        return {"forward": (rows, out, into), "dgrad": (rows, into, out), "wgrad": (out, into, rows)}[role]

    if mix.how == "batched":
        (rows,) = set(mix.loads)
        return [(*sized(rows), len(mix.loads), 1.0, None)]
    if mix.how == "grouped":
        return [(*sized(sum(mix.loads)), 1, 1.0, "k" if role == "wgrad" else "m")]
    return [(*sized(rows), 1, float(list(mix.loads).count(rows)), None) for rows in dict.fromkeys(mix.loads)]


def _row(
    number: int, component: str, role: str, m: int, n: int, k: int, *, batch: int = 1, calls: float,
    groups: int = 1,
) -> GemmRow:  # fmt: skip
    layout = _LAYOUT[role]
    deep = role == "wgrad"
    sizes = (m, n, -(-k // groups)) if deep else (-(-m // groups), n, k)
    found = predict_gemm(*sizes, batch=max(batch, groups), gpu=H100, layout=layout)
    return gemm(number, m, n, k, component=component, role=role, layout=layout, batch=batch, calls=calls,
                time_us=1.05 * (found.time_us.mid or 100.0))  # fmt: skip
