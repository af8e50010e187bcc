"""Products without shapes (a CUDA graph, a trace recorded without shapes): named by their order alone.

Between two attention cores stand an output projection, an MLP of two or three products around its activation,
and the queries of the next layer. That is enough when every layer has the same number of products and the
number admits one reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

from tracelens.attribution.structure.mixtures import GROUPED
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.units import VIEWS, Kind
from tracelens.attribution.structure.walk import follows, loses, name_sum, routes
from tracelens.gemm.inductor import parse_fused
from tracelens.gemm.inductor_ops import NONLINEAR

_MLP_BETWEEN = 4  # output, up, down and queries
_ONE_ADAPTER = 2  # products
_QUERY_PRODUCTS = 2  # between two norms: q; q_b and kv_a of latent attention
_EXPERT_PRODUCTS = 2  # behind a choice: up and down
_TWO_MLPS = 2
_USUAL = 2 / 3  # of the gaps between two cores are read alike
_EXPERTS = "moe.experts"
_QUERIES = "attention.qkv"
_WRITTEN_OUT = "erf"  # of a GELU that is no operator: x / 2 * (1 + erf(x / sqrt(2)))
_IN_PAIR = frozenset({"gemm", "activation", "copy", "add", "dropout"})  # of two linear layers in a row
_Pattern = tuple[str, ...]


def label_by_order(run: Run, keys: Mapping[int, object]) -> None:
    """Name products by their count and order alone; fills ``run.labels``.

    ``keys`` are, by position, equal for equal kernels with equal grids.
    """
    cores = [core for core in run.cores if not core.backward]
    behind = [core.first for core in run.cores if core.backward]
    if len(cores) < 2 or (behind and behind[0] < cores[-1].last):
        return
    losses = [at for at in range(cores[-1].last, len(run)) if loses(run, at)]
    stop = min([*losses[:1], *behind[:1], len(run)])
    products = run.products(0, stop)
    between = [
        [at for at in products if core.last < at < following.first] for core, following in pairwise(cores)
    ]
    patterns = _patterns(run, between, keys)
    if patterns is None:
        return
    run.labels.update({at: Label("attention.core") for at in behind})
    whole = [pattern for pattern in patterns if _ends_layer(pattern)] or patterns
    ahead = [at for at in products if at < cores[0].first]
    rest = [at for at in products if at > cores[-1].last]
    _label_ahead(run, ahead, whole[0])
    pattern_last = _behind_last(run, rest, whole[-1], max(pattern.count("mlp.down") for pattern in patterns))
    _label_layers(run, cores, [*between, rest], [*patterns, pattern_last])
    _label_adapters(run, [ahead, *between, rest])
    _unknown_cores(run)
    last_norm = max((at for at in _norms(run, cores[-1].last, stop)), default=stop)
    alone = losses[:1] == [stop] and [at for at in rest if at > last_norm] == rest[-1:]
    if rest and (alone or (len(rest) == len(pattern_last) + 1 and (losses[:1] == [stop] or not behind))):
        run.labels[rest[-1]] = Label("logits")
        middle = rest[len(pattern_last) : -1]
        if len(middle) == 1 and _norms(run, middle[0], rest[-1]):
            run.labels[middle[0]] = Label("other")  # the transform before the vocabulary


def _label_ahead(run: Run, ahead: list[int], pattern: _Pattern) -> None:
    """Before the first core: what makes its queries, as what makes the next one's."""
    queries = pattern[pattern.index(_QUERIES) :] if _QUERIES in pattern else ()
    pairs = zip(reversed(ahead), reversed(queries), strict=False)
    run.labels |= {at: Label(component, 0) for at, component in pairs if component}
    if len(ahead) > len(queries) + 1:  # more than what makes the stream: layers that are not read
        run.joints.add(0)


def _behind_last(run: Run, rest: list[int], layer: _Pattern, most: int) -> _Pattern:
    """What the products behind the last core are: the end of a ``layer``; one has ``most`` MLPs."""
    layer_end = tuple(component for component in _once(layer) if component != _QUERIES)
    found: _Pattern = _read(run, rest, last=True) or ()
    more = found.count("mlp.down") > max(most, 1)
    if _EXPERTS in found or not (more or _once(found) != layer_end):
        return found
    # not read, or with a head that looks like one more MLP
    mixed = bool({_EXPERTS, "moe.router"} & {*layer_end})
    mixed |= any(run.kinds[at].name in GROUPED for at in rest)
    return ("attention.output",) if mixed else layer_end


