"""Kernels of a simulated H100: a realistic name, launch geometry and a time from a simple model.

Times are simulated, never measured. A kernel takes the longest of
  * arithmetic: tiles are computed in waves of 132, edge tiles and the last wave cost as much as
    full ones; a wave runs at CEILING, times a factor below 1 for operands under 16-byte alignment;
  * memory: its operands once, at 3350 GB/s;
  * 2 us.
Name facts (tile order, grids, alignment ladder) follow what real H100 traces show: nvjet's first tile
dimension lies on the columns of out[m,n]; 16-byte rows get nvjet, less gets a cutlass kernel whose
name ends in the alignment in elements; below 4 bytes only the sm75 kernels are left.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tests.synthetic.kernel_names import (
    BF16,
    elementwise_name,
    flash_name,
    kernel_name,
    strided_copy_name,
    sum_name,
)

SMS = 132
CEILING = 794.5e12  # FLOP/s, the best bf16 matmul anyone measured on an H100
BANDWIDTH = 3350e9  # B/s
FLOOR_NS = 2000
ALIGNMENT_FACTOR = {8: 1.0, 4: 0.72, 2: 0.66, 1: 0.33}  # by elements; of the size published sweeps show
FLASH_FACTOR = 0.55  # of CEILING, for the FlashAttention 2 kernels on Hopper
_TILES = ((256, 128), (128, 256), (192, 192), (128, 128), (128, 64), (64, 64))  # on n, on m
_COOPERATION = {(256, 128): "_coopA", (128, 256): "_coopB", (192, 192): "_coopB"}


@dataclass(frozen=True, slots=True)
class Work:
    """One thing for the GPU to do."""

    name: str
    duration_ns: int
    category: str = "kernel"  # kernel | gpu_memcpy | gpu_memset
    api: str = "cudaLaunchKernel"
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    registers: int = 32
    shared: int = 0
    occupancy: int = 75
    bytes: int = 0


def streaming_ns(moved: float) -> int:
    """Time of a kernel that only moves bytes."""
    return max(FLOOR_NS, round(moved / BANDWIDTH * 1e9))


def alignment(*rows: int) -> int:
    """Largest power of two, up to 8 elements (16 bytes of bf16), that divides every row length."""
    best = 8
    while any(size % best for size in rows):
        best //= 2
    return best


def _tile(m: int, n: int, batch: int) -> tuple[int, int]:
    """The tile with the least work in whole waves; small tiles read each operand more often."""

    def cost(tile: tuple[int, int]) -> float:
        columns, lines = tile
        waves = ceil(ceil(n / columns) * ceil(m / lines) * batch / SMS)
        return waves * columns * lines * (1 + 0.03 * (32768 / (columns * lines) - 1))

    return min(_TILES, key=cost)


def gemm(m: int, n: int, k: int, *, batch: int = 1, layout: str = "TN", rows: tuple[int, ...] = ()) -> Work:
    """Kernel for out[m,n] = a[m,k] @ b[k,n]; ``rows`` are the contiguous sizes of a, b and out."""
    aligned = alignment(*(rows or (k, n)))
    columns, lines = _tile(m, n, batch)
    if aligned < 8 and (columns, lines) == (192, 192):
        columns, lines = 128, 128
    tiles = ceil(n / columns) * ceil(m / lines) * batch
    padded = ceil(tiles / SMS) * SMS * columns * lines * (ceil(k / 64) * 64) * 2
    arithmetic = padded / (CEILING * ALIGNMENT_FACTOR[aligned]) * 1e9
    memory = 2 * batch * (m * k + k * n + m * n) / BANDWIDTH * 1e9
    duration = max(FLOOR_NS, round(max(arithmetic, memory)))
    if aligned == 8:
        stages = 196608 // ((columns + lines) * 64 * 2)  # as many as fit beside the epilogue
        cluster, order = ("2x1", "v") if m >= n else ("1x2", "h")
        cooperation = _COOPERATION.get((columns, lines), "")
        third = {"TN": "T", "NN": "N", "NT": "N"}[layout]
        tile = f"{columns}x{lines}_64x{stages}"
        name = f"nvjet_tst_{tile}_{cluster}_{order}_bz{cooperation}_{layout}{third}"
        grid = (2, min(SMS // 2, ceil(tiles / 2)), 1)
        shared = (columns + lines) * 64 * 2 * stages + 16540
        return Work(name, duration, "kernel", "cuLaunchKernelEx", grid, (384, 1, 1), 168, shared, 0)
    tile = f"{columns}x{lines}" + ("" if aligned == 1 else "_32x3")
    family = "75_tensorop_bf16_s1688gemm" if aligned == 1 else "80_tensorop_bf16_s16816gemm"
    inner = f"cutlass_{family}_bf16_{tile}_{layout.lower()}_align{aligned}"
    # Tiles of m are folded by 8 into the other axis, so that neighbours share operands in L2.
    across = ceil(n / columns)
    factor = 8 if across >= 6 else 4 if across >= 3 else across  # GemmIdentityThreadblockSwizzle<8>
    grid = (ceil(m / lines) * factor, ceil(across / factor), batch)
    name = f"void cutlass::Kernel2<{inner}>({inner}::Params)"
    return Work(name, duration, "kernel", "cudaLaunchKernel", grid, (256, 1, 1), 230, 147456, 0)


def pointwise(kind: str, elements: int, size: int = 2) -> Work:
    """An elementwise kernel; ``size`` is bytes per element."""
    name, arrays = elementwise_name(kind, BF16 if size == 2 else "float")
    return _elementwise(name, elements, elements * arrays * size)


def _elementwise(name: str, elements: int, moved: float) -> Work:
    return Work(name, streaming_ns(moved), grid=(max(1, ceil(elements / 1024)), 1, 1), registers=34)


def copy(elements: int, read: int = 2, write: int = 2) -> Work:
    """A strided or casting copy; bytes per element read and written."""
    moved = elements * (read + write)
    if read != write:
        name, _ = elementwise_name("narrow" if read > write else "widen", "float")
        return _elementwise(name, elements, moved)
    return Work(
        strided_copy_name(), streaming_ns(moved), grid=(max(1, ceil(elements / 512)), 1, 1), registers=18
    )


def reduction(elements: int, outputs: int, size: int = 2) -> Work:
    """aten::sum or aten::mean over part of the dimensions."""
    grid = (max(1, min(outputs // 128, 1024)), 1, 1)
    return Work(
        sum_name(), streaming_ns(elements * size), grid=grid, block=(32, 4, 1), registers=54, shared=16
    )


def named(
    key: str,
    moved: float,
    *,
    dtype: str = BF16,
    blocks: int = 1,
    threads: int = 256,
    factor: float = 1.0,
    dims: int = 3,
) -> Work:
    """A memory-bound kernel with a name of its own; ``factor`` slows it below full bandwidth."""
    name, duration = kernel_name(key, dtype, dims=dims), round(streaming_ns(moved) * factor)
    return Work(
        name, duration, grid=(max(1, blocks), 1, 1), block=(threads, 1, 1), registers=40, occupancy=50
    )


def flash(kind: str, *, batch: int, heads: int, sequence: int, head_dim: int) -> Work:
    """One kernel of FlashAttention 2, causal; head dimensions run in the next size there is a kernel for."""
    size = next(s for s in (32, 64, 96, 128, 192, 256) if head_dim <= s)
    name = flash_name(kind, size, exact=size == head_dim)
    forward = 2 * 2 * batch * heads * sequence * sequence * size / 2
    rows, moved = ceil(sequence / 128), 2 * batch * heads * sequence * size * 2
    grid, threads, registers, shared = (rows, batch, heads), 256, 64, 0
    if kind == "forward":
        blocks = rows * batch * heads
        flops = forward * ceil(blocks / SMS) * SMS / blocks
        duration = max(FLOOR_NS, round(flops / (CEILING * FLASH_FACTOR) * 1e9))
        threads, registers, shared = 128, 255, 81920
    elif kind == "backward":
        duration = max(FLOOR_NS, round(2.5 * forward / (CEILING * FLASH_FACTOR * 0.8) * 1e9))
        registers, shared = 255, 147456
    else:
        duration = streaming_ns(moved if kind == "dot" else 1.5 * moved)
    return Work(name, duration, "kernel", "cudaLaunchKernel", grid, (threads, 1, 1), registers, shared, 12)


def multi_tensor(functor: str, elements: int, moved: float, depth: int) -> Work:
    """One launch of a horizontally fused optimizer or foreach kernel."""
    space = "at::native::(anonymous namespace)::"
    lists = f"{space}TensorListMetadata<{depth}>"
    if "FusedAdam" in functor:
        lists = f"{space}FusedOptimizerTensorListMetadata<{depth}>"
    name = f"void {space}multi_tensor_apply_kernel<{lists}, {functor} >({lists}, {functor})"
    blocks = max(1, min(320, ceil(elements / 65536)))
    return Work(name, streaming_ns(moved), grid=(blocks, 1, 1), block=(512, 1, 1), registers=48)


def all_reduce(elements: int, ranks: int) -> Work:
    """A ring all-reduce over NVLink at 360 GB/s of bus bandwidth."""
    seconds = 2 * (ranks - 1) / ranks * elements * 2 / 360e9
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    duration = max(20_000, round(seconds * 1e9))
    return Work(name, duration, "kernel", "cudaLaunchKernelExC", (24, 1, 1), (544, 1, 1), 96, 103808, 0)


def memcpy(size: int) -> Work:
    """A copy of the batch to the device over PCIe at 25 GB/s."""
    duration = max(1200, round(size / 25e9 * 1e9))
    return Work("Memcpy HtoD (Pageable -> Device)", duration, "gpu_memcpy", "cudaMemcpyAsync", bytes=size)


def memset(size: int) -> Work:
    duration = max(900, round(size / BANDWIDTH * 1e9))
    return Work("Memset (Device)", duration, "gpu_memset", "cudaMemsetAsync", bytes=size)
