"""An analysed step as the search asks it: measured times that move as their predictions move.

Every figure is that of ``whatif``: here its parts are kept, so that a combination of sizes is a sum of
parts known already. What is picked is simulated by ``what_if`` itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tracelens.config.model_config import ModelConfig
from tracelens.errors import InputError, UsageError
from tracelens.results import Estimate, GemmRow, Rest, WhatIf
from tracelens.step.activations import memory_of_trace
from tracelens.step.pads import pads_of
from tracelens.step.predicted import scaled_product
from tracelens.step.predicted_attention import scaled_attention
from tracelens.step.search_space import SEARCHED
from tracelens.step.step import Change, PartChange
from tracelens.step.traced_step import StepModel
from tracelens.step.whatif import what_if
from tracelens.step.words.simulation import with_bytes
from tracelens.step.work import AttentionCall, Product, Work

_ATTENTION = ("heads", "kv_heads", "head_dim", "micro_batch", "sequence")
#: Component, phase, ms per step, and of those the ms of products.
_Component = tuple[str, str, float, float]


@dataclass(frozen=True, slots=True)
class _SameSizes:
    """Work whose time depends on the same sizes; ``repeated``: a row of it, where it is in the layers."""

    names: tuple[str, ...]
    repeated: str | None
    now_ms: float
    time_ms: Callable[[ModelConfig], float]  # with as many layers as there are


class MeasuredStep:
    """The evaluator of an analysed step. Raises ``InputError`` where no step time is known."""

    def __init__(self, step: StepModel) -> None:
        if step.step_ms is None:
            raise InputError("no step time is known, so no share of a step can be given")
        self.step = step
        self._step_ms = step.step_ms
        self._groups = tuple(_groups(step))
        self._sums: dict[tuple[object, ...], float] = {}
        self._moved: dict[ModelConfig, StepModel] = {step.now: step}
        self._counts: dict[int | None, Mapping[str, float]] = {step.now.layers: {}}

    def vocab_ranks(self, now: ModelConfig) -> int:
        """One: a trace shows the columns that this rank's logits have."""
        return 1

    def time_ms(self, then: ModelConfig) -> float:
        """The step with ``then`` at the middle of its range. What has no prediction stays as measured."""
        total, repeats = self._step_ms, self._repeats(then)
        for number, group in enumerate(self._groups):
            key = (number, *(then.get(name) for name in group.names))
            found = self._sums.get(key)
            if found is None:
                found = self._sums[key] = group.time_ms(then)
            total += found * repeats.get(group.repeated or "", 1.0) - group.now_ms
        return total

    def change(self, now: ModelConfig, then: ModelConfig) -> Change | None:
        """What ``then`` saves over ``now``, by ``what_if`` on the step as it is with ``now``."""
        step, changes = self.at(now), _changes(now, then)
        try:
            found = what_if(step, changes)
        except UsageError:
            return None
        if found.saving_ms.mid is None or not step.step_ms:
            return None
        flops = found.flops_frac
        if flops is None:  # attention whose operations no trace holds
            flops = _products_growth(step, then, _repeats(step, then.layers))
        tokens = 1.0 + found.tokens_frac
        saving = _per_token(found.saving_ms, step.step_ms, tokens)
        return Change(
            now,
            then,
            saving,
            saving * step.step_ms,
            (1.0 + flops) / tokens - 1.0,
            tuple(_parts(found, tokens)),
        )

    def why_unknown(self, then: ModelConfig) -> str | None:
        """Why the step with ``then`` has no prediction, or None."""
        try:
            found = what_if(self.step, _changes(self.step.now, then))
        except UsageError as error:
            return str(error)
        return found.refused.text if found.refused is not None else None

    def notes(self, then: ModelConfig) -> list[str]:
        """What the simulation of ``then`` leaves open."""
        return what_if(self.step, _changes(self.step.now, then)).notes

    def memory(self, then: ModelConfig) -> float | None:
        """Estimate of this GPU's memory in bytes; None where a size is not known, or experts share tokens."""
        return memory_of_trace(then)

    def at(self, config: ModelConfig) -> StepModel:
        """The step as it is predicted with ``config``, to change it further."""
        found = self._moved.get(config)
        if found is None:
            found = _moved(self.step, config, self.time_ms(config), self._repeats(config))
            self._moved[config] = found
        return found

    def _repeats(self, then: ModelConfig) -> Mapping[str, float]:
        """How much more often rows run with other layers, where it is more often."""
        found = self._counts.get(then.layers)
        if found is None:
            found = self._counts[then.layers] = _repeats(self.step, then.layers)
        return found


