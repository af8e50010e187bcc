"""The model's dimensions, read off the shapes of its attributed GEMMs, each with its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tracelens.accounting.mixture import mixture_dims
from tracelens.accounting.projected_heads import projected_kv_heads
from tracelens.accounting.words import model as words
from tracelens.attribution import Attribution, Calls
from tracelens.attribution.names import op_rule
from tracelens.gemm import AttentionShape, GemmShape, Shape
from tracelens.results import Known, ModelDims
from tracelens.trace import Trace
from tracelens.words import COMPONENTS, PHASES

S = TypeVar("S")
_UNSEEN = Known(None, words.NOT_ATTRIBUTED)
_FEWEST_WORDS = 256  # of a vocabulary whose table is not seen: bytes
_CLEAR = 2 / 3  # of the time of the calls that show a value
_MOST = 0.75  # of the calls of attention are in a numbered layer
_RARE = 0.05  # of the calls of attention: a last batch that is smaller
_CORES = ("attention.core", "attention.scores", "attention.softmax", "attention.values")
#: What shows how large a model is: where most of one has no shapes, the rest can be another model.
_SEEN = {"attention.core": "attention", "attention.scores": "attention"} | {
    name: name for name in ("mlp.up", "mlp.down")
}
_FORWARD = (PHASES.index("forward"), PHASES.index("other"))
_PER_LAYER = 2  # calls: attention to itself, and to another sequence


def model_dims(
    attribution: Attribution,
    calls: Calls,
    *,
    sharded: bool = False,
    tables: Collection[tuple[int, int]] = (),
    choices: Collection[tuple[int, int]] = (),
) -> ModelDims:
    """Hidden size, heads, feed-forward size, vocabulary... as the forward GEMMs of this rank show them.

    ``sharded``: ranks are seen to exchange activations, as tensor parallelism does. ``tables``: (rows, width)
    of the tables that embeddings are read from. ``choices``: (of how many, how many) routers choose. What no
    attributed GEMM shows stays unknown, and so does what the calls contradict.
    """
    everything = _Forward(attribution, calls)
    if not attribution.transformer:
        return _of_parts(attribution, everything, choices)
    hidden = everything.gemm(
        ("attention.qkv", lambda s: s.k),
        ("mlp.up", lambda s: s.k),
        ("mlp.gate", lambda s: s.k),
        ("logits", lambda s: s.k),
    )
    forward = everything.of_stream(hidden.value)
    heads = _attention_dims(forward, hidden)
    ffn = forward.gemm(("mlp.down", lambda s: s.k), _expert_width(hidden.value))
    vocab, classes = _head(forward, hidden.value, heads["micro_batch"].value, tables)
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
        **_mixture(forward, choices),
    )


def _other_width(forward: _Forward, hidden: Known) -> str | None:
    """Why there is no one model: most attention is of one width, and most MLP work of another."""
    wide, width = forward.gemm(("mlp.up", lambda s: s.k)).value, hidden.value
    if wide is None or width is None or wide == width or wide not in forward.streams:
        return None
    return words.several_widths(sorted((wide, width)))


def shows_shapes(attribution: Attribution, calls: Calls) -> bool:
    """Has any forward call a shape?"""
    phases = attribution.phase[calls.main].tolist()
    return any(
        shape is not None and phase in _FORWARD for shape, phase in zip(calls.shape, phases, strict=True)
    )


def _of_parts(attribution: Attribution, forward: _Forward, choices: Collection[tuple[int, int]]) -> ModelDims:
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


def _mixture(forward: _Forward, choices: Collection[tuple[int, int]]) -> dict[str, Known]:
    """As many experts as the router chooses from; without a router there are none."""
    groups = [s.groups for s in forward.products("moe.experts") if s.groups]
    return mixture_dims(forward.gemm(("moe.router", lambda s: s.n)), groups, choices)


def _attention_dims(forward: _Forward, hidden: Known) -> dict[str, Known]:
    """Heads, their size, sequence and micro-batch: from fused attention, else from its separate products."""
    heads = forward.fused(lambda s: s.heads)
    kv_heads = forward.fused(lambda s: s.kv_heads)
    head_dim = forward.fused(lambda s: s.head_dim)
    sequence = forward.fused(lambda s: s.query_len)
    batch = forward.fused(lambda s: s.batch)
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
        kv_heads = shown if shown is not None and shown.value != kv_heads.value else kv_heads
    return {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "sequence": sequence,
        "micro_batch": batch,
    }


def embedding_tables(trace: Trace) -> set[tuple[int, int]]:
    """(rows, width) of the tables that the trace reads embeddings from."""
    reads = trace.symbols.where(lambda text: op_rule(text) == "embedding" or "embedding" in text)
    codes = np.unique(trace.ops.inputs[reads[trace.ops.name]])
    tensors = (dims for code in codes.tolist() for dims in trace.details.inputs(code).dims or [])
    return {(one[0], one[1]) for one in tensors if isinstance(one, list) and [*map(type, one)] == [int, int]}


def _head(
    forward: _Forward, hidden: int | None, batch: int | None, tables: Collection[tuple[int, int]]
) -> tuple[Known, Known]:
    """The vocabulary, or the classes of a head that has none: (vocabulary, classes)."""
    found = forward.gemm(("logits", lambda s: s.n if hidden in (None, s.k) else None))
    size = found.value
    if size is None:
        return found, found
    rows = forward.gemm(("logits", lambda s: s.m if s.n == size else None)).value or 0
    listed = any(table <= size < table + max(512, table // 8) for table, width in tables if width == hidden)
    if listed or (size >= _FEWEST_WORDS and rows > (batch or 1)):
        return found, Known(None, words.VOCABULARY_HEAD)
    return Known(None, words.classes(size, rows)), found


def _layers(attribution: Attribution, calls: Calls, forward: _Forward) -> Known:
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
    if not layers:
        return Known(None, words.NO_LAYER_NAMED)
    main = calls.main[np.isin(attribution.phase[calls.main], _FORWARD)]
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


def _conflict(forward: _Forward, hidden: Known, heads: Known, head_dim: Known) -> str | None:
    """Why heads x head dimension cannot be the model's; None where the hidden size or a projection agrees."""
    if not hidden.value or not heads.value or not head_dim.value:
        return None
    widths = {
        heads.value * head_dim.value,
        *(s.heads * s.value_dim for s, _ in forward.attention() if s.value_dim and s.heads),
    }
    takes = forward.gemm(("attention.output", lambda s: s.k)).value
    if hidden.value in widths or takes is None or takes in widths:
        return None
    if takes < max(widths) and takes % heads.value == 0:
        return None  # values narrower than the keys that they were padded to
    return words.heads_do_not_fit(heads.value, head_dim.value, hidden.value, takes)


