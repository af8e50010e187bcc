"""What fusing a step's unfused attention would save and change: time, memory, operations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracelens.numbers import capital, count, listed, ms, nbytes, percent, plural
from tracelens.results import Amount, MemoryEffect, Span, weakest
from tracelens.rules.engine.bounds import Bound
from tracelens.rules.engine.candidate import absent, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes, need_kernels, need_model, need_nvidia, need_others
from tracelens.rules.engine.rows import of_step, time_of, took
from tracelens.rules.engine.simulated import pays
from tracelens.rules.evidence.attention_chain import (
    PRODUCTS,
    Chain,
    chain_of,
    cores_of,
    masked_of,
    masks_of,
    unusual_of,
)
from tracelens.rules.evidence.fused_attention import FEWEST_QUERIES, CoreCalls, FusedCalls, Mask, fused_time
from tracelens.step.present import micro_batches_of


@dataclass(frozen=True, slots=True)
class Fusing:
    """Unfused attention, and the fused kernels that it can become by what becomes of its mask."""

    chain: Chain
    cores: list[CoreCalls]
    fits: Mapping[Mask, FusedCalls]
    unusual: list[str]  # what is done to the scores for which no fused kernel is predicted
    saving: Span | None  # None: only a bound is known
    bound_ms: float
    saw: str

    @property
    def bounds(self) -> list[Bound]:
        """Of the GEMMs; every kernel has the same share of what can go."""
        return [Bound(row, max(0.0, row.time_ms_per_step * self._part)) for row in self.chain.products]

    @property
    def kernels(self) -> dict[str, float]:
        """The same of the kernels between and beside them."""
        gemms = {row.id for row in self.chain.products}
        times = self.chain.times.items()
        return {name: max(0.0, time * self._part) for name, time in times if name not in gemms}

    @property
    def _part(self) -> float:
        whole = sum(self.chain.times.values())
        return self.bound_ms / whole if whole > 0 else 0.0

    @property
    def how(self) -> str:
        """The arithmetic."""
        chain = self.chain
        now = f"These kernels take {ms(chain.sure_ms)} as measured"
        if chain.maybe:
            now += f", and {ms(time_of(chain.maybe))} that perhaps go with them count in the high end alone"
        if self.unusual:
            floor = ms(min(one.floor_ms for one in self.fits.values()))
            return f"{now}. No fused kernel takes less than {floor}: operations at the peak, or bytes."
        lines = [f"{now}."]
        for one in self.fits.values():
            then = one.time_ms.mid
            saved = chain.sure_ms - then
            signed = f"{ms(saved)} saved" if saved >= 0 else f"{ms(-saved)} added"
            lines += [*one.lines, f"{ms(chain.sure_ms)} - {ms(then)} = {signed}."]
        if self.saving is None:
            lines.append("Which of the masks it is decides whether it is faster: no middle is given.")
        return "\n".join(lines)

    @property
    def evidence(self) -> dict[str, object]:
        """The same as values."""
        chain = self.chain
        spans = {mask.words: one.time_ms for mask, one in self.fits.items()}
        return {
            "cores": [
                {
                    "batch_times_heads": core.heads, "seq_q": core.seq_q, "seq_k": core.seq_k,
                    "head_dim": core.head_dim, "value_dim": core.value_dim, "dtype": core.dtype,
                    "calls_per_step": core.calls, "backward_calls_per_step": core.backward_calls,
                    "scores_bytes": core.scores_bytes,
                }
                for core in self.cores
            ],
            "chain_ms": {
                "products": time_of(chain.products), "softmax": time_of(chain.between),
                "beside": time_of(chain.beside), "perhaps": time_of(chain.maybe),
            },
            "fused_ms": {words: [one.low, one.mid, one.high] for words, one in spans.items()},
            "kernels": sorted({name for one in self.fits.values() for name in one.kernels}),
        }  # fmt: skip


def need_fusing(facts: StepFacts) -> Fusing:
    """Raises ``Answer`` where attention is fused, no fused kernel takes the calls, or none is predicted."""
    chain, cores = _need_chain(facts)
    seen = _saw(facts, chain, cores)
    many = [core for core in cores if core.seq_q >= FEWEST_QUERIES] or cores
    found = {mask: fused_time(facts, many, mask, masked=masked_of(chain, many)) for mask in masks_of(chain)}
    fused = {mask: one for mask, one in found.items() if isinstance(one, FusedCalls)}
    if why := next((one for one in found.values() if isinstance(one, str)), None):
        raise could_not_run(f"{seen} {capital(why)}.")
    fits = {mask: _with_few(one, chain, cores) for mask, one in fused.items() if not one.unfit}
    if not fits:
        raise passed(f"{seen} {capital(next(iter(fused.values())).unfit)}.")
    unusual, whole = unusual_of(chain), sum(chain.times.values())
    saving, bound = _saving(chain, list(fits.values()))
    if unusual:
        saving, bound = None, max(0.0, whole - min(one.floor_ms for one in fits.values()))
    return Fusing(chain, cores, fits, unusual, saving, bound, seen)


def _need_chain(facts: StepFacts) -> tuple[Chain, list[CoreCalls]]:
    products = [row for row in facts.gemms if row.kind == "gemm" and row.component in PRODUCTS]
    fused = [row for row in facts.gemms if row.kind == "attention"]
    if not products and fused:
        families = listed(sorted({row.kernel_family for row in fused}))
        raise passed(f"Attention runs in fused kernels ({families}): {took(fused, facts, 'row')}.")
    if not products:
        need_model(facts)
        raise absent("No fused attention kernel and no score or value GEMM was recognised.", attention=True)
    need_kernels(facts)
    need_nvidia(facts)
    need_others(facts)
    blind = [row for row in products if row.m is None or row.n is None or row.k is None]
    seen = f"{took(products, facts, 'GEMM')} as scores and values of attention"
    if blind:
        raise could_not_run(
            f"{seen}, and the sizes of {len(blind)} of them are not known: {for_shapes(blind)}."
        )
    chain = chain_of(products, facts.others or ())
    if not chain.softmax:
        raise could_not_run(
            f"{seen}, but no softmax is known between them: record with"
            " activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], one step without CUDA graphs."
        )
    cores = cores_of(products, chain)
    if isinstance(cores, str):
        raise could_not_run(cores)
    return chain, cores


def _with_few(found: FusedCalls, chain: Chain, cores: Sequence[CoreCalls]) -> FusedCalls:
    """With calls of one query beside those predicted: they stay as they are, and at best take nothing.

    What stands between their products is known of all calls together: in the middle it is theirs by the time
    of their products, at the high end by their number.
    """
    few = [core for core in cores if core.seq_q < FEWEST_QUERIES]
    products = [row for row in chain.products if min(row.m or 0, row.n or 0, row.k or 0) < FEWEST_QUERIES]
    if not few or not products:
        return found
    by_time = time_of(products) / time_of(chain.products)
    by_calls = sum(core.calls for core in few) / sum(core.calls for core in cores)
    mid, high = by_time * chain.sure_ms, max(by_time, by_calls) * chain.sure_ms
    line = (
        f"{listed([core.text for core in few])}: fused kernels split the keys for one query, and those are"
        f" not predicted; {ms(mid)} of the time is assumed to stay (0 to {ms(high)})."
    )
    left = Span(0.0, mid, high, "model")
    return replace(found, time_ms=found.time_ms.joined(left), lines=(*found.lines, line))


def _saving(chain: Chain, fused: Sequence[FusedCalls]) -> tuple[Span | None, float]:
    """Measured minus predicted; the middle and the low end with the slowest of what it can become.

    Only the most where that can be slower than now and another of them is faster for sure.
    """
    sure, whole = chain.sure_ms, sum(chain.times.values())
    spans = [
        Span(sure - one.high, sure - one.mid, whole - one.low, one.basis)
        for one in (each.time_ms for each in fused)
    ]
    low, mid, high = (
        min(one.low for one in spans),
        min(one.mid for one in spans),
        max(one.high for one in spans),
    )
    if not all(pays(one) for one in spans) and any(one.low > 0 for one in spans):
        return None, high
    return Span(low, mid, high, weakest(one.basis for one in spans)), high


def _saw(facts: StepFacts, chain: Chain, cores: Sequence[CoreCalls]) -> str:
    """What a trace shows of it."""
    parts = {
        "the GEMMs": time_of(chain.products),
        "softmax with all between them": time_of(chain.between),
        "copies and other kernels beside them": time_of(chain.beside),
    }
    gpu = sum(row.time_ms_per_step for row in facts.components)
    share = of_step(chain.sure_ms, facts)
    share += f", {percent(chain.sure_ms / gpu)} of its GPU time" if gpu > 0 else ""
    sizes = [core.text for core in cores[:3]]
    sizes += [plural(len(cores) - 3, "other size")] if len(cores) > 3 else []
    text = (
        f"Attention runs in {count(chain.kernels)} separate kernels {facts.per_step}, for {listed(sizes)}:"
        f" {ms(chain.sure_ms)} ({share}):"
        f" {listed([f'{name} {ms(time)}' for name, time in parts.items() if time > 0])}."
    )
    if chain.maybe:
        text += (
            f" {plural(len(chain.maybe), 'row')} of copies or dropout around it,"
            f" {ms(time_of(chain.maybe))}, can go too."
        )
    return f"{text} One matrix of scores is {_matrix(cores)}."


def _matrix(cores: Sequence[CoreCalls]) -> str:
    most = max(cores, key=lambda core: core.scores_bytes)
    size = f"{most.heads} × {most.seq_q} × {most.seq_k} × {most.element_bytes:g} B"
    return f"{size} = {nbytes(round(most.scores_bytes))}"


def memory(facts: StepFacts, cores: Sequence[CoreCalls]) -> MemoryEffect:
    """Softmax's output of every layer, which the backward needs and a fused kernel computes again."""
    if not any(core.backward_calls for core in cores):
        how = f"no scores in memory: {_matrix(cores)} less at the peak, once, for each matrix alive there"
        return MemoryEffect(None, 0.0, None, how)
    if any(row.phase == "recompute" for row in facts.gemms if row.component in PRODUCTS):
        how = f"recomputed layers keep no scores; {_matrix(cores)} less while one layer runs, at least"
        return MemoryEffect(None, 0.0, None, how)
    batches = micro_batches_of(facts.gemms, facts.model.layers.value) or 1
    kept = sum(
        core.backward_calls / batches * (core.scores_bytes - 4 * core.heads * core.seq_q) for core in cores
    )
    layers = sum(core.backward_calls for core in cores) / batches
    each = "one layer" if math.isclose(layers, 1.0) else f"each of {count(layers)} layers"
    how = (
        f"softmax's output is not kept, {_matrix(cores)} in {each}; 4 B per query and head are. At least:"
        " casts and dropout keep more copies"
    )
    return MemoryEffect(-kept, 0.0, -kept, how)


def operations(facts: StepFacts, chain: Chain) -> Amount:
    """Backward, a fused kernel multiplies five times and not four: the scores are computed again."""
    every = [row.flops * row.calls_per_step for row in facts.gemms if row.flops is not None]
    backward = [
        row.flops * row.calls_per_step
        for row in chain.products
        if row.phase == "backward" and row.flops is not None
    ]
    if not backward:
        return Amount(0.0, 0.0, "the same operations; fewer with a causal mask, whose blocks are skipped")
    more = sum(backward) / 4
    how = "the backward computes the scores again, five GEMMs for four; a causal mask saves half of all"
    return Amount(more, more / sum(every), how)
