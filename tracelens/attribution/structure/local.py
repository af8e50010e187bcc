"""What can be told of a run without the whole model, by the grammars of single layers."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from math import prod

import numpy as np

from tracelens.attribution.structure.adapters import adapters
from tracelens.attribution.structure.attention_grammars import AT_PLACES, WITHOUT_SCORES
from tracelens.attribution.structure.expert_grammars import LATENT, SHARED_EXPERTS
from tracelens.attribution.structure.grammar import PRODUCT, Match, matches
from tracelens.attribution.structure.grammars import MIXERS, MIXTURES
from tracelens.attribution.structure.maps import MAPS
from tracelens.attribution.structure.norms import adds, written_norms
from tracelens.attribution.structure.pair_grammars import OUTER, TRIANGLE
from tracelens.attribution.structure.part_grammars import (
    BACK_TO_STREAM,
    CLIPPING,
    CONDITIONS,
    DROP_PATH,
    DROPOUTS,
    HEAD,
    INNER_MLPS,
    LONE_MLPS,
    ONE_HOT,
    PROJECTION_HEAD,
    TO_OTHER_STREAM,
    TOKEN_MLP,
)
from tracelens.attribution.structure.returns import OPEN
from tracelens.attribution.structure.runs import Excerpt, Label, Run
from tracelens.attribution.structure.units import CLIPS, CUTS, VIEWS, Dims, Kind, Units
from tracelens.attribution.structure.walk import FEW, activates, chooses, embeds, lays_out_core, loses
from tracelens.gemm.inductor_ops import NONLINEAR

_BETWEEN_LAYERS = (["mlp.down", "attention.qkv"], ["attention.output", "attention.qkv"])
_DRAWS = ("rand", "rand_like", "uniform_")
_COMPARES = ("ge", "gt", "lt", "le")
_MASKED = 64  # units behind what is drawn to what it drops, at most: a module in between
_OF_CLASSES = ("log_softmax", "nll_loss", "cross_entropy", "CrossEntropy")  # what such losses begin with
_IN_HEAD = ("activation", "norm", "dropout", "copy")  # between a head's two layers
_AHEAD_OF_HEAD = (*_IN_HEAD, "elementwise", "add", "fused", "helper")
_ONES = ("fill_", "ones_like")
_SHARES = ("div", "mul", "add")
_LOCAL = (MIXTURES, SHARED_EXPERTS, LATENT, AT_PLACES, WITHOUT_SCORES, LONE_MLPS)


def without_mixers(run: Run) -> Excerpt:
    """Name the layers of a forward or recomputed run that take the place of attention, and what makes their
    conditions, wherever they stand; returns the run without them, and without what adapts a product."""
    beside = {at for adapter in adapters(run).values() for at in adapter}
    plain = [at for at in range(len(run)) if at not in beside]
    bare = run.part(plain) if beside else run
    for found in matches(bare, *MIXERS, *CONDITIONS):
        parts = found.components
        for edge, own in ((found.start - 1, found.start), (found.stop, found.stop - 1)):
            if 0 <= edge < len(bare) and own in parts and bare.kinds[edge].name in CLIPS:
                parts[edge] = parts[own]  # of what it takes, and of what it gives
        run.labels |= {plain[at]: Label(name, evidence="local") for at, name in parts.items()}
    kept = [at for at in plain if at not in run.labels]
    rest = Excerpt(run, kept, run.part(kept) if len(kept) < len(run) else run)
    for found in matches(rest.run, TRIANGLE, OUTER):
        rest.run.labels |= {at: Label(name, evidence="local") for at, name in found.components.items()}
    return rest


def mark_dropouts(run: Run) -> None:
    """Units of a dropout that is written out become dropout, and so does the product with a mask that rows or
    columns share (AlphaFold, Algorithm 6)."""
    written = {at for found in matches(run, *DROPOUTS) for at in found.components}
    for mask, made in _masks(run):
        near = range(made[-1] + 1, min(made[-1] + _MASKED, len(run)))
        drops = next((at for at in near if _takes_mask(run.kinds[at], mask)), -1)
        written |= {*made, drops} if drops >= 0 else set()
    for at in written:
        run.kinds[at] = replace(run.kinds[at], what="dropout")


def _masks(run: Run) -> Iterator[tuple[Dims, Sequence[int]]]:
    """What is dropped, by an operator or by numbers drawn, compared and scaled, and what makes that."""
    for at, kind in enumerate(run.kinds):
        if kind.what == "dropout" and kind.tensors:
            yield kind.tensors[0], [at]
        elif (
            kind.name in _DRAWS and (compared := run.kinds[at + 1 : at + 2]) and compared[0].name in _COMPARES
        ):
            mask = next(iter(compared[0].tensors), ())
            own = takewhile(lambda p: {*run.kinds[p].tensors} <= {mask}, range(at + 1, len(run)))  # noqa: B023
            yield mask, [at, *own]


def _takes_mask(kind: Kind, mask: Dims) -> bool:
    """Is it multiplied with the smaller of two?"""
    two = kind.tensors[:2]
    return kind.name in ("mul", "mul_") and mask in two and prod(mask) < max(map(prod, two))


def label_local(run: Run, *, attends: bool) -> None:
    """Name the units of mixtures of experts, deformable attention, lone MLPs and stochastic depth that
    have no name yet; fills ``run.labels``.

    Two linear layers are surely an MLP only where there is attention somewhere. ``attends``: it is in some
    run; a model without it has no logits, and what a loss of classes takes is ``other``, of words unknown.
    """
    for found in matches(run, HEAD):  # of classes, from a few rows of another width
        if run.cores or (not attends and _chooses(run, found.start) and not _onto_words(run, found.start)):
            for at in (found.start, *_other_heads(run, found.start, found.stop)):
                run.labels.setdefault(at, Label("logits" if attends else "other", evidence="local"))
            run.labels |= {at: Label("other", evidence="local") for at in _hidden_layer(run, found.start)}
    for found in matches(run, ONE_HOT) if run.cores else ():
        if found.stop <= run.cores[0].first:  # experts are chosen so, too
            run.labels |= {at: Label(part, evidence="local") for at, part in found.components.items()}
    run.labels |= {
        at: Label("attention.core", evidence="local")
        for at, kind in enumerate(run.kinds)
        if at not in run.labels and lays_out_core(kind)
    }
    for found in matches(run, DROP_PATH):
        for at, part in found.components.items():
            run.labels.setdefault(at, Label(part, evidence="local"))
    for grammars in _LOCAL if run.cores else _LOCAL[:-1]:
        # what makes values that are read at places can look like a head's first layer
        guessed = {at for at, label in run.labels.items() if label.component == "other"}
        guessed = guessed if grammars == AT_PLACES else set()
        taken = run.labels.keys() - guessed
        taken |= {at for core in run.cores for at in core.parts if PRODUCT(run.kinds[at])}
        layers = [*matches(run, *grammars, taken=taken)]
        normed = written_norms(run) if layers and grammars is LONE_MLPS else set()
        for found in layers:
            for at, component in found.components.items():
                part = "norm" if at in normed and component == "mlp.activation" else component
                if at in guessed or at not in run.labels:
                    run.labels[at] = Label(part, evidence="local")


def _onto_words(run: Run, head: int) -> bool:
    """Onto as many columns as a table before it has rows: a model of words without any attention has layers
    that nobody knows here, and its head is none of what is surely no transformer."""
    shape = run.shape(head)
    tables = {t for kind in run.kinds[:head] if embeds(kind) for t in kind.tensors if len(t) == 2}
    return shape is None or (shape.n, shape.k) in tables


def _other_heads(run: Run, head: int, loss: int) -> list[int]:
    """The head before it whose classes are added to its own, and that sum (DeiT, arXiv 2012.12877)."""
    before = next((at for at in range(head - 1, -1, -1) if PRODUCT(run.kinds[at])), -1)
    behind = [at for at in range(head + 1, loss) if run.kinds[at].name not in VIEWS]
    shapes = [(s.m, s.n, s.k) if (s := run.shape(at)) else (at, -1, -1) for at in (before, head)]
    classes = run.kinds[behind[0]].tensors[:1] if behind and adds(run.kinds[behind[0]]) else ()
    alike = shapes[0] == shapes[1] and _chooses(run, head)
    return [before, *behind] if alike and classes and classes[0][-1] == shapes[1][1] else []


def _hidden_layer(run: Run, head: int) -> list[int]:
    """Of a head of two layers the first and its activation, where they have no name yet."""
    before = next((at for at in range(head - 1, -1, -1) if PRODUCT(run.kinds[at])), -1)
    between = range(before + 1, head)
    shape, classes = run.shape(before), run.shape(head)
    if before < 0 or before in run.labels or not (shape and classes):
        return []
    bends = [at for at in between if run.kinds[at].what == "activation" and at not in run.labels]
    alone = all(run.kinds[at].what in _IN_HEAD for at in between)
    return [before, *bends] if bends and alone and (shape.m, shape.n) == (classes.m, classes.k) else []


def _chooses(run: Run, start: int) -> bool:
    """Is the loss behind it of classes?"""
    loss = next(at for at in range(start, len(run)) if loses(run, at))
    return any(word in run.kinds[loss].name for word in _OF_CLASSES)


def label_between_layers(run: Run) -> None:
    """Name between a layer and the next attention what has no name yet: MLPs of its tokens, or that give the
    stream's width and do not widen, without shapes those of ReLUs that come again (not what leads to another
    model), and what goes back to the stream of narrower layers; fills ``run.labels``."""
    if not run.cores:
        return
    products = {at: label.component for at, label in sorted(run.labels.items()) if PRODUCT(run.kinds[at])}
    places, tokens = [*products], run.cores[0].tokens or 0
    fitting, bare = list[Match](), list[Match]()
    for found in matches(run, *INNER_MLPS, BACK_TO_STREAM, taken=run.labels.keys()):
        at = bisect(places, found.start)
        around = [products[place] for place in places[max(at - 1, 0) : at + 1]]
        if found.grammar is BACK_TO_STREAM:
            closes = run.shape(places[at - 1]) if around[:1] == ["mlp.down"] else None
            fits = closes is not None and closes.m == found["tokens"]
        elif "tokens" not in found.sizes:
            bent = run.kinds[found.start + 1].name.startswith("relu")
            bare += [found] if bent and around in _BETWEEN_LAYERS else []
            continue
        else:
            makes = run.shape(places[at]) if around in _BETWEEN_LAYERS else None
            fits = makes is not None and (
                found["tokens"] == makes.m or found["given"] >= makes.k == found["hidden"]
            )
        if fits and found["tokens"] * FEW > tokens:
            fitting.append(found)
    for found in (*fitting, *bare) if len(bare) > 1 else fitting:
        for place, component in found.components.items():
            run.labels.setdefault(place, Label(component, evidence="local"))


def label_projection_heads(run: Run) -> None:
    """Name what projects the last layer's tokens of a pass ``other`` (between two models it leads to the
    next), and what brings tokens from one stream to another; fills ``run.labels``."""
    products = sorted(at for at in run.labels if PRODUCT(run.kinds[at]))
    streams = {
        s.n for at in products if run.labels[at].component == "attention.output" and (s := run.shape(at))
    }
    tokens = (run.cores[-1].tokens or 0) if run.cores else 0
    for found in matches(run, PROJECTION_HEAD, taken=run.labels.keys()) if streams else ():
        last = next((at for at in reversed(products) if at < found.start), found.start)
        normed = any(kind.what == "norm" for kind in run.kinds[last + 1 : found.start])
        # of several neighbours' channels side by side as well (DeepSeek-OCR's aligner)
        given = {found["hidden"]}
        given |= {wide for wide in streams if found["rows"] * found["hidden"] == tokens * wide}
        if (
            len(streams) == 1
            and streams <= given
            and normed
            and run.labels.get(last, OPEN).component == "mlp.down"
        ):
            for at in found.components:
                if not _ends_wide(run, at):
                    run.labels.setdefault(at, Label("other"))
    for found in matches(run, TO_OTHER_STREAM, taken=run.labels.keys()) if len(streams) > 1 else ():
        if {found["made"], found["given"]} <= streams:
            run.labels |= {at: Label("other", evidence="local") for at in found.components}


def _ends_wide(run: Run, at: int) -> bool:
    """Is it the last product, onto more columns than it takes? Those can be scores, for a loss of no name."""
    shape = run.shape(at)
    return shape is not None and shape.n > shape.k and not run.products(at + 1)


def label_token_mlps(run: Run) -> None:
    """Name the MLPs of three layers behind the last attention, of a few tokens each, or without shapes of one
    that is picked right before, and those behind that; and behind any attention those of ReLUs, as detectors
    make boxes of every token (arXiv 2005.12872); fills ``run.labels``."""
    tokens, picked = (run.cores[-1].tokens or 0) if run.cores else 0, False
    for found in matches(run, TOKEN_MLP, taken=run.labels.keys()) if run.cores else ():
        bare, start = "tokens" not in found.sizes, found.start
        picked |= bare and run.kinds[start - 1].name == "select"
        few = start > run.cores[-1].last and (picked or found.sizes.get("tokens", tokens) < tokens)
        if few or (bare and start > run.cores[0].last and run.kinds[start + 1].name.startswith("relu")):
            for at, component in found.components.items():
                run.labels.setdefault(at, Label(component, evidence="local"))


def label_heads(run: Run, keys: Mapping[int, object]) -> None:
    """Name the products whose results losses take, and of several heads side by side the others, which run
    the same kernel (``keys``) right before; fills ``run.labels``."""
    products = run.products()
    for found in matches(run, HEAD):
        run.labels.setdefault(found.start, Label("logits"))
        heads = [at for at in products if at <= found.start]
        for before, at in pairwise(reversed(heads)) if run.labels[found.start] == Label("logits") else ():
            between = run.kinds[at + 1 : before]
            beside = all(kind.what == "copy" or kind.name in VIEWS | CUTS for kind in between)
            if at in run.labels or keys[at] != keys[before] or not beside:
                break
            run.labels[at] = Label("logits")


def label_ahead_of_head(run: Run) -> None:
    """Without shapes: name the linear layers between the last of the model and its head ``other``, where each
    is bent, and nothing but norms is beside; what is brought to one length is compared next, with no head
    (MoCo, arXiv 2104.02057); fills ``run.labels``."""
    last = max((core.last for core in run.cores if not core.backward), default=len(run))
    stop = next((at for at in range(last, len(run)) if loses(run, at)), len(run))
    products = run.products(last + 1, stop)
    ends = [at for at in products if run.labels.get(at, OPEN).component == "mlp.down"]
    rest = [at for at in products if ends and at > ends[-1]]
    heads, normed = rest[-1:], written_norms(run)
    gaps = [range(at + 1, behind) for at, behind in pairwise(rest)]
    steps = [[run.kinds[p] for p in gap if p not in normed] for gap in gaps]
    plain = all(k.what in _AHEAD_OF_HEAD and k.name != "linalg_vector_norm" for gap in steps for k in gap)
    whole = [run.kinds[gap.start : gap.stop] for gap in gaps]
    bent = all(any(activates(k) or k.name in NONLINEAR for k in gap) for gap in whole)
    if plain and bent and all(run.labels.get(at, OPEN).component == "logits" for at in heads):
        run.labels |= dict.fromkeys(rest[:-1], Label("other")) | run.labels


def label_last(run: Run) -> None:
    """Without shapes: name the last product ``logits`` where it takes what the norm behind the last layer
    gives, and nothing bends, norms or adds to its result; fills ``run.labels``."""
    before, last = [-1, -1, *run.products()][-2:]
    steps = [at for at in range(last) if run.kinds[at].what != "copy" and run.kinds[at].name not in VIEWS]
    ends = run.labels.get(before, OPEN).component in ("mlp.down", "moe.experts")
    behind = {kind.what for kind in run.kinds[last + 1 :]}
    if run.cores and ends and last not in run.labels and run.shape(last) is None:
        normed = run.kinds[steps[-1]].what == "norm" or steps[-1] in written_norms(run)
        if normed and before > run.cores[-1].last and behind <= {"copy", "elementwise", "loss"}:
            run.labels[last] = Label("logits", evidence="local")


def label_sampled(run: Run) -> None:
    """Name the products onto more columns than they take, of whose results the largest or one by chance is
    chosen: the words that follow a captured model; fills ``run.labels``."""
    for at, behind in pairwise([*run.products(), len(run)]):
        shape, kinds = run.shape(at), run.kinds[at + 1 : behind]
        if shape is not None and shape.n > shape.k and any(chooses(kind, shape.n) for kind in kinds):
            run.labels[at] = Label("logits", evidence="local")


def label_fed(run: Run) -> None:
    """Name the products of as many rows and columns as a loss takes, whatever layers run between (the text of
    a model of speech, arXiv 2410.00037); fills ``run.labels``."""
    losses = [at for at in range(len(run)) if loses(run, at) and run.kinds[at].tensors]
    shapes = {at: run.shape(at) for at in run.products()} if losses else {}
    for loss in losses:
        taken = (*run.kinds[loss].tensors[0], 1)
        made = [at for at, s in shapes.items() if at < loss and s and (s.m, s.n, s.batch) == taken]
        known = any(at in run.labels and run.labels[at].component == "logits" for at in made)
        last = next((at for at in reversed(made) if at not in run.labels), None)
        if last is not None and not known and not any(kind.what in MAPS for kind in run.kinds[last:loss]):
            run.labels[last] = Label("logits")


def clipping(units: Units, phase: Sequence[str]) -> Iterator[int]:
    """Units of gradient clipping: outside forward and backward, from norms to scaling."""
    kinds = [units.kinds[kind] for kind in units.kind.tolist()]
    inside = {row for row, name in enumerate(phase) if name not in ("other", "optimizer")}
    for found in matches(Run("optimizer", [*range(len(kinds))], kinds), CLIPPING, taken=inside):
        yield from found.components


def turns(units: Units, phase: Sequence[str]) -> Iterator[int]:
    """Units in which a forward turns into its backward: the loss's gradient to itself, which is one, and
    ahead of it the loss's share of a step (gradients that accumulate) or its sum with another."""
    ones, shares = (
        [kind for kind, one in enumerate(units.kinds) if one.name in names and not one.tensors]
        for names in (_ONES, _SHARES)
    )
    for at in np.flatnonzero(np.isin(units.kind, ones)).tolist():
        if at and [*phase[at - 1 : at + 2]] == ["forward", "other", "backward"]:
            yield at
            if units.kind[at - 1] in shares:
                yield at - 1
