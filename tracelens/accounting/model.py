"""The model's dimensions, read off the shapes of its attributed GEMMs, each with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

from tracelens.accounting.calls import Calls
from tracelens.accounting.projected_heads import projected_kv_heads
from tracelens.attribution import Attribution
from tracelens.gemm import AttentionShape, GemmShape
from tracelens.results import Known, ModelDims
from tracelens.words import COMPONENTS, EVIDENCE, PHASES

S = TypeVar("S")
_UNKNOWN_NAMES = "not known: no GEMM of this trace is attributed to the part that shows it"
_NO_MODEL = {
    "parts": "not known: parts of a transformer were recognised, but not the whole of one",
    "none": "not known: no part of a transformer was recognised",
}


def model_dims(attribution: Attribution, calls: Calls, *, sharded: bool = False) -> ModelDims:
    """Hidden size, heads, feed-forward size, vocabulary... as the forward GEMMs of this rank show them.

    ``sharded``: ranks are seen to exchange activations, as tensor parallelism does. What no attributed GEMM
    shows stays unknown.
    """
    if not attribution.transformer:
        nothing = Known(None, _NO_MODEL[attribution.found])
        return ModelDims(attribution.found, *(nothing for _ in range(11)))
    forward = _Forward(attribution, calls)
    attention = forward.attention()
    heads = _from(attention, lambda s: s.heads, "fused attention")
    kv_heads = _from(attention, lambda s: s.kv_heads, "fused attention")
    head_dim = _from(attention, lambda s: s.head_dim, "fused attention")
    sequence = _from(attention, lambda s: s.query_len, "fused attention")
    batch = _from(attention, lambda s: s.batch, "fused attention")
    hidden = forward.gemm(
        ("attention.qkv", lambda s: s.k),
        ("mlp.up", lambda s: s.k),
        ("mlp.gate", lambda s: s.k),
        ("logits", lambda s: s.k),
    )
    if head_dim.value is None:
        head_dim = forward.gemm(("attention.scores", lambda s: s.k))
        sequence = forward.gemm(("attention.scores", lambda s: s.m))
        heads, batch, kv_heads = _unfused_heads(forward, head_dim, hidden)
    if kv_heads.value in (None, heads.value):  # attention sees every head have keys of its own
        shown = projected_kv_heads(
            forward.widths("attention.qkv"),
            layers=forward.widths("attention.output").total(),
            heads=heads.value,
            head_dim=head_dim.value,
        )
        kv_heads = shown or kv_heads
    ffn = forward.gemm(
        ("mlp.down", lambda s: s.k),
        ("moe.experts", lambda s: s.k if s.n == hidden.value != s.k else None),
    )
    vocab = forward.gemm(("logits", lambda s: s.n))
    numbered = attribution.layer >= 0
    layers = {int(layer) for layer in attribution.layer[numbered]}
    named = bool((attribution.evidence[numbered] < EVIDENCE.index("structure")).any())
    return ModelDims(
        found="whole",
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        layers=Known(len(layers), "layers named in the trace" if named else "layers counted in the step")
        if layers
        else Known(None, "no layer is named in the trace"),
        sequence=sequence,
        micro_batch=batch,
        tensor_parallel=_tensor_parallel(hidden, heads, head_dim, sharded=sharded),
        experts=_experts(forward),
    )


class _Forward:
    """The forward calls, by component."""

    def __init__(self, attribution: Attribution, calls: Calls):
        self._shapes: dict[str, list[GemmShape | AttentionShape]] = {}
        for at, shape in enumerate(calls.shape):
            if shape is not None and PHASES[attribution.phase[calls.main[at]]] in ("forward", "other"):
                component = COMPONENTS[attribution.component[calls.main[at]]]
                self._shapes.setdefault(component, []).append(shape)

    def attention(self) -> list[AttentionShape]:
        return [
            s
            for shapes in self._shapes.values()
            for s in shapes
            if isinstance(s, AttentionShape) and not s.backward
        ]

    def gemm(self, *readings: tuple[str, Callable[[GemmShape], int | None]]) -> Known:
        """The most frequent value of the first reading that the trace has."""
        for component, read in readings:
            found = _from(
                (s for s in self._shapes.get(component, []) if isinstance(s, GemmShape)), read, component
            )
            if found.value is not None:
                return found
        return Known(None, _UNKNOWN_NAMES)

    def widths(self, component: str) -> Counter[int]:
        """N of every product."""
        return Counter(s.n for s in self._shapes.get(component, []) if isinstance(s, GemmShape))

    def batches(self, component: str) -> Counter[int]:
        return Counter(s.batch for s in self._shapes.get(component, []) if isinstance(s, GemmShape))


def _from(shapes: Iterable[S], read: Callable[[S], int | None], what: str) -> Known:
    values = Counter(value for shape in shapes if (value := read(shape)) is not None)
    if not values:
        return Known(None, _UNKNOWN_NAMES)
    value, count = values.most_common(1)[0]
    total = values.total()
    note = "" if count == total else f" (the most frequent of {len(values)} values)"
    return Known(value, f"{count} of {total} forward calls of {what}{note}")


def _unfused_heads(forward: _Forward, head_dim: Known, hidden: Known) -> tuple[Known, Known, Known]:
    """Heads and micro-batch from the batch of the score products, which is their product."""
    unknown = Known(None, _UNKNOWN_NAMES)
    batches = forward.batches("attention.scores")
    if not batches or not head_dim.value or not hidden.value or hidden.value % head_dim.value:
        return unknown, unknown, unknown
    heads = hidden.value // head_dim.value
    batch = batches.most_common(1)[0][0]
    if batch % heads:
        return unknown, unknown, unknown
    why = "hidden / head dimension, with the batch of the score products"
    return Known(heads, why), Known(batch // heads, why), unknown


def _experts(forward: _Forward) -> Known:
    """As many as the router chooses from; without a router there are none."""
    found = forward.gemm(("moe.router", lambda s: s.n))
    return found if found.value is not None else Known(None, "no router of experts is known in this trace")


def _tensor_parallel(hidden: Known, heads: Known, head_dim: Known, *, sharded: bool) -> Known:
    """Each rank holds heads/t: hidden / (heads on this rank x head dimension), where that is whole."""
    if not hidden.value or not heads.value or not head_dim.value:
        return Known(None, "needs hidden size, heads and head dimension")
    on_rank = heads.value * head_dim.value
    if hidden.value == on_rank:
        return Known(1, "hidden = heads x head dimension on this rank")
    if sharded and hidden.value % on_rank == 0:
        why = (
            f"hidden / (heads x head dimension on this rank) = {hidden.value} / {on_rank}, and ranks exchange"
        )
        return Known(hidden.value // on_rank, f"{why} activations")
    return Known(
        None,
        f"hidden {hidden.value} is not heads x head dimension = {on_rank}: sharded, or heads of another size",
    )


def express(value: int | None, dims: ModelDims, *, rows: bool) -> str | None:
    """A GEMM dimension in model dimensions (``b*s``, ``3*h``, ``f``); None where none fits.

    ``rows`` prefers tokens over model dimensions where both fit: they are what M is made of in the
    forward. A dimension that two model dimensions share is named after the first that fits.
    """
    if value is None:
        return None
    h, f, v, d = dims.hidden.value, dims.ffn.value, dims.vocab.value, dims.head_dim.value
    b, s, a, kv = dims.micro_batch.value, dims.sequence.value, dims.heads.value, dims.kv_heads.value
    tokens = {"b*s": _product(b, s), "s": s}
    model = {
        "h": h,
        "f": f,
        "v": v,
        "3*h": _product(3, h),
        "2*f": _product(2, f),
        "d": d,
        "a*d": _product(a, d),
    }
    if a and kv and kv != a:
        model |= {
            "(a+2*kv)*d": _product(a + 2 * kv, d),
            "kv*d": _product(kv, d),
            "2*kv*d": _product(2 * kv, d),
        }
    for candidates in (tokens, model) if rows else (model, tokens):
        for name, size in candidates.items():
            if size == value:
                return name
    return None


def _product(a: int | None, b: int | None) -> int | None:
    return a * b if a and b else None
