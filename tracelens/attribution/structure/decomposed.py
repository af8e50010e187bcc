"""Adapters that split a weight in its direction and its length (DoRA, arXiv 2402.09353).

Beside the product that it adapts (peft, tuners/lora/dora.py) stand the two products of its rank, on the unit
matrix and on the tokens, the length of all columns, and, behind a dropout, that product once more.
"""

from __future__ import annotations

from tracelens.attribution.structure.grammar import PRODUCT, Gap, Grammar, matches, named, no, one, what
from tracelens.attribution.structure.runs import Label, Run
from tracelens.attribution.structure.units import VIEWS

_AHEAD = Gap("beside", no(PRODUCT, what("norm", "softmax", "activation", "loss", "convolution")))
_RIGHT = Gap("beside", named(*VIEWS, "copy_", "to"))

DECOMPOSED = Grammar(
    "decomposed adapter",
    (
        one("", what("gemm"), m="tokens", n="wide", k="hidden"),
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


def decomposed(run: Run) -> dict[int, dict[int, str]]:
    """By the product that is adapted, all that is beside it: products, and what is none."""
    return {found.start: found.components for found in matches(run, DECOMPOSED)}


def label_decomposed(run: Run) -> None:
    """Name what adapts a product after that; fills ``run.labels``."""
    for base, beside in decomposed(run).items():
        label = run.labels.get(base)
        if label is None or "." not in label.component:
            continue
        other = f"{label.component.partition('.')[0]}.other"
        for at, part in beside.items():
            own = label.component if part == "product" else other
            kind = run.kinds[at].what
            run.labels[at] = Label(
                "dropout" if kind == "dropout" else own, label.layer, evidence=label.evidence
            )
