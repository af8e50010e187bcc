"""The grammars of linear layers around experts: of one for all tokens, and to and from narrower ones."""

from __future__ import annotations

from tracelens.attribution.structure.grammar import Gap, Grammar, InPlace, Match, named, no, one, some, what
from tracelens.attribution.structure.grammars import GROUPED
from tracelens.attribution.structure.units import VIEWS


def _behind(*components: str) -> InPlace:
    """Places right behind a unit of one of these components, but for copies and views."""

    def is_behind(it: Match, at: int) -> bool:
        ahead = range(at - 1, -1, -1)
        before = next((p for p in ahead if it.kinds[p].what != "copy" and it.kinds[p].name not in VIEWS), -1)
        return before in it.run.labels and it.run.labels[before].component in components

    return is_behind


_IS_BEHIND = _behind("moe.dispatch")


def _ahead_of_router(it: Match) -> bool:
    places = (at for at in range(it.stop, len(it.kinds)) if it.kinds[at].name not in VIEWS)
    label = it.run.labels.get(next(places, -1))
    return it.run.shape(it.start) is None and label is not None and label.component == "moe.router"


# An expert of all tokens behind the others of a mixture (arXiv 2401.06066), where no shapes tell: what it
# gives is added to what they gave, and that to the stream. Or it is ahead of the router, and what weighs it
# behind the mixture (transformers models/qwen2_moe).

_BENDS = some("mlp.activation", what("activation", "elementwise"))
_UP_DOWN = (one("mlp.up", what("gemm")), some("mlp.activation", named("mul")), one("mlp.down", what("gemm")))
_ADDED = (
    one("moe.dispatch", what("add")),
    one("residual", what("add"), Gap("residual", what("copy", "dropout"))),
)

SHARED_EXPERTS = (
    Grammar(
        "gated expert of all tokens",
        (one("mlp.gate", what("gemm"), where=_IS_BEHIND), _BENDS, *_UP_DOWN, *_ADDED),
    ),
    Grammar(
        "expert of all tokens",
        (one("mlp.up", what("gemm"), where=_IS_BEHIND), _BENDS, one("mlp.down", what("gemm")), *_ADDED),
    ),
    Grammar(
        "expert of all tokens ahead of the router",
        (one("mlp.gate", what("gemm")), _BENDS, *_UP_DOWN),
        where=_ahead_of_router,
    ),
    Grammar(
        "weight of the expert of all tokens",
        (
            one("moe.experts", what("gemm"), where=_IS_BEHIND),
            one("moe.dispatch", named("sigmoid")),
            one("moe.dispatch", named("mul")),
            *_ADDED,
        ),
    ),
)

# Experts that are narrower than the stream, where no shapes tell: a linear layer to them stands behind the
# choice, and one from them behind what puts their results together (LatentMoE of Nemotron 3).


def _sorted_since(it: Match, at: int) -> str:
    sorts = any(kind.what == "dispatch" for kind in it.kinds[it.start : at + 1])
    return "moe.dispatch" if sorts and at not in it.run.labels else ""


def _of_stream(it: Match, at: int) -> str:
    """A sum with no number, and not the norm that its result can have."""
    return "residual" if it.kinds[at].what == "add" and not it.kinds[at].tags else ""


def _without_shapes(it: Match) -> bool:
    return it.run.shape(it.start) is None


_LAYER = no(named(*GROUPED), no(what("gemm")))

LATENT = (
    Grammar(
        "linear layer to experts",
        (
            one("moe.experts", _LAYER, where=_behind("moe.router", "moe.dispatch")),
            one("", named(*GROUPED), Gap(_sorted_since, no(what("gemm", "bmm", "core", "activation")))),
        ),
        where=_without_shapes,
        new=_LAYER,
    ),
    Grammar(
        "linear layer from experts",
        (
            one("moe.experts", _LAYER, where=_IS_BEHIND),
            one(_of_stream, what("add", "norm"), Gap("", what("copy"))),
        ),
        where=_without_shapes,
    ),
)
