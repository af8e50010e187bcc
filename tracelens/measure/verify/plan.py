"""What to measure for one suggestion: its products and attention one by one, and the layers they are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracelens.config.model_config import ModelConfig, changed
from tracelens.errors import UsageError
from tracelens.hardware.measurements import MeasuredBackend
from tracelens.measure.cases import DTYPES, AttentionCase, GemmCase
from tracelens.measure.journal import Case
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.verify.source import Asked, Source
from tracelens.measure.verify.standin import (
    BACKENDS,
    StandIn,
    causal_of,
    row_dtype,
    trace_layer_ms,
    trace_logits_ms,
)
from tracelens.results import GemmRow
from tracelens.results.verified import Reason, WholeKind, Why
from tracelens.step.activations import memory_of_trace
from tracelens.step.affected import changed_names, concerns, grown_calls, vocab_untold
from tracelens.step.per_token import growth_frac
from tracelens.step.predicted import dtype_then, layout_of
from tracelens.step.predicted_attention import AttentionSizes, attention_sizes
from tracelens.step.stalls import call_us_of
from tracelens.step.traffic import repeats
from tracelens.step.words.simulation import VOCAB_UNTOLD
from tracelens.step.work import AttentionCall, Product
from tracelens.words import Direction

#: Layers of a small step: enough that a layer more or less is no large part of it.
STEP_LAYERS = 4
#: The stand-in's products have to be those of the trace, by their time.
_SAME_PRODUCTS = 0.9
_LAYER_SIZES = (
    "hidden", "heads", "kv_heads", "head_dim", "ffn", "sequence", "micro_batch", "tensor_parallel",
)  # fmt: skip
#: What GPUs say to each other changes with them, and one GPU does not measure it.
_RANKS = ("tensor_parallel", "pipeline_parallel", "expert_parallel")
_LOGITS_SIZES = ("hidden", "vocab", "sequence", "micro_batch", "tensor_parallel")


@dataclass(frozen=True, slots=True)
class CallPair:
    """One product or attention call that the change moves; ``why`` where it cannot be measured."""

    component: str
    role: str | None
    gemm: str | None
    now: Case | None
    then: Case | None
    calls_now: float  # per step
    calls_then: float
    trace_us: float | None
    time_ms: float  # per step, in the trace
    why: Why = ""


@dataclass(frozen=True, slots=True)
class WholePair:
    """A layer, the logits or a small step in both shapes."""

    what: WholeKind
    now: LayerShape | StepShape
    then: LayerShape | StepShape
    calls_now: float | None  # per step; None: no part of the step's sum
    calls_then: float | None
    trace_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PlannedTrial:
    """Everything to measure for one suggestion. ``why``: nothing can be measured."""

    asked: Asked
    why: Why = ""
    calls: tuple[CallPair, ...] = ()
    wholes: tuple[WholePair, ...] = ()
    step: WholePair | Why = ""  # why there is none
    apart: Why = ""  # why the layers do not stand for the trace's; "" where they do
    scale: float = 1.0  # of what it takes after the change, to the tokens there were before
    notes: tuple[Reason, ...] = ()
    partial: bool = False  # what is measured is a part of what was predicted, and never stands for it


def make_trial(asked: Asked, source: Source, built: StandIn | Reason, *, model: bool = False) -> PlannedTrial:
    """Plan one suggestion; ``built`` is the stand-in of the model's layers, or why there is none."""
    if not asked.changes:
        return _of_rows(asked, source)
    try:
        then = changed(source.now, asked.changes)
    except UsageError as error:
        return PlannedTrial(asked, why=error.cause)
    now = source.now
    calls = _row_calls(source, then, built) if source.kind == "report" else ()
    wholes: tuple[WholePair, ...] = ()
    apart: Why = "" if isinstance(built, StandIn) else built
    step: WholePair | Why = Reason("no_layer") if model else ""
    notes: list[Reason] = []
    if isinstance(built, StandIn):
        found = _wholes(source, then, built)
        if not isinstance(found, tuple):
            apart = found
        else:
            wholes = found
            apart = _apart(source, then, built)
            calls = calls or _layer_calls(wholes)
            notes += built.assumed
        if model:
            step = _step(source, then, built)
    notes += _too_large(source, then)
    left = _left_ms(source, then)
    if left:
        notes.append(Reason("sizes_without_formula", {"ms": left}))
    if not calls and not wholes:
        return PlannedTrial(asked, why=apart or Reason("no_call_changes"))
    ranks = any(now.get(name) != then.get(name) for name in _RANKS)
    if now.dtype != then.dtype:
        notes.append(Reason("casts"))
    partial = ranks or now.dtype != then.dtype
    return PlannedTrial(
        asked, "", calls, wholes, step, apart, _scale(asked, now, then), tuple(notes), partial=partial
    )


