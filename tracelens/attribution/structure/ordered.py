"""Products without shapes (a CUDA graph, a trace recorded without shapes): named by their order alone.

Between two attention cores stand an output projection, an MLP of two or three products around its activation,
and the queries of the next layer. That is enough when every layer has the same number of products and the
number admits one reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tracelens.attribution.structure.conditions import of_few_rows
from tracelens.attribution.structure.grammars import GROUPED
from tracelens.attribution.structure.readings import (
    EXPERTS,
    QUERIES,
    Pattern,
    adapters,
    are_adapters,
    ends_layer,
    normalizations,
    read_gap,
    read_two,
    without_adapters,
)
from tracelens.attribution.structure.runs import Core, Label, Run
from tracelens.attribution.structure.walk import activates, loses, name_sum

_TWO = 2  # MLPs, models
_USUAL = 2 / 3  # of the gaps between two cores are read alike
#: A batched product beside plain ones is none of these: of experts, as likely.
_MLP = ("mlp.up", "mlp.gate", "mlp.down")
_LINEAR = (QUERIES, "attention.output", *_MLP)


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
    conditions = of_few_rows(run, run.products(0, stop))
    products = [at for at in run.products(0, stop) if at not in conditions]
    between = [
        [at for at in products if core.last < at < following.first] for core, following in pairwise(cores)
    ]
    patterns = _patterns(run, between, keys)
    if patterns is None:
        return
    run.labels.update({at: Label("attention.core") for at in behind})
    run.labels.update({at: Label("other") for at in conditions})
    whole = [pattern for pattern in patterns if ends_layer(pattern)] or patterns
    ahead = [at for at in products if at < cores[0].first]
    rest = [at for at in products if at > cores[-1].last]
    _label_ahead(run, ahead, whole[0])
    _label_without_attention(run, ahead, [*zip(between, patterns, strict=True)], keys)
    pattern_last = _behind_last(run, rest, whole[-1], max(pattern.count("mlp.down") for pattern in patterns))
    pattern_last = _as_equals(run, rest, pattern_last, _equals([*zip(between, patterns, strict=True)], keys))
    _label_layers(run, cores, [*between, rest], [*patterns, pattern_last])
    _unknown_cores(run)
    last_norm = max((at for at in normalizations(run, cores[-1].last, stop)), default=stop)
    middle = rest[len(pattern_last) : -1]
    once = len(without_adapters(run, middle)) == 1
    transformed = once and bool(normalizations(run, middle[0], rest[-1]))
    ends = losses[:1] == [stop] or not behind
    alone = ends and [at for at in rest if at > last_norm] == rest[-1:] and (bool(losses) or transformed)
    tail = run.kinds[rest[-1] : stop] if rest else []
    pictures = any(kind.what == "convolution" or "fprop" in kind.name for kind in tail)  # so CUTLASS calls it
    if rest and not pictures and (alone or (len(rest) == len(pattern_last) + 1 and ends)):
        run.labels[rest[-1]] = Label("logits")
        if transformed:
            run.labels.update(dict.fromkeys(middle, Label("other")))  # before the vocabulary
    _label_adapters(run, [ahead, *between, rest])


def _label_ahead(run: Run, ahead: list[int], pattern: Pattern) -> None:
    """Before the first core: what makes its queries, as what makes the next one's, and the MLP ahead of them
    where a layer has two (arXiv 2005.08100)."""
    queries = pattern[pattern.index(QUERIES) :] if QUERIES in pattern else ()
    second = [part for part in pattern if part not in ("", QUERIES)][1:]
    own = [*second[second.index("mlp.down") + 1 :], *queries] if second.count("mlp.down") == _TWO else []
    places = ahead[-len(own) : len(ahead) - len(queries)] if 0 < len(own) <= len(ahead) else []
    ends = (kind.what for kind in run.kinds[max(places, default=-1) + 1 :] if kind.what in ("add", "norm"))
    if places and any(map(activates, run.kinds[places[0] : places[-1]])) and next(ends, "") == "add":
        queries = (*own,)
    pairs = zip(reversed(ahead), reversed(queries), strict=False)
    run.labels |= {at: Label(component, 0) for at, component in pairs if component}
    if len(ahead) > len(queries) + 1:  # more than what makes the stream: layers that are not read
        run.joints.add(0)
    rest = [at for at in ahead if at not in run.labels]
    if len(rest) == 1 and _makes_stream(run, *rest):
        run.labels[rest[0]] = Label("embedding")


def _makes_stream(run: Run, at: int) -> bool:
    """Is it the run's first product, of what is given or looked up, which nothing bends?"""
    behind = next((kind for kind in run.kinds[at + 1 :] if kind.what != "copy"), None)
    plain = behind is not None and not activates(behind)
    return plain and run.kinds[at].what == "gemm" and at == run.products()[0]


