"""TL117: attention in kernels of its own for scores, softmax and values, where one fused kernel would do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tracelens.gemm import bytes_per_element
from tracelens.numbers import count as counted
from tracelens.numbers import listed, ms, nbytes, percent, plural
from tracelens.results import Amount, Effects, Estimate, Finding, MemoryEffect, weakest
from tracelens.rules.engine.attention_chain import (
    CORE,
    PRODUCTS,
    TRAINED_BIAS,
    Chain,
    chain_of,
    cores_of,
    masks_of,
    sum_ms,
    unusual_of,
)
from tracelens.rules.engine.claims import Claim, settle
from tracelens.rules.engine.effects import completed
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.fused_attention import TENSOR, Core, Fused, Mask, fused_time
from tracelens.rules.engine.missing import for_shapes, no_model
from tracelens.rules.engine.proposals import cannot_judge, heuristic, took
from tracelens.rules.engine.simulated import pays
from tracelens.step.present import micro_batches_of


@dataclass(frozen=True, slots=True)
class UnfusedAttention:
    """Attention in a fused kernel."""

    id: str = "TL117"
    slug: str = "unfused-attention"
    title: str = "Attention in one fused kernel"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Judge attention whose scores and values are products of their own."""
        if not facts.gemms:
            return absent("No GEMM and no attention kernel was recognised in the step.")
        products = [row for row in facts.gemms if row.kind == "gemm" and row.component in PRODUCTS]
        if not products:
            return _without(facts)
        refusal = cannot_judge(facts)
        if refusal is not None:
            return refusal
        if facts.others is None:
            return Outcome(
                "could_not_run",
                "The kernels between the products were not summed up: analyze the trace itself.",
            )
        open_ = [row for row in products if row.m is None or row.n is None or row.k is None]
        if open_:
            return Outcome(
                "could_not_run",
                f"{took(products, 'product', facts)} as scores and values of attention, and the sizes of"
                f" {len(open_)} of them are not known: {for_shapes(open_)}.",
            )
        chain = chain_of(products, facts.others)
        if not chain.softmax:
            return Outcome(
                "could_not_run",
                f"{took(products, 'product', facts)} as scores and values of attention, but no softmax is"
                " known between them: record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],"
                " one step without CUDA graphs.",
            )
        cores = cores_of(products, chain)
        if isinstance(cores, str):
            return Outcome("could_not_run", cores)
        return _judged(self, facts, chain, cores)


def _without(facts: StepFacts) -> Outcome:
    """The step has no product of scores or values."""
    fused = [row for row in facts.gemms if row.kind == "attention"]
    if fused:
        families = sorted({row.kernel_family for row in fused})
        return Outcome(
            "passed", f"Attention runs in fused kernels ({listed(families)}): {took(fused, 'row', facts)}."
        )
    without = no_model(facts)
    if without is not None:
        return without
    return absent("No fused attention kernel and no score or value GEMM was recognised.", attention=True)


def _judged(rule: UnfusedAttention, facts: StepFacts, chain: Chain, cores: Sequence[Core]) -> Outcome:
    saw = _saw(facts, chain, cores)
    found = {mask: fused_time(facts, cores, mask) for mask in masks_of(chain)}
    reasons = [one for one in found.values() if isinstance(one, str)]
    if reasons:
        return Outcome("could_not_run", f"{saw} {_upper(reasons[0])}.")
    fused = {mask: one for mask, one in found.items() if isinstance(one, Fused)}
    fits = {mask: one for mask, one in fused.items() if not one.unfit}
    if not fits:
        return Outcome("passed", f"{saw} {_upper(next(iter(fused.values())).unfit)}.")
    claim = _claim(facts, chain, cores, fits, unusual=unusual_of(chain))
    outcome = settle(rule, facts=facts, claims=[claim], passed=saw)
    findings = tuple(_with_effects(one, facts, chain, cores) for one in outcome.findings)
    return replace(outcome, findings=findings)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


# --- what one fused kernel would save ----------------------------------------------------------------


def _saving(chain: Chain, fused: Sequence[Fused]) -> Estimate:
    """Measured minus predicted; the middle and the low end with the slowest of what it can become.

    A bound where that can be slower than now and another of them is faster for sure.
    """
    sure, whole = chain.sure_ms, sum(chain.times.values())
    spans = [
        Estimate(sure - (one.high or 0.0), sure - (one.mid or 0.0), whole - (one.low or 0.0), one.basis)
        for one in (each.time_ms for each in fused)
    ]
    low, mid, high = ([getattr(one, end) or 0.0 for one in spans] for end in ("low", "mid", "high"))
    if not all(pays(one) for one in spans) and any((one.low or 0.0) > 0 for one in spans):
        return heuristic(max(high))
    basis = weakest(one.basis for one in spans)
    return Estimate(min(low), min(mid), max(high), basis)