def _changes(now: ModelConfig, then: ModelConfig) -> dict[str, int]:
    return {name: then.get(name) or 0 for name in SEARCHED if then.get(name) != now.get(name)}


def _per_token(saving_ms: Estimate, step_ms: float, tokens: float) -> Estimate:
    """As shares of the time per token."""
    share = saving_ms.over(step_ms)
    return share if tokens == 1.0 else share.each(lambda value: 1.0 - (1.0 - value) / tokens)


def _repeats(step: StepModel, layers: int | None) -> Mapping[str, float]:
    """Row -> how much more often it runs with ``layers``, as ``what_if`` has it."""
    if layers is None or layers == step.now.layers:
        return {}
    rows = what_if(step, {"layers": layers}).rows
    return {row.gemm: row.then_ms.mid / row.time_ms for row in rows if row.time_ms > 0}


def _products_growth(step: StepModel, then: ModelConfig, repeats: Mapping[str, float]) -> float:
    """Growth of the operations of products alone: without attention's a fall counts for more, never less."""
    before = after = 0.0
    for product in step.work.products:
        old = product.sizes(step.now)
        if old is not None:
            calls = product.weight * product.row.calls_per_step
            before += calls * math.prod(old)
            after += calls * math.prod(product.sizes(then) or old) * repeats.get(product.row.id, 1.0)
    return after / before - 1.0 if before else 0.0


def _parts(found: WhatIf, tokens: float) -> Iterator[PartChange]:
    """Rows and components that change, largest saving first."""
    parts = [
        PartChange(row.component, row.role or "forward", "row", row.shape_now, row.shape_then, row.time_ms,
                   row.then_ms.mid / tokens, row.time_ms - row.then_ms.mid / tokens,
                   row.how)
        for row in found.rows
    ]  # fmt: skip
    parts += [
        PartChange(one.component, one.phase, "bytes", one.scales_with, one.scales_with, one.time_ms,
                   one.then_ms.mid / tokens, one.time_ms - one.then_ms.mid / tokens,
                   with_bytes(one.scales_with))
        for one in found.rest
    ]  # fmt: skip
    yield from sorted(parts, key=lambda part: -part.saving_ms)


def _groups(step: StepModel) -> Iterator[_SameSizes]:
    """The step's work by the sizes it depends on."""
    now, work = step.now, step.work
    layered = _repeats(step, 2 * now.layers if now.layers else None)
    products: dict[tuple[tuple[str, ...], bool], list[Product]] = {}
    for product in work.products:
        key = _product_names(product, now), product.row.id in layered
        products.setdefault(key, []).append(product)
    for (names, inside), several in products.items():
        row = several[0].row.id if inside else None
        yield _group(names, row, now, partial(_products_ms, step, several))
    padded = [one for one in work.products if one.row.padded_from]
    if padded:
        sizes = {name for one in padded for name in _product_names(one, now)}
        yield _group(tuple(sorted(sizes)), None, now, partial(_pads_ms, step, padded))
    calls: dict[bool, list[AttentionCall]] = {}
    for call in work.attention:
        calls.setdefault(call.row.id in layered, []).append(call)
    for inside, some in calls.items():
        yield _group(_ATTENTION, some[0].row.id if inside else None, now, partial(_attention_ms, step, some))
    components: dict[tuple[str, ...], list[_Component]] = {}
    for one in step.components:
        sizes_moved = tuple(name for name in _known(now) if _goes_with(step, one, name))
        components.setdefault(sizes_moved, []).append(one)
    for names, parts in components.items():
        if names:  # layers are among them where they count
            yield _group(names, None, now, partial(_bytes_ms, step, parts))


def _group(
    names: tuple[str, ...], repeated: str | None, now: ModelConfig, time_ms: Callable[[ModelConfig], float]
) -> _SameSizes:
    return _SameSizes(names, repeated, time_ms(now), time_ms)


def _product_names(product: Product, now: ModelConfig) -> tuple[str, ...]:
    """The sizes that enter its own: those whose double gives another product."""
    present = product.sizes(now)
    return tuple(name for name in _known(now) if product.sizes(_doubled(now, name)) != present)


def _goes_with(step: StepModel, part: _Component, name: str) -> bool:
    try:
        return bool(_rest(step, [part], _doubled(step.now, name)))
    except UsageError:  # a size that cannot be doubled alone, as KV heads beside as many heads
        return True


def _rest(step: StepModel, parts: Sequence[_Component], then: ModelConfig) -> list[Rest]:
    """What ``what_if`` says of the kernels of ``parts`` that only move bytes."""
    alone = replace(step, work=Work((), (), ()), components=tuple(parts))
    return what_if(alone, _changes(step.now, then)).rest


