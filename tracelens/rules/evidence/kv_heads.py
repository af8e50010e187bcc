"""The GEMMs that make keys and values, and other numbers of key-value heads."""

from __future__ import annotations

import math

from tracelens.config.model_config import changed
from tracelens.results import GemmRow
from tracelens.rules.engine.candidate import absent, could_not_run
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import need_dimensions, not_known
from tracelens.rules.engine.trials import Trial

#: Other numbers of key-value heads that are tried: from a quarter to four times the present one.
_REACH = 4


def need_kv_rows(facts: StepFacts) -> list[GemmRow]:
    """GEMMs with keys or values in their output; raises ``Answer`` where none is known.

    With shared heads, those of queries alone are told by their width.
    """
    need_dimensions(facts)
    model = facts.model
    shown = [row for row in facts.gemms if row.kind == "attention" or row.component.startswith("attention.")]
    if not shown:
        raise absent("No attention was recognised in the step.")
    heads, kv_heads, size = model.heads.value or 0, model.kv_heads.value or 0, model.head_dim.value or 0
    if heads <= 0 or kv_heads <= 0:
        if not any(row.kind == "attention" for row in shown):
            raise could_not_run(
                "Attention is not fused, and separate score GEMMs do not show how many heads share a key:"
                " use scaled_dot_product_attention to have it judged."
            )
        raise could_not_run(not_known("number of key-value heads", model.kv_heads))
    queries = heads * size if kv_heads != heads and size else None
    rows = [
        row
        for row in facts.gemms
        if row.component == "attention.qkv" and row.kind == "gemm" and row.n is not None
        and (queries is None or queries not in _outputs(row) or 2 * kv_heads == heads)
    ]  # fmt: skip
    if not rows:
        raise absent("No GEMM of the step is known to make keys and values.")
    return rows


def _outputs(row: GemmRow) -> tuple[int | None, ...]:
    """The side that heads make: N forward, K of the input's gradient, M of the weight's."""
    sides = {"forward": (row.n,), "dgrad": (row.k,), "wgrad": (row.m,)}
    return sides.get(row.role or "", (row.m, row.n, row.k))


def other_kv_heads(facts: StepFacts) -> list[int]:
    """Numbers of the whole model that divide its heads and that its ranks divide."""
    ranks = max(facts.model.tensor_parallel.value or 1, 1)
    heads, now = (facts.model.heads.value or 0) * ranks, (facts.model.kv_heads.value or 0) * ranks
    return [
        one
        for one in range(max(1, -(-now // _REACH)), min(heads, now * _REACH) + 1)
        if one != now and heads % one == 0 and one % ranks == 0
    ]


def shape_gain_ms(facts: StepFacts, trial: Trial) -> float:
    """How much less time the GEMMs take then than their operations at the present speed would."""
    if facts.step is None:
        return 0.0
    now = facts.step.now
    then = changed(now, {"kv_heads": trial.value})
    work: dict[str, tuple[float, float]] = {}
    for product in facts.step.work.products:
        before, after = product.sizes(now), product.sizes(then)
        if before is not None and after is not None:
            old, new = work.get(product.row.id, (0.0, 0.0))
            more = product.weight * math.prod(before), product.weight * math.prod(after)
            work[product.row.id] = old + more[0], new + more[1]
    gain = 0.0
    for row in trial.found.rows:
        if row.component == "attention.qkv" and row.gemm in work:
            old, new = work[row.gemm]
            gain += row.time_ms * new / old - row.then_ms.mid
    return gain