def _claim(
    facts: StepFacts,
    chain: Chain,
    cores: Sequence[Core],
    fits: Mapping[Mask, Fused],
    *,
    unusual: Sequence[str],
) -> Claim:
    whole = sum(chain.times.values())
    saving = _saving(chain, list(fits.values()))
    if unusual:
        saving = heuristic(max(0.0, whole - min(one.floor_ms for one in fits.values())))
    part = (saving.high or 0.0) / whole if whole > 0 else 0.0
    return Claim(
        name="one fused attention kernel",
        title=(
            "Run attention in one fused kernel instead of scores, softmax and values:"
            f" {ms(chain.sure_ms)} {facts.per_step} now"
        ),
        components=list(dict.fromkeys([*CORE, *(row.component for row in (*chain.beside, *chain.maybe))])),
        bounds={name: max(0.0, time * part) for name, time in chain.times.items()},
        gemms=[row.id for row in chain.products],
        saving=saving,
        confidence="low" if saving.mid is None else "medium",
        effort="code",
        saw=_saw(facts, chain, cores),
        why=_WHY,
        how=_how(chain, fits, saving, unusual),
        fix=_FIXES[chain.call],
        caveats=_caveats(
            chain,
            cores,
            unusual=unusual,
            masked=TENSOR in masks_of(chain),
            predicted=saving.mid is not None,
        ),
        evidence={
            "cores": [_evidence(core) for core in cores],
            "chain_ms": {
                "products": sum_ms(chain.products),
                "softmax": sum_ms(chain.between),
                "beside": sum_ms(chain.beside),
                "perhaps": sum_ms(chain.maybe),
            },
            "fused_ms": {mask.words: _ends(one.time_ms) for mask, one in fits.items()},
            "kernels": sorted({name for one in fits.values() for name in one.kernels}),
        },
    )


_WHY = (
    "The scores, one number for each pair of a query and a key, are written to memory and read again by every"
    " kernel between the two products: scale, mask, casts, softmax, dropout, and once more in the backward."
    " A fused kernel keeps a block of them on the SM, writes only the output and one number per query, and"
    " computes the block again in the backward. It reads heads at any stride, so copies for the batched"
    " products go too."
)
_FIXES = {
    "code": [
        "- p = torch.softmax(q @ k.transpose(-2, -1) * scale + mask, dim=-1)",
        "- y = F.dropout(p, p=dropout) @ v",
        "+ y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)   # or attn_mask",
        '+ attn_implementation="sdpa"   # Hugging Face: in from_pretrained or in the config',
    ],
    "native": [
        "- y, weights = attention(x, x, x)   # nn.MultiheadAttention",
        "+ y, _ = attention(x, x, x, need_weights=False)",
    ],
    "math": [
        "+ with torch.nn.attention.sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):   # or FLASH_ATTENTION",
        "      y = F.scaled_dot_product_attention(q, k, v)   # warns which condition a fused kernel misses",
    ],
}


def _saw(facts: StepFacts, chain: Chain, cores: Sequence[Core]) -> str:
    parts = [
        f"{name} {ms(time)}"
        for name, time in (
            ("the products", sum_ms(chain.products)),
            ("softmax with all between them", sum_ms(chain.between)),
            ("copies and other kernels beside them", sum_ms(chain.beside)),
        )
        if time > 0
    ]
    step = facts.measured_step_ms or 1.0
    gpu = sum(row.time_ms_per_step for row in facts.components)
    share = f"{percent(chain.sure_ms / step)} of the {facts.whole}"
    if gpu > 0:
        share += f", {percent(chain.sure_ms / gpu)} of its GPU time"
    sizes = [core.text for core in cores[:3]]
    sizes += [plural(len(cores) - 3, "other size")] if len(cores) > 3 else []
    text = (
        f"Attention runs in {counted(chain.kernels)} separate kernels {facts.per_step}, for"
        f" {listed(sizes)}: {ms(chain.sure_ms)} ({share}): {listed(parts)}."
    )
    if chain.maybe:
        text += (
            f" {plural(len(chain.maybe), 'row')} of copies or dropout around it, {ms(sum_ms(chain.maybe))},"
            " perhaps go too."
        )
    most = max(cores, key=lambda core: core.scores_bytes)
    return f"{text} One matrix of scores is {_matrix(most)}."


def _matrix(core: Core) -> str:
    size = bytes_per_element(core.dtype) or 2.0
    return f"{core.heads} × {core.seq_q} × {core.seq_k} × {size:g} B = {nbytes(round(core.scores_bytes))}"


def _how(chain: Chain, fits: Mapping[Mask, Fused], saving: Estimate, unusual: Sequence[str]) -> str:
    now = f"These kernels take {ms(chain.sure_ms)} as measured"
    if chain.maybe:
        now += f", and {ms(sum_ms(chain.maybe))} that perhaps go with them count in the high end alone"
    if unusual:
        floor = min(one.floor_ms for one in fits.values())
        return f"{now}. No fused kernel takes less than {ms(floor)}: operations at the peak, or bytes."
    lines = [f"{now}."]
    for one in fits.values():
        then = one.time_ms.mid or 0.0
        lines += [*one.lines, f"{ms(chain.sure_ms)} - {ms(then)} = {_signed(chain.sure_ms - then)}."]
    if saving.mid is None:
        lines.append("Which of the masks it is decides whether it is faster: no middle is given.")
    return "\n".join(lines)


