"""TL125: fused attention in the memory-efficient kernel where a faster one fits, or in untuned blocks."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.numbers import listed, ms, sig
from tracelens.rules.engine.bounds import Bound, bound_of_row
from tracelens.rules.engine.candidate import Candidate, absent, could_not_run, passed
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.needs import for_shapes
from tracelens.rules.engine.rows import calls_of, time_of, took
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.attention_kernels import Kept, efficient_rows, kept_of, saving_of

_MASKED = [
    "- y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)",
    "+ y = F.scaled_dot_product_attention(q, k, v, is_causal=True)   # where the mask is causal",
    "+ y = flash_attn_varlen_func(q, k, v, offsets, offsets, longest, longest)   # where it masks padding",
]
_FREE = [
    "- with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):   # or torch.backends.cuda.enable_flash_sdp(False)",
    "+ y = F.scaled_dot_product_attention(q, k, v)   # takes the first kernel that fits",
]


_BLOCKS = [
    "+ flex_attention = torch.compile(flex_attention, mode='max-autotune-no-cudagraphs')   # prints the best",
    "+ y = flex_attention(q, k, v, block_mask=mask, kernel_options={'bwd_BLOCK_M1': 32, 'bwd_BLOCK_N1': 64,",
    "+                                                              'bwd_BLOCK_M2': 64, 'bwd_BLOCK_N2': 32})",
]
#: Products of the backward over the forward's, 5 to 2.
_PRODUCTS = 2.5
#: A backward this much longer than its forward has blocks to tune: on a B300 3.82 with Inductor's, 2.62 with
#: tuned ones (allenai/OLMo-core#877: -24.8 % of both).
_SLOW = 3.0


class AttentionBackend(Rule):
    """Attention in the fastest fused kernel that takes its sizes."""

    id = "TL125"
    slug = "attention-backend"
    title = "Attention in the fastest fused kernel"

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge attention of 16 bits in torch's memory-efficient kernel, and FlexAttention's backward."""
        if not any(row.kind == "attention" for row in facts.gemms):
            raise absent("No fused attention was recognised.", attention=True)
        rows = efficient_rows(facts)
        if any(row.attention is None or row.attention.heads_of_all is None for row in rows):
            raise could_not_run(
                f"{took(rows, facts, 'attention row')} in the memory-efficient kernel; whether with a mask"
                f" is not known: {for_shapes(rows)}."
            )
        flex = _flex(facts)
        if not rows and flex is not None:
            return [flex], ""
        if not rows:
            raise passed("No attention in 16 bits runs in the memory-efficient kernel.")
        found = kept_of(facts, rows)
        candidates = [one for kept in found if kept.can_change for one in _candidates(facts, kept)]
        said = [_kept_words(facts, kept) for kept in found if not kept.can_change]
        return [*candidates, *([flex] if flex is not None else [])], " ".join(said)


def _flex(facts: StepFacts) -> Candidate | None:
    """FlexAttention whose backward takes longer than its share of products: both skip the same blocks."""
    rows = [row for row in facts.gemms if row.kind == "attention" and row.kernel_family == "flex"]
    back = [row for row in rows if row.phase == "backward"]
    ahead = [row for row in rows if row.phase == "forward"]
    if not back or not ahead or abs(calls_of(back) / calls_of(ahead) - 1) > 0.01:
        return None
    forward, backward = time_of(ahead), time_of(back)
    share = 1 - _PRODUCTS * forward / backward if backward else 0.0
    if backward < _SLOW * forward:
        return None
    return Candidate(
        name="other block sizes",
        title=f"Tune FlexAttention's blocks: its backward takes {sig(backward / forward)} times its forward",
        saw=(
            f"{took(back, facts, 'FlexAttention row')} in the backward, and the forward {ms(forward)}:"
            f" {sig(backward / forward)} times as long for {_PRODUCTS} times the GEMMs."
        ),
        why="blocks",
        fix=_BLOCKS,
        caveats=["Block sizes have to divide the mask's; the best ones are those of one mask and GPU."],
        confidence="low",
        effort="code",
        bounds=[Bound(row, share * row.time_ms_per_step) for row in back],
        bound_of=f"of the backward what it takes above {_PRODUCTS} times the forward",
        evidence={"backward_over_forward": backward / forward},
        parameter_delta=0,
    )


def _kept_words(facts: StepFacts, kept: Kept) -> str:
    """What keeps faster kernels out, as a sentence."""
    why = kept.why or {
        "bias": "another tensor is added to the scores of each head, which flex_attention does in one kernel",
        "mask?": "whether the tensor added to the scores is one for all heads is not recorded (strides)",
    }.get(kept.mask or "", "")
    return f"{took(kept.rows, facts, 'attention row')} in the memory-efficient kernel: {why}."


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
            saw=f"{took(kept.rows, facts, 'attention row')} in the memory-efficient kernel ({sizes}).",
            why="mask" if masked else "",
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