def _axes(forward: _Forward, heads: int | None) -> str | None:
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


def _packed(forward: _Forward) -> str | None:
    """Why sequence and micro-batch are in no trace: sequences of unequal length lie behind one another."""
    tokens = Counter(s.query_tokens for s, _ in forward.attention() if s.query_tokens is not None)
    if 2 * tokens.total() <= len(forward.attention()):
        return None
    return words.packed(tokens.most_common(1)[0][0])


@dataclass(frozen=True, slots=True)
class _Row:
    """A forward call with a shape; ``width`` is that of the residual stream it works for."""

    component: str
    shape: Shape
    ns: int
    width: int | None = None


class _Forward:
    """The forward calls, by component, each with its time."""

    def __init__(self, attribution: Attribution, calls: Calls):
        self._rows: list[_Row] = []
        self._seen = {
            part: ([0, 0], [0, 0]) for part in _SEEN.values()
        }  # calls and ns, without and with a shape
        self.streams: dict[int, list[int]] = {}  # by width: calls of the projections behind attention
        self.stream: int | None = None
        core: list[int] = []  # rows of the attention whose output projection is to come
        for at, shape in enumerate(calls.shape):
            if attribution.phase[calls.main[at]] not in _FORWARD:
                continue
            component = COMPONENTS[attribution.component[calls.main[at]]]
            ns = int(calls.dur_ns[at])
            part = _SEEN.get(component)
            if part is not None:
                self._seen[part][0][shape is not None] += 1
                self._seen[part][1][shape is not None] += ns
            if part == "attention":
                core = []
            if shape is None:
                continue
            if calls.padded and isinstance(shape, GemmShape):
                shape = replace(shape, **calls.padded[at])  # type: ignore[arg-type]
            width = None
            if component in _CORES:
                core.append(len(self._rows))
            elif component == "attention.output" and core and isinstance(shape, GemmShape):
                width = shape.n  # adapters follow the projection, and are none
                for row in core:
                    self._rows[row] = replace(self._rows[row], width=width)
                self.streams.setdefault(width, []).append(at)
                core = []
            elif component == "mlp.down" and isinstance(shape, GemmShape):
                width = shape.n
            self._rows.append(_Row(component, shape, ns, width))

    def of_stream(self, width: int | None) -> _Forward:
        """Those of the model whose residual stream is so wide; all where there is one width or none."""
        if width not in self.streams or len(self.streams) == 1:
            return self
        out = copy(self)
        out.stream = width
        out._rows = [row for row in self._rows if row.width in (None, width)]
        return out

    def _shapes(self, component: str) -> list[tuple[Shape, int]]:
        return [(row.shape, row.ns) for row in self._rows if row.component == component]

    def one_part(self) -> str | None:
        """Why the calls with shapes are no measure of the model: of a part most has none."""
        for part, seen in self._seen.items():
            for hidden, shown in seen:
                if hidden > shown > 0:
                    return words.one_part(part, shown / (shown + hidden))
        return None

    def attention(self) -> list[tuple[AttentionShape, int]]:
        return [
            (row.shape, row.ns)
            for row in self._rows
            if isinstance(row.shape, AttentionShape) and not row.shape.backward
        ]

    def fused(self, read: Callable[[AttentionShape], int | None]) -> Known:
        """The value of most of the time of fused attention."""
        return _from(self.attention(), read, "fused attention") or _UNSEEN

    def gemm(self, *readings: tuple[str, Callable[[GemmShape], int | None]]) -> Known:
        """The value that takes most time, of the first reading that has one."""
        first: Known | None = None
        for component, read in readings:
            shapes = ((s, ns) for s, ns in self._shapes(component) if isinstance(s, GemmShape))
            found = _from(shapes, read, component)
            if found is not None and found.value is not None:
                return found
            first = first or found
        return first or _UNSEEN

    def products(self, component: str) -> list[GemmShape]:
        return [s for s, _ in self._shapes(component) if isinstance(s, GemmShape)]

    def widths(self, component: str) -> Counter[int]:
        """N of every product."""
        return Counter(s.n for s in self.products(component))


