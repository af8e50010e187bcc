"""Predicted step time against each hyper-parameter around its present value: where the cliffs are.

Every point is one ``what_if``. A curve has few points, chosen where shapes have cliffs: values on 128
bytes, where only tiles and waves matter; values on 16 bytes, and values off that grid, which change the
kernel. Three lines of one kind each show what one line through all values would hide.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tracelens.config.changes import canonical
from tracelens.config.model_config import ModelConfig, changed
from tracelens.errors import UsageError
from tracelens.results import Curve, Explorer, Finding, Suggested, WhatIf, main_dtype, weakest
from tracelens.step.alignment import grid_elements
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if
from tracelens.step.whatif_notes import Told
from tracelens.step.words import search as words
from tracelens.step.work import Product

#: Steps of 128 bytes to each side of the present value.
_STEPS = 12
#: Of the present value: no curve reaches further, so that it stays a picture of its neighbourhood.
_REACH = 0.25
#: Values off the 128-byte grid, of each kind.
_BETWEEN = 8
#: Each further so many products curves have a share of the values: experts have products of their own.
_MANY = 60
#: Rows of an expert that take as long: those of one tile.
_TILE = 128
#: Values of a parameter that is counted, not measured in elements.
_COUNTS = 11
#: After so many values without a prediction and none with one, the rest is not asked.
_ENOUGH = 6
#: Fewer predicted values than this are no curve.
_LEAST = 3
#: In the order of the page.
_DRAWN = ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "sequence", "micro_batch", "tokens")
_COUNTED = frozenset({"heads", "kv_heads", "micro_batch"})
_TOKENS = frozenset({"sequence", "micro_batch", "tokens"})
_FULL_BYTES = 128
#: A curve shows no count of parameters, and says itself what becomes of idle time.
_TOLD: tuple[Told, ...] = ("parameters", "idle")


@dataclass(frozen=True, slots=True)
class _Grid:
    """What a parameter's values can be: multiples of ``unit``, on 16 bytes, on 128 bytes."""

    unit: int
    half: int
    full: int


def explore(step: StepModel, findings: Sequence[Finding] = ()) -> Explorer:
    """The curves of every hyper-parameter that the step's formulas know, or why there is none."""
    if step.step_ms is None:
        return Explorer(why=words.CURVE_NO_STEP_TIME)
    if not step.work.products and not step.work.attention:
        return Explorer(why=words.CURVE_NO_FORMULAS)
    names = [name for name in _DRAWN if _drawn(name, step.now)]
    if not names:
        return Explorer(why=words.CURVE_NO_PARAMETERS)
    step = replace(step, work=replace(step.work, products=_in_tiles(step.work.products)))
    curves = [_curve(step, name, _suggested(step.now, name, findings)) for name in names]
    return Explorer([_of_model(one, step.now) for one in curves], None)


def _in_tiles(products: Sequence[Product]) -> tuple[Product, ...]:
    """Those of experts whose rows fill as many tiles are one: thousands in a trace differ in rows alone."""
    if len(products) <= _MANY:
        return tuple(products)
    alike: dict[object, list[Product]] = defaultdict(list)
    for one in products:
        row, dims = one.row, (one.m, one.n, one.k)
        sizes = [dim if dim.load is None else math.ceil(dim.load[0] / _TILE) for dim in dims]
        same = (*sizes, one.batch, row.component, row.phase, row.role, row.dtype, row.layout)
        alike[same if any(dim.load for dim in dims) else id(one)].append(one)
    return tuple(map(_as_one, alike.values()))


def _as_one(alike: Sequence[Product]) -> Product:
    most = max(alike, key=lambda one: one.row.time_ms_per_step)
    names = ("calls", "calls_per_step", "time_ms", "time_ms_per_step")
    sums = {name: sum(getattr(one.row, name) for one in alike) for name in names}
    return replace(most, row=replace(most.row, **sums))


def _of_model(curve: Curve, now: ModelConfig) -> Curve:
    """A vocabulary that ranks split as the whole of it, not as a rank's part."""
    parts = now.vocab_parts
    if curve.parameter != "vocab" or parts == 1:
        return curve
    suggested = [replace(one, value=one.value * parts) for one in curve.suggested]
    values = [value * parts for value in curve.values]
    return replace(curve, now=curve.now * parts, values=values, suggested=suggested)


