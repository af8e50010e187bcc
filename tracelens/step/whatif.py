"""The step after a change of config-parameters: every kernel's measured time moved as its prediction moves.

Products and fused attention: new time = measured time x predicted(new shape) / predicted(old shape).
Where the change brings a product onto the 16-byte grid, the old shape's prediction would rest on what
misalignment costs at large; the measured time already holds that cost. There new time = predicted(new
shape) x what this trace's own aligned products took over their predictions.
Kernels that only move bytes scale with the bytes. Everything else stays as measured.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tracelens.config.changes import of_model, parse_changes
from tracelens.config.model_config import ModelConfig, changed
from tracelens.errors import UsageError
from tracelens.gemm.predict.rates import no_units, peak_of
from tracelens.hardware import Gpu
from tracelens.results import Basis, Estimate, Refusal, Rest, RowChange, Span, WhatIf, weakest
from tracelens.step.affected import (
    OF_VOCAB,
    Affected,
    AffectedPart,
    affected_by,
    changed_names,
    grown_calls,
    vocab_untold,
)
from tracelens.step.casts import casts_of
from tracelens.step.exchange import Exchange, exchange_of
from tracelens.step.pads import pads_of
from tracelens.step.power import clock_ms
from tracelens.step.traced_step import StepModel
from tracelens.step.traffic import rest_of
from tracelens.step.uneven import rest_of_load
from tracelens.step.whatif_notes import Told, loads_of, notes_of
from tracelens.step.words import simulation as words
from tracelens.step.words.ranks import STAGES_WAIT
from tracelens.step.work import Work
from tracelens.sums import summed

#: With more of the affected time without a formula than this, no saving is given.
_GAP = 0.1


def what_if(step: StepModel, changes: Mapping[str, int | str], *, told: Collection[Told] = ()) -> WhatIf:
    """The step with ``changes``, all of them at once. UsageError where a change makes no sense.

    A change of the ranks that share the model is judged at the same GPUs and tokens per step. No note says
    what the caller has ``told`` already.
    """
    now, then = step.now, changed(step.now, changes)
    if now.dtype != then.dtype and (why := _not_simulated(step.gpu, then.dtype or "")):
        raise UsageError(why)
    affected = affected_by(step, then)
    exchange = exchange_of(step.communication, now, then)
    moved = [part for part in step.components if part[0] not in OF_VOCAB or not vocab_untold(now, then)]
    rest = tuple(
        sorted(
            [
                *rest_of(moved, now, then),
                *exchange.rest,
                *rest_of_load(step.communication, step.work, now, then),
                *casts_of(step.work.products, now, then, gpu=step.gpu),
                *pads_of(step.work.products, now, then, gpu=step.gpu, compiled=step.anchors.compiled),
            ],
            key=lambda one: -one.time_ms,
        )
    )
    refused = _refused(step, then, affected, exchange)
    growth = _flops_growth(step.work, affected, then=then, now=now)
    grown = 1.0 + (growth or 0.0) if now.dtype == then.dtype else None
    saving = Estimate.unknown() if refused else _saving(step, affected, rest, grown=grown)
    tokens, tokens_then = now.token_count, then.token_count
    # A rank's part of the same vocabulary follows from the ranks.
    names = [name for name in changed_names(now, then) if name != "vocab" or name in changes]
    return WhatIf(
        change={name: [now.value(name), then.value(name)] for name in names},
        saving_ms=saving,
        saving_frac=saving.over(step.step_ms),
        step_ms=step.step_ms,
        then_ms=Estimate.unknown() if step.step_ms is None else step.step_ms - saving,
        parameters=[now.parameters, then.parameters],
        flops_frac=growth,
        tokens_frac=tokens_then / tokens - 1.0 if tokens and tokens_then else 0.0,
        rows=_rows(affected.parts),
        rest=list(rest),
        unpredicted_ms=affected.gap_ms,
        saving_of=step.saving_of,
        refused=refused,
        notes=[
            *([words.no_saving(refused.text)] if refused else []),
            *exchange.notes,
            *_gap_notes(step, affected, known=refused is None, other_tokens=tokens != tokens_then, told=told),
            *notes_of(
                now,
                then,
                communicates=step.communicates and not exchange.rest,
                work_ms=step.work_ms(then),
                loads=loads_of(step.work.products),
                told=told,
            ),
        ],
    )


def _not_simulated(gpu: Gpu, dtype: str) -> str | None:
    """Why nothing is known of a type on a GPU: it lacks the type, or its rate is in no table."""
    if (why := no_units(gpu, dtype)) is not None or peak_of(gpu, dtype):
        return why
    return f"{gpu.title} has no known rate for {dtype}: it cannot be simulated"


def scenario(step: StepModel, text: str) -> WhatIf:
    """The step with changes as users write them ("vocab=50304,heads=20"), of the whole model.

    Raises UsageError as ``parse_changes`` and ``what_if`` do.
    """
    found = what_if(step, parse_changes([text], now=step.now))
    return replace(found, change=of_model(found.change, step.now))


def _refused(step: StepModel, then: ModelConfig, affected: Affected, exchange: Exchange) -> Refusal | None:
    """Why there is no saving, or None."""
    now = step.now
    if now.pipeline_parallel != then.pipeline_parallel:
        return Refusal("stages_wait", STAGES_WAIT, STAGES_WAIT)
    if exchange.unknown is not None:
        return Refusal("exchange", exchange.unknown, exchange.unknown)
    if affected.gap_ms > _GAP * affected.time_ms:
        cause = _reasons(affected)
        text = words.too_much_unpredicted(affected.gap_ms, affected.time_ms, cause)
        return Refusal("not_predicted", text, cause)
    return None


def _reasons(affected: Affected) -> str:
    times = summed((why, time) for time, why in affected.lost)
    most = sorted(times, key=lambda why: -times[why])
    return words.reasons(most[:2], len(most) - 2)


def _rows(parts: Sequence[AffectedPart]) -> list[RowChange]:
    merged: dict[str, RowChange] = {}
    for part in parts:
        row, one = part.row, part.scaled
        change = RowChange(
            row.id, row.component, row.role or (None if row.phase == "forward" else row.phase),
            one.shape_now or (row.shape_note or ""),
            one.shape_then or (row.shape_note or ""), part.time_ms, part.then_ms,
            words.as_often(one.how, part.calls),
        )  # fmt: skip
        known = merged.get(row.id)
        merged[row.id] = change if known is None else _joined(known, change)
    return sorted(merged.values(), key=lambda one: -one.time_ms)


def _joined(a: RowChange, b: RowChange) -> RowChange:
    """Two shares of one row's calls."""
    then = a.shape_then if a.shape_then == b.shape_then else f"{a.shape_then} and {b.shape_then}"
    how = a.how if a.how == b.how else f"{a.how}; {b.how}"
    time_ms, then_ms = a.time_ms + b.time_ms, a.then_ms.joined(b.then_ms)
    return RowChange(a.gemm, a.component, a.role, a.shape_now, then, time_ms, then_ms, how)


