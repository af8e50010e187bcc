"""The products between two attention cores without shapes: what their number, norms and activations say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tracelens.attribution.structure.grammars import GROUPED
from tracelens.attribution.structure.norm_forms import by_length
from tracelens.attribution.structure.norms import adds_number, normalizes_by
from tracelens.attribution.structure.runs import Run
from tracelens.attribution.structure.units import CUTS, VIEWS, Kind
from tracelens.attribution.structure.walk import (
    bends,
    convolves_bent,
    counts_batches,
    follows,
    gate_of,
    routes,
)
from tracelens.gemm.inductor import parse_fused

Pattern = tuple[str, ...]
_MLP_BETWEEN = 4  # output, up, down and queries
ONE_ADAPTER = 2  # products
_QUERY_PRODUCTS = 2  # between two norms: q; q_b and kv_a of latent attention
_PAIR = 2  # around an activation
_EXPERT_PRODUCTS = 2  # behind a choice: up and down
_MOST_EXPERTS = 3  # gate, up and down
EXPERTS = "moe.experts"
QUERIES = "attention.qkv"
_IN_PAIR = frozenset({"gemm", "activation", "copy", "add", "dropout"})  # of two linear layers in a row
_ADDS = VIEWS | CUTS | {"add"}
_RECURS = frozenset({"_cudnn_rnn", "miopen_rnn", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"})
_MLPS: dict[tuple[int, ...], Pattern] = {
    (2, 1): ("mlp.up", "mlp.down"),
    (3, 1): ("mlp.gate", "mlp.up", "mlp.down"),
    (3, 2): ("mlp.gate", "mlp.up", "mlp.down"),  # both before the activation: the first is the gate by custom
}
#: Two streams that attend together (arXiv 2403.03206); the output projection of the second is still open.
_JOINT = ["attention.output", *["mlp.up", "mlp.down"] * 2]


def ends_layer(pattern: Pattern) -> bool:
    """Has it an MLP or a mixture of experts?"""
    return bool({"mlp.down", EXPERTS, "moe.router"} & {*pattern})


def _in_stretches(
    run: Run, places: list[int], norms: list[int], acts: list[int], *, last: bool
) -> tuple[str, ...] | None:
    """The products between two cores, cut at the norms: output, MLPs with one activation each, queries.

    Before the output projection there can be a gate on the core's output. Behind the ``last`` core the head
    takes the place of the queries, and is left out.
    """
    stretches = [[places[0]]]
    for before, at in pairwise(places):
        bent = next((act for act in acts if before < act < at), at)  # behind it a norm is inside the MLP
        here = [norm for norm in norms if before < norm < at and (norm < bent or _summed(run, bent))]
        if here and not _multiplied(run, before):
            stretches.append([])
        stretches[-1].append(at)
    output, *blocks = stretches
    if _takes_core(run, output, acts):
        plain = len(output) == _PAIR and not any(output[-1] < at < places[-1] for at in acts)
        return ("mlp.up", "mlp.down", *[QUERIES] * (0 if last else len(places) - _PAIR)) if plain else None
    beside = len(output)
    output = _until_sum(run, output)
    beside -= len(output)
    queries = [] if last else blocks[-1:]
    while len(blocks) > len(queries) + 1 and queries and _of_queries(run, blocks[-len(queries) - 1], acts):
        if _is_added(run, blocks[-len(queries) - 1][-1]):
            break
        queries = blocks[-len(queries) - 1 :]  # normalizations of queries and keys stand between these
    ahead = (follows(run, at, behind) for at, behind in pairwise(output))
    out = [*("attention.output" if one else "attention.other" for one in ahead), "attention.output"]
    out += [""] * beside
    alone = False
    for whole in blocks[: len(blocks) - len(queries)]:
        if _takes_sum(run, whole[0]) and not _takes_sum(run, blocks[0][0]):
            out += [""] * len(whole)  # of another kind than the blocks that take what is normalized
            continue
        block = _until_sum(run, whole)
        mixture = _mixture(run, block, next((norm for norm in norms if norm > block[-1]), block[-1] + 1))
        if mixture is not None:
            out += [*mixture, *[""] * (len(whole) - len(block))]
            continue
        conditions = _conditions(run, whole, acts)
        out += [""] * conditions
        whole = whole[conditions:]
        block = _until_sum(run, whole)
        others = [""] * (len(whole) - len(block))
        inside = [at for at in acts if block[0] < at < block[-1]] or _bent(run, block)
        work = run.kinds[block[0] : block[-1]]
        if any(kind.what == "softmax" for kind in work) or convolves_bent(work):
            # it says what it would answer and takes that in (arXiv 2104.02724), or is a Conformer's
            out += [""] * len(whole)
            continue
        mlp = None if _joins_others(run, block) else mlp_of(run.kinds, block, inside)
        if mlp is None and (len(whole) > 1 or last):
            if last and whole[-1] == blocks[-1][-1]:
                break
            return None
        out += [*(mlp or [""]), *others]
        alone |= mlp is None
    made = [made for block in queries for made in _without_pairs(run, block, acts)]
    if out.count("") == 1 and out[-1] and [*filter(None, out)] == _JOINT and len(made) % _PAIR == 0:
        out[out.index("")] = "attention.output"
    elif alone:
        return None
    outside = any(output[0] < at < output[-1] for at in acts) or not (last or any(made))
    crosses = len(blocks) == 1 and not last and not any(output[0] < at < blocks[0][-1] for at in acts)
    if outside or not (ends_layer((*out,)) or crosses):
        return None
    return (*out, *made)


def _takes_core(run: Run, block: list[int], acts: list[int]) -> bool:
    """Does the last of these take what an MLP beside the core bends and the core's own result, side by side
    (arXiv 2302.05442)?"""
    bent = next((at for at in acts if block[0] < at < block[-1]), block[-1])
    return any("cat" in (kind.name, *kind.ops) for kind in run.kinds[bent : block[-1]])


def _conditions(run: Run, block: list[int], acts: list[int]) -> int:
    """How many first products make a scale of what the rest takes (FiLM, arXiv 1709.07871): two around an
    activation, or one with a shift as well."""
    scales, shifted = (["mul"], ["add", "mul"]), ["add", "mul", "add"]
    for many, forms in ((_PAIR, (*scales, shifted)), (1, (shifted,))):
        first, behind = block[:many], block[many : many + 1]
        if len(block) < many + _PAIR or (many > 1 and not any(first[0] < act < first[1] for act in acts)):
            continue
        between = run.kinds[first[-1] + 1 : behind[0]]
        names = [kind.name for kind in between if kind.what != "copy" and kind.name not in VIEWS | CUTS]
        if names in forms:
            return many
    return 0


def _is_added(run: Run, at: int) -> bool:
    """Is a product's result added to something as it is?"""
    behind = (p for p in range(at + 1, len(run)) if run.kinds[p].what != "copy")
    sums = next((p for p in behind if run.kinds[p].name not in VIEWS | CUTS), at)
    return run.kinds[sums].what == "add" and not counts_batches(run, sums)