def _label_layers(run: Run, cores: list[Core], gaps: list[list[int]], patterns: list[_Pattern]) -> None:
    """Name each core and the products behind it, and count the layers."""
    layer = 0
    for core, places, pattern in zip(cores, gaps, patterns, strict=True):
        run.labels.update({at: Label(component, layer) for at, component in core.parts.items()})
        for at, component, before in zip(places, pattern, [None, *pattern], strict=False):
            # a layer without attention begins behind the MLP of the layer before, as any layer; attention to
            # another sequence is of the layer whose attention to itself is before it
            layer += component != "" and (
                (before == "mlp.down" != component)
                or (component == _QUERIES and before not in (component, "attention.output", None))
            )
            layer -= before == "mlp.down" and component == "logits"
            if component == _QUERIES and before == "":
                run.joints.add(layer)
            if component:
                run.labels[at] = Label(component, None if component == "logits" else layer)


def _label_adapters(run: Run, gaps: list[list[int]]) -> None:
    """The sums behind low-rank adapters. Twice at least, as the rotation of queries adds too."""
    adapters = [_adapters(run, places) for places in gaps]
    if any(len(found) > _ONE_ADAPTER for found in adapters):
        for at in (at for found in adapters for at in found[1::2] if at in run.labels):
            name_sum(run, at)


def _patterns(run: Run, between: list[list[int]], keys: Mapping[int, object]) -> list[_Pattern] | None:
    """What the products of each gap between two cores are, "" where that stays open.

    None where most gaps admit no reading that other gaps have too: there can be several kinds of layers, an
    encoder and a decoder, or two models. What is read as no other gap joins two models, or holds a layer with
    a core that no name tells. There every product is what its equal is elsewhere, or the one that makes
    queries, between the MLP and that kernel.
    """
    read = [_read(run, places) for places in between]
    merged = [
        pattern is not None and _merges(run, p[0], p[-1]) for p, pattern in zip(between, read, strict=True)
    ]
    times = Counter(_brief(pattern) for pattern in read if pattern is not None)
    alone = len(times) == 1
    usual = [
        pattern if pattern and (alone or times[_brief(pattern)] > 1) and not merges else None
        for merges, pattern in zip(merged, read, strict=True)
    ]
    if not any(usual) or sum(pattern is not None for pattern in usual) < _USUAL * len(between):
        return None
    usual = _without_more_queries(_of_layers(between, usual, keys))
    equal: dict[object, set[str]] = {}
    for places, pattern in zip(between, usual, strict=True):
        for at, component in zip(places, pattern or (), strict=False):
            equal.setdefault(keys[at], set()).add(component)
    out: list[_Pattern] = []
    for number, (places, pattern) in enumerate(zip(between, usual, strict=True)):
        parts = [equal.get(keys[at], set()) for at in places]
        own = None if merged[number] else read[number]
        found = pattern or _with_equal_attention(own, parts) or _of_equals(run, places, parts)
        if found is None:
            before = next((p for p in reversed(usual[:number]) if p), None)
            after = next((p for p in usual[number:] if p), None)
            found = _at_the_ends(read[number], len(places), before or after or (), after or before or ())
        if found is None:
            return None
        out.append(found)
    return [pattern for pattern in _without_more_queries([*out]) if pattern is not None]


def _merges(run: Run, start: int, stop: int) -> bool:
    """Is what is normalized put together first, by patches that are merged or by another stage? Its product
    makes no queries. A token is put before a stream that comes as the MLP gives it, and normalized once."""
    norms = _norms(run, start, stop)
    put = next((at - 1 for at in norms if run.kinds[at - 1].name == "cat"), None)
    if put is None:
        return False
    bent = max((at for at in range(start, put) if run.kinds[at].what == "activation"), default=start)
    return put + 1 != norms[-1] or len(run.products(bent, put)) != 1


def _of_layers(
    between: list[list[int]], read: list[_Pattern | None], keys: Mapping[int, object]
) -> list[_Pattern | None]:
    """The readings without those in which a second MLP runs kernels that no other layer does: the products
    that lead from one model to the next."""
    seen = Counter(
        (keys[at], component)
        for places, pattern in zip(between, read, strict=True)
        for at, component in zip(places, pattern or (), strict=False)
    )
    return [
        pattern
        if pattern is None
        or pattern.count("mlp.down") < _TWO_MLPS
        or all(seen[keys[at], c] > 1 for at, c in zip(places, pattern, strict=False) if c == "mlp.down")
        else None
        for places, pattern in zip(between, read, strict=True)
    ]