def _too_large(source: Source, then: ModelConfig) -> list[Reason]:
    """A layer fits where the whole step with its optimizer does not: said where the estimate shows it."""
    gpu = source.memory_gib
    now_bytes, then_bytes = memory_of_trace(source.now), memory_of_trace(then)
    if gpu is None or now_bytes is None or then_bytes is None:
        return []
    before, after = now_bytes / 2**30, then_bytes / 2**30
    if not before <= gpu < after:  # a present step that is estimated too large is one that ranks share
        return []
    return [Reason("memory_grows", {"before_gib": before, "after_gib": after, "gpu_gib": gpu})]


def _scale(asked: Asked, now: ModelConfig, then: ModelConfig) -> float:
    """What a changed call counts for: as many tokens as there were, where the prediction is per token.

    A scenario's is of the step, a pick's per token, a finding's per token that is worth something.
    """
    if asked.per_token:
        return now.token_count / then.token_count if now.token_count and then.token_count else 1.0
    if asked.place[0] != "findings":
        return 1.0
    return 1.0 / (1.0 + growth_frac({name: [now.get(name), then.get(name)] for name in asked.changes}))


# --- products and attention ---------------------------------------------------------------------------


def _row_calls(source: Source, then: ModelConfig, built: StandIn | Reason) -> tuple[CallPair, ...]:
    """Of a report: every row whose sizes or calls the change moves."""
    found = [_product(one, source.now, then) for one in source.work.products]
    found += [_attention(one, source.now, then, built) for one in source.work.attention]
    return tuple(one for one in found if one is not None)


def _of_rows(asked: Asked, source: Source) -> PlannedTrial:
    """A finding about some products of the step and no size of the model: those products alone."""
    if asked.resize is None and asked.precision is None:
        return PlannedTrial(asked, why=asked.why)
    rows = [row for row in source.rows if row.id in asked.gemms and row.kind == "gemm"]
    calls = tuple(one for one in (_changed_row(row, asked) for row in rows) if one is not None)
    if not calls:
        return PlannedTrial(asked, why=Reason("rows_without_sizes"))
    casts = (Reason("casts"),) if asked.precision else ()
    apart = Reason("single_products")
    return PlannedTrial(asked, "", calls, (), "", apart, 1.0, casts, partial=bool(casts))


def _changed_row(row: GemmRow, asked: Asked) -> CallPair | None:
    """The row in another type, or with one side of it at another size."""
    sizes = (row.m, row.n, row.k)
    m, n, k = sizes
    if m is None or n is None or k is None:
        return None
    dtype = row_dtype(row)
    pair = CallPair(row.component, row.role or row.phase, row.id, None, None, row.calls_per_step,
                    row.calls_per_step, _call_us(row), row.time_ms_per_step)  # fmt: skip
    if dtype not in DTYPES:
        return replace(pair, why=Reason("dtype", {"dtype": dtype}))
    now = GemmCase("verify", m, n, k, row.batch or 1, dtype, layout_of(row))
    if asked.precision is not None:
        target = asked.precision[1]
        if target not in DTYPES:
            return replace(pair, why=Reason("dtype", {"dtype": target}))
        # fp8 products are TN alone: frameworks transpose first
        return replace(
            pair, now=now, then=replace(now, dtype=target, layout="TN" if target == "fp8" else now.layout)
        )
    before, after = asked.resize or (0, 0)
    if before not in sizes:
        return None
    m, n, k = (after if side == before else side for side in (m, n, k))
    return replace(pair, now=now, then=replace(now, m=m, n=n, k=k))


