"""TL113: kernels around the GEMMs that only copy, turn or convert tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracelens.numbers import count, ms
from tracelens.results import OtherRow
from tracelens.rules.engine.candidate import Candidate
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rows import time_of
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence import copies
from tracelens.rules.evidence.copies import Cause

#: A bound, of which a part falls away: below this share of the step it is not worth a user's time.
_LEAST = 0.02


class LayoutCopies(Rule):
    """No kernel around the GEMMs that only moves data."""

    id = "TL113"
    slug = "layout-copies"
    title = "Copies and casts around GEMMs"
    of_kernels = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Sum the copies, transposes and casts between the GEMMs, by cause."""
        rest, inside = copies.need_copies(facts)
        passed = copies.text(facts, rest, inside)
        candidates: list[Candidate] = []
        for cause in _CAUSES:
            rows = [row for row in rest if cause.holds(row, facts)]
            rest = [row for row in rest if row not in rows]
            candidates += [_candidate(facts, cause, rows)] if rows else []
        return candidates, passed


def _candidate(facts: StepFacts, cause: Cause, rows: Sequence[OtherRow]) -> Candidate:
    rows = sorted(rows, key=lambda row: -row.time_ms_per_step)
    of_weights = cause.holds is copies.weight_cast
    narrow = copies.narrow_type(rows)
    cause = copies.as_run(cause) if of_weights and facts.only_runs else cause
    calls, time = copies.times(rows), ms(time_of(rows))
    many, per = f"{count(calls)} {cause.noun[calls != 1]}", facts.per_step
    return Candidate(
        name=cause.name,
        title=cause.title.format(many=many, time=f"{time} {per}"),
        components=sorted({row.component for row in rows}),
        saw=copies.saw(facts, rows),
        why=cause.why,
        change={"weights": ["fp32", narrow]} if of_weights else {},
        fix=[line.format(dtype=copies.TORCH[narrow]) for line in cause.fix],
        caveats=[cause.caveat],
        confidence=cause.confidence,
        effort="code",
        kernels={row.id: row.time_ms_per_step for row in rows},
        bound_of=f"the time of these kernels as measured, all of it: {time}",
        evidence={"copies": [copies.evidence(row) for row in rows[:20]]},
        parameter_delta=0,
        least=_LEAST,
    )


_ACTIVATIONS = Cause(
    "activations",
    "keeping activations in 16 bits",
    "Fuse or avoid {many} of activations: {time}",
    copies.activation_cast,
    ("+ model = torch.compile(model)   # fuses each cast into the kernel before or after it",),
    "A norm whose weights are 16 bits takes and gives 16 bits without autocast, and still sums in fp32.",
    confidence="low",
)
_CAUSES = (
    Cause(
        "weights",
        "keeping the weights in 16 bits",
        "Keep 16-bit weights: {many} of fp32 weights and gradients, {time}",
        copies.weight_cast,
        (
            '- with torch.autocast("cuda", dtype={dtype}): loss = model(x)   # fp32 weights',
            "+ model.to({dtype})   # with an optimizer that keeps fp32 master weights",
        ),
        "Weights in 16 bits without fp32 master weights lose small updates: the optimizer has to keep them"
        " (FSDP's MixedPrecisionPolicy, DeepSpeed and Megatron do). It then casts once per step.",
    ),
    Cause(
        "logits",
        "a loss that takes 16-bit logits",
        "Do not cast the logits to fp32: {many}, {time}",
        copies.logits_cast,
        (
            "- loss = F.cross_entropy(logits.float(), targets)",
            "+ loss = F.cross_entropy(logits, targets)   # compiled, or a fused linear cross entropy",
        ),
        "Softmax and its sum have to be computed in fp32: a compiled or fused loss does so inside its kernel,"
        " PyTorch's own in eager mode accumulates in fp32 and returns 16 bits.",
    ),
    Cause(
        "gradients of a split",
        "writing gradients side by side",
        "Write gradients of a split side by side: {many}, {time}",
        copies.split_gradient,
        (
            "- q, k, v = self.qkv(x).split(width, dim=-1)   # and attention on three tensors",
            "+ out = flash_attn_qkvpacked_func(self.qkv(x).view(b, s, 3, heads, head_dim), causal=True)",
        ),
        "torch.compile does not need the packed call: it writes the parts where they belong, unless the"
        " attention kernel returns them apart. Separate GEMMs for the parts have no such copy, and cost"
        " more elsewhere (TL112).",
        noun=("concatenation", "concatenations"),
    ),
    Cause(
        "repeated heads",
        "attention on the key and value heads as they are",
        "Do not repeat key and value heads: {many}, {time}",
        copies.repeated_heads,
        (
            "- k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)",
            "+ F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)",
        ),
        "The parameter enable_gqa needs PyTorch 2.5; flash_attn_func takes such heads as they are.",
        noun=("copy", "copies"),
    ),
    replace(
        _ACTIVATIONS,
        why="casts",
        name="keeping tensors in 16 bits",
        title="Fuse or avoid {many}: {time}",
        holds=copies.cast_of_anything,
        caveat="Without shapes it is not known which are of weights, of activations and of the logits.",
    ),
    _ACTIVATIONS,
    Cause(
        "layout",
        "handing tensors on as they lie",
        "Avoid {many} around the GEMMs: {time}",
        copies.layout_copy,
        ("- q = q.transpose(1, 2).contiguous()", "+ q = q.transpose(1, 2)   # a view"),
        "Some of these copies are needed: a reshape that no view can express, or a kernel that asks for"
        " contiguous memory. Take them away one at a time and look at the operator's new time.",
        confidence="low",
        noun=("layout copy", "layout copies"),
    ),
)