def _without_more_queries(read: list[_Pattern | None]) -> list[_Pattern | None]:
    """The readings with no more products of queries than most layers that are equal but for these: those
    ahead of them lead from one stage of a model to the next (Swin's, Hiera's) and stay open."""
    counts: dict[_Pattern, Counter[int]] = {}
    for known in filter(None, read):
        counts.setdefault(_rest(known), Counter())[known.count(_QUERIES)] += 1
    out: list[_Pattern | None] = []
    for pattern in read:
        rest = _rest(pattern or ())
        usual = counts[rest].most_common(1)[0][0] if pattern else 0
        more = (pattern or ()).count(_QUERIES) - usual
        out.append((*rest, *[""] * more, *[_QUERIES] * usual) if pattern and more > 0 < usual else pattern)
    return out


def _rest(pattern: _Pattern) -> _Pattern:
    return tuple(component for component in pattern if component != _QUERIES)


def _with_equal_attention(own: _Pattern | None, equal: list[set[str]]) -> _Pattern | None:
    """The reading of a gap as no other, whose attention runs the kernels that the others' does: a layer with
    another MLP."""
    if own is None or own.count("mlp.down") >= _TWO_MLPS:
        return None
    same = all(c in parts for c, parts in zip(own, equal, strict=False) if c.startswith("attention"))
    return own if same else None


def _at_the_ends(own: _Pattern | None, size: int, before: _Pattern, after: _Pattern) -> _Pattern | None:
    """Between two models, or in a layer that was not read: what follows a core, and stands before the next.

    The first is the rest of a layer as ``before`` where the gap's ``own`` reading begins so.
    """
    ends = tuple(component for component in _once(before) if component != "attention.qkv")
    ends = ends if own is not None and own[: len(ends)] == ends else ("attention.output",)
    queries = tuple(component for component in after if component == "attention.qkv")
    middle = size - len(ends) - len(queries)
    if middle < 0 and own is not None and own == (*ends, *queries[: len(own) - len(ends)]):
        return own  # fewer products make the queries of this attention
    return (*ends, *[""] * middle, *queries) if middle >= 0 else None


def _brief(pattern: _Pattern) -> _Pattern:
    """The pattern with one MLP (some layers have no attention) and with one product for all experts (how many
    get tokens differs from layer to layer)."""
    short = _once(pattern)
    return tuple(c for c, before in zip(short, ("", *short), strict=False) if c != before or c != _EXPERTS)


def _ends_layer(pattern: _Pattern) -> bool:
    return bool({"mlp.down", _EXPERTS, "moe.router"} & {*pattern})


def _is_fused_mixture(kind: Kind) -> bool:
    return kind.what == "experts" or "experts" in kind.tags


def _of_equals(run: Run, places: list[int], equal: list[set[str]]) -> _Pattern | None:
    """Each product as its equals; one without is that of queries where an unknown kernel follows an MLP."""
    if not places:
        return None
    out: list[str] = []
    for at, behind, parts in zip(places, [*places[1:], len(run)], equal, strict=True):
        if len(parts) == 1:
            out += parts
        elif not parts and out[-1:] == ["mlp.down"] and len(_unknown(run, at, behind)) == 1:
            out.append("attention.qkv")
        else:
            return None
    return tuple(out)


def _unknown(run: Run, start: int, stop: int) -> list[int]:
    return [at for at in range(start + 1, stop) if run.kinds[at].what == "kernel"]


def _unknown_cores(run: Run) -> None:
    """Between the products of queries and the next one without a core: the only kernel of no known kind."""
    named = sorted(run.labels)
    for at, behind in pairwise(named):
        if run.labels[at].component == "attention.qkv" and run.labels[behind].component.startswith("mlp."):
            found = _unknown(run, at, behind)
            if len(found) == 1:
                run.labels[found[0]] = Label("attention.core", run.labels[at].layer)


def _once(pattern: tuple[str, ...]) -> tuple[str, ...]:
    """The pattern with one MLP: some layers have no attention."""
    end = pattern.index("mlp.down") + 1 if "mlp.down" in pattern else len(pattern)
    return (*pattern[:end], *(component for component in pattern[end:] if not component.startswith("mlp.")))


