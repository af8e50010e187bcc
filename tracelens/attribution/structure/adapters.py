"""Adapters: what runs beside a product to change what it gives, and has the name of that."""

from __future__ import annotations

from math import prod

from tracelens.attribution.structure.grammar import (
    PRODUCT,
    Gap,
    Grammar,
    Match,
    many,
    matches,
    named,
    no,
    one,
    some,
    what,
)
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import CUTS, VIEWS
from tracelens.attribution.structure.walk import LARGEST_RANK

_BASE = "base"  # the product that is adapted

_AHEAD = Gap("beside", no(PRODUCT, what("norm", "softmax", "activation", "loss", "convolution")))
_RIGHT = Gap("beside", named(*VIEWS, "copy_", "to"))
_CUT = Gap("beside", named(*VIEWS, *CUTS))


def _adds_few(it: Match) -> bool:
    """Are the results of both added, the adapter's of a small rank?"""
    (added,) = it.places[-1]
    whole = it["tokens"] * it["wide"]
    small = it["rank"] <= LARGEST_RANK and 2 * it["rank"] <= max(it["hidden"], it["wide"])
    return small and [prod(t) for t in it.kinds[added].tensors[:2]] == 2 * [whole]


#: Two products of a small rank beside it, scaled and added, which is its own sum (LoRA, arXiv 2106.09685;
#: peft, tuners/lora/layer.py).
LOW_RANK = Grammar(
    "low-rank adapter",
    (
        one(_BASE, what("gemm"), m="tokens", n="wide", k="hidden"),
        one("product", what("gemm"), _AHEAD, m="tokens", n="rank", k="hidden"),
        one("product", what("gemm"), _RIGHT, m="tokens", n="wide", k="rank"),
        one("product", named("mul"), _RIGHT, least=0),
        one("product", named("add", "add_"), _RIGHT),
    ),
    _adds_few,
    shaped=True,
)

#: A weight split in its direction and its length (DoRA, arXiv 2402.09353; peft, tuners/lora/dora.py): the
#: two products of its rank, on the unit matrix and on the tokens, the length of all columns, and, behind a
#: dropout, the product once more.
DECOMPOSED = Grammar(
    "decomposed adapter",
    (
        one(_BASE, what("gemm"), m="tokens", n="wide", k="hidden"),
        one("product", what("gemm"), _AHEAD, m="hidden", n="rank", k="hidden"),
        one("product", what("gemm"), _RIGHT, m="hidden", n="wide", k="rank"),
        one("beside", named("linalg_vector_norm"), _AHEAD),
        one("product", what("gemm"), _AHEAD, m="tokens", n="rank", k="hidden"),
        one("product", what("gemm"), _RIGHT, m="tokens", n="wide", k="rank"),
        one("product", what("gemm"), _RIGHT, least=0, m="tokens", n="wide", k="hidden"),
        one("beside", named("sub"), _RIGHT, least=0, most=2),
        one("beside", named("mul"), _RIGHT, least=3, most=3),
        one("beside", named("add"), _RIGHT, least=2, most=2),
    ),
)


def _of_weight(it: Match, at: int) -> bool:
    """Is it no larger than the weight that is adapted, and no product of the tokens?"""
    shape, most = it.run.shape(at), it["wide"] * it["hidden"]
    if shape is not None and shape.m == it["tokens"]:
        return False
    made = [shape.batch * shape.m * shape.n] if shape is not None else []
    return all(size <= most for size in (*made, *map(prod, it.kinds[at].tensors)))


def _adds_to_weight(it: Match) -> bool:
    """Is a whole weight made between the two products, and are their results added?"""
    (base,), (again,), (added,) = it.places
    weight, results = (it["wide"], it["hidden"]), it["tokens"] * it["wide"]
    makes = any(weight in kind.tensors for kind in it.kinds[base + 1 : again])
    return makes and [prod(t) for t in it.kinds[added].tensors[:2]] == 2 * [results]


_MAKES = Gap(
    "beside", no(what("norm", "softmax", "activation", "loss", "convolution", "core")), 64, _of_weight
)

#: What a weight is to change by is made whole, and multiplied by itself (LoHa and LoKr, arXiv 2309.14859;
#: peft, tuners/lycoris_utils.py).
WHOLE = Grammar(
    "whole adapter",
    (
        one(_BASE, what("gemm"), m="tokens", n="wide", k="hidden"),
        one("product", what("gemm"), _MAKES, m="tokens", n="wide", k="hidden"),
        one("beside", named("add", "add_"), _RIGHT),
    ),
    _adds_to_weight,
    shaped=True,
)


def _turns_all(it: Match) -> bool:
    """Are all blocks turned, and do they make up what the product takes?"""
    shape = it.run.shape(it.places[-1][0])
    blocks = it["count"] * it["block"] ** 2
    return it["blocks"] == blocks and shape is not None and shape.k == it["count"] * it["block"]


