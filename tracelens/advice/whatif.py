"""The step after a change of hyper-parameters: every kernel's measured time moved as its prediction moves.

Products and fused attention: new time = measured time x predicted(new shape) / predicted(old shape).
Where the change brings a product onto the 16-byte grid, the old shape's prediction would rest on what
misalignment costs at large; the measured time already holds that cost. There new time = predicted(new
shape) x what this trace's own aligned products took over their predictions.
Kernels that only move bytes scale with the bytes. Everything else stays as measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracelens.advice.casts import casts_of
from tracelens.advice.exchange import Exchange, exchange_of, vocab_is_split
from tracelens.advice.experts import mixture_of
from tracelens.advice.hyper import DTYPES, Hyper, changed, hyper_of
from tracelens.advice.predicted import Anchors, Scaled, scaled_product
from tracelens.advice.predicted_attention import scaled_attention
from tracelens.advice.traffic import repeats, rest_of
from tracelens.advice.whatif_notes import notes_of
from tracelens.advice.work import Work, is_gated, tokens_of, vocab_of, work_of
from tracelens.errors import UsageError
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.numbers import ms
from tracelens.results import (
    CommunicationRow,
    ComponentRow,
    Estimate,
    GemmRow,
    ModelDims,
    Rest,
    RowChange,
    WhatIf,
)

__all__ = ["Rest", "RowChange", "StepModel", "WhatIf", "step_model", "what_if"]

#: Components whose products a parameter enters; every one where a parameter is not listed. A row of them
#: without a formula is a gap in the answer.
_ENTERS: Mapping[str, tuple[str, ...]] = {
    "vocab": ("logits",),
    "heads": ("attention.",),
    "kv_heads": ("attention.",),
    "head_dim": ("attention.",),
    "ffn": ("mlp.", "moe.experts"),
    "experts": ("moe.",),
    "top_k": ("moe.experts",),
    "capacity": ("moe.experts",),
    "expert_parallel": ("moe.experts",),
}
#: Not in layers: their calls do not grow with ``layers``.
_ONCE = frozenset({"embedding", "logits", "loss", "optimizer", "grad_clip", "other", "unattributed"})
#: Components that say nothing of what a product is.
_NAMELESS = frozenset({"other", "unattributed"})
#: With more of the affected time without a formula than this, no saving is given.
_GAP = 0.1
#: Below this busy share the step waits for the host.
_BUSY = 0.9
_SAME = Scaled(1.0, 1.0, 1.0, "model", "", "", "same shape", "same")
_ORDER = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "layers", "experts", "sequence",
          "micro_batch", "tokens", "tensor_parallel", "pipeline_parallel", "expert_parallel", "top_k",
          "capacity", "dtype")  # fmt: skip
#: Their kernels have the vocabulary as a side.
_OF_VOCAB = frozenset({"logits", "loss"})
_VOCAB_UNTOLD = "whether ranks split the vocabulary is not known: `tracelens capture` writes down its size"
#: They repeat the kernels of a layer and change none.
_COUNTS = frozenset({"layers", "pipeline_parallel"})
#: They change fused attention.
_OF_ATTENTION = frozenset(
    {"heads", "kv_heads", "head_dim", "sequence", "micro_batch", "tokens", "tensor_parallel", "dtype"}
)


@dataclass(frozen=True, slots=True)
class StepModel:
    """What a what-if starts from: one analysed step."""

    now: Hyper
    work: Work
    components: tuple[tuple[str, str, float, float], ...]  # component, phase, ms per step, of it products
    step_ms: float | None
    busy_frac: float | None
    gpu: Gpu
    measured: Measurements | None
    anchors: Anchors
    communication: tuple[CommunicationRow, ...] = ()

    @property
    def communicates(self) -> bool:
        """Does the step hold communication?"""
        return any(name == "communication" and time > 0 for name, _, time, _ in self.components)

    @property
    def waits_for_host(self) -> bool:
        """Is the GPU idle for so much of the step that shorter kernels need not make it shorter?"""
        return self.busy_frac is not None and self.busy_frac < _BUSY

    def work_ms(self, then: Hyper) -> float:
        """GPU time of a step's micro-batches on one rank, as often as they run under ``then``."""
        return sum(
            time * repeats(name, self.now, then, once=_ONCE)
            for name, _, time, _ in self.components
            if name not in ("communication", "optimizer", "grad_clip")
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A row, or a share of its calls, before and after."""

    row: GemmRow
    time_ms: float
    calls: float  # how much more often it runs
    scaled: Scaled

    @property
    def then_ms(self) -> Estimate:
        time, one = self.time_ms * self.calls, self.scaled
        return Estimate(time * one.low, time * one.mid, time * one.high, one.basis)


@dataclass(frozen=True, slots=True)
class _Affected:
    """What a change touches: predicted parts, and rows without a prediction with the reason."""

    parts: tuple[_Part, ...]
    lost: tuple[tuple[float, str], ...]  # ms per step, why

    @property
    def gap_ms(self) -> float:
        return sum(time for time, _ in self.lost)

    @property
    def time_ms(self) -> float:
        return self.gap_ms + sum(part.time_ms for part in self.parts)


def step_model(
    rows: Sequence[GemmRow],
    dims: ModelDims,
    components: Sequence[ComponentRow],
    *,
    gpu: Gpu,
    step_ms: float | None,
    busy_frac: float | None = None,
    measured: Measurements | None = None,
    communication: Sequence[CommunicationRow] = (),
    declared: Mapping[str, int] | None = None,
) -> StepModel:
    """Read the step's formulas off its rows.

    ``declared`` are sizes that the model's own configuration states; what the trace shows goes first.
    """
    now = _present(rows, dims, communication, declared or {})
    products: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row.component, row.phase)
        products[key] = products.get(key, 0.0) + row.time_ms_per_step
    parts = tuple(
        (one.component, one.phase, one.time_ms_per_step, products.get((one.component, one.phase), 0.0))
        for one in components
    )
    work = work_of(rows, now)
    anchors = Anchors.of(work, now, gpu=gpu, measured=measured)
    step = step_ms if step_ms is not None and step_ms > 0 else None
    return StepModel(now, work, parts, step, busy_frac, gpu, measured, anchors, tuple(communication))


def _present(
    rows: Sequence[GemmRow],
    dims: ModelDims,
    communication: Sequence[CommunicationRow],
    declared: Mapping[str, int],
) -> Hyper:
    """The hyper-parameters that the step runs with."""
    tokens = tokens_of(rows)
    batch, length = dims.micro_batch.value, dims.sequence.value
    mixture = mixture_of(rows, dims, tokens=batch * length if batch and length else tokens)
    more: dict[str, int | str | bool | None] = {
        "dtype": _main_dtype(rows),
        "micro_batches": micro_batches_of(rows, dims),
    }
    if tokens is not None:
        more["vocab_split"] = vocab_is_split(
            communication, dims, tokens=tokens, declared=declared.get("vocab")
        )
    whole, here = declared.get("layers"), dims.layers.value
    if (dims.pipeline_parallel.value or 1) > 1 and whole is not None and whole >= (here or whole):
        more["layers"] = whole  # and not this stage's times the stages, which need not be alike
    if mixture is not None:
        if mixture.capacity:
            more["capacity"] = round(mixture.capacity)
        more["top_k"] = mixture.top_k or declared.get("experts_per_token")
        if dims.expert_parallel.value is None:
            more["expert_parallel"] = mixture.ranks
    gated = mixture.gated if mixture is not None else is_gated(rows, dims.ffn.value)
    return hyper_of(dims, gated=gated, tokens=tokens, vocab=vocab_of(rows, dims), **more)


def _main_dtype(rows: Sequence[GemmRow]) -> str | None:
    """The type in which products of layers spend most of their time, where it is one that can be changed."""
    times: dict[str, float] = {}
    for row in rows:
        dtype = row.math_dtype or row.dtype
        if dtype is not None and row.kind == "gemm":
            times[dtype] = times.get(dtype, 0.0) + row.time_ms_per_step
    most = max(times, key=lambda dtype: times[dtype]) if times else None
    return most if most in DTYPES else None


def micro_batches_of(rows: Sequence[GemmRow], dims: ModelDims) -> int | None:
    """Micro-batches of a step on this rank: forward output projections over this rank's layers."""
    calls = sum(
        row.calls_per_step
        for row in rows
        if row.component == "attention.output" and row.kind == "gemm"
        and row.role in (None, "forward") and row.phase in ("forward", "other")
    )  # fmt: skip
    layers = dims.layers.value
    count = calls / layers if layers else 0.0
    return round(count) if count >= 1 and abs(count - round(count)) < 0.01 else None


def what_if(step: StepModel, changes: Mapping[str, int | str]) -> WhatIf:
    """The step with ``changes``, all of them at once. UsageError where a change makes no sense.

    A change of the ranks that share the model is judged at the same GPUs and tokens per step.
    """
    now, then = step.now, changed(step.now, changes)
    if now.dtype != then.dtype and not step.gpu.peak(then.dtype):
        raise UsageError(f"{step.gpu.title} has no known rate for {then.dtype}: it cannot be simulated")
    affected = _affected(step, then)
    exchange = exchange_of(step.communication, now, then)
    moved = [part for part in step.components if part[0] not in _OF_VOCAB or not _vocab_untold(now, then)]
    rest = tuple(
        sorted(
            [
                *rest_of(moved, now, then, once=_ONCE),
                *exchange.rest,
                *casts_of(step.work.products, now, then, gpu=step.gpu),
            ],
            key=lambda one: -one.time_ms,
        )
    )
    unknown = _unknown(step, then, affected, exchange)
    saving = Estimate(None, None, None, "model") if unknown else _saving(step, affected, rest)
    tokens = now.token_count, then.token_count
    return WhatIf(
        change={name: [now.value(name), then.value(name)] for name in _changes(now, then)},
        saving_ms=saving,
        saving_frac=_over(saving, step.step_ms),
        step_ms=step.step_ms,
        then_ms=_minus(step.step_ms, saving),
        parameters=[now.parameters, then.parameters],
        flops_frac=_flops_growth(step.work, affected, then=then, now=now),
        tokens_frac=tokens[1] / tokens[0] - 1.0 if tokens[0] and tokens[1] else 0.0,
        rows=_rows(affected.parts),
        rest=list(rest),
        unpredicted_ms=affected.gap_ms,
        waits_for_host=step.waits_for_host,
        notes=[
            *([unknown] if unknown else []),
            *exchange.notes,
            *_gap_notes(step, affected, known=not unknown, other_tokens=tokens[0] != tokens[1]),
            *notes_of(
                now, then, communicates=step.communicates and not exchange.rest, work_ms=step.work_ms(then)
            ),
        ],
    )


def _changes(now: Hyper, then: Hyper) -> list[str]:
    return [name for name in _ORDER if now.value(name) != then.value(name)]


def _affected(step: StepModel, then: Hyper) -> _Affected:
    now = step.now
    names = _changes(now, then)
    parts: list[_Part] = []
    lost: list[tuple[float, str]] = []

    def take(row: GemmRow, weight: float, scaled: Scaled | str, *, each_expert: bool = False) -> None:
        time, calls = row.time_ms_per_step * weight, _grown_calls(row, now, then, each_expert)
        if isinstance(scaled, str):
            lost.append((time, scaled))
        elif scaled.kind != "same" or calls != 1.0:
            parts.append(_Part(row, time, calls, scaled))

    for product in step.work.products if names else ():
        scaled = scaled_product(
            product, now, then, anchors=step.anchors, gpu=step.gpu, measured=step.measured
        )
        if product.row.component == "logits" and _vocab_untold(now, then):
            scaled = _VOCAB_UNTOLD
        take(product.row, product.weight, scaled, each_expert=product.each_expert)
    for call in step.work.attention if names else ():
        if _OF_ATTENTION & set(names):
            found = scaled_attention(call, now, then, gpu=step.gpu, measured=step.measured)
        else:
            found = _SAME
        take(call.row, 1.0, found)
    if _vocab_untold(now, then):
        for name, _, time, products in step.components:
            if name in _OF_VOCAB and time > products:
                lost.append((time - products, _VOCAB_UNTOLD))
    for row, why in step.work.fixed if names else ():
        if set(names) <= _COUNTS:  # its shape stays, whatever it is
            take(row, 1.0, _SAME)
        elif concerns(row, names, now):
            lost.append((row.time_ms_per_step, why))
    return _Affected(tuple(parts), tuple(lost))


def concerns(row: GemmRow, names: Sequence[str], now: Hyper) -> bool:
    """Whether a change of ``names`` would change ``row``, by what such rows are made of.

    A product that is no known part of the model counts where one of its sizes is that of the parameter,
    or where it has no sizes and the parameter enters the whole model.
    """
    for name in names:
        prefixes = _ENTERS.get(name)
        if row.component in _NAMELESS:
            sizes = {row.m, row.n, row.k} - {None}
            size = now.token_count if name in ("micro_batch", "sequence", "tokens") else now.value(name)
            if size in sizes or (not sizes and prefixes is None):
                return True
        elif row.component not in ("optimizer", "grad_clip") and (
            prefixes is None or row.component.startswith(prefixes)
        ):
            return True
    return False


def _unknown(step: StepModel, then: Hyper, affected: _Affected, exchange: Exchange) -> str | None:
    """Why there is no saving, or None."""
    now = step.now
    if now.pipeline_parallel != then.pipeline_parallel:
        return "no saving is given: what stages send and how long they wait for each other is not predicted"
    if exchange.unknown is not None:
        return f"no saving is given: {exchange.unknown}"
    if affected.gap_ms > _GAP * affected.time_ms:
        return (
            f"no saving is given: {ms(affected.gap_ms)} of the {ms(affected.time_ms)} per step that the"
            f" change touches are not predicted ({_reasons(affected)})"
        )
    return None


def _reasons(affected: _Affected) -> str:
    times: dict[str, float] = {}
    for time, why in affected.lost:
        times[why] = times.get(why, 0.0) + time
    most = sorted(times, key=lambda why: -times[why])
    return "; ".join(most[:2]) + (f"; {len(most) - 2} more reasons" if len(most) > 2 else "")


def _rows(parts: Sequence[_Part]) -> list[RowChange]:
    merged: dict[str, RowChange] = {}
    for part in parts:
        row, one = part.row, part.scaled
        change = RowChange(
            row.id, row.component, row.role or (None if row.phase == "forward" else row.phase),
            one.shape_now or (row.shape_note or ""),
            one.shape_then or (row.shape_note or ""), part.time_ms, part.then_ms,
            one.how + (f", {part.calls:.4g} times as often" if part.calls != 1.0 else ""),
        )  # fmt: skip
        known = merged.get(row.id)
        merged[row.id] = change if known is None else _joined(known, change)
    return sorted(merged.values(), key=lambda one: -one.time_ms)


def _joined(a: RowChange, b: RowChange) -> RowChange:
    """Two shares of one row's calls."""
    then = a.shape_then if a.shape_then == b.shape_then else f"{a.shape_then} and {b.shape_then}"
    low, mid, high = (
        (getattr(a.then_ms, end) or 0.0) + (getattr(b.then_ms, end) or 0.0) for end in ("low", "mid", "high")
    )
    time = Estimate(low, mid, high, _basis([a.then_ms.basis, b.then_ms.basis]))
    how = a.how if a.how == b.how else f"{a.how}; {b.how}"
    return RowChange(a.gemm, a.component, a.role, a.shape_now, then, a.time_ms + b.time_ms, time, how)


def _saving(step: StepModel, affected: _Affected, rest: Sequence[Rest]) -> Estimate:
    """Savings of rows and components together, per step.

    Errors of one kind (ratios of products, anchored products, attention, bytes) share their cause and add;
    those of different kinds are independent, so they add in squares. Affected rows without a prediction
    stay as measured; the range lets them move as much as the others do. Where the step waits for the
    host, the range reaches to no change at all: a saving can end as idle time, and idle time can take up
    what is added.
    """
    kinds: dict[str, list[tuple[float, Estimate]]] = {}
    for part in affected.parts:
        kinds.setdefault(part.scaled.kind, []).append((part.time_ms, part.then_ms))
    kinds["bytes"] = [(one.time_ms, one.then_ms) for one in rest]
    mid = sum(now - (then.mid or 0.0) for pairs in kinds.values() for now, then in pairs)
    up = [sum((then.mid or 0.0) - (then.low or 0.0) for _, then in pairs) for pairs in kinds.values()]
    down = [sum((then.high or 0.0) - (then.mid or 0.0) for _, then in pairs) for pairs in kinds.values()]
    mid = mid if abs(mid) > 1e-9 else 0.0
    predicted_ms = affected.time_ms - affected.gap_ms
    open_ms = affected.gap_ms * abs(mid) / predicted_ms if predicted_ms > 0 else 0.0
    low, high = mid - math.hypot(*down) - open_ms, mid + math.hypot(*up) + open_ms
    if step.waits_for_host and step.busy_frac is not None:
        idle_ms = (1 - step.busy_frac) * step.step_ms if step.step_ms is not None else math.inf
        low, high = min(low, 0.0), max(high, min(0.0, mid + idle_ms))
    if step.step_ms is not None:  # kernels on parallel streams can add to more than the step
        low, mid, high = (min(one, step.step_ms) for one in (low, mid, high))
    return Estimate(low, mid, high, _saving_basis(affected.parts, rest))


def _saving_basis(parts: Sequence[_Part], rest: Sequence[Rest]) -> str:
    """Calibrated where measurements of this GPU predict the products and little else moves the result."""
    by_products = sum(abs(part.time_ms - (part.then_ms.mid or 0.0)) for part in parts)
    by_bytes = sum(abs(one.time_ms - (one.then_ms.mid or 0.0)) for one in rest)
    basis = _basis([part.scaled.basis for part in parts])
    return basis if by_bytes <= _GAP * by_products else "model"


def _basis(bases: Sequence[str]) -> str:
    """The weakest of them."""
    return "calibrated" if set(bases) == {"calibrated"} else "model"


def _over(saving: Estimate, step_ms: float | None) -> Estimate:
    def part(value: float | None) -> float | None:
        return value / step_ms if value is not None and step_ms else None

    return Estimate(part(saving.low), part(saving.mid), part(saving.high), saving.basis)


def _minus(step_ms: float | None, saving: Estimate) -> Estimate:
    def left(value: float | None) -> float | None:
        return step_ms - value if value is not None and step_ms is not None else None

    return Estimate(left(saving.high), left(saving.mid), left(saving.low), saving.basis)


def _vocab_untold(now: Hyper, then: Hyper) -> bool:
    """Do ranks change that perhaps share the vocabulary?"""
    return now.tensor_parallel != then.tensor_parallel and now.vocab_split is None


def _grown_calls(row: GemmRow, now: Hyper, then: Hyper, each_expert: bool = False) -> float:
    """How much more often a row runs, in layers and experts."""
    calls = repeats(row.component, now, then, once=_ONCE)
    if each_expert and now.local_experts and then.local_experts:
        calls *= then.local_experts / now.local_experts
    return calls


def _gap_notes(step: StepModel, affected: _Affected, *, known: bool, other_tokens: bool) -> list[str]:
    notes = []
    if affected.lost and known:
        notes.append(
            f"{ms(affected.gap_ms)} per step of affected products are not predicted ({_reasons(affected)}):"
            " taken as unchanged, and the range lets them move as the others do"
        )
    if step.waits_for_host and step.busy_frac is not None:
        notes.append(
            f"the GPU is busy {step.busy_frac:.0%} of the step: where it waits for the host, shorter kernels"
            " leave longer gaps and not a shorter step"
        )
        if other_tokens:
            notes.append(
                "idle time is taken as it is now: whether the host takes longer with other tokens is not"
                " known, so the time per token is no prediction"
            )
    return notes


def _flops_growth(work: Work, affected: _Affected, *, now: Hyper, then: Hyper) -> float | None:
    """Growth of the operations of the step's products and attention; None where too much is unknown.

    Rows without a formula count as unchanged while they are few beside what the change touches.
    """
    if affected.gap_ms > _GAP * affected.time_ms:
        return None
    before = after = 0.0
    for product in work.products:
        old, new = product.sizes(now), product.sizes(then)
        if old is None:
            continue
        new = new or old
        share = 2.0 * product.weight * product.row.calls_per_step
        before += share * math.prod(old)
        after += share * math.prod(new) * _grown_calls(product.row, now, then, product.each_expert)
    for call in work.attention:
        if call.row.flops is None or not (now.heads and now.head_dim and then.heads and then.head_dim):
            return None
        share = call.row.flops * call.row.calls_per_step
        grown = then.heads * then.head_dim / (now.heads * now.head_dim)
        grown *= (now.tensor_parallel or 1) / (then.tensor_parallel or 1)  # a rank's heads
        grown *= (then.token_count or 1) / (now.token_count or 1)
        grown *= then.sequence / now.sequence if now.sequence and then.sequence else 1.0
        before += share
        after += share * grown * _grown_calls(call.row, now, then)
    for row, _ in work.fixed:
        if row.flops is not None:
            before += row.flops * row.calls_per_step
            after += row.flops * row.calls_per_step
    return after / before - 1.0 if before else None