_MLPS: dict[tuple[int, ...], _Pattern] = {
    (2, 1): ("mlp.up", "mlp.down"),
    (3, 1): ("mlp.gate", "mlp.up", "mlp.down"),
}
_MLPS[(3, 2)] = _MLPS[(3, 1)]  # both before the activation: the first is the gate by custom


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
    beside = len(output)
    output = _until_sum(run, output)
    beside -= len(output)
    queries = [] if last else blocks[-1:]
    while len(blocks) > len(queries) + 1 and queries and _of_queries(run, blocks[-len(queries) - 1], acts):
        queries = blocks[-len(queries) - 1 :]  # normalizations of queries and keys stand between these
    ahead = (follows(run, at, behind) for at, behind in pairwise(output))
    out = [*("attention.output" if one else "attention.other" for one in ahead), "attention.output"]
    out += [""] * beside
    for whole in blocks[: len(blocks) - len(queries)]:
        block = _until_sum(run, whole)
        mixture = _mixture(run, block, next((norm for norm in norms if norm > block[-1]), block[-1] + 1))
        if mixture is not None:
            out += [*mixture, *[""] * (len(whole) - len(block))]
            continue
        inside = [at for at in acts if block[0] < at < block[-1]] or _bent(run, block)
        mlp = _mlp(block, inside)
        if mlp is None:
            if last and whole is blocks[-1]:
                break
            return None
        out += [*mlp, *[""] * (len(whole) - len(block))]
    made = [made for block in queries for made in _without_pairs(run, block, acts)]
    outside = any(output[0] < at < output[-1] for at in acts) or not (last or any(made))
    crosses = len(blocks) == 1 and not last and not any(output[0] < at < blocks[0][-1] for at in acts)
    if outside or not (_ends_layer((*out,)) or crosses):
        return None
    return (*out, *made)


def _without_pairs(run: Run, block: list[int], acts: list[int]) -> _Pattern:
    """The products of queries, without two around an activation, which make something that is added to the
    scores or to the queries; none where anything else stands between the two."""
    out = [_QUERIES] * len(block)
    for number, (at, behind) in enumerate(pairwise(block)):
        if any(at < act < behind for act in acts):
            if not {kind.what for kind in run.kinds[at:behind]} <= _IN_PAIR:
                return ()
            out[number : number + 2] = ["", ""]
    return tuple(out)


def _until_sum(run: Run, block: list[int]) -> list[int]:
    """The products of a block up to the first sum that a product takes as it is: that stands between two
    blocks, and weighs streams against each other (hyper-connections, arXiv 2409.19606)."""
    for number, (at, behind) in enumerate(pairwise(block), 1):
        between = (kind for kind in reversed(run.kinds[at + 1 : behind]) if kind.what != "copy")
        before = next((kind for kind in between if kind.name not in VIEWS), None)
        if before is not None and before.what == "add":
            return block[:number]
    return block


def _multiplied(run: Run, at: int) -> bool:
    """Is a product's result multiplied and then normalized, without a sum before? So is a gated one."""
    behind = [kind.name if kind.what == "elementwise" else kind.what for kind in run.kinds[at + 1 : at + 5]]
    return behind[:1] == ["mul"] and next((one for one in behind[1:] if one != "copy"), "") in ("norm", "pow")


def _summed(run: Run, at: int) -> bool:
    """Is what an activation gives added to something before it is normalized?"""
    ends = ("add", "norm", "gemm", "pow")
    first = next((kind for kind in run.kinds[at + 1 :] if kind.what in ends or kind.name in ends), None)
    return first is not None and first.what == "add"


def _without_adapters(run: Run, places: list[int]) -> list[int]:
    """The places without low-rank adapters. Twice at least, as the rotation of queries adds too."""
    found = _adapters(run, places)
    return [at for at in places if at not in found] if len(found) > _ONE_ADAPTER else places


def _adapters(run: Run, places: list[int]) -> list[int]:
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
    """Between the products of a block, kernels that bend what they read and may be a residual elsewhere."""
    between = range(block[0] + 1, block[-1])
    fused = {at: parse_fused(run.kinds[at].name) for at in between if run.kinds[at].what == "fused"}
    return [at for at, one in fused.items() if one is not None and NONLINEAR & {*one.ops}]


