"""From a GEMM's M, N or K to the model dimension it is made of, and to the change that fits the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.numbers import round_up
from tracelens.results import GemmRow, ModelDims
from tracelens.rules.engine.facts import StepFacts
from tracelens.step.alignment import grid_elements

#: The paper's target (arXiv 2401.14489): 64 fp16 elements = 128 bytes, one cache line.
TARGET = 64
#: How a dimension is written in ``GemmRow.m_expr`` and its fellows -> the parameter that sets it.
_PARAMETER = {
    "v": "vocab_size",
    "f": "ffn", "2*f": "ffn",
    "h": "hidden", "3*h": "hidden",
    "s": "sequence", "b*s": "sequence",
    "d": "head_dim", "kv*d": "head_dim", "2*kv*d": "head_dim", "(a+2*kv)*d": "head_dim",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """A parameter of the model and where to move it; ``parameter`` None = no model dimension fits."""

    parameter: str | None
    now: int
    then: int
    of_data: bool = False  # no weight has it: a sequence, a window, the rows of a batch


def parameter_of(row: GemmRow, letter: str) -> str | None:
    """The model parameter behind dimension ``letter`` ("m", "n", "k") of ``row``, or None."""
    expression = {"m": row.m_expr, "n": row.n_expr, "k": row.k_expr}[letter]
    return _PARAMETER.get(expression) if expression is not None else None


def value_of(parameter: str, model: ModelDims) -> int | None:
    """The parameter's present value."""
    known = {
        "vocab_size": model.vocab,
        "ffn": model.ffn,
        "hidden": model.hidden,
        "sequence": model.sequence,
        "head_dim": model.head_dim,
    }[parameter]
    return known.value


def _is_of_data(row: GemmRow, letter: str) -> bool:
    """Is dimension ``letter`` that of activations alone? Both operands of a batched product are such."""
    if row.component in ("attention.scores", "attention.values"):
        return True
    if (row.batch or 1) > 1 and row.component != "moe.experts":
        return True
    return letter == ("k" if row.role == "wgrad" else "m")


def target(row: GemmRow, letter: str, size: int, *, facts: StepFacts) -> Target:
    """Where to move the parameter behind one off-grid dimension.

    A model dimension goes to the next multiple of 64. A size that no model dimension explains goes to the
    next multiple of 16 bytes: a 4-wide classifier needs aligned rows, not sixteen times the work.
    """
    parameter = parameter_of(row, letter)
    now = value_of(parameter, facts.model) if parameter is not None else None
    if parameter is None or now is None or now < 1:
        grid = grid_elements(row.dtype) or 8
        return Target(None, size, round_up(size, grid), _is_of_data(row, letter))
    then = round_up(now, TARGET)
    heads = facts.model.heads.value
    if parameter == "hidden" and heads is not None and heads > 0:
        # hidden = heads * head_dim in most models: prefer a multiple that the heads divide, if one is near.
        near = range(then, then + then // 4 + 1, TARGET)
        then = next((size for size in near if size % heads == 0), then)
    return Target(parameter, now, then)


def of_mlp(row: GemmRow, model: ModelDims) -> Target | None:
    """The size that keeps a GEMM of the MLP off the grid, where no shape but the model's sizes are known."""
    grid, sizes = grid_elements(row.dtype) or 8, {"ffn": model.ffn.value, "hidden": model.hidden.value}
    off = [name for name, size in sizes.items() if size is None or size % grid]
    if not row.component.startswith("mlp.") or off != ["ffn"] or (now := sizes["ffn"]) is None:
        return None
    return Target("ffn", now, round_up(now, TARGET))


def flops_growth(
    rows: Sequence[GemmRow], *, goal: Target, sizes: frozenset[int], more: Sequence[Target] = ()
) -> float | None:
    """Added operations of ``rows``, as a fraction, when ``goal`` is applied; None where counts are unknown.

    Every M, N or K that the parameter sets, or that has one of ``sizes`` where no parameter is known,
    grows by then / now. ``more`` are sizes without a parameter that change with it.
    """
    others = {one.now: one.then / one.now for one in more}
    before = after = 0.0
    for row in rows:
        if row.flops is None:
            return None
        scale = 1.0
        for letter, size in (("m", row.m), ("n", row.n), ("k", row.k)):
            parameter = parameter_of(row, letter)
            hit = parameter == goal.parameter if goal.parameter and parameter else size in sizes
            scale *= goal.then / goal.now if hit else others.get(size or 0, 1.0)
        before += row.calls_per_step * row.flops
        after += row.calls_per_step * row.flops * scale
    return after / before - 1.0 if before else None