def _without_pairs(run: Run, block: list[int], acts: list[int]) -> Pattern:
    """The products of queries, without two around an activation, which make something that is added to the
    scores or to the queries; none where anything else stands between the two."""
    out = [QUERIES] * len(block)
    for number, (at, behind) in enumerate(pairwise(block)):
        if any(at < act < behind for act in acts):
            if not {kind.what for kind in run.kinds[at:behind]} <= _IN_PAIR:
                return ()
            out[number : number + _PAIR] = ["", ""]
    return tuple(out)


def _until_sum(run: Run, block: list[int]) -> list[int]:
    """The products of a block up to the first sum that a product takes as it is: that stands between two
    blocks, and weighs streams against each other (hyper-connections, arXiv 2409.19606)."""
    for number, behind in enumerate(block[1:], 1):
        if _takes_sum(run, behind):
            return block[:number]
    return block


def _takes_sum(run: Run, at: int) -> bool:
    """Does a product take a sum as it is?"""
    before = (kind for kind in reversed(run.kinds[:at]) if kind.what != "copy")
    last = next((kind for kind in before if kind.name not in VIEWS | CUTS), None)
    return last is not None and (last.what == "add" or _only_adds(last))


def _only_adds(kind: Kind) -> bool:
    """Is it a kernel of torch.compile that adds, and else takes parts at most?"""
    fused = parse_fused(kind.name) if kind.what == "fused" else None
    return fused is not None and fused.kind == "pointwise" and "add" in fused.ops and {*fused.ops} <= _ADDS


