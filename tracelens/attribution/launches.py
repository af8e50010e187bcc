"""Launches that no operator encloses and a module or a range does, and kernels marked in their graph.

The range says which block it is (``mlp(F)``, ``attn``), the kernel's name whether it is a product, and its
place before or behind the attention core which product. What the name alone says is not repeated here.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from tracelens.attribution.columns import PHASE, Columns
from tracelens.attribution.components import Decision, Situation, decide
from tracelens.attribution.kernels import kernel_component
from tracelens.attribution.paths import Paths
from tracelens.gemm import KernelNames
from tracelens.trace import BoolArray, CodeArray, Links, Trace, look_up

_PRODUCT = re.compile(r"gemm|matmul", re.IGNORECASE)
_ACTIVATION = re.compile(r"(?i)swiglu|geglu|gelu|silu")
#: Of a mixture of experts: its tokens are sent to their experts, and the results put together.
_SENDS, _COLLECTS = (
    re.compile(rf"(?i)^(\w+[ _.:])?{word}\W*(\w{{1,3}}\W*)?$") for word in ("dispatch", "combine")
)


def decide_launches(
    trace: Trace, links: Links, names: KernelNames, paths: Paths, backward: BoolArray, *, transformer: bool
) -> tuple[CodeArray, list[Decision]]:
    """Per kernel the index of what the range around its launch says, -1 where that is nothing; the decisions.

    ``backward`` is per host node: there a block's parts run in another order, and only the block is said.
    """
    which = np.full(len(trace.kernels), -1, np.int32)
    marked = paths.of_label >= 0
    path = np.where(marked, paths.of_label, look_up(paths.of_node, links.kernel_node))
    # a range around a graph is around all its parts
    one = ~look_up(trace.replays, links.kernel_launch, False)
    rows = np.flatnonzero((links.kernel_op < 0) & (path >= 0) & (one | marked))
    decisions: list[Decision] = []
    if not len(rows):
        return which, decisions
    texts = [trace.symbols[int(code)] for code in trace.kernels.name[rows]]
    stated = [kernel_component(text) for text in texts]
    product = [
        (name is not None and name.kind.startswith("gemm")) or bool(_PRODUCT.search(text))
        for text, name in zip(texts, (names[int(code)] for code in trace.kernels.name[rows]), strict=True)
    ]
    after = _after_core(links, paths, rows, np.array([text == "attention.core" for text in stated]))
    after[look_up(backward, links.kernel_node[rows], False) | marked[rows]] = -1
    experts = _every_mlp_is_of_experts(trace, links, paths)
    known: dict[tuple[object, ...], int] = {}
    for at, row in enumerate(rows.tolist()):
        if stated[at] is not None:
            continue
        rule = "linear" if product[at] else "activation" if _ACTIVATION.search(texts[at]) else None
        key = (int(path[row]), rule, int(after[at]))
        if key not in known:
            behind = None if after[at] < 0 else bool(after[at])
            around, mixes = paths.paths[key[0]], key[0] in paths.with_experts
            made = decide(Situation(around, rule, rule, behind, 1, mixes, transformer))
            if made is not None and made.component.startswith("mlp.") and experts:
                made = Decision("moe.experts", made.evidence)
            known[key] = len(decisions) if made is not None else -1
            decisions += [made] if made is not None else []
        which[row] = known[key]
    return which, decisions


def of_queries_and_outputs(
    links: Links, paths: Paths, products: BoolArray, columns: Columns
) -> tuple[BoolArray, BoolArray]:
    """Which of the ``products``, whose functions say no more than the attention around them, make its
    queries, keys or values, and which its output.

    Per kernel. In a forward those ahead of its core do, and the one between that and the next normalization;
    behind the core of a backward are gradients of what the first took.
    """
    block = look_up(paths.attention, links.kernel_node)
    when = look_up(links.ts_ns, links.kernel_node)
    core, norm, backward = (
        *(columns.are("attention.core"), columns.are("norm")),
        columns.phase == PHASE["backward"],
    )
    queries, outputs = np.zeros_like(products), np.zeros_like(products)
    for one in np.unique(block[products & (block >= 0)]).tolist():
        inside = block == one
        if not (inside & core).any():
            continue
        begin = int(when[inside & core].min())
        ends = when[inside & norm & (when > begin)]
        behind = products & inside & (when > begin)
        output = behind & ~backward & (when < (ends.min() if len(ends) else when.max() + 1))
        queries |= (products & inside & ~backward & (when < begin)) | (behind & backward)
        outputs |= output & (output.sum() == 1)
    return queries, outputs


def _after_core(links: Links, paths: Paths, rows: npt.NDArray[np.intp], core: BoolArray) -> CodeArray:
    """Per launch: 1 behind the first core of its attention block, 0 before it, -1 where there is none."""
    block = look_up(paths.attention, links.kernel_node[rows])
    when = links.ts_ns[links.kernel_node[rows]]
    begin: dict[int, int] = {}
    for at in np.flatnonzero(core & (block >= 0)).tolist():
        begin[int(block[at])] = min(int(when[at]), begin.get(int(block[at]), int(when[at])))
    none = np.iinfo(np.int64).max
    first = np.array([begin.get(int(one), none) for one in block], np.int64)
    return np.where(first == none, -1, when > first).astype(np.int32)


def _every_mlp_is_of_experts(trace: Trace, links: Links, paths: Paths) -> bool:
    """Do ranges name a dispatch for each MLP that a range names, and what combines them again?"""
    ranges = links.mask(links.ranges_at)

    def count(pattern: re.Pattern[str]) -> int:
        named = ranges & trace.symbols.where(lambda text: bool(pattern.match(text)))[links.name]
        return int(named.sum())

    own = np.flatnonzero(ranges & (paths.mlp == np.arange(len(paths.mlp))))
    most = int(np.bincount(links.name[own]).max(initial=0)) if len(own) else 0
    return 0 < most <= count(_SENDS) and count(_COLLECTS) > 0