def _label_without_attention(
    run: Run, ahead: list[int], read: list[tuple[list[int], Pattern]], keys: Mapping[int, object]
) -> None:
    """Before the first core: MLPs of layers without attention, whose kernels are those of MLPs between cores
    that have more than one."""
    known: dict[tuple[object, ...], list[str]] = {}
    for places, pattern in read:
        named = [pair for pair in zip(places, pattern, strict=False) if pair[1].startswith("mlp.")]
        ends = [at for at, (_, part) in enumerate(named, 1) if part == "mlp.down"]
        for start, stop in pairwise([0, *ends] if len(ends) > 1 else ()):
            known[tuple(keys[at] for at, _ in named[start:stop])] = [part for _, part in named[start:stop]]
    rest = [at for at in ahead if at not in run.labels]
    sizes = sorted({*map(len, known)}, reverse=True)
    while size := next((n for n in sizes if tuple(keys[at] for at in rest[-n:]) in known), 0):
        last = rest[-size:]
        parts = known[tuple(keys[at] for at in last)]
        run.labels |= {at: Label(part) for at, part in zip(last, parts, strict=True)}
        rest = rest[:-size]


def _behind_last(run: Run, rest: list[int], layer: Pattern, most: int) -> Pattern:
    """What the products behind the last core are: the end of a ``layer``; one has ``most`` MLPs."""
    layer_end = tuple(component for component in _once(layer) if component != QUERIES)
    found: Pattern = read_gap(run, rest, last=True) or ()
    if len(rest) < len(layer_end):  # what is left is no such layer, or all that is named of it
        whole = bool(found) and _once(found) == layer_end[: len(rest)] and not any(layer_end[len(rest) :])
        layer_end = layer_end[: len(rest) if whole else 1]
    more = found.count("mlp.down") > max(most, 1)
    if EXPERTS in found or not (more or _once(found) != layer_end):
        return found
    # not read, or with a head that looks like one more MLP
    if _chooses(run, rest, layer_end):
        return layer_end
    mixed = bool({EXPERTS, "moe.router"} & {*layer_end})
    mixed |= any(run.kinds[at].name in GROUPED for at in rest)
    if not mixed and _bends_output(run, rest, layer_end):
        return found or ("attention.output",)  # a last layer of fewer streams (Stable Diffusion 3)
    return ("attention.output",) if mixed else layer_end


def _chooses(run: Run, places: list[int], pattern: Pattern) -> bool:
    """Does a kernel choose experts right behind what would be the router?"""
    router = pattern.index("moe.router") if "moe.router" in pattern else len(places)
    stop = [*places, len(run)][router + 1 : router + 2]
    return any("router" in kind.tags for end in stop for kind in run.kinds[places[router] : end])


def _bends_output(run: Run, places: list[int], pattern: Pattern) -> bool:
    """Is something bent right behind what would be an output projection?"""
    outputs = (
        pair for pair, part in zip(pairwise(places), pattern, strict=False) if part == "attention.output"
    )
    return any(activates(kind) for at, behind in outputs for kind in run.kinds[at:behind])


