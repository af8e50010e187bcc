"""What a layer of experts would take with another rounding, capacity, load, EP degree or top-k."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tracelens.gemm.predict.experts import ROW_ALIGNMENT, exponent_of, predict_experts
from tracelens.gemm.predict.words import experts as words
from tracelens.hardware import Gpu
from tracelens.results.experts import ExpertsChange, ExpertsPrediction

#: A router without a balancing loss, as published loads are often modelled, and what it costs.
_UNEVEN = 1.2
#: Of the mean load: GShard's and Switch Transformer's usual factor (arXiv 2101.03961, section 2.2).
_CAPACITY = 1.25
_ROW_MULTIPLES = (16, 128)


def experts_changes(one: ExpertsPrediction, *, gpu: Gpu) -> tuple[ExpertsChange, ...]:
    """What changes near this layer would do to it, forward or backward as it is."""
    return tuple(_judged(one, name, gpu, **asked) for name, asked in _changes(one))


def _changes(one: ExpertsPrediction) -> Iterator[tuple[str, dict[str, Any]]]:
    layer, load = one.layer, one.load
    for multiple in sorted({*_ROW_MULTIPLES, ROW_ALIGNMENT[one.dtype]}):
        if multiple > one.row_multiple:
            yield words.rows_padded_to(multiple), {"row_multiple": multiple}
    if exponent_of(load) is None:
        yield words.power_law(_UNEVEN), {"load": f"power-law:{_UNEVEN}"}
    else:
        yield words.BALANCED, {"load": "balanced"}
        yield words.capacity_factor(_CAPACITY), {"capacity": _CAPACITY}
    for ep in (2 * layer.ep, layer.ep // 2):
        if ep >= 1 and layer.experts % ep == 0 and one.tokens * ep % layer.ep == 0:
            yield words.ep_degree(ep), {"ep": ep}
    for top_k in (layer.top_k - 1, layer.top_k + 1):
        if 1 <= top_k <= layer.experts:
            yield words.top_k(top_k), {"top_k": top_k}


def _judged(one: ExpertsPrediction, name: str, gpu: Gpu, **asked: Any) -> ExpertsChange:
    layer, tokens = one.layer, one.tokens
    now = {"row_multiple": one.row_multiple, "load": one.load, "ep": layer.ep, "top_k": layer.top_k}
    other = replace(layer, **{key: asked[key] for key in ("ep", "top_k") if key in asked})
    then = predict_experts(
        other,
        tokens * other.ep // layer.ep,
        gpu=gpu,
        dtype=one.dtype,
        direction=one.direction,
        load=asked.get("load", one.load),
        row_multiple=asked.get("row_multiple", one.row_multiple),
        capacity=asked.get("capacity", one.capacity),
    )
    known = one.time_us.mid and then.time_us.mid
    ratio = then.time_us.mid / one.time_us.mid if known else None  # type: ignore[operator]
    change = {key: [now.get(key, one.capacity), value] for key, value in asked.items()}
    return ExpertsChange(name, change, then, ratio)