def _saving(
    step: StepModel, affected: Affected, rest: Sequence[Rest], *, grown: float | None = None
) -> Estimate:
    """Savings of rows and components together, per step.

    ``grown``: times the operations; None for another type, whose power is not known.

    Errors of one kind (ratios of products, anchored products, attention, bytes) share their cause and add;
    those of different kinds are independent, so they add in squares. Affected rows without a prediction
    stay as measured; the range lets them move as much as the others do. It reaches to what the clock loses
    (or gains) where less (or more) of the step is slow kernels. Where the step waits for the CPU, it reaches
    to no change at all: a saving can end as idle time, and idle time can take up what is added.
    """
    kinds: dict[str, list[tuple[float, Span]]] = {}
    for part in affected.parts:
        kinds.setdefault(part.scaled.kind, []).append((part.time_ms, part.then_ms))
    kinds["bytes"] = [(one.time_ms, one.then_ms) for one in rest]
    mid = sum(now - then.mid for pairs in kinds.values() for now, then in pairs)
    up = [sum(then.mid - then.low for _, then in pairs) for pairs in kinds.values()]
    down = [sum(then.high - then.mid for _, then in pairs) for pairs in kinds.values()]
    mid = mid if abs(mid) > 1e-9 else 0.0
    predicted_ms = affected.time_ms - affected.gap_ms
    open_ms = affected.gap_ms * abs(mid) / predicted_ms if predicted_ms > 0 else 0.0
    by_clock_ms = 0.0 if grown is None else clock_ms(step, affected, mid, grown)
    low = mid - math.hypot(*down) - open_ms - max(by_clock_ms, 0.0)
    high = mid + math.hypot(*up) + open_ms - min(by_clock_ms, 0.0)
    if step.saving_of == "gpu_work":
        idle_ms = math.inf if step.idle_ms is None else step.idle_ms
        low, high = min(low, 0.0), max(high, min(0.0, mid + idle_ms))
    if step.step_ms is not None:  # kernels on parallel streams can add to more than the step
        low, mid, high = (min(one, step.step_ms) for one in (low, mid, high))
    return Estimate(low, mid, high, _saving_basis(affected.parts, rest))


def _saving_basis(parts: Sequence[AffectedPart], rest: Sequence[Rest]) -> Basis:
    """Calibrated where measurements of this GPU predict the products and little else moves the result."""
    by_products = sum(abs(part.time_ms - part.then_ms.mid) for part in parts)
    by_bytes = sum(abs(one.time_ms - one.then_ms.mid) for one in rest)
    if not parts or by_bytes > _GAP * by_products:
        return "model"
    return weakest(part.scaled.basis for part in parts)


def _gap_notes(
    step: StepModel, affected: Affected, *, known: bool, other_tokens: bool, told: Collection[Told]
) -> list[str]:
    notes = []
    if affected.lost and known:
        notes.append(words.some_unpredicted(affected.gap_ms, _reasons(affected)))
    if step.saving_of == "gpu_work" and step.busy_frac is not None:
        if "waits" not in told:
            notes.append(words.gpu_work_note(step.busy_frac))
        if other_tokens and "idle" not in told:
            notes.append(words.IDLE_STAYS)
    return notes


def _flops_growth(work: Work, affected: Affected, *, now: ModelConfig, then: ModelConfig) -> float | None:
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
        after += share * math.prod(new) * grown_calls(product.row, now, then, product.each_expert)
    for call in work.attention:
        if call.row.flops is None or not (now.heads and now.head_dim and then.heads and then.head_dim):
            return None
        share = call.row.flops * call.row.calls_per_step
        grown = then.heads * then.head_dim / (now.heads * now.head_dim)
        grown *= now.tp / then.tp  # a rank's heads
        grown *= (then.token_count or 1) / (now.token_count or 1)
        grown *= then.sequence / now.sequence if now.sequence and then.sequence else 1.0
        before += share
        after += share * grown * grown_calls(call.row, now, then)
    for row, _ in work.fixed:
        if row.flops is not None:
            before += row.flops * row.calls_per_step
            after += row.flops * row.calls_per_step
    return after / before - 1.0 if before else None
