"""How real steps run against the kernels predicted for them: a few constants per generation of GPUs.

Fitted by ``python -m benchmarks.steps`` to published throughputs of MPT (mosaicml/llm-foundry,
scripts/train/benchmarking, Apache-2.0): PyTorch 2.0 and 2.1, FSDP, bf16, no torch.compile, Triton
attention with ALiBi, on A100 40 and 80 GB and on H100 SXM. Models go to the fit or to judging as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracelens.hardware import Gpu
from tracelens.results.suggestions import Stack


@dataclass(frozen=True, slots=True)
class Pace:
    """Time of a part in a step over what is predicted for it alone."""

    products: float
    attention: float  # over the kernel that a recent PyTorch picks
    moved: float  # over reading and writing each tensor once: plain PyTorch has several kernels for each
    exchange: float  # of FSDP's collectives, over NCCL alone; hidden where it is below one
    error: float  # log: 9 in 10 of the steps left out are within it
    fast_error: float | None = None  # the same at the fast end, where that is another
    least_moved: float | None = None  # of ``moved`` at the fast end, where that is another
    casts: float = 1.0  # to types below 16 bits, over kernels of their own
    tensor: float = 1.0  # of tensor-parallel exchanges, over NCCL alone
    gradients: float = 0.5  # of DDP's and ZeRO's exchanges, what the backward does not hide
    overlaps: bool = False  # FSDP's exchanges are hidden as those are
    fused: bool = False  # one kernel where plain PyTorch has several, misaligned GEMMs padded


#: Constants by benchmarks/steps.py. Nine in ten of 58 steps of others on A100 ran within 0.17.
_AMPERE = Pace(products=1.0, attention=1.91, moved=3.59, exchange=0.93, error=0.17)
#: Five steps of others in plain PyTorch on H100 (torchtitan, fms-fsdp) ran within 0.17 of it, all slower.
_HOPPER = Pace(products=1.0, attention=3.53, moved=3.61, exchange=1.08, error=0.17)
FITTED = {"a100-sxm-40gb": _AMPERE, "a100-sxm-80gb": _AMPERE, "h100-sxm": _HOPPER}
#: Of GPUs without a step to fit: the pace of their generation is assumed.
_UNFITTED_ERROR = 0.32
#: On Blackwell the attention kernel of those steps does not run: it has the one that a recent PyTorch picks.
#: GEMMs are as slow as in compiled steps: a full GPU has that clock whatever runs between them.
_BLACKWELL = Pace(1.11, 1.0, _HOPPER.moved, _HOPPER.exchange, _UNFITTED_ERROR)
#: Megatron-Core with Transformer Engine, by benchmarks/megatron_steps.py: today's attention, casts within
#: other kernels, exchanges beside GEMMs, which take longer so. The A100's published steps run as plain ones.
#: Of sixteen steps of others (tests/advice/published_steps.csv) nine in ten ran within the slow end.
_MEGATRON = Pace(
    1.14, 1.0, _HOPPER.moved, 1.0, 0.35, fast_error=0.12, casts=0.31, tensor=0.20, gradients=0.17,
    overlaps=True,
)  # fmt: skip
_MEGATRON_BLACKWELL = replace(_MEGATRON, fast_error=0.2, casts=0.38, tensor=0.38, gradients=0.17)
FITTED_MEGATRON = {"h100-sxm": _MEGATRON} | dict.fromkeys(("b200", "gb200", "gb300"), _MEGATRON_BLACKWELL)
#: torch.compile, XLA, kernels fused by hand: of tests/advice/published_steps.csv all but those set aside.
_COMPILED = Pace(1.0, 2.2, 1.2, 1.0, error=0.3, fast_error=0.12, least_moved=1.0, fused=True)
#: The same on Hopper and after it: GEMMs as slow as Megatron's, at the clock that a full GPU's power leaves,
#: and gradients that FSDP2 scatters in fp32.
_COMPILED_HOPPER = replace(_COMPILED, products=1.11, exchange=1.2)
#: How much longer GEMMs and attention take at a lower limit of power: torchtitan's eager and compiled steps
#: at 500 of 700 W, over other trainers' (tests/advice/published_steps.csv).
_LESS_POWER = {"h100-sxm-96gb": 1.2}
#: Memory-bound kernels of encoder-decoders over those of MPT's steps, which have no dropout and no biases:
#: what published steps on A100 come to (tests/advice/encoder_decoder_steps.csv).
BOTH_MOVED = 2.0
#: Attention of four context-parallel ranks and more over one call: torchtitan's and NeMo's; of two none.
RING = 1.3
#: A doubling of the nodes makes a step longer by so much, as all wait for the slowest (same fit).
NODES_FRAC = 0.012


def pace_of(gpu: Gpu, *, unlike: bool = False, stack: Stack = "plain") -> Pace:
    """The pace of its generation. ``unlike``: of another kind of step than those that were fitted."""
    found, longer = _of_generation(gpu, unlike, stack), _LESS_POWER.get(gpu.name, 1.0)
    return replace(found, products=longer * found.products, attention=longer * found.attention)


def _of_generation(gpu: Gpu, unlike: bool, stack: Stack) -> Pace:
    if stack == "megatron" and has_megatron(gpu):
        megatron = _MEGATRON_BLACKWELL if is_blackwell(gpu) else _MEGATRON
        known = gpu.name in FITTED_MEGATRON and not unlike
        return megatron if known else replace(megatron, fast_error=_UNFITTED_ERROR)
    if stack == "compiled":
        return _COMPILED_HOPPER if (gpu.compute_capability or (0,))[0] in (9, 10) else _COMPILED
    found = FITTED.get(gpu.name)
    if found is not None and not unlike:
        return found
    if is_blackwell(gpu):
        return _BLACKWELL
    near = _HOPPER if (gpu.compute_capability or (0, 0)) >= (9, 0) else _AMPERE
    return replace(near, error=_UNFITTED_ERROR)


def has_megatron(gpu: Gpu) -> bool:
    """Hopper and later: of those steps of Megatron-Core with Transformer Engine were published."""
    return (gpu.compute_capability or (0, 0)) >= (9, 0)


def is_blackwell(gpu: Gpu) -> bool:
    """Compute capability 10.0 or later."""
    return (gpu.compute_capability or (0, 0)) >= (10, 0)