def _of_queries(run: Run, block: list[int], acts: list[int]) -> bool:
    """One or two products with nothing between them that an MLP or a mixture has."""
    plain = not any(block[0] < at < block[-1] for at in (*acts, *_bent(run, block)))
    plain = plain and _mixture(run, block, block[-1] + 1) is None
    return plain and len(block) <= _QUERY_PRODUCTS


def _norms(run: Run, start: int, stop: int) -> list[int]:
    kinds = ((at, run.kinds[at]) for at in range(start, stop))
    return [at for at, k in kinds if {k.what, k.name} & {"norm", "rsqrt"} or "norm" in k.tags]


def _mixture(run: Run, block: list[int], stop: int) -> list[str] | None:
    """In one block a router, a choice and experts behind it, which can be one kernel, before ``stop``.

    GEMMs over groups of rows are experts'.
    """
    fused = next((at for at in range(block[0], stop) if _is_fused_mixture(run.kinds[at])), None)
    if fused is not None:
        ahead = [at for at in block if at < fused]
        return (
            ["moe.router"] * len(ahead) + [_EXPERTS] * (len(block) - len(ahead)) if len(ahead) < 2 else None
        )
    grouped = [at for at in block if run.kinds[at].name in GROUPED]
    chooses = [at for at in range(block[0], block[-1]) if routes(run, at) or run.kinds[at].name == "argmax"]
    choice = next(iter(chooses), None)
    if not grouped and (choice is None or len([at for at in block if at > choice]) < _EXPERT_PRODUCTS):
        return None
    ahead = [at for at in block if at < (grouped[0] if choice is None else choice)]
    shared, routers = ahead[:-1], ahead[-1:]  # an expert of all tokens can run first
    if shared and (_mlp(shared, _activations(run, shared)) is None or _adds(run, shared[-1], routers[0])):
        return None
    rest = block[len(ahead) :]
    added = not grouped and run.kinds[rest[-1] + 1].what == "add"
    dense = _mlp(rest, _activations(run, rest)) if added else None
    # what no weight is multiplied with is no expert's
    named = [*dense] if dense is not None else [_EXPERTS] * len(rest)
    return [_EXPERTS] * len(shared) + ["moe.router"] * len(routers) + named


def _activations(run: Run, block: list[int]) -> list[int]:
    return [at for at in range(block[0], block[-1]) if run.kinds[at].what == "activation"]


def _mlp(block: list[int], acts: list[int]) -> _Pattern | None:
    """The products of an MLP, by their number and that of those before its activation, which can be made of
    several; None if they are none."""
    before = {sum(at < act for at in block) for act in acts}
    return _MLPS.get((len(block), *before)) if len(before) == 1 else None


def _adds(run: Run, start: int, stop: int) -> bool:
    return any(kind.what == "add" for kind in run.kinds[start:stop])


def _read(run: Run, places: list[int], *, last: bool = False) -> tuple[str, ...] | None:
    """The one reading of the products between two cores, or behind the last one; None."""
    bases = _without_adapters(run, places)
    if len(bases) < len(places):
        found = _read(run, bases, last=last)
        named = dict(zip(bases, found or (), strict=False))
        of_base = [next(base for base in reversed(bases) if base <= at) for at in places]
        return tuple(named[base] for base in of_base if base in named) if found else None
    if len(places) < 2:
        return None
    inside = range(places[0], places[-1])
    acts = [at for at in inside if run.kinds[at].what == "activation" or "activation" in run.kinds[at].tags]
    acts = acts or [at for at in inside if run.kinds[at].name == _WRITTEN_OUT]
    norms = _norms(run, places[0], places[-1])
    found = _in_stretches(run, places, norms, acts, last=last)
    if found is not None or last or len(places) < _MLP_BETWEEN:
        return found
    if len(places) == 4 and not acts and not norms:
        return ("attention.output", "mlp.up", "mlp.down", "attention.qkv")
    if len(acts) != 1 or any(run.kinds[at].name in GROUPED for at in places):
        return None
    behind = [at for at in norms if at > acts[0] and any(p > at for p in places)]
    if not behind:
        return None
    mlp = [at for at in places[1:] if at < behind[0]]
    queries = len(places) - 1 - len(mlp)
    before = sum(at < acts[0] for at in mlp)
    mlp_names = _MLPS.get((len(mlp), before))
    if mlp_names is None or queries < 1:
        return None
    return ("attention.output", *mlp_names, *["attention.qkv"] * queries)
