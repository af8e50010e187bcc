"""What a search came to, in words and values: the same for a planned step and for an analysed one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tracelens.config.model_config import ModelConfig
from tracelens.results import FrontPoint, OtherHeads, PickReason, ShapePick
from tracelens.results.advice import Effort
from tracelens.step.search import WORTH_FRAC, Found, SearchStep
from tracelens.step.search_space import SEARCHED, TENSOR_DEGREES, SearchLimits, kept_degree
from tracelens.step.step import Change
from tracelens.step.words import search as words

#: Gains spelled out for a pick.
_REASONS = 4
#: Kernels that move less than this share of the saving are no reason for it.
_LEAST_FRAC = 0.02
_HEAD_DIMS = (40, 64, 80, 96, 128, 160, 256)

Diff = Callable[[ModelConfig], Sequence[str]]


def picks_of(step: SearchStep, found: Found, diff: Diff) -> tuple[list[ShapePick], ShapePick | None]:
    """What is recommended, and the best of what is not. ``diff`` gives the lines to paste."""
    picks = [_pick(step, change, diff) for change in found.picks]
    unsure = found.best_unsure
    if unsure is None:
        return picks, None
    over = changes(unsure.change.now, unsure.over)
    return picks, replace(_pick(step, unsure.change, diff), unsure_over=over)


def front_of(now: ModelConfig, found: Found) -> list[FrontPoint]:
    """The Pareto front; the present shape, where it is on it, changes nothing."""
    return [FrontPoint(changes(now, one.model), one.parameters_frac, one.time_frac) for one in found.front]


def changes(now: ModelConfig, then: ModelConfig) -> dict[str, list[int | None]]:
    """The sizes that differ: [now, then]."""
    return {name: [now.get(name), then.get(name)] for name in SEARCHED if now.get(name) != then.get(name)}


def none_faster(found: Found, limits: SearchLimits) -> str:
    """That nothing is recommended, as the end of a sentence."""
    return words.none_faster(found.tried, limits.parameters_frac, WORTH_FRAC)


def nothing_faster(
    now: ModelConfig,
    gpu: str,
    found: Found,
    limits: SearchLimits,
    *,
    off_grid: Sequence[str] = (),
    fits: bool = True,
) -> str:
    """The verdict on a shape of which none is faster: good, unless something else speaks against it.

    ``off_grid`` are components with GEMMs whose rows begin on less than 16 bytes.
    """
    flaws = [words.off_the_grid(off_grid)] if off_grid else []
    if now.heads and now.heads > 1 and not any(now.heads % degree == 0 for degree in TENSOR_DEGREES):
        flaws.insert(0, words.no_usual_degree(now.heads))
    none = none_faster(found, limits)
    return words.already_good(gpu, none) if fits and not flaws else words.none_sure(none, flaws)


def other_heads(step: SearchStep, now: ModelConfig, limits: SearchLimits) -> list[OtherHeads]:
    """Other head counts at this hidden size, for the reader to see where the present one stands."""
    hidden, heads, t = now.hidden or 0, now.heads or 0, now.tp
    if not hidden or now.latent or heads * (now.head_dim or 0) != hidden:
        return []
    kept = 1 if limits.any_heads else kept_degree(now)
    rows: list[OtherHeads] = []
    for dim in _HEAD_DIMS:
        other = hidden // dim
        if hidden % dim or other % t or other % kept or other == heads:
            continue
        kv_heads = other if now.kv_heads == now.heads else now.kv_heads
        if kv_heads and other % kv_heads:
            continue
        then = replace(now, heads=other, head_dim=dim, kv_heads=kv_heads)
        change = step.change(now, then)
        if change is not None:
            rows.append(OtherHeads(other, dim, change.saving_frac, _growth(now, then)))
    return rows


def losing(heads: int | None, then: int | None) -> list[str]:
    """What other heads lose: that they no longer divide over usual numbers of tensor-parallel ranks.

    >>> losing(16, 10), losing(16, 24)
    (['10 heads no longer divide over 4 or 8 tensor-parallel ranks'], [])
    """
    lost = [n for n in TENSOR_DEGREES if (heads or 1) % n == 0 and (then or n) % n]
    return [words.losing_degrees(then, lost)] if then and lost else []


def _pick(step: SearchStep, change: Change, diff: Diff) -> ShapePick:
    now, then = change.now, change.then
    found = changes(now, then)
    effort, why = _effort(frozenset(found), grows=(then.ffn or 0) > (now.ffn or 0))
    memory, needs = step.memory(now), step.memory(then)
    return ShapePick(
        title=_title(found),
        change=found,
        saving_frac=change.saving_frac,
        saving_ms=change.saving_ms,
        shape_gain_frac=change.shape_gain_frac,
        parameters=then.parameters,
        parameters_frac=_growth(now, then),
        flops_frac=change.flops_frac,
        memory_frac=needs / memory - 1 if needs and memory else None,
        effort=effort,
        effort_why="; ".join([why, *losing(now.heads, then.heads)]),
        reasons=_reasons(change),
        diff=list(diff(then)),
    )


def _growth(now: ModelConfig, then: ModelConfig) -> float:
    """Of the weights; nothing where they cannot be counted."""
    return (then.parameters or 0) / now.parameters - 1 if now.parameters else 0.0


def _title(found: Mapping[str, list[int | None]]) -> str:
    """Every size that changes; kv_heads are none of their own where they are as many as heads."""
    shown = {name: pair for name, pair in found.items() if name != "kv_heads" or pair != found.get("heads")}
    return ", ".join(f"{name} {pair[0]} → {pair[1]}" for name, pair in shown.items())


def _effort(names: frozenset[str], *, grows: bool) -> tuple[Effort, str]:
    if names == {"vocab"}:
        return "config", words.PADS_CHECKPOINT
    if names <= {"micro_batch"}:
        return "config", words.OTHER_BATCH
    if names <= {"micro_batch", "sequence", "vocab"}:
        return "config", words.OTHER_SEQUENCE
    return "retrain", words.WIDER_MLP if names <= {"ffn", "vocab"} and grows else words.OTHER_MODEL


def _reasons(change: Change) -> list[PickReason]:
    """The kernels that move the step most, gains and losses."""
    least = _LEAST_FRAC * abs(change.saving_ms.mid or 0.0)
    parts = sorted(change.parts, key=lambda part: -abs(part.saving_ms))[:_REASONS]
    parts = [part for part in parts if abs(part.saving_ms) >= least]
    return [
        PickReason(part.component, part.role, part.shape_now, part.shape_then, part.time_ms, part.then_ms,
                   part.saving_ms, part.why)
        for part in sorted(parts, key=lambda part: -part.saving_ms)
    ]  # fmt: skip
