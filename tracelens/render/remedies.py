"""What helps where shapes do not limit the step: the same words in the verdict and on the page's cards."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.results import Check, CommunicationRow

LAUNCH_LESS = 'CUDA graphs (torch.compile, mode="reduce-overhead")'
FIND_CPU = "find what holds the CPU up"
SHORTEN = "shorten {} or take it out of the step"
FIND_RANK = "find the rank that the others wait for"
#: What hides a collective behind compute, by what it serves. A framework's own setting stands where the
#: purpose itself is known from that framework.
_HIDES = {
    "data-parallel gradients": "Overlap gradient buckets with the backward, and send them only in the last"
    " micro-batch of a step.",
    "FSDP parameter gather": "Prefetch the next layer's weights (FSDP: forward_prefetch, backward_prefetch).",
    "FSDP gradient scatter": "Scatter a layer's gradients during the backward of the next layer (FSDP:"
    " backward_prefetch).",
    "optimizer shards": "Reduce each bucket during the backward, as soon as its gradients are ready; gather"
    " parameters during the next forward.",
    "tensor parallel": "Use fewer tensor-parallel ranks, or split GEMMs so that they overlap with it",
    "expert all-to-all": "Use fewer expert-parallel ranks, or a shared expert that computes meanwhile.",
    "pipeline": "Use more micro-batches per step, or an interleaved schedule.",
    "loss or metric": "Reduce it every few steps only.",
}
#: Megatron-LM's functions are what tensor parallelism is known by ("op"); the flag and what it needs:
#: megatron/training/arguments.py, which asserts sequence_parallel with tp_comm_overlap.
_MEGATRON = " (Megatron: --tp-comm-overlap with --sequence-parallel)."
#: What replaces kernels that only move bytes, by component.
_FUSES = {
    "moe.dispatch": "permute tokens in one fused kernel, not by sort, index and copies",
    "norm": "torch.compile or a fused norm",
    "attention.softmax": "fused attention (SDPA, FlashAttention)",
    "loss": "a fused loss (torch.compile)",
    "optimizer": "the optimizer with fused=True",
    "memory": "fewer copies and casts",
}
#: The check that looks whether they are fused.
_CHECKED = {"norm": "TL131", "attention.softmax": "TL117", "loss": "TL132", "optimizer": "TL129"}
_FUSED = "torch.compile, which fuses elementwise kernels"
_NAMED = 2


def hides(row: CommunicationRow) -> list[str]:
    """What hides the communication of a row, a sentence or none."""
    said = _HIDES.get(row.purpose)
    if row.purpose == "tensor parallel" and said:
        said += _MEGATRON if row.evidence == "op" else "."
    return [said] if said else []


def fusing(components: Sequence[str], checks: Sequence[Check] = ()) -> str:
    """What to replace byte-moving kernels of these components by, the largest first; "" for nothing.

    What a check has seen to be fused already is not named.

    >>> fusing(["norm", "loss", "dropout"])
    'torch.compile or a fused norm; a fused loss (torch.compile)'
    """
    passed = {check.rule for check in checks if check.state == "passed"}
    open_ = [name for name in components if _CHECKED.get(name) not in passed]
    return "; ".join(list(dict.fromkeys(_FUSES.get(name, _FUSED) for name in open_))[:_NAMED])
