"""What a file of ``tracelens bench`` says of how it was measured, and of what was not."""

from __future__ import annotations

METHOD = (
    "CUDA events around batches of calls that were queued while the GPU was held back, so host gaps are not"
    " in the times; L2 filled with other data before each batch and operands rotated over three times its"
    " size; standard normal data; the median over at least seven batches (three where a"
    " call takes over 20 ms) after a discarded one. Kernel"
    " names and grids from a separate profiler run. Part of each result is compared with float64."
)
CPU_METHOD = "the host's clock on a CPU: a test of the program, no measurement of any GPU"
NO_KERNEL_NAMES = "no kernel names: the profiler recorded no kernel"

# --- why clocks were not read -------------------------------------------------------------------------

CPU_MEASURED = "a CPU was measured"
GPU_NOT_TOLD = "this PyTorch does not tell which of the GPUs it uses"


def nvidia_smi_failed(error: Exception) -> str:
    """The program is missing, or refused."""
    return f"nvidia-smi: {type(error).__name__}"


def not_measured(count: int, why: str, case: str) -> str:
    """Cases that were refused for one reason, with one of them."""
    return f"{count} not measured: {why} ({case}{', ...' if count > 1 else ''})"