def _product(product: Product, now: ModelConfig, then: ModelConfig) -> CallPair | None:
    row, before, after = product.row, product.sizes(now), product.sizes(then)
    calls = row.calls_per_step * product.weight
    grown = grown_calls(row, now, then, product.each_expert)
    dtype, dtype_after = row_dtype(row), dtype_then(row, now, then)
    untold = row.component == "logits" and vocab_untold(now, then)
    if before is None or (before == after and dtype == dtype_after and grown == 1.0 and not untold):
        return None
    pair = CallPair(row.component, row.role or row.phase, row.id, None, None, calls, calls * grown,
                    _call_us(row), row.time_ms_per_step * product.weight)  # fmt: skip
    if after is None:
        return replace(pair, why=Reason("sizes_unknown_then"))
    if untold:
        return replace(pair, why=VOCAB_UNTOLD)
    if row.groups is not None:
        return replace(pair, why=Reason("unequal_groups"))
    if unmeasured := next((one for one in (dtype, dtype_after) if one not in DTYPES), None):
        return replace(pair, why=Reason("dtype", {"dtype": unmeasured}))
    sides = []
    for (m, n, k, batch), kind in ((before, dtype), (after, dtype_after)):
        # fp8 products are TN alone: frameworks transpose first
        layout = "TN" if kind == "fp8" != dtype else layout_of(row)
        case = GemmCase("verify", m, n, k, batch, kind, layout)
        other = row.out_dtype if row.out_dtype not in (None, case.result_dtype) else None
        sides.append(replace(case, out_dtype=other if kind == dtype else None))
    return replace(pair, now=sides[0], then=sides[1])


def _call_us(row: GemmRow) -> float | None:
    return call_us_of(row) or None


def _attention(
    call: AttentionCall, now: ModelConfig, then: ModelConfig, built: StandIn | Reason
) -> CallPair | None:
    row, length = call.row, call.seq_k or call.tokens
    grown = grown_calls(row, now, then)
    before, after = (attention_sizes(call, config, now, length) for config in (now, then))
    if before == after and grown == 1.0:
        return None
    pair = CallPair(
        row.component, "backward" if call.backward else "forward", row.id, None, None, row.calls_per_step,
        row.calls_per_step * grown, _call_us(row), row.time_ms_per_step,
    )  # fmt: skip
    if before is None or after is None:
        return replace(pair, why=Reason("sizes_unknown_then"))
    if call.seq_k is None:
        return replace(pair, why=Reason("packed_lengths"))
    backend = BACKENDS.get(row.kernel_family)
    if backend is None:
        return replace(pair, why=Reason("no_backend", {"family": row.kernel_family}))
    known = causal_of([row])
    causal = known if known is not None else built.causal if isinstance(built, StandIn) else True
    way: Direction = "backward" if pair.role == "backward" else "forward"
    sides = [_attention_case(one, row.dtype or "bf16", causal, way, backend) for one in (before, after)]
    return replace(pair, now=sides[0], then=sides[1])


def _attention_case(
    sizes: AttentionSizes, dtype: str, causal: bool, direction: Direction, backend: MeasuredBackend
) -> AttentionCase:
    return AttentionCase(
        "verify", sizes.batch, sizes.heads, sizes.seq_q, sizes.head_dim, sizes.kv_heads, sizes.seq_k, dtype,
        causal, direction, backend,
    )  # fmt: skip


def _layer_calls(wholes: Sequence[WholePair]) -> tuple[CallPair, ...]:
    """Of a configuration: the products that its layers do, and their attention."""
    found: list[CallPair] = []
    for whole in wholes:
        if not isinstance(whole.now, LayerShape) or not isinstance(whole.then, LayerShape):
            continue
        for before, after in zip(_cases(whole.now), _cases(whole.then), strict=True):
            calls = whole.calls_now, whole.calls_then
            if (
                calls[0] is not None
                and calls[1] is not None
                and (before[2] != after[2] or calls[0] != calls[1])
            ):
                found.append(
                    CallPair(before[0], before[1], None, before[2], after[2], calls[0], calls[1], None, 0.0)
                )
    return tuple(found)


