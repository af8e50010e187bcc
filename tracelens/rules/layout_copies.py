"""TL113: kernels around the products that only copy, turn or convert tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracelens.numbers import count, ms, percent, plural
from tracelens.results import GemmRow, OtherRow
from tracelens.results.advice import Effort
from tracelens.rules.engine.claims import Claim, settle
from tracelens.rules.engine.facts import Outcome, StepFacts, absent
from tracelens.rules.engine.missing import no_model
from tracelens.rules.engine.proposals import heuristic
from tracelens.step.present import micro_batches_of
from tracelens.words import Level

#: A bound, of which a part falls away: below this share of the step it is not worth a user's time.
_LEAST = 0.02
#: With more of the time between products in kernels whose names say nothing than this, nothing is judged.
_NAMELESS = 0.5
_MOVING = frozenset({"copy", "transpose", "cast"})
_AROUND = ("attention.", "mlp.", "moe.experts", "logits", "loss", "norm")
_HALF = frozenset({"bf16", "fp16"})
#: Operators that copy inside: the library decides, not the model's code.
_LIBRARY = ("aten::_scaled_dot_product_", "aten::_flash_attention_", "aten::_efficient_attention_",
            "aten::_cudnn_attention_", "aten::_native_multi_head_attention", "aten::_transformer_encoder",
            "aten::convolution", "aten::_convolution")  # fmt: skip
_SHOWN = 3
#: A module's path that can stand in a sentence: other texts come from the trace and stay out.
_MODULE = re.compile(r"[A-Za-z_][\w.]{0,79}")


#: Operators whose copies are their work: a bias spread over the rows of a product, tensors put behind one
#: another, elements repeated. No other layout of their operands spares it.
_MAKES = frozenset(
    f"aten::{name}"
    for name in (
        "addmm",
        "addbmm",
        "baddbmm",
        "linear",
        "cat",
        "stack",
        "repeat",
        "repeat_interleave",
        "tile",
    )
)


@dataclass(frozen=True, slots=True)
class _Cause:
    """Copies of one kind with one way out."""

    name: str  # in a sentence
    title: str  # with {many} of ``noun`` and {time}
    noun: tuple[str, str]  # one and several
    holds: Callable[[OtherRow, StepFacts], bool]
    why: str
    fix: tuple[str, ...]
    caveats: tuple[str, ...]
    effort: Effort = "code"
    confidence: Level = "medium"
    change: tuple[tuple[str, str, str], ...] = ()  # what, from, to


@dataclass(frozen=True, slots=True)
class LayoutCopies:
    """No kernel around the products that only moves data."""

    id: str = "TL113"
    slug: str = "layout-copies"
    title: str = "Copies and casts around products"

    def check(self, facts: StepFacts, /) -> Outcome:
        """Sum the copies, transposes and casts between the products, by cause."""
        if facts.others is None:
            return Outcome(
                "could_not_run",
                "The kernels between the products were not summed up: analyze the trace itself.",
            )
        if not facts.gemms:
            return absent("No GEMM and no attention kernel was recognised in the step.")
        without = no_model(facts)
        if without is not None:
            return without
        if facts.measured_step_ms is None:
            return Outcome("could_not_run", "No step time is known, so no share of a step can be given.")
        if not any(row.op for row in facts.others) and not any(row.kind in _MOVING for row in facts.others):
            return Outcome(
                "could_not_run",
                "No operator is known for any kernel between the products, and no name shows a copy: record"
                " with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
            )
        near = [row for row in facts.others if row.kind in _MOVING and row.component.startswith(_AROUND)]
        inside = [row for row in near if _in_library(row)]
        open_ = [row for row in near if row not in inside]
        nameless = _nameless(facts.others)
        if nameless is not None:
            return nameless
        claims, rest = [], open_
        for cause in _CAUSES:
            rows = [row for row in rest if cause.holds(row, facts)]
            rest = [row for row in rest if row not in rows]
            if rows:
                claims.append(_claim(facts, cause, rows))
        return settle(self, facts=facts, claims=claims, passed=_passed(facts, near, inside))


def _in_library(row: OtherRow) -> bool:
    return row.within is not None and row.within.startswith(_LIBRARY)


def _nameless(rows: Sequence[OtherRow]) -> Outcome | None:
    """Kernels of torch.compile can have names that do not say what was fused: then copies hide among them."""
    near = [row for row in rows if row.component.startswith((*_AROUND, "unattributed"))]
    silent = [row for row in near if row.kind == "other"]
    if _sum(silent) <= _NAMELESS * _sum(near):
        return None
    return Outcome(
        "could_not_run",
        f"{ms(_sum(silent))} of the {ms(_sum(near))} between the products are in kernels whose names do not"
        " say what they do: record one eager step (TORCH_COMPILE_DISABLE=1).",
    )


def _sum(rows: Sequence[OtherRow]) -> float:
    return sum(row.time_ms_per_step for row in rows)


def _passed(facts: StepFacts, near: Sequence[OtherRow], inside: Sequence[OtherRow]) -> str:
    if not near:
        return "No kernel around the products only copies, turns or converts a tensor."
    share = percent(_sum(near) / (facts.measured_step_ms or 1.0))
    time = f"{ms(_sum(near))} of the {facts.whole} ({share})"
    text = f"Kernels around the products that only move data take {time}."
    if inside:
        text += f" {ms(_sum(inside))} of it are copies inside a library's own operator."
    return text


# --- causes ------------------------------------------------------------------------------------------


def _is_weight(row: OtherRow, facts: StepFacts) -> bool:
    """Has the tensor the size of a weight, and not that of an activation, of its component's products?"""
    if row.dims is None or len(row.dims) != 2:
        return False
    forward = [one for one in facts.gemms if one.role == "forward" and one.component == row.component]
    sizes = {size for one in forward for size in _weights(one)}
    return row.dims in sizes