def _multiplied(run: Run, at: int) -> bool:
    """Is a product's result multiplied and then normalized, without a sum before? So is a gated one."""
    behind = [kind.name if kind.what == "elementwise" else kind.what for kind in run.kinds[at + 1 : at + 5]]
    return behind[:1] == ["mul"] and next((one for one in behind[1:] if one != "copy"), "") in ("norm", "pow")


def _summed(run: Run, at: int) -> bool:
    """Is what an activation gives added to something before it is normalized?"""
    ends = ("add", "norm", "gemm", "pow")
    first = next((kind for kind in run.kinds[at + 1 :] if kind.what in ends or kind.name in ends), None)
    return first is not None and first.what == "add"


def without_adapters(run: Run, places: list[int]) -> list[int]:
    """The places without low-rank adapters."""
    found = adapters(run, places)
    return [at for at in places if at not in found] if are_adapters(run, found) else places


def are_adapters(run: Run, found: list[int]) -> bool:
    """Is what may be low-rank adapters that? Twice, or scaled before it is added, as the rotation of queries
    behind three products adds too, but turns these first."""
    return len(found) > ONE_ADAPTER or any(scales_sum(run, up) for up in found[1::2])


def scales_sum(run: Run, at: int) -> bool:
    """Is a product's result scaled and then added?"""
    behind = [kind for kind in run.kinds[at + 1 : at + 5] if kind.what != "copy"]
    return [kind.name for kind in behind[:1]] == ["mul"] and [kind.what for kind in behind[1:2]] == ["add"]


def adapters(run: Run, places: list[int]) -> list[int]:
    """What may be low-rank adapters: two products behind another, with what is cast or dropped before them,
    and an addition behind them."""
    kinds = run.kinds
    found: list[int] = []
    for base, down, up in zip(places, places[1:], places[2:], strict=False):
        between = [kind.what for kind in kinds[base + 1 : down] + kinds[down + 1 : up]]
        behind = [kind.what for kind in kinds[up + 1 : up + 4]]
        sums = "add" in behind and "gemm" not in behind[: behind.index("add")]
        if sums and {*between} <= {"dropout", "copy"} and base not in found:
            found += [down, up]
    return found


def _bent(run: Run, block: list[int]) -> list[int]:
    """Positions of what bends inside a block, or behind a product that bends what it gives itself."""
    own = [at for at in block[:-1] if (made := parse_fused(run.kinds[at].name)) and "activation" in made.tags]
    return [at for at in range(block[0] + 1, block[-1]) if bends(run.kinds[at])] or [at + 1 for at in own]


def _of_queries(run: Run, block: list[int], acts: list[int]) -> bool:
    """One or two products with nothing between them that an MLP or a mixture has."""
    plain = not any(block[0] < at < block[-1] for at in (*acts, *_bent(run, block)))
    plain = plain and _mixture(run, block, block[-1] + 1) is None
    return plain and len(block) <= _QUERY_PRODUCTS


def normalizations(run: Run, start: int, stop: int) -> list[int]:
    """Positions of normalizations between two, one for each."""
    kinds = ((at, run.kinds[at]) for at in range(start, stop))
    written = (normalizes_by, by_length)
    return [
        at for at, k in kinds if k.what == "norm" or "norm" in k.tags or any(by(run, at) for by in written)
    ]