def _cases(layer: LayerShape) -> list[tuple[str, str, Case]]:
    """Component, role and call of everything that is no plain memory traffic."""
    found: list[tuple[str, str, Case]] = [
        (one.component, one.role, GemmCase("verify", one.m, one.n, one.k, one.batch, layer.dtype, one.layout))
        for one in layer.gemms()
    ]
    if not layer.vocab and layer.attention != "math":
        t = layer.tensor_parallel
        sizes = AttentionSizes(layer.micro_batch, layer.heads // t, layer.kv_heads // t, layer.sequence,
                               layer.sequence, layer.head_dim)  # fmt: skip
        for way in ("forward", "backward"):
            case = _attention_case(sizes, layer.dtype, layer.causal, way, layer.attention)
            found.append(("attention.core", way, case))
    return found


def _left_ms(source: Source, then: ModelConfig) -> float:
    """Time of rows that the change concerns and that have no formula."""
    names = changed_names(source.now, then)
    return sum(row.time_ms_per_step for row, _ in source.work.fixed if concerns(row, names, source.now))


# --- layers, logits and steps -------------------------------------------------------------------------


def _wholes(source: Source, then: ModelConfig, built: StandIn) -> tuple[WholePair, ...] | Why:
    """The layer and the logits where the change reaches them; why not where they cannot be built."""
    now, found = source.now, []
    if any(now.get(name) != then.get(name) for name in (*_LAYER_SIZES, "layers", "pipeline_parallel")):
        sides = built.layer(now), built.layer(then)
        for side in sides:
            if not isinstance(side, LayerShape):
                return side
        runs = built.passes * (source.layers or 0)
        calls = runs, runs * repeats("mlp.down", now, then)
        found.append(
            WholePair("layer", sides[0], sides[1], *calls, trace_layer_ms(source, built.passes))  # type: ignore[arg-type]
        )
    if (
        now.vocab
        and not vocab_untold(now, then)
        and any(now.get(name) != then.get(name) for name in _LOGITS_SIZES)
    ):
        sides = built.layer(now, vocab=now.vocab), built.layer(then, vocab=then.vocab or 0)
        for side in sides:
            if not isinstance(side, LayerShape):
                return side
        calls = built.passes, built.passes * repeats("logits", now, then)
        found.append(
            WholePair("logits", sides[0], sides[1], *calls, trace_logits_ms(source, built.passes))  # type: ignore[arg-type]
        )
    return tuple(found)


def _apart(source: Source, then: ModelConfig, built: StandIn) -> Why:
    """Why the stand-in says nothing of the trace's step: its products are others; "" where they are not."""
    if source.kind != "report":
        return ""
    now = source.now
    for name in _RANKS:
        if now.get(name) != then.get(name):
            return Reason("ranks_exchange", {"name": name})
    if now.dtype != then.dtype:
        return Reason("present_type")
    sides = [built.layer(now)] + ([built.layer(now, vocab=now.vocab)] if now.vocab else [])
    built_with = {
        tuple(sorted((one.m, one.n, one.k)))
        for side in sides
        if isinstance(side, LayerShape)
        for one in side.gemms()
    }
    time: Counter[bool] = Counter()
    for product in source.work.products:
        row, sizes = product.row, product.sizes(now)
        if sizes is None or sizes == product.sizes(then):
            continue
        time[tuple(sorted(sizes[:3])) in built_with] += round(1e6 * row.time_ms_per_step * product.weight)
    if time[True] < _SAME_PRODUCTS * time.total():
        return Reason("other_products", {"ms": time[False] / 1e6})
    return ""


def _step(source: Source, then: ModelConfig, built: StandIn) -> WholePair | Why:
    """A small model in both shapes: as deep as the model, four layers at most."""
    now = source.now
    if not now.vocab or not then.vocab:
        return Reason("no_logits")
    if now.tp > 1 or then.tp > 1:
        return Reason("sharded_model")
    steps = []
    for config in (now, then):
        layer = built.layer(config)
        if not isinstance(layer, LayerShape):
            return layer
        steps.append(StepShape(layer, min(config.layers or 1, STEP_LAYERS), config.vocab or 0))
    return WholePair("step", steps[0], steps[1], None, None)