def _weights(row: GemmRow) -> list[tuple[int, int]]:
    if row.m is None or row.n is None or row.k is None or row.m in (row.n, row.k):
        return []
    return [(row.n, row.k), (row.k, row.n)]


def _weight_cast(row: OtherRow, facts: StepFacts) -> bool:
    pair = {row.dtype_from, row.dtype_to}
    return row.kind == "cast" and "fp32" in pair and bool(_HALF & pair) and _is_weight(row, facts)


def _logits_cast(row: OtherRow, facts: StepFacts) -> bool:
    """A cast of a tensor as wide as the vocabulary, as large as the logits."""
    vocab = facts.model.vocab.value
    wide = row.dims is not None and vocab is not None and len(row.dims) > 1 and row.dims[-1] == vocab
    return row.kind == "cast" and row.component in ("logits", "loss") and wide


def _split_gradient(row: OtherRow, facts: StepFacts) -> bool:
    return row.kind == "copy" and row.op == "aten::cat" and (row.within or "").startswith(
        ("SplitBackward", "SplitWithSizesBackward", "ChunkBackward", "UnbindBackward", "UnsafeSplitBackward")
    )  # fmt: skip


def _repeated_heads(row: OtherRow, facts: StepFacts) -> bool:
    """Key and value heads copied for every query head."""
    heads, kv = facts.model.heads.value, facts.model.kv_heads.value
    grouped = heads is not None and kv is not None and kv < heads
    repeats = row.op in ("aten::repeat_interleave", "aten::repeat")
    five = row.op in ("aten::reshape", "aten::clone") and row.dims is not None and len(row.dims) == 5
    return (
        grouped and row.phase != "backward" and row.component.startswith("attention.") and (repeats or five)
    )


def _activation_cast(row: OtherRow, facts: StepFacts) -> bool:
    return row.kind == "cast"


def _layout(row: OtherRow, facts: StepFacts) -> bool:
    """A tensor copied as it is; not one that an operator makes of others, or spreads over rows."""
    moved = row.kind in ("copy", "transpose") and row.op not in _MAKES
    return moved and row.component.startswith(("attention.", "mlp.", "moe.experts"))


