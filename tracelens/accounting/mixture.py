"""A mixture of experts: how many there are, how many a token goes to, over how many ranks they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from tracelens.accounting.words import model as words
from tracelens.results import Known


def mixture_dims(
    experts: Known, groups: Iterable[int], choices: Collection[tuple[int, int]]
) -> dict[str, Known]:
    """``experts`` as the router's GEMM shows them, with ``top_k`` and ``expert_parallel``.

    ``groups``: experts in each grouped GEMM of this rank; ``choices`` as ``Operands`` has them.

    >>> found = mixture_dims(Known(8, "router"), [4, 4], {(8, 2), (128, 50)})
    >>> [known.value for known in found.values()]
    [8, 2, 2]
    """
    count = experts.value
    if count is None:
        nothing = experts if experts.source == words.NO_SHAPES else Known(None, words.NO_ROUTER)
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