def _label_layers(run: Run, cores: list[Core], gaps: list[list[int]], patterns: list[Pattern]) -> None:
    """Name each core and the products behind it, and count the layers."""
    layer = 0
    plain = any(run.kinds[at].what == "gemm" for places in gaps for at in places)
    for core, places, pattern in zip(cores, gaps, patterns, strict=True):
        run.labels.update({at: Label(component, layer) for at, component in core.parts.items()})
        named = [*zip(places, pattern, strict=False)]
        batched = {at: c for at, c in named if plain and run.kinds[at].what == "bmm" and c in _LINEAR}
        left = _MLP if {*_MLP} & {*batched.values()} else ()
        for (at, component), before in zip(named, [None, *pattern], strict=False):
            # a layer without attention begins behind the MLP of the layer before, as any layer; attention to
            # another sequence is of the layer whose attention to itself is before it
            layer += component != "" and (
                (before == "mlp.down" != component)
                or (component == QUERIES and before not in (component, "attention.output", None))
            )
            layer -= before == "mlp.down" and component == "logits"
            if component == QUERIES and before == "":
                run.joints.add(layer)
            if at in batched and component == before == QUERIES:  # of these and of positions, for the scores
                run.labels[at] = Label("attention.other", layer)
            elif component and at not in batched and component not in left:
                run.labels[at] = Label(component, None if component == "logits" else layer)


def _label_adapters(run: Run, gaps: list[list[int]]) -> None:
    """The sums behind low-rank adapters."""
    found = [adapters(run, places) for places in gaps]
    if any(are_adapters(run, products) for products in found):
        for at in (at for products in found for at in products[1::2] if at in run.labels):
            name_sum(run, at)


def _patterns(run: Run, between: list[list[int]], keys: Mapping[int, object]) -> list[Pattern] | None:
    """What the products of each gap between two cores are, "" where that stays open.

    None where most gaps admit no reading that other gaps have too: there can be several kinds of layers, an
    encoder and a decoder, or two models. What is read as no other gap joins two models, or holds a layer with
    a core that no name tells. There every product is what its equal is elsewhere, or the one that makes
    queries, between the MLP and that kernel.
    """
    cores = [core for core in run.cores if not core.backward]
    read = [
        read_gap(run, places) or (read_two(run, places) if _is_of_two(run, *ends) else None)
        for places, ends in zip(between, pairwise(cores), strict=True)
    ]
    merged = [
        pattern is not None and _merges(run, places, pattern)
        for places, pattern in zip(between, read, strict=True)
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
    equal = _equals([*zip(between, usual, strict=True)], keys)
    out: list[Pattern] = []
    for number, (places, pattern) in enumerate(zip(between, usual, strict=True)):
        parts = [equal(at) for at in places]
        own = None if merged[number] else read[number]
        beside = own if own and tuple(filter(None, own)) in usual else None  # of other work, as others
        found = pattern or beside or _with_equal_attention(own, parts) or _of_equals(run, places, parts)
        if found is None:
            before = next((p for p in reversed(usual[:number]) if p), None)
            after = next((p for p in usual[number:] if p), None)
            found = _at_the_ends(read[number], len(places), before or after or (), after or before or ())
        if found is None:
            return None
        out.append(found)
    return [pattern for pattern in _without_more_queries([*out]) if pattern is not None]


def _is_of_two(run: Run, *cores: Core) -> bool:
    """Is each of these two attentions side by side?"""
    return all(len(core.parts) == _TWO and run.kinds[core.first].what == "core" for core in cores)


def _merges(run: Run, places: list[int], pattern: Pattern) -> bool:
    """Is what is normalized put together first, by patches that are merged or by another stage? Its product
    makes no queries. A token is put before a stream that comes as the MLP gives it, and normalized once; of
    latent attention queries can be put together before its keys are normalized."""
    start, stop = places[0], places[-1]
    norms = normalizations(run, start, stop)
    put = next((at - 1 for at in norms if run.kinds[at - 1].name == "cat"), None)
    ahead = [c for at, c in zip(places, pattern, strict=False) if put is not None and at < put]
    if put is None or ahead[-1:] == [QUERIES]:
        return False
    bent = max((at for at in range(start, put) if run.kinds[at].what == "activation"), default=start)
    comes = len(run.products(bent, put)) == 1 or {*ahead} == {"attention.output"}
    return put + 1 != norms[-1] or not comes


def _of_layers(
    between: list[list[int]], read: list[Pattern | None], keys: Mapping[int, object]
) -> list[Pattern | None]:
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
        or pattern.count("mlp.down") < _TWO
        or all(seen[keys[at], c] > 1 for at, c in zip(places, pattern, strict=False) if c == "mlp.down")
        else None
        for places, pattern in zip(between, read, strict=True)
    ]