_CAUSES = (
    _Cause(
        "keeping the weights in 16 bits",
        "Keep 16-bit weights: {many} of fp32 weights and gradients, {time} {per}",
        ("cast", "casts"),
        _weight_cast,
        "Under autocast, or in a layer that casts its own weight, every product's fp32 weight is converted"
        " in each forward and its gradient back in each backward: once per micro-batch, for autocast"
        " forgets its copies when its block ends. The weights change once per step.",
        (
            '- with torch.autocast("cuda", dtype=torch.bfloat16): loss = model(x)   # fp32 weights',
            "+ model.to(torch.bfloat16)   # with an optimizer that keeps fp32 master weights",
        ),
        (
            (
                "Weights in bf16 without fp32 master weights lose small updates: the optimizer has to keep"
                " them (FSDP's MixedPrecisionPolicy, DeepSpeed and Megatron do). It then casts once per"
                " step."
            ),
        ),
        change=(("weights", "fp32", "bf16"),),
    ),
    _Cause(
        "a loss that takes 16-bit logits",
        "Do not cast the logits to fp32: {many}, {time} {per}",
        ("cast", "casts"),
        _logits_cast,
        "The logits are the largest tensor of the step: tokens times vocabulary. A cast reads them in 16"
        " bits and writes them in fp32, and what follows reads twice the bytes.",
        (
            "- loss = F.cross_entropy(logits.float(), targets)",
            "+ loss = F.cross_entropy(logits, targets)   # compiled, or a fused linear cross entropy",
        ),
        (
            (
                "Softmax and its sum have to be computed in fp32: a compiled or fused loss does so inside"
                " its kernel, PyTorch's own in eager mode accumulates in fp32 and returns 16 bits."
            ),
        ),
    ),
    _Cause(
        "writing gradients side by side",
        "Write gradients of a split side by side: {many}, {time} {per}",
        ("concatenation", "concatenations"),
        _split_gradient,
        "The output of one product is split into parts; in the backward autograd puts their gradients"
        " together again with a copy before the product's own gradients.",
        (
            "- q, k, v = self.qkv(x).split(width, dim=-1)   # and attention on three tensors",
            "+ out = flash_attn_qkvpacked_func(self.qkv(x).view(b, s, 3, heads, head_dim), causal=True)",
        ),
        (
            (
                "torch.compile does not need the packed call: it writes the parts where they belong, unless"
                " the attention kernel returns them apart."
            ),
            "Separate products for the parts have no such copy, and cost more elsewhere (TL112).",
        ),
    ),
    _Cause(
        "attention on the key and value heads as they are",
        "Do not repeat key and value heads: {many}, {time} {per}",
        ("copy", "copies"),
        _repeated_heads,
        "The model has fewer key and value heads than query heads and copies each of them for all the query"
        " heads that share it. Attention kernels read a shared head where it lies.",
        (
            "- k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)",
            "+ F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
        ),
        ("enable_gqa needs PyTorch 2.5; flash_attn_func takes such heads as they are.",),
    ),
    _Cause(
        "keeping activations in 16 bits",
        "Fuse or avoid {many} of activations: {time} {per}",
        ("cast", "casts"),
        _activation_cast,
        "Under autocast norms and losses run in fp32 and products in 16 bits, so what passes between them"
        " is converted by a kernel that does nothing else.",
        ("+ model = torch.compile(model)   # fuses each cast into the kernel before or after it",),
        (
            (
                "A norm whose weights are 16 bits takes and gives 16 bits without autocast, and still sums"
                " in fp32."
            ),
        ),
        confidence="low",
    ),
    _Cause(
        "handing tensors on as they lie",
        "Avoid {many} around the GEMMs: {time} {per}",
        ("layout copy", "layout copies"),
        _layout,
        "A transposed or sliced tensor was copied so that its elements lie in another order. Products read"
        " either operand transposed, and attention kernels read heads at any stride as long as the last"
        " dimension is contiguous: neither needs the copy.",
        (
            "- q = q.transpose(1, 2).contiguous()",
            "+ q = q.transpose(1, 2)   # a view",
        ),
        (
            (
                "Some of these copies are needed: a reshape that no view can express, or a kernel that asks"
                " for contiguous memory. Take them away one at a time and look at the operator's new time."
            ),
        ),
        confidence="low",
    ),
)


# --- a cause's rows as a claim -----------------------------------------------------------------------


