"""The model's dimensions, read off the shapes of its attributed GEMMs, each with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from tracelens.accounting.degrees import mixture_dims
from tracelens.accounting.forward_calls import FORWARD, UNSEEN, ForwardCalls
from tracelens.accounting.mixers import mixers_stand_alone
from tracelens.accounting.operands import Operands
from tracelens.accounting.projected_heads import projected_kv_heads
from tracelens.accounting.words import model as words
from tracelens.attribution import Attribution, Calls
from tracelens.gemm import GemmShape
from tracelens.results import Known, ModelDims
from tracelens.words import COMPONENTS

NO_OPERANDS = Operands()
_FEWEST_WORDS = 256  # of a vocabulary whose table is not seen: bytes
_MASKED = 16  # tokens to each that is predicted, at most
_WIDEST = 1024  # head: what is multiplied over more are channels with one another, over the places of a map
_MOST = 0.75  # of the calls of attention are in a numbered layer
_RARE = 0.05  # of the calls of attention: a last batch that is smaller
_PER_LAYER = 2  # calls: attention to itself, and to another sequence


def model_dims(
    attribution: Attribution, calls: Calls, *, sharded: bool = False, operands: Operands = NO_OPERANDS
) -> ModelDims:
    """Hidden size, heads, feed-forward size, vocabulary... as the forward GEMMs of this rank show them.

    ``sharded``: ranks are seen to exchange activations, as tensor parallelism does. What no attributed GEMM
    shows stays unknown, and so does what the calls contradict.
    """
    everything = ForwardCalls(attribution, calls)
    if not attribution.transformer:
        return _of_parts(attribution, everything, operands.choices)
    hidden = _hidden(everything)
    forward = everything.of_stream(hidden.value)
    heads = _attention_dims(forward, hidden)
    ffn = forward.gemm(("mlp.down", lambda s: s.k), _expert_width(hidden.value))
    vocab, classes = _head(forward, hidden.value, heads["micro_batch"].value, operands)
    found = {"hidden": hidden, **heads, "ffn": ffn, "layers": _layers(attribution, calls, forward)}
    for why, names in (
        (forward.one_part(), tuple(found)),
        (_other_width(everything, hidden), tuple(found)),
        (_conflict(forward, hidden, heads["heads"], heads["head_dim"]), ("heads", "kv_heads", "head_dim")),
        (_axes(forward, heads["heads"].value), ("sequence", "micro_batch")),
        (_packed(forward), ("sequence", "micro_batch")),
    ):
        found |= {name: Known(None, why) for name in names if why is not None}
    found |= {"vocab": vocab, "classes": classes}
    if not shows_shapes(attribution, calls):
        hidden_by = {name for name, known in found.items() if known.value is None} - {"layers"}
        found |= dict.fromkeys(hidden_by, Known(None, words.NO_SHAPES))
    return ModelDims(
        found="whole",
        **found,
        tensor_parallel=_tensor_parallel(found["hidden"], found["heads"], found["head_dim"], sharded=sharded),
        **_mixture(forward, operands.choices),
    )


def _other_width(forward: ForwardCalls, hidden: Known) -> str | None:
    """Why there is no one model: most attention is of one width, and most MLP work of another."""
    wide, width = forward.gemm(("mlp.up", lambda s: s.k)).value, hidden.value
    if wide is None or width is None or wide == width or wide not in forward.streams:
        return None
    return words.several_widths(sorted((wide, width)))


def shows_shapes(attribution: Attribution, calls: Calls) -> bool:
    """Has any forward call a shape?"""
    phases = attribution.phase[calls.main].tolist()
    return any(
        shape is not None and phase in FORWARD for shape, phase in zip(calls.shape, phases, strict=True)
    )


def _of_parts(
    attribution: Attribution, forward: ForwardCalls, choices: Collection[tuple[int, int]]
) -> ModelDims:
    """What a mixture of experts shows of its model, where nothing else of one is recognised."""
    nothing = Known(None, words.not_whole(attribution.found))
    dims = ModelDims(attribution.found, *(nothing for _ in range(11)))
    mixture = _mixture(forward, choices)
    if mixture["experts"].value is None:
        return dims
    hidden = forward.gemm(("moe.router", lambda s: s.k))
    ffn = forward.gemm(_expert_width(hidden.value))
    return replace(dims, hidden=hidden, ffn=ffn, **mixture)  # type: ignore[arg-type]


def _expert_width(hidden: int | None) -> tuple[str, Callable[[GemmShape], int | None]]:
    """What the experts' last products take."""
    return "moe.experts", lambda s: s.k if s.n == hidden != s.k else None


