"""Key/value heads as the projections show them, where attention is handed keys and values repeated.

Many models store fewer key/value heads than heads and repeat each of them before attention (Hugging Face's
``repeat_kv``, transformers/models/llama/modeling_llama.py): the attention kernel then sees as many as heads.
The matrices that make keys and values are as wide as the heads that the model has.
"""

from __future__ import annotations

from collections import Counter

from tracelens.accounting.words import model as words
from tracelens.results import Known


def projected_kv_heads(
    widths: Counter[int], *, layers: int, heads: int | None, head_dim: int | None
) -> Known | None:
    """Key/value heads behind the ``widths`` of the forward projections; None unless nothing else fits.

    ``widths``: N of every forward call that makes queries, keys or values -> calls; ``layers``: calls of
    the output projection, of which attention has one. Not told is what another reading fits as well: a gated
    query, an adapter, a latent, a padded or an unequal layer.

    >>> projected_kv_heads(Counter({4096: 32, 1024: 64}), layers=32, heads=32, head_dim=128).value
    8
    >>> projected_kv_heads(Counter({6144: 32}), layers=32, heads=32, head_dim=128).value
    8
    >>> projected_kv_heads(Counter({4096: 96}), layers=32, heads=32, head_dim=128).value
    32
    """
    if not heads or not head_dim or not layers or heads < 2:
        return None
    queries = heads * head_dim
    if _as_many(widths, layers, queries):
        return Known(heads, words.own_heads(queries, head_dim))
    if set(widths.values()) == {layers} and len(widths) == 1:
        (width,) = widths
        return _known("with_queries", width, heads, head_dim)
    if len(widths) != 2 or widths.get(queries) != layers:
        return None
    ((width, calls),) = ((width, calls) for width, calls in widths.items() if width != queries)
    if calls == 2 * layers:
        return _known("apart", width, heads, head_dim)
    if calls == layers:
        return _known("together", width, heads, head_dim)
    return None


def _as_many(widths: Counter[int], layers: int, queries: int) -> bool:
    """Three products as wide as the queries in each layer, or one of three times that; with some of these,
    layers that attend to something else have one for the queries and one for keys and values
    (torch.nn.functional._in_proj_packed)."""
    whole, apart, both = (widths[times * queries] for times in (3, 1, 2))
    if not whole:
        return len(widths) == 1 and apart == 3 * layers
    return widths.total() == whole + 2 * apart and whole + apart == layers and apart == both


def _known(made: words.Projections, width: int, heads: int, head_dim: int) -> Known | None:
    """The key/value heads that a projection so wide makes, where those are fewer than the heads."""
    own = width - heads * head_dim if made == "with_queries" else width
    each = head_dim if made == "apart" else 2 * head_dim
    count = own // each
    if own <= 0 or count * each != own or count >= heads or heads % count:
        return None
    said = words.repeated_heads(made, width, head_dim=head_dim, each=heads // count, heads=heads)
    return Known(count, said)
