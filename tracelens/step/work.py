"""The products of a step as functions of the hyper-parameters: every M, N and K knows what it is made of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tracelens.config.model_config import ModelConfig
from tracelens.results import GemmRow, ModelDims
from tracelens.step.alignment import grid_elements
from tracelens.step.words import simulation as words


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension: the sum of coefficient * product of parameters, over the ranks that share it.

    >>> qkv = Dim("(a+2*kv)*d", ((1, ("heads", "head_dim")), (2, ("kv_heads", "head_dim"))))
    >>> qkv.value(ModelConfig(heads=32, kv_heads=8, head_dim=128))
    6144
    """

    text: str
    terms: tuple[tuple[int, tuple[str, ...]], ...] = ()
    sharded: bool = False  # each tensor-parallel rank holds its part
    padded_to: int = 1  # the library pads to a multiple of it (Inductor's pad_mm)
    constant: int = 0
    #: A row count of its own (shifted labels, sampled positions): its size, with the tokens and the
    #: sequence that it was seen at. It grows with the micro-batch; what a longer sequence does is not known.
    own: tuple[int, int, int | None] | None = None
    #: Rows of an expert: their number, the capacity (the mean of all experts) that it was seen at, and the
    #: multiple that they are padded to.
    load: tuple[int, int, int] | None = None

    def value(self, config: ModelConfig) -> int | None:
        """Its size on one rank; None where a parameter is not known or the ranks do not divide it."""
        if self.own is not None:
            return self._own_rows(config)
        if self.load is not None:
            return self._load_rows(config)
        total = self.constant
        for coefficient, names in self.terms:
            product = coefficient
            for name in names:
                size: int | None = config.token_count if name == "tokens" else config.get(name)
                if size is None:
                    return None
                product *= size
            total += product
        ranks = config.tp if self.sharded else 1
        if total % ranks:
            return None
        return math.ceil(total // ranks / self.padded_to) * self.padded_to

    def _load_rows(self, config: ModelConfig) -> int | None:
        """Of padded rows another multiple changes the mean: how many hold a token they do not show."""
        if self.load is None or not config.capacity:
            return None
        rows, mean, seen = self.load
        size, multiple = rows * config.capacity / mean, config.row_multiple or seen
        if multiple != seen:
            size = size + (multiple - seen) / 2 if seen > 1 else math.ceil(size / multiple) * multiple
        return max(1, math.ceil(size - 1e-9))

    def _own_rows(self, config: ModelConfig) -> int | None:
        if self.own is None:
            return None
        size, tokens, sequence = self.own
        then = config.token_count
        if then == tokens and config.sequence == sequence:
            return size
        if then is None or config.sequence != sequence or size * then % tokens:
            return None
        return size * then // tokens


def _dim(text: str, *terms: tuple[int, tuple[str, ...]], sharded: bool = False) -> Dim:
    return Dim(text, terms, sharded)


TOKENS = _dim("b*s", (1, ("tokens",)))
HIDDEN = _dim("h", (1, ("hidden",)))
_SHIFTED = _dim("b*(s-1)", (1, ("micro_batch", "sequence")), (-1, ("micro_batch",)))
_FFN = _dim("f", (1, ("ffn",)), sharded=True)
_FFN2 = _dim("2*f", (2, ("ffn",)), sharded=True)
_VOCAB = _dim("v", (1, ("vocab",)))
_Q = _dim("a*d", (1, ("heads", "head_dim")), sharded=True)
_KV = _dim("kv*d", (1, ("kv_heads", "head_dim")), sharded=True)
_KV2 = _dim("2*kv*d", (2, ("kv_heads", "head_dim")), sharded=True)
_QKV = _dim("(a+2*kv)*d", (1, ("heads", "head_dim")), (2, ("kv_heads", "head_dim")), sharded=True)
#: Where attention is not fused, key/value heads are not seen: as many as heads, or the sizes do not fit.
_QKV3 = _dim("3*a*d", (3, ("heads", "head_dim")), sharded=True)
_EXPERTS = _dim("E", (1, ("experts",)))
_SEQ = _dim("s", (1, ("sequence",)))
_HEAD = _dim("d", (1, ("head_dim",)))
_SCORES = _dim("b*a", (1, ("micro_batch", "heads")), sharded=True)
_LOCAL_EXPERTS = _dim("E/ep", (1, ("local_experts",)))
_ONE = Dim("1", constant=1)

#: component -> what its linear layers take in, and what they can give out.
_LINEAR: dict[str, tuple[tuple[Dim, ...], tuple[Dim, ...]]] = {
    "attention.qkv": ((HIDDEN,), (_QKV, _QKV3, _Q, _KV, _KV2)),
    "attention.output": ((_Q,), (HIDDEN,)),
    "mlp.up": ((HIDDEN,), (_FFN, _FFN2)),
    "mlp.gate": ((HIDDEN,), (_FFN, _FFN2)),
    "mlp.down": ((_FFN,), (HIDDEN,)),
    "logits": ((HIDDEN,), (_VOCAB,)),
    "moe.router": ((HIDDEN,), (_EXPERTS,)),
}  # fmt: skip

_Triple = tuple[Dim, Dim, Dim]


@dataclass(frozen=True, slots=True)
class Product:
    """GEMM calls of one row that grow alike; ``weight`` is their share of the row's calls.

    ``others`` are further readings of the same sizes (two parameters of one value, an unknown role). A
    change that they answer differently has no answer.
    """

    row: GemmRow
    m: Dim
    n: Dim
    k: Dim
    batch: Dim = _ONE
    weight: float = 1.0
    others: tuple[_Triple, ...] = ()
    each_expert: bool = False  # runs once for every expert of the rank

    def sizes(self, config: ModelConfig) -> tuple[int, int, int, int] | None:
        """(M, N, K, batch), or None where a dimension is not known or readings differ."""
        answers = {
            tuple(one.value(config) for one in (*dims, self.batch))
            for dims in ((self.m, self.n, self.k), *self.others)
        }
        if len(answers) > 1:
            return None
        m, n, k, batch = answers.pop()
        return (m, n, k, batch) if m and n and k and batch else None


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One fused attention row; ``seq_q`` None = packed sequences whose lengths are in no trace."""

    row: GemmRow
    batch: int  # of this call
    tokens: int
    seq_q: int | None
    seq_k: int | None
    backward: bool


@dataclass(frozen=True, slots=True)
class Work:
    """The step's products; ``fixed`` rows have no known formula, and the reason beside each."""

    products: tuple[Product, ...]
    attention: tuple[AttentionCall, ...]
    fixed: tuple[tuple[GemmRow, str], ...]


def work_of(rows: Sequence[GemmRow], now: ModelConfig) -> Work:
    """Find the formula behind every row: by component and role, and only where it gives the sizes seen."""
    products: list[Product] = []
    attention: list[AttentionCall] = []
    fixed: list[tuple[GemmRow, str]] = []
    outputs = Counter[str | None]()
    for row in rows:
        if row.component == "attention.output" and row.m is not None:
            outputs[row.role] += row.calls
    for row in rows:
        if row.kind == "attention":
            call = _attention(row, now)
            if isinstance(call, str):
                fixed.append((row, call))
            else:
                attention.append(call)
            continue
        found: list[Product] | str = words.SIZES_NOT_IN_TRACE
        if row.m is not None and row.n is not None and row.k is not None:
            found = _products(row, now, outputs[row.role]) or words.NO_DIMENSION
        if isinstance(found, str):
            fixed.append((row, found))
        else:
            products += found
    return Work(tuple(products), tuple(attention), tuple(fixed))


def tokens_of(rows: Sequence[GemmRow]) -> int | None:
    """Tokens of a micro-batch as most forward products of layers show them, by time; None without any."""
    for roles in (("forward",), (None,)):
        sizes: Counter[int] = Counter()
        for row in rows:
            inside = row.kind == "gemm" and row.component in _LINEAR and row.component != "logits"
            if inside and row.m is not None and row.role in roles and row.phase in ("forward", "other"):
                sizes[row.m] += max(1, round(1000 * row.time_ms))
        if sizes:
            return sizes.most_common(1)[0][0]
    return None


def vocab_of(rows: Sequence[GemmRow], dims: ModelDims) -> int | None:
    """The vocabulary as the model asked for it, where the library padded it; else as the model has it."""
    for row in rows:
        asked = row.padded_from.get("n")
        if row.component == "logits" and row.role == "forward" and asked and row.n == dims.vocab.value:
            return asked
    return dims.vocab.value


def repeats_keys(rows: Sequence[GemmRow], dims: ModelDims) -> bool | None:
    """Is attention handed a copy of its key and value for every head? None where nothing tells.

    So where the model has fewer key/value heads than heads, and attention's own sizes as many.
    """
    heads, kv_heads = dims.heads.value, dims.kv_heads.value
    if not heads or not kv_heads or kv_heads >= heads:
        return None
    seen = set()
    for row in rows:
        if row.kind == "gemm" and row.component == "attention.scores":
            seen.add(heads)
        elif row.kind == "attention" and row.attention is not None and row.attention.heads_of_all:
            seen.add(row.attention.heads_of_all[1])
    return seen == {heads} if seen else None


def is_gated(rows: Sequence[GemmRow], ffn: int | None) -> bool | None:
    """True when the MLP has a gate: a GEMM of its own, or one twice as wide; None without an MLP."""
    mlp = [row for row in rows if row.kind == "gemm" and row.component in ("mlp.up", "mlp.gate", "mlp.down")]
    if not mlp:
        return None
    if any(row.component == "mlp.gate" or "mlp.gate" in row.components for row in mlp):
        return True
    return ffn is not None and _is_wide([row for row in mlp if row.component == "mlp.up"], ffn)


def _is_wide(rows: Sequence[GemmRow], ffn: int) -> bool:
    """Does the up projection give out 2 * ffn: the side of its outputs by role, never that of the tokens?

    The gradient of the inputs tells first: its K is the outputs and nothing else. Elsewhere a transposed
    product has them as M, and then N is what is not ffn.
    """
    sums = [row.k for row in rows if row.role == "dgrad" and row.k is not None]
    if sums:
        return 2 * ffn in sums
    forward = [row for row in rows if row.role in ("forward", None)]
    if any(row.n == 2 * ffn or (row.m == 2 * ffn and row.n != ffn) for row in forward):
        return True
    weights = [(row.m, row.n) for row in rows if row.role == "wgrad"]
    return any(2 * ffn in sides and ffn not in sides for sides in weights)


def _products(row: GemmRow, now: ModelConfig, outputs: int) -> list[Product]:
    if row.component in ("attention.scores", "attention.values"):
        return _unfused(row, now)
    if row.component == "moe.experts":
        return _of_experts(row, now)
    if row.component not in _LINEAR or (row.batch or 1) != 1:
        return []
    counts = [TOKENS, *([_SHIFTED] if row.component == "logits" else [])]
    found = _readings(row, now, counts)
    if not found and row.role is not None:
        found = _readings(row, now, _own_counts(row, now))
    if not found:
        return []
    product = Product(row, *found[0], others=tuple(found[1:]))
    return _split(product, now, outputs) if row.component == "attention.qkv" else [product]


def _of_experts(row: GemmRow, now: ModelConfig) -> list[Product]:
    """Experts one after the other, in one batched product, or in one of groups; and a shared expert.

    A product of groups of unequal size is taken as one with even groups. The role of a batched product of
    the backward says little (both of its operands are computed), so the other one is tried as well.
    """
    other = {"dgrad": "wgrad", "wgrad": "dgrad"}.get(row.role or "")
    together = (row.batch or 1) > 1 or row.groups is not None
    for role in (row.role, other) if together and other else (row.role,):
        if found := _expert_product(row, now, role):
            return [found]
    return []


def _expert_product(row: GemmRow, now: ModelConfig, role: str | None) -> Product | None:
    for transposed in (False, True):
        if product := _expert_product_of(row, now, role, transposed):
            return product
    return None


def _expert_product_of(row: GemmRow, now: ModelConfig, role: str | None, transposed: bool) -> Product | None:
    size = row.k if role == "wgrad" else row.n if transposed else row.m
    batch, each = _ONE, False
    found = row.groups
    if found is not None:
        letter, count = found.axis, found.number
        if count != now.local_experts:
            return None
        size = math.ceil((getattr(row, letter) or 0) / count)
        even: dict[str, Any] = {letter: size}
        row_then, batch = replace(row, **even), _LOCAL_EXPERTS
    elif (row.batch or 1) > 1:
        if row.batch != now.local_experts:
            return None
        row_then, batch = row, _LOCAL_EXPERTS
    else:
        row_then, each = row, size != now.token_count or now.capacity == now.token_count
    if not size or not now.capacity:
        return None
    load = (size, now.capacity, now.row_multiple or 1)
    count_dim = Dim("rows of an expert", load=load) if each or batch is not _ONE else TOKENS
    readings: dict[tuple[str, ...], _Triple] = {}
    for into, out in ((HIDDEN, _FFN), (HIDDEN, _FFN2), (_FFN, HIDDEN)):
        for triple in _orders(count_dim, into, out, role, transposed):
            dims = _fitted(triple, row_then, now, padded=False)
            if dims is not None:
                readings.setdefault(tuple(dim.text for dim in dims), dims)
    if not readings:
        return None
    first, *others = readings.values()
    return Product(row, *first, batch, others=tuple(others), each_expert=each)


def _own_counts(row: GemmRow, now: ModelConfig) -> list[Dim]:
    """The row's token dimension as a count of its own: fewer tokens than pass the layers, or others."""
    tokens = now.token_count
    size = row.k if row.role == "wgrad" else row.m
    if not tokens or not size or size == now.hidden:
        return []
    return [Dim(f"{size} rows", own=(size, tokens, now.sequence))]


def _readings(row: GemmRow, now: ModelConfig, counts: Sequence[Dim]) -> list[_Triple]:
    """Every way in which the layer's dimensions give the row's sizes.

    Padded and transposed ones only where there is no plainer one.
    """
    into, out = _LINEAR[row.component]
    if now.kv_heads is not None:
        out = tuple(one for one in out if one is not _QKV3)
    for padded, transposed in ((False, False), (False, True), (True, False), (True, True)):
        found: dict[tuple[str, str, str], _Triple] = {}
        for count in counts:
            for one in into:
                for other in out:
                    for triple in _orders(count, one, other, row.role, transposed):
                        dims = _fitted(triple, row, now, padded=padded)
                        if dims is not None:
                            found.setdefault((dims[0].text, dims[1].text, dims[2].text), dims)
        if found:
            return list(found.values())
    return []


def _orders(count: Dim, into: Dim, out: Dim, role: str | None, transposed: bool) -> Iterator[_Triple]:
    """Which dimensions are M, N and K: y = x W^T, dx = dy W, dW = dy^T x, or their transposes."""
    orders = {"forward": (count, out, into), "dgrad": (count, into, out), "wgrad": (out, into, count)}
    for m, n, k in [orders[role]] if role in orders else orders.values():
        yield (n, m, k) if transposed else (m, n, k)


def _fitted(triple: _Triple, row: GemmRow, now: ModelConfig, *, padded: bool) -> _Triple | None:
    found = [
        _fit(dim, now, size, row, letter, padded=padded)
        for dim, size, letter in zip(triple, (row.m, row.n, row.k), "mnk", strict=True)
    ]
    m, n, k = found
    return (m, n, k) if m is not None and n is not None and k is not None else None


def _fit(
    dim: Dim, now: ModelConfig, size: int | None, row: GemmRow, letter: str, *, padded: bool
) -> Dim | None:
    """``dim`` where it gives ``size``, as it is or (``padded``) as the library pads it; else None.

    Inductor pads to multiples of 16 bytes (torch/_inductor/fx_passes/pad_mm.py, get_alignment_size).
    """
    value = dim.value(now)
    if value is None or size is None:
        return None
    if value == size:
        return dim
    if not padded or dim.own is not None:
        return None
    step = grid_elements(row.dtype) or 0
    if row.padded_from.get(letter) == value:
        step = max(step, min(size & -size, 64))
    return replace(dim, padded_to=step) if step > 1 and math.ceil(value / step) * step == size else None


def _split(product: Product, now: ModelConfig, outputs: int) -> list[Product]:
    """Separate q, k and v of one size are one row: a third of its calls are q's.

    The output projection runs once for each q. Where the calls fit neither one nor three of them, the
    row is q's or the keys' and values', untold which.
    """
    row = product.row
    dims = (product.m, product.n, product.k)
    if not any(dim.text == "a*d" for dim in dims) or now.heads != now.kv_heads:
        return [product]
    m, n, k = (_KV if dim.text == "a*d" else dim for dim in dims)
    if outputs and row.calls == 3 * outputs:
        return [replace(product, weight=1 / 3, others=()), Product(row, m, n, k, product.batch, weight=2 / 3)]
    if outputs and row.calls == outputs:
        return [replace(product, others=())]
    return [replace(product, others=((m, n, k),))]


def _unfused(row: GemmRow, now: ModelConfig) -> list[Product]:
    """Scores (s x s x d) and values (s x d x s) of b*a heads, and their gradients, in any order."""
    actual = (row.m, row.n, row.k)
    if _SCORES.value(now) != row.batch:
        return []
    orders = ((_SEQ, _SEQ, _HEAD), (_SEQ, _HEAD, _SEQ), (_HEAD, _SEQ, _SEQ))
    found = [order for order in orders if tuple(dim.value(now) for dim in order) == actual]
    return [Product(row, *found[0], _SCORES, others=tuple(found[1:]))] if found else []


def _attention(row: GemmRow, now: ModelConfig) -> AttentionCall | str:
    """The call's sizes, where heads and head dimension are the model's; else why not."""
    backward = row.phase == "backward"
    ranks = now.tp
    heads = now.heads // ranks if now.heads else None
    kv_heads = max(1, now.kv_heads // ranks) if now.kv_heads else None
    model = (heads, (None if now.kv_repeated else kv_heads) or heads, now.head_dim)
    call = row.attention
    if call is None or call.heads_of_all is None:
        return words.SIZES_NOT_IN_TRACE
    if call.tokens is None and (call.batch is None or call.seq_q is None or call.seq_k is None):
        return words.SIZES_NOT_IN_TRACE
    if call.value_dim is not None:
        return words.OTHER_VALUES
    if call.heads_of_all != model:
        return words.OTHER_HEADS
    if call.tokens is not None:
        return AttentionCall(row, 1, call.tokens, None, None, backward)
    assert call.batch is not None and call.seq_q is not None
    return AttentionCall(row, call.batch, call.batch * call.seq_q, call.seq_q, call.seq_k, backward)