def _known(now: ModelConfig) -> list[str]:
    return [name for name in SEARCHED if now.get(name)]


def _doubled(now: ModelConfig, name: str) -> ModelConfig:
    return replace(now, **{name: 2 * (now.get(name) or 0)})  # type: ignore[arg-type]


def _product_factor(step: StepModel, product: Product, then: ModelConfig) -> float:
    """The time of a call over the measured one; 1 where nothing is predicted."""
    scaled = scaled_product(
        product, step.now, then, anchors=step.anchors, gpu=step.gpu, measured=step.measured
    )
    return 1.0 if isinstance(scaled, str) else scaled.mid


def _attention_factor(step: StepModel, call: AttentionCall, then: ModelConfig) -> float:
    if all(then.get(name) == step.now.get(name) for name in _ATTENTION):
        return 1.0
    scaled = scaled_attention(
        call, step.now, then, gpu=step.gpu, measured=step.measured, anchors=step.anchors
    )
    return 1.0 if isinstance(scaled, str) else scaled.mid


def _products_ms(step: StepModel, products: Sequence[Product], then: ModelConfig) -> float:
    return sum(one.row.time_ms_per_step * one.weight * _product_factor(step, one, then) for one in products)


def _pads_ms(step: StepModel, products: Sequence[Product], then: ModelConfig) -> float:
    """Less than now, where they need no padding."""
    return sum(one.then_ms.mid - one.time_ms for one in pads_of(products, step.now, then, gpu=step.gpu))


def _attention_ms(step: StepModel, calls: Sequence[AttentionCall], then: ModelConfig) -> float:
    return sum(one.row.time_ms_per_step * _attention_factor(step, one, then) for one in calls)


def _bytes_ms(step: StepModel, parts: Sequence[_Component], then: ModelConfig) -> float:
    """Of what moves bytes only: without the products in it."""
    whole = sum(time_ms - products_ms for _, _, time_ms, products_ms in parts)
    return whole + sum(one.then_ms.mid - one.time_ms for one in _rest(step, parts, then))


def _moved(step: StepModel, then: ModelConfig, step_ms: float, repeats: Mapping[str, float]) -> StepModel:
    """The step with every row at the middle of its prediction for ``then``."""
    now, work = step.now, step.work
    gains: dict[tuple[str, str], float] = {}

    def moved(row: GemmRow, factor: float, weight: float = 1.0) -> GemmRow:
        calls = repeats.get(row.id, 1.0)
        time_ms = row.time_ms_per_step * factor * calls
        key = row.component, row.phase
        gains[key] = gains.get(key, 0.0) + weight * (time_ms - row.time_ms_per_step)
        return replace(row, time_ms_per_step=time_ms, calls_per_step=row.calls_per_step * calls)

    products = tuple(
        replace(one, row=moved(one.row, _product_factor(step, one, then), one.weight))
        for one in work.products
    )
    attention = tuple(
        _moved_call(one, now, then, moved(one.row, _attention_factor(step, one, then)))
        for one in work.attention
    )
    rest = {(one.component, one.phase): one for one in _rest(step, step.components, then)}
    components = []
    for component, phase, time_ms, products_ms in step.components:
        gain, other = gains.get((component, phase), 0.0), rest.get((component, phase))
        more = other.then_ms.mid - other.time_ms if other is not None else 0.0
        components.append((component, phase, time_ms + gain + more, products_ms + gain))
    work = Work(products, attention, work.fixed)
    return replace(step, now=then, work=work, components=tuple(components), step_ms=step_ms)


def _moved_call(call: AttentionCall, now: ModelConfig, then: ModelConfig, row: GemmRow) -> AttentionCall:
    """The call with the sizes and operations that ``then`` gives it."""
    batch, seq_q, seq_k, grown = call.batch, call.seq_q, call.seq_k, 1.0
    if now.heads and now.head_dim and then.heads and then.head_dim:
        grown = then.heads * then.head_dim / (now.heads * now.head_dim)
    if now.micro_batch and then.micro_batch:
        batch = batch * then.micro_batch // now.micro_batch
        grown *= then.micro_batch / now.micro_batch
    if now.sequence and then.sequence:
        seq_q = then.sequence if seq_q == now.sequence else seq_q
        seq_k = then.sequence if seq_k == now.sequence else seq_k
        grown *= (then.sequence / now.sequence) ** 2
    flops = row.flops * grown if row.flops is not None else None
    tokens = batch * seq_q if seq_q is not None else call.tokens
    return replace(call, row=replace(row, flops=flops), batch=batch, tokens=tokens, seq_q=seq_q, seq_k=seq_k)
