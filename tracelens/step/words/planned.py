"""What the prediction of a step that nobody has run says: of its kernels, and of what it leaves out."""

from __future__ import annotations

#: What the sum of kernels leaves out.
NOT_IN_KERNELS = (
    "gaps between kernels and waiting for the CPU",
    "communication between GPUs",
    "the optimizer and gradient clipping",
    "activation recompute, dropout, biases and the cost of data loading",
)
NOT_IN_STEP = "data loading, checkpoints written to disk and evaluation are not in it"
PIPELINE = "the schedule of pipeline stages is 1F1B, the last stage has the logits"
ONE_MICRO_BATCH = "one micro-batch a step is assumed, so stages wait for one another: --micro-batches N"
CONTEXT_UNFITTED = "attention of over two context-parallel ranks takes 1.3 times as long: few published steps"
TENSOR_UNFITTED = "no step of tensor-parallel GPUs in plain PyTorch was there to fit"
PIPELINE_UNFITTED = f"no step of pipeline stages was there to fit; {PIPELINE}"
AS_PUBLISHED = "runs as published steps of MPT did: FSDP in plain PyTorch 2.0 and 2.1 with Triton attention"
AS_MEGATRON = (
    "runs as NVIDIA's published steps of Megatron-Core with Transformer Engine did: today's attention, casts"
    " within other kernels, exchanges beside kernels; later containers are at the fast end, other trainers'"
    " steps towards the slow end"
)
MEGATRON_AS_PLAIN = "Megatron-LM's published steps of 2021 and 2022 on A100 ran as plain PyTorch does"
STACK_ASSUMED = "plain PyTorch is assumed: --stack compiled is torch.compile or fused kernels"
MEGATRON_TOO = ", megatron is Megatron-Core with Transformer Engine"
#: tests/advice/published_steps.csv: those under torch.compile or with fused kernels.
AS_COMPILED = (
    "runs as published steps under torch.compile or with kernels fused by hand did: half of 84 within 9 % of"
    " the middle; boards short of power and the XLA of 2023 were slower"
)
FAST_END_HIDES = "the fast end hides exchanges behind kernels"
EXPERTS_UNFITTED = (
    "no step of a mixture of experts was there to fit: theirs is the time of tuned grouped GEMMs"
)
PATCHES_UNFITTED = "no step of a vision transformer was there to fit"
BOTH_UNFITTED = (
    "encoder-decoders are judged by 17 published steps on A100, 7 % off at the median, T5 with scores in"
    " memory 42 %; tokens are those of both stacks"
)
LATENT_UNFITTED = "no step with latent attention was there to fit"
NO_EXPERT_PARALLELISM = "expert parallelism is not in it, each GPU has all experts: --expert-parallel N"
EVEN_CHOICE = "experts are taken to be chosen evenly: else all wait for the GPU of the fullest ones"
ALL_TO_ALL = "their all-to-all is NCCL's, a copy of a token for each expert; the range holds DeepEP's"
PCIE = "exchanges over PCIe are those of one machine; the fast end has the rate of two of its GPUs"
FULL_RECOMPUTE = "full recompute"
SEQUENCE_PARALLEL = "sequence parallelism"
MORE_BYTES = "more bytes"


def fast_end(gpus: int) -> str:
    """What the fast end of the range is of; one GPU exchanges nothing."""
    return "the fast end has today's attention" + (" and hides exchanges" if gpus > 1 else "")


def low_precision_unfitted(dtype: str) -> str:
    """A type of which no step was there to fit."""
    return (
        f"no step in {dtype} was there to fit: linear layers with casts of their operands, logits and"
        f" attention in 16 bits; MFU is of the {dtype} peak"
    )


def gpus_assumed(gpus: int | None) -> str:
    """Nobody said how many GPUs there are."""
    return f"{'one GPU is' if gpus == 1 else f'{gpus} GPUs are'} assumed: --gpus N"


def gpu_unfitted(gpu: str) -> str:
    """A GPU of which no step was there to fit."""
    return f"no step on the {gpu} was there to fit: it is taken to run as its generation does"


def blackwell_unfitted(gpu: str) -> str:
    """The same of one on which the attention kernels of the fitted steps do not run."""
    return (
        f"no step on the {gpu} was there to fit: it is taken to run as an H100 does, with today's attention"
        " kernels"
    )


def strategy_unfitted(strategy: str) -> str:
    """A way to share the weights of which no step was there to fit."""
    return f"no step with {strategy} was there to fit: its exchanges are physics alone"


def no_time(what: str, gpu: str) -> str:
    """Kernels that cannot be predicted."""
    return f"{what} on {gpu} cannot be predicted"


def no_experts_time(why: str | None, gpu: str) -> str:
    """Experts that cannot be predicted."""
    return f"experts: {why or f'no time is known on {gpu}'}"


def gemm_tiles(tiles: int | None, tile: tuple[int, ...], waves: object) -> str:
    """How a GEMM covers its output."""
    return f"{tiles} tiles of {tile[0]}x{tile[1]} in {waves} waves"


def expert_tiles(name: str, waves: object, tile: tuple[int, ...]) -> str:
    """How a GEMM of experts covers its outputs."""
    return f"{name} in {waves} waves of {tile[0]}x{tile[1]}"


def padded_head(head_dim: int, runs_as: int) -> str:
    """A head dimension that no kernel has."""
    return f"a head of {head_dim} runs as {runs_as}"


def times_the(ratio: float, what: str, because: str = "") -> str:
    """How much more of something a kernel has."""
    return f"{ratio:.4g} times the {what}" + (f": {because}" if because else "")


def times_the_bytes(ratio: float, what: str) -> str:
    """The same of kernels that only move bytes; ``what`` they go with."""
    return f"{times_the(ratio, 'bytes')} ({what})"


def another_rate(now: float, then: float) -> str:
    """Operations at another rate."""
    return f"at {then:,.0f} instead of {now:,.0f} TFLOP/s"


def other_tiles(now: str, then: str) -> str:
    """Tiles before and after."""
    return f"{now}, then {then}"


def another_kernel(now: str, then: str) -> str:
    """Attention in another library."""
    return f"{then} instead of {now}"


def better_aligned(now: int, then: int) -> str:
    """Rows that begin on more bytes."""
    return f"rows begin on {then} bytes instead of {now}"


def worse_aligned(now: int, then: int) -> str:
    """Rows that begin on fewer bytes."""
    return f"rows begin on {then} bytes, no longer on {now}"


def micro_batch_of(size: int) -> str:
    """A way to need less memory."""
    return f"a micro-batch of {size}"


def shared_over(gpus: int, stages: int, *, recompute: bool) -> str:
    """A way to need less memory: GPUs that share layers, and pipeline stages."""
    if stages == 1:
        return f"tensor parallelism over {gpus} GPUs"
    tensor = f"tensor and sequence parallelism over {gpus} GPUs with " if gpus > 1 else ""
    return f"{tensor}{stages} pipeline stages" + (f" and {FULL_RECOMPUTE}" if recompute else "")


def fsdp_over(gpus: int, *, experts: int, recompute: bool) -> str:
    """A way to need less memory; ``experts``: GPUs that share them."""
    shared = f" and expert parallelism over {experts}" if experts > 1 else ""
    return f"FSDP over {gpus} GPUs{shared}" + (f" with {FULL_RECOMPUTE}" if recompute else "")
