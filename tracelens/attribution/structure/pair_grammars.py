"""Work on pairs of residues that is neither attention nor an MLP (AlphaFold 2, Algorithms 10 to 12)."""

from __future__ import annotations

from tracelens.attribution.structure.grammar import (
    PRODUCT,
    Gap,
    Grammar,
    either,
    many,
    named,
    no,
    one,
    some,
    what,
)
from tracelens.attribution.structure.norms import adds

_OUTSIDE = what("norm", "core", "softmax", "loss", "embedding")
_BESIDE = Gap("other", no(PRODUCT, _OUTSIDE, adds))
_AVERAGED = Gap("other", no(PRODUCT, _OUTSIDE))
_COPIED = Gap("other", named("copy_"))
_FILLED = Gap("dropout", named("full", "ones", "fill_"))

# Both edges of a pair that lead to a third residue are multiplied, for each channel by itself, and normed.

TRIANGLE = Grammar(
    "triangle multiplication",
    (
        some("other", what("gemm"), _BESIDE, m="pairs", k="channels"),
        one("other", what("bmm"), _BESIDE, batch="each", m="side", n="side", k="side"),
        one("norm", what("norm"), _BESIDE),
        one("other", what("gemm"), _BESIDE, m="pairs"),
        many("other", what("gemm"), _BESIDE, m="pairs", k="channels"),
        one("other", named("mul"), _BESIDE),
        many("dropout", either(what("dropout"), named("mul", "mul_")), _FILLED),  # of rows or columns
        one("residual", adds, least=0),
    ),
    where=lambda it: it["pairs"] % (it["side"] * it["side"]) == 0 and it["side"] > 1,
    shaped=True,
)

# Two narrow linear layers of the sequences; the product of both, of all channels of one with all of the
# other, is averaged over the sequences and brought to the pairs.

OUTER = Grammar(
    "outer product mean",
    (
        one("other", what("gemm"), m="rows", n="few", k="width"),
        one("other", what("gemm"), _BESIDE, m="rows", n="few", k="width"),
        one("other", what("bmm"), _BESIDE, m="columns", n="columns", k="sequences"),
        one("other", what("gemm"), _BESIDE, k="both"),
        many("other", what("bmm"), _AVERAGED, k="sequences"),
        many("other", either(named("div"), lambda kind: kind.name == "add" and not adds(kind)), _COPIED),
        one("residual", adds, least=0),
    ),
    where=lambda it: it["both"] == it["few"] ** 2 and it["columns"] % it["few"] == 0,
    shaped=True,
)
