"""From measured times to what a suggestion saves, per step, beside what was predicted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tracelens.measure.cases import AttentionCase
from tracelens.measure.journal import Case
from tracelens.measure.layer_shapes import LayerShape, StepShape
from tracelens.measure.pairs import PairTimes
from tracelens.measure.verify.meter import CallTime
from tracelens.measure.verify.plan import CallPair, PlannedTrial, WholePair
from tracelens.numbers import mnk
from tracelens.results import Estimate, MeasuredCall, MeasuredWhole, Verified
from tracelens.results.estimates import total
from tracelens.results.verified import UNKNOWN, Reason, RestsOn, Why

#: Calls that could not be measured may be this share of the time that the change touches in the trace.
_GAP = 0.1
#: Calls that take this many times as long here as in the trace, or the reverse, are not the same calls.
_ALIKE = 1.25

Pairs = Mapping[int, PairTimes | str]  # by index in Trial.wholes; -1: the small step


def conclude(
    trial: PlannedTrial,
    times: Mapping[Case, CallTime | Why],
    pairs: Pairs,
    *,
    before_ms: float | None,
    noise_frac: float | None = None,
    replaces: bool,
    stopped: str = "",
) -> Verified:
    """What was measured of one suggestion. ``before_ms`` is the present step, whose share a saving is.

    ``pairs`` lacks what was not reached, and ``stopped`` says why. ``noise_frac`` is by how much a layer
    differs from itself: no saving of layers is known better, and none has a range where that is not known.
    """
    if trial.why:
        return not_measured(trial, trial.why)
    calls = [_call(one, times, trial.scale, stopped) for one in trial.calls]
    wholes = [_whole(one, pairs.get(at, stopped), trial.scale) for at, one in enumerate(trial.wholes)]
    products = _products_ms(trial, calls)
    layers = _layers_ms(wholes, noise_frac) if not trial.apart else UNKNOWN
    rests_on: RestsOn = "layers" if layers.mid is not None else "products"
    saving = layers if rests_on == "layers" else products
    unlike = _unlike_the_trace(trial, calls) if replaces else []
    if isinstance(trial.step, WholePair):
        wholes.append(_step(trial, pairs.get(-1, stopped), wholes))
    if saving.mid is None:
        reasons = [one.why for one in wholes] + [one.why for one in calls]
        why = next((one for one in reasons if one), "") or trial.apart or Reason("nothing_measured")
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
        products_ms=products,
        calls=calls,
        wholes=wholes,
        not_covered=list(_not_covered(trial, rests_on, unlike)),
    )


def _not_covered(trial: PlannedTrial, rests_on: RestsOn, unlike: Sequence[Reason]) -> Iterator[Reason]:
    """What the saving lacks or takes for granted."""
    if trial.apart and trial.wholes:
        yield Reason("layers_apart", cause=trial.apart)
    elif trial.apart and not trial.asked.precision:
        yield Reason("no_whole_layer", cause=trial.apart)
    yield from trial.notes
    yield Reason("plain_layers" if rests_on == "layers" else "gemms_alone")
    yield Reason("outside")
    if trial.scale != 1.0:
        yield Reason("per_token", {"factor": trial.scale})
    yield from unlike
    if trial.step and not isinstance(trial.step, WholePair):
        yield Reason("no_step", cause=trial.step)


def not_measured(trial: PlannedTrial, why: Why) -> Verified:
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
    )


def _inside(measured: Estimate, predicted: Estimate) -> bool | None:
    if measured.mid is None or predicted.low is None or predicted.high is None:
        return None
    return predicted.low <= measured.mid <= predicted.high


# --- products and attention ---------------------------------------------------------------------------


def _call(one: CallPair, times: Mapping[Case, CallTime | Why], scale: float, stopped: str) -> MeasuredCall:
    sides = [one.why if case is None else times.get(case, stopped) for case in (one.now, one.then)]
    why = next((side for side in sides if not isinstance(side, CallTime)), "")
    now, then = (side if isinstance(side, CallTime) else None for side in sides)
    saving = UNKNOWN
    if now is not None and then is not None:
        before, after = one.calls_now * now.time_us / 1e3, one.calls_then * scale * then.time_us / 1e3
        # the repeats of one side say nothing of those of the other
        sides_ms = [(before, now.spread_frac), (after, then.spread_frac)]
        known = [time * spread for time, spread in sides_ms if spread is not None]
        saving = _around(before - after, math.hypot(*known) / 2 if len(known) == 2 else None)
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
    if time is None:
        return UNKNOWN
    return _around(time.time_us, None if time.spread_frac is None else time.time_us * time.spread_frac / 2)


def _around(middle: float, error: float | None) -> Estimate:
    if error is None:
        return Estimate(None, middle, None, "measured")
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


def _unlike_the_trace(trial: PlannedTrial, calls: Sequence[MeasuredCall]) -> list[Reason]:
    """Whether the calls as they are take as long here as in the trace, told where they do not."""
    known = [
        (asked.time_ms, one.calls_now * one.now_us.mid / 1e3)
        for asked, one in zip(trial.calls, calls, strict=True)
        if one.now_us.mid is not None and asked.time_ms > 0
    ]
    traced, here = (sum(side) for side in zip(*known, strict=True)) if known else (0.0, 0.0)
    if not known or 1 / _ALIKE <= here / traced <= _ALIKE:
        return []
    return [Reason("unlike_trace", {"here_ms": here, "trace_ms": traced})]


def _sum(parts: Sequence[Estimate]) -> Estimate:
    """Independent parts: what the repeats leave open adds in squares. An end unknown of one is so of all."""
    whole = total(parts)
    if whole.mid is None:
        return UNKNOWN

    def error(end: str) -> float:
        return math.hypot(*(getattr(one, end) - getattr(one, "mid") for one in parts))  # noqa: B009

    low = whole.mid - error("low") if whole.low is not None else None
    return Estimate(low, whole.mid, whole.mid + error("high") if whole.high is not None else None, "measured")


# --- layers, logits and steps -------------------------------------------------------------------------


def _whole(one: WholePair, found: PairTimes | str, scale: float) -> MeasuredWhole:
    blank = MeasuredWhole(
        one.what, whole_text(one.now), whole_text(one.then), UNKNOWN, UNKNOWN, UNKNOWN, one.calls_now,
        one.calls_then, one.trace_ms,
    )  # fmt: skip
    if isinstance(found, str):
        return replace(blank, why=found or Reason("left_out"))
    after = [time * scale for time in found.after_ms]
    saved = [first - second for first, second in zip(found.before_ms, after, strict=True)]
    note: Why = "" if found.queued else Reason("cpu_gaps")
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


def _layers_ms(wholes: Sequence[MeasuredWhole], noise_frac: float | None) -> Estimate:
    """Layers times layers plus logits, per step; nothing where one of them has no time."""
    if not wholes:
        return UNKNOWN
    noise = Estimate(None, 0.0, None, "measured")
    if noise_frac is not None:
        present = [one.now_ms.mid * one.calls_now for one in wholes if one.now_ms.mid and one.calls_now]
        noise = _sum([_around(0.0, noise_frac * one) for one in present])
    return _sum([*(_per_step(one) for one in wholes), noise])


def _per_step(one: MeasuredWhole) -> Estimate:
    now, then = one.calls_now, one.calls_then
    if now is None or then is None:
        return UNKNOWN
    if now == then:
        return one.saving_ms * now
    # layers that are there no longer: the turns of each side on their own
    return _sum([_even(one.now_ms * now), _even(one.then_ms * -then)])


def _even(one: Estimate) -> Estimate:
    """Half of its range to either side of its middle."""
    if one.low is None or one.mid is None or one.high is None:
        return one
    return _around(one.mid, (one.high - one.low) / 2)


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
    return replace(one, note=Reason("parts_alone", {"saving_ms": sum(parts)}, cause=one.note))