def _claim(facts: StepFacts, cause: _Cause, rows: Sequence[OtherRow]) -> Claim:
    rows = sorted(rows, key=lambda row: -row.time_ms_per_step)
    calls = sum(row.calls_per_step for row in rows)
    time = ms(_sum(rows))
    return Claim(
        name=cause.name,
        title=cause.title.format(
            many=f"{count(calls)} {cause.noun[calls != 1]}", time=time, per=facts.per_step
        ),
        components=sorted({row.component for row in rows}),
        bounds={row.id: row.time_ms_per_step for row in rows},
        gemms=[],
        saving=heuristic(_sum(rows)),
        confidence=cause.confidence,
        effort=cause.effort,
        saw=_saw(facts, rows, calls, time),
        why=cause.why,
        how=f"The time of these kernels as measured, all of it: {time}.",
        fix=cause.fix,
        caveats=cause.caveats,
        change={name: [now, then] for name, now, then in cause.change},
        evidence={"copies": [_evidence(row) for row in rows[:20]]},
        least=_LEAST,
    )


def _evidence(row: OtherRow) -> dict[str, object]:
    return {
        "component": row.component, "phase": row.phase, "kind": row.kind, "op": _word(row.op),
        "within": _word(row.within), "module": _module(row),
        "calls_per_step": row.calls_per_step, "time_ms": row.time_ms_per_step,
        "dims": list(row.dims) if row.dims else None, "from": row.dtype_from, "to": row.dtype_to,
    }  # fmt: skip


def _saw(facts: StepFacts, rows: Sequence[OtherRow], calls: float, time: str) -> str:
    share = percent(_sum(rows) / (facts.measured_step_ms or 1.0))
    per = facts.per_step
    many = f"1 kernel {per} does" if calls == 1 else f"{count(calls)} kernels {per} do"
    text = f"{many} nothing but move data, in {time} ({share} of the {facts.whole})."
    rest = rows[_SHOWN:]
    text += " Most of them: " if rest else " It is " if calls == 1 else " They are "
    text += "; ".join(_told(row) for row in rows[:_SHOWN])
    if rest:
        text += f"; and {plural(len(rest), 'more kind')} in {ms(_sum(rest))}"
    return text + "." + _repeats(facts, rows)


def _told(row: OtherRow) -> str:
    """One row in a sentence: what, where, by which operator, how often, how long."""
    what = {"cast": "casts", "transpose": "transposing copies", "copy": "copies"}[row.kind]
    if row.calls_per_step == 1:
        what = {"cast": "cast", "transpose": "transposing copy", "copy": "copy"}[row.kind]
    if row.kind == "cast" and row.dtype_from and row.dtype_to:
        what += f" from {row.dtype_from} to {row.dtype_to}"
    of = f" of {' × '.join(map(str, row.dims))}" if row.dims else ""
    op = f" by {_word(row.op)}" if _word(row.op) else ""
    inside = f" in {_word(row.within)}" if _word(row.within) else ""
    module = f", in {_module(row)}" if _module(row) else ""
    return (
        f"{count(row.calls_per_step)} {what}{of}{op}{inside}{module} ({row.component} {row.phase},"
        f" {ms(row.time_ms_per_step)})"
    )


def _module(row: OtherRow) -> str:
    return row.module if row.module and _MODULE.fullmatch(row.module) else ""


def _word(text: str | None) -> str:
    """An operator's name where it is one of PyTorch's: other names come from the trace and stay out."""
    if text is None:
        return ""
    if text.startswith("triton_"):
        return "a kernel of torch.compile"
    plain = text.replace("aten::", "").replace("Backward", "").replace("_", "").rstrip("0123456789")
    known = text.startswith("aten::") or text.endswith(("Backward0", "Backward1"))
    return text if known and plain.isalnum() and len(text) < 60 else ""


def _repeats(facts: StepFacts, rows: Sequence[OtherRow]) -> str:
    """Casts of weights: how many micro-batches a step has, where the products show it."""
    batches = micro_batches_of(facts.gemms, facts.model.layers.value)
    if rows[0].kind != "cast" or batches is None or batches < 2 or not _is_weight(rows[0], facts):
        return ""
    return f" The step has {batches} micro-batches, and each of them casts the weights anew."
