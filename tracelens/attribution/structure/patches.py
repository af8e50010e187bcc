"""A picture's patches before the first layer: laid out, put in order, chosen, given positions and merged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from math import prod

from tracelens.attribution.structure.grammar import Gap, Grammar, many, matches, named, one, what
from tracelens.attribution.structure.positions import WAVES
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import VIEWS
from tracelens.attribution.structure.walk import is_product

_EMBEDS = Label("embedding")
_OF_STREAM = 3  # dimensions: samples, tokens, channels
_ROOTS = ("rsqrt", "sqrt", "var", "var_mean", "std")


# Between two stages (Swin, arXiv 2103.14030): places of each kind side by side, and a linear layer that makes
# no queries, a norm before or behind it.

MERGED = Grammar(
    "patches merged",
    (
        many("embedding", named("slice"), least=4),
        one("embedding", named("cat")),
        one("norm", what("norm"), least=0),
        one("embedding", what("gemm")),
        one("", what("norm"), Gap("", what("copy"))),
    ),
)


def label_merged(run: Run) -> None:
    """Name what merges patches, of a run without shapes; fills ``run.labels``."""
    for found in matches(run, MERGED, taken={at for core in run.cores for at in core.parts}):
        run.labels |= {at: Label(part, evidence="local") for at, part in found.components.items()}


def label_laid_side_by_side(run: Run) -> None:
    """The same where one copy puts the places side by side: the only product between an MLP and the next
    queries, of a sum in another layout, normed or not; fills ``run.labels``."""
    products = run.products()
    for before, at, behind in zip(products, products[1:], products[2:], strict=False):
        ends = [label.component for end in (before, behind) if (label := run.labels.get(end)) is not None]
        ahead = [p for p in range(before, at) if run.kinds[p].name not in VIEWS | {"unsqueeze", "squeeze"}]
        ahead = ahead[:-1] if run.kinds[ahead[-1]].what == "norm" else ahead
        laid = [*takewhile(lambda p: run.kinds[p].what == "copy", reversed(ahead))]
        summed = run.kinds[ahead[-len(laid) - 1]].what == "add"
        if laid and summed and "layout" in run.kinds[laid[-1]].tags and ends == ["mlp.down", "attention.qkv"]:
            for place in (*laid, at) if at not in run.labels else ():
                run.labels.setdefault(place, Label("embedding", evidence="local"))


def label_patches(run: Run, *, rotated: bool) -> None:
    """Name the open units around patches ``embedding``, or what makes rotations of heads where the run is
    ``rotated``; fills ``run.labels``."""
    samples = {t[0] for kind in run.kinds for t in kind.tensors[:1] if len(t) == _OF_STREAM}
    for at in [*_among_patches(run)]:
        near = run.kinds[max(at - WAVES, 0) : at + WAVES]
        waves = [kind.tensors[:1] for kind in near if kind.name in ("cos", "sin")]
        times = any(len(t) == 2 and t[0] in samples for given in waves for t in given)  # one of each
        turns = rotated and bool(waves) and not times
        if () in waves and not turns:
            continue  # without shapes: of positions, of heads that turn in a way not known, or of a time
        run.labels[at] = Label("attention.rope" if turns else "embedding")


def _among_patches(run: Run) -> Iterator[int]:
    """Open units between a picture's patches and the last of what is added to them, put beside them or chosen
    among them: they make its positions, its masks and its choices. What lays the patches out comes first."""
    products = [at for at, label in run.labels.items() if label.component == "embedding"]
    products = sorted(at for at in products if run.kinds[at].what in ("convolution", "gemm"))
    if products and run.follows is None:
        yield from _lays_patches_out(run, products[0])
    for first in products:
        open_: list[int] = []
        for at in range(first + 1, len(run)):
            own = run.kinds[at].what == "norm" and at == first + 1  # of the patches themselves
            if is_product(run, at) or (run.labels.get(at, _EMBEDS).component != "embedding" and not own):
                break
            open_.append(at)
            if at in run.labels and not own:
                normalizes = any(run.kinds[place].name in _ROOTS for place in open_)  # in a way not known
                yield from (place for place in open_ if place not in run.labels and not normalizes)
                open_ = []


def _lays_patches_out(run: Run, product: int) -> Iterator[int]:
    """Right before the product on patches, copies of all of them and of the picture they are cut from."""
    shape = run.shape(product)
    for at in range(product - 1, -1, -1):
        kind = run.kinds[at]
        if kind.what not in ("copy", "dispatch", "norm") and kind.name not in VIEWS:
            break
        pictures = (t for t in kind.tensors if len(t) > 2)
        if at not in run.labels and shape is not None and any(prod(t) >= shape.m for t in pictures):
            yield at
