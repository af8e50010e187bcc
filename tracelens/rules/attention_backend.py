"""TL125: fused attention in the memory-efficient kernel, where a faster one takes the same sizes."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import listed
from tracelens.rules.engine.bounds import bound_of_row
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.attention_kernels import Kept, efficient_rows, kept_of, saving_of

_MASKED = [
    "- y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
    "+ y = F.scaled_dot_product_attention(q, k, v, is_causal=True)   # where the mask is causal",
    "+ y = flash_attn_varlen_func(q, k, v, offsets, offsets, longest, longest)   # where it masks padding",
]
_FREE = [
    "- with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):   # or torch.backends.cuda.enable_flash_sdp(False)",
    "+ y = F.scaled_dot_product_attention(q, k, v, is_causal=True)   # takes the first kernel that fits",
]


class AttentionBackend(Rule):
    """Attention in the fastest fused kernel that takes its sizes."""

    id = "TL125"
    slug = "attention-backend"
    title = "Attention in the fastest fused kernel"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge attention of 16 bits in torch's memory-efficient kernel."""
        if not any(row.kind == "attention" for row in facts.gemms):
            raise absent("No fused attention was recognised.", attention=True)
        rows = efficient_rows(facts)
        if any(row.attention is None or row.attention.heads_of_all is None for row in rows):
            raise could_not_run(
                f"{took(rows, 'attention row', facts)} in the memory-efficient kernel; whether with a mask"
                f" is not known: {for_shapes(rows)}."
            )
        if not rows:
            raise passed("No attention in 16 bits runs in the memory-efficient kernel.")
        found = kept_of(facts, rows)
        candidates = [one for kept in found if kept.can_change for one in _candidates(facts, kept)]
        said = [_kept_words(facts, kept) for kept in found if not kept.can_change]
        return candidates, " ".join(said)


def _kept_words(facts: StepFacts, kept: Kept) -> str:
    """What keeps faster kernels out, as a sentence."""
    why = kept.why or {
        "bias": "another tensor is added to the scores of each head, which flex_attention does in one kernel",
        "mask?": "whether the tensor added to the scores is one for all heads is not recorded (strides)",
    }.get(kept.mask or "", "")
    return f"{took(kept.rows, 'attention row', facts)} in the memory-efficient kernel: {why}."


def _candidates(facts: StepFacts, kept: Kept) -> Sequence[Candidate]:
    predicted = saving_of(facts, kept)
    if isinstance(predicted, str):
        return []
    saving, lines = predicted
    masked = kept.mask is not None
    because = "a mask tensor keeps FlashAttention out" if masked else "nothing in its sizes keeps it out"
    sizes = listed(list(dict.fromkeys(row.shape_note or "" for row in kept.rows)))
    caveats = [
        "What the mask masks is in no trace: one that is neither causal nor padding needs flex_attention.",
        "Grouped queries (enable_gqa) with a mask run unfused.",
    ]
    forced = ["A kernel that is forced, or a PyTorch without FlashAttention, does this; neither is recorded."]
    return [
        Candidate(
            name="FlashAttention for these calls",
            title=f"Let attention take FlashAttention: {because}",
            saw=f"{took(kept.rows, 'attention row', facts)} in the memory-efficient kernel ({sizes}).",
            why="mask" if masked else "",
            change={},
            fix=_MASKED if masked else _FREE,
            caveats=caveats if masked else forced,
            confidence="low" if masked else "medium",
            effort="code",
            bounds=[bound_of_row(row, gpu=facts.gpu, useful_frac=0.5) for row in kept.rows],
            bound_of="the time of these calls above half of their operations, as a causal mask leaves",
            saving=saving,
            how=" ".join(lines),
            evidence={"mask": kept.mask, "sizes": sizes},
            parameter_delta=0,
        )
    ]