def _mixture(forward: ForwardCalls, choices: Collection[tuple[int, int]]) -> dict[str, Known]:
    """As many experts as the router chooses from; without a router there are none."""
    groups = [s.groups for s in forward.products("moe.experts") if s.groups]
    return mixture_dims(forward.gemm(("moe.router", lambda s: s.n)), groups, choices)


def _attention_dims(forward: ForwardCalls, hidden: Known) -> dict[str, Known]:
    """Heads, their size, sequence and micro-batch: from fused attention, else from its separate products."""
    heads = forward.fused(lambda s: s.heads)
    kv_heads = forward.fused(lambda s: s.kv_heads)
    head_dim = forward.fused(lambda s: s.head_dim)
    rows = forward.gemm(("mlp.down", lambda s: s.m)).value  # of an encoder and a decoder those with most work
    of_rows = forward.fused(lambda s: s.query_len if rows == (s.batch or 0) * (s.query_len or 0) else None)
    sequence = of_rows if of_rows.value else forward.fused(lambda s: s.query_len)
    fused = batch = forward.fused(lambda s: s.batch)
    if head_dim.value is None:
        head_dim = forward.gemm(("attention.scores", lambda s: s.k if s.k <= _WIDEST else None))
        sequence = forward.gemm(("attention.scores", lambda s: s.m))
        heads, batch, kv_heads = _unfused_heads(forward, head_dim, hidden)
        if heads.value is None and not forward.attends_to_itself():
            sequence = UNSEEN  # heads can be rows
        if _shares_values(forward):
            heads = head_dim = batch = kv_heads = Known(None, words.SHARED_VALUES)
    if kv_heads.value in (None, heads.value):  # attention sees every head have keys of its own
        widths = forward.widths("attention.qkv")
        if kv_heads == UNSEEN and widths:
            kv_heads = Known(None, words.projections_of_several_counts(widths))
        shown = projected_kv_heads(
            widths,
            layers=forward.widths("attention.output").total(),
            heads=heads.value,
            head_dim=head_dim.value,
        )
        kv_heads = shown if shown is not None and shown.value != kv_heads.value else kv_heads
    found = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "sequence": sequence,
        "micro_batch": batch,
    }
    return {name: fused if known == UNSEEN else known for name, known in found.items()}


def _hidden(forward: ForwardCalls) -> Known:
    """What queries, keys and values are made of: what the output projection comes back to, where it is seen,
    and not what goes down in between (as in multi-head latent attention)."""
    stream = forward.streams
    return forward.gemm(
        ("attention.qkv", lambda s: s.k if not stream or s.k in stream else None),
        ("mlp.up", lambda s: s.k),
        ("mlp.gate", lambda s: s.k),
        ("logits", lambda s: s.k if not stream or s.k in stream else None),
    )