#: What a product takes is turned before, block by block, each by a series of its products with itself
#: (OFT, arXiv 2306.07280; peft, tuners/oft/layer.py).
ORTHOGONAL = Grammar(
    "orthogonal adapter",
    (
        one("beside", named("fill_", "zero_"), elements="blocks"),
        some("product", what("bmm"), _AHEAD, batch="count", m="block", n="block", k="block"),
        one("product", what("bmm"), _AHEAD, batch="count", m="tokens", n="block", k="block"),
        one(_BASE, what("gemm"), _RIGHT, m="tokens"),
    ),
    _turns_all,
    shaped=True,
)


def _reflects(it: Match, at: int) -> bool:
    """A product with one vector, or of two."""
    shape = it.run.shape(at)
    return shape is not None and 1 in (shape.n, shape.k)


#: A weight is mirrored at one vector after another (HRA, arXiv 2405.17484; peft, tuners/hra/layer.py).
REFLECTED = Grammar(
    "reflecting adapter",
    (
        one("beside", named("linalg_vector_norm")),
        some("product", what("gemm"), _AHEAD, where=_reflects, m="side"),
        many("product", named("mm", "matmul"), _AHEAD, n="side", k="side"),  # of the weight with that
        one(_BASE, named("linear"), _AHEAD, k="side"),
    ),
    shaped=True,
)


def _by_columns(it: Match, at: int) -> bool:
    """A number for each column that the product gives."""
    return (it["wide"],) in it.kinds[at].tensors


#: What a product gives is turned, two columns at a time, by angles of its own (RoAd, arXiv 2409.00119; peft,
#: tuners/road/layer.py).
TURNED = Grammar(
    "turning adapter",
    (
        one(_BASE, what("gemm"), m="tokens", n="wide", k="hidden"),
        one("beside", named("neg"), _AHEAD),
        one("beside", named("cat"), _RIGHT),
        one("beside", named("mul"), _RIGHT, least=2, most=2, where=_by_columns),
        one("beside", named("add"), _RIGHT),
    ),
    shaped=True,
)

#: The same without shapes: its angles and lengths are made beside it, as for no rotation of heads.
TURNED_UNSHAPED = Grammar(
    "turning adapter without shapes",
    (
        one(_BASE, what("gemm")),
        one("beside", named("cos"), _RIGHT, where=lambda it, at: not it.kinds[at].tensors),
        one("beside", named("sin")),
        one("beside", named("mul"), least=2, most=2),
        one("beside", named("neg"), _CUT),
        one("beside", named("cat")),
        one("beside", named("mul"), least=2, most=2),
        one("beside", named("add")),
    ),
)

#: Shares of what a product takes are summed, and multiplied by one matrix (MiSS, arXiv 2409.15371; peft,
#: tuners/miss/layer.py).
SHARED = Grammar(
    "sharing adapter",
    (
        one(_BASE, what("gemm"), m="tokens", n="wide", k="hidden"),
        one("beside", named("sum"), _AHEAD, elements="taken"),
        one("product", what("gemm"), _RIGHT, m="tokens", n="wide", k="rank"),
        one("beside", named("add"), _RIGHT),
    ),
    lambda it: it["taken"] == it["tokens"] * it["hidden"] and it["hidden"] % it["rank"] == 0,
    shaped=True,
)

#: Two products of full rank by random bases, each of which is weighed (RandLoRA, arXiv 2502.00987; peft,
#: tuners/randlora/layer.py).
OF_BASES = Grammar(
    "adapter of random bases",
    (
        one(_BASE, what("gemm"), m="tokens", n="wide", k="hidden"),
        one("beside", named("mul"), _AHEAD),
        one("beside", named("mul"), elements="weights"),
        one("product", what("gemm"), _AHEAD, m="tokens", n="inner", k="hidden"),
        one("product", what("gemm"), _RIGHT, m="tokens", n="wide", k="inner"),
        one("beside", named("mul"), _RIGHT),
        one("beside", named("add"), _RIGHT),
    ),
    lambda it: it["weights"] in (it["inner"] * it["hidden"], it["inner"] * it["wide"]),
    shaped=True,
)


ADAPTERS = (LOW_RANK, DECOMPOSED, WHOLE, ORTHOGONAL, REFLECTED, TURNED, TURNED_UNSHAPED, SHARED, OF_BASES)


def adapters(run: Run) -> dict[int, dict[int, str]]:
    """By the product that is adapted, all that is beside it: products, and what is none."""
    found: dict[int, dict[int, str]] = {}
    for it in matches(run, *ADAPTERS):
        base = next(at for at, part in it.components.items() if part == _BASE)
        found[base] = {at: part for at, part in it.components.items() if at != base}
    return found


def label_adapters(run: Run) -> None:
    """Name what adapts a product after that; fills ``run.labels``."""
    for base, beside in adapters(run).items():
        label = run.labels.get(base)
        if label is None:
            continue
        family, inside, _ = label.component.partition(".")
        other = f"{family}.other" if inside else family
        for at, part in beside.items():
            own = label.component if part == "product" else other
            kind = run.kinds[at].what
            run.labels[at] = Label(
                "dropout" if kind == "dropout" else own, label.layer, evidence=label.evidence
            )
