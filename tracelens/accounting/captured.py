"""Model dimensions of a captured step, whose kernels no operator launches.

The graph is called with the model's parameters, and what ran while it was captured may be in the trace; our
own capture looked at the modules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tracelens.accounting.degrees import modules_seen
from tracelens.accounting.words import model as words
from tracelens.attribution.names import op_rule
from tracelens.gemm import AttentionShape, shape_of
from tracelens.results import Known, ModelDims
from tracelens.trace import Trace

#: torch/_functorch/_aot_autograd/runtime_wrappers.py (an autograd.Function), torch/_inductor/output_code.py
_GRAPHS = ("CompiledFunction", "## Call CompiledFxGraph", "CompiledFxGraph")
_FEWEST = 2  # layers: what repeats


def with_captured(dims: ModelDims, trace: Trace, *, shapes: bool) -> ModelDims:
    """Add what a graph's parameters and the operators of its capture say, where no call has a shape.

    ``shapes``: has any?
    """
    if shapes or not dims.transformer or dims.hidden.value is not None:
        return dims
    found = {**_of_modules(trace.metadata), **_of_parameters(trace), **_of_operators(trace)}
    return replace(dims, **found)  # type: ignore[arg-type]


def _of_modules(metadata: Mapping[str, Any]) -> dict[str, Known]:
    """Sizes that the capture read from the modules, where they are one model's."""
    models = [(sizes, name) for sizes, name in modules_seen(metadata) if "layers" in sizes]
    if len(models) != 1:
        return {}
    ((sizes, name),) = models
    wanted = {field.name for field in fields(ModelDims)} - {"layers"}  # those are counted
    return {
        key: Known(value, words.in_the_modules(name, source))
        for key, (value, source) in sizes.items()
        if key in wanted
    }


def _of_parameters(trace: Trace) -> dict[str, Known]:
    """Hidden and feed-forward size of weights that a graph is called with as often as it has layers.

    Every layer's matrices share the hidden size, and an MLP's go to the feed-forward size and back.
    """
    rows = np.flatnonzero(trace.symbols.where(lambda text: text.startswith(_GRAPHS))[trace.ops.name])
    most: list[list[int]] = []
    for code in {int(trace.ops.inputs[row]) for row in rows.tolist()}:
        given = [one for one in trace.details.inputs(code).dims or [] if [*map(type, one)] == [int, int]]
        most = max(most, given, key=len)
    times = Counter((n, k) for n, k in most if min(n, k) > 1)
    layers = Counter(count for count in times.values() if count >= _FEWEST).most_common(1)
    if not layers:
        return {}
    weights = [pair for pair, count in times.items() if count % layers[0][0] == 0]
    shared = set.intersection(*({*pair} for pair in weights))
    if len(shared) != 1:
        return {}
    (hidden,) = shared
    count = layers[0][0]
    found = {"hidden": Known(hidden, words.weights_of_graph(len(weights), count))}
    wide = {n for n, k in weights if (k, n) in weights and n != hidden}
    if len(wide) == 1:
        found["ffn"] = Known(wide.pop(), words.weights_both_ways(count))
    return found


def _of_operators(trace: Trace) -> dict[str, Known]:
    """Attention as its operators have it that ran outside the graph's replay, where they all agree."""
    rows = np.flatnonzero(trace.symbols.where(lambda text: op_rule(text) == "core")[trace.ops.name])
    shapes: Counter[tuple[int, int, int, int | None, int | None]] = Counter()
    for row in rows.tolist():
        given = trace.details.inputs(int(trace.ops.inputs[row]))
        name = trace.symbols[int(trace.ops.name[row])]
        shape = shape_of(name, given.dims or [], given.types, given.strides, given.concrete)
        if isinstance(shape, AttentionShape) and not shape.backward:
            shapes[(shape.heads, shape.kv_heads, shape.head_dim, shape.query_len, shape.batch)] += 1
    if len(shapes) != 1:
        return {}
    ((values, count),) = shapes.items()
    names = ("heads", "kv_heads", "head_dim", "sequence", "micro_batch")
    why = words.outside_replay(count)
    return {name: Known(value, why) for name, value in zip(names, values, strict=True) if value is not None}