def _head(
    forward: ForwardCalls, hidden: int | None, batch: int | None, operands: Operands
) -> tuple[Known, Known]:
    """The vocabulary, or the classes of a head that has none: (vocabulary, classes)."""
    found = forward.gemm(("logits", lambda s: s.n if hidden in (None, s.k) else None))
    size = found.value
    if size is None:
        takes = forward.gemm(("logits", lambda s: s.k)).value
        if takes is not None and hidden is not None:
            found = Known(None, words.head_of_another_width(takes, hidden))
        return found, found
    rows = forward.gemm(("logits", lambda s: s.m if s.n == size else None)).value or 0
    listed, lost = operands.lists(size, hidden), operands.loses(size)
    tokens = forward.gemm(("mlp.down", lambda s: s.m), ("attention.output", lambda s: s.m)).value
    each = rows > batch if batch else _MASKED * rows >= (tokens or _MASKED * _FEWEST_WORDS)
    each &= size >= _FEWEST_WORDS and lost is not False and size not in operands.labels
    if listed or (listed is None and each):
        return found, Known(None, words.VOCABULARY_HEAD)
    if listed is None and tokens is None and lost is None:
        return (open_ := Known(None, words.words_or_classes(size))), open_
    no_words = Known(None, words.classes(size, rows))
    lossless = forward.takes_no_loss if lost is None else not lost
    if size == 1 or size == rows or lossless or not operands.trains(size, hidden):
        return no_words, Known(None, words.no_classes(size))
    return no_words, found


def _layers(attribution: Attribution, calls: Calls, forward: ForwardCalls) -> Known:
    """As many as are numbered, where the attention of a step agrees with that.

    Of several models, or of stages that grow, those whose stream is as wide as the hidden size.
    """
    numbered = attribution.layer >= 0
    if len(forward.streams) > 1:
        if forward.stream is None:
            return Known(None, words.several_widths(sorted(forward.streams)))
        main = calls.main[np.array(forward.streams[forward.stream], np.int64)]
        found = np.unique(attribution.layer[main][numbered[main]])
        if len(found):
            if attribution.named[main].any():
                return Known(len(found), words.layers_counted(forward.stream))
            return _of_one_model(attribution, found.tolist(), forward.stream)
    layers = {int(layer) for layer in attribution.layer[numbered]}
    if layers and not attribution.named.any() and mixers_stand_alone(attribution, calls):
        return Known(None, words.layers_of_mixers(len(layers)))
    if not layers:
        return Known(None, words.NO_LAYER_NAMED)
    main = calls.main[np.isin(attribution.phase[calls.main], FORWARD)]
    for component in ("attention.output", "attention.core", "attention.scores", "attention.qkv"):
        here = main[attribution.component[main] == COMPONENTS.index(component)]
        if not len(here):
            continue
        told, steps = int(numbered[here].sum()), len(np.unique(attribution.step[here]))
        if told < _MOST * len(here):
            return Known(None, words.layers_in_none(told, len(here), component))
        if len(layers) == 1 and len(here) > _PER_LAYER * steps:
            return Known(None, words.layers_in_one(len(here), component, steps))
        break
    if attribution.named.any():
        return Known(len(layers), words.LAYERS_NAMED)
    return _of_one_model(attribution, layers, None)


def _of_one_model(attribution: Attribution, layers: Collection[int], stream: int | None) -> Known:
    """How many layers a model has, all or those of a ``stream`` so wide; of several, if each has as many."""
    edges = sorted({0, *attribution.further})
    counts = Counter(sum(edge <= layer for edge in edges) for layer in layers)
    if attribution.further.get(0) is not None:
        return Known(None, words.layers_behind_others(len(layers)))
    if len(counts) == 1:
        return Known(len(layers), words.layers_counted(stream))
    sizes = [counts[at] for at in sorted(counts)]
    if len({*sizes}) > 1 or not all(attribution.further.values()):
        return Known(None, words.layers_of_several(sizes))
    return Known(sizes[0], words.layers_counted(stream, models=len(sizes)))