def _without_more_queries(read: list[Pattern | None]) -> list[Pattern | None]:
    """The readings with no more products of queries than most layers that are equal but for these: those
    ahead of them lead from one stage of a model to the next (Swin's, Hiera's) and stay open."""
    counts: dict[Pattern, Counter[int]] = {}
    for known in filter(None, read):
        counts.setdefault(_rest(known), Counter())[known.count(QUERIES)] += 1
    out: list[Pattern | None] = []
    for pattern in read:
        rest = _rest(pattern or ())
        usual = counts[rest].most_common(1)[0][0] if pattern else 0
        more = (pattern or ()).count(QUERIES) - usual
        out.append((*rest, *[""] * more, *[QUERIES] * usual) if pattern and more > 0 < usual else pattern)
    return out


def _rest(pattern: Pattern) -> Pattern:
    return tuple(component for component in pattern if component != QUERIES)


def _with_equal_attention(own: Pattern | None, equal: list[set[str]]) -> Pattern | None:
    """The reading of a gap as no other, whose attention runs the kernels that the others' does: a layer with
    another MLP."""
    if own is None or own.count("mlp.down") >= _TWO:
        return None
    same = all(c in parts for c, parts in zip(own, equal, strict=False) if c.startswith("attention"))
    return own if same else None


def _at_the_ends(own: Pattern | None, size: int, before: Pattern, after: Pattern) -> Pattern | None:
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


def _brief(pattern: Pattern) -> Pattern:
    """The pattern with one MLP (some layers have no attention) and with one product for all experts (how many
    get tokens differs from layer to layer)."""
    short = _once(pattern)
    return tuple(c for c, before in zip(short, ("", *short), strict=False) if c != before or c != EXPERTS)


def _equals(
    read: Sequence[tuple[list[int], Pattern | None]], keys: Mapping[int, object]
) -> Callable[[int], set[str]]:
    """What products with the kernel and the grid of that at a position are, by these readings."""
    known: dict[object, set[str]] = {}
    for places, pattern in read:
        for at, component in zip(places, pattern or (), strict=False):
            known.setdefault(keys[at], set()).add(component)
    return lambda at: known.get(keys[at], set())


def _as_equals(run: Run, rest: list[int], found: Pattern, equal: Callable[[int], set[str]]) -> Pattern:
    """The reading ``found`` behind the last core; where it makes of a product what no equal one is, that of
    the equals up to the last MLP that they show."""
    parts = [equal(at) for at in rest]
    if all(not part or component in part for component, part in zip(found, parts, strict=False)):
        return found
    ends = (_of_equals(run, rest[:size], parts[:size]) for size in range(len(rest), 0, -1))
    return next((one for one in ends if one and one[-1] == "mlp.down"), found)


def _of_equals(run: Run, places: list[int], equal: list[set[str]]) -> Pattern | None:
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
    # queries can be as large as an output, or as an MLP's first; that of a core is ahead of the next one's
    other = out[-1] in ("mlp.up", "mlp.gate") or (
        QUERIES in out and "attention.output" in out[out.index(QUERIES) :]
    )
    return None if other else tuple(out)


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
    """The pattern with one MLP, or one of each of two models: some layers have no attention."""
    pairs = enumerate(pairwise((*pattern, "")), 1)  # adapters have the names of what they adapt
    ends = [at for at, (component, behind) in pairs if component == "mlp.down" != behind]
    end = [*ends, len(pattern)][min(pattern.count("attention.output"), _TWO) - 1 if len(ends) > 1 else 0]
    return (*pattern[:end], *(component for component in pattern[end:] if not component.startswith("mlp.")))