def _signed(saving_ms: float) -> str:
    return f"{ms(saving_ms)} saved" if saving_ms >= 0 else f"{ms(-saving_ms)} added"


def _ends(one: Estimate) -> list[float | None]:
    return [one.low, one.mid, one.high]


def _evidence(core: Core) -> dict[str, object]:
    return {
        "batch_times_heads": core.heads, "seq_q": core.seq_q, "seq_k": core.seq_k,
        "head_dim": core.head_dim, "value_dim": core.value_dim, "dtype": core.dtype,
        "calls_per_step": core.calls, "backward_calls_per_step": core.backward_calls,
        "scores_bytes": core.scores_bytes,
    }  # fmt: skip


def _caveats(
    chain: Chain, cores: Sequence[Core], *, unusual: Sequence[str], masked: bool, predicted: bool
) -> list[str]:
    caveats = [
        "The same function but for rounding: sums run in another order. Compare results over a short run."
    ]
    strange = [name for name in unusual if name != TRAINED_BIAS]
    if strange:
        caveats.insert(
            0,
            "Between scores and values stands what scaled_dot_product_attention does not do"
            f" ({listed(strange)}): flex_attention can (score_mod); what it takes is not predicted.",
        )
    if TRAINED_BIAS in unusual:
        caveats.insert(
            0,
            "The bias on the scores is trained: the memory-efficient kernel takes it as a full attn_mask"
            " and writes its gradient, as large as the scores; what that takes is not predicted.",
        )
    if masked:
        caveats.append(
            "Something is added to the scores or masked in them. A causal mask becomes is_causal=True. Any"
            " other (padding, ALiBi, relative positions) is passed as attn_mask: the memory-efficient kernel"
            " takes it, FlashAttention does not; or flex_attention."
            + (" The range spans both, the middle is the slower." if predicted else "")
        )
    if chain.call == "native":
        caveats.append(
            "nn.MultiheadAttention computes the weights because need_weights is True by default; a fused"
            " kernel has none to give. Where the weights are used, this cannot be changed."
        )
    else:
        caveats.append(
            "A fused kernel gives no attention weights: output_attentions=True (Hugging Face) or a return of"
            " them keeps attention unfused."
        )
    if chain.call == "math":
        caveats.append(
            "scaled_dot_product_attention is called already and took its unfused path: fused kernels switched"
            " off, a last dimension that is not contiguous, or unequal head dimensions. It computes bf16 and"
            " fp16 in fp32; the prediction takes the type of the products."
        )
    elif any(core.dtype == "fp32" for core in cores):
        caveats.append(
            "In fp32 only the memory-efficient kernel takes it, in three tf32 products for one; q, k and v in"
            " bf16 or fp16 take FlashAttention and half the bytes."
        )
    if any(core.value_dim != core.head_dim for core in cores):
        caveats.append("Values have another head dimension than keys: FlashAttention needs v padded.")
    if any(
        row.kind in ("copy", "transpose", "cast") for row in (*chain.between, *chain.beside, *chain.maybe)
    ):
        caveats.append(
            "Copies and casts among these kernels that TL113 (layout-copies) names too are counted once."
        )
    return caveats


# --- what it does besides ----------------------------------------------------------------------------


def _with_effects(finding: Finding, facts: StepFacts, chain: Chain, cores: Sequence[Core]) -> Finding:
    """The finding with memory and operations as the chain gives them."""
    found = completed(finding, facts)
    if found.effects is None:
        return found
    effects: Effects = replace(found.effects, memory=_memory(facts, cores), flops=_operations(facts, chain))
    return replace(found, effects=effects)


def _memory(facts: StepFacts, cores: Sequence[Core]) -> MemoryEffect:
    """Softmax's output of every layer, which the backward needs and a fused kernel computes again."""
    most = max(cores, key=lambda core: core.scores_bytes)
    if not any(core.backward_calls for core in cores):
        how = f"no scores in memory: {_matrix(most)} less at the peak, once, for each matrix alive there"
        return MemoryEffect(None, 0.0, None, how)
    if any(row.phase == "recompute" for row in facts.gemms if row.component in PRODUCTS):
        how = f"recomputed layers keep no scores; {_matrix(most)} less while one layer runs, at least"
        return MemoryEffect(None, 0.0, None, how)
    batches = micro_batches_of(facts.gemms, facts.model.layers.value) or 1
    kept = sum(
        core.backward_calls / batches * (core.scores_bytes - 4 * core.heads * core.seq_q) for core in cores
    )
    layers = sum(core.backward_calls for core in cores) / batches
    how = (
        f"softmax's output is not kept, {_matrix(most)} in {_each(layers)}; 4 B per query and head are. At"
        " least: casts and dropout keep more copies"
    )
    return MemoryEffect(-kept, 0.0, -kept, how)


def _each(layers: float) -> str:
    return "one layer" if math.isclose(layers, 1.0) else f"each of {counted(layers)} layers"


def _operations(facts: StepFacts, chain: Chain) -> Amount:
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
    how = "the backward computes the scores again, five products for four; a causal mask saves half of all"
    return Amount(more, more / sum(every), how)
