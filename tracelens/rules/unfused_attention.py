"""TL117: attention in kernels of its own for scores, softmax and values, where one fused kernel would do."""

from __future__ import annotations

from tracelens.numbers import listed, ms, ms_range
from tracelens.rules.engine.candidate import Candidate, absent
from tracelens.rules.engine.facts import StepFacts
from tracelens.rules.engine.rule import Rule
from tracelens.rules.evidence.attention_chain import CORE, TRAINED_BIAS, masked_of, masks_of, of_megatron
from tracelens.rules.evidence.fused_attention import CAUSAL, NO_MASK, TENSOR
from tracelens.rules.evidence.fusing import Fusing, memory, need_fusing, operations

#: How a fused kernel is told what is added to the scores.
_ARGUMENT = {NO_MASK: "", CAUSAL: ", is_causal=True", TENSOR: ", attn_mask=mask"}
_HUGGINGFACE = '+ attn_implementation="sdpa"   # Hugging Face: in from_pretrained or in the config'
_MEGATRON = "+ --attention-backend flash   # Megatron-LM; --use-flash-attn in older versions"
_FIXES = {
    "native": [
        "- y, weights = attention(x, x, x)   # nn.MultiheadAttention",
        "+ y, _ = attention(x, x, x, need_weights=False)",
    ],
    "math": [
        "+ with torch.nn.attention.sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):   # or FLASH_ATTENTION",
        "      y = F.scaled_dot_product_attention(q, k, v)   # warns which condition a fused kernel misses",
    ],
}
_WEIGHTS = (
    "A fused kernel gives no attention weights: output_attentions=True (Hugging Face) or a return of them"
    " keeps attention unfused."
)
#: What to know by what calls attention.
_OF_CALL = {
    "code": [_WEIGHTS],
    "native": [
        (
            "nn.MultiheadAttention computes the weights because need_weights is True by default; a fused"
            " kernel has none to give. Where the weights are used, this cannot be changed."
        )
    ],
    "math": [
        _WEIGHTS,
        (
            "scaled_dot_product_attention is called already and took its unfused path: fused kernels switched"
            " off, a last dimension that is not contiguous, unequal head dimensions, or grouped queries"
            " (enable_gqa) with heads above 256, for which keys and values have to be repeated. It computes"
            " bf16 and fp16 in fp32; the prediction takes the type of the GEMMs."
        ),
    ],
}


class UnfusedAttention(Rule):
    """Attention in a fused kernel."""

    id = "TL117"
    slug = "unfused-attention"
    title = "Attention in one fused kernel"
    of_kernels = False

    def look(self, facts: StepFacts, /) -> tuple[list[Candidate], str]:
        """Judge attention whose scores and values are GEMMs of their own."""
        if not facts.gemms:
            raise absent("No GEMM and no attention kernel was recognised in the step.")
        return [_candidate(facts, found := need_fusing(facts))], found.saw


def _candidate(facts: StepFacts, found: Fusing) -> Candidate:
    chain = found.chain
    return Candidate(
        name="one fused attention kernel",
        title=(
            "Run attention in one fused kernel instead of scores, softmax and values:"
            f" {_now(found)} {facts.per_step} now"
        ),
        components=list(dict.fromkeys([*CORE, *(row.component for row in (*chain.beside, *chain.maybe))])),
        saw=found.saw,
        fix=_FIXES[chain.call] if chain.call in _FIXES else _of_code(found),
        caveats=_caveats(found),
        confidence="low" if found.saving is None else "medium",
        effort="code",
        gemms=chain.products,
        counts="kernels",
        bounds=found.bounds,
        kernels=found.kernels,
        saving=found.saving,
        bound_of="of what these kernels take what a fused one can save at most",
        how=found.how,
        evidence=found.evidence,
        effects={"memory": memory(facts, found.cores), "flops": operations(facts, chain)},
        parameter_delta=0,
    )


def _of_code(found: Fusing) -> list[str]:
    """The change of a model's own code, and the setting of the library whose softmax it is."""
    masks, argument = masks_of(found.chain), _ARGUMENT[[*found.fits][-1]]
    added = "" if NO_MASK in masks else " + mask"
    note = "   # is_causal=True where the mask is causal" if TENSOR in masks else ""
    return [
        f"- p = torch.softmax(q @ k.transpose(-2, -1) * scale{added}, dim=-1)",
        "- y = F.dropout(p, p=dropout) @ v",
        f"+ y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scale{argument}){note}",
        _MEGATRON if of_megatron(found.chain) else _HUGGINGFACE,
    ]


def _now(found: Fusing) -> str:
    """What the kernels take: with those that perhaps go, where the saving's high end counts them."""
    sure, high = found.chain.sure_ms, found.saving.high if found.saving is not None else None
    return ms(sure) if high is None or high <= sure else ms_range(sure, sum(found.chain.times.values()))


def _caveats(found: Fusing) -> list[str]:
    chain, cores, caveats = found.chain, found.cores, []
    strange = [name for name in found.unusual if name != TRAINED_BIAS]
    if TRAINED_BIAS in found.unusual:
        caveats.append(
            "The bias on the scores is trained: the memory-efficient kernel takes it as a full attn_mask and"
            " writes its gradient, as large as the scores; what that takes is not predicted."
        )
    if strange:
        caveats.append(
            "Between scores and values stands what scaled_dot_product_attention does not do"
            f" ({listed(strange)}): flex_attention can (score_mod); what it takes is not predicted."
        )
    caveats.append(
        "The same function but for rounding: sums run in another order. Compare results over a short run."
    )
    if TENSOR in masks_of(chain):
        both = " The range spans both, the middle is the slower." if found.saving is not None else ""
        masked = masked_of(chain, cores)
        where = "them" if len(masked) == len(cores) else f"those of {listed([core.text for core in masked])}"
        caveats.append(
            f"Something is added to the scores or masked in {where}. A causal mask becomes is_causal=True."
            " Any other (padding, ALiBi, relative positions) is passed as attn_mask: the memory-efficient"
            f" kernel takes it, FlashAttention does not; or flex_attention.{both}"
        )
    caveats += _OF_CALL[chain.call]
    if chain.call != "math" and any(core.dtype == "fp32" for core in cores):
        caveats.append(
            "In fp32 only the memory-efficient kernel takes it, in three tf32 GEMMs for one; q, k and v in"
            " bf16 or fp16 take FlashAttention and half the bytes."
        )
    if any(core.value_dim != core.head_dim for core in cores):
        caveats.append("Values have another head dimension than keys: FlashAttention needs v padded.")
    if {"copy", "transpose", "cast"} & {row.kind for row in (*chain.between, *chain.beside, *chain.maybe)}:
        caveats.append(
            "Copies and casts among these kernels that TL113 (layout-copies) names too are counted once."
        )
    return caveats
