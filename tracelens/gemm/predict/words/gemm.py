"""What the prediction of a GEMM says: why its time is not known, what each line of its derivation is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TYPES_TO_USE = "use bf16, fp16, fp8, fp8-block, nvfp4, tf32 (fp32 data on tensor cores), fp32, fp64 or int8"

# --- what is not known --------------------------------------------------------------------------------


def other_vendor(gpu: str) -> str:
    """A GPU that is not NVIDIA's."""
    return f"predictions know NVIDIA's libraries only, not those of {gpu}"


def type_before(gpu: str, dtype: str, came_with: str, instead: str) -> str:
    """Tensor cores older than the type."""
    return f"the tensor cores of {gpu} have no {dtype}, which came with {came_with}: use {instead}"


def peak_unknown(gpu: str, dtype: str) -> str:
    """A datasheet without the peak of a type."""
    return f"the {dtype} peak of {gpu} is not known"


def bandwidth_unknown(gpu: str) -> str:
    """A datasheet without the memory's bandwidth."""
    return f"the memory bandwidth of {gpu} is not known"


def sms_unknown(gpu: str) -> str:
    """A GPU whose SMs nobody counted."""
    return f"the number of SMs of {gpu} is not known"


def rates_unknown(gpu: str, dtype: str, measured: Sequence[str]) -> str:
    """A GPU and type of which nothing was measured, nor of one like them; ``measured``: on those it was."""
    known = f": it was measured on {', '.join(measured)} only" if measured else ""
    return f"what {gpu} reaches in {dtype} is not known{known}"


def alignment_cost_unknown(aligned: int, why: str) -> str:
    """Operands on so many bytes; ``why`` is the ladder's."""
    return f"the cost of an alignment of {aligned} bytes is not known: {why}"


# --- where figures are from ---------------------------------------------------------------------------

TILE_GIVEN = "the tile of the kernel given"
TILE_MEASURED = "the fastest of the tiles measured on this GPU"
TILE_EXPECTED = "the tile that the library is expected to take"
CUDA_CORES_LOAD_SINGLY = "CUDA cores load element by element"
CORRECTED_BY_MEASURED = "not known by itself; GEMMs measured at this alignment correct the time"


def fitted_to(count: int, date: str) -> str:
    """Rates that follow from measurements."""
    return f"fitted to {count} measurements of {date}"


# --- the lines of a derivation ------------------------------------------------------------------------

WAVE_AFTER_WAVE = "wave after wave"
FULL_WAVES = "every wave is full"
OVERLAPPED = "compute and memory overlap: the slower of the two, and more where they are alike"
TILE_ON_SM = "one tile on one SM"
LOADED = "the operands of one tile into one SM; a cluster loads what its CTAs share once"
STORED = "writing a wave's output, the part that no computation hides"
OPERANDS_ONCE = "each operand once"
STILL_CACHED = "still in the L2 cache from the kernels before"
BANDWIDTH_ACHIEVED = "the bandwidth achieved; the L2 cache serves the tiles of a wave"
CAST_BYTES = "activations read in 16 bits, scaled, and written in the operands' type"
IN_L2 = "in L2"
CAST_FIRST = "the kernels that cast the activations first"
CAST_OF_ONE = "as one framework casts them: per row at least, or by the bytes moved"
CAST_MIDDLE = "the kernels that cast the activations first: the middle one of three frameworks' casts"
LAST_ROW = "the last row of tiles is partly empty, and the kernels that load such tiles take longer"
LONG_K = "a tile's time per K grows with K, and is back where it was from 12,288 on, as measured"


def tiles_over(
    tile: tuple[int, int], output: tuple[int, int], *, clustered: bool, slices: int, chosen: str
) -> str:
    """How tiles cover the output, and why the tile is this one."""
    whole = ", in whole clusters" if clustered else ""
    sliced = f", K in {slices} slices" if slices > 1 else ""
    return f"{tile[0]}x{tile[1]} tiles over {output[0]}x{output[1]}{whole}{sliced}; {chosen}"


def tiles_at_once(slots: int, sms: int, cluster: str | None) -> str:
    """How many tiles run together; ``cluster`` of more than one CTA."""
    clusters = f" in clusters of {cluster}" if cluster else ""
    return f"{slots} tiles run at once on {sms} SMs{clusters}"


def partial_wave(partial: str, *, single: bool) -> str:
    """What a wave costs that does not fill the GPU."""
    return f"a {'single' if single else 'last'} wave costs {partial} of a full one, the rest by its tiles"


def steps_of_k(step: int) -> str:
    """K as a tile goes through it."""
    return f"K in steps of {step}"


def of_another_type(source: str, dtype: str) -> str:
    """Figures of a type whose units another one runs on."""
    return f"{source}; taken over to {dtype}"


def of_layout(source: str, dtype: str, layout: str, frac: float) -> str:
    """A layout whose operands the tensor cores do not read as they lie."""
    return f"{source}; {layout} of {dtype} reaches {frac:g} of TN's on an H100"


def multiply_rate(tflops: str, source: str, aligned: int, aligned_source: str) -> str:
    """The rate of the K loop, with what it and the alignment's cost rest on."""
    return (
        f"{tflops} in the K loop of a 128x256 tile ({source}); alignment of {aligned} bytes:"
        f" {aligned_source}; a smaller tile loads more per multiply"
    )


def slices_summed(slices: int) -> str:
    """Slices of K are summed up across memory."""
    return f"{slices} slices written and read back in fp32"


def whole_time(loss: str, half_us: str) -> str:
    """The fixed part, and the clock of a long kernel."""
    return (
        f"a kernel's start and end, and the rest at the clock that its power leaves: {loss} slower when long,"
        f" half of that after {half_us} us"
    )


def corrected(shapes: Iterable[str]) -> str:
    """The measured shapes that correct the formula, and how."""
    return (
        f"what the formula misses on the measured shapes nearest, {', '.join(shapes)}:"
        " weight * ln(measured / formula), over the weights and that of knowing none"
    )