def _conflict(forward: ForwardCalls, hidden: Known, heads: Known, head_dim: Known) -> str | None:
    """Why heads x head dimension cannot be the model's; None where the hidden size or a projection agrees."""
    if not hidden.value or not heads.value or not head_dim.value:
        return None
    widths = {
        heads.value * head_dim.value,
        *(s.heads * s.value_dim for s, _ in forward.attention() if s.value_dim and s.heads),
    }
    takes = forward.heads_width().value
    if hidden.value in widths or takes is None or takes in widths:
        return None
    if takes < max(widths) and takes % heads.value == 0:
        return None  # values narrower than the keys that they were padded to
    return words.heads_do_not_fit(heads.value, head_dim.value, hidden.value, takes)


def _axes(forward: ForwardCalls, heads: int | None) -> str | None:
    """Why sequence and micro-batch are not those of the model: attention to itself runs on batches of several
    sizes (over time and space, in windows, in two models); None where it does not.
    """
    calls = Counter(
        (s.batch, s.query_len)
        for s, _ in forward.attention()
        if s.batch and s.query_len and s.query_len == s.key_len
    )
    if not calls:
        scores = ((s, s.batch // (heads or 1)) for s in forward.products("attention.scores"))
        calls = Counter((batch, s.m) for s, batch in scores if s.m == s.n)
    often = [size for size, count in calls.most_common() if count >= _RARE * calls.total()]
    if len({batch for batch, _ in often}) < 2:
        return None
    return words.several_batches(often)


def _packed(forward: ForwardCalls) -> str | None:
    """Why sequence and micro-batch are in no trace: sequences of unequal length lie behind one another."""
    tokens = Counter(s.query_tokens for s, _ in forward.attention() if s.query_tokens is not None)
    if 2 * tokens.total() <= len(forward.attention()):
        return None
    return words.packed(tokens.most_common(1)[0][0])


def _unfused_heads(forward: ForwardCalls, head_dim: Known, hidden: Known) -> tuple[Known, Known, Known]:
    """Heads and micro-batch from the batch of the score products, which is their product."""
    batches = Counter(s.batch for s in forward.products("attention.scores"))
    output = forward.heads_width()
    if not batches or not head_dim.value:
        return UNSEEN, UNSEEN, UNSEEN
    batch = batches.most_common(1)[0][0]
    each = _value_dim(forward) or head_dim.value
    # what the output projection takes is all heads of this rank; hidden is those of all ranks
    for width, of_hidden in ((output.value, False), (hidden.value, True)):
        heads, rest = divmod(width or 0, each)
        if heads and not rest and batch % heads == 0:
            why = words.heads_of_scores(of_hidden=of_hidden)
            return Known(heads, why), Known(batch // heads, why), UNSEEN
    return UNSEEN, UNSEEN, UNSEEN


def _value_dim(forward: ForwardCalls) -> int | None:
    """How wide the values of a head are: they can be wider than its queries and keys."""
    queries = {s.m for s in forward.products("attention.scores")}
    widths = {s.n for s in forward.products("attention.values") if s.m in queries and s.n not in queries}
    return widths.pop() if len(widths) == 1 else None


def _shares_values(forward: ForwardCalls) -> bool:
    """Are values multiplied for all heads at once? So are latent ones, whose width is that of no head."""
    scores, values = (
        Counter(s.batch for s in forward.products(f"attention.{part}")).most_common(1)
        for part in ("scores", "values")
    )
    return bool(scores and values) and values[0][0] < scores[0][0]


def _tensor_parallel(hidden: Known, heads: Known, head_dim: Known, *, sharded: bool) -> Known:
    """Each rank holds heads/t: hidden / (heads on this rank x head dimension), where that is whole."""
    if not hidden.value or not heads.value or not head_dim.value:
        return Known(None, words.NEEDS_HEADS)
    on_rank = heads.value * head_dim.value
    if hidden.value == on_rank:
        return Known(1, words.HIDDEN_ON_RANK)
    if sharded and hidden.value % on_rank == 0:
        return Known(hidden.value // on_rank, words.hidden_split(hidden.value, on_rank))
    return Known(None, words.hidden_is_not_heads(hidden.value, on_rank))


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
