"""What the prediction of a GEMM says: why its time is not known, what each line of its derivation is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TYPES_TO_USE = "use bf16, fp16, fp8, fp8-block, nvfp4, tf32 (fp32 data on tensor cores), fp32, fp64 or int8"

# --- what is not known --------------------------------------------------------------------------------

other_vendor = "predictions know NVIDIA's libraries only, not those of {}".format
type_before = "the tensor cores of {} have no {}, which came with {}: use {}".format
peak_unknown = "the {1} peak of {0} is not known".format
bandwidth_unknown = "the memory bandwidth of {} is not known".format
sms_unknown = "the number of SMs of {} is not known".format


def rates_unknown(gpu: str, dtype: str, measured: Sequence[str]) -> str:
    """A GPU and type of which nothing was measured, nor of one like them; ``measured``: on those it was."""
    known = f": it was measured on {', '.join(measured)} only" if measured else ""
    return f"what {gpu} reaches in {dtype} is not known{known}"


alignment_cost_unknown = "the cost of an alignment of {} bytes is not known: {}".format


# --- where figures are from ---------------------------------------------------------------------------

TILE_GIVEN = "the tile of the kernel given"
TILE_MEASURED = "the fastest of the tiles measured on this GPU"
TILE_EXPECTED = "the tile that the library is expected to take"
CUDA_CORES_LOAD_SINGLY = "CUDA cores load element by element"
CORRECTED_BY_MEASURED = "not known by itself; GEMMs measured at this alignment correct the time"
fitted_to = "fitted to {} measurements of {}".format


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
steps_of_k = "K in steps of {}".format
of_another_type = "{}; taken over to {}".format
of_layout = "{0}; {2} of {1} reaches {3:g} of TN's on an H100".format
multiply_rate = (
    "{} in the K loop of a 128x256 tile ({}); alignment of {} bytes: {}; a smaller tile loads more per "
    "multiply"
).format
slices_summed = "{} slices written and read back in fp32".format
whole_time = (
    "a kernel's start and end, and the rest at the clock that its power leaves: {} slower when long, "
    "half of that after {} us"
).format


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


def corrected(shapes: Iterable[str]) -> str:
    """The measured shapes that correct the formula, and how."""
    return (
        f"what the formula misses on the measured shapes nearest, {', '.join(shapes)}:"
        " weight * ln(measured / formula), over the weights and that of knowing none"
    )
