"""What times, rates and losses rest on, or why they are not known."""

from __future__ import annotations

from tracelens.numbers import plural, sig

WHOLE_TRACE = "whole trace taken as one step: no ProfilerStep range"
NO_TRAINING_STEP = "no ProfilerStep range: the whole trace is no training step"
NO_LAYER = "no kernel is tied to one: module names (with_stack=True) or a transformer's order tell them"

NO_STEP_MARKED = (
    "no whole step is marked in the trace (ProfilerStep ranges): what 1000 steps cost is not known"
)
CUT = "of the step only a part is in the trace"
NO_STEP_TIME = "no step time is known"
WORLD_SIZE = "the world size in the trace, one GPU a rank"
ONE_GPU = "how many GPUs the job has is not in the trace, so one is counted"

NO_GEMM = "no GEMM or attention was recognised in the steps"
GEMMS_ONLY = "only GEMM and attention FLOPs are counted"
TOO_FAST = "more counted than the GPU can do in their time"
PACKED = "packed attention"
NO_SIZE = "a size is not known"
NO_SHAPES = "no shapes recorded (record_shapes=True)"
NO_SIZES_AROUND = "the operators around its kernels do not show a GEMM's sizes"
IN_GRAPH = "a CUDA graph hides its operators"
NO_OPERATOR = "its kernels have no operator in the file"

CAUSAL_IN_FULL = "causal attention is counted in full; its kernel leaves out masked scores"
BUFFER_IN_FULL = "all rows of the buffer are counted, filled or not"
SYMMETRIC = "symmetric: one triangle is computed"

FASTER = "faster than the ceiling"
NOT_KNOWN = "not known"
ATTENTION_NOT_SPLIT = "fused attention is no single GEMM: its time is not split"
NO_MNK = "M, N and K are not known"
NO_MATH_DTYPE = "the element type is not known"
NO_TF32_SAID = "the kernel's name does not say whether its fp32 operands ran on tensor cores"
NO_OPERAND_TYPE = "the type of an operand or of the output is not known"
NO_BANDWIDTH = "the memory bandwidth of this GPU is not known"
NO_ALIGNMENT = "the element type or the leading dimensions are not known"
ALIGNED = "all of them are 128-byte aligned"
UNEQUAL_GROUPS = "groups of unequal sizes: the tiles they fill are not known"
NO_TILE = "the kernel's name does not say its tile"
NO_SMS = "the number of SMs is not known"
NO_CLUSTER = "the kernel's name does not say how many CTAs form a cluster"

_NO_AMD_PEAKS = "no peaks of AMD GPUs are known here"
useless_reference = (
    "the reference {} matches nothing here: another model, GPU or software; it lent nothing"
).format
not_told_apart = "{:.0%} of GPU time could not be told apart".format
groups = "{} groups, {} is their total".format
no_throughput = "throughput at {} bytes: {}".format
clusters = "clusters of {} occupy {} to {} of {} SMs, which decides the number of waves".format


def marked_steps(by: str) -> str:
    """Which ranges the steps are; ``by``: the first, where it is not PyTorch's own."""
    if by.startswith("Optimizer.step#"):
        return f"from the end of one {by} to the end of the next, on the GPU's clock"
    return f"{f'ranges such as {by}' if by else 'ProfilerStep ranges'}, on the GPU's clock"


def joined(*said: str | None) -> str:
    """Reasons behind one another, of those that there are."""
    return "; ".join(filter(None, said))


def no_mfu_peak(vendor: str, gpu: str, dtype: str | None) -> str:
    """Why a step has no MFU; ``gpu`` is a key of the GPU table."""
    if vendor == "amd":
        return _NO_AMD_PEAKS
    if gpu == "unknown":
        return "no peak for this GPU: name it with --gpu"
    return f"no dense {dtype} peak in the GPU table" if dtype else "the type of most of it is not known"


def no_peak(vendor: str, gpu: str, title: str, dtype: str) -> str:
    """Why a GEMM's time is not split; ``gpu`` is a key of the GPU table."""
    if vendor == "amd":
        return _NO_AMD_PEAKS
    if gpu == "unknown":
        return "the peaks of this GPU are not known: name it with --gpu"
    return f"the GPU table has no dense {dtype} peak for {title}"


flops_unknown = "FLOPs unknown for {:.0%} of GEMM time: {}".format


def above_peak(tflops: float | None, peak: float | None, *, attention: bool) -> str:
    """Of a rate that the GPU cannot have."""
    what = "scores were" if attention else "rows of a buffer were"
    return (
        f"counted in full it would be {sig(tflops)} TFLOP/s, above the dense peak of {sig(peak)}:"
        f" not all {what} computed, or the GEMM is sparse"
    )


def no_sizes(op: str | None, *, shows_sizes: bool) -> str:
    """Why a GEMM's sizes are not known, by the operator of the call or around it."""
    if op is None:
        return "the operator is not known"
    if shows_sizes:
        return "the operator's shapes are not in the trace (record_shapes=True records them)"
    return f"{op} shows no GEMM sizes"


def compiled_in(sizes: tuple[int | None, int | None, int | None]) -> str:
    """M, N and K as far as a kernel was compiled for them.

    >>> compiled_in((None, 7168, 2048))
    "? × 7168 × 2048 by the kernel's name"
    """
    return " × ".join("?" if size is None else str(size) for size in sizes) + " by the kernel's name"


def padded_from(sizes: dict[str, int]) -> str:
    """Of a GEMM that ran larger than the model asked for."""
    return "padded from " + ", ".join(f"{name.upper()} {size}" for name, size in sizes.items())


def ran_beside(disturbed: int, calls: int, *, grouped: bool) -> str:
    """Of calls that nothing compares with that ran alone."""
    ran = f"{disturbed} of {plural(calls, 'call')} ran beside kernels of other streams"
    if grouped:
        return f"{ran}, and no two calls need have groups of the same sizes to tell what it takes alone"
    return f"{ran} and too few beside nothing to tell what it takes alone"


def alignment_rests_on(source: str, basis: str, low: float | None, high: float | None) -> str:
    """Of the throughput at an alignment, with the range it was measured in."""
    range_ = f", {low:g} to {high:g}" if low is not None and high is not None else ""
    return f"{source} ({basis}{range_})"


def at_least(basis: str | None, why: str | None) -> str:
    """Of a loss by alignment that is a bound."""
    return joined(f"at least: {basis}", why)


def slices_not_known(*, split: bool) -> str:
    """Of a kernel that splits K, or can."""
    if split:
        return "K is split into a number of slices that neither name nor grid tells"
    return "K can be split into slices, whose number neither name nor grid tells"
