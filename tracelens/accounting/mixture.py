"""A mixture of experts: how many there are, how many a token goes to, over how many ranks they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import numpy as np

from tracelens.accounting.words import model as words
from tracelens.attribution.names import op_rule
from tracelens.results import Known
from tracelens.trace import Trace

_TOPK = "aten::topk"


def router_choices(trace: Trace) -> set[tuple[int, int]]:
    """(of how many, how many) the trace's operators choose: ``aten::topk`` and the routers of libraries.

    ``aten::topk`` has its k among the recorded values; a library's router writes [tokens, k] from
    [tokens, experts] (vLLM's topk_softmax, csrc/moe/torch_bindings.cpp).
    """
    chooses = trace.symbols.where(lambda text: text == _TOPK or op_rule(text) == "routes")
    rows = np.flatnonzero(chooses[trace.ops.name])
    found = set()
    for name, code in {(int(trace.ops.name[row]), int(trace.ops.inputs[row])) for row in rows.tolist()}:
        inputs = trace.details.inputs(code)
        tables = [one for one in inputs.dims or [] if [*map(type, one)] == [int, int]]
        if trace.symbols[name] == _TOPK:
            stated = (inputs.concrete or ["", ""])[1:2]
            found |= {(table[1], int(k)) for table in tables[:1] for k in stated if k.isdecimal()}
        else:
            found |= {
                (one[1], other[1])
                for one in tables
                for other in tables
                if one[0] == other[0] and one[1] > other[1]
            }
    return found


def mixture_dims(
    experts: Known, groups: Iterable[int], choices: Collection[tuple[int, int]]
) -> dict[str, Known]:
    """``experts`` as the router's GEMM shows them, with ``top_k`` and ``expert_parallel``.

    ``groups``: experts in each grouped GEMM of this rank; ``choices`` as ``router_choices`` has them.

    >>> found = mixture_dims(Known(8, "router"), [4, 4], {(8, 2), (128, 50)})
    >>> [known.value for known in found.values()]
    [8, 2, 2]
    """
    count = experts.value
    if count is None:
        nothing = Known(None, words.NO_ROUTER)
        return {"experts": nothing, "top_k": nothing, "expert_parallel": nothing}
    chosen = sorted({k for of, k in choices if of == count and 0 < k <= count})
    top_k = Known(None, words.nothing_chooses(count))
    if chosen:
        top_k = Known(chosen[0] if len(chosen) == 1 else None, words.chosen(count, chosen))
    spread = Known(None, words.NO_GROUPED_GEMM)
    local = Counter(groups).most_common(1)
    if local and count % local[0][0] == 0:
        spread = Known(count // local[0][0], words.grouped(local[0][0], count))
    return {"experts": experts, "top_k": top_k, "expert_parallel": spread}