def _from(shapes: Iterable[tuple[S, int]], read: Callable[[S], int | None], what: str) -> Known | None:
    """The value of most of the time, unknown where none has it; None where nothing shows one."""
    time: Counter[int] = Counter()
    calls: Counter[int] = Counter()
    for shape, ns in shapes:
        value = read(shape)
        if value is not None:
            time[value] += ns
            calls[value] += 1
    if not time:
        return None
    value, ns = time.most_common(1)[0]
    if ns < _CLEAR * time.total():
        return Known(None, words.no_clear_value(what, len(time)))
    source = words.forward_calls(what, showing=calls[value], calls=calls.total(), values=len(calls))
    return Known(value, source)


def _unfused_heads(forward: _Forward, head_dim: Known, hidden: Known) -> tuple[Known, Known, Known]:
    """Heads and micro-batch from the batch of the score products, which is their product."""
    batches = Counter(s.batch for s in forward.products("attention.scores"))
    output = forward.gemm(("attention.output", lambda s: s.k))
    if not batches or not head_dim.value:
        return _UNSEEN, _UNSEEN, _UNSEEN
    batch = batches.most_common(1)[0][0]
    # what the output projection takes is all heads of this rank; hidden is those of all ranks
    for width, of_hidden in ((output.value, False), (hidden.value, True)):
        heads, rest = divmod(width or 0, head_dim.value)
        if heads and not rest and batch % heads == 0:
            why = words.heads_of_scores(of_hidden=of_hidden)
            return Known(heads, why), Known(batch // heads, why), _UNSEEN
    return _UNSEEN, _UNSEEN, _UNSEEN


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
