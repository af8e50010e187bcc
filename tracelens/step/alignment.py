"""Which loads a GEMM's kernel uses, and which of its dimensions keep it from 16-byte ones.

Tensor-core kernels fetch operands 16 bytes at a time (``ld.global.v4``, ``cp.async`` 16; Hopper's TMA
demands global strides that are multiples of 16 bytes, CUDA driver API, cuTensorMapEncodeTiled). What has
to be a multiple is the *leading* dimension of each operand: the one that is contiguous in memory. An odd
M of y = x W is harmless, for M counts rows: a public H100 trace (AMD-AGI/TraceLens tests) runs M = 25089
on the same sm90_xmma kernel as M = 25088. cuBLAS falls back by the alignment it finds: 16 bytes nvjet,
8, 4 and 2 bytes the sm80/sm75 cutlass kernels named align4, align2, align1
(facebookexperimental/triton, bitequiv/cublas_match, cuBLASLt 13.1 on an H100).
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.gemm import bytes_per_element
from tracelens.results import GemmRow

#: The grid every leading dimension has to be on, in bytes.
GRID_BYTES = 16
#: cuBLAS's sm90+ kernels load through TMA and exist for 16-byte strides only; so does DeepGEMM.
_TMA_FAMILIES = frozenset({"nvjet", "deepgemm"})
#: Kernels chosen because one side is tiny; they leave the tensor cores alone by design.
_SKINNY_FAMILIES = frozenset({"gemv", "gemmsn", "gemmk1", "cublas_dot", "magma"})
_ON_WEIGHTS = frozenset({"optimizer", "grad_clip"})
#: Types that no CUDA-core kernel should multiply; fp32 is another question (tf32 is the user's choice).
_TENSOR_CORE_DTYPES = frozenset({"bf16", "fp16", "fp8", "int8"})


@dataclass(frozen=True, slots=True)
class Misfit:
    """A GEMM that cannot use, or did not use, 16-byte loads.

    ``dims`` are the leading dimensions off the grid as (letter, size), letter "m", "n" or "k"; empty
    when the shape is not known or is on the grid. ``kernel`` says what the kernel's name shows, None
    when only the dimensions speak.
    """

    row: GemmRow
    dims: tuple[tuple[str, int], ...]
    kernel: str | None


def misfit_of(row: GemmRow) -> Misfit | None:
    """The row's misfit, or None where its kernel loads 16 bytes or nothing says otherwise.

    The kernel's own name outweighs the dimensions: storage can be padded where a shape is odd.
    """
    if row.kind != "gemm" or row.tensor_core == "ineligible":
        return None
    if row.component in _ON_WEIGHTS:
        return None  # products of an optimizer have the shape of the weights: nothing of their own to pad
    if row.kernel_kind not in ("gemm", None) or row.kernel_family in _SKINNY_FAMILIES or 1 in (row.m, row.n):
        return None  # with a vector it moves bytes, and a tensor core has nothing to do
    if fp32_on_cuda_cores(row):
        return None
    narrow = narrow_kernel(row)
    if narrow is None and loads_16_bytes(row):
        return None
    dims = off_grid(row)
    if narrow is not None and not dims:
        dims = _any_off_grid(row, _dtype(row))
    return Misfit(row=row, dims=dims, kernel=narrow) if narrow is not None or dims else None


def fp32_on_cuda_cores(row: GemmRow) -> bool:
    """True for full-precision products without tensor cores: alignment is not what holds them back."""
    return row.kernel_tensor_core is False and _dtype(row) == "fp32"


def load_bytes(row: GemmRow) -> int | None:
    """Bytes per load as the kernel's name states it; None where it does not."""
    if row.kernel_family in _TMA_FAMILIES:
        return GRID_BYTES
    elements, size = row.kernel_alignment, bytes_per_element(_dtype(row))
    return int(elements * size) if elements is not None and size is not None else None


def loads_16_bytes(row: GemmRow) -> bool:
    """True when the kernel's name says that its loads are full."""
    loaded = load_bytes(row)
    return loaded is not None and loaded >= GRID_BYTES


def narrow_kernel(row: GemmRow) -> str | None:
    """What the kernel's name shows of a fallback, in words; None where it shows none."""
    if row.kernel_kind != "gemm" or row.kernel_family in _SKINNY_FAMILIES:
        return None
    if row.kernel_tensor_core is False:
        wanted = _dtype(row) in _TENSOR_CORE_DTYPES and row.tensor_core == "eligible_unused"
        return f"{row.kernel_family} on CUDA cores (SIMT)" if wanted else None
    loaded = load_bytes(row)
    if loaded is None or loaded >= GRID_BYTES:
        return None
    return f"{row.kernel_family} align{row.kernel_alignment}, {loaded}-byte loads"


def off_grid(row: GemmRow) -> tuple[tuple[str, int], ...]:
    """Leading dimensions that are no multiple of 16 bytes, output first; empty when unknown."""
    dtype = _dtype(row)
    layout = row.layout or row.kernel_layout
    leading: list[tuple[str, str, str | None]] = [("c", "n", row.out_dtype or dtype)]
    if layout is not None and len(layout) >= 2:
        # cuBLAS letters: the first is torch's b, the second torch's a; N = row-major in torch's view.
        leading.append(("a", "k" if layout[1] == "N" else "m", dtype))
        leading.append(("b", "n" if layout[0] == "N" else "k", dtype))
    else:
        # As torch's linear layers store them: wgrad reads grad_out^T, contiguous along M, and its K counts
        # tokens; elsewhere a is row-major. b is [K,N] or its transpose, so N and K cover it.
        leading.append(("a", "m" if row.role == "wgrad" else "k", dtype))
    sizes = {"m": row.m, "n": row.n, "k": row.k}
    found: dict[str, int] = {}
    for operand, letter, its_dtype in leading:
        recorded = row.alignment_bytes.get(operand)
        size = sizes[letter]
        if layout is not None and recorded is not None and recorded >= GRID_BYTES:
            continue  # the real stride is on the grid, whatever the dimension
        if size is not None and _is_off(size, its_dtype):
            found[letter] = size
    return tuple(found.items())


def grid_elements(dtype: str | None) -> int | None:
    """Elements in 16 bytes: 8 for bf16, 4 for fp32, 16 for fp8.

    >>> [grid_elements(dtype) for dtype in ("bf16", "fp16", "fp32", "tf32", "fp8", "fp4", None)]
    [8, 8, 4, 4, 16, 32, None]
    """
    size = bytes_per_element(dtype)
    return int(GRID_BYTES / size) if size is not None else None


def boundary_bytes(elements: int, dtype: str | None) -> int | None:
    """Largest power of two in bytes, 128 at most, on which every row of ``elements`` begins.

    >>> boundary_bytes(30522, "bf16"), boundary_bytes(50257, "bf16"), boundary_bytes(50304, "bf16")
    (4, 2, 128)
    """
    size = bytes_per_element(dtype)
    total = int(elements * size) if size is not None else 0
    return min(total & -total, 128) if total > 0 else None


def _any_off_grid(row: GemmRow, dtype: str | None) -> tuple[tuple[str, int], ...]:
    # An operand stored another way than its layout says (a copy, a padded view): any side can be the cause.
    sizes = (("n", row.n), ("k", row.k), ("m", row.m))
    return tuple((letter, size) for letter, size in sizes if size is not None and _is_off(size, dtype))


def _is_off(elements: int, dtype: str | None) -> bool:
    grid = grid_elements(dtype)
    return grid is not None and elements > 1 and elements % grid != 0


def _dtype(row: GemmRow) -> str | None:
    return row.dtype or row.kernel_dtype
