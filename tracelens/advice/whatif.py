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

from tracelens.advice.hyper import Hyper, changed, hyper_of
from tracelens.advice.predicted import Anchors, Scaled, scaled_product
from tracelens.advice.predicted_attention import scaled_attention
from tracelens.advice.traffic import rest_of
from tracelens.advice.work import Work, is_gated, tokens_of, vocab_of, work_of
from tracelens.hardware import Gpu
from tracelens.hardware.measurements import Measurements
from tracelens.numbers import ms
from tracelens.results import ComponentRow, Estimate, GemmRow, ModelDims, Rest, RowChange, WhatIf

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
          "micro_batch", "tokens", "tensor_parallel")  # fmt: skip


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
) -> StepModel:
    """Read the step's formulas off its rows."""
    now = hyper_of(
        dims, gated=is_gated(rows, dims.ffn.value), tokens=tokens_of(rows), vocab=vocab_of(rows, dims)
    )
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
    return StepModel(now, work, parts, step, busy_frac, gpu, measured, anchors)


def what_if(step: StepModel, changes: Mapping[str, int]) -> WhatIf:
    """The step with ``changes``, all of them at once. UsageError where a change makes no sense."""
    now, then = step.now, changed(step.now, changes)
    affected = _affected(step, then)
    rest = rest_of(step.components, now, then, once=_ONCE)
    unknown = _unknown(step, then, affected)
    saving = Estimate(None, None, None, "model") if unknown else _saving(step, affected, rest)
    tokens = now.token_count, then.token_count
    return WhatIf(
        change={name: [now.get(name), then.get(name)] for name in _changes(now, then)},
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
        notes=[*([unknown] if unknown else []), *_notes(step, then, affected, known=not unknown)],
    )


def _changes(now: Hyper, then: Hyper) -> list[str]:
    return [name for name in _ORDER if now.get(name) != then.get(name)]


def _affected(step: StepModel, then: Hyper) -> _Affected:
    now = step.now
    names = _changes(now, then)
    parts: list[_Part] = []
    lost: list[tuple[float, str]] = []

    def take(row: GemmRow, weight: float, scaled: Scaled | str) -> None:
        time, calls = row.time_ms_per_step * weight, _calls(row, now, then)
        if isinstance(scaled, str):
            lost.append((time, scaled))
        elif scaled.kind != "same" or calls != 1.0:
            parts.append(_Part(row, time, calls, scaled))

    for product in step.work.products if names else ():
        scaled = scaled_product(
            product, now, then, anchors=step.anchors, gpu=step.gpu, measured=step.measured
        )
        take(product.row, product.weight, scaled)
    shapes = {"heads", "kv_heads", "head_dim", "sequence", "micro_batch", "tokens", "tensor_parallel"}
    for call in step.work.attention if names else ():
        if shapes & set(names):
            found = scaled_attention(call, now, then, gpu=step.gpu, measured=step.measured)
        else:
            found = _SAME
        take(call.row, 1.0, found)
    for row, why in step.work.fixed if names else ():
        if names == ["layers"]:  # its shape stays, whatever it is
            take(row, 1.0, _SAME)
        elif _concerns(row, names, now):
            lost.append((row.time_ms_per_step, why))
    return _Affected(tuple(parts), tuple(lost))


def _calls(row: GemmRow, now: Hyper, then: Hyper) -> float:
    """How much more often the row runs: with the layers, where it is in them."""
    if row.component in _ONCE or not now.layers or not then.layers:
        return 1.0
    return then.layers / now.layers


def _concerns(row: GemmRow, names: Sequence[str], now: Hyper) -> bool:
    """Whether a change of ``names`` would change ``row``, by what such rows are made of.

    A product that is no known part of the model counts where one of its sizes is that of the parameter,
    or where it has no sizes and the parameter enters the whole model.
    """
    for name in names:
        prefixes = _ENTERS.get(name)
        if row.component in _NAMELESS:
            sizes = {row.m, row.n, row.k} - {None}
            size = now.token_count if name in ("micro_batch", "sequence", "tokens") else now.get(name)
            if size in sizes or (not sizes and prefixes is None):
                return True
        elif row.component not in ("optimizer", "grad_clip") and (
            prefixes is None or row.component.startswith(prefixes)
        ):
            return True
    return False


def _unknown(step: StepModel, then: Hyper, affected: _Affected) -> str | None:
    """Why there is no saving, or None."""
    if step.now.tensor_parallel != then.tensor_parallel:
        return "no saving is given: what the ranks exchange changes with tensor_parallel and is not predicted"
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
            one.how + (f", in {part.calls:.4g} times as many layers" if part.calls != 1.0 else ""),
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
    predicted_ms = affected.time_ms - affected.gap_ms
    open_ms = affected.gap_ms * abs(mid) / predicted_ms if predicted_ms > 0 else 0.0
    low, high = mid - math.hypot(*down) - open_ms, mid + math.hypot(*up) + open_ms
    if step.busy_frac is not None and step.busy_frac < _BUSY:
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
        after += share * math.prod(new) * _calls(product.row, now, then)
    for call in work.attention:
        if call.row.flops is None or not (now.heads and now.head_dim and then.heads and then.head_dim):
            return None
        share = call.row.flops * call.row.calls_per_step
        grown = then.heads * then.head_dim / (now.heads * now.head_dim)
        grown *= (then.token_count or 1) / (now.token_count or 1)
        grown *= then.sequence / now.sequence if now.sequence and then.sequence else 1.0
        before += share
        after += share * grown * _calls(call.row, now, then)
    for row, _ in work.fixed:
        if row.flops is not None:
            before += row.flops * row.calls_per_step
            after += row.flops * row.calls_per_step
    return after / before - 1.0 if before else None


def _notes(step: StepModel, then: Hyper, affected: _Affected, *, known: bool) -> list[str]:
    now, notes = step.now, []
    if affected.lost and known:
        notes.append(
            f"{ms(affected.gap_ms)} per step of affected products are not predicted ({_reasons(affected)}):"
            " taken as unchanged, and the range lets them move as the others do"
        )
    if step.busy_frac is not None and step.busy_frac < _BUSY:
        notes.append(
            f"the GPU is busy {step.busy_frac:.0%} of the step: where it waits for the host, shorter kernels"
            " leave longer gaps and not a shorter step"
        )
    if now.hidden != then.hidden and now.ffn == then.ffn and now.ffn:
        notes.append(f"ffn stays {now.ffn}: give ffn=... to change it with hidden")
    if now.tensor_parallel is None:
        notes.append("tensor parallelism is not known: sizes are taken as one rank holds them")
    if now.vocab != then.vocab and (now.tensor_parallel or 1) > 1:
        notes.append(f"vocab is what this rank's logits have: {now.vocab} columns")
    both_matrices = {"vocab", "hidden"} & set(_changes(now, then))
    if both_matrices and now.tied is None and now.vocab and now.parameters is not None:
        notes.append("parameters: the embedding is counted once, as if tied to the output matrix")
    grown = now.parameters != then.parameters or now.token_count != then.token_count
    if grown and any(name == "communication" and time > 0 for name, _, time, _ in step.components):
        notes.append("communication stays as measured, though its messages change size")
    return notes
