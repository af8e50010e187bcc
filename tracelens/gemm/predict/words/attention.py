"""What the prediction of attention says: why this kernel, what each line of its derivation is."""

from __future__ import annotations

from collections.abc import Iterable

peak_unknown = "the peak of {} for {} is not known".format


# --- which kernel -------------------------------------------------------------------------------------

ASKED_FOR = "asked for"
CUDNN_FIRST_IN_RECENT_TORCH = (
    "cuDNN is torch's first choice on Hopper and data-centre Blackwell from torch 2.11 on"
)
CUDNN_FIRST_FROM_2_11 = "cuDNN is torch's first choice on Hopper and data-centre Blackwell from 2.11 on"
CUDNN_FIRST_IN_2_9 = "cuDNN was torch's first choice on Hopper and data-centre Blackwell in 2.9"
CUDNN_FIRST_IN_2_5 = "cuDNN was torch's first choice on Hopper in 2.5.0"
FLASH_FIRST = "flash is torch's first choice for fp16 and bf16 from compute capability 8.0 on"
flash_after_cudnn = "cuDNN takes head dimensions up to {} in steps of 8; flash is next".format
none_fused = "no fused kernel of torch takes {} with a head dimension of {}".format
computed_in_fp32 = "{}; it computes {} in fp32".format
faster_by_library = "{}, which torch does not pick by itself, takes {:.4g} us".format


def efficient_after_flash(
    *, dtype: str | None, unequal: bool, narrow_values: bool, widest: int | None
) -> str:
    """What flash does not take: a ``dtype``, unequal lengths, heads above ``widest``; else something else."""
    lack = f"flash does not take {dtype or 'this'}"
    if unequal:
        lack = "flash does not take is_causal with unequal lengths"
    elif narrow_values:
        lack = "flash takes no values that are narrower than the keys"
    elif widest is not None:
        lack = f"flash takes head dimensions up to {widest}"
    return f"{lack}; memory-efficient is next"


# --- where figures are from ---------------------------------------------------------------------------

SAME_KERNEL = "the same kernel and mask"
OTHER_MASK = "the same kernel with another mask"
OTHER_HEAD_DIM = "other head dimensions of the same backend"
NOTHING_LIKE_IT_MEASURED = "no measurements of this kind of call: the model stands"
WAVES_LEFT_OUT = "the number of SMs is not known: waves are left out"
SCORES_CROSS_MEMORY = "the scores cross memory, and nothing that is masked is skipped"
measured = "measured: {}, {} held out for the range".format
of_another_kernel = "{}; taken over: no figures of this kernel on this GPU generation".format
of_another_head_dim = "{}; of head dimension {}, no figure of {}".format
without_window = "{}; without a window, no figure with one".format


# --- the lines of a derivation ------------------------------------------------------------------------

BUSIEST_SM = "the busiest SM"
TENSORS_ONCE = "every tensor once, at the bandwidth a copy reaches"
NO_KERNEL_SHORTER = "no kernel is shorter"
LAUNCH_WORK_HELPERS = "launch, the slower of compute and memory, helpers"
EXPONENTIAL = "what the tensor cores do while the special function units do one"
BLOCK_ON_ONE_SM = "one block of scores on one SM"
BLOCK_ON_ALL_SMS = "one block of scores; SMs unknown, so on all of them"
LONGEST_TILE = "the longest tile: its blocks, and prologue and epilogue in the time of blocks"
NO_WAVES = "all tiles; SMs unknown, so no waves"
LONGEST_FIRST = "tiles of unequal length, longest first"
WITH_A_TAIL = "tiles of unequal length and a tail"
SPLITS_COMBINED = "fp32 partial outputs written and read to combine the splits"
ONE_KERNEL = "the forward is one kernel"
NO_KERNEL_FASTER = "useful operations at the peak, or each tensor once at the bandwidth: no kernel is faster"
MIDDLE = "the middle of the range"
ONE_AFTER_THE_OTHER = "one after the other"
NARROW_VALUES = "narrower values: from the time with values as wide as the keys"
padded_head_dim = "{} as the kernel computes it ({})".format
score = "GEMMs at {:.3g} of the peak, then the exponential ({})".format
alone = "one tile on an SM, alone at {} of the speed that {} reach together".format
waves = "waves: {:.3g} tiles for each of {} SMs, rounded up".format
heads_padded = "q, k and v copied to a head dimension of {}: flash takes multiples of 8".format
narrow_values = "with values of {}: what of the operations left out is time".format


def tile_takes(block: int, *, backward: bool, splits: int) -> str:
    """What one thread block does."""
    keys = f"; the keys are split in {splits} to fill the SMs" if splits > 1 else ""
    return f"each takes {block} {'keys' if backward else 'queries'} of one head{keys}"


def backward_helpers(*, shared_heads: bool) -> str:
    """The small kernels around a backward."""
    shared = "; gradients of k and v summed over the heads that share them" if shared_heads else ""
    return f"out * grad_out summed; the fp32 gradient of q cleared, read and converted{shared}"


def softmax_passes(passes: int, *, backward: bool, masked: bool) -> str:
    """What is done to the scores in memory."""
    what = "softmax's gradient" if backward else "mask and softmax" if masked else "softmax"
    return f"{what}: the scores cross memory {passes} times"


def corrected(shapes: Iterable[str]) -> str:
    """The measured calls that correct the model."""
    return f"measured over modelled time of {'; '.join(shapes)}, by likeness"
