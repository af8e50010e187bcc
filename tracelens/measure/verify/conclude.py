"""From measured times to what a suggestion saves, per step, beside what was predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tracelens.measure.cases import AttentionCase
from tracelens.measure.journal import Case
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.pairs import PairTimes
from tracelens.measure.verify.meter import CallTime
from tracelens.measure.verify.plan import CallPair, PlannedTrial, WholePair
from tracelens.numbers import mnk, ms
from tracelens.results import Estimate, MeasuredCall, MeasuredWhole, Verified
from tracelens.results.verified import UNKNOWN, RestsOn

#: Calls that could not be measured may be this share of the time that the change touches in the trace.
_GAP = 0.1
#: Calls that take this many times as long here as in the trace, or the reverse, are not the same calls.
_ALIKE = 1.25
_OUTSIDE = (
    "embedding, optimizer, gradient clipping, communication between GPUs and idle time: taken as unchanged"
)
_PLAIN = (
    "the layers are plain PyTorch with the model's sizes, not the model's own code: no dropout, no casts of"
    " autocast, no compiler"
)
_ALONE = "kernels beside products and fused attention (norms, activations, softmax) are not in this saving"

Pairs = Mapping[int, PairTimes | str]  # by index in Trial.wholes; -1: the small step


def conclude(
    trial: PlannedTrial,
    times: Mapping[Case, CallTime | str],
    pairs: Pairs,
    *,
    before_ms: float | None,
    noise_frac: float = 0.0,
    replaces: bool,
    stopped: str = "",
) -> Verified:
    """What was measured of one suggestion. ``before_ms`` is the present step, whose share a saving is.

    ``pairs`` lacks what was not reached, and ``stopped`` says why. ``noise_frac`` is by how much a layer
    differs from itself: no saving of layers is known better.
    """
    if trial.why:
        return not_measured(trial, trial.why)
    calls = [_call(one, times, trial.scale, stopped) for one in trial.calls]
    wholes = [_whole(one, pairs.get(at, stopped), trial.scale) for at, one in enumerate(trial.wholes)]
    products = _products_ms(trial, calls)
    layers = _layers_ms(wholes, noise_frac) if not trial.apart else UNKNOWN
    rests_on: RestsOn = "layers" if layers.mid is not None else "products"
    saving = layers if rests_on == "layers" else products
    notes = [*trial.notes, _PLAIN if rests_on == "layers" else _ALONE, _OUTSIDE]
    if trial.scale != 1.0:
        notes.append(f"layers after the change are counted per token: × {trial.scale:.4g}")
    if trial.apart and trial.wholes:
        notes.insert(0, f"the layers measured here do not stand for the trace's: {trial.apart}")
    elif trial.apart and not trial.asked.precision:
        notes.insert(0, f"no whole layer was measured: {trial.apart}")
    notes += _unlike_the_trace(trial, calls) if replaces else []
    if isinstance(trial.step, WholePair):
        wholes.append(_step(trial, pairs.get(-1, stopped), wholes))
    elif trial.step:
        notes.append(f"no small training step was measured: {trial.step}")
    if saving.mid is None:
        reasons = [one.why for one in wholes] + [one.why for one in calls]
        why = next((one for one in reasons if one), "") or trial.apart or "nothing could be measured"
        return replace(not_measured(trial, why), products_ms=products, calls=calls, wholes=wholes)
    replaces = replaces and not trial.partial
    frac, asked = saving.over(before_ms), trial.asked
    # in shares where the prediction is one of the time per token, of a step predicted too
    predicted, measured = (asked.predicted_frac, frac) if asked.per_token else (asked.predicted_ms, saving)
    return replace(
        not_measured(trial, ""),
        state="measured",
        rests_on=rests_on,
        saving_ms=saving,
        saving_frac=frac,
        ratio=measured.mid / predicted.mid
        if replaces and measured.mid is not None and predicted.mid
        else None,
        in_range=_inside(measured, predicted) if replaces else None,
        replaces=replaces,
        how=_how_layers(wholes, saving) if rests_on == "layers" else _how_calls(calls, saving),
        products_ms=products,
        calls=calls,
        wholes=wholes,
        not_covered=notes,
    )


def not_measured(trial: PlannedTrial, why: str) -> Verified:
    """Nothing was measured, and why."""
    asked = trial.asked
    return Verified(
        state="not_measured",
        why=why,
        rests_on="",
        saving_ms=UNKNOWN,
        saving_frac=UNKNOWN,
        predicted_ms=asked.predicted_ms,
        predicted_frac=asked.predicted_frac,
        ratio=None,
        in_range=None,
        replaces=False,
        how="",
    )


def _inside(measured: Estimate, predicted: Estimate) -> bool | None:
    if measured.mid is None or predicted.low is None or predicted.high is None:
        return None
    return predicted.low <= measured.mid <= predicted.high


# --- products and attention ---------------------------------------------------------------------------


def _call(one: CallPair, times: Mapping[Case, CallTime | str], scale: float, stopped: str) -> MeasuredCall:
    sides = [one.why if case is None else times.get(case, stopped) for case in (one.now, one.then)]
    why = next((side for side in sides if isinstance(side, str)), "")
    now, then = (side if isinstance(side, CallTime) else None for side in sides)
    saving = UNKNOWN
    if now is not None and then is not None:
        before, after = one.calls_now * now.time_us / 1e3, one.calls_then * scale * then.time_us / 1e3
        # the repeats of one side say nothing of those of the other
        error = math.hypot(before * now.spread_frac, after * then.spread_frac) / 2
        saving = _around(before - after, error)
    return MeasuredCall(
        component=one.component,
        role=one.role,
        gemm=one.gemm,
        shape_now=shape_text(one.now),
        shape_then=shape_text(one.then),
        calls_now=one.calls_now,
        calls_then=one.calls_then,
        trace_us=one.trace_us,
        now_us=_spread(now),
        then_us=_spread(then),
        saving_ms=saving,
        kernels_now=list(now.kernels) if now is not None else [],
        kernels_then=list(then.kernels) if then is not None else [],
        why=why,
    )


def shape_text(case: Case | None) -> str:
    """``8192 × 50257 × 1280``, as in the table of products."""
    if case is None:
        return ""
    if isinstance(case, AttentionCase):
        kv = f" kv={case.key_heads}" if case.key_heads != case.heads else ""
        return f"b={case.batch} h={case.heads}{kv} s={case.seq_q} d={case.head_dim}"
    return mnk(case.m, case.n, case.k, case.batch) or ""


def _spread(time: CallTime | None) -> Estimate:
    return UNKNOWN if time is None else _around(time.time_us, time.time_us * time.spread_frac / 2)


def _around(middle: float, error: float) -> Estimate:
    return Estimate(middle - error, middle, middle + error, "measured")


def _products_ms(trial: PlannedTrial, calls: Sequence[MeasuredCall]) -> Estimate:
    """Their sum per step; nothing where too much of what the change touches has no time."""
    known = [one.saving_ms for one in calls if one.saving_ms.mid is not None]
    touched = sum(one.time_ms for one in trial.calls)
    lacking = sum(
        asked.time_ms for asked, one in zip(trial.calls, calls, strict=True) if one.saving_ms.mid is None
    )
    if not known or lacking > _GAP * touched or (not touched and len(known) < len(calls)):
        return UNKNOWN
    return _sum(known)


def _unlike_the_trace(trial: PlannedTrial, calls: Sequence[MeasuredCall]) -> list[str]:
    """Whether the calls as they are take as long here as in the trace, told where they do not."""
    known = [
        (asked.time_ms, one.calls_now * one.now_us.mid / 1e3)
        for asked, one in zip(trial.calls, calls, strict=True)
        if one.now_us.mid is not None and asked.time_ms > 0
    ]
    traced, here = (sum(side) for side in zip(*known, strict=True)) if known else (0.0, 0.0)
    if not known or 1 / _ALIKE <= here / traced <= _ALIKE:
        return []
    return [
        (
            f"the calls that change take {ms(here)} per step here as they are, and {ms(traced)} in the trace:"
            " it ran other kernels, other clocks, or not alone"
        )
    ]


def _sum(parts: Sequence[Estimate]) -> Estimate:
    """Independent parts: what the repeats leave open adds in squares."""
    mid = sum(one.mid or 0.0 for one in parts)
    down = math.hypot(*((one.mid or 0.0) - (one.low or 0.0) for one in parts))
    up = math.hypot(*((one.high or 0.0) - (one.mid or 0.0) for one in parts))
    return Estimate(mid - down, mid, mid + up, "measured")


# --- layers, logits and steps -------------------------------------------------------------------------


def _whole(one: WholePair, found: PairTimes | str, scale: float) -> MeasuredWhole:
    blank = MeasuredWhole(
        one.what, whole_text(one.now), whole_text(one.then), UNKNOWN, UNKNOWN, UNKNOWN, one.calls_now,
        one.calls_then, one.trace_ms,
    )  # fmt: skip
    if isinstance(found, str):
        return replace(blank, why=found or "it was not measured")
    after = [time * scale for time in found.after_ms]
    saved = [first - second for first, second in zip(found.before_ms, after, strict=True)]
    note = "" if found.queued else "the step waits for the GPU within: the host's gaps are in its times"
    return replace(
        blank, now_ms=_turns(found.before_ms), then_ms=_turns(after), saving_ms=_turns(saved), note=note
    )


def _turns(times: Sequence[float]) -> Estimate:
    return Estimate(min(times), statistics.median(times), max(times), "measured")


def whole_text(shape: LayerShape | StepShape) -> str:
    """What was built, in the words of the model."""
    layer = shape.layer if isinstance(shape, StepShape) else shape
    if isinstance(shape, LayerShape) and shape.vocab:
        return f"v={layer.vocab} h={layer.hidden} b={layer.micro_batch} s={layer.sequence}"
    kv = f" kv={layer.kv_heads}" if layer.kv_heads != layer.heads else ""
    sizes = f"h={layer.hidden} a={layer.heads}{kv} d={layer.head_dim} f={layer.ffn}"
    text = f"{sizes} b={layer.micro_batch} s={layer.sequence}"
    return f"{shape.layers} layers of {text}, v={shape.vocabulary}" if isinstance(shape, StepShape) else text


def _layers_ms(wholes: Sequence[MeasuredWhole], noise_frac: float) -> Estimate:
    """Layers times layers plus logits, per step; nothing where one of them has no time."""
    if not wholes or any(one.saving_ms.mid is None for one in wholes):
        return UNKNOWN
    noise = [_around(0.0, noise_frac * (one.calls_now or 0.0) * (one.now_ms.mid or 0.0)) for one in wholes]
    return _sum([*(_per_step(one) for one in wholes), *noise])


def _per_step(one: MeasuredWhole) -> Estimate:
    now, then = one.calls_now or 0.0, one.calls_then or 0.0
    if now == then:
        return one.saving_ms * now
    mid = now * (one.now_ms.mid or 0.0) - then * (one.then_ms.mid or 0.0)
    # layers that are there no longer: the turns of each side on their own
    error = math.hypot(now * _half(one.now_ms), then * _half(one.then_ms))
    return _around(mid, error)


def _half(one: Estimate) -> float:
    return ((one.high or 0.0) - (one.low or 0.0)) / 2


def _step(trial: PlannedTrial, found: PairTimes | str, wholes: Sequence[MeasuredWhole]) -> MeasuredWhole:
    """The small step, beside what its layers and logits alone would have it save."""
    assert isinstance(trial.step, WholePair)
    one = _whole(trial.step, found, trial.scale)
    parts, depth = [], trial.step.now
    for whole in wholes:
        if whole.saving_ms.mid is None or not isinstance(depth, StepShape):
            return one
        parts.append((depth.layers if whole.what == "layer" else 1) * whole.saving_ms.mid)
    then = trial.step.then
    same_depth = isinstance(depth, StepShape) and isinstance(then, StepShape) and then.layers == depth.layers
    if not parts or one.saving_ms.mid is None or not same_depth:
        return one
    said = f"its layers and logits, measured alone, save {_signed(sum(parts))} of it"
    return replace(one, note="; ".join(text for text in (one.note, said) if text))


def _how_layers(wholes: Sequence[MeasuredWhole], saving: Estimate) -> str:
    parts = []
    for one in wholes:
        if one.calls_now is None:
            continue
        now, then = ms(one.now_ms.mid), ms(one.then_ms.mid)
        if one.calls_now == one.calls_then:
            parts.append(f"{one.calls_now:g} × ({one.what}: {now} − {then})")
        else:
            parts.append(f"{one.calls_now:g} × {now} − {one.calls_then:g} × {then} ({one.what})")
    return f"{' + '.join(parts)} = {_signed(saving.mid)} per step, forward and backward"


def _how_calls(calls: Sequence[MeasuredCall], saving: Estimate) -> str:
    known = sum(one.saving_ms.mid is not None for one in calls)
    what = f"{known} products and attention calls, each as often as in a step × (before − after)"
    return f"{what} = {_signed(saving.mid)} per step"


def _signed(value: float | None) -> str:
    """A saving; slower is a minus.

    >>> _signed(-1.5)
    '−1.50 ms'
    """
    if value is None:
        return "unknown"
    return ms(value) if value >= 0 else f"−{ms(-value)}"
