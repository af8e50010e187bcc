"""What one predicted step saves over another.

Both miss the truth in much the same way, so the range of a difference comes from how well the *ratio* of two
shapes is predicted, not from the range of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracelens.config.model_config import ModelConfig
from tracelens.gemm.gain import ratio_error
from tracelens.results import Basis, Estimate, Span, weakest
from tracelens.step.predicted_attention import ATTENTION_ERROR
from tracelens.step.reasons import PlannedPart, why
from tracelens.step.step import Change, PartChange

#: Of a calibrated sum, at most this is not calibrated: kernels that only move bytes never are.
_OTHER_FRAC = 0.1


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A micro-batch's forward and backward."""

    model: ModelConfig
    parts: tuple[PlannedPart, ...]

    @property
    def time_ms(self) -> Span:
        """Their sum. Errors of predictions by one model go together, so ranges add."""
        return total(part.time_ms for part in self.parts)

    @property
    def flops(self) -> float:
        """Operations of products and attention."""
        return sum(part.flops for part in self.parts)


def total(times: Iterable[Span]) -> Span:
    """The sum of estimates whose errors go together; calibrated where nearly all of the time is."""
    parts = list(times)
    low, mid, high = (sum(getattr(one, end) for one in parts) for end in ("low", "mid", "high"))
    return Span(low, mid, high, _basis([(one.mid, one.basis) for one in parts]))


def _basis(weighted: Sequence[tuple[float, Basis]]) -> Basis:
    """Calibrated where measurements of this GPU predict all but a tenth of what is weighed.

    Heuristic where guesses are more than a tenth of it.
    """
    whole = sum(weight for weight, _ in weighted)
    other = sum(weight for weight, basis in weighted if basis != "calibrated")
    if sum(weight for weight, basis in weighted if basis == "heuristic") > _OTHER_FRAC * whole:
        return "heuristic"
    return "calibrated" if whole > 0 and other <= _OTHER_FRAC * whole else "model"


@dataclass(slots=True)
class _Sums:
    """Savings of parts, and errors of each kind, which add; kinds are independent and add in squares."""

    ms: float = 0.0
    kinds: dict[str, float] = field(default_factory=dict)

    def add(self, ms: float, errors: Mapping[str, float]) -> None:
        self.ms += ms
        for kind, error in errors.items():
            self.kinds[kind] = self.kinds.get(kind, 0.0) + error

    @property
    def error(self) -> float:
        return math.hypot(*self.kinds.values())


def compare(now: PlannedStep, then: PlannedStep) -> Change:
    """What ``then`` saves over ``now``, with the range of that.

    The kinds of errors are products, their alignment, attention and bytes. Whether the step is compiled is
    not known: the low end is what torch.compile leaves to save, which pads misaligned products by itself.
    """
    tokens_now, tokens_then = now.model.token_count or 1, then.model.token_count or 1
    scale = tokens_now / tokens_then
    whole = now.time_ms.mid
    down, up, compiled = _Sums(), _Sums(), _Sums()
    changes: list[PartChange] = []
    weighted: list[tuple[float, Basis]] = []
    for old, new in zip(now.parts, then.parts, strict=True):  # both list them in one order
        before, after = old.time_ms.mid, new.time_ms.mid * scale
        if old.sizes == new.sizes and old.calls == new.calls and scale == 1.0:
            continue
        saving = before - after
        weighted.append((abs(saving), weakest((old.time_ms.basis, new.time_ms.basis))))
        errors = _errors(old, new, before, after)
        down.add(saving, {kind: less for kind, (less, _) in errors.items()})
        up.add(saving, {kind: more for kind, (_, more) in errors.items()})
        if old.pad_ms and not new.pad_ms:  # it runs padded already: only the copies are saved, or fused ones
            compiled.add(min(saving, old.pad_ms), {"bytes": 0.5 * min(saving, old.pad_ms)})
        else:
            compiled.add(saving, {kind: less for kind, (less, _) in errors.items()})
        changes.append(
            PartChange(old.component, old.role, old.kind, old.shape, new.shape, before, after, saving,
                       why(old, new, before, after))
        )  # fmt: skip
    # What an alignment leaves open moves the present step too, and the share with it.
    mid, high_ms = down.ms, up.ms + up.error
    ends = [
        (down.ms - down.error, whole - down.kinds.get("alignment", 0.0)),
        (compiled.ms - compiled.error, whole - (down.ms - compiled.ms)),
    ]
    low = min(low_ms / max(of_ms, 1e-12) for low_ms, of_ms in ends)
    saving_ms = Estimate(min(low_ms for low_ms, _ in ends), mid, high_ms, _basis(weighted))
    high = high_ms / (whole + up.kinds.get("alignment", 0.0))
    saving_frac = Estimate(min(low, mid / whole), mid / whole, high, saving_ms.basis)
    flops = then.flops * scale / now.flops - 1.0 if now.flops else 0.0
    changes.sort(key=lambda one: -one.saving_ms)
    return Change(now.model, then.model, saving_frac, saving_ms, flops, tuple(changes))


def _errors(
    old: PlannedPart, new: PlannedPart, before: float, after: float
) -> dict[str, tuple[float, float]]:
    """By kind of error, how much smaller and larger the saving can be, in ms."""
    if old.kind == "bytes":
        # The fraction that is bound by its launch does not scale.
        spread = abs(before - after)
        return {"bytes": (spread, 0.5 * spread)}
    if old.sizes == new.sizes:  # the same call, more or less often
        return {}
    if old.kind == "attention":
        error = max(ATTENTION_ERROR, old.open, new.open)
        return {"attention": (after * math.expm1(error), -after * math.expm1(-error))}
    far = max(abs(math.log(b / a)) for a, b in zip(old.sizes, new.sizes, strict=True))
    error = ratio_error(far)
    found = {"product": (after * math.expm1(error), -after * math.expm1(-error))}
    if old.kind == "experts":
        found = {"experts": found["product"]}
    if old.alignment != new.alignment:
        less = -before * math.expm1(-old.ladder[0]) + after * math.expm1(new.ladder[1])
        more = before * math.expm1(old.ladder[1]) - after * math.expm1(-new.ladder[0])
        found["alignment"] = (less, more)
    return found