def _mixture(run: Run, block: list[int], stop: int) -> list[str] | None:
    """In one block a router, a choice and experts behind it, which can be one kernel, before ``stop``.

    GEMMs over groups of rows are experts'.
    """
    whole = ((at, run.kinds[at]) for at in range(block[0], stop))
    fused = next((at for at, kind in whole if kind.what == "experts" or "experts" in kind.tags), None)
    if fused is not None:
        ahead = [at for at in block if at < fused]
        return ["moe.router"] * len(ahead) + [EXPERTS] * (len(block) - len(ahead)) if len(ahead) < 2 else None
    grouped = [at for at in block if run.kinds[at].name in GROUPED]
    chooses = [at for at in range(block[0], block[-1]) if routes(run, at) or run.kinds[at].name == "argmax"]
    choice = next(iter(chooses), None)
    if not grouped and (choice is None or len([at for at in block if at > choice]) < _EXPERT_PRODUCTS):
        return None
    ahead = [at for at in block if at < (grouped[0] if choice is None else choice)]
    shared, routers = ahead[:-1], ahead[-1:]  # an expert of all tokens can run first
    # and the number that it is weighed by
    read = any(
        mlp_of(run.kinds, one, _activations(run, one)) for one in (shared, shared[:-1]) if len(one) > 1
    )
    if shared and (not read or _adds(run, shared[-1], routers[0])):
        return None
    rest = block[len(ahead) :]
    added = not grouped and run.kinds[rest[-1] + 1].what == "add"
    dense = mlp_of(run.kinds, rest, _activations(run, rest)) if added else None
    # what no weight is multiplied with is no expert's
    named = [*dense] if dense is not None else [EXPERTS] * len(rest)
    if len(rest) > _MOST_EXPERTS and run.kinds[rest[0]].what == run.kinds[rest[-1]].what == "bmm":
        named = ["", *named[1:-1], ""]  # they can send tokens there and back (arXiv 2006.16668)
    return [EXPERTS] * len(shared) + ["moe.router"] * len(routers) + named


def _activations(run: Run, block: list[int]) -> list[int]:
    """Also one that keeps the mask for its gradient, and is named after that (ReLU's). A softplus makes
    scales and decays positive: beside another activation it bends no MLP."""
    kinds = ((at, run.kinds[at]) for at in range(block[0], block[-1]))
    tags = {"activation", "activation_backward"}
    found = [at for at, kind in kinds if kind.what == "activation" or kind.tags & tags]
    return [at for at in found if run.kinds[at].name != "softplus"] or found


def mlp_of(kinds: Sequence[Kind], block: list[int], acts: list[int]) -> Pattern | None:
    """The products of an MLP, by their number and that of those before its activation, which can be made of
    several; None if they are none."""
    before = {sum(at < act for at in block) for act in acts}
    found = _MLPS.get((len(block), *before)) if len(before) == 1 else None
    if before == {1} and len(block) > _PAIR and not _weighs(kinds[block[1] : block[2]]):
        return None
    if found is None:
        return None
    steps = [kind.name for kind in kinds[block[0] + 1 : min(block[1], acts[0])] if kind.what != "copy"]
    if (steps == ["mul", "add"]) if before == {1} else {*steps} >= {"mul", "add"}:
        return None  # scaled and added to the stream, or what scales and shifts it: of another block
    if before == {2} and gate_of(kinds, block[0], block[1], acts[0]):
        return ("mlp.up", "mlp.gate", "mlp.down")
    return found


def _weighs(between: Sequence[Kind]) -> bool:
    """Can a second layer's result be multiplied with the activation's there? A sum behind that is with the
    stream, and what is put beside another stream is none."""
    fused = [parse_fused(kind.name) for kind in between[1:] if kind.what == "fused"]
    ops = [one.ops for one in fused if one is not None]
    if ops:
        return len(ops) < len(between) - 1 or any("mul" in names or not names for names in ops)
    own = (kind for kind in reversed(between[1:]) if not adds_number(kind))
    steps = [kind.what if kind.what == "add" else kind.name.rstrip("_") for kind in own]
    return "mul" in steps and not {"add", "cat"} & {*steps[: steps.index("mul")]}