def _drawn(name: str, now: ModelConfig) -> bool:
    """Whether the parameter is known and no other one's shadow."""
    if now.get(name) is None:
        return False
    if name == "tokens":
        return not (now.micro_batch and now.sequence)
    if name == "head_dim":
        return not _tied(now)  # else it is the curve of heads
    if name == "kv_heads":
        return bool(now.heads)
    return True


def _tied(now: ModelConfig) -> bool:
    return bool(now.heads and now.head_dim) and (now.heads or 0) * (now.head_dim or 0) == now.hidden


def _suggested(now: ModelConfig, name: str, findings: Sequence[Finding]) -> list[Suggested]:
    """What findings propose for it. They speak of this rank's slice; a curve is of the whole model."""
    found: dict[int, Suggested] = {}
    ranks = now.tp
    for finding in findings:
        for key, pair in finding.change.items():
            try:
                known = canonical(key)
            except UsageError:
                continue
            if known != name or len(pair) != 2 or not all(isinstance(one, int) for one in pair):
                continue
            before, after = int(pair[0]), int(pair[1])
            whole = 1 if before == now.get(name) else ranks
            if before * whole == now.get(name) and after > 0:
                found.setdefault(after * whole, Suggested(after * whole, finding.rule))
    return list(found.values())


def _curve(step: StepModel, name: str, suggested: list[Suggested]) -> Curve:
    now = step.now.get(name) or 0
    if name in _TOKENS and step.saving_of == "gpu_work":
        return Curve(name, now, True, [], [], [], [], why=words.curve_waits(step.busy_frac))
    wanted = [now, *(one.value for one in suggested)]
    grid = _grid(step, name)
    values = _feasible(step.now, name, {*_values(step, name, grid), *wanted})
    answers = _answers(step, name, values, now)
    known = {value: one for value, one in answers.items() if one.then_ms.mid is not None}
    shown = sorted(answers) if len(known) >= _LEAST else []
    idle_ms = (step.idle_ms or 0.0) if step.saving_of == "gpu_work" else 0.0
    low, mid, high = (
        [_time(answers[value], end, idle_ms) for value in shown] for end in ("low", "mid", "high")
    )
    bases = {one.saving_ms.basis for value, one in known.items() if value != now}
    return Curve(
        parameter=name,
        now=now,
        per_token=name in _TOKENS,
        values=shown,
        low_ms=low,
        mid_ms=mid,
        high_ms=high,
        alignment_bytes=[_bytes(value, name, step) for value in shown] if _aligns(name) else [],
        suggested=[one for one in suggested if one.value in shown],
        follows=_follows(step.now, name),
        basis=weakest(bases) if bases else "model",
        notes=_notes(name, answers, known) if shown else [],
        why=None if shown else _why(answers, now),
        saving_of=step.saving_of,
    )


def _answers(step: StepModel, name: str, values: Sequence[int], now: int) -> dict[int, WhatIf]:
    """The changed step at each value, nearest to ``now`` first; stops where nothing can be predicted."""
    answers: dict[int, WhatIf] = {}
    unknown = 0
    for value in sorted(values, key=lambda one: abs(one - now)):
        try:
            answers[value] = what_if(step, {name: value}, told=_TOLD)
        except UsageError:
            continue
        unknown += answers[value].then_ms.mid is None
        if unknown >= _ENOUGH and len(answers) - unknown <= 1:  # the one is now itself
            break
    return answers


def _time(one: WhatIf, end: str, idle_ms: float) -> float | None:
    """Of the tokens of a step now, without ``idle_ms``."""
    value: float | None = getattr(one.then_ms, end)
    return None if value is None else max(0.0, value - idle_ms) / (1 + one.tokens_frac)


def _why(answers: dict[int, WhatIf], now: int) -> str:
    """Why there is no curve."""
    refused = next((one.refused for one in answers.values() if one.refused is not None), None)
    if refused is not None:
        return refused.text
    return words.CURVE_ALONE if now else words.CURVE_UNKNOWN


def _notes(name: str, answers: dict[int, WhatIf], known: dict[int, WhatIf]) -> list[str]:
    """What holds for most of the points, and what is missing."""
    said = Counter(note for one in known.values() for note in one.notes if one.change)
    notes = [note for note, count in said.items() if 2 * count > len(known)]
    lost = [one for value, one in answers.items() if value not in known]
    if lost:
        reasons = Counter(one.refused.cause for one in lost if one.refused is not None)
        notes.append(words.curve_gaps(len(lost), next((why for why, _ in reasons.most_common(1)), "")))
    if name in _TOKENS:
        notes.append(words.ROOM_UNPREDICTED)
    return notes


