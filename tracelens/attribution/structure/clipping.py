"""Gradient clipping without a name: norms of all gradients, then their common scale."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.attribution.structure.units import Units

_NORMS = frozenset({"_foreach_norm", "linalg_vector_norm", "norm"})
_SCALES = frozenset({"_foreach_mul_", "mul_"})
_BETWEEN = frozenset(
    {"stack", "cat", "add", "reciprocal", "mul", "div", "clamp", "clamp_max", "minimum", "to", "copy_"}
    | {"_to_copy", "isfinite", "isnan", "isinf", "logical_or", "linalg_vector_norm", "norm", "_foreach_norm"}
    | {"lift_fresh", "expand", "item", "_local_scalar_dense", "fill_"}
)


def clipping(units: Units, phase: Sequence[str]) -> list[int]:
    """Units of ``torch.nn.utils.clip_grad_norm_``: outside forward and backward, from norms to scaling.

    One norm alone is none: the gradients' norms are many (or one ``_foreach_norm`` of all of them), and
    only the scaling that follows them proves that something is clipped.
    """
    out: list[int] = []
    row = 0
    while row < len(units):
        name = units.kinds[units.kind[row]].name
        if phase[row] not in ("other", "optimizer") or name not in _NORMS:
            row += 1
            continue
        end = row
        while end < len(units) and units.kinds[units.kind[end]].name in _BETWEEN | _NORMS:
            end += 1
        middle = end
        while end < len(units) and units.kinds[units.kind[end]].name in _SCALES:
            end += 1
        norms = [r for r in range(row, middle) if units.kinds[units.kind[r]].name in _NORMS]
        many = len(norms) > 1 or units.kinds[units.kind[row]].name == "_foreach_norm"
        if end > middle and many:
            out.extend(range(row, end))
        row = max(end, row + 1)
    return out