def _joins_others(run: Run, block: list[int]) -> bool:
    """Does a table or a recurrence stand between them, as in the joint network of a transducer?"""
    return any(kind.what == "embedding" or kind.name in _RECURS for kind in run.kinds[block[0] : block[-1]])


def _adds(run: Run, start: int, stop: int) -> bool:
    return any(kind.what == "add" for kind in run.kinds[start:stop])


def read_gap(run: Run, places: list[int], *, last: bool = False) -> tuple[str, ...] | None:
    """The one reading of the products between two cores, or behind the last one; None."""
    bases = without_adapters(run, places)
    if len(bases) < len(places):
        found = read_gap(run, bases, last=last)
        named = dict(zip(bases, found or (), strict=False))
        of_base = [next(base for base in reversed(bases) if base <= at) for at in places]
        return tuple(named[base] for base in of_base if base in named) if found else None
    if len(places) < 2:
        return None
    acts = _activations(run, places) or _bent(run, places)
    norms = normalizations(run, places[0], places[-1])
    found = _in_stretches(run, places, norms, acts, last=last)
    if found is not None or last or len(places) < _MLP_BETWEEN:
        return found
    if len(places) == 4 and not acts and not norms:
        core = next((core.first for core in run.cores if core.first > places[3]), len(run))
        if _adds(run, *places[:2]) and not _adds(run, places[1], core):
            # a sum that the next attention takes as it is
            return ("attention.output", *[QUERIES] * 3)
        return ("attention.output", "mlp.up", "mlp.down", "attention.qkv")
    if len(acts) != 1 or any(run.kinds[at].name in GROUPED for at in places):
        return None
    behind = [at for at in norms if at > acts[0] and any(p > at for p in places)]
    behind = behind or [at for at in places if at > acts[0] and _takes_sum(run, at)]  # the stream as it is
    if not behind:
        return None
    ahead = [at for at in places[1:] if at < behind[0]]
    queries = len(places) - 1 - len(ahead)
    mlp = _until_convolution(run, ahead)
    mlp_names = mlp_of(run.kinds, mlp, acts)
    if mlp_names is None or queries < 1 or _takes_core(run, mlp, acts):
        return None
    added = [number for number, at in enumerate(places[-queries:], 1) if _is_added(run, at)]
    other = max(added, default=0)  # of another stream
    left = len(ahead) - len(mlp) + other
    return ("attention.output", *mlp_names, *[""] * left, *["attention.qkv"] * (queries - other))


def _until_convolution(run: Run, block: list[int]) -> list[int]:
    """The products up to the first convolution of what two of them have made, which is of no MLP."""
    for number, (at, behind) in enumerate(pairwise(block), 1):
        if number >= _PAIR and any(kind.what == "convolution" for kind in run.kinds[at:behind]):
            return block[:number]
    return block


def read_two(run: Run, places: list[int]) -> Pattern | None:
    """The one reading of the products between two cores each of two models, whose kernels a compiler runs in
    turn: part by part, the one's and the other's, and all queries of the one before the other's; None."""
    size, odd = divmod(len(places), 2)
    found: set[Pattern] = set()
    for queries in range(1, size) if not odd else ():
        body = 2 * (size - queries)
        one = [*places[:body:2], *places[body : body + queries]]
        other = [*places[1:body:2], *places[body + queries :]]
        pattern = read_gap(run, one)
        if pattern is not None and pattern.count(QUERIES) == queries and pattern == read_gap(run, other):
            found.add(
                (*(part for part in pattern if part != QUERIES for _ in "ab"), *[QUERIES] * 2 * queries)
            )
    return found.pop() if len(found) == 1 else None