def _follows(now: ModelConfig, name: str) -> str:
    if name == "heads" and _tied(now):
        return "head_dim = hidden / heads"
    if name == "hidden" and _tied(now):
        return f"head_dim = hidden / {now.heads}"
    return ""


def _aligns(name: str) -> bool:
    """Whether the size is how far apart an operand's rows lie. Tokens and heads only count rows."""
    return name in ("hidden", "ffn", "vocab", "head_dim")


def _bytes(value: int, name: str, step: StepModel) -> int:
    """The largest power of two of bytes, at most 128, that rows of so many elements begin on."""
    elements = value // step.now.tp if name == "ffn" else value
    return math.gcd(max(1, round(elements * 16 / _sixteen(step))), _FULL_BYTES)


def _sixteen(step: StepModel) -> int:
    """Elements in 16 bytes of the type that most product time is in."""
    return grid_elements(main_dtype(product.row for product in step.work.products)) or 8


def _grid(step: StepModel, name: str) -> _Grid:
    now = step.now
    unit = 1
    if name == "hidden" and _tied(now):
        unit = now.heads or 1
    elif name == "ffn":
        unit = now.tp
    half = _sixteen(step)
    ranks = unit if name == "ffn" else 1
    return _Grid(unit, math.lcm(unit, half * ranks), math.lcm(unit, 8 * half * ranks))


def _values(step: StepModel, name: str, grid: _Grid) -> Iterable[int]:
    now, part = step.now, math.ceil(len(step.work.products) / _MANY) or 1
    value = now.get(name) or 1
    if name in _COUNTED:
        return _counts(now, name, value)
    if name in ("sequence", "tokens"):  # no alignment: a cliff is one row beyond a full tile
        tile = 64 if value < 8192 else 128
        near = _multiples(value, tile, _STEPS // 2 // part, reach=1.0)
        return {*near, *(one + 1 for one in near), value - 1, value + 1}
    full = _multiples(value, grid.full, _STEPS // part, reach=_REACH)
    low, high, between = min([*full, value]), max([*full, value]), _BETWEEN // part
    return {
        *full,
        *_spread(value, grid.half, (low, high, between), lambda one: one % grid.full != 0),
        *_spread(value, grid.unit, (low, high, between), lambda one: one % grid.half != 0),
    }


def _multiples(value: int, step: int, count: int, *, reach: float) -> list[int]:
    """Multiples of ``step`` around ``value``: ``count`` to each side, two at least, within ``reach``."""
    middle = round(value / step)
    span = max(2, min(count, int(value * reach / step)))
    return [at * step for at in range(max(1, middle - span), middle + span + 1)]


def _spread(value: int, step: int, over: tuple[int, int, int], wanted: Callable[[int], bool]) -> list[int]:
    """A few multiples of ``step`` that are ``wanted``: the next ones to ``value``, and some ``over`` a range
    (from, to, how many)."""
    found = set[int]()
    low, high, count = over
    for at in range(count):
        place = low + (high - low) * (at + 0.5) / count
        found.update(_next(round(place / step) * step, step, wanted, (0, 1, -1, 2, -2)))
    found.update(_next(value // step * step, step, wanted, (0, -1, -2)))
    found.update(_next(value // step * step, step, wanted, (1, 2)))
    return [one for one in found if low <= one <= high]


def _next(value: int, step: int, wanted: Callable[[int], bool], order: Sequence[int]) -> list[int]:
    tried = (value + shift * step for shift in order)
    return [one for one in tried if one > 0 and wanted(one)][:1]


def _counts(now: ModelConfig, name: str, value: int) -> Iterable[int]:
    if name == "micro_batch":
        if value <= _COUNTS // 2:
            return range(1, 2 * value + 2)
        return {round(value * (0.5 + at / (_COUNTS - 1))) for at in range(_COUNTS)} | {2 * value}
    most = (now.heads or 1) if name == "kv_heads" else 4 * value
    found = [one for one in range(1, most + 1) if _fits(now, name, one)]
    return sorted(found, key=lambda one: abs(math.log(one / value)))[:_COUNTS]


def _fits(now: ModelConfig, name: str, value: int) -> bool:
    try:
        then = changed(now, {name: value})
    except UsageError:
        return False
    return name != "heads" or (then.head_dim or 0) >= 16  # smaller heads are no model that anyone trains


def _feasible(now: ModelConfig, name: str, values: Iterable[int]) -> list[int]:
    return sorted(one for one in values if one > 0 and (one == now.get(name) or _fits(now, name, one)))
